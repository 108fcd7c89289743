"""A standby (`protocol.standby`): a worker that reads the plan, keeps the state of some slices at the newest checkpoint,
and takes the slot of a worker that is lost. A worker of a job that changes its size gets ready in the same way, with the
plan of the size to come and the state of its own slice in it, while the job runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tailrace.errors import GraphError
from tailrace.protocol.deployment import Deploy
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld, TakeSlot
from tailrace.state.backend import Backend
from tailrace.state.manifest import Manifest, decode_manifest, encode_manifest
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import Action, HoldSlot, ReadState, ToCoordinator
from tailrace.task.contract.events import StatePartRead, StateRead, StateUnreadable
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.failover.standby_mirrors import FILES, Mirror
from tailrace.task.slice.preparation import close_unopened, prepare_functions, with_functions_of_its_own

MakeBackend = Callable[[JobSpec, str, int], Backend]
AHEAD_BYTES = 256 << 20
"""Bytes of state up to which a worker that runs reads its slice in another size ahead, where state is in memory: it has
both for a while."""


class Standing:
    """The work of one worker before it has a slot, or before it has one in another size. Its methods return the actions it
    requires.

    Invariant Y36: what it holds belongs to the plan that it has read last, and is deployed with no other one.
    """

    def __init__(
        self,
        slot: int,
        load: Callable[[bytes], JobSpec],
        services: Callable[[JobSpec], Services],
        make: MakeBackend | None,
        numbers: Iterator[int],
    ) -> None:
        """`slot`: the place of the worker."""
        self.spec: JobSpec | None = None
        """The job, until it is deployed here."""
        self._prepared: JobSpec | None = None
        """The job with functions that are prepared, beside those of `spec`, of which mirrors make copies; None if its
        functions cannot be copied."""
        self._unprepared = True
        """True if the functions of the job that is deployed are still to be prepared."""
        self._plan = b""
        self._slot = slot
        self.load, self._services, self._make, self._numbers = load, services, make, numbers
        self._mirrors: dict[int, Mirror | None] = {}
        """The mirrors of slices, by slot; None for a slice that cannot be held."""
        self._requested: Hold | None = None
        """The request to hold the newest checkpoint, until it is held."""
        self._reading: tuple[int, Mirror, Manifest] | None = None
        """The current request to the storage: (its number, the mirror it is for, the checkpoint)."""
        self._taken: Mirror | None = None
        """The mirror of the slice whose slot this worker has taken."""
        self._runs = False
        """True if tasks of the worker run meanwhile."""
        self._raised: list[BaseException] = []
        """Errors of functions that were closed without having been opened."""

    def receive(self, message: StandBy | Hold | TakeSlot, *, runs: bool = False) -> list[Action]:
        """Handles a message of the coordinator. `runs`: tasks of the worker run meanwhile. Then the functions of the plan
        are prepared when it is deployed: users may not expect two of them in one process."""
        if isinstance(message, StandBy):
            self._forget()
            self.spec, self._plan, self._runs = self.load(message.plan), message.plan, runs
            if not runs:
                self._prepare(self.spec)
            return [ToCoordinator(StandsBy())]
        if isinstance(message, Hold):
            self._requested = message
            self._drop([slot for slot in self._mirrors if slot not in message.slots])
            return self._read_on()
        self._take(message.slot)
        return [HoldSlot(message.slot)]

    def _prepare(self, spec: JobSpec) -> None:
        """Prepares the functions of all operators, if this is a standby, which may take any slot; else those of its own."""
        try:
            self._prepared = with_functions_of_its_own(spec, keep_first=False)
        except GraphError:  # they are prepared when a slot is taken
            return
        prepare_functions(self._prepared, self._slot, self._services(spec), only_here=self._slot < spec.plan.slots)

    def give_up(self) -> list[Action]:
        """Drops all that is held or prepared, after an error beside tasks that run: the deployment reads it all anew."""
        requested = self._requested
        self._forget()
        return [] if requested is None else [ToCoordinator(StateHeld(requested.checkpoint, []))]

    def _forget(self) -> None:
        """Drops what belongs to the plan that was read."""
        self._take(-1)
        self._raised = self.close()
        self.spec, self._plan = None, b""

    def deploy(self, deploy: Deploy, slot: int) -> JobSpec:
        """The job that is deployed, with a function object for each operator. A plan that the standby has read already is
        not read again, so that the classes of records are the classes in the state that it holds. What belongs to another
        plan is dropped."""
        if self._plan != deploy.plan:
            self._forget()
        elif self._taken is None:
            self._take(slot)
        spec, prepared = self.spec, self._prepared
        self.spec, self._plan = None, b""
        if prepared is None:
            self._unprepared = True
            return with_functions_of_its_own(self.load(deploy.plan) if spec is None else spec)
        self._prepared, self._unprepared = None, False
        return prepared

    def lend(self, slot: int, checkpoint: int) -> tuple[JobSpec, Mirror] | None:
        """The prepared job and the mirror of a slice, for a hot standby of it; None if one of them is not there, or the
        mirror is of another checkpoint. Others are made where they are needed."""
        mirror = self._mirrors.get(slot)
        if mirror is None or mirror.checkpoint != checkpoint:
            return None
        if self._prepared is None and self.spec is not None:
            self._prepare(self.spec)
        if self._prepared is None:
            return None
        if self._reading is not None and self._reading[1] is mirror:
            return None
        spec, self._prepared = self._prepared, None
        del self._mirrors[slot]
        return spec, mirror

    def is_followed(self) -> None:
        """Drops what the standby holds: it goes on as the replacement of the worker that it has followed."""
        self.spec, self._plan = None, b""
        if self._taken is not None:
            self._taken.close()
        self._taken = None

    def prepare(self, spec: JobSpec, slot: int) -> None:
        """Prepares the functions of a slot in the job that is deployed, unless they are prepared."""
        if self._unprepared:
            prepare_functions(spec, slot, self._services(spec), only_here=True)

    def close(self) -> list[BaseException]:
        """Closes functions that were prepared and not deployed. Returns what they raised."""
        prepared, self._prepared = self._prepared, None
        return [*self._raised, *([] if prepared is None else close_unopened(prepared))]

    def mirror_for(self, deploy: Deploy) -> Mirror | None:
        """The mirror of the slice, if its state is of the files that are restored; else None."""
        mirror, self._taken = self._taken, None
        if mirror is not None and not (deploy.manifest and deploy.own and not deploy.folder):
            mirror.close()
            return None
        return mirror

    # Holding state.

    def _read_on(self) -> list[Action]:
        """Requests the state that the next slice lacks. When all slices have theirs, reports it."""
        requested = self._requested
        if requested is None or self._reading is not None:
            return []
        for slot in requested.slots:
            mirror = self._mirror(slot)
            if mirror is not None and mirror.checkpoint != requested.checkpoint:
                number, manifest = next(self._numbers), decode_manifest(requested.manifest, "the checkpoint to hold")
                self._reading = number, mirror, manifest
                own = _is_in_own_files(manifest, self.spec)
                whole = len(manifest.files) <= FILES
                mirror.begin(whole and own)
                data = requested.manifest if whole or not own else _of_one(manifest, slot)
                held = {uid: dict(chains) for uid, chains in mirror.chains.items()}  # read in another thread
                return [ReadState(number, data, "", mirror.groups, held, worker=slot)]
        self._requested = None
        holding = [one for one in requested.slots if self._mirrors.get(one)]
        return [ToCoordinator(StateHeld(requested.checkpoint, holding))]

    def _mirror(self, slot: int) -> Mirror | None:
        spec = self.spec
        if slot not in self._mirrors and spec is not None:
            try:
                make = self._make
                self._mirrors[slot] = None if make is None else Mirror(spec, slot, self._services(spec), make)
            except GraphError:  # a function cannot be copied: a worker that takes the slice reads all of its state
                self._mirrors[slot] = None
        return self._mirrors.get(slot)

    def read(self, event: StatePartRead | StateRead | StateUnreadable) -> list[Action]:
        """Handles an answer of the storage."""
        if self._reading is None or self._reading[0] != event.number:
            return []
        _, mirror, manifest = self._reading
        if isinstance(event, StatePartRead):
            mirror.part(event.part)
            return self._too_large(mirror) if self._runs and mirror.block_bytes > AHEAD_BYTES else []
        self._reading = None
        if isinstance(
            event, StateUnreadable
        ):  # the file may be gone, since a newer checkpoint is complete: its `Hold` will come
            mirror.given_up()
            newer = self._requested is not None and self._requested.checkpoint != manifest.checkpoint
            self._requested = self._requested if newer else None
        else:
            mirror.read(manifest)
        return self._read_on()

    def _too_large(self, mirror: Mirror) -> list[Action]:
        """Holds a slice no more that is too large beside those that run. A reading of nothing ends the one under way."""
        assert self.spec is not None and self._requested is not None
        if self.spec.state_backend != "memory":
            return []
        mirror.close()
        self._mirrors[mirror.slot], self._reading = None, None
        nothing = ReadState(next(self._numbers), self._requested.manifest, "", {}, {}, worker=mirror.slot)
        return [nothing, *self._read_on()]

    def _take(self, slot: int) -> None:
        if self._reading is not None:
            self._reading[1].given_up()
        self._reading = self._requested = None
        if self._taken is not None:
            self._taken.close()
        self._taken = self._mirrors.pop(slot, None)
        self._drop(list(self._mirrors))

    def _drop(self, slots: list[int]) -> None:
        """Drops the mirrors of slices that are no longer to be held."""
        for slot in slots:
            mirror = self._mirrors.pop(slot)
            if mirror is not None:
                if self._reading is not None and self._reading[1] is mirror:
                    self._reading = None  # the storage's answer will be ignored
                mirror.close()


def _is_in_own_files(manifest: Manifest, spec: JobSpec | None) -> bool:
    """True if each worker has written the keyed state of its own slice: operators have the parallelism that they had."""
    before = {record.uid: record.parallelism for record in manifest.operators}
    nodes = () if spec is None else spec.plan.graph.nodes
    return all(before.get(node.uid, node.parallelism) == node.parallelism for node in nodes)


def _of_one(manifest: Manifest, slot: int) -> bytes:
    """The manifest with the files of one worker only; the keyed state of its slice is in them."""
    own = [file for file in manifest.files if file.slot == slot]
    return encode_manifest(msgspec.structs.replace(manifest, files=own))
