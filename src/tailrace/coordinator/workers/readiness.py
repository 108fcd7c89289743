"""The readiness of workers for another size: they read its plan, and the state that they will have in it, while the job
runs on in the size before. Behind the cut they read only what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.coordinator.actions import Send
from tailrace.coordinator.workers.roster import Slot
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld

PATIENCE = 5
"""The newer checkpoints for which a worker that reads one for the first time is not disturbed. Then files of that one may be
gone."""


@dataclass
class _Ready:
    """The readiness of one worker."""

    first: int = 0
    """The checkpoint of the first `Hold`; 0 before that."""
    sent: int = 0
    """The checkpoint of the last one."""
    has_plan: bool = False
    holds: bool = False
    """True if it has reported a checkpoint, with or without the state of its slice."""

    def due(self, newest: int) -> bool:
        """True if it is to read this checkpoint, the newest one."""
        return not self.sent or newest >= self.sent + (1 if self.holds else PATIENCE)


class Readiness:
    """The bookkeeping of one change of size. It decides only when the job stands still, and nothing about results: a worker
    that is not ready does the rest when it is deployed."""

    def __init__(self) -> None:
        self.since = 0
        """The time at which a worker was sent the plan last (int64 microseconds)."""
        self._of: dict[tuple[int, int], _Ready] = {}
        """By place and epoch of the worker."""

    def prepare(
        self,
        workers: Sequence[Slot],
        plan: bytes,
        newest: int | None,
        manifest: Callable[[], bytes],
        now: int,
    ) -> list[Send]:
        """Sends these workers the plan of the size to come, and those that have read it the newest complete checkpoint."""
        sent = []
        for worker in workers:
            one = self._of.get((worker.index, worker.epoch))
            if one is None:
                self._of[worker.index, worker.epoch] = _Ready()
                self.since = now
                sent.append(Send(worker.index, worker.epoch, StandBy(plan)))
            elif one.has_plan and newest is not None and one.due(newest):
                one.first, one.sent = one.first or newest, newest
                sent.append(Send(worker.index, worker.epoch, Hold(newest, manifest(), [worker.index])))
        return sent

    def note(self, worker: Slot, message: StandsBy | StateHeld) -> None:
        """Takes a report of a worker. One of a change before does not count."""
        one = self._of.get((worker.index, worker.epoch))
        if one is None:
            return
        if isinstance(message, StandsBy):
            one.has_plan = True
        elif 0 < one.first <= message.checkpoint:
            one.holds = True

    def lacks(self, workers: Sequence[Slot], newest: int | None) -> bool:
        """True if one of these workers is not ready: it has yet to read the plan, or state for the first time."""
        found = [self._of.get((worker.index, worker.epoch)) for worker in workers]
        return any(one is None or not one.has_plan or not (one.holds or newest is None) for one in found)

    def forget(self, workers: Sequence[Slot]) -> None:
        """Notes that these workers run another plan now, and hold nothing any more."""
        for worker in workers:
            self._of.pop((worker.index, worker.epoch), None)

    def end(self, workers: Sequence[Slot]) -> list[Send]:
        """Ends the change: these workers are to drop what they hold for it."""
        held = [worker for worker in workers if (worker.index, worker.epoch) in self._of]
        self._of.clear()
        return [Send(worker.index, worker.epoch, Hold(0, b"", [])) for worker in held]
