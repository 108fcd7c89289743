"""The base of sources whose files hold records of text: what they read at a place, and how they follow it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import Enumerator, Reader, Source
from tailrace.connectors.files.newfiles import NewFiles, check_poll, path_of
from tailrace.connectors.files.partitions import Partitions, partitions_of
from tailrace.connectors.files.places import base_of, files_now, files_of
from tailrace.connectors.files.records import Decoder, RawLines, Records
from tailrace.connectors.hidden import normal
from tailrace.connectors.lines import check_readable
from tailrace.connectors.schemas import declared_schema
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError


class RecordFiles(Source):
    """A source of records that are text in files, a split for each file."""

    def __init__(
        self, path: str, schema: Any, form: Form, partitions: bool | Any, follow: bool, poll: float | None
    ) -> None:
        who = type(self).__name__
        if form not in ("rows", "columns"):
            raise ConfigError(f"{who}: form must be 'rows' or 'columns', not {form!r}")
        self.path, self.form, self.follow, self.bounded = normal(path), form, follow, not follow
        self.poll = check_poll(poll, follow, who)
        self.own = None if schema is None else declared_schema(schema, who)
        """Columns of the files; None if they are not known."""
        self._raw = False
        self.partitions = self._partitions(partitions, who)

    def _partitions(self, columns: Any, who: str) -> Partitions:
        """The partition columns, which this takes out of the declared columns of the files."""
        files = files_now(self.path) if self.follow else files_of(self.path)
        check_readable([self.path, *files], who)
        columns = columns if isinstance(columns, bool) else declared_schema(columns, who)
        made = partitions_of(self.path, base_of(self.path), files, columns, self.own)
        if self.own is not None:
            self.own = pa.schema([field for field in self.own if field.name not in made.schema.names])
        return made

    def _columns(self, own: pa.Schema) -> None:
        """Sets the columns of the records: those of the files, then those in names of folders."""
        self.schema = self.partitions.schema_with(own)
        self.columns = tuple(self.schema.names)

    @property
    def position_format(self) -> str:
        return f"{type(self).__name__}(follow=True)" if self.follow else type(self).__name__

    def splits(self, parallelism: int) -> Sequence[Any]:
        return check_readable(files_of(self.path), type(self).__name__)

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator | None:
        return NewFiles(self.path, parallelism, position, self.poll) if self.follow else None

    def raws(self, path: str, split: Any, position: Any) -> RawLines:
        """The reader of the raw records of one file."""
        raise NotImplementedError

    def decoder(self, form: Form) -> Decoder:
        raise NotImplementedError

    def reader(self, split: Any, position: Any = None) -> Reader:
        path = path_of(split)
        return Records(self.raws(path, split, position), None if self._raw else self.decoder(self.form), path)

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]] | None:
        if self.form == "columns":
            return None
        made = copy.copy(self)
        made._raw, made.schema, made.columns = True, None, None
        return made, self.decoder("rows").one
