"""The search proves itself: of each of these bugs it finds that something is wrong, in few seeds."""

from __future__ import annotations

import pytest

from search.__main__ import search
from search.finding import SEARCHES, find
from search.planted.patches import RANDOM
from search.planted.table import BUGS, plant
from search.random_flows.drawing import draw
from search.random_flows.running import carry_out

SEEDS = 60


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    """By the search through golden programs or through random flows, whichever it names, from a seed on that is known."""
    found = find(name, SEEDS)
    assert found is not None, f"{SEEDS} seeds of {BUGS[name].program} show nothing wrong"
    message = "\n".join(found.wrong)
    assert "<locals>" not in message and "AttributeError" not in message, (
        f"the bug was planted where it does not fit any more: {message}"
    )


ALIKE = {(bug.program, bug.tune): name for name, bug in BUGS.items() if bug.program not in SEARCHES}
"""One bug of those that are looked for in the same scenarios."""


@pytest.mark.parametrize("name", sorted(ALIKE.values()))
def test_without_the_bug_the_same_scenarios_are_exactly_once(name: str) -> None:
    bug = BUGS[name]
    with plant(name):
        pass
    _, failed = search(range(bug.seed, bug.seed + 1), bug.program, tune=bug.tune_scenario)
    assert [one.wrong for one in failed] == []


@pytest.mark.parametrize("name", sorted(name for name, bug in BUGS.items() if bug.program == RANDOM))
def test_without_the_bug_the_random_flow_that_shows_it_is_right(name: str) -> None:
    bug = BUGS[name]
    run = bug.tuned_run(draw(bug.seed))
    assert run is not None
    assert carry_out(run).wrong == []
