"""Another Python process that answers requests, with another `PYTHONHASHSEED`: texts hash differently there, and the
values in this process's modules are not there."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

from tailrace.errors import InternalError

_LENGTH = struct.Struct("<Q")


class OtherProcess:
    """Runs a module as a program that calls `serve`, and sends it requests."""

    def __init__(self, module: str, *arguments: str) -> None:
        seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        path = os.pathsep.join(place for place in sys.path if place)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        )

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def request(self, question: Any) -> Any:
        """The answer to a request; both can be pickled. Raises `InternalError` where the process has ended instead."""
        assert self._process.stdin is not None and self._process.stdout is not None
        _write(self._process.stdin, question)
        try:
            return _read(self._process.stdout)
        except EOFError:
            code = self._process.wait(60)
            raise InternalError(f"the other process ended with {code}; its error output says why", ()) from None


def serve(answer: Callable[[Any], Any]) -> None:
    """Answers requests from standard input until it is closed. Text that is printed meanwhile goes to standard error."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.redirect_stdout(sys.stderr):
        while True:
            try:
                question = _read(requests)
            except EOFError:
                return
            _write(answers, answer(question))


def _write(to: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, 5)
    to.write(_LENGTH.pack(len(data)) + data)
    to.flush()


def _read(source: IO[bytes]) -> Any:
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other process has ended")
    return pickle.loads(source.read(_LENGTH.unpack(head)[0]))
