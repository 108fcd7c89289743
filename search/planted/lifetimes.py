"""A bug to be planted in state with a time to live."""

from __future__ import annotations

from typing import Any

from search.planted.patches import RANDOM, Bug, Patches, method
from search.random_flows.drawing import Run
from tailrace.state.codecs import Entries
from tailrace.state.restoring import Restoring
from tailrace.state.tables import StateTable
from tailrace.state.ttl import UNSTAMPED, unwrap, wrap
from tailrace.state.ttl_lifetimes import Lifetime


def _lives_begin_at_a_restore() -> Patches:
    """Bug: an entry with a time to live counts as written when it is restored."""

    def make(restore: Any) -> Any:
        def anew(self: Lifetime, parts: Any, fresh: bool) -> None:
            restore(self, [], fresh)

        return anew

    def without_times(load: Any) -> Any:
        def loads(self: Restoring, table: StateTable, group: int, found: Entries, decode: Any, same: bool) -> None:
            if not table.info.stamps:
                return load(self, table, group, found, decode, same)
            anew = lambda held: wrap(table.kind, unwrap(table.kind, held), UNSTAMPED)  # noqa: E731 - of this table
            written = found._replace(values=list(map(anew, found.values)))
            return load(self, table, group, written, lambda data: anew(decode(data)), False)

        return loads

    return [method(Lifetime, "restore", make), method(Restoring, "_load", without_times)]


def _some_live(run: Run) -> bool:
    return any(step.kind == "lived" for step in run.flow.operators())


LIFETIME_BUGS = (
    Bug(
        "state with a time to live lives anew behind a restore",
        RANDOM,
        _lives_begin_at_a_restore,
        seed=282,
        suits=_some_live,
    ),
)
