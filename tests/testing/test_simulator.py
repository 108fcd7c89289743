"""The simulator: one seed is one history, the same in every process."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import tailrace as tr
from tailrace.errors import InternalError
from tailrace.graph.plan import Plan
from tailrace.task.contract.functions import with_own_functions
from tailrace.task.contract.jobspec import JobSpec
from tailrace.testing.simulator import Simulation

pytestmark = pytest.mark.search

PROGRAM = textwrap.dedent(
    """
    import tailrace as tr

    class Seen(tr.KeyedProcessFunction):
        words = tr.MapState(str, int)

        def process(self, value, ctx):
            self.words.put(value, self.words.get(value, 0) + 1)
            ctx.set_timer(processing_time=ctx.now() + ctx.random.random())
            yield value, self.words.get(value), ctx.random.randrange(100)

        def on_timer(self, timestamp, ctx):
            yield sorted(self.words.keys()), ctx.random.randrange(100)

    env = tr.Environment(parallelism=3)
    words = env.from_source(tr.sources.Generator(lambda i: "w%d" % (i * i % 17), count=150))
    shuffled = words.shuffle().map(lambda word: {word, word.upper()}).flat_map(sorted)
    out = shuffled.key_by(lambda word: word).process(Seen()).sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=7)
    job.await_termination()
    print(len(job.trace), job.digest)
    print(out.result())
    """
)


def told(hash_seed: str, folder: Path) -> str:
    """The output of a fresh Python for the program."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    return ran.stdout


def test_one_seed_is_one_history_in_every_process(tmp_path: Path) -> None:
    first, second = told("0", tmp_path), told("4242", tmp_path)
    assert first == second
    assert int(first.split()[0]) > 200


def job_with(seed: int, **settings: object) -> tr.testing.SimulatedJob:
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 50)).key_by(lambda x: x % 3).count()
    numbers.sink_to(tr.sinks.Callback(lambda record: None))
    return tr.testing.simulate(env, seed=seed, **settings)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert job_with(1).trace == job_with(1).trace
    assert job_with(1).digest == job_with(1).digest
    assert len({job_with(seed).digest for seed in range(10)}) == 10


def test_conditions_are_part_of_the_history() -> None:
    slow = tr.testing.Conditions(delay=(1_000_000, 2_000_000))
    assert job_with(1, conditions=slow).digest != job_with(1).digest


def test_the_trace_tells_what_happened_a_line_each() -> None:
    trace = job_with(3).trace
    assert trace[0].split(maxsplit=1) == ["0", "status STARTING"]
    assert trace[-1].endswith("status FINISHED")
    assert any("worker 0 => coordinator Hello" in line for line in trace)
    assert any("frame kind 1" in line for line in trace)


def test_a_simulation_that_never_ends_is_reported_with_its_last_lines() -> None:
    short = tr.testing.Conditions(max_turns=2_000)
    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Sequence(0, 1_000_000_000)).sink_to(tr.sinks.Callback(lambda record: None))
    with pytest.raises(InternalError, match="the simulation with seed 5 did not end") as caught:
        tr.testing.simulate(env, seed=5, conditions=short)
    assert len(caught.value.story) == 40


def test_the_clock_is_virtual_and_starts_at_a_fixed_moment() -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Generator(lambda i: i, rate=0.001, count=3))
    out = numbers.process(lambda value, ctx: [round(ctx.now())]).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [1_700_000_000, 1_700_001_000, 1_700_002_000]


@pytest.mark.parametrize("seed", range(5))
def test_a_job_that_fails_ends_as_failed_and_every_worker_leaves(seed: int) -> None:
    closed: list[int] = []

    class Fragile(tr.MapFunction):
        def open(self, ctx: tr.Context) -> None:
            self.where = ctx.subtask

        def map(self, value: int) -> int:
            return 1 // (30 - value)

        def close(self) -> None:
            closed.append(self.where)

    env = tr.Environment(parallelism=3)
    numbers = env.from_source(tr.sources.Sequence(0, 60)).key_by(lambda x: x % 5).process(lambda v, ctx: [v])
    numbers.map(Fragile(), name="fragile").sink_to(tr.sinks.Callback(lambda record: None))
    plan = env._plan(env._pending())
    simulation = Simulation(plan, loading(env, plan), seed=seed)
    assert simulation.run() is tr.JobStatus.FAILED
    assert simulation.coordinator.cause is not None and simulation.coordinator.cause.operator == "fragile"
    assert simulation.workers() == []
    assert simulation.coordinator.left_behind == []
    assert sorted(closed) == [0, 1, 2]


@pytest.mark.parametrize("turns", range(0, 140, 7))
def test_a_job_may_be_cancelled_at_any_moment(turns: int) -> None:
    env = tr.Environment(parallelism=2)
    endless = env.from_source(tr.sources.Sequence(0, None)).key_by(lambda x: x % 5).count()
    endless.sink_to(tr.sinks.Callback(lambda record: None))
    plan = env._plan(env._pending())
    simulation = Simulation(plan, loading(env, plan), seed=turns)
    simulation.coordinator.start(simulation.now)
    simulation.coordinate(simulation.driver)
    for _ in range(turns):
        simulation.turn()
    simulation.coordinator.cancel(simulation.now)
    simulation.coordinate(simulation.driver)
    while not simulation.coordinator.status.final:
        simulation.turn()
    assert simulation.coordinator.status is tr.JobStatus.CANCELLED
    assert simulation.coordinator.cause is None
    assert simulation.workers() == []


def loading(env: tr.Environment, plan: Plan) -> Callable[[], JobSpec]:
    """What gives each worker the job, with function objects of its own."""
    return lambda: JobSpec("simulated", 1, with_own_functions(plan, keep_first=False), env.memory)
