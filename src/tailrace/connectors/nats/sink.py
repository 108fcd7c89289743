"""A sink into a stream of JetStream: atomic batches, of which each has a mark.

The mark is a message on a subject of its own, in the stream of the records. A batch is stored only if the newest mark is
still the one that the publisher knows, which the server compares. A batch has at most 1,000 messages, so a large transaction
is several batches, each with a mark that holds how far it goes; another publisher goes on from there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec
import xxhash

from tailrace.connectors.files.jsonvalues import encode_json
from tailrace.connectors.nats import server
from tailrace.connectors.transactional import Scope, TransactionalSink
from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords

LARGEST_BATCH = 1_000
"""Messages of a batch, with its mark."""
BATCH_BYTES = 8 << 20
WRONG_SEQUENCE = 10071
"""Code of the server's error for a mark that is not the newest."""
REFUSALS = {10054: "a message is too large for it", 10174: "it does not allow atomic batches (allow_atomic)"}
"""Codes of the server's errors that would come again, and what they mean."""
MARKS = "tailrace.marks"
"""The beginning of the subjects of marks."""
HEADERS = 512
"""Bytes of a message for headers, about."""
VALUES: dict[str, Callable[[Any], bytes]] = {
    "json": encode_json,
    "text": lambda record: str(record).encode(),
    "bytes": bytes,
}
"""Name of a format -> its function."""


class BatchMark(msgspec.Struct):
    """The payload of a mark."""

    scope: str
    counter: int
    """The transaction that its batch belongs to."""
    written: int
    """Number of records of the transaction that are in this batch and those before it."""
    whole: bool
    """True if that is all."""
    last: int | None = None
    """The newest transaction that is stored as a whole."""


class KnownMark(NamedTuple):
    """The newest mark of a scope, and its sequence in the stream."""

    mark: BatchMark | None
    sequence: int


class Nats(TransactionalSink):
    """A sink that publishes each record as a message to a stream of JetStream, exactly once.

    - `servers`: `nats://user:password@host:4222`, or a list of URLs of one cluster; `tls://` with TLS.
    - `subject`: the subject, or a function of the record.
    - `stream`: the name of the stream; by default the one that has `subject`.
    - `value`: "json", "text", "bytes", or a function of the record that returns bytes. Rows and named tuples are JSON
      objects.
    - `marks`: the first part of the subjects for marks, "tailrace.marks.STREAM" by default. The stream must have
      `MARKS.>` among its subjects, and allow atomic batches.
    - `options`: more options of the client's `connect`.
    - `lost_output`: "fail" or "ignore", if the server has lost what was committed.

    Raises `ConfigError` for a wrong argument, and before the job starts for a server or stream that does not fit."""

    description = "nats"
    marks_expire = True  # by the limits of the stream, as its records

    def __init__(
        self,
        servers: str | Sequence[str],
        subject: str | Callable[[Any], str],
        *,
        stream: str | None = None,
        value: str | Callable[[Any], bytes] = "json",
        marks: str | None = None,
        options: Mapping[str, Any] | None = None,
        lost_output: str = "fail",
    ) -> None:
        self.servers = server.check_servers(servers, "Nats")
        if not callable(subject) and not (isinstance(subject, str) and subject and not set("*> ") & set(subject)):
            raise ConfigError(
                f"Nats: subject is a subject without wildcards or a function of a record, not {subject!r}"
            )
        if callable(subject) and stream is None:
            raise ConfigError("Nats: give stream=, the name of the stream, where the subject depends on the record")
        if not callable(value) and value not in VALUES:
            raise ConfigError(f'Nats: value is "json", "text", "bytes" or a function of a record, not {value!r}')
        if lost_output not in ("fail", "ignore"):
            raise ConfigError(f'Nats: lost_output is "fail" or "ignore", not {lost_output!r}')
        self.subject, self.stream, self.value, self.marks = subject, stream, value, marks
        self.options = dict(options or {})
        self.lost_output = lost_output  # type: ignore[assignment]
        self.largest = 1 << 20

    def __repr__(self) -> str:
        subject = self.subject if isinstance(self.subject, str) else getattr(self.subject, "__name__", "?")
        return f"Nats({hide_passwords(', '.join(self.servers))!r}, {subject!r})"

    def check(self) -> None:
        server.ask(self.servers, self.options, repr(self), self._check)

    async def _check(self, jetstream: Any) -> None:
        stream = self.stream or await jetstream.find_stream_name_by_subject(self.subject)
        config = (await jetstream.stream_info(stream)).config
        marks = self.marks or f"{MARKS}.{stream}"
        has = [one for one in config.subjects or [] if is_covered(one, f"{marks}.x")]
        if not config.allow_atomic or not has:
            raise ConfigError(
                f"{self!r}: stream {stream!r} needs atomic batches and a subject for marks: set allow_atomic, and add the "
                f"subject {marks}.> (nats stream edit {stream} --allow-batch, server 2.12 or newer)"
            )
        limit = config.max_msg_size or -1
        payload = jetstream._nc.max_payload
        self.largest = min(payload, limit if limit > 0 else payload) - HEADERS

    def encode(self, batch: Any) -> Iterable[bytes]:
        value = self.value if callable(self.value) else VALUES[self.value]
        subject = self.subject
        return [self._piece(subject(one) if callable(subject) else subject, value(one)) for one in batch]

    def _piece(self, subject: str, data: bytes) -> bytes:
        if len(data) > self.largest:
            raise ValueError(f"a message has {len(data):,} bytes, and the server takes {self.largest:,}")
        return _encode((subject, data))

    def transaction(self, scope: Scope) -> NatsTransaction:
        return NatsTransaction(self, scope)


