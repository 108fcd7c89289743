"""The stop of a job, as its coordinator sees it: every stage, and whatever may come between."""

from __future__ import annotations

from typing import Any

import pytest
from driving import PAUSE, SECOND, Job, S

from tailrace.coordinator.actions import CheckpointEnded, Claim, Commit, CopySavepoint, SavepointEnded, StopEnded
from tailrace.coordinator.durability.stopping import AFTER, Aim, Happening, Stage, Stopping
from tailrace.coordinator.job.restarts import Fixed, Never
from tailrace.elements.cuts import CutKind
from tailrace.errors import InternalError
from tailrace.protocol.deployment import (
    Deployed,
    EndSources,
    Failed,
    FailureKind,
    Leave,
    Published,
    Start,
    SubtasksFinished,
)
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.snapshot import Abort, Declined, Trigger
from tailrace.state.manifest import decode_manifest

SUSPEND, DRAIN = Aim(), Aim(drain=True)


def stopped(job: Job, aim: Aim = SUSPEND, who: str = "somebody") -> list[Any]:
    """Requests a stop of the job. Returns the actions that follow at once."""
    job.machine.stop(who, aim, job.now)
    return job.actions()


def cut_of(actions: list[Any]) -> Any:
    """The cut that is requested of workers among these actions."""
    [cut, _] = [one.message.cut for one in actions if isinstance(getattr(one, "message", None), Trigger)]
    return cut


def acked(job: Job, number: int, *prepared: bytes) -> Commit:
    job.ack(0, number, *prepared)
    job.ack(1, number)
    [commit] = job.actions(Commit)
    return commit  # type: ignore[no-any-return]


def told(job: Job) -> list[StopEnded]:
    return job.actions(StopEnded)


def gone(job: Job) -> None:
    """All workers have left."""
    for slot in (0, 1):
        job.ended(slot)


# The table.


def test_every_stage_is_in_the_table_and_a_sealed_stop_stays_sealed() -> None:
    assert {stage for stage, _ in AFTER} | set(AFTER.values()) == set(Stage)
    assert not [pair for pair in AFTER if pair[0] is Stage.SEALED]
    assert {happening for _, happening in AFTER} == set(Happening)


def test_what_is_not_in_the_table_is_an_error_of_ours() -> None:
    with pytest.raises(InternalError, match="a stop that is none cannot be drains"):
        Stopping().begins(suspend=False)


# The good course.


def test_a_stop_that_suspends_from_the_word_to_the_end() -> None:
    job = Job(overtakes_after=0).run()
    cut = cut_of(stopped(job))
    assert (cut.kind, cut.hold, cut.may_overtake) == (CutKind.CHECKPOINT, True, False)
    assert job.status is S.STOPPING
    commit = acked(job, cut.number, b"output")
    job.commit(commit)
    assert job.disk[-1].stopped and not job.disk[-1].final
    assert job.status is S.FINISHING and job.said(Leave) == [], "its output is not visible yet"
    job.says(0, Published(cut.number))
    assert len(job.said(Leave)) == 2
    gone(job)
    assert job.status is S.FINISHED
    [ended] = told(job)
    assert (ended.who, ended.stats.id, ended.savepoint, ended.reason) == ("somebody", cut.number, None, "")
    assert job.machine.give_up(crashed=False) is None, "its checkpoint stays, though the job has finished"


def test_a_stop_that_drains_ends_the_sources_and_takes_the_last_checkpoint() -> None:
    job = Job(interval=SECOND).run()
    actions = stopped(job, DRAIN)
    assert [one.message for one in actions if hasattr(one, "message")] == [EndSources(), EndSources()]
    job.wait(5)
    assert job.said(Trigger) == [], "a checkpoint would have the sources ended, and the job may yet go on"
    job.all_say(SubtasksFinished([]))
    cut = cut_of(job.actions())
    assert (cut.kind, cut.hold) == (CutKind.FINAL, False)
    job.commit(acked(job, cut.number))
    gone(job)
    [ended] = told(job)
    assert job.status is S.FINISHED and (ended.stats.id, ended.stats.final) == (cut.number, True)
    assert job.disk[-1].stopped and job.machine.give_up(crashed=False) is None


@pytest.mark.parametrize("aim", [SUSPEND, DRAIN])
def test_without_checkpoints_sources_end_and_what_is_under_way_is_processed(aim: Aim) -> None:
    job = Job(checkpoints=False).run()
    assert len([one for one in stopped(job, aim) if isinstance(getattr(one, "message", None), EndSources)]) == 2
    job.all_say(SubtasksFinished([]))
    job.says(0, Published(0))
    gone(job)
    [ended] = told(job)
    assert job.status is S.FINISHED and (ended.stats, ended.reason) == (None, "")


