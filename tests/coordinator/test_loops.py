"""Loop nests: small ones in every order, with the real halves of the protocol, and what each of its rules is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.coordinator.actions import Send
from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.limits import Limits
from tailrace.coordinator.loops import (
    LONGEST_PAUSE,
    PAUSE,
    Decision,
    Nests,
    NestSpec,
    Step,
    decide,
    left_behind,
)
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.restarts import Fixed
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import Deployed, Failed, FailureKind, Hello, Published
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.termination import (
    NO_ROUNDS,
    Advance,
    CallFinish,
    EndLoop,
    Facts,
    Gathering,
    Moved,
    Quiet,
    Release,
    RoundReport,
    ScopeFacts,
    StartRound,
    StartWave,
    StopRounds,
    Wave,
    WaveReport,
)

REST = Facts(ended=True, watermark=LAST_TIME, rested_min=1, rested_max=1)


# The decision.


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        ([REST, REST], Decision(Step.END)),
        ([REST, Facts(recorded=1, ended=True)], Decision(Step.NOT_YET)),
        ([Facts(obliged=True, ended=True), REST], Decision(Step.NOT_YET)),
        ([REST, Facts(ended=False)], Decision(Step.NOT_YET)),
        ([REST, Facts(ended=True, watermark=5)], Decision(Step.ADVANCE)),
        ([Facts(ended=True, watermark=MIN_TIME)], Decision(Step.ADVANCE)),
        ([Facts(ended=True, watermark=LAST_TIME)], Decision(Step.FINISH, 1)),
        ([Facts(ended=True, rested_min=0, rested_max=0), REST], Decision(Step.FINISH, 1)),
        ([Facts(ended=True, rested_min=1, rested_max=2), REST], Decision(Step.FINISH, 2)),
        ([Facts(ended=True, rested_min=2, rested_max=2, fed=True)], Decision(Step.FINISH, 3)),
        ([Facts(ended=True, rested_min=MAX_TIME), REST], Decision(Step.END)),
    ],
)
def test_what_follows_from_a_wave(facts: list[Facts], step: Decision) -> None:
    assert decide(facts) == step


def test_nobody_finishes_before_event_time_has_come_everywhere() -> None:
    inside = Facts(ended=True, watermark=LAST_TIME, reached=7)
    assert decide([REST, inside]) == Decision(Step.NOT_YET)


def test_event_time_does_not_come_to_its_end_while_any_is_on_its_way() -> None:
    """What it fires on its way may still go around, and the end would not wait for it."""
    moving = Facts(ended=True, watermark=5, moving=True)
    assert decide([REST, moving]) == Decision(Step.NOT_YET)
    assert decide([REST, replaced(moving, moving=False)]) == Decision(Step.ADVANCE)


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
    """What was in the channels counts, and so does that a loop with nothing to say is to be idle."""
    here = Facts(ended=True, watermark=9, scopes=[ScopeFacts("0.0", reached, content, released, idle)])
    there = Facts(ended=True, watermark=9, scopes=[ScopeFacts("0", 5), ScopeFacts("0.0", MAX_TIME)])
    assert decide([here, there]) == Decision(Step.NOT_YET if held else Step.ADVANCE)


def test_event_time_goes_on_as_far_as_nothing_is_left_behind() -> None:
    one = Facts(scopes=[ScopeFacts("0", 45, 41), ScopeFacts("0.0", 45)])
    two = Facts(scopes=[ScopeFacts("0", 60, 30), ScopeFacts("0.10", 70, 30)])
    assert left_behind([one, two]) == {"0": 29, "0.0": 45, "0.10": 29}


# What the coordinator says, told one by one.


class Desk:
    """A coordinator's book of one nest of two slots, and what it has said."""

    def __init__(self, spec: NestSpec | None = None) -> None:
        self.nests = Nests([spec if spec is not None else NestSpec(2)])
        self.now = 0
        self.sent: list[tuple[int, Any]] = []

    def say(self, slot: int, message: Any) -> None:
        self.sent += self.nests.message(slot, message, self.now)

    def quiet(self, actions: int = 0, **counts: Any) -> None:
        for slot in range(2):
            self.say(slot, Quiet(0, [0, 0], 0, actions))

    def report(self, wave: int, *facts: Facts) -> None:
        for slot, one in enumerate(facts):
            self.say(slot, WaveReport(0, wave, one))

    def wait(self, micros: int) -> None:
        self.now += micros
        self.sent += self.nests.tick(self.now)

    def said(self) -> list[Any]:
        """What was said since this was asked last; each message once, and to both slots."""
        sent, self.sent = self.sent, []
        assert [slot for slot, _ in sent] == [0, 1] * (len(sent) // 2)
        assert [one for _, one in sent[::2]] == [one for _, one in sent[1::2]]
        return [one for _, one in sent[::2]]


def test_from_rest_to_the_end() -> None:
    desk = Desk()
    desk.quiet()
    assert desk.said() == [StartWave(0, 1)]
    desk.report(1, Facts(ended=True, watermark=5), Facts(ended=True, watermark=9))
    assert desk.said() == [Advance(0)]
    desk.quiet(actions=1)
    assert desk.said() == [StartWave(0, 2)]
    desk.report(2, Facts(ended=True), Facts(ended=True))
    assert desk.said() == [CallFinish(0, 1)]
    desk.quiet(actions=2)
    desk.report(3, replaced(REST, fed=True), REST)
    assert desk.said() == [StartWave(0, 3), CallFinish(0, 2)], "what came back may have to be finished with"
    desk.quiet(actions=3)
    desk.report(4, *[replaced(REST, rested_min=2, rested_max=2)] * 2)
    assert desk.said() == [StartWave(0, 4), EndLoop(0)]
    assert desk.nests.ended(0) and desk.nests.waves(0) == 4
    desk.quiet(actions=3)
    desk.say(0, Moved(0, 7))
    desk.wait(10 * LONGEST_PAUSE)
    assert desk.said() == [] and desk.nests.next_tick() is None


def replaced(facts: Facts, **changes: Any) -> Facts:
    return Facts(**{name: getattr(facts, name) for name in Facts.__struct_fields__} | changes)


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
    desk.report(1, Facts(ended=True, watermark=5), Facts(ended=True))
    desk.said()
    desk.say(0, Quiet(0, [0, 0], 0, 1))
    desk.say(1, Quiet(0, [0, 0], 0, 0))
    assert desk.said() == [], "it said this before it heard of the command"
    desk.say(1, Quiet(0, [0, 0], 0, 1))
    assert desk.said() == [StartWave(0, 2)]


def test_after_a_wave_that_decided_nothing_somebody_must_have_something_new_to_say() -> None:
    desk = Desk()
    desk.quiet()
    desk.report(1, Facts(ended=True, recorded=1), REST)
    assert desk.said() == [StartWave(0, 1)]
    desk.say(0, Quiet(0, [0, 0], 0))
    assert desk.said() == [StartWave(0, 2)]


def test_or_the_clock_asks_again_ever_more_rarely() -> None:
    desk = Desk()
    desk.quiet()
    gaps = []
    for wave in range(1, 12):
        desk.report(wave, Facts(ended=True, obliged=True), REST)
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
    desk.report(1, Facts(ended=True, recorded=1), REST)
    assert desk.said() == [StartWave(0, 1), StartWave(0, 2)]


def times(entry: int, content: int = MAX_TIME, **more: Any) -> Facts:
    return Facts(watermark=entry, reached=entry, scopes=[ScopeFacts("0", entry, content)], **more)


def test_event_time_is_let_go_by_a_wave_and_waves_keep_their_distance() -> None:
    desk = Desk()
    desk.now = 1_000
    desk.say(0, Moved(0, 50))
    desk.say(1, Moved(0, 60))
    assert desk.said() == [StartWave(0, 1)]
    desk.report(1, times(50), times(60, 31))
    assert desk.said() == [Release(0, 1, [("0", 30)])]
    assert desk.nests.next_tick() == 1_000 + PAUSE, "there is more to be let go"
    desk.wait(PAUSE)
    desk.report(2, times(50), times(60))
    assert desk.said() == [StartWave(0, 2), Release(0, 2, [("0", 50)])]
    assert desk.nests.next_tick() is None
    desk.say(1, Moved(0, 70))
    desk.wait(PAUSE)
    desk.report(3, times(50), times(70))
    assert desk.said() == [StartWave(0, 3)], "what has not grown is not said"


def test_waves_go_on_as_long_as_event_time_is_held_back() -> None:
    """Nobody says when a record was worked off, or when a watermark has come through a loop inside: the clock asks again,
    ever more rarely where nothing is new."""
    desk = Desk()
    for slot in range(2):
        desk.say(slot, Moved(0, 50))
    desk.report(1, times(MIN_TIME), times(50))
    desk.wait(PAUSE)
    desk.report(2, times(MIN_TIME), times(50))
    desk.wait(PAUSE)
    assert desk.said() == [StartWave(0, 1), StartWave(0, 2)], "not yet: the pause has grown"
    desk.wait(PAUSE)
    desk.report(3, times(50), times(50))
    assert desk.said() == [StartWave(0, 3), Release(0, 3, [("0", 50)])]
    assert desk.nests.next_tick() is None


def test_an_input_that_has_ended_goes_with_the_others() -> None:
    """A wave tells how far event time has come where the input goes on."""
    desk = Desk()
    desk.say(0, Moved(0, 5, None))
    desk.say(1, Moved(0, 50, 60))
    desk.report(1, times(5), times(50))
    desk.wait(PAUSE)
    assert [one for one in desk.said() if isinstance(one, StartWave)] == [StartWave(0, 1), StartWave(0, 2, 60)]
    desk.report(2, times(5), times(60))
    desk.say(1, Moved(0, MAX_TIME, MAX_TIME))
    desk.wait(PAUSE)
    assert desk.said() == [StartWave(0, 3, MAX_TIME)], "the others are idle"


def test_a_scope_where_nobody_has_anything_to_say_is_idle() -> None:
    desk = Desk()
    desk.say(1, Moved(0, MAX_TIME))
    desk.report(1, times(MIN_TIME), times(MAX_TIME))
    desk.say(0, Moved(0, 50))
    desk.wait(PAUSE)
    desk.report(2, times(50), times(MAX_TIME))
    desk.say(0, Moved(0, MAX_TIME))
    desk.wait(PAUSE)
    desk.report(3, times(MAX_TIME), times(MAX_TIME))
    desk.say(0, Moved(0, 60))
    desk.wait(2 * PAUSE)
    desk.report(4, times(60), times(MAX_TIME))
    told = [one.times[0][1] for one in desk.said() if isinstance(one, Release)]
    assert told == [50, MAX_TIME, 60]


def test_at_the_end_event_time_goes_on_loop_by_loop_without_a_pause() -> None:
    def inner(outer: int, released: int) -> Facts:
        scopes = [ScopeFacts("0", outer), ScopeFacts("0.0", LAST_TIME, released=released)]
        return Facts(ended=True, watermark=LAST_TIME, reached=outer, scopes=scopes)

    desk = Desk()
    desk.quiet()
    desk.report(1, inner(5, 5), inner(5, 5))
    assert desk.said() == [StartWave(0, 1), Release(0, 1, [("0", 5), ("0.0", LAST_TIME)])]
    desk.quiet(actions=1)
    assert desk.said() == [StartWave(0, 2)]
    desk.report(2, inner(LAST_TIME, LAST_TIME), inner(LAST_TIME, LAST_TIME))
    assert desk.said() == [CallFinish(0, 1)], "what leaves the nest itself waits for its end"


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


# Rounds.


def test_a_round_begins_when_all_have_ended_the_one_before() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=2))
    assert desk.said() == []
    desk.say(1, RoundReport(0, 0))
    assert desk.said() == [StartRound(0, 1)]
    desk.say(1, RoundReport(0, 1))
    desk.say(0, RoundReport(0, 1))
    assert desk.said() == [], "nothing waits: the ordinary end will come"
    desk.say(1, RoundReport(0, 1, waiting=1))
    assert desk.said() == [StartRound(0, 2)], "a timer has emitted"


