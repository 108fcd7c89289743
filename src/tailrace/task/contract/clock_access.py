"""The way of user code to the clocks and random bytes of its process. Functions of Python that it calls for these read by
way of a book, where their readings are recorded (`task.journal.clock_readings`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

WALL, MONOTONIC, OTHER = range(3)
"""Clocks: that of the day, those that cannot be set, and those of processor time."""
OPENING, READING = "opening", "reading"
"""Phases of user code outside of steps' own work: a function is opened, a reader reads. What is read there may differ in
number when it is done once more: a library that `open` calls may find a file that it has to load first."""

Read = Callable[[], int]
Fresh = Callable[[int], bytes]
"""A function that makes so many random bytes."""


class Book(Protocol):
    """The readings of user code, live or in a replay."""

    phase: str
    """`OPENING`, `READING`, or empty in a step."""
    caller: str
    """The library whose code reads; empty for the user's own."""

    def clock(self, which: int, read: Read) -> int:
        """A reading of a clock in nanoseconds."""

    def monotonic(self, read: Read, wall: Read) -> int:
        """A reading of a clock that cannot be set. `wall`: that of the day."""

    def draw(self, count: int, fresh: Fresh) -> bytes:
        """Random bytes, so many."""

    def value(self, make: Callable[[], bytes]) -> bytes:
        """A value of another kind."""

    def attempt(self, own: int) -> int:
        """The attempt that user code reads in its context."""
