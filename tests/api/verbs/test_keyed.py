"""A keyed stream takes every verb that a stream takes: the next operator gets the records of equal keys together."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.api.streams import DataStream, KeyedStream

WORDS = [("tea", 1), ("jam", 2), ("tea", 3), ("rye", 4), ("jam", 5), ("tea", 6)]


def words(env: tr.Environment) -> KeyedStream:
    return env.from_collection(WORDS).key_by(lambda w: w[0])


def collected(build: Callable[[tr.Environment], DataStream]) -> list[Any]:
    env = tr.Environment(parallelism=3)
    out = build(env).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    return sorted(out.result())


STATELESS: dict[str, Callable[[KeyedStream], DataStream]] = {
    "map": lambda k: k.map(lambda w: w),
    "filter": lambda k: k.filter(lambda w: True),
    "flat_map": lambda k: k.flat_map(lambda w: [w]),
    "assign_timestamps": lambda k: k.assign_timestamps(lambda w: w[1]),
    "rebalance": lambda k: k.rebalance().map(lambda w: w),
    "to_columns": lambda k: k.to_columns("word string, n long").to_rows().map(tuple),
    "union": lambda k: k.union(k.env.from_collection([]).key_by(k.key)).map(lambda w: w),
}


@pytest.mark.parametrize("verb", STATELESS)
def test_verbs_of_streams_are_verbs_of_keyed_streams(verb: str) -> None:
    assert collected(lambda env: STATELESS[verb](words(env))) == sorted(WORDS)


def test_a_verb_behind_key_by_gets_the_records_of_a_key_in_one_subtask_and_in_order() -> None:
    class Where(tr.MapFunction):
        def open(self, ctx: tr.Context) -> None:
            self.subtask = ctx.subtask

        def map(self, word: Any) -> Any:
            return word[0], self.subtask, word[1]

    env = tr.Environment(parallelism=3)
    numbers = env.from_collection([(n % 7, n) for n in range(100)], parallelism=1)
    out = numbers.key_by(lambda r: r[0]).map(Where()).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    subtasks, order = defaultdict(set), defaultdict(list)
    for key, subtask, n in out.result():
        subtasks[key].add(subtask)
        order[key].append(n)
    assert all(len(found) == 1 for found in subtasks.values())
    assert len(set.union(*subtasks.values())) > 1
    assert all(found == sorted(found) for found in order.values())


def test_what_follows_a_stateless_verb_has_no_key_until_it_is_keyed_again() -> None:
    env = tr.Environment()
    with pytest.raises(AttributeError, match="count: the stream has no key"):
        words(env).map(lambda w: w).count()  # type: ignore[attr-defined]
    with pytest.raises(tr.GraphError, match="uses keyed state or timers, and the stream has no key"):
        words(env).map(lambda w: w).process(Count())


class Count(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Any:
        self.seen.value += 1
        return [(ctx.key, self.seen.value)]


def test_a_stream_is_keyed_again() -> None:
    found = collected(lambda env: words(env).key_by(lambda w: w[1] % 2).process(Count()))
    assert found == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def test_a_union_by_one_key_is_keyed() -> None:
    def both(env: tr.Environment) -> DataStream:
        schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
        first, second = (env.from_collection(WORDS).to_columns(schema).key_by("word") for _ in range(2))
        return first.union(second).process(Count())

    assert collected(both)[-1] == ("tea", 6)


def test_several_columns_are_a_key() -> None:
    rows = [{"country": "DE", "city": c, "n": n} for n, c in enumerate("abab")]
    found = collected(lambda env: env.from_collection(rows).key_by("country", "city").process(Count()))
    assert found == [(("DE", "a"), 1), (("DE", "a"), 2), (("DE", "b"), 1), (("DE", "b"), 2)]


def test_a_keyed_stream_ends_in_a_sink() -> None:
    env = tr.Environment(parallelism=2)
    out = words(env).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(out.result()) == sorted(WORDS)
