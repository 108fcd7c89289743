"""Golden programs and random flows under faults, with barriers that overtake what waits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from search.__main__ import search
from search.campaigns.unaligned import closely, overtaking, overtaking_run, rescaled_run, resting_run
from search.drawn_faults import WEIGHTS
from search.programs.golden import LOOPS, PROGRAMS
from search.random_flows.description import WAYS
from search.random_flows.drawing import Run, draw
from search.random_flows.running import carry_out
from search.scenarios import Scenario, scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings

GOLDEN = {
    name: range(each * i, each * (i + 1))
    for names, each in ((sorted(set(PROGRAMS) - set(LOOPS)), 3), (sorted(LOOPS), 2))
    for i, name in enumerate(names)
} | {name: range(8 * i + 6, 8 * i + 8) for i, name in enumerate(sorted(LOOPS)[2::4])}
"""Seeds of each golden program. Each has others, since they choose policies and faults. Those of every fourth loop are some
with records in flight."""
MORE = [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 3, 5)]
FLOWS, CLOSE, LONG = range(10), range(20, 36), 24
"""Seeds of random flows; of those with checkpoints that follow each other closely; the one of these that takes as long as
all others together."""


def overtaken(names: list[str]) -> int:
    """How many checkpoints of these golden programs had records in flight. Nothing is wrong. They are started again with
    the first seed of each: that takes longer than the run itself."""
    found = 0
    for name in names:
        seeds = GOLDEN[name]

        def sparing(made: Scenario, first: int = seeds[0]) -> Scenario:
            return overtaking(made if made.seed == first else replace(made, started_again=0))

        covered, failed = search(seeds, name, tune=sparing)
        assert [one.wrong for one in failed] == [], name
        found += covered["a checkpoint with records overtaken"]
    return found


@pytest.mark.parametrize("part", range(3))
def test_golden_programs_are_exactly_once_with_unaligned_checkpoints(part: int) -> None:
    assert overtaken(sorted(set(PROGRAMS) - set(LOOPS))[part::3]) > 10, "there really was something in flight"


@pytest.mark.parametrize("seed", FLOWS)
def test_random_flows_come_to_what_the_interpreter_says_with_unaligned_checkpoints(seed: int) -> None:
    assert carry_out(overtaking_run(draw(seed))).wrong == []


@pytest.mark.parametrize(("part", "least"), [(0, 50), (1, 30), (2, 5), (3, 30)])
def test_golden_loops_are_exactly_once_with_unaligned_checkpoints(part: int, least: int) -> None:
    assert overtaken(sorted(LOOPS)[part::4]) >= least, "there really was something in flight"


@pytest.mark.parametrize("seed", [0, 2, 4, *MORE, 32009, 33020, 33028, 33030])
def test_a_loop_that_is_left_as_it_comes_to_its_end_comes_to_it_elsewhere(seed: int) -> None:
    """The loop is left alone when its waves, its rest or the end of its event time are in flight, at a cut that does not
    wait for them, and goes on at another parallelism."""
    assert carry_out(resting_run(draw(seed))).wrong == []


@pytest.mark.parametrize("seed", FLOWS)
def test_random_flows_left_with_records_in_flight_go_on_at_other_parallelisms(seed: int) -> None:
    assert carry_out(rescaled_run(draw(seed))).wrong == []


@pytest.mark.parametrize("first", CLOSE[::8])
def test_random_flows_with_one_checkpoint_upon_the_other_have_records_in_flight_and_lose_none(
    first: int, exhaustive: bool
) -> None:
    overtaken = 0
    for seed in range(first, first + 8):
        if seed == LONG and not exhaustive:
            continue
        outcome = carry_out(_close(seed))
        assert outcome.wrong == [], outcome.text
        overtaken += outcome.covered["a checkpoint with records overtaken"]
    assert overtaken >= 3


def _close(seed: int) -> Run:
    return closely((rescaled_run if seed % 2 else overtaking_run)(draw(seed)))


def test_a_life_without_the_endless_source_comes_to_its_end() -> None:
    """Seed 12568: what has no end comes in later lives only. The first one was reported as ended when it should not."""
    assert carry_out(rescaled_run(draw(12568))).wrong == []


@pytest.mark.parametrize("seed", [1086, 1169, 1336])
def test_flows_in_which_records_in_flight_were_lost(seed: int) -> None:
    """1336: they were on their way to the first of several functions that are one operator, which goes by the name of the
    last one, and were never read again. The others go on without an operator to which records were in flight: they stay with
    aligned checkpoints, because such a start is refused where nobody gives those records up."""
    assert carry_out(overtaking_run(draw(seed))).wrong == []


def test_every_choice_of_overtaking_is_really_made() -> None:
    drawn_ = [overtaking(scenario(seed)).checkpoints for seed in range(80)]
    settings = [one for one in drawn_ if one is not None]
    assert {one.overtakes_after for one in settings} == {0, 200, 1_000, 5_000}
    assert {one.most_inflight for one in settings} == {-1, 0, 300, 3_000}
    assert {one.ahead for one in settings} == {False, True}


def test_the_seeds_of_random_flows_take_every_policy_edge_fault_and_change_of_size() -> None:
    """T11: what is drawn at random is really drawn, in the runs that are made here."""
    chosen: dict[str, Counter[Any]] = {}
    runs = [make(draw(seed)) for make in (overtaking_run, rescaled_run) for seed in FLOWS]
    for run in runs + [_close(seed) for seed in CLOSE if seed != LONG]:
        for option, value in _options(run):
            chosen.setdefault(option, Counter())[value] += 1
    assert set(chosen["policy"]) == {"none", "aligned", "unaligned", "after a time-out", "with a cap"}
    assert set(chosen["time-out"]) == {0, 200, 1_000, 5_000}
    assert set(chosen["cap"]) == {-1, 0, 300, 3_000}
    assert set(chosen["at once"]) == {1, 2, 3}
    assert set(chosen["ahead"]) == {False, True}
    assert set(chosen["window"]) == {None, 1, 200, 400, 3_000}
    assert set(chosen["way"]) == set(WAYS)
    assert set(chosen["kind"]) >= {"count", "owner", "join", "more"}, "by key and aside, to all, two inputs, a union"
    assert set(chosen["fault"]) == {*WEIGHTS, "move", "jump-clock"}
    assert set(chosen["size"]) == {"down", "the same", "up", "again before that"}


def _options(run: Run) -> Iterable[tuple[str, Any]]:
    """Of one run what concerns records in flight."""
    settings = run.world.checkpoints
    yield "policy", _policy(settings)
    if settings is None or settings.overtakes_after < 0:
        return
    yield from (("time-out", settings.overtakes_after), ("cap", settings.most_inflight))
    yield from (("at once", settings.max_concurrent), ("window", run.world.window), ("ahead", settings.ahead))
    for step in run.flow.operators():
        yield from (("way", step.way), ("kind", step.kind))
    yield from (("fault", fault.kind) for fault in run.world.faults)
    sizes = [phase.parallelism for phase in run.phases]
    for before, after in itertools.pairwise(sizes):
        yield "size", "up" if before < after else "down" if before > after else "the same"
    if len(sizes) > 2:
        yield "size", "again before that"


def _policy(settings: CheckpointSettings | None) -> str:
    if settings is None:
        return "none"
    if settings.overtakes_after < 0:
        return "aligned"
    if settings.most_inflight >= 0:
        return "with a cap"
    return "after a time-out" if settings.overtakes_after else "unaligned"


def test_the_seeds_of_golden_programs_take_every_policy_and_fault() -> None:
    """T11: the same for those."""
    made = [overtaking(scenario(seed, name)) for name, seeds in GOLDEN.items() for seed in seeds]
    settings = [one.checkpoints for one in made if one.checkpoints is not None]
    assert {one.overtakes_after for one in settings} == {0, 200, 1_000, 5_000}
    assert {one.most_inflight for one in settings} == {-1, 0, 300, 3_000}
    assert {fault.kind for one in made for fault in one.faults} == {*WEIGHTS, "hang", "jump-clock"}
