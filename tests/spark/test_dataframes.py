"""DataFrames in and out: what goes in comes out, whatever its columns hold."""

from __future__ import annotations

import datetime as dt
import decimal
import os
from collections import Counter
from typing import Any

import pytest

import tailrace as tr

pytestmark = pytest.mark.spark

EVERY_TYPE = (
    "i int, l long, f float, d double, b boolean, s string, y binary, day date, ts timestamp, ntz timestamp_ntz, "
    "money decimal(12,3), many array<int>, words array<string>, inner struct<a:int,b:string>, "
    "deep array<struct<x:long,at:timestamp>>, map map<string,int>"
)
UTC = dt.UTC


def rows() -> list[tuple[Any, ...]]:
    one = (
        7, 1 << 40, 0.5, 2.25, True, "Zürich \U0001f600", b"\x00\xff", dt.date(2013, 1, 31),
        dt.datetime(2013, 3, 31, 1, 30, 0, 123456, tzinfo=UTC), dt.datetime(2013, 3, 31, 1, 30),
        decimal.Decimal("-123.450"), [1, 2, 3], ["a", None], (5, "five"),
        [(9, dt.datetime(2000, 1, 1, tzinfo=UTC))], {"k": 1},
    )  # fmt: skip
    empty = (0, 0, 0.0, -0.0, False, "", b"", dt.date(1, 1, 1), dt.datetime(1970, 1, 1, tzinfo=UTC),
             dt.datetime(1, 1, 1), decimal.Decimal("0.000"), [], [], (None, None), [], {})  # fmt: skip
    return [one, (None,) * len(one), empty]


def same(spark: Any, left: Any, right: Any) -> bool:
    """Whether two DataFrames hold the same rows, by Spark itself."""

    def told(df: Any) -> Counter[str]:
        from pyspark.sql import functions as F

        columns = [F.col(f"`{name}`").cast("string") for name in df.columns if name != "map"]
        return Counter(str(row) for row in df.select(F.to_json(F.struct(*columns)), F.to_json(F.struct("*"))).collect())

    return told(left) == told(right)


@pytest.mark.matrix
@pytest.mark.parametrize(("zone", "form"), [("UTC", "rows"), ("Asia/Kathmandu", "columns"), ("+03:30", "rows")])
def test_every_type(jobs: Any, zone: str, form: Any) -> None:
    spark = jobs.spark
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.createDataFrame(rows(), EVERY_TYPE)
        stream = jobs.env(1).from_dataframe(df, form=form)
        if form == "rows":
            stream = stream.map(lambda row: row)
        back = stream.to_dataframe(EVERY_TYPE)
        assert [(f.name, f.dataType) for f in back.schema] == [(f.name, f.dataType) for f in df.schema]
        assert same(spark, df, back)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_zone_that_only_java_knows_is_reported(jobs: Any) -> None:
    spark = jobs.spark
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "GMT-11")
    try:
        df = spark.createDataFrame([(1,)], "i int")
        assert jobs.env(1).from_dataframe(df).map(lambda row: row.i).collect() == [1]
        with pytest.raises(tr.ConfigError, match=r"'GMT-11'.*offset such as"):
            jobs.env(1).from_dataframe(df.selectExpr("array(current_timestamp()) as now")).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_timestamps_are_the_same_moment_in_user_code(jobs: Any) -> None:
    spark = jobs.spark
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    moment = dt.datetime(2013, 3, 31, 1, 30, tzinfo=UTC)
    try:
        df = spark.createDataFrame([(moment,)], "ts timestamp")
        assert jobs.env(1).from_dataframe(df).map(lambda row: row.ts.timestamp()).collect() == [moment.timestamp()]
        (seen,) = jobs.env(1).from_dataframe(df).map(lambda row: row.ts).collect()
        assert seen == moment and seen.utcoffset() is not None
        out = jobs.env(1).from_collection([(moment,), (moment.astimezone(dt.timezone(dt.timedelta(hours=-8))),)])
        got = out.to_dataframe("ts timestamp").selectExpr("unix_micros(ts) as u").collect()
        assert {row.u for row in got} == {int(moment.timestamp() * 1e6)}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(("partitions", "form"), [(1, "rows"), (1, "columns"), (200, "rows")])
def test_partitions(jobs: Any, partitions: int, form: Any) -> None:
    df = jobs.spark.range(0, 5_000, 1, partitions).selectExpr("id", "id * 2 as twice")
    stream = jobs.env(2).from_dataframe(df, form=form)
    if form == "rows":
        stream = stream.filter(lambda row: row.id % 5 == 0)
        expected = [(i, 2 * i) for i in range(0, 5_000, 5)]
    else:
        expected = [(i, 2 * i) for i in range(5_000)]
    back = stream.to_dataframe("id long, twice long")
    assert sorted((row.id, row.twice) for row in back.collect()) == expected


