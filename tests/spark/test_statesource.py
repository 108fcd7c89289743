"""Checkpoints as DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr

pytestmark = pytest.mark.spark


class Counting(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)
    hits = tr.MapState(str, int)
    last = tr.ValueState(dict)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        self.hits[f"page {value % 20}"] = value
        self.last.value = {"page": f"page {value % 20}", "at": value}
        yield value


@pytest.fixture(scope="module")
def folder(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoints of a job that has counted the numbers below 1,000 by their rest by 10."""
    path = tmp_path_factory.mktemp("checkpoints")
    config = tr.CheckpointConfig(path, interval=None, retain="always")
    env = tr.Environment(spark, parallelism=2, checkpoint=config)
    numbers = env.from_source(tr.sources.Sequence(0, 1_000), uid="numbers")
    counted = numbers.key_by(lambda n: n % 10).process(Counting(), uid="counts")
    counted.sink_to(tr.sinks.TextFiles(str(path.parent / "out")), uid="out")
    env.execute("counting").await_termination()
    tr.spark.register(spark)
    return str(path)


def reading(spark: Any, **options: Any) -> Any:
    return spark.read.format("tailrace-state").options(**options)


def test_a_state_is_a_dataframe(spark: Any, folder: str) -> None:
    df = reading(spark, uid="counts", state="count").load(folder)
    assert df.schema.simpleString() == "struct<key:bigint,value:bigint>"
    assert {(row.key, row.value) for row in df.collect()} == {(key, 100) for key in range(10)}
    assert df.where("key >= 5").groupBy().sum("value").collect()[0][0] == 500


def test_types_are_those_of_the_state(spark: Any, folder: str) -> None:
    hits = reading(spark, uid="counts", state="hits", path=folder).load()
    assert hits.schema.simpleString() == "struct<key:bigint,value:map<string,bigint>>"
    assert {row.key: dict(row.value) for row in hits.collect()}[3] == {"page 3": 983, "page 13": 993}
    last = reading(spark, uid="counts", state="last").load(folder)
    assert last.schema.simpleString() == "struct<key:bigint,value:struct<page:string,at:bigint>>"
    assert {row["at"] for row in last.select("value.at").collect()} == set(range(990, 1_000))


def test_it_is_read_in_parallel_by_key_group(spark: Any, folder: str) -> None:
    df = reading(spark, uid="counts", state="count").load(folder)
    assert df.rdd.getNumPartitions() == 2, "as many as the operator had subtasks"
    finer = reading(spark, uid="counts", state="count", partitions=5).load(folder)
    assert 2 < finer.rdd.getNumPartitions() <= 5
    assert sorted(finer.collect()) == sorted(df.collect())


def test_several_states_are_one_dataframe(spark: Any, folder: str) -> None:
    df = tr.read_state(folder, "counts", states=["count", "last"], spark=spark)
    assert df.schema.simpleString() == "struct<key:bigint,count:bigint,last:struct<page:string,at:bigint>>"
    found = {row.key: (row["count"], row.last.at) for row in df.collect()}
    assert found == {key: (100, 990 + key) for key in range(10)}
    assert tr.read_state(Path(folder), "counts", values="text").columns == ["key", "count", "hits", "last"]
    one = reading(spark, uid="counts", states="count, hits").load(folder)
    assert one.columns == ["key", "count", "hits"]
    for arguments, message in (
        ({"states": "count"}, "states is a list of names, such as \\['count'\\]"),
        ({"states": ["cuont"]}, "has no state 'cuont'"),
        ({"checkpoint": "1"}, "checkpoint is the number of a checkpoint"),
    ):
        with pytest.raises(tr.TailraceError, match=message):
            tr.read_state(folder, "counts", **arguments)


def test_columns_may_be_given(spark: Any, folder: str) -> None:
    df = reading(spark, uid="counts", state="count", keys="text").schema("value double, key string").load(folder)
    assert ("3", 100.0) in {(row.key, row.value) for row in df.collect()}


