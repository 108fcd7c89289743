"""One view of a whole job. A job's runner makes it (`view_makers.view_of`), and the program that has started the job shows
it, wherever the runner is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tailrace.coordinator.checkpoint_stats import Books, CheckpointStats
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.slices import SizeFigures, Slices
from tailrace.protocol.deployment import SubtaskReport, UnderWay


@dataclass(frozen=True)
class SlotFigures:
    """The newest reports of a slot's worker."""

    reports: Sequence[SubtaskReport]
    under_way: UnderWay | None = None
    """The work of its thread that had not come back at its last sign of life."""


@dataclass(frozen=True)
class JobView:
    """A job at a moment, as its coordinator sees it."""

    status: JobStatus
    at: int = 0
    """The moment (int64 microseconds since 1970), by the clock of the job."""
    restarts: int = 0
    """Number of restarts after failures."""
    cause: Cause | None = None
    """The cause of the failure, if the job has failed."""
    slots: Sequence[SlotFigures] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    """Connections refused at the coordinator's and the workers' ports, by reason."""
    books: Books | None = None
    """The figures of the checkpoints; None for a job that takes none."""
    slices: Slices = field(default_factory=Slices)
    waves: Sequence[int] = ()
    """The number of waves that have looked for the end of each loop nest."""
    size: SizeFigures | None = None
    """The size of the job; None where it is not known."""
    due: bool = False
    """True if a progress report is due."""

    @property
    def history(self) -> list[CheckpointStats]:
        """The last complete checkpoints, the newest last."""
        return [] if self.books is None else list(self.books.past)

    @property
    def reports(self) -> list[SubtaskReport]:
        """The newest reports of the workers on their subtasks."""
        return [report for slot in self.slots for report in slot.reports]

    def with_ages(self, now: int) -> JobView:
        """The view with the age that its reports have at `now`, by the clock of the job."""
        since = max(0, now - self.at)
        older = lambda one: msgspec.structs.replace(one, age_micros=one.age_micros + since)  # noqa: E731
        slots = tuple(replace(slot, reports=tuple(map(older, slot.reports))) for slot in self.slots)
        return replace(self, at=self.at + since, slots=slots)
