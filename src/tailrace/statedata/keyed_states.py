"""Several states of one operator as record batches: a row for each key, a column for each state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from tailrace.errors import CheckpointNotFound, ConfigError
from tailrace.state.format import OURS
from tailrace.state.operator_state import BROADCAST
from tailrace.statedata.columns import BATCH_ROWS, Shown, StateColumns, check_form, moments, split_evenly
from tailrace.statedata.stored import GroupEntries, StoredCheckpoint
from tailrace.statedata.types import MOMENT

_MISSING: Any = object()
"""Stands for the value of a state that does not have the key."""


class KeyedRows(NamedTuple):
    """Rows, column by column."""

    keys: list[Any]
    starts: list[int]
    """For windows: the start of each window, int64 microseconds."""
    values: dict[str, list[Any]]
    """State -> its value of each key, or `_MISSING`."""


class KeyedStates:
    """Several states of an operator as rows: `key`, for windows `namespace`, their start, and the value of each state. There
    is a row for each key that one of the states has. States that lack it have null."""

    instead = 'read the {0}s as text, {0}s="text", or pickled, {0}s="pickle"'

    def __init__(
        self,
        stored: StoredCheckpoint,
        uid: str,
        states: Sequence[str] | None = None,
        keys: str = "columns",
        values: str = "columns",
    ) -> None:
        """Without names, all states with a key that the operator declares. Raises `CheckpointNotFound` for an operator or a
        state that does not exist, and `ConfigError` for states that do not go together."""
        self.stored = stored
        self.uid = uid
        if states is None:
            states = [one.name for one in stored.operator(uid).tables if one.kind not in OURS]
            if not states:
                raise CheckpointNotFound(f"{stored.url}: {self._who} has no keyed state; {stored.contents()}")
        if not states:
            raise ConfigError(f"{self._who}: no state is named; without names all are read")
        self._each = {name: StateColumns(stored, uid, name, keys, values, self.instead) for name in states}
        self._first = next(iter(self._each.values()))
        self._how: Shown = check_form(keys, "keys")
        if len(self._each) < len(states):
            raise ConfigError(f"{self._who}: a state is named twice: {', '.join(states)}")
        kinds = {name: stored.table(uid, name).kind for name in self._each}
        shared = [name for name, kind in kinds.items() if kind == BROADCAST]
        if shared:
            raise ConfigError(
                f"{self._who}: {shared[0]!r} is a broadcast state, whose entries have no key: read it alone"
            )
        of_windows = {one.windowed for one in self._each.values()}
        self.windowed = of_windows == {True}
        if len(of_windows) > 1:
            raise ConfigError(
                f"{self._who}: some of {', '.join(states)} belong to windows, some do not: read them apart"
            )
        taken = next((name for name in self._each if name in ("key", "namespace")), None)
        if taken is not None:
            raise ConfigError(f"{self._who}: state {taken!r} has the name of a column: read it alone")

    @property
    def names(self) -> list[str]:
        """The names of the states."""
        return list(self._each)

    @property
    def _who(self) -> str:
        return f"operator {self.uid!r}"

    def schema(self) -> pa.Schema:
        """The columns, with types of Arrow. Raises `NoColumn` if keys, or the values of a state, need another form."""
        fields = [pa.field("key", self._key_type())]
        if self.windowed:
            fields.append(pa.field("namespace", MOMENT))
        return pa.schema(fields + [pa.field(name, one.value_type()) for name, one in self._each.items()])

    def _key_type(self) -> pa.DataType:
        sampled = self._each.values() if self._how == "columns" else ()
        return self._first.key_type([key for one in sampled for key in one.sample().keys])

    def parts(self, most: int | None = None) -> list[tuple[int, int]]:
        """Ranges of key groups [first, last) that are read together, as `StateColumns.parts` gives them."""
        return split_evenly(self.stored, self.uid, set(self._each), most)

    def batches(self, groups: tuple[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these key groups in these columns, which may be any of those of `schema`. Raises
        `IncompatibleState`, with the key, for a value that does not fit its column."""
        there = ["key", *(["namespace"] if self.windowed else []), *self._each]
        for name in schema.names:
            if name not in there:
                raise ConfigError(f"{self._who} has the columns {', '.join(there)}, and no column {name!r}")
        for rows in self._gather(groups):
            yield pa.RecordBatch.from_arrays([self._column(rows, field) for field in schema], schema=schema)

    def _gather(self, groups: tuple[int, int]) -> Iterator[KeyedRows]:
        """The rows of these key groups, with small groups joined. All tables of a group come in a row."""
        rows = KeyedRows([], [], {name: [] for name in self._each})
        entries = self.stored.entries(self.uid, set(self._each), groups)
        for _, tables in groupby(entries, key=lambda one: one.group):
            self._add(rows, list(tables))
            if len(rows.keys) >= BATCH_ROWS:
                yield rows
                rows = KeyedRows([], [], {name: [] for name in self._each})
        if rows.keys:
            yield rows

    def _add(self, rows: KeyedRows, tables: list[GroupEntries]) -> None:
        """Adds the rows of a key group."""
        found: dict[Any, dict[str, Any]] = {}
        for one in tables:
            entries = self._each[one.table.name].rows(one)
            keys = zip(entries.keys, entries.starts or (), strict=True) if self.windowed else entries.keys
            for key, value in zip(keys, entries.values, strict=True):
                found.setdefault(key, {})[one.table.name] = value
        if self.windowed:
            rows.starts.extend(start for _, start in found)
        rows.keys.extend(key for key, _ in found) if self.windowed else rows.keys.extend(found)
        for name, column in rows.values.items():
            column.extend(values.get(name, _MISSING) for values in found.values())

    def _column(self, rows: KeyedRows, field: pa.Field) -> pa.Array:
        if field.name == "namespace":
            return moments(rows.starts, field)
        if field.name == "key":
            return self._first.column("key", rows.keys, rows.keys, field)
        values = rows.values[field.name]
        missing = [value is _MISSING for value in values]
        return self._each[field.name].column("value", values, rows.keys, field, missing if any(missing) else None)
