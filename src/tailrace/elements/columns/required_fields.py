"""Columns without nulls in required fields, also behind a null. A null struct has no values in its fields, but Arrow refuses
to write it to Parquet if a field that must not be null is null."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from tailrace.elements.columns.arrays import fixed_list_from, lists_from, map_from
from tailrace.elements.columns.encoding import plain_array


def filled_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of these records, with some value behind each null where the type requires one."""
    if not any(_requires(kind) for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays(list(map(_fill, batch.columns)), schema=batch.schema)


@lru_cache(maxsize=1024)
def _requires(kind: pa.DataType) -> bool:
    """True if a type has a struct, or a list of a fixed size, around a field that must not be null."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    around = t.is_struct(kind) or t.is_fixed_size_list(kind)
    return any((around and not field.nullable) or _requires(field.type) for field in fields)


def _fill(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _requires(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if t.is_struct(kind):
        children = [_child(part, field) for part, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if t.is_fixed_size_list(kind):
        places = np.where(np.asarray(array.is_valid()), np.arange(len(array)), len(array))
        whole = pa.concat_arrays([array, _blank(kind)]).take(pa.array(places))
        return fixed_list_from(_child(whole.flatten(), kind.value_field), mask, kind, len(array))
    array = array.take(pa.array(np.arange(len(array))))  # without an offset, and without items behind nulls
    lengths = np.diff(array.offsets)
    if t.is_map(kind):
        return map_from(lengths, mask, _fill(array.keys), _fill(array.items), kind)
    return lists_from(lengths, mask, _fill(array.flatten()), kind)


def _child(array: pa.Array, field: pa.Field) -> pa.Array:
    """A part of an array, which is null where the whole is, with some value in place of each null if the field requires
    one."""
    if not field.nullable and array.null_count:
        places = np.where(np.asarray(array.is_valid()), np.arange(len(array)), len(array))
        array = pa.concat_arrays([array, _blank(array.type)]).take(pa.array(places))
    return _fill(array)


def _blank(kind: pa.DataType) -> pa.Array:
    """An array of one arbitrary value of a type that is not null."""
    if t.is_struct(kind):
        parts = [pa.nulls(1, field.type) if field.nullable else _blank(field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind)) if parts else pa.array([{}], kind)
    if t.is_fixed_size_list(kind):
        item = pa.nulls(1, kind.value_type) if kind.value_field.nullable else _blank(kind.value_type)
        return fixed_list_from(item.take(pa.array([0] * kind.list_size, pa.int64())), None, kind, 1)
    if t.is_nested(kind):
        return plain_array(pa.array([[]], kind))
    if t.is_string(kind) or t.is_large_string(kind):
        return pa.array([""], kind)
    if t.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width)], kind)
    if t.is_binary(kind) or t.is_large_binary(kind):
        return pa.array([b""], kind)
    return pa.array([False]) if t.is_boolean(kind) else pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(32))])
