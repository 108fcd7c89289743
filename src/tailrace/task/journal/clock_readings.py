"""Readings of user code: what it has got of the clocks and of the random bytes of its process, past its context. They are
answers of the world outside (`task.journal.outside_answers`): a recorder keeps them, and a replay gives them again.

User code may read a clock for each record. So all readings of an event are one answer: of a clock the differences between
its readings, and of random bytes the seed that all of them are made from.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import sub

import msgspec

from tailrace.errors import InternalError
from tailrace.task.contract.clock_access import MONOTONIC, OPENING, READING, Book, Fresh, Read

_SEED = 32
_ANOTHER_MACHINE = 1_000_000_000
"""Nanoseconds by which monotonic clocks of one machine never differ."""


class Readings(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An answer: all readings of an event in one place."""

    clocks: list[list[int]] = []
    """Readings of each clock in nanoseconds: the first one, and how much each was more than the one before."""
    seed: bytes = b""
    """Seed of the random bytes; empty if there were none."""
    draws: int = 0
    """Number of requests for random bytes."""
    values: list[bytes] = []
    """Values that are made of both in a way of their own, such as a `uuid1`."""
    attempt: int | None = None
    """The attempt that user code has read in its context; None if it has not."""
    lead: int = 0
    """Nanoseconds by which the clock of the day was ahead of the monotonic one, where that was read."""
    place: str = ""
    """Whose readings they are: empty for those of a step; `READING` for those of a reader; for those of `open` the library
    whose code read them, and empty for the user's own. Only where it is empty has their number to be the same again."""


def _place(book: Book) -> str:
    return book.caller if book.phase == OPENING else book.phase


def _stream(seed: bytes, number: int, count: int) -> bytes:
    """Random bytes of the request of this number."""
    return hashlib.shake_256(seed + number.to_bytes(8, "little")).digest(count)


class _Page:
    """The readings of one place, while they are made."""

    __slots__ = ("clocks", "draws", "lead", "read_attempt", "seed", "values")

    def __init__(self) -> None:
        self.clocks: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.seed, self.draws, self.lead = b"", 0, 0
        self.values: list[bytes] = []
        self.read_attempt: int | None = None

    @property
    def used(self) -> bool:
        """True if there is any reading."""
        return any(self.clocks) or self.draws > 0 or bool(self.values) or self.read_attempt is not None

    def answer(self, place: str) -> Readings:
        steps = [[*found[:1], *map(sub, found[1:], found)] for found in self.clocks]
        return Readings(steps, self.seed, self.draws, self.values, self.read_attempt, self.lead, place)


class LiveReadings:
    """The readings of user code that lives, as they are made."""

    def __init__(self) -> None:
        self.phase = self.caller = ""
        self._step = _Page()
        self._pages: dict[str, _Page] = {}
        """Pages of other places than the step."""
        self._ahead = 0
        """Nanoseconds that are added to the monotonic clock."""
        self._goes_on_from: tuple[int, int] | None = None

    def take(self) -> list[Readings]:
        """The readings since the last call."""
        found = []
        if self._step.used:
            found.append(self._step.answer(""))
            self._step = _Page()
        if self._pages:
            pages, self._pages = self._pages, {}
            found += [page.answer(place) for place, page in pages.items()]
        return found

    def go_on_from(self, last: tuple[int, int] | None) -> None:
        """Goes on behind a replay. `last`: the last monotonic reading that it has given, with its lead. Another machine
        counts from another moment, and user code may have kept a reading: so the clock goes on from there."""
        self._goes_on_from = last or self._goes_on_from

    def _page(self) -> _Page:
        if not (self.phase and (place := _place(self))):
            return self._step
        page = self._pages.get(place)
        if page is None:
            page = self._pages[place] = _Page()
        return page

    def clock(self, which: int, read: Read) -> int:
        value = read()
        (self._page() if self.phase else self._step).clocks[which].append(value)
        return value

    def monotonic(self, read: Read, wall: Read) -> int:
        value, page = read() + self._ahead, self._page()
        if self._goes_on_from is not None:
            (last, lead), self._goes_on_from = self._goes_on_from, None
            self._ahead = wall() - value - lead
            if abs(self._ahead) < _ANOTHER_MACHINE:
                self._ahead = 0
            self._ahead = max(self._ahead, last - value)
            value += self._ahead
        if not page.lead:
            page.lead = wall() - value
        page.clocks[MONOTONIC].append(value)
        return value

    def draw(self, count: int, fresh: Fresh) -> bytes:
        page = self._page()
        if not page.seed:
            page.seed = fresh(_SEED)
        page.draws += 1
        return _stream(page.seed, page.draws, count)

    def value(self, make: Callable[[], bytes]) -> bytes:
        made = make()
        self._page().values.append(made)
        return made

    def attempt(self, own: int) -> int:
        self._page().read_attempt = own
        return own


