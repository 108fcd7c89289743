"""How busy the machine was with something else during a run: figures from a busy machine say little."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

TOLERATED = 0.25
TICKS = os.sysconf("SC_CLK_TCK")


def busy() -> float:
    """CPU seconds of the whole machine since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def used_by_session(session: int) -> dict[int, float]:
    """CPU seconds of each process of a session."""
    used = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == session:
                used[int(entry)] = (int(fields[11]) + int(fields[12])) / TICKS
    return used


def wait(process: subprocess.Popen[bytes], timeout: float) -> float | None:
    """Waits for a process that leads its own session. Returns how many cores were busy outside of that session on
    average, None where the system does not tell. Raises `TimeoutExpired`."""
    if not Path("/proc/stat").exists():
        process.wait(timeout)
        return None
    own: dict[int, float] = {}
    started, busy_at_start = time.monotonic(), busy()
    while True:
        own.update(used_by_session(process.pid))
        cores = (busy() - busy_at_start - sum(own.values())) / max(0.1, time.monotonic() - started)
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            if time.monotonic() - started > timeout:
                raise
            continue
        # As of the last look before it ended: the processes take their times with them.
        if cores > TOLERATED:
            print(f"{cores:.1f} cores were busy with something else: not a fair measurement", file=sys.stderr)
        return max(0.0, round(cores, 2))
