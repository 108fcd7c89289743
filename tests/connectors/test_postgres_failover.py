"""A standby becomes the primary: what it has goes on, each record once, and what it lacks is an error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

import tailrace as tr
from tailrace.errors import OutputLost
from tests.connectors.test_postgres_changes import begun, read, reading
from tests.connectors.test_postgres_sink import Place
from tests.connectors.test_postgres_source import splits_of
from tests.servers import postgres_pair

pytestmark = pytest.mark.servers

TABLES = """
CREATE TABLE stock (id int PRIMARY KEY, v text); CREATE TABLE orders (id bigserial PRIMARY KEY, v text);
CREATE TABLE copy (k int PRIMARY KEY, v text)
"""
FAILOVER_SLOT = "SELECT pg_create_logical_replication_slot('kept', 'pgoutput', false, false, true)"


class Failover(NamedTuple):
    """What has been read and written of a primary that is gone: up to where its standby was, and behind that."""

    dsn: str
    """A DSN of the server that accepts writes."""
    db: Any
    """A connection to the new primary. Its log has gone on beyond the place of all that is lost."""
    changes: tuple[Any, Any]
    """Positions of a source of changes: one that the standby has, and one that it lacks."""
    rows: tuple[Any, Any]
    """Positions of a source that follows `orders`."""
    outputs: tuple[Any, Any]
    """Writers of a sink: the last transaction of one is on the standby, and that of the other one is lost."""


def changes_of(dsn: str, slot: str) -> Any:
    return tr.sources.PostgresChanges(dsn, ["stock"], slot)


def orders_of(dsn: str) -> Any:
    return tr.sources.Postgres(dsn, table="orders", follow="id", every=0.01)


def copy_of(dsn: str) -> Any:
    return tr.sinks.Postgres(dsn, "copy", mode="upsert", keys=["k"])


@pytest.fixture(scope="module")
def failover() -> Iterator[Failover]:
    with postgres_pair() as (primary, standby), contextlib.ExitStack() as stack:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        dsn = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        db = stack.enter_context(psycopg.connect(primary.url, autocommit=True))
        other = stack.enter_context(psycopg.connect(standby.url, autocommit=True))
        if db.info.server_version < 170_000:
            pytest.skip("slots that survive a failover: PostgreSQL 17")
        db.execute(TABLES)
        db.execute(FAILOVER_SLOT)
        source, orders, sink = changes_of(dsn, "kept"), orders_of(dsn), copy_of(dsn)
        source.check()
        sink.check()
        with reading(changes_of(dsn, "plain")) as reader:
            assert begun(reader)
        writers = [sink.writer(Place(uid=uid)) for uid in ("a", "b")]
        (split,) = splits_of(orders)

        def publish(writer: Any, key: int, value: str) -> None:
            writer.write([{"k": key, "v": value}])
            sink.publish([writer.prepare()])

        with reading(source) as reader, contextlib.closing(orders.reader(split)) as follower:
            assert begun(reader)
            db.execute("INSERT INTO stock VALUES (1, 'one'); INSERT INTO orders (v) VALUES ('one'), ('two')")
            assert [one.key for one in read(reader, 1)] == [(1,)]
            assert [one.v for one in read(follower, 2)] == ["one", "two"]
            publish(writers[0], 1, "a")
            publish(writers[1], 2, "b")

            def is_on_the_standby() -> bool:
                db.execute("SELECT pg_log_standby_snapshot()")
                assert not reader.read(1, 0.0)
                reader.completed(reader.position)
                other.execute("SELECT pg_sync_replication_slots()")
                synced = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'kept' AND synced AND NOT temporary"
                return other.execute(synced).fetchone() is not None

            until(is_on_the_standby)
            kept = reader.position, follower.position
            catch_up(db, other)
            other.execute("ALTER SYSTEM SET primary_conninfo = ''")  # from here on the standby gets nothing
            other.execute("SELECT pg_reload_conf()")
            until(lambda: other.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is None)
            db.execute("INSERT INTO stock VALUES (2, 'lost'); INSERT INTO orders (v) VALUES ('lost')")
            assert [one.key for one in read(reader, 1)] == [(2,)]
            assert [one.v for one in read(follower, 1)] == ["lost"]
            lost = reader.position, follower.position
            publish(writers[1], 3, "lost")
        primary.kill()
        other.execute("SELECT pg_promote()")
        other.execute("SELECT pg_switch_wal()")
        other.execute("INSERT INTO stock VALUES (2, 'new'); INSERT INTO orders (v) VALUES ('new')")
        yield Failover(dsn, other, *zip(kept, lost, strict=True), tuple(writers))  # type: ignore[arg-type]


def until(true: Any) -> None:
    """Waits for something."""
    limit = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit


def catch_up(db: Any, standby: Any) -> None:
    """Waits until the standby has all of the log that the primary has."""
    (end,) = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    until(lambda: standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end]).fetchone() == (True,))


def test_changes_go_on_at_a_slot_that_survives_a_failover(failover: Failover) -> None:
    with reading(changes_of(failover.dsn, "kept"), failover.changes[0]) as reader:
        (change,) = read(reader, 1)
        assert change.row.asDict() == {"id": 2, "v": "new"}
        position = reader.position
    failover.db.execute("INSERT INTO stock VALUES (3, 'next')")
    with reading(changes_of(failover.dsn, "kept"), position) as reader:
        assert [one.key for one in read(reader, 1)] == [(3,)]


def test_changes_that_the_new_primary_lacks_are_an_error_although_its_log_is_longer(failover: Failover) -> None:
    with (
        reading(changes_of(failover.dsn, "kept"), failover.changes[1]) as reader,
        pytest.raises(tr.ConfigError, match=r"127\.0\.0\.1.*slot 'kept'.*it has lost commits \(a failover"),
    ):
        read(reader, 1)


def test_a_slot_that_the_new_primary_lacks_is_an_error(failover: Failover) -> None:
    with (
        reading(changes_of(failover.dsn, "plain"), failover.changes[0]) as reader,
        pytest.raises(tr.ConfigError, match=r"slot 'plain'.*it is gone.*anew"),
    ):
        read(reader, 1)


def test_a_followed_table_goes_on_where_the_new_primary_has_all_that_was_read(failover: Failover) -> None:
    kept, lost = failover.rows
    source = orders_of(failover.dsn)
    with contextlib.closing(source.reader(None, kept)) as reader:
        assert [one.v for one in read(reader, 1)] == ["new"]
    with (
        contextlib.closing(source.reader(None, lost)) as reader,
        pytest.raises(tr.ConfigError, match=r"table 'orders' \(table=\): the server has.*lost commits"),
    ):
        read(reader, 1)
    failover.db.execute("CREATE ROLE clerk LOGIN; GRANT SELECT ON orders TO clerk")
    source = orders_of(failover.dsn.replace("postgres@", "clerk@"))
    with (
        contextlib.closing(source.reader(None, kept)) as reader,
        pytest.raises(tr.ConfigError, match=r"for a user with REPLICATION to know.*ALTER ROLE"),
    ):
        read(reader, 1)


def test_output_goes_on_where_the_new_primary_has_its_mark(failover: Failover) -> None:
    sink, (kept, lost) = copy_of(failover.dsn), failover.outputs
    kept.write([{"k": 1, "v": "next"}])
    prepared = kept.prepare()
    sink.publish([prepared])
    failover.db.execute("UPDATE copy SET v = 'by hand' WHERE k = 1")
    sink.publish([prepared])
    assert failover.db.execute("SELECT * FROM copy ORDER BY k").fetchall() == [(1, "by hand"), (2, "b")]
    lost.write([{"k": 4, "v": "next"}])
    with pytest.raises(OutputLost, match="has lost output that it had committed"):
        sink.publish([lost.prepare()])
    assert failover.db.execute("SELECT count(*) FROM copy").fetchone() == (2,)
