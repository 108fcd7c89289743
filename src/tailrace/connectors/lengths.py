"""Limits of the length of texts in columns: `char(n)` and `varchar(n)` of Spark's tables, also inside of other types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Limit:
    """The limit of one column. A length is in characters, as Spark counts them."""

    text: str
    """Name of the type in Spark."""
    length: int | None = None
    """Maximum length of the text; None if the column is no text, or has no limit."""
    pads: bool = False
    """True if shorter texts are filled up with blanks, as `char(n)` requires."""
    inner: dict[str, Limit] = field(default_factory=dict)
    """Part of the type (`element`, `key`, `value`, or the name of a field) -> its limit."""

    def first_too_long(self, column: Any) -> int | None:
        """The first row with a text that is too long; None if there is none."""
        if self._fits(column):
            return None
        return next(row for row in range(len(column)) if not self._fits(column.slice(row, 1)))

    def _fits(self, column: Any) -> bool:
        if self.length is not None:
            longest = pc.max(pc.utf8_length(column)).as_py()
            return longest is None or longest <= self.length
        return all(limit._fits(_part(column, name)) for name, limit in self.inner.items())

    def pad(self, column: Any) -> Any:
        """The texts, each padded to the full length."""
        return pc.utf8_rpad(column, width=self.length, padding=" ")


def _part(column: Any, name: str) -> Any:
    """A part of a nested column, without the values behind nulls."""
    kind = column.type
    if pa.types.is_struct(kind):
        return column.flatten()[kind.get_field_index(name)]
    if pa.types.is_map(kind):
        entries = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))).flatten()
        return entries.field(name)
    return column.flatten()
