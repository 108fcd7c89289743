"""Scenarios: a program, the conditions it runs under, its settings and the faults that happen to it, all from one seed;
and the verdict on the result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import tailrace as tr
from search.drawn_faults import LOOP_ANCHORS, NEW_DRIVERS, calm_clocks, drawn_faults, drawn_jumps, drawn_outages
from search.ends import FINISHED, found_by
from search.programs.golden import BEHIND, LOOPS, PROGRAMS, SILENT, Program
from search.programs.loops import LoopOptions, loops_with
from search.starts import SINK, TURNS, Again, Moments, start_again
from search.watchers.checker import BOOKS, Book, Ledger, check_leftovers, check_records
from search.watchers.clock_watch import ClockWatch, without_jumps
from search.watchers.failures import FailureWatch
from search.watchers.knowledge import Knowledge
from search.watchers.loops import LoopFiles, LoopWatch
from search.watchers.restorable import Restorable
from search.watchers.shadows import Shadows
from search.watchers.sizes import SizeWatch
from tailrace.api.restore.identity import dataflow_of
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.failures import HALF_PUBLISHED, Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Exponential, Fixed, Never, Strategy
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import WavePace
from tailrace.coordinator.workers.autoscaling import ScaleSettings
from tailrace.errors import TailraceError
from tailrace.state.paths import marked_manifest
from tailrace.storage.end_of_run import leave, still_ours
from tailrace.task.contract.tuning import Tuning
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.recording import Recordings
from tailrace.testing.simulator import Simulation, SimulationStalled
from tailrace.testing.strikes import RAISED
from tailrace.testing.successions import NEEDLESS
from tailrace.testing.world import Conditions

MS = 1_000
EXPECTED_CAUSES = frozenset({"worker", "moved", "peer", "store", "checkpoint"})
"""Kinds of failure that faults cause. Any other kind is a bug of Tailrace: the programs do nothing wrong."""
UNEXPECTED = ("broke the protocol", "nobody has taken the place of")
"""Texts of expected failures that would nevertheless be a bug: workers that take the places of lost ones come soon."""

NETWORKS: dict[str, Conditions] = {
    "fast": Conditions(delay=(0, 20), step_cost=(1, 40), budget=(2, 24), encode_limit=(8, 256), zombie=(0, 5 * MS)),
    "uneven": Conditions(delay=(1, 2 * MS), step_cost=(1, 200), zombie=(0, 40 * MS), startup=(0, 10 * MS)),
    "slow": Conditions(delay=(500, 3 * MS), step_cost=(1, 60), budget=(16, 64), zombie=(0, 80 * MS), startup=(0, MS)),
    "in small steps": Conditions(delay=(0, 300), step_cost=(1, 20), budget=(1, 6), encode_limit=(1, 8), zombie=(0, MS)),
}


@dataclass(frozen=True)
class Scenario:
    """A program with all that its run depends on."""

    seed: int
    program: str
    n: int
    parallelism: int = 2
    max_parallelism: int = 128
    network: str = "fast"
    rate: float | None = None
    checkpoints: CheckpointSettings | None = None
    restarts: tuple[str, int] = ("fixed", 0)
    """Restart strategy, and its pause in microseconds."""
    window: int | None = None
    """Bytes of a channel's window; None: as in production."""
    small: int | None = None
    """Entries up to which state is written as a whole; None: as in production, where these programs always write all of
    it."""
    chunk: int | None = None
    """Bytes after which a part of a state file is written, and above which it takes the data that sinks prepared. None: as
    in production, where these programs write it in one piece and the manifest takes that data."""
    debug: bool = False
    copies: bool = False
    spill: int | None = None
    """Bytes of feedback that wait in memory, in every loop; None: as the program sets it."""
    priority: Literal["adaptive", "feedback-first"] | None = None
    """Priority of inputs in every loop; None: as the program sets it."""
    eager: bool = False
    """True where waves begin at any time, not only where the counts of the workers fit: then waves alone must find the
    end."""
    replaces: bool = False
    """True where lost workers are replaced while the others go on."""
    depth: int = 1
    """Number of executors that may be lost at once, where workers are replaced."""
    executor_slots: int = 0
    """Task slots of each executor; 0: each worker counts as one in an executor of its own."""
    hot: bool = False
    """True where these processes do what the workers do, a little behind them."""
    pace: int | None = None
    """Microseconds from one answer of such a process to the next; None: it answers at once."""
    spares: int = 0
    """Number of processes that stand by to replace lost workers."""
    kept: int = 64 << 20
    """Bytes in memory of the records that each worker keeps for workers that are replaced."""
    history: int | None = None
    """Bytes of the history of each worker; None: as in production."""
    copied: int | None = None
    """Bytes in memory of the histories that each worker knows of others; None: as in production."""
    log: int | None = None
    """Bytes of the coordinator's log between two of its bases, where workers wait for another coordinator; None: they do
    not."""
    elastic: tuple[int, int] | None = None
    """The least and the most workers of a job that has as many as there are task slots; None: it has its size."""
    scale: ScaleSettings | None = None
    """Settings by which the load decides how many of these it has; None: it does not."""
    slots: int = 0
    """Task slots of the cluster at the beginning; 0: as many as are needed."""
    faults: tuple[Fault, ...] = ()
    started_again: int = 0
    """Number of its moments from which it is started again."""
    patience: int = 100_000
    """Number of turns after its last fault after which it counts as one that never ends: three times as many as the
    slowest known one takes, `waited_for` with seed 23."""
    max_turns: int = 150_000
    """Number of turns after which it counts as one that never ends, whatever faults come."""

    def options(self) -> dict[str, Any]:
        """Chosen values, by option. They show whether every value occurs."""
        settings = self.checkpoints
        found: dict[str, Any] = {
            "program": self.program,
            "parallelism": self.parallelism,
            "max_parallelism": self.max_parallelism,
            "network": self.network,
            "paced": self.rate is not None,
            "checkpoints": settings is not None,
            "restarts": self.restarts[0],
            "pause": self.restarts[1] > 0,
            "narrow window": self.window is not None,
            "incremental": self.small is not None,
            "in pieces": self.chunk is not None,
            "debug": self.debug,
            "copies": self.copies,
            "feedback in memory": self.spill,
            "priority": self.priority,
            "eager": self.eager,
            "undisturbed": not self.faults,
        }
        if settings is not None:
            found |= {
                "max_concurrent": settings.max_concurrent,
                "min_pause": settings.min_pause > 0,
                "short timeout": settings.timeout < 1_000_000,
                "tolerated": settings.tolerated_failures < 100,
                "keep": settings.keep,
                "interval": settings.interval,
            }
        return found


