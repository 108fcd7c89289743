"""Operators as frozen data. Each kind has a class here, and a runtime half in the task.

`fn` holds the user's function as given; the runtime unwraps rich functions. Times are int microseconds here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tailrace.elements.calendars import CalendarWindows
from tailrace.graph.scope import StreamScope

Selector = Callable[[Any], Any] | str | tuple[str, ...]
"""The way to find a key or a value in a record: a function, a column name, or several column names."""

AtEnd = Literal["wait", "drop"]
WhenAllIdle = Literal["wait", "advance"]
IfAhead = Literal["aside", "clamp", "fail"]
BatchFormat = Literal["arrow", "pandas", "polars"]
Priority = Literal["adaptive", "feedback-first"]
InOrder = bool | Literal["columns"]
"""True if a function is given the records and timers of a key in the order of their times; "columns" if records wait for
that as columns."""
How = Literal["inner", "left", "right", "full", "semi", "anti"]
"""Kinds of joins."""


@dataclass(frozen=True)
class Operator:
    """Base of all kinds of operators."""


@dataclass(frozen=True)
class Source(Operator):
    """A source of records: `source` is an `api.connectors.Source`."""

    source: Any


@dataclass(frozen=True)
class Map(Operator):
    """A function of one record that returns one record."""

    fn: Any


@dataclass(frozen=True)
class Filter(Operator):
    """A filter that keeps the records for which the function returns true."""

    fn: Any


@dataclass(frozen=True)
class FlatMap(Operator):
    """A function of one record that returns any number of records."""

    fn: Any


@dataclass(frozen=True)
class MapBatches(Operator):
    """A function of one batch that returns any number of batches."""

    fn: Any
    timestamps: str | None = None
    """The column that has the timestamps in batches that the function receives and returns; None: the runtime keeps them
    apart."""
    format: BatchFormat = "arrow"
    """The format of batches that the function takes and returns: record batches, or frames of a package."""


@dataclass(frozen=True, eq=False)
class Select(Operator):
    """Columns by name: each is a column of the input, or an expression of `pyarrow.compute`. The class has no `==`: the
    `==` of an expression makes another expression."""

    columns: tuple[tuple[str, Any], ...]
    keeps: bool
    """True if the columns of the input stay, before the new ones."""


@dataclass(frozen=True, eq=False)
class FilterColumns(Operator):
    """A filter that keeps the records for which a column or an expression is true. Null is not true."""

    condition: Any


@dataclass(frozen=True)
class ToRows(Operator):
    """Conversion of columns to rows with names."""


@dataclass(frozen=True)
class ToColumns(Operator):
    """Conversion of rows or columns to record batches of `schema` (a `pyarrow.Schema`)."""

    schema: Any


AHEAD = "ahead"
"""The side output of records whose timestamps are too far ahead of the clock."""


@dataclass(frozen=True)
class AssignTimestamps(Operator):
    """An assignment of timestamps and watermarks. Durations are int microseconds."""

    fn: Selector
    out_of_orderness: int
    idle_after: int | None
    when_all_idle: WhenAllIdle = "wait"
    most_ahead: int | None = None
    """Largest time by which a timestamp may be ahead of the clock; None: any."""
    if_ahead: IfAhead = "aside"
    max_drift: int | None = None
    """Largest time by which a split of the source may be ahead of the slowest one before it is not read on; None: any."""
    zone: str | None = None
    """The time zone of timestamps that have none; None: UTC."""
    marks: str | None = None
    """Column of booleans: the watermark follows the records in which it is true; None: it follows all."""

    @property
    def by_the_clock(self) -> bool:
        """True if results depend on the clock, or on which splits are read first."""
        return self.idle_after is not None or self.most_ahead is not None or self.max_drift is not None


@dataclass(frozen=True)
class Process(Operator):
    """A process function without keys."""

    fn: Any
    at_end: AtEnd


@dataclass(frozen=True)
class KeyedProcess(Operator):
    """A process function on a keyed stream, with state and timers."""

    fn: Any
    key: Selector
    at_end: AtEnd
    in_order: InOrder = False


@dataclass(frozen=True)
class CoProcess(Operator):
    """A function of two inputs. `keys` has None for an input that is not keyed."""

    fn: Any
    keys: tuple[Selector | None, Selector | None]
    at_end: AtEnd
    in_order: InOrder = False


Order = Literal["input", "any", "key"]
"""The order of results of asynchronous calls: that of the input, any up to the next watermark, or that of the input for
each key, whose calls are made one after the other."""


class LookedUp(NamedTuple):
    """The key that a lookup hands to its function, in place of the record, and its cache."""

    on: Selector | None
    """The way to find the key in a record; None: the record itself."""
    cache: tuple[int, float | None, bool] | None
    """The number of keys, the seconds for which an answer is used (None: for ever), and whether None is kept."""


@dataclass(frozen=True)
class MapAsync(Operator):
    """An asynchronous function of one record, or of several, that returns one result for each. Durations are int
    microseconds."""

    fn: Any
    key: Selector | None
    """The key of the stream; None: it has none."""
    capacity: int
    """Largest number of records of a subtask whose results have not gone on."""
    timeout: int | None
    """Time for all attempts of one call; None: no limit."""
    order: Order
    attempts: int = 1
    wait: int = 0
    """Time between two attempts."""
    batch: int | None = None
    """Largest number of records of one call; None: the function takes one record, and no list."""
    lookup: LookedUp | None = None
    """For a lookup, whose results are pairs of the record and the answer; None: the answer is the result."""
    every: int | None = None
    """For a function without arguments that reads a table, in a thread, while records are times: the time between two
    readings; None: the function is asynchronous."""


@dataclass(frozen=True)
class BroadcastProcess(Operator):
    """A function of a stream, with or without a key, and of a broadcast stream, whose records all subtasks process in one
    order."""

    fn: Any
    key: Selector | None
    """The key of the first input."""
    at_end: AtEnd
    in_order: InOrder = False


@dataclass(frozen=True)
class IntervalJoin(Operator):
    """A join of two keyed inputs: pairs of records of one key, where the time of the second minus that of the first is from
    `before` to `after` (int microseconds)."""

    keys: tuple[Selector, Selector]
    before: int
    after: int
    how: How
    suffixes: tuple[str, str] | None = None
    """For inputs in columns: what is put behind names of columns that both have. None: the inputs are in rows."""


@dataclass(frozen=True)
class WindowSpec:
    """Windows of `size` that start every `slide`, shifted by `offset` (int64 microseconds)."""

    size: int
    slide: int
    offset: int
    calendar: CalendarWindows | None = None
    """Windows of the calendar in place of those."""


@dataclass(frozen=True)
class SessionSpec:
    """Sessions with one gap (int64 microseconds), or with a gap for each record, which `gap_of` finds."""

    gap: int | None
    gap_of: Selector | None


@dataclass(frozen=True)
class WindowJoin(Operator):
    """A join of two keyed inputs in columns: pairs of records of one key that are in one window."""

    keys: tuple[Selector, Selector]
    windows: WindowSpec | SessionSpec
    how: How | Literal["group"]
    """The kind of the join; "group": all records of each key and window, as two lists."""
    suffixes: tuple[str, str]
    """What is put behind names of columns that both have."""


@dataclass(frozen=True)
class AsOfJoin(Operator):
    """A join of two keyed inputs in columns: records of the first with the newest one of their key of the second that is not
    later."""

    keys: tuple[Selector, Selector]
    how: How
    suffixes: tuple[str, str]
    """What is put behind names of columns that both have."""
    keep: int | None = None
    """How long a version counts (int microseconds); None: until the next one."""
    load_until: int | None = None
    """A time; records before it have the version as of it."""


@dataclass(frozen=True)
class Aggregate(Operator):
    """A running aggregate per key: `aggregates` maps result names to aggregate functions."""

    key: Selector
    aggregates: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Reduce(Operator):
    """A running reduce per key."""

    key: Selector
    fn: Any


@dataclass(frozen=True)
class Windowed(Operator):
    """Base of operators that keep each key for a span of time: all kinds of windows, and `drop_duplicates`. Each has a key
    and the side output `late`."""


Bounds = Literal["seconds", "datetime"]
"""Form of the start and the end of a window in its results."""


@dataclass(frozen=True)
class FiringInterval:
    """Interval between results of one window: so many new records (`records`), or so long after the first of them by the
    clock (`span`, int microseconds), whichever comes first; None: without that."""

    records: int | None
    span: int | None


@dataclass(frozen=True)
class Triggers:
    """Firings of windows beside the final one. None: no early ones; a late one for each record."""

    early: FiringInterval | None
    late: FiringInterval | None
    discarding: bool
    """True if a result has only what came since the one before it."""


FIRING_COLUMNS = ("firing", "number")
"""The columns of a result that say which firing of its window it is, where there are several."""


@dataclass(frozen=True)
class Window(Windowed):
    """An aggregate per key and event-time window. A reducing window has `reduce` instead of `aggregates`."""

    key: Selector
    size: int
    slide: int
    offset: int
    allowed_lateness: int
    aggregates: tuple[tuple[str, Any], ...]
    reduce: Any = None
    calendar: CalendarWindows | None = None
    """Windows of the calendar. Then `size` and `slide` are the longest size that one may have."""
    triggers: Triggers | None = None
    """Firings beside the final one; None: a late one for each record, and results do not say which firing they are."""
    bounds: str | None = None
    """The time zone of datetimes; None: bounds are seconds since 1970."""


@dataclass(frozen=True)
class SessionWindow(Windowed):
    """An aggregate per key and session: records between which there is no gap in event time."""

    key: Selector
    gap: int | None
    """The gap in int microseconds; None: each record has its own."""
    gap_of: Selector | None
    """The way to find the gap of a record."""
    aggregates: tuple[tuple[str, Any], ...]
    reduce: Any = None
    bounds: str | None = None
    """The time zone of datetimes; None: bounds are seconds since 1970."""


@dataclass(frozen=True)
class DropDuplicates(Windowed):
    """A filter that keeps the first record of each key in a span of time. It emits records as they came."""

    key: Selector
    within: int | None
    """The span in int microseconds before and behind a kept record; None: all time."""
    timed: bool
    """True for event time, False for the clock."""


def key_columns(key: Selector) -> tuple[str, ...]:
    """The names of the columns that a key has in a result."""
    return (key,) if isinstance(key, str) else key if isinstance(key, tuple) else ("key",)


KEYED = KeyedProcess | Aggregate | Reduce | Window | SessionWindow | DropDuplicates
"""Operators of one input that keep state by its key."""


JOINS = IntervalJoin | WindowJoin | AsOfJoin
"""Operators that join two keyed inputs by event time."""


TWO_INPUTS = CoProcess | BroadcastProcess | JOINS
"""Operators of two inputs."""


def has_late(operator: Operator) -> bool:
    """True if an operator sends late records to the side output "late"."""
    return isinstance(operator, Windowed | JOINS) or bool(getattr(operator, "in_order", False))


def key_at(operator: Operator, port: int) -> Selector | None:
    """The key by which an operator keeps state for the records of an input; None if it keeps no keyed state."""
    if isinstance(operator, CoProcess | JOINS):
        return operator.keys[port]
    if isinstance(operator, BroadcastProcess):
        return None if port else operator.key
    return operator.key if isinstance(operator, KEYED) else None


@dataclass(frozen=True)
class Rounds:
    """Synchronous rounds: at most `max` of them (None: as many as there is feedback for), and none after a round for whose
    results the user's test `until` returned true."""

    max: int | None
    until: Any = None
    span: int | None = None
    """The size of spans of event time of which each has rounds of its own (int64 microseconds); None: all of the input is
    one."""


