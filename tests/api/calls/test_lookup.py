"""`lookup`: the row of a table for each record, in rows and in columns, beside what pandas finds."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.api.calls import refreshes

TABLE = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})


def collected(build: Any, parallelism: int = 2) -> list[Any]:
    env = tr.Environment(parallelism=parallelism)
    sink = build(env).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted(map(tuple, sink.result()), key=repr)


def plain(value: Any) -> Any:
    if pd.isna(value):
        return None
    return value if isinstance(value, str) else int(value)  # pandas has floats beside missing numbers


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_and_columns_have_what_pandas_finds(seed: int, how: Any) -> None:
    rng = random.Random(seed)
    names = ["a", "b"] if seed % 2 else ["a"]
    keys = [(a, b) for a in range(5) for b in "xyz"]
    rng.shuffle(keys)
    some = {key[: len(names)]: key for key in keys[:8]}
    table = pd.DataFrame(
        [(*key[:2], f"city {i}", i) for i, key in enumerate(some.values())], columns=["a", "b", "c", "n"]
    )
    table = table if len(names) > 1 else table.drop(columns="b")
    records = [(rng.choice([None, *range(7)]), rng.choice("xyzw"), i) for i in range(60)]
    frame = pd.DataFrame(records, columns=["a", "d" if len(names) == 1 else "b", "i"]).astype({"a": "Int64"})
    wanted = frame.merge(table.astype({"a": "Int64"}), on=names, how=how)
    expected = sorted([tuple(map(plain, row)) for row in wanted.itertuples(index=False)], key=repr)
    schema = f"a long, {frame.columns[1]} string, i long"

    def columns(env: tr.Environment) -> Any:
        return env.from_collection(records).to_columns(schema).lookup(table, on=names, how=how).to_rows()

    def rows(env: tr.Environment) -> Any:
        pairs = env.from_collection(records).to_columns(schema).to_rows().lookup(table, on=names, how=how)
        rest = [name for name in table.columns if name not in names]
        return pairs.map(lambda p: (*p[0], *([None] * len(rest) if p[1] is None else [getattr(p[1], n) for n in rest])))

    assert collected(columns) == expected
    assert collected(rows) == expected


def test_timestamps_stay_with_their_records() -> None:
    def build(env: tr.Environment) -> Any:
        sales = env.from_collection([(1, 5), (3, 6), (2, 12)]).to_columns("id long, at long").assign_timestamps("at")
        return sales.lookup(TABLE, on="id", how="inner").key_by("city").window(tr.Tumbling(10)).count().to_rows()

    assert collected(build) == [("Oslo", 0.0, 10.0, 1), ("Rome", 10.0, 20.0, 1)]


REFUSED: dict[str, tuple[Any, str]] = {
    "two rows of one key": (
        {"table": pa.table({"id": [1, 1], "x": [1, 2]}), "on": "id"},
        "lookup: the table has several rows with id 1; a record gets one",
    ),
    "no such column": ({"table": TABLE, "on": "price"}, "lookup: the table has no column 'price'; it has id, city"),
    "floats": (
        {"table": pa.table({"id": [1.0]}), "on": "id"},
        "lookup: column 'id' of the table is double, by which rows",
    ),
    "a column that is there": ({"table": pa.table({"id": [1], "price": [1]}), "on": "id"}, "two columns 'price'"),
    "how": ({"table": TABLE, "on": "id", "how": "full"}, "lookup: how must be 'left' or 'inner', not 'full'"),
    "refresh": (
        {"table": TABLE, "on": "id", "refresh": 60},
        "lookup: with refresh a worker reads the table, again and again, and it cannot do that with a Table; give",
    ),
    "refresh of nothing": ({"table": lambda: TABLE, "on": "id", "refresh": 0}, "refresh must be above zero"),
    "refresh and on_error": (
        {"table": lambda: TABLE, "on": "id", "refresh": 9, "on_error": tr.Aside("bad")},
        "on_error the stream must be in rows: call to_rows",
    ),
    "refresh by another type": (
        {"table": lambda: pa.table({"id": ["1"]}), "on": "id", "refresh": 9},
        "column 'id' is int64 in the stream and string in the table; cast one",
    ),
    "refresh of a column that is there": (
        {"table": lambda: pa.table({"id": [1], "price": [1]}), "on": "id", "refresh": 9},
        "two columns 'price'",
    ),
    "refresh by a key": ({"table": lambda key: TABLE, "on": "id", "refresh": 9}, "lookup: .*argument"),
    "a function": ({"table": print, "on": "id"}, "lookup: print is no async function"),
    "no table": ({"table": [1], "on": "id"}, "lookup: expected a DataFrame of pandas, polars or Spark"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_where_it_is_written(what: str) -> None:
    options, message = REFUSED[what]
    env = tr.Environment(parallelism=1)
    sales = env.from_collection([(1, 5.0)]).to_columns("id long, price double")
    with pytest.raises(tr.GraphError, match=message):
        sales.lookup(options.pop("table"), **options)


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_table_that_is_read_anew_gives_what_one_gives_that_is_read_once(how: Any) -> None:
    rng = random.Random("anew")
    table = pa.table({"city": ["Oslo", None, "Rome"], "b": ["x", "y", "x"], "id": [1, 2, 3]})
    records = [(rng.choice([None, *range(5)]), rng.choice("xy"), i) for i in range(200)]

    def found(env: tr.Environment, form: str, given: Any, **options: Any) -> Any:
        stream: Any = env.from_collection(records).to_columns("id long, b string, at long").assign_timestamps("at")
        if form == "rows":
            return stream.to_rows().lookup(given, on=["id", "b"], how=how, **options)
        joined = stream.lookup(given, on=["id", "b"], how=how, **options)
        counts = joined.key_by("city").window(tr.Tumbling(50)).count().to_rows()
        return joined.to_rows().union(counts.map(lambda row: ("count", *row)))

    for form in ("rows", "columns"):
        once = collected(lambda env, form=form: found(env, form, table))
        assert collected(lambda env, form=form: found(env, form, lambda: table, refresh=9, uid="anew")) == once


def test_keys_of_another_type_fail_with_both_types() -> None:
    with pytest.raises(tr.JobFailed, match="column 'id' is string in the stream and int64 in the table; cast one"):
        collected(lambda env: env.from_collection([("1",)]).to_columns("id string").lookup(TABLE, on="id"))


def test_a_table_that_is_read_anew_is_checked_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    env = tr.Environment(parallelism=1)
    rows = env.from_collection([(1,)]).to_columns("id long").to_rows()
    with pytest.raises(tr.GraphError, match="the first reading of the table has failed: ZeroDivisionError"):
        rows.lookup(lambda: 1 // 0, on="id", refresh=9)
    with pytest.raises(tr.GraphError, match="expected a DataFrame of pandas, polars or Spark"):
        rows.lookup(lambda: [1], on="id", refresh=9)
    with pytest.raises(
        tr.GraphError, match="a loop ends when nothing is left in its channels, and a reading under way is in none"
    ):
        rows.iterate(lambda inner: (None, inner.lookup(lambda: TABLE, on="id", refresh=9)))
    monkeypatch.setattr(refreshes, "MOST_BYTES", 10)
    with pytest.raises(tr.GraphError, match="and one that is read anew at most 10 B"):
        rows.lookup(lambda: TABLE, on="id", refresh=9)


def test_a_version_must_fit_the_first_one() -> None:
    def read(table: Any) -> tuple[str, Any]:
        return refreshes.TableReader(lambda: table, ("id",), TABLE.schema, "lookup")()

    kind, data = read(pa.table({"more": [1], "city": ["Bonn"], "id": pa.array([7], pa.int8())}))
    assert kind == "rows" and pa.ipc.open_stream(data).read_all() == pa.table({"id": [7], "city": ["Bonn"]})
    assert read(pa.table({"id": [7]})) == ("failed", "GraphError: lookup: the table has no column 'city' any more")
    for wrong in (pa.table({"id": [7, 7], "city": ["a", "b"]}), pa.table({"id": ["x"], "city": ["a"]}), 5):
        assert read(wrong)[0] == "failed"


def test_a_program_with_another_table_goes_on_with_its_own_first_version() -> None:
    """Not with rows of other columns, or found by another key, that the checkpoint of an earlier program has."""

    def message(table: pa.Table, on: tuple[str, ...]) -> Any:
        schema = table.schema.with_metadata({"key": ", ".join(on)})
        return 1.0, refreshes.TableReader(lambda: table, on, schema, "lookup")()

    first = TABLE.replace_schema_metadata({"key": "id"})
    others = [
        message(pa.table({"id": [1], "zone": ["x"], "city": ["Bonn"]}), ("id",)),
        message(pa.table({"id": [1, 1], "city": ["Bonn", "Bern"]}), ("city",)),
        message(pa.table({"id": pa.array([1], pa.int8()), "city": ["Bonn"]}), ("id",)),
    ]
    record = table_row(1)
    for other in others:
        h = tr.testing.harness(refreshes.RefreshedLookup(first, ("id",), False))
        h.push(other, input=2)
        assert [tuple(row) for _, row in h.push(record)] == [(1, "Oslo")]
        h.push(message(pa.table({"id": [1], "city": ["Bonn"]}), ("id",)), input=2)
        assert [tuple(row) for _, row in h.push(record)] == [(1, "Bonn")]


def table_row(key: int) -> Any:
    return SimpleNamespace(id=key)
