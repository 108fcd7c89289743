"""`python -m benchmarks stress [NAME...] [--cluster]`: a JSON line for each scenario, and an exit code."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.cluster import ROOT, Standalone

from . import Setting
from .scenarios import SCENARIOS

CORES = 17
"""Task slots of each of the two workers of the cluster."""


def main(arguments: list[str]) -> int:
    """Runs scenarios. The exit code is 1 where something is not as it must be."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks stress", description=__doc__)
    cli.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default: all): {', '.join(SCENARIOS)}")
    cli.add_argument("--cluster", action="store_true", help="on a standalone cluster, which is started for them")
    cli.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option, see README.md")
    cli.add_argument("--timeout", type=float, default=1800.0, help="seconds for one scenario (default: %(default)s)")
    args = cli.parse_args(arguments)
    if unknown := [name for name in args.names if name not in SCENARIOS]:
        cli.error(f"no such scenario: {', '.join(unknown)}")
    where = "cluster" if args.cluster else "local"
    names = [name for name in args.names or SCENARIOS if SCENARIOS[name].where in ("", where)]
    if left := [name for name in args.names if name not in names]:
        cli.error(f"{', '.join(left)}: not on {where}")
    options = dict(one.split("=", 1) for one in args.set)
    with tempfile.TemporaryDirectory(prefix="tailrace-stress-", ignore_cleanup_errors=True) as folder:
        cluster = Standalone(Path(folder, "cluster"), cores=CORES, memory="4g") if args.cluster else None
        master = None if cluster is None else cluster.master
        os.environ |= {} if cluster is None else cluster.environ_of(cluster.driver)
        try:
            lines = [_run(name, master, folder, options, args.timeout) for name in names]
        finally:
            if cluster is not None:
                cluster.close()
    return 0 if all(line["right"] for line in lines) else 1


def _run(name: str, master: str | None, folder: str, options: dict[str, str], timeout: float) -> dict[str, Any]:
    place = tempfile.mkdtemp(prefix=f"{name}-", dir=folder)
    begun = time.monotonic()
    busy = None
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    try:
        figures, busy = measure.isolate("benchmarks.stress", Setting(name, master, place, options), timeout)
    except (Exception, SystemExit):
        figures = {"wrong": traceback.format_exc(limit=0).strip()}
    line = {"workload": "stress", "scenario": name, "where": "local" if master is None else "cluster"}
    line |= {"right": not figures["wrong"], **figures, "whole_seconds": round(time.monotonic() - begun, 1)}
    line |= {"busy_elsewhere": busy, "load": round(os.getloadavg()[0], 2)}
    print(json.dumps(line), flush=True)
    return line