def scenario(seed: int, program: str | None = None, faults: bool = True) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"tailrace scenario {seed}")
    drawn = rng.choice(sorted(set(PROGRAMS) - set(BEHIND)))
    behind = random.Random(f"tailrace scenario behind {seed}")
    drawn = next((one for one in BEHIND if behind.random() < 0.02), drawn)
    name = program if program is not None else drawn
    network = rng.choice(sorted(NETWORKS))
    n = PROGRAMS[name].n
    checkpointing = rng.random() < 0.95
    interval = rng.choice([1, 2, 4, 10]) * MS
    made = Scenario(
        seed,
        name,
        n,
        parallelism=rng.choice([1, 2, 2, 3]),
        max_parallelism=rng.choice([4, 16, 128]),
        network=network,
        rate=rng.choice([None, n / 0.01, n / 0.02, n / 0.04]),
        checkpoints=drawn_settings(rng, interval, network) if checkpointing else None,
        restarts=(rng.choice(["fixed", "exponential"]), rng.choice([0, 1 * MS, 15 * MS])),
        window=rng.choice([None, None, 1, 400, 3_000]),
        small=rng.choice([None, 0, 10, 40]),
        chunk=rng.choice([None, 1, 300]),
        debug=rng.random() < 0.1,
        copies=rng.random() < 0.1,
        started_again=started_again(seed),
    )
    if faults:
        outages = drawn_outages(random.Random(f"tailrace outages {seed}")) if checkpointing else ()
        made = replace(made, faults=drawn_faults(rng, checkpointing) + outages)
    made = _with_loops(made)
    return replace(made, faults=made.faults + jumps_of(made, made.program in SILENT)) if faults else made


def jumps_of(made: Scenario, by_the_clock: bool = False, again: bool = False) -> tuple[Fault, ...]:
    """Draws how clocks are set in a scenario. It has a generator of its own, so that all other draws of a seed stay as
    they were. `by_the_clock`, `again`: see `drawn_jumps`."""
    again = again or any(fault.kind in NEW_DRIVERS for fault in made.faults)
    return drawn_jumps(random.Random(f"tailrace jumps {made.seed}"), again, by_the_clock)


def started_again(seed: int) -> int:
    """Number of moments from which the run of a seed is started again: for every fourth seed there are some."""
    return 0 if seed % 4 else 2


