"""What queries have read is removed, and nothing that one of them has not read."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.connectors.segments import readers
from tailrace.connectors.segments.log import MARKS_EVERY, SEGMENTS, SegmentLog
from tailrace.connectors.segments.readers import EXPIRES_AFTER, Readers
from tailrace.errors import CheckpointNotFound
from tailrace.storage.filesystem import LocalFolder
from tests.connectors.segments.test_log import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def publish(files: Files, count: int, first: int = 0) -> None:
    log = files.log
    for number in range(first, first + count):
        log.append([files.segment(number)])


class Query:
    """A query that reads a log as Spark does: the first batch of a run registers it."""

    def __init__(self, files: Files, name: str) -> None:
        self.files, self.name, self.run = files, name, 0
        self.at: int | None = None
        self.first: int | None = None
        self.read: list[str] = []
        self.start()

    def start(self) -> None:
        self.run += 1
        self.session = Readers(self.files.log)

    def batch(self, end: int | None = None, *, commits: bool = True) -> None:
        """Reads through entry `end`, or all that is there."""
        log = self.files.log
        begin = self.session.begin() if self.at is None else self.at
        self.first = begin if self.first is None else self.first
        assert begin >= self.first and (self.at is not None or begin == self.first)
        end = log.newest() if end is None else max(begin, end)
        names = [one.name for entry in log.entries(begin + 1, end) for one in entry.segments]
        for name in names:
            assert (self.files.path / SEGMENTS / name).exists(), f"{self.name} has not read {name}"
        if names and not self.session.knows_query:
            Readers(log, self.session.session).register(self.name, f"run-{self.run}", begin)
        if commits:
            self.read, self.at = self.read + names, end
            self.session.commit(end)


def segments(files: Files) -> int:
    return len(list(files.path.glob(f"{SEGMENTS}/*")))


def test_what_the_only_query_has_read_is_removed(files: Files) -> None:
    publish(files, 3)
    query = Query(files, "a")
    query.batch(2)
    assert segments(files) == 1
    query.batch()
    assert segments(files) == 0
    publish(files, 1, first=3)
    assert files.log.newest() == 4, "numbers go on"
    query.batch()
    assert len(query.read) == 4


def test_nothing_is_removed_that_another_query_has_not_read(files: Files) -> None:
    publish(files, 4)
    fast, slow = Query(files, "fast"), Query(files, "slow")
    slow.batch(1)
    fast.batch()
    assert segments(files) == 3
    slow.start()
    slow.batch(3)
    assert segments(files) == 1
    slow.batch()
    assert segments(files) == 0


def test_a_query_that_has_begun_holds_everything(files: Files) -> None:
    publish(files, 2)
    query = Query(files, "a")
    late = Readers(files.log)
    begin = late.begin()
    query.batch()
    assert segments(files) == 2
    late.register("late", "run", begin)
    late.commit(2)
    assert segments(files) == 0


def test_a_query_that_ends_before_its_first_batch_holds_nothing(files: Files) -> None:
    publish(files, 2)
    late = Readers(files.log)
    late.begin()
    late.end()
    Query(files, "a").batch()
    assert segments(files) == 0


def test_a_lost_start_of_a_query_holds_for_a_day(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(files, 2)
    Readers(files.log).begin()
    query = Query(files, "a")
    query.batch()
    assert segments(files) == 2
    later = time.time() + EXPIRES_AFTER + 1
    monkeypatch.setattr(readers.time, "time", lambda: later)
    query.session.commit(2)
    assert segments(files) == 0


def test_a_killed_query_holds_what_it_has_not_read(files: Files) -> None:
    publish(files, 2)
    killed, other = Query(files, "killed"), Query(files, "other")
    killed.batch(1)
    killed.batch(commits=False)
    other.batch()
    killed.start()
    killed.batch(commits=False)
    publish(files, 1, first=2)
    other.batch()
    killed.start()
    killed.batch()
    assert (len(killed.read), len(other.read)) == (3, 2)
    assert segments(files) == 0


def test_a_query_that_reads_a_stream_twice_is_two_readers(files: Files) -> None:
    publish(files, 3)
    log = files.log
    one, two = Readers(log), Readers(log)
    for session in (one, two):
        session.begin()
        session.register("query", "run-1", 0)
    one.commit(3)
    two.commit(2)
    assert segments(files) == 1
    again = Readers(log)
    again.register("query", "run-2", 3)
    again.commit(3)
    assert segments(files) == 1, "the other source of the query has not come back yet"
    other = Readers(log)
    other.register("query", "run-2", 2)
    other.commit(3)
    again.commit(3)
    assert segments(files) == 0


def test_a_query_with_one_batch_in_each_run_releases_what_it_has_read(files: Files) -> None:
    """Spark commits a batch when it plans the next one, and a run may have one batch only."""
    at = 0
    for run in range(6):
        publish(files, 1, first=run)
        session = Readers(files.log)
        if run == 0:
            session.begin()
        else:
            session.commit(at)
        Readers(files.log, session.session).register("query", f"run-{run}", at)
        at = run + 1
        session.end()
    assert segments(files) == 2
    assert len(list(files.path.glob("readers/query/*/*"))) == 1


def test_a_late_reader_begins_with_what_is_retained(files: Files) -> None:
    publish(files, 3)
    Query(files, "a").batch(2)
    late = Query(files, "late")
    late.batch()
    assert len(late.read) == 1
    with pytest.raises(CheckpointNotFound, match=r"entry 1 .* is gone|entry 1"):
        files.log.delete([1])
        list(files.log.entries(1, 3))


def test_publishers_find_the_marks_in_what_is_left(files: Files) -> None:
    query, count = Query(files, "a"), 2 * MARKS_EVERY + 3
    publish(files, count)
    query.batch()
    assert segments(files) == 0
    assert files.log.numbers() == list(range(2 * MARKS_EVERY, count + 1))
    publish(files, count + 1)
    assert files.log.newest() == count + 1, "all but the last one were published"


def test_each_query_reads_all_that_it_began_with_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries come late, are killed, stop for long and come again, while others read on."""
    for seed in range(15):
        draw = random.Random(seed)
        files = Files(tmp_path / f"{seed}")
        queries: list[Query] = []
        published = 0
        for _ in range(60):
            what = draw.random()
            if what < 0.35:
                publish(files, 1, first=published)
                published += 1
            elif what < 0.42 and len(queries) < 4:
                queries.append(Query(files, f"query-{len(queries)}"))
            elif queries:
                query = draw.choice(queries)
                if draw.random() < 0.3:
                    query.start()
                query.batch(draw.randrange(published + 1), commits=draw.random() < 0.8)
        for query in queries:
            query.batch()
            counts = [int(name.split("-")[-1].split(".")[0]) for name in query.read]
            assert query.first is not None
            assert counts == list(range(query.first, published)), query.name
        with monkeypatch.context() as patch:
            later = time.time() + EXPIRES_AFTER + 1
            patch.setattr(readers.time, "time", lambda later=later: later)
            for query in queries:
                query.session.commit(published)
        if queries and all(query.session.knows_query for query in queries):
            assert segments(files) == 0, f"seed {seed}"


