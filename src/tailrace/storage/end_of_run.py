"""The steps that a run may still take in its checkpoint folder after it has ended."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.state.end_mark import Ending
from tailrace.state.job_holder import overtaken_by
from tailrace.state.manifest import Manifest
from tailrace.storage.reading import read_placed
from tailrace.storage.store import Store

Awaited = dict[str, list[bytes]]
"""Uid of a sink -> its prepared output."""


def still_ours(store: Store, run_id: str) -> int | None:
    """The newest incarnation of the job; None if another run has taken over, and this run has not noticed it."""
    newest = store.holder(max(store.incarnations(), default=0))
    return newest.incarnation if overtaken_by(run_id, [newest], store.term) is None else None


def leave(store: Store, run_id: str, ending: Ending | None, surplus: list[str] | None) -> bool:
    """Ends a run in its checkpoint folder: marks its end, and then deletes the files of its checkpoints, if these are not to
    outlive the run (`surplus`). Returns True if the files are deleted. As long as there is no mark, a start goes on from
    the last checkpoint, which publishes nothing twice; so the mark comes first. Returns False and does nothing if another
    run has taken over, because that run starts from these files. An error of the storage leaves the checkpoints where
    they are."""
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


def awaited_output(store: Store, run_id: str, kept: Iterable[str]) -> Awaited | None:
    """The prepared output of the checkpoints that stay (the ones named in `kept`, and the newest), once no commit is under
    way any more. A start from one of them publishes this output, or must know that it was published. None if another run
    has taken over: it may have read a checkpoint of this run before it was marked as published."""
    if still_ours(store, run_id) is None:
        return None
    newest = store.latest()
    stay: list[Manifest] = [store.manifest(path) for path in kept]
    found: dict[str, dict[bytes, None]] = {}  # the newest is usually one of `kept` as well
    for one in [one for each in [*stay, *([] if newest is None else newest[1:])] for one in each.prepared]:
        data = one.data if isinstance(one.data, bytes) else read_placed(store, one.data)
        found.setdefault(one.uid, {})[data] = None
    return {uid: list(prepared) for uid, prepared in found.items()}
