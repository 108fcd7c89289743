"""A broker that gives each record out until it is acknowledged, and functions that are informed of complete checkpoints. The
module is imported by all workers of a simulation, which share its broker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import tailrace as tr

N = 150


class Broker:
    """A broker that gives each record out until it is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: Counter[int] = Counter()
        self.numbers: list[int] = []
        self.wrong: list[str] = []
        self.failing = 0

    def take(self, value: int) -> None:
        if value in self.acknowledged:
            self.wrong.append(f"record {value} was acknowledged, and comes again")

    def acknowledge(self, number: int, values: list[int]) -> None:
        self.numbers.append(number)
        if self.failing:
            self.failing -= 1
            raise ConnectionError("away")
        self.acknowledged.update(values)


BROKER = Broker()


class Acknowledging(tr.KeyedProcessFunction):
    """Emits how many records of a key came; acknowledges each record behind the first complete checkpoint that has it."""

    waiting = tr.OperatorState(list, default=[])
    came = tr.ValueState(int, default=0)

    def open(self, ctx: tr.Context) -> None:
        self.ctx, self.last = ctx, 0

    def process(self, value: int, ctx: tr.Context) -> Iterator[Any]:
        ctx.call(BROKER.take, value)
        self.waiting.value = [*self.waiting.value, (ctx.checkpoint, value)]
        self.came.value += 1
        yield ctx.key, self.came.value

    def checkpoint_complete(self, number: int) -> None:
        if number <= self.last:
            BROKER.wrong.append(f"checkpoint {number} was complete behind {self.last}")
        self.last = number
        held = [value for at, value in self.waiting.value if at < number]
        self.ctx.call(BROKER.acknowledge, number, held)
        self.waiting.value = [(at, value) for at, value in self.waiting.value if at >= number]


def acknowledged(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """Records that are acknowledged behind checkpoints."""
    return env.from_source(tr.sources.Sequence(0, n, rate=rate)).key_by(lambda i: i % 7).process(Acknowledging())


SEEN: dict[str, list[int]] = defaultdict(list)


class Reporting(tr.Function):
    def checkpoint_complete(self, number: int) -> None:
        SEEN[type(self).__name__].append(number)


class Mapping(Reporting, tr.MapFunction):
    def map(self, value: int) -> int:
        return value


class Filtering(Reporting, tr.FilterFunction):
    def filter(self, value: int) -> bool:
        return True


class Batching(Reporting, tr.MapBatchesFunction):
    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


class Processing(Reporting, tr.ProcessFunction):
    def process(self, value: int, ctx: tr.Context) -> Iterator[int]:
        yield value


class Joining(Reporting, tr.CoProcessFunction):
    def process1(self, value: int, ctx: tr.Context) -> Iterator[int]:
        yield value

    process2 = process1


class Informed(Reporting, tr.BroadcastProcessFunction):
    def process(self, value: int, ctx: tr.Context) -> Iterator[int]:
        yield value

    process_broadcast = process


class Larger(Reporting, tr.ReduceFunction):
    def reduce(self, a: int, b: int) -> int:
        return max(a, b)


class Kept(Reporting, tr.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class Windowed(Reporting, tr.WindowFunction):
    def prepare(self) -> None:
        SEEN["prepared"].append(0)

    def process(self, key: Any, window: Any, records: list[int], ctx: tr.Context) -> Iterator[int]:
        yield len(records)


class ByKey(Acknowledging):
    def checkpoint_complete(self, number: int) -> None:
        self.came.value = 0


class Emitting(tr.ProcessFunction):
    def open(self, ctx: tr.Context) -> None:
        self.ctx = ctx

    def process(self, value: int, ctx: tr.Context) -> Iterator[int]:
        yield value

    def checkpoint_complete(self, number: int) -> None:
        self.ctx.emit("aside", number)
