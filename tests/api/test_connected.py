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


Streams = tuple[tr.DataStream, tr.DataStream]

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
