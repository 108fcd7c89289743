"""Clocks and random bytes of Python are read by user code past its context. Where lost workers are replaced, a replacement
reads what the lost worker has read: two readers of one value agree, whatever was lost between them."""

from __future__ import annotations

import datetime as dates
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime
from time import time as seconds_of_the_day
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.testing.faults import Fault

pytestmark = pytest.mark.search
N = 300
BERLIN = dates.timezone(dates.timedelta(hours=1))


def seconds(clock: Callable[[], float] = time.time) -> float:
    return clock()


READ: dict[str, Callable[[], Any]] = {
    "uuid4": lambda: uuid.uuid4().hex,
    "uuid1": lambda: str(uuid.uuid1()),
    "time": time.time,
    "time_ns": lambda: time.time_ns(),
    "a clock by its own name": lambda: seconds_of_the_day(),
    "a clock as a default": seconds,
    "monotonic": lambda: (time.monotonic(), time.perf_counter(), time.perf_counter_ns()),
    "processor time": lambda: (time.process_time_ns(), time.thread_time()),
    "now": lambda: (datetime.now(), datetime.now(BERLIN), datetime.utcnow(), dates.datetime.today()),
    "today": lambda: (date.today(), time.localtime(), time.strftime("%H:%M:%S"), time.time_ns()),
    "urandom": lambda: os.urandom(9),
    "secrets": lambda: (secrets.token_hex(4), secrets.randbelow(1 << 40)),
    "a generator": lambda: random.Random().random(),
    "the system's generator": lambda: random.SystemRandom().random(),
    "a generator of numpy": lambda: float(np.random.default_rng().random()),
}


class Keeps(tr.KeyedProcessFunction):
    newest = tr.ValueState(object)

    def process(self, record: Any, ctx: Any) -> Iterator[Any]:
        self.newest.value = record
        yield record


def environment(depth: int = 1) -> tr.Environment:
    return tr.Environment(
        parallelism=3,
        checkpoint=tr.CheckpointConfig("in memory", interval=0.005),
        standby=tr.StandbyConfig(replicas=0, depth=depth),
        restart=tr.FixedDelay(attempts=5, delay=0.01),
    )


def two_readers(marked: tr.DataStream) -> tuple[Any, Any]:
    """Two sinks, behind operators that get the records by keys of their own."""
    one = marked.key_by(lambda r: r[0] % 11).process(Keeps(), uid="one").sink_to(tr.sinks.Collect())
    other = marked.key_by(lambda r: r[0] % 13).process(Keeps(), uid="other").sink_to(tr.sinks.Collect())
    return one, other


def numbers(env: tr.Environment) -> tr.DataStream:
    return env.from_source(tr.sources.Sequence(0, N, rate=6_000), uid="numbers")


def ran(env: tr.Environment, seed: int) -> tr.testing.SimulatedJob:
    faults = [Fault(220 + 53 * seed, "kill", which=seed), Fault(700 + 31 * seed, "kill", which=seed + 1)]
    return tr.testing.simulate(env, seed=seed, faults=faults)


def replaced(job: tr.testing.SimulatedJob) -> int:
    """The number of workers that were replaced, in a job that was restarted for losses alone."""
    reasons = [cause.message for cause in job.simulation.causes]
    assert all("lost" in reason or "it died" in reason for reason in reasons), reasons
    job.await_termination()
    return job.simulation.covered["replaced a worker"]


def test_two_readers_of_what_a_function_has_read_agree() -> None:
    count = 0
    for seed in range(4):
        env = environment()
        one, other = two_readers(numbers(env).map(lambda n: (n, [read() for read in READ.values()]), name="marks"))
        count += replaced(ran(env, seed))
        found, again = dict(one.result()), dict(other.result())
        apart = {name for n in found for name, a, b in zip(READ, found[n], again[n], strict=True) if a != b}
        assert not apart and len(found) == N
    assert count > 2


def test_two_readers_of_a_uuid_agree_whenever_a_worker_is_lost() -> None:
    count = 0
    for seed in range(14):
        env = environment(depth=1 + seed % 2)
        one, other = two_readers(numbers(env).map(lambda n: (n, uuid.uuid4().hex), name="marks"))
        job = ran(env, seed)
        job.await_termination()
        count += job.simulation.covered["replaced a worker"]
        found = dict(one.result())
        assert found == dict(other.result()) and len(set(found.values())) == N, seed
    assert count > 12


