"""The drawing of a random flow, and of the world it runs in, from a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from search.drawn_faults import ANCHORS, LOOP_ANCHORS, drawn_faults
from search.random_flows.counting import keeping, numbering
from search.random_flows.description import (
    LEVELS,
    WAYS,
    Do,
    Events,
    Flow,
    Fork,
    Kind,
    Loop,
    Step,
    change_steps,
)
from search.random_flows.everyday import calling, everyday, once_more, refreshing
from search.random_flows.ordering import (
    ahead,
    joining,
    joining_columns,
    joining_more_columns,
    joining_whole_windows,
    living,
    ordering,
    sharing,
    source_time,
)
from search.random_flows.remembering import failing, firing, gathering, grouping, reading, remembering
from search.random_flows.ruling import ruling
from search.random_flows.spans import by_spans
from search.scenarios import MS, NETWORKS, Scenario, drawn_settings, jumps_of, started_again
from tailrace.testing.faults import Fault


@dataclass(frozen=True)
class Phase:
    """A run of a job. All but the last one are left alone after some turns, and the next one goes on from there."""

    parallelism: int
    turns: int | None = None
    """Number of turns; None: it runs to its end."""
    after: str = ""
    """Text of the first line of the trace from which the turns are counted; empty: they are counted from the start."""


@dataclass(frozen=True)
class Run:
    """A flow and everything that its run depends on."""

    flow: Flow
    world: Scenario
    phases: tuple[Phase, ...]
    disk: bool = False
    """True where keyed state is on disk."""

    @property
    def seed(self) -> int:
        """The seed that it was drawn from."""
        return self.world.seed

    @property
    def varies(self) -> bool:
        """True where an operator does something else when it is repeated."""
        return any(step.kind == "drawn" for step in self.flow.operators())


ALWAYS: tuple[Kind, ...] = ("map", "count", "bags", "reducing", "owner", "batches", "running", "running in columns")
"""Kinds of operators that may be anywhere."""
TIMELESS: tuple[Kind, ...] = ("later", "join", "hoard", "last call")
"""Kinds of operators that send records on at another time, or without one: no window behind them has one right result."""
WINDOWS: tuple[Kind, ...] = ("tumbling", "sliding", "windows of columns", "tumbling", "sliding")
ADDITIONS: tuple[tuple[str, float, Callable[[random.Random, Flow], Flow], bool], ...] = (
    ("order", 0.2, ordering, False),
    ("aside", 0.08, failing, False),
    ("counted", 0.08, numbering, False),
    ("sessions", 0.3, grouping, True),
    ("source time", 0.25, source_time, False),
    ("everyday", 0.08, everyday, False),
    ("further verbs", 0.05, once_more, False),
    ("fired", 0.2, firing, True),
    ("joins", 0.12, joining, False),
    ("broadcast", 0.1, ruling, False),
    ("lifetimes", 0.12, living, False),
    ("calls", 0.1, calling, False),
    ("ahead", 0.08, lambda _, flow: ahead(flow), False),
    ("refreshing", 0.04, refreshing, False),
    ("shared readers", 0.15, sharing, False),
    ("joins of columns", 0.1, joining_columns, False),
    ("more joins of columns", 0.1, joining_more_columns, False),
    ("joins of whole windows", 0.1, joining_whole_windows, False),
    ("together", 0.1, gathering, False),
    ("whole", 0.08, keeping, False),
    ("spans", 0.6, by_spans, False),
)
"""Additions to random flows, in their order: the name of the generator that each has for itself, so that it leaves all other
draws of a seed as they were; its share of the seeds; and whether it is one to flows with windows."""


MOMENTS = (
    "commit 2 done",
    "commit 4 done",
    "Advance",
    "CallFinish",
    "EndLoop",
    "Release",
    "SubtasksFinished",
    "FINISHING",
)
"""Lines of the trace at which a job may be left alone."""
OF_LOOPS = ("laps", "feedback", "separate", "combine", "astray", "spill", "priority", "parallelism", "rounds", "span")
"""Options of loops."""
LARGEST = 400
"""Largest size of a flow, in records that operators receive: larger ones are cut down."""


@dataclass
class _Drawing:
    rng: random.Random
    windows: bool
    endless: bool
    combine: bool
    phases: int
    numbers: Iterator[int]
    more: int = 0
    """Number of sources that have come in so far."""

    def number(self) -> int:
        return next(self.numbers)

    def kinds(self, level: int, in_rounds: Loop | None) -> tuple[Kind, ...]:
        """The kinds of operators that may be drawn at a place."""
        kinds: list[Kind] = [*ALWAYS, "held"]
        if in_rounds is not None and (in_rounds.rounds != "until dry" or in_rounds.number % 2):
            return ALWAYS if self.windows else (*ALWAYS, *("to the round's end",) * 3)
        kinds += WINDOWS if self.windows else TIMELESS
        kinds += ["more"] * (2 - self.more)
        kinds += ["extra"] if self.phases > 1 else []
        kinds += ["twin"] if not level else []
        return tuple(kind for kind in kinds if not (self.endless and kind in ("hoard", "last call")))

    def do(self, level: int, in_rounds: Loop | None) -> Do:
        """Draws one operator."""
        rng = self.rng
        kind = rng.choice(self.kinds(level, in_rounds))
        number = self.number()
        events: Events | None = None
        phases: tuple[int, ...] = ()
        inside: tuple[Step, ...] = ()
        if kind == "more":
            self.more += 1
            events = self.events(rng.choice([3, 8, 12]), 100 * self.more, endless=self.endless and rng.random() < 0.5)
            if level < LEVELS and in_rounds is None and rng.random() < 0.5:
                inside = (self.loop(level),)
        if kind == "extra":
            phases = tuple(sorted(rng.sample(range(self.phases), rng.randint(1, self.phases - 1))))
        return Do(
            kind,
            number,
            rng.choice(WAYS) if rng.random() < 0.6 and kind not in ("owner", "extra", "more") else "forward",
            rng.choice([1, 2, 3]) if rng.random() < 0.15 else None,
            events,
            phases,
            inside,
        )

    def distinct(self, n: int) -> int:
        """Draws how many of n records differ. A combined record has one of several timestamps: no window has one right
        result."""
        if self.combine:
            return n if self.windows else self.rng.choice([3, n // 2, n])
        return self.rng.choice([n, n, max(1, n // 2)])

    def events(self, n: int, first: int, endless: bool) -> Events:
        """Draws a source."""
        rng = self.rng
        splits = rng.choice([1, 1, 2, 3, 5])
        return Events(
            n,
            distinct=self.distinct(n),
            first=first,
            splits=splits,
            pace=rng.choice([0, 0, 300, 2_000]),
            silence=rng.choice([0, 0, 0, 20 * MS]),
            disorder=rng.choice([0, 2, 6]),
            timed=endless or self.windows or rng.random() < 0.6,
            endless=endless,
            parallelism=rng.choice([None, None, 1, 3]),
        )

    def steps(self, least: int, most: int, level: int, in_rounds: Loop | None = None) -> tuple[Step, ...]:
        """Draws some steps, one after the other; `level` is the level of a loop among them."""
        rng, found = self.rng, []
        for _ in range(rng.randint(least, most)):
            if level and rng.random() < 0.08:
                found.append(
                    Fork(self.number(), self.steps(0, 1, level, in_rounds), self.steps(0, 1, level, in_rounds))
                )
            else:
                found.append(self.do(level, in_rounds))  # type: ignore[arg-type]
        return tuple(found)

    def loop(self, level: int) -> Loop:
        """Draws a loop, with others in it."""
        rng = self.rng
        made = Loop(
            self.number(),
            level,
            (),
            laps=rng.choice([1, 1, 2, 3] if level else [1, 2, 2, 4]),
            feedback=rng.choice(
                ["plain", "plain", "two", "rebalance", "partition_by", "shuffle", "rescale", "columns"]
            ),
            separate=rng.random() < 0.2,
            combine=self.combine and rng.random() < 0.7,
            spill=rng.choice([None, 0, 100, 2_000]),
            priority=rng.choice(["adaptive", "feedback-first"]),
            parallelism=rng.choice([None, None, None, 1, 2, 3]),
        )
        if made.combine and made.feedback == "columns":
            made = replace(made, feedback="plain")
        if not level and not self.endless and rng.random() < 0.25:
            made = replace(made, rounds=rng.choice(["until dry", "at most", "until"]), limit=rng.randint(1, 3))
            return replace(made, body=self.steps(1, 3, 1, made))
        before = self.steps(0, 2, level + 1)
        inside: tuple[Step, ...] = ()
        if level < LEVELS - 1 and rng.random() < (0.25 if level else 0.4):
            inside = tuple(self.loop(level + 1) for _ in range(rng.choice([1, 1, 1, 2])))
        return replace(made, body=(*before, *inside, *self.steps(0, 2 if not before else 1, level + 1)))

    def flow(self) -> Flow:
        """Draws a whole flow."""
        rng = self.rng
        n = rng.choice([6, 12, 20, 30])
        source = self.events(n, 0, self.endless and rng.random() < 0.6)
        table = replace(self.events(5, 50, self.endless and rng.random() < 0.4), distinct=5, splits=rng.choice([1, 2]))
        steps: list[Step] = []
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2])):
            steps += [*self.steps(0, 1, 0), self.loop(0)]
        steps += self.steps(0 if steps else 2, 2 if steps else 5, 0)
        made = Flow(source, table, tuple(steps), rng.choice([None, None, 1, 2]))
        while made.size > LARGEST and made.source.n > 3:
            made = replace(made, source=_fewer(made.source), steps=change_steps(made.steps, _with_fewer))
        return made


def _fewer(events: Events) -> Events:
    n = max(3, events.n // 2)
    return replace(events, n=n, distinct=max(1, min(n, events.distinct)))


def _with_fewer(step: Step) -> tuple[Step, ...]:
    if isinstance(step, Loop):
        return (replace(step, laps=max(1, step.laps - 1)),)
    return (replace(step, events=_fewer(step.events)),) if isinstance(step, Do) and step.events is not None else (step,)


def drawn_flow(seed: int, phases: int = 1, endless: bool | None = None) -> Flow:
    """The flow of a seed."""
    rng = random.Random(f"tailrace random flow {seed}")
    never = rng.random() < 0.15
    while True:
        drawing = _Drawing(
            rng,
            windows=rng.random() < 0.45,
            endless=never if endless is None else endless,
            combine=rng.random() < 0.2,
            phases=phases,
            numbers=itertools.count(1),
        )
        made = drawing.flow()
        if made.size <= 2 * LARGEST:  # in other flows even a few records go around so often that they take long
            return made


def draw(seed: int, faults: bool = True) -> Run:
    """The run of a seed."""
    rng = random.Random(f"tailrace random run {seed}")
    network = rng.choice(sorted(NETWORKS))
    checkpointing = rng.random() < 0.85
    parallelism = rng.choice([1, 2, 2, 3])
    phases = [Phase(parallelism)]
    if checkpointing and rng.random() < 0.4:
        for _ in range(rng.choice([1, 1, 2])):
            if rng.random() < 0.4:
                phases[-1] = replace(phases[-1], turns=rng.randint(0, 40), after=rng.choice(MOMENTS))
            else:
                phases[-1] = replace(phases[-1], turns=rng.choice([300, 1_000, 3_000]) + rng.randint(0, 300))
            phases.append(Phase(rng.choice([1, 2, 3, parallelism])))
    flow = drawn_flow(seed, len(phases), None if checkpointing else False)
    flow = _later(random.Random(f"tailrace random later {seed}"), flow, len(phases))
    memory = random.Random(f"tailrace random memory {seed}")
    if memory.random() < 0.12:
        flow = remembering(memory, flow)
    readings = random.Random(f"tailrace random readings {seed}")
    if readings.random() < 0.06:
        flow = reading(readings, flow)
    flow = _vary(random.Random(f"tailrace random varied {seed}"), flow, len({one.parallelism for one in phases}) > 1)
    flow = _falling_silent(random.Random(f"tailrace random silence {seed}"), flow)
    for name, share, add, of_windows in ADDITIONS:
        own = random.Random(f"tailrace random {name} {seed}")
        if own.random() < share and (not of_windows or any(step.kind in WINDOWS for step in flow.operators())):
            flow = add(own, flow)
    settings = drawn_settings(rng, _interval(rng, flow, network), network) if checkpointing else None
    if (
        settings is not None
    ):  # barriers go around loops, and a program that is cut down should not fail for another reason
        settings = replace(settings, timeout=6 * settings.timeout, tolerated_failures=10_000)
    struck = drawn_faults(rng, checkpointing) if faults else ()
    struck = tuple(_in_loops(rng, fault) for fault in struck)
    if faults and checkpointing:
        struck += _moves(random.Random(f"tailrace random moves {seed}"))
    world = Scenario(
        seed,
        "random",
        flow.source.n,
        parallelism=parallelism,
        max_parallelism=rng.choice([4, 16, 128]),
        network=network,
        checkpoints=settings,
        restarts=(rng.choice(["fixed", "exponential"]), rng.choice([0, 0, 1 * MS])),
        window=rng.choice([None, None, 1, 400, 3_000]),
        small=rng.choice([None, 0, 10, 40]),
        chunk=rng.choice([None, 1, 300]),
        debug=rng.random() < 0.1,
        copies=rng.random() < 0.1,
        eager=rng.random() < 0.3,
        faults=struck,
        started_again=started_again(seed),
    )
    if faults:
        world = replace(world, faults=struck + jumps_of(world, again=len(phases) > 1))
    return Run(flow, world, tuple(phases), disk=checkpointing and rng.random() < 0.06)


def _later(rng: random.Random, flow: Flow, phases: int) -> Flow:
    """The flow, where some streams enter in later phases only, maybe into loops that have ended. Event time has then come
    to its end before, so a flow in which that matters stays as it is, and so does a flow with rounds."""
    kinds = {step.kind for step in flow.operators()}
    if phases == 1 or kinds & {"hoard", "last call", *WINDOWS} or any(loop.rounds for loop in flow.loops()):
        return flow
    chosen = tuple(range(rng.randint(1, phases - 1), phases))

    def change(step: Step) -> tuple[Step, ...]:
        more = isinstance(step, Do) and step.kind == "more" and not step.inside
        return (replace(step, phases=chosen),) if more and rng.random() < 0.5 else (step,)  # type: ignore[arg-type]

    return replace(flow, steps=change_steps(flow.steps, change))


def _vary(rng: random.Random, flow: Flow, resized: bool) -> Flow:
    """The flow, sometimes with features that no other draw gives it. `resized`: it goes on at another parallelism."""
    windows = any(step.kind in WINDOWS for step in flow.operators())
    numbers = itertools.count(1 + max((step.number for step in flow.all()), default=0))

    def ended(step: Step) -> tuple[Step, ...]:
        last = isinstance(step, Do) and step.kind == "last call"
        return (replace(step, kind="at the end"),) if last and rng.random() < 0.5 else (step,)  # type: ignore[arg-type]

    def fed(step: Step) -> tuple[Step, ...]:
        if not isinstance(step, Loop) or rng.random() >= 0.5 or step.combine or step.feedback == "columns":
            return (step,)
        return (replace(step, feedback=rng.choice(["broadcast", "broadcast", "mixed"])),)

    def astray(step: Step) -> tuple[Step, ...]:
        return (replace(step, astray=rng.random() < 0.5),) if isinstance(step, Loop) and step.combine else (step,)

    def stamped(step: Step) -> tuple[Step, ...]:
        """Times assigned in the body of a loop, at any place; or where a stream comes in."""
        if isinstance(step, Loop) and (windows or rng.random() < 0.5):
            times = Do("times", next(numbers), rng.choice(WAYS) if rng.random() < 0.3 else "forward")
            at = rng.randint(0, len(step.body))
            return (replace(step, body=(*step.body[:at], times, *step.body[at:])),)
        if isinstance(step, Do) and step.kind == "more":
            assert step.events is not None
            # Each record is known by its id, where no two are alike.
            inside = step.events.distinct == step.events.n
            return (replace(step, events=replace(step.events, stamped_inside=inside)),)
        return (step,)

    changes = [ended] if rng.random() < 0.5 else []
    changes += [fed] if rng.random() < (0.4 if resized else 0.1) else []
    changes += [astray] if rng.random() < 0.1 else []
    changes += [stamped] if rng.random() < 0.15 and not flow.endless else []
    for change in changes:
        flow = replace(flow, steps=change_steps(flow.steps, change))
    return flow


def may_fall_silent(flow: Flow) -> bool:
    """True where all that is due comes out although inputs fall silent for ever. Behind a loop it need not: while all its
    inputs are idle, event time there stays at what the last wave before has found."""
    return not (flow.endless and any(True for _ in flow.loops()))


def _falling_silent(rng: random.Random, flow: Flow) -> Flow:
    """The flow, in which sources may count as silent while they have nothing. A generator of its own keeps all other draws
    as they were."""
    if rng.random() >= 0.2 or not may_fall_silent(flow):
        return flow

    def silent(events: Events) -> Events:
        return replace(events, falls_silent=events.timed and not events.stamped_inside and rng.random() < 0.8)

    def change(step: Step) -> tuple[Step, ...]:
        more = isinstance(step, Do) and step.events is not None
        return (replace(step, events=silent(step.events)),) if more else (step,)  # type: ignore[union-attr, arg-type]

    return Flow(silent(flow.source), silent(flow.table), change_steps(flow.steps, change), flow.sink)


def _interval(rng: random.Random, flow: Flow, network: str) -> int:
    """Microseconds from one checkpoint to the next: a few times as long as each task takes to have its turn. In an endless
    flow it is longer, since time must pass quickly until the last output is published."""
    tasks = 8 + 4 * len(list(flow.operators())) + 10 * len(list(flow.loops()))
    turn = sum(NETWORKS[network].step_cost) // 2
    return int(max(1 * MS, tasks * turn * rng.choice([2, 4, 12])) * (5 if flow.endless else 1))


def _in_loops(rng: random.Random, fault: Fault) -> Fault:
    moved = replace(fault, turn=rng.randint(0, 30), after=rng.choice(LOOP_ANCHORS))
    return moved if rng.random() < 0.35 else fault


def _moves(rng: random.Random) -> tuple[Fault, ...]:
    """Draws machines that are about to go, in some runs: at any turn, or at a moment of the job or of a loop. A generator
    of its own keeps all other draws of a seed as they were."""
    if rng.random() >= 0.3:
        return ()
    found = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        after = rng.choice((*ANCHORS, *LOOP_ANCHORS)) if rng.random() < 0.6 else ""
        turn = rng.randint(0, 30) if after else rng.randint(1, rng.choice([100, 400, 1000]))
        found.append(Fault(turn, "move", which=rng.randint(0, 5), after=after))
    return tuple(found)


def options(run: Run) -> dict[str, set[Any]]:
    """Chosen values of a run, by option. They show whether every value occurs."""
    flow, world = run.flow, run.world
    found: dict[str, set[Any]] = {option: {value} for option, value in world.options().items()}
    for name in ("rate", "paced", "program", "feedback in memory", "priority", "interval"):
        found.pop(name, None)
    found |= {
        "operator": {step.kind for step in flow.operators()},
        "partitioning": {step.way for step in flow.operators()},
        "parallelism of an operator": {step.parallelism for step in flow.operators()},
        "place of an operator": set(_places(flow.steps)),
        "loops": {len(list(flow.loops()))},
        "level": {loop.level for loop in flow.loops()},
        "fork": {any(isinstance(step, Fork) for step in flow.all())},
        "endless": {events.endless for events in flow.sources()},
        "splits": {events.splits for events in flow.sources()},
        "found": {events.found for events in flow.sources()},
        "pauses": {events.pauses for events in flow.sources()},
        "disorder": {events.disorder for events in flow.sources()},
        "silence": {events.silence > 0 for events in flow.sources()},
        "falls silent": {events.falls_silent for events in flow.sources()},
        "goes on": {events.goes_on for events in flow.sources()},
        "ahead": {events.ahead for events in flow.sources()},
        "drift": {events.drift for events in flow.sources()},
        "pace": {events.pace for events in flow.sources()},
        "phases": {len(run.phases)},
        "left at": {phase.after for phase in run.phases},
        "stamped inside": {events.stamped_inside for events in flow.sources()},
        "comes later": {bool(step.phases) for step in flow.operators() if step.kind == "more"},
        "another parallelism": {len({phase.parallelism for phase in run.phases}) > 1},
        "backend": {"disk" if run.disk else "memory"},
        "sink": {flow.sink},
        "fault": {fault.kind for fault in world.faults},
        "storage": {fault.outcome for fault in world.faults if fault.kind == "storage"},
    }
    for name in OF_LOOPS:
        found[f"loop: {name}"] = {getattr(loop, name) for loop in flow.loops()}
    return found


def _places(steps: tuple[Step, ...], loops: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs of an operator's kind and its place."""
    for step in steps:
        if isinstance(step, Loop):
            yield from _places(step.body, loops + 1)
        elif isinstance(step, Fork):
            yield from _places(step.left + step.right, loops)
        else:
            yield step.kind, "in loops" if loops > 1 else "in a loop" if loops else "outside"
            yield from _places(step.inside, loops)
