"""A transactional sink in whole jobs: whatever is lost, each record is written once, and no loss is suspected."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.connectors.transactional import Scope
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
N = 600
KINDS: list[Any] = [
    *("kill", "kill", "freeze", "cut-link", "raise", "checkpoint"),
    *("crash-driver", "freeze-driver", "lose-coordinator"),
]


class Rows:
    """Transactions of one scope in an SQLite file. Their answers are lost now and then: nobody knows what was committed."""

    def __init__(self, path: str, scope: str, chance: random.Random) -> None:
        self.scope, self.chance = scope, chance
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("pragma synchronous=off")
        self.db.execute("create table if not exists records (number integer)")
        self.db.execute("create table if not exists marks (scope text primary key, mark integer)")

    def last(self) -> int | None:
        found = self.db.execute("select mark from marks where scope = ?", [self.scope]).fetchone()
        return found and found[0]

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        if self.chance.random() < 0.1:
            raise TimeoutError("before")
        self.db.execute("begin immediate")
        self.db.executemany("insert into records values (?)", [[int(piece)] for piece in pieces])
        self.db.execute("insert or replace into marks values (?, ?)", [self.scope, counter])
        self.db.execute("commit")
        if self.chance.random() < 0.1:
            raise TimeoutError("behind")

    def close(self) -> None:
        self.db.close()


class Sqlite(tr.TransactionalSink):
    def __init__(self, path: str, seed: int) -> None:
        self.path, self.chance = path, random.Random(seed)

    def encode(self, batch: Any) -> Iterable[bytes]:
        return [str(record).encode() for record in batch]

    def transaction(self, scope: Scope) -> Rows:
        return Rows(self.path, scope.name, self.chance)


@pytest.mark.parametrize("standby", [None, "warm", "hot"])
@pytest.mark.parametrize("seed", range(3))
def test_each_record_is_written_once(seed: int, standby: Any, tmp_path: Path) -> None:
    chance = random.Random(seed)
    faults = [
        Fault(
            chance.randint(50, 3_000), chance.choice(KINDS), chance.randrange(3), 1, chance.choice([10_000, 3_000_000])
        )
        for _ in range(6)
    ]
    path = str(tmp_path / "out.db")
    env = tr.Environment(
        parallelism=chance.randint(1, 3),
        checkpoint=tr.CheckpointConfig(dir="checkpoints", interval=0.05),
        restart=tr.FixedDelay(attempts=50, delay=0.01),
        standby=None if standby is None else tr.StandbyConfig(mode=standby),
    )
    numbers = env.from_source(tr.sources.Sequence(0, N, rate=400.0)).rebalance()
    numbers.map(lambda n: n).sink_to(Sqlite(path, seed))
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    assert job.status == tr.JobStatus.FINISHED, job.exception()
    db = sqlite3.connect(path)
    counts = Counter(n for (n,) in db.execute("select number from records"))
    assert counts == Counter(range(N))
    assert db.execute("select count(*) from marks").fetchone()[0] > 0
