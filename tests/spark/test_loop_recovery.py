"""Loops under faults on real Spark: workers are killed and stopped while feedback goes round, and jobs are started again
from checkpoints that hold it; the output is as if nothing had happened."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import psutil
import pytest

import tailrace as tr
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

AT_ONCE = tr.FixedDelay(attempts=1000, delay=0.0)
TINY = tr.Spill(memory_bytes=2000)
RECORDS = 4000
AT_THE_END = 1_000_000  # of event time, which has come only when the loop is at rest


def running(job: Any) -> bool:
    return str(job.status) == "RUNNING"


def story(job: Any) -> str:
    return f"restarts {job.restarts}: {list(job._runner.machine.course.story)}"


def lines(*outs: Path) -> list[str]:
    return [line for out in outs for path in sorted(out.glob("[!._]*")) for line in path.read_text().splitlines()]


def kill_at_random(jobs: Any, job: Any, kills: int, seed: int) -> list[str]:
    """Kills workers of a job at moments and in an order that the seed decides, the third time all of them. What the job was
    doing at each."""
    chance = random.Random(seed)
    states: list[str] = []
    for number in range(kills):
        restarts = job.restarts
        if chance.random() < 0.75:  # else whatever it is doing
            waited(lambda: running(job) or not job.is_active)
        until = time.monotonic() + chance.uniform(0, 0.5)
        waited(lambda until=until: time.monotonic() >= until)
        workers = sorted(jobs.workers(job).values())
        if not job.is_active:
            break
        if not workers:
            continue
        states.append(str(job.status))
        for pid in workers if number == 2 else [chance.choice(workers)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        waited(lambda restarts=restarts: job.restarts > restarts or not job.is_active, 2.0)
    return states


# Connected components of a graph whose edges stream in.

Edge = tuple[int, int]


def edges(communities: int, size: int, many: int, seed: int = 7) -> list[Edge]:
    """In any order: half of the communities have `many` edges at random. The others are paths that grow at their lesser end,
    so that every edge brings a label that has to go all the way back."""
    chance = random.Random(seed)
    names = list(range(communities * size))
    chance.shuffle(names)
    found: list[tuple[float, Edge]] = []
    for at in range(0, len(names), size):
        members = sorted(names[at : at + size], reverse=True)
        if at // size % 2:
            times = sorted(chance.random() for _ in members[1:])
            found += zip(times, itertools.pairwise(members), strict=True)
        else:
            found += [(chance.random(), (chance.choice(members), chance.choice(members))) for _ in range(many)]
    return [edge for _, edge in sorted(found)]


class Label(tr.KeyedProcessFunction):
    """Keeps the least label that a vertex has received, and sends every better one to its neighbours. A vertex numbers
    its edges, and emits what it knows when all is over: its label, and how many messages more it has sent than got.
    Over all vertices that is nothing, unless a message was lost or came twice."""

    label = tr.ValueState(int)
    neighbours = tr.ListState(int)
    edges = tr.ValueState(int, default=0)
    balance = tr.ValueState(int, default=0)

    def process(self, record: Any, ctx: tr.Context) -> Iterator[Any]:
        what, vertex, other = record
        if self.label.value is None:
            self.label.value = vertex
            ctx.set_timer(event_time=AT_THE_END)
        if what == "edge":
            self.neighbours.add(other)
            self.edges.value += 1
            yield "edge", vertex, self.edges.value
            yield self.tell(other)
            return
        self.balance.value -= 1
        if other < self.label.value:
            self.label.value = other
            for neighbour in self.neighbours.get():
                yield self.tell(neighbour)

    def tell(self, neighbour: int) -> tuple[str, int, int]:
        self.balance.value += 1
        return "label", neighbour, self.label.value

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "component", ctx.key, self.label.value
        yield "balance", ctx.key, self.balance.value


def propagate(labels: tr.DataStream) -> Any:
    out = labels.key_by(lambda r: r[1]).process(Label(), uid="labels")
    return out.filter(lambda r: r[0] == "label"), out.filter(lambda r: r[0] != "label")


def components(jobs: Any, graph: list[Edge], rate: float, interval: float = 0.15, **options: Any) -> Any:
    """A running job that finds the components of a graph, with spilled feedback and frequent checkpoints."""
    settings = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=interval, max_concurrent=2, retain="never")
    env = jobs.env(checkpoint=settings, restart=AT_ONCE, **options)
    streamed = env.from_source(tr.sources.Sequence(0, len(graph), rate=rate)).map(lambda i: graph[i])
    both = streamed.flat_map(lambda e: [("edge", e[0], e[1]), ("edge", e[1], e[0])])
    both.iterate(propagate, spill=TINY).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    return jobs.start(env, "components")


def components_by_networkx(graph: list[Edge]) -> Counter[str]:
    found = nx.Graph(graph)
    lines: Counter[str] = Counter()
    for members in nx.connected_components(found):
        lines.update(str(("component", vertex, min(members))) for vertex in members)
    degrees = Counter(vertex for edge in graph for vertex in edge)
    lines.update(str(("edge", vertex, n + 1)) for vertex, degree in degrees.items() for n in range(degree))
    return lines


def wrong_components(out: Path, graph: list[Edge]) -> str:
    """What is not as it should be; empty where all is."""
    found = [ast.literal_eval(line) for line in lines(out)]
    balance = sum(n for what, _, n in found if what == "balance")
    counts = difference([str(r) for r in found if r[0] != "balance"], components_by_networkx(graph))
    return counts or (f"{balance} more messages sent than got" if balance else "")


def difference(found: list[str], expected: Counter[str]) -> str:
    """What is not as it should be; empty where all is."""
    lines = []
    for what, left in (("too many", Counter(found) - expected), ("missing", expected - Counter(found))):
        if left:
            lines.append(f"{left.total()} {what}, such as {sorted(left)[:3]}")
    return "; ".join(lines)


def open_spills() -> list[str]:
    """The files without a name that workers have open."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            found += [os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
    return [path for path in found if "/tailrace-" in path and path.endswith("(deleted)")]


