"""The parts of a checkpoint's files, in the order of their restore. First, of each file, the records in flight, then the
metas and tables of its operators, and the chains, for a next checkpoint that refers to the same files; then the blocks,
oldest first."""

from __future__ import annotations

import msgspec

from tailrace.elements.frame_codec import ChannelName
from tailrace.state.format import LogKind, Placed, TableInfo


class MetaOf(msgspec.Struct, frozen=True, tag=True):
    """The meta of an operator in one old subtask."""

    uid: str
    subtask: int
    parallelism: int
    finished: bool
    data: bytes | None


class TablesOf(msgspec.Struct, frozen=True, tag=True):
    """The tables that an operator had in one old subtask."""

    uid: str
    tables: list[TableInfo]


class BlockOf(msgspec.Struct, frozen=True, tag=True):
    """Entries of one table and key group."""

    uid: str
    table: TableInfo
    group: int
    count: int
    data: memoryview


class ChainsOf(msgspec.Struct, frozen=True, tag=True):
    """The files that hold these key groups of an operator, oldest first."""

    uid: str
    chains: dict[int, tuple[str, ...]]


class AnewOf(msgspec.Struct, frozen=True, tag=True):
    """A request to drop what is held of a key group: all of its state follows, or it has none any more."""

    uid: str
    group: int


class LogOf(msgspec.Struct, frozen=True, tag=True):
    """Records that were in flight in one channel at the cut: a piece of its log."""

    channel: ChannelName
    parallelism: int
    """Parallelism of the operator that was to receive them."""
    count: int
    data: memoryview
    """The bytes of one frame."""
    start: int = 0
    """Number of records at the beginning of the frame that do not belong to the log."""
    groups: tuple[int, int] | None = None
    """Key groups [first, last) of the remaining records that belong to the log; None: all."""
    round: int = 0
    """The round that the records wait for, in a loop in rounds; 0: none."""
    kind: LogKind = LogKind.FEEDBACK
    age: int = 0
    turn: int = 0
    """Number of the log, as in `state.format.ChannelLog`."""
    stop: int = -1
    """Number, in the frame, of the first record behind the piece, which does not belong to the log; -1: all up to the end
    belong to it."""
    place: Placed | None = None
    """The place of the frame in a file."""

    @property
    def uid(self) -> str:
        """The uid of the operator that was to receive the records."""
        return self.channel.target


class ShapeOf(msgspec.Struct, frozen=True, tag=True):
    """The sequence of elements that the records of a log were on their channel. It comes behind the pieces of the log, if
    there are any."""

    channel: ChannelName
    kind: LogKind
    age: int
    turn: int
    shape: list[int]
    """The elements, as in `state.format.ChannelLog`."""


Part = MetaOf | TablesOf | BlockOf | ChainsOf | AnewOf | LogOf | ShapeOf
