"""Whatever befalls a job, its output is as if nothing had: a search over seeds. `python -m search` goes
further. Every failure prints the command that repeats it."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search.__main__ import FIGURES, main, search, text_of
from search.drawn_faults import ANCHORS, LOOP_ANCHORS, WEIGHTS
from search.programs.golden import LOOPS, PROGRAMS
from search.scenarios import MS, run_scenario, scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.testing.faults import Fault

EACH, MOST = 2, 3
SEEDS = {name: range(i * MOST, i * MOST + EACH) for i, name in enumerate(sorted(PROGRAMS))}
"""By program: the seeds it is run with. `--exhaustive` takes `MOST` of them."""


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests, in however many processes it is."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "covered by the search"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("program", SEEDS)
def test_under_every_fault_the_output_is_as_if_nothing_had_happened(
    program: str, shared: Path, exhaustive: bool
) -> None:
    """And all programs together cover what the search is for: the last one to end sees that, in whatever process it runs."""
    first, each = SEEDS[program][0], MOST if exhaustive else EACH
    covered, failed = search(range(first, first + each), program)
    assert not failed, "\n".join(map(text_of, failed))
    made = shared / f"{program}.made"
    made.write_text(json.dumps(covered))
    made.rename(shared / f"{program}.json")
    ended = [json.loads(one.read_text()) for one in shared.glob("*.json")]
    if len(ended) == len(SEEDS):
        together: Counter[str] = sum(map(Counter, ended), Counter())
        assert together["runs"] == each * len(SEEDS)
        assert [what for what in FIGURES if not together[what]] == []


def test_the_seeds_choose_every_fault_and_both_sides_of_every_option() -> None:
    chosen: dict[str, Counter[Any]] = {}
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for seed, program in ((seed, program) for program, seeds in SEEDS.items() for seed in seeds):
        made = scenario(seed, program)
        for option, value in made.options().items():
            chosen.setdefault(option, Counter())[value] += 1
        kinds.update(fault.kind for fault in made.faults)
        outcomes.update(fault.outcome for fault in made.faults if fault.kind == "storage")
    assert set(kinds) == {*WEIGHTS, "hang", "jump-clock"}
    assert set(outcomes) == {"error", "unknown-done", "any"}
    assert set(chosen["feedback in memory"]) == {None, 0, 60, 600}
    assert set(chosen["priority"]) == {None, "adaptive", "feedback-first"}
    assert set(chosen["eager"]) == set(chosen["debug"]) == {False, True}
    assert [option for option, values in chosen.items() if len(values) < 2] == []
    assert set(chosen["max_concurrent"]) == set(chosen["parallelism"]) == {1, 2, 3}


@pytest.mark.parametrize("seed", [*range(7), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(7, 12))])
def test_workers_that_move_change_nothing(seed: int) -> None:
    """Beside all other faults, and often: it is no failure, so no restart strategy counts it."""
    made = scenario(seed)
    moves = [Fault(turn, "move", which=turn) for turn in range(20 + seed, 2000, 130)]
    verdict = run_scenario(replace(made, faults=(*made.faults, *moves)))
    assert verdict.wrong == []
    assert verdict.covered["moved a worker"] > 0 or made.checkpoints is None


@pytest.mark.parametrize("seed", [seed for seed in range(16) if scenario(seed).checkpoints is not None])
def test_a_coordinator_that_is_lost_alone_changes_nothing(seed: int) -> None:
    """Beside all other faults, and again and again, also in the middle of the recovery from the time before. Its workers
    live on for a while; the next process of the same run learns what to do from the files, and the old workers can commit
    nothing any more (decision 22). Seed 12: a successor swept away the mark that the newest checkpoint is published, and
    when it was lost itself, the next one published once more what a reader may have taken."""
    made = scenario(seed)
    losses = [Fault(turn, "lose-coordinator", duration=turn % 7 * MS) for turn in range(30 + seed, 2500, 190)]
    verdict = run_scenario(replace(made, faults=(*made.faults, *losses)))
    assert verdict.wrong == []
    assert verdict.covered["lost the coordinator alone"]


SELDOM = {"Abort", "Reset", "claim", "read state", "Release"}
"""Moments that do not come in these programs before something has failed."""


@pytest.mark.parametrize("moment", [one for one in (*ANCHORS, *LOOP_ANCHORS) if one not in SELDOM])
def test_at_any_moment_a_coordinator_may_be_lost_alone(moment: str) -> None:
    """While workers live on for longer than its successor takes, and while they do not. Programs with a loop and without.
    A successor took files of older checkpoints for deleted, and no checkpoint was complete any more: `nested` did not
    end."""
    lost = 0
    for seed, program in enumerate(("counted", "in_sequence", "nested", "hoarded")):
        settings = CheckpointSettings(interval=1 * MS)
        made = replace(scenario(seed, program, faults=False), checkpoints=settings, started_again=0)
        losses = tuple(
            Fault(turn, "lose-coordinator", duration=seed % 2 * 30 * MS, after=moment) for turn in (seed, 60)
        )
        verdict = run_scenario(replace(made, faults=losses))
        assert verdict.wrong == []
        lost += verdict.covered["lost the coordinator alone"]
    assert lost


@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - set(LOOPS)))
def test_undisturbed_each_program_gives_what_was_worked_out_by_hand(program: str) -> None:
    """Programs with loops do so in `tests/search/test_golden_loops.py`."""
    for seed in (1, 2):
        verdict = run_scenario(scenario(seed, program, faults=False))
        assert verdict.wrong == []


def test_a_seed_is_one_history() -> None:
    for seed in (3, 11, 29):
        first, second = run_scenario(scenario(seed)), run_scenario(scenario(seed), keep_trace=True)
        assert first.digest == second.digest and first.turns == second.turns
        assert second.trace and not first.trace


def test_a_failure_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tailrace.task.operators.sink.SinkTask.prepared_output", lambda self, checkpoint: [])
    assert main(["--seeds", "0:3", "--program", "counted"]) == 1
    message = capsys.readouterr()
    assert "python -m search --seeds 0:1 --program counted --trace" in message.err
    assert "records of 240 were lost" in message.err
    assert main(["--seeds", "0:1", "--program", "counted", "--trace"]) == 1
    assert "status FINISHED" in capsys.readouterr().out


def test_a_search_without_a_find_prints_what_it_covered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:2", "--program", "counted"]) == 0
    message = capsys.readouterr().out
    assert message.startswith("2 runs") and all(figure in message for figure in FIGURES)


def test_a_fault_may_wait_for_a_moment() -> None:
    made = scenario(1, "counted", faults=False)
    quiet = run_scenario(made)
    assert quiet.covered["killed"] == 0
    from dataclasses import replace

    struck = run_scenario(replace(made, faults=(Fault(0, "kill", after="SubtasksFinished"),)))
    assert struck.covered["killed"] == 1 and struck.wrong == []
