"""A checkpoint and a dataflow are compared before anything starts, and one error lists everything that does not fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace import (
    AggregatingState,
    CoProcessFunction,
    Count,
    Environment,
    KeyedProcessFunction,
    ListState,
    OperatorState,
    ProcessFunction,
    Rounds,
    Sum,
    Tumbling,
    ValueState,
    sinks,
    sources,
)
from tailrace.api.restore.compatibility import check, declared_tables, goes_to, misfits, stateful
from tailrace.api.restore.kinds import key_columns, kind_of, shape_of
from tailrace.elements.valueclasses import ClassShape
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.state.format import TableInfo
from tailrace.state.manifest import InFlight, OperatorRecord, Prepared


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
def test_what_may_be_left_behind_is_not_reported(nodes: list[Node], allowed: Any) -> None:
    check([record("gone", ("sum", "value")), record("best", ("worst", "value"))], nodes, allowed)


# What sinks have prepared and may not have published.


def dataflow(last: Any, uid: str) -> list[Node]:
    env = Environment(parallelism=2)
    env.from_collection(range(10)).sink_to(last, uid=uid)
    return list(env._plan(env._pending()).graph.nodes)


OUTPUT = [Prepared("lines", b"1"), Prepared("lines", b"2")]


def test_output_that_waits_to_be_published_needs_its_sink() -> None:
    """A crash came between a commit and its publication, and the sink has another uid since: what it had prepared would
    never be visible, though its state fits, for it has none. It is reported like state that would be lost."""
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
def test_output_that_is_given_up_is_not_reported(allowed: Any) -> None:
    check([], dataflow(sinks.TextFiles("out"), "rows"), allowed, prepared=OUTPUT)
    with pytest.raises(IncompatibleState, match="uid 'lines'"):
        check([], dataflow(sinks.TextFiles("out"), "rows"), ["rows"], prepared=OUTPUT)


def test_a_sink_that_publishes_nothing_does_not_take_over_what_is_to_be_published() -> None:
    """The uid is there, and belongs to a sink that acts at once: what the earlier one had prepared would be lost."""
    with pytest.raises(IncompatibleState, match="is 'sink: callback' now, which publishes nothing"):
        check([], dataflow(sinks.Callback(print), "lines"), prepared=OUTPUT)


# Kinds of operators, and what they held beside keyed state.


class Held(ProcessFunction):
    kept = OperatorState(list, default=[])

    def process(self, value: Any, ctx: Any) -> None: ...


class Timed(KeyedProcessFunction):
    best = ValueState(float)

    def process(self, value: Any, ctx: Any) -> None: ...

    def on_timer(self, timestamp: float, ctx: Any) -> None: ...


def graph(build: Any, parallelism: int = 2) -> list[Node]:
    env = Environment(parallelism=parallelism)
    build(env).sink_to(sinks.Collect())
    return list(env._plan(env._pending()).graph.nodes)


def numbers(env: Environment, uid: str | None = None) -> Any:
    return env.from_source(sources.Sequence(0, 9), uid=uid)


def in_spans(env: Environment, seconds: int) -> Any:
    timed = numbers(env).assign_timestamps(float)
    return timed.iterate(lambda s: (s.filter(bool), s), rounds=Rounds(span=seconds), uid="X")


def known(uid: str, kind: str, *tables: TableInfo, **more: Any) -> OperatorRecord:
    return OperatorRecord(uid, f"name of {uid}", 2, [False, False], list(tables), True, kind, **more)


BUILT = {
    "source": lambda env: numbers(env, "X").map(str),
    "iterator": lambda env: env.from_source(sources.Generator(lambda: iter([1])), uid="X"),
    "map": lambda env: numbers(env).map(str, uid="X"),
    "hold": lambda env: numbers(env).process(Held(), uid="X"),
    "keyed": lambda env: numbers(env).key_by(lambda n: n).process(Timed(), uid="X"),
    "count": lambda env: numbers(env).key_by(lambda n: n).count(uid="X"),
    "timestamps": lambda env: numbers(env).assign_timestamps(float, uid="X"),
    "loop": lambda env: numbers(env).iterate(lambda s: (s.filter(bool), s), uid="X"),
    "rounds": lambda env: numbers(env).iterate(lambda s: (s.filter(bool), s), rounds=Rounds(), uid="X"),
    "spans": lambda env: in_spans(env, 10),
    "others of them": lambda env: in_spans(env, 20),
    "windows": lambda env: numbers(env).assign_timestamps(float).key_by(str).window(Tumbling(5)).count(uid="X"),
    "others": lambda env: numbers(env).assign_timestamps(float).key_by(str).window(Tumbling(2)).count(uid="X"),
}
SHAPES = {
    "source": ("source", ["Sequence"]),
    "iterator": ("source", ["Generator of an iterator"]),
    "hold": ("process", []),
    "keyed": ("process", []),
    "count": ("aggregate", ["Count"]),
    "timestamps": ("timestamps", []),
    "loop": ("loop", []),
    "rounds": ("loop", ["in rounds"]),
    "spans": ("loop", ["in rounds by spans of 10 s"]),
    "others of them": ("loop", ["in rounds by spans of 20 s"]),
    "windows": ("window", ["windows of 5 s every 5 s from 0 s", "Count"]),
    "others": ("window", ["windows of 2 s every 2 s from 0 s", "Count"]),
}


@pytest.mark.parametrize("now", BUILT)
@pytest.mark.parametrize("old", SHAPES)
def test_a_uid_of_another_kind_of_operator_is_refused(old: str, now: str) -> None:
    kind, shape = SHAPES[old]
    nodes = graph(BUILT[now])
    if SHAPES.get(now, ("stateless", []))[:2] == (kind, shape):
        check([known("X", kind, shape=shape)], nodes)
        return
    with pytest.raises(IncompatibleState, match=r"'name of X' \(uid 'X'\).*allow_dropped_state=\['X'\]"):
        check([known("X", kind, shape=shape)], nodes)
    check([known("X", kind, shape=shape)], nodes, ["X"])
    check([OperatorRecord("X", "x", 2, [False, False], kind=kind, shape=shape)], nodes)


def test_a_loop_that_goes_in_another_way_is_named_as_one() -> None:
    words = "the state of a loop in rounds by spans of 10 s, and the operator has a loop in rounds by spans of 20 s now"
    with pytest.raises(IncompatibleState, match=words):
        check([known("X", "loop", shape=["in rounds by spans of 10 s"])], graph(BUILT["others of them"]))


def test_an_older_checkpoint_says_no_kind_and_is_read() -> None:
    check([record("X", stateful=True)], graph(BUILT["map"]))


def test_operator_state_is_compared_by_name_and_type_and_dealt_out_only_as_a_list() -> None:
    def told(**more: Any) -> str:
        held = TableInfo(**{"name": "kept", "kind": "operator", "type": "list", "listed": True, **more})
        return "\n".join(misfits([known("X", "process", own=[held])], graph(BUILT["hold"], 3)))

    assert told() == ""
    assert "holds operator state 'seen', which is not declared any more" in told(name="seen")
    assert "'kept' was declared as dict and is declared as list now" in told(type="dict")
    assert "was saved at parallelism 2 and cannot be dealt out to 3 subtasks" in told(listed=False)


def test_timers_need_a_function_that_takes_them() -> None:
    some, none = (TableInfo("timers:event", "timers", empty=empty) for empty in (False, True))
    plain = graph(lambda env: numbers(env).key_by(lambda n: n).process(lambda n, ctx: [n], uid="X"))
    check([known("X", "process", some)], graph(BUILT["keyed"]))
    check([known("X", "process", none)], plain)
    for nodes in (plain, graph(BUILT["hold"])):
        with pytest.raises(IncompatibleState, match=r"there are timers in the checkpoint, and .* has no on_timer"):
            check([known("X", "process", some)], nodes)


def test_records_that_wait_need_a_function_that_is_called_in_order() -> None:
    def built(in_order: bool) -> list[Node]:
        timed = lambda env: numbers(env).assign_timestamps(lambda n: n).key_by(lambda n: n)  # noqa: E731
        return graph(lambda env: timed(env).process(lambda n, ctx: [n], in_order=in_order, uid="X"))

    some, none = (TableInfo("records:waiting", "records", empty=empty) for empty in (False, True))
    check([known("X", "process", some)], built(True))
    check([known("X", "process", none)], built(False))
    with pytest.raises(
        IncompatibleState, match=r"records wait for event time in the checkpoint, .* is not called in order"
    ):
        check([known("X", "process", some)], built(False))


def test_a_state_that_was_empty_may_be_declared_anew() -> None:
    check([known("X", "process", TableInfo("best", "map", empty=True))], graph(BUILT["keyed"]))
    with pytest.raises(IncompatibleState, match="was of kind 'map'"):
        check([known("X", "process", TableInfo("best", "map"))], graph(BUILT["keyed"]))


def test_a_state_of_another_declared_type_is_refused_before_anything_runs() -> None:
    with pytest.raises(IncompatibleState, match="state 'best' was declared as dict and is declared as float now"):
        check([known("X", "process", TableInfo("best", type="dict"))], graph(BUILT["keyed"]))
    check([known("X", "process", TableInfo("best", type="int"))], graph(BUILT["keyed"]))


def test_accumulators_of_another_aggregate_are_refused_before_anything_runs() -> None:
    def adding(aggregate: Any) -> Any:
        return type("Adding", (Timed,), {"total": AggregatingState(int, aggregate=aggregate)})()

    def state(which: str) -> TableInfo:
        return TableInfo("total", "aggregating", type="int", aggregate=which)

    for aggregate, name in ((Count(), "Count"), (Sum(), "Sum"), (Own(), "custom"), (Sum("a"), "Sum of 'a'")):
        now = graph(lambda env, one=aggregate: numbers(env).key_by(str).process(adding(one), uid="u"))
        for was in ("Count", "Sum", "custom"):
            if was == name:
                check([known("u", "process", state(was))], now)
            else:
                with pytest.raises(IncompatibleState, match=f"holds accumulators of {was}, and is of {name} now"):
                    check([known("u", "process", state(was))], now)
        check([known("u", "process", state(""))], now)  # an older checkpoint does not hold it


def test_columns_of_a_key_that_change_places_are_refused_before_anything_runs() -> None:
    """The key (1, 0) would go on with what (0, 1) had. Columns of other names may be the same ones, renamed."""

    def by(*columns: str) -> list[Node]:
        return graph(lambda env: env.from_collection([{"a": 1, "b": 0}]).key_by(*columns).count(uid="u"))

    (built,) = [one for one in by("a", "b") if one.uid == "u"]
    was = OperatorRecord("u", "count", 2, stateful=True, kind=kind_of(built.operator), keys=key_columns(built))
    was = msgspec.structs.replace(was, shape=shape_of(built.operator))
    assert was.keys == [["a", "b"]]
    check([was], by("a", "b"))
    check([was], by("a", "c"))
    check([msgspec.structs.replace(was, stateful=False)], by("b", "a"))
    with pytest.raises(IncompatibleState, match=r"columns a, b, and is made of b, a now.*key_by\('a', 'b'\)"):
        check([was], by("b", "a"))


class Own(Sum):
    """An aggregate of the user's."""


