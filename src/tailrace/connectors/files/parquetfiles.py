"""Parquet files as a source, with the columns in the names of their folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.connectors.files.newfiles import NewFiles, check_poll, path_of
from tailrace.connectors.files.partitions import partitions_of
from tailrace.connectors.files.places import base_of, files_of
from tailrace.connectors.hidden import normal
from tailrace.connectors.lines import Version
from tailrace.connectors.parquet import ParquetRows, read_schema
from tailrace.connectors.schemas import declared_schema
from tailrace.elements.batches import Form
from tailrace.elements.rows import rows_of
from tailrace.errors import ConfigError
from tailrace.spelling import with_hints


@with_hints
class Parquet(Source):
    """A source of the rows of Parquet files, or of record batches with `form="columns"`. `path` is a file, a folder or a
    glob pattern, local or a URL.

    - `partitions`: columns in the names of folders (`day=2024-01-01`) are columns of the records, unless it is False; a
      schema gives their types, which are inferred as Spark does otherwise.
    - `follow`: without end, also files that come later; looks for them each `poll` seconds. The columns are those of the
      first file that is there.

    Raises `ConfigError` for a path without files, what is no Parquet file, and folders with different columns."""

    description = "parquet"

    def __init__(
        self,
        path: str,
        *,
        form: Form = "rows",
        partitions: bool | Any = True,
        follow: bool = False,
        poll: float | None = None,
    ) -> None:
        if form not in ("rows", "columns"):
            raise ConfigError(f"Parquet: form must be 'rows' or 'columns', not {form!r}")
        self.path, self.form, self.follow, self.bounded = normal(path), form, follow, not follow
        self.poll = check_poll(poll, follow, "Parquet")
        files = files_of(self.path)
        self.own = read_schema(files[0])
        """Columns of the files."""
        columns = partitions if isinstance(partitions, bool) else declared_schema(partitions, "Parquet")
        self.partitions = partitions_of(self.path, base_of(self.path), files, columns, None)
        self.schema = self.partitions.schema_with(self.own)
        self.columns = tuple(self.schema.names)

    @property
    def position_format(self) -> str:
        return "Parquet(follow=True)" if self.follow else "Parquet"

    def splits(self, parallelism: int) -> Sequence[str]:
        return files_of(self.path)

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator | None:
        return NewFiles(self.path, parallelism, position, self.poll) if self.follow else None

    def reader(self, split: Any, position: Any = None) -> Reader:
        path = path_of(split)
        version = Version(path, position)
        file = ParquetRows(path, self.own)
        rows = (self.partitions.add_to(batch, path) for batch in file)
        return FileRows(rows, version, self.form, file.close)


class Batches(Reader):
    """A reader of the record batches of an iterator, cut to the requested size. The position is the number of rows read."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], position: int, form: Form, close: Callable[[], object]
    ) -> None:
        self.batches, self.at, self.form, self._close = iter(batches), 0, form, close
        self.current: pa.RecordBatch | None = None
        self.taken = 0
        self._skip(position)

    def _skip(self, count: int) -> None:
        while self.at < count and self._fill():
            assert self.current is not None
            step = min(count - self.at, self.current.num_rows - self.taken)
            self.taken += step
            self.at += step

    def _fill(self) -> bool:
        while self.current is None or self.taken >= self.current.num_rows:
            self.current, self.taken = next(self.batches, None), 0
            if self.current is None:
                return False
        return True

    def read(self, limit: int, now: float) -> Any:
        if not self._fill():
            return None
        assert self.current is not None
        part = self.current.slice(self.taken, limit)
        self.taken += part.num_rows
        self.at += part.num_rows
        return part if self.form == "columns" else rows_of(part)

    @property
    def position(self) -> Any:
        return self.at

    def close(self) -> None:
        self.current = None
        self._close()


class FileRows(Batches):
    """A reader of the rows of a file, whose position has the version of a file behind a URL."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], version: Version, form: Form, close: Callable[[], object]
    ) -> None:
        super().__init__(batches, version.at or 0, form, close)
        self.version = version

    @property
    def position(self) -> Any:
        return self.version.position(self.at)