def test_rounds_stop_at_their_number() -> None:
    desk = Desk(NestSpec(2, rounds_max=2, rounds=True))
    for number in range(2):
        desk.say(0, RoundReport(0, number, waiting=1))
        desk.say(1, RoundReport(0, number))
    assert desk.said() == [StartRound(0, 1), StopRounds(0)]
    desk.say(1, RoundReport(0, 1, waiting=1))
    assert desk.said() == []


def test_or_when_the_verdict_says_so() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=1, verdict=True))
    desk.say(1, RoundReport(0, 0, waiting=1))
    assert desk.said() == [StopRounds(0)]


def test_after_a_restore_those_that_had_not_begun_a_round_begin_it() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 4, waiting=1))
    desk.say(1, RoundReport(0, 3, waiting=1))
    assert desk.sent == [(1, StartRound(0, 4))]
    desk.sent = []
    desk.say(1, RoundReport(0, 4))
    assert desk.said() == [StartRound(0, 5)]


def test_a_slot_whose_tasks_have_all_finished_is_not_waited_for() -> None:
    """It had a part in what entered the loop, and that has ended."""
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=1))
    assert desk.said() == []
    desk.say(1, RoundReport(0, NO_ROUNDS))
    assert desk.said() == [StartRound(0, 1)]
    desk.say(0, RoundReport(0, 1, waiting=1))
    assert desk.said() == [StartRound(0, 2)]


