"""Asynchronous calls on real workers: a failure amid many calls, a restart from a checkpoint, and all results once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr


class Called(tr.AsyncFunction):
    """A service that notes its life in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def open(self, ctx: Any) -> None:
        self.lock = asyncio.Semaphore(20)
        Path(self.folder, f"opened-{ctx.subtask}-{ctx.attempt}").touch()

    async def call(self, value: int) -> int:
        async with self.lock:
            await asyncio.sleep(0.001)
        return value * 10

    async def close(self) -> None:
        Path(self.folder, f"closed-{id(self)}").touch()


@pytest.mark.spark
def test_a_job_that_fails_amid_calls_goes_on_with_all_of_them(spark: Any, tmp_path: Path) -> None:
    n, folder = 4_000, str(tmp_path)
    env = tr.Environment(
        spark,
        parallelism=2,
        checkpoint=tr.CheckpointConfig(str(tmp_path / "c"), interval=0.1),
        restart=tr.FixedDelay(3, 0.1),
    )

    def failing_once(i: int) -> int:
        marker = Path(folder, "failed")
        if i >= n * 5 and not marker.exists() and list(Path(folder, "c").rglob("*manifest*")):
            marker.touch()
            raise RuntimeError("once")
        return i

    numbers = env.from_source(tr.sources.Sequence(0, n, rate=2_000.0))
    called = numbers.key_by(lambda i: i % 50).map_async(Called(folder), capacity=200, ordered="key")
    out = called.map(failing_once).sink_to(tr.sinks.Collect())
    job = env.execute("called")
    job.await_termination(120)
    assert Counter(out.result()) == Counter(i * 10 for i in range(n))
    assert (tmp_path / "failed").exists()
    assert len(list(tmp_path.glob("opened-*"))) >= 4 and list(tmp_path.glob("closed-*"))
