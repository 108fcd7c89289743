"""A sink of PostgreSQL writes each record once, whatever is killed in between, and refuses what the table cannot hold."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
import random
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.transactional import PreparedTransaction
from tailrace.elements.columns.misfit import Misfit
from tailrace.testing import check_sink
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import simulate
from tests.servers import Server

pytestmark = pytest.mark.servers


class Place(NamedTuple):
    """Where a writer works."""

    subtask: int = 0
    incarnation: int = 1
    attempt: int = 0
    run_id: str = "run"
    uid: str = "out"
    job: str = "job"
    parallelism: int = 2


def written(sink: Any, *batches: Any, place: Place = Place()) -> list[bytes]:
    """What a writer prepares of batches, in one transaction."""
    writer = sink.writer(place)
    for batch in batches:
        writer.write(batch)
    prepared = writer.prepare()
    return [] if prepared is None else [prepared]


def put(sink: Any, *batches: Any, place: Place = Place()) -> None:
    sink.publish(written(sink, *batches, place=place))


EVERYTHING = """
CREATE TABLE everything (id int PRIMARY KEY, b bool, i2 smallint, i8 bigint, f4 real, f8 double precision, n numeric,
    n2 numeric(10, 2), s text, v varchar(5), c char(3), d date, ts timestamp, tz timestamptz, tm time, j json, jb jsonb,
    u uuid, by bytea, a int[], aa text[][], ad date[], e mood, made int GENERATED ALWAYS AS (id * 2) STORED)