class Opened(tr.ProcessFunction):
    """A function that reads when it is opened, and keeps that in fields of its own."""

    def open(self, ctx: Any) -> None:
        self.id, self.since, self.rng = uuid.uuid4().hex, time.monotonic(), random.Random()
        self.attempt = ctx.attempt

    def process(self, number: int, ctx: Any) -> Iterator[Any]:
        assert time.monotonic() >= self.since
        yield number, (self.id, self.since, self.attempt, ctx.subtask)


def test_what_open_has_read_stays_what_it_was() -> None:
    count = 0
    for seed in range(4):
        env = environment()
        one, other = two_readers(numbers(env).process(Opened(), uid="opened"))
        job = ran(env, seed)
        count += replaced(job)
        found = dict(one.result())
        assert found == dict(other.result())
        read = set(found.values())
        assert len(read) == len({(attempt, subtask) for _, _, attempt, subtask in read}) >= 3
    assert count > 2


class Attempts(tr.ProcessFunction):
    def process(self, number: int, ctx: Any) -> Iterator[Any]:
        yield number, (ctx.attempt, ctx.subtask)


def test_the_attempt_of_what_is_repeated_is_the_one_that_it_was() -> None:
    seen, count = set(), 0
    for seed in range(6):
        env = environment()
        one, other = two_readers(numbers(env).process(Attempts(), uid="attempts"))
        count += replaced(ran(env, seed))
        found = dict(one.result())
        assert found == dict(other.result())
        seen |= {attempt for attempt, _ in found.values()}
    assert seen > {0} and count > 2, "a replacement has an attempt of its own for what it does first"


def test_a_source_may_stamp_its_records() -> None:
    count = 0
    for seed in range(4):
        env = environment()
        made = tr.sources.Generator(lambda n: (n, time.time(), uuid.uuid4().hex), count=N, rate=6_000)
        one, other = two_readers(env.from_source(made, uid="stamped"))
        count += replaced(ran(env, seed))
        assert sorted(one.result()) == sorted(other.result()) and len(one.result()) == N
    assert count > 2


def test_event_time_from_a_clock_is_the_same() -> None:
    """A job with event time from a clock is replayed in one order."""
    count = 0
    for seed in range(4):
        env = environment()
        marked = numbers(env).map(lambda n: (n, time.time()), name="marks").assign_timestamps(lambda r: time.time())
        one, other = two_readers(marked)
        count += replaced(ran(env, seed))
        assert dict(one.result()) == dict(other.result())
    assert count > 2


class Once(tr.ProcessFunction):
    """A function that reads a clock once in its life, and notices no error. What it reads decides nothing."""

    def __init__(self) -> None:
        self.since: float | None = None

    def process(self, number: int, ctx: Any) -> Iterator[Any]:
        if self.since is None:
            try:
                self.since = time.time()
            except Exception:
                self.since = 0.0
        yield number, 1


def test_a_reading_that_was_not_made_before_is_a_difference_though_the_function_catches_the_error() -> None:
    """What it has in fields of its own would have decided whether it reads, and so might anything else."""
    noticed = 0
    for seed in range(6):
        env = environment()
        one, _ = two_readers(numbers(env).process(Once(), uid="once"))
        job = ran(env, seed)
        reasons = [cause.message for cause in job.simulation.causes]
        noticed += sum("reads a clock, which it had not done before" in one and "Once" in one for one in reasons)
        job.await_termination()
        assert len(one.result()) == N
    assert noticed > 0


def test_other_threads_read_for_themselves() -> None:
    env, seen = environment(), list[float]()

    def beside(number: int) -> tuple[int, int]:
        thread = threading.Thread(target=lambda: seen.append(time.time()))
        thread.start()
        thread.join()
        return number, 1

    one, _ = two_readers(numbers(env).map(beside, name="beside"))
    assert replaced(ran(env, 1)) > 0 and len(one.result()) == N


def test_a_sink_names_its_files_anew(tmp_path: Any) -> None:
    """A sink's own clocks are not recorded: a replacement has to write elsewhere than the lost worker."""
    env = environment()
    lines = numbers(env).map(str, name="text")
    lines.sink_to(tr.sinks.TextFiles(str(tmp_path / "lines")))
    assert replaced(ran(env, 2)) > 0
    found = [line for file in (tmp_path / "lines").rglob("*.txt") for line in file.read_text().splitlines()]
    assert sorted(map(int, found)) == list(range(N))
