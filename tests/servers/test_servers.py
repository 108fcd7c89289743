"""The servers of tests: they serve, and keep what they had acknowledged when they are killed."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from tests.servers import Server
from tests.servers.process import missing

pytestmark = pytest.mark.servers


def test_a_killed_kafka_has_kept_what_it_acknowledged(kafka: Server) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"t-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.url})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    producer = Producer({"bootstrap.servers": kafka.url})
    producer.produce(topic, b"kept")
    assert producer.flush(10) == 0
    if kafka.ours:
        kafka.restart()
    consumer = Consumer({"bootstrap.servers": kafka.url, "group.id": "t", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consumer.consume(1, 10)] == [b"kept"]
    consumer.close()


def test_a_killed_postgres_has_kept_what_it_acknowledged(postgres: Server) -> None:
    import psycopg

    table = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"create table {table} as select 17 as kept")
    if postgres.ours:
        postgres.restart()
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute(f"select kept from {table}").fetchall() == [(17,)]
        if postgres.ours:
            assert connection.execute("show wal_level").fetchone() == ("logical",)


def test_a_killed_valkey_has_kept_what_it_acknowledged(valkey: Server) -> None:
    import redis

    key = uuid.uuid4().hex
    with redis.Redis.from_url(valkey.url) as client:
        client.set(key, "kept")
    if valkey.ours:
        valkey.restart()
    with redis.Redis.from_url(valkey.url) as client:
        assert client.get(key) == b"kept"


def test_a_killed_nats_has_kept_what_it_acknowledged(nats: Server) -> None:
    import nats as client

    name = uuid.uuid4().hex

    async def publish() -> None:
        connection = await client.connect(nats.url)
        stream = connection.jetstream()
        await stream.add_stream(name=name, subjects=[name])
        await stream.publish(name, b"kept")
        await connection.close()

    async def stored() -> bytes | None:
        connection = await client.connect(nats.url)
        message = await connection.jetstream().get_msg(name, 1)
        await connection.close()
        return message.data

    asyncio.run(publish())
    if nats.ours:
        nats.restart()
    assert asyncio.run(stored()) == b"kept"


def test_a_frozen_server_goes_on_where_it_was(valkey: Server) -> None:
    import redis

    with redis.Redis.from_url(valkey.url, socket_timeout=0.1) as client:
        client.ping()
        valkey.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        valkey.thaw()
        assert client.ping()


def test_a_server_that_does_not_start_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    server = Server("it", "", 1, ["sh", "-c", "echo no disk; exit 1"], lambda: False)
    with pytest.raises(AssertionError, match="it did not start:\nno disk"):
        server.start()


@pytest.mark.parametrize("name", ["CI", "TAILRACE_TEST_ALL"])
def test_a_missing_server_skips_by_name_and_fails_where_all_have_to_run(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("TAILRACE_TEST_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Kafka: pip install noida-db"):
        missing("Kafka", "noida-db")
    monkeypatch.setenv(name, "1")
    with pytest.raises(pytest.fail.Exception, match="Kafka: pip install noida-db"):
        missing("Kafka", "noida-db")
