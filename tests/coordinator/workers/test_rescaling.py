"""The change of a job's size, as its coordinator sees it: every stage, and whatever may come between."""

from __future__ import annotations

from typing import Any

import pytest
from driving import SECOND, Job, S
from sizes import cut, joins, ready, reset, runs, sealed, size

from tailrace.coordinator.actions import CloseLink, Commit, Kill, Launch, NotResized, RescaleEnded, Resizing, Send
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.restarts import Never
from tailrace.coordinator.workers.rescaling import JobSize, Rescaling
from tailrace.errors import InternalError
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Leave,
    Published,
    Start,
    SubtasksFinished,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.snapshot import Abort, Ack, Declined, Trigger
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld
from tailrace.state.manifest import Manifest


def asked(job: Job, to: JobSize, who: str = "somebody") -> list[Any]:
    """Requests another size. Returns the actions that follow at once."""
    job.machine.rescale(who, to, job.now)
    job.epochs += [0] * (to.slots - len(job.epochs))
    return job.actions()


def ended(job: Job) -> list[RescaleEnded]:
    return job.actions(RescaleEnded)


def larger(job: Job, slots: int = 4) -> None:
    """The job runs with more workers."""
    asked(job, size(slots))
    for slot in range(2, slots):
        joins(job, slot)
    sealed(job, cut(job))
    reset(job, *range(slots))
    runs(job)


def test_more_workers_are_there_before_the_job_stands_still() -> None:
    job = Job().run()
    assert [(one.slot, one.launch) for one in asked(job, size(4))] == [(2, 1), (3, 1)]
    job.machine.tick(job.now)
    joins(job, 2)
    job.machine.tick(job.now)
    assert job.said(Trigger) == [] and job.status is S.RUNNING
    joins(job, 3)
    assert cut(job) == 1 and job.status is S.RUNNING


def test_it_goes_on_with_the_new_plan_from_the_checkpoint_behind_which_nothing_was_done() -> None:
    job = Job().run()
    asked(job, size(4))
    joins(job, 2), joins(job, 3)
    followed = sealed(job, cut(job))
    assert not job.disk[-1].stopped  # a start from it goes on like from any other
    assert [one.after for one in followed if isinstance(one, Resizing)] == [4] and job.status is S.RESTARTING
    resets = [one.slot for one in followed if isinstance(one, Send) and isinstance(one.message, Reset)]
    assert resets == [0, 1, 2, 3]
    reset(job, 0, 1, 2, 3)
    deployed = job.sent(Deploy)
    assert [slot for slot, _ in deployed] == [0, 1, 2, 3] and {one.plan for _, one in deployed} == {b"a plan for 4"}
    for slot in range(4):
        job.says(slot, Deployed())
    job.published()
    assert [slot for slot, _ in job.sent(Start)] == [0, 1, 2, 3]
    assert job.machine.rescale("later", size(4), job.now) is None and ended(job)[-1].reason == ""


def test_who_has_requested_it_is_told_when_the_job_runs_so() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    sealed(job, cut(job))
    reset(job, 0, 1, 2)
    assert ended(job) == []
    for slot in range(3):
        job.says(slot, Deployed())
    job.published()
    assert ended(job) == [RescaleEnded("somebody", 3, "")]
    assert job.machine.attempts.restarts - job.machine.course.rescaling.count == 0  # nothing has failed


def test_with_fewer_workers_the_others_leave_when_the_job_runs() -> None:
    job = Job().run()
    assert [one.slot for one in asked(job, size(1)) if not isinstance(one.message, StandBy)] == []
    followed = sealed(job, cut(job))
    assert [one.slot for one in followed if isinstance(one, Send) and isinstance(one.message, Reset)] == [0, 1]
    reset(job, 0)
    assert job.said(Deploy) == []  # worker 1 may still write
    job.says(1, WasReset(1))
    assert [slot for slot, _ in job.sent(Deploy)] == [0]
    job.says(0, Deployed())
    assert job.said(Leave) == []
    job.published()
    assert [slot for slot, _ in job.sent(Leave)] == [1] and len(job.machine.roster.slots) == 1
    job.lose(1)
    job.ended(1)
    assert job.actions() == [] and job.status is S.RUNNING


