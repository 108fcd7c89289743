"""The thread that drives one job's coordinator: links to the workers, the clock, and the provider of worker slots."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import InvalidStateError
from dataclasses import replace
from typing import Any

import msgspec

from tailrace.coordinator.actions import (
    Action,
    CheckpointEnded,
    CloseLink,
    Kill,
    Launch,
    RescaleEnded,
    SavepointEnded,
    Send,
    StatusChanged,
    StopEnded,
    Told,
    WasPublished,
)
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.view_makers import view_of
from tailrace.errors import CheckpointError, RescaleError
from tailrace.protocol import deployment
from tailrace.protocol.message_codec import FromWorker
from tailrace.runtime.driver.inspecting import Inspections
from tailrace.runtime.driver.jobstore import JobStore
from tailrace.runtime.driver.monitor import JobEnd, JobMonitor
from tailrace.runtime.driver.slot_provider import SlotEnded, SlotProvider
from tailrace.runtime.driver.user_requests import InspectWorkers, Unheard, Wish, WishFuture, put
from tailrace.runtime.eventloop.clock import monotonic_micros
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.coordinator_links import WorkerDoor
from tailrace.runtime.network.link import TooLarge
from tailrace.storage.end_of_run import Awaited
from tailrace.storage.scratch import remove_abandoned
from tailrace.storage.store import Store

PROGRESS_SECONDS = 1.0
OUTLIVE_SECONDS = 6.0
"""Seconds that the end of a job waits for the processes of its workers, once their Spark jobs have ended."""
STOPPED_SECONDS = 2.0
"""Delay in seconds of a turn, from which on this process counts as suspended. All whom the coordinator waits for then get
as much time again before any timeout: some of them were suspended with it."""


class JobRunner(threading.Thread):
    """The runner of one job, to its end. The interpreter's exit waits for it."""

    def __init__(
        self,
        machine: Coordinator,
        provider: SlotProvider,
        monitor: JobMonitor,
        store: Store | None = None,
        token: bytes = b"",
        now: Callable[[], int] = monotonic_micros,
    ) -> None:
        """`token`: that of the job; empty for a new one. `now`: the clock of the coordinator."""
        super().__init__(name=f"tailrace-coordinator-{monitor.job_name}")
        self._now = now
        self.machine, self.monitor, self._provider = machine, monitor, provider
        self._clock = monitor.clock
        machine.checkpoints.clock_offset = self._clock.now() - self._now()
        self._token = token or secrets.token_bytes(32)
        self._loop = EventLoop()
        self._at = provider.listen_at()
        self._workers = WorkerDoor(self._token, self._at, self._loop, machine, self._with_executor, now)
        self._inspections = Inspections(machine.roster, self._workers.inspect)
        self._workers.on_inspection = self._inspections.receive
        self._workers.open_inspections = self._inspections.open
        self.store = None if store is None else JobStore(store, self._loop, monitor, machine, self._carry_out, now)
        """The storage of checkpoints; None for a job that takes none."""
        self._waiting: set[WishFuture] = set()
        self._next_progress = time.monotonic() + PROGRESS_SECONDS
        self._looked: float | None = None
        """The time at which the thread last looked for messages, in seconds of the monotonic clock."""
        self._patient_until = 0.0
        """Time before which no timeout fires; 0 unless this process was suspended a moment ago."""

    # From other threads.

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._loop.call_soon_threadsafe(lambda: self.machine.cancel(self._now()))

    def wish(self, wish: Wish) -> WishFuture:
        """Passes a user's wish to the coordinator. Returns the future of its result."""
        future = WishFuture()
        self._waiting.add(future)
        if not self._loop.call_soon_threadsafe(lambda: self._put(wish, future)):
            self._disappoint()
        return future

    def _put(self, wish: Wish, future: WishFuture) -> None:
        if isinstance(wish, InspectWorkers):
            future.add_done_callback(self._waiting.discard)
            self._inspections.begin(wish.seconds, future)
            return
        put(self.machine, wish, future, self._now())
        self._carry_out()

    def _leaving(self, launches: Collection[tuple[int, int]]) -> None:
        """Passes on that the machines of these starts of slots are about to go."""
        self._loop.call_soon_threadsafe(lambda: self.machine.move(launches, self._now()))

    def _room(self, count: int) -> None:
        """Passes on how many task slots there are for the job."""
        self._loop.call_soon_threadsafe(lambda: self.machine.room(count, self._now()))

    def _disappoint(self) -> None:
        """Fails the futures of wishes that are not answered: nothing else will answer them."""
        for future in list(self._waiting):
            with contextlib.suppress(InvalidStateError):  # it is answered
                future.set_exception(Unheard(f"job {self.monitor.job_name!r} has ended"))

    @property
    def view(self) -> JobView:
        """The job as it is at this moment."""
        refused = {reason.value: count for reason, count in self._workers.listener.refused.items() if count}
        if self._workers.no_workers:
            refused["no worker of this job"] = self._workers.no_workers
        made = view_of(self.machine, self._now(), self._clock.now(), refused)
        return made if self.monitor.crash is None else replace(made, status=JobStatus.FAILED)

    # The thread.

    def run(self) -> None:
        try:
            self.monitor.open(self)
            self._start_machine()
            self._carry_out()
            elastic = self.machine.course.rescaling.elastic is not None
            self._provider.watch(self._leaving, self._room if elastic else None)
            while not self.machine.status.final:
                self._turn()
            self._outlive_workers()
        except BaseException:
            self.monitor.crash = traceback.format_exc()
            self._kill_all()
        try:
            self._finish()
        except BaseException:
            self.monitor.crash = traceback.format_exc()
            self.monitor.receive(JobEnd(self.view, self.monitor.crash, None))
        finally:
            self._loop.close()  # from here on no wish is taken
            self.machine.takeovers.close()
            self._disappoint()
            self.monitor.close()  # whatever happened: users wait for it

    def _start_machine(self) -> None:
        self.machine.start(self._now())

    def _turn(self) -> None:
        timeout = self._timeout()
        self._loop.poll(timeout)
        self._workers.listener.expire(time.monotonic())
        self._inspections.expire(time.monotonic())
        if not self._was_stopped(timeout):
            self.machine.tick(self._now())
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self.monitor.receive(replace(self.view, due=True))
        self._carry_out()

    def _with_executor(self, slot: int, message: FromWorker) -> FromWorker:
        """A worker's message, with its executor if the worker cannot import something: it has to be installed there."""
        if not isinstance(message, deployment.Failed) or message.kind is not deployment.FailureKind.IMPORT:
            return message
        start = self.machine.roster.at(slot).start
        executor = None if start is None else self._provider.executor(*start)
        if executor is None:
            return message
        return msgspec.structs.replace(message, message=f"{message.message}, in executor {executor}")

    def _was_stopped(self, timeout: float) -> bool:
        """True if this process was suspended a moment ago, by when it last looked for messages, and how long it waited
        now."""
        now = time.monotonic()
        before, self._looked = self._looked, now
        if self._patient_until:
            if now >= self._patient_until:  # also on a machine where each turn is late
                self._patient_until = 0.0
        elif before is not None and now > before + timeout + STOPPED_SECONDS:
            self._patient_until = now + STOPPED_SECONDS
        return now < self._patient_until

    def _outlive_workers(self) -> None:
        """Waits for the processes of workers. A Spark job that was cancelled ends at once, its Python process up to four
        seconds later, and until then it may still write. It is gone when its link is."""
        deadline = time.monotonic() + OUTLIVE_SECONDS
        while self._workers.links and (left := deadline - time.monotonic()) > 0:
            self._loop.poll(left)

    def _kill_all(self) -> None:
        for place in self.machine.roster.places:
            for start in place.running:
                self._provider.kill(*start, self._workers.pids.get(start))

    def _timeout(self) -> float:
        waits = [self._next_progress - time.monotonic()]
        tick = self.machine.next_tick(self._now())
        if tick is not None:
            waits.append(max((tick - self._now()) / 1e6, self._patient_until - time.monotonic()))
        for deadline in (self._workers.listener.next_deadline, self._inspections.next_deadline):
            if deadline is not None:
                waits.append(deadline - time.monotonic())
        return max(0.0, min(waits))

    def _finish(self) -> None:
        view = self.view
        self._workers.close()
        self._provider.close(timeout=5.0)
        remove_abandoned()  # of workers that were killed on this machine
        kept = self._end_storage()
        self._loop.close()
        self.machine.course.plan = b""  # it may be large, and the handle of the job may be kept
        self.monitor.receive(JobEnd(view, self.monitor.crash, kept))

    def _end_storage(self) -> Awaited | None:
        """Ends the storage. Returns perhaps unpublished output of checkpoints that stay; None if it is unknown."""
        if self.store is None:
            return {}
        crashed = self.monitor.crash is not None
        ending = self.machine.ending(crashed, self._now())
        return self.store.end(self.machine.give_up(crashed), ending)

    # Actions.

    def _carry_out(self) -> None:
        machine = self.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                self._carry_out_one(action)

    def _carry_out_one(self, action: Action) -> None:
        if isinstance(action, Told):
            self._warn(action)
            return
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
                self.monitor.receive(self.view)
            case CheckpointEnded() | SavepointEnded() | StopEnded():
                self._end_request(action)
            case RescaleEnded():
                self._end_rescale(action)
            case WasPublished():
                self.monitor.receive(action)
            case _:  # a `StoreAction`: mypy names one that is not
                assert self.store is not None
                self.store.act(action)

    def _warn(self, warning: Told) -> None:
        """Passes on a warning, behind a view that shows what it is about."""
        self.monitor.receive(self.view)
        self.monitor.receive(warning)

    def _launch(self, action: Launch) -> None:
        slot, launch = action.slot, action.launch
        address = self._workers.listener.address
        name, ports, tls = self.monitor.job_name, self._at.ports, self._at.tls
        job, intercepts, waits = (name, self.machine.incarnation), self.machine.takeovers.enabled, self.machine.waits
        config = WorkerConfig(slot, *job, address, self._token, launch, ports, tls, intercepts=intercepts, waits=waits)
        self._provider.launch(config, self._end_of(launch))

    def _end_of(self, launch: int) -> SlotEnded:
        """The callback for the end of a start of this number."""
        loop, machine, provider = self._loop, self.machine, self._provider

        def end(slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
            over = not provider.lives()
            loop.call_soon_threadsafe(
                lambda: machine.slot_ended(slot, error, self._now(), cancelled, launch, over, unfit)
            )

        return end

    def _end_rescale(self, action: RescaleEnded) -> None:
        """Sets the result of a wish for another size."""
        if action.who is None:
            return  # the job has changed its size by itself, and its log has it
        self._waiting.discard(action.who)
        if action.reason:
            action.who.set_exception(RescaleError(f"job {self.monitor.job_name!r} is not resized: {action.reason}"))
        else:
            action.who.set_result(action.slots)

    def _end_request(self, action: CheckpointEnded | SavepointEnded | StopEnded) -> None:
        """Sets the result of wishes that an action has answered."""
        result: Any = action.stats
        match action:
            case CheckpointEnded():
                waiting, kind, refused = action.waiting, "checkpoint", action.reason or ""
            case SavepointEnded():
                waiting, kind, refused = (action.who,), "savepoint", action.reason
            case StopEnded():
                waiting, kind, refused = (action.who,), "stop", action.reason
                result = action.savepoint or action.stats
        number = 0 if isinstance(action, StopEnded) else action.checkpoint
        for future in waiting:
            self._waiting.discard(future)
            if future.done():
                continue
            if not refused:
                future.set_result(result)
            else:
                what = f"{kind} {number} of" if number else f"no {kind} of"
                future.set_exception(CheckpointError(f"{what} job {self.monitor.job_name!r}: {refused}"))

    def _send(self, action: Send) -> None:
        message = action.message
        if isinstance(message, deployment.Welcome):
            message = msgspec.structs.replace(message, clock=self._clock.now())
        try:
            self._workers.send(action.slot, action.epoch, message)
        except TooLarge as error:
            self.machine.fail(
                f"{type(action.message).__name__} for worker {action.slot} is too large: {error}", self._now()
            )
        if isinstance(action.message, deployment.Leave) and self.machine.status is not JobStatus.FINISHING:
            start = self.machine.roster.at(action.slot).start or (action.slot, 0)
            self._workers.stop_hearts(start[0])  # after a good end users' `close` may take its time
