"""Executors of a real cluster that come when tasks wait for them, and go; and two programs beside each other.

The driver programs are processes of their own, each with executors of its own, and so they are few.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tailrace.errors import ConfigError
from tailrace.spark.slots.profiles import check_share
from tests.spark.cluster import Cluster, said
from tests.spark.waiting import waited

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # two programs, on a cluster

DYNAMIC = """
import os, time, warnings
from pyspark.sql import SparkSession
import tailrace as tr
from tailrace.spark.cluster.application import application

settings = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.executor.cores": "1",
}
spark = SparkSession.builder.master(os.environ["TAILRACE_MASTER"]).config(map=settings).getOrCreate()
warnings.simplefilter("error")
app = application(spark)
deadline = time.monotonic() + 30
while app.total_slots() and time.monotonic() < deadline:
    time.sleep(0.1)
print("there are", app.total_slots(), flush=True)

env = tr.Environment(spark, parallelism=2)
found = env.from_source(tr.sources.Sequence(0, 300)).key_by(lambda n: n % 3).count().collect()
print("found", len(found), flush=True)
try:
    tr.Environment(spark, parallelism=5).from_collection([1]).rebalance().map(lambda n: n).collect()
except tr.SlotsError as error:
    print("refused:", error)
"""

FIXED = """
import os, sys, time
from pyspark.sql import SparkSession
import tailrace as tr
from tailrace.spark.cluster.decommissions import running_on

moved, replaced, shared, ready, go = sys.argv[1:]
settings = {"spark.cores.max": "3", "spark.executor.cores": "1", "spark.decommission.enabled": "true"}
spark = SparkSession.builder.master(os.environ["TAILRACE_MASTER"]).config(map=settings).getOrCreate()
context, jvm = spark.sparkContext._jsc.sc(), spark.sparkContext._jvm

def found(**settings):
    env = tr.Environment(spark, **settings)
    try:
        return len(env.from_source(tr.sources.Sequence(0, 300)).key_by(lambda n: n % 3).count().collect())
    except tr.ConfigError as error:
        return str(error)

print("whole:", found(parallelism=4))
print("parts:", found(parallelism=4, task_cpus=0.25))
print("too many:", found(parallelism=13, task_cpus=0.25), flush=True)

def wait_for(what):
    deadline = time.monotonic() + 90
    while not what():
        assert time.monotonic() < deadline and job.is_active, (job.status, job.exception())
        time.sleep(0.1)

def executors():
    stages = context.statusTracker().getActiveStageIds()
    return {executor for stage in stages for executor in running_on(context, stage)}

def numbers(folder, **settings):
    checkpoint = tr.CheckpointConfig(folder, interval=None)
    env = tr.Environment(spark, checkpoint=checkpoint, **settings)
    source = env.from_source(tr.sources.Sequence(0, None, rate=500), uid="numbers")
    return env, source.sink_to(tr.sinks.Collect(), uid="found")

def ended(job, sink, parallelism):
    job.checkpoint()
    job.cancel()
    job.await_termination()
    numbers = sorted(sink.result())
    for first in range(parallelism):
        mine = [n for n in numbers if n % parallelism == first]
        assert mine and mine == list(range(first, first + parallelism * len(mine), parallelism)), mine[:100]
    print("each once, with", job.restarts, "restarts", flush=True)

def decommission(executor):
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("the test wants it", jvm.scala.Option.empty())
    context.schedulerBackend().decommissionExecutor(executor, info, False, False)

env, sink = numbers(moved, parallelism=2, restart=tr.FixedDelay(1, 0.1))
job = env.execute("moves")
for moves in (1, 2):
    wait_for(lambda: str(job.status) == "RUNNING" and len(executors()) == 2)
    going = min(executors())
    decommission(going)
    wait_for(lambda: job.restarts == moves and str(job.status) == "RUNNING")
    wait_for(lambda: going not in executors())
    print("checkpoints", len(job.checkpoints), "restarts", job.restarts, flush=True)
ended(job, sink, 2)

env, sink = numbers(replaced, parallelism=2, restart=tr.NoRestart(), standby=tr.StandbyConfig())
job = env.execute("moves alone")
machine, provider = job._runner.machine, job._runner._provider
wait_for(lambda: str(job.status) == "RUNNING" and machine.roster.standbys.all[0].ready)
going = provider.executor(*machine.roster.slots[1].start)
decommission(going)
wait_for(lambda: machine.takeovers.count == 1 and going not in executors())
print("checkpoints", len(job.checkpoints), "replaced", machine.takeovers.count, flush=True)
ended(job, sink, 2)

