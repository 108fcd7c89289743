"""Parallel requests to a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8


def at_once(function: Callable[[T], R], items: Iterable[T], name: str) -> list[R]:
    """The results of `function` for each item, in order. Calls it for several items at a time, in threads called `name`.
    Passes on the first error, once all other calls have ended. Calls it for one item after the other if no thread can be
    started, as when the exit of the interpreter waits for the job."""
    found = list(items)
    if len(found) < 2:
        return list(map(function, found))
    with ThreadPoolExecutor(min(AT_ONCE, len(found)), name) as pool:
        try:
            waiting = [pool.submit(function, one) for one in found]
        except RuntimeError:
            waiting = []
    return [future.result() for future in waiting] if waiting else list(map(function, found))
