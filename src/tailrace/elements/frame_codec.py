"""Frames, the elements of channels as bytes: a versioned header and skippable sections, whole records only.

Layout, little-endian. Header (40 bytes): magic `TRFR`, version, kind, count of sections, incarnation (u32), edge (u16),
source subtask (u16), target subtask (u16), attempt (u16), sequence number of the first record (u64), number of records
(u32), watermark or grant (i64). Then the sections: id (u16), flags (u16), length (u32), bytes. A reader skips a section
that it does not know if the section's SKIPPABLE flag is set, and refuses the frame if it is not. New facts about a frame
(round paths, causal logs) therefore come as new sections and change nothing for older readers of older frames.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.markers import (
    Barrier,
    EndOfInput,
    IdleChannel,
    Marker,
    Rest,
    RoundEnd,
    SpanRound,
    Watermark,
    WaveMark,
)
from tailrace.elements.rows import Row, made_rows
from tailrace.elements.valueclasses import Shapes
from tailrace.elements.valuepickling import loader, pickle_values
from tailrace.errors import ProtocolViolation

VERSION = 1
_MAGIC = b"TRFR"
_HEADER = struct.Struct("<4sBBHIHHHHQIq")
_SECTION = struct.Struct("<HHI")
_WHOLE_CUT = struct.Struct("<BBqq")
_WHOLE_DIGEST = struct.Struct("<I")
_WHOLE_SPAN = struct.Struct("<qq?")

ROWS, COLUMNS, WATERMARK, IDLE, END, GRANT, BARRIER, WAVE, REST, ROUND_END, HISTORY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
_VALUES, _TIMES, _GROUPS, _ROW_NAMES, _CUT, _HISTORY, _CLASSES, _DIGEST, _SPAN = 1, 2, 3, 4, 5, 6, 7, 8, 9
_KNOWN = frozenset((_VALUES, _TIMES, _GROUPS, _ROW_NAMES, _CUT, _HISTORY, _CLASSES, _DIGEST, _SPAN))
_SKIPPABLE = 1
_MAY_BE_SKIPPED = frozenset((_CLASSES, _DIGEST))
"""Sections with additional facts about records. An older reader can read the records without them."""
_Section = tuple[int, bytes | memoryview]
_shapes_decoder = msgspec.msgpack.Decoder(Shapes)
_KIND = 5
"""Offset of the kind in the header."""


class ChannelId(NamedTuple):
    """One channel: an edge of the plan between two subtasks."""

    edge: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"e{self.edge}:{self.source}->{self.target}"


class ChannelName(NamedTuple):
    """The name of a channel in checkpoints, which outlive the plan: edges have numbers in one plan only."""

    source: str
    """Uid of the operator that sends."""
    tag: str | None
    """Side output of the sender, or None for its main output."""
    target: str
    """Uid of the operator that receives."""
    port: int
    number: int
    """Index among several edges between these operators, in the order in which the user wrote them."""
    source_subtask: int
    target_subtask: int

    def __str__(self) -> str:
        side = "" if self.tag is None else f"/{self.tag}"
        return f"{self.source}{side}[{self.source_subtask}] -> {self.target}:{self.port}[{self.target_subtask}]"


class Frame(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A received frame: its header, read and checked, and its sections, not yet decoded."""

    kind: int
    channel: ChannelId
    incarnation: int
    attempt: int
    seq: int
    count: int
    number: int
    size: int
    sections: dict[int, memoryview]
    data: bytes = b""
    """Bytes of the whole frame as received."""
    older: bool = False
    """True if the frame may be of an earlier version of the program: then the classes of its records are checked."""

    def batch(self) -> Batch:
        """The records of a ROWS or COLUMNS frame. Raises `ProtocolViolation` if the bytes are no records. Errors that the
        class of a record raises when pickle makes the record, and errors for a missing class, pass through; for an older
        frame also `ChangedClass`."""
        times = self._array(_TIMES, np.int64)
        groups = self._array(_GROUPS, np.uint16)
        if self.kind == COLUMNS:
            batch: Batch = Columns(self._record_batch(), times, groups)
        else:
            batch = Rows(self._values(), times, groups)
        if len(batch) != self.count:
            raise ProtocolViolation(f"channel {self.channel}: a frame of {self.count} records holds {len(batch)}")
        return batch

    @property
    def times(self) -> bytes | memoryview:
        """The event times of the records, as bytes; empty if they have none."""
        return self.sections.get(_TIMES, b"")

    @property
    def groups(self) -> bytes | memoryview:
        """The key groups of the records, as bytes; empty if they have none."""
        return self.sections.get(_GROUPS, b"")

    @property
    def classes(self) -> Shapes:
        """The shapes of the classes of the records, as of the sender. Frames of older versions have none."""
        data = self.sections.get(_CLASSES)
        return () if data is None else _shapes_decoder.decode(data)

    @property
    def digest(self) -> int | None:
        """The hash over the values of all records of the channel up to the last one of the frame; None if the sender does
        not know it."""
        data = self.sections.get(_DIGEST)
        if data is None:
            return None
        if len(data) != _WHOLE_DIGEST.size:
            raise ProtocolViolation(f"channel {self.channel}: a digest of {len(data)} bytes")
        return int(_WHOLE_DIGEST.unpack(data)[0])

    def marker(self) -> Marker:
        """The marker of a frame without records. Raises `ProtocolViolation` for another kind of frame."""
        if self.kind == WATERMARK:
            return Watermark(self.number)
        if self.kind == IDLE:
            return IdleChannel()
        if self.kind == END:
            return EndOfInput()
        if self.kind == BARRIER:
            return Barrier(self._cut())
        if self.kind == WAVE:
            return WaveMark(self.number)
        if self.kind == REST:
            return Rest(self.number)
        if self.kind == ROUND_END:
            return RoundEnd(self.number, self._span())
        raise ProtocolViolation(f"channel {self.channel}: frame kind {self.kind} is not a marker")

    def history(self) -> memoryview:
        """The data that `encode_history` was given."""
        return self._section(_HISTORY)

    def _cut(self) -> CutRequest:
        data = self.sections.get(_CUT)
        if data is None:
            return CutRequest(self.number)
        try:
            if len(data) == _WHOLE_CUT.size:
                kind, hold, after, most = _WHOLE_CUT.unpack(data)
                return CutRequest(self.number, CutKind(kind), bool(hold), after, most)
            kind, hold = data
            return CutRequest(self.number, CutKind(kind), bool(hold))
        except ValueError as error:
            raise ProtocolViolation(f"channel {self.channel}: a barrier that cannot be read: {error}") from error

    def _span(self) -> SpanRound | None:
        data = self.sections.get(_SPAN)
        if data is None:
            return None
        if len(data) != _WHOLE_SPAN.size:
            raise ProtocolViolation(f"channel {self.channel}: a round of a span in {len(data)} bytes")
        return SpanRound(*_WHOLE_SPAN.unpack(data))

    def _section(self, ident: int) -> memoryview:
        try:
            return self.sections[ident]
        except KeyError:
            raise ProtocolViolation(f"channel {self.channel}: section {ident} is missing") from None

    def _array(self, ident: int, dtype: type[np.generic]) -> np.ndarray[Any, Any] | None:
        data = self.sections.get(ident)
        if data is None:
            return None
        if len(data) != self.count * np.dtype(dtype).itemsize:
            raise ProtocolViolation(
                f"channel {self.channel}: section {ident} has {len(data)} bytes for {self.count} records"
            )
        # Behind pickles of any length it may lie where numpy is slower, and Arrow complains.
        return np.require(np.frombuffer(data, dtype), requirements="A")

    def _values(self) -> list[Any]:
        values = self._unpickle(_VALUES)
        if type(values) is not list:
            raise self._damage(f"{type(values).__name__} where a list of records is due")
        if _ROW_NAMES not in self.sections:
            return values
        names = self._unpickle(_ROW_NAMES)
        try:
            return made_rows(tuple(names), values)
        except (TypeError, ValueError, AttributeError) as error:
            raise self._damage(error) from error

    def _unpickle(self, ident: int) -> Any:
        loads = loader(self.classes) if self.older else pickle.loads
        try:
            return loads(self._section(ident))
        except (pickle.UnpicklingError, EOFError, IndexError, KeyError, ValueError, OverflowError) as error:
            of_a_class = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            if of_a_class:  # code in Python raised it: the unpickler itself has none
                raise
            raise self._damage(error) from error

    def _record_batch(self) -> pa.RecordBatch:
        data = self._section(_VALUES)
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                return reader.read_next_batch()
        except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
            raise self._damage(error) from error

    def _damage(self, why: object) -> ProtocolViolation:
        what = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else why
        return ProtocolViolation(f"channel {self.channel}: records that cannot be read: {what}")


