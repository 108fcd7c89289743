"""How a bug is planted: by replacing methods, for as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tailrace.task.subtask.work import Work

Patches = list[Any]
RANDOM = "random"
"""Stands for the search through random flows, where a bug has no golden program that shows it."""
OUTAGES = "outages"
"""Stands for the search with a store of files that goes out of reach."""
STOPS = "stops"
"""Stands for the search that stops jobs and takes savepoints, through all golden programs."""
CHANGES = "changes"
"""Stands for the search through programs that change between two starts."""


@dataclass(frozen=True)
class Bug:
    """A bug: what it is called, and the program that shows it soonest; or `RANDOM`, `OUTAGES`, `STOPS` or `CHANGES`."""

    name: str
    program: str
    patches: Callable[[], Patches]
    tune: Callable[[Any], Any] = lambda made: made
    """What makes scenarios (`Scenario`; in the search for stops `stops.Asked`) show it sooner, where it takes a rare
    coincidence."""
    seed: int = 0
    """A seed that is known to show it: the search begins there."""
    shape: Callable[[Any], Any] = lambda run: run
    """In random flows: makes runs show it sooner, where few are drawn that can."""
    replayed: bool = False
    """Whether a replay of the golden program's workers shows it, and not what comes of them."""
    wants: Callable[[Any], bool] = lambda run: True
    """In random flows (a `random_flows.drawing.Run` is given): what a run must have to show it. Others are left out."""

    def tuned(self, made: Any) -> Any:
        """A scenario as it is looked for there: started again only where the bug's own tune says so."""
        return self.tune(replace(made, started_again=0))

    def tuned_run(self, run: Any) -> Any:
        """A run of a random flow likewise; None where it cannot show the bug."""
        run = self.shape(run)
        return replace(run, world=self.tuned(run.world)) if self.wants(run) else None


def company(patches: Callable[[], Patches]) -> Callable[[], Patches]:
    """The same bug where frames wait for company until their worker rests: what it takes to be seen comes together more
    often then."""
    return lambda: [*patches(), method(Work, "go_round", lambda go_round: lambda self, budget: None)]


def method(owner: type, name: str, make: Callable[[Any], Any]) -> Any:
    """`make` is given the method as it is, and gives the one in its place."""
    return mock.patch.object(owner, name, make(getattr(owner, name)))
