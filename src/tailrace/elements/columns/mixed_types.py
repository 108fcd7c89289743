"""Checks of the types that are mixed in one call of an expression. Arrow takes some different types together and changes
their values without an error: a coalesce of seconds and microseconds in two zones returns their bare numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.elements.columns.kinds import NUMBERS, family

LOOKUPS = frozenset(("is_in", "index_in"))
"""Functions that look values up in a set."""


def check_together(name: str, kinds: Sequence[pa.DataType]) -> None:
    """Raises `TypeError` for arguments of types that the function would take together with a change of values."""
    if name == "make_struct":
        return
    zones = {kind.tz for kind in kinds if pa.types.is_timestamp(kind)}
    if zones - {None} and (None in zones or any(map(pa.types.is_date, kinds))):
        raise TypeError(
            f"pc.{name} is given a time with a zone and one without; cast one of them: pc.assume_timezone or "
            f"pc.local_timestamp"
        )
    if name == "coalesce" and len(zones) > 1:
        raise TypeError(f"pc.{name} is given times of the zones {_list_of(zones)}; cast them to one type")
    if name == "choose":
        chosen = set(kinds[1:])
        if len(chosen) > 1 and not all(family(kind) in ("integer", "float") for kind in chosen):
            raise TypeError(f"pc.{name} is given {_list_of(chosen)}; cast them to one type")


def _list_of(several: set[Any]) -> str:
    return ", ".join(sorted(map(str, several)))


class Lookup:
    """The set of an `is_in` or `index_in`. 0.0 and -0.0 are equal in it, as for `==` and as keys."""

    def __init__(self, name: str, written: pa.Scalar) -> None:
        self._name = name
        self._values = _one_zero(written["value_set"].values)
        self.options = pc.SetLookupOptions(self._values, skip_nulls=written["null_matching_behavior"].as_py() == 1)
        self._fits: pa.DataType | None = None
        """Type of the column that was looked up last, which was checked."""

    def arguments(self, column: Any) -> list[Any]:
        """The arguments for a call of the function. Raises `TypeError` if it would compare with values other than the
        set's."""
        if column.type != self._fits:
            self._check(column.type)
            self._fits = column.type
        return [_one_zero(column)]

    def _check(self, kind: pa.DataType) -> None:
        """Raises `TypeError` if a lookup of this type would change values. Arrow casts the set to the type of the column if
        it can, though 05:00 becomes a day, and 0.1 a float."""
        given = self._values.type
        if pa.types.is_null(given) or pa.types.is_null(kind) or given == kind:
            return
        what = {family(given), family(kind)}
        if (len(what) > 1 and not what <= NUMBERS) or what == {"decimal", "float"}:
            raise TypeError(f"pc.{self._name} looks up {kind} among {given}; cast one of them")
        try:
            cast = self._values.cast(kind)
            back = cast.cast(given)
        except pa.ArrowInvalid:  # Arrow casts the column then
            if "decimal" in what:  # and digits are lost there: -2.25 with 37 places is 0 among hundreds
                raise TypeError(
                    f"pc.{self._name} looks up {kind} among {given}, which {kind} cannot hold; cast the column"
                ) from None
            return
        for value, same in zip(self._values, pc.is_in(self._values, back), strict=True):
            if not same.as_py():
                raise TypeError(
                    f"pc.{self._name} looks up {kind}, and no such value is {value}; cast the column, or give the set as "
                    f"pa.array(values, {kind})"
                )


def _one_zero(values: Any) -> Any:
    """The values, with 0.0 for -0.0 if they are floats."""
    if not pa.types.is_floating(values.type) or pa.types.is_float16(values.type):
        return values
    return pc.add(values, pa.scalar(0.0, values.type))
