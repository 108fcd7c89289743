"""The contract of a state backend.

A backend holds tables; a table maps keys to values of one declared state of one operator. The key group of a key is a
function of the key (`elements.keys`), so a table need not store it: snapshots and restores, which lay state out by key
group, compute it once per key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.elements.cuts import CutRequest
from tailrace.state.format import TableInfo
from tailrace.state.tables import StateTable


@dataclass(frozen=True)
class MetaPart:
    """The state that is not keyed of one old subtask of an operator."""

    subtask: int
    parallelism: int
    """How many subtasks the operator had then."""
    finished: bool
    data: bytes | None
    schema: bytes | None = None
    """Of the stream in columns that it took or made, where nobody had declared it: an Arrow schema."""
    sides: dict[str, bytes] = field(default_factory=dict)
    """Of its side outputs in columns, likewise, by their tags."""


@dataclass(frozen=True)
class Block:
    """Encoded entries of one table and key group. `table` is its place in `Backend.tables_info()`."""

    table: int
    group: int
    count: int
    data: bytes


class Backend(Protocol):
    """All keyed state of one operator in one subtask."""

    operator: str
    """The operator's name, for errors."""
    tables: dict[str, StateTable]
    on_inexact: Callable[[], None] | None
    """Set, before tables are declared, where another worker may have to go on from a checkpoint: then what is handed out
    behind a cut is what a restore from it would give. Called where it is not."""
    after_restore: list[Callable[[], None]]
    """Called when restoring is over."""

    def table(
        self,
        name: str,
        *,
        kind: str = "value",
        type: Any = object,
        encoding: str | None = None,
        group_by: Callable[[Any], Any] | None = None,
        in_memory: bool = False,
    ) -> StateTable:
        """The table of this name; the same one each time. All are declared before anything is restored or frozen.
        `group_by` finds in a key of the table the key whose group it is in (None: itself). `in_memory` keeps the table
        as Python objects whatever the backend is."""
        ...

    def entries(self) -> int:
        """How many entries there are in all tables. About, where very many were written since the last checkpoint."""
        ...

    def relieve(self) -> None:
        """Called between batches: does a bounded piece of housekeeping, where there is any."""
        ...

    # Snapshots. Between `freeze(n)` and the last `encode` no other `freeze` comes.

    def freeze(self, cut: CutRequest) -> None:
        """The cut: the checkpoint holds the state as it is now, whatever is written from here on. Where the cut is to
        be whole (`cut.kind.whole`), every group that has anything is written as a whole, whatever earlier checkpoints
        hold of it: the checkpoint can be restored from its own blocks. It may be confirmed like any other."""
        ...

    def encode(self, limit: int) -> tuple[list[Block], bool]:
        """Encodes about `limit` more frozen entries: (blocks, whether that was all). Raises `UserCodeError` for a value
        that cannot be encoded."""
        ...

    def groups(self, checkpoint: int) -> tuple[list[int], list[int]]:
        """Once encoded: (groups written as a whole, groups of which only what changed was written). A group of which
        nothing changed is in neither. One that was written as a whole without a block is empty now."""
        ...

    def tables_info(self) -> list[TableInfo]:
        """The tables, in the order that `Block.table` counts."""
        ...

    def confirm(self, checkpoint: int) -> None:
        """The checkpoint is complete: the next one need not hold the same again."""
        ...

    def abort(self, checkpoint: int) -> None:
        """The checkpoint will not be complete; encoding of it, if it goes on, ends."""
        ...

    def apply(self, table: TableInfo, group: int, data: bytes | memoryview) -> None:
        """While restoring: the entries of a block, oldest block first. Raises `IncompatibleState` for a table that was
        not declared or a value that cannot be decoded."""
        ...

    def holds(self, groups: Iterable[int]) -> None:
        """While restoring: the checkpoint has something of these key groups, and all of it was applied, or will be."""
        ...

    def forget(self, group: int) -> None:
        """While restoring: what was applied of a key group does not count; it comes once more, or is gone."""
        ...

    def detach(self) -> None:
        """The operator that has declared the tables goes, before anything was written; another one of its kind declares the
        same, and has what was applied."""
        ...

    def restored(self, own_files: bool) -> None:
        """Restoring is over. With `own_files` the state counts as confirmed as it is; without, the next checkpoint
        writes every group as a whole."""
        ...

    def close(self) -> None:
        """Gives back what the backend holds."""
        ...
