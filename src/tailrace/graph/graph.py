"""The graph of nodes and edges that the user writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tailrace.elements.batches import Form
from tailrace.errors import GraphError, written_here
from tailrace.graph.operators import Head, Judge, Operator, Partitioning, Sink, Source, Tail
from tailrace.graph.scope import NO_LOOP, StreamScope
from tailrace.graph.uids import check_uid, derived_uid, with_distinct_uids

MAX_SUBTASKS = 32_768
"""Upper bound of any parallelism: subtasks and key groups are uint16 on the wire."""


@dataclass(frozen=True)
class Edge:
    """An edge: records of `source` (its main output, or its side output `tag`) go to input `port` of the node that holds
    the edge."""

    source: int
    port: int
    partitioning: Partitioning
    tag: str | None = None


@dataclass(frozen=True)
class Node:
    """One operator of the graph with the edges into it."""

    id: int
    operator: Operator
    name: str
    uid: str
    uid_given: bool
    parallelism: int
    form: Form
    inputs: tuple[Edge, ...]
    columns: tuple[str, ...] | None = None
    """The column names of the output, if they are known when the graph is written."""
    scope: StreamScope = NO_LOOP
    """The loops that the operator is in."""
    written: str = field(default="", compare=False, repr=False)
    """The verb, and the line of the user's program that calls it. For errors only: it does not count in comparisons."""
    on_error: Any = "fail"
    """The policy for records that fail (`api.failure_options`)."""
    follows: tuple[int, ...] | None = None
    """The nodes whose parallelism it has, where that is not its own; none: it has the environment's. See `graph.sizes`."""


@dataclass(frozen=True)
class Graph:
    """A validated set of nodes in topological order (ids ascend along every edge)."""

    nodes: tuple[Node, ...]
    max_parallelism: int

    def node(self, ident: int) -> Node:
        """The node with this id."""
        return self._by_id[ident]

    @cached_property
    def _by_id(self) -> dict[int, Node]:
        return {node.id: node for node in self.nodes}


