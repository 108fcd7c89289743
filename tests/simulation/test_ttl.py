"""State with a time to live in jobs whose workers are lost, and that start again with another declaration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from tailrace.statedata.columns import StateColumns
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.store import Store
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles

pytestmark = pytest.mark.search
N = 600


def remembering(ttl: tr.Ttl | None) -> Any:
    """A function that emits each number with what state has of the one before it of its key."""

    class Before(tr.KeyedProcessFunction):
        before = tr.ValueState(int, ttl=ttl)
        seen = tr.ListState(int, ttl=ttl)

        def process(self, n: int, ctx: Any) -> Any:
            yield n, self.before.value, len(self.seen)
            self.before.value = n
            self.seen.append(n)

    return Before()


def numbers(env: tr.Environment, first: int = 0, end: int = N) -> Any:
    return env.from_source(tr.sources.Sequence(first, end, rate=5_000), uid="numbers", parallelism=1).key_by(
        lambda n: n % 13
    )


def exact(found: list[Any]) -> None:
    """Each number came once, some with the one before it, and some behind the end of its life."""
    assert Counter(n for n, *_ in found) == Counter(range(N))
    assert {before for n, before, _ in found} <= {None, *range(N)}
    assert all(before is None or before % 13 == n % 13 for n, before, _ in found)
    assert any(before is None for n, before, _ in found if n >= 13) and any(
        before is not None for _, before, _ in found
    )


@pytest.mark.parametrize("refresh", ["write", "read"])
def test_a_hot_standby_finds_the_same_entries_over_as_its_worker(refresh: Any) -> None:
    env = tr.Environment(
        parallelism=2,
        checkpoint=tr.CheckpointConfig("in memory", interval=0.02),
        standby=tr.StandbyConfig(mode="hot"),
        restart=tr.FixedDelay(attempts=5, delay=0.01),
    )
    ttl = tr.Ttl(0.0025, refresh=refresh)
    emitted = numbers(env).process(remembering(ttl), uid="before").key_by(lambda r: r[0] % 11)  # compared on its way
    result = emitted.map(lambda r: r).sink_to(tr.sinks.Collect())
    lost = [Fault(300, "kill", 0, after="commit 3 done"), Fault(300, "kill", 1, after="commit 6 done")]
    job = tr.testing.simulate(env, seed=3, faults=lost)
    assert job.simulation.covered["a hot standby went on"] > 0
    assert job.simulation.covered["a hot standby gave up"] == job.simulation.covered["restarted"] == 0
    exact(result.result())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend", ["memory", "disk"])
def test_readers_of_what_a_replaced_worker_has_emitted_agree(backend: Any, seed: int) -> None:
    env = tr.Environment(
        parallelism=3,
        state_backend=backend,
        checkpoint=tr.CheckpointConfig("in memory", interval=0.005),
        standby=tr.StandbyConfig(replicas=0),
        restart=tr.FixedDelay(attempts=5, delay=0.01),
    )
    marked = numbers(env).process(remembering(tr.Ttl(0.0025)), uid="before")
    one = marked.key_by(lambda r: r[0] % 11).map(lambda r: r, uid="one").sink_to(tr.sinks.Collect())
    other = marked.key_by(lambda r: r[0] % 7).map(lambda r: r, uid="other").sink_to(tr.sinks.Collect())
    faults = [Fault(220 + 53 * seed, "kill", which=seed), Fault(700 + 31 * seed, "kill", which=seed + 1)]
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    job.await_termination()
    assert job.simulation.covered["replaced a worker"] > 0
    assert sorted(one.result(), key=str) == sorted(other.result(), key=str)
    exact(one.result())


def started(
    ttl: tr.Ttl | None, first: int, end: int, before: StoredCheckpoint | None = None, parallelism: int = 2
) -> tuple[list[Any], StoredCheckpoint]:
    """What a job emits for these numbers that begins with another's checkpoint, and its last checkpoint."""
    files = MemoryFiles() if before is None else before.store.folder
    origin = {} if before is None else {"origin": (files, before.name), "allow_dropped_state": True}
    config = tr.CheckpointConfig("memory", interval=0.002, retain="always")
    env = tr.Environment(parallelism=parallelism, max_parallelism=16, checkpoint=config)
    source = env.from_source(tr.sources.Sequence(first, end, rate=20_000), uid=f"from {first}", parallelism=1)
    result = (
        source.key_by(lambda n: n % 13).process(remembering(ttl), uid="before").sink_to(tr.sinks.Collect(), uid="out")
    )
    job = prepared_simulation(env, name="job", seed=1, files=files, run_id=f"run {first}", **origin)
    job.run()
    assert job.coordinator.status.name == "FINISHED", job.coordinator.cause
    store = Store("memory", "job", folder=files)
    newest = store.latest()
    assert newest is not None
    return result.result(), StoredCheckpoint(store, newest[0])


def rows(stored: StoredCheckpoint, state: str) -> dict[Any, Any]:
    found = StateColumns(stored, "before", state, "columns", "columns")
    schema = found.schema()
    tables = [batch.to_pydict() for part in found.parts() for batch in found.batches(part, schema)]
    return {key: value for one in tables for key, value in zip(one["key"], one["value"], strict=True)}


LONG = tr.Ttl(1_000)


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, LONG),
        (LONG, None),
        (LONG, tr.Ttl(2_000, refresh="read")),
        (LONG, tr.Ttl(1_000, clock_stops_with_job=True)),
    ],
)
def test_what_lives_goes_on_under_another_declaration(old: Any, new: Any, parallelism: int) -> None:
    _, first = started(old, 0, 26)
    found, second = started(new, 26, 39, first, parallelism)
    assert sorted(found) == [(n, n - 13, 2) for n in range(26, 39)]
    assert rows(first, "before") == {n % 13: n for n in range(13, 26)}
    assert rows(second, "seen") == {n: [n, n + 13, n + 26] for n in range(13)}


def test_what_was_over_stays_gone_under_a_longer_lifetime_and_without_one() -> None:
    _, first = started(tr.Ttl(0.0002), 0, 26)  # each number comes 0.65 ms behind the one before it of its key
    for new in (LONG, None):
        found, _ = started(new, 26, 39, first)
        last = {(n, before) for n, before, _ in found}
        assert last == {(n, n - 13 if n - 13 in rows(first, "before").values() else None) for n in range(26, 39)}
        assert any(before is None for _, before in last)


def test_entries_that_are_over_are_counted() -> None:
    env = tr.Environment(parallelism=2)
    result = numbers(env).process(remembering(tr.Ttl(0.0025)), uid="before", name="before").sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=1)
    over = sum(1 for n, before, _ in result.result() if n >= 13 and before is None)
    counted = sum(one["custom"].get("before.expired", 0) for one in job.metrics()["subtasks"])
    assert counted >= over > 0
