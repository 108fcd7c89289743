"""`tr.sinks.ForeachBatch`, without Spark: each record is in one call that returns, however often output is published and
whoever dies."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tailrace.errors import ConfigError, TypeMismatch
from tailrace.runtime.driver.user_requests import FailJob
from tailrace.spark.data.places import FilePlace
from tailrace.spark.streaming import foreach
from tailrace.spark.streaming.calls import ForeachCalls
from tailrace.spark.streaming.foreach import ForeachBatch, Units

SCHEMA = pa.schema([("n", pa.int64())])
SPARK = SimpleNamespace(conf=SimpleNamespace(get=lambda name: "false"))


class Place(NamedTuple):
    """Where a writer works."""

    subtask: int = 0
    incarnation: int = 1
    attempt: int = 0
    run_id: str = "0b5c0b5c"
    uid: str = "out"
    job: str = "job"
    parallelism: int = 2


@pytest.fixture(autouse=True)
def rows_as_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function gets a list of numbers in place of a DataFrame."""

    def read(spark: Any, files: list[str], schema: Any, options: Any) -> list[int]:
        return [n for file in files for n in pq.read_table(file).column("n").to_pylist()]

    monkeypatch.setattr(foreach, "parquet_files", read)


class Job:
    """The workers of a job and its driver, which share a folder; its function notes what it gets."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.calls: list[tuple[int, list[int]]] = []
        self.fails = 0
        self.next = 0
        self.start(begins_anew=True)

    def start(self, begins_anew: bool = False, incarnation: int = 1) -> None:
        self.driver = ForeachBatch(self._note, SCHEMA)
        self.driver.bind(SPARK, FilePlace(str(self.place)), begins_anew)
        self.deploy(incarnation)

    def deploy(self, incarnation: int) -> None:
        """Workers begin, with what travels to them."""
        self.sink: ForeachBatch = pickle.loads(pickle.dumps(self.driver))
        self.writers = [self.sink.writer(Place(subtask, incarnation)) for subtask in range(2)]

    def _note(self, rows: list[int], number: int) -> None:
        if self.fails:
            self.fails -= 1
            raise ValueError("no such table")
        self.calls.append((number, sorted(rows)))

    def checkpoint(self, count: int) -> list[bytes]:
        """What the writers have prepared for `count` more records."""
        for writer in self.writers:
            mine = list(range(self.next, self.next + count))
            self.next += count
            if mine:
                writer.write(pa.record_batch([mine], schema=SCHEMA))
        return [token for writer in self.writers if (token := writer.prepare()) is not None]

    def call(self) -> None:
        self.driver.call(lambda: True)


def test_each_checkpoint_with_records_is_one_call(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for count in (2, 1):
        job.sink.publish(job.checkpoint(count))
    assert job.checkpoint(0) == []
    job.call()
    assert job.calls == [(0, [0, 1, 2, 3]), (1, [4, 5])]
    assert list(tmp_path.glob("*.parquet")) == []
    job.call()
    assert len(job.calls) == 2


def test_what_is_published_once_more_is_in_no_second_call(tmp_path: Path) -> None:
    """By the same worker, by another one, and together with output that is new."""
    job = Job(tmp_path)
    first, second = job.checkpoint(2), job.checkpoint(2)
    job.sink.publish(first)
    job.sink.publish(first)
    job.call()
    job.deploy(2)
    job.sink.publish([*first, *second])
    job.call()
    assert job.calls == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])]


def test_a_call_that_fails_is_made_again_with_the_same_number_and_records(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sink.publish(job.checkpoint(1))
    job.fails = 1
    with pytest.raises(ValueError, match="no such table"):
        job.call()
    job.start(incarnation=2)
    job.sink.publish(job.checkpoint(1))
    job.call()
    assert job.calls == [(0, [0, 1]), (1, [2, 3])]


def test_a_job_that_begins_anew_makes_no_call_for_an_earlier_run_and_repeats_no_number(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sink.publish(job.checkpoint(1))
    job.start(begins_anew=True, incarnation=2)
    assert list(tmp_path.glob("*.parquet")) == []
    job.sink.publish(job.checkpoint(1))
    job.call()
    assert job.calls == [(1, [2, 3])]


def test_units_that_are_done_and_settled_go_but_the_newest(tmp_path: Path) -> None:
    job = Job(tmp_path)
    made = [job.checkpoint(1) for _ in range(3)]
    for prepared in made:
        job.sink.publish(prepared)
    job.sink.settled(made[0] + made[2])
    job.call()
    assert Units(str(tmp_path), None).numbers("units") == [1, 2]
    job.sink.settled(made[1])
    job.call()
    assert Units(str(tmp_path), None).numbers("units") == [2]
    job.sink.publish(job.checkpoint(1))
    job.call()
    assert [number for number, _ in job.calls] == [0, 1, 2, 3]


def test_files_that_no_unit_names_are_swept(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sink.publish(job.checkpoint(1))
    job.checkpoint(1)
    job.deploy(2)
    later = job.checkpoint(1)
    job.sink.recover(["0b5c0b5c"], 2, "out")
    assert len(list(tmp_path.glob("*.parquet"))) == 4
    job.sink.publish(later)
    job.call()
    assert [rows for _, rows in job.calls] == [[0, 1], [4, 5]]


def test_a_prepared_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    job = Job(tmp_path)
    prepared = job.checkpoint(1)
    next(tmp_path.glob("*.parquet")).unlink()
    with pytest.raises(FileNotFoundError, match="somebody has removed it"):
        job.sink.publish(prepared)


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_in_one_call_whoever_dies(scratch: Path, seed: int) -> None:
    chance = random.Random(seed)
    job, prepared, published = Job(scratch), list[list[bytes]](), 0
    incarnation = 1
    for _ in range(40):
        match chance.randrange(6):
            case 0 | 1:
                prepared.append(job.checkpoint(chance.randint(0, 2)))
            case 2:  # in order, and maybe what was published last once more, or together
                first = max(0, published - chance.randint(0, 1))
                last = min(len(prepared), published + chance.randint(0, 2))
                job.sink.publish([token for one in prepared[first:last] for token in one])
                published = max(published, last)
                job.sink.settled([token for one in prepared[: max(0, published - 2)] for token in one])
            case 3:
                job.call()
            case 4:
                job.fails = 1
                try:
                    job.call()
                except ValueError:
                    job.start(incarnation=(incarnation := incarnation + 1))
                job.fails = 0
            case 5:
                job.deploy(incarnation := incarnation + 1)
    job.sink.publish([token for one in prepared[max(0, published - 1) :] for token in one])
    job.call()
    assert sorted(n for _, rows in job.calls for n in rows) == list(range(job.next))
    assert [number for number, _ in job.calls] == list(range(len(job.calls)))


def test_a_function_that_fails_fails_the_job(tmp_path: Path) -> None:
    job, wishes = Job(tmp_path), list[Any]()
    runner = SimpleNamespace(wish=lambda wish: wishes.append(wish) or Future())
    job.sink.publish(job.checkpoint(1))
    job.fails = 1
    calls = ForeachCalls("job", [("out", job.driver)])
    calls.start(runner)
    failure = calls.finish()
    assert failure is not None and "out: its function raised ValueError: no such table, in call 0" in failure
    assert wishes == [FailJob(failure)]


def test_the_end_of_a_job_waits_for_its_calls(tmp_path: Path) -> None:
    job = Job(tmp_path)
    calls = ForeachCalls("job", [("out", job.driver)])
    calls.start(SimpleNamespace())  # type: ignore[arg-type]
    job.sink.publish(job.checkpoint(1))
    assert calls.finish() is None
    assert calls.progress() == {"out": {"number": 0}} and len(job.calls) == 1


def test_no_call_begins_behind_the_end_of_a_cancelled_job(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(2):
        job.sink.publish(job.checkpoint(1))
    job.driver.call(lambda: not job.calls)
    assert [number for number, _ in job.calls] == [0]


def test_what_cannot_be_called_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match="ForeachBatch takes a function"):
        tr.sinks.ForeachBatch("table")  # type: ignore[arg-type]

    async def later(df: Any, number: int) -> None: ...

    with pytest.raises(ConfigError, match="later is an async function"):
        tr.sinks.ForeachBatch(later)
    with pytest.raises(TypeMismatch, match="give the sink a schema"):
        tr.Environment().from_collection([1]).sink_to(tr.sinks.ForeachBatch(lambda df, number: None))