class NatsTransaction:
    """The transactions of one scope."""

    def __init__(self, sink: Nats, scope: Scope) -> None:
        self._scope = scope.name
        self._servers = sink.servers
        with server.refusing(sink.servers, "a connection"):
            self._client = server.NatsClient(sink.servers, sink.options)
        try:
            with server.refusing(sink.servers, f"subject {sink.subject!r}", self._client):
                found = sink.stream or self._client.run(
                    self._client.jetstream.find_stream_name_by_subject(sink.subject)
                )
        except BaseException:
            self._client.close()
            raise
        self._stream: str = found
        self._subject = f"{sink.marks or f'{MARKS}.{found}'}.{xxhash.xxh3_128_hexdigest(scope.name.encode())}"
        self._known: KnownMark | None = None

    def last(self) -> int | None:
        with self._refusing():
            self._known = self._client.run(self._read())
        mark = self._known.mark
        return None if mark is None else mark.last

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        with self._refusing():
            self._client.run(self._commit(counter, [_decode(one) for one in pieces]), 60 + len(pieces) / 100)

    def _refusing(self) -> AbstractContextManager[None]:
        return server.refusing(self._servers, f"stream {self._stream!r}", self._client)

    def close(self) -> None:
        self._client.close()

    async def _read(self) -> KnownMark:
        """The newest mark, from the server."""
        missing = server.client_module().js.errors.NotFoundError
        try:
            found = await self._client.jetstream.get_last_msg(self._stream, self._subject)
        except missing as error:
            if error.err_code != 10037:  # no message; another one is that there is no stream
                raise
            return KnownMark(None, 0)
        return KnownMark(msgspec.json.decode(found.data, type=BatchMark), found.seq)

    async def _commit(self, counter: int, records: list[tuple[str, bytes]]) -> None:
        for _ in range(2 + 2 * len(records)):
            known = self._known or await self._read()
            mark = known.mark
            if mark is not None and (mark.last or 0) >= counter:
                return
            start = mark.written if mark is not None and mark.counter == counter else 0
            end = _end(records, start)
            last = counter if end == len(records) else None if mark is None else mark.last
            new = BatchMark(self._scope, counter, end, end == len(records), last)
            self._known = None  # until the batch is stored
            sequence = await self._store(new, known.sequence, records[start:end])
            self._known = None if sequence is None else KnownMark(new, sequence)
        raise RuntimeError(f"stream {self._stream!r}: other publishers write marks all the time")

    async def _store(self, mark: BatchMark, expected: int, records: Sequence[tuple[str, bytes]]) -> int | None:
        """Stores a batch. Returns the sequence of its mark, or None if `expected` is not that of the newest mark."""
        connection, batch = self._client.connection, uuid.uuid4().hex
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        messages = [(self._subject, msgspec.json.encode(mark), headers), *((*record, {}) for record in records)]
        for number, (subject, data, more) in enumerate(messages, 1):
            more = {**more, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == len(messages):
                more["Nats-Batch-Commit"] = "1"
            elif number > 1:
                await connection.publish(subject, data, headers=more)
                continue
            answer = await connection.request(subject, data, timeout=server.REQUEST_TIMEOUT, headers=more)
            found = json.loads(answer.data) if answer.data else {}
            if "error" in found:
                self._check_conflict(found["error"])
                return None
        return int(found["seq"]) - len(messages) + 1

    def _check_conflict(self, error: Mapping[str, Any]) -> None:
        """Raises `RuntimeError`, or `ConfigError` for an error that would come again, unless the server has refused a batch
        because of its mark."""
        code = error.get("err_code")
        if code in REFUSALS:
            shown = hide_passwords(", ".join(self._servers))
            raise ConfigError(f"NATS at {shown}: stream {self._stream!r}: {REFUSALS[code]}: {error.get('description')}")
        if code != WRONG_SEQUENCE:
            raise RuntimeError(f"stream {self._stream!r}: {error.get('description')} ({error.get('err_code')})")


def _end(records: Sequence[tuple[str, bytes]], start: int) -> int:
    """The end of the batch that begins with record `start`."""
    end, size = start, 0
    while end < len(records) and end - start < LARGEST_BATCH - 1 and size <= BATCH_BYTES:
        size += len(records[end][1])
        end += 1
    return end


def is_covered(pattern: str, subject: str) -> bool:
    """True if a subject with wildcards matches another one without."""
    parts, given = pattern.split("."), subject.split(".")
    if parts[-1] == ">":
        parts, given = parts[:-1], given[: len(parts) - 1] if len(given) >= len(parts) else []
    return len(parts) == len(given) and all(part in ("*", one) for part, one in zip(parts, given, strict=True))


_encode = msgspec.msgpack.Encoder().encode
_decode: Any = msgspec.msgpack.Decoder(tuple[str, bytes]).decode