def test_where_none_is_retained_none_is_left() -> None:
    job = Job(retain="never").run()
    assert [one for one in stopped(job) if isinstance(getattr(one, "message", None), EndSources)]
    job.all_say(SubtasksFinished([]))
    job.commit(acked(job, cut_of(job.actions()).number))
    gone(job)
    [ended] = told(job)
    assert ended.stats is None and job.machine.give_up(crashed=False) != []


@pytest.mark.parametrize("retain", ["never", "on-cancellation"])
@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_with_a_savepoint(drain: bool, retain: str) -> None:
    job = Job(retain=retain).run()
    actions = stopped(job, Aim(drain, "here"))
    if drain:
        job.all_say(SubtasksFinished([]))
        actions = job.actions()
    cut = cut_of(actions)
    assert cut.kind is (CutKind.FINAL_SAVEPOINT if drain else CutKind.SAVEPOINT) and cut.hold is not drain
    job.commit(acked(job, cut.number, b"output"))
    job.says(0, Published(cut.number))
    [copy] = job.actions(CopySavepoint)
    assert copy.target == "here" and job.status is S.FINISHING and not copy.savepoint.stopped
    assert job.machine.copy_done(cut.number, "/there", 20, job.now)
    assert job.actions(SavepointEnded) == [], "nobody waits for it but the stop"
    gone(job)
    [ended] = told(job)
    assert (ended.savepoint.path, ended.reason) == ("/there", "")
    assert (job.machine.give_up(crashed=False) is None) == (retain != "never")


def test_where_the_savepoint_fails_the_checkpoint_is_reported_and_stays_whatever_is_retained() -> None:
    job = Job(retain="never").run()
    cut = cut_of(stopped(job, Aim(savepoint="here")))
    job.commit(acked(job, cut.number))
    job.machine.not_copied(cut.number, "the disk is full", job.now)
    gone(job)
    [ended] = told(job)
    assert job.status is S.FINISHED and ended.stats is None
    assert ended.reason == (
        "the job has stopped, but there is no savepoint: the disk is full; start it again from checkpoint 1 "
        "(url/1/1.manifest)"
    )
    assert job.machine.give_up(crashed=False) is None


# What is under way when it comes.


def test_checkpoints_under_way_are_given_up_and_who_waits_for_one_to_begin_gets_that_of_the_stop() -> None:
    job = Job(max_concurrent=1).run()
    number = job.trigger()
    job.machine.checkpoint("later", job.now)
    job.machine.savepoint("too late", "", job.now)
    actions = stopped(job)
    ended = [one for one in actions if isinstance(one, CheckpointEnded)]
    assert [(one.waiting, one.reason) for one in ended] == [(("somebody",), "the job is being stopped")]
    assert [(one.who, one.reason) for one in actions if isinstance(one, SavepointEnded)] == [
        ("too late", "the job is being stopped")
    ]
    assert [one.message for one in actions if isinstance(getattr(one, "message", None), Abort)] == [Abort(number)] * 2
    cut = cut_of(actions)
    job.ack(0, cut.number)
    job.ack(1, cut.number)
    job.commit()
    assert [one.waiting for one in job.actions(CheckpointEnded)] == [("later",)]


def test_a_checkpoint_whose_manifest_is_on_its_way_becomes_complete_first() -> None:
    job = Job().run()
    commit = job.acked()
    cut = cut_of(stopped(job))
    job.ack(0, cut.number)
    job.ack(1, cut.number)
    assert job.actions(Commit) == []
    job.commit(commit)
    [second] = job.actions(Commit)
    job.commit(second)
    assert job.status is S.FINISHING and [one.stopped for one in job.disk] == [False, True]


def test_no_checkpoint_is_begun_while_it_stops_and_who_wants_one_is_told() -> None:
    job = Job(interval=SECOND, max_concurrent=3).run()
    stopped(job)
    job.wait(5)
    assert job.said(Trigger) == []
    job.machine.checkpoint("somebody", job.now)
    job.machine.savepoint("somebody", "", job.now)
    assert [one.reason for one in job.actions((CheckpointEnded, SavepointEnded))] == ["the job is STOPPING"] * 2


