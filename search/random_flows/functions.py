"""The functions of the operators of random flows. A record is (id, laps left by level, value, weight, passes). One record
of a weight counts for so many equal ones. `passes` is how often a function has held it until `finish` in its outermost
loop.

A function sends its reports to the side output "told". Reports depend on no order: visits of a key are numbered, and so
are the entries of its state.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from time import perf_counter_ns as clock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr
from search.random_flows import script
from search.random_flows.description import LEVELS, Events
from tailrace.api.connectors import NOTHING_YET, AssignedSplit, Enumerator, Reader, Source, SourceContext, SplitReader
from tailrace.elements.timestamps import MAX_TIME

Record = tuple[int, tuple[int, ...], int, int, int]

MODULUS = 10_007
KEYS = 5
RULES = 5
"""A record is broadcast where its id is a multiple of this."""
HOLD = 3
"""Seconds of event time for which "held" holds a record."""
LAST = 1_000_000
"""Event time of the last call."""
THE_END = timedelta(microseconds=MAX_TIME)


class Script(Source):
    """A source that gives the records of some events at the times of `script`."""

    description = "script"

    def __init__(self, events: Events) -> None:
        self.events = events
        self.bounded = not events.endless

    def splits(self, parallelism: int) -> list[int]:
        listed = list(range(self.events.splits))
        if self.events.found == "anew":
            script.LISTED[self.events.first] += 1
            at = script.LISTED[self.events.first] % len(listed)
            return [*listed[at:], *listed[:at]]
        return listed

    def enumerator(self, parallelism: int, position: int | None = None) -> Enumerator | None:
        return _Finding(self.events.splits, position or 0) if self.events.found == "finding" else None

    def reader(self, split: int, position: int | None = None) -> Reader:
        return _Script(self.events, split, position or 0)


class SharedScript(Script):
    """A script whose splits are read by one reader in each subtask."""

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return _Shared(self.events)


class _Finding(Enumerator):
    def __init__(self, splits: int, found: int) -> None:
        self.splits, self.found = splits, found

    def discover(self, now: float) -> list[int] | None:
        if self.found == self.splits:
            return None
        self.found += 1
        return [self.found - 1]

    @property
    def position(self) -> int:
        return self.found

    def next_at(self, now: float) -> float:
        return now + 0.002


class _Script(Reader):
    def __init__(self, events: Events, split: int, done: int) -> None:
        self.events, self.done = events, done
        self.numbers = script.numbers(events, split)
        self.paused = 0

    def read(self, limit: int, now: float) -> Any:
        if self.done == len(self.numbers):
            return NOTHING_YET if self.events.endless else None
        if self.paused < self.events.pauses:
            self.paused += 1
            return NOTHING_YET
        self.paused = 0
        clock = round(now * 1e6)
        found: list[int] = []
        while self.done < len(self.numbers) and len(found) < limit:
            if script.given_at(self.events, self.numbers[self.done]) > clock:
                break
            found.append(self.numbers[self.done])
            self.done += 1
        return found

    @property
    def position(self) -> int:
        return self.done

    def next_at(self, now: float) -> float:
        if self.done == len(self.numbers):
            return now + 0.05
        return now if self.paused else max(now, script.given_at(self.events, self.numbers[self.done]) / 1e6)


class _Shared(SplitReader):
    """The splits of a subtask by turns, a few records of each. Which come first depends on how often it was read."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.readers: dict[int, _Script] = {}
        self.paused: frozenset[int] = frozenset()
        self.reads = 0

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        for number, split, position in splits:
            self.readers[number] = _Script(self.events, split, position or 0)

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            del self.readers[number]

    def pause(self, splits: Collection[int]) -> None:
        self.paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Any:
        self.reads += 1
        numbers = [number for number in self.readers if number not in self.paused]
        at = self.reads * 7 % len(numbers)
        for number in [*numbers[at:], *numbers[:at]]:
            if limit:
                given = self.readers[number].read(min(limit, 1 + self.reads % 5), now)
                limit -= len(given or ())
                yield number, given

    def position(self, split: int) -> int:
        return self.readers[split].position

    def next_at(self, now: float) -> float:
        return min(reader.next_at(now) for number, reader in self.readers.items() if number not in self.paused)


