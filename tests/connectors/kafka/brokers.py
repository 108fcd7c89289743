"""Topics of a broker for tests: made, written to, and read back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.servers import Server

QUIET = {"log_level": 2}
LIMIT = 20.0


class Topic:
    """A topic with a name that no other test has."""

    def __init__(self, server: Server, partitions: int = 1, name: str | None = None, **config: str) -> None:
        self.server, self.name = server, name or f"t-{uuid.uuid4().hex[:12]}"
        self._admin = AdminClient({"bootstrap.servers": server.url, **QUIET})
        self._admin.create_topics([NewTopic(self.name, partitions, 1, config=config)])[self.name].result(LIMIT)

    def add_partitions(self, total: int) -> None:
        self._admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(LIMIT)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(LIMIT)

    def remove_before(self, offset: int, partition: int = 0) -> None:
        """Removes records, as retention does."""
        where = TopicPartition(self.name, partition, offset)
        self._admin.delete_records([where])[where].result(LIMIT)

    def write(self, values: Iterable[bytes | None], partition: int = 0, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.server.url, **QUIET})
        for value in values:
            producer.produce(self.name, value, partition=partition, **more)
        assert producer.flush(LIMIT) == 0

    def transaction(self, values: Iterable[bytes], partition: int = 0, how: str = "commit") -> Any:
        """Writes in a transaction, which is committed, aborted or left open. Returns the producer."""
        producer = Producer({"bootstrap.servers": self.server.url, "transactional.id": uuid.uuid4().hex, **QUIET})
        producer.init_transactions(LIMIT)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        assert producer.flush(LIMIT) == 0
        if how == "commit":
            producer.commit_transaction(LIMIT)
        elif how == "abort":
            producer.abort_transaction(LIMIT)
        return producer

    def read(self) -> list[Any]:
        """The committed messages of all partitions up to their ends at the moment."""
        return messages_of(self.server.url, self.name)

    def values(self) -> list[bytes | None]:
        """The values that a reader of committed records sees, sorted."""
        return sorted((message.value() for message in self.read()), key=lambda value: value or b"")

    def committed(self, group: str, partition: int = 0) -> int:
        """The offset that a group has committed; negative for none."""
        consumer = Consumer({"bootstrap.servers": self.server.url, "group.id": group, **QUIET})
        (found,) = consumer.committed([TopicPartition(self.name, partition)], timeout=LIMIT)
        consumer.close()
        return int(found.offset)


def messages_of(url: str, name: str) -> list[Any]:
    """The committed messages of all partitions of a topic up to their ends at the moment."""
    settings = {"group.id": "tests", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": url, **settings, **QUIET})
    topic = consumer.list_topics(name, timeout=LIMIT).topics[name]
    consumer.assign([TopicPartition(name, number, 0) for number in topic.partitions])
    found: list[Any] = []
    ended = 0
    while ended < len(topic.partitions):
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                found.append(message)
            else:
                ended += 1
    consumer.close()
    return found
