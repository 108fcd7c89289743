"""JSON objects in columns, from files of lines and from servers. msgspec decodes each object into the types of its columns.

Arrow's own reader of JSON takes twice the time for batches of a stream, and reads texts that follow each other as one: an
object that one record begins and the next one ends would be a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns.kinds import LISTS, family
from tailrace.errors import ConfigError

Make = Callable[[list[Any]], pa.Array]


class JsonColumns:
    """The function that makes a batch of JSON objects. A missing field is null, fields that are no columns are left out, and
    of several fields of one name the last one counts; dates and times are read by a cast of their texts. Raises
    `ConfigError` for a type that is not read."""

    def __init__(self, schema: pa.Schema, who: str) -> None:
        if not len(schema):
            raise ConfigError(f"{who}: the schema has no columns, so a record would have nothing: name one")
        self.schema, self._who = schema, who
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(_object_kind(schema, f"{who}: column ")).decode
        self._columns = _columns_of(schema)

    def __reduce__(self) -> Any:
        return JsonColumns, (self.schema, self._who)

    def __call__(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """The values as a batch. Raises `ValueError`, or an error of Arrow, if one of them does not fit."""
        try:
            objects = list(map(self._decode, values))
            return pa.RecordBatch.from_arrays([make(objects) for make in self._columns], schema=self.schema)
        except msgspec.DecodeError:
            if any(not value.lstrip().startswith(b"{") for value in values):
                raise ValueError("it is no JSON object") from None
            raise
        except OverflowError as error:
            raise ValueError(f"a whole number does not fit its column: {error}") from error


# The values that msgspec decodes.


def _object_kind(fields: Iterable[pa.Field], path: str) -> type:
    """The class of objects with these fields: an object has nothing else of what a text holds."""
    found: list[Any] = []
    for at, field in enumerate(fields):
        kind: Any = _value_kind(field.type, f"{path}{field.name!r}")
        found.append((f"at{at}", kind | None, None) if field.nullable else (f"at{at}", kind))
    names = {f"at{at}": field.name for at, field in enumerate(fields)}
    try:
        return msgspec.defstruct("Object", found, rename=names, gc=False, kw_only=True)
    except ValueError as error:
        raise ConfigError(f"{path}names are not read: {error}; leave the schema out, records are dicts then") from None


def _value_kind(kind: pa.DataType, where: str) -> Any:
    """The type of a value of a column as msgspec decodes it: texts for what is read by a cast."""
    if t.is_struct(kind):
        return _object_kind(kind, f"{where}, field ")
    if family(kind) in LISTS:
        value: Any = _value_kind(kind.value_type, where)
        return list[value | None] if kind.value_field.nullable else list[value]
    for is_kind, found in (
        (t.is_boolean, bool),
        (t.is_integer, int),
        (t.is_floating, float),
        (t.is_decimal, Decimal),
        (t.is_null, type(None)),
    ):
        if is_kind(kind):
            return found
    try:
        pa.array([], pa.string()).cast(kind)
    except pa.ArrowException:
        what = "maps are not read; declare a struct" if t.is_map(kind) else "it is not read; declare a text"
        raise ConfigError(f"{where} is {kind}: {what}, or leave the schema out") from None
    return str


# The columns of decoded values.


def _columns_of(fields: Iterable[pa.Field]) -> list[Make]:
    """The functions that make the columns of objects."""
    return [_column(at, field.type) for at, field in enumerate(fields)]


def _column(at: int, kind: pa.DataType) -> Make:
    make = _maker(kind)
    values = eval(f"lambda objects: [each.at{at} for each in objects]")  # half the time of an attrgetter
    return lambda objects: make(values(objects))


def _maker(kind: pa.DataType) -> Make:
    """The function that makes an array of values of a column."""
    if t.is_struct(kind):
        return _struct_maker(kind)
    if family(kind) in LISTS:
        return _list_maker(kind)
    if _value_kind(kind, "") is not str or t.is_string(kind) or t.is_large_string(kind):
        return lambda values: pa.array(values, kind)
    return lambda values: pa.array(values, pa.string()).cast(kind)


def _struct_maker(kind: pa.StructType) -> Make:
    columns, absent = _columns_of(kind), SimpleNamespace(**{f"at{at}": None for at in range(kind.num_fields)})

    def make(values: list[Any]) -> pa.Array:
        if not columns:
            return pa.array([None if value is None else {} for value in values], kind)
        objects = [absent if value is None else value for value in values]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays([column(objects) for column in columns], fields=list(kind), mask=mask)

    return make


def _list_maker(kind: Any) -> Make:
    make_items, plain = _maker(kind.value_type), pa.list_(kind.value_field)

    def make(values: list[Any]) -> pa.Array:
        ends = accumulate((0 if value is None else len(value) for value in values), initial=0)
        offsets = pa.array(list(ends), pa.int32())
        mask = pa.array([value is None for value in values], pa.bool_())
        items = make_items(list(chain.from_iterable(value for value in values if value is not None)))
        return pa.ListArray.from_arrays(offsets, items, type=plain, mask=mask).cast(kind)

    return make
