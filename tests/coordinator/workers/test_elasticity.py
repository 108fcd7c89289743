"""An elastic job, as its coordinator sees it: the task slots that there are, and the size that follows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from driving import SECOND, Job, S
from sizes import cut, drop, joins, reset, runs, sealed, size

from tailrace.coordinator.actions import Kill, Launch, NotResized, RescaleEnded, Resizing, Send
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.workers.rescaling import Elasticity, ElasticSizes
from tailrace.protocol.deployment import Deploy, FailureKind, Leave, SubtasksFinished
from tailrace.protocol.standby import TakeSlot
from tailrace.state.manifest import Manifest


def sizes(least: int = 1, most: int = 4, **other: Any) -> ElasticSizes:
    return ElasticSizes(least, most, **{"make": size, **other})


def running(slots: int = 3, **other: Any) -> Job:
    job = Job(slots=slots, elastic=sizes(**other)).run()
    job.actions()
    return job


def lost(job: Job, *slots: int) -> None:
    """Workers are lost, Spark starts no others, and the rest have dropped what they ran."""
    for slot in slots:
        job.lose(slot)
    reset(job)
    job.actions()


def lost_for_long(job: Job, *slots: int) -> list[Any]:
    """As `lost`, and time has passed. Returns the actions that follow."""
    lost(job, *slots)
    job.wait(16)
    return job.actions()


def order(actions: list[Any]) -> tuple[int, int]:
    """The one worker that is to take another slot, and that slot."""
    [one] = [one for one in actions if isinstance(one, Send) and isinstance(one.message, TakeSlot)]
    return one.slot, one.message.slot


def launched(actions: list[Any]) -> list[int]:
    return [one.slot for one in actions if isinstance(one, Launch)]


def sizes_in(actions: list[Any]) -> list[tuple[int, int]]:
    """The changes of size, from and to."""
    return [(one.before, one.after) for one in actions if isinstance(one, Resizing)]


def room(job: Job, count: int, seconds: float = 12) -> list[Any]:
    """Spark reports so many task slots, and time goes by. Returns the actions that follow."""
    job.machine.room(count, job.now)
    job.epochs += [0] * (6 - len(job.epochs))
    job.wait(seconds)
    return job.actions()


def moves_in(job: Job, place: int, slot: int) -> None:
    """A worker takes another slot, as it was told."""
    start = job.machine.roster.at(slot).start
    assert start is not None
    assert job.hello(slot, launch=start[1], place=place, pid=10 + place) is not None


def test_a_restart_that_finds_fewer_slots_goes_on_with_the_workers_that_are_there() -> None:
    job = running()
    actions = lost_for_long(job, 2)
    [resizing] = [one for one in actions if isinstance(one, Resizing)]
    assert (resizing.before, resizing.after) == (3, 2)
    assert "3 task slots are needed, and Spark gave 2" in resizing.lacking
    drop(job)
    assert {message.plan for _, message in job.sent(Deploy)} == {b"a plan for 2"}
    runs(job)
    assert len(job.machine.roster.slots) == 2
    assert job.machine.attempts.restarts - job.machine.course.rescaling.count == 1


def test_a_worker_behind_takes_the_slot_in_front_that_has_none() -> None:
    """Slots are numbered from 0, and their workers are those that are left, whichever were lost."""
    job = running()
    actions = lost_for_long(job, 0)
    assert order(actions) == (2, 0)
    assert Kill(0, 2) in actions  # the start that waits for a task slot
    drop(job)
    assert job.sent(Deploy) == []
    moves_in(job, 2, 0)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1]
    runs(job)


def test_the_worker_that_was_to_take_a_slot_may_be_lost_as_well() -> None:
    job = running()
    lost_for_long(job, 0)
    drop(job)
    job.lose(2)
    assert launched(job.actions())[-1] == 0
    reset(job)
    job.wait(20)
    assert len(job.machine.roster.slots) == 1
    drop(job)
    assert order(job.actions()) == (1, 0)
    moves_in(job, 1, 0)
    runs(job)


def test_below_the_least_it_waits_and_fails_with_the_numbers() -> None:
    job = running(least=2)
    assert sizes_in(lost_for_long(job, 1, 2)) == [] and job.status is S.RESTARTING
    job.wait(60)
    assert job.status is S.FAILING
    assert job.machine.cause is not None and job.machine.cause.kind is FailureKind.SLOTS


def test_a_worker_that_comes_in_time_changes_nothing() -> None:
    job = running()
    lost(job, 2)
    job.wait(6)
    joins(job, 2)
    assert [slot for slot, _ in job.sent(Deploy)] == [0, 1, 2]
    job.wait(20)
    assert sizes_in(job.actions()) == []


def test_it_grows_when_there_have_been_more_slots_for_a_while() -> None:
    job = running(2)
    assert room(job, 2, 20) == []
    assert launched(room(job, 4, 1)) == []
    assert launched(room(job, 3, 1)) == []  # the number has changed since
    job.wait(2)
    assert launched(job.actions()) == [2]
    joins(job, 2)
    assert sizes_in(sealed(job, cut(job))) == [(2, 3)]
    reset(job)
    runs(job)


def test_it_never_has_more_than_the_most() -> None:
    job = running(2, most=3)
    assert launched(room(job, 100)) == [2]


def test_slots_that_are_gone_take_no_worker_away_that_lives() -> None:
    job = running()
    assert room(job, 1, 30) == [] and job.status is S.RUNNING


def test_where_not_all_come_it_goes_on_with_those_that_have_come() -> None:
    job = running(1)
    assert launched(room(job, 4)) == [1, 2, 3]
    joins(job, 3)
    for _ in range(12):
        job.wait(1)
        job.machine.heartbeat(3, 13, job.now)
    actions = job.actions()
    assert order(actions) == (3, 1)
    assert Kill(2, 1) in actions and Kill(1, 1) in actions
    moves_in(job, 3, 1)
    assert sizes_in(sealed(job, cut(job))) == [(1, 2)]


def test_an_attempt_to_grow_that_fails_is_made_again_after_longer_and_longer() -> None:
    job = running(2)
    room(job, 4)
    tried = []
    for second in range(1, 400):
        job.wait(1)
        if launched(job.actions()):
            tried.append(second)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert 2 <= len(tried) <= 6 and job.status is S.RUNNING


def test_a_request_is_what_it_is_to_have_from_then_on() -> None:
    job = running(4)
    job.machine.rescale("somebody", size(2), job.now)
    sealed(job, cut(job))
    reset(job, *range(4))
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
    assert sizes_in(lost_for_long(job, 2)) == []
    job.wait(60)
    assert job.machine.cause is not None and "cannot be dealt out" in job.machine.cause.message


def test_a_stop_or_the_end_of_the_input_comes_first() -> None:
    job = running(2)
    job.machine.stop("who stops", Aim(), job.now)
    assert launched(room(job, 4, 5)) == []
    job = running(2)
    for slot in (0, 1):
        job.says(slot, SubtasksFinished([]))
    assert launched(room(job, 4, 5)) == []


def test_a_job_that_begins_with_too_few_slots_begins_with_fewer_workers() -> None:
    job = Job(slots=3, elastic=sizes())
    job.start()
    job.hello(0), job.hello(1)
    job.wait(12)
    assert sizes_in(job.actions()) == [(3, 2)]
    drop(job)
    runs(job)
    assert job.machine.course.rescaling.size.slots == 2


def test_workers_that_were_to_join_take_the_slots_of_lost_ones() -> None:
    job = running(2)
    room(job, 4)
    joins(job, 2), joins(job, 3)
    lost(job, 1)
    for _ in range(16):
        job.wait(1)
        job.machine.heartbeat(2, 12, job.now), job.machine.heartbeat(3, 13, job.now)
    actions = job.actions()
    place, slot = order(actions)
    assert slot == 1 and len(job.machine.roster.slots) == 2
    assert any(isinstance(one, NotResized) for one in actions)
    drop(job)
    moves_in(job, place, 1)
    runs(job)
    assert [slot for slot, _ in job.sent(Leave)] == [5 - place]


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
