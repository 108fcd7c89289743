"""The request for a cut: one value, from the coordinator down to the backends that freeze for it."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class CutKind(IntEnum):
    """What a cut is for. The numbers travel."""

    CHECKPOINT = 0
    """To go on from after a failure: the changes since the last complete one are enough."""
    FINAL = 1
    """The same, when every input has ended: the last one of a job."""
    SAVEPOINT = 2
    """To be kept by the user: whole, so that its files refer to no earlier ones."""

    FINAL_SAVEPOINT = 3
    """Both: of a job that is stopped with a savepoint, when its sources were ended."""

    @property
    def whole(self) -> bool:
        """Whether all state is written, and not only what has changed."""
        return self in (CutKind.SAVEPOINT, CutKind.FINAL_SAVEPOINT)

    @property
    def final(self) -> bool:
        """Whether every input has ended: the last one of a job."""
        return self in (CutKind.FINAL, CutKind.FINAL_SAVEPOINT)


class CutRequest(msgspec.Struct, frozen=True, array_like=True):
    """A cut as the coordinator requests it. It goes to every worker, and with the barriers, which may be there first."""

    number: int
    """That of the checkpoint."""
    kind: CutKind = CutKind.CHECKPOINT
    hold: bool = False
    """Whether tasks do nothing behind their cuts, until the checkpoint is aborted: the job stops there. All feedback of
    loops is then in their logs, and no task has acted on it."""
    overtakes_after: int = -1
    """How long its barriers stay behind records that wait, in int64 microseconds from when a task hears of it: 0: they
    overtake them at once; -1: they never do, the cut is an aligned one."""
    most_inflight: int = -1
    """Barriers overtake no more than so many bytes in one subtask; where more waits they stay behind it. -1: any number."""

    @property
    def ends_job(self) -> bool:
        """Whether the job ends, or stops, behind its checkpoint."""
        return self.hold or self.kind.final

    @property
    def may_overtake(self) -> bool:
        """Whether its barriers may overtake records."""
        return self.overtakes_after >= 0
