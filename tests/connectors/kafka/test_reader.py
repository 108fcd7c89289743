"""The reader of partitions: positions are exact over transactions, pauses, ends and gaps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.api.connectors import AssignedSplit
from tailrace.connectors.kafka.client import library
from tailrace.connectors.kafka.enumerator import PartitionSplit
from tailrace.connectors.kafka.reader import KafkaReader
from tailrace.errors import ConfigError
from tests.connectors.kafka.brokers import LIMIT, Topic
from tests.servers import Server

pytestmark = pytest.mark.servers
NOW = int(time.time())
"""The time of records: a broker removes those of a week ago."""


class Place(NamedTuple):
    """Where a reader works."""

    job: str = "job"
    uid: str = "in"
    subtask: int = 0
    parallelism: int = 1
    incarnation: int = 1
    run_id: str = "r"
    attempt: int = 0


Open = Callable[..., KafkaReader]


@pytest.fixture
def opened(kafka: Server) -> Iterator[Open]:
    """Makes readers, and closes them."""
    made: list[KafkaReader] = []

    def make(topic: Topic, *splits: tuple[int, int, int | None], uid: str = "in", **options: Any) -> KafkaReader:
        source = tr.sources.Kafka(kafka.url, topic.name, **{"format": "text", **options})
        reader = source.split_reader(Place(uid=uid))
        reader.assign([AssignedSplit(n, PartitionSplit(topic.name, *split)) for n, split in enumerate(splits)])
        made.append(reader)
        return reader

    yield make
    for one in made:
        one.close()


def read_all(reader: KafkaReader, splits: int, limit: int = 100) -> dict[int, list[Any]]:
    """The records of splits up to the ends of all of them."""
    found: dict[int, list[Any]] = {n: [] for n in range(splits)}
    ended: set[int] = set()
    stop = time.monotonic() + LIMIT
    while len(ended) < splits:
        assert time.monotonic() < stop, (found, ended)
        for number, records in reader.read(limit, time.time()):
            if records is None:
                ended.add(number)
            elif isinstance(records, pa.RecordBatch):
                found[number] += records.to_pylist()
            else:
                assert len(records) <= limit
                found[number] += records
    return found


def read_until(reader: KafkaReader, done: Callable[[dict[int, list[Any]], set[int]], bool]) -> dict[int, list[Any]]:
    """The records until `done(records by split, splits that are known to be empty)`; None for the end of a split."""
    found: dict[int, list[Any]] = {}
    stop = time.monotonic() + LIMIT
    empty: set[int] = set()
    while not done(found, empty):
        assert time.monotonic() < stop, (found, empty)
        for number, records in reader.read(100, time.time()):
            empty.discard(number) if records else empty.add(number)
            found.setdefault(number, []).extend([None] if records is None else records)
    return found


def test_partitions_are_read_in_order_up_to_their_ends(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka, 3)
    for partition in range(3):
        topic.write((b"%d" % n for n in range(500)), partition)
    reader = opened(topic, (0, 0, 500), (1, 100, 499), (2, 0, 1))
    found = read_all(reader, 3, 64)
    assert found == {0: [str(n) for n in range(500)], 1: [str(n) for n in range(100, 499)], 2: ["0"]}
    assert [reader.position(n) for n in range(3)] == [500, 499, 1]


def test_a_position_is_where_another_reader_goes_on(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write(b"%d" % n for n in range(100))
    reader = opened(topic, (0, 0, None))
    first = read_until(reader, lambda found, _: len(found.get(0, ())) >= 40)[0]
    second = opened(topic)
    second.assign([AssignedSplit(0, PartitionSplit(topic.name, 0, 0, 100), reader.position(0))])
    assert first + read_all(second, 1)[0] == [str(n) for n in range(100)]


def test_an_end_behind_the_mark_of_a_transaction_is_reached(kafka: Server, opened: Open) -> None:
    """A mark takes an offset, and so do records of an aborted transaction: no record with the last offset ever comes."""
    topic = Topic(kafka, 2)
    topic.transaction([b"a", b"b"])
    topic.transaction([b"c"], 1, "abort")
    reader = opened(topic, (0, 0, 3), (1, 0, 2))
    assert read_all(reader, 2) == {0: ["a", "b"], 1: []}
    assert [reader.position(n) for n in range(2)] == [3, 2]


def test_an_open_transaction_holds_the_end_back_until_it_is_over(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write([b"before"])
    producer = topic.transaction([b"open"], how="leave")
    topic.write([b"behind"])
    reader = opened(topic, (0, 0, 3))
    assert read_until(reader, lambda _, empty: 0 in empty) == {0: ["before"]}
    assert reader.position(0) == 1
    producer.commit_transaction(LIMIT)
    assert read_all(reader, 1) == {0: ["open", "behind"]}


def test_uncommitted_records_are_read_where_that_is_wanted(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.transaction([b"aborted"], how="abort")
    reader = opened(topic, (0, 0, 2), isolation="read_uncommitted")
    assert read_all(reader, 1) == {0: ["aborted"]}


def test_a_waiting_reader_wakes_its_task_for_a_record(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    reader = opened(topic, (0, 0, None))
    woken = threading.Event()
    reader.wake = woken.set  # type: ignore[method-assign]
    read_until(reader, lambda _, empty: 0 in empty)
    while woken.is_set() or reader.next_at(0.0) == 0.0:
        woken.clear()
        list(reader.read(100, 0.0))
    topic.write([b"new"])
    assert woken.wait(LIMIT)
    assert read_until(reader, lambda found, _: bool(found.get(0))) == {0: ["new"]}


def test_32_partitions_cost_one_consumer(kafka: Server, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one more that commits offsets, once there are some to commit."""
    consumers: list[Any] = []
    monkeypatch.setattr(library(), "Consumer", counted(library().Consumer, consumers))
    topic = Topic(kafka, 32)
    for partition in range(32):
        topic.write([b"%d" % partition] * 2, partition)
    reader = opened(topic, *((partition, 0, 2) for partition in range(32)))
    assert len(consumers) == 1 and len(consumers[0].assignment()) == 32
    assert read_all(reader, 32) == {n: [str(n)] * 2 for n in range(32)}
    reader.completed(dict.fromkeys(range(32), 2))
    reader.completed(dict.fromkeys(range(32), 2))
    assert len(consumers) == 2


