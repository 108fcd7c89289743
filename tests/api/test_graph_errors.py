"""A dataflow that cannot run as written is refused when it is written: one sentence, which names the operator and what
to do."""

import datetime as dt
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.api.checks.hints import VERBS as INSTEAD
from tailrace.elements.durations import WANTED as DURATION
from tests.api.refusals import refusal


class Keyed(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> None: ...


class WithState(tr.ProcessFunction):
    seen = tr.ListState(int)

    def process(self, value: Any, ctx: tr.Context) -> None: ...


class Both(tr.CoProcessFunction):
    seen = tr.ValueState(int)

    def process1(self, value: Any, ctx: tr.Context) -> None: ...
    def process2(self, value: Any, ctx: tr.Context) -> None: ...


class Timed(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> None: ...
    def process2(self, value: Any, ctx: tr.Context) -> None: ...
    def on_timer(self, timestamp: float, ctx: tr.Context) -> None: ...


class OneSided(tr.CoProcessFunction):
    def process1(self, value: Any, ctx: tr.Context) -> None: ...


class Empty(tr.KeyedProcessFunction):
    pass


class NarrowProcess(tr.ProcessFunction):
    def process(self, value: Any) -> None: ...


class NarrowTimer(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> None: ...
    def on_timer(self, ctx: tr.Context) -> None: ...


class NoMap(tr.MapFunction):
    pass


class Add(tr.MapFunction):
    def map(self, value: Any) -> Any:
        return value


class Half(tr.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator


class ColumnSink(tr.Sink):
    form = "columns"
    description = "mine"


SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64())])

Env = tr.Environment
ROWS: Callable[[Env], tr.DataStream] = lambda env: env.from_collection([("a", 1)])  # noqa: E731
COLUMNS: Callable[[Env], tr.DataStream] = lambda env: ROWS(env).to_columns(SCHEMA)  # noqa: E731

Write = Callable[[Env], object]
CASES: dict[str, tuple[Write, str] | tuple[Write, type[Exception], str]] = {
    # what is written, its error where that is no `GraphError`, and the sentence
    # functions
    "wrong arity": (
        lambda env: ROWS(env).map(lambda a, b: a, name="swap"),
        "map 'swap': <lambda>(a, b) is called with 1 argument(s), which it does not accept; change its parameters",
    ),
    "wrong arity of a reducer": (
        lambda env: ROWS(env).key_by(id).reduce(lambda a: a),
        "reduce: <lambda>(a) is called with 2 argument(s), which it does not accept; change its parameters",
    ),
    "wrong arity of a key": (
        lambda env: ROWS(env).key_by(lambda: 1),
        "key_by: <lambda>() is called with 1 argument(s), which it does not accept; change its parameters",
    ),
    "no function": (lambda env: ROWS(env).filter(None), "filter: expected a function, got NoneType None"),
    "a class instead of an object": (lambda env: ROWS(env).map(Add), "map: pass an object, not the class: Add()"),
    "a process function's class": (
        lambda env: ROWS(env).key_by(id).process(Keyed),
        "process: pass an object, not the class: Keyed()",
    ),
    "a co-process function's class": (
        lambda env: ROWS(env).connect(ROWS(env)).process(Both),
        "process: pass an object, not the class: Both(...)",
    ),
    "an aggregate's class": (
        lambda env: ROWS(env).key_by(id).aggregate(total=tr.Count),
        "aggregate: total: pass an object, not the class: Count(...)",
    ),
    "a sink's class": (
        lambda env: ROWS(env).sink_to(tr.sinks.Collect),
        "sink_to: pass an object, not the class: Collect(...)",
    ),
    "a source's class": (
        lambda env: env.from_source(tr.sources.Sequence),
        "from_source: pass an object, not the class: Sequence(...)",
    ),
    "a rich function of another verb": (
        lambda env: ROWS(env).filter(Add()),
        "filter: a Add is not a tr.FilterFunction; use the verb that takes it",
    ),
    "a rich function as a key": (
        lambda env: ROWS(env).key_by(Add()),
        "key_by: expected a function or column names, got a Add object",
    ),
    "a rich function that partitions": (
        lambda env: ROWS(env).partition_by(Add()),
        "partition_by: expected a function, got a Add object; use the verb that takes it",
    ),
    "a map function in process": (
        lambda env: ROWS(env).process(Add()),
        "process: expected a function, got a Add object; use the verb that takes it",
    ),
    "a map function without its method": (
        lambda env: ROWS(env).map(NoMap()),
        "map: NoMap has no method map; a tr.MapFunction must define it",
    ),
    "a process function without its method": (
        lambda env: ROWS(env).key_by(id).process(Empty()),
        "process: Empty has no method process; a tr.ProcessFunction must define it",
    ),
    "a process function of wrong arity": (
        lambda env: ROWS(env).process(NarrowProcess()),
        "process: NarrowProcess.process(value: Any) -> None is called with 2 argument(s), which it does not accept; "
        "change its parameters",
    ),
    "a timer function of wrong arity": (
        lambda env: ROWS(env).key_by(id).process(NarrowTimer()),
        "process: NarrowTimer.on_timer(ctx: tailrace.api.functions.Context) -> None is called with 2 argument(s), which "
        "it does not accept; change its parameters",
    ),
    "a co-process function without its second method": (
        lambda env: ROWS(env).connect(ROWS(env)).process(OneSided()),
        "process: OneSided has no method process2; a tr.CoProcessFunction must define it",
    ),
    "an aggregate without its result": (
        lambda env: ROWS(env).key_by(id).aggregate(Half()),
        "aggregate: Half has no method get_result; a tr.AggregateFunction must define it",
    ),
    "no aggregate": (
        lambda env: ROWS(env).key_by(id).aggregate(n=len),
        "aggregate: n: expected a tr.AggregateFunction, got builtin_function_or_method",
    ),
    "no aggregate at all": (
        lambda env: ROWS(env).key_by(id).aggregate(),
        "aggregate: give one aggregate function, or several by name: count=tr.Count(), total=tr.Sum('x')",
    ),
    # keys and state
    "state without a key": (
        lambda env: ROWS(env).process(WithState()),
        "process: WithState uses keyed state or timers, and the stream has no key; call key_by first",
    ),
    "a keyed function without a key": (
        lambda env: ROWS(env).process(Keyed(), name="seen"),
        "process 'seen': Keyed uses keyed state or timers, and the stream has no key; call key_by first",
    ),
    "state on two inputs without keys": (
        lambda env: ROWS(env).connect(ROWS(env)).process(Both()),
        "process: Both uses keyed state or timers, and not both streams have a key; call key_by on both",
    ),
    "timers with one key only": (
        lambda env: ROWS(env).key_by(id).connect(ROWS(env)).process(Timed()),
        "process: Timed uses keyed state or timers, and not both streams have a key; call key_by on both",
    ),
    "a function of two inputs on one": (
        lambda env: ROWS(env).process(Both()),
        "process: a Both takes two inputs; use a.connect(b).process(...)",
    ),
    "a function of one input on two": (
        lambda env: ROWS(env).connect(ROWS(env)).process(Keyed()),
        "process: expected a tr.CoProcessFunction, got Keyed",
    ),
    "an aggregate without a key": (
        lambda env: ROWS(env).count(),
        AttributeError,
        "count: the stream has no key; call key_by(...) before it",
    ),
    "a window without a key": (
        lambda env: ROWS(env).window(tr.Tumbling(1)),
        AttributeError,
        "window: the stream has no key; call key_by(...) before it",
    ),
    "streams that are keyed differently": (
        lambda env: ROWS(env).key_by(id).union(ROWS(env).key_by(abs)),
        "union: the streams are keyed differently; key the union instead: a.union(b).key_by(...)",
    ),
    "several keys of which one is a function": (
        lambda env: ROWS(env).key_by("name", id),
        "key_by: several keys must all be column names; for anything else give one function that returns a tuple",
    ),
    "no key at all": (lambda env: ROWS(env).key_by(), "key_by: give a function, a column, or several columns"),
    "no verb": (lambda env: ROWS(env).fly(id), AttributeError, "fly: the stream has no such verb"),
    "a verb of others": (
        lambda env: ROWS(env).forEach(id),
        AttributeError,
        "forEach: the stream has sink_to(tr.sinks.Callback(f)) for this",
    ),
    "an option after the verb": (
        lambda env: ROWS(env).map(id).uid("ids"),
        AttributeError,
        "uid: the stream takes it as an argument of the verb, such as map(f, uid=...)",
    ),
    "a stream keyed twice": (
        lambda env: ROWS(env).key_by(id).connect(ROWS(env)).key_by(id, id),
        "connect(...).key_by: a stream is keyed already; key both before or both here",
    ),
    "two streams keyed by a column and by a list of it": (
        lambda env: COLUMNS(env).connect(COLUMNS(env)).key_by("name", ["name"]).process(Both()),
        "process: one stream is keyed by a single column, the other by a list of 1: keys that are never equal; key both by "
        "a single column, or by lists of as many",
    ),
    # columns
    "an unknown column": (
        lambda env: COLUMNS(env).key_by("nmae"),
        "key_by: there is no column 'nmae'; the stream has name, count",
    ),
    "an unknown column among several": (
        lambda env: COLUMNS(env).to_rows().key_by(["name", "x"]),
        "key_by: there is no column 'x'; the stream has name, count",
    ),
    "an unknown column of time": (
        lambda env: COLUMNS(env).assign_timestamps("at", name="clock"),
        "assign_timestamps 'clock': there is no column 'at'; the stream has name, count",
    ),
    "an unknown column to sum": (
        lambda env: COLUMNS(env).key_by("name").sum("x"),
        "sum: there is no column 'x'; the stream has name, count",
    ),
    "an unknown column to aggregate in a window": (
        lambda env: (
            COLUMNS(env).assign_timestamps("count").key_by("name").window(tr.Tumbling(1)).aggregate(t=tr.Max("x"))
        ),
        "window.aggregate: there is no column 'x'; the stream has name, count",
    ),
    "no columns": (lambda env: ROWS(env).key_by(()), "key_by: a tuple of columns must hold column names only, not ()"),
    "a result with the name of the key": (
        lambda env: COLUMNS(env).key_by("count").count(),
        "count: the result would have two columns 'count'; give one another name: aggregate(other=...)",
    ),
    "a result with the name of a bound": (
        lambda env: ROWS(env).key_by(id).window(tr.Tumbling(1)).aggregate(start=tr.Min(id)),
        "window.aggregate: the result would have two columns 'start'; give one another name: aggregate(other=...)",
    ),
    "rows where columns are wanted": (
        lambda env: ROWS(env).map_batches(lambda batch: batch),
        tr.TypeMismatch,
        "map_batches: the stream is in rows; give schema= or call to_columns(schema) before",
    ),
    "rows into a sink of columns": (
        lambda env: ROWS(env).sink_to(ColumnSink()),
        tr.TypeMismatch,
        "sink_to: the mine sink takes columns, and the stream is in rows; give the sink a schema, or call "
        "to_columns(schema) before",
    ),
    "rows into Parquet without a schema": (
        lambda env: ROWS(env).sink_to(tr.sinks.Parquet("somewhere"), name="save"),
        tr.TypeMismatch,
        "sink_to 'save': the parquet sink takes columns, and the stream is in rows; give the sink a schema, or call "
        "to_columns(schema) before",
    ),
    "no schema": (
        lambda env: ROWS(env).to_columns(None),
        'to_columns: give a schema: DDL text such as "id long, name string", or a pyarrow.Schema',
    ),
    # streams
    "a union of two forms": (
        lambda env: ROWS(env).union(COLUMNS(env)),
        tr.TypeMismatch,
        "union: one stream is in rows, the other in columns; use to_rows() or to_columns()",
    ),
    "a union with a keyed stream": (
        lambda env: ROWS(env).union(ROWS(env).key_by(id)),
        tr.TypeMismatch,
        "union: expected a DataStream, got KeyedStream; key the union instead, a.union(b).key_by(...), or use connect",
    ),
    "a union of two partitionings": (
        lambda env: ROWS(env).union(ROWS(env).rebalance()),
        "union: the streams are partitioned differently; partition the union instead",
    ),
    "a union of two environments": (
        lambda env: ROWS(env).union(ROWS(Env(parallelism=1))),
        "union: the streams belong to two environments; make both from one",
    ),
    "a connection of two environments": (
        lambda env: ROWS(env).key_by(id).connect(ROWS(Env(parallelism=1))),
        "connect: the streams belong to two environments; make both from one",
    ),
    "a connection with a list": (
        lambda env: ROWS(env).connect([1]),
        tr.TypeMismatch,
        "connect: expected a stream, got list",
    ),
    "a side output of a map": (
        lambda env: ROWS(env).map(id, name="m").side_output("late"),
        "side_output: operator 'm' has no side outputs; process functions, map_batches, windows and joins have",
    ),
    "a side output that a window has not": (
        lambda env: ROWS(env).key_by(id).window(tr.Tumbling(1)).count(name="w").side_output("lat"),
        "side_output: window 'w' has the side output 'late' only, not 'lat'",
    ),
    "a side output of a union": (
        lambda env: ROWS(env).union(ROWS(env)).side_output("late"),
        "side_output: call it on the stream of one operator, before union or another side_output",
    ),
    "a side output without a name": (
        lambda env: ROWS(env).process(lambda v, c: v).side_output(""),
        "side_output: the tag must be a non-empty string, not ''",
    ),
    "a loop over a stream": (
        lambda env: list(ROWS(env)),
        "a stream cannot be looped over; use collect() to get its records as a list",
    ),
    "the truth of a stream": (
        lambda env: bool(ROWS(env)),
        "a stream has no truth value; its records are only known while the job runs",
    ),
    "the truth of a keyed stream": (
        lambda env: ROWS(env).key_by(id) and 1,
        "a stream has no truth value; its records are only known while the job runs",
    ),
    # time
    "no windows": (
        lambda env: ROWS(env).key_by(id).window(60),
        "window: expected windows, such as tr.Tumbling(...) or tr.Session(...), got 60",
    ),
    "a window without size": (lambda env: tr.Tumbling(0), "Tumbling: size and slide must be above zero, not 0 and 0"),
    "a window as large as time": (
        lambda env: tr.Tumbling(9e12),
        "Tumbling: a size of 9000000000000.0 is too large: its ends would lie outside the range of timestamps; numbers are "
        "seconds",
    ),
    "a slide above the size": (
        lambda env: tr.Sliding(1, 2),
        "Sliding: a slide of 2 is above the size of 1, which would leave records in no window",
    ),
    "a size that is no time": (
        lambda env: tr.Tumbling("1 moment"),
        f"Tumbling: a duration must be {DURATION}, not '1 moment': the unit 'moment' is not known",
    ),
    "a negative lateness": (
        lambda env: ROWS(env).key_by(id).window(tr.Tumbling(1), allowed_lateness=dt.timedelta(seconds=-1)),
        "window: a duration must not be negative, as datetime.timedelta(days=-1, seconds=86399) is",
    ),
    "a negative out-of-orderness": (
        lambda env: ROWS(env).assign_timestamps(id, -1),
        "assign_timestamps: a duration must not be negative, as -1 is",
    ),
    "an endless out-of-orderness": (
        lambda env: ROWS(env).assign_timestamps(id, float("inf")),
        "assign_timestamps: a time must be a finite number of seconds, not inf",
    ),
    "an unknown end": (
        lambda env: ROWS(env).process(lambda v, c: v, at_end="stop"),
        "process: at_end must be 'wait' or 'drop', not 'stop'",
    ),
    # options
    "a parallelism above the maximum": (
        lambda env: ROWS(env).map(id, name="wide", parallelism=129),
        "operator 'wide': parallelism 129 is above the maximum of 128 (the number of key groups); lower it, or give the "
        "Environment a larger max_parallelism",
    ),
    "no parallelism": (
        lambda env: ROWS(env).map(id, name="none", parallelism=0),
        "operator 'none': parallelism must be a whole number of at least 1, not 0",
    ),
    "a parallelism that is a text": (
        lambda env: ROWS(env).map(id, name="text", parallelism="2"),
        "operator 'text': parallelism must be a whole number of at least 1, not '2'",
    ),
    "a name that is no text": (lambda env: ROWS(env).map(id, name=5), "map: name must be a non-empty string, not 5"),
    "an unknown option": (
        lambda env: ROWS(env).map(id, paralellism=2),
        "map: unknown option paralellism; the options are uid, name and parallelism; did you mean parallelism?",
    ),
    # sources and results
    "a text as a collection": (
        lambda env: env.from_collection("text"),
        "from_collection: expected a list of records, got str",
    ),
    "no DataFrame": (lambda env: env.from_dataframe([1]), "from_dataframe: expected a Spark DataFrame, got list"),
    "an unknown form": (
        lambda env: env.from_dataframe(None, form="arrow"),
        "from_dataframe: form must be 'rows' or 'columns', not 'arrow'",
    ),
    "a DataFrame that is read anew": (
        lambda env: env.from_dataframe(None, refresh=60),
        "from_dataframe: a DataFrame is read once, and refresh is for lookups: a second reading gives rows, not what has "
        "changed. To look rows up in the newest version, use stream.lookup(df, on=..., refresh=...); to go on with the rows "
        "that come, env.from_table(..., follow=True) for Delta and Iceberg, or env.from_streaming(spark.readStream...); for "
        "changes, tr.sources.PostgresChanges",
    ),
    "collecting what never ends": (
        lambda env: env.from_source(tr.sources.Sequence(0, None), name="all").map(id).collect(),
        "collect: source 'all' is unbounded, so the result would never be complete; use sink_to and execute",
    ),
    "a table of what never ends": (
        lambda env: env.from_source(tr.sources.Generator(id), name="all").to_dataframe("x long"),
        "to_dataframe: source 'all' is unbounded, so the result would never be complete; use sink_to and execute",
    ),
    "a table of rows without a schema": (
        lambda env: ROWS(env).to_dataframe(),
        'to_dataframe: a stream of rows needs a schema: to_dataframe(schema="vertex string, miles double")',
    ),
    "a result before its job": (
        lambda env: ROWS(env).sink_to(tr.sinks.Collect()).result(),
        "there is no result yet: the job of this sink has not run",
    ),
    "nothing to run": (
        lambda env: (ROWS(env), env.execute())[0],
        "there is nothing to run: end a stream with sink_to, collect or to_dataframe",
    ),
    "a state without its function": (
        lambda env: tr.ReducingState(int),
        "ReducingState needs a function: ReducingState(float, reduce=max)",
    ),
    "a state with the class of an aggregate": (
        lambda env: tr.AggregatingState(int, aggregate=tr.Mean),
        "AggregatingState needs an aggregate function: AggregatingState(object, aggregate=tr.Mean())",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_run_is_refused_when_it_is_written(case: str) -> None:
    assert refusal(CASES[case], tr.Environment(parallelism=1)) == CASES[case][-1]


def test_a_refused_verb_leaves_no_operator_behind() -> None:
    env = tr.Environment(parallelism=1)
    rows = ROWS(env)
    for attempt in (lambda: rows.map(id, parallelism=0), lambda: rows.key_by(id).process(Empty())):
        with pytest.raises(tr.GraphError):
            attempt()
    assert len(env._graph.nodes) == 1


# Objects that cannot be pickled are refused before anything starts.


def test_a_function_that_cannot_be_pickled_is_named() -> None:
    import threading

    lock = threading.Lock()
    env = tr.Environment(parallelism=1)
    ROWS(env).map(lambda x: (lock, x)[1], name="locked").sink_to(tr.sinks.Print())
    with pytest.raises(
        tr.GraphError, match=r"operator 'locked': its function .* cannot be pickled and sent to the workers"
    ):
        tr.testing.simulate(env)


# Settings.


def test_replicas_and_the_processes_that_stand_by_fit_each_other() -> None:
    assert [tr.StandbyConfig().processes(workers) for workers in (1, 4, 5, 9)] == [1, 1, 2, 3]
    assert tr.StandbyConfig(replicas=2).processes(3) == 2 and tr.StandbyConfig(replicas=0).processes(9) == 0
    assert tr.StandbyConfig(replicas=2, spares=5).processes(1) == 5
    assert [tr.StandbyConfig().processes(workers, executor_slots=4) for workers in (2, 8, 40)] == [2, 4, 10]
    for replicas, spares in ((2, 1), (0, 1)):
        with pytest.raises(tr.ConfigError, match=f"spares={spares} processes cannot stand by for {replicas} replicas"):
            tr.StandbyConfig(replicas=replicas, spares=spares)
    for wrong in (-1, 1.5, True):
        with pytest.raises(tr.ConfigError, match="StandbyConfig: spares"):
            tr.StandbyConfig(spares=wrong)  # type: ignore[arg-type]
    with pytest.raises(
        tr.ConfigError, match=r"StandbyConfig: history_bytes=805,306,369 is too much: .* 768 MiB at most"
    ):
        tr.StandbyConfig(history_bytes=(768 << 20) + 1)
    with pytest.raises(tr.ConfigError, match=r"StandbyConfig: spill must be a tr\.Spill, not 64"):
        tr.StandbyConfig(spill=64)  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="StandbyConfig: inflight must be 'local' or 'checkpoint', not 'disk'"):
        tr.StandbyConfig(inflight="disk")
    with pytest.raises(tr.ConfigError, match="StandbyConfig: compare must be 'values' or 'shape', not 'all'"):
        tr.StandbyConfig(compare="all")
    with pytest.raises(
        tr.ConfigError, match=r"spill has the folder '/big', and with inflight='checkpoint' .*leave dir out"
    ):
        tr.StandbyConfig(inflight="checkpoint", spill=tr.Spill(dir="/big"))
    with pytest.raises(tr.ConfigError, match="pace is for hot standbys; set mode='hot', or leave pace out"):
        tr.StandbyConfig(pace="0.1 s")
    for wrong in (-1, "0.25", True):
        with pytest.raises(tr.ConfigError, match=r"StandbyConfig: pace must (not be negative|be seconds)"):
            tr.StandbyConfig(mode="hot", pace=wrong)


def test_hot_standbys_answer_twice_at_least_from_one_checkpoint_to_the_next() -> None:
    assert [tr.StandbyConfig(mode="hot").pace_micros(interval) for interval in (None, "5 s", "2 ms")] == [
        3000,
        3000,
        1000,
    ]
    paced = tr.StandbyConfig(mode="hot", pace="0.25 s")
    assert [paced.pace_micros(interval) for interval in (None, 5, 0.3)] == [250_000, 250_000, 150_000]


def test_the_storage_of_checkpoints_as_a_place_to_spill_to_has_two_names() -> None:
    named = tr.StandbyConfig(spill=tr.Spill(memory_bytes=5, dir="checkpoint"))
    assert tr.StandbyConfig(inflight="checkpoint", spill=tr.Spill(memory_bytes=5)) == named
    assert (named.spill.stored, named.spill.folder, named.inflight) == (True, None, "checkpoint")
    assert tr.StandbyConfig(inflight="checkpoint", spill=tr.Spill(5, "checkpoint")) == named
    for folder in ("./checkpoint", pathlib.Path("checkpoint")):
        local = tr.StandbyConfig(spill=tr.Spill(dir=folder))  # type: ignore[arg-type]
        assert (local.spill.stored, local.spill.folder, local.inflight) == (False, "./checkpoint", "local")


SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"checkpoint": "/tmp/here"},
        tr.ConfigError,
        "checkpoint must be a tr.CheckpointConfig(dir=\"…\"), not '/tmp/here'",
    ),
    ({"standby": object()}, tr.ConfigError, "standby must be a tr.StandbyConfig, not <object"),
    (
        {"standby": tr.StandbyConfig(replicas=0)},
        tr.ConfigError,
        "standby: a worker that takes a lost one's place restores",
    ),
    (
        {"restart": 3},
        tr.ConfigError,
        "restart must be one of tr.NoRestart, tr.FixedDelay, tr.ExponentialDelay, tr.FailureRate, not 3",
    ),
    ({"state_backend": "rocks"}, tr.ConfigError, "state_backend must be 'memory' or 'disk', not 'rocks'"),
    (
        {"memory": "lots"},
        tr.ConfigError,
        "memory must be a number of bytes or a string such as '512m' or '1g', not 'lots'",
    ),
    ({"memory": 100}, tr.ConfigError, "memory must be at least 1m, not 100"),
    ({"max_parallelism": 0}, tr.ConfigError, "max_parallelism must be from 1 to 32768, not 0"),
    ({"max_parallelism": 40_000}, tr.ConfigError, "max_parallelism must be from 1 to 32768, not 40000"),
    ({"slot_timeout": 0}, tr.ConfigError, "slot_timeout must be above zero, not 0"),
    ({"publish_timeout": 0}, tr.ConfigError, "publish_timeout must be above zero, not 0"),
    ({"task_cpus": 0}, tr.ConfigError, "task_cpus must be a number of cores above zero, not 0"),
    ({"task_cpus": "1"}, tr.ConfigError, "task_cpus must be a number of cores above zero, not '1'"),
    (
        {"parallelism": 9, "max_parallelism": 8},
        tr.ConfigError,
        "parallelism must be a whole number from 1 to max_parallelism (8), not 9",
    ),
    ({"parallelism": 0}, tr.ConfigError, "parallelism must be a whole number from 1 to max_parallelism (128), not 0"),
    (
        {"parallelism": 1.5},
        tr.ConfigError,
        "parallelism must be a whole number from 1 to max_parallelism (128), not 1.5",
    ),
    (
        {"parallelism": (1, 3)},
        tr.ConfigError,
        "parallelism must be a whole number from 1 to max_parallelism (128), not (1, 3); an elastic job has "
        "tr.Elastic(least, most)",
    ),
]


