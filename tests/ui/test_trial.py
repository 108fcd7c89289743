"""What an operator sees who has never seen the jobs of `trial`: the answer is in the first line of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tests.spark.waiting import waited

from .trial import JOBS

ANSWERS = {
    "visits": ("`score` is busy", "the operators before it wait; its subtask ", " has "),
    "orders": ("Event time of `match` is held back by its input `times of payments`, subtask ", " behind the next one"),
    "shares": ("ZeroDivisionError", "trial.py:", "yield 1_000 / ("),
}
"""Job -> parts of the first line, or of the last failure below it."""


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", JOBS)
def test_the_answer_is_in_the_first_lines(spark: Any, tmp_path: Path, name: str) -> None:
    checkpoint, restart = tr.CheckpointConfig(str(tmp_path / "checkpoints")), tr.FixedDelay(attempts=3, delay=0.5)
    env = tr.Environment(spark, parallelism=2, checkpoint=checkpoint, restart=restart, capsules=False)
    JOBS[name](env, tmp_path)
    job: Any = env.execute(name)

    def first_lines() -> str:
        shot: JobSnapshot = job._monitor.snapshots.make(job._runner.view)
        last = shot.failures[-1] if shot.failures else None
        return f"{shot.sentence} {'' if last is None else f'{last.text} {last.line}'}"

    try:
        assert waited(lambda: all(part in first_lines() for part in ANSWERS[name]), 60), first_lines()
    finally:
        job.cancel()
        job.await_termination()
