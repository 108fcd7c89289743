"""Graphs as DataFrames, on Spark: ids of any type, and what is refused."""

from __future__ import annotations

import random
import uuid
from typing import Any

import networkx as nx
import pytest
from pyspark.sql import functions as F

import tailrace as tr
from tailrace import graphs


def rows(df: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


@pytest.mark.spark
def test_ids_that_are_texts_come_back_as_texts(spark: Any) -> None:
    miles = "src string, dst string, miles int"
    edges = spark.createDataFrame(
        [("SFO", "LAX", 337), ("LAX", "JFK", 2475), ("SFO", "JFK", 2586), ("éa", "ö", 1)], miles
    )
    airports = spark.createDataFrame([("SFO", 1), ("alone", 2)], "id string, n int")
    assert rows(graphs.connected_components(edges, airports)) == [
        ("JFK", "JFK"), ("LAX", "JFK"), ("SFO", "JFK"), ("alone", "alone"), ("éa", "éa"), ("ö", "éa")
    ]  # fmt: skip
    assert rows(graphs.shortest_paths(edges, ["SFO"], weight="miles").na.fill("")) == [
        ("JFK", "SFO", 2586.0, "SFO"), ("LAX", "SFO", 337.0, "SFO"), ("SFO", "SFO", 0.0, "")
    ]  # fmt: skip
    frame = graphs.GraphFrame(airports.select("id"), edges.where("src = 'SFO'"))
    assert rows(frame.shortestPaths(["JFK"])) == [("SFO", {"JFK": 1}), ("alone", {})]


by_chance = F.udf(lambda: uuid.uuid4().hex).asNondeterministic()


@pytest.mark.spark
def test_whole_numbers_stay_of_their_type(spark: Any) -> None:
    edges = spark.createDataFrame([(1, 2), (2, 3), (3, 1)], "src int, dst int")
    ranks = graphs.pagerank(edges)
    assert [(name, kind) for name, kind in ranks.dtypes] == [("id", "int"), ("rank", "double")]
    assert [rank for _, rank in rows(ranks)] == pytest.approx([1 / 3] * 3, abs=1e-12)
    with pytest.raises(tr.TypeMismatch, match=r"edges have no column 'dst'; there are src, to"):
        graphs.k_core(edges.withColumnRenamed("dst", "to"))
    with pytest.raises(
        tr.TypeMismatch, match=r"ids of vertices must be of one type, .*: src int, dst string; cast them"
    ):
        graphs.k_core(edges.withColumn("dst", edges["dst"].cast("string")))
    with pytest.raises(tr.TypeMismatch, match="whole numbers, and sources has 'SFO'"):
        graphs.bfs(edges, ["SFO"])
    texts = edges.selectExpr("string(src) src", "'0' || dst dst")
    with pytest.raises(tr.TypeMismatch, match="ids of this graph are of the type string, and sources has 2"):
        graphs.bfs(texts, [2])  # Spark would compare them as numbers
    with pytest.raises(tr.TypeMismatch, match="sources must be a list of ids, not 'SFO'"):
        graphs.GraphFrame(texts.selectExpr("src id"), texts).shortestPaths("SFO")
    with pytest.raises(tr.JobFailed, match="none of the sources is a vertex"):
        graphs.pagerank(edges, sources=[7])
    with pytest.raises(tr.TypeMismatch, match="cannot be of the type double; cast them to texts"):
        graphs.k_core(edges.selectExpr("double(src) src", "double(dst) dst"))
    with pytest.raises(Exception, match=r"a weight is above 2\^53"):
        graphs.shortest_paths(edges.selectExpr("src", "dst", "(1L << 53) + src AS miles"), [1], weight="miles")
    with pytest.raises(Exception, match="had other vertices when they were read again"):
        graphs.k_core(edges.select(by_chance().alias("src"), by_chance().alias("dst"))).collect()
    with pytest.raises(tr.ConfigError, match="tolerance must be 1e-15 or more, not 0"):
        graphs.pagerank(edges, tolerance=0)


@pytest.mark.spark
def test_pairs_are_as_much_alike_as_a_plain_loop_finds(spark: Any) -> None:
    draw = random.Random(5)
    bought = [(f"p{draw.randrange(30)}", min(draw.randrange(40), draw.randrange(40))) for _ in range(250)] * 2
    sets: dict[str, set[int]] = {}
    for person, item in bought:
        sets.setdefault(person, set()).add(item)
    edges = spark.createDataFrame(bought, "src string, dst int")
    for threshold in (0.1, 0.25, 1 / 3, 1.0):
        wanted = {
            (one, other): len(sets[one] & sets[other]) / len(sets[one] | sets[other])
            for one in sets
            for other in sets
            if one < other
        }
        found = rows(graphs.jaccard_similarity(edges, threshold))
        assert found == sorted((*pair, alike) for pair, alike in wanted.items() if alike >= threshold)
    with pytest.raises(tr.ConfigError, match="threshold must be above 0 and at most 1, not 0"):
        graphs.jaccard_similarity(edges, 0)


@pytest.mark.spark
def test_what_would_be_counted_wrong_without_an_error_is_refused(spark: Any) -> None:
    edges = spark.createDataFrame([(1, 2, 1.0), (None, 2, 1.0)], "src long, dst long, `a.b` double")
    for df in (graphs.degrees(edges), graphs.jaccard_similarity(edges, 0.5)):
        with pytest.raises(Exception, match="an id of a vertex is null"):
            df.collect()
    whole = edges.where("src is not null")
    assert rows(graphs.shortest_paths(whole, [1], weight="a.b"))[1] == (2, 1, 1.0, 1)
    with pytest.raises(tr.TypeMismatch, match="a weight must be a number, and the column is of the type boolean"):
        graphs.pagerank(whole.selectExpr("src", "dst", "true AS sure"), weight="sure")
    with pytest.raises(Exception, match=r"a weight is above 2\^53"):
        graphs.shortest_paths(whole.selectExpr("src", "dst", "9007199254740993BD AS w"), [1], weight="w")
    twice = spark.createDataFrame([(1,), (1,), (2,)], "id long")
    with pytest.raises(Exception, match="two vertices have one id"):
        graphs.aggregate_messages(twice, whole, F.sum("message").alias("n"), to_dst=F.lit(1)).collect()
    frame = graphs.GraphFrame(twice.withColumn("component", F.lit(0)), whole)
    with pytest.raises(tr.TypeMismatch, match="vertices have a column 'component' already"):
        frame.connectedComponents()
    far = spark.createDataFrame([(1, 1 << 40)], "src byte, dst long")
    assert rows(graphs.k_core(far)) == [(1, 1), (1 << 40, 1)]


def test_a_method_of_graphframes_that_is_not_here_names_what_to_do() -> None:
    class Frame:
        columns = ("id", "src", "dst")

    frame = graphs.GraphFrame(Frame(), Frame())
    with pytest.raises(tr.ConfigError, match=r"GraphFrame\.find is not here: join the edges"):
        frame.find("(a)-[e]->(b)")


def plain(one: Any) -> Any:
    return bytes(one) if isinstance(one, bytearray) else one


KINDS = {
    "decimal": "cast({0} - 5 AS decimal(38, 3))",
    "date": "date_add(date'0001-01-01', 7 * {0})",
    "timestamp": "timestamp_seconds(-9000000000 + {0})",
    "binary": "unhex(hex({0}))",
}


@pytest.mark.spark
@pytest.mark.parametrize(
    "kind", ["decimal", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in list(KINDS)[1:])]
)
def test_ids_of_another_type_come_back_as_they_were(spark: Any, kind: str) -> None:
    edges = spark.createDataFrame([(0, 1), (2, 1), (3, 4), (4, 4)], "src int, dst int")
    others = edges.selectExpr(*(KINDS[kind].format(end) + f" AS {end}" for end in ("src", "dst")))
    names = spark.range(5).selectExpr("int(id) id", KINDS[kind].format("int(id)") + " AS name")
    place = {plain(row.name): row.id for row in names.collect()}
    assert {place[plain(one)]: place[plain(least)] for one, least in graphs.connected_components(others).collect()} == {
        0: 0, 1: 0, 2: 0, 3: 3, 4: 3
    }  # fmt: skip
    found = {place[plain(one)]: tuple(counts) for one, *counts in graphs.degrees(others).collect()}
    assert found == {0: (1, 0, 1), 1: (2, 2, 0), 2: (1, 0, 1), 3: (1, 0, 1), 4: (3, 2, 1)}


