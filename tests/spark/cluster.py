"""A standalone Spark cluster for tests: a master and two workers of the installed pyspark, whose executors see nothing of
the driver's.

The workers have other working folders and other temporary folders than the driver, as on machines of their own. And they run
in a mount namespace in which the driver's folder is empty: a file that the driver has written there is not there for them,
under any name, and what they write there the driver never sees. That takes `unshare`, and either root or a kernel that lets
everybody have namespaces.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cluster import Standalone
from tests import class_archive
from tests.environ import plain_environ

CORES = 3
"""Of each worker."""
_HIDE = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'


def hiding() -> list[str] | None:
    """How a command is run for which a folder (its first argument) is empty; None where that cannot be done here."""
    if shutil.which("unshare") is None:
        return None
    for options in ("-m", "-rm"):  # as root; in a user namespace
        command = ["unshare", options, "sh", "-c", _HIDE, "sh"]
        tried = subprocess.run([*command, "/mnt", "true"], capture_output=True, timeout=20)
        if tried.returncode == 0:
            return command
    return None


class Cluster(Standalone):
    """Started when it is made. `hide` is what `hiding` gives."""

    def __init__(self, root: Path, hide: list[str]) -> None:
        before = [*hide, str(root / "driver")]
        super().__init__(root, cores=CORES, environ=plain_environ(), java=class_archive.quick(), before=before)

    def run(self, program: str, *args: str, timeout: float = 240, **environ: str) -> subprocess.CompletedProcess[str]:
        """Runs a program, its text or the path of a file, as a driver of this cluster."""
        if not os.path.isfile(program):
            script = self.driver / "program.py"
            script.write_text(program)
            program = str(script)
        conf = {"spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
        conf |= {"spark.default.parallelism": "2", "spark.sql.shuffle.partitions": "2"}
        submit = shlex.join(part for setting in conf.items() for part in ("--conf", "=".join(setting)))
        whole = self.environ_of(self.driver) | {
            "TAILRACE_MASTER": self.master,
            "PYSPARK_SUBMIT_ARGS": f"--driver-memory 512m {submit} pyspark-shell",
            **environ,
        }
        command = [sys.executable, program, *args]
        return subprocess.run(command, cwd=self.driver, env=whole, capture_output=True, text=True, timeout=timeout)


def said(done: subprocess.CompletedProcess[Any]) -> str:
    """The output of a program, for the message of a test."""
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
