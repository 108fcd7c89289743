"""The times at which a source has its records. It is plain data and plain Python, for the source that gives the records
and for the interpreter that bounds event time."""

from __future__ import annotations

import itertools
from collections import Counter

from search.random_flows.description import Events

START = 1_700_000_000_000_000
"""Start of the clock of a simulation (int64 microseconds)."""
FLUSH = 100_000
"""Timestamp of the record that ends the records of an endless source."""
SAID = 1_000
"""Seconds before `FLUSH` at which an endless source has long given all its records, and to which event time is sure to
come."""


LISTED: Counter[int] = Counter()
"""Number of times that the splits of a source were listed in the current run, by the id of its first record."""


def at(events: Events, i: int) -> int:
    """The timestamp of record i, in seconds."""
    if i >= events.n:
        return FLUSH
    return max(0, i - (i * 7919 + 3) % (events.disorder + 1))


def is_ahead(events: Events, i: int) -> bool:
    """True if record i has a timestamp far ahead of the clock, and goes aside."""
    return events.ahead and i < events.n and i % 5 == 3


def stamp(events: Events, i: int) -> float:
    """The timestamp that record i comes with, in seconds."""
    return at(events, i) + (4e9 if is_ahead(events, i) else 0)


SPREAD = 16
"""Disorder of times that are assigned anew, in seconds: as many as there are such times."""


def anew(number: int) -> int:
    """The time, in seconds, that a record with this id receives where times are assigned anew."""
    return number * 5 % SPREAD


def fraction(number: int) -> float:
    """The part of a second for which a record with this id is held longer. It is no whole number of microseconds, and so
    small that no record gets into another second, however often it is held."""
    return number % 11 / 11_000


def disorder_inside(events: Events) -> int:
    """Disorder of the records of a source, in seconds, where several of its splits have become one stream."""
    return events.disorder if events.splits == 1 else events.n + events.disorder


def given_at(events: Events, i: int) -> int:
    """The time at which record i can be read, in microseconds of the clock."""
    silent = events.silence if i * 2 >= events.n else 0
    return START + i * events.pace + silent


def numbers(events: Events, split: int) -> list[int]:
    """The records of a split, in order; for an endless source, the last one is the record that ends them."""
    found = list(range(split, events.n, events.splits))
    return [*found, events.n + split] if events.endless else found


def longest_pause(events: Events) -> int:
    """The longest time, in microseconds of the clock, in which a split has nothing new and is still to give something."""
    pauses = [0]
    for split in range(events.splits):
        moments = [START, *(given_at(events, i) for i in numbers(events, split))]
        pauses += [after - before for before, after in itertools.pairwise(moments)]
    return max(pauses)


def reached_at(events: Events, time: float) -> int:
    """The first moment at which the event time of this source can have come to `time` (seconds)."""
    moments = []
    for split in range(events.splits):
        mine = numbers(events, split)
        if not mine:
            continue
        enough = [given_at(events, i) for i in mine if at(events, i) - events.disorder > time]
        if not events.endless:  # a split that has ended holds no event time back
            enough.append(given_at(events, mine[-1]))
        moments.append(min(enough))
    return max(moments, default=START)


class Draws:
    """The numbers that functions draw outside of all that a replay gives them: it draws others. In a run that is compared
    with its own replay all numbers are equal."""

    def __init__(self) -> None:
        self.begin(alike=False)

    def begin(self, alike: bool) -> None:
        """Begins a run."""
        self._alike, self._count = alike, 0

    def draw(self) -> int:
        """The next number."""
        self._count += not self._alike
        return self._count


DRAWS = Draws()


def stays(ident: int) -> bool:
    """True if a record with this id is in the table at the end."""
    return ident % 3 != 0 or ident // 6 % 2 == 0


def worth_of_pair(a: int | None, b: int | None) -> int:
    """The worth of a result of a join by the ids of its records."""
    return (0 if a is None else 7 * a + 3) + (0 if b is None else 11 * b + 5)
