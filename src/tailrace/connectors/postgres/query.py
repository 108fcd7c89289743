"""The description of a query: its columns, how its values become records, and how it is read in ranges of one column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tailrace.connectors.postgres.kinds import PLAIN, Column, arrow_type, modifiers
from tailrace.connectors.postgres.server import identifier
from tailrace.elements.batches import Form
from tailrace.elements.columns.arrays import column_of_values
from tailrace.elements.rows import made_rows
from tailrace.errors import ConfigError

CARRIED = {*PLAIN, "numeric", "json", "jsonb", "uuid", "bytea", "time", "xid8"}
"""Types, by their names in `pg_type`, that come out whole; arrays of them and enums as well."""
TEXTS = ("json", "jsonb", "uuid", "time", "xid8")
"""Types that are texts in columns."""
FOLLOWED = {"int2", "int4", "int8", "numeric", "timestamptz", "xid8"}
"""Types of columns that a server can fill with growing values."""
_TYPES = """
SELECT t.oid, t.typname, t.typtype, format_type(t.oid, NULL), coalesce(item.typtype, '')
FROM pg_type t LEFT JOIN pg_type item ON item.oid = nullif(t.typelem, 0) WHERE t.oid = ANY(%s)
"""
_CACHE = """
SELECT s.seqcache, s.seqrelid::regclass::text FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.refobjid = %s AND d.refobjsubid = %s AND d.deptype IN ('a', 'i')
"""

_LAST = """
SELECT s.seqrelid::regclass::text,
  CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') THEN pg_sequence_last_value(s.seqrelid) END
FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.refobjid = %s AND d.refobjsubid = %s AND d.deptype IN ('a', 'i')
"""


class Query(NamedTuple):
    """A query as the server has described it."""

    text: str
    """The query in parentheses, with a name, to select from."""
    columns: tuple[Column, ...]
    kinds: dict[str, str]
    """Name of a column -> its type, as a cast has it."""
    origins: dict[str, tuple[int, int]]
    """Name of a column -> the oid of the table that it comes from, and its number there; (0, 0) where it is computed."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(one.name for one in self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns of batches."""
        return pa.schema([pa.field(one.name, arrow_type(one)) for one in self.columns])

    def records(self, rows: Sequence[tuple[Any, ...]], form: Form) -> Any:
        """Rows of the client as records: a list of rows with names, or a batch in columns."""
        if form == "rows":
            return made_rows(self.names, list(rows))
        columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        arrays = [column_of_values(list(values), field) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def describe_query(connection: Any, query: str, form: Form) -> Query:
    """The description of a query. Raises `ConfigError` for columns that records cannot carry."""
    cursor = connection.execute(f"SELECT * FROM ({query}) AS q LIMIT 0")
    result = cursor.pgresult
    described = [(result.fname(i).decode(), result.ftype(i), result.fmod(i)) for i in range(result.nfields)]
    known = {oid: more for oid, *more in connection.execute(_TYPES, [[oid for _, oid, _ in described]])}
    columns, kinds = [], {}
    for name, oid, modifier in described:
        kind, sort, shown, item = known[oid]
        column = Column(name, kind, shown, False, *modifiers(kind, modifier))
        _check_carried(column, sort, item, form)
        columns.append(column)
        kinds[name] = shown
    if len(kinds) < len(columns):
        raise ConfigError("several columns have one name; name them in the query: SELECT a.id AS a, b.id AS b")
    origins = {name: (result.ftable(i), result.ftablecol(i)) for i, name in enumerate(kinds)}
    return Query(f"({query}) AS q", tuple(columns), kinds, origins)


def _check_carried(column: Column, sort: str, item: str, form: Form) -> None:
    name, kind = column.name, column.kind
    if sort != "e" and kind.removeprefix("_") not in CARRIED:
        why = "enums in arrays are" if item == "e" else "it is"
        raise ConfigError(f"column {name!r} is {column.shown}: {why} not carried; cast it in the query: {name}::text")
    if form == "columns" and kind.removeprefix("_") == "numeric" and not pa.types.is_decimal(_item(arrow_type(column))):
        raise ConfigError(
            f"column {name!r} is numeric without digits that Arrow holds; cast it: {name}::numeric(38, 9)"
        )


def _item(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def check_followed(connection: Any, query: Query, column: str) -> None:
    """Raises `ConfigError` for a column that a source cannot follow."""
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise ConfigError(
            "a replica does not show who writes on its primary, so nobody can follow it: name the primary"
        )
    kind = next(one.kind for one in query.columns if one.name == column)
    if kind not in FOLLOWED:
        raise ConfigError(
            f"column {column!r} is {query.kinds[column]}: smaller or equal values may come late; follow= takes whole "
            f"numbers of a sequence, a timestamptz with DEFAULT now(), or an xid8 with DEFAULT pg_current_xact_id()"
        )
    for cache, sequence in connection.execute(_CACHE, list(query.origins[column])):
        if cache > 1:
            raise ConfigError(
                f"sequence {sequence} has CACHE {cache}: a session may insert numbers that it has kept for hours, far below "
                f"those that were read; ALTER SEQUENCE {sequence} CACHE 1, or follow a column with DEFAULT now()"
            )


def check_sequence(connection: Any, query: Query, column: str, read: Any) -> None:
    """Raises `ConfigError` if the sequence of a followed column stands below a value that was read: the rows to come have
    values that the source has passed."""
    result = connection.execute(
        f"SELECT {identifier(column)} FROM {query.text.replace('%', '%%')} LIMIT 0", []
    ).pgresult
    for sequence, last in connection.execute(_LAST, [result.ftable(0), result.ftablecol(0)]):
        if last is not None and last < read:
            raise ConfigError(
                f"it was read up to {column} = {read}, and sequence {sequence} stands at {last}: it was restarted, as by "
                f"TRUNCATE ... RESTART IDENTITY, or the table was made anew, and new rows have numbers that were passed. "
                f"Start the job anew, without the checkpoint, or move the sequence: SELECT setval('{sequence}', {read})"
            )


def as_texts(connection: Any) -> None:
    """Has a connection give texts for the types that are texts in columns."""
    from psycopg.types.string import TextLoader

    for kind in TEXTS:
        connection.adapters.register_loader(kind, TextLoader)


def range_statement(query: Query, column: str, *, above: bool, upto: bool, inclusive: bool) -> str:
    """The statement that reads a range in a fixed order, with parameters `low` and `high`. Rows of one value are in
    the order of their texts, so that a restart goes on in the middle of them."""
    by, kind = f"q.{identifier(column)}", query.kinds[column]
    limits = [f"{by} {'>=' if inclusive else '>'} %(low)s::{kind}"] if above else []
    limits += [f"{by} <= %(high)s::{kind}"] if upto else []
    where = f" WHERE {' AND '.join(limits)}" if limits else ""
    return f"SELECT * FROM {query.text}{where} ORDER BY {by}, q::text"


def range_bounds(connection: Any, query: Query, column: str, count: int) -> list[Any]:
    """Upper bounds of at most `count` ranges with about as many rows each, in order; empty if there are no rows. Raises
    `ConfigError` for rows that no range has."""
    by = identifier(column)
    shares = ", ".join(f"{at / count!r}" for at in range(1, count + 1))
    shares = f"percentile_disc(ARRAY[{shares}]) WITHIN GROUP (ORDER BY {by})"
    statement = f"SELECT {shares}, count(*) - count({by}) FROM {query.text}"
    bounds, nulls = connection.execute(statement).fetchone()
    if nulls:
        raise ConfigError(f"column {column!r} is NULL in {nulls} rows, which no range has; leave them out in the query")
    found: list[Any] = []
    for bound in bounds or ():
        if bound is not None and (not found or bound != found[-1]):
            found.append(bound)
    return found
