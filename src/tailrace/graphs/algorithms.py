"""Algorithms from DataFrame to DataFrame. Each takes edges (src, dst) and, for vertices without edges, `vertices` (id)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tailrace as tr
from tailrace.graphs import forests, supersteps
from tailrace.graphs.frames import NumberedGraph, check_frame
from tailrace.graphs.hits import Hits
from tailrace.graphs.live import verbs as live
from tailrace.graphs.neighbours import IndependentSet, KCore, LabelPropagation, Triangles
from tailrace.graphs.paths import ShortestPaths
from tailrace.graphs.ranks import PageRank
from tailrace.graphs.walks import BiasedWalks, RandomWalks


def connected_components(
    edges: Any, vertices: Any = None, *, env: tr.Environment | None = None, uid: str | None = None
) -> Any:
    """The component of each vertex, edges taken both ways: a DataFrame (id, component). `component` is the least id in it.

    Of a stream of changes ("+" or "-", src, dst) it is a stream of changes (op, id, component). A vertex is there while it
    has an edge. The state belongs to `uid`."""
    if isinstance(edges, tr.DataStream):
        _without("connected_components", vertices=vertices, env=env)
        return live.connected_components(edges, uid)
    _no_uid("connected_components", uid)
    return _components("connected_components", forests.Stars(), forests.Components(), edges, vertices, env)


def strongly_connected_components(edges: Any, vertices: Any = None, *, env: tr.Environment | None = None) -> Any:
    """The strong component of each vertex: a DataFrame (id, component). `component` is the least id in it. All edges are
    in the memory of one subtask at the end."""
    return _components(
        "strongly_connected_components", forests.Distinct(), forests.StrongComponents(), edges, vertices, env
    )


def _components(verb: str, local: Any, final: Any, edges: Any, vertices: Any, env: Any) -> Any:
    graph = NumberedGraph(edges, vertices, env=env, verb=verb)
    found = forests.run(local, final, graph.edges, graph.vertices).to_dataframe()
    found = graph.back(found, "id") if not graph.whole else graph.back(found, "id", "component")
    if graph.whole:
        return found
    from pyspark.sql import functions as F

    least = found.groupBy("component").agg(F.min("id").alias("_least"))
    return found.join(least, "component").select("id", least["_least"].alias("component"))


def minimum_spanning_forest(edges: Any, weight: str, *, env: tr.Environment | None = None) -> Any:
    """The edges of a minimum spanning forest, taken both ways: a DataFrame (src, dst, weight). `weight` names the column of
    weights. Of edges of one weight the one whose lesser end is the least counts, then whose greater end is: the forest is
    always the same."""
    graph = NumberedGraph(edges, weight=weight, env=env, verb="minimum_spanning_forest")
    found = forests.run(forests.SpanningForest(), forests.SpanningForest(), graph.edges).to_dataframe()
    return graph.back(found, "src", "dst")


def pagerank(
    edges: Any,
    vertices: Any = None,
    *,
    damping: float = 0.85,
    tolerance: float | None = 1e-9,
    max_iter: int | None = None,
    sources: Sequence[Any] | None = None,
    weight: str | None = None,
    max_seconds: float | None = None,
    env: tr.Environment | None = None,
    uid: str | None = None,
) -> Any:
    """The rank of each vertex: a DataFrame (id, rank). Ranks sum to 1.

    A surfer follows an edge with the probability `damping`, in proportion to the column `weight` or all alike, and begins
    anew otherwise, at a vertex without edges out always: at any vertex, or at one of `sources` (personalised). Edges side
    by side count as often as they are there. It ends when the ranks have changed by `tolerance` or less in sum, or after
    `max_iter` steps or `max_seconds`. A rank is the same at each parallelism. Raises `tr.ConfigError` for settings that
    have no such result.

    Of a stream of changes ("+" or "-", src, dst) or ("+" or "-", src, dst, weight) it is a stream of changes (op, id,
    score). A score by the sum of all scores is the rank; these ranks differ from the exact ones by `tolerance` or less, in
    sum."""
    if not 0 <= damping < 1:
        raise tr.ConfigError(f"pagerank: damping must be from 0 to less than 1, not {damping!r}")
    _check_end("pagerank", tolerance, max_iter)
    if isinstance(edges, tr.DataStream):
        _without("pagerank", vertices=vertices, max_iter=max_iter, weight=weight, max_seconds=max_seconds, env=env)
        assert tolerance is not None  # it is refused with max_iter, without which it is there
        return live.pagerank(edges, damping, tolerance, sources, uid)
    _no_uid("pagerank", uid)
    graph = NumberedGraph(edges, vertices, weight, env, "pagerank")
    numbers = None if sources is None else graph.numbers(sources, "sources")
    program = PageRank(damping, tolerance, _most(max_iter, "pagerank"), numbers)
    found = supersteps.run(program, graph.edges, graph.vertices, _limit(max_seconds, "pagerank"))
    return graph.back(found.to_dataframe(), "id")


def hits(
    edges: Any,
    vertices: Any = None,
    *,
    tolerance: float | None = 1e-9,
    max_iter: int | None = None,
    max_seconds: float | None = None,
    env: tr.Environment | None = None,
) -> Any:
    """Hubs and authorities: a DataFrame (id, hub, authority). Each of the two sums to 1, or is 0 where there are no edges.

    All hubs are alike at first. An authority is as great as the hubs that lead to it are together, then a hub as the
    authorities that it leads to, and so on, until the authorities have changed by `tolerance` or less in sum, or after
    `max_iter` turns or `max_seconds`. Edges side by side count once. A result is the same at each parallelism."""
    _check_end("hits", tolerance, max_iter)
    program = Hits(tolerance, _most(max_iter, "hits"))
    return _program("hits", program, edges, vertices, env, seconds=max_seconds)


def shortest_paths(
    edges: Any,
    sources: Sequence[Any],
    *,
    weight: str | None = None,
    directed: bool = True,
    max_hops: int | None = None,
    max_seconds: float | None = None,
    env: tr.Environment | None = None,
    uid: str | None = None,
) -> Any:
    """The shortest ways from each of `sources` to each vertex that it reaches: a DataFrame (id, source, distance, parent).

    `weight` names the column of lengths, 0 or more; without it each edge is 1 long. `parent` is the vertex before on the
    way, null for the source itself: the one with the fewest hops behind it, and of these the least id. `directed=False`
    takes edges both ways. `max_hops` bounds the edges of a way; with a weight, too, the row of `parent` may be of a
    shorter way with more edges. `max_seconds` gives the shortest of the ways that are known by then: others may be shorter,
    or lead further. A source that is no vertex has no rows.

    Of a stream of changes ("+" or "-", src, dst) or ("+" or "-", src, dst, length) it is a stream of changes (op, id,
    source, distance, parent)."""
    if isinstance(edges, tr.DataStream):
        _without("shortest_paths", weight=weight, max_hops=max_hops, max_seconds=max_seconds, env=env)
        return live.shortest_paths(edges, sources, directed, uid)
    _no_uid("shortest_paths", uid)
    graph = NumberedGraph(edges, None, weight, env, "shortest_paths")
    program = ShortestPaths(
        graph.numbers(sources, "sources"), weight is not None, not directed, _most(max_hops, "shortest_paths")
    )
    found = supersteps.run(program, graph.edges, None, _limit(max_seconds, "shortest_paths"))
    return graph.back(found.to_dataframe(), "id", "source", "parent")


def bfs(edges: Any, sources: Sequence[Any], *, directed: bool = True, env: tr.Environment | None = None) -> Any:
    """The number of edges from each of `sources` to each vertex that it reaches: a DataFrame (id, source, distance,
    parent), with whole distances, otherwise as `shortest_paths`."""
    if isinstance(edges, tr.DataStream):
        raise tr.TypeMismatch("bfs: of a stream of changes of edges take shortest_paths, with changes without a length")
    found = shortest_paths(edges, sources, directed=directed, env=env)
    return found.withColumn("distance", found["distance"].cast("long"))


def k_core(edges: Any, vertices: Any = None, *, env: tr.Environment | None = None, uid: str | None = None) -> Any:
    """The core number of each vertex: a DataFrame (id, core). Edges count both ways and once, those of a vertex with
    itself not. Of a stream of changes ("+" or "-", src, dst) it is a stream of changes (op, id, core)."""
    if isinstance(edges, tr.DataStream):
        _without("k_core", vertices=vertices, env=env)
        return live.k_core(edges, uid)
    _no_uid("k_core", uid)
    return _program("k_core", KCore(), edges, vertices, env)


def triangle_count(edges: Any, vertices: Any = None, *, env: tr.Environment | None = None) -> Any:
    """The number of triangles with each vertex: a DataFrame (id, count). Edges count both ways and once."""
    return _program("triangle_count", Triangles(), edges, vertices, env).select("id", "count")


def clustering_coefficient(edges: Any, vertices: Any = None, *, env: tr.Environment | None = None) -> Any:
    """The part of pairs of neighbours that are neighbours themselves: a DataFrame (id, coefficient), 0 for a vertex with
    fewer than two neighbours. Edges count both ways and once."""
    from pyspark.sql import functions as F

    found = _program("clustering_coefficient", Triangles(), edges, vertices, env)
    pairs = found["degree"] * (found["degree"] - 1)
    return found.select("id", F.when(pairs > 0, 2 * found["count"] / pairs).otherwise(0.0).alias("coefficient"))


def label_propagation(
    edges: Any,
    vertices: Any = None,
    *,
    max_iter: int = 5,
    max_seconds: float | None = None,
    env: tr.Environment | None = None,
    uid: str | None = None,
) -> Any:
    """Communities by labels that spread: a DataFrame (id, label). Each vertex begins with its id as its label. In each of
    at most `max_iter` steps, for at most `max_seconds`, all vertices at once take the label that most of their edges have
    at the other end, in both directions, and the least of several. Ids of other types than whole numbers are compared by
    their hashes.

    Of a stream of changes ("+" or "-", src, dst) it is a stream of changes (op, id, label). Texts are compared as texts."""
    steps = _most(max_iter, "label_propagation")
    if steps is None:
        raise tr.ConfigError("label_propagation: give max_iter, the number of steps: labels may swap forever")
    if isinstance(edges, tr.DataStream):
        _without("label_propagation", vertices=vertices, max_seconds=max_seconds, env=env)
        return live.label_propagation(edges, steps, uid)
    _no_uid("label_propagation", uid)
    program = LabelPropagation(steps)
    return _program("label_propagation", program, edges, vertices, env, "label", seconds=max_seconds)


def maximal_independent_set(
    edges: Any, vertices: Any = None, *, seed: int = 0, env: tr.Environment | None = None
) -> Any:
    """Vertices of which no two are neighbours, and to which none can be added: a DataFrame (id). `seed` draws the order in
    which vertices come; the set is the same at each parallelism."""
    return _program("maximal_independent_set", IndependentSet(seed), edges, vertices, env)


def random_walks(
    edges: Any,
    vertices: Any = None,
    *,
    walks: int = 1,
    length: int = 10,
    p: float = 1.0,
    q: float = 1.0,
    seed: int = 0,
    env: tr.Environment | None = None,
) -> Any:
    """Random walks along edges, `walks` from each vertex, each until it has made `length` steps or finds no edge out: a
    DataFrame (start, walk, step, id). `seed` draws them; they are the same at each parallelism.

    Each edge out of a vertex is as likely. With `p` or `q`, from 0.01 to 100, a walk depends on the step before, as in
    node2vec: an edge back to the vertex before has the weight 1/p, one to a vertex to which that one leads as well has 1,
    any other one 1/q."""
    for name, given, least in (("walks", walks, 1), ("length", length, 0)):
        if not isinstance(given, int) or given < least:
            raise tr.ConfigError(f"random_walks: {name} must be {least} or more, not {given!r}")
    for name, weight in (("p", p), ("q", q)):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.01 <= weight <= 100:
            raise tr.ConfigError(f"random_walks: {name} must be from 0.01 to 100, not {weight!r}")
    alike = p == q == 1
    program = RandomWalks(walks, length, seed) if alike else BiasedWalks(walks, length, seed, p, q)
    return _program("random_walks", program, edges, vertices, env, "start")


def jaccard_similarity(edges: Any, threshold: float) -> Any:
    """Pairs of vertices that lead to much in common: a DataFrame (id, other, jaccard) of `id` < `other`.

    `jaccard` is the number of vertices to which both lead by the number of those to which one of them does; pairs with
    `threshold` or more are in the result, and all of these. Edges side by side count once. `src` and `dst` may be of two
    types: persons, and what they have bought. Spark computes all of it: two sets are compared if they have one of their
    rarest items in common, as any two must that are so much alike (Chaudhuri, Ganti and Kaushik, "A Primitive Operator for
    Similarity Joins", 2006)."""
    from pyspark.sql import functions as F

    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise tr.ConfigError(f"jaccard_similarity: threshold must be above 0 and at most 1, not {threshold!r}")
    check_frame(edges, ("src", "dst"), "edges", "jaccard_similarity")
    items = edges.select(_present(edges["src"]).alias("id"), _present(edges["dst"]).alias("item")).distinct()
    rare = items.groupBy("item").agg(F.count("*").alias("often"))
    sets = (
        items.join(rare, "item")
        .groupBy("id")
        .agg(F.array_sort(F.collect_list(F.struct("often", "item"))).alias("items"))
    )
    size = F.size("items")
    common = F.ceil(size * threshold - 1e-6).cast(
        "int"
    )  # so many at least two sets have in common, one of which this is
    sets = sets.select("id", "items", size.alias("size"), F.slice("items", F.lit(1), size - common + 1).alias("rarest"))
    one = sets.select("id", "size", F.explode("rarest").alias("item"))
    other = one.select(F.col("id").alias("other"), F.col("size").alias("other_size"), "item")
    alike = (F.col("size") * threshold <= F.col("other_size") + 1e-6) & (
        F.col("other_size") * threshold <= F.col("size") + 1e-6
    )
    pairs = one.join(other, "item").where((F.col("id") < F.col("other")) & alike).select("id", "other").distinct()
    others = sets.select(F.col("id").alias("other"), F.col("items").alias("other_items"))
    both = pairs.join(sets.select("id", "items"), "id").join(others, "other")
    shared = F.size(F.array_intersect("items", "other_items"))
    jaccard = shared / (F.size("items") + F.size("other_items") - shared)
    return both.select("id", "other", jaccard.alias("jaccard")).where(F.col("jaccard") >= threshold)


def _present(column: Any) -> Any:
    """The column of ids. Fails the job for one that is null."""
    from pyspark.sql import functions as F

    return F.coalesce(column, F.raise_error(F.lit("an id of a vertex is null; leave such rows out")))


def degrees(edges: Any, vertices: Any = None, *, uid: str | None = None) -> Any:
    """The edges of each vertex: a DataFrame (id, degree, in_degree, out_degree). An edge of a vertex with itself counts
    for both. Of a stream of changes ("+" or "-", src, dst) it is a stream of changes (op, id, degree)."""
    if isinstance(edges, tr.DataStream):
        _without("degrees", vertices=vertices)
        return live.degrees(edges, uid)
    _no_uid("degrees", uid)
    from pyspark.sql import functions as F

    check_frame(edges, ("src", "dst"), "edges", "degrees")
    one, none = F.lit(1).cast("long"), F.lit(0).cast("long")
    ends = edges.select(_present(edges["src"]).alias("id"), none.alias("into"), one.alias("out")).union(
        edges.select(_present(edges["dst"]), one, none)
    )
    if vertices is not None:
        check_frame(vertices, ("id",), "vertices", "degrees")
        ends = ends.union(vertices.select(_present(vertices["id"]), none, none))
    into, out = F.sum("into"), F.sum("out")
    return ends.groupBy("id").agg((into + out).alias("degree"), into.alias("in_degree"), out.alias("out_degree"))


def aggregate_messages(vertices: Any, edges: Any, aggregate: Any, *, to_src: Any = None, to_dst: Any = None) -> Any:
    """What all messages to each vertex amount to: a DataFrame of its `id` and the columns of `aggregate`.

    `to_src` and `to_dst` are messages to the ends of each edge: expressions of the columns of its ends and its own, such as
    `F.col("src.age") + F.col("edge.years")`. `aggregate` is an aggregate of the column "message", such as
    `F.sum("message").alias("sum")`, or a list of these. An edge with an end that is no vertex has no message. Spark computes
    all of it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if to_src is None and to_dst is None:
        raise tr.ConfigError("aggregate_messages: give to_src, to_dst or both")
    check_frame(vertices, ("id",), "vertices", "aggregate_messages")
    check_frame(edges, ("src", "dst"), "edges", "aggregate_messages")
    twice = F.raise_error(F.lit("aggregate_messages: two vertices have one id, and each message would count twice"))
    each = F.count("*").over(Window.partitionBy("id"))
    row = F.struct(*(F.col(f"`{column}`") for column in vertices.columns))
    one = vertices.select(F.when(each == 1, row).otherwise(twice.cast(vertices.schema)).alias("row"))
    src, dst = (one.select(one["row"].alias(name)) for name in ("src", "dst"))
    whole = edges.select(F.struct(*(F.col(f"`{column}`") for column in edges.columns)).alias("edge"))
    whole = whole.join(src, F.col("edge.src") == F.col("src.id")).join(dst, F.col("edge.dst") == F.col("dst.id"))
    sent = [
        whole.select(F.col(f"{end}.id").alias("id"), message.alias("message"))
        for end, message in (("src", to_src), ("dst", to_dst))
        if message is not None
    ]
    all_sent = sent[0] if len(sent) == 1 else sent[0].unionByName(sent[1])
    aggregates = aggregate if isinstance(aggregate, list | tuple) else [aggregate]
    return all_sent.where(F.col("message").isNotNull()).groupBy("id").agg(*aggregates)


def _program(
    verb: str, program: Any, edges: Any, vertices: Any, env: Any, *more: str, seconds: float | None = None
) -> Any:
    graph = NumberedGraph(edges, vertices, env=env, verb=verb)
    found = supersteps.run(program, graph.edges, graph.vertices, _limit(seconds, verb)).to_dataframe()
    return graph.back(found, "id", *more)


def _check_end(verb: str, tolerance: float | None, max_iter: int | None) -> None:
    if tolerance is None and max_iter is None:
        raise tr.ConfigError(f"{verb}: give tolerance, max_iter or both: without them it has no end")
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 1e-15):
        raise tr.ConfigError(f"{verb}: tolerance must be 1e-15 or more, not {tolerance!r}")


def _limit(seconds: float | None, verb: str) -> float | None:
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise tr.ConfigError(f"{verb}: max_seconds must be a number above 0, not {seconds!r}")
    return seconds


def _most(given: int | None, verb: str) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise tr.ConfigError(f"{verb}: the number of steps must be 1 or more, not {given!r}")
    return given


def _without(verb: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            why = (
                "the fourth part of a change is its weight" if name == "weight" else "a change is answered as it comes"
            )
            raise tr.ConfigError(f"{verb}: a stream of changes of edges takes no {name}: {why}")


def _no_uid(verb: str, uid: str | None) -> None:
    if uid is not None:
        raise tr.ConfigError(
            f"{verb}: uid={uid!r} is of the state of a stream of changes; a DataFrame of edges has none"
        )
