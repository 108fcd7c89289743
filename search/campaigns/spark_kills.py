"""What Spark reads and writes beside a job, while everybody is killed: the query that feeds the job, the one that reads its
output, workers, executors, and the driver. Each row is to be in every sink once, with the values that it has in the others.

    python -m search.campaigns.spark_kills --seeds 0:4 --kills 5 --on connect

The program runs on a `local-cluster`, on a standalone cluster, or on a server of Connect in front of one.

Prints a line for each seed, and at the end what all of them have had: kills of each kind, rows, rows lost, rows twice. The
exit code is 1 where something is wrong.
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

from search.campaigns.spark_places import PLACES, SparkOutcome, spark_at
from search.campaigns.spark_program import FILE_ROWS, KEYS, text_of
from search.seeds import report, run_seeds, seeds_of
from tests import class_archive

VICTIMS = ("query", "reader", "worker", "executor", "commit", "driver")
"""`query` and `reader` are stopped; `commit` is a Python process in which Spark's driver runs parts of a query. With Connect
`driver` is the program of the client."""
PATIENCE = 600.0
ROOT = Path(__file__).parents[2]


class Wrong(Exception):
    """Something is not as it must be."""


class Killed:
    """The program, whoever of it is alive, and its folder."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.files = 0
        self.counts = Counter({"rows": 0, "rows lost": 0, "rows twice": 0})
        """What has happened: rows that were offered, kills of each kind, and what is wrong with rows in sinks."""
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
        """Kills, one to twelve at a time, while rows come and the time is not over; then the end."""
        until, left = time.monotonic() + seconds, list(victims)
        self.start()
        while left and time.monotonic() < until:
            self.go_on()
            size = self.rng.randint(1, 12)
            together, left = left[:size], left[size:]
            for victim in sorted(together, key="driver".__eq__):  # with it all others go
                self.kill(victim)
                time.sleep(self.rng.uniform(0.0, 0.5))
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
        """Kills somebody, as soon as there is one of this kind."""
        if victim == "driver":
            self._kill_program()
            self.start()
        elif victim in ("query", "reader"):
            (self.folder / "command").write_text(victim)
            self.wait(f"a stopped {victim}", lambda: not (self.folder / "command").exists())
        else:
            self.wait(f"a killed {victim}", lambda: self._kill_one_of(victim))
        self.counts[f"kills of a {victim}"] += 1

    def _kill_one_of(self, victim: str) -> bool:
        """Kills a process of a kind. False where there is none."""
        workers = self.status().get("workers", [])
        if victim == "worker":
            pids = set(workers)
        elif victim == "executor":
            pids = {one.pid for one in (*self._family(), *_ancestors(workers)) if _is_executor(one)}
        else:
            pids = {one.pid for jvm in self._drivers() for one in _pythons_of(jvm)}
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.rng.choice(sorted(pids)), signal.SIGKILL)
            return True
        return False

    def _family(self) -> list[psutil.Process]:
        assert self.program is not None
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.program.pid).children(recursive=True)
        return []

    def _drivers(self) -> list[psutil.Process]:
        """The JVMs in which Spark's driver runs: of the program, or of Connect."""
        if server := os.environ.get("SPARK_REMOTE"):
            setting = f"spark.connect.grpc.binding.port={server.rpartition(':')[2]}"
            return [one for one in psutil.process_iter() if setting in _words(one)]
        return [one for one in self._family() if _is_driver(one)]

    def _kill_program(self) -> None:
        assert self.program is not None
        program, family = psutil.Process(self.program.pid), self._family()
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
            for one in self._family():
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
        """Counts rows that are lost or there twice, and raises `Wrong` where a sink has not what was offered."""
        self.counts["rows"] = 2 * self.files * FILE_ROWS
        offered = {(source, n): text_of(source, n) for source in "sd" for n in range(self.files * FILE_ROWS)}
        rows = {name: read(self.folder) for name, read in SINKS.items()}
        for name, found in rows.items():
            counts = Counter((row[0], row[1]) for row in found)
            twice = [place for place, count in counts.items() if count > 1]
            missing = [place for place in offered if place not in counts]
            self.counts.update({"rows lost": len(missing), "rows twice": len(twice)})
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


def _words(process: psutil.Process) -> list[str]:
    """The command of a process; nothing where it is gone."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _is_executor(process: psutil.Process) -> bool:
    return any("CoarseGrainedExecutorBackend" in word for word in _words(process))


def _is_driver(process: psutil.Process) -> bool:
    return any("SparkSubmit" in word for word in _words(process)) and not _is_executor(process)


def _pythons_of(jvm: psutil.Process) -> list[psutil.Process]:
    """The Python processes that a JVM has started itself, and what they have forked."""
    with contextlib.suppress(psutil.Error):
        mine = [one for one in jvm.children() if any("python" in word for word in _words(one)[:1])]
        return [one for python in mine for one in (python, *python.children(recursive=True))]
    return []


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


def look(seed: int, victims: Sequence[str], seconds: float = math.inf, keep: bool = False) -> SparkOutcome:
    """Runs one seed; no kill comes behind so many seconds. Prints a line."""
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
    text = f"{'WRONG' if wrong else 'right'} {time.monotonic() - begun:.0f} s, seed {seed}, {dict(killed.counts)}"
    text += f" | {wrong} | {folder}" if wrong else ""
    print(text, flush=True)
    for reason, count in killed.failures().most_common():
        print(f"    {count} x {reason}", flush=True)
    if not wrong and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return SparkOutcome(text, [wrong] if wrong else [], killed.counts)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m search.campaigns.spark_kills", description=__doc__)
    parser.add_argument("--seeds", default="0", help="FIRST:LAST, LAST excluded, or a single seed (default: 0)")
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind in each seed (default: 20)")
    parser.add_argument("--of", default=",".join(VICTIMS), help="kinds of victims (default: all of them)")
    parser.add_argument("--on", choices=PLACES, default=PLACES[0], help="where Spark is (default: a local-cluster)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no kill comes behind them (default: all come)")
    parser.add_argument("--keep", action="store_true", help="the folder stays")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the program ends with it
    victims = [victim for victim in options.of.split(",") for _ in range(options.kills)]
    begun = time.monotonic()
    with spark_at(options.on):
        seeds = seeds_of(options.seeds)
        found = run_seeds(seeds, lambda seed: look(seed, victims, options.seconds, options.keep), stop=False)
    return report(*found, begun)


if __name__ == "__main__":
    sys.exit(main())
