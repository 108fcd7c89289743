"""The source of a batch reader (`DataSource.reader`): its partitions are splits, each read to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.elements.batches import Form
from tailrace.spark.datasources.ahead import ReadAhead
from tailrace.spark.datasources.declared import Declared, ReaderCopies
from tailrace.spark.datasources.listing import Call, checked_partitions, partition_of, portable
from tailrace.spark.datasources.records import RowConverter


class BatchPartition(NamedTuple):
    """A partition of a batch reader, with its place in the list of them."""

    number: int
    partition: Any


class BatchSource(Source):
    """A bounded source of the rows of a data source. Partitions are listed once, in a worker, and are in the checkpoint.
    The position in a partition is the number of rows read: a restart reads a partition anew, and passes by as many."""

    description = "data source"

    def __init__(self, declared: Declared, reader: Any, form: Form) -> None:
        self.name, self.form = declared.name, form
        self.columns = tuple(declared.arrow_schema.names)
        self.schema = declared.arrow_schema if form == "columns" else None
        self._records = RowConverter(declared.schema, declared.arrow_schema, form)
        self._copies = ReaderCopies(reader)

    def __repr__(self) -> str:
        return f"data source {self.name!r}"

    @property
    def position_format(self) -> str:
        return f"data source {self.name}, batch"

    def splits(self, parallelism: int) -> Sequence[Any]:
        raise NotImplementedError  # there is an enumerator

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        return _Partitions(self, position is not None)

    def reader(self, split: BatchPartition, position: int | None = None) -> Reader:
        reader, partition = self._copies.take(), partition_of(split.partition)
        where = f"partition {split.number} of the data source {self.name!r}"
        return _PartitionReader(ReadAhead(lambda: reader.read(partition), self._records, position or 0, where))

    def partitions(self) -> list[BatchPartition]:
        """The partitions, as the user's reader lists them: one without a value where it lists none."""
        from pyspark.sql.datasource import InputPartition

        reader = self._copies.take()
        who = f"{type(reader).__name__}.partitions of the data source {self.name!r}"
        try:
            found = checked_partitions(reader.partitions(), who)
        except NotImplementedError:  # the default before PySpark 4.0.0 was released
            found = []
        return [BatchPartition(at, portable(one)) for at, one in enumerate(found or [InputPartition(None)])]


class _Partitions(Enumerator):
    def __init__(self, source: BatchSource, listed: bool) -> None:
        self._source, self._listed = source, listed
        self._call: Call | None = None

    def discover(self, now: float) -> Sequence[Any] | None:
        if self._listed:
            return None
        self._call = self._call or Call(self._source.partitions)
        if not self._call.is_done():
            return ()
        found: list[BatchPartition] = self._call.result()
        self._listed = True
        return found

    def next_at(self, now: float) -> float:
        return now if self._listed else now + 0.01

    @property
    def position(self) -> bool | None:
        return self._listed or None


class _PartitionReader(Reader):
    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead

    def read(self, limit: int, now: float) -> Any:
        return self._ahead.read(limit)

    @property
    def position(self) -> int:
        return self._ahead.rows

    def close(self) -> None:
        self._ahead.close()
