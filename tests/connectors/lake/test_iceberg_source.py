"""Iceberg tables as sources: the rows of a snapshot, and those of the snapshots that come, each once and in order."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType, StructType, UUIDType

import tailrace as tr
from tailrace.connectors.lake.icebergsource import IcebergRows
from tailrace.errors import ConfigError, GraphError
from tailrace.testing.faults import Fault

CLOCK = itertools.count(step=100)
SCHEMA = pa.schema([("n", pa.int64()), ("part", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """The properties of a catalog in a file."""
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def table(place: dict[str, str]) -> Any:
    """An empty table in that catalog."""
    catalog: Catalog = load_catalog("tailrace", **place)
    catalog.create_namespace("shop")
    return catalog.create_table("shop.sales", SCHEMA)


def append(table: Any, *numbers: int) -> int:
    """Adds rows in one commit, and returns the snapshot."""
    table.refresh()
    table.append(pa.table({"n": numbers, "part": [["a/b c", None, "%"][n % 3] for n in numbers]}, SCHEMA))
    return int(table.current_snapshot().snapshot_id)


def source_of(place: dict[str, str], **options: Any) -> IcebergRows:
    return IcebergRows(place, "shop.sales", **options)


def values_of(source: IcebergRows, enumerator: Any, column: str = "n") -> list[Any]:
    """The values of a column that the enumerator gives out by now, in order; every file is read to its end."""
    found: list[Any] = []
    for _ in range(1000):
        splits = enumerator.discover(float(next(CLOCK)))
        if splits is None or (not splits and enumerator._empty):
            return found
        for split in splits:
            reader = source.reader(split)
            while (batch := reader.read(3, 0.0)) is not None:
                found += [getattr(row, column) for row in batch]
            reader.close()
            enumerator.ended(split)
    raise AssertionError("no end")


def test_the_rows_of_a_table(place: dict[str, str], table: Any) -> None:
    append(table, *range(9))
    last = append(table, 9)
    env = tr.Environment(parallelism=2)
    rows = env.from_table("shop.sales", catalog=place).sink_to(tr.sinks.Collect())
    pruned = env.from_table("shop.sales", catalog=place, form="columns", columns=["part"]).sink_to(tr.sinks.Collect())
    later = env.from_table("shop.sales", catalog=place, starting_version=last).sink_to(tr.sinks.Collect())
    none = env.from_table("shop.sales", catalog=place, starting_version="next").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(rows.result()) == [(n, ["a/b c", None, "%"][n % 3]) for n in range(10)]
    assert Counter(row.part for row in pruned.result()) == {"a/b c": 4, None: 3, "%": 3}
    assert ([row.n for row in later.result()], none.result()) == ([9], [])


@pytest.mark.parametrize("seed", range(2))
def test_snapshots_are_read_in_order_whatever_is_restored_when(seed: int, place: dict[str, str], table: Any) -> None:
    random, count = Random(seed), -1
    snapshots: dict[int, int] = {}
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    found = values_of(source, enumerator)
    positions = [(enumerator.position, 0)]
    for _ in range(20):
        step = random.choice(["append", "append", "read", "read", "restore"])
        if step == "append":
            numbers = range(count + 1, count + 1 + random.randint(1, 4))
            count = numbers[-1]
            append(table, *numbers)
            snapshots |= dict.fromkeys(numbers, len(set(snapshots.values())))
        elif step == "read":
            found += values_of(source, enumerator)
            positions.append((enumerator.position, len(found)))
        else:
            positions = positions[: random.randint(1, len(positions))]
            position, length = positions[-1]
            enumerator, found = source.enumerator(1, position), found[:length]
    found += values_of(source, enumerator)
    assert Counter(found) == Counter(range(count + 1))
    assert [snapshots[n] for n in found] == sorted(snapshots[n] for n in found)


def test_what_comes_next_is_fixed_at_the_first_look(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    source = source_of(place, follow=True, starting_version="next")
    enumerator = source.enumerator(1)
    assert enumerator.discover(0.0) == []
    append(table, 2)
    append(table, 3)
    assert values_of(source, source.enumerator(1, enumerator.position)) == [2, 3]
    assert values_of(source, enumerator) == [2, 3]


def test_a_job_follows_what_another_job_writes_over_failures(place: dict[str, str], table: Any) -> None:
    first = append(table, 0)
    for n in range(1, 60, 6):
        append(table, *range(n, min(n + 6, 60)))
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="c", interval=0.05))
    source = env.from_table("shop.sales", catalog=place, starting_version=first)
    source.map(lambda row: {"n": row.n}).sink_to(tr.sinks.Iceberg(place, "shop.copy", "n long"))
    tr.testing.simulate(env, seed=5, faults=[Fault(150, "kill", 0), Fault(300, "kill", 1)]).await_termination()
    copied = load_catalog("tailrace", **place).load_table("shop.copy")
    assert sorted(copied.scan().to_arrow()["n"].to_pylist()) == list(range(60))
    env = tr.Environment(parallelism=1)
    rows = env.from_table("shop.copy", catalog=place).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(row.n for row in rows.result()) == list(range(60)), "files without ids have names"


def test_a_snapshot_that_deletes_is_an_error_or_skipped(place: dict[str, str], table: Any) -> None:
    append(table, 1, 2)
    source, skipping = source_of(place, follow=True), source_of(place, follow=True, skip_changes=True)
    enumerators = [one.enumerator(1) for one in (source, skipping)]
    assert [values_of(source, one) for one in enumerators] == [[1, 2], [1, 2]]
    table.refresh()
    table.delete("n = 2")
    append(table, 3)
    with pytest.raises(ConfigError, match=r"changes or deletes rows that were read.*skip_changes=True"):
        values_of(source, enumerators[0])
    assert values_of(skipping, enumerators[1]) == [3]


def test_a_snapshot_that_only_rearranges_files_gives_no_rows(
    place: dict[str, str], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg writes none: one of its appends stands for it."""
    append(table, 1)
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    assert values_of(source, enumerator) == [1]
    compacted = append(table, 1)
    append(table, 2)
    found = enumerator.log._snapshot

    def snapshot(table: Any, version: int) -> Any:
        one = found(table, version)
        return SimpleNamespace(summary=SimpleNamespace(operation=Operation.REPLACE)) if version == compacted else one

    monkeypatch.setattr(enumerator.log, "_snapshot", snapshot)
    assert values_of(source, enumerator) == [2]