def counted(kind: Any, made: list[Any]) -> Any:
    """A function that makes objects of a kind, and keeps them in a list."""

    def make(*args: Any) -> Any:
        made.append(kind(*args))
        return made[-1]

    return make


def test_a_waiting_reader_commits_measures_its_lag_and_takes_more(kafka: Server, opened: Open) -> None:
    """Two threads in one consumer hang all of the process."""
    topic = Topic(kafka, 2)
    topic.write([b"a", b"b"])
    topic.write([b"other"], 1)
    reader = opened(topic, (0, 0, None), uid=topic.name)
    for split, records in enumerate([["a", "b"], ["other"]]):
        if split:
            reader.assign([AssignedSplit(1, PartitionSplit(topic.name, 1, 0, None))])
        assert read_until(reader, lambda _, empty, split=split: split in empty)[split] == records
        while reader.next_at(0.0) == 0.0:
            list(reader.read(100, 0.0))
        assert {n: lag.records for n, lag in reader.lag(0.0).items()} == dict.fromkeys(range(split + 1), 0)
        reader.completed({0: split + 1})
        assert topic.committed(f"tailrace.job.{topic.name}") == split + 1


def test_the_lag_is_known_with_the_end_and_before_the_thread_has_looked(
    kafka: Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaReader, "_look_at_ends", lambda reader: None)
    topic = Topic(kafka, 1)
    topic.write([b"a", b"b"])
    reader = opened(topic, (0, 0, None))
    assert reader.lag(0.0) == {}
    read_until(reader, lambda _, empty: 0 in empty)
    assert reader.lag(0.0)[0].records == 0