def test_rounds_do_not_go_back() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 1))
    with pytest.raises(ProtocolViolation):
        desk.say(0, RoundReport(0, 0))


# A nest in a nutshell: tasks with the real `Wave` and `Gathering`, channels that deliver in order and whenever they like,
# workers that say what the protocol has them say, and the real `Nests`.

FEEDBACK = "feedback"
RECORD, ATTEMPT, WATERMARK, RESTED = "record", "attempt", "watermark", "rest"
NONE, EARLY, END = range(3)
"""Event time: none yet, that of the entries when the play begins, its end."""
TIMES = (MIN_TIME, 5, LAST_TIME)
NAMES = {time: name for name, time in enumerate(TIMES)}


@dataclass(frozen=True)
class Kind:
    """A task of the nest. Its channels come from `Shape`."""

    slot: int
    entry: bool = False
    regular: tuple[int, ...] = ()
    """Records of its regular input, as the trips they have left."""
    timer: int = 0
    """Trips of the record that its processing-time timer emits; 0: it has none."""
    due: int = 0
    """The same for an event-time timer that is due by the time which the entries have reached when the play begins, and
    which is on its way from them."""
    event_timer: int = 0
    """The same for one that is due at the end of event time only."""
    farewell: int = 0
    """The same for what `finish` emits, the first time."""
    consumes: bool = True
    """Whether a record has one trip less behind it, and ends where it has none left."""
    silent_timer: bool = False
    """Whether there is a timer that emits nothing."""
    inner: bool = False
    """Whether it is in the loop inside."""
    leave: bool = False
    """Whether it is a leave of the loop inside: it lets event time go as far as the coordinator says."""


@dataclass(frozen=True)
class Shape:
    """A nest: its tasks, and its channels as (from, to, whether it is feedback)."""

    tasks: tuple[Kind, ...]
    channels: tuple[tuple[int, int, bool], ...]

    @property
    def timed(self) -> bool:
        """Whether event time has come anywhere when the play begins."""
        return any(task.due for task in self.tasks)

    @property
    def slots(self) -> int:
        return 1 + max(task.slot for task in self.tasks)

    def into(self, task: int, feedback: bool = True) -> list[int]:
        return [i for i, (_, to, back) in enumerate(self.channels) if to == task and (feedback or not back)]

    def out_of(self, task: int, to_feedback: bool = True) -> list[int]:
        return [i for i, (source, _, back) in enumerate(self.channels) if source == task and (to_feedback or not back)]


class Doing:
    """A task at work."""

    def __init__(self, shape: Shape, number: int, restored: bool) -> None:
        kind = shape.tasks[number]
        self.wave = Wave(shape.into(number))
        self.rest = Gathering(shape.into(number, feedback=False), done=int(restored))
        self.regular = list(kind.regular)
        self.timers = [kind.timer] if kind.timer else [0] if kind.silent_timer else []
        self.due = [kind.due] if kind.due else []
        self.event_timers = [kind.event_timer] if kind.event_timer else []
        self.farewell = 0 if restored else kind.farewell
        came = END if restored else NONE
        self.times = dict.fromkeys(shape.into(number, feedback=False), came)
        """How far event time has come on each channel; where there is none, at the entry itself."""
        if kind.entry:
            self.times[-1] = came
        self.reached = came
        self.allowed: tuple[tuple[int, int], ...] = ()
        """Of a leave: (wave, time) of a `Release`."""
        self.fed = False
        self.facts: tuple[Any, ...] = ()

    @property
    def obliged(self) -> bool:
        return bool(self.timers)

    def copy(self) -> Doing:
        new: Doing = _cloned(self, wave=_cloned(self.wave), rest=_cloned(self.rest))
        new.__dict__.pop("key", None)
        return new

    @cached_property
    def key(self) -> Any:
        wave, rest = self.wave, self.rest
        return (
            wave.current, wave.recorded, frozenset(wave._awaited), rest.done, rest.gathered, tuple(rest._newest.values()),
            tuple(self.regular), tuple(self.timers), tuple(self.due), tuple(self.event_timers), self.farewell,
            tuple(self.times.items()), self.reached, self.allowed, wave.moving, self.fed, self.facts,
        )  # fmt: skip


class Worker:
    """What a worker has counted and said."""

    def __init__(self, slots: int) -> None:
        self.sent = [0] * slots
        self.received = self.actions = self.wave = 0
        self.news = True
        """Whether it has done anything since it said `Quiet` last."""
        self.said: Quiet | None = None

    def copy(self) -> Worker:
        new: Worker = _cloned(self)
        new.__dict__.pop("key", None)
        return new

    @cached_property
    def key(self) -> Any:
        return (tuple(self.sent), self.received, self.actions, self.wave, self.news)


