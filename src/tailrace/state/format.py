"""The file of one worker and checkpoint: blocks of encoded state, then an index that describes them.

Layout. The header: magic `TRST`, version (u16 little-endian), 2 zero bytes. Then blocks, and frames of records in flight,
bytes as their encoders made them. Then the index (msgpack of `Index`). Then the footer: offset of the index (u64), its
length (u64), its XXH64 (u64), magic `TRSE`. All integers little-endian. The index holds the XXH64 of each block and each
frame. A reader that finds another version refuses the file; nothing in this module unpickles anything.

State is laid out by key group. The state of one key group of one operator in a checkpoint is the *chain* of that group:
an ordered list of files, oldest first. The first file holds the whole group (a *full* write), and the later files hold
the changes since. The index of a checkpoint's file holds the chain of every group of its subtasks, so a reader starts
from it and opens the older files it names.

Records in flight at the cut are laid out by channel: a *log* is a sequence of pieces. Each piece is one frame or a part
of one, in this file or in a file of an earlier checkpoint.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec
import xxhash

from tailrace.elements.frame_codec import ChannelName
from tailrace.elements.valueclasses import ClassShape
from tailrace.errors import CheckpointCorrupt

VERSION = 3
UNRELEASED = (
    "a build of tailrace before 0.1.0 has written it, and this one cannot read it: start without that checkpoint"
)
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
    """The kind of state: "value", "list", "map", "reducing", "aggregating", "timers", "rounds", "records", "firings" or
    "aggregate"; for state that is not keyed "operator" (an `OperatorState`), "broadcast" (a `BroadcastState`), "splits" or
    "round"."""
    encoding: str = "pickle"
    """The encoding of values, "pickle" or "msgspec"; with "stamped " in front where each carries the time of its last write
    (`state.ttl`)."""
    type: str = ""
    """The declared type."""
    classes: tuple[ClassShape, ...] = ()
    """The classes of its values, as they were at that time.

    Invariant Z1: in a file, each class of which a value in a block of the table has an object is among them; in a
    manifest, each of which a value has one in any block that a restore reads.
    """
    empty: bool = False
    """True if the table is certainly empty."""
    listed: bool = False
    """For an `OperatorState`: True if it is a list, which can be dealt out anew."""
    aggregate: str = ""
    """For an `AggregatingState`: the aggregate that its accumulators belong to, a builtin one with its field, or
    "custom"."""
    times_up: bool = False
    """For timers: True. Timers of an unreleased format, whose times were not rounded up to microseconds, lack it."""
    digest: int = 0
    """For a `BroadcastState`: a hash over the copy of the subtask."""
    stamps: str = ""
    """The clock of the times of last writes (`state.ttl.Ttl.stamps`); empty if values have none."""


OURS = ("timers", "rounds", "records")
"""Kinds of tables that Tailrace keeps beside those that the user declares."""
WAITING = TableInfo("records:waiting", "records")
"""The records that wait for event time, in front of a function that is called in order."""
JOINING = TableInfo("records:joining", "records")
"""The records that a join keeps until event time has passed all that could be their partners."""
JOINED = TableInfo("records:joined", "records")
"""The records that an operator keeps in columns, as blocks of one key group each."""
SESSIONS = TableInfo("records:sessions", "records")
"""The bounds of the sessions of a join in columns, by key."""
CALLS = TableInfo("records:calls", "records")
"""The records of asynchronous calls whose results have not gone on."""


class BlockRef(msgspec.Struct, frozen=True, array_like=True):
    """The place of a block in this file: entries of one table and one key group."""

    table: int
    group: int
    offset: int
    length: int
    checksum: int
    count: int
    """Number of entries in the block, deletions included."""


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """The place, in a state file, of prepared bytes of a sink that are too many for the manifest."""

    file: str
    """Name of the file, relative to the checkpoint folder of the job."""
    offset: int
    length: int
    checksum: int


class LogPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some records of a log, in order. A piece is one frame (`elements.frame_codec`) of whole records, with their key groups
    if they have any, or a part of a frame."""

    offset: int
    length: int
    checksum: int
    """Checksum of the whole frame."""
    count: int
    """Number of records of the piece that belong to the log."""
    file: int = -1
    """The file of the frame, as a position in `Index.files`; -1: this file."""
    start: int = 0
    """Number of records at the beginning of the frame that do not belong to the log, because they had been read."""
    groups: tuple[int, int] | None = None
    """Key groups [first, last) of the remaining records that belong to the log; None: all."""
    round: int = 0
    """The round that the records wait for, in a loop in rounds; 0: none."""
    stop: int = -1
    """Number, in the frame, of the first record behind the piece, which does not belong to the log; -1: all up to the end
    belong to it."""