@pytest.mark.parametrize(("settings", "kind", "sentence"), SETTINGS)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=re.escape(sentence)):
        tr.Environment(**settings)


@pytest.mark.parametrize("memory", ["1m", "1M", " 2 mb ", "1g", 1 << 20, "1048576"])
def test_memory_is_bytes_or_a_text(memory: Any) -> None:
    assert tr.Environment(parallelism=1, memory=memory).memory >= 1 << 20


def test_no_restart_is_a_restart_strategy() -> None:
    assert tr.Environment(parallelism=1, restart=tr.NoRestart()).restart == tr.NoRestart()


def test_a_job_is_restarted_where_it_takes_checkpoints_unless_somebody_says_otherwise() -> None:
    def restart(**settings: Any) -> Any:
        return tr.Environment(parallelism=1, **settings).restart

    config = tr.CheckpointConfig("/tmp/here")
    assert restart() == tr.NoRestart()
    assert isinstance(restart(checkpoint=config), tr.ExponentialDelay)
    assert restart(checkpoint=config, restart=tr.NoRestart()) == tr.NoRestart()
    assert restart(restart=tr.FixedDelay(2, 5)) == tr.FixedDelay(2, 5)


@pytest.mark.parametrize(
    ("expected", "sentence"),
    [
        ({"from_checkpoint": 5}, "from_checkpoint must be a path, a URL, 'latest' or 'latest-or-new', not 5"),
        ({"from_checkpoint": ""}, "from_checkpoint must be a path, a URL, 'latest' or 'latest-or-new', not ''"),
        ({"name": ""}, "the name of a job must be a non-empty string, not ''"),
        ({"from_checkpoint": "latest"}, 'from_checkpoint="latest" needs checkpoint=tr.CheckpointConfig(dir="…")'),
    ],
)
def test_how_a_job_is_started_is_checked_before_it_is(expected: dict[str, Any], sentence: str) -> None:
    env = tr.Environment(parallelism=1)
    ROWS(env).sink_to(tr.sinks.Print())
    with pytest.raises(tr.ConfigError, match=re.escape(sentence)):
        env.execute(**expected)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (5, "the name of a job must be a non-empty string, not 5"),
        ("a\ud800", "the name of the job, 'a\\ud800', is not valid Unicode: it contains half a surrogate pair"),
        ("a\0b", "the name of the job, 'a\\x00b', contains control characters or line breaks; choose another"),
        ("two\nlines", "contains control characters or line breaks"),
        ("two\u2028lines", "contains control characters or line breaks"),
        ("..", "the name of the job, '..', consists of blanks or dots"),
        ("  ", "consists of blanks or dots"),
        ("../../etc", "the name of the job, '../../etc', contains a path separator"),
        ("a\\b", "contains a path separator"),
        ("n" * 201, "has 201 characters, more than 200"),
    ],
)
def test_a_name_that_is_no_name_is_refused_before_anything_starts(name: Any, sentence: str) -> None:
    env = tr.Environment(parallelism=1)
    ROWS(env).sink_to(tr.sinks.Print())
    for start in (env.execute, lambda name: tr.testing.run(env, name)):
        with pytest.raises(tr.ConfigError, match=re.escape(sentence)):
            start(name)


