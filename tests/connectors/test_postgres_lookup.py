"""A lookup in PostgreSQL answers with the row of each key, by as few queries as may be."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

import tailrace as tr
from tests.servers import Server

pytestmark = pytest.mark.servers


def answers(lookup: Any, *keys: Any) -> list[Any]:
    """What calls that run at the same time return, errors among them."""

    async def run() -> list[Any]:
        await lookup.open(None)
        try:
            return await asyncio.gather(*map(lookup.call, keys), return_exceptions=True)
        finally:
            await lookup.close()

    return asyncio.run(run())


def test_each_key_has_its_row(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE customers (id int PRIMARY KEY, name text, rate numeric, area text, place int)")
    db.execute("INSERT INTO customers VALUES (1, 'ann', 1.5, 'n', 1), (2, 'bob', NULL, 'n', 2)")
    db.execute("INSERT INTO customers VALUES (3, 'cy', 0, 's', 1), (4, 'di', 0, 's', 1)")
    found = answers(tr.lookups.Postgres(dsn, "customers", key="id", columns=["name", "rate"]), 2, 7, 1, 1, None)
    assert found == [("bob", None), None, ("ann", Decimal("1.5")), ("ann", Decimal("1.5")), None]
    assert found[0].name == "bob"
    *found, twice = answers(tr.lookups.Postgres(dsn, "customers", key=["area", "place"]), ("n", 2), ("n", 3), ("s", 1))
    assert found[0].name == "bob" and found[1] is None
    assert isinstance(twice, ValueError) and "several rows of customers have the key ('s', 1)" in str(twice)


def test_a_stream_is_joined_with_the_table(db: Any, dsn: str) -> None:
    db.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text); INSERT INTO customers VALUES (1, 'ann'), (2, 'bob')"
    )
    env = tr.Environment(parallelism=2)
    orders = env.from_collection([{"customer": n % 3} for n in range(30)])
    pairs = orders.lookup(tr.lookups.Postgres(dsn, "customers", key="id"), on="customer", cache=tr.Cache())
    out = pairs.map(lambda pair: (pair[0]["customer"], pair[1] and pair[1].name)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(out.result(), key=lambda one: one[0]) == [(0, None)] * 10 + [(1, "ann")] * 10 + [(2, "bob")] * 10


def test_a_lookup_outlives_its_server(db: Any, dsn: str, postgres: Server) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    lookup = tr.lookups.Postgres(dsn, "t", key="id")

    async def run() -> list[Any]:
        await lookup.open(None)  # type: ignore[arg-type]
        before = await lookup.call(1)
        postgres.restart()
        found = [before, await lookup.call(1)]
        await lookup.close()
        return found

    assert asyncio.run(run()) == [(1,), (1,)]


def test_what_is_not_there_is_an_error_of_the_worker(db: Any, dsn: str) -> None:
    db.execute("CREATE TABLE t (id int)")
    for table, key, reason in (("nosuch", "id", "there is none"), ("t", "x", "no column 'x'")):
        with pytest.raises(tr.ConfigError, match=reason):
            answers(tr.lookups.Postgres(dsn, table, key=key))
    with pytest.raises(tr.ConfigError, match="names of columns"):
        tr.lookups.Postgres(dsn, "t", key=[])
