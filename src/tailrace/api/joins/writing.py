"""Joins of two keyed streams, as they are written: checks of their arguments, and the operators that they consist of."""

from __future__ import annotations

from typing import Any, cast, get_args

from tailrace.api.checks import check_callable, title_of
from tailrace.api.joins.functions import SelectCall
from tailrace.api.nodes import add_node, check_together, described_scope
from tailrace.api.released import has_event_time
from tailrace.api.windows import LARGEST
from tailrace.elements.durations import span_micros
from tailrace.errors import GraphError, TypeMismatch
from tailrace.graph import operators as ops
from tailrace.graph.graph import Edge
from tailrace.graph.operators import How, Selector

FILTERS = ("semi", "anti")
"""Kinds of joins whose results are records of the first stream."""


def write_join(stream: Any, other: Any, within: Any, how: Any, select: Any, options: dict[str, Any]) -> Any:
    """The stream of the results of a join of two keyed streams. Raises what `KeyedStream.join` does."""
    verb = title_of("join", options)
    how = check_how(how, get_args(How), verb)
    before, after = check_within(within, verb)
    check_select(select, how, verb)
    edges = check_inputs(stream, other, verb)
    operator = ops.IntervalJoin((stream.key, other.key), before, after, how)
    made = {name: value for name, value in options.items() if name != "on_error" or select is None}
    joined = stream._of(add_node(stream, operator, edges, "join", made, "rows", None))
    return joined if select is None else select_results(joined, select, "join.select", options)


def select_results(joined: Any, select: Any, verb: str, options: dict[str, Any]) -> Any:
    """The results of `select` for the pairs of a join. The operator has the uid and the name of the join with `-select`
    behind."""
    own = {name: None if options.get(name) is None else f"{options[name]}-select" for name in ("uid", "name")}
    rest = {name: options.get(name) for name in ("parallelism", "on_error")}
    return joined._add(ops.Map(SelectCall(select)), verb, own | rest)


def check_how(how: Any, known: tuple[str, ...], verb: str) -> How:
    """The kind of a join, checked. Raises `GraphError`."""
    if how not in known:
        raise GraphError(f"{verb}: how is one of {', '.join(known)}, not {how!r}")
    return cast(How, how)


def check_within(within: Any, verb: str) -> tuple[int, int]:
    """The bounds of an interval in microseconds. Raises `GraphError` for what is no pair of durations in order."""
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise GraphError(
            f"{verb}: within=(before, after) are the least and the largest time of the second record minus that of the "
            f"first, such as within=(-60, 900), not {within!r}"
        )
    try:
        before, after = map(span_micros, within)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"{verb}: within: {error}") from None
    if before > after:
        raise GraphError(f"{verb}: within=({within[0]!r}, {within[1]!r}) is empty: the first bound is above the second")
    if max(abs(before), abs(after)) > LARGEST:
        raise GraphError(f"{verb}: within=({within[0]!r}, {within[1]!r}) is larger than timestamps are")
    return before, after


def check_select(select: Any, how: str, verb: str) -> None:
    """Raises `GraphError` unless `select` is a function of two records, or None."""
    if select is None:
        return
    if how in FILTERS:
        raise GraphError(
            f'{verb}: how="{how}" gives records of the first stream, without partners; leave select out, and call map(f)'
        )
    check_callable(select, 2, f"{verb}: select")


def check_inputs(stream: Any, other: Any, verb: str) -> tuple[Edge, ...]:
    """The edges of both streams into a join. Raises `GraphError` for streams without keys or event time, for keys that are
    never equal, and in a loop; `TypeMismatch` for streams in columns; `ScopeError` for streams of two loops."""
    check_together(stream, other, verb)
    if getattr(other, "key", None) is None:
        raise GraphError(f"{verb}: the other stream has no key; call key_by(...) on it: a.key_by(x).join(b.key_by(y))")
    check_keys(stream.key, other.key, verb)
    if stream.scope.level:
        raise GraphError(
            f"{verb}: {described_scope(stream)} a record that comes around may be older than all that was joined, and event "
            f"time does not wait for it; join in front of the loop, or behind it, where event time waits for all that is "
            f"still inside; or use connect(other) and a tr.CoProcessFunction"
        )
    inputs = stream._edges(stream._partitioning, 0), other._edges(other._partitioning, 1)
    for which, one, edges in zip(("first", "second"), (stream, other), inputs, strict=True):
        if one.form == "columns":
            raise TypeMismatch(f"{verb}: the {which} stream is in columns; call to_rows() before key_by")
        if not has_event_time(edges, stream.env._graph.nodes):
            raise GraphError(
                f"{verb}: a join is by event time, and the {which} stream has none; call assign_timestamps before key_by"
            )
    return (*inputs[0], *inputs[1])


def check_keys(first: Selector | None, second: Selector | None, verb: str) -> None:
    """Raises `GraphError` for keys of two streams of which none is ever equal to one of the other."""
    shapes = _shape(first), _shape(second)
    if None not in shapes and shapes[0] != shapes[1]:
        raise GraphError(
            f"{verb}: one stream is keyed by {shapes[0]}, the other by {shapes[1]}: keys that are never equal; key both by "
            f"a single column, or by lists of as many"
        )


def _shape(key: Selector | None) -> str | None:
    """The shape of a key for errors: a single column or a list of columns; None for a function."""
    if isinstance(key, str):
        return "a single column"
    return f"a list of {len(key)}" if isinstance(key, tuple) else None
