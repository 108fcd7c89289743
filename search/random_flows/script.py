"""When a source has which record: plain data and plain Python, for the source that gives them and for the interpreter
that says when event time may have come how far."""

from __future__ import annotations

import itertools
from collections import Counter

from search.random_flows.description import Events

START = 1_700_000_000_000_000
"""Where the clock of a simulation begins (int64 microseconds)."""
FLUSH = 100_000
"""The timestamp of the record that ends what an endless source has to say."""
SAID = 1_000
"""Seconds before `FLUSH` at which all that a source has to say is long over, and to which event time is sure to come."""


LISTED: Counter[int] = Counter()
"""How often the splits of a source were listed, by the id of its first record, in the run at hand."""


def at(events: Events, i: int) -> int:
    """The timestamp of record i, in seconds."""
    if i >= events.n:
        return FLUSH
    return max(0, i - (i * 7919 + 3) % (events.disorder + 1))


SPREAD = 16
"""By how many seconds times that are assigned anew are out of order: as many as there are."""


def anew(number: int) -> int:
    """The time, in seconds, that a record with this id is given where times are assigned anew."""
    return number * 5 % SPREAD


def fraction(number: int) -> float:
    """By what part of a second a record with this id is held for longer: no whole number of microseconds, and so little that
    no record gets into another second, however often it is held."""
    return number % 11 / 11_000


def disorder_inside(events: Events) -> int:
    """By how many seconds the records of a source are out of order where several of its splits have become one stream."""
    return events.disorder if events.splits == 1 else events.n + events.disorder


def given(events: Events, i: int) -> int:
    """When record i can be read, in microseconds of the clock."""
    silent = events.silence if i * 2 >= events.n else 0
    return START + i * events.pace + silent


def numbers(events: Events, split: int) -> list[int]:
    """The records of a split, in order; the last one of an endless source is no record, but the end of what it says."""
    found = list(range(split, events.n, events.splits))
    return [*found, events.n + split] if events.endless else found


def longest_pause(events: Events) -> int:
    """The longest time in which a split has nothing new and is still to give something, in microseconds of the clock."""
    pauses = [0]
    for split in range(events.splits):
        moments = [START, *(given(events, i) for i in numbers(events, split))]
        pauses += [after - before for before, after in itertools.pairwise(moments)]
    return max(pauses)


def reached(events: Events, time: float) -> int:
    """The first moment at which the event time of this source can have come to `time` (seconds)."""
    moments = []
    for split in range(events.splits):
        mine = numbers(events, split)
        if not mine:
            continue
        enough = [given(events, i) for i in mine if at(events, i) - events.disorder > time]
        if not events.endless:  # where it has ended it holds nobody back
            enough.append(given(events, mine[-1]))
        moments.append(min(enough))
    return max(moments, default=START)
