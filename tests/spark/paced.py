"""A paced job with state, timers and windows whose right output is known: what tests of recovery start, kill and start
again. As a script it runs in a process of its own, so that the driver can be killed as well.

    python paced.py MASTER FOLDER:RECORDS:RATE:INTERVAL:HOLD ...

A job is stopped as soon as there is a file `stop` in its folder. Its input does not end while there is a file `open`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tailrace as tr

KEYS, WINDOW_KEYS = 40, 7
PER_SECOND = 1000  # of event time
AT_THE_END = 1_000_000_000.0
"""A timer that fires at the end of event time only."""
WINDOWS = pa.schema([("key", pa.int64()), ("start", pa.float64()), ("n", pa.int64()), ("total", pa.int64())])


class Kept(tr.sources.Sequence):
    """Numbers at a pace, which do not end while a file exists: what is to happen before the end happens before it on the
    busiest machine."""

    def __init__(self, end: int | None, rate: float | None, flag: str) -> None:
        super().__init__(0, end, rate=rate)
        self.flag = flag

    def reader(self, split: tuple[int, int], position: int | None = None) -> tr.Reader:
        return KeptReader(super().reader(split, position), self.flag)


class KeptReader(tr.Reader):
    def __init__(self, numbers: tr.Reader, flag: str) -> None:
        self.numbers, self.flag = numbers, flag
        self.at_the_end = False

    def read(self, limit: int, now: float) -> Any:
        found = self.numbers.read(limit, now)
        self.at_the_end = found is None
        return [] if found is None and Path(self.flag).exists() else found

    @property
    def position(self) -> Any:
        return self.numbers.position

    def next_at(self, now: float) -> float:
        return now + 0.02 if self.at_the_end else self.numbers.next_at(now)


class Running(tr.KeyedProcessFunction):
    """A line `key count total` for each record; at the end of each second of event time a line with what came in it, from a
    map that is changed in place."""

    totals = tr.ValueState(object, default=(0, 0))
    seconds = tr.MapState(int, int)

    def process(self, value: int, ctx: tr.Context) -> Iterator[str]:
        count, total = self.totals.value
        self.totals.value = (count + 1, total + 1 + value % 11)
        second = value // PER_SECOND
        if second not in self.seconds:
            ctx.set_timer(event_time=second + 1)
            ctx.set_timer(event_time=AT_THE_END)
        self.seconds[second] = self.seconds.get(second, 0) + 1
        yield f"{ctx.key} {count + 1} -"
        yield f"value {value} -"

    def on_timer(self, timestamp: float, ctx: tr.Context) -> Iterator[str]:
        if timestamp == AT_THE_END:
            yield f"final {ctx.key} {self.totals.value}"
            return
        second = round(timestamp) - 1
        yield f"second {second} {ctx.key}={self.seconds[second]}"
        self.seconds.remove(second)


class Held(tr.sinks.TextFiles):
    """Comes to a stand at the point between the manifest and the publication, or right after it, once `hold` exists:
    reports that by a file, and waits for ever."""

    def __init__(self, path: str, where: str, flag: str) -> None:
        super().__init__(path)
        self.where, self.flag = where, flag

    def publish(self, prepared: Any) -> None:
        hold = Path(self.flag).exists()
        if not hold or self.where == "after":
            super().publish(prepared)
        if hold:
            Path(self.flag + ".reached").touch()
            while Path(self.flag).exists():
                time.sleep(0.01)
        super().publish(prepared)


def at_second(value: int) -> float:
    return value / PER_SECOND


def of_window(window: Any) -> tuple[int, float, int, int]:
    return (window.key, window.start, window.n, window.total)


def flow(env: tr.Environment, folder: Path, records: int | None, rate: float | None, hold: str = "before") -> None:
    """Counts into `folder/counts`, windows into `folder/windows`."""
    source = Kept(records, rate, str(folder / "open"))
    numbers = env.from_source(source).assign_timestamps(at_second)
    running = numbers.key_by(lambda x: x % KEYS).process(Running(), uid="running")
    running.sink_to(Held(str(folder / "counts"), hold, str(folder / "hold")), uid="counts")
    windows = numbers.key_by(lambda x: x % WINDOW_KEYS).window(tr.Tumbling(0.5))
    sums = windows.aggregate(n=tr.Count(), total=tr.Sum(lambda x: x), uid="sums")
    sums.map(of_window).sink_to(tr.sinks.Parquet(str(folder / "windows"), WINDOWS), uid="windows")


@contextlib.contextmanager
def kept_open(folder: Path) -> Iterator[None]:
    """Keeps the input of a job open."""
    flag = folder / "open"
    flag.touch()
    yield
    flag.unlink()


def lines(folder: Path) -> list[str]:
    return [line for path in sorted((folder / "counts").glob("[!._]*")) for line in path.read_text().splitlines()]


def rows(folder: Path) -> list[tuple[Any, ...]]:
    files = sorted((folder / "windows").glob("[!._]*"))
    return [tuple(row.values()) for path in files for row in pq.read_table(path).to_pylist()]


def expected_lines(records: int) -> Counter[str]:
    """By loops over everything, without any of our code."""
    counts: Counter[int] = Counter()
    totals: Counter[int] = Counter()
    seconds: Counter[tuple[int, int]] = Counter()
    found: Counter[str] = Counter()
    for value in range(records):
        key = value % KEYS
        counts[key] += 1
        totals[key] += 1 + value % 11
        seconds[value // PER_SECOND, key] += 1
        found[f"{key} {counts[key]} -"] += 1
        found[f"value {value} -"] += 1
    found.update(f"second {second} {key}={n}" for (second, key), n in seconds.items())
    found.update(f"final {key} {(counts[key], totals[key])}" for key in counts)
    return found


def expected_rows(records: int) -> Counter[tuple[Any, ...]]:
    groups: dict[tuple[int, float], list[int]] = {}
    for value in range(records):
        groups.setdefault((value % WINDOW_KEYS, value * 2 // PER_SECOND / 2), []).append(value)
    return Counter((key, start, len(found), sum(found)) for (key, start), found in groups.items())


def wrong(folder: Path, records: int) -> str:
    """What is not as it should be after the job has finished; empty when the output is exactly right and all of it is
    visible."""
    message = []
    for what, found, expected in (
        ("lines", Counter(lines(folder)), expected_lines(records)),
        ("windows", Counter(rows(folder)), expected_rows(records)),
    ):
        for name, difference in (("too many", found - expected), ("missing", expected - found)):
            if difference:
                message.append(f"{sum(difference.values())} {what} {name}, such as {sorted(difference)[:3]}")
    hidden = [path.name for sub in ("counts", "windows") for path in (folder / sub).glob("[._]*")]
    return "; ".join(message + ([f"left behind: {hidden}"] if hidden else []))


def start(spark: Any, message: str) -> tuple[Path, Any]:
    """A job by the arguments of the command line."""
    place, records, rate, interval, hold = message.rsplit(":", 4)
    folder = Path(place)
    settings = tr.CheckpointConfig(str(folder / "checkpoints"), interval=float(interval))
    restart = tr.FixedDelay(attempts=100, delay=0.0)
    # Five jobs start at once: on a machine that does much else Spark gives them their slots after minutes.
    env = tr.Environment(spark, parallelism=2, checkpoint=settings, restart=restart, slot_timeout=300)
    flow(env, folder, int(records), float(rate) or None, hold)
    return folder, env.execute("paced")


def main() -> None:
    from tailrace.spark.cluster.session import active_or_local

    master, *message = sys.argv[1:]
    spark = active_or_local(2, master)
    jobs = [start(spark, one) for one in message]
    stopping: set[Path] = set()
    while any(job.is_active for _, job in jobs):  # who kills us reads these
        for folder, job in jobs:
            if (folder / "stop").exists() and folder not in stopping:
                stopping.add(folder)
                threading.Thread(target=job.stop, daemon=True).start()
            known = job._runner.machine.roster.slots
            pids = ",".join(str(slot.hello.pid) for slot in known if slot.hello is not None)
            print(folder.name, job.status, len(job.checkpoints), job.restarts, pids or "-", flush=True)
        jobs[0][1]._runner.monitor.ended.wait(0.02)
    for folder, job in jobs:
        job.await_termination()
        print(folder.name, job.status, len(job.checkpoints), job.restarts, "-", flush=True)


if __name__ == "__main__":
    main()
