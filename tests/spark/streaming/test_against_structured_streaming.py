"""A pipeline of filters, values, duplicates, windows and joins gives the table that Structured Streaming gives for the same
files.

Many: `TAILRACE_TYPE_SEEDS=100 pytest tests/spark/streaming/test_against_structured_streaming.py`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tests.spark.streaming.pipelines import by_spark, by_us, draw, from_files, rows, table, write

pytestmark = pytest.mark.spark
SEEDS = range(int(os.environ.get("TAILRACE_TYPE_SEEDS", 2)))


@pytest.fixture
def two_partitions(spark: Any) -> Any:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", before)


def answers(spark: Any, folder: Path, pipeline: Any) -> Any:
    """What Structured Streaming gives."""
    df = by_spark(spark, folder, pipeline)
    name = f"answers_{folder.name}".replace("-", "_")
    query = df.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    assert query.awaitTermination(120), query.lastProgress
    found = spark.table(name).collect()
    spark.catalog.dropTempView(name)
    return table(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_table_is_that_of_structured_streaming(two_partitions: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"pipelines {seed}")
    pipeline = draw(rng)
    for name in ("first", "second"):
        write(tmp_path / name, rows(rng, rng.choice((0, 5, 60))) if seed % 10 else rows(rng, 60), files=4)
    env = tr.Environment(parallelism=rng.choice((1, 3)))
    sink = by_us(from_files(env, tmp_path), pipeline).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    ours = table(sink.result())
    theirs = answers(two_partitions, tmp_path, pipeline)
    assert ours == theirs, (
        pipeline,
        sorted((ours - theirs).items(), key=str)[:5],
        sorted((theirs - ours).items(), key=str)[:5],
    )
