"""Accumulators of built-in aggregates in arrays, by slot. Their values are exactly those of accumulators in rows.

A value that an array cannot hold exactly raises `NotInArrays`, before anything is changed. The operator then goes on
without arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.aggregates import Count, Max, Mean, Min, Sum, comparable
from tailrace.elements.columns.arrays import REFUSALS, column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.keyslots import column_of_words, is_word, words_of
from tailrace.elements.rows import plain_values
from tailrace.elements.slottables import Slots, grow

Array = np.ndarray[Any, Any]
Answers = Sequence[pa.Array]
"""Results of the Arrow functions that one aggregate needs, by distinct key of a batch."""
_WHOLE = 1 << 53
"""Absolute value up to which each integer is exactly a double."""


class NotInArrays(Exception):
    """Arrays cannot hold a value, or a type."""


class Accumulators:
    """Accumulators of one aggregate. `arrays` are indexed by slot; a slot that was never written holds the accumulator of
    no records."""

    def __init__(self, *kinds: Any) -> None:
        self.arrays: list[Array] = [np.zeros(0, kind) for kind in kinds]

    def grow(self, slots: int) -> None:
        """Makes room for `slots` slots."""
        self.arrays = [grow(array, slots) for array in self.arrays]

    def at(self, slots: Slots) -> list[Array]:
        """Copies of the accumulators in some slots."""
        return [array[slots] for array in self.arrays]

    def store(self, slots: Slots, made: list[Array]) -> None:
        """Writes accumulators into some slots. No slot appears twice."""
        for array, new in zip(self.arrays, made, strict=True):
            array[slots] = new

    def merge(self, slots: Slots, answers: Answers) -> list[Array]:
        """Accumulators of some slots, merged with the partial accumulators of a batch. Writes nothing. Raises
        `NotInArrays`."""
        raise NotImplementedError

    def results(self, made: list[Array], kind: pa.DataType) -> pa.Array:
        """The results of accumulators, in a column of this type. Raises `NotInArrays`."""
        raise NotImplementedError

    def values(self, made: list[Array]) -> list[Any]:
        """Accumulators as the state holds them."""
        raise NotImplementedError

    def arrays_of(self, values: list[Any]) -> list[Array]:
        """Accumulators of the state as arrays. Raises `NotInArrays`."""
        raise NotImplementedError


class CountAccumulators(Accumulators):
    """Accumulators of `Count`."""

    def __init__(self) -> None:
        super().__init__(np.int64)

    def merge(self, slots: Slots, answers: Answers) -> list[Array]:
        return [self.arrays[0][slots] + _numbers(answers[0], np.int64)]

    def results(self, made: list[Array], kind: pa.DataType) -> pa.Array:
        return pa.array(made[0], kind)

    def values(self, made: list[Array]) -> list[Any]:
        return _list_of(made[0])

    def arrays_of(self, values: list[Any]) -> list[Array]:
        return [_integers(values, np.int64)]


class WholeSums(Accumulators):
    """Accumulators of `Sum` over integers and truth values, in 64 bits, signed or unsigned."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.kind = kind

    def merge(self, slots: Slots, answers: Answers) -> list[Array]:
        before, more = self.arrays[0][slots], _numbers(answers[0], self.kind)
        after = before + more  # in 64 bits, where it may wrap around
        wrong = (before ^ after) & (more ^ after) < 0 if self.kind is np.int64 else after < before
        if wrong.any():
            raise NotInArrays
        return [after]

    def results(self, made: list[Array], kind: pa.DataType) -> pa.Array:
        return pa.array(made[0], kind)

    def values(self, made: list[Array]) -> list[Any]:
        return _list_of(made[0])

    def arrays_of(self, values: list[Any]) -> list[Array]:
        return [_integers(values, self.kind)]


class FloatSums(Accumulators):
    """Accumulators of `Sum` over floats. As in rows, a sum is an integer until its first float; the second array marks
    the slots that have had a float."""

    def __init__(self) -> None:
        super().__init__(np.float64, np.bool_)

    def merge(self, slots: Slots, answers: Answers) -> list[Array]:
        total, more = self.arrays[0][slots], _numbers(answers[0], np.float64)
        with np.errstate(all="ignore"):  # as Python adds
            after = total + more
        if not answers[0].null_count:
            return [after, np.ones(len(slots), np.bool_)]
        valid = _valid(answers[0])
        return [np.where(valid, after, total), self.arrays[1][slots] | valid]

    def results(self, made: list[Array], kind: pa.DataType) -> pa.Array:
        return pa.array(made[0], kind)

    def values(self, made: list[Array]) -> list[Any]:
        found: list[Any] = made[0].tolist()
        for i in np.flatnonzero(~made[1]).tolist():
            found[i] = int(found[i])
        return found

    def arrays_of(self, values: list[Any]) -> list[Array]:
        real = np.array([type(value) is float for value in values], np.bool_)
        if not all(type(v) is float or (type(v) is int and -_WHOLE <= v <= _WHOLE) for v in values):
            raise NotInArrays
        return [np.array(values, np.float64), real]


