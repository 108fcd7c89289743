"""PregelVertex programs in rows: four functions of a user, called for one vertex or edge at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tailrace as tr
from tailrace.graphs.frames import NumberedGraph

EDGE, VERTEX, MESSAGE = range(3)


class Pregel:
    """A vertex program in rows.

    - `initial(id)`: the value of a vertex before the first step. An id of another type than whole numbers is a hash of it.
    - `message(value, weight)`: the message along an edge from a vertex with this value, or None for none. `weight` is 1.0
      where the edges have none.
    - `combine(a, b)`: two messages to one vertex in one. It must not matter in which order they are combined.
    - `update(value, message)`: the new value of a vertex. One that is equal to the old value sends nothing.

    In the first step all vertices send, then those whose value has changed, until none does or after `max_iter` steps;
    messages of a step are all there before the next one. `directed=False` sends along edges both ways. Where speed counts,
    write a `graphs.VertexProgram`, in columns."""

    def __init__(
        self,
        *,
        initial: Callable[[int], Any],
        message: Callable[[Any, float], Any],
        combine: Callable[[Any, Any], Any],
        update: Callable[[Any, Any], Any],
        max_iter: int | None = None,
        directed: bool = True,
    ) -> None:
        for name, given in (("initial", initial), ("message", message), ("combine", combine), ("update", update)):
            if not callable(given):
                raise tr.ConfigError(f"Pregel: {name} must be a function, not {given!r}")
        if max_iter is not None and (not isinstance(max_iter, int) or max_iter < 1):
            raise tr.ConfigError(f"Pregel: max_iter must be 1 or more, not {max_iter!r}")
        self.functions = (initial, message, combine, update)
        self.max_iter, self.directed = max_iter, directed

    def run(
        self,
        edges: Any,
        vertices: Any = None,
        *,
        value: str = "double",
        weight: str | None = None,
        env: tr.Environment | None = None,
    ) -> Any:
        """The value of each vertex at the end: a DataFrame (id, value). `value` is its Spark type, `weight` a column of the
        edges."""
        graph = NumberedGraph(edges, vertices, weight, env, "Pregel")
        found = self.stream(graph.edges, graph.vertices).to_dataframe(f"id long, value {value}")
        return graph.back(found, "id")

    def stream(self, edges: tr.DataStream, vertices: tr.DataStream | None = None) -> tr.DataStream:
        """The value of each vertex as a stream of rows (id, value). Ids are whole numbers."""
        directed = self.directed

        def load(edge: Any) -> list[tuple[int, int, Any]]:
            src, dst, *weight = edge
            if src is None or dst is None:
                raise ValueError("an id of a vertex is null; leave such rows out")
            length = weight[0] if weight else 1.0
            back = (dst, VERTEX, None) if directed else (dst, EDGE, (src, length))
            return [(src, EDGE, (dst, length)), back]

        records = edges.to_rows().flat_map(load)
        if vertices is not None:
            records = records.union(vertices.to_rows().map(lambda vertex: (vertex[0], VERTEX, None)))
        functions, most = self.functions, self.max_iter

        def body(stream: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
            found = stream.key_by(lambda record: record[0]).process(PregelVertex(*functions, most))
            return found, found.side_output("values")

        return records.iterate(body, rounds=tr.Rounds())


class PregelVertex(tr.KeyedProcessFunction):
    """One vertex: its value, its edges, and the message that came so far in this step."""

    value = tr.ValueState(object)
    edges = tr.ListState(object)
    waiting = tr.ValueState(object)

    def __init__(self, initial: Any, message: Any, combine: Any, update: Any, most: int | None) -> None:
        self.initial, self.message, self.combine, self.update, self.most = initial, message, combine, update, most

    def process(self, record: tuple[int, int, Any], ctx: tr.Context) -> None:
        _, kind, content = record
        if kind == MESSAGE:
            waiting = self.waiting.value
            self.waiting.value = (content if waiting is None else self.combine(waiting[0], content),)
        else:
            ctx.set_timer(event_time=0)  # event time comes to its end when the loop is at rest
            if kind == EDGE:
                self.edges.add(content)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[tuple[int, int, Any]]:
        if round == 0:
            self.value.value = (self.initial(ctx.key),)
        elif self.waiting.exists():
            before = self.value.value[0]
            value = self.update(before, self.waiting.value[0])
            self.waiting.clear()
            self.value.value = (value,)
            if value == before:
                return
        else:
            return
        if self.most is None or round < self.most:
            value = self.value.value[0]
            for end, weight in self.edges:
                message = self.message(value, weight)
                if message is not None:
                    yield end, MESSAGE, message

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        ctx.emit("values", (ctx.key, self.value.value[0]))
