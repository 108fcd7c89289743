"""DataFrames in and out.

In: the DataFrame is materialised once, by a Spark job of its own before the workers start, into immutable Arrow files,
one per partition with rows in it. Out: the job writes Parquet files, which become a DataFrame.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors.sinks import Result, _ParquetWriter
from tailrace.connectors.sources import ArrowFiles
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError, GraphError
from tailrace.spark.schemas import arrow_schema, spark_columns, spark_schema
from tailrace.spark.types import check_names, check_types

_BATCH_ROWS = 8192


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

    def materialise(self, folder: str, *, durable: bool = False) -> None:
        """Runs the DataFrame's query and writes its rows under `folder`. Done once, but for a job whose checkpoints refer
        to the files (`durable`): it has files of its own, which live as long as its checkpoints."""
        if self.materialised and not durable and not self.durable:
            return
        _check_zone(self.df)
        os.makedirs(folder, exist_ok=True)
        written = _plainly_named(self.df).mapInArrow(_writer(folder, self.df.columns), "path string, rows long")
        try:
            with _description(self.df.sparkSession, "tailrace: a DataFrame on its way in"):
                rows = written.collect()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # what the query wrote before it failed
            raise
        self.paths = sorted(row.path for row in rows)
        self.materialised, self.durable = True, durable

    def restored(self) -> None:
        """The job goes on from a checkpoint, which knows the files: the query is not run again."""
        self.paths = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "df": None}  # a DataFrame stays in the driver


def _check_zone(df: Any) -> None:
    """Java knows names of time zones that Python does not. Raises `ConfigError` where timestamps would have one."""
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        pa.lib.string_to_tzinfo(zone)
    except Exception:  # it depends on what is installed
        if '"timestamp"' in df.schema.json():
            raise ConfigError(
                f"spark.sql.session.timeZone is {zone!r}, which Python does not know, and the DataFrame has timestamps; set "
                f"it to a name such as 'Europe/Zurich' or an offset such as '+01:00'"
            ) from None


def _plainly_named(df: Any) -> Any:
    """The same rows under names that `mapInArrow` can take (those with a dot it cannot), and with a column at least: of a
    row without columns nothing would arrive."""
    if not df.columns:
        return df.selectExpr("true as c")
    return df.toDF(*[f"c{i}" for i in range(len(df.columns))])


@contextmanager
def _description(spark: Any, text: str) -> Iterator[None]:
    """What Spark shows for the jobs in here; the user's own description comes back."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setJobDescription(before)


def _writer(folder: str, columns: list[str]) -> Any:
    def write(batches: Any) -> Any:
        import os
        import uuid

        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = os.path.join(folder, f"part-{context.partitionId():05d}.arrow")
        hidden = f"{name}.{uuid.uuid4().hex}.inprogress"
        rows, writer = 0, None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                batch = batch.rename_columns(columns) if columns else batch.select([])
                if writer is None:
                    writer = pa.ipc.new_file(hidden, batch.schema)
                for at in range(0, batch.num_rows, _BATCH_ROWS):
                    writer.write_batch(batch.slice(at, _BATCH_ROWS))
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            os.replace(hidden, name)
            yield pa.RecordBatch.from_pydict({"path": [name], "rows": [rows]})

    return write


_WHO = "to_dataframe"
_AS_WRITTEN = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}


def _literal(path: str) -> str:
    """A local path for Spark, which would take some characters for a pattern, and a path without a scheme for one of its
    default filesystem."""
    return "file://" + re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


def _schema_of(files: list[str]) -> pa.Schema:
    """The columns of files that were written without a schema given. Raises `GraphError` where they differ."""
    first = pq.read_schema(files[0])
    for path in files[1:]:
        other = pq.read_schema(path)
        if other != first:
            raise GraphError(
                f"{_WHO}: the records of the stream do not have the same columns everywhere: {_columns(first)}, and "
                f"{_columns(other)}; give to_dataframe a schema"
            )
    return first


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class _ResultWriter(_ParquetWriter):
    """Writes what Spark can read again."""

    def __init__(self, path: str, ctx: SinkContext, schema: pa.Schema | None, case_sensitive: bool) -> None:
        super().__init__(path, ctx, schema)
        self.case_sensitive = case_sensitive

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        check_names(schema, _WHO, case_sensitive=self.case_sensitive)
        return spark_columns(schema, _WHO)


class DataFrame(Result):
    """A sink whose result is a Spark DataFrame: `dataframe()`, once the job has finished. `schema` is DDL text, a
    `StructType` or a `pyarrow.Schema`; a stream in columns may leave it out."""

    description = "dataframe"

    def __init__(self, schema: Any = None) -> None:
        self.schema = None if schema is None else spark_columns(arrow_schema(schema), _WHO)
        self.form = "columns" if self.schema is not None else None
        self.spark: Any = None
        self.case_sensitive = False

    def prepare(self, spark: Any) -> None:
        """The launcher says which session will read the result. Raises `GraphError` where it could not."""
        self.spark = spark
        self.case_sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        if self.schema is not None:
            check_names(self.schema, _WHO, case_sensitive=self.case_sensitive)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return _ResultWriter(self._bound(), ctx, self.schema, self.case_sensitive)

    def dataframe(self) -> Any:
        """The published records. Raises `GraphError` before the job has run, and where it ran without Spark."""
        files = self.files()
        spark = self.spark
        if spark is None:
            raise GraphError(
                "this sink's job ran without Spark, in tailrace.testing; read the Parquet files of files()"
            )
        if not files and self.schema is None:
            raise GraphError("the stream gave no record, so its columns are not known; give to_dataframe a schema")
        schema = spark_schema(self.schema if self.schema is not None else _schema_of(files))
        if not files:
            return spark.createDataFrame([], schema)
        # As they were written, whatever the session is set to: it would shift old dates, or guess types.
        return spark.read.schema(schema).options(**_AS_WRITTEN).parquet(*map(_literal, files))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spark": None}


def work_folder(spark: Any, work_dir: str | None) -> str:
    """A new folder for what a job takes in and gives out. Raises `ConfigError` where driver and executors may not share
    one and none was given."""
    if work_dir is not None:
        base = os.path.abspath(work_dir)
    elif spark.sparkContext.master.startswith("local"):
        base = session_folder(spark)
    else:
        raise ConfigError(
            "work_dir: on a cluster, DataFrames and results need a folder that driver and executors share; give "
            "Environment(work_dir=...)"
        )
    folder = os.path.join(base, f"job-{uuid.uuid4().hex}")
    os.makedirs(folder, exist_ok=True)
    if work_dir is not None:  # Spark removes its own folder, and nobody this one
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def session_folder(spark: Any) -> str:
    """A folder that lives as long as the session: inside Spark's own temporary folder of the driver, which Spark removes
    when it stops."""
    return str(spark.sparkContext._temp_dir)