class Means(Accumulators):
    """Accumulators of `Mean`: a count and a sum."""

    def __init__(self, sums: WholeSums | FloatSums) -> None:
        super().__init__(np.int64)
        self.sums = sums
        self.arrays += sums.arrays

    def merge(self, slots: Slots, answers: Answers) -> list[Array]:
        self.sums.arrays = self.arrays[1:]
        count = self.arrays[0][slots] + _numbers(answers[0], np.int64)
        return [count, *self.sums.merge(slots, answers[1:])]

    def results(self, made: list[Array], kind: pa.DataType) -> pa.Array:
        count, total = made[:2]
        none = count == 0
        with np.errstate(all="ignore"):
            found = total / np.where(none, 1, count)
        if total.dtype != np.float64:
            # Python rounds the quotient of two integers once.
            for i in np.flatnonzero((total > _WHOLE) | (total < -_WHOLE)).tolist():
                found[i] = int(total[i]) / max(int(count[i]), 1)
        return pa.array(found, pa.float64(), mask=none)

    def values(self, made: list[Array]) -> list[Any]:
        return list(zip(made[0].tolist(), self.sums.values(made[1:]), strict=True))

    def arrays_of(self, values: list[Any]) -> list[Array]:
        if not all(type(value) is tuple and len(value) == 2 for value in values):
            raise NotInArrays
        counts, totals = [value[0] for value in values], [value[1] for value in values]
        return [_integers(counts, np.int64), *self.sums.arrays_of(totals)]


class Extremes(Accumulators):
    """Accumulators of `Min` and `Max`, over types whose values are words. The second array marks the slots that have had
    a value."""

    def __init__(self, kind: pa.DataType, largest: bool) -> None:
        self.kind, self.largest = kind, largest
        self.number = np.float64 if pa.types.is_floating(kind) else np.uint64 if kind == pa.uint64() else np.int64
        super().__init__(self.number, np.bool_)

    def merge(self, slots: Slots, answers: Answers) -> list[Array]:
        [answer] = answers
        if answer.type != self.kind or not _in_calendar(answer):
            raise NotInArrays
        old, known = self.at(slots)
        new, valid = words_of(answer).view(self.number), _valid(answer)
        better = new > old if self.largest else new < old
        # A NaN gives way, as in rows.
        taken = valid & (~known | better | (old != old))
        return [np.where(taken, new, old), known | valid]

    def results(self, made: list[Array], kind: pa.DataType) -> pa.Array:
        return self._column(made)

    def _column(self, made: list[Array]) -> pa.Array:
        return column_of_words(made[0].view(np.int64), self.kind, ~made[1])

    def values(self, made: list[Array]) -> list[Any]:
        found = plain_values(self._column(made))
        return list(map(comparable, found)) if pa.types.is_timestamp(self.kind) else found

    def arrays_of(self, values: list[Any]) -> list[Array]:
        try:
            column = column_of_values(values, pa.field("state", self.kind))
        except (Misfit, *REFUSALS) as error:
            raise NotInArrays from error
        expected = {type(one) for one in plain_values(column)}
        if not {type(one) for one in values} <= expected:  # a number of another type, which it equals
            raise NotInArrays
        return [words_of(column).view(self.number), _valid(column)]


def accumulators_of(aggregate: Any, of: pa.DataType | None) -> Accumulators | None:
    """Accumulators in arrays for a built-in aggregate over a column of this type; None if arrays cannot hold them."""
    kind = type(aggregate)
    if kind is Count:
        return CountAccumulators()
    assert of is not None
    if kind in (Min, Max):
        return Extremes(of, kind is Max) if is_word(of) and not pa.types.is_boolean(of) else None
    sums: WholeSums | FloatSums
    if pa.types.is_integer(of) or pa.types.is_boolean(of):
        sums = WholeSums(np.int64 if pa.types.is_signed_integer(of) else np.uint64)
    elif of in (pa.float32(), pa.float64()):
        sums = FloatSums()
    else:
        return None
    return sums if kind is Sum else Means(sums) if kind is Mean else None


def _numbers(answer: pa.Array, kind: Any) -> Array:
    """An answer of Arrow as 64-bit numbers, with zero for a null. A sum that was too large for Arrow's own type comes as
    a decimal. Raises `NotInArrays` if it does not fit 64 bits."""
    if answer.null_count:
        answer = pc.if_else(answer.is_valid(), answer, pa.scalar(0, answer.type))
    if pa.types.is_decimal(answer.type):
        try:
            answer = answer.cast(pa.from_numpy_dtype(kind))
        except pa.ArrowInvalid as error:
            raise NotInArrays from error
    found: Array = answer.to_numpy(zero_copy_only=False)
    if found.dtype != kind:
        raise NotInArrays
    return found


def _list_of(array: Array) -> list[Any]:
    found: list[Any] = array.tolist()
    return found


def _valid(column: pa.Array) -> Array:
    found: Array = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _integers(values: list[Any], kind: Any) -> Array:
    if set(map(type, values)) - {int}:
        raise NotInArrays
    try:
        return np.array(values, kind)
    except OverflowError as error:
        raise NotInArrays from error


_DAYS = (-719_162, 2_932_896)
_MICROS = (-62_135_510_400_000_000, 253_402_214_399_999_999)


def _in_calendar(column: pa.Array) -> bool:
    """True if Python has all of these days and times, with a day to spare for time zones."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        low, high = _DAYS if pa.types.is_date(column.type) else _MICROS
        words = words_of(column)  # a null is 1970
        return not len(words) or bool(low <= words.min() and words.max() <= high)
    return True
