"""Bugs to be planted in replacements of lost workers: they lack what the lost worker knew, or have it in another order."""

from __future__ import annotations

import heapq
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from search.campaigns.replacements import replacing, replacing_run, standing_by
from search.planted.patches import FOLLOWED, RANDOM, Bug, Patches, method
from search.random_flows.description import Do, Events, Kind
from search.random_flows.drawing import Phase, Run
from search.random_flows.remembering import remembering
from tailrace.connectors.file_marks import Mark
from tailrace.connectors.followed import FollowedFile
from tailrace.connectors.following import Following
from tailrace.state.layers import LayeredBackend
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal import outside_answers
from tailrace.task.journal.compared_values import ComparedValues
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.operators.sources.split_readers import SharedReader
from tailrace.task.operators.timer_heap import Keyed, Timers


def _enumerator_forgets() -> Patches:
    """Bug: a replacement takes the enumerator's place in its input from the checkpoint alone."""

    def make(look: Any) -> Any:
        def forgetful(self: SourceTask) -> None:
            before = self._finder.position
            look(self)
            if self.outside.again is not None:  # type: ignore[attr-defined]
                self._finder.position = before

        return forgetful

    return [method(SourceTask, "_look_where_it_is", make)]


def _read_by_turns() -> Patches:
    """Bug: a replacement reads all splits of a shared reader where it should read one of them."""

    def make(take: Any) -> Any:
        return lambda self, limit, now, only: take(self, limit, now, None)

    return [method(SharedReader, "take", make)]


def _opened_anew() -> Patches:
    """Bug: what functions and sources request when they are opened, a replacement requests anew."""
    return [method(ReplayableSlice, "open", lambda opened: lambda self, before=None: opened(self))]


def _in_any_order() -> Patches:
    """Bug: values of state stay as they are after a cut, and come back in another form."""

    def make(table: Any) -> Any:
        def careless(self: LayeredBackend, *args: Any, **options: Any) -> Any:
            self.on_inexact = None
            return table(self, *args, **options)

        return careless

    return [method(LayeredBackend, "table", make)]


def _no_cut_of_state() -> Patches:
    """Bug: where a cut is replayed, values of state stay as they are."""
    return [mock.patch("tailrace.task.failover.replayed_steps.freeze_state", lambda operator, request: None)]


def _impatient() -> Patches:
    """Bug: a reader that gives nothing a few times counts as one that gives something else."""
    return [mock.patch.object(outside_answers, "_EMPTY", 4)]


def _files_by_name() -> Patches:
    """Bug: the reader of a followed file that goes on from a checkpoint opens the file that has the name now."""

    def make(find: Any) -> Any:
        def by_name(self: FollowedFile, mark: Mark, *, restored: bool = False) -> None:
            if restored and os.path.exists(mark.path):
                self._open(mark.path)
            else:
                find(self, mark, restored=restored)

        return by_name

    return [method(FollowedFile, "_find", make)]


def _generations_forgotten() -> Patches:
    """Bug: the position of the search for followed files has no generations of a file that was cut."""

    def make(place: property) -> property:
        def forgetful(self: Following) -> Any:
            return {"files": [{**one, "due": False, "unread": False} for one in place.fget(self)["files"]]}  # type: ignore[misc]

        return property(forgetful)

    return [method(Following, "position", make)]


def _ties_in_no_order() -> Patches:
    """Bug: which of two timers with one time and one order of setting fires first depends on all that the heap has seen."""

    def make(rebuild: Any) -> Any:
        def unsorted(self: Timers) -> None:
            rebuild(self)
            self._heap = [(time, order, Keyed(key)) for (key, time), order in self.table.items()]
            heapq.heapify(self._heap)

        return unsorted

    return [method(Timers, "rebuild", make), method(Keyed, "__lt__", lambda _: lambda self, other: False)]


def _left_with_timers(run: Run) -> Run:
    """A run whose timers, all of one time, were set at parallelism 2. They fire at parallelism 3, where workers are lost."""
    source = Events(90, 90, splits=2, pace=300)
    first = Phase(2, run.seed % 40, f"commit {2 + run.seed % 4} done")
    flow = replace(run.flow, source=source, steps=(Do("ties", 1),))
    run = replacing_run(replace(run, flow=flow, phases=(first, Phase(3)), disk=False))
    return replace(run, flow=flow)


def with_replacements(run: Run) -> Run:
    """The run, with operators and sources that remember, whose workers are lost and replaced."""
    flow = remembering(random.Random(f"tailrace planted memory {run.seed}"), run.flow)
    return replacing_run(replace(run, flow=flow))


def _finds(how: str) -> Any:
    return lambda run: run.world.checkpoints and any(events.found == how for events in run.flow.sources())


def _pauses(run: Run) -> Any:
    return run.world.checkpoints and any(events.pauses for events in run.flow.sources())


def _checkpoints(run: Run) -> bool:
    return run.world.checkpoints is not None


def _alone(*kinds: Kind) -> Callable[[Run], Run]:
    """A function that makes runs of these operators only, for more records."""

    def shape(run: Run) -> Run:
        source = Events(90, 90, splits=2, pace=300, timed=False)
        steps = tuple(Do(kind, number) for number, kind in enumerate(kinds, start=1))
        return replacing_run(replace(run, flow=replace(run.flow, source=source, steps=steps)))

    return shape


def _values_behind_keys_ignored() -> Patches:
    """Bug: of records with keys a replacement compares no values."""
    return [method(ComparedValues, "covers", lambda _: lambda self, batch: batch.groups is None)]


def _functions_not_prepared() -> Patches:
    """Bug: a standby takes the functions that it was to prepare for prepared ones."""
    return [mock.patch("tailrace.task.failover.standby.prepare_functions", lambda *args, **options: None)]


SETS: Kind = "sets"
MAP: Kind = "map"
DRAWN: Kind = "drawn"

AS_IT_WAS_BUGS = (
    Bug(
        "an enumerator forgets its finds",
        RANDOM,
        _enumerator_forgets,
        shape=with_replacements,
        suits=_finds("finding"),
        seed=231,
    ),
    Bug(
        "what is opened again asks the world",
        RANDOM,
        _opened_anew,
        shape=with_replacements,
        suits=_finds("anew"),
        seed=40,
    ),
    Bug("a replacement reads splits as they come", "in_partitions", _read_by_turns, replacing, seed=4),
    Bug("sets come back in another order", RANDOM, _in_any_order, shape=_alone(SETS, SETS), seed=11),
    Bug("a cut that is done again cuts no state", RANDOM, _no_cut_of_state, shape=_alone(SETS, SETS), seed=45),
    Bug(
        "timers of one time have no order",
        RANDOM,
        _ties_in_no_order,
        shape=_left_with_timers,
        suits=_checkpoints,
        seed=245,
    ),
    Bug(
        "values behind a key differ and nobody notices",
        RANDOM,
        _values_behind_keys_ignored,
        shape=_alone(DRAWN, DRAWN),
        seed=5,
    ),
    Bug("functions are not prepared in a standby", RANDOM, _functions_not_prepared, standing_by, shape=_alone(MAP)),
    Bug("a followed file is found by its name", FOLLOWED, _files_by_name, seed=2),
    Bug("a file that was cut is forgotten", FOLLOWED, _generations_forgotten, seed=3),
    Bug("a reader may not have nothing for long", RANDOM, _impatient, shape=with_replacements, suits=_pauses, seed=7),
)
