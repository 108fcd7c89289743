"""All that a live worker knows, one that takes its place knows as well: what was found of the world from the first moment of
the job on, and sets in the order that they had."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

WORLD: dict[str, int] = Counter()
"""What is outside of all workers, and changes."""


class Outcome:
    """What came of some runs in which workers are lost, each at another moment."""

    def __init__(self) -> None:
        self.found: list[Counter[Any]] = []
        self.replaced = self.restarted = 0
        self.causes: list[str] = []


def lost_now_and_then(
    program: Callable[[tr.Environment], tr.DataStream],
    seeds: range,
    turns: tuple[int, int] = (100, 7),
    interval: float = 0.01,
    which: int = 0,
    **options: Any,
) -> Outcome:
    """Runs a program at parallelism 2, and kills a worker at turn a + b * seed (`turns`)."""
    outcome = Outcome()
    for seed in seeds:
        WORLD.clear()
        checkpoint = tr.CheckpointConfig("memory", interval=interval, **options)
        standby = tr.StandbyConfig(replicas=0)
        env = tr.Environment(parallelism=2, checkpoint=checkpoint, standby=standby, restart=tr.FixedDelay(100, 0))
        result = program(env).sink_to(tr.sinks.Collect())
        fault = Fault(turns[0] + turns[1] * seed, "kill", which=which)
        job = tr.testing.simulate(env, seed=seed, faults=[fault])
        assert job.await_termination()
        outcome.found.append(Counter(result.result()))
        outcome.replaced += job.simulation.coordinator.takeovers.count
        outcome.restarted += job.simulation.covered["restarted"]
        outcome.causes += [cause.message for cause in job.simulation.causes]
    return outcome


def thinned(count: int, of: int) -> set[int]:
    """The first multiples of 61, in the large table of many: its bytes give another order."""
    members = {61 * one for one in range(of)}
    members -= {61 * one for one in range(count, of)}
    assert list(pickle.loads(pickle.dumps(members))) != list(members)
    return members


# What is found of the world.


class Five(tr.Reader):
    def __init__(self, split: int, at: int) -> None:
        self.split, self.at = split, at

    def read(self, limit: int, now: float) -> Any:
        if self.at == 5:
            return None
        given = [self.split * 5 + i for i in range(self.at, min(5, self.at + limit))]
        self.at += len(given)
        return given

    @property
    def position(self) -> int:
        return self.at


class Finding(tr.Enumerator):
    """Finds a split at each look, and forgets what has ended when `ended` is called."""

    def __init__(self, found: int, ended: list[int]) -> None:
        self.found, self.over = found, ended

    def discover(self, now: float) -> list[int] | None:
        if self.found == 20:
            return None
        self.found += 1
        return [self.found - 1]

    def ended(self, split: int) -> None:
        assert split not in self.over, "it is told once"
        self.over = [*self.over, split]

    def next_at(self, now: float) -> float:
        return now + 0.001

    @property
    def position(self) -> Any:
        return self.found, self.over


class Growing(tr.Source):
    description = "growing"

    def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
        return Finding(*(position or (0, [])))

    def reader(self, split: int, position: int | None = None) -> tr.Reader:
        return Five(split, position or 0)


def growing(env: tr.Environment) -> tr.DataStream:
    return env.from_source(Growing(), uid="growing").key_by(lambda n: n % 4).map(lambda n: n)


def test_splits_that_were_found_while_the_job_runs_are_not_found_again() -> None:
    found = lost_now_and_then(growing, range(12))
    assert found.found == [Counter(range(100))] * 12
    assert found.replaced > 6 and not found.restarted, found.causes


class Changing(tr.Source):
    """Lists its splits in another order each time, with one that has come since."""

    description = "changing"

    def splits(self, parallelism: int) -> list[int]:
        WORLD["listed"] += 1
        found = list(range(6)) if WORLD["listed"] == 1 else [6, 5, 4, 3, 2, 1, 0]
        return found

    def reader(self, split: int, position: int | None = None) -> tr.Reader:
        return Five(split, position or 0)


def test_splits_are_listed_once_though_the_worker_that_did_is_lost_before_any_checkpoint() -> None:
    def changing(env: tr.Environment) -> tr.DataStream:
        return env.from_source(Changing(), uid="changing").rebalance().map(lambda n: n)

    found = lost_now_and_then(changing, range(12), turns=(45, 6), interval=10.0)
    assert found.found == [Counter(range(30))] * 12
    assert found.replaced > 4 and not found.restarted, found.causes


class Leaving(tr.Source):
    """Splits whose rest is a set, and so is the position in them."""

    def splits(self, parallelism: int) -> list[int]:
        return [0, 1, 2]

    def reader(self, split: int, position: set[int] | None = None) -> tr.Reader:
        return Rest(split, thinned(40, 1_000) if position is None else position)


class Rest(tr.Reader):
    def __init__(self, split: int, rest: set[int]) -> None:
        self.split, self.rest, self.pauses = split, rest, False

    def read(self, limit: int, now: float) -> Any:
        self.pauses = not self.pauses
        if self.pauses:
            return []
        return [(self.split, self.rest.pop())] if self.rest else None

    def next_at(self, now: float) -> float:
        return now + 0.0005

    @property
    def position(self) -> set[int]:
        return self.rest


def test_who_reads_on_from_a_position_with_a_set_reads_the_rest_in_the_same_order() -> None:
    outcome = lost_now_and_then(
        lambda env: env.from_source(Leaving()).rebalance().map(lambda r: r), range(8), (100, 60), interval=0.004
    )
    expected = Counter((split, 61 * one) for split in range(3) for one in range(40))
    assert outcome.found == [expected] * 8
    assert outcome.replaced >= 6 and not outcome.restarted


class Answered(tr.KeyedProcessFunction):
    def process(self, n: int, ctx: tr.Context) -> Iterator[Any]:
        for one in ctx.call(thinned, 5, 100):
            yield n, one


def test_a_set_that_a_call_answers_has_one_order() -> None:
    def program(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, 300, rate=10_000), parallelism=1)
        return numbers.key_by(lambda n: n % 4).process(Answered()).rebalance().map(lambda r: r)

    outcome = lost_now_and_then(program, range(6), (250, 60))
    assert outcome.found == [Counter((n, 61 * one) for n in range(300) for one in range(5))] * 6
    assert outcome.replaced >= 4 and not outcome.restarted


class Asking(tr.ProcessFunction):
    """Has what it does from outside, and from chance, when it is opened."""

    def open(self, ctx: tr.Context) -> None:
        import random

        self.added, self.luck = ctx.call(self.ask), random.random()

    def ask(self) -> int:
        WORLD["asked"] += 1
        return 1_000 * WORLD["asked"]

    def process(self, record: int, ctx: tr.Context) -> Iterator[Any]:
        yield record, self.added, self.luck


def test_what_functions_have_found_when_they_were_opened_stays_however_long_the_job_runs() -> None:
    """What functions have found stays behind checkpoints, too: no state has it."""

    def asking(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, 300, rate=10_000), parallelism=1)
        return numbers.rebalance().process(Asking(), uid="asking").rebalance().map(lambda r: r)

    found = lost_now_and_then(asking, range(10), turns=(150, 120), which=1, interval=0.004)
    assert found.replaced >= 5 and not found.restarted, found.causes
    for one in found.found:
        assert sorted(record for record, _, _ in one) == list(range(300)) and set(one.values()) == {1}
        assert len({(added, luck) for _, added, luck in one}) == 2, "each subtask has found one thing, once"


class Fickle(tr.ProcessFunction):
    """Asks another time when it is opened, or does not."""

    kept = tr.OperatorState(bool, default=False)

    def open(self, ctx: tr.Context) -> None:
        if not self.kept.value:
            self.kept.value = ctx.call(lambda: True)

    def process(self, record: int, ctx: tr.Context) -> Iterator[int]:
        yield record


def test_who_asks_for_less_when_it_is_opened_again_is_not_taken_for_the_same() -> None:
    def fickle(env: tr.Environment) -> tr.DataStream:
        return env.from_source(tr.sources.Sequence(0, 300, rate=10_000), parallelism=1).process(Fickle(), uid="fickle")

    found = lost_now_and_then(fickle, range(4), turns=(160, 40), interval=0.004)
    assert found.found == [Counter(range(300))] * 4
    assert found.restarted and any("answers are left" in cause for cause in found.causes)


# Readers that have nothing now and then.


class Scanning(tr.Source):
    description = "scanning"

    def __init__(self, pause: int) -> None:
        self.pause = pause

    def splits(self, parallelism: int) -> list[int]:
        return [0, 1]

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        return Scan(split, position or (0, 0), self.pause)


class Scan(tr.Reader):
    """Gives something only in each so-many-th portion that it looks at."""

    def __init__(self, split: int, at: tuple[int, int], pause: int) -> None:
        self.split, (self.at, self.looked), self.pause = split, at, pause

    def read(self, limit: int, now: float) -> Any:
        if self.at == 60:
            return None
        self.looked += 1
        if self.looked % (self.pause + 1):
            return ()
        n = min(5, limit, 60 - self.at)
        self.at += n
        return [self.split * 60 + i for i in range(self.at - n, self.at)]

    @property
    def position(self) -> tuple[int, int]:
        return self.at, self.looked

    def next_at(self, now: float) -> float:
        return now


@pytest.mark.parametrize("pause", [3, 6, 40])
def test_a_reader_that_gives_nothing_for_a_while_is_read_again(pause: int) -> None:
    def scanning(env: tr.Environment) -> tr.DataStream:
        return env.from_source(Scanning(pause), uid="scanning").key_by(lambda n: n % 4).map(lambda n: n)

    found = lost_now_and_then(scanning, range(8), turns=(130, 15 + pause), interval=0.5)
    assert found.found == [Counter(range(120))] * 8
    assert found.replaced >= 3 and not any("is not done the same" in cause for cause in found.causes)


# Sets.


def stepped(members: set[int], n: int) -> set[int]:
    """Grows to forty members, shrinks to three, grows …: its table is larger than that of one that pickle makes."""
    members = set(members)
    if n % 80 < 40:
        members.add(n * 7 % 101)
    else:
        members.difference_update(sorted(members)[3:][:1])
    return members


class Members(tr.KeyedProcessFunction):
    members = tr.ValueState(set, default=set())

    def process(self, i: int, ctx: tr.Context) -> Iterator[Any]:
        found = self.members.value
        expected = stepped(found, i // 4)
        found |= expected
        found &= expected
        for one in found:
            yield i, one


class Bag:
    def __init__(self) -> None:
        self.members: set[int] = set()


class Boxed(tr.KeyedProcessFunction):
    """Sets in an object, in a list, frozen."""

    boxed = tr.ListState(object)
    frozen = tr.ValueState(frozenset, default=frozenset())

    def process(self, i: int, ctx: tr.Context) -> Iterator[Any]:
        if not len(self.boxed):
            self.boxed.add(Bag())
        bag = self.boxed[0]
        bag.members = expected = stepped(bag.members, i // 4)
        self.frozen.value = frozenset(expected) if i % 3 else self.frozen.value
        self.boxed[0] = bag
        yield from ((i, one) for one in bag.members)
        yield from (("frozen", i // 4 * 4, one) for one in self.frozen.value)


class Own(tr.ProcessFunction):
    """Sets in state without a key."""

    members = tr.OperatorState(set, default=set())

    def process(self, i: int, ctx: tr.Context) -> Iterator[Any]:
        self.members.value = stepped(self.members.value, i)
        yield from ((i, one) for one in self.members.value)


def of_sets(function: Any, keyed: bool = True) -> Callable[[tr.Environment], tr.DataStream]:
    def program(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, 400, rate=20_000), parallelism=1)
        stream: Any = numbers.key_by(lambda i: i % 4) if keyed else numbers
        width = {} if keyed else {"parallelism": 1}
        return stream.process(function(), uid="sets", **width).rebalance().map(lambda r: r)  # type: ignore[no-any-return]

    return program


@pytest.mark.parametrize("function", [Members, Boxed, Own], ids=lambda function: function.__name__)
def test_sets_in_state_come_back_in_the_order_that_they_had(function: Any) -> None:
    program = of_sets(function, keyed=function is not Own)
    env = tr.Environment(parallelism=2)
    result = program(env).sink_to(tr.sinks.Collect())
    assert tr.testing.simulate(env, seed=1).await_termination()
    found = lost_now_and_then(program, range(14), turns=(250, 30), interval=0.004)
    assert found.found == [Counter(result.result())] * 14
    assert found.replaced >= 6 and found.restarted <= 1, found.causes


def test_records_with_sets_that_checkpoints_hold_in_flight_are_not_done_again() -> None:
    """The order of such sets is not known any more behind such a checkpoint: all start again, and nothing is wrong."""

    class Given(tr.KeyedProcessFunction):
        members = tr.ValueState(set, default=set())

        def process(self, i: int, ctx: tr.Context) -> Iterator[Any]:
            self.members.value = stepped(self.members.value, i // 4)
            yield i, set(self.members.value)

    def program(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, 200, rate=50_000), parallelism=1)
        given = numbers.key_by(lambda i: i % 4).process(Given(), uid="given")
        looped = given.iterate(lambda s: (s.filter(lambda r: False), s), uid="loop")
        return looped.flat_map(lambda r: [(r[0], one) for one in r[1]]).rebalance().map(lambda r: r)

    right, sets = Counter[Any](), dict[int, set[int]]()
    for i in range(200):
        sets[i % 4] = stepped(sets.get(i % 4, set()), i // 4)
        right.update((i, one) for one in sets[i % 4])
    found = lost_now_and_then(program, range(14), turns=(200, 40), interval=0.002)
    assert found.found == [right] * 14
