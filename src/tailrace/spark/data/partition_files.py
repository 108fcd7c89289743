"""Files of the partitions of DataFrames, which Spark's own tasks write and read: Arrow files of a DataFrame's rows, and the
Parquet files of a result where Spark cannot read them by itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tailrace.connectors.travelling import Unsynced, Writing, check_sign, is_local
from tailrace.errors import ConfigError
from tailrace.runtime.network.listener import Unreachable
from tailrace.runtime.outpost.hosted_folder import Host, host_of, know, meet
from tailrace.spark.data.places import FilePlace
from tailrace.spark.data.schemas import arrow_schema
from tailrace.spark.shipping.delivery import received_parcel
from tailrace.spark.shipping.missing_modules import unreachable
from tailrace.spark.shipping.spark_tasks import with_tailrace

_BATCH_ROWS = 8192
_MOST_PARTITIONS = 200


def writer(place: FilePlace, columns: list[str], *, synced: bool) -> Any:
    """A function for `mapInArrow` that writes each partition with rows in it into an Arrow file of its own. It yields the
    name of the file and its number of rows, or the reason why the task cannot write there: if it raised that, Spark would
    retry. A task that Spark starts twice writes two files, of which Spark reports one."""

    def write(batches: Any) -> Any:
        import uuid

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = f"part-{context.partitionId():05d}-{uuid.uuid4().hex}.arrow"
        rows, file, arrow, refused = 0, None, None, None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                batch = with_names(batch, columns)
                if arrow is None:
                    file = new_file(place, name, synced=synced)
                    arrow = pa.ipc.new_file(file, batch.schema)
                write_batch(arrow, batch)
                rows += batch.num_rows
            if arrow is not None and file is not None:
                arrow.close()
                file.complete()
        except BaseException as error:
            if file is not None:
                file.discard()
            if isinstance(error, Unreachable):
                refused = unreachable(socket.gethostname(), str(error))
            elif isinstance(error, ConfigError):
                refused = str(error)
            else:
                raise
        if rows or refused is not None:
            yield description_row(name, rows, refused)

    return write


def with_names(batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
    """A batch under the names of its DataFrame's columns, where Spark gave it plain names."""
    return batch.rename_columns(columns) if columns else batch.select([])


def write_batch(file: Any, batch: pa.RecordBatch) -> None:
    """Writes a batch in portions of few rows: a reader maps one at a time."""
    for at in range(0, batch.num_rows, _BATCH_ROWS):
        file.write_batch(batch.slice(at, _BATCH_ROWS))


def sender(columns: list[str]) -> Any:
    """A function for `mapInArrow` that yields each partition with rows in it as the bytes of an Arrow file."""

    def send(batches: Any) -> Any:
        sink, arrow = pa.BufferOutputStream(), None
        for batch in batches:
            if batch.num_rows:
                batch = with_names(batch, columns)
                arrow = arrow or pa.ipc.new_file(sink, batch.schema)
                write_batch(arrow, batch)
        if arrow is not None:
            arrow.close()
            yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["file"])

    return send


SENT = "file binary"
"""Schema of the rows that `sender` yields."""
TOLD = "name string, rows long, refused string"
"""Schema of the rows that `writer` yields."""


def description_row(name: str, rows: int, refused: str | None = None) -> pa.RecordBatch:
    """One row with the schema `TOLD`."""
    kinds = (pa.string(), pa.int64(), pa.string())
    arrays = [pa.array([value], kind) for value, kind in zip((name, rows, refused), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, ["name", "rows", "refused"])


def new_file(place: FilePlace, name: str, *, synced: bool) -> Any:
    """A new file in a place, to be written by a task of Spark."""
    if place.host is not None:
        meet(place.host)
        know(place.host)
    if place.shared:
        check_sign(place.url)
    if is_local(place.url) and not synced:
        return Writing(Unsynced(f"{place.url}/{name}"))
    return Writing(place.folder().writer(name))


def read(spark: Any, files: list[str], schema: Any, options: Mapping[str, Any] | None) -> Any:
    """The rows of Parquet files, in their order, as a DataFrame whose tasks read them from wherever they are."""
    from pyspark.sql.types import BooleanType, StructField, StructType

    names = schema.names
    # `mapInArrow` cannot take every name, and yields nothing for rows without columns.
    fields = [StructField(f"c{at}", field.dataType) for at, field in enumerate(schema.fields)]
    plain = StructType(fields or [StructField("c", BooleanType())])
    numbers = spark.range(0, len(files), 1, min(len(files), _MOST_PARTITIONS))
    rows = _rows_of(files, arrow_schema(schema), options, host_of(files[0]))
    found = numbers.mapInArrow(with_tailrace(rows, received_parcel(spark)), plain)
    return found.toDF(*names) if names else found.select()


def _rows_of(files: list[str], columns: pa.Schema, options: Mapping[str, Any] | None, host: Host | None) -> Any:
    def rows(batches: Any) -> Iterator[Any]:
        import io

        import pyarrow.parquet as pq

        from tailrace.connectors.travelling import Reading, folder_of, split_of

        if host is not None:
            know(host)
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        for number in numbers:
            folder, name = split_of(files[number])
            with io.BufferedReader(Reading(folder_of(folder, options), name)) as file:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS):
                    arrays = [batch.column(field.name).cast(field.type) for field in columns]
                    if not arrays:
                        arrays = [pa.nulls(batch.num_rows, pa.bool_())]
                    yield pa.RecordBatch.from_arrays(arrays, [f"c{at}" for at in range(len(columns))] or ["c"])

    return rows
