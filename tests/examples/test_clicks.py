"""The clicks example: its sessions are those that pandas finds, from files, over faults, and as a command on Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

EXAMPLES = Path(__file__).parents[2] / "examples"
HALF_AN_HOUR = 1800


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import clicks

    yield clicks
    sys.modules.pop("clicks", None)


def log(seed: int, lines: int = 400) -> list[str]:
    """Lines of a log, whose times are out of order by up to a minute, and among them some that are no lines of one."""
    chance = random.Random(seed)
    times = sorted(chance.uniform(0, 20_000) for _ in range(lines))
    times.sort(key=lambda at: at + chance.uniform(0, 59))
    clicks = [f"{at:.2f} user{chance.randrange(6)} /{chance.randrange(4)}" for at in times]
    return [line if chance.random() > 0.03 else line.replace(" ", "") for line in clicks]


def by_pandas(lines: list[str]) -> list[str]:
    """The sessions of the lines, by the gaps between sorted clicks."""
    clicks = pd.DataFrame([line.split() for line in lines if " " in line], columns=["at", "user", "page"])
    clicks["at"] = clicks["at"].astype(float)
    clicks = clicks.sort_values(["user", "at"])
    clicks["visit"] = (clicks.groupby("user")["at"].diff() > HALF_AN_HOUR).groupby(clicks["user"]).cumsum()
    visits = clicks.groupby(["user", "visit"]).agg(
        start=("at", "min"), last=("at", "max"), clicks=("at", "size"), pages=("page", "nunique")
    )
    return sorted(
        f"{user} {v.start:.0f} {v['last'] + HALF_AN_HOUR:.0f} {v.clicks:.0f} {v.pages:.0f}"
        for (user, _), v in visits.iterrows()
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_sessions_are_those_of_pandas_over_kills(example: Any, seed: int) -> None:
    lines = log(seed)
    env = tr.Environment(parallelism=1 + seed % 3, checkpoint=tr.CheckpointConfig("memory", interval=0.005))
    streams = example.visits(env.from_collection(lines))
    written = {name: stream.sink_to(tr.sinks.Collect()) for name, stream in streams.items()}
    faults = [Fault(60 + 40 * seed, "kill"), Fault(200, "crash-driver"), Fault(300, "kill", which=1)]
    job = tr.testing.simulate(env, seed=seed, faults=faults)

    assert job.await_termination()
    assert sorted(written["sessions"].result()) == by_pandas(lines)
    assert sorted(written["bad"].result()) == sorted(line for line in lines if " " not in line)
    assert written["late"].result() == []


@pytest.mark.spark
def test_the_command_reads_a_log_and_the_file_it_was_renamed_to(tmp_path: Path) -> None:
    lines = log(7)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "web.log.1").write_text("".join(f"{line}\n" for line in lines[:250]))
    (tmp_path / "logs" / "web.log").write_text("".join(f"{line}\n" for line in lines[250:]))
    command = [sys.executable, str(EXAMPLES / "clicks.py"), "logs", "out", "--once"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    sessions = [
        line for file in (tmp_path / "out" / "sessions").glob("part-*") for line in file.read_text().split("\n")
    ]
    assert sorted(filter(None, sessions)) == by_pandas(lines)
