"""Files that are followed: each line once, whatever their files are called, and however they are cut."""

import gzip
import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from search.followed import Logs
from tailrace.connectors.file_marks import mark_of, plain
from tailrace.connectors.following import PATIENCE, SETTLING
from tailrace.errors import ConfigError


class Tail:
    """A followed path, read without a job: what was read, and the time."""

    def __init__(self, path: Path | str) -> None:
        self.source = tr.sources.TextFiles(str(path), follow=True)
        self.now = 1000.0
        self.lines: list[str] = []
        self.lost = 0
        self.finding: Any = self.source.enumerator(1)
        self.readers: list[tuple[Any, Any]] = []
        self.saved = self.save()

    def find(self, after: float = 0.2) -> None:
        self.now += after
        for split in self.finding.discover(self.now):
            self.readers.append((split, self.source.reader(split)))

    def read(self, limit: int = 1000, after: float = 0.1) -> None:
        """One look at each file."""
        self.now += after
        for split, reader in list(self.readers):
            given = reader.read(limit, self.now)
            self.lost += reader.lost
            reader.lost = 0
            if given is None:
                reader.close()
                self.readers.remove((split, reader))
                self.finding.ended(split)
            else:
                assert len(given) <= limit
                self.lines += given

    def poll(self, rounds: int = 3) -> list[str]:
        for _ in range(rounds):
            self.find()
            self.read()
        return self.lines

    def save(self) -> Any:
        self.saved = (list(self.lines), self.finding.position, [(s, r.position) for s, r in self.readers])
        return self.saved

    def restore(self) -> None:
        """What came since the last `save` was for nothing."""
        self.close()
        lines, found, readers = self.saved
        self.lines = list(lines)
        self.finding = self.source.enumerator(1, found)
        self.readers = [(split, self.source.reader(split, position)) for split, position in readers]

    def close(self) -> None:
        for _, reader in self.readers:
            reader.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def numbered(name: str, count: int) -> str:
    return "".join(f"{name}-{i}\n" for i in range(count))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    (made / "a.log").write_text(numbered("old", 10))
    return made


OLD, NEW = numbered("old", 10).split(), numbered("new", 3).split()


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("path", ["", "a.log", "*.log*", "*.log"])
def test_a_file_that_is_renamed_is_not_read_again_and_the_new_one_is_read(folder: Path, path: str, count: int) -> None:
    tail = Tail(folder / path)
    assert tail.poll() == OLD
    (folder / "a.log").rename(folder / "a.log.1")
    append(folder / "a.log.1", "late\n")  # who writes it has not noticed
    (folder / "a.log").write_text(numbered("new", count))
    assert sorted(tail.poll()) == sorted([*OLD, "late", *numbered("new", count).split()])
    append(folder / "a.log.1", "later\n")
    assert sorted(tail.poll()) == sorted([*OLD, "late", "later", *numbered("new", count).split()])


@pytest.mark.parametrize("path", ["", "a.log", "*.log*"])
def test_several_rotations_between_two_looks(folder: Path, path: str) -> None:
    tail = Tail(folder / path)
    tail.poll()
    for name in ("b", "c"):
        if (folder / "a.log.1").exists():
            (folder / "a.log.1").rename(folder / "a.log.2")
        (folder / "a.log").rename(folder / "a.log.1")
        (folder / "a.log").write_text(numbered(name, 2))
    expected = [*OLD, "c-0", "c-1"] if path == "a.log" else [*OLD, "b-0", "b-1", "c-0", "c-1"]
    assert sorted(tail.poll()) == sorted(expected)


def cut_after_copy(folder: Path) -> None:
    shutil.copy(folder / "a.log", folder / "a.log.1")
    os.truncate(folder / "a.log", 0)


@pytest.mark.parametrize("count", [0, 3, 30])
@pytest.mark.parametrize("path", ["", "a.log", "*.log*"])
def test_a_file_that_is_copied_and_cut_is_read_once_and_on(folder: Path, path: str, count: int) -> None:
    tail = Tail(folder / path)
    assert tail.poll() == OLD
    cut_after_copy(folder)
    append(folder / "a.log", numbered("new", count))
    assert tail.poll(30) == [*OLD, *numbered("new", count).split()]
    assert tail.lost == 0


