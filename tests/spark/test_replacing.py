"""Lost workers that are replaced while the others go on, on real Spark: nobody else starts anew, and the output is as if
nothing had happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_recovery import AT_ONCE, paced, running, story
from tests.spark.waiting import waited

import tailrace as tr

pytestmark = pytest.mark.spark
__all__ = ["paced"]


def test_a_lost_worker_is_replaced_while_the_others_go_on(jobs: Any, paced: Any, tmp_path: Path) -> None:
    records = 12_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    standby = tr.StandbyConfig(replicas=0)
    env = jobs.env(parallelism=3, checkpoint=settings, restart=AT_ONCE, standby=standby)
    paced.flow(env, tmp_path, records, 3000)
    job = jobs.start(env, "paced")
    takeovers = job._runner.machine.takeovers
    for replaced, slot in enumerate([1, 0]):
        complete = len(job.checkpoints)
        assert waited(lambda complete=complete: len(job.checkpoints) > complete and running(job))
        before = jobs.workers(job)
        os.kill(before[slot], signal.SIGKILL)
        assert waited(lambda replaced=replaced: takeovers.count > replaced, 20), story(job)
        after = jobs.workers(job)
        assert {one for one in before if before[one] != after[one]} == {slot}
    assert job.await_termination(150)
    assert job.restarts == 0, story(job)
    assert paced.wrong(tmp_path, records) == "", story(job)
