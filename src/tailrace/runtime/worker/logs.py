"""Records that user code logs in a worker: they go to the program that has started the job, within the bounds of what is
printed there, and stay in the worker's own output as well.

Only the steps that the worker takes itself count, and warnings of its own. Of one kind there is one record in a second, with
the number of those that were held back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from tailrace.passwords import hide_passwords
from tailrace.protocol.deployment import PrintedLine
from tailrace.runtime.worker.printing import LINE_CHARACTERS, Place

PAUSE = 1.0
"""Seconds between two records of a kind."""
TRACE_CHARACTERS = 4_000
"""Characters of a record with a traceback, at most."""
_MOST = 1_000
"""Kinds that are remembered, at most."""
Kind = tuple[str, int, str, int]
"""A logger, a level, and the file and line of the call."""


class WorkerLog(logging.Handler):
    """A handler of all records of a worker's own thread. `where` gives the task whose step is under way, or None; `send`
    takes the record as a line."""

    def __init__(
        self,
        slot: int,
        where: Callable[[], Place | None],
        send: Callable[[PrintedLine], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._slot, self._where, self._send, self._clock = slot, where, send, clock
        self._thread = threading.get_ident()
        self._kinds: dict[Kind, tuple[float, int]] = {}
        """Kind -> the time of its last record that was sent, and how many were held back since."""

    def emit(self, record: logging.LogRecord) -> None:
        place = self._where()
        own = record.name.partition(".")[0] == "tailrace" and record.levelno >= logging.WARNING
        if record.thread == self._thread and (place is not None or own):
            held = self._held_back(record)
            if held is not None:
                vertex, subtask = (-1, self._slot) if place is None else place
                self._send(PrintedLine(vertex, subtask, _text(record, held), record.levelno, record.name))

    def _held_back(self, record: logging.LogRecord) -> int | None:
        """The number of records of this kind that were held back before this one; None if it is held back as well."""
        kind, now = (record.name, record.levelno, record.pathname, record.lineno), self._clock()
        last, held = self._kinds.pop(kind, (now - PAUSE, 0))
        if now - last < PAUSE:
            self._kinds[kind] = last, held + 1
            return None
        if len(self._kinds) >= _MOST:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = now, 0
        return held

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Handles the records of the process meanwhile. Where nothing else handles them, warnings still go to standard
        error, as Python has it."""
        root = logging.getLogger()
        beside = _Beside()
        root.addHandler(self)
        root.addHandler(beside)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.removeHandler(beside)


class _Beside(logging.Handler):
    """A handler in place of Python's last resort, which only works where there is no handler at all."""

    def emit(self, record: logging.LogRecord) -> None:
        handlers = logging.getLogger().handlers
        ours = [one for one in handlers if isinstance(one, WorkerLog | _Beside)]
        last, own = logging.lastResort, record.name.partition(".")[0] == "tailrace"
        if last is None or own or record.levelno < last.level or len(ours) < len(handlers):
            return
        if next(one for one in ours if isinstance(one, _Beside)) is self:  # tests have several workers in one process
            last.handle(record)


def _text(record: logging.LogRecord, held: int) -> str:
    """A record as text, with the traceback that it has."""
    try:
        text = record.getMessage()
    except Exception as error:  # as `logging` has it: a wrong call of its fails nothing
        text = f"{record.msg!r} ({type(error).__name__}: {error})"
    text = hide_passwords(text)[:LINE_CHARACTERS]
    text += f" ({held:,} more of this kind since the last one)" if held else ""
    if record.exc_info:
        trace = hide_passwords(logging.Formatter().formatException(record.exc_info))
        text = f"{text}\n{trace[-TRACE_CHARACTERS:]}"
    return text.encode(errors="backslashreplace").decode()
