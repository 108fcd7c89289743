"""Programs that begin where an interpreter already is: it has run their common first lines once, and forks for each.

To import ourselves takes longer than most programs need until they end. What a forked program leaves to the interpreter
at its end (threads that it waits for, handlers, what becomes of an exception that nobody caught, the exit code) is as in
any other: it is a process of its own, and its top frame is that of its program.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_FORKS = """
def _asked():
    import json, os, sys
    for line in sys.stdin:
        program, *files = json.loads(line)
        child = os.fork()
        if not child:
            for number, file in enumerate((os.devnull, *files)):
                opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(opened, number)
                os.close(opened)
            return program
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)  # no request comes any more; handlers at the exit are those of the programs

exec(_asked())
"""
_PATIENCE = 60
"""Seconds that a program may take."""


class Warmed:
    """The process that forks. It has run `first`, which starts no thread."""

    def __init__(self, first: str, folder: Path) -> None:
        self._first = first
        self._folder = folder
        self._ran = 0
        self._process: subprocess.Popen[str] | None = None

    def ran(self, program: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a program."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        self._ran += 1
        files = [self._folder / f"{self._ran}.{name}" for name in ("out", "err")]
        print(json.dumps([program, *map(str, files)]), file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], _PATIENCE)[0]:
            self.close()
            raise TimeoutError(f"the program did not end within {_PATIENCE} s: {[file.read_text() for file in files]}")
        code = int(process.stdout.readline())
        out, err = (file.read_text() for file in files)
        return code, out, err

    def close(self) -> None:
        """Ends it, and a program that has not ended by itself."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", self._first + _FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
