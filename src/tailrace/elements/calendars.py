"""Windows of the calendar: days, weeks and months of a time zone, in which some days have 23 or 25 hours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import numpy as np

from tailrace.elements.timestamps import MAX_TIME, MIN_TIME, micros

Array = np.ndarray[Any, np.dtype[np.int64]]
Unit = Literal["day", "month"]
_MONDAY = date(1970, 1, 5)
FIRST, LAST = micros(datetime(2, 1, 1, tzinfo=UTC)), micros(datetime(9998, 1, 1, tzinfo=UTC))
"""The times from which and up to which there are windows of the calendar."""


@dataclass(frozen=True)
class CalendarWindows:
    """Windows of `count` days or months of a zone. Days are counted from a Monday, months from a January."""

    unit: Unit
    count: int
    zone: str

    def __str__(self) -> str:
        return f"{self.count} {self.unit}{'s' if self.count > 1 else ''} in {self.zone}"


class Calendar:
    """The boundaries of windows of the calendar, as far as they were needed."""

    def __init__(self, windows: CalendarWindows) -> None:
        self._windows = windows
        self._zone = ZoneInfo(windows.zone)
        self._first = self._number_at(0)
        """Number of the window that begins at the first boundary."""
        self._bounds = np.array([self._boundary(self._first), self._boundary(self._first + 1)], np.int64)

    def starts(self, times: Array) -> Array:
        """The start of the window of each time."""
        self._reach(int(times.min()), int(times.max()))
        found: Array = self._bounds[np.searchsorted(self._bounds, times, "right") - 1]
        return found

    def ends(self, starts: Array) -> Array:
        """The end of each window that begins at one of these times."""
        if not len(starts):
            return starts
        self._reach(int(starts.min()), int(starts.max()))
        found: Array = self._bounds[np.searchsorted(self._bounds, starts, "right")]
        return found

    def newest_over(self, time: int) -> int:
        """The start of the newest window whose last microsecond is not after a time."""
        if time < FIRST:
            return MIN_TIME
        if time >= LAST:
            return MAX_TIME
        start = int(self.starts(np.array([time + 1]))[0])
        return int(self.starts(np.array([start - 1]))[0])

    def _reach(self, first: int, last: int) -> None:
        """Finds the boundaries around some times."""
        bounds = self._bounds
        if bounds[0] <= first and last < bounds[-1]:
            return
        low = min(self._first, self._number_at(first) - 1)
        high = max(self._first + len(bounds) - 1, self._number_at(last) + 2)
        before = [self._boundary(n) for n in range(low, self._first)]
        behind = [self._boundary(n) for n in range(self._first + len(bounds), high + 1)]
        self._first, self._bounds = (
            low,
            np.concatenate([np.array(before, np.int64), bounds, np.array(behind, np.int64)]),
        )

    def _number_at(self, time: int) -> int:
        """The number of the window of a time."""
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).astimezone(self._zone)
        if self._windows.unit == "month":
            return (local.year * 12 + local.month - 1) // self._windows.count
        return (local.toordinal() - _MONDAY.toordinal()) // self._windows.count

    def _boundary(self, number: int) -> int:
        """The moment at which a window begins. A midnight that a change of clocks leaves out is the moment of the change."""
        at = number * self._windows.count
        day = date(at // 12, at % 12 + 1, 1) if self._windows.unit == "month" else _MONDAY + timedelta(at)
        return micros(datetime(day.year, day.month, day.day, tzinfo=self._zone))
