"""Stops, drains, savepoints and cancels at moments of chance: `python -m search.stops --seeds 0:200`.

A seed draws a golden program, its settings and its faults as the search does, the requests to the job and when they come,
and faults that come while the job stops. Where the job ends before its records do, another one goes on from the newest
checkpoint, at another parallelism, until all records are read. From each savepoint a job of its own goes on, with the
savepoint's folder alone. Together these jobs must have each result once, whatever was requested, and each answer must be
true when it is given.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from search.campaigns.rescales import SIZES
from search.drawn_faults import calm_clocks, drawn_jumps
from search.ends import once_more
from search.programs.golden import PROGRAMS
from search.scenarios import MS, Scenario, build, is_expected, lacks_slots, scenario
from search.seeds import report, run_seeds, seeds_of
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles, check_records
from search.watchers.clock_watch import ClockWatch
from search.watchers.loops import LoopFiles
from tailrace.coordinator.actions import SavepointEnded, StopEnded
from tailrace.coordinator.durability.stopping import Aim
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import ConfigError, TailraceError
from tailrace.state.manifest import Manifest, decode_manifest
from tailrace.state.paths import SAVEPOINT
from tailrace.statedata.newcheckpoint import CheckpointPlan, complete
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.reading import verify
from tailrace.storage.store import Store
from tailrace.task.contract.events import Step
from tailrace.testing.faults import Fault
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Observer, SimulatedProcess

RUNS = 5
"""Number of runs of a job. The last one receives no requests, and reads all that is left."""
KINDS: dict[str, int] = {
    "stop": 6,
    "drain": 2,
    "savepoint": 3,
    "stop with savepoint": 3,
    "drain with savepoint": 1,
    "cancel": 1,
}
"""Requests to a job, by weight."""
BESIDE = (
    "kill",
    "respawn",
    "freeze",
    "cut-link",
    "crash-driver",
    "freeze-driver",
    "lose-coordinator",
    "storage",
    "move",
)
"""Faults of a job that stops."""
ANCHORS = ("status STOPPING", "status STOPPING", "status FINISHING", "commit", "Publish", "stop: ")
"""Lines of the trace after which these faults come."""


@dataclass(frozen=True)
class Request:
    """A request to a job, after so many turns."""

    turn: int
    kind: str

    @property
    def aim(self) -> Aim:
        """The aim of the request as a stop."""
        return Aim("drain" in self.kind, "" if "savepoint" in self.kind else None)


@dataclass(frozen=True)
class DrawnRun:
    """One run of a job, and the requests to it."""

    scenario: Scenario
    requests: tuple[Request, ...]


def draw(seed: int, program: str | None = None, faults: bool = True) -> list[DrawnRun]:
    """The runs of a seed, in order."""
    rng = random.Random(f"tailrace stops {seed}")
    first = scenario(seed, program, faults)
    first = replace(first, faults=calm_clocks(first.faults))
    settings = first.checkpoints or scenario(0, "counted", False).checkpoints
    assert settings is not None
    settings = replace(
        settings,
        overtakes_after=rng.choice([-1, -1, 0, 0, 300, 3 * MS]),
        interval=rng.choice([2 * MS, settings.interval, None]),
    )
    found = []
    for run in range(RUNS):
        made = replace(
            first,
            checkpoints=settings,
            parallelism=first.parallelism if not run else rng.choice([1, 2, 3]),
            max_turns=150_000,
        )
        made = replace(made, faults=(*(made.faults if not run else ()), *(drawn_beside(rng) if faults else ())))
        asks = [
            Request(rng.randint(1, rng.choice([60, 300, 1_000])), kind)
            for kind in rng.choices([*KINDS], [*KINDS.values()], k=rng.choice([1, 1, 2, 3]))
        ]
        found.append(DrawnRun(made, tuple(sorted(asks, key=lambda ask: ask.turn)) if run < RUNS - 1 else ()))
    return found


def drawn_beside(rng: random.Random) -> list[Fault]:
    """Draws faults that come while a job stops."""
    found = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        kind: Any = rng.choice(BESIDE)
        fault = Fault(
            rng.randint(0, rng.choice([5, 60])),
            kind,
            rng.randint(0, 5),
            rng.randint(0, 5),
            rng.choice([2, 20, 90]) * MS,
            rng.choice(ANCHORS),
        )
        if kind == "storage":
            fault = replace(
                fault,
                duration=rng.choice([20, 100]),
                chance=rng.choice([0.1, 0.6, 1.0]),
                outcome=rng.choice(["error", "unknown-done", "any"]),
            )
        found.append(fault)
    return found


def succeeding(drawn: DrawnRun) -> DrawnRun:
    """The run, changed so that workers of its job wait for another coordinator where theirs is lost. It is lost while the
    job stops, or before."""
    made = drawn.scenario
    rng = random.Random(f"tailrace succeeding {made.seed} {made.faults}")
    losses = [
        Fault(rng.randint(0, 60), "lose-coordinator", duration=rng.choice([0, 2, 12]) * MS, after="status STOPPING")
        for _ in range(rng.choice([1, 1, 2]))
    ]
    losses += [Fault(rng.randint(60, 500), "lose-coordinator") for _ in range(rng.choice([0, 0, 1, 2]))]
    return replace(drawn, scenario=replace(made, faults=(*made.faults, *losses), log=rng.choice([0, 2_000, 1 << 20])))


def losing(drawn: DrawnRun) -> DrawnRun:
    """The run, changed so that lost workers of its job are replaced while the others go on. Some workers are lost while it
    stops, or before. The records that workers keep have little room in memory, or none."""
    made = drawn.scenario
    assert made.checkpoints is not None
    rng = random.Random(f"tailrace losing {made.seed} {made.faults}")
    kills = [
        Fault(rng.randint(0, rng.choice([3, 20, 60])), "kill", rng.randint(0, 5), after="status STOPPING")
        for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    kills += [Fault(rng.randint(0, 400), "kill", rng.randint(0, 5)) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    moves = random.Random(f"tailrace moving {made.seed} {made.faults}")
    kills += [
        Fault(moves.randint(0, 80), "move", moves.randint(0, 5), 0, moves.choice([0, 0, 2, 20]) * MS, "status RUNNING")
        for _ in range(moves.choice([0, 1, 1, 2]))
    ]
    made = replace(
        made,
        parallelism=max(made.parallelism, min(rng.choice([2, 3]), made.max_parallelism - 1)),
        replaces=True,
        depth=rng.choice([1, 2, 3]),
        spares=rng.choice([0, 1, 2]),
        kept=rng.choice([0, 300, made.kept]),
        window=rng.choice([1, 60, 400, made.window]),
        faults=(*(one for one in made.faults if rng.random() < 0.3), *kills),
    )
    return replace(drawn, scenario=made)


def resizing(drawn: DrawnRun) -> DrawnRun:
    """The run, changed so that its job changes its size while it is stopped or saved, or before: on request, by the task
    slots that there are, or by its load."""
    made = drawn.scenario
    rng = random.Random(f"tailrace resizing {made.seed} {made.faults}")
    sized = SIZES[rng.choice(["alone", "alone", *sorted(SIZES)])](made)
    asked = [
        Fault(
            rng.randint(0, rng.choice([5, 60])),
            "rescale",
            rng.choice([1, 2, 3, 4]),
            after=rng.choice(["", "status RUNNING", "status STOPPING", "Trigger", "commit", "resizing"]),
        )
        for _ in range(rng.choice([1, 2, 4]))
    ]
    return replace(drawn, scenario=replace(sized, faults=(*sized.faults, *asked)))


TUNES: dict[str, Callable[[DrawnRun], DrawnRun]] = {"lost": losing, "succeeded": succeeding, "sizes": resizing}
"""Changes of the runs, by name."""


@dataclass
class Outcome:
    """Result of a seed."""

    seed: int
    program: str
    tuned: str = ""
    """The option by which its runs are changed; empty where they are not."""
    wrong: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    covered: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """Description of a failure, with the command that repeats it."""
        lines = [
            f"seed {self.seed}, program {self.program} ({'; '.join(self.story)}):",
            *(f"  {one}" for one in self.wrong[:5]),
        ]
        again = f"python -m search.stops --seeds {self.seed} --program {self.program}{self.tuned}"
        return "\n".join([*lines, f"  again: {again}"])


def run(
    seed: int,
    program: str | None = None,
    *,
    faults: bool = True,
    tune: Callable[[DrawnRun], DrawnRun] = lambda made: made,
) -> Outcome:
    """Runs the jobs of a seed, and checks everything that they did."""
    runs = [tune(one) for one in draw(seed, program, faults)]
    if faults:
        runs = [_with_jumps(one, number) for number, one in enumerate(runs)]
    tuned = next((f" --with {name}" for name, one in TUNES.items() if one is tune), "")
    outcome = Outcome(seed, runs[0].scenario.program, tuned)
    name = f"stops {seed}"
    book = BOOKS[name] = Book()
    files = _Files([book])
    try:
        for number, drawn_run in enumerate(runs):
            if _Run(number, drawn_run, name, book, files, outcome).over() or outcome.wrong:
                break
    except TailraceError as error:
        outcome.wrong.append(f"{type(error).__name__}: {error.args[0]}")
    finally:
        del BOOKS[name]
    outcome.wrong += book.wrong + files.wrong
    return outcome


def _with_jumps(drawn: DrawnRun, number: int) -> DrawnRun:
    """The run, with jumps of the clocks of workers. The driver's clock stays right: the next run begins with it."""
    made = drawn.scenario
    jumps = drawn_jumps(random.Random(f"tailrace jumps {made.seed} {number}"), True, True)
    return replace(drawn, scenario=replace(made, faults=made.faults + jumps))


