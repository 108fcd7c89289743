"""The entries of a state as record batches: their columns, and the conversion of entries into columns."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
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
_SHOWN: dict[Shown, pa.DataType] = {"text": pa.string(), "pickle": pa.binary()}
_INSTEAD = (
    'give the columns, as with .schema("key string, value double"), or read the {0}s as text, .option("{0}s", "text"), or '
    'pickled, .option("{0}s", "pickle")'
)


class EntryRows(NamedTuple):
    """Entries as rows, column by column."""

    keys: Sequence[Any]
    values: Sequence[Any]
    starts: Sequence[int] | None
    """For windows: the start of each window, int64 microseconds."""


class StateColumns:
    """One state of a checkpoint as rows: `key`, `value`, and for windows between them `namespace`, their start."""

    def __init__(
        self,
        stored: StoredCheckpoint,
        uid: str,
        state: str | None,
        keys: str = "columns",
        values: str = "columns",
        instead: str = _INSTEAD,
    ) -> None:
        """`instead` is the advice of errors where no type of column holds keys or values. Raises `CheckpointNotFound` for an
        operator or a state that does not exist, and `ConfigError` for an unknown form."""
        self.stored = stored
        self.uid = uid
        self._instead = instead
        self.table = stored.table(uid, state)
        if self.table.kind == BROADCAST:  # a row for each entry
            self.table = msgspec.structs.replace(self.table, kind="value", type=value_type(self.table.type))
        self._how = {"key": check_form(keys, "keys"), "value": check_form(values, "values")}
        self._sample: EntryRows | None = None

    @property
    def windowed(self) -> bool:
        """True if the entries belong to windows."""
        return self.table.kind in ("window", "session")

    def schema(self) -> pa.Schema:
        """The columns, with types of Arrow. If a type is not declared, it is found by a look at some entries. Raises
        `NoColumn` if keys or values need another form."""
        keys = self.sample().keys if self._how["key"] == "columns" else ()
        fields = [pa.field("key", self.key_type(keys)), pa.field("value", self.value_type())]
        if self.windowed:
            fields.insert(1, pa.field("namespace", MOMENT))
        return pa.schema(fields)

    def key_type(self, keys: Sequence[Any]) -> pa.DataType:
        """The type of a column that holds these keys. Raises `NoColumn` if they need another form."""
        return self._looked_at("key", keys) if self._how["key"] == "columns" else _SHOWN[self._how["key"]]

    def value_type(self) -> pa.DataType:
        """The type of the column of values. Raises `NoColumn` if they need another form."""
        if self._how["value"] != "columns":
            return _SHOWN[self._how["value"]]
        return declared_column(self.table) or self._looked_at("value", self.sample().values)

    def _looked_at(self, name: str, values: Sequence[Any]) -> pa.DataType:
        try:
            return column_for(values, self.table.kind if name == "value" else "value")
        except NoColumn as error:
            raise NoColumn(
                f"{self._who}: no type of column holds the {name}s: {error}; {self._instead.format(name)}"
            ) from None

    @property
    def _who(self) -> str:
        return f"state {self.table.name!r} of operator {self.uid!r}"

    def sample(self) -> EntryRows:
        """Some entries, at least `SAMPLE` of them if there are as many; looked for once."""
        if self._sample is None:
            self._sample = self._take_sample()
        return self._sample

    def _take_sample(self) -> EntryRows:
        keys, values = list[Any](), list[Any]()
        for groups in in_samples(self.stored.weights(self.uid, {self.table.name})):
            for one in self.stored.entries(self.uid, {self.table.name}, groups):
                rows = self.rows(one)
                keys += rows.keys
                values += rows.values
            if len(keys) >= SAMPLE:
                break
        return EntryRows(keys, values, None)

    def parts(self, most: int | None = None) -> list[tuple[int, int]]:
        """Ranges of key groups [first, last) that are read together, of about equal size in bytes; at most `most` of them.
        Empty if there are no entries."""
        return split_evenly(self.stored, self.uid, {self.table.name}, most)

    def batches(self, groups: tuple[int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these key groups in these columns, which may be any of `key`, `namespace` and `value`. Raises
        `IncompatibleState`, with the key, for a value that does not fit its column."""
        self._check(schema)
        for rows in self._gather(groups):
            yield pa.RecordBatch.from_arrays([self._field(rows, field) for field in schema], schema=schema)

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
            rows = self.rows(one)
            if waiting and count + len(rows.keys) > BATCH_ROWS:
                yield _join(waiting)
                waiting, count = [], 0
            waiting.append(rows)
            count += len(rows.keys)
        if count:
            yield _join(waiting)

    def rows(self, one: GroupEntries) -> EntryRows:
        """Entries of this state as rows."""
        if self.table.kind == DUPLICATES:
            return EntryRows(list(one.entries), list(map(list, one.entries.values())), None)
        if not self.windowed:
            return EntryRows(list(one.entries), list(one.entries.values()), None)
        entries = one.entries if self.table.kind == "window" else _open_sessions(one.entries)
        keys = chain.from_iterable(repeat(key, len(windows)) for key, windows in entries.items())
        windows = list(entries.values())
        values = chain.from_iterable(each.values() for each in windows)
        return EntryRows(list(keys), list(values), list(chain.from_iterable(windows)))

    def _field(self, rows: EntryRows, field: pa.Field) -> pa.Array:
        if field.name == "namespace":
            return moments(rows.starts or [], field)
        return self.column(field.name, rows.keys if field.name == "key" else rows.values, rows.keys, field)

    def column(
        self,
        name: str,
        values: Sequence[Any],
        keys: Sequence[Any],
        field: pa.Field,
        missing: Sequence[bool] | None = None,
    ) -> pa.Array:
        """A column of keys or of values (`name`) of these keys. Where one is missing, it has null. Raises
        `IncompatibleState`, with the key, for one that does not fit."""
        lacks = missing or [False] * len(values)
        values = [None if lack else value for value, lack in zip(values, lacks, strict=True)]
        if self._how[name] != "columns":
            return show(values, self._how[name], field, missing)
        try:
            return column_of_values(values, field)
        except Misfit as error:
            at = "" if error.row is None else f" (of key {keys[error.row]!r})"
            raise IncompatibleState(f"{self._who}: {error}{at}; {self._instead.format(name)}") from None


def check_form(how: str, option: str) -> Shown:
    """The form, if it is known. Raises `ConfigError` for an unknown one."""
    kinds: dict[str, Shown] = {"columns": "columns", "text": "text", "pickle": "pickle"}
    if how in kinds:
        return kinds[how]
    raise ConfigError(f'option "{option}" is one of {", ".join(kinds)}, not {how!r}')


def show(values: Sequence[Any], how: Shown, field: pa.Field, missing: Sequence[bool] | None = None) -> pa.Array:
    """A column of texts or of pickles, with null for what is missing."""
    make: Callable[[Any], Any] = repr if how == "text" else _pickle
    lacks = missing or [False] * len(values)
    return pa.array([None if lack else make(value) for value, lack in zip(values, lacks, strict=True)], field.type)


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


def split_evenly(
    stored: StoredCheckpoint, uid: str, tables: Collection[str], most: int | None = None
) -> list[tuple[int, int]]:
    """The key groups of these tables of an operator as ranges [first, last) that are read together, of about equal size in
    bytes; at most `most` of them. Empty if there are no entries."""
    weights = stored.weights(uid, tables)
    parts = max(stored.operator(uid).parallelism, sum(weights.values()) // GROUPS_AT_ONCE + 1)
    return split_groups(weights, parts if most is None else most)


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