@pytest.mark.parametrize("name", ["Straße\u00a07", "日本", "👩‍👩‍👧 family", "a.b:c", "n" * 200, "...", "-"])
def test_any_other_text_is_a_name(name: str) -> None:
    env = tr.Environment(parallelism=1)
    result = ROWS(env).sink_to(tr.sinks.Collect())
    assert tr.testing.run(env, name).name == name
    assert result.result()


CHECKPOINT_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"dir": ""}, "dir must be a folder or a URL, not ''"),
    ({"dir": 5}, "dir must be a folder or a URL, not 5"),
    ({"interval": 0}, "interval must be more than zero seconds, or None, not 0"),
    (
        {"interval": "1 month"},
        f"interval must be {DURATION}, not '1 month'",
    ),
    ({"interval": -1}, "interval must not be negative, as -1 is"),
    (
        {"interval": True},
        f"interval must be {DURATION}, not True",
    ),
    ({"timeout": 0}, "timeout must be more than zero seconds, not 0"),
    ({"min_pause": -1}, "min_pause must not be negative, as -1 is"),
    ({"max_concurrent": 0}, "max_concurrent must be a whole number of at least 1, not 0"),
    ({"keep": True}, "keep must be a whole number of at least 1, not True"),
    ({"keep": 1.5}, "keep must be a whole number of at least 1, not 1.5"),
    ({"tolerated_failures": -1}, "tolerated_failures must be a whole number of at least 0, not -1"),
    ({"retain": "sometimes"}, "retain must be 'never', 'on-cancellation' or 'always', not 'sometimes'"),
    ({"mode": "aling"}, "mode must be 'aligned', 'unaligned-max-inflight' or 'unaligned', not 'aling'"),
    (
        {"alignment_timeout": "5"},
        f"alignment_timeout must be {DURATION}, not '5'",
    ),
    ({"max_inflight_bytes": -1}, "max_inflight_bytes must be a whole number of at least 0, not -1"),
    ({"persist_inflight": "always"}, "persist_inflight must be 'ad-hoc' or 'continuous', not 'always'"),
    (
        {"persist_inflight": "continuous", "alignment_timeout": None},
        "persist_inflight='continuous' writes records that barriers go past, and with mode=",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), CHECKPOINT_SETTINGS)
