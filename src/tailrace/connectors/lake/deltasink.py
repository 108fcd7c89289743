"""The sink of a Delta table: `tr.sinks.Delta`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors import hidden
from tailrace.connectors.files.holding import held_writer
from tailrace.connectors.files.partitioned import check_keys
from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.lake.changes import GONE, ChangesWriter, changes_in, check_key_columns
from tailrace.connectors.lake.datafiles import DataFile, FilesWriter, check_size, files_in, schema_in, uncover
from tailrace.connectors.lake.deltatable import (
    DeltaFacts,
    DeltaPlace,
    check_features,
    client,
    errors,
    facts_of,
)
from tailrace.connectors.lake.lakesink import CONFLICTS, LakeSink, Mode
from tailrace.connectors.lake.outputs import new_marks, unwritten_outputs
from tailrace.connectors.lake.types import DELTA
from tailrace.connectors.transactional import PreparedTransaction, Scope
from tailrace.errors import ConfigError
from tailrace.log import log


class Delta(LakeSink):
    """A sink that writes into a Delta table, each record once, through the library `deltalake`.

    Each complete checkpoint is one version of the table. A table that does not exist is created.

    - `url`: the table's folder, a path or URL; `storage_options`: credentials and settings of its store, as `deltalake` has
      them.
    - `schema`: DDL text, a `StructType` or a `pyarrow.Schema`; a stream in columns, or a table that exists, does not need
      it. Columns that may be null may be left out.
    - `mode`: "append" adds rows. "upsert" writes over the row with the same `keys`, by a merge. The last record of a key
      wins, so all records of a key must come from one subtask: `stream.key_by(...).sink_to(...)`.
    - `delete`: with "upsert", a function that returns True for a record that deletes the row with its keys, or the name of a
      column with truth values, or "-" and "+", which is not written. Such a record needs nothing but the keys.
    - `changes`: with "upsert", True for a stream of changes: ("+", record) upserts, ("-", record) deletes.
    - `partition_by`: the partition columns of a table that is created.
    - `merge_schema`: True to add columns that the table does not have; False refuses them.
    - `compact`: after this many commits small files are joined to larger ones; None: never.
    - `roll`: when another file begins.
    - `lost_output`: "fail", the job fails where the table has lost what was committed, or "ignore".

    Raises `ConfigError` for wrong arguments, and when the job starts for a table that the records do not fit or that the
    sink cannot write into."""

    description = "delta"
    types = DELTA
    advice = " (merge_schema=True adds columns)"

    def __init__(
        self,
        url: str,
        schema: Any = None,
        *,
        mode: Mode = "append",
        keys: str | Sequence[str] | None = None,
        delete: str | Callable[[Any], bool] | None = None,
        changes: bool = False,
        partition_by: str | Sequence[str] | None = None,
        merge_schema: bool = False,
        compact: int | None = None,
        roll: Roll | None = None,
        storage_options: Mapping[str, str] | None = None,
        lost_output: Literal["fail", "ignore"] = "fail",
    ) -> None:
        who = "sinks.Delta"
        super().__init__(schema, mode, keys, delete, changes, partition_by, roll, lost_output)
        if compact is not None and (isinstance(compact, bool) or not isinstance(compact, int) or compact < 1):
            raise ConfigError(f"{who}: compact is a number of commits, or None, not {compact!r}")
        self.base: str = hidden.folder_for_files(url, who)
        self.path = self.base
        self.merge_schema, self.compact = bool(merge_schema), compact
        self._at = DeltaPlace(self.base, storage_options, who)
        self._facts: DeltaFacts | None = None
        self._looked = False
        self._there = False
        """True if there was a table when the job started."""
        client()

    def __repr__(self) -> str:
        return f"Delta({self.base!r}, mode={self.mode!r})"

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        return (*super().out_of_reach, errors().DeltaError)

    @property
    def permanent(self) -> tuple[type[Exception], ...]:
        return (*super().permanent, errors().SchemaMismatchError, errors().DeltaProtocolError)

    @property
    def where(self) -> str:
        return f"sinks.Delta: {self.base}"

    def _in_table(self) -> pa.Schema | None:
        facts = self._facts_found()
        return None if facts is None else facts.schema

    def _columns(self) -> pa.Schema | None:
        facts = self._facts_found()
        if facts is None:
            return self.declared
        if self.declared is None:
            return None if self.merge_schema else facts.schema
        return self._fit_schema(self.declared)

    def _facts_found(self) -> DeltaFacts | None:
        """The properties of the table, which is looked at once."""
        if not self._looked:
            with self._at.checking():
                table = self._at.table()
                self._facts = None if table is None else facts_of(table)
            self._looked = True
        return self._facts

    def check(self) -> None:
        self._looked = False
        facts = self._facts_found()
        with self._at.checking():
            table = self._at.table()
            if table is not None and facts is not None:
                self._check_table(table, facts)
            elif self.declared is not None:
                table = self._at.create(self.declared, self.partition_by)
                self._looked = False
            self._there = table is not None

    def _check_table(self, table: Any, facts: DeltaFacts) -> None:
        """Raises `ConfigError` for a table that the sink cannot write into."""
        try:
            check_features(table, merges=self.rule is not None)
        except ConfigError as error:
            raise ConfigError(f"sinks.Delta: {self.base}: {error}") from None
        if self.partition_by and self.partition_by != facts.partition_by:
            parts = ", ".join(facts.partition_by) or "no columns"
            raise ConfigError(
                f"sinks.Delta: {self.base}: the table is partitioned by {parts}, not by {', '.join(self.partition_by)} "
                f"(partition_by=): leave it out"
            )
        check_keys(facts.partition_by, facts.schema, "sinks.Delta")
        if self.declared is not None:
            self._fit_schema(self.declared)
        if self.rule is not None:
            check_key_columns(facts.schema, self.rule.keys, "sinks.Delta")

    def writer(self, ctx: SinkContext) -> SinkWriter:
        facts = self._facts_found()
        if self.rule is not None:
            return ChangesWriter(self, ctx, self.rule, self._columns(), self._fit_schema, "sinks.Delta")
        keys = self.partition_by if facts is None else facts.partition_by
        made = FilesWriter(self, ctx, self.base, self._at.folder(), self.schema, self._fit_schema, keys, self.roll)
        return held_writer(made, self.roll)

    # Publishing.

    def commit_outputs(self, outputs: Sequence[PreparedTransaction]) -> None:
        try:
            self._commit_new(outputs)
        except BaseException:
            self._close_table()
            raise

    def _commit_new(self, outputs: Sequence[PreparedTransaction]) -> None:
        for again in reversed(range(CONFLICTS)):
            table = self._table(outputs)
            fresh = unwritten_outputs(self, outputs, partial(_mark_in, table))
            if not fresh:
                return
            try:
                self._commit(table, fresh)
            except errors().CommitFailedError:
                self._close_table()
                if not again:
                    raise
            else:
                self._compact(table)
                return

    def _table(self, outputs: Sequence[PreparedTransaction]) -> Any:
        """The table in its newest version, created if there is none."""
        table = self.__dict__.get("_table_open")
        if table is not None and self._at.has_version(table.version()):
            table.update_incremental()
        else:
            table = self._at.table()
            if table is None and self._there and self.lost_output == "fail":
                raise ConfigError(
                    f"sinks.Delta: {self.base}: the table was there when the job started, and the worker that commits does "
                    f"not see it on {socket.gethostname()}: somebody has removed it, or the path is one that each machine "
                    f"has for itself; give a path or URL that all of them reach"
                )
            if table is None:
                table = self._at.create(_common_schema(outputs), self.partition_by)
            self._table_open = table
        return table

    def _commit(self, table: Any, outputs: Sequence[PreparedTransaction]) -> None:
        """Commits transactions to the version of the table that was looked at. Raises `CommitFailedError` if another
        process has committed one of them since, or, with "upsert", has changed the table."""
        files = [file for one in outputs for file in files_in(one)] if self.rule is None else []
        times = self._finish_files(files)
        self._check_columns(table, facts_of(table), outputs)
        if self.rule is not None:
            self._merge(table, changes_in(outputs, self.rule.keys), self.rule.keys, outputs)
            if all(table.transaction_version(name) == mark for name, mark in new_marks(outputs).items()):
                return  # a merge that changes nothing commits nothing, and so no mark
        table.create_write_transaction(
            list(map(_action, files, times)),
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=_with_marks(outputs),
        )

    def _merge(
        self, table: Any, changes: pa.Table, keys: Sequence[str], outputs: Sequence[PreparedTransaction]
    ) -> None:
        """Merges changes into the table, and brings the table to the version with them."""
        columns = {quote(name): f"source.{quote(name)}" for name in changes.schema.names if name != GONE}
        same = " AND ".join(f"target.{quote(key)} = source.{quote(key)}" for key in keys)
        others = {name: value for name, value in columns.items() if name not in map(quote, keys)}
        gone = f"source.{quote(GONE)}"
        merge = table.merge(
            changes, same, source_alias="source", target_alias="target", commit_properties=_with_marks(outputs)
        )
        merge = merge.when_matched_delete(gone)
        merge = merge.when_matched_update(others, f"NOT {gone}") if others else merge
        merge.when_not_matched_insert(columns, f"NOT {gone}").execute()

    def _finish_files(self, files: Sequence[DataFile]) -> list[int]:
        """Has all files under their names, and returns the times of their last writes, in milliseconds since 1970. Raises
        `FileNotFoundError` if one is lost."""
        if protocol_of(self.base) is None:
            return uncover(self.base, files)
        there = self._at.filesystem().get_file_info([file.path for file in files])
        for file, info in zip(files, there, strict=True):
            check_size(file, f"{self.base}/{file.path}", info.size if info.is_file else None)
        return [(info.mtime_ns or 0) // 1_000_000 for info in there]

    def _check_columns(self, table: Any, facts: DeltaFacts, outputs: Sequence[PreparedTransaction]) -> None:
        """Adds the columns that the table lacks. Raises `ConfigError` where it does not take those of a file: it may have
        changed since the file was written."""
        self._facts, self._looked = facts, True
        new: dict[str, pa.Field] = {}
        for output in outputs:
            own = schema_in(output)
            self._fit_schema(own)
            for field in own:
                if field.name not in facts.schema.names and new.setdefault(field.name, field) != field:
                    raise ConfigError(
                        f"sinks.Delta: {self.base}: column {field.name!r} is {field.type} in one subtask and "
                        f"{new[field.name].type} in another: give the sink a schema"
                    )
        if new:
            table.alter.add_columns(client().Schema.from_arrow(pa.schema(list(new.values()))).fields)
            table.update_incremental()

    def _compact(self, table: Any) -> None:
        """Joins small files, after every few commits. If another writer is in the way, the next time will do."""
        if self.compact is None:
            return
        self._commits = self.__dict__.get("_commits", 0) + 1
        if self._commits >= self.compact:
            self._commits = 0
            try:
                table.update_incremental()
                table.optimize.compact()
            except errors().DeltaError as error:
                log.warning("%s: small files were not joined, and will be after the next commits: %s", self.base, error)

    def _close_table(self) -> None:
        self.__dict__.pop("_table_open", None)

    def close(self) -> None:
        self._close_table()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_table_open"}


def _with_marks(outputs: Sequence[PreparedTransaction]) -> Any:
    """The properties of a commit of these transactions."""
    delta = client()
    marks = [delta.Transaction(name, mark) for name, mark in new_marks(outputs).items()]
    return delta.CommitProperties(app_transactions=marks)


def quote(name: str) -> str:
    """A name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _mark_in(table: Any, scope: Scope) -> int | None:
    """The mark of a scope in a version of the table."""
    return table.transaction_version(scope.name)  # type: ignore[no-any-return]


def _common_schema(outputs: Sequence[PreparedTransaction]) -> pa.Schema:
    """The columns of all transactions, for a table that is created. Raises `ConfigError` if they differ."""
    first, *others = map(schema_in, outputs)
    for one in others:
        if not one.equals(first):
            raise ConfigError(
                "the subtasks of the sink received different columns, and the table does not exist yet: give the sink a "
                "schema"
            )
    return first


def _action(file: DataFile, modified: int) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size, file.partition, modified, True, file.statistics)
