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

BOUNDED = """
import sys
import tailrace as tr

env = tr.Environment(parallelism=2, work_dir="work")
numbers = env.from_source(tr.sources.Sequence(0, 4000, rate=2000)).map(lambda x: x + 1)
numbers.sink_to(tr.sinks.TextFiles("out"))
numbers.sink_to(tr.sinks.Collect())
env.execute("no guard")
print("the program is over", flush=True)
"""

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

def ready():
    # once the main thread waits for the job, or has come to its end
    while (frame := sys._current_frames().get(main)) and not any("wait" in name for name in names(frame)):
        time.sleep(0.01)
    print("ready", flush=True)

def names(frame):
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

if sys.argv[1] == "fails":
    print("ready", flush=True)
    raise RuntimeError("a bug in the program")
threading.Thread(target=ready, daemon=True).start()
try:
    if sys.argv[1] != "leaves":
        job.await_termination()
except KeyboardInterrupt:
    job.await_termination(20)
    print("status", job.status, flush=True)
    raise
"""

RESTARTED = """
import os, signal
import tailrace as tr

def number(x):
    if x == 3000 and not os.path.exists(died):
        open(died, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return x

died = os.path.abspath("died")
checkpoint = tr.CheckpointConfig("checkpoints", interval=0.3)
env = tr.Environment(parallelism=2, checkpoint=checkpoint, restart=tr.FixedDelay(attempts=3, delay=0.1))
numbers = env.from_source(tr.sources.Sequence(0, 4000, rate=2000)).map(number)
numbers.rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles("out"))
env.execute("restarted")
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
    started = program(BOUNDED)  # type: ignore[arg-type, call-arg]
    code, out, err = started.ended(200)
    assert code == 0, err
    assert out.splitlines() == ["the program is over"]
    lines = [int(n) for file in (tmp_path / "out").iterdir() for n in file.read_text().split()]
    assert sorted(lines) == list(range(1, 4001))
    noise = ("incubator modules", "JAVA_TOOL_OPTIONS", "Warning: Ignoring")
    assert [line for line in err.splitlines() if not any(word in line for word in noise)] == []
    started.assert_nothing_left()
    left = [p.name for p in started.temp.iterdir() if not p.name.startswith(("liblz4", "hsperfdata", "libzstd"))]
    assert left == []
    assert os.listdir(tmp_path / "work") == []


@pytest.mark.parametrize(
    ("what", "group", "seconds"),
    [("waits", False, 30.0), ("blocked", True, 40.0), ("leaves", True, 30.0)],
)
def test_an_interrupt_cancels(program: type[Program], what: str, group: bool, seconds: float) -> None:
    started = program(ENDLESS, what)  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    asked = time.monotonic()
    (os.killpg if group else os.kill)(started.process.pid, signal.SIGINT)  # in a terminal the whole group gets it
    code, out, err = started.ended(90)
    assert time.monotonic() - asked < seconds
    if what == "leaves":
        assert code == -signal.SIGINT
        assert "Traceback" not in err  # its main program was over
    else:
        assert code == -signal.SIGINT
        assert "KeyboardInterrupt" in err
        assert out == "status CANCELLED\n"
    started.assert_nothing_left()


@pytest.mark.matrix
def test_a_job_that_outlives_its_program_is_restarted(program: type[Program], tmp_path: Path) -> None:
    """The main program is over and the exit waits for the job, when a worker dies: from Python 3.12 on no thread can be
    started then, and the worker that takes its place needs one."""
    started = program(RESTARTED)  # type: ignore[arg-type, call-arg]
    code, out, err = started.ended(200)
    assert (code, out) == (0, "the program is over\n"), err
    assert "restarts (restart 1)" in err
    lines = [int(n) for file in (tmp_path / "out").iterdir() for n in file.read_text().split()]
    assert sorted(lines) == list(range(4000))
    started.assert_nothing_left()


