"""DataFrames in and out, by way of files.

In: before the workers start, a Spark job of its own materialises the DataFrame once into immutable Arrow files, one for
each partition with rows in it. Out: the job writes Parquet files, which become a DataFrame. `spark.data.places` decides
where the files are.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.api.checks.arguments import check_declared
from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors.hidden import SinkFolder
from tailrace.connectors.parquetwriter import ParquetWriter
from tailrace.connectors.results import Result
from tailrace.connectors.sources import ArrowFiles
from tailrace.connectors.travelling import is_local
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError, GraphError, TailraceError
from tailrace.runtime.outpost.hosted_folder import forget, host_of
from tailrace.spark.cluster.application import application
from tailrace.spark.data import partition_files
from tailrace.spark.data.places import FilePlace
from tailrace.spark.data.schemas import arrow_schema, spark_columns, spark_schema
from tailrace.spark.data.types import check_names, check_types
from tailrace.spark.shipping.delivery import bringing
from tailrace.spark.shipping.spark_tasks import with_tailrace


class DataFrameSource(ArrowFiles):
    """The rows of a Spark DataFrame."""

    def __init__(self, df: Any, form: Form) -> None:
        twice = sorted({name for name in df.columns if df.columns.count(name) > 1})
        if twice:
            raise GraphError(
                f"from_dataframe: the DataFrame has several columns named {', '.join(map(repr, twice))}; rename them, as "
                f"with df.toDF(...)"
            )
        check_types(df.schema, "from_dataframe", void=True)
        super().__init__([], tuple(df.columns), form)
        self.df = df
        self.materialised = False
        self.durable = False

    @property
    def expected_schema(self) -> pa.Schema:
        """The columns that the source reads, also where it has no rows."""
        return arrow_schema(self.df.schema)

    def materialise(self, place: FilePlace, *, durable: bool = False) -> None:
        """Runs the DataFrame's query and writes its rows into a place. It does so once, except for a job whose checkpoints
        refer to the files (`durable`): that job has files of its own, which live as long as its checkpoints."""
        if self.materialised and not durable and not self.durable and self._is_in(place):
            return
        check_zone(self.df)
        place.make()
        try:
            rows = self._map_partitions(
                partition_files.writer(place, self.df.columns, synced=durable), partition_files.TOLD
            )
            refused = next((row.refused for row in rows if row.refused is not None), None)
            if refused is not None:
                raise ConfigError(f"from_dataframe: {refused}")
            names = sorted(row.name for row in rows)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised
                place.empty()  # removes the rows that the query wrote before it failed
            raise
        place.keep_only(names)
        self.paths = [place.folder().url_of(name) for name in names]
        self.options = place.options
        self.materialised, self.durable, self.moved = True, durable, {}
        if place.host is not None:
            weakref.finalize(self, forget, place.url).atexit = False

    def fetch(self, folder: str) -> None:
        app = application(self.df.sparkSession)
        over = app.over()
        if over is not None:
            raise GraphError(
                f"from_dataframe: a test reads the DataFrame in its own Spark session, and {over}; make the DataFrame in a "
                f"session that lives, or read a collection"
            )
        app.choose_interpreter()
        check_zone(self.df)
        sent = self._map_partitions(partition_files.sender(self.df.columns), partition_files.SENT)
        self.paths, self.options, self.materialised = [], None, False
        for at, row in enumerate(sent):
            self.paths.append(f"{folder}/part-{at:05d}.arrow")
            Path(self.paths[-1]).write_bytes(row.file)

    def _map_partitions(self, work: Any, schema: str) -> list[Any]:
        """The rows that Spark tasks yield, each of which works on a partition of the DataFrame. `schema` is the schema of
        these rows."""
        spark, plain = self.df.sparkSession, plainly_named(self.df)
        with application(spark).with_description("tailrace: reading a DataFrame"):
            return bringing(
                spark, "from_dataframe", lambda parcel: plain.mapInArrow(with_tailrace(work, parcel), schema).collect()
            )

    def _is_in(self, place: FilePlace) -> bool:
        """True where the workers of a job whose files are in this place reach the files that are there. They do not reach
        files of a process that hosted another job."""
        return place.host is None or not self.paths or host_of(self.paths[0]) == place.host

    def note_restore(
        self, options: Mapping[str, Any] | None = None, moved: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Marks that the job goes on from a checkpoint, which knows the files: the query is not run again. `options` are
        for the filesystem of checkpoints. `moved`: see `ArrowFiles`."""
        self.paths, self.options, self.moved = [], options, dict(moved)
        self.materialised = False  # a later start without a checkpoint runs it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "df": None}  # a DataFrame stays in the driver


