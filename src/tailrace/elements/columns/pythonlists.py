"""Conversion of arrays to Python objects, with an error where pyarrow would cut a value: a `time` has no nanoseconds."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t


def python_list(array: pa.Array, maps: Literal["lossy", "strict"] | None = None) -> list[Any]:
    """The values of an array as Python objects. Maps are lists of pairs, or dictionaries (see `pyarrow.Array.to_pylist`).
    Raises what pyarrow raises for a value that Python cannot hold, and `ValueError` for a time of day with nanoseconds."""
    if _has_nanos(array.type):
        _check_nanos(array)
    values: list[Any] = array.to_pylist(maps_as_pydicts=maps)
    return values


@lru_cache(maxsize=1024)
def _has_nanos(kind: pa.DataType) -> bool:
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return _has_nanos(kind.value_type)
    return bool(kind == pa.time64("ns")) or any(_has_nanos(kind.field(i).type) for i in range(kind.num_fields))


def _check_nanos(array: pa.Array) -> None:
    kind = array.type
    if not _has_nanos(kind):
        return
    if t.is_dictionary(kind):
        parts = [array.dictionary_decode()]
    elif t.is_run_end_encoded(kind):
        parts = [pc.run_end_decode(array)]
    elif t.is_map(kind):
        compact = array.take(pa.array(range(len(array)), pa.int64()))  # without an offset and items behind nulls
        parts = [compact.keys, compact.items]
    elif kind.num_fields:
        parts = array.flatten() if t.is_struct(kind) else [array.flatten()]
    else:
        parts = []
        for nanos in array.cast(pa.int64()).drop_null().to_numpy():
            if nanos % 1000:
                raise ValueError(f"a time of day with {nanos % 1000} nanoseconds")
    for part in parts:
        _check_nanos(part)
