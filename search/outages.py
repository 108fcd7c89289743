"""Search for records that become visible more or less than once, where the store of files is out of reach now and then.

A real sink of files (lines, CSV, JSON, Parquet; in folders by a column, of a size, held over checkpoints, compressed) writes
to a store in memory, as to any that fsspec knows: one that renames, or one that copies. In some jobs a real source follows
files that come to that store, too. For some turns at a time the store refuses requests, or carries them out and gives no
answer. Workers and drivers die as in any scenario. Readers take files away as soon as they see them, but for those of a
store that copies: there they look. In the end, readers must have seen every record once, in its folder.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

import tailrace as tr
from search.drawn_faults import drawn_faults
from search.scenarios import LIMITS, MS, NETWORKS, strategy
from search.seeds import SearchOutcome, run_seeds
from search.watchers.checker import WatchedFiles
from tailrace.connectors.files.newfiles import NewFiles
from tailrace.connectors.publishing import one_by_one
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import TailraceError
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation

PROTOCOL = "outages"
TURNS = 60_000
TROUBLED = TURNS // 20
"""Number of turns after which the store is in no trouble any more."""
N = 60
FOLDERS = 3
WAITING = 2_000 * MS
"""Microseconds after the last file and the last trouble, after which what is not published counts as lost."""


@dataclass(frozen=True)
class Files:
    """The files that a job writes and reads."""

    kind: str
    """The class of the sink."""
    copies: bool
    """True if the store copies files, and does not rename them."""
    follows: bool
    """True if the records come from files that are followed in the store."""
    options: dict[str, Any]
    """Options of the sink."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Files:
        """Files by chance; in every third job lines of one file for each checkpoint."""
        kind = rng.choice(["TextFiles", "TextFiles", "Csv", "Json", "Parquet"])
        options: dict[str, Any] = {}
        if kind != "TextFiles" and rng.random() < 0.6:
            options["partition_by"] = "part"
        if kind in ("Csv", "Json"):
            options["compression"] = rng.choice([None, "gzip", "zstd"])
        if rng.random() < 0.6:
            seconds = rng.choice([None, 0.002, 0.008, 0.03])
            options["roll"] = tr.Roll(bytes=rng.choice([None, 1, 60, 400]), seconds=seconds)
        return cls(kind, rng.random() < 0.3, rng.random() < 0.4, options)

    def sink(self) -> Any:
        """The sink."""
        schema = [] if self.kind == "TextFiles" else ["n long, part int, text string"]
        return getattr(tr.sinks, self.kind)(f"{PROTOCOL}://out", *schema, **self.options)

    def record(self, n: Any) -> Any:
        """The record of a number, or of a line with it."""
        return str(n) if self.kind == "TextFiles" else (int(n), int(n) % FOLDERS, "x" * (int(n) % 50))


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
    world: ClassVar[Simulation | None] = None
    """The simulation whose clock is that of files."""

    @classmethod
    def monotonic(cls) -> float:
        """Seconds of the simulation."""
        return 0.0 if cls.world is None else cls.world.now / 1e6

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace(f"{PROTOCOL}://", "memory://")))

    def info(self, path: str, **options: Any) -> Any:
        return self._request(lambda: super(Store, self).info(path, **options))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self._request(lambda: super(Store, self).ls(path, detail=detail, **options))

    def find(self, path: str, *rest: Any, **options: Any) -> Any:
        return self._request(lambda: super(Store, self).find(path, *rest, **options))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Renames a file, as a whole or not at all."""

        def rename() -> None:
            one, two = self._strip_protocol(path1), self._strip_protocol(path2)
            if one not in self.store:
                raise FileNotFoundError(path1)
            self.store[two] = self.store.pop(one)

        self._request(rename)

    def _open(self, path: str, mode: str = "rb", *rest: Any, **options: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, *rest, **options)
        # Each reader has a place of its own.
        return self._request(lambda: io.BytesIO(super(Store, self)._open(path, mode, *rest, **options).getvalue()))

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self._request(lambda: super(Store, self).cp_file(path1, path2, **options))

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
    files = Files.drawn(random.Random(f"tailrace files {seed}"))
    with _store(rng, files):
        seen: Counter[str] = Counter()
        world = Store.world = _world(seed, rng, files)
        coming = _Coming(random.Random(f"tailrace coming {seed}")) if files.follows else None
        try:
            world.start()
            while not world.coordinator.status.final:
                _weather(world, rng)
                world.turn()
                if not files.copies and rng.random() < 0.02:
                    seen += _taken()
                if coming is not None:
                    coming.go_on(world, seen, files.copies)
            if files.follows:
                world.drain()
        except TailraceError as error:
            outcome.wrong.append(f"{type(error).__name__}: {error.args[0]}")
        Store.trouble, Store.world = 0.0, None
        seen += _taken()
        outcome.covered.update(world.covered)
        outcome.covered["refused by the store of a sink"] += Store.refused
        outcome.covered.update([f"wrote {files.kind}", *(f"with {name}" for name, one in files.options.items() if one)])
        outcome.covered["followed files of a store"] += files.follows
        outcome.covered["copied files of a store"] += files.copies
        outcome.wrong += _judge(world, seen, files)
    return outcome


class _Coming:
    """Files that come to the store, one by one, until all records are there."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.next, self.last = chance, 0, 0

    def go_on(self, world: Simulation, seen: Counter[str], stays: bool) -> None:
        """Maybe adds a file. Cancels the job when all records were seen, or when that takes too long. `stays`: nothing takes
        files away."""
        if self.next < N:
            if self.chance.random() < 0.01:
                end = min(N, self.next + self.chance.choice([1, 3, 12]))
                folder = self.chance.choice(["", "a/", "a/b/"])
                lines = "".join(f"{n}\n" for n in range(self.next, end))
                name = f"/in/{folder}{self.next}.txt"
                Store.store[name] = MemoryFile(fsspec.filesystem(PROTOCOL), name, lines.encode())
                self.next, self.last = end, world.now
        elif world.turns % 64 == 0:
            if world.turns <= TROUBLED:
                self.last = world.now
            found = (_taken(away=False) if stays else seen).total()
            if found >= N or world.now > self.last + WAITING:
                world.coordinator.cancel(world.now)
                world.coordinate(world.driver)


