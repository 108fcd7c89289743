"""The entries of a state as record batches: their columns, and the conversion of entries into columns."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.errors import ConfigError, IncompatibleState
from tailrace.state.declarations import value_type
from tailrace.state.operator_state import BROADCAST
from tailrace.statedata.stored import GroupEntries, StoredCheckpoint
from tailrace.statedata.types import DUPLICATES, MOMENT, NoColumn, column_for, declared_column

Shown = Literal["columns", "text", "pickle"]
"""The form in which keys or values are shown: as columns of their own type, as the text that `repr` returns, or pickled."""
SAMPLE = 1_000
"""Smallest number of entries that are looked at to find the type of a column, if there are as many."""
_SAMPLE_BYTES = 256 << 10
BATCH_ROWS = 16_384
"""Largest number of rows in a batch, unless a single key group has more."""
GROUPS_AT_ONCE = 32 << 20
"""Approximate number of bytes of state that one task reads."""


class EntryRows(NamedTuple):
    """Entries as rows, column by column."""

    keys: Sequence[Any]
    values: Sequence[Any]
    starts: Sequence[int] | None
    """For windows: the start of each window, int64 microseconds."""


class StateColumns:
    """One state of a checkpoint as rows: `key`, `value`, and for windows between them `namespace`, their start."""

    def __init__(
        self, stored: StoredCheckpoint, uid: str, state: str | None, keys: str = "columns", values: str = "columns"
    ) -> None:
        """Raises `CheckpointNotFound` for an operator or a state that does not exist, and `ConfigError` for an unknown
        form."""
        self.stored = stored
        self.uid = uid
        self.table = stored.table(uid, state)
        if self.table.kind == BROADCAST:  # a row for each entry
            self.table = msgspec.structs.replace(self.table, kind="value", type=value_type(self.table.type))
        self._how = {"key": check_form(keys, "keys"), "value": check_form(values, "values")}

    @property
    def windowed(self) -> bool:
        """True if the entries belong to windows."""
        return self.table.kind in ("window", "session")

    def schema(self) -> pa.Schema:
        """The columns, with types of Arrow. If a type is not declared, it is found by a look at some entries. Raises
        `NoColumn` if keys or values need another form."""
        sample: EntryRows | None = None
        fields = []
        for name in ("key", "value"):
            how, found = self._how[name], None
            if how == "columns" and name == "value":
                found = declared_column(self.table)
            if how == "columns" and found is None:
                sample = sample or self._sample()
                found = self._looked_at(name, sample.keys if name == "key" else sample.values)
            fields.append(pa.field(name, found or (pa.string() if how == "text" else pa.binary())))
        if self.windowed:
            fields.insert(1, pa.field("namespace", MOMENT))
        return pa.schema(fields)

    def _looked_at(self, name: str, values: Sequence[Any]) -> pa.DataType:
        try:
            return column_for(values, self.table.kind if name == "value" else "value")
        except NoColumn as error:
            raise NoColumn(
                f"{self._who}: no type of column holds the {name}s: {error}; {self._instead(name)}"
            ) from None

    @property
    def _who(self) -> str:
        return f"state {self.table.name!r} of operator {self.uid!r}"

    def _instead(self, name: str) -> str:
        return (
            f'give the columns, as with .schema("key string, value double"), or read the {name}s as text, '
            f'.option("{name}s", "text"), or pickled, .option("{name}s", "pickle")'
        )

    def _sample(self) -> EntryRows:
        keys, values = list[Any](), list[Any]()
        for groups in in_samples(self.stored.weights(self.uid, {self.table.name})):
            for one in self.stored.entries(self.uid, {self.table.name}, groups):
                rows = self._rows(one)
                keys += rows.keys
                values += rows.values
            if len(keys) >= SAMPLE:
                break
        return EntryRows(keys, values, None)

    def parts(self, most: int | None = None) -> list[tuple[int, int]]:
        """Ranges of key groups [first, last) that are read together, of about equal size in bytes; at most `most` of them.
        Empty if there are no entries."""
        weights = self.stored.weights(self.uid, {self.table.name})
        parts = max(self.stored.operator(self.uid).parallelism, sum(weights.values()) // GROUPS_AT_ONCE + 1)
        return split_groups(weights, parts if most is None else most)

    def batches(self, groups: tuple[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these key groups in these columns, which may be any of `key`, `namespace` and `value`. Raises
        `IncompatibleState`, with the key, for a value that does not fit its column."""
        self._check(schema)
        for rows in self._gather(groups):
            yield pa.RecordBatch.from_arrays([self._column(rows, field) for field in schema], schema=schema)

    def _check(self, schema: pa.Schema) -> None:
        there = ["key", "namespace", "value"] if self.windowed else ["key", "value"]
        for name in schema.names:
            if name not in there:
                raise ConfigError(f"{self._who} has the columns {', '.join(there)}, and no column {name!r}")

    def _gather(self, groups: tuple[int, int]) -> Iterator[EntryRows]:
        """The rows of these key groups, with small groups joined."""
        waiting: list[EntryRows] = []
        count = 0
        for one in self.stored.entries(self.uid, {self.table.name}, groups):
            rows = self._rows(one)
            if waiting and count + len(rows.keys) > BATCH_ROWS:
                yield _join(waiting)
                waiting, count = [], 0
            waiting.append(rows)
            count += len(rows.keys)
        if count:
            yield _join(waiting)

    def _rows(self, one: GroupEntries) -> EntryRows:
        if self.table.kind == DUPLICATES:
            return EntryRows(list(one.entries), list(map(list, one.entries.values())), None)
        if not self.windowed:
            return EntryRows(list(one.entries), list(one.entries.values()), None)
        entries = one.entries if self.table.kind == "window" else _open_sessions(one.entries)
        keys = chain.from_iterable(repeat(key, len(windows)) for key, windows in entries.items())
        windows = list(entries.values())
        values = chain.from_iterable(each.values() for each in windows)
        return EntryRows(list(keys), list(values), list(chain.from_iterable(windows)))

    def _column(self, rows: EntryRows, field: pa.Field) -> pa.Array:
        if field.name == "namespace":
            return moments(rows.starts or [], field)
        values = rows.keys if field.name == "key" else rows.values
        how = self._how[field.name]
        if how != "columns":
            return show(values, how, field)
        try:
            return column_of_values(values, field)
        except Misfit as error:
            at = "" if error.row is None else f" (of key {rows.keys[error.row]!r})"
            raise IncompatibleState(f"{self._who}: {error}{at}; {self._instead(field.name)}") from None


