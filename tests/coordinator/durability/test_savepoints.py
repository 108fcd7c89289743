"""Savepoints as the coordinator sees them: a whole checkpoint, then a copy once its output is visible."""

from __future__ import annotations

from typing import Any

import pytest
from driving import SECOND, Job, S

from tailrace.coordinator.actions import Commit, CopySavepoint, Delete, SavepointEnded
from tailrace.coordinator.checkpoint_stats import SavepointStats
from tailrace.coordinator.durability.savepoints import SavepointRequest, Savepoints
from tailrace.coordinator.job.restarts import Fixed
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import Leave, Published, SubtasksFinished
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Trigger
from tailrace.state.manifest import Manifest


def wanted(job: Job, target: str = "here") -> int:
    """Requests a savepoint, whose cut begins. Returns the number."""
    job.machine.savepoint("somebody", target, job.now)
    [(_, first), (_, _)] = job.sent(Trigger)
    assert first.cut.kind is CutKind.SAVEPOINT and not first.cut.may_overtake
    return int(first.checkpoint)


def complete(job: Job, number: int, *prepared: bytes) -> list[Any]:
    """All have acked and the manifest is there: what follows."""
    job.ack(0, number, *prepared)
    job.ack(1, number)
    job.commit()
    return job.actions()


def test_a_savepoint_from_the_request_to_the_copy() -> None:
    job = Job(overtakes_after=0).run()
    number = wanted(job)
    job.wait(2)
    message = complete(job, number, b"output")
    assert not [one for one in message if isinstance(one, CopySavepoint)], "its output is not visible"
    job.says(0, Published(number))
    [copy] = job.actions(CopySavepoint)
    assert (copy.checkpoint, copy.target) == (number, "here")
    assert (copy.savepoint.kind, copy.savepoint.prepared, copy.savepoint.older) == ("savepoint", [], [])
    assert [file.name for file in copy.savepoint.files] == [f"1/chk-{number}/w{slot}-1.state" for slot in (0, 1)]
    job.wait(1)
    assert job.machine.copy_done(number, "/there", 20, job.now)
    [ended] = job.actions(SavepointEnded)
    assert (ended.who, ended.reason) == ("somebody", "")
    assert (ended.stats.path, ended.stats.size, ended.stats.duration) == ("/there", 20, 3 * SECOND)


def test_an_unaligned_savepoint_has_what_was_overtaken_and_says_that_it_was() -> None:
    job = Job(overtakes_after=0).run()
    job.machine.savepoint("somebody", "here", job.now, unaligned=True)
    [(_, first), (_, _)] = job.sent(Trigger)
    number = int(first.checkpoint)
    for slot in range(2):
        name = f"1/chk-{number}/w{slot}-{job.epochs[slot]}.state"
        job.says(slot, Ack(number, name, 10, [], [], inflight=7, overtaken={"count": 7}))
    job.commit()
    assert job.machine.copy_done(number, "/there", 20, job.now)
    [ended] = job.actions(SavepointEnded)
    assert (ended.stats.policy, ended.stats.inflight, ended.stats.inflight_by) == ("unaligned", 14, {"count": 14})


def test_a_savepoint_of_a_stop_whose_manifest_a_claim_has_found_is_aligned() -> None:
    savepoints = Savepoints()
    savepoints.requested.append(SavepointRequest("somebody", "here"))
    savepoints.begin(4, 10)
    savepoints.note_stop(Manifest("job", "run", 1, 4, 5, 128, 2, []), 20)
    [copy] = savepoints.visible(4)
    ended = savepoints.copy_done(copy.checkpoint, "/there", 20, 30)
    assert ended is not None and ended.stats == SavepointStats(4, "/there", 5, 20, 20)


def test_where_nothing_is_prepared_it_is_copied_with_the_commit() -> None:
    job = Job().run()
    number = wanted(job)
    message = complete(job, number)
    assert [type(one) for one in message if isinstance(one, CopySavepoint)] == [CopySavepoint]
    assert job.machine.checkpoints.newest == number


def test_its_files_stay_until_they_are_copied_however_many_checkpoints_come() -> None:
    job = Job(keep=1).run()
    number = wanted(job)
    complete(job, number)
    files = {f"1/chk-{number}/w{slot}-1.state" for slot in (0, 1)}
    gone = set()
    for _ in range(3):
        job.trigger()
        for slot in (0, 1):
            job.ack(slot, job.machine.durability.checkpoints.next_id - 1)
        job.commit()
        gone |= {name for delete in job.actions(Delete) for name in delete.names}
    assert f"1/{number}.manifest" in gone and not files & gone
    job.machine.copy_done(number, "/there", 20, job.now)
    assert files <= {name for delete in job.actions(Delete) for name in delete.names}


def test_no_other_checkpoint_overtakes_it() -> None:
    job = Job(interval=SECOND, max_concurrent=3).run()
    number = wanted(job)
    job.wait(5)
    assert job.said(Trigger) == []
    complete(job, number)
    job.wait(1)
    assert [one.cut.kind for one in job.said(Trigger)] == [CutKind.CHECKPOINT] * 2


def test_several_come_one_after_the_other() -> None:
    job = Job().run()
    first = wanted(job, "a")
    job.machine.savepoint("another", "b", job.now)
    assert job.said(Trigger) == []
    complete(job, first)
    job.wait(1)
    [second, _] = job.said(Trigger)
    complete(job, second.checkpoint)
    job.machine.copy_done(second.checkpoint, "/b", 2, job.now)
    job.machine.copy_done(first, "/a", 1, job.now)
    assert [(one.who, one.stats.path) for one in job.actions(SavepointEnded)] == [("another", "/b"), ("somebody", "/a")]


