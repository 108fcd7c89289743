"""The threads of a job's worker slots. All are started with the job: from Python 3.12 on a process starts no thread any more
once its main program has ended, and a job that the exit waits for may still have to launch a worker again."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], Callable[[], object]]
"""The work of a thread. It returns a call to make once the thread counts as free again."""


class SlotThreads:
    """Runs each piece of work in a thread that does nothing else meanwhile: a free thread, else a new one. Where the
    process can start no more threads, work waits for the next thread that becomes free. That is soon: a thread is busy
    with a Spark job that has been cancelled, or whose end the work follows."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._todo: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two below
        self._threads: list[threading.Thread] = []
        self._free = 0
        """Threads without work, less the work that waits. Below zero, work waits for a thread."""
        try:
            for _ in range(count):
                self._start()
        except BaseException:  # the machine gives no more threads
            self.close(0)
            raise

    def run(self, work: Work) -> None:
        """Queues `work` and returns at once. Any thread may call this."""
        with self._lock:
            self._free -= 1
            wanting = self._free < 0
        if wanting:
            with contextlib.suppress(RuntimeError):  # the interpreter shuts down: see above
                self._start()
        self._todo.put(work)

    def close(self, timeout: float) -> None:
        """Ends the threads once they are idle. Waits at most `timeout` seconds for them."""
        deadline = time.monotonic() + timeout
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._todo.put(None)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._serve, name=f"tailrace-slot-{self._name}-{number}", daemon=True)
        thread.start()
        with self._lock:
            self._threads.append(thread)
            self._free += 1

    def _serve(self) -> None:
        while (work := self._todo.get()) is not None:
            after = work()
            with self._lock:
                self._free += 1
            after()
