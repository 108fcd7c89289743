"""Tells sinks in the driver that something of theirs was published. What they do then (refresh a table, tell a catalogue)
may take its time and may fail: each sink has a thread of its own, and the job goes on meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable

from tailrace.log import log


class Announcer:
    """One per job. `told` are the sinks that want to know: the operator's name, and what to call."""

    def __init__(self, job: str, told: Iterable[tuple[str, Callable[[], object]]]) -> None:
        self._job = job
        self._sinks = [_Told(job, name, function) for name, function in told]

    def announce(self) -> None:
        """Something was published. Returns at once. A sink that is still busy gets one more call when it comes back,
        however much was published meanwhile."""
        for sink in self._sinks:
            sink.announce()

    def close(self, timeout: float) -> None:
        """Waits, at most `timeout` seconds, until all sinks have been told everything. Those that do not come back keep
        their threads, which do not keep the process."""
        deadline = time.monotonic() + timeout
        for sink in self._sinks:
            sink.news.put(False)
        for sink in self._sinks:
            sink.join(max(0.0, deadline - time.monotonic()))
            if timeout and sink.is_alive():
                log.warning(
                    "job %r: published() of sink %r has not returned; the job ends without it", self._job, sink.sink
                )


class _Told(threading.Thread):
    def __init__(self, job: str, sink: str, function: Callable[[], object]) -> None:
        super().__init__(name=f"tailrace-published-{job}", daemon=True)
        self.job = job
        self.sink = sink
        self.function = function
        self.news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """False is the last."""
        self.waiting = False
        """Whether news wait that the function has not begun with."""
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
                log.exception("job %r: published() of sink %r raised in the driver", self.job, self.sink)