def check_form(how: str, option: str) -> Shown:
    """The form, if it is known. Raises `ConfigError` for an unknown one."""
    kinds: dict[str, Shown] = {"columns": "columns", "text": "text", "pickle": "pickle"}
    if how in kinds:
        return kinds[how]
    raise ConfigError(f'option "{option}" is one of {", ".join(kinds)}, not {how!r}')


def show(values: Iterable[Any], how: Shown, field: pa.Field, *, absent: bool = False) -> pa.Array:
    """A column of texts or of pickles. With `absent`, None stands for a missing value."""
    make: Callable[[Any], Any] = repr if how == "text" else _pickle
    return pa.array([None if absent and value is None else make(value) for value in values], field.type)


def _pickle(value: Any) -> bytes:
    return pickle.dumps(value, 5)


def moments(micros: Sequence[int], field: pa.Field) -> pa.Array:
    """A column of moments from int64 microseconds."""
    return pa.array(np.array(micros, np.int64)).cast(field.type)


def _join(rows: list[EntryRows]) -> EntryRows:
    if len(rows) == 1:
        return rows[0]
    starts = None if rows[0].starts is None else list(chain.from_iterable(one.starts or () for one in rows))
    return EntryRows(
        list(chain.from_iterable(one.keys for one in rows)),
        list(chain.from_iterable(one.values for one in rows)),
        starts,
    )


def in_samples(weights: dict[int, int]) -> list[tuple[int, int]]:
    """Ranges of key groups [first, last), each usually large enough to show what entries look like."""
    return split_groups(weights, max(1, sum(weights.values()) // _SAMPLE_BYTES))


def split_groups(weights: dict[int, int], parts: int) -> list[tuple[int, int]]:
    """The key groups as at most `parts` ranges [first, last) of about equal weight. Groups without weight between two ranges
    are left out."""
    if parts < 1:
        raise ConfigError(f"state is read in at least one partition, not {parts}")
    found: list[tuple[int, int]] = []
    total, taken, first = sum(weights.values()), 0, None
    for group in sorted(weights):
        first = group if first is None else first
        taken += weights[group]
        if taken * parts >= total * (len(found) + 1):
            found.append((first, group + 1))
            first = None
    return found


def _open_sessions(entries: dict[Any, Any]) -> dict[Any, dict[int, Any]]:
    """Accumulators of sessions by key and start. Sessions that were emitted are left out."""
    return {
        key: {start: state for start, (_, order, state) in sessions.items() if order > 0}
        for key, sessions in entries.items()
    }
