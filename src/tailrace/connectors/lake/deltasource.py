"""The source of a Delta table: its rows, and the rows of the versions that come: `DeltaRows`.

A version of a table is a file of its log, which lists what the version adds and removes. The enumerator takes the versions
in order. It gives out the files of one version, and those of the next one only when they are read to their end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as t

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.connectors import hidden
from tailrace.connectors.files.newfiles import AT_ONCE, LOCAL_POLL, REMOTE_POLL, check_poll
from tailrace.connectors.files.parquetfiles import Batches
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.lake.deltatable import DeltaPlace, facts_of
from tailrace.connectors.parquet import ParquetRows
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError

KNOWN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"}
"""Features of a reader that the source satisfies. A file with a deletion vector is refused."""


class TableFile(msgspec.Struct, frozen=True):
    """A file that a version has added."""

    path: str
    partition: dict[str, str | None]
    version: int


class VersionFiles(msgspec.Struct):
    """The files of one version, or of the whole table in a version."""

    files: list[TableFile]
    newest: int
    """The newest version of the table."""


class VersionPosition(msgspec.Struct, omit_defaults=True):
    """The position of a `NewVersions`."""

    version: int
    """The version whose files are given out."""
    whole: bool = False
    """True if they are all files of the table in that version, and not those that it has added."""
    given: int = 0
    """Number of its files that were given out, in the order of their paths."""
    reading: int = 0
    """Number of files that were not read to their end."""
    until: int | None = None
    """The last version; None: without end."""


class DeltaLog:
    """The log of a table: which files a version adds."""

    def __init__(self, at: DeltaPlace, schema: pa.Schema, skip_changes: bool, chosen: bool) -> None:
        """`chosen`: true if the user has named the columns, so that new ones do not matter."""
        self.at, self.schema, self.skip_changes, self.chosen = at, schema, skip_changes, chosen

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


class NewVersions(Enumerator):
    """The enumerator of the files of a table, version by version.

    Invariant D6: of each version each file is given out once, and before those of later versions.
    """

    def __init__(
        self, log: DeltaLog, parallelism: int, start: int | None, follow: bool, poll: float | None, position: Any
    ) -> None:
        self.log, self.most, self._start, self.follow = log, AT_ONCE * parallelism, start, follow
        self.progress = None if position is None else msgspec.convert(position, VersionPosition)
        self.local = protocol_of(log.at.base) is None
        self.poll = poll or (LOCAL_POLL if self.local else REMOTE_POLL)
        self.files: list[TableFile] | None = None
        """The files of `progress.version`; None: not known."""
        self._looked_at = float("-inf")
        self._look: Future[Any] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def discover(self, now: float) -> Sequence[dict[str, Any]] | None:
        if self.files is None and not self._find(now):
            return []
        assert self.progress is not None and self.files is not None
        at, given = self.progress, []
        while at.given < len(self.files) and at.reading < self.most:
            given.append(msgspec.to_builtins(self.files[at.given]))
            at.given, at.reading = at.given + 1, at.reading + 1
        if at.given == len(self.files) and not at.reading:
            if at.until is not None and at.version >= at.until:
                return given or None
            self.progress = VersionPosition(at.version + 1, until=at.until)
            self.files = None
        return given

    def _find(self, now: float) -> bool:
        """Takes the files of the next version. False if there is none yet."""
        if self._look is None:
            if self._looked_at <= now < self._looked_at + self.poll and self._empty:
                return False
            self._look = self._submit()
        if not self._look.done():
            return False
        found, self._look, self._looked_at = self._look.result(), None, now
        self._empty = found is None
        if found is None:
            return False
        self.progress, self.files = found
        return True

    _empty = False
    """True if the last look has found no version."""

    def _submit(self) -> Future[Any]:
        """A look at the log; behind a URL it comes from a thread, since it may take long."""
        if not self.local:
            self._threads = self._threads or ThreadPoolExecutor(1, "tailrace-versions")
            return self._threads.submit(self._step)
        done: Future[Any] = Future()
        done.set_result(self._step())
        return done

    def _step(self) -> tuple[VersionPosition, list[TableFile]] | None:
        """The next version and its files; None if there is none yet."""
        at = self.progress or self._first()
        if at.until is not None and at.version > at.until:
            return at, []
        files = self.log.whole(at.version) if at.whole else self.log.additions(at.version)
        return None if files is None else (at, files)

    def _first(self) -> VersionPosition:
        """The version to begin with: the whole table of today, or a version of the user's choice."""
        newest = self.log.newest()
        until = None if self.follow else newest
        if self._start is None:
            return VersionPosition(newest, whole=True, until=until)
        if self._start > newest + 1:
            raise ConfigError(f"{self.log.at.owner}: starting_version is {self._start}, and the newest one is {newest}")
        return VersionPosition(self._start, until=until)

    def ended(self, split: Any) -> None:
        assert self.progress is not None
        self.progress.reading -= 1

    def next_at(self, now: float) -> float:
        if self.files is not None or self._look is not None or not self._empty:
            return now + 0.01
        return max(now, self._looked_at + self.poll)

    @property
    def position(self) -> Any:
        return msgspec.to_builtins(self.progress)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


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
        starting_version: int | None = None,
        skip_changes: bool = False,
        poll: float | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        who = "from_table"
        self.form, self.follow, self.bounded = form, follow, not follow
        self.poll = check_poll(poll, follow, who)
        self.at = DeltaPlace(hidden.normal(url), storage_options, who)
        if starting_version is not None and (not isinstance(starting_version, int) or starting_version < 0):
            raise ConfigError(f"{who}: starting_version is the number of a version, not {starting_version!r}")
        self.starting_version, self.skip_changes = starting_version, skip_changes
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
        names = facts.schema.names if columns is None else list(columns)
        unknown = [name for name in names if name not in facts.schema.names]
        if unknown:
            raise ConfigError(f"{who}: columns has {unknown[0]!r}, and the table has {', '.join(facts.schema.names)}")
        self.schema = pa.schema([facts.schema.field(name).with_nullable(True) for name in names])
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
        rows = TableRows(path, opened, self.schema, self.partitioned_by, file.partition)
        return Batches(rows, position or 0, self.form, rows.close)


class TableRows(ParquetRows):
    """The rows of a file of a table, with the partition columns, and null in columns that were added later."""

    def __init__(
        self, path: str, opened: Any, like: pa.Schema, partitioned_by: Sequence[str], values: Mapping[str, str | None]
    ) -> None:
        self._values = {
            name: partition_value(values.get(name), like.field(name).type)
            for name in like.names
            if name in partitioned_by
        }
        super().__init__(path, like, opened)

    def _check_columns(self) -> None:
        self.columns = [name for name in self.schema.names if name not in self._values and name in self._read_as.names]

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self._values:
            return pa.repeat(self._values[field.name], batch.num_rows)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        return super()._column(batch, field)


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
