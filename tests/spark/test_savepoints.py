"""State written with Spark: a job starts from history, and from a checkpoint that was changed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr

pytestmark = pytest.mark.spark


class Count(tr.KeyedProcessFunction):
    """The key and how many there were of it."""

    count = tr.ValueState(int, default=0)
    seen = tr.MapState(str, int)

    def process(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.count.value += 1
        self.seen["last"] = value
        yield ctx.key, self.count.value


class Doubled(Count):
    count = tr.ValueState(float, default=0.0)


def counting(spark: Any, end: int, folder: Path | None = None, fn: Any = Count, parallelism: int = 2) -> Any:
    config = None if folder is None else tr.CheckpointConfig(folder, interval=None, retain="always")
    env = tr.Environment(spark, parallelism=parallelism, checkpoint=config)
    numbers = env.from_source(tr.sources.Sequence(0, end), uid="numbers")
    sink = numbers.key_by(lambda n: n % 10).process(fn(), uid="counts").sink_to(tr.sinks.Collect(), uid="out")
    return env, sink


@pytest.fixture(scope="module")
def checkpoint(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last checkpoint of a job that has counted the numbers below 100 by their rest by 10."""
    folder = tmp_path_factory.mktemp("checkpoints")
    env, _ = counting(spark, 100, folder)
    env.execute("counting").await_termination()
    return str(folder)


class Named(tr.BroadcastProcessFunction):
    """The names of numbers, which a stream of names gives."""

    names = tr.BroadcastState(int, str)
    most = tr.BroadcastState(str, int)

    def process(self, value: int, ctx: Any) -> Iterator[str]:
        yield self.names.get(value, "?")

    def process_broadcast(self, value: tuple[int, str], ctx: Any) -> None:
        self.names[value[0]] = value[1]


def test_broadcast_state_is_written_changed_and_left_out(spark: Any, tmp_path: Path) -> None:
    names = spark.createDataFrame([(n, f"n{n}") for n in range(4)], "key int, value string")
    most = spark.createDataFrame([("all", 9)], "key string, value int")
    writer = tr.SavepointWriter().put("named", Named, "names", names)
    first = writer.put("named", Named, "most", most).write(tmp_path / "first")
    changed = tr.SavepointWriter.of(first).drop("named", "most")
    changed.transform("named", "names", lambda key, name: [(key + 1, name.upper())])
    second = changed.write(tmp_path / "second")
    with pytest.raises(tr.CheckpointNotFound, match="has no state 'most'"):
        tr.SavepointWriter.of(second).drop("named", "most")
    env = tr.Environment(spark, parallelism=2)
    more = env.from_collection([(9, "nine")], uid="new").broadcast()
    numbers = env.from_source(tr.sources.Sequence(0, 5), uid="numbers").rebalance()
    sink = numbers.connect(more).process(Named(), uid="named").sink_to(tr.sinks.Collect(), uid="out")
    assert env.check_restore(second).fits
    env.execute("naming", from_checkpoint=second).await_termination()
    assert sorted(sink.result()) == ["?", "N0", "N1", "N2", "N3"]


def state(spark: Any, path: str, name: str) -> dict[Any, Any]:
    tr.spark.register(spark)
    df = spark.read.format("tailrace-state").options(uid="counts", state=name).load(path)
    return {row.key: row.value for row in df.collect()}


def test_a_new_job_starts_from_history(spark: Any, tmp_path: Path) -> None:
    history = spark.range(1_000).selectExpr("id % 7 AS key").groupBy("key").count()
    seen = spark.sql("SELECT 3L AS key, map('last', 33L) AS value")
    writer = tr.SavepointWriter()
    writer.put("counts", Count, "count", history.withColumnRenamed("count", "value"))
    path = writer.put("counts", Count(), "seen", seen).write(str(tmp_path / "bootstrap"))
    env, sink = counting(spark, 100, parallelism=3)
    assert env.check_restore(path).fits
    env.execute("counting", from_checkpoint=path).await_termination()
    before = {key: len(range(key, 1_000, 7)) for key in range(7)}
    assert Counter(sink.result()) == Counter((key, before.get(key, 0) + n) for key in range(10) for n in range(1, 11))
    assert state(spark, path, "seen") == {3: {"last": 33}}


