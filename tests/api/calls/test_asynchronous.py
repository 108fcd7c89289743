"""Options of asynchronous calls and lookups are checked where the user writes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr


async def answered(value: Any, more: Any = None) -> Any:
    return value


class Service(tr.AsyncFunction):
    async def call(self, value: Any) -> Any:
        return value


class Blocking(tr.AsyncFunction):
    def call(self, value: Any) -> Any:
        return value


class Empty(tr.AsyncFunction):
    pass


REFUSED: list[tuple[Callable[[Any], object], str]] = [
    (lambda s: s.map_async(lambda v: v), "is no async function; write it as `async def`"),
    (lambda s: s.map_async(3), "is no async function"),
    (lambda s: s.map_async(Service), r"pass an object, not the class: Service\(\)"),
    (lambda s: s.map_async(Blocking()), "Blocking.call is no async function"),
    (lambda s: s.map_async(Empty()), "Empty has no method call"),
    (lambda s: s.map_async(tr.MapFunction()), "a MapFunction is not a tr.AsyncFunction"),
    (lambda s: s.map_async(functools.partial(answered, 1, 2)), "is called with 1 argument"),
    (lambda s: s.map_async(answered, capacity=0), "capacity is the largest number of records"),
    (lambda s: s.map_async(answered, capacity=True), "capacity is the largest number of records"),
    (lambda s: s.map_async(answered, batch=1.5), "batch is the largest number of records of one call"),
    (lambda s: s.map_async(answered, timeout=0), "timeout must be positive"),
    (lambda s: s.map_async(answered, timeout=-1), "negative"),
    (lambda s: s.map_async(answered, ordered="keys"), "ordered must be True, False or 'key'"),
    (lambda s: s.map_async(answered, ordered=1), "ordered must be True, False or 'key'"),
    (lambda s: s.map_async(answered, ordered="key"), "call key_by before"),
    (lambda s: s.map_async(answered, retry=3), "retry must be a tr.Retry"),
    (lambda s: s.map_async(answered, on_error=tr.Retry(3)), r"calls are made again by retry=tr.Retry"),
    (lambda s: s.map_async(answered, tiemout=3), "unknown option tiemout"),
    (lambda s: s.lookup(answered, cache=10), "cache must be a tr.Cache"),
    (lambda s: s.lookup(answered, on=3), "3"),
    (lambda s: s.iterate(lambda inner: (None, inner.map_async(answered))), "a call without an answer is in none"),
    (lambda s: s.iterate(lambda inner: (None, inner.lookup(answered))), "a call without an answer is in none"),
]


@pytest.mark.parametrize(("write", "what"), REFUSED)
def test_a_wrong_option_is_refused_where_it_is_written(write: Callable[[Any], object], what: str) -> None:
    stream = tr.Environment(parallelism=1).from_collection([1])
    with pytest.raises((tr.GraphError, tr.ConfigError), match=what):
        write(stream)


@pytest.mark.parametrize("fn", [answered, Service(), functools.partial(answered, more=1), Service().call])
def test_whatever_is_async_is_called(fn: Any) -> None:
    env = tr.Environment(parallelism=1)
    out = env.from_collection([1, 2]).map_async(fn).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [1, 2]


def test_a_stream_in_columns_is_called_with_rows() -> None:
    async def both(row: Any) -> Any:
        return row.a + row.b

    env = tr.Environment(parallelism=1)
    columns = env.from_collection([(1, 2), (3, 4)]).to_columns("a long, b long")
    plain, keyed = columns.map_async(both), columns.key_by("a").map_async(both, ordered="key")
    out, of_keys = plain.sink_to(tr.sinks.Collect()), keyed.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [3, 7] and sorted(of_keys.result()) == [3, 7]
