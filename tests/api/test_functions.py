"""Functions with a life of their own, and the options that every verb takes."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailrace as tr
from tests.api.verbs.test_streams import records

LIFE: list[Any] = []
"""What the functions below have lived through."""


@pytest.fixture(autouse=True)
def _nothing_lived_yet() -> None:
    LIFE.clear()


class Noted:
    """Notes when it is opened and closed; each copy of the object counts for itself."""

    opened = prepared = 0

    def prepare(self) -> None:
        self.prepared += 1
        LIFE.append(("prepare", type(self).__name__, -1))
        assert (self.prepared, self.opened) == (1, 0)

    def open(self, ctx: tr.Context) -> None:
        assert self.prepared == 1
        self.opened += 1
        self.where = ctx.subtask
        LIFE.append(("open", type(self).__name__, ctx.subtask))
        assert self.opened == 1

    def close(self) -> None:
        LIFE.append(("close", type(self).__name__, self.where))


class Plus(Noted, tr.MapFunction):
    def map(self, value: int) -> int:
        return value + 1


class Even(Noted, tr.FilterFunction):
    def filter(self, value: int) -> bool:
        return value % 2 == 0


class Twice(Noted, tr.FlatMapFunction):
    def flat_map(self, value: int) -> Iterator[int]:
        yield value
        yield value


class Least(Noted, tr.ReduceFunction):
    def reduce(self, a: int, b: int) -> int:
        return min(a, b)


class Number(Noted, tr.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


class Passing(Noted, tr.ProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> list[Any]:
        return [value]


class KeyedPassing(Noted, tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> list[Any]:
        return [value]


class Both(Noted, tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> list[Any]:
        return [value]

    def process2(self, value: Any, ctx: tr.Context) -> list[Any]:
        return [value]


VERBS: list[Callable[[tr.DataStream], tr.DataStream]] = [
    lambda s: s.map(Plus()),
    lambda s: s.filter(Even()),
    lambda s: s.flat_map(Twice()),
    lambda s: s.key_by(abs).reduce(Least()),
    lambda s: s.key_by(abs).aggregate(Number()),
    lambda s: s.assign_timestamps(abs).key_by(abs).window(tr.Tumbling(5)).reduce(Least()),
    lambda s: s.assign_timestamps(abs).key_by(abs).window(tr.Tumbling(5)).aggregate(Number()),
    lambda s: s.process(Passing()),
    lambda s: s.key_by(abs).process(KeyedPassing()),
    lambda s: s.connect(s).process(Both()),
]


@pytest.mark.parametrize("verb", VERBS, ids=range(len(VERBS)))
def test_a_function_is_prepared_opened_and_closed_once_in_each_subtask(
    verb: Callable[[tr.DataStream], tr.DataStream],
) -> None:
    records(lambda env: verb(env.from_collection(range(6))), 2)
    opened = sorted((what, where) for what, _, where in LIFE if what != "prepare")
    assert opened == [("close", 0), ("close", 1), ("open", 0), ("open", 1)]
    assert sorted(what for what, _, _ in LIFE[:4]) == ["open", "open", "prepare", "prepare"]


def test_the_functions_of_a_chain_are_opened_before_any_record_comes() -> None:
    class Source(Noted, tr.MapFunction):
        def map(self, value: int) -> int:
            assert len(LIFE) == 6
            return value

    assert records(lambda env: env.from_collection([1, 2]).map(Source()).filter(Even()).flat_map(Twice())) == [2, 2]
    assert [name for what, name, _ in LIFE if what == "close"] == ["Source", "Even", "Twice"]


def test_a_function_that_several_operators_share_is_prepared_for_each_of_them() -> None:
    shared = Plus()
    assert records(lambda env: env.from_collection([1]).map(shared).rebalance().map(shared), 2) == [3]
    assert [what for what, _, _ in LIFE].count("prepare") == 4


class LockMade(tr.KeyedProcessFunction):
    """A function whose preparation makes something that can be neither pickled nor copied."""

    count = tr.ValueState(int, default=0)

    def prepare(self) -> None:
        self.lock = threading.Lock()

    def process(self, value: int, ctx: tr.Context) -> Iterator[tuple[int, int]]:
        with self.lock:
            self.count.value += 1
            yield value, self.count.value


def test_what_prepare_sets_need_not_be_pickled() -> None:
    assert records(lambda env: env.from_collection([5, 5]).key_by(abs).process(LockMade())) == [(5, 1), (5, 2)]
    assert tr.testing.harness(LockMade(), key=abs).push(5) == [(5, 1)]


class UsesState(LockMade):
    def prepare(self) -> None:
        self.count.value = 1


class Broken(Plus):
    def prepare(self) -> None:
        raise ValueError("no model")


@pytest.mark.parametrize(("fn", "text"), [(UsesState(), "prepare raised.*only declared"), (Broken(), "no model")])
def test_an_error_of_prepare_names_the_operator(fn: Any, text: str) -> None:
    verb = "process" if isinstance(fn, UsesState) else "map"
    with pytest.raises(tr.JobFailed, match=rf"(?s)the_name.*{text}"):
        records(lambda env: getattr(env.from_collection([5]).key_by(abs), verb)(fn, name="the_name"))


class WithContext(Plus):
    def prepare(self, ctx: tr.Context) -> None:  # type: ignore[override]
        pass


class Yielding(Plus):
    def prepare(self) -> Iterator[int]:  # type: ignore[override]
        yield 1


@pytest.mark.parametrize(
    ("fn", "text"),
    [(WithContext(), r"WithContext.prepare\(ctx.* is called with 0 argument"), (Yielding(), "Yielding.prepare yields")],
)
def test_a_prepare_that_cannot_be_called_is_refused_where_it_is_written(fn: Any, text: str) -> None:
    with pytest.raises(tr.GraphError, match=text):
        tr.Environment().from_collection([1]).map(fn)


def test_a_function_is_closed_when_the_job_has_failed() -> None:
    def fail(value: int) -> int:
        raise ValueError("no")

    with pytest.raises(tr.JobFailed):
        records(lambda env: env.from_collection([1]).map(Plus()).map(fail).map(Plus()))
    assert [what for what, _, _ in LIFE] == ["prepare", "prepare", "open", "open", "close", "close"]


def test_one_that_fails_to_close_does_not_keep_others_from_it() -> None:
    class Stubborn(Noted, tr.MapFunction):
        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            super().close()
            raise ValueError("will not")

    assert records(lambda env: env.from_collection([1]).map(Stubborn()).map(Plus()).map(Stubborn()).map(Plus())) == [3]
    assert [what for what, _, _ in LIFE].count("close") == 4


def test_each_subtask_works_on_its_own_copy() -> None:
    class Counting(tr.MapFunction):
        seen = 0

        def map(self, value: int) -> int:
            self.seen += 1
            return self.seen

    function = Counting()
    assert sorted(records(lambda env: env.from_collection(range(6)).map(function), 3)) == [1, 1, 1, 2, 2, 2]
    assert function.seen == 0


class Seen(tr.KeyedProcessFunction):
    """How often each key was seen before."""

    before = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield value, self.before.value
        self.before.value += 1


@pytest.mark.parametrize("how", ["run", "simulate"])
def test_one_function_object_given_to_two_operators_has_two_states(how: str) -> None:
    function = Seen()
    env = tr.Environment(parallelism=2)
    letters = env.from_collection(["a", "a", "b"])
    once = letters.key_by(str).process(function).sink_to(tr.sinks.Collect())
    again = letters.key_by(str).process(function).sink_to(tr.sinks.Collect())
    getattr(tr.testing, how)(env).await_termination()
    assert sorted(once.result()) == sorted(again.result()) == [("a", 0), ("a", 1), ("b", 0)]


def test_metrics_of_a_users_own_are_reported_by_operator() -> None:
    class Measuring(tr.MapFunction):
        def open(self, ctx: tr.Context) -> None:
            self.metrics = ctx.metrics

        def map(self, value: int) -> int:
            self.metrics.inc("seen")
            self.metrics.inc("sum", value)
            self.metrics.set("last", value)
            return value

    env = tr.Environment(parallelism=1)
    env.from_collection([1, 2, 3]).map(Measuring(), name="first").map(abs).sink_to(tr.sinks.Callback(id))
    figures = tr.testing.run(env).metrics()["subtasks"][0]["custom"]
    assert (figures["first.seen"], figures["first.sum"], figures["first.last"]) == (3, 6, 3)


@pytest.mark.parametrize("value", ["a text", None, [1]])
def test_a_metric_that_is_no_number_is_the_users_error(value: Any) -> None:
    def measure(record: int, ctx: tr.Context) -> None:
        ctx.metrics.set("last", value)

    with pytest.raises(tr.JobFailed, match="operator 'p', subtask 0, record 1"):
        records(lambda env: env.from_collection([1]).process(measure, name="p"))


# Options.


def test_every_verb_takes_a_uid_a_name_and_a_parallelism() -> None:
    import pyarrow as pa

    env = tr.Environment(parallelism=2)
    options = iter(range(100))

    def opts() -> dict[str, Any]:
        i = next(options)
        return {"uid": f"uid {i}", "name": f"name {i}", "parallelism": 1 + i % 3}

    rows = env.from_collection([{"x": 1}], **opts())
    env.from_source(tr.sources.Sequence(0, 1), **opts())
    for verb in ("map", "filter", "flat_map"):
        getattr(rows, verb)(lambda x: x, **opts())
    columns = rows.to_columns(pa.schema({"x": pa.int64()}), **opts())
    columns.to_rows(**opts())
    columns.map_batches(lambda x: x, **opts())
    timed = rows.assign_timestamps(lambda x: 1, **opts())
    rows.process(lambda x, ctx: x, **opts())
    keyed = timed.key_by("x")
    keyed.process(lambda x, ctx: x, **opts())
    keyed.reduce(lambda a, b: a, **opts())
    keyed.count(**opts())
    keyed.sum("x", **opts())
    keyed.aggregate(tr.Count(), **opts())
    for verb in ("count", "reduce", "sum", "aggregate"):
        given = {"count": (), "reduce": (lambda a, b: a,), "sum": ("x",), "aggregate": (tr.Count(),)}[verb]
        getattr(keyed.window(tr.Tumbling(1)), verb)(*given, **opts())
    keyed.connect(keyed).process(Both(), **opts())
    rows.sink_to(tr.sinks.Print(), **opts())
    nodes = env._graph.nodes
    assert [(n.uid, n.name, n.parallelism) for n in nodes] == [
        (f"uid {i}", f"name {i}", 1 + i % 3) for i in range(len(nodes))
    ]
    assert len(nodes) == 21


def test_an_operator_is_as_wide_as_its_input_and_after_a_shuffle_as_the_environment() -> None:
    env = tr.Environment(parallelism=4)
    narrow = env.from_collection([1], parallelism=1).map(abs)
    narrow.rebalance().map(abs)
    narrow.key_by(abs).count().map(abs)
    assert [node.parallelism for node in env._graph.nodes] == [1, 1, 4, 4, 4]


def test_an_operator_is_called_after_its_verb_and_its_function() -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).map(abs).map(lambda x: x).map(Plus()).assign_timestamps("x")
    assert [node.name for node in env._graph.nodes] == [
        "from_collection",
        "map: abs",
        "map",
        "map: Plus",
        "assign_timestamps: x",
    ]
