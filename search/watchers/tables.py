"""Entries of tables, for observers: reading them changes nothing, so that an observed job does what any other does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tailrace.state.tables import Layer, StateTable


def entries_of(table: StateTable) -> Iterator[tuple[Any, Any]]:
    """All entries of a table. Columns that are not entries yet become some in a copy, since `StateTable.settle` would move
    them out of the operator's columns, and a checkpoint would have another order and take another path."""
    if table.front is None or table.front.everything() is not None:
        return table.items()
    twin, frozen = copy.copy(table), table.frozen
    twin.top, twin.deleted, twin.users, twin.hurry, twin.exact = {**table.top}, {**table.deleted}, [], None, None
    columns = None if frozen is None else frozen.columns
    twin.front, columns = copy.deepcopy((table.front, columns), {id(table): twin})
    if frozen is not None:
        twin.frozen = Layer({**frozen.entries}, {**frozen.deleted}, columns)
    return twin.items()
