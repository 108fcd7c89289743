"""`ctx.at`: a block in which another key is the key at hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing.faults import Fault


class Transfers(tr.KeyedProcessFunction):
    """Balances of accounts, by transfers (from, to, amount)."""

    balance = tr.ValueState(int, default=100)

    def process(self, transfer: Any, ctx: tr.Context) -> Iterator[Any]:
        payer, payee, amount = transfer
        self.balance.value -= amount
        with ctx.at(payee):
            self.balance.value += amount
            if amount == 13:
                raise ValueError("an unlucky amount")
            ctx.set_timer(event_time=1)
        yield payer, self.balance.value

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "last", ctx.key, self.balance.value


def transfers(count: int) -> list[tuple[int, int, int]]:
    draw = random.Random(count)
    return [(draw.randrange(9), draw.randrange(9), draw.randint(1, 12)) for _ in range(count)]


def outcome(made: list[Any], env: tr.Environment, faults: list[Fault], **options: Any) -> list[Any]:
    stream = env.from_source(tr.sources.Collection(made), parallelism=1)
    found = stream.key_by(lambda t: t[0]).process(Transfers(), parallelism=1, **options)
    sink = found.filter(lambda row: row[0] == "last").sink_to(tr.sinks.Collect())
    assert tr.testing.simulate(env, seed=1, faults=faults).await_termination()
    return sorted(sink.result())


def balances(made: list[Any]) -> list[Any]:
    balance = dict.fromkeys(range(9), 100)
    for payer, payee, amount in made:
        balance[payer] -= amount
        balance[payee] += amount
    return [("last", one, balance[one]) for one in sorted({payee for _, payee, _ in made})]


@pytest.mark.parametrize("backend", ["memory", "disk"])
def test_state_and_timers_of_another_key_survive_the_loss_of_a_worker(backend: str) -> None:
    made = transfers(300)
    config = tr.CheckpointConfig("in memory", interval=0.002)
    env = tr.Environment(parallelism=3, checkpoint=config, state_backend=backend)
    assert outcome(made, env, [Fault(150, "kill"), Fault(400, "kill", which=1)]) == balances(made)


def test_a_record_that_goes_aside_leaves_no_trace_at_another_key() -> None:
    made = [(1, 2, 5), (1, 3, 13), (3, 2, 1)]
    env = tr.Environment(parallelism=1)
    stream = env.from_collection(made)
    sides = stream.key_by(lambda t: t[0]).process(Transfers(), parallelism=1, on_error=tr.Aside("errors"))
    sink = sides.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert sorted(row for row in sink.result() if row[0] == "last") == [("last", 2, 106)]
    assert sink.result()[:2] == [(1, 95), (3, 99)]


def test_keys_are_found_as_key_by_finds_them() -> None:
    import numpy as np

    class Marked(tr.KeyedProcessFunction):
        mark = tr.ValueState(int, default=0)

        def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            with ctx.at(np.int64(value)):
                self.mark.value += 1
                yield ctx.key, self.mark.value
            yield ctx.key, self.mark.value

    operator = tr.testing.harness(Marked(), key=lambda v: v)
    assert operator.push(7) == [(7, 1), (7, 1)]


def test_it_is_refused_where_not_all_keys_are_in_one_subtask() -> None:
    env = tr.Environment(parallelism=2)
    env.from_collection([(1, 2, 3)]).key_by(lambda t: t[0]).process(Transfers()).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"ctx\.at\(key\): the state of other keys may be in other subtasks; give"):
        tr.testing.run(env)


def test_it_is_refused_where_there_is_no_key() -> None:
    class Late(Transfers):
        def finish(self, ctx: tr.Context) -> None:
            with ctx.at(1):
                pass

    env = tr.Environment(parallelism=1)
    env.from_collection([(1, 2, 3)]).key_by(lambda t: t[0]).process(Late(), parallelism=1).sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match=r"ctx\.at\(key\): it has no key at hand here"):
        tr.testing.run(env)


def test_blocks_that_do_not_end_in_their_order_are_refused() -> None:
    class Crossed(tr.KeyedProcessFunction):
        total = tr.ValueState(int, default=0)

        def process(self, value: Any, ctx: tr.Context) -> None:
            first, second = ctx.at("a"), ctx.at("b")
            first.__enter__()
            second.__enter__()
            first.__exit__(None, None, None)

    operator = tr.testing.harness(Crossed(), key=lambda v: v)
    with pytest.raises(Exception, match=r"the block of ctx\.at\('a'\) ends while the key at hand is another one"):
        operator.push(1)
