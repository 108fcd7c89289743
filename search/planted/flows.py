"""Bugs to be planted that random dataflows find: no golden program has the shape that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from search.planted.patches import RANDOM, Bug, Patches, method
from search.random_flows.description import Do, Events, Flow, Loop, Step, change_steps
from search.random_flows.drawing import WINDOWS, Phase, Run, may_fall_silent
from search.scenarios import MS, Scenario
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.elements.timestamps import MAX_TIME, micros
from tailrace.graph.operators import Custom
from tailrace.state.undo_log import Journal
from tailrace.task.channels.combining import Combined
from tailrace.task.inflight.redistribution import Redistribution
from tailrace.task.operators.aggregates.arrow import GroupedBatch
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.operators.timer_firing import TimedTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.operators.windows.triggered import EACH, TriggeredWindowTask
from tailrace.task.worker.restore import Restorer
from tailrace.testing.faults import Fault


def _deaths_at_the_end(made: Scenario) -> Scenario:
    """A scenario in which checkpoints follow each other closely, and a worker dies when a loop has ended: the newest
    checkpoint may come from the time after the last calls of `finish`."""
    settings = CheckpointSettings(interval=MS // 2, tolerated_failures=10_000, max_concurrent=3, keep=1)
    faults = (Fault(made.seed % 24, "kill", made.seed, after="ended a loop"),)
    return replace(
        made, network="in small steps", window=None, eager=False, debug=False, checkpoints=settings, faults=faults
    )


def _in_loops(run: Run) -> Iterator[str]:
    return (step.kind for loop in run.flow.loops() for step in loop.body if isinstance(step, Do))


def _with_a_hoard(run: Run) -> Run:
    """The run with a small loop that keeps its records until it is called to finish, several times, and counts these
    calls. It is restored at one parallelism: at another one the calls would not be counted."""
    numbers = Events(8, 8, pace=run.flow.source.pace)
    flow = Flow(numbers, run.flow.table, (Loop(1, 0, (Do("hoard", 2, "rebalance"),), laps=4),))
    return replace(run, flow=flow, phases=(Phase(run.phases[0].parallelism),), disk=False)


def _finish_forgotten() -> Patches:
    """Bug: the number of calls of `finish` before a checkpoint is unknown after a restore."""

    def make(restored: Any) -> Any:
        def forgetful(self: Restorer, task: Any, operator: Any, rested: int, *rest: Any) -> None:
            restored(self, task, operator, 0, *rest)

        return forgetful

    return [method(Restorer, "_loop_restored", make)]


def _comes_later(run: Run) -> bool:
    """True where a stream enters the body of a loop in a later run only."""
    return len(run.phases) > 1 and any(
        isinstance(step, Do) and step.kind == "more" and step.phases and 0 not in step.phases
        for loop in run.flow.loops()
        for step in loop.body
    )


def _fed_by_inputs_alone() -> Patches:
    """Bug: feedback to a head does not count as its input."""

    def make(_: Any) -> Any:
        return lambda self, node: [edge.source for edge in self.plan.graph.node(node).inputs]

    return [method(Restorer, "_before", make)]


def _at_another_size(run: Run, feedback: Any) -> Run:
    """The run with one kind of feedback in all loops. While some of it is on its way the job is left alone, to go on at
    another parallelism."""

    def fed(step: Step) -> tuple[Step, ...]:
        changed_way = {"feedback": feedback, "separate": True, "parallelism": None, "combine": False, "astray": False}
        return (replace(step, **changed_way),) if isinstance(step, Loop) else (step,)  # type: ignore[arg-type]

    first = Phase(2 + run.seed % 2, run.seed % 40, f"commit {1 + run.seed % 4} done")
    flow = replace(run.flow, steps=change_steps(run.flow.steps, fed))
    return replace(run, flow=flow, phases=(first, Phase(1 + (run.seed + 2) % 4)), disk=False)


def _loops_only(run: Run) -> bool:
    return any(True for _ in run.flow.loops()) and not run.flow.endless and not _comes_and_goes(run)


def _comes_and_goes(run: Run) -> bool:
    return any(step.phases for step in run.flow.operators()) or any(loop.rounds for loop in run.flow.loops())


def _often(made: Scenario) -> Scenario:
    """A scenario in which checkpoints follow each other closely."""
    return replace(made, checkpoints=CheckpointSettings(interval=1 * MS, tolerated_failures=10_000, keep=1), faults=())


def _copies_dealt_out() -> Patches:
    """Bug: at another parallelism a copy of feedback that was broadcast goes to one subtask, as if it were no copy."""

    def mine(self: Redistribution, subtask: int, parallelism: int, frame: Any) -> Any:
        if self._copies:
            return [frame] if subtask % self.parallelism == self.subtask else []
        return whole(self, subtask, parallelism, frame)

    whole = Redistribution.mine
    return [method(Redistribution, "mine", lambda _: mine)]


def _copies_taken_from_one() -> Patches:
    """Bug: at another parallelism the copies of one old subtask count for all subtasks, though some had read theirs."""
    return [method(Redistribution, "check", lambda _: lambda self: None)]


def _functions_not_asked() -> Patches:
    """Bug: at another parallelism feedback that the user's function partitioned is dealt out by number."""

    def make(init: Any) -> Any:
        def plain(self: Redistribution, edges: Any, *rest: Any, **more: Any) -> None:
            init(self, [kind for kind in edges if not isinstance(kind, Custom)], *rest, **more)

        return plain

    return [method(Redistribution, "__init__", make)]


