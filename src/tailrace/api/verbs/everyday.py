"""Everyday verbs, composed of other operators: process functions with state and timers, windows, functions of batches. Only
`drop_duplicates` has an operator of its own, which takes columns as they are."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal

import pyarrow.compute as pc

from tailrace.api.aggregates import Count, Max, Mean, Min
from tailrace.api.calls.asynchronous import map_async as map_async
from tailrace.api.calls.lookups import NOT_GIVEN, lookup_by_function
from tailrace.api.calls.lookups import Cache as Cache
from tailrace.api.calls.refreshes import refreshed_lookup
from tailrace.api.checks.arguments import (
    check_callable,
    check_counted,
    check_name,
    check_names,
    check_selector,
    check_span,
    title_of,
)
from tailrace.api.checks.event_time import check_in_order
from tailrace.api.checks.untimed_inputs import has_event_time
from tailrace.api.failure_options import FAIL
from tailrace.api.functions import AggregateFunction, Function, Span
from tailrace.api.nodes import WidthOf, described_scope
from tailrace.api.sql.verb import sql as sql
from tailrace.api.verbs.columns import declared_schema
from tailrace.api.verbs.functions import (
    OTHERS,
    BatchLookup,
    Best,
    Explode,
    FirstRecords,
    Halves,
    Lag,
    LastOfKey,
    OwnKey,
    Peek,
    PeekBatches,
    Placing,
    Ranks,
    RateLimit,
    RowLookup,
    RunningTop,
    Sample,
    SampleBatches,
    SampleKeys,
    Split,
    check_list_type,
    table_for_lookup,
)
from tailrace.api.windows.functions import Gather
from tailrace.api.windows.windows import CountSpec, CountWindow
from tailrace.elements.texttables import table_of_records
from tailrace.errors import GraphError, TypeMismatch
from tailrace.graph import operators as ops
from tailrace.graph.operators import Selector

AnyStream = Any
"""A stream of `api.streams`, the module that imports this one."""
Keep = Literal["first", "last"]


def drop_duplicates(stream: AnyStream, within: Span | None, keep: Keep, options: dict[str, Any]) -> AnyStream:
    """The stream of one record of each key in a span of time; see `KeyedStream.drop_duplicates`."""
    verb = title_of("drop_duplicates", options)
    if keep not in ("first", "last"):
        raise GraphError(f"{verb}: keep must be 'first' or 'last', not {keep!r}")
    span = None if within is None else check_span(within, verb)
    if span == 0:
        raise GraphError(f"{verb}: within must be above zero, or left out for all time")
    edges, nodes = stream._edges(stream._partitioning), stream.env._graph.nodes
    timed = has_event_time(edges, nodes)
    if stream.scope.level and (span is not None or keep == "last"):
        raise GraphError(
            f"{verb}: {described_scope(stream)} only drop_duplicates() without more can be kept: event time does not wait "
            f"there for records that come around; put the verb in front of the loop, or behind it"
        )
    if keep == "first":
        operator = ops.DropDuplicates(stream.key, span, timed)
        return stream._add(operator, "drop_duplicates", options, form=stream.form, columns=stream.columns)
    fn = LastOfKey(None if span is None else span / 1e6, timed)
    last = ops.KeyedProcess(fn, stream.key, "drop", timed)
    return stream._add(last, "drop_duplicates", options, columns=stream.columns)


def _places(stream: AnyStream, n: Any, by: Selector, ascending: Any, verb: str) -> Placing:
    if n is not None:
        _check_number(n, verb)
    if not isinstance(ascending, bool):
        raise GraphError(f"{verb}: ascending must be True or False, not {ascending!r}")
    return Placing(n, check_selector(by, stream.columns, verb), ascending)


def top(stream: AnyStream, n: int, by: Selector, ascending: bool, options: dict[str, Any]) -> AnyStream:
    """The stream of changes of the best records of each key; see `KeyedStream.top`."""
    verb = title_of("top", options)
    columns = (*ops.key_columns(stream.key), "op", "rank", "value")
    check_names(columns, verb)
    fn = RunningTop(_places(stream, n, by, ascending, verb), columns, isinstance(stream.key, tuple))
    return stream._add(ops.KeyedProcess(fn, stream.key, "wait"), "top", options, columns=columns)


def ranks(
    windowed: AnyStream, n: int | None, by: Selector, ascending: bool, verb: str, options: dict[str, Any]
) -> AnyStream:
    """The stream of the best records of each window, or of all of them, with their ranks; see `WindowedStream.top`."""
    keyed, title = windowed._keyed, title_of(verb, options)
    places = _places(keyed, n, by, ascending, title)
    timed, several = not isinstance(windowed._windows, CountSpec), isinstance(keyed.key, tuple)
    columns = (*ops.key_columns(keyed.key), *(("start", "end") if timed else ()), "rank", "value", *windowed._labels)
    check_names(columns, title)
    fn = Ranks(places, columns, several, timed, equal=n is None)
    return windowed._call(Best(places), fn, verb, options, columns)


def batches(stream: AnyStream, n: int, timeout: Span | None, options: dict[str, Any]) -> AnyStream:
    """The stream of lists of records; see `DataStream.batch`."""
    verb = title_of("batch", options)
    if stream.form == "columns":
        raise TypeMismatch(
            f"{verb}: a stream in columns comes in batches already, which map_batches(f) is given; for lists of so many "
            f"records call to_rows() before"
        )
    windows = CountWindow(n, timeout=timeout)
    check_counted(windows.partial_at_end, 0, stream.scope.level)
    if hasattr(stream, "key"):
        return _lists_of(stream, windows, options)
    # All records of a subtask have one key, which keeps them there: the window is as wide as what makes the keys.
    wide = {"parallelism": options.get("parallelism")}
    pairs = stream._add(ops.Process(OwnKey(stream.env.max_parallelism), "wait"), "batch", wide)
    wide["parallelism"] = WidthOf(stream.env._graph.nodes[pairs._upstreams[0][0]])
    return _lists_of(pairs.key_by(_first, on_error=FAIL), windows, {**options, **wide})._add(
        ops.Map(_records), "batch", {}
    )


def _lists_of(keyed: AnyStream, windows: CountSpec, options: dict[str, Any]) -> AnyStream:
    rows = keyed.window(windows)._add((("records", Gather()),), None, "batch", options)
    return rows._add(ops.Map(itemgetter(-1)), "batch", {})


def _first(pair: Any) -> Any:
    return pair[0]


def _records(pairs: list[Any]) -> list[Any]:
    return [record for _, record in pairs]


def lag(stream: AnyStream, n: int, of: Selector | None, in_order: bool, options: dict[str, Any]) -> AnyStream:
    """The stream of pairs of a record and an earlier one; see `KeyedStream.lag`."""
    verb = title_of("lag", options)
    _check_number(n, verb)
    selector = None if of is None else check_selector(of, stream.columns, verb)
    ordered = check_in_order(in_order, [stream], [stream._edges(stream._partitioning)], verb)
    return stream._add(ops.KeyedProcess(Lag(n, selector), stream.key, "wait", ordered), "lag", options)


def rate_limit(stream: AnyStream, n: int, per: Span, options: dict[str, Any]) -> AnyStream:
    """The stream of at most so many records of each key in a time; see `KeyedStream.rate_limit`."""
    verb = title_of("rate_limit", options)
    _check_number(n, verb)
    span = check_span(per, verb)
    if not span:
        raise GraphError(f"{verb}: per must be above zero")
    limit = ops.KeyedProcess(RateLimit(n, span / 1e6), stream.key, "drop")
    return stream._add(limit, "rate_limit", options, columns=stream.columns)


def _check_number(n: Any, verb: str) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise GraphError(f"{verb}: n is a number of records, at least 1, not {n!r}")


def sample(stream: AnyStream, fraction: float, by: Selector | None, seed: int, options: dict[str, Any]) -> AnyStream:
    """The stream of a share of its records; see `DataStream.sample`."""
    verb = title_of("sample", options)
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise GraphError(f"{verb}: the fraction is a number from 0 to 1, not {fraction!r}")
    if by is not None:
        selector = check_selector(by, stream.columns, verb)
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise GraphError(f"{verb}: the seed is a whole number from 0 to 2**64 - 1, not {seed!r}")
        rows = stream._as_rows()
        return rows._add(ops.Filter(SampleKeys(fraction, selector, seed)), "sample", options, columns=rows.columns)
    if stream.form == "rows":
        return stream._add(ops.Process(Sample(fraction), "wait"), "sample", options, columns=stream.columns)
    return _of_batches(stream, SampleBatches(fraction), "sample", options)


def _of_batches(stream: AnyStream, fn: Any, verb: str, options: dict[str, Any]) -> AnyStream:
    """The stream of what a function makes of batches. Timestamps move with the records, in a column of their own."""
    operator = ops.MapBatches(fn, TIMES, "arrow")
    return stream._add(operator, verb, options, form="columns", columns=stream.columns)


TIMES = "#timestamp"
"""The column in which timestamps move with the records of a batch."""


def split(stream: AnyStream, f: Any, into: Sequence[str] | None, options: dict[str, Any]) -> tuple[AnyStream, ...]:
    """The streams of the records of each kind; see `DataStream.split`."""
    verb = title_of("split", options)
    if stream.form == "columns":
        if into is not None or not isinstance(f, str | pc.Expression):
            raise TypeMismatch(
                f"{verb}: a stream in columns is split in two, by a column or an expression; for a function call to_rows() "
                f"before, and for more streams write filter(...) for each"
            )
        first = pc.field(f) if isinstance(f, str) else f
        return stream.filter(first, **options), stream.filter(first.is_null() | ~first)
    check_callable(f, 1, verb)
    if into is None:
        parts = stream._add(ops.Process(Halves(f), "wait"), "split", options, columns=stream.columns)
        return parts, _aside(parts, OTHERS)
    names = (into,) if isinstance(into, str) else tuple(into)
    if not names or len(set(names)) < len(names):
        raise GraphError(f"{verb}: into must be the names of the streams, each once, not {into!r}")
    for name in names:
        check_name(name, verb, "the name of a stream")
    parts = stream._add(ops.Process(Split(f, names), "wait"), "split", options)
    return tuple(_aside(parts, name) for name in names)


def _aside(stream: AnyStream, tag: str) -> AnyStream:
    return stream._of(stream.env._graph.nodes[stream._upstreams[0][0]], tag)


def explode(stream: AnyStream, column: str, outer: bool, options: dict[str, Any]) -> AnyStream:
    """The stream of a record for each item of a list; see `DataStream.explode`."""
    verb = title_of("explode", options)
    if stream.form != "columns":
        raise TypeMismatch(
            f"{verb}: a stream in rows has no lists in columns; use flat_map(f), or to_columns(schema) before"
        )
    check_name(column, verb, "the column")
    check_selector(column, stream.columns, verb)
    schema = declared_schema(stream)
    if schema is not None:
        try:
            check_list_type(schema.field(column).type, column)
        except TypeError as error:
            raise GraphError(str(error)) from None
    return _of_batches(stream, Explode(column, outer), "explode", options)


def statistics(of: tuple[Selector, ...], verb: str) -> dict[str, AggregateFunction]:
    """The aggregates that describe some values, by the names of their results."""
    if not of:
        raise GraphError(f"{verb}: give a function, a column, or several columns")
    if len(of) > 1 and not all(isinstance(one, str) for one in of):
        raise GraphError(f"{verb}: of several values each is a column; for a function call describe for it alone")
    found: dict[str, AggregateFunction] = {"count": Count()}
    for one in of:
        begin = f"{one}_" if len(of) > 1 else ""
        found |= {f"{begin}{name}": kind(one) for name, kind in (("mean", Mean), ("min", Min), ("max", Max))}
    return found


def peek(stream: AnyStream, fn: Any, n: int, options: dict[str, Any]) -> AnyStream:
    """The stream as it is, of which the first records are printed; see `DataStream.peek`."""
    verb = title_of("peek", options)
    _check_number(n, verb)
    if fn is not None:
        check_callable(fn, 1, verb)
    if stream.form == "rows":
        return stream._add(ops.Map(Peek(fn, n)), "peek", options, columns=stream.columns)
    operator = ops.MapBatches(PeekBatches(fn, n), None, "arrow")
    return stream._add(operator, "peek", options, form="columns", columns=stream.columns)


def show(stream: AnyStream, n: int) -> None:
    """Prints the first records of a stream; see `DataStream.show`."""
    _check_number(n, "show")
    records = head(stream, n).collect()
    print(table_of_records(records))


def head(stream: AnyStream, n: int) -> AnyStream:
    """The stream of the first `n` records: of each subtask, and then of all of them."""
    rows = stream._as_rows()
    some = rows._add(ops.Process(FirstRecords(n), "wait"), "show", {}, columns=rows.columns)
    return some.rebalance()._add(ops.Process(FirstRecords(n), "wait"), "show", {"parallelism": 1}, columns=rows.columns)


def lookup(
    stream: AnyStream,
    table: Any,
    on: Any,
    how: str,
    refresh: Any,
    cache: Any,
    calls: tuple[Any, ...],
    options: dict[str, Any],
) -> AnyStream:
    """The stream of records with the row of their key in a table, or with the answer of a function; see
    `DataStream.lookup`."""
    verb = title_of("lookup", options)
    by_function = callable(table) and (refresh is None or inspect.iscoroutinefunction(table))
    if by_function or isinstance(table, Function):
        if (how, refresh) != ("left", None):
            raise GraphError(
                f"{verb}: a lookup by a function takes no how and no refresh; filter behind it, and give a cache"
            )
        return lookup_by_function(stream, table, on, cache, calls, options)
    if cache is not None or calls != NOT_GIVEN:
        raise GraphError(f"{verb}: cache, capacity, timeout, ordered and retry are for a lookup by an async function")
    if on is None:
        raise GraphError(f"{verb}: give the columns of the key, such as on='id'")
    if how not in ("left", "inner"):
        raise GraphError(f"{verb}: how must be 'left' or 'inner', not {how!r}")
    if refresh is not None:
        return refreshed_lookup(stream, table, on, how == "inner", refresh, options)
    names = (on,) if isinstance(on, str) else tuple(on)
    check_selector(names, stream.columns, verb)
    rows = table_for_lookup(table, names, verb)
    if stream.form == "rows":
        return stream._add(ops.FlatMap(RowLookup(rows, names, how == "inner")), "lookup", options)
    columns = None
    if stream.columns is not None:
        columns = (*stream.columns, *(name for name in rows.column_names if name not in names))
        check_names(columns, verb, "the table, with rename or drop, before")
    operator = ops.MapBatches(BatchLookup(rows, names, how == "inner"), TIMES, "arrow")
    return stream._add(operator, "lookup", options, form="columns", columns=columns)
