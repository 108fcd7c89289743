"""Broadcast state in jobs: every subtask has the same copy at each checkpoint, whatever is lost, in flight or rescaled."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from search.stories import EVERY_MS, MS, Story
from tailrace.errors import IncompatibleState
from tailrace.storage.reading import load_index
from tailrace.task.subtask.snapshot import read_meta
from tailrace.testing.faults import Fault

N, RULES, KEYS = 240, 40, 9


def same(value: Any) -> Any:
    return value


def key(value: int) -> int:
    return value % KEYS


class Pairs(tr.BroadcastProcessFunction):
    """Each key with each rule, once: at the first record of the key, or when the rule comes. The state has the order of the
    rules as well."""

    rules = tr.BroadcastState(int, int)
    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        yield "count", ctx.key, self.count.value
        if self.count.value == 1:
            for rule in self.rules:
                yield "pair", ctx.key, rule

    def process_broadcast(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.rules[value] = len(self.rules)
        for one in ctx.keys(self.count):
            yield "pair", one, value

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        yield "copy", sorted(self.rules) == [*range(RULES)], sorted(self.rules.values()) == [*range(RULES)]


def program(env: tr.Environment) -> tr.DataStream:
    records = env.from_source(tr.sources.Sequence(0, N, rate=12_000.0), uid="records")
    rules = env.from_source(tr.sources.Sequence(0, RULES, rate=2_000.0), uid="rules").rebalance().map(same, uid="sent")
    return records.key_by(key).connect(rules.broadcast()).process(Pairs(), uid="pairs")


def expected(parallelism: int) -> Counter[Any]:
    counts = Counter(("count", key(i), 1 + i // KEYS) for i in range(N))
    pairs = Counter(("pair", one, rule) for one, rule in itertools.product(range(KEYS), range(RULES)))
    return counts + pairs + Counter({("copy", True, True): parallelism})


UNALIGNED = replace(EVERY_MS, overtakes_after=0, most_inflight=-1)
WAYS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"checkpoints": UNALIGNED},
    "replaced": {"checkpoints": UNALIGNED, "replaces": True, "spares": 1, "depth": 1},
    "hot": {"replaces": True, "spares": 2, "depth": 1, "hot": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_each_key_meets_each_rule_once_whatever_is_lost(way: str, seed: int) -> None:
    story = Story.begin(f"{way} {seed}")
    faults = [Fault(200 + 300 * i, "kill", which=seed + i) for i in range(4)]
    world = story.finish(story.simulation(program, parallelism=3, seed=seed, faults=faults, **WAYS[way]))
    story.is_right(expected(3))
    assert world.covered["killed"] and world.covered["checkpoints"] != 1


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("parallelisms", [(2, 3, 1), (1, 2, 2), (3, 1, 2)])
def test_at_another_parallelism_every_subtask_has_the_whole(
    parallelisms: tuple[int, int, int], disk: bool, tmp_path: Path
) -> None:
    story = Story.begin(f"{parallelisms} {disk}")
    for number, parallelism in enumerate(parallelisms):
        begin = story.again if number else story.simulation
        folder = str(tmp_path) if disk else None
        world = begin(program, parallelism=parallelism, seed=7 + number, checkpoints=UNALIGNED, disk=folder)
        if number == len(parallelisms) - 1:
            break
        world.start()
        commits = story.files.commits
        while story.files.commits < commits + 3:
            assert not world.coordinator.status.final
            world.turn()
    story.finish(world)
    story.is_right(expected(parallelisms[-1]))


def test_a_checkpoint_holds_one_copy() -> None:
    story = Story.begin("one copy")
    story.finish(story.simulation(program, parallelism=3, seed=1))
    assert story.files.newest is not None
    manifest = story.files.newest[1]
    indexes = [load_index(story.files, file.name) for file in manifest.files]
    parts = [one for index in indexes for one in index.operators if one.uid == "pairs"]
    assert sorted((one.subtask, read_meta(one.meta).data is not None) for one in parts) == [
        (0, True),
        (1, False),
        (2, False),
    ]
    (record,) = [one for one in manifest.operators if one.uid == "pairs"]
    assert [(one.name, one.kind, one.type, one.empty) for one in record.own] == [
        ("rules", "broadcast", "int, int", False)
    ]


class Differs(Pairs):
    """A broadcast function whose copies follow from what the subtask is."""

    def process_broadcast(self, value: int, ctx: tr.Context) -> None:
        self.rules[value] = ctx.subtask if value == RULES // 2 else 0


def test_copies_that_differ_are_in_no_checkpoint_and_fail_the_job() -> None:
    env = tr.Environment(
        parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory", interval=0.001), restart=tr.NoRestart()
    )
    records = env.from_source(tr.sources.Sequence(0, N, rate=60_000.0))
    rules = env.from_source(tr.sources.Sequence(0, RULES, rate=10_000.0))
    records.key_by(key).connect(rules.broadcast()).process(Differs(), name="differs").sink_to(tr.sinks.Collect())
    job = tr.testing.simulate(env, seed=3)
    assert "operator 'differs': its subtasks have different copies of broadcast state 'rules'" in str(job.exception())


def test_records_that_were_in_flight_on_an_edge_that_is_broadcast_now_are_refused() -> None:
    """Some subtasks would read them before a cut, and others behind it."""

    class Once(tr.CoProcessFunction):
        count = tr.ValueState(int, default=0)

        def process1(self, value: int, ctx: tr.Context) -> None: ...

        def process2(self, value: int, ctx: tr.Context) -> None: ...

    def before(env: tr.Environment) -> tr.DataStream:
        records = env.from_source(tr.sources.Sequence(0, N), uid="records")
        rules = env.from_source(tr.sources.Sequence(0, 100_000), uid="rules", parallelism=1)
        return records.key_by(key).connect(rules.key_by(key)).process(Once(), uid="pairs")

    def after(env: tr.Environment) -> tr.DataStream:
        records = env.from_source(tr.sources.Sequence(0, N), uid="records")
        rules = env.from_source(tr.sources.Sequence(0, 100_000), uid="rules", parallelism=1)
        return records.key_by(key).connect(rules.broadcast()).process(Pairs(), uid="pairs")

    story = Story.begin("became a broadcast")
    world = story.simulation(before, checkpoints=replace(UNALIGNED, interval=2 * MS), seed=2)
    world.start()
    while not story.files.overtaken:
        assert not world.coordinator.status.final
        world.turn()
    with pytest.raises(IncompatibleState, match="and are broadcast to it now"):
        story.finish(story.again(after))


def looped(env: tr.Environment) -> tr.DataStream:
    """A loop whose feedback is broadcast to it as rules: a record goes around as often as its last digit."""

    def body(stream: tr.DataStream) -> Any:
        rules = stream.filter(lambda pair: pair[1] > 0, uid="rules").map(
            lambda pair: pair[0] * 10 + pair[1], uid="told"
        )
        keyed = stream.map(lambda pair: pair[0], uid="bare").key_by(key)
        out = keyed.connect(rules.broadcast()).process(Met(), uid="met")
        back = stream.filter(lambda pair: pair[1] > 0, uid="left").map(lambda pair: (pair[0], pair[1] - 1), uid="back")
        return back.rebalance(), out

    numbers = env.from_source(tr.sources.Sequence(0, 40, rate=10_000.0), uid="records")
    return numbers.map(lambda i: (i, i % 3), uid="pairs").iterate(body, uid="loop")


class Met(Pairs):
    """`Pairs` without its counts."""

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        yield from (one for one in super().process(value, ctx) if one[0] == "pair")

    def finish(self, ctx: tr.Context) -> None: ...


@pytest.mark.parametrize("seed", range(3))
def test_in_a_loop_feedback_may_be_broadcast(seed: int) -> None:
    story = Story.begin(f"looped {seed}")
    faults = [Fault(200 + 300 * i, "kill", which=seed + i) for i in range(3)]
    story.finish(story.simulation(looped, parallelism=3, seed=seed, faults=faults, checkpoints=UNALIGNED))
    rules = [i * 10 + left for i in range(40) for left in range(1, i % 3 + 1)]
    story.is_right(Counter(("pair", one, rule) for one in range(KEYS) for rule in rules))


def test_both_streams_may_be_in_columns() -> None:
    class Rates(tr.BroadcastProcessFunction):
        rate = tr.BroadcastState(str, int)
        sold = tr.ValueState(int, default=0)

        def process(self, sale: Any, ctx: tr.Context) -> None:
            self.sold.value += sale.count

        def process_broadcast(self, rate: Any, ctx: tr.Context) -> None:
            self.rate[rate.name] = rate.value

        def on_timer(self, timestamp: float, ctx: tr.Context) -> None: ...

        def finish(self, ctx: tr.Context) -> Iterator[Any]:
            yield dict(sorted(self.rate.value.items()))

    env = tr.Environment(parallelism=2)
    sales = env.from_collection([("a", 1), ("b", 2)]).to_columns("name string, count long")
    rates = env.from_collection([("x", 3), ("y", 4)]).rebalance().to_columns("name string, value long")
    out = sales.key_by("name").connect(rates.broadcast()).process(Rates()).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [{"x": 3, "y": 4}] * 2


# In the order of event time.


class AsOf(tr.BroadcastProcessFunction):
    """What each record sees of the rules, and each rule of the records."""

    rules = tr.BroadcastState(int, int)
    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        ctx.set_timer(event_time=ctx.timestamp + 3)
        yield "record", value, list(self.rules)[-2:], len(self.rules)

    def process_broadcast(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        self.rules[value] = len(self.rules)
        if ctx.subtask == 0:
            yield "rule", value
            ctx.emit("told", ("emitted", value))
        for one in ctx.keys(self.count):
            yield "on a key", value, one, self.count.value
            ctx.emit("told", ("on a key", value, one))

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "timer", ctx.key, timestamp, len(self.rules)


def time_of(value: int) -> float:
    return float(value + value * 5 % 7)


def time_of_rule(value: int) -> float:
    return float(6 * value + value % 3)


def plain(value: Any) -> Any:
    return tuple(map(str, value))


def ordered(env: tr.Environment) -> tr.DataStream:
    records = env.from_source(tr.sources.Sequence(0, N, rate=12_000.0), uid="records")
    rules = env.from_source(tr.sources.Sequence(0, RULES, rate=2_000.0), uid="rules")
    timed = records.assign_timestamps(time_of, 8.0, uid="timed").key_by(key)
    rules = rules.assign_timestamps(time_of_rule, 8.0, uid="timed rules").rebalance().map(same, uid="sent")
    out = timed.connect(rules.broadcast()).process(AsOf(), ordered=True, uid="as of")
    late = out.side_output("late").map(lambda r: ("late", r), uid="late")
    return out.union(out.side_output("told"), late).map(plain, uid="plain")


def model() -> Counter[Any]:
    """What must come out, by a look at all records at once."""
    events = sorted(
        [(time_of_rule(rule), 0, rule) for rule in range(RULES)]
        + [(time_of(i), 1, i) for i in range(N)]
        + [(time, 2, one) for time, one in {(time_of(i) + 3, key(i)) for i in range(N)}]
    )
    found: Counter[Any] = Counter()
    rules: list[int] = []
    counts: Counter[int] = Counter()
    for time, kind, value in events:
        if kind == 0:
            rules.append(value)
            found.update([plain(("rule", value)), plain(("emitted", value))])
            for one in counts:
                found[plain(("on a key", value, one, counts[one]))] += 1
                found[plain(("on a key", value, one))] += 1
        elif kind == 1:
            counts[key(value)] += 1
            found[plain(("record", value, rules[-2:], len(rules)))] += 1
        else:
            found[plain(("timer", value, time, len(rules)))] += 1
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_in_the_order_of_time_results_depend_on_nothing_else(way: str, seed: int) -> None:
    story = Story.begin(f"ordered {way} {seed}")
    faults = [Fault(300 + 400 * i, "kill", which=seed + i) for i in range(4)]
    story.finish(story.simulation(ordered, parallelism=3, seed=seed, faults=faults, **WAYS[way]))
    story.is_right(model())


@pytest.mark.parametrize("seed", range(8))
def test_in_the_order_of_time_nothing_is_done_twice_at_another_parallelism(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    story = Story.begin(f"ordered lives {seed}")
    for number in range(5):
        begin, parallelism = story.again if number else story.simulation, rng.choice([1, 2, 3])
        folder = str(tmp_path) if seed % 2 else None
        world = begin(ordered, parallelism=parallelism, seed=10 * seed + number, checkpoints=UNALIGNED, disk=folder)
        if number == 4:
            break
        world.start()
        commits = story.files.commits + 2
        while story.files.commits < commits and not world.coordinator.status.final:
            world.turn()
        if world.coordinator.status.final:
            break
    story.finish(world)
    story.is_right(model())
