"""Golden programs: dataflows whose result must be the same however they run: straight, at several parallelisms, and under
many schedules of a simulated cluster. Records of one key from one split never pass each other."""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tailrace as tr
from search.programs.golden import Enrich

pytestmark = pytest.mark.search

N = 240
SEEDS = range(4)

# The programs. Each gives records that can be counted.


def words(env: tr.Environment) -> tr.DataStream:
    """Running counts after a flat_map; the input is split."""
    lines = env.from_source(tr.sources.Generator(lambda i: f"w{i % 7} w{i % 3} x{i % 11}", count=N // 3))
    return lines.flat_map(str.split).filter(lambda word: word != "w0").key_by(lambda word: word).count()


def columns(env: tr.Environment) -> tr.DataStream:
    """Windows over columns, with a key of two columns."""
    schema = pa.schema([("k", pa.int64()), ("name", pa.string()), ("at", pa.int64()), ("x", pa.float64())])
    rows = env.from_source(tr.sources.Sequence(0, N)).map(lambda i: (i % 5, f"n{i % 2}", i, i / 4))
    stream = rows.to_columns(schema).map_batches(lambda batch: batch).assign_timestamps("at", 5.0)
    windows = stream.key_by(("k", "name")).window(tr.Sliding(20, 10, offset=-3))
    return windows.aggregate(n=tr.Count(), total=tr.Sum("x"), low=tr.Min("x"), mean=tr.Mean("x")).map(tuple)


def numbered_windows(env: tr.Environment) -> tr.DataStream:
    """Windows over columns by small numbers, with all that they may aggregate, nulls, and windows of their results."""
    rows = env.from_source(tr.sources.Sequence(0, N)).map(lambda i: (i % 7, i, None if i % 5 == 0 else i / 4))
    timed = (
        rows.to_columns("k long, at long, x double").assign_timestamps("at", 5.0).key_by("k").window(tr.Tumbling(20))
    )
    first = timed.aggregate(n=tr.Count(), x=tr.Sum("x"), low=tr.Min("x"), high=tr.Max("at"), mean=tr.Mean("at"))
    return (
        first.key_by("k")
        .window(tr.Sliding(60, 40))
        .aggregate(
            n=tr.Sum("n"),
            x=tr.Sum("x"),
            low=tr.Min("low"),
            high=tr.Max("high"),
            mean=tr.Mean("mean"),
            windows=tr.Count(),
        )
        .map(tuple)
    )


def expressions(env: tr.Environment) -> tr.DataStream:
    """Columns from end to end: expressions, branches that meet again, a loop, frames of pandas, windows."""
    rows = env.from_source(tr.sources.Sequence(0, N)).map(lambda i: (i, i % 4, None if i % 7 == 0 else f"n{i % 3}"))
    timed = rows.to_columns("id long, left long, name string").assign_timestamps("id", 5.0)
    named = timed.filter(pc.field("name") != "n2").with_columns({"name": pc.utf8_upper(pc.field("name"))})
    rest = timed.filter(pc.field("name").is_null() | (pc.field("name") == "n2"))
    both = named.union(rest.select("id", "left", {"name": pc.coalesce(pc.field("name"), "none")}))

    def down(laps: tr.DataStream) -> Any:
        fewer = laps.with_columns(left=pc.field("left") - 1)
        return fewer.filter(pc.field("left") > 0).rebalance(), fewer.filter(pc.field("left") <= 0)

    done = both.iterate(down).map_batches(lambda frame: frame.assign(half=frame["id"] / 2), format="pandas")
    windows = done.select("name", "half").key_by("name").window(tr.Tumbling(40))
    return windows.aggregate(n=tr.Count(), total=tr.Sum("half")).filter(pc.field("n") > 1).map(tuple)


class Sessions(tr.KeyedProcessFunction):
    """Gaps of more than ten seconds part the sessions of a key. What arrives waits for the watermark, so that the order in
    which splits interleave makes no difference."""

    waiting = tr.ListState(float)
    open_since = tr.ValueState(float)
    last = tr.ValueState(float)

    def process(self, value: Any, ctx: tr.Context) -> None:
        self.waiting.add(ctx.timestamp)
        ctx.set_timer(event_time=ctx.timestamp)
        ctx.set_timer(event_time=ctx.timestamp + 10)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        mine = [time for time in self.waiting.get() if time <= timestamp]
        self.waiting.update([time for time in self.waiting.get() if time > timestamp])
        for time in sorted(mine):
            if self.open_since.value is None:
                self.open_since.value = time
            self.last.value = time
        if self.last.value is not None and timestamp - self.last.value >= 10:
            yield ctx.key, self.open_since.value, self.last.value
            self.open_since.clear()
            self.last.clear()


def sessions(env: tr.Environment) -> tr.DataStream:
    """State and timers of event time."""
    clicks = env.from_source(tr.sources.Sequence(0, N)).map(lambda i: (f"u{i * i % 7}", (i * 37) % 311))
    timed = clicks.assign_timestamps(lambda click: click[1], 311)
    return timed.key_by(lambda click: click[0]).process(Sessions())


def joined(env: tr.Environment) -> tr.DataStream:
    """Two inputs that meet under a key."""
    orders = env.from_source(tr.sources.Sequence(0, N))
    customers = env.from_collection([(i, f"c{i}") for i in range(13)])
    return orders.connect(customers).key_by(lambda o: o % 13, lambda c: c[0]).process(Enrich())


def scattered(env: tr.Environment) -> tr.DataStream:
    """Every partitioning, one after the other, with branches that part and meet again."""
    numbers = env.from_source(tr.sources.Sequence(0, N), parallelism=1)
    spread = numbers.rebalance().map(lambda x: ("spread", x)).rescale().map(lambda r: r).shuffle().map(lambda r: r)
    chosen = numbers.partition_by(lambda x: x // 3).map(lambda x: ("chosen", x))
    sorted_out = numbers.process(odd_aside)
    odd = sorted_out.side_output("odd").rebalance().map(lambda x: ("odd", x))
    return spread.union(chosen, odd, sorted_out.map(lambda x: ("even", x)))


def odd_aside(value: int, ctx: tr.Context) -> list[int] | None:
    if value % 2:
        ctx.emit("odd", value)
        return None
    return [value]


class AtTheEnd(tr.KeyedProcessFunction):
    """Gathers until a timer of the clock, which is awaited at the end; that one sets one of event time."""

    seen = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: tr.Context) -> None:
        if not self.seen.value:
            ctx.set_timer(processing_time=ctx.now() + 3600)
        self.seen.value += value

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        if ctx.time_domain == "processing":
            ctx.set_timer(event_time=timestamp)
        else:
            yield ctx.key, self.seen.value


def awaited(env: tr.Environment) -> tr.DataStream:
    """Timers of the clock, awaited at the end of the input, in two operators one behind the other."""
    gathered = env.from_source(tr.sources.Sequence(1, N)).key_by(lambda x: x % 10).process(AtTheEnd())
    return gathered.map(lambda r: r[1]).key_by(lambda x: x % 3).process(AtTheEnd())


def heavy(env: tr.Environment) -> tr.DataStream:
    """Records of very different sizes, some larger than a channel's window."""
    sizes = env.from_source(tr.sources.Sequence(0, 60)).map(
        lambda i: (i % 9, b"x" * (120_000 if i % 20 == 0 else i * 50))
    )
    return (
        sizes.key_by(lambda r: r[0])
        .process(lambda r, ctx: [(ctx.key, len(r[1]), r[1])])
        .rebalance()
        .map(lambda r: r[:2])
    )


def reduced(env: tr.Environment) -> tr.DataStream:
    """The order within a key is what counts: one split, a shuffle, and a reduce that does not commute."""
    letters = env.from_source(tr.sources.Sequence(0, N), parallelism=1).map(lambda i: (i % 8, str(i)))
    return letters.key_by(lambda r: r[0]).reduce(lambda a, b: (a[0], f"{a[1]}-{b[1]}"[-40:]))


class Kind(Enum):
    INSIDE = 0
    OUTSIDE = 1


@dataclass(frozen=True)
class Seat:
    kind: Kind
    row: Any


class Met(tr.CoProcessFunction):
    """Sums what came from both sides, and emits the sum when event time has passed the last of it."""

    total = tr.ValueState(int, default=0)

    def process1(self, value: Any, ctx: tr.Context) -> None:
        self.total.value += value[1]
        ctx.set_timer(event_time=1000)

    def process2(self, value: Any, ctx: tr.Context) -> None:
        self.process1((None, value.at), ctx)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield ctx.key, self.total.value


def objects(env: tr.Environment) -> tr.DataStream:
    """Keys are objects of a dataclass, made from rows and from columns, in state, timers, windows and aggregates."""
    numbers = env.from_source(tr.sources.Sequence(0, N))
    rows = numbers.map(lambda i: (Seat(Kind(i % 2), i % 5), i)).assign_timestamps(lambda r: r[1], 311)
    table = numbers.map(lambda i: (i % 2, i % 5, i)).to_columns("kind long, row long, at long")
    table = table.assign_timestamps("at", 311)
    met = rows.connect(table).key_by(lambda r: r[0], lambda r: Seat(Kind(r.kind), float(r.row))).process(Met())
    windows = rows.key_by(lambda r: r[0]).window(tr.Tumbling(50)).aggregate(n=tr.Count(), last=tr.Max(lambda r: r[1]))
    counts = table.key_by(lambda r: (Kind(r.kind), Seat(Kind.INSIDE, None))).count()
    return met.union(windows.map(tuple), counts)


def nothing(env: tr.Environment) -> tr.DataStream:
    """No record ever reaches the end."""
    numbers = env.from_source(tr.sources.Sequence(0, N)).filter(lambda x: False)
    return numbers.assign_timestamps(lambda x: x).key_by(lambda x: x).window(tr.Tumbling(10)).count()


PROGRAMS: list[Callable[[tr.Environment], tr.DataStream]] = [
    words,
    columns,
    numbered_windows,
    expressions,
    sessions,
    joined,
    scattered,
    awaited,
    heavy,
    reduced,
    objects,
    nothing,
]


# Running them.


@dataclass
class Ran:
    records: list[Any]
    digest: str


def run(program: Callable[[tr.Environment], tr.DataStream], parallelism: int, seed: int | None, **settings: Any) -> Ran:
    env = tr.Environment(parallelism=parallelism, **settings)
    out = program(env).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env) if seed is None else tr.testing.simulate(env, seed=seed)
    job.await_termination()
    return Ran(out.result(), job.digest)


EXPECTED: dict[Any, Counter[Any]] = {}


def expected(program: Callable[[tr.Environment], tr.DataStream]) -> Counter[Any]:
    """What the program gives when it runs straight, in one worker."""
    if program not in EXPECTED:
        EXPECTED[program] = Counter(run(program, 1, None).records)
    return EXPECTED[program]


def name(program: Any) -> str:
    return str(program.__name__)


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_each_program_gives_something_worth_comparing(program: Any) -> None:
    assert len(expected(program)) >= 10 or program in (nothing, awaited)


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_at_another_parallelism_the_result_is_the_same(program: Any, parallelism: int) -> None:
    assert Counter(run(program, parallelism, None).records) == expected(program)


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_under_every_schedule_the_result_is_the_same(program: Any) -> None:
    digests = set()
    for seed in SEEDS:
        ran = run(program, 1 + seed % 3, seed, debug=seed % 4 == 0)
        assert Counter(ran.records) == expected(program), f"seed {seed}"
        digests.add(ran.digest)
    assert len(digests) == len(SEEDS), "other seeds are other schedules"


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_with_little_memory_copies_and_checks_the_result_is_the_same(program: Any) -> None:
    for seed in (100, 101):
        ran = run(program, 3, seed, memory="1m", debug=True, copy_records=True)
        assert Counter(ran.records) == expected(program), f"seed {seed}"


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_records_of_a_key_from_one_split_never_pass_each_other(parallelism: int) -> None:
    def ordered(env: tr.Environment) -> tr.DataStream:
        numbers = env.from_source(tr.sources.Sequence(0, N)).map(lambda i: (i % 5, i % parallelism, i))
        once = numbers.key_by(lambda r: r[0]).process(lambda r, ctx: [r])
        return once.map(lambda r: r).key_by(lambda r: (r[0], r[0])).process(lambda r, ctx: [r]).filter(lambda r: True)

    for seed in SEEDS:
        ran = run(ordered, parallelism, seed)
        by_key: dict[Any, list[int]] = defaultdict(list)
        for key, split, number in ran.records:
            by_key[key, split].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), f"seed {seed}"
        assert sum(map(len, by_key.values())) == N


