"""When a wave begins, what follows from what it finds, and the commands that the coordinator sends."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Job
from nests import REST, Desk, replaced

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Fixed
from tailrace.coordinator.loops.termination import (
    LONGEST_PAUSE,
    PAUSE,
    Decision,
    NestSpec,
    WaveResult,
    decide,
    left_behind,
)
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import Failed, FailureKind
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    EventTimeMoved,
    Quiet,
    Release,
    RoundReport,
    ScopeFacts,
    StartWave,
    WaveFacts,
    WaveReport,
)

# The decision.


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        ([REST, REST], Decision(WaveResult.END)),
        ([REST, WaveFacts(recorded=1, ended=True)], Decision(WaveResult.NOT_YET)),
        ([WaveFacts(obliged=True, ended=True), REST], Decision(WaveResult.NOT_YET)),
        ([REST, WaveFacts(ended=False)], Decision(WaveResult.NOT_YET)),
        ([REST, WaveFacts(ended=True, watermark=5)], Decision(WaveResult.ADVANCE)),
        ([WaveFacts(ended=True, watermark=MIN_TIME)], Decision(WaveResult.ADVANCE)),
        ([WaveFacts(ended=True, watermark=LAST_TIME)], Decision(WaveResult.FINISH, 1)),
        ([WaveFacts(ended=True, rested_min=0, rested_max=0), REST], Decision(WaveResult.FINISH, 1)),
        ([WaveFacts(ended=True, rested_min=1, rested_max=2), REST], Decision(WaveResult.FINISH, 2)),
        ([WaveFacts(ended=True, rested_min=2, rested_max=2, fed=True)], Decision(WaveResult.FINISH, 3)),
        ([WaveFacts(ended=True, rested_min=MAX_TIME), REST], Decision(WaveResult.END)),
    ],
)
def test_what_follows_from_a_wave(facts: list[WaveFacts], step: Decision) -> None:
    assert decide(facts) == step


def test_nobody_finishes_before_event_time_has_come_everywhere() -> None:
    inside = WaveFacts(ended=True, watermark=LAST_TIME, reached=7)
    assert decide([REST, inside]) == Decision(WaveResult.NOT_YET)


def test_event_time_does_not_come_to_its_end_while_any_is_on_its_way() -> None:
    """What it fires on its way may still go around, and the end would not wait for it."""
    moving = WaveFacts(ended=True, watermark=5, moving=True)
    assert decide([REST, moving]) == Decision(WaveResult.NOT_YET)
    assert decide([REST, replaced(moving, moving=False)]) == Decision(WaveResult.ADVANCE)


@pytest.mark.parametrize(
    ("reached", "content", "released", "idle", "held"),
    [
        (7, MAX_TIME, 5, False, True),
        (7, MAX_TIME, 7, False, False),
        (7, 6, 5, False, False),
        (7, MAX_TIME, 7, True, True),
        (7, MAX_TIME, None, True, True),
        (MAX_TIME, MAX_TIME, 7, True, True),
        (MAX_TIME, MAX_TIME, None, True, False),
    ],
)
def test_nor_while_a_leave_inside_holds_any_back(
    reached: int, content: int, released: int | None, idle: bool, held: bool
) -> None:
    """Records in the channels count, and so does that a loop without event time is to be idle."""
    here = WaveFacts(ended=True, watermark=9, scopes=[ScopeFacts((0, 0), reached, content, released, idle)])
    there = WaveFacts(ended=True, watermark=9, scopes=[ScopeFacts((0,), 5), ScopeFacts((0, 0), MAX_TIME)])
    assert decide([here, there]) == Decision(WaveResult.NOT_YET if held else WaveResult.ADVANCE)


def test_event_time_goes_on_as_far_as_nothing_is_left_behind() -> None:
    one = WaveFacts(scopes=[ScopeFacts((0,), 45, 41), ScopeFacts((0, 0), 45)])
    two = WaveFacts(scopes=[ScopeFacts((0,), 60, 30), ScopeFacts((0, 10), 70, 30)])
    assert left_behind([one, two]) == {(0,): 29, (0, 0): 45, (0, 10): 29}


# The commands of the coordinator, one by one.


def test_from_rest_to_the_end() -> None:
    desk = Desk()
    desk.quiet()
    assert desk.said() == [StartWave(0, 1)]
    desk.report(1, WaveFacts(ended=True, watermark=5), WaveFacts(ended=True, watermark=9))
    assert desk.said() == [Advance(0)]
    desk.quiet(actions=1)
    assert desk.said() == [StartWave(0, 2)]
    desk.report(2, WaveFacts(ended=True), WaveFacts(ended=True))
    assert desk.said() == [CallFinish(0, 1)]
    desk.quiet(actions=2)
    desk.report(3, replaced(REST, fed=True), REST)
    assert desk.said() == [StartWave(0, 3), CallFinish(0, 2)], "what came back may have to be finished with"
    desk.quiet(actions=3)
    desk.report(4, *[replaced(REST, rested_min=2, rested_max=2)] * 2)
    assert desk.said() == [StartWave(0, 4), EndLoop(0)]
    assert desk.nests.is_ended(0) and desk.nests.waves(0) == 4
    desk.quiet(actions=3)
    desk.say(0, EventTimeMoved(0, 7))
    desk.wait(10 * LONGEST_PAUSE)
    assert desk.said() == [] and desk.nests.next_tick() is None


def test_a_wave_waits_for_counts_that_fit() -> None:
    desk = Desk()
    desk.say(0, Quiet(0, [0, 3], 0))
    desk.say(1, Quiet(0, [0, 0], 2))
    assert desk.said() == [] and desk.nests.next_tick() is None, "one frame is under way"
    desk.say(1, Quiet(0, [1, 0], 3))
    assert desk.said() == [], "and another one"
    desk.say(0, Quiet(0, [0, 3], 1))
    assert desk.said() == [StartWave(0, 1)]


def test_a_worker_that_has_not_followed_is_waited_for() -> None:
    desk = Desk()
    desk.quiet()
    desk.report(1, WaveFacts(ended=True, watermark=5), WaveFacts(ended=True))
    desk.said()
    desk.say(0, Quiet(0, [0, 0], 0, 1))
    desk.say(1, Quiet(0, [0, 0], 0, 0))
    assert desk.said() == [], "it said this before it heard of the command"
    desk.say(1, Quiet(0, [0, 0], 0, 1))
    assert desk.said() == [StartWave(0, 2)]


def test_after_a_wave_that_decided_nothing_somebody_must_have_something_new_to_say() -> None:
    desk = Desk()
    desk.quiet()
    desk.report(1, WaveFacts(ended=True, recorded=1), REST)
    assert desk.said() == [StartWave(0, 1)]
    desk.say(0, Quiet(0, [0, 0], 0))
    assert desk.said() == [StartWave(0, 2)]


def test_or_the_clock_asks_again_ever_more_rarely() -> None:
    desk = Desk()
    desk.quiet()
    gaps = []
    for wave in range(1, 12):
        desk.report(wave, WaveFacts(ended=True, obliged=True), REST)
        due = desk.nests.next_tick()
        assert due is not None
        gaps.append(due - desk.now)
        desk.wait(due - desk.now - 1)
        assert [one for one in desk.said() if one != StartWave(0, 1)] == []
        desk.wait(1)
        assert desk.said() == [StartWave(0, wave + 1)]
    assert gaps[:3] == [PAUSE, 2 * PAUSE, 4 * PAUSE] and gaps[-1] == LONGEST_PAUSE


def test_what_is_new_during_a_wave_counts_for_the_next() -> None:
    desk = Desk()
    desk.quiet()
    desk.say(0, Quiet(0, [0, 0], 0))
    desk.report(1, WaveFacts(ended=True, recorded=1), REST)
    assert desk.said() == [StartWave(0, 1), StartWave(0, 2)]


def times(entry: int, content: int = MAX_TIME, **more: Any) -> WaveFacts:
    return WaveFacts(watermark=entry, reached=entry, scopes=[ScopeFacts((0,), entry, content)], **more)


def test_event_time_is_let_go_by_a_wave_and_waves_keep_their_distance() -> None:
    desk = Desk()
    desk.now = 1_000
    desk.say(0, EventTimeMoved(0, 50))
    desk.say(1, EventTimeMoved(0, 60))
    assert desk.said() == [StartWave(0, 1)]
    desk.report(1, times(50), times(60, 31))
    assert desk.said() == [Release(0, 1, [((0,), 30)])]
    assert desk.nests.next_tick() == 1_000 + PAUSE, "there is more to be let go"
    desk.wait(PAUSE)
    desk.report(2, times(50), times(60))
    assert desk.said() == [StartWave(0, 2), Release(0, 2, [((0,), 50)])]
    assert desk.nests.next_tick() is None
    desk.say(1, EventTimeMoved(0, 70))
    desk.wait(PAUSE)
    desk.report(3, times(50), times(70))
    assert desk.said() == [StartWave(0, 3)], "what has not grown is not said"


def test_waves_go_on_as_long_as_event_time_is_held_back() -> None:
    """No worker reports when a record was worked off, or when a watermark has come through a loop inside: the
    coordinator begins waves by its clock, ever more rarely where nothing is new."""
    desk = Desk()
    for slot in range(2):
        desk.say(slot, EventTimeMoved(0, 50))
    desk.report(1, times(MIN_TIME), times(50))
    desk.wait(PAUSE)
    desk.report(2, times(MIN_TIME), times(50))
    desk.wait(PAUSE)
    assert desk.said() == [StartWave(0, 1), StartWave(0, 2)], "not yet: the pause has grown"
    desk.wait(PAUSE)
    desk.report(3, times(50), times(50))
    assert desk.said() == [StartWave(0, 3), Release(0, 3, [((0,), 50)])]
    assert desk.nests.next_tick() is None


def test_an_input_that_has_ended_goes_with_the_others() -> None:
    """A wave reports how far event time has come where the input goes on."""
    desk = Desk()
    desk.say(0, EventTimeMoved(0, 5, None))
    desk.say(1, EventTimeMoved(0, 50, 60))
    desk.report(1, times(5), times(50))
    desk.wait(PAUSE)
    assert [one for one in desk.said() if isinstance(one, StartWave)] == [StartWave(0, 1), StartWave(0, 2, 60)]
    desk.report(2, times(5), times(60))
    desk.say(1, EventTimeMoved(0, MAX_TIME, MAX_TIME))
    desk.wait(PAUSE)
    assert desk.said() == [StartWave(0, 3, MAX_TIME)], "the others are idle"


def test_nothing_follows_from_a_wave_that_a_head_has_cut_for_before_it_went_with_event_time() -> None:
    """The marker came around the loop to the second head before the word of the wave did: the timers that fire when it goes
    with event time are behind its cut."""

    def ended(time: int) -> WaveFacts:
        return WaveFacts(ended=True, watermark=time, reached=time, live=60)

    desk = Desk()
    for slot in range(2):
        desk.say(slot, EventTimeMoved(0, 60, 60))
    desk.report(1, ended(60), ended(5))
    desk.wait(PAUSE)
    desk.report(2, ended(60), ended(5))
    assert desk.said() == [StartWave(0, 1), StartWave(0, 2, 60)]
    desk.quiet()
    desk.wait(2 * PAUSE)
    desk.report(3, ended(60), ended(60))
    assert desk.said() == [StartWave(0, 3, 60), Advance(0)]


def test_a_scope_where_nobody_has_anything_to_say_is_idle() -> None:
    desk = Desk()
    desk.say(1, EventTimeMoved(0, MAX_TIME))
    desk.report(1, times(MIN_TIME), times(MAX_TIME))
    desk.say(0, EventTimeMoved(0, 50))
    desk.wait(PAUSE)
    desk.report(2, times(50), times(MAX_TIME))
    desk.say(0, EventTimeMoved(0, MAX_TIME))
    desk.wait(PAUSE)
    desk.report(3, times(MAX_TIME), times(MAX_TIME))
    desk.say(0, EventTimeMoved(0, 60))
    desk.wait(2 * PAUSE)
    desk.report(4, times(60), times(MAX_TIME))
    found = [one.times[0][1] for one in desk.said() if isinstance(one, Release)]
    assert found == [50, MAX_TIME, 60]


def test_at_the_end_event_time_goes_on_loop_by_loop_without_a_pause() -> None:
    def inner(outer: int, released: int) -> WaveFacts:
        scopes = [ScopeFacts((0,), outer), ScopeFacts((0, 0), LAST_TIME, released=released)]
        return WaveFacts(ended=True, watermark=LAST_TIME, reached=outer, scopes=scopes)

    desk = Desk()
    desk.quiet()
    desk.report(1, inner(5, 5), inner(5, 5))
    assert desk.said() == [StartWave(0, 1), Release(0, 1, [((0,), 5), ((0, 0), LAST_TIME)])]
    desk.quiet(actions=1)
    assert desk.said() == [StartWave(0, 2)]
    desk.report(2, inner(LAST_TIME, LAST_TIME), inner(LAST_TIME, LAST_TIME))
    assert desk.said() == [CallFinish(0, 1)], "what leaves the nest itself waits for its end"


def test_a_loop_that_goes_on_at_the_end_of_event_time_lets_that_out_only_with_its_own_end() -> None:
    """The loop goes on from a checkpoint that was taken there; its inputs have not ended once more when the wave comes."""
    desk = Desk()
    for slot in range(2):
        desk.say(slot, EventTimeMoved(0, LAST_TIME))
    desk.report(1, times(LAST_TIME), times(LAST_TIME))
    desk.wait(PAUSE)
    desk.report(2, times(LAST_TIME), times(LAST_TIME))
    assert desk.said() == [StartWave(0, 1), StartWave(0, 2)]
    assert desk.nests.next_tick() is None, "no wave will let more out"
    desk.quiet()
    desk.report(3, times(LAST_TIME, ended=True), times(LAST_TIME, ended=True))
    assert desk.said() == [StartWave(0, 3), CallFinish(0, 1)]


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (0, Quiet(1, [0, 0], 0)),
        (0, Quiet(-1, [0, 0], 0)),
        (2, Quiet(0, [0, 0], 0)),
        (0, Quiet(0, [0, 0], 0, actions=1)),
        (0, WaveReport(0, 1, REST)),
        (0, RoundReport(0, 0)),
    ],
)
def test_what_cannot_be_meant_is_refused(slot: int, message: Any) -> None:
    with pytest.raises(ProtocolViolation):
        Desk().say(slot, message)


def test_a_wave_is_reported_once_and_no_other_one() -> None:
    desk = Desk()
    desk.quiet()
    desk.say(0, WaveReport(0, 1, REST))
    for wave in (0, 1, 2):
        with pytest.raises(ProtocolViolation):
            desk.say(0, WaveReport(0, wave, REST))


# In the coordinator.


def running() -> Job:
    """A job of two slots with one nest."""
    return Job(checkpoints=False, restarts=Fixed(3, 0), nests=[NestSpec(2)]).run()


def test_the_coordinator_starts_waves_and_ends_the_loop() -> None:
    job = running()
    for slot in range(2):
        job.says(slot, Quiet(0, [0, 0], 0))
    assert job.sent() == [(0, StartWave(0, 1)), (1, StartWave(0, 1))]
    for slot in range(2):
        job.says(slot, WaveReport(0, 1, REST))
    assert job.sent() == [(0, EndLoop(0)), (1, EndLoop(0))]
    assert job.machine.nests.is_ended(0)


def test_the_clock_of_the_coordinator_starts_a_wave() -> None:
    job = running()
    job.says(0, EventTimeMoved(0, 5))
    for slot in range(2):
        job.says(slot, WaveReport(0, 1, times(5)))
    job.says(0, EventTimeMoved(0, 6))
    job.sent()
    assert job.machine.next_tick(job.now) == job.now + PAUSE
    job.now += PAUSE
    job.machine.tick(job.now)
    assert job.sent() == [(0, StartWave(0, 2)), (1, StartWave(0, 2))]


def test_what_an_older_attempt_says_of_a_wave_is_not_counted() -> None:
    job = running()
    for slot in range(2):
        job.says(slot, Quiet(0, [0, 0], 0))
    job.says(0, WaveReport(0, 1, REST))
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.machine.status is JobStatus.RESTARTING
    job.says(1, WaveReport(0, 1, REST))
    assert not job.machine.nests.is_ended(0)
    for slot in range(2):
        job.says(slot, WasReset(1))
    job.machine.tick(job.now)
    job.deployed()
    for slot in range(2):
        job.says(slot, Quiet(0, [0, 0], 0))
    job.says(1, WaveReport(0, 1, REST))
    assert job.sent() == [(0, StartWave(0, 1)), (1, StartWave(0, 1))], (
        "waves begin again at 1, and the other is awaited"
    )
    assert job.machine.nests.waves(0) == 2


def test_a_worker_that_speaks_of_no_wave_fails_the_job() -> None:
    job = running()
    job.says(0, WaveReport(0, 1, REST))
    assert job.machine.status is JobStatus.FAILING
    assert job.machine.cause is not None and "awaits none of it" in job.machine.cause.message


def test_while_the_job_does_not_run_nothing_follows_from_what_nests_say() -> None:
    job = running()
    job.says(0, Quiet(0, [0, 0], 0))
    job.machine.cancel(job.now)
    job.sent()
    job.says(1, Quiet(0, [0, 0], 0))
    assert job.sent() == []
