"""Functions that the everyday verbs are made of. They are process functions like those of a user, so their
state, timers and replays are those of every process function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from tailrace.api.functions import (
    AggregateFunction,
    Context,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapBatchesFunction,
    MapFunction,
    ProcessFunction,
    WindowFunction,
)
from tailrace.api.restore.kinds import Shaped
from tailrace.api.windows.functions import AT_THE_END, Field
from tailrace.elements.keygroups import KeyGroups, owner
from tailrace.elements.keys import canonical_bytes
from tailrace.elements.rows import field_getter, made_rows, rows_of
from tailrace.errors import GraphError
from tailrace.graph.operators import FIRING_COLUMNS, Selector
from tailrace.state.handles import ValueState
from tailrace.state.operator_state import OperatorState

Placed = tuple[tuple[Any, Any], ...]
"""Records with the values that they are placed by, (value, record), the first place first."""


class Placing:
    """The best `n` records by a value; None: all of them. Of equal ones that which came first is before the others."""

    def __init__(self, n: int | None, by: Selector, ascending: bool) -> None:
        self.n = n
        self.by = Field(by)
        self.ascending = ascending

    @property
    def described(self) -> str:
        """The records that are kept, by which states differ."""
        by = self.by.of if isinstance(self.by.of, str) else "a function"
        return f"the {'least' if self.ascending else 'largest'} {'' if self.n is None else f'{self.n} '}records by {by}"

    def place(self, value: Any, held: Placed) -> int | None:
        """The index at which a record with this value comes in; None if it does not. Raises `ValueError` for None and for
        NaN, which have no place among others."""
        if value is None or value != value:
            raise ValueError(f"{value!r} has no place in an order; leave such records out before, with filter(...)")
        at = len(held)
        while at and (value < held[at - 1][0] if self.ascending else value > held[at - 1][0]):
            at -= 1
        return at if self.n is None or at < self.n else None

    def with_record(self, record: Any, held: Placed) -> tuple[int | None, Placed]:
        """The index at which a record comes in, if it does, and the records with it."""
        value = self.by(record)
        at = self.place(value, held)
        return at, held if at is None else (*held[:at], (value, record), *held[at:])[: self.n]


class RunningTop(KeyedProcessFunction, Shaped):
    """Changes of the best records of each key."""

    best = ValueState(object, default=())

    def __init__(self, places: Placing, names: tuple[str, ...], several: bool) -> None:
        self.places = places
        self.names = names
        self.several = several
        """True if keys are tuples of columns, each of which a result has."""

    def shape(self) -> list[str]:
        return [self.places.described]

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        held = self.best.value
        at, best = self.places.with_record(value, held)
        if at is None:
            return
        self.best.value = best
        if len(held) == self.places.n:
            yield self._change(ctx.key, "-", len(held), held[-1][1])
        yield self._change(ctx.key, "+", at + 1, value)

    def _change(self, key: Any, op: str, rank: int, value: Any) -> Any:
        return made_rows(self.names, [(*(key if self.several else (key,)), op, rank, value)])[0]


class Best(AggregateFunction, Shaped):
    """Aggregate of the best records of a window, with the values that they are placed by."""

    def __init__(self, places: Placing) -> None:
        self.places = places

    def shape(self) -> list[str]:
        return [self.places.described]

    def create_accumulator(self) -> Placed:
        return ()

    def add(self, value: Any, accumulator: Placed) -> Placed:
        return self.places.with_record(value, accumulator)[1]

    def get_result(self, accumulator: Placed) -> list[Any]:
        return [record for _, record in accumulator]

    def merge(self, a: Placed, b: Placed) -> Placed:
        for _, record in b:
            a = self.add(record, a)
        return a


class Ranks(WindowFunction):
    """Rows of the records of a window in the order of a value, each with its rank."""

    def __init__(self, places: Placing, names: tuple[str, ...], several: bool, timed: bool, equal: bool) -> None:
        self.places = places
        self.names = names
        self.several = several
        self.timed = timed
        """True if the window has a start and an end."""
        self.equal = equal
        """True if equal records have one rank: the number of those before them and one."""

    def process(self, key: Any, window: Any, records: list[Any], ctx: Context) -> list[Any]:
        keys = key if self.several else (key,)
        bounds = (window.start, window.end) if self.timed else ()
        firing = (window.firing, window.number) if self.names[-2:] == FIRING_COLUMNS else ()
        rows: list[Any] = []
        rank, before = 0, None
        values = map(self.places.by, records)
        for number, (value, record) in enumerate(zip(values, records, strict=True), 1):
            if not (self.equal and rank and value == before):
                rank = number
            before = value
            rows.append((*keys, *bounds, rank, record, *firing))
        return made_rows(self.names, rows)


class LastOfKey(KeyedProcessFunction, Shaped):
    """The last record of each key in each span of time, which begins with a record that is in no other span."""

    last = ValueState(object, default=None)

    def __init__(self, within: float | None, timed: bool) -> None:
        self.within = within
        """Seconds; None: the span ends with the input."""
        self.timed = timed
        """True for a span of event time, False for one of the clock."""

    def shape(self) -> list[str]:
        clock = "event time" if self.timed else "the clock"
        return [f"last records of {'the whole input' if self.within is None else f'{self.within} s of {clock}'}"]

    def process(self, value: Any, ctx: Context) -> None:
        held = self.last.value
        due = held[1] if held is not None else None
        if held is None:
            if self.within is None or not self.timed:
                ctx.set_timer(event_time=AT_THE_END)
            if self.within is not None:
                due = self._end(ctx)
        self.last.value = (value, due)

    def _end(self, ctx: Context) -> float:
        """Sets the timer for the end of a span that begins here; returns its time."""
        assert self.within is not None
        if self.timed:
            assert ctx.timestamp is not None
            due = round(ctx.timestamp + self.within, 6)  # the float of a whole microsecond
            ctx.set_timer(event_time=due)
            return due
        due = ctx.now() + self.within
        ctx.set_timer(processing_time=due)
        return due

    def on_timer(self, timestamp: float, ctx: Context) -> Iterator[Any]:
        held = self.last.value
        if held is None:
            return
        self.last.clear()
        if not self.timed:
            if ctx.time_domain == "event" and held[1] is not None:
                ctx.delete_timer(processing_time=held[1])
            elif ctx.time_domain == "processing":
                ctx.delete_timer(event_time=AT_THE_END)
        yield held[0] if self.timed and self.within is not None else ctx.stamped(held[0], None)


class OwnKey(ProcessFunction):
    """Pairs of a key and a record. All records of a subtask have one key, and the next subtask of that key is this one."""

    def __init__(self, max_parallelism: int) -> None:
        self.max_parallelism = max_parallelism
        self.key = 0

    def open(self, ctx: Context) -> None:
        groups = KeyGroups(self.max_parallelism)
        of_subtask = (owner(groups.group_of(key), ctx.parallelism, self.max_parallelism) for key in range(10**9))
        self.key = next(key for key, subtask in enumerate(of_subtask) if subtask == ctx.subtask)

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        yield self.key, value


class Lag(KeyedProcessFunction):
    """Pairs of each record of a key and what there was some records before."""

    before = ValueState(object, default=())

    def __init__(self, n: int, of: Selector | None) -> None:
        self.n = n
        self.of = Field(of)

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        held = self.before.value
        self.before.value = (*held, self.of(value))[-self.n :]
        yield value, held[-self.n] if len(held) >= self.n else None


class RateLimit(KeyedProcessFunction):
    """The first records of each key in each span of the clock, which begins with a record. Others go aside."""

    span = ValueState(object, default=None)

    def __init__(self, n: int, per: float) -> None:
        self.n = n
        self.per = per
        """Seconds."""

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        held = self.span.value
        if held is None or ctx.now() >= held[0]:
            held = (ctx.now() + self.per, 0)
            ctx.set_timer(processing_time=held[0])
        if held[1] < self.n:
            self.span.value = (held[0], held[1] + 1)
            yield value
        else:
            ctx.emit("over", value)

    def on_timer(self, timestamp: float, ctx: Context) -> None:
        held = self.span.value
        if held is not None and held[0] <= ctx.now():
            self.span.clear()


class Sample(ProcessFunction):
    """A random share of all records."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        if ctx.random.random() < self.fraction:
            yield value