class LogKind(IntEnum):
    """The part of the records in flight in a channel that a log holds. The numbers are in files."""

    FEEDBACK = 0
    """Records that were on their way around a loop."""
    RECEIVED = 1
    """Records that had reached the reader before the barrier, and were not read: the reader's half."""
    SENT = 2
    """Records that the barrier overtook at the sender: the sender's half. They come behind the reader's half."""
    RETURNED = 3
    """Records that the reader had received from an earlier checkpoint, and not read. They come before all others."""


class ChannelLog(msgspec.Struct, omit_defaults=True):
    """Records that were in flight in one channel at the cut. A piece without records is a marker of event time."""

    channel: ChannelName
    parallelism: int
    """Parallelism of the operator that receives."""
    pieces: list[LogPiece] = []
    kind: LogKind = LogKind.FEEDBACK
    age: int = 0
    """For returned records: the number of times that they were returned. Older records are read first."""
    turn: int = 0
    """For returned records: a number that distinguishes several logs of one name."""
    shape: list[int] = []
    """If a lost worker may be replaced: the sequence of elements that were on the channel (`task.journal.shapes`). Pieces
    may have the records in other frames, and have no markers of waves."""

    @property
    def overtaken(self) -> bool:
        """True if the log is of a channel on which barriers overtake records."""
        return self.kind is not LogKind.FEEDBACK


class OperatorPart(msgspec.Struct, omit_defaults=True):
    """The part of one operator in one subtask in this file."""

    uid: str
    name: str
    subtask: int
    parallelism: int
    finished: bool = False
    """True if its input had ended and it had finished: it emits nothing any more."""
    meta: bytes | None = None
    """The state of the subtask that is not keyed (positions, watermarks, `OperatorState`), as the operator encoded it."""
    tables: list[TableInfo] = []
    blocks: list[BlockRef] = []
    """The blocks, in the order in which they are to be applied."""
    full: list[int] = []
    """Key groups that this file holds as a whole: older files do not count for them any more."""
    chains: dict[int, list[int]] = {}
    """Key group -> the files that hold it, as positions in `Index.files`, oldest first. Groups without state are absent."""
    kind: str = ""
    """The kind of the operator (`api.restore.kinds`); empty for state that a user has made for an operator of any kind."""
    feedback: list[BlockRef] = []
    """Records in flight to the head of a loop, in an unreleased format only. `read_index` refuses them."""


class Index(msgspec.Struct, omit_defaults=True):
    """The content of a file."""

    job: str
    incarnation: int
    checkpoint: int
    slot: int
    max_parallelism: int
    files: list[str] = []
    """Names of files, relative to the checkpoint folder of the job; the chains refer to them. The name of this file is among
    them if a chain needs it."""
    operators: list[OperatorPart] = []
    logs: list[ChannelLog] = []
    """The logs of the channels that this worker reads, in the order in which they are to be restored."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def checksum(data: bytes | memoryview) -> int:
    """The XXH64 of a block or an index."""
    return xxhash.xxh64_intdigest(data)


def header() -> bytes:
    """The header of a file."""
    return _HEADER.pack(_MAGIC, VERSION)


def tail(index: Index, offset: int) -> bytes:
    """The end of a file: the index, which starts at `offset`, and the footer."""
    data = _encoder.encode(index)
    return data + _FOOTER.pack(offset, len(data), checksum(data), _END_MAGIC)


def check_header(data: bytes, name: str) -> None:
    """Raises `CheckpointCorrupt` for data that is not the header of a state file, or of a version that this tailrace cannot
    read."""
    if len(data) < HEADER_SIZE or data[:4] != _MAGIC:
        raise CheckpointCorrupt(f"{name} is not a state file of tailrace: it starts with {data[:4]!r}")
    version = _HEADER.unpack(data[:HEADER_SIZE])[1]
    if version != VERSION:
        raise CheckpointCorrupt(f"{name} is a state file of version {version}; this tailrace reads version {VERSION}")


def index_place(footer: bytes, size: int, name: str) -> tuple[int, int, int]:
    """The (offset, length, checksum) of the index, from the last `FOOTER_SIZE` bytes of a file of `size` bytes. Raises
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
    if any(part.feedback for part in index.operators):
        raise CheckpointCorrupt(f"{name}: {UNRELEASED}")
    return index


def check_block(data: bytes | memoryview, block: BlockRef | LogPiece, name: str) -> None:
    """Raises `CheckpointCorrupt` for data that does not match the length and the checksum of the block."""
    if len(data) != block.length or checksum(data) != block.checksum:
        raise CheckpointCorrupt(
            f"{name} is damaged: {block.length} bytes at {block.offset} do not match their checksum"
        )
