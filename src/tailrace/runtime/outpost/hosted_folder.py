"""A folder of the driver that executors reach: for a cluster on which they share no other.

`FolderHost` is the driver's half: it serves one folder of its machine on a port of its own. `HostedFolder` is this folder
in another process, behind the contract of `storage.filesystem`. A peer must first pass the handshake, which proves that
both ends know the host's token (`protocol.handshake`). The token travels in the closures of Spark tasks, as a job's token
does, and is in no URL, file or message.

A connection carries one request and its answer. Each is a FRAME of a link: the length of the head, the head, and bytes of
a file. A request can be repeated without harm: bytes are written at an offset, and a name is created by one only. So a
client whose connection breaks repeats the request.

All that peers write is counted. Beyond the limit they are refused, with what to do instead: the driver's disk is never
full because of them, and nothing of this is held in the driver's memory but the request at hand.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import select
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tailrace.elements.byte_texts import size_text
from tailrace.errors import ConfigError
from tailrace.retries import Retries
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.link import FRAME, Link, LinkError, endpoint
from tailrace.runtime.network.listener import DialFailed, Listener, Unreachable, dial
from tailrace.runtime.network.tls import Tls
from tailrace.storage.filesystem import Entry, Folder, LocalFolder, Writer

SCHEME = "tailrace"
PIECE_BYTES = 4 << 20
"""Limit for the bytes of a file in a request or an answer."""
FETCH_BYTES = 16 << 20
"""Limit for the bytes in an answer to a client that fetches whole folders."""
DIAL_SECONDS = 20.0
ANSWER_SECONDS = 60.0
FOLDER_SECONDS = 600.0
"""Seconds that a driver that is there may take to answer for its folder: its process may be suspended for a while."""
RETRIES = Retries(within=FOLDER_SECONDS, tries=5)
_HELD_UP_SECONDS = 0.1
_LENGTH = struct.Struct("<I")


class FileRequest(msgspec.Struct, array_like=True):
    """A request of a client. Which fields count depends on the verb."""

    verb: str
    name: str = ""
    to: str = ""
    offset: int = 0
    length: int = 0
    names: list[str] = []


class FileResponse(msgspec.Struct, array_like=True):
    """The answer of a host. `error` is one of `_ERRORS`, or empty."""

    error: str = ""
    text: str = ""
    number: int = 0
    entries: list[tuple[str, bool, int]] = []


_ERRORS: dict[str, type[Exception]] = {
    "FileNotFoundError": FileNotFoundError,
    "FileExistsError": FileExistsError,
    "ConfigError": ConfigError,
    "OSError": OSError,
}
_requests, _answers = msgspec.msgpack.Decoder(FileRequest), msgspec.msgpack.Decoder(FileResponse)
Ask = Callable[[FileRequest, bytes], tuple[FileResponse, bytes]]


@dataclass(frozen=True)
class Host:
    """The way to a host, in the closures of Spark tasks."""

    address: tuple[str, int]
    token: bytes = field(repr=False)  # it stays out of every log and error
    tls: Tls | None = None

    @property
    def url(self) -> str:
        """The URL of the folder that it serves."""
        return f"{SCHEME}://{endpoint(self.address)}"


_known: dict[str, Ask] = {}
"""Functions by which this process reaches hosts, by URL."""
_forgotten: dict[str, deque[str]] = {}
"""Folders of this process's hosts that are to be removed, by URL of the host."""
_own: dict[str, Host] = {}
"""The hosts of this process, by URL."""


def know(host: Host) -> None:
    """Makes a host known, so that this process reaches it by its URL."""
    _known.setdefault(host.url, functools.partial(_request_once, host))


def host_of(url: str) -> Host | None:
    """The way for other processes to a URL that this process serves; None for any other URL."""
    return _own.get(_root(url))


def forget(url: str) -> None:
    """Removes, with the next request, a folder that this process serves and whose files are not needed any more. Safe in
    a finalizer, which may run in the middle of anything."""
    serves = _forgotten.get(_root(url))
    if serves is not None:
        serves.append(url.partition("://")[2].partition("/")[2])


def _root(url: str) -> str:
    return f"{SCHEME}://{url.partition('://')[2].partition('/')[0]}"


