"""What a checkpoint is to be: one value, from the coordinator that wants it down to the state that is frozen for it."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class CutKind(IntEnum):
    """What a cut is for. The numbers travel."""

    CHECKPOINT = 0
    """To go on from after a failure: what has changed since the last complete one is enough."""
    FINAL = 1
    """The same, when every input has ended: the last one of a job."""
    SAVEPOINT = 2
    """To be kept by the user: whole, so that its files refer to no earlier ones."""

    @property
    def whole(self) -> bool:
        """Whether all state is written, and not only what has changed."""
        return self is CutKind.SAVEPOINT


class CutRequest(msgspec.Struct, frozen=True, array_like=True):
    """A cut, as the coordinator wants it. It goes to every worker, and with the barriers, which may be there first."""

    number: int
    """That of the checkpoint."""
    kind: CutKind = CutKind.CHECKPOINT
    hold: bool = False
    """Whether heads of loops let nothing go on behind their cuts, until the checkpoint is aborted: what was on its way is
    then in their logs, and nothing that follows from it has been done."""
