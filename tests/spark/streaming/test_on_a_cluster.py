"""Streams from Spark and back, and views, on a standalone cluster: in classic Spark and in Spark Connect."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import Cluster, said

pytestmark = [
    pytest.mark.spark,
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
]  # programs of several jobs, on a cluster

PROGRAM = r"""
import os, sys, time
import tailrace as tr

folder = sys.argv[1]
spark = tr.Environment().spark
SCHEMA = "key long, value long, count long"
os.mkdir(f"{folder}/in")


def add(first, last):
    for start in range(first, last, 50):
        with open(f"{folder}/in/.{start}", "w") as file:
            file.writelines(f"{n}\n" for n in range(start, start + 50))
        os.rename(f"{folder}/in/.{start}", f"{folder}/in/{start}.csv")


class Count(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, row, ctx):
        self.count.value += 1
        yield ctx.key, row.value, self.count.value


def write(df, number):
    df.write.mode("overwrite").parquet(f"{folder}/called/number={number}")


def started(begin):
    config = tr.CheckpointConfig(f"{folder}/checkpoints", interval=0.5, keep=1000)
    env = tr.Environment(spark, parallelism=2, checkpoint=config, slot_timeout=300)
    files = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1).csv(f"file://{folder}/in")
    numbers = env.from_streaming(files, uid="numbers")
    counted = numbers.key_by(lambda row: row.value % 5).process(Count(), uid="counted")
    counted.sink_to(tr.sinks.ForeachBatch(write, SCHEMA), uid="called")
    counted.to_streaming("out", SCHEMA, retain="always")
    return env.execute("streams", from_checkpoint=begin)


def published():
    rows = spark.read.format("tailrace").option("path", f"{folder}/checkpoints").option("job", "streams")
    return rows.schema(SCHEMA).load()


def until(job, rows):
    while published().count() < rows:
        assert job.is_active, job.exception()
        time.sleep(0.1)


def follow():
    options = {"path": f"{folder}/checkpoints", "job": "streams", "sink": "out"}
    rows = spark.readStream.format("tailrace").options(**options).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/query")
    assert writer.trigger(availableNow=True).start(f"{folder}/read").awaitTermination(300)


SUMS = "select sum(value) from streams_counted_count"
add(0, 150)
job = started(None)
until(job, 150)
follow()
print(*sorted(tr.spark.views(spark, "streams")))
assert spark.sql(SUMS).collect()[0][0] == spark.table("streams_out").count() == 150
add(150, 300)
until(job, 300)
assert spark.sql(SUMS).collect()[0][0] == spark.table("streams_out").count() == 300
add(300, 400)  # what of these is published before the stop depends on the moment
job.stop()
job = started("latest")
until(job, 400)
at = job.checkpoint().id
then = tr.spark.views(spark, "streams", checkpoint=at)
assert sorted(row.value for row in spark.table(f"streams_counted_count_at_{at}").collect()) == [80] * 5, then
assert list(job.metrics()["queries"]) == ["from_streaming"]
job.stop()
follow()
rows = sorted((n % 5, n) for n in range(400))
counts = sorted((key, count) for key in range(5) for count in range(1, 81))
read, called = spark.read.parquet(f"{folder}/read"), spark.read.parquet(f"{folder}/called").drop("number")
found = [sorted(tuple(row) for row in one.collect()) for one in (published(), read, called, spark.table("streams_out"))]
assert [row[:2] for row in found[0]] == rows, found[0]
assert sorted((key, count) for key, _, count in found[0]) == counts
assert found[1:] == found[:1] * 3
print("each row once")
"""


@pytest.fixture
def shared(cluster: Cluster, tmp_path: Path) -> Path:
    """A folder that the machines of the cluster share with the driver."""
    folder = cluster.root / "shared" / tmp_path.name
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def server(cluster: Cluster) -> Iterator[str]:
    yield cluster.connect_server(**{"spark.cores.max": "4"})
    cluster.stop_server()


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0 and "each row once" in done.stdout, said(done)
    assert "streams_checkpoints streams_counted_count streams_out" in done.stdout, said(done)
    assert "Traceback" not in done.stderr, said(done)


def test_each_row_comes_in_and_goes_out_once_on_a_cluster(cluster: Cluster, shared: Path) -> None:
    check(cluster.run(PROGRAM, str(shared), timeout=540))


def test_each_row_comes_in_and_goes_out_once_through_spark_connect(cluster: Cluster, server: str, shared: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs the extra `connect`")
    environ = {"TAILRACE_MASTER": "", "SPARK_REMOTE": server, "PYSPARK_SUBMIT_ARGS": ""}
    check(cluster.run(PROGRAM, str(shared), timeout=540, **environ))