def _merged_astray(run: Run) -> Run:
    """The run where records that wait in loops are merged, and receive another key."""

    def astray(step: Step) -> tuple[Step, ...]:
        if not isinstance(step, Loop):
            return (step,)
        return (replace(step, combine=True, astray=True, feedback="plain", separate=False, laps=2),)

    flow = replace(run.flow, steps=change_steps(run.flow.steps, astray))
    return replace(run, flow=replace(flow, source=replace(flow.source, distinct=min(3, flow.source.n))))


def _nothing_in_rounds(run: Run) -> bool:
    """True for a run with loops, none of them in rounds, and without windows: a merged record has one of several times."""
    kinds = {step.kind for step in run.flow.operators()}
    return _loops_only(run) and not kinds & set(WINDOWS)


def _keys_not_checked() -> Patches:
    """Bug: a merged record may have another key than its parts."""
    return [method(Combined, "_check_keys", lambda _: lambda self, merged: None)]


def _at_the_end_in_loops(run: Run) -> bool:
    return "at the end" in _in_loops(run)


def _the_end_is_too_late() -> Patches:
    """Bug: a timer at the very end of time is due when its loop is over."""
    return [mock.patch("tailrace.task.operators.context.LAST_TIME", MAX_TIME)]


def _keyed_by_a_list_in_columns(run: Run) -> bool:
    """True for a run with state in columns by a list of one column, and with more than one phase."""
    columns = ("running in columns", "windows of columns")
    return any(step.kind in columns and not step.number % 2 for step in run.flow.operators()) and len(run.phases) > 1


def _bare_values_for_keys() -> Patches:
    """Bug: in columns, state is kept by the bare value for a list of one column, while records are sent by a tuple of
    it."""

    def make(of: Any) -> Any:
        def made(*args: Any) -> GroupedBatch:
            grouped: GroupedBatch = of(*args)
            return replace(grouped, tupled=grouped.tupled and len(grouped.key_names) > 1)

        return made

    return [method(GroupedBatch, "of", make)]


def _with_windows(run: Run) -> bool:
    flow = run.flow
    return may_fall_silent(flow) and flow.source.splits > 1 and any(step.kind in WINDOWS for step in flow.operators())


