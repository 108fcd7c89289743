"""Workers and executors that are lost, one at a time, and how soon others are in their place."""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import Any

from benchmarks.recovery import Watched, warm_up

from . import Setting
from .running import Run, executor_of, executors, session

SOON = 0.5
"""Seconds within which a lost slot is filled where a warm process waits for work."""


def spare(setting: Setting) -> dict[str, Any]:
    """Kills of a worker while a warm spare is there: from the kill to the hello of the next one."""
    spark = session(setting, 6)
    warm_up(spark, 6)
    run = Run(setting, spark)
    watched = Watched(run.job)
    filled, silent = [], []
    for turn in range(setting.option("kills", 8)):
        run.await_checkpoint()
        if turn:
            warm_up(spark, 4)
            time.sleep(1.0)
        restarts, killed = run.job.restarts, time.time()
        os.kill(run.pid(turn % 2), signal.SIGKILL)
        run.await_restart(restarts)
        silent.append(time.time() - killed)
        filled.append(watched.between(killed, time.time())["hello"] / 1000)
    found = run.finish()
    figures = {
        "filled_seconds": round(statistics.median(filled), 3),
        "filled_slowest": round(max(filled), 3),
        "running_seconds": round(statistics.median(silent), 3),
        "running_slowest": round(max(silent), 3),
    }
    late = f"a slot was filled after {max(filled):.2f} s" if statistics.median(filled) > SOON else ""
    return {**found, **figures, "wrong": found["wrong"] or late}


def full(setting: Setting) -> dict[str, Any]:
    """Kills of an executor's JVM while every task slot of the program is taken: another one comes in its place."""
    spark = session(setting, 4)
    run = Run(setting, spark, parallelism=4)
    took = []
    for turn in range(setting.option("kills", 3)):
        run.await_checkpoint()
        restarts, before = run.job.restarts, {process.pid for process in executors(spark)}
        executor_of(run.pid(turn)).kill()
        took.append(run.await_restart(restarts))
        run.wait("an executor", lambda before=before: {p.pid for p in executors(spark)} - before)
    found = run.finish()
    return {**found, "running_seconds": round(statistics.median(took), 1), "running_slowest": round(max(took), 1)}