"""
UTC = dt.UTC
FULL: dict[str, Any] = {
    "id": 1, "b": True, "i2": -3, "i8": 2**62, "f4": 0.5, "f8": 1 / 3, "n": Decimal("123456789012345678901234567890.01"),
    "n2": Decimal("1.50"), "s": 'a"b,\n\\.\n\tü€', "v": "ab", "c": "abc", "d": dt.date(2024, 2, 29),
    "ts": dt.datetime(2024, 1, 1, 3, 4, 5, 7), "tz": dt.datetime(2024, 1, 1, 3, 4, 5, 7, tzinfo=UTC), "tm": dt.time(1, 2, 3),
    "j": {"a": [1, None, "x"]}, "jb": "text", "u": uuid.UUID(int=5), "by": b"\x00\xff", "a": [1, None, 3],
    "aa": [["a", 'b"\\'], ["", "NULL"]], "ad": [dt.date(1, 1, 1)], "e": "sad",
}  # fmt: skip


def test_values_of_all_types_come_out_as_they_went_in(db: Any, dsn: str) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    db.execute(EVERYTHING)
    empty = dict.fromkeys(FULL) | {"id": 2, "s": ""}
    put(tr.sinks.Postgres(dsn, "everything"), [FULL, empty])
    names = ", ".join(FULL)
    db.execute("SET timezone = 'UTC'")
    found = db.execute(f"SELECT {names} FROM everything ORDER BY id").fetchall()
    assert [dict(zip(FULL, row, strict=True)) for row in found] == [FULL, empty]


WRONG = [
    ({"i2": 40000}, "40000 does not fit"), ({"id": "1"}, "does not fit"), ({"b": 1}, "does not fit"),
    ({"s": 1}, "does not fit"),
    ({"n2": Decimal("1.005")}, "2 digits"), ({"n": 0.1}, "a Decimal"), ({"v": "abcdef"}, "longer"), ({"s": "a\0"}, "zero"),
    ({"tz": dt.datetime(2024, 1, 1)}, "does not fit"), ({"ts": dt.datetime(2024, 1, 1, tzinfo=UTC)}, "does not fit"),
    ({"u": "x"}, "column 'u' is uuid"), ({"j": {1, 2}}, "column 'j' is json"), ({"by": "a"}, "column 'by' is bytea"),
    ({"a": 5}, "a list"), ({"a": ["x"]}, "does not fit"), ({"id": None}, "NOT NULL"), ({"jb": "\0"}, "zero"),
    ({"nosuch": 1}, "does not have"), ({"made": 1}, "makes the values itself"),
]  # fmt: skip


def test_a_value_that_a_column_cannot_hold_is_refused_with_its_record(db: Any, dsn: str) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    db.execute(EVERYTHING)
    sink = tr.sinks.Postgres(dsn, "everything")
    for change, reason in WRONG:
        wrong, writer = {**FULL, **change}, sink.writer(Place())
        with pytest.raises(Misfit, match=reason):
            writer.write([FULL, wrong, FULL])
        assert writer.record is wrong, change
    batch = pa.record_batch({"id": [1, 2], "i2": [3, 40000]})
    with pytest.raises(Misfit, match="40000"):
        (writer := sink.writer(Place())).write(batch)
    assert writer.record == {"id": 2, "i2": 40000}


@dataclasses.dataclass
class Item:
    id: int
    name: str | None


class Pair(NamedTuple):
    name: str | None
    id: int


def test_records_of_all_forms_go_into_columns_by_name(db: Any, dsn: str) -> None:
    db.execute(
        "CREATE TABLE items (id bigint NOT NULL, name text DEFAULT 'none', seen timestamptz NOT NULL DEFAULT now())"
    )
    sink = tr.sinks.Postgres(dsn, "items")
    put(
        sink,
        [Item(1, "a"), Pair("b", 2), {"id": 3}, {"name": None, "id": 4}],
        pa.record_batch({"name": ["e"], "id": [5]}),
    )
    put(
        tr.sinks.Postgres(dsn, "items", columns=["id", "name"]),
        [(6, "f"), {"id": 7, "name": "g", "more": 1}],
        place=Place(1),
    )
    found = db.execute("SELECT id, name FROM items ORDER BY id").fetchall()
    assert found == [(1, "a"), (2, "b"), (3, "none"), (4, None), (5, "e"), (6, "f"), (7, "g")]
    with pytest.raises(TypeError, match="names of columns"):
        put(sink, [(8, "h")])


def test_the_last_record_of_a_key_wins_and_tombstones_delete(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE kv (k text, part int, v int NOT NULL, at int DEFAULT 7, PRIMARY KEY (part, k))")
    sink = tr.sinks.Postgres(dsn, "kv", mode="upsert", keys=["k", "part"], delete=lambda one: one.get("v") is None)
    put(sink, [{"k": "a", "part": 1, "v": 1}, {"k": "b", "part": 1, "v": 2}, {"k": "c", "part": 1, "v": 3}])
    put(
        sink,
        [{"k": "a", "part": 1, "v": 4}, {"k": "b", "part": 1, "v": None}, {"k": "a", "part": 1, "v": 5}],
        [
            {"k": "c", "part": 1},
            {"k": "d", "part": 2},
            {"k": "d", "part": 2, "v": 9, "at": 1},
            {"k": "nosuch", "part": 0},
        ],
        place=Place(incarnation=2),
    )
    assert db.execute("SELECT k, v, at FROM kv ORDER BY k").fetchall() == [("a", 5, 7), ("d", 9, 1)]
    columns = tr.sinks.Postgres(dsn, "kv", mode="upsert", keys=["part", "k"], delete="gone")
    batch = pa.record_batch({"k": ["a", "d", "d"], "part": [1, 2, 2], "v": [None, 1, 2], "gone": [True, True, False]})
    put(columns, batch, place=Place(uid="columns"))
    assert db.execute("SELECT k, v FROM kv").fetchall() == [("d", 2)]


def test_random_changes_leave_the_table_as_a_dictionary(db: Any, dsn: str) -> None:
    chance = random.Random(7)
    db.execute("CREATE TABLE kv (k int PRIMARY KEY, v int)")
    sink = tr.sinks.Postgres(dsn, "kv", mode="upsert", keys=["k"], delete=lambda one: "v" not in one)
    model: dict[int, int] = {}
    prepared: list[bytes] = []
    published = 0
    writer = sink.writer(Place())
    for _ in range(30):
        for _ in range(chance.randrange(4)):
            batch = []
            for _ in range(chance.randrange(1, 20)):
                key = chance.randrange(12)
                if chance.random() < 0.3:
                    batch.append({"k": key})
                    model.pop(key, None)
                else:
                    batch.append({"k": key, "v": chance.randrange(1000)})
                    model[key] = batch[-1]["v"]
            writer.write(batch)
        one = writer.prepare()
        prepared += [] if one is None else [one]
        if chance.random() < 0.5:
            sink.publish(prepared[chance.randrange(published + 1) :])  # some of them once more
            published = len(prepared)
            assert dict(db.execute("SELECT k, v FROM kv").fetchall()) == model


def test_a_zombie_that_publishes_at_the_same_time_writes_nothing_more(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE items (id int)")
    one, other = tr.sinks.Postgres(dsn, "items"), tr.sinks.Postgres(dsn, "items")
    one.check()
    prepared = written(one, [{"id": 1}])
    [transaction] = map(PreparedTransaction.decode, prepared)
    zombie = other.transaction(transaction.scope)
    assert zombie.last() is None
    one.publish(prepared)
    zombie.commit(transaction.counter, transaction.pieces)
    zombie.close()
    assert db.execute("SELECT count(*) FROM items").fetchone() == (1,)


def test_a_row_that_the_table_refuses_is_one_error_with_its_reason(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY CHECK (id > 0))")
    sink = tr.sinks.Postgres(dsn, "items")
    with pytest.raises(tr.ConfigError, match=r"(?s)127.0.0.1.*table 'items'.*items_id_check"):
        put(sink, [{"id": 1}, {"id": -1}])
    put(sink, [{"id": 1}], place=Place(incarnation=2))
    with pytest.raises(tr.ConfigError, match=r"Key \(id\)=\(1\) already exists"):
        put(sink, [{"id": 1}], place=Place(incarnation=3))
    assert db.execute("SELECT id FROM items").fetchall() == [(1,)]


def test_a_job_whose_workers_and_driver_die_writes_each_record_once(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY, times int NOT NULL)")
    modes: list[Any] = ["append", "upsert"]
    for seed, mode in enumerate(modes):
        db.execute("TRUNCATE items")
        env = tr.Environment(
            parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory", interval=0.02), restart=tr.FixedDelay(20, 0.01)
        )
        numbers = env.from_source(tr.sources.Sequence(0, 200, rate=1000))
        rows = numbers.map(lambda n: {"id": n, "times": n // 100}).key_by("id")
        rows.sink_to(tr.sinks.Postgres(dsn, "items", mode=mode, keys=["id"] if mode == "upsert" else None))
        faults = [Fault(150 + 170 * i, ("kill", "crash-driver")[(i + seed) % 2], which=seed + i) for i in range(3)]
        job = simulate(env, seed=seed, faults=faults)
        assert job.exception() is None
        assert db.execute("SELECT id, times FROM items ORDER BY id").fetchall() == [(n, n // 100) for n in range(200)]


def test_sinks_hold_the_battery_with_publishers_and_servers_killed(db: Any, dsn: str, postgres: Server) -> None:
    tables = itertools.count()

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        number = next(tables)
        with psycopg.connect(dsn) as connection:
            connection.execute(f"CREATE TABLE battery_{number} (n int PRIMARY KEY)")
        upsert: dict[str, Any] = {"mode": "upsert", "keys": ["n"]} if number % 2 else {}

        def visible() -> list[int]:
            with psycopg.connect(dsn) as connection:
                return [n for (n,) in connection.execute(f"SELECT n FROM battery_{number}")]

        return tr.sinks.Postgres(dsn, f"battery_{number}", **upsert), visible

    rounds = int(os.environ.get("TAILRACE_TEST_ROUNDS", "2"))
    report = check_sink(make, record=lambda n: {"n": n}, server=postgres if postgres.ours else None, rounds=rounds)
    assert report.rounds == rounds


REFUSED = [
    ({"table": "nosuch"}, r"table 'nosuch' \(table=\): there is none"),
    ({"table": "view"}, "it is no table"),
    ({"columns": ["id", "nosuch"]}, r"no column 'nosuch' \(columns=\)"),
    ({"columns": ["id"]}, "'name' is NOT NULL"),
    ({"columns": ["id", "name", "made"]}, "itself"),
    ({"mode": "upsert", "keys": ["nosuch"]}, r"no column 'nosuch' \(keys=\)"),
    ({"mode": "upsert", "keys": ["name"]}, "unique index.*CREATE UNIQUE INDEX"),
    ({"marks": "nosuch.marks"}, r"'nosuch.marks' of marks \(marks=\)"),
    (
        {"dsn": "postgresql://postgres:secret@127.0.0.1:1/x"},
        r"postgres@127.0.0.1:1/x: table 'items' \(table=\).*refused",
    ),
    ({"dsn": "host=127.0.0.1 port=1 password=secret"}, "127.0.0.1:1"),
    ({"dsn": "nonsense secret"}, "cannot be read"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_the_server_does_not_have_is_one_error_before_the_job_runs(
    db: Any, dsn: str, options: dict[str, Any], reason: str
) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, made int GENERATED ALWAYS AS IDENTITY)")
    db.execute("CREATE UNIQUE INDEX ON items (name) WHERE id > 5; CREATE VIEW view AS SELECT * FROM items")
    env = tr.Environment(parallelism=1)
    env.from_collection([{"id": 1}]).sink_to(tr.sinks.Postgres(**{"dsn": dsn, "table": "items", **options}))
    with pytest.raises(tr.ConfigError, match=f"(?s){reason}") as caught:
        tr.testing.run(env)
    assert "secret" not in str(caught.value)


def test_rights_that_the_user_lacks_are_named(db: Any, dsn: str, postgres: Server) -> None:
    db.execute("CREATE TABLE items (id int PRIMARY KEY)")
    db.execute("CREATE ROLE weak LOGIN")
    [schema] = db.execute("SELECT current_schema()").fetchone()
    db.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO weak")
    weak = dsn.replace("postgres@", "weak@")
    for right, options in (
        ("INSERT", {}), ("UPDATE", {"mode": "upsert", "keys": ["id"]}), ("SELECT", {"mode": "upsert", "keys": ["id"]}),
        ("DELETE", {"mode": "upsert", "keys": ["id"], "delete": "gone"}),
    ):  # fmt: skip
        with pytest.raises(tr.ConfigError, match=f"lacks the right {right}"):
            tr.sinks.Postgres(weak, "items", **options).check()  # type: ignore[arg-type]
        db.execute(f"GRANT {right} ON items TO weak")
    tr.sinks.Postgres(weak, "items", mode="upsert", keys=["id"], delete="gone").check()
    db.execute("DROP OWNED BY weak; DROP ROLE weak")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "merge"}, "mode must be"), ({"mode": "upsert"}, "needs keys"), ({"keys": ["id"]}, "needs keys"),
        ({"keys": "id", "mode": "upsert"}, "a list of names"), ({"delete": "x"}, "for mode='upsert'"),
        ({"columns": ["a"], "mode": "upsert", "keys": ["id"]}, "key 'id' is not in columns"),
        ({"marks": ""}, "marks is the name"),
        ({"table": None}, "table is the name"), ({"dsn": 5}, "takes a DSN"), ({"lost_output": "x"}, "lost_output must"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(tr.ConfigError, match=reason):
        tr.sinks.Postgres(**{"dsn": "postgresql://x", "table": "t", **options})


def test_no_repr_has_the_password() -> None:
    sink = tr.sinks.Postgres("postgresql://me:secret@host:5/db?sslpassword=secret", "t")
    assert repr(sink) == "Postgres('postgresql://me@host:5/db', 't', mode='append')"
    assert "secret" not in (sink.place or "")


# Errors that no other try would help.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DROP TABLE IF EXISTS t", 'relation "t" does not exist'),
        ("ALTER TABLE t ADD CHECK (n > 1)", "violates check constraint"),
        ("ALTER TABLE t ALTER n TYPE smallint", "out of range for type smallint"),
    ],
)
def test_a_table_that_has_changed_fails_the_job_at_once(db: Any, dsn: str, change: str, reason: str) -> None:
    db.execute("CREATE TABLE t (n int)")
    value = 100_000 if "smallint" in change else 1

    def alter(record: dict[str, int]) -> dict[str, int]:
        db.execute(change)
        return record

    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    sink = tr.sinks.Postgres(f"{dsn}&password=secret-word", "t")
    env.from_collection([{"n": value}]).map(alter).sink_to(sink, name="ledger")
    with pytest.raises(tr.JobFailed) as failed:
        tr.testing.run(env)
    text = str(failed.value)
    assert failed.value.operator == "ledger" and reason in text and "secret-word" not in text
    assert f"ConfigError: sinks.Postgres: {sink.server.name}: table 't'" in text


def test_a_refused_right_and_a_refused_login_are_errors_that_come_again(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (n int)")
    role = f"r{uuid.uuid4().hex[:12]}"
    prepared = written(tr.sinks.Postgres(dsn, "t"), [{"n": 1}])
    own = tr.sinks.Postgres(f"{dsn}&user={role}&password=secret-word", "t")
    with pytest.raises(tr.errors.ConfigError, match=f'role "{role}" does not exist') as refused:
        own.publish(prepared)
    assert "secret-word" not in str(refused.value)
    [schema] = db.execute("SELECT current_schema()").fetchone()
    tr.sinks.Postgres(dsn, "t").check()  # makes the table of marks
    db.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        with pytest.raises(tr.errors.ConfigError, match="permission denied for table tailrace_marks"):
            own.publish(prepared)
        db.execute(f"GRANT ALL ON tailrace_marks TO {role}")
        with pytest.raises(tr.errors.ConfigError, match=r"permission denied for table t$"):
            own.publish(prepared)
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_errors_that_may_pass_are_raised_as_they_are(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (n int)")
    sink = tr.sinks.Postgres(dsn, "t")
    prepared = written(sink, [{"n": 1}])
    standby = tr.sinks.Postgres(f"{dsn}%20-cdefault_transaction_read_only%3Don", "t")
    sink.check()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        standby.publish(prepared)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        tr.sinks.Postgres("postgresql://me:secret-word@127.0.0.1:1/db", "t").publish(prepared)
