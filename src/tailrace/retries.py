"""Retries of a request that may fail for a moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def _chance() -> float:
    return random.SystemRandom().random()


@dataclass(frozen=True)
class Retries:
    """Limits for the retries of a request: no try begins later than `within` seconds after the first one, and there are
    `tries` at most.

    The pause between two tries doubles from `first` to at most `most` seconds. Of each pause a random part of up to a half
    is left out, so that clients which failed together do not come back together. `chance` gives numbers from 0 to 1. It is
    not the generator of the module `random`: that one belongs to the user's functions.
    """

    within: float
    tries: int | None = None
    first: float = 0.1
    most: float = 10.0
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = _chance

    def call(
        self,
        request: Callable[[], T],
        fleeting: Callable[[Exception], bool],
        sleep: Callable[[float], object] = time.sleep,
    ) -> T:
        """The result of `request`, which is repeated while it raises errors that are `fleeting`. Raises its last error.
        Where `sleep` returns true, one more try is the last."""
        deadline, pauses, made, last = self.clock() + self.within, self.pauses(), 0, False
        while True:
            try:
                return request()
            except Exception as error:
                made += 1
                left = deadline - self.clock()
                if last or left <= 0 or made == self.tries or not fleeting(error):
                    raise
            last = bool(sleep(min(left, next(pauses))))

    def pauses(self) -> Iterator[float]:
        """The seconds of one pause after the other, without an end."""
        pause = self.first
        while True:
            yield pause * (1 - self.chance() / 2)
            pause = min(2 * pause, self.most)
