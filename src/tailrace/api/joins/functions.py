"""Functions that joins are made of: the one that keeps the version of each key, and those around the windows of a join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.api.functions import AggregateFunction, Context, CoProcessFunction
from tailrace.api.windows.functions import Field
from tailrace.graph.operators import How, Selector
from tailrace.state.handles import ListState, ValueState

Tagged = tuple[int, Any, Any]
"""A record on its way into the windows of a join: its input, its key, and the record."""


class SelectCall:
    """Calls of the user's function of two records with a pair of them."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __call__(self, pair: Any) -> Any:
        return self.fn(*pair)


class VersionJoin(CoProcessFunction):
    """A join of records with the version of their key as of their time. The function is called in the order of time:
    versions come on the first input, and of one time before the records, on the second. So the newest version is the one
    that each record needs."""

    version = ValueState(object, default=None)
    """The time of the newest version and its record."""
    early = ListState(object)
    """Records that came before all versions were loaded."""

    def __init__(self, how: How, keep: float | None, load_until: float | None) -> None:
        self.how = how
        self.keep = keep
        """Seconds for which a version counts; None: until the next one."""
        self.load_until = load_until

    def process1(self, record: Any, ctx: Context) -> None:
        assert ctx.timestamp is not None
        self.version.value = (ctx.timestamp, record)
        if self.keep is not None:
            ctx.set_timer(event_time=self._end(ctx.timestamp))

    def process2(self, record: Any, ctx: Context) -> list[Any]:
        assert ctx.timestamp is not None
        if self.load_until is not None and ctx.timestamp < self.load_until:
            self.early.append(record)
            ctx.set_timer(event_time=self.load_until)
            return []
        return self._result(record, ctx.timestamp)

    def on_timer(self, timestamp: float, ctx: Context) -> Iterator[Any]:
        if (self.load_until is None or timestamp >= self.load_until) and len(self.early):
            for record in self.early:
                yield from self._result(record, timestamp)
            self.early.clear()
        elif self.load_until is not None and timestamp < self.load_until and len(self.early):
            ctx.set_timer(event_time=self.load_until)  # a restore has moved it
        held = self.version.value
        if self.keep is not None and held is not None:
            end = self._end(held[0])
            if end <= timestamp:
                self.version.clear()
            else:
                ctx.set_timer(event_time=end)  # that of an older version, or of a shorter `keep` before a restore

    def _end(self, time: float) -> float:
        """The last time at which a version of this time counts: the float of a whole microsecond, as a sum of floats may be
        above the one that is meant."""
        assert self.keep is not None
        return round(time + self.keep, 6)

    def _result(self, record: Any, time: float) -> list[Any]:
        held = self.version.value
        if held is not None and self.keep is not None and self._end(held[0]) < time:
            self.version.clear()  # it came when `keep` was longer, before a restore
            held = None
        if self.how in ("semi", "anti"):
            return [record] if (held is None) is (self.how == "anti") else []
        return [(record, None if held is None else held[1])] if held is not None or self.how == "left" else []


class Tagging:
    """Function that gives each record of an input its number and its key."""

    def __init__(self, port: int, key: Selector) -> None:
        self.port = port
        self.key = Field(key)

    def __call__(self, record: Any) -> Tagged:
        return self.port, self.key(record), record


class GapOf:
    """Reader of the gap of a session from the record that is tagged."""

    def __init__(self, of: Selector) -> None:
        self.of = Field(of)

    def __call__(self, tagged: Tagged) -> Any:
        return self.of(tagged[2])


class GatherSides(AggregateFunction):
    """The records of each input, as two lists in the order in which they came. Where a record makes two sessions one, those
    of the earlier session are first."""

    def create_accumulator(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def add(self, value: Tagged, accumulator: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        accumulator[value[0]].append(value[2])  # each window has lists of its own
        return accumulator

    def get_result(self, accumulator: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        return [*accumulator[0]], [*accumulator[1]]

    def merge(self, a: tuple[list[Any], list[Any]], b: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        return a[0] + b[0], a[1] + b[1]


class WindowPairs:
    """The results of a join for each window: pairs of its records, or with `how` None the two lists."""

    def __init__(self, how: How | None) -> None:
        self.how = how

    def __call__(self, row: Any) -> list[Any]:
        first, second = row[-1]
        how = self.how
        if how is None:
            return [(first, second)]
        if how in ("semi", "anti"):
            return [*first] if bool(second) is (how == "semi") else []
        found: list[Any] = [(a, b) for a in first for b in second]
        if not second and how in ("left", "full"):
            found = [(a, None) for a in first]
        if not first and how in ("right", "full"):
            found = [(None, b) for b in second]
        return found
