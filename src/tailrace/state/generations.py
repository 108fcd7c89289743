"""Freezes whose checkpoints are not confirmed: the keys they changed, and the groups they wrote."""

from __future__ import annotations

from typing import Any


class Generation:
    """One freeze whose checkpoint is not confirmed: the keys it changed, and the groups it wrote."""

    def __init__(self, checkpoint: int, tables: int) -> None:
        self.checkpoint = checkpoint
        self.aborted = False
        self.changed: list[list[set[Any]]] = [[set()] for _ in range(tables)]
        """By table, the keys that the freeze changed, in one or several sets."""
        self.full: list[int] = []
        self.delta: list[int] = []
        self.empty: set[int] = set()
        """Groups that were written as a whole and have no entry."""

    def absorb(self, other: Generation) -> None:
        """Takes over the keys of another aborted freeze."""
        for mine, others in zip(self.changed, other.changed, strict=True):
            sets = sorted([*mine, *others], key=len)
            largest = sets.pop()
            largest.update(*sets)
            mine[:] = [largest]

    def size(self) -> int:
        """Number of keys in all sets."""
        return sum(len(one) for sets in self.changed for one in sets)
