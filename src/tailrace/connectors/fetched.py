"""Readers of servers whose clients wait: a thread for each split fetches entries ahead, and the task takes what is there."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.api.connectors import AssignedSplit, SourceLag, SplitReader
from tailrace.errors import error_text

AHEAD = 5_000
"""Number of entries that wait to be read, at which a thread fetches no more."""
FULL_PAUSE = 0.005
PATIENCE = 60.0
"""Seconds for which a reader waits for a server that is away, before it fails."""
AWAY_PAUSE = 0.5
"""Seconds between two tries to reach a server that is away."""
FALLBACK = 1.0
"""Seconds until a reader without records is read again, if nothing wakes it."""


class LostEntries(LookupError):
    """The error for entries of a server that are gone and were not read."""


class FetchedEntry(NamedTuple):
    """An entry of a split."""

    order: Any
    """The place of the entry in its split, which can be compared with others."""
    position: Any
    """The position of a reader that has read the entry."""
    content: Any
    """What records are made of; None: it is no record."""


class Fetched(NamedTuple):
    """The result of one request for entries."""

    entries: Sequence[FetchedEntry]
    passed: FetchedEntry | None = None
    """The place up to which there is nothing more at the moment, without a content; None: not known."""
    pending: int | None = None
    """Number of entries behind these; None: not known."""


class Fetcher:
    """A client that fetches the entries of one split, in a thread of its own."""

    def fetch(self) -> Fetched:
        """The next entries. Waits for them, for half a second or so. Raises `LostEntries`, or an error of the client if the
        server is away."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connection, also after an error. A later `fetch` opens a new one, and goes on from where it was."""
        raise NotImplementedError


class FetchedSplit:
    """The entries of one split, which a thread fetches ahead of the reader."""

    def __init__(
        self, fetcher: Fetcher, position: Any, until: Any, parse: Callable[[list[Any]], Any], wake: Callable[[], None]
    ) -> None:
        """`until` is the last place to read; None: there is no end. `parse` makes records of contents: a list, or a batch in
        columns."""
        self.position = position
        self.pending: int | None = None
        """Number of entries that were not fetched, as of the newest fetch; None: not known."""
        self._fetcher, self._until, self._parse, self._wake = fetcher, until, parse, wake
        self._entries: deque[FetchedEntry] = deque()
        self._passed: FetchedEntry | None = None
        self._error: Exception | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="tailrace-fetch", daemon=True).start()

    def read(self, limit: int) -> Any:
        """At most `limit` records; None behind the last one."""
        passed, until = self._passed, self._until  # before the entries: it is set behind them
        taken: list[FetchedEntry] = []
        while self._entries and len(taken) < limit and (until is None or self._entries[0].order <= until):
            taken.append(self._entries.popleft())
        if taken:
            contents = [one.content for one in taken if one.content is not None]
            records = self._parse(contents) if contents else []
            self.position = taken[-1].position
            return records
        if until is not None and (self._entries or (passed is not None and passed.order >= until)):
            return None
        if self._error is not None:
            raise self._error
        if passed is not None and not self._entries:
            self.position = passed.position
        return []

    def close(self) -> None:
        """Ends the thread, as soon as its request is answered."""
        self._closed.set()

    def _run(self) -> None:
        away_since: float | None = None
        while not self._closed.is_set():
            if len(self._entries) >= AHEAD:
                self._closed.wait(FULL_PAUSE)
                continue
            try:
                self._add(self._fetcher.fetch())
                away_since = None
            except LostEntries as error:
                self._fail(error)
                break
            except Exception as error:
                self._fetcher.close()
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since > PATIENCE:
                    self._fail(ConnectionError(f"the server is away: {error_text(error)}"))
                    break
                self._closed.wait(AWAY_PAUSE)
        self._fetcher.close()

    def _add(self, found: Fetched) -> None:
        self.pending = found.pending
        if found.entries:
            self._entries.extend(found.entries)
            self._passed = None
        if found.passed is not None:
            self._passed = found.passed
        if found.entries or found.passed is not None:
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()


def decode_named(contents: list[Any], make: Callable[[list[Any]], Any], name_of: Callable[[Any], str]) -> Any:
    """The records that `make` makes of contents. Raises `ValueError` that names the first content of which it cannot."""
    try:
        return make(contents)
    except Exception:
        for one in contents:
            try:
                make([one])
            except Exception as error:
                raise ValueError(
                    f"{name_of(one)} cannot be decoded ({type(error).__name__}: {error}); from_source(..., "
                    f"on_error=tr.Aside(...)) sets such records aside, in rows"
                ) from error
        raise


class FetchReader(SplitReader):
    """A reader of all splits of a subtask. `open_split(split, position, wake)` makes each."""

    def __init__(self, open_split: Callable[[Any, Any, Callable[[], None]], FetchedSplit]) -> None:
        self._open = open_split
        self._splits: dict[int, FetchedSplit] = {}
        self._paused: frozenset[int] = frozenset()

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        for number, split, position in splits:
            self._splits[number] = self._open(split, position, lambda: self.wake())

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            self._splits.pop(number).close()

    def pause(self, splits: Collection[int]) -> None:
        self._paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        for number, split in list(self._splits.items()):
            if number not in self._paused and limit > 0:
                records = split.read(limit)
                limit -= 0 if records is None else len(records)
                yield number, records

    def position(self, split: int) -> Any:
        return self._splits[split].position

    def next_at(self, now: float) -> float:
        return now + FALLBACK

    def lag(self, now: float) -> Mapping[int, SourceLag]:
        return {number: SourceLag(records=split.pending) for number, split in self._splits.items()}

    def close(self) -> None:
        for split in self._splits.values():
            split.close()
