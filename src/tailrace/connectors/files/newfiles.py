"""Files that come later, found by lists of a place: `NewFiles`. Each is read once, whole.

A list of an object store has names, versions and the times at which files came there. The enumerator remembers the names
(as hashes) of the files that came in the last `KEPT` seconds before the newest one, and only the number of older files, by
the hour. So its position stays small for millions of files. It assumes that a file does not appear with a time that is
`KEPT` seconds behind that of a file that was found before; that there are more of such old files than before is an error.
A file that was found and has another version later is an error, too.

Files are given out in the order of their times, and at most `AT_ONCE` for each subtask are open: a job that starts on a
store of many files does not open all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import xxhash

from tailrace.api.connectors import Enumerator
from tailrace.connectors.files.places import PlacedFile, list_files
from tailrace.connectors.hidden import protocol_of
from tailrace.connectors.lines import Version
from tailrace.errors import ConfigError

KEPT = 7 * 86_400.0
"""Seconds before the newest file for which names are remembered. On this machine all are: times there change with rights
and owners of a file."""
AT_ONCE = 8
"""Number of files for each subtask that are given out and not read to their end."""
LOCAL_POLL, REMOTE_POLL = 0.2, 5.0
"""Seconds between two lists of a place."""
_HOUR = 3600


_NAME = np.dtype([("name", "<u8"), ("version", "<u4"), ("hour", "<i4")])


class Seen(msgspec.Struct, omit_defaults=True):
    """The position of a `NewFiles`: the files that it has given out."""

    newest: float = 0.0
    """The latest time of a file, in seconds since 1970."""
    names: bytes = b""
    """Hash of the name, hash of the version, and hour of each file that is remembered, as an array of `_NAME`."""
    older: dict[int, int] = {}
    """Hour -> number of files, for hours whose names are not remembered."""
    reading: int = 0
    """Number of files that were not read to their end."""


def check_poll(poll: Any, follow: Any, who: str) -> float | None:
    """The seconds between two lists, checked. Raises `ConfigError` for wrong ones."""
    if not isinstance(follow, bool):
        raise ConfigError(f"{who}: follow must be True or False, not {follow!r}; poll=seconds is how often it looks")
    if poll is not None and (isinstance(poll, bool) or not isinstance(poll, int | float) or not 0 < poll < 1e9):
        raise ConfigError(f"{who}: poll must be a number of seconds above zero, not {poll!r}")
    if poll is not None and not follow:
        raise ConfigError(f"{who}: poll is how often a source looks for new files, which it does with follow=True")
    return poll


def path_of(split: Any) -> str:
    """The path of a split: of a path itself, or of a file that was found later, whose version this checks."""
    if isinstance(split, str):
        return split
    path: str = split["path"]
    if "version" in split:
        Version(path, None).check(split["version"])
    return path


class NewFiles(Enumerator):
    """The enumerator of files that come to a place.

    Invariant D4: each file is given out once, over restarts, while its name is remembered.
    """

    def __init__(self, place: str, parallelism: int, position: Any = None, poll: float | None = None) -> None:
        self.place, self.most = place, AT_ONCE * parallelism
        self.seen = Seen() if position is None else msgspec.convert(position, Seen)
        known = np.frombuffer(self.seen.names, _NAME).tolist()
        self.names: dict[int, tuple[int, int]] = {name: (version, hour) for name, version, hour in known}
        """Hash of the name of a file -> hash of its version, and hour of its time."""
        self._packed = True
        """True if `seen.names` holds these."""
        self.local = protocol_of(place) is None
        self.poll = poll or (LOCAL_POLL if self.local else REMOTE_POLL)
        self.waiting: list[PlacedFile] = []
        """Files that were found and not given out, the next one last."""
        self._look: Future[list[PlacedFile]] | None = None
        self._looked_at = float("-inf")
        self._threads: ThreadPoolExecutor | None = None

    def discover(self, now: float) -> Sequence[dict[str, str]]:
        if not self.waiting and (self._look is not None or not self._looked_at <= now < self._looked_at + self.poll):
            self._find(now)
        given = []
        while self.waiting and self.seen.reading < self.most:
            one = self.waiting.pop()
            self._note(one)
            given.append({"path": one.path, "version": one.version})
        return given

    def _find(self, now: float) -> None:
        """Takes a list of the place; behind a URL it comes from a thread, since it may take long."""
        if self.local:
            found = list_files(self.place)
        else:
            if self._look is None:
                self._look = self._submit(list_files, self.place)
            if not self._look.done():
                return
            found, self._look = self._look.result(), None
        self._looked_at = now
        self._compare(found)

    def _submit(self, function: Callable[[str], list[PlacedFile]], place: str) -> Future[list[PlacedFile]]:
        self._threads = self._threads or ThreadPoolExecutor(1, "tailrace-list")
        return self._threads.submit(function, place)

    def _compare(self, found: list[PlacedFile]) -> None:
        """Notes the files that are new. Raises `ConfigError` for a changed file, and for new ones with an old time."""
        self._forget()
        first, old, new = self._first_hour(), Counter[int](), []
        for one in found:
            hour = int(one.changed_at // _HOUR)
            if hour < first:
                old[hour] += 1
                continue
            known = self.names.get(_hash(one.path))
            if known is None:
                new.append(one)
            elif known[0] != _short(one.version):
                raise ConfigError(
                    f"{one.path} was written anew since it was found: files that are followed do not change; remove it, and "
                    f"put what is new into a file of another name, which gets its name when it is whole"
                )
            elif known[1] != hour:
                self._remember(one)
        for hour, count in old.items():
            if count > self.seen.older.get(hour, 0):
                days = (self.seen.newest - hour * _HOUR) / 86_400
                raise ConfigError(
                    f"{self.place}: a file has appeared with a time of {days:.0f} days before the newest one: the "
                    f"names of files that old are not remembered, so nobody knows which it is; copy it, so that it gets a "
                    f"new time"
                )
        self.waiting = sorted(new, key=lambda one: (one.changed_at, one.path), reverse=True)

    def _first_hour(self) -> int:
        """The first hour whose names are remembered."""
        return -1 if self.local else int((self.seen.newest - KEPT) // _HOUR)

    def _note(self, one: PlacedFile) -> None:
        self._remember(one)
        self.seen.newest = max(self.seen.newest, one.changed_at)
        self.seen.reading += 1

    def _remember(self, one: PlacedFile) -> None:
        self.names[_hash(one.path)] = _short(one.version), int(one.changed_at // _HOUR)
        self._packed = False

    def _forget(self) -> None:
        """Keeps only the number of the files of hours that are long ago."""
        first = self._first_hour()
        for name, (_, hour) in list(self.names.items()) if first > 0 else ():
            if hour < first:
                del self.names[name]
                self.seen.older[hour] = self.seen.older.get(hour, 0) + 1
                self._packed = False

    def ended(self, split: Any) -> None:
        self.seen.reading -= 1

    def next_at(self, now: float) -> float:
        if self.waiting or self._look is not None:
            return now + 0.05
        return max(now, self._looked_at + self.poll)

    @property
    def position(self) -> Any:
        if not self._packed:
            rows = [(name, version, hour) for name, (version, hour) in self.names.items()]
            self.seen.names, self._packed = np.array(rows, _NAME).tobytes(), True
        return msgspec.to_builtins(self.seen, builtin_types=(bytes,))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _short(text: str) -> int:
    return xxhash.xxh32_intdigest(text.encode())
