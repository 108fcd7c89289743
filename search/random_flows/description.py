"""What a random flow is: small frozen data that says everything of it, and that can be printed, compared and cut down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

LEVELS = 3
"""How deep loops may be in loops."""

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
]
Way = Literal["forward", "rebalance", "shuffle", "rescale", "partition_by"]
WAYS: tuple[Way, ...] = ("forward", "rebalance", "shuffle", "rescale", "partition_by")


@dataclass(frozen=True)
class Events:
    """A source, and the times at which it has what it gives: number i in split i modulo the splits."""

    n: int
    distinct: int
    """Record i has the id i modulo this: some of them are alike."""
    first: int = 0
    """The id of record 0."""
    splits: int = 1
    pace: int = 0
    """Microseconds of the clock between two records."""
    silence: int = 0
    """And so many between the two halves of them."""
    disorder: int = 0
    """By how many seconds timestamps are out of order, at most."""
    timed: bool = True
    """Whether its records have timestamps. One that is not timed and endless would hold all event time back."""
    endless: bool = False
    """Whether it never ends. Then each split gives, behind all others, a record that brings event time on."""
    parallelism: int | None = None
    falls_silent: bool = False
    """Whether its splits count as silent once they have had nothing for longer than they ever have between two records."""
    stamped_inside: bool = False
    """Whether what comes in by it gets its timestamps only there, perhaps in a loop."""
    pauses: int = 0
    """How often in a row its readers have nothing before they have something."""
    found: Literal["finding", "anew"] | None = None
    """How splits come to be known, where they are not listed as ever: one by one by an enumerator, or in another order each
    time they are listed."""


@dataclass(frozen=True)
class Do:
    """One operator. What each kind does is said where it is interpreted."""

    kind: Kind
    number: int
    """Its uid follows from it, whatever else changes."""
    way: Way = "forward"
    """How records come to it, where they do not come by key."""
    parallelism: int | None = None
    events: Events | None = None
    """What comes in by it, in "more"."""
    phases: tuple[int, ...] = ()
    """In which phases an "extra" is there, or a "more"; of that none said means all."""
    inside: tuple[Step, ...] = ()
    """What is done with that by itself, before it joins the others."""


@dataclass(frozen=True)
class Fork:
    """Two ways that part by id and meet again."""

    number: int
    left: tuple[Step, ...]
    right: tuple[Step, ...]


@dataclass(frozen=True)
class Loop:
    """A loop. Each record goes around as often as its digit for this level says."""

    number: int
    level: int
    body: tuple[Step, ...]
    laps: int = 1
    """The largest digit."""
    feedback: Literal[
        "plain", "two", "rebalance", "partition_by", "shuffle", "rescale", "columns", "broadcast", "mixed"
    ] = "plain"
    """How it comes back; "mixed": some by a function, some in turn."""
    separate: bool = False
    """Whether input and feedback come by themselves."""
    combine: bool = False
    astray: bool = False
    """Whether what is merged gets another key, which is refused."""
    spill: int | None = None
    priority: Literal["adaptive", "feedback-first"] = "adaptive"
    parallelism: int | None = None
    rounds: Literal["until dry", "at most", "until"] | None = None
    limit: int = 2
    """How many rounds there are at most, where that is said."""


Step = Do | Fork | Loop


@dataclass(frozen=True)
class Flow:
    """A whole dataflow."""

    source: Events
    table: Events
    """What is joined with: a value for each of its ids."""
    steps: tuple[Step, ...]
    sink: int | None = None
    """The parallelism of the sink."""

    @property
    def endless(self) -> bool:
        """Whether some input has no end."""
        return any(events.endless for events in self.sources())

    def endless_in(self, phase: int) -> bool:
        """The same of those that are there in a phase."""
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
        """Whether it may be refused for what its merges return."""
        return any(loop.astray for loop in self.loops())

    @property
    def uniform(self) -> bool:
        """Whether everything has the parallelism of the environment, so that what an operator says comes in order."""
        widths = [*(events.parallelism for events in self.sources()), self.sink]
        widths += [step.parallelism for step in self.all() if isinstance(step, Do | Loop)]
        return not any(widths)

    @property
    def size(self) -> int:
        """How often an operator gets a record, about."""
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


def changed(steps: tuple[Step, ...], change: Callable[[Step], tuple[Step, ...]]) -> tuple[Step, ...]:
    """These steps with `change` made to each, the inner ones first: nothing, itself, or several in its place."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Loop):
            step = replace(step, body=changed(step.body, change))
        elif isinstance(step, Fork):
            step = replace(step, left=changed(step.left, change), right=changed(step.right, change))
        elif step.inside:
            step = replace(step, inside=changed(step.inside, change))
        found += change(step)
    return tuple(found)


def told(value: Any, indent: str = "") -> str:
    """The text of a description, from which Python makes it again; what is as ever is left out."""
    if isinstance(value, tuple) and any(is_dataclass(one) for one in value):
        inner = "".join(f"\n{indent}    {told(one, indent + '    ')}," for one in value)
        return f"({inner}\n{indent})"
    if not is_dataclass(value):
        return repr(value)
    said = []
    for field in fields(value):
        found = getattr(value, field.name)
        if found != field.default:
            said.append(f"{field.name}={told(found, indent + '    ')}")
    line = f"{type(value).__name__}({', '.join(said)})"
    if len(line) <= 100 and "\n" not in line:
        return line
    return f"{type(value).__name__}(" + "".join(f"\n{indent}    {one}," for one in said) + f"\n{indent})"
