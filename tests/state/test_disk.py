"""State on disk: bounded in memory, and equal keys are one key."""

from __future__ import annotations

import builtins
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.elements.plainkeys import plain_key
from tailrace.errors import ConfigError
from tailrace.testing.backends import Files

pytest.importorskip("rocksdict")

from tailrace.storage.disk_backend import DiskBackend


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[DiskBackend]:
    made = DiskBackend(tmp_path / "db", uid="u", top_entries=100, cache_entries=50)
    yield made
    made.close()


def test_state_is_larger_than_what_is_kept_in_memory(backend: DiskBackend) -> None:
    table, base = backend.table("t"), backend.table("t").base
    for key in range(20_000):
        table[f"key {key}"] = (key, key / 2)
        if not key % 100:
            backend.relieve()
            assert len(table.top) <= 100
    assert len(table) == 20_000
    for key in range(0, 20_000, 7):
        assert table[f"key {key}"] == (key, key / 2)
        assert len(base.cache) <= 50  # type: ignore[attr-defined]
    assert backend.entries() == 20_000


def test_what_went_to_disk_before_the_cut_is_in_the_next_checkpoint(backend: DiskBackend, tmp_path: Path) -> None:
    table, files = backend.table("t"), Files()
    for round_ in range(1, 4):
        for key in range(round_ * 500, round_ * 500 + 1_000):
            table[key] = [round_]
            table.pop(key - 600)
            backend.relieve()
        files.take(backend, round_)
        files.confirm(backend, round_)
    other = DiskBackend(tmp_path / "other", uid="u")
    other.table("t")
    files.restore(other, 3, True)
    assert dict(other.tables["t"].items()) == dict(table.items())
    other.close()


def test_large_values_go_to_disk_sooner(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "large", uid="u", top_bytes=1_000_000)
    table = backend.table("t")
    for key in range(200):
        table[key] = "x" * 100_000
        backend.relieve()
    assert len(table.top) < 30
    backend.close()


@pytest.mark.parametrize(
    "keys",
    [
        [1, 1.0, True, Decimal(1), np.int64(1), np.float32(1)],
        [0, 0.0, -0.0, False, Decimal("0.00")],
        [float("nan"), np.float64("nan"), Decimal("nan")],
        [(1, "a"), (1.0, "a"), (True, "a")],
        [datetime(2026, 1, 1, tzinfo=UTC), datetime.fromisoformat("2026-01-01T01:00:00+01:00")],
        ["x", np.str_("x")],
        [uuid.UUID(int=5)],
        [None],
    ],
)
def test_equal_keys_are_one_key(backend: DiskBackend, keys: list[Any]) -> None:
    table = backend.table("t")
    for i, key in enumerate(keys):
        table[plain_key(key)] = i
        Files().take(backend, i + 1)
    assert len(table) == 1
    for key in keys:
        assert table[plain_key(key)] == len(keys) - 1


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        127,
        128,
        -(2**70),
        "",
        "é",
        "\ud800",
        "\ud83d\ude00",
        "\U0001f600",
        b"",
        b"i\xff",
        True,
        1.5,
        None,
        (1, "a", b"b"),
    ],
)
def test_a_key_comes_back_as_it_was(backend: DiskBackend, key: Any) -> None:
    table = backend.table("t")
    table[key] = [1]
    Files().take(backend, 1)
    assert [(type(found), found) for found, _ in table.base.items()] == [(type(key), key)]


def test_entries_are_counted_whatever_was_read_before_they_were_written(backend: DiskBackend) -> None:
    base, chance, model = backend.table("t").base, random.Random(3), dict[Any, Any]()
    for step in range(4_000):
        number = chance.randrange(80)
        key: Any = number if number % 2 else (number, "pair")
        group = backend._groups.group_of(key)
        match chance.randrange(4):
            case 0:
                base.remove(key, group)
                model.pop(key, None)
            case 1:
                model[key] = chance.choice([step, [step]])
                base.put(key, model[key], group)
            case _:
                assert base.get(key, "nothing") == model.get(key, "nothing")
        base.commit()
        assert base.count == len(model)
    assert base.alive == Counter(map(backend._groups.group_of, model))
    assert dict(base.items()) == model


def test_many_new_keys_at_once_find_room_made_before(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "room", uid="u", top_entries=10_000)
    table, base = backend.table("t"), backend.table("t").base
    for key in range(20_000):
        table[key] = key
        backend.relieve()
        assert len(table.top) <= 10_000
    assert len(table.top) <= 9_000, "an eighth is free, but for a handful"
    before = base.count
    for key in range(20_000, 21_000):
        table[key] = key
    backend.relieve()
    assert base.count - before == 256, "all of the new ones found room, so that no more went than makes it again"
    for _ in range(10):
        backend.relieve()
    assert len(table.top) < 9_006 and len(table) == 21_000
    backend.close()


def test_what_cannot_be_read_from_disk_is_an_error_and_not_the_end_of_a_group(tmp_path: Path) -> None:
    """An iterator of RocksDB is at its end, too, where it could not read on."""
    backend, chance, files = DiskBackend(tmp_path / "db", uid="u", small=0), random.Random(5), Files()
    table = backend.table("t")
    for key in range(3_000):
        table[key] = [chance.randbytes(100)]
    files.take(backend, 1)
    backend._db.flush()
    (file,) = (tmp_path / "db").glob("*.sst")
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 100] = bytes(100)
    file.write_bytes(data)
    with pytest.raises(Exception, match="Corruption"):
        files.take(backend, 2)
    with pytest.raises(Exception, match="Corruption"):
        list(table.items())
    backend.close()


def test_the_folder_goes_when_the_backend_is_closed(tmp_path: Path) -> None:
    made = DiskBackend(tmp_path / "scratch", uid="u")
    made.table("t")["a"] = 1
    Files().take(made, 1)
    made.close()
    made.close()
    assert not (tmp_path / "scratch").exists()


def test_without_the_package_it_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "rocksdict":
            raise ImportError("No module named 'rocksdict'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"tailrace\[disk\]"):
        DiskBackend(tmp_path, uid="u")
