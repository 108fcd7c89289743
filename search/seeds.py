"""The common part of the commands that search through seeds, one after the other."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class Outcome(Protocol):
    """Result of one seed."""

    @property
    def covered(self) -> Counter[str]:
        """Counts of what has occurred."""

    @property
    def wrong(self) -> list[str]:
        """Descriptions of what went wrong."""

    @property
    def text(self) -> str:
        """The whole result, as text."""


@dataclass
class SearchOutcome:
    """Result of one seed of a search that has an option of its own."""

    search: str
    """The option: `outages` for `python -m search --outages`."""
    seed: int
    wrong: list[str] = field(default_factory=list)
    covered: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """Description of a failure, with the command that repeats it."""
        again = f"python -m search --{self.search} --seeds {self.seed}:{self.seed + 1}"
        return "\n".join(
            [f"{self.search}, seed {self.seed}:", *(f"  {one}" for one in self.wrong[:5]), f"  again: {again}"]
        )


T = TypeVar("T", bound=Outcome)


def seeds_of(text: str) -> range:
    """The seeds of `FIRST:LAST`, LAST excluded, or of a single one."""
    first, _, last = text.partition(":")
    return range(int(first), int(last) if last else int(first) + 1)


def run_seeds(
    seeds: Iterable[int], run: Callable[[int], T], *, stop: bool = True, seconds: float | None = None
) -> tuple[Counter[str], list[T]]:
    """Runs these seeds. Returns (counts of what was covered, outcomes that went wrong). `stop`: the search ends at the
    first such outcome; `seconds`: no seed begins after so many."""
    covered: Counter[str] = Counter()
    failed: list[T] = []
    until = None if seconds is None else time.monotonic() + seconds
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            break
        outcome = run(seed)
        covered.update(outcome.covered)
        covered["seeds"] += 1
        if outcome.wrong:
            failed.append(outcome)
            if stop:
                break
    return covered, failed


def report(covered: Counter[str], failed: Sequence[Outcome], started: float) -> int:
    """Prints the result of a search that began at `started`, by `time.monotonic()`. Returns the exit code of its
    command."""
    for outcome in failed:
        print(outcome.text, file=sys.stderr)
    print(f"{covered['seeds']} seeds, {len(failed)} failures, {time.monotonic() - started:.0f} s")
    for what, count in sorted(covered.items()):
        print(f"{count:>9}  {what}")
    return 1 if failed else 0
