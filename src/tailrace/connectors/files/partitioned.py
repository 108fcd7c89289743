"""A writer into folders by the values of columns: `day=2024-01-01/part-….parquet`.

A batch is sorted by its partitions once, and each part goes to the writer of its partition. A subtask has at most
`MOST_OPEN` files open: beyond that the file that was written least recently is ended. All files of a transaction are
prepared, and published, together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors import hidden
from tailrace.connectors.files.columnswriter import ColumnsWriter
from tailrace.connectors.files.partitions import LONGEST, NULL, escape
from tailrace.connectors.filesinks import file_numbers, sweep_lost
from tailrace.connectors.hidden import Hidden, SinkFolder
from tailrace.errors import ConfigError

MOST_OPEN = 64
"""Number of files that a subtask has open."""
MOST_WAITING = 4 * ColumnsWriter.group_rows
"""Number of rows that the open files of a subtask hold back for a row group."""


def check_keys(partition_by: Any, schema: pa.Schema | None, who: str) -> tuple[str, ...]:
    """The partition columns, checked. Raises `ConfigError` for other than names of columns, whose values can be names of
    folders, and that leave a column for the files."""
    keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    for key in keys:
        if not isinstance(key, str) or keys.count(key) > 1 or key.startswith((".", "_")) or not key:
            raise ConfigError(
                f"{who}: partition_by takes names of columns, each once, that do not begin with . or _, since readers skip "
                f"such folders; not {key!r}"
            )
    if schema is not None and keys:
        check_types(schema, keys, who)
    return keys


def check_types(schema: pa.Schema, keys: Sequence[str], who: str) -> None:
    """Raises `ConfigError` if the values of a partition column cannot be names of folders."""
    for key in keys:
        if key not in schema.names:
            raise ConfigError(f"{who}: partition_by has {key!r}, and the columns are {', '.join(schema.names)}")
        kind = schema.field(key).type
        if not (pa.types.is_integer(kind) or _is_text(kind) or pa.types.is_date(kind) or pa.types.is_boolean(kind)):
            raise ConfigError(
                f"{who}: column {key!r} is {kind}, and a partition column holds whole numbers, texts, dates or booleans: "
                f"make such a column of it, a day of a time for example"
            )
    if len(keys) == len(schema.names):
        raise ConfigError(f"{who}: all columns are in partition_by, so the files would have none")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class _Below(SinkFolder):
    """The folder of one partition."""

    def __init__(self, folder: SinkFolder, name: str) -> None:
        self.folder, self.name = folder, name

    def create(self, name: str) -> Hidden:
        return self.folder.create(f"{self.name}/{name}")


class PartitionedWriter(SinkWriter):
    """A writer of batches into files by partition. `make(folder, numbers, schema)` makes the writer of one partition, whose
    files have the next of these numbers."""

    def __init__(
        self,
        folder: SinkFolder,
        keys: tuple[str, ...],
        schema: pa.Schema | None,
        make: Callable[[SinkFolder, Iterator[int], pa.Schema], ColumnsWriter],
        ctx: SinkContext,
        who: str,
        keep_keys: bool = False,
    ) -> None:
        """`who`: the name of the sink. `keep_keys`: the files have the partition columns, too."""
        self.folder, self.keys, self.schema, self._make = folder, keys, schema, make
        self._left_out = () if keep_keys else keys
        self.open: dict[str, ColumnsWriter] = {}
        """Folder of a partition -> its writer, the one that was written last at the end."""
        self._ctx, self._numbers, self._who = ctx, file_numbers(ctx), who
        self._tokens: list[bytes] = []
        """Tokens of files of this transaction that have ended."""
        self._names: dict[tuple[Any, ...], str] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if self.schema is None:
            self._find_schema(batch.schema)
        own = batch.select([name for name in batch.schema.names if name not in self._left_out])
        for folder, part in self._parts(batch, own):
            self._write_part(folder, part)
        while sum(one.rows for one in self.open.values()) > MOST_WAITING:
            max(self.open.values(), key=lambda one: one.rows).write_group()

    def _find_schema(self, schema: pa.Schema) -> None:
        """Takes the columns of the first batch, if none are declared."""
        check_types(schema, self.keys, self._who)
        unknown = next((field.name for field in schema if pa.types.is_null(field.type)), None)
        if unknown is not None:
            raise ValueError(
                f"column {unknown!r} has only null so far, so its type is not known: give the sink a schema"
            )
        self.schema = schema

    def _parts(self, batch: pa.RecordBatch, own: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each partition, in their order, and its folder."""
        codes = np.zeros(batch.num_rows, np.int64)
        for key in self.keys:
            values = pc.dictionary_encode(batch.column(key), null_encoding="encode")
            codes = codes * max(1, len(values.dictionary)) + values.indices.to_numpy()
            codes = np.unique(codes, return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        if len(codes) and codes[0] != codes[-1]:
            own = own.take(pa.array(order))
        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(bounds):
            if end > start:
                row = int(order[start])
                values = tuple(batch.column(key)[row].as_py() for key in self.keys)
                yield self._folder_of(values), own.slice(start, end - start)

    def _folder_of(self, values: tuple[Any, ...]) -> str:
        known = self._names.get(values)
        if known is None:
            if len(self._names) > 10 * MOST_OPEN:
                self._names.clear()
            known = "/".join(_folder_name(key, value) for key, value in zip(self.keys, values, strict=True))
            self._names[values] = known
        return known

    def _write_part(self, folder: str, part: pa.RecordBatch) -> None:
        writer = self.open.pop(folder, None)
        if writer is None:
            if len(self.open) >= MOST_OPEN:
                self._end(next(iter(self.open)))
            assert self.schema is not None
            own = pa.schema([field for field in self.schema if field.name not in self._left_out])
            writer = self._make(_Below(self.folder, folder), self._numbers, own)
        self.open[folder] = writer
        writer.write(part)

    def _end(self, folder: str) -> None:
        """Ends the file of a partition. Its writer stays until that has succeeded, so that `close` gives it up otherwise."""
        token = self.open[folder].prepare()
        del self.open[folder]
        if token is not None:
            self._tokens.append(token)

    def prepare(self) -> bytes | None:
        for folder in list(self.open):
            self._end(folder)
        tokens, self._tokens = self._tokens, []
        return hidden.group(tokens)

    def took_over(self) -> None:
        sweep_lost(self.folder, self._ctx)

    def close(self) -> None:
        for writer in self.open.values():
            writer.close()
        self.open.clear()


def _folder_name(key: str, value: Any) -> str:
    """The name of the folder of a value, as Spark and Hive write it. Raises `ValueError` for a value that would not come
    back from there."""
    if value is None:
        return f"{escape(key)}={NULL}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text in ("", NULL) or "\0" in text:
        raise ValueError(
            f"partition column {key!r} has the text {text!r}, which in the name of a folder means null: write None, or "
            f"another text"
        )
    name = f"{escape(key)}={escape(text)}"
    if len(name.encode()) > LONGEST:
        raise ValueError(
            f"partition column {key!r}: a name of a folder has at most {LONGEST} bytes, and {name!r} has more"
        )
    return name
