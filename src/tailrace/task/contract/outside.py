"""The access of user code to the world outside of its worker: readers and enumerators of sources, sinks that publish, and
whatever `ctx.call` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tailrace.elements.batches import Batch

T = TypeVar("T")
Taken = tuple[Batch | None, int]
"""The records that a reader gave, None at the end of its split; and the bytes that it has lost."""


class Take(Protocol):
    """A read of at most `limit` records, as if it were `later` seconds later."""

    def __call__(self, limit: int, later: float = 0.0) -> Taken: ...


class Outside:
    """The world outside itself. Where answers are kept, a recorder takes its place (`task.journal.recorded_answers`)."""

    def request(self, call: Callable[[], T]) -> T:
        """Requests a value, which can be pickled."""
        return call()

    def act(self, call: Callable[[], object]) -> None:
        """Does something to the world. The only answer is whether it raises."""
        call()

    def read(self, take: Take, limit: int) -> Taken:
        """Takes at most `limit` records of a reader."""
        return take(limit)
