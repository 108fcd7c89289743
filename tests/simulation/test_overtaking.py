"""Golden programs and random flows under faults, with barriers that overtake what waits."""

from __future__ import annotations

import pytest

from tailrace.testing.overtaking import overtaking, overtaking_run, rescaled_run, resting_run
from tailrace.testing.programs import LOOPS, PROGRAMS
from tailrace.testing.random_flows.drawing import drawn
from tailrace.testing.random_flows.running import carry_out
from tailrace.testing.scenarios import scenario
from tailrace.testing.search import search


def test_golden_programs_are_exactly_once_with_unaligned_checkpoints() -> None:
    overtaken = 0
    for name in sorted(set(PROGRAMS) - set(LOOPS)):
        covered, failed = search(range(6), name, tune=overtaking)
        assert [one.wrong for one in failed] == [], name
        overtaken += covered["a checkpoint with records overtaken"]
    assert overtaken > 20, "there really was something in flight"


@pytest.mark.parametrize("seed", range(20))
def test_random_flows_come_to_what_the_interpreter_says_with_unaligned_checkpoints(seed: int) -> None:
    assert carry_out(overtaking_run(drawn(seed))).wrong == []


@pytest.mark.parametrize(("seed", "least"), [(0, 0), (1, 5), (2, 50), (3, 50)])
def test_golden_loops_are_exactly_once_with_unaligned_checkpoints(seed: int, least: int) -> None:
    overtaken = 0
    for name in sorted(LOOPS):
        covered, failed = search(range(seed, seed + 1), name, tune=overtaking)
        assert [one.wrong for one in failed] == [], name
        overtaken += covered["a checkpoint with records overtaken"]
    assert overtaken >= least, "there really was something in flight"


@pytest.mark.parametrize("seed", [*range(16), 32009, 33020, 33028, 33030])
def test_a_loop_that_is_left_as_it_comes_to_its_end_comes_to_it_elsewhere(seed: int) -> None:
    """It is left alone when its waves, its rest or the end of its event time are in flight, at a cut that does not wait for
    them, and goes on at another parallelism."""
    assert carry_out(resting_run(drawn(seed))).wrong == []


@pytest.mark.parametrize("seed", range(20))
def test_random_flows_left_with_records_in_flight_go_on_at_other_parallelisms(seed: int) -> None:
    assert carry_out(rescaled_run(drawn(seed))).wrong == []


@pytest.mark.parametrize("seed", [1086, 1169, 1336])
def test_flows_in_which_records_in_flight_were_lost(seed: int) -> None:
    """1336: they were on their way to the first of several functions that are one operator, which goes by the name of the
    last one, and were never read again. The others go on without an operator to which records were in flight: they stay with
    aligned checkpoints, because such a start is refused where nobody gives those records up."""
    assert carry_out(overtaking_run(drawn(seed))).wrong == []


def test_every_choice_of_overtaking_is_really_made() -> None:
    drawn_ = [overtaking(scenario(seed)).checkpoints for seed in range(80)]
    settings = [one for one in drawn_ if one is not None]
    assert {one.overtakes_after for one in settings} == {0, 200, 1_000, 5_000}
    assert {one.most_inflight for one in settings} == {-1, 0, 300, 3_000}
