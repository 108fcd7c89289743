"""What comes out of a checkpoint's files, in the order in which it is to be taken: of each file first the metas and tables
of its operators, then blocks, the oldest first; chains where the next checkpoint may refer to the same files."""

from __future__ import annotations

import msgspec

from tailrace.state.format import TableInfo


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


class FeedbackOf(msgspec.Struct, frozen=True, tag=True):
    """Records that were on their way around a loop, as one old subtask of its head had them."""

    uid: str
    subtask: int
    parallelism: int
    round: int
    """The round that they wait for, in a loop in rounds; 0: none."""
    count: int
    data: memoryview
    """One frame."""


Part = MetaOf | TablesOf | BlockOf | ChainsOf | FeedbackOf
