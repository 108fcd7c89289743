"""Checks of arguments, made while the user writes the dataflow. Each message names the operator and what to do."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.functions import (
    METHODS,
    AggregateFunction,
    BroadcastProcessFunction,
    CoProcessFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapBatchesFunction,
    ProcessFunction,
)
from tailrace.elements.callables import misfit_function
from tailrace.elements.durations import span_micros
from tailrace.elements.rows import alike_names
from tailrace.errors import ConfigError, GraphError, short_repr
from tailrace.graph.operators import AtEnd, BatchFormat, Selector
from tailrace.state.handles import states_of
from tailrace.state.operator_state import declared_operator_states

MAX_NAME = 200
"""Maximum number of characters in the name of a job."""


def check_job_name(name: Any) -> None:
    """Raises `ConfigError` unless `name` can be the name of a job: it is part of paths, messages and texts."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the name of a job must be a non-empty string, not {short_repr(name)}")
    if len(name) > MAX_NAME:
        what = f"has {len(name)} characters, more than {MAX_NAME}"
    elif name.strip() in ("", ".", ".."):
        what = "consists of blanks or dots"
    elif "Cs" in (kinds := {unicodedata.category(one) for one in name}):
        what = "is not valid Unicode: it contains half a surrogate pair (bytes decoded with the wrong encoding?)"
    elif kinds & {"Cc", "Zl", "Zp"}:
        what = "contains control characters or line breaks"
    elif "/" in name or "\\" in name:
        what = "contains a path separator, and the job's folder of checkpoints is named after it"
    else:
        return
    raise ConfigError(f"the name of the job, {short_repr(name, 80)}, {what}; choose another: execute(name)")


SEVERAL = (FlatMapFunction, MapBatchesFunction)
"""Classes of functions that return any number of records. A plain callable in their place may yield."""


def check_callable(
    fn: Any, arguments: int, verb: str, kind: type[Function] | None = None, *, several: bool = False
) -> None:
    """Raises `GraphError` unless `fn` can be called with this many positional arguments and returns one value. With
    `several`, or if `kind` is one of `SEVERAL`, it may yield any number of values instead."""
    if inspect.isclass(fn) and issubclass(fn, Function):
        raise GraphError(f"{verb}: pass an object, not the class: {fn.__name__}()")
    if isinstance(fn, Function):
        check_no_copies(fn, verb)
    if kind is not None and isinstance(fn, Function) and not isinstance(fn, kind):
        raise GraphError(f"{verb}: a {type(fn).__name__} is not a tr.{kind.__name__}; use the verb that takes it")
    if kind is not None and isinstance(fn, kind):
        ends = {"on_round_end": 1, "finish": 0} if kind is MapBatchesFunction else {}
        check_methods(fn, kind, {METHODS[kind]: arguments, **ends}, verb)
        return
    if isinstance(fn, Function):
        raise GraphError(f"{verb}: expected a function, got a {type(fn).__name__} object; use the verb that takes it")
    if not callable(fn):
        hint = f"; to take field {fn} of a tuple use lambda r: r[{fn}]" if isinstance(fn, int) else ""
        if isinstance(fn, pc.Expression):
            hint = "; give its values a name before, with_columns(x=...) on a stream in columns, and use that column"
        raise GraphError(f"{verb}: expected a function, got {type(fn).__name__} {fn!r}{hint}")
    _check_work(fn, arguments, verb, _name(fn), several or kind in SEVERAL)


def _check_work(work: Any, arguments: int, verb: str, name: str, several: bool) -> None:
    wrong = misfit_function(work, several=several)
    if wrong is not None:
        raise GraphError(f"{verb}: {name} {wrong}")
    try:
        signature = inspect.signature(work)
    except (TypeError, ValueError):
        return  # some built-in functions have no signature
    try:
        signature.bind(*([None] * arguments))
    except TypeError:
        raise GraphError(
            f"{verb}: {name}{signature} is called with {arguments} argument(s), which it does not accept; change its "
            f"parameters"
        ) from None


