"""`tailrace run`: what it runs, and the exit codes that scripts rely on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tailrace as tr
from tailrace.cli import main, run, run_file
from tailrace.cli.main import app
from tailrace.cli.run_file import ExitOutcome
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.state.end_mark import FINISHED, Ending, OperatorIdentity
from tailrace.storage.store import Store

FLOW = """
import sys
import tailrace as tr

def build(env, count="10"):
    numbers = env.from_source(tr.sources.Sequence(0, int(count)))
    numbers.map(lambda x: x * 2).sink_to(tr.sinks.TextFiles(f"out-{count}"))

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


@pytest.fixture
def within(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`tailrace` in this process, where no Spark is to start."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *args: CliRunner().invoke(app, list(args))


def numbers(folder: Path) -> list[int]:
    return sorted(int(line) for file in folder.glob("part-*") for line in file.read_text().split())


def test_the_version_is_reported(folder: Path) -> None:
    done = tailrace(folder, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")


def test_help_names_the_command_and_its_options(within: Callable[..., Result]) -> None:
    done = within("run", "--help")
    assert done.exit_code == 0
    for word in ("--master", "--parallelism", "--conf"):
        assert word in done.stdout


@pytest.mark.parametrize("given", [[], ["--ship"]])
def test_what_executors_lack_is_shipped_where_that_is_said(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.delenv("TAILRACE_SHIP", raising=False)
    found = []
    monkeypatch.setattr(
        run, "run_file", lambda *args, **options: found.append(DEFAULTS.ships()) or ExitOutcome.FINISHED
    )
    result = CliRunner().invoke(main.app, ["run", *given, "flow.py"])
    DEFAULTS.ship = False
    assert (result.exit_code, found) == (0, [bool(given)])


@pytest.mark.parametrize(("given", "replicas"), [([], None), (["--standby", "0"], 0), (["--standby", "2"], 2)])
def test_standbys_are_those_of_environments_that_say_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], replicas: int | None
) -> None:
    found: list[Any] = []

    def runs(*args: Any, **options: Any) -> ExitOutcome:
        checkpoint = tr.CheckpointConfig(str(tmp_path))
        own = tr.StandbyConfig(replicas=1)
        found.extend([tr.Environment(checkpoint=checkpoint), tr.Environment(checkpoint=checkpoint, standby=own)])
        return ExitOutcome.FINISHED

    monkeypatch.setattr(run, "run_file", runs)
    result = CliRunner().invoke(main.app, ["run", *given, "flow.py"])
    DEFAULTS.standby = None
    assert result.exit_code == 0, result.output
    assert [one.standby and one.standby.replicas for one in found] == [replicas, 1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "Missing argument"),
        (["run", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["run", "flow.py:nope"], "has no function 'nope'"),
        (["run", "--conf", "x", "flow.py"], "expected KEY=VALUE"),
        (["run", "--parallelism", "0", "flow.py"], "parallelism"),
        (["run", "flow.py:build", "1", "2", "3"], "takes neither env and the arguments"),
        (["run", "--nope", "flow.py"], "No such option"),
    ],
)
def test_wrong_usage_is_reported_and_exits_with_2(within: Callable[..., Result], args: list[str], message: str) -> None:
    done = within(*args)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_function_that_builds_nothing_exits_with_1(within: Callable[..., Result]) -> None:
    done = within("run", "flow.py:empty")
    assert done.exit_code == 1
    assert "started no job" in done.stderr


# Commands that run on a Spark that is there already, one after the other: each starts its jobs, and ends them.

SHOP = Path(__file__).parents[1] / "spark" / "shop.py"
RAISES = """
import tailrace as tr
env = tr.Environment(parallelism=1)
env.from_source(tr.sources.Sequence(0, None, rate=100)).sink_to(tr.sinks.Print())
env.execute('endless')
raise ValueError('the script is wrong')
"""

COMMANDS = {
    "raises": ["run", "raises.py"],
    "script": ["run", "--parallelism", "2", "flow.py", "7"],
    "builds": ["run", "--parallelism", "1", "flow.py:build", "20"],
    "classes": ["run", "--parallelism", "2", "shop.py:dataflow"],
    "fails": ["run", "flow.py:fails"],
    "cancelled": ["run", "flow.py:cancelled"],
}

