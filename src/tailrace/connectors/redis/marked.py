"""Transactions of Redis: a script writes records and a mark, which nothing can come between.

A script that runs long stops the server for all others, so a large transaction is written in portions. The mark then has a
part: how many records of which transaction are written. Two publishers of one transaction go on from each other's portions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.connectors.redis.server import connect, refusing
from tailrace.connectors.transactional import Scope

PORTION = 2_000
"""Number of records of one call of a script, about 50 ms of the server's time."""
PORTION_BYTES = 4 << 20
DIGITS = 19
"""Digits of a mark. Lua's numbers are no 64-bit integers, so marks are compared as texts of this length."""
DONE = -1
"""Answer of a script: the whole transaction is written."""

SCRIPT = """
local marks, scope, counter, from, last = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local mark = redis.call('HGET', marks, scope)
if mark and mark >= counter then return -1 end
local part, written = redis.call('HGET', marks, scope .. '/part'), 0
if part and string.sub(part, 1, #counter) == counter then written = tonumber(string.sub(part, #counter + 2)) end
if written ~= from then return written end
local at, records = 6, tonumber(ARGV[5])
for i = 1, records do
  local n = tonumber(ARGV[at])
  %s
  at = at + 1 + math.max(n, 0)
end
if last then
  redis.call('HSET', marks, scope, counter)
  redis.call('HDEL', marks, scope .. '/part')
  return -1
end
redis.call('HSET', marks, scope .. '/part', counter .. ':' .. (from + records))
return from + records
"""
"""`%s` writes record `i`, which has `n` arguments behind `ARGV[at]`."""


class Script(msgspec.Struct, frozen=True):
    """A way to write records of one kind."""

    text: str
    """The Lua statement for one record."""
    one_key: bool
    """True if all records go to the key of the first one."""

    @property
    def whole(self) -> str:
        return SCRIPT % self.text


class RedisTransaction:
    """The transactions of one scope. A piece is `[key, n, arguments...]` in MessagePack; `n` below 0 has no arguments."""

    def __init__(self, url: str, marks: str, scope: Scope, script: Script) -> None:
        self._marks, self._scope, self._script = marks, scope.name, script
        self._url = url
        with refusing(url, lambda: "a connection"):
            self._client = connect(url)
        self._run: Any = self._client.register_script(script.whole)

    def last(self) -> int | None:
        with refusing(self._url, lambda: f"the key {self._marks!r} of marks"):
            found = self._client.hget(self._marks, self._scope)
        return None if found is None else int(found)

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        records = [decode_piece(piece) for piece in pieces]
        written = 0
        while written != DONE:
            end = _end(pieces, written)
            written = self._write(counter, records[written:end], written, end == len(records))

    def _write(self, counter: int, records: Sequence[Sequence[Any]], start: int, last: bool) -> int:
        """Writes a portion. Returns where to go on, or `DONE`."""
        keys = [records[0][0]] if self._script.one_key else [record[0] for record in records]
        arguments: list[Any] = [self._scope, f"{counter:0{DIGITS}d}", start, int(last), len(records)]
        for record in records:
            arguments += record[1:]
        with refusing(self._url, lambda: self._object_of([self._marks, *keys])):
            return int(self._run([self._marks, *keys], arguments))

    def _object_of(self, keys: Sequence[Any]) -> str:
        """The key that a script of these keys cannot write because of its type; all of them if there is none."""
        names = [key.decode("utf-8", "replace") if isinstance(key, bytes) else key for key in keys]
        with contextlib.suppress(Exception):  # the server may refuse to say, too
            for at, key in enumerate(keys):
                found = self._client.type(key).decode()
                if found not in ("none", "stream" if at and self._script.one_key else "hash"):
                    return f"writing the key {names[at]!r}, which is a {found}"
        return f"writing the key {names[1]!r}" + (f" and {len(names) - 2} others" if len(names) > 2 else "")

    def close(self) -> None:
        self._client.close()


def _end(pieces: Sequence[bytes], start: int) -> int:
    """The end of the portion that begins at `start`."""
    end, size = start, 0
    while end < len(pieces) and end - start < PORTION and (end == start or size + len(pieces[end]) <= PORTION_BYTES):
        size += len(pieces[end])
        end += 1
    return end


_encode = msgspec.msgpack.Encoder().encode
decode_piece: Any = msgspec.msgpack.Decoder(list[bytes | int]).decode


def piece(key: bytes, arguments: Sequence[bytes] | None) -> bytes:
    """The piece of one record; one without arguments deletes its key."""
    return _encode([key, -1] if arguments is None else [key, len(arguments), *arguments])
