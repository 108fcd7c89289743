"""Streams of Redis and Valkey as a source: one split for each stream, positions are ids of entries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

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
from tailrace.connectors.redis import server
from tailrace.connectors.schemas import declared_schema
from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords

Id = tuple[int, int]
"""Id of an entry: milliseconds since 1970, and a number within them."""
BEGINNING: Id = (0, 0)
LARGEST = (1 << 64) - 1
FETCHED = 500
WAIT_MILLISECONDS = 500
"""Time for which the server waits for an entry."""


class StreamSplit(NamedTuple):
    """A stream, to be read behind `start` and up to `until`."""

    stream: str
    start: str
    until: str | None


class RedisStream(Source):
    """A source of the entries of a stream, or of several, in the order of their ids. It belongs to no consumer group.

    - `url`: `redis://user:password@host:6379/0`, `rediss://` with TLS, `unix://`.
    - `start`: "earliest", "latest" (entries that come later), an id (entries behind it), or seconds since 1970.
    - `until`: None for a source without end, "latest" (the newest entry when the job starts), or an id, which is the last.
    - `format`: "text" for dicts of texts, "bytes" for dicts of bytes, or a function of the id, a text, and the fields, a
      dict of bytes.
    - `schema`: DDL text, a `StructType` or a `pyarrow.Schema` of fields that are read from their texts, for record batches
      instead of rows. A field that an entry does not have is null.
    - `on_lost`: "fail" or "ignore", if entries were removed that were not read, or the stream went back.

    Raises `ConfigError` for a wrong argument, and before the job starts for a server that does not answer."""

    description = "redis stream"

    def __init__(
        self,
        url: str,
        stream: str | Sequence[str],
        *,
        start: str | float = "earliest",
        until: str | None = None,
        format: str | Callable[[str, Mapping[bytes, bytes]], Any] = "text",
        schema: Any = None,
        on_lost: str = "fail",
    ) -> None:
        self.url = server.check_url(url, "RedisStream")
        self.streams = [stream] if isinstance(stream, str) else list(stream)
        if not self.streams or not all(isinstance(one, str) and one for one in self.streams):
            raise ConfigError(f"RedisStream takes the name of a stream or a list of names, not {stream!r}")
        if isinstance(until, str) and until != "latest":
            parse_id(until, "until")
        if until is not None and not isinstance(until, str):
            raise ConfigError(f'RedisStream: until is None, "latest" or an id such as "1700000000000-0", not {until!r}')
        if not callable(format) and format not in FORMATS:
            raise ConfigError(f'RedisStream: format is "text", "bytes" or a function, not {format!r}')
        if on_lost not in ("fail", "ignore"):
            raise ConfigError(f'RedisStream: on_lost is "fail" or "ignore", not {on_lost!r}')
        self.start = _start_of(start)
        self.until, self.format, self.on_lost = until, format, on_lost
        self.bounded = until is not None
        if schema is not None:
            if format != "text":
                raise ConfigError("RedisStream: columns are read from texts: leave out format=, or schema=")
            self.form, self.schema = "columns", declared_schema(schema, "RedisStream")
            self.columns = tuple(self.schema.names)
            _check_types(self.schema)

    def __repr__(self) -> str:
        return f"RedisStream({hide_passwords(self.url)!r}, {', '.join(self.streams)!r})"

    def check(self) -> None:
        for one in self.streams:
            server.check_type(self.url, f"RedisStream({one!r})", one, "stream")

    def splits(self, parallelism: int) -> Sequence[StreamSplit]:
        """The streams. "latest" becomes an id here, once: a restored job goes on from that."""
        client = server.connect(self.url)
        try:
            return [self._split(one, text_of(newest_id(stream_info(client, one)))) for one in self.streams]
        finally:
            client.close()

    def _split(self, stream: str, newest: str) -> StreamSplit:
        start = newest if self.start == "latest" else self.start
        return StreamSplit(stream, start, newest if self.until == "latest" else self.until)

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return FetchReader(self._open)

    def _open(self, split: Any, position: Any, wake: Callable[[], None]) -> FetchedSplit:
        split = StreamSplit(*split)
        start = (split.start, None) if position is None else position
        until = None if split.until is None else parse_id(split.until)
        make = self._batch if self.form == "columns" else lambda entries: list(map(self.parse, entries))

        def parse(entries: list[Any]) -> Any:
            return decode_named(entries, make, lambda entry: f"entry {entry[0]} of stream {split.stream!r}")

        return FetchedSplit(StreamFetcher(self, split, position), start, until, parse, wake)

    def _batch(self, entries: list[tuple[str, Mapping[bytes, bytes]]]) -> pa.RecordBatch:
        """A batch of entries, each column read from the texts of its field."""
        assert self.schema is not None
        arrays = []
        for field in self.schema:
            name = field.name.encode()
            found = pa.array([fields.get(name) for _, fields in entries], pa.binary())
            try:
                arrays.append(found if field.type == pa.binary() else found.cast(pa.string()).cast(field.type))
            except pa.ArrowException as error:
                raise ValueError(f"column {field.name!r}: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def parse(self, entry: tuple[str, Mapping[bytes, bytes]]) -> Any:
        """The record of an entry, its id and its fields."""
        return (self.format if callable(self.format) else FORMATS[self.format])(*entry)

    def raw_source(self) -> tuple[Source, Callable[[Any], Any]] | None:
        if self.form == "columns":
            return None
        raw = copy.copy(self)
        raw.format = _raw
        return raw, self.parse


def _check_types(schema: pa.Schema) -> None:
    """Raises `ConfigError` for columns that are not read from a text."""
    for field in schema:
        if pa.types.is_nested(field.type):
            raise ConfigError(
                f"RedisStream: column {field.name!r} is {field.type}, and a field of Redis is a text: declare it a string"
            )


class StreamFetcher(Fetcher):
    """The entries of one stream, by their ids.

    The server knows how many entries were ever added, and how many are left. With the number of those up to its position
    the fetcher notices entries that were trimmed unread.
    """

    def __init__(self, source: RedisStream, split: StreamSplit, position: tuple[str, int | None] | None) -> None:
        self._source, self._stream = source, split.stream
        self._at, self._before = (split.start, None) if position is None else position
        self._begun = position is not None
        """False while nothing was read: what was removed before is not missing."""
        self._waits = False
        """True if there was nothing more the last time."""
        self._client: Any = None

    _before: int | None
    """Number of entries up to the position, of all that were ever added; None: not known yet."""

    def fetch(self) -> Fetched:
        if self._client is None:
            self._client = server.connect(self._source.url)
        if self._waits:
            self._client.xread({self._stream: self._at}, count=1, block=WAIT_MILLISECONDS)
        info, found = self._request()
        at, newest = parse_id(self._at), newest_id(info)
        self._count(info, at, newest)
        entries: list[FetchedEntry] = []
        for id, fields in found:
            self._at, self._begun = id.decode(), True
            self._before = None if self._before is None else self._before + 1
            entries.append(FetchedEntry(parse_id(self._at), (self._at, self._before), (self._at, fields)))
        self._waits = not entries
        passed = None if entries else FetchedEntry(max(at, newest), (self._at, self._before), None)
        return Fetched(entries, passed, None if self._before is None else info.get("entries-added", 0) - self._before)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _request(self) -> tuple[dict[str, Any], list[tuple[bytes, dict[bytes, bytes]]]]:
        """The server's figures of the stream, and the next entries, at one moment."""
        both = self._client.pipeline(transaction=True)
        both.xinfo_stream(self._stream)
        both.xread({self._stream: self._at}, count=FETCHED)
        info, answer = both.execute(raise_on_error=False)
        if isinstance(answer, Exception):
            raise answer
        return _info_of(info), [(id, _pairs(fields)) for id, fields in answer[0][1]] if answer else []

    def _count(self, info: Mapping[str, Any], at: Id, newest: Id) -> None:
        """Counts the entries before the position, and checks that none behind it was removed."""
        added, left = info.get("entries-added", 0), info.get("length", 0)
        oldest = info.get("first-entry")
        unread_only = oldest is None or parse_id(oldest[0].decode()) > at  # all that is left is behind the position
        removed = parse_id(info.get("max-deleted-entry-id", b"0-0").decode())
        what = ""
        if newest < at:
            what = (
                f"its newest id is {text_of(newest)}: it was deleted, or the server came back without its last writes"
            )
        elif self._begun and removed > at:
            what = f"entries up to {text_of(removed)} were deleted unread"
        elif unread_only and self._before is not None and added - left > self._before:
            what = f"{added - left - self._before} entries behind that were removed unread, by the limit of the stream"
        elif unread_only and self._before is not None and added - left < self._before:
            what = "it was deleted and made anew since"
        if what and self._source.on_lost == "fail":
            raise LostEntries(
                f"stream {self._stream!r} of {hide_passwords(self._source.url)} was read up to {text_of(at)}, and {what}. "
                f'To go on with what is there give the source on_lost="ignore"'
            )
        if what or self._before is None:
            self._before = added - left if unread_only else added if newest == at else None