class Play:
    """A nest in the middle of a run. `hurry`: how often event time may move, which begins a wave at any moment. `terse`:
    workers do not say again what they have said, even if they were at work meanwhile."""

    def __init__(
        self,
        shape: Shape,
        *,
        waiting: dict[int, tuple[int, ...]] | None = None,
        restored: bool = False,
        hurry: int = 0,
        terse: bool = False,
    ) -> None:
        self.shape, self.terse = shape, terse
        self.tasks = [Doing(shape, i, restored) for i in range(len(shape.tasks))]
        self.workers = [Worker(shape.slots) for _ in range(shape.slots)]
        self.channels: list[tuple[tuple[str, int], ...]] = [
            tuple((RECORD, trips) for trips in (waiting or {}).get(i, ())) for i in range(len(shape.channels))
        ]
        for i, (source, to, _) in enumerate(shape.channels):
            if shape.tasks[source].slot != shape.tasks[to].slot:
                self.workers[shape.tasks[source].slot].sent[shape.tasks[to].slot] += len(self.channels[i])
        self.down: list[tuple[Any, ...]] = [()] * shape.slots
        """What was said to each worker and has not come yet."""
        self.nests = Nests([NestSpec(shape.slots)])
        self.hurry = hurry
        self.now = 0
        self.ended = [False] * shape.slots
        self.advanced = False
        """Whether event time was told to come to its end, in this attempt."""
        self.ends = 0
        self._own: set[int] = set()
        """Tasks, and (inverted) workers, that are not shared with other moments."""
        self._nest_key: Any = None
        self.clean: frozenset[tuple[int, int]] = frozenset()
        """(slot, wave) of reports that by themselves would have been an end."""
        if shape.timed and not restored:
            for number in range(len(shape.tasks)):
                self._time(number, -1, EARLY)

    # Copies and keys: exploring needs many.

    def copy(self) -> Play:
        """The same moment once more. What is changed later is copied then (`task`, `worker`, `_up`)."""
        new = copy(self)
        new.tasks, new.workers = list(self.tasks), list(self.workers)
        new.channels, new.down, new.ended = list(self.channels), list(self.down), list(self.ended)
        new._own = set()
        return new

    def restarted(self) -> Play:
        """The job is restarted from a checkpoint of this moment: records and state are there again; markers, commands and
        what anybody has said are not. An entry says again what event time it has."""
        waiting = {i: tuple(n for what, n in items if what == RECORD) for i, items in enumerate(self.channels)}
        new = Play(self.shape, waiting=waiting, hurry=self.hurry, terse=self.terse)
        new.nests = self.nests
        new.nests.begin()
        for number, (task, was) in enumerate(zip(new.tasks, self.tasks, strict=True)):
            task.rest.done, task.fed, task.farewell = was.rest.done, was.fed, was.farewell
            task.regular, task.timers, task.event_timers = list(was.regular), list(was.timers), list(was.event_timers)
            task.due = list(was.due)
            if self.shape.tasks[number].entry:
                new._time(number, -1, was.reached)
            elif self.shape.tasks[number].leave and was.reached:
                new._let_go(number, was.reached)
        return new

    def task(self, number: int) -> Doing:
        """A task that is to be changed."""
        if number not in self._own:
            self._own.add(number)
            self.tasks[number] = self.tasks[number].copy()
        return self.tasks[number]

    def worker(self, slot: int) -> Worker:
        """A worker that is to be changed."""
        if ~slot not in self._own:
            self._own.add(~slot)
            self.workers[slot] = self.workers[slot].copy()
        return self.workers[slot]

    def key(self) -> Any:
        """All that decides what may still happen. Equal where the runs so far differ in order only."""
        return (
            tuple(task.key for task in self.tasks), tuple(worker.key for worker in self.workers), self._book(),
            tuple(self.channels), tuple(self.down), tuple(self.ended), self.hurry, self.clean,
        )  # fmt: skip

    def _book(self) -> Any:
        if self._nest_key is None:
            nest = self.nests._nests[0]
            self._nest_key = (
                nest.wave, nest.actions, nest.news, nest.moved, nest.lag, nest.pause, nest.again_at, nest.moved_at,
                repr(sorted((nest.reports or {}).items())), nest.reports is None, repr(sorted(nest.quiet.items())),
            )  # fmt: skip
        return self._nest_key

    # What may happen next.

    def choices(self) -> Iterator[Callable[[Play], None]]:
        for channel, items in enumerate(self.channels):
            if items:
                if items[0][0] == RECORD:
                    for target in self._targets(self.shape.channels[channel][1], items[0][1]):
                        yield lambda play, c=channel, t=target: play.read(c, t)  # type: ignore[misc]
                else:
                    yield lambda play, c=channel: play.read(c, None)  # type: ignore[misc]
        for number, task in enumerate(self.tasks):
            if task.regular:
                for target in self._targets(number, task.regular[0]):
                    yield lambda play, n=number, t=target: play.regular(n, t)  # type: ignore[misc]
            if task.timers:
                for target in self._targets(number, task.timers[0], emits=True):
                    yield lambda play, n=number, t=target: play.fire(n, t)  # type: ignore[misc]
        for slot in range(self.shape.slots):
            if self.down[slot]:
                yield lambda play, s=slot: play.follow(s)  # type: ignore[misc]
            if self.quiet(slot):
                yield lambda play, s=slot: play.say_quiet(s)  # type: ignore[misc]
        if self.hurry and not self.ended[0]:
            yield lambda play: play.move()

    def _targets(self, number: int, trips: int, emits: bool = False) -> list[int | None]:
        """Where a record may go from a task: to any of its outputs, or nowhere."""
        left = trips if emits else self._left(number, trips)
        return list(self.shape.out_of(number)) if left > 0 else [None]

    def _left(self, number: int, trips: int) -> int:
        return trips - 1 if self.shape.tasks[number].consumes else trips

    # Events.

    def read(self, channel: int, target: int | None) -> None:
        """A task reads what is next on a channel."""
        (what, value), self.channels[channel] = self.channels[channel][0], self.channels[channel][1:]
        source, number, feedback = self.shape.channels[channel]
        task = self.task(number)
        if what != ATTEMPT:
            worker = self.worker(self.shape.tasks[number].slot)
            worker.news = True
            if self.shape.tasks[source].slot != self.shape.tasks[number].slot:
                worker.received += 1
        if what == RECORD:
            assert not (feedback and self.ended[self.shape.tasks[number].slot]), (
                "a record came to a head that has ended"
            )
            task.wave.read(channel, 1, MAX_TIME)
            task.fed |= feedback
            self._emit(number, target, self._left(number, value))
        elif what == ATTEMPT:
            self._start(number, value)
            task.wave.marker(channel, value)
            self._passed(number)
            self._report(self.shape.tasks[number].slot)
        elif what == WATERMARK:
            task.wave.time(channel)
            self._time(number, channel, value)
        elif task.rest.marker(channel, value):
            self._at_rest(number, value)
        assert task.wave.check() is None

    def regular(self, number: int, target: int | None) -> None:
        trips = self.task(number).regular.pop(0)
        self._emit(number, target, self._left(number, trips))

    def fire(self, number: int, target: int | None) -> None:
        trips = self.task(number).timers.pop(0)
        self.worker(self.shape.tasks[number].slot).news = True
        self._emit(number, target, trips)

    def follow(self, slot: int) -> None:
        """A worker follows a command."""
        message, self.down[slot] = self.down[slot][0], self.down[slot][1:]
        worker = self.worker(slot)
        if isinstance(message, StartWave):
            worker.wave = message.wave
        elif isinstance(message, Release | Advance | CallFinish):
            worker.actions += 1
            worker.news = True
        for number in self._here(slot):
            if isinstance(message, Release) and self.shape.tasks[number].leave:
                self.task(number).allowed += tuple(
                    (message.wave, NAMES[time]) for scope, time in message.times if scope == "0.0"
                )
                self._passed(number)
            if not self.shape.tasks[number].entry:
                continue
            task = self.task(number)
            if isinstance(message, StartWave):
                self._start(number, message.wave)
            elif isinstance(message, Advance):
                self._time(number, -1, END)
            elif isinstance(message, CallFinish) and task.rest.told(message.number):
                self._at_rest(number, message.number)
        if isinstance(message, EndLoop):
            assert not self.ended[slot]
            self.ended[slot] = True
        self._report(slot)

    def quiet(self, slot: int) -> bool:
        """Whether a worker has nothing to do that it knows of, and has not said so."""
        worker = self.workers[slot]
        if not worker.news or self.ended[slot]:
            return False
        here = self._here(slot)
        if any(self.tasks[n].regular or self.tasks[n].obliged for n in here):
            return False
        local = [c for c, (a, b, _) in enumerate(self.shape.channels) if a in here and b in here]
        return not any(self.channels[c] for c in local)

    def say_quiet(self, slot: int) -> None:
        worker = self.worker(slot)
        worker.news = False
        quiet = Quiet(0, list(worker.sent), worker.received, worker.actions)
        if not self.terse or quiet != worker.said:
            worker.said = quiet
            self._up(slot, quiet)

    def wait(self) -> None:
        """Nothing else happens until the clock has moved on."""
        due = self.nests.next_tick()
        assert due is not None, "nothing is left to happen, and the nest has not ended"
        self.now = max(self.now, due)
        self._say(self.nests.tick(self.now))

    def move(self) -> None:
        """Event time moves on, and the pause is over."""
        self.hurry -= 1
        self.now = 10**9
        self._up(0, Moved(0, 10 - self.hurry))
        self.now = 0

    # Inside.

    def _here(self, slot: int) -> list[int]:
        return [i for i, task in enumerate(self.shape.tasks) if task.slot == slot]

    def _emit(self, number: int, target: int | None, trips: int) -> None:
        if target is None:
            return
        slot, to = self.shape.tasks[number].slot, self.shape.tasks[self.shape.channels[target][1]].slot
        if slot != to:
            self.worker(slot).sent[to] += 1
        self.channels[target] += ((RECORD, trips),)

    def _mark(self, number: int, what: str, value: int, feedback: bool = False) -> None:
        slot = self.shape.tasks[number].slot
        for channel in self.shape.out_of(number, to_feedback=feedback):
            self.channels[channel] += ((what, value),)
            to = self.shape.tasks[self.shape.channels[channel][1]].slot
            if what != ATTEMPT and to != slot:
                self.worker(slot).sent[to] += 1

    def _start(self, number: int, wave: int) -> None:
        task = self.task(number)
        if task.wave.start(wave):
            task.facts = (task.obliged, not task.regular, TIMES[task.reached], task.rest.done, task.fed)
            self._mark(number, ATTEMPT, wave, feedback=True)
            self._passed(number)

    def _time(self, number: int, channel: int, time: int) -> None:
        """Event time comes to a task."""
        task = self.task(number)
        if channel in task.times:
            task.times[channel] = max(task.times[channel], time)
        if not self.shape.tasks[number].leave:
            self._let_go(number, min(task.times.values(), default=NONE))

    def _passed(self, number: int) -> None:
        """A leave lets event time go, where the wave has come on all its channels."""
        task = self.task(number)
        allowed = [time for wave, time in task.allowed if task.wave.complete and wave <= task.wave.current]
        if allowed:
            self._let_go(number, max(allowed))

    def _let_go(self, number: int, time: int) -> None:
        """Event time goes on in a task: it fires what is due, and passes it on."""
        task = self.task(number)
        if time <= task.reached:
            return
        task.reached = time
        fired, task.due = task.due, []
        if time == END:
            fired, task.event_timers = fired + task.event_timers, []
        for trips in fired:
            self._emit(number, self.shape.out_of(number)[0], trips)
        self.worker(self.shape.tasks[number].slot).news = True
        self._mark(number, WATERMARK, time)

    def _at_rest(self, number: int, rest: int) -> None:
        task = self.task(number)
        if task.rest.due(rest):
            task.fed = False
            if task.farewell:
                self._emit(number, self.shape.out_of(number)[0], task.farewell)
                task.farewell = 0
            self.worker(self.shape.tasks[number].slot).news = True
        self._mark(number, RESTED, rest)

    def _report(self, slot: int) -> None:
        """Says that a wave is complete in a worker, if it is."""
        worker, here = self.workers[slot], self._here(slot)
        waves = [self.tasks[n].wave for n in here]
        wave = max(one.current for one in waves)
        if worker.wave != wave or not all(one.complete and one.current == wave for one in waves):
            return
        self.worker(slot).wave = 0
        noted = [self.tasks[n].facts for n in here]
        kinds = [self.shape.tasks[n] for n in here]
        inside = [f[2] for kind, f in zip(kinds, noted, strict=True) if kind.inner]
        leaves = [f[2] for kind, f in zip(kinds, noted, strict=True) if kind.leave]
        facts = Facts(
            recorded=sum(one.recorded for one in waves),
            moving=any(one.moving for one in waves),
            obliged=any(one[0] for one in noted),
            ended=all(one[1] for one in noted),
            watermark=min(
                (f[2] for n, f in zip(here, noted, strict=True) if self.shape.tasks[n].entry), default=MAX_TIME
            ),
            rested_min=min(one[3] for one in noted),
            rested_max=max(one[3] for one in noted),
            fed=any(one[4] for one in noted),
            reached=min(one[2] for one in noted),
            scopes=[ScopeFacts("0.0", min(inside, default=MAX_TIME), released=min(leaves, default=None))]
            if inside or leaves
            else [],
        )
        if decide([facts]).step is Step.END:
            self.clean |= {(slot, wave)}
        self._up(slot, WaveReport(0, wave, facts))

    def _up(self, slot: int, message: Any) -> None:
        nest = self.nests._nests[0]
        self.nests, self._nest_key = copy(self.nests), None
        self.nests._nests = [_cloned(nest)]
        self._say(self.nests.message(slot, message, self.now))

    def _say(self, sent: list[tuple[int, Any]]) -> None:
        for to, said in sent:
            if isinstance(said, Release):
                said = Release(said.nest, said.wave, tuple(said.times))  # type: ignore[arg-type]  # hashable
            self.down[to] += (said,)
            if isinstance(said, Advance) and not self.advanced:  # said again it changes nothing, and may be under way
                assert to or not self.moving(), "event time came to its end while some was on its way"
                self.advanced = to == self.shape.slots - 1
            if isinstance(said, EndLoop):
                self.ends += 1
                assert not self.alive(), "the end was decided while something was left"

    def alive(self) -> bool:
        """Whether anything is left that is a record or will be one."""
        records = any(item[0] == RECORD for items in self.channels for item in items)
        return records or any(t.regular or t.timers or t.due or t.event_timers or t.farewell for t in self.tasks)

    def moving(self) -> bool:
        """Whether a record or event time is on its way, or a leave holds any back."""
        inner = [task.reached for task, kind in zip(self.tasks, self.shape.tasks, strict=True) if kind.inner]
        leaves = [task.reached for task, kind in zip(self.tasks, self.shape.tasks, strict=True) if kind.leave]
        under_way = any(item[0] in (RECORD, WATERMARK) for items in self.channels for item in items)
        return under_way or any(time < min(inner) for time in leaves)

    def over(self) -> None:
        assert all(self.ended), "nothing is left to happen, and the nest has not ended"
        assert self.ends == self.shape.slots and not self.alive()


