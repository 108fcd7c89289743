"""Searches for a seed under which a job is not exactly once: `python -m search --seeds 0:2000` goes through the golden
programs, with `--random` through random dataflows, with `--outages` through stores that come and go, with `--servers`
through servers that do, with `--marks` through servers that write with marks, with `--followed` through files that change
while they are read."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from search import followed, marks, outages, servers
from search.campaigns.replacements import TUNES, run_of
from search.campaigns.rescales import SIZES
from search.programs.golden import PROGRAMS
from search.random_flows.drawing import Run, draw
from search.random_flows.hunting import Hunt, hunt
from search.random_flows.running import Outcome, carry_out, story
from search.random_flows.shrinking import shrunk
from search.scenarios import Scenario, Verdict, run_scenario, scenario
from search.seeds import seeds_of

FIGURES = (
    "completed a checkpoint",
    "completed the last checkpoint",
    "aborted a checkpoint",
    "several checkpoints under way",
    "a checkpoint when some had finished",
    "a checkpoint that refers to others",
    "went on from some moment",
    "restarted",
    "killed",
    "respawned",
    "lost a worker during recovery",
    "froze a worker",
    "cut a link",
    "delayed a link",
    "asked for a checkpoint",
    "crashed the driver",
    "froze the driver",
    "lost the driver during recovery",
    "fenced commits",
    "a dead party's storage operation was carried out",
    "storage in trouble",
    "storage faults",
    "leftovers removed",
    "published",
    "published again",
    "settled",
    "set the clock of the driver",
    "set the clock of a worker",
    "a driver began behind a jump of its clock",
    "compared with a run without jumps",
    "read output that sinks have prepared",
    "began a wave",
    "let event time leave a loop",
    "brought event time in a loop to its end",
    "had functions finish in a loop",
    "ended a loop",
    "a checkpoint with feedback in it",
    "records of feedback in checkpoints",
    "records of feedback restored",
    "records of feedback spilled",
)

OF_SIZES = (
    "asked for another size",
    "moved to another size",
    "changed the size",
    "went back to the size before",
    "has fewer task slots",
    "has more task slots",
    "went on with fewer workers",
    "was sized by the load",
)
"""What runs with `--sizes` cover, and no others."""

OTHERS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "outages": (
        outages.look,
        "refused by the store of a sink",
        "run sinks of files on a store that fails now and then",
    ),
    "servers": (servers.look, "a sink that publishes was refused", "publish into a server that is slow, or away"),
    "marks": (marks.look, "started again from a checkpoint", "publish with marks, and start again from checkpoints"),
    "followed": (followed.look, "rotated a followed file", "follow files that grow, are rotated and appear"),
}
"""Option of a search of its own -> its function, what it counts, and help."""

MANY = 1_000
"""Number of random dataflows after which every value of every option must have occurred."""


def search(
    seeds: Iterable[int],
    program: str | None = None,
    *,
    stop: bool = True,
    seconds: float | None = None,
    tune: Callable[[Scenario], Scenario] = lambda made: made,
) -> tuple[Counter[str], list[Verdict]]:
    """Runs the scenarios of these seeds, as `tune` has changed them, for at most so many seconds. Returns (counts of what
    was covered, verdicts that found something wrong)."""
    covered: Counter[str] = Counter()
    failed: list[Verdict] = []
    until = None if seconds is None else time.monotonic() + seconds
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            break
        verdict = run_scenario(tune(scenario(seed, program)))
        covered.update(verdict.covered)
        covered["runs"] += 1
        covered["turns"] += verdict.turns
        if verdict.wrong:
            failed.append(verdict)
            if stop:
                break
    return covered, failed


def text_of(verdict: Verdict) -> str:
    """Description of a failure, with the command that repeats it."""
    lines = [f"seed {verdict.scenario.seed}, program {verdict.scenario.program}:"]
    lines += [f"  {wrong}" for wrong in verdict.wrong[:5]]
    lines += [f"    {line}" for line in verdict.waits]
    return "\n".join([*lines, f"  again: {verdict.command}"])


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="FIRST:LAST, LAST excluded, or a single seed (default: 0:200)")
    parser.add_argument("--program", choices=sorted(PROGRAMS), help="run this golden program only")
    parser.add_argument("--random", action="store_true", help="run random dataflows, not the golden programs")
    for name, (_, _, text) in OTHERS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--seconds", type=float, help="begin no other seed after this many seconds")
    parser.add_argument(
        "--shrink", action="store_true", help="with --random: shrink each dataflow that fails, and print it"
    )
    parser.add_argument("--lost", choices=sorted(TUNES), help="lose workers that are replaced while the others go on")
    parser.add_argument("--sizes", choices=sorted(SIZES), help="change the size of the jobs of golden programs")
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    parser.add_argument("--trace", action="store_true", help="print the history of each seed")
    options = parser.parse_args(arguments)
    seeds = seeds_of(options.seeds)
    if options.random and options.program:
        parser.error("--program names a golden program, so it does not go with --random")
    if not options.random and options.shrink:
        parser.error("--shrink needs --random: golden programs are not shrunk")
    for name, (look, what, _) in OTHERS.items():
        if getattr(options, name):
            return _files(seeds, options, look, what)
    tune = TUNES[options.lost] if options.lost else SIZES.get(options.sizes, lambda made: made)
    if options.random:
        shape = run_of(tune) if options.lost else lambda run: run
        return _random_traced(seeds, shape) if options.trace else _random(seeds, options, shape)
    if options.trace:
        return _trace(seeds, options.program, tune)
    started = time.monotonic()
    covered, failed = search(seeds, options.program, stop=not options.all, seconds=options.seconds, tune=tune)
    for verdict in failed:
        print(text_of(verdict) + _ending(options), file=sys.stderr)
    print(f"{covered['runs']} runs, {covered['turns']} turns, {time.monotonic() - started:.0f} s")
    for what in (*FIGURES, *OF_SIZES):
        print(f"{covered[what]:>9}  {what}")
    return 1 if failed else 0


def _ending(options: argparse.Namespace) -> str:
    """End of the command that repeats a failure."""
    return f" --lost {options.lost}" if options.lost else f" --sizes {options.sizes}" if options.sizes else ""


def _files(seeds: Iterable[int], options: argparse.Namespace, look: Callable[..., Any], what: str) -> int:
    covered, failed = look(seeds, stop=not options.all, seconds=options.seconds)
    for outcome in failed:
        print(outcome.text, file=sys.stderr)
    print(f"{covered['seeds']} runs, {covered['restarted']} restarts, {covered[what]} {what}")
    return 1 if failed else 0


# Random dataflows.


def _random(seeds: Iterable[int], options: argparse.Namespace, shape: Callable[[Run], Run]) -> int:
    started = time.monotonic()

    def say(outcome: Outcome) -> None:
        print(outcome.text + _ending(options), file=sys.stderr, flush=True)
        if options.shrink:
            print(_shortest(outcome.run), file=sys.stderr, flush=True)

    found = hunt(seeds, stop=not options.all, seconds=options.seconds, tune=shape, report=say)
    covered = found.covered
    print(f"{covered['runs']} runs, {covered['turns']} turns, {time.monotonic() - started:.0f} s")
    print("\n".join(covered_by(found)))
    return 1 if found.failed else 0


def covered_by(found: Hunt) -> Iterable[str]:
    """Lines on what random dataflows have covered."""
    for what in (*FIGURES, *OF_SIZES):
        yield f"{found.covered[what]:>9}  {what}"
    for option, values in sorted(found.chosen.items()):
        yield f"{option}: " + ", ".join(f"{value} {count}" for value, count in sorted(values.items(), key=str))
    for option, missing in found.missing() if found.covered["runs"] >= MANY else ():
        yield f"no run had {option}: {', '.join(map(str, missing))}"


def _shortest(run: Run) -> str:
    short = shrunk(run)
    outcome = carry_out(short)
    lines = [f"cut down, with seed {run.seed}:", *(f"  {wrong}" for wrong in outcome.wrong[:5])]
    return "\n".join([*lines, *(f"    {line}" for line in outcome.idle), story(short)])


def _random_traced(seeds: Iterable[int], shape: Callable[[Run], Run]) -> int:
    worst = 0
    for seed in seeds:
        outcome = carry_out(shape(draw(seed)), keep_trace=True)
        print(story(outcome.run))
        print("\n".join(outcome.trace))
        print(outcome.text if outcome.wrong else "nothing went wrong", outcome.digest)
        worst |= bool(outcome.wrong)
    return worst


# Golden programs.


def _trace(seeds: Iterable[int], program: str | None, tune: Callable[[Scenario], Scenario]) -> int:
    worst = 0
    for seed in seeds:
        verdict = run_scenario(tune(scenario(seed, program)), keep_trace=True)
        print(verdict.scenario)
        print("\n".join(verdict.trace))
        print(text_of(verdict) if verdict.wrong else "nothing went wrong", verdict.digest)
        worst |= bool(verdict.wrong)
    return worst


if __name__ == "__main__":
    sys.exit(main())
