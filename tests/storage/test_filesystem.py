"""What every folder promises, wherever it is."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError
from tailrace.retries import Retries
from tailrace.storage import remote
from tailrace.storage.filesystem import TEMPORARY, Disk, Entry, Folder, LocalFolder, scheme_of
from tailrace.storage.opening import absolute, open_folder


@pytest.fixture
def folder(url: str) -> Folder:
    return open_folder(url)


def put(folder: Folder, name: str, data: bytes = b"x") -> None:
    writer = folder.writer(name)
    writer.append(data)
    writer.close()


def all_names(folder: Folder) -> list[str]:
    return [entry.name for entry in folder.walk()]


def test_what_was_created_is_read_whole_and_in_ranges(folder: Folder) -> None:
    folder.create("1/claim", b"0123456789")
    assert folder.read("1/claim") == b"0123456789"
    assert folder.read_range("1/claim", 2, 3) == b"234"
    assert folder.read_range("1/claim", 8, 100) == b"89"
    assert folder.read_range("1/claim", 3, 0) == b""
    assert folder.size("1/claim") == 10
    assert folder.exists("1/claim")


def test_a_name_is_created_once_and_keeps_what_it_was_created_with(folder: Folder) -> None:
    folder.create("a/b", b"first")
    with pytest.raises(FileExistsError):
        folder.create("a/b", b"second")
    assert folder.read("a/b") == b"first"
    assert all_names(folder) == ["a/b"]


def test_of_many_threads_exactly_one_creates(folder: Folder) -> None:
    def create(i: int) -> bool:
        try:
            folder.create("slot", b"%d" % i * 1000)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert folder.read("slot") == b"%d" % won.index(True) * 1000


def _create_all(path: str, i: int, count: int, won: multiprocessing.SimpleQueue[tuple[int, int]]) -> None:
    folder = open_folder(path)
    for slot in range(count):
        try:
            folder.create(f"slots/{slot}", b"%d" % i)
        except FileExistsError:
            continue
        won.put((slot, i))


def test_of_many_processes_exactly_one_creates_each_of_many_names(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    won = context.SimpleQueue()
    processes = [context.Process(target=_create_all, args=(str(tmp_path), i, 30, won)) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    winners = dict(won.get() for _ in range(30))
    assert won.empty() and len(winners) == 30
    folder = open_folder(str(tmp_path))
    assert {slot: folder.read(f"slots/{slot}") for slot in winners} == {s: b"%d" % i for s, i in winners.items()}
    assert len(all_names(folder)) == 30


@pytest.mark.parametrize("act", ["read", "read_range", "size"])
def test_what_is_not_there_is_not_found(folder: Folder, act: str) -> None:
    folder.create("here/file", b"x")
    for name in ("nowhere", "here", "here/nowhere", "here/file/nowhere"):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            getattr(folder, act)(name, *((0, 1) if act == "read_range" else ()))
        assert not folder.exists(name)


@pytest.mark.parametrize("act", ["read", "read_range", "size", "entries"])
def test_what_is_on_a_disk_that_is_not_mounted_any_more_is_not_gone(
    tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that takes its folder for gone is given up."""
    folder = open_folder(str(tmp_path / "here"))
    folder.create("file", b"x")
    shutil.rmtree(tmp_path / "here")
    monkeypatch.setattr(Disk, "_look", lambda disk: -1)
    with pytest.raises(OSError, match="its disk is not mounted any more"):
        getattr(folder, act)("file", *((0, 1) if act == "read_range" else ()))


