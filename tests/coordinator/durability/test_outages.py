"""Places that are out of reach: what the coordinator tries again, when, and for how long."""

from __future__ import annotations

import pytest
from driving import LIMITS, SECOND, Job, S

from tailrace.coordinator.actions import (
    CheckpointEnded,
    CheckpointFailed,
    Claim,
    Commit,
    InReach,
    OutOfReach,
    Restarting,
)
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.restarts import Fixed, Never
from tailrace.coordinator.output.outages import SINKS, STORAGE
from tailrace.coordinator.view.view_makers import books_of
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import (
    Deployed,
    Failed,
    FailureKind,
    NotPublished,
    Progress,
    Publish,
    Published,
    SubtasksFinished,
)
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.snapshot import Ack, Declined, Transaction, Trigger

MOST = LIMITS.retry_most // SECOND


def no_answer(job: Job, commit: Commit) -> None:
    job.machine.not_committed(commit.checkpoint, "OSError: no answer", FailureKind.STORE, job.now)


# Commits.


def test_a_commit_of_unknown_outcome_is_requested_again_with_the_same_bytes_while_the_job_runs() -> None:
    job = Job().run()
    first = job.acked()
    no_answer(job, first)
    [found] = job.actions()
    what = "checkpoint 1 could not be committed: OSError: no answer"
    assert found == OutOfReach(STORAGE, what, 1, 0, LIMITS.retry, LIMITS.patience)
    job.now += LIMITS.retry - 1
    job.machine.tick(job.now)
    assert job.actions() == []
    job.now += 1
    job.machine.tick(job.now)
    assert job.actions() == [first], "once, and byte by byte the same"
    job.commit(first)
    assert (job.status, job.machine.attempts.restarts) == (S.RUNNING, 0)
    message = job.actions()
    assert InReach(STORAGE, LIMITS.retry) in message
    assert [a.reason for a in message if isinstance(a, CheckpointEnded)] == [None]
    assert job.machine.durability.retry_at is None


