"""Drives one process function by hand: push records, move the watermark and the clock, read what comes out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, overload

import numpy as np

from tailrace.api.failure_options import FAIL, OnError, check_on_error
from tailrace.api.functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    Function,
    Instant,
    KeyedProcessFunction,
)
from tailrace.elements.batches import Rows
from tailrace.elements.timestamps import MAX_TIME, ceil_micros, floor_micros, micros
from tailrace.errors import ConfigError
from tailrace.graph.graph import Node
from tailrace.graph.operators import BroadcastProcess, CoProcess, KeyedProcess, Operator, Process, Selector
from tailrace.runtime.capsules.rerun import CapsuleHarness
from tailrace.state.format import OURS
from tailrace.task.channels.services import Services
from tailrace.task.contract.capsule import Capsule
from tailrace.task.contract.tuning import Tuning
from tailrace.task.operators.base import call_user
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.timer_firing import TimedTask
from tailrace.task.subtask.chain import RUNTIME

_ALL = 1 << 62


class Harness:
    """A function in the runtime that it has in a job, without the job. Made by `harness`."""

    def __init__(self, task: FunctionTask, services: Services) -> None:
        self._task = task
        self._services = services
        self._outputs: list[Any] = []
        self._side: dict[str, list[Any]] = {}
        task.out = lambda batch: self._outputs.extend(batch.to_rows().values)
        task.side_out = _SideOutputs(self._side)
        task.open()

    def push(self, value: Any, timestamp: Instant | None = None, *, input: int = 1) -> list[Any]:
        """Pushes one record into the function (`input` 1 or 2 for a `CoProcessFunction`; 2 is the broadcast stream of
        a `BroadcastProcessFunction`); returns what came out of it. Raises `ConfigError` for an input that the function does
        not have."""
        inputs = (1, 2) if isinstance(self._task.node.operator, CoProcess | BroadcastProcess) else (1,)
        if input not in inputs:
            name, has = type(self._task.fn).__name__, " and ".join(map(str, inputs))
            raise ConfigError(
                f"push(..., input={input!r}): {name} has input {has}; only a tr.CoProcessFunction has two"
            )
        times = None if timestamp is None else np.array([floor_micros(timestamp)], np.int64)
        operator = self._task.node.operator
        if isinstance(operator, BroadcastProcess) and operator.in_order and input == 2:
            value = False, value  # not late
        return self._fire(lambda: self._push(Rows([value], times), input - 1))

    def push_many(self, values: list[Any], timestamp: Instant | None = None) -> list[Any]:
        """Pushes records that come together, as one batch, into input 1; returns what came out of it."""
        times = None if timestamp is None else np.full(len(values), floor_micros(timestamp))
        return self._fire(lambda: self._push(Rows(list(values), times), 0))

    def _push(self, rows: Rows, port: int) -> None:
        self._task.process(rows, port)
        # As in a job, a timer that is set for a past time of the clock fires at once.
        self._task.fire_processing(self._services.now, _ALL)

    def advance_watermark(self, time: Instant) -> list[Any]:
        """Advances event time to `time`: timers due fire. Event time never goes back. Returns what came out."""
        reached = max(self._task.ctx.watermark_time, ceil_micros(time))
        return self._fire(lambda: self._task.advance(reached, _ALL))

    def advance_clock(self, time: Instant) -> list[Any]:
        """Advances processing time to `time`: timers due fire. Returns what came out."""
        self._services.now = max(self._services.now, ceil_micros(time))
        return self._fire(lambda: self._task.fire_processing(self._services.now, _ALL))

    def end_input(self) -> list[Any]:
        """Ends the input. The clock goes on until no processing-time timer is set (or they are dropped), event time
        reaches its end, and `finish` is called. Returns what came out."""
        return self._fire(self._end)

    def _end(self) -> None:
        self._task.input_ended()
        while True:
            due = self._task.next_processing()
            if due is not None:
                self._services.now = max(self._services.now, due)
                self._task.fire_processing(self._services.now, _ALL)
                continue
            self._task.advance(MAX_TIME, _ALL)
            if self._task.next_processing() is None:
                break
        self._task.finish()

    def _fire(self, act: Callable[[], object]) -> list[Any]:
        before = len(self._outputs)
        act()
        return self._outputs[before:]

    @property
    def outputs(self) -> list[Any]:
        """All records that came out so far."""
        return list(self._outputs)

    def side(self, tag: str) -> list[Any]:
        """All records that were emitted to a side output so far."""
        return list(self._side.get(tag, []))

    def state(self, name: str) -> dict[Any, Any]:
        """The content of a declared state by key; of a broadcast state its entries."""
        for one in self._task.own_state.handles:
            if one.copied and one.name == name:
                return dict(one.value)
        tables = {table.name: table for table in self._task.backend.tables.values() if table.kind not in OURS}
        if name not in tables:
            raise ConfigError(f"the function declares no state {name!r}; it has {sorted(tables)}")
        return dict(self._task.visible(tables[name]))

    @property
    def timers(self) -> dict[str, int]:
        """Number of timers that are set on each clock."""
        if not isinstance(self._task, TimedTask):
            return {"event": 0, "processing": 0}
        return {"event": len(self._task.event_timers), "processing": len(self._task.processing_timers)}

    def close(self) -> None:
        """Closes the function."""
        self._task.close()


class _SideOutputs(dict[str, Any]):
    """Side outputs that take records for every tag."""

    def __init__(self, kept: dict[str, list[Any]]) -> None:
        self._kept = kept

    def get(self, tag: str, default: Any = None) -> Any:
        return lambda batch: self._kept.setdefault(tag, []).extend(batch.values)


@overload
def harness(fn: Capsule) -> CapsuleHarness: ...
@overload
def harness(
    fn: Any,
    *,
    key: Selector | None = None,
    key2: Selector | None = None,
    now: Instant = 0.0,
    at_end: str = "wait",
    in_order: bool = False,
    on_error: OnError = FAIL,
) -> Harness: ...
def harness(
    fn: Any,
    *,
    key: Selector | None = None,
    key2: Selector | None = None,
    now: Instant = 0.0,
    at_end: str = "wait",
    in_order: bool = False,
    on_error: OnError = FAIL,
) -> Harness | CapsuleHarness:
    """A harness for a process function: keyed with `key` (and `key2` for a second input), else without keys. For a capsule
    of a failed call (`read_capsule`), a harness that makes the call again.

    `now` is where the processing-time clock starts. With `in_order` records wait for `advance_watermark`, as in
    `process(fn, in_order=True)`. `on_error` is the policy for records that fail; those that go aside are in `side(tag)`. The
    function is used as it is, not copied. Raises `ConfigError` for a function that needs a key, for `in_order` without
    keys, and for what is no policy.
    """
    if isinstance(fn, Capsule):
        return CapsuleHarness(fn)
    if in_order and (key is None or (key2 is None and isinstance(fn, CoProcessFunction))):
        raise ConfigError("in_order=True hands over the records of a key in order: give harness key= for each input")
    services = Services(random_factory=random.Random, job="harness", now=micros(now), tuning=Tuning(watches_state=True))
    operator: Operator
    if isinstance(fn, CoProcessFunction):
        operator = CoProcess(fn, (key, key2), at_end, in_order)  # type: ignore[arg-type]
    elif isinstance(fn, BroadcastProcessFunction):
        operator = BroadcastProcess(fn, key, at_end, in_order)  # type: ignore[arg-type]
    elif key is not None:
        operator = KeyedProcess(fn, key, at_end, in_order)  # type: ignore[arg-type]
    elif isinstance(fn, KeyedProcessFunction):
        raise ConfigError("a KeyedProcessFunction needs a key: harness(fn, key=lambda value: ...)")
    else:
        operator = Process(fn, at_end)  # type: ignore[arg-type]
    name = type(fn).__name__
    if isinstance(fn, Function):
        call_user(fn.prepare, what="prepare", operator=name, subtask=0)
    policy = check_on_error(on_error, "harness")
    node = Node(0, operator, name, name, True, 1, "rows", (), on_error=policy)
    task: Any = RUNTIME[type(operator)](node, OperatorContext(name, name, 0, 1, 0, services))
    return Harness(task, services)