def test_a_job_that_has_come_to_its_end_by_itself_needs_no_other_checkpoint() -> None:
    job = Job().run()
    job.all_say(SubtasksFinished([]))
    cut = cut_of(job.actions())
    assert not [one for one in stopped(job) if isinstance(getattr(one, "message", None), Trigger)]
    job.commit(acked(job, cut.number))
    gone(job)
    assert [one.stats.id for one in told(job)] == [cut.number]


def test_a_job_that_comes_to_its_end_by_itself_while_it_suspends_has_the_checkpoint_of_the_stop() -> None:
    job = Job().run()
    cut = cut_of(stopped(job))
    job.all_say(SubtasksFinished([]))
    assert job.said(Trigger) == []
    job.commit(acked(job, cut.number))
    gone(job)
    assert [one.stats.id for one in told(job)] == [cut.number]


def test_a_stop_while_it_finishes_by_itself_keeps_its_last_checkpoint() -> None:
    job = Job().run()
    job.all_say(SubtasksFinished([]))
    cut = cut_of(job.actions())
    job.commit(acked(job, cut.number, b"output"))
    assert job.status is S.FINISHING
    stopped(job)
    [no] = stopped(job, Aim(savepoint=""), "another")
    assert "is being stopped already" in no.reason
    job.says(0, Published(cut.number))
    gone(job)
    assert [one.stats.id for one in told(job)] == [cut.number]
    assert job.machine.give_up(crashed=False) is None


@pytest.mark.parametrize("aim", [SUSPEND, DRAIN])
def test_before_the_job_runs_it_waits_until_it_does(aim: Aim) -> None:
    job = Job().start()
    stopped(job, aim)
    for slot in (0, 1):
        job.hello(slot)
    job.all_say(Deployed())
    assert job.status is S.STOPPING


# Other callers.


def test_who_asks_for_the_same_gets_the_same_and_for_something_else_a_sentence() -> None:
    job = Job().run()
    cut = cut_of(stopped(job))
    assert stopped(job, SUSPEND, "the same") == []
    [no] = stopped(job, DRAIN, "another")
    assert (no.who, no.reason) == (
        "another",
        "the job is being stopped already, by a stop, and not by a stop that drains; wait for it, or cancel the job",
    )
    job.commit(acked(job, cut.number))
    gone(job)
    assert [(one.who, one.stats.id) for one in told(job)] == [("somebody", 1), ("the same", 1)]
    [late] = stopped(job, SUSPEND, "late")
    assert (late.who, late.stats.id) == ("late", 1)


def test_a_savepoint_is_refused_where_there_can_be_none() -> None:
    [no] = stopped(Job(checkpoints=False).run(), Aim(savepoint=""))
    assert "the job takes no checkpoints" in no.reason


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_job_that_has_ended_otherwise_cannot_be_stopped(how: str) -> None:
    job = Job(restarts=Never()).run()
    if how == "cancelled":
        job.machine.cancel(job.now)
    else:
        job.says(0, Failed(FailureKind.USER, "it broke"))
    job.actions()
    [no] = stopped(job)
    assert no.reason == f"the job is {'CANCELLING' if how == 'cancelled' else 'FAILING'}"


# What may go wrong before it is sealed.


@pytest.mark.parametrize("aim", [SUSPEND, Aim(savepoint="")])
def test_a_checkpoint_that_fails_is_reported_and_the_job_goes_on_without_a_restart(aim: Aim) -> None:
    job = Job(interval=60 * SECOND, tolerated_failures=0).run()
    cut = cut_of(stopped(job, aim))
    job.says(1, Declined(cut.number, "the disk is full"))
    actions = job.actions()
    [ended] = [one for one in actions if isinstance(one, StopEnded)]
    assert ended.reason == "worker 1: the disk is full; the job goes on"
    assert job.status is S.RUNNING
    assert len([one for one in actions if isinstance(getattr(one, "message", None), Abort)]) == 2, "tasks go on"
    again = cut_of(stopped(job))
    job.commit(acked(job, again.number))
    gone(job)
    assert [one.stats.id for one in told(job)] == [again.number], "another stop is as good as ever"


def test_one_that_takes_too_long_is_reported_and_the_job_goes_on() -> None:
    job = Job(timeout=5 * SECOND).run()
    stopped(job)
    job.wait(6)
    [ended] = told(job)
    assert "it took longer than its timeout of 5 s; the job goes on" in ended.reason and job.status is S.RUNNING


def test_a_job_that_had_finished_behind_the_stop_takes_its_last_checkpoint_when_the_stop_fails() -> None:
    job = Job().run()
    cut = cut_of(stopped(job))
    job.all_say(SubtasksFinished([]))
    job.says(1, Declined(cut.number, "full"))
    assert cut_of(job.actions()).kind is CutKind.FINAL


