"""One run of one system, in processes of its own: timed, verified, described by one JSON object."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import pickle
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import quiet
from .workload import Tally, verify

MODULES = {
    "tailrace": "benchmarks.ours",
    "handwritten": "benchmarks.peers.handwritten",
    "bytewax": "benchmarks.peers.bytewax_flow",
    "structured": "benchmarks.peers.structured",
}
PACKAGES = {
    "tailrace": ("tailrace", "pyspark", "pyarrow"),
    "handwritten": (),
    "bytewax": ("bytewax",),
    "structured": ("pyspark",),
}


@dataclass(frozen=True)
class Spec:
    """What to run."""

    workload: str  # chain | keyed | windows
    system: str
    form: str  # rows | columns
    function: str | None  # keyed, ours: aggregate | process
    parallelism: int
    records: int
    options: dict[str, str] = field(default_factory=dict)


def default_records(workload: str, system: str, form: str, function: str | None) -> int:
    """Enough for at least 10 s on two cores."""
    if form == "columns":
        return {"chain": 2_000_000_000, "keyed": 200_000_000}.get(workload, 100_000_000)
    if workload == "windows":
        return {"bytewax": 1_000_000, "structured": 10_000_000}.get(system, 6_000_000)
    if workload == "chain":
        return {"bytewax": 60_000_000, "tailrace": 80_000_000}.get(system, 100_000_000)
    return 8_000_000 if system == "bytewax" else 50_000_000


def isolate(module: str, spec: Any, timeout: float = 900.0) -> tuple[Any, float | None]:
    """What `run(spec)` of a module gives, in a fresh interpreter, so that no run meets another's leftovers; and how busy
    the machine was with something else."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        request = Path(folder, "spec")
        request.write_bytes(pickle.dumps((module, spec)))
        command = [sys.executable, "-m", "benchmarks.measure", folder]
        process = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
        try:
            busy_elsewhere = quiet.wait(process, timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
            process.wait()
        if process.returncode:
            raise SystemExit(f"the run of {module} failed")
        return pickle.loads(Path(folder, "result").read_bytes()), busy_elsewhere


def run(spec: Spec) -> dict[str, Any]:
    """One verified run of a system."""
    result: Tally
    result, busy_elsewhere = isolate(MODULES[spec.system], spec)
    per_record = not (spec.form == "columns" and spec.workload == "keyed")
    verify(spec.workload, spec.records, result, one_output_per_record=per_record)
    seconds = result.last - result.first
    line = asdict(spec)
    if not spec.options:
        del line["options"]
    return {
        **line,
        "seconds": round(seconds, 3),
        "records_per_second": round(spec.records / seconds),
        "verified": True,
        **({"cpu_seconds": round(result.cpu, 2)} if result.cpu else {}),
        **result.notes,
        "busy_elsewhere": busy_elsewhere,
        "versions": versions(spec.system),
    }


def versions(system: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES[system]:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source"
    return found


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of records per second by system, and ours against each peer."""
    rates: dict[str, list[int]] = {}
    for line in lines:
        rates.setdefault(line["system"], []).append(line["records_per_second"])
    medians = {system: round(statistics.median(r)) for system, r in rates.items()}
    shared = {k: lines[0][k] for k in ("workload", "form", "function", "parallelism")}
    ours = next((line for line in lines if line["system"] == "tailrace"), None)
    if ours is not None:
        shared["form"], shared["function"] = ours["form"], ours["function"]
    out: dict[str, Any] = {
        **shared,
        "summary": True,
        "runs": max(len(r) for r in rates.values()),
        "verified": all(line["verified"] for line in lines),
        "records_per_second": medians,
    }
    if ours is not None:
        peers = {s: m for s, m in medians.items() if s != "tailrace"}
        out["speed_ratio"] = {s: round(medians["tailrace"] / m, 3) for s, m in peers.items()}
        out["time_ratio"] = {s: round(m / medians["tailrace"], 3) for s, m in peers.items()}
    return out


def _child(folder: str) -> None:
    module, spec = pickle.loads(Path(folder, "spec").read_bytes())
    result = importlib.import_module(module).run(spec)
    Path(folder, "result").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    # Under its own name, so that what is pickled here is known there.
    importlib.import_module("benchmarks.measure")._child(sys.argv[1])
