"""Files that are followed: found by `Following`, each read on as it grows by a `FollowedFile`.

A file is its inode and its bytes, never its name (`connectors.marks`): log files are renamed, copied and cut while they are
read. What is between two cuts of a file is a *generation* of it. One place decides what is to be read, so that nothing is
read twice: `Following`, in subtask 0, gives each generation to one reader, with its mark. A reader reads its own and ends.

| what happens to a file | `Following` | its reader |
|---|---|---|
| renamed | knows it again | reads on; out of sight, until nothing came for `PATIENCE` |
| a new one has its old name | gives it to a reader | |
| copied, then cut (`copytruncate`) | sees a copy, and a generation to be read | reads the rest in the copy, and ends |
| cut or written anew, no copy | sees a generation to be read | says what it has not read, and ends |
| deleted | | reads what is left, until nothing came for `PATIENCE` |
| compressed | passes the compressed one over | as when deleted |

A reader may notice a cut that `Following` does not (both generations begin with the same heading): it is told when a
generation was read to its end (`ended`).
"""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from tailrace.api.connectors import NOTHING_YET, Enumerator, Reader
from tailrace.connectors.lines import CHUNK, Splitter, compression_of
from tailrace.connectors.marks import (
    HEAD,
    TAIL,
    Mark,
    begins_as,
    copy_of,
    ends_of,
    identity_of,
    known_again,
    mark_of,
    marked,
    plain,
    related,
)
from tailrace.connectors.paths import files_at
from tailrace.errors import ConfigError

PATIENCE = 30.0
"""A file that is out of sight counts as over when nothing came for so many seconds: who writes it may not have noticed the
rotation yet."""
SETTLING = 2.0
"""A file with the very bytes of another is taken for a copy in the making until it stayed as it is for so many seconds."""
FORGOTTEN = 86_400.0
"""Seconds after which a file that is out of sight is forgotten."""

_log = logging.getLogger("tailrace")


def refuse_compressed(paths: list[str]) -> None:
    """Raises `ConfigError` for a compressed file: it is written once, and nothing can be read on in it."""
    for path in paths:
        if compression_of(path) is not None:
            raise ConfigError(
                f"TextFiles: {path} is compressed and cannot be followed; name the plain files, as with {_sibling(path)}, "
                f"or read it without follow"
            )


def _sibling(path: str) -> str:
    return os.path.join(os.path.dirname(path), "*.log")


class _Known(msgspec.Struct, omit_defaults=True):
    """A file that was found."""

    mark: Mark
    """As it was when it was looked at last."""
    generation: int = 1
    """The newest one that was given to a reader."""
    due: bool = False
    """Whether there is, or will be, another one: it was cut since."""
    unread: bool = False
    """Whether `mark` is of one that was not given out: it has no reader that would look for its copy."""
    copied: Mark | None = None
    """As it was before it was cut; for what turns out to be its copy."""
    cut_at: float = 0.0
    read: bool = True
    """Whether it is read; else it is a copy of one that is."""
    gone_at: float | None = None
    """Since when it is out of sight, in seconds."""
    was_gone: bool = False
    """Whether it was out of sight since its newest generation was given out."""


class _Found(msgspec.Struct, omit_defaults=True):
    """The position of a `Following`."""

    files: list[_Known] = []


