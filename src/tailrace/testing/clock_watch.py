"""Looks on while a simulated job runs: whether its workers go by its clock."""

from __future__ import annotations

from tailrace.task.events import Event, Step
from tailrace.testing.clocks import HOURS
from tailrace.testing.world import Observer, Process


class ClockWatch(Observer):
    """Sees to it that each step goes by the clock of its driver, which goes on steadily whatever becomes of wall clocks."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._ahead: dict[int, int] = {}
        """Of the clock of each driver, how far it was ahead of the right time at first."""

    def handled(self, process: Process, event: Event) -> None:
        if not isinstance(event, Step) or self.wrong:
            return
        driver = process.driver
        ahead = event.now - driver.clocks.steady()
        if ahead != (wanted := self._ahead.setdefault(driver.party, driver.clocks.ahead)):
            self.wrong.append(
                f"worker {process.slot} goes by a clock that is {(ahead - wanted) / HOURS:+.3f} hours beside its driver's"
            )