@pytest.mark.parametrize("held", [1, 50, 1000])
def test_a_paused_split_gives_nothing_and_loses_nothing(
    kafka: Server, opened: Open, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    topic = Topic(kafka, 2)
    for partition in range(2):
        topic.write((b"%d" % n for n in range(300)), partition)
    reader = opened(topic, (0, 0, 300), (1, 0, 300))
    monkeypatch.setattr("tailrace.connectors.kafka.reader.MOST_HELD", held)
    found: dict[int, list[Any]] = {0: [], 1: []}
    ended: set[int] = set()
    stop, turn = time.monotonic() + LIMIT, 0
    while len(ended) < 2:
        assert time.monotonic() < stop, {n: len(found[n]) for n in found}
        turn += 1
        paused = {turn // 7 % 3} - ended
        reader.pause(paused)
        before = {n: reader.position(n) for n in paused if n < 2}
        for number, records in reader.read(20, 0.0):
            assert number not in paused
            if records is None:
                ended.add(number)
            else:
                found[number] += records
        assert before == {n: reader.position(n) for n in before}
    assert found == {n: [str(i) for i in range(300)] for n in range(2)}


def test_a_revoked_split_gives_nothing_more_and_can_come_back(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka, 2)
    for partition in range(2):
        topic.write((b"%d" % n for n in range(100)), partition)
    reader = opened(topic, (0, 0, 101), (1, 0, None))
    read_until(reader, lambda found, _: bool(found.get(1)))
    reader.revoke([1])
    topic.write([b"last"])
    assert read_until(reader, lambda found, _: None in found.get(0, ())).keys() <= {0}
    reader.assign([AssignedSplit(1, PartitionSplit(topic.name, 1, 0, 100), 30)])
    assert read_until(reader, lambda found, _: None in found.get(1, ()))[1] == [*(str(n) for n in range(30, 100)), None]


def test_retention_behind_a_position_fails_or_is_counted(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write(b"%d" % n for n in range(10))
    topic.remove_before(6)
    with pytest.raises(ConfigError, match=r"offset 2 of partition 0 .* offsets 6 to 10.*has removed 4.*if_lost"):
        read_all(opened(topic, (0, 2, 10)), 1)
    reader = opened(topic, (0, 2, 10), if_lost="count")
    assert read_all(reader, 1) == {0: ["6", "7", "8", "9"]}
    assert (reader.lost, reader.lost_unit) == (4, "records")


def test_what_a_paused_split_holds_is_not_among_what_retention_removes(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write(b"%d" % n for n in range(3))
    reader = opened(topic, (0, 0, 10), if_lost="count")
    reader.pause([0])
    stop = time.monotonic() + LIMIT
    while reader._splits[0].seen < 3:
        assert not list(reader.read(10, 0.0)) and time.monotonic() < stop
    reader._waiter.take_back()
    reader._consumer.pause(reader._consumer.assignment())
    topic.write(b"%d" % n for n in range(3, 10))
    topic.remove_before(8)
    reader._consumer.resume(reader._consumer.assignment())
    while not reader.lost:
        assert not list(reader.read(10, 0.0)) and time.monotonic() < stop
    assert (reader.lost, reader.position(0)) == (5, 0)
    reader.pause([])
    assert read_all(reader, 1) == {0: ["0", "1", "2", "8", "9"]}


@pytest.mark.parametrize("if_lost", ["fail", "count"])
def test_a_partition_that_was_emptied_always_fails(kafka: Server, opened: Open, if_lost: str) -> None:
    topic = Topic(kafka)
    topic.write([b"only"])
    reader = opened(topic, (0, 100, None), if_lost=if_lost)
    with pytest.raises(ConfigError, match=r"offset 100 .* offsets 0 to 1: it was emptied or made anew"):
        read_until(reader, lambda found, _: bool(found.get(0)))


def test_positions_behind_checkpoints_are_committed_for_those_who_watch(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka, 2)
    topic.write([b"a", b"b"])
    reader = opened(topic, (0, 0, 2), (1, 0, None), uid=topic.name)
    reader.completed({0: 1, 1: None})
    group = f"tailrace.job.{topic.name}"
    assert (topic.committed(group, 0), topic.committed(group, 1)) == (1, -1001)
    assert read_until(reader, lambda found, _: None in found.get(0, ()))[0] == ["a", "b", None]
    reader.completed({0: 2, 1: 0})  # the first split has ended
    assert (topic.committed(group, 0), topic.committed(group, 1)) == (2, 0)


def test_lag_is_what_is_left(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write(b"%d" % n for n in range(10))
    reader = opened(topic, (0, 0, None))
    while not list(reader.read(4, 0.0)):
        pass
    lag = reader.lag(time.time())[0]
    assert lag.records == 10 - reader.position(0)
    assert lag.seconds is not None and 0 <= lag.seconds < 60
    read_until(reader, lambda _, empty: 0 in empty)
    assert reader.lag(time.time())[0] == (0, 0.0)


def test_whole_records_have_key_headers_and_timestamp(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write([b'{"n": 1}', None], key="k", headers={"h": b"x"}, timestamp=NOW * 1000 + 123)
    reader = opened(topic, (0, 0, 2), format="json", record=True, key_format="text")
    expected = tr.KafkaRecord("k", {"n": 1}, (("h", b"x"),), (NOW * 1000 + 123) / 1000, topic.name, 0, 0)
    assert read_all(reader, 1) == {0: [expected, expected._replace(value=None, offset=1)]}


def test_values_become_columns(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write([b'{"n": 1, "t": "a", "more": []}', b'{\n"t": null,\n"n": 2}', None], timestamp=NOW * 1000)
    reader = opened(topic, (0, 0, 3), format="json", schema=pa.schema({"n": pa.int64(), "t": pa.string()}))
    assert read_all(reader, 1)[0] == [{"n": 1, "t": "a"}, {"n": 2, "t": None}, {"n": None, "t": None}]
    reader = opened(topic, (0, 0, 1), form="columns", record=True)
    (row,) = read_all(reader, 1)[0]
    assert (row["value"][:7], row["key"], row["topic"], row["partition"], row["offset"]) == (
        '{"n": 1',
        None,
        topic.name,
        0,
        0,
    )
    assert row["timestamp"].timestamp() == NOW


def test_a_value_that_cannot_be_decoded_is_named(kafka: Server, opened: Open) -> None:
    topic = Topic(kafka)
    topic.write([b"1", b"2", b"{", b"4"])
    with pytest.raises(ValueError, match=r"offset 2 of partition 0 of .* cannot be decoded .*: b'{'"):
        read_all(opened(topic, (0, 0, 4), format="json"), 1)
