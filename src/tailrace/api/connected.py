"""Two streams that are connected to one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.api.checks import called, check_at_end, check_co_process
from tailrace.api.functions import CoProcessFunction
from tailrace.api.hints import CONNECTED, missing
from tailrace.api.nodes import add_node, check_together
from tailrace.api.released import check_times
from tailrace.errors import GraphError
from tailrace.graph import operators as ops
from tailrace.graph.operators import AtEnd, Selector
from tailrace.graph.scope import StreamScope
from tailrace.state.handles import declared

if TYPE_CHECKING:
    from tailrace.api.streams import DataStream


class ConnectedStreams:
    """Two streams that one `CoProcessFunction` reads, made by `connect`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing("connected streams", name, CONNECTED, dir(type(self)))

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self.first = first
        self.second = second

    @property
    def scope(self) -> StreamScope:
        """The loops that both streams are in."""
        return self.first.scope

    @property
    def _keys(self) -> tuple[Selector | None, Selector | None]:
        return getattr(self.first, "key", None), getattr(self.second, "key", None)

    def key_by(self, first: Selector, second: Selector) -> ConnectedStreams:
        """Both streams, keyed: records of equal keys meet in one subtask and share state. A key is a function, a column
        name, or several names. Raises `GraphError` if a stream is keyed already, and for an unknown column."""
        if any(key is not None for key in self._keys):
            raise GraphError("connect(...).key_by: a stream is keyed already; key both before or both here")
        return ConnectedStreams(self.first.key_by(first), self.second.key_by(second))

    def process(self, fn: CoProcessFunction, *, at_end: AtEnd = "wait", **options: Any) -> DataStream:
        """The records that `fn` emits: its `process1` is called for each record of the first stream, `process2` for each of
        the second. `at_end` says what becomes of pending timers of processing time at the end of both inputs: the job
        waits for them ("wait") or drops them ("drop"). Raises `GraphError` for a function that does not fit the streams, and
        `ScopeError` if the streams are not in one loop."""
        verb = called("process", options)
        check_co_process(fn, verb)
        self._check_keys(fn, verb)
        check_together(self.first, self.second, verb)
        inputs = self.first._edges(self.first._partitioning, 0), self.second._edges(self.second._partitioning, 1)
        check_times(fn, inputs, self.first.env._graph.nodes, verb)
        edges = (*inputs[0], *inputs[1])
        node = add_node(
            self.first, ops.CoProcess(fn, self._keys, check_at_end(at_end)), edges, "process", options, "rows", None
        )
        return self.first._of(node)

    def _check_keys(self, fn: CoProcessFunction, verb: str) -> None:
        first, second = map(_shape, self._keys)
        if first is not None and second is not None and first != second:
            raise GraphError(
                f"{verb}: one stream is keyed by {first}, the other by {second}: keys that are never equal; key both by a "
                f"single column, or by lists of as many"
            )
        keyed = all(key is not None for key in self._keys)
        timed = type(fn).on_timer is not CoProcessFunction.on_timer
        if not keyed and (declared(fn) or timed):
            raise GraphError(
                f"{verb}: {type(fn).__name__} uses keyed state or timers, and not both streams have a key; call key_by on "
                f"both"
            )


def _shape(key: Selector | None) -> str | None:
    """The shape of a key for errors: a single column or a list of columns; None for a function."""
    if isinstance(key, str):
        return "a single column"
    return f"a list of {len(key)}" if isinstance(key, tuple) else None