def _cloned(of: Any, **changes: Any) -> Any:
    new = object.__new__(type(of))
    for name, value in vars(of).items():
        new.__dict__[name] = value.copy() if isinstance(value, set | dict | list) else value
    new.__dict__.update(changes)
    return new


def explore(start: Play, most: int = 200_000) -> set[tuple[int, int]]:
    """Plays every order there is. Returns which reports would have been an end by themselves while records lived."""
    seen: set[Any] = {start.key()}
    open_ = [start]
    misled: set[tuple[int, int]] = set()
    while open_:
        play = open_.pop()
        assert len(seen) <= most, "too many states"
        if play.clean and play.alive():
            misled |= play.clean
        choices = list(play.choices())
        if not choices:
            play.over()
        for choice in choices:
            new = play.copy()
            choice(new)
            key = new.key()
            if key not in seen:
                seen.add(key)
                open_.append(new)
    return misled


def head(slot: int, **more: Any) -> Kind:
    return Kind(slot, entry=True, consumes=False, **more)


TWO_HEADS = Shape(
    (head(0), head(1), Kind(0), Kind(1)),
    ((0, 2, False), (0, 3, False), (1, 2, False), (1, 3, False), (2, 0, True), (3, 1, True)),
)
"""Two heads, a shuffle to two bodies, each with its feedback."""


