"""Delta tables as sources: the rows of a version, and those of the versions that come, each once and in order."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

import tailrace as tr
from tailrace.connectors.lake import deltasource
from tailrace.connectors.lake.deltasource import DeltaRows
from tailrace.errors import ConfigError, GraphError
from tailrace.testing.faults import Fault

CLOCK = itertools.count()


def append(path: Any, *numbers: int, **options: Any) -> None:
    schema = pa.schema([("n", pa.int64()), ("part", pa.string())])
    rows = pa.table({"n": numbers, "part": [["a/b c", None, "%"][n % 3] for n in numbers]}, schema)
    write_deltalake(str(path), rows, mode="append", **options)


def numbers_of(source: DeltaRows, enumerator: Any, most: int = 1000) -> list[int]:
    """The numbers that the enumerator gives out by now, in order; every file is read to its end."""
    found: list[int] = []
    for _ in range(most):
        splits = enumerator.discover(float(next(CLOCK)))
        if splits is None or (not splits and enumerator._empty):
            return found
        for split in splits:
            reader = source.reader(split)
            while (batch := reader.read(3, 0.0)) is not None:
                found += [row.n for row in batch]
            enumerator.ended(split)
    raise AssertionError("no end")


def test_the_rows_of_a_table_with_its_partitions(tmp_path: Path) -> None:
    append(tmp_path, *range(9), partition_by=["part"])
    append(tmp_path, 9)
    env = tr.Environment(parallelism=2)
    rows = env.from_table(str(tmp_path)).sink_to(tr.sinks.Collect())
    pruned = env.from_table(str(tmp_path), form="columns", columns=["part"]).sink_to(tr.sinks.Collect())
    later = env.from_table(str(tmp_path), starting_version=1).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(rows.result()) == [(n, ["a/b c", None, "%"][n % 3]) for n in range(10)]
    assert Counter(row.part for row in pruned.result()) == {"a/b c": 4, None: 3, "%": 3}
    assert [row.n for row in later.result()] == [9]


@pytest.mark.parametrize("seed", range(4))
def test_versions_are_read_in_order_whatever_is_restored_when(seed: int, tmp_path: Path) -> None:
    random, count = Random(seed), 0
    versions = {0: 0}
    append(tmp_path, 0)
    source = DeltaRows(str(tmp_path), follow=True)
    enumerator = source.enumerator(1)
    found = numbers_of(source, enumerator)
    positions = [(enumerator.position, 1)]
    for _ in range(30):
        step = random.choice(["append", "append", "compact", "read", "read", "restore"])
        if step == "append":
            numbers = range(count + 1, count + 1 + random.randint(1, 4))
            count = numbers[-1]
            append(tmp_path, *numbers)
            versions |= dict.fromkeys(numbers, DeltaTable(str(tmp_path)).version())
        elif step == "compact":
            DeltaTable(str(tmp_path)).optimize.compact()
        elif step == "read":
            found += numbers_of(source, enumerator)
            positions.append((enumerator.position, len(found)))
        else:
            positions = positions[: random.randint(1, len(positions))]
            position, length = positions[-1]
            enumerator, found = source.enumerator(1, position), found[:length]
    found += numbers_of(source, enumerator)
    assert Counter(found) == Counter(range(count + 1))
    assert [versions[n] for n in found] == sorted(versions[n] for n in found)


def test_files_of_a_version_come_before_those_of_the_next(tmp_path: Path) -> None:
    append(tmp_path, 0, partition_by=["part"])
    source = DeltaRows(str(tmp_path), follow=True)
    enumerator = source.enumerator(1)
    [first] = enumerator.discover(0.0)
    append(tmp_path, 1, 2, 3)
    append(tmp_path, 4)
    assert enumerator.discover(10.0) == []
    enumerator.ended(first)
    enumerator.discover(20.0)
    second = enumerator.discover(30.0)
    assert {one["version"] for one in second} == {1} and len(second) == 3
    enumerator.ended(second[0])
    position = enumerator.position
    again = source.enumerator(1, position)
    for one in second[1:]:
        assert again.discover(40.0) == []
        again.ended(one)
    again.discover(50.0)
    assert [one["version"] for one in again.discover(60.0)] == [2]


def test_most_files_wait_until_others_are_read(tmp_path: Path) -> None:
    for n in range(20):
        append(tmp_path, n)
    enumerator = DeltaRows(str(tmp_path)).enumerator(2)
    first = enumerator.discover(0.0)
    assert len(first) == 16 and enumerator.discover(1.0) == []
    enumerator.ended(first[0])
    assert len(enumerator.discover(2.0)) == 1


def test_a_job_follows_what_another_job_writes_over_failures(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    for n in range(0, 60, 6):
        append(place, *range(n, n + 6))
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="c", interval=0.05))
    source = env.from_table(place, starting_version=0)
    source.map(lambda row: {"n": row.n}).sink_to(tr.sinks.Delta(str(tmp_path / "u"), "n long"))
    tr.testing.simulate(env, seed=5, faults=[Fault(150, "kill", 0), Fault(300, "kill", 1)]).await_termination()
    assert sorted(DeltaTable(str(tmp_path / "u")).to_pyarrow_table()["n"].to_pylist()) == list(range(60))


def test_a_version_that_deletes_is_an_error_or_skipped(tmp_path: Path) -> None:
    append(tmp_path, 1, 2)
    source, skipping = DeltaRows(str(tmp_path), follow=True), DeltaRows(str(tmp_path), follow=True, skip_changes=True)
    enumerators = [one.enumerator(1) for one in (source, skipping)]
    assert [numbers_of(source, one) for one in enumerators] == [[1, 2], [1, 2]]
    DeltaTable(str(tmp_path)).update(updates={"n": "7"}, predicate="n = 2")
    append(tmp_path, 3)
    with pytest.raises(ConfigError, match=r"version 1 changes or deletes.*skip_changes=True.*starting_version=2"):
        numbers_of(source, enumerators[0])
    assert numbers_of(source, enumerators[1]) == [3]


def test_new_columns_are_an_error_unless_columns_are_named(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source, chosen = DeltaRows(str(tmp_path), follow=True), DeltaRows(str(tmp_path), follow=True, columns=["n"])
    enumerators = [one.enumerator(1) for one in (source, chosen)]
    assert [numbers_of(source, one) for one in enumerators] == [[1], [1]]
    position = enumerators[0].position
    write_deltalake(str(tmp_path), pa.table({"n": [2], "part": [""], "x": [5]}), mode="append", schema_mode="merge")
    with pytest.raises(ConfigError, match="version 1 has the new column 'x'"):
        numbers_of(source, enumerators[0])
    assert numbers_of(chosen, enumerators[1]) == [2]
    anew = DeltaRows(str(tmp_path), follow=True)
    assert numbers_of(anew, anew.enumerator(1, position)) == [2]
    assert sorted(everything_rows(anew)) == [(1, "", None), (2, "", 5)]


def everything_rows(source: DeltaRows) -> list[tuple[Any, ...]]:
    rows = []
    for file in source.enumerator(1).discover(0.0):
        reader = source.reader(file)
        while (batch := reader.read(10, 0.0)) is not None:
            rows += [(row.n, row.part or "", row.x) for row in batch]
    return rows


def test_a_log_that_has_lost_the_next_version_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source = DeltaRows(str(tmp_path), follow=True)
    enumerator = source.enumerator(1)
    numbers_of(source, enumerator)
    position = enumerator.position
    for n in range(2, 5):
        append(tmp_path, n)
    table = DeltaTable(str(tmp_path))
    table.create_checkpoint()
    for version in range(3):
        os.unlink(tmp_path / "_delta_log" / f"{version:020}.json")
    with pytest.raises(ConfigError, match="the log begins behind it"):
        numbers_of(source, source.enumerator(1, position))
    with pytest.raises(ConfigError, match="made anew"):
        numbers_of(source, source.enumerator(1, {**position, "version": 90}))


def test_a_file_that_vacuum_has_removed_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source = DeltaRows(str(tmp_path))
    [split] = source.enumerator(1).discover(0.0)
    os.unlink(tmp_path / split["path"])
    with pytest.raises(ConfigError, match="VACUUM"):
        source.reader(split)


def test_a_reader_goes_on_within_a_file(tmp_path: Path) -> None:
    append(tmp_path, *range(20))
    source = DeltaRows(str(tmp_path))
    [split] = source.enumerator(1).discover(0.0)
    reader = source.reader(split)
    taken = [row.n for row in reader.read(7, 0.0)]
    rest = source.reader(split, reader.position)
    while (batch := rest.read(5, 0.0)) is not None:
        taken += [row.n for row in batch]
    assert taken == list(range(20))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"columns": ["x"]}, ConfigError, "columns has 'x'"),
        ({"starting_version": -1}, ConfigError, "starting_version"),
        ({"form": "table"}, GraphError, "form must be"),
        ({"poll": 5}, ConfigError, "poll"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(
    options: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    append(tmp_path, 1)
    with pytest.raises(error, match=words):
        tr.Environment().from_table(str(tmp_path), **options)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"from_dataframe\(spark.table"):
        tr.Environment().from_table("sales")
    with pytest.raises(GraphError, match="a path or URL"):
        tr.Environment().from_table(None)
    assert tmp_path.is_dir()


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2024-02-29", pa.date32(), dt.date(2024, 2, 29)),
        ("2024-02-29 12:00:00", pa.timestamp("us"), dt.datetime(2024, 2, 29, 12)),
        ("2024-02-29T12:00:00.000000Z", pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
        ("true", pa.bool_(), True),
        ("-5", pa.int16(), -5),
        ("", pa.string(), None),
        (None, pa.int64(), None),
    ],
)
def test_values_of_partitions_come_from_their_texts(text: str | None, kind: pa.DataType, value: Any) -> None:
    assert deltasource.partition_value(text, kind).as_py() == value


def test_marks_and_other_commits_without_files_are_passed_over(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source = DeltaRows(str(tmp_path), follow=True)
    enumerator = source.enumerator(1)
    numbers_of(source, enumerator)
    table = DeltaTable(str(tmp_path))
    table.create_write_transaction([], "append", table.schema(), [], commit_properties=CommitProperties())
    append(tmp_path, 2)
    assert numbers_of(source, enumerator) == [2]
