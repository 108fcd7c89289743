"""Streams of JetStream as a source: one split for each stream, positions are sequences."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.api.connectors import Source, SourceContext, SplitReader
from tailrace.connectors.fetched import (
    Fetched,
    FetchedEntry,
    FetchedSplit,
    Fetcher,
    FetchReader,
    LostEntries,
    decode_named,
)
from tailrace.connectors.files.jsoncolumns import JsonColumns
from tailrace.connectors.nats import server
from tailrace.connectors.nats.sink import MARKS, is_covered
from tailrace.connectors.schemas import declared_schema
from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords

FETCHED = 500
FETCH_WAIT = 0.5
"""Seconds for which the server waits for messages of one fetch."""


class NatsMessage(NamedTuple):
    """A message of a stream."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    timestamp: float
    """Seconds since 1970 at which the server has stored it."""


class NatsSplit(NamedTuple):
    """A stream, to be read behind `start` and up to `until`, which are sequences."""

    stream: str
    start: int
    until: int | None
    created: str = ""
    """When the server has made the stream: one that was deleted and made anew has another time. Empty: not known."""


FORMATS: dict[str, Callable[[NatsMessage], Any]] = {
    "json": lambda message: json.loads(message.data),
    "text": lambda message: message.data.decode(),
    "bytes": lambda message: message.data,
}
"""Name of a format -> its function."""


class Nats(Source):
    """A source of the messages of a stream of JetStream, or of several, in the order of their sequences.

    - `servers`: `nats://user:password@host:4222`, or a list of URLs of one cluster; `tls://` with TLS.
    - `subject`: a subject, with wildcards or without: only its messages are read. None: all but marks of `tr.sinks.Nats`.
    - `start`: "earliest", "latest" (messages that come later), or a sequence (messages behind it).
    - `until`: None for a source without end, "latest" (the newest message when the job starts), or a sequence, which is
      the last.
    - `format`: "json", "text", "bytes", or a function of a message, which has `subject`, `data`, `headers`, `sequence` and
      `timestamp`.
    - `schema`: DDL text, a `StructType` or a `pyarrow.Schema` of JSON objects, for record batches instead of rows.
    - `on_lost`: "fail" or "ignore", if messages were removed by the limits of the stream that were not read.
    - `options`: more options of the client's `connect`.

    Raises `ConfigError` for a wrong argument, and before the job starts for a server that does not answer."""

    description = "nats"

    def __init__(
        self,
        servers: str | Sequence[str],
        stream: str | Sequence[str],
        *,
        subject: str | None = None,
        start: str | int = "earliest",
        until: str | int | None = None,
        format: str | Callable[[NatsMessage], Any] = "json",
        schema: Any = None,
        on_lost: str = "fail",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.servers = server.check_servers(servers, "Nats")
        self.streams = [stream] if isinstance(stream, str) else list(stream)
        if not self.streams or not all(isinstance(one, str) and one for one in self.streams):
            raise ConfigError(f"Nats takes the name of a stream or a list of names, not {stream!r}")
        if start not in ("earliest", "latest") and not _is_sequence(start):
            raise ConfigError(f'Nats: start is "earliest", "latest" or a sequence, not {start!r}')
        if until not in (None, "latest") and not _is_sequence(until):
            raise ConfigError(f'Nats: until is None, "latest" or a sequence, not {until!r}')
        if not callable(format) and format not in FORMATS:
            raise ConfigError(f'Nats: format is "json", "text", "bytes" or a function of a message, not {format!r}')
        if on_lost not in ("fail", "ignore"):
            raise ConfigError(f'Nats: on_lost is "fail" or "ignore", not {on_lost!r}')
        self.subject, self.start, self.until = subject, start, until
        self.format, self.on_lost, self.options = format, on_lost, dict(options or {})
        self.bounded = until is not None
        if schema is not None:
            if format != "json":
                raise ConfigError("Nats: columns are those of JSON objects: leave out format=, or schema=")
            self.form, self.schema = "columns", declared_schema(schema, "Nats")
            self.columns = tuple(self.schema.names)
            JsonColumns(self.schema, "Nats")

    def __repr__(self) -> str:
        return f"Nats({hide_passwords(', '.join(self.servers))!r}, {', '.join(self.streams)!r})"

    def check(self) -> None:
        for one in self.streams:
            self._check(one)

    def _check(self, stream: str) -> None:
        server.ask(self.servers, self.options, f"Nats({stream!r})", lambda jetstream: jetstream.stream_info(stream))

    def splits(self, parallelism: int) -> Sequence[NatsSplit]:
        """The streams. "latest" becomes a sequence here, once: a restored job goes on from that."""
        client = server.NatsClient(self.servers, self.options)
        try:
            return [self._split(one, client.run(client.jetstream.stream_info(one))) for one in self.streams]
        finally:
            client.close()

    def _split(self, stream: str, info: Any) -> NatsSplit:
        newest = info.state.last_seq
        start = 0 if self.start == "earliest" else newest if self.start == "latest" else int(self.start)
        until = newest if self.until == "latest" else None if self.until is None else int(self.until)
        return NatsSplit(stream, start, until, str(info.created or ""))

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return FetchReader(self._open)

    def _open(self, split: Any, position: int | None, wake: Callable[[], None]) -> FetchedSplit:
        split = NatsSplit(*split)
        start = split.start if position is None else position
        columns = None if self.schema is None else JsonColumns(self.schema, "Nats")

        def make(messages: list[NatsMessage]) -> Any:
            return list(map(self.parse, messages)) if columns is None else columns([one.data for one in messages])

        def parse(messages: list[NatsMessage]) -> Any:
            return decode_named(messages, make, lambda one: f"message {one.sequence} of stream {split.stream!r}")

        return FetchedSplit(NatsFetcher(self, split, position), start, split.until, parse, wake)

    def parse(self, message: NatsMessage) -> Any:
        """The record of a message."""
        return (self.format if callable(self.format) else FORMATS[self.format])(message)

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]] | None:
        if self.form == "columns":
            return None
        raw = copy.copy(self)
        raw.format = _raw
        return raw, self.parse


