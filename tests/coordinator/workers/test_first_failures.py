"""A worker that lives and fails is replaced first, once. Where something fails in the same way again, the restart strategy
decides, and the first failure is the cause."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.coordinator.actions import CloseLink, Launch, NotReplaced, Replacing, Restarting
from tailrace.coordinator.job.restarts import Fixed, Never
from tailrace.protocol.deployment import Failed, FailureKind, Progress
from tailrace.protocol.replay import Gained, KnownHistory, ReplayDone, Resume, Severed, WorkerLost
from tailrace.protocol.snapshot import Ack
from tests.coordinator.driving import SECOND, Job, S


def running(**options: Any) -> Job:
    return Job(slots=3, standbys=0, **options).run()


def raised(
    record: str = "1", operator: str = "parse", error: str = "ValueError", kind: Any = FailureKind.USER
) -> Failed:
    """The report of a worker whose user code has raised."""
    return Failed(kind, f"operator {operator!r}, record {record}: {error}", operator, 1, record, error=error)


def resumed(job: Job, slot: int) -> None:
    """Another worker joins in the place of this one, and has to do again what was done."""
    turn = job.machine.takeovers.turn
    for survivor in {0, 1, 2} - {slot}:
        job.says(survivor, KnownHistory(slot, Gained(0, []), [], turn))
    job.hello(slot)
    assert [at for at, _ in job.sent(Resume)] == [slot]


def replaced(job: Job, slot: int) -> None:
    """Another worker takes the place of this one, and goes on."""
    resumed(job, slot)
    reported = job.machine.takeovers._histories.get(slot)
    received = 0 if reported is None else reported.first - 1 + len(reported.messages)
    job.says(slot, ReplayDone(received))
    assert job.status is S.RUNNING and not job.machine.takeovers.active


def restarts(job: Job) -> list[str]:
    """The causes of restarts since the last call, and that of the end of the job."""
    return [one.cause.message for one in job.actions(Restarting)]


def checkpoint(job: Job) -> None:
    number = job.trigger_of_all()
    for slot in range(3):
        job.ack(slot, number)
    job.commit()
    job.actions()


def test_an_error_of_user_code_ends_the_worker_that_has_raised_it_and_another_one_takes_its_place() -> None:
    job = running()
    epoch = job.epochs[1]
    job.says(1, raised())
    actions = job.actions()
    assert [one for one in actions if isinstance(one, CloseLink)] == [CloseLink(1, epoch)]
    assert [one for one in actions if isinstance(one, Launch)] == [Launch(1, 2)]
    (replacing,) = [one for one in actions if isinstance(one, Replacing)]
    assert (replacing.slot, replacing.cause.operator, replacing.cause.record) == (1, "parse", "1")
    requested = [(one.slot, one.message) for one in actions if isinstance(getattr(one, "message", None), WorkerLost)]
    assert requested == [(0, WorkerLost(1, 0, 1)), (2, WorkerLost(1, 0, 1))]
    replaced(job, 1)
    assert job.machine.attempts.restarts == 0


def test_nothing_counts_that_a_worker_sends_behind_its_failure() -> None:
    job = running()
    number = job.trigger_of_all()
    epoch = job.epochs[1]
    for slot in (0, 2):
        job.ack(slot, number)
    job.says(1, raised())
    job.says(1, Ack(number, "of the failed one", 10, [], [], []), epoch)
    job.says(1, raised("2"), epoch)
    assert job.machine.checkpoints.pending == {} and job.status is S.RUNNING
    replaced(job, 1)


@pytest.mark.parametrize("where", ["while it replays", "behind its replay", "in another worker"])
def test_where_it_fails_in_the_same_way_again_the_strategy_decides_and_the_first_failure_is_the_cause(
    where: str,
) -> None:
    job = running()
    job.says(1, raised("the first"))
    (resumed if where == "while it replays" else replaced)(job, 1)
    job.says(2 if where == "in another worker" else 1, raised("the second"))
    actions = job.actions()
    (restarting,) = [one for one in actions if isinstance(one, Restarting)]
    assert (restarting.cause.record, restarting.cause.operator) == ("the first", "parse")
    (refused,) = [one for one in actions if isinstance(one, NotReplaced)]
    assert "it has failed before" in refused.reason or "in the same way since the newest checkpoint" in refused.reason
    assert job.status is S.RESTARTING and job.machine.attempts.restarts == 1


def test_a_job_that_may_not_start_again_fails_at_the_second_failure_with_the_first_one() -> None:
    job = running(restarts=Never())
    job.says(1, raised("the first"))
    replaced(job, 1)
    job.says(1, raised("the second"))
    assert job.status is S.FAILING
    error = job.machine.cause.as_error("job")  # type: ignore[union-attr]
    assert (error.operator, error.record) == ("parse", "the first")


def test_behind_a_restart_the_same_failure_is_not_replaced_once_more() -> None:
    """An error that always comes would cost each attempt a replacement in addition."""
    job = running(restarts=Fixed(1, 0))
    job.says(1, raised("the first"))
    replaced(job, 1)
    job.says(1, raised("the second"))
    assert restarts(job) == ["operator 'parse', record the first: ValueError"]
    job.restart_goes_on().deployed()
    job.says(1, raised("the third"))
    assert job.actions(Replacing) == [] and job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.record == "the first"


def test_behind_a_restart_it_takes_two_checkpoints_until_a_failure_is_forgotten() -> None:
    """All go back by up to an interval: the first one may be complete before the job comes to the same place."""
    job = running(restarts=Fixed(3, 0))
    for record in ("the first", "the second"):
        job.says(1, raised(record))
        if record == "the first":
            replaced(job, 1)
    job.actions()
    job.restart_goes_on().deployed()
    checkpoint(job)
    job.says(1, raised("the third"))
    assert restarts(job) == ["operator 'parse', record the first: ValueError"]
    job.restart_goes_on().deployed()
    for _ in range(2):
        checkpoint(job)
    job.says(1, raised("another one"))
    assert [one.cause.record for one in job.actions(Replacing)] == ["another one"]


def test_what_fails_in_another_way_is_replaced() -> None:
    job = running()
    for failure in (raised(), raised(error="KeyError"), raised(operator="join")):
        job.says(1, failure)
        assert len(job.actions(Replacing)) == 1
        replaced(job, 1)
    job.says(1, raised(operator="sink"))
    (refused,) = job.actions(NotReplaced)
    assert "worker 1 was replaced 3 times since the newest checkpoint" in refused.reason


def test_behind_a_checkpoint_that_was_triggered_later_a_failure_is_the_first_one() -> None:
    job = running()
    job.says(1, raised("the first"))
    replaced(job, 1)
    checkpoint(job)
    job.says(1, raised("the second"))
    assert [one.cause.record for one in job.actions(Replacing)] == ["the second"]
    replaced(job, 1)
    job.says(1, raised("the third"))
    assert restarts(job) == ["operator 'parse', record the second: ValueError"]


def test_a_checkpoint_that_was_on_its_way_at_the_failure_is_not_behind_it() -> None:
    job = running()
    number = job.trigger_of_all()
    for slot in range(3):
        job.ack(slot, number)
    job.says(1, raised("the first"))
    job.commit()
    replaced(job, 1)
    job.says(1, raised("the second"))
    assert restarts(job) == ["operator 'parse', record the first: ValueError"]


@pytest.mark.parametrize("kind", [FailureKind.PROGRAM, FailureKind.INTERNAL, FailureKind.IMPORT, FailureKind.STATE])
def test_what_no_restart_mends_no_other_worker_mends(kind: FailureKind) -> None:
    job = running()
    job.says(1, raised(kind=kind))
    assert job.actions(Replacing) == [] and job.status is S.FAILING


def test_a_sink_whose_place_is_out_of_reach_for_one_worker_gets_another_worker_first() -> None:
    job = running()
    job.says(1, raised(kind=FailureKind.SINK))
    assert len(job.actions(Replacing)) == 1
    replaced(job, 1)
    job.says(1, raised(kind=FailureKind.SINK))
    assert len(restarts(job)) == 1
    assert job.machine.attempts.restarts == 1 and job.status is S.RESTARTING


def test_where_nobody_takes_the_place_of_the_one_that_has_failed_its_failure_is_in_the_cause() -> None:
    job = running(restarts=Never())
    job.says(1, raised("the first"))
    job.wait(61)
    job.machine.tick(job.now)
    assert job.status is S.FAILING and job.machine.cause is not None
    assert job.machine.cause.record == "the first"
    assert job.machine.cause.message == (
        "operator 'parse', record the first: ValueError\n"
        "The worker that was to take its place: nobody has taken the place of worker 1"
    )


def test_where_it_does_something_else_again_both_failures_are_in_the_cause() -> None:
    job = running()
    job.says(1, raised("the first"))
    resumed(job, 1)
    job.says(1, raised("none", error="", operator="join"))
    (cause,) = [one.cause for one in job.actions(Restarting)]
    assert cause.operator == "parse" and "record the first" in cause.message and "'join'" in cause.message


def test_without_standbys_an_error_is_a_restart() -> None:
    job = Job(slots=3).run()
    job.says(1, raised())
    actions = job.actions()
    assert job.status is S.RESTARTING and not [one for one in actions if isinstance(one, NotReplaced | Replacing)]


# Links.


def severed(job: Job, *links: tuple[int, int]) -> None:
    """Links close between workers that live, and each end reports it; some time goes by."""
    for slot, peer in links:
        for one, other in ((slot, peer), (peer, slot)):
            job.says(one, Severed(other, "reset", job.epochs[other]))
    job.machine.tick(job.now)
    assert job.status is S.RUNNING, "one of them is lost, perhaps, and that is about to be heard"
    job.wait(2)
    job.machine.tick(job.now)


def test_of_two_workers_whose_link_breaks_the_one_is_replaced_that_has_less_to_be_done_again() -> None:
    job = running()
    for slot, entries in ((0, 90), (1, 10), (2, 40)):
        job.says(slot, Progress([], 1_000, log_entries=entries))
    severed(job, (0, 2))
    (replacing,) = job.actions(Replacing)
    assert (replacing.slot, replacing.cause.message) == (
        2,
        "worker 0 has lost the connection to worker 2, which lives",
    )
    replaced(job, 2)
    assert job.machine.attempts.restarts == 0


def test_the_worker_is_replaced_to_which_several_links_break() -> None:
    job = running()
    job.says(1, Progress([], 1_000, log_entries=90))
    severed(job, (0, 1), (1, 2))
    assert [one.slot for one in job.actions(Replacing)] == [1]


def test_an_end_that_cannot_be_replaced_is_not_chosen() -> None:
    job = running()
    for slot in range(3):
        job.says(slot, Gained(0, [b"a"]))
    job.says(0, Gained(9, [b"b"], cut_short=True))
    severed(job, (0, 2))
    assert [one.slot for one in job.actions(Replacing)] == [2]


def test_a_link_that_breaks_once_more_before_the_next_checkpoint_is_a_restart() -> None:
    job = running()
    severed(job, (0, 2))
    job.actions()
    replaced(job, 0)
    severed(job, (1, 2))
    assert restarts(job) == ["worker 0 has lost the connection to worker 2, which lives"], "the first cause"


def test_links_without_an_end_in_common_are_a_restart() -> None:
    job = Job(slots=4, standbys=0).run()
    severed(job, (0, 1), (2, 3))
    assert job.actions(Replacing) == [] and job.status is S.RESTARTING


# Workers that freeze.


def test_a_worker_that_gives_no_sign_of_life_is_replaced_and_is_a_stranger_when_it_wakes_up() -> None:
    job = running()
    epoch = job.epochs[1]
    for _ in range(11):
        job.now += SECOND
        for slot in (0, 2):
            job.machine.heartbeat(slot, 10 + slot, job.now)
        job.machine.tick(job.now)
    actions = job.actions()
    assert [one for one in actions if isinstance(one, CloseLink)] == [CloseLink(1, epoch)]
    assert [one.slot for one in actions if isinstance(one, Replacing)] == [1]
    job.says(1, Ack(1, "written in its sleep", 10, [], [], []), epoch)
    job.machine.heartbeat(1, 11, job.now)
    assert job.hello(1, launch=1) is None, "its Spark job is not the slot's any more"
    resumed(job, 1)
    job.machine.link_lost(1, epoch, "closed", job.now)
    job.says(1, ReplayDone(0))
    assert job.status is S.RUNNING and job.machine.attempts.restarts == 0
