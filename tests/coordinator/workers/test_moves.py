"""Planned moves: a worker whose machine is about to go is replaced behind a checkpoint, or all workers restart behind
one."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.coordinator.actions import CloseLink, Kill, Launch, Replacing, Restarting, StandbyLost, WorkerReplaced
from tailrace.coordinator.job.restarts import Fixed, Never
from tailrace.protocol.deployment import Deployed, Failed, FailureKind, Published
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.replay import Gained, KnownHistory, WorkerLost
from tailrace.protocol.replay import ReplayDone as SaidReplayed
from tailrace.protocol.snapshot import Declined, Trigger
from tailrace.protocol.standby import Hold, StateHeld, TakeSlot
from tests.coordinator.driving import LIMITS, PAUSE, SECOND, Job, S
from tests.coordinator.workers.test_standbys import Standing


def reported(job: Job, *starts: tuple[int, int]) -> list[Any]:
    """The driver reports that the machines of these starts are about to go. Returns the actions that follow at once."""
    job.machine.move(starts, job.now)
    return ticked(job)


def ticked(job: Job) -> list[Any]:
    job.machine.tick(job.now)
    return job.actions()


def messages(actions: list[Any], kind: type) -> list[Any]:
    return [one.message for one in actions if isinstance(getattr(one, "message", None), kind)]


def completed(job: Job) -> list[Any]:
    """The checkpoint under way becomes complete. Returns the actions that follow."""
    number = job.machine.checkpoints.next_id - 1
    for slot in (0, 1):
        job.ack(slot, number)
    job.commit()
    return ticked(job)


def held(job: Standing, place: int) -> list[Any]:
    """A standby holds what it was requested to hold."""
    standby = job.machine.roster.at(place)
    job.says(place, StateHeld(standby.sent, standby.slots))  # type: ignore[union-attr]
    return ticked(job)


def standing(standbys: int = 1, **options: Any) -> Standing:
    """A job whose standbys hold the state of its newest checkpoint."""
    job = Standing(standbys, **options).run()
    for place in range(2, 2 + standbys):
        job.stands_by(place)
    job.trigger()
    completed(job)
    for place in range(2, 2 + standbys):
        held(job, place)
    return job


def replaced(job: Standing, slot: int, place: int, launch: int = 1) -> list[Any]:
    """A standby has the place of a worker, and goes on."""
    job.survivor_knows(slot)
    assert job.comes(place, launch, slot=slot) is not None
    job.says(slot, SaidReplayed(len(job.machine.takeovers._histories[slot].messages)))
    return ticked(job)


# One worker is replaced.


def test_a_worker_that_moves_is_replaced_when_a_standby_holds_a_checkpoint_that_was_taken_for_it() -> None:
    job = standing()
    actions = reported(job, (1, 1))
    assert len(messages(actions, Trigger)) == 2 and not messages(actions, WorkerLost)
    actions = completed(job)
    assert messages(actions, Hold) and not messages(actions, WorkerLost), "the standby lacks what has changed"
    actions = held(job, 2)
    assert [one.slot for one in messages(actions, TakeSlot)] == [1]
    assert [one for one in actions if isinstance(one, CloseLink | Kill)] == [CloseLink(1, 1), Kill(1, 1)]
    assert [one.slice for one in messages(actions, WorkerLost)] == [1]
    [replacing] = [one for one in actions if isinstance(one, Replacing)]
    assert replacing.cause.message == "the executor of worker 1 is about to go, and its slot moves to another one"
    [done] = [one for one in replaced(job, 1, 2) if isinstance(one, WorkerReplaced)]
    assert done.slot == 1 and (job.status, job.machine.attempts.restarts) == (S.RUNNING, 0)


def test_a_standby_that_holds_nothing_yet_holds_two_checkpoints_first() -> None:
    """The first one may take long to read, and the replacement would repeat all of that time."""
    job = Standing(1).run()
    reported(job, (1, 1))
    assert not messages(completed(job), Hold)
    job.stands_by(2)
    job.actions()
    actions = held(job, 2)
    assert messages(actions, Trigger) and not messages(actions, WorkerLost)
    completed(job)
    assert [one.slot for one in messages(held(job, 2), TakeSlot)] == [1]


def test_a_report_that_is_repeated_changes_nothing_and_one_of_an_old_start_neither() -> None:
    job = standing()
    reported(job, (1, 1))
    assert reported(job, (1, 1)) == [] == reported(job, (0, 7))
    completed(job)
    held(job, 2)
    assert reported(job, (1, 1)) == [], "its worker is fenced, and the slot is another start's"
    replaced(job, 1, 2)
    assert reported(job, (1, 1)) == []
    assert messages(reported(job, (2, 1)), Trigger), "and that one may have to move as well"


def test_the_workers_of_an_executor_move_one_after_the_other() -> None:
    job = standing(2)
    holder = {slot: place for place in (2, 3) for slot in job.machine.roster.at(place).holding}  # type: ignore[union-attr]
    reported(job, (0, 1), (1, 1))
    completed(job)
    assert not messages(held(job, holder[1]), TakeSlot)
    assert [one.slot for one in messages(held(job, holder[0]), TakeSlot)] == [0]
    actions = replaced(job, 0, holder[0])
    assert [one for one in actions if isinstance(one, Launch)] == [Launch(holder[0], 2)], "a standby for the next ones"
    assert len(messages(actions, Trigger)) == 2 and not messages(actions, TakeSlot)
    completed(job)
    assert [one.slot for one in messages(held(job, holder[1]), TakeSlot)] == [1]
    replaced(job, 1, holder[1])
    assert (job.machine.attempts.restarts, job.machine.takeovers.count) == (0, 2)


class Beside(Standing):
    """A job of six slots, two in each of three executors, whose standbys hold the state of its newest checkpoint."""

    def __init__(self, standbys: int, **options: Any) -> None:
        super().__init__(standbys, slots=6, executors="aabbcc", **options)
        self.start()
        for slot in range(6):
            self.hello(slot, host="h", executor=self.executors[slot])
        self.deployed()
        for place in self.standbys:
            self.stands_by(place)
        self.machine.checkpoint("somebody", self.now)
        self.complete()
        self.hold()
        self.actions()

    @property
    def standbys(self) -> range:
        return range(6, len(self.machine.roster.places))

    def complete(self) -> list[Any]:
        number = self.machine.checkpoints.next_id - 1
        for slot in range(6):
            self.ack(slot, number)
        self.commit()
        return ticked(self)

    def hold(self, *places: int) -> list[Any]:
        """Standbys hold what they were requested to hold."""
        found = list[Any]()
        for place in places or self.standbys:
            found += held(self, place)
        return found

    def taken(self, actions: list[Any]) -> list[int]:
        """The slots that standbys are sent to take; they take them, and go on."""
        takes = [(one.slot, one.message.slot) for one in actions if isinstance(getattr(one, "message", None), TakeSlot)]
        for lost in [slot for _, slot in takes]:
            for survivor in set(range(6)) - {slot for _, slot in takes}:
                self.says(survivor, KnownHistory(lost, Gained(0, []), [], self.machine.takeovers.turn))
        for place, slot in takes:
            assert self.comes(place, slot=slot) is not None
        for _, slot in takes:
            self.says(slot, SaidReplayed(len(self.machine.takeovers._histories[slot].messages)))
        return sorted(slot for _, slot in takes)


@pytest.mark.parametrize(("depth", "together"), [(1, [0, 1]), (2, [0, 1, 2, 3])])
def test_the_workers_of_as_many_executors_move_together_as_may_be_lost_at_once(depth: int, together: list[int]) -> None:
    job = Beside(6, depth=depth, replicas=6)
    actions = reported(job, (0, 1), (1, 1), (2, 1), (3, 1))
    assert len(messages(actions, Trigger)) == 6
    assert not messages(job.complete(), TakeSlot)
    actions = job.hold()
    assert job.taken(actions) == together
    assert (job.machine.attempts.restarts, job.machine.takeovers.count) == (0, len(together))
    ended = [one.slot for one in actions if isinstance(one, CloseLink)]
    assert ended == together, "the others live"
    assert len(messages(ticked(job), Trigger)) == (6 if depth == 1 else 0), "those of the other executor follow"


def test_workers_for_which_there_is_no_standby_move_behind_the_others() -> None:
    job = Beside(1)
    reported(job, (0, 1), (1, 1))
    job.complete()
    assert job.taken(job.hold()) == [0]
    actions = ticked(job)
    assert [one.slot for one in actions if isinstance(one, Launch)] == [6] and len(messages(actions, Trigger)) == 6
    assert job.machine.attempts.restarts == 0


def test_a_move_waits_for_the_standbys_of_all_that_move_with_it() -> None:
    job = Beside(2)
    first, other = ({*job.machine.roster.at(place).holding} for place in job.standbys)  # type: ignore[union-attr]
    assert (0 in first) != (1 in first) and (0 in other) != (1 in other), "one standby is for each of the two"
    reported(job, (0, 1), (1, 1))
    job.complete()
    assert not messages(job.hold(6), TakeSlot)
    assert job.taken(job.hold(7)) == [0, 1]


def test_where_the_wait_is_over_those_move_for_which_there_is_a_standby() -> None:
    job = Beside(2)
    reported(job, (0, 1), (1, 1))
    job.complete()
    mine = [slot for slot in (0, 1) if slot in job.machine.roster.at(6).slots]  # type: ignore[union-attr]
    job.hold(6)
    job.wait(LIMITS.move / SECOND)
    assert job.taken(job.actions()) == mine


def test_a_standby_whose_machine_is_about_to_go_is_started_elsewhere_at_once() -> None:
    job = standing()
    actions = reported(job, (2, 1), (1, 1))
    assert [one for one in actions if isinstance(one, CloseLink | Kill | Launch)] == [
        CloseLink(2, 1),
        Kill(2, 1),
        Launch(2, 2),
    ]
    assert [one.reason for one in actions if isinstance(one, StandbyLost)] == ["its executor is about to go"]
    assert not messages(completed(job), TakeSlot), "no standby is there that may take the slot"


def test_a_wait_that_is_over_moves_the_worker_whatever_standbys_hold() -> None:
    job = standing()
    reported(job, (1, 1))
    job.wait(LIMITS.move / SECOND - 1)
    assert not job.said(TakeSlot)
    job.wait(1)
    assert [one.slot for one in job.said(TakeSlot)] == [1]


def test_a_slice_that_no_standby_can_hold_is_not_waited_for() -> None:
    """A function of it cannot be copied: whichever process takes the slot reads all of its state."""
    job = standing()
    reported(job, (1, 1))
    completed(job)
    job.says(2, StateHeld(2, [0]))
    assert [one.slot for one in messages(ticked(job), TakeSlot)] == [1]


def test_with_no_standbys_spark_starts_the_replacement_behind_the_checkpoint() -> None:
    job = Job(standbys=0).run()
    assert not [one for one in reported(job, (1, 1)) if isinstance(one, Launch)]
    actions = completed(job)
    assert [one for one in actions if isinstance(one, Kill | Launch)] == [Kill(1, 1), Launch(1, 2)]
    assert job.machine.attempts.restarts == 0


def test_a_machine_that_goes_earlier_is_a_loss_like_any_other() -> None:
    job = standing()
    reported(job, (1, 1))
    job.lose(1)
    actions = ticked(job)
    assert [one.slot for one in messages(actions, TakeSlot)] == [1]
    assert job.machine.moves.due_at is None and "was lost: reset" in next(
        one.cause.message for one in actions if isinstance(one, Replacing)
    )


def test_a_move_waits_for_another_replacement_and_begins_behind_it() -> None:
    job = standing()
    job.lose(0)
    assert not messages(reported(job, (1, 1)), Trigger)
    actions = replaced(job, 0, 2)
    assert len(messages(actions, Trigger)) == 2


def test_behind_a_restart_the_wait_begins_anew() -> None:
    job = standing()
    reported(job, (1, 1))
    job.fails()
    job.claimed(2)
    for message in (WasReset(1), Deployed()):
        for slot in (0, 1):
            job.says(slot, message)
        job.wait(PAUSE)
    job.says(0, Published(0))
    assert len(messages(ticked(job), Trigger)) == 2
    completed(job)
    assert messages(held(job, 2), TakeSlot)


def test_where_a_replacement_does_not_cover_the_move_all_workers_restart_when_the_wait_is_over() -> None:
    job = standing(restarts=Fixed(0, 0))
    job.machine.takeovers._lost_since[1] = 3
    reported(job, (1, 1))
    job.wait(LIMITS.move / SECOND)
    assert [one.cause.kind for one in job.actions(Restarting)] == [FailureKind.MOVED], "no strategy counts it"


def test_a_job_that_may_not_restart_still_replaces_workers() -> None:
    job = standing(restarts=Never())
    job.machine.takeovers._lost_since[1] = 3
    reported(job, (1, 1))
    job.wait(LIMITS.move / SECOND)
    assert job.actions((Restarting, Replacing)) == [] and job.status is S.RUNNING
    reported(job, (1, 1))
    completed(job)
    completed(job)
    assert messages(held(job, 2), TakeSlot)


# Workers report it themselves.


def seen(job: Job, place: int) -> list[Any]:
    """The sign of life of a worker reports that its executor is about to go. Returns the actions that follow at once."""
    job.machine.heartbeat(place, 10 + place, job.now, leaving=True)
    return ticked(job)


def test_a_worker_whose_sign_of_life_reports_that_its_executor_goes_moves_when_a_standby_is_for_it() -> None:
    job = standing()
    assert len(messages(seen(job, 1), Trigger)) == 2 and seen(job, 1) == []
    completed(job)
    assert [one.slot for one in messages(held(job, 2), TakeSlot)] == [1]
    replaced(job, 1, 2)
    assert seen(job, 1) == [], "another process has the slot"


def test_a_standby_that_reports_it_is_started_elsewhere() -> None:
    job = standing()
    assert [one for one in seen(job, 2) if isinstance(one, Launch)] == [Launch(2, 2)]


def test_where_nobody_knows_whether_there_is_room_elsewhere_no_worker_moves_without_a_standby() -> None:
    for job in (Job(standbys=0).run(), Job().run()):
        assert seen(job, 1) == []
    job = Standing(1).run()
    seen(job, 1)
    job.wait(LIMITS.move / SECOND + 1)
    assert job.actions((Restarting, Replacing)) == [] and job.status is S.RUNNING


# All workers restart, where the job replaces none.


def test_a_worker_that_moves_is_no_failure() -> None:
    """The job goes on elsewhere, and has as many restarts left as before."""
    job = Job(restarts=Fixed(1, PAUSE * SECOND)).run()
    for attempt in (1, 2, 3):
        assert len(messages(reported(job, (1, attempt)), Trigger)) == 2
        changed = [one for one in completed(job) if isinstance(one, Launch | Kill | CloseLink)]
        assert changed == [CloseLink(1, attempt), Kill(1, attempt), Launch(1, attempt + 1)]
        assert (job.status, job.machine.attempts.restarts) == (S.RESTARTING, attempt)
        job.claimed(attempt + 1)
        job.says(0, WasReset(attempt))
        job.ended(1, "cancelled", launch=attempt)
        job.hello(1)
        job.deployed()  # without a pause
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.status is S.RESTARTING


@pytest.mark.parametrize("what", ["fails", "takes too long"])
def test_a_move_waits_for_its_checkpoint_until_that_will_not_be_or_the_time_is_over(what: str) -> None:
    job = Job().run()
    reported(job, (1, 1))
    number = job.machine.checkpoints.next_id - 1
    if what == "fails":
        job.says(0, Declined(number, "the disk is full"))
        job.machine.tick(job.now)
    else:
        job.wait(LIMITS.move / SECOND - 1)
        assert job.status is S.RUNNING
        job.wait(1)
    assert job.status is S.RESTARTING


def test_the_checkpoint_of_an_earlier_move_does_not_count() -> None:
    job = Job(max_concurrent=1).run()
    before = job.trigger()
    reported(job, (1, 1))
    for slot in (0, 1):
        job.ack(slot, before)
    job.commit()
    assert job.status is S.RUNNING
    assert len(messages(ticked(job), Trigger)) == 2
    completed(job)
    assert job.status is S.RESTARTING


@pytest.mark.parametrize("which", ["an old start", "no restarts", "no checkpoints", "a job that restarts"])
def test_a_worker_does_not_move(which: str) -> None:
    """Where the job could not go on from where it is, its worker stays until its executor goes: the job may end before."""
    settings: dict[str, Any] = {"no restarts": {"restarts": Never()}, "no checkpoints": {"checkpoints": False}}.get(
        which, {}
    )
    job = Job(**settings).run()
    if which == "a job that restarts":
        job.says(0, Failed(FailureKind.USER, "it broke"))
        job.actions()
    assert reported(job, (1, 0 if which == "an old start" else 1)) == []
