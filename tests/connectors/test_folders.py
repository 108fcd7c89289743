"""Sinks on filesystems of all kinds: nothing is seen before it is published, twice is once, and orphans are swept."""

from __future__ import annotations

import errno
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tailrace.connectors import hidden, s3files
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.connectors.localfiles import LocalHidden
from tailrace.connectors.travelling import Unsynced
from tests.connectors.test_sinks import BATCH, SCHEMA, Place


@pytest.fixture
def s3(bucket: str) -> Any:
    """The filesystem of the bucket."""
    return fsspec.filesystem("s3", use_listings_cache=False)


@pytest.fixture(params=["file", "memory", "s3", "s3a"])
def place(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """An empty folder, as a URL."""
    if request.param == "file":
        return f"file://{tmp_path}/out"
    if request.param == "memory":
        return f"memory://{request.node.name}/out"
    return f"{request.param}://{request.getfixturevalue('bucket')}/{request.node.name}/out"


def listed(place: str) -> list[str]:
    """The names that are in a folder, without those that readers pass over."""
    fs, path = fsspec.core.url_to_fs(place, use_listings_cache=False)
    fs.invalidate_cache()
    found = sorted(name.rpartition("/")[2] for name in fs.find(path)) if fs.exists(path) else []
    return [name for name in found if not name.startswith((".", "_"))]


def covered(place: str) -> int:
    """How many files are under cover."""
    if hidden.protocol_of(place) in ("s3", "s3a"):
        folder = s3files.S3Folder(place)
        return len(list(folder._uploads()))
    fs, path = fsspec.core.url_to_fs(place)
    return sum(name.endswith(".inprogress") for name in fs.find(path)) if fs.exists(path) else 0


def lines(place: str) -> list[str]:
    fs, path = fsspec.core.url_to_fs(place, use_listings_cache=False)
    return sorted(line for name in listed(place) for line in fs.cat_file(f"{path}/{name}").decode().splitlines())


def test_a_file_is_seen_once_it_is_published(place: str) -> None:
    sink = tr.sinks.TextFiles(place)
    writer = sink.writer(Place())
    prepared = []
    for i in range(3):
        writer.write([f"line {i}"])
        prepared.append(writer.prepare())
    assert listed(place) == [] and covered(place) == 3
    sink.publish(prepared[:2])
    assert lines(place) == ["line 0", "line 1"] and covered(place) == 1
    tr.sinks.TextFiles(place).publish(prepared)  # by somebody else, who does not know how far the first one came
    sink.publish(prepared)
    assert lines(place) == ["line 0", "line 1", "line 2"] and covered(place) == 0
    writer.write(["given up"])
    assert covered(place) == 1
    writer.close()
    assert len(listed(place)) == 3 and covered(place) == 0


def test_what_is_nowhere_cannot_be_published(place: str) -> None:
    sink = tr.sinks.TextFiles(place)
    writer = sink.writer(Place())
    writer.write(["a"])
    prepared = writer.prepare()
    remove_unfinished(sink, "run")
    with pytest.raises(FileNotFoundError):
        sink.publish([prepared])


def test_orphans_are_swept_and_nobody_elses_files(place: str) -> None:
    mine, others = Place(incarnation=2), [Place(run_id="other"), Place(incarnation=3), Place(uid="another")]
    for at in [mine, replace(mine, subtask=1), *others]:
        writer = tr.sinks.TextFiles(place).writer(at)
        writer.write(["x"])
        writer.prepare()
        writer.write(["y"])
    assert covered(place) == 10
    sink = tr.sinks.TextFiles(place)
    sink.recover(["run"], 3, "sink")
    assert covered(place) == 6
    remove_unfinished(sink, "other")
    assert covered(place) == 4
    assert listed(place) == []


def test_a_store_that_lists_the_same_uploads_again_does_not_hold_up_a_sweep(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page of a listing names the beginning of the next one. Of a store that announces more pages, and not where
    they begin, the listing requested the same page for ever."""
    requested = []

    def call(method: str, **options: Any) -> Any:
        requested.append(options)
        assert len(requested) < 10, "it never stops"
        return {"IsTruncated": True, "NextKeyMarker": "b", "Uploads": [{"Key": "out/part-x", "UploadId": "1"}]}

    folder = s3files.S3Folder(f"s3://{bucket}/out")
    monkeypatch.setattr(folder.fs, "call_s3", call)
    assert len(list(folder._uploads())) == 2
    assert [one.get("KeyMarker") for one in requested] == [None, "b"]


def test_an_output_folder_that_cannot_be_made_says_what_is_in_the_way(tmp_path: Any) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "not-mounted")
    writer = tr.sinks.TextFiles(str(tmp_path / "out" / "lines")).writer(Place())
    with pytest.raises(NotADirectoryError, match=r"is a link to .*not-mounted"):
        writer.write(["a"])


def test_what_a_kept_checkpoint_has_prepared_stays(place: str) -> None:
    sink = tr.sinks.TextFiles(place)
    writer = sink.writer(Place())
    writer.write(["kept"])
    kept = writer.prepare()
    assert kept is not None
    writer.write(["lost"])
    writer.prepare()
    remove_unfinished(sink, "run", "sink", [kept])
    assert covered(place) == 1
    sink.publish([kept])
    assert lines(place) == ["kept"]


def test_parquet_anywhere(place: str) -> None:
    sink = tr.sinks.Parquet(place, SCHEMA)
    writer = sink.writer(Place())
    for _ in range(3):
        writer.write(BATCH)
    sink.publish([writer.prepare()])
    writer.write(BATCH)
    sink.publish([writer.prepare()])
    fs, path = fsspec.core.url_to_fs(place)
    found = [pq.read_table(pa.BufferReader(fs.cat_file(f"{path}/{name}"))) for name in listed(place)]
    assert [table.num_rows for table in found] == [6, 2]
    assert found[0].schema == SCHEMA


def test_a_large_file_goes_out_in_parts(bucket: str, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3files, "PART_BYTES", 5 << 20)
    place = f"s3://{bucket}/large"
    sink = tr.sinks.TextFiles(place)
    writer = sink.writer(Place())
    text = "x" * 1023
    for _ in range(12):
        writer.write([text] * 1024)
    prepared = writer.prepare()
    assert prepared is not None and len(hidden.tokens.decode(prepared).parts) == 3
    sink.publish([prepared])
    sink.publish([prepared])
    [name] = listed(place)
    assert s3.size(f"{place}/{name}") == 12 << 20


def test_a_sink_on_a_url_travels(place: str) -> None:
    sink = pickle.loads(pickle.dumps(tr.sinks.TextFiles(place + "/")))
    assert sink.path == hidden.normal(place)


def test_what_nobody_can_reach_is_reported() -> None:
    with pytest.raises(tr.ConfigError, match="nonsense"):
        tr.sinks.TextFiles("nonsense://a/b").writer(Place())


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ("file:///a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("/a/../b", "/b"),
        ("~/a", "/home/ann/a"),
        ("s3a://bucket/a/", "s3a://bucket/a"),
        ("hdfs://host:9000/a", "hdfs://host:9000/a"),
    ],
)
def test_paths_and_urls(message: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert hidden.normal(message) == meant


def test_a_name_tells_whose_it_is() -> None:
    name = hidden.name_of(3, "a-run-5", 12, "uid", 7, ".txt")
    assert hidden.origin_of(name) == hidden.FileOrigin("a-run-5", 12, hidden.whose("uid"), 3, 7)
    assert hidden.origin_of("part-1.txt") is None


# A disk that is full.


class Full(io.RawIOBase):
    """A file on a disk that has no room."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("make", [lambda path: LocalHidden(path, path), Unsynced], ids=["a sink's", "a result's"])
def test_a_file_that_is_given_up_is_removed_also_where_its_disk_is_full(make: Any, tmp_path: Path) -> None:
    """The file's last bytes are in a buffer, which closing it writes. Each restart left such a file, and the disk stayed
    full."""
    path = str(tmp_path / "file")
    made = make(path)
    name = "stream" if hasattr(made, "stream") else "_file"
    getattr(made, name).close()
    setattr(made, name, io.BufferedWriter(Full()))
    getattr(made, name).write(b"line\n")
    made.discard()
    assert not os.path.exists(path)
