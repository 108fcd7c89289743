"""Writers of batches in columns into files of text: CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from tailrace.connectors.files.columnswriter import ColumnsWriter
from tailrace.connectors.files.jsonvalues import encode_columns, encode_json
from tailrace.connectors.parquet import leaves_of
from tailrace.errors import ConfigError

COMPRESSIONS = {"gzip": ".gz", "zstd": ".zst"}
"""Name of a compression, as in Spark -> the end of the names of its files."""


def check_compression(compression: Any, who: str) -> str | None:
    """The name of a compression, checked. Raises `ConfigError` for another one."""
    if compression is not None and compression not in COMPRESSIONS:
        raise ConfigError(
            f"{who}: compression must be {' or '.join(map(repr, COMPRESSIONS))}, or None for plain files, not "
            f"{compression!r}"
        )
    return compression  # type: ignore[no-any-return]


class TextWriter(ColumnsWriter):
    """The base of writers of files of text, which may be compressed."""

    def __init__(self, *place: Any, compression: str | None = None) -> None:
        super().__init__(*place)
        self._compression = compression
        if compression is not None:
            self.suffix += COMPRESSIONS[compression]

    def new_file(self, stream: Any, schema: pa.Schema) -> Any:
        if self._compression is None:
            return self.new_text(stream, schema)
        return _Compressed(stream, self._compression, lambda compressed: self.new_text(compressed, schema))

    def new_text(self, stream: Any, schema: pa.Schema) -> Any:
        """A file of these columns, as in `new_file`, before it is compressed."""
        raise NotImplementedError


class _KeptOpen:
    """A binary stream that Arrow does not close with its own."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self.write, self.flush, self.tell = stream.write, stream.flush, stream.tell

    def close(self) -> None:
        """Does nothing: whoever has opened the stream closes it."""


class _Compressed:
    """A file that is compressed. All that was written is in its stream behind each table, which tells how large it is."""

    def __init__(self, stream: Any, compression: str, new_text: Callable[[Any], Any]) -> None:
        self._compressed = pa.CompressedOutputStream(pa.PythonFile(_KeptOpen(stream), "w"), compression)
        self._text = new_text(self._compressed)

    def write_table(self, table: pa.Table) -> None:
        self._text.write_table(table)
        self._compressed.flush()

    def close(self) -> None:
        self._text.close()
        self._compressed.close()


class CsvWriter(TextWriter):
    """A writer of CSV files, each with a header. Texts are in quotes, so that an empty one is no null."""

    suffix = ".csv"

    def new_text(self, stream: Any, schema: pa.Schema) -> Any:
        check_csv(schema)
        return arrow_csv.CSVWriter(stream, schema)

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_columns == 1 and batch.column(0).null_count:
            self.record = {batch.schema.names[0]: None}
            raise ValueError(
                f"the only column, {batch.schema.names[0]!r}, is null, and such a line of CSV is empty, which readers leave "
                f"out: write JSON lines or Parquet, or another column beside it"
            )
        return batch


class JsonWriter(TextWriter):
    """A writer of files of JSON lines, an object for each row."""

    suffix = ".json"

    def new_text(self, stream: Any, schema: pa.Schema) -> Any:
        check_json(schema)
        return _JsonLines(stream)

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        leaves = [leaf for column in batch.columns for leaf in leaves_of(column) if pa.types.is_floating(leaf.type)]
        if not all(pc.all(pc.is_finite(leaf)).as_py() is not False for leaf in leaves):
            for self.record in batch.to_pylist():
                encode_json(self.record)  # raises for the record that has it
        return batch


class _JsonLines:
    """A file of JSON lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._stream.write(encode_columns(batch))

    def close(self) -> None:
        """Does nothing: all is written."""


def check_csv(schema: pa.Schema) -> None:
    """Raises `ConfigError` for a column whose values do not come back from CSV."""
    for field in schema:
        if not _is_plain(field.type):
            raise ConfigError(
                f"Csv: column {field.name!r} is {field.type}, and a field of CSV holds a number, a text, a truth value, a "
                f"date or a time: write JSON lines or Parquet, or make a text of it"
            )


def check_json(schema: pa.Schema) -> None:
    """Raises `ConfigError` for a column whose values do not come back from JSON."""
    for field in schema:
        if not _is_json(field.type):
            raise ConfigError(
                f"Json: column {field.name!r} is {field.type}, which JSON does not have: write Parquet, or make a text of "
                f"it; timestamps have microseconds"
            )


def _is_plain(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean,
        pa.types.is_date, pa.types.is_timestamp, pa.types.is_time, pa.types.is_float32, pa.types.is_float64,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _is_json(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_json(child.type) for child in kind)
    if isinstance(kind, pa.ListType):
        return _is_json(kind.value_type)
    return _is_plain(kind) and not pa.types.is_time(kind) and getattr(kind, "unit", "us") != "ns"