def test_wrong_settings_of_checkpoints_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(tr.ConfigError, match=re.escape(f"CheckpointConfig: {sentence}")):
        tr.CheckpointConfig(**{"dir": "/tmp/here", **wrong})


RESTART_SETTINGS: list[tuple[Any, str]] = [
    (lambda: tr.FixedDelay(-1), "FixedDelay: attempts must be a whole number of at least 0, not -1"),
    (
        lambda: tr.FixedDelay(1, "5x"),
        f"FixedDelay: delay must be {DURATION}, not '5x'",
    ),
    (
        lambda: tr.ExponentialDelay(multiplier=0.5),
        "ExponentialDelay: multiplier must be a number of at least 1, not 0.5",
    ),
    (lambda: tr.ExponentialDelay(maximum=-1), "ExponentialDelay: maximum must not be negative, as -1 is"),
    (
        lambda: tr.ExponentialDelay(attempts=1.5),
        "ExponentialDelay: attempts must be a whole number of at least 0, not 1.5",
    ),
    (lambda: tr.FailureRate(failures=None), "FailureRate: failures must be a whole number of at least 0, not None"),
    (
        lambda: tr.FailureRate(interval="day"),
        f"FailureRate: interval must be {DURATION}, not 'day'",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), RESTART_SETTINGS)