# Why it is as it is.


def test_a_head_that_decides_alone_ends_too_early() -> None:
    """FLIP-15 as written: a head sends a token around, and ends when it comes back and no record came before it."""
    feedback: list[list[str]] = [[], ["record"]]
    ended, dirty = [False, False], [False, False]
    for body in feedback:  # both heads begin their attempt; both bodies have aligned both tokens
        body.append("token")

    def take(number: int) -> str:
        item = feedback[number].pop(0)
        if item == "token":
            ended[number] = not dirty[number]
        else:
            dirty[number] = True
        return item

    assert take(0) == "token" and ended == [True, False]
    assert take(1) == "record"
    feedback[0].append("record")  # by the shuffle, the other body, and its feedback
    assert ended[0], "the record has come to a head that has ended"


def test_and_here_it_does_not() -> None:
    play = Play(TWO_HEADS, waiting={5: (2,)}, restored=True, hurry=1)
    play.move()
    play.follow(0)
    play.follow(1)
    for channel in range(4):
        play.read(channel, None)
    play.read(4, None)
    assert play.clean == {(0, 1)} and play.alive(), "the first worker has found nothing, as the head did above"
    play.read(5, 2)  # the record goes to the other body
    play.read(5, None)
    assert play.down == [(), ()] and play.nests.waves(0) == 1, "the other worker has: nothing follows"
    play.read(2, 4)
    play.read(4, 0)
    assert not any(play.ended) and play.tasks[0].fed
    walk(play, Random(1))


# In every order.


def test_two_heads_in_every_order() -> None:
    """Waves at any moment. There are moments in which one worker by itself would have ended the nest; it never does."""
    misled = explore(Play(TWO_HEADS, waiting={5: (1,)}, restored=True, hurry=1))
    assert (0, 1) in misled


def test_two_heads_from_their_input_to_their_end() -> None:
    shape = Shape((head(0, regular=(1,)), *TWO_HEADS.tasks[1:]), TWO_HEADS.channels)
    explore(Play(shape))


@pytest.mark.parametrize("waiting", [{3: (2,)}, {4: (1,)}, {3: (1,), 4: (1,)}], ids=str)
@pytest.mark.parametrize("restored", [True, False])
def test_several_feedback_edges(waiting: dict[int, tuple[int, ...]], restored: bool) -> None:
    shape = Shape(
        (head(0), Kind(0), Kind(1)), ((0, 1, False), (0, 2, False), (1, 2, False), (1, 0, True), (2, 0, True))
    )
    explore(Play(shape, waiting=waiting, restored=restored, hurry=int(restored and len(waiting) == 1)))


NESTED = Shape(
    (head(0), Kind(1, consumes=False), Kind(1), Kind(0)),
    ((0, 1, False), (1, 2, False), (2, 1, True), (2, 3, False), (3, 0, True)),
)
"""An outer head, an inner head, the inner body with its feedback, and the outer one with its own."""


def test_a_record_that_is_parked_on_the_inner_feedback_keeps_the_outer_loop() -> None:
    play = Play(NESTED, waiting={2: (2,)}, restored=True, hurry=1)
    play.move()
    play.follow(0)
    play.follow(1)
    for channel in (0, 1, 3, 4):  # the wave goes around the outer loop; the inner feedback is slow
        play.read(channel, None)
    assert play.clean == {(0, 1)} and play.alive()
    assert not play.tasks[1].wave.complete
    play.read(2, 1)
    assert play.tasks[1].wave.recorded == 1
    walk(play, Random(2))


ONE_HEAD = ((0, 1, False), (0, 2, False), (1, 0, True), (2, 0, True))


