"""What comes out of a checkpoint's files, in the order in which it is to be taken: of each file first the metas and tables
of its operators, then blocks, the oldest first; chains where the next checkpoint may refer to the same files."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.state.format import TableInfo


@dataclass(frozen=True, slots=True)
class MetaOf:
    """The meta of an operator in one old subtask."""

    uid: str
    subtask: int
    parallelism: int
    finished: bool
    data: bytes | None


@dataclass(frozen=True, slots=True)
class TablesOf:
    """The tables that an operator had in one old subtask."""

    uid: str
    tables: list[TableInfo]


@dataclass(frozen=True, slots=True)
class BlockOf:
    """Entries of one table and key group."""

    uid: str
    table: TableInfo
    group: int
    count: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ChainsOf:
    """The files that hold these key groups of an operator, the oldest first."""

    uid: str
    chains: dict[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FeedbackOf:
    """Records that were on their way around a loop, as one old subtask of its head had them."""

    uid: str
    subtask: int
    parallelism: int
    round: int
    """The round that they wait for, in a loop in rounds; 0: none."""
    count: int
    data: bytes | memoryview
    """One frame."""


Part = MetaOf | TablesOf | BlockOf | ChainsOf | FeedbackOf
