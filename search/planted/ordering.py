"""Bugs to be planted in functions that are called in the order of time, and in joins."""

from __future__ import annotations

from typing import Any

from search.planted.patches import RANDOM, Bug, Patches, method
from search.random_flows.drawing import Run
from tailrace.task.operators.joins.interval import IntervalJoinTask
from tailrace.task.operators.ordering.buffer import RecordBuffer
from tailrace.task.operators.stores.chunks import ChunkFront
from tailrace.task.operators.stores.segments import VersionSegment


def _forgotten_records() -> Patches:
    """Bug: records that waited for event time at a checkpoint do not come out behind a restore."""
    return [method(RecordBuffer, "rebuild", lambda _: lambda self: None)]


def _timers_first() -> Patches:
    """Bug: a timer comes before the records of its time."""

    def make(next_time: object) -> object:
        def later(self: RecordBuffer) -> int | None:
            time = next_time(self)  # type: ignore[operator]
            return None if time is None else time + 1

        return later

    return [method(RecordBuffer, "next_time", make)]


def _forgotten_partners() -> Patches:
    """Bug: what a join has to let go of is not known behind a restore."""
    return [method(IntervalJoinTask, "rebuild", lambda _: lambda self: None)]


def _forgotten_marks() -> Patches:
    """Bug: checkpoints do not have which kept records of a join in columns had a partner or have come out."""

    def make(mark: Any) -> Any:
        return lambda self, port, segment, rows, what, noted: mark(self, port, segment, rows, what, False)

    return [method(ChunkFront, "mark", make)]


def _later_versions() -> Patches:
    """Bug: in columns a version does not count for a record of its time."""

    def make(newest: Any) -> Any:
        return lambda self, hashes, times, seqs: newest(self, hashes, times, seqs * 0 - 1)

    return [method(VersionSegment, "newest", make)]


def _joins_columns(run: Run) -> bool:
    return any(step.kind.endswith("join of columns") for step in run.flow.operators())


ORDER_BUGS = (
    Bug("records that wait are lost with their worker", "in_order", _forgotten_records, seed=4),
    Bug("a timer comes before the records of its time", "in_order", _timers_first),
    Bug("records without a partner are lost with their worker", RANDOM, _forgotten_partners, seed=4),
    Bug("a version in columns counts from behind its time", RANDOM, _later_versions, seed=3, suits=_joins_columns),
    Bug("a join in columns forgets marks with its worker", RANDOM, _forgotten_marks, seed=487, suits=_joins_columns),
)
