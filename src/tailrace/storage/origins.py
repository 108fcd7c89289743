"""The checkpoint that a job starts from: what there is around it in its folder, and what a restart must look up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tailrace.state.manifest import Manifest, awaits_output, has_more
from tailrace.storage.store import Store


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a job starts from."""

    manifest: Manifest
    folder: str
    """The URL of the job's folder that it lies in."""
    path: str
    """Its name there."""
    later: tuple[tuple[str, Manifest | None], ...] = ()
    """The checkpoints after it in that folder, with their names; None for one that cannot be read."""
    marked: Callable[[], bool] = lambda: False
    """Looks up whether it is marked as published by now: other starts from it may do that."""
    earlier: tuple[tuple[str, Manifest | None], ...] = ()
    """Those of its run before it that may have output which is not published."""

    @property
    def is_needed(self) -> bool:
        """Whether what its run has left under cover, and the traces of what it has published, must stay: others of its
        checkpoints need them."""
        run_id = self.manifest.run_id
        later, earlier = [one for _, one in self.later], [one for _, one in self.earlier]
        return awaits_output(later, run_id) or has_more(earlier, self.manifest)

    def own_path(self, store: Store | None) -> str:
        """Its name, where it lies in the folder of the job that starts; empty where it does not."""
        return self.path if store is not None and self.folder == store.url else ""

    def before(self, store: Store | None) -> list[str]:
        """The checkpoints whose output is visible when its own is, where they are that job's to mark."""
        return [name for name, one in self.earlier if one is not None] if self.own_path(store) else []


def origin_at(store: Store, path: str) -> Origin:
    """The checkpoint of this name. Raises `CheckpointNotFound`, `CheckpointCorrupt`."""
    manifest = store.manifest(path)
    return Origin(
        manifest,
        store.url,
        path,
        tuple(store.later(path)),
        partial(store.is_published, path),
        tuple(store.earlier(path, manifest.run_id)),
    )


@dataclass(frozen=True)
class Claimed:
    """What a restart has found behind its claim."""

    incarnation: int
    path: str
    """The name of the newest checkpoint; empty where there is none."""
    manifest: Manifest | None
    origin_published: bool
    """Whether the checkpoint that the run has started from is marked as published by now."""


def claim_again(store: Store, run_id: str, origin_marked: Callable[[], bool] | None) -> Claimed:
    """A claim for a restart of a run, and what is to be known behind it: no earlier driver commits any more, so what is
    read from here on stays so. Another start from the same origin may have published what that had prepared."""
    incarnation = store.claim(run_id)
    found = store.latest()
    published = origin_marked is not None and origin_marked()
    path, manifest = found if found is not None else ("", None)
    return Claimed(incarnation, path, manifest, published)
