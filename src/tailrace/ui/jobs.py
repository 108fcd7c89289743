"""The jobs that a page shows: those of this program by their handles, those of other programs through their control
sockets. Both answer the same requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from tailrace.runtime.driver.control import is_called, jobs, query
from tailrace.runtime.job import JOBS, Job

SECONDS = 5.0
"""Seconds within which a job of another program answers with its figures."""
LISTED = 1.0
"""Seconds for which a list of the jobs of other programs is used."""


class NotAnswered(Exception):
    """The failure of a request to a job: it has ended, or does not answer."""


class WatchedJob(Protocol):
    """A job as a page sees it. Its methods wait."""

    def who(self) -> dict[str, Any]:
        """Name, id, status, process, `since`, `restarts`. Raises `NotAnswered`."""

    def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request. Raises `NotAnswered` where there is none within these seconds."""


class LocalJob:
    """A job of this program, running or ended."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def who(self) -> dict[str, Any]:
        return self.request({"verb": "who"}, SECONDS)

    def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        answers = self._job._monitor.answers
        if answers is None:
            raise NotAnswered("the job has not begun")
        result: Future[dict[str, Any]] = Future()
        answers.answer(request, result.set_result)
        try:
            return result.result(seconds)
        except TimeoutError:
            raise NotAnswered(f"the job has not answered within {seconds:g} s") from None


class SocketJob:
    """A job of another program of this user on this machine."""

    def __init__(self, path: str, who: dict[str, Any]) -> None:
        self._path, self._who = path, who

    def who(self) -> dict[str, Any]:
        return self._who

    def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            answer = query(self._path, request, seconds)
        except TimeoutError:
            raise NotAnswered(f"the job has not answered within {seconds:g} s") from None
        except (OSError, ValueError) as error:
            raise NotAnswered(f"the job cannot be reached: {error}") from None
        if answer is None:
            raise NotAnswered("the job has ended")
        return answer


Jobs = Callable[[], Sequence[WatchedJob]]
"""The jobs that a page shows, at the moment of the call. The call may wait."""


def own_jobs() -> Sequence[WatchedJob]:
    """The last jobs that this program has started, the newest last."""
    return [LocalJob(job) for job in JOBS if job._monitor.answers is not None]


class MachineJobs:
    """The running jobs of this user on this machine; of those, the ones with these names or ids, where some are given."""

    def __init__(self, chosen: Iterable[str] = ()) -> None:
        self._chosen = frozenset(chosen)
        self._lock = threading.Lock()
        self._until = 0.0
        self._found: Sequence[WatchedJob] = ()

    def __call__(self) -> Sequence[WatchedJob]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = [SocketJob(path, who) for path, who in jobs() if self._is_chosen(who)]
                self._until = time.monotonic() + LISTED
            return self._found

    def _is_chosen(self, who: dict[str, Any]) -> bool:
        return not self._chosen or any(is_called(who, one) for one in self._chosen)
