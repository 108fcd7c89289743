"""The checkpoint that a job starts from: the other checkpoints in its folder, and the lookups that a restart must repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tailrace.errors import CheckpointCorrupt, CheckpointNotFound
from tailrace.state.manifest import Manifest, awaits_output, has_more
from tailrace.state.paths import SAVEPOINT, manifest_name, manifest_place
from tailrace.storage.manifest_slots import numbers_in
from tailrace.storage.store import Store

Beside = tuple[str, Manifest | None]
"""Name and manifest of another checkpoint in the folder; None in place of a manifest that cannot be read."""


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a job starts from."""

    manifest: Manifest
    folder: str
    """The URL of the folder of the job that the checkpoint lies in."""
    path: str
    """The name of the checkpoint in that folder."""
    later: tuple[Beside, ...] = ()
    """The checkpoints in that folder that were committed after it."""
    marked: Callable[[], bool] = lambda: False
    """Looks up whether the checkpoint is marked as published by now: other starts from it may have marked it."""
    earlier: tuple[Beside, ...] = ()
    """Earlier checkpoints of the same run that may have output which is not published."""

    @property
    def is_needed(self) -> bool:
        """True if the hidden output of its run, and the traces of published output, must stay because other checkpoints of
        the run need them."""
        run_id = self.manifest.run_id
        later, earlier = [one for _, one in self.later], [one for _, one in self.earlier]
        return awaits_output(later, run_id) or has_more(earlier, self.manifest)

    def own_path(self, store: Store | None) -> str:
        """The name of the checkpoint if it lies in the folder of the job that starts; else empty."""
        return self.path if store is not None and self.folder == store.url else ""

    def before(self, store: Store | None) -> list[str]:
        """The checkpoints whose output is visible when the output of this one is, if the job that starts may mark them."""
        return [name for name, one in self.earlier if one is not None] if self.own_path(store) else []


def origin_at(store: Store, path: str) -> Origin:
    """The origin at the name of a checkpoint or savepoint. Raises `CheckpointNotFound`, `CheckpointCorrupt`."""
    manifest = store.manifest(path)
    if path == SAVEPOINT:  # it stands alone; if a job has made it, all output was visible before
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
    """The existing checkpoints that were committed after this one, oldest first."""
    place = manifest_place(name)
    assert place is not None, name
    found: list[Beside] = []
    for incarnation in [one for one in store.incarnations() if one >= place[0]]:
        numbers = numbers_in(store.folder, incarnation)
        found += _read(store, incarnation, [number for number in numbers if (incarnation, number) > place])
    return found


def earlier(store: Store, name: str, run_id: str) -> list[Beside]:
    """The checkpoints of this run that were committed before this one and have output that may not be published, oldest
    first. They may have the same output as this one."""
    place = manifest_place(name)
    assert place is not None, name
    found: list[Beside] = []
    for incarnation in reversed([one for one in store.incarnations() if one <= place[0]]):
        owner = store.owner(incarnation)
        if owner is not None and owner.run_id != run_id:
            break  # the incarnations of a run follow each other: a claim in between fences the run
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
    """The name of the newest checkpoint; empty if there is none."""
    manifest: Manifest | None
    origin_published: bool
    """True if the checkpoint that the run has started from is marked as published by now."""


def claim_again(store: Store, run_id: str, origin_marked: Callable[[], bool] | None, at: str = "") -> Claimed:
    """A new claim for a restart of a run, and what it reads after it. No earlier driver commits any more, so what it reads
    stays true. Another start from the same origin may have published the output of the origin. `at`: see `Owner.at`."""
    incarnation = store.claim(run_id, at=at)
    found = store.latest()
    published = origin_marked is not None and origin_marked()
    path, manifest = found if found is not None else ("", None)
    return Claimed(incarnation, path, manifest, published)
