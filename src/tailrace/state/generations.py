"""Freezes whose checkpoints are not confirmed: which keys they changed, and which groups they wrote."""

from __future__ import annotations

from typing import Any


class Generation:
    """One freeze whose checkpoint is not confirmed: what it changed, and what it wrote."""

    def __init__(self, checkpoint: int, tables: int) -> None:
        self.checkpoint = checkpoint
        self.aborted = False
        self.changed: list[list[set[Any]]] = [[set()] for _ in range(tables)]
        """By table the keys that it changed, in one or several sets."""
        self.full: list[int] = []
        self.delta: list[int] = []
        self.empty: set[int] = set()
        """Of the groups written as a whole, those that had nothing."""

    def absorb(self, other: Generation) -> None:
        """Takes over the keys of another aborted one."""
        for mine, others in zip(self.changed, other.changed, strict=True):
            sets = sorted([*mine, *others], key=len)
            largest = sets.pop()
            largest.update(*sets)
            mine[:] = [largest]

    def size(self) -> int:
        """How many keys it holds."""
        return sum(len(one) for sets in self.changed for one in sets)