def test_wrong_settings_of_restarts_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(tr.ConfigError, match=re.escape(sentence)):
        make()


def test_a_folder_may_be_a_path_and_times_may_be_timedeltas() -> None:
    config = tr.CheckpointConfig(pathlib.Path("/tmp/here"), interval=dt.timedelta(minutes=1))
    assert config.dir == "/tmp/here"


# Sinks that write to one place.


@pytest.mark.parametrize(
    "sink",
    [
        lambda: tr.sinks.TextFiles("out"),
        lambda: tr.sinks.Parquet("./out", "n long"),
        lambda: tr.sinks.Table("t", "n long"),
    ],
)
def test_two_sinks_that_are_still_to_run_do_not_write_to_one_place(sink: Any) -> None:
    """A cell of a notebook that was run twice before `execute` wrote everything twice into one folder."""
    env = tr.Environment()
    numbers = env.from_collection([1])
    numbers.sink_to(sink())
    with pytest.raises(tr.GraphError, match=r"has not run yet and writes to .* as well; .*a cell that was run twice"):
        numbers.sink_to(sink())


def test_a_place_is_free_for_the_next_execution(tmp_path: Any) -> None:
    env = tr.Environment(parallelism=1)
    for _ in range(2):
        env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
        tr.testing.run(env)
    assert len(list((tmp_path / "out").glob("part-*"))) == 2


