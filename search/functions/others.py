"""References for truth values, choices, lookups, nested types and casts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from search.functions.cases import COMPARISONS, Call, Case, OrRefused, Refused, alike, of
from search.functions.draws import (
    BYTES,
    DATES,
    DAY,
    DURATIONS,
    INTEGERS,
    NAIVE,
    PER_SECOND,
    TEXTS,
    TIMES,
    decimals,
    to_float,
    value,
)
from search.functions.numbers import NUMBERS, fit, floats
from search.functions.times import wall

_BOOLEAN = [pa.bool_()]
_LIST = pa.list_(pa.int64())
_LISTS = [_LIST, pa.large_list(pa.string()), pa.list_(pa.int8(), 2)]
_MAP = pa.map_(pa.string(), pa.int64())
_STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
NESTED = [*_LISTS, _MAP, _STRUCT]
FLAT = [
    *(pa.bool_(), pa.float16(), pa.decimal128(10, 2), pa.binary(3)),
    *(*NUMBERS, *TEXTS, *BYTES, *DATES, *NAIVE, *TIMES, *DURATIONS),
]


def _kleene(function: Callable[[Any, Any], Any]) -> Case:
    return Case(of(_BOOLEAN, _BOOLEAN), lambda call, a, b: function(a, b), nulls=True)


def _and(a: Any, b: Any) -> Any:
    return False if a is False or b is False else None if a is None or b is None else True


def _or(a: Any, b: Any) -> Any:
    return True if a is True or b is True else None if a is None or b is None else False


def _not(a: Any) -> Any:
    return None if a is None else not a


def _one_type(random: Random) -> pa.DataType:
    return random.choice([decimals(random), *FLAT, *NESTED])


def _choices(
    count: int, mixed: Sequence[Sequence[Any]] = (NUMBERS,), nested: bool = True
) -> Callable[[Random], list[Any]]:
    """A function that draws types of values of which one is chosen."""

    def draw(random: Random) -> list[Any]:
        if random.random() < 0.4:
            family = random.choice([*mixed, [decimals(random), decimals(random)], [decimals(random), *INTEGERS]])
            return [random.choice(family) for _ in range(count)]
        return [_one_type(random) if nested else random.choice(FLAT)] * count

    return draw


def convert(call: Call, one: Any, kind: pa.DataType) -> Any:
    """A value of this type in the type of the result."""
    if one is None:
        return None
    if t.is_floating(call.result):
        return to_float(floats(call, [one])[0], call.result)
    if isinstance(one, Decimal) or t.is_decimal(call.result):
        return OrRefused(fit(Fraction(one), call.result))
    if t.is_temporal(kind) and kind != call.result:
        return OrRefused(_rescale(one, kind, call.result))
    return one


def _rescale(one: int, kind: pa.DataType, result: pa.DataType) -> int:
    seconds = Fraction(one) / _per(kind)
    units = seconds * _per(result)
    if units.denominator != 1 or not -(2**63) <= units < 2**63:
        raise Refused(one)
    return int(units)


def _per(kind: pa.DataType) -> Fraction:
    if t.is_date(kind):
        return Fraction(1, DAY) if t.is_date32(kind) else Fraction(1000)
    return Fraction(PER_SECOND[kind.unit])


def _if_else(call: Call, condition: Any, a: Any, b: Any) -> Any:
    if condition is None:
        return None
    return convert(call, a, call.kinds[1]) if condition else convert(call, b, call.kinds[2])


def _case_when(call: Call, conditions: Any, *values: Any) -> Any:
    if conditions is None:
        raise Refused("no conditions")
    for condition, one, kind in zip(conditions.values(), values, call.kinds[1:], strict=False):
        if condition:
            return convert(call, one, kind)
    return convert(call, values[2], call.kinds[3])


def _coalesce(call: Call, *values: Any) -> Any:
    return next(
        (convert(call, one, kind) for one, kind in zip(values, call.kinds, strict=True) if one is not None), None
    )


def _choose(call: Call, index: Any, *values: Any) -> Any:
    if index is None:
        return None
    if not 0 <= index < len(values):
        raise Refused("no such argument")
    return convert(call, values[index], call.kinds[index + 1])


# Lookups.

_LOOKED_UP = [kind for kind in FLAT if kind not in (pa.float16(), pa.binary(3))]


def _looked_up_kinds(random: Random) -> list[pa.DataType]:
    return [decimals(random) if random.random() < 0.3 else random.choice(_LOOKED_UP)]


def _set(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    from search.functions.checking import array_of

    drawn, kind = list[Any](), kinds[0]
    if random.random() < 0.5 and (kind in NUMBERS or t.is_decimal(kind)):
        kind = random.choice([random.choice(NUMBERS), decimals(random)])
    for _ in range(random.randint(0, 4)):
        one = value(random, kind)
        if not any(_equal(one, other) for other in drawn):
            drawn.append(one)
    skips = random.random() < 0.5
    return pc.SetLookupOptions(array_of(drawn, kind), skip_nulls=skips), (drawn, skips, kind != kinds[0])


def _equal(a: Any, b: Any) -> bool:
    return bool((a is None and b is None) or (a is not None and b is not None and (a == b or (a != a and b != b))))


def _place_in(call: Call, one: Any) -> Any:
    """The first place of a value in the set. It may be refused where one type does not hold all values of the other."""
    found = _place(call, one)
    return OrRefused(found) if call.options[2] else found


def _place(call: Call, one: Any) -> int | None:
    drawn, skips, _ = call.options
    if one is None and skips:
        return None
    return next((at for at, other in enumerate(drawn) if _equal(one, other)), None)


# Nested types.


def _slice(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    start, step = random.randint(0, 3), random.randint(1, 2)
    stop = start + random.randint(0, 3)
    return pc.ListSliceOptions(start, stop, step, False), (start, stop, step)


def _element(call: Call, items: Any, at: Any) -> Any:
    if at is None:
        raise Refused("no place")
    if items is None:
        return None
    if not 0 <= at < len(items):
        raise Refused("no such item")
    return items[at]


def _key(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    key, which = random.choice(["a", "é", ""]), random.choice(["first", "last", "all"])
    return pc.MapLookupOptions(pa.scalar(key, pa.string()), which), (key, which)


def _looked_up(call: Call, pairs: Any) -> Any:
    key, which = call.options
    found = [item for one, item in pairs if one == key]
    if not found:
        return None
    return found if which == "all" else found[0 if which == "first" else -1]


def _structs(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    return pc.MakeStructOptions(["p", "q"]), None


# Order.


def _compare(test: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    return lambda call, a, b: test(_bytes(a), _bytes(b))


def _bytes(one: Any) -> Any:
    return one.encode() if isinstance(one, str) else one


def _skips(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    skips = random.random() < 0.5
    return pc.ElementWiseAggregateOptions(skip_nulls=skips), skips


def _pick(pick: Callable[..., Any]) -> Callable[..., Any]:
    def reference(call: Call, *values: Any) -> Any:
        there = [one for one in values if one is not None]
        return pick(there) if there and (call.options or len(there) == len(values)) else None

    return reference


# Casts.


def _cast_kinds(random: Random) -> list[pa.DataType]:
    return [random.choice([*FLAT, decimals(random), decimals(random)])]


def _target(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    kind = kinds[0]
    if random.random() < 0.3:
        kind = random.choice([*FLAT, decimals(random)])
    elif t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        kind = random.choice([*NUMBERS, decimals(random), pa.string(), pa.timestamp("s"), pa.duration("ms")])
    elif t.is_temporal(kind):
        kind = random.choice([*NAIVE, *DATES, *TIMES, *DURATIONS, pa.int64(), pa.string()])
    else:
        kind = random.choice([pa.int64(), pa.int8(), pa.float32(), pa.float64(), *TEXTS, *BYTES, pa.bool_()])
    return pc.CastOptions.safe(kind), kind


def _cast(call: Call, one: Any) -> Any:
    """The value cast to another type. Raises `Refused` where it is not exact; a float is rounded to the nearest, as is a
    decimal that becomes a float."""
    kind, target = call.kinds[0], call.options
    if kind == target:
        return one
    if isinstance(one, bool):
        return str(one).lower() if t.is_string(target) or t.is_large_string(target) else int(one)
    if t.is_temporal(kind) or t.is_temporal(target):
        return _time_cast(one, kind, target)
    if isinstance(one, str | bytes):
        return _text_cast(one, target)
    if t.is_boolean(target):
        return bool(one)
    if t.is_string(target) or t.is_large_string(target):
        return str(one)
    if t.is_floating(target) and isinstance(one, float | Decimal):
        return _near_float(one, target)
    if (isinstance(one, float) and one != one) or one in (float("inf"), float("-inf")):
        raise Refused("no number")
    if t.is_floating(target):
        if to_float(float(one), target) != one:
            raise Refused("no such float")
        return to_float(float(one), target)
    return fit(Fraction(one), target)


def _text_cast(one: Any, target: pa.DataType) -> Any:
    if isinstance(one, bytes) or t.is_binary(target) or t.is_large_binary(target) or t.is_fixed_size_binary(target):
        if t.is_fixed_size_binary(target) and len(_bytes(one)) != target.byte_width:
            raise Refused("of another size")
        return _bytes(one)
    if t.is_integer(target):
        if not (one.isascii() and one.removeprefix("-").isdigit()):
            raise Refused("no number")
        return fit(int(one), target)
    if t.is_floating(target):
        return _read_float(one, target)
    return one


_FLOAT = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?")
_SPELT = ["0x80", "0XfF", "-7", "007", "300", "0.5", "-1e39", "1e400", "0.01e-400", "1e-60", "0e7", "inf"]


def _read_float(one: str, target: pa.DataType) -> float:
    if one == "inf":
        return float("inf")
    if not _FLOAT.fullmatch(one):
        raise Refused("no number")
    return _near_float(Decimal(one), target)


def _near_float(one: float | Decimal, target: pa.DataType) -> float:
    """The nearest float of a number. Raises `Refused` where only the float is infinite, or only the float is zero."""
    made = to_float(float(one), target)
    if (made == 0) != (one == 0) or (abs(made) == float("inf") and abs(one) != float("inf")):
        raise Refused("no float is near it")
    return made


def _cast_value(random: Random, kind: pa.DataType) -> Any:
    return random.choice(_SPELT) if kind in TEXTS and random.random() < 0.3 else value(random, kind)


def _time_cast(one: int, kind: pa.DataType, target: pa.DataType) -> Any:
    if t.is_integer(kind) or t.is_integer(target):
        return fit(one, pa.int32() if target.bit_width == 32 else pa.int64())
    if t.is_string(target) or t.is_large_string(target):
        return wall(kind, one).date.isoformat()
    if t.is_date(target) and not t.is_date(kind):
        wall(kind, one)
        days = one // (DAY * PER_SECOND[kind.unit])
        return days if t.is_date32(target) else days * DAY * 1000
    if t.is_date(kind) and not t.is_date(target):
        wall(kind, one)
    made = _rescale(one, kind, target)
    return OrRefused(made)


CASES: dict[str, Case] = {
    "and": Case(of(_BOOLEAN, _BOOLEAN), lambda call, a, b: a and b),
    "or": Case(of(_BOOLEAN, _BOOLEAN), lambda call, a, b: a or b),
    "xor": Case(of(_BOOLEAN, _BOOLEAN), lambda call, a, b: a != b),
    "and_not": Case(of(_BOOLEAN, _BOOLEAN), lambda call, a, b: a and not b),
    "and_kleene": _kleene(_and),
    "or_kleene": _kleene(_or),
    "and_not_kleene": _kleene(lambda a, b: _and(a, _not(b))),
    "invert": Case(of(_BOOLEAN), lambda call, a: not a),
    "is_null": Case(lambda r: [_one_type(r)], lambda call, a: a is None, nulls=True),
    "is_valid": Case(lambda r: [_one_type(r)], lambda call, a: a is not None, nulls=True),
    "true_unless_null": Case(lambda r: [_one_type(r)], lambda call, a: True),
    "if_else": Case(lambda r: [pa.bool_(), *_choices(2)(r)], _if_else, nulls=True),
    "case_when": Case(
        lambda r: [pa.struct([("a", pa.bool_()), ("b", pa.bool_())]), *_choices(3)(r)], _case_when, nulls=True
    ),
    "coalesce": Case(_choices(3, nested=False), _coalesce, nulls=True),
    "choose": Case(lambda r: [pa.int64(), *_choices(2, nested=False)(r)], _choose, nulls=True),
    "is_in": Case(_looked_up_kinds, lambda c, a: _is_in(c, a), _set, nulls=True),
    "index_in": Case(_looked_up_kinds, _place_in, _set, nulls=True),
    "list_value_length": Case(of(_LISTS), lambda call, a: len(a)),
    "list_slice": Case(of(_LISTS), lambda call, a: a[call.options[0] : call.options[1] : call.options[2]], _slice),
    "list_element": Case(of(_LISTS, INTEGERS), _element, constant=frozenset((1,)), nulls=True),
    "map_lookup": Case(of([_MAP]), _looked_up, _key),
    "struct_field": Case(of([_STRUCT]), lambda call, a: a["b"], lambda r, k: (pc.StructFieldOptions(["b"]), None)),
    "make_struct": Case(lambda r: [_one_type(r), _one_type(r)], lambda c, a, b: {"p": a, "q": b}, _structs, nulls=True),
    **{
        name: Case(alike([*_BOOLEAN, *TEXTS, *BYTES, pa.timestamp("us", "Europe/Berlin")], 2), _compare(test))
        for name, test in COMPARISONS.items()
    },
    **{
        f"{name}_element_wise": Case(alike([*DATES, *NAIVE, *TIMES, *DURATIONS], 2), _pick(pick), _skips, nulls=True)
        for name, pick in (("max", max), ("min", min))
    },
    "cast": Case(_cast_kinds, _cast, _target, values=_cast_value),
}


def _is_in(call: Call, one: Any) -> Any:
    found = _place(call, one) is not None
    return OrRefused(found) if call.options[2] else found