def open_hosted(url: str) -> Folder:
    """The folder at a URL of a host. Raises `ConfigError` in a process that does not know the host."""
    ask = _known.get(_root(url))
    if ask is None:
        raise ConfigError(
            f"{url} is in a folder of a driver, and this process does not know how to reach it: that program is over"
        )
    return HostedFolder(url, url.partition("://")[2].partition("/")[2], ask)


class HostedFolder(Folder):
    """A folder of the driver, seen from another process."""

    def __init__(self, url: str, path: str, ask: Ask) -> None:
        self.url = url
        self._path = path.strip("/")
        self._request = ask

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}".strip("/")

    def make(self) -> None:
        """Does nothing: a host makes folders as they are needed."""

    def create(self, name: str, data: bytes) -> None:
        self._request(FileRequest("create", self._full(name)), data)

    def read(self, name: str) -> bytes:
        return self.read_range(name, 0, self.size(name))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        parts = []
        while length > 0:
            _, data = self._request(FileRequest("read", self._full(name), "", offset, min(length, PIECE_BYTES)), b"")
            if not data:
                break
            parts.append(data)
            offset += len(data)
            length -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, name: str) -> int:
        return self._request(FileRequest("size", self._full(name)), b"")[0].number

    def entries(self, name: str = "") -> list[Entry]:
        found, _ = self._request(FileRequest("entries", self._full(name)), b"")
        skip = len(self._path) + 1 if self._path else 0
        return [Entry(one[skip:], folder, size) for one, folder, size in found.entries]

    def delete(self, names: Iterable[str]) -> None:
        self._request(FileRequest("delete", names=[self._full(name) for name in names]), b"")

    def writer(self, name: str) -> Writer:
        return _HostedWriter(self, name)

    def rename(self, name: str, to: str) -> None:
        self._request(FileRequest("rename", self._full(name), self._full(to)), b"")


class _HostedWriter:
    def __init__(self, folder: HostedFolder, name: str) -> None:
        self._folder, self._name, self._at = folder, name, 0
        self._write(b"")

    def append(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, len(view), PIECE_BYTES):
            self._write(bytes(view[at : at + PIECE_BYTES]))

    def _write(self, data: bytes) -> None:
        self._folder._request(FileRequest("write", self._folder._full(self._name), "", self._at), data)
        self._at += len(data)

    def close(self) -> None:
        """Does nothing: the host has all of the file. The file lives no longer than the host, so it is not synced."""

    def discard(self) -> None:
        self._folder.delete([self._name])


