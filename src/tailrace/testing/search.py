"""Searches for a seed under which a job is not exactly once: `python -m tailrace.testing.search --seeds 0:2000`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable

from tailrace.testing.programs import PROGRAMS
from tailrace.testing.scenarios import Scenario, Verdict, run_scenario, scenario

FIGURES = (
    "completed a checkpoint",
    "completed the last checkpoint",
    "aborted a checkpoint",
    "several checkpoints under way",
    "a checkpoint when some had finished",
    "a checkpoint that refers to others",
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


def search(
    seeds: Iterable[int],
    program: str | None = None,
    *,
    stop: bool = True,
    tune: Callable[[Scenario], Scenario] = lambda made: made,
) -> tuple[Counter[str], list[Verdict]]:
    """Runs the scenarios of these seeds, as `tune` has changed them: (what was covered, those that went wrong)."""
    covered: Counter[str] = Counter()
    failed: list[Verdict] = []
    for seed in seeds:
        verdict = run_scenario(tune(scenario(seed, program)))
        covered.update(verdict.covered)
        covered["runs"] += 1
        covered["turns"] += verdict.turns
        if verdict.wrong:
            failed.append(verdict)
            if stop:
                break
    return covered, failed


def told(verdict: Verdict) -> str:
    """A failure, with the command that repeats it."""
    lines = [f"seed {verdict.scenario.seed}, program {verdict.scenario.program}:"]
    lines += [f"  {wrong}" for wrong in verdict.wrong[:5]]
    return "\n".join([*lines, f"  again: {verdict.command}"])


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tailrace.testing.search", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first:last, the last one not included")
    parser.add_argument("--program", choices=sorted(PROGRAMS), help="only this one")
    parser.add_argument("--all", action="store_true", help="goes on after a failure")
    parser.add_argument("--trace", action="store_true", help="prints the history of each seed")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    if options.trace:
        return _traced(seeds, options.program)
    started = time.monotonic()
    covered, failed = search(seeds, options.program, stop=not options.all)
    for verdict in failed:
        print(told(verdict), file=sys.stderr)
    print(f"{covered['runs']} runs, {covered['turns']} turns, {time.monotonic() - started:.0f} s")
    for what in FIGURES:
        print(f"{covered[what]:>9}  {what}")
    return 1 if failed else 0


def _traced(seeds: Iterable[int], program: str | None) -> int:
    worst = 0
    for seed in seeds:
        verdict = run_scenario(scenario(seed, program), keep_trace=True)
        print(verdict.scenario)
        print("\n".join(verdict.trace))
        print(told(verdict) if verdict.wrong else "nothing went wrong", verdict.digest)
        worst |= bool(verdict.wrong)
    return worst


if __name__ == "__main__":
    sys.exit(main())
