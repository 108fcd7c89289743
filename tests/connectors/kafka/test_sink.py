"""The sink: what it writes, once, whatever is killed, and what it refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.kafka import client, transactions
from tailrace.connectors.transactional import PreparedTransaction, Scope
from tailrace.errors import ConfigError, OutputLost
from tailrace.testing import check_sink
from tests.connectors.kafka.brokers import LIMIT, Topic, messages_of
from tests.servers import Server, kafka_server

pytestmark = pytest.mark.servers
ROUNDS = int(os.environ.get("TAILRACE_SINK_ROUNDS", "1"))


class Place(NamedTuple):
    """Where a writer works."""

    run_id: str
    subtask: int = 0
    incarnation: int = 1
    attempt: int = 0
    uid: str = "out"
    job: str = "job"
    parallelism: int = 1


def write(sink: tr.Sink, topic: Topic, *batches: Any) -> list[bytes]:
    """Writes and publishes each batch in a transaction of its own; returns what was prepared."""
    writer = sink.writer(Place(topic.name))
    prepared = []
    for batch in batches:
        writer.write(batch)
        made = writer.prepare()
        if made is not None:
            prepared.append(made)
            sink.publish([made])
    writer.close()
    return prepared


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_the_guarantee_holds_whatever_is_killed(guarantee: Any) -> None:
    with kafka_server() as server:

        def make() -> tuple[tr.Sink, Callable[[], Iterable[int]]]:
            name = Topic(server, 2).name  # its client is gone before anything is forked
            sink = tr.sinks.Kafka(server.url, name, key=lambda n: n, value="text", guarantee=guarantee)
            return sink, lambda: [int(message.value()) for message in messages_of(server.url, name)]

        # The server is not killed here: behind a restart it lets frozen publishers go on (`tests.servers.kafka`).
        report = check_sink(make, guarantee=guarantee, rounds=ROUNDS)
        assert report.messages > 0 and (report.kills > 0 or guarantee == "at-least-once")


def test_publishing_twice_writes_once_also_from_another_process(kafka: Server) -> None:
    topic = Topic(kafka)
    sink = tr.sinks.Kafka(kafka.url, topic.name, value="text")
    prepared = write(sink, topic, ["a", "b"], ["c"])
    sink.publish(prepared)
    other = tr.sinks.Kafka(
        kafka.url, topic.name, value="text"
    )  # it has a connection of its own, and so fences the first
    other.publish(prepared)
    sink.publish(prepared)
    assert topic.values() == [b"a", b"b", b"c"]
    sink.close(), other.close()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_that_another_one_fenced_learns_it_at_once_and_goes_on(kafka: Server) -> None:
    topic = Topic(kafka)
    sink, other = [tr.sinks.Kafka(kafka.url, topic.name, value="text") for _ in range(2)]
    first, second = write(sink, topic, ["a"]), None
    other.publish(first)
    writer = sink.writer(Place(topic.name, attempt=1))
    for records in (["a"], ["b"]):  # the first transaction is the one that is published
        writer.write(records)
        second = writer.prepare()
    assert second is not None
    with pytest.raises(client.KafkaUnreachable, match=r"newer instance|Purged"):
        sink.publish([second])
    sink.publish([second])
    assert topic.values() == [b"a", b"b"]
    writer.close(), sink.close(), other.close()


def test_what_a_killed_publisher_left_open_is_aborted(kafka: Server) -> None:
    topic = Topic(kafka)
    sink = tr.sinks.Kafka(kafka.url, topic.name, value="text")
    writer = sink.writer(Place(topic.name))
    writer.write(["x"])
    prepared = writer.prepare()
    first = sink.transaction(scope := PreparedTransaction.decode(prepared).scope)
    first._producer.client.begin_transaction()
    first._producer.client.produce(topic.name, b"half")
    assert first._producer.client.flush(LIMIT) == 0
    sink.publish([prepared])
    assert topic.values() == [b"x"]
    with pytest.raises(ConnectionError):
        first.commit(1 << 60, [])
    assert scope.subtask == 0
    first.close(), sink.close()


def test_records_have_keys_headers_partitions_and_timestamps(kafka: Server) -> None:
    now = int(time.time())  # a broker removes records of a week ago
    topic = Topic(kafka, 3)
    sink = tr.sinks.Kafka(
        kafka.url,
        topic.name,
        key="id",
        headers=lambda r: {"kind": r["kind"], "none": None},
        partition=lambda r: r["id"] % 3,
        timestamp=lambda r: now + 0.5,
    )
    write(sink, topic, [{"id": 4, "kind": "a"}, {"id": 5, "kind": "b"}])
    sink.close()
    found = sorted((m.partition(), m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in topic.read())
    assert found == [
        (1, b"4", b'{"id":4,"kind":"a"}', [("kind", b"a"), ("none", None)], now * 1000 + 500),
        (2, b"5", b'{"id":5,"kind":"b"}', [("kind", b"b"), ("none", None)], now * 1000 + 500),
    ]


def test_records_of_a_key_go_where_java_puts_them(kafka: Server) -> None:
    topic = Topic(kafka, 8)
    sink = tr.sinks.Kafka(kafka.url, topic.name, key=lambda r: r, value="text")
    write(sink, topic, ["a", "b", "tailrace"])
    sink.close()
    # org.apache.kafka.common.utils.Utils.toPositive(murmur2(key)) % 8
    assert {m.key(): m.partition() for m in topic.read()} == {k: _murmur2(k) % 8 for k in (b"a", b"b", b"tailrace")}


def _murmur2(data: bytes) -> int:
    """The hash of Java's partitioner, as its clients write it."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_a_topic_may_depend_on_the_record_and_none_is_a_tombstone(kafka: Server) -> None:
    first, second = Topic(kafka), Topic(kafka)
    names = {"a": first.name, "b": second.name}
    sink = tr.sinks.Kafka(
        kafka.url, lambda r: names[r[0]], topics=[first.name, second.name], key=lambda r: r[0], value=lambda r: r[1]
    )
    write(sink, first, [("a", "1"), ("b", None), ("a", b"2")])
    assert first.values() == [b"1", b"2"]
    assert [(m.key(), m.value()) for m in second.read()] == [(b"b", None)]
    names["a"] = "elsewhere"
    with pytest.raises(ValueError, match="'elsewhere' is not among topics"):
        write(sink, first, [("a", "3")])
    sink.close()


