"""The access of user code to the world outside of its worker: readers and enumerators of sources, sinks that publish,
whatever `ctx.call` calls, and the clocks and random bytes of its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tailrace.elements.batches import Batch
from tailrace.task.contract.background import Beside
from tailrace.task.contract.calls import AsyncCalls
from tailrace.task.contract.clock_access import Book

T = TypeVar("T")
Taken = tuple[Batch | None, int]
"""The records that a reader gave, None at the end of its split; and the bytes that it has lost."""


class Take(Protocol):
    """A read of at most `limit` records, as if it were `later` seconds later."""

    def __call__(self, limit: int, later: float = 0.0) -> Taken: ...


Parts = list[tuple[int, Batch | None]]
"""The records that a reader of several splits gave: batches, each with the number of its split; None at the end of one."""
TakenParts = tuple[Parts, int]
"""The records that a reader of several splits gave, and the bytes that it has lost."""


class TakeParts(Protocol):
    """A read of at most `limit` records of several splits, or of one only, as if it were `later` seconds later."""

    def __call__(self, limit: int, later: float = 0.0, only: int | None = None) -> TakenParts: ...


class Outside:
    """The world outside itself. Where answers are kept, a recorder takes its place (`task.journal.outside_answers`)."""

    readings: Book | None = None
    """The book of what user code reads now; None where it is not recorded."""
    calls: AsyncCalls | None = None
    """The asynchronous calls of the worker; None where it makes none."""
    beside: Beside = Beside()
    """The threads beside the tasks of the worker."""

    @property
    def repeats(self) -> bool:
        """True while what was done before is done once more: it has its effects on the world already."""
        return False

    def apart(self, call: Callable[..., T], *args: Any) -> T:
        """Calls user code whose readings are not recorded. It is not repeated (an answer of the world is what it returns),
        or it is to read other values then: a sink names its files anew."""
        before, self.readings = self.readings, None
        try:
            return call(*args)
        finally:
            self.readings = before

    def request(self, call: Callable[[], T]) -> T:
        """Requests a value, which can be pickled."""
        return call()

    def act(self, call: Callable[[], object]) -> None:
        """Does something to the world. The only answer is whether it raises."""
        call()

    def read(self, take: Take, limit: int) -> Taken:
        """Takes at most `limit` records of a reader."""
        return take(limit)

    def read_parts(self, take: TakeParts, limit: int) -> TakenParts:
        """Takes at most `limit` records of a reader of several splits."""
        return take(limit)
