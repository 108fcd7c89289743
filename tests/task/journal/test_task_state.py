"""What a task knows at its cut, and no checkpoint holds, is put back where another worker does again what it did."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import EndOfInput, IdleChannel, Marker, Watermark
from tailrace.graph.plan import make_plan
from tailrace.task.channels.services import Services
from tailrace.task.journal.task_state import put_back, state_of
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.slice.machine import Slice
from tailrace.task.subtask.machine import Task


def task() -> Task:
    """One that reads from three others, and is open."""
    env = tr.Environment(parallelism=1)
    env.from_collection([1], parallelism=3).rebalance().map(str).sink_to(tr.sinks.Print())
    plan = make_plan(env._graph.subgraph({node.id for node in env._graph.nodes}))
    held = Slice(plan, 0, 0, Services(random.Random, debug=True), 1 << 20)
    held.open()
    return next(one for one in held.tasks if one.gate.channels)


def hear(one: Task, *markers: tuple[int, Marker]) -> Task:
    for source, marker in markers:
        one.arrive(ChannelId(0, source, 0), 0, marker, 0)
        while one.step(0, 100) is None:
            pass
        one.check()
    return one


def standing(one: Task) -> Any:
    return one.gate.watermark, one.gate.all_idle, one.gate.ended


BEFORE: list[tuple[tuple[int, Marker], ...]] = [
    ((0, Watermark(5)), (1, Watermark(7)), (2, Watermark(3))),
    ((0, Watermark(5)), (1, IdleChannel()), (2, IdleChannel())),
    ((0, EndOfInput()), (1, EndOfInput()), (2, Watermark(4))),
    ((0, IdleChannel()), (1, IdleChannel()), (2, IdleChannel())),
]
BEHIND: list[tuple[int, Marker]] = [(2, Watermark(6)), (2, IdleChannel()), (2, EndOfInput())]


@pytest.mark.parametrize("before", BEFORE, ids=range(len(BEFORE)))
@pytest.mark.parametrize("behind", BEHIND, ids=range(len(BEHIND)))
def test_event_time_goes_on_where_it_was(before: tuple[tuple[int, Marker], ...], behind: tuple[int, Marker]) -> None:
    was = hear(task(), *before)
    other = task()
    put_back(other, state_of(was), 1)
    assert standing(other) == standing(was)
    assert standing(hear(other, behind)) == standing(hear(was, behind))


def test_what_was_counted_is_counted_on() -> None:
    """Of a replaced worker the figures of its inputs went on, and those of its outputs and users' own began anew."""

    def counted(value: Any, ctx: Any) -> Any:
        ctx.metrics.inc("seen")
        ctx.metrics.set("last", value)
        yield value

    def fresh() -> Slice:
        env = tr.Environment(parallelism=1)
        numbers = env.from_collection([3, 4], parallelism=1).process(counted)
        numbers.sink_to(tr.sinks.Callback(lambda record: None))
        numbers.key_by(lambda n: n).count().sink_to(tr.sinks.Callback(lambda record: None))
        held = Slice(env._plan(env._pending()), 0, 0, Services(random.Random), 1 << 20)
        held.open()
        return held

    was, other = fresh(), fresh()
    source = max(was.tasks, key=lambda task: isinstance(task.chain.root, SourceTask))
    while source.step(0, 100) is None:
        pass
    at = was.tasks.index(source)
    put_back(other.tasks[at], state_of(source), 1)
    mine, same = was.reports({})[at], other.reports({})[at]
    assert (mine.records_in, mine.records_out, mine.records_sunk) == (2, 4, 2)
    assert mine.metrics == {"process: counted.seen": 2.0, "process: counted.last": 4.0}
    assert (same.records_in, same.records_out, same.records_sunk, same.metrics) == (2, 4, 2, mine.metrics)
