"""Measurements in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
SLOW = """
import os, time
def run(spec):
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
PARENT = """
from benchmarks import __main__, measure
__main__.parser = lambda: measure.isolate("slow", None)
__main__.main()
"""


def test_a_benchmark_that_is_terminated_leaves_no_measuring_process(tmp_path: Path) -> None:
    """One went on for minutes, on both cores, beside those that were measured next."""
    (tmp_path / "slow.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command, environment = [sys.executable, "-c", PARENT], {**os.environ, "PYTHONPATH": path}
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert parent.stderr is not None
        measuring = int(parent.stderr.readline())
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 128 + signal.SIGTERM
        assert not psutil.pid_exists(measuring)
    finally:
        parent.kill()
        parent.communicate()
