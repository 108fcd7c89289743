"""Streams of JetStream as a source: one split for each stream, positions are sequences."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.api.connectors import AssignedSplit, Source, SourceContext, SourceLag, SplitReader
from tailrace.connectors.nats import server
from tailrace.connectors.nats.sink import MARKS, is_covered
from tailrace.errors import ConfigError, error_text
from tailrace.passwords import hide_passwords

AHEAD = 5_000
"""Number of messages of a stream that are fetched before they are read, about."""
FETCHED = 500
FETCH_WAIT = 0.5
"""Seconds for which the server waits for messages of one fetch."""
PATIENCE = 60.0
"""Seconds for which a reader waits for a server that is away, before it fails."""
FALLBACK = 1.0
"""Seconds until a reader without messages is read again, if nothing wakes it."""


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
            return [
                self._split(one, client.run(client.jetstream.stream_info(one)).state.last_seq) for one in self.streams
            ]
        finally:
            client.close()

    def _split(self, stream: str, newest: int) -> NatsSplit:
        start = 0 if self.start == "earliest" else newest if self.start == "latest" else int(self.start)
        until = newest if self.until == "latest" else None if self.until is None else int(self.until)
        return NatsSplit(stream, start, until)

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return NatsReader(self)

    def parse(self, message: NatsMessage) -> Any:
        """The record of a message."""
        return (self.format if callable(self.format) else FORMATS[self.format])(message)

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]]:
        raw = copy.copy(self)
        raw.format = _raw
        return raw, self.parse


class NatsReader(SplitReader):
    """A reader of all streams of a subtask. Each is fetched by a thread ahead of the reading."""

    def __init__(self, source: Nats) -> None:
        self._source = source
        self._streams: dict[int, FetchedStream] = {}
        self._paused: frozenset[int] = frozenset()

    def assign(self, splits: Sequence[AssignedSplit]) -> None:
        for number, split, position in splits:
            self._streams[number] = FetchedStream(self._source, NatsSplit(*split), position, lambda: self.wake())

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            self._streams.pop(number).close()

    def pause(self, splits: Collection[int]) -> None:
        self._paused = frozenset(splits)

    def read(self, limit: int, now: float) -> Iterator[tuple[int, Any]]:
        for number, stream in list(self._streams.items()):
            if number not in self._paused and limit > 0:
                records = stream.read(limit)
                limit -= len(records or ())
                yield number, records

    def position(self, split: int) -> int:
        return self._streams[split].position

    def next_at(self, now: float) -> float:
        return now + FALLBACK

    def lag(self, now: float) -> Mapping[int, SourceLag]:
        return {number: SourceLag(records=stream.pending) for number, stream in self._streams.items()}

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class FetchedStream:
    """The messages of one stream, which a thread fetches in front of the reader."""

    def __init__(self, source: Nats, split: NatsSplit, position: int | None, wake: Callable[[], None]) -> None:
        self.position = split.start if position is None else position
        self.pending: int | None = None
        """Number of messages that are not fetched yet, as of the newest fetch."""
        self._source, self._split, self._wake = source, split, wake
        self._fetched: deque[NatsMessage] = deque()
        self._at = self.position
        """Sequence up to which messages are fetched."""
        self._passed = self.position
        """Sequence up to which there is nothing more to fetch at the moment."""
        self._begun = position is not None
        self._error: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-nats-reader", daemon=True)
        self._thread.start()

    def read(self, limit: int) -> list[Any] | None:
        """At most `limit` records; None behind the last one."""
        until = self._split.until
        messages: list[NatsMessage] = []
        passed = self._passed  # before the queue is looked at
        while self._fetched and len(messages) < limit and (until is None or self._fetched[0].sequence <= until):
            messages.append(self._fetched.popleft())
        if messages:
            records = [self._source.parse(one) for one in messages if not self._is_mark(one)]
            self.position = messages[-1].sequence
            return records
        if until is not None and (self.position >= until or self._fetched or passed >= until):
            return None
        if self._error is not None:
            raise self._error
        if not self._fetched:
            self.position = max(self.position, passed)
        return []

    def _is_mark(self, message: NatsMessage) -> bool:
        return self._source.subject is None and is_covered(f"{MARKS}.>", message.subject)

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    # In the thread.

    def _run(self) -> None:
        away_since: float | None = None
        while not self._closed.is_set():
            try:
                client = server.NatsClient(self._source.servers, self._source.options)
                try:
                    client.run(self._fetch(client.jetstream), timeout=None)
                finally:
                    client.close()
                away_since = None
            except LostMessages as error:
                self._fail(error)
                return
            except Exception as error:
                if self._progress:
                    away_since = None
                self._progress = False
                away_since = time.monotonic() if away_since is None else away_since
                if time.monotonic() - away_since > PATIENCE:
                    self._fail(ConnectionError(f"{self._source!r}: {error_text(error)}"))
                    return
                self._closed.wait(0.5)

    _progress = False

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    async def _fetch(self, jetstream: Any) -> None:
        """Fetches on from where it was, until the reader is closed. Raises the errors of the client."""
        nats = server.client_module()
        subscription = await self._subscribe(jetstream)
        try:
            while not self._closed.is_set():
                if len(self._fetched) >= AHEAD:
                    await asyncio.sleep(0.005)
                    continue
                newest = (
                    (await jetstream.stream_info(self._split.stream)).state.last_seq if self.pending in (None, 0) else 0
                )
                try:
                    found = await subscription.fetch(FETCHED, timeout=FETCH_WAIT)
                except nats.errors.TimeoutError:
                    info = await subscription.consumer_info()  # raises if the consumer is gone
                    self.pending = info.num_pending
                    if not info.num_pending and info.delivered.consumer_seq == self._consumed:
                        self._pass(newest)
                    continue
                await self._add(jetstream, found)
        finally:
            await subscription.unsubscribe()

    async def _subscribe(self, jetstream: Any) -> Any:
        api = server.client_module().js.api
        state = (await jetstream.stream_info(self._split.stream)).state
        if state.last_seq < self._at and self._begun:
            if self._source.on_lost == "fail":
                raise LostMessages(
                    f"stream {self._split.stream!r} was read up to {self._at}, and its newest sequence is "
                    f"{state.last_seq}: it was made anew, or the server came back without its last messages{_ANYWAY}"
                )
            self._at = self._passed = 0
        self._check_first(state.first_seq)
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._at + 1,
            ack_policy=api.AckPolicy.NONE,
            filter_subject=self._source.subject,
            mem_storage=True,
            inactive_threshold=60.0,
        )
        self._consumed = 0
        return await jetstream.pull_subscribe(
            self._source.subject or ">", durable=None, stream=self._split.stream, config=config
        )

    async def _add(self, jetstream: Any, found: Sequence[Any]) -> None:
        for one in found:
            meta = one.metadata
            if meta.sequence.consumer != self._consumed + 1:
                raise ConnectionError("messages were lost on their way from the server")  # a new consumer fetches them
            if meta.sequence.stream > self._at + 1:
                self._check_first((await jetstream.stream_info(self._split.stream)).state.first_seq)
            self._consumed += 1
            self._fetched.append(
                NatsMessage(one.subject, one.data, one.headers or {}, meta.sequence.stream, meta.timestamp.timestamp())
            )
            self._at = meta.sequence.stream
            self._begun = self._progress = True
            self.pending = meta.num_pending
        self._wake()

    def _pass(self, newest: int) -> None:
        """Notes that there is nothing to fetch up to a sequence."""
        self._progress = True
        if newest > self._at:
            self._at = newest
        self._passed = self._at
        self._wake()

    def _check_first(self, first: int) -> None:
        """Checks that no message behind the position was removed by the limits of the stream."""
        if first > self._at + 1 and self._begun and self._source.on_lost == "fail":
            raise LostMessages(
                f"stream {self._split.stream!r} was read up to {self._at}, and begins at {first}: messages between were "
                f"removed unread, by its limits or by a purge{_ANYWAY}"
            )


_ANYWAY = '. To go on with what is there give the source on_lost="ignore"'


class LostMessages(LookupError):
    """The error for messages that are gone and were not read."""


def _is_sequence(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _raw(message: NatsMessage) -> Any:
    return message
