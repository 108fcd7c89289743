"""A job under a service manager, and commands to it from another terminal: each start is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

FLOW = """
import tailrace as tr

class Seen(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, value, ctx):
        self.count.value += 1
        yield (ctx.key, self.count.value, value)

env = tr.Environment(parallelism=2)
numbers = env.from_source(tr.sources.Sequence(0, None, rate=400), uid="numbers", parallelism=1)
numbers.key_by(lambda n: n % 3).process(Seen(), uid="seen").sink_to(tr.sinks.TextFiles("out"), uid="out")
print(env.execute("counted").await_termination(), "and what stands behind it is done", flush=True)
"""
START = [
    "run",
    "--no-progress",
    "--master",
    "local[3]",
    "--checkpoint-dir",
    "checkpoints",
    "--checkpoint-interval",
    "0.3",
]
SERVICE = [*START, "--from", "latest-or-new", "--on-signal", "stop", "flow.py"]


@pytest.fixture
def tailrace(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    (tmp_path / "flow.py").write_text(FLOW)
    started: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="tr-", dir="/tmp") as sockets:  # the path of a socket is short

        def start(*args: str) -> subprocess.Popen[str]:
            command, environment = (
                [sys.executable, "-m", "tailrace", *args],
                {**os.environ, "TAILRACE_CONTROL_DIR": sockets},
            )
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
            return started[-1]

        yield start
        for one in started:
            one.kill()
            one.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The output of a command that succeeds."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_a_service_is_stopped_by_its_signal_or_from_a_terminal_and_each_start_goes_on_exactly(
    tailrace: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Twice the same command: the first start finds no checkpoint, the second one that of the stop."""
    lines = lambda: [eval(line) for file in (tmp_path / "out").glob("part-*") for line in file.open()]  # noqa: E731
    service = tailrace(*SERVICE)
    assert waited(lambda: lines() or service.poll() is not None, 60)
    show = lambda: json.loads(said(tailrace("show", "counted", "--json")))  # noqa: E731
    rows = lambda: show()["job"]["records_in"] or 0  # noqa: E731
    assert waited(lambda: rows() > 0, 30), (
        "the first report is due a second after the start, and counts what was read by then"
    )
    shown = show()
    assert shown["job"]["process"] == service.pid
    service.send_signal(signal.SIGTERM)
    assert "True and what stands behind it is done" in said(service)
    before = len(lines())

    service = tailrace(*SERVICE)
    assert waited(lambda: len(lines()) > before or service.poll() is not None, 60)
    assert json.loads(said(tailrace("list", "--json")))[0]["status"] == "RUNNING"
    saved = json.loads(said(tailrace("savepoint", "counted", "saved/here", "--json")))
    assert saved["path"] == str(tmp_path / "saved/here") and (tmp_path / "saved/here").is_dir()
    stopped = said(tailrace("stop", "counted"))
    assert "job 'counted' has stopped" in stopped and "True and what stands" in said(service)
    found = sorted(lines(), key=lambda line: line[2])
    assert found == [(n % 3, n // 3 + 1, n) for n in range(len(found))] and len(found) > before
    assert said(tailrace("list")) == "no job of yours is running on this machine\n"
