"""Standbys: when they are started, the messages to them, and how one takes the slot of a worker that is lost."""

from __future__ import annotations

from typing import Any

from tailrace.coordinator.actions import CloseLink, Kill, Launch, NotReplaced, StandbyLost, WorkerReplaced
from tailrace.protocol.deployment import Deploy, Deployed, Failed, FailureKind, Hello, Leave, Welcome
from tailrace.protocol.replay import Gained, KnownHistory, Replaced, Resume
from tailrace.protocol.replay import ReplayDone as SaidReplayed
from tailrace.protocol.standby import Hold, StandBy, StandsBy, StateHeld, TakeSlot
from tailrace.state.manifest import decode_manifest
from tests.coordinator.driving import SECOND, Job, S


class Standing(Job):
    """A job of two slots, whose standbys have the places 2 and 3."""

    def __init__(self, standbys: int = 2, **options: Any) -> None:
        super().__init__(standbys=standbys, **options)
        self.epochs += [0] * standbys

    def run(self) -> Standing:
        self.start()
        for slot in range(2):
            self.hello(slot)
        self.deployed()
        return self

    def comes(
        self, place: int, launch: int = 1, slot: int | None = None, pid: int | None = None, host: str = ""
    ) -> int | None:
        """The process of a place sends `Hello`, for a slot that it is to take or for itself."""
        index = place if slot is None else slot
        pid = 10 + place if pid is None else pid
        other = None if slot is None else place
        epoch = self.machine.hello(Hello(index, host or f"h{place}", place, pid, "job", 1, launch, other), self.now)
        if epoch is not None:
            self.epochs[index] = epoch
        return epoch

    def stands_by(self, place: int, launch: int = 1, host: str = "") -> None:
        assert self.comes(place, launch, host=host) is not None
        self.says(place, StandsBy())

    def survivor_knows(self, lost: int) -> None:
        self.says(1 - lost, KnownHistory(lost, Gained(0, []), [], self.machine.takeovers.turn))


def standing() -> Standing:
    """Both are ready."""
    job = Standing().run()
    job.stands_by(2)
    job.stands_by(3)
    job.actions()
    return job


def test_standbys_are_started_once_the_job_runs_since_workers_come_first() -> None:
    job = Standing()
    job.start()
    assert job.actions(Launch) == [Launch(0), Launch(1)]
    for slot in range(2):
        job.hello(slot)
    assert job.actions(Launch) == []
    for slot in range(2):
        job.says(slot, Deployed())
    assert job.status is S.RUNNING
    assert job.actions(Launch) == [Launch(2), Launch(3)]


def test_a_standby_gets_the_plan_and_nothing_else() -> None:
    job = Standing().run()
    job.comes(2)
    assert [(slot, type(message)) for slot, message in job.sent()] == [(2, Welcome), (2, StandBy)]
    assert job.said(Deploy) == []


def test_a_standby_that_has_taken_a_slot_is_one_of_the_workers() -> None:
    job = standing()
    job.lose(1)
    found = job.actions()
    assert [(one.slot, one.message) for one in found if getattr(one, "slot", None) == 2] == [(2, TakeSlot(1))]
    assert [one for one in found if isinstance(one, Launch | Kill)] == [Kill(1)], "nobody is started for the slot"
    job.survivor_knows(1)
    assert job.comes(2, slot=1) == 2, "the epoch behind that of the lost one"
    (resume,) = job.said(Resume)
    assert [(peer.slot, peer.host, peer.epoch) for peer in resume.deploy.peers] == [(0, "h0", 1), (1, "h2", 2)]
    job.says(1, SaidReplayed(0))
    assert job.machine.takeovers.count == 1 and job.machine.attempts.restarts == 0
    job.wait(4)
    assert job.actions(Launch) == [], "the job catches up first, and has its cores for itself"
    job.wait(1)
    assert job.actions(Launch) == [Launch(2, 2)], "another one stands by in its place"
    job.wait(20)
    assert job.actions(Launch) == []


def test_no_standby_is_started_while_another_worker_is_replaced() -> None:
    job = standing()
    job.lose(1)
    job.survivor_knows(1)
    job.comes(2, slot=1)
    job.says(1, SaidReplayed(0))
    job.complete()
    job.wait(4)
    job.lose(0)
    job.actions()
    job.wait(2)
    assert job.actions(Launch) == []
    job.says(1, KnownHistory(0, Gained(0, []), [], job.machine.takeovers.turn))
    job.comes(3, slot=0)
    job.says(0, SaidReplayed(0))
    job.wait(5)
    assert job.actions(Launch) == [Launch(2, 2), Launch(3, 2)]


def test_a_start_belongs_to_one_place() -> None:
    """The end of the Spark job of a standby that holds a slot is the loss of the slot's worker; that of the next one in its
    place is not."""
    job = standing()
    job.lose(1)
    job.survivor_knows(1)
    job.comes(2, slot=1)
    job.says(1, SaidReplayed(0))
    job.complete()
    job.wait(5)
    job.actions()
    job.ended(2, "it was killed", launch=2)
    assert [one.place for one in job.actions(StandbyLost)] == [2] and job.machine.roster.slots[1].connected
    job.ended(2, "it was killed", launch=1)
    assert job.sent(TakeSlot) == [(3, TakeSlot(1))]