def test_a_program_that_fails_takes_its_endless_job_along(program: type[Program]) -> None:
    started = program(ENDLESS, "fails")  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    code, _, err = started.ended(90)
    assert code == 1
    assert "RuntimeError: a bug in the program" in err
    assert "job 'endless' is cancelled, because the program failed (RuntimeError)" in err
    started.assert_nothing_left()


@pytest.mark.parametrize(("what", "group"), [("waits", False), ("leaves", True)])
def test_sigterm_ends_the_job_in_order(program: type[Program], tmp_path: Path, what: str, group: bool) -> None:
    """A service manager sends it, some to all processes at once, Spark's too. Checkpoints stay as after any cancel."""
    started = program(ENDLESS, what, *(["checkpoints"] if not group else []))  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    (os.killpg if group else os.kill)(started.process.pid, signal.SIGTERM)
    code, _, err = started.ended(90)
    assert code == -signal.SIGTERM, err
    assert "SIGTERM: job 'endless' is cancelled" in err
    if group:
        started.assert_nothing_left()
    else:
        assert list((tmp_path / "checkpoints").rglob("*.manifest"))
        _, alive = psutil.wait_procs(started.family, timeout=30)
        assert alive == []


def test_a_driver_that_dies_takes_its_workers_along(program: type[Program]) -> None:
    started = program(ENDLESS, "waits")  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    started.process.kill()
    started.ended(90)
    started.assert_nothing_left()


JVM_DIES = """
import os, signal, time, threading
import psutil
import tailrace as tr

env = tr.Environment(parallelism=2)
env.from_source(tr.sources.Sequence(0, None, rate=2000)).sink_to(tr.sinks.TextFiles("out"))
job = env.execute("jvm dies")
while str(job.status) != "RUNNING":
    time.sleep(0.05)
time.sleep(0.5)
print("ready", flush=True)
for process in psutil.Process().children(recursive=True):
    if "java" in process.name():
        process.send_signal(signal.SIGKILL)
try:
    job.await_termination(20)
except tr.JobFailed as error:
    print("failed", job.status, "JVM of the Spark session is gone" in str(error), flush=True)
time.sleep(0.5)
print([t.name for t in threading.enumerate() if t.name.startswith("tailrace")], flush=True)
os._exit(0)  # Spark itself does not get over the death of its JVM
"""

SPARK_STOPS = """
import time, threading
import tailrace as tr

for i in range(2):
    env = tr.Environment(parallelism=2)
    spark = env.spark
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=2000))
    numbers.sink_to(tr.sinks.TextFiles("out"))
    job = env.execute("spark stops")
    while str(job.status) != "RUNNING":
        time.sleep(0.05)
    time.sleep(0.5)
    asked = time.monotonic()
    spark.stop()
    try:
        job.await_termination(20)
    except tr.JobFailed as error:
        print("failed", job.status, time.monotonic() - asked < 10, "Spark session was stopped" in str(error), flush=True)
    print([t.name for t in threading.enumerate() if t.name.startswith("tailrace")], flush=True)
try:
    env.from_collection([1]).collect()
except tr.ConfigError as error:
    print(error, flush=True)
assert sorted(tr.Environment(parallelism=1).from_collection([1, 2]).collect()) == [1, 2]  # a new session
"""


def test_the_jvm_dies(program: type[Program]) -> None:
    started = program(JVM_DIES)  # type: ignore[arg-type, call-arg]
    started.wait_ready()
    _, out, err = started.ended(90)
    assert out.splitlines() == ["failed FAILED True", "[]"], err
    started.assert_nothing_left()


def test_spark_is_stopped_during_a_job(program: type[Program]) -> None:
    started = program(SPARK_STOPS)  # type: ignore[arg-type, call-arg]
    code, out, err = started.ended(200)
    assert code == 0, err
    assert out.splitlines()[:4] == ["failed FAILED True True", "[]"] * 2
    assert "stopped" in out.splitlines()[4]
    started.assert_nothing_left()
