"""Bugs to be planted in programs that change: in what a start compares, and in how objects of older classes are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from search.planted.patches import CHANGES, Bug, Patches, method
from tailrace.api.restore import compatibility
from tailrace.elements import valueclasses, valuepickling
from tailrace.elements.valueclasses import Renewal
from tailrace.graph.operators import Head
from tailrace.state import operator_state, restoring
from tailrace.statedata import fitting
from tailrace.task.channels import channel_logs
from tailrace.task.subtask import returning
from tailrace.task.worker import restore
from tailrace.task.worker.checkpoints import WorkerCheckpoints


def _everywhere(name: str, other: Any, *modules: Any) -> Patches:
    return [mock.patch.object(module, name, other) for module in modules]


def _as_pickle_reads_them() -> Patches:
    """Bug: objects are read as their classes describe them today."""
    return _everywhere("renewal", lambda shape: None, valueclasses, valuepickling, channel_logs)


def _without_defaults() -> Patches:
    """Bug: a field that is new does not receive its default."""

    def make(renewed: Any) -> Any:
        def kept(self: Renewal, held: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in renewed(self, held).items() if name in held}

        return kept

    return [method(Renewal, "renew", make)]


def _another_name() -> Patches:
    """Bug: a field that is gone and one that is new do not count as one field under another name."""

    def added(old: Any, now: Any, unknown: bool) -> list[str]:
        return [name for name in now.fields if name not in old.fields]

    def members(old: Any, now: Any, kind: Any) -> None:
        return None

    return [mock.patch.object(valueclasses, "_new_fields", added), mock.patch.object(valueclasses, "_members", members)]


def _any_kind() -> Patches:
    """Bug: an operator goes on with the state of another kind of operator."""
    return _everywhere("continues", lambda record, node: True, compatibility, restore, fitting)


def _any_type() -> Patches:
    """Bug: state that is declared as another type is read as that."""
    return _everywhere("takes", lambda old, encoding, classes, new: True, compatibility, restoring, operator_state)


def _by_number() -> Patches:
    """Bug: records in flight go to the input with the number that they were on their way to."""

    def goes_to(source: str, tag: str | None, port: int, node: Any, node_of: Any) -> int | None:
        back = isinstance(node.operator, Head) and port != 0
        return port if back or any(edge.port == port for edge in node.inputs) else None

    return _everywhere("goes_to", goes_to, compatibility, returning)


def _no_timers() -> Patches:
    """Bug: timers are not compared before workers have them."""

    def nothing(*args: Any) -> Iterator[str]:
        return iter(())

    return [mock.patch.object(compatibility, "_of_timers", nothing)]


def _unknown_records() -> Patches:
    """Bug: a manifest does not hold the edges over which records were on their way."""
    return [method(WorkerCheckpoints, "_note", lambda note: lambda self, pending, log, frame: None)]


CHANGE_BUGS = (
    Bug("objects are read as their class is today", CHANGES, _as_pickle_reads_them, seed=24),
    Bug("a new field has no default", CHANGES, _without_defaults, seed=24),
    Bug("a field may have another name", CHANGES, _another_name, seed=109),
    Bug("an operator goes on with what another kind had", CHANGES, _any_kind, seed=1),
    Bug("state of another declared type is read", CHANGES, _any_type, seed=598),
    Bug("records in flight go to the input of the same number", CHANGES, _by_number, seed=207),
    Bug("timers are not compared before a start", CHANGES, _no_timers, seed=4),
    Bug("a manifest says nothing of records in flight", CHANGES, _unknown_records, seed=121),
)
