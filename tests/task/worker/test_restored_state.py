"""What operators have restored is as it was, and what cannot be is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from search.watchers.checker import BOOKS, Book, Ledger
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.elements.batches import Rows
from tailrace.errors import IncompatibleState
from tailrace.graph.graph import Node
from tailrace.graph.operators import Aggregate, KeyedProcess, Window
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.aggregates.running import AggregateTask
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.process import KeyedProcessTask
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.operators.windows.aggregates import WindowTask
from tailrace.testing.backends import Files
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.simulator import Simulation


def _started(sources: int, files: MemoryFiles, **options: Any) -> Simulation:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="memory"))
    streams = [
        env.from_source(
            tr.sources.Collection([("a", 10 * i + j) for j in range(10)]), uid=f"source{i}"
        ).assign_timestamps(lambda r: float(r[1]), uid=f"times{i}")
        for i in range(sources)
    ]
    merged = streams[0] if sources == 1 else streams[0].union(*streams[1:])
    counted = merged.key_by(lambda r: r[0]).window(tr.Tumbling(5)).aggregate(n=tr.Count(), uid="windows")
    counted.sink_to(Ledger("one more source"), uid="ledger")
    settings = CheckpointSettings(interval=5_000)
    return prepared_simulation(env, name="job", seed=1, checkpoints=settings, files=files, **options)


def test_a_source_more_after_the_end_is_not_late_altogether() -> None:
    """Started from the last checkpoint of a job that had ended, operators stood at the end of time: all that a new source
    gave was late, and dropped."""
    book, files = BOOKS.setdefault("one more source", Book()), MemoryFiles()
    book.committed = None
    try:
        assert _started(1, files).run() is JobStatus.FINISHED
        assert [row.start for row in book.records()] == [0, 5]
        assert _started(2, files, origin="latest", run_id="another").run() is JobStatus.FINISHED
        assert [(row.start, row.n) for row in book.records()] == [(0, 5), (5, 5), (10, 5), (15, 5)]
    finally:
        del BOOKS["one more source"]


class Listing(tr.AggregateFunction):
    """An accumulator that is changed in place, and is the result."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator


def _node(operator: Any) -> Node:
    return Node(0, operator, "op", "u", True, 1, "rows", ())


def test_copied_records_of_an_aggregate_are_those_of_their_time() -> None:
    """With `copy_records` all records of a key in one batch were the accumulator as it was at the batch's end."""
    services = Services(random_factory=random.Random, copy_records=True)
    operator = Aggregate(lambda r: r[0], (("all", Listing()),))
    task = AggregateTask(_node(operator), OperatorContext("op", "u", 0, 1, 0, services))
    out: list[Any] = []
    task.out = lambda batch: out.extend(batch.values)
    task.process(Rows([("a", 1), ("a", 2)]), 0)
    assert out == [("a", [1]), ("a", [1, 2])]


class Failing(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: tr.Context) -> None:
        pass

    def close(self) -> None:
        raise OSError("no")


@pytest.mark.parametrize("kind", ["process", "aggregate"])
def test_the_backend_of_an_operator_is_closed_with_it(kind: str, tmp_path: Path) -> None:
    """Nobody closed it: after each restart in the same process a database stayed open, and its files on the disk."""
    pytest.importorskip("rocksdict")
    from tailrace.storage.disk_backend import DiskBackend

    services = Services(
        random_factory=random.Random, make_backend=lambda uid, subtask: DiskBackend(tmp_path / "state", uid=uid)
    )
    ctx = OperatorContext("op", "u", 0, 1, 0, services)
    task: Any
    if kind == "process":
        task = KeyedProcessTask(_node(KeyedProcess(Failing(), lambda r: r[0], "wait")), ctx)
    else:
        task = AggregateTask(_node(Aggregate(lambda r: r[0], (("n", tr.Count()),))), ctx)
        task.process(Rows([("a", 1), ("b", 2)]), 0)
    assert (tmp_path / "state").exists()
    entries = task.state_entries()
    if kind == "process":
        with pytest.raises(OSError, match="no"):
            task.close()
    else:
        task.close()
    assert not (tmp_path / "state").exists()
    assert task.state_entries() == entries == (0 if kind == "process" else 2), "the last report is made behind it"


SECOND = 1_000_000


