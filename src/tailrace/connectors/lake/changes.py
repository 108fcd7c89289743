"""Upserts and deletes on their way to a table: of each key the last record, as columns with a mark for deletes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from tailrace.api.connectors import SinkContext
from tailrace.connectors.transactional import (
    ATTEMPT_BITS,
    NUMBER_BITS,
    PreparedTransaction,
    TransactionalSink,
    TransactionWriter,
)
from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.columns.misfit import Misfit
from tailrace.elements.columns.named_records import column_lists, names_of
from tailrace.elements.columns.schemas import batch_as
from tailrace.elements.rows import field_getter
from tailrace.errors import ConfigError, short_repr

GONE = "%deleted"
"""Column beside those of the table: True for a delete, of which only the keys count."""
_EPOCH, _PLACE, _ROW = "%epoch", "%subtask", "%row"


class ChangeRule(NamedTuple):
    """The settings by which a record is an upsert or a delete."""

    keys: tuple[str, ...]
    delete: str | Callable[[Any], bool] | None
    changes: bool
    """True for records that are pairs, ("+", record) or ("-", record)."""


def check_names(given: Any, setting: str, who: str) -> tuple[str, ...]:
    """Names of columns, each once. A single one may be a text. Raises `ConfigError` for what is none."""
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(one, str) and one for one in names) or len(set(names)) < len(names):
        raise ConfigError(f"{who}: {setting} takes names of columns, each once, not {given!r}")
    return names


def check_rule(
    mode: str, keys: Any, delete: Any, changes: bool, schema: pa.Schema | None, who: str
) -> ChangeRule | None:
    """The settings of an upsert, checked; None for an append. Raises `ConfigError` for settings that do not fit."""
    names = check_names(keys, "keys", who)
    if (mode == "upsert") != bool(names):
        raise ConfigError(f"{who}: mode='upsert' needs keys=[...], the columns by which a row is found, and only it")
    if (delete is not None or changes) and mode != "upsert":
        raise ConfigError(f"{who}: delete= and changes= are for mode='upsert'")
    if delete is not None and (changes or not (callable(delete) or (isinstance(delete, str) and delete))):
        raise ConfigError(f"{who}: delete is a function or the name of a column, and not both delete= and changes=True")
    if not names:
        return None
    if schema is not None:
        check_key_columns(schema, names, who)
    return ChangeRule(names, delete, bool(changes))


def check_key_columns(schema: pa.Schema, keys: Sequence[str], who: str) -> None:
    """Raises `ConfigError` unless the keys are columns whose values can be compared."""
    for key in keys:
        if key not in schema.names:
            raise ConfigError(f"{who}: keys has {key!r}, and the columns are {', '.join(schema.names)}")
        kind = schema.field(key).type
        if t.is_floating(kind) or t.is_nested(kind):
            raise ConfigError(
                f"{who}: key {key!r} is {kind}; a key is a number without a fraction, a text, bytes or a time"
            )


class ChangesWriter(TransactionWriter):
    """A writer of transactions whose pieces are the schema of the records, and the changes in Arrow's stream format."""

    def __init__(
        self,
        sink: TransactionalSink,
        ctx: SinkContext,
        rule: ChangeRule,
        schema: pa.Schema | None,
        fit_schema: Callable[[pa.Schema], pa.Schema],
        who: str,
    ) -> None:
        """`schema`: the columns of the records; None if `fit_schema` is to make them of the columns of the first batch."""
        super().__init__(sink, ctx)
        self.rule, self.schema, self._fit_schema, self._who = rule, schema, fit_schema, who
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: Any) -> None:
        if self.schema is None:
            self._find_schema(batch)
        try:
            self._batches.append(self._changes(batch))
        except Misfit as error:
            if error.row is not None:
                row = error.row
                self.record = batch[row] if isinstance(batch, list) else batch.slice(row, 1).to_pylist()[0]
            raise

    def _find_schema(self, batch: Any) -> None:
        if isinstance(batch, list):
            raise TypeError("the table does not exist, and the stream is in rows: give the sink a schema")
        own = [field for field in batch.schema if field.name != self.rule.delete]
        self.schema = self._fit_schema(pa.schema(own))
        check_key_columns(self.schema, self.rule.keys, self._who)

    def _changes(self, batch: Any) -> pa.RecordBatch:
        """The changes of a batch, in its order."""
        if isinstance(batch, list):
            gone, records = self._ops(batch)
            live = self._fit(lambda: self._rows([r for r, g in zip(records, gone, strict=True) if not g]), ~gone)
            dead = self._fit(lambda: self._keys([r for r, g in zip(records, gone, strict=True) if g]), gone)
        else:
            gone = self._ops_in_columns(batch)
            own = [name for name in batch.schema.names if name != self.rule.delete]
            live = self._fit(lambda: batch_as(_where(batch, ~gone).select(own), self._of_schema()), ~gone)
            keys = self._key_schema()
            dead = self._fit(lambda: batch_as(_where(batch, gone).select(list(self.rule.keys)), keys), gone)
        return self._in_order(live, dead, gone)

    def _ops(self, batch: list[Any]) -> tuple[np.ndarray, list[Any]]:
        """Which records delete, and the records."""
        delete = self.rule.delete
        if self.rule.changes:
            wrong = next((i for i, one in enumerate(batch) if not _is_change(one)), None)
            if wrong is not None:
                raise Misfit(f"a change is ('+', record) or ('-', record), not {short_repr(batch[wrong], 80)}", wrong)
            return np.array([op == "-" for op, _ in batch], bool), [record for _, record in batch]
        if delete is None:
            return np.zeros(len(batch), bool), batch
        given = [self._op(delete, one) for one in batch] if isinstance(delete, str) else list(map(delete, batch))
        return _truths(given), batch

    def _op(self, delete: str, record: Any) -> Any:
        """The value that marks a record as one that deletes, or not. In a record without names it is the last one."""
        if isinstance(record, tuple | list) and names_of(record) is None and len(record):
            return record[-1]
        return field_getter(delete, record)(record)

    def _ops_in_columns(self, batch: pa.RecordBatch) -> np.ndarray:
        delete = self.rule.delete
        if self.rule.changes or callable(delete):
            raise TypeError("the stream is in columns: give delete= the name of a column")
        return np.zeros(batch.num_rows, bool) if delete is None else _truths(batch.column(delete).to_pylist())

    def _rows(self, records: list[Any]) -> pa.RecordBatch:
        lists = column_lists(records, self._whole())[: len(self._of_schema())]
        return _batch(lists, self._of_schema())

    def _keys(self, records: list[Any]) -> pa.RecordBatch:
        """The keys of records that delete. Records with names may lack all else."""
        if records and names_of(records[0]) is None:
            whole = self._whole()
            lists = column_lists(records, whole)
            return _batch([lists[whole.index(key)] for key in self.rule.keys], self._key_schema())
        columns = [[field_getter(key, record)(record) for record in records] for key in self.rule.keys]
        return _batch(columns, self._key_schema())

    def _whole(self) -> list[str]:
        """The names of a whole record: the columns, and the one that says what is deleted."""
        delete = self.rule.delete
        return [*self._of_schema().names, *([delete] if isinstance(delete, str) else [])]

    def _of_schema(self) -> pa.Schema:
        assert self.schema is not None
        return self.schema

    def _key_schema(self) -> pa.Schema:
        return pa.schema([self._of_schema().field(key).with_nullable(False) for key in self.rule.keys])

    def _fit(self, make: Callable[[], pa.RecordBatch], chosen: np.ndarray) -> pa.RecordBatch:
        """The batch that `make` makes of the chosen records. A `Misfit` gets the place of its record among all."""
        try:
            return make()
        except Misfit as error:
            row = None if error.row is None else int(np.flatnonzero(chosen)[error.row])
            raise Misfit(str(error), row) from None

    def _in_order(self, live: pa.RecordBatch, dead: pa.RecordBatch, gone: np.ndarray) -> pa.RecordBatch:
        """Upserts and deletes as one batch, in the order of the records. Raises `Misfit` for a key that is null."""
        keys, arrays = self.rule.keys, []
        order = np.empty(len(gone), np.int64)
        order[~gone] = np.arange(live.num_rows)
        order[gone] = live.num_rows + np.arange(dead.num_rows)
        fields = [field.with_nullable(field.name not in keys) for field in self._of_schema()]
        for field in fields:
            rest = dead.column(field.name) if field.name in keys else pa.nulls(dead.num_rows, field.type)
            column = pa.concat_arrays([live.column(field.name), rest]).take(pa.array(order))
            if field.name in keys and column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise Misfit(f"key {field.name!r} is null", row)
            arrays.append(column)
        schema = pa.schema([*fields, pa.field(GONE, pa.bool_(), False)])
        return pa.RecordBatch.from_arrays([*arrays, pa.array(gone)], schema=schema)

    def prepare(self) -> bytes | None:
        if not self._batches:
            return None
        changes = last_of_keys(pa.Table.from_batches(self._batches), self.rule.keys)
        self._batches = []
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, changes.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(changes)
        self._pieces = [self._of_schema().serialize().to_pybytes(), out.getvalue().to_pybytes()]
        return super().prepare()


