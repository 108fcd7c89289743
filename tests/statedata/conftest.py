"""Checkpoints of simulated jobs, as somebody finds them who looks into them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.store import Store
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles

Build = Callable[[tr.Environment], object]


def taken(
    build: Build, parallelism: int = 2, *, number: int | None = None, small: int | None = None, **settings: Any
) -> StoredCheckpoint:
    """The last checkpoint of a simulated run of a dataflow; or checkpoint `number`, at which the run is left alone. Up to
    `small` entries state is written as a whole."""
    files = MemoryFiles()
    config = tr.CheckpointConfig("memory", interval=0.002, retain="always", **settings)
    env = tr.Environment(parallelism=parallelism, max_parallelism=16, checkpoint=config)
    build(env)
    job = prepared_simulation(env, name="job", seed=1, files=files, small=small)
    store = Store("memory", "job", folder=files)
    if number is None:
        job.run()
        assert job.coordinator.status.name == "FINISHED", job.coordinator.status
    else:
        job.start()
    newest = store.latest()
    while number is not None and (newest is None or newest[1].checkpoint < number):
        assert not job.coordinator.status.final, f"the job ended before checkpoint {number}"
        job.turn()
        newest = store.latest()
    assert newest is not None
    return StoredCheckpoint(store, newest[0])


@pytest.fixture
def checkpoint_of() -> Callable[..., StoredCheckpoint]:
    return taken


class Seen(tr.KeyedProcessFunction):
    """State of every kind, of the key of each number: its rest by 10."""

    count = tr.ValueState(int, default=0)
    last = tr.ListState(int)
    names = tr.MapState(str, int)
    largest = tr.ReducingState(int, reduce=max)
    mean = tr.AggregatingState(float, aggregate=tr.Mean())
    any = tr.ValueState()

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        self.last.update([*self.last.get(), value][-2:])
        self.names[f"n{value % 20}"] = value
        self.largest.add(value)
        self.mean.add(value)
        self.any.value = {"key": ctx.key, "text": str(value)}
        ctx.set_timer(event_time=1_000 + ctx.key)
        yield value

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None: ...


def seen(env: tr.Environment, end: int = 100) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, end), uid="numbers")
    numbers.key_by(lambda n: n % 10).process(Seen(), uid="seen").sink_to(tr.sinks.Collect(), uid="out")


@pytest.fixture
def of_numbers() -> Any:
    """A dataflow of the numbers below 100 with state of every kind."""
    return seen
