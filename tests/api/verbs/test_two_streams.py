"""`connect(rules.broadcast()).process(...)` where it is written: what it needs, and the one order of its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from tailrace.graph.operators import Broadcast, BroadcastProcess


class Rules(tr.BroadcastProcessFunction):
    rules = tr.BroadcastState(str, int)

    def process(self, value: Any, ctx: tr.Context) -> None: ...

    def process_broadcast(self, value: Any, ctx: tr.Context) -> None: ...


class Keyed(Rules):
    total = tr.ValueState(int)


class Lacking(tr.BroadcastProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> None: ...


class Copies(tr.ProcessFunction):
    rules = tr.BroadcastState(str, int)

    def process(self, value: Any, ctx: tr.Context) -> None: ...


class CopiesOfBatches(tr.MapBatchesFunction):
    rules = tr.BroadcastState(str, int)

    def map_batches(self, batch: Any) -> Any: ...


def same(value: Any) -> Any:
    return value


class Own(Rules):
    own = tr.OperatorState(int)


def timed(stream: tr.DataStream, **options: Any) -> tr.DataStream:
    return stream.assign_timestamps(same, **options)


def ordered_in_a_loop(stream: tr.DataStream) -> tr.DataStream:
    return stream.key_by(same).connect(stream.broadcast()).process(Rules(), ordered=True)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no broadcast": (
        lambda a, b: a.connect(b).process(Rules()),
        r"process: Rules needs all records of the second stream in every subtask; call broadcast\(\) on it",
    ),
    "the wrong side": (
        lambda a, b: a.broadcast().connect(b).process(Rules()),
        "process: the broadcast stream is the second one for Rules",
    ),
    "no key": (
        lambda a, b: a.connect(b.broadcast()).process(Keyed()),
        "process: Keyed uses keyed state or timers, and the first stream has no key; call key_by on it",
    ),
    "a method lacks": (
        lambda a, b: a.connect(b.broadcast()).process(Lacking()),
        "process: Lacking has no method process_broadcast; a tr.BroadcastProcessFunction must define it",
    ),
    "one stream": (
        lambda a, b: a.process(Rules()),
        r"process: a Rules takes two inputs; use a.connect\(b.broadcast\(\)\).process",
    ),
    "another function": (
        lambda a, b: a.process(Copies()),
        "process: Copies declares the broadcast state 'rules', and no record of it comes to every subtask",
    ),
    "ordered without a key": (
        lambda a, b: timed(a).connect(timed(b).broadcast()).process(Rules(), ordered=True),
        "process: ordered=True keeps records by key until their time has come; call key_by on the first",
    ),
    "ordered without event time": (
        lambda a, b: timed(a).key_by(same).connect(b.broadcast()).process(Rules(), ordered=True),
        "process: ordered=True is by event time, and the broadcast stream has none; call assign_timestamps on it",
    ),
    "ordered, and idle": (
        lambda a, b: timed(a).key_by(same).connect(timed(b, idle_after=1.0).broadcast()).process(Rules(), ordered=True),
        "process: with ordered=True the broadcast stream must not fall idle",
    ),
    "ordered, with an operator state": (
        lambda a, b: timed(a).key_by(same).connect(timed(b).broadcast()).process(Own(), ordered=True),
        "process: with ordered=True a function has broadcast state and keyed state, and Own declares the operator state",
    ),
    "ordered in a loop": (
        lambda a, b: timed(a).iterate(lambda s: (s, ordered_in_a_loop(s))),
        "process: ordered=True cannot be kept in loop",
    ),
    "ordered by another value": (
        lambda a, b: a.key_by(same).connect(b.broadcast()).process(Rules(), ordered="yes"),
        "process: ordered must be True or False, not 'yes'",
    ),
    "a function of batches": (
        lambda a, b: a.map_batches(CopiesOfBatches(), schema="x long"),
        "map_batches: CopiesOfBatches declares the broadcast state 'rules'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_where_it_is_written(what: str) -> None:
    env = tr.Environment(parallelism=2)
    write, message = REFUSED[what]
    with pytest.raises(tr.GraphError, match=message):
        write(env.from_collection([1]), env.from_collection([2]))


def test_broadcast_records_of_several_subtasks_go_through_one() -> None:
    env = tr.Environment(parallelism=2)
    records = env.from_collection([1])
    rules = env.from_collection([1]).map(same, parallelism=2)
    for second in (rules, rules.union(rules.map(same))):
        records.key_by(same).connect(second.broadcast()).process(Keyed(), uid=f"u{len(env._graph.nodes)}")
    nodes = env._graph.nodes
    for node in [node for node in nodes if isinstance(node.operator, BroadcastProcess)]:
        senders = [nodes[edge.source] for edge in node.inputs if isinstance(edge.partitioning, Broadcast)]
        assert [(one.parallelism, one.uid) for one in senders] == [(1, f"{node.uid}-broadcast")]


def test_broadcast_records_of_one_subtask_need_no_other() -> None:
    env = tr.Environment(parallelism=2)
    rules = env.from_collection([1]).map(same, parallelism=1)
    env.from_collection([1]).connect(rules.broadcast()).process(Rules())
    node = env._graph.nodes[-1]
    assert {edge.source for edge in node.inputs if edge.port == 1} == {rules._upstreams[0][0]}


def test_a_broadcast_stream_whose_event_time_goes_on_by_the_clock_may_be_ordered() -> None:
    env = tr.Environment(parallelism=2)
    rules = timed(env.from_collection([1]), idle_after=1.0, when_all_idle="advance")
    timed(env.from_collection([1])).key_by(same).connect(rules.broadcast()).process(Rules(), ordered=True)
    assert isinstance(env._graph.nodes[-1].operator, BroadcastProcess) and env._graph.nodes[-1].operator.in_order