class Served:
    """A folder of this machine, as requests see it."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.used = 0
        """Bytes of files that peers have written and not deleted."""
        self._sizes: dict[str, int] = {}
        self._folder = LocalFolder(path)
        self._lock = threading.Lock()
        """Held during one request: this process makes requests, too."""
        self._going = deque[str]()
        """Folders that are to be removed."""

    def answer(self, request: FileRequest, data: bytes) -> tuple[FileResponse, bytes]:
        """Carries out a request. Raises the errors of the contract of folders."""
        _check_names((request.name, request.to, *request.names))
        with self._lock:
            while self._going:
                gone = [entry.name for entry in self._folder.walk(self._going.popleft())]
                self._do(FileRequest("delete", names=gone), b"")
            return self._do(request, data)

    def _do(self, request: FileRequest, data: bytes) -> tuple[FileResponse, bytes]:
        name = request.name
        match request.verb:
            case "write":
                self._write(name, request.offset, data)
                return FileResponse(), b""
            case "read":
                return FileResponse(), self._folder.read_range(name, request.offset, min(request.length, PIECE_BYTES))
            case "create":
                self._folder.create(name, data)
                return FileResponse(), b""
            case "size":
                return FileResponse(number=self._folder.size(name)), b""
            case "entries":
                return FileResponse(entries=[tuple(one) for one in self._folder.entries(name)]), b""  # type: ignore[misc]
            case "delete":
                self._folder.delete(request.names)
                for gone in request.names:
                    self.used -= self._sizes.pop(gone, 0)
                return FileResponse(), b""
            case "fetch":
                return self._fetch(request)
            case "rename":
                self._folder.rename(name, request.to)
                self._sizes[request.to] = self._sizes.pop(name, 0)
                return FileResponse(), b""
        raise ConfigError(f"a folder of the driver has no verb {request.verb!r}")

    def _fetch(self, request: FileRequest) -> tuple[FileResponse, bytes]:
        """The list of the files in some folders, and a piece of their bytes, as if they were one file, one behind the
        other."""
        files = sorted(entry for name in request.names for entry in self._folder.walk(name))
        begin, end, at, parts = request.offset, request.offset + min(request.length, FETCH_BYTES), 0, []
        for file in files:
            first, last = max(begin - at, 0), min(end - at, file.size)
            if first < last:
                parts.append(self._folder.read_range(file.name, first, last - first))
            at += file.size
        return FileResponse(number=at, entries=[tuple(file) for file in files]), b"".join(parts)  # type: ignore[misc]

    def _write(self, name: str, offset: int, data: bytes) -> None:
        before = self._sizes.get(name, 0)
        size = max(before, offset + len(data))
        if self.used - before + size > self.limit:
            raise ConfigError(
                f"DataFrames and results of this session take more than {size_text(self.limit)} in the driver's folder, "
                f"which TAILRACE_DRIVER_SPACE allows: on a cluster they travel through it where nothing else is named. Give "
                f"Environment(work_dir=...) a folder or URL that driver and executors reach, or checkpoints, whose folder "
                f"they travel through; or allow more"
            )
        path = self._folder.path_of(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Nothing is ever cut off: a repeated request may come once more when the file is long complete.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.seek(offset)
            file.write(data)
        self._sizes[name] = size
        self.used += size - before


class FolderHost(Served):
    """A host of a folder of this machine, in a thread of its own, until `close`. Raises `OSError` or `ValueError` if it
    cannot listen at this address."""

    def __init__(self, path: str, at: Binding, limit: int, token: bytes | None = None) -> None:
        super().__init__(path, limit)
        self._closing = False
        self._links: set[Link] = set()
        self._loop = EventLoop()
        token = secrets.token_bytes(32) if token is None else token
        try:
            self.listener = Listener(token, at, self._loop, self._incoming)
        except BaseException:
            self._loop.close()
            raise
        self.host = Host(self.listener.address, token, at.tls)
        _known[self.host.url], _own[self.host.url] = self.answer, self.host
        _forgotten[self.host.url] = self._going
        self._thread = threading.Thread(target=self._serve, name="tailrace-folder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving. May be called again."""
        self._closing = True
        self._loop.wake()
        self._thread.join(10.0)
        for folders in (_known, _own, _forgotten):
            folders.pop(self.host.url, None)

    # The thread.

    def _serve(self) -> None:
        while not self._closing:
            deadline = self.listener.next_deadline
            self._loop.poll(None if deadline is None else max(0.0, deadline - time.monotonic()))
            held = time.monotonic() - self._loop.looked_at
            if held > _HELD_UP_SECONDS:
                self.listener.excuse(held)
            self.listener.expire(time.monotonic())
        self.listener.close()
        for link in list(self._links):
            self._drop(link)
        self._loop.close()

    def _incoming(self, link: Link) -> None:
        self._links.add(link)
        self._loop.register(link, selectors.EVENT_READ, functools.partial(self._ready, link))

    def _ready(self, link: Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                for _, payload in link.readable():
                    self._reply(link, payload)
            link.flush()
        except (LinkError, msgspec.DecodeError, struct.error, ValueError):
            self._drop(link)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.needs_write else 0)
        if link.watched != events:
            self._loop.modify(link, events, functools.partial(self._ready, link))
            link.watched = events

    def _reply(self, link: Link, payload: bytes) -> None:
        head, data = _parts(payload)
        request = _requests.decode(head)
        try:
            answer, found = self.answer(request, data)
        except Exception as error:  # the client is to raise it
            kind = next((name for name, one in _ERRORS.items() if isinstance(error, one)), "OSError")
            answer, found = FileResponse(kind, str(error)), b""
        link.send(FRAME, *_frame(answer, found))

    def _drop(self, link: Link) -> None:
        self._links.discard(link)
        with contextlib.suppress(KeyError, ValueError):
            self._loop.unregister(link)
        link.close()


def _frame(head: Any, data: bytes) -> tuple[bytes, bytes]:
    header = msgspec.msgpack.encode(head)
    return _LENGTH.pack(len(header)) + header, data


