"""Whatever befalls a job, its output is as if nothing had: a search over seeds. `python -m tailrace.testing.search` goes
further. Every failure prints the command that repeats it."""

from collections import Counter
from typing import Any

import pytest

from tailrace.testing.faults import Fault
from tailrace.testing.programs import PROGRAMS
from tailrace.testing.scenarios import WEIGHTS, run_scenario, scenario
from tailrace.testing.search import FIGURES, main, search, told

SEEDS = 200
CHUNK = 20
COVERED: Counter[str] = Counter()
TOGETHER = pytest.mark.xdist_group("the search")
"""In one process, also where tests run in several: what all seeds have covered is counted there."""


@TOGETHER
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_under_every_fault_the_output_is_as_if_nothing_had_happened(first: int) -> None:
    covered, failed = search(range(first, first + CHUNK))
    COVERED.update(covered)
    assert not failed, "\n".join(map(told, failed))


@TOGETHER
def test_a_search_covers_what_it_is_for() -> None:
    if COVERED["runs"] < SEEDS:
        pytest.skip("only a part of the seeds was run")
    assert [what for what in FIGURES if not COVERED[what]] == []


def test_the_seeds_choose_every_fault_every_program_and_both_sides_of_every_option() -> None:
    chosen: dict[str, Counter[Any]] = {}
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        made = scenario(seed)
        for option, value in made.options().items():
            chosen.setdefault(option, Counter())[value] += 1
        kinds.update(fault.kind for fault in made.faults)
        outcomes.update(fault.outcome for fault in made.faults if fault.kind == "storage")
    assert set(kinds) == set(WEIGHTS)
    assert set(outcomes) == {"error", "unknown-done", "any"}
    assert set(chosen["program"]) == set(PROGRAMS)
    assert set(chosen["feedback in memory"]) == {None, 0, 60, 600}
    assert set(chosen["priority"]) == {None, "adaptive", "feedback-first"}
    assert set(chosen["eager"]) == set(chosen["debug"]) == {False, True}
    assert [option for option, values in chosen.items() if len(values) < 2] == []
    assert set(chosen["max_concurrent"]) == set(chosen["parallelism"]) == {1, 2, 3}


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_undisturbed_each_program_gives_what_was_worked_out_by_hand(program: str) -> None:
    for seed in range(4):
        verdict = run_scenario(scenario(seed, program, faults=False))
        assert verdict.wrong == []


def test_a_seed_is_one_history() -> None:
    for seed in (3, 11, 29):
        first, second = run_scenario(scenario(seed)), run_scenario(scenario(seed), keep_trace=True)
        assert first.digest == second.digest and first.turns == second.turns
        assert second.trace and not first.trace


def test_a_failure_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tailrace.task.operators.sink.SinkTask.prepared", lambda self, checkpoint: [])
    assert main(["--seeds", "0:3", "--program", "counted"]) == 1
    said = capsys.readouterr()
    assert "python -m tailrace.testing.search --seeds 0:1 --program counted --trace" in said.err
    assert "records of 240 were lost" in said.err
    assert main(["--seeds", "0:1", "--program", "counted", "--trace"]) == 1
    assert "status FINISHED" in capsys.readouterr().out


def test_a_search_without_a_find_prints_what_it_covered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:2", "--program", "counted"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 runs") and all(figure in said for figure in FIGURES)


def test_a_fault_may_wait_for_a_moment() -> None:
    made = scenario(1, "counted", faults=False)
    quiet = run_scenario(made)
    assert quiet.covered["killed"] == 0
    from dataclasses import replace

    struck = run_scenario(replace(made, faults=(Fault(0, "kill", after="SubtasksFinished"),)))
    assert struck.covered["killed"] == 1 and struck.wrong == []
