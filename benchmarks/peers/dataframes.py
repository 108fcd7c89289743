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
    done, converged = 0, False
    while not converged and done < rounds and time.monotonic() - started < seconds:
        heard = both.join(labels, both.a == labels.v).groupBy(F.col("b").alias("v")).agg(F.min("label").alias("heard"))
        news = labels.join(heard, "v", "left").select("v", F.least("label", "heard").alias("now"), "label")
        news = news.localCheckpoint()
        converged = not news.where("now < label").head(1)
        labels = news.select("v", F.col("now").alias("label"))
        done += 1
    return labels, {"rounds": done, "converged": converged}, both.unpersist