TIMED = (
    (head(0), Kind(0, due=1), Kind(1)),
    (head(0), Kind(0), Kind(1, due=1)),
    (head(0), Kind(0, due=1), Kind(1, due=1)),
)


@pytest.mark.parametrize("tasks", TIMED, ids=range(3))
def test_event_time_comes_to_its_end_when_all_tasks_have_what_was_on_its_way(tasks: tuple[Kind, ...]) -> None:
    """Timers that are due by the time that the entries have reached fire, and what they emit goes around, before any that
    is due at the end only; whatever the order (asserted where `Advance` is said)."""
    explore(Play(Shape(tasks, ONE_HEAD), hurry=int(tasks is TIMED[0])))


INSIDE = Shape(
    (head(0), Kind(0, inner=True, due=1, consumes=False), Kind(0, leave=True, consumes=False), Kind(0, due=1)),
    ((0, 1, False), (1, 1, True), (1, 2, False), (2, 3, False), (3, 0, True)),
)
"""An outer head, a loop inside with one task, its leave, and a task of the outer loop behind it."""


def test_and_when_the_loops_inside_have_let_it_go() -> None:
    explore(Play(INSIDE))


@pytest.mark.parametrize("restored", [True, False])
def test_nested_loops_in_every_order(restored: bool) -> None:
    misled = explore(Play(NESTED, waiting={2: (2,)}, restored=restored, hurry=2 if restored else 0))
    assert not restored or misled


@pytest.mark.parametrize(
    "tasks",
    [
        (head(0), Kind(0, timer=1), Kind(1)),
        (head(0), Kind(0), Kind(1, timer=1)),
        (head(0), Kind(0, silent_timer=True), Kind(1)),
        (head(0), Kind(0), Kind(1, event_timer=1)),
        (head(0), Kind(0), Kind(1, farewell=1)),
        (head(0), Kind(0, event_timer=1), Kind(1, farewell=1)),
        (head(0, regular=(1,)), Kind(0), Kind(1, timer=1)),
    ],
    ids=range(7),
)
def test_what_will_yet_make_a_record_is_waited_for(tasks: tuple[Kind, ...]) -> None:
    """A timer of processing time, one of event time, what `finish` emits: all comes out before the end."""
    explore(Play(Shape(tasks, ONE_HEAD)))


@pytest.mark.parametrize(
    "tasks",
    [
        (head(0), Kind(0, timer=1), Kind(1)),
        (head(0), Kind(0), Kind(1, silent_timer=True)),
        (head(0, regular=(1,)), Kind(0), Kind(1)),
    ],
    ids=["timer", "silent timer", "input"],
)
def test_and_a_wave_that_comes_before_it_does_not_end_the_nest(tasks: tuple[Kind, ...]) -> None:
    explore(Play(Shape(tasks, ONE_HEAD), restored=True, hurry=2))


def test_who_stops_at_an_empty_queue_ends_before_the_timer() -> None:
    """The same without the obligation: the wave would find nothing, and be wrong."""
    play = Play(Shape((head(0), Kind(0, timer=1), Kind(1)), ONE_HEAD), restored=True, hurry=1)
    play.move()
    play.follow(0)
    for channel in (0, 1, 2, 3):
        play.read(channel, None)
    assert decide([replaced(facts, obliged=False) for facts in reports(play)]).step is Step.END
    assert decide(list(reports(play))).step is Step.NOT_YET and play.alive()


def reports(play: Play) -> list[Facts]:
    """What each worker has to report of the wave under way."""
    found = []
    for slot in range(play.shape.slots):
        noted = [play.tasks[n].facts for n in play._here(slot)]
        found.append(Facts(
            obliged=any(one[0] for one in noted), ended=True, watermark=LAST_TIME, rested_min=1, rested_max=1,
        ))  # fmt: skip
    return found


# By chance, with more of everything.


def walk(play: Play, chance: Random, most: int = 20_000) -> int:
    """One order of all there are, to the end."""
    for step in range(most):
        choices = list(play.choices())
        if choices:
            chance.choice(choices)(play)
        elif all(play.ended):
            play.over()
            return step
        elif play.terse:
            play.wait()
        else:
            play.over()
    raise AssertionError("it does not come to an end")


@st.composite
def nests(draw: st.DrawFn) -> Play:
    """Some slots with a head and some bodies each; every head speaks to the first bodies of all, and those go on in their
    worker or across, or back."""
    slots, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    few = st.integers(0, 3)
    tasks = [head(slot, regular=tuple(draw(st.lists(few, max_size=3)))) for slot in range(slots)]
    channels: list[tuple[int, int, bool]] = []
    for level in range(depth):
        for slot in range(slots):
            timers = {name: draw(few) for name in ("timer", "event_timer", "farewell") if draw(st.booleans())}
            tasks.append(Kind(slot, consumes=draw(st.booleans()) or level == 0, **timers))
        across = level == 0 or draw(st.booleans())
        pairs = product(range(slots), range(slots)) if across else [(slot, slot) for slot in range(slots)]
        channels += [(level * slots + a, (level + 1) * slots + b, False) for a, b in pairs]
        if level and draw(st.booleans()):  # a loop inside: back to where this level begins
            channels += [((level + 1) * slots + slot, level * slots + slot, True) for slot in range(slots)]
    channels += [(depth * slots + slot, slot, True) for slot in range(slots)]
    waiting = {i: tuple(draw(st.lists(few, max_size=2))) for i, (_, _, back) in enumerate(channels) if back}
    shape = Shape(tuple(tasks), tuple(channels))
    return Play(shape, waiting=waiting, hurry=draw(st.integers(0, 4)), terse=draw(st.booleans()))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_restored_at_any_moment(data: st.DataObject, chance: Random) -> None:
    """What was under way of a wave, or of coming to rest, begins anew; nothing of the older attempt is counted."""
    play = data.draw(nests())
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(0, 120))):
            choices = list(play.choices())
            if not choices or any(play.ended):
                break
            chance.choice(choices)(play)
        if not any(play.ended) and not play.ends:
            play = play.restarted()
            assert not play.nests.ended(0) and play.nests._nests[0].wave == 0
    walk(play, chance)


@settings(max_examples=150, deadline=None)
@given(nests(), st.randoms(use_true_random=False))
def test_larger_nests_in_some_order(play: Play, chance: Random) -> None:
    walk(play, chance)


# Counts. Each slot's count must fit by itself; a sum over all of them would hide what is under way.

Script = dict[tuple[int, str], list[tuple[int, str]]]

