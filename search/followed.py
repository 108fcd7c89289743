"""Search for lines that are published more or less than once, where a job follows files that change while it runs.

Programs append to real files in a folder, other files appear there, and each is rotated in one of the ways of logrotate: a
rename, or a copy that is followed by a cut. Workers and drivers die as in any scenario, and in some jobs a lost worker is
replaced while the others go on. In the end every line that was written must have been published once.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tailrace as tr
from search.drawn_faults import drawn_faults
from search.scenarios import LIMITS, MS, NETWORKS, drawn_settings, is_expected, strategy
from search.seeds import SearchOutcome, run_seeds
from search.starts import SINK
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import TailraceError
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation

TURNS = 150_000
WRITING = (500 * MS, 1_500 * MS, 4_000 * MS)
"""Microseconds for which files change. A reader looks ten times a second."""
WAITING = 20_000 * MS
"""Microseconds after the last change after which what is not published counts as lost."""


class Logs:
    """A program that logs, and what rotates its file, by chance. Each line is another one."""

    def __init__(self, folder: Path, chance: random.Random, how: str, heading: bool, name: str = "app") -> None:
        self.path, self.chance, self.how, self.heading = folder / f"{name}.log", chance, how, heading
        self.name = name
        self.written: list[str] = []
        self.file = self.path.open("a")
        self.begin()

    def begin(self) -> None:
        """Begins a file."""
        if self.heading:  # a table with its names of columns, the same in each file
            self.written.append("id,text")
            self.file.write("id,text\n")

    def write(self) -> None:
        """Writes some lines. The last one may be in the file in part."""
        for _ in range(self.chance.choice([1, 1, 3, 40])):
            line = f"{self.name}:{len(self.written)}:" + "x" * self.chance.choice([0, 0, 5, 300])
            self.written.append(line)
            self.file.write(line + "\n")
        if self.chance.random() < 0.5:
            self.file.flush()

    def rotate(self) -> None:
        """Rotates the file."""
        if self.how == "copytruncate":
            self.file.flush()
        if self.how == "copytruncate" and not self.path.stat().st_size:
            return  # logrotate does not rotate what is empty
        for i in range(60, 0, -1):  # more than there are: what is deleted unread is lost
            if self._older(i).exists():
                self._older(i).rename(self._older(i + 1))
        if self.how == "copytruncate":
            shutil.copy(self.path, self._older(1))
            os.truncate(self.path, 0)
            self.begin()
            return
        self.path.rename(self._older(1))
        if self.chance.random() < 0.5:
            self.write()  # into the renamed file
        self.file.close()
        self.file = self.path.open("a")
        self.begin()

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def end(self) -> None:
        """Writes what is left, and closes the file."""
        self.file.close()


def carry_out(seed: int) -> SearchOutcome:
    """Runs a job that follows files while they change."""
    rng, outcome = random.Random(f"tailrace followed {seed}"), SearchOutcome("followed", seed)
    name = f"followed {seed}"
    book = BOOKS[name] = Book()
    with tempfile.TemporaryDirectory(prefix="tailrace-followed-") as folder:
        changing = _Changing(Path(folder), rng, outcome)
        world = _world(seed, rng, folder, Ledger(name), book)
        try:
            world.start()
            until = world.now + rng.choice(WRITING)
            while not world.coordinator.status.final:
                if world.now < until:
                    changing.change()
                elif not changing.over:
                    changing.end()
                elif world.turns % 64 == 0 and (changing.is_read(book) or world.now > until + WAITING):
                    world.coordinator.cancel(world.now)
                    world.coordinate(world.driver)
                world.turn()
            world.drain()
        except TailraceError as error:
            outcome.wrong.append(f"{type(error).__name__}: {error.args[0]}")
        finally:
            changing.end()
            del BOOKS[name]
        outcome.covered.update(world.covered)
        outcome.wrong += [*book.wrong, *_judged(world, changing.written, Counter(book.records()))]
    return outcome


def look(
    seeds: Iterable[int], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[SearchOutcome]]:
    """Runs these seeds, for at most so many seconds. Returns (counts of what was covered, outcomes that went wrong)."""
    return run_seeds(seeds, carry_out, stop=stop, seconds=seconds)


class _Changing:
    """A folder whose files change."""

    def __init__(self, folder: Path, rng: random.Random, outcome: SearchOutcome) -> None:
        self.folder, self.rng, self.covered = folder, rng, outcome.covered
        self.how, self.heading = rng.choice(["rename", "copytruncate"]), rng.random() < 0.3
        self.busy = rng.choice([0.005, 0.02, 0.1])
        self.logs: list[Logs] = []
        self.over = False
        self.appear()

    def appear(self) -> None:
        """Makes a file."""
        logs = Logs(self.folder, self.rng, self.how, self.heading, f"app{len(self.logs)}")
        logs.write()
        logs.file.flush()
        self.logs.append(logs)
        self.covered["a followed file appeared"] += 1

    def change(self) -> None:
        """Maybe changes one of the files, or makes another one."""
        if self.rng.random() >= self.busy:
            return
        what, logs = self.rng.choice(["write", "write", "write", "rotate", "appear"]), self.rng.choice(self.logs)
        if what == "write":
            logs.write()
        elif what == "rotate" and self.covered["rotated a followed file"] < 40:
            logs.rotate()
            self.covered["rotated a followed file"] += 1
        elif what == "appear" and len(self.logs) < 4:
            self.appear()

    def end(self) -> None:
        """Writes what is left."""
        self.over = True
        for logs in self.logs:
            logs.end()

    @property
    def written(self) -> Counter[str]:
        """All lines."""
        return Counter(line for logs in self.logs for line in logs.written)

    def is_read(self, book: Book) -> bool:
        """True if as many lines were published as were written."""
        return len(book.records()) >= self.written.total()


def _world(seed: int, rng: random.Random, folder: str, sink: Ledger, book: Book) -> Simulation:
    env = tr.Environment(parallelism=rng.choice([1, 2, 3]), checkpoint=tr.CheckpointConfig(dir="memory"))
    lines = env.from_source(tr.sources.TextFiles(rng.choice([folder, f"{folder}/*.log*"]), follow=True), uid="lines")
    (lines.rebalance() if rng.random() < 0.7 else lines).map(_itself).sink_to(sink, uid=SINK)
    network = rng.choice(sorted(NETWORKS))
    settings = drawn_settings(rng, rng.choice([10, 30, 100]) * MS, network)
    options: dict[str, Any] = {}
    faults = drawn_faults(rng, True) if rng.random() < 0.8 else ()
    if rng.random() < 0.4:
        options = {"replaces": True, "depth": 1, "spares": rng.choice([0, 1])}
        turns = sorted(rng.randint(10, 2_000) for _ in range(rng.choice([1, 2, 3])))
        faults = tuple(Fault(turn, "kill", which=rng.randint(0, 5)) for turn in turns)
    return prepared_simulation(
        env,
        name="followed",
        run_id="run",
        seed=seed,
        conditions=replace(NETWORKS[network], max_turns=TURNS),
        limits=LIMITS,
        keep_trace=False,
        checkpoints=replace(settings, tolerated_failures=10_000),
        restarts=lambda: strategy(("fixed", MS)),
        files=WatchedFiles([book]),
        faults=faults,
        **options,
    )


def _itself(line: str) -> str:
    return line


def _judged(world: Simulation, written: Counter[str], read: Counter[str]) -> Iterator[str]:
    status, cause = world.coordinator.status, world.coordinator.cause
    if status is not JobStatus.CANCELLED:
        yield f"the job ended as {status}: {cause.message if cause is not None else 'no cause'}"
    for one in world.causes:
        if not is_expected(one):
            yield f"the job was restarted because of {one.kind}: {one.message}"
    lost, more = written - read, read - written
    if lost:
        yield f"{lost.total()} of {written.total()} lines were never published, as {min(lost)}"
    if more:
        yield f"{more.total()} lines were published once more, as {min(more)}"