class SampleBatches(MapBatchesFunction):
    """A random share of all records in columns."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def map_batches(self, batch: Any, ctx: Context) -> Any:  # type: ignore[override]
        bits = np.frombuffer(ctx.random.randbytes(8 * batch.num_rows), np.uint64)
        return batch.filter(pa.array((bits >> np.uint64(11)) * 2.0**-53 < self.fraction))


class SampleKeys(FilterFunction):
    """The records of a share of all keys, chosen by a hash: the same ones in each run, and in every other stream."""

    def __init__(self, fraction: float, by: Selector, seed: int) -> None:
        self.bound = round(fraction * 2**64)
        self.by = Field(by)
        self.seed = seed

    def filter(self, value: Any) -> bool:
        return xxh64_intdigest(canonical_bytes(self.by(value)), self.seed) < self.bound


class Split(ProcessFunction):
    """Records by the name that a function gives them, each to the side output of that name."""

    def __init__(self, f: Any, names: tuple[str, ...]) -> None:
        self.f = f
        self.names = names

    def process(self, value: Any, ctx: Context) -> None:
        name = self.f(value)
        if name not in self.names:
            raise ValueError(f"split: the function gave {name!r}, which is none of {', '.join(map(repr, self.names))}")
        ctx.emit(name, value)


class Halves(ProcessFunction):
    """Records for which a function is true. Others go to a side output."""

    def __init__(self, f: Any) -> None:
        self.f = f

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        if self.f(value):
            yield value
        else:
            ctx.emit(OTHERS, value)


class Explode(MapBatchesFunction):
    """A record for each item of a list in a column, which takes the place of the list."""

    def __init__(self, column: str, outer: bool) -> None:
        self.column = column
        self.outer = outer
        """True if a record without items stays, with null."""

    def map_batches(self, batch: Any) -> Any:
        at = batch.schema.get_field_index(self.column)
        lists = batch.column(at)
        check_list_type(lists.type, self.column)
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.maximum(sizes, 1) if self.outer else sizes
        records = np.repeat(np.arange(len(sizes)), rows)
        items = pc.list_flatten(lists)
        if self.outer and len(items) < len(records):
            empty = np.repeat(sizes == 0, rows)
            places = np.cumsum(~empty) - 1
            items = items.take(pa.array(places, mask=empty))
        made = batch.take(pa.array(records))
        return made.set_column(at, pa.field(self.column, items.type), items)


def check_list_type(kind: pa.DataType, column: str) -> None:
    """Raises `TypeError` for a column whose values are no lists."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise TypeError(f"explode: column {column!r} is {kind}, and no list")


