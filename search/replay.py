"""Replays: what a worker does is a function of its events (K3).

Jobs of the searches run with all their faults, and the events of each worker are recorded. In another process, with
another `PYTHONHASHSEED`, a fresh worker is fed with these events. It must return the same actions after each event, with
its frames and messages equal byte for byte.

`python -m search.replay 0:100` replays the golden programs of these seeds, with `--random` random dataflows.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from search.programs.golden import PROGRAMS
from search.random_flows.drawing import draw
from search.random_flows.running import carry_out
from search.replaying import Difference, differences
from search.scenarios import Scenario, run_scenario, scenario
from search.seeds import seeds_of
from tailrace.testing.otherprocess import OtherProcess, serve
from tailrace.testing.recording import Happened, Recordings, WorkerRecording


@dataclass
class Replay:
    """Result of a seed."""

    what: str
    again: str
    """The command that repeats it."""
    differences: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """Description of the differences, with the command that repeats them."""
        return "\n".join([f"{self.what}:", *(f"    {one}" for one in self.differences[:3]), f"  again: {self.again}"])


# The other process.


class Player:
    """A player of recordings in a process of its own."""

    def __init__(self, bug: str | None = None) -> None:
        bugs = [] if bug is None else ["--bug", bug]
        self._process = OtherProcess("search.replay", "--play", *bugs)

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.__exit__(*exc)

    def play(self, recordings: Recordings) -> list[Difference]:
        """Replays all workers of a run."""
        found: list[Difference] = self._process.request(recordings.workers)
        return found


def _replay_workers(workers: list[WorkerRecording]) -> list[Difference]:
    with tempfile.TemporaryDirectory() as folder:
        return list(differences(workers, folder))


# Whole runs.


def replay_golden(player: Player, what: Scenario) -> Replay:
    """Runs a scenario, and replays its workers."""
    recordings = Recordings()
    verdict = run_scenario(what, recordings=recordings)
    program = f"--program {what.program}"
    again = f"python -m search.replay {what.seed}:{what.seed + 1} {program}"
    replay = Replay(f"seed {what.seed}, program {what.program}", again)
    return _replay(player, recordings, verdict.covered, replay)


def replay_random(player: Player, seed: int) -> Replay:
    """Runs a random dataflow, and replays its workers."""
    recordings, run = Recordings(), draw(seed)
    outcome = carry_out(run, recordings=recordings)
    replay = Replay(f"random seed {seed}", f"python -m search.replay {seed}:{seed + 1} --random")
    return _replay(player, recordings, outcome.covered, replay)


def _replay(player: Player, recordings: Recordings, covered: Counter[str], replay: Replay) -> Replay:
    replay.differences = player.play(recordings)
    stories = [recording.story for recording in recordings.workers]
    replay.counts.update(runs=1, workers=len(stories), restarts=covered["restarted"])
    replay.counts.update(_count(happened for story in stories for happened in story))
    return replay


def _count(story: Iterable[Happened]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for happened in story:
        counts["events"] += 1
        counts["bytes of the log"] += len(happened.entry)
        counts["actions"] += len(happened.actions)
    return counts


def replays(
    seeds: Iterable[int],
    program: str | None = None,
    *,
    bug: str | None = None,
    tune: Callable[[Scenario], Scenario] = lambda made: made,
) -> Iterator[Replay]:
    """Runs and replays the scenarios of these seeds, as `tune` has changed them. A planted `bug` is also planted in the
    other process."""
    with Player(bug) as player:
        for seed in seeds:
            yield replay_golden(player, tune(scenario(seed, program)))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.replay", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="0:50", help="FIRST:LAST, LAST excluded (default: 0:50)")
    parser.add_argument("--program", choices=sorted(PROGRAMS), help="run this golden program only")
    parser.add_argument("--random", action="store_true", help="run random dataflows, not the golden programs")
    parser.add_argument("--all", action="store_true", help="go on after a difference")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bug", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.play:
        return _play(options.bug)
    seeds = seeds_of(options.seeds)
    started, counts, differ = time.monotonic(), Counter[str](), 0
    with Player() as player:
        for seed in seeds:
            if options.random:
                replay = replay_random(player, seed)
            else:
                replay = replay_golden(player, scenario(seed, options.program))
            counts.update(replay.counts)
            if replay.differences:
                differ += 1
                print(replay.text, file=sys.stderr, flush=True)
                if not options.all:
                    break
    print(", ".join(f"{count} {what}" for what, count in counts.items()) + f", {time.monotonic() - started:.0f} s")
    return 1 if differ else 0


def _play(bug: str | None) -> int:
    with contextlib.ExitStack() as stack:
        if bug is not None:
            from search.planted.table import plant

            stack.enter_context(plant(bug))
        serve(_replay_workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