class NatsFetcher(Fetcher):
    """The messages of one stream, by a consumer that the server forgets."""

    def __init__(self, source: Nats, split: NatsSplit, position: int | None) -> None:
        self._source, self._split = source, split
        self._at = split.start if position is None else position
        """Sequence up to which messages are fetched."""
        self._begun = position is not None
        """False while nothing was read: what was removed before is not missing."""
        self._client: server.NatsClient | None = None
        self._subscription: Any = None
        self._consumed = 0
        """Number of messages that the consumer has delivered."""
        self._caught_up = True
        """True if there may be nothing more at the moment."""

    def fetch(self) -> Fetched:
        if self._client is None:
            self._client = server.NatsClient(self._source.servers, self._source.options)
            self._subscription = self._client.run(self._subscribe(self._client.jetstream))
        found = self._client.run(self._fetch(self._client.jetstream))
        # Only here: what is fetched and does not arrive, because the request takes too long, is fetched once more.
        self._consumed += len(found.entries)
        for one in (*found.entries[-1:], *([] if found.passed is None else [found.passed])):
            self._at, self._begun = one.order, True
        return found

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _subscribe(self, jetstream: Any) -> Any:
        api = server.client_module().js.api
        info = await self._info(jetstream)
        state, created = info.state, self._split.created
        if self._begun and self._source.on_lost == "fail" and created not in ("", str(info.created or "")):
            raise LostEntries(
                f"stream {self._split.stream!r} was read up to {self._at}, and was deleted and made anew since{_ANYWAY}"
            )
        if state.last_seq < self._at and self._begun:
            if self._source.on_lost == "fail":
                raise LostEntries(
                    f"stream {self._split.stream!r} was read up to {self._at}, and its newest sequence is "
                    f"{state.last_seq}: it was made anew, or the server came back without its last messages{_ANYWAY}"
                )
            self._at = 0
        self._check_first(state.first_seq, self._at)
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._at + 1,
            ack_policy=api.AckPolicy.NONE,
            filter_subject=self._source.subject,
            mem_storage=True,
            inactive_threshold=60.0,
        )
        self._consumed, self._caught_up = 0, True
        subject = self._source.subject or ">"
        return await jetstream.pull_subscribe(subject, durable=None, stream=self._split.stream, config=config)

    async def _fetch(self, jetstream: Any) -> Fetched:
        state = (await self._info(jetstream)).state if self._caught_up else None
        try:
            found = await self._subscription.fetch(FETCHED, timeout=FETCH_WAIT)
        except server.client_module().errors.TimeoutError:
            info = await self._subscription.consumer_info()  # raises if the consumer is gone
            self._caught_up = not info.num_pending
            behind = info.num_pending or info.delivered.consumer_seq != self._consumed
            if behind or state is None or state.last_seq < self._at:
                return Fetched((), pending=info.num_pending)
            self._check_first(state.first_seq, self._at)
            return Fetched((), FetchedEntry(state.last_seq, state.last_seq, None), 0)
        entries: list[FetchedEntry] = []
        for number, one in enumerate(found, self._consumed + 1):
            entries.append(await self._entry(jetstream, one, number, entries[-1].order if entries else self._at))
        pending = found[-1].metadata.num_pending
        self._caught_up = not pending
        return Fetched(entries, pending=pending)

    async def _entry(self, jetstream: Any, message: Any, number: int, before: int) -> FetchedEntry:
        """The entry of a message, which is the consumer's of this number, and follows sequence `before`."""
        meta = message.metadata
        sequence = meta.sequence.stream
        if meta.sequence.consumer != number:
            raise ConnectionError("messages were lost on their way from the server")  # a new consumer fetches them
        if sequence > before + 1:
            self._check_first((await self._info(jetstream)).state.first_seq, before)
        if self._source.subject is None and is_covered(f"{MARKS}.>", message.subject):
            return FetchedEntry(sequence, sequence, None)
        headers, stored = message.headers or {}, meta.timestamp.timestamp()
        return FetchedEntry(sequence, sequence, NatsMessage(message.subject, message.data, headers, sequence, stored))

    async def _info(self, jetstream: Any) -> Any:
        return await jetstream.stream_info(self._split.stream)

    def _check_first(self, first: int, at: int) -> None:
        """Checks that no message behind sequence `at` was removed by the limits of the stream."""
        if first > at + 1 and (self._begun or at > self._at) and self._source.on_lost == "fail":
            raise LostEntries(
                f"stream {self._split.stream!r} was read up to {at}, and begins at {first}: messages between were "
                f"removed unread, by its limits or by a purge{_ANYWAY}"
            )


_ANYWAY = '. To go on with what is there give the source on_lost="ignore"'


def _is_sequence(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _raw(message: NatsMessage) -> Any:
    return message
