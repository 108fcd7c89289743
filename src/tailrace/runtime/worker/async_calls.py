"""Asynchronous calls of a worker: a thread with one event loop of `asyncio`, for all of its operators."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

from tailrace.graph.operators import MapAsync
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.worker.operator_calls import OperatorCalls, Outcome
from tailrace.runtime.worker.sinkthreads import SinkThreads
from tailrace.runtime.worker.threads import WorkerThreads
from tailrace.task.contract.actions import BeginCalls
from tailrace.task.contract.calls import Answer
from tailrace.task.contract.outside import Outside


class Inbox:
    """Outcomes of the calls of one operator, on their way from the thread of the calls to that of the worker."""

    def __init__(self, wake: Callable[[Inbox], object]) -> None:
        self._wake = wake
        self.outcomes: deque[Outcome] = deque()
        self.reported = 0
        """Number of outcomes of which the worker knows."""
        self.errors: dict[int, BaseException] = {}
        """Errors of failed calls that were taken, by the first records of the calls."""
        self._woken = False

    def add(self, outcome: Outcome) -> None:
        """Adds an outcome, in the thread of the calls. What comes in one turn of its loop is reported at once."""
        self.outcomes.append(outcome)
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._woken = False
        self._wake(self)

    def news(self) -> int:
        """Number of outcomes that were not reported, which count as reported from now on."""
        known, self.reported = self.reported, len(self.outcomes)
        return self.reported - known

    def take(self, count: int) -> list[Answer]:
        """Takes outcomes, in the order in which they came."""
        answers = []
        for _ in range(count):
            one = self.outcomes.popleft()
            if one.error is not None:
                self.errors[one.numbers[0]] = one.error
            answers.append(Answer(one.numbers, one.results, one.where))
        self.reported -= count
        return answers

    def raise_error(self, number: int) -> NoReturn:
        """Raises the error of a failed call."""
        raise self.errors.pop(number)


class WorkerCalls:
    """The asynchronous calls of one worker. Its methods are called in the worker's thread."""

    def __init__(self, loop: EventLoop) -> None:
        self._worker_loop = loop
        self.on_answers: Callable[[str, int], object] = lambda uid, count: None
        """A callback in the worker's thread: so many more calls of an operator were answered."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._operators: dict[str, tuple[OperatorCalls, Inbox]] = {}
        self.outside = Outside()
        """The world outside of the worker, with these calls."""
        self.outside.calls = self
        self.outside.beside = self.threads = WorkerThreads(loop)
        self.sinks = SinkThreads(loop)
        """The calls of sinks."""

    def open(self, uid: str, operator: MapAsync, ctx: Any) -> None:
        """Opens the function of an operator. Raises what its `open` raises."""
        inbox = Inbox(lambda inbox: self._worker_loop.call_soon_threadsafe(partial(self._report, uid, inbox)))
        calls = OperatorCalls(operator, inbox.add)
        self._operators[uid] = calls, inbox
        self._wait_for(calls.open(ctx))

    def close(self, uid: str) -> None:
        """Cancels all calls of an operator, and closes its function. Raises what that raises."""
        found = self._operators.pop(uid, None)
        if found is not None:
            self._wait_for(found[0].close())

    def begin(self, action: BeginCalls) -> None:
        """Begins calls."""
        found = self._operators.get(action.uid)
        if found is not None:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(found[0].begin, action.numbers, action.records)

    def take(self, uid: str, count: int) -> list[Answer]:
        """Takes answers that were reported."""
        return self._operators[uid][1].take(count)

    def raise_error(self, uid: str, number: int) -> NoReturn:
        """Raises the error of a failed call."""
        self._operators[uid][1].raise_error(number)

    def end(self) -> None:
        """Ends the thread. Its operators are closed."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)

    def _report(self, uid: str, inbox: Inbox) -> None:
        found = self._operators.get(uid)
        if found is not None and found[1] is inbox:  # else the operator was closed
            count = inbox.news()
            if count:
                self.on_answers(uid, count)

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._event_loop()).result()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop in its thread, which begins with the first operator."""
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(loop,), name="tailrace-calls", daemon=True)
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
