"""DataFrame functions of PySpark on streams in columns: Columns of classic sessions and of Spark Connect are read alike, and
give what Spark gives."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.api.sql.dataframe import tree_of
from tailrace.api.sql.translation import Translation, result
from tailrace.elements.columns.expressions import Formula
from tailrace.errors import GraphError
from tests.spark.sqlqueries import DDL, SCHEMA, table

Make = Callable[[Any], Any]
COLUMNS: list[Make] = [
    lambda F: F.col("i"),
    lambda F: F.col("J") + 1,
    lambda F: 7 - F.col("j"),
    lambda F: -F.col("j"),
    lambda F: F.col("d") * 1.5,
    lambda F: F.col("j") * F.lit(3_000_000_000),
    lambda F: F.when(F.col("j") != 0, F.col("i") / F.col("j")),
    lambda F: F.when(F.col("j") > 1, "x").when(F.col("b"), F.col("s")).otherwise(F.lit(None)),
    lambda F: (F.col("i") > 2) & ~F.col("b") | F.col("c"),
    lambda F: F.col("j").between(0, 5),
    lambda F: F.col("j").isin(1, 2, None),
    lambda F: F.col("d").eqNullSafe(F.lit(0.0)),
    lambda F: F.col("s").isNull() | F.col("s").like("a%"),
    lambda F: F.col("s").rlike("^[a-z]") & F.col("s").startswith("a") & F.col("s").isNotNull(),
    lambda F: F.col("j").cast("double"),
    lambda F: F.col("n").cast("decimal(20,4)") + F.col("m"),
    lambda F: F.col("y").cast("string"),
    lambda F: F.upper("s"),
    lambda F: F.substring("s", 2, 2),
    lambda F: F.col("s").substr(1, 2),
    lambda F: F.concat("s", F.lit("it's"), F.col("r")),
    lambda F: F.coalesce("i", "j", F.lit(0)),
    lambda F: F.nvl("s", F.lit("")),
    lambda F: F.pmod("j", F.lit(3)) + F.col("j").bitwiseAND(3),
    lambda F: F.isnan("d"),
    lambda F: F.year("t") * 100 + F.month("t"),
    lambda F: F.datediff("u", F.lit(dt.date(2024, 5, 1))),
    lambda F: F.date_add("u", 3),
    lambda F: F.col("w") + F.lit(dt.timedelta(minutes=5)),
    lambda F: F.expr("j + 1 > 2 and not b"),
    lambda F: F.lit(True),
    lambda F: F.round("n", 1),
    lambda F: F.greatest("i", "j"),
    lambda F: F.length("s") - F.octet_length("s"),
]
REFUSED: list[tuple[Make, str]] = [
    (lambda F: F.sum("j"), "'sum' is not translated.*aggregate"),
    (lambda F: F.rand(), "'rand' is not translated.*other values"),
    (lambda F: F.col("j") ** 2, "'power' is not translated.*last digits"),
    (lambda F: F.col("*"), "UnresolvedStar in .* is not translated"),
    (lambda F: F.col("gone") + 1, "there is no column 'gone'; the stream has"),
    (lambda F: F.col("s")["x"], "UnresolvedExtractValue in .*struct.field"),
    (lambda F: F.expr("j from stream where true"), "the text is no SQL|is no single expression"),
    (lambda F: F.col("s") + 1, "of string and int is not translated"),
    (lambda F: F.countDistinct("j"), "is not translated"),
    (lambda F: F.col("j").cast("array<int>"), "the type array<int> is not translated"),
]  # fmt: skip


@pytest.mark.spark
def test_columns_of_classic_sessions_and_of_connect_are_read_alike_and_give_what_spark_gives(spark: Any) -> None:
    from pyspark.sql import functions as classic
    from pyspark.sql.connect.functions import builtin as connect

    batch = table(random.Random(5), 20)
    trees = [tree_of(make(classic))[1] for make in COLUMNS]
    assert [tree_of(make(connect))[1] for make in COLUMNS] == trees
    frame = spark.createDataFrame(pa.Table.from_batches([batch]), DDL)
    answers = (
        frame.select("id", *(make(classic).alias(str(at)) for at, make in enumerate(COLUMNS))).toArrow().sort_by("id")
    )
    for tree, theirs in zip(trees, answers.columns[1:], strict=True):
        mine = Formula(result(tree, Translation(SCHEMA)))(batch)
        assert (mine.type, repr(mine.to_pylist())) == (theirs.type, repr(theirs.to_pylist())), tree
    stream = tr.Environment(parallelism=1).from_collection([(1, 2.5), (7, 0.0)]).to_columns("a int, x double")
    for functions in (classic, connect):
        F: Any = functions
        for make, why in REFUSED:
            given = make(F)
            with pytest.raises(GraphError, match=why):
                tr.Environment(parallelism=1).from_collection([]).to_columns(SCHEMA).select(x=given)
        made = stream.filter(F.col("x") > 1).select(
            F.col("A"), (F.col("a") + 1).alias("b"), c=F.col("x") * F.lit(Decimal("2.0"))
        )
        sink = made.with_columns(d=F.col("b") % 2, e="c").sink_to(tr.sinks.Collect())
        tr.testing.run(stream.env)
        assert sink.result() == [(1, 2, 5.0, 0, 5.0)]
        with pytest.raises(GraphError, match=r"select: give Column.* a name: \(...\).alias"):
            stream.select(F.col("a") + 1)
        with pytest.raises(GraphError, match="filter: a condition of int, which is no truth value"):
            stream.filter(F.col("a"))
        with pytest.raises(GraphError, match=r"call to_columns\(schema\) before"):
            stream.map_batches(lambda b: b).filter(F.col("a") > 1)
        with pytest.raises(GraphError, match="filter: columns and expressions need a stream in columns"):
            stream.to_rows().filter(F.col("a") > 1)
    with pytest.raises(GraphError, match=r"write F.col\('name'\)"):
        stream.select(spark.range(1)["id"].alias("x"))


@pytest.mark.spark
def test_the_types_of_a_dataframe_are_known_without_a_declaration(spark: Any) -> None:
    batch = table(random.Random(6), 20)
    frame = spark.createDataFrame(pa.Table.from_batches([batch]), DDL)
    query = "select id, j + 1 as n, upper(r) as u, unix_seconds(z) as k, z, w, m * 2 as m, t from `stream` where id > 3"
    env = tr.Environment(spark, parallelism=1)
    sink = env.from_dataframe(frame, form="columns").sql(query).to_rows().sink_to(tr.sinks.Collect())
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        tr.testing.run(env)
        frame.createOrReplaceTempView("stream")
        expected = spark.sql(query).toArrow().to_pylist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.catalog.dropTempView("stream")
    mine = sorted((row.asDict() for row in sink.result()), key=lambda row: row["id"])
    assert mine == expected
