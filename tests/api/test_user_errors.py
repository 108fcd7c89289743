"""When a user's function raises, the error names the operator, the subtask and the record, and shows the user's own
traceback."""

import linecache
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.errors import OWN_FOLDER


def failure(build: Callable[[tr.Environment], Any], **settings: Any) -> tr.JobFailed:
    """Why the job fails that `build` writes; it runs with two workers under the simulator."""
    env = tr.Environment(**{"parallelism": 1, **settings})
    stream = build(env)
    if isinstance(stream, tr.DataStream):
        stream.sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed) as caught:
        tr.testing.run(env)
    assert OWN_FOLDER not in str(caught.value), "our own frames are of no use to the user"
    return caught.value


class Untold(Exception):
    """An exception that nobody can print."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


untold = False
"""Whether user code raises what cannot be printed."""


def boom(value: Any) -> Any:
    if value == 3:
        if untold:
            raise Untold
        raise ValueError("three is too much")
    return value


def boom_late(value: Any) -> Iterator[Any]:
    yield value
    boom(value)
    yield value


def numbers(env: tr.Environment) -> tr.DataStream:
    return env.from_collection(range(6))


def noop(value: Any) -> Any:
    return value


class Opening(tr.MapFunction):
    def open(self, ctx: tr.Context) -> None:
        boom(3)

    def map(self, value: Any) -> Any:
        return value


class Keyed(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> None:
        ctx.set_timer(event_time=value)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        boom(timestamp)


class Last(tr.ProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> None: ...

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield 1
        boom(3)


class Both(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> None: ...

    def process2(self, value: Any, ctx: tr.Context) -> None:
        boom(value)


class Merging(tr.AggregateFunction):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def create_accumulator(self) -> int:
        return boom(3 if self.where == "create_accumulator" else 0)

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + boom(value if self.where == "add" else 0)

    def get_result(self, accumulator: int) -> int:
        return boom(3 if self.where == "get_result" else 0)


class Writer(tr.SinkWriter):
    def __init__(self, where: str) -> None:
        self.where = where

    def write(self, batch: Any) -> None:
        boom(3 if self.where == "write" else 0)

    def prepare(self) -> bytes:
        boom(3 if self.where == "prepare" else 0)
        return b""


class Sink(tr.Sink):
    def __init__(self, where: str) -> None:
        self.where = where

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        boom(3 if self.where == "writer" else 0)
        return Writer(self.where)

    def publish(self, prepared: Any) -> None:
        boom(3 if self.where == "publish" else 0)


class Source(tr.Source):
    def __init__(self, where: str) -> None:
        self.where = where

    def splits(self, parallelism: int) -> list[int]:
        boom(3 if self.where == "splits" else 0)
        return [0]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        boom(3 if self.where == "reader" else 0)
        return SourceReader(self.where)


class SourceReader(tr.Reader):
    position = None

    def __init__(self, where: str) -> None:
        self.where = where

    def read(self, limit: int, now: float) -> Any:
        boom(3 if self.where == "read" else 0)
        return [] if self.where == "next_at" else None

    def next_at(self, now: float) -> float:
        return boom(3)

    def close(self) -> None:
        boom(3 if self.where == "close" else 0)


def by_three(stream: tr.DataStream) -> tr.KeyedStream:
    return stream.key_by(lambda x: x % 2)


def windowed(stream: tr.DataStream) -> tr.WindowedStream:
    return by_three(stream.assign_timestamps(noop)).window(tr.Tumbling(100))


def name(stream: Any, verb: str, *given: Any, **options: Any) -> Any:
    return getattr(stream, verb)(*given, name="guilty", **options)


CASES: dict[str, tuple[Callable[[tr.Environment], Any], str | None]] = {
    "map": (lambda env: name(numbers(env), "map", boom), "3"),
    "filter": (lambda env: name(numbers(env), "filter", boom), "3"),
    "flat_map": (lambda env: name(numbers(env), "flat_map", lambda x: [boom(x)]), "3"),
    "flat_map while it yields": (lambda env: name(numbers(env), "flat_map", boom_late), "3"),
    "map_batches": (
        lambda env: name(
            numbers(env), "map_batches", lambda batch: boom(batch.num_rows - 3), schema=pa.schema({"x": pa.int64()})
        ),
        "pyarrow.RecordBatch",
    ),
    "process": (lambda env: name(numbers(env), "process", lambda x, ctx: [boom(x)]), "3"),
    "process while it yields": (lambda env: name(numbers(env), "process", lambda x, ctx: boom_late(x)), "3"),
    "keyed process": (lambda env: name(numbers(env).key_by(noop), "process", lambda x, ctx: [boom(x)]), "3"),
    "co-process": (lambda env: name(numbers(env).connect(numbers(env)), "process", Both()), "3"),
    "key function": (lambda env: name(numbers(env).key_by(boom), "count"), "3"),
    "partition function": (lambda env: name(numbers(env).partition_by(boom), "map", noop), "3"),
    "timestamp function": (lambda env: name(numbers(env), "assign_timestamps", boom), "3"),
    "reduce": (lambda env: name(by_three(numbers(env)), "reduce", lambda a, b: boom(b)), "3"),
    "sum of a function": (lambda env: name(by_three(numbers(env)), "sum", boom), "3"),
    "aggregate: add": (lambda env: name(by_three(numbers(env)), "aggregate", Merging("add")), "3"),
    "aggregate: get_result": (lambda env: name(by_three(numbers(env)), "aggregate", Merging("get_result")), "0"),
    "aggregate: create_accumulator": (
        lambda env: name(by_three(numbers(env)), "aggregate", Merging("create_accumulator")),
        "0",
    ),
    "window: reduce": (lambda env: name(windowed(numbers(env)), "reduce", lambda a, b: boom(b)), "3"),
    "window: sum of a function": (lambda env: name(windowed(numbers(env)), "sum", boom), "3"),
    "window: add": (lambda env: name(windowed(numbers(env)), "aggregate", Merging("add")), "3"),
    "window: get_result": (lambda env: name(windowed(numbers(env)), "aggregate", Merging("get_result")), None),
    "open": (lambda env: name(numbers(env), "map", Opening()), None),
    "timer": (lambda env: name(numbers(env).key_by(noop), "process", Keyed()), None),
    "finish": (lambda env: name(numbers(env), "process", Last()), None),
    "sink: writer": (lambda env: name(numbers(env), "sink_to", Sink("writer")), None),
    "sink: write": (lambda env: name(numbers(env), "sink_to", Sink("write")), None),
    "sink: prepare": (lambda env: name(numbers(env), "sink_to", Sink("prepare")), None),
    "sink: publish": (lambda env: name(numbers(env), "sink_to", Sink("publish")), None),
    "sink: callback": (lambda env: name(numbers(env), "sink_to", tr.sinks.Callback(boom)), "3"),
    "source: splits": (lambda env: env.from_source(Source("splits"), name="guilty"), None),
    "source: reader": (lambda env: env.from_source(Source("reader"), name="guilty"), None),
    "source: read": (lambda env: env.from_source(Source("read"), name="guilty"), None),
    "source: next_at": (lambda env: env.from_source(Source("next_at"), name="guilty"), None),
    "source: close": (lambda env: env.from_source(Source("close"), name="guilty"), None),
    "source: generator": (lambda env: env.from_source(tr.sources.Generator(boom, count=6), name="guilty"), None),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_where_it_happened_and_with_what(case: str) -> None:
    build, record = CASES[case]
    error = failure(build)
    assert (error.operator, error.subtask) == ("guilty", 0)
    assert (error.record or "").startswith(record or "") and (error.record is None) == (record is None)
    text = str(error)
    assert text.startswith("job 'test' failed: operator 'guilty', subtask 0")
    assert "ValueError: three is too much" in text
    assert 'raise ValueError("three is too much")' in text
    assert re.search(r'File ".*test_user_errors.py", line \d+, in boom\n', text)


@pytest.mark.parametrize("case", CASES)
def test_an_exception_that_cannot_be_printed_is_reported_by_its_class(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception was reported as an error of Tailrace's own."""
    monkeypatch.setattr(sys.modules[__name__], "untold", True)
    error = failure(CASES[case][0])
    assert (error.operator, error.subtask) == ("guilty", 0)
    assert "Untold: <Untold whose str raised RuntimeError>" in str(error)
    assert re.search(r'File ".*test_user_errors.py", line \d+, in boom\n', str(error))


