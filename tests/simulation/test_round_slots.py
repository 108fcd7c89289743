"""Rounds where operators of the loop's body have parallelisms or inputs of their own, or nothing to do with each other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from search.programs.loops import Named
from search.programs.rounds import Heavy
from search.stories import Story
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.testing.faults import Fault

LAPS = 3


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


class UntilTheRoundEnds(tr.KeyedProcessFunction):
    """Holds what comes for a key until the round ends."""

    held = tr.ListState(object)

    def process(self, record: Any, ctx: tr.Context) -> None:
        self.held.add(record)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        held = list(self.held.get())
        self.held.clear()
        yield from held


class UntilTheRoundEndsHere(tr.ProcessFunction):
    """A function without a key that holds what comes until the round ends."""

    held = tr.OperatorState(list, default=[])

    def process(self, record: Any, ctx: tr.Context) -> None:
        self.held.value.append(record)

    def on_round_end(self, round: int, ctx: tr.Context) -> Iterator[Any]:
        held, self.held.value = self.held.value, []
        assert round == 0 or not held
        yield from held


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "not keyed"])
@pytest.mark.parametrize("seed", range(3))
def test_a_function_that_no_head_feeds_sees_the_end_of_round_0(keyed: bool, seed: int) -> None:
    """What has entered the loop goes to a function of its own, which no head speaks to. Its input ends without a word of a
    round, and that is the end of round 0 to it: what it holds until then must not stay in its state for good."""

    def body(hops: tr.DataStream) -> Any:
        entered = others.enter(hops.scope)
        held = entered.key_by(lambda r: r[0]).process(UntilTheRoundEnds()) if keyed else None
        held = entered.process(UntilTheRoundEndsHere()) if held is None else held
        down = hops.union(held).map(lambda r: (r[0], r[1] - 1))
        return down.filter(lambda r: r[1] > 0), down

    env = tr.Environment(parallelism=2)
    others = env.from_collection([(100 + i, 2) for i in range(5)])
    out = env.from_collection([(i, 2) for i in range(5)]).iterate(body, rounds=tr.Rounds()).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, seed=seed).await_termination()
    assert sorted(out.result()) == sorted((i, left) for i in [*range(5), *range(100, 105)] for left in range(2))


FAR = 15
"""How many rounds there are at most, where each worker could go through them on its own."""


class InRound(tr.ProcessFunction):
    def process(self, record: Any, ctx: tr.Context) -> Iterator[Any]:
        yield record[0], record[1] + 1, ctx.round


def apart(env: tr.Environment) -> tr.DataStream:
    """A loop in rounds in which no record changes its worker."""

    def body(hops: tr.DataStream) -> Any:
        gone = hops.process(InRound(), uid="in round")
        return gone.map(lambda r: r[:2], uid="on"), gone

    numbers = env.from_collection([(i, 0) for i in range(8)], uid="numbers").rebalance()
    out = numbers.iterate(body, rounds=tr.Rounds(max=FAR), uid="loop")
    heavy = env.from_collection(range(400), uid="much").key_by(lambda i: i).process(Heavy(), uid="heavy")
    return out.union(heavy)


@pytest.mark.parametrize("seed", [7, 8])
def test_a_checkpoint_holds_all_workers_in_one_round(story: Story, seed: int) -> None:
    """The command to begin a round comes from the coordinator, and no barrier goes that way. One worker has made its
    cut in some round; the other one still encodes the checkpoint before, with its own cut ahead. If it went on through
    the rounds meanwhile, the checkpoint would hold it many rounds ahead, and a restore would command the first one to
    begin that round: its records would go around less often than all others."""
    chance = random.Random(seed)
    faults = [
        Fault(chance.randint(0, 60), "kill", chance.randint(0, 3), after=f"commit {number} done")
        for number in chance.sample(range(2, 12), 2)
    ]
    conditions = tr.testing.Conditions(
        delay=(1, 300), step_cost=(1, 60), budget=(1, 8), encode_limit=(1, 4), zombie=(0, 1_000), max_turns=400_000
    )
    often = CheckpointSettings(interval=1_000, keep=1, max_concurrent=4, tolerated_failures=100_000)
    world = story.simulation(apart, seed=seed, faults=faults, conditions=conditions, checkpoints=often)
    story.finish(world)
    story.is_right(Counter((i, lap, lap - 1) for i in range(8) for lap in range(1, FAR + 1)))
