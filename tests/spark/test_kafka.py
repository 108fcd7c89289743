"""Kafka on real Spark: from one topic to another exactly once, while workers are killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from tests.connectors.kafka.brokers import Topic
from tests.servers import Server
from tests.spark.waiting import waited

pytestmark = pytest.mark.spark

KEYS = 5
RECORDS = 900


class Occurrences(tr.KeyedProcessFunction):
    """Each number, with how many of its key have come."""

    seen = tr.ValueState(int, default=0)

    def process(self, n: int, ctx: Any) -> Any:
        self.seen.value += 1
        yield {"key": ctx.key, "n": n, "seen": self.seen.value}


def test_a_topic_is_written_exactly_once_while_workers_are_killed(jobs: Any, kafka: Server) -> None:
    numbers, counts = Topic(kafka, 3), Topic(kafka, 2)
    checkpoint = tr.CheckpointConfig(str(jobs.folder / "checkpoints"), interval=0.2)
    env = jobs.env(checkpoint=checkpoint, restart=tr.FixedDelay(attempts=100, delay=0.0))
    read = env.from_source(tr.sources.Kafka(kafka.url, numbers.name, until=dict.fromkeys(range(3), RECORDS // 3)))
    keyed = read.key_by(lambda n: n % KEYS).process(Occurrences())
    keyed.sink_to(tr.sinks.Kafka(kafka.url, counts.name, key="key"))
    job = jobs.start(env, "counts")
    for part in range(3):  # a third of the records before each kill, and the last one behind both
        for partition in range(3):
            values = range(partition + part * RECORDS // 3, (part + 1) * RECORDS // 3, 3)
            numbers.write([b"%d" % n for n in values], partition)
        if part < 2:
            done = len(job.checkpoints)
            assert waited(lambda done=done: len(job.checkpoints) >= done + 2)
            os.kill(jobs.workers(job)[part], signal.SIGKILL)
            assert waited(lambda part=part: job.restarts > part and str(job.status) == "RUNNING")
    assert job.await_termination(150)
    found = [json.loads(message.value()) for message in counts.read()]
    assert sorted(one["n"] for one in found) == list(range(RECORDS))
    per_key = Counter(one["key"] for one in found)
    assert {(one["key"], one["seen"]) for one in found} == {(k, n + 1) for k in per_key for n in range(per_key[k])}
