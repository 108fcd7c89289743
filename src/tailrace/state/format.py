"""The file of one worker and checkpoint: blocks of encoded state, then an index that says what they are.

Layout. The header: magic `TRST`, version (u16 little-endian), 2 zero bytes. Then blocks, and frames of records in
flight, bytes as their encoders made them. Then the index (msgpack of `Index`). Then the footer: offset of the index
(u64), its length (u64), its XXH64 (u64), magic `TRSE`. All integers little-endian. Each block and each frame carries its own
XXH64 in the index. A reader that finds another version refuses the file; nothing in this module unpickles anything.

State is laid out by key group. What a checkpoint knows of one key group of one operator is the *chain* of that group: an
ordered list of files, the oldest first, of which the first holds the whole group (a *full* write) and the later ones
what changed since. The index of a checkpoint's file holds the chain of every group of its subtasks, so a reader starts
from it and opens the older files it names.

Records in flight at the cut are laid out by channel: a *log* is a sequence of pieces, each of which is one frame or a part
of one, in this file or in that of an earlier checkpoint.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec
import xxhash

from tailrace.elements.frames import ChannelName
from tailrace.elements.valueclasses import ClassShape
from tailrace.errors import CheckpointCorrupt

VERSION = 3
"""The version of a file that may hold logs of any channel: a reader that does not know them must refuse it, or it would lose
records."""
WITH_FEEDBACK = 2
"""The version of a file that may hold logs of feedback, and no others."""
WITHOUT_LOGS = 1
"""The version of any other file, which an older tailrace can read."""
_FEEDBACK_PORT = 1
"""The port of a loop's head for feedback, in the dataflows of version 1."""
_MAGIC = b"TRST"
_END_MAGIC = b"TRSE"
_HEADER = struct.Struct("<4sHxx")
_FOOTER = struct.Struct("<QQQ4s")
HEADER_SIZE = _HEADER.size
FOOTER_SIZE = _FOOTER.size


class TableInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table of an operator's state."""

    name: str
    kind: str = "value"
    """"value", "list", "map", "reducing", "aggregating", "timers", "rounds" or "aggregate"; of what is not keyed "operator"
    (an `OperatorState`), "splits" or "round"."""
    encoding: str = "pickle"
    """"pickle" or "msgspec"."""
    type: str = ""
    """The declared type."""
    classes: tuple[ClassShape, ...] = ()
    """The classes of its values, as they were.

    Invariant Z1: in a file, each class of which a value in a block of the table has an object is among them; in a manifest,
    each of which a value has one in any block that a restore reads."""
    empty: bool = False
    """Whether there is certainly nothing in it."""
    listed: bool = False
    """Of an `OperatorState`: whether it is a list, which can be dealt out anew."""
    aggregate: str = ""
    """Of an `AggregatingState`: whose accumulators they are, an aggregate of ours with its field, or "custom"."""
    times_up: bool = False
    """Of timers: whether their times were rounded up to microseconds. Older versions rounded to the nearest one, and so it
    stays false where state comes from a checkpoint of theirs."""


class BlockRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a block is in this file: entries of one table and one key group."""

    table: int
    group: int
    offset: int
    length: int
    checksum: int
    count: int
    """How many entries it holds, deletions included."""


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """The place, in a state file, of prepared bytes of a sink that are too many for the manifest."""

    file: str
    """Relative to the checkpoint folder of the job."""
    offset: int
    length: int
    checksum: int


class LogPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some records of a log, in order: one frame (`elements.frames`) of whole records, each with its key group where it has
    one, or a part of it."""

    offset: int
    length: int
    checksum: int
    """Of the whole frame."""
    count: int
    """How many records of it belong to the log."""
    file: int = -1
    """Where the frame is, as a position in `Index.files`; -1: in this file."""
    start: int = 0
    """How many records at its beginning do not belong to the log: they had been read."""
    groups: tuple[int, int] | None = None
    """Of the others only those of these key groups [first, last) do; None: all."""
    round: int = 0
    """The round that they wait for, in a loop in rounds; 0: none."""
    stop: int = -1
    """The number of the first record behind them that does not belong to the log; -1: all do."""


class LogKind(IntEnum):
    """Which part of the records in flight in a channel a log holds. The numbers are in files."""

    FEEDBACK = 0
    """What was on its way around a loop."""
    RECEIVED = 1
    """What had come to the reader, and came before the barrier, and was not read: the reader's half."""
    SENT = 2
    """What the barrier overtook at the sender: the sender's half. It comes behind the reader's."""
    RETURNED = 3
    """What the reader had got from an earlier checkpoint, and not read. It comes before all else."""


class ChannelLog(msgspec.Struct, omit_defaults=True):
    """Records that were in flight in one channel at the cut. A piece without records is a marker of event time."""

    channel: ChannelName
    parallelism: int
    """That of the operator that receives."""
    pieces: list[LogPiece] = []
    kind: LogKind = LogKind.FEEDBACK
    age: int = 0
    """Of what was returned: how often. Older records are read first."""
    turn: int = 0
    """Of what was returned: tells several logs of one name apart."""
    shape: list[int] = []
    """Where a lost worker may be replaced: what was on the channel (`task.channels.shapes`), one element after the other.
    Pieces may have the records in other frames, and have no markers of waves."""

    @property
    def overtaken(self) -> bool:
        """Whether it is of a channel that barriers overtake."""
        return self.kind is not LogKind.FEEDBACK


