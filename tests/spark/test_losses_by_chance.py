"""Golden programs on three executors, each with a drawn way of running and a drawn loss, come out exactly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from search.campaigns.spark_draws import KINDS, LOSSES, WAYS, draw
from tests.environ import plain_environ

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
SEEDS = (105, 123, 133, 141, 159, 245, 297, 304, 314, 324)
"""Seeds with each kind of program, each way of running and each loss."""


@pytest.mark.timeout(600)  # ten jobs, of some five seconds each where the machine does nothing else, and their losses
def test_whatever_is_lost_on_spark_the_output_is_exactly_once() -> None:
    seeds = ",".join(map(str, SEEDS))
    command = [sys.executable, "-m", "search.campaigns.on_spark", "--seeds", seeds]
    done = subprocess.run(command, cwd=ROOT, env=plain_environ(), capture_output=True, text=True, timeout=580)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("right", "WRONG"))]
    assert len(lines) == len(SEEDS) and all(line.startswith("right") for line in lines), (
        done.stdout,
        done.stderr[-3000:],
    )
    assert done.returncode == 0


def test_these_seeds_have_each_kind_each_way_and_each_loss() -> None:
    runs = [draw(seed) for seed in SEEDS]
    assert {run.kind for run in runs} == set(KINDS)
    assert {loss for run in runs for loss in run.losses} == set(LOSSES)
    assert {way for run in runs for way in run.ways} == {value for values in WAYS.values() for value in values}


def test_every_pair_of_a_kind_or_a_way_of_running_and_a_loss_is_drawn() -> None:
    runs = [draw(seed) for seed in range(2_000)]
    values = set(KINDS) | {value for values in WAYS.values() for value in values}
    pairs = {(value, loss) for run in runs for loss in run.losses for value in (run.kind, *run.ways)}
    assert pairs == {(value, loss) for value in values for loss in LOSSES}


def test_every_pair_of_a_kind_of_program_and_a_way_of_running_is_drawn() -> None:
    """But for hot standbys, where a program may have none."""
    runs = [draw(seed) for seed in range(2_000)]
    pairs = {(run.kind, way) for run in runs for way in run.ways}
    missing = {(kind, value) for kind in KINDS for values in WAYS.values() for value in values} - pairs
    assert {value for _, value in missing} <= {"hot"} and ("columns", "hot") in pairs
