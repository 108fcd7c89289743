"""Operators as frozen data. One class per kind; the task has a runtime half for each.

User functions are held as given (`fn`); the runtime unwraps rich functions. Times are int microseconds here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tailrace.graph.scope import StreamScope

Selector = Callable[[Any], Any] | str | tuple[str, ...]
"""How a key or a value is found in a record: a function, a column name, or several column names."""

AtEnd = Literal["wait", "drop"]
BatchFormat = Literal["arrow", "pandas", "polars"]
Priority = Literal["adaptive", "feedback-first"]


@dataclass(frozen=True)
class Operator:
    """The root of all operator kinds."""


@dataclass(frozen=True)
class Source(Operator):
    source: Any


@dataclass(frozen=True)
class Map(Operator):
    fn: Any


@dataclass(frozen=True)
class Filter(Operator):
    fn: Any


@dataclass(frozen=True)
class FlatMap(Operator):
    fn: Any


@dataclass(frozen=True)
class MapBatches(Operator):
    fn: Any
    timestamps: str | None = None
    """The column in which batches have their timestamps while they are the function's; None where they have them aside."""
    format: BatchFormat = "arrow"
    """What the function takes and gives: record batches, or frames of a package."""


@dataclass(frozen=True, eq=False)
class Select(Operator):
    """Columns by name: each is a column of the input, or an expression of `pyarrow.compute` (whose `==` is another one)."""

    columns: tuple[tuple[str, Any], ...]
    keeps: bool
    """Whether the columns of the input stay, before those that are new."""


@dataclass(frozen=True, eq=False)
class FilterColumns(Operator):
    """Keeps the records for which a column, or an expression, is true: null is not."""

    condition: Any


@dataclass(frozen=True)
class ToRows(Operator):
    """Columns to rows with names."""


@dataclass(frozen=True)
class ToColumns(Operator):
    """Rows to record batches of `schema` (a `pyarrow.Schema`)."""

    schema: Any


@dataclass(frozen=True)
class AssignTimestamps(Operator):
    fn: Selector
    out_of_orderness: int
    idle_after: int | None


@dataclass(frozen=True)
class Process(Operator):
    fn: Any
    at_end: AtEnd


@dataclass(frozen=True)
class KeyedProcess(Operator):
    fn: Any
    key: Selector
    at_end: AtEnd


@dataclass(frozen=True)
class CoProcess(Operator):
    """Two inputs; keys are None where that input is not keyed."""

    fn: Any
    keys: tuple[Selector | None, Selector | None]
    at_end: AtEnd


@dataclass(frozen=True)
class Aggregate(Operator):
    """A running aggregate per key: `aggregates` maps result names to aggregate functions."""

    key: Selector
    aggregates: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Reduce(Operator):
    key: Selector
    fn: Any


@dataclass(frozen=True)
class Window(Operator):
    """An aggregate per key and event-time window; `reduce` instead of `aggregates` for a reducing window."""

    key: Selector
    size: int
    slide: int
    offset: int
    allowed_lateness: int
    aggregates: tuple[tuple[str, Any], ...]
    reduce: Any = None


def key_columns(key: Selector) -> tuple[str, ...]:
    """The names of the columns that a key has in a result."""
    return (key,) if isinstance(key, str) else key if isinstance(key, tuple) else ("key",)


def key_at(operator: Operator, port: int) -> Selector | None:
    """The key by which an operator keeps state of what comes in on a port; None where it keeps none by key."""
    if isinstance(operator, CoProcess):
        return operator.keys[port]
    return operator.key if isinstance(operator, KeyedProcess | Aggregate | Reduce | Window) else None


@dataclass(frozen=True)
class Rounds:
    """Synchronous rounds: at most `max` of them (None: as many as there is feedback for), and no more once `until`, a
    user's test over what a round produced, says so."""

    max: int | None
    until: Any = None


@dataclass(frozen=True)
class Loop:
    """One loop. Its head, tail, entries and exits share it; the scope is its identity."""

    scope: StreamScope
    name: str
    separate: bool = False
    """Whether feedback leaves the head by the side output `FEEDBACK` (`iterate_with_feedback`), not among the input."""
    priority: Priority = "adaptive"
    combine_key: Selector | None = None
    combine_merge: Any = None
    """Merges two waiting feedback records of one key into one; None where nothing is merged."""
    spill_bytes: int = 64 << 20
    """Bytes of waiting feedback that stay in memory."""
    spill_dir: str | None = None
    rounds: Rounds | None = None
    feedback_schema: Any = None
    """Where it is separate and its feedback in columns: their schema (a `pyarrow.Schema`)."""


FEEDBACK = "#feedback"
"""The side output of a separate head that its feedback leaves by."""
MARKERS = "#markers"
"""A side output that nothing is emitted to: an edge that carries markers only."""


@dataclass(frozen=True)
class Head(Operator):
    """Where a loop begins: its regular inputs on port 0, and what its tail hands over."""

    loop: Loop


@dataclass(frozen=True)
class Tail(Operator):
    """Where a loop's feedback ends (port 0): each subtask hands it to the head's subtask in the same worker. On port 1 are
    the markers of that head, so that a marker never comes to a tail before its own head has sent it."""

    loop: Loop


@dataclass(frozen=True)
class EnterLoop(Operator):
    """A stream from outside as one more regular input of a loop."""

    loop: Loop


@dataclass(frozen=True)
class LeaveLoop(Operator):
    """Where a stream leaves a loop: holds the watermark back until no earlier record can come out any more."""

    loop: Loop


@dataclass(frozen=True)
class Judge(Operator):
    """Sees all that a round of a loop produced, feedback on port 0 and output on port 1, and asks the user's `until`."""

    loop: Loop


@dataclass(frozen=True)
class Sink(Operator):
    sink: Any


# How records of an edge find their subtask.


@dataclass(frozen=True)
class Partitioning:
    """The root of all partitionings."""

    def __str__(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Forward(Partitioning):
    """Subtask i to subtask i."""


@dataclass(frozen=True)
class Hash(Partitioning):
    """By key group of the key."""

    key: Selector
    written: str = field(default="", compare=False, repr=False)
    """The line of the user's program that says the key, for errors."""

    def __str__(self) -> str:
        return f"hash({describe_selector(self.key)})"


@dataclass(frozen=True)
class Rebalance(Partitioning):
    """Round robin over all subtasks, record by record."""


@dataclass(frozen=True)
class Shuffle(Partitioning):
    """Uniformly at random (seeded per subtask)."""


@dataclass(frozen=True)
class Rescale(Partitioning):
    """Round robin over a contiguous share of the subtasks."""


@dataclass(frozen=True)
class Broadcast(Partitioning):
    """Every record to every subtask."""


@dataclass(frozen=True)
class Custom(Partitioning):
    """`fn(record)` modulo the number of subtasks."""

    fn: Any


def describe_selector(selector: Selector | None) -> str:
    """A selector for people: column names, or the function's name."""
    if selector is None:
        return "-"
    if isinstance(selector, str):
        return selector
    if isinstance(selector, tuple):
        return ", ".join(selector)
    name = getattr(selector, "__name__", type(selector).__name__)
    return "λ" if name == "<lambda>" else str(name)
