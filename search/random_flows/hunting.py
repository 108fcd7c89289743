"""The search through the seeds of random flows, and its report of what they covered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from search.random_flows.drawing import MOMENTS, Run, draw, options
from search.random_flows.running import Outcome, carry_out

EXPECTED: dict[str, frozenset[Any]] = {
    "network": frozenset({"fast", "uneven", "slow", "in small steps"}),
    "checkpoints": frozenset({True, False}),
    "max_concurrent": frozenset({1, 2, 3}),
    "min_pause": frozenset({True, False}),
    "short timeout": frozenset({True, False}),
    "keep": frozenset({1, 3}),
    "restarts": frozenset({"fixed", "exponential"}),
    "pause": frozenset({True, False}),
    "narrow window": frozenset({True, False}),
    "incremental": frozenset({True, False}),
    "in pieces": frozenset({True, False}),
    "debug": frozenset({True, False}),
    "copies": frozenset({True, False}),
    "eager": frozenset({True, False}),
    "undisturbed": frozenset({True, False}),
    "parallelism": frozenset({1, 2, 3}),
    "max_parallelism": frozenset({4, 16, 128}),
    "partitioning": frozenset({"forward", "rebalance", "shuffle", "rescale", "partition_by"}),
    "parallelism of an operator": frozenset({None, 1, 2, 3}),
    "loops": frozenset({0, 1, 2, 3, 4}),
    "level": frozenset({0, 1, 2}),
    "fork": frozenset({True, False}),
    "endless": frozenset({True, False}),
    "splits": frozenset({1, 2, 3, 5}),
    "found": frozenset({None, "finding", "anew"}),
    "pauses": frozenset({0, 6}),
    "disorder": frozenset({0, 2, 6}),
    "silence": frozenset({True, False}),
    "falls silent": frozenset({True, False}),
    "goes on": frozenset({True, False}),
    "ahead": frozenset({True, False}),
    "drift": frozenset({None, 0, 1, 3}),
    "pace": frozenset({0, 300, 2_000}),
    "phases": frozenset({1, 2, 3}),
    "left at": frozenset({"", *MOMENTS}),
    "comes later": frozenset({True, False}),
    "another parallelism": frozenset({True, False}),
    "backend": frozenset({"memory", "disk"}),
    "sink": frozenset({None, 1, 2}),
    "fault": frozenset(
        {
            "kill",
            "respawn",
            "move",
            "freeze",
            "cut-link",
            "delay",
            "checkpoint",
            "crash-driver",
            "freeze-driver",
            "storage",
            "jump-clock",
        }
    ),
    "storage": frozenset({"error", "unknown-done", "any"}),
    "loop: laps": frozenset({1, 2, 3, 4}),
    "loop: feedback": frozenset(
        {"plain", "two", "rebalance", "partition_by", "shuffle", "rescale", "columns", "broadcast", "mixed"},
    ),
    "loop: astray": frozenset({True, False}),
    "stamped inside": frozenset({True, False}),
    "loop: separate": frozenset({True, False}),
    "loop: combine": frozenset({True, False}),
    "loop: spill": frozenset({None, 0, 100, 2_000}),
    "loop: priority": frozenset({"adaptive", "feedback-first"}),
    "loop: parallelism": frozenset({None, 1, 2, 3}),
    "loop: rounds": frozenset({None, "until dry", "at most", "until"}),
    "loop: span": frozenset({None, 8, 16, 24}),
    "place of an operator": frozenset(
        (kind, place)
        for kind, places in {
            "map": 3,
            "twin": 1,
            "count": 3,
            "bags": 3,
            "reducing": 3,
            "running": 3,
            "running in columns": 3,
            "batches": 3,
            "join": 3,
            "owner": 3,
            "hoard": 3,
            "later": 3,
            "held": 3,
            "last call": 3,
            "at the end": 3,
            "tumbling": 3,
            "sliding": 3,
            "windows of columns": 3,
            "more": 3,
            "extra": 3,
            "sets": 2,
            "sets in flight": 1,
            "ties": 2,
            "readings": 2,
            "together": 2,
            "failing": 2,
            "sessions": 1,
            "sessions of columns": 1,
            "counted": 1,
            "ruled": 2,
            "distinct": 2,
            "distinct in columns": 2,
            "distinct within": 1,
            "best": 1,
            "batched": 1,
            "last of each": 1,
            "lagged": 1,
            "limited": 1,
            "looked up": 1,
            "fired": 1,
            "fired of columns": 1,
        }.items()
        for place in ("outside", "in a loop", "in loops")[:places]
    )
    | {("in order", "outside"), ("both in order", "outside"), ("lived", "outside")}
    | {(kind, "outside") for kind in ("interval join", "interval join of columns")}
    | {(f"{kind} join{form}", "outside") for kind in ("window", "version") for form in ("", " of columns")}
    | {("session join of columns", "outside"), ("lists of columns", "outside")}
    | {("ruled in order", "outside"), ("called", "outside"), ("whole", "outside"), ("changes joined", "outside")}
    | {("to the round's end", "in a loop"), ("times", "in a loop"), ("times", "in loops")},
}
"""Values that many seeds must have drawn: each value of each option, and each operator at each place."""


@dataclass
class Hunt:
    """Result of a search through random flows."""

    covered: Counter[str] = field(default_factory=Counter)
    chosen: dict[str, Counter[Any]] = field(default_factory=dict)
    """Number of runs that had each value of an option."""
    failed: list[Outcome] = field(default_factory=list)

    def note(self, run: Run) -> None:
        """Counts one more run."""
        for option, values in options(run).items():
            self.chosen.setdefault(option, Counter()).update(values)

    def missing(self) -> list[tuple[str, list[Any]]]:
        """Values of options that no run had."""
        found = [
            (option, sorted(values - set(self.chosen.get(option, ())), key=str)) for option, values in EXPECTED.items()
        ]
        return [(option, values) for option, values in found if values]


def hunt(
    seeds: Iterable[int],
    *,
    stop: bool = True,
    seconds: float | None = None,
    tune: Callable[[Run], Run | None] = lambda run: run,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> Hunt:
    """Carries out the runs of these seeds, for at most so many seconds. `tune` changes a run, or leaves it out. `report` is
    called at once with each outcome that went wrong."""
    found = Hunt()
    until = None if seconds is None else time.monotonic() + seconds
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            break
        found.covered["seeds"] += 1
        run = tune(draw(seed))
        if run is None:
            continue
        found.note(run)
        outcome = carry_out(run)
        found.covered.update(outcome.covered)
        found.covered["runs"] += 1
        found.covered["turns"] += outcome.turns
        if outcome.wrong:
            found.failed.append(outcome)
            report(outcome)
            if stop:
                break
    return found
