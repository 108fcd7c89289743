"""Aggregates and windows, in rows and in columns, equal those of Spark SQL for the same random DataFrame.

Many: `TAILRACE_TYPE_SEEDS=200 pytest tests/spark/test_aggregates_by_chance.py`. A plain model checks the same without Spark:
`python -m search.values --only aggregates`.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pytest

import tailrace as tr
from tests.spark.test_types import SEEDS, same

pytestmark = pytest.mark.spark

START = dt.datetime(2024, 10, 27, tzinfo=dt.UTC)
"""In the night of which Europe's clocks repeat an hour."""
_REPEATED = [START + dt.timedelta(minutes=minutes) for minutes in (10, 50, 70, 110)]
KEYS: dict[str, list[Any]] = {
    "string": ["a", "b", "", "Zürich", None],
    "bigint": [0, -1, 2**63 - 1, None],
    "smallint": [1, -32768, None],
    "boolean": [True, False, None],
    "double": [0.0, -0.0, float("nan"), float("inf"), 1.5, None],
    "float": [0.0, -0.0, float("nan"), 0.25],
    "decimal(5,2)": [Decimal("0.50"), Decimal("-1.00"), None],
    "date": [dt.date(2024, 1, 1), dt.date(1, 1, 1), None],
    "timestamp": [*_REPEATED, None],
    "timestamp_ntz": [dt.datetime(2024, 10, 27, 2, 30), None],
    "binary": [b"", b"\x00\xff", None],
}
NUMBERS: dict[str, list[Any]] = {
    "int": [1, -5, 2**31 - 1, -(2**31), None],
    "bigint": [1, -5, 2**40, None],
    "tinyint": [127, -128, None],
    "double": [0.25, -8.5, 1024.0, None],
    "float": [0.25, -8.5, None],
    "decimal(7,3)": [Decimal("0.001"), Decimal("9999.999"), Decimal("-9999.999"), None],
    "decimal(18,0)": [Decimal(10**18 - 1), Decimal(1 - 10**18), Decimal(7), None],
    "decimal(28,4)": [Decimal("123456789012345678901234.5678"), Decimal("-0.0001"), Decimal("0.0002"), None],
}
ENDS: dict[str, list[Any]] = {
    "timestamp": [*_REPEATED, None],
    "string": ["a", "", "zz", "\U0001f600", "\uffff", None],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
}
"""Types that can be compared and not summed."""


Kind = Literal["running", "windows", "sessions"]
KINDS: tuple[Kind, ...] = ("running", "windows", "sessions")


@dataclass
class Case:
    """A query of a random DataFrame: its key, the window, and the aggregates by name, in Spark's terms."""

    keys: list[str]
    size: int
    slide: int
    offset: int
    total: str
    """The type of the sum of x."""
    seed: int

    @property
    def aggregates(self) -> dict[str, Any]:
        return {
            "n": tr.Count(), "total": tr.Sum("x"), "mean": tr.Mean("x"), "low": tr.Min("x"), "high": tr.Max("x"),
            "first": tr.Min("e"), "last": tr.Max("e"),
        }  # fmt: skip

    def by_spark(self, df: Any, kind: Kind) -> Any:
        from pyspark.sql import functions as F

        sums = F.coalesce(F.sum("x").cast(self.total), F.lit(0).cast(self.total))  # ours, over nothing, is zero
        requested = [F.count("*").alias("n"), sums.alias("total"), F.avg("x").alias("mean"), F.min("x").alias("low"),
                 F.max("x").alias("high"), F.min("e").alias("first"), F.max("e").alias("last")]  # fmt: skip
        if kind == "running":
            return df.groupBy(*self.keys).agg(*requested)
        window = F.session_window("at", f"{self.size} seconds")
        if kind == "windows":
            window = F.window("at", f"{self.size} seconds", f"{self.slide} seconds", f"{self.offset} seconds")
        found = df.groupBy(*self.keys, window.alias("w")).agg(*requested)
        ends = [(F.unix_micros(f"w.{name}") / 1e6).alias(name) for name in ("start", "end")]
        return found.select(*self.keys, *ends, *list(self.aggregates))

    def by_us(self, stream: Any, kind: Kind, schema: Any) -> Any:
        """A sink of what our operators give, in the columns of Spark's answer."""
        key = tuple(self.keys)
        window: Any = tr.Session(self.size)
        if kind == "windows":
            window = tr.Sliding(self.size, self.slide, offset=self.offset)
        keyed = stream.assign_timestamps("at", out_of_orderness=10_000_000).key_by(*key)
        made = (keyed if kind == "running" else keyed.window(window)).aggregate(**self.aggregates)
        if made.form == "rows" and kind == "running" and len(key) > 1:
            made = made.map(lambda row: (*row[0], *row[1:]))
        elif made.form == "rows":
            made = made.map(tuple)
        return made.sink_to(tr.sinks.DataFrame(schema))


def a_case(spark: Any, seed: int) -> tuple[Case, Any]:
    from pyspark.sql.types import DecimalType, StructType

    chance = random.Random(seed)
    keys = {f"k{i}": chance.choice(list(KEYS)) for i in range(chance.choice([1, 1, 2]))}
    number, end = chance.choice(list(NUMBERS)), chance.choice(list(ENDS))
    columns = {**keys, "x": number, "e": end, "at": "timestamp"}
    schema: Any = StructType.fromDDL(", ".join(f"{name} {kind}" for name, kind in columns.items()))
    rows = [
        (
            *(chance.choice(KEYS[kind]) for kind in keys.values()),
            chance.choice(NUMBERS[number]),
            chance.choice(ENDS[end]),
            START + dt.timedelta(microseconds=chance.randint(-100, 100) * chance.choice([1, 500_000, 1_000_000])),
        )
        for _ in range(chance.randint(1, 80))
    ]
    df = spark.createDataFrame(rows, schema).repartition(chance.randint(1, 3)).cache()
    kind = df.schema["x"].dataType
    total = f"decimal(38,{kind.scale})" if isinstance(kind, DecimalType) else "bigint" if "int" in number else "double"
    size = chance.randint(1, 30)
    slide = chance.choice([size, chance.randint(1, size)])
    return Case(list(keys), size, slide, chance.choice([0, 0, chance.randrange(slide)]), total, seed), df


def last_of(df: Any, keys: list[str]) -> Any:
    """Of the results of each key the one that has seen the most."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(Window.partitionBy(*keys).orderBy(F.col("n").desc()))
    return df.withColumn("rank", rank).where("rank = 1").drop("rank")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_by_chance_aggregates_and_windows_are_those_of_spark_sql(jobs: Any, seed: int) -> None:
    case, df = a_case(jobs.spark, seed)
    expected = {kind: case.by_spark(df, kind) for kind in KINDS}
    env = jobs.env(2)
    found = {
        (form, kind): case.by_us(env.from_dataframe(df, form=form), kind, expected[kind].schema)
        for form in ("rows", "columns")
        for kind in KINDS
    }
    env.execute("aggregates by chance").await_termination()
    for (form, kind), sink in found.items():
        ours = last_of(sink.dataframe(), case.keys) if kind == "running" else sink.dataframe()
        assert same(expected[kind], ours), (case, form, kind)
    df.unpersist()
