"""What a run that is over may still do in its checkpoint folder."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.state.ending import Ending
from tailrace.state.manifest import Manifest
from tailrace.state.takeover import overtaken_by
from tailrace.storage.reading import read_placed
from tailrace.storage.store import Store

Awaited = dict[str, list[bytes]]
"""Prepared output, by the uids of the sinks."""


def still_ours(store: Store, run_id: str) -> int | None:
    """The newest incarnation of the job; None where another run has taken over without ours having noticed."""
    newest = store.holder(max(store.incarnations(), default=0))
    return newest.incarnation if overtaken_by(run_id, [newest], store.term) is None else None


def leave(store: Store, run_id: str, ending: Ending | None, surplus: list[str] | None) -> bool:
    """The last that a run does to what it has written: it marks its end, and behind that removes the files of its
    checkpoints, where these are not to outlive it (`surplus`). Whether they are gone. In this order a start goes on from the
    last checkpoint as long as there is no mark, which publishes nothing twice. False, with nothing done, where another run
    has taken over: that one starts from our files. An error of the storage leaves the checkpoints where they are."""
    newest = still_ours(store, run_id)
    if newest is None:
        return False
    if ending is not None:
        store.mark_ended(newest, ending)
    if surplus is None:
        return False
    store.delete(surplus)
    store.sweep(newest + 1, [])
    return True


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
