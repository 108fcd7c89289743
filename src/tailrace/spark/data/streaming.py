"""The sink of `stream.to_streaming(name)`: output that Spark reads while the job runs, as a streaming or batch DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailrace.api.checks.arguments import check_declared
from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors.filesinks import FileSink
from tailrace.connectors.hidden import SinkFolder
from tailrace.connectors.segments.folder import SegmentFolder, publish_segments, segment_token
from tailrace.connectors.segments.log import SegmentLog
from tailrace.connectors.segments.readers import Readers
from tailrace.connectors.travelling import check_sign, folder_of
from tailrace.errors import ConfigError, GraphError
from tailrace.spark.data import outputsource
from tailrace.spark.data.dataframe_files import ResultWriter
from tailrace.spark.data.places import Places
from tailrace.spark.data.schemas import arrow_schema, spark_columns
from tailrace.spark.data.types import check_names

_WHO = "to_streaming"


class _SegmentWriter(ResultWriter):
    """A writer of segments, which counts their rows."""

    of_file = 0
    """The number of rows of the file at hand."""

    def write(self, batch: Any) -> None:
        self.of_file += batch.num_rows
        super().write(batch)

    def _token(self, token: bytes) -> bytes:
        rows, self.of_file = self.of_file, 0
        return segment_token(super()._token(token), rows)


class Streaming(FileSink):
    """A sink whose output Spark reads as a stream while the job runs. `stream.to_streaming` makes and returns it.

    `schema` is DDL text, a `StructType` or a `pyarrow.Schema`; a stream in columns may leave it out. The output is in the
    checkpoint folder of the job, and is published with each checkpoint."""

    description = "streaming"
    form = "columns"

    def __init__(self, schema: Any = None, retain: str = "until-read") -> None:
        self.retain = retain
        self.schema: pa.Schema | None = None
        if schema is not None:
            self.schema = spark_columns(check_declared(arrow_schema(schema), _WHO), _WHO)
        self.spark: Any = None
        self.shared = False
        """True for a path that workers must see as well."""
        self.case_sensitive = False
        self._options: Mapping[str, Any] | None = None
        self._read: dict[str, str] = {}
        """The options with which Spark reads the stream."""
        self._logs: dict[str, SegmentLog] = {}
        """Logs that are open, by URL."""

    @property
    def place(self) -> None:
        """None: each sink has a folder of its own."""
        return None

    def prepare(self, spark: Any, places: Places, uid: str, expected: Callable[[], pa.Schema | None]) -> None:
        """Makes the log of the stream; the launcher calls it once, before the job starts. `expected` gives the columns of
        the stream, where they follow from the dataflow. Raises `ConfigError` for a job without checkpoints, and for a
        stream that has other columns."""
        place, job = places.stream(uid)
        self.spark, self.path, self._options, self.shared = spark, place.folder().url, place.options, place.shared
        if place.shared:
            place.make()
        self.case_sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        schema = self.schema
        if schema is None and (found := expected()) is not None:
            schema = spark_columns(found, _WHO)
        if schema is not None:
            check_names(schema, _WHO, case_sensitive=self.case_sensitive)
        log = self._log(self.path)
        log.begin(job, uid, schema)
        Readers(log).retain(self.retain == "always")
        self._read = outputsource.options_for(self.path.rpartition("/streams/")[0], uid, place.options)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        if self.shared:
            check_sign(self._bound_path())
        return _SegmentWriter(self._folder(self._bound_path()), ctx, self.schema, self.case_sensitive)

    def _make_visible(self, prepared: Sequence[bytes]) -> None:
        publish_segments(prepared, self._logs, self._options)

    def settled(self, prepared: Sequence[bytes]) -> None:
        """Forgets what was published: there are no traces in this kind of folder."""
        self._unsettled -= frozenset(prepared)

    def _folder(self, path: str) -> SinkFolder:
        return SegmentFolder(self._log(path))

    def _log(self, url: str) -> SegmentLog:
        if url not in self._logs:
            self._logs[url] = SegmentLog(folder_of(url, self._options))
        return self._logs[url]

    def _bound_path(self) -> str:
        if self.path is None:
            raise ConfigError("to_streaming: Spark reads the output, so the job must run on Spark: env.execute()")
        return self.path

    def read_stream(self, spark: Any = None, **options: Any) -> Any:
        """A streaming DataFrame of the output, from the first row that is retained. `spark`: another session than that of
        the job. `options` are those of the format, such as `maxRowsPerTrigger`. Raises `GraphError` before the job has
        started."""
        return self._reader(spark, "readStream", options).load()

    def read(self, spark: Any = None, **options: Any) -> Any:
        """A DataFrame of all output that is published when it is first run. Arguments are those of `read_stream`. A query of
        it fails where output was removed, unless `startingOffset` is "earliest", which reads what is left."""
        return self._reader(spark, "read", options).load()

    def _reader(self, spark: Any, how: str, options: Mapping[str, Any]) -> Any:
        spark = self.spark if spark is None else spark
        if self.path is None or spark is None:
            raise GraphError("to_streaming: there is no output yet: start the job first, with env.execute(name)")
        outputsource.register(spark)
        return getattr(spark, how).format(outputsource.FORMAT).options(**self._read, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spark": None, "_logs": {}}
