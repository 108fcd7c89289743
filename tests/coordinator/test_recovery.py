"""The coordinator of a job that takes checkpoints and starts again after failures, driven by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from driving import LIMITS, PAUSE, SECOND, Job, S

from tailrace.coordinator.actions import (
    CheckpointEnded,
    CheckpointFailed,
    Claim,
    CloseLink,
    Commit,
    Delete,
    Kill,
    Launch,
    MarkPublished,
    MarkSwept,
    Restarting,
    Send,
    StatusChanged,
    Sweep,
    WasPublished,
)
from tailrace.coordinator.job.failures import storage_failure
from tailrace.coordinator.job.restarts import Fixed
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.errors import CheckpointsRemoved
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Leave,
    OperatorEvent,
    Progress,
    Publish,
    Published,
    Settled,
    Start,
    SubtasksFinished,
    Welcome,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Transaction, Trigger
from tailrace.state.manifest import Manifest, Prepared, StateFile, decode_manifest
from tailrace.state.paths import published_mark

# Checkpoints: the good course.


def test_a_checkpoint_from_its_trigger_to_its_publication() -> None:
    job = Job(interval=10 * SECOND).run()
    job.wait(9)
    assert job.actions() == []
    job.wait(1)
    assert job.sent() == [(0, Trigger(CutRequest(1))), (1, Trigger(CutRequest(1)))]
    job.ack(1, 1, b"b")
    assert job.actions() == []
    job.ack(0, 1, b"a")
    [commit] = job.actions()
    assert (commit.checkpoint, commit.incarnation, commit.after) == (1, 1, 0)
    manifest = decode_manifest(commit.data, "it")
    assert [one.data for one in manifest.prepared] == [b"a", b"b"]
    job.commit(commit)
    ended, *sent = job.actions()
    assert isinstance(ended, CheckpointEnded) and (ended.stats.id, ended.reason) == (1, None)
    publish = Publish([("sink", [b"a", b"b"])], 1)
    assert sent == [Send(0, 1, Complete(1, 0)), Send(1, 1, Complete(1, 0)), Send(0, 1, publish)]
    job.says(0, Published(1))
    assert job.actions() == [MarkPublished("1/1.manifest"), WasPublished()]
    assert job.machine.durability.output.carried_output() == []


def test_workers_hear_with_a_checkpoint_up_to_which_one_all_output_is_visible() -> None:
    """What a lost worker has left is removed by that: nothing goes that may still be published."""
    job, received = Job().run(), []
    for number in range(1, 5):
        job.trigger()
        job.ack(0, number, b"of %d" % number)
        job.ack(1, number)
        job.commit()
        received += [one.visible for one in job.said(Complete)[:1]]
        for published in [1, 2] if number == 3 else []:
            job.says(0, Published(published))
    assert received == [0, 0, 0, 2]


def test_a_checkpoint_that_is_not_kept_any_more_goes_when_its_output_is_marked() -> None:
    """Until then a start from it would request that output. The next commit may take long."""
    job = Job(keep=1).run()
    for number in (1, 2):
        job.trigger()
        job.ack(0, number, *([b"a"] if number == 1 else []))
        job.ack(1, number)
        job.commit()
    assert job.actions(Delete) == []
    job.says(0, Published(1))
    job.actions()
    job.machine.mark_done("1/1.manifest", job.now)
    [delete] = job.actions(Delete)
    assert {"1/1.manifest", "1/1.published"} <= set(delete.names)


def test_what_a_complete_checkpoint_has_is_not_published_again_with_a_later_one() -> None:
    """Two checkpoints are under way. At its cut for the second a sink does not know yet that the first is complete, and
    prepares again what it had for that. The coordinator knows, and has only what is new published with the second, also
    where that is the last of the job."""
    job = Job(max_concurrent=2).run()
    first, second = job.trigger(), job.trigger()
    job.ack(0, first, b"a")
    job.ack(1, first)
    job.says(
        0, Ack(second, "1/chk-2/w0-1.state", 10, prepared=[Transaction("sink", b"a", 1), Transaction("sink", b"b", 2)])
    )
    job.says(1, Ack(second, "1/chk-2/w1-1.state", 10))
    job.commit()
    message = job.actions()
    assert [a.message for a in message if isinstance(a, Send)][2:] == [Publish([("sink", [b"a"])], 1)]
    job.commit(message[-1])
    assert [one.data for one in job.disk[-1].prepared] == [b"a", b"b"], "a is not known to be visible"
    assert job.sent(Publish) == []
    job.says(0, Published(1))
    assert job.sent(Publish) == [(0, Publish([("sink", [b"b"])], 2))]


def test_what_an_aborted_checkpoint_had_is_published_with_the_next_one() -> None:
    job = Job(max_concurrent=2).run()
    first, second = job.trigger(), job.trigger()
    job.says(1, Declined(first, "full"))
    job.says(
        0, Ack(second, "1/chk-2/w0-1.state", 10, prepared=[Transaction("sink", b"a", 1), Transaction("sink", b"b", 2)])
    )
    job.says(1, Ack(second, "1/chk-2/w1-1.state", 10))
    job.commit()
    assert job.sent(Publish) == [(0, Publish([("sink", [b"a", b"b"])], 2))]


def test_a_manifest_whose_output_is_visible_is_marked_whichever_checkpoint_it_was_published_with() -> None:
    """The second checkpoint has nothing new for its sinks, and in its manifest what the first one prepared, which was not
    visible when the manifest was made. Once it is, both are marked: a restart from the second would request it again."""
    job = Job(keep=2).run()
    job.complete(b"a")
    job.complete()
    assert [one.data for one in job.disk[-1].prepared] == [b"a"] and job.actions(MarkPublished) == []
    job.says(0, Published(1))
    assert [action.path for action in job.actions(MarkPublished)] == ["1/1.manifest", "1/2.manifest"]


def test_sinks_forget_what_they_published_once_every_manifest_that_has_it_is_marked() -> None:
    """And not before a later commit has succeeded. Until then another driver may have read the manifest before its mark,
    and will have it published again."""
    job = Job(keep=2).run()
    job.complete(b"a")
    job.complete()
    job.says(0, Published(1))
    job.machine.mark_done("1/2.manifest", job.now)
    job.complete()
    assert job.sent(Settled) == [], "who starts from the first one asks for it"
    job.machine.mark_done("1/1.manifest", job.now)
    assert job.sent(Settled) == [], "there may be another driver"
    number = job.trigger()
    job.ack(0, number, b"b")
    job.ack(1, number)
    assert job.sent(Settled) == []
    job.machine.commit_done(number, "1/4.manifest", "url", job.now)
    assert job.sent(Settled) == [(0, Settled(3))]


def test_what_a_later_manifest_carries_along_is_not_forgotten_before_that_one_is_marked() -> None:
    """The second manifest has what the first one prepared, which was not visible yet. The first is marked, and the second is
    not when later checkpoints are complete: its own output is still on its way, or its mark could not be made. Who starts
    from it requests both, and a reader may have taken what is visible."""
    for slow in (True, False):
        job = Job(keep=4).run()
        job.complete(b"a")
        job.complete(b"b")
        assert [one.data for one in job.disk[-1].prepared] == [b"a", b"b"]
        job.says(0, Published(1))
        job.machine.mark_done("1/1.manifest", job.now)
        if not slow:
            job.says(0, Published(2))
            job.machine.not_marked("1/2.manifest", "full", job.now)
        for prepared in ([b"c"], []):
            job.complete(*prepared)
            assert job.sent(Settled) == [], "the second manifest has a, and is not marked"
        job.machine.not_marked("1/2.manifest", "full", job.now)
        job.says(0, Published(2))
        job.says(0, Published(3))
        marks = [action.path for action in job.actions(MarkPublished)]
        assert "1/2.manifest" in marks, "it is asked for again"
        for path in marks:
            job.machine.mark_done(path, job.now)
        job.complete()
        assert job.sent(Settled) == [(0, Settled(4))]


def test_what_was_restored_is_not_forgotten_while_an_older_manifest_has_it_and_is_not_marked() -> None:
    """Two manifests have the same output when the job is restarted. It is published again from the newer one, and only that
    one can be marked. The older one is kept, and a start from it requests the same output."""
    job = Job(keep=4).run()
    job.complete(b"a")
    job.complete()
    job.restart()
    job.all_say(Deployed())
    job.says(0, Published(0))
    job.machine.mark_done("1/2.manifest", job.now)
    job.machine.not_marked("1/1.manifest", "full", job.now)
    job.complete()
    assert job.sent(Settled) == []
    job.machine.mark_done("1/1.manifest", job.now)
    job.complete()
    assert [settled.restored for _, settled in job.sent(Settled)] == [True]


def test_what_the_restored_checkpoint_had_is_forgotten_when_that_one_is_marked() -> None:
    job = Job().run()
    job.complete(b"a")
    job.restart()
    job.all_say(Deployed())
    job.says(0, Published(0))
    job.machine.mark_done("1/1.manifest", job.now)
    assert job.sent(Settled) == []
    job.complete()
    assert job.sent(Settled) == [(0, Settled(1, True))]


def test_a_checkpoint_of_another_run_is_marked_when_its_output_is_visible() -> None:
    """The checkpoint is forgotten then, but not by a start in a copy of the folder: who goes on in the original knows no
    marks in the copy, and requests all of it again."""
    for folder, path, root in (
        ("here", "7/4.manifest", "here"),
        ("there", "", "there"),
        ("here", "7/4.manifest", "there"),
    ):
        origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root=root)
        job = Job(start_from=origin, folder=folder, path=path)
        job.machine.start(job.now)
        job.hello(0)
        job.hello(1)
        job.all_say(Deployed())
        job.says(0, Published(0))
        marks = job.actions(MarkPublished)
        assert marks == ([MarkPublished(path)] if path else [])
        job.machine.mark_done(path, job.now)
        job.complete()
        assert job.sent(Settled) == ([(0, Settled(0, True))] if root == "here" else [])


def test_checkpoints_before_the_one_to_start_from_are_marked_with_it_and_nothing_is_forgotten_before() -> None:
    """A run was killed while its output was on its way: two of its checkpoints have the same output, and neither is marked.
    A start from the newer one publishes all of it. The older one can still be started from: its output is visible as well,
    and until that is written down nobody may forget that it was published."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root="here")
    job = Job(start_from=origin, folder="here", path="7/2.manifest", before=["7/1.manifest"])
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    assert job.actions(MarkPublished) == []
    job.says(0, Published(0))
    assert [mark.path for mark in job.actions(MarkPublished)] == ["7/1.manifest", "7/2.manifest"]
    job.machine.mark_done("7/2.manifest", job.now)
    job.machine.not_marked("7/1.manifest", "full", job.now)
    number = job.trigger()
    job.ack(0, number)
    job.ack(1, number)
    job.commit()
    message = job.actions()
    assert [one.message for one in message if isinstance(one, Send) and isinstance(one.message, Settled)] == []
    assert MarkPublished("7/1.manifest") in message, "it is asked for again"
    job.machine.mark_done("7/1.manifest", job.now)
    job.complete()
    assert [settled.restored for _, settled in job.sent(Settled)] == [True]


