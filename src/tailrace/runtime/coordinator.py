"""The thread that drives one job's coordinator: links to the workers, the clock, and the provider of worker slots."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, assert_never

from tailrace.coordinator.actions import (
    Action,
    CheckpointEnded,
    Claim,
    CloseLink,
    Commit,
    Delete,
    Kill,
    Launch,
    MarkPublished,
    MarkSwept,
    Restarting,
    Send,
    StatusChanged,
    Sweep,
    WasPublished,
)
from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.progress import ProgressMaker
from tailrace.coordinator.stats import CheckpointStats
from tailrace.errors import CheckpointError
from tailrace.graph.plan import Plan
from tailrace.protocol import deployment
from tailrace.runtime.announcing import Announcer
from tailrace.runtime.config import WorkerConfig
from tailrace.runtime.control import ControlDoor, Reply
from tailrace.runtime.doors import WorkerDoor
from tailrace.runtime.jobstore import JobStore
from tailrace.runtime.link import TooLarge
from tailrace.runtime.loop import Loop
from tailrace.runtime.slots import SlotProvider
from tailrace.storage.endings import Awaited
from tailrace.storage.scratch import remove_abandoned

PROGRESS_SECONDS = 1.0
OUTLIVE_SECONDS = 6.0
"""How long the end of a job waits for the processes of its workers, once their Spark jobs have ended."""
ANNOUNCE_SECONDS = 60.0
"""How long the end of a job that has finished waits for the `published` of its sinks: its readers
find all of its output then. After another end nobody waits for it."""
RECENT = 100
CheckpointFuture = Future[CheckpointStats]
_log = logging.getLogger("tailrace")


class JobRunner(threading.Thread):
    """Runs one job to its end. The interpreter's exit waits for it."""

    def __init__(
        self,
        name: str,
        job_id: str,
        run_id: str,
        plan: Plan,
        machine: Coordinator,
        provider: SlotProvider,
        store: Any = None,
        on_progress: Callable[[dict[str, Any], JobStatus], None] | None = None,
        on_end: Callable[..., None] | None = None,
        on_published: Iterable[tuple[str, Callable[[], object]]] = (),
    ) -> None:
        super().__init__(name=f"tailrace-coordinator-{name}")
        self.job_name = name
        self.job_id = job_id
        self.run_id = machine.run_id
        self.machine = machine
        if machine.checkpoints is not None:
            machine.checkpoints.clock_offset = _micros() - _now()
        self.status = JobStatus.CREATED
        self.ended = threading.Event()
        self.progress: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.crash: str | None = None
        """The traceback of this thread, where it broke; the job has failed then."""
        self._on_progress = on_progress
        self._on_end = on_end
        self._announcer = Announcer(name, on_published)
        self._provider = provider
        self._token = secrets.token_bytes(32)
        self._loop = Loop()
        self._workers = WorkerDoor(self._token, provider.listen_host(), self._loop, machine)
        self.store = None if store is None else JobStore(store, self._loop, name, machine, self._carry_out)
        """Where checkpoints are, or None for a job that takes none."""
        self._door = ControlDoor(self._loop, self._asked)
        self._waiting: set[CheckpointFuture] = set()
        self._maker = ProgressMaker(job_id, run_id, name, plan, _micros())
        self._next_progress = time.monotonic() + PROGRESS_SECONDS

    # From other threads.

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._loop.call_soon_threadsafe(lambda: self.machine.cancel(_now()))

    def checkpoint(self) -> CheckpointFuture:
        """Asks for a checkpoint now."""
        future: CheckpointFuture = Future()

        def ask() -> None:
            self.machine.checkpoint(future, _now())
            self._carry_out()

        if self.ended.is_set() or not self._loop.call_soon_threadsafe(ask):
            future.set_exception(CheckpointError(f"job {self.job_name!r} has ended"))
        else:
            self._waiting.add(future)
            if self.ended.is_set():
                self._disappoint()
        return future

    def _asked(self, request: dict[str, Any], reply: Reply) -> None:
        """Another process of this user wants something."""
        verb = request.get("verb")
        if verb == "who":
            reply({"name": self.job_name, "id": self.job_id, "status": str(self.status), "pid": os.getpid()})
        elif verb == "checkpoint":
            future: CheckpointFuture = Future()
            future.add_done_callback(lambda done: reply(_told(done)))
            self._waiting.add(future)
            self.machine.checkpoint(future, _now())
            self._carry_out()
        else:
            reply({"error": f"unknown verb {verb!r}"})

    def _disappoint(self) -> None:
        """Fails the callers that still wait for a checkpoint: nobody else will answer them."""
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(CheckpointError(f"job {self.job_name!r} has ended"))

    def refused(self) -> dict[str, int]:
        """Connections refused at the coordinator's and the workers' ports, by reason."""
        found = {reason.value: count for reason, count in self._workers.listener.refused.items() if count}
        if self._workers.no_workers:
            found["no worker of this job"] = self._workers.no_workers
        for slot in self.machine.roster.slots:
            for reason, count in slot.refused.items():
                found[reason] = found.get(reason, 0) + count
        return found

    # The thread.

    def run(self) -> None:
        try:
            self.machine.start(_now())
            self._carry_out()
            while not self.machine.status.final:
                self._turn()
            self._outlive_workers()
        except BaseException:
            self.crash = traceback.format_exc()
            self._kill_all()
        try:
            self._finish()
        except BaseException:
            self.crash = traceback.format_exc()
            self.status = JobStatus.FAILED
        finally:
            self.ended.set()  # whatever happened: somebody waits for it
            self._disappoint()

    def _turn(self) -> None:
        self._loop.poll(self._timeout())
        self._workers.listener.expire(time.monotonic())
        self.machine.tick(_now())
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self._report()
        self._carry_out()

    def _outlive_workers(self) -> None:
        """A Spark job that was cancelled ends at once, its Python process up to four seconds later, and until then it may
        still write. It is gone when its link is."""
        deadline = time.monotonic() + OUTLIVE_SECONDS
        while self._workers.links and (left := deadline - time.monotonic()) > 0:
            self._loop.poll(left)

    def _kill_all(self) -> None:
        for slot in self.machine.roster.slots:
            for launch in slot.running:
                self._provider.kill(slot.index, launch, self._workers.pids.get((slot.index, launch)))

    def _timeout(self) -> float:
        waits = [self._next_progress - time.monotonic()]
        tick = self.machine.next_tick(_now())
        if tick is not None:
            waits.append((tick - _now()) / 1e6)
        if self._workers.listener.next_deadline is not None:
            waits.append(self._workers.listener.next_deadline - time.monotonic())
        return max(0.0, min(waits))

    def _report(self) -> None:
        if self.machine.status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING):
            made = self._make_report()
            self.progress.append(made)
            if self._on_progress is not None:
                with contextlib.suppress(Exception):  # a broken display must not break the job
                    self._on_progress(made, self.machine.status)

    def _make_report(self) -> dict[str, Any]:
        machine = self.machine
        return self._maker.make(machine.roster.slots, _micros(), machine.checkpoints, machine.attempts.restarts)

    def _finish(self) -> None:
        if self.machine.roster.slots[0].reports:
            self.progress.append(self._make_report())
        self._workers.close()
        self._door.close()
        self._provider.close(timeout=5.0)
        remove_abandoned()  # of workers that were killed on this machine
        kept = self._end_storage()
        self._announcer.close(ANNOUNCE_SECONDS if self.machine.status is JobStatus.FINISHED else 0.0)
        self._loop.close()
        self.machine.plan = b""  # it may be large, and the handle of the job may be kept
        status = JobStatus.FAILED if self.crash is not None else self.machine.status
        if self._on_end is not None and kept is not None:
            with contextlib.suppress(Exception):  # tidying up changes nothing about how the job ended
                self._on_end(status, kept)
        self.status = status
        if self._on_progress is not None and self.progress:
            with contextlib.suppress(Exception):
                self._on_progress(self.progress[-1], self.status)

    def _end_storage(self) -> Awaited | None:
        """Perhaps unpublished output of checkpoints that stay; None where that is not known."""
        return {} if self.store is None else self.store.end(self.machine.give_up(crashed=self.crash is not None))

    # Actions.

    def _carry_out(self) -> None:
        machine = self.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                self._carry_out_one(action)

    def _carry_out_one(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(action)
            case Send():
                self._send(action)
            case CloseLink():
                self._workers.close_link(action.slot, action.epoch)
            case Kill():
                self._provider.kill(action.slot, action.launch, self._workers.pids.get((action.slot, action.launch)))
            case StatusChanged():
                self._status(action.status)
            case CheckpointEnded():
                self._checkpoint_ended(action)
            case WasPublished():
                self._announcer.announce()
            case Restarting():
                self._restarting(action)
            case Claim() | Commit() | Delete() | Sweep() | MarkPublished() | MarkSwept():
                assert self.store is not None
                self.store.act(action)
            case _:
                assert_never(action)

    def _status(self, status: JobStatus) -> None:
        if not status.final:  # a final status is told once everything is cleaned up
            self.status = status

    def _launch(self, action: Launch) -> None:
        slot, launch = action.slot, action.launch
        address = self._workers.listener.address
        config = WorkerConfig(slot, self.job_name, self.machine.incarnation, address, self._token, launch)
        loop, machine, provider = self._loop, self.machine, self._provider

        def ended(index: int, error: str | None, cancelled: bool) -> None:
            over = not provider.lives()
            loop.call_soon_threadsafe(lambda: machine.slot_ended(index, error, _now(), cancelled, launch, over))

        self._provider.launch(config, ended)

    def _checkpoint_ended(self, action: CheckpointEnded) -> None:
        for future in action.waiting:
            self._waiting.discard(future)
            if future.done():
                continue
            if action.stats is not None:
                future.set_result(action.stats)
            else:
                what = f"checkpoint {action.checkpoint} of" if action.checkpoint else "no checkpoint of"
                future.set_exception(CheckpointError(f"{what} job {self.job_name!r}: {action.reason}"))

    def _restarting(self, action: Restarting) -> None:
        cause = action.cause
        where = f" in operator {cause.operator!r}" if cause.operator is not None else ""
        _log.warning("job %r restarts (restart %d)%s: %s", self.job_name, action.attempt, where, cause.message)

    def _send(self, action: Send) -> None:
        try:
            self._workers.send(action.slot, action.epoch, action.message)
        except TooLarge as error:
            self.machine.fail(f"{type(action.message).__name__} for worker {action.slot} is too large: {error}", _now())
        if isinstance(action.message, deployment.Leave) and self.machine.status is not JobStatus.FINISHING:
            self._workers.stop_hearts(action.slot)  # after a good end users' `close` may take its time


def _told(future: CheckpointFuture) -> dict[str, Any]:
    error = future.exception()
    if error is not None:
        return {"error": str(error)}
    stats = future.result()
    return {"id": stats.id, "path": stats.path, "bytes": stats.size, "duration": stats.duration / 1e6}


def _now() -> int:
    """The coordinator's clock: int64 microseconds that never go back."""
    return time.monotonic_ns() // 1000


def _micros() -> int:
    return time.time_ns() // 1000