def stopping_again(job: Job) -> list[Any]:
    """All workers restart and run. Returns the actions that follow behind their start."""
    job.restart()
    job.actions()
    job.all_say(Deployed())
    if job.status is S.RESTARTING:
        job.says(0, Published(0))
    actions = job.actions()
    starts = [at for at, one in enumerate(actions) if isinstance(getattr(one, "message", None), Start)]
    return actions[starts[-1] :]


@pytest.mark.parametrize("aim", [SUSPEND, DRAIN, Aim(savepoint="here"), Aim(True, "here")], ids=str)
def test_after_a_restart_a_stop_begins_once_more_and_is_answered_at_its_end(aim: Aim) -> None:
    job = Job().run()
    job.complete()
    stopped(job, aim)
    actions = stopping_again(job)
    assert job.status is S.STOPPING and not [one for one in actions if isinstance(one, StopEnded)]
    if aim.drain:
        job.all_say(SubtasksFinished([]))
        actions = job.actions()
    cut = cut_of(actions)
    assert (cut.hold, cut.kind.final, cut.kind.whole) == (not aim.drain, aim.drain, aim.savepoint is not None)
    job.commit(acked(job, cut.number))
    if aim.savepoint is not None:
        [copy] = job.actions(CopySavepoint)
        assert (copy.checkpoint, copy.target) == (cut.number, "here"), "of the second attempt alone"
        job.machine.copy_done(cut.number, "/there", 2, job.now)
    gone(job)
    [ended] = told(job)
    assert (ended.who, ended.reason, ended.stats.id) == ("somebody", "", cut.number)
    assert (ended.savepoint and ended.savepoint.path) == (None if aim.savepoint is None else "/there")


def test_a_stop_that_was_requested_during_a_restart_waits_through_the_next_one() -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    stopped(job)
    job.claimed(2)
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    job.all_say(Failed(FailureKind.USER, "it broke"))
    assert told(job) == [] and job.machine.attempts.restarts == 2
    job.claimed(3)
    job.all_say(WasReset(2))
    job.wait(PAUSE)
    job.all_say(Deployed())
    job.says(0, Published(0))
    assert job.status is S.STOPPING


@pytest.mark.parametrize("aim", [SUSPEND, DRAIN, Aim(savepoint="here"), Aim(True, "here")], ids=str)
def test_a_stop_has_three_attempts_and_the_caller_gets_the_reason_why_the_last_one_failed(aim: Aim) -> None:
    job = Job(restarts=Fixed(9, PAUSE * SECOND)).run()
    job.complete()
    stopped(job, aim)
    for _ in range(2):
        stopping_again(job)
        assert told(job) == [] and job.status is S.STOPPING
    job.restart()
    [ended] = told(job)
    assert ended.reason == (
        "a failure came before its checkpoint was complete in each of 3 attempts, in the last one: it broke; the job goes on"
    )
    job.deployed()
    assert job.status is S.RUNNING and not job.machine.stopping.active
    cut = cut_of(stopped(job, who="another"))
    job.commit(acked(job, cut.number))
    gone(job)
    [ended] = told(job)
    assert (ended.who, ended.reason) == ("another", ""), "nothing is left of the stop before, nor of its savepoint"


@pytest.mark.parametrize("settings", [{"checkpoints": False}, {}], ids=["no checkpoints", "none complete"])
def test_a_drain_of_a_job_that_begins_anew_is_given_up(settings: dict[str, Any]) -> None:
    """The sources would end before they have read again what they had read: that would be lost, and nobody would know."""
    job = Job(**settings).run()
    stopped(job, DRAIN)
    job.says(0, Failed(FailureKind.USER, "it broke"))
    [ended] = told(job)
    assert ended.reason == "a failure came before its checkpoint was complete: it broke; the job goes on"
    assert not job.machine.stopping.active


def test_the_last_checkpoint_of_a_drain_is_tried_again() -> None:
    job = Job().run()
    stopped(job, Aim(True, "here"))
    job.all_say(SubtasksFinished([]))
    first = cut_of(job.actions())
    job.says(0, Declined(first.number, "full"))
    second = cut_of(job.actions())
    assert second.kind is CutKind.FINAL_SAVEPOINT
    job.commit(acked(job, second.number))
    assert job.actions(CopySavepoint) != []


