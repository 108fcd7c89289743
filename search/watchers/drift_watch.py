"""Checks of the event time of sources: a split is not read on while it is too far ahead of another one of its subtask."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from tailrace.task.contract.events import Event, Step
from tailrace.task.operators.timestamps import FORMER, TimestampsTask
from tailrace.testing.world import Observer, SimulatedProcess


class DriftWatch(Observer):
    """An observer that compares the newest times of splits behind each step with these before it."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._before: WeakKeyDictionary[TimestampsTask, dict[int, int]] = WeakKeyDictionary()
        """For each operator the newest times of its splits behind its last step."""

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        if not isinstance(event, Step) or self.wrong:
            return
        for task in process.machine.tasks():
            for one in task.work.chain.generators:
                if one.spec.max_drift is not None:
                    self._look(one, one.spec.max_drift)

    def _look(self, one: TimestampsTask, most: int) -> None:
        now = {split: time for split, time in one.largest.items() if split > FORMER}
        before = self._before.get(one, {})
        self._before[one] = now
        counted = [before[split] for split in now if split in before and split not in one.silent]
        if len(counted) < 2:
            return
        for split, time in now.items():
            if split in before and time > before[split] > min(counted) + most:
                self.wrong.append(
                    f"{one.node.name}: split {split} was read on, {(before[split] - min(counted)) / 1e6} s ahead of another"
                )
