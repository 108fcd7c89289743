"""Golden programs on three executors, each with a drawn way of running and a drawn loss, come out exactly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from search.campaigns.on_spark import LOSSES, draw
from tests.environ import plain_environ

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
SEEDS = 10


@pytest.mark.timeout(600)  # ten jobs, of some five seconds each where the machine does nothing else, and their losses
def test_whatever_is_lost_on_spark_the_output_is_exactly_once() -> None:
    command = [sys.executable, "-m", "search.campaigns.on_spark", "--seeds", f"0:{SEEDS}"]
    done = subprocess.run(command, cwd=ROOT, env=plain_environ(), capture_output=True, text=True, timeout=580)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("right", "WRONG"))]
    assert len(lines) == SEEDS and all(line.startswith("right") for line in lines), (done.stdout, done.stderr[-3000:])
    assert done.returncode == 0


def test_every_pair_of_a_way_of_running_and_a_loss_is_drawn() -> None:
    runs = [draw(seed) for seed in range(2_000)]
    pairs = {(value, loss) for run in runs for loss in run.losses for value in run.ways}
    values = {value for value, _ in pairs}
    assert len(values) == 4 + 2 + 2 + 4 + 4
    assert pairs == {(value, loss) for value in values for loss in LOSSES}
