"""A bug to be planted in state with a time to live."""

from __future__ import annotations

from typing import Any

from search.planted.patches import RANDOM, Bug, Patches, method
from search.random_flows.drawing import Run
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
        def loads(self: StateTable, key: Any, value: Any, group: int, data: bytes | None) -> None:
            if self.info.stamps:
                value = wrap(self.kind, unwrap(self.kind, value), UNSTAMPED)
                data = None if data is None else self.codec.encode(value)
            load(self, key, value, group, data)

        return loads

    return [method(Lifetime, "restore", make), method(StateTable, "load", without_times)]


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
