"""A queue on a server, as a source: its reader acknowledges what is in complete checkpoints. The module is imported by all
workers of a simulation, which share its servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tailrace as tr

FALLBACK = 2.0
"""Seconds after which the reader of all splits is read, if it is not woken."""
SPLITS, SIZE = 5, 90
SERVERS: list[Server] = []


class Server:
    """A server that keeps the records of some splits until they are acknowledged, and fails now and then."""

    def __init__(self, failing: bool = False) -> None:
        self.acknowledged: Counter[int] = Counter()
        self.calls: list[dict[int, int]] = []
        self.failing, self.failed = failing, 0

    def acknowledge(self, positions: Mapping[int, int]) -> None:
        if self.failing and len(self.calls) % 3 == 1 and not self.failed % 2:
            self.failed += 1
            raise ConnectionError("closed")
        self.failed += self.failed % 2
        self.calls.append(dict(positions))
        for split, position in positions.items():
            self.acknowledged[split] = max(position, self.acknowledged[split])

    def records(self, split: int, at: int, limit: int) -> list[tuple[int, int]]:
        assert at >= self.acknowledged[split], f"split {split} is read from {at}, and what is there is gone"
        return [(split, i) for i in range(at, min(at + limit, SIZE))]


class Queue(tr.Source):
    """A source whose reader is woken: without that it is read every two seconds."""

    description = "queue"

    def __init__(self, together: bool, **options: Any) -> None:
        SERVERS.append(Server(**options))
        self.server, self.together = len(SERVERS) - 1, together

    def splits(self, parallelism: int) -> list[int]:
        return list(range(SPLITS))

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return Alone(self.server, split, position or 0)

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader | None:
        return Together(self.server) if self.together else None


class Together(tr.SplitReader):
    def __init__(self, server: int) -> None:
        self.server = server
        self.at: dict[int, int] = {}
        self.of: dict[int, int] = {}
        self.paused: frozenset[int] = frozenset()
        self.reads = 0

    def assign(self, splits: Sequence[tr.AssignedSplit]) -> None:
        for number, split, position in splits:
            self.at[number], self.of[number] = position or 0, split

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            del self.at[number]

    def pause(self, splits: Collection[int]) -> None:
        self.paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        self.reads += 1
        if self.reads % 3 == 0:
            if not self.paused:  # else what a lost worker has read is read once more, and it was woken before
                self.wake()
            return
        numbers = [number for number in self.at if number not in self.paused]
        for number in numbers if self.reads % 2 else numbers[::-1]:
            if self.at[number] == SIZE:
                yield number, None
            elif limit:
                found = SERVERS[self.server].records(self.of[number], self.at[number], min(limit, 2))
                self.at[number] += len(found)
                limit -= len(found)
                yield number, found

    def position(self, split: int) -> int:
        return self.at[split]

    def next_at(self, now: float) -> float:
        return now + FALLBACK

    def completed(self, positions: Mapping[int, int]) -> None:
        SERVERS[self.server].acknowledge(positions)


class Alone(tr.Reader):
    def __init__(self, server: int, split: int, at: int) -> None:
        self.server, self.split, self.at, self.reads, self.closed = server, split, at, 0, False

    def read(self, limit: int, now: float) -> Any:
        self.reads += 1
        if self.reads % 3 == 0:
            return []
        found = SERVERS[self.server].records(self.split, self.at, min(limit, 2))
        self.at += len(found)
        return found or None

    @property
    def position(self) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return now + 0.0005

    def completed(self, position: int) -> None:
        assert not self.closed
        SERVERS[self.server].acknowledge({self.split: position})

    def close(self) -> None:
        self.closed = True
