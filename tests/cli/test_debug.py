"""`tailrace debug`: a failed call under pdb, and as a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app

PROGRAM = """
import sys
from dataclasses import dataclass

import tailrace as tr


@dataclass
class Order:
    who: str
    cents: int


class Base(tr.KeyedProcessFunction):
    def total_of(self, order):
        return order.cents / 100


class Totals(Base):
    total = tr.ValueState(float, default=0.0)

    def process(self, order, ctx):
        self.total.value += super().total_of(order)
        if not isinstance(order, Order) or order.cents < 0:
            raise ValueError(f"{order.who} has {self.total.value}")
        yield self.total.value


if __name__ == "__main__":
    checkpoint = tr.CheckpointConfig(dir="unused", interval=0.1)
    env = tr.Environment(parallelism=1, checkpoint=checkpoint, restart=tr.NoRestart())
    orders = env.from_collection([Order("eve", 500), Order("eve", -100)])
    orders.key_by(lambda order: order.who).process(Totals(), name="totals").sink_to(tr.sinks.Collect())
    (data,) = tr.testing.simulate(env).capsules.values()
    open(sys.argv[1], "wb").write(data)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, and the capsule of its failure: made by another process, as in production."""
    folder = tmp_path_factory.mktemp("debug")
    (folder / "orders.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "orders.py", "one.capsule"], cwd=folder, check=True)
    return folder


def test_a_call_runs_under_pdb_with_the_code_of_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "__stdin__", sys.stdin)
    commands = "p self.total.value\nb 25\nc\np order.cents\nc\np self.total.value\nq\n"
    result = CliRunner().invoke(app, ["debug", str(folder / "one.capsule")], input=commands)
    assert result.exit_code == 0, result.output
    assert "record Order(who='eve', cents=-100)" in result.output
    assert "state total = 5.0" in result.output
    assert "(Pdb) 5.0" in result.output
    assert "(Pdb) -100" in result.output
    assert "(Pdb) 4.0" in result.output
    assert result.output.rstrip().endswith("the call failed as in the job: ValueError: eve has 4.0")


def test_a_call_that_does_not_fail_any_more_is_told(folder: Path) -> None:
    result = CliRunner().invoke(app, ["debug", "--run", str(folder / "one.capsule")])
    assert result.exit_code == 0
    assert "the call failed as in the job" in result.output


def test_as_test_writes_a_test_that_fails_until_the_program_is_mended(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["debug", "--as-test", "--into", str(tmp_path), str(folder / "one.capsule")])
    assert result.exit_code == 0, result.output
    (test,) = tmp_path.glob("test_*.py")
    again = CliRunner().invoke(app, ["debug", "--as-test", "--into", str(tmp_path), str(folder / "one.capsule")])
    assert again.exit_code == 1 and "there already" in again.output
    assert "tr.testing.harness(" in test.read_text()
    outcome = _pytest(tmp_path)
    assert "ValueError: eve has 4.0" in outcome.stdout and outcome.returncode == 1
    program = folder / "orders.py"
    program.write_text(PROGRAM.replace("or order.cents < 0", "or order.cents < -1000"))
    try:
        assert _pytest(tmp_path).returncode == 0
    finally:
        program.write_text(PROGRAM)


def test_what_is_no_capsule_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.capsule"
    other.write_bytes(b"something")
    for path in (other, tmp_path / "missing.capsule"):
        result = CliRunner().invoke(app, ["debug", str(path)])
        assert result.exit_code == 1
        assert "tailrace debug:" in result.output and path.name in result.output


def _pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
