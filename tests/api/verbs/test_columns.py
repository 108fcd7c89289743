"""Columns and expressions as they are written: what cannot work is refused there, with what to do."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr
from tailrace.errors import GraphError, TypeMismatch

x, s = pc.field("x"), pc.field("s")


def table(env: tr.Environment | None = None, schema: str = "id long, x double, s string") -> tr.DataStream:
    return (env or tr.Environment(parallelism=1)).from_collection([(1, 0.5, "a")]).to_columns(schema)


@pytest.mark.parametrize(
    ("write", "columns"),
    [
        (lambda t: t.select("s", "id"), ("s", "id")),
        (lambda t: t.select("id", {"old": "s"}, twice=x * 2), ("id", "old", "twice")),
        (lambda t: t.with_columns(y=x, s=pc.utf8_upper(s)), ("id", "x", "s", "y")),
        (lambda t: t.with_columns({"name": s, "a b": "id"}, name="renamed"), ("id", "x", "s", "name", "a b")),
        (lambda t: t.filter(x > 3), ("id", "x", "s")),
        (lambda t: t.select(s=s, x=x), ("s", "x")),
        (lambda t: t.key_by("id").with_columns(y=x).key_by("y"), ("id", "x", "s", "y")),
    ],
)  # fmt: skip
def test_the_columns_of_the_result_are_known(write: Callable[[Any], Any], columns: Any) -> None:
    made = write(table())
    assert (made.form, made.columns) == ("columns", columns)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda t: t.filter(pc.field("gone") > 1), "filter: there is no column 'gone'; the stream has id, x, s"),
        (lambda t: t.filter(x + 1, name="far"), "filter 'far': the expression is double, and no truth value; compare it"),
        (lambda t: t.filter("s"), "filter: column 's' is string, and no truth value"),
        (lambda t: t.with_columns(y=x).filter(pc.field("y")), "filter: the expression is double"),
        (lambda t: t.select("gone"), "select: there is no column 'gone'"),
        (lambda t: t.select("id").select("x"), "select: there is no column 'x'; the stream has id"),
        (lambda t: t.select(), "select: give at least one column"),
        (lambda t: t.select(["id"]), r"names of columns, got list.*select\(\*names\)"),
        (lambda t: t.select(x + 1), r"select: give each new column a name: select\(total=pc.field"),
        (lambda t: t.select("x", x=s), r"two columns 'x'; give one another name: select\(other=...\)"),
        (lambda t: t.with_columns("x"), "with_columns: give each new column a name"),
        (lambda t: t.with_columns({3: x}), "names of columns must be non-empty strings"),
        (lambda t: t.with_columns(y=3), r"column 'y': expected a column or an expression.*a constant is pc.scalar\(3\)"),
        (lambda t: t.with_columns(y=lambda b: b), "column 'y': .*a function goes into map_batches or map"),
        (lambda t: t.with_columns(name=x), "name= is the name of the operator; for a column of that name give a dict"),
        (lambda t: t.with_columns(y=s + 1), r"column 'y': Arrow cannot compute add_checked\(s, 1\).*string, int64"),
        (lambda t: t.with_columns(y=pc.sum(x)), "column 'y': pc.sum does not work record by record.*an aggregate"),
        (lambda t: t.with_columns(y=pc.field(0)), "column 'y': it cannot be sent to the subtasks"),
        (lambda t: t.key_by(x), r"key_by: expected a function.*with_columns\(x=...\).*use that column"),
        (lambda t: t.key_by("s").sum(x), r"sum: expected a function.*use that column"),
        (lambda t: t.map(x), r"map: expected a function.*with_columns"),
        (lambda t: t.side_output("bad"), r"has no side outputs.*in columns keep each part with a filter\(...\) of its own"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_where_it_is_written(write: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(GraphError, match=why):
        write(table())


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda t: t.select("x"), r"select: .*this one is in rows; call to_columns\(schema\) before, or use map\(f\)"),
        (lambda t: t.with_columns(y=x), r"with_columns: .*call to_columns\(schema\) before"),
        (lambda t: t.filter(x > 3), r"filter: .*call to_columns\(schema\) before, or use a function"),
    ],
)
def test_rows_have_no_columns_to_compute_with(write: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(TypeMismatch, match=why):
        write(table().to_rows())


def test_behind_a_function_of_batches_only_what_is_said_can_be_checked() -> None:
    """The columns that a function of batches gives are known when it runs."""
    made = table().map_batches(lambda b: b)
    assert made.filter(pc.field("gone") > 1).columns is None and made.with_columns(y=x).columns is None
    with pytest.raises(GraphError, match="there is no column 'x'"):
        made.select("s").filter(x > 1)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            "id long, x long, s string",
            "union: column 'x' is double in one stream and int64 in the other; cast one of them",
        ),
        ("x double, id long, s string", r"columns id, x, s, the other x, id, s; they must be the same.*use select\("),
        ("id long, x double, other string", "columns id, x, s, the other id, x, other"),
    ],
)
def test_a_union_has_one_schema(schema: str, why: str) -> None:
    """Once it was the order of the records that decided whether the job failed."""
    env = tr.Environment(parallelism=1)
    with pytest.raises(TypeMismatch, match=why):
        table(env).union(table(env, schema))
    with pytest.raises(TypeMismatch, match=why):
        table(env).key_by("id").union(table(env, schema).key_by("id"))


def test_a_dictionary_is_the_values_that_it_stands_for() -> None:
    """What `select` makes was declared as it is written down, and not as the stream carries it."""
    coded = table().with_columns(s=s.cast(pa.dictionary(pa.int32(), pa.string())))
    assert coded.with_columns(u=pc.utf8_upper(s)).columns == ("id", "x", "s", "u")
    assert coded.union(coded.map_batches(lambda b: b), coded.with_columns(s="s")).form == "columns"


def test_late_records_have_the_columns_of_the_stream() -> None:
    windows = table().assign_timestamps("id").key_by("s").window(tr.Tumbling(10)).count()
    late = windows.side_output("late")
    assert (late.form, late.columns) == ("columns", ("id", "x", "s"))


@pytest.mark.parametrize(
    ("format", "why"),
    [
        ("numpy", "format must be 'arrow', 'pandas' or 'polars', not 'numpy'"),
        ("polars", "format='polars' needs the package polars, which is not installed here.*pip install polars"),
    ],
)
def test_a_format_that_is_not_there_is_refused(format: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.api.checks.arguments.find_spec", lambda package: None)
    with pytest.raises(GraphError, match=why):
        table().map_batches(lambda b: b, format=format)


TWICE = [
    (pa.schema([("a", pa.int64()), ("a", pa.string())]), "the schema has two columns 'a'; give one another name"),
    (
        pa.schema([("x", pa.list_(pa.struct([("s", pa.struct([("b", pa.int8()), ("b", pa.int8())]))])))]),
        r"the schema has in column 'x.item.s' two fields 'b'; give one another name",
    ),
]


@pytest.mark.parametrize(("schema", "why"), TWICE, ids=str)
def test_a_declared_schema_has_each_name_once(schema: pa.Schema, why: str) -> None:
    """A row could not show which of the two columns it means, and Spark refused the result behind the whole job."""
    stream = tr.Environment(parallelism=1).from_collection([(1, 2)])
    with pytest.raises(tr.GraphError, match=why):
        stream.to_columns(schema)
    for sink in (tr.sinks.Parquet, lambda path, schema: tr.sinks.DataFrame(schema)):
        with pytest.raises(tr.GraphError, match=why):
            sink("folder", schema)


def test_a_column_without_a_type_is_declared_as_such() -> None:
    """All of it is null. So what is behind it is checked where it is written, too, and a loop knows its columns."""
    env = tr.Environment(parallelism=1)
    stream = env.from_collection([(1, None), (2, None)]).to_columns(pa.schema([("x", pa.int64()), ("v", pa.null())]))
    with pytest.raises(tr.GraphError, match="column 's': Arrow cannot compute"):
        stream.with_columns(s=pc.utf8_upper(pc.field("x")))

    def body(both: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
        up = both.with_columns(x=pc.field("x") + 1)
        return up.filter(pc.field("x") < 5), up.filter(pc.field("x") >= 5)

    sink = stream.iterate(body).to_rows().sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [tuple(row) for row in sink.result()] == [(5, None), (5, None)]
    env = tr.Environment(parallelism=1)
    env.from_collection([(1, "a")]).to_columns(pa.schema([("x", pa.int64()), ("v", pa.null())])).sink_to(
        tr.sinks.Collect()
    )
    with pytest.raises(tr.JobFailed, match="column 'v' is declared null"):
        tr.testing.run(env)


def test_a_column_without_a_type_goes_with_any_other() -> None:
    env = tr.Environment(parallelism=1)
    void = env.from_collection([(None,)], parallelism=1).to_columns(pa.schema([("x", pa.null())]))
    sink = (
        void.union(env.from_collection([(1,)], parallelism=1).to_columns("x long"))
        .to_rows()
        .sink_to(tr.sinks.Collect())
    )
    tr.testing.run(env)
    assert sorted(map(str, sink.result())) == ["Row(x=1)", "Row(x=None)"]
