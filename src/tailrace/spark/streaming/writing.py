"""The writing of the batches of a streaming query: by a data source of Spark, in its tasks and where it commits.

The class travels by value, and refers to nothing of tailrace before it knows that tailrace is there: see
`spark.shipping.executors`. The commit runs in a Python process beside Spark's driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.connectors.streaming.batches import QUERY, BatchFile, BatchFolder
from tailrace.connectors.travelling import Writing, check_sign, is_local
from tailrace.spark.data.partition_files import write_batch
from tailrace.spark.shipping.executors import carrying
from tailrace.spark.shipping.parcel import Parcel


@dataclass(frozen=True)
class BatchWriting:
    """The work of Spark's processes for one query. It travels to them."""

    url: str
    options: Mapping[str, Any] | None = field(repr=False)
    shared: bool
    """True for a path that other machines must see as well."""
    event_time: int | None
    """Number of the column whose latest value is noted."""

    def folder(self) -> BatchFolder:
        """The folder of the batches."""
        if self.shared and is_local(self.url):
            check_sign(self.url)
        return BatchFolder(self.url, self.options)

    def write(self, batches: Iterator[pa.RecordBatch], partition: int, batch: int) -> BatchFile:
        """Writes the rows of one task into a file, if there are any."""
        folder, name = self.folder(), f"{partition:05d}-{uuid.uuid4().hex}.arrow"
        file: Any = None
        rows, latest, arrow = 0, None, None
        try:
            for one in batches:
                if not one.num_rows:
                    continue
                one = _plain(one)
                if arrow is None:
                    file = Writing(folder.folder.writer(folder.file_name(batch, name)))
                    arrow = pa.ipc.new_file(file, one.schema)
                write_batch(arrow, one)
                rows += one.num_rows
                latest = _later(latest, None if self.event_time is None else one.column(self.event_time))
            if arrow is not None:
                arrow.close()
                file.complete()
        except BaseException:
            if file is not None:
                file.discard()
            raise
        return BatchFile(name, partition, rows, latest)

    def commit(self, files: Sequence[BatchFile], batch: int) -> None:
        """Makes a batch visible."""
        folder = self.folder()
        folder.commit(
            batch, [file for file in files if file.rows], BatchFolder(f"{self.url}/{QUERY}", self.options).folder
        )

    def abort(self, files: Sequence[BatchFile], batch: int) -> None:
        """Deletes the files of a batch that is not committed."""
        folder = self.folder()
        known = folder.list_of(batch)
        named = set() if known is None else {file.name for file in known.files}
        with suppress(OSError):  # the next commit of the batch sweeps them
            folder.delete_files((batch, file.name) for file in files if file.name not in named)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without the notes that Spark has on its fields."""
    return batch.replace_schema_metadata(None).cast(
        pa.schema([pa.field(field.name, field.type, field.nullable) for field in batch.schema])
    )


def _later(latest: int | None, times: pa.Array | None) -> int | None:
    """The later one of a time and the latest of a column (int64 microseconds); None if there is none."""
    found = None if times is None else pc.max(times.cast(pa.timestamp("us")).cast(pa.int64())).as_py()
    return found if latest is None or (found is not None and found > latest) else latest


def _arrow_writer() -> type:
    """The class of writers of a streaming query that are given Arrow's batches. PySpark 4.0 has none of that name; there a
    writer that is an Arrow writer as well is given batches, too."""
    from pyspark.sql import datasource

    if (found := getattr(datasource, "DataSourceStreamArrowWriter", None)) is not None:
        return found  # type: ignore[no-any-return]

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):  # type: ignore[misc]
        pass

    return StreamArrowWriter


def batch_format(name: str, work: BatchWriting, parcel: Parcel | None) -> Any:
    """A data source of Spark, under this name, to which a streaming query writes its batches."""
    from pyspark.sql.datasource import DataSource, WriterCommitMessage

    work_here = carrying(work, parcel)

    class Wrote(WriterCommitMessage):  # type: ignore[misc]
        def __init__(self, file: bytes) -> None:
            self.file = file

    def files_of(messages: Any) -> Any:
        import pickle

        return [pickle.loads(one.file) for one in messages or () if one is not None]

    class BatchWriter(_arrow_writer()):  # type: ignore[misc]
        def write(self, iterator: Any) -> Any:
            import pickle

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            batch = int(context.getLocalProperty("streaming.sql.batchId") or "0")
            return Wrote(pickle.dumps(work_here().write(iterator, context.partitionId(), batch)))

        def commit(self, messages: Any, batchId: int) -> None:
            work_here().commit(files_of(messages), batchId)

        def abort(self, messages: Any, batchId: int) -> None:
            work_here().abort(files_of(messages), batchId)

    class BatchFormat(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return BatchWriter()

    return BatchFormat
