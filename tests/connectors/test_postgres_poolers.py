"""PostgreSQL through a pooler: each transaction may have another session, with the server's own settings."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import tailrace as tr
from tailrace.connectors.postgres import server
from tailrace.errors import ConfigError

pytestmark = pytest.mark.servers


@pytest.fixture
def pooled(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The DSN of sessions with other settings, in which `SET` is forgotten at once."""
    monkeypatch.setattr(server, "_SET", "SELECT 1")
    return dsn + quote(" -cintervalstyle=iso_8601 -ctimezone=America/New_York -cdatestyle=German")


def test_values_have_one_meaning_in_any_session(db: psycopg.Connection[Any], pooled: str) -> None:
    db.execute("CREATE TABLE a (id int, at timestamptz, long interval)")
    db.execute("CREATE TABLE b (id int, at timestamptz)")
    db.execute("INSERT INTO a VALUES (1, '2024-07-01 12:00:00+00', '1 day 02:03:04')")
    query = "SELECT id, at, at::text AS shown, long::text AS long FROM a"
    env = tr.Environment(parallelism=1)
    read = env.from_source(tr.sources.Postgres(pooled, query, split_by="id"))
    rows = read.sink_to(tr.sinks.Collect())
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    read.map(lambda row: {"id": row.id, "at": noon}).sink_to(tr.sinks.Postgres(pooled, "b"))
    tr.testing.run(env)
    (row,) = rows.result()
    assert row.at == noon
    assert (row.shown, row.long) == ("2024-07-01 12:00:00+00", "1 day 02:03:04"), "the texts of our settings"
    assert db.execute("SELECT at FROM b").fetchall() == [(noon,)]


def test_a_pooler_without_transactions_is_refused_before_the_job_runs(
    dsn: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("CREATE TABLE b (id int)")

    def refuse(self: Any) -> Any:
        raise psycopg.errors.ProtocolViolation("transaction blocks not allowed in statement pooling mode")

    monkeypatch.setattr(psycopg.Connection, "transaction", refuse)
    for one in (tr.sinks.Postgres(dsn, "b"), tr.sources.Postgres(dsn, "SELECT * FROM b", split_by="id")):
        with pytest.raises(ConfigError, match="transaction blocks not allowed"):
            one.check()
