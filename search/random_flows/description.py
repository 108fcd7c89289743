"""The description of a random flow: small frozen data that determines all of it, and that can be printed, compared and cut
down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

LEVELS = 3
"""Largest depth of nested loops."""

Kind = Literal[
    "map",
    "twin",
    "count",
    "bags",
    "reducing",
    "running",
    "running in columns",
    "batches",
    "join",
    "owner",
    "hoard",
    "later",
    "held",
    "last call",
    "at the end",
    "times",
    "tumbling",
    "sliding",
    "windows of columns",
    "to the round's end",
    "more",
    "extra",
    "sets",
    "sets in flight",
    "ties",
    "drawn",
    "readings",
    "interval join",
    "interval join of columns",
    "window join",
    "window join of columns",
    "version join",
    "version join of columns",
    "session join of columns",
    "lists of columns",
    "in order",
    "both in order",
    "failing",
    "sessions",
    "sessions of columns",
    "counted",
    "distinct",
    "distinct in columns",
    "distinct within",
    "best",
    "batched",
    "last of each",
    "lagged",
    "limited",
    "fired",
    "fired of columns",
    "called",
    "ruled",
    "ruled in order",
    "lived",
    "looked up",
    "together",
    "whole",
    "changes joined",
]
Way = Literal["forward", "rebalance", "shuffle", "rescale", "partition_by"]
WAYS: tuple[Way, ...] = ("forward", "rebalance", "shuffle", "rescale", "partition_by")


@dataclass(frozen=True)
class Events:
    """A source, and the times at which it gives its records: number i is in split i modulo the number of splits."""

    n: int
    distinct: int
    """Number of different ids: record i has the id i modulo this, so some records are alike."""
    first: int = 0
    """The id of record 0."""
    splits: int = 1
    pace: int = 0
    """Microseconds of the clock between two records."""
    silence: int = 0
    """Microseconds between the two halves of the records, in addition."""
    disorder: int = 0
    """Largest disorder of timestamps, in seconds."""
    timed: bool = True
    """True where its records have timestamps. An untimed endless source would hold all event time back."""
    endless: bool = False
    """True where it never ends. Then each split gives, behind all others, a record that brings event time on."""
    parallelism: int | None = None
    falls_silent: bool = False
    """True where a split counts as silent once it has had nothing for longer than it ever has between two records."""
    goes_on: bool = False
    """True where event time goes on by the clock while all its splits are silent."""
    drift: int | None = None
    """Largest time, in seconds, by which one of its splits is read ahead of another."""
    ahead: bool = False
    """True where some of its records have timestamps far ahead of the clock, and go aside."""
    stamped_inside: bool = False
    """True where its records receive their timestamps only where they enter, maybe in a loop."""
    pauses: int = 0
    """Number of times in a row that its readers have nothing before they have something."""
    found: Literal["finding", "anew"] | None = None
    """Way in which splits become known: one by one through an enumerator, in another order each time they are listed, or
    (None) listed once in one order."""
    shared: bool = False
    """True where one reader in each subtask reads all of its splits."""


@dataclass(frozen=True)
class Do:
    """One operator. The interpreter describes what each kind does."""

    kind: Kind
    number: int
    """Number from which its uid follows."""
    way: Way = "forward"
    """Way in which records come to it, where they do not come by key."""
    parallelism: int | None = None
    events: Events | None = None
    """The records that come in by it, in "more"."""
    phases: tuple[int, ...] = ()
    """Phases in which an "extra" or a "more" is there; for a "more", none means all."""
    inside: tuple[Step, ...] = ()
    """Steps that these records go through by themselves, before they join the others."""


@dataclass(frozen=True)
class Fork:
    """Two branches that part by id and meet again."""

    number: int
    left: tuple[Step, ...]
    right: tuple[Step, ...]


@dataclass(frozen=True)
class Loop:
    """A loop. Each record goes around as often as its digit for this level."""

    number: int
    level: int
    body: tuple[Step, ...]
    laps: int = 1
    """The largest digit."""
    feedback: Literal[
        "plain", "two", "rebalance", "partition_by", "shuffle", "rescale", "columns", "broadcast", "mixed"
    ] = "plain"
    """Way in which feedback comes back; "mixed": some by a function, some in turn."""
    separate: bool = False
    """True where input and feedback come by themselves."""
    combine: bool = False
    astray: bool = False
    """True where merged records receive another key, which is refused."""
    spill: int | None = None
    priority: Literal["adaptive", "feedback-first"] = "adaptive"
    parallelism: int | None = None
    rounds: Literal["until dry", "at most", "until"] | None = None
    limit: int = 2
    """Largest number of rounds, where they are limited."""
    span: int | None = None
    """Seconds of event time whose records have their rounds for themselves; None: all together."""


Step = Do | Fork | Loop


@dataclass(frozen=True)
class Flow:
    """A whole dataflow."""

    source: Events
    table: Events
    """Second input of joins: a value for each of its ids."""
    steps: tuple[Step, ...]
    sink: int | None = None
    """The parallelism of the sink."""

    @property
    def endless(self) -> bool:
        """True where some input has no end."""
        return any(events.endless for events in self.sources())

    def endless_in(self, phase: int) -> bool:
        """True where an input that is there in a phase has no end."""
        later = [step.events for step in self.operators() if step.phases and phase not in step.phases]
        return any(events.endless for events in self.sources() if events not in later)

    def sources(self) -> Iterator[Events]:
        """All inputs."""
        yield self.source
        if any(step.kind == "join" for step in self.operators()):
            yield self.table
        yield from (step.events for step in self.operators() if step.events is not None)

    def all(self) -> Iterator[Step]:
        """Every step, the outer ones first."""
        yield from _all(self.steps)

    def operators(self) -> Iterator[Do]:
        """Every operator."""
        yield from (step for step in self.all() if isinstance(step, Do))

    def loops(self) -> Iterator[Loop]:
        """Every loop, the outer ones first."""
        yield from (step for step in self.all() if isinstance(step, Loop))

    @property
    def astray(self) -> bool:
        """True where it may be refused for the records that its merges return."""
        return any(loop.astray for loop in self.loops())

    @property
    def uniform(self) -> bool:
        """True where everything has the parallelism of the environment, so that reports of an operator come in order."""
        widths = [*(events.parallelism for events in self.sources()), self.sink]
        widths += [step.parallelism for step in self.all() if isinstance(step, Do | Loop)]
        return not any(widths)

    @property
    def size(self) -> int:
        """Approximate number of records that operators receive."""
        return sum(events.n for events in self.sources()) * (1 + _visits(self.steps))


def _all(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _all(_inside(step))


def _inside(step: Step) -> tuple[Step, ...]:
    if isinstance(step, Loop):
        return step.body
    return step.left + step.right if isinstance(step, Fork) else step.inside


def _visits(steps: tuple[Step, ...]) -> int:
    found = 0
    for step in steps:
        inside = _inside(step)
        found += (2 + _visits(inside)) * (step.laps + 1 if isinstance(step, Loop) else 1)
    return found


def change_steps(steps: tuple[Step, ...], change: Callable[[Step], tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps with `change` made to each, the inner ones first: it returns nothing, the step, or several steps in its
    place."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Loop):
            step = replace(step, body=change_steps(step.body, change))
        elif isinstance(step, Fork):
            step = replace(step, left=change_steps(step.left, change), right=change_steps(step.right, change))
        elif step.inside:
            step = replace(step, inside=change_steps(step.inside, change))
        found += change(step)
    return tuple(found)


def text_of(value: Any, indent: str = "") -> str:
    """The text of a description, from which Python makes it again; fields with default values are left out."""
    if isinstance(value, tuple) and any(is_dataclass(one) for one in value):
        inner = "".join(f"\n{indent}    {text_of(one, indent + '    ')}," for one in value)
        return f"({inner}\n{indent})"
    if not is_dataclass(value):
        return repr(value)
    parts = []
    for field in fields(value):
        found = getattr(value, field.name)
        if found != field.default:
            parts.append(f"{field.name}={text_of(found, indent + '    ')}")
    line = f"{type(value).__name__}({', '.join(parts)})"
    if len(line) <= 100 and "\n" not in line:
        return line
    return f"{type(value).__name__}(" + "".join(f"\n{indent}    {one}," for one in parts) + f"\n{indent})"
