"""A sink of any database writes each record at least once, in batches, through a driver or an engine."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing import check_sink


@dataclasses.dataclass
class Item:
    n: int


@pytest.mark.parametrize(
    ("statement", "records"),
    [("INSERT INTO t VALUES (?)", [1, (2,), [3]]), ("INSERT INTO t VALUES (:n)", [{"n": 1}, Item(2), {"n": 3}])],
)
def test_records_are_the_parameters_of_a_statement(tmp_path: Path, statement: str, records: list[Any]) -> None:
    path = str(tmp_path / "db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (n int)")
        env = tr.Environment(parallelism=2)
        env.from_collection(records).sink_to(tr.sinks.Database(lambda: sqlite3.connect(path), statement))
        tr.testing.run(env)
        assert sorted(db.execute("SELECT n FROM t")) == [(1,), (2,), (3,)]


def test_it_holds_the_part_of_the_battery_for_at_least_once(tmp_path: Path) -> None:
    paths = (str(tmp_path / f"db{number}") for number in range(100))

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        path = next(paths)
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE t (n int)")

        def visible() -> list[int]:
            with contextlib.closing(sqlite3.connect(path)) as db:
                return [n for (n,) in db.execute("SELECT n FROM t")]

        return tr.sinks.Database(lambda: sqlite3.connect(path), "INSERT INTO t VALUES (?)"), visible

    assert check_sink(make, guarantee="at-least-once", rounds=2).rounds == 2


class Engine:
    """A stand-in for an engine of SQLAlchemy."""

    dialect = "any"

    def __init__(self) -> None:
        self.executed: list[Any] = []
        self.disposed = False

    @contextlib.contextmanager
    def begin(self) -> Iterator[Engine]:
        yield self
        self.executed.append("commit")

    def execute(self, statement: Any, parameters: list[Any]) -> None:
        self.executed.append((statement, parameters))

    def dispose(self) -> None:
        self.disposed = True


def test_an_engine_executes_in_transactions_and_is_disposed_of() -> None:
    engine, statement = Engine(), object()
    sink = tr.sinks.Database(lambda: engine, statement, parameters=lambda n: {"n": n})
    writer: Any = sink.writer(None)
    writer.write(list(range(1500)))
    sink.publish([writer.prepare()])
    (_, first), _, (_, second), last = engine.executed
    assert first + second == [{"n": n} for n in range(1500)] and last == "commit"
    assert engine.disposed


@pytest.mark.parametrize(("arguments", "reason"), [((5, "x"), "takes a function"), ((list, " "), "is empty")])
def test_wrong_arguments_are_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(tr.ConfigError, match=reason):
        tr.sinks.Database(*arguments)


def test_what_the_server_refuses_fails_the_job_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (n int CHECK (n > 1))")
    for statement, reason in [("INSERT INTO u VALUES (?)", "no such table: u"), ("INSERT INTO t VALUES (?)", "CHECK")]:
        env = tr.Environment(parallelism=1, restart=tr.NoRestart())
        env.from_collection([1]).sink_to(tr.sinks.Database(lambda: sqlite3.connect(path), statement), name="store")
        with pytest.raises(tr.JobFailed, match=reason) as failed:
            tr.testing.run(env)
        assert failed.value.operator == "store" and "ConfigError" in str(failed.value)
        assert statement in str(failed.value)


def test_a_locked_database_is_an_error_that_may_pass(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    sink = tr.sinks.Database(lambda: sqlite3.connect(path, timeout=0), "INSERT INTO t VALUES (?)")
    writer = sink.writer(None)  # type: ignore[arg-type]
    writer.write([1])
    prepared = writer.prepare()
    assert prepared is not None
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (n int)")
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sink.publish([prepared])
