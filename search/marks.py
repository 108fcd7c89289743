"""Search for records that a server has more or less than once, where a transactional sink writes them with marks.

The sink is a real `TransactionalSink`; its server is in memory, and writes the records of a transaction and its mark at
once. It is slow or away, or gives no answer, as in `search.servers`; workers and drivers die. Beside the job, processes that
should be dead publish once more what was published long ago. Then the job is started again from one of its checkpoints, the
newest or an older one, as another run, or as another job in a folder of its own. The server must have each transaction up
to the last checkpoint once, with each record in one of them.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.drawn_faults import drawn_faults
from search.seeds import SearchOutcome, run_seeds
from search.servers import N, change_weather, conditions_of, kill_of, simulation_of
from search.starts import manifests
from search.watchers.checker import WatchedFiles
from tailrace.connectors.transactional import PreparedTransaction, Scope, TransactionalSink
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import TailraceError
from tailrace.testing.simulator import Simulation


@dataclass
class Server:
    """A server with transactions and marks."""

    marks: dict[str, int] = field(default_factory=dict)
    """Name of a scope -> its mark."""
    written: list[bytes] = field(default_factory=list)
    """The transactions, as they were prepared, in the order in which they were written."""
    chance: random.Random = field(default_factory=random.Random)
    trouble: float = 0.0
    """Probability with which an answer is lost."""
    counts: Counter[str] = field(default_factory=Counter)


SERVERS: dict[str, Server] = {}
"""The one server, by its name, so that pickled copies of a sink find it."""


class Marked(TransactionalSink):
    """A sink into the server."""

    description = "marked"

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        return (ConnectionError,)

    def encode(self, batch: Any) -> Iterable[bytes]:
        return [str(one).encode() for one in batch]

    def transaction(self, scope: Scope) -> Connection:
        return Connection(SERVERS["server"], scope)


class Connection:
    """A connection to the server."""

    def __init__(self, server: Server, scope: Scope) -> None:
        self.server, self.scope = server, scope

    def last(self) -> int | None:
        return self.server.marks.get(self.scope.name)

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        server = self.server
        if server.chance.random() < server.trouble / 2:
            raise ConnectionError("no answer")
        server.written.append(PreparedTransaction(self.scope, counter, 0, list(pieces)).encode())
        server.marks[self.scope.name] = counter
        if server.chance.random() < server.trouble:
            server.counts["lost the answer of a server"] += 1
            raise ConnectionError("no answer, and it was done")

    def close(self) -> None:
        pass


def carry_out(seed: int) -> SearchOutcome:
    """Runs a job whose sink writes with marks, and starts it again."""
    rng, outcome = random.Random(f"tailrace marks {seed}"), SearchOutcome("marks", seed)
    server = SERVERS["server"] = Server(chance=random.Random(f"tailrace server {seed}"), trouble=rng.choice([0, 0.3]))
    files = WatchedFiles()
    for run in range(rng.choice([1, 2, 2, 3])):
        found = manifests(files.contents)
        if run and not found:
            break
        options: dict[str, Any] = {"run_id": f"run{run}"}
        if run:
            options["origin"] = files, found[-1] if rng.random() < 0.3 else rng.choice(found)
            outcome.covered["started again from an older checkpoint"] += options["origin"][1] != found[-1]
        if run and rng.random() < 0.4:  # another job, whose incarnations begin anew
            files, options["name"] = WatchedFiles(url=f"memory:{run}"), f"another{run}"
        world = _run(seed * 10 + run, rng, files, outcome, options)
        if outcome.wrong:
            break
        outcome.covered["started again from a checkpoint"] += run > 0
        outcome.wrong += _judged(world, files, server)
    outcome.covered.update(server.counts)
    return outcome


def look(
    seeds: Iterable[int], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[SearchOutcome]]:
    """Runs these seeds, for at most so many seconds. Returns (counts of what was covered, outcomes that went wrong)."""
    return run_seeds(seeds, carry_out, stop=stop, seconds=seconds)


def _run(
    seed: int, rng: random.Random, files: WatchedFiles, outcome: SearchOutcome, options: dict[str, Any]
) -> Simulation:
    """One run, until its end."""
    conditions = conditions_of(rng)
    refused, replaces = conditions.refused, rng.random() < 0.5
    faults = drawn_faults(rng, True) if rng.random() < 0.6 else ()
    if replaces:
        faults += tuple(kill_of(rng) for _ in range(rng.randint(0, 2)))
    world = simulation_of(seed, rng, conditions, faults, replaces, Marked(), files, **options)
    try:
        world.start()
        while not world.coordinator.status.final:
            change_weather(world, rng, conditions, refused)
            if rng.random() < 0.02:
                _publish_again(rng, SERVERS["server"])
            world.turn()
    except TailraceError as error:
        outcome.wrong.append(f"{type(error).__name__}: {error.args[0]}")
    outcome.covered.update(world.covered)
    return world


def _publish_again(rng: random.Random, server: Server) -> None:
    """A process that should be dead publishes once more some of what was published."""
    some = rng.sample(server.written, min(len(server.written), rng.choice([1, 2, 5])))
    if not some:
        return
    trouble, server.trouble = server.trouble, 0.0
    sink: Marked = pickle.loads(pickle.dumps(Marked()))
    sink.publish(some)
    sink.close()
    server.trouble = trouble
    server.counts["published again by a process that should be dead"] += len(some)


def _judged(world: Simulation, files: WatchedFiles, server: Server) -> Iterator[str]:
    status, cause = world.coordinator.status, world.coordinator.cause
    if status is not JobStatus.FINISHED:
        yield f"the job ended as {status}: {cause.message if cause is not None else 'no cause'}"
        return
    yield from files.wrong
    newest = manifests(files.contents)[-1]
    written = Counter(map(_name_of, map(PreparedTransaction.decode, server.written)))
    twice = [name for name, times in written.items() if times > 1]
    if twice:
        yield f"{len(twice)} transactions were written twice, as {min(twice)}"
    lineage = sorted(map(PreparedTransaction.decode, files.lineage[newest]), key=lambda one: one.counter)
    missing = [name for one in lineage if (name := _name_of(one)) not in written]
    if missing:
        yield f"{len(missing)} of {len(lineage)} transactions were never written, as {missing[0]}"
    records = Counter(int(piece) for one in lineage for piece in one.pieces)
    if records != Counter(range(N)):
        yield f"the transactions have other records than they must: {records - Counter(range(N))} too many"


def _name_of(one: PreparedTransaction) -> str:
    """A transaction with its records, as text."""
    return f"{one.scope.name} {one.counter}: {b','.join(one.pieces).decode()}"