def test_signs_of_life_are_those_of_the_process_whatever_it_holds() -> None:
    job = standing()
    job.lose(1)
    job.survivor_knows(1)
    job.comes(2, slot=1)
    job.says(1, SaidReplayed(0))
    job.actions()
    for _ in range(20):
        job.now += SECOND
        for place, pid in ((0, 10), (2, 12), (3, 13)):
            job.machine.heartbeat(place, pid, job.now)
        job.machine.tick(job.now)
    assert job.status is S.RUNNING and job.actions(NotReplaced) == []
    for _ in range(20):
        job.now += SECOND
        job.machine.heartbeat(0, 10, job.now)
        job.machine.heartbeat(3, 13, job.now)
        job.machine.tick(job.now)
    assert job.machine.takeovers.active is not None or job.status is S.RESTARTING, "its worker is silent"


def test_a_standby_that_is_lost_is_started_again_and_nobody_else_notices() -> None:
    job = standing()
    job.lose(2)
    assert job.actions() == [StandbyLost(2, "it was lost: reset", False), Kill(2), Launch(2, 2)]
    assert job.status is S.RUNNING and job.machine.attempts.restarts == 0


def test_a_standby_that_never_comes_to_be_ready_is_left_after_three_starts() -> None:
    job = Standing(1).run()
    for launch in (1, 2, 3):
        job.comes(2, launch)
        job.says(2, Failed(FailureKind.IMPORT, "no module named numpy"))
        found = job.actions()
        assert [one.left for one in found if isinstance(one, StandbyLost)] == [launch == 3]
        assert any(isinstance(one, CloseLink) for one in found)
    assert job.status is S.RUNNING
    job.restart()
    job.deployed()
    assert job.machine.roster.standbys.all[0].launches == 4, "the job runs anew: it gets another chance"


def test_a_silent_standby_is_replaced() -> None:
    job = standing()
    for _ in range(12):
        job.now += SECOND
        for place in (0, 1, 3):
            job.machine.heartbeat(place, 10 + place, job.now)
        job.machine.tick(job.now)
    found = job.actions()
    assert [one.reason for one in found if isinstance(one, StandbyLost)] == ["it has given no sign of life for 10 s"]
    assert [one for one in found if isinstance(one, CloseLink | Launch)] == [CloseLink(2, 1), Launch(2, 2)]


def held(job: Standing) -> dict[int, list[int]]:
    """The slices in `Hold` messages to standbys since the last call."""
    return {place: holding.slots for place, holding in job.sent(Hold)}


def test_slices_are_dealt_to_those_that_have_come_each_to_another_executor_than_its_worker_is_in() -> None:
    job = Standing().run()
    job.stands_by(2, host="h0")
    job.stands_by(3, host="h1")
    job.complete()
    assert held(job) == {2: [1], 3: [0]}, "slot 0 is on h0, slot 1 on h1"


def test_who_comes_later_gets_what_nobody_holds_and_others_are_not_told_again() -> None:
    job = Standing().run()
    job.stands_by(2)
    first = job.complete()
    assert held(job) == {2: [0]}, "its memory is not to grow because the other one is late"
    job.says(2, StateHeld(first, [0]))
    job.stands_by(3)
    assert held(job) == {3: [1]}
    job.complete()
    assert held(job) == {2: [0], 3: [1]}


def test_who_says_late_that_it_holds_what_it_is_to_drop_does_not_hold_it() -> None:
    job = Standing(3, replicas=2).run()
    job.stands_by(2, host="a")
    job.stands_by(3, host="a")
    first = job.complete()
    assert held(job) == {2: [0, 1], 3: [0, 1]}
    job.stands_by(4, host="b")
    assert held(job) == {2: [1], 3: [0], 4: [0, 1]}, "a second replica is in another executor, now that there is one"
    job.says(3, StateHeld(first, [0, 1]))
    assert job.machine.roster.standbys.all[1].holding == [0]


def test_what_the_one_held_that_has_taken_a_slot_is_dealt_to_the_next_one_in_its_place() -> None:
    job = standing()
    job.complete()
    assert held(job) == {2: [0], 3: [1]}
    job.lose(1)
    assert job.sent(TakeSlot) == [(2, TakeSlot(1))], "none has said by then that it holds anything"
    job.survivor_knows(1)
    job.comes(2, slot=1)
    job.says(1, SaidReplayed(0))
    job.wait(5)
    job.stands_by(2, launch=2)
    assert held(job) == {2: [0]}


def test_a_standby_is_to_hold_each_complete_checkpoint_from_when_it_is_ready() -> None:
    job = Standing(1).run()
    first = job.complete()
    assert job.sent(Hold) == []
    job.stands_by(2)
    [(place, hold)] = job.sent(Hold)
    assert (place, hold.checkpoint, hold.slots) == (2, first, [0, 1])
    assert decode_manifest(hold.manifest, "it").checkpoint == first
    second = job.complete(b"prepared by a sink")
    [(_, hold)] = job.sent(Hold)
    assert hold.checkpoint == second and decode_manifest(hold.manifest, "it").prepared == []


