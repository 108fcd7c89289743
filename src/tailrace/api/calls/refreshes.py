"""Lookups in a table that is read anew while the job runs.

One subtask reads it, in a thread beside the dataflow, and broadcasts what it has read: a new version comes to every subtask
as a record, at one place in the stream, and is broadcast state there.

    one record ──┐
    records ─────┴ key_by ── process (beats of the clock) ── map_async (reads) ── broadcast ┐
    records ──────────────────────────────────────────────────────────────────────────────── process (rows of keys)

The records lead into the upper branch, where none goes on, so that it has their event time and ends with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from tailrace.api.checks.arguments import check_callable, check_names, check_selector, check_span, title_of
from tailrace.api.failure_options import FAIL
from tailrace.api.functions import BroadcastProcessFunction, Context, KeyedProcessFunction
from tailrace.api.launch import launcher
from tailrace.api.nodes import add_node, described_scope
from tailrace.api.verbs.columns import declared_schema
from tailrace.api.verbs.functions import RowLookup, table_for_lookup
from tailrace.api.verbs.two_streams import broadcast_process
from tailrace.elements.byte_texts import size_text
from tailrace.errors import GraphError, error_text
from tailrace.graph import operators as ops
from tailrace.log import log
from tailrace.state.broadcast_state import BroadcastState
from tailrace.state.handles import ValueState

AnyStream = Any
"""A stream of `api.streams`, the module that imports this one."""
MOST_BYTES = 64 << 20
"""Largest size of a table that is read anew. Each version travels in a message, and is in each checkpoint."""
MOST_FAILURES = 10
"""Number of readings in a row that fail before the job fails."""
BEAT = 1_000_000
"""Time between two looks for a version that was read, in microseconds; less where it is read more often."""
CAPACITY = 8
"""Number of beats that wait for a version."""


def refreshed_lookup(stream: AnyStream, table: Any, on: Any, inner: bool, refresh: Any, options: dict[str, Any]) -> Any:
    """The stream of pairs of a record and the row of its key in a table that is read anew; see `DataStream.lookup`."""
    verb = title_of("lookup", options)
    read = _read_function(table, verb)
    every = _check_refresh(stream, refresh, verb)
    names = (on,) if isinstance(on, str) else tuple(on)
    check_selector(names, stream.columns, verb)
    try:
        given = read()
    except Exception as error:
        raise GraphError(f"{verb}: the first reading of the table has failed: {error_text(error)}") from error
    rows = _check_size(table_for_lookup(given, names, verb), verb)
    rows = rows.replace_schema_metadata({"key": ", ".join(names)})
    if stream.form == "columns":
        return _in_columns(stream, read, every, rows, names, inner, options)
    return _in_rows(stream, read, every, rows, names, inner, options)


def _in_rows(
    stream: AnyStream,
    read: Callable[[], Any],
    every: int,
    rows: pa.Table,
    on: tuple[str, ...],
    inner: bool,
    options: dict[str, Any],
) -> AnyStream:
    verb = title_of("lookup", options)
    versions = _versions(stream, TableReader(read, on, rows.schema, verb), every, options)
    fn, named = RefreshedLookup(rows, on, inner), {"name": "lookup", **options}
    return stream._of(broadcast_process(stream, versions.broadcast(), fn, "wait", False, named, verb))


def _in_columns(
    stream: AnyStream,
    read: Callable[[], Any],
    every: int,
    rows: pa.Table,
    on: tuple[str, ...],
    inner: bool,
    options: dict[str, Any],
) -> AnyStream:
    """The lookup of a stream in columns: as rows, and in columns again. Raises `GraphError` where their types are not
    known, or others."""
    verb, schema = title_of("lookup", options), declared_schema(stream)
    if schema is None:
        raise GraphError(
            f"{verb}: with refresh the types of the stream's columns must be known: call to_columns(schema) before, or "
            f"to_rows()"
        )
    if options.get("on_error") is not None:
        raise GraphError(f"{verb}: with refresh and on_error the stream must be in rows: call to_rows() before")
    for name in on:
        here, there = schema.field(name).type, rows.schema.field(name).type
        if here != there:
            raise GraphError(f"{verb}: column {name!r} is {here} in the stream and {there} in the table; cast one")
    rest = [field for field in rows.schema if field.name not in on]
    columns = (*schema.names, *(field.name for field in rest))
    check_names(columns, verb, "the table, with rename or drop, before")
    ways = {part: _options_of(part, options, options.get("parallelism")) for part in ("rows", "columns", "joined")}
    plain = stream._add(ops.ToRows(), "to_rows", ways["rows"], columns=stream.columns)
    pairs = _in_rows(plain, read, every, rows, on, inner, options)
    places = tuple(rows.column_names.index(field.name) for field in rest)
    joined = pairs._add(ops.Map(partial(_join, places)), "map", {**ways["joined"], "on_error": FAIL})
    whole = ops.ToColumns(pa.schema([*schema, *(field.with_nullable(True) for field in rest)]))
    back = {**ways["columns"], "on_error": FAIL}
    return joined._add(whole, "to_columns", back, form="columns", columns=columns)


def _join(places: tuple[int, ...], pair: Any) -> tuple[Any, ...]:
    record, row = pair
    return (*record, *((None,) * len(places) if row is None else [row[at] for at in places]))


def _options_of(part: str, options: dict[str, Any], parallelism: int | None) -> dict[str, Any]:
    """The options of an operator that is a part of the lookup."""
    uid, name = options.get("uid"), options.get("name") or "lookup"
    return {"name": f"{name} {part}", "uid": None if uid is None else f"{uid}-{part}", "parallelism": parallelism}


def _check_refresh(stream: AnyStream, refresh: Any, verb: str) -> int:
    """The time between two readings, in microseconds. Raises `GraphError` for streams whose tables cannot be
    read anew."""
    every = check_span(refresh, verb)
    if not every:
        raise GraphError(f"{verb}: refresh must be above zero, or left out for a table that is read once")
    if stream.scope.level:
        raise GraphError(
            f"{verb}: a table cannot be read anew {described_scope(stream)}: a loop ends when nothing is left in its "
            f"channels, and a reading under way is in none; look up in front of the loop, or behind it"
        )
    return every


def _read_function(table: Any, verb: str) -> Callable[[], Any]:
    """The function that reads a table. Raises `GraphError` for a table that a worker cannot read."""
    if callable(table):
        check_callable(table, 0, verb)
        return table  # type: ignore[no-any-return]
    if hasattr(table, "mapInArrow"):
        read: Callable[[], Any] = launcher().table_reader(table, verb)
        return read
    raise GraphError(
        f"{verb}: with refresh a worker reads the table, again and again, and it cannot do that with a "
        f"{type(table).__name__}; give a function that reads it: lookup(lambda: pq.read_table(path), refresh=...)"
    )


def _versions(stream: AnyStream, reader: TableReader, every: int, options: dict[str, Any]) -> AnyStream:
    """The stream of what the readings give. It ends with `stream`, and has its event time."""

    silent = {**_options_of("end", options, None), "on_error": FAIL}
    none = stream._of(
        add_node(stream, ops.Filter(_never), stream._edges(ops.Forward()), "filter", silent, "rows", None)
    )
    start = stream.env.from_collection([None], **_options_of("start", options, 1))
    beat = ops.KeyedProcess(Beats(min(every, BEAT) / 1e6), _no_key, "drop")
    beats = (
        start.union(none).key_by(_no_key)._add(beat, "process", {**_options_of("beats", options, 1), "on_error": FAIL})
    )
    calls = ops.MapAsync(reader, None, CAPACITY, None, "input", every=every)
    return beats._add(calls, "map_async", {**_options_of("versions", options, 1), "on_error": FAIL})


def _never(record: Any) -> bool:
    return False


def _no_key(record: Any) -> int:
    return 0


def _check_size(table: pa.Table, verb: str) -> pa.Table:
    if table.nbytes > MOST_BYTES:
        size, most = size_text(table.nbytes), size_text(MOST_BYTES)
        raise GraphError(
            f"{verb}: the table has {size}, and one that is read anew at most {most}: each version goes through the stream "
            f"and into each checkpoint; leave out columns, or let its changes come as a stream, with join_as_of"
        )
    return table


def overdue(seconds: float) -> tuple[str, Any]:
    """The message that a reading has not ended for so long."""
    return "failed", f"a reading that began {seconds:.0f} s ago has not ended"


class TableReader:
    """A function that reads a table anew: a message with its rows, or with the reason why it cannot be read."""

    def __init__(self, read: Callable[[], Any], on: tuple[str, ...], schema: pa.Schema, verb: str) -> None:
        self.read, self.on, self.schema, self.verb = read, on, schema, verb

    def __call__(self) -> tuple[str, Any]:
        try:
            return "rows", _bytes_of(self._table())
        except Exception as error:  # the lookup counts it, and reports it
            return "failed", error_text(error)

    def _table(self) -> pa.Table:
        table = table_for_lookup(self.read(), self.on, self.verb)
        missing = [name for name in self.schema.names if name not in table.column_names]
        if missing:
            raise GraphError(f"{self.verb}: the table has no column {missing[0]!r} any more")
        return _check_size(table.select(self.schema.names).cast(self.schema), self.verb)


def _bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class Beats(KeyedProcessFunction):
    """The times at which the table may be read: one at the start, and one each `seconds`."""

    begun = ValueState(bool, default=False)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, value: Any, ctx: Context) -> Iterator[Any]:
        if not self.begun.value:
            self.begun.value = True
            yield from self.on_timer(0.0, ctx)

    def on_timer(self, timestamp: float, ctx: Context) -> Iterator[Any]:
        ctx.set_timer(processing_time=ctx.now() + self.seconds)
        yield ctx.now()


class RefreshedLookup(BroadcastProcessFunction):
    """Pairs of a record and the row of its key in the newest version of a table that has come."""

    versions = BroadcastState(str, bytes)
    readings = BroadcastState(str, float)
    """The time of the last reading that has not failed, and the number of those that have failed since."""

    def __init__(self, table: pa.Table, on: tuple[str, ...], inner: bool) -> None:
        self.first, self.on, self.inner = table, on, inner

    def prepare(self) -> None:
        self._use(None)

    def _use(self, version: bytes | None) -> None:
        """Goes on with a version; None: the one of the program. So does a program that has other columns, or another key,
        than the one that has left the checkpoint."""
        self._version, table = version, self.first
        if version is not None:
            with pa.ipc.open_stream(version) as reader:
                if reader.schema.equals(table.schema, check_metadata=True):
                    table = reader.read_all()
        self._lookup = RowLookup(table, self.on, self.inner)
        self._lookup.prepare()

    def process(self, value: Any, ctx: Context) -> list[Any]:
        version = self.versions.get("newest")
        if version is not self._version:
            self._use(version)
        return self._lookup.flat_map(value)

    def process_broadcast(self, value: Any, ctx: Context) -> None:
        if value is None:
            return  # a beat at which nothing was read
        at, (kind, found) = value
        if kind == "failed":
            self._note_failure(at, found, ctx)
            return
        self.readings["at"], self.readings["failures"] = at, 0.0
        if found != self.versions.get("newest"):
            self.versions["newest"] = found

    def _note_failure(self, at: float, why: str, ctx: Context) -> None:
        failures = self.readings["failures"] = self.readings.get("failures", 0.0) + 1
        last = self.readings.get("at")
        kept = "those that the program read" if last is None else f"those read {max(0.0, at - last):.0f} s before"
        if failures >= MOST_FAILURES:
            raise RuntimeError(
                f"the table of a lookup could not be read {failures:.0f} times in a row: {why}; the rows in use are {kept}"
            )
        if ctx.subtask == 0:
            log.warning(
                "lookup: the table could not be read (%d of %d times in a row, then the job fails): %s; the rows in use "
                "are %s",
                failures,
                MOST_FAILURES,
                why,
                kept,
            )