def test_nothing_is_made_below_a_disk_that_goes_between_the_look_at_it_and_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made there is hidden when the disk comes back, and was taken for written."""
    folder = open_folder(str(tmp_path / "here"))
    folder.create("file", b"x")
    shutil.rmtree(tmp_path / "here")
    disk = folder._disk  # type: ignore[attr-defined]
    monkeypatch.setattr(disk, "check", lambda: None)  # the look came before
    monkeypatch.setattr(disk, "_number", -1)
    for write in (lambda: folder.create("1/claim", b"x"), lambda: folder.writer("1/chk-1/w0.state")):
        with pytest.raises(OSError, match="its disk is not mounted any more"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_entries_are_what_is_directly_in_a_folder(folder: Folder) -> None:
    assert folder.entries() == []
    folder.create("2/claim", b"xy")
    folder.create("10/chk-1/w0.state", b"x")
    folder.create("file", b"")
    assert folder.entries() == [Entry("10", True, 0), Entry("2", True, 0), Entry("file", False, 0)]
    assert folder.entries("2") == [Entry("2/claim", False, 2)]
    assert folder.entries("nowhere") == []
    assert folder.entries("file") == []
    assert sorted(all_names(folder)) == ["10/chk-1/w0.state", "2/claim", "file"]


def test_deleting_takes_empty_folders_along_and_does_not_mind_what_is_missing(folder: Folder) -> None:
    for name in ("1/claim", "1/chk-1/a", "1/chk-1/b", "1/chk-2/a"):
        folder.create(name, b"x")
    folder.delete(["1/chk-1/a", "1/chk-1/b", "1/chk-3/a", "nowhere"])
    assert [entry.name for entry in folder.entries("1")] == ["1/chk-2", "1/claim"]
    folder.delete([])


def test_names_that_look_like_patterns_are_names(folder: Folder) -> None:
    for name in ("a1", "a[1]", "a*", "a?"):
        folder.create(f"x/{name}", name.encode())
    folder.delete(["x/a*", "x/a[1]"])
    assert all_names(folder) == ["x/a1", "x/a?"]


def test_a_writer_writes_much_in_pieces(folder: Folder) -> None:
    piece = bytes(range(256)) * 4096
    writer = folder.writer("1/chk-1/w0.state")
    for _ in range(18):  # more than one part of an upload
        writer.append(memoryview(piece))
    writer.close()
    writer.close()
    assert folder.size("1/chk-1/w0.state") == 18 * len(piece)
    assert folder.read_range("1/chk-1/w0.state", 9 * len(piece) - 2, 4) == b"\xfe\xff\x00\x01"


@pytest.mark.parametrize("size", [0, 10, 9 << 20])
def test_a_discarded_writer_leaves_nothing(folder: Folder, size: int) -> None:
    folder.create("1/claim", b"x")
    writer = folder.writer("1/chk-1/w0.state")
    writer.append(bytes(size))
    writer.discard()
    writer.discard()
    del writer
    assert all_names(folder) == ["1/claim"]
    assert [entry.name for entry in folder.entries("1")] == ["1/claim"]


def test_discarding_what_was_closed_deletes_it(folder: Folder) -> None:
    writer = folder.writer("a/b")
    writer.append(b"x")
    writer.close()
    writer.discard()
    assert all_names(folder) == []


def test_an_upload_that_is_discarded_is_no_open_upload_either(s3_url: str) -> None:
    folder = open_folder(s3_url + "/x")
    writer = folder.writer("big")
    writer.append(bytes(9 << 20))
    writer.discard()
    fs = folder.fs  # type: ignore[attr-defined]
    assert "Uploads" not in fs.call_s3("list_multipart_uploads", Bucket=s3_url.removeprefix("s3a://"))


def test_a_folder_is_made_with_nothing_in_it_or_says_why_not(folder: Folder) -> None:
    folder.make()
    folder.make()
    assert all_names(folder) == []


def test_a_bucket_that_is_not_there_is_reported(s3_url: str) -> None:
    with pytest.raises(OSError, match="bucket does not exist"):
        open_folder(f"{s3_url}-not/x").make()


def test_a_rename_replaces(folder: Folder) -> None:
    put(folder, "a/one", b"1")
    put(folder, "b/two", b"2")
    folder.rename("a/one", "b/two")
    assert folder.read("b/two") == b"1"
    assert all_names(folder) == ["b/two"]


def test_another_conditional_write_under_way_is_waited_for(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(s3_url)
    fs = folder.fs  # type: ignore[attr-defined]
    original, calls = fs.pipe_file, []

    def conflicting(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) < 3:
            cause = Exception()
            cause.response = {"Error": {"Code": "ConditionalRequestConflict"}}  # type: ignore[attr-defined]
            raise OSError("a conflict") from cause
        return original(*args, **kwargs)

    monkeypatch.setattr(fs, "pipe_file", conflicting)
    monkeypatch.setattr(remote, "_CONFLICTS", Retries(within=60.0, first=0.0))
    folder.create("a", b"x")
    assert len(calls) == 3 and folder.read("a") == b"x"


# Local.


def test_nothing_half_made_is_seen_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LocalFolder(str(tmp_path))
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        folder.create("claim", b"x")
    assert all_names(folder) == []


def test_a_filesystem_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ConfigError, match="hard links"):
        LocalFolder(str(tmp_path)).create("claim", b"x")
    assert not os.listdir(tmp_path)


def test_what_is_made_and_its_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    original = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    put(LocalFolder(str(tmp_path)), "1/chk-1/w0.state")
    assert synced == [".", "1", "1/chk-1/w0.state", "1/chk-1", "1", "."]
    synced.clear()
    LocalFolder(str(tmp_path)).create("1/0.manifest", b"x")
    assert TEMPORARY.fullmatch(synced[0].removeprefix("1/")) and synced[1:] == ["1", "."]


def test_a_job_that_starts_makes_sure_of_folders_that_somebody_else_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was killed between making the folder of the job and syncing the one above it has left a name that
    may vanish when the machine goes down, with all checkpoints that later drivers make below it."""
    (tmp_path / "a" / "job").mkdir(parents=True)
    synced: list[str] = []
    original = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    LocalFolder(str(tmp_path / "a" / "job")).make()
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "job")} <= set(synced)
    assert not os.listdir(tmp_path / "a" / "job")


