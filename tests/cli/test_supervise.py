"""`tailrace supervise`: which ends of a program are followed by another start, and what becomes of signals."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import tailrace as tr
from tailrace.cli import supervise
from tailrace.cli.main import app
from tailrace.cli.supervise import Supervisor
from tailrace.errors import ConfigError
from tailrace.retries import Retries
from tailrace.settings import SETTINGS
from tailrace.spark.start.start_checkpoint import supervised_start
from tailrace.state.end_mark import FINISHED, Ending
from tailrace.storage.store import Store

AT_ONCE = Retries(math.inf, first=0.0, most=0.0)


@pytest.mark.parametrize(
    ("end", "starts", "code"),
    [
        ("exit 0", 1, 0),
        ("exit 2", 1, 2),
        ("exit 3", 1, 3),
        ("exit 130", 1, 130),
        ("exit 1", 4, 1),
        ("exit 7", 4, 7),
        ("kill -KILL $$", 4, 137),
        ("kill -SEGV $$", 4, 139),
        ("kill -TERM $$", 4, 143),
        ("[ $(wc -l < starts) = 3 ] || kill -KILL $$", 3, 0),
    ],
)
def test_a_program_is_started_again_when_it_fails_or_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, starts: int, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    program = ["sh", "-c", f"echo $TAILRACE_SUPERVISED >> starts; {end}"]
    assert Supervisor(program, attempts=4, retries=AT_ONCE).run() == code
    assert (tmp_path / "starts").read_text().split() == ["1"] * starts


class World:
    """A clock, and programs that end as the test has it: each after some seconds, with an exit code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runs: list[tuple[float, int]], attempts: int = 20) -> None:
        self.now, self.runs, self.starts = 0.0, iter(runs), 0
        self.received: list[int] = []
        self.during_run = self.during_pause = lambda: None
        retries = Retries(math.inf, first=1.0, most=60.0, clock=lambda: self.now, chance=lambda: 0.0)
        self.supervisor = Supervisor(["visits"], attempts, 600.0, retries, self.sleep)
        monkeypatch.setattr(subprocess, "Popen", self.start)

    def start(self, command: list[str], **options: Any) -> Any:
        self.starts += 1
        return SimpleNamespace(pid=70 + self.starts, wait=self.wait, send_signal=self.received.append)

    def wait(self) -> int:
        seconds, code = next(self.runs)
        self.now += seconds
        self.during_run()
        return code

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.during_pause()


def test_pauses_double_until_a_start_has_lasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(monkeypatch, [(9, -9), (9, 1), (9, 1), (600, -9), (9, 1), (700, -11), (9, 1), (3600, 0)])
    assert world.supervisor.run() == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" follows in ")[1] for line in lines if " follows in " in line] == [
        "1.0 s", "2.0 s", "4.0 s", "1.0 s", "2.0 s", "1.0 s", "2.0 s",
    ]  # fmt: skip
    assert lines[:3] == [
        "tailrace supervise: start 1 (process 71): visits",
        "tailrace supervise: start 1 (process 71) died of SIGKILL, as where memory runs out, after 9 s: start 2 follows in "
        "1.0 s",
        "tailrace supervise: start 2 (process 72): visits",
    ]
    assert lines[-1] == "tailrace supervise: start 8 (process 78) ended with exit code 0 after 3600 s: it has finished"


def test_it_gives_up_when_starts_in_a_row_are_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(monkeypatch, [(9, 1), (9, 1), (600, 1), (9, 1), (9, 1), (9, -9)], attempts=3)
    assert world.supervisor.run() == 137
    assert world.starts == 6
    assert "gives up, since the last 3 starts have each lasted less than 600 s" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("code", [0, 1, -15])
def test_a_signal_is_passed_on_and_no_other_start_follows(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    world = World(monkeypatch, [(9, code)])
    world.during_run = lambda: world.supervisor.handle(number)
    assert world.supervisor.run() == (143 if code < 0 else code)
    assert (world.starts, world.received) == (1, [number])


def test_each_further_signal_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [(9, -15)])

    def twice() -> None:
        world.supervisor.handle(signal.SIGTERM)
        world.supervisor.handle(signal.SIGTERM)

    world.during_run = twice
    world.supervisor.run()
    assert world.received == [signal.SIGTERM, signal.SIGTERM]


def test_a_signal_before_the_program_is_there_is_passed_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [(0, -15)])
    world.supervisor.handle(signal.SIGTERM)
    assert world.supervisor.run() == 143
    assert (world.starts, world.received) == (1, [signal.SIGTERM])


def test_a_signal_in_a_pause_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [(9, 1)])
    world.during_pause = lambda: world.supervisor.handle(signal.SIGTERM)
    assert world.supervisor.run() == 128 + signal.SIGTERM
    assert (world.starts, world.received) == (1, []) and world.now < 9.5


