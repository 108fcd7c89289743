"""Bugs to be planted in loops: in how the end is found, in rounds, and in the order of turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec.structs import replace as replaced

from search.planted.feedback import deaths
from search.planted.patches import Bug, Patches, method
from search.scenarios import Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.loops.termination import Nests, _Nest
from tailrace.elements.markers import WaveMark
from tailrace.protocol.termination import Wave
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.slice.machine import Slice
from tailrace.task.slice.nests import WorkerNests
from tailrace.task.subtask.idleness import Idle, Reason
from tailrace.task.subtask.loop import TaskLoop
from tailrace.task.subtask.loop_rounds import LoopRounds
from tailrace.task.subtask.machine import Task
from tailrace.task.worker.attempt import Attempt
from tailrace.testing.faults import Fault

MS = 1_000


# Scenarios that show the bugs sooner.


def _delays(made: Scenario) -> Scenario:
    """A scenario in which waves begin at any time, and links are slow now and then, some of them near the end."""
    faults = [
        Fault(turn, "delay", turn // 5 + i, duration=(1 + i) * MS) for turn in range(20, 900, 40) for i in range(2)
    ]
    return replace(
        made,
        eager=True,
        network="fast",
        parallelism=3,
        rate=None,
        checkpoints=None,
        restarts=("fixed", 0),
        faults=tuple(faults),
    )


def _gives_up_soon(made: Scenario) -> Scenario:
    """A scenario without faults that soon counts as one that never ends."""
    return replace(made, faults=(), checkpoints=None, restarts=("fixed", 0), network="fast", max_turns=12_000)


def given_up(made: Scenario) -> Scenario:
    """A scenario of one worker that has a step to do at any time: three checkpoints are under way, and most are given
    up."""
    settings = CheckpointSettings(interval=1 * MS, timeout=8 * MS, max_concurrent=3, tolerated_failures=10_000, keep=1)
    quiet = replace(made, faults=(), restarts=("fixed", 0), eager=False, window=None, small=None, chunk=None)
    return replace(quiet, checkpoints=settings, network="uneven", parallelism=1, rate=None, patience=20_000)


def _one_lags(made: Scenario) -> Scenario:
    """A scenario in which several checkpoints are under way, snapshots take one worker long, and workers die."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=4, keep=1)
    faults = [
        Fault(7 * number % 60, "kill", number, after=f"commit {number} done") for number in (2 + made.seed % 3, 8)
    ]
    return replace(
        made,
        network="in small steps",
        parallelism=2,
        rate=None,
        window=None,
        checkpoints=settings,
        restarts=("fixed", 0),
        faults=tuple(faults),
    )


def _cuts_in_a_row(made: Scenario) -> Scenario:
    """A scenario in which checkpoints are requested faster than they can be encoded."""
    settings = CheckpointSettings(interval=200, tolerated_failures=10_000, max_concurrent=3, keep=1)
    return replace(
        made, network="in small steps", parallelism=1, rate=None, checkpoints=settings, faults=(), max_turns=40_000
    )


def _in_debug(made: Scenario) -> Scenario:
    """A scenario in which tasks are checked at every turn: a fault that would only keep a job from ending shows at
    once."""
    return replace(made, debug=True)


def _narrow(made: Scenario) -> Scenario:
    """A scenario in which channels have little room, so that tasks wait for credit all the time."""
    return replace(made, window=256, rate=None, debug=True)


# The end.


def _marker_before_the_records() -> Patches:
    def marker(self: FeedbackQueue, marker: WaveMark) -> None:
        self.seal()
        self._ready.appendleft(marker)

    return [method(FeedbackQueue, "marker", lambda _: marker)]


def _one_report_decides() -> Patches:
    def make(decided: Any) -> Any:
        return lambda self, facts, now: decided(self, facts[:1], now)

    return [method(_Nest, "_decide", make)]


def _head_decides_alone() -> Patches:
    def make(marker: Any) -> Any:
        def alone(self: TaskLoop, channel: Any, item: Any) -> Any:
            found = marker(self, channel, item)
            waves = self.waves
            clean = waves.wave.complete and not waves.wave.recorded and waves.cut.ended
            if self.head is not None and isinstance(item, WaveMark) and clean:
                self.head.end_loop()
            return found

        return alone

    return [method(TaskLoop, "marker", make)]


def _first_marker_completes_a_wave() -> Patches:
    def marker(self: Wave, channel: Any, wave: int) -> None:
        if wave == self.current:
            self._awaited.clear()

    return [method(Wave, "marker", lambda _: marker)]


