"""Records that several steps have read of their channels, as few batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tailrace.elements.batches import Batch, Rows, concat

Pieces = Sequence[int]
"""Reads of several steps, one after the other: the number of a channel, how many records of it, and again."""


def totals(pieces: Pieces) -> dict[int, int]:
    """Number of records that were read of each channel."""
    found = dict.fromkeys(pieces[::2], 0)
    for at in range(0, len(pieces), 2):
        found[pieces[at]] += pieces[at + 1]
    return found


def in_order(pieces: Pieces, read: Mapping[int, Sequence[Batch]], ports: Mapping[int, int]) -> list[tuple[int, Batch]]:
    """Records in the order in which they were read, each batch with the port that it came to. `read`: all that was read
    of each channel. Batches of columns stay as they were read: an operator may show how records are grouped in batches."""
    if len(set(ports.values())) == 1 and all(isinstance(part, Rows) for parts in read.values() for part in parts):
        return [(next(iter(ports.values())), _rows(pieces, {number: concat(parts) for number, parts in read.items()}))]
    return _piece_by_piece(pieces, read, ports)


def _rows(pieces: Pieces, read: Mapping[int, Batch]) -> Batch:
    """Records of all pieces as one batch. The cost of a piece counts: a step may have read a record or two."""
    if len(read) == 1:
        return next(iter(read.values()))
    whole = concat(list(read.values()))
    assert isinstance(whole, Rows)
    before = accumulate(map(len, read.values()), initial=0)
    next_of = dict(zip(read, before, strict=False))
    values, starts, records = list[Any](), list[int](), whole.values
    for at in range(0, len(pieces), 2):
        number = pieces[at]
        start = next_of[number]
        stop = next_of[number] = start + pieces[at + 1]
        values += records[start:stop]
        starts.append(start)
    if whole.times is None and whole.groups is None:
        return Rows(values)
    counts = np.array(pieces[1::2])
    where = np.repeat(np.array(starts) - np.cumsum(counts) + counts, counts) + np.arange(len(values))
    times = None if whole.times is None else whole.times[where]
    return Rows(values, times, None if whole.groups is None else whole.groups[where])


def _piece_by_piece(
    pieces: Pieces, read: Mapping[int, Sequence[Batch]], ports: Mapping[int, int]
) -> list[tuple[int, Batch]]:
    made: list[tuple[int, list[Batch]]] = []
    left = {number: _Parts(parts) for number, parts in read.items()}
    for at in range(0, len(pieces), 2):
        port, parts = ports[pieces[at]], left[pieces[at]].next(pieces[at + 1])
        one = concat(parts)
        if made and made[-1][0] == port and one.form == "rows" and made[-1][1][-1].form == "rows":
            made[-1][1].append(one)
        else:
            made.append((port, [one]))
    return [(port, concat(parts)) for port, parts in made]


class _Parts:
    """Batches of one channel, from which a number of records is taken at a time."""

    def __init__(self, parts: Sequence[Batch]) -> None:
        self._parts = list(reversed(parts))
        self._taken = 0

    def next(self, count: int) -> list[Batch]:
        found: list[Batch] = []
        while count:
            batch, start = self._parts[-1], self._taken
            stop = self._taken = min(len(batch), start + count)
            found.append(batch if (start, stop) == (0, len(batch)) else batch.slice(start, stop))
            count -= stop - start
            if stop == len(batch):
                self._parts.pop()
                self._taken = 0
        return found
