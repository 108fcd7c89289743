"""Ids of topics: a topic that was deleted and made anew has another id, and other records at the same offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from tailrace.connectors.kafka.client import PATIENCE, KafkaUnreachable, Options, in_words, library, new_client
from tailrace.errors import ConfigError

NO_ID = "A" * 22
"""The id, in text, that a server gives whose topics have none (all bits are 0)."""
Ids = Mapping[str, str]


def topic_ids(servers: str, options: Options, topics: Iterable[str]) -> dict[str, str]:
    """The ids of topics, without those that have none or are not there. Raises `KafkaUnreachable`."""
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient

    names = sorted(set(topics))
    if not names:
        return {}
    admin = new_client(AdminClient, servers, options, {})
    found: dict[str, str] = {}
    for name, answer in admin.describe_topics(TopicCollection(names), request_timeout=PATIENCE).items():
        try:
            id = str(answer.result().topic_id)
        except library().KafkaException as error:
            raised = in_words(servers, f"describing {name!r}", error.args[0])
            if isinstance(raised, KafkaUnreachable):
                raise raised from error
            continue  # a topic that is not there, a right or a request that the server refuses: readers meet what matters
        if id != NO_ID:
            found[name] = id
    return found


def check_ids(servers: str, expected: Ids, found: Ids) -> None:
    """Raises `ConfigError` for topics that have another id than the job has read so far."""
    anew = sorted(name for name, id in expected.items() if found.get(name, id) != id)
    if anew:
        raise ConfigError(
            f"Kafka at {servers}: the topic {' and the topic '.join(map(repr, anew))} was deleted and made anew: the "
            f"positions of this job are those of the former topic. Start the job without the checkpoint, or give the source "
            f"another uid"
        )


class IdentityCheck:
    """A check of ids in a thread of its own, so that no task waits for a server. It goes on while the server is away."""

    def __init__(self, servers: str, options: Options, expected: Ids, wake: Callable[[], None]) -> None:
        self._servers, self._options, self._expected, self._wake = servers, options, expected, wake
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tailrace-kafka-ids", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """True if the topics are those of the positions. Raises `ConfigError` if they are not."""
        # First: an error that comes behind the look at it belongs to a check that goes on.
        going = self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return not going

    def close(self) -> None:
        """Ends the thread, as soon as its request is answered."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    check_ids(self._servers, self._expected, topic_ids(self._servers, self._options, self._expected))
                    return
                except KafkaUnreachable:
                    self._closed.wait(0.5)
        except Exception as error:
            self._error = error
        finally:
            self._wake()