OPTIONAL = ("on_timer", "on_round_end", "finish", "process_many")
"""Methods that a subclass need not define."""
ENDS = {"on_round_end": 2, "finish": 1}
"""Methods of a process function that are called at the end of a round or of the input -> number of arguments."""
_LIFE = {"prepare": 0, "open": 1, "checkpoint_complete": 1, "close": 0}
"""Methods of all functions -> number of arguments."""
_YIELDS = frozenset({"flat_map", "map_batches", "process", "process1", "process2", "process_broadcast", *OPTIONAL})
"""Methods that return any number of records."""


def check_methods(fn: object, kind: type, methods: dict[str, int], verb: str) -> None:
    """Raises `GraphError` unless `fn` defines these methods, each with this number of arguments."""
    for name, arguments in methods.items():
        method = getattr(fn, name)
        if getattr(method, "__func__", None) is getattr(kind, name) and name not in OPTIONAL:
            raise GraphError(f"{verb}: {type(fn).__name__} has no method {name}; a tr.{kind.__name__} must define it")
        _check_work(method, arguments, verb, f"{type(fn).__name__}.{name}", name in _YIELDS)
    for name, arguments in _LIFE.items() if isinstance(fn, Function) else ():
        _check_work(getattr(fn, name), arguments, verb, f"{type(fn).__name__}.{name}", False)


def check_object(value: Any, kind: type, verb: str) -> None:
    """Raises `GraphError` unless `value` is an object of this public class."""
    if inspect.isclass(value) and issubclass(value, kind):
        raise GraphError(f"{verb}: pass an object, not the class: {value.__name__}(...)")
    if not isinstance(value, kind):
        raise GraphError(f"{verb}: expected a tr.{kind.__name__}, got {type(value).__name__}")


def check_listener(listener: Any, who: str) -> Any:
    """The listener. Raises `ConfigError` for an object without the methods of a `StreamingQueryListener`."""
    methods = ("onQueryStarted", "onQueryProgress", "onQueryTerminated")
    kind = listener if isinstance(listener, type) else type(listener)
    if kind is listener or not all(callable(getattr(listener, name, None)) for name in methods):
        got = f"the class {kind.__name__} itself" if kind is listener else kind.__name__
        raise ConfigError(f"{who}: expected a pyspark.sql.streaming.StreamingQueryListener, got {got}")
    return listener


def check_aggregate(aggregate: Any, verb: str) -> None:
    """Raises `GraphError` unless `aggregate` is an `AggregateFunction` with all of its methods."""
    check_object(aggregate, AggregateFunction, verb)
    check_methods(aggregate, AggregateFunction, {"create_accumulator": 0, "add": 2, "get_result": 1}, verb)


def check_co_process(fn: Any, verb: str) -> None:
    """Raises `GraphError` unless `fn` is a `CoProcessFunction` with both of its methods."""
    check_object(fn, CoProcessFunction, verb)
    check_no_copies(fn, verb)
    check_methods(fn, CoProcessFunction, {"process1": 2, "process2": 2, "on_timer": 2, **ENDS}, verb)


def check_keyed(fn: CoProcessFunction, keyed: bool, verb: str) -> None:
    """Raises `GraphError` if a function of connected streams needs keys, and not both streams have one."""
    timed = type(fn).on_timer is not CoProcessFunction.on_timer
    if not keyed and (states_of(fn) or timed):
        raise GraphError(
            f"{verb}: {type(fn).__name__} uses keyed state or timers, and not both streams have a key; call key_by on "
            f"both"
        )


def check_no_copies(fn: Any, verb: str) -> None:
    """Raises `GraphError` for a function with a broadcast state that is no `BroadcastProcessFunction`."""
    copied = [name for name, state in declared_operator_states(fn).items() if state.copied]
    if copied:
        raise GraphError(
            f"{verb}: {type(fn).__name__} declares the broadcast state {copied[0]!r}, and no record of it comes to every "
            f"subtask; use stream.connect(other.broadcast()).process(...) with a tr.BroadcastProcessFunction, or declare a "
            f"tr.OperatorState"
        )


def check_names(names: tuple[str, ...], verb: str, example: str = "aggregate(other=...)") -> None:
    """Raises `GraphError` if two columns of a result would have one name."""
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"{verb}: the result would have two columns {name!r}; give one another name: {example}")