class Unnamed(type):
    def __str__(cls) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OfUnnamed(Exception, metaclass=Unnamed):
    """An exception whose class cannot be printed."""


class End(BaseException):
    """What would end a process."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


class Record:
    """A record that cannot be pickled, for a reason that cannot be printed."""

    def __reduce__(self) -> Any:
        raise Untold


def raising(error: BaseException) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        raise error

    return work


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda env: name(numbers(env), "map", raising(OfUnnamed("x"))), "OfUnnamed: x"),
        (lambda env: name(numbers(env), "map", raising(End())), "End whose repr raised RuntimeError"),
        (lambda env: name(numbers(env), "map", raising(ExceptionGroup("many", [Untold()]))), "ExceptionGroup: many"),
        (lambda env: name(numbers(env), "map", lambda value: Record()).shuffle().map(noop), "type Record"),
    ],
    ids=["its class", "an end", "a group", "a record"],
)
def test_what_cannot_be_printed_hides_no_error(build: Callable[[tr.Environment], Any], text: str) -> None:
    error = failure(build, parallelism=2)
    assert "guilty" in str(error) and text in str(error)
    assert "inside tailrace" not in str(error)


@pytest.mark.paths
@pytest.mark.parametrize("folder", ["tailrace", "src/tailrace/task", "with a space/tailrace"])
def test_a_program_in_a_folder_called_tailrace_sees_its_own_frames(folder: str, tmp_path: Path) -> None:
    """`git clone` makes a folder called tailrace, and users keep their programs in such folders too. What is ours is
    what lies in the folder that the package was imported from, whatever that is called."""
    (tmp_path / folder).mkdir(parents=True)
    file = tmp_path / folder / "errors.py"
    file.write_text("def parse(value):\n    raise ValueError('not a line of mine')\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    text = str(failure(lambda env: numbers(env).map(names["parse"])))
    assert f'File "{file}", line 2, in parse\n    raise ValueError' in text
    assert text.count('  File "') == 1


# In the middle of a chain.

CHAINS: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "map": lambda s: s.map(boom, name="guilty"),
    "filter": lambda s: s.filter(boom, name="guilty"),
    "flat_map": lambda s: s.flat_map(lambda x: [boom(x)], name="guilty"),
    "yields": lambda s: s.flat_map(boom_late, name="guilty"),
}


@pytest.mark.parametrize("case", CHAINS)
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("before", ["map", "filter", "flat_map"])
@pytest.mark.parametrize("after", ["map", "filter", "flat_map"])
def test_in_a_chain_the_guilty_one_is_named_and_its_own_record(case: str, timed: bool, before: str, after: str) -> None:
    given = {"map": lambda x: x, "filter": lambda x: True, "flat_map": lambda x: iter([x])}

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([10, 20, 30, 40])
        if timed:
            stream = stream.assign_timestamps(lambda x: x)
        stream = getattr(stream.map(lambda x: x // 10, name="tens"), before)(given[before], name="innocent")
        return getattr(CHAINS[case](stream), after)(given[after], name="innocent too").map(lambda x: x)

    error = failure(program)
    assert (error.operator, error.record) == ("guilty", "3")


def test_a_wrong_result_of_flat_map_is_reported_as_what_it_is() -> None:
    error = failure(lambda env: numbers(env).flat_map(lambda x: x, name="guilty").map(noop))
    assert (error.operator, error.record) == ("guilty", "0")
    assert "flat_map must return an iterable or None ('int' object is not iterable)" in str(error)


def test_what_a_built_in_function_raises_is_not_taken_for_a_wrong_result() -> None:
    error = failure(lambda env: numbers(env).flat_map(str.split, name="guilty"))
    assert "must return" not in str(error) and "TypeError: descriptor 'split'" in str(error)


def test_a_wrong_result_of_map_batches_is_reported_as_what_it_is() -> None:
    error = failure(
        lambda env: numbers(env).map_batches(lambda batch: [1], schema=pa.schema({"x": pa.int64()}), name="guilty")
    )
    assert (error.operator, error.record) == ("guilty", None)
    assert "map_batches must return pyarrow.RecordBatch(es), not int" in str(error)


# A function that ends an iteration in the middle must not end the stream there.

ENDINGS: dict[str, Callable[[tr.DataStream], Any]] = {
    "key_by": lambda s: s.key_by(lambda x: next(iter([x][x == 3 :]))).count(name="guilty"),
    "sum": lambda s: by_three(s).sum(lambda x: next(iter([x][x == 3 :])), name="guilty"),
    "partition_by": lambda s: s.partition_by(lambda x: next(iter([x][x == 3 :]))).map(noop, name="guilty"),
    "assign_timestamps": lambda s: s.assign_timestamps(lambda x: next(iter([x][x == 3 :])), name="guilty"),
    "map": lambda s: s.map(lambda x: next(iter([x][x == 3 :])), name="guilty"),
}


@pytest.mark.parametrize("verb", ENDINGS)
def test_a_stop_iteration_loses_no_record(verb: str) -> None:
    error = failure(lambda env: ENDINGS[verb](numbers(env)))
    assert (error.operator, error.record) == ("guilty", "3")
    assert "StopIteration" in str(error)


def test_a_stop_iteration_ends_no_source() -> None:
    error = failure(lambda env: env.from_source(tr.sources.Generator(lambda i: next(iter([])), count=3), name="guilty"))
    assert error.operator == "guilty" and "StopIteration" in str(error)


# Values that do not fit.


def test_a_value_that_cannot_be_added_names_its_record() -> None:
    def program(env: tr.Environment, aggregate: Any) -> tr.DataStream:
        return env.from_collection([1, 2, "three", 4]).key_by(lambda x: 0).aggregate(aggregate, name="guilty")

    for aggregate in (tr.Sum(), tr.Min(), tr.Max(), tr.Mean()):
        error = failure(lambda env, aggregate=aggregate: program(env, aggregate))
        assert (error.operator, error.record) == ("guilty", "'three'")


@pytest.mark.parametrize("key", [[1], {1}, {1: 2}, object(), 1j])
def test_a_key_without_a_canonical_form_names_its_record_and_says_what_to_do(key: Any) -> None:
    error = failure(lambda env: env.from_collection([1, 2]).key_by(lambda x: key if x == 2 else x).count(name="guilty"))
    assert (error.operator, error.record) == ("guilty", "2")
    assert re.search("cannot be a key: it has no canonical form; (use|key by)", str(error))


def test_a_record_that_does_not_fit_a_schema_is_named() -> None:
    schema = pa.schema({"x": pa.int64(), "name": pa.string()})
    error = failure(lambda env: env.from_collection([(1, "a"), ("b", 2)]).to_columns(schema, name="guilty"))
    assert (error.operator, error.record) == ("guilty", "('b', 2)")
    assert "a record does not fit the schema: column 'x' is declared int64, and 'b' does not fit" in str(error)


@pytest.mark.parametrize("time", ["5", "2020-01-01", float("nan"), float("inf"), 1 << 70, [1]])
def test_a_timestamp_that_is_no_time_names_its_record(time: Any) -> None:
    error = failure(lambda env: env.from_collection([{"at": 1}, {"at": time}]).assign_timestamps("at", name="guilty"))
    assert error.operator == "guilty" and error.record == repr({"at": time})
    assert "the timestamp from 'at' cannot be used" in str(error)


TIMES: list[tuple[Any, list[Any], str]] = [
    (pa.string(), ["a"], "a column of string holds no timestamps; use a timestamp, a date or a number of seconds"),
    (pa.float64(), [float("nan")], "a timestamp is not finite or outside the range of int64 microseconds"),
    (pa.float64(), [float("inf")], "a timestamp is not finite or outside the range of int64 microseconds"),
    (pa.int64(), [2**60], "overflow"),
]


@pytest.mark.parametrize(("kind", "values", "why"), TIMES, ids=str)
def test_a_column_that_holds_no_times_is_named(kind: Any, values: list[Any], why: str) -> None:
    schema = pa.schema({"at": kind})
    error = failure(lambda env: env.from_collection(values).to_columns(schema).assign_timestamps("at", name="guilty"))
    assert error.operator == "guilty"
    assert f"the timestamps in column 'at' cannot be used: {why}" in str(error)


@pytest.mark.parametrize("at", [None, "nothing was assigned"])
def test_a_window_names_the_record_that_has_no_timestamp(at: Any) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_collection([1, 2])
        if at is None:
            stream = stream.assign_timestamps(lambda x: None if x == 2 else 5)
        return stream.key_by(noop).window(tr.Tumbling(1)).count(name="guilty")

    error = failure(program)
    assert (error.operator, error.record) == ("guilty", "2" if at is None else "1")
    assert "a record without a timestamp reached a window; use assign_timestamps before it" in str(error)


def test_a_record_that_cannot_be_pickled_names_who_gave_it() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        locks = env.from_collection([1, 2], parallelism=1).map(
            lambda x: threading.Lock() if x == 2 else x, name="guilty"
        )
        return locks.broadcast().map(id)

    error = failure(program, parallelism=2)
    assert error.operator == "guilty" and error.record is not None and "lock" in error.record
    assert "it gave a record of type lock that cannot be pickled to go to another worker" in str(error)


def test_within_a_worker_a_record_need_not_be_pickled() -> None:
    env = tr.Environment(parallelism=1)
    locks = env.from_collection([1, 2]).map(lambda x: threading.Lock()).rebalance().map(lambda lock: lock.locked())
    out = locks.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [False, False]


def test_a_record_that_cannot_be_kept_as_a_result_is_named() -> None:
    error = failure(lambda env: env.from_collection([1, 2]).map(lambda x: threading.Lock() if x == 2 else x))
    assert error.operator == "sink: collect" and "lock" in str(error.record)


# Where the verb is written that an error is about.

SHOP = """
def orders(env):
    return env.from_collection([{"country": "NL", "price": 1}])

