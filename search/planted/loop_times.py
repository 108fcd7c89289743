"""Bugs to be planted in event time in loops: what holds it back, and how far it goes when it is released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec.structs import replace as replaced

from search.planted.loops import facts_without
from search.planted.patches import RANDOM, Bug, Patches, method
from search.scenarios import Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.loops.termination import _Nest
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.task.operators.loops import LeaveTask
from tailrace.task.slice import nests
from tailrace.task.subtask.loop import TaskLoop
from tailrace.task.subtask.loop_place import LoopPlace
from tailrace.task.subtask.loop_waves import LoopWaves
from tailrace.testing.faults import Fault

MS = 1_000


# Scenarios that show the bugs sooner.


def _uneven(made: Scenario) -> Scenario:
    """A scenario in which some links are slow, without any fault."""
    return replace(
        made,
        network="uneven",
        parallelism=3,
        rate=None,
        window=None,
        checkpoints=None,
        restarts=("fixed", 0),
        faults=(),
        eager=False,
    )


def _waves(made: Scenario) -> Scenario:
    """A scenario in which waves begin at any time, while the input is slow."""
    return replace(made, eager=True, checkpoints=None, restarts=("fixed", 0), faults=(), rate=3_000)


def _left_alone(made: Scenario) -> Scenario:
    """A scenario in which nothing happens in the silence of the input."""
    return replace(made, faults=(), checkpoints=None, restarts=("fixed", 0), network="fast", eager=False)


def _between_two_heads(made: Scenario) -> Scenario:
    """A scenario in which one worker is slow when event time comes to its end, a checkpoint is taken meanwhile, and the
    job goes on from it."""
    settings = CheckpointSettings(interval=None, tolerated_failures=10_000, max_concurrent=3, keep=1)
    faults = (
        Fault(0, "freeze", which=1, duration=1 * MS, after="Advance"),
        Fault(4 + made.seed % 8, "checkpoint", after="Advance"),
        Fault(0, "kill", 0, after="commit 1 done"),
    )
    return replace(
        made,
        network="fast",
        parallelism=1,
        rate=None,
        window=None,
        checkpoints=settings,
        faults=faults,
        max_turns=12_000,
    )


# The bugs.


def _time_leaves_at_once() -> Patches:
    return [mock.patch.object(LeaveTask, "generates_watermarks", False)]


def _not_what_is_moving() -> Patches:
    """Bug: event time comes to its end as soon as no record is left, wherever the event time is by then."""
    held = mock.patch("tailrace.coordinator.loops.termination._held_back", lambda facts: False)
    counted = [mock.patch(f"tailrace.task.channels.{room}.COUNTED", ()) for room in ("outbox", "gate")]
    return [*facts_without("moving"), held, *counted]


def _entries_alone_advance() -> Patches:
    """Bug: only entries, not the heads inside that were notified too, count in the check that event time has come to its
    end."""

    def make(start: Any) -> Any:
        def started(self: LoopWaves, *given: Any) -> None:
            start(self, *given)
            if not self._place.entry:
                self.cut.time = MAX_TIME

        return started

    return [method(LoopWaves, "start", make)]


def _time_in_spite_of_records() -> Patches:
    """Bug: records in the channels hold no event time back."""
    return [mock.patch("tailrace.task.slice.nests._of_scopes", _without_content(nests._of_scopes))]


def _without_content(of_scopes: Any) -> Any:
    return lambda *what: [replaced(scope, content=MAX_TIME) for scope in of_scopes(*what)]


def _time_in_spite_of_inner_loops() -> Patches:
    """Bug: records in an inner loop hold no event time of the outer loop back."""

    def make(init: Any) -> Any:
        def alone(self: LoopPlace, plan: Any, vertex: Any, gate: Any, chain: Any) -> None:
            init(self, plan, vertex, gate, chain)
            own = str(chain.root.node.scope)
            self.leading = {scope: those for scope, those in self.leading.items() if scope == own}
            self.into = [scope for scope in self.into if scope == own]
            self.brings_time = self.brings_time and self.outermost in self.leading

        return alone

    return [method(LoopPlace, "__init__", make)]


def _released_by_entries() -> Patches:
    """Bug: event time leaves a loop as far as it has come at the entries, wherever the tasks further in are by then."""

    def make(start: Any) -> Any:
        def started(self: LoopWaves, *given: Any) -> None:
            start(self, *given)
            if not self._place.entry:
                self.cut.times = {}

        return started

    return [method(LoopWaves, "start", make)]


def _one_level_at_a_time() -> Patches:
    """Bug: after a wave that has released event time, no further wave releases it farther."""

    def make(decided: Any) -> Any:
        def last(self: _Nest, facts: list[Any], now: int) -> Any:
            sent = decided(self, facts, now)
            self.lag = self.lag and not sent
            return sent

        return last

    return [method(_Nest, "_decide", make)]


def _ended_input_holds_time() -> Patches:
    """Bug: a head whose regular input has ended keeps the event time that it had then, whatever the other entries have."""
    return [method(TaskLoop, "_go_with", lambda _: lambda self, time: False)]


def _decides_before_heads_have_gone() -> Patches:
    """Bug: times that were assigned in the loop while a wave began do not delay the end of event time."""
    return [method(_Nest, "_have_gone", lambda _: lambda self, facts: True)]


def _end_before_inputs_end() -> Patches:
    """Bug: the end of event time leaves a loop that goes on from a checkpoint taken there, before its inputs have ended
    once more."""

    def make(release: Any) -> Any:
        def early(self: _Nest, facts: Any) -> Any:
            held = LAST_TIME if all(one.ended for one in facts) else None
            with mock.patch("tailrace.coordinator.loops.termination.LAST_TIME", held):
                return release(self, facts)

        return early

    return [method(_Nest, "_release", make)]


LOOP_TIME_BUGS = (
    Bug("event time leaves a loop at once", "windowed_behind", _time_leaves_at_once),
    Bug("event time ends while some is on its way", "held_inside", _not_what_is_moving, _uneven, seed=124),
    Bug("event time leaves a loop with that of its entries", "held_inside", _released_by_entries, _uneven, seed=37),
    Bug("event time passes what is in a loop's channels", "lingered", _time_in_spite_of_records, _waves),
    Bug("event time passes what is in a loop inside", "lingered_inside", _time_in_spite_of_inner_loops, _waves, seed=9),
    Bug(
        "the end of event time is not said again", "entered_inside", _entries_alone_advance, _between_two_heads, seed=3
    ),
    Bug("event time leaves a nest by one level only", "silent_nest", _one_level_at_a_time, _left_alone),
    Bug("an input that has ended holds event time back", "silent_guest", _ended_input_holds_time, _left_alone),
    Bug("event time ends before heads have gone with it", "reminded", _decides_before_heads_have_gone, _uneven, seed=5),
    Bug("the end of event time leaves a loop that goes on there", RANDOM, _end_before_inputs_end, seed=1198),
)
