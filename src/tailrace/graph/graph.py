"""Nodes and edges, as they were said."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from tailrace.elements.batches import Form
from tailrace.errors import GraphError, UidError
from tailrace.graph.operators import Operator, Partitioning, Sink, Source

MAX_SUBTASKS = 32_768
"""An upper bound of any parallelism: subtasks and key groups are uint16 on the wire."""


@dataclass(frozen=True)
class Edge:
    """Records of `source` (its main output, or the side output `tag`) go to input `port` of the node that holds it."""

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
    """The column names of what it emits, where they are known when the graph is written."""


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
    """Collects nodes while the user writes; `subgraph` freezes what leads to some sinks."""

    max_parallelism: int
    nodes: list[Node] = field(default_factory=list)

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
    ) -> Node:
        """Appends a node. Raises `GraphError` for a bad parallelism and `UidError` for a uid that is taken."""
        check_parallelism(parallelism, self.max_parallelism, name)
        ident = len(self.nodes)
        if uid is not None:
            self._check_uid(uid, name)
        chosen = uid if uid is not None else self._derived_uid(verb, inputs)
        node = Node(ident, operator, name, chosen, uid is not None, parallelism, form, inputs, columns)
        self.nodes.append(node)
        return node

    def subgraph(self, sinks: set[int]) -> Graph:
        """The part of the graph that these sinks need. Raises `GraphError` where there is nothing to run."""
        wanted, open_ = set(sinks), list(sinks)
        while open_:
            for edge in self.nodes[open_.pop()].inputs:
                if edge.source not in wanted:
                    wanted.add(edge.source)
                    open_.append(edge.source)
        nodes = tuple(node for node in self.nodes if node.id in wanted)
        if not any(isinstance(node.operator, Source) for node in nodes):
            raise GraphError(
                "the dataflow has nothing to run: add a source and a sink (sink_to, collect, to_dataframe)"
            )
        return Graph(nodes, self.max_parallelism)

    def sinks(self) -> set[int]:
        """The ids of all sinks."""
        return {node.id for node in self.nodes if isinstance(node.operator, Sink)}

    def _check_uid(self, uid: str, name: str) -> None:
        if not isinstance(uid, str) or not uid or len(uid) > 200:
            raise UidError(f"operator {name!r}: a uid is a text of 1 to 200 characters, not {uid!r}")
        for node in self.nodes:
            if node.uid == uid:
                raise UidError(f"operator {name!r}: the uid {uid!r} is taken by operator {node.name!r}; choose another")

    def _derived_uid(self, verb: str, inputs: tuple[Edge, ...]) -> str:
        """An identity from the shape of the graph: the verb, its inputs' identities, and how often both came before.
        Names are for people, and may be changed without losing state."""
        shape = [verb.partition(":")[0], *(f"{self.nodes[e.source].uid}/{e.port}/{e.tag or ''}" for e in inputs)]
        digest = hashlib.sha256("|".join(shape).encode()).hexdigest()[:12]
        taken = Counter(node.uid.partition("#")[0] for node in self.nodes)[digest]
        return digest if not taken else f"{digest}#{taken}"


def check_parallelism(parallelism: object, max_parallelism: int, who: str) -> None:
    """Raises `GraphError` unless 1 <= parallelism <= max_parallelism."""
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
        raise GraphError(f"operator {who!r}: parallelism must be a whole number of at least 1, not {parallelism!r}")
    if parallelism > max_parallelism:
        raise GraphError(
            f"operator {who!r}: parallelism {parallelism} is above the maximum of {max_parallelism} (the number of key "
            f"groups); lower it, or give the Environment a larger max_parallelism"
        )
