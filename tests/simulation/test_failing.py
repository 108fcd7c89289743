"""Workers that live and fail, in jobs with standbys: user code raises, links break, processes freeze. One worker is replaced
first, and the output is as if nothing had happened; what always fails ends the job as it does without standbys."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from search.__main__ import search
from search.campaigns.replacements import failing, run_of
from search.programs.golden import PROGRAMS
from search.random_flows.drawing import draw
from search.random_flows.running import carry_out
from search.scenarios import MS, Scenario, Verdict, run_scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
RAISED, REPLACED = "raised an error in user code", "replaced a worker that had failed"
N = 600


def test_golden_programs_are_right_though_their_workers_fail() -> None:
    covered, failed = search(range(500, 512), tune=lambda made: replace(failing(made), started_again=0))
    assert [one.wrong for one in failed] == []
    assert covered[RAISED] > 5 and covered[REPLACED] > 2
    assert covered["cut a link"] > 0 and covered["froze a worker"] > 0 and covered["restarted"] > 0


def test_random_dataflows_are_right_though_their_workers_fail() -> None:
    covered: Counter[str] = Counter()
    for seed in range(6):
        outcome = carry_out(run_of(failing)(draw(seed)))
        assert outcome.wrong == [], outcome.text
        covered.update(outcome.covered)
    assert covered[RAISED] > 0 and covered[REPLACED] > 0


def struck(program: str, *faults: Fault, restarts: tuple[str, int] = ("fixed", 0), lasts: float = 0.03) -> Verdict:
    """A golden program with one standby and these faults. Nothing is wrong."""
    n, settings = PROGRAMS[program].n, CheckpointSettings(interval=int(lasts * 33 * MS), tolerated_failures=1_000)
    made = Scenario(1, program, n, 2, 16, "in small steps", n / lasts, settings, restarts, faults=faults)
    verdict = run_scenario(replace(made, replaces=True, spares=1), keep_trace=True)
    assert verdict.wrong == [], verdict.wrong
    return verdict


@pytest.mark.parametrize("program", sorted(name for name, program in PROGRAMS.items() if program.replaced))
def test_what_always_fails_ends_a_job_that_may_not_start_again_after_one_replacement(program: str) -> None:
    """What was published is right, as far as it goes, and the cause is the first failure."""
    verdict = struck(program, Fault(120, "raise", which=1, other=1, times=99), restarts=("never", 0))
    assert verdict.gave_up and verdict.covered[RAISED] == 2 and verdict.covered[REPLACED] == 1
    assert verdict.covered["restarted"] == 0


@pytest.mark.parametrize("turn", [60, 200, 400])
def test_what_fails_once_is_no_restart(turn: int) -> None:
    for other in range(3):
        covered = struck("joined", Fault(turn, "raise", which=1, other=other)).covered
        assert (covered[RAISED], covered[REPLACED], covered["restarted"]) == (1, 1, 0)


def test_what_fails_twice_is_one_restart() -> None:
    covered = struck("joined", Fault(200, "raise", which=1, times=2)).covered
    assert (covered[RAISED], covered[REPLACED], covered["restarted"]) == (2, 1, 1)


def test_a_link_that_breaks_is_no_restart_and_one_that_breaks_again_is_one() -> None:
    cut = Fault(200, "cut-link", which=1)
    for faults, restarts in (((cut,), 0), ((cut, replace(cut, turn=1, after="=> coordinator ReplayDone")), 1)):
        covered = struck("joined", *faults, lasts=0.6).covered
        assert (covered["cut a link"], covered[REPLACED], covered["restarted"]) == (len(faults), 1, restarts)


@pytest.mark.parametrize("after", ["Publish", "commit 3", "Trigger 4", "worker 0 => coordinator Ack"])
def test_a_worker_that_freezes_is_replaced_and_nothing_counts_that_it_does_when_it_wakes_up(after: str) -> None:
    """Worker 0 publishes: what it had yet to publish is published once, whoever does it."""
    for turn in range(4):
        covered = struck("counted", Fault(turn, "freeze", which=0, duration=300 * MS, after=after)).covered
        assert covered["froze a worker"] == 1 and covered["replaced a worker"] == 1 and covered["restarted"] == 0


# User code that raises.


class AsksAService:
    """Raises at one number, when it comes for the first time in any worker."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, n: int) -> int:
        if n == 333 and not self.mark.exists():
            self.mark.touch()
            raise TimeoutError("the service did not answer")
        return n


def never_to_parse(n: int) -> int:
    if n == 333:
        raise ValueError(f"{n} is no number")
    return n


def job_of(function: Any, restart: Any, standby: tr.StandbyConfig | None) -> tuple[tr.testing.SimulatedJob, Any]:
    checkpoint = tr.CheckpointConfig("in memory", interval=0.01)
    env = tr.Environment(parallelism=2, checkpoint=checkpoint, restart=restart, standby=standby)
    numbers = env.from_source(tr.sources.Sequence(0, N, rate=10_000))
    parsed = numbers.map(function, name="parse").key_by(lambda n: n % 7).map(lambda n: (n % 7, n))
    result = parsed.sink_to(tr.sinks.Collect())
    return tr.testing.simulate(env, seed=3), result


def test_an_exception_that_does_not_come_again_is_no_restart(tmp_path: Path) -> None:
    job, out = job_of(AsksAService(tmp_path / "raised"), tr.NoRestart(), tr.StandbyConfig())
    job.await_termination()
    assert sorted(out.result()) == sorted((n % 7, n) for n in range(N))
    assert job.simulation.coordinator.attempts.restarts == 0 and job.simulation.covered[REPLACED] == 1
    (cause,) = job.simulation.causes
    assert (cause.operator, cause.record, cause.error) == ("parse", "333", "TimeoutError")


@pytest.mark.parametrize("restart", [tr.NoRestart(), tr.FixedDelay(attempts=2, delay=0.01)], ids=["never", "twice"])
def test_an_exception_that_always_comes_ends_the_job_like_without_standbys_and_hardly_later(restart: Any) -> None:
    ends, errors = [], []
    for standby in (None, tr.StandbyConfig()):
        job, _ = job_of(never_to_parse, restart, standby)
        assert job.status is JobStatus.FAILED
        error = job.exception()
        assert isinstance(error, tr.JobFailed)
        assert (error.operator, error.record) == ("parse", "333") and "in never_to_parse" in str(error)
        ends.append(job.simulation.now)
        errors.append(str(error).partition("\nthe failed call is kept")[0])  # each job has capsules of its own
    assert errors[0] == errors[1]
    assert (
        job.simulation.covered[REPLACED] == 1 and job.simulation.covered["restarted"] == (restart != tr.NoRestart()) * 2
    )
    assert ends[1] - ends[0] < 200 * MS
