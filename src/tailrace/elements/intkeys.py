"""The key hashes of whole columns of integers, by arithmetic over arrays. They are equal to the hashes of `elements.keys`.

The canonical bytes of an integer are `i` and its two's complement, big-endian, in `bit_length // 8 + 1` bytes. With up to 8
of these this is one or two words, and XXH64 of so short a text is some twenty operations on words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_TAG = np.uint64(ord("i"))
_LIMITS = np.array([1 << (8 * size - 1) for size in range(1, 9)], np.uint64)
"""Absolute values from which on an integer needs one byte more."""


def hashes(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Words:
    """The XXH64 (seed 0) of the canonical bytes of each number. All numbers must be above -2**63."""
    sizes = np.searchsorted(_LIMITS, np.abs(numbers).view(np.uint64), side="right") + 1
    found = np.empty(len(numbers), np.uint64)
    words = numbers.view(np.uint64)
    for size in np.flatnonzero(np.bincount(sizes)).tolist():
        chosen = sizes == size
        found[chosen] = _hashes(words[chosen], size)
    return found


def _hashes(words: Words, size: int) -> Words:
    """The XXH64 (seed 0) of the canonical bytes of numbers of `size` bytes."""
    shifted = words << np.uint64(8 * (8 - size))
    ordered = shifted.byteswap()  # the first byte is the lowest one now, as XXH64 reads
    text = ordered << np.uint64(8) | _TAG
    h = np.full(len(words), np.uint64(size + 1) + _P5)
    at = 0
    if size + 1 >= 8:
        h ^= _rotate(text * _P2, 31) * _P1
        h = _rotate(h, 27) * _P1 + _P4
        at = 8
    elif size + 1 >= 4:
        h ^= (text & np.uint64(0xFFFFFFFF)) * _P1
        h = _rotate(h, 23) * _P2 + _P3
        at = 4
    for place in range(at, size + 1):
        byte = ordered >> np.uint64(56) if place == 8 else text >> np.uint64(8 * place) & np.uint64(0xFF)
        h ^= byte * _P5
        h = _rotate(h, 11) * _P1
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    return h ^ h >> np.uint64(32)


def _rotate(words: Words, by: int) -> Words:
    return words << np.uint64(by) | words >> np.uint64(64 - by)
