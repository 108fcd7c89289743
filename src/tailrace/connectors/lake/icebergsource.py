"""The source of an Iceberg table: its rows, and the rows of the snapshots that come: `IcebergRows`.

A version of a table is a snapshot. Its id is no number that grows: the chain of parents of the current snapshot is their
order. Columns are found by their ids, as the format has it: their names may have been others when a file was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.connectors.files.newfiles import check_poll
from tailrace.connectors.files.parquetfiles import Batches
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.lake.icebergtable import IcebergPlace, data_folder
from tailrace.connectors.lake.types import ICEBERG, table_schema
from tailrace.connectors.lake.versions import (
    NewVersions,
    TableFile,
    TableLog,
    TableRows,
    VersionPosition,
    check_columns,
    check_start,
)
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError

NO_SNAPSHOT = 0
"""The version of a table without snapshots, which no snapshot has as its id."""


class IcebergLog(TableLog):
    """The snapshots of an Iceberg table, on its main branch."""

    def __init__(self, at: IcebergPlace, ids: Mapping[str, int], local: bool, skip_changes: bool, chosen: bool) -> None:
        """`ids`: the column ids of the columns that are read. `chosen`: true if the user has named them, so that new ones do
        not matter."""
        self.at, self.ids, self.local, self.skip_changes, self.chosen = at, ids, local, skip_changes, chosen

    def first(self, start: int | str | None, follow: bool) -> VersionPosition:
        table = self._load()
        chain = _chain(table)
        newest = chain[0] if chain else NO_SNAPSHOT
        until = None if follow else newest
        if start is None:
            return VersionPosition(newest, whole=True, until=until)
        if isinstance(start, str):
            return VersionPosition(newest, behind=True, until=until)
        if start not in chain:
            raise ConfigError(
                f"{self.at}: starting_version is {start}, and the snapshots of the table are {', '.join(map(str, chain))}"
            )
        return VersionPosition(start, until=until)

    def find(self, at: VersionPosition) -> tuple[VersionPosition, list[TableFile]] | None:
        if at.behind and at.version == at.until:
            return at, []
        table = self._load()
        version = self._following(table, at.version) if at.behind else at.version
        if version is None:
            return None
        found = VersionPosition(version, until=at.until) if at.behind else at
        files = self._whole(table, version) if at.whole else self._additions(table, version)
        return found, sorted(files, key=lambda one: one.path)

    def _load(self) -> Any:
        """The table as it is now."""
        table = self.at.table()
        if table is None:
            raise ConfigError(f"{self.at}: the table is gone, or this machine looks at a catalog of its own")
        return table

    def behind(self, at: VersionPosition) -> VersionPosition:
        return VersionPosition(at.version, behind=True, until=at.until)

    def ends(self, at: VersionPosition) -> bool:
        return at.version == at.until

    def _following(self, table: Any, version: int) -> int | None:
        """The snapshot behind a version; None if there is none yet."""
        chain = _chain(table)
        if version == NO_SNAPSHOT:
            if not chain:
                return None
            if _is_first(table.snapshot_by_id(chain[-1])):
                return chain[-1]
            raise self._cannot_go_on(table, "the first one", "snapshots have expired that were not read")
        if version not in chain:
            raise self._cannot_go_on(
                table, f"the one behind {version}", "which is no ancestor of the current one any more"
            )
        place = chain.index(version)
        return chain[place - 1] if place else None

    def _cannot_go_on(self, table: Any, place: str, why: str) -> ConfigError:
        current = table.current_snapshot()
        now = "it has none" if current is None else f"the current one is {current.snapshot_id}"
        return ConfigError(
            f"{self.at}: the job goes on with a snapshot, {place}, {why}: {now}. Snapshots have expired, or the table was "
            f"rolled back or made anew; start without a checkpoint"
        )

    def _snapshot(self, table: Any, version: int) -> Any:
        snapshot = table.snapshot_by_id(version)
        if snapshot is None or version not in _chain(table):
            raise self._cannot_go_on(table, str(version), "which is not there any more")
        self._check_columns(table, snapshot)
        return snapshot

    def _whole(self, table: Any, version: int) -> list[TableFile]:
        """All files of the table in a snapshot."""
        if version == NO_SNAPSHOT:
            return []
        self._snapshot(table, version)
        found = []
        for task in table.scan(snapshot_id=version).plan_files():
            if task.delete_files:
                raise refusal(self.at, f"snapshot {version} has files with deleted rows, which")
            found.append(self._file(table, task.file, version))
        return found

    def _additions(self, table: Any, version: int) -> list[TableFile]:
        """The files that a snapshot has added. Raises `ConfigError` for one that is no append."""
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        snapshot = self._snapshot(table, version)
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation is Operation.REPLACE:
            return []  # a compaction: the rows are those that were there
        if operation is not Operation.APPEND:
            if self.skip_changes:
                return []
            what = "does not say what it is" if operation is None else f"is of kind {operation.value!r}"
            raise ConfigError(
                f"{self.at}: snapshot {version} {what}: it changes or deletes rows that were read, and a stream of rows "
                f"cannot take them back. Have such snapshots skipped (skip_changes=True), or start behind it "
                f"(starting_version=...)"
            )
        found = []
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != version:
                continue
            if manifest.content != ManifestContent.DATA:
                raise refusal(self.at, f"snapshot {version} has files with deleted rows, which")
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == version:
                    found.append(self._file(table, entry.data_file, version))
        return found

    def _file(self, table: Any, file: Any, version: int) -> TableFile:
        if file.file_format.value != "PARQUET":
            raise refusal(self.at, f"{file.file_path} is of the format {file.file_format.value}, which")
        fields = table.specs()[file.spec_id].fields
        return TableFile(
            file.file_path, {str(one.source_id): None for one in fields if str(one.transform) == "identity"}, version
        )

    def _check_columns(self, table: Any, snapshot: Any) -> None:
        """Raises `ConfigError` if columns have come that are not read, or if one that is read has gone or has another
        name."""
        now = {field.field_id: field.name for field in table.schema().fields}
        for name, number in self.ids.items():
            if now.get(number) != name:
                what = f"is called {now[number]!r}" if number in now else "is not there"
                raise ConfigError(f"{self.at}: column {name!r} {what} any more: {self._instead(number in now)}")
        written = table.schemas().get(snapshot.schema_id, table.schema())
        own = self.ids.values()
        new = [field.name for field in written.fields if field.field_id in now and field.field_id not in own]
        if new and not self.chosen:
            raise ConfigError(
                f"{self.at}: snapshot {snapshot.snapshot_id} has the new column {new[0]!r}: {self._instead(True)}"
            )

    @staticmethod
    def _instead(again: bool) -> str:
        start = "start the job again from its last checkpoint or a savepoint, with the columns of today, or "
        return f"{start if again else ''}name the columns to read (columns=)"


def _is_first(snapshot: Any) -> bool:
    """True if no snapshot was before this one. Where snapshots expire, the next one may lose its parent, so it must be the
    first one by its number, and by the number of its files."""
    summary = snapshot.summary
    counts = [None if summary is None else summary[name] for name in ("total-data-files", "added-data-files")]
    grown = None not in counts and counts[0] != counts[1]
    return snapshot.parent_snapshot_id is None and (snapshot.sequence_number or 1) == 1 and not grown


def _chain(table: Any) -> list[int]:
    """The current snapshot of a table and its ancestors, as far as they are there, the newest first."""
    found = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found.append(snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return found


class IcebergRows(Source):
    """A source of the rows of an Iceberg table, which `env.from_table` makes."""

    description = "iceberg"

    def __init__(
        self,
        catalog: Any,
        table: str,
        *,
        form: Form = "rows",
        columns: Sequence[str] | None = None,
        follow: bool = False,
        starting_version: int | str | None = None,
        skip_changes: bool = False,
        poll: float | None = None,
    ) -> None:
        who = "from_table"
        self.form, self.follow, self.bounded = form, follow, not follow
        self.poll = check_poll(poll, follow, who)
        self.at = IcebergPlace(catalog, table, who)
        self.starting_version, self.skip_changes = check_start(starting_version, who), skip_changes
        with self.at.checking():
            found = self.at.table()
            if found is None:
                raise ConfigError(f"{self.at}: there is no such table")
            if found.format_version > 2:
                raise refusal(self.at, f"the table has version {found.format_version} of the format, which")
            ids = column_ids(found.schema())
            self.schema = self._schema_of(found.schema(), columns)
        self.columns = tuple(self.schema.names)
        self.ids = {
            path: number for path, number in ids.items() if any(_is_inside(path, one) for one in self.schema.names)
        }
        """The ids of the columns that are read, and of the fields in them, by their paths."""
        self._local = protocol_of(data_folder(found)) is None
        self._chosen = columns is not None

    def _schema_of(self, schema: Any, columns: Sequence[str] | None) -> pa.Schema:
        """The columns that are read. Raises `ConfigError` for one of a type that is not read."""
        found = []
        for name in check_columns([field.name for field in schema.fields], columns, "from_table"):
            field = schema.find_field(name)
            try:
                made = table_schema(type(schema)(field).as_arrow(), ICEBERG, str(self.at)).field(0)
            except ConfigError:
                raise refusal(
                    self.at, f"column {name!r} is {field.field_type}, a type that (columns= leaves it out)"
                ) from None
            found.append(made.with_nullable(True).remove_metadata())
        return pa.schema(found)

    @property
    def position_format(self) -> str:
        return f"IcebergRows(follow={self.follow})"

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        own = {name: self.ids[name] for name in self.schema.names}
        log = IcebergLog(self.at, own, self._local, self.skip_changes, self._chosen)
        return NewVersions(log, parallelism, self.starting_version, self.follow, self.poll, position)

    def reader(self, split: Any, position: Any = None) -> Reader:
        file = msgspec.convert(split, TableFile)
        rows = IcebergFileRows(self.at, file, self.schema, self.ids)
        return Batches(rows, position or 0, self.form, rows.close)


class IcebergFileRows(TableRows):
    """The rows of a file of an Iceberg table, in columns that are found by their ids."""

    def __init__(self, at: IcebergPlace, file: TableFile, like: pa.Schema, ids: Mapping[str, int]) -> None:
        self._at, self._ids, self._parted_by = at, ids, file.partition
        path = file.path
        table = at.load()
        self._mapping = table.name_mapping()
        try:
            opened = table.io.new_input(path).open()
        except FileNotFoundError:
            raise ConfigError(
                f"{at}: {path} is gone: its snapshot has expired before its rows were read, or this machine does not see "
                f"it. Snapshots must be kept longer than the time that the job is behind or down; start without a checkpoint"
            ) from None
        super().__init__(path, opened, like, {})

    def names_in_file(self) -> dict[str, str]:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        try:
            schema = pyarrow_to_schema(self.file.schema_arrow, self._mapping, downcast_ns_timestamp_to_us=True)
        except Exception as error:
            raise ConfigError(f"{self._at}: {self.path}: its columns cannot be identified: {error}") from error
        there = column_ids(schema)
        names = {number: path for path, number in there.items()}
        found = {}
        for name in self.schema.names:
            number = self._ids[name]
            if number not in names and str(number) in self._parted_by:
                raise refusal(
                    self._at, f"{self.path} has no column {name!r}, of which only its metadata has the value, which"
                )
            if number not in names:
                continue  # the column came later
            if _inside(there, names[number]) != _inside(self._ids, name):
                raise refusal(self._at, f"{self.path} has other fields in column {name!r} than the table today, which")
            found[name] = names[number]
        return found


def column_ids(schema: Any) -> dict[str, int]:
    """The ids of the columns of a schema of pyiceberg, and of the fields in them, by their paths."""
    return {path: schema.find_field(path).field_id for path in schema.column_names}


def _is_inside(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")


def _inside(ids: Mapping[str, int], column: str) -> dict[str, int]:
    """The ids of a column and of the fields in it, by their paths below it."""
    return {path[len(column) :]: number for path, number in ids.items() if _is_inside(path, column)}


def refusal(at: IcebergPlace, what: str) -> ConfigError:
    """The error for a table, or a part of one, that the source does not read."""
    return ConfigError(
        f"{at}: {what} the source does not read: let Spark read it, env.from_dataframe(spark.table({at.table_name!r}))"
    )
