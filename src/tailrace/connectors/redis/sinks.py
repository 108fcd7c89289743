"""Sinks into Redis and Valkey: entries of a stream, and hashes for serving."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tailrace.connectors.redis import server
from tailrace.connectors.redis.marked import RedisTransaction, Script, piece
from tailrace.connectors.transactional import Scope, TransactionalSink
from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords

Fields = Callable[[Any], Mapping[str, Any] | None]
_ADD = "redis.call('XADD', KEYS[2], {limit}'*', unpack(ARGV, at + 1, at + n))"
_SET = (
    "if n < 0 then redis.call('UNLINK', KEYS[i + 1]) else "
    "redis.call('HSET', KEYS[i + 1], unpack(ARGV, at + 1, at + n)){expire} end"
)
_EXPIRE = " redis.call('PEXPIRE', KEYS[i + 1], {milliseconds})"
MARKS = "tailrace:marks"


class RedisSink(TransactionalSink):
    """The base of sinks into Redis."""

    def __init__(self, url: str, fields: Fields | None) -> None:
        self.url = server.check_url(url, self.description)
        if fields is not None and not callable(fields):
            raise ConfigError(f"{self.description}: fields is a function of a record, not {fields!r}")
        self.fields = fields

    def __repr__(self) -> str:
        return f"{type(self).__name__}({hide_passwords(self.url)!r})"

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        redis = sys.modules.get("redis")
        if redis is None:
            return (OSError,)
        return (OSError, redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.exceptions.ClusterError)

    def _arguments(self, record: Any) -> list[bytes] | None:
        """The names and values of a record's fields; None if the record has none, and its key is to go."""
        fields = fields_of(record) if self.fields is None else self.fields(record)
        if fields is None:
            return None
        if not fields:
            raise ValueError("a record has at least one field")
        return [text for name, value in fields.items() for text in (name.encode(), as_bytes(name, value))]


class RedisStream(RedisSink):
    """A sink that adds an entry to a stream for each record, exactly once. A record is a dict or a row; its values are
    texts, bytes and numbers. `fields(record)` makes a dict of any other record.

    - `url`: `redis://user:password@host:6379/0`, `rediss://` with TLS, `unix://`.
    - `max_length`: the server trims the stream to about so many entries; None: it keeps all.
    - `lost_output`: "fail" or "ignore", if the server has lost what was committed.

    Raises `ConfigError` for a wrong argument, and before the job starts for a server that does not answer."""

    description = "redis stream"

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        fields: Fields | None = None,
        max_length: int | None = None,
        lost_output: str = "fail",
    ) -> None:
        super().__init__(url, fields)
        if not isinstance(stream, str) or not stream:
            raise ConfigError(f"RedisStream takes the name of a stream, not {stream!r}")
        if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
            raise ConfigError(f"RedisStream: max_length is a number of entries, not {max_length!r}")
        self.stream, self.max_length = stream, max_length
        self.lost_output = check_lost_output(lost_output)  # type: ignore[assignment]
        self.marks = server.beside(stream, "RedisStream")

    def check(self) -> None:
        server.check_type(self.url, f"RedisStream({self.stream!r})", self.stream, "stream")

    def encode(self, batch: Any) -> Iterable[bytes]:
        key, found = self.stream.encode(), []
        for record in batch:
            arguments = self._arguments(record)
            if arguments is None:
                raise TypeError("fields must give a dict; a stream has no entry without fields")
            found.append(piece(key, arguments))
        return found

    def transaction(self, scope: Scope) -> RedisTransaction:
        limit = "" if self.max_length is None else f"'MAXLEN', '~', '{self.max_length}', "
        return RedisTransaction(self.url, self.marks, scope, Script(_ADD.format(limit=limit), True))


class RedisHash(RedisSink):
    """A sink that keeps the newest record of each key as a hash, for serving. `key(record)` is the name of the hash.

    - `fields(record)`: a dict of the fields to set, or None to delete the hash. By default the record itself, a dict or a
      row. Other fields of the hash stay.
    - `ttl`: seconds until a hash goes that no record sets again; None: it stays.
    - `marks`: the name of a hash for the marks of this sink.
    - `lost_output`: "fail" or "ignore", if the server has lost what was committed.

    A key must be written by one subtask: let the stream be keyed by it. Older records never overwrite newer ones, whoever
    publishes. Raises `ConfigError` for a wrong argument, and before the job starts for a server that does not answer, and
    for a cluster."""

    description = "redis hash"

    def __init__(
        self,
        url: str,
        key: Callable[[Any], str | bytes],
        *,
        fields: Fields | None = None,
        ttl: float | None = None,
        marks: str = MARKS,
        lost_output: str = "fail",
    ) -> None:
        super().__init__(url, fields)
        if not callable(key):
            raise ConfigError(f"RedisHash: key is a function of a record, not {key!r}")
        if ttl is not None and not (isinstance(ttl, int | float) and ttl > 0):
            raise ConfigError(f"RedisHash: ttl is a number of seconds above 0, not {ttl!r}")
        self.key, self.ttl, self.marks = key, ttl, marks
        self.lost_output = check_lost_output(lost_output)  # type: ignore[assignment]

    def check(self) -> None:
        who = "RedisHash"
        server.check_type(self.url, who, self.marks, "hash")
        if server.ask(self.url, who, server.is_cluster):
            raise ConfigError(
                f"{who}: {hide_passwords(self.url)} is a cluster, where no transaction has keys of several nodes; write a "
                f"RedisStream, or use a server without a cluster"
            )

    def encode(self, batch: Any) -> Iterable[bytes]:
        return [piece(as_bytes("key", self.key(record)), self._arguments(record)) for record in batch]

    def transaction(self, scope: Scope) -> RedisTransaction:
        expire = "" if self.ttl is None else _EXPIRE.format(milliseconds=max(1, round(self.ttl * 1000)))
        return RedisTransaction(self.url, self.marks, scope, Script(_SET.format(expire=expire), False))


def check_lost_output(lost_output: Any) -> Any:
    """The option `lost_output` of a sink. Raises `ConfigError`."""
    if lost_output not in ("fail", "ignore"):
        raise ConfigError(f'lost_output is "fail" or "ignore", not {lost_output!r}')
    return lost_output


def fields_of(record: Any) -> Mapping[str, Any]:
    """The fields of a record that is a dict or a row."""
    if isinstance(record, Mapping):
        return record
    if isinstance(record, tuple) and hasattr(record, "_asdict"):
        return record._asdict()  # type: ignore[no-any-return]
    raise TypeError(
        f"a {type(record).__name__} has no fields: give the sink fields=, a function that makes a dict of a record"
    )


def as_bytes(name: str, value: Any) -> bytes:
    """The bytes of a value in Redis."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value).encode()
    raise TypeError(
        f"{name!r} is a {type(value).__name__}, and Redis has texts, bytes and numbers: make one of it with fields="
    )
