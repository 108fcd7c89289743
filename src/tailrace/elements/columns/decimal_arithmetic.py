"""Arithmetic of decimals without rounding."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow

DIGITS = 1000
"""Maximum number of digits of a result. A longer one is an error; it is not rounded."""

EXACT = Context(prec=DIGITS, rounding=ROUND_HALF_UP, traps=[Inexact, InvalidOperation, Overflow, DivisionByZero])
"""Context that raises where Python's default context would round."""

_MEAN_DIGITS = 4


def mean_of(total: Decimal, count: int) -> Decimal:
    """The mean of `count` decimals with the sum `total`, with four more digits after the point than the sum has. It is
    rounded half up once, as in Spark SQL."""
    if not total.is_finite():
        return total / count
    _, _, exponent = total.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent) + _MEAN_DIGITS
    numerator, denominator = EXACT.scaleb(total, scale).as_integer_ratio()
    whole, rest = divmod(abs(numerator), denominator * count)
    if 2 * rest >= denominator * count:
        whole += 1
    return EXACT.scaleb(Decimal(whole if numerator >= 0 else -whole), -scale)
