"""The door of a running job for other processes of the same user on the same machine: a Unix socket in a folder that only
this user may enter. A request is a line of JSON, `{"verb": …}`, and so is the answer."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import selectors
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.errors import ConfigError
from tailrace.runtime.loop import Loop

_LONGEST = 64 << 10
"""Bytes of a request."""
_LONGEST_ANSWER = 16 << 20
_SOCKET = re.compile(r"[1-9]\d*-[0-9a-f]+\.sock")
"""What a door is called: the process and something of its own."""
Reply = Callable[[dict[str, Any]], None]
Handler = Callable[[dict[str, Any], Reply], None]


def folder() -> str:
    """Where the sockets of this user's jobs are."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"tailrace-{os.getuid()}")


def check_folder(path: str) -> None:
    """Raises `ConfigError` unless it is a folder of this user that nobody else may enter: in a folder for temporary files
    anybody may make one of this name, or a link. Raises `FileNotFoundError` where there is none."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        what = "is a link" if stat.S_ISLNK(found.st_mode) else "is not a folder"
    elif found.st_uid != os.getuid():
        what = f"belongs to user {found.st_uid}"
    elif found.st_mode & 0o077:
        what = "may be entered by other users"
    else:
        return
    raise ConfigError(
        f"{path}, the folder for the sockets of your jobs, {what}, so no job uses it, and nothing in it is touched; remove "
        "it, or set XDG_RUNTIME_DIR to a folder of yours"
    )


class ControlDoor:
    """Serves requests in a loop. `handle(request, reply)` may reply later, from the loop's thread, and replies once."""

    def __init__(self, loop: Loop, handle: Handler) -> None:
        self._loop = loop
        self._handle = handle
        self._guests: dict[socket.socket, bytes] = {}
        self.path = os.path.join(folder(), f"{os.getpid()}-{uuid.uuid4().hex[:8]}.sock")
        self._door: socket.socket | None = None
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            check_folder(os.path.dirname(self.path))
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._door.bind(self.path)
            self._door.listen()
            self._door.setblocking(False)
        except ConfigError:
            return  # the folder is somebody else's: the job has no door, and the command line says why
        except OSError:  # the path may be too long for a socket
            if self._door is not None:
                self._door.close()
                self._door = None
            with contextlib.suppress(OSError):  # other jobs may have theirs in it
                os.rmdir(os.path.dirname(self.path))
            return
        loop.register(self._door, selectors.EVENT_READ, self._enter)

    def _enter(self, mask: int) -> None:
        assert self._door is not None
        with contextlib.suppress(OSError):
            guest, _ = self._door.accept()
            guest.setblocking(False)
            self._guests[guest] = b""
            self._loop.register(guest, selectors.EVENT_READ, functools.partial(self._hear, guest))

    def _hear(self, guest: socket.socket, mask: int) -> None:
        try:
            data = guest.recv(4096)
        except OSError:
            data = b""
        said = self._guests.get(guest, b"") + data
        if not data or len(said) > _LONGEST:
            self._leave(guest)
            return
        self._guests[guest] = said
        line, newline, _ = said.partition(b"\n")
        if not newline:
            return
        self._guests[guest] = b""
        try:
            request = json.loads(line)
        except ValueError:
            self._leave(guest)
            return
        self._handle(request if isinstance(request, dict) else {}, functools.partial(self._answer, guest))

    def _answer(self, guest: socket.socket, reply: dict[str, Any]) -> None:
        if guest in self._guests:
            with contextlib.suppress(OSError):
                guest.setblocking(True)
                guest.settimeout(1.0)
                guest.sendall(json.dumps(reply).encode() + b"\n")
            self._leave(guest)

    def _leave(self, guest: socket.socket) -> None:
        if self._guests.pop(guest, None) is not None:
            self._loop.unregister(guest)
            guest.close()

    def close(self) -> None:
        """Shuts the door."""
        for guest in list(self._guests):
            self._leave(guest)
        if self._door is not None:
            self._loop.unregister(self._door)
            self._door.close()
            self._door = None
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            with contextlib.suppress(OSError):  # other jobs have their doors in it
                os.rmdir(os.path.dirname(self.path))


def ask(path: str, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any] | None:
    """The answer of the job behind a socket; None where nobody is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(path)
            sock.sendall(json.dumps(request).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                more = sock.recv(65536)
                if not more:
                    return None
                data += more
                if len(data) > _LONGEST_ANSWER:
                    raise ValueError(f"the answer of the job at {path} is longer than {_LONGEST_ANSWER} bytes")
        except (ConnectionError, FileNotFoundError):
            return None
        answer: dict[str, Any] = json.loads(data)
        return answer


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """The jobs of this user that run on this machine: (socket, what they say of themselves). Removes the sockets of
    processes that are gone, and nothing else. Raises `ConfigError` where the folder is not this user's own."""
    where = folder()
    try:
        check_folder(where)
        names = sorted(os.listdir(where))
    except FileNotFoundError:
        return
    for name in filter(_SOCKET.fullmatch, names):
        path = os.path.join(where, name)
        try:
            found = ask(path, {"verb": "who"}, timeout=5.0)
        except (OSError, ValueError):
            continue
        if found is not None:
            yield path, found
        elif not _lives(name):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    os.unlink(path)


def _lives(name: str) -> bool:
    try:
        os.kill(int(name.partition("-")[0]), 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return False
    except PermissionError:
        pass
    return True
