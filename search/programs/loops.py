"""Golden programs for the search, with loops: each has one right result, like those of `search.programs.golden`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr

Records = Counter[Any]


@dataclass(frozen=True)
class LoopOptions:
    """Options for every loop that is built in the context. None: as the program sets it."""

    memory: int | None = None
    """Bytes of feedback that wait in memory."""
    priority: Literal["adaptive", "feedback-first"] | None = None
    """Priority where input and feedback both wait."""


_CHOSEN: ContextVar[LoopOptions | None] = ContextVar("options of loops", default=None)


@contextlib.contextmanager
def loops_with(options: LoopOptions) -> Iterator[None]:
    """A context in which loops are built with these options."""
    token = _CHOSEN.set(options)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def looping(memory: int = 64 << 20, priority: Any = "adaptive") -> dict[str, Any]:
    """The options of a loop: the program's own, or those of the context."""
    chosen = _CHOSEN.get() or LoopOptions()
    spill = tr.Spill(memory_bytes=memory if chosen.memory is None else chosen.memory)
    return {"spill": spill, "priority": priority if chosen.priority is None else chosen.priority}


class Hop(NamedTuple):
    """A record and its number of laps left."""

    id: int
    left: int


def numbers(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """0, 1, 2, … from a source."""
    return env.from_source(tr.sources.Sequence(0, n, rate=rate))


def numbered(totals: Counter[Any]) -> Records:
    """(key, 1), (key, 2), … for each key."""
    return Counter((key, i) for key, total in totals.items() for i in range(1, total + 1))


# One loop, keyed: the shuffle is on the feedback edge, and the head runs with the operator.


class Visit(tr.KeyedProcessFunction):
    """A function that numbers the visits of each key, and sends on records that have laps left."""

    seen = tr.ValueState(int, default=0)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        self.seen.value += 1
        yield "visit", ctx.key, self.seen.value
        if hop[1] > 0:
            yield Hop(hop[0], hop[1] - 1)


def laps_of(i: int) -> int:
    """Number of laps of a record."""
    return i * i % 7


def place_of(hop: Any) -> int:
    """The key of a hop: another one in each lap."""
    return (hop[0] * 5 + hop[1] * 3) % 11


def _going(stream: tr.DataStream) -> tr.DataStream:
    return stream.filter(lambda r: isinstance(r, Hop))


def _told(stream: tr.DataStream) -> tr.DataStream:
    return stream.filter(lambda r: not isinstance(r, Hop)).map(lambda r: r[1:])


def visited(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Records that visit another key in each lap."""

    def body(hops: tr.DataStream) -> Any:
        visits = hops.key_by(place_of).process(Visit())
        return _going(visits), _told(visits)

    hops = numbers(env, n, rate).map(lambda i: Hop(i, laps_of(i)))
    return hops.iterate(body, **looping(memory=300))


def _visits(n: int) -> Counter[Any]:
    return Counter(place_of((i, left)) for i in range(n) for left in range(laps_of(i) + 1))


# One loop whose feedback goes straight on, with shuffles inside; and an output of its own for each lap.


def wandered(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop with shuffles of several kinds inside, and two feedback streams."""

    def body(hops: tr.DataStream) -> Any:
        moved = hops.map(lambda hop: Hop(hop[0], hop[1] - 1)).rebalance().map(lambda hop: hop)
        visits = moved.filter(lambda hop: hop[1] >= 0).key_by(place_of).process(Stay())
        odd, even = visits.filter(lambda r: r[1] % 2 == 1), visits.filter(lambda r: r[1] % 2 == 0)
        return [odd.map(tuple), even.rebalance()], moved.filter(lambda hop: hop[1] < 0).map(lambda hop: hop[0])

    return numbers(env, n, rate).map(lambda i: Hop(i, laps_of(i))).iterate(body, **looping(priority="feedback-first"))


class Stay(tr.KeyedProcessFunction):
    """A function that lets every record pass, and remembers it."""

    seen = tr.ListState(int)

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        self.seen.add(hop[0])
        yield hop


# Loops one after the other.


def in_sequence(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop behind a loop; the second one receives what the first one emitted, in any order."""

    def first(hops: tr.DataStream) -> Any:
        down = hops.map(lambda hop: Hop(hop[0], hop[1] - 1))
        return down.filter(lambda hop: hop[1] > 0), down.filter(lambda hop: hop[1] <= 0)

    def second(hops: tr.DataStream) -> Any:
        visits = hops.key_by(place_of).process(Visit())
        return _going(visits), _told(visits)

    once = numbers(env, n, rate).map(lambda i: Hop(i, 1 + i % 3)).iterate(first, **looping())
    return once.map(lambda hop: Hop(hop[0], laps_of(hop[0]))).rebalance().iterate(second, **looping())


# Loops in loops, four levels deep.

DEEP = 4


def nested(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Nested loops. A record has a digit for each level: the innermost loop counts its own down, and each outer one starts
    it again."""
    starts = numbers(env, n, rate).map(lambda i: (i, [i >> level & 1 for level in range(DEEP)]))
    return starts.map(lambda r: (r[0], tuple(r[1]), 0)).iterate(_level(0), **looping()).map(lambda r: (r[0], r[2]))


def _level(level: int) -> Any:
    def body(stream: tr.DataStream) -> Any:
        inner = stream if level == DEEP - 1 else stream.map(_wound(level)).iterate(_level(level + 1), **looping())
        counted = inner.key_by(lambda r: r[0] % 5).process(Lap())
        moved = counted.map(_counted_down(level))
        return moved.filter(lambda r: r[3]).map(lambda r: r[:3]), moved.filter(lambda r: not r[3]).map(lambda r: r[:3])

    return body


def _wound(level: int) -> Any:
    """A function that sets the digits of the levels inside to their start."""
    return lambda r: (r[0], r[1][: level + 1] + tuple(r[0] >> inner & 1 for inner in range(level + 1, DEEP)), r[2])


def _counted_down(level: int) -> Any:
    def down(r: Any) -> Any:
        left = r[1][level]
        digits = (*r[1][:level], max(0, left - 1), *r[1][level + 1 :])
        return r[0], digits, r[2], left > 0

    return down


class Lap(tr.KeyedProcessFunction):
    """A function that counts a lap in the record, and in the state."""

    laps = tr.MapState(int, int)

    def process(self, r: Any, ctx: tr.Context) -> Iterator[Any]:
        self.laps.put(r[0], self.laps.get(r[0], 0) + 1)
        yield r[0], r[1], self.laps.get(r[0])


def _nested(n: int) -> Records:
    """The result of `nested`."""

    def laps(i: int, level: int) -> int:
        inside = 0 if level == DEEP - 1 else laps(i, level + 1)
        return (inside + 1) * ((i >> level & 1) + 1)

    return Counter((i, _last_count(i)) for i in range(n))


def _last_count(i: int) -> int:
    """Count of the outermost loop's own counter when the record leaves: each level counts by itself."""
    return (i & 1) + 1


# A loop whose feedback is of another type, and one with a stream from outside in it.


class Bank(tr.CoProcessFunction):
    """A function that takes deposits and pays each back in instalments, which go round the loop."""

    paid = tr.ValueState(int, default=0)

    def process1(self, deposit: int, ctx: tr.Context) -> Iterator[Any]:
        yield "owe", deposit, deposit % 4

    def process2(self, owed: Any, ctx: tr.Context) -> Iterator[Any]:
        self.paid.value += 1
        yield "paid", ctx.key, self.paid.value
        if owed[2] > 1:
            yield "owe", owed[1], owed[2] - 1


def separate(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop with two types by `iterate_with_feedback`, keyed alike."""

    def body(both: tr.ConnectedStreams) -> Any:
        done = both.key_by(lambda deposit: deposit % 6, lambda owed: owed[1] % 6).process(Bank())
        owed = done.filter(lambda r: r[0] == "owe" and r[2] > 0)
        return owed, done.filter(lambda r: r[0] == "paid").map(lambda r: r[1:])

    return numbers(env, n, rate).iterate_with_feedback(body, **looping())


def _separate(n: int) -> Records:
    return numbered(Counter(i % 6 for i in range(n) for _ in range(i % 4)))


class Named(tr.CoProcessFunction):
    """A function that holds hops of a key until its name has come in from outside."""

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


def entered(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop that a stream from outside enters. The stream ends early, and its names are needed in every lap."""
    names = env.from_collection([(place, f"p{place}") for place in range(11)])

    def body(hops: tr.DataStream) -> Any:
        inside = names.enter(hops.scope)
        named = hops.connect(inside).key_by(place_of, lambda r: r[0]).process(Named())
        going = named.filter(lambda r: r[1][1] > 0).map(lambda r: Hop(r[1][0], r[1][1] - 1))
        return going, named.map(lambda r: (r[0], r[1][0], r[1][1]))

    return numbers(env, n, rate).map(lambda i: Hop(i, laps_of(i))).iterate(body, **looping())


def _entered(n: int) -> Records:
    return Counter((f"p{place_of((i, left))}", i, left) for i in range(n) for left in range(laps_of(i) + 1))


# Random commands: every record is a small tree of sends through the loop.


def _tree(seed: int, depth: int) -> tuple[int, tuple[Any, ...]]:
    """(key, children): a tree that follows from its seed and nothing else."""
    mixed = (seed * 2_654_435_761 + depth * 40_503) % 4_294_967_291
    children = (mixed >> 7) % 4 if depth else 0
    return mixed % 17, tuple(_tree(mixed + 31 * child + 7, depth - 1) for child in range(children))


class Command(tr.KeyedProcessFunction):
    """A function that counts its visits, and sends the commands that its command contains."""

    sent = tr.ValueState(int, default=0)

    def process(self, tree: Any, ctx: tr.Context) -> Iterator[Any]:
        self.sent.value += 1
        yield "visit", ctx.key, self.sent.value
        yield from (("tree", child) for child in tree[1])


def commanded(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Random trees of commands; the number of visits of each key is known beforehand."""

    def body(trees: tr.DataStream) -> Any:
        out = trees.key_by(lambda tree: tree[0]).process(Command())
        going = out.filter(lambda r: r[0] == "tree").map(lambda r: r[1])
        return going, out.filter(lambda r: r[0] == "visit").map(lambda r: r[1:])

    return numbers(env, n, rate).map(lambda i: _tree(i, 3)).iterate(body, **looping())


def _commanded(n: int) -> Records:
    def keys(tree: Any) -> Iterator[int]:
        yield tree[0]
        for child in tree[1]:
            yield from keys(child)

    return numbered(Counter(key for i in range(n) for key in keys(_tree(i, 3))))


# Much more comes back than went in.

MANY = 120


def amplified(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Records that each become many, which all come back at once and go round once more."""

    def body(stream: tr.DataStream) -> Any:
        more = stream.partition_by(lambda r: r[0] * 7 + r[1]).flat_map(_multiplied)
        return more.filter(lambda r: r[2] > 0), more.filter(lambda r: r[2] == 0).map(lambda r: r[:2])

    return numbers(env, n, rate).map(lambda i: (i, 0, 3)).iterate(body, **looping(memory=1_000))


def _multiplied(r: Any) -> Any:
    number, part, left = r
    return [(number, i, 2) for i in range(MANY)] if left == 3 else [(number, part, left - 1)]


# Output of functions at the end.


class Hoard(tr.ProcessFunction):
    """A function that keeps its records, and emits them when the loop has come to rest; some of them go round again
    then."""

    kept = tr.OperatorState(list, default=[])

    def process(self, hop: Any, ctx: tr.Context) -> None:
        self.kept.value.append(hop)

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        kept, self.kept.value = self.kept.value, []
        yield from kept


def hoarded(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop with `finish` in it, whose records bring the loop to work again."""

    def body(hops: tr.DataStream) -> Any:
        out = hops.rebalance().process(Hoard())
        going = out.filter(lambda hop: hop[1] > 0).map(lambda hop: Hop(hop[0], hop[1] - 1))
        return going, out.filter(lambda hop: hop[1] == 0).map(lambda hop: hop[0])

    return numbers(env, n, rate).map(lambda i: Hop(i, i % 4)).iterate(body, **looping())


class Called(tr.ProcessFunction):
    """A function that emits how often `finish` was called. The first time it feeds the loop, so that `finish` is called
    once more."""

    calls = tr.OperatorState(list, default=[])

    def process(self, hop: Any, ctx: tr.Context) -> Iterator[Any]:
        yield hop

    def finish(self, ctx: tr.Context) -> Iterator[Any]:
        self.calls.value.append(1)
        yield "called", len(self.calls.value)
        if len(self.calls.value) == 1:
            yield Hop(-1, 3)


def finished_twice(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """`finish` inside a loop, which counts its calls: a restart from between two calls makes none more and none less."""

    def body(hops: tr.DataStream) -> Any:
        out = hops.rebalance().process(Called(), parallelism=1).rebalance()
        going = _going(out).filter(lambda hop: hop[1] > 0).map(lambda hop: Hop(hop[0], hop[1] - 1))
        return going, out.filter(lambda r: not isinstance(r, Hop) or r[1] == 0).map(tuple)

    return numbers(env, n, rate).map(lambda i: Hop(i, i % 4)).iterate(body, **looping())


def _finished_twice(n: int) -> Records:
    return Counter([("called", 1), ("called", 2), (-1, 0), *((i, 0) for i in range(n))])


def entered_inside(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop in a loop whose only input is a stream that entered the outer one, at another parallelism: its head receives
    by itself what follows at the end."""

    def count_down(hops: tr.DataStream) -> Any:
        down = hops.map(lambda hop: Hop(hop[0], hop[1] - 1))
        return down.filter(lambda hop: hop[1] > 0), down.filter(lambda hop: hop[1] <= 0)

    others = env.from_collection([Hop(n + i, 1 + i % 3) for i in range(6)])

    def body(hops: tr.DataStream) -> Any:
        inside = others.enter(hops.scope).iterate(count_down, parallelism=2, **looping())
        return count_down(hops.union(inside.map(lambda hop: Hop(hop[0], 2))))

    hops = numbers(env, n, rate).map(lambda i: Hop(i, 1 + i % 4))
    return hops.iterate(body, parallelism=1, **looping()).map(lambda hop: hop[0])


# Columns.


def in_batches(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop over record batches, keyed by a column."""
    schema = pa.schema([("id", pa.int64()), ("left", pa.int64())])

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "left", pc.subtract(batch.column("left"), 1))

    def body(hops: tr.DataStream) -> Any:
        moved = hops.key_by("left").map_batches(step)
        going = moved.map_batches(lambda b: b.filter(pc.greater_equal(b.column("left"), 0)))
        return going, moved.map_batches(lambda b: b.filter(pc.less(b.column("left"), 0)))

    hops = numbers(env, n, rate).map(lambda i: (i, laps_of(i))).to_columns(schema)
    return hops.iterate(body, **looping()).map(lambda r: r.id)


# Merging of waiting records.


class Least(tr.KeyedProcessFunction):
    """A function that keeps the least value of its key, and offers it to two other keys when it has fallen."""

    least = tr.ValueState(int)

    def process(self, offer: Any, ctx: tr.Context) -> Iterator[Any]:
        if self.least.value is None or offer[1] < self.least.value:
            self.least.value = offer[1]
            ctx.set_timer(event_time=1_000_000)
            yield "offer", ((ctx.key * 2 + 1) % NODES, offer[1] + 1)
            yield "offer", ((ctx.key * 3 + 2) % NODES, offer[1] + 2)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[Any]:
        yield "least", (ctx.key, self.least.value)


NODES = 41


def merged(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Least costs over a graph, with `combine`: the result does not depend on what was merged on the way."""

    def body(offers: tr.DataStream) -> Any:
        out = offers.key_by(lambda offer: offer[0]).process(Least())
        going = out.filter(lambda r: r[0] == "offer").map(lambda r: r[1])
        return going, out.filter(lambda r: r[0] == "least").map(lambda r: r[1])

    combine = tr.Combine(key=lambda offer: offer[0], merge=min)
    offers = numbers(env, n, rate).map(lambda i: (i * i % NODES, 50 + i % 9))
    return offers.iterate(body, combine=combine, **looping(memory=400))


def _merged(n: int) -> Records:
    least: dict[int, int] = {}
    todo = [(i * i % NODES, 50 + i % 9) for i in range(n)]
    while todo:
        key, cost = todo.pop()
        if cost < least.get(key, 10**9):
            least[key] = cost
            todo += [((key * 2 + 1) % NODES, cost + 1), ((key * 3 + 2) % NODES, cost + 2)]
    return Counter(least.items())
