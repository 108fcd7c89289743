"""Functions that add the node of a verb to the graph, and that check which streams may be put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tailrace.api.checks.arguments import check_attributes, check_name
from tailrace.api.connectors import Sink
from tailrace.api.failure_options import OnError, policy_of
from tailrace.elements.batches import Form
from tailrace.errors import GraphError, ScopeError, TypeMismatch
from tailrace.graph import operators as ops
from tailrace.graph.graph import Edge, GraphBuilder, Node
from tailrace.graph.operators import Operator, Partitioning, describe_selector
from tailrace.graph.scope import StreamScope
from tailrace.spelling import did_you_mean, own_options

Upstream = tuple[int, str | None]
"""(node, tag): an output of a node; the tag is the side output's, None for the main output."""


class Dataflow(Protocol):
    """The part of an environment that its streams know."""

    parallelism: int
    on_error: OnError
    _graph: GraphBuilder

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""

    def _check_place(self, sink: Sink, verb: str) -> None:
        """Raises `GraphError` if a sink that has not run yet writes to the place of this one."""

    def _check_bounded(self, upstreams: tuple[Upstream, ...], verb: str) -> None:
        """Raises `GraphError` if an unbounded source feeds a stream."""

    def _run_at_once(self, end: Callable[[], object], name: str) -> None:
        """Runs everything that is pending, with the sink that `end` adds, as one job, and waits for its end."""

    def _arrow_schema(self, schema: Any, verb: str) -> Any:
        """The user's schema as a `pyarrow.Schema`. Raises `GraphError` if there is none, or two columns have one name."""


class Stream:
    """Base of all streams: the outputs of nodes that it consists of, its form and its columns."""

    def __init__(
        self, env: Dataflow, upstreams: tuple[Upstream, ...], form: Form, columns: tuple[str, ...] | None = None
    ) -> None:
        self.env = env
        self.form: Form = form
        self.columns = columns
        self._upstreams = upstreams

    def _edges(self, partitioning: Partitioning, port: int = 0) -> tuple[Edge, ...]:
        return tuple(Edge(node, port, partitioning, tag) for node, tag in self._upstreams)

    @property
    def scope(self) -> StreamScope:
        """The loops that this stream is in."""
        graph = self.env._graph
        return graph.nodes[self._upstreams[0][0]].scope if self._upstreams else graph.root

    def _default_parallelism(self) -> int:
        """The parallelism of the inputs if it is equal for all, so that operators chain; else the usual one."""
        found = {self.env._graph.nodes[node].parallelism for node, _ in self._upstreams}
        return found.pop() if len(found) == 1 else self._usual_parallelism()

    def _usual_parallelism(self) -> int:
        """The parallelism of the loop that the stream is in; outside of loops the environment's."""
        head = self.env._graph.heads.get(self.scope)
        return self.env.parallelism if head is None else head.parallelism

    def __iter__(self) -> Any:
        raise GraphError("a stream cannot be looped over; use collect() to get its records as a list")

    def __bool__(self) -> bool:
        raise GraphError("a stream has no truth value; its records are only known while the job runs")


def check_together(stream: Stream, other: Any, verb: str) -> None:
    """Raises `TypeMismatch`, `GraphError` or `ScopeError` unless `other` is a stream of the environment and the loop of
    `stream`: only such streams can be put together."""
    if not isinstance(other, Stream):
        raise TypeMismatch(f"{verb}: expected a stream, got {type(other).__name__}")
    if other.env is not stream.env:
        raise GraphError(f"{verb}: the streams belong to two environments; make both from one")
    check_scopes([stream, other], verb)


def check_scopes(streams: Iterable[Stream], verb: str) -> None:
    """Raises `ScopeError`, with what to do, if one of these streams is not in the loop of the first one."""
    first, *others = streams
    for other in others:
        if other.scope != first.scope:
            a, b = described_scope(first), described_scope(other)
            raise ScopeError(f"{verb}: one stream is {a}, the other {b}; {_way_together(first.scope, other.scope)}")


