"""What is shown of the slices of a job: where they run, who holds their state, how they were replaced."""

from __future__ import annotations

from sizes import cut, joins, reset, runs, sealed, size

from tailrace.coordinator.view.slices import Failover, Slices, SliceStandby, SliceStatus, standby_figures
from tailrace.coordinator.view.view_makers import slices_of
from tailrace.protocol.deployment import Deploy, Progress
from tailrace.protocol.replay import Gained, KnownHistory, ReplayDone, Restored, Resume
from tailrace.protocol.standby import StateHeld
from tests.coordinator.driving import SECOND, Job, S
from tests.coordinator.workers.test_standbys import Standing, standing


def shown(job: Job) -> Slices:
    return slices_of(job.machine.roster, job.machine.takeovers, offset=1_000 * SECOND)


def after(job: Job, millis: int) -> None:
    job.now += millis * 1000


def replaced(job: Standing, slot: int = 1, place: int = 2) -> Resume:
    """A worker is lost, and a standby takes its place: it is there after 20 ms, and the other worker has reported what
    it knows 10 ms later; its state is there after 300 ms more, and what was done is done again after 70 ms."""
    job.lose(slot)
    after(job, 20)
    job.comes(place, slot=slot)
    after(job, 10)
    job.survivor_knows(slot)
    [resume] = job.said(Resume)
    after(job, 300)
    job.says(slot, Restored())
    after(job, 70)
    job.says(slot, ReplayDone(0))
    assert job.status is S.RUNNING
    assert isinstance(resume, Resume)
    return resume


def test_of_a_job_without_standbys_it_is_shown_where_its_workers_are() -> None:
    job = Job().run()
    slices = shown(job)
    assert slices == Slices((SliceStatus(0, "h0", None, 10, 0), SliceStatus(1, "h1", None, 11, 0)))
    assert standby_figures(slices) is None


def test_before_anybody_has_come_nobody_is_shown() -> None:
    job = Standing()
    job.start()
    assert shown(job).all == (SliceStatus(0, None, None, None, 0), SliceStatus(1, None, None, None, 0))
    job.hello(0, executor="7")
    assert shown(job).all[0] == SliceStatus(0, "h0", "7", 10, 0)


def test_a_standby_is_behind_until_it_has_read_the_newest_checkpoint() -> None:
    job = standing()
    assert [one.standbys for one in shown(job).all] == [(), ()], "there is nothing to hold"
    first = job.complete()
    assert shown(job).all[0].standbys == (SliceStandby(2, "h2", None, 12, False),)
    job.says(2, StateHeld(first, [0]))
    assert shown(job).all[0].standbys == (SliceStandby(2, "h2", None, 12, True, first, 0, 0.0),)
    after(job, 1500)
    second = job.complete()
    after(job, 500)
    job.complete()
    assert shown(job).all[0].standbys == (SliceStandby(2, "h2", None, 12, True, first, 2, 2.0),)
    job.says(2, StateHeld(second, [0]))
    assert shown(job).all[0].standbys == (SliceStandby(2, "h2", None, 12, True, second, 1, 0.5),)
    assert [len(one.standbys) for one in shown(job).all] == [1, 1], "the other one holds the other slice"
    job.lose(2)
    assert shown(job).all[0].standbys == ()


def test_how_much_would_have_to_be_done_again_is_what_the_worker_has_reported() -> None:
    job = standing()
    job.says(1, Progress([], 1, {}, 40, 400, 9_000))
    assert [(one.log_entries, one.log_bytes, one.kept_bytes) for one in shown(job).all] == [(0, 0, 0), (40, 400, 9_000)]
    job.says(1, Progress([], 1, {}, 40, 400, 9_000, log_left=77))
    assert [one.log_left_bytes for one in shown(job).all] == [None, 77]
    job.lose(1)
    assert shown(job).all[1].log_bytes == 0, "nobody knows how much the next one has"
    assert shown(job).all[1].log_left_bytes is None


def test_a_replacement_is_shown_with_its_phases_and_the_others_are_still_in_their_attempt() -> None:
    job = standing()
    job.lose(1)
    assert [(one.pid, one.being_replaced) for one in shown(job).all] == [(10, False), (None, True)]
    job = standing()
    resume = replaced(job)
    survivor, other = shown(job).all
    assert survivor == SliceStatus(0, "h0", None, 10, attempt=0)
    assert (other.host, other.pid, other.replaced, other.being_replaced) == ("h2", 12, 1, False)
    assert other.last_failover == Failover(1_100.0, 20.0, 10.0, 300.0, 70.0, 400.0)
    assert other.attempt == resume.deploy.attempt == 1