def test_a_program_for_which_the_machine_has_no_room_is_started_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(monkeypatch, [(9, 0)])

    def no_room(command: list[str], **options: Any) -> Any:
        monkeypatch.setattr(subprocess, "Popen", world.start)
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", no_room)
    assert world.supervisor.run() == 0
    assert "start 1 of visits is not possible: Cannot allocate memory" in capsys.readouterr().err


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(monkeypatch, [(9, 0)])
    world.supervisor._command = ["visits", "redis://me:secret@host"]
    world.supervisor.run()
    assert "redis://me:***@host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing argument"),
        (["run"], "Missing argument"),
        (["run", "--nope", "flow.py"], "No such option"),
        (["run", "--from", "latest", "--dry-run", "flow.py"], "a dry run starts nothing"),
        (["flow.py"], "to run a script: tailrace supervise run flow.py"),
        (["--attempts", "0", "run", "flow.py"], "--attempts"),
    ],
)
def test_wrong_usage_starts_nothing(monkeypatch: pytest.MonkeyPatch, args: list[str], message: str) -> None:
    monkeypatch.setattr(Supervisor, "run", None)
    done = CliRunner().invoke(app, ["supervise", *args])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_run_is_started_with_the_interpreter_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "supervise", lambda supervisor: print(supervisor._command) or 0)
    done = CliRunner().invoke(app, ["supervise", "run", "--standby", "1", "flow.py", "--count", "2"])
    words = ["-m", "tailrace", "run", "--standby", "1", "flow.py", "--count", "2"]
    assert (done.exit_code, done.stdout) == (0, f"{[sys.executable, *words]}\n")


def supervised(program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tailrace", "supervise", "sh", "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize(
    ("program", "returned"),
    [("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done", 0), ("echo up; exec sleep 100", -signal.SIGTERM)],
)
def test_the_command_ends_as_its_program_does(program: str, returned: int) -> None:
    process = supervised(program)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == returned
    assert "SIGTERM was passed on to it" in err


# The jobs of a supervised program.

Settings = Callable[..., Any]
CHECKPOINTS = tr.CheckpointConfig("checkpoints")


@pytest.mark.parametrize(
    ("checkpoint", "requested", "again", "message"),
    [
        (None, None, False, "It takes no checkpoints; give it"),
        (None, "latest-or-new", False, "It takes no checkpoints; give it"),
        (CHECKPOINTS, "backups/monday", False, "It is to start from 'backups/monday', each time; start it"),
        (CHECKPOINTS, None, True, "It is to begin anew when it has finished"),
    ],
)
def test_a_job_whose_second_start_would_not_go_on_is_refused(
    checkpoint: Any, requested: str | None, again: bool, message: str
) -> None:
    env: Any = SimpleNamespace(checkpoint=checkpoint)
    with pytest.raises(ConfigError, match=message):
        supervised_start(env, "visits", requested, again)


@pytest.mark.parametrize(
    ("requested", "start"), [(None, "latest-or-new"), ("latest-or-new", "latest-or-new"), ("latest", "latest")]
)
def test_a_supervised_job_starts_from_its_newest_checkpoint(requested: str | None, start: str) -> None:
    env: Any = SimpleNamespace(checkpoint=CHECKPOINTS)
    assert supervised_start(env, "visits", requested, False) == start


ONE_JOB = """
import tailrace as tr

env = tr.Environment(checkpoint=tr.CheckpointConfig("checkpoints"))
env.from_collection([1]).sink_to(tr.sinks.TextFiles("out"))
print(env.execute("one"{given}).await_termination())
"""


def second_start(folder: Path, job: str, program: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A supervised program that was killed between the end of its job and its own. Without Spark: nothing is started."""
    store = Store(str(folder / "checkpoints"), job)
    store.mark_ended(store.claim("run"), Ending(job, "run", FINISHED, 1_700_000_000_000_000))
    (folder / "program.py").write_text(program)
    environ = {**os.environ, SETTINGS["supervised"].variable: "1"}
    words = [sys.executable, *command, "program.py"]
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("given", ["", ", from_checkpoint='latest-or-new'"])
def test_a_supervised_program_whose_job_has_finished_goes_on(tmp_path: Path, given: str) -> None:
    done = second_start(tmp_path, "one", ONE_JOB.replace("{given}", given))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert not (tmp_path / "out").exists()


COLLECTS = """
import tailrace as tr

env = tr.Environment(checkpoint=tr.CheckpointConfig("checkpoints"))
print(env.from_collection([1]).collect())
"""


def test_a_supervised_program_does_not_pass_for_finished_where_it_misses_its_results(tmp_path: Path) -> None:
    """The command took the end of the job for that of the program: exit code 0, and the rest of it had never run."""
    done = second_start(tmp_path, "collect", COLLECTS, "-m", "tailrace", "run")
    assert (done.returncode, done.stdout) == (1, "")
    assert "job 'collect' has finished in an earlier start of this supervised program" in done.stderr