@pytest.mark.parametrize("path", ["", "a.log", "*.log*"])
def test_what_was_not_read_before_a_file_was_cut_is_read_in_its_copy(folder: Path, path: str) -> None:
    tail = Tail(folder / path)
    tail.find()
    tail.read(limit=4)
    append(folder / "a.log", "unseen\n")
    cut_after_copy(folder)
    append(folder / "a.log", numbered("new", 30))
    tail.read(limit=4)
    for _ in range(10):
        tail.save()
        tail.read(limit=4)
        tail.restore()
        tail.read(limit=4)
    assert tail.poll(30) == [*OLD, "unseen", *numbered("new", 30).split()]
    assert tail.lost == 0


def test_a_copy_in_the_making_is_waited_for_and_a_lasting_one_is_a_file(folder: Path) -> None:
    """`cp` writes a copy bit by bit, and what it has written so far looks like a new file."""
    tail = Tail(folder)
    tail.poll()
    content = (folder / "a.log").read_bytes()
    for size in (0, 5, 20):
        (folder / "a.log.1").write_bytes(content[:size])
        assert tail.poll() == OLD
    (folder / "a.log.1").write_bytes(content)
    assert tail.poll() == OLD
    tail.find(SETTLING + 0.1)
    assert sorted(tail.poll()) == sorted([*OLD, *OLD]), "nobody has cut the other one: it is a file of its own"


def test_a_file_that_is_cut_without_a_copy_is_read_anew_and_what_is_lost_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tail = Tail(folder)
    tail.find()
    tail.read(limit=4)
    with caplog.at_level(logging.WARNING, "tailrace"):
        (folder / "a.log").write_text(numbered("new", 3))
        assert tail.poll() == [*OLD[:4], *NEW] or tail.lines == [*OLD, *NEW]
        assert tail.lost == 0, "it was all read before: 4 lines handed out, the others at hand"
        (folder / "a.log").write_text("x" * 10)
        tail.poll()
    tail.find()


def test_bytes_that_were_seen_and_are_gone_are_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = "".join(f"{i:09}\n" for i in range(100_000))  # larger than what is read at once
    (folder / "a.log").write_text(long)
    tail = Tail(folder)
    tail.find()
    tail.read(limit=10)
    (folder / "a.log").write_text("anew\n")
    with caplog.at_level(logging.WARNING, "tailrace"):
        for _ in range(3000):
            tail.read(limit=10)
        taken = len(tail.lines)
        tail.poll()
    assert tail.lines[taken:] == ["anew"] and tail.lines[:taken] == [f"{i:09}" for i in range(taken)]
    assert tail.lost == 1_000_000 - taken * 10 > 0
    assert f"{tail.lost} bytes that it had behind that are lost" in caplog.text and len(caplog.records) == 1


def test_a_file_that_is_written_anew_is_never_read_in_the_middle_of_a_line(folder: Path) -> None:
    (folder / "a.log").write_text("1\n2\n3\n")
    tail = Tail(folder)
    assert tail.poll() == ["1", "2", "3"]
    (folder / "a.log").write_text("x\n")
    tail.poll()
    append(folder / "a.log", "y\nzzzzzzzz\n")
    assert tail.poll() == ["1", "2", "3", "x", "y", "zzzzzzzz"]
    (folder / "a.log").write_text("a line that is longer than all that was there before\nend\n")
    assert tail.poll()[6:] == ["a line that is longer than all that was there before", "end"]


@pytest.mark.parametrize("path", ["", "a.log"])
def test_a_line_without_its_end_is_a_record_when_nothing_more_can_come(folder: Path, path: str) -> None:
    """Half a line is no record while its file is written. Once the file is out of sight and rests, it is."""
    append(folder / "a.log", "half a li")
    tail = Tail(folder / path)
    assert tail.poll() == OLD
    moved = folder.parent / "elsewhere"
    (folder / "a.log").rename(moved)
    for _ in range(20):
        tail.read(after=1.0)
    append(moved, "ne, and a wh")
    for _ in range(20):
        tail.read(after=1.0)
    assert tail.lines == OLD
    append(moved, "ole\nrest")
    tail.read(after=1.0)
    assert tail.lines == [*OLD, "half a line, and a whole"]
    tail.read(after=PATIENCE / 2)
    assert len(tail.readers) == 1
    for _ in range(3):
        tail.read(after=PATIENCE)
    assert tail.lines == [*OLD, "half a line, and a whole", "rest"] and not tail.readers


