"""Graph algorithms over DataFrames: edges (src, dst) in, a DataFrame of vertices out.

`algorithms` has the functions that users call, `graphframe` the names of GraphFrames, `frames` the way from DataFrames to
numbers and back. `supersteps` runs a `VertexProgram`: a loop in rounds whose operator holds a slice of the graph in arrays;
`paths`, `ranks`, `hits`, `walks` and `neighbours` are such programs. The room `live` is for edges that come and go.
`forests` reduces edges where that is enough, without a loop. `pregel` is for programs in rows. All of it is written with
the public verbs, and runs wherever a job runs. Needs `tailrace[graphs]`.
"""

from typing import Any

import tailrace as tr
from tailrace.graphs.algorithms import (
    aggregate_messages,
    bfs,
    clustering_coefficient,
    connected_components,
    degrees,
    hits,
    jaccard_similarity,
    k_core,
    label_propagation,
    maximal_independent_set,
    minimum_spanning_forest,
    pagerank,
    random_walks,
    shortest_paths,
    strongly_connected_components,
    triangle_count,
)
from tailrace.graphs.frames import NumberedGraph
from tailrace.graphs.graphframe import GraphFrame
from tailrace.graphs.pregel import Pregel
from tailrace.graphs.supersteps import (
    Adjacency,
    ReceivedMessages,
    SentMessages,
    VertexProgram,
    VertexSlice,
    bits,
    doubles,
)
from tailrace.graphs.supersteps import run as _run


def pregel(
    edges: Any, program: VertexProgram, vertices: Any = None, *, weight: str | None = None, env: Any = None
) -> Any:
    """The result of a vertex program in columns, as a DataFrame of its `schema`. A column `id` gets back the ids of the
    graph."""
    if not isinstance(program, VertexProgram):
        raise tr.TypeMismatch(f"pregel: expected a graphs.VertexProgram, got {type(program).__name__}")
    graph = NumberedGraph(edges, vertices, weight, env, "pregel")
    found = _run(program, graph.edges, graph.vertices).to_dataframe()
    return graph.back(found, "id") if "id" in program.schema.names else found


__all__ = [
    "Adjacency",
    "GraphFrame",
    "Pregel",
    "ReceivedMessages",
    "SentMessages",
    "VertexProgram",
    "VertexSlice",
    "aggregate_messages",
    "bfs",
    "bits",
    "clustering_coefficient",
    "connected_components",
    "degrees",
    "doubles",
    "hits",
    "jaccard_similarity",
    "k_core",
    "label_propagation",
    "maximal_independent_set",
    "minimum_spanning_forest",
    "pagerank",
    "pregel",
    "random_walks",
    "shortest_paths",
    "strongly_connected_components",
    "triangle_count",
]
