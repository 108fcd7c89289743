"""The log of a sink: each segment is in it once, whoever publishes it and how often."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.connectors.hidden import FileOrigin, name_of
from tailrace.connectors.segments.folder import SegmentFolder
from tailrace.connectors.segments.log import MARKS_EVERY, SEGMENTS, OutputSegment, SegmentLog
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, ConfigError
from tailrace.storage.filesystem import LocalFolder

SCHEMA = pa.schema([("n", pa.int64())])


class Files:
    """A log, and segments in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log.begin("job", "out", SCHEMA)

    @property
    def log(self) -> SegmentLog:
        """The log as another process sees it."""
        return SegmentLog(LocalFolder(str(self.path)))

    def segment(self, count: int, *, subtask: int = 0, run: str = "run-a", incarnation: int = 1) -> OutputSegment:
        """A prepared segment."""
        name = name_of(subtask, run, incarnation, "out", count, ".parquet")
        (self.path / SEGMENTS).mkdir(exist_ok=True)
        (self.path / SEGMENTS / name).write_bytes(b"")
        return OutputSegment(name, 10, 100)

    def listed(self) -> list[str]:
        """The published segments, in order."""
        log = self.log
        return [one.name for entry in log.entries(1, log.newest()) for one in entry.segments]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_output_of_a_checkpoint_is_one_entry(files: Files) -> None:
    first, second = [files.segment(0), files.segment(0, subtask=1)], [files.segment(1)]
    log = files.log
    log.append(first)
    log.append(second)
    assert log.newest() == files.log.newest() == 2
    assert [(entry.rows, entry.bytes) for entry in log.entries(1, 2)] == [(20, 200), (10, 100)]


def test_what_was_published_is_not_published_again_by_anybody(files: Files) -> None:
    first, second = files.segment(0), files.segment(1)
    files.log.append([first])
    files.log.append([first, second])
    files.log.append([second])
    assert files.listed() == [first.name, second.name]


def test_a_publisher_that_slept_adds_nothing_twice(files: Files) -> None:
    sleeper = files.log
    one, two, three = (files.segment(count) for count in range(3))
    sleeper.append([one])
    files.log.append([two])
    files.log.append([three])
    sleeper.append([two, three])
    assert files.listed() == [one.name, two.name, three.name]


def test_of_two_publishers_at_one_entry_one_adds_it(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = files.segment(0), files.segment(0, subtask=1)
    log, create = files.log, LocalFolder.create

    def late(folder: Any, name: str, data: bytes) -> None:
        monkeypatch.setattr(LocalFolder, "create", create)
        files.log.append([one, other])
        create(folder, name, data)

    monkeypatch.setattr(LocalFolder, "create", late)
    log.append([one])
    assert files.listed() == [one.name, other.name]


def test_each_run_has_marks_of_its_own(files: Files) -> None:
    files.log.append([files.segment(7)])
    again = files.segment(0, run="run-b")
    files.log.append([again])
    older = files.segment(3)
    files.log.append([older])
    assert again.name in files.listed(), "a start from an older checkpoint publishes its own output"
    assert older.name not in files.listed(), "within a run, output is published in order"


def test_a_restart_and_a_replacement_count_as_later(files: Files) -> None:
    found = [files.segment(5), files.segment(1_000_000_000), files.segment(0, incarnation=2)]
    for one in found:
        files.log.append([one])
    assert files.listed() == [one.name for one in found]


def test_a_lost_segment_is_an_error_and_not_in_the_log(files: Files) -> None:
    lost = files.segment(0)
    (files.path / SEGMENTS / lost.name).unlink()
    with pytest.raises(FileNotFoundError, match="its rows are lost"):
        files.log.append([lost, files.segment(1)])
    assert files.log.newest() == 0


def test_few_entries_tell_what_was_published(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    log = files.log
    found = [files.segment(count) for count in range(2 * MARKS_EVERY + 5)]
    for one in found:
        log.append([one])
    read: list[str] = []
    plain = LocalFolder.read
    monkeypatch.setattr(LocalFolder, "read", lambda folder, name: (read.append(name), plain(folder, name))[1])
    fresh = files.log
    fresh.append(found)
    assert fresh.newest() == len(found)
    assert len(read) < MARKS_EVERY


def test_a_log_whose_beginning_was_removed_is_not_begun_anew(files: Files) -> None:
    for count in range(3):
        files.log.append([files.segment(count)])
    (files.path / "log" / f"{1:012d}").unlink()
    with pytest.raises(CheckpointCorrupt, match="what was published before"):
        files.log.append([files.segment(3)])
    with pytest.raises(CheckpointNotFound, match=r"entry 1 .* is gone; those from 2 to 3 are there"):
        list(files.log.entries(1, 3))


def test_a_sweep_removes_what_no_entry_will_name(files: Files) -> None:
    published, kept, left = files.segment(0), files.segment(1), files.segment(2)
    other = files.segment(0, run="run-b")
    files.log.append([published])

    def goes(of: FileOrigin) -> bool:
        return of.run_id == "run-a"

    SegmentFolder(files.log).sweep(goes, {kept.name})
    there = {path.name for path in (files.path / SEGMENTS).iterdir()}
    assert there == {published.name, kept.name, other.name}
    assert left.name not in there


def test_a_log_has_one_kind_of_rows(files: Files) -> None:
    stream = files.log.about().stream
    assert files.log.begin("job", "out", SCHEMA).stream == stream
    assert files.log.begin("job", "out", None).stream == stream
    with pytest.raises(ConfigError, match=r"has the columns .n int64., and the sink writes .n string."):
        files.log.begin("job", "out", pa.schema([("n", pa.string())]))


def test_every_segment_is_published_once_by_chance(files: Files) -> None:
    """Publishers that are killed, sleep and come again add the output of each subtask in its order."""
    draw = random.Random(5)
    prepared = [[files.segment(count, subtask=one) for count in range(40)] for one in range(3)]
    reached = [0, 0, 0]
    publishers = [files.log for _ in range(3)]
    while min(reached) < 40:
        part = []
        for one, segments in enumerate(prepared):
            ahead = min(40, reached[one] + draw.randrange(3))
            part += segments[max(0, reached[one] - draw.randrange(4)) : ahead]
            reached[one] = ahead
        draw.choice(publishers).append(part)
        if draw.random() < 0.3:
            publishers[draw.randrange(3)].append(part)
        if draw.random() < 0.1:
            publishers[draw.randrange(3)] = files.log
    listed = files.listed()
    assert sorted(listed) == sorted(one.name for segments in prepared for one in segments)
    for segments in prepared:
        assert [name for name in listed if name in {one.name for one in segments}] == [one.name for one in segments]
