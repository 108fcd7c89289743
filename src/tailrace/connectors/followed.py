"""The reader of one followed file: its lines as they come, wherever the file is moved."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tailrace.api.connectors import NOTHING_YET, Reader
from tailrace.connectors.file_marks import (
    HEAD,
    TAIL,
    Mark,
    copy_of,
    ends_of,
    from_checkpoint,
    identity_of,
    known_again,
    make_mark,
    plain,
)
from tailrace.connectors.following import PATIENCE, matching
from tailrace.connectors.lines import CHUNK, Splitter
from tailrace.log import log


class _Place(msgspec.Struct, omit_defaults=True):
    """The position of a `FollowedFile`: its lines up to byte `mark.size` were handed out."""

    mark: Mark
    seen: int = 0
    """Largest size of the file that was seen, in bytes."""
    copied: bool = False
    """True if the marked file is a copy, which does not grow."""
    over: bool = False
    """True if the reader has ended."""


class FollowedFile(Reader):
    """The lines of one generation of a file as it grows. The reader ends when the file was cut, or when it is out of sight
    and has not grown for `PATIENCE`."""

    def __init__(self, path: str, split: Any, position: Any = None, decodes: bool = True) -> None:
        self.pattern, self._decodes = path, decodes
        self.file = -1
        self.identity = (0, 0)
        self.copied = self.ended = False
        self.proof: Mark | None = None
        """Mark of the file when it was found; None once the reader has read all bytes of that mark."""
        self.missing: Mark | None = None
        """Mark of the file to find while the reader waits for it: it was not there when it was to be opened."""
        self.place: Mark | None = None
        """Mark for the position while the reader waits for the file."""
        self.seen = 0
        self.grew_at = self.looked_at = float("-inf")
        self.gone_at: float | None = None
        self._state: tuple[int, int] | None = None
        """Size and time of change of the file at the last read."""
        given = from_checkpoint(split, Mark)
        place = (
            _Place(msgspec.structs.replace(given, size=0)) if position is None else from_checkpoint(position, _Place)
        )
        self.seen, self.copied, self.ended = place.seen, place.copied, place.over
        self._begin(place.mark.path, place.mark.size)
        if self.ended:
            return
        # As long as the reader has read less, the mark from when the file was found covers more of the file.
        if not self.copied and given.size > place.mark.size:
            self.proof = given
        self._find(self.proof or place.mark, restored=position is not None)
        self.place = place.mark

    def _begin(self, path: str, at: int) -> None:
        self.path, self.splitter, self.head = path, Splitter(path, at, TAIL, self._decodes), b""

    def _find(self, mark: Mark, *, restored: bool = False) -> None:
        """Opens the marked file wherever it is now, or a copy of it. Ends the reader if the file was cut and has no copy;
        waits if there is no such file."""
        self.seen = max(self.seen, mark.size)
        found = known_again(mark, lambda: matching(self.pattern), moved=restored)
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
            self._end("was truncated or rewritten")

    def _wait(self, now: float) -> None:
        """Looks once a second for a missing file. Ends the reader after `PATIENCE`."""
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
                self._end("is gone")

    def _end(self, why: str) -> None:
        """Ends the reader because the file cannot be read on: its unread bytes are lost."""
        count = self.seen - self.splitter.at
        self.ended, self.lost = True, self.lost + max(0, count)
        known = f"{count} bytes that it had behind that are lost" if count > 0 else "nothing was seen behind that"
        log.warning("TextFiles: %s, followed up to byte %d, %s; %s", self.path, self.splitter.at, why, known)

    def _open(self, path: str) -> None:
        """Opens a file, to read on at the current position."""
        self.close()
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = self.splitter.path = path
        self.head, self.splitter.before = ends_of(self.file, self.splitter.at)
        self.identity = identity_of(os.fstat(self.file))
        self._state, self.gone_at = None, None

    def _open_copy(self, copy: Mark) -> None:
        self._open(copy.path)
        self.copied, self.proof = True, None

    # Reading.

    def read(self, limit: int, now: float) -> Any:
        self._wait(now)
        while not self.ended and self.missing is None:
            lines = self.splitter.lines(limit)
            if lines:
                return lines
            if not self._read_chunk(now):
                return self._quiet(now)
        return self._last() or (None if self.ended else NOTHING_YET)

    def _read_chunk(self, now: float) -> bool:
        """Reads the next chunk. True if there was one, or if the file was cut; False if nothing is new."""
        end = self.splitter.at + self.splitter.rest()
        status = os.fstat(self.file)
        state = (status.st_size, status.st_mtime_ns)
        if status.st_size >= end and state == self._state and status.st_size == end:
            return False
        chunk = os.pread(self.file, CHUNK, end) if status.st_size >= end else b""
        if status.st_size < end or not self._is_same(end):  # after the read, so that the chunk is of this generation
            self.seen = max(self.seen, end)
            self._cut()
            return True
        self._state, self.seen = state, max(self.seen, status.st_size)
        if not chunk:
            return False
        if self.proof is not None and end + len(chunk) >= self.proof.size:
            self.proof = None
        self.head += chunk[: HEAD - len(self.head)]
        self.splitter.add(chunk)
        self.grew_at = now
        return True

    def _is_same(self, end: int) -> bool:
        """True if the file still has the bytes that were read from it."""
        if self.proof is not None:
            found = make_mark("", (0, 0), self.proof.size, *ends_of(self.file, self.proof.size))
            if (found.head, found.tail) != (self.proof.head, self.proof.tail):
                return False
        return ends_of(self.file, end) == (self.head, self.splitter.tail())

    def _cut(self) -> None:
        """Handles a file that was cut or written anew: its unread bytes are in a copy, or lost."""
        end = self.splitter.at + self.splitter.rest()
        mark = self.proof or make_mark(self.path, self.identity, end, self.head, self.splitter.tail())
        copy = None if self.copied else copy_of(mark)
        if copy is not None:
            self.splitter.drop()
            self._open_copy(copy)
        elif max(self.seen, mark.size) > end:
            self.splitter.drop()  # do not emit the beginning of a line
            self.seen = max(self.seen, mark.size)
            self._end("was truncated or rewritten")
        else:
            self.ended = True

    def _last(self) -> list[str]:
        return self.splitter.last() if self.ended else []

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
        """True if the file has a name that matches the user's path, be it a new one."""
        for path in (self.path, *([] if _has(self.path, self.identity) else matching(self.pattern))):
            if _has(path, self.identity):
                self.path = self.splitter.path = path
                return True
        return False

    @property
    def position(self) -> Any:
        at = self.splitter.at
        mark = make_mark(self.path, self.identity, at, self.head[:at], self.splitter.before)
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