def described_scope(stream: Stream) -> str:
    """The place of a stream, for errors: its loop, or outside of any."""
    head = stream.env._graph.heads.get(stream.scope)
    return "outside of any loop" if head is None else f"in loop {head.name!r}"


def _way_together(first: StreamScope, second: StreamScope) -> str:
    if first.is_inner_of(second):
        return "bring the other one in: other.enter(stream.scope)"
    if second.is_inner_of(first):
        return "bring the first one in, stream.enter(other.scope), or return the other one as an output of its loop"
    return "return one as an output of its loop, and bring it into the loop of the other with enter(scope)"


def add_node(
    stream: Stream,
    operator: Operator,
    edges: tuple[Edge, ...],
    verb: str,
    options: dict[str, Any],
    form: Form,
    columns: tuple[str, ...] | None,
    scope: StreamScope | None = None,
    shape: tuple[Edge, ...] | None = None,
) -> Node:
    """Adds a node in the given scope, or in the stream's. A derived uid comes from `shape`, or from the edges if it is
    None. `options` are the options of every verb: `uid`, `name`, `parallelism`, and `on_error` where the verb runs user
    code. Raises `GraphError` for other ones."""
    unknown = set(options) - {"uid", "name", "parallelism", "on_error"}
    if unknown:
        options_of_verb = [*own_options(type(stream), verb), *own_options(type(stream.env), verb)]
        taken = ", ".join([*options_of_verb, "uid", "name"])
        hint = did_you_mean(unknown, [*options_of_verb, "uid", "name", "parallelism"])
        raise GraphError(
            f"{verb}: unknown option {', '.join(sorted(unknown))}; the options are {taken} and parallelism{hint}"
        )
    name, uid, parallelism = options.get("name"), options.get("uid"), options.get("parallelism")
    follows = None if parallelism is not None else follows_of(stream, edges)
    if isinstance(parallelism, WidthOf):
        follows = (parallelism.node,)
        parallelism = int(parallelism)
    if form == "rows" and columns is not None:
        check_attributes(columns, verb)
    return stream.env._graph.add(
        operator,
        edges,
        verb=verb,
        name=check_name(name, verb, "name") if name is not None else default_name(verb, operator),
        uid=uid,
        parallelism=parallelism if parallelism is not None else default_parallelism(stream, edges),
        form=form,
        columns=columns,
        scope=stream.scope if scope is None else scope,
        shape=shape,
        on_error=policy_of(operator, form, options.get("on_error"), stream.env.on_error, verb),
        follows=follows,
    )


class WidthOf(int):
    """The parallelism of a node, as that of another one that is to have it in every size of the job."""

    node: int

    def __new__(cls, node: Node) -> WidthOf:
        made = super().__new__(cls, node.parallelism)
        made.node = node.id
        return made


def default_parallelism(stream: Stream, edges: tuple[Edge, ...]) -> int:
    """The parallelism of an operator if the user gives none: the input's for a forwarding operator, else the loop's, or the
    environment's outside of loops."""
    if all(isinstance(edge.partitioning, ops.Forward) for edge in edges):
        return stream._default_parallelism()
    return stream._usual_parallelism()


def follows_of(stream: Stream, edges: tuple[Edge, ...]) -> tuple[int, ...]:
    """The nodes whose parallelism an operator has if the user gives none (`Node.follows`)."""
    if stream._upstreams and all(isinstance(edge.partitioning, ops.Forward) for edge in edges):
        return tuple(node for node, _ in stream._upstreams)
    head = stream.env._graph.heads.get(stream.scope)
    return () if head is None else (head.id,)


def default_name(verb: str, operator: Operator) -> str:
    """The name of an operator if the user gives none: the verb, with the function's name unless it is a lambda."""
    fn = getattr(operator, "fn", None)
    described = describe_selector(fn) if fn is not None else ""
    return f"{verb}: {described}" if described and described != "λ" else verb