def _first(record: Any) -> Any:
    return record[0]


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize(
    ("there", "now", "fits"),
    [
        ({"x": Sum("a"), "y": Sum("b")}, {"y": Sum("b"), "x": Sum("a")}, False),
        ({"x": Sum("a"), "y": Sum("b")}, {"total": Sum("a"), "y": Sum("b")}, True),
        ({"x": Sum("a")}, {"x": Sum("b")}, False),
        ({"x": Sum(_first), "y": Sum("b")}, {"y": Sum("b"), "x": Sum(_first)}, False),
        ({"x": Sum(_first), "y": Sum(str)}, {"y": Sum(str), "x": Sum(_first)}, False),
        ({"x": Own("a"), "y": Own("b")}, {"y": Own("b"), "x": Own("a")}, False),
        ({"x": Own("a"), "y": Count()}, {"x": Own("a"), "y": Count()}, True),
        ({"x": Sum(_first)}, {"y": Sum(_first)}, True),
    ],
)
def test_several_aggregates_are_known_by_their_fields_or_names(windows: bool, there: Any, now: Any, fits: bool) -> None:
    """Accumulators lie side by side: in another order each would go on with those of another one."""

    def built(aggregates: Any) -> list[Node]:
        def build(env: Environment) -> Any:
            keyed = numbers(env).assign_timestamps(float).key_by("k")
            return (keyed.window(Tumbling(5)) if windows else keyed).aggregate(uid="X", **aggregates)

        return graph(build)

    [operator] = [node.operator for node in built(there) if node.uid == "X"]
    record = known("X", kind_of(operator), shape=shape_of(operator))
    if fits:
        check([record], built(now))
    else:
        with pytest.raises(IncompatibleState, match=r"the checkpoint holds the state of .*, and the operator has"):
            check([record], built(now))


