"""A source that has records when somebody rings: its reader is woken, and read once an hour otherwise. Test and worker
import the module, and share what rings."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tailrace as tr


class Bell:
    """What is outside of the job: records, and a way to wake the reader."""

    def __init__(self) -> None:
        self.records: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.wakes: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.reads = 0

    def ring(self, wake: Callable[[], object], record: Any) -> None:
        """Gives the reader a record, from a thread that is not its own."""
        self.records.put(record)
        wake()


BELLS: dict[str, Bell] = {}


def note(name: str, record: Any) -> None:
    """Notes a record that has come out of the job."""
    BELLS[name].heard.put(record)


class Bells(tr.Source):
    bounded = False

    def __init__(self, name: str) -> None:
        self.name = name
        BELLS[name] = Bell()

    def splits(self, parallelism: int) -> list[int]:
        return [0]

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader:
        return Listener(BELLS[self.name])


class Listener(tr.SplitReader):
    def __init__(self, bell: Bell) -> None:
        self.bell, self.at = bell, 0

    def assign(self, splits: Sequence[tr.AssignedSplit]) -> None:
        self.bell.wakes.put(self.wake)

    def revoke(self, splits: Sequence[int]) -> None: ...

    def pause(self, splits: Collection[int]) -> None: ...

    def read(self, limit: int, now: float) -> Any:
        self.bell.reads += 1
        found = []
        while not self.bell.records.empty() and len(found) < limit:
            found.append(self.bell.records.get())
        self.at += len(found)
        return [(0, found)]

    def position(self, split: int) -> int:
        return self.at

    def next_at(self, now: float) -> float:
        return now + 3_600.0

    def lag(self, now: float) -> Mapping[int, tr.SourceLag]:
        return {0: tr.SourceLag(self.bell.records.qsize(), 0.5)}
