"""Spill files: bytes come back as they went, nothing has a name on the disk, and what is released goes back to the disk."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.storage.spill import SpillFiles
from tailrace.task.journal.sent_log import WHAT


def test_bytes_come_back_as_they_were_from_any_segment(tmp_path: Path) -> None:
    chance = random.Random(1)
    spill = SpillFiles(str(tmp_path), segment_bytes=1_000)
    stored = {spill.append(data): data for data in (chance.randbytes(chance.randrange(1, 900)) for _ in range(100))}

    assert spill.files > 10
    assert spill.held == sum(map(len, stored.values()))
    order = list(stored)
    chance.shuffle(order)
    for ref in order:
        assert spill.read(ref) == stored[ref]
        spill.release(ref)
    assert (spill.held, spill.files) == (0, 1)
    spill.close()
    assert spill.files == 0


def test_nothing_has_a_name_on_the_disk(tmp_path: Path) -> None:
    spill = SpillFiles(str(tmp_path))
    ref = spill.append(b"unnamed")

    assert list(tmp_path.iterdir()) == []
    assert spill.read(ref) == b"unnamed"


def test_a_file_is_given_back_once_nothing_in_it_is_needed(tmp_path: Path) -> None:
    spill = SpillFiles(str(tmp_path), segment_bytes=100)
    refs = [spill.append(bytes(60)) for _ in range(6)]  # two in each file

    assert spill.files == 3
    spill.release(refs[0])
    assert spill.files == 3
    spill.release(refs[1])
    assert spill.files == 2
    spill.release(refs[4])
    spill.release(refs[5])
    assert spill.files == 2, "the current file stays"
    assert spill.read(refs[2]) == bytes(60)


def test_the_current_file_begins_again_when_all_of_it_was_read(tmp_path: Path) -> None:
    spill = SpillFiles(str(tmp_path))
    for n in range(50):
        ref = spill.append(bytes([n]) * 10_000)
        assert ref.offset == 0
        assert spill.read(ref) == bytes([n]) * 10_000
        spill.release(ref)
        assert os.fstat(ref.segment.file.fileno()).st_size == 0
    assert spill.files == 1


def test_without_a_folder_it_is_the_one_for_temporary_files() -> None:
    spill = SpillFiles(None)
    assert spill.read(spill.append(b"somewhere")) == b"somewhere"
    spill.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    spill = SpillFiles(str(tmp_path / "absent"))
    with pytest.raises(TailraceError, match=r"absent.*No such file.*Spill\(dir=\.\.\.\)"):
        spill.append(b"x")


def test_a_full_disk_says_where_how_much_and_what_to_do(tmp_path: Path, monkeypatch: Any) -> None:
    spill = SpillFiles(str(tmp_path))
    first = spill.append(bytes(12_345))
    write = os.pwrite

    def full(file: int, data: Any, at: int) -> int:
        if len(data) < 4_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:4_000], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(TailraceError) as raised:
            spill.append(b"1" * 10_000)
    text = str(raised.value)
    assert str(tmp_path) in text
    assert "No space left on device" in text
    assert "12,345 bytes" in text
    assert "Spill(dir=...)" in text

    again = spill.append(b"2" * 10_000)  # what was written in part is not there
    assert spill.read(again) == b"2" * 10_000
    assert spill.read(first) == bytes(12_345)
    assert spill.held == 22_345


def test_an_error_says_what_was_to_be_written_or_read(tmp_path: Path, monkeypatch: Any) -> None:
    spill = SpillFiles(str(tmp_path / "absent"), WHAT)
    with pytest.raises(
        TailraceError, match=r"replaced, by StandbyConfig\(spill=\.\.\.\), has no room in memory and cannot be"
    ):
        spill.append(b"x")
    spill = SpillFiles(str(tmp_path), WHAT)
    ref = spill.append(b"x")

    def broken(file: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(
        TailraceError, match=r"^what is kept for workers that are replaced.* cannot be read back from .*Errno 5"
    ):
        spill.read(ref)


def test_a_write_in_parts_is_one_write(tmp_path: Path, monkeypatch: Any) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:7], at))
    monkeypatch.setattr(os, "pread", lambda file, size, at: read(file, min(size, 5), at))
    spill = SpillFiles(str(tmp_path))
    data = bytes(range(200))
    refs = [spill.append(data), spill.append(data[::-1])]
    assert [spill.read(ref) for ref in refs] == [data, data[::-1]]
