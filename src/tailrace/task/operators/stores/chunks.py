"""Kept records in columns, as checkpoints have them: the front above the table of their blocks
(`state.tables.Front`).

A cut puts the records that no checkpoint has into chunks. Each key group of a chunk is a *block*, an entry of the table:
(a key of the group, input, chunk, 0) -> columns. The marks that records of a block get later are an entry of their own,
(key, input, chunk, 1). A chunk whose records are all gone is deleted; one of which little is left is written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tailrace.elements.slottables import places_by_slot
from tailrace.state.tables import FrozenColumns
from tailrace.task.operators.stores.segments import GONE, MATCHED, UNWRITTEN, KeptSegment, Side

Array = np.ndarray[Any, Any]
CHUNK = 1 << 16
"""Number of records of a chunk at most."""
_LEFT = 8
"""A chunk is written anew when less than one in so many of its records is kept."""
BLOCK, MARKS = 0, 1
"""Kinds of entries."""
BlockKey = tuple[Any, int, int, int]
"""A key of the key group, the input, the chunk, and the kind of the entry."""


class BlockKeys(Protocol):
    """Keys of the records of both inputs."""

    names: tuple[tuple[str, ...], tuple[str, ...]]
    """For each input, the names of the columns of its key."""

    def values(self, data: pa.RecordBatch, port: int) -> list[Any]:
        """The keys of records as state holds them."""
        ...


def key_of_block(key: BlockKey) -> Any:
    """The key whose key group an entry is in."""
    return key[0]


@dataclass
class Chunk:
    """Records that one cut has written together."""

    count: int
    """Number of its records."""
    kept: int
    """Number of those that are kept."""
    keys: dict[int, Any] = field(default_factory=dict)
    """Key group -> the key that its block has."""
    changes: list[tuple[Array, Array, Array]] = field(default_factory=list)
    """Marks of its records since it was written: numbers, key groups, marks."""
    dirty: bool = False
    """True if there are changes that no checkpoint has."""
    marked: bool = False
    """True if a checkpoint has changes."""

    def entries(self, port: int, number: int) -> list[BlockKey]:
        """The keys of its entries."""
        kinds = (BLOCK, MARKS) if self.marked else (BLOCK,)
        return [(key, port, number, kind) for key in self.keys.values() for kind in kinds]


@dataclass
class _Unit:
    """Records of one chunk that are still to be written."""

    port: int
    number: int
    chunk: Chunk
    parts: list[tuple[pa.RecordBatch, Array, Array, Array]]
    """Of each segment: its records, the places of those that are written, their key groups, and three columns: numbers,
    times, marks."""


class ChunkFront:
    """Front of the kept records, above the table of blocks.

    Invariant T26: of each chunk, `kept` is the number of records in segments that have its number and are not gone; the
    table has its blocks, without those of its records whose marks say that they are gone.
    """

    def __init__(self, sides: Sequence[Side], keys: BlockKeys) -> None:
        self.sides = sides
        self._keys = keys
        self.chunks: tuple[dict[int, Chunk], dict[int, Chunk]] = ({}, {})
        """By input: number -> chunk."""
        self.next = 0
        """Number of the next chunk."""
        self._ended: list[tuple[int, int, Chunk]] = []
        """Chunks whose entries are to be deleted: input, number, chunk."""

    # Records of the operator.

    def mark(self, port: int, segment: KeptSegment, rows: Array, mark: int, noted: bool) -> None:
        """Marks records of a segment. Checkpoints have the marks if they are `noted`."""
        records = segment.records
        records.marks[rows] |= mark
        numbers = records.chunks[rows]
        written = np.flatnonzero(numbers != UNWRITTEN)
        if not len(written):
            return
        numbers, rows = numbers[written], rows[written]
        for number in np.unique(numbers).tolist():
            chunk, some = self.chunks[port][number], rows[numbers == number]
            if mark & GONE:
                chunk.kept -= len(some)
                if not chunk.kept:
                    self.end(port, number)
                    continue
            if noted:
                chunk.changes.append((records.seqs[some], records.groups[some], np.full(len(some), mark, np.uint8)))
                chunk.dirty = True

    def end(self, port: int, number: int) -> None:
        """Ends a chunk: its entries are to be deleted."""
        self._ended.append((port, number, self.chunks[port].pop(number)))

    def _write_anew(self, port: int, numbers: set[int]) -> None:
        """Ends chunks of which some records are kept: these count as unwritten."""
        if not numbers:
            return
        for number in sorted(numbers):
            self.end(port, number)
        for one in self.sides[port].segments:
            chunks = one.records.chunks
            chunks[np.isin(chunks, list(numbers))] = UNWRITTEN

    # Above the table.

    def entries(self) -> int:
        """Number of records that are kept."""
        return sum(side.kept for side in self.sides)

    about = entries

    def everything(self) -> None:
        """None: some entries are in the table only."""

    def cut(self) -> FrozenColumns | None:
        """The blocks of records that no checkpoint has, and marks that none has. Copies no columns."""
        units: list[_Unit] = []
        marks: list[tuple[int, int, Chunk, list[tuple[Array, Array, Array]]]] = []
        for port, chunks in enumerate(self.chunks):
            self._write_anew(port, {number for number, one in chunks.items() if _LEFT * one.kept < one.count})
            for number, chunk in chunks.items():
                if chunk.dirty:
                    marks.append((port, number, chunk, [*chunk.changes]))
                    chunk.dirty, chunk.marked = False, True
            units += self._units(port)
        ended, self._ended = self._ended, []
        deleted = [key for port, number, chunk in ended for key in chunk.entries(port, number)]
        if not units and not marks and not deleted:
            return None
        return FrozenChunks(units, marks, deleted, self._keys)

    def _units(self, port: int) -> Iterator[_Unit]:
        """The records of an input that no checkpoint has, as units of new chunks."""
        parts: list[Any] = []
        room = CHUNK
        for one in (segment.records for segment in self.sides[port].segments):
            rows = np.flatnonzero((one.chunks == UNWRITTEN) & (one.marks & GONE == 0))
            if len(rows) and parts and not parts[-1][0].schema.equals(one.data.schema):
                yield self._unit(port, parts)
                parts, room = [], CHUNK
            while len(rows):
                some, rows = rows[:room], rows[room:]
                one.chunks[some] = self.next
                columns = np.array([one.seqs[some], one.times[some], one.marks[some]], np.int64)
                parts.append((one.data, some, one.groups[some], columns))
                room -= len(some)
                if not room:
                    yield self._unit(port, parts)
                    parts, room = [], CHUNK
        if parts:
            yield self._unit(port, parts)

    def _unit(self, port: int, parts: list[Any]) -> _Unit:
        count = sum(len(part[1]) for part in parts)
        chunk = self.chunks[port][self.next] = Chunk(count, count)
        self.next += 1
        return _Unit(port, self.next - 1, chunk, parts)

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts the records of a cut as unwritten, its marks as changed, and its deleted entries as not deleted."""
        assert isinstance(columns, FrozenChunks)
        for port in (0, 1):
            known = self.chunks[port]
            self._write_anew(port, {unit[1] for unit in columns.units_of_cut if unit[0] == port and unit[1] in known})
        for port, number, chunk, _ in columns.marks_of_cut:
            chunk.dirty = self.chunks[port].get(number) is chunk
        # Chunks that end anew above have no entry in the table, or one that is deleted like these.
        self._deleted_again(columns.deleted_of_cut)

    def _deleted_again(self, keys: list[BlockKey]) -> None:
        for key, port, number, kind in keys:
            self._ended.append((port, number, Chunk(0, 0, {0: key}, marked=kind == MARKS)))

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Entries written since the last cut, and the keys of deleted ones."""
        columns = self.cut()
        entries: dict[Any, Any] = {}
        deleted: list[Any] = []
        while columns is not None and len(columns):
            entries |= columns.take(1)
            deleted += columns.drop(len(columns))
        return entries, deleted


class FrozenChunks:
    """Entries of a cut. The columns that it refers to are never changed."""

    def __init__(self, units: list[_Unit], marks: list[Any], deleted: list[BlockKey], keys: BlockKeys) -> None:
        self.units_of_cut = [(unit.port, unit.number) for unit in units]
        self.marks_of_cut = marks
        self.deleted_of_cut = deleted
        self._units, self._marks, self._deleted = units[::-1], marks[::-1], deleted[::-1]
        self._keys = keys

    def __len__(self) -> int:
        return len(self._units) + len(self._marks) + len(self._deleted)

    @property
    def drops(self) -> int:
        """Number of deleted keys that are left."""
        return len(self._deleted)

    def take(self, limit: int) -> dict[Any, Any]:
        """The entries of the next chunk."""
        if self._units:
            return self._blocks(self._units.pop())
        if not self._marks:
            return {}
        port, number, chunk, changes = self._marks.pop()
        seqs, groups, marks = (np.concatenate(some) for some in zip(*changes, strict=True))
        return {
            (key, port, number, MARKS): (seqs[groups == group].tobytes(), marks[groups == group].tobytes())
            for group, key in chunk.keys.items()
            if (groups == group).any()
        }

    def drop(self, limit: int) -> list[Any]:
        """The next `limit` deleted keys at most."""
        some, self._deleted = self._deleted[-limit:], self._deleted[:-limit]
        return some

    def _blocks(self, unit: _Unit) -> dict[Any, Any]:
        data = pa.concat_batches([part[0].take(pa.array(part[1])) for part in unit.parts])
        groups = np.concatenate([part[2] for part in unit.parts])
        columns = np.concatenate([part[3] for part in unit.parts], axis=1)
        firsts, blocks = write_blocks(data, columns, groups, self._keys.names[unit.port])
        keys = self._keys.values(data.take(pa.array(firsts)), unit.port)
        unit.chunk.keys.update(zip(blocks, keys, strict=True))
        return {(key, unit.port, unit.number, BLOCK): one for key, one in zip(keys, blocks.values(), strict=True)}


def write_blocks(
    data: pa.RecordBatch, columns: Array, groups: Array, names: tuple[str, ...]
) -> tuple[list[int], dict[int, tuple[Any, ...]]]:
    """The values of the blocks of some records, by key group, and the place of the first record of each. `columns`: their
    numbers, times and marks; `names`: the columns of their key."""
    order = places_by_slot(groups)
    groups, columns = groups[order], columns[:, order]
    data = data.take(pa.array(order))
    begins = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    schema, ends = data.schema.serialize().to_pybytes(), [*begins[1:].tolist(), len(groups)]
    made: dict[int, tuple[Any, ...]] = {}
    for begin, end in zip(begins.tolist(), ends, strict=True):
        part = data.slice(begin, end - begin).serialize().to_pybytes()
        made[int(groups[begin])] = columns[:, begin:end].tobytes(), schema, part, names
    return order[begins].tolist(), made


@dataclass
class KeptBlock:
    """A block that a checkpoint has, with all its marks."""

    data: pa.RecordBatch
    names: tuple[str, ...]
    """Names of the columns of the key."""
    seqs: Array
    times: Array
    marks: Array
    changes: tuple[Array, Array] | None
    """Numbers of records, and marks that they got after the block was written."""

    def without_gone(self) -> KeptBlock:
        """The block without records that are gone."""
        some = np.flatnonzero(self.marks & GONE == 0)
        if len(some) == len(self.marks):
            return self
        data, seqs, times = self.data.take(pa.array(some)), self.seqs[some], self.times[some]
        return KeptBlock(data, self.names, seqs, times, self.marks[some], self.changes)


def read_block(entries: Mapping[BlockKey, Any], key: BlockKey) -> KeptBlock:
    """A block of a table."""
    columns, schema, data, names = entries[key]
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), pa.ipc.read_schema(pa.py_buffer(schema)))
    seqs, times, numbers = np.frombuffer(columns, np.int64).reshape(3, batch.num_rows)
    marks = numbers.astype(np.uint8)
    changed = entries.get((*key[:3], MARKS))
    if changed is None:
        return KeptBlock(batch, names, seqs, times, marks, None)
    changes = np.frombuffer(changed[0], np.int64), np.frombuffer(changed[1], np.uint8)
    for mark in (MATCHED, GONE):
        marks[np.isin(seqs, changes[0][changes[1] & mark > 0])] |= np.uint8(mark)
    return KeptBlock(batch, names, seqs, times, marks, changes)


def restore_blocks(
    front: ChunkFront, entries: Mapping[BlockKey, Any], group_of: Callable[[Any], int]
) -> Iterator[tuple[int, int, KeptBlock]]:
    """The blocks that a table has, without records that are gone: input, chunk, block. The front gets to know their
    chunks."""
    for place in entries:
        key, port, number, kind = place
        if kind != BLOCK:
            continue
        block = read_block(entries, place)
        chunk, group = front.chunks[port].setdefault(number, Chunk(0, 0)), group_of(key)
        if block.changes is not None:
            numbers, marks = block.changes
            chunk.changes.append((numbers, np.full(len(numbers), group, np.uint16), marks))
            chunk.marked = True
        chunk.keys[group] = key
        chunk.count += len(block.seqs)
        block = block.without_gone()
        chunk.kept += len(block.seqs)
        front.next = max(front.next, number + 1)
        yield port, number, block
    for port, chunks in enumerate(front.chunks):
        for number in [number for number, chunk in chunks.items() if not chunk.kept]:
            front.end(port, number)