def stream_info(client: Any, stream: str) -> dict[str, Any]:
    """What the server knows of a stream; nothing if there is none."""
    redis = server.client_module()
    try:
        return _info_of(client.xinfo_stream(stream))
    except redis.ResponseError as error:
        return _info_of(error)


def _info_of(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Exception):
        if "no such key" in str(answer):
            return {}
        raise answer
    return {name if isinstance(name, str) else name.decode(): value for name, value in _pairs(answer).items()}


def _pairs(answer: Any) -> dict[Any, Any]:
    """A dict of an answer, which the client leaves a list of names and values in transactions of a cluster."""
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def newest_id(info: Mapping[str, Any]) -> Id:
    """The newest id that a stream has had."""
    return parse_id(info.get("last-generated-id", b"0-0").decode())


def parse_id(text: str, option: str = "id") -> Id:
    """An id from its text. Raises `ConfigError` for another text."""
    first, dash, second = text.partition("-")
    if not first.isdecimal() or (dash and not second.isdecimal()):
        raise ConfigError(f'RedisStream: {option} is an id such as "1700000000000-0", not {text!r}')
    return int(first), int(second or 0)


def text_of(id: Id) -> str:
    """The text of an id."""
    return f"{id[0]}-{id[1]}"


def _start_of(start: Any) -> str:
    if start == "earliest":
        return text_of(BEGINNING)
    if isinstance(start, int | float) and not isinstance(start, bool) and start >= 0:
        milliseconds = int(start * 1000)
        return text_of((milliseconds - 1, LARGEST) if milliseconds else BEGINNING)
    if not isinstance(start, str):
        raise ConfigError(f'RedisStream: start is "earliest", "latest", an id or seconds since 1970, not {start!r}')
    return start if start == "latest" else text_of(parse_id(start, "start"))


def _raw(id: str, fields: Mapping[bytes, bytes]) -> Any:
    return id, fields


def _text(id: str, fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def _bytes(id: str, fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in fields.items()}


FORMATS: dict[str, Callable[[str, Mapping[bytes, bytes]], Any]] = {"text": _text, "bytes": _bytes}
"""Name of a format -> its function."""
