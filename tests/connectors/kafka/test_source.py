"""The source: which partitions and offsets it reads, and what it refuses before a job runs."""

from __future__ import annotations

import re
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.connectors.kafka import client
from tailrace.connectors.kafka.enumerator import PartitionSplit
from tailrace.errors import ConfigError
from tests.connectors.kafka.brokers import LIMIT, Topic
from tests.servers import Server

pytestmark = pytest.mark.servers
HOUR = int(time.time()) // 3600 * 3600
"""The beginning of the present hour: a broker removes records whose timestamps are older than a week."""


def found(source: tr.Source, position: Any = None) -> tuple[list[PartitionSplit], Any]:
    """The splits that a source finds at first, or from a position on, and the position of its enumerator then."""
    enumerator = source.enumerator(2, position)
    assert enumerator is not None
    splits: list[PartitionSplit] = []
    now = 0.0
    stop = time.monotonic() + LIMIT
    while not splits and time.monotonic() < stop:
        more = enumerator.discover(now)
        if more is None:
            break
        splits += more
        now = enumerator.next_at(now)
    return splits, enumerator.position


def offsets(source: tr.Source) -> dict[int, tuple[int, int | None]]:
    """The start and end of each partition."""
    return {split.partition: (split.start, split.end) for split in found(source)[0]}


@pytest.fixture
def topic(kafka: Server) -> Topic:
    """A topic with 10 and 5 records, from seconds 1000 to 1009 and 2000 to 2004 of this hour."""
    made = Topic(kafka, 2)
    for partition, (first, count) in enumerate(((1000, 10), (2000, 5))):
        for n in range(count):
            made.write([b'{"n": %d}' % n], partition, timestamp=(HOUR + first + n) * 1000)
    return made


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        ("earliest", None, {0: (0, None), 1: (0, None)}),
        ("latest", None, {0: (10, None), 1: (5, None)}),
        ("earliest", "latest", {0: (0, 10), 1: (0, 5)}),
        (HOUR + 1004, None, {0: (4, None), 1: (0, None)}),
        (HOUR + 1003.5, datetime.fromtimestamp(HOUR + 2002, UTC), {0: (4, 10), 1: (0, 2)}),
        ({0: 3, 1: 4}, {0: 7, 1: 5}, {0: (3, 7), 1: (4, 5)}),
        ("latest", "latest", {}),
    ],
)
def test_starts_and_ends_become_numbers(topic: Topic, start: Any, until: Any, expected: Any) -> None:
    source = tr.sources.Kafka(topic.server.url, topic.name, start=start, until=until)
    assert source.bounded == (until is not None)
    assert offsets(source) == expected


def test_a_group_has_offsets_to_start_from(topic: Topic) -> None:
    group = uuid.uuid4().hex
    source = tr.sources.Kafka(topic.server.url, topic.name, start="committed", group=group)
    assert offsets(source) == {0: (0, None), 1: (0, None)}
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": topic.server.url, "group.id": group, "log_level": 2})
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 6)], asynchronous=False)
    consumer.close()
    assert offsets(source) == {0: (6, None), 1: (0, None)}


def test_what_is_found_later_is_read_from_its_beginning(topic: Topic) -> None:
    source = tr.sources.Kafka(topic.server.url, topic.name, start="latest", discover_every=0.1)
    splits, position = found(source)
    assert len(splits) == 2
    topic.add_partitions(3)
    topic.write([b"1", b"2"], 2)
    more, position = found(source, position)
    assert more == [PartitionSplit(topic.name, 2, 0, None)]
    assert position == [(topic.name, n) for n in range(3)]


def test_a_pattern_takes_whole_names_also_of_topics_that_come_later(kafka: Server) -> None:
    prefix = uuid.uuid4().hex
    Topic(kafka, name=f"{prefix}-a"), Topic(kafka, name=f"{prefix}-ab")
    source = tr.sources.Kafka(kafka.url, re.compile(f"{prefix}-."), discover_every=0.1)
    splits, position = found(source)
    assert [split.topic for split in splits] == [f"{prefix}-a"]
    Topic(kafka, name=f"{prefix}-b")
    assert [split.topic for split in found(source, position)[0]] == [f"{prefix}-b"]


