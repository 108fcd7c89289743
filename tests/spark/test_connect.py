"""Sessions of Spark Connect: of a server on a standalone cluster, and of one that a program starts for itself.

Each test is a program of its own, in a process of its own.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.cluster import ROOT
from tests.environ import plain_environ
from tests.spark.cluster import Cluster, said
from tests.spark.waiting import waited

pytest.importorskip("grpc", reason="Spark Connect needs the extra `connect`")
pytestmark = pytest.mark.spark

FLOWS = """
from collections import Counter
import tailrace as tr
from search.programs.golden import PROGRAMS

spark = tr.Environment().spark
assert type(spark).__module__ == "pyspark.sql.connect.session", type(spark)

for name in ("counted", "in_sequence"):  # keyed, and a loop
    program = PROGRAMS[name]
    found = program.build(tr.Environment(spark), program.n, None).collect()
    assert Counter(found) == program.expected(program.n), name

df = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 3 as key", "timestamp_seconds(id) as at")
back = tr.Environment(spark).from_dataframe(df, form="columns").to_dataframe()
assert back.dtypes == df.dtypes, back.dtypes  # but for what may be null
assert back.exceptAll(df).count() == 0 and back.count() == 1000
total = tr.Environment(spark).from_dataframe(df).key_by(lambda row: row.key).sum(lambda row: row.id)
table = total.to_dataframe("key long, total long")
assert [tuple(row) for row in table.groupBy("key").max("total").orderBy("key").collect()] == [
    (key, sum(range(key, 1000, 3))) for key in range(3)
]
print("the flows are right")
"""


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[str]:
    """The address of a server whose executors, two on each machine of the cluster, see nothing of the client's."""
    yield cluster.connect_server(**{"spark.cores.max": "4"})
    cluster.stop_server()