@pytest.mark.parametrize("version", ["1", "2"])
def test_both_versions_of_the_format_are_read_from_the_first_snapshot(version: str, place: dict[str, str]) -> None:
    catalog = load_catalog("tailrace", **place)
    catalog.create_namespace("shop")
    made = catalog.create_table("shop.sales", SCHEMA, properties={"format-version": version})
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    assert values_of(source, enumerator) == []
    append(made, 1)
    append(made, 2)
    assert (made.metadata.format_version, values_of(source, enumerator)) == (int(version), [1, 2])


def test_columns_are_found_by_their_ids(place: dict[str, str], table: Any) -> None:
    """A column is renamed, and another one gets its name: names alone would give other values."""
    append(table, 1)
    with table.update_schema() as update:
        update.rename_column("n", "number")
    with table.update_schema() as update:
        update.add_column("n", StringType())
    source = source_of(place)
    assert source.schema.names == ["number", "part", "n"]
    assert values_of(source, source.enumerator(1), "number") == [1]
    assert values_of(source, source.enumerator(1), "n") == [None]


def test_a_column_that_was_dropped_before_does_not_come_back_under_its_name(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    with table.update_schema() as update:
        update.delete_column("part")
    source = source_of(place)
    assert (source.schema.names, values_of(source, source.enumerator(1))) == (["n"], [1])
    with table.update_schema() as update:
        update.add_column("part", StringType())
    source = source_of(place)
    assert values_of(source, source.enumerator(1), "part") == [None]


def test_other_columns_are_an_error_unless_columns_are_named(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    source, chosen = source_of(place, follow=True), source_of(place, follow=True, columns=["n"])
    enumerators = [one.enumerator(1) for one in (source, chosen)]
    assert [values_of(one, each) for one, each in zip((source, chosen), enumerators, strict=True)] == [[1], [1]]
    position = enumerators[0].position
    with table.update_schema() as update:
        update.add_column("x", LongType())
    table.append(pa.table({"n": [2], "part": [""], "x": [5]}))
    with pytest.raises(ConfigError, match=r"has the new column 'x'.*start the job again"):
        values_of(source, enumerators[0])
    assert values_of(chosen, enumerators[1]) == [2]
    anew = source_of(place, follow=True)
    assert values_of(anew, anew.enumerator(1, position), "x") == [5]
    with table.update_schema() as update:
        update.rename_column("n", "number")
    append_number = pa.table({"number": [3], "part": [""], "x": [6]})
    table.append(append_number)
    with pytest.raises(ConfigError, match="column 'n' is called 'number' any more"):
        values_of(chosen, enumerators[1])


def test_a_table_that_went_another_way_is_an_error(place: dict[str, str], table: Any) -> None:
    first = append(table, 1)
    append(table, 2)
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    assert sorted(values_of(source, enumerator)) == [1, 2]
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(ConfigError, match=r"rolled back or made anew"):
        values_of(source, enumerator)


def test_snapshots_that_expired_unread_are_an_error(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    values_of(source, enumerator)
    append(table, 2)
    append(table, 3)
    table.refresh()
    table.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    with pytest.raises(ConfigError, match="Snapshots have expired"):
        values_of(source, enumerator)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_first_snapshot_that_expired_unread_is_an_error(version: str, place: dict[str, str]) -> None:
    """The job has begun with an empty table. What is left has lost its parent."""
    catalog = load_catalog("tailrace", **place)
    catalog.create_namespace("shop")
    made = catalog.create_table("shop.sales", SCHEMA, properties={"format-version": version})
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    assert values_of(source, enumerator) == []
    append(made, 1)
    append(made, 2)
    made.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    made.refresh()
    assert made.current_snapshot().parent_snapshot_id is None
    with pytest.raises(ConfigError, match="expired that were not read"):
        values_of(source, enumerator)


def test_a_table_that_is_gone_is_an_error(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    source = source_of(place, follow=True)
    enumerator = source.enumerator(1)
    assert values_of(source, enumerator) == [1]
    load_catalog("tailrace", **place).drop_table("shop.sales")
    with pytest.raises(ConfigError, match="the table is gone, or this machine"):
        values_of(source, enumerator)


def test_a_file_that_is_gone_is_an_error(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    source = source_of(place)
    [split] = source.enumerator(1).discover(0.0)
    os.unlink(split["path"].removeprefix("file://"))
    with pytest.raises(ConfigError, match="is gone: its snapshot has expired"):
        source.reader(split)


def test_a_column_of_a_file_that_only_the_table_knows_is_refused(
    place: dict[str, str], table: Any, tmp_path: Path
) -> None:
    """Files of Hive tables lack the columns by which they are parted."""
    with table.update_spec() as spec:
        spec.add_identity("part")
    append(table, 3)
    source = source_of(place)
    [split] = source.enumerator(1).discover(0.0)
    path = split["path"].removeprefix("file://")
    pq.write_table(pq.ParquetFile(path).read(columns=["n"]), path)
    with pytest.raises(ConfigError, match="has no column 'part', of which only its metadata has the value"):
        source.reader(split)


def test_a_reader_goes_on_within_a_file(place: dict[str, str], table: Any) -> None:
    append(table, *range(20))
    source = source_of(place)
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
        ({"columns": ["n", "n"]}, ConfigError, "has a column twice"),
        ({"starting_version": "newest"}, ConfigError, "starting_version"),
        ({"form": "table"}, GraphError, "form must be"),
        ({"table": "shop.none"}, ConfigError, "there is no such table"),
        ({"table": "sales"}, ConfigError, "a table has a name such as"),
        ({"storage_options": {}}, GraphError, "are in the catalog"),
        ({"poll": 5}, ConfigError, "poll"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(
    options: Any, error: type[Exception], words: str, place: dict[str, str], table: Any
) -> None:
    with pytest.raises(error, match=words):
        tr.Environment(parallelism=1).from_table(**{"table": "shop.sales", "catalog": place, **options})


def test_a_column_of_a_type_that_is_not_read_may_be_left_out(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    with table.update_schema() as update:
        update.add_column("id", UUIDType())
    with pytest.raises(
        ConfigError, match=r"column 'id' is uuid, a type that \(columns= leaves it out\) the source does not"
    ):
        source_of(place)
    source = source_of(place, columns=["n"])
    assert values_of(source, source.enumerator(1)) == [1]


def test_a_field_in_a_column_that_has_another_name_is_refused(place: dict[str, str], table: Any) -> None:
    with table.update_schema() as update:
        update.add_column("at", StructType(NestedField(7, "x", LongType(), required=False)))
    schema = pa.schema([*SCHEMA, ("at", pa.struct([("x", pa.int64())]))])
    table.append(pa.table({"n": [1], "part": [""], "at": [{"x": 5}]}, schema))
    source = source_of(place, form="rows", columns=["at"])
    assert values_of(source, source.enumerator(1), "at") == [{"x": 5}]
    with table.update_schema() as update:
        update.rename_column("at.x", "y")
    source = source_of(place)
    with pytest.raises(ConfigError, match="has other fields in column 'at' than the table today"):
        values_of(source, source.enumerator(1))


def test_a_snapshot_that_is_not_there_is_no_start(place: dict[str, str], table: Any) -> None:
    append(table, 1)
    with pytest.raises(ConfigError, match="starting_version is 7, and the snapshots of the table are"):
        source_of(place, starting_version=7).enumerator(1).discover(0.0)