def _with_loops(made: Scenario) -> Scenario:
    """The scenario with options for the loops of its program. Some faults come at moments of loops, too."""
    rng = random.Random(f"tailrace loops {made.seed}")
    made = replace(
        made,
        spill=rng.choice([None, None, 0, 60, 600]),
        priority=rng.choice([None, "adaptive", "feedback-first"]),
        eager=rng.random() < 0.4,
    )
    if made.program not in LOOPS:
        return made
    settings = made.checkpoints
    if settings is not None:  # barriers go around each loop, and need more time than in other programs
        made = replace(made, checkpoints=replace(settings, timeout=6 * settings.timeout))
    faults = [
        replace(fault, turn=rng.randint(0, 30), after=rng.choice(LOOP_ANCHORS)) if rng.random() < 0.3 else fault
        for fault in made.faults
    ]
    return replace(made, faults=tuple(faults))


def drawn_settings(rng: random.Random, interval: int, network: str) -> CheckpointSettings:
    """Draws settings of checkpoints."""
    short = {"fast": 2 * MS, "in small steps": 12 * MS, "uneven": 30 * MS, "slow": 50 * MS}[network]
    timeout = rng.choice([600_000_000, 50 * short, short])
    return CheckpointSettings(
        interval=interval,
        timeout=timeout,
        min_pause=rng.choice([0, 0, 2 * MS]),
        max_concurrent=rng.choice([1, 2, 3]),
        # Where back-pressure holds every checkpoint up for longer than it may take, a job that does not tolerate it would
        # start again and again.
        tolerated_failures=rng.choice([10_000, 2, 0]) if timeout != short else 10_000,
        keep=rng.choice([1, 1, 3]),
    )


# The run of a scenario.


def is_expected(cause: Cause) -> bool:
    """True where faults have caused the restart of a job, or the replacement of a worker that had failed."""
    expected = cause.kind in EXPECTED_CAUSES or RAISED in cause.message
    return expected and not any(text in cause.message for text in UNEXPECTED)


@dataclass
class Verdict:
    """Result of a scenario."""

    scenario: Scenario
    wrong: list[str] = field(default_factory=list)
    covered: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    digest: str = ""
    trace: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    """Report of what each party waits for, where the job does not end."""
    gave_up: bool = False
    """True where the job has failed, and rightly so."""

    @property
    def command(self) -> str:
        """The command that repeats the scenario."""
        seed, program = self.scenario.seed, self.scenario.program
        return f"python -m search --seeds {seed}:{seed + 1} --program {program} --trace"


ALONE = ("lose-coordinator", "jump-clock")
"""Faults after which no job that waits for another coordinator starts again."""
LIMITS = Limits(
    slots=60_000_000,
    lease=80 * MS,
    severed=200 * MS,
    leave=20 * MS,
    finish=20 * MS,
    move=10 * MS,
    calm=1 * MS,
    gone=200 * MS,
    retry=1 * MS,
    retry_most=20 * MS,
)


def run_scenario(
    what: Scenario, *, keep_trace: bool = False, recordings: Recordings | None = None, shadows: Shadows | None = None
) -> Verdict:
    """Runs a scenario to its end, and checks everything that it did. `recordings` records its workers; `shadows` check
    what they have done."""
    what = allowed(what)
    verdict = Verdict(what)
    program = PROGRAMS[what.program]
    name = f"seed {what.seed}"
    book = BOOKS[name] = Book()
    files = LoopFiles([book] if what.checkpoints is not None else [])
    if what.checkpoints is None:
        book.committed = None
    try:
        options: dict[str, Any] = {"recordings": recordings, "patience": what.patience}
        if shadows is not None and not what.replaces:
            options["depth"] = 1
        world = build(what, program, Ledger(name), files, keep_trace, **options)
        if shadows is not None:
            shadows.over(world)
        watch, clocks, failures, knowledge = LoopWatch(world, files), ClockWatch(), FailureWatch(), Knowledge()
        sizes = SizeWatch(world, what.elastic, what.scale)
        for one in (clocks, failures, sizes):
            world.watch(one)
        if what.replaces and what.executor_slots:
            knowledge.over(world)
        restorable = Restorable(files, book)
        moments = Moments(files, book, random.Random(f"tailrace moments {what.seed}"))
        with restorable.watching(), moments.watching():
            _run(world, verdict)
        verdict.wrong += watch.wrong + clocks.wrong + failures.wrong + sizes.wrong
        verdict.wrong += knowledge.wrong + restorable.errors()
        verdict.wrong += [] if shadows is None else shadows.wrong
        verdict.covered["frames that depend on histories"] += knowledge.checked
        verdict.covered["decisions by the load that were checked"] += sizes.checked
        _judge(world, program, book, files, verdict)
        if not verdict.wrong and recordings is None and shadows is None:  # neither would see another start
            _run_again(what, program, moments, verdict, world.ahead)
    finally:
        del BOOKS[name]
    if not verdict.wrong and shadows is None:
        plain = lambda: run_scenario(replace(what, faults=calm_clocks(what.faults))).digest  # noqa: E731
        verdict.wrong += without_jumps(what.seed, verdict.covered, verdict.digest, plain)
    return verdict


