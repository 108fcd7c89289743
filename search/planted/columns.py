"""Bugs to be planted where state is in columns: in aggregates, windows, sessions, and versions that count for a while; and
in tables that come as changes and windows of all records."""

from __future__ import annotations

from typing import Any
from unittest import mock

from search.planted.ordering import alone
from search.planted.patches import RANDOM, Bug, Patches, method
from tailrace.api.joins.changes import ChangeJoin
from tailrace.api.windows.functions import CountedWindows
from tailrace.task.operators.aggregates.state import ColumnState
from tailrace.task.operators.joins.versions import ColumnVersionsTask
from tailrace.task.operators.windows.fronts import TimerFront
from tailrace.task.operators.windows.sessionfront import FrozenSessions
from tailrace.task.operators.windows.sessionstate import SessionState


def _aggregates_begin_anew() -> Patches:
    """Bug: a key that comes for the first time behind a restore is not looked up."""

    def make(fill: Any) -> Any:
        def empty(self: ColumnState) -> None:
            with mock.patch.object(self, "table", {}):
                fill(self)

        return empty

    return [method(ColumnState, "_fill", make)]


def _windows_without_ends() -> Patches:
    """Bug: checkpoints do not have the times at which windows are over."""
    return [method(TimerFront, "cut", lambda _: lambda self: None)]


def _sessions_come_back() -> Patches:
    """Bug: checkpoints still have the sessions of keys that have none any more."""

    def make(drop: Any) -> Any:
        return lambda self, limit: drop(self, limit)[:0]

    return [method(FrozenSessions, "drop", make)]


def _one_session_of_several() -> Patches:
    """Bug: where a record joins two sessions, what the later one had is gone."""
    return [method(SessionState, "_absorb", lambda _: lambda self, made, group, slots: None)]


def _versions_count_for_ever() -> Patches:
    """Bug: a version counts until the next one comes, however short it is kept."""

    def make(emit: Any) -> Any:
        def forgetful(self: ColumnVersionsTask, *more: Any) -> None:
            with mock.patch.object(self, "keep", None):
                emit(self, *more)

        return forgetful

    return [method(ColumnVersionsTask, "_emit", make)]


def _what_goes_stays() -> Patches:
    """Bug: in a join of changes partners are found that were taken back before a restore."""

    def make(delete: Any) -> Any:
        def stale(self: ChangeJoin, port: int, record: Any) -> int | None:
            number: int | None = delete(self, port, record)
            if number is not None and number % 4 == 3:
                self.rows[port][number] = record
            return number

        return stale

    return [method(ChangeJoin, "_delete", make)]


def _last_window_forgotten() -> Patches:
    """Bug: what is left of windows of records does not come out at the end."""

    def make(on_timer: Any) -> Any:
        return lambda self, time, ctx: on_timer(self, time, ctx) if ctx.timestamp is None else iter(())

    return [method(CountedWindows, "on_timer", make)]


COLUMN_BUGS = (
    Bug(
        "a join of changes keeps what was taken back",
        RANDOM,
        _what_goes_stays,
        shape=alone("changes joined"),
    ),
    Bug(
        "what is left of windows of records is forgotten",
        RANDOM,
        _last_window_forgotten,
        shape=alone("whole"),
    ),
    Bug(
        "an aggregate in columns begins anew behind a restore",
        RANDOM,
        _aggregates_begin_anew,
        shape=alone("running in columns"),
    ),
    Bug(
        "a window in columns does not end behind a restore",
        RANDOM,
        _windows_without_ends,
        shape=alone("windows of columns"),
    ),
    Bug(
        "a session in columns comes back behind a restore",
        RANDOM,
        _sessions_come_back,
        shape=alone("sessions of columns"),
    ),
    Bug(
        "a session in columns loses one that it joins",
        RANDOM,
        _one_session_of_several,
        shape=alone("sessions of columns"),
    ),
    Bug(
        "a version in columns counts however short it is kept",
        RANDOM,
        _versions_count_for_ever,
        shape=alone("version join of columns"),
    ),
)
