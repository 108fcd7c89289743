"""An elastic job, as its coordinator sees it: the task slots that there are, and the size that follows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from driving import SECOND, Job, S

from tailrace.coordinator.actions import Kill, Launch, NotResized, RescaleEnded, Resizing, Send
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.workers.rescaling import Elasticity, ElasticSizes, JobSize
from tailrace.protocol.deployment import Deploy, Deployed, FailureKind, Leave, SubtasksFinished
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.snapshot import Trigger
from tailrace.protocol.standby import TakeSlot
from tailrace.state.manifest import Manifest


def size(slots: int, **other: Any) -> JobSize:
    return JobSize(slots, b"a plan for %d" % slots, text=str(slots), **other)


def sizes(least: int = 1, most: int = 4, **other: Any) -> ElasticSizes:
    return ElasticSizes(least, most, **{"make": size, **other})


def running(slots: int = 3, **other: Any) -> Job:
    job = Job(slots=slots, elastic=sizes(**other)).run()
    job.actions()
    return job


def room(job: Job, count: int, seconds: float = 12) -> list[Any]:
    """Spark reports so many task slots, and time goes by. Returns the actions that follow."""
    job.machine.room(count, job.now)
    job.epochs += [0] * (6 - len(job.epochs))
    job.wait(seconds)
    return job.actions()


def lost(job: Job, *slots: int) -> None:
    """Workers are lost, and Spark starts no others; the rest have dropped what they ran, and time has passed."""
    for slot in slots:
        job.lose(slot)
    job.claimed(job.machine.incarnation + 1)
    for slot in job.machine.roster.slots:
        if slot.connected:
            job.says(slot.index, WasReset(slot.attempt))
    job.actions()
    job.wait(16)


def joins(job: Job, slot: int) -> None:
    launches = job.machine.roster.at(slot).launches
    epoch = job.hello(slot, launch=launches)
    assert epoch is not None


def moves_in(job: Job, place: int, slot: int) -> None:
    """A worker takes another slot, as it was told."""
    start = job.machine.roster.at(slot).start
    assert start is not None
    assert job.hello(slot, launch=start[1], place=place, pid=10 + place) is not None


def reset(job: Job) -> None:
    for slot in job.machine.roster.slots:
        if slot.connected and not slot.clean:
            job.says(slot.index, WasReset(slot.attempt))


def runs(job: Job) -> None:
    for slot in range(len(job.machine.roster.slots)):
        job.says(slot, Deployed())
    job.published()
    assert job.status is S.RUNNING


def cut(job: Job) -> int:
    job.machine.tick(job.now)
    numbers = {message.cut.number for _, message in job.sent(Trigger) if message.cut.hold}
    assert len(numbers) == 1
    return int(numbers.pop())


def sealed(job: Job, number: int) -> None:
    for slot in range(len(job.machine.roster.slots)):
        job.ack(slot, number)
    job.commit()


def test_a_restart_that_finds_fewer_slots_goes_on_with_the_workers_that_are_there() -> None:
    job = running()
    lost(job, 2)
    [resizing] = job.actions(Resizing)
    assert (resizing.before, resizing.after) == (
        3,
        2,
    ) and "3 task slots are needed, and Spark gave 2" in resizing.lacking
    reset(job)
    assert {message.plan for _, message in job.sent(Deploy)} == {b"a plan for 2"}
    runs(job)
    assert (
        len(job.machine.roster.slots) == 2 and job.machine.attempts.restarts - job.machine.course.rescaling.count == 1
    )


def test_a_worker_behind_takes_the_slot_in_front_that_has_none() -> None:
    """Slots are numbered from 0, and their workers are those that are left, whichever were lost."""
    job = running()
    job.lose(0)
    job.claimed(2)
    for slot in (1, 2):
        job.says(slot, WasReset(1))
    job.wait(16)
    actions = job.actions()
    [order] = [one for one in actions if isinstance(one, Send) and isinstance(one.message, TakeSlot)]
    assert (order.slot, order.message.slot) == (2, 0)
    assert Kill(0, 2) in actions  # the start that waits for a task slot
    reset(job)
    assert job.sent(Deploy) == []
    moves_in(job, 2, 0)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1]
    runs(job)


def test_the_worker_that_was_to_take_a_slot_may_be_lost_as_well() -> None:
    job = running()
    job.lose(0)
    job.claimed(2)
    for slot in (1, 2):
        job.says(slot, WasReset(1))
    job.wait(16)
    reset(job)
    job.lose(2)
    launched = job.actions(Launch)
    assert [one.slot for one in launched][-1] == 0
    job.claimed(job.machine.incarnation + 1)
    reset(job)
    job.wait(20)
    assert len(job.machine.roster.slots) == 1
    reset(job)
    moved = [message for _, message in job.sent(TakeSlot)]
    assert moved == [TakeSlot(0)]
    moves_in(job, 1, 0)
    runs(job)


def test_below_the_least_it_waits_and_fails_with_the_numbers() -> None:
    job = running(least=2)
    lost(job, 1, 2)
    assert job.actions(Resizing) == [] and job.status is S.RESTARTING
    job.wait(60)
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.kind is FailureKind.SLOTS


def test_a_worker_that_comes_in_time_changes_nothing() -> None:
    job = running()
    job.lose(2)
    job.claimed(2)
    for slot in (0, 1):
        job.says(slot, WasReset(1))
    job.wait(6)
    joins(job, 2)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1, 2]
    job.wait(20)
    assert job.actions(Resizing) == []


def test_it_grows_when_there_have_been_more_slots_for_a_while() -> None:
    job = running(2)
    assert room(job, 2, 20) == []
    assert [one for one in room(job, 4, 1) if isinstance(one, Launch)] == []
    job.machine.room(3, job.now)
    job.wait(1)
    assert job.actions(Launch) == []  # the number has changed since
    job.wait(2)
    assert [one.slot for one in job.actions(Launch)] == [2]
    joins(job, 2)
    sealed(job, cut(job))
    assert [(one.before, one.after) for one in job.actions(Resizing)] == [(2, 3)]
    job.claimed(2)
    reset(job)
    runs(job)


def test_it_never_has_more_than_the_most() -> None:
    job = running(2, most=3)
    launched = [one.slot for one in room(job, 100) if isinstance(one, Launch)]
    assert launched == [2]


def test_slots_that_are_gone_take_no_worker_away_that_lives() -> None:
    job = running()
    assert room(job, 1, 30) == [] and job.status is S.RUNNING


def test_where_not_all_come_it_goes_on_with_those_that_have_come() -> None:
    job = running(1)
    launched = [one.slot for one in room(job, 4) if isinstance(one, Launch)]
    assert launched == [1, 2, 3]
    joins(job, 3)
    for _ in range(12):
        job.wait(1)
        job.machine.heartbeat(3, 13, job.now)
    actions = job.actions()
    [order] = [one for one in actions if isinstance(one, Send) and isinstance(one.message, TakeSlot)]
    assert (order.slot, order.message.slot) == (3, 1)
    assert Kill(2, 1) in actions and Kill(1, 1) in actions
    moves_in(job, 3, 1)
    sealed(job, cut(job))
    assert [(one.before, one.after) for one in job.actions(Resizing)] == [(1, 2)]


def test_an_attempt_to_grow_that_fails_is_made_again_after_longer_and_longer() -> None:
    job = running(2)
    room(job, 4)
    tried = []
    for second in range(1, 400):
        job.wait(1)
        if any(isinstance(one, Launch) for one in job.actions()):
            tried.append(second)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert 2 <= len(tried) <= 6 and job.status is S.RUNNING


def test_a_request_is_what_it_is_to_have_from_then_on() -> None:
    job = running(4)
    job.machine.rescale("somebody", size(2), job.now)
    sealed(job, cut(job))
    job.claimed(2)
    for slot in range(4):
        job.says(slot, WasReset(1))
    runs(job)
    job.actions()
    room(job, 4, 60)
    assert len(job.machine.roster.slots) == 2 and not job.machine.course.rescaling.active
    job.machine.rescale("somebody", size(9), job.now)
    [answer] = job.actions(RescaleEnded)
    assert answer.reason == "it is elastic, with 1 to 4 workers (tr.Elastic)"


def unfit(manifest: Manifest) -> str:
    return "the state of 'totals' cannot be dealt out"


def test_state_that_cannot_be_dealt_out_fails_it_with_the_reason() -> None:
    job = running(make=lambda slots: size(slots, fits=unfit))
    number = job.trigger_of_all()
    sealed(job, number)
    lost(job, 2)
    assert job.actions(Resizing) == []
    job.wait(60)
    assert job.machine.cause is not None and "cannot be dealt out" in job.machine.cause.message


def test_a_stop_or_the_end_of_the_input_comes_first() -> None:
    job = running(2)
    job.machine.stop("who stops", Aim(), job.now)
    assert [one for one in room(job, 4, 5) if isinstance(one, Launch)] == []
    job = running(2)
    for slot in (0, 1):
        job.says(slot, SubtasksFinished([]))
    assert [one for one in room(job, 4, 5) if isinstance(one, Launch)] == []


def test_a_job_that_begins_with_too_few_slots_begins_with_fewer_workers() -> None:
    job = Job(slots=3, elastic=sizes())
    job.start()
    job.hello(0), job.hello(1)
    job.wait(12)
    assert [(one.before, one.after) for one in job.actions(Resizing)] == [(3, 2)]
    reset(job)
    runs(job)
    assert job.machine.course.rescaling.size.slots == 2


def test_workers_that_were_to_join_take_the_slots_of_lost_ones() -> None:
    job = running(2)
    room(job, 4)
    joins(job, 2), joins(job, 3)
    job.lose(1)
    job.claimed(2)
    job.says(0, WasReset(1))
    job.actions()
    for _ in range(16):
        job.wait(1)
        job.machine.heartbeat(2, 12, job.now), job.machine.heartbeat(3, 13, job.now)
    actions = job.actions()
    [order] = [one for one in actions if isinstance(one, Send) and isinstance(one.message, TakeSlot)]
    assert order.message.slot == 1 and len(job.machine.roster.slots) == 2
    assert any(isinstance(one, NotResized) for one in actions)
    reset(job)
    moves_in(job, order.slot, 1)
    runs(job)
    assert [one.slot for one in job.actions(Send) if isinstance(one.message, Leave)] == [5 - order.slot]


@pytest.mark.parametrize(("wanted", "there", "now_in", "aim"), [(4, 2, 3, 3), (4, 4, 3, 4), (2, 4, 3, 2), (9, 9, 3, 4)])
def test_the_aim_is_what_is_wanted_as_far_as_there_is_room(wanted: int, there: int, now_in: int, aim: int) -> None:
    elastic = Elasticity(sizes(), now_in)
    elastic.want(wanted)
    elastic.note_room(there, SECOND)
    assert elastic.aim(now_in) == aim


def test_standbys_count_where_there_is_room_for_more_workers() -> None:
    elastic = Elasticity(sizes(processes=lambda workers: workers + -(-workers // 2)), 1)
    elastic.note_room(4, SECOND)
    assert elastic.room == 2
