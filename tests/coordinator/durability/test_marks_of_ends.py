"""The mark that a job leaves of its end: which jobs leave one, and what it holds."""

from __future__ import annotations

import pytest
from driving import SECOND, Job, S

from tailrace.coordinator.actions import Sweep
from tailrace.coordinator.durability.stopping import Aim
from tailrace.protocol.deployment import FailureKind, SubtasksFinished
from tailrace.state.end_mark import Ending
from tailrace.state.manifest import Manifest
from tests.coordinator.durability.test_stopping import DRAIN, SUSPEND, acked, cut_of, gone, stopped


def mark(job: Job, crashed: bool = False) -> Ending | None:
    return job.machine.ending(crashed, job.now)


def finished(job: Job) -> Job:
    """The job, whose inputs have ended, at its end."""
    job.all_say(SubtasksFinished([]))
    job.commit(acked(job, cut_of(job.actions()).number))
    gone(job)
    assert job.status is S.FINISHED
    return job


@pytest.mark.parametrize(("retain", "kept"), [("never", ""), ("on-cancellation", ""), ("always", "1/1.manifest")])
def test_a_job_that_has_come_to_its_end_leaves_one_whatever_it_retains(retain: str, kept: str) -> None:
    job = finished(Job(retain=retain).run())
    found = mark(job)
    assert found is not None and found.finished and (found.number, found.checkpoint) == (1, kept)
    assert (found.job, found.run_id) == (job.machine.job, job.machine.run_id)


@pytest.mark.parametrize("retain", ["never", "on-cancellation"])
def test_so_does_one_that_was_drained(retain: str) -> None:
    job = Job(retain=retain).run()
    stopped(job, DRAIN)
    found = mark(finished(job))
    assert found is not None and found.finished and bool(found.checkpoint) is (retain != "never")


def test_a_job_that_was_stopped_leaves_its_checkpoint_to_go_on_from_and_no_mark() -> None:
    job = Job().run()
    job.commit(acked(job, cut_of(stopped(job, SUSPEND)).number))
    gone(job)
    assert job.status is S.FINISHED and mark(job) is None


def test_a_job_that_was_stopped_and_retains_nothing_says_that_it_was_stopped() -> None:
    """The job's sources ended before their input had: it is not finished, and there is nothing to go on from."""
    job = Job(retain="never").run()
    stopped(job, SUSPEND)
    found = mark(finished(job))
    assert found is not None and (found.status, found.checkpoint) == ("STOPPED", "")


def test_a_savepoint_of_a_stop_is_named() -> None:
    job = Job(retain="never").run()
    cut = cut_of(stopped(job, Aim(savepoint="here")))
    job.commit(acked(job, cut.number))
    assert job.machine.copy_done(cut.number, "/there", 20, job.now)
    gone(job)
    found = mark(job)
    assert found is not None and (found.status, found.savepoint) == ("STOPPED", "/there")


def test_where_that_savepoint_failed_the_checkpoint_stays_and_there_is_no_mark() -> None:
    job = Job(retain="never").run()
    cut = cut_of(stopped(job, Aim(savepoint="here")))
    job.commit(acked(job, cut.number))
    job.machine.not_copied(cut.number, "the disk is full", job.now)
    gone(job)
    assert job.status is S.FINISHED and mark(job) is None


@pytest.mark.parametrize("retain", ["never", "on-cancellation", "always"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_job_that_was_cancelled_leaves_one_where_it_had_checkpoints_and_keeps_none(
    retain: str, checkpoints: int
) -> None:
    """Without a checkpoint nothing of it was visible, and a start goes on from where this one did."""
    job = Job(retain=retain, interval=SECOND).run()
    for _ in range(checkpoints):
        job.wait(1.1)
        job.commit(acked(job, cut_of(job.actions()).number))
    job.machine.cancel(job.now)
    gone(job)
    found = mark(job)
    assert job.status is S.CANCELLED
    assert (None if found is None else found.status) == ("CANCELLED" if checkpoints and retain == "never" else None)


def test_a_job_that_failed_and_one_whose_driver_broke_behind_its_end_are_not_finished() -> None:
    job = finished(Job(retain="never").run())
    found = mark(job, crashed=True)
    assert found is not None and found.status == "FAILED"
    job = finished(Job().run())
    assert mark(job, crashed=True) is None, "its checkpoint stays"


def test_a_job_that_was_overtaken_leaves_none() -> None:
    job = Job(retain="never", interval=SECOND).run()
    job.wait(1.1)
    job.commit(acked(job, cut_of(job.actions()).number))
    job.wait(1.1)
    commit = acked(job, cut_of(job.actions()).number)
    job.machine.not_committed(commit.checkpoint, "a newer start", FailureKind.FENCED, job.now)
    gone(job)
    assert job.status is S.FAILED and mark(job) is None


def test_a_job_without_checkpoints_leaves_none() -> None:
    assert mark(Job(checkpoints=False).run()) is None


def test_a_start_that_keeps_few_runs_has_the_others_removed_but_for_the_one_it_goes_on_from() -> None:
    assert Job(keep_runs=2).start().actions(Sweep) == [Sweep(1, [], 2, "")]
    origin = Manifest("job", "earlier", 1, 4, 0, 128, 2, [])
    assert Job(keep_runs=1, start_from=origin).start().actions(Sweep) == [Sweep(1, [], 1, "earlier")]