def allowed(what: Scenario) -> Scenario:
    """The scenario, in which all workers start again where those of its program cannot be replaced while others go on."""
    return replace(what, replaces=what.replaces and PROGRAMS[what.program].replaced)


def build(
    what: Scenario,
    program: Program,
    sink: Ledger,
    files: MemoryFiles,
    keep_trace: bool,
    uid: str = SINK,
    **options: Any,
) -> Simulation:
    """The simulation of a scenario. `uid` is the uid of its sink."""
    what = allowed(what)
    env = tr.Environment(
        parallelism=what.parallelism if what.elastic is None else tr.Elastic(*what.elastic),
        max_parallelism=what.max_parallelism,
        debug=what.debug,
        copy_records=what.copies,
        checkpoint=tr.CheckpointConfig(dir="memory") if what.checkpoints is not None else None,
    )
    with loops_with(LoopOptions(what.spill, what.priority)):
        built = program.build(env, what.n, what.rate)
    built.sink_to(
        sink, uid=uid, **({} if program.sinks is None else {"parallelism": min(program.sinks, what.parallelism)})
    )
    options.setdefault("run_id", "run")
    if "allow" in options:
        options["allow_dropped_state"] = options.pop("allow")
    return prepared_simulation(
        env,
        name=options.pop("name", "golden"),
        seed=what.seed,
        conditions=replace(
            NETWORKS[what.network], max_turns=what.max_turns, executor_slots=what.executor_slots, slots=what.slots
        ),
        limits=LIMITS,
        keep_trace=keep_trace,
        checkpoints=what.checkpoints,
        restarts=lambda: strategy(what.restarts),
        files=files,
        faults=what.faults,
        **tune(what),
        **options,
    )


def strategy(restarts: tuple[str, int]) -> Strategy:
    """A restart strategy that permits any number of attempts, or none ("never")."""
    kind, pause = restarts
    if kind == "never":
        return Never()
    return Fixed(100_000, pause) if kind == "fixed" else Exponential(pause, 20 * MS, 2.0, 100 * MS)


def tune(what: Scenario) -> dict[str, Any]:
    """Options of a simulation for constants of production that a scenario changes."""
    eager = WavePace(pause=200, longest=2 * MS, eager=True)
    tuning = Tuning(what.window, what.chunk, what.chunk, what.history, what.copied, what.kept, what.pace)
    found: dict[str, Any] = {
        "tuning": tuning,
        "pace": eager if what.eager else None,
        "small": what.small,
        "log": what.log,
    }
    if what.elastic is not None:
        found["waits"] = {"wait": 5 * MS, "settle": 1 * MS, "pause": 2 * MS, "longest": 20 * MS, "scale": what.scale}
    if what.replaces:
        found |= {"depth": what.depth, "replaces": True, "spares": what.spares, "hot": what.hot}
    return found


def _run(world: Simulation, verdict: Verdict) -> None:
    try:
        status = world.run()
        cause = world.coordinator.cause
        if _left_to_chance(world):
            verdict.gave_up = True
        elif status is not JobStatus.FINISHED:
            verdict.wrong.append(f"the job ended as {status}: {cause.message if cause is not None else 'no cause'}")
        elif world.coordinator.left_behind:
            verdict.wrong.append(f"the job ended without its slots {world.coordinator.left_behind}")
        world.drain()
    except SimulationStalled as error:
        verdict.wrong.append(error.what)
        verdict.waits = list(error.story)
    except TailraceError as error:
        verdict.wrong.append(f"{type(error).__name__}: {error.args[0]}")
    verdict.turns, verdict.digest, verdict.trace = world.turns, world.digest, world.trace
    verdict.covered = world.covered
    for cause in world.causes:
        if not is_expected(cause) and not lacks_slots(world, cause):
            verdict.wrong.append(f"the job was restarted because of {cause.kind}: {cause.message}")
            break


