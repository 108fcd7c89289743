"""The clocks of this machine, in int64 microseconds. They are read above the waterline only, and told to the machines."""

from __future__ import annotations

import time
from collections.abc import Callable

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on also while a machine is suspended, where there is such a clock."""


def monotonic_micros() -> int:
    """The clock of a coordinator, which measures how long others take: it never goes back."""
    return time.monotonic_ns() // 1000


def unix_micros() -> int:
    """The wall clock, which people set: it may jump. Nobody waits by it."""
    return time.time_ns() // 1000


def boot_micros() -> int:
    """Microseconds since the machine was started: a clock that nobody sets."""
    return time.clock_gettime_ns(_BOOT) // 1000


class JobClock:
    """The clock of a job: what its tasks, their timers and sources go by, and what `ctx.now()` gives. It begins as the wall
    clock of the driver at the start of the job, and goes on steadily, whatever becomes of the wall clock of any machine.
    The simulator makes one of the clocks of each of its processes.

    Invariant K6: each step of a worker goes by the clock of its driver's job, which goes on steadily."""

    def __init__(self, wall: Callable[[], int] = unix_micros, steady: Callable[[], int] = boot_micros) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()

    def now(self) -> int:
        """Microseconds since 1970, as far as the wall clock was right when the job began."""
        return self._steady() + self._offset

    def follow(self, now: int, late: int = 0) -> None:
        """It was this time for the job, by the clock of its driver, at most `late` microseconds ago.

        A wall clock that fits in between is that of the driver's machine, or is kept right by servers: it knows better than
        half of the delay. One that somebody has set does not fit.
        """
        wall = self._wall()
        self._offset = (wall if now <= wall <= now + late else now + late // 2) - self._steady()