def test_the_last_checkpoint_waits_for_the_mark_of_the_one_that_the_job_started_from() -> None:
    """A job whose input had ended was killed when all that it had left was to publish. Where it goes on, all subtasks
    end at once, and the last checkpoint may be there before the mark. Behind it comes no other one: sinks would never
    be notified that no job requests again what was published, and the traces of that would stay among the output."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root="here")
    for marked in ("at once", "while it waits", "before it waits"):
        job = Job(start_from=origin, folder="here", path="7/4.manifest")
        job.machine.start(job.now)
        job.hello(0)
        job.hello(1)
        job.all_say(Deployed())
        job.says(0, Published(0))
        if marked == "before it waits":
            job.machine.not_marked("7/4.manifest", "full", job.now)
        job.all_say(SubtasksFinished([]))
        [number] = {trigger.checkpoint for trigger in job.said(Trigger)}
        job.ack(0, number)
        job.ack(1, number)
        again = [MarkPublished("7/4.manifest")]
        assert job.actions((Commit, MarkPublished)) == (again if marked == "before it waits" else [])
        if marked == "while it waits":  # what could not be written is written when the storage is tried again
            for _ in range(2):
                job.machine.not_marked("7/4.manifest", "full", job.now)
                assert job.actions((Commit, MarkPublished)) == []
                assert job.machine.durability.storage.reason == "7/4.manifest could not be marked as published: full"
                job.wait(LIMITS.retry_most / SECOND)
                assert job.actions((Commit, MarkPublished)) == again
        job.machine.mark_done("7/4.manifest", job.now)
        job.commit()
        assert job.sent(Settled) == [(0, Settled(0, True))]
        assert job.status is S.FINISHING
        assert job.machine.durability.storage.since is None


def test_a_storage_that_does_not_answer_for_a_mark_at_the_end_is_noticed() -> None:
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root="here")
    job = Job(start_from=origin, folder="here", path="7/4.manifest")
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    job.says(0, Published(0))
    job.all_say(SubtasksFinished([]))
    [number] = {trigger.checkpoint for trigger in job.said(Trigger)}
    job.ack(0, number)
    job.ack(1, number)
    job.wait(LIMITS.patience / SECOND - 1)
    assert job.status is S.RUNNING
    job.wait(2)
    assert job.status is S.FAILING
    assert "the storage of checkpoints has not answered for 600 s" in str(job.machine.cause)


def test_a_checkpoint_is_not_marked_by_a_start_that_has_given_up_some_of_its_output() -> None:
    """The dataflow has no sink that could publish it, and the user allows that. It stays under cover, and a later start
    from the same checkpoint, with the sink, publishes it: no mark claims that this was done, and nothing is
    forgotten."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a"), Prepared("gone", b"b")])
    job = Job(start_from=origin, path="7/2.manifest", before=["7/1.manifest"])
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    job.says(0, Published(0, skipped=True))
    assert job.status is S.STARTING
    job.says(0, Published(0, part=1))
    assert job.status is S.RUNNING and job.actions(MarkPublished) == []
    for _ in range(3):
        job.complete()
        message = job.actions()
        assert [one for one in message if isinstance(one, MarkPublished)] == []
        found = [one.message for one in message if isinstance(one, Send)]
        assert not any(one.restored for one in found if isinstance(one, Settled))