def _windows(size: int, *aggregates: Any, lateness: int = 0) -> WindowTask:
    named = tuple((f"a{i}", one) for i, one in enumerate(aggregates))
    operator = Window(lambda r: r[0], size * SECOND, size * SECOND, 0, lateness * SECOND, named)
    services = Services(random_factory=random.Random)
    return WindowTask(_node(operator), OperatorContext("op", "u", 0, 1, 0, services))


def _aggregate(*aggregates: Any) -> AggregateTask:
    operator = Aggregate(lambda r: r[0], tuple((f"a{i}", one) for i, one in enumerate(aggregates)))
    services = Services(random_factory=random.Random)
    return AggregateTask(_node(operator), OperatorContext("op", "u", 0, 1, 0, services))


def _fed(task: Any) -> Any:
    task.process(Rows([("a", 1), ("a", 2)], np.array([1, 2], np.int64) * SECOND), 0)
    return task


def _moved(old: Any, new: Any) -> Any:
    files = Files()
    files.take(old.backend, 1)
    files.restore(new.backend, 1, True)
    new.restore([MetaPart(0, 1, False, old.snapshot(1))])
    return new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_windows(5, tr.Count()), _windows(10, tr.Count())),
        (_windows(5, tr.Count()), _windows(5, tr.Count(), tr.Max(lambda r: r[1]))),
        (_aggregate(tr.Count()), _aggregate(tr.Sum(lambda r: r[1]))),
        (_aggregate(tr.Count()), _aggregate(Listing())),
    ],
    ids=["size", "one more", "another", "user"],
)
def test_state_of_other_aggregates_and_windows_is_refused(old: Any, new: Any) -> None:
    """Windows of another size never came out and never went; a sum went on from a count."""
    with pytest.raises(IncompatibleState, match=r"'op' \(uid 'u'\): the checkpoint holds the state of .* now; give it"):
        _moved(_fed(old), new)


@pytest.mark.parametrize(("was", "now"), [(0, 5), (5, 0), (2, 5), (5, 2)])
def test_the_allowed_lateness_may_change(was: int, now: int) -> None:
    """The clean-up of a window was set for the old lateness, and did nothing under the new one: its state stayed."""
    task = _moved(_fed(_windows(5, tr.Count(), lateness=was)), _windows(5, tr.Count(), lateness=now))
    out: list[Any] = []
    task.out = lambda batch: out.extend(batch.values)
    for watermark in (5, 5 + now - 1):
        task.advance(watermark * SECOND, 100)
    assert [row.a0 for row in out] == [2]
    assert (task.backend.entries() > 0) == (now > 0 or was > 0)
    task.advance(100 * SECOND, 100)
    assert len(out) == 1
    assert task.backend.entries() == 0


class Six(tr.Source):
    def splits(self, parallelism: int) -> list[tuple[int, int]]:
        return [(i, i + 1) for i in range(6)]

    def reader(self, split: Any, position: Any = None) -> tr.Reader:
        return tr.sources.Collection(range(6)).reader(split, position)


def _sources(parallelism: int, parts: list[MetaPart] | None = None) -> list[SourceTask]:
    env = tr.Environment()
    env.from_source(Six(), name="numbers").sink_to(tr.sinks.Collect())
    node = env._plan(env._pending()).graph.nodes[0]
    services = Services(random_factory=random.Random, checkpointing=True)
    made = [SourceTask(node, OperatorContext("s", "s", i, parallelism, 0, services)) for i in range(parallelism)]
    for task in made:
        task.too_far = set
        if parts is not None:
            task.restore(parts)
        task.open()
    return made


def test_event_time_waits_for_splits_that_were_nobodys_at_the_cut() -> None:
    """Splits that were under way at the cut are dealt out anew after a restore. Who held another one already read it
    meanwhile, and at another parallelism what they then brought was late."""
    old = _sources(3)
    assert [len(task.splits) for task in old] == [2, 0, 0]
    parts = [MetaPart(i, 3, False, task.snapshot(1)) for i, task in enumerate(old)]
    held, asking = _sources(2, parts)
    assert [split.index for split in held.splits] == [0, 2, 4]
    assert held.ready(0), "it is the enumerator, and has them all"
    assert [split.index for split in asking.splits] == [3]
    assert not asking.ready(0)
    assert asking.wake_at() is None
    held.event(1, asking.events.pop()[1])
    for target, payload in held.events:
        assert target == 1
        asking.event(0, payload)
    assert [split.index for split in asking.splits] == [3, 1, 5]
    assert asking.ready(0)
