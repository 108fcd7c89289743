"""The Parquet files of batches: their rows in the types of the stream, and what their footers say.

Spark writes types into them whose values no setting of its session changes: dates and moments as numbers
(`spark.streaming.plain_columns`). So a column here has the layout of its type in the stream. It is called by its number,
with a hash of its name and type in the stream: rows of a DataFrame that had other columns are not taken for its own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tailrace.connectors.streaming.batches import DATA, BatchFile, BatchFolder
from tailrace.connectors.travelling import Reading, folder_of, is_local
from tailrace.errors import CheckpointError, ConfigError

BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20
"""Most rows of a record batch, and about how many bytes it has at most."""
_PARTITION = re.compile(r"part-(\d+)-.*\.parquet")


def written_columns(columns: Iterable[tuple[str, str]]) -> list[str]:
    """The names under which columns are written, by their names and types."""
    return [f"c{at}_{xxhash.xxh32_hexdigest(repr(column).encode())}" for at, column in enumerate(columns)]


def rows_from(
    batches: BatchFolder, name: str, row: int, schema: pa.Schema, written: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The record batches of a file from this row on. `written`: the names of its columns. Raises `CheckpointError` if there
    is no such file, or it has other columns."""
    with contextlib.closing(_open(batches, name)) as file:
        if written and file.schema_arrow.names != list(written):
            raise CheckpointError(
                f"{name}, with rows of the streaming query that are not read yet, was written when the DataFrame had other "
                f"columns, or the columns had other types; give it its former columns until these rows are read, or start "
                f"anew without a checkpoint"
            )
        groups: list[int] = []
        for at in range(file.num_row_groups):
            size = file.metadata.row_group(at).num_rows
            if not groups and row >= size:
                row -= size
            else:
                groups.append(at)
        for batch in file.iter_batches(_batch_rows(file.metadata), row_groups=groups):
            if row < batch.num_rows:
                yield in_types_of(batch.slice(row), schema)
            row = max(0, row - batch.num_rows)


def in_types_of(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns as they are written, in the types of a stream."""
    if not schema.names:
        return batch.select([])
    columns = [_as_kind(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_kind(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(column))
    if "null" in str(kind) and _has_void(kind):
        return pa.array(column.to_pylist(), kind)  # Arrow has no cast to it; numbers count as times
    if column.type == kind:
        return column
    viewed = column.view(_nullable(kind))  # raises for another layout
    if viewed.type == kind:
        return viewed
    # Arrow has no view that calls a part of a null "not null", as Spark does.
    return pa.Array._import_from_c_capsule(kind.__arrow_c_schema__(), viewed.__arrow_c_array__()[1])


def _has_void(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or any(_has_void(part.type) for part in _parts(kind))


@lru_cache(1000)
def _nullable(kind: pa.DataType) -> pa.DataType:
    """A type whose parts may be null."""
    parts = [pa.field(part.name, _nullable(part.type)) for part in _parts(kind)]
    if pa.types.is_struct(kind):
        return pa.struct(parts)
    if pa.types.is_map(kind):
        return pa.map_(*(part.type for part in parts[0].type))
    return pa.list_(parts[0]) if parts else kind


def _parts(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _batch_rows(metadata: Any) -> int:
    size = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES * metadata.num_rows // max(1, size))))


def written_file(batches: BatchFolder, name: str, event_time: int | None) -> BatchFile:
    """A file that Spark has written, by its footer. `event_time`: the number of the column whose latest value is noted.
    Raises `ConfigError` if this process does not see the file."""
    found = _PARTITION.fullmatch(name)
    if found is None:
        raise ConfigError(
            f"{name}, which Spark has written for a batch of its streaming query, is no Parquet file of a task"
        )
    try:
        with contextlib.closing(_open(batches, name)) as file:
            latest = None if event_time is None else _latest(file, event_time)
            return BatchFile(name, int(found[1]), file.metadata.num_rows, latest)
    except CheckpointError as error:
        raise ConfigError(
            f"a task of the streaming query has written {name}, and the driver of the job does not see it in "
            f"{batches!r}: give the job checkpoints, or Environment(work_dir=...), in a folder that the executors of Spark "
            f"and the program reach by one name"
        ) from error


def _latest(file: Any, column: int) -> int | None:
    """The latest value of a column of times (int64 microseconds), by the footer if that has it."""
    times = []
    for at in range(file.num_row_groups):
        chunk = file.metadata.row_group(at).column(_leaf(file, column))
        noted = chunk.statistics
        if noted is not None and noted.has_min_max:
            times.append(noted.max_raw)
        elif noted is None or not noted.has_null_count or noted.null_count < chunk.num_values:
            values = file.read_row_group(at, columns=[file.schema_arrow.names[column]]).column(0)
            times.append(pc.max(values.cast(pa.int64())).as_py())
    return max((time for time in times if time is not None), default=None)


def _leaf(file: Any, column: int) -> int:
    """The number of a column among those without parts."""
    schema, name = file.metadata.schema, file.schema_arrow.names[column]
    return next(at for at in range(len(schema)) if schema.column(at).path == name)


def _open(batches: BatchFolder, name: str) -> Any:
    path = f"{DATA}/{name}"
    try:
        if is_local(batches.url):
            return pq.ParquetFile(f"{batches.folder.url}/{path}", memory_map=True)
        return pq.ParquetFile(pa.PythonFile(Reading(folder_of(batches.url, batches.options), path), "r"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{batches.folder.url_of(path)} is not there any more: its rows were behind a later complete checkpoint of the "
            f"job, or somebody has removed it; start from a newer checkpoint, or anew without one"
        ) from None