def test_a_restart_does_not_ask_again_for_what_another_start_has_published() -> None:
    """Two jobs were started from one checkpoint that was not marked. The other one has marked it, completed checkpoints
    and forgotten what it had published, and a reader has taken the files. This one fails before its first checkpoint: a
    second request would find them lost. Where checkpoints before it are not marked, the traces that they need stay."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root="here")
    for before in ((), ("7/1.manifest",)):
        job = Job(start_from=origin, folder="here", path="7/2.manifest", before=before)
        job.machine.start(job.now)
        job.hello(0)
        job.hello(1)
        job.all_say(Deployed())
        job.says(0, Published(0))
        job.says(0, Failed(FailureKind.USER, "it broke"))
        job.machine.origin_published()
        job.claimed(2)
        job.all_say(WasReset(1))
        job.wait(PAUSE)
        job.actions()
        job.all_say(Deployed())
        assert job.sent(Publish) == [(0, Publish([], 0, ["run"] if before else ["before", "run"], folder="here"))]


def test_traces_of_the_origin_go_though_the_worker_is_lost_that_was_to_remove_them() -> None:
    """Only that worker knew what it had published. So what the run of the origin has left is removed as behind a restart, by
    whichever worker, and until that is reported the next start would look for it, too."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root="here")
    job = Job(start_from=origin, folder="here", path="7/1.manifest")
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    job.says(0, Published(0))
    job.machine.mark_done("7/1.manifest", job.now)
    job.actions()
    job.complete()
    found = job.actions()
    messages = [one.message for one in found if isinstance(one, Send) and isinstance(one.message, Settled | Publish)]
    assert messages == [Settled(0, True), Publish([], 42, ["before"])], "what was settled is not kept"
    assert MarkSwept() not in found
    job.restart()
    job.all_say(Deployed())
    assert [m.recover for _, m in job.sent(Publish)] == [["before", "run"]]
    assert job.actions(MarkSwept) == []
    job.says(0, Published(0))
    assert job.actions(MarkSwept) == [MarkSwept()]
    job.complete()
    assert job.sent(Publish) == [], "once"


