"""A manifest that is marked as published has nothing to publish again: readers may have moved the files."""

from __future__ import annotations

import msgspec

from tailrace.state.manifest import Manifest, Prepared, awaits_output, encode_manifest, has_more
from tailrace.storage.origins import earlier, later
from tailrace.testing.memorystore import MemoryStore


def manifest(incarnation: int, number: int = 1) -> bytes:
    prepared = [Prepared("sink", b"a")]
    return encode_manifest(Manifest("job", "run", incarnation, number, 0, 128, 1, [], prepared=prepared))


def test_only_what_is_not_marked_is_published_again() -> None:
    store = MemoryStore("job")
    incarnation = store.claim("run")
    name = store.commit(incarnation, 0, 1, manifest(incarnation))
    found = store.latest()
    assert found is not None and found[1].prepared == [Prepared("sink", b"a")]
    assert not store.is_published(name)
    store.mark_published(name)
    store.mark_published(name)
    assert store.is_published(name)
    found = store.latest()
    assert found is not None and (found[0], found[1].prepared) == (name, [])


def test_a_mark_goes_with_its_manifest() -> None:
    store = MemoryStore("job")
    incarnation = store.claim("run")
    name = store.commit(incarnation, 0, 1, manifest(incarnation))
    store.mark_published(name)
    store.sweep(incarnation + 1, [])
    assert name not in store.names(incarnation) and f"{incarnation}/0.published" not in store.names(incarnation)


def test_which_checkpoints_are_later_than_one() -> None:
    """Seals are none; one that cannot be read may be one."""
    store = MemoryStore("job")
    store.claim("run")
    names = [store.commit(1, n, n + 1, manifest(1, n + 1)) for n in range(3)]
    store.claim("run")
    names.append(store.commit(2, 0, 1, manifest(2, 4)))
    store.mark_published(names[2])
    found = later(store, names[0])
    assert [name for name, _ in found] == names[1:]
    assert [len(one.prepared) for _, one in found if one is not None] == [1, 0, 1]
    assert later(store, names[-1]) == []
    assert awaits_output([one for _, one in later(store, names[2])], "run")
    assert not awaits_output([one for _, one in later(store, names[1])][:1], "run"), "it is marked"
    assert not awaits_output([one for _, one in found], "another")
    store.memory.contents[names[-1]] = b"damaged"
    assert later(store, names[2]) == [(names[-1], None)] and awaits_output([None], "run")


def test_which_checkpoints_of_a_run_before_one_may_have_output_that_is_not_published() -> None:
    """Checkpoints of the run's earlier incarnations count as well, and none of another run. Their output may be in the
    later one, or not."""
    store = MemoryStore("job")
    store.claim("another")
    store.commit(1, 0, 1, manifest(1, 1))
    store = MemoryStore("job", store.memory)
    store.claim("run", takeover=True)
    names = [store.commit(2, n, n + 1, manifest(2, n + 2)) for n in range(2)]
    store.claim("run")
    names.append(store.commit(3, 0, 1, manifest(3, 4)))
    store.mark_published(names[1])
    newest = store.manifest(names[2])
    found = earlier(store, names[2], "run")
    assert [name for name, _ in found] == [names[0]] and earlier(store, names[0], "run") == []
    assert not has_more([one for _, one in found], newest), "the newest one has it as well"
    assert has_more([one for _, one in found], msgspec.structs.replace(newest, prepared=[])), "it is marked"
    store.memory.contents[names[0]] = b"damaged"
    assert earlier(store, names[2], "run") == [(names[0], None)] and has_more([None], newest)