def test_the_one_that_holds_the_newest_of_a_slice_takes_it() -> None:
    job = Standing(2, replicas=2).run()
    job.stands_by(2)
    job.stands_by(3)
    number = job.complete()
    job.says(3, StateHeld(number, [0]))
    job.actions()
    job.lose(0)
    assert job.sent(TakeSlot) == [(3, TakeSlot(0))]
    job = Standing(2, replicas=2).run()
    job.stands_by(2)
    job.stands_by(3)
    first = job.complete()
    job.says(2, StateHeld(first, [0, 1]))
    job.says(3, StateHeld(first, [0, 1]))
    second = job.complete()
    job.says(3, StateHeld(second, [0, 1]))
    job.actions()
    job.lose(1)
    assert job.sent(TakeSlot) == [(3, TakeSlot(1))]


def test_a_ready_standby_goes_before_one_that_still_imports() -> None:
    job = Standing().run()
    job.comes(2)
    job.stands_by(3)
    job.actions()
    job.lose(0)
    assert job.sent(TakeSlot) == [(3, TakeSlot(0))]


def test_where_the_standby_is_lost_as_well_another_one_takes_the_slot() -> None:
    job = standing()
    job.lose(1)
    assert job.sent(TakeSlot) == [(2, TakeSlot(1))]
    job.lose(2)
    found = job.actions()
    assert [(one.slot, one.message) for one in found if hasattr(one, "message")] == [(3, TakeSlot(1))]
    assert Kill(2) in found
    job.survivor_knows(1)
    job.comes(3, slot=1)
    assert [slot for slot, _ in job.sent(Resume)] == [1]
    job.says(1, SaidReplayed(0))
    assert job.status is S.RUNNING and job.machine.attempts.restarts == 0


def test_where_no_standby_is_left_a_worker_is_started() -> None:
    job = standing()
    job.lose(1)
    job.lose(2)
    job.actions()
    job.lose(3)
    assert job.actions(Launch) == [Launch(1, 2)]
    assert job.status is S.RUNNING


def test_after_three_losses_all_start_again() -> None:
    job = Standing(3).run()
    for place in (2, 3, 4):
        job.stands_by(place)
    job.actions()
    for lost in (1, 2, 3):
        job.lose(lost)
    assert job.status is S.RUNNING
    job.lose(4)
    assert job.status is S.RESTARTING


def test_a_standby_that_comes_while_a_slot_waits_takes_it_and_the_start_that_waits_is_ended() -> None:
    """Spark had one task slot left, and gave it to the standby that had requested one first: worker and standby waited
    for each other."""
    job = Standing(1).run()
    job.lose(1)
    assert job.actions(Launch) == [Launch(1, 2)]
    job.survivor_knows(1)
    job.comes(2)
    found = job.actions()
    assert Kill(1, 2) in found
    assert [one.message for one in found if getattr(one, "slot", None) == 2][-1] == TakeSlot(1)
    job.comes(2, slot=1)
    assert [slot for slot, _ in job.sent(Resume)] == [1]


def test_one_takes_the_slot_at_a_restart_as_well() -> None:
    job = standing()
    job.lose(1)
    job.lose(0)
    assert job.status is S.RESTARTING, "two at once are not covered"
    assert job.sent(TakeSlot) == [(2, TakeSlot(1)), (3, TakeSlot(0))]
    job.claimed()
    job.comes(2, slot=1)
    job.comes(3, slot=0)
    job.wait(5)
    job.machine.tick(job.now)
    assert sorted(slot for slot, _ in job.sent(Deploy)) == [0, 1]


def test_a_worker_that_was_lost_may_not_say_hello_again() -> None:
    job = standing()
    job.lose(1)
    assert job.comes(1) is None
    assert job.comes(2) is None, "nor may its successor for the place that it had"


def test_a_standby_whose_slot_was_given_to_another_one_may_not_take_it() -> None:
    job = standing()
    job.lose(1)
    job.lose(2)
    assert job.comes(2, slot=1) is None
    assert job.comes(3, slot=1) is not None


def test_who_is_replaced_is_told_by_its_slot() -> None:
    job = standing()
    job.lose(1)
    job.survivor_knows(1)
    job.comes(2, slot=1)
    assert [(slot, message.peer.slot) for slot, message in job.sent(Replaced)] == [(0, 1)]
    job.says(1, SaidReplayed(0))
    assert [one.slot for one in job.actions(WorkerReplaced)] == [1]


def test_at_the_end_standbys_leave_and_those_that_wait_for_spark_are_not_wanted_any_more() -> None:
    job = Standing().run()
    job.stands_by(2)
    job.actions()
    job.machine.cancel(job.now)
    found = job.actions()
    assert {one.slot for one in found if isinstance(getattr(one, "message", None), Leave)} == {0, 1, 2}
    assert [one for one in found if isinstance(one, Kill)] == [Kill(3)]
    for place in (0, 1, 2, 3):
        assert not job.status.final
        job.ended(place)
    assert job.status is S.CANCELLED
