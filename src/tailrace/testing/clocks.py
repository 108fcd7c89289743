"""The clocks of a simulated process, which work as in production. A fault may set the wall clock of its machine."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.runtime.eventloop.clock import JobClock

DRIVER = -1
"""The machine of all drivers. A worker's machine has the number of the slot or standby for which the worker was
started."""
HOURS = 3_600_000_000
"""Microseconds of an hour."""


class Clocks:
    """The clocks of one process: a steady one, by which a coordinator waits, the wall clock of its machine, and the clock
    of its job, made of both."""

    def __init__(self, steady: Callable[[], int], wall: Callable[[], int]) -> None:
        self.steady, self.wall = steady, wall
        self.job = JobClock(wall, steady)

    @property
    def ahead(self) -> int:
        """Microseconds by which the clock of the job is ahead of the right time."""
        return self.job.now() - self.steady()
