"""The order in which results of asynchronous calls go on, and in which calls begin."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from tailrace.task.operators.calls.pending import Pending


class ResultOrder(Protocol):
    """The order in which results go on."""

    def add(self, numbers: Iterable[int], mark: int) -> None:
        """Adds records that have come, in front of which event time was `mark`."""

    def ready(self, answered: Collection[int], news: Iterable[int]) -> list[int]:
        """Takes the records whose results go on, now that also `news` are answered."""

    @property
    def mark(self) -> int | None:
        """Event time that may go on: no record behind it is left. None if there are no records."""


class OfInput:
    """Results in the order in which their records came."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, int]] = deque()
        """Numbers of records, each with its mark."""

    def add(self, numbers: Iterable[int], mark: int) -> None:
        self._queue.extend((number, mark) for number in numbers)

    def ready(self, answered: Collection[int], news: Iterable[int]) -> list[int]:
        queue, found = self._queue, []
        while queue and queue[0][0] in answered:
            found.append(queue.popleft()[0])
        return found

    @property
    def mark(self) -> int | None:
        return self._queue[0][1] if self._queue else None


class UpToWatermarks:
    """Results in any order, but none goes past event time: records that came behind a watermark go on when all in front of
    it have."""

    def __init__(self) -> None:
        self._segments: deque[tuple[int, dict[int, None]]] = deque()
        """Records between two watermarks, behind their mark."""

    def add(self, numbers: Iterable[int], mark: int) -> None:
        segments = self._segments
        if not segments or segments[-1][0] != mark:
            segments.append((mark, {}))
        segments[-1][1].update(dict.fromkeys(numbers))

    def ready(self, answered: Collection[int], news: Iterable[int]) -> list[int]:
        segments, found = self._segments, list[int]()
        while segments:
            first = segments[0][1]
            free = [number for number in (first if found else news) if number in first and number in answered]
            for number in free:
                del first[number]
            found += free
            if first:
                break
            segments.popleft()
        return found

    @property
    def mark(self) -> int | None:
        return self._segments[0][0] if self._segments else None


class KeysInTurn:
    """Calls that may begin where the calls of a key are made one after the other."""

    def __init__(self) -> None:
        self._behind: dict[Any, deque[int]] = {}
        """Records that wait for a call of their key, for each key that has one."""

    def add(self, numbers: Iterable[int], pending: Mapping[int, Pending]) -> list[int]:
        """Adds records that have come. Returns those whose calls may begin."""
        free = []
        for number in numbers:
            waiting = self._behind.get(key := pending[number].key)
            if waiting is None:
                self._behind[key] = deque()
                free.append(number)
            else:
                waiting.append(number)
        return free

    def note_answers(self, numbers: Iterable[int], pending: Mapping[int, Pending]) -> list[int]:
        """Notes the answers of these records. Returns the records whose calls may begin now."""
        free = []
        for number in numbers:
            waiting = self._behind[key := pending[number].key]
            if waiting:
                free.append(waiting.popleft())
            else:
                del self._behind[key]
        return free
