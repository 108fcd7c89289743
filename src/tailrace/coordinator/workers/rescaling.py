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
from tailrace.coordinator.loops.termination import NestSpec
from tailrace.coordinator.workers.autoscaling import Scaler, ScaleSettings
from tailrace.coordinator.workers.readiness import Readiness
from tailrace.errors import InternalError
from tailrace.protocol.deployment import FailureKind
from tailrace.state.manifest import Manifest


def _fits_always(manifest: Manifest) -> str:
    return ""


def _as_many(workers: int) -> int:
    return workers


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


@dataclass(frozen=True)
class ElasticSizes:
    """The sizes of an elastic job, and the times that it waits (int64 microseconds)."""

    least: int
    most: int
    make: Callable[[int], JobSize]
    """A pure function that gives the size with a number of workers."""
    processes: Callable[[int], int] = _as_many
    """A pure function that gives the number of task slots that the job holds with so many workers."""
    wait: int = 10_000_000
    """The wait for missing workers, before the job goes on with those that are there."""
    settle: int = 2_000_000
    """The time for which the number of task slots stays as it is, before the job grows."""
    pause: int = 10_000_000
    """The pause behind a change of size. Behind each that fails it is twice as long."""
    longest: int = 600_000_000
    """The longest of these pauses."""
    scale: ScaleSettings | None = None
    """The settings by which the load of the job decides; None: the job takes all slots that there are."""

    def clamp(self, count: int) -> int:
        """The nearest number of workers that the job may have."""
        return max(self.least, min(self.most, count))


class Elasticity:
    """The bookkeeping of one elastic job: the size that it is to have, and the task slots that there are.

    Invariant Y35: the job has from `least` to `most` workers. It has fewer than are required only where there were no task
    slots for more, when it began or began anew, or since.
    """

    def __init__(self, sizes: ElasticSizes, slots: int) -> None:
        """`slots`: the number of workers with which it begins."""
        self.sizes = sizes
        self.required = slots if sizes.scale is not None else sizes.most
        """The number of workers that the job is to have, where there are slots for them."""
        self.room = slots
        """The number of workers for which there are task slots, by the newest report."""
        self.unfit = ""
        """The reason why the job cannot begin anew with fewer workers; empty where none is known."""
        self.scaler = None if sizes.scale is None else Scaler(sizes.scale, sizes.least, sizes.most)
        self._settled_at = self._again_at = 0
        self._pause, self._ran = sizes.pause, 0

    def note_room(self, count: int, now: int) -> None:
        """Takes the report of how many task slots there are for the job: those that it has, and free ones."""
        sizes = self.sizes
        counts = range(sizes.most, sizes.least - 1, -1)
        room = next((workers for workers in counts if sizes.processes(workers) <= count), sizes.least)
        if room != self.room:
            self.room, self._settled_at = room, now + sizes.settle

    def aim(self, workers: int) -> int:
        """The number of workers that a job with so many is to have now. Slots that are gone take no worker away: it would
        be lost, and that is noticed."""
        return self.sizes.clamp(
            self.required if self.required <= workers else max(workers, min(self.required, self.room))
        )

    def due_at(self, workers: int) -> int | None:
        """The time at which a job with so many workers is to change its size; None as things stand."""
        aim = self.aim(workers)
        return None if aim == workers else max(self._again_at, self._settled_at if aim > workers else 0)

    def want(self, workers: int) -> None:
        """Notes that the job is to have this number of workers."""
        self.required = self.sizes.clamp(workers)

    def tries(self, now: int) -> None:
        """Notes that the job tries to change its size."""
        self._again_at = now + self._pause
        self._pause = min(2 * self._pause, self.sizes.longest)

    def runs(self, workers: int, now: int) -> None:
        """Notes that the job runs, with this number of workers."""
        changed, began, self._ran, self.unfit = workers != self._ran, not self._ran, workers, ""
        if changed:
            self._pause = self.sizes.pause
            self._again_at = now if began else now + self._pause
        if self.scaler is not None:
            self.scaler.anew(now, changed=changed)


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
    done nothing behind its cut, and which is the newest one; or where it begins anew from the newest one after a failure.
    Invariant Y32: until the job has run in the new size, the size before is known, and the next failure brings it back.
    Invariant Y33: each request is answered once.
    """

    def __init__(self, size: JobSize, elastic: ElasticSizes | None = None) -> None:
        self.elastic = None if elastic is None else Elasticity(elastic, size.slots)
        """The bookkeeping of an elastic job; None for any other one."""
        self.size = size
        """The size of the newest attempt."""
        self.stage = RescaleStage.NONE
        self.since = 0
        """The time of the request (int64 microseconds)."""
        self.count = 0
        """The number of restarts of the job, there or back, by which it changed its size."""
        self.readiness = Readiness()
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
    def before(self) -> JobSize | None:
        """The size before, while the job moves to another one."""
        return self._other if self.is_moving else None

    @property
    def target(self) -> JobSize | None:
        """The size that is requested, until the job moves to it."""
        return None if self.is_moving else self._other

    def request(self, who: Any, size: JobSize, now: int) -> None:
        """Takes the request of another size, where no change is under way."""
        assert not self.active
        self.stage, self.since, self._failures = RescaleStage.GATHERING, now, 0
        self._other, self._waiting, self.readiness = size, [who], Readiness()

    def refusal(self, size: JobSize) -> str | None:
        """The reason why an elastic job cannot be requested to have a size."""
        sizes = None if self.elastic is None else self.elastic.sizes
        if sizes is None or size.slots == sizes.clamp(size.slots):
            return None
        return f"it is elastic, with {sizes.least} to {sizes.most} workers (tr.Elastic)"

    def retarget(self, size: JobSize, now: int) -> None:
        """Takes another size in place of the requested one, for which not all workers have come."""
        assert self.stage is RescaleStage.GATHERING
        self._other, self.since = size, now

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
