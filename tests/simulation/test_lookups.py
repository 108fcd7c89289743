"""Lookups by an asynchronous function: their keys, and a cache of hits and misses."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

import tailrace as tr


class Table(tr.AsyncFunction):
    """A table of a service, which counts its calls."""

    def __init__(self, rows: dict[Any, Any], seconds: float = 0.0) -> None:
        self.rows, self.seconds = rows, seconds

    def __deepcopy__(self, memo: Any) -> Table:
        return self  # the test looks at its counts

    def prepare(self) -> None:
        self.calls = Counter[Any]()

    async def call(self, value: Any) -> Any:
        self.calls[repr(value)] += 1
        await asyncio.sleep(self.seconds)
        return self.rows.get(value)


def looked_up(records: list[Any], table: Table, key: Any = None, **options: Any) -> list[Any]:
    env = tr.Environment(parallelism=1)
    stream: Any = env.from_collection(records)
    stream = stream if key is None else stream.key_by(key)
    out = stream.lookup(table, **options).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return list(out.result())


def test_a_lookup_is_by_the_record_its_key_or_a_field() -> None:
    pairs = [(1, "a"), (2, "b")]
    assert looked_up([1, 2], Table({1: "one"})) == [(1, "one"), (2, None)]
    assert looked_up(pairs, Table({1: "one"}), on=lambda pair: pair[0]) == [((1, "a"), "one"), ((2, "b"), None)]
    assert looked_up(pairs, Table({"b": "two"}), key=lambda pair: pair[1]) == [((1, "a"), None), ((2, "b"), "two")]


def test_a_cache_keeps_hits_and_misses_for_a_time_and_the_keys_that_are_used() -> None:
    numbers = random.Random("cache")
    records = [numbers.randrange(6) for _ in range(200)]
    rows = {key: key * 10 for key in range(5)}
    for cache in (tr.Cache(), tr.Cache(size=3), tr.Cache(misses=False), tr.Cache(ttl="1 minute"), tr.Cache(ttl=0.05)):
        table = Table(rows, seconds=0.01)
        found = looked_up(records, table, cache=cache, capacity=1)
        assert found == [(key, rows.get(key)) for key in records]
        # A model of the cache: the key used last is last.
        held, now, calls = dict[int, float](), 0.0, Counter[str]()
        for key in records:
            if key in held and now < held[key]:
                held[key] = held.pop(key)
                continue
            calls[repr(key)] += 1
            if key in rows or cache.misses:
                held.pop(key, None)
                held[key] = float("inf") if cache.ttl is None else now + (60 if cache.ttl == "1 minute" else 0.05)
                if len(held) > cache.size:
                    del held[next(iter(held))]
            now += 0.01
        assert table.calls == calls, cache


def test_keys_that_are_one_key_to_a_keyed_stream_have_one_answer() -> None:
    table = Table({1: "one", "1": "text"})
    found = looked_up([1, 1.0, "1"], table, cache=tr.Cache(), capacity=1)
    assert found == [(1, "one"), (1.0, "one"), ("1", "text")] and table.calls == {"1": 1, "'1'": 1}


def test_an_answer_that_is_changed_behind_the_lookup_is_not_changed_in_the_cache() -> None:
    env = tr.Environment(parallelism=1)

    def changed(pair: Any) -> int:
        pair[1].append(0)
        return len(pair[1])

    table = Table({1: [7]})
    out = (
        env.from_collection([1] * 4)
        .lookup(table, cache=tr.Cache(), capacity=1)
        .map(changed)
        .sink_to(tr.sinks.Collect())
    )
    tr.testing.run(env)
    assert out.result()[1:] == [2, 2, 2] and table.calls == {"1": 1}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: tr.Cache(size=0), "size is a number of keys"),
        (lambda: tr.Cache(ttl=0), "ttl must be positive"),
        (lambda: tr.Cache(misses="no"), "misses must be True or False"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_cache_is_refused(make: Any, what: str) -> None:
    with pytest.raises(tr.ConfigError, match=what):
        make()
