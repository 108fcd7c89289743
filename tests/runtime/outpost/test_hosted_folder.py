"""A folder of the driver that others reach: what they may do there, how much of it, and who does not get in."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError
from tailrace.protocol.handshake import Refusal
from tailrace.retries import Retries
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.listener import DialFailed, Unreachable, dial
from tailrace.runtime.outpost import hosted_folder
from tailrace.runtime.outpost.hosted_folder import (
    FETCH_BYTES,
    PIECE_BYTES,
    FileRequest,
    FileResponse,
    FolderHost,
    Host,
    HostedFolder,
    fetch,
    open_hosted,
)
from tailrace.storage.filesystem import Entry, Folder

LIMIT = 32 << 20


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FolderHost]:
    found = FolderHost(str(tmp_path / "served"), Binding("127.0.0.1"), LIMIT)
    yield found
    found.close()


@pytest.fixture(params=["from another process", "from its own"])
def folder(request: pytest.FixtureRequest, host: FolderHost) -> Folder:
    if request.param == "from its own":
        return open_hosted(f"{host.host.url}/job/out")
    return HostedFolder(
        f"{host.host.url}/job/out", "job/out", lambda *request: hosted_folder._request_once(host.host, *request)
    )


def put(folder: Folder, name: str, data: bytes) -> None:
    writer = folder.writer(name)
    writer.append(data)
    writer.close()


def test_a_request_that_comes_again_when_its_file_is_complete_changes_nothing(host: FolderHost) -> None:
    """A client's connection broke, and it made its request again; the first request came minutes later."""
    writer = open_hosted(f"{host.host.url}/job/out").writer("file")
    writer.append(b"A" * 100)
    writer.append(b"B" * 100)
    writer.close()
    for offset, data in ((0, b""), (0, b"A" * 100)):
        hosted_folder._request_once(host.host, FileRequest("write", "job/out/file", "", offset), data)
    assert (Path(host.path) / "job/out/file").read_bytes() == b"A" * 100 + b"B" * 100 and host.used == 200


def test_a_file_is_what_was_written(folder: Folder, host: FolderHost) -> None:
    data = os.urandom(2 * PIECE_BYTES + 17)
    writer = folder.writer("a/file")
    for at in range(0, len(data), 3 << 20):
        writer.append(memoryview(data)[at : at + (3 << 20)])
    writer.close()
    assert folder.size("a/file") == len(data) and folder.read("a/file") == data
    assert folder.read_range("a/file", PIECE_BYTES - 5, PIECE_BYTES + 10) == data[PIECE_BYTES - 5 : 2 * PIECE_BYTES + 5]
    assert folder.read_range("a/file", len(data) - 3, 100) == data[-3:]
    assert folder.entries() == [Entry("a", True, 0)] and folder.entries("a") == [Entry("a/file", False, len(data))]
    assert [entry.name for entry in folder.walk()] == ["a/file"] and folder.entries("nowhere") == []
    assert (Path(host.path) / "job/out/a/file").read_bytes() == data


def test_what_the_contract_of_folders_raises(folder: Folder) -> None:
    folder.create("one", b"1")
    with pytest.raises(FileExistsError):
        folder.create("one", b"2")
    assert folder.read("one") == b"1" and folder.exists("one") and not folder.exists("two")
    with pytest.raises(FileNotFoundError):
        folder.read("two")
    folder.rename("one", "three")
    folder.delete(["three", "never there"])
    assert folder.entries() == []
    put(folder, "empty", b"")
    assert folder.read("empty") == b""


