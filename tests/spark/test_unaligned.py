"""Unaligned checkpoints on real Spark: a job that is behind takes them at once, goes on from them at other parallelisms
before it has read what was in flight, and is right."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.cli.inspect import inspect
from tailrace.storage.checkpoint_lookup import resolve
from tailrace.storage.reading import own_indexes
from tailrace.task.operators.sources.splits import decode_state
from tailrace.task.subtask.snapshot import read_meta
from tests.spark.test_checkpoints import lines
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

RECORDS = 12_000
POLICIES = [
    {"mode": "unaligned"},
    {"mode": "unaligned-max-inflight", "max_inflight_bytes": 1 << 20},
    {"mode": "aligned", "alignment_timeout": 0.05},
]


class Places(tr.KeyedProcessFunction):
    """(key, place, value): a record out of order, lost or doubled shows."""

    seen = tr.ValueState(int, default=0)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, value: int, ctx: Any) -> Iterator[tuple[int, int, int]]:
        time.sleep(self.seconds)
        self.seen.value += 1
        yield (ctx.key, self.seen.value, value)


def slow(jobs: Any, out: Path, parallelism: int, seconds: float, **settings: Any) -> tr.Environment:
    """One source that is faster than its reader, behind two exchanges by the same key: a key's records stay in order."""
    config = tr.CheckpointConfig(jobs.folder / "checkpoints", **{"interval": None, "retain": "always", **settings})
    env = jobs.env(parallelism=parallelism, checkpoint=config, restart=tr.FixedDelay(attempts=3, delay=0.1))
    numbers = env.from_source(tr.sources.Sequence(0, RECORDS), uid="numbers", parallelism=1)
    once = numbers.key_by(lambda x: x % 10).process(Places(0), uid="once").map(lambda row: row[2], uid="value")
    once.key_by(lambda x: x % 10).process(Places(seconds), uid="places").sink_to(
        tr.sinks.TextFiles(str(out)), uid="out"
    )
    return env


EXPECTED = sorted(str((n % 10, n // 10 + 1, n)) for n in range(RECORDS))


@pytest.mark.parametrize("policy", POLICIES, ids=["unaligned", "with a cap", "after a time-out"])
def test_a_job_that_is_behind_goes_on_from_what_was_in_flight(
    jobs: Any, tmp_path: Path, policy: dict[str, Any]
) -> None:
    origin, taken = None, []
    for life, parallelism in enumerate([2, 1, 2]):
        job = slow(jobs, tmp_path / "out", parallelism, 0.002, **policy).execute("behind", from_checkpoint=origin)
        jobs.started.append(job)
        # What is restored counts as in flight as well; without either, a checkpoint would show nothing.
        assert waited(lambda job=job: job.inflight_bytes > 10_000), f"life {life}"
        checkpoint = job.checkpoint(30)
        job.cancel()
        job.await_termination(30)
        taken.append(checkpoint)
        origin = checkpoint.path
        assert checkpoint.policy == "unaligned" and checkpoint.inflight_bytes > 0
        assert sum(checkpoint.inflight.values()) == checkpoint.inflight_bytes
        assert set(checkpoint.inflight) <= {"once", "places"}
    assert "in flight to it, overtaken by barriers" in inspect(origin)
    found = {one["uid"]: one["in_flight"]["bytes"] for one in json.loads(inspect(origin, as_json=True))["operators"]}
    assert {uid: size for uid, size in found.items() if size} == taken[-1].inflight
    last = slow(jobs, tmp_path / "out", 2, 0, **policy).execute("behind", from_checkpoint=origin)
    jobs.started.append(last)
    assert last.await_termination(60)
    assert lines(tmp_path / "out") == EXPECTED


def test_a_killed_worker_costs_no_record_that_was_in_flight(jobs: Any, tmp_path: Path) -> None:
    job = jobs.start(slow(jobs, tmp_path / "out", 2, 0.0005, mode="unaligned", interval=0.1))
    for _ in range(2):
        complete = len(job.checkpoints)
        assert waited(lambda known=complete: len(job.checkpoints) > known + 1 and job.checkpoints[-1].inflight_bytes)
        os.kill(jobs.workers(job)[1], signal.SIGKILL)
        assert waited(lambda: str(job.status) == "RESTARTING") and waited(lambda: str(job.status) == "RUNNING")
    assert job.await_termination(60)
    assert job.restarts == 2
    assert lines(tmp_path / "out") == EXPECTED


def wide(jobs: Any, out: Path, seconds: float) -> tr.Environment:
    """A job whose channels hold but a part of what is in flight: so the source is held back as well."""
    config = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=0.1, keep=9, mode="unaligned")
    restart = tr.FixedDelay(attempts=10, delay=0.0)
    env = jobs.env(parallelism=2, memory=1 << 20, checkpoint=config, restart=restart)
    numbers = env.from_source(tr.sources.Sequence(0, WIDE), uid="numbers", parallelism=1)
    padded = (
        numbers.map(lambda x: (x, str(x).rjust(400)), uid="padded", parallelism=1).rebalance().map(tuple, uid="once")
    )
    places = padded.key_by(lambda row: row[0] % 10).process(Numbered(seconds), uid="places")
    places.sink_to(tr.sinks.TextFiles(str(out)), uid="out")
    return env


WIDE = 12_000


class Numbered(Places):
    """(key, place): one exchange in turn is before it, so records of a key come in any order."""

    def process(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from (row[:2] for row in super().process(value, ctx))


def position(path: str) -> int:
    """How far the source had read at a checkpoint."""
    store, name = resolve(path)
    parts = [part for index in own_indexes(store, store.manifest(name)).values() for part in index.operators]
    [data] = [read_meta(part.meta).data for part in parts if part.uid == "numbers" and part.meta is not None]
    assert data is not None
    return max(
        (pickle.loads(one.position) for one in decode_state(data).held if one.position is not None), default=WIDE
    )


def test_a_job_that_is_behind_and_crashes_again_and_again_gets_ahead_each_time(jobs: Any, tmp_path: Path) -> None:
    """A worker dies as soon as a checkpoint has the source farther than before. What is in flight does not grow."""
    job = jobs.start(wide(jobs, tmp_path / "out", 0.0005))
    reached, sizes = [0], []
    for kill in range(4):
        assert waited(lambda: job.checkpoints and position(job.checkpoints[-1].path) > reached[-1])
        reached.append(position(job.checkpoints[-1].path))
        sizes.append(job.checkpoints[-1].inflight_bytes)
        os.kill(jobs.workers(job)[kill % 2], signal.SIGKILL)
        assert waited(lambda: str(job.status) == "RESTARTING") and waited(lambda: str(job.status) == "RUNNING")
    assert job.await_termination(60)
    assert job.restarts == 4
    assert reached[-1] < WIDE and min(sizes) > 0 and max(sizes[1:]) <= 2 * sizes[0]
    assert lines(tmp_path / "out") == sorted(str((n % 10, n // 10 + 1)) for n in range(WIDE))
