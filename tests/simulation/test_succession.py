"""The coordinator alone is lost, and another one goes on with its workers: nothing starts again, and the output is as if
nothing had happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from search.__main__ import search
from search.campaigns.replacements import coordinators_alone, run_of
from search.programs.golden import LOOPS, PROGRAMS
from search.random_flows.drawing import draw
from search.random_flows.running import carry_out
from search.scenarios import MS, Scenario, run_scenario, scenario
from search.stops import look, succeeding
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
WENT_ON, AGAIN = "went on behind a lost coordinator", "started again behind a lost coordinator"
LOST = "lost the coordinator alone"


def lost_at(made: Scenario, faults: tuple[Fault, ...], log: int = 2_000) -> Counter[str]:
    """What happens where the coordinator is lost at these moments. The output is right, and what restarts there are come
    from losses behind which no worker was left."""
    settings = CheckpointSettings(interval=1 * MS)
    verdict = run_scenario(replace(made, checkpoints=settings, started_again=0, log=log, faults=faults))
    assert verdict.wrong == []
    return verdict.covered


@pytest.mark.parametrize("program", ["counted", "nested", "shared_out", "windowed"])
def test_where_the_coordinator_alone_is_lost_nothing_starts_again(program: str) -> None:
    """At steps all over a run, again and again, in loops, rounds, event time and without; also before the one that went on
    has been heard by anybody."""
    covered: Counter[str] = Counter()
    for seed in range(2):
        losses = tuple(Fault(turn, "lose-coordinator", duration=turn % 7 * MS) for turn in range(70 + seed, 1500, 131))
        covered.update(lost_at(scenario(seed, program, faults=False), losses, log=[0, 2_000][seed]))
    assert covered[WENT_ON] > 5
    assert covered["restarted"] <= covered[LOST] - covered[WENT_ON] <= 2, "the last worker had left"


@pytest.mark.parametrize("moment", ["Ack", "commit", "commit 2 done", "Publish", "mark", "StartWave"])
def test_at_any_moment_another_coordinator_goes_on(moment: str) -> None:
    covered: Counter[str] = Counter()
    for seed, program in enumerate(("in_sequence", "nested")):
        losses = tuple(Fault(turn, "lose-coordinator", duration=seed * MS, after=moment) for turn in (0, seed, 40))
        covered.update(lost_at(scenario(seed, program, faults=False), losses))
    assert covered[LOST] > 0
    assert covered["restarted"] <= covered[LOST] - covered[WENT_ON] <= 2


def test_golden_programs_go_on_whatever_else_they_do() -> None:
    covered, failed = search(range(100, 108), tune=coordinators_alone)
    assert [one.wrong for one in failed] == []
    assert covered[WENT_ON] > 5 and covered["several checkpoints under way"] > 0


def test_random_dataflows_go_on() -> None:
    covered: Counter[str] = Counter()
    for seed in range(5):
        outcome = carry_out(run_of(coordinators_alone)(draw(seed)))
        assert outcome.wrong == [], outcome.text
        covered.update(outcome.covered)
    assert covered[WENT_ON] > 5


def test_stops_and_savepoints_go_on() -> None:
    covered, failed = look(range(12), tune=succeeding)
    assert [one.text for one in failed] == []
    assert covered[WENT_ON] > 3 and covered["stopped"] > 3


def test_hot_standbys_go_on_behind_another_coordinator() -> None:
    """The standby follows its worker on, and takes its place when that is lost, and follows anew where it had not begun."""
    covered: Counter[str] = Counter()
    for seed in range(5):
        made = replace(
            scenario(seed, "counted", faults=False), replaces=True, spares=3, depth=1, hot=True, parallelism=3
        )
        lost = Fault(10 + 12 * seed, "lose-coordinator", duration=seed % 3 * MS, after="commit 2 done")
        covered.update(lost_at(made, (lost, Fault(40, "kill", seed, after="commit 4 done"))))
    assert covered[WENT_ON] > 3 and covered["a hot standby went on"] > 1
    assert covered["restarted"] <= covered[LOST] - covered[WENT_ON] <= 1, "the job was ending, and the mirrors had left"


def test_where_a_worker_is_lost_as_well_all_start_again() -> None:
    covered: Counter[str] = Counter()
    for seed in range(3):
        n = PROGRAMS["counted"].n
        made = Scenario(seed, "counted", n, 3, 16, "in small steps", n / 0.03)
        at = 200 + 40 * seed
        faults = (Fault(at, "lose-coordinator", duration=2 * MS), Fault(at + seed % 3, "kill", which=seed))
        covered.update(lost_at(made, faults))
    assert covered[AGAIN] > 1 and covered["restarted"] >= covered[AGAIN]


def test_where_no_other_coordinator_comes_in_time_all_start_again() -> None:
    made = Scenario(3, "nested", PROGRAMS["nested"].n, 2, 16, "fast")
    assert "nested" in LOOPS
    covered = lost_at(made, (Fault(200, "lose-coordinator", duration=200 * MS),))
    assert covered["left: lost the coordinator: no other one has come"] == 2 and covered["restarted"] == 1
