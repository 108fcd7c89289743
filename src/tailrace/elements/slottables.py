"""Tables of dense numbers (slots) for distinct keys, by arithmetic over arrays. A key keeps the slot that it got first.

The tables are open-addressed: a bucket holds a slot. A lookup goes from the bucket of the key's hash on until it finds the
key or an empty bucket. All lookups of one call go through their rounds together. The hash only gives the first bucket; the
keys themselves are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.int64]]
Slots = np.ndarray[Any, np.dtype[np.int64]]
_Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_FIRST = 1_024
_ROOM = 2
"""Minimum number of buckets for each slot."""
_EMPTY = -1
_A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(9)], np.uint64)
"""Number of bytes that are left of a text, at most eight -> mask of them in the eight bytes from their place on."""


def mix(h: _Hashes, words: Words) -> _Hashes:
    """The hashes with another word of each key mixed in."""
    found: _Hashes = (h ^ words.view(np.uint64)) * _A
    found ^= found >> np.uint64(32)
    found *= _B
    found ^= found >> np.uint64(29)
    return found


class SlotTable:
    """Base of the tables: it has the buckets. Subclasses keep the keys and compare them."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets = np.full(_ROOM * _FIRST, _EMPTY, np.int32)
        self._hashes = np.zeros(_FIRST, np.uint64)
        """Hashes of the keys, by slot."""

    def _equal(self, requested: Any, which: Slots, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each place in `which`: true if the requested key there is equal to the key in the slot of `slots`."""
        raise NotImplementedError

    def _add(self, requested: Any, which: Slots) -> None:
        """Keeps new keys, which get the next slots."""
        raise NotImplementedError

    def _find(self, requested: Any, hashes: _Hashes) -> Slots:
        """The slots of the requested keys. New keys get slots; a key may be requested twice."""
        self._make_room(len(hashes))
        everything = np.arange(len(hashes))
        slots = np.empty(len(hashes), np.int64)
        self._look(requested, hashes, everything, slots, False)
        wrong = ~self._equal(requested, everything, slots)
        if wrong.any():  # another key has this hash
            self._look(requested, hashes, everything[wrong], slots, True)
        return slots

    def _look(self, requested: Any, hashes: _Hashes, left: Slots, slots: Slots, strictly: bool) -> None:
        """Finds the slots of the keys at the places `left`: each gets the first slot on its way whose key has an equal hash;
        with `strictly`, whose key is equal."""
        buckets, end = self._buckets, len(self._buckets) - 1
        at, h = (hashes[left] & np.uint64(end)).astype(np.int64), hashes[left]
        while len(left):
            held: Any = buckets.take(at)
            empty = held < 0
            if empty.any():
                self._claim(requested, hashes, left[empty], at[empty])
                held = buckets.take(at)
            same = self._hashes.take(held) == h
            if strictly:
                same &= self._equal(requested, left, held)
            slots[left[same]] = held[same]
            other = np.flatnonzero(~same)
            left, h, at = left.take(other), h.take(other), at.take(other) + 1 & end

    def _claim(self, requested: Any, hashes: _Hashes, which: Slots, at: Slots) -> None:
        """Gives new keys slots in empty buckets. If several keys compete for a bucket, the last one gets it, and the others
        look on."""
        self._buckets[at] = np.arange(len(which))
        first = self._buckets[at] == np.arange(len(which))
        winners = which[first]
        stop = self.count + len(winners)
        self._buckets[at[first]] = np.arange(self.count, stop)
        self._hashes = grow(self._hashes, stop)
        self._hashes[self.count : stop] = hashes[winners]
        self._add(requested, winners)
        self.count = stop

    def _make_room(self, more: int) -> None:
        """Makes enough buckets for `more` further keys. It at least doubles their number at a time."""
        needed = _ROOM * (self.count + more)
        if needed <= len(self._buckets):
            return
        size = len(self._buckets)
        while size < needed:
            size *= 2
        self._buckets = buckets = np.full(size, _EMPTY, np.int32)
        at = (self._hashes[: self.count] & np.uint64(size - 1)).astype(np.int64)
        left = np.arange(self.count)
        while len(left):
            free = buckets[at] < 0
            buckets[at[free]] = left[free]
            placed = buckets[at] == left
            left, at = left[~placed], at[~placed] + 1 & size - 1


class WordTable(SlotTable):
    """A table of keys of `width` words each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words: list[Words] = [np.empty(_FIRST, np.int64) for _ in range(width)]
        """Words of all keys: an array by slot for each of the `width` words. The key of a slot never changes."""

    def slots(self, requested: list[Words]) -> Slots:
        """The slots of keys, given word by word. New keys get the next slots."""
        return self._find(requested, self.hashes(requested))

    def hashes(self, requested: list[Words]) -> _Hashes:
        """The hash of each key."""
        found = np.zeros(len(requested[0]), np.uint64)
        for words in requested:
            found = mix(found, words)
        return found

    def _equal(self, requested: list[Words], which: Slots, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        same: np.ndarray[Any, np.dtype[np.bool_]] = requested[0][which] == self.words[0][slots]
        for mine, words in zip(self.words[1:], requested[1:], strict=True):
            same &= words[which] == mine[slots]
        return same

    def _add(self, requested: list[Words], which: Slots) -> None:
        stop = self.count + len(which)
        for i, words in enumerate(requested):
            self.words[i] = grow(self.words[i], stop)
            self.words[i][self.count : stop] = words[which]


class Texts:
    """Texts as bytes, one after the other. A length of -1 means a null."""

    def __init__(self, data: np.ndarray[Any, np.dtype[np.uint8]], starts: Slots, lengths: Slots) -> None:
        """`data` must have at least eight bytes after the last text."""
        self.starts, self.lengths = starts, lengths
        self._eights: Any = np.ndarray((max(len(data) - 7, 0),), "<u8", data, strides=(1,))
        """Eight bytes from each place on, as a word."""

    def word(self, n: int, which: Slots) -> Words:
        """The n-th word of some texts; the bytes after the end of a text are zeros."""
        left = np.clip(self.lengths[which] - 8 * n, 0, 8)
        at = np.where(left > 0, self.starts[which] + 8 * n, 0)
        found: Words = (self._eights[at] & _MASKS[left]).view(np.int64)
        return found


class TextTable(SlotTable):
    """A table of texts, or bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.data = np.zeros(8 * _FIRST, np.uint8)
        """Bytes of all texts, in the order of their slots. Bytes of a slot never change."""
        self.starts = np.zeros(_FIRST, np.int64)
        """Slot -> index in `data` at which its text begins."""
        self._end = 0
        self.lengths = np.zeros(_FIRST, np.int64)

    def slots(self, requested: Texts) -> Slots:
        """The slots of texts. New texts get the next slots."""
        return self._find(requested, self.hashes(requested))

    def hashes(self, requested: Texts) -> _Hashes:
        """The hash of each text."""
        found = mix(np.zeros(len(requested.lengths), np.uint64), requested.lengths)
        which, n = np.flatnonzero(requested.lengths > 0), 0
        while len(which):
            found[which] = mix(found[which], requested.word(n, which))
            n += 1
            which = which[requested.lengths[which] > 8 * n]
        return found

    def texts(self) -> Texts:
        """The texts of all slots."""
        return Texts(self.data, self.starts[: self.count], self.lengths[: self.count])

    def _equal(self, requested: Texts, which: Slots, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        mine = self.texts()
        same: np.ndarray[Any, np.dtype[np.bool_]] = requested.lengths[which] == mine.lengths[slots]
        at, n = np.flatnonzero(same & (requested.lengths[which] > 0)), 0
        while len(at):
            good = requested.word(n, which[at]) == mine.word(n, slots[at])
            same[at[~good]] = False
            n += 1
            at = at[good]
            at = at[requested.lengths[which[at]] > 8 * n]
        return same

    def _add(self, requested: Texts, which: Slots) -> None:
        stop = self.count + len(which)
        lengths = requested.lengths[which]
        ends = self._end + np.cumsum(np.maximum(lengths, 0))
        starts, n = ends - np.maximum(lengths, 0), 0
        self.lengths, self.starts = grow(self.lengths, stop), grow(self.starts, stop)
        self.lengths[self.count : stop], self.starts[self.count : stop] = lengths, starts
        self._end = int(ends[-1]) if len(ends) else self._end
        self.data = grow(self.data, self._end + 8)
        at = np.flatnonzero(lengths > 0)
        while len(at):
            self._write(requested.word(n, which[at]), starts[at] + 8 * n, ends[at])
            n += 1
            at = at[lengths[at] > 8 * n]

    def _write(self, words: Words, starts: Slots, ends: Slots) -> None:
        """Writes up to eight bytes of each word to its place."""
        octets = words.astype("<i8").view(np.uint8).reshape(-1, 8)
        places = starts[:, None] + np.arange(8)
        inside = places < ends[:, None]
        self.data[places[inside]] = octets[inside]


def grow(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The array, or a longer array of at least `size` that begins with it; the rest are zeros."""
    if size <= len(array):
        return array
    longer = np.zeros(max(size, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


def places_by_slot(slots: Slots, within: np.ndarray[Any, Any] | None = None) -> Slots:
    """Places of slots in their order. Equal ones keep their sequence, or are in the order of `within`.

    numpy sorts numbers of 16 bits by counting, which takes a sixth of the time of comparing longer ones.
    """
    bits = max(1, int(slots.max(initial=0)).bit_length())
    words = [(slots >> shift).astype(np.uint16) for shift in range(0, bits, 16)]
    return np.lexsort(words if within is None else [within, *words])