def lacks_slots(world: Simulation, cause: Cause) -> bool:
    """True where an elastic job, whose cluster takes task slots away, goes on with fewer workers: nobody could take the
    place of a lost one."""
    elastic = world.coordinator.course.rescaling.elastic
    return elastic is not None and "nobody has taken the place of worker " in cause.message


def _left_to_chance(world: Simulation) -> bool:
    """True for a job without checkpoints that was lost while it published: it reports that it cannot know what is
    visible. True for a job, too, whose user code raises again and again, and that may not start again."""
    cause = world.coordinator.cause
    if cause is None:
        return False
    never = isinstance(world.coordinator.restarts, Never) and RAISED in cause.message
    return never or (world.settings is None and HALF_PUBLISHED in cause.message)


def _judge(world: Simulation, program: Program, book: Book, files: LoopFiles, verdict: Verdict) -> None:
    covered = verdict.covered
    covered.update(book.counts)
    covered["committed"] += files.commits
    held = [sum(heads.values()) for heads in files.feedback]
    covered["a checkpoint with feedback in it"] += sum(1 for records in held if records)
    covered["records of feedback in checkpoints"] += sum(held)
    covered["a checkpoint with records overtaken"] += files.overtaken
    covered["a checkpoint when some had finished"] += files.ended_early
    covered["a checkpoint that refers to others"] += files.incremental
    verdict.wrong += files.wrong
    if covered[NEEDLESS] and all(fault.kind in ALONE for fault in verdict.scenario.faults):
        verdict.wrong.append(NEEDLESS)
    verdict.wrong += check_records(book, program.expected(verdict.scenario.n), program.order, partly=verdict.gave_up)
    if not verdict.wrong and world.settings is not None:
        if not world.coordinator.durability.output.origin.spare:  # else the next start looks for them
            verdict.wrong += check_leftovers(book, world.driver.run_id)
    if not verdict.wrong:
        verdict.wrong += judge_files(world, files)


def judge_files(world: Simulation, files: LoopFiles) -> Iterator[str]:
    """Descriptions of what is wrong with the files that a job that is over leaves in the storage of checkpoints. This
    cleans up the storage, so it comes last."""
    checkpoints, store = world.coordinator.checkpoints, world.driver.store
    if store is None:
        return
    for name in checkpoints.needed:
        if name not in files.contents and marked_manifest(name) is None:  # a mark only saves work
            yield f"a checkpoint that is kept needs {name}, which is gone"
    # The runtime does this at the end of a job whose checkpoints are not to outlive it.
    run_id = world.driver.run_id
    newest = still_ours(store, run_id)
    if newest is None:
        yield f"the job was taken over from {run_id}, which is its newest start"
        return
    for older in [one for one in world.cluster.drivers.values() if one.run_id != run_id]:
        if older.store is not None and (still_ours(older.store, older.run_id) is not None):
            yield f"{older.run_id} may remove what {run_id}, which has taken over from it, starts from"
    files.newest = None
    over = world.coordinator.status is JobStatus.FINISHED
    leave(store, run_id, world.coordinator.ending(False, world.now) if over else None, checkpoints.give_up_all())
    found = found_by(files, dataflow=dataflow_of(world.plan.graph)) if over else FINISHED
    if found != FINISHED:
        yield f"the job has finished, and the same start once more goes on from {found or 'the beginning'!r}"
    left = files.leftovers([i for i in store.incarnations() if _run_of(store, i) == world.driver.run_id], [])
    if left:
        yield f"the job has left {left[:3]} behind"


def _run_again(what: Scenario, program: Program, moments: Moments, verdict: Verdict, ahead: int) -> None:
    """Starts the job again from some of its moments."""
    if not what.started_again or what.checkpoints is None:
        return
    settings = what.checkpoints

    def started(book: str, files: MemoryFiles, *, late: bool, faults: tuple[Fault, ...] = (), **options: Any) -> Any:
        taken = replace(settings, interval=None) if late else settings
        taken = replace(taken, keep_runs=options.pop("keep_runs", 0))
        made = replace(what, faults=faults, checkpoints=taken, max_turns=TURNS)
        uid = options.pop("sink", SINK)
        return build(made, program, Ledger(book), files, False, uid, ahead=ahead, **options)

    again = Again(started, lambda book: check_records(book, program.expected(what.n), program.order))
    chance = random.Random(f"tailrace again {what.seed}")
    verdict.wrong += start_again(moments.kept, again, chance, verdict.covered, what.started_again)


def _run_of(store: Any, incarnation: int) -> str | None:
    owner = store.owner(incarnation)
    return None if owner is None else owner.run_id
