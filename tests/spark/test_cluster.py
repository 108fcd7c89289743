"""A standalone cluster on which driver and executors share no folder: programs that run on a laptop run there unedited.

The driver programs are processes of their own: one that is lost, and one that does all the rest.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

import pytest

from benchmarks.cluster import ROOT
from tailrace.storage.opening import open_folder
from tests import buckets
from tests.spark.cluster import Cluster, said

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # two programs, on a cluster

GOLDEN = """
import sys
from collections import Counter
from tests.spark.test_dataframes import EVERY_TYPE, rows, same
import tailrace as tr
from search.programs.golden import PROGRAMS

spark = tr.Environment().spark
assert spark.sparkContext.master.startswith("spark://"), spark.sparkContext.master
example, totals, folder, endpoint, *names = sys.argv[1:]
for name in names:
    program = PROGRAMS[name]
    found = program.build(tr.Environment(spark), program.n, None).collect()
    assert Counter(found) == program.expected(program.n), name
print("golden programs are right")

df = spark.createDataFrame(rows(), EVERY_TYPE)
for form in ("rows", "columns"):
    stream = tr.Environment(spark, parallelism=1).from_dataframe(df, form=form)
    back = stream.map(lambda row: row).to_dataframe(EVERY_TYPE) if form == "rows" else stream.to_dataframe()
    assert [(f.name, f.dataType) for f in back.schema] == [(f.name, f.dataType) for f in df.schema], back.schema
    assert same(spark, df, back) and same(spark, df, back), form
empty = tr.Environment(spark).from_dataframe(df.limit(0)).to_dataframe(EVERY_TYPE)
assert empty.count() == 0
odd = spark.range(0, 3).selectExpr("id as `a.b`", "id + 1 as `class`")
back = tr.Environment(spark).from_dataframe(odd, form="columns").to_dataframe()
assert back.columns == odd.columns and sorted(map(tuple, back.collect())) == [(0, 1), (1, 2), (2, 3)]
print("types are right")

# A restart without checkpoints begins anew, on the same rows.
import os, signal, tempfile

def falls_once(row):
    marker = os.path.join(tempfile.gettempdir(), "fallen")
    if row.id == 700 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return row.id

env = tr.Environment(spark, restart=tr.FixedDelay(5, 0.1))
sink = env.from_dataframe(spark.range(0, 1000, 1, 4)).map(falls_once).sink_to(tr.sinks.Collect())
job = env.execute("falls")
job.await_termination()
assert sorted(sink.result()) == list(range(1000)) and job.restarts > 0
print("restarts are right")

def refused(action):
    try:
        action()
    except tr.TailraceError as error:
        print("refused:", type(error).__name__, " ".join(str(error).split())[:400])

numbers = spark.range(0, 10, 1, 1)
for settings in ({"work_dir": "mine"}, {"checkpoint": tr.CheckpointConfig("checkpoints")}):
    refused(lambda: tr.Environment(spark, **settings).from_dataframe(numbers).collect())
refused(lambda: tr.Environment(spark, work_dir="mine").from_collection([1]).collect())
text = spark.range(0, 2000, 1, 2).selectExpr("repeat(uuid(), 100) as text")
refused(lambda: tr.Environment(spark).from_dataframe(text).collect())
refused(lambda: tr.Environment(spark).from_collection([1, 2]).map(lambda n: os.urandom(3 << 20)).collect())

import runpy

for script, *args in ((example, "--parallelism", "2"), (totals, folder, endpoint, "again")):
    sys.argv = [script, *args]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code
"""

TOTALS = """
import os, signal, sys, tempfile, time
import tailrace as tr

