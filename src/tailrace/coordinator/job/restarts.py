"""The restart strategies: when a job that failed is started again, and when no more. All times are int64 microseconds.

`failures` decides before which failures a strategy decides at all; `coordinator.course` calls both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Never:
    """No restarts: a job that fails stays failed."""

    def delay(self, now: int) -> int | None:
        """The pause before the restart, after a failure at `now`; None for no restart."""
        return None


@dataclass
class Fixed:
    """`attempts` restarts over the life of the job, each after `pause`."""

    attempts: int
    pause: int
    used: int = 0

    def delay(self, now: int) -> int | None:
        """The pause, as in `Never.delay`."""
        self.used += 1
        return self.pause if self.used <= self.attempts else None


@dataclass
class Exponential:
    """Restarts without end, each after `multiplier` times the pause before; from `initial` again after a failure-free
    `reset_after`."""

    initial: int
    maximum: int
    multiplier: float
    reset_after: int
    attempts: int | None = None
    _pause: float = 0.0
    _last: int | None = None
    _used: int = 0

    def delay(self, now: int) -> int | None:
        """The pause, as in `Never.delay`."""
        if self._last is None or now - self._last >= self.reset_after:
            self._pause, self._used = float(self.initial), 0
        else:
            self._pause = min(float(self.maximum), self._pause * self.multiplier)
        self._last = now
        self._used += 1
        if self.attempts is not None and self._used > self.attempts:
            return None
        return int(self._pause)


@dataclass
class Rate:
    """Restarts, each after `pause`, as long as there are at most `failures` failures within `interval`."""

    failures: int
    interval: int
    pause: int
    _at: deque[int] = field(default_factory=deque)

    def delay(self, now: int) -> int | None:
        """The pause, as in `Never.delay`."""
        self._at.append(now)
        while self._at and now - self._at[0] > self.interval:
            self._at.popleft()
        return self.pause if len(self._at) <= self.failures else None


Strategy = Never | Fixed | Exponential | Rate
