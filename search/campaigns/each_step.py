"""Runs of golden programs with one event at each step: `python -m search.campaigns.each_step --program visited --event kill
--every 50` counts the turns of a short run of the program under each policy of checkpoints with each kind of standby, and
runs it once for every fiftieth turn, at which a worker dies. `--event rescale+kill` requests another size in each of these
runs, and lets the worker die at each step behind that. Without `--program` and `--event` all are taken, one after the
other."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

from search.campaigns.rescales import follows_slots
from search.programs.golden import LOOPS, PROGRAMS, SILENT
from search.scenarios import MS, Scenario, Verdict, run_scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.workers.autoscaling import ScaleSettings
from tailrace.testing.faults import Fault

POLICIES = {
    "aligned": {"overtakes_after": -1},
    "unaligned": {"overtakes_after": 0},
    "capped": {"overtakes_after": 0, "most_inflight": 300},
    "continuous": {"overtakes_after": 0, "ahead": True},
}
"""Settings of checkpoints, by the name of a policy."""
STANDBYS = ("none", "started", "warm", "hot")
"""Kinds of standby: lost workers are not replaced; processes are started to replace them; processes stand by; processes do
what the workers do."""
RECORDS = 20
"""Least number of records of a short run, where the program has as many."""
PATIENCE = 20_000
"""Number of turns behind its last event after which a run counts as one that never ends."""


@dataclass(frozen=True)
class Happening:
    """An event that may happen at any step."""

    faults: tuple[Fault, ...]
    """The faults of the event; their turns count from the step."""
    took: tuple[str, ...]
    """Counts that show that it took effect."""
    shape: Callable[[Scenario], Scenario] = lambda made: made
    sizes: tuple[int, ...] = ()
    """Sizes of which one is drawn for each step; without them a worker, or a link, is drawn."""


def _executors(made: Scenario) -> Scenario:
    """The scenario with two task slots in each executor."""
    return replace(made, parallelism=3, executor_slots=2)


def _elastic(made: Scenario) -> Scenario:
    """The scenario with a job that has as many workers as there are task slots, two at first."""
    return replace(made, parallelism=1, elastic=(1, 3), slots=2 + made.spares) if follows_slots(made.program) else made


def _by_load(made: Scenario) -> Scenario:
    """The scenario of `_elastic` with one worker at first, where the load decides how many of the task slots are used."""
    made = _elastic(made)
    scale = ScaleSettings(target_busy=0.1, lag=30.0, cooldown=400)
    return replace(made, scale=scale, slots=made.slots - 1) if made.elastic else made


def _logged(made: Scenario) -> Scenario:
    """The scenario with a log of the coordinator: workers wait for another one."""
    return replace(made, log=2_000)


EVENTS = {
    "kill": Happening((Fault(0, "kill"),), ("killed",)),
    "executor": Happening((Fault(0, "lose-executor"),), ("lost an executor",), _executors),
    "move": Happening((Fault(0, "move"),), ("moved a worker alone", "moved a worker")),
    "move-late": Happening((Fault(0, "move", duration=1 * MS),), ("its machine has gone",)),
    "freeze": Happening((Fault(0, "freeze", duration=90 * MS),), ("froze a worker",)),
    "raise": Happening((Fault(0, "raise"),), ("raised an error in user code",)),
    "raise-again": Happening((Fault(0, "raise", times=2),), ("raised an error in user code",)),
    "cut-link": Happening((Fault(0, "cut-link"),), ("cut a link",)),
    "rescale": Happening((Fault(0, "rescale"),), ("changed the size",), sizes=(1, 3)),
    "slots": Happening(
        (Fault(0, "slots", 1), Fault(120, "slots", 6)),
        ("went on with fewer workers", "moved to another size"),
        _elastic,
    ),
    "load": Happening((Fault(0, "slots", 6),), ("was sized by the load",), _by_load),
    "coordinator": Happening((Fault(0, "lose-coordinator"),), ("lost the coordinator alone",)),
    "coordinator-waited-for": Happening((Fault(0, "lose-coordinator"),), ("lost the coordinator alone",), _logged),
    "driver": Happening((Fault(0, "crash-driver"),), ("crashed the driver",)),
}
"""Events, by name."""
PAIRS = tuple(
    [
        f"rescale+{name}"
        for name in ("kill", "executor", "freeze", "raise", "cut-link", "coordinator", "driver", "rescale")
    ]
    + [f"kill+{name}" for name in ("kill", "cut-link", "coordinator-waited-for", "rescale")]
    + ["load+kill", "slots+kill", "move+kill"]
)
"""Pairs of events: the first one happens in each run, the second one at each step behind it."""
FIGURES = ("replaced a worker", "restarted", "changed the size", "moved to another size")
"""Counts that are printed for each event."""


@dataclass(frozen=True)
class Way:
    """A program, the event that happens to it, and the policy and the standbys under which it runs."""

    program: str
    event: str
    policy: str = "aligned"
    standbys: str = "warm"
    seed: int = 0

    @property
    def events(self) -> list[Happening]:
        """The event, or the two of a pair."""
        return [EVENTS[name] for name in self.event.split("+")]

    @property
    def undisturbed(self) -> Scenario:
        """The scenario in which nothing happens."""
        short = self.program not in SILENT
        n = min(PROGRAMS[self.program].n, max(RECORDS, PROGRAMS[self.program].n // 5)) if short else 20
        hot, narrow = self.standbys == "hot", self.policy != "aligned"
        made = Scenario(
            self.seed,
            self.program,
            n,
            parallelism=2,
            max_parallelism=16,
            rate=None
            if self.program in LOOPS
            else n * 1e3 / (8 if hot else 4),  # a hot standby follows only what lasts
            checkpoints=CheckpointSettings(
                interval=(2 if hot else 1) * MS,
                timeout=600_000_000,
                tolerated_failures=10_000,
                **POLICIES[self.policy],  # type: ignore[arg-type]
            ),
            window=200 if narrow else None,  # so that records are in flight
            replaces=self.standbys != "none",
            spares={"warm": 1, "hot": 2}.get(self.standbys, 0),
            hot=hot,
            patience=PATIENCE,
        )
        for event in self.events:
            made = event.shape(made)
        return made

    def at(self, turn: int, turns: int) -> Scenario:
        """The scenario in which the event happens at a turn, of a run that has so many without it. The turn decides to
        which worker. The second event of a pair happens so many turns behind the first one."""
        made, faults = self.undisturbed, list[Fault]()
        at = 0 if len(self.events) == 1 else turns // 3
        for number, event in enumerate(self.events):
            at += turn if number == len(self.events) - 1 else 0
            rng = random.Random(f"tailrace each step {self.seed} {turn} {number}")
            for fault in event.faults:
                which = fault.which or (rng.choice(event.sizes) if event.sizes else rng.randrange(6))
                faults.append(replace(fault, turn=at + fault.turn, which=which, other=_other(rng, fault)))
        return replace(made, faults=tuple(faults))

    def turns(self) -> tuple[int, Verdict]:
        """The number of turns in which nothing happens, and what became of that run."""
        return _undisturbed(self.undisturbed)

    def command(self, turn: int) -> str:
        """The command that repeats one run."""
        return (
            f"python -m search.campaigns.each_step --program {self.program} --event {self.event} --policy {self.policy} "
            f"--standbys {self.standbys} --seed {self.seed} --at {turn} --trace"
        )


def _other(rng: random.Random, fault: Fault) -> int:
    """The second choice of a fault: a link, an operator, or who reports a move."""
    return rng.randrange(2) if fault.kind == "move" else rng.randrange(6)


@cache
def _undisturbed(made: Scenario) -> tuple[int, Verdict]:
    verdict = run_scenario(made)
    return verdict.turns, verdict


@dataclass
class Steps:
    """What the runs of an event have shown."""

    event: str
    covered: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    """Texts about the runs that went wrong, each with the command that repeats it."""

    @property
    def text(self) -> str:
        """A line of figures."""
        counts = [f"{self.covered[what]} {what}" for what in FIGURES]
        runs = f"{self.covered['runs']} runs, in {self.covered['took effect']} it took effect"
        return f"{self.event}: {', '.join([runs, *counts])}, {len(self.failed)} failures"

    def add(self, way: Way, turn: int | None, verdict: Verdict) -> None:
        """Counts a run in which the event happened at a turn; None: it did not happen."""
        self.covered.update(verdict.covered)
        self.covered["runs"] += 1
        if turn is not None and any(verdict.covered[what] for what in way.events[-1].took):
            self.covered["took effect"] += 1
        if verdict.wrong:
            where = f"{way.program}, {way.event} at turn {turn}, {way.policy}, {way.standbys}"
            again = way.command(-1 if turn is None else turn)
            self.failed.append("\n".join([where, *(f"  {one}" for one in verdict.wrong[:5]), f"  again: {again}"]))


def ways(
    programs: Iterable[str],
    events: Iterable[str],
    policies: Iterable[str] = tuple(POLICIES),
    standbys: Iterable[str] = STANDBYS,
    seed: int = 0,
) -> Iterator[Way]:
    """All ways to run these. Elastic jobs are left out where the program cannot be one."""
    for event, program, policy, kind in product(events, programs, policies, standbys):
        way = Way(program, event, policy, kind, seed)
        if any(one.shape in (_elastic, _by_load) for one in way.events) and not follows_slots(program):
            continue
        if kind == "none" or PROGRAMS[program].replaced:
            yield way


def each_step(taken: Iterable[Way], every: int, seconds: float | None = None) -> Iterator[Steps]:
    """Runs each way at every so-manieth turn; each begins at another one of the first turns. Yields what each event has
    shown. `seconds`: no run begins after so many."""
    until = None if seconds is None else time.monotonic() + seconds
    steps: Steps | None = None
    for number, way in enumerate(taken):
        if steps is None or steps.event != way.event:
            if steps is not None:
                yield steps
            steps = Steps(way.event)
        turns, plain = way.turns()
        if plain.wrong:
            steps.add(way, None, plain)
            continue
        first = random.Random(f"tailrace first step {way.seed} {number}").randrange(every)
        for turn in range(first, turns, every):
            if until is not None and time.monotonic() > until:
                yield steps
                return
            steps.add(way, turn, run_scenario(way.at(turn, turns)))
    if steps is not None:
        yield steps


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.campaigns.each_step", description=__doc__)
    parser.add_argument("--program", choices=sorted(PROGRAMS), help="run this golden program only")
    parser.add_argument("--event", choices=[*EVENTS, *PAIRS], help="let only this happen")
    parser.add_argument("--policy", choices=list(POLICIES), help="take checkpoints in this way only")
    parser.add_argument("--standbys", choices=STANDBYS, help="replace lost workers in this way only")
    parser.add_argument("--every", type=int, default=200, help="turns from one step to the next (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of all runs (default: 0)")
    parser.add_argument("--seconds", type=float, help="begin no other run after this many seconds")
    parser.add_argument("--at", type=int, help="run this turn only; -1: let nothing happen")
    parser.add_argument("--trace", action="store_true", help="with --at: print the history")
    options = parser.parse_args(arguments)
    taken = ways(
        [options.program] if options.program else PROGRAMS,
        [options.event] if options.event else [*EVENTS, *PAIRS],
        [options.policy] if options.policy else POLICIES,
        [options.standbys] if options.standbys else STANDBYS,
        options.seed,
    )
    if options.at is not None:
        return _one(taken, options.at, options.trace)
    failures = runs = 0
    for steps in each_step(taken, options.every, options.seconds):
        print(steps.text, flush=True)
        print("".join(f"{one}\n" for one in steps.failed), end="", file=sys.stderr, flush=True)
        failures, runs = failures + len(steps.failed), runs + steps.covered["runs"]
    print(f"{runs} runs, {failures} failures")
    return 1 if failures else 0


def _one(taken: Iterable[Way], turn: int, trace: bool) -> int:
    worst = 0
    for way in taken:
        made = way.undisturbed if turn < 0 else way.at(turn, way.turns()[0])
        verdict = run_scenario(made, keep_trace=trace)
        print(made)
        print("\n".join(verdict.trace))
        print("\n".join([*verdict.wrong, *verdict.waits]) or "nothing went wrong", verdict.digest)
        worst |= bool(verdict.wrong)
    return worst


if __name__ == "__main__":
    sys.exit(main())
