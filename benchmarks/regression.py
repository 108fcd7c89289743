"""Comparison of two commits: the short list of benchmarks on both, in turns, and the median of the ratios of pairs. A
machine that others use as well slows both runs of a pair, and a pair that it slows unevenly is one of several."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BAR = 1.05
"""Ratio of costs, new to old, above which a benchmark has become slower."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """A benchmark of the short list."""

    name: str
    arguments: str
    cost: Callable[[Line], float]
    """Cost that the last line of the benchmark shows: time for a piece of work, in any unit."""


def per_record(line: Line) -> float:
    return 1.0 / float(line["records_per_second"])


def median_latency(line: Line) -> float:
    return float(line["latency_ms"]["p50"])


def per_lap(line: Line) -> float:
    return 1.0 / float(line["laps_per_second"])


SHORT = (
    Watched("chain, rows", "chain --records 30000000", per_record),
    Watched("chain, columns", "chain --form columns --records 600000000", per_record),
    Watched("keyed, aggregate", "keyed --records 15000000", per_record),
    Watched("keyed, process", "keyed --function process --records 8000000", per_record),
    Watched("keyed, columns", "keyed --form columns --records 100000000", per_record),
    Watched("windows, rows", "windows --records 3000000", per_record),
    Watched("latency", "latency --set rate=10000 --set seconds=10 --set warm=3", median_latency),
    Watched(
        "latency, event time",
        "latency --set rate=5000 --set seconds=10 --set warm=3 --set exchanges=6 --set event_time=yes",
        median_latency,
    ),
    Watched("lap", "lap --form rows --set laps=30", per_lap),
)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit. Raises `SystemExit` for a commit that git does not know."""
    with tempfile.TemporaryDirectory(prefix="tailrace-base-") as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True)
        if archive.returncode:
            raise SystemExit(f"compare: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def measured(watched: Watched, source: Path) -> Line:
    """Last line of a benchmark of this checkout, run with the library in a folder. Raises `SystemExit` if it fails."""
    # What comes from PYTHONPATH goes before what is installed. Spark hands it on to the workers.
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    command = [sys.executable, "-m", "benchmarks", *watched.arguments.split()]
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        raise SystemExit(f"compare: {watched.name} failed with the library in {source}")
    return dict(json.loads(lines[-1]))


def pairs(watched: Watched, old: Path, new: Path, count: int) -> list[tuple[float, float]]:
    """(cost on the old commit, on the new one), so many times. Every second pair begins with the new one."""
    found = []
    for turn in range(count):
        order = (old, new) if turn % 2 == 0 else (new, old)
        costs = {source: watched.cost(measured(watched, source)) for source in order}
        found.append((costs[old], costs[new]))
    return found


def verdict(name: str, found: Sequence[tuple[float, float]], bar: float = BAR) -> Line:
    """A line about pairs of costs: `ratio` is the median of new to old, `slower` whether that is above the bar."""
    ratios = sorted(new / old for old, new in found)
    ratio = statistics.median(ratios)
    rounded = [round(one, 3) for one in ratios]
    return {
        "workload": "compare",
        "benchmark": name,
        "ratio": round(ratio, 3),
        "ratios": rounded,
        "slower": ratio > bar,
    }


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks compare BASE`: 1 if a benchmark of the short list is slower than on the commit BASE."""
    p = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    p.add_argument("base", help="the commit to compare with: a hash, a branch, a tag")
    p.add_argument("--pairs", type=int, default=5, metavar="K", help="how often both are measured (default: 5)")
    p.add_argument("--only", action="append", metavar="NAME", help="a benchmark whose name contains this")
    args = p.parse_args(arguments)
    chosen = [one for one in SHORT if not args.only or any(part in one.name for part in args.only)]
    if not chosen:
        p.error(f"there is no benchmark with such a name; there are: {'; '.join(one.name for one in SHORT)}")
    if args.pairs < 1:
        p.error("--pairs is at least 1")
    slower = []
    with checkout(args.base) as base:
        for watched in chosen:
            line = verdict(watched.name, pairs(watched, base, ROOT, args.pairs))
            print(json.dumps(line), flush=True)
            if line["slower"]:
                slower.append(watched.name)
    if slower:
        print(f"slower than {args.base} by more than {BAR - 1:.0%}: {'; '.join(slower)}", file=sys.stderr)
    return 1 if slower else 0
