"""Which files hold the state of each key group of one operator, by checkpoint."""

from __future__ import annotations

from collections.abc import Container, Iterable

Chain = tuple[str, ...]


class GroupChains:
    """The chains of one operator in one subtask: for each key group the files that hold it, the oldest first, of which
    the first holds the whole group.

    Invariant H1: `confirmed` names only files of complete checkpoints, so whatever refers to it can be restored.
    """

    __slots__ = ("_pending", "confirmed")

    def __init__(self) -> None:
        self.confirmed: dict[int, Chain] = {}
        self._pending: dict[int, dict[int, Chain]] = {}

    def extend(
        self, checkpoint: int, file: str, full: Iterable[int], changed: Iterable[int], written: Container[int]
    ) -> dict[int, Chain]:
        """The chains of a checkpoint whose own file holds some groups as a whole and of others what changed since the last
        complete checkpoint. `written` are the groups that the file has blocks of: one that was written as a whole and has
        none is empty."""
        chains = dict(self.confirmed)
        for group in changed:
            chains[group] = (*chains.get(group, ()), file)
        for group in full:
            if group in written:
                chains[group] = (file,)
            else:
                chains.pop(group, None)
        self._pending[checkpoint] = chains
        return chains

    def confirm(self, checkpoint: int) -> None:
        """The checkpoint is complete."""
        chains = self._pending.get(checkpoint)
        if chains is not None:
            self.confirmed = chains
        self._forget(checkpoint)

    def abort(self, checkpoint: int) -> None:
        """The checkpoint will never be complete."""
        self._pending.pop(checkpoint, None)

    def _forget(self, checkpoint: int) -> None:
        self._pending = {number: chains for number, chains in self._pending.items() if number > checkpoint}