def test_a_writer_that_gives_up_leaves_nothing(folder: Folder, host: FolderHost) -> None:
    writer = folder.writer("file")
    writer.append(b"x" * 100)
    writer.discard()
    writer.discard()
    assert folder.entries() == [] and host.used == 0


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "..", "a\0b"])
def test_nobody_reaches_out_of_the_folder(host: FolderHost, name: str) -> None:
    (Path(host.path).parent / "secret").write_text("not for you")
    outside = HostedFolder(host.host.url, "", lambda *request: hosted_folder._request_once(host.host, *request))
    for reach in (outside.read, lambda name: outside.create(name, b""), lambda name: outside.delete([name])):
        with pytest.raises(ConfigError, match="no name in a folder of the driver"):
            reach(name)
    with pytest.raises(ConfigError, match="no name"):
        host.answer(FileRequest("read", "/etc/passwd", "", 0, 10), b"")
    assert (Path(host.path).parent / "secret").exists()


def test_more_than_the_limit_is_refused_with_what_to_do_instead(folder: Folder, host: FolderHost) -> None:
    half = b"x" * (LIMIT // 2)
    put(folder, "one", half)
    put(folder, "two", half)
    assert host.used == LIMIT
    with pytest.raises(ConfigError, match=r"more than 32 MiB .*TAILRACE_DRIVER_SPACE.*work_dir=.*checkpoints"):
        put(folder, "three", b"x")
    folder.delete(["three", "one"])
    put(folder, "one", half)  # there is room again; and a file that is written anew is counted once
    put(folder, "one", half)
    assert host.used == LIMIT


def test_files_that_nobody_needs_any_more_make_room(host: FolderHost) -> None:
    """The owner of files may be collected in the middle of a request, by the thread that is at it."""

    class Owner:
        pass

    owner = Owner()
    url = f"{host.host.url}/job/in"
    put(open_hosted(url), "file", b"x" * 100)
    weakref.finalize(owner, hosted_folder.forget, url)
    del owner
    gc.collect()
    assert list(open_hosted(host.host.url).walk()) == [] and host.used == 0


def test_a_host_to_which_no_way_leads_is_reported_at_once(host: FolderHost) -> None:
    """A client makes its request several times, since a host may be busy."""
    hosted_folder.meet(host.host)
    hosted_folder.meet(Host(host.host.address, bytes(32)))  # somebody is there
    host.close()
    with pytest.raises(Unreachable, match="nobody listens at this port"):
        hosted_folder.meet(host.host)


def test_who_does_not_know_the_token_is_turned_away(host: FolderHost) -> None:
    with pytest.raises(DialFailed, match="token"):
        dial(host.host.address, bytes(32), 5.0)
    with socket.create_connection(host.host.address, 5) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(100) == b""
    assert host.listener.refused[Refusal.BAD_PROOF] + host.listener.refused[Refusal.HUNG_UP] >= 1
    assert host.listener.refused[Refusal.BAD_MAGIC] == 1
    put(open_hosted(host.host.url), "file", b"still there")


def test_strangers_in_great_numbers_keep_nobody_out(host: FolderHost) -> None:
    """Some send nothing, some a part of a handshake, some anything; clients that know the token write and read meanwhile."""
    folder = HostedFolder(
        f"{host.host.url}/job/out", "job/out", lambda *request: hosted_folder._request_once(host.host, *request)
    )
    held = []
    try:
        for turn in range(4):
            for at in range(150):
                held.append(socket.create_connection(host.host.address, 10))
                with contextlib.suppress(OSError):  # the oldest had to make room
                    held[-1].sendall((b"", b"TAILRACE"[: at % 8], os.urandom(100))[at % 3])
            put(folder, f"file {turn}", bytes([turn]) * 100_000)
            assert folder.read(f"file {turn}") == bytes([turn]) * 100_000
    finally:
        for sock in held:
            sock.close()
    assert sum(host.listener.refused.values()) >= 600 - 128


def test_what_is_no_request_closes_the_connection_and_nothing_else(host: FolderHost) -> None:
    for garbage in (b"", b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b"\x01\x00\x00\x00\x90"):
        link = dial(host.host.address, host.host.token, 5.0)
        link.send(hosted_folder.FRAME, garbage)
        assert link.flush()
        with link.detach() as sock:
            sock.setblocking(True)
            sock.settimeout(10)
            assert sock.recv(100) == b""
    put(open_hosted(host.host.url), "file", b"still there")


def test_another_process_reaches_it_once_it_was_told_how(host: FolderHost, tmp_path: Path) -> None:
    """A URL alone is not enough: the token is in no place, file or error."""
    put(open_hosted(f"{host.host.url}/job"), "file", b"words of the driver")
    assert host.host.token.hex() not in repr(host.host) and repr(host.host.token) not in repr(host.host)
    program = (
        "import pickle, sys\n"
        "from tailrace.runtime.outpost.hosted_folder import know, open_hosted\n"
        "host = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "try: open_hosted(host.url)\n"
        "except Exception as error: print(error)\n"
        "know(host)\n"
        "print(open_hosted(host.url + '/job').read('file').decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, pickle.dumps(host.host).hex()], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[0].endswith("does not know how to reach it: that program is over"), done.stderr
    assert done.stdout.splitlines()[1] == "words of the driver"


def test_a_host_that_is_gone_is_reported(host: FolderHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_folder, "RETRIES", Retries(within=0.0))
    gone = Host(host.host.address, host.host.token)
    host.close()
    with pytest.raises(OSError, match=r"the driver's folder at .* cannot be reached"):
        hosted_folder._request_once(gone, FileRequest("size", "file"), b"")


def test_a_driver_that_is_stopped_for_a_while_is_waited_for(host: FolderHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose results went through its folder failed two minutes after Ctrl-Z."""
    monkeypatch.setattr(hosted_folder, "DIAL_SECONDS", 0.05)
    monkeypatch.setattr(hosted_folder, "RETRIES", Retries(within=0.0))
    folder = HostedFolder(f"{host.host.url}/job", "job", lambda *args: hosted_folder._request_once(host.host, *args))
    goes_on = threading.Event()
    host._loop.call_soon_threadsafe(lambda: goes_on.wait(30))
    timer = threading.Timer(0.2, goes_on.set)
    timer.start()
    try:
        put(folder, "file", b"said meanwhile")
    finally:
        goes_on.set()
        timer.join()
    assert folder.read("file") == b"said meanwhile"


def test_a_connection_that_breaks_is_made_again(host: FolderHost, monkeypatch: pytest.MonkeyPatch) -> None:
    request: list[Any] = []
    real = hosted_folder._try_request

    def breaking(*args: Any) -> Any:
        request.append(real(*args))  # it was done, and the answer is lost
        if len(request) % 2:
            raise DialFailed("the driver's folder", "broken")
        return request[-1]

    monkeypatch.setattr(hosted_folder, "_try_request", breaking)
    monkeypatch.setattr(hosted_folder, "RETRIES", Retries(within=60.0, first=0.0))
    folder = HostedFolder(host.host.url, "", lambda *args: hosted_folder._request_once(host.host, *args))
    put(folder, "file", b"once")
    assert folder.read("file") == b"once"


def test_whole_folders_are_fetched_in_few_requests(host: FolderHost, tmp_path: Path) -> None:
    """Whatever the sizes of their files: pieces go over their borders."""
    files = {
        "job/a/one": os.urandom(10),
        "job/a/two": b"",
        "job/b/three": os.urandom(FETCH_BYTES + 7),
        "job/b/x/y": b"y",
    }
    for name, data in files.items():
        folder, _, last = name.rpartition("/")
        put(open_hosted(f"{host.host.url}/{folder}"), last, data)
    put(open_hosted(f"{host.host.url}/job/c"), "not wanted", b"c")
    requests: list[FileRequest] = []

    def ask(request: FileRequest, data: bytes) -> Any:
        requests.append(request)
        return host.answer(request, data)

    fetch(ask, ["job/a", "job/b"], str(tmp_path / "copy"))
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path / "copy")): path.read_bytes() for path in copied} == files
    assert len(requests) == 2
    with pytest.raises(ConfigError, match="is no name"):
        fetch(
            lambda request, data: (FileResponse(number=1, entries=[("../out", False, 1)]), b"x"),
            ["job"],
            str(tmp_path / "copy"),
        )