def test_one_that_cannot_be_taken_is_reported_and_the_job_goes_on() -> None:
    job = Job().run()
    number = wanted(job)
    job.says(1, Declined(number, "the disk is full"))
    message = job.actions()
    [ended] = [one for one in message if isinstance(one, SavepointEnded)]
    assert (ended.who, ended.stats, ended.reason) == ("somebody", None, "worker 1: the disk is full")
    assert job.status is S.RUNNING and any(isinstance(getattr(one, "message", None), Abort) for one in message)


def test_one_that_refers_to_an_earlier_file_is_given_up() -> None:
    """A savepoint would be lost with that file. No such savepoint is written, and none is reported to the user."""
    job = Job().run()
    job.complete()
    number = wanted(job)
    job.ack(0, number, older=("1/chk-1/w0-1.state",))
    [ended] = job.actions(SavepointEnded)
    assert "refers to 1/chk-1/w0-1.state, and that of a savepoint must be whole" in ended.reason


def test_a_copy_that_fails_is_reported_and_its_checkpoint_stays() -> None:
    job = Job().run()
    number = wanted(job)
    complete(job, number)
    job.machine.not_copied(number, "it is not empty", job.now)
    [ended] = job.actions(SavepointEnded)
    assert (ended.stats, ended.reason) == (None, "it is not empty")
    assert job.status is S.RUNNING


@pytest.mark.parametrize("when", ["cutting", "publishing"])
def test_a_savepoint_that_is_not_visible_when_the_job_restarts_is_taken_once_more(when: str) -> None:
    job = Job().run()
    number = wanted(job)
    job.machine.savepoint("another", "elsewhere", job.now)
    if when == "publishing":
        complete(job, number, b"output")
    job.restart()
    assert job.actions(SavepointEnded) == []
    job.deployed()
    for who, target in (("somebody", "here"), ("another", "elsewhere")):
        job.machine.tick(job.now)
        number = job.machine.checkpoints.next_id - 1
        [copy] = [one for one in complete(job, number) if isinstance(one, CopySavepoint)]
        assert (copy.checkpoint, copy.target) == (number, target)
        job.machine.copy_done(number, "/there", 20, job.now)
        assert [(one.who, one.reason) for one in job.actions(SavepointEnded)] == [(who, "")]


def test_a_savepoint_has_three_attempts_and_who_waits_gets_the_reason_why_the_last_one_failed() -> None:
    job = Job(restarts=Fixed(9, SECOND)).run()
    wanted(job)
    for _ in range(2):
        job.restart()
        job.deployed()
        job.machine.tick(job.now)
        assert job.actions(SavepointEnded) == []
    job.restart()
    [ended] = job.actions(SavepointEnded)
    assert ended.reason == ("a failure came before it was complete in each of 3 attempts, in the last one: it broke")
    job.deployed()
    job.wait(1)
    assert job.said(Trigger) == []


def test_a_savepoint_of_a_job_that_ends_is_over() -> None:
    job = Job().run()
    wanted(job)
    job.machine.savepoint("another", "elsewhere", job.now)
    job.machine.cancel(job.now)
    assert [(one.who, one.reason) for one in job.actions(SavepointEnded)] == [
        ("somebody", "the job was cancelled"),
        ("another", "the job was cancelled"),
    ]


def test_a_restart_does_not_disturb_a_copy_and_one_that_nobody_began_is_taken_after_it() -> None:
    job = Job().run()
    number = wanted(job)
    job.machine.savepoint("another", "b", job.now)
    complete(job, number)
    job.restart()
    assert job.actions(SavepointEnded) == []
    assert job.machine.copy_done(number, "/there", 20, job.now)
    job.deployed()
    job.wait(1)
    assert [one.cut.kind for one in job.said(Trigger)] == [CutKind.SAVEPOINT] * 2


def test_the_end_of_a_job_waits_for_its_copies() -> None:
    job = Job().run()
    number = wanted(job)
    complete(job, number)
    job.all_say(SubtasksFinished([]))
    [last, _] = job.said(Trigger)
    complete(job, last.checkpoint)
    assert job.status is S.FINISHING and job.said(Leave) == []
    job.machine.copy_done(number, "/there", 20, job.now)
    assert len(job.said(Leave)) == 2


def test_a_job_that_is_cancelled_gives_its_copies_up_and_one_that_comes_is_to_go() -> None:
    job = Job().run()
    number = wanted(job)
    job.machine.savepoint("another", "b", job.now)
    complete(job, number)
    job.machine.cancel(job.now)
    assert [(one.who, one.stats) for one in job.actions(SavepointEnded)] == [("somebody", None), ("another", None)]
    assert not job.machine.copy_done(number, "/there", 20, job.now)


def test_it_is_refused_where_it_cannot_be() -> None:
    def refused(job: Job) -> str:
        job.machine.savepoint("somebody", "", job.now)
        [ended] = job.actions(SavepointEnded)
        assert (ended.checkpoint, ended.stats) == (0, None)
        return str(ended.reason)

    assert refused(Job(checkpoints=False).run()) == (
        "the job takes no checkpoints: give its Environment checkpoint=CheckpointConfig(...) "
        "(interval=None takes them on request only)"
    )
    job = Job().run()
    job.machine.cancel(job.now)
    job.actions()
    assert refused(job) == "the job is CANCELLING"


def test_a_savepoint_is_a_checkpoint_of_the_job_like_others() -> None:
    job = Job().run()
    number = wanted(job)
    job.machine.checkpoint("a third", job.now)
    job.ack(0, number)
    job.ack(1, number)
    [commit] = job.actions(Commit)
    job.commit(commit)
    assert [one.checkpoint for one in job.said(Complete)] == [number, number]
    job.restart()
    assert job.machine.durability.output.restored.manifest == job.disk[-1]