folder, endpoint, mode = sys.argv[1:]
options = {"key": "key", "secret": "secret", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
checkpoint = tr.CheckpointConfig(folder, interval=0.2, storage_options=options)
env = tr.Environment(checkpoint=checkpoint, restart=tr.FixedDelay(5, 0.1))

class Total(tr.KeyedProcessFunction):
    seen = tr.ValueState(tuple, default=(0, 0))

    def process(self, row, ctx):
        count, total = self.seen.value
        marker = os.path.join(tempfile.gettempdir(), "totals have fallen")
        if mode == "again" and count == 7_500 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.value = (count + 1, total + row.id)
        yield (count + 1, total + row.id)

rows = env.from_dataframe(env.spark.range(0, 10_000, 1, 4).selectExpr("id", "rand() as chance"), uid="rows")

def paced(row):
    if row.id % 20 == 0:
        time.sleep(0.02)
    return row

found = rows.map(paced, uid="paced").key_by(lambda row: 0).process(Total(), uid="total")
table = found.sink_to(tr.sinks.DataFrame("count int, total long"), uid="table")
job = env.execute("totals", from_checkpoint="latest" if mode == "again" else None)
if mode == "dies":
    while len(job.checkpoints) < 2 and job.is_active:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
job.await_termination()
last = table.dataframe().orderBy("count", ascending=False).first()
first = min(row[0] for row in table.dataframe().collect())
print("restarts", job.restarts, "first", first, "rows", table.dataframe().count(), "last", tuple(last))
"""


def left_in(endpoint: str, folder: str, name: str) -> list[str]:
    """The files of the job in a folder beside its checkpoints."""
    return [entry.name for entry in open_folder(f"{folder}/totals/{name}", buckets.options(endpoint)).walk()]


@dataclass(frozen=True)
class Ran:
    lost: subprocess.CompletedProcess[str]
    """The driver that was lost."""
    left: list[str]
    """The results that it could not tidy up."""
    whole: subprocess.CompletedProcess[str]
    left_then: list[str]
    """The results that the second driver could not tidy up."""
    left_here: set[str]
    """What the second driver left in the driver's folder for temporary files."""


@pytest.fixture(scope="module")
def ran(cluster: Cluster, s3_endpoint: str) -> Ran:
    """The second program runs under TLS, and goes on at its end where the first one was lost."""
    folder = f"s3://{buckets.new_bucket(s3_endpoint)}/checkpoints"
    totals = cluster.driver / "totals.py"
    totals.write_text(TOTALS)
    lost = cluster.run(str(totals), folder, s3_endpoint, "dies")
    left, here = left_in(s3_endpoint, folder, "results"), set(os.listdir(cluster.driver / "tmp"))
    args = [str(ROOT / "examples/routes.py"), str(totals), folder, s3_endpoint, "windowed", "visited", "by_classes"]
    whole = cluster.run(GOLDEN, *args, timeout=400, TAILRACE_DRIVER_SPACE="4m", TAILRACE_TLS="1")
    here = set(os.listdir(cluster.driver / "tmp")) - here
    return Ran(lost, left, whole, left_in(s3_endpoint, folder, "results"), here)


@pytest.mark.matrix
def test_golden_programs_types_restarts_and_an_example(ran: Ran, cluster: Cluster) -> None:
    """Rows travel through the driver's folder, in both directions, also when a worker falls. An example runs as it is:
    routes, which compares what it finds with what networkx does."""
    assert ran.whole.returncode == 0 and "restarts are right" in ran.whole.stdout, said(ran.whole)
    assert "networkx finds the same distances" in ran.whole.stdout, said(ran.whole)
    assert not os.listdir(cluster.driver / "mine") and not ran.left_here


@pytest.mark.matrix
def test_what_cannot_be_is_reported_in_a_sentence(ran: Ran) -> None:
    """A folder that each machine has for itself, which gave an empty result, and more than the driver takes."""
    refused = re.findall("^refused: (.*)$", ran.whole.stdout, flags=re.M)
    assert len(refused) == 5, said(ran.whole)
    for text in refused[:2]:
        assert re.match("ConfigError from_dataframe: .* is no folder that driver and executors share", text), text
    assert re.match("JobFailed .* is no folder that driver and executors share", refused[2]), refused[2]
    assert re.match("ConfigError from_dataframe: .* more than 4 MiB .*work_dir", refused[3]), refused[3]
    assert re.match("JobFailed .* more than 4 MiB .*work_dir", refused[4]), refused[4]


@pytest.mark.matrix
def test_a_driver_that_is_lost_and_a_worker_with_checkpoints_in_a_bucket(ran: Ran) -> None:
    """The rows that the first driver took in are in the bucket, and so is the result of the second one: each row counts
    once, whoever falls."""
    assert ran.lost.returncode == -9, said(ran.lost)
    found = re.search(r"restarts (\d+) first (\d+) rows (\d+) last \((\d+), (\d+)\)", ran.whole.stdout)
    assert found is not None, said(ran.whole)
    restarts, first, rows, count, total = map(int, found.groups())
    assert restarts > 0 and first > 1
    assert (rows, count, total) == (10_000 - first + 1, 10_000, sum(range(10_000)))
    assert ran.left_then == ran.left
