"""A checkpoint and a dataflow are compared before anything starts, and everything that does not fit is told at once."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace import Environment, KeyedProcessFunction, ListState, Tumbling, ValueState, sinks
from tailrace.api.compat import check, declared_tables, stateful
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.state.format import TableInfo
from tailrace.state.manifest import OperatorRecord, Prepared


class Best(KeyedProcessFunction):
    best = ValueState(float)
    all = ListState(int, encoding="msgspec")

    def process(self, value: Any, ctx: Any) -> None:
        self.best.value = value


@pytest.fixture(scope="module")
def nodes() -> list[Node]:
    env = Environment(parallelism=2)
    keyed = env.from_collection(range(10)).assign_timestamps(float, uid="times").key_by(lambda n: n % 3)
    keyed.process(Best(), uid="best").sink_to(sinks.Collect())
    keyed.count(uid="count").sink_to(sinks.Collect())
    keyed.window(Tumbling(5)).reduce(max, uid="window").sink_to(sinks.Collect())
    env.from_collection(range(3)).map(str, uid="map").sink_to(sinks.Collect())
    return env._builder.nodes if hasattr(env, "_builder") else list(env._plan(env._pending()).graph.nodes)


def node(nodes: list[Node], uid: str) -> Node:
    return next(one for one in nodes if one.uid == uid)


def test_what_an_operator_declares_is_known_without_running_it(nodes: list[Node]) -> None:
    found = {uid: [(t.name, t.kind, t.encoding) for t in declared_tables(node(nodes, uid))] for uid in UIDS}
    timers = [("timers:event", "timers", "pickle"), ("timers:processing", "timers", "pickle")]
    assert found == {
        "best": [("best", "value", "pickle"), ("all", "list", "msgspec"), *timers],
        "count": [("aggregate", "aggregate", "pickle")],
        "window": [("aggregate", "window", "pickle"), timers[0]],
        "map": [],
        "times": [],
    }
    assert {uid for uid in UIDS if stateful(node(nodes, uid))} == {"best", "count", "window", "times"}


UIDS = ["best", "count", "window", "map", "times"]


def record(uid: str, *tables: tuple[str, str], stateful: bool = True) -> OperatorRecord:
    return OperatorRecord(uid, f"name of {uid}", 2, [False, False], [TableInfo(*one) for one in tables], stateful)


def test_what_fits_passes(nodes: list[Node]) -> None:
    check([record(uid, *[(t.name, t.kind) for t in declared_tables(node(nodes, uid))]) for uid in UIDS], nodes)
    check([record("gone", stateful=False)], nodes)
    check([record("best", ("best", "value"))], nodes, max_parallelism=(128, 128))


def test_everything_that_does_not_fit_is_told_at_once(nodes: list[Node]) -> None:
    old = [record("gone", ("sum", "value")), record("best", ("best", "map"), ("worst", "value")), record("count")]
    with pytest.raises(IncompatibleState) as caught:
        check(old, nodes, max_parallelism=(64, 128))
    text = str(caught.value)
    for part in (
        "max_parallelism 64",
        "Environment(max_parallelism=64)",
        "'name of gone' (uid 'gone') had state and is not in the dataflow any more; it held sum (value)",
        "uid='gone'",
        "state 'best' was of kind 'map' and is declared as 'value'",
        "state 'worst' (value) is not declared any more",
        "allow_dropped_state=['best']",
    ):
        assert part in text
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize("allowed", [True, ["gone", "best"]])
def test_what_may_be_left_behind_is_not_told(nodes: list[Node], allowed: Any) -> None:
    check([record("gone", ("sum", "value")), record("best", ("worst", "value"))], nodes, allowed)


# What sinks have prepared and may not have published.


def dataflow(last: Any, uid: str) -> list[Node]:
    env = Environment(parallelism=2)
    env.from_collection(range(10)).sink_to(last, uid=uid)
    return list(env._plan(env._pending()).graph.nodes)


OUTPUT = [Prepared("lines", b"1"), Prepared("lines", b"2")]


def test_output_that_waits_to_be_published_needs_its_sink() -> None:
    """A crash came between a commit and its publication, and the sink has another uid since: what it had prepared would
    never be visible, though its state fits, for it has none. It is told like state that would be lost."""
    old = [OperatorRecord("lines", "text files", 2, [False, False])]
    check(old, dataflow(sinks.TextFiles("out"), "lines"), prepared=OUTPUT)
    check(old, dataflow(sinks.TextFiles("out"), "rows"))
    with pytest.raises(IncompatibleState) as caught:
        check(old, dataflow(sinks.TextFiles("out"), "rows"), prepared=OUTPUT)
    for part in (
        "sink 'text files' (uid 'lines') had prepared output that may not be published yet (2 transactions)",
        "is not in the dataflow any more: that output would be lost",
        "give the sink that writes it uid='lines'",
        "allow_dropped_state=['lines']",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("allowed", [True, ["lines"]])
def test_output_that_is_given_up_is_not_told(allowed: Any) -> None:
    check([], dataflow(sinks.TextFiles("out"), "rows"), allowed, prepared=OUTPUT)
    with pytest.raises(IncompatibleState, match="uid 'lines'"):
        check([], dataflow(sinks.TextFiles("out"), "rows"), ["rows"], prepared=OUTPUT)


def test_a_sink_that_publishes_nothing_does_not_take_over_what_is_to_be_published() -> None:
    """The uid is there, and belongs to a sink that acts at once: what the earlier one had prepared would be lost."""
    with pytest.raises(IncompatibleState, match="is 'sink: callback' now, which publishes nothing"):
        check([], dataflow(sinks.Callback(print), "lines"), prepared=OUTPUT)
