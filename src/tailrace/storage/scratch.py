"""Folders for data that lives no longer than its process: state on disk. Later processes remove those of killed ones.

    <temporary folder>/tailrace-scratch-<host>-<boot>-<own>         the folder
    <temporary folder>/tailrace-scratch-<host>-<boot>-<own>.lock    held by its process

The process holds a lock of the operating system (flock) on the file beside its folder, from before the folder is made until
after it is gone, and nobody can keep that lock beyond its end, however that comes. So a process that gets the lock
knows that the owner has ended: it need not trust a process number, which may be another process's by now. A machine
that shares the temporary folder with others may not see their locks, so each removes only what was made under its own
name, or since its own start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterator

from tailrace.storage.processes import boot

_TRIES = 100
_LOCK = re.compile(r"(tailrace-scratch-([0-9a-f]{8})-([0-9a-f]{8})-[0-9a-f]{12})\.lock")


class Scratch:
    """A folder of this process, and its alone. `base` is where (None: the machine's folder for temporary files). Raises
    `OSError` where none can be made."""

    def __init__(self, base: str | None = None) -> None:
        self.path = ""
        self._lock = ""
        self._handle = -1
        self._make(base if base is not None else tempfile.gettempdir())

    def _make(self, base: str) -> None:
        for _ in range(_TRIES):
            path = os.path.join(base, f"tailrace-scratch-{'-'.join(_machine())}-{uuid.uuid4().hex[:12]}")
            lock = f"{path}.lock"
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                locked = _take(handle, lock)
            except OSError:  # there are no locks on this filesystem: nobody will know when the folder is left behind
                os.unlink(lock)
                os.close(handle)
                self.path = tempfile.mkdtemp(prefix="tailrace-scratch-", dir=base)
                return
            if locked:
                self.path, self._lock, self._handle = path, lock, handle
                try:
                    os.mkdir(path, 0o700)
                except OSError:
                    self.close()
                    raise
                return
            os.close(handle)  # a process that removes abandoned folders was faster
        raise OSError(f"no folder for temporary files could be made in {base}")

    def close(self) -> None:
        """Deletes the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle >= 0:
            if not os.path.lexists(self.path):  # else a later start tries again
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._lock)
            os.close(self._handle)
            self._handle = -1


def remove_abandoned(base: str | None = None) -> list[str]:
    """Deletes the folders of processes of this machine and user that have ended without doing so. Returns their paths."""
    removed = []
    with contextlib.suppress(OSError):
        base = base if base is not None else tempfile.gettempdir()
        for path in list(_of_this_machine(base)):
            with contextlib.suppress(OSError):  # another user's, or somebody else removes it at this moment
                if _remove(path):
                    removed.append(path)
    return removed


def _of_this_machine(base: str) -> Iterator[str]:
    host, booted = _machine()
    for name in sorted(os.listdir(base)):
        found = _LOCK.fullmatch(name)
        if found is not None and (found[2] == host or (boot() and found[3] == booted)):
            yield os.path.join(base, found[1])


def _remove(path: str) -> bool:
    lock = f"{path}.lock"
    handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        made = os.fstat(handle)
        if not stat.S_ISREG(made.st_mode) or made.st_uid != os.getuid() or not _take(handle, lock):
            return False
        if os.path.lexists(path):
            shutil.rmtree(path)  # goes through no link
        os.unlink(lock)  # last: what could not be removed is found again
        return True
    finally:
        os.close(handle)


def _take(handle: int, lock: str) -> bool:
    """Whether the lock is ours, and is that of the name: a file that was removed meanwhile locks nothing."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(lock))
    except FileNotFoundError:
        return False


def _machine() -> tuple[str, str]:
    """The name of this machine, and its start, in short."""
    host, booted = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in (socket.gethostname(), boot()))
    return host, booted
