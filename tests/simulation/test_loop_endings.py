"""Loops come to their end, once and completely, and go on where another dataflow takes over; each as a small job under the
simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

import tailrace as tr
from search.programs.loops import Hoard
from search.scenarios import LIMITS, NETWORKS
from search.watchers.checker import BOOKS, Book, Ledger, check_records
from search.watchers.loops import LoopFiles, LoopWatch
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Fixed
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation

MS = 1_000
EVERY_MS = CheckpointSettings(interval=1 * MS, keep=1, tolerated_failures=100_000)

Program = Callable[[tr.Environment], tr.DataStream]


class Runs:
    """Jobs that follow on each other: one storage of checkpoints, one book of what was published."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.book = BOOKS[name] = Book()
        self.files = LoopFiles([self.book])
        self.count = 0

    def begin(self, program: Program, *, seed: int = 0, parallelism: int = 2, **options: Any) -> Simulation:
        """The simulation of a job; after the first one it goes on from the newest checkpoint."""
        self.count += 1
        settings = options.pop("checkpoints", EVERY_MS)
        if settings is None:
            self.book.committed = None
        config = tr.CheckpointConfig(dir="memory") if settings is not None else None
        env = tr.Environment(parallelism=parallelism, checkpoint=config)
        program(env).sink_to(Ledger(self.name), uid="ledger")
        network = NETWORKS[options.pop("network", "fast")]
        chosen: dict[str, Any] = {
            "name": "story",
            "seed": seed,
            "run_id": f"run{self.count}",
            "conditions": replace(network, max_turns=60_000),
            "limits": LIMITS,
            "checkpoints": settings,
            "restarts": lambda: Fixed(100_000, 0),
            "files": self.files if settings is not None else None,
            "origin": "latest" if self.count > 1 else None,
        }
        return prepared_simulation(env, **(chosen | options))

    def finish(self, program: Program, expected: Counter[Any], **options: Any) -> Simulation:
        """Brings a job to its end, and looks at what came of it."""
        world = self.begin(program, **options)
        watch = LoopWatch(world, self.files)
        assert world.run() is JobStatus.FINISHED, world.coordinator.cause
        world.drain()
        assert watch.wrong + self.files.wrong + check_records(self.book, expected) == []
        return world


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    yield Runs(request.node.name)
    del BOOKS[request.node.name]


def numbers(env: tr.Environment, n: int, seconds: float | None = None, first: int = 0, **options: Any) -> tr.DataStream:
    rate = None if seconds is None else n / seconds
    return env.from_source(tr.sources.Sequence(first, first + n, rate=rate), **options)


def count_down(hops: tr.DataStream) -> Any:
    """The body of a loop in which (id, laps) goes round until no lap is left."""
    down = hops.map(lambda hop: (hop[0], hop[1] - 1))
    return down.filter(lambda hop: hop[1] > 0), down.filter(lambda hop: hop[1] <= 0)


# The end.


@pytest.mark.parametrize("settings", [EVERY_MS, None], ids=["with checkpoints", "without"])
@pytest.mark.parametrize("feedback", [None, []], ids=["None", "an empty list"])
def test_a_loop_without_feedback_takes_checkpoints_and_ends(runs: Runs, settings: Any, feedback: Any) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        return numbers(env, 40, 0.02).iterate(lambda stream: (feedback, stream.map(lambda i: i + 1)))

    world = runs.finish(program, Counter(range(1, 41)), checkpoints=settings)
    assert settings is None or world.covered["completed a checkpoint"] > 1


@pytest.mark.parametrize("seed", range(2, 6))
def test_a_wave_that_begins_while_the_end_of_an_inner_loop_s_input_is_on_its_way(runs: Runs, seed: int) -> None:
    """The inner loop is fed by a stream that only enters: its head gets neither the marker nor the command."""

    def program(env: tr.Environment) -> tr.DataStream:
        few = env.from_collection([(i, i % 4) for i in range(100, 110)])

        def body(hops: tr.DataStream) -> Any:
            return count_down(hops.union(few.enter(hops.scope).rebalance().iterate(count_down)))

        return numbers(env, 60, 0.02).map(lambda i: (i, i % 5)).iterate(body).map(lambda hop: hop[0])

    often = mock.patch.multiple("tailrace.coordinator.loops.termination", PAUSE=200, LONGEST_PAUSE=2 * MS)
    with often, mock.patch("tailrace.coordinator.loops.termination._Nest.balanced", True):
        expected = Counter([*range(60), *range(100, 110)])
        runs.finish(program, expected, seed=seed, network="uneven", checkpoints=None)


def test_a_worker_whose_tasks_have_all_finished_still_answers_for_the_loop(runs: Runs) -> None:
    """Workers 1 and 2 have nothing but a part of what hangs on a stream that enters the loop, and which ends early."""

    def program(env: tr.Environment) -> tr.DataStream:
        few = env.from_collection([(i, i % 4) for i in range(100, 120)])

        def body(hops: tr.DataStream) -> Any:
            entered = few.enter(hops.scope).rebalance().map(lambda hop: hop, parallelism=3)
            return count_down(hops.union(entered).map(lambda hop: hop, parallelism=1))

        return numbers(env, 60, 0.05).map(lambda i: (i, i % 5)).iterate(body).map(lambda hop: hop[0])

    runs.finish(program, Counter([*range(60), *range(100, 120)]), parallelism=1, checkpoints=None)


