"""Where tumbling and sliding windows begin and end."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.elements.calendars import FIRST, LAST, Calendar
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
from tailrace.graph.operators import Window, WindowSpec

Times = np.ndarray[Any, Any]


class WindowTimes:
    """Windows of one size and slide, or windows of the calendar."""

    def __init__(self, spec: WindowSpec | Window) -> None:
        self._spec = spec
        self.calendar = None if spec.calendar is None else Calendar(spec.calendar)

    def starts(self, times: Times) -> list[Times]:
        """Starts of the windows of each record: of its last window, then of the one before, …: `size / slide` arrays. Where
        that is no whole number, the record may be behind the end of the last of these."""
        if self.calendar is not None:
            return [self.calendar.starts(times)]
        # The offset is subtracted last, and only what is left of it: the difference always fits 64 bits.
        passed, shift = times % self._spec.slide, self._spec.offset % self._spec.slide
        last = times - (passed if not shift else (passed - shift) % self._spec.slide)
        count = -(-self._spec.size // self._spec.slide)
        return [last - i * self._spec.slide for i in range(count)]

    def ends(self, starts: Times) -> Times:
        """Ends of the windows that begin at these times."""
        return starts + self._spec.size if self.calendar is None else self.calendar.ends(starts)

    def check_calendar(self, *times: int) -> None:
        """Raises `OverflowError` for a time for which there is no calendar, where one is needed."""
        if self.calendar is not None and not all(FIRST <= time < LAST for time in times):
            raise OverflowError(
                "a record's timestamp is not in the years from 2 to 9997, and there is no calendar for it"
            )


def check_room(room: int, *times: int) -> None:
    """Raises `OverflowError` for a timestamp so near to the ends of time that its windows, in this `room` around it, would
    lie beyond them."""
    for time in times:
        if not MIN_TIME + room < time < LAST_TIME - room:
            raise OverflowError(
                f"a record's timestamp, {time} microseconds since 1970, is too near the end of the range of timestamps"
            )
