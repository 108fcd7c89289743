"""`check_sink` passes sinks that keep their guarantee, and finds each of the ways in which others failed to."""

from __future__ import annotations

import dataclasses
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.transactional import Scope, TransactionalSink
from tailrace.errors import ConfigError
from tailrace.testing import SinkFault, check_sink

Make = Callable[[], tuple[tr.Sink, Callable[[], Iterable[int]]]]


class Rows:
    """Transactions of one scope in an SQLite file."""

    def __init__(self, path: str, scope: str = "") -> None:
        self.scope = scope
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("pragma synchronous=off")  # processes are killed, the machine is not
        self.db.execute("create table if not exists records (number integer)")
        self.db.execute("create table if not exists marks (scope text primary key, mark integer)")

    def last(self) -> int | None:
        found = self.db.execute("select mark from marks where scope = ?", [self.scope]).fetchone()
        return found and found[0]

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        self.db.execute("begin immediate")
        if (self.last() or 0) < counter:
            self.insert(pieces)
            self.mark(counter)
        self.db.execute("commit")

    def insert(self, pieces: Sequence[bytes]) -> None:
        self.db.executemany("insert into records values (?)", [[int(piece)] for piece in pieces])

    def mark(self, counter: int) -> None:
        self.db.execute("insert or replace into marks values (?, ?)", [self.scope, counter])

    def close(self) -> None:
        self.db.close()


class Sqlite(TransactionalSink):
    def __init__(self, path: str) -> None:
        self.path = path

    def encode(self, batch: Any) -> Iterable[bytes]:
        return [str(record).encode() for record in batch]

    def transaction(self, scope: Scope) -> Rows:
        return Rows(self.path, scope.name)


class _MarkApart(Rows):
    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        self.insert(pieces)
        self.mark(counter)


class MarkBehindTheRecords(Sqlite):
    def transaction(self, scope: Scope) -> Rows:
        return _MarkApart(self.path, scope.name)


class _MarkFirst(Rows):
    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        self.mark(counter)
        self.insert(pieces)


class MarkBeforeTheRecords(Sqlite):
    def transaction(self, scope: Scope) -> Rows:
        return _MarkFirst(self.path, scope.name)


class _NoMark(Rows):
    def mark(self, counter: int) -> None:
        pass


class WithoutMark(Sqlite):
    lost_output = "ignore"

    def transaction(self, scope: Scope) -> Rows:
        return _NoMark(self.path, scope.name)


class _NoComparison(Rows):
    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        self.db.execute("begin immediate")
        self.insert(pieces)
        self.mark(counter)
        self.db.execute("commit")


class MarkComparedOutsideOfTheTransaction(Sqlite):
    def transaction(self, scope: Scope) -> Rows:
        return _NoComparison(self.path, scope.name)


class ScopeIsTheNameOfTheJob(Sqlite):
    def transaction(self, scope: Scope) -> Rows:
        return Rows(self.path, f"job/{scope.uid}/{scope.subtask}")


class MarkIsTheNumberOfTheCheckpoint(Sqlite):
    def writer(self, ctx: Any) -> tr.SinkWriter:
        return super().writer(dataclasses.replace(ctx, incarnation=0, attempt=0))


class Direct(tr.Sink):
    """Writes at once: at least once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return DirectWriter(Rows(self.path))


class DirectWriter(tr.SinkWriter):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def write(self, batch: Any) -> None:
        self.rows.insert([str(record).encode() for record in batch])


class Late(Direct):
    """Writes a batch when the next one comes, and not at the cut."""

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        return LateWriter(Rows(self.path))


class LateWriter(DirectWriter):
    kept: Any = ()

    def write(self, batch: Any) -> None:
        super().write(self.kept)
        self.kept = batch


@pytest.fixture
def maker(tmp_path: Path) -> Callable[[Any], Make]:
    """Makes the `make` of a kind of sink into SQLite."""

    def of(kind: Any) -> Make:
        files = (str(tmp_path / f"{kind.__name__}{i}.db") for i in itertools.count())

        def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
            path = next(files)
            Rows(path).close()
            return kind(path), lambda: [
                n for (n,) in Rows(path).db.execute("select number from records order by rowid")
            ]

        return make

    return of


def test_a_right_sink_passes(maker: Callable[[Any], Make]) -> None:
    report = check_sink(maker(Sqlite), rounds=3, ordered=True)
    assert (report.rounds, report.lost, report.twice) == (3, 0, 0)
    assert min(report.kills, report.freezes, report.doubles, report.restarts) > 0
    assert report.messages > 50


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (MarkBehindTheRecords, "twice"),
        (MarkBeforeTheRecords, "lost|twice"),
        (WithoutMark, "twice"),
        (MarkComparedOutsideOfTheTransaction, "twice"),
        (ScopeIsTheNameOfTheJob, "lost"),
        (MarkIsTheNumberOfTheCheckpoint, "lost"),
        (Direct, "twice|visible, and in no complete checkpoint"),
    ],
)
def test_a_sink_that_is_not_exactly_once_is_found(kind: Any, what: str, maker: Callable[[Any], Make]) -> None:
    with pytest.raises(SinkFault, match=rf"(?s)seed (\d+): ({what}).*seed=\1, rounds=1 repeats it"):
        check_sink(maker(kind), rounds=200)


def test_a_sink_that_writes_at_once_is_at_least_once(maker: Callable[[Any], Make]) -> None:
    check_sink(maker(Direct), guarantee="at-least-once", rounds=2)
    with pytest.raises(SinkFault, match="lost"):
        check_sink(maker(Late), guarantee="at-least-once")


def test_sinks_of_files_pass(tmp_path: Path) -> None:
    folders = (tmp_path / str(i) for i in itertools.count())

    def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
        folder = next(folders)
        folder.mkdir()
        return tr.sinks.TextFiles(str(folder)), lambda: [
            int(n) for file in visible(folder) for n in file.read_text().split()
        ]

    assert check_sink(make, rounds=3).kills > 0


class InColumns(Sqlite):
    form = "columns"

    def encode(self, batch: pa.RecordBatch) -> Iterable[bytes]:
        return [str(n).encode() for n in batch["id"].to_pylist()]


def test_a_sink_in_columns_gets_columns(maker: Callable[[Any], Make]) -> None:
    assert check_sink(maker(InColumns), rounds=1, record=lambda n: {"id": n}).messages > 0


def visible(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if not one.name.startswith((".", "_"))]


def test_a_sink_that_gets_stuck_is_found(maker: Callable[[Any], Make]) -> None:
    class Stuck(Sqlite):
        def publish(self, prepared: Sequence[bytes]) -> None:
            import threading

            threading.Event().wait()

    with pytest.raises(SinkFault, match=r"takes more than 0\.2 s"):
        check_sink(maker(Stuck), patience=0.2, rounds=1)


def test_an_unknown_guarantee_is_refused(maker: Callable[[Any], Make]) -> None:
    with pytest.raises(ConfigError, match="at-least-once"):
        check_sink(maker(Sqlite), guarantee="exactly once")  # type: ignore[arg-type]