def _may_fall_silent(run: Run) -> bool:
    """True if all event time of the flow may come to rest: a source that never ends does not wake the windows of one that
    is silent, and an operator in the order of time refuses silence."""
    return _with_windows(run) and not run.flow.endless and all(s.kind != "ruled in order" for s in run.flow.operators())


def _falls_silent(run: Run) -> Run:
    """The run where the splits of the source always have records."""
    source = replace(run.flow.source, falls_silent=True, timed=True, pace=0, silence=0)
    return replace(run, flow=replace(run.flow, source=source))


def _drifts(run: Run) -> bool:
    return any(events.drift is not None and events.splits > 1 for events in run.flow.sources())


def _drifts_apart() -> Patches:
    """Bug: a split is read on however far it is ahead of the others of its subtask."""
    return [method(TimestampsTask, "too_far", lambda _: lambda self: set())]


def _busy_is_silent() -> Patches:
    """Bug: the silence of a split begins with its last record, though its task was busy since then."""

    def make(note: Any) -> Any:
        def since_then(self: TimestampsTask, split: int) -> None:
            note(self, split)
            if split in self.largest:
                self.found_empty(split, self.ctx.services.now)

        return since_then

    def known(self: SourceTask, now: int) -> set[int]:
        return {split.index for split in self.splits}

    return [method(TimestampsTask, "_note_records", make), method(SourceTask, "known_empty", lambda _: known)]


def _with(kind: str) -> Callable[[Run], bool]:
    return lambda run: any(step.kind == kind for step in run.flow.operators())


def _timers_to_the_nearest() -> Patches:
    """Bug: the time of a timer is rounded to the nearest microsecond: the timer may fire before its time."""
    return [mock.patch("tailrace.task.operators.context.ceil_micros", micros)]


def _timers_see_what_lets_them_fire() -> Patches:
    """Bug: while timers fire, the watermark is the one that lets them fire, ahead of most of them."""

    def make(advance: Any) -> Any:
        def ahead(self: TimedTask, time: int, limit: int) -> Any:
            self.ctx.watermark_time = time
            return advance(self, time, limit)

        return ahead

    return [method(TimedTask, "advance", make)]


def _some_fail(run: Run) -> bool:
    """True where a process function changes its state before it fails."""
    return any(step.kind == "failing" and step.number % 3 == 0 for step in run.flow.operators())


def _state_of_failed_calls_stays() -> Patches:
    """Bug: what a failed call has written into the state of its key stays there."""

    def make(undo: Any) -> Any:
        def keep_entries(self: Journal) -> None:
            self._entries.clear()
            undo(self)

        return keep_entries

    return [method(Journal, "undo", make)]


def _timers_of_failed_calls_stay() -> Patches:
    """Bug: a timer that a failed call has set stays set."""

    def make(undo: Any) -> Any:
        def keep_timers(self: Journal) -> None:
            self._steps.clear()
            undo(self)

        return keep_timers

    return [method(Journal, "undo", make)]


def _results_are_kept() -> Patches:
    """Bug: a window that is to discard what its results had keeps it."""

    def make(fire: Any) -> Any:
        def keep(self: TriggeredWindowTask, key: Any, start: int, kind: Any) -> None:
            state = self.table[key][start]
            fire(self, key, start, kind)
            self.table[key][start] = state

        return keep

    return [method(TriggeredWindowTask, "_fire_one", make)]


def _late_rest_is_dropped() -> Patches:
    """Bug: a window goes without a result of the late records that are new then."""

    def make(fire: Any) -> Any:
        def only_others(self: TriggeredWindowTask, key: Any, start: int, kind: Any) -> None:
            if kind != "late" or self.firings[key][start][1] >= (self.triggers.late or EACH).records:
                fire(self, key, start, kind)

        return only_others

    return [method(TriggeredWindowTask, "_fire_one", make)]


