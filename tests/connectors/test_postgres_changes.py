"""Changes of PostgreSQL tables come once, in order, behind a snapshot, over restarts of job and server."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import pickle
import random
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

import tailrace as tr
from tests.servers import Server

pytestmark = pytest.mark.servers
_numbers = itertools.count()


@pytest.fixture
def slot(postgres: Server) -> Iterator[str]:
    """The name of a slot, which is dropped with its publication at the end."""
    name = f"slot_{next(_numbers)}"
    yield name
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [name]
        )
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        connection.execute(f"DROP PUBLICATION IF EXISTS {name}")


@contextlib.contextmanager
def reading(source: Any, position: Any = None) -> Iterator[Any]:
    """A reader from a position, which has gone through a checkpoint, and is closed."""
    reader = source.reader(source.slot, pickle.loads(pickle.dumps(position)))
    try:
        yield reader
    finally:
        reader.close()
        reader._thread.join(10)


def read(reader: Any, most: int, limit: int = 1000) -> list[Any]:
    """The next changes, as many as are given, in calls of `read`."""
    found: list[Any] = []
    until = time.monotonic() + 60
    while len(found) < most:
        found += reader.read(min(limit, most - len(found)), 0.0)
        assert time.monotonic() < until, found
    return found


def some(reader: Any, most: int, limit: int) -> list[Any]:
    """At most so many changes, as many as there are now."""
    found, empty = list[Any](), 0
    while len(found) < most and empty < 60:
        batch = reader.read(min(limit, most - len(found)), 0.0)
        found, empty = [*found, *batch], 0 if batch else empty + 1
    return found


def begun(reader: Any) -> bool:
    """True when the reader has read the snapshot, and changes come from here on."""
    until = time.monotonic() + 60
    while reader.position is None or reader.position.reading:
        assert not reader.read(10, 0.0) and time.monotonic() < until
    return True


def nothing_more(reader: Any) -> bool:
    """True if the reader gives nothing for a while."""
    return not any(reader.read(10, 0.0) for _ in range(100))


def test_rows_that_are_there_come_first_and_then_their_changes(db: Any, dsn: str, slot: str) -> None:
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text, n numeric, i interval)")
    db.execute("CREATE TABLE b (x int, y text, PRIMARY KEY (y, x))")
    db.execute("INSERT INTO a VALUES (1, 'one', 1.5, '1 day'), (2, NULL, NULL, NULL); INSERT INTO b VALUES (1, 'b')")
    source = tr.sources.PostgresChanges(dsn, ["a", "b"], slot)
    source.check()
    with reading(source) as reader:
        first = read(reader, 3)
        assert [(one.op, one.table, one.key, one.row.asDict(), one.old, one.time) for one in first] == [
            ("insert", "a", (1,), {"id": 1, "v": "one", "n": Decimal("1.5"), "i": "1 day"}, None, None),
            ("insert", "a", (2,), {"id": 2, "v": None, "n": None, "i": None}, None, None),
            ("insert", "b", ("b", 1), {"x": 1, "y": "b"}, None, None),
        ]
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
        db.execute("INSERT INTO a VALUES (3, 'three', 0, NULL)")
        db.execute("UPDATE a SET v = 'deux' WHERE id = 2")
        with db.transaction():
            db.execute("UPDATE a SET id = 5 WHERE id = 1")
            db.execute("DELETE FROM b")
        db.execute("TRUNCATE b")
        db.execute("ALTER TABLE a ADD COLUMN more int DEFAULT 7")
        db.execute("INSERT INTO a (id) VALUES (9)")
        found = read(reader, 7)
        assert [(one.op, one.table, one.key) for one in found] == [
            ("insert", "a", (3,)), ("update", "a", (2,)), ("delete", "a", (1,)), ("insert", "a", (5,)),
            ("delete", "b", ("b", 1)), ("truncate", "b", None), ("insert", "a", (9,)),
        ]  # fmt: skip
        assert found[1].row.v == "deux" and found[2].row is None and found[3].row.v == "one"
        assert found[6].row.more == 7 and all(one.time > before for one in found)
        assert [one.lsn for one in found] == sorted(one.lsn for one in found)
        assert found[2].lsn == found[4].lsn
        assert nothing_more(reader)


def test_old_rows_come_where_the_identity_is_full_and_large_values_are_not_sent_again(
    db: Any, dsn: str, slot: str
) -> None:
    db.execute(
        "CREATE TABLE f (id int PRIMARY KEY, v int, big text); CREATE TABLE d (id int PRIMARY KEY, v int, big text)"
    )
    db.execute("ALTER TABLE f REPLICA IDENTITY FULL; ALTER TABLE f ALTER big SET STORAGE EXTERNAL")
    db.execute("ALTER TABLE d ALTER big SET STORAGE EXTERNAL")
    source = tr.sources.PostgresChanges(dsn, ["f", "d"], slot, snapshot=False)
    source.check()
    large = "x" * 20_000
    with reading(source) as reader:
        assert begun(reader)
        for table in ("f", "d"):
            db.execute(f"INSERT INTO {table} VALUES (1, 1, %s)", [large])
            db.execute(f"UPDATE {table} SET v = 2")
            db.execute(f"DELETE FROM {table}")
        _, full, gone, _, default, deleted = read(reader, 6)
        assert full.old.asDict() == {"id": 1, "v": 1, "big": large} and full.row.asDict() == {
            "id": 1,
            "v": 2,
            "big": large,
        }
        assert gone.old.v == 2 and gone.key == (1,)
        assert default.old is None and default.row.asDict() == {"id": 1, "v": 2} and default.unchanged == ("big",)
        assert deleted.old is None and deleted.key == (1,)


def replayed(changes: list[Any]) -> dict[Any, Any]:
    """The rows that changes leave. Fails for a change that does not follow from those before."""
    rows: dict[Any, Any] = {}
    for one in changes:
        if one.op == "insert":
            assert one.key not in rows, one
        else:
            assert one.key in rows, one
        if one.op == "delete":
            del rows[one.key]
        else:
            rows[one.key] = tuple(one.row)
    return rows


def test_changes_come_once_over_restarts_also_in_the_middle_of_the_snapshot(
    db: Any, dsn: str, slot: str, postgres: Server
) -> None:
    db.execute("CREATE TABLE t (k text, n int, v int, PRIMARY KEY (k, n))")
    keys = [(k, n) for k in ("a", "B", "ä", "Zz", "zz", "_") for n in range(40)]
    chance = random.Random(11)
    rows = {key: 0 for key in keys if chance.random() < 0.6}
    with db.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, 0)", list(rows))
    source = tr.sources.PostgresChanges(dsn, ["t"], slot)
    source.check()

    def change() -> None:
        with psycopg.connect(dsn) as connection:
            for _ in range(chance.randrange(1, 12)):
                key, value = chance.choice(keys), chance.randrange(1000)
                other = chance.choice(keys)
                if key not in rows:
                    connection.execute("INSERT INTO t VALUES (%s, %s, %s)", [*key, value])
                    rows[key] = value
                elif chance.random() < 0.4:
                    connection.execute("DELETE FROM t WHERE k = %s AND n = %s", key)
                    del rows[key]
                elif chance.random() < 0.5 and other not in rows:
                    connection.execute("UPDATE t SET k = %s, n = %s WHERE k = %s AND n = %s", [*other, *key])
                    rows[other] = rows.pop(key)
                else:
                    connection.execute("UPDATE t SET v = %s WHERE k = %s AND n = %s", [value, *key])
                    rows[key] = value

    found, position = list[Any](), None
    for life in range(9):
        with reading(source, position) as reader:
            for _ in range(chance.randrange(1, 5)):
                change()
                found += some(reader, chance.randrange(1, 25 if life < 3 else 60), chance.randrange(1, 9))
            position = reader.position
            if life in (4, 7):
                reader.completed(position)
        if life == 6 and postgres.ours:
            postgres.restart()
    with reading(source, position) as reader:
        until = time.monotonic() + 60
        expected = {key: (*key, value) for key, value in rows.items()}
        while (now := replayed(found)) != expected:
            found += reader.read(100, 0.0)
            assert time.monotonic() < until, {
                key for key in expected.keys() | now.keys() if expected.get(key) != now.get(key)
            }
        assert nothing_more(reader)


def test_a_restart_in_the_middle_of_a_transaction_goes_on_there(db: Any, dsn: str, slot: str) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = tr.sources.PostgresChanges(dsn, ["t"], slot)
    source.check()
    with reading(source) as reader:
        assert begun(reader)
        db.execute("INSERT INTO t SELECT generate_series(1, 5); INSERT INTO t SELECT generate_series(6, 9)")
        found = read(reader, 2)
        position = reader.position
    for _ in range(3):
        with reading(source, position) as reader:
            found += read(reader, 2, limit=1)
            position = reader.position
    with reading(source, position) as reader:
        found += read(reader, 1)
        assert nothing_more(reader)
    assert [one.key for one in found] == [(n,) for n in range(1, 10)]


def test_what_is_complete_is_confirmed_and_an_older_savepoint_is_refused(db: Any, dsn: str, slot: str) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = tr.sources.PostgresChanges(dsn, ["t"], slot)
    source.check()
    confirmed = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    with reading(source) as reader:
        db.execute("INSERT INTO t VALUES (1)")
        read(reader, 1)
        older = reader.position
        for number in (2, 3):  # two: a position within a transaction is confirmed up to the one before
            db.execute("INSERT INTO t VALUES (%s)", [number])
            read(reader, 1)
        newer = reader.position
        reader.completed(newer)
        reader.completed(older)
        until = time.monotonic() + 20
        while int(db.execute(confirmed, [slot]).fetchone()[0]) != newer.lsn:
            assert time.monotonic() < until
    with (
        reading(source, older) as reader,
        pytest.raises(tr.ConfigError, match=r"slot 'slot_\d+'.*by a later checkpoint"),
    ):
        read(reader, 1)
    with reading(source, newer) as reader:
        db.execute("INSERT INTO t VALUES (4)")
        assert [one.key for one in read(reader, 1)] == [(4,)]
    with (
        reading(source, newer._replace(lsn=newer.lsn + (1 << 40))) as reader,
        pytest.raises(tr.ConfigError, match="lost commits"),
    ):
        read(reader, 1)
    with reading(source, newer._replace(system="1")) as reader, pytest.raises(tr.ConfigError, match="another server"):
        read(reader, 1)
    db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    with reading(source, newer) as reader, pytest.raises(tr.ConfigError, match=r"it is gone.*reads a new snapshot"):
        read(reader, 1)


def test_what_the_server_does_not_have_is_one_error_before_the_job_runs(db: Any, dsn: str, slot: str) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE bare (id int); CREATE VIEW view AS SELECT 1 AS id")
    db.execute("CREATE TABLE silent (id int PRIMARY KEY); ALTER TABLE silent REPLICA IDENTITY NOTHING")
    db.execute("CREATE TABLE odd (id float8 PRIMARY KEY)")
    for tables, reason in (
        (["nosuch"], r"no table 'nosuch'"), (["bare"], "no primary key"), (["view"], "no plain table"),
        (["silent"], "REPLICA IDENTITY NOTHING"), (["odd"], "of type float8"),
    ):  # fmt: skip
        with pytest.raises(tr.ConfigError, match=rf"127.0.0.1.*{reason}"):
            tr.sources.PostgresChanges(dsn, tables, slot).check()
    tr.sources.PostgresChanges(dsn, ["t"], slot).check()
    db.execute("ALTER TABLE silent REPLICA IDENTITY DEFAULT")
    with pytest.raises(tr.ConfigError, match=r"lacks table 'silent': ALTER PUBLICATION"):
        tr.sources.PostgresChanges(dsn, ["t", "silent"], slot).check()
    with pytest.raises(tr.ConfigError, match="refused"):
        tr.sources.PostgresChanges("postgresql://x:secret@127.0.0.1:1/x", ["t"], slot).check()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tables": "t"}, "a list of names"),
        ({"tables": []}, "a list"),
        ({"tables": ["a", "a"]}, "twice"),
        ({"slot": "A-b"}, "a-z"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(tr.ConfigError, match=reason):
        tr.sources.PostgresChanges(**{"dsn": "postgresql://x", "tables": ["t"], "slot": "s", **options})


def test_a_change_wakes_the_task_and_what_is_left_is_its_lag(db: psycopg.Connection[Any], dsn: str, slot: str) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = tr.sources.PostgresChanges(dsn, ["t"], slot, snapshot=False)
    source.check()
    woken = threading.Event()
    reader = source.split_reader(None)
    reader.wake = woken.set
    reader.assign([tr.AssignedSplit(0, slot)])
    assert reader.lag(time.time()) == {}
    until = time.monotonic() + 60
    while reader.position(0) is None or reader.lag(time.time()) != {0: (None, 0.0)}:
        assert dict(reader.read(10, 0.0)) == {0: ()} and time.monotonic() < until
    woken.clear()
    assert reader.next_at(5.0) == 6.0, "it is woken"
    db.execute("INSERT INTO t SELECT generate_series(1, 3)")
    assert woken.wait(60)
    found: list[Any] = []
    while len(found) < 2:  # what had come before may have woken it, too
        found += dict(reader.read(2 - len(found), 0.0))[0]
        assert time.monotonic() < until
    assert [change.key for change in found] == [(1,), (2,)]
    (lag,) = reader.lag(time.time() + 100).values()
    assert lag.records is None and lag.seconds is not None and 99 < lag.seconds < 160
    reader.pause([0])
    assert list(reader.read(2, 0.0)) == []
    reader.pause([])
    assert [change.key for change in dict(reader.read(2, 0.0))[0]] == [(3,)]
    while reader.lag(time.time()) != {0: (None, 0.0)}:
        assert not any(found for _, found in reader.read(10, 0.0)) and time.monotonic() < until
    confirmed = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    position = reader.position(0)
    reader.completed({0: position})
    while db.execute(confirmed, [slot]).fetchone() != (position.lsn,):
        assert time.monotonic() < until
    reader.revoke([0])
    reader.close()


def test_a_slot_that_is_lost_is_an_error_that_says_what_to_do(db: psycopg.Connection[Any], dsn: str, slot: str) -> None:
    """The server has invalidated the slot (`max_slot_wal_keep_size`), or somebody has dropped it."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source = tr.sources.PostgresChanges(dsn, ["t"], slot)
    source.check()
    with reading(source) as reader:
        assert len(read(reader, 1)) == 1 and begun(reader)
        position = reader.position
    release(db, slot)
    lose(db, slot)
    with pytest.raises(
        tr.ConfigError, match=rf"slot '{slot}'.*invalidated.*max_slot_wal_keep_size.*Start the job anew"
    ):
        source.check()
    with reading(source, position) as reader, pytest.raises(tr.ConfigError, match="invalidated"):
        read(reader, 1)
    db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    with reading(source, position) as reader, pytest.raises(tr.ConfigError, match=f"slot '{slot}'.*it is gone.*anew"):
        read(reader, 1)
    db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    with reading(source, position) as reader, pytest.raises(tr.ConfigError, match="does not keep the changes between"):
        read(reader, 1)  # a slot of the same name that begins later


def lose(db: psycopg.Connection[Any], slot: str) -> None:
    """Has the server give up what it keeps for a slot."""
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    db.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    db.execute("SELECT pg_reload_conf()")
    try:
        until = time.monotonic() + 60
        while db.execute(status, [slot]).fetchone() != ("lost",):
            db.execute("CREATE TABLE more (n int); DROP TABLE more")
            db.execute("SELECT pg_switch_wal()")
            db.execute("CHECKPOINT")
            assert time.monotonic() < until
    finally:
        db.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        db.execute("SELECT pg_reload_conf()")


def release(db: psycopg.Connection[Any], slot: str) -> None:
    """Waits until nobody reads from the slot."""
    until = time.monotonic() + 60
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    while db.execute(active, [slot]).fetchone() == (True,):
        assert time.monotonic() < until
