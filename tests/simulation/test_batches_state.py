"""What a function of batches keeps in a `tr.OperatorState` survives failures like any other state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

SCHEMA = pa.schema([("key", pa.int64()), ("count", pa.int64())])


class Tally(tr.MapBatchesFunction):
    """Counts its keys, and emits the counts at the end. In a loop: of what came in each lap."""

    counts = tr.OperatorState(dict, default={})

    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = Counter(self.counts.value)
        found.update(batch.column(0).to_pylist())
        self.counts.value = dict(found)
        return batch

    def finish(self) -> pa.RecordBatch | None:
        counts, self.counts.value = self.counts.value, {}
        rows = [{"key": -1 - key, "count": count} for key, count in counts.items()]
        return pa.RecordBatch.from_pylist(rows, SCHEMA)


def once_less(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**r, "count": r["count"] - 1} for r in batch.to_pylist()], SCHEMA)


def chosen(by: Any) -> Any:
    return lambda batch: batch.filter(pa.array([by(r) for r in batch.to_pylist()], pa.bool_()))


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_counts_in_columns_are_exact_after_failures(looped: bool, seed: int) -> None:
    env = tr.Environment(
        parallelism=2,
        checkpoint=tr.CheckpointConfig(dir="memory", interval=0.002),
        restart=tr.FixedDelay(attempts=100, delay=0.0),
    )
    numbers = env.from_source(tr.sources.Sequence(0, 200, rate=20_000.0)).map(lambda i: (i % 7, 1 + i % 3))

    def body(stream: tr.DataStream) -> Any:
        seen = stream.key_by("key").map_batches(Tally())
        laps = seen.map_batches(chosen(lambda r: r["key"] >= 0)).map_batches(once_less)
        return laps.map_batches(chosen(lambda r: r["count"] > 0)), seen.map_batches(chosen(lambda r: r["key"] < 0))

    columns = numbers.to_columns(SCHEMA)
    result = columns.iterate(body) if looped else body(columns)[1]
    sink = tr.sinks.Collect()
    result.to_rows().map(tuple).sink_to(sink)
    faults = [Fault(turn, "kill", which=turn) for turn in range(150, 1200, 170)]
    job = tr.testing.simulate(env, seed=seed, faults=faults)
    assert job.exception() is None
    assert job.simulation.covered["killed"] > 1
    expected: Counter[int] = Counter()
    for i in range(200):
        expected[-1 - i % 7] += 1 + i % 3 if looped else 1
    found: Counter[int] = Counter()
    for key, count in sink.result():
        found[key] += count
    assert found == expected
