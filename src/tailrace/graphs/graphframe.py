"""A door for programs that were written for GraphFrames: its names, its columns, our algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tailrace as tr
from tailrace.graphs import algorithms


class GraphFrame:
    """A graph of two DataFrames: vertices with a column `id`, edges with columns `src` and `dst`. Methods have the names,
    arguments and result columns of GraphFrames; what a method of GraphFrames takes to steer its own run (`algorithm`,
    `checkpointInterval` and the like) is taken and not needed."""

    def __init__(self, v: Any, e: Any) -> None:
        for name, df, columns in (("vertices", v, ("id",)), ("edges", e, ("src", "dst"))):
            missing = [column for column in columns if column not in df.columns]
            if missing:
                raise tr.TypeMismatch(
                    f"GraphFrame: {name} have no column {missing[0]!r}; there are {', '.join(df.columns)}"
                )
        self.vertices, self.edges = v, e

    def __repr__(self) -> str:
        return f"GraphFrame(v:{self.vertices.columns}, e:{self.edges.columns})"

    def _with(self, found: Any) -> Any:
        twice = [column for column in found.columns if column in self.vertices.columns and column != "id"]
        if twice:
            raise tr.TypeMismatch(f"GraphFrame: vertices have a column {twice[0]!r} already; drop it, or rename it")
        return self.vertices.join(found, "id", "left")

    @property
    def degrees(self) -> Any:
        """DataFrame (id, degree) of vertices that have edges."""
        return algorithms.degrees(self.edges).select("id", "degree")

    @property
    def inDegrees(self) -> Any:
        """DataFrame (id, inDegree) of vertices that have edges in."""
        found = algorithms.degrees(self.edges).where("in_degree > 0")
        return found.select("id", found["in_degree"].alias("inDegree"))

    @property
    def outDegrees(self) -> Any:
        """DataFrame (id, outDegree) of vertices that have edges out."""
        found = algorithms.degrees(self.edges).where("out_degree > 0")
        return found.select("id", found["out_degree"].alias("outDegree"))

    def connectedComponents(self, *_: Any, **__: Any) -> Any:
        """The vertices with their `component`."""
        return self._with(algorithms.connected_components(self.edges, self.vertices))

    def stronglyConnectedComponents(self, maxIter: int = 0, **_: Any) -> Any:
        """The vertices with their `component`. It is exact, whatever `maxIter` is."""
        return self._with(algorithms.strongly_connected_components(self.edges, self.vertices))

    def pageRank(
        self,
        resetProbability: float = 0.15,
        sourceId: Any = None,
        maxIter: int | None = None,
        tol: float | None = None,
    ) -> GraphFrame:
        """The graph with a column `pagerank` of its vertices, which sum to their number, or to 1 from one source, and a
        column `weight` of its edges: 1 for each, divided by the edges out of its source."""
        if (maxIter is None) == (tol is None):
            raise tr.ConfigError("pageRank: give maxIter or tol, and not both")
        ranks = algorithms.pagerank(
            self.edges,
            self.vertices,
            damping=1 - resetProbability,
            tolerance=tol,
            max_iter=maxIter,
            sources=None if sourceId is None else [sourceId],
        )
        count = self.vertices.count() if sourceId is None else 1
        vertices = self._with(ranks.select("id", (ranks["rank"] * count).alias("pagerank")))
        out = self.outDegrees
        weights = out.select(out["id"].alias("src"), (1.0 / out["outDegree"]).alias("weight"))
        return GraphFrame(vertices, self.edges.join(weights, "src"))

    def shortestPaths(self, landmarks: Sequence[Any], *_: Any, **__: Any) -> Any:
        """The vertices with `distances`, a map from each landmark that they reach to the number of edges to it."""
        from pyspark.sql import functions as F

        back = self.edges.select(self.edges["dst"].alias("src"), self.edges["src"].alias("dst"))
        found = algorithms.bfs(back, landmarks)
        pairs = F.collect_list(F.struct("source", found["distance"].cast("int")))
        maps = found.groupBy("id").agg(F.map_from_entries(pairs).alias("distances"))
        joined = self._with(maps)
        kind = joined.schema["distances"].dataType.simpleString()
        return joined.withColumn("distances", F.coalesce("distances", F.create_map().cast(kind)))

    def labelPropagation(self, maxIter: int, *_: Any, **__: Any) -> Any:
        """The vertices with their `label`."""
        return self._with(algorithms.label_propagation(self.edges, self.vertices, max_iter=maxIter))

    def triangleCount(self, *_: Any, **__: Any) -> Any:
        """The vertices with the `count` of their triangles."""
        return self._with(algorithms.triangle_count(self.edges, self.vertices))

    def k_core(self, *_: Any, **__: Any) -> Any:
        """The vertices with their core number in `kcore`."""
        return self._with(algorithms.k_core(self.edges, self.vertices).withColumnRenamed("core", "kcore"))

    def maximal_independent_set(self, *_: Any, seed: int = 42, **__: Any) -> Any:
        """The vertices of a maximal independent set."""
        return algorithms.maximal_independent_set(self.edges, self.vertices, seed=seed)

    def aggregateMessages(
        self,
        aggCol: Any,
        sendToSrc: Any = None,
        sendToDst: Any = None,
    ) -> Any:
        """What all messages to each vertex amount to, as `graphs.aggregate_messages`: the column of a message is
        "message"."""
        return algorithms.aggregate_messages(self.vertices, self.edges, aggCol, to_src=sendToSrc, to_dst=sendToDst)

    def filterEdges(self, condition: Any) -> GraphFrame:
        """The graph with the edges for which the condition holds."""
        return GraphFrame(self.vertices, self.edges.where(condition))

    def filterVertices(self, condition: Any) -> GraphFrame:
        """The graph with the vertices for which the condition holds, and the edges between these."""
        vertices = self.vertices.where(condition)
        ids = vertices.select("id")
        edges = self.edges.join(ids.withColumnRenamed("id", "src"), "src", "left_semi")
        return GraphFrame(vertices, edges.join(ids.withColumnRenamed("id", "dst"), "dst", "left_semi"))

    def dropIsolatedVertices(self) -> GraphFrame:
        """The graph without vertices that have no edge."""
        ends = self.edges.select(self.edges["src"].alias("id")).union(self.edges.select("dst")).distinct()
        return GraphFrame(self.vertices.join(ends, "id", "left_semi"), self.edges)

    @property
    def triplets(self) -> Any:
        """DataFrame (src, edge, dst) of structs, one row for each edge."""
        from pyspark.sql import functions as F

        src, dst = (self.vertices.select(F.struct(*self.vertices.columns).alias(name)) for name in ("src", "dst"))
        edge = self.edges.select(F.struct(*self.edges.columns).alias("edge"))
        joined = edge.join(src, F.col("edge.src") == F.col("src.id")).join(dst, F.col("edge.dst") == F.col("dst.id"))
        return joined.select("src", "edge", "dst")

    def __getattr__(self, name: str) -> Any:
        known = {
            "find": "join the edges with themselves in Spark",
            "bfs": "use graphs.bfs(edges, sources): distances and parents",
            "parallelPersonalizedPageRank": "call graphs.pagerank(edges, sources=[one]) for each source",
            "svdPlusPlus": "it is no algorithm of a loop over a graph; use a library for recommendations",
            "powerIterationClustering": "use pyspark.ml.clustering.PowerIterationClustering",
            "pregel": "write a graphs.VertexProgram and run it by graphs.pregel(edges, program)",
        }
        if name in known:
            raise tr.ConfigError(f"GraphFrame.{name} is not here: {known[name]}")
        raise AttributeError(f"GraphFrame has no {name!r}")