class ALittleLater(tr.KeyedProcessFunction):
    """Lets every record pass after ten milliseconds."""

    waiting = tr.MapState(int, object)

    def process(self, hop: Any, ctx: tr.Context) -> None:
        due = ctx.now() + 0.01
        self.waiting.put(hop[0], (due, hop))
        ctx.set_timer(processing_time=due)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        for _, hop in [found for found in self.waiting.values() if found[0] <= timestamp + 2e-6]:
            self.waiting.remove(hop[0])
            yield hop


@pytest.mark.parametrize("seed", range(3))
def test_finish_waits_for_timers_that_the_last_words_of_others_have_set(runs: Runs, seed: int) -> None:
    """What the first hoard gives out at rest comes to the second one by a timer, after the loop was reported at
    rest."""

    def program(env: tr.Environment) -> tr.DataStream:
        def body(hops: tr.DataStream) -> Any:
            late = hops.rebalance().process(Hoard()).key_by(lambda hop: hop[0] % 5).process(ALittleLater())
            kept = late.rebalance().process(Hoard())
            return kept.filter(lambda hop: hop[1] < 0), kept

        return numbers(env, 30).map(lambda i: (i, i % 5)).iterate(body).map(lambda hop: hop[0])

    runs.finish(program, Counter(range(30)), seed=seed)
    assert runs.files.commits > 1


class AtOnceIfAtAll(tr.KeyedProcessFunction):
    """Sets timers for what comes back, when the loop was at rest before: they are to be dropped."""

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        if hop[1] < 4:
            ctx.set_timer(processing_time=ctx.now())
        yield hop

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, -1


@pytest.mark.parametrize("seed", range(4))
def test_timers_that_are_dropped_at_rest_stay_dropped_after_a_restart(runs: Runs, seed: int) -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        def body(hops: tr.DataStream) -> Any:
            kept = hops.rebalance().process(Hoard())
            out = kept.key_by(lambda hop: hop[0] % 5).process(AtOnceIfAtAll(), at_end="drop")
            going = out.filter(lambda hop: hop[1] > 0).map(lambda hop: (hop[0], hop[1] - 1))
            return going, out.filter(lambda hop: hop[1] <= 0).map(lambda hop: hop)

        return numbers(env, 30).map(lambda i: (i, 4)).iterate(body)

    killed = Fault(150, "kill", which=1, after="CallFinish")
    world = runs.finish(program, Counter((i, 0) for i in range(30)), seed=seed, faults=[killed])
    assert world.covered["restarted"] == 1


# Another dataflow goes on.


class Visit(tr.KeyedProcessFunction):
    """Numbers the visits of a key."""

    seen = tr.ValueState(int, default=0)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value += 1
        yield "visit", ctx.key, self.seen.value
        if hop[1] > 0:
            yield "hop", (hop[0], hop[1] - 1)


def place(hop: Any) -> int:
    return (hop[0] * 5 + hop[1] * 3) % 11


def visiting(key_first: bool) -> Program:
    """Records that visit another key in each lap. Where the loop begins with the key, what comes back is partitioned by it
    before the head; else behind."""

    def body(hops: tr.DataStream) -> Any:
        ready = hops if key_first else hops.map(lambda hop: hop)
        visits = ready.key_by(place).process(Visit(), uid="visit")
        going = visits.filter(lambda r: r[0] == "hop").map(lambda r: r[1], uid="going")
        return going, visits.filter(lambda r: r[0] == "visit").map(lambda r: r[1:])

    def program(env: tr.Environment) -> tr.DataStream:
        hops = numbers(env, 100, 0.02, uid="numbers").map(lambda i: (i, i * i % 7), uid="hops")
        return hops.iterate(body, uid="loop")

    return program


