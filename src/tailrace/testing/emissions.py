"""The batches that operators emit, kept so that another process can compare its own with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tailrace.elements.batches import Batch, Columns
from tailrace.errors import short_repr
from tailrace.task.operators.base import Emit, OperatorTask, nowhere
from tailrace.task.slice.machine import Slice


@dataclass(frozen=True, slots=True)
class Emission:
    """A batch that an operator has emitted."""

    operator: str
    subtask: int
    side: str | None
    """The tag of the side output; None for the main output."""
    count: int
    times: bytes
    """The timestamps of the records, packed; empty where they have none."""
    values: bytes
    """The records, pickled; empty where they cannot be."""


def watch(slice: Slice, report: Callable[[Emission], None]) -> None:
    """Calls `report` with each batch that an operator of these tasks emits, before the next operator receives it. It must be
    called before the first step: batches emitted earlier are not reported."""
    for task in slice.tasks:
        for operator in task.chain.operators:
            operator.out = _watch(operator, None, operator.out, report)
            for tag, emit in operator.side_out.items():
                operator.side_out[tag] = _watch(operator, tag, emit, report)


def _watch(operator: OperatorTask, side: str | None, emit: Emit, report: Callable[[Emission], None]) -> Emit:
    if emit is nowhere:
        return emit

    def emits(batch: Batch) -> None:
        times = b"" if batch.times is None else batch.times.tobytes()
        name, subtask = operator.node.name, operator.ctx.subtask
        report(Emission(name, subtask, side, len(batch), times, _pickle(batch)))
        emit(batch)

    return emits


def _pickle(batch: Batch) -> bytes:
    values: list[Any] = batch.data.to_pylist() if isinstance(batch, Columns) else batch.values
    for form in (
        lambda: values,
        lambda: list(map(tuple, values)),
    ):  # rows made of columns are of classes without a name
        try:
            return pickle.dumps(form(), 5)
        except Exception:
            continue
    return b""


def apart(was: Emission, now: Emission) -> tuple[str, str] | None:
    """The difference between two batches, of the same operator or not: descriptions of the first and of the second; None
    where they are equal."""
    if (was.operator, was.side) != (now.operator, now.side):
        return _batch(was), _batch(now)
    if (was.values, was.times, was.count) == (now.values, now.times, now.count):
        return None
    if not (was.values and now.values):
        return None if (was.times, was.count) == (now.times, now.count) else (_batch(was), _batch(now))
    before, after = pickle.loads(was.values), pickle.loads(now.values)
    for one, other in zip(before, after, strict=False):
        if not alike(one, other):
            return short_repr(one), short_repr(other)
    if was.count != now.count:
        more = before[now.count :] if was.count > now.count else after[was.count :]
        rest = f"; one more is {short_repr(more[0])}"
        return f"{_batch(was)}{rest if was.count > now.count else ''}", (
            f"{_batch(now)}{rest if now.count > was.count else ''}"
        )
    return None if was.times == now.times else ("other timestamps", f"those of {short_repr(before)}")


def _batch(one: Emission) -> str:
    side = "" if one.side is None else f" on side output {one.side!r}"
    return f"{one.count} records of {one.operator!r}{side}"


def alike(one: Any, other: Any) -> bool:
    """True where two values are the same for a user's function. The order in which a set is walked is no difference."""
    if type(one) is not type(other) and type(one).__qualname__ != type(other).__qualname__:
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    try:
        if one is other or one == other or (one != one and other != other):
            return True
    except Exception:
        return pickle.dumps(one, 5) == pickle.dumps(other, 5)  # a comparison of arrays has no one answer
    if type(one).__eq__ is object.__eq__ and hasattr(one, "__dict__"):
        return alike(vars(one), vars(other))
    return False


def first_apart(was: Iterable[Emission], now: Iterable[Emission]) -> tuple[Emission, str, str] | None:
    """The first batch of one event that differs: (the batch, what was emitted, what is emitted now). A batch is reported
    before its receiver emits anything, so it is a batch of the most upstream operator of a task that differs."""
    before, after = list(was), list(now)
    for one, other in zip(before, after, strict=False):
        found = apart(one, other)
        if found is not None:
            return one, *found
    if len(before) > len(after):
        return before[len(after)], _batch(before[len(after)]), "nothing"
    if len(after) > len(before):
        return after[len(before)], "nothing", _batch(after[len(before)])
    return None
