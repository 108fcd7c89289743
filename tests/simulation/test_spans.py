"""Loops in rounds by spans of event time, beside a plain interpreter: in each span they begin anew, whoever is lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import tailrace as tr
from search.campaigns.rescales import rescaled
from search.campaigns.unaligned import overtaking
from search.programs.golden import PROGRAMS, Program
from search.scenarios import Scenario, Verdict, run_scenario, scenario
from search.stories import Story
from tailrace.coordinator.loops import termination
from tailrace.elements.timestamps import LAST_TIME
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.loops import HeadTask

HOUR = 3_600
KEYS = 7
ROUNDS = 4


def seconds_of(i: int) -> int:
    """When a number comes, about in order; no number comes in the third hour, and few do in the first."""
    time = i * 97 + (i * 7_919) % 900
    return time if time < 2 * HOUR else time + HOUR + 40


class Gives(tr.KeyedProcessFunction):
    """Adds up what comes, and gives a quarter of it on when a round ends."""

    total = tr.ValueState(int, default=0)
    rounds = tr.ValueState(int, default=0)

    def process(self, value: tuple[int, int], ctx: tr.Context) -> None:
        self.total.value += value[1]

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        self.rounds.value += 1
        ctx.emit("found", (int(ctx.timestamp or 0) // HOUR, round, ctx.key, self.total.value, self.rounds.value))
        half = self.total.value // 2
        self.total.value -= half
        if half > 1:
            yield (ctx.key * 3 + 1) % KEYS, half // 2


def body(values: tr.DataStream) -> Any:
    given = values.key_by(lambda value: value[0]).process(Gives(), uid="gives")
    return given, given.side_output("found")


def hours(rounds: Callable[[], tr.Rounds]) -> Callable[[tr.Environment, int, float | None], tr.DataStream]:
    """What is found in each round of each hour, and how much that is, by windows behind the loop."""

    def by_hours(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, n, rate=rate), uid="numbers")
        timed = numbers.assign_timestamps(seconds_of, out_of_orderness=1_000)
        found = timed.map(lambda i: (i % KEYS, i)).iterate(body, rounds=rounds(), uid="loop")
        many = found.key_by(lambda one: one[0]).window(tr.Tumbling("1 hour")).aggregate(n=tr.Count())
        return found.union(many.map(lambda row: ("window", row["key"], row["n"])))

    return by_hours


def interpreted(last: Callable[[int, list[Any]], bool]) -> Callable[[int], Counter[Any]]:
    """What plain Python finds. `last`: whether a round that has fed this back is the last one."""

    def expected(n: int) -> Counter[Any]:
        found = Counter[Any]()
        for hour in sorted({seconds_of(i) // HOUR for i in range(n)}):
            given = [(i % KEYS, i) for i in range(n) if seconds_of(i) // HOUR == hour]
            totals, rounds, round, lines = Counter[int](), Counter[int](), 0, 0
            while given:
                for key, amount in given:
                    totals[key] += amount
                keys, given = {key for key, _ in given}, []
                for key in keys:
                    rounds[key] += 1
                    found[hour, round, key, totals[key], rounds[key]] += 1
                    lines += 1
                    half = totals[key] // 2
                    totals[key] -= half
                    given += [((key * 3 + 1) % KEYS, half // 2)] if half > 1 else []
                given = [] if last(round, given) else given
                round += 1
            found["window", hour, lines] += 1
        return found

    return expected


def little(result: Any) -> bool:
    return sum(half for _, half in result) < 60


def much(figures: tr.RoundFigures) -> bool:
    return bool(figures.output >= KEYS and figures.round >= 2)


WAYS: dict[str, Program] = {
    "at most": Program(
        hours(lambda: tr.Rounds(max=ROUNDS, span=HOUR)), interpreted(lambda round, _: round + 1 >= ROUNDS)
    ),
    "until nothing": Program(hours(lambda: tr.Rounds(span="1 hour")), interpreted(lambda round, given: False), n=60),
    "until records": Program(
        hours(lambda: tr.Rounds(until=little, span="60 minutes")), interpreted(lambda _, given: little(given)), n=100
    ),
}
FAULTS: dict[str, Callable[[Scenario], Scenario]] = {
    "plainly": lambda one: one,
    "unaligned": overtaking,
    "resized": rescaled,
}


SOME = [("at most", "plainly"), ("until nothing", "unaligned"), ("until records", "resized")]
SEEDS = (701, 703)


def ran(way: str, how: str, seed: int) -> Verdict:
    with mock.patch.dict(PROGRAMS, {"hours": WAYS[way]}):
        return run_scenario(FAULTS[how](scenario(seed, "hours")))


@pytest.mark.parametrize(("way", "how"), SOME)
def test_each_span_is_as_a_plain_interpreter_has_it_whoever_is_lost(way: str, how: str, exhaustive: bool) -> None:
    covered: Counter[str] = Counter()
    for one in itertools.product(WAYS, FAULTS) if exhaustive else [(way, how)]:
        for seed in range(700, 760) if exhaustive else SEEDS:
            verdict = ran(*one, seed)
            assert verdict.wrong == [], (seed, one)
            covered.update(verdict.covered)
    assert covered["began a round"] and covered["committed"], covered


def _kept(self: HeadTask) -> Any:
    return RECORDINGS(self)[:1]


def _hasty(times: Any) -> int | None:
    return max((time for time in times if time is not None), default=None)


RECORDINGS = HeadTask.recordings
BUGS: dict[str, tuple[Any, str, Any, int]] = {
    "state of a span is there in the next one": (FunctionTask, "end_span", lambda self, limit: True, 703),
    "a span begins when event time has passed it in one subtask": (termination, "least_come", _hasty, 706),
    "a checkpoint does not have what waits for its span": (HeadTask, "recordings", _kept, 700),
    "feedback behind the last round is read in the next span": (
        FeedbackQueue,
        "drop_waiting",
        lambda self, below=None: 0,
        703,
    ),
    "event time behind the loop does not wait for its spans": (HeadTask, "own_watermark", lambda self: LAST_TIME, 703),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_fault_of_spans_that_is_put_back_is_found(bug: str) -> None:
    place, name, wrong, seed = BUGS[bug]
    with mock.patch.object(place, name, wrong):
        assert ran("at most", "plainly", seed).wrong != []


def test_spans_of_input_without_an_end_leave_one_after_the_other(story: Story) -> None:
    program = hours(lambda: tr.Rounds(max=ROUNDS, span=HOUR))
    world = story.simulation(lambda env: program(env, None, 20_000))  # type: ignore[arg-type]
    world.start()
    windows: Counter[Any] = Counter()
    while len(windows) < 3:
        world.turn()
        windows = Counter(one[1] for one in story.ledger.book.records() if one[0] == "window")
    assert sorted(windows)[:3] == [0, 1, 3] and set(windows.values()) == {1}
