"""Queries in SQL give what Spark gives: each function over values at which it is hard, and drawn expressions, compared with
Spark's answers to one query."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tailrace.api.sql.reader import read
from tailrace.api.sql.tree import NotTranslated
from tailrace.api.sql.verb import select_columns
from tailrace.elements.columns.expressions import Formula
from tests.spark.conftest import settings
from tests.spark.sqlqueries import DDL, SCHEMA, chain, expressions, query, table

HARD, WILD = 24, 12
"""Records whose values are hard, and records with any values."""
RECORDS = HARD + WILD
QUERIES = 40
SEEDS = range(int(os.environ.get("TAILRACE_TYPE_SEEDS", 1)))


def computed(text: str, batch: pa.RecordBatch) -> tuple[pa.Array, list[int]]:
    """The values of an expression, and the records for which it does not fail. Raises `NotTranslated`."""
    [(_, given)] = select_columns(read(f"select {text} as x from stream"), SCHEMA)
    formula = Formula(given)
    try:
        return formula(batch), list(range(batch.num_rows))
    except Exception:  # some records fail: which?
        found: list[Any] = []
        for at in range(batch.num_rows):
            try:
                found.append(formula(batch.slice(at, 1))[0])
            except Exception:
                found.append(None)
    good = [at for at, one in enumerate(found) if one is not None]
    kind = formula.type_in(SCHEMA)
    return pa.concat_arrays([pa.nulls(1, kind) if one is None else pa.repeat(one, 1) for one in found]), good


def records(rng: random.Random) -> pa.RecordBatch:
    """All records, with the ids 0, 1, 2, ..."""
    whole = pa.concat_batches([table(rng, HARD), table(rng, WILD, wild=True)])
    return whole.set_column(0, SCHEMA.field(0), pa.array(range(RECORDS), SCHEMA.field(0).type))


def in_utc(values: Any) -> Any:
    """A column of Spark's answers; instants in UTC."""
    instants = pa.types.is_timestamp(values.type) and values.type.tz is not None
    return values.cast(pa.timestamp("us", "UTC")) if instants else values


def plainly(values: Any) -> list[Any]:
    """The values of a column. Days and times are numbers: Spark has some that Python has not."""
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        values = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    return list(values.to_pylist())


def asked(text: str, good: list[int]) -> str:
    """The expression for Spark, for the records for which ours does not fail."""
    if len(good) == RECORDS:
        return text
    return (
        f"case when id in (-1, {', '.join(map(str, good))}) then ({text}) end"
        if good
        else f"if(id < 0, ({text}), null)"
    )


NEW_YORK = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Another time zone, on which no result depends, and no compiled code, which takes longer than the query."""


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
def test_each_expression_gives_the_values_and_the_type_that_spark_gives(spark: Any, seed: int) -> None:
    rng = random.Random(seed)
    batch = records(rng)
    ours: dict[str, tuple[pa.Array, list[int]]] = {}
    refused: list[str] = []
    drawn = list(dict.fromkeys(expressions(rng, 150)))
    for text in (*drawn, *(chain(rng) for _ in range(400))):
        try:
            ours[text] = computed(text, batch)
        except NotTranslated as error:
            refused.append(f"{text}: {error}")
    assert len(ours.keys() & set(drawn)) > len(drawn) * 0.7, refused
    assert len(ours.keys() - set(drawn)) > 10
    assert sum(len(good) for _, good in ours.values()) > len(ours) * RECORDS * 0.75
    with settings(spark, NEW_YORK):
        frame = spark.createDataFrame(pa.Table.from_batches([batch]), DDL)
        made = frame.selectExpr(
            "id", *(f"{asked(text, good)} as `{at}`" for at, (text, (_, good)) in enumerate(ours.items()))
        )
        answers = made.toArrow().sort_by("id")
    wrong = []
    for (text, (values, good)), theirs in zip(ours.items(), answers.columns[1:], strict=True):
        theirs = in_utc(theirs)
        if theirs.type != values.type:
            wrong.append(f"{text}: {values.type}, and in Spark {theirs.type}")
            continue
        mine, spark_has = plainly(values), plainly(theirs)
        pairs = [(mine[at], spark_has[at]) for at in good]
        wrong += [f"{text}: {one!r}, and in Spark {two!r}" for one, two in pairs if repr(one) != repr(two)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
def test_each_query_gives_the_rows_that_spark_gives(spark: Any, tmp_path: Any, seed: int) -> None:
    """Queries that fail for no record, all in one job."""
    rng = random.Random(f"queries {seed}")
    batch = records(rng)
    env = tr.Environment(parallelism=1)
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "records.parquet")
    stream = env.from_source(tr.sources.Parquet(str(tmp_path), form="columns")).to_columns(SCHEMA)
    ours: dict[str, Any] = {}
    for text in dict.fromkeys(query(rng) for _ in range(4 * QUERIES)):
        with contextlib.suppress(tr.TailraceError):
            one = tr.Environment(parallelism=1)
            alone = one.from_source(tr.sources.Parquet(str(tmp_path), form="columns")).to_columns(SCHEMA)
            alone.sql(text).sink_to(tr.sinks.Collect())
            tr.testing.run(one)
            ours[text] = stream.sql(text).sink_to(tr.sinks.Collect())
        if len(ours) == QUERIES:
            break
    tr.testing.run(env)
    with settings(spark, NEW_YORK):
        spark.createDataFrame(pa.Table.from_batches([batch]), DDL).createOrReplaceTempView("stream")
        wrong = []
        for text, sink in ours.items():
            answer = spark.sql(text).toArrow()
            theirs = [list(map(repr, plainly(in_utc(column)))) for column in answer.columns]
            found = sink.result()
            kinds = [in_utc(column).type for column in answer.columns]
            given = list(zip(*found, strict=True)) if found else [()] * len(kinds)
            mine = [plainly(pa.array(column, kind)) for column, kind in zip(given, kinds, strict=True)]
            if sorted(zip(*theirs, strict=True)) != sorted(zip(*(map(repr, one) for one in mine), strict=True)):
                wrong.append(f"{text}\n  ours   {mine}\n  spark's {theirs}")
            if found and list(found[0]._fields) != answer.column_names:
                wrong.append(f"{text}: names {found[0]._fields}, and in Spark {answer.column_names}")
        spark.catalog.dropTempView("stream")
    assert not wrong, "\n".join(wrong)
