"""Mirrors: the state of slices that a standby may have to take, as a complete checkpoint has it. When a slice is lost,
only what checkpoints have written since is to be read; nothing, if the newest one was read.

Keyed state and timers are in backends like those of the slice, with the tables that its operators declare. The tables are
made by a slice that is never opened, and thrown away. A worker that takes the slice gets the backends. The rest of the
checkpoint, state of operators and records in flight, is kept as it was read, and restored by that worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.elements.keygroups import group_range
from tailrace.state.backend import Backend
from tailrace.state.manifest import Manifest
from tailrace.state.parts import AnewOf, BlockOf, ChainsOf, LogOf, MetaOf, Part, ShapeOf
from tailrace.task.contract.functions import with_own_functions
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.slice.machine import Slice

if TYPE_CHECKING:
    from tailrace.task.channels.services import Services

Chains = dict[int, tuple[str, ...]]
"""The files that hold the state of each key group, the oldest first."""
UNKNOWN = ("",)
"""The chain of a key group that was read in part: its content matches no file, so no chain goes on from it."""
FILES = 64
"""Files of a checkpoint up to which a standby reads the state of operators in all of them. Those of a large job would be
read by each of its many standbys, after each checkpoint."""
REST_BYTES = 64 << 20
"""Bytes of operators' state and records in flight up to which a mirror keeps them."""


class Mirror:
    """The state of one slice.

    Invariant Y7: what the backend of an operator has of a key group is what the files of its chain have, in their order;
    where a reading has ended before its end, the chain is `UNKNOWN`. The rest is of the same checkpoint as all chains.
    """

    def __init__(
        self, spec: JobSpec, slot: int, services: Services, make: Callable[[JobSpec, str, int], Backend]
    ) -> None:
        """`services` are for the slice that is thrown away. Raises `GraphError` where functions cannot be copied for it."""
        self.slot = slot
        self.checkpoint = 0
        """The newest checkpoint that was read completely."""
        self.chains: dict[str, Chains] = {}
        """The chains of each operator, by uid."""
        self.groups: dict[str, tuple[int, int]] = {}
        """The key groups [first, last) of each operator, by uid."""
        self._rest: list[Part] = []
        """The parts that are neither keyed state nor chains, of the current reading or of the newest complete one."""
        self._rest_of: tuple[int, int] | None = None
        """Incarnation and number of the checkpoint of which `_rest` is all; None if it is of none."""
        self.block_bytes = 0
        """The bytes of keyed state that were read, of all checkpoints."""
        self._whole, self._bytes = False, 0
        """Whether the current reading is of all files, and its bytes in `_rest`."""
        self._backends: dict[str, Backend] = {}
        self._coming: dict[str, Chains] = {}
        """The chains of each operator after the current reading."""

        def keep(uid: str, subtask: int) -> Backend:
            made = self._backends[uid] = make(spec, uid, subtask)
            return made

        services.make_backend = keep
        most = services.max_parallelism
        Slice(with_own_functions(spec.plan, keep_first=False), slot, 0, services, spec.memory)
        for node in spec.plan.graph.nodes:
            if slot < node.parallelism:
                groups = group_range(slot, node.parallelism, most)
                self.groups[node.uid] = groups.start, groups.stop
        for backend in self._backends.values():
            backend.detach()

    def begin(self, whole: bool) -> None:
        """Begins the reading of a checkpoint. `whole`: of all files, not of the slice's own only."""
        self._rest, self._rest_of, self._whole, self._bytes = [], None, whole, 0

    def part(self, part: Part) -> None:
        """Takes a part of what has changed."""
        if isinstance(part, MetaOf | LogOf | ShapeOf):
            self._keep(part)
        elif isinstance(part, ChainsOf):
            self._coming.setdefault(part.uid, {}).update(part.chains)
        elif isinstance(part, AnewOf):
            self._begin(part.uid, part.group)
            self._backends[part.uid].forget(part.group)
        elif isinstance(part, BlockOf):
            self._begin(part.uid, part.group)
            self.block_bytes += len(part.data)
            self._backends[part.uid].apply(part.table, part.group, part.data)

    def _begin(self, uid: str, group: int) -> None:
        self.chains.setdefault(uid, {})[group] = UNKNOWN

    def _keep(self, part: MetaOf | LogOf | ShapeOf) -> None:
        """Keeps a part that a worker will restore, unless all of them take too much memory."""
        self._bytes += 8 * len(part.shape) if isinstance(part, ShapeOf) else len(part.data or b"")
        self._whole = self._whole and self._bytes <= REST_BYTES
        if self._whole:
            self._rest.append(part)
        else:
            self._rest.clear()

    def read(self, manifest: Manifest) -> None:
        """Notes that a checkpoint was read completely."""
        self.checkpoint, self.chains, self._coming = manifest.checkpoint, self._coming, {}
        self._rest_of = (manifest.incarnation, manifest.checkpoint) if self._whole else None

    def everything_of(self, manifest: Manifest) -> list[Part] | None:
        """The parts of a checkpoint that its restore needs beside what the backends hold; None if some are to be read."""
        if self._rest_of != (manifest.incarnation, manifest.checkpoint):
            return None
        return [*self._rest, *(ChainsOf(uid, chains) for uid, chains in self.chains.items())]

    def given_up(self) -> None:
        """Ends a reading before its end."""
        self._coming = {}

    def take(self, uid: str) -> Backend | None:
        """The backend of an operator, which the caller owns from now on; None if the mirror has none."""
        return self._backends.pop(uid, None)

    def close(self) -> None:
        """Closes the backends that were not taken."""
        for backend in self._backends.values():
            backend.close()
        self._backends = {}


def backends(
    spec: JobSpec, make: Callable[[JobSpec, str, int], Backend], mirror: Mirror | None
) -> Callable[[str, int], Backend]:
    """A function that makes the backends of a deployment. It returns backends of the mirror where the mirror has them."""

    def make_backend(uid: str, subtask: int) -> Backend:
        found = None if mirror is None else mirror.take(uid)
        return make(spec, uid, subtask) if found is None else found

    return make_backend
