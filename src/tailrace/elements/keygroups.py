"""Key groups: the group of a key, the groups of many keys at once, and their owners among subtasks."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import is_
from typing import Any
from uuid import UUID

import numpy as np
from xxhash import xxh64_intdigest

from tailrace.elements.batches import Groups
from tailrace.elements.intkeys import hashes
from tailrace.elements.keyclasses import RecordClass, key_class
from tailrace.elements.keys import canonical_bytes, key_hash
from tailrace.elements.plainkeys import NEVER, with_parts
from tailrace.elements.timestamps import steady

MAX_GROUPS = 1 << 16
"""The largest `max_parallelism`: a batch holds its key groups as uint16."""


def key_group(key: object, max_parallelism: int) -> int:
    """The key group of a key, below `max_parallelism`."""
    return key_hash(key) % max_parallelism


def owner(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key group. Neighbouring groups have one owner, or neighbouring owners."""
    return group * parallelism // max_parallelism


def group_range(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups that a subtask owns: exactly the groups whose `owner` it is. Raises `ValueError` for a subtask that
    does not exist."""
    _check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"there is no subtask {subtask} at parallelism {parallelism}")
    # owner(g) >= s exactly if g * p >= s * max, so the first group of s is s * max / p rounded up.
    start = -(-subtask * max_parallelism // parallelism)
    stop = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(start, stop)


def owners(parallelism: int, max_parallelism: int) -> Groups:
    """The owner of every key group, to be indexed with an array of groups."""
    _check_parallelism(parallelism, max_parallelism)
    # uint16 like the groups: numpy sorts 16-bit integers by radix, and records are sorted by owner.
    return (np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism).astype(np.uint16)


def _check_parallelism(parallelism: int, max_parallelism: int) -> None:
    if not 1 <= parallelism <= max_parallelism <= MAX_GROUPS:
        raise ValueError(
            f"need 1 <= parallelism <= max_parallelism <= {MAX_GROUPS}, have {parallelism} and {max_parallelism}"
        )


# Proof that a dictionary may replace canonical_bytes. A key q finds the entry of a stored key k if both have one hash and
# q == k, or if they are one object. Then their groups are equal, because their canonical bytes are:
#
# - None, str, bytes, date, timedelta, UUID are equal only to their own kind and by value. A subclass with another ==
#   is not supported, but for the times of pandas: with whole microseconds they equal, and hash as, the standard ones.
# - int, bool, float, Decimal are compared exactly, as rational numbers, across types. So is the canonical form.
# - datetime: naive never equals aware. With one tzinfo the wall clocks are compared and fold ignored; with two the
#   instants, and a datetime whose offset depends on fold (in a repeated or skipped hour) equals nothing. Such a datetime
#   is never stored, and it equals none that is: within its zone they have other wall clocks.
# - NaN equals nothing, so it is never stored: each new NaN object would only take up room.
# - tuples are equal item by item, or by identity of an item: so are their bytes.
# - An object of a frozen dataclass equals only objects of exactly its class with equal fields, a member of a plain Enum
#   only itself. A stored object has fields that may be stored.
#
# numpy is the exception: its numbers round the other side, or themselves, before they compare, so that
# np.int64(-2**61 - 1) == -2.0**61. Nothing of numpy is stored, only plain twins; so let q be of numpy and k plain, with
# equal hashes, and q == k after rounding but not exactly. A hash is the number modulo P = 2**61 - 1 with its sign,
# except that -1 becomes -2 and the infinities have 314159 and -314159. These aside, q - k is a multiple of P, and
# not 0. Yet below 2**64 rounding to 24 bits or more moves an integer by less than 2**40 < P (as does rounding to 11
# bits, or it overflows to infinity), and rounding a float moves it by at most itself, that is by 2**53 < P units of its
# last place, which is a power of two and so prime to P. Hence a number is stored only below 2**64 and outside the
# special hashes; -2 to 2 are exact in every type of numpy.
# A value that is no key but equals one (Fraction(1, 2), memoryview(b"a")) may get that key's group from the cache
# instead of an error. A look at the type of every key would cost a third of the time, and change only errors.

_MISTAKABLE_HASHES = frozenset((hash(-2), hash(float("inf")), hash(float("-inf"))))
_STORED_AS_THEY_ARE = frozenset((str, bytes, type(None), bool, date, timedelta, UUID))

_LOOKUP_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError)
# Errors that the hash or the == of a key may raise: a list, a generic timedelta64, a signalling NaN, an integer of
# numpy against a Decimal, a dataclass with a field that was never set.


class KeyGroups(dict[object, int]):
    """Key to key group, for one `max_parallelism`: a bounded cache in front of `key_group`.

    It is a dictionary so that a hit costs no Python code. Use `groups_of` and `group_of`; `self[key]` raises a bare
    `TypeError` for a key without a hash.
    """

    __slots__ = ("_dense", "_newest", "limit", "max_parallelism")

    def __init__(self, max_parallelism: int, limit: int = 1 << 18) -> None:
        _check_parallelism(1, max_parallelism)
        if limit < 1:
            raise ValueError(f"the cache needs room for at least one key, not {limit}")
        super().__init__()
        self.max_parallelism = max_parallelism
        self.limit = limit
        self._dense = np.empty(0, np.uint16)
        """Key groups of 0, 1, 2, …, up to about the largest integer that was looked up."""
        self._newest: tuple[object, bytes] = None, canonical_bytes(None)
        """The key that was looked up last of those that are not in the cache, and its canonical bytes."""

    def __missing__(self, key: object) -> int:
        canonical = canonical_bytes(key)
        self._newest = key, canonical
        group = xxh64_intdigest(canonical) % self.max_parallelism
        stored = _stored_form(key)
        if stored is not NEVER:
            if len(self) >= self.limit:
                # To drop all is cheap per key, and the keys in use come back at once.
                self.clear()
            self[stored] = group
        return group

    def group_of(self, key: object) -> int:
        """The group of one key. Raises `UnsupportedKey`."""
        try:  # suppress() would cost several times the lookup
            return self[key]
        except _LOOKUP_ERRORS:
            pass
        return key_group(key, self.max_parallelism)

    def canonical_of(self, key: object) -> bytes:
        """The canonical bytes of a key, which are there already where its group was just looked up for the first time."""
        newest, canonical = self._newest
        return canonical if newest is key else canonical_bytes(key)

    def groups_of(self, keys: Iterable[object]) -> Groups:
        """The groups of many keys, in order (not to be written to). Raises `UnsupportedKey`."""
        listed = keys if isinstance(keys, list) else list(keys)
        if len(listed) >= _MANY and self._may_be_quick(listed[0]) and set(map(type, listed)) == _INTEGERS:
            # For 200,000 different keys, lookups take several times as long as this; for a hundred, just as long.
            with suppress(struct.error):  # beyond 64 bits
                numbers = np.frombuffer(struct.pack(f"={len(listed)}q", *listed), np.int64)
                if len(self) > _CROWD or (numbers.min() >= 0 and numbers.max() < _DENSE):
                    return self.groups_of_integers(numbers)
        return self._looked_up(listed)

    def _may_be_quick(self, first: object) -> bool:
        """True if an array may be faster than single lookups for integers like this one."""
        return type(first) is int and (len(self) > _CROWD or 0 <= first < _DENSE)

    def _looked_up(self, listed: list[object]) -> Groups:
        layout = f"={len(listed)}H"
        # Over lists of 4,096 keys pack() beat np.fromiter, np.array and array, by up to a fifth.
        with suppress(*_LOOKUP_ERRORS):
            return np.frombuffer(struct.pack(layout, *map(self.__getitem__, listed)), np.uint16)
        return np.frombuffer(struct.pack(layout, *map(self.group_of, listed)), np.uint16)

    def groups_of_integers(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Groups:
        """The groups of many integers. The groups of small integers, which are most keys, come from a table."""
        if not len(numbers):
            return np.empty(0, np.uint16)
        low, high = int(numbers.min()), int(numbers.max())
        if low == _LOWEST:
            return self._looked_up(numbers.tolist())
        if low >= 0 and len(self._dense) <= high < _DENSE:
            known = len(self._dense)
            fresh = np.arange(known, min(known + max(_GROWTH // 8, known), known + _GROWTH), dtype=np.int64)
            self._dense = np.concatenate([self._dense, self._groups_of(fresh)])
        groups: Groups = self._dense[numbers] if low >= 0 and high < len(self._dense) else self._groups_of(numbers)
        return groups

    def _groups_of(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Groups:
        return (hashes(numbers) % np.uint64(self.max_parallelism)).astype(np.uint16)


_DENSE = 1 << 20
"""Bound of the integers whose groups are in a table, with two bytes each."""
_GROWTH = 1 << 16
"""Maximum number of integers that are added to the table at once: a step must stay short."""
_LOWEST = -(1 << 63)
_MANY = 512
"""Number of integers from which on they may go through an array instead of the dictionary."""
_CROWD = 1 << 15
"""Number of keys in the cache above which an array is faster: lookups in a large dictionary miss the processor's caches."""
_INTEGERS = {int}


def _stored_form(key: object) -> object:
    """The plain twin of a supported key that the cache may store, or `NEVER`."""
    if type(key) is int:
        return _unless_mistakable(key)
    if type(key) in _STORED_AS_THEY_ARE:
        return key
    if isinstance(key, datetime):
        return key if steady(key) is key else NEVER
    if isinstance(key, tuple):
        items = []
        for item in tuple.__iter__(key):
            items.append(_stored_form(item))
            if items[-1] is NEVER:
                return NEVER
        # The tuple itself if possible: a lookup compares by identity first.
        return key if type(key) is tuple and all(map(is_, items, key)) else tuple(items)
    known = key_class(type(key))
    if isinstance(known, RecordClass):
        return with_parts(known, key, _stored_form)
    if isinstance(key, np.generic) and not isinstance(key, str | bytes):
        key = key.item()
    if isinstance(key, int):
        return _unless_mistakable(int.__pos__(key))
    if isinstance(key, float):
        return _unless_mistakable(float.__pos__(key))
    if isinstance(key, Decimal):
        if not Decimal.is_finite(key):
            return NEVER
        numerator, denominator = Decimal.as_integer_ratio(key)
        # Integers of numpy cannot be compared with a Decimal, so the cache holds an int if the number is whole.
        return _unless_mistakable(numerator if denominator == 1 else key)
    return key


def storable(number: int | float | Decimal) -> bool:
    """True if a dictionary that holds this number finds it only by equal numbers, also in lookups with numbers of numpy."""
    return number != number or _unless_mistakable(number) is not NEVER


def _unless_mistakable(number: int | float | Decimal) -> object:
    """The number, or `NEVER` if a different number of numpy might be taken for it, or if it is a NaN."""
    if -2 <= number <= 2:
        return number
    return number if -(1 << 64) < number < 1 << 64 and hash(number) not in _MISTAKABLE_HASHES else NEVER
