"""Columns in the names of folders: `day=2024-01-01/hour=7/part-0.parquet`.

Names and values are written as Spark and Hive write them: characters that mean something in paths are `%` and two
hexadecimal digits, and null is `__HIVE_DEFAULT_PARTITION__`. Types that nobody declares are inferred from the values, as
Spark does: whole numbers, other decimal numbers, dates, and text for all else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from tailrace.connectors.files.places import parts_below
from tailrace.elements.rows import plain_values
from tailrace.errors import ConfigError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of a folder for null."""
LONGEST = 255
"""Number of bytes in the longest name of a folder."""
_ESCAPED = re.compile(r'[\x01-\x1f"#%\'*/:=?\\\x7f{\[\]^]')
"""The characters that Spark escapes."""
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def escape(text: str) -> str:
    """A name or value as a part of the name of a folder."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescape(text: str) -> str:
    """The name or value in a part of the name of a folder."""
    return text if "%" not in text else unquote_to_bytes(text).decode(errors="replace")


def keys_of(base: str, path: str) -> tuple[tuple[str, str | None], ...]:
    """The columns in the folders between a base and a file, with their values as texts; None for null."""
    pairs = (part.partition("=") for part in parts_below(base, path) if not part.startswith("="))
    return tuple((unescape(k), None if v == NULL else unescape(v)) for k, equals, v in pairs if equals)


class Partitions:
    """The partition columns of the files at one place."""

    def __init__(self, base: str, schema: pa.Schema) -> None:
        self.base, self.schema = base, schema
        self._last: tuple[str, list[pa.Scalar]] | None = None

    def values(self, path: str) -> list[pa.Scalar]:
        """The values of a file. Raises `ValueError` for folders with other columns, or a value of another type."""
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        keys = keys_of(self.base, path)
        names = [name for name, _ in keys]
        if names != self.schema.names:
            raise ValueError(_mixture(path, names, self.schema.names))
        found = []
        for field, (name, text) in zip(self.schema, keys, strict=True):
            try:
                found.append(_value(text, field.type))
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(
                    f"{path}: the folder's {name}={text} is no {field.type}: {error}; declare another type of the column"
                ) from None
        self._last = path, found
        return found

    def plain(self, path: str) -> dict[str, Any]:
        """The values of a file by name, as rows have them."""
        scalars = zip(self.schema.names, self.values(path), strict=True)
        return {name: plain_values(pa.array([one], one.type), name)[0] for name, one in scalars}

    def add_to(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        """A batch of a file with the partition columns behind its own ones."""
        if not self.schema.names:
            return batch
        rows = batch.num_rows
        arrays = [pa.repeat(one, rows) for one in self.values(path)]
        schema = self.schema_with(batch.schema)
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=schema)

    def schema_with(self, own: pa.Schema) -> pa.Schema:
        """The columns of the records of files with these columns of their own. Raises `ConfigError` if a column is in
        both."""
        twice = next((name for name in self.schema.names if name in own.names), None)
        if twice is not None:
            raise ConfigError(
                f"column {twice!r} is in the files below {self.base} and in the names of their folders, maybe with other "
                f"values; read the files' one with partitions=False, or leave it out of the schema of the files"
            )
        return pa.schema([*own, *self.schema])


def partitions_of(place: str, base: str, files: Iterable[str], columns: Any, declared: pa.Schema | None) -> Partitions:
    """The partition columns of files: none if `columns` is False; with types that are declared, in `columns` or in the
    schema of all columns, or else inferred. Raises `ConfigError` if the files have different columns in their folders."""
    if columns is False:
        return Partitions(base, pa.schema([]))
    found = [(path, keys_of(base, path)) for path in files]
    names = [name for name, _ in found[0][1]] if found else columns.names if isinstance(columns, pa.Schema) else []
    for path, keys in found:
        if [name for name, _ in keys] != names:
            raise ConfigError(f"{place}: {_mixture(path, [name for name, _ in keys], names)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{place}: the folders of {found[0][0]} have one column twice: {', '.join(names)}")
    types = {field.name: field.type for field in [*(declared or []), *(columns if columns is not True else [])]}
    fields = []
    for at, name in enumerate(names):
        values = {keys[at][1] for _, keys in found}
        fields.append(pa.field(name, types[name] if name in types else _infer(values)))
    made = Partitions(base, pa.schema(fields))
    for path, _ in found:
        try:
            made.values(path)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return made


def _mixture(path: str, here: Sequence[str], expected: Sequence[str]) -> str:
    return (
        f"the folders of {path} have the columns ({', '.join(here)}), and those of the first file ({', '.join(expected)}); "
        f"read them as several sources, or without these columns: partitions=False"
    )


def _infer(values: set[str | None]) -> pa.DataType:
    """The type that Spark infers from the texts of a column."""
    texts = [text for text in values if text is not None]
    if not texts:
        return pa.string()
    whole = [int(text) for text in texts if _WHOLE.fullmatch(text)]
    width = max((max(-number - 1, number).bit_length() for number in whole), default=0)
    if len(whole) == len(texts):
        return pa.int32() if width < 32 else pa.int64() if width < 64 else pa.string()
    if width < 32 and all(_WHOLE.fullmatch(text) or _DECIMAL.fullmatch(text) for text in texts):
        return pa.float64()
    return pa.date32() if all(map(_is_date, texts)) else pa.string()


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text)) and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_integer(kind) and _WHOLE.fullmatch(text):
        return pa.scalar(int(text), kind)
    return pa.scalar(text).cast(kind)
