"""Standard output of a worker while it works: what user code prints in a step goes to the program that has started the job.

Only the steps that the worker takes itself count. What a replay or a hot standby repeats is printed in its own output, and
so is what is beyond the bounds of a report, and what is printed outside of steps.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

import msgspec

from tailrace.protocol.deployment import PrintedLine, Progress

LINES = 100
"""Lines of a progress report, at most."""
LINE_CHARACTERS = 1_000
"""Characters of a line, at most; the rest of it is cut off."""

Place = tuple[int, int]
"""A task: its vertex and subtask."""


class WorkerOutput(io.TextIOBase):
    """A stand-in for standard output. `where` gives the task whose step is under way, or None."""

    def __init__(self, own: TextIO, where: Callable[[], Place | None]) -> None:
        self.own = own
        """Standard output of the process."""
        self._where = where
        self._begun: dict[Place, str] = {}
        """Task -> a line that has not ended."""
        self._lines: list[PrintedLine] = []
        self._left_out = 0
        self._newest = Progress([], 0)
        """Figures of the last report."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.own.encoding

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        place = self._where()
        if place is None:
            return self.own.write(text)
        beyond = self._begun.pop(place, "") + text
        room = LINES - len(self._lines)
        if room:
            *whole, rest = beyond.split("\n")
            self._lines += [PrintedLine(*place, line[:LINE_CHARACTERS]) for line in whole[:room]]
            if len(whole) <= room:
                if rest:
                    self._begun[place] = rest[:LINE_CHARACTERS]
                return len(text)
            beyond = "\n".join([*whole[room:], rest])
        self._left_out += beyond.count("\n")
        self.own.write(beyond)
        return len(text)

    def add(self, line: PrintedLine) -> bool:
        """Adds a record of a log to the next report; False where that has as many lines as it may."""
        if len(self._lines) >= LINES:
            self._left_out += 1
            return False
        self._lines.append(line)
        return True

    def flush(self) -> None:
        self.own.flush()

    def fileno(self) -> int:
        return self.own.fileno()

    def isatty(self) -> bool:
        return False

    def report(self, figures: Progress) -> Progress:
        """A progress report with the lines that were printed since the one before. Lines that have not ended wait."""
        self._newest = figures
        lines, left_out = self._lines, self._left_out
        self._lines, self._left_out = [], 0
        return (
            msgspec.structs.replace(figures, printed=lines, lines_left_out=left_out) if lines or left_out else figures
        )

    def last_report(self) -> Progress | None:
        """A report of what was printed since the last one, also of lines that have not ended, with the figures of that one;
        None if there is nothing. For a worker that has failed."""
        for place, text in self._begun.items():
            self._lines.append(PrintedLine(*place, text))
        self._begun = {}
        return self.report(self._newest) if self._lines or self._left_out else None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Stands in for standard output meanwhile."""
        sys.stdout = self
        try:
            yield
        finally:
            sys.stdout = self.own
