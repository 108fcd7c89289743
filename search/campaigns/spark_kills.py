"""What Spark reads and writes beside a job, while everybody is killed: the query that feeds the job, the one that reads its
output, workers, executors, and the driver. Each row is to be in every sink once, with the values that it has in the others.

    python -m search.campaigns.spark_kills --seeds 0:2 --kills 20

The program runs on a `local-cluster`; with TAILRACE_MASTER on that master, with SPARK_REMOTE on a server of Connect.

Prints a line for each seed. The exit code is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from search.campaigns.spark_program import FILE_ROWS, KEYS, text_of
from search.seeds import seeds_of
from tests import class_archive

VICTIMS = ("query", "reader", "worker", "executor", "commit", "driver")
"""`query` and `reader` are stopped; `commit` is a Python process in which Spark's driver runs parts of a query."""
PATIENCE = 600.0
ROOT = Path(__file__).parents[2]


class Wrong(Exception):
    """Something is not as it must be."""


class Killed:
    """The program, whoever of it is alive, and its folder."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.files = 0
        self.kills = Counter[str]()
        self.program: subprocess.Popen[bytes] | None = None
        for name in ("s", "d"):
            (folder / name).mkdir()

    def start(self) -> None:
        """Starts the program, in a process group of its own."""
        (self.folder / "status").unlink(missing_ok=True)
        command = [sys.executable, "-m", "search.campaigns.spark_program", str(self.folder)]
        with open(self.folder / "log", "ab") as log:
            environ = os.environ | class_archive.options()
            self.program = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def status(self) -> dict[str, Any]:
        """What the program has noted; empty where it has not."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found: dict[str, Any] = json.loads((self.folder / "status").read_text())
            return found
        return {}

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        """Until the condition holds."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert self.program is not None
            if self.program.poll() is not None:
                raise Wrong(f"{what}: the program has ended")
            if time.monotonic() > until:
                raise Wrong(f"{what}: not within {PATIENCE:.0f} s: {self.status()}")
            time.sleep(0.05)

    def offer(self) -> None:
        """Adds rows to both sources."""
        first = self.files * FILE_ROWS
        for source in ("s", "d"):
            lines = [f"{n},{text_of(source, n)}\n" for n in range(first, first + FILE_ROWS)]
            name = f"{self.files:06d}.csv"
            (self.folder / source / f".{name}").write_text("".join(lines))
            (self.folder / source / f".{name}").rename(self.folder / source / name)
        self.files += 1

    def run(self, victims: Sequence[str], seconds: float) -> None:
        """One kill after the other while rows come, and the time is not over; then the end."""
        until = time.monotonic() + seconds
        self.start()
        for victim in victims:
            if time.monotonic() > until:
                break
            self.go_on()
            self.kill(victim)
        self.go_on()
        (self.folder / "stop").touch()
        self.wait("the end", (self.folder / "stopped").exists)
        assert self.program is not None
        self.program.wait(60)

    def go_on(self) -> None:
        """Rows come, until all are through, or there are some more checkpoints."""

        def runs() -> bool:
            now = self.status()
            return now.get("status") == "RUNNING" and now["queries"] == 2

        self.wait("a running job", runs)
        begun, aim = self.status()["checkpoint"], self.rng.randint(1, 4)
        for _ in range(self.rng.randint(1, 6)):
            self.offer()

        def all_through() -> bool:
            return self.status().get("rows") == 2 * self.files * FILE_ROWS

        def some_checkpoints() -> bool:
            now = self.status()
            return not now or now["status"] != "RUNNING" or not 0 <= now["checkpoint"] - begun < aim

        self.wait("rows", all_through if self.rng.random() < 0.5 else some_checkpoints)
        time.sleep(self.rng.uniform(0.0, 1.0))

    def kill(self, victim: str) -> None:
        """Kills somebody."""
        assert self.program is not None
        now = self.status()
        family = psutil.Process(self.program.pid).children(recursive=True)
        if victim == "driver":
            self._kill_program()
            self.start()
        elif victim in ("query", "reader"):
            (self.folder / "command").write_text(victim)
            self.wait("a stopped query", lambda: not (self.folder / "command").exists())
        else:
            workers = now.get("workers", [])
            found = {
                "worker": workers,
                "executor": [one.pid for one in (*family, *_ancestors(workers)) if _is_executor(one)],
                "commit": [one.pid for one in family if _is_of_driver(one, family)],
            }
            pids = sorted(set(found[victim]))
            if not pids:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), signal.SIGKILL)
        self.kills[victim] += 1

    def _kill_program(self) -> None:
        assert self.program is not None
        program = psutil.Process(self.program.pid)
        family = program.children(recursive=True)
        mine = (
            [one for one in family if _is_driver(one)] if self.rng.random() < 0.5 else []
        )  # a JVM ends by itself, soon
        for one in (program, *mine):
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.program.wait()
        if self.rng.random() < 0.5:
            psutil.wait_procs(family, 30)  # else a new program starts beside what is left of this one

    def close(self) -> None:
        """Ends all that is left."""
        if self.program is not None:
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                family = psutil.Process(self.program.pid).children(recursive=True)
                for one in family:
                    with contextlib.suppress(psutil.Error):
                        one.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.program.pid, signal.SIGKILL)
            self.program.wait()

    # The end.

    def failures(self) -> Counter[str]:
        """Reasons for which jobs and queries have failed, without their figures."""
        path = self.folder / "failures"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", line)[:200] for line in lines)

    def check(self) -> None:
        """Raises `Wrong` where a sink has not what was offered."""
        offered = {(source, n): text_of(source, n) for source in "sd" for n in range(self.files * FILE_ROWS)}
        rows = {name: read(self.folder) for name, read in SINKS.items()}
        for name, found in rows.items():
            counts = Counter((row[0], row[1]) for row in found)
            twice = [place for place, count in counts.items() if count > 1]
            missing = [place for place in offered if place not in counts]
            if twice or missing or len(counts) != len(offered):
                raise Wrong(f"{name}: {len(twice)} twice, {len(missing)} missing: {twice[:5]} {missing[:5]}")
            changed = [row for row in found if offered[row[0], row[1]] != row[2] or row[1] % KEYS != row[3]]
            if changed:
                raise Wrong(f"{name}: changed: {changed[:5]}")
        for key in range(KEYS):
            seen = sorted(row[4] for row in rows["files"] if row[3] == key)
            if seen != list(range(1, len(seen) + 1)):
                raise Wrong(f"key {key}: the numbers of its rows are not 1 to {len(seen)}")
        for name, found in rows.items():
            if sorted(found) != sorted(rows["files"]):
                other = sorted(set(found) ^ set(rows["files"]))
                raise Wrong(f"{name}: other values than in files: {other[:6]}")
        numbers = sorted(int(path.name) for path in (self.folder / "foreach").iterdir())
        if numbers != list(range(len(numbers))):
            raise Wrong(f"foreach: numbers {numbers}")
        totals = Counter(row[3] for row in rows["files"])
        upserted = _delta(self.folder / "upserted")
        if sorted(upserted) != sorted(totals.items()):
            raise Wrong(f"upserted: {sorted(upserted)}, not {sorted(totals.items())}")


def _ancestors(pids: Sequence[int]) -> list[psutil.Process]:
    """Processes above others: executors of a cluster are not below the program."""
    found: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(pid).parents()
    return found


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    return False


def _is_driver(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return "SparkSubmit" in words and "CoarseGrainedExecutorBackend" not in words
    return False


def _is_of_driver(process: psutil.Process, family: Sequence[psutil.Process]) -> bool:
    """Whether a process is a Python that Spark's driver has started."""
    jvms = {one.pid for one in family if _is_driver(one)}
    with contextlib.suppress(psutil.Error):
        return "python" in process.name() and any(one.pid in jvms for one in process.parents()[:2])
    return False


