"""Golden programs for the search: small dataflows with state of every kind. Their result is known beforehand and is one
multiset, however they run."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

import tailrace as tr
from search.programs import broadcasts
from search.programs import calls as calls
from search.programs import columns as columns
from search.programs import loops as loops
from search.programs import rounds as rounds
from search.programs import silent as silent
from search.programs import spans as spans
from search.programs import timed_loops as timed
from search.programs import timers as timers

Records = Counter[Any]


@dataclass(frozen=True)
class Program:
    """A dataflow with about `n` input records, read at `rate` records per second (None: as fast as it goes)."""

    build: Callable[[tr.Environment, int, float | None], tr.DataStream]
    expected: Callable[[int], Records]
    order: Callable[[Any], Any] | None = None
    """(key, place) of a record, where records of a key must be published in the order of their places."""
    n: int = 240
    sinks: int | None = None
    """The parallelism of the sink, where it differs from the parallelism before it."""
    replaced: bool = True
    """True where lost workers may be replaced while the others go on: in rounds by spans of event time they may not."""

    @property
    def name(self) -> str:
        return self.build.__name__


def _numbered(keys: Iterator[Any]) -> Records:
    """(key, 1), (key, 2), … for each key."""
    return _counted_up(Counter(keys))


def _counted_up(totals: Counter[Any]) -> Records:
    return Counter((key, i) for key, total in totals.items() for i in range(1, total + 1))


# A running count.


class Running(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value += 1
        yield ctx.key, self.seen.value


def counted(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A process function with one value per key."""
    return env.from_source(tr.sources.Sequence(0, n, rate=rate)).key_by(lambda i: i % 13).process(Running())


