"""Planted bugs that no run shows by its result: in one process all is right, and another process that is fed with the
recorded events comes to another result. Replays find them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any
from unittest import mock

from search.campaigns.replacements import following, following_run, replacing_run
from search.planted.patches import RANDOM, Bug, Patches, method
from search.random_flows.description import Do, Events, Flow
from search.random_flows.drawing import Phase, Run
from search.scenarios import Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.services import Services
from tailrace.task.failover.replay import Again
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.clock_readings import GivenReadings
from tailrace.task.journal.outside_answers import Gave, Recorder
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.checkpoints import WorkerCheckpoints
from tailrace.testing.faults import Fault

MS = 1_000


def _turns_by_hash() -> Patches:
    """Bug: channels take turns in the order of a hash, which differs from process to process."""

    def make(take: Any) -> Any:
        def unsettled(self: Gate, limit: int) -> Any:
            self._turn = deque(sorted(self._turn, key=lambda channel: hash(str(channel.id))))
            return take(self, limit)

        return unsettled

    return [method(Gate, "take", make)]


def _seeds_by_hash() -> Patches:
    """Bug: generators are seeded with the hash of a text."""

    def random(self: Services, *place: object) -> Any:
        return self.random_factory(hash("|".join(map(str, place))))

    return [method(Services, "random", lambda _: random)]


def _clock_beside_the_events() -> Patches:
    """Bug: the time that a file took is measured by the clock of the machine."""

    def make(written: Any) -> Any:
        return lambda self, checkpoint, now: written(self, checkpoint, now + time.monotonic_ns())

    return [method(WorkerCheckpoints, "file_written", make)]


def _asked_for_what_was_given() -> Patches:
    """Bug: the log has the number of records that a source was requested to give, not the number that it gave."""

    def make(read: Any) -> Any:
        def careless(self: Recorder, take: Any, limit: int) -> Any:
            taken = read(self, take, limit)
            self._answers[-1] = Gave(limit)
            return taken

        return careless

    return [method(Recorder, "read", make)]


def _forgotten_answers() -> Patches:
    """Bug: answers from outside to enumerators, sinks and functions are not in the log."""
    return [method(Recorder, "take", lambda taken: lambda self: [one for one in taken(self) if isinstance(one, Gave)])]


def _read_anew() -> Patches:
    """Bug: what user code has read of a clock, or drawn at random, is read anew in a replay."""

    def clock(given: Any) -> Any:
        def anew(self: GivenReadings, which: int, read: Any) -> int:
            given(self, which, read)
            return int(read())

        return anew

    def monotonic(given: Any) -> Any:
        def anew(self: GivenReadings, read: Any, wall: Any) -> int:
            given(self, read, wall)
            return int(read())

        return anew

    def draw(given: Any) -> Any:
        def anew(self: GivenReadings, count: int, fresh: Any) -> bytes:
            given(self, count, fresh)
            return bytes(fresh(count))

        return anew

    return [
        method(GivenReadings, "clock", clock),
        method(GivenReadings, "monotonic", monotonic),
        method(GivenReadings, "draw", draw),
    ]


def _on_three(made: Scenario) -> Scenario:
    """A scenario of three workers, which take checkpoints."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, keep=1)
    return replace(made, parallelism=3, network="fast", checkpoints=settings, faults=made.faults[:1])


def _never_in_one_order() -> Patches:
    """Bug: a hot standby follows a loop task by task whatever comes."""
    return [method(Again, "takes", lambda _: lambda self, history: True)]


def _sleeps_on() -> Patches:
    """Bug: a task that waits for credit sleeps on where a hot standby that takes a place has room for what it sends."""

    def make(feed_again: Any) -> Any:
        def asleep(self: ReplayableSlice, task: Task, ident: Any, came: int = 0) -> None:
            with mock.patch.object(Task, "wake", lambda task: None):
                feed_again(self, task, ident, came)

        return asleep

    return [method(ReplayableSlice, "feed_again", make)]


def _more_together() -> Patches:
    """Bug: a function that sees which records come together is given more of them when it is replayed."""
    return [mock.patch("tailrace.task.failover.parallel_replay.takes_many", lambda fn: False)]


def _coming_together(run: Run) -> Run:
    """A flow whose function sees which records come together, of which a few come at a time. Its workers are lost behind
    many steps."""
    flow = Flow(Events(30, 30, pace=300, timed=False), run.flow.table, (Do("together", 2),))
    kills = tuple(Fault(turn, "kill", which=run.seed + turn // 150) for turn in (150, 300))
    settings = CheckpointSettings(interval=4 * MS, tolerated_failures=10_000)
    world = replace(run.world, network="fast", checkpoints=settings, parallelism=2, replaces=True, faults=kills)
    return replace(run, flow=flow, phases=(Phase(2),), world=world)


REPLAY_BUGS = (
    Bug("channels take turns by their hash", "joined", _turns_by_hash, _on_three, replayed=True),
    Bug("generators are seeded by a hash", "in_splits", _seeds_by_hash, _on_three, replayed=True),
    Bug("a clock is read beside the events", "counted", _clock_beside_the_events, _on_three, replayed=True, seed=1),
    Bug("the log has what a source was asked for", "in_splits", _asked_for_what_was_given, _on_three, replayed=True),
    Bug(
        "readings are not given again",
        RANDOM,
        _read_anew,
        seed=24,
        shape=replacing_run,
        suits=lambda run: any(step.kind == "readings" for step in run.flow.operators()),
    ),
    Bug("the log forgets what was heard from outside", "counted", _forgotten_answers, _on_three, replayed=True),
    Bug("a loop is followed task by task though waves go around", "visited", _never_in_one_order, following, seed=52),
    Bug("a task sleeps though a hot standby has room", RANDOM, _sleeps_on, seed=52, shape=following_run),
    Bug("more records come together in a replay", RANDOM, _more_together, shape=_coming_together),
)
