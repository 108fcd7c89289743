"""The log of Tailrace. A warning or error that repeats is logged once in a while, not a thousand times. Records
have the fields of `FIELDS`, as far as they are known: handlers of users find them as attributes, and `JsonLines` writes
them."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tailrace.passwords import hide_passwords

PAUSE = 60.0
"""Seconds between two warnings, or errors, of a kind."""
FIELDS = ("job", "run", "attempt", "slot", "uid")
"""The fields of a record: the name and the id of the job, the number of its restarts, the number of the worker, and the uid
of the operator."""


def fields(*, paced: bool = False, **known: Any) -> dict[str, Any]:
    """`extra` of a record with these of the `FIELDS`. `paced`: the caller paces it, and `Sparing` always lets it
    through."""
    return {name: value for name, value in known.items() if value is not None} | ({"paced": True} if paced else {})


_MOST = 1_000
"""Maximum number of kinds that `Sparing` remembers."""


class Sparing(logging.Filter):
    """Filter that lets one warning or error of a kind through in `PAUSE` seconds. The next one reports how many were held
    back. A kind is the text before its values are put in, and the first value: the job, file or setting that it is about.
    No record that is let through shows a password of a URL."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}
        """Kind -> time of its last record that was let through, and how many were held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._is_due(record):
            return False
        if (text := record.getMessage()) != (shown := hide_passwords(text)):
            record.msg, record.args = shown, None
        if record.exc_info and not record.exc_text:
            record.exc_text = hide_passwords(logging.Formatter().formatException(record.exc_info))
        return True

    def _is_due(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or getattr(record, "paced", False):
            return True
        now, args = self._clock(), record.args
        kind = (str(record.msg), str(args[0]) if isinstance(args, tuple) and args else "")
        last, held = self._kinds.pop(kind, (now - PAUSE, 0))
        if now - last < PAUSE:
            self._kinds[kind] = (last, held + 1)
            return False
        if len(self._kinds) >= _MOST:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = (now, 0)
        if held:
            record.msg = f"{record.getMessage()} ({held} more of this kind since the last one)"
            record.args = None
        return True

    def forget(self) -> None:
        """Forgets all kinds: the next warning of each is let through."""
        self._kinds.clear()


class KeepingHandler(logging.Handler):
    """A handler that keeps records and shows none: `LastResort` goes on beside it."""


class JsonLines(logging.Formatter):
    """Formatter that writes a record as a line of JSON: its time, level, logger and message, the `FIELDS` that it has, and
    its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        made = {"time": at.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name}
        made |= {"message": hide_passwords(record.getMessage())}
        made |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            made["exception"] = hide_passwords(record.exc_text)
        return json.dumps(made, ensure_ascii=False, default=str)


class LastResort(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to standard error if there is no other one. Unlike Python's own `lastResort` it writes time and
    level. Handlers of the program, on the root or on the logger `tailrace`, now or later, take its place."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.write_json(False)

    def write_json(self, json_lines: bool) -> None:
        """Chooses lines of JSON, or of text."""
        text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.setFormatter(JsonLines() if json_lines else text)

    def emit(self, record: logging.LogRecord) -> None:
        others = [one for one in log.handlers if one is not self and not isinstance(one, KeepingHandler)]
        if not logging.getLogger().handlers and not others:
            self.stream = sys.stderr  # the one of now: the program may have replaced it
            super().emit(record)


log = logging.getLogger("tailrace")
sparing = Sparing()
log.addFilter(sparing)
last_resort = LastResort()
log.addHandler(last_resort)