def test_a_file_that_was_deleted_is_read_to_its_end(folder: Path) -> None:
    tail = Tail(folder)
    tail.find()
    (folder / "a.log").unlink()
    assert tail.poll() == OLD
    for _ in range(3):
        tail.find()
        tail.read(after=PATIENCE)
    assert not tail.readers
    (folder / "a.log").write_text(numbered("new", 3))  # it may get the inode of the other
    assert tail.poll() == [*OLD, *NEW]


# Restores.


@pytest.mark.parametrize("path", ["", "a.log", "*.log*"])
@pytest.mark.parametrize("read", [0, 4, 10])
def test_a_file_that_was_renamed_while_the_job_was_down_is_found(folder: Path, path: str, read: int) -> None:
    tail = Tail(folder / path)
    tail.find()
    if read:
        tail.read(limit=read)
    tail.save()
    append(folder / "a.log", "late\n")
    (folder / "a.log").rename(folder / "a.log.1")
    (folder / "a.log").write_text(numbered("new", 3))
    tail.restore()
    assert sorted(tail.poll(40)) == sorted([*OLD, "late", *NEW])
    assert tail.lost == 0


@pytest.mark.parametrize("read", [0, 4, 10])
@pytest.mark.parametrize("count", [0, 3, 30])
def test_a_file_that_was_copied_and_cut_while_the_job_was_down_is_read_on(folder: Path, read: int, count: int) -> None:
    tail = Tail(folder)
    tail.find()
    if read:
        tail.read(limit=read)
    tail.save()
    append(folder / "a.log", "late\n")
    cut_after_copy(folder)
    append(folder / "a.log", numbered("new", count))
    tail.restore()
    assert tail.poll(40) == [*OLD, "late", *numbered("new", count).split()]
    assert tail.lost == 0


def test_a_file_that_was_cut_without_a_copy_while_the_job_was_down_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tail = Tail(folder)
    tail.find()
    tail.read(limit=4)
    tail.save()
    (folder / "a.log").write_text(numbered("new", 30))
    with caplog.at_level(logging.WARNING, "tailrace"):
        tail.restore()
    assert tail.poll() == [*OLD[:4], *numbered("new", 30).split()]
    assert tail.lost == 36 and "a.log, followed up to byte 24, was truncated or rewritten; 36 bytes" in caplog.text


def test_a_file_that_was_deleted_while_the_job_was_down_is_reported_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tail = Tail(folder)
    tail.find()
    tail.read(limit=4)
    tail.save()
    (folder / "a.log").unlink()
    with caplog.at_level(logging.WARNING, "tailrace"):
        tail.restore()
        tail.read()
        tail.save()
        tail.restore()
        for _ in range(4):
            tail.find()
            tail.read(after=PATIENCE)
    assert len(caplog.records) == 1 and "is gone; 36 bytes that it had" in caplog.text
    assert not tail.readers and tail.lost == 36


def test_a_file_that_has_the_inode_of_one_deleted_while_the_job_was_down_is_read(folder: Path) -> None:
    """Readers look before the enumerator does: to it, the file was only written anew."""
    tail = Tail(folder)
    tail.find()
    tail.read(limit=4)
    tail.save()
    (folder / "a.log").rename(folder.parent / "away")
    tail.restore()
    tail.read()
    (folder.parent / "away").write_text(numbered("new", 3))
    (folder.parent / "away").rename(folder / "b.log")
    assert tail.poll(10) == [*OLD[:4], *NEW]
    assert tail.lost == 36


def test_a_file_that_comes_back_soon_after_a_restore_is_read_on(folder: Path) -> None:
    tail = Tail(folder)
    tail.find()
    tail.read(limit=4)
    tail.save()
    (folder / "a.log").rename(folder.parent / "away")
    tail.restore()
    tail.read(after=5.0)
    tail.save()
    tail.restore()
    tail.read(after=5.0)
    (folder.parent / "away").rename(folder / "a.log")
    assert tail.poll(10) == OLD
    assert tail.lost == 0


def test_files_on_a_restored_volume_have_other_inodes_and_are_the_same(folder: Path) -> None:
    tail = Tail(folder)
    tail.poll()
    tail.save()
    shutil.copytree(folder, folder.parent / "copy")
    shutil.rmtree(folder)
    (folder.parent / "copy").rename(folder)
    append(folder / "a.log", "more\n")
    tail.restore()
    assert tail.poll(30) == [*OLD, "more"]


