"""Golden programs with loops: straight, at several parallelisms, under many schedules, with little memory and credit, the
result is what was worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr
from search.programs.golden import LOOPS, PROGRAMS
from search.programs.loops import LoopOptions, loops_with
from search.scenarios import LIMITS, NETWORKS
from search.watchers.loops import LoopFiles, LoopWatch
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.testing.inprocess import prepared_simulation

pytestmark = pytest.mark.search

N = 30


def run(program: str, parallelism: int, seed: int | None, conditions: Any = None, **settings: Any) -> tuple[Any, str]:
    env = tr.Environment(parallelism=parallelism, **settings)
    out = PROGRAMS[program].build(env, N, None).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if seed is None else tr.testing.simulate(env, seed=seed, conditions=conditions)
    job.await_termination()
    return Counter(map(_hashable, out.result())), job.digest


def _hashable(record: Any) -> Any:
    return tuple(record) if isinstance(record, list) else record


@pytest.mark.parametrize("program", LOOPS)
def test_straight_and_at_any_parallelism(program: str) -> None:
    for parallelism in (1, 3):
        assert run(program, parallelism, None)[0] == PROGRAMS[program].expected(N)


@pytest.mark.parametrize("program", LOOPS)
def test_under_any_schedule(program: str) -> None:
    digests = set()
    for seed in range(3):
        found, digest = run(program, 1 + seed, seed, debug=seed == 1, copy_records=seed == 2)
        assert found == PROGRAMS[program].expected(N), f"seed {seed}"
        digests.add(digest)
    assert len(digests) == 3, "other seeds are other schedules"


def test_a_seed_is_one_history() -> None:
    for program in ("visited", "in_sequence"):
        assert run(program, 2, 1) == run(program, 2, 1)


@pytest.mark.parametrize("program", [name for name in LOOPS if name not in ("nested", "amplified")])
def test_with_the_least_credit_record_by_record(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.protocol.credit.MIN_WINDOW", 1)
    monkeypatch.setattr("tailrace.protocol.credit.MAX_WINDOW", 1)
    one = tr.testing.Conditions(delay=(0, 10), step_cost=(1, 1), budget=(1, 1))
    with loops_with(LoopOptions(memory=0)):
        assert run(program, 2, 5, one)[0] == PROGRAMS[program].expected(N)


# Inputs without an end.


@pytest.mark.parametrize("parallelism", [1, 2])
def test_behind_an_input_without_an_end_event_time_goes_on_and_checkpoints_are_made(parallelism: int) -> None:
    """A window behind the loop closes while the loop goes on; nothing ever ends."""
    env = tr.Environment(parallelism=parallelism, checkpoint=tr.CheckpointConfig(dir="memory"))

    def body(stream: tr.DataStream) -> Any:
        down = stream.map(lambda r: (r[0], r[1] - 1)).rebalance().map(tuple)
        return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0).map(lambda r: r[0])

    numbers = env.from_source(tr.sources.Sequence(0, None, rate=1_000)).assign_timestamps(lambda i: i)
    out = numbers.map(lambda i: (i, i % 6 + 1)).iterate(body).key_by(lambda i: 0).window(tr.Tumbling(20)).count()
    closed = out.map(lambda w: w.count).sink_to(tr.sinks.Collect())
    files = LoopFiles()
    settings = CheckpointSettings(interval=2_000, keep=1)
    world = prepared_simulation(
        env, name="on", conditions=NETWORKS["fast"], limits=LIMITS, checkpoints=settings, files=files
    )
    watch = LoopWatch(world, files)
    world.start()
    while files.commits < 20 or world.now < 1_700_000_000_000_000 + 150_000:
        world.turn()
        assert not world.coordinator.status.final and world.turns < 100_000
    sunk = sum(task.records_sunk() for worker in world.workers() for task in worker.tasks())
    assert sunk >= 5, "windows close behind the loop"
    assert world.covered["let event time leave a loop"] >= 5
    assert world.covered["ended a loop"] == 0 and watch.wrong == []
    assert world.coordinator.status is JobStatus.RUNNING and closed is not None


# Both forms of records.


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_rows_go_around_a_loop_and_leave_it_as_columns(parallelism: int) -> None:
    env = tr.Environment(parallelism=parallelism)
    schema = pa.schema([("id", pa.int64()), ("left", pa.int64())])

    def body(stream: tr.DataStream) -> Any:
        down = stream.map(lambda r: (r[0], r[1] - 1)).rebalance().map(tuple)
        return down.filter(lambda r: r[1] > 0), down.filter(lambda r: r[1] <= 0).to_columns(schema)

    hops = env.from_collection([(i, i % 5) for i in range(N)])
    out = hops.iterate(body).map_batches(lambda b: b.set_column(1, "left", pc.add(b.column("left"), 7)))
    found = out.map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=parallelism).await_termination()
    assert Counter(found.result()) == Counter((i, min(i % 5 - 1, 0) + 7) for i in range(N))
