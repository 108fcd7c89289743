"""The calls that `ForeachBatch` sinks make in the program: in a thread for each sink, beside the job."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from tailrace.errors import error_text
from tailrace.runtime.driver.user_requests import FailJob, Runner
from tailrace.spark.streaming.foreach import ForeachBatch


class _Caller(threading.Thread):
    """The thread of one sink. It looks for what was published each time that it is woken."""

    def __init__(self, job: str, name: str, sink: ForeachBatch) -> None:
        super().__init__(name=f"tailrace-foreach-{job}", daemon=True)
        self.operator, self.sink = name, sink
        self.news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for something that was published; False ends the thread."""
        self.runner: Runner | None = None
        self.stopped = False
        self.failure: str | None = None

    def run(self) -> None:
        while self.news.get():
            try:
                self.sink.call(lambda: not self.stopped)
            except Exception as error:
                number = "" if self.sink.calls is None else f", in call {self.sink.calls}"
                self.failure = (
                    f"{self.operator}: its function raised {error_text(error)}{number}\n{traceback.format_exc()}"
                )
                if self.runner is not None:
                    self.runner.wish(FailJob(self.failure))
                return


class ForeachCalls:
    """The calls of a job's sinks. The first that fails fails the job."""

    def __init__(self, job: str, sinks: Sequence[tuple[str, ForeachBatch]]) -> None:
        self._callers = [_Caller(job, name, sink) for name, sink in sinks]

    def start(self, runner: Runner) -> None:
        """Begins, with what an earlier run has left."""
        for caller in self._callers:
            caller.runner = runner
            caller.start()
        self.announce()

    def announce(self) -> None:
        """Begins the calls for what was published since. Returns at once."""
        for caller in self._callers:
            caller.news.put(True)

    def finish(self) -> str | None:
        """Waits for all calls. Returns the reason why one of them has failed."""
        self.announce()
        for caller in self._callers:
            caller.news.put(False)
        for caller in self._callers:
            if caller.ident is not None:
                caller.join()
        return next((caller.failure for caller in self._callers if caller.failure is not None), None)

    def stop(self) -> None:
        """Ends the calls behind those that are under way. Returns at once."""
        for caller in self._callers:
            caller.stopped = True
            caller.news.put(False)

    def progress(self) -> dict[str, Any]:
        """The number of the newest call of each sink that has returned, by name."""
        return {caller.operator: {"number": caller.sink.last} for caller in self._callers}
