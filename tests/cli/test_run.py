"""`tailrace run`: what it runs, and the exit codes that scripts rely on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.cli import run
from tailrace.coordinator.lifecycle import JobStatus

FLOW = """
import sys
import tailrace as tr

def build(env, count="10"):
    env.from_source(tr.sources.Sequence(0, int(count))).map(lambda x: x * 2).sink_to(tr.sinks.TextFiles("out"))

def fails(env):
    env.from_source(tr.sources.Sequence(0, 10)).map(lambda x: 1 // (x - 5), name="invert").sink_to(tr.sinks.Print())

def forever(env):
    env.from_source(tr.sources.Sequence(0, None, rate=100)).sink_to(tr.sinks.Print())

def empty(env):
    env.from_collection([1])

def cancelled(env):
    env.from_source(tr.sources.Sequence(0, None, rate=100)).sink_to(tr.sinks.Print())
    env.execute("mine").cancel()

if __name__ == "__main__":
    env = tr.Environment()
    print("parallelism", env.parallelism)
    build(env, sys.argv[1])
    env.execute("script")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path


def tailrace(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


def numbers(folder: Path) -> list[int]:
    return sorted(int(line) for file in (folder / "out").glob("part-*") for line in file.read_text().split())


def test_the_version_is_told(folder: Path) -> None:
    done = tailrace(folder, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")


def test_help_names_the_command_and_its_options(folder: Path) -> None:
    done = tailrace(folder, "run", "--help")
    assert done.returncode == 0
    for word in ("--master", "--parallelism", "--conf"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run"], "Missing argument"),
        (["run", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["run", "flow.py:nope"], "has no function 'nope'"),
        (["run", "--conf", "x", "flow.py"], "expected KEY=VALUE"),
        (["run", "--parallelism", "0", "flow.py"], "parallelism"),
        (["run", "flow.py:build", "1", "2", "3"], "cannot be called"),
        (["run", "--nope", "flow.py"], "No such option"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(folder: Path, args: list[str], said: str) -> None:
    done = tailrace(folder, *args)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_function_that_builds_nothing_exits_with_1(folder: Path) -> None:
    done = tailrace(folder, "run", "flow.py:empty")
    assert done.returncode == 1
    assert "started no job" in done.stderr


@pytest.mark.spark
def test_a_script_that_raises_takes_its_jobs_with_it(folder: Path) -> None:
    (folder / "raises.py").write_text(
        "import tailrace as tr\n"
        "env = tr.Environment(parallelism=1)\n"
        "env.from_source(tr.sources.Sequence(0, None, rate=100)).sink_to(tr.sinks.Print())\n"
        "env.execute('endless')\n"
        "raise ValueError('the script is wrong')\n"
    )
    done = tailrace(folder, "run", "raises.py")
    assert done.returncode == 1
    assert "ValueError: the script is wrong" in done.stderr


@pytest.mark.spark
def test_a_function_gets_an_environment_and_its_arguments(folder: Path) -> None:
    done = tailrace(folder, "run", "--parallelism", "1", "flow.py:build", "20")
    assert done.returncode == 0, done.stderr
    assert numbers(folder) == list(range(0, 40, 2))
    assert "build: FINISHED | in 20 | out 20" in done.stderr


@pytest.mark.spark
@pytest.mark.paths
def test_a_script_runs_as_main_and_its_job_is_awaited(folder: Path) -> None:
    done = tailrace(folder, "run", "--parallelism", "3", "--master", "local[4]", "flow.py", "7")
    assert done.returncode == 0, done.stderr
    assert "parallelism 3" in done.stdout
    assert numbers(folder) == list(range(0, 14, 2))


@pytest.mark.spark
def test_a_failed_job_exits_with_1_and_the_users_traceback(folder: Path) -> None:
    done = tailrace(folder, "run", "flow.py:fails")
    assert done.returncode == 1
    assert "operator 'invert'" in done.stderr
    assert "1 // (x - 5)" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.spark
def test_a_cancelled_job_exits_with_130(folder: Path) -> None:
    assert tailrace(folder, "run", "flow.py:cancelled").returncode == 130


@pytest.mark.spark
def test_an_interrupt_cancels_the_job_and_exits_with_130(folder: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "run", "flow.py:forever"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "RUNNING" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=200)
    assert process.returncode == 130


# How a script ends, and what becomes of its jobs.


class Job:
    """A job that a script has started, and that does not end before it is cancelled or awaited."""

    status = JobStatus.RUNNING

    def __init__(self, if_program_fails: str) -> None:
        self._leaving = SimpleNamespace(if_program_fails=if_program_fails)
        self.did: list[str] = []

    is_active = False  # nothing is to be waited for here

    def cancel(self) -> None:
        self.did.append("cancelled")

    def await_termination(self) -> None:
        self.did.append("awaited")


@pytest.mark.parametrize(
    ("script", "code", "did"),
    [
        ("", 0, ["awaited"]),
        ("import sys; sys.exit(0)", 0, ["awaited"]),
        ("import sys; sys.exit(3)", 3, ["cancelled"]),
        ("import sys; sys.exit('a word')", "a word", ["cancelled"]),
        ("1 / 0", 1, ["cancelled"]),
        ("raise KeyboardInterrupt", 130, ["cancelled"]),
    ],
)
def test_a_script_that_leaves_with_a_failure_takes_its_jobs_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: Any, did: list[str]
) -> None:
    job, stays = Job("cancel"), Job("wait")
    monkeypatch.setattr(run, "JOBS", [job, stays])
    monkeypatch.setattr(run, "_settings", lambda *given: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "script.py").write_text(script)
    try:
        found: Any = run.run_file(str(tmp_path / "script.py"), []).value
    except SystemExit as leaving:
        found = leaving.code
    assert (found, job.did) == (code, did)
    assert stays.did == (["awaited"] if script == "1 / 0" else did)  # an exception is what it was told to outlive