def sparse(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A running count over many keys, of which few change between two checkpoints."""
    return env.from_source(tr.sources.Sequence(0, n, rate=rate)).key_by(_scattered_key).process(Running())


def _scattered_key(i: int) -> int:
    return i * 7919 % 83


class Side(Enum):
    PORT = 0
    STARBOARD = 1


@dataclass(frozen=True)
class Berth:
    side: Side
    row: int


def by_classes(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Counts by keys that are objects of a dataclass, and members of an Enum."""
    berths = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(_berth)
    counted = berths.key_by(lambda berth: berth).process(Running())
    sides = counted.key_by(lambda r: r[0].side).aggregate(n=tr.Count())
    return counted.map(lambda r: (str(r[0]), r[1])).union(sides.map(lambda r: (r[0].name, r[1])))


def _berth(i: int) -> Berth:
    return Berth(Side(i % 2), i % 7)


def _by_classes(n: int) -> Records:
    berths = list(map(_berth, range(n)))
    return _numbered(map(str, berths)) + _numbered(berth.side.name for berth in berths)


class Toggled(tr.KeyedProcessFunction):
    """A function that remembers a key, and forgets it when it comes again."""

    there = tr.ValueState(bool)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        if self.there.exists():
            self.there.clear()
        else:
            self.there.value = True
        yield ctx.key, self.there.exists()


def toggled(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """State that comes and goes, so that key groups become empty and are filled again. All workers but one receive
    barriers from one other worker alone, whatever the coordinator has sent them by then."""
    numbers = env.from_source(tr.sources.Sequence(0, n, rate=rate), parallelism=1)
    return numbers.key_by(_scattered_key).process(Toggled())


def _toggled(n: int) -> Records:
    totals = Counter(_scattered_key(i) for i in range(n))
    return Counter({(key, on): (count + on) // 2 for key, count in totals.items() for on in (True, False)})


# Built-in aggregates behind two shuffles.


def aggregated(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Two built-in aggregates, one behind the other, and a reduce."""
    pairs = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i % 7, 2))
    sums = pairs.key_by(lambda r: r[0]).aggregate(n=tr.Count(), total=tr.Sum(lambda r: r[1]))
    return (
        sums.map(lambda r: (r[2] % 5, r[1]))
        .key_by(lambda r: r[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .map(lambda r: r[0])
    )


def _aggregated(n: int) -> Records:
    return Counter((2 * i) % 5 for _, i in _numbered(i % 7 for i in range(n)).elements())


# Windows.


def windowed(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows of event time, some of which overlap."""
    stamped = env.from_source(tr.sources.Sequence(0, n, rate=rate)).assign_timestamps(lambda i: i, 3.0)
    return stamped.key_by(lambda i: i % 3).window(tr.Sliding(20, 10)).aggregate(n=tr.Count(), s=tr.Sum()).map(tuple)


def _windowed(n: int) -> Records:
    windows: dict[Any, list[int]] = {}
    for i in range(n):
        for start in (i - i % 10, i - i % 10 - 10):
            windows.setdefault((i % 3, start), []).append(i)
    return Counter((key, float(start), start + 20.0, len(of), sum(of)) for (key, start), of in windows.items())


def in_columns(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Windows over columns, with a key of two."""
    schema = pa.schema([("k", pa.int64()), ("name", pa.string()), ("at", pa.int64())])
    rows = env.from_source(tr.sources.Sequence(0, n, rate=rate)).map(lambda i: (i % 4, f"n{i % 2}", i))
    stamped = rows.to_columns(schema).assign_timestamps("at", 3.0)
    return stamped.key_by(("k", "name")).window(tr.Tumbling(15)).aggregate(n=tr.Count(), s=tr.Sum("at")).map(tuple)


def _in_columns(n: int) -> Records:
    windows: dict[Any, list[int]] = {}
    for i in range(n):
        windows.setdefault((i % 4, f"n{i % 2}", i - i % 15), []).append(i)
    return Counter((k, s, float(at), at + 15.0, len(of), sum(of)) for (k, s, at), of in windows.items())


_BIG = 1 << 53
"""The limit from which on not every whole number is a double."""


def of_one_type(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Sums of whole numbers that come as doubles from some record on: they stay whole numbers, and their sums are
    exact."""
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("x", pa.int64())])
    numbers = env.from_source(tr.sources.Sequence(0, n, rate=rate), parallelism=1)
    rows = numbers.map(lambda i: (i % 5, i, _BIG + 1 if i < 5 else 2), parallelism=1)
    typed = rows.to_columns(schema, parallelism=1).map_batches(_doubles_later, parallelism=1)
    stamped = typed.assign_timestamps("at", 3.0, parallelism=1)
    return stamped.key_by("k").window(tr.Tumbling(10 * n)).aggregate(s=tr.Sum("x")).map(lambda row: (row.k, row.s))


def _doubles_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    early = batch.column("at")[0].as_py() < 20
    return batch if early else batch.set_column(2, "x", batch.column("x").cast(pa.float64()))


def _of_one_type(n: int) -> Records:
    return Counter((k, sum(_BIG + 1 if i < 5 else 2 for i in range(k, n, 5))) for k in range(5))


# Timers.


class Waiting(tr.KeyedProcessFunction):
    """A function that holds each record until event time is three seconds further."""

    waiting = tr.ListState(float)

    def process(self, value: Any, ctx: tr.Context) -> None:
        assert ctx.timestamp is not None
        self.waiting.add(ctx.timestamp)
        ctx.set_timer(event_time=ctx.timestamp + 3)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        due = [time for time in self.waiting.get() if time + 3 <= timestamp]
        self.waiting.update([time for time in self.waiting.get() if time + 3 > timestamp])
        yield ctx.key, timestamp, len(due)


def in_event_time(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Timers of event time."""
    stamped = env.from_source(tr.sources.Sequence(0, n, rate=rate)).assign_timestamps(lambda i: i // 2, 2.0)
    return stamped.key_by(lambda i: i % 5).process(Waiting())


def _in_event_time(n: int) -> Records:
    times = Counter((i % 5, i // 2) for i in range(n))
    return Counter({(key, time + 3.0, count): 1 for (key, time), count in times.items()})


class Delayed(tr.KeyedProcessFunction):
    """A function that holds each record for some milliseconds of the clock, and some records for much longer than the
    input lasts."""

    waiting = tr.MapState(int, float)

    def process(self, value: int, ctx: tr.Context) -> None:
        due = ctx.now() + (0.03 if value % 10 == 0 else 0.001 * (value % 7))
        self.waiting.put(value, due)
        ctx.set_timer(processing_time=due)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        for value in [value for value, due in self.waiting.items() if due <= timestamp + 2e-6]:
            self.waiting.remove(value)
            yield ctx.key, value


def in_processing_time(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Timers of the clock, awaited at the end, in two operators one behind the other."""
    once = env.from_source(tr.sources.Sequence(0, n, rate=rate)).key_by(lambda i: i % 5).process(Delayed())
    return once.map(lambda r: r[1]).key_by(lambda i: i % 4).process(Delayed())


# State that is changed in place.


class Bags(tr.KeyedProcessFunction):
    bag = tr.ValueState(list, default=[])
    shelves = tr.MapState(int, list)
    log = tr.ListState(int)

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.bag.value.append(value)
        yield "bag", ctx.key, len(self.bag.value)
        shelf = self.shelves.get(value % 3)
        if shelf is None:
            self.shelves.put(value % 3, [value])
            shelf = [value]
        else:
            shelf.append(value)
        yield "shelf", ctx.key, value % 3, len(shelf)
        self.log.add(value)
        if len(self.bag.value) == 12:
            yield "log", ctx.key, len(set(self.log.get()))
            self.log.clear()
            self.bag.clear()


def in_place(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Values, lists and maps whose content is changed in place, and forgotten now and then."""
    return env.from_source(tr.sources.Sequence(0, n, rate=rate)).key_by(lambda i: i * i % 11).process(Bags())


def _in_place(n: int) -> Records:
    found: Records = Counter()
    totals = Counter(i * i % 11 for i in range(n))
    for key, total in totals.items():
        for i in range(total):
            found["bag", key, i % 12 + 1] += 1
        if total // 12:
            found["log", key, 12] += total // 12
    for (key, shelf), i in _numbered((i * i % 11, i % 3) for i in range(n)):
        found["shelf", key, shelf, i] += 1
    return found


# State that is not keyed, and output at the end.


class Collecting(tr.ProcessFunction):
    seen = tr.OperatorState(list, default=[])

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value.append(value)
        if value % 4 == 0:
            yield "now", value

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        for value in self.seen.value:
            yield "end", value


def finished(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """State of an operator without keys that is emitted when its input has ended; twice, with a shuffle between."""
    once = env.from_source(tr.sources.Sequence(0, n, rate=rate)).rebalance().process(Collecting())
    return once.filter(lambda r: r[0] == "end").map(lambda r: r[1]).rebalance().process(Collecting())


def _finished(n: int) -> Records:
    return Counter([("now", i) for i in range(0, n, 4)] + [("end", i) for i in range(n)])


# Several inputs, of which some end early.


class Enrich(tr.CoProcessFunction):
    name = tr.ValueState(str)
    waiting = tr.ListState(int)

    def process1(self, order: int, ctx: tr.Context) -> Iterator[Any]:
        if self.name.value is None:
            self.waiting.add(order)
        else:
            yield self.name.value, order

    def process2(self, customer: Any, ctx: tr.Context) -> Iterator[Any]:
        self.name.value = customer[1]
        yield from ((customer[1], order) for order in self.waiting.get())
        self.waiting.clear()


def joined(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A union and a join of several inputs, one of which goes on when the others have long ended."""
    orders = env.from_source(tr.sources.Sequence(0, n, rate=rate))
    few = env.from_collection(list(range(n, n + 20)), parallelism=1)
    customers = env.from_collection([(i, f"c{i}") for i in range(13)])
    return orders.union(few).connect(customers).key_by(lambda o: o % 13, lambda c: c[0]).process(Enrich())


# Sources with many splits.


class Chunks(tr.Source):
    """A source of the numbers below n, in more splits than there are subtasks: of very different lengths, or all of them
    short."""

    description = "chunks"

    def __init__(self, n: int, short: bool = False) -> None:
        self.n, self.short = n, short

    def splits(self, parallelism: int) -> Sequence[Any]:
        bounds = sorted({0, self.n, *(self.n * i * i // 81 for i in range(9)), 1, 2, 3})
        if self.short:
            bounds = [*range(0, self.n, 2), self.n]
        return list(itertools.pairwise(bounds))

    def reader(self, split: Any, position: Any = None) -> tr.Reader:
        return _Chunk(split[0] if position is None else position, split[1])


class _Chunk(tr.Reader):
    def __init__(self, at: int, end: int) -> None:
        self.at, self.end = at, end
        self.hungry = False

    def read(self, limit: int, now: float) -> Any:
        self.hungry = not self.hungry
        if self.hungry and self.at % 3 == 0:
            return ()
        if self.at >= self.end:
            return None
        first, self.at = self.at, min(self.at + min(limit, 9), self.end)
        return list(range(first, self.at))

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return now + 0.0005


def in_splits(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Splits dealt out on demand, then a shuffle of every kind."""
    numbers = env.from_source(Chunks(n)).rebalance().map(lambda i: i + 1).shuffle().map(lambda i: i - 1)
    return numbers.rescale().filter(lambda i: True).key_by(lambda i: i % 6).process(Running())


def in_short_splits(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Readers that request another split again and again."""
    return env.from_source(Chunks(n, short=True)).key_by(lambda i: i % 6).process(Running())


class Together(Chunks):
    """Chunks that one reader reads in each subtask, by turns."""

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader:
        return _ByTurns(self)


class _ByTurns(tr.SplitReader):
    """Reads two splits at a time, forwards and backwards, and has nothing now and then. It is woken then, long before it
    would be read."""

    def __init__(self, source: Chunks) -> None:
        self.source = source
        self.chunks: dict[int, Any] = {}
        self.paused: frozenset[int] = frozenset()
        self.reads = 0

    def assign(self, splits: Sequence[tr.AssignedSplit]) -> None:
        for number, split, position in splits:
            self.chunks[number] = [split[0] if position is None else position, split[1]]

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            del self.chunks[number]

    def pause(self, splits: Collection[int]) -> None:
        self.paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        self.reads += 1
        if self.reads % 4 == 0:
            self.wake()
            return
        numbers = [number for number in self.chunks if number not in self.paused]
        for number in (numbers if self.reads % 2 else numbers[::-1])[:2]:
            if not limit:
                return
            chunk = self.chunks[number]
            first, chunk[0] = chunk[0], min(chunk[0] + min(limit, 5), chunk[1])
            limit -= chunk[0] - first
            yield number, list(range(first, chunk[0]))
            if chunk[0] == chunk[1]:
                yield number, None

    def position(self, split: int) -> int:
        at: int = self.chunks[split][0]
        return at

    def next_at(self, now: float) -> float:
        return now + 1.0


def in_partitions(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Splits that one reader reads in each subtask."""
    return env.from_source(Together(n)).key_by(lambda i: i % 6).process(Running())


def stamped_splits(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Splits that are all open at once, because of event time."""
    stamped = env.from_source(Chunks(n)).assign_timestamps(lambda i: i, float(n))
    return stamped.key_by(lambda i: i % 3).window(tr.Tumbling(16)).count().map(tuple)


def _stamped_splits(n: int) -> Records:
    windows = Counter((i % 3, i - i % 16) for i in range(n))
    return Counter({(key, float(at), at + 16.0, count): 1 for (key, at), count in windows.items()})


# Sinks of their own parallelism.


def scattered(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Branches that part and meet again, into a sink with subtasks of its own."""
    numbers = env.from_source(tr.sources.Sequence(0, n, rate=rate), parallelism=1)
    even = numbers.filter(lambda i: i % 2 == 0).rebalance().map(lambda i: ("even", i))
    third = numbers.partition_by(lambda i: i // 3).map(lambda i: ("all", i))
    return even.union(third).rebalance()


def _scattered(n: int) -> Records:
    return Counter([("even", i) for i in range(0, n, 2)] + [("all", i) for i in range(n)])


PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program(counted, lambda n: _numbered(i % 13 for i in range(n)), order=lambda record: record),
        Program(sparse, lambda n: _numbered(_scattered_key(i) for i in range(n)), order=lambda record: record),
        Program(by_classes, _by_classes, order=lambda record: record),
        Program(toggled, _toggled),
        Program(aggregated, _aggregated),
        Program(windowed, _windowed),
        Program(in_columns, _in_columns),
        Program(of_one_type, _of_one_type),
        Program(in_event_time, _in_event_time),
        Program(in_processing_time, lambda n: Counter((i % 4, i) for i in range(n)), n=90),
        Program(timers.without_going_back, timers._without_going_back, n=160),
        Program(timers.in_order, timers._in_order, n=160),
        Program(broadcasts.ruled, broadcasts._ruled, n=120),
        Program(calls.called, calls._called, n=120),
        Program(in_place, _in_place, n=200),
        Program(finished, _finished, n=160),
        Program(joined, lambda n: Counter((f"c{i % 13}", i) for i in range(n + 20))),
        Program(in_splits, lambda n: _numbered(i % 6 for i in range(n)), order=lambda record: record),
        Program(in_short_splits, lambda n: _numbered(i % 6 for i in range(n)), order=lambda record: record, n=150),
        Program(in_partitions, lambda n: _numbered(i % 6 for i in range(n)), order=lambda record: record, n=150),
        Program(stamped_splits, _stamped_splits),
        Program(scattered, _scattered, n=160, sinks=3),
        Program(loops.visited, lambda n: _counted_up(loops._visits(n)), order=lambda record: record, n=100),
        Program(loops.wandered, lambda n: Counter(range(n)), n=80),
        Program(loops.in_sequence, lambda n: _counted_up(loops._visits(n)), order=lambda record: record, n=80),
        Program(loops.nested, loops._nested, n=48),
        Program(loops.separate, loops._separate, order=lambda record: record, n=120),
        Program(loops.entered, loops._entered, n=80),
        Program(loops.commanded, loops._commanded, order=lambda record: record, n=40),
        Program(loops.amplified, lambda n: Counter((i, part) for i in range(n) for part in range(loops.MANY)), n=8),
        Program(timed.windowed_behind, timed._windowed_behind, n=120),
        Program(timed.lingered, timed._small_windows, n=60),
        Program(timed.lingered_inside, timed._small_windows, n=48),
        Program(timed.held_inside, timed._held_inside, n=120),
        Program(timed.called_last, lambda n: Counter(range(n)), n=80),
        Program(timed.reminded, lambda n: Counter((i, 1) for i in range(n)), n=16),
        Program(timed.waited_for, lambda n: Counter(range(n)), n=40),
        Program(loops.hoarded, lambda n: Counter(range(n)), n=60),
        Program(loops.finished_twice, loops._finished_twice, n=40),
        Program(loops.entered_inside, lambda n: Counter(range(n + 6)), n=30),
        Program(silent.silent_nest, silent._silent_nest, n=20),
        Program(silent.silent_guest, silent._silent_guest, n=20),
        Program(loops.in_batches, lambda n: Counter(range(n)), n=80),
        Program(columns.set_aside, lambda n: Counter((i, loops.laps_of(i) + 1) for i in range(n)), n=60),
        Program(loops.merged, loops._merged, n=60),
        Program(rounds.shared_out, rounds._shared_out, n=60),
        Program(rounds.judged, rounds._judged, n=60),
        Program(rounds.run_dry, rounds._run_dry, n=60),
        Program(rounds.widened, rounds._widened, n=40),
        Program(rounds.apart, rounds._apart, n=8),
        Program(rounds.held_beside, rounds._held_beside, n=30),
        Program(spans.within_hours, spans._within_hours, n=120, replaced=False),
    )
}

SILENT = (silent.silent_nest.__name__, silent.silent_guest.__name__)
"""Programs that check by the clock that what a silent source waits for has come in time."""
BEHIND = (timers.in_order.__name__, broadcasts.ruled.__name__, calls.called.__name__, spans.within_hours.__name__)
"""Programs that seeds draw behind all other draws, so that these stay as they were."""
WITHOUT_LOOPS = (__name__, timers.__name__, broadcasts.__name__, calls.__name__)
"""Modules of programs without loops."""
LOOPS = tuple(name for name, program in PROGRAMS.items() if program.build.__module__ not in WITHOUT_LOOPS)
"""Programs with loops."""
