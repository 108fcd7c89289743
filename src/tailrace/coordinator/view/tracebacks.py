"""Tracebacks of user code, as text."""

from __future__ import annotations

import re

_FRAME = re.compile(r'  File "(.+)", line (\d+)')


def line_of(text: str) -> str | None:
    """The last line of the user's program in a text with a traceback: its file, number and text."""
    found = None
    lines = text.splitlines()
    for at, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None:
            code = lines[at + 1].strip() if at + 1 < len(lines) and lines[at + 1].startswith("    ") else ""
            found = f"{frame[1]}:{frame[2]}" + (f": {code}" if code else "")
    return found
