"""Bugs to be planted in workers that are lost at once, and replaced together."""

from __future__ import annotations

from typing import Any

from search.campaigns.replacements import executors_lost, moving, several_at_once
from search.planted.patches import Bug, Patches, method
from tailrace.coordinator.workers.replacement_phases import Takeovers
from tailrace.elements.entrylog import EntryLog
from tailrace.protocol.replay import Copy
from tailrace.task.failover.replacement import Resumed
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.history import History


def _not_told_on() -> Patches:
    """Bug: a worker does not pass on what it knows of other workers."""
    return [method(Copy, "reported_to", lambda told_on: lambda self, origin, party, depth: None)]


def _sent_before_it_is_let_in() -> Patches:
    """Bug: a replacement begins before the workers that are replaced with it can receive."""

    def make(connected: Any) -> Any:
        def hasty(self: Resumed) -> Any:
            self._unmet.clear()
            return connected(self)

        return hasty

    return [method(Resumed, "links_up", make)]


def _neighbours_left_out() -> Patches:
    """Bug: a frame leaves an executor without the history of the sender's neighbours there."""

    def make(place: Any) -> Any:
        def blind(self: ReplayableSlice, homes: Any) -> None:
            place(self, homes)
            self.beside = []

        return blind

    return [method(ReplayableSlice, "place", make)]


def _used_too_soon() -> Patches:
    """Bug: a frame is used though histories that it needs are still on their way."""
    return [method(ReplayableSlice, "_knows", lambda knows: lambda self, slot, end: True)]


def _nothing_needed() -> Patches:
    """Bug: a worker does not report which histories a party has to wait for."""
    return [method(Copy, "needed_by", lambda needed_by: lambda self, party: None)]


def _part_not_read() -> Patches:
    """Bug: entries of a history that have gone to files are not read back."""
    return [method(EntryLog, "part", lambda part: lambda self, start, stop: part(self, max(start, self._stored), stop))]


def _too_much_left_out() -> Patches:
    """Bug: a survivor leaves out an entry of a history that the coordinator does not have."""
    return [method(Copy, "report", lambda report: lambda self, known=0: report(self, known + 1 if known else 0))]


def _home_of_the_one_before() -> Patches:
    """Bug: a replacement that had gone on, and is lost, counts as in the executor of the worker before it."""
    return [method(Takeovers, "_home_lost", lambda _: lambda self, one: one.home)]


def _cut_unmentioned() -> Patches:
    """Bug: that a history was cut short is passed on only with entries behind the cut."""

    def make(reported_to: Any) -> Any:
        def silent(self: Copy, origin: int, party: int, depth: int) -> Any:
            return None if self._gone and not len(self._log) else reported_to(self, origin, party, depth)

        return silent

    return [method(Copy, "reported_to", make)]


def _behind_a_hole() -> Patches:
    """Bug: a replacement is sent only those steps of its peers that the worker before it was not sent."""
    return [method(History, "forget", lambda forget: lambda self, party: None)]


TOGETHER_BUGS = (
    Bug("a replacement is not sent what was sent before it", "counted", _behind_a_hole, executors_lost, seed=2),
    Bug("a lost replacement counts where the one before it was", "nested", _home_of_the_one_before, moving, seed=308),
    Bug("a cut history is passed on only with entries", "in_event_time", _cut_unmentioned, executors_lost, seed=80040),
    Bug("a party is not told which histories it needs", "counted", _nothing_needed, executors_lost, seed=4),
    Bug("a frame is used before the histories that it needs", "counted", _used_too_soon, executors_lost, seed=4),
    Bug(
        "a frame leaves an executor without neighbours' steps", "counted", _neighbours_left_out, executors_lost, seed=2
    ),
    Bug("what is known of others is not told on", "visited", _not_told_on, several_at_once, seed=357),
    Bug("a part of a copied history is not read from its files", "counted", _part_not_read, executors_lost, seed=4),
    Bug("a survivor leaves out too much of a history", "counted", _too_much_left_out, executors_lost, seed=2),
    Bug("it is sent before it is let in", "counted", _sent_before_it_is_let_in, several_at_once, seed=36),
)
