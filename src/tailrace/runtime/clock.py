"""The clocks of this machine, in int64 microseconds. They are read above the waterline only, and told to the machines."""

from __future__ import annotations

import time


def monotonic_micros() -> int:
    """The clock of a coordinator, which measures how long others take: it never goes back."""
    return time.monotonic_ns() // 1000


def unix_micros() -> int:
    """The clock of the tasks, and of what people read."""
    return time.time_ns() // 1000
