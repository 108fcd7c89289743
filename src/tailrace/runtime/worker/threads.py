"""The threads of a worker in which user code may wait beside its tasks, and by which readers wake them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from tailrace.log import log
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.task.contract.background import Beside

CLOSE_SECONDS = 10.0
"""Seconds that the close of an operator waits for its calls that are under way."""


class Waker:
    """A function that wakes a task, for any thread. What comes before the task is awake is one wake."""

    def __init__(self, loop: EventLoop, deliver: Callable[[], object]) -> None:
        self._loop, self._deliver = loop, deliver
        self._on_its_way = False

    def __call__(self) -> None:
        if not self._on_its_way:
            self._on_its_way = True
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        self._on_its_way = False  # first: a reader that wakes the task from here on has more than it will read
        self._deliver()


class CallThread:
    """A thread that makes the calls of one operator, one after the other."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], object]) -> None:
        """Adds a call."""
        self._calls.put(call)

    def end(self, seconds: float) -> bool:
        """Waits until all calls are made. False if that takes longer: the thread goes on by itself then."""
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class WorkerThreads(Beside):
    """The threads of one worker. `waker` may be called in any thread, all else in that of the worker."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._threads: dict[str, CallThread] = {}
        self.on_wake: Callable[[str], object] = lambda uid: None
        """A callback in the worker's thread: a reader of this source wakes its task."""

    def waker(self, uid: str) -> Callable[[], object]:
        return Waker(self._loop, lambda: self.on_wake(uid))

    def call(self, uid: str, call: Callable[[], object]) -> None:
        if uid not in self._threads:
            self._threads[uid] = CallThread(f"tailrace-{uid}")
        self._threads[uid].put(call)

    def wait(self, uid: str) -> None:
        thread = self._threads.pop(uid, None)
        if thread is not None and not thread.end(CLOSE_SECONDS):
            self.warn(f"operator {uid!r}: a call behind a complete checkpoint takes longer than {CLOSE_SECONDS:g} s")

    def warn(self, text: str) -> None:
        log.warning("%s", text)
