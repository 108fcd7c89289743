"""Answers of a job to other processes of its user, and the thread that answers for a job whose coordinator is elsewhere."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.progress import operator_figures, subtask_figures
from tailrace.coordinator.view.slices import Slices, standby_figures
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import SubtaskReport
from tailrace.runtime.driver.control import ControlDoor, Reply
from tailrace.runtime.driver.requests import Stop, Wish, WishFuture, told, wish_of
from tailrace.runtime.eventloop.loop import EventLoop


class Answered(Protocol):
    """A runner of a job, as requests see it: `JobRunner` and `Follower`."""

    job_name: str
    job_id: str
    status: JobStatus
    progress: deque[dict[str, Any]]

    @property
    def restarts(self) -> int: ...

    @property
    def reports(self) -> Sequence[SubtaskReport]: ...

    @property
    def slices(self) -> Slices: ...

    def refused(self) -> dict[str, int]: ...

    def cancel(self) -> None: ...


class Desk:
    """The desk that answers requests. `ask` passes on a wish, and replies later. A request to end the job is answered
    when the job has ended."""

    def __init__(self, job: Answered, plan: Plan | None, ask: Callable[[Wish, Reply], None]) -> None:
        self._job, self._plan, self._ask = job, plan, ask
        self._leaving: list[tuple[Reply, dict[str, Any]]] = []
        """Replies that wait for the end of the job, with what else they send then."""

    def answer(self, request: dict[str, Any], reply: Reply) -> None:
        """Answers one request, now or later."""
        wish = wish_of(request)
        match request.get("verb"):
            case "who":
                reply(self._who())
            case "show":
                reply(self._shown(subtasks=bool(request.get("subtasks"))))
            case "cancel":
                self._job.cancel()
                self._leaving.append((reply, {}))
            case _ if isinstance(wish, Stop):
                self._ask(wish, partial(self._stopped, reply))
            case _ if wish is not None:
                self._ask(wish, reply)
            case verb:
                reply({"error": f"unknown verb {verb!r}"})

    def close(self, status: JobStatus) -> None:
        """Answers all requests that wait for the end of the job. `status`: how it has ended."""
        for reply, known in self._leaving:
            reply({"status": str(status), **known})
        self._leaving.clear()

    def _stopped(self, reply: Reply, said: dict[str, Any]) -> None:
        """Takes the result of a stop: the last checkpoint is complete, or the stop has failed."""
        if "error" in said:
            reply(said)
        else:
            self._leaving.append((reply, said))

    def _who(self) -> dict[str, Any]:
        job = self._job
        return {"name": job.job_name, "id": job.job_id, "status": str(job.status), "pid": os.getpid()}

    def _shown(self, *, subtasks: bool) -> dict[str, Any]:
        job, plan = self._job, self._plan
        more = {} if not subtasks or plan is None else {"subtasks": subtask_figures(plan, job.reports)}
        return {
            **self._who(),
            **more,
            "restarts": job.restarts,
            "operators": [] if plan is None else operator_figures(plan, job.reports),
            "refused_connections": job.refused(),
            "standby": standby_figures(job.slices),
            "slices": [asdict(one) for one in job.slices.all],
            "progress": job.progress[-1] if job.progress else None,
        }


class Answering(threading.Thread):
    """The door of a job whose coordinator is on an executor, in the program that follows it. Users need not know that the
    coordinator is elsewhere."""

    def __init__(self, job: Answered, plan: Plan, wish: Callable[[Wish], WishFuture]) -> None:
        super().__init__(name=f"tailrace-door-{job.job_name}", daemon=True)
        self._job, self._wish = job, wish
        self._over = False
        self._loop = EventLoop()
        self._desk = Desk(job, plan, self._ask)
        self._door = ControlDoor(self._loop, self._desk.answer, job.job_name)

    def run(self) -> None:
        while not self._over:
            self._loop.poll(None)
        self._shut()

    def close(self) -> None:
        """Closes the door behind what is answered by now. From any thread, once."""
        if self.ident is None:
            self._shut()
        elif self._loop.call_soon_threadsafe(self._end):
            self.join()

    def _end(self) -> None:
        self._over = True

    def _shut(self) -> None:
        self._desk.close(self._job.status)
        self._door.close()
        self._loop.close()

    def _ask(self, wish: Wish, reply: Reply) -> None:
        def taken(future: WishFuture) -> None:  # in the thread that carries letters
            self._loop.call_soon_threadsafe(partial(reply, told(future)))

        self._wish(wish).add_done_callback(taken)
