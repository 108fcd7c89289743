"""Programs that change between two starts: `python -m search.changes --seeds 0:400`.

A seed draws two programs, which have an operator of the same uid, and a moment at which a job of the first one is left
alone. A dry run and a start of the second one, from the newest checkpoint, must agree. What fits must run to its end, and
what does not fit must be refused before anything runs. A job that runs must give each number once, counted with what the
first one has published. Objects in state and in records must have each value in the field that it was given to. A program
that has not changed must fit.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import tailrace as tr
from search.program_versions import ALIKE, FORMS, OPERATORS, PLACES, build, define, forget
from search.scenarios import LIMITS, NETWORKS
from search.seeds import report, run_seeds, seeds_of
from search.watchers.checker import BOOKS, Book
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Never
from tailrace.errors import IncompatibleState
from tailrace.statedata.fitting import restore_check
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.store import Store
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.simulator import Simulation

N = 240
"""Count of the numbers that a source gives."""
_FIELDS = ("a", "b", "c", "d")
_TURNS = 400_000


@dataclass(frozen=True)
class Version:
    """One version of a program."""

    operator: str
    """Name of the operator that has the uid, in `program_versions.OPERATORS` or `PLACES`."""
    parallelism: int
    form: str = "dataclass"
    """Form of the class of objects that it holds, of `program_versions.FORMS`; `fields` are its fields or members."""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """Two versions, and the moment at which the first one ends."""

    seed: int
    old: Version
    new: Version
    checkpoints: int
    """Number of complete checkpoints after which the first job is left alone."""
    unaligned: bool
    network: str


@dataclass
class Outcome:
    """Result of a change."""

    change: Change
    wrong: list[str]
    covered: Counter[str]

    @property
    def text(self) -> str:
        """Description of the failure, with the command that repeats it."""
        listed = "\n".join(f"  {one}" for one in self.wrong)
        return f"{self.change}\n{listed}\n  python -m search.changes --seeds {self.change.seed}"


def draw(seed: int) -> Change:
    """The change of a seed."""
    chance = random.Random(f"changes {seed}")
    if chance.random() < 0.5:
        names = sorted(PLACES)
        form = chance.choice(FORMS)
        old = Version(chance.choice(names), chance.choice((1, 2, 3)), form, _some_fields(chance))
        new = replace(old, fields=_change_fields(chance, old.fields))
        new = new if chance.random() < 0.8 else replace(new, form=chance.choice(FORMS))
    else:
        old = Version(chance.choice(sorted(OPERATORS)), chance.choice((1, 2, 3)))
        alike = next((group for group in ALIKE if old.operator in group), (old.operator,))
        among = chance.choices(((old.operator,), alike, sorted(OPERATORS)), (1, 4, 4))[0]
        new = replace(old, operator=chance.choice(among))
    if chance.random() < 0.25:
        new = replace(new, parallelism=chance.choice((1, 2, 3)))
    unaligned, network = chance.random() < 0.5, chance.choice(sorted(NETWORKS))
    return Change(seed, old, new, chance.choice((1, 1, 2, 3, 5)), unaligned, network)


def _some_fields(chance: random.Random) -> tuple[str, ...]:
    return tuple(chance.sample(_FIELDS, chance.randint(1, 3)))


def _change_fields(chance: random.Random, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields as they are, in another order, with some removed, or with new ones at any place."""
    kind = chance.choice(("same", "order", "gone", "new", "any"))
    if kind == "order":
        return tuple(chance.sample(fields, len(fields)))
    if kind == "gone" and len(fields) > 1:
        return tuple(one for one in fields if one != chance.choice(fields)) or fields
    if kind == "new":
        more = chance.choice([one for one in _FIELDS if one not in fields])
        at = chance.randint(0, len(fields))
        return (*fields[:at], more, *fields[at:])
    return _some_fields(chance) if kind == "any" else fields


def run(change: Change) -> Outcome:
    """Runs both versions, and compares."""
    outcome = Outcome(change, [], Counter())
    name = f"changes {change.seed}"
    BOOKS[name] = Book()
    files = MemoryFiles()
    try:
        if _first_life(change, name, files):
            _second_life(change, name, files, outcome)
        else:
            outcome.covered["ended too early"] += 1
    finally:
        del BOOKS[name]
        forget()
    return outcome


