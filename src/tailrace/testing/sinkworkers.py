"""Processes in which `check_sink` uses a sink, and which it stops at a step of their work.

A step is a call of a function or a return from it, in Python or C, in any thread that the work starts. A `CutStep` names
one by its depth in the stack and its number there. So the few steps near the top, between two requests to a server, are met
about as often as the many deep ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa

from tailrace.api.connectors import Sink, SinkWriter

RETURNS = ("return", "c_return", "c_exception")
LOOK, LONGEST_LOOK = 0.002, 0.01
"""Seconds between two looks for an answer, and the seconds that one counts at most."""


class CutStep(NamedTuple):
    """A step of a process, and the signal that the process sends itself there."""

    depth: int
    number: int
    signal: int


class SinkAnswer(NamedTuple):
    """The answer of a process to one request."""

    result: Any
    error: str = ""
    steps: Counter[int] = Counter()
    """Number of steps at each depth."""


@dataclass(frozen=True)
class WriterPlace:
    """The context of a writer (`tr.SinkContext`)."""

    job: str
    run_id: str
    incarnation: int
    uid: str
    subtask: int
    parallelism: int
    attempt: int


class Steps:
    """A count of the steps of this process, which ends or stops it at a cut."""

    def __init__(self, cut: CutStep | None) -> None:
        self.counts: Counter[int] = Counter()
        self._cut = cut
        self._local = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        depth = getattr(self._local, "depth", 0) - (event in RETURNS)
        self.counts[depth] += 1
        cut = self._cut
        if cut is not None and cut.depth == depth and cut.number == self.counts[depth]:
            os.kill(os.getpid(), cut.signal)
        self._local.depth = depth + (event not in RETURNS)

    def __enter__(self) -> Steps:
        _counting.append(self)
        threading.setprofile(_profile)
        sys.setprofile(_profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        _counting.clear()


_counting: list[Steps] = []
"""The steps that are counted now. Threads that a client has started live on, and count for the next ones, too."""


def _profile(frame: FrameType, event: str, argument: Any) -> None:
    for steps in _counting:
        steps(frame, event, argument)


class SinkProcess:
    """A forked process that uses a sink as a worker does. It handles one request after the other."""

    def __init__(self, sink: Sink, read: Callable[[], Iterable[int]], record: Callable[[int], Any]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, which use no lock of the child's
            self.pid = os.fork()
        if not self.pid:
            try:
                self.pipe.close()
                _Service(sink, read, record).serve(theirs)
            finally:
                os._exit(1)
        theirs.close()
        self.gone = False

    def send(self, request: str, *args: Any, cut: CutStep | None = None) -> None:
        """Sends a request: the name of a method of `_Service`, with its arguments."""
        with suppress(OSError):
            self.pipe.send((request, args, cut))

    def receive(self, patience: float) -> SinkAnswer | None:
        """The answer; None if the process is gone or stopped. Raises `TimeoutError` if it does nothing of these.

        Where the machine gives this process no time, it gives none to the other one and to the server either: a look that
        comes late counts as `LONGEST_LOOK`."""
        waited, last = 0.0, time.monotonic()
        while not self.pipe.poll(LOOK):
            if self._has_stopped():
                return None
            now = time.monotonic()
            waited, last = waited + min(now - last, LONGEST_LOOK), now
            if waited > patience:
                raise TimeoutError
        try:
            return SinkAnswer(*self.pipe.recv())
        except (EOFError, OSError):
            self.kill()
            return None

    def _has_stopped(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        self.gone = self.gone or (pid != 0 and not os.WIFSTOPPED(status))
        return pid != 0

    def thaw(self) -> None:
        """Lets the process go on, if it has stopped."""
        if not self.gone:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process by SIGKILL."""
        if not self.gone:
            self.gone = True
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pipe.close()


def batch_of(sink: Sink, records: list[Any]) -> Any:
    """The batch of some records, as the sink takes it."""
    if sink.form != "columns":
        return records
    return pa.RecordBatch.from_pylist(records, schema=getattr(sink, "schema", None))


class _Service:
    """Service of a `SinkProcess` within the forked process."""

    def __init__(self, sink: Sink, read: Callable[[], Iterable[int]], record: Callable[[int], Any]) -> None:
        self._sink, self._read, self._record = sink, read, record
        self._writers: dict[int, SinkWriter] = {}

    def serve(self, pipe: Connection) -> None:
        parent = os.getppid()
        while True:
            while not pipe.poll(1):
                if os.getppid() != parent:
                    return
            request, args, cut = pipe.recv()
            steps = Steps(cut)
            try:
                function = getattr(self, request)
                with steps:
                    result = function(*args)
                pipe.send((result, "", steps.counts))
            except Exception as error:
                pipe.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}", steps.counts))

    def open(self, places: Sequence[WriterPlace]) -> None:
        for place in places:
            self._writers[place.subtask] = self._sink.writer(place)

    def write(self, subtask: int, numbers: Sequence[int]) -> None:
        self._writers[subtask].write(batch_of(self._sink, [self._record(n) for n in numbers]))

    def prepare(self, subtask: int) -> bytes | None:
        return self._writers[subtask].prepare()

    def took_over(self, subtask: int) -> None:
        self._writers[subtask].took_over()

    def publish(self, prepared: Sequence[bytes]) -> None:
        self._sink.publish(prepared)

    def settled(self, prepared: Sequence[bytes]) -> None:
        self._sink.settled(prepared)

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        self._sink.recover(run_ids, incarnation, uid)

    def read(self) -> list[int]:
        return list(self._read())
