"""Draws of runs on real Spark: a golden program of some kind, a way of running it, and what is lost meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import tailrace as tr
from search.campaigns.rescales import follows_slots
from search.programs.golden import LOOPS, PROGRAMS, SILENT
from tailrace.errors import GraphError

_NAMED = {
    "plain": (
        *("counted", "by_classes", "aggregated", "windowed", "in_event_time", "in_place", "joined"),
        *("ruled", "called", "finished"),
    ),
    "columns": ("in_columns", "of_one_type", "set_aside"),
    "nested loops": ("nested", "entered_inside"),
    "Combine": ("merged",),
    "rounds": ("shared_out", "judged", "run_dry", "widened", "apart", "held_beside", "within_hours"),
}
KINDS: dict[str, tuple[str, ...]] = _NAMED | {
    "loops": tuple(name for name in LOOPS if name not in (*SILENT, *(one for kind in _NAMED.values() for one in kind)))
}
"""The programs of each kind. A kind is drawn as often as any other one, however few programs it has."""
LOSSES = ("worker", "executor", "two workers", "move", "exception", "frozen worker")
WAYS = {
    "policy": ("aligned", "unaligned", "capped", "continuous"),
    "state": ("memory", "disk"),
    "place": ("files", "S3"),
    "standby": ("no standby", "started", "ready", "two at once", "hot"),
    "then": ("nothing", "a savepoint", "a stop", "another size"),
    "size": ("fixed", "elastic", "autoscaled"),
}
"""What is drawn of a way of running, by the field of `SparkRun`."""


@dataclass(frozen=True)
class SparkRun:
    """One run: a program, the way in which it runs, and what is lost meanwhile."""

    seed: int
    kind: str
    program: str
    parallelism: int
    policy: str
    """The mode of checkpoints, with `continuous` where records in flight are written all the time."""
    state: str
    place: str
    """The storage of checkpoints: "files" or "S3"."""
    standby: str
    """"no standby", "started" (a process is started when a worker is lost), "ready", "two at once", or "hot"."""
    then: str
    """What a user does meanwhile: "nothing", "a savepoint", "a stop" behind which the job starts again, or "another size",
    and back."""
    size: str
    """"fixed"; "elastic": other tasks take the slots that are free, and those of lost workers, for a while; "autoscaled"."""
    losses: tuple[str, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        """The way of running, without the program."""
        return tuple(getattr(self, way) for way in WAYS)

    @property
    def text(self) -> str:
        losses = ", then ".join(self.losses)
        return (
            f"seed {self.seed}: {self.kind}: {self.program} x{self.parallelism}, {', '.join(self.ways)}; lost: {losses}"
        )


def draw(seed: int) -> SparkRun:
    """The run of a seed."""
    rng = random.Random(f"tailrace pair on spark {seed}")
    kind = rng.choice(sorted(KINDS))
    made = SparkRun(
        seed,
        kind,
        program=rng.choice(KINDS[kind]),
        parallelism=rng.choice([2, 2, 3]),
        policy=rng.choice(WAYS["policy"]),
        state=rng.choice(WAYS["state"]),
        place=rng.choice(["files", "files", "S3"]),
        standby=rng.choice(["no standby", "started", "ready", "two at once", "hot", "hot"]),
        then=rng.choice(["nothing", "nothing", "a savepoint", "a stop", "another size"]),
        size=rng.choice(["fixed", "fixed", "elastic", "elastic", "autoscaled"]),
        losses=tuple(rng.choice(LOSSES) for _ in range(rng.choice([1, 1, 2]))),
    )
    if not PROGRAMS[made.program].replaced:
        made = replace(made, standby="no standby")
    if made.standby == "hot" and not has_hot_standbys(made.program):
        made = replace(made, standby="ready")
    return made if follows_slots(made.program) else replace(made, size="fixed")


@cache
def has_hot_standbys(program: str) -> bool:
    """True if a golden program may have hot standbys."""
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("memory"), standby=tr.StandbyConfig(mode="hot"))
    PROGRAMS[program].build(env, 1, None).sink_to(tr.sinks.Collect())
    try:
        env._plan(env._pending())
    except GraphError:
        return False
    return True
