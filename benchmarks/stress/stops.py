"""Processes that do nothing for a while, or for ever: user code that holds its worker, and SIGSTOP of everybody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from . import Setting
from .running import Run, Watched, Wrong, executor_of, executors, jvm, session, signal_all

LEASE = 10.0
"""Seconds for a sign of life of a worker (`coordinator.job.timeouts`)."""


class Holds:
    """Holds the interpreter, once: no other thread of the process runs meanwhile."""

    def __init__(self, flag: str, seconds: float) -> None:
        self.flag, self.seconds = flag, seconds

    def __call__(self, number: int) -> int:
        if number % 1000 == 999 and os.path.exists(self.flag):
            with open(f"{self.flag}.{os.getpid()}", "a"):
                os.unlink(self.flag)
            begun, size = time.monotonic(), 18
            while time.monotonic() - begun < self.seconds:  # each takes twice as long as the one before
                re.match(r"(a+)+$", "a" * size + "b")
                size += 1
        return number


def held(setting: Setting) -> dict[str, Any]:
    """User code that holds the interpreter for 5 s: the worker lives."""
    seconds = setting.option("seconds", 4.0)  # its last call may take as long as all others
    flag = f"{setting.folder}/hold"
    run = Run(setting, session(setting, 4), between=Holds(flag, seconds))
    run.await_checkpoint()
    before = run.pids()
    Path(flag).touch()
    run.wait("user code", lambda: not os.path.exists(flag))
    begun = time.monotonic()
    run.await_checkpoint()
    took = time.monotonic() - begun
    lived = run.pids() == before
    found = run.finish()
    return {**found, "held_seconds": round(took, 1), "wrong": found["wrong"] or ("" if lived else "a worker was lost")}


def _never(number: int) -> int:
    if number == 5000:
        re.match(r"(a+)+$", "a" * 40 + "b")  # for hours
    return number


def endless(setting: Setting) -> dict[str, Any]:
    """User code that does not come back, and holds the interpreter: the job is cancelled within seconds."""
    run = Run(setting, session(setting, 4), between=_never)
    run.await_checkpoint()
    before = [psutil.Process(pid) for pid in run.pids().values()]
    time.sleep(setting.option("after", 4.0))
    begun = time.monotonic()
    run.job.cancel()
    ended = run.job.await_termination(60)
    took = time.monotonic() - begun
    _, alive = psutil.wait_procs(before, 10)
    stuck = [p for p in alive if p.cpu_percent(0.5) > 50]
    wrong = "" if ended and took < LEASE else f"not ended within {LEASE:.0f} s"
    return {"cancel_seconds": round(took, 1), "wrong": wrong or (f"still busy: {stuck}" if stuck else "")}


def stop_worker(setting: Setting) -> dict[str, Any]:
    """A worker's process: for less than its lease, and for ever."""
    run = Run(setting, session(setting, 4))
    run.await_checkpoint()
    pid = run.pid(1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5 * LEASE)
    os.kill(pid, signal.SIGCONT)
    run.await_checkpoint()
    short = run.job.restarts
    os.kill(pid, signal.SIGSTOP)
    took = run.await_restart(0, LEASE + 30)
    run.await_checkpoint()
    gone = not psutil.pid_exists(pid)
    found = run.finish()
    wrong = found["wrong"] or ("restarted within the lease" if short else "") or ("" if gone else f"{pid} is there")
    return {**found, "restarted_after_seconds": round(took, 1), "wrong": wrong}


def stop_executor(setting: Setting) -> dict[str, Any]:
    """The JVM beside the workers, for less than Spark's patience: nobody notices. Without a cluster it is the driver's."""
    spark = session(setting, 4)
    run = Run(setting, spark)
    run.await_checkpoint()
    stopped = [executor_of(run.pid(0)) if setting.master else jvm()]
    signal_all(stopped, signal.SIGSTOP)
    before = run.rows()
    time.sleep(setting.option("seconds", 2 * LEASE))
    during = run.rows() - before
    signal_all(stopped, signal.SIGCONT)
    run.await_checkpoint()
    found = run.finish()
    wrong = found["wrong"] or (f"{found['restarts']} restarts" if found["restarts"] else "")
    return {**found, "rows_meanwhile": during, "wrong": wrong or ("" if during else "no row meanwhile")}


def stop_machine(setting: Setting) -> dict[str, Any]:
    """An executor with all its workers, for ever, first while there is room on the other one, then while there is none: the
    job goes on once Spark has noticed, which takes longer than `slot_timeout`."""
    patience, network = setting.option("slot_timeout", 25.0), setting.option("network", 40)
    spark = session(
        setting,
        4,
        spark_network_timeout=f"{network}s",
        spark_network_timeoutInterval="5s",
        spark_executor_heartbeatInterval="4s",
    )
    figures: dict[str, Any] = {}
    for name, parallelism in (("room", 1), ("full", 4)):
        run = Run(setting, spark, parallelism=parallelism, slot_timeout=patience)
        run.await_checkpoint()
        executor = executor_of(run.pid(0))
        whole = [executor, *executor.children(recursive=True)]
        signal_all(whole, signal.SIGSTOP)
        took = run.await_restart(0, LEASE + 4 * network + 60)
        run.await_checkpoint()
        figures[f"{name}_seconds"] = round(took, 1)
        found = run.finish()
        signal_all(whole, signal.SIGCONT)
        if found["wrong"]:
            return {**figures, **found}
        _settle(spark, 2)
    return {**figures, **found}


def _settle(spark: Any, count: int) -> None:
    """Until the program has so many executors again."""
    deadline = time.monotonic() + 120
    while len([e for e in executors(spark) if e.status() != psutil.STATUS_STOPPED]) != count:
        if time.monotonic() > deadline:
            raise Wrong(f"there are not {count} executors: {executors(spark)}")
        time.sleep(0.5)
    time.sleep(3)


def stop_driver(setting: Setting) -> dict[str, Any]:
    """The program; then the program with its JVM and, on one machine, its workers, as Ctrl-Z in a terminal does. For longer
    than a lease: the job goes on, and nobody was lost. The memory of workers stays as it was."""
    seconds = setting.option("seconds", 3 * LEASE)
    run = Run(setting, session(setting, 4))
    run.await_checkpoint()
    with Watched(lambda: {str(slot): pid for slot, pid in run.pids().items()}) as watched:
        _stop([os.getpid()], seconds)
        run.await_checkpoint()
        alone = run.job.restarts
        family = [process.pid for process in psutil.Process().children(recursive=True)]
        _stop([*family, os.getpid()], seconds)
        run.await_checkpoint()
        together = run.job.restarts - alone
    found = run.finish()
    wrong = found["wrong"] or (f"restarts: {alone} and {together}" if alone or together else "")
    return {**found, "seconds": seconds, "memory": watched.figures(), "wrong": wrong}


def _stop(pids: list[int], seconds: float) -> None:
    """Stops this process, and others, for so long."""
    those = " ".join(map(str, pids))
    command = f"kill -STOP {those}; sleep {seconds}; kill -CONT {those}"
    begun = time.monotonic()
    helper = subprocess.Popen(["setsid", "sh", "-c", command])
    helper.wait()
    if time.monotonic() - begun < seconds:
        raise Wrong("was not stopped")