def test_more_partitions_than_a_process_may_open_files(jobs: Any) -> None:
    import resource

    class Low(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            self.before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, self.before[1]))

        def map(self, value: Any) -> Any:
            return value.id

        def close(self) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.before)

    df = jobs.spark.range(0, 200, 1, 100)
    assert sorted(jobs.env(1).from_dataframe(df).map(Low()).collect()) == list(range(200))


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_empty(jobs: Any, form: Any) -> None:
    df = jobs.spark.createDataFrame([], "id long, name string")
    back = jobs.env(2).from_dataframe(df, form=form).to_dataframe("id long, name string")
    assert back.count() == 0
    assert back.columns == ["id", "name"]
    assert jobs.env(2).from_dataframe(df).map(lambda row: row.id).collect() == []


def test_empty_partitions_among_others(jobs: Any) -> None:
    df = jobs.spark.range(0, 100, 1, 20).filter("id in (3, 97)")
    assert sorted(jobs.env(2).from_dataframe(df).map(lambda row: row.id).collect()) == [3, 97]


def test_no_columns(jobs: Any) -> None:
    df = jobs.spark.range(0, 7).select()
    assert df.columns == []
    assert len(jobs.env(2).from_dataframe(df).collect()) == 7


@pytest.mark.parametrize("name", ["a b", "class", "_hidden", "1st", "naïve", "a.b", "count", "index"])
def test_names_that_are_no_names_in_python(jobs: Any, name: str) -> None:
    df = jobs.spark.range(0, 3).withColumnRenamed("id", name)
    env = jobs.env(1)
    assert sorted(env.from_dataframe(df).map(lambda row: row[0]).collect()) == [0, 1, 2]
    back = jobs.env(1).from_dataframe(df, form="columns").to_dataframe()
    assert back.columns == [name]
    assert sorted(row[0] for row in back.collect()) == [0, 1, 2]


def test_two_columns_of_one_name(jobs: Any) -> None:
    df = jobs.spark.range(0, 3).selectExpr("id as x", "id + 10 as x")
    with pytest.raises(tr.GraphError, match="x"):
        jobs.env(1).from_dataframe(df).map(lambda row: row[1]).collect()


def test_records_that_do_not_fit_name_the_record(jobs: Any) -> None:
    env = jobs.env(1)
    with pytest.raises(tr.JobFailed, match=r"(?s)does not fit the schema.*id"):
        env.from_collection([(1, "a"), ("no number", "b")]).to_dataframe("id long, name string")


def test_results_can_be_read_again_and_again_after_the_job(jobs: Any) -> None:
    env = jobs.env(2)
    numbers = env.from_dataframe(jobs.spark.range(0, 1000, 1, 4))
    back = numbers.map(lambda row: (row.id,)).to_dataframe("id long")
    again = numbers.map(lambda row: (row.id + 1,)).to_dataframe("id long")  # another job on what was taken in
    for _ in range(3):
        assert back.count() == 1000
        assert again.selectExpr("sum(id)").collect()[0][0] == sum(range(1, 1001))
    assert back.join(again, "id").count() == 999
    assert jobs.spark_is_idle()


def test_the_query_runs_once_and_before_the_workers(jobs: Any, tmp_path: Any) -> None:
    def marked(batches: Any) -> Any:
        import uuid

        (tmp_path / uuid.uuid4().hex).touch()
        yield from batches

    df = jobs.spark.range(0, 10, 1, 2).mapInArrow(marked, "id long")
    env = jobs.env(4)  # all slots: the query could not run beside them
    with pytest.warns(UserWarning, match="takes all 4"):
        assert sorted(env.from_dataframe(df).map(lambda row: row.id).collect()) == list(range(10))
    assert len(os.listdir(tmp_path)) == 2


def test_a_query_that_fails_is_reported_and_leaves_no_slot_taken(jobs: Any, traces: Any) -> None:
    before = traces.now()
    df = jobs.spark.range(0, 10).selectExpr("raise_error('no such data') as x")
    env = jobs.env(2)
    with pytest.raises(Exception, match="no such data"):
        env.from_dataframe(df).map(lambda row: 1).collect()
    jobs.assert_nothing_left(before)
    env = jobs.env(3)
    assert env.from_collection([1]).collect() == [1]


