"""Readers whose thread fetches ahead: a server may take its time, and the loop of a worker must not wait for it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

from tailrace.api.connectors import NOTHING_YET, AssignedSplit, Reader, SourceLag, SplitReader
from tailrace.connectors.postgres.server import passing_errors
from tailrace.log import log

WAIT = 0.002
"""Seconds that a read waits for its thread: a replay repeats reads at once, and gives up where they stay empty."""
PATIENCE = 60.0
"""Seconds for which a server may be away before a reader fails."""
FALLBACK = 1.0
"""Seconds until a reader without records is read again, if nothing wakes it."""
_END = object()


class Fetching(Reader):
    """A reader of what a generator yields in a thread of its own: lists of records, empty where there is nothing at the
    moment. The generator gets a function that waits for some seconds, less if the reader is closed meanwhile."""

    def __init__(self) -> None:
        self.wake: Callable[[], object] = lambda: None
        """A callback, in the thread: something has come."""
        self._ready: queue.Queue[Any] = queue.Queue(2)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._chunk: Any = ()
        self._taken = 0

    def chunks(self, wait: Callable[[float], object]) -> Generator[Any, None, None]:
        """The lists of records to read, each with `len`, from the position at which the reader was made."""
        raise NotImplementedError

    def take(self, chunk: Any, start: int, stop: int) -> Any:
        """The records of a part of a list, as `read` returns them. Moves the position behind them."""
        raise NotImplementedError

    def pass_by(self, chunk: Any) -> None:
        """Moves the position behind a list without records."""

    def beat(self) -> None:
        """Called about twice a second while the reader takes nothing."""

    def read(self, limit: int, now: float) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._fetch, name="postgres reader", daemon=True)
            self._thread.start()
        if self._taken == len(self._chunk):
            try:
                found = self._ready.get(timeout=WAIT)
            except queue.Empty:
                return NOTHING_YET
            if isinstance(found, BaseException):
                raise found
            if found is _END:
                self._ready.put(_END)
                return None
            self._chunk, self._taken = found, 0
            if not len(found):
                self.pass_by(found)
        start, self._taken = self._taken, min(len(self._chunk), self._taken + limit)
        return self.take(self._chunk, start, self._taken) if self._taken > start else NOTHING_YET

    def _fetch(self) -> None:
        made = self.chunks(self._stop.wait)
        try:
            for chunk in made:
                if not self._give(chunk):
                    break
            else:
                self._give(_END)
        except BaseException as error:
            self._give(error)
        finally:
            with contextlib.suppress(Exception):  # the connection that it closes may be lost
                made.close()

    def _give(self, found: Any) -> bool:
        """Hands something to the reader; False if that is closed."""
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(found, timeout=0.5)
                self.wake()
                return True
            self.beat()
        return False

    def close(self) -> None:
        self._stop.set()


class FetchingReader(SplitReader):
    """A reader of splits that have a `Fetching` each, made by `open_split(split, position)`, whose threads wake the task."""

    def __init__(self, open_split: Callable[[Any, Any], Fetching]) -> None:
        self._open = open_split
        self._readers: dict[int, Fetching] = {}
        self._paused: frozenset[int] = frozenset()

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        for number, split, position in splits:
            reader = self._readers[number] = self._open(split, position)
            reader.wake = lambda: self.wake()

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            self._readers.pop(number).close()

    def pause(self, splits: Collection[int]) -> None:
        self._paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        for number, reader in list(self._readers.items()):
            if number not in self._paused and limit > 0:
                found = reader.read(limit, now)
                limit -= len(found or ())
                yield number, found

    def position(self, split: int) -> Any:
        return self._readers[split].position

    def next_at(self, now: float) -> float:
        return now + FALLBACK

    def completed(self, positions: Mapping[int, Any]) -> None:
        for number, position in positions.items():
            if (reader := self._readers.get(number)) is not None:
                reader.completed(position)

    def lag(self, now: float) -> Mapping[int, SourceLag]:
        found = {number: reader.lag(now) for number, reader in self._readers.items()}
        return {number: lag for number, lag in found.items() if lag is not None}

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def with_patience(
    work: Callable[[], Generator[Any, None, None]], name: str, wait: Callable[[float], object]
) -> Generator[Any, None, None]:
    """The items that `work()` yields. It is called anew where the server was away, for `PATIENCE` seconds."""
    began, pause = None, 0.1
    while True:
        try:
            with contextlib.closing(work()) as made:
                for one in made:
                    began, pause = None, 0.1
                    yield one
            return
        except passing_errors() as error:
            now = time.monotonic()
            began = now if began is None else began
            if now - began > PATIENCE:
                raise
            log.warning("%s: the server is away, and is tried again: %s", name, " ".join(str(error).split()))
            if wait(pause):
                return
            pause = min(5.0, pause * 2)
