"""Timestamps of the batches that a function of batches returns.

Timestamps lie beside a batch, and the operator does not see how a function moves records. It keeps timestamps only if it
can see which records they belong to: a column of the input, or a slice of it, is in the result untouched, in the same
memory, and no other column there is a slice of other records. A function that sorts, filters or makes all columns anew
needs the timestamps in a column of their own, which moves with the records.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.elements.batches import Times
from tailrace.elements.timestamps import NO_TIME

_Place = tuple[pa.DataType, tuple[int, ...]]


def with_times(data: pa.RecordBatch, times: Times | None, name: str) -> pa.RecordBatch:
    """Batch with its timestamps as one more column; null for none."""
    kind = pa.timestamp("us", "UTC")
    if times is None:
        column = pa.nulls(data.num_rows, kind)
    else:
        column = pa.array(times, pa.int64(), mask=times == NO_TIME).cast(kind)
    return data.append_column(pa.field(name, kind), column)


def times_kept(given: pa.RecordBatch, times: Times, made: pa.RecordBatch) -> Times | None:
    """Timestamps of the records of `made`, a batch that a function made of `given`; None if they cannot be known."""
    places: dict[_Place, list[int]] = {}
    for column in given.columns:
        if (place := _place(column)) is not None:
            places.setdefault(place, []).append(column.offset)
    found: set[int] | None = None
    for column in made.columns:
        place = _place(column)
        # Several columns may be slices of one: all of them have to agree.
        begins = {column.offset - offset for offset in places.get(place, [])} if place is not None else set()
        begins = {begin for begin in begins if begin >= 0 and begin + len(column) <= len(times)}
        if begins:
            found = begins if found is None else found & begins
    if found is None or len(found) != 1:
        return None
    [begin] = found
    return times[begin : begin + made.num_rows]


def _place(column: Any) -> _Place | None:
    """Type of a column and the addresses of its values in memory; None for a column without values of its own."""
    if column.type.num_fields or pa.types.is_dictionary(column.type):
        return None
    found = tuple(0 if buffer is None else buffer.address for buffer in column.buffers())
    return (column.type, found) if any(found) else None