@pytest.mark.spark
def test_a_program_for_graphframes_finds_what_it_found_there(spark: Any) -> None:
    pairs = [(1, 2), (2, 3), (3, 1), (1, 2), (3, 4)]
    frame = graphs.GraphFrame(spark.range(1, 6), spark.createDataFrame(pairs, "src long, dst long"))
    sums = frame.aggregateMessages(F.sum("message").alias("sum"), sendToDst=F.col("src.id"), sendToSrc=F.col("dst.id"))
    assert rows(sums) == [(1, 7), (2, 5), (3, 7), (4, 3)]
    assert rows(frame.inDegrees.join(frame.outDegrees, "id")) == [(1, 1, 2), (2, 2, 1), (3, 1, 2)]
    assert rows(graphs.clustering_coefficient(frame.edges)) == [(1, 1.0), (2, 1.0), (3, pytest.approx(1 / 3)), (4, 0.0)]
    assert rows(frame.triangleCount()) == [(1, 1), (2, 1), (3, 1), (4, 0), (5, 0)]
    ranked = frame.pageRank(tol=1e-10)
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((*pair, pairs.count(pair)) for pair in pairs)
    graph.add_node(5)
    wanted = nx.pagerank(graph, tol=1e-12, max_iter=1000)
    assert rows(ranked.vertices) == [(one, pytest.approx(5 * wanted[one], abs=1e-6)) for one in sorted(graph)]
    assert rows(ranked.edges.select("src", "dst", "weight"))[:2] == [(1, 2, 0.5), (1, 2, 0.5)]
