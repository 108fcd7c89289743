"""The source of records of Kafka."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from tailrace.api.connectors import Enumerator, Reader, Source, SourceContext, SplitReader
from tailrace.connectors.kafka.client import check_options, check_servers, check_topics
from tailrace.connectors.kafka.enumerator import PartitionEnumerator, Place, Topics
from tailrace.connectors.kafka.formats import columns_by, decoder
from tailrace.connectors.kafka.reader import MORE, Form, KafkaReader
from tailrace.connectors.kafka.registry import RegistryFormat, check_format
from tailrace.connectors.schemas import declared_schema
from tailrace.elements.timestamps import floor_micros
from tailrace.errors import ConfigError

logger = logging.getLogger("tailrace")
STARTS = ("earliest", "latest", "committed")


class Kafka(Source):
    """A source of the records of topics of Kafka. Each partition is a split; a subtask reads all of its partitions with one
    consumer. Positions are in the job's checkpoints; the group's offsets are for those who watch it.

    - `servers`: "host:port,host:port", or a list of them. `topics`: a name, a list of names, or a compiled pattern of whole
      names. Topics and partitions that are found later, each `discover_every` seconds, are read from their beginning.
    - `start`: "earliest", "latest", "committed" (the offsets of `group`, "earliest" where it has none), a time (`datetime`
      or seconds since 1970), or a dict of offsets, by partition or (topic, partition). They become numbers once, when the
      job begins.
    - `until`: None for no end, or "latest", a time or a dict of offsets: the source ends before these offsets, which are
      numbers as soon as the job begins.
    - `format`: "json", "text", "bytes", a `tr.KafkaAvro` or `tr.KafkaProtobuf`, or a function of the bytes of a value. A
      tombstone is None. `record=True` gives `tr.KafkaRecord`s with key, value, headers, timestamp, topic, partition and
      offset, the key by `key_format`.
    - `schema`: DDL text, a `StructType` or a `pyarrow.Schema` of the values, for record batches instead of rows.
      `form="columns"` does so for "text" and "bytes", which have the one column `value`. `record=True` adds columns.
    - `isolation`: "read_committed", or "read_uncommitted" for records of open and aborted transactions as well.
    - `group`: the group whose offsets are committed behind complete checkpoints; by default it has the names of the job
      and of the operator.
    - `if_lost`: whether records that retention has removed before they were read "fail" the job, or are a warning and
      counted ("count").
    - `options`: settings of the client (librdkafka), such as those of TLS and SASL.

    Raises `ConfigError` for wrong arguments, and before a job starts for a server that does not answer and a topic that it
    does not have."""

    description = "kafka"

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        start: Place = "earliest",
        until: Place | None = None,
        format: Any = "json",
        key_format: Any = "bytes",
        schema: Any = None,
        form: Literal["rows", "columns"] | None = None,
        record: bool = False,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        group: str | None = None,
        if_lost: Literal["fail", "count"] = "fail",
        discover_every: float = 30.0,
        options: Mapping[str, Any] = {},
    ) -> None:
        who = "tr.sources.Kafka"
        self._topics = Topics(
            check_servers(servers, who),
            check_options(options, who),
            _names(topics, who),
            _place(start, "start", STARTS, who),
            None if until is None else _place(until, "until", ("latest",), who),
            _group(group, start, who),
        )
        self.bounded = until is not None
        for name, value, known in (
            ("isolation", isolation, ("read_committed", "read_uncommitted")),
            ("if_lost", if_lost, ("fail", "count")),
            ("form", form, (None, "rows", "columns")),
        ):
            if value not in known:
                raise ConfigError(f"{who}: {name} must be one of {', '.join(map(repr, known))}, not {value!r}")
        if isinstance(discover_every, bool) or not isinstance(discover_every, (int, float)) or discover_every <= 0:
            raise ConfigError(f"{who}: discover_every is a number of seconds, not {discover_every!r}")
        self._isolation, self._if_lost, self._every = isolation, if_lost, float(discover_every)
        self._format, self._key_format, self._whole = format, key_format, record
        self._decode, self._decode_key = decoder(format, who), decoder(key_format, f"{who}: key_format")
        self._decodes = True
        self._values = _schema(schema, form, format, who)
        if self._values is not None and key_format != "bytes":
            raise ConfigError(f"{who}: in columns keys are bytes; key_format is for rows: leave out schema= and form=")
        if self._values is not None:
            columns_by(format, self._values, who)
            self.form = "columns"
            self.schema = self._values if not record else _with_more(self._values, who)
            self.columns = tuple(self.schema.names)

    def __repr__(self) -> str:
        return f"tr.sources.Kafka({self._topics.servers!r}, {_text_of(self._topics.names)})"

    def check(self) -> None:
        topics = self._topics
        names = topics.names
        found = check_topics(topics.servers, topics.options, list(names) if isinstance(names, tuple) else [])
        if isinstance(names, re.Pattern) and not topics.select(found):
            text = f"Kafka at {topics.servers} has no topic whose name matches {names.pattern!r}"
            if self.bounded:
                raise ConfigError(text)
            logger.warning("%s yet", text)
        for form in (self._format, self._key_format):
            if isinstance(form, RegistryFormat):
                check_format(form, None)

    def splits(self, parallelism: int) -> Sequence[Any]:
        raise NotImplementedError("partitions are found by the enumerator")

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        return PartitionEnumerator(self._topics, self._every, position)

    def reader(self, split: Any, position: Any = None) -> Reader:
        raise NotImplementedError("one reader has all partitions of a subtask")

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        group = self._topics.group or f"tailrace.{ctx.job}.{ctx.uid}"
        decode, decode_key = (self._decode, self._decode_key) if self._decodes else (bytes, bytes)
        columns = None if self._values is None else columns_by(self._format, self._values, "tr.sources.Kafka")
        form = Form(decode, decode_key, columns, self._whole)
        committed = self._isolation == "read_committed"
        return KafkaReader(self._topics.servers, self._topics.options, group, form, committed, self._if_lost)

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]] | None:
        if self._values is not None:
            return None
        made = copy.copy(self)
        made._decodes = False
        return made, Parse(self._decode, self._decode_key, self._whole)


class Parse:
    """The function that decodes a record whose key and value are bytes."""

    def __init__(self, decode: Any, decode_key: Any, whole: bool) -> None:
        self.decode, self.decode_key, self.whole = decode, decode_key, whole

    def __call__(self, raw: Any) -> Any:
        if not self.whole:
            return None if raw is None else self.decode(raw)
        key, value = raw.key, raw.value
        return raw._replace(
            key=None if key is None else self.decode_key(key), value=None if value is None else self.decode(value)
        )


def _names(topics: Any, who: str) -> tuple[str, ...] | re.Pattern[str]:
    if isinstance(topics, re.Pattern) and isinstance(topics.pattern, str):
        return topics
    names = (topics,) if isinstance(topics, str) else tuple(topics) if isinstance(topics, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{who} takes the name of a topic, a list of names or a compiled pattern, not {topics!r}")
    return tuple(dict.fromkeys(names))


def _text_of(names: tuple[str, ...] | re.Pattern[str]) -> str:
    if isinstance(names, re.Pattern):
        return f"re.compile({names.pattern!r})"
    return repr(names[0] if len(names) == 1 else list(names))


def _place(place: Any, setting: str, names: tuple[str, ...], who: str) -> Any:
    if isinstance(place, Mapping) and place:
        for key, offset in place.items():
            partition = key[1] if isinstance(key, tuple) and len(key) == 2 else key
            if type(partition) is not int or type(offset) is not int or offset < 0:
                raise ConfigError(
                    f"{who}: offsets of {setting} are numbers from 0 by partition or (topic, partition), "
                    f"not {key!r}: {offset!r}"
                )
        return dict(place)
    if place in names or (isinstance(place, (int, float, datetime)) and not isinstance(place, bool)):
        if not isinstance(place, str):
            floor_micros(place)  # raises for what is no time
        return place
    raise ConfigError(
        f"{who}: {setting} is {', '.join(map(repr, names))}, a time (datetime or seconds since 1970) or a dict of offsets, "
        f"not {place!r}"
    )


def _group(group: Any, start: Any, who: str) -> str | None:
    if group is None and isinstance(start, str) and start == "committed":
        raise ConfigError(f'{who}: start="committed" needs the group whose offsets it takes: group="..."')
    if group is not None and (not isinstance(group, str) or not group):
        raise ConfigError(f"{who}: group is the name of a consumer group, not {group!r}")
    return group


def _schema(schema: Any, form: Any, format: Any, who: str) -> pa.Schema | None:
    """The schema of the values in columns; None for rows."""
    if schema is None and form != "columns":
        return None
    if format in ("text", "bytes"):
        if schema is not None:
            raise ConfigError(
                f"{who}: values in the format {format!r} have no schema; leave it out, and give form='columns'"
            )
        return pa.schema([("value", pa.string() if format == "text" else pa.binary())])
    if schema is None or form == "rows":
        raise ConfigError(f"{who}: columns need a schema of the values, and rows none: schema='id long, name string'")
    return declared_schema(schema, who)


def _with_more(values: pa.Schema, who: str) -> pa.Schema:
    both = [name for name in MORE.names if name in values.names]
    if both:
        raise ConfigError(
            f"{who}: record=True adds a column {both[0]!r}, and the schema of the values has one; rename it there"
        )
    return pa.schema([*values, *MORE])
