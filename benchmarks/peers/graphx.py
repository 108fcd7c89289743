"""GraphX's connected components, called from Python: Spark's own jars have all of it, and nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PARTITIONS = 2


def components(spark: Any, edges: Any) -> tuple[Any, dict[str, Any], Callable[[], None]]:
    """From a DataFrame (a, b) to a DataFrame (v, label)."""
    from pyspark.sql import DataFrame

    jvm = spark._jvm
    tags, level = _object(jvm, "scala.reflect.ClassTag"), jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY()
    encoders = jvm.org.apache.spark.sql.Encoders
    pair, nothing = encoders.tuple(encoders.LONG(), encoders.LONG()), jvm.scala.Option.empty()
    tuples = getattr(edges.coalesce(PARTITIONS)._jdf, "as")(pair).rdd()
    graph = _object(jvm, "org.apache.spark.graphx.Graph")
    made = graph.fromEdgeTuples(tuples, 1, nothing, level, level, tags.Int())
    found = _object(jvm, "org.apache.spark.graphx.lib.ConnectedComponents").run(made, tags.Int(), tags.Int())
    labels = DataFrame(spark._jsparkSession.createDataset(found.vertices(), pair).toDF(), spark)

    def done() -> None:
        found.unpersist(True)
        made.unpersist(True)

    return labels.toDF("v", "label"), {}, done


def algorithm(name: str, spark: Any, edges: Any, steps: int) -> tuple[Any, Callable[[], None]]:
    """An algorithm of GraphX, from a DataFrame (src, dst) to a DataFrame (id, value), and a function that releases what it
    holds."""
    from pyspark.sql import DataFrame

    jvm = spark._jvm
    tags, level = _object(jvm, "scala.reflect.ClassTag"), jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY()
    encoders = jvm.org.apache.spark.sql.Encoders
    pair = encoders.tuple(encoders.LONG(), encoders.LONG())
    tuples = getattr(edges.coalesce(PARTITIONS)._jdf, "as")(pair).rdd()
    graph = _object(jvm, "org.apache.spark.graphx.Graph")
    made = graph.fromEdgeTuples(tuples, 1, jvm.scala.Option.empty(), level, level, tags.Int())
    library, kind = "org.apache.spark.graphx.lib", encoders.LONG()
    if name == "components":
        found = _object(jvm, f"{library}.ConnectedComponents").run(made, tags.Int(), tags.Int())
    elif name == "pagerank":
        found = _object(jvm, f"{library}.PageRank").run(made, steps, 0.15, tags.Int(), tags.Int())
        kind = encoders.DOUBLE()
    else:
        found = _object(jvm, f"{library}.TriangleCount").run(made, tags.Int(), tags.Int())
        kind = encoders.INT()
    values = DataFrame(
        spark._jsparkSession.createDataset(found.vertices(), encoders.tuple(encoders.LONG(), kind)).toDF(), spark
    )

    def done() -> None:
        found.unpersist(True)
        made.unpersist(True)

    return values.toDF("id", "value"), done


def _object(jvm: Any, name: str) -> Any:
    """A Scala object. A trait's companion has no static methods, so its one instance is used."""
    at = jvm
    *package, last = name.split(".")
    for part in package:
        at = getattr(at, part)
    return getattr(getattr(at, f"{last}$"), "MODULE$")
