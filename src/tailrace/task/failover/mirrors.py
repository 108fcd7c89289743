"""Mirrors: the keyed state of slices that a standby may have to take, as a complete checkpoint has it. When a slice is
lost, only what checkpoints have written since is to be read.

The state is in backends like those of the slice, with the tables that its operators declare. The tables are made by a
slice that is never opened, and thrown away. A worker that takes the slice gets the backends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.elements.keygroups import group_range
from tailrace.state.backend import Backend
from tailrace.state.parts import AnewOf, BlockOf, ChainsOf, Part
from tailrace.task.contract.functions import with_own_functions
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.slice.machine import Slice

if TYPE_CHECKING:
    from tailrace.task.channels.services import Services

Chains = dict[int, tuple[str, ...]]
"""The files that hold the state of each key group, the oldest first."""
UNKNOWN = ("",)
"""The chain of a key group that was read in part: its content matches no file, so no chain goes on from it."""


class Mirror:
    """The keyed state of one slice.

    Invariant Y7: what the backend of an operator has of a key group is what the files of its chain have, in their order;
    where a reading has ended before its end, the chain is `UNKNOWN`.
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
        self._backends: dict[str, Backend] = {}
        self._coming: dict[str, Chains] = {}
        """The chains of each operator after the current reading."""

        def keep(uid: str, subtask: int) -> Backend:
            made = self._backends[uid] = make(spec, uid, subtask)
            return made

        services.make_backend = keep
        most = services.max_parallelism
        for task in Slice(with_own_functions(spec.plan, keep_first=False), slot, 0, services, spec.memory).tasks:
            for operator in task.chain.operators:
                ctx = operator.ctx
                if ctx.uid in self._backends:
                    groups = group_range(ctx.subtask, ctx.parallelism, most)
                    self.groups[ctx.uid] = groups.start, groups.stop
        for backend in self._backends.values():
            backend.detach()

    def part(self, part: Part) -> None:
        """Takes a part of what has changed."""
        if isinstance(part, ChainsOf):
            self._coming.setdefault(part.uid, {}).update(part.chains)
        elif isinstance(part, AnewOf):
            self._begin(part.uid, part.group)
            self._backends[part.uid].forget(part.group)
        elif isinstance(part, BlockOf):
            self._begin(part.uid, part.group)
            self._backends[part.uid].apply(part.table, part.group, part.data)

    def _begin(self, uid: str, group: int) -> None:
        self.chains.setdefault(uid, {})[group] = UNKNOWN

    def read(self, checkpoint: int) -> None:
        """Notes that a checkpoint was read completely."""
        self.checkpoint, self.chains, self._coming = checkpoint, self._coming, {}

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
