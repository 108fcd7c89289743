"""Process functions at run time: plain, keyed and on two inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.api.functions import DECLARE_STATE, ProcessFunction
from tailrace.api.restore.kinds import takes_timers
from tailrace.elements.batches import Batch
from tailrace.graph.graph import Node
from tailrace.graph.operators import CoProcess, KeyedProcess, Process, Selector
from tailrace.task.channels.key_readers import FieldReader, key_reader, settled_keys
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.timer_firing import TimedTask


class ProcessTask(FunctionTask):
    """A process function without keys: a `ProcessFunction` or a plain `f(value, ctx)`."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, Process)
        super().__init__(node, ctx, as_process_function(node.operator.fn), node.operator.at_end)

    def process(self, batch: Batch, port: int) -> None:
        self.run(self.gives.process, batch.to_rows(), None)


class KeyedProcessTask(TimedTask):
    """A `KeyedProcessFunction`, or a plain `f(value, ctx)` on a keyed stream."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, KeyedProcess)
        super().__init__(node, ctx, as_process_function(node.operator.fn), node.operator.at_end)
        self.keys = key_reader(node, node.operator.key, ctx.subtask)
        if not takes_timers(self.fn):  # refused when one is set, not when it fires and nothing takes it
            ctx.event_timers = ctx.processing_timers = None

    def process(self, batch: Batch, port: int) -> None:
        rows = batch.to_rows()
        keys = settled_keys(self.keys.values(rows))
        self.touch(keys)
        self.run(self.gives.process, rows, keys)


class CoProcessTask(TimedTask):
    """A `CoProcessFunction`: two inputs, with one key space where both are keyed."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        assert isinstance(node.operator, CoProcess)
        super().__init__(node, ctx, node.operator.fn, node.operator.at_end)
        self.keys = [self._reader(port, selector) for port, selector in enumerate(node.operator.keys)]
        self.keyed = self.keys[0] is not None and self.keys[1] is not None
        if not (self.keyed and takes_timers(self.fn)):
            ctx.event_timers = ctx.processing_timers = None

    def _reader(self, port: int, selector: Selector | None) -> FieldReader | None:
        return None if selector is None else key_reader(self.node, selector, self.ctx.subtask, port)

    def process(self, batch: Batch, port: int) -> None:
        rows, reader = batch.to_rows(), self.keys[port]
        self.input = port
        keys = None if reader is None else settled_keys(reader.values(rows))
        self.touch(keys)
        self.run(self.gives.process2 if port else self.gives.process1, rows, keys)


def as_process_function(fn: Any) -> Any:
    """A process function with one or two inputs, or an object around a plain `f(value, ctx)`."""
    return fn if isinstance(fn, DECLARE_STATE) else _Plain(fn)


class _Plain(ProcessFunction):
    """Plain callable in the place of a process function."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.process = fn  # type: ignore[method-assign, assignment]
