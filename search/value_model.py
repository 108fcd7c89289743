"""A model of aggregates and windows for the search in `search.values`: plain Python over all records at once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any


def key_of(value: Any) -> Any:
    """The form of a value in which two values are equal exactly where they are one key."""
    if isinstance(value, tuple):
        return tuple(map(key_of, value))
    if isinstance(value, datetime):
        return (value.tzinfo is not None, value.astimezone(UTC) if value.tzinfo is not None else value)
    if isinstance(value, int | float | Decimal):
        try:
            return Fraction(value)
        except (ValueError, OverflowError):
            return ("number", str(value).lower().lstrip("-") if value != value else str(float(value)))
    return value


def group(records: Iterable[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """The second items of records by the first ones."""
    found: dict[Any, list[Any]] = {}
    for key, value in records:
        found.setdefault(key_of(key), []).append(value)
    return found


def windows(records: Iterable[tuple[Any, int, Any]], size: int, slide: int) -> dict[Any, list[Any]]:
    """Values by key and start of a window; records are (key, seconds, value)."""
    found: dict[Any, list[Any]] = {}
    for key, at, value in records:
        start = at - at % slide
        while start > at - size:
            found.setdefault((key_of(key), start), []).append(value)
            start -= slide
    return found


def results(values: list[Any]) -> dict[str, Any]:
    """Each aggregate over these values; sums and means of numbers as fractions."""
    there = [value for value in values if value is not None]
    ordered = sorted(there, key=key_of)
    found: dict[str, Any] = {
        "n": len(values),
        "low": key_of(ordered[0]) if there else None,
        "high": key_of(ordered[-1]) if there else None,
    }
    if all(isinstance(value, int | float | Decimal) for value in there):
        total = sum(map(Fraction, there), Fraction(0))
        found |= {"total": total, "mean": mean(total, there)}
    return found


def mean(total: Fraction, values: list[Any]) -> Fraction | None:
    """The mean of values with this total; the mean of decimals is rounded half up to four digits more than they have."""
    if not values:
        return None
    exact = total / len(values)
    if not isinstance(values[0], Decimal):
        return Fraction(float(exact))
    scale = max(-int(value.as_tuple().exponent) for value in values) + 4
    shifted = abs(exact) * 10**scale
    whole = (shifted + Fraction(1, 2)).__floor__()
    return Fraction(whole if exact >= 0 else -whole, 10**scale)
