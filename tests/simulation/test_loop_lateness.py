"""Nothing is late because of a loop, an idle one holds nobody back, and rounds are counted. Each program has one right
result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from search.programs.golden import PROGRAMS
from search.watchers.checker import BOOKS, Book, Ledger
from tailrace.testing import Conditions, run, simulate
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles

N = 120


def environment(parallelism: int = 2, **settings: Any) -> tr.Environment:
    return tr.Environment(parallelism=parallelism, **settings)


def stamped(env: tr.Environment, n: int = N, rate: float = 2000.0) -> tr.DataStream:
    return env.from_source(tr.sources.Sequence(0, n, rate=rate)).assign_timestamps(float)


def count_down(s: tr.DataStream) -> Any:
    """Each record goes round until its second field is used up."""
    down = s.rebalance().map(lambda v: (v[0], v[1] - 1))
    return down.filter(lambda v: v[1] >= 0), down.filter(lambda v: v[1] < 0)


def counted_behind(out: tr.DataStream) -> tuple[Any, Any]:
    """How many records windows behind a loop take, and what was late for them."""
    windows = out.key_by(lambda v: 0).window(tr.Tumbling(1.0)).count()
    return windows.sink_to(tr.sinks.Collect()), windows.side_output("late").sink_to(tr.sinks.Collect())


# Nothing is late behind a loop.


class Later(tr.KeyedProcessFunction):
    """Lets each record go half a second of event time later, which for what has come back is long past."""

    held = tr.MapState(float, object)

    def process(self, v: Any, ctx: tr.Context) -> None:
        assert ctx.timestamp is not None
        self.held.put(ctx.timestamp + 0.5, v)
        ctx.set_timer(event_time=ctx.timestamp + 0.5)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield self.held.get(timestamp)
        self.held.remove(timestamp)


@pytest.mark.parametrize("seed", range(4))
def test_event_time_leaves_a_loop_behind_timers_set_for_a_time_that_has_been(seed: int) -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        held = s.key_by(lambda v: v[0]).process(Later())
        return held.filter(lambda v: v[1] > 0).map(lambda v: (v[0], v[1] - 1)), held.filter(lambda v: v[1] <= 0)

    taken, late = counted_behind(stamped(env).map(lambda i: (i, i % 4)).iterate(body))
    simulate(env, seed=seed).await_termination()
    assert late.result() == []
    assert sum(window[3] for window in taken.result()) == N


@pytest.mark.parametrize("seed", range(4))
def test_event_time_leaves_a_loop_in_rounds_behind_what_waits_for_its_round(seed: int) -> None:
    env = environment()
    out = stamped(env, 60).map(lambda i: (i, i % 4)).iterate(count_down, rounds=tr.Rounds())
    taken, late = counted_behind(out)
    simulate(env, seed=seed).await_termination()
    assert late.result() == []
    assert sum(window[3] for window in taken.result()) == 60


# Feedback is not late for a window in the loop.


@pytest.mark.parametrize("lateness", [0.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_window_in_a_loop_takes_what_comes_back_after_its_end(seed: int, lateness: float) -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        windows = s.key_by(lambda v: v[1]).window(tr.Tumbling(10.0), allowed_lateness=lateness)
        sums = windows.aggregate(n=tr.Sum(lambda v: v[0])).map(lambda w: (w.n, w.key - 1))
        return sums.filter(lambda v: v[1] >= 0), sums.filter(lambda v: v[1] < 0).map(lambda v: v[0])

    total = stamped(env).map(lambda i: (1, i % 4)).iterate(body).sink_to(tr.sinks.Collect())
    simulate(env, seed=seed).await_termination()
    # Within the allowed lateness a window gives its whole sum again; after that, only what is new.
    assert sum(total.result()) == N if not lateness else sum(total.result()) >= N


# Idle inputs.


class Script(tr.Source):
    """Batches of records at given times after the start; those later than the start in one split only."""

    description = "script"

    def __init__(self, *plan: tuple[float, list[Any]]) -> None:
        self.plan = plan

    def splits(self, parallelism: int) -> list[Any]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: Any, position: Any = None) -> tr.Reader:
        return Scripted(self.plan, split[0], position or (0, 0))


class Scripted(tr.Reader):
    def __init__(self, plan: Any, split: int, position: tuple[int, int]) -> None:
        self.plan, self.split = plan, split
        self.at, self.taken = position
        self.began: float | None = None

    def read(self, limit: int, now: float) -> Any:
        self.began = now if self.began is None else self.began
        if self.at == len(self.plan):
            return None
        due, records = self.plan[self.at]
        if now < self.began + due:
            return ()
        found = list(records)[self.taken : self.taken + limit] if not due or not self.split else []
        self.taken += len(found)
        if not found or self.taken == len(records):
            self.at, self.taken = self.at + 1, 0
        return found

    @property
    def position(self) -> tuple[int, int]:
        return self.at, self.taken

    def next_at(self, now: float) -> float:
        assert self.began is not None
        return self.began + self.plan[min(self.at, len(self.plan) - 1)][0]


class Slow(tr.KeyedProcessFunction):
    """Lets each record go 20 ms of the clock later."""

    held = tr.MapState(float, object)

    def process(self, v: Any, ctx: tr.Context) -> None:
        self.held.put(ctx.now() + 0.02, v)
        ctx.set_timer(processing_time=ctx.now() + 0.02)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        for due in [due for due in self.held if due <= timestamp + 2e-6]:
            yield self.held.get(due)
            self.held.remove(due)


class Watermark(tr.ProcessFunction):
    def process(self, who: str, ctx: tr.Context) -> Iterator[Any]:
        yield who, ctx.watermark


def test_a_loop_that_works_on_while_its_input_is_idle_holds_nobody_back() -> None:
    env = environment()
    idle = env.from_source(Script((0, [0, 1, 2, 3, 4]), (3.0, []))).assign_timestamps(float, idle_after=0.1)

    def body(s: tr.DataStream) -> Any:
        slow = s.key_by(lambda v: v[0]).process(Slow()).map(lambda v: (v[0], v[1] - 1))
        return slow.filter(lambda v: v[1] >= 0), slow.filter(lambda v: v[1] < 0)

    looping = idle.map(lambda i: (i, 20)).iterate(body).map(lambda v: "looping")
    going = stamped(env, 1000, rate=500.0).map(lambda i: "going")
    seen = looping.union(going).rebalance().process(Watermark()).sink_to(tr.sinks.Collect())
    quick = Conditions(delay=(0, 100), step_cost=(1, 5), budget=(8, 64))
    simulate(env, conditions=quick).await_termination()
    assert max(watermark for who, watermark in seen.result() if who == "going") > 900


def test_what_wakes_an_idle_loop_is_waited_for_though_event_time_stands() -> None:
    env = environment()
    one = env.from_source(Script((0, [(0, 0), (4, 0)]), (1.0, [(4, 3000)]), (4.0, [])))
    two = env.from_source(Script((0, [(0, 0), (3, 0)]), (0.9, [(4, 0)]), (1.05, [(100, 0)]), (4.0, [])))
    loop = one.assign_timestamps(lambda v: v[0], idle_after=0.1).iterate(count_down)
    _, late = counted_behind(loop.union(two.assign_timestamps(lambda v: v[0], idle_after=0.1)))
    quick = Conditions(delay=(0, 100), step_cost=(10, 30), budget=(8, 64))
    simulate(env, conditions=quick).await_termination()
    assert late.result() == []


@pytest.mark.parametrize("idle_after", [None, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 22])
def test_an_hour_of_nothing_takes_a_handful_of_waves(idle_after: float | None, seed: int) -> None:
    """With an input that is idle, the loop is idle as well, and nothing calls for another wave. A head that had read
    what came back, and then the marker of a wave, did not report again that it is idle: event time waited for it,
    behind the loop as well, and a wave each second found that."""
    env = environment()
    script = Script((0, [(0, 5), (4, 5)]), (1.0, [(5, 3)]), (3600.0, [(6, 2)]), (3601.0, []))
    out = env.from_source(script).assign_timestamps(lambda v: v[0], idle_after=idle_after).iterate(count_down)
    out.sink_to(tr.sinks.Collect())
    job = simulate(env, seed=seed)
    job.await_termination()
    assert sum("StartWave" in line for line in job.trace) < 100


# Rounds.


class Clocked(tr.KeyedProcessFunction):
    """Sends each record round again by a timer of the clock, and emits each call with its time."""

    left = tr.ValueState(int, default=0)

    def process(self, v: Any, ctx: tr.Context) -> Iterator[Any]:
        self.left.value = v[1]
        ctx.set_timer(processing_time=ctx.now() + 0.003 * (1 + v[0] % 4))
        yield "record", v[0], ctx.round

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "timer", ctx.key, ctx.round
        if self.left.value:
            yield "again", (ctx.key, self.left.value - 1)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        assert round == ctx.round
        yield "end", ctx.key, round


@pytest.mark.parametrize("seed", range(3))
def test_timers_of_the_clock_in_rounds(seed: int) -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        found = s.key_by(lambda v: v[0]).process(Clocked())
        return found.filter(lambda r: r[0] == "again").map(lambda r: r[1]), found.filter(lambda r: r[0] != "again")

    result = env.from_collection([(i, i % 4) for i in range(8)]).iterate(body, rounds=tr.Rounds())
    sink = result.sink_to(tr.sinks.Collect())
    simulate(env, seed=seed).await_termination()
    found = Counter(what for what, _, _ in sink.result())
    assert found == {"record": 20, "timer": 20, "end": 20}
    ends = [found for found in sink.result() if found[0] == "end"]
    assert len(ends) == len(set(ends))


@pytest.mark.parametrize(
    ("rounds", "records"),
    [
        (tr.Rounds(max=1), 10),
        (tr.Rounds(until=lambda result: True), 10),
        (tr.Rounds(max=1, until=lambda result: False), 10),
        (tr.Rounds(max=3), 30),
        (tr.Rounds(until=lambda result: result.round == 1), 20),
        (tr.Rounds(), 60),
    ],
)
def test_how_many_rounds_there_are(rounds: tr.Rounds, records: int) -> None:
    env = environment()

    def body(s: tr.DataStream) -> Any:
        down = s.map(lambda left: left - 1)
        return down.filter(lambda left: left >= 0), down

    sink = env.from_collection([5] * 10).iterate(body, rounds=rounds).sink_to(tr.sinks.Collect())
    run(env)
    assert len(sink.result()) == records


def test_until_is_asked_of_a_round_without_feedback_and_what_it_raises_is_reported() -> None:
    env = environment()
    rounds = tr.Rounds(until=lambda result: {}[len(result.output), list(result), result.round == 0 or "?"])
    env.from_collection([1, 2, 3]).iterate(lambda s: (None, (s, s)), rounds=rounds)[0].sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="until, called for round 0, raised TypeError"):
        run(env)


RESCALED = [(2, 3), (3, 2), (2, 1), (1, 3)]


@pytest.mark.parametrize("program", ["shared_out", "judged", "run_dry"])
@pytest.mark.parametrize(("before", "after"), RESCALED)
def test_rounds_go_on_at_another_parallelism(program: str, before: int, after: int) -> None:
    """A job is left alone at some moment, and another one goes on: together they give the right output, once. What the
    first one had prepared is published by the second, so both have the same sink."""
    files, golden, name = MemoryFiles(), PROGRAMS[program], f"{program}-{before}-{after}"
    book = BOOKS[name] = Book()
    for number, (parallelism, turns) in enumerate([(before, 500 + 37 * after), (after, None)]):
        config = tr.CheckpointConfig(dir="memory", interval=0.004)
        env = environment(parallelism, checkpoint=config, restart=tr.FixedDelay(attempts=50, delay=0.0))
        golden.build(env, golden.n, None).sink_to(Ledger(name))
        origin: Any = "latest" if number else None
        job = prepared_simulation(env, name="x", seed=number, files=files, origin=origin, run_id=f"run{number}")
        if turns is None:
            job.run()
        else:
            job.start()
            while turns and not job.coordinator.status.final:
                job.turn()
                turns -= 1
        if job.coordinator.status.final:
            break
    assert job.coordinator.status.name == "FINISHED"
    assert Counter(book.records()) == golden.expected(golden.n)
    del BOOKS[name]