def test_what_a_later_checkpoint_of_the_same_run_may_ask_for_is_not_forgotten() -> None:
    """The user goes back to an older checkpoint than the newest, and may start from that one after all: it has the same
    output, and is not marked, however many checkpoints the job in between completes."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")])
    job = Job(start_from=origin, path="7/1.manifest", spare_origin=True)
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    job.says(0, Published(0))
    assert job.actions(MarkSwept) == [], "the next start looks for what is left"
    job.machine.mark_done("7/1.manifest", job.now)
    for _ in range(3):
        job.complete()
        assert [settled for _, settled in job.sent(Settled) if settled.restored] == []


def test_a_restart_leaves_traces_that_another_kept_checkpoint_needs() -> None:
    """The first checkpoint's output is visible, and its mark could not be made. The job is restarted from the second
    one, which has other output. To remove what the run has left would remove the trace of what the first one
    requests."""
    for failed in (True, False):
        job = Job(keep=3).run()
        job.complete(b"a")
        job.says(0, Published(1))
        if failed:
            job.machine.not_marked("1/1.manifest", "full", job.now)
        else:
            job.machine.mark_done("1/1.manifest", job.now)
        job.complete(b"b")
        job.restart()
        job.actions()
        job.all_say(Deployed())
        assert [publish.recover for _, publish in job.sent(Publish)] == [[] if failed else ["run"]]


def test_a_commit_says_which_one_of_its_incarnation_was_before_it() -> None:
    """A manifest has the number of its checkpoint. The storage fences by what comes behind what, so it must know the
    numbers that were left out."""
    job = Job().run()
    job.complete()
    number = job.trigger()
    job.says(0, Declined(number, "full"))
    number = job.trigger()
    job.ack(0, number)
    job.ack(1, number)
    [commit] = job.actions(Commit)
    assert (commit.checkpoint, commit.incarnation, commit.after) == (3, 1, 1)
    job.commit(commit)
    assert [action.names for action in job.actions(Delete)] == [
        ["1/1.manifest", "1/2.manifest", "1/chk-1/w0-1.state", "1/chk-1/w1-1.state"]
    ], "of 2, there was a pointer"
    job.restart()
    job.all_say(Deployed())
    job.says(0, Published(0))
    job.actions()
    number = job.trigger()
    job.ack(0, number)
    job.ack(1, number)
    [commit] = job.actions(Commit)
    assert (commit.checkpoint, commit.incarnation, commit.after) == (4, 2, 0)


def test_nothing_is_published_that_was_not_committed() -> None:
    job = Job().run()
    number = job.trigger()
    job.ack(0, number, b"a")
    job.ack(1, number)
    assert job.sent(Publish) == []


def test_what_was_not_published_goes_into_the_next_manifest_and_is_reported_once() -> None:
    job = Job().run()
    job.complete(b"a")
    job.actions()
    number = job.trigger()
    job.ack(0, number, b"b")
    job.ack(1, number)
    job.commit()
    assert [one.data for one in job.disk[-1].prepared] == [b"a", b"b"]
    assert job.sent(Publish) == [], "its sink gets it in order"
    job.says(0, Published(1))
    assert job.sent(Publish) == [(0, Publish([("sink", [b"b"])], 2))]
    job.says(0, Published(2))
    assert job.machine.durability.output.carried_output() == []


def test_who_asked_is_told_and_two_who_ask_at_once_share_one() -> None:
    job = Job().run()
    job.machine.checkpoint("one", job.now)
    job.machine.checkpoint("two", job.now)
    [(_, trigger), _] = job.sent(Trigger)
    job.ack(0, trigger.checkpoint)
    job.ack(1, trigger.checkpoint)
    job.commit()
    actions = job.actions()
    assert [a.waiting for a in actions if isinstance(a, CheckpointEnded)] == [("one",)]
    assert [type(a.message) for a in actions if isinstance(a, Send)].count(Complete) == 2
    job.machine.tick(job.now)
    assert [m for _, m in job.sent(Trigger)] == [Trigger(CutRequest(2)), Trigger(CutRequest(2))]


def test_a_job_without_checkpoints_refuses() -> None:
    job = Job(checkpoints=False).run()
    job.machine.checkpoint("somebody", job.now)
    [ended] = job.actions()
    assert ended.waiting == ("somebody",) and "takes no checkpoints" in ended.reason


def test_old_files_are_deleted_when_a_newer_checkpoint_is_complete() -> None:
    job = Job(keep=1).run()
    job.complete()
    assert job.actions(Delete) == []
    job.complete()
    assert job.actions(Delete) == [Delete(["1/1.manifest", "1/chk-1/w0-1.state", "1/chk-1/w1-1.state"])]


def test_one_that_builds_on_what_is_deleted_is_aborted_and_is_no_failure() -> None:
    # A marker may overtake, over another worker, the word that a newer checkpoint is complete.
    job = Job(keep=1, tolerated_failures=0).run()
    job.complete()
    job.complete()
    job.actions()
    number = job.trigger()
    job.ack(0, number, older=("1/chk-2/w0-1.state",))
    job.ack(1, number, older=("1/chk-1/w1-1.state",))
    actions = job.actions()
    [ended] = [a for a in actions if isinstance(a, CheckpointEnded)]
    assert ended.reason == "the file of worker 1 refers to 1/chk-1/w1-1.state, which is deleted"
    assert job.status is S.RUNNING and not any(isinstance(a, Commit) for a in actions)


# Checkpoints that come to nothing.


def test_a_worker_that_declines_aborts_it_everywhere() -> None:
    job = Job().run()
    number = job.trigger()
    job.ack(0, number)
    job.says(1, Declined(number, "the disk is full"))
    ended, *sent, failed = job.actions()
    assert ended == CheckpointEnded(number, ("somebody",), None, "worker 1: the disk is full")
    then = "the job goes on, and the next one is taken as ever; 9 more may fail in a row (tolerated_failures)"
    assert failed == CheckpointFailed(number, "worker 1: the disk is full", 1, then)
    file = f"1/chk-{number}/w{{}}-1.state".format
    assert sent == [Send(0, 1, Abort(number)), Send(1, 1, Abort(number)), Delete([file(0)])]
    job.ack(1, number)
    job.says(1, Declined(number, "again"))
    assert job.actions() == [Delete([file(1)])], "what a worker has acked is not its own any more"


def test_one_that_takes_too_long_is_aborted() -> None:
    job = Job(timeout=20 * SECOND).run()
    number = job.trigger()
    job.wait(19)
    assert job.actions() == []
    job.wait(1)
    [ended] = job.actions(CheckpointEnded)
    assert (ended.checkpoint, ended.reason) == (number, "it took longer than its timeout of 20 s")


def test_one_that_is_overtaken_is_aborted_and_that_is_no_failure() -> None:
    job = Job(max_concurrent=2, tolerated_failures=0).run()
    job.trigger()
    second = job.trigger()
    job.ack(0, second)
    job.ack(1, second)
    job.commit()
    actions = job.actions()
    ended = [(a.checkpoint, a.reason) for a in actions if isinstance(a, CheckpointEnded)]
    assert ended == [(1, "the newer checkpoint 2 is complete"), (2, None)]
    assert [a.message for a in actions if isinstance(a, Send) and a.slot == 1] == [Abort(1), Complete(2, 0)]
    assert job.status is S.RUNNING


def test_too_many_failures_in_a_row_fail_the_job() -> None:
    job = Job(tolerated_failures=2).run()
    for _ in range(2):
        job.says(0, Declined(job.trigger(), "full"))
    job.actions()
    job.complete()
    for _ in range(2):
        job.says(0, Declined(job.trigger(), "full"))
        assert job.status is S.RUNNING
    job.says(0, Declined(job.trigger(), "full"))
    assert job.status is S.RESTARTING
    cause = job.actions(Restarting)[-1].cause
    assert cause.kind == "checkpoint"
    assert cause.message == "checkpoint 6 failed, more than 2 in a row (tolerated_failures): worker 0: full"


# Restarts: the good course.


def test_a_restart_from_the_failure_to_running_again() -> None:
    job = Job().run()
    job.complete(b"a")
    job.says(0, Published(1))
    job.actions()
    job.says(1, Failed(FailureKind.USER, "it broke", operator="map"))
    changed, restarting, *rest = job.actions()
    assert changed == StatusChanged(S.RESTARTING)
    assert isinstance(restarting, Restarting) and (restarting.attempt, restarting.cause.operator) == (1, "map")
    assert rest == [Send(0, 1, Reset(1)), Send(1, 1, Reset(1)), Claim()]
    job.claimed(2)
    assert job.actions() == [
        Sweep(2, sorted(["1/1.manifest", "1/1.published", "1/chk-1/w0-1.state", "1/chk-1/w1-1.state"]))
    ]
    job.all_say(WasReset(1))
    assert job.actions() == [], "not before its pause is over"
    job.wait(PAUSE)
    [(_, deploy), (_, other)] = job.sent()
    assert deploy == other and (deploy.incarnation, deploy.attempt, deploy.own, deploy.folder) == (2, 1, True, "")
    assert decode_manifest(deploy.manifest, "it") == msgspec.structs.replace(job.disk[-1], prepared=[])
    job.says(0, Deployed())
    assert job.actions() == []
    job.says(1, Deployed())
    # What the checkpoint had prepared may not be published, and what came after it never will be.
    assert job.sent() == [(0, Publish([("sink", [b"a"])], 0, ["run"]))]
    assert job.status is S.RESTARTING
    job.says(0, Published(0))
    assert job.actions() == [
        MarkPublished("1/1.manifest"),
        WasPublished(),
        StatusChanged(S.RUNNING),
        Send(0, 1, Start()),
        Send(1, 1, Start()),
    ]
    assert job.trigger() == 2, "numbers go on"


def test_a_restart_before_the_first_checkpoint_starts_from_nothing() -> None:
    job = Job().run().restart()
    [(_, deploy), _] = job.sent(Deploy)
    assert (deploy.manifest, deploy.own, deploy.incarnation) == (b"", False, 2)
    job.all_say(Deployed())
    assert job.sent() == [(0, Publish([], 0, ["run"]))], "what was written and not committed goes"


@pytest.mark.parametrize(
    ("name", "folder", "root", "ours"),
    [
        ("job", "here", "here", True),
        ("job", "elsewhere", "elsewhere", False),
        ("a", "here", "here", False),
        ("job", "here", "where it was copied from", False),
    ],
)
def test_a_job_that_starts_from_a_checkpoint_publishes_what_it_holds_before_anything_else(
    name: str, folder: str, root: str, ours: bool
) -> None:
    # What the run before left unpublished goes, where that run cannot go on; another job may live, and keeps its own. So
    # may the original of a folder that was copied.
    origin = Manifest(name, "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")], root=root)
    job = Job(start_from=origin, folder=folder)
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    [(_, deploy), _] = job.sent(Deploy)
    assert decode_manifest(deploy.manifest, "it") == msgspec.structs.replace(origin, prepared=[])
    assert (deploy.own, deploy.folder) == (False, folder)
    job.all_say(Deployed())
    assert job.sent() == [(0, Publish([("sink", [b"a"])], 0, ["before"] if ours else [], folder=folder))]
    job.says(0, Published(0))
    assert job.status is S.RUNNING
    assert job.trigger() == 42
    job.restart()
    [(_, deploy), _] = job.sent(Deploy)
    assert decode_manifest(deploy.manifest, "it").checkpoint == 41, "there is no newer one"
    job.all_say(Deployed())
    assert [m.recover for _, m in job.sent(Publish)] == [["before", "run"] if ours else ["run"]]


def test_a_start_from_an_older_checkpoint_leaves_what_the_later_ones_need() -> None:
    """A later checkpoint of that run has prepared what is not published. To go back removes nothing of it, at this attempt
    or at another one."""
    origin = Manifest("job", "before", 7, 41, 0, 128, 2, [], prepared=[Prepared("sink", b"a")])
    job = Job(start_from=origin, folder="here", spare_origin=True)
    job.machine.start(job.now)
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    assert [m.recover for _, m in job.sent(Publish)] == [[]]
    job.says(0, Published(0))
    job.restart()
    job.all_say(Deployed())
    assert [m.recover for _, m in job.sent(Publish)] == [["run"]]


def test_without_checkpoints_the_job_starts_anew_under_another_incarnation() -> None:
    job = Job(checkpoints=False).run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.actions(Claim) == []
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    [(_, deploy), _] = job.sent(Deploy)
    assert (deploy.incarnation, deploy.manifest) == (2, b"")


def test_what_was_under_way_is_over_and_who_waits_is_told() -> None:
    job = Job().run()
    number = job.trigger()
    job.machine.checkpoint("another", job.now)
    job.says(0, Failed(FailureKind.USER, "it broke"))
    [ended] = job.actions(CheckpointEnded)
    assert ended == CheckpointEnded(number, ("somebody",), None, "the job was restarted")
    job.ack(0, number)
    job.claimed()
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    job.all_say(Deployed())
    job.says(0, Published(0))
    job.machine.tick(job.now)
    assert [m for _, m in job.sent(Trigger)] == 2 * [Trigger(CutRequest(number + 1))], (
        "and who asked too late gets the next one"
    )


# Lost workers.


def test_a_lost_worker_is_started_again_and_the_other_one_stays() -> None:
    job = Job().run()
    job.lose(1)
    assert job.actions((Launch, Kill, Send)) == [Send(0, 1, Reset(1)), Kill(1, 1), Launch(1, 2)]
    job.claimed()
    job.says(0, WasReset(1))
    job.ended(1, "killed", launch=1)
    assert job.hello(1) == 2
    job.wait(PAUSE)
    assert [(a.slot, a.epoch) for a in job.actions(Send) if isinstance(a.message, Deploy)] == [(0, 1), (1, 2)]
    assert job.machine.attempts.restarts == 1


def test_the_hello_of_an_old_start_is_not_wanted() -> None:
    job = Job().run()
    job.lose(1)
    assert job.hello(1, launch=1) is None
    assert job.hello(1, launch=2) == 2


def test_a_worker_that_was_to_come_is_not_started_twice() -> None:
    job = Job()
    job.machine.start(job.now)
    job.hello(0)
    job.actions()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.actions((Launch, Kill)) == []
    assert job.actions(Claim) == [], "nothing was deployed under the incarnation that we hold"


@pytest.mark.parametrize("how", ["its link", "its Spark job", "no sign of life"])
def test_a_worker_that_is_lost_while_it_drops_what_it_runs_does_not_count_again(how: str) -> None:
    # One worker dies; another one notices first.
    job = Job(restarts=Fixed(1, PAUSE * SECOND)).run()
    if how == "no sign of life":
        job.now += LIMITS.lease - SECOND
        job.machine.heartbeat(0, 10, job.now)
    job.says(0, Failed(FailureKind.PEER, "lost worker 1", peer=1))
    job.actions()
    if how == "its link":
        job.lose(1)
    elif how == "its Spark job":
        job.ended(1, "killed")
    else:
        job.now += SECOND
        job.machine.tick(job.now)
    assert (job.status, job.machine.attempts.restarts) == (S.RESTARTING, 1)
    assert job.actions(Launch) == [Launch(1, 2)]
    job.ended(1, "killed", launch=1)
    job.says(0, WasReset(1))
    job.claimed()
    job.hello(1)
    job.wait(PAUSE)
    assert len(job.sent(Deploy)) == 2


def test_a_worker_that_is_lost_after_it_came_back_counts() -> None:
    job = Job(restarts=Fixed(1, PAUSE * SECOND)).run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    job.says(1, WasReset(1))
    job.lose(1)
    assert job.status is S.FAILING


def test_who_does_not_drop_what_it_runs_in_time_is_replaced() -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    job.says(0, WasReset(1))
    job.actions()
    job.wait(2)
    assert job.actions() == []
    job.wait(1)
    assert job.actions() == [CloseLink(1, 1), Kill(1, 1), Launch(1, 2)]
    job.wait(1)
    assert (job.actions(), job.machine.attempts.restarts) == ([], 1)
    assert job.hello(1) == 2


def test_a_worker_that_never_comes_back_ends_the_job() -> None:
    job = Job().run()
    job.lose(1)
    job.claimed()
    job.says(0, WasReset(1))
    job.wait(PAUSE + 59)
    assert job.status is S.RESTARTING
    job.wait(1)
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.kind == "slots"


# What belongs to an attempt that is over.


@pytest.mark.parametrize(
    "message",
    [
        Failed(FailureKind.PEER, "lost worker 0", peer=0),
        Deployed(),
        SubtasksFinished([]),
        Progress([], 5),
        Published(0),
        Declined(1, "late"),
        WasReset(0),
        OperatorEvent(0, 1, 0, b""),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_a_worker_says_before_it_has_dropped_what_it_ran_does_not_count(message: Any) -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    job.actions()
    job.says(1, message)
    assert (job.actions(), job.machine.attempts.restarts, job.status) == ([], 1, S.RESTARTING)
    assert not job.machine.roster.slots[1].clean


def test_a_second_failure_resets_again_and_only_the_newest_answer_counts() -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    job.says(0, WasReset(1))
    job.says(0, Failed(FailureKind.USER, "it broke again"))
    assert job.machine.attempts.restarts == 2
    assert job.sent(Reset) == [(0, Reset(1)), (1, Reset(1)), (0, Reset(2)), (1, Reset(2))]
    job.claimed()
    job.all_say(WasReset(1))
    assert not any(slot.clean for slot in job.machine.roster.slots)
    job.all_say(WasReset(2))
    job.wait(PAUSE)
    assert len(job.sent(Deploy)) == 2


def test_a_failure_while_the_state_is_read_restarts_again() -> None:
    job = Job().run()
    job.complete()
    job.restart()
    job.says(0, Deployed())
    job.actions()
    job.says(1, Failed(FailureKind.STORE, "cannot read"))
    assert job.machine.attempts.restarts == 2 and job.actions(Claim) == []
    job.all_say(WasReset(2))
    job.wait(PAUSE)
    assert job.actions((Claim, Send)) == [Claim()], "the storage gets the pause too"
    job.claimed(3)
    assert [m.incarnation for _, m in job.sent(Deploy)] == [3, 3]


def test_the_strategy_decides_how_often() -> None:
    job = Job(restarts=Fixed(2, 0)).run()
    for _ in range(2):
        job.restart()
        job.all_say(Deployed())
        job.says(0, Published(0))
        assert job.status is S.RUNNING
    job.says(1, Failed(FailureKind.USER, "once too often"))
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.message == "once too often"


@pytest.mark.parametrize("kind", [FailureKind.IMPORT, FailureKind.STATE, FailureKind.INTERNAL])
def test_what_a_restart_would_not_mend_ends_the_job(kind: str) -> None:
    job = Job().run()
    job.says(0, Failed(kind, "it is so"))
    assert job.status is S.FAILING


# The storage.


def test_a_commit_that_is_in_doubt_at_a_restart_is_settled_by_the_claim() -> None:
    job = Job().run()
    commit = job.acked()
    number = commit.checkpoint
    job.machine.not_committed(number, "OSError: timed out", FailureKind.STORE, job.now)
    assert job.status is S.RUNNING and job.actions(Delete) == [], "perhaps it was written"
    job.says(0, Failed(FailureKind.USER, "it broke"))
    # It was written, as the new incarnation finds out.
    job.disk.append(decode_manifest(commit.data, "it"))
    job.all_say(WasReset(1))
    assert job.actions((Claim, Commit, Delete)) == [Claim()]
    job.wait(PAUSE)
    assert job.actions((Claim, Commit, Delete)) == [], "nobody asks for it any more under the old incarnation"
    job.claimed()
    actions = job.actions()
    assert [a.needed for a in actions if isinstance(a, Sweep)] == [
        ["1/1.manifest", "1/1.published", "1/chk-1/w0-1.state", "1/chk-1/w1-1.state"]
    ]
    deploy = next(a.message for a in actions if isinstance(a, Send))
    assert deploy.own and decode_manifest(deploy.manifest, "it").checkpoint == job.disk[-1].checkpoint == number


def test_a_commit_whose_job_was_restarted_meanwhile_is_found_by_the_claim() -> None:
    job = Job().run()
    number = job.trigger()
    job.ack(0, number, b"a")
    job.ack(1, number)
    [commit] = job.actions(Commit)
    job.lose(1)
    job.actions()
    job.commit(commit)
    assert job.actions() == [], "nobody waits for it any more"
    job.claimed()
    job.says(0, WasReset(1))
    job.hello(1)
    job.wait(PAUSE)
    job.all_say(Deployed())
    assert job.sent(Publish) == [(0, Publish([("sink", [b"a"])], 0, ["run"]))]
    assert job.machine.checkpoints.last == 0


def test_a_job_that_was_overtaken_by_another_start_ends() -> None:
    job = Job().run()
    number = job.trigger()
    job.ack(0, number)
    job.ack(1, number)
    job.machine.not_committed(number, "sealed by 2", FailureKind.FENCED, job.now)
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.kind == "fenced"


def test_a_job_whose_checkpoints_somebody_has_removed_ends() -> None:
    """A restart would find nothing, begin anew, and publish everything once more."""
    job = Job().run()
    number = job.trigger()
    job.ack(0, number)
    job.ack(1, number)
    job.machine.not_committed(number, "the claim is gone", storage_failure(CheckpointsRemoved("gone")), job.now)
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.kind == "state"


def test_a_manifest_is_made_only_where_every_file_is_that_it_names() -> None:
    job = Job().run()
    number = job.trigger()
    job.ack(0, number)
    job.actions()
    job.ack(1, number)
    [commit] = job.actions(Commit)
    made = decode_manifest(commit.data, "it")
    assert commit.needs == [*(file.name for file in made.files), *made.older] != []


def test_what_runs_have_left_that_were_killed_is_removed_once() -> None:
    """The killed runs had no checkpoint: only claims name them, and what their sinks had under cover stayed for ever."""
    job = Job(abandoned=["one", "two"])
    job.machine.start(job.now)
    assert job.actions(Sweep) == [Sweep(1, [])]
    job.hello(0)
    job.hello(1)
    job.all_say(Deployed())
    assert job.sent(Publish) == [(0, Publish([], 0, ["one", "two"]))]
    job.restart()
    job.actions()
    job.all_say(Deployed())
    assert job.sent(Publish) == [(0, Publish([], 0, ["one", "run", "two"]))], "it was not done before the restart"
    assert job.actions(MarkSwept) == []
    job.says(0, Published(0))
    assert job.status is S.RUNNING and job.actions(MarkSwept) == [MarkSwept()]
    job.restart()
    job.all_say(Deployed())
    assert [m.recover for _, m in job.sent(Publish)] == [["run"]]
    job.says(0, Published(0))
    assert job.status is S.RUNNING and job.actions(MarkSwept) == []


def test_a_claim_that_finds_a_newer_run_ends_the_job() -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    theirs = Manifest("job", "another", 5, 9, 0, 128, 2, [StateFile(0, "x", 1)])
    job.machine.claim_done(6, theirs, "5/1.manifest", job.now)
    assert job.status is S.FAILING
    cause = job.machine.cause
    assert cause is not None and cause.kind == "fenced" and "run another" in cause.message


def test_a_claim_that_finds_an_older_run_passes_it_over() -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    older = Manifest("job", "another", 0, 9, 0, 128, 2, [])
    job.machine.claim_done(2, older, "0/1.manifest", job.now)
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    [(_, deploy), _] = job.sent(Deploy)
    assert deploy.manifest == b""


# The end.


def finished(job: Job) -> int:
    """All subtasks end, and the final checkpoint begins: its number."""
    job.all_say(SubtasksFinished([]))
    [(_, first), (_, second)] = job.sent(Trigger)
    assert first == second == Trigger(CutRequest(first.checkpoint, CutKind.FINAL))
    return int(first.checkpoint)


def test_the_last_checkpoint_publishes_and_only_then_the_job_is_finished() -> None:
    job = Job(interval=10 * SECOND).run()
    number = finished(job)
    job.wait(30)
    assert job.sent(Trigger) == [], "there is none after the last"
    job.ack(0, number, b"a")
    job.ack(1, number)
    job.commit()
    assert job.disk[-1].final and job.status is S.FINISHING
    assert [type(m) for _, m in job.sent()] == [Complete, Complete, Publish]
    job.says(0, Published(number))
    assert [type(m) for _, m in job.sent()] == [Leave, Leave]
    job.ended(0)
    job.ended(1)
    assert job.status is S.FINISHED


def test_where_the_last_one_has_nothing_to_publish_the_job_ends_with_it() -> None:
    job = Job().run()
    number = finished(job)
    job.ack(0, number)
    job.ack(1, number)
    job.commit()
    assert [type(m) for _, m in job.sent()] == [Complete, Complete, Leave, Leave]


def test_the_end_waits_for_every_publication() -> None:
    job = Job().run()
    job.complete(b"a")
    number = finished(job)
    job.ack(0, number, b"b")
    job.ack(1, number)
    job.commit()
    job.actions()
    job.says(0, Published(1))
    assert job.sent(Leave) == []
    job.says(0, Published(2))
    assert len(job.sent(Leave)) == 2


def test_a_last_checkpoint_that_is_aborted_is_taken_again() -> None:
    job = Job(timeout=20 * SECOND).run()
    number = finished(job)
    job.wait(20)
    assert [m for _, m in job.sent(Trigger)] == 2 * [Trigger(CutRequest(number + 1, CutKind.FINAL))]
    job.says(1, Declined(number + 1, "full"))
    assert [m for _, m in job.sent(Trigger)] == 2 * [Trigger(CutRequest(number + 2, CutKind.FINAL))]


def test_one_that_was_under_way_when_all_had_finished_comes_before_the_last() -> None:
    job = Job().run()
    first = job.trigger()
    last = finished(job)
    for number in (first, last):
        job.ack(0, number)
        job.ack(1, number)
    commits = job.actions(Commit)
    assert [c.checkpoint for c in commits] == [first]
    job.commit(commits[0])
    assert job.status is S.RUNNING
    job.commit()
    assert job.status is S.FINISHING


def test_a_failure_after_the_last_checkpoint_restarts_from_it_and_ends_again() -> None:
    job = Job().run()
    number = finished(job)
    job.ack(0, number, b"a")
    job.ack(1, number)
    job.commit()
    job.actions()
    job.says(0, Failed(FailureKind.USER, "publishing raised OSError"))
    assert job.status is S.RESTARTING
    job.claimed()
    job.all_say(WasReset(1))
    job.wait(PAUSE)
    job.all_say(Deployed())
    assert job.sent(Publish) == [(0, Publish([("sink", [b"a"])], 0, ["run"]))]
    job.says(0, Published(0))
    assert job.status is S.RUNNING
    again = finished(job)
    assert again == number + 1
    job.ack(0, again)
    job.ack(1, again)
    job.commit()
    assert len(job.sent(Leave)) == 2


# Cancelling, and refusing.


def test_a_job_may_be_cancelled_while_it_restarts() -> None:
    job = Job().run()
    number = job.trigger()
    job.lose(1)
    job.actions()
    job.machine.cancel(job.now)
    assert job.actions() == [StatusChanged(S.CANCELLING), Send(0, 1, Leave("the job was cancelled"))]
    assert job.hello(1) is None
    job.claimed()
    job.machine.claim_failed("too late to matter", job.now)
    job.machine.commit_done(number, "p", "u", job.now)
    assert job.sent() == [] and job.machine.next_tick(job.now) == job.now + LIMITS.leave
    job.ended(0)
    job.ended(1, "killed", launch=1)
    assert job.status is S.CANCELLING, "the one that was started again is still there"
    job.wait(3)
    assert job.actions(Kill) == [Kill(1, 2)]
    job.ended(1, "killed", launch=2)
    assert job.status is S.CANCELLED


def test_while_it_restarts_a_checkpoint_may_be_requested_and_at_its_end_not() -> None:
    job = Job().run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    job.actions()
    job.machine.checkpoint("early", job.now)
    assert job.actions() == []
    job.machine.cancel(job.now)
    job.actions()
    job.machine.checkpoint("late", job.now)
    [ended] = job.actions()
    assert (ended.waiting, ended.reason) == (("late",), "the job is CANCELLING")


@pytest.mark.parametrize(
    "event", [OperatorEvent(0, 0, 1, b"x"), OperatorEvent(0, 1, 5, b"x")], ids=["source", "target"]
)
def test_an_operator_event_is_passed_on_only_from_whom_it_says_to_whom_there_is(event: OperatorEvent) -> None:
    job = Job().run()
    good = OperatorEvent(0, 1, 0, b"x")
    job.says(1, good)
    assert job.sent() == [(0, good)]
    job.says(1, event)
    assert job.status is S.FAILING


def test_the_driver_never_spins_through_a_restart() -> None:
    job = Job(interval=7 * SECOND, timeout=30 * SECOND).run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    for _ in range(200):
        tick = job.machine.next_tick(job.now)
        if tick is None:
            break
        assert tick > job.now
        job.now = tick
        job.machine.tick(job.now)
        if any(isinstance(a, Claim) for a in job.machine.actions):
            job.claimed(job.machine.incarnation + 1)
        job.actions()
    assert job.status.final


def test_a_job_that_is_cancelled_while_it_publishes_what_it_was_restored_with_stays_cancelled() -> None:
    job = Job().run()
    job.complete(b"a")
    job.restart()
    job.all_say(Deployed())
    job.machine.cancel(job.now)
    job.says(0, Published(0))
    assert job.status is S.CANCELLING


def test_a_job_without_checkpoints_is_not_started_again_once_it_publishes() -> None:
    job = Job(checkpoints=False).run()
    job.all_say(SubtasksFinished([("sink", b"a")]))
    job.says(0, Failed(FailureKind.USER, "publishing raised OSError"))
    assert job.status is S.FAILING
    assert job.machine.cause is not None
    assert job.machine.cause.message.endswith("all, some or none of the job's output may be visible")


def test_a_worker_is_welcomed_again_under_a_new_epoch() -> None:
    job = Job().run()
    job.lose(0)
    job.actions()
    assert job.hello(0) == 2
    assert job.actions()[0] == Send(0, 2, Welcome(2))
    job.says(0, Failed(FailureKind.USER, "from the dead"), epoch=1)
    assert job.machine.attempts.restarts == 1


def test_a_storage_that_never_answers_is_reported_and_ends_the_job() -> None:
    job = Job().run()
    number = job.trigger()
    job.ack(0, number)
    job.ack(1, number)
    [_] = job.actions(Commit)
    job.wait(job.machine.limits.patience / SECOND)
    assert job.machine.status is S.FAILING
    assert job.machine.cause is not None and "has not answered" in job.machine.cause.message


def test_where_spark_itself_has_ended_nothing_is_started_again() -> None:
    job = Job().run()
    job.machine.slot_ended(1, "the Spark session was stopped", job.now, launch=1, over=True)
    assert job.machine.status is S.FAILING
    assert job.machine.cause is not None and "was stopped" in job.machine.cause.message


def test_at_a_restart_slots_are_awaited_until_spark_can_have_noticed_that_an_executor_hangs() -> None:
    """The executor's machine had stopped. Spark counted on its slots for two minutes more, and gave the new worker one:
    after one minute the job failed, which had run for weeks and had two restarts left."""
    job = Job()
    job.machine.limits = replace(LIMITS, notice=180 * SECOND)
    job.run()
    job.lose(0)
    job.says(1, WasReset(1))
    job.wait(PAUSE)
    job.claimed(2)
    job.wait(239)
    assert job.status is S.RESTARTING
    job.wait(2)
    assert job.status is S.FAILING
    cause = job.machine.cause
    assert cause is not None and "needs 2 task slots, and Spark gave it 1 within 240 s" in cause.message


def test_an_executor_that_lacks_what_a_worker_needs_ends_a_job_that_has_not_run() -> None:
    """All executors of a cluster are alike, mostly. The second one reports the same, and the job has one cause."""
    job = Job().start()
    job.machine.slot_ended(0, "the executor on a has no module 'x'", job.now, launch=1, unfit=True)
    job.machine.slot_ended(1, "the executor on b has no module 'x'", job.now, launch=1, unfit=True)
    assert job.status is S.FAILED
    cause = job.machine.cause
    assert cause is not None and cause.kind is FailureKind.IMPORT
    assert cause.message == "worker 0 cannot be started: the executor on a has no module 'x'"


def test_a_job_that_has_run_is_restarted_where_one_executor_lacks_what_a_worker_needs() -> None:
    """A worker is lost after days, and the executor that Spark gives in its place is broken. The next one may not be."""
    job = Job().run()
    job.lose(0)
    assert job.status is S.RESTARTING
    launch = job.machine.roster.slots[0].launches
    job.machine.slot_ended(0, "the executor on c has no module 'x'", job.now, launch=launch, unfit=True)
    assert job.status is S.RESTARTING
    cause = job.actions(Restarting)[-1].cause
    assert "on c has no module 'x'" in cause.message


# A coordinator that takes over.


def test_a_coordinator_that_takes_over_restores_the_newest_checkpoint_of_its_run() -> None:
    """The process with the one before was lost. Nothing of what that has deployed may commit any more, and none of its
    files may be swept away, so a claim comes before anything else."""
    lost = Job().run()
    lost.complete(b"out")
    job = Job()
    job.disk, job.path = lost.disk, lost.path
    job.machine.take_over("the process was lost", job.now)
    actions = job.actions()
    assert [type(action) for action in actions] == [StatusChanged, Launch, Launch, StatusChanged, Restarting, Claim]
    for slot in range(2):
        job.hello(slot)
    assert not job.said(Deploy)  # it has no incarnation of its own yet
    job.claimed(2)
    sweep, *sent = job.actions()
    assert isinstance(sweep, Sweep) and sweep.incarnation == 2
    assert {file.name for file in lost.disk[-1].files} <= set(sweep.needed)
    for one in sent:
        restored = decode_manifest(one.message.manifest, "it")
        assert (one.message.incarnation, restored.checkpoint, restored.incarnation) == (2, 1, 1)
    job.all_say(Deployed())
    assert [data for one in job.said(Publish) for _, data in one.prepared] == [[b"out"]]
    assert job.machine.attempts.restarts == 1


def test_a_coordinator_that_takes_over_keeps_the_mark_of_what_is_published() -> None:
    """Where a checkpoint is marked, its manifest is read without what it prepared. The mark seemed to be of no use, and was
    swept away: whoever restored the checkpoint after that published it once more."""
    lost = Job().run()
    lost.complete(b"out")
    job = Job()
    job.disk, job.path = [msgspec.structs.replace(lost.disk[-1], prepared=[])], lost.path
    job.machine.take_over("the process was lost", job.now)
    job.actions()
    job.claimed(2)
    sweep, *_ = job.actions()
    assert isinstance(sweep, Sweep) and published_mark(lost.path) in sweep.needed


def test_a_coordinator_that_takes_over_knows_the_older_files_of_what_it_restores() -> None:
    """The coordinator took these files for deleted, and refused checkpoints that went on from them: none was complete any
    more, and a job whose input had ended did not end."""
    lost = Job().run()
    lost.complete()
    older = "1/chk-0/w0-1.state"
    job = Job()
    job.disk, job.path = [msgspec.structs.replace(lost.disk[-1], older=[older])], lost.path
    job.machine.take_over("the process was lost", job.now)
    for slot in range(2):
        job.hello(slot)
    job.claimed(2)
    job.all_say(Deployed())
    checkpoints = job.machine.checkpoints
    pending = checkpoints.trigger(job.now).number
    assert checkpoints.refusal(0, Ack(pending, "file", 1, older=[older])) is None
    assert checkpoints.refusal(0, Ack(pending, "file", 1, older=["1/chk-7/w0-1.state"])) is not None


def test_a_coordinator_that_takes_over_begins_anew_where_its_run_has_no_checkpoint() -> None:
    job = Job()
    job.machine.take_over("the process was lost", job.now)
    job.actions()
    for slot in range(2):
        job.hello(slot)
    job.actions()
    job.claimed(2)
    deploys = job.said(Deploy)
    assert [(one.incarnation, one.manifest) for one in deploys] == [(2, b""), (2, b"")]
    job.deployed()


def test_a_coordinator_that_takes_over_is_fenced_by_a_newer_start() -> None:
    job, other = Job(), Job().run()
    other.complete()
    newer = msgspec.structs.replace(other.disk[-1], run_id="another", incarnation=2)
    job.machine.take_over("the process was lost", job.now)
    job.machine.claim_done(3, newer, "2/1.manifest", job.now)
    assert job.status is S.FAILING and job.machine.cause is not None
    assert job.machine.cause.kind is FailureKind.FENCED
