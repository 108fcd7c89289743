"""Lost workers are replaced while the others go on: whatever a job does, and whenever they are lost, its output is as if
nothing had happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from search.__main__ import search
from search.campaigns.replacements import (
    all_together,
    all_together_run,
    coordinators_lost,
    executors_lost,
    moving,
    past_what_waits,
    past_what_waits_run,
    replacing,
    replacing_run,
    several_at_once,
    standing_by,
)
from search.programs.golden import PROGRAMS
from search.random_flows.drawing import draw
from search.random_flows.running import carry_out
from search.scenarios import LIMITS, MS, Scenario, run_scenario, scenario
from search.stops import look, losing
from search.watchers.mirrors import Mirrored
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
REPLACED = "replaced a worker"
IN_FLIGHT = "lost a worker that had records in flight at the newest checkpoint"


def searched(seeds: range, tune: Callable[[Scenario], Scenario]) -> Counter[str]:
    """What these seeds have covered. Nothing is wrong. Of those that are started again from some of their moments
    only the first one is: that takes longer than the run itself."""

    def sparing(made: Scenario) -> Scenario:
        return tune(made if made.seed < seeds[0] + 4 else replace(made, started_again=0))

    covered, failed = search(seeds, tune=sparing)
    assert [one.wrong for one in failed] == []
    return covered


def test_golden_programs_are_right_though_workers_are_lost_again_and_again() -> None:
    covered = searched(range(24), replacing)
    assert covered[REPLACED] > 20
    assert covered["lost a worker that is not replaced"] > 0, "where all start again, that is covered as well"
    assert covered["removed what a lost worker had left"] > 0


def test_standbys_take_the_slots_of_lost_workers_and_are_lost_themselves() -> None:
    covered = searched(range(110, 130), standing_by)
    assert covered[REPLACED] > 15 and covered["a standby takes a slot"] > 20
    assert covered["lost a standby"] > 10 and covered["lost a worker that is not replaced"] > 0


def test_workers_whose_machines_are_about_to_go_are_replaced_one_after_the_other() -> None:
    """Behind checkpoints that standbys hold, or when the wait is over; and some machines go before."""
    covered = searched(range(300, 309), moving)
    assert covered["moved a worker alone"] > 4 and covered["its machine has gone"] > 0
    assert covered[REPLACED] > 4 and covered["moved a worker"] < covered["moved a worker alone"]


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("program", ["visited", "joined", "in_processing_time"])
def test_a_worker_may_move_at_any_moment_and_nothing_restarts(program: str, spares: int) -> None:
    """With standbys and without, alone and with all workers of its executor, though Spark has no mercy in the end."""
    settings = CheckpointSettings(interval=4 * MS, tolerated_failures=1_000)
    moved: Counter[str] = Counter()
    for turn in range(20, 620, 100):
        fault = Fault(turn, "move", which=turn // 100, duration=turn % 3 * 200 * MS)
        n, slots = PROGRAMS[program].n, turn % 2 + 1
        made = Scenario(turn, program, n, 2, 16, "in small steps", n / 0.03, settings, faults=(fault,), replaces=True)
        verdict = run_scenario(replace(made, spares=spares, executor_slots=slots))
        assert verdict.wrong == [] and verdict.covered["restarted"] == 0, (turn, verdict.wrong)
        moved.update(verdict.covered)
    assert moved["moved a worker alone"] > 2 and moved[REPLACED] >= moved["moved a worker alone"], moved


def test_several_workers_are_lost_at_once_and_replaced_together() -> None:
    covered = searched(range(201, 212), several_at_once)
    assert covered["several take places together"] > 20 and covered[REPLACED] > 20


def test_executors_are_lost_with_all_their_workers() -> None:
    """What anybody depends on is known outside the executor in which it was done (`watchers.knowledge`)."""
    covered = searched(range(400, 404), executors_lost)
    assert covered["lost an executor"] > 2 and covered[REPLACED] > 5
    assert covered["several take places together"] > 2 and covered["frames that depend on histories"] > 1_000


def test_coordinators_are_lost_while_workers_are_replaced() -> None:
    """Another process of the run goes on from the newest checkpoint, and with standbys of its own."""
    covered = searched(range(30, 36), coordinators_lost)
    assert covered["lost the coordinator alone"] > 5 and covered["lost the driver during recovery"] > 0
    assert covered[REPLACED] > 0 and covered["a standby takes a slot"] > 0


@pytest.mark.parametrize(("depth", "executors"), [(1, 1), (2, 2)])
def test_executors_of_two_workers_are_replaced_without_a_restart(depth: int, executors: int) -> None:
    covered: Counter[str] = Counter()
    for seed in range(4):
        lost = tuple(Fault(150 + 40 * seed, "lose-executor", which=0) for _ in range(executors))
        settings = CheckpointSettings(interval=1 * MS, tolerated_failures=1_000)
        n = PROGRAMS["counted"].n
        made = Scenario(seed, "counted", n, 6, 16, "in small steps", n / 0.03, settings, faults=lost, replaces=True)
        verdict = run_scenario(replace(made, depth=depth, executor_slots=2, spares=seed % 3))
        assert verdict.wrong == []
        covered.update(verdict.covered)
    assert (covered[REPLACED], covered["restarted"]) == (8 * executors, 0)


def test_stops_go_on_where_a_worker_is_lost_meanwhile() -> None:
    covered, failed = look(range(20), tune=losing)
    assert [one.text for one in failed] == []
    assert covered[REPLACED] > 5 and covered["stopped"] > 10


def test_what_a_standby_holds_of_a_slice_is_what_a_whole_reading_gives() -> None:
    looked = Mirrored()
    holding = (50, 57, 58, 60, 64, 69, 73, 80, 91, 94, 101, 112, 113, 125, 131)  # in each some standby holds something
    for seed in holding:
        verdict = run_scenario(standing_by(scenario(seed)), shadows=looked)
        assert verdict.wrong == [], verdict.command
    assert looked.compared > 15
    assert looked.ahead > 3, "they had read all of the newest checkpoint"


def test_random_dataflows_are_right_though_workers_are_lost_again_and_again(exhaustive: bool) -> None:
    covered: Counter[str] = Counter()
    for seed in range(16) if exhaustive else (3, 4, 5, 7, 8, 9, 11, 13, 14, 15):  # of which each replaces some
        outcome = carry_out(replacing_run(draw(seed)))
        assert outcome.wrong == [], outcome.text
        covered.update(outcome.covered)
    assert covered[REPLACED] > 8


def test_with_all_other_faults_beside_they_are_right() -> None:
    covered: Counter[str] = Counter()
    for seed in range(12):
        verdict = run_scenario(replace(scenario(seed), replaces=True))
        assert verdict.wrong == [], verdict.command
        covered.update(verdict.covered)
    assert covered[REPLACED] > 0


def behind(*faults: Fault, seed: int) -> Counter[str]:
    """A join of two workers in the narrowest channels, whose checkpoints overtake at once: what it has covered. Nothing
    is wrong."""
    settings = CheckpointSettings(interval=1 * MS, overtakes_after=0, tolerated_failures=1_000)
    made = Scenario(
        seed, "joined", PROGRAMS["joined"].n, 2, 16, "in small steps", None, settings, ("fixed", 0), 1, faults=faults
    )
    verdict = run_scenario(replace(made, replaces=True))
    assert verdict.wrong == [] and verdict.covered["a checkpoint with records overtaken"] > 0
    return verdict.covered


def test_a_worker_that_is_lost_behind_a_checkpoint_with_records_in_flight_is_replaced_alone() -> None:
    for seed in (0, 2):
        covered = behind(Fault(20, "kill", which=1, after="commit 2 done"), seed=seed)
        assert (covered[IN_FLIGHT], covered[REPLACED], covered["restarted"]) == (1, 1, 0)


def test_a_worker_is_replaced_that_has_not_read_what_came_back_when_all_had_started_again() -> None:
    """Two are lost at once, so all go back to a checkpoint with records in flight. Then one is lost before the next."""
    lost = [Fault(12, "kill", which=which, after="commit 2 done") for which in (0, 1)]
    covered = behind(*lost, Fault(100, "kill", which=1, after="restart 1"), seed=2)
    assert (covered[REPLACED], covered["restarted"]) == (1, 1)


def test_workers_are_replaced_though_the_newest_checkpoint_holds_records_in_flight() -> None:
    covered = searched(range(49, 62), past_what_waits)
    assert covered[IN_FLIGHT] > 5 and covered[REPLACED] > 8


def test_random_dataflows_are_right_though_workers_are_lost_with_records_in_flight() -> None:
    covered: Counter[str] = Counter()
    for seed in (7, 22, 23):
        outcome = carry_out(past_what_waits_run(draw(seed)))
        assert outcome.wrong == [], outcome.text
        covered.update(outcome.covered)
    assert covered[REPLACED] > 3 and covered[IN_FLIGHT] > 0


def test_a_head_whose_loop_has_ended_may_cut_behind_its_tail() -> None:
    """That counted as a bug, and the job failed: tasks behind the head that had not ended yet brought the barrier to
    the tail, before the head had got to its cut."""
    for seed in (30042, 30215):
        outcome = carry_out(past_what_waits_run(draw(seed)))
        assert outcome.wrong == [], outcome.text


def test_random_dataflows_are_right_though_several_are_lost_at_once_with_records_in_flight() -> None:
    covered: Counter[str] = Counter()
    for seed in (25, 26, 27, 30, 43):
        outcome = carry_out(all_together_run(draw(seed)))
        assert outcome.wrong == [], outcome.text
        covered.update(outcome.covered)
    assert covered["several take places together"] > 5 and covered[REPLACED] > 10 and covered[IN_FLIGHT] > 0


def test_where_histories_have_little_room_all_start_again_or_one_is_replaced() -> None:
    """What is there, and what is not any more, is known rightly of each."""
    covered: Counter[str] = Counter()
    for seed, room in ((6, 6_000), (7, 6_000), (8, 20_000), (9, 20_000), (10, 60_000), (11, 60_000)):
        verdict = run_scenario(replace(several_at_once(scenario(seed)), history=room))
        assert verdict.wrong == [], verdict.command
        covered.update(verdict.covered)
    assert covered["lost a worker that is not replaced"] > 0 and covered[REPLACED] > 0


def cut_off(turns: int) -> tuple[Counter[str], int]:
    """A worker is lost, and the link of the one that takes its place to the other one closes so many turns behind
    `Restored`; both live. What was covered, and how long it took (in microseconds). Nothing is wrong."""
    faults = (Fault(150, "kill", which=1), Fault(turns, "cut-link", which=1, after="worker 1 => coordinator Restored"))
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=1_000)
    n = PROGRAMS["counted"].n
    made = Scenario(1, "counted", n, 2, 16, "in small steps", n / 0.03, settings, faults=faults, replaces=True)
    verdict = run_scenario(made, keep_trace=True)
    assert verdict.wrong == [] and verdict.covered["cut a link"] == 1
    return verdict.covered, int(verdict.trace[-1].split()[0])


def test_one_that_does_again_and_loses_a_link_is_noticed_like_all_others_and_replaced_once_more() -> None:
    covered, took = cut_off(0)
    assert (covered[REPLACED], covered["restarted"]) == (1, 0)
    assert LIMITS.severed < took < LIMITS.severed + 100 * MS, "nobody waits until its slot was empty for too long"


def test_where_it_has_gone_on_meanwhile_and_others_depend_on_it_one_end_of_the_link_is_replaced() -> None:
    covered, _ = cut_off(8)
    assert (covered[REPLACED], covered["restarted"], covered["replaced a worker that had failed"]) == (2, 0, 1)


def test_workers_that_no_channel_connects_are_replaced_together() -> None:
    """All their records come from a third one: neither waits for the other to call."""
    lost = (Fault(60, "kill", which=1), Fault(60, "kill", which=1))
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=1_000)
    made = Scenario(1, "toggled", PROGRAMS["toggled"].n, 3, 16, "in small steps", None, settings, faults=lost)
    covered = run_scenario(replace(made, replaces=True, depth=2)).covered
    assert (covered["several take places together"], covered[REPLACED], covered["restarted"]) == (2, 2, 0)


def test_a_loop_ends_though_the_reader_of_what_a_replacement_has_made_is_lost_before_the_next_checkpoint() -> None:
    """The replacement of the first worker seals its records in other frames than the reader had, and the replacement of the
    reader gets all of them again: counts of frames did not fit any more, and the loop never came to its end."""
    lost = (Fault(450, "kill", 1, after="commit 2 done"), Fault(3, "kill", 0, after="ReplayDone"))
    settings = CheckpointSettings(interval=15 * MS, tolerated_failures=1_000)
    made = Scenario(2, "visited", 600, 2, 16, "fast", 10_000, settings, faults=lost, replaces=True)
    verdict = run_scenario(replace(made, spares=2, depth=1))
    assert verdict.wrong == []
    assert (verdict.covered[REPLACED], verdict.covered["restarted"]) == (2, 0)


def test_several_are_lost_at_once_with_records_in_flight_and_little_room() -> None:
    covered = searched(range(3_021, 3_035), all_together)
    assert covered["several take places together"] > 8 and covered[IN_FLIGHT] > 5
