"""Bugs of loops to be planted: in what a checkpoint holds of feedback, in how the end is found, and in event time."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec.structs import replace as replaced

from tailrace.coordinator.checkpoints import CheckpointSettings
from tailrace.coordinator.loops import Nests, _Nest
from tailrace.elements.markers import Barrier, WaveMark
from tailrace.elements.timestamps import MAX_TIME
from tailrace.protocol.termination import Wave
from tailrace.task import nests
from tailrace.task.feedback import FeedbackQueue
from tailrace.task.idle import Idle, Reason
from tailrace.task.looping import TaskLoop
from tailrace.task.machine import Task
from tailrace.task.nests import WorkerNests
from tailrace.task.operators.loops import LeaveTask, TailTask
from tailrace.task.redistribution import Redistribution
from tailrace.testing.faults import Fault
from tailrace.testing.planting import Bug, Patches, method
from tailrace.testing.scenarios import Scenario

MS = 1_000


# What brings them to light sooner.


def _deaths(made: Scenario) -> Scenario:
    """Checkpoints follow each other closely and overlap, and workers die soon after one was committed."""
    settings = CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, max_concurrent=3, keep=1)
    faults = [Fault(4 * number, "kill", number, after=f"commit {number} done") for number in range(2, 14)]
    return replace(
        made,
        network="in small steps",
        parallelism=3,
        rate=12_000,
        window=None,
        checkpoints=settings,
        faults=tuple(faults),
    )


def _overlaps(made: Scenario) -> Scenario:
    """The same, where markers take longer to go round than the next checkpoint to begin."""
    return replace(_deaths(made), network="slow", rate=3_000)


def _crowds(made: Scenario) -> Scenario:
    """The same, where much is on its way when they die, and the next checkpoint does not wait for it."""
    made = _deaths(made)
    assert made.checkpoints is not None
    return replace(made, rate=None, parallelism=2, checkpoints=replace(made.checkpoints, interval=100))


def _delays(made: Scenario) -> Scenario:
    """Waves begin at any time, and links are slow now and then, some of them near the end."""
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


# Checkpoints.


def _log_until_the_first_marker() -> Patches:
    def make(mark: Any) -> Any:
        def eager(self: Task, channel: Any, marker: Any, *rest: Any) -> None:
            root = self.chain.root
            if (
                isinstance(marker, Barrier)
                and isinstance(root, TailTask)
                and marker.checkpoint in root.queue.logs.pending()
            ):
                root.queue.barrier(marker.checkpoint)
            mark(self, channel, marker, *rest)

        return eager

    return [method(Task, "_mark", make)]


def _one_marker_for_all_logs() -> Patches:
    def make(barrier: Any) -> Any:
        def for_all(self: FeedbackQueue, checkpoint: int) -> None:
            barrier(self, checkpoint)
            self._seal()
            for log in self.logs.open:
                log.complete = True
            self.logs.open.clear()

        return for_all

    return [method(FeedbackQueue, "barrier", make)]


def _cut_without(self: FeedbackQueue, cut: Any, checkpoint: int, left_out: Any) -> None:
    """A cut as if these items were not in the queue."""
    self._seal()
    ready, self._ready = self._ready, deque(item for item in self._ready if item not in left_out)
    try:
        cut(self, checkpoint)
    finally:
        self._ready = ready


def _log_without_the_unread() -> Patches:
    def make(cut: Any) -> Any:
        return lambda self, checkpoint: _cut_without(self, cut, checkpoint, list(self._ready))

    return [method(FeedbackQueue, "cut", make)]


def _restored_and_forgotten() -> Patches:
    """What a checkpoint brought back and is still unread is not in the next one."""
    old: dict[int, list[Any]] = {}

    def make_restored(restored: Any) -> Any:
        def remembering(self: FeedbackQueue, frames: Any) -> None:
            restored(self, frames)
            old[id(self)] = list(self._ready)

        return remembering

    def make_cut(cut: Any) -> Any:
        return lambda self, checkpoint: _cut_without(self, cut, checkpoint, old.get(id(self), []))

    return [method(FeedbackQueue, "restored", make_restored), method(FeedbackQueue, "cut", make_cut)]


def _not_restored() -> Patches:
    return [method(Redistribution, "mine", lambda _: lambda self, *frame: [])]


def _barrier_before_the_newest() -> Patches:
    """The marker of a checkpoint comes to the head before the records that the tail had appended last."""

    def make(barrier: Any) -> Any:
        def overtaking(self: FeedbackQueue, checkpoint: int) -> None:
            log = next((log for log in self.logs.open if log.checkpoint == checkpoint), None)
            self._seal()
            if log is not None and log.entries and self._ready:
                item, start, _ = log.entries[-1]
                if item is self._ready[-1]:
                    log.entries.pop()
                    log.records -= item.count - start
                    self._shelf.release(item)
            barrier(self, checkpoint)

        return overtaking

    return [method(FeedbackQueue, "barrier", make)]


# The end.


def _marker_before_the_records() -> Patches:
    def marker(self: FeedbackQueue, marker: WaveMark) -> None:
        self._seal()
        self._ready.appendleft(marker)

    return [method(FeedbackQueue, "marker", lambda _: marker)]


def _one_report_decides() -> Patches:
    def make(decided: Any) -> Any:
        return lambda self, facts, now: decided(self, facts[:1], now)

    return [method(_Nest, "_decided", make)]


def _head_decides_alone() -> Patches:
    def make(marker: Any) -> Any:
        def alone(self: TaskLoop, channel: Any, said: Any) -> Any:
            found = marker(self, channel, said)
            clean = self.wave.complete and not self.wave.recorded and self.ended
            if self.head is not None and isinstance(said, WaveMark) and clean:
                self.head.end_loop()
            return found

        return alone

    return [method(TaskLoop, "marker", make)]


def _first_marker_completes_a_wave() -> Patches:
    def marker(self: Wave, channel: Any, wave: int) -> None:
        if wave == self.current:
            self._awaited.clear()

    return [method(Wave, "marker", lambda _: marker)]


def _facts_without(what: str, inner_only: bool = False) -> Patches:
    """Workers report as if something were not so."""

    def make(facts: Any) -> Any:
        def partial(self: WorkerNests, here: Any) -> Any:
            found = facts(self, here)
            if not inner_only:
                return replaced(found, **{what: type(getattr(found, what))()})
            node = self._plan.graph.node
            tasks = [each for each in here.tasks if node(each[0].vertex.nodes[0]).scope.level < 2]
            outer = [loop for _, loop in tasks if loop.wave.current == here.wave]
            return replaced(found, recorded=sum(loop.wave.recorded for loop in outer))

        return partial

    return [method(WorkerNests, "_facts", make)]


def _not_the_timers() -> Patches:
    return _facts_without("obliged")


def _not_the_inner_loops() -> Patches:
    return _facts_without("recorded", inner_only=True)


def _not_what_was_fed() -> Patches:
    return _facts_without("fed")


def _not_the_channels() -> Patches:
    return _facts_without("recorded")


def _nothing_is_forgotten() -> Patches:
    """What an attempt has found is believed in the next one."""

    def make(begin: Any) -> Any:
        return lambda self: None if self._nests else begin(self)

    return [method(Nests, "begin", make)]


# Event time.


def _time_leaves_at_once() -> Patches:
    return [mock.patch.object(LeaveTask, "generates_watermarks", False)]


def _not_what_is_moving() -> Patches:
    """Event time comes to its end as soon as no record is left, wherever it is by then."""
    held = mock.patch("tailrace.coordinator.loops._held_back", lambda facts: False)
    counted = [mock.patch(f"tailrace.task.{room}.COUNTED", ()) for room in ("outbox", "gate")]
    return [*_facts_without("moving"), held, *counted]


def _entries_alone_advance() -> Patches:
    """Whether event time has come to its end is asked of the entries only, and not of heads inside that were told, too."""

    def make(start: Any) -> Any:
        def started(self: TaskLoop, wave: int) -> None:
            start(self, wave)
            if not self.entry:
                self.time = MAX_TIME

        return started

    return [method(TaskLoop, "_start", make)]


def _time_in_spite_of_records() -> Patches:
    """What was in the channels holds no event time back."""
    return [mock.patch("tailrace.task.nests._of_scopes", _without_content(nests._of_scopes))]


def _without_content(of_scopes: Any) -> Any:
    return lambda *what: [replaced(scope, content=MAX_TIME) for scope in of_scopes(*what)]


def _time_in_spite_of_inner_loops() -> Patches:
    """What is in a loop inside holds no event time of the outer one back."""

    def make(init: Any) -> Any:
        def alone(self: TaskLoop, plan: Any, nest: Any, vertex: int, *rest: Any) -> None:
            init(self, plan, nest, vertex, *rest)
            own = str(self.chain.root.node.scope)
            self.leading = {scope: those for scope, those in self.leading.items() if scope == own}
            self.into = [scope for scope in self.into if scope == own]
            self.brings_time = self.brings_time and self.outermost in self.leading

        return alone

    return [method(TaskLoop, "__init__", make)]


def _released_by_entries() -> Patches:
    """Event time leaves a loop as far as it has come at the entries, wherever the tasks further in are by then."""

    def make(start: Any) -> Any:
        def started(self: TaskLoop, wave: int) -> None:
            start(self, wave)
            if not self.entry:
                self.times = {}

        return started

    return [method(TaskLoop, "_start", make)]


def _one_level_at_a_time() -> Patches:
    """A wave that has let event time go is not followed by another one that lets it go farther."""

    def make(decided: Any) -> Any:
        def last(self: _Nest, facts: list[Any], now: int) -> Any:
            said = decided(self, facts, now)
            self.lag = self.lag and not said
            return said

        return last

    return [method(_Nest, "_decided", make)]


def _ended_input_holds_time() -> Patches:
    """A head whose regular input has ended stays where event time was then, whatever the others have."""
    return [method(TaskLoop, "_go_with", lambda _: lambda self, time: False)]


def _decides_before_heads_have_gone() -> Patches:
    """Times that were assigned in the loop while a wave began do not hold the end of event time up."""

    def make(decided: Any) -> Any:
        def hasty(self: _Nest, facts: list[Any], now: int) -> Any:
            self.followed = min((one.live for one in facts if one.live is not None), default=None)
            return decided(self, facts, now)

        return hasty

    return [method(_Nest, "_decided", make)]


# Rounds, and cuts.


def _rounds_wait_for_all() -> Patches:
    """A worker whose tasks have all finished says nothing of rounds."""

    def make(round: Any) -> Any:
        def silent(self: WorkerNests, here: Any) -> Any:
            return None if all(task.finished for task, _ in here.tasks) else round(self, here)

        return silent

    return [method(WorkerNests, "_round", make)]


def _cuts_come_first() -> Patches:
    """A task that is told to cut does so before anything else, however often."""

    def make(step: Any) -> Any:
        def cutting(self: Task, now: int, budget: int) -> Any:
            self._worked = True
            busy = self._advancing or (self.loop is not None and self.loop.ending is not None)
            if self.cuts.due and not busy and self.snapshot is not None:
                return Idle(Reason.ENCODING)
            return step(self, now, budget)

        return cutting

    return [method(Task, "step", make)]


def _commands_overtake_cuts() -> Patches:
    """What is said to a loop is done at once, whichever cuts were asked for before it."""
    return [method(TaskLoop, "has_work", lambda _: lambda self, asked: bool(self.commands))]


def _only_heads_end_rounds() -> Patches:
    """What no head feeds hears nothing of the end of a round."""
    due = vars(TaskLoop)["round_due"].fget
    return [mock.patch.object(TaskLoop, "round_due", property(lambda self: self.head is not None and due(self)))]


def _one_lags(made: Scenario) -> Scenario:
    """Several checkpoints are under way, snapshots take one worker long, and workers die."""
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


def _gives_up_soon(made: Scenario) -> Scenario:
    """What never ends shows soon; nothing disturbs it."""
    return replace(made, faults=(), checkpoints=None, restarts=("fixed", 0), network="fast", max_turns=12_000)


def _between_two_heads(made: Scenario) -> Scenario:
    """One worker is slow when event time comes to its end, a checkpoint is taken meanwhile, and the job goes on from it."""
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


def _cuts_in_a_row(made: Scenario) -> Scenario:
    """Checkpoints are asked for faster than they can be encoded."""
    settings = CheckpointSettings(interval=200, tolerated_failures=10_000, max_concurrent=3, keep=1)
    return replace(
        made, network="in small steps", parallelism=1, rate=None, checkpoints=settings, faults=(), max_turns=40_000
    )


def _left_alone(made: Scenario) -> Scenario:
    """Nothing happens in the silence of the input."""
    return replace(made, faults=(), checkpoints=None, restarts=("fixed", 0), network="fast", eager=False)


def _uneven(made: Scenario) -> Scenario:
    """Some links are slow, and nothing else befalls the job."""
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
    """Waves at any time, while the input takes its time."""
    return replace(made, eager=True, checkpoints=None, restarts=("fixed", 0), faults=(), rate=3_000)


LOOP_BUGS = (
    Bug("the first marker ends a log", "visited", _log_until_the_first_marker, _deaths),
    Bug("a marker ends the logs of later checkpoints", "visited", _one_marker_for_all_logs, _overlaps),
    Bug("a log begins with what comes after the cut", "visited", _log_without_the_unread, _deaths),
    Bug("what was restored is not in the next checkpoint", "amplified", _restored_and_forgotten, _crowds),
    Bug("restored feedback is lost", "visited", _not_restored, _deaths),
    Bug("the marker of a checkpoint overtakes feedback", "visited", _barrier_before_the_newest, _deaths),
    Bug("the marker of a wave overtakes feedback", "visited", _marker_before_the_records, _delays),
    Bug("one worker decides for all", "visited", _one_report_decides, _delays),
    Bug("a head ends by itself", "visited", _head_decides_alone, _delays),
    Bug("the first marker completes a wave", "visited", _first_marker_completes_a_wave, _delays),
    Bug("a loop ends in spite of its timers", "waited_for", _not_the_timers, _delays),
    Bug("inner loops have no say in the end", "nested", _not_the_inner_loops, _delays),
    Bug("what is in a channel has no say in the end", "visited", _not_the_channels, _delays),
    Bug("what comes back after finish is not finished", "hoarded", _not_what_was_fed),
    Bug("what an earlier attempt has found counts", "visited", _nothing_is_forgotten, _deaths),
    Bug("event time leaves a loop at once", "windowed_behind", _time_leaves_at_once),
    Bug("event time ends while some is on its way", "held_inside", _not_what_is_moving, _uneven, seed=23),
    Bug("event time leaves a loop with that of its entries", "held_inside", _released_by_entries, _uneven, seed=20),
    Bug("event time passes what is in a loop's channels", "lingered", _time_in_spite_of_records, _waves),
    Bug("event time passes what is in a loop inside", "lingered_inside", _time_in_spite_of_inner_loops, _waves, seed=9),
    Bug("the end of event time is not said again", "entered_inside", _entries_alone_advance, _between_two_heads),
    Bug("event time leaves a nest by one level only", "silent_nest", _one_level_at_a_time, _left_alone),
    Bug("an input that has ended holds event time back", "silent_guest", _ended_input_holds_time, _left_alone),
    Bug("event time ends before heads have gone with it", "reminded", _decides_before_heads_have_gone, _uneven),
    Bug("rounds wait for a slot that is over", "widened", _rounds_wait_for_all, _gives_up_soon),
    Bug("commands to a loop overtake cuts", "apart", _commands_overtake_cuts, _one_lags),
    Bug("the end of a round comes from heads only", "held_beside", _only_heads_end_rounds, _gives_up_soon),
    Bug("cuts starve all else", "sparse", _cuts_come_first, _cuts_in_a_row),
)