class _Files(LoopFiles):
    """A storage of checkpoints that knows whether its job was drained: records that had not been read by then never will
    be. Its driver may be gone before the user received an answer."""

    def __init__(self, books: Iterable[Book] = ()) -> None:
        super().__init__(books)
        self.drained = False

    def _make(self, name: str, data: bytes) -> None:
        commits = self.commits
        super()._make(name, data)
        if self.commits > commits:
            made = decode_manifest(data, name)
            self.drained = self.drained or (made.stopped and made.final)


class _Held(Observer):
    """An observer that checks that no task does anything after the cut of a stop."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._done: dict[Any, tuple[Any, ...]] = {}

    def on_event(self, process: SimulatedProcess, event: Any) -> None:
        if not isinstance(event, Step):
            return
        for task in process.machine.tasks():
            place = process.party, task.id
            if task.checkpoints.held_by is None or task.id.vertex != event.vertex:
                if task.checkpoints.held_by is None:
                    self._done.pop(place, None)
                continue
            done = task.checkpoints.held_by, task.work.records_in, task.outbox.records, task.chain.next_processing()
            if self._done.setdefault(place, done) != done and self._done[place][0] == task.checkpoints.held_by:
                self.wrong.append(f"{task.id} did something behind the cut of a stop: {self._done[place]}, then {done}")
            self._done[place] = done


class _Run:
    """One run of a job."""

    def __init__(self, number: int, drawn: DrawnRun, name: str, book: Book, files: _Files, outcome: Outcome) -> None:
        self.number, self.drawn, self.book, self.files, self.outcome = number, drawn, book, files, outcome
        self.name = name
        self.program = PROGRAMS[drawn.scenario.program]
        self.expected = self.program.expected(drawn.scenario.n)
        self.run_id = f"run{number}"
        options: dict[str, Any] = {"run_id": self.run_id}
        if number:
            options["origin"] = "latest"
        self.world = build(drawn.scenario, self.program, Ledger(name), files, True, **options)
        self.held, self.clocks = _Held(), ClockWatch()
        self.world.watch(self.held)
        self.world.watch(self.clocks)
        self.received: list[tuple[str, StopEnded | SavepointEnded]] = []
        self.over_at: int | None = None
        """The checkpoint of the savepoint behind which the job was cancelled."""

    def wrong(self, what: str) -> None:
        """Reports an error of this run."""
        self.outcome.wrong.append(f"run {self.number}: {what}")

    def over(self) -> bool:
        """Brings the run to its end. True where all records are read by then, or all that ever will be."""
        world, asks = self.world, list(self.drawn.requests)
        world.start()
        while not world.coordinator.status.final:
            while asks and asks[0].turn <= world.turns and world.driver.frozen_until <= world.now:
                self._ask(asks.pop(0))
            if world.coordinator.status.final:
                break
            world.turn()
        world.drain()
        status, cause = world.coordinator.status, world.coordinator.cause
        if self.over_at is not None:
            self._judge_cancelled(self.over_at, status)
        self.outcome.story.append(f"run {self.number} {status} after {world.turns} turns")
        self.outcome.covered.update(world.covered)
        self.outcome.covered[f"a run that ended as {status}"] += 1
        if status is JobStatus.FAILED:
            self.wrong(f"it failed: {cause.message if cause is not None else 'no cause'}")
        for one in world.causes:
            if not is_expected(one) and not lacks_slots(world, one):
                self.wrong(f"it was restarted because of {one.kind}: {one.message}")
        for error in (self.held.wrong + self.clocks.wrong)[:1]:
            self.wrong(error)
        if not self.outcome.wrong:
            self._judge(status)
        over = self.files.drained or (status is JobStatus.FINISHED and not self._suspended)
        if not self.outcome.wrong:
            found, right = once_more(self.world, self.files)  # which cleans up
            self.outcome.covered[f"found {'a checkpoint' if '/' in found else found}"] += 1
            if found != right:
                self.wrong(f"it ended as {status}, and the same start once more finds {found}, not {right}")
        return over

    @property
    def _newest(self) -> Manifest | None:
        return None if self.files.newest is None else self.files.newest[1]

    @property
    def _suspended(self) -> bool:
        return (
            any(kind.startswith("stop") and not ended.reason for kind, ended in self.received) and not self._at_the_end
        )

    @property
    def _at_the_end(self) -> bool:
        newest = self._newest
        return newest is not None and newest.final

    # Requests.

    def _ask(self, ask: Request) -> None:
        world = self.world
        self.outcome.story.append(f"{ask.kind} at {world.turns}")
        self.outcome.covered[f"asked for: {ask.kind}"] += 1
        if ask.kind == "cancel":
            world.coordinator.cancel(world.now)
        elif ask.kind == "savepoint":
            self._ask_savepoint(ask)
        else:
            aim = ask.aim
            if aim.savepoint is not None:
                aim = replace(aim, savepoint=f"memory:saved {self.number} {ask.turn}")
            world.coordinator.stop(self._listen(ask, world), aim, world.now)
        world.coordinate(world.driver)

    def _ask_savepoint(self, ask: Request) -> None:
        """Requests a savepoint, now and then an unaligned one, or one behind which the job is cancelled."""
        world, settings = self.world, self.drawn.scenario.checkpoints
        rng = random.Random(f"tailrace savepoints {self.outcome.seed} {self.number} {ask.turn}")
        unaligned = rng.random() < 0.5 and settings is not None and settings.overtakes_after >= 0
        cancels = rng.random() < 0.3
        note, asked = self._listen(ask, world), world.coordinator
        self.outcome.covered["asked for an unaligned savepoint"] += unaligned

        def heard(ended: SavepointEnded) -> None:
            note(ended)
            if cancels and ended.stats is not None and self.world.coordinator is asked:
                self.outcome.covered["cancelled behind a savepoint"] += 1
                self.over_at = ended.stats.id
            self.outcome.covered["took an unaligned savepoint"] += unaligned and ended.stats is not None

        where = f"memory:saved {self.number} {ask.turn}"
        world.coordinator.savepoint(heard, where, world.now, unaligned=unaligned, cancels=cancels)

    def _listen(self, ask: Request, world: Simulation) -> Callable[[Any], None]:
        ends: list[Any] = []
        coordinator = world.coordinator  # a driver that was frozen answers, too, when another one has taken over

        def note(ended: StopEnded | SavepointEnded) -> None:
            ends.append(ended)
            if len(ends) > 1:
                self.wrong(f"who asked for {ask.kind} was told twice")
            self.received.append((ask.kind, ended))
            self.outcome.covered[f"answered: {ask.kind}{', no' if ended.reason else ''}"] += 1
            self._answer(ask, ended, coordinator.status)

        return note

    def _answer(self, ask: Request, ended: StopEnded | SavepointEnded, status: JobStatus) -> None:
        """Checks what must be true as soon as an answer is given, by a coordinator whose job has this status."""
        if ended.reason:
            return
        savepoint = ended.stats if isinstance(ended, SavepointEnded) else ended.savepoint
        complete = ended.stats
        if complete is not None:
            self._visible(complete.id, ask.kind)
        if isinstance(ended, StopEnded):
            if status is not JobStatus.FINISHED:
                self.wrong(f"who asked for {ask.kind} was told when the job was {status}")
        if savepoint is not None:
            self._fork(savepoint.path, savepoint.id)

    def _visible(self, checkpoint: int, kind: str) -> None:
        """Checks that all that was prepared up to a checkpoint of this run is visible."""
        lineage = self._lineage(checkpoint)
        hidden = [token for token in lineage if token not in self.book.published]
        if hidden:
            self.wrong(
                f"who asked for {kind} was told when {len(hidden)} transactions were not visible, as {hidden[0]!r}"
            )

    def _lineage(self, checkpoint: int) -> frozenset[bytes]:
        found = [name for name in self.files.lineage if name.endswith(f"/{checkpoint}.manifest")]
        return self.files.lineage[found[-1]] if found else frozenset()

    # Results.

    def _fork(self, path: str, checkpoint: int) -> None:
        """Starts a job from a savepoint, with the savepoint's folder alone, and checks that it gives the rest of the
        results."""
        there = self.world.storage.savepoints[path]
        alone = WatchedFiles([], "memory:moved")
        alone.contents = {name: bytes(data) for name, data in there.contents.items()}
        alone.lineage[SAVEPOINT] = frozenset()
        store = Store("moved", "golden", folder=alone)
        manifest = store.manifest(SAVEPOINT)
        if manifest.prepared or set(alone.contents) != {SAVEPOINT, *(file.name for file in manifest.files)}:
            self.wrong(f"the savepoint of checkpoint {checkpoint} holds {sorted(alone.contents)}")
        try:
            verify(store, manifest)
        except (TailraceError, OSError) as error:
            self.wrong(f"the savepoint of checkpoint {checkpoint} cannot be read: {error}")
            return
        before = [record for token in self._lineage(checkpoint) for record in self.book.published.get(token, [])]
        if manifest.final or self.files.drained:
            return  # the job has come to its end: no records are left
        alone, groups = self._dealt(alone, store, checkpoint)
        name = f"{self.name}, forked"
        book = BOOKS[name] = Book()
        try:
            mine = WatchedFiles([book], "memory:mine")
            what = replace(self.drawn.scenario, faults=(), parallelism=1 + checkpoint % 3, max_parallelism=groups)
            what = replace(what, elastic=None, scale=None, slots=0)
            world = build(what, self.program, Ledger(name), mine, False, run_id="fork", origin=(alone, SAVEPOINT))
            status = world.run()
            found = Book(published={b"before": before, **book.published})
            wrong = check_records(found, self.expected, None)
            self.outcome.wrong += [
                f"forked from the savepoint of checkpoint {checkpoint}: {one}"
                for one in [*wrong, *book.wrong, *mine.wrong]
            ]
            if status is not JobStatus.FINISHED:
                self.wrong(f"the job forked from the savepoint of checkpoint {checkpoint} ended as {status}")
            self.outcome.covered["forked from a savepoint"] += 1
        finally:
            del BOOKS[name]

    def _dealt(self, alone: WatchedFiles, store: Store, checkpoint: int) -> tuple[WatchedFiles, int]:
        """The savepoint, or one with more key groups that is made of it, and their number."""
        drawn = self.drawn.scenario
        factor = random.Random(f"tailrace dealt {drawn.seed} {checkpoint}").choice([1, 1, 2, 3, 8])
        if factor == 1:
            return alone, drawn.max_parallelism
        groups = factor * drawn.max_parallelism
        try:
            plan = CheckpointPlan("golden", groups, base=StoredCheckpoint(store, SAVEPOINT))
        except ConfigError as error:
            self.outcome.covered[
                f"kept its key groups: {str(error).rpartition('operator')[0]}{'event' in str(error)}"
            ] += 1
            return alone, drawn.max_parallelism
        made = WatchedFiles([], "memory:dealt")
        again = Store("dealt", "golden", folder=made)
        complete(again, plan, [], store.manifest(SAVEPOINT).timestamp, "dealt")
        made.lineage[SAVEPOINT] = frozenset()
        verify(again, again.manifest(SAVEPOINT))
        self.outcome.covered["dealt out to more key groups"] += 1
        return made, groups

    def _judge_cancelled(self, checkpoint: int, status: JobStatus) -> None:
        """Checks that a job that was cancelled behind a savepoint has made nothing visible behind that."""
        if status is not JobStatus.CANCELLED:
            self.wrong(f"it was cancelled behind a savepoint, and ended as {status}")
        later = set(self.book.published) - self._lineage(checkpoint)
        if later:
            self.wrong(f"{sorted(later)[0]!r} is visible, and is not in the savepoint behind which it was cancelled")

    def _judge(self, status: JobStatus) -> None:
        for kind, ended in self.received:
            if isinstance(ended, StopEnded) and not ended.reason and ended.stats is not None:
                self._seal(kind, ended.stats.id)
        if status is not JobStatus.FINISHED:
            return
        newest = self.files.newest
        if newest is None:
            return
        lineage = max(self.files.lineage.values(), key=len)
        hidden = lineage - self.book.published.keys()
        if hidden:
            self.wrong(f"it has finished, and {len(hidden)} transactions are not visible")
        if not self._suspended and not self.files.drained and not newest[1].stopped:
            self.outcome.wrong += check_records(self.book, self.expected, self.program.order)
            self.outcome.covered["compared"] += 1
        else:
            more = Counter(self.book.records()) - self.expected
            if more and not self.files.drained and not newest[1].final:
                self.wrong(f"{more.total()} records are too many when it was stopped")

    def _seal(self, kind: str, checkpoint: int) -> None:
        newest = self._newest  # it is of another run where the driver was taken for dead and another one went on
        if newest is None or (newest.run_id == self.run_id and newest.checkpoint != checkpoint):
            newest_text = "no checkpoint" if newest is None else f"checkpoint {newest.checkpoint}"
            self.wrong(f"who asked for {kind} was told of checkpoint {checkpoint}, and {newest_text} is the newest one")


def look(
    seeds: Iterable[int],
    program: str | None = None,
    *,
    stop: bool = True,
    seconds: float | None = None,
    tune: Callable[[DrawnRun], DrawnRun] = lambda made: made,
) -> tuple[Counter[str], list[Outcome]]:
    """Runs these seeds, for at most so many seconds. Returns (counts of what was covered, outcomes that went wrong)."""
    return run_seeds(seeds, lambda seed: run(seed, program, tune=tune), stop=stop, seconds=seconds)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.stops", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="FIRST:LAST, LAST excluded, or a single seed (default: 0:200)")
    parser.add_argument("--program", choices=sorted(PROGRAMS), help="run this golden program only")
    parser.add_argument("--seconds", type=float, help="begin no other seed after this many seconds")
    parser.add_argument(
        "--with", choices=sorted(TUNES), dest="tune", help="lose workers, or coordinators; change sizes"
    )
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    seeds, started = seeds_of(options.seeds), time.monotonic()
    tune = TUNES.get(options.tune, lambda made: made)
    found = look(seeds, options.program, stop=not options.all, seconds=options.seconds, tune=tune)
    return report(*found, started)


if __name__ == "__main__":
    sys.exit(main())
