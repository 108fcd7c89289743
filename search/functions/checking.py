"""The check of one function on random columns, in any batches, against its reference."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from search.functions.cases import Call, Case, Near, OneOf, OrRefused, Refused
from search.functions.draws import FLOAT_OF
from tailrace.elements.columns.expressions import Formula

_REFUSED = object()


def check_function(random: Random, name: str, case: Case) -> str | None:
    """Raises `AssertionError` where a function gives another result than its reference, or another one in other batches.
    Returns the reason where the function is refused by name."""
    kinds = list(case.kinds(random))
    given, options = case.settings(random, kinds)
    count = random.choice([0, 1, 2, 5, 12])
    fixed = {at for at in range(len(kinds)) if at in case.constant or random.random() < 0.1}
    if len(fixed) == len(kinds) and kinds:
        fixed.discard(next((at for at in fixed if at not in case.constant), -1))
    columns = []
    for at, kind in enumerate(kinds):
        drawn = [case.values(random, kind) for _ in range(1 if at in fixed else count)]
        columns.append(drawn * count if at in fixed and count else drawn[:count])
        if at in fixed:
            columns[-1] = drawn * count
    arguments = [
        pc.scalar(array_of(columns[at][:1] or [None], kind)[0]) if at in fixed and count else pc.field(f"c{at}")
        for at, kind in enumerate(kinds)
    ]
    batch = _batch(random, case, columns, kinds, count)
    what = f"{name}{tuple(map(str, kinds))} {options!r}"
    try:
        formula = Formula(pc.Expression._call(name, arguments, given))
        result = formula.type_in(batch.schema)
    except (TypeError, ValueError, pa.ArrowNotImplementedError) as error:
        return f"{what}: {type(error).__name__}: {error}"
    call = Call(kinds, given, options, result)
    rows = list(zip(*columns, strict=True)) if kinds else [()] * count
    expected = [_expected(case, call, row) for row in rows]
    _compare(what, formula, batch, expected, rows, result)
    cuts = sorted(random.choices(range(count + 1), k=random.randint(0, 3)))
    for start, end in zip([0, *cuts], [*cuts, count], strict=True):
        _compare(what, formula, batch.slice(start, end - start), expected[start:end], rows[start:end], result)
    return None


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Exact values as an array: times are numbers of their units, at any depth."""
    return _plain(values, _numbers(kind)).cast(kind) if _numbers(kind) != kind else _plain(values, kind)


def _plain(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _numbers(kind: pa.DataType) -> pa.DataType:
    """The type with whole numbers in place of times."""
    if t.is_temporal(kind) and not t.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if t.is_struct(kind):
        return pa.struct([field.with_type(_numbers(field.type)) for field in kind])
    if t.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_numbers(kind.value_type)), kind.list_size)
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_numbers(kind.value_type)))
    if t.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_numbers(kind.value_type)))
    return kind


def exact_values(array: pa.Array) -> list[Any]:
    """The values of an array: times as numbers of their units."""
    kind = _numbers(array.type)
    found: list[Any] = (array.cast(kind) if kind != array.type else array).to_pylist()
    return found


def _batch(
    random: Random, case: Case, columns: list[list[Any]], kinds: list[pa.DataType], count: int
) -> pa.RecordBatch:
    """A batch that is a part of a larger one, so that its columns have offsets."""
    before, behind = random.choice([0, 0, 3]), random.choice([0, 2])
    arrays = []
    for drawn, kind in zip(columns, kinds, strict=True):
        around = [case.values(random, kind) for _ in range(before + behind)]
        arrays.append(array_of([*around[:before], *drawn, *around[before:]], kind))
    names = [f"c{at}" for at in range(len(kinds))]
    if not arrays:
        arrays, names = [pa.array(range(before + count + behind))], ["c"]
    return pa.RecordBatch.from_arrays(arrays, names=names).slice(before, count)


def _expected(case: Case, call: Call, row: tuple[Any, ...]) -> Any:
    if not case.nulls and any(one is None for one in row):
        return None
    try:
        return case.reference(call, *row)
    except Refused:
        return _REFUSED


def _compare(what: str, formula: Formula, batch: pa.RecordBatch, expected: list[Any], rows: Any, kind: Any) -> None:
    try:
        array = formula(batch)
    except (TypeError, ValueError, pa.ArrowException) as error:
        good = any(one is _REFUSED or isinstance(one, OrRefused) for one in expected) or _uncommon(batch, kind, rows)
        good = good or any(None in row and set(row) != {None} for row in map(_hashable, rows))
        assert good, f"{what} raised {type(error).__name__}: {error} for {rows}; {expected} was due"
        return
    assert array.type == kind, f"{what} gave {array.type} where no records gave {kind}"
    assert len(array) == len(expected), f"{what} gave {len(array)} results for {len(expected)} records"
    array.validate(full=True)
    for found, due, row in zip(exact_values(array), expected, rows, strict=True):
        assert due is not _REFUSED, f"{what} gave {found!r} for {row!r}; an error is due"
        right = due.value if isinstance(due, OrRefused) else due
        assert _same(found, right, array.type), f"{what} gave {found!r} for {row!r}; {right!r} was due"


def _hashable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if one is None else 0 for one in row)


def _uncommon(batch: pa.RecordBatch, result: pa.DataType, rows: Any) -> bool:
    """True where Arrow may refuse whole numbers because it converts all arguments to one type first."""
    kinds = {*batch.schema.types, result}
    most = 2**64
    if any(map(t.is_integer, kinds)) and len(kinds) > 1:
        most = min([2**24 for k in kinds if t.is_float32(k)] + [2**53 for k in kinds if t.is_float64(k)] + [2**63])
    return any(isinstance(one, int) and abs(one) >= most for row in rows for one in row)


def _same(found: Any, due: Any, kind: pa.DataType) -> bool:
    if isinstance(due, Near):
        return found is not None and _near(found, due, kind)
    if isinstance(due, OneOf):
        return any(found == one for one in due.values)
    if found is None or due is None:
        return found is due
    if isinstance(due, float):
        if due != due or found != found:
            return due != due and found != found
        return bool(found == due and math.copysign(1, found) == math.copysign(1, due))
    if isinstance(found, Decimal):
        return Fraction(found) == due
    if isinstance(due, dict):
        return found.keys() == due.keys() and all(_same(found[one], due[one], None) for one in due)
    if isinstance(due, list):
        return len(found) == len(due) and all(_same(a, b, None) for a, b in zip(found, due, strict=True))
    return bool(type(found) is type(due) and found == due)


def _near(found: float, due: Near, kind: pa.DataType) -> bool:
    if found != found or due.value != due.value:
        return found != found and due.value != due.value
    with np.errstate(all="ignore"):
        narrow = FLOAT_OF[kind.bit_width]
        right = narrow(due.value)
        if np.isinf(right) or math.isinf(found):
            return bool(right == found or abs(float(np.nextafter(right, narrow(0)))) <= abs(found))
        return abs(float(right) - found) <= due.ulps * float(np.spacing(abs(right)))
