"""Asynchronous calls of one operator in an event loop of `asyncio`: attempts, the time-out, the answer.

Everything here runs in the thread of that loop. A worker has one (`runtime.worker.async_calls`); the simulator has a loop
whose time is virtual.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tailrace.api.functions import AsyncFunction
from tailrace.graph.operators import MapAsync
from tailrace.runtime.worker.lookups import Lookups
from tailrace.runtime.worker.table_readings import TableReadings
from tailrace.task.operators.failures.policy import user_line
from tailrace.task.operators.failures.spare import Spare

Numbers = tuple[int, ...]
CLOSE_SECONDS = 5.0
"""Seconds that the close of an operator waits for calls that were cancelled, and do not end."""


class Outcome(NamedTuple):
    """The outcome of one call."""

    numbers: Numbers
    results: list[Any]
    error: BaseException | None = None

    @property
    def where(self) -> str | None:
        """The user's line that raised; None for a call that has succeeded."""
        return None if self.error is None else user_line(self.error)


class OperatorCalls:
    """The calls of one operator.

    Invariant T24: each call has one outcome: the first of its result, the error of its last attempt, and the end of its
    time. All three come in one thread, and a call with an outcome is no longer in `_running`.
    """

    def __init__(self, operator: MapAsync, report: Callable[[Outcome], object]) -> None:
        """`report` is called with each outcome."""
        self._operator, self._report = operator, report
        fn = operator.fn
        self._fn: Callable[[Any], Any] = fn.call if isinstance(fn, AsyncFunction) else fn
        if operator.lookup is not None:
            self._fn = Lookups(self._fn, operator.lookup).call
        if operator.every is not None:
            self._fn = TableReadings(fn, operator.every).call
        self._seconds = None if operator.timeout is None else operator.timeout / 1_000_000
        self._running: dict[Numbers, asyncio.Task[None]] = {}
        self._left: set[asyncio.Task[None]] = set()
        """Tasks of calls whose time is over, which have not ended."""
        self._deadlines: deque[tuple[float, Numbers]] = deque()
        """Ends of the time of calls, the next one first: all have the same time."""
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, ctx: Any) -> None:
        """Opens the function."""
        await _run(self._operator.fn, "open", ctx)

    async def close(self) -> None:
        """Cancels all calls, and closes the function."""
        tasks = [*self._running.values(), *self._left]
        self._running = {}
        for task in tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        await _run(self._operator.fn, "close")

    def begin(self, numbers: Sequence[Numbers], records: Sequence[list[Any]]) -> None:
        """Begins calls, one for each item of `numbers`."""
        loop, running = asyncio.get_running_loop(), self._running
        for group, values in zip(numbers, records, strict=True):
            running[group] = loop.create_task(self._call(group, values))
        if self._seconds is not None:
            deadline = loop.time() + self._seconds
            self._deadlines.extend((deadline, group) for group in numbers)
            if self._timer is None:
                self._timer = loop.call_at(deadline, self._expire)

    async def _call(self, numbers: Numbers, values: list[Any]) -> None:
        """Makes a call, again if it fails and may be made again, and settles it."""
        operator, in_batches = self._operator, self._operator.batch is not None
        spare = Spare(values if in_batches else values[0])
        for left in reversed(range(operator.attempts)):
            try:
                found = await self._fn(spare.take())
                results = _one_for_each(found, len(values)) if in_batches else [found]
                self._settle(Outcome(numbers, results))
                return
            except asyncio.CancelledError:
                if numbers in self._running:  # not by the end of its time, nor by `close`
                    self._settle(Outcome(numbers, [], RuntimeError("the call was cancelled, and not by Tailrace")))
                raise
            except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
                if not left or not isinstance(error, Exception):
                    self._settle(Outcome(numbers, [], error))
                    return
            if operator.wait:
                await asyncio.sleep(operator.wait / 1_000_000)

    def _settle(self, outcome: Outcome) -> None:
        if self._running.pop(outcome.numbers, None) is not None:
            self._report(outcome)

    def _expire(self) -> None:
        """Ends the time of calls."""
        loop, deadlines = asyncio.get_running_loop(), self._deadlines
        self._timer = None
        now = loop.time()
        while deadlines and (deadlines[0][0] <= now or deadlines[0][1] not in self._running):
            numbers = deadlines.popleft()[1]
            task = self._running.get(numbers)
            if task is not None:
                self._settle(Outcome(numbers, [], TimeoutError(self._too_late())))
                self._left.add(task)
                task.add_done_callback(self._left.discard)
                task.cancel()
        if deadlines:
            self._timer = loop.call_at(deadlines[0][0], self._expire)

    def _too_late(self) -> str:
        calls = f" in up to {self._operator.attempts} calls" if self._operator.attempts > 1 else ""
        return f"no answer{calls} within timeout={self._seconds:g} s"


def _one_for_each(found: Any, count: int) -> list[Any]:
    """The results of a call with several records. Raises `TypeError` or `ValueError` if it is not one for each."""
    if isinstance(found, str | bytes | dict | set) or not hasattr(found, "__len__"):
        raise TypeError(
            f"a function with batch= returns a list with a result for each record, not {type(found).__name__}"
        )
    results = list(found)
    if len(results) != count:
        raise ValueError(f"the function returned {len(results)} results for {count} records")
    return results


async def _run(fn: Any, method: str, *args: Any) -> None:
    """Calls a method of a function object, which may be `async def`."""
    if isinstance(fn, AsyncFunction):
        done: Any = getattr(fn, method)(*args)
        if inspect.isawaitable(done):
            await done
