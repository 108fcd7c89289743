"""A local session in a process of its own: what it prints at its start, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.spark.cluster.session import local_session
from tests.environ import plain_environ

PROGRAM = """
import os, socket, sys, threading, urllib.request
from tailrace.errors import ConfigError
from tailrace.spark.cluster.session import active_or_local, local_session

before = dict(os.environ)
first = socket.socket()  # where the web UI would be: it takes another port, and reports nothing of it
first.bind(("127.0.0.1", 0))
first.listen()
taken = str(first.getsockname()[1])
spark = local_session(2, {"spark.sql.shuffle.partitions": "3", "spark.ui.port": taken})
assert spark.sparkContext.master == "local[2]"
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
assert spark.sparkContext.uiWebUrl.rpartition(":")[2] != taken
assert urllib.request.urlopen(spark.sparkContext.uiWebUrl, timeout=60).status == 200

def pythons(batches):
    import sys
    import pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

assert {row.python for row in spark.range(2).mapInArrow(pythons, "python string").collect()} == {sys.executable}

assert active_or_local(9) is spark
elsewhere = []
thread = threading.Thread(target=lambda: elsewhere.append(active_or_local(9)))
thread.start()
thread.join()
assert elsewhere == [spark]

assert local_session(2) is spark
try:
    local_session(3)
except ConfigError as error:
    assert "local[2]" in str(error)
else:
    raise AssertionError("a second master was accepted")

spark.stop()
other = active_or_local(1, conf={"spark.ui.enabled": "false"})
assert other.sparkContext.master == "local[1]" and other.sparkContext.uiWebUrl is None
assert other.range(3).count() == 3
other.stop()

assert os.environ.get("SPARK_LOCAL_IP") == before.get("SPARK_LOCAL_IP")  # that was for the start of the JVM only
assert os.environ["PATH"] == before["PATH"]
"""


@pytest.mark.spark
@pytest.mark.paths
def test_a_local_session_works_and_is_quiet() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=plain_environ(), timeout=200
    )
    assert done.returncode == 0, done.stderr
    # The JVM itself prints this one, and no setting stops it.
    noise = [line for line in done.stderr.splitlines() if "Using incubator modules" not in line]
    assert noise == [], done.stderr
    assert done.stdout == ""


def test_a_session_has_at_least_one_slot() -> None:
    with pytest.raises(ConfigError, match="at least one slot"):
        local_session(0)


LOST = """
import os, signal, sys, time
import tailrace as tr

env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(sys.argv[1]), restart=tr.FixedDelay(3, 0.0))
numbers = env.from_source(tr.sources.Sequence(0, None, rate=100))
numbers.sink_to(tr.sinks.TextFiles(sys.argv[1] + "/out"))
job = env.execute("lost")
while not job.checkpoints:
    time.sleep(0.05)
os.kill(job.slices[0].pid, signal.SIGKILL)
while job.restarts == 0 or str(job.status) != "RUNNING":
    time.sleep(0.05)
job.cancel()
job.await_termination()
"""


@pytest.mark.spark
def test_a_lost_worker_prints_no_page_of_java(tmp_path: Path) -> None:
    """Thirty lines of Java for each, none of which helps the user."""
    command = [sys.executable, "-c", LOST, str(tmp_path)]
    done = subprocess.run(command, env=plain_environ(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "\tat " not in done.stderr and "Caused by" not in done.stderr, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "restarts" in line]
    assert " WARNING tailrace: job 'lost' restarts (restart 1)" in line
