"""Silence: an input of event time falls silent only while it is known to have nothing, however busy its task is."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.task.contract.events import Step
from tailrace.task.operators.timestamps import LOOKS, TimestampsTask
from tailrace.task.subtask.idleness import Idle
from tests.task.worker.test_machine import Driven

S = 1_000_000
AFTER = 10
"""Seconds of silence."""


class Lines(tr.Source):
    """Splits that have what a test puts there; a look at one that has nothing is worth `pause` seconds."""

    bounded = False

    def __init__(self, *splits: list[int | None], pause: float = 0.01) -> None:
        self.lines, self.pause = [list(split) for split in splits], pause

    def splits(self, parallelism: int) -> list[int]:
        return list(range(len(self.lines)))

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return _Line(self.lines[split], self.pause)


class _Line(tr.Reader):
    position = None

    def __init__(self, line: list[int | None], pause: float) -> None:
        self.line, self.pause = line, pause

    def read(self, limit: int, now: float) -> Any:
        if not self.line:
            return []
        given = self.line.pop(0)
        return None if given is None else [given]

    def next_at(self, now: float) -> float:
        return now + self.pause


class Busy:
    """A source task with a clock of its own: each of its steps takes as long as a test sets."""

    def __init__(self, source: Lines, between: Any = None) -> None:
        def program(env: tr.Environment) -> None:
            stream = env.from_source(source) if between is None else between(env.from_source(source))
            timed = stream.assign_timestamps(float, idle_after=AFTER)
            timed.rebalance().sink_to(tr.sinks.Callback(lambda record: None))

        self.source = source
        self.driven = Driven(program).start()
        [self.task] = [task for task in self.driven.machine.tasks() if task.chain.generators]
        [self.clock] = self.task.chain.generators
        self.now = 0

    def step(self, took: float = 0.0) -> Idle | None:
        idle: Idle | None = self.driven.machine.handle(Step(self.task.id.vertex, self.now, 100))
        self.now += round(took * S)
        return idle

    def steps(self, count: int, took: float = 0.0) -> None:
        for _ in range(count):
            self.step(took)


def test_a_split_that_always_has_records_never_falls_silent_however_long_steps_take() -> None:
    busy = Busy(Lines(list(range(100)), list(range(100))))
    for _ in range(60):
        busy.step(took=3 * AFTER)
        assert not busy.clock.silent
    assert busy.clock.own_watermark() > 20 * S


def test_the_time_between_an_empty_read_and_a_record_is_silence_only_as_far_as_it_was_looked() -> None:
    """Both splits were found empty; then the task was busy, and meanwhile one of them got something."""
    busy = Busy(Lines([], []))
    busy.steps(6)
    assert sorted(busy.clock.empty) == [0, 1]
    busy.now += 5 * AFTER * S
    busy.source.lines[0].append(7)
    busy.steps(2)
    assert busy.clock.silent == {1}


def test_a_split_falls_silent_at_an_empty_read_though_another_one_keeps_the_task_busy() -> None:
    """The readers are to be called each 10 ms, and a step takes a second: never is a split known to be empty at its
    beginning."""
    busy = Busy(Lines(list(range(100)), []))
    found = []
    for _ in range(30):
        busy.step(took=1)
        found.append(bool(busy.clock.silent))
    assert found.index(True) in range(AFTER, AFTER + 5)
    assert busy.clock.own_watermark() > 10 * S


def test_a_split_whose_reader_has_nothing_for_long_falls_silent_without_another_read() -> None:
    busy = Busy(Lines([], pause=100 * AFTER))
    idle = None
    while idle is None:
        idle = busy.step()
    assert idle.wake_at == AFTER * S
    busy.now = idle.wake_at - 1
    assert busy.step() is not None and not busy.clock.silent
    busy.now = idle.wake_at
    assert busy.step() is None and busy.clock.silent == {0}


def test_records_that_a_filter_drops_are_neither_silence_nor_an_end_of_it() -> None:
    busy = Busy(Lines([-1] * 20), between=lambda stream: stream.filter(lambda value: value >= 0))
    busy.steps(20, took=AFTER)
    assert not busy.clock.silent  # it has records, and whatever is behind them is still to come
    busy.steps(3, took=AFTER)
    assert busy.clock.silent == {0}


def test_a_split_that_was_never_read_is_not_silent_and_one_that_ended_is_forgotten() -> None:
    busy = Busy(Lines([1, None], []))
    busy.now = 50 * AFTER * S
    busy.step()
    assert not busy.clock.empty and not busy.clock.silent
    busy.steps(8, took=AFTER)
    assert list(busy.clock.largest) == [1] and busy.clock.silent == {1} and not busy.clock.empty


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 3)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_whoever_falls_silent_has_had_nothing_for_that_long(course: list[tuple[float, int]]) -> None:
    """Against a list of when each split got something: steps take what they like."""
    busy = Busy(Lines([], [], []))
    busy.steps(4)
    last = dict.fromkeys(range(3), 0)
    for took, split in course:
        if split < 3:
            busy.source.lines[split].append(1)
            last[split] = busy.now
        silent = set(busy.clock.silent)
        began = busy.now
        busy.step(took)
        for fell in busy.clock.silent - silent:
            assert not busy.source.lines[fell] and began - last[fell] >= AFTER * S


# Without a source in the chain.


def look(clock: TimestampsTask, now: float) -> float | None:
    wake = clock.look(round(now * S))
    return None if wake is None else wake / S


def behind_a_shuffle() -> tuple[Driven, Any, TimestampsTask]:
    def program(env: tr.Environment) -> None:
        timed = env.from_source(Lines([])).rebalance().assign_timestamps(float, idle_after=AFTER)
        timed.rebalance().sink_to(tr.sinks.Callback(lambda record: None))

    driven = Driven(program).start()
    [task] = [task for task in driven.machine.tasks() if task.chain.generators]
    return driven, task, task.chain.generators[0]


def test_an_input_is_looked_at_several_times_until_it_is_silent() -> None:
    driven, task, clock = behind_a_shuffle()
    now, looks = 0, 0
    while not clock.silent:
        idle = driven.machine.handle(Step(task.id.vertex, now, 100))
        looks += 1
        if idle is not None:
            assert idle.wake_at is not None
            now = idle.wake_at
    assert now == AFTER * S and looks == LOOKS + 1


@pytest.mark.parametrize("busy", [1, 5, 1000])
def test_what_a_task_was_busy_for_is_no_silence_of_its_input(busy: int) -> None:
    driven, task, clock = behind_a_shuffle()

    def step(now: float) -> Idle | None:
        idle: Idle | None = driven.machine.handle(Step(task.id.vertex, round(now * S), 100))
        return idle

    step(0)
    away = AFTER * busy
    step(away)
    assert not clock.silent
    pause = AFTER / LOOKS
    for look_at in range(1, LOOKS - 1):
        step(away + look_at * pause)
        assert not clock.silent
    step(away + (LOOKS - 1) * pause)
    assert clock.silent


def test_an_aligning_input_is_not_silent() -> None:
    driven, task, clock = behind_a_shuffle()
    driven.machine.handle(Step(task.id.vertex, 0, 100))
    [channel] = task.gate.channels.values()
    task.cuts.blocked[channel.id] = None
    for now in range(0, 5 * AFTER, AFTER // LOOKS):
        driven.machine.handle(Step(task.id.vertex, now * S, 100))
    assert not clock.silent


# Whole jobs.


SLOW = tr.testing.Conditions(delay=(0, 5), step_cost=(1, 400_000), budget=(1, 3))


class InStep(Lines):
    """Two splits of which one is far ahead of the other."""

    bounded = True

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return _Line([*range(1000 * split, 1000 * split + 24), None], 0.01)


HOW: dict[str, Any] = {
    "one task": lambda timed: timed,
    "behind a shuffle": lambda timed: timed.rebalance(),
    "another width": lambda timed: timed.rebalance().map(abs, parallelism=2),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_late_because_a_worker_was_busy_or_waited_for_credit(how: str, seed: int) -> None:
    env = tr.Environment(parallelism=1)
    timed = HOW[how](env.from_source(InStep([], [])).assign_timestamps(float, idle_after=0.2))
    counted = timed.key_by(lambda value: value // 1000).window(tr.Tumbling(4)).count()
    out, late = counted.sink_to(tr.sinks.Collect()), counted.side_output("late").sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed, conditions=SLOW)
    job.await_termination()
    assert late.result() == []
    assert sum(window.count for window in out.result()) == 48


# Sources without splits.


class Later(tr.Enumerator):
    """Finds the splits that it is given at these seconds of the clock, and then no more."""

    position = None

    def __init__(self, found: list[tuple[float, list[int]]]) -> None:
        self.found, self.begun = found, None

    def discover(self, now: float) -> Any:
        self.begun = now if self.begun is None else self.begun
        if not self.found:
            return None
        return self.found.pop(0)[1] if now >= self.begun + self.found[0][0] else []

    def next_at(self, now: float) -> float:
        return self.begun + self.found[0][0] if self.found else now


class Found(Lines):
    """A source that finds its splits while it runs."""

    bounded = True

    def __init__(self, found: list[tuple[float, list[int]]], *splits: list[int | None]) -> None:
        super().__init__(*splits)
        self.found = found

    def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
        return Later(list(self.found))


class Marks(tr.ProcessFunction):
    """What the watermark was at each record."""

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value, ctx.watermark


@pytest.mark.parametrize("idle_after", [None, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_subtask_without_a_split_holds_nobody_back_before_its_first_and_behind_its_last(
    idle_after: int | None, seed: int
) -> None:
    """Of two subtasks the second one has a split from the 100th second on, until that has ended, and another one from
    the 300th on. The watermark that others see stays behind it in between only."""
    env = tr.Environment(parallelism=2)
    found = Found([(0, []), (100, [0, 1]), (300, [2, 3]), (400, [])], [None], [50, None], [None], [60, None])
    own = env.from_source(found).assign_timestamps(float, idle_after=idle_after)
    loud = tr.sources.Generator(lambda i: 1000 + i, count=41, rate=0.1)
    others = env.from_source(loud, parallelism=1).assign_timestamps(float)
    out = others.union(own).process(Marks(), parallelism=1).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=seed).await_termination()
    marks = dict(out.result())
    assert marks[1005] > 1000 and marks[1025] > 1020 and marks[1039] > 1030
