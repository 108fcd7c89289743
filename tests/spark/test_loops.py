"""Loops on real Spark: all kinds against the plain answer, their errors, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark


TINY = tr.Spill(memory_bytes=500)


# Against networkx.


def road_map(places: int = 150, roads: int = 400, seed: int = 1) -> nx.DiGraph:
    chance = random.Random(seed)
    found = nx.DiGraph()
    found.add_weighted_edges_from(
        (chance.randrange(places), chance.randrange(places), chance.randint(1, 20)) for _ in range(roads)
    )
    return found


class Nearest(tr.KeyedProcessFunction):
    """Keeps the least distance of its place, and sends every better one to its neighbours."""

    least = tr.ValueState(int)

    def __init__(self, roads: dict[int, dict[int, int]]) -> None:
        self.roads = roads

    def process(self, offer: tuple[int, int], ctx: tr.Context) -> Iterator[Any]:
        place, distance = offer
        if self.least.value is not None and self.least.value <= distance:
            return
        self.least.value = distance
        yield "is", place, distance, ctx.round
        for neighbour, length in self.roads.get(place, {}).items():
            yield "offer", neighbour, distance + length, ctx.round


def distances(jobs: Any, roads: nx.DiGraph, weight: str | None, **options: Any) -> list[Any]:
    """Every improvement of a place's distance from place 0, with its round."""
    known = {u: {v: message[weight] if weight else 1 for v, message in to.items()} for u, to in roads.adjacency()}

    def relax(offers: tr.DataStream) -> Any:
        found = offers.key_by(lambda offer: offer[0]).process(Nearest(known))
        offered = found.filter(lambda r: r[0] == "offer").map(lambda r: r[1:3])
        return offered, found.filter(lambda r: r[0] == "is").map(lambda r: r[1:])

    return jobs.env().from_collection([(0, 0)]).iterate(relax, **options).collect()


@pytest.mark.parametrize(
    "options",
    [{}, {"spill": TINY}, {"combine": tr.Combine(lambda offer: offer[0], min), "spill": TINY}],
    ids=["in memory", "spilled", "combined and spilled"],
)
def test_shortest_paths(jobs: Any, options: dict[str, Any]) -> None:
    roads = road_map()
    least: dict[int, int] = {}
    for place, distance, _ in distances(jobs, roads, "weight", **options):
        least[place] = min(distance, least.get(place, distance))
    assert least == nx.single_source_dijkstra_path_length(roads, 0)


def test_the_round_is_the_number_of_hops(jobs: Any) -> None:
    roads = road_map(seed=2)
    found = distances(jobs, roads, None, rounds=tr.Rounds())
    assert all(distance == number for _, distance, number in found)
    hops = nx.single_source_shortest_path_length(roads, 0)
    assert sorted((place, distance) for place, distance, _ in found) == sorted(hops.items())  # each place once


def test_rounds_until(jobs: Any) -> None:
    roads = road_map(seed=2)
    hops = nx.single_source_shortest_path_length(roads, 0)
    some = tr.Rounds(until=lambda result: result.round == 3 or len(result.output) > 40)
    sizes = Counter(hops.values())
    last = min([3, *(number for number, size in sizes.items() if size > 40)])
    found = distances(jobs, roads, None, rounds=some)
    assert sorted(place for place, _, _ in found) == sorted(place for place, hop in hops.items() if hop <= last)


# In bulk.


