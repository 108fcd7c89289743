"""References for numbers. Whole numbers and decimals are exact or refused; floats are rounded once, to the nearest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from search.functions.cases import COMPARISONS, Call, Case, Near, OneOf, OrRefused, Refused, of
from search.functions.draws import (
    FLOATS,
    INTEGERS,
    decimals,
    limits,
    to_float,
)

NUMBERS = [*INTEGERS, *FLOATS]


def fit(number: Any, kind: pa.DataType) -> Any:
    """A number in the type of the result. Raises `Refused` where the type does not have it."""
    if t.is_integer(kind) or t.is_duration(kind):
        low, high = (-(2**63), 2**63 - 1) if t.is_duration(kind) else limits(kind)
        if number != int(number) or not low <= number <= high:
            raise Refused(number)
        return int(number)
    if t.is_decimal(kind):
        units = Fraction(number) * 10**kind.scale
        if units.denominator != 1 or abs(units) >= 10**kind.precision:
            raise Refused(number)
        return Fraction(number)
    return to_float(_double(number), kind)


def _double(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def floats(call: Call, values: Sequence[Any]) -> list[Any]:
    """Arguments as floats of the type of the result. Raises `Refused` for a whole number that no such float equals."""
    found = []
    for value in values:
        if isinstance(value, int):
            made = to_float(value, call.result)
            if made != value:
                raise Refused(value)
            found.append(made)
        else:
            found.append(value)
    return found


def _exact(values: Sequence[Any]) -> list[Any]:
    return [Fraction(value) if isinstance(value, Decimal) else value for value in values]


def number(whole: Callable[..., Any], floating: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The reference of a function of numbers: `whole` for whole numbers and decimals, `floating` for floats."""

    def reference(call: Call, *values: Any) -> Any:
        if t.is_floating(call.result):
            return to_float((floating or whole)(*floats(call, values)), call.result)
        return fit(whole(*_exact(values)), call.result)

    return reference


def _mix(random: Random) -> Sequence[pa.DataType]:
    """Two types of numbers that go together: whole numbers and floats of any width, or decimals with decimals or whole
    numbers."""
    drawn = random.random()
    if drawn < 0.35:
        return [random.choice(INTEGERS)] * 2
    if drawn < 0.7:
        return [random.choice(NUMBERS), random.choice(NUMBERS)]
    if drawn < 0.85:
        return random.sample([decimals(random), random.choice(INTEGERS)], 2)
    one = decimals(random)
    return [one, one if random.random() < 0.3 else decimals(random)]


def _one(random: Random) -> Sequence[pa.DataType]:
    return [random.choice([*NUMBERS, decimals(random), decimals(random)])]


def quotient(call: Call, a: Any, b: Any) -> Any:
    """The quotient: for whole numbers and decimals cut towards zero, for floats maybe infinite."""
    if t.is_floating(call.result):
        x, y = floats(call, (a, b))
        return to_float(_float_quotient(x, y), call.result)
    if not b:
        raise Refused("division by zero")
    exact = Fraction(a) / Fraction(b)
    if t.is_decimal(call.result):
        exact = Fraction(_cut(exact * 10**call.result.scale), 10**call.result.scale)
    else:
        exact = Fraction(_cut(exact))
    return fit(exact, call.result)


def _cut(number: Fraction) -> int:
    return math.trunc(number)


def _float_quotient(a: float, b: float) -> float:
    if b:
        return a / b
    if not a or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _sign(value: Any) -> Any:
    return value if value != value else math.copysign(1.0, value) if value else 0.0


def _extreme(pick: Callable[..., Any], call: Call, *values: Any) -> Any:
    skips = call.options
    there = [value for value in values if value is not None]
    if not there or (len(there) < len(values) and not skips):
        return None
    if t.is_floating(call.result):
        numbers = floats(call, there)
        proper = [one for one in numbers if one == one]
        return OneOf([pick(proper)]) if proper else math.nan  # of two zeros, either is right
    if all(isinstance(one, int | Decimal) for one in there):
        return fit(pick(_exact(there)), call.result)
    return pick(there)


def _compare(name: str) -> Callable[..., Any]:
    def reference(call: Call, a: Any, b: Any) -> Any:
        if isinstance(a, float) != isinstance(b, float):
            a, b = floats(
                Call(call.kinds, result=max(filter(t.is_floating, call.kinds), key=lambda k: k.bit_width)), (a, b)
            )
        return COMPARISONS[name](a, b)

    return reference


