"""Jobs for tests of the page, in single parts: a monitor with its door, and a runner whose view a test sets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import tailrace as tr
from tailrace.coordinator.checkpoint_stats import CheckpointStats
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.jobview import JobView, SlotFigures
from tailrace.protocol.deployment import SubtaskReport
from tailrace.runtime.driver.monitor import JobEnd, ProgramMonitor
from tailrace.runtime.driver.user_requests import InspectWorkers, Stop, TakeCheckpoint, Wish, WishFuture
from tailrace.runtime.job import Job
from tailrace.ui.server import PageServer


class Runner:
    """A runner of a job that takes each checkpoint at once."""

    def __init__(self, monitor: ProgramMonitor) -> None:
        self.monitor = monitor
        self.looks = 0
        """The number of times that the view was read."""
        self.inspections = 0
        reports = [
            SubtaskReport(vertex, 0, records_in=10, records_out=10) for vertex in range(len(monitor.plan.vertices))
        ]
        self._view = JobView(JobStatus.RUNNING, monitor.clock.now(), slots=(SlotFigures(reports),), due=True)
        monitor.receive(self._view)

    @property
    def view(self) -> JobView:
        self.looks += 1
        return self._view

    def wish(self, wish: Wish) -> WishFuture:
        future: Future[Any] = Future()
        match wish:
            case TakeCheckpoint():
                future.set_result(CheckpointStats(7, "/checkpoints/7", 1, 1, 1, 0, 0, 0, 0, 1))
            case InspectWorkers():
                self.inspections += 1
                future.set_result({"workers": [], "keys": {"parse": [{"key": "'a'", "share": 1.0}]}})
            case Stop():
                future.set_result(None)
                self.end(JobStatus.FINISHED)
            case _:
                future.set_exception(RuntimeError("no savepoint of this job"))
        return future

    def cancel(self) -> None:
        self.end(JobStatus.CANCELLED)

    def end(self, status: JobStatus) -> None:
        self._view = replace(self._view, status=status)
        self.monitor.receive(JobEnd(self._view, None, {}))
        if self.monitor.answers is not None:
            self.monitor.answers.end()


def job_of(name: str, ident: str) -> tuple[Job, Runner]:
    """A running job with this name and id, which has a door."""
    env = tr.Environment(parallelism=1)
    source = env.from_source(tr.sources.Sequence(0, 10), uid="numbers")
    source.map(abs, uid="parse").sink_to(tr.sinks.Callback(print), uid="out")
    monitor = ProgramMonitor(name, ident, env._plan(env._pending()))
    runner = Runner(monitor)
    monitor.open(runner)
    return Job(runner, monitor), runner


class Browser:
    """A client of a page."""

    def __init__(self, server: PageServer) -> None:
        self.server = server
        self.port = int(server.url.rpartition(":")[2])

    def request(self, method: str, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """(status, body, headers) of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=names)
        answer = connection.getresponse()
        body, found = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(body) if is_json else body.decode(), found

    def get(self, path: str, **headers: str) -> Any:
        status, body, _ = self.request("GET", path, **headers)
        assert status == 200, body
        return body

    def post(self, path: str, **headers: str) -> tuple[int, Any]:
        given = {"X_Tailrace_Token": self.server.guard.token, **headers}
        status, body, _ = self.request("POST", path, **given)
        return status, body

    def events(self, path: str, until: Callable[[list[Any]], bool]) -> list[Any]:
        """The events of a stream, as far as `until` is true of them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        found: list[Any] = []
        while not until(found):
            line = answer.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        connection.close()
        return found
