"""The windows of a keyed stream and their verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrace.api.aggregates import Count, Sum
from tailrace.api.checks import called, check_callable, check_names, check_selector, named_aggregates
from tailrace.api.functions import AggregateFunction, ReduceFunction
from tailrace.api.hints import WINDOWED, missing
from tailrace.api.windows import WindowSpec
from tailrace.graph import operators as ops
from tailrace.graph.operators import Selector
from tailrace.graph.scope import StreamScope

if TYPE_CHECKING:
    from tailrace.api.streams import DataStream, KeyedStream


class WindowedStream:
    """The records of each key by window. Results are rows (key, start, end, …) with `start` and `end` in float seconds since
    1970; their timestamp is the window's last microsecond. A key of columns has the names of the columns, any other key is
    called `key`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("a windowed stream", name, WINDOWED, dir(type(self)))

    def __init__(self, keyed: KeyedStream, windows: WindowSpec, allowed_lateness: int) -> None:
        self._keyed = keyed
        self._windows = windows
        self._lateness = allowed_lateness

    @property
    def scope(self) -> StreamScope:
        """The loops that this stream is in."""
        return self._keyed.scope

    def reduce(self, f: Callable[[Any, Any], Any] | ReduceFunction, **options: Any) -> DataStream:
        """The stream of (key, start, end, value): `f` merges the records of each window into one value. Raises `GraphError`
        if `f` is no function of two arguments."""
        check_callable(f, 2, called("window.reduce", options), ReduceFunction)
        return self._add((), f, "window.reduce", options)

    def count(self, **options: Any) -> DataStream:
        """The stream of (key, start, end, count), one for each key and window."""
        return self._add((("count", Count()),), None, "window.count", options)

    def sum(self, of: Selector, **options: Any) -> DataStream:
        """The stream of (key, start, end, sum), one for each key and window. `of` is a function or a column. Raises
        `GraphError` for an unknown column."""
        return self._add((("sum", Sum(of)),), None, "window.sum", options)

    def aggregate(
        self,
        aggregate: AggregateFunction | None = None,
        /,
        *,
        name: str | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
        **named: AggregateFunction,
    ) -> DataStream:
        """The stream of (key, start, end, result, …), one for each key and window. It takes one aggregate function, whose
        result is named `value`, or several by name. Raises `GraphError` for anything else, and for an unknown column."""
        options = {"name": name, "uid": uid, "parallelism": parallelism}
        aggregates = named_aggregates(aggregate, named, options, default="value")
        return self._add(aggregates, None, "window.aggregate", options)

    def _add(
        self, aggregates: tuple[tuple[str, AggregateFunction], ...], reduce: Any, verb: str, options: dict[str, Any]
    ) -> DataStream:
        for _, one in aggregates:
            of = getattr(one, "of", None)
            if of is not None:
                check_selector(of, self._keyed.columns, called(verb, options))
        stream, form = self._keyed._vectorised(aggregates)
        if reduce is not None:
            form = "rows"
        names = [name for name, _ in aggregates] or ["value"]
        columns = (*ops.key_columns(stream.key), "start", "end", *names)
        w = self._windows
        operator = ops.Window(stream.key, w.size, w.slide, w.offset, self._lateness, aggregates, reduce)
        check_names(columns, called(verb, options))
        return stream._add(operator, verb, options, form=form, columns=columns)