def _late_in_parts(run: Run) -> bool:
    """True where late records of a window have a result only when there are several."""
    late = (step for step in run.flow.operators() if step.kind == "fired" and step.number % 3 == 0)
    return not run.flow.endless and any(step.number // 8 % 4 in (0, 2) for step in late)


def _discards(run: Run) -> bool:
    return any(step.kind.startswith("fired") and step.number % 2 for step in run.flow.operators())


def _ahead_of_the_clock() -> Patches:
    """Bug: a record that goes aside, because its timestamp is far ahead of the clock, moves event time."""

    def make(limit: Any) -> Any:
        def moving(self: TimestampsTask, batch: Any, times: Any, most: int) -> Any:
            kept, left = limit(self, batch, times, most)
            if len(left) and len(left) < len(times):
                left[-1] = times.max()
            return kept, left

        return moving

    return [method(TimestampsTask, "_limit", make)]


def _is_ahead(run: Run) -> bool:
    return run.flow.source.ahead and _with_windows(run)


FLOW_BUGS = (
    Bug("a window that discards keeps what its results had", RANDOM, _results_are_kept, suits=_discards, seed=30),
    Bug(
        "late records go with their window, without a result",
        RANDOM,
        _late_rest_is_dropped,
        suits=_late_in_parts,
        seed=468,
    ),
    Bug("a record far ahead of the clock moves event time", RANDOM, _ahead_of_the_clock, suits=_is_ahead, seed=449),
    Bug("the state of a failed call stays", RANDOM, _state_of_failed_calls_stays, seed=26, suits=_some_fail),
    Bug("a timer of a failed call stays set", RANDOM, _timers_of_failed_calls_stay, seed=26, suits=_some_fail),
    Bug("a timer fires before the time it was set for", RANDOM, _timers_to_the_nearest, suits=_with("held")),
    Bug("a timer sees a watermark that is ahead of it", RANDOM, _timers_see_what_lets_them_fire, suits=_with("held")),
    Bug("a split is read on however far it is ahead", RANDOM, _drifts_apart, seed=120, suits=_drifts),
    Bug(
        "a split is silent while its task is busy",
        RANDOM,
        _busy_is_silent,
        seed=88,
        shape=_falls_silent,
        suits=_may_fall_silent,
    ),
    Bug(
        "a loop that had ended stays ended when a new stream enters it",
        RANDOM,
        _fed_by_inputs_alone,
        seed=417,
        suits=_comes_later,
    ),
    Bug(
        "functions that had finished in a loop finish again",
        RANDOM,
        _finish_forgotten,
        _deaths_at_the_end,
        shape=_with_a_hoard,
    ),
    Bug(
        "merged feedback has another key than its parts",
        RANDOM,
        _keys_not_checked,
        seed=2,
        shape=_merged_astray,
        suits=_nothing_in_rounds,
    ),
    Bug(
        "a timer at the end of time is due when its loop is over",
        RANDOM,
        _the_end_is_too_late,
        seed=19,
        suits=_at_the_end_in_loops,
    ),
    Bug(
        "copies of feedback are dealt out at another parallelism",
        RANDOM,
        _copies_dealt_out,
        _often,
        seed=104,
        shape=lambda run: _at_another_size(run, "broadcast"),
        suits=_loops_only,
    ),
    Bug(
        "copies of feedback that some had read come back to all",
        RANDOM,
        _copies_taken_from_one,
        _often,
        seed=12,
        shape=lambda run: _at_another_size(run, "broadcast"),
        suits=_loops_only,
    ),
    Bug(
        "feedback by a function goes elsewhere at another parallelism",
        RANDOM,
        _functions_not_asked,
        _often,
        seed=124,
        shape=lambda run: _at_another_size(run, "partition_by"),
        suits=_loops_only,
    ),
    Bug(
        "keys of a list of one column are kept as bare values",
        RANDOM,
        _bare_values_for_keys,
        seed=173,
        suits=_keyed_by_a_list_in_columns,
    ),
)