def test_sinks_without_a_place_may_be_many() -> None:
    env = tr.Environment()
    for _ in range(2):
        env.from_collection([1]).sink_to(tr.sinks.Collect())
        env.from_collection([1]).sink_to(tr.sinks.Print())


# Settings.


def test_a_work_dir_is_a_path_or_a_url_of_a_known_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("out", "file:out", "s3a://bucket/x", "hdfs://h/x"):
        assert tr.Environment(work_dir=url).work_dir == url
    with pytest.raises(tr.ConfigError, match="ftp://h/x: a work_dir cannot be kept in ftp:"):
        tr.Environment(work_dir="ftp://h/x")
    assert tr.Environment().work_dir is None
    monkeypatch.setenv("TAILRACE_WORK_DIR", "s3://bucket/theirs")
    assert tr.Environment().work_dir == "s3://bucket/theirs" and tr.Environment(work_dir="mine").work_dir == "mine"


def test_a_collect_that_could_not_start_leaves_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise tr.ConfigError("no slots")

    env = tr.Environment(parallelism=1)
    monkeypatch.setattr("tailrace.spark.start.job_submission.submit", refuse)
    with pytest.raises(tr.ConfigError, match="no slots"):
        env.from_collection([1]).collect()
    with pytest.raises(tr.GraphError, match="there is nothing to run"):
        tr.testing.run(env)