SCRIPTS: list[tuple[Script, list[tuple[int, str]]]] = [
    ({(0, "t"): [(1, "u"), (0, "w")], (1, "u"): [], (0, "w"): []}, [(0, "t")]),
    (
        {
            (2, "a"): [(0, "z")], (3, "b"): [(0, "y"), (1, "x")], (0, "z"): [], (0, "y"): [(2, "c")], (1, "x"): [],
            (2, "c"): [(1, "d")], (1, "d"): [],
        },
        [(2, "a"), (3, "b")],
    ),
    (
        {
            (0, "a"): [(2, "b"), (3, "c")], (2, "b"): [(0, "d")], (3, "c"): [(1, "e"), (0, "f")], (0, "d"): [],
            (1, "e"): [(3, "g")], (0, "f"): [], (3, "g"): [],
        },
        [(0, "a")],
    ),
]  # fmt: skip
"""(slot, frame) -> the frames that working it off sends; and what each slot has to begin with."""

Said = tuple[tuple[int, ...], int]
"""(sent by slot, received), as a worker says it when it comes to rest."""


def views(script: Script, begin: list[tuple[int, str]]) -> Iterator[tuple[bool, list[Said]]]:
    """Every moment of every run, with every view that the coordinator may have then: one of the words of each worker that
    has said any. And whether a frame is under way or not worked off."""
    start = (tuple(sorted(begin)), tuple(((0,) * 4, 0) for _ in range(4)), ((),) * 4)
    seen: set[Any] = {start}
    open_: list[Any] = [start]
    while open_:
        pending, counts, words = open_.pop()
        for view in product(*words):
            yield bool(pending), list(view)
        following = []
        for at, (slot, frame) in enumerate(pending):
            sends = script[slot, frame]
            sent, received = counts[slot]
            sent = tuple(n + sum(to == i and to != slot for to, _ in sends) for i, n in enumerate(sent))
            done = (sent, received + ((slot, frame) not in begin and not local(script, slot, frame)))
            left = tuple(sorted((*pending[:at], *pending[at + 1 :], *sends)))
            following.append((left, (*counts[:slot], done, *counts[slot + 1 :]), words))
        for slot in range(4):
            own = [one for one in pending if one[0] == slot and (one in begin or local(script, *one))]
            if not own and counts[slot] not in words[slot]:
                said = (*words[slot], counts[slot])
                following.append((pending, counts, (*words[:slot], said, *words[slot + 1 :])))
        for state in following:
            if state not in seen:
                seen.add(state)
                open_.append(state)


def local(script: Script, slot: int, frame: str) -> bool:
    """Whether a frame was sent within its slot."""
    return any((slot, frame) in sends for (source, _), sends in script.items() if source == slot)


@pytest.mark.parametrize(("script", "begin"), SCRIPTS, ids=range(3))
def test_counts_that_fit_in_every_slot_mean_that_nothing_is_under_way(
    script: Script, begin: list[tuple[int, str]]
) -> None:
    misled = fits = 0
    for pending, view in views(script, begin):
        book = Nests([NestSpec(4)])._nests[0]
        book.quiet = {slot: Quiet(0, list(sent), received) for slot, (sent, received) in enumerate(view)}
        if book.balanced:
            fits += 1
            assert not pending
        misled += pending and sum(sum(sent) for sent, _ in view) == sum(received for _, received in view)
    assert fits, "and at the end they fit"
    assert misled or script is not SCRIPTS[2][0], "a sum over all slots fits too early"


# In the coordinator.

SECOND = 1_000_000


class Job:
    """A coordinator of a job of two slots with one nest, running."""

    def __init__(self) -> None:
        spec = [NestSpec(2)]
        self.machine = Coordinator("job", 1, 2, b"", Limits(), run_id="run", restarts=Fixed(3, 0), nests=spec)
        self.now = 10 * SECOND
        self.machine.start(self.now)
        for slot in range(2):
            self.machine.hello(Hello(slot, "h", slot, 10 + slot, "job", 1, 1), self.now)
        self.deployed()

    def deployed(self) -> None:
        for slot in range(2):
            self.says(slot, Deployed())
        self.says(0, Published(0))  # after a restart, what was left unpublished is removed first
        assert self.machine.status is JobStatus.RUNNING
        self.sent()

    def says(self, slot: int, message: Any) -> None:
        self.machine.message(slot, 1, message, self.now)

    def sent(self) -> list[tuple[int, Any]]:
        actions, self.machine.actions = self.machine.actions, []
        return [(one.slot, one.message) for one in actions if isinstance(one, Send)]


def test_the_coordinator_starts_waves_and_ends_the_loop() -> None:
    job = Job()
    for slot in range(2):
        job.says(slot, Quiet(0, [0, 0], 0))
    assert job.sent() == [(0, StartWave(0, 1)), (1, StartWave(0, 1))]
    for slot in range(2):
        job.says(slot, WaveReport(0, 1, REST))
    assert job.sent() == [(0, EndLoop(0)), (1, EndLoop(0))]
    assert job.machine.nests.ended(0)


def test_the_clock_of_the_coordinator_starts_a_wave() -> None:
    job = Job()
    job.says(0, Moved(0, 5))
    for slot in range(2):
        job.says(slot, WaveReport(0, 1, times(5)))
    job.says(0, Moved(0, 6))
    job.sent()
    assert job.machine.next_tick(job.now) == job.now + PAUSE
    job.now += PAUSE
    job.machine.tick(job.now)
    assert job.sent() == [(0, StartWave(0, 2)), (1, StartWave(0, 2))]


def test_what_an_older_attempt_says_of_a_wave_is_not_counted() -> None:
    job = Job()
    for slot in range(2):
        job.says(slot, Quiet(0, [0, 0], 0))
    job.says(0, WaveReport(0, 1, REST))
    job.says(0, Failed(FailureKind.USER, "it broke"))
    assert job.machine.status is JobStatus.RESTARTING
    job.says(1, WaveReport(0, 1, REST))
    assert not job.machine.nests.ended(0)
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
    job = Job()
    job.says(0, WaveReport(0, 1, REST))
    assert job.machine.status is JobStatus.FAILING
    assert job.machine.cause is not None and "not asked for" in job.machine.cause.message


def test_while_the_job_does_not_run_nothing_follows_from_what_nests_say() -> None:
    job = Job()
    job.says(0, Quiet(0, [0, 0], 0))
    job.machine.cancel(job.now)
    job.sent()
    job.says(1, Quiet(0, [0, 0], 0))
    assert job.sent() == []
