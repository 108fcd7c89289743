"""A source whose splits follow one another: each round has a split for each lane, and begins when the round before was read.
The module is imported by all workers of a simulation, which share its servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tailrace as tr

LANES, ROUNDS, SIZE = 3, 6, 12
PACE = (1, 4, 9)
"""Seconds of event time from one record of a lane to its next."""
COMMITTED: list[list[int]] = []
"""For each source, the rounds that were read whole in complete checkpoints, as its enumerators were told."""


class Rounds(tr.Source):
    """A source of (lane, time). Every lane goes on from where it was in the round before, in the same subtask: splits
    without records fill up each round."""

    description = "rounds"

    def __init__(self, follow: bool = True, failing: bool = False, pause: float = 0.0) -> None:
        COMMITTED.append([])
        self.pause = pause
        """Seconds behind the last round in which there is nothing."""
        self.number, self.splits_follow, self.failing = len(COMMITTED) - 1, follow, failing  # type: ignore[misc]

    def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
        return Turns(self.number, self.failing, self.pause, parallelism, position or (0, 0))

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        return Lane(*split, position or 0)


class Turns(tr.Enumerator):
    def __init__(self, number: int, failing: bool, pause: float, parallelism: int, position: tuple[int, int]) -> None:
        self.number, self.failing, self.parallelism = number, failing, parallelism
        self.round, self.left = position
        self.closed = False
        self.pause, self.until = pause, 0.0

    def discover(self, now: float) -> Sequence[Any] | None:
        if self.left:
            return ()
        if self.round == ROUNDS:
            self.until = self.until or now + self.pause
            return None if now >= self.until else ()
        self.round, self.left = self.round + 1, LANES
        return [(self.round, lane) for lane in range(LANES)] + [(0, 0)] * (-LANES % self.parallelism)

    def ended(self, split: tuple[int, int]) -> None:
        assert split[0] in (self.round, 0) and self.left + (not split[0])
        self.left -= split[0] == self.round

    def next_at(self, now: float) -> float:
        return max(now + 0.0005, self.until)

    @property
    def position(self) -> tuple[int, int]:
        return self.round, self.left

    def completed(self, position: tuple[int, int]) -> None:
        if self.failing and not self.closed:
            self.closed = True
            raise ConnectionError("closed")
        COMMITTED[self.number].append(position[0] if not position[1] else position[0] - 1)


class Lane(tr.Reader):
    def __init__(self, round_: int, lane: int, at: int) -> None:
        self.first, self.lane, self.at = (round_ - 1) * SIZE, lane, at

    def read(self, limit: int, now: float) -> Any:
        numbers = range(self.at, min(self.at + min(limit, 2), SIZE)) if self.first >= 0 else range(0)
        self.at += len(numbers)
        return [(self.lane, (self.first + i) * PACE[self.lane]) for i in numbers] or None

    @property
    def position(self) -> int:
        return self.at


def everything() -> list[tuple[int, int]]:
    """All records, in order."""
    return sorted((lane, i * PACE[lane]) for lane in range(LANES) for i in range(ROUNDS * SIZE))
