"""The table of a sink: what the server says of it, and the statements that write into it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tailrace.connectors.postgres.kinds import Column, modifiers
from tailrace.connectors.postgres.server import identifier
from tailrace.errors import ConfigError

STAGING = "tailrace_staging"
"""Name of the staging table, a temporary one."""
GONE, ORDER = "%deleted", "%order"
"""Columns of the staging table beside those of the table: True for a tombstone, and the order of the records."""

_TABLE = """
SELECT c.oid, c.oid::regclass::text, c.relkind, row_security_active(c.oid),
       has_table_privilege(c.oid, 'INSERT') OR has_any_column_privilege(c.oid, 'INSERT'),
       has_table_privilege(c.oid, 'UPDATE') OR has_any_column_privilege(c.oid, 'UPDATE'),
       has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'DELETE'),
       has_database_privilege(current_database(), 'TEMP'), current_setting('transaction_read_only') = 'on'
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a', coalesce(base.typname, t.typname),
       CASE WHEN base.oid IS NULL THEN a.atttypmod ELSE t.typtypmod END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type base ON base.oid = nullif(t.typbasetype, 0)
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text ORDER BY k.n)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
  AND k.n <= i.indnkeyatts
GROUP BY i.indexrelid
"""


class Table(NamedTuple):
    """A table as the server has described it."""

    name: str
    """The name for statements, in quotes where it needs them."""
    columns: dict[str, Column]
    """The columns that may be written, by name."""
    computed: frozenset[str]
    """The columns whose values the server makes itself."""
    unique: list[list[str]]
    """The columns of each unique index that covers all rows."""
    rights: frozenset[str]
    kind: str
    filtered: bool
    """True if policies for rows apply to this user: `COPY` does not write into such a table."""
    read_only: bool


def describe(connection: Any, name: str) -> Table | None:
    """The table of this name; None if there is none that this user sees."""
    found = connection.execute(_TABLE, [name]).fetchone()
    if found is None:
        return None
    oid, quoted, kind, filtered, *rights, read_only = found
    names = ("INSERT", "UPDATE", "SELECT", "DELETE", "TEMP")
    columns: dict[str, Column] = {}
    computed = set()
    for column, shown, required, made, type_name, modifier in connection.execute(_COLUMNS, [oid]):
        columns[column] = Column(column, type_name, shown, required, *modifiers(type_name, modifier))
        if made:
            computed.add(column)
    unique = [one for (one,) in connection.execute(_UNIQUE, [oid]) if None not in one]
    allowed = frozenset(right for right, has in zip(names, rights, strict=True) if has)
    return Table(quoted, columns, frozenset(computed), unique, allowed, kind, filtered, read_only)


def check_target(table: Table, keys: Sequence[str], columns: Collection[str], deletes: bool) -> None:
    """Raises `ConfigError` for a table that the sink cannot write into."""
    if table.kind not in "rp":
        raise ConfigError("it is no table (a view, a sequence or a foreign table); name the table below it (table=)")
    if table.read_only:
        raise ConfigError("the server only reads: it is a replica, or default_transaction_read_only is on")
    if table.filtered and not keys:
        raise ConfigError(
            "policies for rows apply to this user, and COPY does not write then; the role needs BYPASSRLS"
        )
    unknown = [one for one in (*keys, *columns) if one not in table.columns]
    if unknown:
        setting = "keys=" if unknown[0] in keys else "columns="
        raise ConfigError(f"it has no column {unknown[0]!r} ({setting}); it has {', '.join(table.columns)}")
    made = [one for one in columns if one in table.computed]
    if made:
        raise ConfigError(f"the server makes the values of column {made[0]!r} itself: leave it out of columns=")
    missing = [one.name for one in table.columns.values() if columns and one.required and one.name not in columns]
    if missing:
        raise ConfigError(f"column {missing[0]!r} is NOT NULL and has no default: it must be in columns=")
    needs = ["INSERT", *(["UPDATE", "SELECT", "TEMP"] if keys else []), *(["DELETE"] if deletes else [])]
    lacking = [right for right in needs if right not in table.rights]
    if lacking:
        raise ConfigError(f"this user lacks the right {lacking[0]} on it (TEMP: on the database)")
    if keys and not any(sorted(one) == sorted(keys) for one in table.unique):
        has = "; ".join(", ".join(one) for one in table.unique) or "none"
        raise ConfigError(
            f"keys={list(keys)!r} need a unique index over just these columns (unique indexes here: {has}): CREATE UNIQUE "
            f"INDEX ON {table.name} ({', '.join(map(identifier, keys))})"
        )


def staging_statement(table: str, names: Sequence[str]) -> str:
    """The statement that makes the staging table of a session, for rows with these columns."""
    columns = ", ".join(map(identifier, names))
    return (
        f"CREATE TEMPORARY TABLE {STAGING} ON COMMIT DROP AS SELECT {columns}, "
        f"false AS {identifier(GONE)}, 0::bigint AS {identifier(ORDER)} FROM {table} WITH NO DATA"
    )


def copy_statement(place: str, names: Sequence[str]) -> str:
    """The statement that writes rows with these columns, as CSV, into a table."""
    return f"COPY {place} ({', '.join(map(identifier, names))}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"


def upsert_statements(table: str, names: Sequence[str], keys: Sequence[str], deletes: bool) -> list[str]:
    """The statements that bring the staging table into the table: of each key its last record, an upsert or a tombstone.
    Keys are taken in one order, so two transactions wait for each other in no circle."""
    columns, by = ", ".join(map(identifier, names)), ", ".join(map(identifier, keys))
    newest = f"SELECT DISTINCT ON ({by}) * FROM {STAGING} ORDER BY {by}, {identifier(ORDER)} DESC"
    changes = ", ".join(f"{identifier(one)} = EXCLUDED.{identifier(one)}" for one in names if one not in keys)
    act = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
    upsert = (
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM ({newest}) AS newest WHERE NOT {identifier(GONE)} "
        f"ON CONFLICT ({by}) {act}"
    )
    if not deletes:
        return [upsert]
    same = " AND ".join(f"target.{identifier(one)} = newest.{identifier(one)}" for one in keys)
    delete = f"DELETE FROM {table} AS target USING ({newest}) AS newest WHERE newest.{identifier(GONE)} AND {same}"
    return [delete, upsert]
