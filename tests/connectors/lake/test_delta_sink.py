"""The sink of Delta tables: each record once, where deltalake and DuckDB find it, and refusals before a job
starts."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

import tailrace as tr
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.connectors.lake import deltatable, lakesink
from tailrace.errors import ConfigError, OutputLost
from tailrace.testing.faults import Fault
from tests.connectors.test_sinks import Place

ROUNDS = int(os.environ.get("TAILRACE_TEST_ROUNDS", "1"))
SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32())])


def rows(path: Any) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["n"])


def prepared(sink: Any, numbers: list[int], **place: Any) -> bytes:
    writer = sink.writer(Place(**place))
    writer.write(pa.record_batch([numbers, [dt.date(2024, 1, 1)] * len(numbers)], schema=SCHEMA))
    found = writer.prepare()
    assert found is not None
    return bytes(found)


@pytest.mark.parametrize("options", [{}, {"compact": 2}, {"mode": "upsert", "keys": "n"}], ids=str)
def test_each_record_once_whatever_is_killed(options: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.connectors.lake.delta_battery", str(tmp_path), str(ROUNDS), "7"]
    done = subprocess.run([*command, json.dumps(options)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["twice"]) == (0, 0) and report["kills"] > 0


def test_a_job_writes_a_version_for_each_checkpoint(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="c", interval=0.1))
    numbers = env.from_source(tr.sources.Sequence(0, 400, rate=400))
    records = numbers.map(lambda n: {"n": n, "city": ["Köln", "a/b=c %", None][n % 3]})
    records.sink_to(tr.sinks.Delta(str(tmp_path / "t"), "n long, city string", partition_by=["city"]))
    job = tr.testing.simulate(env, seed=3, faults=[Fault(200, "kill", 1), Fault(700, "kill", 0)])
    job.await_termination()
    expected = [{"n": n, "city": ["Köln", "a/b=c %", None][n % 3]} for n in range(400)]
    table = DeltaTable(str(tmp_path / "t"))
    assert rows(tmp_path / "t") == expected and table.metadata().partition_columns == ["city"]
    assert 1 < table.version() < 40
    listed = set(table.file_uris())
    hidden = [name for _, _, files in os.walk(tmp_path / "t") for name in files if name.startswith(".")]
    assert hidden == [] and len(listed) >= 3


@pytest.mark.parametrize("there", [True, False])
def test_a_table_that_only_the_program_sees_is_not_made_a_second_time(tmp_path: Path, there: bool) -> None:
    """As on a cluster whose machines have a path each for itself: the rows would be in a table that nobody looks at."""
    if there:
        write_deltalake(tmp_path / "t", pa.table({"n": [0], "day": pa.array([None], pa.date32())}))
    sink = tr.sinks.Delta(str(tmp_path / "t"), SCHEMA)
    sink.check()
    (tmp_path / "t").rename(tmp_path / "of the program")
    made = pickle.loads(pickle.dumps(sink))
    with pytest.raises(ConfigError, match=r"does\s+not see it on .* each machine has for itself"):
        made.publish([prepared(made, [1, 2])])


def test_values_of_all_types_are_read_back_by_deltalake_and_duckdb(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, dt.UTC)
    record = {
        "n": 1,
        "small": -8,
        "text": "ü",
        "many": "x" * 200,
        "raw": b"\0\1",
        "day": dt.date(2024, 2, 29),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "price": Decimal("1.50"),
        "ratio": float("nan"),
        "yes": True,
        "tags": ["a", None],
        "place": {"x": 1, "y": None},
        "counts": [("k", 1)],
        "nothing": None,
    }
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            ("small", pa.int8()),
            ("text", pa.dictionary(pa.int32(), pa.string())),
            ("many", pa.large_string()),
            ("raw", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("ns", "Europe/Berlin")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float64()),
            ("yes", pa.bool_()),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("x", pa.int32()), ("y", pa.string())])),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("nothing", pa.string()),
        ]
    )
    env = tr.Environment(parallelism=1)
    env.from_collection([record]).sink_to(tr.sinks.Delta(str(tmp_path), schema))
    tr.testing.run(env)
    table = DeltaTable(str(tmp_path))
    [found] = table.to_pyarrow_table().to_pylist()
    assert {**found, "ratio": None} == {**record, "ratio": None} and found["ratio"] != found["ratio"]
    [notes] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert notes["num_records"] == 1 and (notes["min.n"], notes["max.n"], notes["null_count.nothing"]) == (1, 1, 1)
    assert notes["min.at"] <= moment <= notes["max.at"] and notes.get("max.ratio") is None
    arrow = table.to_pyarrow_dataset()
    assert duckdb.sql("select n, text, day, price, tags from arrow where \"at\" > '2024-02-29'").fetchall() == [
        (1, "ü", dt.date(2024, 2, 29), Decimal("1.50"), ["a", None])
    ]
    assert arrow.count_rows() == 1


def test_published_twice_it_is_there_once_and_from_two_processes(tmp_path: Path) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA)
    first, second = prepared(sink, [1, 2]), prepared(sink, [3], subtask=1)
    other = pickle.loads(pickle.dumps(sink))
    sink.publish([first])
    sink.publish([first, second])
    other.publish([second, first])
    assert [row["n"] for row in rows(tmp_path)] == [1, 2, 3] and DeltaTable(str(tmp_path)).version() == 2


def test_a_committer_that_looked_before_another_one_committed_is_refused(tmp_path: Path) -> None:
    sink, token = tr.sinks.Delta(str(tmp_path), SCHEMA), b""
    token = prepared(sink, [1])
    slow = pickle.loads(pickle.dumps(sink))
    commit, tries = slow._commit, []

    def late(table: Any, outputs: Any) -> None:
        tries.append(len(outputs))
        sink.publish([token])
        commit(table, outputs)

    slow._commit = late
    slow.check()
    slow.publish([token])
    assert [row["n"] for row in rows(tmp_path)] == [1] and tries == [1]


def test_a_conflict_that_goes_on_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA)
    token, tries = prepared(sink, [1]), []

    def fail(table: Any, outputs: Any) -> None:
        tries.append(1)
        raise CommitFailedError("busy")

    monkeypatch.setattr(sink, "_commit", fail)
    with pytest.raises(CommitFailedError):
        sink.publish([token])
    assert len(tries) == lakesink.CONFLICTS


def test_other_writers_of_the_table_do_not_matter(tmp_path: Path) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA)
    sink.publish([prepared(sink, [1])])
    write_deltalake(str(tmp_path), pa.table({"n": [10], "day": [None]}, schema=SCHEMA), mode="append")
    sink.publish([prepared(sink, [2], attempt=1)])
    DeltaTable(str(tmp_path)).optimize.compact()
    sink.publish([prepared(sink, [3], attempt=2)])
    assert [row["n"] for row in rows(tmp_path)] == [1, 2, 3, 10]


def test_a_table_that_is_made_anew_is_noticed(tmp_path: Path) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA)
    writer = sink.writer(Place())
    tokens = []
    for n in range(3):
        writer.write(pa.record_batch([[n], [None]], schema=SCHEMA))
        tokens.append(writer.prepare())
    sink.publish(tokens[:1])
    sink.publish(tokens[1:2])
    for name in os.listdir(tmp_path / "_delta_log"):
        os.unlink(tmp_path / "_delta_log" / name)
    DeltaTable.create(str(tmp_path), Schema.from_arrow(SCHEMA))
    with pytest.raises(OutputLost, match="lost_output"):
        sink.publish(tokens[2:])
    sink.lost_output = "ignore"
    sink.publish(tokens[2:])
    assert [row["n"] for row in rows(tmp_path)] == [2]


def test_a_file_that_somebody_has_removed_is_an_error_and_not_a_hole(tmp_path: Path) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA)
    token = prepared(sink, [1])
    [covered] = [name for name in os.listdir(tmp_path) if name.startswith(".part")]
    os.unlink(tmp_path / covered)
    with pytest.raises(FileNotFoundError, match="1 rows are lost"):
        sink.publish([token])
    assert not (tmp_path / "_delta_log").exists() or rows(tmp_path) == []


def test_what_a_lost_job_leaves_is_swept_and_what_is_kept_stays(tmp_path: Path) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA)
    kept, _ = prepared(sink, [1]), prepared(sink, [2], subtask=1)
    sink.recover(["other"], 2, "sink")
    assert len([name for name in os.listdir(tmp_path) if name.startswith(".part")]) == 2
    remove_unfinished(sink, "run", "sink", [kept])
    sink.publish([kept])
    assert [row["n"] for row in rows(tmp_path)] == [1]
    prepared(sink, [3])
    sink.recover(["run"], 2, "sink")
    assert [name for name in os.listdir(tmp_path) if name.startswith(".part")] == []


def test_small_files_are_joined_after_every_few_commits(tmp_path: Path) -> None:
    sink = tr.sinks.Delta(str(tmp_path), SCHEMA, compact=3)
    for n in range(6):
        sink.publish([prepared(sink, [n], attempt=n)])
    table = DeltaTable(str(tmp_path))
    assert [row["n"] for row in rows(tmp_path)] == list(range(6)) and len(table.file_uris()) == 1
    assert [one["operation"] for one in table.history()].count("OPTIMIZE") == 2
    assert len(list(tmp_path.glob("part-*.parquet"))) == 6 + 2  # nothing is vacuumed


def test_columns_are_added_only_where_that_is_allowed(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": [1]}))
    wide = pa.record_batch({"n": [2], "more": ["x"]})

    def run(**options: Any) -> None:
        env = tr.Environment(parallelism=1)
        env.from_collection([2]).to_columns("n long").map_batches(lambda _: wide).sink_to(
            tr.sinks.Delta(str(tmp_path), **options)
        )
        tr.testing.run(env)

    with pytest.raises(tr.JobFailed, match="more"):
        run()
    run(merge_schema=True)
    assert rows(tmp_path) == [{"n": 1, "more": None}, {"n": 2, "more": "x"}]


def test_a_stream_of_rows_takes_the_columns_of_a_table_that_exists(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": pa.array([1], pa.int32()), "t": ["a"]}), partition_by=["t"])
    env = tr.Environment(parallelism=1)
    env.from_collection([{"n": 2, "t": "b"}]).sink_to(tr.sinks.Delta(str(tmp_path)))
    tr.testing.run(env)
    assert rows(tmp_path) == [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]


def broken(tmp_path: Path, **properties: str) -> str:
    """A table with these properties."""
    DeltaTable.create(str(tmp_path), Schema.from_arrow(SCHEMA), configuration=properties)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("properties", "schema", "options", "words"),
    [
        ({}, "n string, day date", {}, "column 'n' is int64 in the table, and string"),
        ({}, "n long, day date, x long", {}, "no column 'x'"),
        ({}, None, {"partition_by": "day"}, "partitioned by no columns, not by day"),
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, None, {}, "forgets transactions"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_job_starts(
    properties: dict[str, str], schema: Any, options: Any, words: str, tmp_path: Path
) -> None:
    sink = tr.sinks.Delta(broken(tmp_path, **properties), schema, **options)
    with pytest.raises(ConfigError, match=words):
        sink.check()


def test_a_table_with_rules_that_the_sink_does_not_apply_is_refused(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), Schema.from_arrow(SCHEMA))
    table.alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(ConfigError, match="'positive'"):
        tr.sinks.Delta(str(tmp_path)).check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "replace"}, "mode must be"),
        ({"compact": 0}, "number of commits"),
        ({"lost_output": "maybe"}, "lost_output"),
        ({"partition_by": ["x"]}, "partition_by has 'x'"),
        ({"storage_options": {"a": 1}}, "storage_options"),
        ({"schema": pa.schema([("t", pa.null())])}, "column 't' is null"),
        ({"schema": pa.schema([("n", pa.time64("us"))])}, "time64"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        tr.sinks.Delta(str(tmp_path), **{"schema": SCHEMA, **options})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r'pip install "tailrace\[delta\]"'):
        deltatable.client()


def test_a_store_that_refuses_is_an_error_without_its_secrets() -> None:
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    sink = tr.sinks.Delta("s3://nowhere/t", SCHEMA, storage_options=options)
    with pytest.raises(ConfigError, match="s3://nowhere/t") as caught:
        sink.check()
    assert "s3cr3t" not in str(caught.value) + repr(sink)
