"""Programs in processes of their own: how they wait, how they are interrupted, and what is left when they are gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.spark

ENDLESS = """
import sys, threading, time
import tailrace as tr

checkpoint = tr.CheckpointConfig("checkpoints", interval=0.3) if sys.argv[2:] else None
env = tr.Environment(parallelism=2, checkpoint=checkpoint)

def number(x):
    if x == 1000 and sys.argv[1] == "blocked":
        time.sleep(100)
    return x

env.from_source(tr.sources.Sequence(0, None, rate=2000)).map(number).sink_to(tr.sinks.TextFiles("out"))
job = env.execute("endless")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
time.sleep(1.5)
main = threading.get_ident()
started = threading.Event()

def ready():
    # once the main thread waits for the job, or has come to its end; it also waits for this thread to start, in start()
    started.wait()
    while (frame := sys._current_frames().get(main)) and not any("wait" in name for name in names(frame)):
        time.sleep(0.01)
    print("ready", flush=True)

def names(frame):
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

threading.Thread(target=ready, daemon=True).start()
started.set()
try:
    if sys.argv[1] != "leaves":
        job.await_termination()
except KeyboardInterrupt:
    job.await_termination(20)
    print("status", job.status, flush=True)
    raise
"""

OUTLIVES = """
import os, signal
import tailrace as tr

def number(x):
    if x == 3000 and not os.path.exists(died):
        open(died, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return x

died = os.path.abspath("died")
checkpoint = tr.CheckpointConfig("checkpoints", interval=0.3)
restart = tr.FixedDelay(attempts=3, delay=0.1)
env = tr.Environment(parallelism=2, work_dir="work", checkpoint=checkpoint, restart=restart)
numbers = env.from_source(tr.sources.Sequence(0, 4000, rate=2000)).map(number)
numbers.rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles("out"))
numbers.sink_to(tr.sinks.Collect())
env.execute("no guard")
print("the program is over", flush=True)
"""


class Program:
    """A Python program in a session of its own, with temporary folders of its own."""

    def __init__(self, folder: Path, text: str, *args: str) -> None:
        self.folder = folder
        self.temp = folder / "temp"
        self.temp.mkdir()
        (folder / "program.py").write_text(text)
        java = f"-Djava.io.tmpdir={self.temp}"
        env = {**os.environ, "TMPDIR": str(self.temp), "JAVA_TOOL_OPTIONS": java, "SPARK_LOCAL_DIRS": str(self.temp)}
        for name in [name for name in env if name.startswith(("PYSPARK_", "TAILRACE_"))]:
            del env[name]
        self.process = subprocess.Popen(
            [sys.executable, "program.py", *args],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.family: list[psutil.Process] = []

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()  # type: ignore[union-attr]
        me = psutil.Process(self.process.pid)
        self.family = [me, *me.children(recursive=True)]
        assert len(self.family) >= 5  # itself, a shell or two, the JVM, the daemon, two workers

    def ended(self, seconds: float) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def assert_nothing_left(self, seconds: float = 30.0) -> None:
        _, alive = psutil.wait_procs(self.family, timeout=seconds)
        assert alive == []
        out = self.folder / "out"
        assert not out.exists() or not [name for name in os.listdir(out) if name.startswith(".")]

    def kill(self) -> None:
        with contextlib.suppress(psutil.Error):
            me = psutil.Process(self.process.pid)
            self.family += [me, *me.children(recursive=True)]
        for process in self.family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.communicate()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[type]:
    started: list[Program] = []

    class Started(Program):
        def __init__(self, *args: str) -> None:
            super().__init__(tmp_path, *args)
            started.append(self)

    yield Started
    for one in started:
        if one.process.poll() is None:
            one.kill()


@pytest.mark.matrix
@pytest.mark.paths
def test_the_exit_waits_for_the_job_and_no_guard_is_needed(program: type[Program], tmp_path: Path) -> None:
    """The main program is over and the exit waits for the job, when a worker dies: from Python 3.12 on no thread can be
    started then, and the worker that takes its place needs one."""
    started = program(OUTLIVES)  # type: ignore[arg-type, call-arg]
    code, out, err = started.ended(200)
    assert (code, out) == (0, "the program is over\n"), err
    lines = [int(n) for file in (tmp_path / "out").iterdir() for n in file.read_text().split()]
    assert sorted(lines) == list(range(4000))
    assert "restarts (restart 1)" in err
    started.assert_nothing_left()
    left = [p.name for p in started.temp.iterdir() if not p.name.startswith(("liblz4", "hsperfdata", "libzstd"))]
    assert left == []
    assert os.listdir(tmp_path / "work") == []


def test_an_interrupt_cancels_while_user_code_does_not_come_back(program: type[Program]) -> None:
    """In a terminal all processes get it, Spark's too."""
    started = program(ENDLESS, "blocked")  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    requested = time.monotonic()
    os.killpg(started.process.pid, signal.SIGINT)
    code, out, err = started.ended(90)
    assert time.monotonic() - requested < 40
    assert (code, out) == (-signal.SIGINT, "status CANCELLED\n")
    assert "KeyboardInterrupt" in err
    started.assert_nothing_left()