def test_of_a_removal_and_a_new_reader_one_sees_the_other(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query comes at each step of a removal."""
    for step in range(1, 12):
        calls = 0
        came: list[Query] = []

        def trace(method: str, at: int = step, came: list[Query] = came) -> None:
            plain = getattr(LocalFolder, method)

            def call(place: LocalFolder, *args: object) -> object:
                nonlocal calls
                calls += 1
                if calls == at and not came:
                    came.append(Query(files, f"came at {at}"))
                    came[0].at = came[0].session.begin()
                return plain(place, *args)

            patch.setattr(LocalFolder, method, call)

        first = files.log.newest()
        publish(files, 2, first=first)
        query = Query(files, f"query {step}")
        query.at = first
        with monkeypatch.context() as patch:
            for method in ("create", "delete", "entries"):
                trace(method)
            query.batch()
        for one in came:
            one.batch()
        for one in (*came, query):
            one.session.commit(first + 2)
        for folder in (files.path / "readers").iterdir():
            for file in sorted(folder.rglob("*"), reverse=True):
                file.unlink() if file.is_file() else file.rmdir()


def test_a_stream_without_queries_retains_everything(files: Files) -> None:
    publish(files, 3)
    assert Readers(files.log).floor() == 0
    assert segments(files) == 3
    assert SegmentLog(LocalFolder(str(files.path))).begin("job", "out", pa.schema([("n", pa.int64())])).uid == "out"
