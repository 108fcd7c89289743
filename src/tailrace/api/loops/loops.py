"""Functions that write a loop into the graph (head, body, tail, judge and the ways out), and that let a stream enter one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.api.checks.arguments import check_callable, check_methods, check_selector
from tailrace.api.checks.event_time import check_waits_when_idle
from tailrace.api.checks.spans import check_spans
from tailrace.api.checks.untimed_inputs import has_event_time
from tailrace.api.functions import AggregateFunction
from tailrace.api.loops.options import Combine, LoopCall, PartOfRound, Rounds
from tailrace.api.nodes import Stream, add_node, default_name, described_scope
from tailrace.api.spill import CHECKPOINT, Spill
from tailrace.api.verbs.columns import declared_schema
from tailrace.errors import ConfigError, GraphError, ScopeError, TypeMismatch
from tailrace.graph import operators as ops
from tailrace.graph.graph import Edge, Node, unbounded_before
from tailrace.graph.loops import rounds_inside, rounds_of, rounds_unbounded
from tailrace.graph.operators import FEEDBACK, MARKERS, Forward, Loop, Operator, Partitioning, Rebalance
from tailrace.graph.scope import StreamScope


class LoopStream(Stream):
    """A stream with what a loop is written by: base of `DataStream`."""

    _partitioning: Partitioning

    def _of(self, node: Node, tag: str | None = None, columns: tuple[str, ...] | None = None) -> LoopStream:
        """The output of a node, or its side output `tag`, in rows or in the given columns."""
        raise NotImplementedError

    def _with_partitioning(self, partitioning: Partitioning) -> LoopStream:
        """The stream with another partitioning, and without a key."""
        raise NotImplementedError

    def _as_rows(self) -> LoopStream:
        """The stream in rows."""
        raise NotImplementedError

    def to_columns(self, schema: Any) -> LoopStream:
        """The stream in columns of a schema."""
        raise NotImplementedError

    def connect(self, other: Any) -> Any:
        """This stream and another one, for one function."""
        raise NotImplementedError


def write_loop(stream: LoopStream, f: Any, call: LoopCall, kinds: tuple[type, type], *, separate: bool) -> Any:
    """Writes the loop with body `f` into the graph: head, body, tail, judge, and a way out for each output. Returns the
    outputs outside, in the shape that the body returned. `kinds` are the class of bodies that are objects, and the class of
    bodies for the other verb. `separate`: the feedback is a stream of its own."""
    body = _body(f, call, *kinds)
    _check(stream, call, separate)
    graph = stream.env._graph
    with graph.all_or_nothing():
        head = _head(stream, f, call, separate)
        graph.begin_body(head)
        first = stream._of(head)
        schema = _loop_of(head).feedback_schema
        back = stream._of(head, FEEDBACK, None if schema is None else tuple(schema.names)) if separate else first
        returned = body(first.connect(back) if separate else first)
        return _Closing(call, first, back, head, _loop_of(head)).close(returned)


def _body(f: Any, call: LoopCall, kind: type, other: type) -> Callable[[Any], Any]:
    """The callable that writes the body. Raises `GraphError` if `f` is none."""
    if inspect.isclass(f) and issubclass(f, kind | other):
        raise GraphError(f"{call}: pass an object, not the class: {f.__name__}()")
    if isinstance(f, other):
        verb = "iterate_with_feedback" if call.verb == "iterate" else "iterate"
        raise GraphError(f"{call}: a {type(f).__name__} is not a tr.{kind.__name__}; use {verb}")
    if not isinstance(f, kind):
        check_callable(f, 1, str(call))
        return f  # type: ignore[no-any-return]
    check_methods(f, kind, {"loop": 1}, str(call))
    return f.loop  # type: ignore[attr-defined, no-any-return]


def _check(stream: LoopStream, call: LoopCall, separate: bool) -> None:
    """Raises `ConfigError` for wrong options, and `TypeMismatch` or `GraphError` if they do not fit the stream or its
    place."""
    check_waits_when_idle(stream, str(call))
    if call.priority not in ("adaptive", "feedback-first"):
        raise ConfigError(f"{call}: priority must be 'adaptive' or 'feedback-first', not {call.priority!r}")
    for option, kind in (("rounds", Rounds), ("combine", Combine), ("spill", Spill)):
        value = getattr(call, option)
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{call}: {option} must be a tr.{kind.__name__}(...), not {value!r}")
    if call.spill is not None and call.spill.stored:
        raise ConfigError(
            f"{call}: tr.Spill(dir={CHECKPOINT!r}) is for tr.StandbyConfig; feedback waits in a folder of its machine, and "
            f"one of this name is './{CHECKPOINT}'"
        )
    if call.combine is not None:
        if stream.form == "columns" and not separate:
            raise TypeMismatch(f"{call}: combine merges rows, and the loop is in columns; call to_rows() before it")
        if call.feedback_schema is not None:
            raise TypeMismatch(
                f"{call}: combine merges rows, and the feedback is in columns; leave feedback_schema= out"
            )
        check_selector(call.combine.key, None if separate else stream.columns, f"{call}: combine")
    _check_rounds(stream, call)


def _check_rounds(stream: LoopStream, call: LoopCall) -> None:
    graph = stream.env._graph
    around = graph.heads.get(stream.scope)
    if around is not None and (call.rounds is not None or rounds_of(around) is not None):
        raise GraphError(rounds_inside(call.name or call.verb, around.name))
    if call.rounds is None:
        return
    if call.rounds.span is None:
        _check_bounded(stream, call.name or call.verb)
    elif stream.form == "columns":
        raise TypeMismatch(f"{call}: rounds by spans of event time take rows; call to_rows() before the loop")
    elif not has_event_time(stream._edges(stream._partitioning), graph.nodes):
        raise GraphError(
            f"{call}: Rounds(span=...) is by event time, and the stream has none; call assign_timestamps before"
        )


def _check_bounded(stream: LoopStream, loop: str) -> None:
    source = unbounded_before(stream.env._graph.nodes.__getitem__, [node for node, _ in stream._upstreams])
    if source is not None:
        raise GraphError(rounds_unbounded(loop, source.name))


def _head(stream: LoopStream, f: Any, call: LoopCall, separate: bool) -> Node:
    spill = call.spill if call.spill is not None else Spill()
    key, merge = (call.combine.key, call.combine.merge) if call.combine is not None else (None, None)
    loop = Loop(
        stream.scope.nest(),
        call.name if call.name is not None else default_name(call.verb, ops.Map(f)),
        separate,
        call.priority,
        tuple(key) if isinstance(key, list) else key,
        merge,
        spill.memory_bytes,
        spill.folder,
        None if call.rounds is None else ops.Rounds(call.rounds.max, call.rounds.judged_by, call.rounds.span_micros),
        None if call.feedback_schema is None else stream.env._arrow_schema(call.feedback_schema, str(call)),
    )
    options = {"uid": call.uid, "name": loop.name, "parallelism": call.parallelism}
    edges = stream._edges(stream._partitioning)
    return add_node(stream, ops.Head(loop), edges, call.verb, options, stream.form, stream.columns, loop.scope)


def _loop_of(head: Node) -> Loop:
    assert isinstance(head.operator, ops.Head)
    return head.operator.loop


@dataclass(frozen=True)
class _Closing:
    """A loop whose body is being closed: the body was called, and tail, judge and ways out are to be added."""

    call: LoopCall
    first: LoopStream
    back: LoopStream
    """The stream in which the body gets the feedback."""
    head: Node
    loop: Loop

    def close(self, returned: Any) -> Any:
        """Adds the tail, the judge and the ways out. Returns the outputs outside, in the shape that the body returned."""
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise GraphError(f"{self.call}: the body must return (feedback, output), not {_kind(returned)}")
        feedback = [self._fed_back(stream) for stream in self._feedback(returned[0])]
        named = self._outputs(returned[1])
        outputs = [stream for _, stream in named]
        if feedback:
            self._add_tail(feedback)
        if self.loop.rounds is not None and self.loop.rounds.until is not None:
            self._add_judge(feedback, outputs)
        check_spans(self.first.env._graph.nodes)
        left = [self._leave(name, stream) for name, stream in named]
        return _in_shape(returned[1], left)

    # What the body returned.

    def _feedback(self, value: Any) -> list[LoopStream]:
        if value is None:
            return []
        streams = list(value) if isinstance(value, list | tuple) else [value]
        for stream in streams:
            self._check_stream(stream, "the feedback", "a stream, a list of streams or None")
        return streams

    def _outputs(self, value: Any) -> list[tuple[str, LoopStream]]:
        if isinstance(value, dict):
            named = [(f": {key}", stream) for key, stream in value.items()]
        elif isinstance(value, tuple | list):
            named = [(f": {number}", stream) for number, stream in enumerate(value)]
        else:
            named = [("", value)]
        for _, stream in named:
            self._check_stream(stream, "the output", "a stream, or a tuple or dict of streams")
        return named

    def _check_stream(self, stream: Any, what: str, place: str) -> None:
        call = self.call
        if isinstance(stream, Stream) and getattr(stream, "key", None) is not None:
            raise TypeMismatch(
                f"{call}: {what} is a keyed stream; call process on it, or return the stream before key_by"
            )
        if not isinstance(stream, Stream):
            raise GraphError(f"{call}: {what} must be {place}, not {_kind(stream)}")
        if stream.env is not self.first.env:
            raise GraphError(
                f"{call}: {what} belongs to another environment; make it from the stream the body is given"
            )
        if stream.scope == self.loop.scope:
            return
        where = described_scope(stream)
        if self.loop.scope.is_inner_of(stream.scope):
            raise ScopeError(
                f"{call}: {what} is {where}, not in loop {self.loop.name!r}; bring it in with enter(stream.scope)"
            )
        raise ScopeError(
            f"{call}: {what} is {where}, not in loop {self.loop.name!r}; return it as an output of the loop it is in"
        )

    def _fed_back(self, stream: LoopStream) -> LoopStream:
        """A feedback stream in the form that the head takes."""
        back = self.back
        plain = stream._with_partitioning(Forward())  # the partitioning belongs after the conversion, and only there
        if self.loop.separate and back.form == "rows":
            rows = plain._as_rows()
            return stream if rows is plain else rows._with_partitioning(stream._partitioning)
        if stream.form != back.form:
            way = "to_rows()" if back.form == "rows" else "to_columns(schema)"
            raise TypeMismatch(
                f"{self.call}: the feedback is in {stream.form}, and the loop takes {back.form}; call {way} on the feedback"
            )
        known = back.columns is not None and stream.columns is not None
        if known and back.form == "columns" and stream.columns != back.columns:
            raise TypeMismatch(
                f"{self.call}: the feedback has the columns {_names(stream)}, and the loop takes {_names(back)}; "
                f"they must be the same in the same order"
            )
        schema = declared_schema(back)
        if schema is None or schema == declared_schema(stream):
            return stream
        return plain.to_columns(schema)._with_partitioning(stream._partitioning)

    # What closes the loop.

    def _add_tail(self, feedback: list[LoopStream]) -> None:
        edges = [edge for stream in feedback for edge in stream._edges(stream._partitioning)]
        edges.append(Edge(self.head.id, 1, Forward(), MARKERS))
        self._add(ops.Tail(self.loop), edges, "tail", self.head.parallelism, self.loop.scope, (self.head.id,))

    def _add_judge(self, feedback: list[LoopStream], outputs: list[LoopStream]) -> None:
        rounds = self.call.rounds
        if rounds.by_figures:
            feedback = self._parts("fed back", feedback, rounds.feedback)
            outputs = self._parts("emitted", outputs, rounds.output)
        edges = [edge for stream in feedback for edge in stream._edges(Rebalance())]
        edges += [edge for stream in outputs for edge in stream._edges(Rebalance(), port=1)]
        self._add(ops.Judge(self.loop), edges, "judge", 1, self.loop.scope, None)

    def _parts(self, what: str, streams: list[LoopStream], aggregate: AggregateFunction | None) -> list[LoopStream]:
        """Streams of the parts that the subtasks of these streams add up in each round; none without an aggregate."""
        found: list[LoopStream] = []
        if aggregate is None:
            return found
        for number, stream in enumerate(streams):
            rows, graph = stream._with_partitioning(Forward())._as_rows(), self.first.env._graph
            follows = tuple(node for node, _ in rows._upstreams)
            sizes = {graph.nodes[node].parallelism for node in follows}
            edges = rows._edges(Forward() if len(sizes) == 1 else Rebalance())
            operator = ops.Process(PartOfRound(copy.deepcopy(aggregate)), "wait")
            name = f"{what} {number}"
            node = self._add(operator, [*edges], name, max(sizes), self.loop.scope, follows, in_rows=True)
            found.append(stream._of(node))
        return found

    def _leave(self, name: str, stream: LoopStream) -> LoopStream:
        env = self.first.env
        follows = tuple(node for node, _ in stream._upstreams)
        parallelism = max(env._graph.nodes[node].parallelism for node in follows)
        edges = list(stream._edges(stream._partitioning))
        outside, operator = self.loop.scope.unnest(), ops.LeaveLoop(self.loop)
        return stream._of(self._add(operator, edges, f"leave{name}", parallelism, outside, follows, stream))

    def _add(
        self,
        operator: Operator,
        edges: list[Edge],
        what: str,
        parallelism: int,
        scope: StreamScope,
        follows: tuple[int, ...] | None,
        like: LoopStream | None = None,
        in_rows: bool = False,
    ) -> Node:
        """A node that belongs to the loop itself. Its uid is derived from the head's uid, and does not depend on the
        body."""
        like = like if like is not None else self.first
        return self.first.env._graph.add(
            operator,
            tuple(edges),
            verb=what,
            name=f"{self.loop.name}, {what}",
            uid=None,
            parallelism=parallelism,
            form="rows" if in_rows else like.form,
            columns=None if in_rows else like.columns,
            scope=scope,
            shape=(Edge(self.head.id, 0, Forward(), what),),
            follows=follows,
        )


def _in_shape(shape: Any, streams: list[LoopStream]) -> Any:
    if isinstance(shape, dict):
        return dict(zip(shape, streams, strict=True))
    if isinstance(shape, list):
        return streams
    if isinstance(shape, tuple):
        return type(shape)(*streams) if hasattr(shape, "_fields") else tuple(streams)
    return streams[0]


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else type(value).__name__


def _names(stream: LoopStream) -> str:
    return ", ".join(stream.columns or ())


# Entering a loop from around it.


def stream_inside(stream: LoopStream, scope: Any) -> Any:
    """The stream inside of the loop of `scope`; `stream` itself if it is there already. It enters the loops one by one, so
    that each loop knows all event time that comes into it. Raises `ScopeError` if the stream is not around that loop."""
    if not isinstance(scope, StreamScope):
        raise ScopeError(f"enter: expected the scope of a stream, stream.scope, not {_kind(scope)}")
    graph = stream.env._graph
    if scope.at_level(0) is not graph.root or (scope.level and scope not in graph.heads):
        raise ScopeError(
            f"enter: no loop of this environment has the scope {scope!r}; take it from a stream: stream.scope"
        )
    if scope == stream.scope:
        return stream
    if not scope.is_inner_of(stream.scope):
        raise ScopeError(_no_way_in(stream, scope))
    for level in range(stream.scope.level + 1, scope.level + 1):
        stream = _enter(stream, graph.heads[scope.at_level(level)])
    return stream


def _no_way_in(stream: LoopStream, scope: StreamScope) -> str:
    head = stream.env._graph.heads.get(scope)
    place = "the outside of loops" if head is None else f"loop {head.name!r}"
    return (
        f"enter: the stream is {described_scope(stream)}, and {place} is not inside it; return the stream as an output "
        f"of its loop"
    )


def _enter(stream: LoopStream, head: Node) -> LoopStream:
    check_waits_when_idle(stream, "enter")
    loop = _loop_of(head)
    if loop.rounds is not None and loop.rounds.span is not None:
        raise GraphError(
            f"enter: loop {head.name!r} goes by spans of event time, and another stream would not be held until its span "
            f"begins; unite it with the input of the loop"
        )
    if loop.rounds is not None:
        _check_bounded(stream, head.name)
    node = stream.env._graph.add(
        ops.EnterLoop(loop),
        stream._edges(Forward()),
        verb="enter",
        name=f"enter {loop.name}",
        uid=None,
        parallelism=head.parallelism,
        form=stream.form,
        columns=stream.columns,
        scope=loop.scope,
        follows=(head.id,),
    )
    return stream._of(node)
