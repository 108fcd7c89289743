"""Much at once: large records, a consumer that is slow for long, many workers, many operators."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Iterator
from typing import Any

import tailrace as tr

from . import Setting
from .running import AT_ONCE, Run, Watched, jvm, session

GROWTH = 24
"""MB by which a process may be larger at the end than early on."""


class Newest(tr.KeyedProcessFunction):
    """Keeps the newest record of a key; emits it with the one before."""

    record = tr.ValueState(object, default=None)

    def process(self, value: tuple[int, bytes], ctx: tr.Context) -> Iterator[tuple[int, int, int]]:
        self.record.value = value
        yield value[0], len(value[1]), zlib.crc32(value[1])


class Large:
    """A record of so many bytes, made from its number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, number: int) -> tuple[int, bytes]:
        return number, number.to_bytes(4, "little") * (self.size // 4)


def large(setting: Setting) -> dict[str, Any]:
    """Records of 50 MB through a shuffle into keyed state with checkpoints: all arrive, and few are in memory at once."""
    count, size = setting.option("records", 80), setting.option("mb", 50) << 20
    spark = session(setting, 3)
    checkpoint = tr.CheckpointConfig(f"{setting.folder}/checkpoints", interval=2.0)
    env = tr.Environment(spark, parallelism=2, progress=False, checkpoint=checkpoint)
    records = env.from_source(tr.sources.Generator(Large(size), count=count))
    sink = records.key_by(lambda record: record[0] // 2 % 4).process(Newest()).sink_to(tr.sinks.Collect())
    job = env.execute("large")
    slots = job._runner.machine.roster.slots

    def processes() -> dict[str, int]:
        return {f"worker {s.index}": s.hello.pid for s in slots if s.hello is not None} | {"JVM": jvm().pid}

    begun = time.monotonic()
    with Watched(processes, 0.05) as watched:
        job.await_termination()
    took = time.monotonic() - begun
    expected = [(n, size, zlib.crc32(Large(size)(n)[1])) for n in range(count)]
    wrong = "" if sorted(sink.result()) == expected else "other records have arrived"
    memory = watched.figures()
    most = max(one["most"] for name, one in memory.items() if name != "JVM") << 20
    if most > 24 * size:
        wrong = wrong or f"a worker took {most >> 20} MB"
    figures = {"records": count, "mb_per_second": round(count * size / took / (1 << 20)), "memory": memory}
    return {**figures, "restarts": job.restarts, "wrong": wrong}


def slow(setting: Setting) -> dict[str, Any]:
    """A consumer that is slower than its source, for minutes with many times the checkpoints of else: the memory
    of every process stays as it was."""
    minutes = setting.option("minutes", 3.0)
    run = Run(setting, session(setting, 3), rate=None, slow=0.0001, interval=0.05, at_once=8, memory="1m")
    run.await_checkpoint()

    def processes() -> dict[str, int]:
        workers = {f"worker {slot}": pid for slot, pid in run.pids().items()}
        return workers | {"JVM": jvm().pid, "driver": os.getpid()}

    begun, before = time.monotonic(), run.rows()
    with Watched(processes, 1.0) as watched:
        while time.monotonic() - begun < 60 * minutes and run.job.is_active:
            time.sleep(1)
    rows = run.rows() - before
    taken = run.job.checkpoints[-1].id
    memory = watched.figures()
    found = run.finish()
    grown = {name: one["late"] - one["early"] for name, one in memory.items() if name != "JVM"}
    wrong = found["wrong"] or (f"grown by MB: {grown}" if max(grown.values()) > GROWTH else "")
    rate = round(rows / (60 * minutes))
    return {
        **found,
        "minutes": minutes,
        "rows_per_second": rate,
        "checkpoints": taken,
        "memory": memory,
        "wrong": wrong,
    }


def wide(setting: Setting) -> dict[str, Any]:
    """A job with 32 workers on this machine, one of which is killed."""
    workers = setting.option("workers", 32)
    begun = time.monotonic()
    run = Run(setting, session(setting, workers + 1), parallelism=workers, interval=2.0, slot_timeout=300.0)
    started = run.wait("the start", lambda: run.running)
    run.await_checkpoint()
    restarts = run.job.restarts
    os.kill(run.pid(workers // 2), signal.SIGKILL)
    again = run.await_restart(restarts)
    run.await_checkpoint()
    cancelled = time.monotonic()
    found = run.finish()
    ended = time.monotonic() - cancelled
    figures = {"start_seconds": started, "restart_seconds": again, "end_seconds": ended}
    whole = time.monotonic() - begun
    return {**found, **{name: round(took, 1) for name, took in figures.items()}, "whole_seconds": round(whole, 1)}


def operators(setting: Setting) -> dict[str, Any]:
    """A job with 500 operators that no chain joins, each record of which goes through all of them. Over two workers each hop
    parts a batch."""
    count, records = setting.option("operators", 500), setting.option("records", 20_000)
    spark = session(setting, 3)
    figures: dict[str, Any] = {}
    for parallelism in (1, 2):
        env = tr.Environment(spark, parallelism=parallelism, progress=False, restart=AT_ONCE)
        stream = env.from_source(tr.sources.Sequence(0, records))
        for at in range(count):
            stream = stream.rebalance().map(_one_more, name=f"operator {at}")
        sink = stream.sink_to(tr.sinks.Collect())
        begun = time.monotonic()
        job = env.execute(f"operators-{parallelism}")
        while str(job.status) in ("CREATED", "STARTING"):
            time.sleep(0.005)
        figures[f"start_seconds_{parallelism}"] = round(time.monotonic() - begun, 2)
        job.await_termination()
        figures[f"seconds_{parallelism}"] = round(time.monotonic() - begun, 2)
        if sorted(sink.result()) != list(range(count, records + count)):
            return {**figures, "wrong": f"other records at parallelism {parallelism}"}
    return {**figures, "operators": count, "records": records, "wrong": ""}


def _one_more(number: int) -> int:
    return number + 1
