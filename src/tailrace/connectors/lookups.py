"""Lookups in servers (`tr.lookups`), for `stream.lookup(function, on=...)`. Each is imported when it is used."""

from __future__ import annotations

from typing import Any

from tailrace.api.checks.hints import missing
from tailrace.connectors import lazily


def __getattr__(name: str) -> Any:
    found = lazily.resolve(name, lazily.LOOKUPS)
    if found is not None:
        return found
    raise missing("tr.lookups", name, {}, lazily.LOOKUPS)
