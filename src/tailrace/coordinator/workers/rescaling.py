"""The change of a job's size while it runs: its request, its stage, and the answers to the parties that wait for it.

    NONE --requested--> GATHERING --all workers are there--> CUTTING --its checkpoint is complete--> MOVING --> NONE
                            ^                                   |                                      |
                            +--- a worker is lost, or replaced -+        any failure: the size before -+

More workers are there before the job stands still. Then it takes the checkpoint of a stop, behind which no task does
anything, and starts again from it with another plan. Until it has run so, any failure brings it back to the size before,
from that same checkpoint or an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tailrace.coordinator.actions import RescaleEnded
from tailrace.coordinator.durability.savepoints import ATTEMPTS, given_up
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.loops.loops import NestSpec
from tailrace.errors import InternalError
from tailrace.protocol.deployment import FailureKind
from tailrace.state.manifest import Manifest


def _fits_always(manifest: Manifest) -> str:
    return ""


@dataclass(frozen=True)
class JobSize:
    """A size of a job, with the plan that it gives."""

    slots: int
    plan: bytes
    nests: Sequence[NestSpec] = ()
    standbys: int = 0
    """The number of processes that stand by."""
    text: str = ""
    """The request in words."""
    fits: Callable[[Manifest], str] = _fits_always
    """The reason why the job cannot go on in this size from a checkpoint; empty where it can. A pure function."""

    @property
    def processes(self) -> int:
        """The number of task slots that the job holds in this size."""
        return self.slots + self.standbys


class RescaleStage(Enum):
    """The stages of a change of size."""

    NONE = "none"
    GATHERING = "gathering"
    """A request: the job runs in the size before, and waits for more workers, or for a moment to cut."""
    CUTTING = "cutting"
    """The checkpoint behind which tasks do nothing is under way."""
    MOVING = "moving"
    """The job starts again in the new size, and has not run so."""


BACK = frozenset(FailureKind) - {FailureKind.FENCED, FailureKind.SILENT, FailureKind.INTERNAL}
"""The kinds of failures that bring a job back to its size before, until it has run in the new one."""


class Rescaling:
    """The bookkeeping of one job's changes of size; the course of the job carries out what follows.

    Invariant Y31: the job is deployed in another size only behind a checkpoint in which every task of the size before has
    done nothing behind its cut, and which is the newest one.
    Invariant Y32: until the job has run in the new size, the size before is known, and the next failure brings it back.
    Invariant Y33: each request is answered once.
    """

    def __init__(self, size: JobSize) -> None:
        self.size = size
        """The size of the newest attempt."""
        self.stage = RescaleStage.NONE
        self.since = 0
        """The time of the request (int64 microseconds)."""
        self.count = 0
        """The number of restarts of the job, there or back, by which it changed its size."""
        self._other: JobSize | None = None
        """The requested size; once the job moves to it, the size before."""
        self._waiting: list[Any] = []
        self._failures = 0

    @property
    def active(self) -> bool:
        """True if a change of size is under way."""
        return self.stage is not RescaleStage.NONE

    @property
    def is_cutting(self) -> bool:
        """True if its checkpoint is under way."""
        return self.stage is RescaleStage.CUTTING

    @property
    def is_moving(self) -> bool:
        """True if the job starts again in another size, and has not run so."""
        return self.stage is RescaleStage.MOVING

    @property
    def target(self) -> JobSize | None:
        """The size that is requested, until the job moves to it."""
        return None if self.is_moving else self._other

    def request(self, who: Any, size: JobSize, now: int) -> None:
        """Takes the request of another size, where no change is under way."""
        assert not self.active
        self.stage, self.since, self._failures = RescaleStage.GATHERING, now, 0
        self._other, self._waiting = size, [who]

    def cuts(self) -> None:
        """Notes that the checkpoint is requested."""
        self._goes(RescaleStage.GATHERING, RescaleStage.CUTTING)

    def once_more(self, reason: str, now: int) -> list[RescaleEnded]:
        """Lets the change wait until all workers run again: its checkpoint was given up because of a failure. It ends where
        it has no attempt left."""
        self._failures += 1
        if self._failures == ATTEMPTS:
            return self.fail(given_up("its checkpoint was complete", reason))
        self._goes(RescaleStage.CUTTING, RescaleStage.GATHERING)
        self.since = now
        return []

    def move(self) -> JobSize:
        """Begins the new size: the checkpoint is complete. Returns it."""
        self._goes(RescaleStage.CUTTING, RescaleStage.MOVING)
        return self._swap()

    def back(self) -> JobSize:
        """Returns to the size before. Returns it."""
        assert self.is_moving
        return self._swap()

    def _swap(self) -> JobSize:
        assert self._other is not None
        self.size, self._other = self._other, self.size
        return self.size

    def end(self) -> list[RescaleEnded]:
        """Ends the change: the job runs in the new size."""
        self._goes(RescaleStage.MOVING, RescaleStage.NONE)
        return self._answer("")

    def fail(self, reason: str) -> list[RescaleEnded]:
        """Ends the change without success."""
        if not self.active:
            return []
        self.stage = RescaleStage.NONE
        return self._answer(reason)

    def goes_back(self, cause: Cause) -> bool:
        """True if a failure brings the job back to the size before."""
        return self.is_moving and cause.kind in BACK

    def _answer(self, reason: str) -> list[RescaleEnded]:
        waiting, self._waiting, self._other = self._waiting, [], None
        return [RescaleEnded(who, self.size.slots, reason) for who in waiting]

    def _goes(self, before: RescaleStage, after: RescaleStage) -> None:
        if self.stage is not before:
            raise InternalError(f"a change of size that is {self.stage.value} cannot be {after.value}")
        self.stage = after