def test_a_worker_that_does_not_leave_is_ended() -> None:
    job = Job().run()
    asked(job, size(1))
    sealed(job, cut(job))
    reset(job, 0, 1)
    job.says(0, Deployed())
    job.published()
    job.wait(2)
    job.actions()
    job.wait(2)
    assert [one for one in job.actions() if isinstance(one, CloseLink | Kill)] == [CloseLink(1, 1), Kill(1, 1)]


def test_a_place_that_comes_back_has_another_start_and_a_later_epoch() -> None:
    job = Job().run()
    larger(job)
    asked(job, size(2))
    sealed(job, cut(job))
    reset(job, 0, 1, 2, 3)
    runs(job)
    assert [slot for slot, _ in job.sent(Leave)] == [2, 3]
    followed = asked(job, size(3))  # worker 2 has not left yet
    assert followed == [CloseLink(2, 1), Kill(2, 1), Launch(2, 2)]
    assert job.hello(2, launch=1) is None
    joins(job, 2)
    assert job.epochs[2] == 2
    job.says(2, Deployed(), epoch=1)
    sealed(job, cut(job))
    reset(job, 0, 1, 2)
    runs(job)


def test_a_failure_before_it_has_run_so_brings_it_back() -> None:
    job = Job(restarts=Never()).run()
    asked(job, size(3))
    joins(job, 2)
    sealed(job, cut(job))
    reset(job, 0, 1, 2)
    job.actions()
    job.says(2, Failed(FailureKind.USER, "open raised"))
    [answer] = [one for one in job.actions() if isinstance(one, RescaleEnded)]
    assert answer.slots == 2 and answer.reason == "open raised; the job goes on with 2 workers"
    reset(job, 0, 1, 2)
    assert {one.plan for one in job.said(Deploy)} == {b"the plan"}
    runs(job)
    assert [slot for slot, _ in job.sent(Leave)] == [2]
    job.says(1, Failed(FailureKind.USER, "it broke"))
    assert job.status is S.FAILING  # one more is a failure like any other


def test_the_way_back_from_fewer_workers_takes_those_that_were_there() -> None:
    job = Job(restarts=Never()).run()
    asked(job, size(1))
    sealed(job, cut(job))
    reset(job, 0, 1)
    job.actions()
    job.says(0, Failed(FailureKind.STATE, "no room"))
    reset(job, 0, 1)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1]
    runs(job)
    assert job.said(Leave) == []


def test_a_worker_that_is_lost_on_the_way_is_started_again_for_the_size_before() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    sealed(job, cut(job))
    reset(job, 0, 1, 2)
    job.lose(1)
    assert Launch(1, 2) in job.actions() and len(job.machine.roster.slots) == 2
    reset(job, 0, 2)
    assert job.said(Deploy) == []
    job.hello(1, launch=2)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1]


def test_where_no_workers_come_the_job_keeps_its_size_and_never_stood_still() -> None:
    job = Job().run()
    asked(job, size(4))
    joins(job, 2)
    job.wait(59)
    assert ended(job) == []
    job.machine.heartbeat(2, 12, job.now)
    job.wait(2)
    actions = job.actions()
    [answer] = [one for one in actions if isinstance(one, RescaleEnded)]
    assert "4 task slots are needed, and Spark gave 3 within 60 s" in answer.reason and answer.slots == 2
    assert Kill(3, 1) in actions and [slot for slot, _ in [(a.slot, a) for a in actions if isinstance(a, Send)]] == [2]
    assert job.status is S.RUNNING and not job.machine.course.rescaling.active


@pytest.mark.parametrize("how", ["link", "job"])
def test_a_worker_that_was_to_join_and_is_lost_ends_it(how: str) -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    if how == "link":
        job.lose(2)
    else:
        job.ended(2, "no module named tailrace")
    [answer] = ended(job)
    assert answer.reason.startswith("worker 2, which was to join, is lost: ") and job.status is S.RUNNING
    job.machine.tick(job.now)
    assert job.said(Trigger) == []


