"""Search for records that become visible more or less than once, or out of order, where sinks publish into a server: slowly,
beside the steps of their worker, and with an answer or without one.

Each worker publishes what its own subtasks have prepared. By chance the server is away for long, refuses a call, or carries
it out and gives no answer. Workers and drivers die as in any scenario. Sinks by themselves are no reason for a restart, and
do not keep sources from reading.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import tailrace as tr
from search.drawn_faults import drawn_faults
from search.scenarios import LIMITS, MS, NETWORKS, strategy
from search.seeds import SearchOutcome, run_seeds
from search.watchers.checker import BOOKS, Book, ServerLedger, WatchedFiles, check_leftovers, check_records
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import TailraceError
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Conditions

TURNS = 20_000
N = 60
BOOK = "servers"


def carry_out(seed: int) -> SearchOutcome:
    """Runs a job whose sinks publish into a server."""
    rng, outcome = random.Random(f"tailrace servers {seed}"), SearchOutcome("servers", seed)
    book, conditions = Book(), conditions_of(rng)
    BOOKS[BOOK], refused = book, conditions.refused
    faults = drawn_faults(rng, True) if rng.random() < 0.6 else ()
    replaces = rng.random() < 0.5
    if replaces:
        faults += tuple(kill_of(rng) for _ in range(rng.randint(0, 2)))
    world = simulation_of(seed, rng, conditions, faults, replaces, ServerLedger(BOOK), WatchedFiles([book]))
    try:
        world.start()
        while not world.coordinator.status.final:
            change_weather(world, rng, conditions, refused)
            world.turn()
    except TailraceError as error:
        outcome.wrong.append(f"{type(error).__name__}: {error.args[0]}")
    outcome.covered.update(world.covered)
    outcome.covered.update(book.counts)
    outcome.wrong += _judge(world, book)
    if not faults and world.covered["restarted"]:
        outcome.wrong.append("the job was restarted, and nothing but its sinks has failed")
    return outcome


def change_weather(world: Simulation, rng: random.Random, conditions: Conditions, refused: float) -> None:
    """Draws how often the server refuses. In the end it does not."""
    if world.turns > TURNS // 7:
        conditions.refused = 0.0
    elif rng.random() < 0.01:
        conditions.refused = rng.choice([0.0, refused, refused, 1.0])


def look(
    seeds: Iterable[int], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[SearchOutcome]]:
    """Runs these seeds, for at most so many seconds. Returns (counts of what was covered, outcomes that went wrong)."""
    return run_seeds(seeds, carry_out, stop=stop, seconds=seconds)


def kill_of(rng: random.Random) -> Fault:
    """The loss of a worker that publishes."""
    anchor = rng.choice(["Publish", "commit 1 done", "commit 2 done", "commit 3 done"])
    return Fault(rng.randint(0, 30), "kill", rng.randint(0, 5), after=anchor)


def conditions_of(rng: random.Random) -> Conditions:
    """A world whose sinks are slow or fail, or both."""
    slow = rng.choice([(0, 0), (1, 500), (1, 8 * MS), (5 * MS, 40 * MS)])
    network = NETWORKS[rng.choice(sorted(NETWORKS))]
    return replace(network, max_turns=TURNS, publishing=slow, refused=rng.choice([0.0, 0.1, 0.5]))


def simulation_of(
    seed: int,
    rng: random.Random,
    conditions: Conditions,
    faults: Sequence[Fault],
    replaces: bool,
    sink: tr.Sink,
    files: WatchedFiles,
    **options: Any,
) -> Simulation:
    """A simulation of a job that publishes numbers by a sink."""
    env = tr.Environment(parallelism=rng.choice([1, 2, 3]), checkpoint=tr.CheckpointConfig(dir="memory"))
    numbers = env.from_source(tr.sources.Sequence(0, N, rate=rng.choice([None, 6_000, 3_000])))
    numbers.rebalance().sink_to(sink, uid="server")
    settings = CheckpointSettings(
        interval=rng.choice([1, 3]) * MS,
        max_concurrent=rng.choice([1, 2, 3]),
        keep=rng.choice([1, 3]),
        tolerated_failures=10_000,
    )
    return prepared_simulation(
        env,
        **{"name": "servers", "run_id": "run", **options},
        seed=seed,
        conditions=conditions,
        limits=LIMITS,
        keep_trace=False,
        checkpoints=settings,
        restarts=lambda: strategy(("fixed", MS)),
        files=files,
        faults=faults,
        replaces=replaces,
        spares=rng.choice([0, 1]),
        depth=1,
    )


def _judge(world: Simulation, book: Book) -> Iterator[str]:
    status, cause = world.coordinator.status, world.coordinator.cause
    if status is not JobStatus.FINISHED:
        yield f"the job ended as {status}: {cause.message if cause is not None else 'no cause'}"
    yield from check_records(book, Counter(range(N)))
    yield from check_leftovers(book, world.driver.run_id)
