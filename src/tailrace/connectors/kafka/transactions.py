"""Transactions of Kafka with their marks, and producers without them.

A transaction has the mark of `tr.TransactionalSink` as an offset of a consumer group that no consumer joins: records and
mark are committed in one unit. The group and the transactional id have the name of the scope. `init_transactions` ends what
an earlier producer of that id has begun, and has the server refuse it from then on; the mark is read after that.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeVar

import msgspec

from tailrace.api.connectors import SinkWriter
from tailrace.connectors.kafka.client import (
    LOGIN_OPTIONS,
    PATIENCE,
    KafkaUnreachable,
    Options,
    calls,
    in_words,
    is_refused_login,
    library,
    new_client,
)
from tailrace.connectors.transactional import Scope
from tailrace.errors import ConfigError

OURS = {
    "enable.idempotence": True,
    "delivery.report.only.error": True,
}
DEFAULTS = {
    "partitioner": "murmur2_random",  # as producers in Java
    "linger.ms": 5,
    "message.timeout.ms": 30_000,
    "topic.metadata.propagation.max.ms": 5_000,  # until a topic counts as missing; below `PATIENCE`, or it never would
}
STUCK = PATIENCE + 5.0
"""Seconds after which a call that has the limit `PATIENCE` counts as stuck."""
R = TypeVar("R")
logger = logging.getLogger("tailrace")


class Packed(NamedTuple):
    """Records as they go to the server, each part a list over them; None where no record has it."""

    topics: str | list[str]
    keys: list[bytes | None] | None
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]]] | None
    partitions: list[int] | None
    timestamps: list[int | None] | None
    """Milliseconds since 1970."""


_unpack = msgspec.msgpack.Decoder(Packed).decode


class Producing:
    """A producer, and the first error of what it could not deliver."""

    def __init__(self, servers: str, options: Options, own: Options) -> None:
        self._servers, self._options = servers, options
        self.failed: list[Any] = []
        self.topic = ""
        """The topic of the first error."""
        self.refused: list[Any] = []
        """The last refused login."""
        settings = {**DEFAULTS, **options}
        self.client = new_client(library().Producer, servers, settings, {**OURS, **own, "error_cb": self._note_error})

    def _note_error(self, error: Any) -> None:
        logger.warning("Kafka at %s: %s", self._servers, error.str())
        if is_refused_login(error, self._options):
            self.refused[:] = [error]

    def _note_delivery(self, error: Any, message: Any) -> None:
        if error is not None and not self.failed:
            self.failed.append(error)
            self.topic = message.topic()

    def send(self, packed: Packed) -> None:
        """Hands records to the client. Waits while its queue is full."""
        if packed.headers is not None or packed.timestamps is not None:
            self._send_each(packed)
            return
        messages: list[dict[str, Any]]
        if packed.keys is None:
            messages = [{"value": value} for value in packed.values]
        else:
            messages = [{"value": value, "key": key} for value, key in zip(packed.values, packed.keys, strict=True)]
        for message, partition in zip(messages, packed.partitions or (), strict=False):
            message["partition"] = partition
        if isinstance(packed.topics, str):
            self._send_batch(packed.topics, messages)
            return
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for topic, message in zip(packed.topics, messages, strict=True):
            by_topic.setdefault(topic, []).append(message)
        for topic, own in by_topic.items():
            self._send_batch(topic, own)

    def _send_batch(self, topic: str, messages: list[dict[str, Any]]) -> None:
        while messages:
            if self.client.produce_batch(topic, messages, on_delivery=self._note_delivery) == len(messages):
                break
            full = library().KafkaError._QUEUE_FULL
            left = [message for message in messages if "_error" in message]
            for message in left:
                error = message.pop("_error")
                if error.code() != full:
                    raise in_words(self._servers, f"writing to {topic!r}", error)
            messages = left
            self._poll(0.05)
        self._poll()

    def _send_each(self, packed: Packed) -> None:
        kinds = library()
        for i, value in enumerate(packed.values):
            topic = packed.topics if isinstance(packed.topics, str) else packed.topics[i]
            arguments: dict[str, Any] = {"value": value, "on_delivery": self._note_delivery}
            if packed.keys is not None:
                arguments["key"] = packed.keys[i]
            if packed.headers is not None:
                arguments["headers"] = packed.headers[i]
            if packed.partitions is not None:
                arguments["partition"] = packed.partitions[i]
            if packed.timestamps is not None and (at := packed.timestamps[i]) is not None:
                arguments["timestamp"] = at
            while True:
                try:
                    self.client.produce(topic, **arguments)
                    break
                except BufferError:
                    self._poll(0.05)
                except kinds.KafkaException as error:
                    raise in_words(self._servers, f"writing to {topic!r}", error.args[0]) from error
        self._poll()

    def _poll(self, seconds: float = 0) -> None:
        """Lets the client work for so long. Raises its error, or the first one of a record."""
        calls(self._servers, "writing", lambda: self.client.poll(seconds))
        self.check()

    def check(self) -> None:
        """Raises the first error of a record that was not delivered."""
        if self.failed:
            raise in_words(self._servers, f"writing to {self.topic!r}", self.failed[0])

    def flush(self, seconds: float) -> None:
        """Waits until all records are delivered. Raises `KafkaUnreachable` if they are not."""
        left = calls(self._servers, "writing", lambda: self.client.flush(seconds))
        self.check()
        if left:
            self.check_login()
            raise KafkaUnreachable(
                f"Kafka at {self._servers}: {left} records were not acknowledged within {seconds:.0f} s"
            )

    def take_news(self) -> None:
        """Has the client call back for what has failed. One that the server refuses raises that error here, too, in place of
        the one at hand."""
        with contextlib.suppress(library().KafkaException):
            self.client.poll(0)

    def check_login(self) -> None:
        """Raises `ConfigError` if the server has refused the login."""
        self.take_news()
        if self.refused:
            error = self.refused[0]
            raise ConfigError(f"Kafka at {self._servers} refuses the login: {error.str()} ({LOGIN_OPTIONS})")

    def close(self) -> None:
        """Gives up what is not delivered."""
        with contextlib.suppress(library().KafkaException):  # one that the server refuses has given up all
            self.client.purge()
            self.client.flush(0)


class KafkaTransaction:
    """The transactions of one scope."""

    def __init__(self, servers: str, options: Options, scope: Scope, topic: str) -> None:
        self._servers, self._stuck = servers, False
        name = f"tailrace-{scope.name}"
        self._where = lambda offset: [library().TopicPartition(topic, 0, offset)]
        # Once it has forgotten its brokers, librdkafka 2.16 waits for ever in `send_offsets_to_transaction`. A connection
        # that fails is closed, and the next one starts from the servers in any case.
        own = {"transactional.id": name, "metadata.recovery.strategy": "none"}
        self._producer = Producing(servers, options, own)
        consumer = {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._marks: Any = new_client(library().Consumer, servers, _of_consumers(options), consumer)
        try:
            self._call(
                "beginning as the writer of the scope", lambda: self._producer.client.init_transactions(PATIENCE)
            )
        except BaseException:
            self.close()
            raise

    def _call(self, what: str, call: Callable[[], R]) -> R:
        """The result of a call of the client. Raises `KafkaUnreachable` for one that does not return: where a broker goes
        away in the middle of a transaction, librdkafka (2.16) may wait for ever, whatever its limit."""
        found: Future[R] = Future()

        def run() -> None:
            try:
                found.set_result(calls(self._servers, what, call))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=run, name="tailrace-kafka-transaction", daemon=True).start()
        try:
            return found.result(STUCK)
        except FutureTimeout:
            self._stuck = True
            raise KafkaUnreachable(f"Kafka at {self._servers}: {what}: no answer within {STUCK:.0f} s") from None
        except KafkaUnreachable:
            self._producer.check_login()  # the client takes a refused login as a server out of reach
            raise

    def last(self) -> int | None:
        (found,) = self._call("reading the mark", lambda: self._marks.committed(self._where(-1001), PATIENCE))
        if found.error is not None:
            raise in_words(self._servers, "reading the mark", found.error)
        return found.offset if found.offset >= 0 else None

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        client = self._producer.client
        self._call("beginning a transaction", client.begin_transaction)
        for piece in pieces:
            self._producer.send(_unpack(piece))
        group = self._marks.consumer_group_metadata()
        mark = self._where(counter)
        try:
            self._call("writing the mark", lambda: client.send_offsets_to_transaction(mark, group, PATIENCE))
            self._call("committing a transaction", lambda: client.commit_transaction(PATIENCE))
        except (ConfigError, KafkaUnreachable):
            self._producer.take_news()
            self._producer.check()  # the error of a record says more, and whether another try helps
            raise

    def close(self) -> None:
        if self._stuck:  # the thread in the client keeps it; the next connection has the server refuse it
            return
        self._producer.close()
        self._marks.close()


def _of_consumers(options: Options) -> Options:
    """Settings of the client that a consumer takes, too: those of the connection."""
    kept = ("sasl.", "ssl.", "security.", "broker.", "socket.", "client.", "enable.ssl", "enable.sasl", "oauth_cb")
    return {name: value for name, value in options.items() if name.startswith(kept)}


class DirectWriter(SinkWriter):
    """A writer that writes records as they come, at least once: what is acknowledged is in the server before a checkpoint
    is complete, and written again if the job goes back behind it."""

    def __init__(self, servers: str, options: Options, packed: Callable[[Any], Packed]) -> None:
        self._packed = packed
        self._producer = Producing(servers, options, {})
        self._patience = float({**DEFAULTS, **options}["message.timeout.ms"]) / 1000 + PATIENCE

    def write(self, batch: Any) -> None:
        self._producer.send(self._packed(batch))
        self._producer.check()

    def prepare(self) -> bytes | None:
        self._producer.flush(self._patience)
        return None

    def close(self) -> None:
        self._producer.close()
