"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.errors import short_repr

CELL = 40
"""Characters of a cell, at most."""


def text_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a line for each row. Numbers are at the right of their columns."""
    cells = [[_text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = (
        [all(isinstance(value, int | float) for value in column) for column in zip(*rows, strict=True)] if rows else []
    )
    right = right or [False] * len(names)
    lines = [[*names], ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width) for cell, width, at in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _text(value: Any) -> str:
    """A value in one line, cut at `CELL` characters."""
    text = value if isinstance(value, str) and value.isprintable() else short_repr(value, CELL)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"


def table_of_records(records: Sequence[Any]) -> str:
    """A table of records: rows with names and dictionaries by their names, other tuples by number, anything else in one
    column."""
    names: list[str] = []
    rows: list[Sequence[Any]] = []
    kinds = set(map(_kind, records))
    first = records[0] if records else None
    if len(kinds) != 1 or not isinstance(first, tuple | dict):
        names, rows = ["value"], [(one,) for one in records]
    elif isinstance(first, dict):
        names, rows = list(map(str, first)), [tuple(one.values()) for one in records]
    else:
        names = list(getattr(first, "_fields", None) or [f"_{at}" for at in range(1, len(first) + 1)])
        rows = list(records)
    return text_table(names, rows)


def _kind(record: Any) -> tuple[type, Any]:
    """Equal for records that have the same columns."""
    if isinstance(record, dict):
        return dict, tuple(record)
    return type(record), len(record) if isinstance(record, tuple) else 0
