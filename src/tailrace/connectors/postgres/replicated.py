"""What the server must have for logical replication: tables, a publication, a slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tailrace.connectors.postgres.lineage import lsn_text
from tailrace.connectors.postgres.query import CARRIED
from tailrace.connectors.postgres.server import client, identifier
from tailrace.errors import ConfigError

_TABLE = """
SELECT c.oid, n.nspname, c.relname, c.oid::regclass::text, c.relkind, c.relreplident
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT attname, atttypid FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""
_KEYS = """
SELECT a.attname, t.typname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum JOIN pg_type t ON t.oid = a.atttypid
WHERE i.indrelid = %s AND i.indisprimary AND k.n <= i.indnkeyatts ORDER BY k.n
"""
_PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
_SLOT = """
SELECT plugin, database = current_database(), confirmed_flush_lsn - '0/0'::pg_lsn, wal_status
FROM pg_replication_slots WHERE slot_name = %s
"""
_NAMES = "SELECT oid, typname FROM pg_type WHERE oid = ANY(%s)"
TEXTS = {"text", "varchar"}
ORDERED = {"int2", "int4", "int8", "numeric", "uuid", "date", "timestamptz", "timestamp", "bytea", *TEXTS}
"""Types of primary keys whose values Python has in the order of the server."""


class ReplicatedTable(NamedTuple):
    """A table that is read with its changes."""

    name: str
    """The name that the user has given."""
    schema: str
    relation: str
    quoted: str
    """The name for statements."""
    columns: tuple[tuple[str, int], ...]
    """Names and types of its columns."""
    keys: tuple[str, ...]
    """The columns of its primary key."""
    kinds: tuple[str, ...]
    """The names of their types."""
    oid: int
    """The number of the table: one that is made anew has another."""

    def key_of(self, row: Any) -> tuple[Any, ...]:
        """The key of a row of all columns."""
        return tuple(row[name] for name in self.keys)

    def statement(self, low: tuple[Any, ...] | None) -> tuple[str, list[Any]]:
        """The statement that reads the rows with keys above `low` in the order of keys, and its parameters."""
        columns = ", ".join(identifier(name) for name, _ in self.columns)
        by = [
            f'{identifier(name)} COLLATE "C"' if kind in TEXTS else identifier(name)
            for name, kind in zip(self.keys, self.kinds, strict=True)
        ]
        where = ""
        if low is not None:
            where = f" WHERE ({', '.join(by)}) > ({', '.join(f'%s::{kind}' for kind in self.kinds)})"
        return f"SELECT {columns} FROM {self.quoted}{where} ORDER BY {', '.join(by)}", list(low or ())

    @staticmethod
    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        """A key as it is compared: in the order in which `statement` reads."""
        return tuple(one.encode() if isinstance(one, str) else one for one in key)


class RowLoaders:
    """Loaders for the types of one server. Types that do not come out whole, such as intervals, stay texts."""

    def __init__(self) -> None:
        self._loaders: dict[int, Callable[[bytes], Any]] = {}

    def of_types(self, connection: Any, types: Sequence[int]) -> list[Callable[[bytes], Any]]:
        """A loader for each type, by its oid."""
        psycopg = client()
        from psycopg.types.string import TextLoader

        unknown = [one for one in types if one not in self._loaders]
        names = dict(connection.execute(_NAMES, [unknown]).fetchall()) if unknown else {}
        for oid in unknown:
            if names.get(oid, "").removeprefix("_") not in CARRIED:
                connection.adapters.register_loader(oid, TextLoader)
            loader = psycopg.adapt.Transformer(connection).get_loader(oid, psycopg.pq.Format.TEXT)
            self._loaders[oid] = loader.load
        return [self._loaders[one] for one in types]

    def of_table(self, connection: Any, table: ReplicatedTable) -> tuple[str, ...]:
        """Registers the loaders for a table with the connection; returns the names of its columns."""
        self.of_types(connection, [oid for _, oid in table.columns])
        return tuple(name for name, _ in table.columns)


def describe_tables(connection: Any, names: Sequence[str]) -> list[ReplicatedTable]:
    """Tables by their names. Raises `ConfigError` for one whose changes cannot be read."""
    return [_describe(connection, name) for name in names]


