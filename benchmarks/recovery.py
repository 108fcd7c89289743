"""How long a job is silent when one of its workers is killed: from the kill to the first record of the next attempt at
the sink. State of a given size is restored; a spare warm Python worker is in Spark's pool."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tailrace as tr

STAMP = struct.Struct("<id")


@dataclass(frozen=True)
class RecoverySpec:
    keys: int = 100_000
    bytes: int = 1000
    rate: float = 10_000.0  # records a second, after loading
    interval: float = 1.0
    kills: int = 10
    parallelism: int = 2
    state: str = "memory"
    warm: int = 1  # spare Python workers in the pool
    delay: float = 0.0  # of the restart strategy

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> RecoverySpec:
        kinds = {"keys": int, "bytes": int, "rate": float, "interval": float, "kills": int, "warm": int, "delay": float}
        kinds["state"] = str
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})


class Numbers(tr.Source):
    """Every key once, as fast as it goes; then again and again at a pace."""

    bounded = False

    def __init__(self, spec: RecoverySpec) -> None:
        self.spec = spec

    def splits(self, parallelism: int) -> list[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        return NumbersReader(self.spec, split[0] if position is None else position, split[1])


class NumbersReader(tr.Reader):
    def __init__(self, spec: RecoverySpec, at: int, step: int) -> None:
        self.at, self.step, self.keys, self.rate = at, step, spec.keys, spec.rate / step
        self.began: float | None = None
        self.done = 0

    def read(self, limit: int, now: float) -> Any:
        if self.at >= self.keys:
            if self.began is None:
                self.began = now
            limit = min(limit, int((now - self.began) * self.rate) + 1 - self.done)
            self.done += limit
        found = list(range(self.at, self.at + limit * self.step, self.step))
        self.at += limit * self.step
        return found

    def next_at(self, now: float) -> float:
        return now + 0.001

    @property
    def position(self) -> int:
        return self.at


class Put(tr.KeyedProcessFunction):
    """Keeps a value of the given size for each key; emits the number of its attempt."""

    value = tr.ValueState(object, default=None)

    def __init__(self, keys: int, size: int) -> None:
        self.keys, self.size = keys, size

    def open(self, ctx: tr.Context) -> None:
        self.attempt = ctx.attempt

    def process(self, value: int, ctx: tr.Context) -> Iterator[int]:
        old = self.value.value
        count = 1 if old is None else int.from_bytes(old[:8], "little") + 1
        self.value.value = count.to_bytes(8, "little") + os.urandom(16) * (self.size // 16)
        if value >= self.keys:
            yield self.attempt


class Signal:
    """Tells the driver of the first record of each attempt, and of one in a hundred."""

    def __init__(self, port: int) -> None:
        self.port, self.socket, self.last, self.count = port, None, -1, 0

    def __call__(self, attempt: int) -> None:
        self.count += 1
        if attempt != self.last or self.count % 100 == 0:
            self.last = attempt
            if self.socket is None:
                self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.sendto(STAMP.pack(attempt, time.time()), ("127.0.0.1", self.port))


def warm_up(spark: Any, workers: int) -> None:
    """Starts Python workers, idle in Spark's pool, that have imported what ours import: as many as given."""

    def task(numbers: Any) -> Iterator[Any]:
        import time

        import tailrace.runtime.worker.main_loop
        import tailrace.spark.shipping.plan_files  # noqa: F401

        for number in numbers:
            time.sleep(0.5)  # so that none does the work of another
            yield number

    spark.sparkContext.parallelize(range(workers), workers).mapPartitions(task).collect()


STEPS = {
    "noticed": "lost",
    "reset": "got WasReset",
    "claimed": "claimed",
    "hello": "got Hello",
    "deploy_sent": "send Deploy",
    "deployed": "got Deployed",
    "published": "got Published",
    "started": "send Start",
}
"""Steps of a restart, by their last event."""


