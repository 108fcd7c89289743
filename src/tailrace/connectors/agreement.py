"""Check that all files that one sink writes in one run have equal columns.

If the columns of a sink are not declared, each of its writers takes the columns of its first batch, and records them in the
tokens of its files. The sink compares them when it publishes: it checks all files of a publication against each other and
against earlier ones, before the first of them becomes visible.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.connectors import hidden
from tailrace.connectors.hidden import Columns


class Agreement:
    """The columns of a sink's published files, for each run and sink in the names of the files. It is not kept over a
    restore: restored writers go on with the columns that they had."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[Columns, str]] = {}
        """(run id, sink) -> the columns, and the first file that had them."""

    def check(self, prepared: Sequence[bytes]) -> None:
        """Raises `ValueError` if the columns of files differ."""
        found = dict(self._found)
        for token in prepared:
            columns = hidden.columns_in(token)
            name = hidden.plain_name(token).rpartition("/")[2]
            origin = hidden.origin_of(name)
            if columns is None or origin is None:
                continue
            first, where = found.setdefault((origin.run_id, origin.whose), (columns, name))
            if first != columns:
                raise ValueError(_told(first, where, columns, name))
        self._found = found


def _told(one: Columns, where: str, other: Columns, there: str) -> str:
    return (
        f"its subtasks received different columns: {_difference(dict(one), dict(other))} ({where}, {there}); no schema is "
        f"declared, so each subtask took the columns of its first batch. None of these files becomes visible: give the "
        f"sink a schema, or the stream one with to_columns(schema), and start anew, or from an earlier checkpoint"
    )


def _difference(one: dict[str, str], other: dict[str, str]) -> str:
    for name, kind in one.items():
        if name not in other:
            return f"column {name!r} is in one file and not in the other"
        if kind != other[name]:
            return f"column {name!r} is {kind} in one file and {other[name]} in the other"
    new = [name for name in other if name not in one]
    if new:
        return f"column {new[0]!r} is in one file and not in the other"
    return f"({', '.join(one)}) and ({', '.join(other)})"
