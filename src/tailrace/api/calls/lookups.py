"""Lookups in external systems by an asynchronous function, with a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tailrace.api.calls.asynchronous import AnyStream, Calls, async_map, policy_given
from tailrace.api.checks.arguments import check_selector, title_of
from tailrace.elements.durations import Duration, span_seconds
from tailrace.errors import ConfigError, GraphError
from tailrace.graph.operators import LookedUp

NOT_GIVEN: Calls = (100, 10.0, True, None, None)
"""The options of calls that a user has not given."""


@dataclass(frozen=True)
class Cache:
    """A cache of answers, in each worker for itself. It is empty after a restart.

    - `size`: the largest number of keys; the one that was not used for the longest time goes first.
    - `ttl`: the time for which an answer is used (seconds, a `timedelta` or a text); None: for ever.
    - `misses`: True if None, the answer for what is not there, is kept as well. Without, each miss is a call.

    Raises `ConfigError` for wrong arguments.
    """

    size: int = 10_000
    ttl: Duration | None = None
    misses: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ConfigError(f"Cache: size is a number of keys, at least 1, not {self.size!r}")
        if not isinstance(self.misses, bool):
            raise ConfigError(f"Cache: misses must be True or False, not {self.misses!r}")
        try:
            positive = self.ttl is None or span_seconds(self.ttl) > 0
        except (TypeError, OverflowError) as error:
            raise ConfigError(f"Cache: ttl: {error}") from None
        if not positive:
            raise ConfigError(f"Cache: ttl must be positive, or None for answers that stay, not {self.ttl!r}")


def lookup_by_function(
    stream: AnyStream, fn: Any, on: Any, cache: Any, calls: Calls, options: dict[str, Any]
) -> AnyStream:
    """The stream of pairs of a record and what a function has found for it; see `DataStream.lookup`."""
    verb = title_of("lookup", options)
    if cache is not None and not isinstance(cache, Cache):
        raise GraphError(f"{verb}: cache must be a tr.Cache or None, not {cache!r}")
    if on is None:
        on = getattr(stream, "key", None)
    selector = None if on is None else check_selector(on, stream.columns, verb)
    kept = None if cache is None else (cache.size, None if cache.ttl is None else span_seconds(cache.ttl), cache.misses)
    operator = replace(async_map(stream, fn, calls, verb), lookup=LookedUp(selector, kept))
    return stream._add(operator, "lookup", policy_given(calls[3], options, verb))