def check_declared(schema: pa.Schema, verb: str) -> pa.Schema:
    """The schema, checked. Raises `GraphError` if two columns in it, or two fields of a struct, have one name."""
    for path, names in [("", schema.names), *((path, names) for field in schema for path, names in _structs(field))]:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            what = f"in column {path!r} two fields" if path else "two columns"
            raise GraphError(f"{verb}: the schema has {what} {twice!r}; give one another name")
    return schema


def _structs(field: pa.Field) -> Iterator[tuple[str, list[str]]]:
    """The path of each struct in a column, and the names of its fields."""
    inner = [field.type.field(i) for i in range(field.type.num_fields)]
    if pa.types.is_struct(field.type):
        yield field.name, [one.name for one in inner]
    for one in inner:
        for path, names in _structs(one):
            yield f"{field.name}.{path}", names


def check_attributes(names: tuple[str, ...], verb: str) -> None:
    """Raises `GraphError` if columns of rows have different names that Python reads as one."""
    alike = alike_names(names)
    if alike is not None:
        raise GraphError(
            f"{verb}: the columns {alike[0]!r} ({alike[0]!a}) and {alike[1]!r} ({alike[1]!a}) are one name to "
            f"Python, so row.{alike[1]} may be either; rename one of them, or stay in columns (form='columns')"
        )


def check_process(fn: Any, verb: str, keyed: bool) -> None:
    """Raises `GraphError` for a process function that does not fit the stream."""
    if isinstance(fn, CoProcessFunction):
        raise GraphError(f"{verb}: a {type(fn).__name__} takes two inputs; use a.connect(b).process(...)")
    if isinstance(fn, BroadcastProcessFunction):
        raise GraphError(f"{verb}: a {type(fn).__name__} takes two inputs; use a.connect(b.broadcast()).process(...)")
    check_no_copies(fn, verb)
    if isinstance(fn, ProcessFunction):
        if not keyed and (isinstance(fn, KeyedProcessFunction) or states_of(fn)):
            raise GraphError(
                f"{verb}: {type(fn).__name__} uses keyed state or timers, and the stream has no key; call key_by first"
            )
        check_methods(fn, ProcessFunction, {"process": 2, **ENDS}, verb)
        if isinstance(fn, KeyedProcessFunction):
            check_methods(fn, KeyedProcessFunction, {"on_timer": 2, "process_many": 2}, verb)
        return
    check_callable(fn, 2, verb, several=True)


def check_selector(selector: Any, columns: tuple[str, ...] | None, verb: str) -> Selector:
    """A key or field selector as the graph holds it: a function, a column name, or a tuple of names. Raises `GraphError`
    for an unknown column, and for anything else."""
    if isinstance(selector, Function):
        raise GraphError(f"{verb}: expected a function or column names, got a {type(selector).__name__} object")
    if isinstance(selector, list):
        selector = tuple(selector)
    if isinstance(selector, str):
        _check_column(selector, columns, verb)
    elif isinstance(selector, tuple):
        if not selector or not all(isinstance(name, str) for name in selector):
            raise GraphError(f"{verb}: a tuple of columns must hold column names only, not {selector!r}")
        for name in selector:
            _check_column(name, columns, verb)
    else:
        check_callable(selector, 1, verb)
    return selector  # type: ignore[no-any-return]


def _check_column(name: str, columns: tuple[str, ...] | None, verb: str) -> None:
    if columns is not None and name not in columns:
        raise GraphError(f"{verb}: there is no column {name!r}; the stream has {', '.join(columns)}")


