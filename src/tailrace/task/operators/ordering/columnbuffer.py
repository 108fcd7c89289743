"""Records in columns that wait for event time. They become rows when it has come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Columns
from tailrace.elements.keygroups import KeyGroups
from tailrace.elements.timestamps import MAX_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import Selector, key_columns
from tailrace.state.backend import Backend
from tailrace.task.channels.key_readers import KeyReader, settled_keys
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.stores.places import KeptPlaces
from tailrace.task.operators.stores.segments import GONE, KeptSegment
from tailrace.task.operators.stores.store import ColumnStore

Array = np.ndarray[Any, Any]


class WaitingKeys:
    """Keys of any types, named by columns, of records that wait."""

    def __init__(self, readers: list[KeyReader]) -> None:
        self.readers = readers
        named = [key_columns(one.selector) for one in readers if one.selector is not None]
        self.names = named[0], named[-1]

    def values(self, data: pa.RecordBatch, port: int) -> list[Any]:
        return settled_keys(self.readers[port].values(Columns(data).to_rows()))


class ColumnBuffer:
    """Records of one operator in one subtask, in columns; they come out as from a `RecordBuffer`.

    Invariant T13: a record is kept from its arrival until it has been handed over; what came out is behind all that event
    time had passed before, and in front of all else.
    """

    def __init__(self, node: Node, ctx: OperatorContext, backend: Backend, selectors: list[Selector]) -> None:
        groups = ctx.services.max_parallelism
        self._keys = WaitingKeys([KeyReader(key, node.name, ctx.subtask, groups, node.written) for key in selectors])
        self._groups = KeyGroups(groups)
        self._store = ColumnStore(backend, self._keys, ctx)
        self._ready: list[tuple[Any, int, int, Any]] = []
        """Records that event time has passed, the next one last: (key, time, input, record)."""
        self._places: list[tuple[int, KeptPlaces]] = []
        """Places of these, and of those that were handed over since `settle`, by input in their order."""
        self._until, self._limit = MAX_TIME, 1
        self._handed = 0
        """Number of records that were handed over since `settle`."""
        backend.after_restore.append(self.rebuild)

    def __len__(self) -> int:
        return len(self._store)

    def rebuild(self) -> None:
        """Makes the segments from the table, after a restore."""
        for port, blocks in self._store.restored_blocks(self._groups.group_of):
            while blocks:  # those of one schema together
                schema = blocks[0][1].data.schema
                some = [one for one in blocks if one[1].data.schema.equals(schema)]
                blocks = [one for one in blocks if not one[1].data.schema.equals(schema)]
                data = pa.concat_batches([one.data for _, one in some])
                groups = np.zeros(len(data), np.uint16)
                if port < len(self._keys.readers):  # else it is refused when the operator opens
                    groups = self._keys.readers[port].groups(Columns(data))
                records = self._store.records_of(data, some, np.zeros(len(data), np.uint64), groups)
                self._store.sides[port].add([KeptSegment(records)])

    def inputs(self) -> set[int]:
        """Inputs of the records that wait."""
        return {port for port, side in enumerate(self._store.sides) if side.kept}

    def add(self, batch: Columns, port: int) -> None:
        """Adds records of one input, in the order in which they came."""
        groups = self._keys.readers[port].groups(batch) if batch.groups is None else batch.groups
        assert batch.times is not None
        records = self._store.records(batch.data, batch.times, np.zeros(len(batch), np.uint64), groups)
        self._store.sides[port].add([KeptSegment(records)])

    def next_time(self) -> int | None:
        """Time of the next record, or None."""
        return self._ready[-1][1] if self._ready else self._store.next_time((0, 0), MAX_TIME)

    def prepare(self, until: int, limit: int) -> None:
        """Bounds the records that are taken next: those up to a time, of which at most `limit` become rows together."""
        self._until, self._limit = until, limit

    def _fill(self) -> None:
        """Makes rows of the next records."""
        self.settle()
        store, until, limit = self._store, self._until, self._limit
        if not len(store.unmatched):
            store.tidy()
            for port, side in enumerate(store.sides):
                for one in side.segments:
                    rows = one.pass_by(until)
                    store.let_wait(port, one, rows[one.records.marks[rows] & GONE == 0])
        for port, some, times in store.unmatched.take(limit):
            self._places.append((port, some))
            self._ready += self._rows(port, some, times)
        self._ready.reverse()

    def _rows(self, port: int, some: KeptPlaces, times: Array) -> list[tuple[Any, int, int, Any]]:
        keys: list[Any] = [None] * len(times)
        values = keys.copy()
        for one, here, rows in some.by_segment():
            found = Columns(one.records.data.take(pa.array(rows))).to_rows()
            read = settled_keys(self._keys.readers[port].values(found))
            for at, key, value in zip(here.tolist(), read, found.values, strict=True):
                keys[at], values[at] = key, value
        return list(zip(keys, times.tolist(), [port] * len(keys), values, strict=True))

    def pop(self) -> tuple[Any, int, int, Any]:
        """Takes the next record, which is ready: (key, time, input, record). It is kept until `settle`."""
        if not self._ready:
            self._fill()
        self._handed += 1
        return self._ready.pop()

    def settle(self) -> None:
        """Lets go of the records that were handed over."""
        while self._handed:
            port, some = self._places[0]
            count = min(self._handed, len(some.rows))
            self._store.let_out(port, some.some(slice(0, count)))
            self._handed -= count
            if count < len(some.rows):
                self._places[0] = port, some.some(slice(count, None))
            else:
                del self._places[0]
