"""Lookups by an asynchronous function, with a cache of answers. They run in the thread of the calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tailrace.elements.keys import canonical_bytes
from tailrace.graph.operators import LookedUp
from tailrace.state.codecs import immutable
from tailrace.task.channels.key_readers import FieldReader
from tailrace.task.operators.failures.spare import Spare


class Lookups:
    """The lookups of one operator."""

    def __init__(self, fn: Callable[[Any], Any], how: LookedUp) -> None:
        self._fn = fn
        self._reader = FieldReader(how.on, "lookup", 0)
        self._size, self._ttl, self._keeps_misses = how.cache or (0, None, False)
        self._answers: OrderedDict[bytes, tuple[float, Spare]] = OrderedDict()
        """Answers by the canonical bytes of their keys, each behind the end of its time; the one used last is last."""

    async def call(self, record: Any) -> tuple[Any, Any]:
        """The record, and the answer for its key."""
        key = self._reader.getter([record])(record)
        if not self._size:
            return record, await self._fn(key)
        place, loop = canonical_bytes(key), asyncio.get_running_loop()
        known = self._answers.get(place)
        if known is not None and loop.time() < known[0]:
            self._answers.move_to_end(place)
            return record, known[1].take()
        begun = loop.time()
        found = await self._fn(key)
        spare = Spare(found)
        if (found is not None or self._keeps_misses) and (spare.is_copy or immutable(found)):
            self._answers[place] = (float("inf") if self._ttl is None else begun + self._ttl), spare
            self._answers.move_to_end(place)
            if len(self._answers) > self._size:
                self._answers.popitem(last=False)
        return record, found
