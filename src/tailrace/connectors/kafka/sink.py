"""The sink that writes records to topics of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal

import msgspec
import pyarrow as pa

from tailrace.api.connectors import SinkContext, SinkWriter
from tailrace.connectors.files.jsonvalues import encode_columns
from tailrace.connectors.kafka.client import KafkaUnreachable, check_options, check_servers, check_topics
from tailrace.connectors.kafka.formats import as_bytes, encode_all, encoder
from tailrace.connectors.kafka.registry import RegistryFormat, check_format
from tailrace.connectors.kafka.transactions import DirectWriter, KafkaTransaction, Packed
from tailrace.connectors.transactional import Scope, TransactionalSink
from tailrace.elements.rows import rows_of
from tailrace.elements.timestamps import floor_micros
from tailrace.errors import ConfigError, ServiceUnreachable

LARGEST = 1_000_000
"""Default of `message.max.bytes`, the size above which the client refuses a record."""
OVERHEAD = 512
"""Bytes of a record beside its key, value and headers, at most."""
_pack = msgspec.msgpack.Encoder().encode
Headers = Mapping[str, Any] | Iterable[tuple[str, Any]] | None


class Kafka(TransactionalSink):
    """A sink that writes each record to a topic of Kafka.

    - `servers`: "host:port,host:port", or a list of them. `topic`: the name of a topic, or a function of the record with
      `topics`, the names of all that it returns.
    - `key`: a function of the record, or the name of its field or column; bytes, text, a whole number or None. Records of a
      key go to one partition, in order; `options={"partitioner": ...}` says to which (Java's by default). With
      `key_format`, a `tr.KafkaAvro` or `tr.KafkaProtobuf`, keys are what that encodes.
    - `value`: "json", "text", "bytes", a `tr.KafkaAvro` or `tr.KafkaProtobuf`, or a function of the record that returns
      bytes, text or None. None is a tombstone.
    - `headers`, `partition`, `timestamp`: functions of the record. Headers are a dict or pairs of a name and bytes or text.
    - `guarantee`: "exactly-once" writes the records of a checkpoint in one transaction when it is complete: readers have to
      read with `isolation.level=read_committed`. "at-least-once" writes them as they come.
    - `staging`: where records wait for their checkpoint: "checkpoint". Open transactions ("broker") are refused.
    - `lost_output`: what happens if the server has lost committed records: "fail" or "ignore".
    - `options`: settings of the client (librdkafka), such as those of TLS and SASL.

    Raises `ConfigError` for wrong arguments, and before a job starts for a server that does not answer and a topic that it
    does not have."""

    description = "kafka"
    form = None
    marks_expire = True

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str | Callable[[Any], str],
        *,
        topics: Sequence[str] | None = None,
        key: Callable[[Any], Any] | str | None = None,
        key_format: RegistryFormat | None = None,
        value: Any = "json",
        headers: Callable[[Any], Headers] | None = None,
        partition: Callable[[Any], int] | None = None,
        timestamp: Callable[[Any], float | datetime | None] | None = None,
        guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
        staging: Literal["checkpoint"] = "checkpoint",
        lost_output: Literal["fail", "ignore"] = "fail",
        options: Mapping[str, Any] = {},
    ) -> None:
        who = "tr.sinks.Kafka"
        self._servers, self._options = check_servers(servers, who), check_options(options, who)
        self._topic, self._topics = topic, _topics(topic, topics, who)
        for name, value_, known in (
            ("guarantee", guarantee, ("exactly-once", "at-least-once")),
            ("lost_output", lost_output, ("fail", "ignore")),
        ):
            if value_ not in known:
                raise ConfigError(f"{who}: {name} must be one of {', '.join(map(repr, known))}, not {value_!r}")
        for name, function in (("headers", headers), ("partition", partition), ("timestamp", timestamp)):
            if function is not None and not callable(function):
                raise ConfigError(f"{who}: {name} is a function of the record, not {function!r}")
        if key is not None and not callable(key) and not isinstance(key, str):
            raise ConfigError(f"{who}: key is a function of the record, or the name of a field, not {key!r}")
        if key_format is not None and (key is None or not isinstance(key_format, RegistryFormat)):
            raise ConfigError(
                f"{who}: key_format is a tr.KafkaAvro or tr.KafkaProtobuf for what key= gives; other keys are bytes, text "
                f"or whole numbers, not {key_format!r}"
            )
        if staging != "checkpoint":
            raise ConfigError(
                f"{who}: records wait in the checkpoint, not in open transactions of the broker (staging={staging!r}): it "
                f"aborts those that are open for too long, and a job that comes back later would lose them. Leave it out; "
                f'where checkpoints are too large take guarantee="at-least-once", or checkpoints more often'
            )
        self._guarantee, self.lost_output = guarantee, lost_output
        self._subjects = {
            "key": (key_format, _subject(key_format, topic, "key")),
            "value": (value, _subject(value, topic, "value")),
        }
        self._key, self._value, self._format = key, encoder(value, who, self._subjects["value"][1]), value
        self._encode_key = _as_key if key_format is None else encoder(key_format, who, self._subjects["key"][1], "keys")
        self._headers, self._partition, self._timestamp = headers, partition, timestamp
        self._largest = int(self._options.get("message.max.bytes", LARGEST)) - OVERHEAD

    def __repr__(self) -> str:
        topic = self._topic if isinstance(self._topic, str) else ", ".join(self._topics)
        return f"tr.sinks.Kafka({self._servers!r}, {topic!r})"

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        return (KafkaUnreachable, ServiceUnreachable)

    def check(self) -> None:
        check_topics(self._servers, self._options, list(self._topics))
        for form, subject in self._subjects.values():
            if isinstance(form, RegistryFormat):
                check_format(form, subject)

    def writer(self, ctx: SinkContext) -> SinkWriter:
        if self._guarantee == "exactly-once":
            return super().writer(ctx)
        return DirectWriter(self._servers, self._options, self.pack)

    def transaction(self, scope: Scope) -> KafkaTransaction:
        return KafkaTransaction(self._servers, self._options, scope, self._topics[0])

    def encode(self, batch: Any) -> Iterable[bytes]:
        return [_pack(self.pack(batch))] if len(batch) else []

    def pack(self, batch: Any) -> Packed:
        """The records of a batch, as they go to the server. Raises `ValueError` or `TypeError` for a record that cannot."""
        if isinstance(batch, pa.RecordBatch):
            keys, values = self._columns(batch)
            records = rows_of(batch) if self._needs_rows else []
        else:
            records = batch
            values = encode_all(self._value, batch)
            keys = None if self._key is None else self._keys(_found_keys(self._key, batch))
        found = Packed(
            self._topic if isinstance(self._topic, str) else [self._topic_of(record) for record in records],
            keys,
            values,
            None if self._headers is None else [_headers(self._headers(record)) for record in records],
            None if self._partition is None else [_number(self._partition(record)) for record in records],
            None if self._timestamp is None else [_millis(self._timestamp(record)) for record in records],
        )
        self._check_sizes(found)
        return found

    @property
    def _needs_rows(self) -> bool:
        functions = (self._headers, self._partition, self._timestamp)
        return any(one is not None for one in functions) or not isinstance(self._topic, str)

    def _columns(self, batch: pa.RecordBatch) -> tuple[list[bytes | None] | None, list[bytes | None]]:
        """The keys and values of a record batch."""
        if self._format in ("text", "bytes"):
            if "value" not in batch.schema.names:
                raise ValueError(
                    f"value={self._format!r} takes the column 'value', and the batch has {', '.join(batch.schema.names)}"
                )
            values = [as_bytes(one, "value") for one in batch.column("value").to_pylist()]
        elif self._format == "json":
            values = [*encode_columns(batch).split(b"\n")[:-1]]
        else:
            records = batch.to_pylist() if isinstance(self._format, RegistryFormat) else rows_of(batch)
            values = encode_all(self._value, records)
        if self._key is None:
            return None, values
        if isinstance(self._key, str):
            keys = batch.column(self._key)
            if self._format == "json" and self._encode_key is _as_key and pa.types.is_string(keys.type):
                return keys.cast(pa.binary()).to_pylist(), values  # the values hold these texts: they are UTF-8
            return self._keys(keys.to_pylist()), values
        return self._keys(list(map(self._key, rows_of(batch)))), values

    def _keys(self, found: list[Any]) -> list[bytes | None]:
        if self._encode_key is _as_key and set(map(type, found)) == {str}:
            return list(map(str.encode, found))
        return list(map(self._encode_key, found))

    def _topic_of(self, record: Any) -> str:
        found = self._topic(record)  # type: ignore[operator]
        if found not in self._topics:
            raise ValueError(f"the topic {found!r} is not among topics={list(self._topics)}")
        return found  # type: ignore[no-any-return]

    def _check_sizes(self, packed: Packed) -> None:
        """Raises `ValueError` for a record that the client would refuse: too late, when its checkpoint is complete."""
        longest = [max(map(len, filter(None, part or ())), default=0) for part in (packed.values, packed.keys)]
        if sum(longest) <= self._largest and packed.headers is None:
            return
        for i, value in enumerate(packed.values):
            key = packed.keys[i] if packed.keys else None
            size = len(value or b"") + len(key or b"")
            size += sum(len(name) + len(value or b"") for name, value in (packed.headers[i] if packed.headers else ()))
            if size > self._largest:
                raise ValueError(
                    f"a record of {size} bytes is too large for Kafka: options may raise 'message.max.bytes' above "
                    f"{self._largest + OVERHEAD}, and so must the topic's 'max.message.bytes'"
                )


def _subject(form: Any, topic: Any, part: str) -> str | None:
    """The subject of the keys or values in a schema registry."""
    named = form.subject if isinstance(form, RegistryFormat) else None
    return named or (f"{topic}-{part}" if isinstance(topic, str) else None)


def _topics(topic: Any, topics: Any, who: str) -> tuple[str, ...]:
    if isinstance(topic, str) and topic and topics is None:
        return (topic,)
    if not callable(topic):
        raise ConfigError(
            f"{who} takes the name of a topic, or a function of the record with topics=[...], not {topic!r}"
        )
    names = tuple(topics) if isinstance(topics, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{who}: a topic that is a function needs the names of all topics: topics=[...]")
    return names


def _found_keys(key: Any, records: Sequence[Any]) -> list[Any]:
    """What the function, or the field, of keys gives for each record."""
    if not isinstance(key, str):
        return list(map(key, records))
    if set(map(type, records)) == {dict}:
        return list(map(itemgetter(key), records))
    return [_field_of(key, record) for record in records]


def _field_of(key: str, record: Any) -> Any:
    return record[key] if hasattr(record, "keys") or hasattr(record, "__fields__") else getattr(record, key)


def _as_key(value: Any) -> bytes | None:
    return str(value).encode() if type(value) is int else as_bytes(value, "key")


def _headers(found: Headers) -> list[tuple[str, bytes | None]]:
    pairs = found.items() if isinstance(found, Mapping) else found or ()
    return [(name, as_bytes(value, "header")) for name, value in pairs]


def _number(partition: Any) -> int:
    if isinstance(partition, bool) or not hasattr(partition, "__index__") or partition < 0:
        raise TypeError(f"the partition of a record is a number from 0, not {partition!r}")
    return int(partition)


def _millis(time: Any) -> int | None:
    return None if time is None else floor_micros(time) // 1000
