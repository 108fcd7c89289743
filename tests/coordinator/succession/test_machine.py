"""A coordinator that logs its events, and another one that goes on from the log."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from driving import LIMITS, SECOND, Job

from tailrace.coordinator.actions import CheckpointEnded, Commit, Delete, MarkPublished, Send
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Fixed
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.succession.machine import LoggedCoordinator, SuccessorClaim
from tailrace.protocol.deployment import Deployed, Leave, OperatorEvent, Progress, Start
from tailrace.protocol.message_codec import ToWorker
from tailrace.protocol.recovery import Reset
from tailrace.protocol.snapshot import Abort, Complete, Trigger
from tailrace.protocol.succession import GoOn, Keep, LogKept, Received, Rejoin, Secured


class Logged(Job):
    """A job of three workers with a log, of which the test plays the mirrors."""

    def __init__(self, term: int = 0, most: int = 1 << 20, replaces: bool = False) -> None:
        super().__init__(slots=3)
        self.machine: LoggedCoordinator = LoggedCoordinator(
            "job",
            1,
            3,
            b"the plan",
            LIMITS,
            run_id="run",
            checkpoints=CheckpointSettings(origin="here"),
            restarts=Fixed(3, SECOND),
            standbys=0 if replaces else None,
            term=term,
            most=most,
        )
        self.seen: dict[int, list[ToWorker]] = {0: [], 1: [], 2: []}
        """What each worker has received."""
        self.logs: dict[int, Keep] = {}
        self.sends: dict[int, int] = {0: 0, 1: 0, 2: 0}
        self.rest: list[Any] = []
        """Actions that are no messages."""

    def deliver(self, keeps: bool = True) -> None:
        """Carries out what may leave the coordinator, again and again."""
        while actions := self.actions():
            for action in actions:
                if not isinstance(action, Send):
                    self.rest.append(action)
                elif isinstance(action.message, Keep):
                    if keeps:
                        self._keep(action.slot, action.message)
                elif isinstance(action.message, Secured):
                    self.says(action.slot, Received(len(self.seen[action.slot]) - 1))
                else:
                    self.seen[action.slot].append(action.message)

    def _keep(self, slot: int, keep: Keep) -> None:
        log = keep if keep.base else self.logs[slot]
        if not keep.base:
            assert keep.position == log.position + len(log.entries)
            log = Keep(keep.term, log.position, [*log.entries, *keep.entries], log.base)
        self.logs[slot] = log
        self.says(slot, LogKept(log.position + len(log.entries)))

    def report(self, slot: int, message: Any) -> None:
        self.sends[slot] += 1
        self.says(slot, message)

    def run(self) -> Logged:
        self.start()
        for slot in range(3):
            self.hello(slot)
        self.deliver()
        for slot in range(3):
            self.report(slot, Deployed())
        self.deliver()
        assert self.status is JobStatus.RUNNING
        return self

    def rejoin(self, slot: int) -> Rejoin:
        return Rejoin(slot, self.epochs[slot], len(self.seen[slot]) - 1, self.sends[slot], 0, self.logs.get(slot))

    def successor(self, claimed: SuccessorClaim, slots: tuple[int, ...] = (0, 1, 2)) -> tuple[Logged, str]:
        """Another coordinator, with the reason why it does not go on."""
        other = Logged(term=1)
        other.now, other.epochs, other.sends = self.now, self.epochs, self.sends
        other.seen = {slot: [*self.seen[slot]] for slot in self.seen}
        other.logs, other.disk = self.logs, self.disk
        workers = {(slot, self.epochs[slot]): self.rejoin(slot) for slot in slots}
        return other, other.machine.take_place(workers, claimed, "it died", self.now)


ALONE = SuccessorClaim(2, 2, None, "", "")
"""A claim behind which there is no manifest."""


def test_nothing_leaves_before_a_mirror_has_the_events_behind_it() -> None:
    job = Logged().run()
    job.machine.checkpoint(None, job.now)
    keeps = job.actions()
    assert [type(one.message) for one in keeps] == [Keep, Keep], "no worker hears of the checkpoint yet"
    job.says(2, LogKept(10_000))
    assert job.actions() == [], "it is no mirror"
    end = keeps[0].message.position + len(keeps[0].message.entries)
    job.says(keeps[0].slot, LogKept(end - 1))
    assert job.actions() == [], "it lacks the last one"
    job.says(keeps[0].slot, LogKept(end))
    assert [type(one.message) for one in job.actions()] == [Trigger] * 3


def test_signs_of_life_and_figures_are_not_in_the_log() -> None:
    job = Logged().run()
    job.machine.heartbeat(0, 10, job.now)
    job.says(1, Progress([], 5))
    assert job.actions() == []
    job.says(1, Progress([], 6, phases={1: "writing"}))
    job.report(0, OperatorEvent(7, 0, 1, b""))
    assert {len(one.message.entries) for one in job.actions(Send)} == {2}, "decisions depend on phases"


def test_a_checkpoint_that_figures_have_made_due_is_one_for_another_coordinator_too() -> None:
    job = Logged(replaces=True).run()
    job.now += 5
    job.says(1, Progress([], 6, log_entries=4, log_bytes=1_000, log_left=10))
    job.machine.tick(job.now)
    job.deliver()
    assert type(job.seen[0][-1]) is Trigger
    other, why = job.successor(ALONE)
    assert why == ""
    other.deliver()
    assert other.status is JobStatus.RUNNING and type(other.seen[0][-1]) is Abort


def test_each_event_is_logged_or_changes_nothing_on_which_decisions_depend() -> None:
    queries = {"next_tick", "give_up", "ending", "status", "cause", "left_behind", "incarnation", "waits"}
    public = {name for name in vars(Coordinator) if not name.startswith("_")}
    assert public - queries <= vars(LoggedCoordinator).keys()


def test_nobody_new_mirrors_a_job_that_begins_anew() -> None:
    job = Logged().run()
    assert len(job.logs) == 2
    for slot in sorted(job.logs):
        job.machine.link_lost(slot, job.epochs[slot], "it died", job.now)
    assert job.status is JobStatus.RESTARTING and not job.machine.mirrored
    sent = job.sent(ToWorker)
    assert {type(message) for slot, message in sent if slot not in job.logs} == {Reset}, "and nothing is held back"


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_another_one_is_what_the_lost_one_was(most: int) -> None:
    """Whatever is in the base of the log, and whatever behind it."""
    job = Logged(most=most).run()
    for number in range(3):
        job.machine.checkpoint(None, job.now)
        job.deliver()
        job.now += SECOND
        job.machine.tick(job.now)
        job.report(number, OperatorEvent(7, number, (number + 1) % 3, b""))
        job.machine.tick(job.now + 1)
        job.deliver()
    log = max(job.logs.values(), key=lambda one: one.position + len(one.entries))
    other = Logged(term=1)
    other.machine._replay(log)
    assert pickle.loads(other.machine._base()).keys() == pickle.loads(job.machine._base()).keys()
    assert other.machine.checkpoints.pending.keys() == job.machine.checkpoints.pending.keys()
    assert other.machine.course.story == job.machine.course.story
    assert other.machine.course.plan == b"the plan"
    assert other.actions() == [], "all of that has left the lost one"


def test_workers_receive_what_they_lack_and_nothing_twice() -> None:
    job = Logged().run()
    job.report(0, OperatorEvent(7, 0, 1, b"first"))
    job.deliver()
    job.report(0, OperatorEvent(7, 0, 1, b"lost"))
    lost = [one for one in job.actions() if isinstance(one.message, Keep)]
    for one in lost:
        job._keep(one.slot, one.message)
    job.sends[0] += 1  # and another one that the lost coordinator never got
    other, reason = job.successor(ALONE)
    assert reason == ""
    other.deliver()
    news = {slot: other.seen[slot][len(job.seen[slot]) :] for slot in range(3)}
    assert [type(one) for one in news[0]] == [GoOn] and news[0][0].received == job.sends[0] - 1  # type: ignore[union-attr]
    assert [getattr(one, "payload", None) for one in news[1]] == [None, b"lost"]
    assert not any(isinstance(one, Start) for slot in range(3) for one in news[slot])


def test_a_checkpoint_under_way_is_given_up_and_its_number_is_used_up() -> None:
    job = Logged().run()
    job.machine.checkpoint(None, job.now)
    job.deliver()
    other, reason = job.successor(ALONE)
    other.deliver()
    assert reason == "" and any(isinstance(one, Abort) for one in other.seen[0])
    other.machine.checkpoint(None, other.now)
    other.deliver()
    assert [one.cut.number for one in other.seen[0] if isinstance(one, Trigger)] == [1, 2]


def test_a_claim_shows_whether_a_commit_was_done() -> None:
    for done in (True, False):
        job = Logged().run()
        job.machine.checkpoint(None, job.now)
        job.deliver()
        for slot in range(3):
            job.sends[slot] += 1
            job.ack(slot, 1)
        job.deliver()
        [commit] = [one for one in job.rest if isinstance(one, Commit)]
        manifest = job.machine.checkpoints.committing
        assert manifest is not None and commit.incarnation == 1
        claimed = SuccessorClaim(
            2, 2, manifest if done else None, "1/1.manifest" if done else "", "url" if done else ""
        )
        other, reason = job.successor(claimed)
        assert reason == ""
        other.deliver()
        assert any(isinstance(one, Complete) for one in other.seen[2]) is done
        assert any(isinstance(one, Abort) for one in other.seen[2]) is not done
        assert [one.incarnation for one in other.rest if isinstance(one, Commit)] == []
        assert other.machine.incarnation == 2 and other.machine.durability.claims.deployed == 1


@pytest.mark.parametrize(
    ("claimed", "slots", "why"),
    [
        (ALONE, (0, 1), "worker 2 is lost as well"),
        (ALONE, (2,), "none of its workers has its log"),
        (SuccessorClaim(4, 4, None, "", ""), (0, 1, 2), "another one has started all workers again meanwhile"),
    ],
)
def test_where_something_is_missing_another_one_does_not_go_on(
    claimed: SuccessorClaim, slots: tuple[int, ...], why: str
) -> None:
    job = Logged().run()
    assert job.successor(claimed, slots)[1] == why


def test_successors_that_were_lost_in_their_turn_do_not_count() -> None:
    job = Logged().run()
    assert job.successor(SuccessorClaim(4, 2, None, "", ""))[1] == ""


def test_what_a_log_lacks_is_noticed() -> None:
    job = Logged().run()
    job.report(0, OperatorEvent(7, 0, 1, b""))
    job.deliver(keeps=False)  # no mirror has it; a worker got it all the same
    job.seen[1].append(OperatorEvent(7, 0, 1, b""))
    assert job.successor(ALONE)[1] == "its log lacks what worker 1 knows"
    job.seen[1].pop()
    assert job.successor(ALONE)[1] == ""


def test_a_job_that_begins_anew_does_so() -> None:
    job = Logged().run()
    job.machine.link_lost(2, job.epochs[2], "it died", job.now)
    for one in job.actions():
        if isinstance(one, Send) and isinstance(one.message, Keep):
            job._keep(one.slot, one.message)
    assert job.successor(ALONE, (0, 1))[1] == "the job was RESTARTING"


def test_where_the_outcome_is_decided_nothing_waits_for_a_mirror() -> None:
    """Both may be in user code, and the job is to be cancelled all the same."""
    job = Logged().run()
    job.machine.cancel(job.now)
    assert [slot for slot, _ in job.sent(Leave)] == [0, 1, 2]


def test_an_event_that_is_too_large_goes_to_no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Logged().run()
    monkeypatch.setattr("tailrace.coordinator.succession.eventlog.MOST_ENTRY_BYTES", 1_000)
    job.report(0, OperatorEvent(7, 0, 1, bytes(2_000)))
    keeps = job.sent(Keep)
    assert len(keeps) == 2 and all(keep.base and not keep.entries for _, keep in keeps)
    monkeypatch.setattr("tailrace.coordinator.succession.machine.MOST_BASE_BYTES", 10)
    job = Logged()
    job.run()
    assert not job.machine.mirrored and job.logs == {}


def test_what_the_storage_may_not_have_done_is_requested_once_more() -> None:
    job = Logged().run()
    job.machine._issued = [MarkPublished("1/1.manifest"), MarkPublished("1/2.manifest"), Delete(["x"])]
    job.machine.mark_done("1/1.manifest", job.now)
    assert job.machine._issued == [MarkPublished("1/2.manifest"), Delete(["x"])]


def test_parties_that_wait_get_their_answers_though_the_log_names_them_by_numbers() -> None:
    job = Logged().run()
    who = object()
    job.machine.checkpoint(who, job.now)
    job.deliver()
    for slot in range(3):
        job.ack(slot, 1)
    job.deliver()
    job.machine.commit_done(1, "1/1.manifest", "url", job.now)
    job.deliver()
    [ended] = [one for one in job.rest if isinstance(one, CheckpointEnded)]
    assert ended.waiting == (who,)
