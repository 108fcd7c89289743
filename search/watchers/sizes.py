"""Checks of what the load of a job decides about its size."""

from __future__ import annotations

import re

from tailrace.coordinator.actions import Send
from tailrace.coordinator.workers.autoscaling import CALM, MOST_GROWTH, ScaleSettings
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Driver, Observer

_DECIDED = re.compile(r"sized by the load from (\d+) to (\d+): ")
_RUNS = re.compile(r"status RUNNING\b")


class SizeWatch(Observer):
    """An observer that checks the decisions by the load: the job has as many workers as it was decided from, gets none
    beyond its bounds and not too many at once, and keeps a size for as long as the settings say, whatever has led to it. It
    looks at the first coordinator of a job only: that one may wake up beside its successor."""

    def __init__(self, world: Simulation, bounds: tuple[int, int] | None, settings: ScaleSettings | None) -> None:
        self.wrong: list[str] = []
        self.checked = 0
        """Number of decisions that were checked."""
        self._world, self._bounds, self._settings = world, bounds, settings
        self._driver: Driver | None = None
        self._workers = 0
        """Number of workers with which the job ran last; 0 before it has run."""
        self._since = 0
        """The time since when it has that size, or of the newest decision."""

    def on_message(self, driver: Driver, action: Send) -> None:
        self._driver = self._driver or driver
        if driver is not self._driver:
            self._settings = None

    def on_line(self, line: str) -> None:
        if self._settings is None or self._driver is None:
            return
        if _RUNS.search(line) is not None:
            workers = len(self._driver.coordinator.roster.slots)
            if workers != self._workers:
                self._workers, self._since = workers, self._world.now
        elif (found := _DECIDED.search(line)) is not None:
            self.checked += 1
            before, after = int(found[1]), int(found[2])
            self.wrong += [f"{line}: {what}" for what in self._misfits(self._settings, before, after)]
            self._since = self._world.now

    def _misfits(self, settings: ScaleSettings, before: int, after: int) -> list[str]:
        """What is wrong with a decision."""
        least, most = self._bounds or (1, 1)
        calm = settings.cooldown * (1 if after > before else CALM)
        found = []
        if before != self._workers:
            found.append(f"the job runs with {self._workers} workers")
        if not least <= after <= most:
            found.append(f"it may have {least} to {most} workers")
        if after > MOST_GROWTH * before:
            found.append(f"it grows to {MOST_GROWTH:g} times its size at once, at most")
        if self._world.now - self._since < calm:
            found.append(
                f"it keeps a size for {calm} µs at least, and has had this one for {self._world.now - self._since}"
            )
        return found