@pytest.mark.parametrize(("communities", "rate", "kills", "backend"), [(50, 6000, 8, "memory"), (30, 4000, 6, "disk")])
def test_components_while_workers_are_killed_at_random(
    jobs: Any, communities: int, rate: float, kills: int, backend: str
) -> None:
    graph = edges(communities, 100, 701)
    job = components(jobs, graph, rate, state_backend=backend)
    killed = kill_at_random(jobs, job, kills, seed=communities)
    assert job.await_termination(150), story(job)
    assert len(killed) >= 5 and job.restarts >= 4, (killed, story(job))
    assert wrong_components(jobs.out, graph) == "", story(job)
    assert open_spills() == []
    assert not list(jobs.out.glob("[._]*"))
    assert not list((jobs.folder / "checkpoints").rglob("*.state"))


def test_components_while_a_worker_is_stopped_for_longer_than_its_lease(jobs: Any) -> None:
    graph = edges(20, 60, 400)
    job = components(jobs, graph, 2500, 0.1)
    assert waited(lambda: job.checkpoints)
    job._runner.machine.limits = replace(job._runner.machine.limits, lease=2_000_000)
    os.kill(jobs.workers(job)[1], signal.SIGSTOP)
    assert waited(lambda: job.restarts == 1 and running(job)), story(job)
    assert job.await_termination(150), story(job)
    assert wrong_components(jobs.out, graph) == "", story(job)


# Rounds.


class Tally(tr.KeyedProcessFunction):
    """Counts the records of a round, and emits the count at the round's end; slowly enough to be hit."""

    came = tr.ValueState(int, default=0)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        self.came.value += 1
        yield "hop", hop[0], hop[1] - 1

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        time.sleep(0.002)
        yield "tally", round, ctx.key, self.came.value
        self.came.value = 0


def place(hop: Any) -> int:
    return (hop[0] * 5 + hop[1] * 3) % 11


def test_rounds_while_workers_are_killed_at_random(jobs: Any) -> None:
    n, laps = 1500, 150

    def body(hops: tr.DataStream) -> Any:
        out = hops.key_by(place).process(Tally())
        moved = out.filter(lambda r: r[0] == "hop").map(lambda r: r[1:])
        return moved.filter(lambda hop: hop[1] > 0), out.filter(lambda r: r[0] == "tally")

    settings = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=0.1)
    env = jobs.env(checkpoint=settings, restart=AT_ONCE)
    hops = env.from_source(tr.sources.Sequence(0, n)).map(lambda i: (i, 1 + i % laps))
    hops.iterate(body, rounds=tr.Rounds(), spill=TINY).sink_to(tr.sinks.TextFiles(str(jobs.out)))
    job = jobs.start(env, "rounds")
    killed = kill_at_random(jobs, job, 4, seed=3)
    assert job.await_termination(150), story(job)
    assert len(killed) >= 3 and job.restarts >= 2, (killed, story(job))

    left = [(i, 1 + i % laps) for i in range(n)]
    expected: Counter[str] = Counter()
    for number in range(laps):
        tally = Counter(map(place, left))
        expected.update(str(("tally", number, key, came)) for key, came in tally.items())
        left = [(i, laps_left - 1) for i, laps_left in left if laps_left > 1]
    assert difference(lines(jobs.out), expected) == "", story(job)