def test_the_users_own_job_description_stays(jobs: Any) -> None:
    context = jobs.spark.sparkContext
    context.setJobDescription("mine")
    try:
        jobs.env(1).from_dataframe(jobs.spark.range(0, 3)).collect()
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setJobDescription(None)


def _tested(how: str, df: Any, form: Any, spark: Any) -> Any:
    """The rows that a test of a dataflow gets of a DataFrame, and the columns that it sees."""
    env = tr.Environment(spark, parallelism=2)
    stream = env.from_dataframe(df, form=form)
    seen = stream.map_batches(lambda batch: batch) if form == "columns" else stream.map(lambda row: row)
    out = (seen.to_rows() if form == "columns" else seen).sink_to(tr.sinks.Collect())
    made = getattr(tr.testing, how)(env)
    if how == "audit":
        assert made.same and (made.records > 0) == (df.count() > 0)
    return out.result()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_a_test_of_a_dataflow_reads_dataframes_as_a_job_does(jobs: Any, zone: str) -> None:
    """DataFrames were empty there, without an error."""
    spark = jobs.spark
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.createDataFrame(rows(), EVERY_TYPE).withColumnRenamed("i", "a.b")
        real = jobs.env(1).from_dataframe(df).collect()
        assert len(real) == 3
        for how, form in [("run", "rows"), ("simulate", "columns"), ("audit", "rows"), ("run", "columns")]:
            found = _tested(how, df, form, spark)
            assert sorted(map(repr, found)) == sorted(map(repr, real)), (how, form)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_test_of_a_dataflow_reads_dataframes_of_any_shape(spark: Any) -> None:
    many = spark.range(0, 20_001, 1, 7).selectExpr("id", "id % 3 as `k.k`")
    assert sorted(_tested("run", many, "rows", spark)) == [(at, at % 3) for at in range(20_001)]
    assert _tested("run", many.where("false"), "columns", spark) == []
    assert _tested("simulate", many.limit(3).select(), "rows", spark) == [(), (), ()]


def test_a_test_of_a_dataflow_says_that_the_session_of_a_dataframe_is_gone(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailrace.spark.cluster.classic import Classic

    df = spark.range(3)
    monkeypatch.setattr(Classic, "over", lambda self: "the Spark session was stopped")
    with pytest.raises(tr.GraphError, match=r"from_dataframe: a test reads .* the Spark session was stopped; make"):
        _tested("run", df, "rows", spark)


def test_an_empty_stream_is_a_dataframe_of_its_columns(jobs: Any) -> None:
    """An empty stream was an error, on days without rows."""
    from pyarrow.compute import field

    def told(make: Any) -> list[tuple[str, str]]:
        df = make(jobs.env(2))
        assert df.count() == 0
        return df.dtypes

    day = jobs.spark.createDataFrame(
        [], "name string, `n.n` long, price decimal(10,2), many array<struct<x:int>>, at double"
    )
    some = jobs.spark.range(3).selectExpr("id", "cast(id as string) name")
    result = [("name", "string"), ("total", "decimal(38,2)"), ("count", "bigint")]
    assert told(lambda env: env.from_dataframe(day, form="columns").rebalance().to_dataframe()) == day.dtypes
    assert (
        told(lambda env: env.from_dataframe(some, form="columns").filter(field("id") > 9).to_dataframe()) == some.dtypes
    )
    keyed = {"total": tr.Sum("price"), "count": tr.Count()}
    assert (
        told(lambda env: env.from_dataframe(day, form="columns").key_by("name").aggregate(**keyed).to_dataframe())
        == result
    )
    timed = lambda env: env.from_dataframe(day, form="columns").assign_timestamps("at").key_by("name")  # noqa: E731
    assert told(lambda env: timed(env).window(tr.Tumbling(5)).aggregate(**keyed).to_dataframe()) == [
        result[0], ("start", "double"), ("end", "double"), *result[1:],
    ]  # fmt: skip
    with pytest.raises(tr.GraphError, match="gave no record, so its columns are not known; give to_dataframe a schema"):
        told(lambda env: env.from_dataframe(day, form="columns").map_batches(lambda batch: batch).to_dataframe())


def test_a_test_of_a_dataflow_runs_the_python_that_is_meant(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that a program made itself took the first Python of the path, which had no pyarrow."""
    from tailrace.spark.cluster.classic import Classic

    chosen: list[Classic] = []
    monkeypatch.setattr(Classic, "choose_interpreter", lambda self: chosen.append(self))
    assert _tested("run", spark.range(2), "rows", spark) == [(0,), (1,)]
    assert len(chosen) == 1