class OperatorPart(msgspec.Struct, omit_defaults=True):
    """What one operator in one subtask has in this file."""

    uid: str
    name: str
    subtask: int
    parallelism: int
    finished: bool = False
    """Whether its input had ended and it had finished: it emits nothing any more."""
    meta: bytes | None = None
    """Its state that is not keyed (positions, watermarks, `OperatorState`), as the operator encoded it."""
    tables: list[TableInfo] = []
    blocks: list[BlockRef] = []
    """In the order in which they are to be applied."""
    full: list[int] = []
    """Key groups that this file holds as a whole: older files do not count for them any more."""
    chains: dict[int, list[int]] = {}
    """Key group -> the files that hold it, as positions in `Index.files`, oldest first. Groups without state are absent."""
    kind: str = ""
    """What kind of operator it was (`api.kinds`); empty in older files."""
    feedback: list[BlockRef] = []
    """In files of version 1 only: the feedback in flight to the head of a loop. `read_index` makes a log of it. `table` is
    0, and `group` is the round that the records wait for, in a loop in rounds, else 0."""


class Index(msgspec.Struct, omit_defaults=True):
    """What a file holds."""

    job: str
    incarnation: int
    checkpoint: int
    slot: int
    max_parallelism: int
    files: list[str] = []
    """Names of files, relative to the checkpoint folder of the job; the chains refer to them. This file's own name is
    among them where a chain needs it."""
    operators: list[OperatorPart] = []
    logs: list[ChannelLog] = []
    """Those of the channels that this worker reads, in the order in which they are to be restored."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def checksum(data: bytes | memoryview) -> int:
    """The XXH64 of a block or an index."""
    return xxhash.xxh64_intdigest(data)


def header(logs: bool = False, overtaken: bool = False) -> bytes:
    """How a file starts: with the oldest version that has what it may hold. `logs`: some; `overtaken`: some of channels that
    barriers overtake."""
    return _HEADER.pack(_MAGIC, VERSION if overtaken else WITH_FEEDBACK if logs else WITHOUT_LOGS)


def tail(index: Index, offset: int) -> bytes:
    """How every file ends: the index, which starts at `offset`, and the footer."""
    data = _encoder.encode(index)
    return data + _FOOTER.pack(offset, len(data), checksum(data), _END_MAGIC)


def check_header(data: bytes, name: str) -> None:
    """Raises `CheckpointCorrupt` for a file that does not start as ours do, or is of a version we cannot read."""
    if len(data) < HEADER_SIZE or data[:4] != _MAGIC:
        raise CheckpointCorrupt(f"{name} is not a state file of tailrace: it starts with {data[:4]!r}")
    version = _HEADER.unpack(data[:HEADER_SIZE])[1]
    if not WITHOUT_LOGS <= version <= VERSION:
        raise CheckpointCorrupt(
            f"{name} is a state file of version {version}; this tailrace reads versions {WITHOUT_LOGS} to {VERSION}"
        )


def index_place(footer: bytes, size: int, name: str) -> tuple[int, int, int]:
    """From the last `FOOTER_SIZE` bytes of a file of `size` bytes: (offset, length, checksum) of its index. Raises
    `CheckpointCorrupt`."""
    if len(footer) != FOOTER_SIZE or footer[-4:] != _END_MAGIC:
        raise CheckpointCorrupt(f"{name} is cut short or damaged: it does not end as a state file does")
    offset, length, expected, _ = _FOOTER.unpack(footer)
    if offset < HEADER_SIZE or offset + length + FOOTER_SIZE != size:
        raise CheckpointCorrupt(f"{name} is cut short or damaged: its index would be at {offset}, {length} bytes long")
    return offset, length, expected


def read_index(data: bytes | memoryview, expected: int, name: str) -> Index:
    """The index from its bytes. Raises `CheckpointCorrupt`."""
    if checksum(data) != expected:
        raise CheckpointCorrupt(f"{name} is damaged: the checksum of its index does not match")
    try:
        index = _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CheckpointCorrupt(f"{name}: its index cannot be read: {error}") from error
    for part in index.operators:
        if part.feedback:
            index.logs.append(_feedback_of_version_1(part))
    return index


def _feedback_of_version_1(part: OperatorPart) -> ChannelLog:
    """Version 1 does not name the tail; it was the one in the same subtask."""
    pieces = [LogPiece(one.offset, one.length, one.checksum, one.count, round=one.group) for one in part.feedback]
    channel = ChannelName("", None, part.uid, _FEEDBACK_PORT, 0, part.subtask, part.subtask)
    part.feedback = []
    return ChannelLog(channel, part.parallelism, pieces)


def check_block(data: bytes | memoryview, block: BlockRef | LogPiece, name: str) -> None:
    """Raises `CheckpointCorrupt` for bytes that are not the block's."""
    if len(data) != block.length or checksum(data) != block.checksum:
        raise CheckpointCorrupt(
            f"{name} is damaged: {block.length} bytes at {block.offset} do not match their checksum"
        )
