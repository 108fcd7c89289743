"""Many records, slow sinks, little memory, huge records: nothing is lost, doubled or held without bounds."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import tailrace as tr
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

MILLION = 1_000_000
KEYS = 10_000


class LastPerKey(tr.KeyedProcessFunction):
    """Count and sum of a key, emitted once, when the input has ended."""

    count = tr.ValueState(int, default=0)
    total = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: Any) -> None:
        if not self.count.value:
            ctx.set_timer(event_time=1e12)
        self.count.value += 1
        self.total.value += value[1]

    def on_timer(self, timestamp: float, ctx: Any) -> Any:
        yield ctx.key, self.count.value, self.total.value


def test_a_million_records_through_a_keyed_shuffle(jobs: Any) -> None:
    env = jobs.env(3)
    pairs = env.from_source(tr.sources.Sequence(0, MILLION)).map(lambda i: (i * 7919 % KEYS, i))
    result = pairs.key_by(lambda pair: pair[0]).process(LastPerKey()).collect()
    expected: dict[int, list[int]] = {}
    for i in range(MILLION):
        entry = expected.setdefault(i * 7919 % KEYS, [0, 0])
        entry[0] += 1
        entry[1] += i
    assert len(result) == KEYS  # each key once, on one worker
    assert {key: [count, total] for key, count, total in result} == expected
    job = jobs_of(env)
    metrics = job.metrics()
    assert metrics["records_in"] == MILLION
    assert metrics["records_out"] == KEYS


def jobs_of(env: tr.Environment) -> Any:
    from tailrace.runtime.job import JOBS

    return JOBS[-1]


def test_columns_through_a_shuffle(jobs: Any) -> None:
    df = jobs.spark.range(0, MILLION, 1, 4).selectExpr("id", "id % 1000 as key")
    env = jobs.env(3)
    out = env.from_dataframe(df, form="columns").key_by("key").sum("id").to_dataframe()
    last = out.groupBy("key").agg({"sum": "max"}).collect()
    assert {row[0]: row[1] for row in last} == {k: sum(range(k, MILLION, 1000)) for k in range(1000)}


class SlowSink(tr.Sink):
    """Takes its time, and counts what it gets."""

    form = "rows"

    def writer(self, ctx: Any) -> Any:
        return SlowWriter()


class SlowWriter(tr.SinkWriter):
    def write(self, batch: Any) -> None:
        time.sleep(0.0005 * len(batch))


@pytest.mark.parametrize("hop", ["local", "remote"])
def test_a_slow_sink_holds_its_sources_back(jobs: Any, hop: str) -> None:
    env = jobs.env(2, memory="1m")
    records = env.from_source(tr.sources.Generator(lambda i: (i, os.urandom(200)), rate=None))
    if hop == "remote":
        records = records.rebalance()
    records.map(lambda r: r, name="next").key_by(lambda r: r[0] % 100).reduce(lambda a, b: b).sink_to(SlowSink())
    job = jobs.start(env)
    assert waited(lambda: any(s["blocked"] for s in job.metrics()["subtasks"]))
    most, read = 0, []
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        for slot in job._runner.machine.roster.slots:
            most = max(most, sum(report.queued_bytes for report in slot.reports))
        read.append(job.metrics()["records_in"])
        time.sleep(0.1)
    assert str(job.status) == "RUNNING"
    assert 0 < most <= 2 << 20, most
    assert read[-1] > read[0]  # it goes on, at the pace of the sink
    assert read[-1] - read[len(read) // 2] < 40_000
    job.cancel()
    requested = time.monotonic()
    assert job.await_termination(60)
    assert time.monotonic() - requested < 20


@pytest.mark.parametrize("memory", ["1g", "1m"])
def test_records_much_larger_than_a_window(jobs: Any, memory: str) -> None:
    size = 50 << 20
    env = jobs.env(2, memory=memory)
    made = env.from_source(tr.sources.Generator(lambda i: (i, bytes([i]) * size), count=4))
    # From each worker to the other, and back.
    there = made.partition_by(lambda r: (r[0] + 1) % 2).map(lambda r: r)
    back = there.partition_by(lambda r: r[0] % 2).map(lambda r: (r[0], len(r[1]), r[1][0], r[1][-1]))
    assert sorted(back.collect()) == [(i, size, i, i) for i in range(4)]


def test_windows_smaller_than_their_records(jobs: Any) -> None:
    env = jobs.env(3, memory="1m")
    sizes = [10, 40_000, 700_000, 1, 2_000_000, 33_000] * 20
    records = env.from_collection(list(enumerate(sizes))).map(lambda r: (r[0], b"x" * r[1]))
    back = records.rebalance().map(lambda r: r).key_by(lambda r: r[0] % 7).reduce(lambda a, b: b)
    found = back.rebalance().map(lambda r: (r[0], len(r[1]))).collect()
    assert sorted(found) == list(enumerate(sizes))
