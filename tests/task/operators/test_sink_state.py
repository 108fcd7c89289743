"""A sink's writer may keep `tr.OperatorState`: it belongs to the checkpoint as the records before the cut do."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.errors import IncompatibleState
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.sink import SinkTask


class Numbered(tr.SinkWriter):
    """Numbers its transactions."""

    number = tr.OperatorState(int, default=0)

    def write(self, batch: Any) -> None:
        pass

    def prepare(self) -> bytes:
        self.number.value += 1
        return str(self.number.value).encode()


class NumberedSink(tr.Sink):
    def writer(self, ctx: Any) -> Numbered:
        return Numbered()

    def publish(self, prepared: Any) -> None:
        pass


def sink(
    subtask: int = 0,
    parallelism: int = 1,
    parts: list[MetaPart] | None = None,
    target: tr.Sink | None = None,
    allow: bool = False,
) -> SinkTask:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(target if target is not None else NumberedSink())
    node = env._graph.nodes[-1]
    services = Services(random.Random, checkpointing=True, allow_dropped_state=allow)
    task = SinkTask(node, OperatorContext(node.name, node.uid, subtask, parallelism, 0, services))
    if parts is not None:
        task.restore(parts)
    task.open()
    return task


def test_what_a_writer_keeps_goes_on_where_the_checkpoint_was() -> None:
    first = sink()
    first.process(Rows([1, 2]), 0)
    saved = first.snapshot(1)
    assert first.prepared_output(1) == [(1, b"1")]
    first.process(Rows([3]), 0)
    first.snapshot(2)

    again = sink(parts=[MetaPart(0, 1, False, saved)])
    again.snapshot(3)
    assert again.prepared_output(3) == [(3, b"2")]


def test_what_is_no_list_needs_the_parallelism_it_had() -> None:
    saved = sink().snapshot(1)
    with pytest.raises(IncompatibleState, match="number"):
        sink(parallelism=2, parts=[MetaPart(0, 1, False, saved)])


def test_what_no_writer_declares_any_more_is_not_lost_in_silence() -> None:
    saved = [MetaPart(0, 1, False, sink().snapshot(1))]
    with pytest.raises(IncompatibleState, match="number"):
        sink(parts=saved, target=tr.sinks.Callback(print))
    sink(parts=saved, target=tr.sinks.Callback(print), allow=True)


class Late(tr.SinkWriter):
    """Prepares at the end of the input only."""

    over = False

    def write(self, batch: Any) -> None:
        pass

    def finish(self) -> None:
        self.over = True

    def prepare(self) -> bytes | None:
        return b"all" if self.over else None


class LateSink(NumberedSink):
    def writer(self, ctx: Any) -> Any:
        return Late()


def test_a_writer_learns_of_the_end_of_the_input_before_it_prepares_for_the_last_time() -> None:
    task = sink(target=LateSink())
    task.snapshot(1)
    assert task.prepared_output(1) == []
    task.finish()
    task.snapshot(2)
    assert task.prepared_output(2) == [(2, b"all")]
