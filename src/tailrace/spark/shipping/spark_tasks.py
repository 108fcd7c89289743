"""Functions that travel by value as Spark tasks: they need no tailrace before they have found that it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from tailrace.spark.shipping.arrival import looking
from tailrace.spark.shipping.parcel import Parcel

MARK = "[TAILRACE_LACKING]"


def columns_of_one() -> Callable[[str | bytes | None], Any]:
    """A function that travels by value. It makes a column of Arrow with one value: a text, bytes, or null."""

    def column(value: str | bytes | None) -> Any:
        import struct

        import pyarrow as pa

        # pa.array would import pandas, if it is there: a second or two in which the job has ended and does not report so.
        if value is None:
            return pa.nulls(1, pa.string())
        kind, data = (pa.string(), value.encode()) if isinstance(value, str) else (pa.binary(), value)
        ends = pa.py_buffer(struct.pack("=ii", 0, len(data)))
        return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(data)])

    return column


def with_tailrace(work: Callable[[Any], Any], parcel: Parcel | None) -> Callable[[Any], Any]:
    """Wraps a function of batches that needs tailrace, as a Spark task that travels by value. Where the executor lacks
    something, the task raises `ImportError` with what is missing."""
    unpack = carrying(work, parcel)

    def run(batches: Any) -> Any:
        yield from unpack()(batches)

    return run


def carrying(value: Any, parcel: Parcel | None) -> Callable[[], Any]:
    """A function that travels by value and returns a value that needs tailrace. Where the process lacks something, it
    raises `ImportError` with what is missing."""
    look, ours, mark = looking(parcel), cloudpickle.dumps(value), MARK

    def unpack() -> Any:
        import pickle

        lacking = look()
        if lacking is not None:
            raise ImportError(f"{mark} {lacking}")
        return pickle.loads(ours)

    return unpack
