"""The reference of a function: the types and options it is drawn with, and its result for one record."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from search.functions.draws import value


class Refused(Exception):
    """Raised where the record has no exact result, so that the function must raise an error."""


@dataclass(frozen=True)
class OrRefused:
    """A result that the function may also refuse: Arrow does not know of all whole numbers that a float holds exactly."""

    value: Any


@dataclass(frozen=True)
class Near:
    """A float of which the last bits may differ: no library rounds logarithms and sines correctly."""

    value: float
    ulps: int = 4


@dataclass(frozen=True)
class OneOf:
    """Floats of which each is right: a number is scaled before it is rounded, and may then be near the middle of two."""

    values: Sequence[float]


@dataclass(frozen=True)
class Call:
    """A call of a function: the types of its arguments, its options, and the type of its result."""

    kinds: Sequence[pa.DataType]
    given: Any = None
    options: Any = None
    """The options in the form that its reference takes."""
    result: pa.DataType = None


Reference = Callable[..., Any]
"""`reference(call, *values)`: the exact result for the values of one record. Raises `Refused`."""


@dataclass(frozen=True)
class Case:
    """A function of Arrow with its reference."""

    kinds: Callable[[Random], Sequence[pa.DataType]]
    """Draws the types of its arguments."""
    reference: Reference
    settings: Callable[[Random, Sequence[pa.DataType]], tuple[Any, Any]] = lambda random, kinds: (None, None)
    """Draws its options, in the forms that Arrow and the reference take."""
    constant: frozenset[int] = frozenset()
    """Arguments that have one value for all records."""
    values: Callable[[Random, pa.DataType], Any] = value
    """Draws the values of its arguments."""
    nulls: bool = False
    """True where the reference also takes nulls; else the result is null where an argument is."""


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def of(*choices: Sequence[pa.DataType]) -> Callable[[Random], list[pa.DataType]]:
    """A function that draws a type for each argument by itself."""
    return lambda random: [random.choice(one) for one in choices]


def alike(types: Sequence[pa.DataType], count: int) -> Callable[[Random], list[pa.DataType]]:
    """A function that draws one type for all arguments."""
    return lambda random: [random.choice(types)] * count
