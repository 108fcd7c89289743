"""A manifest that is marked as published has nothing to publish again: readers may have moved the files."""

from __future__ import annotations

from tailrace.state.manifest import Manifest, Prepared, encode_manifest
from tailrace.testing.memorystore import MemoryStore


def manifest(incarnation: int) -> bytes:
    prepared = [Prepared("sink", b"a")]
    return encode_manifest(Manifest("job", "run", incarnation, 1, 0, 128, 1, [], prepared=prepared))


def test_only_what_is_not_marked_is_published_again() -> None:
    store = MemoryStore("job")
    incarnation = store.claim("run")
    name = store.commit(incarnation, 0, manifest(incarnation))
    found = store.latest()
    assert found is not None and found[1].prepared == [Prepared("sink", b"a")]
    store.mark_published(name)
    store.mark_published(name)
    found = store.latest()
    assert found is not None and (found[0], found[1].prepared) == (name, [])


def test_a_mark_goes_with_its_manifest() -> None:
    store = MemoryStore("job")
    incarnation = store.claim("run")
    name = store.commit(incarnation, 0, manifest(incarnation))
    store.mark_published(name)
    store.sweep(incarnation + 1, [])
    assert name not in store.names(incarnation) and f"{incarnation}/0.published" not in store.names(incarnation)
