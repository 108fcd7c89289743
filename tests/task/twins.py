"""Two operators of the same kind, one with its state in columns and one without, in whatever order things happen: the same
results, the same checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.elements.batches import Columns, Rows
from tailrace.graph.graph import Node
from tailrace.graph.operators import Aggregate
from tailrace.state import layers
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.aggregates.running import AggregateTask, StatefulTask
from tailrace.task.operators.context import OperatorContext
from tailrace.testing.backends import Files, Snapshot

DAY = date(2026, 1, 1)
KEYS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "small integers": (pa.int64(), lambda n: n),
    "integers": (pa.int64(), lambda n: n * 7919 - 50_000),
    "short integers": (pa.int16(), lambda n: n - 20),
    "unsigned": (pa.uint64(), lambda n: 2**64 - 1 - n),
    "texts": (pa.string(), lambda n: "ab" * (n % 13) + str(n)),
    "bytes": (pa.binary(), lambda n: bytes(n)),
    "truth": (pa.bool_(), lambda n: n % 2 == 0),
    "floats": (pa.float64(), lambda n: [0.0, -0.0, float("nan"), -float("nan"), n / 2][n % 5]),
    "dates": (pa.date32(), lambda n: DAY + timedelta(n)),
    "times": (pa.timestamp("us", "Europe/Berlin"), lambda n: 1_792_887_000_000_000 + n * 60_000_000),
    "decimals": (pa.decimal128(5, 2), lambda n: Decimal(n)),
}
VALUES: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "integers": (pa.int64(), lambda r: r.randrange(-1_000, 1_000)),
    "short integers": (pa.int8(), lambda r: r.randrange(-100, 100)),
    "unsigned": (pa.uint64(), lambda r: r.randrange(2**40)),
    "large integers": (pa.int64(), lambda r: r.randrange(-(2**58), 2**58)),
    "floats": (pa.float64(), lambda r: r.choice([0.0, -0.0, float("nan"), float("inf"), 0.1, r.random()])),
    "plain floats": (pa.float64(), lambda r: r.gauss(0, 1e3)),
    "short floats": (pa.float32(), lambda r: float(np.float32(r.random()))),
    "truth": (pa.bool_(), lambda r: r.random() < 0.5),
    "dates": (pa.date32(), lambda r: DAY + timedelta(r.randrange(50))),
    "times": (pa.timestamp("us", "Europe/Berlin"), lambda r: 1_792_887_000_000_000 + r.randrange(200) * 60_000_000),
    "texts": (pa.string(), lambda r: r.choice("abc")),
    "decimals": (pa.decimal128(10, 2), lambda r: Decimal(r.randrange(1_000)) / 4),
}
SUMMED = [name for name in VALUES if name not in ("dates", "times", "texts")]


def made(key: Any, aggregates: dict[str, Any], in_columns: bool = True) -> AggregateTask:
    """An operator. Without `in_columns`: as if its types had no arrays."""
    operator = Aggregate(key, tuple(aggregates.items()))
    task = AggregateTask(Node(0, operator, "op", "u", True, 1, "columns", ()), context())
    listened_to(task)
    task._in_columns = task._in_columns and in_columns
    return task


def context() -> OperatorContext:
    services = Services(random_factory=random.Random, make_backend=lambda uid, subtask: MemoryBackend(uid=uid))
    return OperatorContext("op", "u", 0, 1, 0, services)


def listened_to(task: StatefulTask) -> None:
    task.given = []  # type: ignore[attr-defined]
    task.out = task.given.append  # type: ignore[attr-defined]


def exactly(value: Any) -> str:
    """A text that distinguishes 1 from 1.0 and from True, and 0.0 from -0.0."""
    return repr(value)


def counted(task: StatefulTask) -> list[int]:
    """How many entries each table has. Not `state_entries`, which is about so many where there are very many."""
    return list(map(len, task.backend.tables.values()))


def entries(task: StatefulTask) -> list[str]:
    """All that is in the tables of an operator."""
    tables = task.backend.tables.items()
    return sorted(exactly((name, key, _in_order(value))) for name, table in tables for key, value in table.items())


def _in_order(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


class Twins:
    """Two operators of the same kind, with what their checkpoints hold."""

    def __init__(self, key: Any, aggregates: dict[str, Any], seed: int) -> None:
        self.key, self.aggregates = key, aggregates
        self.random = random.Random(seed)
        self.tasks: list[Any] = [self.made(in_columns) for in_columns in (True, False)]
        self.files = [Files(), Files()]
        self.number = 0
        self.pending: list[int] = []
        self.going: list[Snapshot] = []
        self.cuts: dict[int, list[str]] = {}
        self.confirmed = 0

    def made(self, in_columns: bool = True) -> StatefulTask:
        """An operator."""
        return made(self.key, self.aggregates, in_columns)

    @property
    def in_columns(self) -> bool:
        return self.tasks[0]._state is not None

    def give(self, batch: Any) -> list[Any]:
        """Hands a batch to both twins, which give the same results."""
        return self.both(lambda task: task.process(batch, 0))

    def both(self, do: Callable[[Any], Any]) -> list[Any]:
        """Does a thing to both twins, which give the same results."""
        found, answers = [], []
        for task in self.tasks:
            answers.append(do(task))
            out = [one.to_rows() if isinstance(one, Rows) else one for one in task.given]
            task.given.clear()
            found.append(out)
        assert answers[0] == answers[1]
        texts = [[self.told(one) for one in out] for out in found]
        assert texts[0] == texts[1]
        assert counted(self.tasks[0]) == counted(self.tasks[1])
        return found[0]

    def told(self, batch: Any) -> str:
        times = None if batch.times is None else batch.times.tolist()
        if isinstance(batch, Rows):
            return exactly((batch.values, times))
        rows = batch.data.to_pylist()  # in whatever order
        return exactly((str(batch.data.schema), sorted(map(exactly, zip(rows, times or rows, strict=True)))))

    # Checkpoints.

    def freeze(self) -> None:
        if not self.going:
            self.number += 1
            cut = layers.CutRequest(self.number)
            self.cuts[self.number] = entries(self.tasks[1])
            for task in self.tasks:
                task.backend.freeze(cut)
                self.going.append(Snapshot(self.number))
            self._counted()

    def encode(self, limit: int) -> None:
        if self.going:
            done = [
                files.encode(task.backend, one, limit if i == 0 else 10**9)
                for i, (files, task, one) in enumerate(zip(self.files, self.tasks, self.going, strict=True))
                if i == 0 or not one.chains
            ]
            if done[0]:
                self.pending.append(self.number)
                self.going = []
            self._counted()

    def _counted(self) -> None:
        assert counted(self.tasks[0]) == counted(self.tasks[1])

    def settle(self, confirm: bool) -> None:
        """The outcome of a checkpoint: of one that is being encoded only that it is over."""
        if self.pending and (confirm or not self.going):
            number = self.pending.pop(0)
            for files, task in zip(self.files, self.tasks, strict=True):
                if confirm:
                    files.confirm(task.backend, number)
                    self.confirmed = number
                    restored = self.made()
                    files.restore(restored.backend, number, True)
                    assert entries(restored) == self.cuts[number]
                else:
                    task.backend.abort(number)
        elif self.going and not confirm:
            for task in self.tasks:
                task.backend.abort(self.number)
            self.going = []

    def restart(self, crossed: bool) -> None:
        """From the last checkpoint; `crossed`: each from that of the other."""
        for number in (*self.pending, *([self.number] if self.going else [])):
            self.cuts.pop(number)
        self.pending, self.going = [], []
        files = list(reversed(self.files)) if crossed else self.files
        self.files = files
        self.tasks = [self.made(in_columns) for in_columns in (True, False)]
        if self.confirmed:
            for one, task in zip(files, self.tasks, strict=True):
                one.restore(task.backend, self.confirmed, True)
                assert entries(task) == self.cuts[self.confirmed]

    def compare(self) -> None:
        assert entries(self.tasks[0]) == entries(self.tasks[1])


class TimedTwins(Twins):
    """Operators of windows. Event time goes on as it likes, by a step or several."""

    time = -30
    schema: Any = None

    def made_from(self, make: Callable[[Node, OperatorContext], Any], operator: Any, in_columns: bool) -> Any:
        task = make(Node(0, operator, "op", "u", True, 1, "columns", ()), context())
        listened_to(task)
        task.side_out["late"] = task.given.append
        task._in_columns = task._in_columns and in_columns
        task.ctx.watermark_time = self.time
        return task

    def advance(self, to: int, limit: int = 10**6) -> list[Any]:
        self.time = max(self.time, to)
        return self.both(lambda task: task.advance(self.time, limit))

    def restart(self, crossed: bool) -> None:
        super().restart(crossed)
        for task in self.tasks:
            task.backend.end_restore(True)
            task.one_schema.schema = self.schema

    def give(self, batch: Any) -> list[Any]:
        """With event time now and then, which may stop in the midst of what is due."""
        self.schema = batch.data.schema
        found = super().give(batch)
        if self.random.random() < 0.5:
            self.advance(self.time + self.random.randrange(12), self.random.choice([1, 3, 10**6]))
        return found


def columns(kinds: dict[str, Any], rows: list[tuple[Any, ...]], timed: bool = False) -> Columns:
    lists = list(zip(*rows, strict=True)) or [()] * len(kinds)
    arrays = [pa.array(one, kind) for one, kind in zip(lists, kinds.values(), strict=True)]
    times = np.arange(len(rows), dtype=np.int64)[::-1] * 1_000 if timed else None
    return Columns(pa.RecordBatch.from_arrays(arrays, names=list(kinds)), times)


def live(twins: Twins, batch: Callable[[random.Random], Columns], steps: int) -> None:
    """Anything that may happen, many times."""
    chance = twins.random
    for _ in range(steps):
        roll = chance.random()
        if roll < 0.55:
            twins.give(batch(chance))
        elif roll < 0.65:
            twins.freeze()
        elif roll < 0.85:
            twins.encode(chance.choice([1, 40, 1_000]))
        elif roll < 0.95:
            twins.settle(chance.random() < 0.6)
        elif roll < 0.97:
            twins.restart(chance.random() < 0.5)
        elif roll < 0.98:
            twins.compare()
    twins.compare()


def live_to_the_end(twins: TimedTwins, batch: Callable[[random.Random], Columns], steps: int) -> None:
    """Anything that may happen, and then all that is due."""
    live(twins, batch, steps)
    while twins.tasks[1].next_event() is not None:
        twins.advance(twins.tasks[1].next_event(), 7)
    assert twins.tasks[0].state_entries() == 0
    twins.compare()


def batches(key: str, value: str, most: int, nulls: float, timed: bool) -> Callable[[random.Random], Columns]:
    (key_kind, key_of), (value_kind, value_of) = KEYS[key], VALUES[value]

    def one(chance: random.Random) -> Columns:
        missing = nulls if chance.random() < 0.5 else 0
        rows = [
            tuple(
                None if chance.random() < missing else made
                for made in (key_of(chance.randrange(most)), value_of(chance))
            )
            for _ in range(chance.choice([0, 1, 5, 60]))
        ]
        return columns({"k": key_kind, "x": value_kind}, rows, timed)

    return one
