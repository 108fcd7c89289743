"""The verb `sql`: a query becomes a filter and a select."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.api.checks.arguments import check_names, title_of
from tailrace.api.sql.reader import SelectItem, SqlQuery, read
from tailrace.api.sql.translation import Translation, check_condition, result
from tailrace.api.sql.tree import NotTranslated, Tree
from tailrace.api.verbs.columns import types_of
from tailrace.errors import GraphError, TypeMismatch
from tailrace.graph import operators as ops

AnyStream = Any
"""A stream of `api.streams`, the module that imports this one."""


def sql(stream: AnyStream, query: str, options: dict[str, Any]) -> AnyStream:
    """The stream of the results of a query; see `DataStream.sql`."""
    verb = title_of("sql", options)
    schema = known_schema(stream, verb)
    if not isinstance(query, str):
        raise GraphError(f"{verb}: expected a query such as 'select a, b from stream where b > 2', not {query!r}")
    try:
        found = read(query)
        where = None if found.where is None else check_condition(found.where, schema)
        columns = select_columns(found, schema)
    except NotTranslated as error:
        raise GraphError(f"{verb}: {error}") from None
    except RecursionError:
        raise GraphError(
            f"{verb}: the query is nested too deeply; call sql for each part: stream.sql(...).sql(...)"
        ) from None
    check_names(tuple(name for name, _ in columns), verb, "`... as other`")
    whole = [given for name, given in columns if isinstance(given, str) and name == given] == schema.names
    whole = whole and len(columns) == len(schema.names)
    if where is not None:
        own = options if whole else _part_options(options)
        stream = stream._add(ops.FilterColumns(where), "sql", own, form="columns", columns=tuple(schema.names))
        if whole:
            return stream
    names = tuple(name for name, _ in columns)
    return stream._add(ops.Select(columns, False), "sql", options, form="columns", columns=names)


def known_schema(stream: AnyStream, verb: str) -> pa.Schema:
    """The schema of a stream in columns. Raises `TypeMismatch` for one in rows, and where no types are declared."""
    if stream.form != "columns":
        raise TypeMismatch(
            f"{verb}: it needs a stream in columns, and this one is in rows; call to_columns(schema) before; the results "
            f"become rows with names where a function sees them"
        )
    return types_of(stream, verb)


def _part_options(options: dict[str, Any]) -> dict[str, Any]:
    own = {name: None if options.get(name) is None else f"{options[name]}-where" for name in ("uid", "name")}
    return {**options, **own}


def select_columns(query: SqlQuery, schema: pa.Schema) -> tuple[tuple[str, Any], ...]:
    """The columns of a query: names, each with a column of the schema or an expression. Raises `NotTranslated`."""
    pairs: list[tuple[str, Any]] = []
    others: dict[str, list[Tree]] = {}
    for item in query.items:
        if item.tree is None:
            pairs += [(name, name) for name in _star(item, schema)]
            continue
        if item.name is None:
            raise NotTranslated("a result has no name", item.at, "give it one: `... as name`")
        pairs.append((item.name, result(item.tree, Translation(schema, others))))
        others.setdefault(item.name.lower(), []).append(item.tree)
    return tuple(pairs)


def _star(item: SelectItem, schema: pa.Schema) -> list[str]:
    """The columns that `*` stands for."""
    out = {name.lower() for name in item.leaves_out}
    if unknown := sorted(out - {name.lower() for name in schema.names}):
        raise NotTranslated(
            f"there is no column {unknown[0]!r} to leave out", item.at, f"the stream has {', '.join(schema.names)}"
        )
    return [name for name in schema.names if name.lower() not in out]
