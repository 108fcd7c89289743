"""Lookups of hashes in Redis and Valkey, for `stream.lookup`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tailrace.api.functions import AsyncFunction, Context
from tailrace.connectors.redis import server
from tailrace.connectors.redis.sinks import as_bytes
from tailrace.errors import ConfigError
from tailrace.passwords import hide_passwords


class RedisHash(AsyncFunction):
    """A lookup of hashes: `stream.lookup(tr.lookups.RedisHash(url), on="id", cache=tr.Cache(ttl=60))`. The row of a key is a
    dict of texts, or None if there is no such hash. Keys of calls that run at the same time travel in one request.

    - `key(value)` is the name of the hash for a value of `on`; by default the value itself, a text or a number.
    - `format`: "text", or "bytes" for dicts of bytes.

    Raises `ConfigError` for a wrong argument."""

    def __init__(self, url: str, key: Callable[[Any], str | bytes] | None = None, *, format: str = "text") -> None:
        self.url = server.check_url(url, "RedisHash")
        if key is not None and not callable(key):
            raise ConfigError(f"RedisHash: key is a function of a value, not {key!r}")
        if format not in ("text", "bytes"):
            raise ConfigError(f'RedisHash: format is "text" or "bytes", not {format!r}')
        self.key, self.format = key, format
        self._client: Any = None
        self._waiting: list[tuple[bytes, asyncio.Future[dict[bytes, bytes]]]] = []
        """Keys that go with the next request."""
        self._requests: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"RedisHash({hide_passwords(self.url)!r})"

    async def open(self, ctx: Context) -> None:  # type: ignore[override]
        self._client = await asyncio.to_thread(server.asynchronous, self.url)

    async def close(self) -> None:  # type: ignore[override]
        if self._client is not None:
            await self._client.aclose()

    async def call(self, value: Any) -> dict[str, Any] | None:
        key = as_bytes("key", value if self.key is None else self.key(value))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[bytes, bytes]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((key, answer))
        found = await answer
        if not found:
            return None
        text = self.format == "text"
        return {name.decode(): value.decode() if text else value for name, value in found.items()}

    def _send(self) -> None:
        """Sends a request for all that wait."""
        waiting, self._waiting = self._waiting, []
        request = asyncio.ensure_future(self._request(waiting))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _request(self, waiting: list[tuple[bytes, asyncio.Future[dict[bytes, bytes]]]]) -> None:
        try:
            pipeline = self._client.pipeline(transaction=False)
            for key, _ in waiting:
                pipeline.hgetall(key)
            found = await pipeline.execute(raise_on_error=False)
        except Exception as error:
            found = [error] * len(waiting)
        for (_, answer), one in zip(waiting, found, strict=True):
            if answer.done():  # it was given up
                continue
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)
