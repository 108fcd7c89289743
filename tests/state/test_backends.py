"""Both backends hold what they are given, and their checkpoints hold what was there at the cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.cuts import CutRequest
from tailrace.errors import ConfigError, IncompatibleState, UserCodeError
from tailrace.state import layers
from tailrace.state.layers import LayeredBackend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.testing.backends import CHECKS, Files, Scenario, Snapshot

Make = Callable[..., LayeredBackend]
_numbers = itertools.count()


def maker(name: str, folder: Path) -> Make:
    if name == "memory":
        return lambda **options: MemoryBackend(uid="u", operator="op", **options)
    pytest.importorskip("rocksdict")
    from tailrace.storage.disk_backend import DiskBackend

    small: dict[str, Any] = {"top_entries": 20, "cache_entries": 7}
    return lambda **options: DiskBackend(folder / str(next(_numbers)), uid="u", operator="op", **{**small, **options})


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, scratch: Path) -> Make:
    return maker(request.param, scratch)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """State counts as large, so that checkpoints are incremental."""
    monkeypatch.setattr(layers, "SMALL", 50)
    yield


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_backend_does_what_every_backend_has_to_do(make: Make, check: Any) -> None:
    check(make)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_and_so_it_does_when_checkpoints_are_incremental(make: Make, check: Any, small: None) -> None:
    check(make)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(["write", "checkpoint", "outcome", "restart"]), max_size=300))
def test_whatever_happens_in_whatever_order(seed: int, events: list[str]) -> None:
    before, layers.SMALL = layers.SMALL, 10
    try:
        scenario = Scenario(MemoryBackend, seed)
        for event in events:
            getattr(scenario, event)()
        scenario.compare()
        scenario.compare_last()
    finally:
        layers.SMALL = before


@pytest.mark.parametrize(("old", "new"), [("memory", "disk"), ("disk", "memory")])
def test_a_checkpoint_of_one_backend_is_restored_into_the_other(old: str, new: str, scratch: Path) -> None:
    one, other, files = maker(old, scratch)(), maker(new, scratch)(), Files()
    for backend in (one, other):
        backend.table("t")
        backend.table("l", kind="list", type=int, encoding="msgspec")
    for key in range(100):
        one.tables["t"][key] = (key, [key])
        one.tables["l"][str(key)] = [key]
    files.take(one, 1)
    files.restore(other, 1, True)
    for name in ("t", "l"):
        assert dict(other.tables[name].items()) == dict(one.tables[name].items())
    one.close()
    other.close()


# Incremental.


def filled(make: Make, files: Files, entries: int) -> LayeredBackend:
    backend = make()
    table = backend.table("t")
    for key in range(entries):
        table[key] = [key, "x" * 50]
        if not key % 1_000:
            backend.relieve()
    files.take(backend, 1)
    files.confirm(backend, 1)
    return backend


def test_one_per_cent_changed_is_about_two_per_cent_written(make: Make, small: None) -> None:
    files = Files()
    backend = filled(make, files, 20_000)
    whole = files.snapshots[1].size
    for number in range(2, 8):
        for key in range(number * 200, number * 200 + 200):
            backend.tables["t"][key] = [number, "y" * 50]
        made = files.take(backend, number)
        files.confirm(backend, number)
        assert made.full and made.delta
        # What changed, as much again in whole groups and at most one of 128 too much, and blocks are not free.
        assert made.size < whole * (0.01 + 0.01 + 1.5 / 128) + len(made.delta) * 60
    backend.close()


def test_what_was_rewritten_too_much_counts_for_the_next_checkpoint(make: Make, small: None) -> None:
    """Two in three of these change two thirds of a group, and rewrite a whole one."""
    files = Files()
    backend = filled(make, files, 20_000)
    full = []
    for number in range(2, 20):
        for key in range(number * 100, number * 100 + 104):
            backend.tables["t"][key] = [number]
        full.append(len(files.take(backend, number).full))
        files.confirm(backend, number)
    assert sum(full) <= 18 * 104 * 128 / 20_000 + 2
    assert all(one or other for one, other in itertools.pairwise(full)), "chains stay short"
    backend.close()


def test_an_aborted_checkpoint_has_rewritten_nothing(make: Make, small: None) -> None:
    files = Files()
    backend = filled(make, files, 20_000)
    for number in range(2, 10):
        backend.tables["t"][number] = [number]
        backend.freeze(CutRequest(number))
        while not backend.encode(1_000)[1]:
            pass
        assert backend.groups(number)[0], "what the one before has rewritten does not count"
        backend.abort(number)
    backend.close()


def test_chains_stay_short(make: Make, small: None) -> None:
    files = Files()
    backend = filled(make, files, 3_000)
    for number in range(2, 400):
        backend.tables["t"][number % 3_000] = [number]
        files.take(backend, number)
        files.confirm(backend, number)
    assert max(map(len, files.confirmed.values())) <= 130
    assert min(chain[0] for chain in files.confirmed.values()) > 100, "each group was written as a whole again"
    backend.close()


def test_nothing_changed_is_next_to_nothing_written(make: Make, small: None) -> None:
    files = Files()
    backend = filled(make, files, 3_000)
    made = files.take(backend, 2)
    assert len(made.full) == 1 and not made.delta
    backend.close()


def test_small_state_is_written_as_a_whole(make: Make) -> None:
    files = Files()
    backend = filled(make, files, 500)
    backend.tables["t"].pop(3)
    made = files.take(backend, 2)
    assert not made.delta
    assert len(made.full) >= len({group for group, chain in files.confirmed.items() if chain})
    backend.close()


def test_after_the_restore_of_anothers_files_everything_is_written(make: Make, small: None) -> None:
    files = Files()
    backend = filled(make, files, 3_000)
    for own in (True, False):
        other = make()
        other.table("t")
        files.restore(other, 1, own)
        fresh = Files()
        fresh.confirmed = dict(files.confirmed) if own else {}
        made = fresh.take(other, 2)
        assert len(made.full) == (1 if own else 128)
        other.close()
    backend.close()


def test_a_thousand_aborts_leave_memory_as_it_was(make: Make, small: None) -> None:
    files = Files()
    backend = filled(make, files, 3_000)
    for number in range(2, 1_002):
        backend.tables["t"][number % 50] = [number]
        backend.freeze(CutRequest(number))
        while number % 2 and not backend.encode(100)[1]:
            pass
        backend.abort(number)
        backend.relieve()
    assert len(backend.generations) <= 2
    assert sum(one.size() for one in backend.generations) <= 200
    assert (
        len(backend.tables["t"].top) + len(backend.tables["t"].frozen.entries if backend.tables["t"].frozen else ())
        < 150
    )
    made = files.take(backend, 2_000)
    assert sum(map(len, made.chains.values())) < 400
    backend.close()


def test_keys_that_come_and_go_while_every_checkpoint_fails_do_not_pile_up(make: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(layers, "SMALL", 100)
    files = Files()
    backend = make()
    table = backend.table("t")
    files.take(backend, 1)
    files.confirm(backend, 1)
    for number in range(2, 200):
        for key in range(number * 20, number * 20 + 20):
            table[key] = key
            table.pop(key - 40)
        backend.freeze(CutRequest(number))
        while not backend.encode(1_000)[1]:
            pass
        backend.abort(number)
    assert sum(one.size() for one in backend.generations) < 400
    files.take(backend, 1_000)
    files.confirm(backend, 1_000)
    other = make()
    other.table("t")
    files.restore(other, 1_000, True)
    assert dict(other.tables["t"].items()) == dict(table.items())
    backend.close()
    other.close()


def test_encoding_goes_in_portions(make: Make) -> None:
    backend = make()
    for key in range(2_000):
        backend.table("t")[key] = key
    backend.freeze(CutRequest(1))
    calls = 1
    while not backend.encode(50)[1]:
        calls += 1
    assert calls > 20
    backend.close()


# What does not fit.


def test_a_value_that_cannot_be_encoded_is_reported_with_its_key(make: Make) -> None:
    backend = make(subtask=3)
    backend.table("handles")["the key"] = lambda: None
    backend.freeze(CutRequest(1))
    with pytest.raises(
        UserCodeError, match=r"'op', subtask 3: the value of state 'handles' for key 'the key' cannot be"
    ) as e:
        backend.encode(100)
    assert e.value.operator == "op"
    backend.close()


def test_state_that_is_not_declared_any_more_is_refused_or_left_behind(make: Make) -> None:
    backend, files = make(), Files()
    backend.table("old")["a"] = 1
    backend.table("other")["a"] = 1
    files.take(backend, 1)
    new = make()
    new.table("other")
    with pytest.raises(IncompatibleState, match=r"uid 'u'.*state 'old' of kind 'value'.*declared are 'other'"):
        files.restore(new, 1, True)
    changed = make()
    changed.table("old", kind="list")
    with pytest.raises(IncompatibleState, match="'old' is of kind 'value' in the checkpoint and declared as 'list'"):
        files.restore(changed, 1, True)
    allowed = make(allow_dropped=True)
    allowed.table("other")
    files.restore(allowed, 1, True)
    assert dict(allowed.tables["other"].items()) == {"a": 1}
    fresh = Files()
    fresh.confirmed = dict(files.snapshots[1].chains)
    assert fresh.take(allowed, 2).full == files.snapshots[1].full, "the old blocks are not referred to any more"
    for one in (backend, new, changed, allowed):
        one.close()


def test_an_encoding_that_there_is_not_is_reported(make: Make) -> None:
    backend = make()
    with pytest.raises(ConfigError, match="encoding must be"):
        backend.table("t", encoding="json")
    backend.close()


def test_a_read_does_not_count_as_a_change(make: Make, small: None) -> None:
    backend, files = make(), Files()
    table = backend.table("t")
    for key in range(3_000):
        table[key] = (key, "x")
    files.take(backend, 1)
    files.confirm(backend, 1)
    for key in range(3_000):
        assert table[key] == (key, "x")
    assert not files.take(backend, 2).delta
    backend.close()


def test_an_error_behind_the_cut_is_not_the_readers(make: Make) -> None:
    """A value that cannot be saved is handed out before its turn: the reader gets no error, the checkpoint does."""
    backend = make()
    table = backend.table("t")
    table["k"] = [lambda: None]
    backend.freeze(CutRequest(1))
    assert len(table["k"]) == 1
    with pytest.raises(UserCodeError, match="cannot be saved"):
        Files().encode(backend, Snapshot(1), 1_000)
    backend.abort(1)
    backend.close()
