"""The contract of a state backend.

A backend holds tables; a table maps keys to values, for one declared state of one operator. The key group of a key is a
function of the key (`elements.keys`), so a table need not store it: snapshots and restores, which lay state out by key
group, compute it once per key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.elements.cuts import CutRequest
from tailrace.elements.keygroups import group_range
from tailrace.state.format import TableInfo
from tailrace.state.tables import StateTable
from tailrace.state.ttl import Ttl
from tailrace.state.ttl_lifetimes import Expiry, ExpiryOf


@dataclass(frozen=True)
class MetaPart:
    """The state of one old subtask of an operator that is not keyed."""

    subtask: int
    parallelism: int
    """Number of subtasks that the operator had then."""
    finished: bool
    data: bytes | None
    schema: bytes | None = None
    """Arrow schema of the stream in columns that the subtask received or sent, if the user had declared none."""
    sides: dict[str, bytes] = field(default_factory=dict)
    """Tag -> Arrow schema of a side output in columns, if the user had declared none."""
    expiries: dict[str, Expiry] = field(default_factory=dict)
    """Table -> the lifetimes of its entries at the cut."""

    def groups(self, max_parallelism: int) -> tuple[int, int]:
        """The key groups [first, last) of the subtask."""
        owned = group_range(self.subtask, self.parallelism, max_parallelism)
        return owned.start, owned.stop


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
    """A callback, set before tables are declared if another worker may have to go on from a checkpoint. With it, values that
    are handed out behind a cut are as a restore from that checkpoint would give them. The backend calls it for a value
    for which it cannot ensure that."""
    after_restore: list[Callable[[], None]]
    """Functions that are called when restoring is over."""
    small: int | None
    """Number of entries up to which each checkpoint writes all state of the operator; None: the backend's own. An operator
    whose entries are large sets a smaller one."""

    def table(
        self,
        name: str,
        *,
        kind: str = "value",
        type: Any = object,
        encoding: str | None = None,
        group_by: Callable[[Any], Any] | None = None,
        in_memory: bool = False,
        ttl: Ttl | None = None,
    ) -> StateTable:
        """The table of this name; the same object at each call. All tables are declared before anything is restored or
        frozen. `group_by` returns, for a key of the table, the key whose key group it is in (None: the key itself).
        `in_memory` keeps the table as Python objects, whatever the backend is. With `ttl` its values are in the form of
        `state.ttl`."""

    @property
    def restamped(self) -> set[str]:
        """Names of tables that were restored with entries whose last writes have no time on their clock."""

    def entries(self) -> int:
        """Number of entries in all tables. An estimate if very many were written since the last checkpoint."""

    def relieve(self) -> None:
        """Does a bounded piece of housekeeping, if there is any. Called between batches."""

    # Snapshots. Between `freeze(n)` and the last `encode` no other `freeze` comes.

    def freeze(self, cut: CutRequest) -> None:
        """Makes the cut: the checkpoint holds the state as it is now, whatever is written from here on. If the cut is to be
        whole (`cut.kind.whole`), every group with any state is written as a whole, whatever earlier checkpoints hold of
        it: the checkpoint can be restored from its own blocks. It may be confirmed like any other."""

    def encode(self, limit: int) -> tuple[list[Block], bool]:
        """Encodes about `limit` more frozen entries: (blocks, True if that was all). Raises `UserCodeError` for a value that
        cannot be encoded."""

    def groups(self, checkpoint: int) -> tuple[list[int], list[int]]:
        """The groups of a checkpoint, once it is encoded: (groups written as a whole, groups of which only the changes were
        written). A group without changes is in neither list. A group that was written as a whole without a block is empty
        now."""

    def tables_info(self) -> list[TableInfo]:
        """The tables, in the order in which `Block.table` counts them."""

    def confirm(self, checkpoint: int) -> None:
        """Notes that the checkpoint is complete: the next one need not hold its entries again."""

    def abort(self, checkpoint: int) -> None:
        """Notes that the checkpoint will not be complete. If it is still being encoded, that ends."""

    def apply(self, table: TableInfo, group: int, data: bytes | memoryview) -> None:
        """Applies the entries of a block, while restoring, oldest block first. Raises `IncompatibleState` for a table that
        was not declared or a value that cannot be decoded."""

    def holds(self, groups: Iterable[int]) -> None:
        """Notes, while restoring, that the checkpoint has state in these key groups. All of it was applied, or will be."""

    def note_expiries(self, table: str, parts: Iterable[ExpiryOf]) -> None:
        """Notes, while restoring and before any `apply`, what the checkpoint has of the lifetimes of a table's entries. What
        was over then is left behind if the table has another clock, or none, by now."""

    def forget(self, group: int) -> None:
        """Drops, while restoring, what was applied of a key group. It is applied once more, or the group has no state any
        more."""

    def detach(self) -> None:
        """Detaches the operator that has declared the tables, before anything was written. Another operator of its kind
        declares the same tables, and gets what was applied."""

    def end_restore(self, own_files: bool) -> None:
        """Ends restoring. With `own_files` the state counts as confirmed as it is; without, the next checkpoint writes every
        group as a whole."""

    def forget_files(self) -> None:
        """Notes that what files of earlier checkpoints hold does not count: the next one writes every group as a whole."""

    def close(self) -> None:
        """Releases files and memory that the backend holds."""