def _parquet(folder: Path) -> list[tuple[Any, ...]]:
    paths = [
        path for path in sorted(folder.rglob("*.parquet"))
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]  # fmt: skip
    return [tuple(row.values()) for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def _delta(folder: Path) -> list[tuple[Any, ...]]:
    import deltalake

    return [tuple(row.values()) for row in deltalake.DeltaTable(str(folder)).to_pyarrow_table().to_pylist()]


SINKS: dict[str, Callable[[Path], list[tuple[Any, ...]]]] = {
    "files": lambda folder: _parquet(folder / "files"),
    "delta": lambda folder: _delta(folder / "delta"),
    "foreach": lambda folder: _parquet(folder / "foreach"),
    "read": lambda folder: [tuple(row.values()) for row in pq.read_table(folder / "read.parquet").to_pylist()],
}


def look(seed: int, victims: Sequence[str], seconds: float = math.inf, keep: bool = False) -> str:
    """Runs one seed; no kill comes behind so many seconds. Returns what is wrong; empty where nothing is. Prints a line."""
    rng, begun = random.Random(f"tailrace kills {seed}"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-kills-"))
    killed, wrong = Killed(folder, rng), ""
    try:
        killed.run(rng.sample(victims, len(victims)), seconds)
        killed.check()
    except Wrong as error:
        wrong = str(error)
    finally:
        killed.close()
    rows = 2 * killed.files * FILE_ROWS
    line = f"{'WRONG' if wrong else 'right'} {time.monotonic() - begun:.0f} s, seed {seed}, {rows} rows, "
    print(f"{line}{dict(killed.kills)}{f' | {wrong} | {folder}' if wrong else ''}", flush=True)
    for text, count in killed.failures().most_common():
        print(f"    {count} x {text}", flush=True)
    if not wrong and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.campaigns.spark_kills", description=__doc__)
    parser.add_argument("--seeds", default="0", help="FIRST:LAST, LAST excluded, or a single seed (default: 0)")
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind (default: 20)")
    parser.add_argument("--of", default=",".join(VICTIMS), help="kinds of victims (default: all of them)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no kill comes behind them (default: all come)")
    parser.add_argument("--keep", action="store_true", help="the folder stays")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the program ends with it
    victims = [victim for victim in options.of.split(",") for _ in range(options.kills)]
    wrong = [seed for seed in seeds_of(options.seeds) if look(seed, victims, options.seconds, options.keep)]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
