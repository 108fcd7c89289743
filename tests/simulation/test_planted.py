"""The search proves itself: of each of these bugs it finds that something is wrong, in few seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.testing.planted import BUGS, planted
from tailrace.testing.scenarios import Scenario
from tailrace.testing.search import search

SEEDS = 60


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    bug = BUGS[name]

    def tuned(made: Scenario) -> Scenario:
        return replace(bug.tune(made), max_turns=20_000)

    with planted(name):
        _, failed = search(range(SEEDS), bug.program, tune=tuned)
    assert failed, f"{SEEDS} seeds show nothing wrong"
    said = "\n".join(failed[0].wrong)
    assert "<locals>" not in said, f"the bug was planted where it does not fit any more: {said}"


ALIKE = {(bug.program, bug.tune): name for name, bug in BUGS.items()}
"""One bug of those that are looked for in the same scenarios."""


@pytest.mark.parametrize("name", sorted(ALIKE.values()))
def test_without_the_bug_the_same_scenarios_are_exactly_once(name: str) -> None:
    bug = BUGS[name]
    with planted(name):
        pass
    _, failed = search(range(3), bug.program, tune=bug.tune)
    assert [one.wrong for one in failed] == []