def test_what_is_said_to_be_there_instead_is_there() -> None:
    """The error for a verb of Flink or Spark names one of ours."""
    env = tr.Environment()
    stream = env.from_collection([1])
    for name, instead in INSTEAD.items():
        assert not hasattr(stream, name) and not hasattr(stream.key_by(id), name), name
        for verb in re.findall(r"(\w+)\(", instead):
            assert any(hasattr(one, verb) for one in (stream, stream.key_by(id), env, tr, tr.sinks)), verb
        for option in re.findall(r"map\(f, (\w+)=", instead):
            stream.map(id, **{option: 2 if option == "parallelism" else "one"})
            env = tr.Environment()
            stream = env.from_collection([1])


class Unwelcome(tr.sources.Sequence):
    def check(self) -> None:
        raise tr.ConfigError("server a.b: there is no table 'c' (table=)")


class Unwritable(tr.sinks.Callback):
    def check(self) -> None:
        raise tr.ConfigError("server d: you may not write into 'e' (table=)")


def test_what_a_server_refuses_is_one_error_before_anything_runs() -> None:
    seen: list[int] = []
    env = tr.Environment(parallelism=1)
    env.from_source(Unwelcome(0, 3), uid="numbers").sink_to(Unwritable(seen.append), uid="out")
    for run in (tr.testing.run, tr.Environment.execute):
        with pytest.raises(tr.ConfigError, match=r"(?s)table 'c'.*you may not write into 'e'"):
            run(env)
    assert not seen
