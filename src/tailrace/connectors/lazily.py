"""The connectors of servers, which are imported when they are used: `tailrace` itself imports no client of a server."""

from __future__ import annotations

from importlib import import_module
from typing import Any

SINKS: dict[str, str] = {
    "Database": "tailrace.connectors.databases",
    "Delta": "tailrace.connectors.lake.deltasink",
    "Iceberg": "tailrace.connectors.lake.icebergsink",
    "Kafka": "tailrace.connectors.kafka.sink",
    "Nats": "tailrace.connectors.nats.sink",
    "Postgres": "tailrace.connectors.postgres.sink",
    "RedisHash": "tailrace.connectors.redis.sinks",
    "RedisStream": "tailrace.connectors.redis.sinks",
}
"""Name in `tr.sinks` -> module that has it."""
SOURCES: dict[str, str] = {
    "Kafka": "tailrace.connectors.kafka.source",
    "Postgres": "tailrace.connectors.postgres.source",
    "PostgresChanges": "tailrace.connectors.postgres.changes",
    "Nats": "tailrace.connectors.nats.source",
    "RedisStream": "tailrace.connectors.redis.source",
}
"""Name in `tr.sources` -> module that has it."""
LOOKUPS: dict[str, str] = {
    "Postgres": "tailrace.connectors.postgres.lookup",
    "RedisHash": "tailrace.connectors.redis.lookup",
}
"""Name in `tr.lookups` -> module that has it."""


def resolve(name: str, modules: dict[str, str]) -> Any:
    """The class of this name from its module; None if there is none."""
    module = modules.get(name)
    return None if module is None else getattr(import_module(module), name)
