"""Jobs that are behind: dataflows over every kind of edge, whose result is the same however they run, for tests that have
records in flight. A record is lost, doubled, out of order, changed or astray: each of these shows in what comes out."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tailrace as tr
from search.stories import MS, Story
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.state.format import LogKind
from tailrace.state.manifest import Manifest
from tailrace.storage.reading import load_index
from tailrace.task.contract.tuning import Tuning
from tailrace.task.operators.sources.splits import decode_state
from tailrace.task.subtask.snapshot import read_meta
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Conditions

N = 600
SOME = 280
KEYS = 7
Build = Callable[[tr.Environment, int], tr.DataStream]


@dataclass(frozen=True)
class Flow:
    """A dataflow, in each of its lives."""

    build: Build
    expected: Counter[Any]
    order: Callable[[Any], Any] | None = None
    """(key, place) of a record, where those of a key come in order."""


# Operators.


class Sealed(tr.KeyedProcessFunction):
    """Passes a record on, with a seal by which its reader knows that it is what it was."""

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        yield value, seal(value)


class Places(tr.KeyedProcessFunction):
    """(key, place, value): in which order the records of a key come."""

    seen = tr.ValueState(int, default=0)

    def process(self, sealed: tuple[int, int], ctx: tr.Context) -> Iterator[Any]:
        value, found = sealed
        assert found == seal(value), f"{value} has come with the seal {found}"
        self.seen.value += 1
        yield ctx.key, self.seen.value, value


class Mine(tr.ProcessFunction):
    """Behind a broadcast: of the copies of a record one passes."""

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        if value % ctx.parallelism == ctx.subtask:
            yield value


class Landed(tr.ProcessFunction):
    """Behind a function that decides where records go: reports records that are elsewhere."""

    def __init__(self, where: Callable[[int], int]) -> None:
        self.where = where

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        yield value if self.where(value) % ctx.parallelism == ctx.subtask else ("astray", value)


class Sides(tr.ProcessFunction):
    """The odd ones go to the side."""

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        if value % 2:
            ctx.emit("odd", value)
        else:
            yield value


class Meets(tr.CoProcessFunction):
    """Numbers what comes for a key, on both of its inputs together."""

    seen = tr.ValueState(int, default=0)

    def process1(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value += 1
        yield ctx.key, self.seen.value

    def process2(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        yield from self.process1(value, ctx)


def seal(value: int) -> int:
    """What a record of this value is known by."""
    return value * 2_654_435_761 % (1 << 32)


def same(value: Any) -> Any:
    """A function that changes nothing."""
    return value


def key(value: Any) -> int:
    """The key of a record, sealed or not."""
    return (value[0] if isinstance(value, tuple) else value) % KEYS


# What goes wrong in the code of a user.

TROUBLE: dict[str, list[int]] = {}
"""Where it raises, and how many calls later each time: a test that uses it clears it."""


def perhaps(where: str) -> None:
    """Raises, if this call is one of those that are to fail."""
    due = TROUBLE.get(where)
    if due:
        due[0] -= 1
        if due[0] <= 0:
            due.pop(0)
            raise RuntimeError(f"{where} was to fail")


class Splits(tr.Source):
    """Of split s the numbers s, s + `KEYS`, s + 2 `KEYS`, …: each once, and in this order."""

    def splits(self, parallelism: int) -> Sequence[int]:
        return range(KEYS)

    def reader(self, split: int, position: Any = None) -> tr.Reader:
        if position is not None:
            perhaps("restore")
        return _SplitReader(split if position is None else position)


class _SplitReader(tr.Reader):
    def __init__(self, at: int) -> None:
        self.at = at

    def read(self, limit: int, now: float) -> Any:
        first, self.at = self.at, min(self.at + KEYS * limit, SOME + self.at % KEYS)
        return list(range(first, self.at, KEYS)) or None

    @property
    def position(self) -> int:
        perhaps("snapshot")
        return self.at


class Fragile(Places):
    """As `Places`, where nothing is to fail."""

    def open(self, ctx: tr.Context) -> None:
        perhaps("open")

    def process(self, sealed: tuple[int, int], ctx: tr.Context) -> Iterator[Any]:
        perhaps("map")
        yield from super().process(sealed, ctx)

    def close(self) -> None:
        perhaps("close")


# Dataflows.


def numbers(env: tr.Environment, first: int = 0, end: int = N, uid: str = "numbers", **how: Any) -> tr.DataStream:
    return env.from_source(tr.sources.Sequence(first, end), uid=uid, **how)


def keyed(env: tr.Environment, life: int = 0) -> tr.DataStream:
    """One reader, and two exchanges by the same key."""
    sealed = numbers(env, parallelism=1).key_by(key).process(Sealed(), uid="sealed")
    return sealed.key_by(key).process(Places(), uid="places")


def few(env: tr.Environment, life: int = 0) -> tr.DataStream:
    """So few records that all of them are on their way when the source has ended."""
    sealed = numbers(env, 0, SOME, parallelism=1).key_by(key).process(Sealed(), uid="sealed")
    return sealed.key_by(key).process(Places(), uid="places")


LOTS = 12


def slow(env: tr.Environment, life: int = 0) -> tr.DataStream:
    """Of each record many are made, and all of these go through two more exchanges. The source has no end."""
    lots = (
        numbers(env, 0, 1 << 30, parallelism=1)
        .rebalance()
        .flat_map(lambda x: [(x, i) for i in range(LOTS)], uid="lots")
    )
    return lots.rebalance().map(same, uid="again").key_by(key).map(same, uid="out")


def paced(rate: float | None) -> Callable[[tr.Environment], tr.DataStream]:
    """A source without an end, so many records a second or as many as there is room for, and an exchange of many more."""

    def build(env: tr.Environment) -> tr.DataStream:
        events = env.from_source(tr.sources.Sequence(0, None, rate=rate), uid="numbers", parallelism=1)
        return events.rebalance().flat_map(lambda x: [x] * LOTS, uid="lots").rebalance().map(same, uid="out")

    return build


def thousandfold(env: tr.Environment, life: int = 0) -> tr.DataStream:
    """Of each record a thousand, through two exchanges."""
    lots = numbers(env, 0, 4).rebalance().flat_map(lambda x: [(x, i) for i in range(1_000)], uid="lots")
    return lots.rebalance().map(same, uid="again").partition_by(lambda r: r[1]).map(same, uid="out")


def in_splits(env: tr.Environment, life: int = 0) -> tr.DataStream:
    """Each split is a key, and goes through two exchanges."""
    sealed = env.from_source(Splits(), uid="splits").key_by(key).process(Sealed(), uid="sealed")
    return sealed.key_by(key).process(Fragile(), uid="places")


def exchanged(how: str) -> Build:
    """A dataflow with one exchange, made twice."""

    def build(env: tr.Environment, life: int) -> tr.DataStream:
        once = getattr(numbers(env), how)().map(same, uid="once")
        return getattr(once, how)().map(same, uid="twice")  # type: ignore[no-any-return]

    return build


def forwarded(env: tr.Environment, life: int) -> tr.DataStream:
    """Edges that forward and are none of a chain, since their reader has several; and one that is, or is not, depending
    on the parallelism."""
    left = numbers(env, 0, N // 2, "left").map(same, uid="l")
    right = numbers(env, N // 2, N, "right", parallelism=2).map(same, uid="r", parallelism=2)
    return left.union(right).map(same, uid="met").map(same, uid="behind", parallelism=2)


def united(env: tr.Environment, life: int) -> tr.DataStream:
    """Streams that come together, and one stream that comes by two ways."""
    one = numbers(env, 0, N // 2, "left").rebalance().map(same, uid="one")
    other = numbers(env, N // 2, N, "right").rebalance().map(same, uid="other")
    both = one.union(other).map(same, uid="both")
    here, there = both.filter(lambda x: x % 3 == 0, uid="here"), both.filter(lambda x: x % 3, uid="there")
    return here.rebalance().map(same, uid="h").union(there.shuffle().map(same, uid="t")).map(same, uid="again")


def mixed(env: tr.Environment, life: int) -> tr.DataStream:
    """One stream parts in three, which go by a function, in turn and to all, and comes together behind an exchange."""
    three = numbers(env).map(same, uid="three")
    by_function, in_turn, to_all = (three.filter(_third(i), uid=f"third{i}") for i in range(3))
    mine = to_all.broadcast().process(Mine(), uid="mine")
    met = by_function.partition_by(key).map(same, uid="by").union(in_turn.rebalance().map(same, uid="turn"), mine)
    return met.rescale().map(same, uid="all")


def _third(which: int) -> Callable[[int], bool]:
    return lambda value: value % 3 == which


def connected(env: tr.Environment, life: int) -> tr.DataStream:
    """Two inputs by key, of one operator."""
    left, right = numbers(env, 0, N // 2, "left"), numbers(env, N // 2, N, "right")
    return left.connect(right).key_by(key, key).process(Meets(), uid="meets")


def broadcast(env: tr.Environment, life: int) -> tr.DataStream:
    """To all, in the middle of exchanges that barriers overtake."""
    once = numbers(env, 0, N // 3).rebalance().map(same, uid="once")
    return once.broadcast().process(Mine(), uid="mine").rebalance().map(same, uid="twice")


def sideways(env: tr.Environment, life: int) -> tr.DataStream:
    """A side output that goes its own way."""
    split = numbers(env).rebalance().process(Sides(), uid="sides")
    odd = split.side_output("odd").rescale().map(same, uid="odd")
    return split.rebalance().map(same, uid="even").union(odd)


FUNCTIONS: dict[int, Callable[[int], int]] = {1: lambda x: x, 2: lambda x: x // 3, 3: lambda x: 7 - x % 5}


def by_function(env: tr.Environment, life: int) -> tr.DataStream:
    """At each size the user's function sends records elsewhere. (At the same size each stays where it was, whatever the
    function returns by then.)"""
    where = FUNCTIONS[env.parallelism]
    return numbers(env).partition_by(where).process(Landed(where), uid="landed")


def by_other_ways(env: tr.Environment, life: int) -> tr.DataStream:
    """In each life the edges are of another kind."""
    once = _by_way(numbers(env), life).map(same, uid="once")
    return _by_way(once, life + 1).map(same, uid="twice").key_by(key).aggregate(n=tr.Count(), uid="count").map(tuple)


def _by_way(stream: tr.DataStream, which: int) -> tr.DataStream:
    if which % 4 == 3:
        return stream.partition_by(key)
    return (stream.rebalance, stream.shuffle, stream.rescale)[which % 4]()


def in_place(n: int) -> Counter[Any]:
    """The output of `Places` for the numbers below n."""
    return Counter((v % KEYS, v // KEYS + 1, v) for v in range(n))


ALL = Counter(range(N))
NUMBERED = Counter((k, i) for k in range(KEYS) for i in range(1, len(range(k, N, KEYS)) + 1))
FLOWS: dict[str, Flow] = {
    "by key": Flow(keyed, in_place(N), lambda r: r[:2]),
    "rebalance": Flow(exchanged("rebalance"), ALL),
    "rescale": Flow(exchanged("rescale"), ALL),
    "shuffle": Flow(exchanged("shuffle"), ALL),
    "forward": Flow(forwarded, ALL),
    "union": Flow(united, ALL),
    "mixed": Flow(mixed, ALL),
    "two inputs": Flow(connected, NUMBERED, same),
    "broadcast": Flow(broadcast, Counter(range(N // 3))),
    "side output": Flow(sideways, ALL),
    "another function": Flow(by_function, ALL),
    "another way": Flow(by_other_ways, NUMBERED, same),
}

# What they run under, and how they are cut.

BEHIND = Conditions(delay=(20, 400), step_cost=(1, 20), budget=(1, 6), encode_limit=(1, 8), zombie=(0, MS))
"""A message takes as long as many steps, and a step a few records."""
NARROW: dict[str, Any] = {"conditions": BEHIND, "tuning": Tuning(window=200), "keep_trace": False}
"""Options of a simulation. Some frames fill a channel."""
BUSY: dict[str, Any] = {**NARROW, "conditions": replace(BEHIND, delay=(0, 2), step_cost=(40, 80), budget=(1, 1))}
"""Options of a simulation in which functions take long."""
SETTINGS = CheckpointSettings(interval=MS // 4, keep=1, tolerated_failures=100_000)
ALIGNED = {"overtakes_after": -1}
POLICIES: dict[str, dict[str, int]] = {
    "unaligned": {"overtakes_after": 0},
    "with a cap": {"overtakes_after": 0, "most_inflight": 4_000},
    "after a time-out": {"overtakes_after": 60},
}

# What is seen of them.


def newest(story: Story) -> Manifest:
    """The newest checkpoint."""
    assert story.files.newest is not None
    return story.files.newest[1]


def in_flight(story: Story) -> int:
    """How many bytes the newest checkpoint has of what barriers have overtaken."""
    return sum(newest(story).in_flight.values())


def from_before(story: Story) -> int:
    """How many records the newest checkpoint has that had been in flight at the one that its job went on from, too."""
    logs = [log for one in newest(story).files for log in load_index(story.files, one.name).logs]
    return sum(piece.count for log in logs if log.kind is LogKind.RETURNED for piece in log.pieces)


def unread_from_before(world: Simulation) -> int:
    """How many records that were in flight at the restored checkpoint nobody has read yet."""
    return sum(
        channel.expected - channel.position
        for worker in world.workers()
        for task in (worker.tasks() if worker.slice is not None else ())
        for channels in task.gate.front
        for channel in channels
    )


def until(world: Simulation, holds: Callable[[], Any], turns: int = 40_000) -> bool:
    """Begins, or goes on, until something holds (True), or the job has ended."""
    if world.coordinator.status is JobStatus.CREATED:
        world.start()
    for _ in range(turns):
        if holds():
            return True
        if world.coordinator.status.final:
            return False
        world.turn()
    raise AssertionError(f"it does not come: {world.trace[-20:]}")


def until_behind(story: Story, world: Simulation, least: int = 1) -> bool:
    """Goes on until one more checkpoint is there that has so many bytes in flight (True), or the job has ended."""
    seen = story.files.commits

    def behind() -> bool:
        nonlocal seen
        if story.files.commits == seen:
            return False
        seen = story.files.commits
        return in_flight(story) >= least

    return until(world, behind)


def source_ended(story: Story) -> bool:
    """Whether every source had ended at the newest checkpoint."""
    sources = [one for one in newest(story).operators if one.uid in ("numbers", "splits", "left", "right")]
    return bool(sources) and all(all(one.finished) for one in sources)


def position(story: Story) -> int:
    """How far the source had read at the newest checkpoint; 0 where there is none."""
    if story.files.newest is None:
        return 0
    parts = [part for one in newest(story).files for part in load_index(story.files, one.name).operators]
    states = [read_meta(part.meta).data for part in parts if part.uid == "numbers" and part.meta is not None]
    held = [one for data in states if data is not None for one in decode_state(data).held]
    return max(
        (pickle.loads(one.position) for one in held if one.position is not None),
        default=N if source_ended(story) else 0,
    )


def progress_at_failures(story: Story, world: Simulation, period: int, failures: int) -> tuple[list[int], list[int]]:
    """How far the source was in the newest checkpoint, and how many bytes that had in flight, each time when a worker dies:
    every `period` microseconds."""
    reached, sizes, due = [], [], 0
    for number in range(failures):
        due = max(due, world.now) + period
        until(world, lambda due=due: world.now >= due)  # type: ignore[misc]
        reached.append(position(story))
        sizes.append(0 if story.files.newest is None else in_flight(story))
        if world.processes:
            world.kill(list(world.processes.values())[number % len(world.processes)])
    return reached, sizes
