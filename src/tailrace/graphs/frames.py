"""Graphs as DataFrames: vertices of any type become numbers on the way in, and get their ids back on the way out.

Whole numbers are taken as they are. Of other ids Spark makes 64-bit hashes, and a second DataFrame keeps which id each
stands for; two ids with one hash are an error, never one vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import tailrace as tr

WHOLE = ("ByteType", "ShortType", "IntegerType", "LongType")  # the widest one last
WEIGHTS = (*WHOLE, "FloatType", "DoubleType", "DecimalType")
HASHED: dict[str, tuple[type, ...]] = {
    "BinaryType": (bytes,),
    "DateType": (date,),
    "DecimalType": (Decimal, int),
    "StringType": (str,),
    "TimestampNTZType": (datetime,),
    "TimestampType": (datetime,),
}
"""Types of ids that are hashed, and of their values in Python. Equal values of these have equal hashes: not so 0.0 and -0.0,
nor texts of a collation."""


def check_frame(df: Any, columns: Sequence[str], name: str, verb: str) -> None:
    """Raises `tr.TypeMismatch` unless `df` is a DataFrame with these columns."""
    if isinstance(df, tr.DataStream):
        raise tr.TypeMismatch(
            f"{verb}: {name} must be a Spark DataFrame; of a stream of edges that come and go there are "
            f"connected_components, degrees, shortest_paths, pagerank, k_core and label_propagation"
        )
    if not hasattr(df, "mapInArrow") or not hasattr(df, "schema"):
        raise tr.TypeMismatch(f"{verb}: {name} must be a Spark DataFrame, not {type(df).__name__}")
    missing = [column for column in columns if column not in df.columns]
    if missing:
        raise tr.TypeMismatch(
            f"{verb}: {name} have no column {', '.join(map(repr, missing))}; there are {', '.join(df.columns)}; "
            f"rename one: withColumnRenamed(...)"
        )


class NumberedGraph:
    """Edges, and vertices where they are given, as streams of one environment, with a way back from numbers to ids."""

    def __init__(
        self, edges: Any, vertices: Any = None, weight: str | None = None, env: Any = None, verb: str = "graphs"
    ) -> None:
        self.verb = verb
        check_frame(edges, ("src", "dst", *((weight,) if weight else ())), "edges", verb)
        if vertices is not None:
            check_frame(vertices, ("id",), "vertices", verb)
        kinds = {name: edges.schema[name].dataType for name in ("src", "dst")}
        if vertices is not None:
            kinds["id"] = vertices.schema["id"].dataType
        self.whole = all(type(kind).__name__ in WHOLE for kind in kinds.values())
        if not self.whole and len({kind.simpleString() for kind in kinds.values()}) > 1:
            listed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
            raise tr.TypeMismatch(
                f"{verb}: ids of vertices must be of one type, or all whole numbers: {listed}; cast them"
            )
        self.kind = (
            max(kinds.values(), key=lambda kind: WHOLE.index(type(kind).__name__)) if self.whole else kinds["src"]
        )
        collated = type(self.kind).__name__ == "StringType" and self.kind.simpleString() != "string"
        if not self.whole and (collated or type(self.kind).__name__ not in HASHED):
            kind = self.kind.simpleString()
            raise tr.TypeMismatch(
                f"{verb}: ids of vertices cannot be of the type {kind}; cast them to texts or whole numbers"
            )
        self.spark = edges.sparkSession
        self.env = env if env is not None else tr.Environment(self.spark, progress=False)
        self._names: Any = None
        self._sources = (edges, vertices)
        extra = [self._weight(edges[f"`{weight}`"], edges.schema[weight].dataType).alias("weight")] if weight else []
        self.edges = self.env.from_dataframe(
            edges.select(self._number(edges["src"]).alias("src"), self._number(edges["dst"]).alias("dst"), *extra),
            form="columns",
        )
        self.vertices = None
        if vertices is not None:
            numbered = vertices.select(self._number(vertices["id"]).alias("id"))
            self.vertices = self.env.from_dataframe(numbered, form="columns")

    def _number(self, column: Any) -> Any:
        from pyspark.sql import functions as F

        if self.whole:
            return column.cast("long")
        return F.when(column.isNotNull(), F.xxhash64(column))  # the hash of null is a number, too

    def _weight(self, column: Any, kind: Any) -> Any:
        """A weight as a double. A whole number that no double may be equal to fails the job."""
        from pyspark.sql import functions as F

        name = type(kind).__name__
        if name not in WEIGHTS:
            raise tr.TypeMismatch(
                f"{self.verb}: a weight must be a number, and the column is of the type {kind.simpleString()}; cast it"
            )
        double = column.cast("double")
        if name not in ("LongType", "DecimalType"):
            return double
        above = F.raise_error(F.lit(f"{self.verb}: a weight is above 2^53, and doubles are not as exact"))
        exact = column.between(-(1 << 53), 1 << 53) | column.isNull()
        return F.when(exact, double).otherwise(above.cast("double"))

    @property
    def names(self) -> Any:
        """A DataFrame (number, name) of all vertices."""
        from pyspark.sql import functions as F

        if self._names is None:
            edges, vertices = self._sources
            ids = edges.select(edges["src"].alias("name")).union(edges.select(edges["dst"]))
            ids = ids if vertices is None else ids.union(vertices.select("id"))
            ids = ids.where(ids["name"].isNotNull()).distinct()
            names = ids.select(F.xxhash64(ids["name"]).alias("number"), "name").cache()
            twice = names.groupBy("number").count().where("count > 1").limit(1).collect()
            if twice:
                pair = [row.name for row in names.where(names["number"] == twice[0].number).collect()]
                raise tr.ConfigError(
                    f"{self.verb}: the ids {pair[0]!r} and {pair[1]!r} have one hash; give vertices whole numbers"
                )
            self._names = names
        return self._names

    def numbers(self, ids: Sequence[Any], argument: str) -> list[int]:
        """The numbers of vertices. An id that is no vertex has none."""
        if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
            raise tr.TypeMismatch(f"{self.verb}: {argument} must be a list of ids, not {ids!r}")
        ids = list(ids)
        if not ids or any(one is None for one in ids):
            raise tr.ConfigError(f"{self.verb}: {argument} must have ids of vertices, not {ids!r}")
        taken = (int,) if self.whole else HASHED[type(self.kind).__name__]
        other = datetime if taken == (date,) else bool  # also an instance, and another type
        wrong = [one for one in ids if not isinstance(one, taken) or isinstance(one, other)]
        if wrong:  # Spark would compare it after a cast, and find what is not equal
            what = "whole numbers" if self.whole else f"of the type {self.kind.simpleString()}"
            raise tr.TypeMismatch(f"{self.verb}: the ids of this graph are {what}, and {argument} has {wrong[0]!r}")
        ids = list(dict.fromkeys(ids))
        if self.whole:
            return [one for one in ids if -(1 << 63) <= one < 1 << 63]
        return [row.number for row in self.names.where(self.names["name"].isin(ids)).collect()]

    def back(self, df: Any, *columns: str) -> Any:
        """The DataFrame with ids of the graph's type instead of numbers in these columns."""
        from pyspark.sql import functions as F

        for column in columns:
            if self.whole:
                df = df.withColumn(column, df[column].cast(self.kind)) if self.kind.simpleString() != "bigint" else df
            else:
                order = df.columns
                names = self.names.select(self.names["number"].alias("_number"), self.names["name"].alias("_name"))
                joined = df.join(names, df[column] == names["_number"], "left")
                gone = F.raise_error(
                    F.lit(f"{self.verb}: the edges had other vertices when they were read again; store them")
                )
                name = F.when(joined[column].isNotNull(), F.coalesce("_name", gone.cast(self.kind)))
                joined = joined.withColumn("_name", name).drop(column, "_number")
                df = joined.withColumnRenamed("_name", column).select(*order)
        return df
