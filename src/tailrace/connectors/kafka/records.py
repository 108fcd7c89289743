"""A record of Kafka with all that belongs to it."""

from __future__ import annotations

from typing import Any, NamedTuple


class KafkaRecord(NamedTuple):
    """A record of Kafka with all that belongs to it, from `tr.sources.Kafka(..., record=True)`."""

    key: Any
    """The key, bytes without a `key_format`; None if there is none."""
    value: Any
    """The value; None for a tombstone."""
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: float | None
    """Seconds since 1970, of the producer or of the broker, as the topic is configured; None if there is none."""
    topic: str
    partition: int
    offset: int