def _is_change(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and one[0] in ("+", "-")


def _batch(lists: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(map(column_of_values, lists, schema)), schema=schema)


def _where(batch: pa.RecordBatch, chosen: np.ndarray) -> pa.RecordBatch:
    return batch if chosen.all() else batch.filter(pa.array(chosen))


def _truths(given: Sequence[Any]) -> np.ndarray:
    """True for each record that deletes. Raises `Misfit` for what says neither."""
    meanings = {"+": False, "-": True}
    for at, one in enumerate(given):
        if not isinstance(one, bool) and one not in meanings:
            raise Misfit(
                f"delete must be True or False for each record, or '-' or '+', and is {short_repr(one, 80)}", at
            )
    return np.array([one if isinstance(one, bool) else meanings[one] for one in given], bool)


def last_of_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    numbered = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    return table if len(last) == table.num_rows else table.take(last.combine_chunks().sort())


def changes_in(outputs: Sequence[PreparedTransaction], keys: Sequence[str]) -> pa.Table:
    """The last change of each key in these transactions, in their order. Raises `ValueError` if their columns differ, or if
    two subtasks of one job have written a key: which of the two is the later one, nobody knows."""
    parts, schema = [], None
    for output in outputs:
        table = pa.ipc.open_stream(output.pieces[1]).read_all()
        if not table.schema.equals(schema := schema or table.schema):
            raise ValueError("the subtasks of the sink received different columns: give the sink a schema")
        epoch = f"{output.scope.run_id}/{output.counter >> NUMBER_BITS + ATTEMPT_BITS}"
        parts.append(
            table.append_column(_EPOCH, pa.repeat(epoch, len(table))).append_column(
                _PLACE, pa.repeat(output.scope.subtask, len(table))
            )
        )
    whole = pa.concat_tables(parts)
    places = whole.group_by([*keys, _EPOCH]).aggregate([(_PLACE, "min"), (_PLACE, "max")])
    shared = places.filter(pc.not_equal(places[f"{_PLACE}_min"], places[f"{_PLACE}_max"]))
    if len(shared):
        key = shared.select(list(keys)).slice(0, 1).to_pylist()[0]
        raise ValueError(
            f"two subtasks of the sink have written the key {key} for one checkpoint, so nobody knows which record is the "
            f"last one: key the stream by them before the sink, stream.key_by(...).sink_to(...)"
        )
    return last_of_keys(whole.drop_columns([_EPOCH, _PLACE]), keys)
