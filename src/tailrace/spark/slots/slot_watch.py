"""The task slots that there are for an elastic job, looked at again and again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tailrace.runtime.driver.slot_provider import Room

LOOK_SECONDS = 1.0
CLOSE_SECONDS = 2.0


class RoomWatch(threading.Thread):
    """A thread that reports the number of task slots that a job may have, each second until `close`. `count` gives it; None
    where Spark does not report it."""

    def __init__(self, count: Callable[[], int | None], room: Room) -> None:
        super().__init__(name="tailrace-rooms", daemon=True)
        self._count, self._room = count, room
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with contextlib.suppress(Exception):  # Spark is gone
                found = self._count()
                if found is not None and not self._closed.is_set():
                    self._room(found)

    def close(self) -> None:
        """Ends the reports. A look that Spark does not return from is left running in its thread."""
        self._closed.set()
        if self.ident is not None:
            self.join(CLOSE_SECONDS)