ONE_AFTER_THE_OTHER = """
import json, sys
from typer.testing import CliRunner
from tailrace.cli.main import app
from tailrace.runtime.job import JOBS
from tailrace.spark.cluster.session import local_session

local_session(3)
for name, command in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(app, command)
    left = sum(job.is_active for job in JOBS)
    JOBS.clear()
    print(json.dumps([name, done.exit_code, done.stdout, done.stderr, left]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str
    left: int
    """Jobs of it that still ran."""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Done]]:
    """The folder in which the commands ran, and what each has done."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "flow.py").write_text(FLOW)
    (folder / "raises.py").write_text(RAISES)
    (folder / "shop.py").write_text(SHOP.read_text())
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(COMMANDS)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = (json.loads(line) for line in done.stdout.splitlines())
    return folder, {name: Done(*rest) for name, *rest in lines}


Together = tuple[Path, dict[str, Done]]


@pytest.mark.spark
def test_a_script_that_raises_takes_its_jobs_with_it(together: Together) -> None:
    done = together[1]["raises"]
    assert done.returncode == 1
    assert "ValueError: the script is wrong" in done.stderr
    assert done.left == 0


@pytest.mark.spark
@pytest.mark.paths
def test_a_script_runs_as_main_and_its_job_is_awaited(together: Together) -> None:
    folder, all_done = together
    done = all_done["script"]
    assert (done.returncode, done.left) == (0, 0), done.stderr
    assert "parallelism 2" in done.stdout
    assert numbers(folder / "out-7") == list(range(0, 14, 2))


@pytest.mark.spark
def test_a_function_has_the_classes_of_its_file(together: Together) -> None:
    """`tailrace run FILE.py:function` leaves out what stands under `if __name__ == "__main__"`; the classes of the file are
    those of `__main__` all the same."""
    folder, all_done = together
    assert all_done["classes"].returncode == 0, all_done["classes"].stderr
    counts = [int(line[1:].partition(",")[0]) for f in (folder / "orders").glob("part-*") for line in f.open()]
    assert sorted(counts) == sorted([*range(1, 201 + 150)] * 3)


@pytest.mark.spark
def test_a_function_gets_an_environment_and_its_arguments(together: Together) -> None:
    folder, all_done = together
    done = all_done["builds"]
    assert done.returncode == 0, done.stderr
    assert numbers(folder / "out-20") == list(range(0, 40, 2))
    assert "build: FINISHED | in 20 | out 20" in done.stderr


@pytest.mark.spark
def test_a_failed_job_exits_with_1_and_the_users_traceback(together: Together) -> None:
    done = together[1]["fails"]
    assert done.returncode == 1
    assert "operator 'invert'" in done.stderr
    assert "1 // (x - 5)" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.spark
def test_a_cancelled_job_exits_with_130(together: Together) -> None:
    assert together[1]["cancelled"].returncode == 130


# A command in a process of its own, with a Spark of its own.


@pytest.mark.spark
def test_an_interrupt_cancels_the_job_and_exits_with_130(folder: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "run", "--master", "local[3]", "flow.py:forever"]
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
    run_id = "this program's"

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
        ("import tailrace as tr; raise tr.JobFailed('it has', taken_over=True)", 3, ["cancelled"]),
        ("raise KeyboardInterrupt", 130, ["cancelled"]),
    ],
)
def test_a_script_that_leaves_with_a_failure_takes_its_jobs_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: Any, did: list[str]
) -> None:
    job, stays = Job("cancel"), Job("wait")
    monkeypatch.setattr(run_file, "JOBS", [job, stays])
    monkeypatch.setattr(run_file, "_settings", lambda *given: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "script.py").write_text(script)
    try:
        found: Any = run_file.run_file(str(tmp_path / "script.py"), []).value
    except SystemExit as leaving:
        found = leaving.code
    assert (found, job.did) == (code, did)
    raised = script == "1 / 0" or "JobFailed" in script
    assert stays.did == (["awaited"] if raised else did)  # the test requires that it outlives an exception


