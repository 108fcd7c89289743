"""The flights example, with checkpoints, while its workers are killed: its answers are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights

    yield flights
    sys.modules.pop("flights", None)


Answers = tuple[list[str], list[str], list[str]]


def run(example: Any, spark: Any, flights: Any, kills: int = 0, **settings: Any) -> tuple[Answers, Any]:
    """The answers, in order, floats as they are; and the job. Kills workers at moments that a seed decides, once there is
    a checkpoint to go back to."""
    env = tr.Environment(spark, parallelism=2, progress=False, **settings)
    results = example.dataflow(env.from_dataframe(flights, form="columns"))
    job = env.execute("flights")
    chance = random.Random(kills)
    for _ in range(kills):
        known, restarts = len(job.checkpoints), job.restarts

        def ready(known: int = known) -> bool:
            return str(job.status) == "RUNNING" and len(job.checkpoints) > known

        wait_for(lambda: ready() or not job.is_active)
        until = time.monotonic() + chance.uniform(0, 0.3)
        wait_for(lambda until=until: time.monotonic() >= until)
        slot = job._runner.machine.roster.slots[chance.randrange(2)]
        if not job.is_active or slot.hello is None:
            break
        os.kill(slot.hello.pid, signal.SIGKILL)
        wait_for(lambda restarts=restarts: job.restarts > restarts or not job.is_active)
    assert job.await_termination(300)
    days, runs = results.carrier_days.dataframe(), results.late_runs.dataframe()
    untold = results.no_tail_number.result()
    return (rows(days.collect()), rows(runs.collect()), rows(untold)), job


def rows(found: list[Any]) -> list[str]:
    """In a fixed order; sums of floats depend on the order of records in their last digits."""
    return sorted(str(tuple(round(v, 6) if isinstance(v, float) else v for v in row)) for row in found)


def wait_for(condition: Any, seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.spark
@pytest.mark.timeout(600)  # the flights of three months, twice
def test_the_answers_are_those_of_an_undisturbed_run(example: Any, spark: Any, tmp_path: Path) -> None:
    flights = example.read_flights(spark).where("day < '2013-04-01'").cache()
    try:
        undisturbed, _ = run(example, spark, flights)
        found, job = run(
            example,
            spark,
            flights,
            3,
            checkpoint=tr.CheckpointConfig(tmp_path / "checkpoints", interval=0.5),
            restart=tr.FixedDelay(attempts=100, delay=0.0),
        )
    finally:
        flights.unpersist()
    assert job.restarts >= 1
    for mine, expected in zip(found, undisturbed, strict=True):
        assert len(mine) == len(expected)
        assert mine == expected