def key_of(record: Record) -> int:
    """The key of most operators."""
    return record[0] % KEYS


# Without state.


def move(record: Record, number: int) -> Record:
    """A record with another value, which depends on the operator."""
    return (*record[:2], (record[2] * 31 + number) % MODULUS, *record[3:])


class Moved(tr.MapFunction):
    """A function that does what `move` does, with what `prepare` has made. That is made once, and is never copied."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.prepared: list[Any] = []

    def prepare(self) -> None:
        assert not self.prepared, "prepared twice"
        self.prepared = [threading.Lock(), lambda record: move(record, self.number)]

    def open(self, ctx: tr.Context) -> None:
        self.moved = self.prepared[1]

    def map(self, record: Record) -> Record:
        return self.moved(record)  # type: ignore[no-any-return]


COLUMNS = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("key", "id", "value", "weight", "passes")),
        *(pa.field(f"left{level}", pa.int64()) for level in range(LEVELS)),
        pa.field("worth", pa.int64()),
    ]
)


def as_columns(record: Record) -> tuple[int, ...]:
    """A row of `COLUMNS` with the fields of a record."""
    number, left, value, weight, passes = record
    return (key_of(record), number, value, weight, passes, *left, value * weight)


def as_record(row: Any) -> Record:
    """The record with the fields of a row."""
    return (row[1], tuple(row[5 : 5 + LEVELS]), row[2], row[3], row[4])


def pair_of(row: Any) -> Any:
    """The pair that a row of a join in columns stands for; the record for a row of `COLUMNS`."""
    if "id" in row:
        return as_record(row)
    sides = [(row.key, *[row[name + suffix] for name in COLUMNS.names[1:]]) for suffix in ("_x", "_y")]
    return tuple(None if side[1] is None else as_record(side) for side in sides)


def table_of_keys() -> pa.Table:
    """A table with a number for most keys, which is read again and again. All versions of it are alike."""
    keys = [key for key in range(KEYS) if key % 5]
    return pa.table({"number": [3 * key + 1 for key in keys], "key": keys})


def found_in_table(one: Any, number: int) -> Any:
    """The report of a lookup: by key the number that its records have found, in a column or beside them."""
    key, found = (one.key, one.number) if hasattr(one, "number") else (one[0].key, one[1] and one[1].number)
    return ("sum", number, key, 0, 1, found or 0)


class MovedBatches(tr.MapBatchesFunction):
    """A function that does to batches what `moved` does to records."""

    def __init__(self, number: int) -> None:
        self.number = number

    def map_batches(self, batch: Any) -> Any:
        value = pc.add(pc.multiply(batch.column("value"), 31), self.number)
        value = pc.subtract(value, pc.multiply(pc.divide(value, MODULUS), MODULUS))
        at = batch.schema.get_field_index("value")
        return batch.set_column(at, "value", value)


class Owner(tr.ProcessFunction):
    """A function behind a broadcast: one subtask lets a record pass."""

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        if record[0] % ctx.parallelism == ctx.subtask:
            yield record


class Placed(tr.ProcessFunction):
    """A function behind a head whose feedback is partitioned by a function: it reports records that are in the wrong
    subtask."""

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        if record[0] % ctx.parallelism != ctx.subtask:
            ctx.emit("told", ("misplaced", self.number, record[0], ctx.subtask))
        yield record


# Counts in state of every kind.


class Numbering(tr.KeyedProcessFunction):
    """A function that numbers the records of a key."""

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        for _ in range(record[3]):
            for what, place in self.reports(record):
                ctx.emit("told", (what, self.number, ctx.key, place))
        yield record

    def reports(self, record: Record) -> Iterator[tuple[str, int]]:
        """Reports on one record of weight one."""
        raise NotImplementedError


class Count(Numbering):
    seen = tr.ValueState(int, default=0)

    def reports(self, record: Record) -> Iterator[tuple[str, int]]:
        self.seen.value += 1
        yield "visit", self.seen.value


class Bags(Numbering):
    """Reports from state that is changed in place, and cleared."""

    bag = tr.ValueState(list, default=[])
    shelves = tr.MapState(int, int)
    log = tr.ListState(int)

    def reports(self, record: Record) -> Iterator[tuple[str, int]]:
        self.bag.value.append(0)
        yield "bag", len(self.bag.value)
        shelf = record[0] % 3
        self.shelves.put(shelf, self.shelves.get(shelf, 0) + 1)
        yield f"shelf {shelf}", self.shelves.get(shelf)
        self.log.add(record[0])
        yield "log", len(self.log)
        if len(self.log) == 7:
            self.log.clear()


def fails(record: Record, number: int) -> bool:
    """True for the records for which the functions of a "failing" raise."""
    return (record[0] + number) % 3 == 0


def key_or_error(record: Record, number: int) -> int:
    """The key of a record. Raises `ValueError` for some records."""
    if fails(record, number):
        raise ValueError(record[0])
    return key_of(record)


def record_then_error(record: Record, number: int) -> Iterator[Record]:
    """The record. Raises `ValueError` behind some records."""
    yield record
    if fails(record, number):
        raise ValueError(record[0])


def batch_or_error(batch: Any, number: int) -> Any:
    """The batch. Raises `ValueError` for one with some records."""
    if any((one + number) % 3 == 0 for one in batch.column("id").to_pylist()):
        raise ValueError(batch.num_rows)
    return batch


def weight_or_error(record: Record, number: int) -> int:
    """The weight of a record. Raises `ValueError` for some records."""
    if fails(record, number):
        raise ValueError(record[0])
    return record[3]


class Failing(Bags):
    """A function that raises for some records, when it has changed all of its state, emitted and set a timer."""

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        yield from super().process(record, ctx)
        if fails(record, self.number):
            self.log.clear()
            ctx.set_timer(event_time=LAST)
            raise ValueError(record[0])

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        ctx.emit("told", ("timer of a failed call", self.number, ctx.key, timestamp))


class Reducing(Numbering):
    reduced = tr.ReducingState(int, reduce=lambda a, b: a + b)
    aggregated = tr.AggregatingState(object, aggregate=tr.Count())

    def reports(self, record: Record) -> Iterator[tuple[str, int]]:
        self.reduced.add(1)
        yield "reduced", self.reduced.get()
        self.aggregated.add(record)
        yield "aggregated", self.aggregated.get()


def grow(members: set[int], visit: int) -> None:
    """Changes a set at a visit: it grows at three visits, and shrinks to three members at the fourth, in a table that
    stays large."""
    if visit % 4:
        members.update((visit * 31 + i * 17) % 257 for i in range(3))
    else:
        members.difference_update(sorted(members)[3:])


class Sets(tr.KeyedProcessFunction):
    """A function that walks a set of each key at each visit. `whole`: the set itself is emitted, and its receiver walks
    it."""

    members = tr.ValueState(set, default=set())
    boxes = tr.ListState(object)
    visits = tr.ValueState(int, default=0)

    def __init__(self, number: int, whole: bool) -> None:
        self.number, self.whole = number, whole

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        for _ in range(record[3]):
            self.visits.value += 1
            members = self._members()
            grow(members, self.visits.value)
            if self.whole:
                ctx.emit("told", (self.number, ctx.key, self.visits.value, frozenset(members)))
                continue
            for one in members:
                ctx.emit("told", ("member", self.number, ctx.key, self.visits.value, one))
        yield record

    def _members(self) -> set[int]:
        if self.number % 2:
            return self.members.value  # type: ignore[no-any-return]
        if not len(self.boxes):
            self.boxes.add({"members": set[int]()})
        self.boxes[0] = box = self.boxes[0]
        return box["members"]  # type: ignore[no-any-return]


READINGS: tuple[Callable[[], str], ...] = (
    lambda: uuid.uuid4().hex,
    lambda: f"{time.time():.6f}",
    lambda: f"{time.monotonic_ns():020d}",
    lambda: datetime.now().strftime("%H%M%S%f"),
    lambda: os.urandom(8).hex(),
    lambda: f"{random.Random().getrandbits(60):016x}",
    lambda: f"{int(np.random.default_rng().integers(1 << 60)):016x}",
    lambda: secrets.token_hex(8),
    lambda: uuid.uuid1().hex,
    lambda: f"{clock():020d}",
)
"""Functions that return something else each time: texts that are equally long."""


class Pairs(tr.KeyedProcessFunction):
    """A function that reports each reading that comes a second time."""

    waiting = tr.MapState(str, bool)
    paired = tr.ValueState(int, default=0)

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, both: tuple[Record, str], ctx: tr.Context) -> None:
        record, read = both
        if read not in self.waiting:
            self.waiting.put(read, True)
            return
        self.waiting.remove(read)
        for _ in range(record[3]):
            self.paired.value += 1
            ctx.emit("told", ("pair", self.number, ctx.key, self.paired.value))


def group_of(record: Record) -> int:
    """A key that records which follow each other share."""
    return record[0] // 6 % 3


def seconds_of_group(record: Record) -> float:
    """A timestamp that records which follow each other share."""
    return float(record[0] // 3)


class Together(tr.KeyedProcessFunction):
    """A function that sees which records come together: it marks each with its place and with their number. It numbers its
    records, and reports by a timer how many there were since the last one."""

    seen = tr.ValueState(int, default=0)
    reported = tr.ValueState(int, default=0)

    def __init__(self, number: int, by_the_clock: bool) -> None:
        self.number, self.by_the_clock = number, by_the_clock

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        return self.process_many([record], ctx)

    def process_many(self, records: list[Record], ctx: tr.Context) -> Iterator[Any]:
        for record in records:
            for _ in range(record[3]):
                self.seen.value += 1
                ctx.emit("told", ("together", self.number, ctx.key, self.seen.value))
            yield record, f"{ctx.key} {self.seen.value:04} of {len(records):04}"
        if self.by_the_clock:
            ctx.set_timer(processing_time=ctx.now() + 0.0005)
        else:
            ctx.set_timer(event_time=LAST)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        ctx.emit("told", ("sum", self.number, ctx.key, 0, self.seen.value - self.reported.value, 0))
        self.reported.value = self.seen.value


def each_member(reports: Any) -> list[Any]:
    """Reports of `Sets` on one whole set, one for each member."""
    number, key, visit, members = reports
    return [("member", number, key, visit, one) for one in members]


class Ties(tr.KeyedProcessFunction):
    """A function that sets one timer for each id, all for one time, and reports each that fires."""

    known = tr.ValueState(bool, default=False)

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        if not self.known.value:
            self.known.value = True
            ctx.set_timer(event_time=LAST)
        yield record

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        ctx.emit("told", ("tie", self.number, ctx.key))


class ToTheRoundsEnd(tr.KeyedProcessFunction):
    """A function that holds records until the round ends, and reports their number."""

    held = tr.ListState(object)

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, record: Record, ctx: tr.Context) -> None:
        self.held.add(record)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        held = list(self.held.get())
        self.held.clear()
        ctx.emit("told", ("round", self.number, ctx.key, round, sum(record[3] for record in held)))
        yield from held


class Called(tr.AsyncFunction):
    """A service that moves records after a while. Some of its calls fail the first time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.failed: set[Any] = set()

    async def call(self, record: Any) -> Any:
        records = record if isinstance(record, list) else [record]
        await asyncio.sleep(records[0][0] * 7_919 % 13 / 10_000)
        if records[0][0] % 4 == 0 and records[0] not in self.failed:
            self.failed.add(records[0])
            raise ConnectionError(f"no answer for {records[0]}")
        moved = [move(one, self.number) for one in records]
        return moved if isinstance(record, list) else moved[0]


