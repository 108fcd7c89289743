"""The connectors of servers, which are imported when they are used: `tailrace` itself imports no client of a server."""

from __future__ import annotations

from importlib import import_module
from typing import Any

SINKS = {"Postgres": "tailrace.connectors.postgres.sink"}
"""Name in `tr.sinks` -> module that has it."""
SOURCES = {
    "Postgres": "tailrace.connectors.postgres.source",
    "PostgresChanges": "tailrace.connectors.postgres.changes",
}
"""Name in `tr.sources` -> module that has it."""


def resolve(name: str, modules: dict[str, str]) -> Any:
    """The class of this name from its module; None if there is none."""
    module = modules.get(name)
    return None if module is None else getattr(import_module(module), name)