def check_zone(df: Any) -> None:
    """Raises `ConfigError` where the DataFrame has timestamps and Python does not know the name of the session's time
    zone. Java knows more names than Python."""
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        pa.lib.string_to_tzinfo(zone)
    except Exception:  # the type of the error depends on what is installed
        if '"timestamp"' in df.schema.json():
            raise ConfigError(
                f"spark.sql.session.timeZone is {zone!r}, which Python does not know, and the DataFrame has timestamps; set "
                f"it to a name such as 'Europe/Zurich' or an offset such as '+01:00'"
            ) from None


def plainly_named(df: Any) -> Any:
    """The rows of a DataFrame under names that `mapInArrow` can take (it cannot take a dot), and with at least one column:
    `mapInArrow` would yield nothing for rows without columns."""
    if not df.columns:
        return df.selectExpr("true as c")
    return df.toDF(*[f"c{i}" for i in range(len(df.columns))])


_WHO = "to_dataframe"
_AS_WRITTEN = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}


def _literal(path: str) -> str:
    """A local path as Spark takes it. Spark would read some characters as a pattern, and a path without a scheme as one of
    its default filesystem."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def parquet_files(spark: Any, files: list[str], schema: Any, options: Mapping[str, Any] | None) -> Any:
    """The rows of files that a result's writer has written, as a DataFrame with a `StructType`."""
    if not is_local(files[0]):
        return partition_files.read(spark, files, schema, options)
    # Read as written, whatever the session's settings: these would shift old dates, or guess types.
    return spark.read.schema(schema).options(**_AS_WRITTEN).parquet(*map(_literal, files))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class ResultWriter(ParquetWriter):
    """A writer of Parquet that Spark can read again."""

    def __init__(self, place: SinkFolder, ctx: SinkContext, schema: pa.Schema | None, case_sensitive: bool) -> None:
        super().__init__(place, ctx, schema)
        self.case_sensitive = case_sensitive

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        check_names(schema, _WHO, case_sensitive=self.case_sensitive)
        return spark_columns(schema, _WHO)


def _unknown() -> None:
    return None


class DataFrame(Result):
    """A sink whose result is a Spark DataFrame: `dataframe()`, once the job has finished. `schema` is DDL text, a
    `StructType` or a `pyarrow.Schema`; a stream in columns may leave it out."""

    description = "dataframe"
    position_format = "DataFrame"

    def __init__(self, schema: Any = None) -> None:
        self.schema = None if schema is None else spark_columns(check_declared(arrow_schema(schema), _WHO), _WHO)
        self.form = "columns" if self.schema is not None else None
        self.spark: Any = None
        self.expected: Callable[[], pa.Schema | None] = _unknown
        """Gives the columns of a stream without records, where they are known."""
        self.case_sensitive = False

    def prepare(self, spark: Any, expected: Callable[[], pa.Schema | None]) -> None:
        """Takes the session that will read the result, and a function that gives the columns of the stream where it has no
        record. Raises `GraphError` where the session could not read the result."""
        self.spark, self.expected = spark, expected
        self.case_sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        if self.schema is not None:
            check_names(self.schema, _WHO, case_sensitive=self.case_sensitive)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return self.writer_into(self._writes_into(), ctx)

    def writer_into(self, place: SinkFolder, ctx: SinkContext) -> SinkWriter:
        """A writer of files that Spark can read again, into some folder."""
        return ResultWriter(place, ctx, self.schema, self.case_sensitive)

    def dataframe(self) -> Any:
        """The published records. Raises `GraphError` before the job has run, and where it ran without Spark."""
        files = self.files()
        spark = self.spark
        if spark is None:
            raise GraphError("the job of this sink ran without Spark, in tr.testing; read its Parquet files: files()")
        schema = spark_schema(self.schema if self.schema is not None else self._schema_of(files))
        if not files:
            return spark.createDataFrame([], schema)
        if self.brought:
            table = pa.concat_tables(map(pq.read_table, files))
            return spark.createDataFrame(table, schema) if schema.names else spark.range(table.num_rows).select()
        return parquet_files(spark, files, schema, self._options)

    def _schema_of(self, files: list[str]) -> pa.Schema:
        """The columns of files that were written without a given schema; where there are no files, the columns that they
        would have. Raises `GraphError` where files differ in columns, or the columns are not known."""
        if not files:
            try:
                expected = self.expected()
            except (pa.ArrowException, TailraceError) as error:
                raise GraphError(f"{_WHO}: the stream gave no record, and could give none: {error}") from error
            if expected is None:
                raise GraphError("the stream gave no record, so its columns are not known; give to_dataframe a schema")
            return spark_columns(expected, _WHO)
        found = []
        for path in files:
            with self._open_file(path) as file:
                found.append(pq.read_schema(file))
        first = found[0]
        for other in found[1:]:
            if other != first:
                raise GraphError(
                    f"{_WHO}: the records of the stream do not have the same columns everywhere: {_columns(first)}, and "
                    f"{_columns(other)}; give to_dataframe a schema"
                )
        return first

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spark": None, "expected": _unknown}
