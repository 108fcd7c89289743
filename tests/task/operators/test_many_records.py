"""`process_many`: one call for records that have come together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing.faults import Fault


class Totals(tr.KeyedProcessFunction):
    """The total of each key, behind each call, with the number of its records."""

    total = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        yield from self.process_many([value], ctx)

    def process_many(self, values: list[Any], ctx: tr.Context) -> Iterator[Any]:
        for _, amount in values:
            if amount < 0:
                raise ValueError(f"{amount} behind {self.total.value}")
            self.total.value += amount
        yield ctx.key, len(values), self.total.value, ctx.timestamp


def test_a_call_has_the_records_that_follow_each_other_with_one_key() -> None:
    operator = tr.testing.harness(Totals(), key=lambda pair: pair[0])
    found = operator.push_many([("a", 1), ("a", 2), ("b", 3), ("a", 4)])
    assert found == [("a", 2, 3, None), ("b", 1, 3, None), ("a", 1, 7, None)]
    assert operator.push(("b", 5)) == [("b", 1, 8, None)]
    assert operator.push_many([]) == []


def test_records_of_another_timestamp_are_another_call() -> None:
    env = tr.Environment(parallelism=1)
    pairs = env.from_collection([("a", n) for n in (1, 1, 2, 2, 2)]).assign_timestamps(lambda pair: pair[1])
    sink = pairs.key_by(lambda pair: pair[0]).process(Totals()).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sink.result() == [("a", 2, 2, 1.0), ("a", 3, 8, 2.0)]


@pytest.mark.parametrize("in_order", [False, True])
def test_records_that_are_calls_of_their_own_go_to_process(in_order: bool) -> None:
    """A record that fails must go aside alone; in the order of time records come one by one."""
    env = tr.Environment(parallelism=1)
    amounts = [1, 2, 3] if in_order else [1, -2, 3]
    pairs = env.from_collection([("a", n) for n in amounts]).assign_timestamps(lambda pair: 5)
    aside = "fail" if in_order else tr.Aside("failed")
    found = pairs.key_by(lambda pair: pair[0]).process(Totals(), in_order=in_order, on_error=aside)
    sink = found.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert [row[1:3] for row in sink.result()] == ([(1, 1), (1, 3), (1, 6)] if in_order else [(1, 1), (1, 4)])


def test_a_call_that_fails_names_its_record_where_it_has_one() -> None:
    operator = tr.testing.harness(Totals(), key=lambda pair: pair[0])
    with pytest.raises(Exception, match=r"record \('a', -1\).*-1 behind 0"):
        operator.push(("a", -1))
    with pytest.raises(Exception, match="-1 behind 7"):
        operator.push_many([("b", 1), ("a", 7), ("a", -1)])


@pytest.mark.parametrize("parallelism", [1, 3])
def test_totals_survive_the_loss_of_workers(parallelism: int) -> None:
    env = tr.Environment(parallelism=parallelism, checkpoint=tr.CheckpointConfig("in memory", interval=0.002))
    pairs = env.from_source(tr.sources.Collection([(n // 7 % 5, n) for n in range(300)]), parallelism=1)
    sink = pairs.key_by(lambda pair: pair[0]).process(Totals()).sink_to(tr.sinks.Collect())
    faults = [Fault(100, "kill", which=parallelism - 1), Fault(250, "crash-driver"), Fault(300, "kill")]
    assert tr.testing.simulate(env, seed=parallelism, faults=faults).await_termination()
    found = {key: total for key, _, total, _ in sink.result()}
    assert found == {one: sum(n for n in range(300) if n // 7 % 5 == one) for one in range(5)}
    assert sum(count for _, count, _, _ in sink.result()) == 300


def test_a_function_of_one_argument_is_refused() -> None:
    class Wrong(Totals):
        def process_many(self, values: list[Any]) -> Any:  # type: ignore[override]
            return values

    env = tr.Environment(parallelism=1)
    with pytest.raises(tr.GraphError, match="process_many"):
        env.from_collection([("a", 1)]).key_by(lambda pair: pair[0]).process(Wrong())