def key(env):
    return (
        orders(env)
        .map(dict)
        .key_by("cuntry")
        .count()
    )

def no_key(env):
    return orders(env).key_by(lambda order: [order["country"]]).count()

def field(env):
    return orders(env).key_by("country").sum("prce")

def connected(env):
    both = orders(env).connect(orders(env))
    return both.key_by("country", "cuntry").process(Both())

def windowed(env):
    keyed = orders(env).assign_timestamps(lambda order: 1).key_by("country", "cuntry")
    return keyed.window(tr.Tumbling(10)).count()

def column(env):
    table = orders(env).to_columns("country string, price long").map_batches(lambda b: b.rename_columns(["land", "p"]))
    return table.key_by("country").count()

def time(env):
    return orders(env).assign_timestamps(lambda order: "noon")

def no_time(env):
    return orders(env).key_by("country").window(tr.Tumbling(10)).count()

def schema(env):
    return orders(env).to_columns("country long, price long")

def result(env):
    return orders(env).flat_map(len)

def looped(env):
    def body(stream):
        return stream.key_by("cuntry").process(lambda order, ctx: []), stream
    return orders(env).iterate(body)

def helped(env):
    return per_country(orders(env))

def per_country(stream):
    return stream.key_by("cuntry").count()
"""
LINES = {
    "key": ("key_by", '.key_by("cuntry")'),
    "no_key": ("key_by", 'return orders(env).key_by(lambda order: [order["country"]]).count()'),
    "field": ("sum", 'return orders(env).key_by("country").sum("prce")'),
    "connected": ("key_by", 'return both.key_by("country", "cuntry").process(Both())'),
    "windowed": ("key_by", 'keyed = orders(env).assign_timestamps(lambda order: 1).key_by("country", "cuntry")'),
    "column": ("key_by", 'return table.key_by("country").count()'),
    "time": ("assign_timestamps", 'return orders(env).assign_timestamps(lambda order: "noon")'),
    "no_time": ("window.count", 'return orders(env).key_by("country").window(tr.Tumbling(10)).count()'),
    "schema": ("to_columns", 'return orders(env).to_columns("country long, price long")'),
    "result": ("flat_map", "return orders(env).flat_map(len)"),
    "looped": ("key_by", 'return stream.key_by("cuntry").process(lambda order, ctx: []), stream'),
    "helped": ("key_by", 'return stream.key_by("cuntry").count()'),
}


def names_of(file: str, text: str = SHOP) -> dict[str, Any]:
    names: dict[str, Any] = {"tr": tr, "Both": Both}
    exec(compile(text, file, "exec"), names)
    return names


@pytest.mark.parametrize("case", LINES)
def test_an_error_of_ours_names_the_line_of_the_verb_that_it_is_about(case: str, tmp_path: Path) -> None:
    """No frame of the user's is under way then: the verb was called long before. A key is about the line of its `key_by`,
    not about that of the operator behind it."""
    file = tmp_path / "shop.py"
    file.write_text(SHOP)
    verb, line = LINES[case]
    number = SHOP.splitlines().index(next(one for one in SHOP.splitlines() if one.strip() == line)) + 1
    text = str(failure(names_of(str(file))[case], parallelism=2))
    assert f"\n{verb} is written at {file}:{number}: {line}" in text, text
    assert text.count("is written at") == 1


def test_a_cell_of_a_notebook_is_named_as_its_user_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_4711/3141592653.py"
    compiler = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == file else None)
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(linecache.cache, file, (len(SHOP), None, SHOP.splitlines(True), file))
    assert 'key_by is written at cell In[3], line 9: .key_by("cuntry")' in str(failure(names_of(file)["key"]))


@pytest.mark.parametrize(
    ("file", "place"), [("<ipython-input-7-0123abcd>", "cell In[7], line 9"), ("<stdin>", "<stdin>:9")]
)
def test_a_line_that_is_in_no_file_is_named_as_well_as_can_be(file: str, place: str) -> None:
    assert f"\nkey_by is written at {place}\n" in str(failure(names_of(file)["key"]))


def test_where_a_verb_is_written_is_no_part_of_the_dataflow() -> None:
    """A program with a line more is the same dataflow: for checkpoints, and where partitionings are compared."""

    def graph(text: str) -> Any:
        env = tr.Environment(parallelism=2)
        names = names_of("<shop>", text)
        names["orders"](env).union(names["orders"](env)).key_by("country").union(
            names["orders"](env).key_by("country")
        ).count().sink_to(tr.sinks.Collect())
        return env._graph.nodes

    one, other = graph(SHOP), graph("\n" + SHOP)
    assert [node.written for node in one] != [node.written for node in other]
    assert [(node.uid, node.inputs) for node in one] == [(node.uid, node.inputs) for node in other]
    assert "written" not in repr(one)


# What an error looks like.


def test_a_long_record_is_shortened() -> None:
    error = failure(lambda env: env.from_collection(["x" * 10_000]).map(int))
    assert error.record is not None and len(error.record) == 200 and error.record.endswith("…")


def test_a_record_without_a_good_repr_is_reported_by_its_class() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert failure(lambda env: env.from_collection([Shy()]).map(int)).record == "<Shy whose repr raised RuntimeError>"


def test_half_a_surrogate_pair_does_not_hide_an_error() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "\ud800"

    def fail(value: Any) -> None:
        raise ValueError("\udfff")

    error = failure(lambda env: env.from_collection([Odd()]).map(fail))
    assert error.record == "\\ud800" and "ValueError" in str(error)


def test_the_cause_of_an_error_is_shown_too() -> None:
    def fail(value: Any) -> None:
        try:
            boom(value)
        except ValueError as error:
            raise KeyError("outer") from error

    text = str(failure(lambda env: env.from_collection([3]).map(fail)))
    assert text.index("ValueError: three") < text.index("direct cause") < text.rindex("KeyError: 'outer'")


def test_an_error_of_tailrace_raised_by_a_user_is_the_users() -> None:
    def fail(value: Any) -> None:
        raise tr.GraphError("mine")

    error = failure(lambda env: env.from_collection([1]).map(fail, name="guilty"))
    assert (error.operator, error.record) == ("guilty", "1") and "GraphError: mine" in str(error)


def test_user_code_that_wants_to_exit_fails_the_job_instead() -> None:
    def leave(value: Any) -> None:
        raise SystemExit(3)

    error = failure(lambda env: env.from_collection([1]).map(leave, name="guilty"))
    assert error.operator is not None and "guilty" in error.operator and "SystemExit(3)" in str(error)


def test_an_error_names_the_subtask() -> None:
    error = failure(lambda env: env.from_source(tr.sources.Sequence(0, 6)).map(boom, name="guilty"), parallelism=3)
    assert (error.operator, error.subtask, error.record) == ("guilty", 0, "3")


def test_a_missing_file_is_reported_with_the_source() -> None:
    error = failure(lambda env: env.from_source(tr.sources.TextFiles("/nowhere/at/all"), name="guilty"))
    assert error.operator == "guilty" and "there are no files at '/nowhere/at/all'" in str(error)


# What a source or a sink gives that it must not.


class Named(NamedTuple):
    """A record, not a list of them."""

    a: int
    b: int


class Odd(tr.Source):
    """Gives what the test sets."""

    def __init__(self, given: Any, form: Any = "rows", next_at: Any = 1.0) -> None:
        self.given, self.form, self.then = given, form, next_at

    def splits(self, parallelism: int) -> Any:
        return (split for split in [0])

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return OddReader(self.given, self.then)


class OddReader(tr.Reader):
    position = None

    def __init__(self, given: Any, then: Any) -> None:
        self.given, self.then = given, then

    def read(self, limit: int, now: float) -> Any:
        return self.given

    def next_at(self, now: float) -> float:
        return self.then


@pytest.mark.parametrize(
    ("source", "why"),
    [
        *[
            (
                Odd(given),
                f"reading a split raised TypeError: OddReader.read returned {text}; a source of rows must return a list of",
            )
            for given, text in [
                (5, "an int"),
                ("abc", "a str"),
                (b"ab", "a bytes"),
                ({"k": 1}, "a dict"),
                (iter([1]), "a list_iterator"),
                (pd.DataFrame({"a": [1, 2]}), "a pandas.DataFrame"),
                (pa.table({"a": [1, 2]}), "a pyarrow.Table"),
                (pa.record_batch({"a": [1, 2]}), "a pyarrow.RecordBatch"),
                (np.zeros(3), "a numpy.ndarray"),
                (Named(1, 2), f"a {Named.__module__.partition('.')[0]}.Named"),
            ]
        ],
        (
            Odd([1], form="columns"),
            "OddReader.read returned a list; a source of columns must return a pyarrow.RecordBatch",
        ),
        (Odd(pa.table({"a": [1]}), form="columns"), "OddReader.read returned a pyarrow.Table; a source of columns"),
        (Odd([1] * 100_000), "OddReader.read returned 100000 records, and at most"),
        (
            Odd(pa.record_batch({"a": [1] * 100_000}), form="columns"),
            "OddReader.read returned 100000 rows, and at most",
        ),
        (
            Odd([], next_at=None),
            "asking a split for its next time raised TypeError: a time must be a number of seconds",
        ),
        (Odd([], next_at=float("nan")), "asking a split for its next time raised OverflowError"),
    ],
)
def test_a_reader_that_gives_what_it_must_not_is_reported(source: Any, why: str) -> None:
    error = failure(lambda env: env.from_source(source, name="guilty"))
    assert error.operator == "guilty" and why in str(error)


class OddParts(tr.Source):
    """Makes what the test sets."""

    def __init__(self, **made: Any) -> None:
        self.made = made

    def splits(self, parallelism: int) -> Any:
        return self.made.get("splits", [0])

    def enumerator(self, parallelism: int, position: Any = None) -> Any:
        return self.made.get("enumerator")

    def reader(self, split: int, position: Any = None) -> Any:
        return self.made.get("reader", OddReader(None, 1.0))


class OddEnumerator(tr.Enumerator):
    position = None

    def discover(self, now: float) -> Any:
        return "abc"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            {"splits": None},
            "listing the splits raised TypeError: OddParts.splits must return a list of splits, not NoneType",
        ),
        ({"splits": "abc"}, "OddParts.splits must return a list of splits, not str"),
        ({"splits": {"a": 1}}, "OddParts.splits must return a list of splits, not dict"),
        ({"enumerator": [1]}, "OddParts.enumerator must return a tr.Enumerator, or None, not list"),
        (
            {"enumerator": OddEnumerator()},
            "finding splits raised TypeError: OddEnumerator.discover must return a list",
        ),
        ({"reader": None}, "opening a split raised TypeError: OddParts.reader must return a tr.Reader, not NoneType"),
        ({"reader": [1]}, "OddParts.reader must return a tr.Reader, not list"),
    ],
)
def test_a_source_that_makes_what_it_must_not_is_reported(made: dict[str, Any], why: str) -> None:
    error = failure(lambda env: env.from_source(OddParts(**made), name="guilty"))
    assert error.operator == "guilty" and why in str(error)


def test_columns_that_are_not_those_of_the_source_are_reported() -> None:
    source = Odd(pa.record_batch({"b": [1], "a": [2]}), form="columns")
    source.columns = ("a", "b")
    error = failure(lambda env: env.from_source(source, name="guilty"))
    assert error.operator == "guilty"
    assert "OddReader.read returned the columns b, a, and its source declares a, b" in str(error)


def test_a_sink_that_makes_no_writer_is_reported() -> None:
    class Empty(tr.Sink):
        def writer(self, ctx: tr.SinkContext) -> Any:
            return None

    error = failure(lambda env: env.from_collection([1]).sink_to(Empty(), name="guilty"))
    assert error.operator == "guilty" and "Empty.writer must return a tr.SinkWriter, not NoneType" in str(error)


def test_a_writer_that_prepares_what_it_must_not_is_reported() -> None:
    class Loose:
        """Not even a tr.SinkWriter."""

        def write(self, batch: Any) -> None:
            if batch == [2]:
                raise ValueError("two")

        def prepare(self) -> Any:
            return "a text"

        def close(self) -> None: ...

    class LooseSink(tr.Sink):
        def writer(self, ctx: tr.SinkContext) -> Any:
            return Loose()

    error = failure(lambda env: env.from_collection([1]).sink_to(LooseSink(), name="guilty"))
    assert error.operator == "guilty" and "a sink's writer prepares bytes or None, not str" in str(error)
    error = failure(lambda env: env.from_collection([2]).sink_to(LooseSink(), name="guilty"))
    assert error.operator == "guilty" and "the sink raised ValueError: two" in str(error)


def test_a_side_output_of_what_has_none_is_reported() -> None:
    class Emitting(tr.MapFunction):
        def open(self, ctx: tr.Context) -> None:
            self.ctx = ctx

        def map(self, value: Any) -> Any:
            self.ctx.emit("aside", value)

    error = failure(lambda env: env.from_collection([1]).map(Emitting(), name="guilty"))
    assert "operator 'guilty': only process functions and map_batches have side outputs; use process(...)" in str(error)


def test_a_function_that_cannot_be_copied_is_named() -> None:
    class Locked(tr.MapFunction):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def map(self, value: Any) -> Any:
            return value

    error = failure(lambda env: env.from_collection([1]).map(Locked(), name="guilty"))
    assert "operator 'guilty': its function cannot be copied for its subtasks" in str(error)
    assert "make what it holds in open()" in str(error)


# Columns that are not there, or twice, where it was not known when the dataflow was written.

COLUMN_USES: dict[str, Callable[[tr.DataStream], tr.DataStream]] = {
    "key": lambda s: s.key_by("it").count(name="guilty"),
    "one key of several": lambda s: s.key_by(("x", "it")).count(name="guilty"),
    "sum": lambda s: s.key_by("x").sum("it", name="guilty"),
    "timestamp": lambda s: s.assign_timestamps("it", name="guilty"),
    "window": lambda s: (
        s.assign_timestamps("x").key_by("x").window(tr.Tumbling(1)).aggregate(low=tr.Min("it"), name="guilty")
    ),
}


@pytest.mark.parametrize("use", COLUMN_USES)
@pytest.mark.parametrize(
    ("give", "why"),
    [
        (lambda batch: batch, "there is no column 'it'; the batch has x"),
        (
            lambda batch: pa.RecordBatch.from_arrays(3 * [batch.column(0)], names=["x", "it", "it"]),
            "there are 2 columns 'it'; the batch has x, it, it",
        ),
    ],
)
def test_a_column_that_is_not_there_or_twice_is_reported(use: str, give: Any, why: str) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return COLUMN_USES[use](env.from_collection([1]).map_batches(give, schema=pa.schema({"x": pa.int64()})))

    error = failure(program)
    assert error.operator == "guilty" and why in str(error)


def test_an_exception_without_a_text_is_reported_by_its_name_alone() -> None:
    def silent(value: int) -> int:
        raise TimeoutError

    text = str(failure(lambda env: env.from_collection([1]).map(silent)))
    assert "TimeoutError" in text and "TimeoutError:" not in text
