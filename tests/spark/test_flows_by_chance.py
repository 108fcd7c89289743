"""Any DataFrame through any kind of operator comes out as it went in.

Many: `TAILRACE_TYPE_SEEDS=200 pytest tests/spark/test_flows_by_chance.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tests.spark.test_types import SEEDS, random_frame, same

pytestmark = pytest.mark.spark


class Kept(tr.KeyedProcessFunction):
    """Records that wait in state until a timer brings them back."""

    held = tr.ListState(object)

    def process(self, value: Any, ctx: Any) -> None:
        self.held.append(value)
        ctx.set_timer(event_time=1.0)

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        yield from self.held.value
        self.held.clear()


def lap(rows: Any) -> Any:
    """Once around a loop."""

    def body(stream: Any) -> Any:
        new, seen = stream.filter(lambda r: not r[0]), stream.filter(lambda r: r[0])
        return new.map(lambda r: (True, r[1])), seen.map(lambda r: r[1])

    return rows.map(lambda row: (False, row)).iterate(body)


def windowed(rows: Any) -> Any:
    timed = rows.assign_timestamps(lambda row: float(row.id % 7), out_of_orderness=10.0)
    return timed.key_by("id").window(tr.Tumbling(5)).reduce(lambda a, b: b).map(lambda found: found[3])


FLOWS: dict[str, Callable[[Any, Any], Any]] = {
    "shuffled rows": lambda rows, columns: rows.rebalance().map(lambda row: row),
    "keyed rows": lambda rows, columns: rows.key_by("id").reduce(lambda a, b: b),
    "kept in state": lambda rows, columns: rows.key_by("id").process(Kept()),
    "a lap": lambda rows, columns: lap(rows),
    "a lap of columns": lambda rows, columns: lap(columns.to_rows()),
    "a window": lambda rows, columns: windowed(rows),
    "shuffled columns": lambda rows, columns: columns.rebalance().map_batches(lambda batch: batch),
    "keyed columns": lambda rows, columns: columns.key_by("id").map_batches(
        lambda batch: batch.take(pa.array(range(batch.num_rows))[::-1])
    ),
    "columns to rows": lambda rows, columns: columns.rebalance().to_rows().rebalance().map(lambda row: row),
}


@pytest.fixture
def database(spark: Any, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE DATABASE IF NOT EXISTS chance LOCATION '{tmp_path}/chance'")
    yield "chance"
    spark.sql("DROP DATABASE chance CASCADE")


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 2)))
def test_by_chance_any_dataframe_comes_out_of_any_operator(jobs: Any, seed: int, tmp_path: Path, database: str) -> None:
    spark, chance = jobs.spark, random.Random(seed)
    df = random_frame(spark, 1000 + seed).selectExpr("monotonically_increasing_id() id", "*").cache()
    df.count()
    env = jobs.env(2)
    rows, columns = env.from_dataframe(df), env.from_dataframe(df, form="columns")
    chosen = chance.sample(list(FLOWS), 5)
    out = {}
    for name in chosen:
        stream = FLOWS[name](rows, columns)
        given = stream.form == "rows" or chance.random() < 0.5
        out[name] = stream.sink_to(tr.sinks.DataFrame(df.schema if given else None))
    FLOWS[chosen[0]](rows, columns).sink_to(tr.sinks.Parquet(str(tmp_path / "files"), df.schema))
    FLOWS[chosen[1]](rows, columns).sink_to(tr.sinks.Table(f"{database}.ours", df.schema))
    env.execute("flows by chance").await_termination()
    for name, sink in out.items():
        assert same(df, sink.dataframe()), (seed, name)
    again = jobs.env(1)
    source = tr.sources.Parquet(str(tmp_path / "files"), form=chance.choice(["rows", "columns"]))
    assert same(df, again.from_source(source).to_dataframe(df.schema)), (seed, chosen[0], "files")
    assert same(df, spark.table(f"{database}.ours")), (seed, chosen[1], "a table")
    df.write.saveAsTable(f"{database}.sparks")  # and with the files that Spark itself writes
    tables = jobs.env(2)
    back = {}
    for table, form in (("ours", "rows"), ("ours", "columns"), ("sparks", chance.choice(["rows", "columns"]))):
        stream = tables.from_dataframe(spark.table(f"{database}.{table}"), form=form)
        stream = stream.map(lambda row: row) if form == "rows" else stream.rebalance().map_batches(lambda batch: batch)
        back[table, form] = stream.sink_to(tr.sinks.DataFrame(df.schema))
    tables.execute("tables by chance").await_termination()
    for (table, form), sink in back.items():
        assert same(df, sink.dataframe()), (seed, table, form)
    df.unpersist()
