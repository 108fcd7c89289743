"""Asynchronous calls in a simulation: each is made at once, in this thread, in an event loop whose time is virtual. Its
answer comes when that time has passed in the simulation, and a delay of chance."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from tailrace.graph.operators import MapAsync
from tailrace.runtime.worker.operator_calls import OperatorCalls, Outcome
from tailrace.task.contract.actions import BeginCalls
from tailrace.task.contract.calls import Answer


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait where only time is awaited: its clock jumps. It waits for files and threads, and
    then its clock goes with the real one."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._passed

    @property
    def awaits_others(self) -> bool:
        """True if files other than its own are watched, or threads work for it."""
        return len(self._selector.get_map()) > 1 or self._default_executor is not None  # type: ignore[attr-defined]

    def jump(self, seconds: float) -> None:
        """Moves the clock on."""
        self._passed += seconds


class _Jumping(selectors.DefaultSelector):
    """A selector that moves the clock of its loop on instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.awaits_others:
            found = super().select(timeout)
        else:
            found = super().select(0)
        if not found and timeout:
            self._loop.jump(timeout)
        return found


class SimulatedCalls:
    """The asynchronous calls of one simulated worker."""

    def __init__(self) -> None:
        self._loop: VirtualLoop | None = None
        self._operators: dict[str, OperatorCalls] = {}
        self._made: asyncio.Future[Outcome] | None = None
        """The outcome of the call that is made now."""
        self._answered: dict[str, list[Outcome]] = {}
        self._errors: dict[tuple[str, int], BaseException] = {}

    def open(self, uid: str, operator: MapAsync, ctx: Any) -> None:
        """Opens the function of an operator. Raises what its `open` raises."""
        calls = self._operators[uid] = OperatorCalls(operator, self._note)
        self._answered[uid] = []
        self._run(calls.open(ctx))

    def close(self, uid: str) -> None:
        """Closes the function of an operator. Raises what that raises."""
        found = self._operators.pop(uid, None)
        if found is not None:
            self._run(found.close())
        if not self._operators and self._loop is not None:
            self._loop.close()
            self._loop = None

    def make(self, action: BeginCalls, answer: Callable[[float, Callable[[], bool]], None]) -> None:
        """Makes calls. For each, `answer` is called with the seconds that it takes, and with a function to be called when
        they have passed: it delivers the answer, and returns False if the operator was closed meanwhile."""
        found = self._operators.get(action.uid)
        if found is None:
            return
        answered = self._answered[action.uid]
        for numbers, records in zip(action.numbers, action.records, strict=True):
            seconds, outcome = self._outcome(found, numbers, records)
            answer(seconds, partial(self._deliver, action.uid, answered, outcome))

    def _outcome(self, calls: OperatorCalls, numbers: tuple[int, ...], records: list[Any]) -> tuple[float, Outcome]:
        loop = self._event_loop()
        self._made = made = loop.create_future()

        async def make() -> Outcome:
            calls.begin([numbers], [records])
            return await made

        begun = loop.time()
        outcome = loop.run_until_complete(make())
        return loop.time() - begun, outcome

    def _note(self, outcome: Outcome) -> None:
        assert self._made is not None
        self._made.set_result(outcome)

    def _deliver(self, uid: str, answered: list[Outcome], outcome: Outcome) -> bool:
        if self._answered.get(uid) is not answered or uid not in self._operators:
            return False
        answered.append(outcome)
        return True

    def take(self, uid: str, count: int) -> list[Answer]:
        """Takes answers that were delivered."""
        answered = self._answered[uid]
        taken, answered[:count] = answered[:count], []
        self._errors.update({(uid, one.numbers[0]): one.error for one in taken if one.error is not None})
        return [Answer(one.numbers, one.results, one.where) for one in taken]

    def raise_error(self, uid: str, number: int) -> NoReturn:
        """Raises the error of a failed call."""
        raise self._errors.pop((uid, number))

    def _run(self, work: Any) -> None:
        self._event_loop().run_until_complete(work)

    def _event_loop(self) -> VirtualLoop:
        if self._loop is None:
            self._loop = VirtualLoop()
        return self._loop
