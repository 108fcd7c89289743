"""The options of a loop, and the figures of its rounds: each subtask adds up its own part, so that no subtask must hold a
round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tailrace.api.checks.arguments import check_aggregate, check_callable, check_span
from tailrace.api.functions import AggregateFunction, Context, Function, ProcessFunction, Span, Wrapper
from tailrace.api.windows.functions import Field
from tailrace.api.windows.windows import LARGEST
from tailrace.errors import ConfigError, GraphError
from tailrace.graph.operators import Selector
from tailrace.spelling import with_hints
from tailrace.state.operator_state import OperatorState

T = TypeVar("T")


@with_hints
@dataclass(frozen=True)
class Rounds:
    """The option of a loop to run in rounds: the feedback of one round is the input of the next one, and a round begins
    when the previous one is over in all subtasks. Round 0 is the input. `max` is the maximum number of rounds; None: the
    loop runs until nothing is fed back.

    `until(result)` is called at the end of each round. `result` is a list of all records that were fed back in the round.
    `result.round` is the number of the round, and `result.output` a list of all records that the loop emitted in it.
    Records in columns are rows there. If `until` returns true, no other round begins. The feedback of the last round is
    dropped.

    One subtask then holds all records of a round. With `feedback` or `output`, aggregates such as `tr.Count()` or an
    `AggregateFunction` with `merge`, each subtask adds up its own part instead, and `result` is a `tr.RoundFigures`:
    `round`, and the results `feedback` and `output`, of which one without an aggregate is None.

    With `span` (seconds, a `timedelta` or a text such as `"1 hour"`) each span of event time has rounds of its own, which
    begin when event time has passed its end: round 0 is the input of that span, and the functions of the loop begin without
    state. Spans follow each other, and begin at multiples of `span` since 1970 in UTC. All records inside have the time of
    the last microsecond of their span, and event time behind the loop goes on when a span is over. The input may be
    unbounded.

    Raises `ConfigError` for a wrong setting.
    """

    max: int | None = None
    until: Callable[[Any], Any] | None = None
    feedback: AggregateFunction | None = None
    output: AggregateFunction | None = None
    span: Span | None = None

    @property
    def by_figures(self) -> bool:
        """True if `until` is called with aggregates of a round, not with its records."""
        return self.feedback is not None or self.output is not None

    @property
    def judged_by(self) -> Any:
        """The function that decides on the records, or the parts of aggregates, that come together in one place."""
        return UntilFigures(self.until, self.feedback, self.output) if self.until and self.by_figures else self.until

    @property
    def span_micros(self) -> int | None:
        """The size of a span in microseconds; None without spans."""
        return None if self.span is None else check_span(self.span, "Rounds: span")

    def __post_init__(self) -> None:
        size = _check_setting(lambda: self.span_micros)
        if size is not None and not 0 < size <= LARGEST:
            raise ConfigError(f"Rounds: span must be above zero and not larger than timestamps are, not {self.span!r}")
        if self.max is not None and (not isinstance(self.max, int) or isinstance(self.max, bool) or self.max < 1):
            raise ConfigError(f"Rounds: max must be a whole number of at least 1 or None, not {self.max!r}")
        if self.until is not None:
            _callable(self.until, 1, "Rounds: until")
        for name, aggregate in (("feedback", self.feedback), ("output", self.output)):
            if aggregate is None:
                continue
            if self.until is None:
                raise ConfigError(f"Rounds: {name} is an aggregate for until; give until=, or leave it out")
            _check_setting(partial(_check_mergeable, aggregate, f"Rounds: {name}"))


@with_hints
@dataclass(frozen=True)
class Combine:
    """The option of a loop to merge waiting feedback: two records with equal `key` (a function, a column or several)
    become one, `merge(waiting, new)`. The merged record must have the effect of both. If the loop begins with a `key_by`,
    it must have the key of one of them.

    Raises `ConfigError` for a wrong setting."""

    key: Selector
    merge: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        names = [self.key] if isinstance(self.key, str) else self.key
        if callable(names):
            _callable(names, 1, "Combine: key")
        elif not isinstance(names, tuple | list) or not names or not all(isinstance(n, str) and n for n in names):
            raise ConfigError(f"Combine: key must be a function, a column name or several of them, not {self.key!r}")
        _callable(self.merge, 2, "Combine: merge")


def _callable(fn: Any, arguments: int, what: str) -> None:
    _check_setting(lambda: check_callable(fn, arguments, what))


def _check_mergeable(aggregate: Any, verb: str) -> None:
    check_aggregate(aggregate, verb)
    if type(aggregate).merge is AggregateFunction.merge:
        raise GraphError(
            f"{verb}: each subtask adds up its part of a round, and {type(aggregate).__name__} does not say how two parts "
            f"become one; define merge(a, b)"
        )


def _check_setting(check: Callable[[], T]) -> T:
    """Makes a check of the graph. Raises `ConfigError` for what it refuses."""
    try:
        return check()
    except GraphError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class LoopCall:
    """The options of a loop as the user gives them, unchecked."""

    verb: str
    rounds: Any
    priority: Any
    combine: Any
    spill: Any
    uid: Any
    name: Any
    parallelism: Any
    feedback_schema: Any = None

    def __str__(self) -> str:
        named = isinstance(self.name, str) and self.name
        return f"{self.verb} {self.name!r}" if named else self.verb


@dataclass(frozen=True)
class RoundFigures:
    """The figures of a round, for `tr.Rounds(until=...)` with aggregates."""

    round: int
    """The number of the round."""
    feedback: Any
    """The aggregate of the records that were fed back; None without one."""
    output: Any
    """The aggregate of the records that the loop emitted; None without one."""


class PartOfRound(Wrapper, ProcessFunction):
    """An aggregate of the records of one subtask in the current round. At its end it emits the accumulator, if there were
    any records."""

    parts = OperatorState(list, default=[])
    """The accumulators of the round: one, or those of several old subtasks after a restore at another parallelism."""

    def __init__(self, aggregate: AggregateFunction) -> None:
        self.aggregate = aggregate
        self.field = Field(getattr(aggregate, "of", None))

    @property
    def wrapped(self) -> list[Function]:
        return [self.aggregate]

    def process(self, value: Any, ctx: Context) -> None:
        parts = self.parts.value
        before = parts[0] if parts else self.aggregate.create_accumulator()
        self.parts.value = [self.aggregate.add(self.field(value), before), *parts[1:]]

    def on_round_end(self, round: int, ctx: Context) -> Iterator[Any]:
        parts, self.parts.value = self.parts.value, []
        yield from parts


@dataclass(frozen=True)
class UntilFigures:
    """The test of a round by its figures: `until`, called with the merged parts of all subtasks."""

    until: Callable[[RoundFigures], Any]
    feedback: AggregateFunction | None
    output: AggregateFunction | None

    def __call__(self, result: Any) -> Any:
        figures = RoundFigures(
            result.round, merge_parts(self.feedback, result), merge_parts(self.output, result.output)
        )
        return self.until(figures)


def merge_parts(aggregate: AggregateFunction | None, parts: list[Any]) -> Any:
    """The result of an aggregate over all parts."""
    if aggregate is None:
        return None
    found = parts[0] if parts else aggregate.create_accumulator()
    for part in parts[1:]:
        found = aggregate.merge(found, part)
    return aggregate.get_result(found)
