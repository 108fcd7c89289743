"""The part of one task in one checkpoint: from its cut until all of its state is encoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

import msgspec

from tailrace.api.restore.kinds import STATELESS, key_columns, kind_of, shape_of
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
from tailrace.protocol.snapshot import OperatorAck, SubtaskAck
from tailrace.state.backend import Block
from tailrace.state.format import BlockRef, ChannelLog, Index, LogPiece, OperatorPart, Placed, checksum, header, tail
from tailrace.state.operator_state import with_copies
from tailrace.state.ttl_lifetimes import Expiry
from tailrace.task.channels.channel_logs import LogFrame, Recording, Referred
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.broadcasts.waiting import with_own
from tailrace.task.subtask.alignment import TaskCut
from tailrace.task.subtask.chain import Chain


class OperatorMeta(msgspec.Struct, array_like=True):
    """The meta of an operator in the file: its event time, and its own state."""

    reached: int
    data: bytes | None = None
    rested: int = 0
    """The number of the last rest that this operator completed, in a loop."""
    round: int = -1
    """The newest round that had ended, in a loop in rounds."""
    schema: bytes | None = None
    """The schema of the stream in columns that it takes or makes, if it was found out (`OneSchema.to_bytes`)."""
    floors: list[tuple[int, int, int]] = []
    """Key groups [first, last) that had been further in event time than `reached`, and how far (`OperatorTask.floors`)."""
    arrived: int = MIN_TIME
    """Event time that had come to the operator, if the cut fell between two portions of its timers. Some had fired, and
    the others do after a restore, before anything is read. Otherwise it is not beyond `reached`."""
    sides: dict[str, bytes] = {}
    """The schemas of its side outputs in columns, by their tags, if they were found out."""
    expiries: dict[str, Expiry] = {}
    """The lifetimes of the entries of tables with a time to live, by table."""
    closed: list[tuple[int, int, int]] = []
    """Key groups [first, last), and up to which microsecond their windows are closed (`OperatorTask.closed_times`)."""
    next_round: int | None = None
    """The number of the next round, in a loop in rounds; within its span, where these go by spans of event time. None in
    older checkpoints: the one behind `round`."""

    @property
    def came(self) -> int:
        """The event time that had come to the operator: older records were late."""
        return max(self.reached, self.arrived)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(OperatorMeta)


def read_meta(data: bytes) -> OperatorMeta:
    """The meta of an operator from a checkpoint's file."""
    return _decoder.decode(data)


def with_broadcast_states(
    data: bytes | None, subtask: int, new: Mapping[str, bytes], gone: Collection[str] = ()
) -> bytes:
    """The meta of a subtask with new broadcast states, where a checkpoint has them, and without those that are gone; without
    `data` that of an operator that has not begun."""
    meta = OperatorMeta(MIN_TIME) if data is None else read_meta(data)
    meta.data = with_own(
        meta.data, lambda own, each: with_copies(own, new if each or not subtask else {}, {*new, *gone})
    )
    return _encoder.encode(meta)


def with_key_groups(data: bytes, expiries: dict[str, Expiry], closed: list[tuple[int, int, int]]) -> bytes:
    """The meta of a subtask with what it has of other key groups."""
    meta = read_meta(data)
    meta.expiries, meta.closed = expiries, closed
    return _encoder.encode(meta)


