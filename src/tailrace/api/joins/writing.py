"""Joins of two keyed streams, as they are written: checks of their arguments, and the operators that they consist of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast, get_args

import pyarrow as pa

from tailrace.api.checks.arguments import check_callable, check_selector, check_span, title_of
from tailrace.api.checks.untimed_inputs import has_event_time
from tailrace.api.failure_options import FAIL
from tailrace.api.joins.functions import GapOf, GatherSides, SelectCall, Tagging, VersionJoin, WindowPairs
from tailrace.api.nodes import add_node, check_together, described_scope
from tailrace.api.windows.windows import LARGEST
from tailrace.elements.columns.joined import SIDES, grouped_columns, joined_columns, key_column
from tailrace.elements.durations import span_micros
from tailrace.elements.timestamps import micros, seconds
from tailrace.errors import GraphError, TypeMismatch
from tailrace.graph import operators as ops
from tailrace.graph.declared import declared_before
from tailrace.graph.graph import Edge
from tailrace.graph.operators import How, Selector, SessionSpec, WindowSpec

Joins = ops.IntervalJoin | ops.WindowJoin | ops.AsOfJoin
FILTERS = ("semi", "anti")
"""Kinds of joins whose results are records of the first stream."""


AS_OF = ("inner", "left", "semi", "anti")
"""Kinds of joins with the version as of a time: a version is no event that waits for a partner."""


def write_join(
    stream: Any,
    other: Any,
    within: Any,
    window: Any,
    how: Any,
    select: Any,
    suffixes: Any,
    options: dict[str, Any],
) -> Any:
    """The stream of the results of a join of two keyed streams. Raises what `KeyedStream.join` does."""
    verb = title_of("join", options)
    how = check_how(how, get_args(How), verb)
    check_select(select, how, verb)
    if (within is None) == (window is None):
        raise GraphError(f"{verb}: give either within=(before, after) or window=tr.Tumbling(...)")
    if both_in_columns(stream, other):
        keys, put = keys_of(stream, other), check_suffixes(suffixes, verb)
        operator: ops.IntervalJoin | ops.WindowJoin
        if window is None:
            operator = ops.IntervalJoin(keys, *check_within(within, verb), how, put)
        else:
            operator = ops.WindowJoin(keys, check_gaps(check_windows(window, verb), stream, other, verb), how, put)
        return write_in_columns(stream, other, operator, select, "join", options)
    check_no_suffixes(suffixes, verb)
    if window is not None:
        return write_windows(stream, other, window, how, select, "join", options)
    before, after = check_within(within, verb)
    edges = check_inputs(stream, other, verb)
    operator = ops.IntervalJoin((stream.key, other.key), before, after, how)
    made = {name: value for name, value in options.items() if name != "on_error" or select is None}
    joined = stream._of(add_node(stream, operator, edges, "join", made, "rows", None))
    return joined if select is None else select_results(joined, select, "join.select", options)


def write_co_group(stream: Any, other: Any, window: Any, select: Any, options: dict[str, Any]) -> Any:
    """The stream of the lists of the records of each window of two keyed streams. Raises what `KeyedStream.co_group`
    does."""
    verb = title_of("co_group", options)
    if not both_in_columns(stream, other):
        return write_windows(stream, other, window, None, select, "co_group", options)
    windows = check_gaps(check_windows(window, verb), stream, other, verb)
    operator = ops.WindowJoin(keys_of(stream, other), windows, "group", SUFFIXES)
    return write_in_columns(stream, other, operator, select, "co_group", options)


def both_in_columns(stream: Any, other: Any) -> bool:
    """True if both streams of a join are in columns."""
    return stream.form == "columns" and getattr(other, "form", None) == "columns"


def keys_of(stream: Any, other: Any) -> tuple[Any, Any]:
    """The keys of two streams, None for one without."""
    return stream.key, getattr(other, "key", None)


def write_in_columns(stream: Any, other: Any, operator: Joins, select: Any, name: str, options: dict[str, Any]) -> Any:
    """The stream of the results of a join of two keyed streams in columns."""
    verb = title_of(name, options)
    edges = check_inputs(stream, other, verb, columns=True)
    for which, one in (("first", stream), ("second", other)):
        if one.key is None or callable(one.key):
            raise TypeMismatch(
                f"{verb}: the {which} stream is in columns, and its key is a function; name a column in key_by, or call "
                f"to_rows() before it"
            )
    if select is not None:
        raise TypeMismatch(
            f"{verb}: select is a function in Python of each result, and the streams are in columns; call select(...) or "
            f"to_rows() on the result, or to_rows() before key_by"
        )
    if options.get("on_error") is not None:
        raise GraphError(f"{verb}: takes no on_error, because it runs no code of yours for a record")
    columns = columns_in_join(stream, other, operator, edges, verb)
    return stream._of(add_node(stream, operator, edges, name, options, "columns", columns))


SUFFIXES = ("_x", "_y")
"""What is put behind names of columns that both streams have, as in pandas."""


def check_suffixes(suffixes: Any, verb: str) -> tuple[str, str]:
    """The suffixes of a join in columns. Raises `GraphError` for what is no pair of texts."""
    if suffixes is None:
        return SUFFIXES
    if not isinstance(suffixes, tuple | list) or [type(one) for one in suffixes] != [str, str]:
        raise GraphError(
            f"{verb}: suffixes=(first, second) are put behind names of columns that both streams have, such as "
            f'suffixes=("", "_right"), not {suffixes!r}'
        )
    return suffixes[0], suffixes[1]


def check_no_suffixes(suffixes: Any, verb: str) -> None:
    """Raises `GraphError` for suffixes where results are no columns."""
    if suffixes is not None:
        raise GraphError(f"{verb}: suffixes are for joins of two streams in columns; its results are pairs here")


def columns_in_join(
    stream: Any,
    other: Any,
    operator: ops.IntervalJoin | ops.WindowJoin | ops.AsOfJoin,
    edges: tuple[Edge, ...],
    verb: str,
) -> tuple[str, ...] | None:
    """The names of the columns of the results; None if they are not known. Raises `GraphError` for two columns of one name,
    for keys that are never equal, and where the columns of records that are not there are not known."""
    keys = ops.key_columns(operator.keys[0]), ops.key_columns(operator.keys[1])
    schemas = [
        declared_before(stream.env._graph.nodes.__getitem__, [edge for edge in edges if edge.port == port])
        for port in (0, 1)
    ]
    missing = {"left": (1,), "right": (0,), "full": (0, 1), "group": (0, 1)}.get(operator.how, ())
    for port in missing:
        if schemas[port] is None:
            raise GraphError(
                f"{verb}: a result may have no record of the {SIDES[port]} stream, whose columns are not known before the "
                f"first one comes: declare them with to_columns(schema) before assign_timestamps"
            )
    for schema, names in zip(schemas, keys, strict=True):
        if schema is not None and (unknown := [name for name in names if name not in schema.names]):
            raise GraphError(f"{verb}: there is no column {unknown[0]!r}; the stream has {', '.join(schema.names)}")
    check_kinds(schemas, keys, verb)
    if operator.how in FILTERS:
        return stream.columns  # type: ignore[no-any-return]
    if operator.how == "group":
        try:
            return grouped_columns(keys)
        except ValueError as error:
            raise GraphError(f"{verb}: {error}") from None
    assert operator.suffixes is not None
    known = [
        one.columns or (None if schema is None else schema.names)
        for one, schema in zip((stream, other), schemas, strict=True)
    ]
    if known[0] is None or known[1] is None:
        return None
    try:
        found = joined_columns(list(known[0]), list(known[1]), keys, operator.suffixes)
    except ValueError as error:
        raise GraphError(f"{verb}: {error}") from None
    return tuple(one.name for one in found)


def check_kinds(schemas: list[Any], keys: tuple[tuple[str, ...], tuple[str, ...]], verb: str) -> None:
    """Raises `GraphError` for keys of types that cannot be compared in columns, as far as the types are known."""
    kinds = []
    for schema, names in zip(schemas, keys, strict=True):
        if schema is None:
            continue
        try:
            kinds.append([key_column(pa.array([], schema.field(name).type)).type for name in names])
        except ValueError as error:
            raise GraphError(f"{verb}: {error}") from None
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        ours, others = (", ".join(map(str, some)) for some in kinds)
        raise GraphError(
            f"{verb}: the keys of the first stream are of {ours}, those of the second of {others}, and are never compared "
            f"in columns; cast them to one type before key_by, or call to_rows() on both streams"
        )


def write_as_of(
    stream: Any,
    other: Any,
    keep: Any,
    how: Any,
    load_until: Any,
    select: Any,
    suffixes: Any,
    options: dict[str, Any],
) -> Any:
    """The stream of records with their versions. Raises what `KeyedStream.join_as_of` does."""
    name = "join_as_of"
    verb = title_of(name, options)
    if how in ("right", "full"):
        raise GraphError(
            f"{verb}: a version that no record needed is no result of its own, so how is one of {', '.join(AS_OF)}; for "
            f"records of both streams that wait for each other use join(other, within=(before, after))"
        )
    how = check_how(how, AS_OF, verb)
    check_select(select, how, verb)
    span = None if keep is None else check_span(keep, verb)
    try:
        until = None if load_until is None else micros(load_until)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"{verb}: load_until: {error}") from None
    if both_in_columns(stream, other):
        join = ops.AsOfJoin(keys_of(stream, other), how, check_suffixes(suffixes, verb), span, until)
        return write_in_columns(stream, other, join, select, name, options)
    check_no_suffixes(suffixes, verb)
    edges = check_inputs(stream, other, verb, (1, 0))
    fn = VersionJoin(how, *(None if time is None else seconds(time) for time in (span, until)))
    operator = ops.CoProcess(fn, (other.key, stream.key), "drop", True)
    made = {name: value for name, value in options.items() if name != "on_error"} | {"on_error": FAIL}
    if select is None and options.get("on_error") is not None:
        raise GraphError(f"{verb}: takes no on_error, because it runs no code of yours for a record; select has one")
    joined = stream._of(add_node(stream, operator, edges, name, made, "rows", None))
    return joined if select is None else select_results(joined, select, f"{name}.select", options)


def write_windows(
    stream: Any, other: Any, window: Any, how: How | None, select: Any, name: str, options: dict[str, Any]
) -> Any:
    """The stream of the results of a join by windows; with `how` None the lists of records of each window. The records of
    both streams go into one window with the number of their input."""
    verb = title_of(name, options)
    check_windows(window, verb)
    check_inputs(stream, other, verb)
    if select is None and options.get("on_error") is not None:
        raise GraphError(f"{verb}: takes no on_error, because it runs no code of yours for a record; select has one")
    tagged = []
    for port, one in enumerate((stream, other)):
        unkeyed = one._with_partitioning(ops.Forward())
        own = part_options(options, ("first", "second")[port])
        tagged.append(unkeyed._add(ops.Map(Tagging(port, one.key)), f"{name}.key", own))
    if isinstance(window, SessionSpec) and window.gap_of is not None:
        window = replace(window, gap_of=GapOf(window.gap_of))
    own = {key: value for key, value in options.items() if key != "on_error"}
    windows = tagged[0].union(tagged[1]).key_by(key_of, on_error=FAIL).window(window)
    lists = windows._add((("records", GatherSides()),), None, name, own | {"on_error": FAIL})
    joined = lists._add(ops.FlatMap(WindowPairs(how)), f"{name}.pairs", part_options(options, "pairs"))
    return joined if select is None else select_results(joined, select, f"{name}.select", options)


def check_windows(window: Any, verb: str) -> Any:
    """The windows of a join. Raises `GraphError` for what is no windows of event time."""
    if not isinstance(window, WindowSpec | SessionSpec):
        raise GraphError(
            f"{verb}: the window is one of event time, such as tr.Tumbling(...), tr.Sliding(...) or tr.Session(...), not "
            f"{window!r}"
        )
    return window


def check_gaps(window: Any, stream: Any, other: Any, verb: str) -> Any:
    """The windows of a join in columns. Raises `GraphError` for sessions whose gap no column of both streams has."""
    gap_of = window.gap_of if isinstance(window, SessionSpec) else None
    if gap_of is not None and not isinstance(gap_of, str):
        raise GraphError(
            f"{verb}: the gap of tr.Session is a function of a record, and the streams are in columns; give the gap of all, "
            f"or the name of a column of both"
        )
    for one in (stream, other) if gap_of is not None else ():
        check_selector(gap_of, one.columns, f"{verb}: the gap of tr.Session")
    return window


def key_of(tagged: Any) -> Any:
    """The key of a record that is tagged."""
    return tagged[1]


def record_of(tagged: Any) -> Any:
    """The record that is tagged."""
    return tagged[2]


def late_of_windows(stream: Any, tag: Any) -> Any:
    """The late records of a join by windows, if `stream` has its results and `tag` is "late"; else None."""
    if tag != "late" or len(stream._upstreams) != 1:
        return None
    nodes = stream.env._graph.nodes
    node = nodes[stream._upstreams[0][0]]
    if isinstance(node.operator, ops.Map) and isinstance(node.operator.fn, SelectCall):
        node = nodes[node.inputs[0].source]
    if not (isinstance(node.operator, ops.FlatMap) and isinstance(node.operator.fn, WindowPairs)):
        return None
    window = stream._of(nodes[node.inputs[0].source])
    return window.side_output("late")._add(ops.Map(record_of), "join.late", {"on_error": FAIL})


def part_options(options: dict[str, Any], what: str) -> dict[str, Any]:
    """The options of a part of a join: `what` is put behind its uid and its name."""
    own = {name: None if options.get(name) is None else f"{options[name]}-{what}" for name in ("uid", "name")}
    return {**own, "parallelism": None if what in ("first", "second") else options.get("parallelism"), "on_error": FAIL}


def select_results(joined: Any, select: Any, verb: str, options: dict[str, Any]) -> Any:
    """The results of `select` for the pairs of a join. The operator has the uid and the name of the join with `-select`
    behind."""
    own = part_options(options, "select") | {"on_error": options.get("on_error")}
    return joined._add(ops.Map(SelectCall(select)), verb, own)


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


def check_inputs(
    stream: Any, other: Any, verb: str, ports: tuple[int, int] = (0, 1), columns: bool = False
) -> tuple[Edge, ...]:
    """The edges of both streams into a join, on the inputs `ports`. Raises `GraphError` for streams without keys or event
    time, for keys that are never equal, and in a loop; `TypeMismatch` for streams in columns, unless `columns` is true;
    `ScopeError` for streams of two loops."""
    inputs = check_sides(stream, other, verb, ports, columns)
    if stream.scope.level:
        raise GraphError(
            f"{verb}: {described_scope(stream)} a record that comes around may be older than all that was joined, and event "
            f"time does not wait for it; join in front of the loop, or behind it, where event time waits for all that is "
            f"still inside; or use connect(other) and a tr.CoProcessFunction"
        )
    for which, edges in zip(("first", "second"), inputs, strict=True):
        if not has_event_time(edges, stream.env._graph.nodes):
            raise GraphError(
                f"{verb}: a join is by event time, and the {which} stream has none; call assign_timestamps before key_by"
            )
    return (*inputs[ports[0]], *inputs[ports[1]])


def check_sides(
    stream: Any, other: Any, verb: str, ports: tuple[int, int] = (0, 1), columns: bool = False
) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
    """The edges of both streams into a join, on the inputs `ports`. Raises `GraphError` for streams without keys and for
    keys that are never equal, `TypeMismatch` for streams in columns, unless `columns` is true, and `ScopeError` for streams
    of two loops."""
    check_together(stream, other, verb)
    if getattr(other, "key", None) is None:
        raise GraphError(f"{verb}: the other stream has no key; call key_by(...) on it: a.key_by(x).join(b.key_by(y))")
    check_keys(stream.key, other.key, verb)
    for which, one in (("first", stream), ("second", other)):
        if one.form == "columns" and not columns:
            raise TypeMismatch(f"{verb}: the {which} stream is in columns; call to_rows() before key_by")
    return stream._edges(stream._partitioning, ports[0]), other._edges(other._partitioning, ports[1])


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
