"""The source of a Delta table: its rows, and the rows of the versions that come: `DeltaRows`.

A version of a table is a file of its log, which lists what the version adds and removes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as t

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.connectors import hidden
from tailrace.connectors.files.newfiles import check_poll
from tailrace.connectors.files.parquetfiles import Batches
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.lake.deltatable import DeltaPlace, facts_of
from tailrace.connectors.lake.versions import (
    NewVersions,
    TableFile,
    TableLog,
    TableRows,
    VersionPosition,
    check_start,
    chosen_columns,
)
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError

KNOWN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"}
"""Features of a reader that the source satisfies. A file with a deletion vector is refused."""


class DeltaLog(TableLog):
    """The log of a Delta table."""

    def __init__(self, at: DeltaPlace, schema: pa.Schema, skip_changes: bool, chosen: bool) -> None:
        """`chosen`: true if the user has named the columns, so that new ones do not matter."""
        self.at, self.schema, self.skip_changes, self.chosen = at, schema, skip_changes, chosen
        self.local = protocol_of(at.base) is None

    def first(self, start: int | str | None, follow: bool) -> VersionPosition:
        newest = self.newest()
        until = None if follow else newest
        if start is None:
            return VersionPosition(newest, whole=True, until=until)
        version = newest + 1 if isinstance(start, str) else start
        if version > newest + 1:
            raise ConfigError(f"{self.at.owner}: starting_version is {start}, and the newest one is {newest}")
        return VersionPosition(version, until=until)

    def find(self, at: VersionPosition) -> tuple[VersionPosition, list[TableFile]] | None:
        if at.until is not None and at.version > at.until:
            return at, []
        files = self.whole(at.version) if at.whole else self.additions(at.version)
        return None if files is None else (at, files)

    def behind(self, at: VersionPosition) -> VersionPosition:
        return VersionPosition(at.version + 1, until=at.until)

    def ends(self, at: VersionPosition) -> bool:
        return at.until is not None and at.version >= at.until

    def newest(self) -> int:
        """The newest version. Raises `ConfigError` if there is no table."""
        table = self.at.table()
        if table is None:
            raise ConfigError(f"{self.at.owner}: {self.at.base}: the table is gone")
        return int(table.version())

    def whole(self, version: int) -> list[TableFile]:
        """All files of the table in a version."""
        with self.at.checking():
            table = self.at.table(version=version)
            assert table is not None
            has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
            if has_vectors and len(pa.table(table.deletion_vectors().read_all())):
                raise _refusal(self.at, version, "has deletion vectors, which")
            actions = pa.table(table.get_add_actions())
        partitions = actions["partition"].to_pylist() if "partition" in actions.column_names else [{}] * len(actions)
        paths = actions["path"].to_pylist()
        files = [TableFile(path, _texts(values), version) for path, values in zip(paths, partitions, strict=True)]
        return sorted(files, key=lambda one: one.path)

    def additions(self, version: int) -> list[TableFile] | None:
        """The files that a version has added; None if there is no such version yet. Raises `ConfigError` for a version that
        is no append."""
        text = self.at.read_log(version)
        if text is None:
            self._check_missing(version)
            return None
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        for action in actions:
            self._check(action, version)
        adds = [one["add"] for one in actions if one.get("add", {}).get("dataChange")]
        removes = any(one.get("remove", {}).get("dataChange") for one in actions)
        if removes and self.skip_changes:
            return []
        if removes:
            raise ConfigError(
                f"{self.at.owner}: {self.at.base}: version {version} changes or deletes rows that were read: a stream "
                f"of rows cannot take them back. Have such versions skipped (skip_changes=True), or start behind it "
                f"(starting_version={version + 1})"
            )
        if any(one.get("deletionVector") for one in adds):
            raise _refusal(self.at, version, "has deletion vectors, which")
        files = [TableFile(one["path"], one["partitionValues"], version) for one in adds]
        return sorted(files, key=lambda one: one.path)

    def _check_missing(self, version: int) -> None:
        """Raises `ConfigError` if a version that is not in the log will not come, because the log begins behind it or is the
        log of another table."""
        if version == 0 or self.at.has_version(version - 1):
            return
        newest = self.newest()
        if newest < version:
            why = f"the newest version is {newest}: the table was made anew, or comes from a backup"
        else:
            why = "the log begins behind it (delta.logRetentionDuration), so its rows cannot be distinguished"
        raise ConfigError(
            f"{self.at.owner}: {self.at.base}: the job goes on with version {version}, and {why}; start without a checkpoint"
        )

    def _check(self, action: Mapping[str, Any], version: int) -> None:
        """Raises `ConfigError` for a change of the table that the source does not follow."""
        if "protocol" in action:
            _check_features(self.at, action["protocol"].get("readerFeatures") or (), version)
        if "metaData" in action:
            fields = json.loads(action["metaData"]["schemaString"])["fields"]
            new = [one["name"] for one in fields if one["name"] not in self.schema.names and not self.chosen]
            gone = [name for name in self.schema.names if name not in [one["name"] for one in fields]]
            if new or gone:
                what = f"has the new column {new[0]!r}" if new else f"has no column {gone[0]!r} any more"
                raise ConfigError(
                    f"{self.at.owner}: {self.at.base}: version {version} {what}: start the job again from its last "
                    f"checkpoint or a savepoint, with the columns of today, or name the columns to read (columns=)"
                )


class DeltaRows(Source):
    """A source of the rows of a Delta table, which `env.from_table` makes."""

    description = "delta"

    def __init__(
        self,
        url: str,
        *,
        form: Form = "rows",
        columns: Sequence[str] | None = None,
        follow: bool = False,
        starting_version: int | str | None = None,
        skip_changes: bool = False,
        poll: float | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        who = "from_table"
        self.form, self.follow, self.bounded = form, follow, not follow
        self.poll = check_poll(poll, follow, who)
        self.at = DeltaPlace(hidden.normal(url), storage_options, who)
        self.starting_version, self.skip_changes = check_start(starting_version, who), skip_changes
        with self.at.checking():
            table = self.at.table()
            if table is None:
                raise ConfigError(f"{who}: there is no Delta table at {self.at.base}")
            _check_features(self.at, table.protocol().reader_features or (), table.version())
            if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
                raise _refusal(
                    self.at, table.version(), "names columns of files in its own way (delta.columnMapping), which"
                )
            facts = facts_of(table)
        self.schema = chosen_columns(facts.schema, columns, who)
        self.columns = tuple(self.schema.names)
        self.partitioned_by = facts.partition_by
        self._chosen = columns is not None

    @property
    def position_format(self) -> str:
        return f"DeltaRows(follow={self.follow})"

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        log = DeltaLog(self.at, self.schema, self.skip_changes, self._chosen)
        return NewVersions(log, parallelism, self.starting_version, self.follow, self.poll, position)

    def reader(self, split: Any, position: Any = None) -> Reader:
        file = msgspec.convert(split, TableFile)
        path, opened = self.at.open_file(file.path)
        kinds = {name: self.schema.field(name).type for name in self.schema.names if name in self.partitioned_by}
        values = {name: partition_value(file.partition.get(name), kind) for name, kind in kinds.items()}
        rows = TableRows(path, opened, self.schema, values)
        return Batches(rows, position or 0, self.form, rows.close)


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value of a partition column from its text in the log."""
    if text is None or text == "":
        return pa.scalar(None, kind)
    if t.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        return pa.scalar(moment.replace(tzinfo=moment.tzinfo or UTC) if kind.tz else moment.replace(tzinfo=None), kind)
    return pa.scalar(text.encode() if t.is_binary(kind) else text).cast(kind)


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Values of partition columns as texts, as the log has them."""
    return {
        name: None if one is None else str(one).lower() if isinstance(one, bool) else str(one)
        for name, one in values.items()
    }


def _check_features(at: DeltaPlace, features: Sequence[str], version: int) -> None:
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if unknown:
        raise _refusal(at, version, f"has the feature {unknown[0]!r}, which")


def _refusal(at: DeltaPlace, version: int, what: str) -> ConfigError:
    return ConfigError(
        f"{at.owner}: {at.base}: version {version} {what} the source does not read: let Spark read it, "
        f"env.from_dataframe(spark.read.format('delta').load(...))"
    )
