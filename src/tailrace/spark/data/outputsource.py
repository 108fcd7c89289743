"""The output of a job, as a data source of Spark: `spark.readStream.format("tailrace")`, and `spark.read`.

Spark makes the source anew in one process for the columns, in another one for the offsets, and reads each segment in a
task. Each of them opens the log of the stream for itself (`connectors.segments.log`).

An offset is the number of an entry of the log. It also has the id of the log and the hash of the entry: so an offset never
means other rows than when it was made. Where the folder was removed and made anew, or has come back from a backup, the
query fails instead of going on elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from tailrace.connectors.segments.log import SEGMENTS, STREAMS, Publication, SegmentLog
from tailrace.connectors.segments.readers import Readers
from tailrace.connectors.travelling import Reading
from tailrace.elements.columns.schemas import batch_as
from tailrace.errors import CheckpointNotFound, ConfigError
from tailrace.spark.cluster.application import application
from tailrace.spark.data.jobfolders import checkpoint_folder
from tailrace.spark.data.readoptions import positive_number, storage_options, storage_text, truth, with_known_names
from tailrace.spark.data.schemas import arrow_schema, spark_columns, spark_schema
from tailrace.spark.shipping import program
from tailrace.storage.filesystem import Folder
from tailrace.storage.opening import open_folder
from tailrace.storage.store import folder_name

try:  # Spark 4.2 and later limit what a batch reads
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    LIMITS = False
else:
    LIMITS = True

logger = logging.getLogger("tailrace")
T = TypeVar("T")
FORMAT = "tailrace"
_OPTIONS = (
    "path", "job", "sink", "startingOffset", "maxRowsPerTrigger", "maxBytesPerTrigger", "live", "storageOptions",
)  # fmt: skip


@dataclass(frozen=True)
class OutputOptions:
    """The options of a read, checked. They travel to the tasks."""

    path: str
    job: str | None = None
    sink: str | None = None
    start: str | None = None
    """The place where a query begins, `earliest` or `latest`; None where the user gives none: a stream begins with what is
    retained, and a batch has to have all."""
    rows: int | None = None
    """The number of rows that a batch reads, about."""
    bytes: int | None = None
    live: bool = False
    """True for a view whose queries each see what is published by then."""
    storage: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], folder: str) -> OutputOptions:
        """The options, from a mapping. A relative path starts at `folder`. Raises `ConfigError` for an unknown option, or an
        invalid value."""
        given = with_known_names(options, _OPTIONS, FORMAT)
        path = checkpoint_folder(given, folder, FORMAT)
        start = given.get("startingOffset")
        if start not in (None, "earliest", "latest"):
            raise ConfigError(f'option "startingOffset" is "earliest" or "latest", not {start!r}')
        rows, size = (positive_number(given, name) for name in ("maxRowsPerTrigger", "maxBytesPerTrigger"))
        if rows is not None and size is not None:
            raise ConfigError(f"{FORMAT}: give maxRowsPerTrigger or maxBytesPerTrigger, not both")
        if (rows or size) and not LIMITS:
            raise ConfigError(f"{FORMAT}: a limit of what a batch reads needs Spark 4.2 or later")
        storage = storage_options(given.get("storageOptions"))
        live = truth(given, "live")
        return cls(path, given.get("job"), given.get("sink"), start, rows, size, live, storage)

    def log(self) -> SegmentLog:
        """The log of the stream, which may not be there yet. Raises `ConfigError` if the options do not say which one."""
        folder = open_folder(self.path, self.storage)
        if self.job is not None:
            folder = open_folder(folder.url_of(folder_name(self.job)), self.storage)
        elif not self._streams_in(folder):
            inside = [open_folder(folder.url_of(one.name), self.storage) for one in folder.entries() if one.folder]
            jobs = {streams[0].about().job: one for one in inside if (streams := self._streams_in(one))}
            folder = _only(jobs, "job", folder)
        if self.sink is not None:
            return SegmentLog(open_folder(folder.url_of(f"{STREAMS}/{folder_name(self.sink)}"), self.storage))
        return _only({one.about().uid: one for one in self._streams_in(folder)}, "sink", folder)

    def _streams_in(self, job_folder: Folder) -> list[SegmentLog]:
        """The streams in the folder of a job."""
        folders = [one.name for one in job_folder.entries(STREAMS) if one.folder]
        logs = [SegmentLog(open_folder(job_folder.url_of(name), self.storage)) for name in folders]
        return [log for log in logs if log.exists()]


def _only(found: Mapping[str, T], option: str, folder: Folder) -> T:
    """The only one. Raises `ConfigError` if there are several, or none."""
    if len(found) == 1:
        return next(iter(found.values()))
    there = f"there are {', '.join(map(repr, sorted(found)))}" if found else "there is no stream of a job"
    raise ConfigError(f'{FORMAT}: in {folder.url} {there}; name one: .option("{option}", ...)')


def options_for(job_folder: str, uid: str, storage: Mapping[str, Any] | None) -> dict[str, str]:
    """The options with which the stream of a sink is read."""
    return {"path": job_folder, "sink": uid, **storage_text(storage)}


class Offset(NamedTuple):
    """A place behind an entry of a log."""

    stream: str = ""
    """The id of the log; empty where there was none."""
    number: int = 0
    entry: str = ""
    """The hash of the entry; empty for the place before the first one."""

    def to_dict(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        return self._asdict()


class SegmentPartition(InputPartition):
    """A segment, by its name; empty for no rows. Where the query of a session is not known, the number through which it has
    read, and the session."""

    def __init__(self, name: str, number: int = 0, session: str = "") -> None:
        super().__init__((name, number, session))


class OutputReader:
    """The part of a reader that is the same for batches and for streams."""

    def __init__(self, options: OutputOptions, schema: Any) -> None:
        self.read_options = options
        self.columns = arrow_schema(schema)
        self._log: SegmentLog | None = None

    @property
    def log(self) -> SegmentLog:
        """The log of the stream."""
        if self._log is None:
            self._log = self.read_options.log()
        return self._log

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a segment, as record batches."""
        name, number, session = partition.value
        if session:
            _register_query(Readers(self.log, session), number)
        if name:
            yield from self.rows_of(name)

    def rows_of(self, name: str) -> Iterator[Any]:
        """The rows of a segment of this name, as record batches."""
        try:
            file = pq.ParquetFile(Reading(self.log.folder, f"{SEGMENTS}/{name}"))
        except FileNotFoundError:
            raise CheckpointNotFound(
                f"segment {name} of the stream in {self.log.folder.url} is gone: it was removed while it was read"
            ) from None
        for batch in file.iter_batches():
            yield batch_as(batch, self.columns, select=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_readers": None}


def _register_query(readers: Readers, number: int) -> None:
    """Registers the query that this task works for, as Spark has it in the task's properties."""
    task = TaskContext.get()
    if task is not None and (query := task.getLocalProperty("sql.streaming.queryId")):
        readers.register(query, task.getLocalProperty("spark.jobGroup.id") or "", number)


class BatchReader(OutputReader, DataSourceReader):
    """`spark.read.format("tailrace")`: all that was published. Spark makes the partitions of a view once, at its first
    query. So a live one has one partition, and its task looks for what is published by then."""

    def partitions(self) -> Sequence[InputPartition]:
        """The segments. Without any there is one empty partition: Spark would make one without a value."""
        names = [] if self.read_options.live else self._segments()
        return [SegmentPartition(name) for name in names] or [SegmentPartition("")]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if self.read_options.live:
            for name in self._segments():
                yield from self.rows_of(name)
        else:
            yield from super().read(partition)

    def _segments(self) -> list[str]:
        """The segments that are published by now. Raises `CheckpointNotFound` if some were removed, and the user has not
        chosen to read what is left."""
        self.log.about()
        floor = Readers(self.log).floor()
        if floor and self.read_options.start is None:
            raise CheckpointNotFound(
                f"{FORMAT}: not all output of the stream in {self.log.folder.url} is there: its entries 1 to {floor} were "
                f"removed, because all streaming queries have read them. "
                f'to_streaming(..., retain="always") keeps all; .option("startingOffset", "earliest") reads what is left'
            )
        return [one.name for entry in self.log.entries(floor + 1, self.log.newest()) for one in entry.segments]


class StreamReader(OutputReader, DataSourceStreamReader):
    """`spark.readStream.format("tailrace")`."""

    def __init__(self, options: OutputOptions, schema: Any) -> None:
        super().__init__(options, schema)
        self._target: int | None = None
        """The entry at which a query ends that reads what is available."""
        self._readers: Readers | None = None

    @property
    def readers(self) -> Readers:
        """The readers of the stream, as this session sees them."""
        if self._readers is None:
            self._readers = Readers(self.log)
        return self._readers

    def initialOffset(self) -> dict[str, Any]:
        """The place before the first entry that is retained, or behind the newest one."""
        if not self.log.exists():
            return Offset().to_dict()
        floor = self.readers.begin()
        if self.read_options.start == "latest":
            return self._offset(self.log.newest()).to_dict()
        return Offset(self.log.about().stream, floor).to_dict()

    def latest(self, start: Offset, rows: int | None = None, size: int | None = None) -> Offset:
        """The place behind the newest entry, or behind the last one within a limit: at least one entry is read."""
        if not self.log.exists():
            if start.stream:
                raise CheckpointNotFound(f"the stream that this query reads is gone: {self.log.folder.url}")
            return start
        newest = self.log.newest()
        start = self._check(start, newest)
        last = newest if self._target is None else max(start.number, min(newest, self._target))
        if rows is not None or size is not None:
            last = self._within(start.number, last, rows, size)
        return start if last == start.number else self._offset(last)

    def _within(self, start: int, last: int, rows: int | None, size: int | None) -> int:
        reached, read, taken = start, 0, 0
        for entry in self.log.entries(start + 1, last):
            read, taken = read + entry.rows, taken + entry.bytes
            above = (rows is not None and read > rows) or (size is not None and taken > size)
            if above and reached > start:
                break
            reached = entry.number
        return reached

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The place behind the newest entry, for progress reports."""
        return self._offset(self.log.newest()).to_dict() if self.log.exists() else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The segments between two places."""
        first, last = Offset(**start), Offset(**end)
        if first == last:
            return []
        first = self._check(first, last.number)
        self._check(last, last.number)
        entries = self.log.entries(first.number + 1, last.number)
        found = [SegmentPartition(one.name) for entry in entries for one in entry.segments]
        if found and not self.readers.knows_query:
            found[0] = SegmentPartition(found[0].value[0], first.number, self.readers.session)
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Notes what the query has read, and removes what all queries have read."""
        if self.log.exists():
            try:
                self.readers.commit(Offset(**end).number)
            except OSError as error:
                logger.warning("what is read of %s is not removed: %s", self.log.folder.url, error)

    def stop(self) -> None:
        """Ends the session."""
        with contextlib.suppress(OSError):
            self.readers.end()

    def _offset(self, number: int) -> Offset:
        digest = self.log.entry(number).digest if number else ""
        return Offset(self.log.about().stream, number, digest)

    def _check(self, offset: Offset, newest: int) -> Offset:
        """An offset of this log; for one of before its time the place where a new query begins. Raises `CheckpointNotFound`
        if it is none of this log."""
        about, url = self.log.about(), self.log.folder.url
        if not offset.stream:
            return Offset(about.stream, self.readers.begin())
        if offset.stream != about.stream:
            raise CheckpointNotFound(
                f"the stream in {url} is another one than this query has read from: it was removed, and made anew. Start "
                f"the query with a new checkpointLocation to read the new one"
            )
        there = self._entry(offset.number) if offset.entry else None
        if offset.number > newest or (there is not None and there.digest != offset.entry):
            raise CheckpointNotFound(
                f"entry {offset.number} of the stream in {url}, to which this query has read, is not there or has other "
                f"rows: the folder is a copy, or has come back from a backup, and has gone another way since. Start the "
                f"query with a new checkpointLocation to read what is there"
            )
        return offset

    def _entry(self, number: int) -> Publication | None:
        try:
            return self.log.entry(number)
        except FileNotFoundError:  # it was committed, and removed
            return None


class UnlimitedReader(StreamReader):
    """The reader of Spark 4.0 and 4.1, which does not say where a batch starts."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override, unused-ignore]
        """The end of the next batch."""
        return self.reportLatestOffset() or Offset().to_dict()


_READER: type[StreamReader] = UnlimitedReader

if LIMITS:

    class LimitedReader(StreamReader, SupportsTriggerAvailableNow):
        """The reader of Spark 4.2 and later."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """The limit that the options give."""
            if self.read_options.rows is not None:
                return ReadMaxRows(self.read_options.rows)
            size = self.read_options.bytes
            return ReadAllAvailable() if size is None else ReadMaxBytes(size)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """The end of the next batch."""
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
            return self.latest(Offset(**start), rows, size).to_dict()

        def prepareForTriggerAvailableNow(self) -> None:
            """Sets the end of the query to what is there."""
            self._target = self.log.newest() if self.log.exists() else 0

    _READER = LimitedReader


class OutputSource(DataSource):
    """`spark.read.format("tailrace")` and `spark.readStream.format("tailrace")`."""

    folder = ""
    """Working folder of the program that registers the source: Spark's processes have other working folders."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> Any:
        """The columns, where the user gives none."""
        log = OutputOptions.of(self.options, self.folder).log()
        found = log.about().schema
        if found is None:
            newest = log.newest()
            names = [one.name for one in log.entry(newest).segments] if newest else []
            if not names:
                raise ConfigError(
                    f"{FORMAT}: {log.folder.url} has no rows yet, so its columns are not known: give them with "
                    f".schema(...), or give them to to_streaming(name, schema)"
                )
            found = pq.read_schema(Reading(log.folder, f"{SEGMENTS}/{names[0]}"))
        return spark_schema(spark_columns(found, FORMAT))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of all that was published."""
        options = OutputOptions.of(self.options, self.folder)
        if options.start == "latest":
            raise ConfigError('option "startingOffset" is "earliest" in a batch: "latest" would read nothing')
        return BatchReader(options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """A reader of what comes."""
        options = OutputOptions.of(self.options, self.folder)
        if options.live:
            raise ConfigError('option "live" is for views of spark.read: a stream goes on by itself')
        return _READER(options, schema)


_registered: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Sessions that know the format -> the working folder that it was registered with."""


def register(spark: Any) -> None:
    """Makes the format known to a session, if it is not, or relative paths start elsewhere since."""
    folder = os.getcwd()
    if _registered.get(spark) == folder:
        return
    application(spark).choose_interpreter()
    # A class of `__main__` travels by value, and so with what it carries; one of a module would travel as its name.
    carrying = {"folder": folder, "__module__": program.MAIN}
    spark.dataSource.register(type(OutputSource.__name__, (OutputSource,), carrying))
    _registered[spark] = folder
