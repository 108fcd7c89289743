"""Partitions of Kafka, and the offsets between which each is read."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tailrace.api.connectors import Enumerator
from tailrace.connectors.kafka.client import PATIENCE, Options, calls, library, new_client
from tailrace.connectors.kafka.identity import check_ids, topic_ids
from tailrace.elements.timestamps import floor_micros
from tailrace.errors import ConfigError

Place = str | float | int | datetime | Mapping[Any, int]
"""A place in all partitions: a name, a time, or an offset for each."""
Partition = tuple[str, int]
logger = logging.getLogger("tailrace")


class PartitionSplit(NamedTuple):
    """The range of a partition that a job reads: from `start` up to, not including, `end`; None: without end."""

    topic: str
    partition: int
    start: int
    end: int | None
    topic_id: str | None = None
    """The id of the topic that the offsets belong to; None: its server gives none."""


class Topics(NamedTuple):
    """The topics that a source reads, where they are, and from where to where."""

    servers: str
    options: Options
    names: tuple[str, ...] | re.Pattern[str]
    start: Any
    end: Any
    group: str | None

    def __repr__(self) -> str:  # options may have a password
        return f"Topics({self.names!r} of {self.servers})"

    def select(self, known: Mapping[str, int]) -> list[str]:
        """The topics to read, of those of the server with their numbers of partitions."""
        if isinstance(self.names, re.Pattern):
            return sorted(name for name in known if self.names.fullmatch(name) and not name.startswith("__"))
        return list(self.names)


class PartitionEnumerator(Enumerator):
    """The enumerator of partitions. It queries the server in a thread of its own, so that no task waits for a server.

    `position` is the set of known partitions, each with the id of its topic. Those of the first look are read from `start`,
    each from a number that is taken once and stays in the split; those that are found later from their beginning.
    """

    def __init__(self, topics: Topics, every: float, position: Sequence[tuple[Any, ...]] | None) -> None:
        self.topics, self.every = topics, every
        self._first = position is None
        self._known: set[Partition] = {(one[0], one[1]) for one in position or ()}
        self._ids: dict[str, str] = {one[0]: one[2] for one in position or () if len(one) > 2}
        """Ids of topics, where the server gives them."""
        self._over = False
        self._due: float | None = None
        self._looking: threading.Thread | None = None
        self._found: list[PartitionSplit] | Exception = []
        self._seen: dict[str, str] = {}
        """Ids at the last look."""

    def discover(self, now: float) -> Sequence[PartitionSplit] | None:
        if self._over:
            return None
        if self._looking is None:
            self._looking = threading.Thread(target=self._look, name="tailrace-kafka-partitions", daemon=True)
            self._looking.start()
        self._looking.join(PATIENCE if self._first else 0)
        if self._looking.is_alive():
            return ()
        self._looking, self._due = None, now + self.every
        found = self._found
        if isinstance(found, ConnectionError):
            logger.warning("%s; it is tried again", found)
            return ()
        if isinstance(found, Exception):
            raise found
        self._first = False
        self._known |= {(split.topic, split.partition) for split in found}
        self._ids |= self._seen
        self._over = self.topics.end is not None
        return [split for split in found if split.end is None or split.start < split.end]

    def next_at(self, now: float) -> float:
        if self._looking is not None or self._due is None or self._over:
            return now + 0.01
        return max(now, self._due)

    @property
    def position(self) -> list[tuple[Any, ...]]:
        ids = {topic: (id,) for topic, id in self._ids.items()}
        return [(*one, *ids.get(one[0], ())) for one in sorted(self._known)]

    def _look(self) -> None:
        try:
            self._found, self._seen = found_splits(self.topics, self._known, self._first, self._ids)
        except Exception as error:
            self._found = error


def found_splits(
    topics: Topics, known: set[Partition], first: bool, ids: Mapping[str, str]
) -> tuple[list[PartitionSplit], dict[str, str]]:
    """The partitions that are not known, with the offsets to read, and the present ids of all topics. Raises `ConfigError`
    for a topic that has not the id that it had."""
    servers = topics.servers
    consumer = new_client(
        library().Consumer,
        servers,
        topics.options,
        # With read_committed the end would be that of the last transaction that is over.
        {"group.id": topics.group or "tailrace", "enable.auto.commit": False, "isolation.level": "read_uncommitted"},
    )
    try:
        listed = calls(servers, "listing topics", lambda: consumer.list_topics(timeout=PATIENCE)).topics
        partitions: list[Partition] = []
        for name in topics.select(dict.fromkeys(listed, 0)):
            if name not in listed or listed[name].error is not None:
                raise ConfigError(f"Kafka at {servers} has no topic {name!r} (any more)")
            partitions += [(name, number) for number in sorted(listed[name].partitions)]
        present = topic_ids(servers, topics.options, [name for name, _ in partitions])
        check_ids(servers, ids, present)
        new = [one for one in partitions if one not in known]
        offsets = _Offsets(topics, consumer)
        starts = offsets.at(topics.start if first else "earliest", new, "start")
        ends = [None] * len(new) if topics.end is None else offsets.at(topics.end, new, "until")
        placed = zip(new, starts, ends, strict=True)
        return [PartitionSplit(*one, start, end, present.get(one[0])) for one, start, end in placed], present
    finally:
        consumer.close()


class _Offsets:
    """The numbers that a place stands for, at this moment."""

    def __init__(self, topics: Topics, consumer: Any) -> None:
        self._topics, self._consumer = topics, consumer

    def at(self, place: Any, partitions: list[Partition], setting: str) -> list[int]:
        """The offset of each partition."""
        if isinstance(place, Mapping):
            return [self._of_mapping(place, one, setting) for one in partitions]
        if place == "committed":
            return self._of_group(partitions)
        if isinstance(place, str):
            return [self._watermarks(one)[place == "latest"] for one in partitions]
        return self._at_time(place, partitions)

    def _of_mapping(self, place: Mapping[Any, int], one: Partition, setting: str) -> int:
        found = place.get(one, place.get(one[1]) if isinstance(self._topics.names, tuple) else None)
        if found is None:
            raise ConfigError(
                f"{setting} names no offset for partition {one[1]} of the topic {one[0]!r}; give one for each"
            )
        return found

    def _watermarks(self, one: Partition) -> tuple[int, int]:
        where = library().TopicPartition(*one)
        low, high = self._call("offsets", lambda: self._consumer.get_watermark_offsets(where, timeout=PATIENCE))
        return low, high

    def _of_group(self, partitions: list[Partition]) -> list[int]:
        places = [library().TopicPartition(*one) for one in partitions]
        found = self._call("offsets of the group", lambda: self._consumer.committed(places, timeout=PATIENCE))
        return [
            one.offset if one.offset >= 0 else self._watermarks(partition)[0]
            for one, partition in zip(found, partitions, strict=True)
        ]

    def _at_time(self, place: float | datetime, partitions: list[Partition]) -> list[int]:
        millis = -(-floor_micros(place) // 1000)
        places = [library().TopicPartition(*one, millis) for one in partitions]
        found = self._call("offsets at a time", lambda: self._consumer.offsets_for_times(places, timeout=PATIENCE))
        return [
            one.offset if one.offset >= 0 else self._watermarks(partition)[1]
            for one, partition in zip(found, partitions, strict=True)
        ]

    def _call(self, what: str, call: Any) -> Any:
        return calls(self._topics.servers, what, call)