def facts_without(what: str, inner_only: bool = False) -> Patches:
    """Patches under which workers report facts without the field `what`."""

    def make(facts: Any) -> Any:
        def partial(self: WorkerNests, here: Any) -> Any:
            found = facts(self, here)
            if not inner_only:
                return replaced(found, **{what: type(getattr(found, what))()})
            node = self._plan.graph.node
            tasks = [each for each in here.tasks if node(each[0].vertex.nodes[0]).scope.level < 2]
            outer = [loop.waves.wave for _, loop in tasks if loop.waves.wave.current == here.wave]
            return replaced(found, recorded=sum(wave.recorded for wave in outer))

        return partial

    return [method(WorkerNests, "_facts", make)]


def _not_the_timers() -> Patches:
    return facts_without("obliged")


def _not_the_inner_loops() -> Patches:
    return facts_without("recorded", inner_only=True)


def _not_what_was_fed() -> Patches:
    return facts_without("fed")


def _not_the_channels() -> Patches:
    return facts_without("recorded")


def _nothing_is_forgotten() -> Patches:
    """Bug: the facts that an attempt has found count in the next one."""

    def make(begin: Any) -> Any:
        return lambda self: None if self._nests else begin(self)

    return [method(Nests, "begin", make)]


# Rounds, and the order of turns.


def _rounds_wait_for_all() -> Patches:
    """Bug: a worker whose tasks have all finished reports nothing of rounds."""

    def make(round: Any) -> Any:
        def silent(self: WorkerNests, here: Any) -> Any:
            return None if all(task.finished for task, _ in here.tasks) else round(self, here)

        return silent

    return [method(WorkerNests, "_round", make)]


def _cuts_come_first() -> Patches:
    """Bug: a task that receives the order to cut does so before anything else, however often."""

    def make(step: Any) -> Any:
        def cutting(self: Task, now: int, budget: int) -> Any:
            self.checkpoints.worked = True
            if self.cuts.due and not self.work.busy and self.checkpoints.snapshot is not None:
                return Idle(Reason.ENCODING)
            return step(self, now, budget)

        return cutting

    return [method(Task, "step", make)]


def _commands_overtake_cuts() -> Patches:
    """Bug: a loop carries out commands at once, whichever cuts were requested before them."""
    return [method(TaskLoop, "has_work", lambda _: lambda self, requested: bool(self.commands))]


def _only_heads_end_rounds() -> Patches:
    """Bug: tasks that no head feeds do not receive the end of a round."""
    due = vars(LoopRounds)["due"].fget
    return [mock.patch.object(LoopRounds, "due", property(lambda self: self._place.head is not None and due(self)))]


def _asleep_beside_feedback() -> Patches:
    """Bug: the head of a loop sleeps on when its tail has fed something back."""

    def make(real: Any) -> Any:
        def forgetful(self: Slice, *given: Any) -> None:
            real(self, *given)
            self._fed.clear()

        return forgetful

    return [method(Slice, "__init__", make)]


def _asleep_with_credit() -> Patches:
    """Bug: a task that waits for credit sleeps on when it comes."""

    def make(real: Any) -> Any:
        def forgetful(self: Task, *given: Any) -> None:
            until = self._sleeps_until
            real(self, *given)
            self._sleeps_until = until

        return forgetful

    return [method(Task, "grant", make)]


def _silent_between_cuts() -> Patches:
    """Bug: a worker reports what has come to rest only when it has nothing else to do, not when a checkpoint is over."""
    return [method(Attempt, "between_cuts", lambda _: lambda self: [])]


LOOP_BUGS = (
    Bug("the marker of a wave overtakes feedback", "visited", _marker_before_the_records, _delays, seed=680),
    Bug("one worker decides for all", "visited", _one_report_decides, _delays),
    Bug("a head ends by itself", "visited", _head_decides_alone, _delays, seed=1),
    Bug("the first marker completes a wave", "visited", _first_marker_completes_a_wave, _delays, seed=23),
    Bug("a loop ends in spite of its timers", "waited_for", _not_the_timers, _delays),
    Bug("inner loops have no say in the end", "nested", _not_the_inner_loops, _delays),
    Bug("what is in a channel has no say in the end", "visited", _not_the_channels, _delays, seed=2),
    Bug("what comes back after finish is not finished", "hoarded", _not_what_was_fed),
    Bug("what an earlier attempt has found counts", "visited", _nothing_is_forgotten, deaths),
    Bug("rounds wait for a slot that is over", "widened", _rounds_wait_for_all, _gives_up_soon),
    Bug("commands to a loop overtake cuts", "apart", _commands_overtake_cuts, _one_lags),
    Bug("the end of a round comes from heads only", "held_beside", _only_heads_end_rounds, _gives_up_soon),
    Bug("a head sleeps on what comes back", "visited", _asleep_beside_feedback, _in_debug),
    Bug("a task sleeps on its credit", "amplified", _asleep_with_credit, _narrow),
    Bug("cuts starve all else", "sparse", _cuts_come_first, _cuts_in_a_row, seed=30),
    Bug("who only cuts says nothing of its loops", "nested", _silent_between_cuts, given_up, seed=9),
)