env, sink = numbers(shared, parallelism=1)
job = env.execute("the same")
job.checkpoint()
open(ready, "w").close()
while not os.path.exists(go):
    time.sleep(0.05)
ended(job, sink, 1)
"""

BESIDE = """
import os, sys, time
from pyspark.sql import SparkSession
import tailrace as tr

spark = SparkSession.builder.master(os.environ["TAILRACE_MASTER"]).config("spark.cores.max", "1").getOrCreate()
for folder in sys.argv[1:]:
    env = tr.Environment(spark, parallelism=1, checkpoint=tr.CheckpointConfig(folder, interval=0.2))
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=400), uid="numbers")
    sink = numbers.sink_to(tr.sinks.Collect(), uid="found")
    try:
        job = env.execute("the same")
    except tr.TailraceError as error:
        print("refused:", type(error).__name__, " ".join(str(error).split()))
while len(job.checkpoints) < 2:
    time.sleep(0.05)
job.checkpoint()
job.cancel()
job.await_termination()
found = sink.result()
print("right:", len(found) > 1 and found == list(range(len(found))))
"""


def test_a_job_gets_executors_that_come_when_tasks_wait_for_them(cluster: Cluster) -> None:
    """An idle session has none, and each job there failed, since it had no slots."""
    done = cluster.run(DYNAMIC)
    assert done.returncode == 0, said(done)
    assert "there are 0\nfound 300\n" in done.stdout, said(done)
    assert "needs 5 task slots (its largest parallelism is 5), and Spark gives at most 3 (" in done.stdout, said(done)


@dataclass(frozen=True)
class Ran:
    """What programs have done with executors whose number does not change."""

    first: subprocess.CompletedProcess[str]
    beside: subprocess.CompletedProcess[str]
    """The second program, while the first one ran the last of its jobs."""


@pytest.fixture(scope="module")
def ran(cluster: Cluster) -> Ran:
    names = ("moved", "replaced", "shared", "other", "ready", "go")
    moved, replaced, shared, other, ready, go = (str(cluster.root / name) for name in names)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cluster.run, FIXED, moved, replaced, shared, ready, go)
        try:
            waited(lambda: os.path.exists(ready) or first.done(), 200)
            beside = cluster.run(BESIDE, shared, other)
        finally:
            open(go, "w").close()
    return Ran(first.result(), beside)


@pytest.mark.matrix
def test_workers_take_part_of_a_core_where_spark_has_that(ran: Ran) -> None:
    found = dict(line.split(": ", 1) for line in ran.first.stdout.splitlines()[:3])
    assert "needs 4 task slots (its largest parallelism is 4), and Spark has 3 (" in found["whole"], said(ran.first)
    try:
        check_share(0.25)
    except ConfigError as error:
        assert [found["parts"], found["too many"]] == [str(error)] * 2, said(ran.first)
    else:
        assert found["parts"] == "300", said(ran.first)
        assert "needs 13 task slots" in found["too many"] and "has 12 (" in found["too many"], said(ran.first)


@pytest.mark.matrix
def test_workers_move_from_executors_that_are_decommissioned(ran: Ran) -> None:
    """The workers' tasks never end, so the executors would stay until they are killed, and the job would have failed. It
    moves as often as it must: a restart that does not count, from a checkpoint that is taken before."""
    found = "checkpoints 1 restarts 1\ncheckpoints 2 restarts 2\neach once, with 2 restarts\n"
    assert ran.first.returncode == 0 and found in ran.first.stdout, said(ran.first)


@pytest.mark.matrix
def test_a_standby_takes_the_place_of_a_worker_whose_executor_is_decommissioned(ran: Ran) -> None:
    """The executors that stay have no slot for another standby: the one that there is takes the place, and nothing restarts.
    It holds two checkpoints before, since it held none."""
    found = "checkpoints 2 replaced 1\neach once, with 0 restarts\n"
    assert ran.first.returncode == 0 and found in ran.first.stdout, said(ran.first)


@pytest.mark.matrix
def test_two_programs_with_jobs_of_one_name(ran: Ran) -> None:
    """With one checkpoint folder the second start is refused, and the first one does not notice. With another folder they
    are two jobs."""
    assert ran.first.returncode == ran.beside.returncode == 0, said(ran.first) + said(ran.beside)
    assert ran.first.stdout.endswith("\neach once, with 0 restarts\n"), said(ran.first)
    refused, right = ran.beside.stdout.splitlines()
    assert re.match(r"refused: \w+ two live jobs of one name: job 'the same'", refused), said(ran.beside)
    assert right == "right: True", said(ran.beside)