@dataclass(frozen=True)
class Loop:
    """One loop. Its head, tail, entries and exits share this object. The scope is its identity."""

    scope: StreamScope
    name: str
    separate: bool = False
    """True if feedback leaves the head by the side output `FEEDBACK` (`iterate_with_feedback`), not among the input."""
    priority: Priority = "adaptive"
    combine_key: Selector | None = None
    combine_merge: Any = None
    """The user's function that merges two waiting feedback records of one key into one; None: feedback is not merged."""
    spill_bytes: int = 64 << 20
    """Maximum number of bytes of waiting feedback in the memory of a subtask."""
    spill_dir: str | None = None
    rounds: Rounds | None = None
    feedback_schema: Any = None
    """The schema of separate feedback in columns (a `pyarrow.Schema`); else None."""


FEEDBACK = "#feedback"
"""The side output by which feedback leaves a separate head."""
MARKERS = "#markers"
"""The side output of edges that carry only markers: no records are emitted to it."""


@dataclass(frozen=True)
class Head(Operator):
    """The beginning of a loop: its regular inputs come on port 0, and its tail hands over the feedback."""

    loop: Loop


@dataclass(frozen=True)
class Tail(Operator):
    """The end of a loop's feedback (port 0): each subtask hands it to the head's subtask in its worker. On port 1 are the
    markers of that head, so that a marker never comes to a tail before its own head has sent it."""

    loop: Loop


