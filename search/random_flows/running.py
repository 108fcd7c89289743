"""The run of a random flow in the simulator, phase by phase, and the verdict on its result."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import tailrace as tr
from search.drawn_faults import calm_clocks
from search.random_flows.building import Building
from search.random_flows.description import text_of
from search.random_flows.drawing import Phase, Run
from search.random_flows.interpreter import Result, expected_result, gather
from search.random_flows.script import DRAWS, LISTED
from search.scenarios import (
    LIMITS,
    MS,
    NETWORKS,
    is_expected,
    judge_files,
    strategy,
    tune,
)
from search.starts import SINK, Again, Moments, start_again
from search.watchers.checker import BOOKS, Book, Ledger
from search.watchers.clock_watch import ClockWatch, without_jumps
from search.watchers.drift_watch import DriftWatch
from search.watchers.failures import FailureWatch
from search.watchers.loops import LoopFiles, LoopWatch
from search.watchers.restorable import Restorable
from search.watchers.shadows import Shadows
from tailrace.coordinator.job.failures import HALF_PUBLISHED, Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import TailraceError
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.recording import Recordings
from tailrace.testing.simulator import Simulation, SimulationStalled
from tailrace.testing.waiting import waits
from tailrace.testing.world import Observer

LEAST, EACH = 20_000, 30
"""Turns after which a run whose faults are over counts as one that never ends: a base, and a number for each record that
an operator receives. Together they are more than the slowest of some hundred seeds took."""
EACH_CLOSELY, EACH_NARROW = 150, 60
"""Turns for each record in runs that take longer. The first is for checkpoints that follow each other without a pause and
take most turns. In nested loops barrier after barrier goes around, and a flow takes six times as many turns as without
checkpoints (24 with `all_together` and no faults: 49,558 and 7,890). The second is for narrow channels, where each frame
waits for credit (33164 with `all_together`: 44,182 at a size of 555)."""

PATIENCE = 6_000
"""Number of turns after which a job is left alone if the moment at which it should be does not come."""


ASTRAY = "it must keep the key"
"""Text of the error where merged feedback has another key than its parts."""


@dataclass
class Outcome:
    """Result of a run."""

    run: Run
    wrong: list[str] = field(default_factory=list)
    covered: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    digest: str = ""
    trace: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    """Reason why each task does nothing, where a run did not end."""

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        seed = self.run.seed
        return f"python -m search --random --seeds {seed}:{seed + 1} --trace"

    @property
    def text(self) -> str:
        """Description of a failure, with its story and the command that repeats it."""
        lines = [f"random seed {self.run.seed}:", *(f"  {wrong}" for wrong in self.wrong[:5])]
        lines += [f"    {line}" for line in self.idle]
        lines += [f"  {line}" for line in story(self.run).splitlines()]
        return "\n".join([*lines, f"  again: {self.command}"])


def patience(run: Run) -> int:
    """Number of turns after its last fault after which the run counts as one that never ends, without those in which a
    standby reads ahead."""
    settings = run.world.checkpoints
    closely = settings is not None and settings.interval is not None and settings.interval < MS
    narrow = settings is not None and run.world.window is not None
    return LEAST + (EACH_CLOSELY if closely else EACH_NARROW if narrow else EACH) * run.flow.size


def story(run: Run) -> str:
    """Description of a run, as text."""
    world = replace(run.world, faults=())
    lines = [text_of(run.flow), f"phases {text_of(run.phases)}", f"{world}", "on disk" if run.disk else "in memory"]
    return "\n".join([*lines, *(f"{fault}" for fault in run.world.faults)])


def carry_out(
    run: Run, *, keep_trace: bool = False, recordings: Recordings | None = None, shadows: Shadows | None = None
) -> Outcome:
    """Carries out a run, and checks all that it did. `recordings` records its workers; `shadows` check what they have
    done."""
    if any(loop.span for loop in run.flow.loops()):  # workers of such loops are not replaced, and have no histories
        run, shadows = replace(run, world=replace(run.world, replaces=False)), None
    outcome = Outcome(run)
    LISTED.clear()
    DRAWS.begin(alike=recordings is not None or shadows is not None)
    name = f"random {run.seed}"
    book = BOOKS[name] = Book()
    checkpointing = run.world.checkpoints is not None
    files = LoopFiles([book] if checkpointing else [])
    if not checkpointing:
        book.committed = None
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory()) if run.disk else None
            _Phases(run, outcome, name, book, files, folder, keep_trace, recordings, shadows).go()
    finally:
        del BOOKS[name]
    if not outcome.wrong and shadows is None:
        calm = replace(run, world=replace(run.world, faults=calm_clocks(run.world.faults)))
        outcome.wrong += without_jumps(run.seed, outcome.covered, outcome.digest, lambda: carry_out(calm).digest)
    return outcome


@dataclass
class _Phases:
    """The phases of a run, one after the other."""

    run: Run
    outcome: Outcome
    name: str
    book: Book
    files: LoopFiles
    folder: str | None
    keep_trace: bool
    recordings: Recordings | None
    shadows: Shadows | None

    def __post_init__(self) -> None:
        self.expected = expected_result(self.run.flow)
        self.now: int | None = None
        self.ahead = 0
        """Microseconds by which the clock of the last phase's job was ahead of the right time."""
        self.starts = 0
        self.size: int | None = None
        """The parallelism at which a phase is to begin that was refused at another one."""
        self.partly = False
        """True where not everything need be published: the job has failed for the key of a merged record."""
        self.restorable = Restorable(self.files, self.book)
        self.moments = Moments(self.files, self.book, random.Random(f"tailrace moments {self.run.seed}"))

    def go(self) -> None:
        """Runs the phases, and judges the last one; then starts the job again from some moments."""
        self.judge(self.one_by_one())
        watched = self.recordings is not None or self.shadows is not None  # neither would see another start
        if not (self.outcome.wrong or self.run.flow.endless or self.run.flow.astray or watched):
            self.again()

    def one_by_one(self) -> Simulation:
        """Runs the phases, and returns the last simulation."""
        wrong, world = self.outcome.wrong, None
        todo = deque(enumerate(self.run.phases))
        while todo:
            number, phase = todo.popleft()
            self.starts += 1
            options: dict[str, Any] = {"patience": patience(self.run), "recordings": self.recordings}
            if self.shadows is not None and not self.run.world.replaces:
                options["depth"] = 1
            world = self.world(number, phase, self.name, self.files, self.run.world.faults, **options)
            if self.shadows is not None:
                self.shadows.over(world)
            watch, clocks, failures = LoopWatch(world, self.files), ClockWatch(), FailureWatch()
            drift = DriftWatch()
            world.watch(clocks)
            world.watch(drift)
            world.watch(failures)
            if self.now is not None:
                world.now = self.now
            try:
                with self.restorable.watching(), self.moments.watching():
                    self.through(world, phase, number)
            except SimulationStalled as error:
                wrong.append(error.what)
                self.outcome.idle = list(error.story)
            except TailraceError as error:
                wrong.append(f"{type(error).__name__}: {error.args[0]}")
                self.outcome.idle = waits(world.cluster)
            self.gather(world)
            wrong += (
                watch.wrong
                + clocks.wrong
                + failures.wrong
                + drift.wrong
                + self.restorable.errors()
                + ([] if self.shadows is None else self.shadows.wrong)
            )
            if wrong:
                break
            self.now, self.ahead = world.now, world.ahead
            if self.size is not None:
                todo.appendleft((number, replace(phase, parallelism=self.size)))
                self.size = None
        assert world is not None
        return world

    def again(self) -> None:
        """Starts the job again from some moments, as in the last phase."""
        last, settings, most = len(self.run.phases) - 1, self.run.world.checkpoints, self.run.world.started_again
        if settings is None or not most:
            return

        def started(
            book: str, files: MemoryFiles, *, late: bool, faults: tuple[Fault, ...] = (), **options: Any
        ) -> Any:
            taken = replace(settings, interval=None) if late else settings
            taken = replace(taken, keep_runs=options.pop("keep_runs", 0))
            calm = {"conditions": NETWORKS["fast"], "patience": patience(self.run)}
            chosen = calm | {"checkpoints": taken} | options
            return self._later(self.world(last, self.run.phases[last], book, files, faults, **chosen))

        again = Again(
            started,
            lambda book: list(self.expected.differences(gather(book.records()))),
            lambda message: self._may_be_refused(self.run.phases[last], message),
        )
        chance = random.Random(f"tailrace again {self.run.seed}")
        self.outcome.wrong += start_again(self.moments.kept, again, chance, self.outcome.covered, most)

    def _later(self, world: Simulation) -> Simulation:
        """The simulation, set to begin after all that has happened so far."""
        world.now = self.now if self.now is not None else world.now
        return world

    def world(
        self, number: int, phase: Phase, book: str, files: MemoryFiles, faults: tuple[Fault, ...], **options: Any
    ) -> Simulation:
        """The simulation of a phase."""
        made = self.run.world
        # Whether something is done again with other values is not noticed then: the flow must not let it happen.
        by_shape = made.replaces and any(step.kind == "together" for step in self.run.flow.operators())
        by_shape = by_shape and not self.run.seed % 2 and not self.run.varies
        env = tr.Environment(
            parallelism=phase.parallelism,
            max_parallelism=made.max_parallelism,
            debug=made.debug,
            copy_records=made.copies,
            checkpoint=tr.CheckpointConfig(dir="memory") if made.checkpoints is not None else None,
            standby=tr.StandbyConfig(compare="shape") if by_shape else None,
        )
        # An operator that is new in a loop has not been at rest: the whole loop then comes to rest again, and counts anew.
        come = any(step.kind == "extra" for step in self.run.flow.operators())
        counting = len({one.parallelism for one in self.run.phases}) == 1 and not come
        stream = Building(self.run.flow, env, number, counting).everything()
        stream.sink_to(Ledger(book), uid=options.pop("sink", SINK), parallelism=self.run.flow.sink)
        gone = tuple(f"op{step.number}" for step in self.run.flow.operators() if step.kind == "extra")
        chosen: dict[str, Any] = {
            "conditions": replace(NETWORKS[made.network], executor_slots=made.executor_slots),
            "origin": "latest" if number else None,
            "run_id": f"run{self.starts}",
            "ahead": self.ahead,
            "checkpoints": made.checkpoints,
            **tune(made),
        }
        if self.folder is not None:
            chosen["disk"] = self.folder
        return prepared_simulation(
            env,
            name=options.pop("name", "random"),
            seed=made.seed * 8 + number,
            limits=LIMITS,
            keep_trace=self.keep_trace,
            restarts=lambda: strategy(made.restarts),
            files=files,
            faults=faults,
            allow_dropped_state=(*gone, *options.pop("allow", ())),
            **(chosen | options),
        )

    def through(self, world: Simulation, phase: Phase, number: int) -> None:
        """Runs phase `number`: to its end, or for so many turns."""
        done = self._all_there() if self.run.flow.endless and phase.turns is None else lambda: False
        begun = _Moment(world, phase.after)
        world.start()
        while not world.coordinator.status.final:
            if phase.turns is not None and begun.at is not None and world.turns >= begun.at + phase.turns:
                return
            if begun.at is None and world.turns > PATIENCE:
                begun.at = world.turns
            if world.turns % 32 == 0 and done():
                world.coordinator.cancel(world.now)
                world.coordinate(world.driver)
                done = lambda: False  # noqa: E731
            world.turn()
        status, cause = world.coordinator.status, world.coordinator.cause
        right = JobStatus.CANCELLED if self.run.flow.endless_in(number) else JobStatus.FINISHED
        if self._left_to_chance(world):
            world.count("left to chance")
        elif self._is_refused(phase, "" if cause is None else cause.message):
            world.count("rightly refused")
        elif status is not right:
            self.outcome.wrong.append(f"the job ended as {status}: {cause.message if cause else 'no cause'}")
        elif world.coordinator.left_behind:
            self.outcome.wrong.append(f"the job ended without its slots {world.coordinator.left_behind}")
        world.drain()

    def _is_refused(self, phase: Phase, message: str) -> bool:
        """True where a job has failed rightly: because merges have returned another key, or since feedback cannot be dealt
        out at another parallelism. In the second case it goes on at the parallelism that the error names."""
        if self.run.flow.astray and ASTRAY in message:
            self.partly = True
            return True
        self.size = other_size(message, phase.parallelism) if self._may_be_refused(phase, message) else None
        return self.size is not None

    def _may_be_refused(self, phase: Phase, message: str) -> bool:
        """True where feedback need not be dealt out at the parallelism of a phase."""
        several = any(loop.feedback in ("broadcast", "mixed") for loop in self.run.flow.loops())
        return several and other_size(message, phase.parallelism) is not None

    def _all_there(self) -> Callable[[], bool]:
        """A function that returns True once everything that is to come has been published."""
        seen = -1

        def is_due() -> bool:
            nonlocal seen
            if len(self.book.published) == seen:
                return False
            seen = len(self.book.published)
            return gather(self.book.records()) == self.expected

        return is_due

    def _left_to_chance(self, world: Simulation) -> bool:
        cause = world.coordinator.cause
        return world.settings is None and cause is not None and HALF_PUBLISHED in cause.message

    def gather(self, world: Simulation) -> None:
        """Collects the results of a phase."""
        outcome = self.outcome
        outcome.turns += world.turns
        outcome.digest += world.digest
        outcome.trace += world.trace
        outcome.covered.update(world.covered)
        for cause in world.causes:
            if not is_expected(cause) and not self._is_noticed(cause):
                outcome.wrong.append(f"the job was restarted because of {cause.kind}: {cause.message}")
                break

    def _is_noticed(self, cause: Cause) -> bool:
        """True where a replacement has noticed that something is not done the same again, in a flow of which that holds."""
        if "is not done the same again" not in cause.message:
            return False
        self.outcome.covered["not done the same again"] += 1
        return self.run.varies

    def judge(self, world: Simulation) -> None:
        """Collects what is wrong with the published records, and with the files in the storage."""
        outcome, book, files = self.outcome, self.book, self.files
        outcome.covered.update(book.counts)
        held = [sum(heads.values()) for heads in files.feedback]
        outcome.covered["committed"] += files.commits
        outcome.covered["a checkpoint with feedback in it"] += sum(1 for records in held if records)
        outcome.covered["records of feedback in checkpoints"] += sum(held)
        outcome.covered["a checkpoint with records overtaken"] += files.overtaken
        outcome.covered["a checkpoint when some had finished"] += files.ended_early
        outcome.covered["a checkpoint that refers to others"] += files.incremental
        outcome.wrong += book.wrong + files.wrong
        found = gather(book.records())
        if self.partly:
            outcome.wrong += found.beyond(self.expected)
        elif not outcome.covered["left to chance"]:
            outcome.wrong += self.expected.differences(found)
        outcome.wrong += self._order(found)
        if not outcome.wrong and not self.partly:
            outcome.wrong += judge_files(world, files)

    def _order(self, found: Result) -> Iterator[str]:
        """Errors in the order of an operator's reports on a key: they come in order where all operators have one
        parallelism."""
        if not self.run.flow.uniform or any(loop.rounds for loop in self.run.flow.loops()):
            return
        last: Counter[Any] = Counter()
        for record in self.book.records():
            if record[0] == "visit":
                _, number, key, place = record
                if place <= last[number, key]:
                    yield f"of operator {number} and key {key}, {place} was published after {last[number, key]}"
                    return
                last[number, key] = place


def other_size(message: str, parallelism: int) -> int | None:
    """The parallelism at which a refused start would go on, by its error."""
    found = re.search(r"start it at parallelism (\d+), at which the checkpoint was taken", message)
    return int(found[1]) if found is not None and int(found[1]) != parallelism else None


class _Moment(Observer):
    """The turn at which a text is noted in a simulation for the first time."""

    def __init__(self, world: Simulation, text: str) -> None:
        self._world, self._text = world, text
        self.at = None if text else 0
        if text:
            world.watch(self)

    def on_line(self, line: str) -> None:
        if self.at is None and self._text in line:
            self.at = self._world.turns
