"""Random flows: a description is data, the interpreter computes its result, and a failing one is cut down."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import tailrace as tr
from search.random_flows import script
from search.random_flows.building import Building
from search.random_flows.description import Do, Events, Flow, Fork, Loop, Step, change_steps, text_of
from search.random_flows.drawing import Phase, Run, draw, drawn_flow
from search.random_flows.hunting import Hunt
from search.random_flows.interpreter import Result, expected_result, gather, rests
from search.random_flows.remembering import remembering
from search.random_flows.running import carry_out, other_size, story
from search.random_flows.shrinking import shrunk, smaller
from search.scenarios import Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search

TABLE = Events(5, 5, first=50)


def flow_of(*steps: Step, n: int = 6, **events: Any) -> Flow:
    return Flow(Events(n, n, **events), TABLE, steps)


def outs(flow: Flow) -> Counter[Any]:
    return Counter({record[1:]: n for record, n in expected_result(flow).exactly.items() if record[0] == "out"})


# The interpreter.


def test_a_flow_without_steps_gives_its_records() -> None:
    assert outs(flow_of(n=3)) == Counter([(0, (0, 0, 0), 0), (1, (0, 0, 0), 1), (2, (0, 0, 0), 2)])


def test_records_are_alike_where_a_source_says_so() -> None:
    flow = Flow(Events(5, 2, first=10), TABLE, ())
    assert outs(flow) == Counter({(10, (0, 0, 0), 10): 3, (11, (0, 0, 0), 11): 2})


def test_each_record_goes_around_as_often_as_its_digit_says() -> None:
    """Digits of loop 1 with two laps are id * 7 + 3 modulo 3: 0, 1, 2. Each lap adds one to the value."""
    assert outs(flow_of(Loop(1, 0, (), laps=2), n=3)) == Counter(
        [(0, (0, 0, 0), 0), (1, (0, 0, 0), 2), (2, (0, 0, 0), 4)]
    )


def test_a_loop_in_a_loop_begins_anew_in_each_lap_of_the_outer_one() -> None:
    inner = Loop(2, 1, (Do("count", 3),))
    flow = flow_of(Loop(1, 0, (inner,)), n=2)
    # Outer digits (7 id + 3) % 2 are 1 and 0; inner digits (7 id + 6) % 2 are 0 and 1.
    visits = Counter(record[1:3] for record in expected_result(flow).exactly if record[0] == "visit")
    assert visits == Counter({(3, 0): 2, (3, 1): 2})
    assert outs(flow) == Counter([(0, (0, 0, 0), 1), (1, (0, 0, 0), 2)])


def test_rounds_drop_what_is_fed_back_in_the_last_one() -> None:
    flow = flow_of(Loop(1, 0, (Do("to the round's end", 2),), laps=2, rounds="at most", limit=2), n=3)
    assert {record[0] for record in outs(flow)} == {0, 1}
    rounds = {record for record in expected_result(flow).exactly if record[0] == "round"}
    assert rounds == {("round", 2, key, 0, 1) for key in range(3)} | {("round", 2, key, 1, 1) for key in (1, 2)}


def test_windows_are_exact_outside_of_loops_and_sums_inside() -> None:
    outside = expected_result(flow_of(Do("tumbling", 1), n=10))
    assert outside.exactly["window", 1, 0, 0, 2, 5] == 1  # 0 and 5
    assert outside.exactly["window", 1, 4, 8, 1, 9] == 1
    inside = expected_result(flow_of(Loop(2, 0, (Do("tumbling", 1),)), n=10))
    assert inside.sums[1, 0, 0][0] == 3 and not any(record[0] == "window" for record in inside.exactly)


def test_what_is_held_is_in_windows_of_its_new_time() -> None:
    windows = expected_result(flow_of(Do("held", 1), Do("tumbling", 2), n=6)).exactly
    assert windows["window", 2, 0, 8, 1, 5] == 1 and windows["window", 2, 0, 0, 1, 0] == 1


def test_times_that_are_assigned_anew_follow_from_the_id_alone() -> None:
    """5 times the id, modulo 16: 0, 5, 10, 15."""
    windows = expected_result(flow_of(Do("held", 1), Do("times", 2), Do("tumbling", 3), n=4)).exactly
    assert {record[2:] for record in windows if record[0] == "window"} == {
        (0, 0, 1, 0), (1, 0, 1, 1), (2, 8, 1, 2), (3, 8, 1, 3)
    }  # fmt: skip


def test_of_a_job_that_was_refused_only_what_is_too_much_counts() -> None:
    found, expected = gather([("out", 1, 1), ("out", 2, 1)]), gather([("out", 1, 1), ("out", 3, 1)])
    assert list(found.beyond(expected)) == ["1 records are too many, as ('out', 2)"]
    assert list(gather([("out", 1, 1)]).beyond(expected)) == []


def test_a_refusal_that_names_another_parallelism_is_followed() -> None:
    message = "loop 'x' cannot go on: start it at parallelism 3, at which the checkpoint was taken, or from another"
    assert other_size(message, 2) == 3
    assert other_size(message, 3) is None and other_size("it failed", 2) is None


def test_forks_joins_twins_and_more_records() -> None:
    flow = flow_of(Fork(1, (Do("map", 2),), (Do("twin", 3),)), n=2)
    assert outs(flow) == Counter({(0, (0, 0, 0), 2): 1, (1, (0, 0, 0), 1): 2})
    assert outs(flow_of(Do("join", 1), n=2)) == Counter([(0, (0, 0, 0), 351), (1, (0, 0, 0), 359)])
    more = Do("more", 4, events=Events(1, 1, first=100))
    # The digit of 100 for loop 2 is (700 + 6) % 2: it leaves at once. 0 does as well.
    assert outs(flow_of(Loop(2, 0, (more,)), n=1)) == Counter([(0, (0, 0, 0), 0), (100, (0, 0, 0), 100)])


def test_of_results_in_parts_the_sum_and_the_largest_count() -> None:
    parts = gather([("sum", 1, 0, 8, 2, 5), ("sum", 1, 0, 8, 1, 4), ("most", 2, 0, "n", 1), ("most", 2, 0, "n", 3)])
    assert parts.sums == {(1, 0, 8): [3, 9]} and parts.most == {(2, 0, "n"): 3}
    assert list(parts.differences(parts)) == []
    assert list(parts.differences(Result())) == [
        "the sum of (1, 0, 8) is None, not [3, 9]",
        "the largest of (2, 0, 'n') is None, not 3",
    ]


def test_event_time_is_as_far_as_the_slowest_split_that_has_not_ended() -> None:
    events = Events(6, 6, splits=2, pace=1_000, disorder=0)
    assert script.reached_at(events, 2) == script.START + 4_000  # 3 in the odd split, and 4 in the even one
    assert script.reached_at(events, 100) == script.START + 5_000  # both have ended
    assert script.reached_at(replace(events, endless=True), 100) == script.START + 7_000


# The dataflow.


@pytest.mark.parametrize("seed", range(12))
def test_straight_through_a_flow_gives_what_the_interpreter_says(seed: int) -> None:
    flow = drawn_flow(seed, endless=False)
    env = tr.Environment(parallelism=2)
    sink = Building(flow, env).everything().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert list(expected_result(flow).differences(gather(map(_hashable, sink.result())))) == []


@pytest.mark.parametrize("seed", range(6))
def test_so_does_a_flow_that_shows_in_which_order_it_goes_through_what_it_has(seed: int) -> None:
    flow = remembering(random.Random(seed), drawn_flow(seed, endless=False))
    env = tr.Environment(parallelism=2)
    sink = Building(flow, env).everything().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    found = gather(map(_hashable, sink.result()))
    assert list(expected_result(flow).differences(found)) == []
    assert any(record[0] in ("member", "tie") for record in found.exactly)


def _hashable(record: Any) -> Any:
    return tuple(map(_hashable, record)) if isinstance(record, list | tuple) else record


def test_a_seed_is_one_flow_and_one_history_in_every_process() -> None:
    script = "from search.random_flows.drawing import draw; print(hash(repr(draw(3))) and repr(draw(3)))"
    message = {
        subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": str(n), "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for n in (1, 2)
    }  # fmt: skip
    assert len(message) == 1
    first, second = carry_out(draw(3)), carry_out(draw(3), keep_trace=True)
    assert first.digest == second.digest and second.trace and not first.trace


def test_a_run_is_text_from_which_python_makes_it_again() -> None:
    names = {
        "Do": Do, "Events": Events, "Fork": Fork, "Loop": Loop, "Flow": Flow, "Run": Run, "Phase": Phase,
        "Scenario": Scenario, "Fault": Fault, "CheckpointSettings": CheckpointSettings,
    }  # fmt: skip
    for seed in range(20):
        run = draw(seed)
        assert eval(text_of(run), names) == run


def test_many_seeds_choose_every_value_of_every_option() -> None:
    hunt = Hunt()
    for seed in range(3_000):
        hunt.note(draw(seed))
    assert hunt.missing() == []


# Cutting down.


def test_a_failing_run_is_cut_down_to_what_makes_it_fail() -> None:
    """Say it takes a hoard in a loop and a kill."""

    def fails(run: Run) -> bool:
        loops = [step.kind for loop in run.flow.loops() for step in loop.body if isinstance(step, Do)]
        return "hoard" in loops and any(fault.kind == "kill" for fault in run.world.faults)

    seed = next(seed for seed in range(1_000) if fails(draw(seed)))
    short = shrunk(draw(seed), fails, tries=5_000)
    assert [step.kind for step in short.flow.operators()] == ["hoard"]
    assert len(list(short.flow.loops())) == 1 and short.flow.source.n == 1
    assert [fault.kind for fault in short.world.faults] == ["kill"] and len(short.phases) == 1
    assert "Do(kind='hoard'" in story(short)


def test_what_is_cut_down_is_still_a_flow() -> None:
    """Each smaller run has a result, and a dataflow that can be planned."""
    for run in list(smaller(draw(5)))[:40]:
        expected_result(run.flow)
        env = tr.Environment(parallelism=2)
        Building(run.flow, env).everything().sink_to(tr.sinks.Collect())
        env.explain()


def test_changing_nothing_changes_nothing() -> None:
    flow = drawn_flow(8)
    assert change_steps(flow.steps, lambda step: (step,)) == flow.steps


def test_a_loop_rests_once_more_than_what_is_fed_back_was_held() -> None:
    """Digits of loop 1 are 0, 1, 2: the last record passes the hoard three times, the last time without coming back."""
    assert rests(flow_of(Loop(1, 0, (Do("hoard", 2),), laps=2), n=3)) == {1: 3}
    assert rests(flow_of(Loop(1, 0, (Loop(3, 1, ()), Do("hoard", 2)), laps=0), n=2)) == {1: 1}
    assert rests(flow_of(Loop(1, 0, (Do("hoard", 2), Loop(3, 1, ())), laps=0), n=2)) == {1: 2}
