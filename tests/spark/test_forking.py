"""Python workers that are forked from a process that has imported what they need, and where that is left to PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import tailrace as tr
from tailrace.spark.cluster import forking
from tests.installing import outside

SOURCE = Path(tr.__file__).parents[1]


def daemon(folder: Path, *places: Path) -> list[str]:
    """What PySpark's daemon finds that Spark has started by the name of ours: its arguments, and whether it has imported
    tailrace."""
    (folder / "pyspark").mkdir(parents=True)
    (folder / "pyspark" / "__init__.py").touch()
    found = 'print(__name__, *sys.argv[1:], "tailrace" in sys.modules, sys.modules["__main__"].DAEMONS)'
    (folder / "pyspark" / "daemon.py").write_text(f"import sys\nDAEMONS = 'own'\n{found}\n")
    path = os.pathsep.join(map(str, [*places, folder, forking.FOLDER]))
    command = [sys.executable, "-m", "tailrace_daemon", "pyspark.worker"]
    environ = outside() | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


PLAIN = ["__main__", "pyspark.worker", "False", "own"]


def test_where_another_tailrace_is_found_it_is_pysparks_own(tmp_path: Path) -> None:
    """Of an executor that has a version of its own: a job brings it that of the program, or refuses, and can do neither once
    the other one is imported."""
    (tmp_path / "site" / "tailrace").mkdir(parents=True)
    (tmp_path / "site" / "tailrace" / "__init__.py").write_text("raise AssertionError('imported')")
    assert daemon(tmp_path / "run", tmp_path / "site") == PLAIN


def test_where_something_is_missing_it_is_pysparks_own(tmp_path: Path) -> None:
    """This PySpark has no workers. What was imported by then is not there."""
    assert daemon(tmp_path, SOURCE) == PLAIN


def test_a_process_with_threads_does_not_fork() -> None:
    """What other threads hold would stay held in the forked process for ever."""
    program = """
import sys, threading
import tailrace_daemon
print(tailrace_daemon.is_ready(), "tailrace.runtime.worker.main_loop" in sys.modules, "pandas" in sys.modules)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(tailrace_daemon.is_ready())
"""
    path = os.pathsep.join(map(str, [SOURCE, forking.FOLDER]))
    environ = outside() | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # as Spark sets it
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True False", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted on Linux only")
def test_pandas_is_imported_behind_the_first_forks_and_starts_no_thread() -> None:
    """The first worker does not wait for it. Those that are forked later have it, though none of them has imported it, and
    numpy's generator, which it brings along, draws other numbers in each."""
    program = """
import os, signal, sys
import tailrace_daemon
tailrace_daemon.LATER_SECONDS = 600
assert tailrace_daemon.is_ready()
tailrace_daemon.give_each_its_own_chance()
tailrace_daemon.import_pandas_later()

def in_a_worker():
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        numpy = sys.modules.get("numpy.random")
        number = None if numpy is None else numpy.rand()
        print("pandas" in sys.modules, signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, number, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

in_a_worker()
print(signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0)
signal.raise_signal(signal.SIGALRM)  # the timer's
in_a_worker()
in_a_worker()
print(len(os.listdir("/proc/self/task")), signal.getitimer(signal.ITIMER_REAL)[0])
"""
    path = os.pathsep.join(map(str, [SOURCE, forking.FOLDER]))
    environ = outside() | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # as Spark sets it
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    first, due, *later, last = done.stdout.splitlines()
    assert (first, due, last) == ("False True None", "True", "1 0.0")
    assert len(set(later)) == 2 and all(one.startswith("True True 0.") for one in later), later


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


OURS = {forking.DAEMON: "tailrace_daemon"} if sys.platform == "linux" else {}


def test_the_users_own_daemon_wins(no_jvm: None) -> None:
    assert forking.daemon_of({}) == OURS
    assert forking.daemon_of({forking.DAEMON: "theirs"}) == {}


class Jvm:
    def __init__(self, path: str | None) -> None:
        self.System = self
        self.path = path

    def getenv(self, name: str) -> str | None:
        assert name == "PYTHONPATH"
        return self.path


def test_a_jvm_of_somebody_else_knows_nothing_of_it(no_jvm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (None, "", "/somewhere"):
        monkeypatch.setattr(SparkContext, "_jvm", Jvm(path))
        assert forking.daemon_of({}) == {}
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setattr(SparkContext, "_jvm", Jvm(forking.python_path()))
    assert forking.daemon_of({}) == OURS
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert forking.daemon_of({}) == {}


def about_the_process(batches: Iterator[Any]) -> Iterator[Any]:
    import os

    import numpy
    import pyarrow

    for _ in batches:
        pass
    with open(f"/proc/{os.getppid()}/cmdline") as parent:
        facts = {"parent": parent.read().replace("\0", " "), "number": numpy.random.rand()}
    yield pyarrow.RecordBatch.from_pylist([facts])


@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted on Linux only")
def test_workers_of_a_local_session_are_forked_with_all_that_they_need(spark: Any) -> None:
    """And differ in nothing else from those that PySpark's own daemon forks: in numbers of numpy's generator, say, which all
    workers would have drawn from one and the same state."""
    found = spark.range(0, 3, 1, 3).mapInArrow(about_the_process, "parent string, number double").collect()
    assert all("-m tailrace_daemon pyspark.worker" in one.parent for one in found), found
    assert len({one.number for one in found}) == 3, found
