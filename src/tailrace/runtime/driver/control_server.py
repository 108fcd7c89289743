"""The answers of a job to its user's other processes and to its page: figures, checkpoints, a stop. A thread serves them at
the sockets of the job, in the program that has started it."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any, Protocol

import msgspec

from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.view.snapshot_maker import SnapshotMaker
from tailrace.errors import TailraceError
from tailrace.graph.sizes import Sizes
from tailrace.runtime.driver.control import ControlDoor, Reply
from tailrace.runtime.driver.joblog import JobLog
from tailrace.runtime.driver.size_changes import checked_sizes
from tailrace.runtime.driver.user_requests import (
    LOOK_SECONDS,
    InspectWorkers,
    Runner,
    Stop,
    Wish,
    WishFuture,
    result_of,
    wish_of,
)
from tailrace.runtime.eventloop.selector import EventLoop


class Answered(Protocol):
    """A job of this program, as requests see it."""

    job_name: str
    job_id: str
    status: JobStatus
    snapshots: SnapshotMaker
    checkpoints: str | None
    log: JobLog

    def rescale(self, runner: Runner, sizes: Sizes) -> WishFuture:
        """Requests another size of the job."""


class Answers:
    """The answers of a job of this program, wherever its coordinator is. A request to end the job is answered when the job
    has ended."""

    def __init__(self, job: Answered, runner: Runner) -> None:
        self._job, self._runner = job, runner
        self._leaving: list[tuple[Reply, dict[str, Any]]] = []
        """Replies that wait for the end of the job, with what else they send then."""
        self._lock = threading.Lock()
        self._ended = False

    def answer(self, request: dict[str, Any], reply: Reply) -> None:
        """Answers one request, now or later, in any thread."""
        wish = wish_of(request)
        subtasks = bool(request.get("subtasks"))
        match request.get("verb"):
            case "who":
                reply(self._who())
            case "place":
                reply({"checkpoints": self._job.checkpoints})
            case "snapshot":
                made = self._job.snapshots.make(self._runner.view, subtasks=subtasks)
                reply(msgspec.to_builtins(made))
            case "rescale":
                self._rescale(request.get("size"), reply)
            case "cancel":
                self._runner.cancel()
                self._at_the_end(reply, {})
            case "logs":
                reply({"lines": self._job.log.lines})
            case "keys":
                self._pass_on(InspectWorkers(LOOK_SECONDS), partial(self._note_keys, reply))
            case _ if isinstance(wish, Stop):
                self._pass_on(wish, partial(self._reply_to_stop, reply))
            case _ if wish is not None:
                self._pass_on(wish, reply)
            case verb:
                reply({"error": f"unknown verb {verb!r}"})

    def _rescale(self, size: Any, reply: Reply) -> None:
        try:
            future = self._job.rescale(self._runner, checked_sizes(size))
        except TailraceError as error:
            reply({"error": str(error)})
        else:
            future.add_done_callback(lambda done: reply(result_of(done)))

    def end(self) -> None:
        """Answers the requests that wait for the end of the job."""
        with self._lock:
            self._ended, leaving = True, self._leaving
        for reply, known in leaving:
            reply({"status": str(self._job.status), **known})

    def _at_the_end(self, reply: Reply, known: dict[str, Any]) -> None:
        with self._lock:
            if not self._ended:
                self._leaving.append((reply, known))
                return
        reply({"status": str(self._job.status), **known})

    def _reply_to_stop(self, reply: Reply, result: dict[str, Any]) -> None:
        """Takes the result of a stop: the last checkpoint is complete, or the stop has failed."""
        if "error" in result:
            reply(result)
        else:
            self._at_the_end(reply, result)

    def _who(self) -> dict[str, Any]:
        job, since = self._job, self._job.snapshots.since
        who = {"name": job.job_name, "id": job.job_id, "status": str(job.status), "pid": os.getpid()}
        return {**who, "since": since, "restarts": self._runner.view.restarts}

    def _note_keys(self, reply: Reply, result: dict[str, Any]) -> None:
        """Takes the keys on which the time of the workers goes: snapshots have them for a while."""
        if "keys" in result:
            self._job.snapshots.note_keys(result["keys"])
        reply({"keys": result["keys"]} if "keys" in result else result)

    def _pass_on(self, wish: Wish, reply: Reply) -> None:
        """Passes on a wish, and replies later."""

        def pass_on(future: WishFuture) -> None:  # in a thread of the runner
            reply(result_of(future))

        self._runner.wish(wish).add_done_callback(pass_on)


class Answering(threading.Thread):
    """The door of a job in the program that has started it."""

    def __init__(self, job: str, answers: Answers) -> None:
        super().__init__(name=f"tailrace-door-{job}", daemon=True)
        self._answers = answers
        self._over = False
        self._loop = EventLoop()
        self._door = ControlDoor(self._loop, self._answer, job)

    def run(self) -> None:
        while not self._over:
            self._loop.poll(None)
        self._door.close()
        self._loop.close()

    def close(self) -> None:
        """Closes the door behind what is answered by now. From any thread, once."""
        if self._loop.call_soon_threadsafe(self._end):
            self.join()

    def _end(self) -> None:
        self._over = True

    def _answer(self, request: dict[str, Any], reply: Reply) -> None:
        def later(answer: dict[str, Any]) -> None:
            self._loop.call_soon_threadsafe(partial(reply, answer))

        self._answers.answer(request, later)
