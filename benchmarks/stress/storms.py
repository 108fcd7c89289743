"""Many faults, one after the other, at moments of chance: the output is as if there had been none."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import tailrace as tr

from . import Setting
from .running import AT_ONCE, Run, executor_of, session, signal_all

EXAMPLES = Path(__file__).parents[2] / "examples"


def _strike(setting: Setting, job: Any, chance: random.Random) -> str | None:
    """One fault, where somebody is there to be struck."""
    slots = [slot for slot in job._runner.machine.roster.slots if slot.hello is not None]
    if not slots:
        return None
    pid = chance.choice(slots).hello.pid
    of_clusters = ["executor", "executor stopped shortly"] if setting.master else []
    kind = chance.choice(["worker"] * 5 + ["worker stopped shortly"] + of_clusters)
    try:
        struck = psutil.Process(pid) if kind.startswith("worker") else executor_of(pid)
        if kind.endswith("shortly"):
            signal_all([struck], signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 2.0))
            signal_all([struck], signal.SIGCONT)
        else:
            struck.kill()
    except psutil.NoSuchProcess:
        return None
    return kind


def _storm(setting: Setting, job: Any, over: Callable[[], bool]) -> dict[str, int]:
    """Strikes until it is over, also while the job recovers."""
    chance = random.Random(setting.option("seed", 1))
    struck: dict[str, int] = {}
    while not over() and job.is_active:
        kind = _strike(setting, job, chance)
        if kind is not None:
            struck[kind] = struck.get(kind, 0) + 1
        calm = time.monotonic() + (chance.uniform(0.0, 1.0) if chance.random() < 0.3 else chance.uniform(1.0, 5.0))
        while time.monotonic() < calm and job.is_active:
            time.sleep(0.01)
    return struck


def storm(setting: Setting) -> dict[str, Any]:
    """Kills and short stops of workers and executors for a while."""
    seconds = setting.option("seconds", 90.0)
    run = Run(setting, session(setting, 4), parallelism=2, interval=0.3)
    run.await_checkpoint()
    until = time.monotonic() + seconds
    struck = _storm(setting, run.job, lambda: time.monotonic() > until)
    run.await_checkpoint()
    return {**run.finish(), "struck": struck}


def flights(setting: Setting) -> dict[str, Any]:
    """The example of flights in a storm: its answers are those of an undisturbed run."""
    sys.path.insert(0, str(EXAMPLES))
    import flights as example

    spark = session(setting, 4)
    some = example.read_flights(spark).where(f"day < '2013-{setting.option('months', 3) + 1:02}-01'").cache()

    def answers(disturbed: bool) -> tuple[Any, dict[str, int], int]:
        env = _environment(setting, spark, f"flights-{disturbed}")
        results = example.dataflow(env.from_dataframe(some, form="columns"))
        job = env.execute("flights")
        struck = _storm(setting, job, lambda: job.restarts >= 4) if disturbed else {}
        job.await_termination()
        found = (results.carrier_days.dataframe().collect(), results.late_runs.dataframe().collect())
        return [*map(_in_order, found), _in_order(results.no_tail_number.result())], struck, job.restarts

    expected, _, _ = answers(False)
    found, struck, restarts = answers(True)
    return {"struck": struck, "restarts": restarts, "wrong": "" if found == expected else "other answers"}


def _in_order(rows: list[Any]) -> list[str]:
    """Sums of floats depend on the order of records in their last digits."""
    return sorted(str(tuple(round(v, 6) if isinstance(v, float) else v for v in row)) for row in rows)


def routes(setting: Setting) -> dict[str, Any]:
    """The example of routes, a loop, in a storm: the distances are those that networkx finds."""
    sys.path.insert(0, str(EXAMPLES))
    import routes as example

    spark = session(setting, 4)
    changes = example.changes_of_routes(500)
    env = _environment(setting, spark, "routes")
    rows = env.from_dataframe(spark.createDataFrame(changes).repartition(2)).map(_pace)
    sink = example.shortest_ways(rows, "SFO").sink_to(tr.sinks.Collect())
    job = env.execute("routes")
    struck = _storm(setting, job, lambda: job.restarts >= 4)
    job.await_termination()
    found = {airport: miles for airport, miles, _ in sink.result()} | {"SFO": 0.0}
    same = found == example.by_dijkstra(changes, "SFO")
    return {
        "struck": struck,
        "restarts": job.restarts,
        "airports": len(found),
        "wrong": "" if same else "other distances",
    }


def _pace(row: Any) -> Any:
    time.sleep(0.002)
    return row


def _environment(setting: Setting, spark: Any, name: str) -> tr.Environment:
    checkpoint = tr.CheckpointConfig(os.path.join(setting.folder, name), interval=0.5)
    return tr.Environment(spark, parallelism=2, progress=False, checkpoint=checkpoint, restart=AT_ONCE)
