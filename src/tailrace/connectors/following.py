"""Files that are followed: `Following` finds them, and a `FollowedFile` reads each of them as it grows.

A file is its inode and its bytes, never its name (`connectors.file_marks`): log files are renamed, copied and cut while they
are read. The bytes between two cuts of a file are a *generation* of it. One place decides what is read, so that nothing
is read twice: `Following`, in subtask 0, gives each generation to one reader, with its mark. A reader reads its own
generation and ends.

| what happens to a file | `Following` | its reader |
|---|---|---|
| renamed | knows it again | reads on; if out of sight, until nothing came for `PATIENCE` |
| a new file has its old name | gives the new file to a reader | |
| copied, then cut (`copytruncate`) | sees a copy, and a generation to be read | reads the rest in the copy, and ends |
| cut or written anew, no copy | sees a generation to be read | logs the number of unread bytes, and ends |
| deleted | | reads what is left, until nothing came for `PATIENCE` |
| compressed | skips the compressed file | as when deleted |

A reader may notice a cut that `Following` does not (both generations begin with one heading). So `Following` is notified
when a generation was read to its end (`ended`).
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tailrace.api.connectors import Enumerator
from tailrace.connectors.file_marks import (
    Mark,
    begins_as,
    from_checkpoint,
    identity_of,
    known_again,
    mark_of,
    may_be_rotated,
    plain,
)
from tailrace.connectors.lines import compression_of
from tailrace.connectors.paths import files_at
from tailrace.errors import ConfigError
from tailrace.log import log

PATIENCE = 30.0
"""Seconds without new bytes after which the reader of a file that is out of sight ends. Until then its writer may not have
noticed the rotation."""
SETTLING = 2.0
"""Seconds for which a file with the bytes of another one must stay unchanged; until then it may be a copy in the making."""
FORGOTTEN = 86_400.0
"""Seconds after which a file that is out of sight is forgotten."""


def refuse_compressed(paths: list[str]) -> None:
    """Raises `ConfigError` for a compressed file: it is written once, and does not grow."""
    for path in paths:
        if compression_of(path) is not None:
            raise ConfigError(
                f"TextFiles: {path} is compressed and cannot be followed; name the plain files, as with {_sibling(path)}, "
                f"or read it without follow"
            )


def _sibling(path: str) -> str:
    return os.path.join(os.path.dirname(path), "*.log")


class _Known(msgspec.Struct, omit_defaults=True):
    """A file that `Following` knows."""

    mark: Mark
    """Mark of the file at the last look."""
    generation: int = 1
    """Number of the newest generation that was given to a reader."""
    due: bool = False
    """True if there is, or will be, another generation: the file was cut since."""
    unread: bool = False
    """True if `mark` is of a generation that was not given out: no reader would look for its copy."""
    copied: Mark | None = None
    """Mark of the file before it was cut, by which its copy is recognised."""
    cut_at: float = 0.0
    read: bool = True
    """True if the file is given to readers; False for a copy of such a file."""
    gone_at: float | None = None
    """Time since which the file is out of sight, in seconds since 1970; None if it is in sight."""
    was_gone: bool = False
    """True if the file was out of sight at some time since its newest generation was given out."""


class _Found(msgspec.Struct, omit_defaults=True):
    """The position of a `Following`."""

    files: list[_Known] = []


class Following(Enumerator):
    """The enumerator that finds the files of a path as they come. Its splits are the marks of files, as dicts.

    Invariant D2: each generation of a file is given out once, whatever names it has had.
    """

    def __init__(self, path: str, position: Any = None) -> None:
        self.path = path
        self.must_exist = position is None and not os.path.isdir(path)
        self.fresh = position is None
        self.restored = position is not None
        self.known: dict[tuple[int, int], _Known] = {}
        self._undecided: dict[tuple[int, int], tuple[int, float]] = {}
        """Identity of a file that may be a copy -> its size, and the time since which it has that size."""
        self._passed: set[str] = set()
        self._looked: dict[tuple[int, int], tuple[int, int]] = {}
        """Identity of a file -> its size and time of change at the last look. An unchanged file is not read."""
        if position is not None:
            self.known = {one.mark.identity: one for one in from_checkpoint(position, _Found).files}

    def discover(self, now: float) -> list[dict[str, Any]]:
        there = self._there()
        seen = self._files_now(there, now)
        new = []
        for path, status in seen:
            identity = identity_of(status)
            if identity in self.known:
                new += self._next_generation(self.known[identity])
                continue
            if not status.st_size or self._is_copy(path, status, now):
                continue
            mark = mark_of(path)
            if mark is not None and mark.identity == identity:
                self.known[identity] = _Known(mark)
                new.append(_split(mark, 1))
        self._forget({identity_of(status) for _, status in seen}, now)
        self.fresh = self.restored = False
        return new

    def _next_generation(self, one: _Known) -> list[dict[str, Any]]:
        """The new generation of a file that was cut, as soon as it has any bytes."""
        if not (one.due and one.read):
            return []
        mark = mark_of(one.mark.path)
        if mark is None or mark.identity != one.mark.identity or not mark.size:
            return []
        one.generation += 1
        one.mark, one.due, one.unread, one.was_gone = mark, False, False, False
        return [_split(mark, one.generation)]

    def ended(self, split: Any) -> None:
        mark, generation = from_checkpoint(split, Mark), split.get("generation", 1)
        known = self.known.get(mark.identity)
        if known is not None and generation == known.generation and known.gone_at is None and not known.was_gone:
            known.due = True  # later bytes of the file need another reader

    def _there(self) -> list[str]:
        try:
            there = files_at(self.path)
        except ConfigError:
            if self.must_exist:
                raise
            return []
        self.must_exist = False
        if self.fresh:
            refuse_compressed(there)
        packed = {path for path in there if compression_of(path) is not None}
        archives = sorted(packed - self._passed)
        if archives:
            self._passed = packed
            log.warning(
                "TextFiles: %s: compressed files cannot be followed and are skipped; a file that a rotation compressed was "
                "read before that",
                ", ".join(archives),
            )
        return [path for path in there if path not in packed]

    def _files_now(self, there: list[str], now: float) -> list[tuple[str, os.stat_result]]:
        """The files that are there, with their status, after an update of the known ones."""
        seen = []
        for path in there:
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            seen.append((path, status))
        identities = {identity_of(status) for _, status in seen}
        for path, status in seen:
            identity = identity_of(status)
            if identity not in self.known and self.restored:
                self._adopt(path, identity, identities)
            if identity in self.known:
                self._look(self.known[identity], path, status, now)
        return seen

    def _adopt(self, path: str, identity: tuple[int, int], there: set[tuple[int, int]]) -> None:
        """Recognises a file after a restore: if a volume was moved, the file may have another inode, or its device another
        number."""
        for old, one in list(self.known.items()):
            if one.mark.path == path and old not in there and one.mark.size and begins_as(path, one.mark):
                found = known_again(one.mark, list, moved=True)
                if found is not None and found[0] == path:
                    del self.known[old]
                    one.mark = msgspec.structs.replace(one.mark, device=identity[0], inode=identity[1])
                    self.known[identity] = one
                    return

    def _look(self, one: _Known, path: str, status: os.stat_result, now: float) -> None:
        """Updates a known file, which has this name and status now: notices renames and cuts."""
        identity = one.mark.identity
        state = (status.st_size, status.st_mtime_ns)
        gone_at, one.gone_at = one.gone_at, None
        if one.mark.path != path:
            one.mark = msgspec.structs.replace(one.mark, path=path)
        if self._looked.get(identity) == state:
            return
        same = begins_as(path, one.mark)
        if same and gone_at is not None and one.read and now - gone_at > PATIENCE and status.st_size > one.mark.size:
            log.warning(
                "TextFiles: %s came back after more than %d seconds out of sight, and is not followed any more: the %d "
                "bytes that were added to it meanwhile are lost",
                path,
                PATIENCE,
                status.st_size - one.mark.size,
            )
        if not same and not one.read:
            del self.known[identity]  # the copy is gone, and its inode is another file's
            return
        if not same:
            if not one.unread:
                one.copied, one.cut_at = one.mark, now
            one.due = True
        mark = mark_of(path)
        if mark is not None and mark.identity == identity:
            one.mark, one.unread = mark, one.due
            self._looked[identity] = state

    def _is_copy(self, path: str, status: os.stat_result, now: float) -> bool:
        """True if a new file is a copy of a known one, or may be a copy in the making."""
        if self.fresh:
            return False
        identity = identity_of(status)
        likely = False
        for one in self.known.values():
            if not one.read or not may_be_rotated(path, one.mark.path):
                continue
            before = one.copied
            if before is not None and before.size and abs(now - one.cut_at) < 10 * SETTLING and begins_as(path, before):
                mark = mark_of(path)
                self.known[identity] = _Known(mark or before, read=False)
                self._undecided.pop(identity, None)
                return True
            likely = likely or self._resembles(path, status.st_size, one.mark)
        if not likely:
            self._undecided.pop(identity, None)
            return False
        size, since = self._undecided.get(identity, (-1, now))
        if size != status.st_size or now < since:
            size, since = status.st_size, now
        self._undecided[identity] = (size, since)
        return now - since < SETTLING

    def _resembles(self, path: str, size: int, mark: Mark) -> bool:
        """True if a file begins with the bytes of a known one, or the known one with its bytes."""
        if mark.size <= size:
            return mark.size > 0 and begins_as(path, mark)
        start, other = mark_of(path), mark_of(mark.path, size)
        if start is None or other is None or other.identity != mark.identity:
            return False
        return 0 < start.size == size and (start.head, start.tail) == (other.head, other.tail)

    def _forget(self, there: set[tuple[int, int]], now: float) -> None:
        for identity, one in list(self.known.items()):
            if identity in there:
                continue
            self._looked.pop(identity, None)
            one.was_gone = True
            if one.gone_at is None or one.gone_at > now:
                one.gone_at = now
            elif now - one.gone_at > FORGOTTEN:
                del self.known[identity]
        for identity in list(self._undecided):
            if identity not in there:
                del self._undecided[identity]

    @property
    def position(self) -> Any:
        return plain(_Found(list(self.known.values())))

    def next_at(self, now: float) -> float:
        return now + max(0.2, 2e-4 * len(self.known))


def _split(mark: Mark, generation: int) -> dict[str, Any]:
    """One generation of a file as a split, in plain values that later versions can read from a checkpoint."""
    return {**plain(mark), "generation": generation}


def matching(pattern: str) -> list[str]:
    """The plain files at a path or pattern; none if there are no files at it now."""
    try:
        return [path for path in files_at(pattern) if compression_of(path) is None]
    except ConfigError:
        return []
