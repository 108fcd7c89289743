"""The parts of a checkpoint's files, in the order of their restore: of each file first the records in flight, then the
metas and tables of its operators; then blocks, the oldest first; chains where the next checkpoint may refer to the same
files."""

from __future__ import annotations

import msgspec

from tailrace.elements.frames import ChannelName
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
    """The files that hold these key groups of an operator, the oldest first."""

    uid: str
    chains: dict[int, tuple[str, ...]]


class AnewOf(msgspec.Struct, frozen=True, tag=True):
    """Whoever holds something of this key group forgets it: what follows has all of it, or there is nothing any more."""

    uid: str
    group: int


class LogOf(msgspec.Struct, frozen=True, tag=True):
    """Records that were in flight in one channel at the cut: a piece of its log."""

    channel: ChannelName
    parallelism: int
    """That of the operator that was to receive them."""
    count: int
    data: memoryview
    """One frame."""
    start: int = 0
    """How many records at its beginning do not belong to the log."""
    groups: tuple[int, int] | None = None
    """Of the others only those of these key groups [first, last) do; None: all."""
    round: int = 0
    """The round that they wait for, in a loop in rounds; 0: none."""
    kind: LogKind = LogKind.FEEDBACK
    age: int = 0
    turn: int = 0
    """See `state.format.ChannelLog`."""
    stop: int = -1
    """The number of the first record behind them that does not belong to the log; -1: all do."""
    place: Placed | None = None
    """Where the frame is."""

    @property
    def uid(self) -> str:
        """The operator that was to receive them."""
        return self.channel.target


class ShapeOf(msgspec.Struct, frozen=True, tag=True):
    """What the records of a log were on their channel: behind its pieces, if there are any."""

    channel: ChannelName
    kind: LogKind
    age: int
    turn: int
    shape: list[int]
    """See `state.format.ChannelLog`."""


Part = MetaOf | TablesOf | BlockOf | ChainsOf | AnewOf | LogOf | ShapeOf
