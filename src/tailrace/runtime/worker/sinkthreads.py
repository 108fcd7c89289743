"""The threads in which the sinks of a worker publish, forget and remove: one for each sink."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tailrace.api.connectors import Sink
from tailrace.log import fields, log
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.eventloop.storage_thread import StorageThread
from tailrace.task.contract.actions import CallSink
from tailrace.task.contract.events import SinkAnswered
from tailrace.task.contract.sinkcalls import call_sink, close_sink

END_SECONDS = 20.0
"""Seconds that the end of the worker waits for calls, as long as they come back."""


class SinkThreads:
    """Calls of sinks beside the loop of a worker. A thread lives as long as the process: a call of an earlier attempt that
    has not come back holds those of the next attempt back, so that no two calls of a sink overlap."""

    def __init__(self, loop: EventLoop) -> None:
        self.on_answer: Callable[[SinkAnswered], object] = lambda answer: None
        """A callback in the loop: a call has come back."""
        self._loop = loop
        self._threads: dict[str, StorageThread] = {}
        self._sinks: dict[str, Sink] = {}
        """The sink of the newest call in each thread."""

    def call(self, action: CallSink) -> None:
        """Makes a call, when those before it of the same sink have ended."""
        thread = self._threads.get(action.uid)
        if thread is None:
            thread = self._threads[action.uid] = StorageThread(self._loop, "tailrace-publish")
        before, self._sinks[action.uid] = self._sinks.get(action.uid), action.sink
        if before is not None and before is not action.sink:  # that of an earlier attempt
            thread.do(lambda: close_sink(before, _warn))
        thread.do(lambda: thread.post(self._call(action)))

    def _call(self, action: CallSink) -> Callable[[], object]:
        """Makes the call in the thread. Returns what the loop is to do."""
        answer = call_sink(action)
        if answer.error and action.method == "settled":  # what it was given comes again
            what, known = "sink %r: settled() raised %s\n%s", fields(uid=action.uid)
            log.warning(what, action.name or action.uid, answer.error, answer.traceback, extra=known)
        return lambda: self.on_answer(answer)

    def end(self) -> None:
        """Ends the threads, as far as their calls come back."""
        for uid, thread in self._threads.items():
            sink = self._sinks[uid]
            thread.do(lambda sink=sink: close_sink(sink, _warn))  # type: ignore[misc]
            thread.close(END_SECONDS)

    def end_process(self) -> None:
        """Ends this process, if a call has not come back at the end of the worker. Spark may use the process again, and the
        sink would publish beside another worker."""
        if any(thread.alive for thread in self._threads.values()):
            os.kill(os.getpid(), signal.SIGKILL)


def _warn(text: str) -> None:
    log.warning("%s", text)
