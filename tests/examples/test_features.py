"""The features of `examples/features.py` are those of the query that counts anew, over failures, each change once."""

from __future__ import annotations

import contextlib
import random
import runpy
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import tailrace as tr
from tailrace.connectors.postgres.changes import PostgresChanges
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import simulate
from tests.servers import Server

pytestmark = pytest.mark.servers
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "features.py"
SLOT = "features_test"


def write(db: Any, chance: random.Random) -> None:
    """Changes orders at random, and takes all of one customer away."""
    for _ in range(150):
        number, customer = chance.randrange(60), f"c{chance.randrange(7)}"
        if chance.random() < 0.4:
            db.execute("DELETE FROM orders WHERE id = %s", [number])
        else:
            put = "INSERT INTO orders VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET customer = EXCLUDED.customer"
            db.execute(put, [number, customer, chance.randrange(1000) / 100])
    db.execute("DELETE FROM orders WHERE customer = 'c3'")


class Until(PostgresChanges):
    """The changes up to an end: those that are written when the reader has read the snapshot."""

    bounded = True

    def reader(self, split: str, position: Any = None) -> tr.Reader:
        made: Any = super().reader(split, position)
        read = made.read

        def until(limit: int, now: float) -> Any:
            found = read(limit, now)
            if found or made.position is None or made.position.reading:
                return found
            with psycopg.connect(self.server.dsn, autocommit=True) as db:
                if db.execute("SELECT to_regclass('ending')").fetchone() == (None,):
                    write(db, random.Random(4))
                    db.execute("CREATE TABLE ending AS SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS place")
                [end] = db.execute("SELECT place FROM ending").fetchone() or ()
            return None if made.position.lsn >= int(end) else found

        made.read = until
        return made


def test_features_follow_the_orders_over_failures(postgres: Server, valkey: Server) -> None:
    example = runpy.run_path(str(EXAMPLE))
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, total numeric(10, 2) NOT NULL)")
        db.execute("INSERT INTO orders SELECT g, 'c' || g % 7, g / 3.0 FROM generate_series(1, 40) g")
        source = Until(postgres.url, ["orders"], SLOT)
        source.check()
        env = tr.Environment(
            parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory", interval=0.02), restart=tr.FixedDelay(20, 0.01)
        )
        example["features"](env.from_source(source)).sink_to(example["sink"](valkey.url))
        job = simulate(env, seed=1, faults=[Fault(100 + 100 * i, "raise", which=i, other=i) for i in range(3)])
        assert job.exception() is None and any("RESTARTING" in line for line in job.trace)
        counted = db.execute("SELECT customer, count(*), sum(total) FROM orders GROUP BY customer ORDER BY customer")
        with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
            names = sorted(client.keys("customer:*"))
            found = [(name.removeprefix("customer:"), *client.hmget(name, "orders", "total")) for name in names]
        assert [(name, int(n), Decimal(total)) for name, n, total in found] == counted.fetchall()
        assert len(found) == 6
        with contextlib.suppress(psycopg.Error):
            db.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [SLOT])
            db.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        db.execute(f"DROP PUBLICATION {SLOT}; DROP TABLE orders, ending")