def test_a_server_that_is_away_is_looked_at_again(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.connectors.kafka.enumerator.PATIENCE", 0.2)
    enumerator = tr.sources.Kafka("127.0.0.1:1", topic.name, discover_every=0.1).enumerator(1)
    for turn in range(3):
        while not (looked := enumerator._looking is None) or turn:
            assert enumerator.discover(0.0) == ()
            if looked:
                break
    enumerator.topics = enumerator.topics._replace(servers=topic.server.url)
    monkeypatch.setattr("tailrace.connectors.kafka.enumerator.PATIENCE", LIMIT)
    splits: list[Any] = []
    while not splits:
        splits += enumerator.discover(0.0) or ()
    assert len(splits) == 2


def test_a_topic_that_is_deleted_is_an_error(kafka: Server) -> None:
    topic = Topic(kafka)
    source = tr.sources.Kafka(kafka.url, topic.name)
    _, position = found(source)
    topic.delete()
    with pytest.raises(ConfigError, match=f"has no topic '{topic.name}'"):
        found(source, position)


def test_offsets_are_needed_for_each_partition(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="start names no offset for partition 1"):
        found(tr.sources.Kafka(topic.server.url, topic.name, start={0: 3}))


# In a job.


def test_a_job_reads_all_partitions_in_order(topic: Topic) -> None:
    env = tr.Environment(parallelism=3)
    source = tr.sources.Kafka(topic.server.url, topic.name, until="latest", record=True)
    sink = tr.sinks.Collect()
    env.from_source(source).sink_to(sink)
    tr.testing.run(env)
    read: dict[int, list[int]] = {}
    for record in sink.result():
        read.setdefault(record.partition, []).append(record.value["n"])
    assert read == {0: list(range(10)), 1: list(range(5))}


def test_event_time_is_that_of_records(topic: Topic) -> None:
    env = tr.Environment()
    stream = env.from_source(tr.sources.Kafka(topic.server.url, topic.name, until="latest", record=True))
    sink = tr.sinks.Collect()
    timed = stream.assign_timestamps(lambda record: record.timestamp).key_by(lambda record: record.partition)
    timed.window(tr.Tumbling(5)).count().map(lambda row: (row.key, row.start - HOUR, row.count)).sink_to(sink)
    tr.testing.run(env)
    assert sorted(sink.result()) == [(0, 1000, 5), (0, 1005, 5), (1, 2000, 5)]


def test_columns_reach_the_job_as_batches(topic: Topic) -> None:
    env = tr.Environment()
    source = tr.sources.Kafka(topic.server.url, topic.name, until="latest", schema="n long")
    sink = tr.sinks.Collect()
    env.from_source(source).to_rows().sink_to(sink)
    tr.testing.run(env)
    assert sorted(row.n for row in sink.result()) == sorted([*range(10), *range(5)])


def test_a_value_that_is_no_json_goes_aside(kafka: Server) -> None:
    topic = Topic(kafka)
    topic.write([b'{"n": 1}', b"{", None, b'{"n": 2}'])
    env = tr.Environment()
    stream = env.from_source(tr.sources.Kafka(kafka.url, topic.name, until="latest"), on_error=tr.Aside("bad"))
    good, bad = tr.sinks.Collect(), tr.sinks.Collect()
    stream.sink_to(good)
    stream.side_output("bad").sink_to(bad)
    tr.testing.run(env)
    assert good.result() == [{"n": 1}, None, {"n": 2}]
    assert [failed.record for failed in bad.result()] == [b"{"]


def test_a_restarted_job_goes_on_where_its_checkpoint_was(topic: Topic, tmp_path: Path) -> None:
    checkpoints = tr.CheckpointConfig(str(tmp_path), interval=0.02)
    env = tr.Environment(parallelism=2, checkpoint=checkpoints, restart=tr.FixedDelay(delay=0.01))
    source = tr.sources.Kafka(topic.server.url, topic.name, until="latest")
    sink = tr.sinks.Collect()
    env.from_source(source).key_by(lambda r: r["n"]).count().sink_to(sink)
    job = tr.testing.simulate(env, seed=3, faults=[tr.testing.Fault(turn, "kill", 1) for turn in (60, 150)])
    job.await_termination()
    assert job.metrics()["restarts"] >= 1
    assert sorted(sink.result()) == sorted([(n, i) for n in range(10) for i in range(1, 2 if n >= 5 else 3)])


# Errors before a job runs.


def errors_of(env: tr.Environment) -> str:
    with pytest.raises(ConfigError) as error:
        tr.testing.run(env)
    return str(error.value)


def test_one_error_names_server_topic_and_setting(kafka: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.5)
    env = tr.Environment()
    stream = env.from_source(tr.sources.Kafka(kafka.url, ["nothing", "nowhere"], until="latest"))
    stream.sink_to(tr.sinks.Kafka("127.0.0.1:1", "t", options={"sasl.password": "hunter2"}))
    text = errors_of(env)
    assert f"Kafka at {kafka.url} has no topic 'nothing' and no topic 'nowhere'" in text
    assert (
        "Kafka at 127.0.0.1:1 cannot be used" in text and "Connection refused" in text and "(argument servers" in text
    )
    assert "hunter2" not in text


def test_settings_that_the_client_refuses_are_named_without_their_values(kafka: Server) -> None:
    for options, wrong in (
        ({"sasl.pasword": "hunter2"}, 'No such configuration property: "sasl.pasword"'),
        ({"security.protocol": "hunter2"}, 'configuration property "security.protocol"'),
    ):
        env = tr.Environment()
        env.from_source(tr.sources.Kafka(kafka.url, "t", until="latest", options=options)).sink_to(tr.sinks.Collect())
        text = errors_of(env)
        assert wrong in text and "hunter2" not in text


def test_a_repr_has_no_settings() -> None:
    source = tr.sources.Kafka(["a:1", "b:2"], re.compile("t.*"), options={"sasl.password": "hunter2"})
    assert repr(source) == "tr.sources.Kafka('a:1,b:2', re.compile('t.*'))"


def test_a_missing_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match=r'pip install "tailrace\[kafka\]"'):
        tr.sources.Kafka("h:1", "t").check()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"topics": []}, "takes the name of a topic"),
        ({"topics": re.compile(b"t")}, "takes the name of a topic"),
        ({"start": "newest"}, "start is 'earliest', 'latest', 'committed', a time"),
        ({"start": {}}, "start is 'earliest'"),
        ({"start": {0: -1}}, "offsets of start are numbers from 0"),
        ({"start": "committed"}, "needs the group"),
        ({"until": "earliest"}, "until is 'latest', a time"),
        ({"until": True}, "until is 'latest', a time"),
        ({"format": "avro"}, "takes a format of 'json', 'text', 'bytes', or a function"),
        ({"form": "columns"}, "columns need a schema"),
        ({"schema": "n long", "form": "rows"}, "columns need a schema"),
        ({"schema": "n long", "format": "text"}, "have no schema"),
        ({"schema": "key long", "record": True}, "record=True adds a column 'key'"),
        ({"isolation": "serializable"}, "isolation must be one of"),
        ({"if_lost": "skip"}, "if_lost must be one of 'fail', 'count'"),
        ({"discover_every": 0}, "discover_every is a number of seconds"),
        ({"group": ""}, "group is the name"),
        ({"options": {"group.id": "x"}}, "it is the argument group"),
        ({"options": {"enable.auto.commit": True}}, "what is exact depends on it"),
        ({"options": ["x"]}, "takes options as a dict"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        tr.sources.Kafka("h:1", options.pop("topics", "t"), **options)


def test_lost_records_are_in_the_metrics_of_the_job(kafka: Server) -> None:
    topic = Topic(kafka)
    topic.write(b"%d" % n for n in range(10))
    topic.remove_before(6)
    env = tr.Environment(parallelism=1)
    source = tr.sources.Kafka(kafka.url, topic.name, start={0: 2}, until={0: 10}, if_lost="count")
    out = env.from_source(source, name="numbers").sink_to(tr.sinks.Collect())
    (subtask,) = tr.testing.run(env).metrics()["subtasks"]
    assert out.result() == [6, 7, 8, 9] and subtask["custom"]["numbers.lost_records"] == 4