def test_a_failure_during_the_cut_lets_it_begin_once_more_and_the_third_ends_it() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    for attempt in (1, 2, 3):
        number = cut(job)
        job.ack(0, number)
        job.fails()
        assert len(job.machine.roster.slots) == 2
        if attempt < 3:
            job.restart_goes_on()
            runs(job)
    [answer] = ended(job)
    assert "three" in answer.reason or "3" in answer.reason


def test_where_the_manifest_was_on_its_way_the_job_restarts_in_the_size_before() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    number = cut(job)
    job.ack(0, number), job.ack(1, number)
    [commit] = job.actions(Commit)
    job.lose(0)
    job.commit(commit)
    assert job.status is S.RESTARTING and len(job.machine.roster.slots) == 2 and not job.disk[-1].stopped
    job.hello(0, launch=2)
    reset(job, 1)
    job.wait(6)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1]
    runs(job)
    assert cut(job) == number + 1


def test_an_aborted_cut_ends_it_and_the_tasks_go_on() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    number = cut(job)
    job.says(1, Declined(number, "no space"))
    actions = job.actions()
    assert [one.slot for one in actions if isinstance(one, Send) and isinstance(one.message, Abort)] == [0, 1]
    [answer] = [one for one in actions if isinstance(one, RescaleEnded)]
    assert "no space" in answer.reason and job.status is S.RUNNING
    assert [one.slots for one in actions if isinstance(one, NotResized)] == [2]


def unfit(manifest: Manifest) -> str:
    return "the state of 'totals' cannot be dealt out"


def test_a_size_that_the_state_does_not_fit_is_refused_at_once_where_a_checkpoint_shows_it() -> None:
    job = Job().run()
    job.complete()
    job.actions()
    [answer] = [one for one in asked(job, size(3, fits=unfit)) if isinstance(one, RescaleEnded)]
    assert answer.reason == "the state of 'totals' cannot be dealt out"
    assert not job.machine.course.rescaling.active


def test_where_only_its_own_checkpoint_shows_it_the_job_starts_again_in_the_size_that_it_has() -> None:
    job = Job().run()
    asked(job, size(3, fits=unfit))
    joins(job, 2)
    followed = sealed(job, cut(job))
    [answer] = [one for one in followed if isinstance(one, RescaleEnded)]
    assert answer.reason == "the state of 'totals' cannot be dealt out; the job goes on with 2 workers"
    reset(job, 0, 1)
    assert {one.plan for one in job.said(Deploy)} == {b"the plan"}
    runs(job)


def test_a_stop_comes_first_but_behind_a_checkpoint_that_is_being_committed() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    number = cut(job)
    job.machine.stop("who stops", Aim(), job.now)
    [answer] = [one for one in job.actions() if isinstance(one, RescaleEnded)]
    assert answer.reason.startswith("the job is being stopped") and job.status is S.STOPPING
    assert job.machine.stopping.active and number + 1 in job.machine.checkpoints.pending

    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    number = cut(job)
    job.ack(0, number), job.ack(1, number)
    [commit] = job.actions(Commit)
    job.machine.stop("who stops", Aim(), job.now)
    assert job.status is S.RUNNING
    job.commit(commit)
    reset(job, 0, 1, 2)
    for slot in range(3):
        job.says(slot, Deployed())
    job.published()
    assert job.status is S.STOPPING and len(job.machine.roster.slots) == 3


def test_a_job_that_comes_to_its_end_meanwhile_just_ends() -> None:
    job = Job().run()
    asked(job, size(3))
    for slot in (0, 1):
        job.says(slot, SubtasksFinished([]))
    [answer] = ended(job)
    assert answer.reason.startswith("the job has come to its end")