def _parts(payload: bytes) -> tuple[bytes, bytes]:
    (length,) = _LENGTH.unpack_from(payload)
    return payload[_LENGTH.size : _LENGTH.size + length], payload[_LENGTH.size + length :]


def _request_once(host: Host, request: FileRequest, data: bytes) -> tuple[FileResponse, bytes]:
    """Makes a request over a connection of its own. Raises the error that the host answers; `OSError` if it cannot be
    reached."""
    answer, found = send_request(host, request, data, patience=FOLDER_SECONDS)
    check_answer(answer)
    return answer, found


def send_request(
    host: Host, request: FileRequest, data: bytes, patience: float | None = None, retries: Retries | None = None
) -> tuple[FileResponse, bytes]:
    """Makes a request, and returns the answer of the host even if it is an error. With `patience` a host that is there
    has that many seconds. Raises `OSError` if it cannot be reached."""
    try:
        return (retries or RETRIES).call(
            lambda: _try_request(host, request, data, patience), lambda error: isinstance(error, LinkError)
        )
    except LinkError as error:
        raise OSError(f"the driver's folder at {endpoint(host.address)} cannot be reached: {error.reason}") from error


def check_answer(answer: FileResponse) -> None:
    """Raises the error that a host has answered, if any."""
    if answer.error:
        raise _ERRORS.get(answer.error, OSError)(answer.text)


def fetch(ask: Ask, folders: list[str], path: str) -> None:
    """Copies folders of a host, in few requests, into a folder of this machine. No process may still write them."""
    offset = 0
    while True:
        answer, data = ask(FileRequest("fetch", offset=offset, length=FETCH_BYTES, names=folders), b"")
        _keep(path, answer.entries, offset, data)
        offset += len(data)
        if offset >= answer.number:
            return
        if not data:
            raise OSError(f"files have become shorter: {offset} bytes of {answer.number} are there")


def _check_names(names: Iterable[str]) -> None:
    """Raises `ConfigError` for a name that leads out of a folder."""
    for name in names:
        if any(part in (".", "..") for part in name.split("/")) or name.startswith("/") or "\0" in name:
            raise ConfigError(f"{name!r} is no name in a folder of the driver")


def _keep(path: str, entries: list[tuple[str, bool, int]], offset: int, data: bytes) -> None:
    """Writes a piece of some files, as `fetch` gets it, to where it belongs."""
    _check_names(name for name, _, _ in entries)
    at = 0
    for name, _, size in entries:
        first, last = max(offset - at, 0), min(offset + len(data) - at, size)
        if first < last or not size:
            file = os.path.join(path, name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as copy:
                copy.seek(first)
                copy.write(data[at + first - offset : at + last - offset])
        at += size


def represent(host: Host, ask: Ask | None) -> None:
    """Represents a host that this process cannot reach, and others can: `ask` makes requests by way of them. For the
    host's users it is one of this process. None: the host is gone."""
    if ask is not None:
        _known[host.url], _own[host.url] = ask, host
    else:
        for folders in (_known, _own):
            folders.pop(host.url, None)


def meet(host: Host) -> None:
    """Raises `Unreachable` if no way leads to a host. A request would try that several times."""
    try:
        dial(host.address, host.token, DIAL_SECONDS, tls=host.tls).close()
    except Unreachable:
        raise
    except LinkError:  # the host is there, and busy
        pass


def _try_request(host: Host, request: FileRequest, data: bytes, patience: float | None) -> tuple[FileResponse, bytes]:
    whose = "the driver's folder"
    link = dial(host.address, host.token, DIAL_SECONDS, peer=whose, patience=patience, tls=host.tls)
    try:
        link.send(FRAME, *_frame(request, data))
        deadline = time.monotonic() + (patience or ANSWER_SECONDS)
        while not link.flush():
            _wait(link, select.POLLOUT, deadline)
        while True:
            for _, payload in link.readable():
                head, found = _parts(payload)
                return _answers.decode(head), found
            _wait(link, select.POLLIN, deadline)
    finally:
        link.close()


def _wait(link: Link, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(link.fileno(), event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise DialFailed(link.peer, "no answer for a long time; is the driver stopped or overloaded?")