def test_another_sink_does_not_publish_what_one_had_prepared() -> None:
    old = [OperatorRecord("lines", "files", 2, [False, False], kind="sink", shape=["Parquet"])]
    check(old, dataflow(sinks.TextFiles("out"), "lines"))
    for allowed in (False, True):  # it would be given to the sink that has the uid
        with pytest.raises(IncompatibleState, match=r"was the sink Parquet, had prepared output .* is TextFiles now"):
            check(old, dataflow(sinks.TextFiles("out"), "lines"), allowed, prepared=OUTPUT)


# Records in flight.


class Both(CoProcessFunction):
    def process1(self, value: Any, ctx: Any) -> None: ...

    def process2(self, value: Any, ctx: Any) -> None: ...


def connected(*uids: str) -> list[Node]:
    def build(env: Environment) -> Any:
        one, other = (numbers(env, uid) for uid in uids)
        return one.connect(other).process(Both(), uid="X")

    return graph(build)


def test_records_in_flight_go_where_their_source_goes_now() -> None:
    def place(nodes: list[Node], source: str, port: int) -> int | None:
        return goes_to(source, None, port, node(nodes, "X"), {one.id: one for one in nodes}.__getitem__)

    assert [place(connected("a", "b"), uid, port) for uid, port in (("a", 0), ("b", 1))] == [0, 1]
    assert [place(connected("b", "a"), uid, port) for uid, port in (("a", 0), ("b", 1))] == [1, 0]
    assert place(connected("a", "c"), "b", 1) is None
    assert place(graph(BUILT["map"]), "another", 0) == 0, "there is one input only"
    assert place(graph(BUILT["map"]), "another", 1) is None


def test_records_of_a_source_that_feeds_no_input_any_more_are_refused_or_given_up() -> None:
    lost = [InFlight("b", None, "X", 1)]
    check([], connected("b", "a"), channels=lost)
    check([], connected("a", "c"), ["X"], channels=lost)
    with pytest.raises(
        IncompatibleState, match="records of 'b' were in flight to its input 1, and 'b' does not feed it"
    ):
        check([], connected("a", "c"), channels=lost)
    other = [OperatorRecord("X", "x", 2, [False, False], kind="process")]
    with pytest.raises(IncompatibleState, match="'b' does not feed it any more"):
        check(other, graph(BUILT["map"]), channels=[InFlight("b", None, "X", 0)])
    gone = ClassShape("tests.state.test_compat:Gone", "tuple", ("a",))
    with pytest.raises(IncompatibleState, match=r"records in flight to it cannot be read: class .*Gone is gone"):
        check([], connected("a", "b"), channels=[InFlight("a", None, "X", 0, (gone,))])