_MODES: dict[str, Callable[[Fraction], int]] = {
    "down": math.floor,
    "up": math.ceil,
    "towards_zero": math.trunc,
    "towards_infinity": lambda x: math.ceil(x) if x > 0 else math.floor(x),
    "half_down": lambda x: math.ceil(x - Fraction(1, 2)),
    "half_up": lambda x: math.floor(x + Fraction(1, 2)),
    "half_towards_zero": lambda x: math.ceil(x - Fraction(1, 2)) if x > 0 else math.floor(x + Fraction(1, 2)),
    "half_towards_infinity": lambda x: math.floor(x + Fraction(1, 2)) if x > 0 else math.ceil(x - Fraction(1, 2)),
    "half_to_even": lambda x: round(x),
    "half_to_odd": lambda x: _to_odd(x),
}


def _to_odd(x: Fraction) -> int:
    below = math.floor(x)
    if x - below != Fraction(1, 2):
        return math.floor(x + Fraction(1, 2))
    return below if below % 2 else below + 1


def rounding(call: Call, x: Any, mode: str, unit: Fraction) -> Any:
    """A number rounded to a multiple of `unit`. A float is scaled first, so near the middle it may go either way."""
    if not t.is_floating(call.result):
        made = fit(_MODES[mode](Fraction(x) / unit) * unit, call.result)
        full = t.is_decimal(call.result) and abs(made) * 10**call.result.scale >= 10**36  # 38 digits leave no room
        return OrRefused(made) if unit > 1 or full else made
    [x] = floats(call, [x])
    if not math.isfinite(x):
        return x
    scaled = Fraction(x) / unit
    right = to_float(_double(_MODES[mode](scaled) * unit), call.result)
    if unit.denominator == 1 == unit.numerator:
        return math.copysign(right, x)
    middle = abs(abs(scaled - math.floor(scaled)) - Fraction(1, 2))
    others = {to_float(_double(one * unit), call.result) for one in (math.floor(scaled), math.ceil(scaled))}
    slack = abs(scaled) * Fraction(1, 2 ** (20 if t.is_float32(call.result) else 49))
    whole = abs(scaled - round(scaled))
    near = middle <= slack or whole <= slack
    tiny = abs(x) < 1e-30
    found = OneOf([right, *(others if near or tiny else []), *([x] if tiny else [])])
    return OrRefused(found) if abs(x) > 1e300 else found


def _power(a: Any, b: Any) -> Any:
    if b < 0:
        raise Refused("negative exponent")
    if abs(a) > 1 and b > 64:
        raise Refused("overflow")
    return a**b


def _powers(call: Call, a: Any, b: Any) -> Any:
    if not t.is_floating(call.result):
        return fit(_power(a, b), call.result)
    return Near(_float_power(*floats(call, (a, b))))


def _float_power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:  # zero to a negative power, or a root of a negative number
        if a:
            return math.nan
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf


def _real(function: Callable[..., float]) -> Callable[..., Any]:
    """The reference of a function of real numbers; it is NaN where the function is not defined."""

    def reference(call: Call, *values: Any) -> Any:
        numbers = floats(call, values)
        try:
            return Near(function(*numbers))
        except OverflowError:
            return Near(math.inf)
        except ValueError:
            return Near(math.nan)

    return reference


def _log(function: Callable[[float], float], pole: float = 0.0) -> Callable[..., Any]:
    return _real(lambda x: -math.inf if x == pole else function(x))


def _shift(call: Call, a: int, b: int, left: bool) -> Any:
    if not 0 <= b < call.result.bit_width:
        raise Refused("bits")
    return fit(a << b, call.result) if left else fit(a >> b, call.result)


def _bits(function: Callable[..., int]) -> Callable[..., Any]:
    def reference(call: Call, *values: int) -> Any:
        return fit(function(*values), call.result)

    return reference


_REAL_KINDS = of(NUMBERS)
_MODE_NAMES = list(_MODES)


