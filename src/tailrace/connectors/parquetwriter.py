"""Writers of batches in columns into Parquet files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.api.connectors import SinkContext
from tailrace.connectors.files.columnswriter import ColumnsWriter
from tailrace.connectors.lengths import Limit
from tailrace.connectors.parquet import columns_with_statistics


class ParquetWriter(ColumnsWriter):
    """A writer of Parquet files, in row groups."""

    suffix = ".parquet"
    _statistics: list[str] | None = None

    def new_file(self, stream: Any, schema: pa.Schema) -> Any:
        if self._statistics is None:
            self._statistics = columns_with_statistics(schema)
        return pq.ParquetWriter(stream, schema, compression="zstd", write_statistics=self._statistics or False)


class TableWriter(ParquetWriter):
    """A writer for tables: it refuses the texts that Spark's INSERT would refuse, and pads the ones that it would pad."""

    def __init__(self, path: str, ctx: SinkContext, schema: pa.Schema | None, limits: dict[str, Limit]) -> None:
        super().__init__(path, ctx, schema)
        self.limits = limits

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, limit in self.limits.items():
            at = batch.schema.get_field_index(name)
            row = limit.first_too_long(batch.column(at))
            if row is not None:
                self.record = batch.slice(row, 1).to_pylist()[0]
                raise ValueError(f"column {name!r} is {limit.text}, and a value is longer than that")
            if limit.pads:
                batch = batch.set_column(at, batch.schema.field(at), limit.pad(batch.column(at)))
        return batch