def test_a_checkpoint_is_changed(spark: Any, checkpoint: str, tmp_path: Path) -> None:
    writer = tr.SavepointWriter.of(checkpoint)
    writer.transform("counts", "count", lambda key, value: [(key, value * 2.0)] if key else [], function=Doubled)
    path = writer.drop("counts", "seen").drop("numbers").write(tmp_path / "changed")
    assert state(spark, path, "count") == dict.fromkeys(range(1, 10), 20.0)
    env, sink = counting(spark, 10, fn=Doubled)
    env.execute("counting", from_checkpoint=path).await_termination()
    assert sorted(sink.result()) == [(key, 21.0 if key else 1.0) for key in range(10)]


def test_a_state_is_replaced_and_all_else_goes_on(spark: Any, checkpoint: str, tmp_path: Path) -> None:
    counts = spark.createDataFrame([(1, 5)], "key long, value long")
    path = tr.SavepointWriter.of(checkpoint).put("counts", Count, "count", counts).write(tmp_path / "replaced")
    assert state(spark, path, "count") == {1: 5}
    assert state(spark, path, "seen") == state(spark, checkpoint, "seen")
    again = tr.SavepointWriter.of(path).write(tmp_path / "copied")
    assert state(spark, again, "count") == {1: 5}


def test_classes_of_the_program_are_made_by_functions(spark: Any, tmp_path: Path) -> None:
    main: Any = sys.modules["__main__"]
    main.Own = dataclass(frozen=True)(type("Own", (), {"__annotations__": {"n": int}, "__module__": "__main__"}))
    try:
        df = spark.sql("SELECT named_struct('n', 1L) AS key, 5L AS value")
        writer = tr.SavepointWriter()
        with pytest.raises(
            tr.ConfigError, match=r"column 'key' is struct<n: int64.*say how they are made, key=lambda row"
        ):
            tr.SavepointWriter().put("counts", Count, "count", df).write(tmp_path / "refused")
        Own = main.Own
        path = writer.put("counts", Count, "count", df, key=lambda row: Own(**row)).write(tmp_path / "own")
        from tailrace.statedata.stored import StoredCheckpoint

        stored = StoredCheckpoint.open(path)
        found = {key: n for one in stored.entries("counts", {"count"}, (0, 128)) for key, n in one.entries.items()}
        assert found == {Own(1): 5}
    finally:
        del main.Own


@pytest.mark.parametrize(
    ("rows", "schema", "how", "kind", "message"),
    [
        ([(1, 2), (1, 3)], "key long, value long", {}, tr.IncompatibleState, "key 1 is there twice"),
        (
            [(1, "a")],
            "key long, value string",
            {},
            tr.IncompatibleState,
            "'a' of key 1 is of type str, and int is declared",
        ),
        ([(1, None)], "key long, value long", {}, tr.IncompatibleState, "the value None of key 1 is None"),
        ([(1, 0)], "key long, value long", {"value": lambda n: 1 // n}, tr.UserCodeError, "raised ZeroDivisionError"),
    ],
)
def test_what_is_no_state_is_refused_and_nothing_is_left(
    spark: Any, tmp_path: Path, rows: Any, schema: str, how: Any, kind: Any, message: str
) -> None:
    df = spark.createDataFrame(rows, schema)
    with pytest.raises(kind, match=message):
        tr.SavepointWriter().put("counts", Count, "count", df, **how).write(tmp_path / "refused")
    assert not [path for path in (tmp_path / "refused").rglob("*") if path.is_file()]
