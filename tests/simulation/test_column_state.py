"""Jobs whose aggregates keep their state in columns: with faults, and going on at another parallelism and in rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import tailrace as tr
from search.stories import MS, Story
from tailrace.coordinator.job.restarts import Never
from tailrace.testing.faults import Fault

N, KEYS = 1_500, 40
Key = Callable[[int], Any]
NAMES: dict[str, tuple[str, Key]] = {
    "long": ("long", lambda n: n % KEYS),
    "string": ("string", lambda n: f"key {n % KEYS}"),
}


class Result(NamedTuple):
    k: Any
    n: int
    s: float
    least: float
    mean: float
    most: int


class Steps(tr.KeyedProcessFunction):
    """Numbers the records of each key by the output of the aggregate, and checks the rest of that output."""

    told = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
        half = value.least
        good = value.s == value.n * half and value.mean == half and value.most == value.n - 1
        for n in range(self.told.value, value.n):
            yield value.k, n if good else ("wrong", tuple(value))
        self.told.value = value.n


def program(form: str, kind: str = "long") -> Callable[[tr.Environment], tr.DataStream]:
    """The numbers of the records of each key."""
    name, key = NAMES[kind]

    def build(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, N, rate=60_000.0), uid="numbers", parallelism=1)
        rows = numbers.map(lambda n: (key(n), n % KEYS + 0.5, n // KEYS), uid="rows", parallelism=1)
        stream = rows.to_columns(f"k {name}, x double, nth long", uid="columns", parallelism=1)
        if form == "rows":
            stream = stream.to_rows(uid="to rows", parallelism=1)
        summed = stream.key_by("k").aggregate(
            n=tr.Count(), s=tr.Sum("x"), least=tr.Min("x"), mean=tr.Mean("x"), most=tr.Max("nth"), uid="sums"
        )
        if form == "columns":
            return summed.to_rows(uid="results").key_by("k").process(Steps(), uid="steps")
        # Results in rows are tuples, without names.
        return summed.map(Result._make, uid="results").key_by("k").process(Steps(), uid="steps")

    return build


def expected(kind: str = "long") -> Counter[Any]:
    key = NAMES[kind][1]
    return Counter((key(n), n // KEYS) for n in range(N))


@pytest.mark.parametrize("kind", NAMES)
def test_state_goes_from_columns_to_rows_and_back_at_any_parallelism(story: Story, kind: str) -> None:
    world = story.simulation(program("columns", kind), restarts=Never)
    assert world.run_until("commit 3 done"), world.coordinator.cause
    for form, parallelism in (("rows", 3), ("columns", 1), ("rows", 1), ("columns", 3)):
        world = story.again(program(form, kind), parallelism=parallelism, restarts=Never)
        before = story.files.commits
        world.start()
        while story.files.commits < before + 2 and not world.coordinator.status.final:
            world.turn()
        assert not world.coordinator.status.final, world.coordinator.cause
    story.finish(story.again(program("columns", kind), parallelism=2))
    story.is_right(expected(kind))


@pytest.mark.parametrize("seed", range(3))
def test_faults_change_nothing(story: Story, seed: int) -> None:
    faults = [Fault(turn, "kill", turn + seed) for turn in range(300 + 40 * seed, 2_000, 400)]
    faults += [Fault(turn, "delay", turn, duration=3 * MS) for turn in range(100, 2_000, 130)]
    world = story.simulation(program("columns"), seed=seed, faults=tuple(faults), small=0)
    story.finish(world)
    story.is_right(expected())
