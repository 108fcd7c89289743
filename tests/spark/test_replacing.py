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
    standby = tr.StandbyConfig(replicas=0, spill=tr.Spill(memory_bytes=0))
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


def test_standbys_take_the_slots_of_lost_workers_though_one_of_them_is_lost_as_well(
    jobs: Any, paced: Any, tmp_path: Path
) -> None:
    records = 12_000
    settings = tr.CheckpointConfig(str(tmp_path / "checkpoints"), interval=0.3, retain="never")
    standby = tr.StandbyConfig(replicas=2, inflight="checkpoint", spill=tr.Spill(memory_bytes=0))
    env = jobs.env(parallelism=2, checkpoint=settings, restart=AT_ONCE, standby=standby)
    paced.flow(env, tmp_path, records, 3000)
    job = jobs.start(env, "paced")
    machine = job._runner.machine
    standbys = machine.roster.standbys.all

    def ready() -> dict[int, int]:
        return {one.hello.pid: one.index for one in list(standbys) if one.ready and one.hello is not None}

    assert waited(lambda: len(ready()) == 2 and len(job.checkpoints) > 0, 30), story(job)
    first = ready()
    lost, *_ = first
    os.kill(jobs.workers(job)[1], signal.SIGKILL)
    os.kill(lost, signal.SIGKILL)
    assert waited(lambda: machine.takeovers.count == 1, 20), story(job)
    assert jobs.workers(job)[1] in first.keys() - {lost}, "the other standby has taken the slot"
    complete = len(job.checkpoints)
    assert waited(lambda: len(ready()) == 2 and len(job.checkpoints) > complete, 30), story(job)
    assert not ready().keys() & first.keys(), "others stand by now"
    os.kill(jobs.workers(job)[0], signal.SIGKILL)
    assert waited(lambda: machine.takeovers.count == 2, 20), story(job)
    assert job.await_termination(150)
    assert job.restarts == 0, story(job)
    assert paced.wrong(tmp_path, records) == "", story(job)
