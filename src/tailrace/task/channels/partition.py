"""Partitioning of the records of one edge over subtasks: one class per partitioning of `graph.operators`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.keygroups import owners
from tailrace.graph.operators import Broadcast, Custom, Forward, Hash, Partitioning, Rebalance, Rescale, Shuffle
from tailrace.task.channels.key_readers import FieldReader, KeyReader
from tailrace.task.contract.cut_state import CutState
from tailrace.task.contract.usercode import user_error

if TYPE_CHECKING:
    from random import Random

Parts = Sequence[tuple[int, Batch]]
"""Records of a batch, by target."""


class Partitioner(Protocol):
    """Splits a batch over `count` targets; the numbers are positions among the targets of this sender."""

    def split(self, batch: Batch) -> Parts: ...


class ToOne:
    """Sends every record to the only target."""

    def split(self, batch: Batch) -> Parts:
        return [(0, batch)]


class ToAll:
    """Sends every record to every target."""

    def __init__(self, count: int) -> None:
        self.count = count

    def split(self, batch: Batch) -> Parts:
        return [(target, batch) for target in range(self.count)]


class ByKey:
    """Sends each record to the owner of its key group. The groups stay with the batch."""

    def __init__(self, reader: KeyReader, count: int, max_parallelism: int) -> None:
        self.reader = reader
        self.count = count
        self.owners = owners(count, max_parallelism)

    def split(self, batch: Batch) -> Parts:
        groups = self.reader.groups(batch)
        keyed: Batch
        if isinstance(batch, Columns):
            keyed = Columns(batch.data, batch.times, groups)
        else:
            keyed = Rows(batch.values, batch.times, groups)
        if self.count == 1:
            return [(0, keyed)]
        return keyed.partition(self.owners[groups], self.count)


@dataclass(eq=False)
class TurnCutState(CutState):
    """State of targets that have turns."""

    next: int = 0
    """Target of the next record."""


class RoundRobin(TurnCutState):
    """Sends records to the targets in turn, starting at a different target in each sender."""

    def __init__(self, count: int, first: int) -> None:
        super().__init__()
        self.count = count
        self.next = first % count

    def split(self, batch: Batch) -> Parts:
        count, first = self.count, self.next
        self.next = (first + len(batch)) % count
        if isinstance(batch, Columns):
            return batch.partition((np.arange(len(batch)) + first) % count, count)
        hit = sorted(((first + at) % count, at) for at in range(min(count, len(batch))))
        return [(target, batch.each(at, count)) for target, at in hit]


class AtRandom(CutState):
    """Sends each record to a target that a seeded generator chooses, uniformly."""

    def __init__(self, count: int, random: Random) -> None:
        self.count = count
        self.random = random

    def cut_state(self) -> dict[str, Any]:
        return {"random": self.random.getstate()}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        self.random.setstate(state["random"])

    def split(self, batch: Batch) -> Parts:
        targets = np.array(self.random.choices(range(self.count), k=len(batch)), np.int64)
        return batch.partition(targets, self.count)


class ByFunction:
    """Sends each record to the target that the user's function returns, modulo the number of targets."""

    def __init__(self, fn: Any, count: int, who: str, subtask: int) -> None:
        self.reader = FieldReader(fn, who, subtask)
        self.count = count

    def split(self, batch: Batch) -> Parts:
        return batch.partition(np.array(self.targets(batch), np.int64), self.count)

    def targets(self, batch: Batch) -> list[int]:
        """Target of each record, by the user's function. Raises `UserCodeError` for what is no whole number."""
        rows = batch.to_rows()
        targets = []
        for value, chosen in zip(rows.values, self.reader.values(rows), strict=True):
            try:
                targets.append(index(chosen) % self.count)
            except TypeError as error:
                what = f"partition_by must return whole numbers, not {chosen!r}"
                raise user_error(error, self.reader.who, self.reader.subtask, value, what=what) from error
        return targets


def make_partitioner(
    kind: Partitioning, who: str, subtask: int, count: int, max_parallelism: int, random: Callable[..., Random]
) -> Partitioner:
    """Partitioner of an edge for one sender with `count` targets; `who` names the operator in errors. `random` makes the
    generator of a place."""
    if isinstance(kind, Hash):
        reader = KeyReader(kind.key, who, subtask, max_parallelism, kind.written)
        return ByKey(reader, count, max_parallelism)
    if isinstance(kind, Broadcast):
        return ToAll(count)
    if isinstance(kind, Custom):
        return ByFunction(kind.fn, count, who, subtask)
    if count == 1 or isinstance(kind, Forward):
        return ToOne()
    if isinstance(kind, Shuffle):
        return AtRandom(count, random("shuffle", who, subtask))
    assert isinstance(kind, Rebalance | Rescale)
    return RoundRobin(count, subtask)