def test_sigterm_ends_a_job_that_the_exit_waits_for_in_order(program: type[Program], tmp_path: Path) -> None:
    """A service manager sends it, some to all processes at once, Spark's too. Checkpoints stay as after any cancel. (Other
    ways in which a program ends with its jobs: `tests/runtime/driver/test_program_exit.py`.)"""
    started = program(ENDLESS, "leaves", "checkpoints")  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    os.killpg(started.process.pid, signal.SIGTERM)
    code, _, err = started.ended(90)
    assert code == -signal.SIGTERM, err
    assert "SIGTERM: job 'endless' is cancelled" in err
    assert list((tmp_path / "checkpoints").rglob("*.manifest"))
    _, alive = psutil.wait_procs(started.family, timeout=30)
    assert alive == []


def test_a_driver_that_dies_takes_its_workers_along(program: type[Program]) -> None:
    started = program(ENDLESS, "waits")  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    started.process.kill()
    started.ended(90)
    started.assert_nothing_left()


SPARK_IS_GONE = """
import os, signal, time, threading
import psutil
import tailrace as tr

def started(name):
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=2000))
    numbers.sink_to(tr.sinks.TextFiles("out"))
    job = env.execute(name)
    while str(job.status) != "RUNNING":
        time.sleep(0.05)
    time.sleep(0.5)
    return env, job

def failed(job, why):
    asked = time.monotonic()
    try:
        job.await_termination(20)
    except tr.JobFailed as error:
        print("failed", job.status, time.monotonic() - asked < 10, why in str(error), flush=True)
    time.sleep(0.5)
    print([t.name for t in threading.enumerate() if t.name.startswith("tailrace")], flush=True)

env, job = started("spark stops")
env.spark.stop()
failed(job, "Spark session was stopped")
try:
    env.from_collection([1]).collect()
except tr.ConfigError as error:
    print(error, flush=True)
assert sorted(tr.Environment(parallelism=2).from_collection([1, 2]).collect()) == [1, 2]  # a new session

env, job = started("jvm dies")
print("ready", flush=True)
for process in psutil.Process().children(recursive=True):
    if "java" in process.name():
        process.send_signal(signal.SIGKILL)
failed(job, "JVM of the Spark session is gone")
os._exit(0)  # Spark itself does not get over the death of its JVM
"""


def test_spark_is_stopped_and_then_its_jvm_dies_during_a_job(program: type[Program]) -> None:
    started = program(SPARK_IS_GONE)  # type: ignore[arg-type, call-arg]
    assert started.process.stdout is not None
    *stopped, found = [started.process.stdout.readline().rstrip() for _ in range(3)]
    assert stopped == ["failed FAILED True True", "[]"]
    assert "stopped" in found
    started.wait_ready()
    _, out, err = started.ended(90)
    assert out.splitlines() == ["failed FAILED True True", "[]"], err
    started.assert_nothing_left()