def test_survivors_that_speak_before_the_process_is_there_have_taken_no_time() -> None:
    job = standing()
    job.lose(1)
    after(job, 5)
    job.survivor_knows(1)
    after(job, 40)
    job.comes(2, slot=1)
    job.says(1, Restored())
    job.says(1, ReplayDone(0))
    assert shown(job).all[1].last_failover == Failover(1_100.0, 45.0, 0.0, 0.0, 0.0, 45.0)


def test_the_last_replacement_is_shown_and_all_are_counted() -> None:
    job = standing()
    replaced(job)
    job.complete()
    after(job, 5_000)
    resume = replaced(job, place=3)
    other = shown(job).all[1]
    assert other.replaced == 2 and other.last_failover is not None
    assert other.last_failover.timestamp == 1_105.4
    assert other.attempt == resume.deploy.attempt == 2


def test_a_loss_that_was_not_made_good_alone_is_shown_with_the_reason() -> None:
    job = standing()
    replaced(job)
    job.lose(1)
    job.lose(0)
    assert job.status is S.RESTARTING
    first, other = shown(job).all
    why = "worker 1 was still being replaced, and StandbyConfig(depth=1) covers no more at once"
    assert first.not_replaced == why and other.not_replaced.startswith("it was still being replaced")
    assert (first.replaced, other.replaced) == (0, 1)


def test_one_that_was_still_being_replaced_when_all_started_again_is_shown_with_the_reason_too() -> None:
    job = standing()
    job.lose(1)
    job.restart()
    other = shown(job).all[1]
    assert (other.being_replaced, other.replaced, other.last_failover) == (False, 0, None)
    assert other.not_replaced == "it was still being replaced: it broke"


def test_when_all_have_started_again_all_are_in_one_attempt() -> None:
    job = standing()
    replaced(job)
    assert [one.attempt for one in shown(job).all] == [0, 1]
    job.restart()
    assert [one.attempt for one in shown(job).all] == [message.attempt for message in job.said(Deploy)] == [1, 1]


def test_what_survivors_say_of_somebody_who_is_not_being_replaced_counts_for_nothing() -> None:
    job = standing()
    before = shown(job)
    job.says(0, KnownHistory(1, Gained(0, []), []))
    job.says(0, Restored())
    assert shown(job) == before


def test_a_progress_report_has_a_few_figures_of_all() -> None:
    job = standing()
    first = job.complete()
    figures = standby_figures(shown(job))
    assert figures == {
        "ready": 2, "wanted": 2, "slicesHeld": 0, "behind": None, "logBytes": 0, "keptBytes": 0, "replaced": 0,
        "lastFailoverMs": None,
    }  # fmt: skip
    job.says(2, StateHeld(first, [0]))
    job.complete()
    job.says(0, Progress([], 1, {}, 4, 100, 1_000))
    job.says(1, Progress([], 1, {}, 4, 11, 0))
    replaced(job)
    job.says(1, Progress([], 1, {}, 4, 23, 500))
    figures = standby_figures(shown(job))
    assert figures == {
        "ready": 1, "wanted": 2, "slicesHeld": 0, "behind": None, "logBytes": 123, "keptBytes": 1_500, "replaced": 1,
        "lastFailoverMs": 400.0,
    }  # fmt: skip


def test_the_slice_whose_state_is_oldest_is_the_one_that_is_told() -> None:
    job = Standing(2, replicas=2).run()
    job.stands_by(2)
    job.stands_by(3)
    first = job.complete()
    job.says(2, StateHeld(first, [0, 1]))
    job.complete()
    last = job.complete()
    job.says(3, StateHeld(last, [0]))
    figures = standby_figures(shown(job))
    assert figures is not None and (figures["slicesHeld"], figures["behind"]) == (2, 2), "of slice 1; one holds slice 0"


def test_a_worker_that_waits_for_a_larger_size_has_no_slice_yet() -> None:
    job = Job().run()

    def changes() -> list[tuple[int, str]]:
        course, machine = job.machine.course, job.machine
        slices = slices_of(machine.roster, machine.takeovers, 0, course.rescaling)
        return [(one.slot, one.change) for one in slices.all]

    job.machine.rescale("somebody", size(3), job.now)
    job.epochs.append(0)
    assert changes() == [(0, ""), (1, "")]
    joins(job, 2)
    number = cut(job)
    assert changes() == [(0, ""), (1, "")]
    sealed(job, number)
    assert changes() == [(0, ""), (1, ""), (2, "joins")]
    reset(job, 0, 1, 2)
    runs(job)
    assert changes() == [(0, ""), (1, ""), (2, "")]
    job.machine.rescale("somebody", size(1), job.now)
    assert changes() == [(0, ""), (1, "leaves"), (2, "leaves")]
