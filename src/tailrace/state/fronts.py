"""What an operator keeps of a table in columns: above its layers (`state.tables`), and frozen in one of them."""

from __future__ import annotations

from typing import Any, Protocol


class FrozenColumns(Protocol):
    """Entries of a frozen layer that are still in columns."""

    def take(self, limit: int) -> dict[Any, Any]:
        """The next entries; nothing when there are no more."""
        ...

    def drop(self, limit: int) -> set[Any]:
        """The next keys that were deleted; nothing when there are no more."""
        ...

    @property
    def drops(self) -> int:
        """How many deleted keys are left."""
        ...

    def __len__(self) -> int:
        """How many entries and deleted keys are left."""
        ...


class Front(Protocol):
    """What an operator keeps of a table in columns, above `top`."""

    def entries(self) -> int:
        """How many entries the table has."""
        ...

    def about(self) -> int:
        """The same, without looking at each."""
        ...

    def everything(self) -> dict[Any, Any] | None:
        """All entries of the table, where it holds all of them: to look at them changes nothing. Else None."""
        ...

    def cut(self) -> FrozenColumns | None:
        """What was written since the last cut, as it is now."""
        ...

    def take_back(self, columns: FrozenColumns, taken: int) -> None:
        """What is left of such columns, and the `taken` last entries that were taken, counts as written again. So do all
        deleted keys: to delete one twice does no harm."""
        ...

    def written(self) -> tuple[dict[Any, Any], set[Any]]:
        """What was written since the last cut, as entries, and the keys that were deleted; they do not count any more."""
        ...