# Checkpoints that hold feedback.


class Roundabout(tr.KeyedProcessFunction):
    """Counts a record's laps in the record, and visits of the place in its state: whatever of a lap is lost or done twice,
    the two do not agree. Records leave only where the way out is open."""

    visits = tr.ValueState(int, default=0)

    def __init__(self, way_out: bool, folder: Path) -> None:
        self.way_out, self.folder = way_out, folder

    def process(self, record: Any, ctx: tr.Context) -> Iterator[Any]:
        number, laps = record
        if not self.visits.value:
            ctx.set_timer(event_time=AT_THE_END)
        self.visits.value += 1
        if not laps:
            yield "came", number, 0
        yield "left" if self.way_out else "lap", number, laps + 1

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "visits", ctx.key, self.visits.value

    def on_round_end(self, round: int, ctx: tr.Context) -> None:
        (self.folder / f"round {round}").touch()


def corner(record: Any) -> int:
    return (record[0] * 7 + record[1] * 3) % 31


def roundabout(jobs: Any, out: Path, parallelism: int, kind: str, way_out: bool) -> tr.Environment:
    """Records that go round for ever, or leave."""

    def body(records: tr.DataStream) -> Any:
        coming = records.rebalance().map(lambda r: r) if kind == "not keyed" else records
        out = coming.key_by(corner).process(Roundabout(way_out, jobs.folder), uid="roundabout")
        return out.filter(lambda r: r[0] == "lap").map(lambda r: r[1:]), out.filter(lambda r: r[0] != "lap")

    settings = tr.CheckpointConfig(jobs.folder / "checkpoints", interval=None)
    env = jobs.env(parallelism, checkpoint=settings, restart=tr.NoRestart())
    rate, rounds = (None, tr.Rounds()) if kind == "in rounds" else (4000, None)
    numbers = env.from_source(tr.sources.Sequence(0, RECORDS, rate=rate), uid="numbers").map(lambda i: (i, 0))
    loop = numbers.iterate(body, rounds=rounds, spill=TINY, uid="loop")
    loop.sink_to(tr.sinks.TextFiles(str(out)), uid="out")
    return env


@pytest.mark.parametrize("kind", ["keyed", "not keyed", "in rounds"])
def test_feedback_in_a_checkpoint_is_restored_at_any_parallelism(jobs: Any, kind: str) -> None:
    """Records go round in two jobs, one after the other, and leave in a third one."""
    taken = None
    outs = [jobs.folder / name for name in ("first", "second", "third")]
    for out, parallelism in zip(outs[:2], (2, 3), strict=True):
        env = roundabout(jobs, out, parallelism, kind, way_out=False)
        rounds = len(list(jobs.folder.glob("round *")))
        job = env.execute("roundabout", from_checkpoint=taken.path if taken else None)
        jobs.started.append(job)
        if kind == "in rounds":
            assert waited(lambda rounds=rounds: len(list(jobs.folder.glob("round *"))) >= rounds + 2)
        else:
            assert waited(lambda out=out: any(path.stat().st_size for path in out.glob(".*")))
        taken = job.checkpoint(20)
        assert taken.inflight_bytes > 0
        job.cancel()
        assert job.await_termination(150)
    job = roundabout(jobs, outs[2], 1, kind, way_out=True).execute("roundabout", from_checkpoint=taken.path)
    jobs.started.append(job)
    assert job.await_termination(150)

    found = [ast.literal_eval(line) for line in lines(*outs)]
    came, left, visits = ({key: n for what, key, n in found if what == lines} for lines in ("came", "left", "visits"))
    assert len(found) == len(came) + len(left) + len(visits)  # nothing twice
    assert sorted(came) == sorted(left) == list(range(RECORDS))
    assert max(left.values()) > 1
    assert visits == Counter(corner((number, lap)) for number, laps in left.items() for lap in range(laps))