def test_a_dry_run_says_what_fits_and_exits_by_it(folder: Path) -> None:
    """Without Spark: nothing is started."""
    from tailrace.state.manifest import Manifest, OperatorRecord, encode_manifest
    from tailrace.storage.store import Store

    store = Store(str(folder / "checkpoints"), "script")
    for number, records in enumerate([[], [OperatorRecord("gone", "my sums", 2, [], [], True)]], 1):
        manifest = Manifest(
            "script", "run", 1 if number > 1 else store.claim("run"), number, 0, 128, 1, [], operators=records
        )
        store.commit(1, number - 1, number, encode_manifest(manifest))
    fits = tailrace(folder, "run", "--from", "checkpoints/script/1/1.manifest", "--dry-run", "flow.py", "10")
    assert (fits.returncode, "fits the dataflow" in fits.stdout) == (0, True), fits.stderr
    refused = tailrace(folder, "run", "--from", "checkpoints", "--dry-run", "flow.py", "10")
    assert refused.returncode == 1 and "operator 'my sums' (uid 'gone') had state" in refused.stdout
    assert not (folder / "out-10").exists()
    missing = tailrace(folder, "run", "--dry-run", "flow.py", "10")
    assert missing.returncode == 2 and "--from" in missing.stderr


TWO_JOBS = """
import sys
import tailrace as tr

for name in sys.argv[1:]:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.TextFiles(f"out {name}"))
    print(name, env.execute(name).status)
"""


@pytest.mark.parametrize(("names", "code"), [(("one", "other"), 0), (("one", "one"), 1), (("one", "other", "one"), 1)])
def test_a_second_job_of_one_name_is_not_passed_over_as_finished(
    tmp_path: Path, names: tuple[str, ...], code: int
) -> None:
    """The second dataflow is another one, and has never run: the mark is that of the first. Without Spark: nothing is
    started."""
    for name in set(names):
        store = Store(str(tmp_path / "checkpoints"), name)
        store.mark_ended(store.claim("run"), Ending(name, "run", FINISHED, 1_700_000_000_000_000))
    (tmp_path / "jobs.py").write_text(TWO_JOBS)
    done = tailrace(tmp_path, "run", "--checkpoint-dir", "checkpoints", "--from", "latest-or-new", "jobs.py", *names)
    assert done.returncode == code, done.stderr
    seen = list(dict.fromkeys(names))
    assert done.stdout.splitlines() == [f"{name} FINISHED" for name in seen]
    assert done.stderr.count("has finished already") == len(seen)
    assert ("this program has started two jobs called 'one'" in done.stderr) == (code == 1)
    assert "Traceback" not in done.stderr


def test_another_script_with_the_name_of_a_finished_job_is_not_told_that_it_has_finished(tmp_path: Path) -> None:
    """Without Spark: nothing is started."""
    store = Store(str(tmp_path / "checkpoints"), "one")
    ran = [OperatorIdentity("", "source", ["Collection"], "numbers"), OperatorIdentity("lines", "sink", [], "lines")]
    store.mark_ended(store.claim("run"), Ending("one", "run", FINISHED, 1_700_000_000_000_000, dataflow=ran))
    (tmp_path / "jobs.py").write_text(TWO_JOBS)
    done = tailrace(tmp_path, "run", "--checkpoint-dir", "checkpoints", "--from", "latest-or-new", "jobs.py", "one")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "it had 'lines' (uid 'lines'), which is not in this dataflow" in done.stderr
    assert "it had no 'sink: text files' (sink, TextFiles, " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("run_id", "code"), [("this program's", 1), ("an earlier program's", 0)])
def test_a_job_that_an_earlier_job_of_the_program_has_finished_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str, code: int
) -> None:
    job = Job("cancel")
    monkeypatch.setattr(run_file, "JOBS", [job])
    monkeypatch.setattr(run_file, "_settings", lambda *given: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "script.py").write_text(
        f"import tailrace as tr\nraise tr.JobAlreadyFinished('it has', run_id={run_id!r})"
    )
    assert run_file.run_file(str(tmp_path / "script.py"), []).value == code
    assert job.did == (["cancelled"] if code else ["awaited"])