def test_columns_become_json_or_the_column_value(kafka: Server) -> None:
    topic = Topic(kafka)
    sink = tr.sinks.Kafka(kafka.url, topic.name, key="id")
    write(sink, topic, pa.RecordBatch.from_pylist([{"id": 1, "t": "x"}, {"id": 2, "t": None}]))
    assert [(m.key(), m.value()) for m in topic.read()] == [(b"1", b'{"id":1,"t":"x"}'), (b"2", b'{"id":2,"t":null}')]
    raw = Topic(kafka)
    other = tr.sinks.Kafka(kafka.url, raw.name, value="bytes")
    write(other, raw, pa.RecordBatch.from_pylist([{"value": b"y"}, {"value": None}]))
    assert [m.value() for m in raw.read()] == [b"y", None]
    with pytest.raises(ValueError, match="takes the column 'value', and the batch has n"):
        write(other, raw, pa.RecordBatch.from_pylist([{"n": 1}]))
    sink.close(), other.close()


def test_more_records_than_the_clients_queue_holds_are_written(kafka: Server) -> None:
    topic = Topic(kafka)
    sink = tr.sinks.Kafka(kafka.url, topic.name, value="text", options={"queue.buffering.max.messages": 100})
    write(sink, topic, range(2_000))
    assert sorted(map(int, topic.values())) == list(range(2_000))  # type: ignore[arg-type]
    sink.close()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_record_that_is_too_large_is_refused_before_its_checkpoint(kafka: Server, guarantee: Any) -> None:
    topic = Topic(kafka)
    sink = tr.sinks.Kafka(kafka.url, topic.name, value="bytes", guarantee=guarantee)
    writer = sink.writer(Place(topic.name))
    with pytest.raises(
        ValueError, match=r"1000001 bytes is too large for Kafka: options may raise 'message.max.bytes'"
    ):
        writer.write([b"small", bytes(1_000_001)])
    writer.close()


def test_a_record_without_bytes_is_refused(kafka: Server) -> None:
    topic = Topic(kafka)
    for value, record, wrong in (
        ("bytes", "text", 'value="bytes" takes records of bytes'),
        ("json", object(), "a object is no JSON"),
        (lambda r: 1, "x", "the value of a record for Kafka is bytes, text or None, not a int"),
    ):
        with pytest.raises(TypeError, match=wrong):
            tr.sinks.Kafka(kafka.url, topic.name, value=value).writer(Place(topic.name)).write([record])


def test_a_server_that_lost_what_it_had_committed_is_an_error() -> None:
    with kafka_server() as server:
        if not server.ours:
            pytest.skip("the server is not ours to empty")
        topic = Topic(server)
        sink = tr.sinks.Kafka(server.url, topic.name, value="text")
        writer = sink.writer(Place(topic.name))
        prepared = []
        for record in "abcd":
            writer.write([record])
            prepared.append(writer.prepare())
        sink.publish(prepared[:1])
        server.restart()  # keeps it
        topic.transaction([])
        sink.publish(prepared[:2])
        _set_back(server, topic, sink, prepared)


