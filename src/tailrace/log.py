"""The log of Tailrace: what goes wrong is told once, and not a thousand times."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

PAUSE = 60.0
"""Seconds between two warnings of a kind."""
PACED = {"paced": True}
"""`extra` of a warning that has pauses of its own."""
_MOST = 1_000
"""Kinds that are remembered at most."""


class Sparing(logging.Filter):
    """Lets one warning of a kind through in `PAUSE` seconds, and says with the next one how many there were. A kind is the
    text before its values are put in, and the first of these: the job, the file or the setting that it is about."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}
        """When one of a kind was let through last, and how many were not since then."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or getattr(record, "paced", False):
            return True
        now, args = self._clock(), record.args
        kind = (str(record.msg), str(args[0]) if isinstance(args, tuple) and args else "")
        told, held = self._kinds.pop(kind, (now - PAUSE, 0))
        if now - told < PAUSE:
            self._kinds[kind] = (told, held + 1)
            return False
        if len(self._kinds) >= _MOST:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = (now, 0)
        if held:
            record.msg = f"{record.getMessage()} ({held} more warnings of this kind since the last one)"
            record.args = None
        return True

    def forget(self) -> None:
        """The next warning of each kind is let through."""
        self._kinds.clear()


class LastResort(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error what no other handler takes, as Python's own `lastResort` does, which gives neither time nor
    level. Handlers of the program, on the root or on our logger, now or later, take its place."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and log.handlers == [self]:
            self.stream = sys.stderr  # of now: somebody may have put another one there
            super().emit(record)


log = logging.getLogger("tailrace")
sparing = Sparing()
log.addFilter(sparing)
log.addHandler(LastResort())
