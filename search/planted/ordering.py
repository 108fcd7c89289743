"""Bugs to be planted in functions that are called in the order of time, and in joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from search.planted.patches import RANDOM, Bug, Patches, method
from search.random_flows.description import Do, Events, Flow, Kind
from search.random_flows.drawing import Phase, Run
from search.scenarios import MS
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.task.operators.joins.interval import IntervalJoinTask
from tailrace.task.operators.ordering.buffer import RecordBuffer
from tailrace.task.operators.ordering.columnbuffer import ColumnBuffer
from tailrace.task.operators.stores.chunks import ChunkFront
from tailrace.task.operators.stores.segments import VersionSegment
from tailrace.testing.faults import Fault


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


def _gone_as_rows() -> Patches:
    """Bug: records that wait in columns count as handed over when they become rows."""

    def settle(self: ColumnBuffer) -> None:
        for port, some in self._places:
            self._store.let_out(port, some)
        self._places, self._handed = [], 0

    return [method(ColumnBuffer, "settle", lambda _: settle)]


def alone(*kinds: Kind, **events: Any) -> Callable[[Run], Run]:
    """A change of random flows to one operator, of one of these kinds, behind a small source. The job runs in small steps,
    and loses workers soon after commits."""

    def shape(run: Run) -> Run:
        seed = run.seed
        given: dict[str, Any] = {"splits": 1 + seed % 2, "disorder": (2, 6)[seed % 2], "pace": 300}
        flow = Flow(Events(48, 48, **given | events), run.flow.table, (Do(kinds[seed % len(kinds)], 1),))
        interval, overlapping = (1 + seed % 3) * MS, 1 + seed % 2
        settings = CheckpointSettings(interval=interval, tolerated_failures=10_000, keep=1, max_concurrent=overlapping)
        moments = [(n, 3 + 7 * (seed % 5) + 11 * n) for n in (2 + seed % 3, 6, 9)]
        world = replace(
            run.world,
            n=48,
            parallelism=2,
            network="in small steps",
            checkpoints=settings,
            small=0,
            window=None,
            chunk=None,
            faults=tuple(Fault(turn, "kill", n + seed, after=f"commit {n} done") for n, turn in moments),
        )
        return Run(flow, world, (Phase(2),))

    return shape


def _joins_columns(run: Run) -> bool:
    return any(step.kind.endswith("join of columns") for step in run.flow.operators())


ORDER_BUGS = (
    Bug("records that wait are lost with their worker", "in_order", _forgotten_records, seed=4),
    Bug("a timer comes before the records of its time", "in_order", _timers_first),
    Bug("records without a partner are lost with their worker", RANDOM, _forgotten_partners, seed=4),
    Bug("records in columns are gone when they become rows", RANDOM, _gone_as_rows, seed=9, shape=alone("in order")),
    Bug("a version in columns counts from behind its time", RANDOM, _later_versions, seed=3, suits=_joins_columns),
    Bug("a join in columns forgets marks with its worker", RANDOM, _forgotten_marks, seed=487, suits=_joins_columns),
)
