"""The request for a cut: one value, from the coordinator down to the backends that freeze for it."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class CutKind(IntEnum):
    """The purpose of a cut. The numbers are sent on the wire."""

    CHECKPOINT = 0
    """Cut of a checkpoint, for a restore after a failure: the changes since the last complete checkpoint are enough."""
    FINAL = 1
    """Cut of the last checkpoint of a job, when every input has ended."""
    SAVEPOINT = 2
    """Cut of a savepoint, which the user keeps: all state is written, so that its files refer to no earlier ones."""

    FINAL_SAVEPOINT = 3
    """Cut of a savepoint that is the last one of a job: the user stopped the job with a savepoint, and its sources ended."""

    @property
    def whole(self) -> bool:
        """True if all state is written, not only what has changed."""
        return self in (CutKind.SAVEPOINT, CutKind.FINAL_SAVEPOINT)

    @property
    def final(self) -> bool:
        """True if every input has ended: the cut is the last one of a job."""
        return self in (CutKind.FINAL, CutKind.FINAL_SAVEPOINT)


class CutRequest(msgspec.Struct, frozen=True, array_like=True):
    """A cut as the coordinator requests it. The request goes to every worker, and with the barriers, which may be first."""

    number: int
    """Number of the checkpoint."""
    kind: CutKind = CutKind.CHECKPOINT
    hold: bool = False
    """True if tasks do nothing after their cuts unless the checkpoint is aborted: the job stops there. All feedback of loops
    is then in their logs, and no task has acted on it."""
    overtakes_after: int = -1
    """Time for which barriers stay behind records that wait, in int64 microseconds from when a task learns of the cut. 0:
    barriers overtake records at once; -1: they never do, the cut is an aligned one."""
    most_inflight: int = -1
    """Maximum number of bytes that barriers overtake in one subtask; if more wait, barriers stay behind them. -1: any
    number."""

    @property
    def ends_job(self) -> bool:
        """True if the job ends or stops after this checkpoint."""
        return self.hold or self.kind.final

    @property
    def urgent(self) -> bool:
        """True if its state is written before most of what else there is to do: a user waits for a savepoint, and the job is
        so far behind that its barriers overtake records."""
        return self.kind is CutKind.SAVEPOINT and self.may_overtake

    @property
    def may_overtake(self) -> bool:
        """True if the barriers of the cut may overtake records."""
        return self.overtakes_after >= 0
