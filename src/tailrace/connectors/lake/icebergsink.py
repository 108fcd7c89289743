"""The sink of an Iceberg table: `tr.sinks.Iceberg`.

The marks are a property of the table, set in the transaction that adds the files: snapshots expire, properties do not. The
library tries a commit again that another one has overtaken, with the same content, whatever the marks are by then. So its
tries are off, in the copy of the table's metadata in this process, and the sink looks for its marks before each try.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors.files.holding import held_writer
from tailrace.connectors.files.partitioned import check_keys
from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.hidden import SinkFolder, protocol_of
from tailrace.connectors.lake.changes import GONE, ChangesWriter, changes_in, check_key_columns
from tailrace.connectors.lake.datafiles import DataFile, FilesWriter, StoreFolder, check_size, files_in, uncover
from tailrace.connectors.lake.icebergtable import IcebergFacts, IcebergPlace, check_features, facts_of
from tailrace.connectors.lake.lakesink import CONFLICTS, LakeSink, Mode
from tailrace.connectors.lake.outputs import unwritten_outputs
from tailrace.connectors.lake.types import ICEBERG
from tailrace.connectors.localfiles import LocalSinkFolder
from tailrace.connectors.transactional import PreparedTransaction, Scope
from tailrace.errors import ConfigError

MARKS = "tailrace.marks."
"""Prefix of the properties with marks: each has those of the subtasks of one sink in one run, as JSON."""


class Iceberg(LakeSink):
    """A sink that writes into an Iceberg table, each record once, through the library `pyiceberg`.

    Each complete checkpoint is one commit. A table that does not exist is created when the job starts.

    - `catalog`: the name of a catalog in pyiceberg's configuration, a dict of properties (`name`, `type`, `uri`, ...), or a
      catalog of pyiceberg; `table`: the name of the table, `namespace.table`.
    - `schema`: DDL text, a `StructType` or a `pyarrow.Schema`; a table that exists needs none.
    - `mode`, `keys`, `delete`, `changes`: as for `tr.sinks.Delta`.
    - `partition_by`: the partition columns of a table that is created, each by its values.
    - `roll`: when another file begins.
    - `lost_output`: "fail", the job fails where the table has lost what was committed, or "ignore".

    Raises `ConfigError` for wrong arguments, and when the job starts for a table that the records do not fit or that the
    sink cannot write into."""

    description = "iceberg"
    types = ICEBERG

    def __init__(
        self,
        catalog: Any,
        table: str,
        schema: Any = None,
        *,
        mode: Mode = "append",
        keys: str | Sequence[str] | None = None,
        delete: str | Callable[[Any], bool] | None = None,
        changes: bool = False,
        partition_by: str | Sequence[str] | None = None,
        roll: Roll | None = None,
        lost_output: Literal["fail", "ignore"] = "fail",
    ) -> None:
        self._at = IcebergPlace(catalog, table, "sinks.Iceberg")
        super().__init__(schema, mode, keys, delete, changes, partition_by, roll, lost_output)
        self._facts: IcebergFacts | None = None

    def __repr__(self) -> str:
        return f"Iceberg({self._at.name!r}, {self._at.table_name!r}, mode={self.mode!r})"

    @property
    def base(self) -> str:  # type: ignore[override]
        """The folder of the table's files."""
        return self._facts_now().files

    @property
    def where(self) -> str:
        return str(self._at)

    def _in_table(self) -> pa.Schema:
        return self._facts_now().schema

    def _columns(self) -> pa.Schema:
        return self._facts_now().schema if self.declared is None else self._fit_schema(self.declared)

    def _facts_now(self) -> IcebergFacts:
        """The properties of the table. Creates one that does not exist, if its columns are declared."""
        if self._facts is None:
            with self._at.checking():
                table = self._at.table()
                if table is None:
                    if self.declared is None:
                        raise ConfigError(f"{self._at}: there is no such table: give the sink a schema to create it")
                    table = self._at.create(self.declared, self.partition_by)
                self._facts = facts_of(table, self._at)
        return self._facts

    def check(self) -> None:
        self._facts = None
        facts = self._facts_now()
        check_features(facts, self._at)
        if self.partition_by and self.partition_by != facts.partition_by:
            parts = ", ".join(facts.partition_by) or "no columns"
            raise ConfigError(f"{self._at}: the table is partitioned by {parts} (partition_by=): leave it out")
        check_keys(facts.partition_by, facts.schema, str(self._at))
        schema = self._columns()
        if self.rule is not None:
            check_key_columns(schema, self.rule.keys, str(self._at))

    def writer(self, ctx: SinkContext) -> SinkWriter:
        facts = self._facts_now()
        if self.rule is not None:
            return ChangesWriter(self, ctx, self.rule, self._columns(), self._fit_schema, str(self._at))
        made = FilesWriter(
            self, ctx, facts.files, self._folder_of(facts), self._columns(), self._fit_schema, facts.partition_by,
            self.roll, keep_keys=True,
        )  # fmt: skip
        return held_writer(made, self.roll)

    def _folder_of(self, facts: IcebergFacts) -> SinkFolder:
        if protocol_of(facts.files) is None:
            return LocalSinkFolder(facts.files)
        files = self._at.load().io
        return StoreFolder(facts.files, lambda name: files.new_output(f"{facts.files}/{name}").create())

    # Publishing.

    def commit_outputs(self, outputs: Sequence[PreparedTransaction]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for again in reversed(range(CONFLICTS)):
            table = self._at.load()
            table.metadata.properties["commit.retry.num-retries"] = "0"  # of this copy, not of the table
            known = {name: json.loads(text) for name, text in table.properties.items() if name.startswith(MARKS)}
            fresh = unwritten_outputs(self, outputs, partial(_mark_in, known))
            if not fresh:
                return
            try:
                self._commit(table, fresh, known)
            except CommitFailedException:
                if not again:
                    raise
            else:
                return

    def _commit(self, table: Any, outputs: Sequence[PreparedTransaction], known: Mapping[str, Any]) -> None:
        """Commits transactions to the snapshot of the table that was looked at. Raises `CommitFailedException` if another
        commit came since."""
        marks = {_property(one.scope): dict(known.get(_property(one.scope), {})) for one in outputs}
        for one in outputs:
            marks[_property(one.scope)][str(one.scope.subtask)] = one.counter
        texts = {name: json.dumps(each) for name, each in marks.items()}
        transaction = table.transaction()
        transaction.set_properties(texts)
        if self.rule is None:
            files = [file for one in outputs for file in files_in(one)]
            self._finish_files(table, files)
            start = f"file://{self.base}" if protocol_of(self.base) is None else self.base
            paths = [f"{start}/{file.path}" for file in files]
            transaction.add_files(paths, snapshot_properties=texts)
        else:
            changes = changes_in(outputs, self.rule.keys)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that no row has such a key
                transaction.delete(_rows_with_keys(changes, self.rule.keys), snapshot_properties=texts)
            live = changes.filter(pc.invert(changes[GONE])).drop_columns([GONE])
            # An empty append is a snapshot, too: without one nothing would be compared with other commits.
            transaction.append(
                live.cast(_as_required(live.schema, self._facts_now().schema)), snapshot_properties=texts
            )
        transaction.commit_transaction()

    def _finish_files(self, table: Any, files: Sequence[DataFile]) -> None:
        """Has all files under their names. Raises `FileNotFoundError` if one is lost."""
        if protocol_of(self.base) is None:
            uncover(self.base, files)
            return
        for file in files:
            there = table.io.new_input(f"{self.base}/{file.path}")
            check_size(file, there.location, len(there) if there.exists() else None)


def _property(scope: Scope) -> str:
    """The property with the marks of a scope."""
    return f"{MARKS}{scope.run_id}/{scope.uid}"


def _mark_in(known: Mapping[str, Any], scope: Scope) -> int | None:
    """The mark of a scope in the properties of a table."""
    return known.get(_property(scope), {}).get(str(scope.subtask))  # type: ignore[no-any-return]


def _as_required(schema: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The columns of upserts, which have null where deletes had it, as the table requires them."""
    return pa.schema([field.with_nullable(table.field(field.name).nullable) for field in schema])


def _rows_with_keys(changes: pa.Table, keys: Sequence[str]) -> Any:
    """The condition for rows with one of these keys."""
    import pyiceberg.expressions

    of: Any = pyiceberg.expressions
    if len(keys) == 1:
        return of.In(keys[0], changes[keys[0]].to_pylist())
    rows = changes.select(list(keys)).to_pylist()
    each: list[Any] = [reduce(of.And, [of.EqualTo(key, value) for key, value in row.items()]) for row in rows]
    while len(each) > 1:  # a balanced tree: a deep one exceeds Python's recursion
        each = [of.Or(*each[at : at + 2]) if at + 1 < len(each) else each[at] for at in range(0, len(each), 2)]
    return each[0]
