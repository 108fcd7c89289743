"""How long latency is not as usual when a worker is killed: with standbys, and beside it with a restart of all. Records come
at a pace through several exchanges by key, one of which keeps state of a given size."""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import struct
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

import tailrace as tr

SEEN = struct.Struct("<qdd")
"""Of a record: its number, when it was due, and when it was at the sink."""
SAMPLED = 97
"""One record in so many is reported."""
USUAL = 6.0
"""Seconds before a kill, with a checkpoint in them, over which latency is measured. It has to be as usual for so long before
the next kill."""
CALM, FEW = 1.0, 0.02
"""Seconds, and a part of their records: latency is as usual where in so many no more are above what was the 99th
percentile."""
MODES = ("hot", "standby", "started", "restart")
"""A standby that does all that the worker does takes the slot; another one does; a worker is started for it; all start
again."""
MOVES = ("move", "move-all")
"""The worker is not killed, but its machine is reported to go: a standby takes the slot; all start again."""
JOBS = ("plain", "event-time", "loop")
"""Exchanges by key only; with timestamps, and a window beside; with a loop around the exchanges, through which each record
goes twice."""


@dataclass(frozen=True)
class FailoverSpec:
    rate: float = 50_000.0  # records a second
    megabytes: int = 100  # of state in each slice
    depth: int = 5  # exchanges by key
    interval: float = 5.0  # of checkpoints
    kills: int = 10
    parallelism: int = 2
    mode: str = "standby"
    job: str = "plain"
    pace: str = "3 ms"  # of hot standbys

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> Self:
        kinds = {
            "rate": float,
            "megabytes": int,
            "depth": int,
            "interval": float,
            "kills": int,
            "job": str,
            "pace": str,
        }
        return cls(**{**{name: kinds[name](value) for name, value in options.items() if name in kinds}, **more})

    @property
    def keys(self) -> int:
        return self.megabytes * self.parallelism * 1000


class Paced(tr.Source):
    """(number, when it is due): first one for each key, as fast as they are taken, which are due at no time (0); then so
    many a second."""

    bounded = False

    def __init__(self, spec: FailoverSpec) -> None:
        self.spec = spec

    def splits(self, parallelism: int) -> list[tuple[int, int]]:
        return [(i, parallelism) for i in range(parallelism)]

    def reader(self, split: tuple[int, int], position: Any = None) -> tr.Reader:
        at, since = (split[0], 0.0) if position is None else position
        return PacedReader(self.spec, split[1], at, since)


class PacedReader(tr.Reader):
    def __init__(self, spec: FailoverSpec, step: int, at: int, since: float) -> None:
        self.step, self.at, self.since = step, at, since
        self.keys, self.rate = spec.keys, spec.rate

    def read(self, limit: int, now: float) -> Any:
        at, step = self.at, self.step
        if at < self.keys:
            stop = min(at + limit * step, self.keys + step)
            self.at += len(range(at, stop, step)) * step
            return [(number, 0.0) for number in range(at, stop, step)]
        self.since = self.since or now - (at - self.keys) / self.rate
        due = self.keys + int((now - self.since) * self.rate)
        stop = min(at + limit * step, due)
        self.at += len(range(at, stop, step)) * step
        keys, since, rate = self.keys, self.since, self.rate
        return [(number, since + (number - keys) / rate) for number in range(at, stop, step)]

    def next_at(self, now: float) -> float:
        return now + 0.001

    @property
    def position(self) -> tuple[int, float]:
        return self.at, self.since


class Keep(tr.KeyedProcessFunction):
    """Keeps a kilobyte for each key, and looks at it with each record."""

    value = tr.ValueState(bytes)

    def process(self, record: tuple[int, float], ctx: tr.Context) -> Iterator[tuple[int, float]]:
        if self.value.value is None:
            self.value.value = record[0].to_bytes(8, "little") + bytes(992)
        if record[1]:
            yield record


class Count(tr.KeyedProcessFunction):
    count = tr.ValueState(int, default=0)

    def process(self, record: tuple[int, float], ctx: tr.Context) -> Iterator[tuple[int, float]]:
        self.count.value += 1
        yield record


class By:
    """The key of a record in one of the exchanges."""

    def __init__(self, keys: int, factor: int = 1) -> None:
        self.keys, self.factor = keys, factor

    def __call__(self, record: tuple[int, float]) -> int:
        return record[0] * self.factor % self.keys


def plain(spec: FailoverSpec, stream: tr.DataStream) -> tr.DataStream:
    """The exchanges by key, each with state."""
    return counted(stream.key_by(By(spec.keys)).process(Keep()), spec.depth - 1)