class Following(Enumerator):
    """Finds the files of a path as they come. What it finds are the marks of files, as dicts.

    Invariant D2: each generation of a file is given out once, whatever names it has had.
    """

    def __init__(self, path: str, position: Any = None) -> None:
        self.path = path
        self.must_exist = position is None and not os.path.isdir(path)
        self.fresh = position is None
        self.restored = position is not None
        self.older: set[str] = set()
        """Names that a checkpoint of an older version holds: it knew files by these."""
        self.known: dict[tuple[int, int], _Known] = {}
        self._undecided: dict[tuple[int, int], tuple[int, float]] = {}
        """Files that look like copies: how large they were, and since when they are."""
        self._passed: set[str] = set()
        self._looked: dict[tuple[int, int], tuple[int, int]] = {}
        """Size and time of change of each file when it was looked at, so that nothing is read of one that rests."""
        if isinstance(position, list):
            self.older = set(position)
        elif position is not None:
            self.known = {one.mark.identity: one for one in msgspec.convert(position, _Found).files}

    def discover(self, now: float) -> list[dict[str, Any]]:
        there = self._there()
        seen = self._seen(there, now)
        new = []
        for path, status in seen:
            identity = identity_of(status)
            older = path in self.older
            if identity in self.known:
                new += self._next_generation(self.known[identity])
                continue
            if not (older or (status.st_size and not self._is_copy(path, status, now))):
                continue
            mark = mark_of(path)
            if mark is not None and mark.identity == identity:
                self.known[identity] = _Known(mark)
                if not older:
                    new.append(_split(mark, 1))
        self._forget({identity_of(status) for _, status in seen}, now)
        self.fresh, self.restored, self.older = False, False, set()
        return new

    def _next_generation(self, one: _Known) -> list[dict[str, Any]]:
        """What is to be read of a file that was cut, as soon as there is something."""
        if not (one.due and one.read):
            return []
        mark = mark_of(one.mark.path)
        if mark is None or mark.identity != one.mark.identity or not mark.size:
            return []
        one.generation += 1
        one.mark, one.due, one.unread, one.was_gone = mark, False, False, False
        return [_split(mark, one.generation)]

    def ended(self, split: Any) -> None:
        if isinstance(split, str):  # of a checkpoint of an older version
            known, generation = next((k for k in self.known.values() if k.mark.path == split), None), 1
        else:
            mark, generation = msgspec.convert(split, Mark), split.get("generation", 1)
            known = self.known.get(mark.identity)
        if known is not None and generation == known.generation and known.gone_at is None and not known.was_gone:
            known.due = True  # nobody else would read what is in it by now

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
        told = sorted(packed - self._passed)
        if told:
            self._passed = packed
            _log.warning(
                "TextFiles: %s: compressed files cannot be followed and are passed over; what a rotation has compressed "
                "was read before",
                ", ".join(told),
            )
        return [path for path in there if path not in packed]

    def _seen(self, there: list[str], now: float) -> list[tuple[str, os.stat_result]]:
        """The files, after a look at those that are known."""
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
        """After a restore: a file may have another inode, or its device another number, where a volume was moved."""
        for old, one in list(self.known.items()):
            if one.mark.path == path and old not in there and one.mark.size and begins_as(path, one.mark):
                found = known_again(one.mark, list, moved=True)
                if found is not None and found[0] == path:
                    del self.known[old]
                    one.mark = msgspec.structs.replace(one.mark, device=identity[0], inode=identity[1])
                    self.known[identity] = one
                    return

    def _look(self, one: _Known, path: str, status: os.stat_result, now: float) -> None:
        """A file that is known has this name now."""
        identity = one.mark.identity
        state = (status.st_size, status.st_mtime_ns)
        gone_at, one.gone_at = one.gone_at, None
        if one.mark.path != path:
            one.mark = msgspec.structs.replace(one.mark, path=path)
        if self._looked.get(identity) == state:
            return
        same = begins_as(path, one.mark)
        if same and gone_at is not None and one.read and now - gone_at > PATIENCE and status.st_size > one.mark.size:
            _log.warning(
                "TextFiles: %s came back after more than %d seconds out of sight, and is not followed any more: %d bytes "
                "that were added to it meanwhile are not read",
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
        """Whether a new file is a copy of a known one, or may yet turn out to be one."""
        if self.fresh:
            return False
        identity = identity_of(status)
        likely = False
        for one in self.known.values():
            if not one.read or not related(path, one.mark.path):
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
        """Whether a file begins with what is in a known one, or the known one with what is in it."""
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
        if self.older:
            return sorted(self.older)  # nothing was looked at yet
        return plain(_Found(list(self.known.values())))

    def next_at(self, now: float) -> float:
        return now + max(0.2, 2e-4 * len(self.known))


def _split(mark: Mark, generation: int) -> dict[str, Any]:
    """One generation of a file as a split: plain values, which a checkpoint can hold for long."""
    return {**plain(mark), "generation": generation}


class _Place(msgspec.Struct, omit_defaults=True):
    """The position of a `FollowedFile`: up to `mark.size` its lines were handed out."""

    mark: Mark
    seen: int = 0
    """The largest size that was seen of it."""
    copied: bool = False
    """Whether the marked file is a copy, which does not grow."""
    over: bool = False
    """Whether nothing will be read any more."""


class FollowedFile(Reader):
    """The lines of one generation of a file as it grows. It ends when the file was cut, and when it is out of sight and
    nothing comes any more."""

    def __init__(self, path: str, split: Any, position: Any = None) -> None:
        self.pattern = path
        self.file = -1
        self.identity = (0, 0)
        self.copied = self.ended = False
        self.proof: Mark | None = None
        """What was seen of the file when it was found, until more than that was read."""
        self.missing: Mark | None = None
        """What is waited for: a file that was not there when it was to be opened."""
        self.place: Mark | None = None
        """The same for the position."""
        self.seen = 0
        self.grew_at = self.looked_at = float("-inf")
        self.gone_at: float | None = None
        self._state: tuple[int, int] | None = None
        """Size and time of change when it was read to its end."""
        # Checkpoints of an older version know files by their names, and positions as numbers.
        if isinstance(split, str) and not isinstance(position, dict):
            self._begin(split, position or 0)
            found = mark_of(split, 0)
            self._find(found or Mark(split, 0, 0))
            return
        given = Mark(split, 0, 0) if isinstance(split, str) else msgspec.convert(split, Mark)
        place = (
            _Place(msgspec.structs.replace(given, size=0)) if position is None else msgspec.convert(position, _Place)
        )
        self.seen, self.copied, self.ended = place.seen, place.copied, place.over
        self._begin(place.mark.path, place.mark.size)
        if self.ended:
            return
        # What was seen when the file was found tells more of it than what was read, as long as that is less.
        if not self.copied and given.size > place.mark.size:
            self.proof = given
        self._find(self.proof or place.mark, restored=position is not None)
        self.place = place.mark

    def _begin(self, path: str, at: int) -> None:
        self.path, self.splitter, self.head, self.before = path, Splitter(path, at), b"", b""

    def _find(self, mark: Mark, *, restored: bool = False) -> None:
        """Opens the marked file, wherever it is by now."""
        self.seen = max(self.seen, mark.size)
        found = known_again(mark, lambda: _matching(self.pattern), moved=restored)
        if found is None:
            self.missing = self.place = mark
            return
        if found[1]:
            self._open(found[0])
            return
        copy = copy_of(mark)
        if copy is not None:
            self._open_copy(copy)
        else:
            self._end("was cut short or written anew")

    def _wait(self, now: float) -> None:
        """Looks again for a file that was not there, now and then."""
        mark = self.missing
        if mark is None or self.looked_at <= now < self.looked_at + 1.0:
            return
        self.looked_at = now
        since = now if self.gone_at is None or self.gone_at > now else self.gone_at
        place, self.missing = self.place, None
        self._find(mark)
        if self.missing is not None:
            self.place, self.gone_at = place, since
            if now - since >= PATIENCE:
                self.missing = None
                self._end("is not there any more")

    def _end(self, why: str) -> None:
        """What was not read is lost."""
        count = self.seen - self.splitter.at
        self.ended, self.lost = True, self.lost + max(0, count)
        known = f"{count} bytes of it had been seen and were not read" if count > 0 else "nothing was seen behind that"
        _log.warning("TextFiles: %s, followed up to byte %d, %s; %s", self.path, self.splitter.at, why, known)

    def _open(self, path: str) -> None:
        """The file, to read on where we are."""
        self.close()
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = self.splitter.path = path
        self.head, self.before = ends_of(self.file, self.splitter.at)
        self.identity = identity_of(os.fstat(self.file))
        self._state, self.gone_at = None, None

    def _open_copy(self, copy: Mark) -> None:
        self._open(copy.path)
        self.copied, self.proof = True, None

    # Reading.

    def read(self, limit: int, now: float) -> Any:
        self._wait(now)
        while not self.ended and self.missing is None:
            lines = self._lines(limit)
            if lines:
                return lines
            if not self._grown(now):
                return self._quiet(now)
        return self._last() or (None if self.ended else NOTHING_YET)

    def _lines(self, limit: int) -> list[str]:
        before = self.splitter.rest
        lines = self.splitter.lines(limit)
        taken = len(before) - len(self.splitter.rest)
        self.before = (self.before + before[max(0, taken - TAIL) : taken])[-TAIL:]
        return lines

    def _grown(self, now: float) -> bool:
        """Reads on. Whether there was something, or something happened to the file."""
        end = self.splitter.at + len(self.splitter.rest)
        status = os.fstat(self.file)
        state = (status.st_size, status.st_mtime_ns)
        if status.st_size >= end and state == self._state and status.st_size == end:
            return False
        chunk = os.pread(self.file, CHUNK, end) if status.st_size >= end else b""
        if status.st_size < end or not self._is_same(end):  # looked at behind the reading: the bytes read are its own
            self.seen = max(self.seen, end)
            self._cut()
            return True
        self._state, self.seen = state, max(self.seen, status.st_size)
        if not chunk:
            return False
        if self.proof is not None and end + len(chunk) >= self.proof.size:
            self.proof = None
        self.head += chunk[: HEAD - len(self.head)]
        self.splitter.rest += chunk
        self.grew_at = now
        return True

    def _is_same(self, end: int) -> bool:
        """Whether the file still has the bytes that were read of it."""
        if self.proof is not None:
            found = marked("", (0, 0), self.proof.size, *ends_of(self.file, self.proof.size))
            if (found.head, found.tail) != (self.proof.head, self.proof.tail):
                return False
        return ends_of(self.file, end) == (self.head, (self.before + self.splitter.rest)[-TAIL:])

    def _cut(self) -> None:
        """The file was cut, or written anew: what is not read of it is in a copy, or lost."""
        end = self.splitter.at + len(self.splitter.rest)
        tail = (self.before + self.splitter.rest)[-TAIL:]
        mark = self.proof or marked(self.path, self.identity, end, self.head, tail)
        copy = None if self.copied else copy_of(mark)
        if copy is not None:
            self.splitter.rest = b""
            self._open_copy(copy)
        elif max(self.seen, mark.size) > end:
            self.splitter.rest = b""  # what was read of a line is none
            self.seen = max(self.seen, mark.size)
            self._end("was cut short or written anew")
        else:
            self.ended = True

    def _last(self) -> list[str]:
        if not self.ended:
            return []
        self.before = (self.before + self.splitter.rest)[-TAIL:]
        return self.splitter.last()

    # When nothing comes.

    def _quiet(self, now: float) -> Any:
        if self.copied:
            self.ended = True
            return self._last() or None
        if self.looked_at <= now < self.looked_at + 1.0:
            return NOTHING_YET
        self.looked_at = now
        if self._in_sight():
            self.gone_at = None
            return NOTHING_YET
        if self.gone_at is None or self.gone_at > now:
            self.gone_at = now
        if now - max(self.gone_at, min(self.grew_at, now)) < PATIENCE:
            return NOTHING_YET
        self.ended = True
        return self._last() or None

    def _in_sight(self) -> bool:
        """Whether the file has a name that the user meant. It may be a new one."""
        for path in (self.path, *([] if _has(self.path, self.identity) else _matching(self.pattern))):
            if _has(path, self.identity):
                self.path = self.splitter.path = path
                return True
        return False

    @property
    def position(self) -> Any:
        at = self.splitter.at
        mark = marked(self.path, self.identity, at, self.head[:at], self.before)
        if self.missing is not None and self.place is not None:
            mark = self.place
        return plain(_Place(mark, self.seen, self.copied, self.ended))

    def next_at(self, now: float) -> float:
        return now + 0.1

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _has(path: str, identity: tuple[int, int]) -> bool:
    try:
        return identity_of(os.stat(path)) == identity
    except FileNotFoundError:
        return False


def _matching(pattern: str) -> list[str]:
    try:
        return [path for path in files_at(pattern) if compression_of(path) is None]
    except ConfigError:
        return []
