"""A source of PostgreSQL gives each row once: in ranges, over restarts, and rows that are committed late."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
import random
import time
import uuid
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.postgres.source import At, Behind, Range
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import simulate
from tests.servers import Server

pytestmark = pytest.mark.servers


def splits_of(source: Any, parallelism: int = 2) -> list[Any]:
    """The splits of a source, as its enumerator finds them."""
    enumerator = source.enumerator(parallelism)
    found: list[Any] = []
    while (some := enumerator.discover(0.0)) is not None:
        found += some
    enumerator.close()
    return found


def read(reader: tr.Reader, limit: int = 1000, most: int | None = None) -> list[Any]:
    """What a reader gives, to its end or until there are so many."""
    found: list[Any] = []
    until = time.monotonic() + 60
    while most is None or len(found) < most:
        batch = reader.read(limit, 0.0)
        if batch is None:
            break
        found += batch
        assert time.monotonic() < until, found
    return found


def test_ranges_have_about_as_many_rows_each_whatever_the_values_are(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (id bigint PRIMARY KEY); INSERT INTO t SELECT g ^ 3 FROM generate_series(1, 1000) g")
    source = tr.sources.Postgres(dsn, table="t", split_by="id", splits=4)
    splits = splits_of(source)
    bounds = [None, *(n**3 for n in (250, 500, 750, 1000))]
    assert [(one.low, one.high) for one in splits] == list(itertools.pairwise(bounds))
    rows = [row for split in splits for row in read(source.reader(split))]
    assert [row.id for row in rows] == [n**3 for n in range(1, 1001)]
    db.execute("DELETE FROM t")
    assert splits_of(source) == []


def test_a_reader_goes_on_in_the_middle_of_equal_values(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (k int, v text)")
    db.execute(
        "INSERT INTO t SELECT g / 7, CASE WHEN g % 3 = 0 THEN 'a' ELSE 'b' || g END FROM generate_series(1, 60) g"
    )
    source = tr.sources.Postgres(dsn, "SELECT k, v, 'x%' AS p FROM t WHERE v LIKE '%' ;", split_by="k")
    split = Range(None, 99)
    whole = read(source.reader(split))
    assert len(whole) == 60
    chance = random.Random(1)
    for _ in range(4):
        found, position = [], None
        while len(found) < 60:
            reader = source.reader(split, position)
            found += read(reader, chance.randrange(1, 9), chance.randrange(1, 30))
            position = pickle.loads(pickle.dumps(reader.position))
            reader.close()
        assert found == whole


def test_rows_that_move_away_take_no_other_rows_with_them(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 1), (1, 2), (2, 3), (3, 4)")
    source = tr.sources.Postgres(dsn, table="t", split_by="k")
    db.execute("UPDATE t SET k = 9 WHERE k = 1")
    assert [row.v for row in read(source.reader(Range(None, 5), At(1, 2)))] == [3, 4]


VALUES: dict[str, Any] = {
    "i": 1, "n": Decimal("1.50"), "tz": dt.datetime(2024, 1, 1, 3, 4, 5, 7, tzinfo=dt.UTC), "ts": dt.datetime(2024, 1, 1),
    "d": dt.date(2024, 2, 29), "j": {"a": [1, None]}, "a": [1, None, 2], "u": uuid.UUID(int=5), "b": b"\x00\xff", "s": "ü",
    "f": 0.1, "t": True, "m": "sad",
}  # fmt: skip


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_values_come_as_those_of_a_dataframe_do(db: Any, dsn: str, form: Any) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    db.execute(
        "CREATE TABLE t (i int, n numeric(10, 2), tz timestamptz, ts timestamp, d date, j jsonb, a int[], u uuid, b bytea, "
        "s text, f float8, t bool, m mood)"
    )
    put = f"INSERT INTO t VALUES ({', '.join(f'%({name})s' for name in VALUES)})"
    db.execute(put, VALUES | {"j": psycopg.types.json.Jsonb(VALUES["j"])})
    db.execute("INSERT INTO t (i) VALUES (2)")
    source = tr.sources.Postgres(dsn, table="t", split_by="i", form=form)
    env = tr.Environment(parallelism=2)
    out = env.from_source(source).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    first, second = sorted(out.result())
    expected = VALUES if form == "rows" else VALUES | {"j": '{"a": [1, null]}', "u": str(VALUES["u"])}
    assert first.asDict() == expected
    assert second.asDict() == dict.fromkeys(VALUES) | {"i": 2}
    if form == "columns":
        assert source.schema.field("tz").type == pa.timestamp("us", "UTC")
        assert source.schema.field("n").type == pa.decimal128(10, 2)


def test_a_job_that_is_killed_reads_each_row_once(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT g FROM generate_series(0, 999) g")
    for seed, standby in enumerate([None, tr.StandbyConfig()]):
        env = tr.Environment(
            parallelism=2,
            checkpoint=tr.CheckpointConfig(dir="memory", interval=0.02),
            restart=tr.FixedDelay(20, 0.01),
            standby=standby,
        )
        out = env.from_source(tr.sources.Postgres(dsn, table="t", split_by="id", splits=3)).sink_to(tr.sinks.Collect())
        faults = [Fault(60 + 120 * i, "kill", which=seed + i) for i in range(2)]
        job = simulate(env, seed=seed, faults=faults)
        assert job.exception() is None
        assert sorted(row.id for row in out.result()) == list(range(1000))


def test_a_row_that_is_committed_late_is_not_left_out(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (id bigserial PRIMARY KEY, v text)")
    source = tr.sources.Postgres(dsn, table="t", follow="id", every=0.02)
    assert [one.low for one in splits_of(source)] == [None]
    reader = source.reader(Behind(None))
    with psycopg.connect(dsn) as late, psycopg.connect(dsn, autocommit=True) as prepared:
        late.execute("INSERT INTO t (v) VALUES ('late')")  # takes the number 1
        prepared.execute("BEGIN")
        prepared.execute("INSERT INTO t (v) VALUES ('prepared')")
        db.execute("INSERT INTO t (v) VALUES ('soon'), ('sooner')")
        for _ in range(50):
            assert not reader.read(10, 0.0)
        prepared.execute("PREPARE TRANSACTION 'two'")
        late.commit()
        for _ in range(50):
            assert not reader.read(10, 0.0)
    db.execute("COMMIT PREPARED 'two'")
    assert [row.v for row in read(reader, most=4)] == ["late", "prepared", "soon", "sooner"]
    position = reader.position
    reader.close()
    db.execute("INSERT INTO t (v) VALUES ('next')")
    again = source.reader(Behind(None), position)
    assert [row.v for row in read(again, most=1)] == ["next"]
    again.close()


@pytest.mark.parametrize(
    "anew", ["TRUNCATE t RESTART IDENTITY", "DROP TABLE t; CREATE TABLE t (id bigserial PRIMARY KEY, v text)"]
)
def test_a_sequence_that_begins_again_fails_a_follower(db: Any, dsn: str, anew: str) -> None:
    """New rows of the table have numbers that were passed."""
    db.execute("CREATE TABLE t (id bigserial PRIMARY KEY, v text)")
    source = tr.sources.Postgres(dsn, table="t", follow="id", every=0.02)
    db.execute("INSERT INTO t (v) VALUES ('a'), ('b'), ('c')")
    reader = source.reader(Behind(None))
    assert [row.v for row in read(reader, most=3)] == ["a", "b", "c"]
    db.execute(anew)
    db.execute("INSERT INTO t (v) VALUES ('new')")
    with pytest.raises(
        tr.ConfigError, match=r"table 't'.* read up to id = 3, and sequence t_id_seq stands at 1: .*setval"
    ):
        read(reader, most=1)
    reader.close()


def test_writers_at_random_lose_no_row_to_a_follower(db: Any, dsn: str) -> None:
    db.execute(
        "CREATE TABLE t (id bigserial, at timestamptz DEFAULT clock_timestamp(), xid xid8 DEFAULT pg_current_xact_id())"
    )
    writers = [psycopg.connect(dsn) for _ in range(4)]
    for column in ("id", "at", "xid"):
        chance, rows = random.Random(5), 0
        db.execute("DELETE FROM t")
        source = tr.sources.Postgres(dsn, table="t", follow=column, every=0.01)
        reader, found = source.reader(Behind(None)), list[Any]()
        for _ in range(100):
            writer = chance.choice(writers)
            if chance.random() < 0.6:
                writer.execute("INSERT INTO t DEFAULT VALUES")
                rows += 1
            else:
                writer.commit()
            found += reader.read(5, 0.0)
            if chance.random() < 0.05:
                position = reader.position
                reader.close()
                reader = source.reader(Behind(None), position)
        for writer in writers:
            writer.commit()
        found += read(reader, most=rows - len(found))
        reader.close()
        assert sorted(row.id for row in found) == [one for (one,) in db.execute("SELECT id FROM t ORDER BY id")]
    for writer in writers:
        writer.close()


def test_a_reader_outlives_its_server(db: Any, dsn: str, postgres: Server) -> None:
    db.execute("CREATE TABLE t (id bigserial PRIMARY KEY); INSERT INTO t SELECT g FROM generate_series(1, 20000) g")
    source = tr.sources.Postgres(dsn, table="t", split_by="id")
    reader = source.reader(Range(None, 20000))
    found = read(reader, most=100)
    postgres.restart()
    found += read(reader)
    assert [row.id for row in found] == list(range(1, 20001))


REFUSED = [
    ({"table": "nosuch"}, r"table 'nosuch' \(table=\)"),
    ({"query": "SELECT 1 FROM"}, r"query \(query=\).*syntax"),
    ({"split_by": "nosuch"}, r"no column 'nosuch' \(split_by=\)"),
    ({"query": "SELECT id, '1 day'::interval AS i FROM t"}, "cast it in the query: i::text"),
    ({"query": "SELECT id, id FROM t"}, "one name"),
    ({"query": "SELECT id, 1.5 AS n FROM t", "form": "columns"}, r"n::numeric\(38, 9\)"),
    ({"follow": "day"}, "may come late"),
    ({"follow": "cached"}, "CACHE 20"),
    ({"dsn": "postgresql://postgres:secret@127.0.0.1:1/x"}, "refused"),
]


def test_what_the_server_does_not_have_is_one_error_before_the_job_runs(db: Any, dsn: str) -> None:
    db.execute("CREATE SEQUENCE s CACHE 20; CREATE TABLE t (id int, day date, cached int DEFAULT nextval('s'))")
    db.execute("ALTER SEQUENCE s OWNED BY t.cached")
    for options, reason in REFUSED:
        given: dict[str, Any] = {"dsn": dsn, "table": None if "query" in options else "t", "split_by": "id", **options}
        with pytest.raises(tr.ConfigError, match=f"(?s){reason}") as caught:
            tr.Environment(parallelism=1).from_source(source := tr.sources.Postgres(**given))
            source.check()
        assert "secret" not in str(caught.value)


def test_rows_without_a_value_to_split_by_are_refused(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (NULL)")
    with pytest.raises(tr.ConfigError, match=r"NULL in 1 rows.*\(split_by=\)"):
        splits_of(tr.sources.Postgres(dsn, table="t", split_by="id"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "one of them"), ({"query": "x", "table": "y"}, "one of them"), ({"table": "t"}, "needs split_by"),
        ({"table": "t", "split_by": "i", "splits": 0}, "splits is"), ({"table": "t", "follow": "i", "every": 0}, "positive"),
        ({"table": "t", "follow": "i", "form": "x"}, "form must"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(tr.ConfigError, match=reason):
        tr.sources.Postgres("postgresql://x", **options)