@pytest.mark.parametrize("stage", ["gathering", "cutting", "moving"])
def test_a_cancel_is_legal_all_the_time(stage: str) -> None:
    job = Job().run()
    asked(job, size(3))
    if stage != "gathering":
        joins(job, 2)
        number = cut(job)
        if stage == "moving":
            sealed(job, number)
    job.machine.cancel(job.now)
    assert [one.reason for one in ended(job)] == ["the job is CANCELLING"]
    for slot in range(3):
        job.ended(slot)
    assert job.status is S.CANCELLED


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    def refusal(job: Job) -> str:
        [answer] = [one for one in asked(job, size(3)) if isinstance(one, RescaleEnded)]
        return answer.reason

    assert refusal(Job(checkpoints=False).run()).startswith("the job takes no checkpoints")
    assert refusal(Job()) == "the job is CREATED"
    twice = Job().run()
    asked(twice, size(4))
    assert refusal(twice) == "the job changes its size already, to 4 workers; wait for that"
    stopped = Job().run()
    stopped.machine.stop("who stops", Aim(), stopped.now)
    assert refusal(stopped) == "the job is being stopped"


def test_a_request_while_the_job_restarts_waits_until_it_runs() -> None:
    job = Job().run()
    job.fails()
    job.actions()
    asked(job, size(3))
    joins(job, 2)
    job.machine.tick(job.now)
    job.restart_goes_on()
    assert len(job.said(Deploy)) == 2
    runs(job)
    assert cut(job) >= 1


def test_whoever_waits_for_a_checkpoint_gets_the_one_of_the_change() -> None:
    job = Job().run()
    job.trigger()
    asked(job, size(1))
    number = cut(job)
    followed = sealed(job, number)
    assert any(getattr(one, "waiting", ()) == ("somebody",) and one.stats is not None for one in followed)


def test_standbys_begin_anew_behind_the_slots_to_come() -> None:
    job = Job(standbys=1).run()
    job.epochs.append(0)
    job.hello(2, launch=1)
    assert isinstance(job.machine.roster.at(2).index, int) and job.machine.roster.standbys.all[0].connected
    followed = asked(job, size(4, standbys=2))
    assert [one for one in followed if isinstance(one, CloseLink | Kill)] == [CloseLink(2, 1), Kill(2, 1)]
    assert [one for one in followed if isinstance(one, Launch)] == [Launch(2, 2), Launch(3, 1)]
    assert [one.index for one in job.machine.roster.standbys.all] == [4, 5]
    joins(job, 2), joins(job, 3)
    sealed(job, cut(job))
    reset(job, 0, 1, 2, 3)
    runs(job)
    assert [one.slot for one in job.actions(Launch)] == [4, 5]


def test_a_standby_that_has_come_meanwhile_is_ended_too() -> None:
    """The standby was started when all had begun anew, and would go on with the slice of a worker that there is no more."""
    job = Job(standbys=1).run()
    asked(job, size(1, standbys=1))
    runs(job.restart())
    job.epochs += [0, 0, 0]
    [place] = job.machine.roster.standbys.all
    joins(job, place.index)
    job.says(place.index, StandsBy())
    assert job.complete() and place.slots, "it holds state of the size before"
    followed = sealed(job, cut(job))
    assert CloseLink(place.index, place.epoch) in followed
    reset(job, 0, 1)
    runs(job)
    [other] = job.machine.roster.standbys.all
    assert other.index > place.index
    joins(job, other.index)
    job.says(other.index, StandsBy())
    job.machine.checkpoint("somebody", job.now)
    sealed(job, job.sent(Trigger)[0][1].cut.number)
    assert other.slots == [0]


def test_silence_of_a_worker_that_was_to_join_ends_it() -> None:
    job = Job().run()
    asked(job, size(4))
    joins(job, 2)
    for _ in range(12):
        job.now += SECOND
        job.machine.heartbeat(0, 10, job.now), job.machine.heartbeat(1, 11, job.now)
        job.machine.tick(job.now)
    [answer] = ended(job)
    assert "worker 2, which was to join, is lost: it has given no sign of life for 10 s" in answer.reason


