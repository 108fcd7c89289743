"""Keys that are pressed in a terminal while something is shown there."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def keys_pressed() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key, and returns what was pressed. Keys are not shown meanwhile. Where
    standard input is no terminal, it only waits."""
    if not sys.stdin.isatty():
        yield _pause
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read_keys(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 100).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield read_keys
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pause(seconds: float) -> str:
    time.sleep(seconds)
    return ""