def _digits(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    digits, mode = random.randint(-3, 3), random.choice(_MODE_NAMES)
    return pc.RoundOptions(digits, mode), (digits, mode)


def _multiple(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    mode, kind = random.choice(_MODE_NAMES), kinds[0]
    unit: Any = random.choice([1, 2, 5, 100])
    if t.is_decimal(kind):
        unit = Decimal((0, (random.randint(1, 9),), -random.randint(0, kind.scale)))
    elif t.is_floating(kind):
        unit = random.choice([0.5, 1.0, 2.0, 0.25])
    return pc.RoundToMultipleOptions(pa.scalar(unit), mode), (Fraction(unit), mode)


def _skips(random: Random, kinds: Sequence[pa.DataType]) -> tuple[Any, Any]:
    skips = random.random() < 0.5
    return pc.ElementWiseAggregateOptions(skip_nulls=skips), skips


CASES: dict[str, Case] = {
    "abs": Case(_one, number(abs)),
    "negate": Case(_one, number(lambda a: -a)),
    "sign": Case(of(NUMBERS), number(lambda a: (a > 0) - (a < 0), _sign)),
    "add": Case(_mix, number(lambda a, b: a + b)),
    "subtract": Case(_mix, number(lambda a, b: a - b)),
    "multiply": Case(_mix, number(lambda a, b: a * b)),
    "divide": Case(_mix, quotient),
    "power": Case(of(NUMBERS, NUMBERS), _powers),
    "shift_left": Case(of(INTEGERS, INTEGERS), lambda call, a, b: _shift(call, a, b, True)),
    "shift_right": Case(of(INTEGERS, INTEGERS), lambda call, a, b: _shift(call, a, b, False)),
    "bit_wise_and": Case(of(INTEGERS, INTEGERS), _bits(lambda a, b: a & b)),
    "bit_wise_or": Case(of(INTEGERS, INTEGERS), _bits(lambda a, b: a | b)),
    "bit_wise_xor": Case(of(INTEGERS, INTEGERS), _bits(lambda a, b: a ^ b)),
    "bit_wise_not": Case(
        of(INTEGERS), lambda call, a: a ^ limits(call.result)[1] if limits(call.result)[0] == 0 else ~a
    ),
    "ceil": Case(_one, lambda call, x: rounding(call, x, "up", Fraction(1))),
    "floor": Case(_one, lambda call, x: rounding(call, x, "down", Fraction(1))),
    "trunc": Case(_one, lambda call, x: rounding(call, x, "towards_zero", Fraction(1))),
    "round": Case(_one, lambda call, x: rounding(call, x, call.options[1], Fraction(10) ** -call.options[0]), _digits),
    "round_to_multiple": Case(_one, lambda call, x: rounding(call, x, call.options[1], call.options[0]), _multiple),
    "is_nan": Case(_one, lambda call, x: x != x),
    "is_inf": Case(_one, lambda call, x: isinstance(x, float) and math.isinf(x)),
    "is_finite": Case(_one, lambda call, x: not isinstance(x, float) or math.isfinite(x)),
    "max_element_wise": Case(_mix, lambda call, *v: _extreme(max, call, *v), _skips, nulls=True),
    "min_element_wise": Case(_mix, lambda call, *v: _extreme(min, call, *v), _skips, nulls=True),
    **{name: Case(_mix, _compare(name)) for name in COMPARISONS},
    "sqrt": Case(_REAL_KINDS, _real(math.sqrt)),
    "exp": Case(_REAL_KINDS, _real(math.exp)),
    "expm1": Case(_REAL_KINDS, _real(math.expm1)),
    "sin": Case(_REAL_KINDS, _real(math.sin)),
    "cos": Case(_REAL_KINDS, _real(math.cos)),
    "tan": Case(_REAL_KINDS, _real(math.tan)),
    "asin": Case(_REAL_KINDS, _real(math.asin)),
    "acos": Case(_REAL_KINDS, _real(math.acos)),
    "atan": Case(_REAL_KINDS, _real(math.atan)),
    "atan2": Case(of(NUMBERS, NUMBERS), _real(math.atan2)),
    "sinh": Case(_REAL_KINDS, _real(lambda x: math.copysign(math.inf, x) if abs(x) > 800 else math.sinh(x))),
    "cosh": Case(_REAL_KINDS, _real(math.cosh)),
    "tanh": Case(_REAL_KINDS, _real(math.tanh)),
    "asinh": Case(_REAL_KINDS, _real(math.asinh)),
    "acosh": Case(_REAL_KINDS, _real(math.acosh)),
    "atanh": Case(_REAL_KINDS, _real(lambda x: math.copysign(math.inf, x) if abs(x) == 1 else math.atanh(x))),
    "ln": Case(_REAL_KINDS, _log(math.log)),
    "log10": Case(_REAL_KINDS, _log(math.log10)),
    "log2": Case(_REAL_KINDS, _log(math.log2)),
    "log1p": Case(_REAL_KINDS, _log(math.log1p, -1.0)),
    "hypot": Case(of(NUMBERS, NUMBERS), _real(math.hypot)),
}
