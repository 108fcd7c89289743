"""The checkpoint that a job starts from: what there is around it in its folder, and what a restart must look up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tailrace.errors import CheckpointCorrupt, CheckpointNotFound
from tailrace.state.manifest import Manifest, awaits_output, has_more
from tailrace.state.paths import SAVEPOINT, manifest_name, manifest_place
from tailrace.storage.slots import numbers_in
from tailrace.storage.store import Store

Beside = tuple[str, Manifest | None]
"""Another checkpoint of the folder, with its name; None for one that cannot be read."""


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a job starts from."""

    manifest: Manifest
    folder: str
    """The URL of the job's folder that it lies in."""
    path: str
    """Its name there."""
    later: tuple[Beside, ...] = ()
    """The checkpoints after it in that folder."""
    marked: Callable[[], bool] = lambda: False
    """Looks up whether it is marked as published by now: other starts from it may have marked it."""
    earlier: tuple[Beside, ...] = ()
    """Those of its run before it that may have output which is not published."""

    @property
    def is_needed(self) -> bool:
        """Whether the hidden output of its run, and the traces of published output, must stay: others of its
        checkpoints need them."""
        run_id = self.manifest.run_id
        later, earlier = [one for _, one in self.later], [one for _, one in self.earlier]
        return awaits_output(later, run_id) or has_more(earlier, self.manifest)

    def own_path(self, store: Store | None) -> str:
        """Its name, where it lies in the folder of the job that starts; empty where it does not."""
        return self.path if store is not None and self.folder == store.url else ""

    def before(self, store: Store | None) -> list[str]:
        """The checkpoints whose output is visible when its own is, where that job may mark them."""
        return [name for name, one in self.earlier if one is not None] if self.own_path(store) else []


def origin_at(store: Store, path: str) -> Origin:
    """The checkpoint of this name, or the savepoint. Raises `CheckpointNotFound`, `CheckpointCorrupt`."""
    manifest = store.manifest(path)
    if path == SAVEPOINT:  # it stands alone; where a job has taken it, all output was visible before it was made
        return Origin(manifest, store.url, path, marked=lambda: not manifest.prepared)
    return Origin(
        manifest,
        store.url,
        path,
        tuple(later(store, path)),
        partial(store.is_published, path),
        tuple(earlier(store, path, manifest.run_id)),
    )


def later(store: Store, name: str) -> list[Beside]:
    """The checkpoints that were committed after this one and are there, the oldest first."""
    place = manifest_place(name)
    assert place is not None, name
    found: list[Beside] = []
    for incarnation in [one for one in store.incarnations() if one >= place[0]]:
        numbers = numbers_in(store.folder, incarnation)
        found += _read(store, incarnation, [number for number in numbers if (incarnation, number) > place])
    return found


def earlier(store: Store, name: str, run_id: str) -> list[Beside]:
    """The checkpoints of this run that were committed before this one and have output that may not be published, the oldest
    first. They may have the same output as this one."""
    place = manifest_place(name)
    assert place is not None, name
    found: list[Beside] = []
    for incarnation in reversed([one for one in store.incarnations() if one <= place[0]]):
        owner = store.owner(incarnation)
        if owner is not None and owner.run_id != run_id:
            break  # the incarnations of a run come one after the other: who claims in between fences it
        numbers = numbers_in(store.folder, incarnation)
        read = _read(store, incarnation, [number for number in numbers if (incarnation, number) < place])
        found = [(each, one) for each, one in read if one is None or (one.prepared and one.run_id == run_id)] + found
    return found


def _read(store: Store, incarnation: int, numbers: list[int]) -> Iterator[Beside]:
    for name in [manifest_name(incarnation, number) for number in numbers]:
        try:
            yield name, store.manifest(name)
        except CheckpointNotFound:
            pass  # a seal, a pointer, or deleted meanwhile
        except CheckpointCorrupt:
            yield name, None


@dataclass(frozen=True)
class Claimed:
    """The result of a restart's claim."""

    incarnation: int
    path: str
    """The name of the newest checkpoint; empty where there is none."""
    manifest: Manifest | None
    origin_published: bool
    """Whether the checkpoint that the run has started from is marked as published by now."""


def claim_again(store: Store, run_id: str, origin_marked: Callable[[], bool] | None) -> Claimed:
    """A claim for a restart of a run, and what it reads behind it: no earlier driver commits any more, so what it reads
    stays true. Another start from the same origin may have published the origin's output."""
    incarnation = store.claim(run_id)
    found = store.latest()
    published = origin_marked is not None and origin_marked()
    path, manifest = found if found is not None else ("", None)
    return Claimed(incarnation, path, manifest, published)
