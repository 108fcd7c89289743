"""Everyday verbs, composed of other operators: process functions with state and timers, windows, functions of batches. Only
`drop_duplicates` has an operator of its own, which takes columns as they are."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from tailrace.api.checks import check_counted, check_names, check_selector, check_span, title_of
from tailrace.api.failing import FAIL
from tailrace.api.functions import Span
from tailrace.api.nodes import described_scope
from tailrace.api.released import has_event_time
from tailrace.api.verbfunctions import Best, LastOfKey, OwnKey, Placing, Ranks, RunningTop
from tailrace.api.windowfunctions import Gather
from tailrace.api.windows import CountSpec, CountWindow
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
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise GraphError(f"{verb}: n is a number of records, at least 1, not {n!r}")
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
    columns = (*ops.key_columns(keyed.key), *(("start", "end") if timed else ()), "rank", "value")
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
    wide["parallelism"] = stream.env._graph.nodes[pairs._upstreams[0][0]].parallelism
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
