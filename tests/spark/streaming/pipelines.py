"""Random pipelines, built twice: of the verbs of Structured Streaming and of ours, over the same files."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tailrace as tr

START = dt.datetime(2024, 3, 10, 6, 58, 3, tzinfo=dt.UTC)
"""Behind 1970: Spark's watermark begins there, and what is before it is late."""
DELAY, JITTER = 60, 25
"""Seconds: what a watermark waits for, and how far a row may be behind the one before."""
END = "end"
"""The key of rows that come long behind the others, so that all windows before them are over."""
ENDS = 4
"""Files with such a row. Spark runs no batch behind the last file, so all windows must be over before it, in both."""
AT_ONCE = 2
"""Files in a batch of Spark's. Each stream has as many batches."""
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("v", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
DDL = "id long, k string, v int, at timestamp"

BOUNDS = "k string, start timestamp, end timestamp, n long, total long"
VALUE = {"v": "int", "total": "long"}

WHERE = (
    "v > 3", "v is null or v % 2 = 0", "k <> 'b'", "k like 'a%' or k is null", "id % 3 <> 1", "not (v > 3 and id > 20)",
    "at >= timestamp '2024-03-10 07:00:00Z'", "length(k) < 3", "v between -2 and 6", "coalesce(v, 0) <> 0",
)  # fmt: skip
VALUES = (
    "v + 1", "v * 3 - 2", "case when v > 5 then v end", "coalesce(v, 0)", "v % 4", "if(k = 'a', v, -v)", "length(k)",
    "cast(v div 2 as int)", "abs(v)", "greatest(v, 2)",
)  # fmt: skip
COUNTS = ("n > 1", "total is not null and total % 2 = 0", "low < high", "k is not null")


@dataclass(frozen=True)
class Where:
    """Rows for which a condition holds, and the ends. Spark moves a condition that does not name the time in front of
    `withWatermark`: ends that it left out would not move the watermark, and nothing before them would ever be over."""

    text: str

    @property
    def whole(self) -> str:
        return f"({self.text}) or k = '{END}'"


@dataclass(frozen=True)
class Value:
    """Another value in the place of `v`."""

    text: str


@dataclass(frozen=True)
class Once:
    """One row of each id."""


@dataclass(frozen=True)
class Windows:
    """Aggregates of a key in a window."""

    size: int
    slide: int


@dataclass(frozen=True)
class Joined:
    """Rows with those of the other stream within a time."""

    before: int
    after: int
    how: str


@dataclass(frozen=True)
class Pipeline:
    """The steps of the first stream, and those of the second one before they are joined."""

    steps: tuple[Any, ...]
    second: tuple[Any, ...]


def _plain(rng: random.Random) -> list[Any]:
    steps = [rng.choice((Where(rng.choice(WHERE)), Value(rng.choice(VALUES)))) for _ in range(rng.randint(0, 2))]
    return [*steps, Once()] if rng.random() < 0.4 else steps


def draw(rng: random.Random) -> Pipeline:
    """A pipeline."""
    steps, second = _plain(rng), list[Any]()
    what = rng.choice(("windows", "windows", "twice", "join", "join", "plain"))
    if what == "join":
        second = _plain(rng)
        before, after = sorted(rng.choice((-40, -7, 0, 0, 5, 30)) for _ in range(2))
        steps.append(Joined(before, after, rng.choice(("inner", "left", "right", "full", "semi"))))
    elif what != "plain":
        size = rng.choice((10, 30, 60))
        steps.append(Windows(size, rng.choice((size, size, size // 2, size // 5))))
        if rng.random() < 0.4:
            steps.append(Where(rng.choice(COUNTS)))
        if what == "twice":
            steps.append(Windows(rng.choice((60, 120)), 60))
    return Pipeline(tuple(steps), tuple(second))


def rows(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Rows in an order that is not quite that of their times. Some come a second time."""
    found: list[tuple[Any, ...]] = []
    time = 0.0
    for number in range(count):
        time += rng.choice((0.0, 0.5, 1.0, 4.0, 10.0))
        at = START + dt.timedelta(
            seconds=max(0.0, time - rng.choice((0, 0, 3, JITTER))), microseconds=rng.choice((0, 1))
        )
        key, value = rng.choice(("a", "b", "ab", "", "é", None)), rng.choice((None, *range(-3, 9)))
        found.append((number, key, value, at))
        if rng.random() < 0.1:
            found.append(found[-1])
    return found


def write(folder: Path, found: list[tuple[Any, ...]], files: int) -> None:
    """The rows in so many files, with `ENDS` more behind them that end all windows."""
    folder.mkdir(parents=True)
    size = max(1, -(-len(found) // files))
    parts = [found[at * size : (at + 1) * size] for at in range(files)]
    parts += [[(-1 - day, END, 0, START + dt.timedelta(days=10 * (day + 1)))] for day in range(ENDS)]
    for number, part in enumerate(parts):
        path = folder / f"{number:03d}.parquet"
        values = list(zip(*part, strict=True)) if part else [()] * len(SCHEMA)
        columns = [pa.array(column, field.type) for column, field in zip(values, SCHEMA, strict=True)]
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))  # Spark reads the oldest file first


# In Structured Streaming.


def _spark_stream(spark: Any, folder: Path, steps: tuple[Any, ...]) -> Any:
    df = spark.readStream.schema(DDL).option("maxFilesPerTrigger", AT_ONCE).parquet(f"file://{folder}")
    return _spark_steps(df.withWatermark("at", f"{DELAY} seconds"), steps, None)


def _spark_steps(df: Any, steps: tuple[Any, ...], other: Any) -> Any:
    from pyspark.sql import functions as F

    for step in steps:
        if isinstance(step, Where):
            df = df.where(step.whole)
        elif isinstance(step, Value):
            df = df.withColumn("v", F.expr(step.text))
        elif isinstance(step, Once):
            df = df.dropDuplicatesWithinWatermark(["id"])
        elif isinstance(step, Windows):
            again = "window" in df.columns
            time = F.window_time("window") if again else F.col("at")
            window = F.window(time, f"{step.size} seconds", f"{step.slide} seconds")
            of = "total" if again else "v"
            sums = [F.count("*").alias("n"), F.coalesce(F.sum(of), F.lit(0)).alias("total")]
            sums += [F.min(of).alias("low"), F.max(of).alias("high"), F.avg(of).alias("mean")]
            df = df.groupBy("k", window.alias("window")).agg(*sums)
        else:
            second = other.selectExpr("id as id2", "k as k2", "v as v2", "at as at2")
            on = f"k = k2 and at2 >= at + interval {step.before} seconds and at2 <= at + interval {step.after} seconds"
            df = df.where("k is not null").join(
                second.where("k2 is not null"), F.expr(on), step.how.replace("semi", "left_semi")
            )
    return df


def by_spark(spark: Any, folder: Path, pipeline: Pipeline) -> Any:
    """The DataFrame, with times in microseconds."""
    other = _spark_stream(spark, folder / "second", pipeline.second) if _joins(pipeline) else None
    df = _spark_steps(_spark_stream(spark, folder / "first", ()), pipeline.steps, other)
    if "k2" in df.columns:
        df = df.withColumn("k", _either("k", "k2")).drop("k2")
    if "window" in df.columns:
        df = df.selectExpr("*", "window.start as start", "window.end as end").drop("window")
    return df


def _either(first: str, second: str) -> Any:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(first), F.col(second))


# In ours.


def _our_steps(stream: Any, steps: tuple[Any, ...], other: Any) -> Any:
    for step in steps:
        if isinstance(step, Where):
            stream = stream.sql(f"select * from stream where {step.whole}")
        elif isinstance(step, Value):
            stream = stream.sql(f"select * except (v), {step.text} as v from stream")
        elif isinstance(step, Once):
            stream = stream.key_by("id").drop_duplicates(within=2 * DELAY)
        elif isinstance(step, Windows):
            of = "total" if "total" in stream.columns else "v"
            windows = stream.key_by("k").window(tr.Sliding(step.size, step.slide), bounds="datetime")
            stream = windows.aggregate(
                n=tr.Count(), total=tr.Sum(of), low=tr.Min(of), high=tr.Max(of), mean=tr.Mean(of)
            ).to_columns(f"{BOUNDS}, low {VALUE[of]}, high {VALUE[of]}, mean double")
        else:
            first, second = (one.sql("select * from stream where k is not null") for one in (stream, other))
            second = second.sql("select id as id2, k, v as v2, at as at2 from stream")
            within = (step.before, step.after)
            stream = first.key_by("k").join(second.key_by("k"), within=within, how=step.how)
    return stream


def by_us(sources: Any, pipeline: Pipeline) -> Any:
    """The stream. `sources` gives the first stream in columns, and the second one, with their times."""
    other = _our_steps(sources("second"), pipeline.second, None) if _joins(pipeline) else None
    return _our_steps(sources("first"), pipeline.steps, other)


def _joins(pipeline: Pipeline) -> bool:
    return any(isinstance(step, Joined) for step in pipeline.steps)


def from_files(env: tr.Environment, folder: Path) -> Any:
    """Sources of the files, for `by_us`."""

    def source(name: str) -> Any:
        stream = env.from_source(tr.sources.Parquet(str(folder / name), form="columns")).to_columns(DDL)
        return stream.assign_timestamps("at", DELAY)

    return source


def table(found: Any) -> Counter[Any]:
    """Rows as they are compared: values by name, times in microseconds, without the ends."""
    made = (tuple(sorted((name, _plain_value(value)) for name, value in row.asDict().items())) for row in found)
    return Counter(row for row in made if ("k", END) not in row)


def _plain_value(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        value = value if value.tzinfo is not None else value.astimezone()
        return (value - START) // dt.timedelta(microseconds=1)
    return value
