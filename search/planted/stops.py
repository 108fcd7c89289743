"""Bugs to be planted in stops and savepoints: in what a held task does, in what a savepoint consists of, and in what a
stopped job restores and publishes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from search.planted.patches import STOPS, Bug, Patches, method
from search.scenarios import MS
from tailrace.coordinator.actions import StopEnded
from tailrace.coordinator.course import Course
from tailrace.coordinator.durability.checkpoints import Checkpoints
from tailrace.coordinator.durability.savepoints import Savepoints
from tailrace.coordinator.durability.stopping import Stopping
from tailrace.state.layers import LayeredBackend
from tailrace.state.paths import manifest_place
from tailrace.statedata.key_group_split import Dealing
from tailrace.storage.manifest_slots import holds_manifest
from tailrace.storage.store import Store
from tailrace.task.subtask import machine
from tailrace.task.subtask.idleness import Reason
from tailrace.task.subtask.order import Turn


def _a_source_reads_on() -> Patches:
    """Bug: a source is not held by the cut of a stop."""

    def whose(turn: Turn[machine.Task]) -> Any:
        return (
            (lambda task: turn.whose(task) and task.chain.source is None) if turn.reason is Reason.HELD else turn.whose
        )

    order = tuple(turn._replace(whose=whose(turn)) for turn in machine.ORDER)
    return [mock.patch.object(machine, "ORDER", order)]


def _a_timer_fires_early() -> Patches:
    """Bug: timers of the clock fire after the cut of a stop."""
    held = [turn for turn in machine.ORDER if turn.reason is Reason.HELD]
    timers = [turn for turn in machine.ORDER if turn.guard is machine._timer_due]
    order: list[Turn[machine.Task]] = []
    for turn in machine.ORDER:
        order += [*timers, turn] if turn in held else [] if turn in timers else [turn]
    return [mock.patch.object(machine, "ORDER", tuple(order))]


def _a_savepoint_refers_to_others() -> Patches:
    """Bug: the cut of a savepoint writes only what has changed."""

    def make(refused: Any) -> Any:
        def unseen(self: Checkpoints, slot: int, ack: Any) -> Any:
            pending = self.pending.get(ack.checkpoint)
            whole = pending is not None and pending.cut.kind.whole
            return None if whole else refused(self, slot, ack)

        return unseen

    def changes(encoding: Any) -> Any:
        return lambda self, made, tables, whole: encoding(self, made, tables, False)

    return [method(LayeredBackend, "_encoding", changes), method(Checkpoints, "refusal", make)]


def _restored_behind_the_stop() -> Patches:
    """Bug: a restart takes the checkpoint before the stop's."""

    def make(latest: Any) -> Any:
        def older(self: Store) -> Any:
            found = latest(self)
            if found is None or not found[1].stopped:
                return found
            last = manifest_place(found[0]) or (0, 0)
            places = sorted(
                (manifest_place(name) or last, name) for one in self.incarnations() for name in self.names(one)
            )
            before = [name for place, name in places if place < last and holds_manifest(self.folder.read(name))]
            return (before[-1], self.manifest(before[-1])) if before else None

        return older

    return [method(Store, "latest", make)]


def _goes_on_behind_the_stop() -> Patches:
    """Bug: a restart runs a stopped job on, from the checkpoint of the stop."""

    def make(maybe_start: Any) -> Any:
        def starting(self: Course, now: int) -> None:
            with mock.patch.object(Stopping, "is_sealed", property(lambda self: False)):
                maybe_start(self, now)

        return starting

    return [method(Course, "_maybe_start", make)]


def _copied_before_visible() -> Patches:
    """Bug: a savepoint is copied as soon as its checkpoint is complete."""
    return [method(Savepoints, "visible", lambda visible: lambda self, through: visible(self, 1 << 60))]


def _not_published() -> Patches:
    """Bug: a stop is over as soon as its checkpoint is complete."""

    def make(finish: Any) -> Any:
        def finished(self: Course, now: int) -> None:
            output = self._durability.output
            if self._stopping.is_sealed and self._stopping.sealed is not None and output.pending:
                with mock.patch.object(type(output), "pending", property(lambda self: False)):
                    finish(self, now)
            else:
                finish(self, now)

        return finished

    return [method(Course, "maybe_finish", make)]


def _told_too_early() -> Patches:
    """Bug: a request for a stop is answered when the stop's checkpoint is complete."""

    def make(seal: Any) -> Any:
        def sealed(self: Course, stats: Any, now: int) -> None:
            seal(self, stats, now)
            self._report_stop(well=True)

        return sealed

    return [method(Course, "last_complete", make)]


def _answered_for_each_attempt() -> Patches:
    """Bug: a savepoint that is taken once more is kept for the attempt before, too."""

    def make(disturb: Any) -> Any:
        def kept(self: Savepoints, number: int, reason: str) -> Any:
            cuts, complete = dict(self._cuts), dict(self._complete)
            ended = disturb(self, number, reason)
            self._cuts, self._complete = cuts, complete
            return ended

        return kept

    return [method(Savepoints, "disturb", make)]


def _answered_when_it_begins_once_more() -> Patches:
    """Bug: a request for a stop is answered when a failure ends its first attempt."""

    def make(once_more: Any) -> Any:
        def answered(self: Stopping, reason: str) -> Any:
            return [*once_more(self, reason), *self._answer(lambda who: StopEnded(who, None, None, ""))]

        return answered

    return [method(Stopping, "once_more", make)]


def _incremental(run: Any) -> Any:
    """The run with state that is written as changes, often."""
    made = run.scenario
    settings = replace(made.checkpoints, interval=2 * MS)
    return replace(run, scenario=replace(made, program="toggled", n=240, rate=12_000, small=0, checkpoints=settings))


def _by_the_clock(run: Any) -> Any:
    """The run with timers of the clock."""
    return replace(run, scenario=replace(run.scenario, program="in_processing_time", n=90))


def _in_old_key_groups() -> Patches:
    """Bug: entries stay in their key group where a savepoint gets more of them."""
    return [method(Dealing, "_grouping", lambda grouping: lambda self, table, old, uid: lambda entry: old)]


STOP_BUGS = (
    Bug("a source reads behind the cut of a stop", STOPS, _a_source_reads_on),
    Bug("a timer fires behind the cut of a stop", STOPS, _a_timer_fires_early, _by_the_clock, seed=3),
    Bug("a savepoint refers to a file of its job", STOPS, _a_savepoint_refers_to_others, _incremental, seed=4),
    Bug("a restart restores what was before the stop", STOPS, _restored_behind_the_stop, seed=26),
    Bug("a restart runs on behind the stop", STOPS, _goes_on_behind_the_stop, seed=38),
    Bug("a savepoint is copied before its output is visible", STOPS, _copied_before_visible),
    Bug("what was prepared for a stop is not published", STOPS, _not_published, seed=25),
    Bug("a stop is told before its output is visible", STOPS, _told_too_early),
    Bug("a savepoint is answered for each attempt", STOPS, _answered_for_each_attempt, seed=12),
    Bug("a stop is answered at its first failure", STOPS, _answered_when_it_begins_once_more, seed=3),
    Bug("keys stay in the key groups that a savepoint had", STOPS, _in_old_key_groups),
)