class TaskSnapshot:
    """The snapshot of one task, which the worker puts into its file: `parts` at once, `blocks` as they are encoded.

    Invariant S1: nothing that happens to the task after the cut changes what comes out of here.
    """

    def __init__(
        self,
        cut: TaskCut,
        chain: Chain,
        rested: int = 0,
        round: int = -1,
        next_round: int = 0,
        overtaken: Sequence[tuple[ChannelLog, Recording]] = (),
    ) -> None:
        self._cut, self.checkpoint = cut, cut.request.number
        self.freeze_micros = 0
        """Duration of the step of the cut, which the driver measures."""
        self.encoded_at = cut.made_at
        self.size = 0
        self.blocks: list[tuple[OperatorPart, Block]] = []
        """Encoded blocks that the worker has not taken yet."""
        self.parts: list[OperatorPart] = []
        self.prepared: list[tuple[str, bytes, int]] = []
        """Output that sinks have prepared: (uid, bytes, the checkpoint that had it first)."""
        self._rested, self._round, self._next_round = rested, round, next_round
        self._acks: list[OperatorAck] = []
        self._todo: deque[tuple[OperatorTask, OperatorPart]] = deque()
        self.operators: list[tuple[OperatorTask, OperatorPart]] = []
        self.recordings: list[tuple[ChannelLog, Recording]] = [*overtaken]
        """The channels whose records belong to the checkpoint as well, with their recordings."""
        for i, operator in enumerate(chain.operators):
            self._freeze(operator, chain.reached[i], chain.arrived[i])

    @property
    def ends_job(self) -> bool:
        """True if the job ends, or stops, behind this checkpoint."""
        return self._cut.request.ends_job

    @property
    def done(self) -> bool:
        """True once everything is encoded."""
        return not self._todo

    def _freeze(self, operator: OperatorTask, reached: int, arrived: int) -> None:
        data = operator.snapshot(self.checkpoint)
        backend = operator.backend
        tables = []
        if backend is not None:
            backend.freeze(self._cut.request)
            known = zip(backend.tables_info(), backend.tables.values(), strict=True)
            tables = [msgspec.structs.replace(info, empty=table.certainly_empty()) for info, table in known]
        ctx = operator.ctx
        schema = None if operator.one_schema is None else operator.one_schema.to_bytes()
        sides = {tag: saved for tag, one in operator.side_schemas.items() if (saved := one.to_bytes()) is not None}
        if arrived >= LAST_TIME or operator.generates_watermarks:
            arrived = MIN_TIME  # the end of event time comes with the end of the input
        floors, expiries, closed = operator.floors(), operator.expiries(), operator.closed_times()
        made = OperatorMeta(reached, data, self._rested, self._round, schema, floors, arrived, sides, expiries, closed)
        made.next_round = self._next_round
        meta = _encoder.encode(made)
        kind, shape = kind_of(operator.node.operator), shape_of(operator.node.operator)
        part = OperatorPart(ctx.uid, ctx.name, ctx.subtask, ctx.parallelism, operator.finished, meta, tables, kind=kind)
        self.parts.append(part)
        self.operators.append((operator, part))
        self.recordings += operator.recordings()
        if backend is not None:
            self._todo.append((operator, part))
        stateful = data is not None or (backend is not None and backend.entries() > 0)
        for each in operator.contexts():
            ack = OperatorAck(each.uid, each.name, each.parallelism, operator.finished, kind=STATELESS)
            if each is ctx:
                holds = (stateful, tables, kind, shape, operator.own_tables(), key_columns(operator.node))
                ack = OperatorAck(each.uid, each.name, each.parallelism, operator.finished, *holds)
            self._acks.append(ack)
        self.prepared.extend((ctx.uid, one, first) for first, one in operator.prepared_output(self.checkpoint))

    def encode(self, limit: int) -> None:
        """Encodes about `limit` more entries."""
        operator, part = self._todo[0]
        assert operator.backend is not None
        blocks, done = operator.backend.encode(limit)
        self.blocks.extend((part, block) for block in blocks)
        size = sum(len(block.data) for block in blocks)
        self.size += size
        entries, before = operator.encoded
        operator.encoded = entries + sum(block.count for block in blocks), before + size
        if done:
            known = zip(part.tables, operator.backend.tables_info(), strict=True)
            # The list is shared with the ack. Whether a table is empty is as of the cut.
            part.tables[:] = [msgspec.structs.replace(then, classes=now.classes) for then, now in known]
            self._todo.popleft()

    def ack(self, vertex: int, subtask: int) -> SubtaskAck:
        """The task's part of the worker's ack."""
        encoding = max(0, self.encoded_at - self._cut.made_at)
        return SubtaskAck(
            vertex,
            subtask,
            self._cut.aligned,
            self.freeze_micros,
            encoding,
            self.size,
            list(self._acks),
            self._cut.announced,
            bool(self._cut.missing),
        )


class FileBuilder:
    """The one file of a worker and checkpoint, as it grows: the bytes to append, and in the end the index."""

    def __init__(self, name: str, index: Index) -> None:
        self.name = name
        self.index = index
        self.offset = 0
        self._files: dict[str, int] = {}
        self.fresh: list[bytes] = []
        """Bytes to be written next."""
        self._append(header())

    def _append(self, data: bytes) -> None:
        self.fresh.append(data)
        self.offset += len(data)

    def add(self, part: OperatorPart, block: Block) -> None:
        """Adds a block of an operator."""
        part.blocks.append(
            BlockRef(block.table, block.group, self.offset, len(block.data), checksum(block.data), block.count)
        )
        self._append(block.data)

    def add_frame(self, log: ChannelLog, frame: LogFrame) -> LogPiece:
        """Adds the next frame of a log; returns its place."""
        if not log.pieces:
            self.index.logs.append(log)
        piece = self.place(frame)
        log.pieces.append(piece)
        return piece

    def place(self, frame: LogFrame) -> LogPiece:
        """Adds records that a log may refer to; returns their place."""
        data = frame.data
        piece = LogPiece(self.offset, len(data), checksum(data), frame.count, round=frame.round)
        self._append(data)
        return piece

    def add_reference(self, log: ChannelLog, referred: Referred) -> None:
        """Adds a reference to the next records of a log, which are in an earlier file, or in this one. Several
        consecutive references into one frame become one piece."""
        span = referred.span
        file = -1 if span.file == self.name else self._file(span.file)
        if not log.pieces:
            self.index.logs.append(log)
        start, count = span.start, span.count
        before = log.pieces[-1] if log.pieces else None
        if before is not None and span.groups is None and before.groups is None:
            same = (before.file, before.offset, before.round, before.stop) == (file, span.offset, referred.round, start)
            if same:
                start, count = before.start, before.count + count
                log.pieces.pop()
        piece = LogPiece(
            span.offset, span.length, span.checksum, count, file, start, span.groups, referred.round, span.stop
        )
        log.pieces.append(piece)

    def add_prepared(self, data: bytes) -> Placed:
        """Adds output that a sink has prepared; returns its place."""
        placed = Placed(self.name, self.offset, len(data), checksum(data))
        self._append(data)
        return placed

    def close_part(self, part: OperatorPart, full: list[int], chains: dict[int, tuple[str, ...]]) -> None:
        """Closes the part of an operator, whose blocks are all in the file."""
        part.full = full
        part.chains = {group: [self._file(name) for name in chain] for group, chain in chains.items()}
        self.index.operators.append(part)

    def _file(self, name: str) -> int:
        return self._files.setdefault(name, len(self._files))

    def finish(self) -> None:
        """Adds the index and the footer, when nothing more comes."""
        self.index.files = list(self._files)
        self._append(tail(self.index, self.offset))

    def older(self) -> list[str]:
        """The names of the other files that the index refers to."""
        return [name for name in self._files if name != self.name]
