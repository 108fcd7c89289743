"""The door of a running job for other processes of the same user on the same machine: a Unix socket in a folder that only
this user may enter. A request is a line of JSON, `{"verb": …}`, and so is the answer."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.runtime.loop import Loop

_LONGEST = 64 << 10
Reply = Callable[[dict[str, Any]], None]
Handler = Callable[[dict[str, Any], Reply], None]


def folder() -> str:
    """Where the sockets of this user's jobs are."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"tailrace-{os.getuid()}")


class ControlDoor:
    """Serves requests in a loop. `handle(request, reply)` may reply later, from the loop's thread, and replies once."""

    def __init__(self, loop: Loop, handle: Handler) -> None:
        self._loop = loop
        self._handle = handle
        self._guests: dict[socket.socket, bytes] = {}
        self.path = os.path.join(folder(), f"{os.getpid()}-{uuid.uuid4().hex[:8]}.sock")
        self._door: socket.socket | None = None
        try:
            os.makedirs(folder(), mode=0o700, exist_ok=True)
            if os.stat(folder()).st_uid != os.getuid() or os.stat(folder()).st_mode & 0o077:
                return  # somebody else made it: nobody is let in
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._door.bind(self.path)
            self._door.listen()
            self._door.setblocking(False)
        except OSError:
            self._door = None  # a job runs without its door; the command line will not find it
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
                os.rmdir(folder())


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
        except (ConnectionError, FileNotFoundError):
            return None
        answer: dict[str, Any] = json.loads(data)
        return answer


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """The jobs of this user that run on this machine: (socket, what they say of themselves). Removes the sockets of
    processes that are gone."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder())):
            path = os.path.join(folder(), name)
            try:
                found = ask(path, {"verb": "who"}, timeout=5.0)
            except (OSError, ValueError):
                continue
            if found is not None:
                yield path, found
            elif not _lives(name):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _lives(name: str) -> bool:
    number = name.partition("-")[0]
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True