def _simulation(change: Change, version: Version, name: str, files: MemoryFiles, life: int) -> Simulation:
    more: dict[str, Any] = {"origin": "latest"} if life else {}
    settings = CheckpointSettings(
        interval=500, tolerated_failures=10_000, keep=2, overtakes_after=0 if change.unaligned else -1
    )
    env = tr.Environment(parallelism=version.parallelism, max_parallelism=16, checkpoint=tr.CheckpointConfig("memory"))
    build(env, version.operator, N, name)
    return prepared_simulation(
        env,
        name="job",
        seed=change.seed * 2 + life,
        conditions=replace(NETWORKS[change.network], max_turns=_TURNS),
        limits=LIMITS,
        keep_trace=False,
        checkpoints=settings,
        restarts=Never,
        files=files,
        tuning=Tuning(window=2_000),
        run_id=f"run{life}",
        **more,
    )


def _first_life(change: Change, name: str, files: MemoryFiles) -> bool:
    """Runs the first version. True where its job was still running when the checkpoints were there."""
    define(change.old.form, change.old.fields)
    job = _simulation(change, change.old, name, files, 0)
    job.start()
    while job.covered["completed a checkpoint"] < change.checkpoints:
        if job.coordinator.status.final:
            if job.coordinator.status is not JobStatus.FINISHED:
                raise AssertionError(f"{change}: the first job failed: {job.coordinator.cause}")
            return False
        job.turn()
    return not job.coordinator.status.final


def _second_life(change: Change, name: str, files: MemoryFiles, outcome: Outcome) -> None:
    define(change.new.form, change.new.fields)
    store = Store("memory", "job", folder=files)
    newest = store.latest()
    assert newest is not None
    env = tr.Environment(parallelism=change.new.parallelism, max_parallelism=16)
    build(env, change.new.operator, N, name)
    wrong, covered = outcome.wrong, outcome.covered
    try:
        check = restore_check(StoredCheckpoint(store, newest[0]), env._plan(env._pending()).graph.nodes, 16)
    except Exception as error:  # whatever is wrong, a dry run reports it and raises nothing
        wrong.append(f"the dry run raises {type(error).__name__}: {error}")
        return
    if newest[1].in_flight:
        covered["had records in flight"] += 1
    try:
        job = _simulation(change, change.new, name, files, 1)
    except IncompatibleState as error:
        covered["refused"] += 1
        if check.fits:
            wrong.append(f"the dry run says that it fits, and the start is refused: {error}")
        if change.old == change.new:
            wrong.append(f"nothing has changed, and the start is refused: {error}")
        return
    job.run()
    if job.coordinator.status is not JobStatus.FINISHED:
        wrong.append(f"the start is not refused, and the job fails ({job.coordinator.cause}); dry run: {check.misfits}")
        return
    covered["went on" if change.old == change.new else "went on, changed"] += 1
    if not check.fits:
        wrong.append(f"the job finishes, and the dry run says: {check.misfits}")
    records = BOOKS[name].records()
    misplaced = [record for record in records if record[1]]
    if misplaced:
        wrong.append(f"objects have values in other fields: {misplaced[:3]}")
    numbers = Counter(record[0] for record in records)
    missing, twice = sum(n not in numbers for n in range(N)), sum(count > 1 for count in numbers.values())
    if missing or twice or set(numbers) - set(range(N)):
        wrong.append(f"{missing} numbers are lost, {twice} are there more than once, of {N}")
    wrong += BOOKS[name].wrong


def look(
    seeds: Iterable[int], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[Outcome]]:
    """Runs these seeds. Returns (counts of what occurred, failures). `stop`: the search ends at the first failure."""
    return run_seeds(seeds, lambda seed: run(draw(seed)), stop=stop, seconds=seconds)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.changes", description=__doc__)
    parser.add_argument("--seeds", default="0:400", help="FIRST:LAST, LAST excluded, or a single seed (default: 0:400)")
    parser.add_argument("--seconds", type=float, help="begin no other seed after this many seconds")
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    seeds, started = seeds_of(options.seeds), time.monotonic()
    return report(*look(seeds, stop=not options.all, seconds=options.seconds), started)


if __name__ == "__main__":
    sys.exit(main())
