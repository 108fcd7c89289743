"""Tables that are altered, renamed or made anew while their changes are read: none is passed over, and no key is wrong."""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

import psycopg
import pytest

import tailrace as tr
from tailrace.errors import ConfigError
from tests.connectors.test_postgres_changes import begun, read, reading, slot

__all__ = ["slot"]
pytestmark = pytest.mark.servers


def letters(count: int, seed: int) -> str:
    """A text that does not get smaller when it is compressed."""
    return "".join(
        random.Random(seed).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=count)
    )


def test_a_large_key_that_is_stored_elsewhere_comes_whole(db: Any, dsn: str, slot: str) -> None:
    db.execute("CREATE TABLE a (id text PRIMARY KEY, v int, other text)")
    db.execute("ALTER TABLE a ALTER id SET STORAGE EXTERNAL")
    key, large = letters(2_500, 1), letters(9_000, 2)
    source = tr.sources.PostgresChanges(dsn, ["a"], slot)
    source.check()
    with reading(source) as reader:
        assert begun(reader)
        db.execute("INSERT INTO a VALUES (%s, 1, %s)", [key, large])
        db.execute("UPDATE a SET v = 2")
        db.execute("UPDATE a SET id = 'b'")
        db.execute("DELETE FROM a")
        found = [(one.op, one.key) for one in read(reader, 5)]
        assert found == [
            ("insert", (key,)),
            ("update", (key,)),
            ("delete", (key,)),
            ("insert", ("b",)),
            ("delete", ("b",)),
        ]


ALTERED = [
    ("ALTER TABLE a RENAME id TO pk", "the key of table 'a' is (id), and changes of it have the key (pk)"),
    ("ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (v)", "have the key (v): it was altered"),
    ("ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (id, v)", "have the key (id, v): it was altered"),
    (
        "CREATE UNIQUE INDEX i ON a (v); ALTER TABLE a REPLICA IDENTITY USING INDEX i",
        "have the key (v): it was altered",
    ),
    ("ALTER TABLE a RENAME TO b", "table 'a' was renamed, dropped or made anew"),
    (
        "DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL)",
        "table 'a' was renamed, dropped or made anew",
    ),
    ("ALTER TABLE a RENAME TO b; CREATE TABLE a (id int PRIMARY KEY)", "table 'a' was renamed, dropped or made anew"),
    ("ALTER PUBLICATION {0} SET TABLE other", "lacks table 'a'"),
    ("DROP PUBLICATION {0}; CREATE PUBLICATION {0} FOR TABLE other", "lacks table 'a'"),
]


@pytest.mark.parametrize(("statement", "error"), ALTERED)
def test_a_table_whose_changes_are_of_other_rows_fails_the_job(
    db: Any, dsn: str, slot: str, monkeypatch: pytest.MonkeyPatch, statement: str, error: str
) -> None:
    """While it is read, and where a job goes on from a checkpoint."""
    monkeypatch.setattr("tailrace.connectors.postgres.changes.CHECK_EVERY", 0.1)
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL); CREATE TABLE other (id int PRIMARY KEY)")
    source = tr.sources.PostgresChanges(dsn, ["a"], slot)
    source.check()
    with reading(source) as reader:
        assert begun(reader)
        db.execute("INSERT INTO a VALUES (1, 10)")
        assert [one.key for one in read(reader, 1)] == [(1,)]
        position = reader.position
        db.execute(statement.format(slot))
        with contextlib.suppress(psycopg.Error):
            db.execute("UPDATE a SET v = v + 1")
        with pytest.raises(ConfigError, match=re.escape(error)):
            read(reader, 1)
    with reading(source, position) as reader, pytest.raises(ConfigError):
        read(reader, 1)