class _GivenPage:
    """The readings of one place, while they are given again."""

    __slots__ = ("clocks", "draws", "lead", "left", "read_attempt", "seed", "seeds", "strict", "values")

    def __init__(self, place: str) -> None:
        self.strict = not place
        self.clocks: tuple[deque[int], deque[int], deque[int]] = (deque(), deque(), deque())
        self.seeds = deque[tuple[bytes, int]]()
        """Seeds of the events that are still to come, each with the number of its draws."""
        self.seed, self.draws, self.left, self.lead = b"", 0, 0, 0
        self.values = deque[bytes]()
        self.read_attempt: int | None = None

    def add(self, answer: Readings) -> None:
        """Adds the readings of an event, behind those that are there."""
        for clock, steps in zip(self.clocks, answer.clocks, strict=False):
            clock.extend(accumulate(steps))
        if answer.draws:
            self.seeds.append((answer.seed, answer.draws))
        self.values.extend(answer.values)
        self.read_attempt, self.lead = answer.attempt, answer.lead or self.lead

    @property
    def remaining(self) -> int:
        drawn = self.left + sum(draws for _, draws in self.seeds)
        return sum(map(len, self.clocks)) + drawn + len(self.values)

    def draw(self, count: int, fresh: Fresh) -> bytes | None:
        """Random bytes; None if there were none."""
        if not self.left and self.seeds:
            (self.seed, self.left), self.draws = self.seeds.popleft(), 0
        if not self.left:
            if self.strict:
                return None
            self.seed = self.seed or fresh(_SEED)
        self.left = max(0, self.left - 1)
        self.draws += 1
        return _stream(self.seed, self.draws, count)


class GivenReadings:
    """The readings of user code that does once more what it did, event by event.

    Invariant Y13: user code whose step is replayed gets the clocks, random bytes and attempt that it got first, in their
    order; in a step it reads them as often.
    """

    def __init__(self) -> None:
        self.phase = self.caller = ""
        self.last: tuple[int, int] | None = None
        """The last monotonic reading, with its lead; None if there was none."""
        self.lacked = ""
        """A reading that the event lacked, as a text. User code may have caught the error."""
        self._pages: dict[str, _GivenPage] = {}

    def give(self, answers: Iterable[Readings]) -> None:
        """Sets the readings of the event that follows, or of several that are done as one."""
        self.lacked = ""
        self._pages = {}
        for answer in answers:
            self._page_of(answer.place).add(answer)

    @property
    def remaining(self) -> int:
        """Number of readings of the event that are still to come."""
        own = self._pages.get("")
        return 0 if own is None else own.remaining

    def _page(self) -> _GivenPage:
        return self._page_of(_place(self))

    def _page_of(self, place: str) -> _GivenPage:
        page = self._pages.get(place)
        if page is None:
            page = self._pages[place] = _GivenPage(place)
        return page

    def _lacks(self, what: str) -> InternalError:
        self.lacked = f"K3: user code {what}, which it had not done before"
        return InternalError(self.lacked, ())

    def clock(self, which: int, read: Read) -> int:
        page = self._page()
        if page.clocks[which]:
            return page.clocks[which].popleft()
        if page.strict:
            raise self._lacks("reads a clock")
        return read()

    def monotonic(self, read: Read, wall: Read) -> int:
        page = self._page()
        if not page.clocks[MONOTONIC]:
            return self.clock(MONOTONIC, read)
        value = page.clocks[MONOTONIC].popleft()
        self.last = value if self.last is None else max(value, self.last[0]), page.lead
        return value

    def draw(self, count: int, fresh: Fresh) -> bytes:
        drawn = self._page().draw(count, fresh)
        if drawn is None:
            raise self._lacks("takes random bytes")
        return drawn

    def value(self, make: Callable[[], bytes]) -> bytes:
        page = self._page()
        if page.values:
            return page.values.popleft()
        if page.strict:
            raise self._lacks("makes a UUID of a clock")
        return make()

    def attempt(self, own: int) -> int:
        page = self._page()
        if page.read_attempt is None and page.strict:
            raise self._lacks("reads ctx.attempt")
        return own if page.read_attempt is None else page.read_attempt


def may_be_merged(answers: Sequence[object]) -> bool:
    """True if all these answers are readings that user code may get one after the other, whatever event it reads them
    in."""
    return all(isinstance(one, Readings) and not one.place and one.attempt is None for one in answers)


def are_all_of_a_reader(answers: Sequence[object]) -> bool:
    """True if all these answers are readings of a reader."""
    return all(isinstance(one, Readings) and one.place == READING for one in answers)
