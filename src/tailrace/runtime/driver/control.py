"""The door of a running job for other processes of the user on this machine: Unix sockets in folders that only this user
may enter. A request is a line of JSON, `{"verb": …}`, and so is the answer."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import selectors
import socket
import stat
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.errors import ConfigError
from tailrace.log import fields, log
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.settings import SETTINGS

_LONGEST = 64 << 10
"""Limit for the bytes of a request."""
_LONGEST_ANSWER = 16 << 20
_SOCKET = re.compile(r"[1-9]\d*-[0-9a-f]+\.sock")
"""The name of a door's socket: the process and a random part."""
FIXED = "/tmp"
"""The folder in which one of a user's folders is on every machine, whatever the settings of a shell are."""
LONGEST_PATH = 100
"""Bytes that every system allows in the path of a socket."""
Reply = Callable[[dict[str, Any]], None]
Handler = Callable[[dict[str, Any], Reply], None]


CONTROL_DIR = SETTINGS["control_dir"].variable
"""The variable that names the only folder for sockets, if a user sets it."""


def folders() -> list[str]:
    """The folders for the sockets of this user's jobs. A job has a socket in each of them that exists, so that a shell
    finds it whatever its own settings are. A service has no `XDG_RUNTIME_DIR`, and a login may take that folder with it
    when it ends; in `FIXED` services may have a private folder for temporary files. Raises `ConfigError` if a user names
    a folder that does not exist."""
    uid = os.getuid()
    chosen = SETTINGS["control_dir"].read()
    if chosen and not (os.path.isabs(chosen) and os.path.isdir(chosen)):
        raise ConfigError(
            f"{CONTROL_DIR}={chosen} must be the absolute path of a folder that is there, the same for jobs and shells: "
            f"make it, or set another one"
        )
    bases = [chosen] if chosen else [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}", FIXED]
    found = {os.path.realpath(base): base for base in reversed(bases) if base and os.path.isdir(base)}
    return [os.path.join(base, f"tailrace-{uid}") for base in reversed(found.values())]


def check_folder(path: str) -> None:
    """Raises `ConfigError` unless the path is a folder of this user that no other user may enter: in a folder for
    temporary files anyone may make one of this name, or a link. Raises `FileNotFoundError` if there is none."""
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
        f"it, or set {CONTROL_DIR} to a folder of yours, for jobs and shells alike"
    )


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """A path of a socket that is short enough for the system, as long as the context lasts. If it is too long, the system
    itself keeps the folder open under a short name; a system that does not raises `OSError`."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield path
        return
    above, name = os.path.split(path)
    folder = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


class ControlDoor:
    """The door of one job, which serves requests in a loop. `handle(request, reply)` may reply later, from the loop's
    thread, and replies once."""

    def __init__(self, loop: EventLoop, handle: Handler, job: str) -> None:
        self._loop = loop
        self._handle = handle
        self._guests: dict[socket.socket, bytes] = {}
        self._doors: dict[str, socket.socket] = {}
        name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.sock"
        refused: list[str] = []
        for folder in self._folders(refused):
            path = os.path.join(folder, name)
            try:
                self._doors[path] = _listening(path)
            except (ConfigError, OSError) as error:  # the folder belongs to another user, or cannot be written
                refused.append(str(error))
        for door in self._doors.values():
            loop.register(door, selectors.EVENT_READ, functools.partial(self._enter, door))
        if not self._doors:
            why = "; ".join(refused) or f"there is no folder for its socket; {CONTROL_DIR} names one"
            log.warning(
                "job %r cannot be reached from another terminal (tailrace list, show, stop, …): %s",
                job,
                why,
                extra=fields(job=job),
            )

    @staticmethod
    def _folders(refused: list[str]) -> list[str]:
        """The folders for its sockets; none if a wrong folder is set, with the reason in `refused`: the job goes on
        without."""
        try:
            return folders()
        except ConfigError as error:
            refused.append(str(error))
            return []

    @property
    def paths(self) -> list[str]:
        """The paths of its sockets."""
        return list(self._doors)

    def _enter(self, door: socket.socket, mask: int) -> None:
        with contextlib.suppress(OSError):
            guest, _ = door.accept()
            guest.setblocking(False)
            self._guests[guest] = b""
            self._loop.register(guest, selectors.EVENT_READ, functools.partial(self._receive, guest))

    def _receive(self, guest: socket.socket, mask: int) -> None:
        try:
            data = guest.recv(4096)
        except OSError:
            data = b""
        text = self._guests.get(guest, b"") + data
        if not data or len(text) > _LONGEST:
            self._leave(guest)
            return
        self._guests[guest] = text
        line, newline, _ = text.partition(b"\n")
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
        """Closes the door, and removes its sockets."""
        for guest in list(self._guests):
            self._leave(guest)
        for path, door in self._doors.items():
            self._loop.unregister(door)
            door.close()
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):  # other jobs have their doors in it
                os.rmdir(os.path.dirname(path))
        self._doors = {}


def _listening(path: str) -> socket.socket:
    """A socket that listens at a path. Leaves nothing behind if that fails. Raises `ConfigError` and `OSError`."""
    folder = os.path.dirname(path)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        check_folder(folder)
        with _short(path) as short:
            door.bind(short)
        door.listen()
        door.setblocking(False)
    except BaseException as error:
        door.close()
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):  # other jobs may have their doors in it
                os.rmdir(folder)
        raise
    return door


def query(path: str, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any] | None:
    """The answer of the job behind a socket; None if no process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            with _short(path) as short:
                sock.connect(short)
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
    """The jobs of this user that run on this machine: (socket, their answers to `who`), each once. Removes the sockets of
    processes that are gone, and nothing else. Raises `ConfigError` if no job is found and a folder is not this user's
    own: a job whose only socket would be there has none."""
    found: set[str] = set()
    wrong: ConfigError | None = None
    for folder in folders():
        try:
            check_folder(folder)
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            continue
        except ConfigError as error:
            wrong = wrong or error
            continue
        for name in filter(_SOCKET.fullmatch, names):
            path = os.path.join(folder, name)
            who = None if name in found else _who(path, name)
            if who is not None:
                found.add(name)
                yield path, who
    if wrong is not None and not found:
        raise wrong


def is_called(who: dict[str, Any], name: str) -> bool:
    """True if a job has this name, or an id that begins so."""
    return bool(who["name"] == name or (len(name) >= 4 and who["id"].startswith(name)))


def _who(path: str, name: str) -> dict[str, Any] | None:
    """The answer of the job behind a socket to `who`; None if none answers. Removes the socket if its process is gone."""
    try:
        found = query(path, {"verb": "who"}, timeout=5.0)
    except (OSError, ValueError):
        return None
    if found is None and not _lives(name):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
    return found


def _lives(name: str) -> bool:
    try:
        os.kill(int(name.partition("-")[0]), 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return False
    except PermissionError:
        pass
    return True