@dataclass
class GraphBuilder:
    """The nodes that the user has written so far. `subgraph` freezes the part that leads to some sinks.

    Invariant I2: nodes that were written in a loop's body that raised are void: they never run, their uids are free again,
    and nothing can be built on them.
    Invariant I3: the operators of one execution have different uids (`subgraph`). Beyond that a uid is taken as long as its
    operator may still run or is running: when its job has ended, the next job goes on under it, from the same state.
    """

    max_parallelism: int
    nodes: list[Node] = field(default_factory=list)
    root: StreamScope = field(default_factory=StreamScope)
    """The scope outside of loops: an object of its own for each graph, so that each graph counts its own loops."""
    heads: dict[StreamScope, Node] = field(default_factory=dict)
    """Scope of a loop -> its head."""
    _void: set[int] = field(default_factory=set)
    _closing: dict[StreamScope, list[int]] = field(default_factory=dict)
    """Scope of a loop -> its tail and its judge, as far as it has them."""
    _unclosed: dict[StreamScope, Node] = field(default_factory=dict)
    """Scope of a loop whose body is being written -> its head."""
    ended: Callable[[], Collection[int]] = tuple
    """Function that returns the nodes of ended jobs that neither a running job nor a pending sink needs."""

    def add(
        self,
        operator: Operator,
        inputs: tuple[Edge, ...],
        *,
        verb: str,
        name: str,
        uid: str | None,
        parallelism: int,
        form: Form,
        columns: tuple[str, ...] | None = None,
        scope: StreamScope = NO_LOOP,
        shape: tuple[Edge, ...] | None = None,
        on_error: Any = "fail",
        follows: tuple[int, ...] | None = None,
    ) -> Node:
        """Adds a node. A derived uid comes from `shape`, or from the inputs if it is None. Raises `GraphError` for a bad
        parallelism or a void input, and `UidError` for a bad uid or one that is taken."""
        check_parallelism(parallelism, self.max_parallelism, f"operator {name!r}")
        self._check_not_void(inputs, name)
        ident = len(self.nodes)
        if uid is not None:
            check_uid(uid, name, self._nodes_with_uids())
        edges = [(self.nodes[one.source], one.port, one.tag) for one in (inputs if shape is None else shape)]
        chosen = uid if uid is not None else derived_uid(verb, edges, self._nodes_with_uids())
        written = written_here(verb)
        given = uid is not None
        rest = form, inputs, columns, scope, written, on_error, follows
        node = Node(ident, operator, name, chosen, given, parallelism, *rest)
        self.nodes.append(node)
        if isinstance(operator, Head):
            self.heads[scope] = node
        elif isinstance(operator, Tail | Judge):
            self._closing.setdefault(scope, []).append(ident)
        return node

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """A `with` block in which a loop is written as a whole: if the block raises, the nodes added in it become void."""
        start = len(self.nodes)
        try:
            yield
            self._unclosed = {scope: head for scope, head in self._unclosed.items() if head.id < start}
        except BaseException:
            self._void.update(range(start, len(self.nodes)))
            self.heads = {scope: head for scope, head in self.heads.items() if head.id < start}
            self._unclosed = {scope: head for scope, head in self._unclosed.items() if head.id < start}
            raise

    def begin_body(self, head: Node) -> None:
        """Notes that the body of this loop is being written, until the `with` block that it is in ends."""
        self._unclosed[head.scope] = head

    def check_closed(self, sinks: set[int]) -> None:
        """Raises `GraphError` if one of these sinks needs a loop whose body is being written: the loop has no feedback yet,
        and would run as another loop than the user means."""
        for node in self.subgraph(sinks).nodes if self._unclosed else ():
            if node.scope in self._unclosed:
                raise GraphError(
                    f"loop {self._unclosed[node.scope].name!r} cannot run while its body is being written; run it, or "
                    f"collect its output, after iterate has returned"
                )

    def subgraph(self, sinks: set[int]) -> Graph:
        """The part of the graph that these sinks need. Raises `GraphError` if it has no source."""
        needed, open_ = set(sinks), list(sinks)
        while open_:
            for ident in self._needs(self.nodes[open_.pop()]):
                if ident not in needed:
                    needed.add(ident)
                    open_.append(ident)
        nodes = tuple(node for node in self.nodes if node.id in needed)
        if not any(isinstance(node.operator, Source) for node in nodes):
            raise GraphError(
                "the dataflow has nothing to run: add a source and a sink (sink_to, collect, to_dataframe)"
            )
        return Graph(with_distinct_uids(nodes), self.max_parallelism)

    def _needs(self, node: Node) -> Iterator[int]:
        """The nodes that a node cannot run without: its inputs, and the head, tail and judge of the loop that it is in. A
        loop runs as a whole."""
        yield from (edge.source for edge in node.inputs)
        if node.scope in self.heads:
            yield self.heads[node.scope].id
            yield from self._closing.get(node.scope, ())

    def valid(self) -> list[Node]:
        """All nodes that are not void."""
        return [node for node in self.nodes if node.id not in self._void]

    def sinks(self) -> set[int]:
        """The ids of all sinks."""
        return {node.id for node in self.valid() if isinstance(node.operator, Sink)}

    def _check_not_void(self, inputs: tuple[Edge, ...], name: str) -> None:
        for edge in inputs:
            if edge.source in self._void:
                raise GraphError(
                    f"operator {name!r}: its input {self.nodes[edge.source].name!r} was written in the body of a loop that "
                    f"raised, and was dropped with it; write the loop again"
                )

    def _nodes_with_uids(self) -> list[Node]:
        """The nodes whose uids no other node may have."""
        ended = self.ended()
        return [node for node in self.valid() if node.id not in ended]


def unbounded_before(node_of: Callable[[int], Node], starts: Iterable[int]) -> Node | None:
    """An unbounded source among these nodes and the nodes that lead to them, or None."""
    open_ = list(starts)
    seen = set(open_)
    while open_:
        node = node_of(open_.pop())
        if isinstance(node.operator, Source) and not node.operator.source.bounded:
            return node
        fresh = {edge.source for edge in node.inputs} - seen
        seen |= fresh
        open_ += fresh
    return None


def check_parallelism(parallelism: object, max_parallelism: int, who: str) -> None:
    """Raises `GraphError` unless 1 <= parallelism <= max_parallelism."""
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
        raise GraphError(f"{who}: parallelism must be a whole number of at least 1, not {parallelism!r}")
    if parallelism > max_parallelism:
        raise GraphError(
            f"{who}: parallelism {parallelism} is above the maximum of {max_parallelism} (the number of key "
            f"groups); lower it, or give the Environment a larger max_parallelism"
        )
