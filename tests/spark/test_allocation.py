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

ELASTIC = """
import os, random, signal, sys, time
import psutil
from pyspark.sql import SparkSession
import tailrace as tr

folder, said, go, kills = *sys.argv[1:4], int(sys.argv[4])
settings = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.executor.cores": "1",
}
spark = SparkSession.builder.master(os.environ["TAILRACE_MASTER"]).config(map=settings).getOrCreate()
application = spark.sparkContext.applicationId

class Numbered(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, value, ctx):
        self.count.value += 1
        yield ctx.key, self.count.value, value

env = tr.Environment(
    spark,
    parallelism=tr.Elastic(1, 4, wait=5),
    checkpoint=tr.CheckpointConfig(folder, interval=0.5),
    restart=tr.FixedDelay(100, 0.1),
)
numbers = env.from_source(tr.sources.Sequence(0, None, rate=500), uid="numbers")
sink = numbers.key_by(lambda n: n % 7).process(Numbered(), uid="numbered").sink_to(tr.sinks.Collect(), uid="found")
job = env.execute("elastic")

def report():
    assert job.is_active, job.exception()
    size = sum(not one.change for one in job.slices) if str(job.status) == "RUNNING" else 0
    with open(said + ".new", "w") as file:
        file.write(str(size))
    os.replace(said + ".new", said)
    return size

def executors():
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if application in line and any("CoarseGrainedExecutorBackend" in part for part in line) and "unshare" not in line[0]:
            yield process

while not os.path.exists(go):
    report()
    time.sleep(0.05)
rng = random.Random(kills)
for _ in range(kills):
    deadline = time.monotonic() + 120
    while not (report() and list(executors())):
        assert time.monotonic() < deadline, job.status
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 8))
    rng.choice(sorted(executors(), key=lambda one: one.pid)).kill()
deadline = time.monotonic() + 180
while report() != 4:
    assert time.monotonic() < deadline, (job.status, report())
    time.sleep(0.05)
job.checkpoint()
job.stop()
found = sink.result()
values = sorted(value for _, _, value in found)
of_key = {key: sum(value % 7 == key for value in values) for key in range(7)}
right = sorted(one[:2] for one in found) == [(key, n) for key in range(7) for n in range(1, of_key[key] + 1)]
splits = {value % 4 for value in values}
for first in range(4):
    mine = [value for value in values if value % 4 == first]
    right = right and mine == list(range(first, first + 4 * len(mine), 4))
print("exactly once:", right, len(found) > 1000, "restarts", job.restarts)
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
    """The other one, while the first one ran the last of its jobs."""


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
    """Their tasks never end, so the executors would stay until they are killed, and the job would have failed. It moves as
    often as it must: a restart that does not count, from a checkpoint that is taken before."""
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


@pytest.mark.exhaustive
def test_an_elastic_job_where_machines_and_executors_are_lost_and_come_back(cluster: Cluster) -> None:
    """A machine is killed with all its executors, and comes back; then executors are killed, and Spark starts others."""
    folder, found, go = (cluster.root / f"elastic-{name}" for name in ("checkpoints", "size", "go"))

    def size() -> int:
        return int(found.read_text()) if found.exists() else 0

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cluster.run, ELASTIC, str(folder), str(found), str(go), "8", timeout=580)
        try:
            reached = [waited(lambda: size() == 4 or done.done(), 200)]
            cluster.lose_worker(cluster.started[2])
            reached.append(waited(lambda: size() == 3 or done.done(), 200))
            cluster.start_worker("two")
            reached.append(waited(lambda: size() == 4 or done.done(), 200))
        finally:
            go.touch()
    assert done.result().returncode == 0, said(done.result())
    assert all(reached) and "exactly once: True True restarts" in done.result().stdout, said(done.result())