def test_one_that_is_lost_during_the_cut_is_started_anew_when_the_job_moves() -> None:
    """If the change ended there, tasks would do nothing any more behind a cut of which nobody knows."""
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    number = cut(job)
    job.lose(2)
    assert ended(job) == []
    job.wait(70)
    assert Launch(2, 2) in sealed(job, number)
    reset(job, 0, 1)
    assert job.said(Deploy) == []
    joins(job, 2)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1, 2]
    runs(job)


def test_a_worker_outside_says_nothing_that_counts() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    number = cut(job)
    job.says(2, Ack(number, "file", 1, [], [], []))
    job.says(2, Published(0))
    assert not job.machine.checkpoints.pending[number].acks and job.status is S.RUNNING


def test_an_illegal_step_is_an_internal_error() -> None:
    changes = Rescaling(size(2))
    with pytest.raises(InternalError):
        changes.cuts()


# Before the job stands still.


def prepared(job: Job) -> list[tuple[int, str]]:
    """The messages by which workers get ready, since the last call: (worker, kind)."""
    found = [(slot, message) for slot, message in job.sent() if isinstance(message, StandBy | Hold)]
    return [(slot, type(message).__name__) for slot, message in found]


def test_all_workers_have_the_plan_and_their_state_before_the_job_stands_still() -> None:
    job = Job().run()
    newest = job.complete()
    asked(job, size(3))
    joins(job, 2)
    assert prepared(job) == [(0, "StandBy"), (1, "StandBy"), (2, "StandBy")]
    for slot in range(3):
        job.says(slot, StandsBy())
        (held,) = job.said(Hold)
        assert (held.checkpoint, held.slots) == (newest, [slot])
        job.machine.tick(job.now)
        assert job.said(Trigger) == []
    for slot in range(3):
        assert job.said(Trigger) == []
        job.says(slot, StateHeld(newest, [slot]))
        job.machine.tick(job.now)
    assert [one.cut.hold for one in job.said(Trigger)] == [True, True]


def test_who_stays_gets_ready_only_when_all_are_there_that_join() -> None:
    job = Job().run()
    asked(job, size(4))
    joins(job, 3)
    assert prepared(job) == [(3, "StandBy")]
    joins(job, 2)
    assert prepared(job) == [(0, "StandBy"), (1, "StandBy"), (2, "StandBy")]


def test_who_is_not_ready_in_time_does_the_rest_behind_the_cut() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    job.says(0, StandsBy()), job.says(1, StandsBy())
    job.actions()
    job.wait(59)
    assert not any(one.cut.hold for one in job.said(Trigger))
    job.wait(2)
    assert any(one.cut.hold for one in job.said(Trigger))


def test_a_worker_that_cannot_join_ends_the_change_and_the_job_has_not_stood_still() -> None:
    job = Job().run()
    newest = job.complete()
    asked(job, size(3))
    joins(job, 2)
    job.says(0, StandsBy())
    job.actions()
    job.says(2, Failed(FailureKind.USER, "no module named 'cats'"))
    followed = job.actions()
    (answer,) = [one for one in followed if isinstance(one, RescaleEnded)]
    assert "no module named 'cats'" in answer.reason and job.status is S.RUNNING
    held = [(one.slot, one.message) for one in followed if isinstance(one, Send) and isinstance(one.message, Hold)]
    assert [(slot, message.slots) for slot, message in held] == [(0, []), (1, [])], "they drop what they hold"
    job.says(0, StateHeld(newest, [0]))
    assert job.actions() == [] and job.status is S.RUNNING


def test_workers_get_ready_once_more_when_all_have_begun_anew() -> None:
    job = Job().run()
    asked(job, size(3))
    joins(job, 2)
    ready(job)
    job.actions()
    job.says(1, Failed(FailureKind.USER, "it raised"))
    reset(job, 0, 1)
    for slot in range(2):
        job.says(slot, Deployed())
    job.published()
    assert job.status is S.RUNNING
    assert prepared(job) == [(0, "StandBy"), (1, "StandBy")], "the worker that joins has the plan"
    assert cut(job)
