"""Sources that give so many records a second."""

from __future__ import annotations

from tailrace.errors import ConfigError


class Pace:
    """How many records may have been read by now, at `rate` per second from the first read on: of this reader, so after a
    restore nothing is caught up on."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.started: float | None = None
        self.done = 0

    def allowed(self, limit: int, now: float) -> int:
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
    """The rate. Raises `ConfigError` for what is none."""
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf")
    ):
        raise ConfigError(f"rate must be a number of records per second above zero, not {rate!r}")
    return rate