OTHERS = "#others"
"""The side output of the second stream of a split in two."""


class FirstRecords(ProcessFunction):
    """The first records of each subtask."""

    passed = OperatorState(list, default=[])
    """A list of one number, so that it can be dealt out anew."""

    def __init__(self, n: int) -> None:
        self.n = n

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        if sum(self.passed.value) < self.n:
            self.passed.value = [sum(self.passed.value) + 1]
            yield value


class Peek(MapFunction):
    """Records as they are, of which the first ones are printed."""

    def __init__(self, fn: Any, n: int) -> None:
        self.fn = fn
        self.left = n

    def map(self, value: Any) -> Any:
        if self.left:
            self.left -= 1
            _print(self.fn, value)
        return value


class PeekBatches(MapBatchesFunction):
    """Batches as they are, of whose records the first ones are printed."""

    def __init__(self, fn: Any, n: int) -> None:
        self.fn = fn
        self.left = n

    def map_batches(self, batch: Any) -> Any:
        if self.left:
            records = rows_of(batch.slice(0, self.left))
            self.left -= len(records)
            for record in records:
                _print(self.fn, record)
        return batch


def _print(fn: Any, value: Any) -> None:
    shown = value if fn is None else fn(value)
    if fn is None or shown is not None:
        print(shown)


