"""Column names and expressions of `pyarrow.compute` from the user, checked as far as the dataflow's schemas are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.checks.arguments import check_names, check_selector
from tailrace.api.sql.dataframe import is_spark_column as is_spark_column
from tailrace.api.sql.dataframe import tree_of
from tailrace.api.sql.translation import Translation, check_condition, result
from tailrace.api.sql.tree import NotTranslated
from tailrace.elements.columns.common_schema import has_nulls
from tailrace.elements.columns.expressions import Formula
from tailrace.errors import GraphError, TypeMismatch
from tailrace.graph.declared import declared_before
from tailrace.graph.graph import Node
from tailrace.graph.operators import FilterColumns, Forward, Select, Source

if TYPE_CHECKING:
    from tailrace.api.nodes import Stream


def selection(
    stream: Stream, columns: Iterable[Any], named: Mapping[str, Any], verb: str, name: Any, *, keeps: bool
) -> Select:
    """The operator of a `select`, or with `keeps` of a `with_columns`. Raises `GraphError` or `TypeMismatch`."""
    _check_form(stream, verb, "map(f)")
    if isinstance(name, pc.Expression):
        raise GraphError(
            f"{verb}: name= is the name of the operator; for a column of that name give a dictionary: "
            f"{{'name': expression}}"
        )
    pairs = [pair for one in columns for pair in _pairs(one, verb, keeps)] + list(named.items())
    pairs = [(column, _of_spark(stream, given, f"{verb}: column {column!r}")) for column, given in pairs]
    if not pairs:
        raise GraphError(f"{verb}: give at least one column")
    check_names(tuple(name for name, _ in pairs), verb, f"{verb.split()[0]}(other=...)")
    for column, given in pairs:
        _check(stream, given, verb if isinstance(given, str) and given == column else f"{verb}: column {column!r}")
    return Select(tuple(pairs), keeps)


def condition(stream: Stream, given: Any, verb: str) -> FilterColumns:
    """The operator of a `filter` on a stream in columns. Raises `GraphError` or `TypeMismatch`."""
    _check_form(stream, verb, "a function")
    given = _of_spark(stream, given, verb, condition=True)
    kind = _check(stream, given, verb)
    if kind is not None and not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise GraphError(f"{verb}: {no_condition(given, kind)}")
    return FilterColumns(given)


def no_condition(given: Any, kind: pa.DataType) -> str:
    """The reason, for an error, why values of this type cannot be the condition of a filter."""
    what = f"column {given!r}" if isinstance(given, str) else "the expression"
    return f"{what} is {kind}, and no truth value; compare it with something: pc.field('x') > 3"


def _check_form(stream: Stream, verb: str, instead: str) -> None:
    if stream.form != "columns":
        raise TypeMismatch(
            f"{verb}: columns and expressions need a stream in columns, and this one is in rows; call to_columns(schema) "
            f"before, or use {instead}"
        )


def declared_schema(stream: Stream) -> pa.Schema | None:
    """The schema of a stream in columns; None if the dataflow does not declare it."""
    return declared_before(stream.env._graph.nodes.__getitem__, stream._edges(Forward()))


def types_of(stream: Stream, verb: str) -> pa.Schema:
    """The schema of a stream in columns, also where only its source knows it, as that of a DataFrame does. Raises
    `TypeMismatch` if nothing knows it."""
    edges = stream._edges(Forward())
    found = declared_before(stream.env._graph.nodes.__getitem__, edges, _expected_of_source)
    if found is None:
        raise TypeMismatch(
            f"{verb}: the types of the columns are not known here, and Spark's results depend on them; call "
            f"to_columns(schema) before"
        )
    return found


def _expected_of_source(node: Node, given: pa.Schema | None) -> pa.Schema | None:
    found = getattr(node.operator.source, "expected_schema", None) if isinstance(node.operator, Source) else None
    return found if isinstance(found, pa.Schema) and not has_nulls(found) else None


def check_alike(stream: Stream, other: Stream, verb: str) -> None:
    """Raises `TypeMismatch` if two streams in columns are known to have different columns: they cannot be united."""
    if stream.columns is not None and other.columns is not None and stream.columns != other.columns:
        raise TypeMismatch(
            f"{verb}: one stream has the columns {', '.join(stream.columns)}, the other {', '.join(other.columns)}; they "
            f"must be the same in the same order: use select(...)"
        )
    one, two = declared_schema(stream), declared_schema(other)
    if one is None or two is None:
        return
    for a, b in zip(one, two, strict=True):
        if a.type != b.type and not (pa.types.is_null(a.type) or pa.types.is_null(b.type)):
            raise TypeMismatch(
                f"{verb}: column {a.name!r} is {a.type} in one stream and {b.type} in the other; cast one of them: "
                f"to_columns(schema)"
            )


def _of_spark(stream: Stream, given: Any, verb: str, *, condition: bool = False) -> Any:
    """The expression, or the name of a column, for a Column of PySpark; anything else as it is."""
    if not is_spark_column(given):
        return given
    schema = types_of(stream, verb)
    try:
        tree = tree_of(given)[1]
        return check_condition(tree, schema) if condition else result(tree, Translation(schema))
    except NotTranslated as error:
        raise GraphError(f"{verb}: {error}") from None


def _pairs(given: Any, verb: str, keeps: bool) -> list[tuple[str, Any]]:
    if is_spark_column(given) and not keeps:
        try:
            name = tree_of(given)[0]
        except NotTranslated as error:
            raise GraphError(f"{verb}: {error}") from None
        if name is None:
            raise GraphError(f"{verb}: give {given} a name: (...).alias('total'), or {verb.split()[0]}(total=...)")
        return [(name, given)]
    if isinstance(given, Mapping):
        if not all(isinstance(name, str) and name for name in given):
            raise GraphError(f"{verb}: the names of columns must be non-empty strings, not {list(given)!r}")
        return list(given.items())
    if isinstance(given, pc.Expression) or keeps:
        raise GraphError(f"{verb}: give each new column a name: {verb.split()[0]}(total=pc.field('x') + pc.field('y'))")
    if not isinstance(given, str):
        hint = "; give them one by one: select(*names)" if isinstance(given, list | tuple) else ""
        raise GraphError(f"{verb}: expected names of columns, got {type(given).__name__} {given!r}{hint}")
    return [(given, given)]


def _check(stream: Stream, given: Any, verb: str) -> pa.DataType | None:
    """The type of a column or an expression; None if it is not known. Raises `GraphError` for what gives no column of this
    stream."""
    if not isinstance(given, str | pc.Expression):
        hint = "a function goes into map_batches or map" if callable(given) else f"a constant is pc.scalar({given!r})"
        raise GraphError(f"{verb}: expected a column or an expression of pyarrow.compute, not {given!r}; {hint}")
    try:
        formula = Formula(given)
    except ValueError as error:
        raise GraphError(f"{verb}: {error}") from None
    for field in formula.fields:
        check_selector(field, stream.columns, verb)
    schema = declared_schema(stream)
    if schema is None:
        return None
    try:
        return formula.type_in(schema)
    except Exception as error:
        raise GraphError(f"{verb}: Arrow cannot compute {given} from these columns: {error}") from None
