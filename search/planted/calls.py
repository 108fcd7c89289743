"""Bugs to be planted in asynchronous calls."""

from __future__ import annotations

from search.planted.patches import Bug, Patches, method
from tailrace.task.operators.calls.orders import KeysInTurn
from tailrace.task.operators.calls.pending import PendingRecords
from tailrace.task.operators.calls.task import MapAsyncTask


def _time_ahead() -> Patches:
    """Bug: event time does not wait for results."""
    return [method(MapAsyncTask, "hold", lambda hold: lambda self, time: [hold(self, time), time][1])]


def _forgotten_calls() -> Patches:
    """Bug: records whose results have not gone on at a checkpoint are not called behind a restore."""
    return [method(PendingRecords, "rebuild", lambda _: lambda self: None)]


def _out_of_turn() -> Patches:
    """Bug: calls of one key are made at the same time, and their results go on as they come."""
    make = lambda _: lambda self, numbers, pending: [*numbers]  # noqa: E731
    return [
        method(KeysInTurn, "add", make),
        method(KeysInTurn, "note_answers", lambda _: lambda self, numbers, pending: []),
    ]


def _endless_end() -> Patches:
    """Bug: the end of the input does not wait for results."""
    return [method(MapAsyncTask, "awaits_timers", lambda _: lambda self: False)]


CALL_BUGS = (
    Bug("event time overtakes the results of calls", "called", _time_ahead),
    Bug("calls that are under way are lost with their worker", "called", _forgotten_calls, seed=4),
    Bug("calls of a key overtake each other", "called", _out_of_turn),
    Bug("an input ends before the calls for it", "called", _endless_end),
)