def look(
    seeds: Iterable[int], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[SearchOutcome]]:
    """Runs these seeds, for at most so many seconds. Returns (counts of what was covered, outcomes that went wrong)."""
    return run_seeds(seeds, carry_out, stop=stop, seconds=seconds)


@contextmanager
def _store(rng: random.Random, files: Files) -> Iterator[None]:
    fsspec.register_implementation(PROTOCOL, Store, clobber=True)
    Store.store.clear()
    Store.chance, Store.trouble, Store.refused = random.Random(rng.random()), 0.0, 0
    clock = SimpleNamespace(monotonic=Store.monotonic)
    with (
        mock.patch("tailrace.connectors.remotefiles._RENAMING", set() if files.copies else {PROTOCOL}),
        mock.patch("tailrace.connectors.folders._at_once", one_by_one),  # threads would take turns as they like
        mock.patch.object(NewFiles, "_submit", _at_once),
        mock.patch("tailrace.connectors.filesinks.time", clock),
        mock.patch("tailrace.connectors.files.holding.time", clock),
    ):
        yield


def _at_once(self: NewFiles, function: Callable[[str], Any], place: str) -> Future[Any]:
    """A list of the store, without a thread."""
    found: Future[Any] = Future()
    try:
        found.set_result(function(place))
    except OSError as error:
        found.set_exception(error)
    return found


def _world(seed: int, rng: random.Random, files: Files) -> Simulation:
    env = tr.Environment(parallelism=rng.choice([1, 2, 3]), checkpoint=tr.CheckpointConfig(dir="memory"))
    rate = rng.choice([None, 6_000, 3_000])
    if files.follows:
        numbers = env.from_source(tr.sources.TextFiles(f"{PROTOCOL}://in", follow=True, poll=0.005))
    else:
        numbers = env.from_source(tr.sources.Sequence(0, N, rate=rate))
    records = numbers.rebalance()
    (records if files.kind == "TextFiles" else records.map(files.record)).sink_to(files.sink(), uid="lines")
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
    if world.turns > TROUBLED:
        Store.trouble = 0.0
    elif rng.random() < 0.02:
        Store.trouble = rng.choice([0.0, 0.0, 0.1, 0.5, 1.0])


def _taken(away: bool = True) -> Counter[str]:
    """Records of the files that a reader sees, and takes away if that is wanted."""
    found: Counter[str] = Counter()
    for name in [name for name in Store.store if name.startswith("/out/") and "/." not in name]:
        found.update(_records_of(name, Store.store[name].getvalue()))
        if away:
            del Store.store[name]
    return found


def _records_of(name: str, data: bytes) -> Iterator[str]:
    """The numbers in a file, and the folder of those that are in a wrong one."""
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    elif name.endswith(".zst"):
        data = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    if ".txt" in name:
        yield from data.decode().splitlines()
        return
    if ".json" in name:
        rows = [msgspec.json.decode(line) for line in data.splitlines()]
    elif ".csv" in name:
        rows = list(csv.DictReader(io.StringIO(data.decode())))
    else:
        rows = pq.read_table(io.BytesIO(data)).to_pylist()
    folder = name.split("/")[-2]
    for row in rows:
        n = int(row["n"])
        right = row["text"] == "x" * (n % 50) and f"part={row.get('part', n % FOLDERS)}" == f"part={n % FOLDERS}"
        right = right and folder in ("out", f"part={n % FOLDERS}") and ("part" in row) == (folder == "out")
        yield str(n) if right else f"{row} in {folder}"


def _judge(world: Simulation, seen: Counter[str], files: Files) -> Iterator[str]:
    status, cause = world.coordinator.status, world.coordinator.cause
    if status is not (JobStatus.CANCELLED if files.follows else JobStatus.FINISHED):
        yield f"the job ended as {status}: {cause.message if cause is not None else 'no cause'}"
    expected = Counter(str(i) for i in range(N))
    lost, more = expected - seen, seen - expected
    if lost:
        yield f"{lost.total()} of {N} lines were never seen, as {min(lost)}"
    if more:
        yield f"{more.total()} lines were seen once more, as {min(more)}"
