"""The planner of a stream reader: it alone decides which ranges of offsets are read, one after the other.

A range and its partitions are in checkpoints from the moment at which they are dealt out: after a restart the same
partitions of the same ranges are read. The next range is planned when all partitions of the one before were read to their
end. So partition *i* of a range is read when partition *i* of the range before was read, and by the same subtask: the
numbers of a range's splits begin and end at a multiple of the parallelism, for which splits without a partition fill up. So
each subtask gets a split of each range, and what it held of event time for the range before is over (W8).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from tailrace.api.connectors import Enumerator
from tailrace.spark.datasources.listing import Call, portable
from tailrace.spark.datasources.offsets import StreamOffsets


class RangeSplit(NamedTuple):
    """A partition of a range of offsets."""

    range: int
    """The number of the range; 0 for a split without a partition."""
    number: int
    """The place of the partition in the list of the range's partitions."""
    start: str
    end: str
    partition: Any


FILLING = RangeSplit(0, 0, "", "", None)
"""A split without a partition."""


class Planned(NamedTuple):
    """The position of a planner."""

    splits: int
    """Number of splits that were dealt out."""
    range: int
    """The number of the newest range."""
    end: str | None
    """Where it ends, and the next one begins; None before the first look."""
    left: int
    """Number of its partitions that are not read to their end."""
    read: str | None
    """The end of the newest range that was read whole; None while there is none."""
    over: bool = False
    """True if there will be no other range."""


class Planner(Enumerator):
    """The enumerator of the ranges of a stream reader. `bounded`: it ends with what is there when the job starts. `every`:
    seconds between two looks for something new."""

    def __init__(
        self, offsets: StreamOffsets, parallelism: int, position: Planned | None, every: float, bounded: bool
    ) -> None:
        self._offsets, self._parallelism, self._every, self._bounded = offsets, parallelism, every, bounded
        self._at = position if position is not None else Planned(0, 0, None, 0, None)
        self._call: Call | None = None
        self._due = 0.0
        self._prepared: bool | None = None
        """True if the reader itself keeps to the end of a bounded run; None before the first plan."""
        self._committing = threading.Lock()
        self._committed: str | None = None

    def discover(self, now: float) -> Sequence[RangeSplit] | None:
        if self._at.over and not self._at.left:
            return None
        if self._call is None:
            if self._at.left or self._at.over or now < self._due:
                return ()
            self._call = Call(self._plan)
        if not self._call.is_done():
            return ()
        call, self._call = self._call, None
        start, end, partitions = call.result()
        if start == end:
            self._at = self._at._replace(end=end, over=self._bounded)
            self._due = now + self._every
            return None if self._at.over else ()
        return self._deal(now, start, end, partitions)

    def _plan(self) -> tuple[str, str, list[Any]]:
        """The next range, in a thread: its start, its end, and its partitions. An empty one if there is nothing new."""
        offsets = self._offsets
        if self._bounded and self._prepared is None:
            self._prepared = offsets.prepare_end()
        start = self._at.end if self._at.end is not None else offsets.initial()
        end = offsets.latest(start)
        return start, end, [] if start == end else [portable(one) for one in offsets.partitions(start, end)]

    def _deal(self, now: float, start: str, end: str, partitions: list[Any]) -> list[RangeSplit]:
        at = self._at
        number = at.range + 1
        before = [FILLING] * (-at.splits % self._parallelism)  # behind a restart at another parallelism
        splits = [RangeSplit(number, place, start, end, one) for place, one in enumerate(partitions)]
        found = [*before, *splits, *[FILLING] * (-len(splits) % self._parallelism)]
        # A reader that cannot keep to an end is read once: up to what is there now.
        over = self._bounded and not self._prepared
        read = at.read if splits else end
        self._at = Planned(at.splits + len(found), number, end, len(splits), read, over)
        self._due = 0.0 if splits else now + self._every
        return found

    def ended(self, split: RangeSplit) -> None:
        if split.range == self._at.range:
            left = self._at.left - 1
            self._at = self._at._replace(left=left, read=self._at.read if left else self._at.end)

    def next_at(self, now: float) -> float:
        if self._call is not None or self._at.left:
            return now + 0.01
        return max(now, self._due)

    @property
    def position(self) -> Planned:
        return self._at

    def completed(self, position: Planned) -> None:
        with self._committing:
            if position.read is not None and position.read != self._committed:
                self._offsets.commit(position.read)
                self._committed = position.read

    def close(self) -> None:
        self._offsets.stop()