def _describe(connection: Any, name: str) -> ReplicatedTable:
    found = connection.execute(_TABLE, [name]).fetchone()
    if found is None:
        raise ConfigError(f"there is no table {name!r} that this user sees")
    oid, schema, relation, quoted, kind, identity = found
    if kind != "r":
        raise ConfigError(f"{name!r} is no plain table; of a partitioned table name the partitions")
    columns = tuple(connection.execute(_COLUMNS, [oid]).fetchall())
    keys = connection.execute(_KEYS, [oid]).fetchall()
    if not keys:
        raise ConfigError(f"table {name!r} has no primary key, so its changes are of no known row: add one")
    if identity == "i":
        raise ConfigError(f"table {name!r} has another replica identity than its primary key: set DEFAULT or FULL")
    if identity == "n":
        raise ConfigError(
            f"table {name!r} has REPLICA IDENTITY NOTHING, so PostgreSQL refuses updates of it while it is published: ALTER "
            f"TABLE {quoted} REPLICA IDENTITY DEFAULT"
        )
    wrong = [(column, type_name) for column, type_name in keys if type_name not in ORDERED]
    if wrong:
        raise ConfigError(f"table {name!r}: primary keys of type {wrong[0][1]} are not read ({wrong[0][0]!r})")
    key_names, kinds = zip(*keys, strict=True)
    return ReplicatedTable(name, schema, relation, quoted, columns, key_names, kinds, oid)


def check_publication(connection: Any, publication: str, tables: Sequence[str]) -> None:
    """Creates the publication where it does not exist. Raises `ConfigError` if it lacks a table."""
    if connection.execute("SHOW wal_level").fetchone() != ("logical",):
        raise ConfigError("the server does not write its log for replication: set wal_level = logical, and restart it")
    described = describe_tables(connection, tables)
    if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchone() is None:
        names = ", ".join(one.quoted for one in described)
        connection.execute(f"CREATE PUBLICATION {identifier(publication)} FOR TABLE {names}")
    check_published(connection, publication, described)


def check_published(connection: Any, publication: str, tables: Sequence[ReplicatedTable]) -> None:
    """Raises `ConfigError` if the publication lacks a table, or if a name is no longer that of its table: no changes would
    come."""
    published = set(connection.execute(_PUBLISHED, [publication]).fetchall())
    for one in tables:
        (oid,) = connection.execute("SELECT to_regclass(%s)::oid", [one.name]).fetchone()
        if oid != one.oid:
            raise made_anew(one.name)
        if (one.schema, one.relation) not in published:
            raise ConfigError(
                f"publication {publication!r} (publication=) lacks table {one.name!r}: ALTER PUBLICATION "
                f"{identifier(publication)} ADD TABLE {one.quoted}"
            )


def made_anew(name: str) -> ConfigError:
    """The error for a table that is not the one whose rows and changes were read."""
    return ConfigError(
        f"table {name!r} was renamed, dropped or made anew: changes come of the table that had this name. Start the job "
        f"anew, without the checkpoint: it reads a new snapshot"
    )


def check_slot(connection: Any, slot: str, start: int | None) -> None:
    """Raises `ConfigError` if changes cannot be read from the place `start` on; None: the job begins anew."""
    found = connection.execute(_SLOT, [slot]).fetchone()
    anew = "Start the job anew, without the checkpoint: it reads a new snapshot"
    if found is None:
        if start is not None:
            raise ConfigError(f"it is gone, and the changes since the checkpoint with it. {anew}")
        return
    plugin, here, confirmed, status = found
    if plugin != "pgoutput" or not here:
        raise ConfigError("it is a slot of another plugin or database: choose another name")
    if status == "lost":
        raise ConfigError(
            f"the server has invalidated it: the job was away for longer than max_slot_wal_keep_size allows. Drop it: "
            f"SELECT pg_drop_replication_slot('{slot}'). {anew}"
        )
    if start is not None and confirmed is not None and start < int(confirmed):
        raise ConfigError(
            f"the checkpoint is at {lsn_text(start)} of the server's log, and the slot was confirmed up to "
            f"{lsn_text(int(confirmed))} by a later checkpoint: the server does not keep the changes between. {anew}"
        )
