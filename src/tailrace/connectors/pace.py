"""The pace of sources that emit a given number of records per second."""

from __future__ import annotations

from tailrace.errors import ConfigError


class Pace:
    """The pace of one reader: `rate` records per second from its first read on. After a restore the reader is new, so it
    does not make up for lost time."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.started: float | None = None
        self.done = 0

    def allowance(self, limit: int, now: float) -> int:
        if self.rate is None:
            return limit
        if self.started is None:
            self.started = now
        return max(0, min(limit, int((now - self.started) * self.rate) + 1 - self.done))

    def next_at(self, now: float) -> float:
        if self.rate is None or self.started is None:
            return now + 0.01
        return self.started + self.done / self.rate


def check_rate(rate: float | None) -> float | None:
    """The rate in records per second, checked; None: no limit. Raises `ConfigError` for anything else."""
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf")
    ):
        raise ConfigError(f"rate must be a number of records per second above zero, not {rate!r}")
    return rate