def table_for_lookup(given: Any, on: tuple[str, ...], verb: str) -> pa.Table:
    """The rows of a DataFrame of pandas, polars or Spark, or of an Arrow table, with one row for each key. Raises
    `GraphError` for anything else, for a column that is not there, for keys that are no certain ones, and for two rows of
    one key."""
    table = _as_table(given, verb)
    missing = [name for name in on if name not in table.column_names]
    if missing:
        raise GraphError(f"{verb}: the table has no column {missing[0]!r}; it has {', '.join(table.column_names)}")
    for name in on:
        kind = table.schema.field(name).type
        if pa.types.is_floating(kind) or kind.num_fields:
            raise GraphError(
                f"{verb}: column {name!r} of the table is {kind}, by which rows cannot be found for certain"
            )
    keys = list(zip(*(table[name].to_pylist() for name in on), strict=True))
    table = table.filter(pa.array([None not in key for key in keys], pa.bool_()))
    twice = next((key for key, count in Counter(keys).items() if count > 1 and None not in key), None)
    if twice is not None:
        raise GraphError(
            f"{verb}: the table has several rows with {', '.join(on)} {twice if len(on) > 1 else twice[0]!r}; a record gets "
            f"one: drop the others before"
        )
    return table.combine_chunks()


def _as_table(given: Any, verb: str) -> pa.Table:
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return given
    for method in ("toArrow", "to_arrow"):
        if hasattr(given, method):
            return getattr(given, method)()
    if hasattr(given, "iloc"):
        return pa.Table.from_pandas(given, preserve_index=False)
    raise GraphError(f"{verb}: expected a DataFrame of pandas, polars or Spark, or a pyarrow.Table, not {given!r:.80}")


class RowLookup(FlatMapFunction):
    """Pairs of a record and the row of a table with its key, or None."""

    def __init__(self, table: pa.Table, on: tuple[str, ...], inner: bool) -> None:
        self.table, self.on, self.inner = table, on, inner
        self._kind: type | None = None

    def prepare(self) -> None:
        columns = [column.to_pylist() for column in self.table.columns]
        rows = made_rows(tuple(self.table.column_names), list(zip(*columns, strict=True)))
        places = [self.table.column_names.index(name) for name in self.on]
        self.rows = {tuple([row[at] for at in places]): row for row in rows}

    def flat_map(self, value: Any) -> list[Any]:
        if type(value) is not self._kind:
            self._kind = type(value)
            self._read = [field_getter(name, value) for name in self.on]
        found = self.rows.get(tuple([read(value) for read in self._read]))
        return [] if found is None and self.inner else [(value, found)]


class BatchLookup(MapBatchesFunction):
    """The columns of a table beside those of a batch: for each record those of the row with its key, or null."""

    def __init__(self, table: pa.Table, on: tuple[str, ...], inner: bool) -> None:
        self.table, self.on, self.inner = table, on, inner

    def prepare(self) -> None:
        table = self.table
        self._distinct = [table[name].combine_chunks().unique() for name in self.on]
        self._keys = self._codes([table[name].combine_chunks() for name in self.on])
        self._rest = table.drop_columns(list(self.on))

    def _codes(self, columns: list[Any]) -> pa.Array:
        """One number for each key; null for one of which a part is not in the table."""
        codes: Any = None
        for name, column, distinct in zip(self.on, columns, self._distinct, strict=True):
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if column.type != distinct.type:
                raise TypeError(
                    f"lookup: column {name!r} is {column.type} in the stream and {distinct.type} in the table; cast one"
                )
            here = pc.index_in(column, value_set=distinct, skip_nulls=True).cast(pa.int64())
            codes = here if codes is None else pc.add_checked(pc.multiply_checked(codes, len(distinct)), here)
        return codes

    def map_batches(self, batch: Any) -> Any:
        codes = self._codes([batch.column(name) for name in self.on])
        at = pc.index_in(codes, value_set=self._keys, skip_nulls=True)
        if self.inner:
            batch, at = batch.filter(at.is_valid()), at.drop_null()
        taken = self._rest.take(at)
        for field, column in zip(taken.schema, taken.columns, strict=True):
            whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, field.type)
            batch = batch.append_column(field, whole)
        return batch
