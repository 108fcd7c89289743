"""Loop nests for tests: the commands of a coordinator for one, and small ones that are played in every order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tailrace.coordinator.loops.termination import (
    Nests,
    NestSpec,
    WaveResult,
    decide,
)
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.protocol.termination import (
    Advance,
    CallFinish,
    EndLoop,
    EventTimeMoved,
    Gathering,
    Quiet,
    Release,
    ScopeFacts,
    StartWave,
    Wave,
    WaveFacts,
    WaveReport,
)

REST = WaveFacts(ended=True, watermark=LAST_TIME, rested_min=1, rested_max=1)


def replaced(facts: WaveFacts, **changes: Any) -> WaveFacts:
    return WaveFacts(**{name: getattr(facts, name) for name in WaveFacts.__struct_fields__} | changes)


class Desk:
    """A coordinator's book of one nest of two slots, and the commands that it has sent."""

    def __init__(self, spec: NestSpec | None = None) -> None:
        self.nests = Nests([spec if spec is not None else NestSpec(2)])
        self.now = 0
        self.sent: list[tuple[int, Any]] = []

    def say(self, slot: int, message: Any) -> None:
        self.sent += self.nests.message(slot, message, self.now)

    def quiet(self, actions: int = 0, **counts: Any) -> None:
        for slot in range(2):
            self.say(slot, Quiet(0, [0, 0], 0, actions))

    def report(self, wave: int, *facts: WaveFacts) -> None:
        for slot, one in enumerate(facts):
            self.say(slot, WaveReport(0, wave, one))

    def wait(self, micros: int) -> None:
        self.now += micros
        self.sent += self.nests.tick(self.now)

    def said(self) -> list[Any]:
        """Messages since the last call; each message once, and to both slots."""
        sent, self.sent = self.sent, []
        assert [slot for slot, _ in sent] == [0, 1] * (len(sent) // 2)
        assert [one for _, one in sent[::2]] == [one for _, one in sent[1::2]]
        return [one for _, one in sent[::2]]


# A nest in a nutshell: tasks with the real `Wave` and `Gathering`, channels that deliver in order and whenever they like,
# workers that report by the protocol, and the real `Nests`.

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
    """Trips of the record that an event-time timer emits. It is due by the time which the entries have reached when the
    play begins, and which is on its way from them."""
    event_timer: int = 0
    """Trips of the record that a timer emits which is due at the end of event time only."""
    farewell: int = 0
    """Trips of the record that `finish` emits, the first time."""
    consumes: bool = True
    """Whether a record has one trip less behind it, and ends where it has none left."""
    silent_timer: bool = False
    """Whether there is a timer that emits nothing."""
    inner: bool = False
    """Whether it is in the loop inside."""
    leave: bool = False
    """Whether it is a leave of the loop inside: it lets event time go as far as the coordinator allows."""


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
    """The counts and the last report of a worker."""

    def __init__(self, slots: int) -> None:
        self.sent = [0] * slots
        self.received = self.actions = self.wave = 0
        self.news = True
        """Whether it has done anything since it sent `Quiet` last."""
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
    workers do not repeat a report, even if they were at work meanwhile."""

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
        """Messages to each worker that have not arrived yet."""
        self.nests = Nests([NestSpec(shape.slots)])
        self.hurry = hurry
        self.now = 0
        self.ended = [False] * shape.slots
        self.advanced = False
        """Whether `Advance` was sent in this attempt."""
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
        """This moment once more. What is changed later is copied then (`task`, `worker`, `_up`)."""
        new = copy(self)
        new.tasks, new.workers = list(self.tasks), list(self.workers)
        new.channels, new.down, new.ended = list(self.channels), list(self.down), list(self.ended)
        new._own = set()
        return new

    def restarted(self) -> Play:
        """The job is restarted from a checkpoint of this moment: records and state are there again; markers, commands
        and reports are not. An entry reports its event time once more."""
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
                repr(sorted((nest.reports or {}).items())), nest.reports is None,
                tuple(sorted((slot, *item.tolist()) for slot, item in nest.counts.newest.items())),
                tuple(sorted(nest.counts.behind)),
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
                    (message.wave, NAMES[time]) for scope, time in message.times if scope == (0, 0)
                )
                self._passed(number)
            if not self.shape.tasks[number].entry:
                continue
            task = self.task(number)
            if isinstance(message, StartWave):
                self._start(number, message.wave)
            elif isinstance(message, Advance):
                self._time(number, -1, END)
            elif isinstance(message, CallFinish) and task.rest.command(message.number):
                self._at_rest(number, message.number)
        if isinstance(message, EndLoop):
            assert not self.ended[slot]
            self.ended[slot] = True
        self._report(slot)

    def quiet(self, slot: int) -> bool:
        """Whether a worker has nothing to do that it knows of, and has not reported that."""
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
        self._up(0, EventTimeMoved(0, 10 - self.hurry))
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
        facts = WaveFacts(
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
            scopes=[ScopeFacts((0, 0), min(inside, default=MAX_TIME), released=min(leaves, default=None))]
            if inside or leaves
            else [],
        )
        if decide([facts]).step is WaveResult.END:
            self.clean |= {(slot, wave)}
        self._up(slot, WaveReport(0, wave, facts))

    def _up(self, slot: int, message: Any) -> None:
        nest = self.nests._nests[0]
        self.nests, self._nest_key = copy(self.nests), None
        self.nests._nests = [_cloned(nest, counts=_cloned(nest.counts))]
        self._say(self.nests.message(slot, message, self.now))

    def _say(self, sent: list[tuple[int, Any]]) -> None:
        for to, item in sent:
            if isinstance(item, Release):
                item = Release(item.nest, item.wave, tuple(item.times))  # type: ignore[arg-type]  # hashable
            self.down[to] += (item,)
            if (
                isinstance(item, Advance) and not self.advanced
            ):  # a repeated command changes nothing, and may be under way
                assert to or not self.moving(), "event time came to its end while some was on its way"
                self.advanced = to == self.shape.slots - 1
            if isinstance(item, EndLoop):
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
