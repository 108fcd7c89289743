"""Rows: tuples whose values have the names of their columns, whatever these are."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row as SparkRow

import tailrace as tr
from search.value_shapes import NAMES
from tailrace.elements.keypickling import dump_keys
from tailrace.elements.keys import canonical_bytes
from tailrace.elements.plainkeys import plain_key
from tailrace.elements.rows import Row, field_getter, made_rows, row_type, rows_of
from tailrace.errors import GraphError

SOME_NAMES = st.lists(st.sampled_from(NAMES) | st.text(max_size=4).filter(str.isascii), unique=True, max_size=6)


def a_row(**values: Any) -> Any:
    return row_type(tuple(values))(*values.values())


@given(SOME_NAMES)
def test_a_row_is_read_as_one_of_pyspark(names: list[str]) -> None:
    values = tuple(range(len(names)))
    [row], theirs = made_rows(tuple(names), [values]), SparkRow(*names)(*values)
    assert row == values and hash(row) == hash(values) and tuple(row) == values and len(row) == len(values)
    assert repr(row) == repr(theirs)
    assert row.asDict() == theirs.asDict() if "asDict" not in names else Row.asDict(row) == theirs.asDict()
    for at, name in enumerate(names):
        assert row[at] == row[name] == theirs[name] and name in row and name in theirs
        assert field_getter(name, row)(row) == at
        if not (name.startswith("__") and name.endswith("__")):
            assert getattr(row, name) == at
    assert (0 in row) is (0 in theirs) and row[:2] == theirs[:2] == values[:2]


@given(SOME_NAMES)
def test_a_row_comes_back_from_a_pickle_and_a_copy(names: list[str]) -> None:
    [row] = made_rows(tuple(names), [tuple(range(len(names)))])
    for back in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row), pickle.loads(dump_keys(row))):
        assert back == row and type(back) is type(row)


def test_a_row_of_an_older_checkpoint_is_found() -> None:
    """As it was written when rows were named tuples."""
    row = row_type(("name", "two words", "_1"))("a", 1, None)
    older = (
        b"\x80\x05\x95R\x00\x00\x00\x00\x00\x00\x00\x8c\x19tailrace.elements.convert\x94\x8c\t_make_row\x94\x93\x94"
        b"\x8c\x04name\x94\x8c\ttwo words\x94\x8c\x02_1\x94\x87\x94\x8c\x01a\x94K\x01N\x87\x94\x86\x94R\x94."
    )
    back = pickle.loads(older)
    assert type(back) is type(row) and {row: "found"}[back] == "found"
    assert dump_keys(row) == older
    assert canonical_bytes(back) == canonical_bytes(("a", 1, None))
    assert plain_key(back) is back


def test_nested_rows_become_dictionaries_where_that_is_requested() -> None:
    inner = a_row(x=1)
    row = a_row(one=inner, many=[inner], named={"k": inner}, plain=(1,))
    assert row.asDict()["one"] is inner
    assert row.asDict(True) == row.asDict(recursive=True) == {
        "one": {"x": 1}, "many": [{"x": 1}], "named": {"k": {"x": 1}}, "plain": (1,),
    }  # fmt: skip


def test_a_row_has_the_methods_by_which_libraries_know_named_tuples() -> None:
    row = a_row(x=1, y="a")
    assert row._fields == row.__fields__ == ("x", "y")
    assert row._asdict() == {"x": 1, "y": "a"} and row._replace(x=2) == (2, "a") and row._make([3, "b"]).y == "b"
    assert pd.DataFrame([row, row]).columns.tolist() == pl.DataFrame([row, row]).columns == ["x", "y"]


def test_a_row_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        a_row(x=1).x = 2
    with pytest.raises(AttributeError):
        a_row(x=1).y = 2


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_a_row_has_a_value_for_each_column(values: tuple[int, ...]) -> None:
    kind = row_type(("x", "y"))
    for make in (lambda: kind(*values), lambda: kind._make(values), lambda: made_rows(("x", "y"), [(1, 2), values])):
        with pytest.raises(TypeError, match=f"2 columns got {len(values)} values"):
            make()


def test_a_column_that_is_not_there_is_reported_with_those_that_are() -> None:
    row = a_row(name="a", pieces=1)
    with pytest.raises(ValueError, match="no column 'price'; it has 'name', 'pieces'"):
        row["price"]
    with pytest.raises(ValueError, match="no column 'price'"):
        field_getter("price", row)(row)
    with pytest.raises(IndexError):
        row[2]


def test_an_attribute_that_is_no_column_is_reported_with_the_columns() -> None:
    env = tr.Environment(parallelism=1)
    rows = env.from_collection([("a", 3)]).to_columns("u string, m int").to_rows()
    rows.map(lambda row: row.price, name="priced").sink_to(tr.sinks.Collect())
    with pytest.raises(
        tr.JobFailed, match=r"priced.*\n?.*AttributeError: the row has no column 'price'; it has 'u', 'm'"
    ):
        tr.testing.run(env)


def test_a_name_that_several_columns_have_is_refused_where_it_is_read() -> None:
    row = row_type(("x", "x", "y"))(1, 2, 3)
    for read in (lambda: row["x"], lambda: row.asDict(), lambda: field_getter("x", row)(row)):
        with pytest.raises(ValueError, match="2 columns that 'x' may be"):
            read()
    with pytest.raises(AttributeError, match="2 columns that 'x' may be"):
        row.x  # noqa: B018
    assert row.y == row["y"] == 3 and row == (1, 2, 3)


def test_a_name_is_read_as_python_reads_it_in_a_program() -> None:
    row = row_type(("\ufb01", "y"))(1, 2)
    assert row.ﬁ == row["\ufb01"] == 1
    assert [getattr(row, name) for name in ("\ufb01", "fi")] == [1, 1]
    assert "fi" not in row
    both = row_type(("\ufb01", "fi"))(1, 2)
    assert (both["\ufb01"], both["fi"]) == (1, 2)
    assert [field_getter(name, both)(both) for name in ("\ufb01", "fi")] == [1, 2]
    with pytest.raises(AttributeError, match="2 columns that 'fi' may be"):
        both.ﬁ  # noqa: B018


ALIKE = [("e\u0301", "\u00e9"), ("\ufb01", "fi"), ("\u00aa", "a"), ("K", "\u212a")]


@pytest.mark.parametrize("names", ALIKE, ids=ascii)
def test_names_that_are_one_to_python_are_refused_where_rows_are_made(names: tuple[str, str]) -> None:
    env = tr.Environment(parallelism=1)
    columns = env.from_collection([(1, 2)]).to_columns(pa.schema([(name, pa.int64()) for name in names]))
    with pytest.raises(GraphError, match=r"to_rows: the columns .* are one name to Python"):
        columns.to_rows()
    with pytest.raises(GraphError, match="are one name to Python"):
        columns.map(lambda row: row)
    sink = columns.map_batches(lambda batch: batch.rename_columns(["x", "y"])).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [(1, 2)]


def test_fields_of_rows_of_pyspark_are_read_by_name() -> None:
    row = SparkRow(**{"count": 3, "a.b": 4})
    assert [field_getter(name, row)(row) for name in ("count", "a.b")] == [3, 4]


@settings(max_examples=20)
@given(SOME_NAMES.filter(bool), st.data())
def test_a_key_by_name_is_the_key_that_a_function_reads(names: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(names))
    records = [tuple(i + j for j in range(len(names))) for i in (0, 100)]
    results = []
    for form in ("rows", "columns"):
        for selector in (name, lambda row: row[name]):
            env = tr.Environment(parallelism=1)
            table = env.from_collection(records).to_columns(pa.schema([(one, pa.int64()) for one in names]))
            stream: Any = table.to_rows() if form == "rows" else table
            summed = stream.key_by(selector).sum(selector)
            rows = summed.to_rows() if summed.form == "columns" else summed
            sink = rows.sink_to(tr.sinks.Collect())
            tr.testing.run(env)
            results.append(sorted(map(tuple, sink.result())))
    at = names.index(name)
    assert results == [[(at, at), (100 + at, 100 + at)]] * 4


def test_rows_without_columns_are_there() -> None:
    empty = pa.record_batch({"x": [1, 2, 3]}).select([])
    assert rows_of(empty) == [(), (), ()] and repr(rows_of(empty)[0]) == "Row()"