def counted(stream: tr.DataStream, stages: int) -> tr.DataStream:
    """The stream behind so many exchanges by key."""
    for stage in range(1, stages + 1):
        stream = stream.key_by(By(1000, 7 + 2 * stage)).process(Count())
    return stream


def with_event_time(spec: FailoverSpec, stream: tr.DataStream) -> tr.DataStream:
    """The exchanges, of records with timestamps, and a count of each second for each key beside the last one."""
    out = plain(spec, stream.assign_timestamps(due, 0.1))
    out.key_by(By(1000)).window(tr.Tumbling(1.0)).count().sink_to(tr.sinks.Callback(nothing))
    return out


def due(record: tuple[int, float]) -> float:
    return record[1]


def nothing(record: Any) -> None:
    """Does nothing."""


def in_a_loop(spec: FailoverSpec, stream: tr.DataStream) -> tr.DataStream:
    """The first exchange, and the others in a loop, half of them: each record goes through that twice."""
    kept = stream.key_by(By(spec.keys)).process(Keep()).map(first_lap)
    return kept.iterate(lambda laps: split(counted(laps, (spec.depth - 1) // 2))).map(without_laps)


def split(stream: tr.DataStream) -> tuple[tr.DataStream, tr.DataStream]:
    """(what goes around once more, what leaves)"""
    return stream.filter(goes_on).map(next_lap), stream.filter(leaves)


def first_lap(record: tuple[int, float]) -> tuple[int, float, int]:
    return (*record, 0)


def next_lap(record: tuple[int, float, int]) -> tuple[int, float, int]:
    return (*record[:2], record[2] + 1)


def goes_on(record: tuple[int, float, int]) -> bool:
    return record[2] == 0


def leaves(record: tuple[int, float, int]) -> bool:
    return record[2] == 1


def without_laps(record: tuple[int, float, int]) -> tuple[int, float]:
    return record[:2]


BUILD = {"plain": plain, "event-time": with_event_time, "loop": in_a_loop}


class Tell:
    """Tells the driver of one record in `SAMPLED`."""

    def __init__(self, port: int) -> None:
        self.port, self.socket = port, None

    def __call__(self, record: tuple[int, float]) -> None:
        if record[0] % SAMPLED == 0:
            if self.socket is None:
                self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.sendto(SEEN.pack(*record, time.time()), ("127.0.0.1", self.port))


class Listener(threading.Thread):
    """What came, each record once: what is done again comes again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.seen: set[int] = set()
        self.came: list[tuple[float, float]] = []
        """(when it was due, when it came), in the order in which they came."""

    def run(self) -> None:
        while data := self.socket.recv(64):
            number, due, came = SEEN.unpack(data)
            if number not in self.seen:
                self.seen.add(number)
                self.came.append((due, came))

    def latencies(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Of the records that were due then: (when, latency). What came before the first of these was due is not looked at:
        to ask must cost little, beside workers that are measured."""
        first = bisect_left(self.came, begin, key=lambda one: one[1])
        return sorted((due, came - due) for due, came in self.came[first:] if begin <= due < end)


def run(spec: FailoverSpec) -> list[dict[str, Any]]:
    from tailrace.spark.cluster.session import active_or_local

    spark = active_or_local(spec.parallelism + 2)
    listener = Listener()
    listener.start()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        one, started = tr.StandbyConfig(1), tr.StandbyConfig(0)
        standbys = {"standby": one, "started": started, "restart": None, "move": one, "move-all": None}
        standbys["hot"] = tr.StandbyConfig(1, mode="hot", pace=spec.pace)
        env = tr.Environment(
            spark,
            parallelism=spec.parallelism,
            progress=False,
            checkpoint=tr.CheckpointConfig(f"{folder}/checkpoints", interval=spec.interval, retain="never"),
            restart=tr.FixedDelay(attempts=1_000_000, delay=0.0),
            standby=standbys[spec.mode],
        )
        BUILD[spec.job](spec, env.from_source(Paced(spec))).sink_to(tr.sinks.Callback(Tell(listener.port)))
        job = env.execute("failover")
        waits = [spec.interval * (turn + 0.5) / spec.kills for turn in range(spec.kills)]
        random.Random(spec.kills).shuffle(waits)  # the same for each mode
        lines = [_kill(spec, job, listener, turn, wait) for turn, wait in enumerate(waits)]
        job.cancel()
        job.await_termination(30)
    return lines


def _kill(spec: FailoverSpec, job: Any, listener: Listener, turn: int, wait: float) -> dict[str, Any]:
    """Kills a worker so many seconds behind a checkpoint."""
    settle(spec, job, listener)
    before = job.checkpoints[-1].timestamp
    while job.checkpoints[-1].timestamp == before:
        time.sleep(0.02)
    time.sleep(max(0.0, job.checkpoints[-1].timestamp + wait - time.time()))
    machine = job._runner.machine
    slot = machine.roster.slots[turn % spec.parallelism]
    now, restarts = time.time(), job.restarts
    usual = [latency for _, latency in listener.latencies(now - USUAL, now - 0.1)]
    bound = max(percentile(usual, 0.99), 0.02)
    if spec.mode in MOVES:
        job._runner._leaving([slot.start])
        while not machine.takeovers.active and job.restarts == restarts:
            time.sleep(0.001)
    else:
        os.kill(slot.hello.pid, signal.SIGKILL)
    killed, newest = time.time(), job.checkpoints[-1].timestamp
    late = _until_usual(job, listener, killed, bound)
    return {
        "workload": "failover",
        "mode": spec.mode,
        "job": spec.job,
        "slot": slot.index,
        "seconds": round(late[0], 3),
        "worst_latency": round(late[1], 3),
        "usual_p50_ms": round(1000 * percentile(usual, 0.5), 2),
        "usual_p99_ms": round(1000 * percentile(usual, 0.99), 2),
        "since_checkpoint": round(killed - newest, 2),
        "phases_ms": {} if spec.mode in ("restart", "move-all") else _phases(job, slot.index),
        "was_hot": spec.mode == "hot" and job.slices[slot.index].last_failover.hot,
        "restarts": job.restarts - restarts,
    }


def _phases(job: Any, slot: int) -> dict[str, float]:
    """How long the parts of the last failover of a slot took, in milliseconds."""
    last = job.slices[slot].last_failover
    return {name: round(getattr(last, f"{name}_ms")) for name in ("process", "survivors", "restore", "replay")}


def settle(spec: FailoverSpec, job: Any, listener: Listener) -> None:
    """Waits for a complete checkpoint, for standbys that hold it, or that follow if they are hot, and for latency that has
    been as usual for a while."""
    begun = time.time()
    while True:
        if not job.is_active:
            job.await_termination()
        time.sleep(0.1)
        held = all(one.held for one in job._runner.machine.roster.standbys.all)
        if spec.mode == "hot":
            held = all(any(one.hot for one in piece.standbys) for piece in job.slices)
        now = time.time()
        recent = [latency for _, latency in listener.latencies(now - USUAL - 0.5, now - 0.5)]
        expected = spec.rate * USUAL / SAMPLED
        fresh = any(one.timestamp > begun for one in job.checkpoints)
        if fresh and held and len(recent) > 0.9 * expected and percentile(recent, 0.95) < 0.2:
            return
        if now > begun + 120:
            raise SystemExit(f"latency does not settle: {len(recent)} of {expected:.0f}, {job.last_progress}")


def _until_usual(job: Any, listener: Listener, killed: float, bound: float) -> tuple[float, float]:
    """(seconds from the kill until latency is as usual: until the last late record was there before a second in which no
    more than one in fifty is late; the worst latency)"""
    while True:
        time.sleep(0.25)
        if not job.is_active:
            job.await_termination()
        now = time.time()
        found = np.array(listener.latencies(killed - 1.0, now)).reshape(-1, 2)
        due, came, late = found[:, 0], found.sum(axis=1), found[:, 1] > bound
        whens = np.sort(np.append(came[late & (came > killed)], killed))
        begin, end = np.searchsorted(due, whens), np.searchsorted(due, whens + CALM)
        lates = np.append(0, np.cumsum(late))
        calm = (lates[end] - lates[begin] <= FEW * (end - begin)) & (end - begin > 100) & (whens + CALM + 0.5 < now)
        if calm.any():
            last = whens[calm.argmax()]
            return float(last - killed), float(found[late & (came > killed) & (came <= last), 1].max(initial=0.0))
        if now > killed + 120:
            raise SystemExit("latency is not as usual 120 s after the kill")


def percentile(found: list[float], share: float) -> float:
    return sorted(found)[int(share * (len(found) - 1))]


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, by mode."""
    modes = list(dict.fromkeys(line["mode"] for line in lines))
    by_mode = {mode: [line["seconds"] for line in lines if line["mode"] == mode] for mode in modes}
    return {
        "workload": "failover",
        "summary": True,
        "kills": {mode: len(found) for mode, found in by_mode.items()},
        "median_seconds": {mode: round(statistics.median(found), 3) for mode, found in by_mode.items()},
        "slowest": {mode: max(found) for mode, found in by_mode.items()},
    }