Element = Frame | Batch | Marker
"""An unread element of a channel: a frame from another worker, a batch from this one, or a marker."""


def is_barrier(data: bytes) -> bool:
    """True if an encoded frame is a barrier."""
    return data[_KIND] == BARRIER


def encode_batch(
    channel: ChannelId, incarnation: int, attempt: int, seq: int, batch: Batch, digest: int | None = None
) -> bytes:
    """A batch as one frame. `digest`: see `Frame.digest`. Errors of pickle for a record that cannot be pickled pass
    through."""
    sections: list[tuple[int, bytes | memoryview]]
    if isinstance(batch, Columns):
        kind, sections = COLUMNS, [(_VALUES, _ipc(batch.data))]
    else:
        kind, sections = ROWS, _row_sections(batch.values)
    if batch.times is not None:
        sections.append((_TIMES, np.ascontiguousarray(batch.times, np.int64).tobytes()))
    if batch.groups is not None:
        sections.append((_GROUPS, np.ascontiguousarray(batch.groups, np.uint16).tobytes()))
    if digest is not None:
        sections.append((_DIGEST, _WHOLE_DIGEST.pack(digest)))
    return _frame(kind, channel, incarnation, attempt, seq, len(batch), 0, sections)


def encode_marker(channel: ChannelId, incarnation: int, attempt: int, seq: int, marker: Marker) -> bytes:
    """A marker as one frame; `seq` is the sequence number of the next record."""
    if isinstance(marker, Watermark):
        return _frame(WATERMARK, channel, incarnation, attempt, seq, 0, marker.time, [])
    if isinstance(marker, Barrier):
        cut = marker.cut
        return _frame(BARRIER, channel, incarnation, attempt, seq, 0, cut.number, _cut_section(cut))
    if isinstance(marker, WaveMark):
        return _frame(WAVE, channel, incarnation, attempt, seq, 0, marker.wave, [])
    if isinstance(marker, Rest):
        return _frame(REST, channel, incarnation, attempt, seq, 0, marker.number, [])
    if isinstance(marker, RoundEnd):
        return _frame(ROUND_END, channel, incarnation, attempt, seq, 0, marker.round, _span_section(marker.span))
    return _frame(IDLE if isinstance(marker, IdleChannel) else END, channel, incarnation, attempt, seq, 0, 0, [])


