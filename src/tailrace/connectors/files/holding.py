"""A writer whose files go on over checkpoints: `HoldingWriter`, for `Roll(seconds=...)`.

A file is published whole, so a file that goes on over a checkpoint has records that are in no published file when the
checkpoint is complete. Copies of them are state of the writer: after a failure they are written anew, at whatever
parallelism. The file itself needs no protocol: it is prepared at the first checkpoint behind its time, or at the end of the
input, and if it is lost before it is swept as all that was not prepared. See decision 53.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import SinkWriter
from tailrace.connectors.files.rolling import Roll
from tailrace.state.operator_state import OperatorState

MOST_HELD = 32 << 20
"""Bytes of copies that a subtask keeps in checkpoints, compressed. With more the files are published at the next one."""


class HoldingWriter(SinkWriter):
    """A writer that has another one prepare its files only when they are `seconds` old."""

    held = OperatorState(list, default=[])
    """Copies of the batches that are in checkpoints and in no prepared file."""

    def __init__(self, writer: SinkWriter, seconds: float) -> None:
        self.writer, self.seconds = writer, seconds
        self._fresh: list[Any] = []
        """Batches since the last cut."""
        self._begun_at: float | None = None
        """Time at which the first batch came that is in no prepared file, on the clock of this process."""
        self._restored = self._over = False

    def _restore(self) -> None:
        """Writes what the restored checkpoint held."""
        if not self._restored:
            self._restored = True
            for copy in self.held.value:
                for batch in _batches_of(copy):
                    self.writer.write(batch)
                    self._begin()

    def _begin(self) -> None:
        if self._begun_at is None:
            self._begun_at = time.monotonic()

    def write(self, batch: Any) -> None:
        self._restore()
        self.writer.write(batch)
        self._begin()
        self._fresh.append(batch)

    def finish(self) -> None:
        self._over = True
        self.writer.finish()

    def prepare(self) -> bytes | None:
        self._restore()
        fresh, self._fresh = self._fresh, []
        held = self.held.value
        if not self.released:
            if fresh:
                runs = groupby(fresh, lambda batch: getattr(batch, "schema", None))
                self.held.value = [*held, *(_copy_of(list(run)) for _, run in runs)]
            return None
        self._begun_at = None
        if held:
            self.held.value = []
        return self.writer.prepare()

    def release(self) -> bool:
        """True if the files are old enough, or too large to be held back, or if no more records come."""
        if self._over or sum(map(len, self.held.value)) > MOST_HELD:
            return True
        return self._begun_at is not None and time.monotonic() - self._begun_at >= self.seconds

    @property
    def record(self) -> Any:  # type: ignore[override]
        """The record at hand of the writer that writes."""
        return self.writer.record

    def took_over(self) -> None:
        self.writer.took_over()

    def close(self) -> None:
        self.writer.close()


def _copy_of(batches: list[Any]) -> bytes:
    """Batches in columns of one schema, or lists of records that are written as text, as bytes."""
    if not isinstance(batches[0], pa.RecordBatch):
        lines = [str(record) for batch in batches for record in batch]
        batches = [pa.record_batch([pa.array(lines)], ["line"])]
        metadata = {b"tailrace": b"lines"}
    else:
        metadata = None
    out = pa.BufferOutputStream()
    schema = batches[0].schema if metadata is None else batches[0].schema.with_metadata(metadata)
    with pa.ipc.new_stream(out, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    data: bytes = out.getvalue().to_pybytes()
    return data


def _batches_of(copy: bytes) -> Iterator[Any]:
    """The batches of a copy. They are not joined: a column of texts cannot hold more than 2 GiB."""
    with pa.ipc.open_stream(copy) as reader:
        lines = (reader.schema.metadata or {}).get(b"tailrace") == b"lines"
        for batch in reader:
            yield batch.column(0).to_pylist() if lines else batch


def held_writer(writer: SinkWriter, roll: Roll | None) -> SinkWriter:
    """The writer, in one that holds its files back if the roll has a time."""
    return writer if roll is None or roll.seconds is None else HoldingWriter(writer, roll.seconds)