def on(cluster: Cluster, server: str, program: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return cluster.run(program, *args, TAILRACE_MASTER="", SPARK_REMOTE=server, PYSPARK_SUBMIT_ARGS="", **environ)


def test_programs_run_unedited_through_a_server_of_spark_connect(cluster: Cluster, server: str) -> None:
    """Where SPARK_REMOTE names one. Its executors see no file of the client's, and the client has no JVM. What they lack is
    shipped with the session."""
    (cluster.driver / "theirs.py").write_text("def tenfold(n):\n    return 10 * n\n")
    whole = """
import theirs
assert sorted(tr.Environment(spark).from_collection([1, 2]).map(theirs.tenfold).collect()) == [10, 20]

children = __import__("psutil").Process().children(recursive=True)
assert not children, children

try:
    tr.Environment(spark, parallelism=9, slot_timeout=1).from_collection([1]).collect()
except tr.SlotsError as error:
    print(error)

def falls_once(n):
    import os, signal, tempfile
    marker = os.path.join(tempfile.gettempdir(), "fallen under Connect")
    if n == 700 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return n

env = tr.Environment(spark, restart=tr.FixedDelay(5, 0.1))
sink = env.from_source(tr.sources.Sequence(0, 1000)).map(falls_once).sink_to(tr.sinks.Collect())
job = env.execute("falls")
job.await_termination()
assert sorted(sink.result()) == list(range(1000)) and job.restarts > 0

import time

def stuck(n):
    time.sleep(1000)

env = tr.Environment(spark)
env.from_collection([1]).map(stuck).sink_to(tr.sinks.Print())
job = env.execute("stuck")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
job.cancel()
job.await_termination()
print(job.status)

env = tr.Environment(spark)
env.from_source(tr.sources.Sequence(0, 300, rate=300)).map(lambda n: n).sink_to(tr.sinks.Collect())
env.execute("outlives the program's last line")
"""
    done = on(cluster, server, FLOWS + whole, TAILRACE_SHIP="1")
    assert done.returncode == 0, said(done)
    assert "the flows are right" in done.stdout and "CANCELLED" in done.stdout, said(done)
    assert "needs 9 task slots (its largest parallelism is 9), and Spark has 4 (master spark://" in done.stdout, said(
        done
    )
    assert not done.stderr.strip() or "Traceback" not in done.stderr, said(done)


ENDLESS = """
import os, time
import tailrace as tr

env = tr.Environment()
env.from_source(tr.sources.Sequence(0, None, rate=100)).map(lambda n: n).sink_to(tr.sinks.Print())
job = env.execute("endless")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
os.kill(os.getpid(), 9)
"""


def test_a_client_that_dies_gives_its_slots_back_in_seconds(cluster: Cluster, server: str) -> None:
    """The server keeps what a lost client has started for minutes. The workers see that the link to it is gone, and leave:
    the next program gets all of the slots."""
    done = on(cluster, server, ENDLESS)
    assert done.returncode == -signal.SIGKILL, said(done)
    died = time.monotonic()
    flow = "tr.Environment(parallelism=4, slot_timeout=30).from_collection(range(9)).rebalance().map(lambda n: n).collect()"
    done = on(cluster, server, f"import tailrace as tr\nprint(len({flow}))")
    assert done.stdout.strip() == "9", said(done)
    assert time.monotonic() - died < 60, said(done)


UNREACHED = """
import json, os, signal, subprocess, sys, time
import psutil
import tailrace as tr
from search.programs.golden import PROGRAMS

spark = tr.Environment().spark
program = PROGRAMS["in_sequence"]  # a loop in rounds
found = program.build(tr.Environment(spark), program.n, None).collect()
assert sorted(found) == sorted(program.expected(program.n).elements())

df = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 3 as key", "timestamp_seconds(id) as at")
back = tr.Environment(spark).from_dataframe(df, form="columns").to_dataframe()
assert back.dtypes == df.dtypes, back.dtypes
assert back.exceptAll(df).count() == 0 and back.count() == 1000

def fails(n):
    return 1 // (n - 500)

env = tr.Environment(spark)
env.from_source(tr.sources.Sequence(0, None, rate=1000)).map(fails, name="divided").sink_to(tr.sinks.Print())
job = env.execute("fails")
try:
    job.await_termination()
except tr.JobFailed as error:
    print(error.operator, error.record, "ZeroDivisionError" in str(error))

env = tr.Environment(spark)
env.from_source(tr.sources.Sequence(0, None, rate=100)).map(lambda n: n).sink_to(tr.sinks.Print())
job = env.execute("cancelled")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
job.cancel()
assert job.await_termination(30)
print(job.status)

checkpoints = tr.CheckpointConfig(CHECKPOINTS, interval=None)
env = tr.Environment(spark, checkpoint=checkpoints)
env.from_source(tr.sources.Sequence(0, None, rate=100)).map(lambda n: n).sink_to(tr.sinks.Print())
job = env.execute("asked")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
asking = [sys.executable, "-m", "tailrace", "checkpoint", "asked", "--json"]
asked = subprocess.run(asking, capture_output=True, text=True, timeout=60)
assert asked.returncode == 0, asked.stderr
made = json.loads(asked.stdout)
assert made["path"].startswith(CHECKPOINTS) and os.path.exists(made["path"]), made
job.cancel()
assert job.await_termination(30)
print("took checkpoint", made["id"])

def killed(job):
    port = job._runner._post.host.address[1]
    for one in psutil.net_connections("tcp"):
        if one.status == "LISTEN" and one.laddr.port == port:
            os.kill(one.pid, signal.SIGKILL)

checkpoints = tr.CheckpointConfig(CHECKPOINTS, interval=0.2)
env = tr.Environment(spark, checkpoint=checkpoints, restart=tr.FixedDelay(3, 0.1))
sink = env.from_source(tr.sources.Sequence(0, 1000, rate=100)).map(lambda n: n).sink_to(tr.sinks.Collect())
job = env.execute("coordinator lost")
while len(job.checkpoints) < 2:
    time.sleep(0.05)
killed(job)
assert job.await_termination(120)
assert sorted(sink.result()) == list(range(1000)), len(sink.result())
print("went on", job.restarts)
"""


def test_a_client_that_executors_cannot_reach_has_its_coordinators_on_executors(cluster: Cluster, server: str) -> None:
    """As a laptop in front of a cluster, from which no way leads back: DataFrames come and go, failures are reported,
    jobs are cancelled, `tailrace checkpoint` has one taken, and the workers of a job whose coordinator was killed go on
    with another one, and restart nothing."""
    shared = cluster.root / "shared"
    shared.mkdir(exist_ok=True)
    program = UNREACHED.replace("CHECKPOINTS", repr(str(shared)))
    environ = {"TAILRACE_DRIVER_HOST": "192.0.2.77", "TAILRACE_SHIP": "1", "TAILRACE_TLS": "1"}
    done = on(cluster, server, program, **environ)
    assert done.returncode == 0, said(done)
    for found in ("divided 500 True", "CANCELLED", "took checkpoint 1", "went on 0"):
        assert found in done.stdout, said(done)
    assert "no way leads from the executors to this program at 192.0.2.77" in done.stderr, said(done)


REFUSED = """
import tailrace as tr
try:
    env = tr.Environment()
    env.from_collection([1]).sink_to(tr.sinks.Print())
    env.execute("job").await_termination()
except tr.TailraceError as error:
    print(type(error).__name__, "|", error)
"""


def test_a_client_that_executors_cannot_reach_is_told_what_to_set(cluster: Cluster, server: str) -> None:
    """Where its coordinators are to stay in it."""
    environ = {"TAILRACE_DRIVER_HOST": "192.0.2.77", "TAILRACE_PORTS": "45100-45110", "TAILRACE_COORDINATOR": "driver"}
    done = on(cluster, server, REFUSED, **environ)
    assert done.returncode == 0 and "JobFailed | " in done.stdout, said(done)
    assert "cannot reach the driver at 192.0.2.77:451" in done.stdout, said(done)
    assert "set TAILRACE_DRIVER_HOST to an address of the driver's machine that executors can dial" in done.stdout, (
        said(done)
    )
    assert "Traceback" not in done.stdout + done.stderr, said(done)


def test_a_program_starts_a_server_for_itself(tmp_path: Path) -> None:
    """As `SparkSession.builder.remote("local[3]")` does."""
    (tmp_path / "program.py").write_text(FLOWS + 'assert spark.conf.get("spark.master") == "local[3]"\n')
    conf = ["--driver-memory", "512m", "--conf", "spark.ui.enabled=false", "pyspark-shell"]
    environ = plain_environ() | {
        "SPARK_REMOTE": "local[3]",
        "SPARK_TESTING": "1",  # the server takes any free port: else it is 15002, whoever has it
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYSPARK_SUBMIT_ARGS": shlex.join(conf),
    }
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "the flows are right" in done.stdout, said(done)
    assert "Failed to set" not in done.stderr and "Traceback" not in done.stderr, said(done)


LEFT = """
import os, time
import tailrace as tr

env = tr.Environment(restart=tr.FixedDelay(100, 0.1))
env.from_source(tr.sources.Sequence(0, None, rate=100)).map(lambda n: n).sink_to(tr.sinks.Print())
job = env.execute("left")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
open("running", "w").close()
try:
    job.await_termination(60)
except tr.JobFailed as error:
    print(error, flush=True)
os._exit(0)  # PySpark's client requests for ten minutes that the server forgets what it ran
"""


def test_a_job_fails_when_its_server_is_gone(cluster: Cluster, server: str) -> None:
    """The job was started again and again, until there were no slots within `slot_timeout`. The last test with this
    server."""
    with ThreadPoolExecutor() as threads:
        program = threads.submit(on, cluster, server, LEFT)
        assert waited(lambda: (cluster.driver / "running").exists() or program.done())
        cluster.stop_server()
        done = program.result()
    assert f"the Spark Connect server at {server.removeprefix('sc://')} is gone" in done.stdout, said(done)
