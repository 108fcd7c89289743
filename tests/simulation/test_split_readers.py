"""Readers of many splits in simulated jobs that lose workers: what they read, what wakes them, what they are informed of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing.faults import Fault
from tailrace.testing.world import EPOCH
from tests.simulation.queues import FALLBACK, SERVERS, SIZE, SPLITS, Queue, Server

WAYS = ["restarted", "replaced", "hot"]


def run(seed: int, way: str, together: bool, faults: Sequence[Fault], **options: Any) -> tuple[Any, Server, list[Any]]:
    """A job that reads a queue behind checkpoints; the records that came out of it."""
    standby = None
    if way != "restarted":
        standby = tr.StandbyConfig(replicas=0) if way == "replaced" else tr.StandbyConfig(mode="hot")
    checkpoint = tr.CheckpointConfig("memory", interval=0.003)
    env = tr.Environment(parallelism=2, checkpoint=checkpoint, standby=standby, restart=tr.FixedDelay(100, 0))
    source = Queue(together, **options)
    stream = env.from_source(source, uid="queue").key_by(lambda r: r[0]).map(lambda r: r)
    out = stream.sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    assert job.await_termination()
    return job, SERVERS[source.server], list(out.result())


EVERYTHING = Counter((split, i) for split in range(SPLITS) for i in range(SIZE))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_acknowledged_behind_complete_checkpoints_is_never_read_again(way: str, together: bool) -> None:
    lost = calls = 0
    for seed in range(6):
        job, server, found = run(seed, way, together, [Fault(90 + 30 * seed, "kill", which=seed)])
        assert Counter(found) == EVERYTHING, seed
        for split in range(SPLITS):
            assert [i for s, i in found if s == split] == list(range(SIZE)), "in order"
            given = [positions[split] for positions in server.calls if split in positions]
            assert given == sorted(given), "in the order of checkpoints"
            assert server.acknowledged[split] == SIZE, "the last one comes before the job has finished"
        lost += job.simulation.covered["restarted"] + job.simulation.coordinator.takeovers.count
        calls += len(server.calls)
    assert lost >= 4 and calls > 15, (lost, calls)


@pytest.mark.parametrize("together", [True, False])
def test_a_reader_whose_completed_raises_fails_no_job(together: bool) -> None:
    _, server, found = run(3, "restarted", together, [], failing=True)
    assert Counter(found) == EVERYTHING and server.failed


def test_an_idle_reader_is_read_when_it_wakes_its_task() -> None:
    env = tr.Environment(parallelism=2)
    out = env.from_source(Queue(True)).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=1)
    assert job.await_termination()
    assert Counter(out.result()) == EVERYTHING
    assert job.simulation.now - EPOCH < FALLBACK * 1_000_000


def test_a_replacement_is_read_also_if_nothing_wakes_it() -> None:
    """The lost worker had found nothing, and was to be woken."""
    for seed in range(8):
        job, _, found = run(seed, "replaced", True, [Fault(60 + 25 * seed, "kill", which=seed)])
        assert Counter(found) == EVERYTHING
        assert job.simulation.now - EPOCH < FALLBACK * 1_000_000, seed