def check_name(value: Any, verb: str, what: str) -> str:
    """A name or tag, checked. Raises `GraphError` unless it is a text of at least one character."""
    if not isinstance(value, str) or not value:
        raise GraphError(f"{verb}: {what} must be a non-empty string, not {value!r}")
    return value


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def named_aggregates(
    one: Any, named: dict[str, Any], options: dict[str, Any], default: str | None = None
) -> tuple[tuple[str, AggregateFunction], ...]:
    """The aggregates by name, from one positional argument or several named ones. Raises `GraphError` for both, none, or
    what is no aggregate."""
    verb = title_of("aggregate", options)
    if (one is None) == (not named):
        raise GraphError(
            f"{verb}: give one aggregate function, or several by name: count=tr.Count(), total=tr.Sum('x')"
        )
    pairs = tuple(named.items()) if one is None else ((default or type(one).__name__.lower(), one),)
    for name, aggregate in pairs:
        check_aggregate(aggregate, f"{verb}: {name}" if one is None else verb)
    return pairs


def title_of(verb: str, options: dict[str, Any]) -> str:
    """The name of an operator in errors: the verb, with the operator's name if the user gave one."""
    name = options.get("name")
    return f"{verb} {name!r}" if isinstance(name, str) and name else verb


def check_merge(aggregate: AggregateFunction, verb: str) -> None:
    """Raises `GraphError` for an aggregate that does not define `merge`, which sessions need."""
    if type(aggregate).merge is AggregateFunction.merge:
        raise GraphError(
            f"{verb}: sessions that a record joins become one, and {type(aggregate).__name__} does not say how their "
            f"accumulators do; define merge(a, b)"
        )


def check_sessions(gap_of: Selector | None, lateness: int, level: int, columns: tuple[str, ...] | None) -> None:
    """Raises `GraphError` where sessions have no right result: in a loop, and where they would go on after their result."""
    if gap_of is not None:
        check_selector(gap_of, columns, "window: the gap of tr.Session")
    if level:
        raise GraphError(
            "window: no session is ever over in a loop, because feedback may come at any time; use tr.Session in front of "
            "the loop or behind it"
        )
    if lateness:
        raise GraphError(
            "window: allowed_lateness does not go with tr.Session: a late record may join sessions whose results are out; "
            "give assign_timestamps a larger out_of_orderness, so that sessions wait for such records"
        )


def check_counted(partial_at_end: bool, lateness: int, level: int) -> None:
    """Raises `GraphError` where windows that do not depend on time have no right result."""
    if level and partial_at_end:
        raise GraphError(
            "window: in a loop the end of the input is not the end of the records, so no window is over there; "
            "use tr.CountWindow(..., partial_at_end=False), or windows behind the loop"
        )
    if lateness:
        raise GraphError(
            "window: allowed_lateness is for windows of event time; a window of so many records has none late"
        )


def check_zone(zone: Any, verb: str) -> str:
    """The name of a time zone, checked. Raises `GraphError` for what is none."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise GraphError(f"{verb}: there is no time zone {zone!r}; give a name such as 'Europe/Berlin'") from error
    return zone  # type: ignore[no-any-return]


def check_time_column(name: Any, verb: str) -> str | None:
    """The name of a column of timestamps, checked; None if none is given."""
    return None if name is None else check_name(name, verb, "timestamps")


def check_format(value: Any, verb: str) -> BatchFormat:
    """The format of batches for a function, checked. Raises `GraphError` for an unknown one, and if its package is not
    installed."""
    if value not in ("arrow", "pandas", "polars"):
        raise GraphError(f"{verb}: format must be 'arrow', 'pandas' or 'polars', not {value!r}")
    if value != "arrow" and find_spec(value) is None:
        raise GraphError(
            f"{verb}: format={value!r} needs the package {value}, which is not installed here; install it, here and on "
            f"the executors: pip install {value}"
        )
    return value  # type: ignore[no-any-return]


def check_at_end(value: Any) -> AtEnd:
    """The option for timers at the end of input, checked: "wait" or "drop". Raises `GraphError`."""
    if value not in ("wait", "drop"):
        raise GraphError(f"process: at_end must be 'wait' or 'drop', not {value!r}")
    return value  # type: ignore[no-any-return]


def check_span(value: Any, verb: str) -> int:
    """A span of time in microseconds. Raises `GraphError` for what is no span, or a negative one."""
    try:
        span = span_micros(value)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"{verb}: {error}") from None
    if span < 0:
        raise GraphError(f"{verb}: a duration must not be negative, as {value!r} is")
    return span
