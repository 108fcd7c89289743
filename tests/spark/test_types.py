"""What goes through a job comes out as Spark itself would have it, whatever its type and however the session is set; what we
do not carry whole is refused by name."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr

pytestmark = pytest.mark.spark
SEEDS = int(os.environ.get("TAILRACE_TYPE_SEEDS", "2"))
"""Many: `TAILRACE_TYPE_SEEDS=100 pytest tests/spark/test_types.py -k by_chance`."""


@contextmanager
def settings(spark: Any, **given: str) -> Iterator[None]:
    """Settings of the session, by their last words."""
    names = {
        "rebase": "spark.sql.parquet.datetimeRebaseModeInRead",
        "ntz": "spark.sql.parquet.inferTimestampNTZ.enabled",
        "case": "spark.sql.caseSensitive",
        "zone": "spark.sql.session.timeZone",
    }
    before = {name: spark.conf.get(names[name]) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(names[name], value)


# Random rows of random types.

SIMPLE = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "decimal(7,2)", "decimal(38,18)", "interval day to second",
)  # fmt: skip


def a_type(chance: random.Random, depth: int = 0) -> str:
    kind = chance.choice(["simple"] * 6 + ["array", "struct", "map"] * (depth < 2))
    if kind == "array":
        return f"array<{a_type(chance, depth + 1)}>"
    if kind == "map":
        key = chance.choice(["int", "string", "date", "decimal(7,2)"])
        return f"map<{key},{a_type(chance, depth + 1)}>"
    if kind == "struct":
        return "struct<" + ",".join(f"f{i}:{a_type(chance, depth + 1)}" for i in range(chance.randint(1, 3))) + ">"
    return chance.choice(SIMPLE)


def a_value(kind: Any, chance: random.Random, *, null: bool = True) -> Any:
    """A value of a type, often at the end of its range."""
    from pyspark.sql import types as T

    if null and chance.random() < 0.2:
        return None
    if isinstance(kind, T.ArrayType):
        return [a_value(kind.elementType, chance) for _ in range(chance.randint(0, 3))]
    if isinstance(kind, T.MapType):
        keys = [a_value(kind.keyType, chance, null=False) for _ in range(chance.randint(0, 3))]
        return {key: a_value(kind.valueType, chance) for key in keys}
    if isinstance(kind, T.StructType):
        return tuple(a_value(field.dataType, chance) for field in kind.fields)
    bits = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}.get(type(kind))
    if bits is not None:
        return chance.choice([0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1), chance.getrandbits(bits - 1)])
    if isinstance(kind, T.DecimalType):
        whole = chance.choice([0, 1, -1, 10**kind.precision - 1])
        return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -kind.scale))  # exact; scaleb rounds
    if isinstance(kind, T.DateType):
        return chance.choice([dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1969, 12, 31), dt.date(9999, 12, 31)])
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        zone = dt.UTC if isinstance(kind, T.TimestampType) else None
        years = chance.choice(
            [(2, 1, 3), (1899, 12, 31, 23, 59, 59, 999_999), (1970, 1, 1), (2013, 10, 27, 1, 30), (9998, 1, 1)]
        )
        return dt.datetime(*years, tzinfo=zone)
    values: dict[type, list[Any]] = {
        T.BooleanType: [True, False],
        T.FloatType: [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1.401298464324817e-45],
        T.DoubleType: [0.0, -0.0, 0.1, float("nan"), float("inf"), 5e-324, 1.7976931348623157e308],
        T.StringType: ["", "a", "\x00", "Zürich \U0001f600", "a\nb", " " * 3],
        T.BinaryType: [b"", b"\x00\xff", b"abc"],
        T.DayTimeIntervalType: [dt.timedelta(0), dt.timedelta(days=-3, microseconds=1), dt.timedelta(days=100_000)],
    }
    return chance.choice(values[type(kind)])


def random_frame(spark: Any, seed: int) -> Any:
    from pyspark.sql.types import StructType

    chance = random.Random(seed)
    schema: Any = StructType.fromDDL(", ".join(f"c{i} {a_type(chance)}" for i in range(chance.randint(1, 6))))
    rows = [tuple(a_value(field.dataType, chance) for field in schema.fields) for _ in range(chance.randint(1, 30))]
    return spark.createDataFrame(rows, schema).repartition(chance.randint(1, 3))


def same(left: Any, right: Any) -> bool:
    """Whether two DataFrames hold the same rows. Maps cannot be compared, so they go as their entries."""
    assert [(f.name, f.dataType) for f in left.schema] == [(f.name, f.dataType) for f in right.schema]

    def comparable(df: Any) -> Any:
        from pyspark.sql import functions as F

        plain = [
            F.to_json(F.struct(F.col(f.name))) if "map<" in f.dataType.simpleString() else F.col(f.name)
            for f in df.schema
        ]
        return df.select([column.alias(f.name) for column, f in zip(plain, df.schema, strict=True)])

    left, right = comparable(left), comparable(right)
    return left.exceptAll(right).isEmpty() and right.exceptAll(left).isEmpty()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_by_chance_any_dataframe_comes_back_as_it_was(jobs: Any, seed: int, tmp_path: Path) -> None:
    spark, chance = jobs.spark, random.Random(-seed - 1)
    zone = chance.choice(["UTC", "America/New_York", "Asia/Kathmandu"])
    with settings(
        spark, zone=zone, rebase=chance.choice(["LEGACY", "CORRECTED"]), ntz=chance.choice(["true", "false"])
    ):
        df = random_frame(spark, seed).cache()
        env = jobs.env(2)
        rows = env.from_dataframe(df).map(lambda row: row)
        columns = env.from_dataframe(df, form="columns")
        out = {
            "rows": rows.sink_to(tr.sinks.DataFrame(df.schema)),
            "columns": columns.sink_to(tr.sinks.DataFrame()),
        }
        rows.sink_to(tr.sinks.Parquet(str(tmp_path / "rows"), df.schema))
        env.execute("by chance").await_termination()
        again = jobs.env(1)
        for form in ("rows", "columns"):
            stream = again.from_source(tr.sources.Parquet(str(tmp_path / "rows"), form=form))
            out[f"parquet in {form}"] = stream.sink_to(tr.sinks.DataFrame(df.schema))
        again.execute("again").await_termination()
        for name, sink in out.items():
            assert same(df, sink.dataframe()), (seed, name)
        df.unpersist()


# NaN, and what Spark's own files mean.


def test_rows_with_nan_are_found_by_filters(jobs: Any, tmp_path: Path) -> None:
    """To Spark NaN is above all numbers; Arrow leaves it out of the smallest and largest values that Spark skips by."""
    nan, spark = float("nan"), jobs.spark
    schema = "x double, inner struct<y:float>"
    rows = [(value, (value,)) for value in (1.0, nan, 2.0)]
    env = jobs.env(1)
    stream = env.from_collection(rows)
    out = stream.sink_to(tr.sinks.DataFrame(schema))
    stream.sink_to(tr.sinks.Parquet(str(tmp_path / "out"), schema))
    env.execute("nan").await_termination()
    for df in (out.dataframe(), spark.read.parquet(f"{tmp_path}/out")):
        for query in ("x > 5", "x = double('NaN')", "NOT x <= 5", "x IN (double('NaN'), 7D)", "inner.y > 5"):
            assert df.where(query).count() == 1, query


def test_times_of_sparks_own_files_are_moments_of_any_year(jobs: Any, tmp_path: Path) -> None:
    spark = jobs.spark
    with settings(spark, zone="America/New_York"):
        df = spark.sql("select timestamp'2024-01-01 12:00:00' as a union all select timestamp'9998-12-31 00:00:00'")
        df.write.parquet(f"{tmp_path}/in")
        for form in ("rows", "columns"):
            source = tr.sources.Parquet(str(tmp_path / "in"), form=form)
            assert same(df, jobs.env(1).from_source(source).to_dataframe("a timestamp"))
        assert same(
            df, jobs.env(1).from_source(tr.sources.Parquet(str(tmp_path / "in"), form="columns")).to_dataframe()
        )


# The session.


def test_a_result_does_not_depend_on_settings_of_the_session(jobs: Any, tmp_path: Path) -> None:
    spark = jobs.spark
    df = spark.sql(
        "select date'1500-01-01' as d, timestamp'1500-01-01 00:00:00' as t, timestamp_ntz'2024-01-01 00:00:00' as n"
    )
    folder = tmp_path / "run[1] {a,b} *"
    folder.mkdir()
    with settings(spark, rebase="LEGACY", ntz="false"):
        assert same(
            df,
            jobs.env(1, work_dir=str(folder)).from_dataframe(df).to_dataframe("d date, t timestamp, n timestamp_ntz"),
        )
        assert same(df, jobs.env(1, work_dir=str(folder)).from_dataframe(df, form="columns").to_dataframe())


def test_columns_that_differ_in_case_only_are_refused_before_the_job(jobs: Any) -> None:
    df = jobs.spark.sql("select 1L a, 2L A, named_struct('b', 1, 'B', 2) s")
    with pytest.raises(tr.GraphError, match=r"'a' and 'A' differ in case only, and spark.sql.caseSensitive is false"):
        jobs.env(1).from_dataframe(df).to_dataframe("a long, A long")
    with pytest.raises(tr.GraphError, match=r"'b' and 'B' in 's' differ in case only"):
        jobs.env(1).from_dataframe(df).to_dataframe("a long, s struct<b:int,B:int>")
    with pytest.raises(tr.JobFailed, match=r"'a' and 'A' differ in case only"):
        jobs.env(1).from_dataframe(df, form="columns").to_dataframe()
    with settings(jobs.spark, case="true"):
        assert jobs.env(1).from_collection([(1, 2)]).to_dataframe("a long, A long").collect()[0].asDict() == {
            "a": 1,
            "A": 2,
        }
    with pytest.raises(tr.GraphError, match="a DataFrame needs at least one column"):
        jobs.env(1).from_collection([()]).to_dataframe(pa.schema([]))


@pytest.mark.parametrize(
    "kind",
    [
        "string collate UTF8_LCASE",
        "interval day to hour",
        "interval year",
        "variant",
        "array<map<int,variant>>",
    ],
)
def test_a_type_that_is_not_carried_whole_is_refused_by_name(jobs: Any, kind: str) -> None:
    from pyspark.sql.types import StructType

    df = jobs.spark.createDataFrame([], StructType.fromDDL(f"n int, odd {kind}"))
    with pytest.raises(
        tr.GraphError, match=r"from_dataframe: column 'odd.*' is of type .*, which is not carried without loss"
    ):
        jobs.env(1).from_dataframe(df)
    with pytest.raises(
        tr.GraphError, match=r"column 'odd.*' is of type .*, which is not carried without loss; cast it to"
    ):
        jobs.env(1).from_collection([(1, None)]).to_dataframe(f"n int, odd {kind}")


def test_what_spark_has_no_type_for_is_refused_by_name(jobs: Any) -> None:
    with pytest.raises(
        tr.GraphError, match=r"to_dataframe: column 'odd' is of type void, which is not carried without loss"
    ):
        jobs.env(1).from_collection([(1, None)]).to_dataframe("n int, odd void")
    for kind, message in (
        (pa.uint64(), "no such type"),
        (pa.decimal256(50, 2), "at most 38 digits"),
        (pa.time64("us"), "time"),
    ):
        with pytest.raises(tr.GraphError, match=rf"to_dataframe: column 'x' is .*{message}"):
            jobs.env(1).from_collection([(1,)]).to_dataframe(pa.schema([("x", kind)]))

    def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array([1] * batch.num_rows, pa.uint16())})

    with pytest.raises(tr.JobFailed, match=r"to_dataframe: column 'x' is uint16, and Spark has no such type"):
        jobs.env(1).from_dataframe(jobs.spark.range(3), form="columns").map_batches(odd).to_dataframe()


# Tables.


@pytest.fixture
def database(spark: Any, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE DATABASE IF NOT EXISTS types LOCATION '{tmp_path}/types'")
    yield "types"
    spark.sql("USE default")
    spark.sql("DROP DATABASE types CASCADE")


def write(jobs: Any, table: str, schema: str, rows: list[Any]) -> None:
    env = jobs.env(1)
    env.from_collection(rows).sink_to(tr.sinks.Table(table, schema))
    env.execute("table").await_termination()


def test_a_bucketed_table_is_refused(jobs: Any, database: str) -> None:
    """The files of a bucketed table belong to buckets; with others among them it cannot be grouped any more."""
    jobs.spark.sql(f"CREATE TABLE {database}.b (a long) USING parquet CLUSTERED BY (a) INTO 4 BUCKETS")
    with pytest.raises(
        tr.ConfigError, match=r"table 'types.b' is bucketed, and the files of this sink belong to no bucket"
    ):
        write(jobs, f"{database}.b", "a long", [(1,)])


def test_texts_that_are_too_long_for_a_table_are_refused_and_short_ones_are_padded(jobs: Any, database: str) -> None:
    spark = jobs.spark
    spark.sql(
        f"CREATE TABLE {database}.t (v varchar(2), c char(3), n array<struct<x:varchar(2)>>, s string) USING parquet"
    )
    schema = "v string, c string, n array<struct<x:string>>, s string"
    write(jobs, f"{database}.t", schema, [("é\U0001f600", "a", [("xy",), None], "long"), (None, None, None, None)])
    files = [
        path
        for path in (
            Path(spark.sql(f"DESCRIBE DATABASE {database}").where("info_name = 'Location'").first()[1][5:]) / "t"
        ).iterdir()
        if path.suffix == ".parquet"
    ]
    assert sorted(map(str, (row["c"] for file in files for row in pq.read_table(file).to_pylist()))) == ["None", "a  "]
    for row, column, kind in (
        (("abc", "a", [], ""), "v", r"varchar\(2\)"),
        (("ab", "abcd", [], ""), "c", r"char\(3\)"),
        (("ab", "a", [("abc",)], ""), "n", r"array<struct<x:varchar\(2\)>>"),
    ):
        with pytest.raises(tr.JobFailed, match=rf"(?s)record .*column '{column}' is {kind}, and a value is longer"):
            write(jobs, f"{database}.t", schema, [("ab", "abc", [], ""), row])
    spark.sql(f"CREATE TABLE {database}.c (n array<char(2)>) USING parquet")
    with pytest.raises(
        tr.ConfigError, match=r"column 'n' is array<char\(2\)>, and this sink does not write char inside of"
    ):
        write(jobs, f"{database}.c", "n array<string>", [(["a"],)])


def test_a_cached_table_is_fresh_after_each_publishing_whatever_database_is_used(jobs: Any, database: str) -> None:
    spark = jobs.spark
    spark.sql(f"USE {database}")
    spark.sql("CREATE TABLE k (a long, s string COLLATE UTF8_LCASE) USING parquet")
    spark.sql("CACHE TABLE k")
    sink = tr.sinks.Table("k", "a long, s string")
    env = jobs.env(1)
    env.from_collection([(1, "a")]).sink_to(sink)
    job = jobs.start(env, running=False)
    spark.sql("USE default")
    job.await_termination()
    assert spark.table(f"{database}.k").where("s = 'A'").count() == 1
