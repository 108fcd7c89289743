"""A function's reference: which types it is drawn with, with which options, and its result for one record."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from search.functions.draws import value


class Refused(Exception):
    """The record has no exact result, so that an error is due."""


@dataclass(frozen=True)
class OrRefused:
    """A result that may be refused, too: Arrow knows of fewer whole numbers that a float holds than there are."""

    value: Any


@dataclass(frozen=True)
class Near:
    """A float of which the last bits may differ: no library rounds logarithms and sines as they should be."""

    value: float
    ulps: int = 4


@dataclass(frozen=True)
class OneOf:
    """Floats that are all right: a number is scaled before it is rounded, and then near the middle of two."""

    values: Sequence[float]


@dataclass(frozen=True)
class Call:
    """How a function is called: the types of its arguments, its options, and the type of what it gave."""

    kinds: Sequence[pa.DataType]
    given: Any = None
    said: Any = None
    """The options as its reference wants them."""
    result: pa.DataType = None


Reference = Callable[..., Any]
"""`reference(call, *values)`: the exact result for the values of one record. Raises `Refused`."""


@dataclass(frozen=True)
class Case:
    """One function of Arrow."""

    kinds: Callable[[Random], Sequence[pa.DataType]]
    """Draws the types of its arguments."""
    reference: Reference
    settings: Callable[[Random, Sequence[pa.DataType]], tuple[Any, Any]] = lambda random, kinds: (None, None)
    """Draws its options, as Arrow and as the reference want them."""
    constant: frozenset[int] = frozenset()
    """Arguments that are always the same for all records."""
    values: Callable[[Random, pa.DataType], Any] = value
    """Draws the values of its arguments."""
    nulls: bool = False
    """Whether the reference is asked about nulls, too; else the result is null where an argument is."""


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def of(*choices: Sequence[pa.DataType]) -> Callable[[Random], list[pa.DataType]]:
    """Types drawn for each argument by itself."""
    return lambda random: [random.choice(one) for one in choices]


def alike(types: Sequence[pa.DataType], count: int) -> Callable[[Random], list[pa.DataType]]:
    """One type for all arguments."""
    return lambda random: [random.choice(types)] * count