def _cut_section(cut: CutRequest) -> list[tuple[int, bytes | memoryview]]:
    if cut == CutRequest(cut.number):
        return []
    if not cut.may_overtake:
        return [(_CUT, bytes((cut.kind, cut.hold)))]
    return [(_CUT, _WHOLE_CUT.pack(cut.kind, cut.hold, cut.overtakes_after, cut.most_inflight))]


def _span_section(span: SpanRound | None) -> list[tuple[int, bytes | memoryview]]:
    return [] if span is None else [(_SPAN, _WHOLE_SPAN.pack(span.first, span.time, span.closes))]


def readdress(frame: Frame, channel: ChannelId, incarnation: int, attempt: int, seq: int) -> bytes:
    """A frame with the records of `frame`, addressed to `channel`, with sequence numbers from `seq` on."""
    magic, version, kind, sections, *_, count, number = _HEADER.unpack_from(frame.data)
    header = _HEADER.pack(magic, version, kind, sections, incarnation, *channel, attempt, seq, count, number)
    return header + frame.data[_HEADER.size :]


def without_groups(data: bytes) -> bytes:
    """A frame with the records of another one, without their key groups. Raises `ProtocolViolation`."""
    frame = decode(data)
    sections = [(ident, body) for ident, body in frame.sections.items() if ident != _GROUPS]
    place = frame.channel, frame.incarnation, frame.attempt, frame.seq
    return _frame(frame.kind, *place, frame.count, frame.number, [*sections])


def encode_grant(channel: ChannelId, incarnation: int, attempt: int, total: int) -> bytes:
    """A frame by which the consumer of `channel` allows `total` bytes, counted from the channel's beginning."""
    return _frame(GRANT, channel, incarnation, attempt, 0, 0, total, [])


