"""What a run that is over may still do in its checkpoint folder."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.state.manifest import Manifest
from tailrace.state.takeover import overtaken_by
from tailrace.storage.reading import read_placed
from tailrace.storage.store import Store

Awaited = dict[str, list[bytes]]
"""Prepared output, by the uids of the sinks."""


def still_ours(store: Store, run_id: str) -> int | None:
    """The newest incarnation of the job; None where another run has taken over without ours having noticed."""
    newest = store.holder(max(store.incarnations(), default=0))
    return newest.incarnation if overtaken_by(run_id, [newest]) is None else None


def awaited(store: Store, run_id: str, kept: Iterable[str]) -> Awaited | None:
    """When no commit is on its way any more: the prepared output of the checkpoints that stay, those of the names
    `kept` and the newest. A start from one of them publishes it, or needs to know that it was published. None where
    another run has taken over: it may have read our checkpoint before it was marked as published."""
    if still_ours(store, run_id) is None:
        return None
    newest = store.latest()
    stay: list[Manifest] = [store.manifest(path) for path in kept]
    found: dict[str, dict[bytes, None]] = {}  # the newest one is mostly among those that stay
    for one in [one for each in [*stay, *([] if newest is None else newest[1:])] for one in each.prepared]:
        data = one.data if isinstance(one.data, bytes) else read_placed(store, one.data)
        found.setdefault(one.uid, {})[data] = None
    return {uid: list(prepared) for uid, prepared in found.items()}