def test_columns_in_bulk(jobs: Any) -> None:
    n, schema = 30_000, pa.schema([("id", pa.int64()), ("left", pa.int64()), ("sum", pa.int64())])

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        left = pc.subtract(batch.column("left"), 1)
        total = pc.add(batch.column("sum"), pc.multiply(batch.column("id"), batch.column("left")))
        return pa.RecordBatch.from_arrays([batch.column("id"), left, total], schema=schema)

    def body(stream: tr.DataStream) -> Any:
        moved = stream.key_by("id").map_batches(step)
        return (
            moved.map_batches(lambda b: b.filter(pc.greater(b.column("left"), 0))),
            moved.map_batches(lambda b: b.filter(pc.less_equal(b.column("left"), 0))),
        )

    numbers = jobs.env().from_source(tr.sources.Sequence(0, n)).map(lambda i: (i, i % 10, 0)).to_columns(schema)
    found = numbers.iterate(body, spill=TINY).collect()
    assert Counter((r.id, r.sum) for r in found) == Counter((i, i * (i % 10) * (i % 10 + 1) // 2) for i in range(n))


def test_four_levels_in_bulk(jobs: Any) -> None:
    """A record has as many laps as it can in each level: an odometer whose innermost loop is the fastest wheel."""

    def level(depth: int) -> Any:
        def body(stream: tr.DataStream) -> Any:
            inner = stream if depth == 3 else stream.iterate(level(depth + 1), spill=TINY)
            moved = inner.rebalance().map(
                lambda r: (r[0], [*r[1][:depth], r[1][depth] - 1, *r[1][depth + 1 :]], r[2] + 1)
            )
            again = moved.filter(lambda r: r[1][depth] > 0).map(lambda r: (r[0], wound(r, depth), r[2]))
            return again, moved.filter(lambda r: r[1][depth] <= 0)

        return body

    def wheels(i: int) -> list[int]:
        return [1 + (i >> at & 1) for at in range(4)]

    def wound(r: Any, depth: int) -> list[int]:
        return [*r[1][: depth + 1], *wheels(r[0])[depth + 1 :]]

    def laps(i: int) -> int:
        total = 0
        for wheel in reversed(wheels(i)):
            total = wheel * (total + 1)
        return total

    starts = jobs.env().from_source(tr.sources.Sequence(0, 2000)).map(lambda i: (i, wheels(i), 0))
    found = starts.iterate(level(0)).map(lambda r: (r[0], r[2])).collect()
    assert Counter(found) == Counter((i, laps(i)) for i in range(2000))


# Errors of user code.


class Fails(tr.KeyedProcessFunction):
    """Fails where the test sets it."""

    def __init__(self, where: str) -> None:
        self.where = where

    def process(self, value: int, ctx: tr.Context) -> Iterator[int]:
        if self.where == "process" and value == 20:
            raise ValueError("boom in process")
        if self.where == "on_timer":
            ctx.set_timer(event_time=1)
        if value > 0:
            yield value - 1

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        raise ValueError("boom in on_timer")

    def on_round_end(self, round: int, ctx: tr.Context) -> None:
        if self.where == "on_round_end" and round == 1:
            raise ValueError("boom in on_round_end")

    def finish(self, ctx: tr.Context) -> None:
        if self.where == "finish":
            raise ValueError("boom in finish")


def raises_in(name: str) -> Any:
    def raises(*_: Any) -> Any:
        raise ValueError(f"boom in {name}")

    return raises


def countdown(fn: Any) -> Any:
    def body(stream: tr.DataStream) -> Any:
        left = stream.key_by(lambda x: x % 5).process(fn, name="the function")
        return left.filter(lambda x: x > 0), left.filter(lambda x: x <= 0)

    return body


def failure(jobs: Any, body: Any, **options: Any) -> tr.JobFailed:
    """The error of a loop over a few numbers."""
    env = jobs.env()
    env.from_collection([5, 20, 30]).iterate(body, name="the loop", **options).sink_to(
        tr.sinks.TextFiles(str(jobs.out))
    )
    with pytest.raises(tr.JobFailed) as caught:
        jobs.start(env, running=False).await_termination(30)
    assert jobs.spark_is_idle()
    assert jobs.files() == []
    return caught.value


@pytest.mark.parametrize("where", ["process", "on_timer", "on_round_end", "finish"])
def test_a_function_in_a_loop(jobs: Any, where: str) -> None:
    error = failure(jobs, countdown(Fails(where)), rounds=tr.Rounds() if where == "on_round_end" else None)
    assert (error.operator, error.record) == ("the function", "20" if where == "process" else None)
    assert error.subtask in (0, 1)
    assert f"ValueError: boom in {where}" in str(error)
    assert f'File "{__file__}", line ' in str(error) and f"in {where}" in str(error)


def test_until(jobs: Any) -> None:
    error = failure(jobs, countdown(Fails("")), rounds=tr.Rounds(until=raises_in("until")))
    assert (error.operator, error.subtask, error.record) == ("the loop, judge", 0, None)
    assert "until, called for round 0, raised ValueError: boom in until" in str(error)


class Asks(tr.MapFunction):
    """Fails where it is called, or where it is opened."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, ctx: tr.Context) -> None:
        if self.where == "open":
            raise ValueError("boom in open")

    def map(self, value: int) -> int:
        if self.where == "map" and value == 17:
            raise ValueError("boom in map")
        return value - 1


def going_down(fn: Any) -> Any:
    """A loop around a map that takes one off."""

    def body(stream: tr.DataStream) -> Any:
        down = stream.map(fn, name="the map")
        return down.filter(lambda x: x > 0).rebalance(), down.filter(lambda x: x <= 0)

    return body


@pytest.mark.parametrize("where", ["open", "map"])
def test_a_map_in_two_loops(jobs: Any, where: str) -> None:
    def outer(stream: tr.DataStream) -> Any:
        return None, stream.iterate(going_down(Asks(where)), name="the inner loop")

    error = failure(jobs, outer)
    assert (error.operator, error.record) == ("the map", "17" if where == "map" else None)
    assert f"ValueError: boom in {where}" in str(error)


@pytest.mark.parametrize("where", ["key", "merge"])
def test_combine(jobs: Any, where: str) -> None:
    key = raises_in("key") if where == "key" else (lambda x: 0)
    merge = raises_in("merge") if where == "merge" else max
    error = failure(jobs, going_down(lambda x: x - 1), combine=tr.Combine(key, merge))
    assert error.operator.startswith("the loop")
    assert error.subtask in (0, 1)
    assert error.record is not None
    assert f"ValueError: boom in {where}" in str(error)
    assert "in raises" in str(error)


def test_a_key_to_combine_by_that_is_none(jobs: Any) -> None:
    error = failure(jobs, going_down(lambda x: x - 1), combine=tr.Combine(lambda x: [x], max))
    assert error.operator.startswith("the loop")
    assert "a key to combine feedback by must be hashable" in str(error)


def handles(stream: tr.DataStream) -> Any:
    """A loop whose records hold what no other process can have."""
    held = stream.map(lambda r: (r[0] + 1, threading.Lock()) if isinstance(r, tuple) else (0, threading.Lock()))
    return held, held.filter(lambda r: False)


def test_feedback_that_cannot_be_pickled_stays_in_memory(jobs: Any) -> None:
    def body(stream: tr.DataStream) -> Any:
        held = stream.map(lambda r: (r[0] - 1, threading.Lock()))
        return held.filter(lambda r: r[0] > 0), held.filter(lambda r: r[0] <= 0).map(lambda r: r[0])

    assert jobs.env().from_collection([(5, None), (9, None)]).iterate(body).collect() == [0, 0]


def test_feedback_that_cannot_be_pickled_and_must_go_to_the_disk(jobs: Any) -> None:
    error = failure(jobs, handles, spill=tr.Spill(memory_bytes=0))
    assert error.operator.startswith("the loop")
    assert "(0, <unlocked _thread.lock" in error.record
    assert "a record of type tuple that cannot be pickled to go to the disk" in str(error)


def test_feedback_that_cannot_be_pickled_and_must_go_into_a_checkpoint(jobs: Any) -> None:
    env = jobs.env(checkpoint=tr.CheckpointConfig(jobs.folder / "checkpoints", interval=None), restart=tr.NoRestart())
    env.from_collection([5]).iterate(handles, name="the loop").sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    with pytest.raises(tr.CheckpointError):
        while True:  # the first ones may come before the record
            job.checkpoint(20)
    with pytest.raises(tr.JobFailed) as caught:
        job.await_termination(20)
    assert caught.value.operator.startswith("the loop")
    assert "<unlocked _thread.lock" in caught.value.record
    assert "a record of type tuple that cannot be pickled to go into a checkpoint" in str(caught.value)
    assert jobs.files() == []


# What is left.


def spill_files(pids: Any, folder: Path) -> list[str]:
    """The spill files in a folder that the processes have open. They have no names."""
    found = []
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(fd))
    return [path for path in found if path.startswith(str(folder)) and path.endswith("(deleted)")]


class Waits(tr.ProcessFunction):
    """Lets records go round for ever; once a file is there, they leave, or it fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        if (self.folder / "failed").exists():
            raise ValueError("boom")
        yield (value, (self.folder / "finished").exists())


@pytest.mark.parametrize("how", ["finished", "failed", "cancelled"])
def test_nothing_is_left_of_a_loop(jobs: Any, traces: Any, monkeypatch: Any, tmp_path: Path, how: str) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", str(tmp_path))
    before, spilled = traces.now(), tmp_path / "spilled"
    spilled.mkdir()

    def body(stream: tr.DataStream) -> Any:
        found = stream.process(Waits(tmp_path)).rebalance()
        return found.filter(lambda r: not r[1]).map(lambda r: r[0]), found.filter(lambda r: r[1]).map(lambda r: r[0])

    env = jobs.env(restart=tr.NoRestart())
    loop = env.from_collection(range(100)).iterate(body, spill=tr.Spill(0, str(spilled)))
    loop.sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env)
    pids = jobs.workers(job).values()
    assert len(set(pids)) == 2 and waited(lambda: len(spill_files(pids, spilled)) == 2)
    assert list(spilled.iterdir()) == []  # no name, while it is there
    assert len(list(tmp_path.glob("tailrace-*/*"))) == 1
    if how == "cancelled":
        job.cancel()
    else:
        (tmp_path / how).touch()
    assert waited(lambda: not job.is_active) and str(job.status) == how.upper()
    jobs.assert_nothing_left(before)
    assert spill_files(pids, spilled) == [] and list(spilled.iterdir()) == []
    assert list(tmp_path.glob("tailrace-*")) == []
    if how == "finished":
        lines = [int(line) for path in jobs.out.iterdir() for line in path.read_text().splitlines()]
        assert sorted(lines) == list(range(100))
    else:
        assert jobs.files() == []
