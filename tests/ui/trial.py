"""Three jobs for a look by somebody who has never seen them: `python -m tests.ui.trial [FOLDER]`.

One has a bottleneck in front of a loop, one an input that holds event time, one has restarted. The page, its first line,
and `tailrace doctor` are to give the reasons. Each job runs until the program is interrupted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tailrace as tr
from tailrace.spark.cluster.session import local_session

CITIES = ("berlin", "berlin", "berlin", "berlin", "berlin", "berlin", "berlin", "berlin", "paris", "rome")


class Score(tr.KeyedProcessFunction):
    """A model that takes its time for each visit."""

    def process(self, visit: Any, ctx: Any) -> Any:
        time.sleep(0.002)
        yield visit


class Match(tr.CoProcessFunction):
    """Clicks beside payments."""

    def process1(self, click: Any, ctx: Any) -> Any:
        yield click

    def process2(self, payment: Any, ctx: Any) -> Any:
        yield payment


def ratio(number: int, ctx: Any) -> Any:
    """A share, which no number has in the first attempt of the job."""
    yield 1_000 / (0 if ctx.attempt == 0 and number == 700 else number)


def attempt(visit: tuple[str, int, int]) -> tuple[str, int, int]:
    """A visit with one attempt more. Each third attempt fails."""
    city, at, attempts = visit
    return city, at, attempts + 1


def has_failed(visit: tuple[str, int, int]) -> bool:
    return (visit[1] + visit[2]) % 3 == 0


def retries(scored: Any) -> Any:
    """What has failed is attempted once more."""
    attempts = scored.map(attempt, name="attempt")
    again = attempts.filter(has_failed, name="again")
    return again, attempts.filter(lambda visit: not has_failed(visit), name="settled")


def visits(env: tr.Environment, folder: Path) -> None:
    """A job with a bottleneck in front of a loop: one city has most of the visits."""
    stream = env.from_source(tr.sources.Generator(lambda at: (CITIES[at % 10], at, 0)), name="visits", uid="visits")
    scored = stream.key_by(lambda visit: visit[0]).process(Score(), name="score", uid="score")
    settled = scored.iterate(retries, name="retries", uid="retries")
    settled.sink_to(tr.sinks.TextFiles(str(folder / "scores")), name="scores", uid="scores")


def orders(env: tr.Environment, folder: Path) -> None:
    """A job in which an input that has had one record, long ago, holds event time."""
    (folder / "payments").mkdir(exist_ok=True)
    (folder / "payments" / "first.txt").write_text(f"{time.time() - 600}\n")
    clicks = env.from_source(tr.sources.Generator(lambda at: ("a", time.time()), rate=200), name="clicks", uid="clicks")
    payments = env.from_source(
        tr.sources.TextFiles(str(folder / "payments"), follow=True), name="payments", uid="payments"
    )
    timed = clicks.assign_timestamps(lambda click: click[1], name="times of clicks")
    paid = payments.map(lambda line: ("a", float(line))).assign_timestamps(lambda one: one[1], name="times of payments")
    both = timed.key_by(lambda one: one[0]).connect(paid.key_by(lambda one: one[0]))
    both.process(Match(), name="match", uid="match").sink_to(tr.sinks.TextFiles(str(folder / "matches")), uid="matches")


def shares(env: tr.Environment, folder: Path) -> None:
    """A job that has restarted after an error of a function."""
    stream = env.from_source(tr.sources.Sequence(1, None, rate=400), name="numbers", uid="numbers")
    stream.process(ratio, name="ratio", uid="ratio").sink_to(tr.sinks.TextFiles(str(folder / "shares")), uid="shares")


JOBS = {"visits": visits, "orders": orders, "shares": shares}


SLOTS = 2 * len(JOBS)
"""Task slots that the jobs take, without standbys."""


def start(folder: Path, spark: Any, standby: tr.StandbyConfig | None = None) -> list[Any]:
    """The three jobs, running, with a page. `standby` is for the first one."""
    started = []
    for name, build in JOBS.items():
        checkpoint = tr.CheckpointConfig(str(folder / "checkpoints"))
        restart = tr.FixedDelay(attempts=3, delay=0.5)
        settings: Any = {"checkpoint": checkpoint, "restart": restart, "capsules": False, "progress": False}
        env = tr.Environment(spark, parallelism=2, ui=True, standby=standby, **settings)
        standby = None
        build(env, folder)
        started.append(env.execute(name))
    return started


def main() -> None:
    """Starts the jobs, and waits until Ctrl-C."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="trial-"))
    jobs = start(folder, local_session(SLOTS + 1))
    print(jobs[0].ui)
    try:
        for job in jobs:
            job.await_termination()
    except KeyboardInterrupt:
        for job in jobs:
            job.cancel()


if __name__ == "__main__":
    main()
