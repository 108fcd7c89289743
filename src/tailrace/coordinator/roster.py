"""Which worker holds which slot, under which epoch, when it was last heard, and which Spark jobs run for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tailrace.coordinator.actions import CloseLink, Kill, Launch
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.failures import Cause
from tailrace.protocol.deployment import FailureKind, Hello, Peer, SubtaskReport
from tailrace.protocol.recovery import Reset
from tailrace.state.manifest import Prepared


@dataclass
class Slot:
    """One worker slot.

    Invariant R1: `epoch` grows with every hello and never decreases: a worker that speaks under an older one is not heard.
    """

    index: int
    epoch: int = 0
    hello: Hello | None = None
    """The worker that holds the slot now, or None."""
    deployed: bool = False
    finished: bool = False
    launches: int = 0
    """How many times a Spark job was started for the slot; the last one is the one that is wanted."""
    running: set[int] = field(default_factory=set)
    """Starts whose Spark job has not ended."""
    unwanted: set[int] = field(default_factory=set)
    """Starts whose Spark job was told to end."""
    attempt: int = 0
    """How many times the slice of the slot was started anew. All slices are, together, for now."""
    clean: bool = True
    """Whether the worker runs nothing of an attempt that is over."""
    reset_at: int = 0
    """When it was told to drop what it runs."""
    heard_at: int = 0
    """When the worker was last heard (int64 microseconds of the coordinator's clock)."""
    prepared: list[tuple[str, bytes]] = field(default_factory=list)
    reports: list[SubtaskReport] = field(default_factory=list)
    elapsed: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def connected(self) -> bool:
        return self.hello is not None

    @property
    def spark_ended(self) -> bool:
        """Whether no Spark job of the slot is left."""
        return not self.running

    @property
    def abandoned(self) -> bool:
        """Whether no Spark job is left that would bring the worker that is wanted."""
        return self.launches not in self.running or self.launches in self.unwanted

    def silent_at(self, lease: int) -> int:
        """When its worker has been silent for `lease`, if it is not heard until then."""
        return self.heard_at + lease

    def reset_late_at(self, limit: int) -> int:
        """When its worker has taken too long to drop what it runs."""
        return self.reset_at + limit

    def launch(self) -> Launch:
        """A Spark job is to be started for the slot."""
        self.launches += 1
        self.running.add(self.launches)
        return Launch(self.index, self.launches)

    def kill(self) -> list[Kill]:
        """Whatever runs for the slot is to end."""
        doomed = sorted(self.running - self.unwanted)
        self.unwanted.update(doomed)
        return [Kill(self.index, launch) for launch in doomed]

    def relaunch(self) -> list[Kill | Launch]:
        """Its worker is lost: another one is started, and what may be left of the old one is ended."""
        return [*self.kill(), self.launch()]

    def job_ended(self, launch: int) -> bool:
        """A Spark job of the slot has ended. Whether it had been told to."""
        told = launch in self.unwanted
        self.running.discard(launch)
        self.unwanted.discard(launch)
        return told

    def anew(self) -> None:
        """The slice starts anew: what was known of the attempt before does not count."""
        self.attempt += 1
        self.deployed = self.finished = False
        self.prepared, self.reports = [], []


class Roster:
    """All slots of a job."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index) for index in range(count)]

    def launch(self) -> Decisions:
        """Every slot is to get a worker."""
        return [slot.launch() for slot in self.slots]

    def wants(self, hello: Hello, job: str, incarnation: int) -> bool:
        """Whether a worker that says hello is one that was started for a slot of this job, and by its newest start."""
        if hello.job != job or not 0 <= hello.slot < len(self.slots):
            return False
        return hello.launch == self.slots[hello.slot].launches and 0 < hello.incarnation <= incarnation

    def admit(self, hello: Hello, now: int) -> tuple[int, int | None]:
        """A worker says hello: (its epoch, the epoch of the worker it replaces or None)."""
        slot = self.slots[hello.slot]
        replaced = slot.epoch if slot.connected else None
        slot.epoch += 1
        slot.hello = hello
        slot.deployed = slot.finished = False
        slot.clean = True
        slot.heard_at = now
        return slot.epoch, replaced

    def holds(self, index: int, epoch: int) -> bool:
        """Whether the worker of this epoch still holds the slot."""
        slot = self.slots[index]
        return slot.connected and slot.epoch == epoch

    def lose(self, index: int) -> None:
        """The worker of a slot is gone."""
        self.slots[index].hello = None

    def lost(self, index: int, what: str) -> Decisions:
        """The worker of a slot is gone, and the job did not want that. Where it was to drop what it ran, that is the failure
        that the job restarts from, or a part of it: it does not count again."""
        slot = self.slots[index]
        known = slot.connected and not slot.clean
        self.lose(index)
        return [*slot.relaunch()] if known else [Cause(what, FailureKind.WORKER, slot=index)]

    def replace(self, index: int) -> Decisions:
        """The worker of a slot is gone, and another one is to take its place, while the others go on."""
        slot = self.slots[index]
        slot.deployed = slot.finished = False
        slot.reports = []
        return [*slot.relaunch()]

    def job_ended(self, index: int, error: str | None, *, wanted: bool, over: bool, unfit: bool) -> Decisions:
        """A Spark job of a slot has ended, and our job goes on; `wanted`: so was its worker to. `over`: Spark itself has
        ended, and there will be no other job for the slot. `unfit`: its executor lacks what a worker needs. So will the
        others, where the job has not run yet; later it may be one machine, and the worker may get another one."""
        how = "before the job, and without an error" if error is None else f"with an error: {error}"
        if over:
            return [Cause(f"the Spark task of worker {index} ended {how}", FailureKind.SLOTS, slot=index)]
        if unfit and self.slots[index].attempt == 0:
            return [Cause(f"worker {index} cannot be started: {error}", FailureKind.IMPORT, slot=index)]
        return self.lost(index, f"the Spark task of worker {index} ended {how}") if wanted else []

    def move(self, launches: Collection[tuple[int, int]]) -> Decisions:
        """These starts of slots are ended, and others begun, where they are the newest: Spark starts them elsewhere."""
        moved = [slot for slot in self.slots if slot.connected and (slot.index, slot.launches) in launches]
        decided: Decisions = []
        for slot in moved:
            decided.append(CloseLink(slot.index, slot.epoch))
            self.lose(slot.index)
            decided += slot.relaunch()
        if moved:
            whose = ", ".join(f"worker {slot.index}" for slot in moved)
            decided.append(
                Cause(f"{whose}: the executor is about to go, and the job moves elsewhere", FailureKind.MOVED)
            )
        return decided

    def heard(self, index: int, pid: int, now: int) -> None:
        """A worker's process has given a sign of life."""
        hello = self.slots[index].hello if 0 <= index < len(self.slots) else None
        if hello is not None and hello.pid == pid:
            self.slots[index].heard_at = now

    def replace_silent(self, now: int, lease: int) -> Decisions:
        """A worker has not been heard for `lease`: it is lost."""
        slot = next((slot for slot in self.connected if slot.silent_at(lease) <= now), None)
        if slot is None:
            return []
        what = f"worker {slot.index} has given no sign of life for {(now - slot.heard_at) / 1e6:.0f} s"
        return [CloseLink(slot.index, slot.epoch), *self.lost(slot.index, what)]

    def silent_at(self, lease: int) -> int | None:
        """When a worker has been silent for `lease`, if nobody is heard until then."""
        return min((slot.silent_at(lease) for slot in self.connected), default=None)

    # Everybody begins anew.

    def anew(self, now: int, lost: int | None) -> Decisions:
        """All slices start anew: workers that live drop what they run, and for those that do not others are started."""
        decided: Decisions = []
        for slot in self.slots:
            slot.anew()
            if slot.connected:
                slot.clean = False
                slot.reset_at = now
                decided.append(Tell(Reset(slot.attempt), slot.index))
            elif slot.abandoned or slot.index == lost:
                decided += slot.relaunch()
        return decided

    def reset_late_at(self, limit: int) -> int | None:
        """When a worker has taken too long to drop what it runs."""
        return min((slot.reset_late_at(limit) for slot in self._holding_up()), default=None)

    def replace_late(self, now: int, limit: int) -> Decisions:
        """User code holds workers up: their processes are ended, and others started."""
        decided: Decisions = []
        for slot in self._holding_up():
            if slot.reset_late_at(limit) <= now:
                decided.append(CloseLink(slot.index, slot.epoch))
                self.lose(slot.index)
                decided += slot.relaunch()
        return decided

    def _holding_up(self) -> list[Slot]:
        return [slot for slot in self.connected if not slot.clean]

    # The end.

    def kill(self) -> Decisions:
        """Whatever runs for any slot is to end."""
        return [kill for slot in self.slots for kill in slot.kill()]

    @property
    def spark_ended(self) -> bool:
        """Whether no Spark job of the job is left."""
        return all(slot.spark_ended for slot in self.slots)

    # All of them.

    @property
    def connected(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.connected]

    @property
    def ready(self) -> bool:
        """Whether every slot has a worker that runs nothing."""
        return all(slot.connected and slot.clean for slot in self.slots)

    @property
    def deployed(self) -> bool:
        return all(slot.deployed for slot in self.slots)

    @property
    def finished(self) -> bool:
        return all(slot.finished for slot in self.slots)

    @property
    def prepared(self) -> list[Prepared]:
        """What all sinks have prepared by their end."""
        return [Prepared(uid, data) for slot in self.slots for uid, data in slot.prepared]

    def peers(self) -> list[Peer]:
        """Where every worker listens."""
        return [Peer(s.index, s.hello.host, s.hello.port, s.epoch) for s in self.slots if s.hello is not None]
