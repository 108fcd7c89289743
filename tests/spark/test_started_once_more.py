"""A command that is given once more: after a kill, after a stop, and when the job has finished. Each start is a process of
its own, with the programs and the commands that the guide shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.environ import plain_environ
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
VISITS = 12_000
Start = Callable[[list[str]], subprocess.Popen[str]]


def block(page: str, begins: str) -> str:
    """A block of the guide, by how its first line that matters begins."""
    found = re.findall(r"^```\w*\n(.*?)^```", (GUIDE / page).read_text(), re.MULTILINE | re.DOTALL)
    [text] = [one for one in found if one.startswith(begins)]
    return str(text)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command of ours in the folder of the program, in a group of processes of its own."""
    (tmp_path / "visits.py").write_text(
        block("twenty-minutes.md", '"""Counts the visits').replace("rate=200", "rate=1500")
    )
    (tmp_path / "logs.py").write_text(block("twenty-minutes.md", "import json\nimport os"))
    subprocess.run([sys.executable, "logs.py"], cwd=tmp_path, check=True)
    started: list[subprocess.Popen[str]] = []

    def begin(words: list[str]) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "tailrace", *words]
        environ = plain_environ() | {"TAILRACE_MASTER": "local[3]"}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environ, start_new_session=True, **pipes))
        return started[-1]

    yield begin
    for one in started:
        if one.poll() is None:
            for group in (one.pid, *children(one.pid)):
                os.killpg(group, signal.SIGKILL)
        one.communicate()


def children(process: int) -> list[int]:
    """The programs of a supervisor: each is in a group of processes of its own."""
    found = map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return [one for one in found if os.getpgid(one) == one]


def counts(folder: Path) -> list[str]:
    """The lines that are visible, each with its window, its page and its count."""
    return sorted(line for file in (folder / "counts").glob("part-*") for line in file.read_text().splitlines())


def ended(process: subprocess.Popen[str]) -> str:
    """The output of a command that ends with exit code 0."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def whole(found: list[str]) -> None:
    assert sum(int(line.split()[2]) for line in found) == VISITS
    assert len({line.rpartition(" ")[0] for line in found}) == len(found), "no window is there twice"


def test_the_page_of_twenty_minutes_is_followed_and_its_last_command_given_again_and_again(
    start: Start, tmp_path: Path
) -> None:
    first, again = [
        line[11:].split() for line in (GUIDE / "twenty-minutes.md").read_text().splitlines() if "$ tailrace run" in line
    ]
    assert again == [*first[:-1], "--from", "latest", "visits.py"]
    killed = start(first)
    assert waited(lambda: counts(tmp_path) or killed.poll() is not None, 90)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert counts(tmp_path), "something was visible when it was killed"
    message = ended(start(again))
    assert re.search(
        r"job 'visits' goes on from checkpoint \d+, \d+\.\d (s|min) old \(.*/checkpoints/visits/1/\d+\.manifest\)",
        message,
    )
    found = counts(tmp_path)
    whole(found)
    for _ in range(2):
        message = ended(start(again))
        assert message.count("job 'visits' has finished already, at ") == 1 and "Traceback" not in message
        assert counts(tmp_path) == found
    (tmp_path / "counts").rename(tmp_path / "before")
    ended(start([*again[:-1], "--if-finished", "start-again", "visits.py"]))
    assert counts(tmp_path) == found, "from the beginning, because somebody has said so"


def test_a_supervised_driver_that_is_killed_twice_publishes_all_once(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "visits.py"
    program.write_text(program.read_text().replace("rate=1500", "rate=1000"))
    [line] = re.findall(r"^\$ (tailrace supervise run .*)$", (GUIDE / "in-production.md").read_text(), re.MULTILINE)
    words = [word.replace("hdfs:///checkpoints", str(tmp_path / "checkpoints")) for word in line.split()[1:]]
    supervisor = start(words)

    def kill(incarnations: int) -> int:
        """Kills the driver once so many incarnations have left a checkpoint, and output is visible. The workers of a driver
        that was killed may publish something still."""

        def reached() -> bool:
            complete = {file.parent.name for file in (tmp_path / "checkpoints" / "visits").glob("*/*.manifest")}
            return len(complete) == incarnations and bool(counts(tmp_path))

        assert waited(lambda: reached() or supervisor.poll() is not None, 90)
        assert supervisor.poll() is None, "the job is over before its driver is killed"
        [driver] = children(supervisor.pid)
        os.kill(driver, signal.SIGKILL)
        return driver

    first, second = kill(1), kill(2)
    out = ended(supervisor)
    assert first != second and out.count("died of SIGKILL") == 2
    assert out.count("goes on from checkpoint") == 2 and out.count("begins anew") == 1
    found = counts(tmp_path)
    whole(found)
    assert "job 'visits' has finished already" in ended(start(words)) and counts(tmp_path) == found


def test_the_unit_of_the_guide_is_started_until_its_job_has_finished_and_ever_after(
    start: Start, tmp_path: Path
) -> None:
    [line] = re.findall(r"^ExecStart=(.*)$", (GUIDE / "in-production.md").read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert program.endswith("/bin/tailrace")
    unit = [word.replace("hdfs:///checkpoints", str(tmp_path / "checkpoints")) for word in words]
    service = start(unit)
    assert waited(lambda: counts(tmp_path) or service.poll() is not None, 90)
    os.kill(service.pid, signal.SIGTERM)
    assert "begins anew" in ended(service)
    assert len(counts(tmp_path)) > 0
    assert "goes on from checkpoint" in ended(start(unit))
    found = counts(tmp_path)
    whole(found)
    for _ in range(2):
        assert "job 'visits' has finished already" in ended(start(unit))
        assert counts(tmp_path) == found