class Watched:
    """When what happened in the coordinator, from the outside: messages it sends, events it gets."""

    def __init__(self, job: Any) -> None:
        self.events: list[tuple[float, str]] = []
        runner, machine = job._runner, job._runner.machine
        self._after(runner, "_send", lambda action: f"send {type(action.message).__name__}")
        self._after(machine, "message", lambda index, epoch, message, now: f"got {type(message).__name__}")
        self._after(machine, "hello", lambda hello, now: "got Hello")
        self._after(machine, "link_lost", lambda *rest: "lost")
        self._after(machine, "claim_done", lambda *rest: "claimed")

    def _after(self, thing: Any, name: str, what: Any) -> None:
        method = getattr(thing, name)

        def watch(*args: Any) -> Any:
            self.events.append((time.time(), what(*args)))
            return method(*args)

        setattr(thing, name, watch)

    def between(self, begin: float, end: float, steps: Mapping[str, str] = STEPS) -> dict[str, float]:
        """Milliseconds from `begin` to the last event of each kind."""
        out = {}
        for name, event in steps.items():
            times = [at for at, what in self.events if what == event and begin <= at <= end]
            if times:
                out[name] = round(1000 * (max(times) - begin), 1)
        return out


def run(spec: RecoverySpec) -> list[dict[str, Any]]:
    from tailrace.spark.cluster.session import active_or_local

    spark = active_or_local(spec.parallelism + 2)
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    listener.settimeout(60.0)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        settings = tr.CheckpointConfig(f"{folder}/checkpoints", interval=spec.interval, retain="never")
        restart = tr.FixedDelay(attempts=1_000_000, delay=spec.delay)
        env = tr.Environment(
            spark,
            parallelism=spec.parallelism,
            progress=False,
            checkpoint=settings,
            restart=restart,
            state_backend=spec.state,
        )
        port = listener.getsockname()[1]
        numbers = env.from_source(Numbers(spec))
        numbers.key_by(abs).process(Put(spec.keys, spec.bytes)).sink_to(tr.sinks.Callback(Signal(port)))
        if spec.warm:
            warm_up(spark, spec.parallelism + 1)
        job = env.execute("recovery")
        watched = Watched(job)
        lines = [_kill(spec, spark, job, watched, listener, turn) for turn in range(spec.kills)]
        job.cancel()
        job.await_termination(30)
    return lines


def _kill(spec: RecoverySpec, spark: Any, job: Any, watched: Watched, listener: Any, turn: int) -> dict[str, Any]:
    _listen(listener, job.restarts)  # there is output, so every key was loaded
    received = time.time()
    while not any(one.timestamp > received for one in job.checkpoints):
        if not job.is_active:
            job.await_termination()
        time.sleep(0.01)
    if turn and spec.warm:
        warm_up(spark, 1)
        time.sleep(1.0)
    slot = job._runner.machine.roster.slots[turn % spec.parallelism]
    before = job.restarts
    killed = time.time()
    os.kill(slot.hello.pid, signal.SIGKILL)
    stamp = _listen(listener, before + 1)
    line = {"slot": slot.index, "seconds": round(stamp - killed, 3), "restarts": job.restarts - before}
    return {**line, **{f"{name}_ms": at for name, at in watched.between(killed, stamp).items()}}


def _listen(listener: socket.socket, attempt: int) -> float:
    """When the first record of an attempt, or a later one, was at the sink. Earlier messages are ignored."""
    while True:
        number, stamp = STAMP.unpack(listener.recv(64))
        if number >= attempt:
            return float(stamp)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for line in lines for name in line if name.endswith("_ms"))
    return {
        "kills": len(lines),
        "seconds": round(statistics.median(line["seconds"] for line in lines), 3),
        "fastest": min(line["seconds"] for line in lines),
        "slowest": max(line["seconds"] for line in lines),
        **{name: round(statistics.median(line[name] for line in lines if name in line), 1) for name in names},
    }


if __name__ == "__main__":  # a run in this very process: python -m benchmarks.recovery keys=10000 kills=3
    from benchmarks import recovery

    found = recovery.run(recovery.RecoverySpec.of(dict(one.split("=", 1) for one in sys.argv[1:])))
    for one in [*found, recovery.summary(found)]:
        print(json.dumps(one), flush=True)