# Functions that hold records.


class Join(tr.CoProcessFunction):
    """A function that adds the value of a record's key, and waits for it. A record that has waited keeps its timestamp."""

    value = tr.ValueState(int)
    waiting = tr.ListState(object)

    def process1(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        if self.value.value is None:
            self.waiting.add((record, ctx.timestamp))
        else:
            yield join(record, self.value.value)

    def process2(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.value.value = value
        for record, timestamp in self.waiting.get():
            yield ctx.stamped(join(record, value), timestamp)
        self.waiting.clear()


def join(record: Record, value: int) -> Record:
    """A record with the value that it was joined with."""
    return (*record[:2], (record[2] + 7 * value + 1) % MODULUS, *record[3:])


def drawn(record: Record) -> tuple[Record, int]:
    """A record with a number that is another one when it is drawn a second time."""
    return record, script.DRAWS.draw()


class Met(tr.CoProcessFunction):
    """A function that lets a record pass once it has come both ways, with one number."""

    waiting1 = tr.ValueState(list, default=[])
    waiting2 = tr.ValueState(list, default=[])

    def process1(self, pair: tuple[Record, int], ctx: tr.Context) -> Iterator[Any]:
        return self._meet(pair, self.waiting1.value, self.waiting2.value)

    def process2(self, pair: tuple[Record, int], ctx: tr.Context) -> Iterator[Any]:
        return self._meet(pair, self.waiting2.value, self.waiting1.value)

    def _meet(self, pair: tuple[Record, int], mine: list[Any], others: list[Any]) -> Iterator[Any]:
        if pair in others:
            others.remove(pair)
            yield pair[0]
        else:
            mine.append(pair)


class Hoard(tr.ProcessFunction):
    """A function that keeps records until `finish`, and counts the calls. Between two calls all that is in the loop has
    passed such a function once more. So it cannot be called more often than a record has passed them, nor more than `most`
    times."""

    kept = tr.OperatorState(list, default=[])
    calls = tr.OperatorState(int, default=0)

    def __init__(self, number: int, most: int) -> None:
        self.number, self.most = number, most

    def process(self, record: Record, ctx: tr.Context) -> None:
        self.kept.value.append(record)

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        kept, self.kept.value = self.kept.value, []
        self.calls.value += 1
        if self.calls.value > self.most:
            ctx.emit("told", ("called too often", self.number, self.calls.value, self.most))
        for number, left, value, weight, passes in kept:
            if self.calls.value > passes + 1:
                ctx.emit("told", ("called too often", self.number, number, self.calls.value, passes + 1))
            yield number, tuple(left), value, weight, passes + 1


class Uncounted(tr.ProcessFunction):
    """A `Hoard` without a count: a count cannot be dealt out to another number of subtasks."""

    kept = tr.OperatorState(list, default=[])

    def process(self, record: Record, ctx: tr.Context) -> None:
        self.kept.value.append(record)

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        kept, self.kept.value = self.kept.value, []
        yield from kept


class Later(tr.KeyedProcessFunction):
    """A function that holds records for some milliseconds of the clock."""

    waiting = tr.MapState(float, list)

    def process(self, record: Record, ctx: tr.Context) -> None:
        due = ctx.now() + 0.001 * (1 + record[0] % 3)
        self.waiting.put(due, [*self.waiting.get(due, []), record])
        ctx.set_timer(processing_time=due)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        for due in [due for due in self.waiting if due <= timestamp]:
            yield from self.waiting.get(due)
            self.waiting.remove(due)


class Held(tr.KeyedProcessFunction):
    """A function that holds records for some seconds of event time. It does not hold records that come at the end of event
    time, or when an endless source has given all: the watermark does not move then, and they would wait for ever. Such a
    record receives the time that its timer would have given it. The function reports a timer that sees event time ahead of
    itself."""

    waiting = tr.MapState(float, list)
    seen = tr.ValueState(float, default=-math.inf)
    """The latest event time that was seen for a key."""

    def __init__(self, number: int, events: Events) -> None:
        self.number, self.events = number, events

    def process(self, record: Record, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value = max(self.seen.value, ctx.watermark)
        due = (ctx.timestamp or 0) + HOLD + script.fraction(record[0])
        over = script.FLUSH - script.SAID
        if over < due < math.inf or due > THE_END.total_seconds():
            yield record
            return
        if over < ctx.watermark < math.inf:
            yield ctx.stamped(record, due)
            return
        self.waiting.put(due, [*self.waiting.get(due, []), record])
        ctx.set_timer(event_time=due)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        if ctx.now() * 1e6 < script.reached_at(self.events, timestamp) - 1:
            ctx.emit("told", ("too early", self.number, timestamp, ctx.now()))
        if ctx.watermark > max(timestamp, self.seen.value):
            ctx.emit("told", ("ahead", self.number, timestamp, ctx.watermark))
        for due in [due for due in self.waiting if due <= timestamp]:
            yield from self.waiting.get(due, [])
            self.waiting.remove(due)


class Seconds:
    """A function in the order of time that reports each second in which a key had records, at its end: the how manieth it
    is, and the number of its records. It reports a record or a timer that comes out of order."""

    newest = tr.ValueState(object, default=(-1.0, 0))
    """Time and input of the newest record."""
    rank = tr.ValueState(int, default=0)
    count = tr.ValueState(int, default=0)

    def __init__(self, number: int) -> None:
        self.number = number

    def note(self, weight: int, port: int, ctx: tr.Context) -> None:
        """Counts a record."""
        assert ctx.timestamp is not None
        here, before = (ctx.timestamp, port), self.newest.value
        if here < before or ctx.timestamp <= ctx.watermark:
            ctx.emit("told", ("out of order", self.number, ctx.key, before, here, ctx.watermark))
        if math.floor(before[0]) < math.floor(here[0]):
            self.rank.value += 1
            self.count.value = 0
        self.newest.value = here
        self.count.value += weight
        ctx.set_timer(event_time=math.floor(here[0]) + 1 - 1e-6)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        second = math.floor(timestamp)
        if math.floor(self.newest.value[0]) != second or ctx.watermark != timestamp:
            ctx.emit("told", ("out of order", self.number, ctx.key, self.newest.value, timestamp, ctx.watermark))
        ctx.emit("told", ("second", self.number, ctx.key, self.rank.value, second, self.count.value))


def joined_rows(number: int, value: Any, ctx: tr.Context, timed: bool) -> Iterator[Any]:
    """The reports of one result of a join: ids and maybe the time, once for each pair of records that it stands for."""
    pair: Any = value if isinstance(value[0], tuple) or value[0] is None else (value, None)
    a, b = pair
    row = (
        "joined",
        number,
        key_of(b if a is None else a),
        a and a[0],
        b and b[0],
        round(ctx.timestamp or 0) if timed else 0,
    )
    yield from [row] * ((a[3] if a else 1) * (b[3] if b else 1))


def listed_rows(number: int, row: Any, ctx: tr.Context) -> Iterator[Any]:
    """The reports of the lists of a window: those of a full join of its records."""
    first, second = (
        list[Any](as_record([*one.values()]) for one in side) or [None] for side in (row.first, row.second)
    )
    for a in first:
        for b in second:
            yield from joined_rows(number, (a, b), ctx, False)


def version_rows(number: int, pair: Any, ctx: tr.Context) -> Iterator[Any]:
    """The reports of a record with its version: the times of both. Of several versions of one time any may be the newest."""
    a, b = pair
    found = None if b is None else key_of(b)
    yield from [("version", number, key_of(a), a[0], found, round(ctx.timestamp or 0))] * a[3]


class InOrder(Seconds, tr.KeyedProcessFunction):
    """`Seconds` of one stream, in rows or in columns."""

    def process(self, record: Any, ctx: tr.Context) -> None:
        self.note(record[3], 0, ctx)  # the weight has one place in both forms


class BothInOrder(Seconds, tr.CoProcessFunction):
    """`Seconds` of two streams. Of one time the records of the first stream come first."""

    def process1(self, record: Record, ctx: tr.Context) -> None:
        self.note(record[3], 0, ctx)

    def process2(self, record: Record, ctx: tr.Context) -> None:
        self.note(record[3], 1, ctx)


def is_rule(record: Record) -> bool:
    """True for the records that are broadcast."""
    return record[0] % RULES == 0


class Ruled(tr.BroadcastProcessFunction):
    """Reports each key with each broadcast record, once: at the first record of the key, or when it comes. A copy of the
    broadcast state has also the order in which these came."""

    rules = tr.BroadcastState(int, tuple)
    known = tr.ValueState(bool, default=False)

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, record: Record, ctx: tr.Context) -> None:
        if not self.known.value:
            self.known.value = True
            for rule, places in self.rules.items():
                for _ in places:
                    ctx.emit("told", ("ruled", self.number, ctx.key, rule))

    def process_broadcast(self, record: Record, ctx: tr.Context) -> None:
        come = sum(map(len, self.rules.values()))
        self.rules[record[0]] = (*self.rules.get(record[0], ()), come)
        for key in ctx.keys(self.known):
            ctx.emit("told", ("ruled", self.number, key, record[0]))


class RuledInOrder(Ruled):
    """Reports each broadcast record with the keys that had a record before it, and each record with the number of broadcast
    ones that had come until then."""

    def process(self, record: Record, ctx: tr.Context) -> None:
        self.known.value = True
        ctx.emit("told", ("until then", self.number, record[0], sum(map(len, self.rules.values()))))


LIVES = (1, 3, 8)
"""Lifetimes of state, in seconds."""


def lived(number: int) -> Any:
    """A function in the order of time whose state has a time to live, most of it by event time. At the end of each second in
    which a key had records it reports what is left of it."""
    lifetime = LIVES[number % len(LIVES)]

    class Lived(tr.KeyedProcessFunction):
        weights = tr.ListState(int, ttl=tr.Ttl(lifetime, clock="event"))
        streak = tr.ValueState(
            int, default=0, ttl=tr.Ttl(lifetime, clock="event", refresh=("read", "write")[number % 2])
        )
        seconds = tr.MapState(int, int, ttl=tr.Ttl(lifetime, clock="event"))
        total = tr.ReducingState(
            int, reduce=lambda a, b: a + b, ttl=tr.Ttl(10**9, clock_stops_with_job=bool(number % 2))
        )

        def process(self, record: Record, ctx: tr.Context) -> None:
            assert ctx.timestamp is not None
            self.weights.append(record[3])
            self.total.add(record[3])
            ctx.set_timer(event_time=math.floor(ctx.timestamp) + 1 - 1e-6)

        def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
            second = math.floor(timestamp)
            self.streak.value += 1
            self.seconds[second % 3] = second
            left = sum(self.weights), self.streak.value, tuple(sorted(self.seconds.values())), self.total.value
            ctx.emit("told", ("lived", number, ctx.key, second, *left))

    return Lived()


class LastCall(tr.KeyedProcessFunction):
    """A function that holds records until the end of event time, however often they come: by a timer for some time far
    away, or for the very last moment."""

    waiting = tr.ListState(object)

    def __init__(self, time: Any = LAST) -> None:
        self.time = time

    def process(self, record: Record, ctx: tr.Context) -> None:
        self.waiting.add(record)
        ctx.set_timer(event_time=self.time)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        waiting = list(self.waiting.get())
        self.waiting.clear()
        yield from waiting


def sizes(key: Any, window: Any, records: list[Any], ctx: tr.Context) -> list[Any]:
    """The key and the number of records of a window."""
    return [(key, len(records))]


def as_changes(record: Any) -> list[Any]:
    """A record as changes of a table: some go again, and some of these come once more."""
    gone = [("-", record)] * (record[0] % 3 == 0)
    return [("+", record), *gone, *[("+", record)] * (len(gone) * script.stays(record[0]))]


def joined_change(number: int, how: str, change: tuple[str, Any]) -> Any:
    """What a change of a join adds to its number of results, and to their worth."""
    op, result = change
    a, b = (result, None) if how in ("semi", "anti") else result
    some: Any = a or b
    sign = 1 if op == "+" else -1
    return "sum", number, key_of(some), 0, sign, sign * script.worth_of_pair(a and a[0], b and b[0])


class Firings(tr.ProcessFunction):
    """Emits the results of windows that fire early and late: parts of a sum where they discard what earlier ones had (odd
    numbers), else candidates for the largest, which all records together give; and one record for each final one."""

    def __init__(self, number: int, events: Events | None) -> None:
        self.number, self.events = number, events
        """The source that bounds event time; None where records have other times."""

    def process(self, window: Any, ctx: tr.Context) -> Iterator[Any]:
        key, start, end, count, worth, firing, _ = window
        begin = int(start)
        if self.number % 2:
            yield "sum", self.number, key, begin, count, worth
        else:
            yield "most", self.number, key, begin, "n", count
            yield "most", self.number, key, begin, "worth", worth
        if firing == "final":
            yield "final", self.number, key, begin
        if firing == "early" or self.events is None:
            return
        if ctx.now() * 1e6 < script.reached_at(self.events, end - 1e-6) - 1:
            yield "too early", self.number, end, ctx.now()


class NotTooEarly(tr.ProcessFunction):
    """Emits the results of windows, and reports windows that fired before event time can have come to their end."""

    def __init__(self, what: str, number: int, events: Events) -> None:
        self.what, self.number, self.events = what, number, events

    def process(self, window: Any, ctx: tr.Context) -> Iterator[Any]:
        key, start, end, count, worth = window
        yield self.what, self.number, key, int(start), count, worth
        if ctx.now() * 1e6 < script.reached_at(self.events, end - 1e-6) - 1:
            yield "too early", self.number, end, ctx.now()
