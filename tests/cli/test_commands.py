"""Errors of the command line for wrong usage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tailrace.cli.main import app
from tailrace.runtime.job import JOBS


def called(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "80"})


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_cuts_no_option_on_a_terminal_of_80_columns(command: str) -> None:
    output = called(command, "--help").output
    for parameter in COMMANDS[command].params:
        for name in parameter.opts:
            if name.startswith("--"):
                assert f"{name} " in output or f"{name}\n" in output, output
    assert "…" not in output and max(map(len, output.splitlines())) <= 80


def test_commands_are_listed_with_whole_sentences() -> None:
    output = called("help").output
    assert "..." not in output.partition("Commands:")[2], "each ends in 80 columns"
    assert "Stop a running job in order." in output and "Take a savepoint of a running job." in output
    assert called("help", "run").output == called("run", "--help").output


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (["flow.py"], "No such command 'flow.py'. To run a script: tailrace run flow.py"),
        (["flow.py:main"], "To run a script: tailrace run flow.py:main"),
        (["start", "flow.py"], "No such command 'start'. Did you mean run?"),
        (["ps"], "Did you mean list?"),
        (["ls"], "Did you mean list?"),
        (["run", "--mode", "exactly-once", "flow.py"], "expected aligned, unaligned-max-inflight, unaligned, got"),
        (["sop"], "Did you mean stop?"),
        (["xyz"], "No such command 'xyz'."),
        (["run", "--master", "lokal[2]", "flow.py"], "expected a master of Spark such as local[4]"),
        (["run", "--paralelism", "2", "flow.py"], "--parallelism"),
    ],
)
def test_a_wrong_command_or_option_is_reported_with_the_right_one(args: list[str], output: str) -> None:
    done = called(*args)
    assert done.exit_code == 2 and output in " ".join(done.output.split())


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]"])
def test_masters_of_spark_are_taken(master: str) -> None:
    assert "there is no file" in called("run", "--master", master, "nothere.py").output


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    JOBS.clear()
    yield lambda text: (tmp_path / "flow.py").write_text(text) and None


def test_a_script_that_starts_no_job_is_reported(script: Callable[[str], None]) -> None:
    script("import tailrace as tr\nenv = tr.Environment()\nenv.from_collection([1]).sink_to(tr.sinks.Print())\n")
    done = called("run", "flow.py")
    assert done.exit_code == 0
    assert "tailrace run: flow.py has started no job; end a stream in a sink and call env.execute(name)" in done.output
    script("def build(env): ...\n")
    assert "run one of its functions (tailrace run flow.py:build), or" in called("run", "flow.py").output


def test_an_option_behind_the_script_is_told_to_be_the_scripts(script: Callable[[str], None]) -> None:
    script("import sys; print(sys.argv[1:])")
    done = called("run", "flow.py", "--parallelism", "2", "--other")
    assert "tailrace run: --parallelism is an argument of flow.py, since it stands behind it" in done.output
    assert "['--parallelism', '2', '--other']" in done.output


@pytest.mark.parametrize(
    ("text", "last"), [("x = = 3", "SyntaxError: invalid syntax"), ("1 / 0", "ZeroDivisionError: ")]
)
def test_a_traceback_of_a_script_is_its_own(script: Callable[[str], None], text: str, last: str) -> None:
    script(text)
    done = called("run", "flow.py")
    assert done.exit_code == 1 and last in done.output and "tailrace/cli" not in done.output
