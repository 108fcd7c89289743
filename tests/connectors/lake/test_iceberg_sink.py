"""The sink of Iceberg tables: each record once, also when snapshots expire and others commit first; upserts and deletes."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import DayTransform

import tailrace as tr
from tailrace.connectors.lake import icebergtable
from tailrace.errors import ConfigError, OutputLost
from tailrace.testing.faults import Fault
from tests.connectors.test_sinks import Place

ROUNDS = int(os.environ.get("TAILRACE_TEST_ROUNDS", "1"))
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("day", pa.date32()), ("s", pa.string())])


def catalog(path: Path) -> dict[str, str]:
    """The properties of a catalog in a file."""
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}


def table(path: Path) -> Any:
    return load_catalog("tailrace", **catalog(path)).load_table("shop.sales")


def rows(path: Path) -> list[dict[str, Any]]:
    return sorted(table(path).scan().to_arrow().to_pylist(), key=lambda row: row["n"])


def sink_at(path: Path, schema: Any = SCHEMA, **options: Any) -> Any:
    return tr.sinks.Iceberg(catalog(path), "shop.sales", schema, **options)


def prepared(sink: Any, *numbers: int, **place: Any) -> bytes:
    writer = sink.writer(Place(**place))
    values = [{"n": n, "day": dt.date(2024, 1, 1 + n % 2), "s": None} for n in numbers]
    writer.write(pa.RecordBatch.from_pylist(values, SCHEMA) if sink.rule is None else values)
    found = writer.prepare()
    assert found is not None
    return bytes(found)


@pytest.mark.parametrize("options", [{}], ids=str)
def test_each_record_once_whatever_is_killed(options: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.connectors.lake.iceberg_battery", str(tmp_path), str(ROUNDS), "7"]
    done = subprocess.run([*command, json.dumps(options)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["twice"]) == (0, 0) and report["kills"] > 0


def test_a_job_writes_rows_that_pyiceberg_and_duckdb_read(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="c", interval=0.1))
    numbers = env.from_source(tr.sources.Sequence(0, 200, rate=400))
    records = numbers.map(lambda n: {"n": n, "day": dt.date(2024, 1, 1 + n % 3), "s": "a/b %"})
    records.sink_to(sink_at(tmp_path, partition_by=["day"]))
    tr.testing.simulate(env, seed=3, faults=[Fault(200, "kill", 1)]).await_termination()
    assert rows(tmp_path) == [{"n": n, "day": dt.date(2024, 1, 1 + n % 3), "s": "a/b %"} for n in range(200)]
    found = table(tmp_path)
    assert [field.name for field in found.spec().fields] == ["day"] and len(found.snapshots()) > 1
    assert {one["partition"]["day"] for one in found.inspect.files().to_pylist()} == {
        dt.date(2024, 1, day) for day in (1, 2, 3)
    }
    arrow = found.scan(row_filter="day = '2024-01-02'").to_arrow()  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("select count(*), min(n) from arrow").fetchall() == [(67, 1)]


def test_published_twice_and_from_two_processes_it_is_there_once(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    first, second = prepared(sink, 1, 2), prepared(sink, 3, subtask=1)
    other = pickle.loads(pickle.dumps(sink))
    sink.publish([first])
    other.publish([first, second])
    sink.publish([second, first])
    assert [row["n"] for row in rows(tmp_path)] == [1, 2, 3]


def test_marks_outlive_snapshots(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    token = prepared(sink, 1)
    sink.publish([token])
    sink.publish([prepared(sink, 2, attempt=1)])
    found = table(tmp_path)
    found.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    assert len(table(tmp_path).snapshots()) == 1
    sink_at(tmp_path).publish([token])
    assert [row["n"] for row in rows(tmp_path)] == [1, 2]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_committer_that_another_one_overtook_looks_once_more(mode: str, tmp_path: Path) -> None:
    sink = sink_at(tmp_path, mode=mode, keys="n" if mode == "upsert" else None)
    token = prepared(sink, 1)
    slow = pickle.loads(pickle.dumps(sink))
    commit, tries = slow._commit, []

    def late(*args: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            sink.publish([token])
            sink.publish([prepared(sink, 1, 2, attempt=1)]) if mode == "upsert" else None
        commit(*args)

    slow._commit = late
    slow.publish([token])
    assert [row["n"] for row in rows(tmp_path)] == ([1, 2] if mode == "upsert" else [1]) and len(tries) == 1


def test_others_keep_the_tries_of_the_table(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    sink.publish([prepared(sink, 1)])
    assert "commit.retry.num-retries" not in table(tmp_path).properties
    one, two = table(tmp_path), table(tmp_path)
    one.append(pa.table({"n": [5], "day": [None], "s": ["x"]}, SCHEMA))
    sink.publish([prepared(sink, 2, attempt=1)])
    two.append(pa.table({"n": [6], "day": [None], "s": ["x"]}, SCHEMA))
    assert [row["n"] for row in rows(tmp_path)] == [1, 2, 5, 6]


def test_a_conflict_that_goes_on_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_at(tmp_path)
    token = prepared(sink, 1)

    def fail(*args: Any) -> None:
        raise CommitFailedException("busy")

    monkeypatch.setattr(sink, "_commit", fail)
    with pytest.raises(CommitFailedException):
        sink.publish([token])


def test_the_last_record_of_a_key_is_in_the_table(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("p", pa.int64()), ("v", pa.float64())])
    sink = sink_at(tmp_path, schema, mode="upsert", keys=["k", "p"], changes=True)
    writer, tokens = sink.writer(Place()), []
    for changes in (
        [("+", ("a", 1, 0.5)), ("+", ("b", 1, 1.5)), ("+", ("a", 2, 2.5)), ("+", ("a", 1, 9.0))],
        [("-", ("b", 1, 1.5)), ("+", ("c'\"", 1, None))],
        [("-", ("z", 1, 0.0))],
        [("-", ("a", 2, 2.5)), ("+", ("a", 2, 7.0))],
    ):
        writer.write(changes)
        tokens.append(writer.prepare())
        sink.publish(tokens[-1:])
        sink.publish(tokens)
    found = table(tmp_path).scan().to_arrow().to_pylist()
    assert {(row["k"], row["p"], row["v"]) for row in found} == {("a", 1, 9.0), ("a", 2, 7.0), ("c'\"", 1, None)}
    assert len(found) == 3


def test_marks_that_are_gone_are_noticed(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    writer, tokens = sink.writer(Place()), []
    for n in range(3):
        writer.write(pa.RecordBatch.from_pylist([{"n": n, "day": None, "s": None}], SCHEMA))
        tokens.append(writer.prepare())
    sink.publish(tokens[:2])
    load_catalog("tailrace", **catalog(tmp_path)).drop_table("shop.sales")
    sink_at(tmp_path).check()
    with pytest.raises(OutputLost):
        sink.publish(tokens[2:])


def test_a_table_that_does_not_fit_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    sink_at(tmp_path).check()
    for options, words in [
        ({"schema": "n string, day date, s string"}, "column 'n' is int64 in the table, and string"),
        ({"schema": "n long, x long"}, "no column 'x'"),
        ({"schema": "day date"}, "column 'n' must not be null"),
        ({"partition_by": "day"}, "partitioned by no columns"),
        ({"mode": "upsert", "keys": "x", "schema": None}, "keys has 'x'"),
    ]:
        with pytest.raises(ConfigError, match=words):
            sink_at(tmp_path, **options).check()
    with pytest.raises(ConfigError, match="there is no such table: give the sink a schema"):
        tr.sinks.Iceberg(catalog(tmp_path), "shop.others").check()
    with table(tmp_path).update_spec() as spec:
        spec.add_field("day", DayTransform(), "d")
    with pytest.raises(ConfigError, match=r"partitioned by day\(day\)"):
        sink_at(tmp_path).check()


@pytest.mark.parametrize(
    ("args", "words"),
    [((3, "a.b"), "a catalog is"), (({"type": "sql"}, "b"), "namespace.table"), ((("x"), "a.b", "n long", "x"), "")],
)
def test_wrong_arguments_are_refused_where_they_are_written(args: Any, words: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=words):
        tr.sinks.Iceberg(*args)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ConfigError, match=r'pip install "tailrace\[iceberg\]"'):
        icebergtable.client()


def test_a_catalog_that_is_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    sink = tr.sinks.Iceberg({"name": "far", "type": "sql", "uri": "sqlite:////nowhere/x.db"}, "a.b", SCHEMA)
    with pytest.raises(ConfigError, match=r"a\.b in catalog 'far'"):
        sink.check()
    assert tmp_path.is_dir()
