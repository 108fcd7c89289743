"""A lost worker's place is taken by one that does the same again. Where a program does something else the second time,
nobody goes on with half of each: all start again from the newest checkpoint, and the cause names the operator."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
N = 400
ASKED = itertools.count()
"""Stands for `random`, `time` or `uuid`: it never returns the same value twice."""


def keyed_by_chance(value: int) -> tuple[int, int]:
    return next(ASKED), value


def more_or_less(value: int) -> list[tuple[int, int]]:
    times = random.Random(next(ASKED)).randint(1, 2)  # not in turns: those would be the same again half of the time
    return [(value, times)] * times


class AsksThroughCtx(tr.KeyedProcessFunction):
    """Asks the world through `ctx` only."""

    def process(self, value: Any, ctx: Any) -> Any:
        yield value, 0 <= ctx.random.random() < 1 + ctx.call(lambda: next(ASKED))


def ran(seed: int, build: Any, turn: int, compare: str = "values") -> tuple[tr.testing.SimulatedJob, Any]:
    env = tr.Environment(
        parallelism=2,
        checkpoint=tr.CheckpointConfig("in memory", interval=0.02),
        standby=tr.StandbyConfig(replicas=0, compare=compare),
        restart=tr.FixedDelay(attempts=5, delay=0.01),
    )
    result = build(env.from_source(tr.sources.Sequence(0, N, rate=5_000), uid="numbers")).sink_to(tr.sinks.Collect())
    return tr.testing.simulate(env, seed=seed, faults=[Fault(turn, "kill", which=seed)]), result


def restarts_of(job: tr.testing.SimulatedJob) -> list[str]:
    """Why all started anew."""
    return [cause.message for cause in job.simulation.causes]


def by_chance(numbers: Any) -> Any:
    return numbers.map(keyed_by_chance, name="drawn").key_by(lambda pair: pair[0]).map(lambda pair: (pair[1], 1))


def by_number(numbers: Any) -> Any:
    return numbers.flat_map(more_or_less, name="drawn").key_by(lambda pair: pair[0]).map(lambda pair: pair)


def keyed_by_python(value: int) -> tuple[float, float, int]:
    return random.random(), np.random.random(), value


def by_python(numbers: Any) -> Any:
    drawn = numbers.map(keyed_by_python, name="drawn")
    return drawn.key_by(lambda row: row[:2]).map(lambda row: (row[2], True))


def by_ctx(numbers: Any) -> Any:
    return numbers.key_by(lambda n: n % 7).process(AsksThroughCtx(), uid="asks")


@pytest.mark.parametrize("build", [by_chance, by_number], ids=["other keys", "more or fewer records"])
def test_what_is_made_otherwise_is_noticed_and_all_start_again(build: Any) -> None:
    noticed = 0
    for seed in range(12):
        job, out = ran(seed, build, turn=150 + 40 * seed)
        reasons = restarts_of(job)
        assert all("is not done the same again" in reason and "drawn" in reason for reason in reasons), reasons
        noticed += len(reasons)
        job.await_termination()
        found = Counter(out.result())
        assert {value for value, _ in found} == set(range(N))
        assert all(count == times for (_, times), count in found.items()), "each as often as it was drawn"
        assert len(found) == N
    assert noticed > 1


class Remembers(tr.KeyedProcessFunction):
    """A function that keeps answers in memory that belong into state."""

    def __init__(self) -> None:
        self.known: dict[int, bool] = {}

    def process(self, value: int, ctx: Any) -> Any:
        if ctx.key not in self.known:
            self.known[ctx.key] = ctx.call(lambda: True)
        yield value, self.known[ctx.key]


def test_who_asks_for_what_was_not_asked_for_before_begins_again_with_all_others() -> None:
    """What the lost worker remembered is in no checkpoint, and its answers came before that one. The job ended with a bug of
    ours, since we refuse what we have no answer for, whereas the first time there was nothing to refuse."""
    remembers = lambda numbers: numbers.key_by(lambda n: n % 7).process(Remembers(), uid="remembers")  # noqa: E731
    noticed = 0
    for seed in range(6):
        job, out = ran(seed, remembers, turn=500 + 60 * seed)
        reasons = restarts_of(job)
        assert all("requests an answer that it had not requested before" in reason for reason in reasons), reasons
        assert all("is not done the same again" in reason and "bug" not in reason for reason in reasons)
        noticed += len(reasons)
        job.await_termination()
        assert sorted(out.result()) == [(n, True) for n in range(N)]
    assert noticed > 1


@pytest.mark.parametrize("build", [by_ctx, by_python], ids=["through ctx", "random numbers of Python and numpy"])
def test_what_comes_through_ctx_and_plain_random_numbers_are_the_same_again(build: Any) -> None:
    mine = random.getstate()
    for seed in range(6):
        job, out = ran(seed, build, turn=150 + 40 * seed)
        assert random.getstate() == mine, "those of whoever tests are left alone"
        assert restarts_of(job) == []
        job.await_termination()
        assert sorted(out.result()) == [(n, True) for n in range(N)]


def in_another_order(value: int) -> list[tuple[int, int]]:
    """The records of a list, in an order that nothing gives again."""
    found = [(value, one) for one in range(6)]
    at = next(ASKED) % 6
    return [*found[at:], *found[:at]]


def test_a_permutation_of_records_without_keys_is_noticed() -> None:
    """Each goes to whoever has its turn, and each has the same number of them: some came twice, and others never."""
    noticed = 0
    for seed in range(12):
        dealt = lambda numbers: numbers.flat_map(in_another_order, name="drawn").rebalance().map(lambda pair: pair)  # noqa: E731
        job, out = ran(seed, dealt, turn=150 + 40 * seed)
        reasons = restarts_of(job)
        assert all("is not done the same again" in reason and "drawn" in reason for reason in reasons), reasons
        noticed += len(reasons)
        job.await_termination()
        assert Counter(out.result()) == Counter((n, one) for n in range(N) for one in range(6))
    assert noticed > 1


def drawn_by_chance(value: int) -> tuple[int, int]:
    return value, next(ASKED)


def by_value(numbers: Any) -> Any:
    """Nothing but a value differs, and two readers have it: one goes by the key of the other one."""
    drawn = numbers.map(drawn_by_chance, name="drawn")
    other = drawn.key_by(lambda pair: pair[0] % 7 + 1).map(lambda pair: pair)
    return drawn.connect(other).key_by(lambda pair: pair[0] % 7, lambda pair: pair[0] % 7).process(Meets(), uid="meets")


class Meets(tr.CoProcessFunction):
    """Emits what both inputs have of a value."""

    first = tr.MapState(int, int)
    second = tr.MapState(int, int)

    def process1(self, pair: tuple[int, int], ctx: Any) -> Any:
        self.first.put(*pair)
        return self.met(pair[0])

    def process2(self, pair: tuple[int, int], ctx: Any) -> Any:
        self.second.put(*pair)
        return self.met(pair[0])

    def met(self, value: int) -> Any:
        if self.first.get(value) is not None and self.second.get(value) is not None:
            yield value, self.first.get(value) == self.second.get(value)


def test_another_value_behind_a_key_is_noticed_where_values_are_compared() -> None:
    noticed, unlike = 0, 0
    for seed in range(6):
        job, out = ran(seed, by_value, turn=400 + 150 * seed)
        reasons = restarts_of(job)
        assert all("is not done the same again" in reason and "drawn" in reason for reason in reasons), reasons
        noticed += len(reasons)
        job.await_termination()
        assert sorted(out.result()) == [(n, True) for n in range(N)]
        job, out = ran(seed, by_value, turn=400 + 150 * seed, compare="shape")
        assert restarts_of(job) == []
        job.await_termination()
        assert sorted(value for value, _ in out.result()) == list(range(N))
        unlike += sum(not alike for _, alike in out.result())
    assert noticed > 1
    assert unlike > 1, "with `shape` readers have gone on with different values"


class Opaque:
    """A class whose objects have no certain form."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_an_operator_whose_values_cannot_be_compared_is_reported_once() -> None:
    def of_a_class(numbers: Any) -> Any:
        wrapped = numbers.map(Opaque, name="wrapped").key_by(lambda one: one.value % 7)
        return wrapped.map(lambda one: (one.value, True))

    job, out = ran(3, of_a_class, turn=200)
    assert restarts_of(job) == []
    assert job.simulation.covered["values are not compared"] == 1
    assert "values of wrapped are not compared: of these values only the type counts: Opaque" in "".join(
        job.simulation.trace
    )
    job.await_termination()
    assert sorted(out.result()) == [(n, True) for n in range(N)]
