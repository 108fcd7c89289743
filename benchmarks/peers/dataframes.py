"""Connected components as one writes them with DataFrames: each round joins, takes the least, and cuts the lineage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def components(spark: Any, edges: Any, rounds: int, seconds: float) -> tuple[Any, dict[str, Any], Callable[[], None]]:
    """From a DataFrame (a, b) to a DataFrame (v, label)."""
    from pyspark.sql import functions as F

    started = time.monotonic()
    both = edges.select("a", "b").union(edges.select(F.col("b"), F.col("a"))).persist()
    labels = both.groupBy(F.col("a").alias("v")).agg(F.least("v", F.min("b")).alias("label")).localCheckpoint()
    done, total = 0, None
    converged = False
    while not converged and done < rounds and time.monotonic() - started < seconds:
        received = both.join(labels, both.a == labels.v).select(F.col("b").alias("v"), "label")
        labels = labels.union(received).groupBy("v").agg(F.min("label").alias("label")).localCheckpoint()
        before, total = total, labels.agg(F.sum("label")).first()[0]
        converged = total == before  # labels only fall
        done += 1
    return labels, {"rounds": done, "converged": converged}, both.unpersist
