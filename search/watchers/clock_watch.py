"""Checks of simulated jobs whose clocks are set: their workers go by the clocks of their drivers, and nothing else
changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tailrace.task.contract.events import Event, Step
from tailrace.testing.clocks import HOURS
from tailrace.testing.world import Observer, SimulatedProcess


class ClockWatch(Observer):
    """An observer that checks that each step goes by the clock of its driver, which advances steadily whatever happens to
    wall clocks."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._ahead: dict[int, int] = {}
        """For each driver, how far its clock was ahead of the right time at its first step."""

    def on_event(self, process: SimulatedProcess, event: Event) -> None:
        if not isinstance(event, Step) or self.wrong:
            return
        driver = process.driver
        ahead = event.now - driver.clocks.steady()
        if ahead != (expected := self._ahead.setdefault(driver.party, driver.clocks.ahead)):
            self.wrong.append(
                f"worker {process.slot} goes by a clock that is {(ahead - expected) / HOURS:+.3f} hours beside its driver's"
            )


def without_jumps(seed: int, covered: Counter[str], digest: str, plain: Callable[[], str]) -> Iterator[str]:
    """Compares some runs in which clocks were set with a run of the same seed in which they were not; `plain` gives the
    digest of the latter. Where no driver began after a jump, all must have happened in the same order, at the same
    times."""
    jumped = covered["set the clock of the driver"] + covered["set the clock of a worker"]
    if not jumped or seed % 4 != 1 or covered["a driver began behind a jump of its clock"]:
        return
    covered["compared with a run without jumps"] += 1
    if plain() != digest:
        yield "clocks were set while no driver began, and the job took another course than without that"
