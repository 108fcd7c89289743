"""The planting of a bug: methods are replaced for as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tailrace.task.subtask.work import Work

Patches = list[Any]
RANDOM = "random"
"""Name of the search through random flows, for a bug that no golden program shows."""
OUTAGES = "outages"
"""Name of the search with a store of files that goes out of reach."""
SERVERS = "servers"
"""Name of the search with sinks that publish into a server that is slow or away."""
MARKS = "marks"
"""Name of the search with a transactional sink, whose server writes with marks."""
FOLLOWED = "followed"
"""Name of the search with followed files that change."""
STOPS = "stops"
"""Name of the search that stops jobs and takes savepoints, through all golden programs."""
CHANGES = "changes"
"""Name of the search through programs that change between two starts."""

EACH_STEP = "each step"
"""Name of the search in which one event happens at each step of a short run. The tune of a bug gives the way to run it
(`search.campaigns.each_step`), and a seed is the number of a step."""


@dataclass(frozen=True)
class Bug:
    """A bug: its name, and the program that shows it soonest; or `RANDOM`, `OUTAGES`, `SERVERS`,
    `MARKS`, `FOLLOWED`, `STOPS`, `CHANGES` or `EACH_STEP`."""

    name: str
    program: str
    patches: Callable[[], Patches]
    tune: Callable[[Any], Any] = lambda made: made
    """Changes scenarios (`Scenario`; in the search for stops `stops.Asked`) so that they show it sooner, where it takes a
    rare coincidence."""
    seed: int = 0
    """A seed that is known to show it: the search begins there."""
    shape: Callable[[Any], Any] = lambda run: run
    """Changes random flows so that they show it sooner, where few are drawn that can."""
    replayed: bool = False
    """True where a replay of the golden program's workers shows it, not the program's result."""
    suits: Callable[[Any], bool] = lambda run: True
    """True for a random flow (a `random_flows.drawing.Run`) that can show it. Other flows are left out."""

    def tune_scenario(self, made: Any) -> Any:
        """The scenario in which the bug is searched for. It is started again only where the bug's own tune sets that."""
        return self.tune(replace(made, started_again=0))

    def tuned_run(self, run: Any) -> Any:
        """The run of a random flow in which the bug is searched for; None where the run cannot show it."""
        run = self.shape(run)
        return replace(run, world=self.tune_scenario(run.world)) if self.suits(run) else None


def company(patches: Callable[[], Patches]) -> Callable[[], Patches]:
    """The patches of a bug, with frames that wait for company until their worker rests: the conditions of the bug then
    come together more often."""
    return lambda: [*patches(), method(Work, "go_round", lambda go_round: lambda self, budget: None)]


def method(owner: type, name: str, make: Callable[[Any], Any]) -> Any:
    """A patch of a method: `make` receives the method and returns its replacement."""
    return mock.patch.object(owner, name, make(getattr(owner, name)))
