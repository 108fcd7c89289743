"""Rounds where operators of the loop's body have parallelisms of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr

LAPS = 3


class Named(tr.CoProcessFunction):
    """Holds hops of a key until its name has come in from outside."""

    name = tr.ValueState(str)
    waiting = tr.ListState(object)

    def process1(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        if self.name.value is None:
            self.waiting.add(hop)
        else:
            yield self.name.value, hop

    def process2(self, named: Any, ctx: tr.Context) -> Iterator[Any]:
        self.name.value = named[1]
        yield from ((named[1], hop) for hop in self.waiting.get())
        self.waiting.clear()


@pytest.mark.parametrize("wide", ["entered", "looping", "leaving"])
@pytest.mark.parametrize("seed", range(3))
def test_a_slot_may_have_only_a_wider_operator_of_the_body(wide: str, seed: int) -> None:
    """Slot 2 has no head and no tail. It may have finished with the stream that entered, or pass on every round."""

    def widened(stream: tr.DataStream, where: str) -> tr.DataStream:
        return stream.map(tuple, **({"parallelism": 3} if wide == where else {}))

    def body(hops: tr.DataStream) -> Any:
        inside = widened(names.enter(hops.scope), "entered")
        named = hops.connect(inside).key_by(lambda h: h[0] % 4, lambda r: r[0]).process(Named(), parallelism=2)
        going = named.filter(lambda r: r[1][1] > 0).map(lambda r: (r[1][0], r[1][1] - 1))
        return widened(going, "looping"), widened(named.map(lambda r: (r[0], r[1][0], r[1][1])), "leaving")

    env = tr.Environment(parallelism=2)
    names = env.from_collection([(k, f"p{k}") for k in range(4)])
    hops = env.from_collection([(i, LAPS) for i in range(8)])
    out = hops.iterate(body, rounds=tr.Rounds()).sink_to(tr.sinks.Collect())
    conditions = tr.testing.Conditions(max_turns=100_000)
    tr.testing.simulate(env, seed=seed, conditions=conditions).await_termination()
    assert sorted(out.result()) == sorted((f"p{i % 4}", i, left) for i in range(8) for left in range(LAPS + 1))
