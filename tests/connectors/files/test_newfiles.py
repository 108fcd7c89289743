"""Files that come later are read once each, whole, over restarts, and what is not sure is refused."""

import os
import pickle
import time
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import tailrace as tr
from tailrace.connectors.files import newfiles
from tailrace.connectors.files.newfiles import AT_ONCE, NewFiles
from tailrace.connectors.files.places import PlacedFile
from tests.connectors.files.test_records import put


class Store:
    """A store of files with times that a test sets, in place of lists of a real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, PlacedFile] = {}
        monkeypatch.setattr(newfiles, "list_files", lambda place: list(self.files.values()))

    def put(self, path: str, at: float, version: str = "1") -> None:
        self.files[path] = PlacedFile(path, version, at)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


def found(enumerator: NewFiles, now: float) -> list[str]:
    """The paths of the files that come within a while, each of which is read to its end."""
    paths: list[str] = []
    for step in range(200):
        splits = list(enumerator.discover(now + step))
        for split in splits:
            enumerator.ended(split)
        paths += [split["path"] for split in splits]
        if not splits and enumerator._look is None and step:
            return paths
        if enumerator._look is not None:
            time.sleep(0.001)  # a list comes from a thread
    raise AssertionError("it finds files without end")


DAY = 86_400.0
PLACE = "memory://in"


@pytest.mark.parametrize("seed", range(20))
def test_each_file_is_given_out_once_in_the_order_of_times_over_restarts(seed: int, store: Store) -> None:
    random = Random(seed)
    given: list[str] = []
    kept: tuple[Any, list[str]] = (None, [])
    enumerator, now = NewFiles(PLACE, 1, None, 1.0), 0.0
    for count in range(60):
        now += random.choice([10.0, DAY, 4 * DAY])
        for part in range(random.randint(0, 3)):
            store.put(f"{random.random()}", now - random.choice([0.0, 0.0, 2 * DAY * (part > 0)]))
        if random.random() < 0.1 and store.files:
            del store.files[random.choice(list(store.files))]
        given += found(enumerator, now)
        if random.random() < 0.3:
            kept = pickle.dumps(enumerator.position), list(given)
        if random.random() < 0.2:
            position = None if kept[0] is None else pickle.loads(kept[0])
            enumerator, given = NewFiles(PLACE, 1, position, 1.0), list(kept[1])
        assert len(given) == len(set(given)), count
    given += found(enumerator, now + 10)
    assert set(store.files) <= set(given)
    assert len(given) == len(set(given))


def test_the_first_files_come_in_the_order_of_their_times_and_few_at_once(store: Store) -> None:
    for i in range(3 * AT_ONCE):
        store.put(f"{i:03}", 1000.0 - i)
    enumerator = NewFiles("memory://in", 2, None, 1.0)
    splits: list[Any] = list(enumerator.discover(0.0))
    for _ in range(1000):
        if not splits:
            time.sleep(0.001)  # a list comes from a thread
            splits += enumerator.discover(1.0)
    assert [split["path"] for split in splits] == [f"{i:03}" for i in range(23, 7, -1)]
    assert list(enumerator.discover(2.0)) == []
    restored = NewFiles("memory://in", 2, pickle.loads(pickle.dumps(enumerator.position)), 1.0)
    assert found_one(restored) == []
    for enumerating in (enumerator, restored):
        enumerating.ended(splits[0])
        assert found_one(enumerating) == ["007"]


def found_one(enumerator: NewFiles) -> list[str]:
    for _ in range(100):
        splits = list(enumerator.discover(5.0))
        if splits or (enumerator._look is None and enumerator.waiting):
            return [split["path"] for split in splits]
        time.sleep(0.001)
    return []


def test_a_position_is_small_however_many_files_there_were(store: Store) -> None:
    enumerator = NewFiles(PLACE, 1, None, 1.0)
    for day in range(60):
        for i in range(500):
            store.put(f"{day}/{i}", day * DAY + i)
        found(enumerator, day * DAY)
    assert len(pickle.dumps(enumerator.position)) < 16 * 500 * 9
    assert found(NewFiles(PLACE, 1, enumerator.position, 1.0), 60 * DAY) == []


def test_a_file_that_is_written_anew_is_refused(store: Store) -> None:
    store.put("a", 100.0)
    enumerator = NewFiles(PLACE, 1, None, 1.0)
    assert found(enumerator, 0.0) == ["a"]
    store.put("a", 200.0)
    assert found(enumerator, 1000.0) == []  # another time, with the same content
    store.put("a", 300.0, "2")
    with pytest.raises(tr.ConfigError, match="a was written anew since it was found"):
        found(enumerator, 2000.0)


def test_a_file_that_has_got_another_time_is_not_read_again(store: Store) -> None:
    store.put("a", 1 * DAY)
    enumerator = NewFiles(PLACE, 1, None, 1.0)
    assert found(enumerator, 0.0) == ["a"]
    store.put("a", 5 * DAY)
    assert found(enumerator, 1000.0) == []
    store.put("b", 11 * DAY)  # what came on the first day is forgotten
    assert found(enumerator, 2000.0) == ["b"]
    assert found(NewFiles(PLACE, 1, enumerator.position, 1.0), 3000.0) == []


def test_a_file_that_appears_with_an_old_time_is_refused(store: Store) -> None:
    store.put("old", 1 * DAY)
    store.put("new", 30 * DAY)
    enumerator = NewFiles(PLACE, 1, None, 1.0)
    assert found(enumerator, 0.0) == ["old", "new"]
    store.put("late", 24 * DAY)
    assert found(enumerator, 1000.0) == ["late"]
    store.put("older", 1 * DAY)
    with pytest.raises(tr.ConfigError, match="has appeared with a time of 29 days before the newest one"):
        found(enumerator, 2000.0)


@pytest.mark.parametrize("kind", ["Csv", "Parquet", "Json", "TextFiles"])
@pytest.mark.parametrize("where", ["local", "memory", "s3"])
def test_sources_find_files_that_come_later(kind: str, where: str, request: Any, tmp_path: Path) -> None:
    place = {"local": str(tmp_path / "in"), "memory": f"memory://{tmp_path.name}", "s3": "s3://"}[where]
    if where == "s3":
        place += f"{request.getfixturevalue('bucket')}/{tmp_path.name}"

    def write(name: str, number: int) -> None:
        path = f"{place}/day={number}/{name}"
        fs, plain = fsspec.core.url_to_fs(path)
        if where == "local":
            os.makedirs(os.path.dirname(path))
        with fs.open(plain, "wb") as file:
            if kind == "Parquet":
                pq.write_table(pa.table({"n": [number]}), file)
            else:
                file.write({"Csv": b"n\n%d\n", "Json": b'{"n": %d}\n', "TextFiles": b"%d\n"}[kind] % number)

    write("a", 1)
    source = getattr(tr.sources, kind)(
        place, partitions=True, follow=True, **({} if where == "local" else {"poll": 1.0})
    )
    if kind in ("Csv", "Json"):
        source = getattr(tr.sources, kind)(place, "n int", follow=True)
    assert not source.bounded
    enumerator, records = source.enumerator(1), []
    for step in range(400):
        splits = enumerator.discover(10.0 * step)
        for split in splits:
            reader = source.reader(pickle.loads(pickle.dumps(split)))
            records += [int(row[0]) * 10 + row[1] for row in reader.read(100, 0.0)]
            if reader.read(100, 0.0) is None:  # a local file of lines may grow
                enumerator.ended(split)
        if splits and len(records) < 3:
            enumerator = source.enumerator(1, pickle.loads(pickle.dumps(enumerator.position)))
            write("b", len(records) + 1)
        elif len(records) == 3:
            break
        time.sleep(0.005)  # a list comes from a thread
    assert records == [11, 22, 33]


def test_a_local_file_that_grows_after_it_was_found_is_refused(tmp_path: Path) -> None:
    put(str(tmp_path), "a.csv", b"a\n1\n")
    source = tr.sources.Csv(str(tmp_path), follow=True)
    enumerator = source.enumerator(1)
    assert enumerator is not None
    [split] = enumerator.discover(0.0) or ()
    assert source.reader(split).read(5, 0.0) == [("1",)]
    put(str(tmp_path), "a.csv", b"a\n1\n2\n")
    with pytest.raises(tr.ConfigError, match=r"a\.csv was written anew"):
        source.reader(split)
    with pytest.raises(tr.ConfigError, match=r"a\.csv was written anew"):
        enumerator.discover(10.0)


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tr.ConfigError, match="there is no folder"):
        tr.sources.Csv(str(tmp_path / "nothing"), "a int", follow=True)
    assert tr.sources.Csv(str(tmp_path), "a int", follow=True).columns == ("a",)
    with pytest.raises(tr.ConfigError, match="there are no files at"):
        tr.sources.Parquet(str(tmp_path), follow=True)


def test_compressed_files_are_whole_files_behind_a_url(tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}"
    put(place, "a.txt.zst", pa.compress(b"x\ny\n", codec="zstd", asbytes=True))
    source = tr.sources.TextFiles(place, follow=True)
    split = {"path": f"{place}/a.txt.zst"}
    assert source.reader(split).read(5, 0.0) == ["x", "y"]


@pytest.mark.parametrize("pattern", ["", "/*/*.txt"])
def test_a_folder_whose_list_fails_is_not_left_out(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's own lists leave it out."""
    place = f"memory://{tmp_path.name}"
    for folder in ("a", "b"):
        fsspec.filesystem("memory").pipe_file(f"{place}/{folder}/lines.txt", b"line\n")
    source = tr.sources.TextFiles(place + pattern)
    assert len(source.splits(1)) == 2
    whole = MemoryFileSystem.ls

    def ls(self: Any, path: str, **options: Any) -> Any:
        if path.endswith("/b"):
            raise ConnectionError("no answer")
        return whole(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    monkeypatch.setattr(MemoryFileSystem, "find", fsspec.AbstractFileSystem.find)  # as HDFS, SFTP and others have it
    with pytest.raises(ConnectionError, match="no answer"):
        source.splits(1)


def test_a_file_that_cannot_be_looked_at_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("line\n")
    (tmp_path / "nothing.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "around.txt").symlink_to(tmp_path / "around.txt")
    source = tr.sources.TextFiles(str(tmp_path))
    assert len(source.splits(1)) == 2
    whole = os.stat

    def stat(path: Any, **options: Any) -> Any:
        if str(path).endswith("b.txt"):
            raise PermissionError(13, "Permission denied", path)
        return whole(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(PermissionError, match="Permission denied"):
        source.splits(1)