@pytest.mark.parametrize("what", ["timers", "positions", "inflight", "feedback", "operators"])
def test_all_else_is_a_dataframe_as_well(spark: Any, folder: str, what: str) -> None:
    df = (
        reading(spark, what=what, uid="counts").load(folder)
        if what == "timers"
        else reading(spark, what=what).load(folder)
    )
    rows = df.collect()
    if what == "operators":
        assert {(row.uid, row.state) for row in rows} >= {("numbers", None), ("counts", "count"), ("counts", "hits")}
    else:
        assert rows == [], "the job had ended"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"uid": "cuonts"},
            "no operator with uid 'cuonts'; it has the operators .*'counts'.*with 'count' \\(value int\\)",
        ),
        ({"uid": "counts", "state": "sum"}, "operator 'counts' has no state 'sum'"),
        ({"uid": "counts"}, "has several states: say which"),
        ({"uid": "counts", "stat": "count"}, "has no option 'stat'; it has path, job, checkpoint, what, uid"),
        ({"uid": "counts", "path": "/nowhere/at/all"}, "there is no checkpoint in /nowhere/at/all"),
    ],
)
def test_what_is_not_there_is_reported_before_anything_is_read(
    spark: Any, folder: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        reading(spark, **({"path": folder} | options)).load()


def test_a_value_that_does_not_fit_the_columns_is_refused(spark: Any, folder: str) -> None:
    df = reading(spark, uid="counts", state="count").schema("key long, value string").load(folder)
    with pytest.raises(Exception, match=r"state 'count' of operator 'counts': .*is of type int"):
        df.collect()


def test_classes_of_the_program_are_found(spark: Any, tmp_path: Path) -> None:
    """The program is a script: its classes are those of `__main__`, which is another module where Spark reads."""
    import sys

    main: Any = sys.modules["__main__"]
    Own = dataclass(frozen=True)(type("Own", (), {"__annotations__": {"n": int}, "__module__": "__main__"}))
    main.Own = Own
    try:
        config = tr.CheckpointConfig(tmp_path / "checkpoints", interval=None, retain="always")
        env = tr.Environment(spark, parallelism=1, checkpoint=config)
        owned = env.from_collection([1, 2, 3]).map(Own).key_by(lambda own: own)
        owned.reduce(lambda a, b: a, uid="owned").sink_to(tr.sinks.TextFiles(str(tmp_path / "out")), uid="out")
        env.execute("owned").await_termination()
        tr.spark.register(spark)
        df = reading(spark, uid="owned").load(str(tmp_path / "checkpoints"))
        assert sorted(row["n"] for row in df.select("key.n").collect()) == [1, 2, 3]
    finally:
        del main.Own
        tr.spark.register(spark)


def test_all_partitions_are_of_one_checkpoint(folder: str) -> None:
    """Partitions are of one checkpoint where a job takes another one before they are read, too."""
    import shutil

    from tailrace.spark.data.schemas import spark_schema
    from tailrace.spark.data.statesource import ReadOptions, StateReader, carry

    expected = ReadOptions.of({"path": folder, "uid": "counts", "state": "count", "partitions": "4"}, "/")
    reader = StateReader(expected, spark_schema(expected.view().schema()), carry())
    partitions = reader.partitions()
    [manifest] = {part.value[0] for part in partitions}
    assert manifest.endswith(".manifest")
    moved = f"{folder}-moved"
    shutil.copytree(folder, moved)
    shutil.rmtree(folder)
    try:
        with pytest.raises(tr.CheckpointNotFound):
            list(reader.read(partitions[0]))
    finally:
        shutil.move(moved, folder)
    assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 10


def test_only_a_session_can_be_registered_with() -> None:
    with pytest.raises(tr.ConfigError, match="expected a SparkSession, got str"):
        tr.spark.register("spark")
