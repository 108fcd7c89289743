"""Readings of a table by a function that blocks: in a thread beside that of the calls, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tailrace.api.calls.refreshes import overdue

PATIENCE = 1.0
"""Seconds for which a call waits for a reading. The result of one that takes longer is that of a later call: event time
waits for calls."""
LONG = 60.0
"""Seconds after which a reading that has not ended counts as one that has failed, unless `every` is longer."""


class TableReadings:
    """The readings of one operator. Its calls are beats of the clock."""

    def __init__(self, read: Callable[[], Any], every: int) -> None:
        """`every`: the time between the beginnings of two readings, in microseconds."""
        self._read, self._every = read, every / 1_000_000
        self._begun: float | None = None
        self._reading: asyncio.Future[Any] | None = None
        self._overdue_at = 0.0
        """The time at which the reading under way counts as one that has failed."""

    async def call(self, now: float) -> tuple[float, Any] | None:
        """The time at which a reading has begun, and its result, once; None while there is no new one."""
        if self._reading is None:
            if self._begun is not None and now < self._begun + self._every:
                return None
            self._begun, self._overdue_at = now, now + max(LONG, self._every)
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
        reading = self._reading
        await asyncio.wait({reading}, timeout=PATIENCE)
        if self._reading is not reading:
            return None
        assert self._begun is not None
        if not reading.done():
            if now < self._overdue_at:
                return None
            self._overdue_at = now + max(LONG, self._every)
            return now, overdue(now - self._begun)
        self._reading = None
        return self._begun, reading.result()
