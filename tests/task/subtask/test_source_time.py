"""Event time at sources that are silent, that run ahead of the clock, or of each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import AssignTimestamps
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.timestamps import TimestampsTask
from tests.task.subtask.test_watermarks import HOW, Script, records, time_of

SECOND = 1_000_000


class FiredAt(tr.KeyedProcessFunction):
    """Sets a timer at the time of each record plus ten seconds, and gives how long it took by the clock."""

    began = tr.ValueState(float)

    def process(self, value: Any, ctx: tr.Context) -> None:
        self.began.value = ctx.now()
        ctx.set_timer(event_time=ctx.timestamp + 10)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, timestamp, ctx.now() - self.began.value


def silent(
    parallelism: int, first: int = 100, second: int = 130, **options: Any
) -> Callable[[tr.Environment], tr.DataStream]:
    """Two splits with one record each, and then nothing for a long time."""

    def program(env: tr.Environment) -> tr.DataStream:
        source = env.from_source(Script([first, ("wait", 200)], [second, ("wait", 200)]), parallelism=parallelism)
        timed = source.assign_timestamps(time_of, 2, idle_after=4, **options)
        return timed.key_by(lambda record: record[0]).process(FiredAt(), parallelism=1)

    return program


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("times", [(100, 130), (130, 100)])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_while_all_are_silent_event_time_goes_on_by_the_clock(
    how: Any, parallelism: int, times: tuple[int, int]
) -> None:
    """Four seconds until they are silent, then two of disorder and ten until the timer, and at most a second from one move
    to the next. The split that is behind does not hold the other one back."""
    found = {key: took for key, _, took in records(silent(parallelism, *times, when_all_idle="advance"), how, 2)}
    newest = times.index(130)
    assert found.keys() == {0, 1} and 15.9 < found[newest] < 17.5
    assert found[1 - newest] < 17.5


@pytest.mark.parametrize("how", ["run", 1])
def test_without_that_event_time_waits_for_the_end(how: Any) -> None:
    assert {key: took for key, _, took in records(silent(2), how, 2)}[1] > 190


@pytest.mark.parametrize("how", HOW)
def test_an_input_behind_a_shuffle_goes_on_by_the_clock_too(how: Any) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        shuffled = env.from_source(Script([100, ("wait", 200)])).rebalance()
        timed = shuffled.assign_timestamps(time_of, 2, idle_after=4, when_all_idle="advance")
        return timed.key_by(lambda record: record[0]).process(FiredAt())

    ((_, _, took),) = records(program, how)
    assert 15.9 < took < 18.5


@pytest.mark.parametrize("how", HOW)
def test_a_silent_subtask_that_goes_on_by_the_clock_moves_nobody_who_is_not(how: Any) -> None:
    """The watermark at each record of the other split is that of the records alone."""

    class Seen(tr.ProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            yield value, ctx.watermark

    def program(env: tr.Environment) -> tr.DataStream:
        loud = [step for i in range(40) for step in (50 + i / 10, ("wait", 2))]
        source = env.from_source(Script(loud, [500, ("wait", 200)]), parallelism=2)
        timed = source.assign_timestamps(time_of, idle_after=4, when_all_idle="advance")
        return timed.rebalance().process(Seen(), parallelism=1)

    assert all(mark < value[1] for value, mark in records(program, how, 2) if value[0] == 0)


@pytest.mark.parametrize("how", HOW)
def test_a_record_behind_the_silence_counts_again(how: Any) -> None:
    """Event time has gone on by the clock, and does not go back; from then on it follows the records."""

    class Seen(tr.ProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            yield value[1], ctx.watermark

    def program(env: tr.Environment) -> tr.DataStream:
        source = env.from_source(Script([100, ("wait", 34), 120, ("wait", 1), 500, ("wait", 1), 501]))
        return source.assign_timestamps(time_of, idle_after=4, when_all_idle="advance").rebalance().process(Seen())

    found = dict(records(program, how))
    assert 127 < found[120] < 131 and 127 < found[500] < 131 and found[501] == 499.999999


# Ahead of the clock.


def assigned(batch: Batch, now: float = 1_000, **options: Any) -> tuple[TimestampsTask, list[Batch], list[Batch]]:
    """An operator that was given a batch, and what came out of it and aside."""
    operator = AssignTimestamps("at", 0, None, most_ahead=60 * SECOND, **options)
    services = Services(random_factory=random.Random, now=round(now * SECOND))
    node = Node(0, operator, "assign", "u", True, 1, batch.form, ())
    task = TimestampsTask(node, OperatorContext("assign", "u", 0, 1, 0, services))
    out: list[Batch] = []
    aside: list[Batch] = []
    task.out, task.side_out = out.append, {"ahead": aside.append}
    task.splits_opened([3, 4])
    task.process(batch, 0)
    return task, out, aside


AT = [900, 1_060, 1_061, 5_000, 1_000]


def batch_of(form: str, at: list[int]) -> Batch:
    if form == "rows":
        return Rows([{"at": one} for one in at], split=3)
    return Columns(pa.record_batch({"at": pa.array(at)}), split=3)


def times(batches: list[Batch]) -> list[int]:
    return [row["at"] if isinstance(row, dict) else row.at for batch in batches for row in batch.to_rows().values]


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_timestamp_too_far_ahead_goes_aside_and_makes_no_other_late(form: str) -> None:
    task, out, aside = assigned(batch_of(form, AT))
    assert times(out) == [900, 1_060, 1_000] and times(aside) == [1_061, 5_000]
    assert task.largest[3] == 1_060 * SECOND and task.ctx.metrics.counters["ahead_records"] == 2
    assert [one.split for one in (*out, *aside)] == [3, 3]
    task, out, aside = assigned(batch_of(form, [5_000]))
    assert not out and times(aside) == [5_000]


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_or_it_is_brought_back_to_what_is_allowed(form: str) -> None:
    task, out, aside = assigned(batch_of(form, AT), if_ahead="clamp")
    stamped = [one.times for one in out]
    assert np.concatenate(stamped).tolist() == [at * SECOND for at in (900, 1_060, 1_060, 1_060, 1_000)]  # type: ignore[arg-type]
    assert not aside and task.ctx.metrics.counters["ahead_records"] == 2


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_or_it_fails_the_job_with_the_record(form: str) -> None:
    with pytest.raises(
        UserCodeError, match=r"1061.*17:41.000Z, is 61 s ahead of the clock of the job, and most_ahead is 60 s"
    ):
        assigned(batch_of(form, AT), if_ahead="fail")


def test_records_ahead_are_a_stream_of_their_own() -> None:
    env = tr.Environment(parallelism=1)
    timed = env.from_collection([1, 10**11, 2]).assign_timestamps(lambda n: n, most_ahead="1 day")
    ahead, sink = timed.side_output("ahead").sink_to(tr.sinks.Collect()), timed.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [1, 2] and ahead.result() == [10**11]


# Ahead of each other.


def read(*splits: list[Any], **options: Any) -> list[Any]:
    def program(env: tr.Environment) -> tr.DataStream:
        return env.from_source(Script(*splits)).assign_timestamps(time_of, **options).map(lambda record: record)

    return records(program, "one by one")


def test_a_fast_split_waits_for_a_slow_one() -> None:
    fast = list(range(100))
    slow = [step for i in range(0, 100, 5) for step in (i, ("wait", 3))]
    found = read(fast, slow, max_drift=10)
    assert sorted(found) == sorted([(0, at) for at in fast] + [(1, at) for at in slow if not isinstance(at, tuple)])
    reached = [-1, -1]
    for split, at in found:
        if split == 0 and at:
            assert reached[1] >= 0 and at - 1 <= reached[1] + 10
        reached[split] = at
        if split == 1 and at == 95:
            break


def test_it_waits_for_no_split_that_has_ended_or_is_silent() -> None:
    fast = list(range(100))
    assert len(read(fast, [0], max_drift=10)) == 101
    quick = read(fast, [0, ("wait", 500), 1], max_drift=10, idle_after=5)
    assert quick[-1] == (1, 1), "the fast one was read to its end before"
    slow = read(fast, [0, ("wait", 500), 50], max_drift=10)
    assert slow.index((1, 50)) == 13, "one record too far, and no more"


def test_a_split_that_never_has_a_record_counts_from_its_opening() -> None:
    """All others are silent when it is found: it is waited for again, and for `idle_after` only."""

    class Finding(tr.Enumerator):
        position = None
        looks = 0

        def discover(self, now: float) -> Any:
            self.looks += 1
            self.due = now + 30
            return [[0], [1], None][self.looks - 1]

        def next_at(self, now: float) -> float:
            return self.due

    class Found(Script):
        def splits(self, parallelism: int) -> list[int]:
            return []

        def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
            return Finding()

    def program(env: tr.Environment) -> tr.DataStream:
        found = Found([100, ("wait", 200)], [("wait", 150)])
        quiet = env.from_source(found).assign_timestamps(time_of, idle_after=10)
        loud = env.from_source(Script([step for i in range(60) for step in (1_000 + i, ("wait", 1))]))
        timed = loud.assign_timestamps(time_of).map(lambda record: ("loud", record[1]))

        class Marks(tr.ProcessFunction):
            def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
                yield value[1], ctx.watermark

        return timed.union(quiet.map(lambda record: ("quiet", record[1]))).process(Marks())

    marks = dict(records(program))
    assert marks[1_005] < 100, "the first split holds event time until it is silent"
    assert marks[1_025] >= 1_020
    assert marks[1_035] < 1_032, "the second one holds it from its opening"
    assert marks[1_055] >= 1_050


# Where it is written.

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no idle_after": (lambda s: s.assign_timestamps(time_of, when_all_idle="advance"), "needs idle_after"),
    "another word": (
        lambda s: s.assign_timestamps(time_of, when_all_idle="go"),
        "must be 'wait' or 'advance', not 'go'",
    ),
    "another end": (lambda s: s.assign_timestamps(time_of, if_ahead="drop"), "must be 'aside', 'clamp' or 'fail'"),
    "behind a shuffle": (
        lambda s: s.rebalance().assign_timestamps(time_of, max_drift=5),
        "assign_timestamps: max_drift=... is between the splits of a source",
    ),
    "at another parallelism": (
        lambda s: s.assign_timestamps(time_of, max_drift=5, parallelism=3),
        "assign timestamps there, at the parallelism of the source",
    ),
    "no such side output": (
        lambda s: s.assign_timestamps(time_of, most_ahead=5, if_ahead="clamp").side_output("ahead"),
        "has the side output 'ahead' only, and that with most_ahead",
    ),
    "in front of a loop": (
        lambda s: (
            s.assign_timestamps(time_of, idle_after=1, when_all_idle="advance").map(time_of).iterate(lambda i: (i, i))
        ),
        "while all inputs of a loop are idle, event time behind it stays where it is",
    ),
    "into a loop": (
        lambda s: s.iterate(
            lambda i: (i, s.assign_timestamps(time_of, idle_after=1, when_all_idle="advance").enter(i.scope))
        ),
        "enter: .* while all inputs of a loop are idle",
    ),
    "in a loop": (
        lambda s: s.iterate(lambda i: (i.assign_timestamps(time_of, idle_after=1, when_all_idle="advance"), i)),
        "cannot be kept in loop",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_keep_is_refused_where_it_is_written(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(tr.GraphError, match=message):
        build(tr.Environment(parallelism=2).from_source(Script([1])))
