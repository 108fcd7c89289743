"""A lost worker is replaced while the others go on: the messages that the coordinator sends and holds back."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.coordinator.actions import (
    CheckpointEnded,
    CloseLink,
    CopySavepoint,
    HistoryFills,
    Launch,
    NotReplaced,
    Replacing,
    Restarting,
    SavepointEnded,
    StopEnded,
    WorkerReplaced,
)
from tailrace.coordinator.durability.stopping import Aim
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import (
    Failed,
    FailureKind,
    OperatorEvent,
    Progress,
    Publish,
    SubtaskReport,
    SubtasksFinished,
)
from tailrace.protocol.replay import Gained, KnownHistory, Replaced, Resume, Severed, WorkerLost
from tailrace.protocol.replay import ReplayDone as SaidReplayed
from tailrace.protocol.snapshot import Abort, Ack, Declined, Trigger
from tailrace.state.manifest import Prepared, decode_manifest
from tests.coordinator.driving import SECOND, Job, S


def running(**options: Any) -> Job:
    return Job(slots=3, standbys=0, **options).run()


def resumed(job: Job, slot: int) -> Resume:
    """The worker of a slot is lost, the others report what they know, and another one joins. Returns its `Resume`."""
    job.lose(slot)
    job.actions()
    turn = job.machine.takeovers.turn
    for survivor in {0, 1, 2} - {slot}:
        job.says(
            survivor,
            KnownHistory(slot, Gained(0, [b"a", b"b"][: survivor + 1]), [(0, slot, survivor, survivor, 7)], turn),
        )
    job.hello(slot)
    (resume,) = job.said(Resume)
    return resume  # type: ignore[no-any-return]


def test_survivors_are_asked_and_another_worker_is_started_for_the_lost_one_alone() -> None:
    job = running()
    job.lose(1)
    actions = job.actions()
    assert [one for one in actions if isinstance(one, Launch)] == [Launch(1, 2)]
    assert [one.slot for one in actions if isinstance(one, Replacing)] == [1]
    assert [(one.slot, one.message) for one in actions if hasattr(one, "message")] == [
        (0, WorkerLost(1, 0, 1)),
        (2, WorkerLost(1, 0, 1)),
    ]
    assert job.status is S.RUNNING and job.machine.attempts.restarts == 0


def test_the_one_that_takes_its_place_gets_the_longest_history_and_what_others_have() -> None:
    job = running()
    job.says(1, Gained(0, [b"a", b"b", b"c"]))
    resume = resumed(job, 1)
    assert resume.history.entries == [b"a", b"b", b"c"], "the coordinator knew most of it"
    assert sorted(resume.came) == [(0, 1, 0, 0, 7), (0, 1, 2, 2, 7)]
    assert resume.checkpoint == 0 and resume.deploy.attempt == 1
    job.says(1, SaidReplayed(0))
    assert [one.slot for one in job.actions(WorkerReplaced)] == [1]
    assert job.machine.takeovers.count == 1 and job.status is S.RUNNING


def test_how_long_a_slice_was_busy_goes_on_when_its_worker_is_replaced_and_begins_anew_with_a_restart() -> None:
    job = running()
    slot = job.machine.roster.slots[1]
    for busy in (300, 500):
        job.says(1, Progress([SubtaskReport(0, 1, busy_micros=busy)], 1_000))
    for _ in range(2):  # the first one does not report anything
        resumed(job, 1)
    job.says(1, Progress([SubtaskReport(0, 1, busy_micros=40)], 1_000))
    assert [one.busy_micros for one in slot.reports] == [540]
    resumed(job, 1)
    job.says(1, Progress([SubtaskReport(0, 1, busy_micros=7)], 1_000))
    assert [one.busy_micros for one in slot.reports] == [547]
    slot.anew()
    job.says(1, Progress([SubtaskReport(0, 1, busy_micros=7)], 1_000))
    assert [one.busy_micros for one in slot.reports] == [7]


def test_survivors_learn_who_has_taken_its_place() -> None:
    job = running()
    job.lose(1)
    for survivor in (0, 2):
        job.says(survivor, KnownHistory(1, Gained(0, []), [], 1))
    job.actions()
    job.hello(1, port=77)
    found = job.sent(Replaced)
    assert [slot for slot, _ in found] == [0, 2]
    assert {(one.peer.slot, one.peer.port, one.checkpoint) for _, one in found} == {(1, 77, 0)}


def test_what_it_is_to_be_reported_waits_until_it_goes_on_and_what_it_has_heard_is_not_said_again() -> None:
    job = running()
    job.says(0, OperatorEvent(0, 0, 1, b"heard"))
    job.says(0, OperatorEvent(0, 0, 1, b"not heard"))
    resumed(job, 1)
    job.says(2, OperatorEvent(0, 2, 1, b"meanwhile"))
    assert job.said(OperatorEvent) == []
    job.says(1, SaidReplayed(heard=1))
    assert [message.payload for _, message in job.sent(OperatorEvent)] == [b"not heard", b"meanwhile"]


def test_checkpoints_under_way_are_given_up_and_none_is_taken_until_it_goes_on() -> None:
    job = running(interval=SECOND)
    job.wait(2)
    job.machine.tick(job.now)
    assert job.said(Trigger)
    job.lose(1)
    assert job.said(Abort)
    job.wait(5)
    job.machine.tick(job.now)
    assert job.said(Trigger) == []
    for survivor in (0, 2):
        job.says(survivor, KnownHistory(1, Gained(0, []), [], 1))
    job.hello(1)
    job.says(1, SaidReplayed(2))
    job.actions()
    job.machine.tick(job.now)
    assert {slot for slot, _ in job.sent(Trigger)} == {0, 1, 2}


def test_a_second_loss_before_the_first_is_made_good_is_a_restart() -> None:
    job = running()
    job.lose(1)
    job.actions()
    job.lose(2)
    (found,) = [one for one in job.actions() if isinstance(one, NotReplaced)]
    why = "worker 1 was still being replaced, and StandbyConfig(depth=1) covers no more at once"
    assert (found.slot, found.reason) == (2, why)
    assert job.status is S.RESTARTING and job.machine.attempts.restarts == 1


def test_the_workers_of_one_executor_are_one_loss_though_they_are_lost_one_after_the_other() -> None:
    job = Job(slots=4, standbys=0, executors="aabb").run()
    job.lose(0)
    for survivor in (1, 2, 3):
        job.says(survivor, KnownHistory(0, Gained(0, []), [], 1))
    job.hello(0, host="h", executor="c")
    assert [slot for slot, _ in job.sent(Resume)] == [0]
    job.lose(1)  # while the first one is replaced
    actions = job.actions()
    assert [one.slot for one in actions if isinstance(one, Replacing)] == [1]
    assert [one.slot for one in actions if isinstance(one, CloseLink)] == [0], "it may have had a part of what 1 sent"
    for slot in (0, 1):
        job.hello(slot, host="h", executor="c")
        for survivor in (2, 3):
            job.says(survivor, KnownHistory(slot, Gained(0, []), [], 2))
    assert dict(job.sent(Replaced))[2].peer.executor == "h/c"
    for slot in (0, 1):
        job.says(slot, SaidReplayed(0))
    assert job.machine.takeovers.count == 2 and job.machine.attempts.restarts == 0


@pytest.mark.parametrize("more", [False, True])
def test_a_replacement_that_had_gone_on_counts_as_its_own_executor_though_it_could_not_report_so(more: bool) -> None:
    """The replacement has to start over with the worker lost next, and with it goes what it alone knew of that one."""
    job = Job(slots=4, standbys=0, executors="aabb").run()
    job.lose(0)
    for survivor in (1, 2, 3):
        job.says(survivor, KnownHistory(0, Gained(0, [b"a"]), [], 1))
    job.hello(0, host="h", executor="c")
    assert [slot for slot, _ in job.sent(Resume)] == [0]
    job.lose(1)
    job.actions()
    for slot in (0, 1):
        job.hello(slot, host="h", executor="c")
    known = {0: [b"a", b"and then"] if more else [b"a"], 1: []}
    for slot, survivor in ((0, 2), (0, 3), (1, 2), (1, 3)):
        job.says(survivor, KnownHistory(slot, Gained(0, known[slot]), [], 2))
    why = "worker 0 and worker 1 were lost with more executors than StandbyConfig(depth=1) covers at once"
    assert [one.cause.message for one in job.actions(Restarting)] == ([why] if more else [])


def test_a_worker_of_another_executor_is_another_loss() -> None:
    job = Job(slots=4, standbys=0, executors="aabb").run()
    job.lose(0)
    job.lose(2)
    (found,) = job.actions(NotReplaced)
    assert "worker 0 was still being replaced, and StandbyConfig(depth=1)" in found.reason
    assert job.status is S.RESTARTING


def test_a_replacement_belongs_to_its_executor_once_it_goes_on() -> None:
    """Before that no other worker depends on it, so it counts as where the lost one was."""
    job = Job(slots=4, standbys=0, executors="aabb").run()
    for slot, survivors in ((0, (1, 2, 3)), (2, (0, 1, 3))):
        turn = job.machine.takeovers.turn + 1
        job.lose(slot)
        for survivor in survivors:
            job.says(survivor, KnownHistory(slot, Gained(0, []), [], turn))
        job.hello(slot, host="h", executor="c")
        job.says(slot, SaidReplayed(0))
    job.actions()
    job.lose(0)
    job.lose(2)
    assert job.actions(NotReplaced) == [], "both are in executor c"
    job.lose(3)
    assert [one.slot for one in job.actions(NotReplaced)] == [3], "and this one in b"


def test_a_worker_that_is_lost_again_and_again_before_the_next_checkpoint_is_a_restart() -> None:
    job = running()
    for _ in range(3):
        resumed(job, 1)
        job.says(1, SaidReplayed(0))
        assert job.actions(NotReplaced) == []
    job.lose(1)
    (found,) = job.actions(NotReplaced)
    assert found.reason == "worker 1 was replaced 3 times since the newest checkpoint, and is lost again"
    assert job.status is S.RESTARTING


def test_a_worker_whose_history_had_grown_too_large_is_replaced_again_behind_the_next_checkpoint() -> None:
    job = Job(slots=2, standbys=0).run()
    for slot in range(2):
        job.says(slot, Gained(0, [b"a"]))
        job.says(slot, Gained(9, [b"b"], cut_short=True))
    commit = job.acked()
    job.says(1, Gained(10, [b"cut"], [(commit.checkpoint, 10)]))
    job.commit(commit)
    job.lose(1)
    job.hello(1)
    job.says(0, KnownHistory(1, Gained(10, [b"cut"], [(commit.checkpoint, 10)], cut_short=True), [], 1))
    assert [one.history.entries for one in job.said(Resume)] == [[b"cut"]], (
        "who tells it has not heard of the checkpoint"
    )
    job.says(1, SaidReplayed(len(job.machine.takeovers._histories[1].messages)))
    job.lose(0)
    (found,) = job.actions(NotReplaced)
    assert "StandbyConfig(history_bytes=...)" in found.reason and job.status is S.RESTARTING


def test_survivors_are_asked_for_what_the_coordinator_does_not_know() -> None:
    job = running()
    job.says(1, Gained(0, [b"a", b"b"]))
    job.lose(1)
    assert {one.known for one in job.said(WorkerLost)} == {2}
    for survivor, rest in ((0, Gained(2, [b"c"])), (2, Gained(1, []))):
        job.says(survivor, KnownHistory(1, rest, [], 1))
    job.hello(1)
    assert [one.history for one in job.said(Resume)] == [Gained(0, [b"a", b"b", b"c"])]


def filled(left: int, entries: int = 10, size: int = 520) -> Progress:
    """A report of a worker with a history of 1,000 bytes of memory."""
    return Progress([], 1, {}, entries, size, log_left=left)


def test_a_checkpoint_is_taken_early_where_a_history_takes_half_of_its_memory() -> None:
    job = running()
    job.says(1, filled(1_001))
    job.machine.tick(job.now)
    assert job.actions() == []
    job.says(1, filled(1_000))
    assert job.actions() == [HistoryFills(1, 1_000, 2_000)]
    job.machine.tick(job.now)
    assert len(job.said(Trigger)) == 3
    job.says(1, filled(500))
    job.machine.tick(job.now)
    assert job.actions() == [], "that checkpoint is under way"


def test_no_checkpoint_is_taken_early_behind_one_that_has_failed_or_where_a_worker_is_replaced() -> None:
    job = running()
    job.says(0, Declined(job.trigger_of_all(), "no room"))
    job.actions()
    job.says(1, filled(0))
    job.machine.tick(job.now)
    assert job.actions() == []
    job = running()
    job.lose(0)
    job.actions()
    job.says(1, filled(0))
    assert job.actions() == []


def test_where_only_others_know_that_it_had_grown_too_large_all_start_again() -> None:
    job = running()
    job.says(1, Gained(0, [b"a", b"b"]))
    job.lose(1)
    job.says(0, KnownHistory(1, Gained(9, [b"c"], cut_short=True), [], 1))
    job.says(2, KnownHistory(1, Gained(0, [b"a"]), [], 1))
    job.hello(1)
    (found,) = job.actions(Restarting)
    assert "had grown larger" in found.cause.message


def test_a_replacement_that_is_lost_while_it_does_again_what_was_done_is_replaced() -> None:
    job = running()
    resumed(job, 1)
    again = resumed(job, 1)
    assert again.deploy.attempt == 2, "what sinks prepare has another name"
    job.says(1, SaidReplayed(0))
    assert job.machine.takeovers.count == 1 and job.status is S.RUNNING


def test_a_process_that_spark_has_started_again_by_itself_takes_the_place() -> None:
    """A process sends its hello before the coordinator knows that the one before is gone; and so does the next one,
    while the first replays."""
    job = running()
    for turn in (1, 2):
        job.hello(1)
        actions = job.actions()
        assert not any(isinstance(one, Launch) for one in actions), "nobody else is wanted"
        requested = [one.message for one in actions if isinstance(getattr(one, "message", None), WorkerLost)]
        assert requested == [WorkerLost(1, 0, turn)] * 2
        for survivor in (0, 2):
            job.says(survivor, KnownHistory(1, Gained(0, []), [], turn))
        assert [slot for slot, _ in job.sent(Resume)] == [1]
    job.says(1, SaidReplayed(0))
    assert job.status is S.RUNNING and not job.machine.takeovers.active and job.machine.attempts.restarts == 0


def test_an_answer_to_an_older_question_does_not_count() -> None:
    job = running()
    resumed(job, 1)
    job.lose(1)
    job.hello(1)
    job.says(0, KnownHistory(1, Gained(0, []), [], 1))
    job.says(2, KnownHistory(1, Gained(0, []), [], 2))
    assert job.said(Resume) == []
    job.says(0, KnownHistory(1, Gained(0, []), [], 2))
    assert len(job.said(Resume)) == 1


def test_several_that_are_lost_at_once_are_reported_together_what_to_do() -> None:
    """The one that came first waits for the other one: each is fed by what the other one makes again."""
    job = running(depth=2)
    job.lose(1)
    job.lose(2)
    assert [one.slot for one in job.actions(Replacing)] == [1, 2]
    job.hello(1)
    for lost in (1, 2):
        job.says(0, KnownHistory(lost, Gained(0, [b"of %d" % lost]), [(0, lost, 0, 5, 7)], 2))
    assert job.said(Resume) == []
    job.hello(2)
    found = dict(job.sent(Resume))
    assert {slot: one.together for slot, one in found.items()} == {1: [2], 2: [1]}
    assert {slot: one.history.entries for slot, one in found.items()} == {1: [b"of 1"], 2: [b"of 2"]}
    assert {slot: one.came for slot, one in found.items()} == {1: [(0, 1, 0, 5, 7)], 2: [(0, 2, 0, 5, 7)]}
    assert len({one.deploy.attempt for one in found.values()}) == 2
    job.says(2, SaidReplayed(0))
    job.says(1, SaidReplayed(0))
    assert job.machine.takeovers.count == 2 and job.status is S.RUNNING


def test_where_all_are_lost_they_begin_when_the_manifest_is_there_that_was_on_its_way() -> None:
    job = Job(slots=2, standbys=0, depth=2).run()
    commit = job.acked()
    for slot in range(2):
        job.lose(slot)
        job.hello(slot)
    assert job.said(Resume) == []
    job.commit(commit)
    assert {slot: one.checkpoint for slot, one in job.sent(Resume)} == dict.fromkeys(range(2), commit.checkpoint)


def test_one_that_has_begun_to_do_again_is_ended_where_another_worker_is_lost() -> None:
    """What it does again would go on with records of that one, of which nobody knows how many it has had."""
    job = running(depth=2)
    resumed(job, 1)
    job.lose(2)
    actions = job.actions()
    assert [one.slot for one in actions if isinstance(one, CloseLink)] == [1]
    assert [one for one in actions if isinstance(one, Launch)] == [Launch(1, 3), Launch(2, 2)]
    requested = [one.message for one in actions if isinstance(getattr(one, "message", None), WorkerLost)]
    assert requested == [WorkerLost(1, 0, 2, known=2), WorkerLost(2, 0, 2)], "it has the history that it has sent"


def test_what_a_survivor_tells_of_others_is_known_of_them() -> None:
    job = running(depth=2)
    job.says(0, Gained(0, [b"a", b"b"], [], 1))
    job.says(0, Gained(0, []))
    job.lose(1)
    job.says(0, KnownHistory(1, Gained(0, [b"a"]), [], 1))
    job.says(2, KnownHistory(1, Gained(0, []), [], 1))
    job.hello(1)
    (resume,) = job.said(Resume)
    assert resume.history.entries == [b"a", b"b"]


def test_what_a_worker_has_told_of_others_before_it_was_lost_does_not_count_without_the_rest() -> None:
    """By its report the other one reads what it had sent to that one: no other worker knows how that was made."""
    job = running(depth=2)
    job.says(0, Gained(0, [b"a", b"reads what 0 has made"], [], 1))
    job.lose(0)
    job.lose(1)
    for lost, entries in ((0, [b"before that"]), (1, [b"a"])):
        job.says(2, KnownHistory(lost, Gained(0, entries), [], job.machine.takeovers.turn))
    job.hello(0)
    job.says(0, Gained(0, []))
    job.hello(1)
    assert {slot: one.history.entries for slot, one in job.sent(Resume)} == {0: [b"before that"], 1: [b"a"]}


def test_one_that_cannot_reach_another_worker_is_replaced_like_that_one() -> None:
    job = running(depth=2)
    resumed(job, 1)
    job.says(1, Failed(FailureKind.PEER, "cannot reach worker 2", peer=2))
    job.lose(2)
    assert job.status is S.RUNNING and sorted(job.machine.takeovers.active) == [1, 2]


def test_one_that_does_again_and_loses_a_link_is_replaced_once_more() -> None:
    job = running()
    resumed(job, 1)
    epoch = job.epochs[1]
    for one, peer in ((1, 2), (2, 1)):
        job.says(one, Severed(peer, "reset", job.epochs[peer]))
    job.machine.tick(job.now)
    assert job.actions(CloseLink) == [], "the other one is lost, perhaps, and that is about to be heard"
    job.wait(2)
    job.machine.tick(job.now)
    actions = job.actions()
    assert [one for one in actions if isinstance(one, CloseLink)] == [CloseLink(1, epoch)]
    assert [one for one in actions if isinstance(one, Launch)] == [Launch(1, 3)]
    resumed(job, 1)
    job.says(1, SaidReplayed(0))
    job.wait(3)
    job.machine.tick(job.now)
    assert job.status is S.RUNNING and job.machine.takeovers.count == 1 and job.machine.attempts.restarts == 0


def test_links_that_close_again_and_again_to_one_that_does_again_are_a_restart() -> None:
    job = running()
    resumed(job, 1)
    for _ in range(3):
        job.says(2, Severed(1, "reset", job.epochs[1]))
        job.wait(2)
        job.machine.tick(job.now)
        if job.status is S.RUNNING:
            resumed(job, 1)
    (found,) = job.actions(NotReplaced)
    assert found.reason == "3 workers were lost that were to replace worker 1" and job.status is S.RESTARTING


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_between_others_that_closes_meanwhile_is_one_more_loss(depth: int) -> None:
    """What went over it is lost, whoever takes the place of the first one."""
    job = running(depth=depth)
    resumed(job, 1)
    job.says(1, Severed(2, "reset", job.epochs[2]))
    job.says(0, Severed(2, "reset", job.epochs[2]))
    job.wait(2)
    job.machine.tick(job.now)
    actions, what = job.actions(), "worker 0 has lost the connection to worker 2, which lives"
    found = [one for one in actions if isinstance(one, Restarting | Replacing)]
    assert [(type(one), one.cause.message) for one in found] == [(Restarting if depth == 1 else Replacing, what)]
    if depth == 2:
        assert sorted(job.machine.takeovers.active) == [1, 2] and job.status is S.RUNNING


def test_links_that_closed_before_their_worker_was_lost_are_no_reason_to_start_again() -> None:
    """The worker's machine loses the network: it reports its links as closed, and then its link to the coordinator closes,
    too."""
    job = running()
    for peer in (0, 2):
        job.says(1, Severed(peer, "reset", job.epochs[peer]))
        job.says(peer, Severed(1, "reset", job.epochs[1]))
    resumed(job, 1)
    job.says(1, SaidReplayed(0))
    job.wait(3)
    job.machine.tick(job.now)
    assert job.status is S.RUNNING, "who has taken its place has links of its own"


def test_a_job_whose_worker_nobody_replaces_starts_again() -> None:
    job = running()
    job.lose(1)
    job.wait(61)
    job.machine.tick(job.now)
    assert job.status is S.RESTARTING


# Stops.


def taken(job: Job, slot: int) -> None:
    """Another worker has the place of a lost one, and goes on."""
    turn = job.machine.takeovers.turn
    for survivor in {0, 1, 2} - {slot}:
        job.says(survivor, KnownHistory(slot, Gained(0, []), [], turn))
    job.hello(slot)
    job.says(slot, SaidReplayed(len(job.machine.takeovers._histories[slot].messages)))


def test_a_stop_that_suspends_asks_for_its_cut_once_more_when_a_lost_worker_is_replaced() -> None:
    job = running()
    job.machine.stop("somebody", Aim(), job.now)
    [first, *_] = job.said(Trigger)
    job.lose(1)
    actions = job.actions()
    assert Abort(first.cut.number) in [getattr(one, "message", None) for one in actions]
    assert not any(isinstance(one, StopEnded) for one in actions), "nobody is told that it failed"
    assert job.status is S.RUNNING
    taken(job, 1)
    cuts = {message.cut for _, message in job.sent(Trigger)}
    assert job.status is S.STOPPING and [cut.hold for cut in cuts] == [True]


def test_the_savepoint_of_a_stop_is_taken_though_a_worker_was_lost_meanwhile() -> None:
    job = running()
    job.machine.stop("somebody", Aim(savepoint="there"), job.now)
    job.lose(1)
    job.actions()
    taken(job, 1)
    [cut] = {message.cut for _, message in job.sent(Trigger)}
    for slot in range(3):
        job.ack(slot, cut.number)
    job.commit()
    assert [one.target for one in job.actions(CopySavepoint)] == ["there"]
    job.machine.copy_done(cut.number, "there", 1, job.now)
    for slot, launch in ((0, 1), (1, 1), (1, 2), (2, 1)):
        job.ended(slot, launch=launch)
    [ended] = job.actions(StopEnded)
    assert (ended.reason, ended.savepoint.path) == ("", "there")


def test_a_stop_has_three_attempts_where_workers_are_replaced_again_and_again() -> None:
    job = running()
    job.machine.stop("somebody", Aim(), job.now)
    for slot in (0, 1):
        job.lose(slot)
        assert job.actions(StopEnded) == []
        taken(job, slot)
        assert job.status is S.STOPPING
    job.lose(2)
    [ended] = job.actions(StopEnded)
    assert ended.reason.startswith(
        "a failure came before its checkpoint was complete in each of 3 attempts, in the last"
    )
    taken(job, 2)
    assert job.status is S.RUNNING and job.machine.attempts.restarts == 0


def test_savepoints_and_checkpoints_that_were_requested_are_taken_when_a_lost_worker_is_replaced() -> None:
    job = running()
    for kind in (CutKind.SAVEPOINT, CutKind.CHECKPOINT):
        if kind.whole:
            job.machine.savepoint("somebody", "there", job.now)
        else:
            job.machine.checkpoint("another", job.now)
        [cut] = {message.cut for _, message in job.sent(Trigger)}
        job.lose(1)
        actions = job.actions()
        assert not [one for one in actions if isinstance(one, SavepointEnded)]
        assert [one.waiting for one in actions if isinstance(one, CheckpointEnded)] == [()], "who waits for it waits on"
        taken(job, 1)
        job.machine.tick(job.now)
        [again] = {message.cut for _, message in job.sent(Trigger)}
        assert (again.number, again.kind) == (cut.number + 1, kind)
        for slot in range(3):
            job.ack(slot, again.number)
        job.commit()
        actions = job.actions()
        assert [one.target for one in actions if isinstance(one, CopySavepoint)] == ["there"] * kind.whole
    assert [one.waiting for one in actions if isinstance(one, CheckpointEnded)] == [("another",)]


def test_a_stop_that_drains_goes_on_where_a_worker_is_replaced() -> None:
    job = running()
    job.machine.stop("somebody", Aim(drain=True), job.now)
    job.lose(1)
    assert job.status is S.STOPPING and job.machine.attempts.restarts == 0
    job.actions()
    taken(job, 1)
    assert job.actions(StopEnded) == []
    for slot in range(3):
        job.says(slot, SubtasksFinished([]))
    [cut] = {message.cut for _, message in job.sent(Trigger)}
    assert cut.kind is CutKind.FINAL


def test_a_worker_that_is_lost_while_the_checkpoint_of_a_stop_is_committed_is_a_restart() -> None:
    """Whether the job has stopped there, only the storage knows."""
    job = running()
    job.machine.stop("somebody", Aim(), job.now)
    [cut] = {message.cut for _, message in job.sent(Trigger)}
    for slot in range(3):
        job.ack(slot, cut.number)
    job.lose(1)
    assert [one.reason for one in job.actions(NotReplaced)] == ["the checkpoint of a stop is being committed"]
    assert job.status is S.RESTARTING


def test_without_standbys_every_loss_is_a_restart() -> None:
    job = Job(slots=3).run()
    job.lose(1)
    assert job.status is S.RESTARTING and job.actions(NotReplaced) == []


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_in_the_place_of_a_lost_one_gets_what_that_one_had_to_publish(lost: int) -> None:
    job = running()
    prepared = [Prepared("sink", b"%d" % subtask, subtask) for subtask in (0, 1)]
    job.machine.durability.output._send(3, prepared, [], job.now)
    job.machine.durability.output._send(4, prepared, [], job.now)
    resumed(job, lost)
    job.says(lost, SaidReplayed(0))
    assert job.sent(Publish) == [(lost, Publish([("sink", [b"%d" % lost])], 3))], (
        "and the next part when that is visible"
    )


def test_records_in_flight_at_the_newest_checkpoint_are_no_reason_to_start_again() -> None:
    """The replacement gets the operators that had some when all began: their functions are fused accordingly."""

    def lost(job: Job) -> Resume:
        job.lose(1)
        assert job.actions(NotReplaced) == [] and job.status is S.RUNNING
        job.says(0, KnownHistory(1, Gained(0, []), [], job.machine.takeovers.turn))
        job.hello(1)
        (resume,) = job.said(Resume)
        return resume  # type: ignore[no-any-return]

    job = Job(slots=2, standbys=0).run()
    number = job.trigger()
    for slot in range(2):
        job.says(slot, Ack(number, f"1/chk-{number}/w{slot}-0.state", 10, [], [], [], overtaken={"counted": 5}))
    job.commit()
    first = lost(job)
    assert (first.checkpoint, first.in_flight) == (number, [])
    assert decode_manifest(first.deploy.manifest, "it").in_flight == {"counted": 10}
    job.says(1, SaidReplayed(0))
    job.restart().deployed()
    second = lost(job)
    assert (second.checkpoint, second.in_flight) == (0, ["counted"]), "with that checkpoint all have begun"
