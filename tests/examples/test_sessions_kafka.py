"""The sessions of `examples/sessions_kafka.py`: each is in the topic once, over ends of workers, driver and broker."""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.testing.faults import Fault
from tests.connectors.kafka.brokers import Topic
from tests.servers import Server, kafka_server
from tests.spark.waiting import waited

pytestmark = pytest.mark.servers
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sessions_kafka.py"
PARTITIONS = 3
GAP = 1800


def clicks(seed: int, total: int = 600) -> list[dict[str, Any]]:
    """Clicks of some users, whose times are out of order by up to a minute."""
    chance = random.Random(seed)
    times = sorted((chance.uniform(0, 50_000) for _ in range(total)), key=lambda at: at + chance.uniform(0, 59))
    return [{"user": f"u{chance.randrange(9)}", "page": f"/{chance.randrange(4)}", "at": round(at, 2)} for at in times]


def write(topic: Topic, made: list[dict[str, Any]]) -> None:
    """Writes clicks to the partitions of their users."""
    for number in range(PARTITIONS):
        mine = [click for click in made if int(click["user"][1:]) % PARTITIONS == number]
        topic.write([json.dumps(click).encode() for click in mine], number)


def by_hand(made: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The sessions of the clicks, from the gaps between those of a user in order."""
    of_user: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for click in sorted(made, key=lambda click: click["at"]):
        visits = of_user[click["user"]]
        if not visits or click["at"] - visits[-1][-1]["at"] > GAP:
            visits.append([])
        visits[-1].append(click)
    return sorted(
        (user, visit[0]["at"], visit[-1]["at"], len(visit), len({click["page"] for click in visit}))
        for user, visits in of_user.items()
        for visit in visits
    )


def written(topic: Topic) -> list[tuple[Any, ...]]:
    """The sessions that a reader of committed records finds."""
    rows = [(message.key(), json.loads(message.value())) for message in topic.read()]
    assert all(key == row["user"].encode() for key, row in rows)
    return sorted((row["user"], row["start"], round(row["last"], 2), row["clicks"], row["pages"]) for _, row in rows)


@pytest.mark.parametrize("seed", range(2))
def test_each_session_is_written_once_whatever_is_killed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafka_server() as server:
        source, out, made = Topic(server, PARTITIONS), Topic(server, 2), clicks(seed)
        write(source, made)
        publications = with_broker_restarts(server, monkeypatch)
        checkpoint = tr.CheckpointConfig("memory", interval=0.002)
        env = tr.Environment(parallelism=2 + seed, checkpoint=checkpoint, restart=tr.FixedDelay(20, 0.01))
        runpy.run_path(str(EXAMPLE))["dataflow"](env, server.url, source.name, out.name, until="latest")
        faults = [Fault(80, "kill"), Fault(200, "crash-driver"), Fault(320, "kill", which=1)]
        job = tr.testing.simulate(env, seed=seed, faults=faults)
        assert job.exception() is None, job.exception()
        assert [line.split(maxsplit=1)[1] for line in job.trace].count("killed") == 2 and len(publications) > 3
        assert written(out) == by_hand(made)


def with_broker_restarts(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has the broker end and start again before the first publication, and behind the second and third before they are
    known to have happened. Returns the numbers of what was published."""
    publish, publications = tr.sinks.Kafka.publish, list[int]()

    def published(self: Any, prepared: Any) -> None:
        publications.append(len(prepared))
        if len(publications) == 1:
            server.restart()
        publish(self, prepared)
        if len(publications) in (2, 3):
            server.restart()
            raise ConnectionError("the broker was gone before it answered")

    monkeypatch.setattr(tr.sinks.Kafka, "publish", published)
    return publications


@pytest.mark.spark
def test_sessions_on_spark_outlive_a_worker_and_the_broker(spark: Any, tmp_path: Path) -> None:
    with kafka_server() as server:
        source, out, made = Topic(server, PARTITIONS), Topic(server, 2), clicks(9)
        middle = len(made) // 2
        write(source, made[:middle])
        checkpoint = tr.CheckpointConfig(tmp_path, interval=0.3)
        env = tr.Environment(
            spark, parallelism=2, progress=False, checkpoint=checkpoint, restart=tr.FixedDelay(20, 0.1)
        )
        runpy.run_path(str(EXAMPLE))["dataflow"](env, server.url, source.name, out.name)
        job = env.execute("sessions")
        try:
            assert waited(lambda: written(out))
            write(source, made[middle:])
            os.kill(job._runner.machine.roster.slots[0].hello.pid, signal.SIGKILL)
            server.kill()
            assert waited(lambda: job.restarts >= 1)
            server.restart()
            for number in range(PARTITIONS):  # brings the event time of each partition behind all sessions
                source.write([json.dumps({"user": "last", "page": "/", "at": 1e6}).encode()], number)
            expected = by_hand(made)
            assert waited(lambda: len(written(out)) >= len(expected) or not job.is_active), written(out)
        finally:
            job.cancel()
            job.await_termination(60)
        assert written(out) == expected