def encode_history(slot: int, target: int, incarnation: int, attempt: int, data: bytes) -> bytes:
    """A frame with the history of a slot's worker, for another worker. It is no element of any channel, but is sent before
    all elements that follow from that history."""
    return _frame(HISTORY, ChannelId(0, slot, target), incarnation, attempt, 0, 0, 0, [(_HISTORY, data)])


def decode(data: bytes) -> Frame:
    """The frame of these bytes, with its header checked and its sections found. Raises `ProtocolViolation` for anything
    that is no frame."""
    if len(data) < _HEADER.size:
        raise ProtocolViolation(f"a frame of {len(data)} bytes is shorter than its header")
    magic, version, kind, sections, incarnation, edge, source, target, attempt, seq, count, number = (
        _HEADER.unpack_from(data)
    )
    if magic != _MAGIC:
        raise ProtocolViolation(f"not a frame: it starts with {magic!r}")
    if version != VERSION:
        raise ProtocolViolation(f"a frame of version {version}; this side reads version {VERSION}")
    if not ROWS <= kind <= HISTORY:
        raise ProtocolViolation(f"a frame of unknown kind {kind}")
    found = _find_sections(data, sections)
    channel = ChannelId(edge, source, target)
    return Frame(kind, channel, incarnation, attempt, seq, count, number, len(data), found, data)


def _find_sections(data: bytes, count: int) -> dict[int, memoryview]:
    found: dict[int, memoryview] = {}
    view, at = memoryview(data), _HEADER.size
    end = len(data)
    for _ in range(count):
        start = at + _SECTION.size
        if start > end:
            raise ProtocolViolation("a frame ends within its sections")
        ident, flags, length = _SECTION.unpack_from(data, at)
        at = start + length
        if at > end:
            raise ProtocolViolation(f"section {ident} of a frame is cut short")
        if ident in _KNOWN:
            found[ident] = view[start:at]
        elif not flags & _SKIPPABLE:
            raise ProtocolViolation(f"a frame has section {ident}, which this side does not know and must not skip")
    if at != end:
        raise ProtocolViolation(f"a frame has {end - at} bytes after its last section")
    return found


def _row_sections(values: list[Any]) -> list[_Section]:
    kind = type(values[0]) if values else None
    if kind is not None and issubclass(kind, Row) and set(map(type, values)) == {kind}:
        # Rows of one class are sent as plain tuples, with the names once: five times faster than one by one.
        return [*_pickle_sections(list(map(tuple, values))), (_ROW_NAMES, pickle.dumps(kind.__fields__, 5))]
    return _pickle_sections(values)


def _pickle_sections(values: list[Any]) -> list[_Section]:
    data, shapes = pickle_values(values)
    sections: list[_Section] = [(_VALUES, data)]
    if shapes:
        sections.append((_CLASSES, msgspec.msgpack.encode(shapes)))
    return sections


def _ipc(data: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_batch(data)
    return memoryview(sink.getvalue())


def _frame(
    kind: int,
    channel: ChannelId,
    incarnation: int,
    attempt: int,
    seq: int,
    count: int,
    number: int,
    sections: list[tuple[int, bytes | memoryview]],
) -> bytes:
    parts: list[bytes | memoryview] = [
        _HEADER.pack(_MAGIC, VERSION, kind, len(sections), incarnation, *channel, attempt, seq, count, number)
    ]
    for ident, body in sections:
        parts.append(_SECTION.pack(ident, _SKIPPABLE if ident in _MAY_BE_SKIPPED else 0, len(body)))
        parts.append(body)
    return b"".join(parts)


def encoded_size(batch: Batch, sample: int = 32) -> int:
    """The approximate number of bytes of `batch` on the wire: for columns from their size in memory, for rows from a sample
    of records.

    Rows in memory count as this many bytes of their channel's window. A record that cannot be pickled counts as 256 bytes.
    """
    if isinstance(batch, Columns):
        return int(batch.data.nbytes) + 10 * len(batch)
    count = len(batch)
    if not count:
        return 0
    taken = batch.values if count <= sample else batch.values[:: count // sample]
    buffer = io.BytesIO()
    try:
        pickle.Pickler(buffer, 5).dump(taken)
    except Exception:  # the batch never leaves this process; only its size matters
        return 256 * count
    return max(1, buffer.tell() * count // len(taken)) + (8 * count if batch.times is not None else 0)
