"""Chains of files that hold the state of each key group of one operator, by checkpoint."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from tailrace.errors import InternalError

FileChain = tuple[str, ...]


class GroupChains:
    """Chains of one operator in one subtask: for each key group the files that hold it, the oldest first. The first file
    of a chain holds the whole group.

    Invariant H1: `confirmed` names only files of complete checkpoints, so whatever refers to it can be restored.
    Invariant H2: the file in which a chain begins is recorded as holding the group as a whole: it was written so, or
    nothing of the group was in the checkpoint that it builds on, so that what changed since is all there is of it.
    """

    __slots__ = ("_pending", "confirmed")

    def __init__(self) -> None:
        self.confirmed: dict[int, FileChain] = {}
        self._pending: dict[int, dict[int, FileChain]] = {}

    def extend(
        self, checkpoint: int, file: str, full: Iterable[int], changed: Iterable[int], written: Container[int]
    ) -> tuple[dict[int, FileChain], list[int]]:
        """Chains of a checkpoint, and the groups that its file must be recorded as holding as a whole. The file holds the
        groups of `full` as a whole, and of the groups of `changed` what changed since the last complete checkpoint.
        `written`: the groups that the file has blocks of; a group of `full` without blocks is empty."""
        chains = dict(self.confirmed)
        whole = set(full)
        for group in changed:
            before = chains.get(group, ())
            # The backend knew a chain, and a checkpoint that is complete since then found the group empty.
            if not before:
                whole.add(group)
            chains[group] = (*before, file)
        for group in full:
            if group in written:
                chains[group] = (file,)
            else:
                chains.pop(group, None)
        self._pending[checkpoint] = chains
        return chains, sorted(whole)

    def check(self, file: str, chains: Mapping[int, FileChain], whole: Container[int], written: Container[int]) -> None:
        """Raises `InternalError` if the result of `extend` violates H1 or H2; for debug runs."""
        for group, chain in chains.items():
            before = self.confirmed.get(group, ())
            if chain == before:
                continue
            if chain[-1] != file or group not in written:
                raise InternalError(f"the chain of key group {group} is {chain}, and {file} has nothing of it")
            if chain[:-1] not in ((), before) or (len(chain) == 1 and group not in whole):
                raise InternalError(f"the chain {chain} of key group {group} does not begin with the whole group")

    def forget(self) -> None:
        """Forgets all chains: the next checkpoint begins them anew."""
        self.confirmed, self._pending = {}, {}

    def confirm(self, checkpoint: int) -> None:
        """Confirms the chains of a checkpoint that is complete."""
        chains = self._pending.get(checkpoint)
        if chains is not None:
            self.confirmed = chains
        self._forget(checkpoint)

    def abort(self, checkpoint: int) -> None:
        """Forgets the chains of a checkpoint that will never be complete."""
        self._pending.pop(checkpoint, None)

    def _forget(self, checkpoint: int) -> None:
        self._pending = {number: chains for number, chains in self._pending.items() if number > checkpoint}
