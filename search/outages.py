"""Search for records that become visible more or less than once, where the store of a sink's files is out of reach now and
then.

The real sink of files writes to a store in memory, as to any that fsspec knows and that can rename. For some turns at a
time the store refuses requests, or carries them out and gives no answer. Workers and drivers die as in any scenario, and
readers take files away as soon as they see them. In the end, readers must have seen every record once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

import tailrace as tr
from search.drawn_faults import drawn_faults
from search.scenarios import LIMITS, MS, NETWORKS, strategy
from search.seeds import SearchOutcome, run_seeds
from search.watchers.checker import WatchedFiles
from tailrace.connectors.publishing import one_by_one
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import TailraceError
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation

PROTOCOL = "outages"
TURNS = 60_000
N = 60


class OutOfReach(ConnectionError):
    """The error for a store that does not answer."""


class Store(MemoryFileSystem):  # type: ignore[misc]
    """The store that the sink writes to. There is one at a time."""

    protocol = PROTOCOL
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    chance: ClassVar[random.Random] = random.Random(0)
    trouble: ClassVar[float] = 0.0
    """Probability with which a request goes wrong."""
    refused: ClassVar[int] = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace(f"{PROTOCOL}://", "memory://")))

    def info(self, path: str, **options: Any) -> Any:
        return self._request(lambda: super(Store, self).info(path, **options))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self._request(lambda: super(Store, self).ls(path, detail=detail, **options))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Renames a file, as a whole or not at all."""

        def rename() -> None:
            one, two = self._strip_protocol(path1), self._strip_protocol(path2)
            if one not in self.store:
                raise FileNotFoundError(path1)
            self.store[two] = self.store.pop(one)

        self._request(rename)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._request(lambda: super(Store, self).pipe_file(path, value, **options))

    def rm_file(self, path: str) -> None:
        self._request(lambda: super(Store, self).rm_file(path))

    def _request(self, act: Any) -> Any:
        wrong = Store.chance.random() < Store.trouble
        if wrong and Store.chance.random() < 0.5:
            Store.refused += 1
            raise OutOfReach("no answer")
        found = act()
        if wrong:
            Store.refused += 1
            raise OutOfReach("no answer, and it was done")
        return found


def carry_out(seed: int) -> SearchOutcome:
    """Runs a job while its store comes and goes."""
    rng, outcome = random.Random(f"tailrace outages {seed}"), SearchOutcome("outages", seed)
    with _store(rng):
        seen: Counter[str] = Counter()
        world = _world(seed, rng)
        try:
            world.start()
            while not world.coordinator.status.final:
                _weather(world, rng)
                world.turn()
                if rng.random() < 0.02:
                    seen += _take()
        except TailraceError as error:
            outcome.wrong.append(f"{type(error).__name__}: {error.args[0]}")
        Store.trouble = 0.0
        seen += _take()
        outcome.covered.update(world.covered)
        outcome.covered["refused by the store of a sink"] += Store.refused
        outcome.wrong += _judge(world, seen)
    return outcome


def look(
    seeds: Iterable[int], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[SearchOutcome]]:
    """Runs these seeds, for at most so many seconds. Returns (counts of what was covered, outcomes that went wrong)."""
    return run_seeds(seeds, carry_out, stop=stop, seconds=seconds)


@contextmanager
def _store(rng: random.Random) -> Iterator[None]:
    fsspec.register_implementation(PROTOCOL, Store, clobber=True)
    Store.store.clear()
    Store.chance, Store.trouble, Store.refused = random.Random(rng.random()), 0.0, 0
    with (
        mock.patch("tailrace.connectors.remotefiles._RENAMING", {PROTOCOL}),
        mock.patch("tailrace.connectors.folders._at_once", one_by_one),  # threads would take turns as they like
    ):
        yield


def _world(seed: int, rng: random.Random) -> Simulation:
    env = tr.Environment(parallelism=rng.choice([1, 2, 3]), checkpoint=tr.CheckpointConfig(dir="memory"))
    numbers = env.from_source(tr.sources.Sequence(0, N, rate=rng.choice([None, 6_000, 3_000])))
    numbers.rebalance().sink_to(tr.sinks.TextFiles(f"{PROTOCOL}://out"), uid="lines")
    settings = CheckpointSettings(
        interval=rng.choice([1, 3]) * MS,
        max_concurrent=rng.choice([1, 2, 3]),
        keep=rng.choice([1, 3]),
        tolerated_failures=10_000,
    )
    network = NETWORKS[rng.choice(sorted(NETWORKS))]
    return prepared_simulation(
        env,
        name="outages",
        run_id="run",
        seed=seed,
        conditions=replace(network, max_turns=TURNS),
        limits=LIMITS,
        keep_trace=False,
        checkpoints=settings,
        restarts=lambda: strategy(("fixed", MS)),
        files=WatchedFiles(),
        faults=drawn_faults(rng, True) if rng.random() < 0.6 else (),
    )


def _weather(world: Simulation, rng: random.Random) -> None:
    """Draws whether the store is in trouble. In the end it is not."""
    if world.turns > TURNS // 20:
        Store.trouble = 0.0
    elif rng.random() < 0.02:
        Store.trouble = rng.choice([0.0, 0.0, 0.1, 0.5, 1.0])


def _take() -> Counter[str]:
    """Lines of the files that a reader sees and takes away."""
    lines: Counter[str] = Counter()
    for name in [name for name in Store.store if not name.rpartition("/")[2].startswith(".")]:
        lines.update(Store.store.pop(name).getvalue().decode().split())
    return lines


def _judge(world: Simulation, seen: Counter[str]) -> Iterator[str]:
    status, cause = world.coordinator.status, world.coordinator.cause
    if status is not JobStatus.FINISHED:
        yield f"the job ended as {status}: {cause.message if cause is not None else 'no cause'}"
    expected = Counter(str(i) for i in range(N))
    lost, more = expected - seen, seen - expected
    if lost:
        yield f"{lost.total()} of {N} lines were never seen, as {min(lost)}"
    if more:
        yield f"{more.total()} lines were seen once more, as {min(more)}"