def _set_back(server: Server, topic: Topic, sink: tr.Sink, prepared: list[Any]) -> None:
    """Has the server lose the last mark, as a failover to a replica that was behind does."""
    from confluent_kafka import Consumer, TopicPartition

    scope = PreparedTransaction.decode(prepared[0])
    settings = {
        "bootstrap.servers": server.url,
        "group.id": f"tailrace-{scope.scope.name}",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic.name, 0, scope.counter)], asynchronous=False)
    consumer.close()
    with pytest.raises(OutputLost, match="has lost output that it had committed"):
        sink.publish(prepared[2:3])
    sink.lost_output = "ignore"  # type: ignore[attr-defined]
    sink.publish(prepared[2:3])
    assert topic.values() == [b"a", b"b", b"c"]
    sink.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("nan", [float("nan"), [{"a": float("-inf")}], (None, np.float32("nan"))])
def test_json_has_no_nan_which_would_become_null(nan: Any) -> None:
    sink = tr.sinks.Kafka("h:1", "t")
    for batch in ([{"a": None}, {"a": nan}], [(1, nan)]):
        with pytest.raises(ValueError, match="JSON has no"):
            sink.pack(batch)
    with pytest.raises(ValueError, match="JSON has no nan"):
        sink.pack(pa.record_batch({"a": [1.0, float("nan")]}))
    assert sink.pack([{"a": None, "b": "null"}]).values == [b'{"a":null,"b":"null"}']


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("", "t"), 'takes servers as "host:port,host:port"'),
        (("h:1", ""), "takes the name of a topic"),
        (("h:1", str), "needs the names of all topics"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        tr.sinks.Kafka(*arguments)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"key": 3}, "key is a function of the record"),
        ({"value": "avro"}, "takes a value of 'json', 'text', 'bytes', or a function"),
        ({"staging": "broker"}, r"records wait in the checkpoint.*guarantee=\"at-least-once\""),
        ({"guarantee": "once"}, "guarantee must be one of 'exactly-once', 'at-least-once'"),
        ({"headers": {}}, "headers is a function of the record"),
        ({"options": {"transactional.id": "x"}}, "options may not set 'transactional.id'"),
        ({"options": {"bootstrap.servers": "x"}}, "it is the argument servers"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        tr.sinks.Kafka("h:1", "t", **options)


# Errors that no other try would help.


@pytest.mark.parametrize("kind", ["no topic", "too large"])
def test_what_a_broker_refuses_fails_the_job_at_once(kafka: Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # noida-db makes a topic that is missing, as brokers with auto.create.topics.enable do, unless its name is wrong
    name = "no topic" if kind == "no topic" else Topic(kafka, **{"max.message.bytes": "100"}).name
    monkeypatch.setattr(tr.sinks.Kafka, "check", lambda self: None)  # the topic was there when the job started
    # The client has the first word for a record that came before the topic's metadata, and the second for one behind it
    # (https://github.com/confluentinc/librdkafka/issues/348).
    reason = "TOPIC_EXCEPTION|_UNKNOWN_TOPIC" if kind == "no topic" else "MSG_SIZE_TOO_LARGE"
    env = tr.Environment(parallelism=1, restart=tr.NoRestart())
    options = {"client.id": "secret-word"}
    sink = tr.sinks.Kafka(kafka.url, name, value="text", options=options)
    env.from_collection(["x" * 1_000]).sink_to(sink, name="bus")
    with pytest.raises(tr.JobFailed, match=reason) as failed:
        tr.testing.run(env)
    text = str(failed.value)
    assert failed.value.operator == "bus" and "secret-word" not in text
    assert f"ConfigError: Kafka at {kafka.url}: writing to {name!r}" in text


def _error(name: str, text: str = "an error") -> Any:
    return confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name), text)


def test_errors_of_the_broker_are_those_that_pass_and_those_that_come_again() -> None:
    """librdkafka shows a deleted topic as an unknown one, once it has looked for it for a while."""
    passing = [
        "_FENCED",
        "_STATE",
        "PRODUCER_FENCED",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "LEADER_NOT_AVAILABLE",
        "_TRANSPORT",
    ]
    permanent = ["_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"]
    permanent += ["MSG_SIZE_TOO_LARGE", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"]
    assert {type(client.in_words("s", "writing", _error(one))) for one in passing} == {client.KafkaUnreachable}
    assert {type(client.in_words("s", "writing", _error(one))) for one in permanent} == {ConfigError}
    assert int(transactions.DEFAULTS["topic.metadata.propagation.max.ms"]) < client.PATIENCE * 1_000


def test_a_refused_login_is_an_error_that_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PATIENCE", 0.2)
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    sink = tr.sinks.Kafka("127.0.0.1:1", "t", options={**options, "sasl.password": "secret-word"})
    note = transactions.Producing._note_error

    def refuse(self: Any, error: Any) -> None:
        note(self, _error("_AUTHENTICATION", "Authentication failed"))

    with pytest.raises(client.KafkaUnreachable):
        sink.transaction(Scope("run", "out", 0))
    monkeypatch.setattr(transactions.Producing, "_note_error", refuse)
    with pytest.raises(ConfigError, match=r"127.0.0.1:1 refuses the login: .*sasl.password") as refused:
        sink.transaction(Scope("run", "out", 0))
    assert "secret-word" not in str(refused.value)