@pytest.mark.parametrize("seconds", [300, 599])
def test_a_storage_that_is_away_for_minutes_is_asked_with_pauses_that_grow(seconds: int) -> None:
    job = Job(restarts=Never()).run()
    commit, began, pauses = job.acked(), job.now, []
    while job.now - began < seconds * SECOND:
        no_answer(job, commit)
        [found] = job.actions(OutOfReach)
        pauses.append(found.pause)
        job.now += found.pause
        job.machine.heartbeat(0, 10, job.now)
        job.machine.heartbeat(1, 11, job.now)
        job.machine.tick(job.now)
        assert job.actions(Commit) == [commit]
    assert pauses[:6] == [SECOND // 2, SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, MOST * SECOND]
    assert set(pauses[5:]) == {MOST * SECOND}
    job.commit(commit)
    assert (job.status, job.machine.attempts.restarts) == (S.RUNNING, 0)


def test_a_storage_that_is_away_for_longer_than_the_job_is_patient_ends_it_and_says_why() -> None:
    job = Job().run()
    commit = job.acked()
    for _ in range(LIMITS.patience // (MOST * SECOND) + 10):
        if job.status is S.RUNNING:
            no_answer(job, commit)
            job.wait(MOST)
    assert job.status is S.FAILING and job.machine.cause is not None
    assert job.machine.cause.kind is FailureKind.SILENT
    assert "has been out of reach for 600 s (storage_patience): checkpoint 1 could not be" in job.machine.cause.message
    assert job.actions(Restarting) == []


def test_a_storage_that_refuses_and_then_hangs_is_given_no_more_time_than_one_that_refuses() -> None:
    job = Job().run()
    commit = job.acked()
    no_answer(job, commit)
    job.wait(LIMITS.patience // SECOND - 1)
    assert job.status is S.RUNNING and job.actions(Commit) == [commit]
    job.wait(2)
    assert job.status is S.FAILING


@pytest.mark.parametrize("kind", [FailureKind.FENCED, FailureKind.STATE])
def test_a_second_try_that_finds_another_ones_manifest_ends_the_job(kind: FailureKind) -> None:
    job = Job().run()
    commit = job.acked()
    no_answer(job, commit)
    job.wait(1)
    job.machine.not_committed(commit.checkpoint, "Fenced: another start", kind, job.now)
    assert job.status is S.FAILING and job.machine.cause is not None and job.machine.cause.kind is kind
    job.wait(60)
    assert job.actions(Commit) == [commit], "the second try was the last"


def test_a_checkpoint_whose_commit_is_in_doubt_does_not_time_out() -> None:
    """The manifest may be there, and its output is published as soon as that is known."""
    job = Job(timeout=20 * SECOND).run()
    commit = job.acked()
    for _ in range(30):
        no_answer(job, commit)
        job.wait(MOST)
    assert job.actions(CheckpointEnded) == []
    job.commit(commit)
    assert [one.number for one in job.said(Publish)] == [1]


@pytest.mark.parametrize("aim", [Aim(), Aim(drain=True)])
def test_cancel_ends_a_job_that_waits_for_its_storage_at_once(aim: Aim) -> None:
    job = Job().run()
    commit = job.acked()
    no_answer(job, commit)
    job.machine.stop("somebody", aim, job.now)
    job.machine.cancel(job.now)
    assert job.status is S.CANCELLING
    job.wait(2)
    assert job.actions(Commit) == [] and job.machine.durability.retry_at is None


# Claims and restores.


def test_a_claim_that_fails_is_made_again_and_is_no_restart() -> None:
    job = Job(restarts=Fixed(1, 0)).run()
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert len(job.actions(Claim)) == 1
    job.all_say(WasReset(1))
    for _ in range(40):
        job.machine.claim_failed("OSError: no route", job.now)
        assert job.actions(Claim) == [], "a storage that is gone is not asked without a rest"
        job.wait(MOST)
        assert job.actions(Claim) == [Claim()]
    assert (job.status, job.machine.attempts.restarts) == (S.RESTARTING, 1)
    job.claimed()
    job.all_say(Deployed())
    assert len(job.actions(InReach)) == 1 and job.machine.durability.storage.since is None


def test_slots_are_waited_for_only_once_the_claim_is_there() -> None:
    job = Job().run()
    job.lose(0)
    job.says(1, WasReset(1))
    for _ in range(20):
        job.machine.claim_failed("no", job.now)
        job.wait(MOST)
    job.claimed()
    job.wait(LIMITS.slots // SECOND - 1)
    assert job.status is S.RESTARTING
    job.wait(2)
    assert job.status is S.FAILING and job.machine.cause is not None and job.machine.cause.kind is FailureKind.SLOTS


def test_a_checkpoint_that_cannot_be_read_is_read_again_outside_of_the_restart_strategy() -> None:
    job = Job(restarts=Never()).run()
    job.complete()
    job.says(0, Failed(FailureKind.STORE, "cannot read"))
    for restart in range(1, 30):
        assert job.status is S.RESTARTING
        job.all_say(WasReset(restart))
        job.wait(MOST)
        job.claimed(job.machine.incarnation + 1)
        job.says(1, Failed(FailureKind.STORE, "cannot read"))
    job.all_say(WasReset(30))
    job.wait(MOST)
    job.claimed(job.machine.incarnation + 1)
    job.deployed()
    assert job.machine.durability.storage.since is None


# Files of workers.


def declined(job: Job, number: int) -> None:
    job.says(1, Declined(number, "OSError: no space left", out_of_reach=True))


def test_checkpoints_that_cannot_be_written_are_taken_again_when_the_storage_is_tried_again() -> None:
    """A checkpoint that fails so does not count among the failures that a job tolerates, and comes before the next
    interval."""
    job = Job(interval=100 * SECOND, tolerated_failures=0).run()
    job.wait(100)
    began, numbers = job.now, []
    while job.now - began < 300 * SECOND:
        [(_, trigger), _] = job.sent(Trigger)
        numbers.append(trigger.checkpoint)
        declined(job, trigger.checkpoint)
        message = job.actions()
        [failed] = [one for one in message if isinstance(one, CheckpointFailed)]
        assert failed.in_a_row == len(numbers) and "OSError: no space left" in failed.reason
        assert failed.then == "the job goes on, and the next one is taken when the storage is tried again"
        [away] = [one for one in message if isinstance(one, OutOfReach)]
        job.now += away.pause
        for slot in range(2):
            job.machine.heartbeat(slot, 10 + slot, job.now)
        job.machine.tick(job.now)
    assert len(numbers) > 30 and (job.status, job.machine.attempts.restarts) == (S.RUNNING, 0)
    [(_, trigger), _] = job.sent(Trigger)
    job.ack(0, trigger.checkpoint)
    job.ack(1, trigger.checkpoint)
    job.commit()
    assert job.machine.checkpoints.in_a_row == 0


def test_the_last_checkpoint_is_taken_again_with_a_rest() -> None:
    job = Job(tolerated_failures=0).run()
    job.all_say(SubtasksFinished([]))
    [first, _] = job.said(Trigger)
    declined(job, first.checkpoint)
    assert job.said(Trigger) == []
    job.wait(1)
    [second, _] = job.said(Trigger)
    assert second.cut.kind is CutKind.FINAL
    job.wait(60)
    assert job.said(Trigger) == []


def test_one_that_times_out_while_all_wait_for_the_storage_is_not_counted() -> None:
    job = Job(timeout=20 * SECOND, tolerated_failures=0).run()
    number = job.trigger()
    job.ack(0, number)
    job.says(1, Progress([], 1, phases={number: "writing"}))
    job.wait(20)
    [failed] = job.actions(CheckpointFailed)
    assert (job.status, failed.in_a_row) == (S.RUNNING, 1)
    assert job.machine.durability.storage.since is not None
    number = job.trigger_later()
    job.says(1, Progress([], 1, phases={number: "aligning"}))
    job.wait(20)
    assert job.status is S.RESTARTING, "the storage has nothing to do with that"


# Output.


def own_parts(job: Job, *prepared: bytes) -> int:
    """A complete checkpoint for which each subtask has prepared what its own worker publishes."""
    number = job.trigger()
    for slot, data in enumerate(prepared):
        name = f"1/chk-{number}/w{slot}-1.state"
        job.says(slot, Ack(number, name, 10, prepared=[Transaction("sink", data, 0, slot)]))
    job.commit()
    return number


def test_each_worker_publishes_what_its_own_subtasks_have_prepared_in_order() -> None:
    """A worker whose sink is away does not hold the other ones back. The next part of a sink comes behind the one before."""
    job = Job(restarts=Never()).run()
    own_parts(job, b"a", b"b")
    assert job.sent(Publish) == [(0, Publish([("sink", [b"a"])], 1)), (1, Publish([("sink", [b"b"])], 1))]
    own_parts(job, b"c", b"d")
    assert job.sent(Publish) == []
    job.says(1, Published(1))
    assert job.sent(Publish) == [(1, Publish([("sink", [b"d"])], 2))]
    job.says(0, NotPublished(1, 0, "away", operator="files"))
    job.says(1, Published(2))
    output = job.machine.durability.output
    assert job.sent(Publish) == [] and output.visible_through == 0
    job.wait(1)
    assert job.sent(Publish) == [(0, Publish([("sink", [b"a"])], 1, tries=1))]
    job.says(0, Published(1))
    assert job.sent(Publish) == [(0, Publish([("sink", [b"c"])], 2))] and output.visible_through == 1
    job.says(0, Published(2))
    assert (output.visible_through, output.pending, job.status) == (2, False, S.RUNNING)


def test_a_sink_that_is_away_for_publish_timeout_fails_the_job_with_its_own_error() -> None:
    job = Job(restarts=Never()).run()
    own_parts(job, b"a", b"b")
    job.says(0, Published(1))
    began, tries = job.now, 0
    while job.status is S.RUNNING and job.now - began < 2 * LIMITS.publish:
        job.says(1, NotPublished(1, tries, "the sink 'files': publishing raised ConnectionError: refused", 0, "files"))
        tries += 1
        job.wait(MOST)
    assert LIMITS.publish <= job.now - began < LIMITS.publish + 2 * MOST * SECOND
    cause = job.machine.cause
    assert job.status is not S.RUNNING and cause is not None
    assert (cause.operator, cause.subtask, cause.kind) == ("files", 1, FailureKind.SILENT)
    assert "600 s (publish_timeout): the sink 'files': publishing raised ConnectionError: refused" in cause.message


def test_the_figures_of_a_job_have_a_sink_that_is_away_or_does_not_come_back() -> None:
    def waits() -> list[tuple[str, int, int]]:
        books = books_of(job.machine, job.now)
        assert books is not None and all(one.place == SINKS for one in books.waits)
        return [(one.reason, one.tries, one.age // SECOND) for one in books.waits]

    job = Job().run()
    own_parts(job, b"a", b"b")
    job.says(0, Published(1))
    job.wait(9)
    assert waits() == []
    job.wait(2)
    assert waits() == [("sink 'sink' publishes in worker 1, and has not come back", 0, 11)]
    job.says(1, NotPublished(1, 0, "the sink 'files': refused", 0, "files"))
    job.wait(3)
    assert waits() == [("the sink 'files': refused", 1, 3)]
    job.says(1, Published(1))
    assert waits() == []


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_sink_that_does_not_come_back_fails_the_job_after_publish_timeout(failed_before: bool) -> None:
    """One that refuses first has no more time than one that hangs at once."""
    job = Job(restarts=Never()).run()
    own_parts(job, b"a", b"b")
    job.says(0, Published(1))
    if failed_before:
        job.says(1, NotPublished(1, 0, "refused", 0, "files"))
    job.wait(LIMITS.publish // SECOND - 1)
    assert job.status is S.RUNNING
    job.wait(2)
    assert job.status is S.FAILING and job.machine.cause is not None
    assert job.machine.cause.operator == ("files" if failed_before else "sink")
    assert "(publish_timeout)" in job.machine.cause.message


def test_a_sink_whose_calls_take_longer_than_a_minute_to_fail_is_not_given_the_time_anew() -> None:
    job = Job(restarts=Never()).run()
    own_parts(job, b"a", b"b")
    job.says(0, Published(1))
    began, tries = job.now, 0
    while job.status is S.RUNNING and job.now - began < 2 * LIMITS.publish:
        job.wait(127)
        job.says(1, NotPublished(1, tries, "no answer", 0, "files"))
        tries += 1
        job.wait(MOST)
    assert job.machine.cause is not None and job.now - began < LIMITS.publish + 300 * SECOND


def test_output_whose_place_is_out_of_reach_is_reported_again_while_checkpoints_go_on() -> None:
    job = Job(restarts=Never()).run()
    job.complete(b"a")
    [first] = job.said(Publish)
    for tries in range(20):
        job.says(0, NotPublished(1, tries, "the sink 'files': full"))
        [found] = job.actions(OutOfReach)
        assert (found.place, found.reason, found.tries) == (SINKS, "the sink 'files': full", tries + 1)
        job.wait(MOST)
        [again] = job.said(Publish)
        assert again == Publish(first.prepared, 1, tries=tries + 1)
    number = job.complete(b"b")
    assert job.said(Publish) == [], "it waits for what was prepared before it"
    job.says(0, Published(1))
    assert [one.number for one in job.said(Publish)] == [number]
    job.says(0, Published(number))
    assert (job.status, job.machine.attempts.restarts) == (S.RUNNING, 0)
    assert job.machine.durability.output.visible_through == number and job.machine.durability.retry_at is None


def test_output_that_goes_through_does_not_end_the_wait_for_what_did_not() -> None:
    """The servers of two subtasks, of which one answers."""
    job = Job().run()
    own_parts(job, b"a", b"b")
    job.says(0, NotPublished(1, 0, "full"))
    job.says(1, Published(1))
    assert job.actions(InReach) == []
    job.wait(1)
    assert job.sent(Publish)[-1:] == [(0, Publish([("sink", [b"a"])], 1, tries=1))]
    job.says(0, Published(1))
    assert [one.place for one in job.actions(InReach)] == [SINKS]


def test_what_a_publisher_says_of_an_earlier_telling_counts_for_nothing() -> None:
    job = Job().run()
    job.complete(b"a")
    job.says(0, NotPublished(1, 0, "full"))
    job.wait(1)
    job.actions()
    job.says(0, NotPublished(1, 0, "full"))
    assert job.actions() == [] and job.machine.durability.retry_at is None


def test_a_job_that_has_finished_waits_for_the_place_of_its_output() -> None:
    job = Job().run()
    job.all_say(SubtasksFinished([]))
    number = job.said(Trigger)[0].checkpoint
    job.ack(0, number, b"a")
    job.ack(1, number)
    job.commit()
    for tries in range(5):
        job.says(0, NotPublished(number, tries, "full"))
        assert job.status is S.FINISHING
        job.wait(MOST)
        assert [one.tries for one in job.said(Publish)][-1:] == [tries + 1]
    job.says(0, Published(number))
    assert not job.machine.durability.output.pending


def test_a_writer_whose_place_is_out_of_reach_is_a_restart_that_does_not_count() -> None:
    job = Job(restarts=Never()).run()
    job.says(0, Failed(FailureKind.SINK, "the sink 'files': full", "files"))
    assert job.status is S.RESTARTING
    assert job.actions(OutOfReach)[0].place == SINKS


def test_a_writer_that_fails_after_each_restart_is_waited_for_with_pauses_that_grow() -> None:
    """What the restored checkpoint had prepared is published in between, which proves nothing about the writers."""
    job = Job(restarts=Never()).run()
    job.complete(b"a")
    job.says(0, Published(1))
    pauses = []
    for restart in range(1, 7):
        job.says(0, Failed(FailureKind.SINK, "the sink 'files': full", "files"))
        pauses.append(job.actions(OutOfReach)[0].pause)
        job.all_say(WasReset(restart))
        job.claimed(job.machine.incarnation + 1)
        job.wait(MOST)
        job.deployed()
    assert pauses == [SECOND // 2, SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, MOST * SECOND]


def writer_is_out_of_reach() -> Job:
    """A writer has failed, and its job runs again."""
    job = Job(restarts=Never()).run()
    job.complete(b"a")
    job.says(0, Published(1))
    job.says(0, Failed(FailureKind.SINK, "the sink 'files': full", "files"))
    assert [one.place for one in books_of(job.machine, job.now).waits] == [SINKS]  # type: ignore[union-attr]
    job.all_say(WasReset(1))
    job.claimed(job.machine.incarnation + 1)
    job.wait(MOST)
    job.deployed()
    assert job.status is S.RUNNING
    return job


def test_the_place_of_a_writer_is_in_reach_again_once_what_it_wrote_is_visible() -> None:
    """The publication of what the restored checkpoint had prepared proves nothing about it."""
    job = writer_is_out_of_reach()
    assert job.actions(InReach) == []
    number = job.complete(b"b")
    assert job.actions(InReach) == []
    job.says(0, Published(number))
    assert [one.place for one in job.actions(InReach)] == [SINKS]
    assert books_of(job.machine, job.now).waits == ()  # type: ignore[union-attr]


def test_a_writer_that_has_nothing_to_write_is_not_waited_for_for_ever() -> None:
    job = writer_is_out_of_reach()
    job.complete()
    assert job.actions(InReach) == []
    job.wait(LIMITS.calm_after // SECOND)
    job.complete()
    assert [one.place for one in job.actions(InReach)] == [SINKS]


# What is shown.


def test_the_books_say_what_is_under_way_how_far_it_is_and_whom_it_waits_for() -> None:
    job = Job().run()
    number = job.trigger()
    job.wait(3)
    [one] = books_of(job.machine, job.now).pending  # type: ignore[union-attr]
    assert (one.id, one.age, one.phase, one.slots) == (number, 3 * SECOND, "triggered", (0, 1))
    job.says(0, Progress([], 1, phases={number: "writing"}))
    job.says(1, Progress([], 1, phases={number: "encoding"}))
    [one] = books_of(job.machine, job.now).pending  # type: ignore[union-attr]
    assert (one.phase, one.slots) == ("encoding", (0, 1))
    job.ack(1, number)
    [one] = books_of(job.machine, job.now).pending  # type: ignore[union-attr]
    assert (one.phase, one.slots) == ("writing", (0,))
    job.ack(0, number)
    [one] = books_of(job.machine, job.now).pending  # type: ignore[union-attr]
    assert (one.phase, one.slots) == ("committing", ())


def test_the_books_say_what_has_failed_last_and_what_the_job_waits_for() -> None:
    job = Job().run()
    declined(job, job.trigger())
    job.wait(2)
    declined(job, job.trigger_later())
    books = books_of(job.machine, job.now + 5 * SECOND)
    assert books is not None and books.last_failure is not None
    assert (books.in_a_row, books.last_failure.id) == (2, 2)
    assert books.last_failure.reason == "worker 1: OSError: no space left"
    [waits] = books.waits
    assert (waits.place, waits.tries, waits.age >= 7 * SECOND) == (STORAGE, 2, True)
    assert "no space left" in waits.reason


@pytest.mark.parametrize("gap", [LIMITS.calm_after, LIMITS.calm_after - 10 * SECOND])
def test_failures_that_lie_far_apart_are_two_outages(gap: int) -> None:
    job = Job(restarts=Never()).run()
    outage = job.machine.durability.places
    outage.note_failure("full", job.now)
    assert outage.due_at is not None
    outage.note_failure("full", outage.due_at + gap)
    assert outage.tries == (1 if gap >= LIMITS.calm_after else 2)
