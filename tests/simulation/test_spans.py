"""Loops in rounds by spans of event time, beside a plain interpreter: in each span they begin anew, whoever is lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import tailrace as tr
from search.campaigns.rescales import rescaled
from search.campaigns.unaligned import overtaking
from search.programs.golden import PROGRAMS, Program
from search.programs.spans import HOUR, KEYS, ROUNDS, hours, interpreted
from search.scenarios import Scenario, Verdict, run_scenario, scenario
from search.stories import Story


def little(result: Any) -> bool:
    return sum(half for _, half in result) < 60


def much(figures: tr.RoundFigures) -> bool:
    return bool(figures.output >= KEYS and figures.round >= 2)


WAYS: dict[str, Program] = {
    "at most": Program(
        hours(lambda: tr.Rounds(max=ROUNDS, span=HOUR)), interpreted(lambda round, _: round + 1 >= ROUNDS)
    ),
    "until nothing": Program(hours(lambda: tr.Rounds(span="1 hour")), interpreted(lambda round, given: False), n=60),
    "until records": Program(
        hours(lambda: tr.Rounds(until=little, span="60 minutes")), interpreted(lambda _, given: little(given)), n=100
    ),
}
FAULTS: dict[str, Callable[[Scenario], Scenario]] = {
    "plainly": lambda one: one,
    "unaligned": overtaking,
    "resized": rescaled,
}


SOME = [("at most", "plainly"), ("until nothing", "unaligned"), ("until records", "resized")]
SEEDS = (701, 703)


def ran(way: str, how: str, seed: int) -> Verdict:
    with mock.patch.dict(PROGRAMS, {"hours": WAYS[way]}):
        return run_scenario(FAULTS[how](scenario(seed, "hours")))


@pytest.mark.parametrize(("way", "how"), SOME)
def test_each_span_is_as_a_plain_interpreter_has_it_whoever_is_lost(way: str, how: str, exhaustive: bool) -> None:
    covered: Counter[str] = Counter()
    for one in itertools.product(WAYS, FAULTS) if exhaustive else [(way, how)]:
        for seed in range(700, 760) if exhaustive else SEEDS:
            verdict = ran(*one, seed)
            assert verdict.wrong == [], (seed, one)
            covered.update(verdict.covered)
    assert covered["began a round"] and covered["committed"], covered


def test_spans_of_input_without_an_end_leave_one_after_the_other(story: Story) -> None:
    program = hours(lambda: tr.Rounds(max=ROUNDS, span=HOUR))
    world = story.simulation(lambda env: program(env, None, 20_000))  # type: ignore[arg-type]
    world.start()
    windows: Counter[Any] = Counter()
    while len(windows) < 3:
        world.turn()
        windows = Counter(one[1] for one in story.ledger.book.records() if one[0] == "window")
    assert sorted(windows)[:3] == [0, 1, 3] and set(windows.values()) == {1}