def test_a_checkpoint_that_knows_files_by_their_names_is_refused(folder: Path) -> None:
    """A split was a path, a position a number, and what was found a list of paths."""
    path, source = str(folder / "a.log"), tr.sources.TextFiles(str(folder), follow=True)
    with pytest.raises(ConfigError, match=r"does not have marks of followed files .* give the source another uid"):
        source.enumerator(1, [path])
    for split, position in ((path, None), (path, 24), (plain(mark_of(path)), 24)):
        with pytest.raises(ConfigError, match=r"does not have marks of followed files .* give the source another uid"):
            source.reader(split, position)


def test_positions_are_small_and_plain(folder: Path) -> None:
    import pickle

    tail = Tail(folder)
    tail.poll()
    [(split, reader)] = tail.readers
    assert len(pickle.dumps(reader.position, 5)) < 300 and b"tailrace" not in pickle.dumps(reader.position, 5)
    assert type(split) is dict and type(tail.finding.position) is dict


# Compressed files.


def test_a_compressed_file_cannot_be_followed(folder: Path) -> None:
    (folder / "b.log.gz").write_bytes(gzip.compress(b"x\n"))
    with pytest.raises(tr.ConfigError, match=r"b.log.gz is compressed and cannot be followed; name the plain files"):
        tr.sources.TextFiles(str(folder / "b.log.gz"), follow=True)
    with pytest.raises(tr.ConfigError, match=r"b.log.gz is compressed and cannot be followed"):
        Tail(folder).find()


def test_what_a_rotation_compresses_is_not_read_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tail = Tail(folder)
    tail.find()
    tail.read(limit=4)
    (folder / "a.log").rename(folder / "a.log.1")
    (folder / "a.log").write_text(numbered("new", 3))
    tail.find()
    (folder / "a.log.1.gz").write_bytes(gzip.compress((folder / "a.log.1").read_bytes()))
    (folder / "a.log.1").unlink()
    with caplog.at_level(logging.WARNING, "tailrace"):
        assert sorted(tail.poll()) == sorted([*OLD, *NEW])
    assert len(caplog.records) == 1 and "a.log.1.gz: compressed files cannot be followed" in caplog.text


# Links, and folders below.


def test_a_file_of_several_names_is_read_once(folder: Path) -> None:
    (folder / "current.log").symlink_to("a.log")
    (folder / "hard.log").hardlink_to(folder / "a.log")
    assert Tail(folder).poll() == OLD


def test_a_link_that_is_turned_to_another_file_is_followed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "current").symlink_to(folder / "a.log")
    tail = Tail(tmp_path / "current")
    assert tail.poll() == OLD
    (folder / "b.log").write_text(numbered("new", 3))
    (tmp_path / "other").symlink_to(folder / "b.log")
    (tmp_path / "other").rename(tmp_path / "current")
    append(folder / "a.log", "late\n")
    assert sorted(tail.poll()) == sorted([*OLD, "late", *NEW])


def test_files_of_folders_below_are_followed_too(folder: Path) -> None:
    tail = Tail(folder)
    tail.poll()
    (folder / "inner").mkdir()
    (folder / "inner" / "b.log").write_text(numbered("new", 3))
    (folder / "a.log").rename(folder / "inner" / "a.log")
    assert tail.poll() == [*OLD, *NEW]


# All of it, by chance.


def followed_by_chance(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    how = chance.choice(["rename", "copytruncate"])
    folder.mkdir()
    logs = Logs(folder, chance, how, heading=chance.random() < 0.3)
    logs.write()
    logs.file.flush()
    tail = Tail(folder / chance.choice(["", "app.log*", "*.log*"]))
    for _ in range(chance.randint(5, 60)):
        what = chance.choice(["write", "write", "rotate", "find", "read", "read", "save", "restore"])
        if what in ("write", "rotate"):
            getattr(logs, what)()
        elif what == "read":
            tail.read(limit=chance.choice([1, 5, 1000]))
        else:
            getattr(tail, what)()
    logs.end()
    tail.poll(12)
    for _ in range(4):
        tail.find(SETTLING)
        tail.read()
    tail.close()
    assert tail.lost == 0
    assert sorted(tail.lines) == sorted(logs.written), (seed, how, logs.heading)


@pytest.mark.parametrize("seeds", [range(i, i + 25) for i in range(0, 100, 25)], ids=str)
def test_by_chance_every_line_is_read_once(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        followed_by_chance(tmp_path / f"logs-{seed}", seed)
