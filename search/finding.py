"""Report of how soon the searches find a planted bug: the search through golden programs, or the one through random
flows."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from search import changes, followed, marks, outages, servers, stops
from search.__main__ import search
from search.campaigns.each_step import Way
from search.planted.patches import CHANGES, EACH_STEP, FOLLOWED, MARKS, OUTAGES, RANDOM, SERVERS, STOPS, Bug
from search.planted.table import BUGS, plant
from search.random_flows.hunting import hunt
from search.replay import replays
from search.scenarios import Scenario, run_scenario

EVERY = 5
"""Turns from one step to the next, where a bug is looked for at each step."""
TURNS = 20_000
"""Number of turns after which a golden program with a bug in it counts as one that never ends."""


@dataclass(frozen=True)
class Found:
    """The place where a bug was found."""

    bug: str
    search: str
    """Name of the golden program, or "random", "outages", "servers", "marks", "followed", "stops", "changes" or "each
    step"."""
    seed: int
    wrong: tuple[str, ...]
    seconds: float


def find(name: str, seeds: int = 60, *, known: bool = True, anywhere: bool = False) -> Found | None:
    """Looks for a planted bug, through so many seeds. The first seed is the one that is known to show it, or 0. With
    `anywhere`, looks in random flows, whatever program the bug names."""
    bug = BUGS[name]
    first = bug.seed if known and not anywhere else 0
    starts = [range(first, first + seeds), range(min(first, seeds))]
    begun = time.monotonic()
    program = RANDOM if anywhere else bug.program
    with plant(name):
        for tried in starts:
            found = _replays(bug, tried) if bug.replayed else SEARCHES.get(program, _golden)(bug, tried)
            if found is not None:
                return Found(name, program, found[0], tuple(found[1]), time.monotonic() - begun)
    return None


def _golden(bug: Bug, seeds: range) -> tuple[int, list[str]] | None:
    def tune(made: Scenario) -> Scenario:
        return replace(bug.tune_scenario(made), max_turns=TURNS)

    _, failed = search(seeds, bug.program, tune=tune)
    return (failed[0].scenario.seed, failed[0].wrong) if failed else None


def _random(bug: Bug, seeds: range) -> tuple[int, list[str]] | None:
    failed = hunt(seeds, tune=bug.tuned_run).failed
    return (failed[0].run.seed, failed[0].wrong) if failed else None


def _seeds_of(look: Callable[..., Any]) -> Callable[[Bug, range], tuple[int, list[str]] | None]:
    """The search by seeds alone."""

    def found(bug: Bug, seeds: range) -> tuple[int, list[str]] | None:
        _, failed = look(seeds)
        return (failed[0].seed, failed[0].wrong) if failed else None

    return found


def _stops(bug: Bug, seeds: range) -> tuple[int, list[str]] | None:
    _, failed = stops.look(seeds, tune=bug.tune)
    return (failed[0].seed, failed[0].wrong) if failed else None


def _changes(bug: Bug, seeds: range) -> tuple[int, list[str]] | None:
    _, failed = changes.look(seeds)
    return (failed[0].change.seed, failed[0].wrong) if failed else None


def _replays(bug: Bug, seeds: range) -> tuple[int, list[str]] | None:
    for seed, replay in zip(seeds, replays(seeds, bug.program, bug=bug.name, tune=bug.tune), strict=True):
        if replay.differences:
            return seed, [" ".join(str(one).split()) for one in replay.differences]
    return None


def _each_step(bug: Bug, steps: range) -> tuple[int, list[str]] | None:
    way: Way = bug.tune(None)
    turns, _ = way.turns()
    for step in steps:
        verdict = run_scenario(way.at(step * EVERY, turns))
        if verdict.wrong:
            return step, verdict.wrong
    return None


SEARCHES = {
    RANDOM: _random,
    **{
        name: _seeds_of(one.look)
        for name, one in ((OUTAGES, outages), (SERVERS, servers), (MARKS, marks), (FOLLOWED, followed))
    },
    STOPS: _stops,
    CHANGES: _changes,
    EACH_STEP: _each_step,
}
"""Searches for bugs that no golden program shows."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. It prints which search finds which bug, and how soon."""
    parser = argparse.ArgumentParser(prog="python -m search.finding", description=__doc__)
    parser.add_argument("bugs", nargs="*", help="planted bugs, by their names or parts of these (default: all)")
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to try for each bug (default: 500)")
    parser.add_argument("--random", action="store_true", help="look in random flows only")
    parser.add_argument("--known", action="store_true", help="begin at the seed at which a bug is known to be found")
    options = parser.parse_args(arguments)
    missed = 0
    for name in BUGS:
        if options.bugs and not any(part in name for part in options.bugs):
            continue
        found = find(name, options.seeds, known=options.known, anywhere=options.random)
        missed += found is None
        result = (
            "not found" if found is None else f"{found.search} {found.seed}, {found.seconds:.0f} s: {found.wrong[0]}"
        )
        print(f"{name}: {result}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
