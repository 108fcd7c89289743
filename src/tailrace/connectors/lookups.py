"""Lookups in servers (`tr.lookups`), for `stream.lookup(function, on=...)`. Each is imported when it is used."""

from __future__ import annotations

from typing import Any

from tailrace.lazynames import resolve
from tailrace.spelling import missing

_PLACES: dict[str, str] = {
    "Postgres": "tailrace.connectors.postgres.lookup",
    "RedisHash": "tailrace.connectors.redis.lookup",
}
"""Name -> module that has it: connectors of servers. A program imports the clients of those that it uses."""


def __getattr__(name: str) -> Any:
    found = resolve(__name__, name, _PLACES)
    if found is not None:
        return found
    raise missing("tr.lookups", name, {}, _PLACES)
