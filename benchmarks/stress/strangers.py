"""Strangers at every port of a job, in great numbers: it goes on, and nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import tailrace as tr
from tailrace.runtime.network.listener import LinkError, dial
from tailrace.runtime.outpost import hosted_folder

from . import Setting
from .running import Run, Watched, Wrong, session

ROOT = Path(__file__).parents[2]
Address = tuple[str, int]


def attack(to: Address, kind: str, *, processes: int = 1, token: bytes | None = None, **more: Any) -> dict[str, Any]:
    """What strangers in processes of their own have met."""
    started = []
    for seed in range(processes):
        options = {"host": to[0], "port": to[1], "kind": kind, "seed": seed, "token": token and token.hex(), **more}
        command = [sys.executable, "-m", "benchmarks.stress.attack"]
        one = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert one.stdin is not None
        one.stdin.write(json.dumps(options) + "\n")
        one.stdin.flush()
        started.append(one)
    met, seconds = Counter[str](), 0.0
    for one in started:
        out, _ = one.communicate()
        if one.returncode:
            raise Wrong(f"the strangers of {kind} have failed")
        result = json.loads(out)
        met.update(result["met"])
        seconds = max(seconds, result["seconds"])
    return {"met": dict(met), "seconds": seconds}


@contextlib.contextmanager
def knocking(to: Address, token: bytes) -> Iterator[list[float]]:
    """A party that knows the token and comes again and again, as workers do (`dialing.reach`): how long each time took."""
    took: list[float] = []
    over = threading.Event()

    def knock() -> None:
        while not over.wait(0.2):
            begun = time.monotonic()
            for _ in range(8):
                try:
                    dial(to, token, 20.0).close()
                    break
                except LinkError:
                    time.sleep(0.1)
            else:
                took.append(float("inf"))
                return
            took.append(time.monotonic() - begun)

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join(60)


def files_of(pids: dict[str, int]) -> dict[str, int]:
    return {name: psutil.Process(pid).num_fds() for name, pid in pids.items()}


def assault(
    setting: Setting, to: Address, token: bytes, pids: dict[str, int], lives: Callable[[], Any]
) -> dict[str, Any]:
    """All kinds of attack on one port. Raises `Wrong` where something comes of them."""
    count = setting.option("frames", 20_000)
    before = files_of(pids)
    with knocking(to, token) as took:
        result = {
            "noise": attack(to, "frames", processes=2, count=count * 9 // 20),
            "malformed": attack(to, "frames", processes=2, token=token, count=count // 20),
            "crowd": attack(to, "crowd", count=setting.option("crowd", 10_000), seconds=6.0),
            "trickle": attack(to, "trickle", count=200, seconds=setting.option("trickle", 12.0)),
        }
        lives()
    if "NOT CLOSED" in str(result):
        raise Wrong(f"connections of strangers stay open: {result}")
    if max(took, default=0.0) > 20:
        raise Wrong(f"who knows the token had to wait for {max(took):.0f} s")
    deadline = time.monotonic() + 20
    while any(now > before[name] + 8 for name, now in files_of(pids).items()):
        if time.monotonic() > deadline:
            raise Wrong(f"sockets are left: {before}, now {files_of(pids)}")
        time.sleep(0.2)
    return {**result, "longest_knock": round(max(took, default=0.0), 2)}


def strangers(setting: Setting) -> dict[str, Any]:
    """At the coordinator's port and at those of two workers."""
    _many_files()
    run = Run(setting, session(setting, 4))
    run.await_checkpoint()
    runner = run.job._runner
    workers = [slot.hello for slot in runner.machine.roster.slots]
    doors = {"coordinator": runner._workers.listener.address}
    doors |= {f"worker {one.slot}": (one.host, one.port) for one in workers}
    pids = {"driver": psutil.Process().pid} | {f"worker {slot}": pid for slot, pid in run.pids().items()}
    figures: dict[str, Any] = {}
    with Watched(lambda: pids) as watched:
        for where, to in doors.items():
            before = run.rows()
            figures[where] = assault(setting, to, runner._token, pids, run.await_checkpoint)
            figures[where]["rows"] = run.rows() - before
    figures["refused"] = run.job.metrics()["refused_connections"]
    memory = watched.figures()
    found = run.finish()
    grown = {name: one["most"] - one["early"] for name, one in memory.items()}
    wrong = found["wrong"] or (f"{found['restarts']} restarts" if found["restarts"] else "")
    wrong = wrong or (f"grown by MB: {grown}" if max(grown.values()) > 64 else "")
    return {**found, **figures, "memory": memory, "wrong": wrong}


def strangers_at_the_folder(setting: Setting) -> dict[str, Any]:
    """At the port of the driver's folder, through which rows travel meanwhile, in both directions."""
    _many_files()
    spark = session(setting, 4)
    rows = 20_000
    frame = spark.range(0, rows, 1, 4)
    wrong: list[str] = []
    over = threading.Event()
    turns = 0

    def travel() -> None:
        nonlocal turns
        while not over.is_set() and not wrong:
            env = tr.Environment(spark, parallelism=2, progress=False)
            try:
                found = sorted(env.from_dataframe(frame).map(_id).collect())
            except Exception as error:  # reported as wrong
                wrong.append(f"{type(error).__name__}: {error}")
                return
            turns += 1
            if found != list(range(rows)):
                wrong.append(f"other rows: {len(found)}")

    traveller = threading.Thread(target=travel)
    traveller.start()
    deadline = time.monotonic() + 120
    while not turns and not wrong and time.monotonic() < deadline:
        time.sleep(0.1)
    (host,) = hosted_folder._own.values()
    pids = {"driver": psutil.Process().pid}
    with Watched(lambda: pids) as watched:
        figures = assault(setting, host.address, host.token, pids, lambda: None)
    over.set()
    traveller.join(120)
    return {**figures, "travelled": turns, "memory": watched.figures(), "wrong": "; ".join(wrong)}


def _id(row: Any) -> int:
    return int(row.id)


def _many_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