@pytest.mark.parametrize("committed", [True, False])
def test_where_nobody_knows_whether_it_is_complete_the_next_claim_tells(committed: bool) -> None:
    job = Job().run()
    cut = cut_of(stopped(job))
    commit = acked(job, cut.number, b"output")
    if committed:
        job.disk.append(decode_manifest(commit.data, "it"))
    job.machine.not_committed(cut.number, "no answer", FailureKind.STORE, job.now)
    assert job.status is S.STOPPING, "it is asked once more"
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.status is S.RESTARTING and told(job) == []
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    assert job.machine.stopping.stage is Stage.DOUBTFUL
    job.claimed(2)
    job.all_say(Deployed())
    job.says(0, Published(0))
    if not committed:
        assert job.status is S.STOPPING and told(job) == [], "it begins once more"
        return
    assert job.status is S.FINISHING and job.said(Start) == [], "it publishes, and does nothing else"
    gone(job)
    assert [(one.stats.id, one.reason) for one in told(job)] == [(1, "")]


# And after that.


@pytest.mark.parametrize("prepared", [True, False])
def test_a_failure_behind_it_publishes_and_restores_nothing_else(prepared: bool) -> None:
    job = Job().run()
    cut = cut_of(stopped(job, Aim(savepoint="here")))
    job.commit(acked(job, cut.number, *([b"output"] if prepared else [])))
    job.actions()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.status is S.RESTARTING and job.machine.stopping.is_sealed
    job.claimed(2)
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    job.all_say(Deployed())
    assert job.actions(CopySavepoint) == [], "it is under way, or waits for the output"
    job.says(0, Published(0))
    actions = job.actions()
    assert [one.checkpoint for one in actions if isinstance(one, CopySavepoint)] == [cut.number] * prepared
    assert job.status is S.FINISHING
    assert not [one for one in actions if isinstance(getattr(one, "message", None), Start)]
    job.machine.copy_done(cut.number, "/there", 2, job.now)
    gone(job)
    assert job.status is S.FINISHED and [one.savepoint.path for one in told(job)] == ["/there"]


def test_where_nothing_is_tried_again_its_checkpoint_is_reported_with_the_failure() -> None:
    job = Job(restarts=Never()).run()
    cut = cut_of(stopped(job))
    job.commit(acked(job, cut.number, b"output"))
    job.says(0, Failed(FailureKind.USER, "it broke"))
    [ended] = told(job)
    assert ended.reason == (
        "the job is FAILING; checkpoint 1 (url/1/1.manifest) of the stop is complete: a start from it publishes what is "
        "not visible yet, and goes on"
    )
    assert job.machine.give_up(crashed=False) is None


@pytest.mark.parametrize("stage", ["wanted", "suspending", "draining", "doubtful", "sealed", "restarting behind it"])
def test_cancel_is_legal_at_every_stage(stage: str) -> None:
    job = Job().start() if stage == "wanted" else Job().run()
    actions = stopped(job, DRAIN if stage == "draining" else SUSPEND)
    if stage in ("doubtful", "sealed", "restarting behind it"):
        cut = cut_of(actions)
        commit = acked(job, cut.number, b"output")
        if stage == "doubtful":
            job.says(0, Failed(FailureKind.USER, "it broke"))
        else:
            job.commit(commit)
        if stage == "restarting behind it":
            job.says(0, Failed(FailureKind.USER, "it broke"))
    job.actions()
    job.machine.cancel(job.now)
    assert job.status is S.CANCELLING
    [ended] = told(job)
    assert ended.reason.startswith("the job is CANCELLING")
    assert ("is complete" in ended.reason) == (stage in ("sealed", "restarting behind it"))
    assert job.machine.give_up(crashed=False) is None, "what there is stays"


def test_another_coordinator_of_the_run_finds_from_the_files_that_it_was_stopped() -> None:
    """The process of the stop was lost behind its checkpoint. The other process knows nothing of the stop."""
    job = Job().run()
    cut = cut_of(stopped(job))
    job.commit(acked(job, cut.number, b"output"))
    other = Job()
    other.disk, other.path = job.disk, job.path
    other.machine.take_over("its executor was lost", other.now)
    assert other.actions(Claim) != []
    other.claimed(2)
    for slot in (0, 1):
        other.hello(slot, incarnation=2)
    other.all_say(Deployed())
    other.says(0, Published(0))
    assert other.status is S.FINISHING and other.said(Start) == []
    stopped(other)
    gone(other)
    assert [(one.stats.id, one.stats.path) for one in told(other)] == [(cut.number, "here/1/1.manifest")]
