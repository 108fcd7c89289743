"""Columns that an operator keeps for a table: above its layers (`state.tables`), and frozen in one of them."""

from __future__ import annotations

from typing import Any, Protocol


class FrozenColumns(Protocol):
    """Entries of a frozen layer that are still in columns."""

    def take(self, limit: int) -> dict[Any, Any]:
        """Takes the next entries; empty when there are no more."""

    def drop(self, limit: int) -> list[Any]:
        """Takes the next keys that were deleted; empty when there are no more."""

    @property
    def drops(self) -> int:
        """Number of deleted keys that are left."""

    def __len__(self) -> int:
        """Number of entries and deleted keys that are left."""


class Front(Protocol):
    """Columns that an operator keeps for a table, above `top`."""

    def entries(self) -> int:
        """Number of entries of the table."""

    def about(self) -> int:
        """Approximate number of entries of the table, without looking at each."""

    def everything(self) -> dict[Any, Any] | None:
        """All entries of the table, if the columns hold all of them; else None. Reading them changes nothing."""

    def cut(self) -> FrozenColumns | None:
        """The entries that were written since the last cut, as they are now."""

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """Counts as written again what is left of such columns, the last `taken` entries that were taken from them, and all
        deleted keys: deleting a key twice does no harm."""

    def take_written(self) -> tuple[dict[Any, Any], list[Any]]:
        """Takes the entries that were written since the last cut, and the keys that were deleted. They do not count as
        written any more."""
