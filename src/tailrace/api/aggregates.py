"""Aggregates that come with Tailrace. In columns they work on whole batches; in rows record by record.

All but `Count()` skip `None` (null). A count or a sum of nothing is 0; the other results are None.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tailrace.api.functions import AggregateFunction
from tailrace.elements.columns.decimal_arithmetic import EXACT, mean_of
from tailrace.elements.timestamps import steady
from tailrace.graph.operators import Selector
from tailrace.spelling import with_hints


@with_hints
class BuiltinAggregate(AggregateFunction):
    """An aggregate over one value of each record. `of` is a function, a column name, or None for the record itself.

    `zero` is the empty accumulator and `step` the expression of `a` (the accumulator) and `x` (the value) that adds
    one value. In columns, `arrow` names the pyarrow aggregates of a batch whose results `from_arrow` makes into a
    partial accumulator for `merge`; `joined` is `merge` as an expression of `a` and the partial `x`. Both expressions are
    evaluated under `EXACT`, so that decimals are not rounded.
    """

    zero: Any = None
    step = ""
    joined = "a + x"
    arrow: tuple[str, ...] = ()

    def __init__(self, of: Selector | None = None) -> None:
        self.of: Selector | None = tuple(of) if isinstance(of, list) else of

    @property
    def described(self) -> str:
        """The aggregate and its field, as checkpoints record them."""
        field = "" if self.of is None or callable(self.of) else f" of {self.of!r}"
        return f"{type(self).__name__}{field}"

    def create_accumulator(self) -> Any:
        return self.zero

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def from_arrow(self, *results: Any) -> Any:
        """The partial accumulator of a batch from the results of `arrow`."""
        return results[0]

    def partials(self, answers: list[list[Any]], types: list[Any], nulls: bool) -> list[Any]:
        """The partial accumulators of all groups of a batch. `answers` has the results of each Arrow aggregate by group,
        `types` their types; `nulls` is true if some are null. Calls `from_arrow` for each group, unless that changes
        nothing."""
        return list(map(self.from_arrow, *answers))

    def result_type(self, types: list[Any], of: Any) -> Any:
        """The Arrow type of the result. `types` are those of the results of `arrow`, `of` is the type of the column."""
        return types[0]


@with_hints
class Count(BuiltinAggregate):
    """The number of records."""

    zero = 0
    step = "a + 1"
    arrow = ("count_all",)

    def __init__(self) -> None:
        super().__init__(None)

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def merge(self, a: int, b: int) -> int:
        return a + b

    def partials(self, answers: list[list[Any]], types: list[Any], nulls: bool) -> list[Any]:
        return answers[0]


def plus(a: Any, b: Any) -> Any:
    """The sum of two numbers. Decimals are not rounded."""
    return EXACT.add(a, b) if isinstance(a, Decimal) or isinstance(b, Decimal) else a + b


def comparable(value: Any) -> Any:
    """A value to compare later ones with. An instant in an hour that the clock repeats gets a fixed offset."""
    return steady(value) if isinstance(value, datetime) else value


class Sum(BuiltinAggregate):
    """The sum of the values. Decimals are never rounded."""

    zero = 0
    step = "a + x"
    arrow = ("sum",)

    def from_arrow(self, *results: Any) -> Any:
        return 0 if results[0] is None else results[0]

    def partials(self, answers: list[list[Any]], types: list[Any], nulls: bool) -> list[Any]:
        return super().partials(answers, types, nulls) if nulls else answers[0]

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator if value is None else plus(accumulator, value)

    def merge(self, a: Any, b: Any) -> Any:
        return plus(a, b)


class _Extreme(BuiltinAggregate):
    """Base of `Min` and `Max`."""

    def from_arrow(self, *results: Any) -> Any:
        return comparable(results[0])

    def partials(self, answers: list[list[Any]], types: list[Any], nulls: bool) -> list[Any]:
        return super().partials(answers, types, nulls) if pa.types.is_timestamp(types[0]) else answers[0]

    def merge(self, a: Any, b: Any) -> Any:
        return self.add(b, a)


class Min(_Extreme):
    """The smallest value."""

    # A NaN gives way, as in Arrow.
    step = "((x if x.__class__ is not datetime else held(x)) if a is None or x < a or a != a else a)"
    joined = f"(a if x is None else {step})"
    arrow = ("min",)

    def add(self, value: Any, accumulator: Any) -> Any:
        a, x = accumulator, value
        return comparable(x) if a is None or (x is not None and (x < a or a != a)) else a


class Max(_Extreme):
    """The largest value."""

    step = "((x if x.__class__ is not datetime else held(x)) if a is None or x > a or a != a else a)"
    joined = f"(a if x is None else {step})"
    arrow = ("max",)

    def add(self, value: Any, accumulator: Any) -> Any:
        a, x = accumulator, value
        return comparable(x) if a is None or (x is not None and (x > a or a != a)) else a


class Mean(BuiltinAggregate):
    """The arithmetic mean of the values; None if there are none. The accumulator is (count, sum). The mean of decimals is a
    decimal with four more digits after the point, rounded half up from their exact sum."""

    zero = (0, 0)
    step = "(a[0] + 1, a[1] + x)"
    joined = "(a[0] + x[0], a[1] + x[1])"
    arrow = ("count", "sum")

    def from_arrow(self, *results: Any) -> Any:
        return (results[0], 0 if results[1] is None else results[1])

    def partials(self, answers: list[list[Any]], types: list[Any], nulls: bool) -> list[Any]:
        return super().partials(answers, types, nulls) if nulls else list(zip(*answers, strict=True))

    def result_type(self, types: list[Any], of: Any) -> Any:
        if not pa.types.is_decimal(of):
            return pa.float64()
        make, most = (pa.decimal256, 76) if pa.types.is_decimal256(of) else (pa.decimal128, 38)
        return make(min(of.precision + 4, most), min(of.scale + 4, most))

    def add(self, value: Any, accumulator: tuple[int, Any]) -> tuple[int, Any]:
        return accumulator if value is None else (accumulator[0] + 1, plus(accumulator[1], value))

    def get_result(self, accumulator: tuple[int, Any]) -> Any:
        count, total = accumulator
        if not count:
            return None
        return mean_of(total, count) if isinstance(total, Decimal) else total / count

    def merge(self, a: tuple[int, Any], b: tuple[int, Any]) -> tuple[int, Any]:
        return (a[0] + b[0], plus(a[1], b[1]))


def is_builtin(aggregate: object) -> bool:
    """True for an aggregate of exactly these classes. The methods of a subclass may be the user's own."""
    return type(aggregate) in (Count, Sum, Min, Max, Mean)