@dataclass(frozen=True)
class EnterLoop(Operator):
    """The entry of a stream from outside as one more regular input of a loop."""

    loop: Loop


@dataclass(frozen=True)
class LeaveLoop(Operator):
    """The exit of a stream from a loop. It holds the watermark back until no earlier record can come out any more."""

    loop: Loop


@dataclass(frozen=True)
class Judge(Operator):
    """The operator that receives all that a round of a loop produced, feedback on port 0 and output on port 1, and calls
    the user's `until`."""

    loop: Loop


@dataclass(frozen=True)
class Sink(Operator):
    """A sink of records: `sink` is an `api.connectors.Sink`."""

    sink: Any


# Partitionings: the ways of an edge's records to their subtask.


@dataclass(frozen=True)
class Partitioning:
    """Base of all partitionings."""

    def __str__(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Forward(Partitioning):
    """Partitioning from subtask i to subtask i."""


@dataclass(frozen=True)
class Hash(Partitioning):
    """Partitioning by the key group of the key."""

    key: Selector
    written: str = field(default="", compare=False, repr=False)
    """The line of the user's program that gives the key, for errors."""

    def __str__(self) -> str:
        return f"hash({describe_selector(self.key)})"


@dataclass(frozen=True)
class Rebalance(Partitioning):
    """Partitioning round robin over all subtasks, record by record."""


@dataclass(frozen=True)
class Shuffle(Partitioning):
    """Partitioning uniformly at random (seeded per subtask)."""


@dataclass(frozen=True)
class Rescale(Partitioning):
    """Partitioning round robin over a contiguous share of the subtasks."""


@dataclass(frozen=True)
class Broadcast(Partitioning):
    """Partitioning of every record to every subtask."""


@dataclass(frozen=True)
class Custom(Partitioning):
    """Partitioning to the subtask `fn(record)` modulo the number of subtasks."""

    fn: Any


def describe_selector(selector: Selector | None) -> str:
    """A selector as text for users: column names, or the function's name."""
    if selector is None:
        return "-"
    if isinstance(selector, str):
        return selector
    if isinstance(selector, tuple):
        return ", ".join(selector)
    name = getattr(selector, "__name__", type(selector).__name__)
    return "λ" if name == "<lambda>" else str(name)
