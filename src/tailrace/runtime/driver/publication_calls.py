"""Calls of sinks in the driver after something of theirs was published. A sink's function (it refreshes a table, or
notifies a catalogue) may take its time and may fail: each sink has a thread of its own, and the job goes on meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable

from tailrace.log import fields, log


class Announcer:
    """The announcer of one job. `calls`: the sinks to call, each with the operator's name and the function."""

    def __init__(self, job: str, calls: Iterable[tuple[str, Callable[[], object]]]) -> None:
        self._job = job
        self._sinks = [_Announcement(job, name, function) for name, function in calls]

    def announce(self) -> None:
        """Announces a publication to all sinks. Returns at once. A sink that is still busy gets one more call when it
        comes back, whatever the number of publications meanwhile."""
        for sink in self._sinks:
            sink.announce()

    def close(self, timeout: float) -> None:
        """Waits, at most `timeout` seconds, until all sinks have handled all announcements. Sinks that do not come back
        keep their threads, which do not keep the process."""
        deadline = time.monotonic() + timeout
        for sink in self._sinks:
            sink.news.put(False)
        for sink in self._sinks:
            sink.join(max(0.0, deadline - time.monotonic()))
            if timeout and sink.is_alive():
                log.warning(
                    "job %r: published() of sink %r has not returned; the job ends without it",
                    self._job,
                    sink.sink,
                    extra=fields(job=self._job),
                )


class _Announcement(threading.Thread):
    def __init__(self, job: str, sink: str, function: Callable[[], object]) -> None:
        super().__init__(name=f"tailrace-published-{job}", daemon=True)
        self.job = job
        self.sink = sink
        self.function = function
        self.news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for an announcement; False ends the thread."""
        self.waiting = False
        """True while an announcement waits that the function has not begun with."""
        self.start()

    def announce(self) -> None:
        if not self.waiting:
            self.waiting = True
            self.news.put(True)

    def run(self) -> None:
        while self.news.get():
            self.waiting = False  # later publications get another call
            try:
                self.function()
            except Exception:
                what, known = "job %r: published() of sink %r raised in the driver", fields(job=self.job)
                log.exception(what, self.job, self.sink, extra=known)
