"""The clocks of this machine, in int64 microseconds. Only code above the waterline reads them, and passes times to the
machines."""

from __future__ import annotations

import time
from collections.abc import Callable

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The boot clock, which goes on while a machine is suspended, if the system has one."""


def monotonic_micros() -> int:
    """The clock of a coordinator, which measures how long others take: it never goes back."""
    return time.monotonic_ns() // 1000


def unix_micros() -> int:
    """The wall clock, which users and services set: it may jump. No wait depends on it."""
    return time.time_ns() // 1000


def boot_micros() -> int:
    """Microseconds since the machine was started, by a clock that is never set."""
    return time.clock_gettime_ns(_BOOT) // 1000


class JobClock:
    """The clock of a job, which its tasks, their timers and sources use, and `ctx.now()` returns. It begins as the wall
    clock of the driver at the start of the job, and goes on steadily, whatever happens to the wall clock of any machine.
    The simulator makes one from the clocks of each of its processes.

    Invariant K6: each step of a worker goes by the clock of its driver's job, which goes on steadily."""

    def __init__(self, wall: Callable[[], int] = unix_micros, steady: Callable[[], int] = boot_micros) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()

    def now(self) -> int:
        """The time of the job: microseconds since 1970, as far as the wall clock was right when the job began."""
        return self._steady() + self._offset

    def follow(self, now: int, late: int = 0) -> None:
        """Sets the time of the job: its driver's clock had `now` at most `late` microseconds ago.

        A wall clock that fits in between is that of the driver's machine, or is kept right by servers: it knows better than
        half of the delay. A clock that was set does not fit.
        """
        wall = self._wall()
        self._offset = (wall if now <= wall <= now + late else now + late // 2) - self._steady()
