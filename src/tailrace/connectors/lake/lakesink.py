"""The base of sinks of lake tables: one worker commits what all subtasks have prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa

from tailrace.connectors import folders
from tailrace.connectors.files.partitioned import check_keys
from tailrace.connectors.files.rolling import Roll, check_roll
from tailrace.connectors.filesinks import FileSink
from tailrace.connectors.hidden import FileOrigin, protocol_of
from tailrace.connectors.lake.changes import check_rule
from tailrace.connectors.lake.datafiles import covered_names
from tailrace.connectors.lake.types import table_schema
from tailrace.connectors.schemas import declared_schema
from tailrace.connectors.transactional import PreparedTransaction, Scope, ServerTransaction, TransactionalSink
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError

CONFLICTS = 20
"""Number of conflicts with other writers of the table after which a publication is given back, to be tried later."""


Mode = Literal["append", "upsert"]


class LakeSink(TransactionalSink, FileSink):
    """A sink of a lake table: its transactions are committed together, by one worker."""

    one_publisher = True
    form: Form | None = "columns"
    base: str
    """The table's folder, a path or URL."""
    types: Mapping[pa.DataType, pa.DataType]
    """The types of columns that tables of this format have, by those of records (`lake.types`)."""
    merge_schema = False
    """True if columns that the table does not have are added to it."""
    advice = ""
    """What else to do about such columns, for messages."""

    def __init__(
        self,
        schema: Any,
        mode: Mode,
        keys: str | Sequence[str] | None,
        delete: str | Callable[[Any], bool] | None,
        changes: bool,
        partition_by: str | Sequence[str] | None,
        roll: Roll | None,
        lost_output: Literal["fail", "ignore"],
    ) -> None:
        who = f"sinks.{type(self).__name__}"
        if mode not in get_args(Mode):
            raise ConfigError(f"{who}: mode must be 'append' or 'upsert', not {mode!r}")
        if lost_output not in ("fail", "ignore"):
            raise ConfigError(f"{who}: lost_output must be 'fail' or 'ignore', not {lost_output!r}")
        self.mode, self.lost_output = mode, lost_output
        self.declared = None if schema is None else table_schema(declared_schema(schema, "the sink"), self.types, who)
        self.roll = check_roll(roll, who)
        self.rule = check_rule(mode, keys, delete, changes, self.declared, who)
        if self.rule is not None:
            self.form = None
            if roll is not None:
                raise ConfigError(f"{who}: roll is for mode='append': an upsert writes its files itself")
        self.partition_by = check_keys(partition_by, self.declared, who)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the records; None if those of the stream are taken, or if records have more than columns."""
        return self._columns() if self.rule is None else None

    def _columns(self) -> pa.Schema | None:
        """The columns that are written; None if they are those of the stream."""
        raise NotImplementedError

    def _in_table(self) -> pa.Schema | None:
        """The columns of the table; None if there is no table."""
        raise NotImplementedError

    @property
    def where(self) -> str:
        """The sink and its table, for messages."""
        raise NotImplementedError

    def _fit_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns in which records with these columns are written. Raises `ConfigError` if the table does not take
        them."""
        schema, has = table_schema(schema, self.types, self.where), self._in_table()
        if has is None:
            return schema
        new = [field for field in schema if field.name not in has.names]
        if new and not self.merge_schema:
            raise ConfigError(
                f"{self.where}: the table has no column {new[0].name!r}; it has {', '.join(has.names)}{self.advice}"
            )
        lacking = [field.name for field in has if not field.nullable and field.name not in schema.names]
        if lacking:
            raise ConfigError(f"{self.where}: column {lacking[0]!r} must not be null, and the records lack it")
        there = table_schema(has, self.types, self.where)
        for field in schema:
            if field.name in has.names and there.field(field.name).type != field.type:
                kind = has.field(field.name).type
                raise ConfigError(
                    f"{self.where}: column {field.name!r} is {kind} in the table, and {field.type} in the records"
                )
        return pa.schema([has.field(one.name) if one.name in has.names else one.with_nullable(True) for one in schema])

    @property
    def place(self) -> str | None:
        return None  # two sinks may write into one table

    def encode(self, batch: Any) -> Iterable[bytes]:
        raise NotImplementedError  # writers make files

    def transaction(self, scope: Scope) -> ServerTransaction:
        raise NotImplementedError  # one commit has the transactions of all scopes

    def publish(self, prepared: Sequence[bytes]) -> None:
        with self._lock:
            self.commit_outputs(list(map(PreparedTransaction.decode, prepared)))

    def commit_outputs(self, outputs: Sequence[PreparedTransaction]) -> None:
        """Commits what the table does not have yet of these transactions."""
        raise NotImplementedError

    def settled(self, prepared: Sequence[bytes]) -> None:
        """Does nothing: the marks are in the table."""

    def _sweep(self, goes: Callable[[FileOrigin], bool], keep: Sequence[bytes] = ()) -> None:
        if protocol_of(self.base) is None and self.writes_files:
            folders.folder_at(self.base).sweep(goes, covered_names(keep), traces=False)

    @property
    def writes_files(self) -> bool:
        """True if transactions are files, and not changes."""
        return self.rule is None