def _obstacles(base: Path) -> dict[str, tuple[Path, str]]:
    """Obstacles of a folder: what is to be made, and the error."""
    os.symlink(base / "not-mounted", base / "dangling")
    os.symlink(base / "circle", base / "circle")
    os.mkfifo(base / "fifo")
    (base / "file").write_text("")
    return {
        "a dangling link": (base / "dangling", f"is a link to {base}/not-mounted, .*{base}/dangling"),
        "below a dangling link": (base / "dangling" / "x" / "y", f"is a link to {base}/not-mounted"),
        "a circle of links": (base / "circle", f"is a link to {base}/circle"),
        "a pipe": (base / "fifo", f"Not a directory: '{base}/fifo'"),
        "below a pipe": (base / "fifo" / "x", f"Not a directory: '{base}/fifo'"),
        "a file": (base / "file" / "x", f"Not a directory: '{base}/file'"),
        "a device": (Path("/dev/null/x"), "Not a directory: '/dev/null'"),
        "a folder without files": (Path("/proc/x/y"), "'/proc/x'"),
    }


_IN_THE_WAY = ["a dangling link", "below a dangling link", "a circle of links", "a pipe", "below a pipe", "a file"]
_IN_THE_WAY += ["a device", "a folder without files"]


@pytest.mark.parametrize("what", _IN_THE_WAY)
def test_a_folder_that_cannot_be_made_is_an_error_at_once(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a disk that is not mounted, or a pipe, is there and is no folder: a start of the job tried for ever to make
    one in its place, at a whole core."""
    path, message = _obstacles(tmp_path)[what]
    tries: list[object] = []
    original = os.mkdir

    def mkdir(*args: Any, **more: Any) -> None:
        tries.append(args)
        assert len(tries) < 1000, "it never stops"
        original(*args, **more)

    monkeypatch.setattr(os, "mkdir", mkdir)
    folder = LocalFolder(str(path))
    for act in (folder.make, lambda: folder.create("1/claim", b"x"), lambda: folder.writer("1/chk-1/w0.state")):
        with pytest.raises(OSError, match=message):
            act()
    assert not (tmp_path / "not-mounted").exists()


def test_a_link_to_a_folder_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    os.symlink(tmp_path / "disk", tmp_path / "link")
    folder = LocalFolder(str(tmp_path / "link"))
    folder.make()
    put(folder, "1/claim")
    assert (tmp_path / "disk" / "1" / "claim").exists()
    folder.delete(["1/claim"])
    assert os.path.islink(tmp_path / "link") and not os.listdir(tmp_path / "disk")


def test_a_folder_that_is_removed_for_being_empty_is_made_again(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))

    def come_and_go(i: int) -> None:
        for k in range(100):
            put(folder, f"chk-1/{i}-{k}")
            folder.delete([f"chk-1/{i}-{k}"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert not os.listdir(tmp_path)


# URLs.


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("FILE:/a", "/a"),
        ("//a/b", "/a/b"),
        ("s3a://b/c/", "s3a://b/c"),
    ],
)
def test_a_url_means_the_same_everywhere(given: str, path: str) -> None:
    assert absolute(given) == path


def test_relative_paths_are_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("checkpoints") == absolute("file:checkpoints") == f"{tmp_path}/checkpoints"
    assert absolute("a:b") == "a:b" and scheme_of("./a:b") == "file"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "cannot be kept in ftp:"),
        ("gs://bucket/x", "pip install gcsfs"),
        ("gcs://bucket/x", "pip install gcsfs"),
        ("abfss://box@account.dfs.core.windows.net/x", "pip install adlfs"),
        ("s3://bucket/x", r"pip install 'tailrace\[s3\]'"),
    ],
)
def test_what_cannot_be_opened_says_what_to_do(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=message):
        open_folder(url)


def test_s3_goes_where_the_environment_or_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one:1")
    assert open_folder("s3n://b/x").fs.endpoint_url == "http://one:1"  # type: ignore[attr-defined]
    options = {"endpoint_url": "http://two:2", "key": "k", "secret": "s"}
    fs = open_folder("s3a://b/x", options).fs  # type: ignore[attr-defined]
    assert (fs.endpoint_url, fs.key, fs.secret) == ("http://two:2", "k", "s")