@pytest.mark.parametrize("window", [1, 300, 5_000])
@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_where_credit_is_short_all_wait_and_nobody_forever(
    program: Any, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.protocol.credit.MIN_WINDOW", window)
    monkeypatch.setattr("tailrace.protocol.credit.MAX_WINDOW", window)
    for seed in range(2):
        assert Counter(run(program, 1 + seed, seed, debug=True).records) == expected(program), f"seed {seed}"


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_record_by_record_the_result_is_the_same(program: Any) -> None:
    one = tr.testing.Conditions(delay=(0, 10), step_cost=(1, 1), budget=(1, 1))
    env = tr.Environment(parallelism=2)
    out = program(env).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, conditions=one).await_termination()
    assert Counter(out.result()) == expected(program)


@pytest.mark.parametrize("program", [words, heavy, scattered], ids=name)
def test_with_many_workers_and_the_least_memory_the_result_is_the_same(program: Any) -> None:
    assert Counter(run(program, 12, 1, memory="1m", max_parallelism=16).records) == expected(program)


HISTORIES = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("golden", sys.argv[1])
golden = sys.modules["golden"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)
for program in golden.PROGRAMS:
    ran = golden.run(program, 3, 11)
    print(program.__name__, ran.digest, ran.records)
"""


def test_each_program_has_one_history_per_seed_in_every_process() -> None:
    def told(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HISTORIES, __file__]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120).stdout

    first, second = told("1"), told("2")
    assert first == second and len(first.splitlines()) == len(PROGRAMS)
