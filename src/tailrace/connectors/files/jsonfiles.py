"""Files of JSON lines: one JSON value in each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.api.connectors import Enumerator
from tailrace.connectors.files.jsoncolumns import JsonColumns
from tailrace.connectors.files.records import Decoder, Head, RawLines
from tailrace.connectors.files.sources import RecordFiles
from tailrace.connectors.followed import FollowedFile
from tailrace.connectors.following import Following, refuse_compressed
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.lines import LineReader
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError

decode_json = msgspec.json.Decoder().decode


class Json(RecordFiles):
    """A source of the values in files of JSON lines (UTF-8), without empty lines.

    - `path`: a file, a folder or a glob pattern, local or a URL. Columns in the names of folders (`day=2024-01-01`) are
      columns of the records, unless `partitions=False`; a schema there gives their types.
    - `schema`: the columns, as DDL text, a `StructType` or a `pyarrow.Schema`. Records are then rows with their names, or
      record batches with `form="columns"`. A missing field is null, and fields that are no columns are left out. Without a
      schema records are what the lines hold: dicts, as a rule.
    - `follow`: without end, also files that come later. Local files are read on as they grow, as those of `TextFiles`; files
      behind a URL are read once they are there, which is looked for each `poll` seconds.

    Raises `ConfigError` for a path without files and wrong settings."""

    description = "json"

    def __init__(
        self,
        path: str,
        schema: Any = None,
        *,
        form: Form = "rows",
        partitions: bool | Any = True,
        follow: bool = False,
        poll: float | None = None,
    ) -> None:
        super().__init__(path, schema, form, partitions, follow, poll)
        self.grows = follow and protocol_of(self.path) is None
        """True if files are read on as they grow."""
        if self.grows:
            refuse_compressed([self.path])
        if self.own is not None:
            JsonColumns(self.own, "Json")
            self._columns(self.own)
        elif form == "columns":
            raise ConfigError('Json: form="columns" needs a schema: Json(path, schema, form="columns")')

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator | None:
        return Following(self.path, position) if self.grows else super().enumerator(parallelism, position)

    def raws(self, path: str, split: Any, position: Any) -> RawLines:
        if self.grows:
            return RawLines(FollowedFile(self.path, split, position, decodes=False))
        return RawLines(LineReader(path, position, decodes=False))

    def decoder(self, form: Form) -> Decoder:
        return ValueDecoder(form, self.partitions) if self.own is None else JsonDecoder(form, self.partitions, self.own)


class ValueDecoder(Decoder):
    """A decoder of lines into the values that they hold. Partition columns are added to them, which are dicts then."""

    def values(self, path: str, raws: Sequence[bytes], head: Head) -> Any:
        found = list(map(decode_json, raws))
        if not self.partitions.schema.names:
            return found
        more = self.partitions.plain(path)
        return [_with(one, more) for one in found]


def _with(value: Any, more: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(
            "no object, so it cannot take the columns in the names of folders; leave them out: partitions=False"
        )
    twice = value.keys() & more.keys()
    if twice:
        raise ValueError(
            f"{min(twice)!r} is in the record and in the name of a folder; leave that out: partitions=False"
        )
    return {**value, **more}


class JsonDecoder(Decoder):
    """A decoder of lines into declared columns."""

    def __init__(self, form: Form, partitions: Any, own: pa.Schema) -> None:
        super().__init__(form, partitions)
        self._columns = JsonColumns(own, "Json")

    def batch(self, raws: Sequence[bytes], head: Head) -> pa.RecordBatch:
        return self._columns(raws)
