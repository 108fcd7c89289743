"""Folders for data that lives no longer than its process, such as state on disk. Later processes remove the folders of
killed ones.

    <temporary folder>/tailrace-scratch-<host>-<boot>-<own>         the folder
    <temporary folder>/tailrace-scratch-<host>-<boot>-<own>.lock    locked by its process

The process holds a lock of the operating system (flock) on the file beside its folder, from before the folder is made
until after it is gone. The lock ends with the process, however the process ends. So a process that gets the lock knows
that the owner has ended. It need not rely on a process number, which may belong to another process by now. A machine that
shares the temporary folder with other machines may not see their locks. So each removes only folders that were made under
its own host name, or since its own start.
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

from tailrace.storage.claim_owner import boot

_TRIES = 100
_LOCK = re.compile(r"(tailrace-scratch-([0-9a-f]{8})-([0-9a-f]{8})-[0-9a-f]{12})\.lock")


class Scratch:
    """A folder that only this process uses. `base` is the folder to make it in (None: the machine's folder for temporary
    files). Raises `OSError` if none can be made."""

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
            except OSError:  # this filesystem has no locks: if the folder is left behind, no process will remove it
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
        """Deletes the folder with all its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle >= 0:
            if not os.path.lexists(self.path):  # else a later start tries again
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._lock)
            os.close(self._handle)
            self._handle = -1


def remove_abandoned(base: str | None = None) -> list[str]:
    """Deletes the folders of processes of this machine and user that have ended without deleting them. Returns their
    paths."""
    removed = []
    with contextlib.suppress(OSError):
        base = base if base is not None else tempfile.gettempdir()
        for path in list(_of_this_machine(base)):
            with contextlib.suppress(OSError):  # another user's, or another process removes it at this moment
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
            shutil.rmtree(path)  # follows no link
        os.unlink(lock)  # last: what could not be removed is found again
        return True
    finally:
        os.close(handle)


def _take(handle: int, lock: str) -> bool:
    """Tries to lock the file. True if the lock is taken, and the file still has its name: a file that was removed meanwhile
    locks nothing."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(lock))
    except FileNotFoundError:
        return False


def _machine() -> tuple[str, str]:
    """Short hashes of the name of this machine and of its current start."""
    host, booted = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in (socket.gethostname(), boot()))
    return host, booted
