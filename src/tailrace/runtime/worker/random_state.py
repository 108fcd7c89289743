"""The shared generators of random numbers in Python, which user code shares with everything in its process, and its clocks
(`runtime.worker.interception`)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tailrace.runtime.worker import interception
from tailrace.task.contract.outside import Outside

_Seen = tuple[int, int]
_SIZE = 624
"""Words in the state of a Mersenne twister; both generators are of this kind."""
_WORD = ctypes.sizeof(ctypes.c_uint32)
_GENERATOR: Any = random._inst  # type: ignore[attr-defined]
_SEED: Any = _GENERATOR.__class__.__base__.seed


class SharedGenerators:
    """The process-wide generators of `random` and `numpy.random`. A user's own generators are not seeded."""

    def __init__(self) -> None:
        self._pythons = _python_state(sys.implementation.name)
        self._numpys = _numpy_state(_numpys_own())
        self._numpys_own = _numpys_own()
        self._seen: list[_Seen] = []
        self._seed: int | None = None
        """The last seed."""
        self._of_step: int | None = None
        """The seed of the next step; None where a step has used the generators since they had one."""

    def seed(self, seed: int) -> None:
        """Seeds both generators with an int64."""
        _GENERATOR.gauss_next = None
        _SEED(_GENERATOR, seed)  # the effect of random.seed for a number, in half the time
        np.random.seed((seed ^ seed >> 32) & 0xFFFFFFFF)
        self._seen, self._seed = self._look(), seed

    def was_used(self) -> bool:
        """True if any of them may have been used since `seed`, or if that cannot be seen."""
        return not self._seen or self._look() != self._seen

    def begin_step(self, seed: int) -> None:
        """Begins a step with generators that no step has used since they were seeded: with `seed`, or with that of an
        earlier step. To seed them takes as long as a step of few records. What else uses them between two steps does not
        change what a step gets."""
        if self._of_step is None:
            self._of_step = seed
        if self._of_step != self._seed or self.was_used():
            self.seed(self._of_step)

    def end_step(self) -> int | None:
        """Ends a step. Returns the seed that the generators had at its begin, if it may have used any of them."""
        if not self.was_used():
            return None
        used, self._of_step = self._of_step, None
        return used

    @contextlib.contextmanager
    def with_stand_ins(self, needed: bool) -> Iterator[None]:
        """A context in which clocks have stand-ins, if these are needed."""
        with interception.with_stand_ins() if needed else contextlib.nullcontext():
            yield

    def enter(self, outside: Outside) -> None:
        """Enters user code in this thread."""
        interception.enter(outside)

    def leave(self) -> None:
        """Leaves user code in this thread."""
        interception.leave()

    def _look(self) -> list[_Seen]:
        if self._pythons is None or self._numpys is None or _numpys_own() is not self._numpys_own:
            return []
        return [self._pythons(), self._numpys()]


def _numpys_own() -> Any:
    return np.random.mtrand._rand._bit_generator  # type: ignore[attr-defined]


@functools.cache
def _python_state(implementation: str) -> Callable[[], _Seen] | None:
    """A reader of the position of the generator of `random`: its index, and one of its words, which no other seed gives.
    `getstate` takes longer than a seed, and this is read in every step. So the state is read where CPython has it, in
    front of the words, which have been there since 3.2. None if it is not there, which is tried out."""
    if implementation != "cpython":
        return None
    generator = _GENERATOR
    before = generator.getstate()
    look = _reader(id(generator) + object.__basicsize__, 0, _WORD * 2)
    try:
        for seed in range(3):
            generator.seed(seed)
            words = generator.getstate()[1]
            if look() != (_SIZE, words[1]):
                return None
            generator.getrandbits(32)
            if look() != (1, generator.getstate()[1][1]):
                return None
    finally:
        generator.setstate(before)
    return look


@functools.lru_cache(maxsize=1)
def _numpy_state(generator: Any) -> Callable[[], _Seen] | None:
    """A reader of the position of the generator of `numpy.random`, whose address numpy gives. None if numpy has another
    generator by now."""
    if type(generator).__name__ != "MT19937":
        return None
    before = np.random.get_state()
    look = _reader(generator.ctypes.state_address, _SIZE * _WORD, _WORD)
    try:
        for seed in range(3):
            np.random.seed(seed)
            _, words, index, *_ = np.random.get_state()
            if look() != (index, words[1]):
                return None
            np.random.random()
            _, words, index, *_ = np.random.get_state()
            if look() != (index, words[1]):
                return None
    finally:
        np.random.set_state(before)
    return look


def _reader(address: int, index: int, word: int) -> Callable[[], _Seen]:
    """A reader of two numbers at these offsets."""
    at, first = ctypes.c_int.from_address(address + index), ctypes.c_uint32.from_address(address + word)
    return lambda: (at.value, first.value)