VISITS = Counter(place((i, left)) for i in range(100) for left in range(i * i % 7 + 1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("parallelism", [2, 3, 1])
@pytest.mark.parametrize("key_first", [(False, True), (True, False), (True, True), (False, False)], ids=str)
def test_what_is_on_its_way_finds_its_key_in_a_changed_loop(
    runs: Runs, key_first: tuple[bool, bool], parallelism: int, seed: int
) -> None:
    before, after = key_first
    assert runs.begin(visiting(before), seed=seed).run_until("commit 3 done")
    expected = Counter((key, i) for key, total in VISITS.items() for i in range(1, total + 1))
    runs.finish(visiting(after), expected, seed=seed, parallelism=parallelism)
    assert any(held for held in runs.files.feedback)


def hoarding(more: bool) -> Program:
    def body(hops: tr.DataStream) -> Any:
        kept = hops.rebalance().process(Hoard(), uid="hoard")
        going = kept.filter(lambda hop: hop[1] > 0).map(lambda hop: (hop[0], hop[1] - 1))
        return going, kept.filter(lambda hop: hop[1] <= 0).map(lambda hop: hop[0])

    def program(env: tr.Environment) -> tr.DataStream:
        hops = numbers(env, 30, uid="numbers").map(lambda i: (i, i % 4), uid="hops")
        if more:
            hops = hops.union(numbers(env, 30, first=100, uid="others").map(lambda i: (i, i % 4), uid="other hops"))
        return hops.iterate(body, uid="loop")

    return program


@pytest.mark.parametrize("parallelism", [2, 3])
def test_functions_finish_again_in_a_loop_that_gets_new_input_after_its_end(runs: Runs, parallelism: int) -> None:
    runs.finish(hoarding(more=False), Counter(range(30)))
    runs.finish(hoarding(more=True), Counter([*range(30), *range(100, 130)]), parallelism=parallelism)


class Tell(tr.KeyedProcessFunction):
    """Tells how much a key got in a round."""

    got = tr.ValueState(int, default=0)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        self.got.value += 1
        yield "hop", (hop[0], hop[1] - 1)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        got, self.got.value = self.got.value, 0
        yield "told", (round, ctx.key, got)


def telling(more: bool) -> Program:
    def body(hops: tr.DataStream) -> Any:
        found = hops.key_by(lambda hop: hop[0] % 5).process(Tell(), uid="tell")
        going = found.filter(lambda r: r[0] == "hop" and r[1][1] > 0).map(lambda r: r[1])
        return going, found.filter(lambda r: r[0] == "told").map(lambda r: r[1])

    def program(env: tr.Environment) -> tr.DataStream:
        hops = numbers(env, 30, uid="numbers").map(lambda i: (i, 3), uid="hops")
        if more:
            hops = hops.union(numbers(env, 30, first=100, uid="others").map(lambda i: (i, 3), uid="other hops"))
        return hops.iterate(body, uid="loop", rounds=tr.Rounds(max=3))

    return program


def test_rounds_begin_again_in_a_loop_that_gets_new_input_after_its_end(runs: Runs) -> None:
    found = Counter((round, key, 6) for round in range(3) for key in range(5))
    runs.finish(telling(more=False), found)
    runs.finish(telling(more=True), found + found)


def windows(more: bool) -> Program:
    """Windows behind a loop; each of the sources has timestamps of its own."""

    def program(env: tr.Environment) -> tr.DataStream:
        hops = numbers(env, 30, uid="numbers").map(lambda i: (i, i % 4), uid="hops")
        hops = hops.assign_timestamps(lambda hop: hop[0], 40.0, uid="times")
        if more:
            others = numbers(env, 30, 0.01, first=100, uid="others").map(lambda i: (i, i % 4), uid="other hops")
            hops = hops.union(others.assign_timestamps(lambda hop: hop[0], 40.0, uid="other times"))
        ids = hops.iterate(count_down, uid="loop").map(lambda hop: hop[0], uid="ids")
        counts = ids.key_by(lambda i: i % 3).window(tr.Tumbling(16)).aggregate(uid="windows", n=tr.Count())
        return counts.map(lambda r: (r[0], r[1], r[3]), uid="counts")

    return program


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_event_time_begins_again_in_a_loop_that_was_about_to_end_and_gets_new_input(runs: Runs, seed: int) -> None:
    """The checkpoint is of the moment when event time in the loop has come to its end, and the loop has not."""
    ids = [*range(30), *range(100, 130)]
    counts = Counter((i % 3, i - i % 16) for i in ids)
    world = runs.begin(windows(more=False), seed=seed)
    assert world.run_until("CallFinish") and world.run_until("commit ") and world.run_until("done")
    runs.finish(windows(more=True), Counter((key, float(at), n) for (key, at), n in counts.items()), seed=seed)


def held_behind(env: tr.Environment) -> tr.DataStream:
    """Behind a loop functions hold all until their input ends, and windows of a number of records have what is left then."""
    hops = numbers(env, 30, uid="numbers").map(lambda i: (i, i % 4), uid="hops")
    hops = hops.assign_timestamps(lambda hop: hop[0], uid="times")
    kept = hops.iterate(count_down, uid="loop").rebalance().process(Hoard(), uid="hoard")
    windows = kept.key_by(lambda hop: hop[0] % 2).window(tr.CountWindow(20, partial_at_end=True))
    return windows.aggregate(uid="windows", n=tr.Count()).map(lambda r: (r.key, r.n), uid="counts")


def test_behind_a_loop_that_goes_on_at_the_end_of_its_event_time_that_end_comes_with_the_last_record(
    runs: Runs,
) -> None:
    """The checkpoint is of the moment when event time in the loop has come to its end. When the job goes on, a wave finds it
    there before the inputs of the loop have ended once more."""
    world = runs.begin(held_behind)
    assert world.run_until("CallFinish") and world.run_until("commit ") and world.run_until("done")
    runs.finish(held_behind, Counter({(0, 15): 1, (1, 15): 1}))
