"""The thread that drives one job's coordinator: links to the workers, the clock, and the provider of worker slots."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from tailrace.coordinator.actions import (
    Action,
    CheckpointEnded,
    CheckpointFailed,
    CloseLink,
    Ended,
    InReach,
    Kill,
    Launch,
    NotReplaced,
    OutOfReach,
    Replacing,
    Restarting,
    SavepointEnded,
    Send,
    Stalled,
    StandbyLost,
    StatusChanged,
    StopEnded,
    Told,
    WasPublished,
    WorkerReplaced,
)
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.stats import Books, CheckpointStats
from tailrace.coordinator.view.progress import ProgressMaker
from tailrace.coordinator.view.slice_views import books_of, slices_of
from tailrace.coordinator.view.slices import Slices
from tailrace.errors import CheckpointError
from tailrace.graph.plan import Plan
from tailrace.protocol import deployment
from tailrace.protocol.deployment import SubtaskReport
from tailrace.protocol.wire import AnyMessage
from tailrace.runtime.driver.announcing import Announcer
from tailrace.runtime.driver.answering import Desk
from tailrace.runtime.driver.control import ControlDoor, Reply
from tailrace.runtime.driver.jobstore import JobStore
from tailrace.runtime.driver.moving import Moving
from tailrace.runtime.driver.requests import Unheard, Wish, WishFuture, put, told
from tailrace.runtime.driver.slots import SlotProvider
from tailrace.runtime.driver.warning import warn
from tailrace.runtime.eventloop.clock import JobClock, monotonic_micros
from tailrace.runtime.eventloop.loop import EventLoop
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.doors import WorkerDoor
from tailrace.runtime.network.link import TooLarge
from tailrace.storage.endings import Awaited
from tailrace.storage.scratch import remove_abandoned
from tailrace.storage.store import Store

PROGRESS_SECONDS = 1.0
OUTLIVE_SECONDS = 6.0
"""Seconds that the end of a job waits for the processes of its workers, once their Spark jobs have ended."""
ANNOUNCE_SECONDS = 60.0
"""Seconds that the end of a job that has finished waits for the `published` of its sinks: readers find all of its output
then. Another end does not wait for it."""
STOPPED_SECONDS = 2.0
"""Delay in seconds of a turn, from which on this process counts as suspended. All whom the coordinator waits for then get
as much time again before any timeout: some of them were suspended with it."""
RECENT = 100
REPORTED = (JobStatus.RUNNING, JobStatus.STOPPING, JobStatus.RESTARTING, JobStatus.FINISHING)
"""States in which there are progress reports."""


class JobRunner(threading.Thread):
    """The runner of one job, to its end. The interpreter's exit waits for it."""

    def __init__(
        self,
        name: str,
        job_id: str,
        run_id: str,
        plan: Plan | None,
        machine: Coordinator,
        provider: SlotProvider,
        store: Store | None = None,
        on_progress: Callable[[dict[str, Any], JobStatus], None] | None = None,
        on_end: Callable[..., None] | None = None,
        on_published: Iterable[tuple[str, Callable[[], object]]] = (),
        clock: JobClock | None = None,
    ) -> None:
        """`plan` is for reports: without it there are none, but `on_progress` is called for each. `clock`: the clock of
        the job, if it has one."""
        super().__init__(name=f"tailrace-coordinator-{name}")
        self.job_name = name
        self.job_id = job_id
        self.run_id = machine.run_id
        self.machine = machine
        self._clock = JobClock() if clock is None else clock
        if machine.checkpoints is not None:
            machine.checkpoints.clock_offset = self._clock.now() - monotonic_micros()
        self.status = JobStatus.CREATED
        self.ended = threading.Event()
        self.progress: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.crash: str | None = None
        """The traceback of this thread, if it broke; the job has failed then."""
        self._on_progress = on_progress
        self._on_end = on_end
        self._announcer = Announcer(name, on_published)
        self._provider = provider
        self._token = secrets.token_bytes(32)
        self._loop = EventLoop()
        at = provider.listen_at()
        self._at = at
        self._workers = WorkerDoor(self._token, at, self._loop, machine, self._placed)
        self.store = None if store is None else JobStore(store, self._loop, name, machine, self._carry_out)
        """The storage of checkpoints; None for a job that takes none."""
        self._desk = Desk(self, plan, self._asked_for)
        self._door = ControlDoor(self._loop, self._desk.answer, name)
        self._moving = Moving(machine, self._carry_out)
        self._waiting: set[WishFuture] = set()
        self._maker = None if plan is None else ProgressMaker(job_id, run_id, name, plan, self._clock.now())
        self._next_progress = time.monotonic() + PROGRESS_SECONDS
        self._looked: float | None = None
        """The time at which the thread last looked for messages, in seconds of the monotonic clock."""
        self._patient_until = 0.0
        """Time before which no timeout fires; 0 unless this process was suspended a moment ago."""

    # From other threads.

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._loop.call_soon_threadsafe(lambda: self.machine.cancel(monotonic_micros()))

    def wish(self, wish: Wish) -> WishFuture:
        """Passes a user's wish to the coordinator. Returns the future of its result."""
        future: WishFuture = WishFuture()
        if self.ended.is_set() or not self._loop.call_soon_threadsafe(lambda: self._put(wish, future)):
            future.set_exception(Unheard(f"job {self.job_name!r} has ended"))
        else:
            self._waiting.add(future)
            if self.ended.is_set():
                self._disappoint()
        return future

    def _put(self, wish: Wish, future: WishFuture) -> None:
        put(self.machine, wish, future, monotonic_micros())
        self._carry_out()

    def _asked_for(self, wish: Wish, reply: Reply) -> None:
        """Passes a wish of another process of this user to the coordinator."""
        future: WishFuture = WishFuture()
        future.add_done_callback(lambda done: reply(told(done)))
        self._waiting.add(future)
        self._put(wish, future)

    def _leaving(self, launches: Collection[tuple[int, int]]) -> None:
        """Passes on that the machines of these starts of slots are about to go."""
        self._loop.call_soon_threadsafe(lambda: self._moving.leaving(launches))

    def _disappoint(self) -> None:
        """Fails the futures of wishes that are not answered: nothing else will answer them."""
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(Unheard(f"job {self.job_name!r} has ended"))

    @property
    def cause(self) -> Cause | None:
        """The cause of the job's failure, if it has failed."""
        return self.machine.cause

    @property
    def restarts(self) -> int:
        """Number of restarts after failures."""
        return self.machine.attempts.restarts

    @property
    def history(self) -> list[CheckpointStats]:
        """The last complete checkpoints, the newest last."""
        return [] if self.machine.checkpoints is None else list(self.machine.checkpoints.history)

    @property
    def reports(self) -> list[SubtaskReport]:
        """The newest reports of the workers on their subtasks."""
        now = monotonic_micros()
        return [report for slot in self.machine.roster.slots for report in slot.figures(now)]

    @property
    def books(self) -> Books | None:
        """The figures of the checkpoints; None for a job that takes none."""
        return books_of(self.machine, monotonic_micros())

    @property
    def slices(self) -> Slices:
        """The state of each slice: where it runs, which processes hold its state, and how it was replaced."""
        machine = self.machine
        offset = 0 if machine.checkpoints is None else machine.checkpoints.clock_offset
        return slices_of(machine.roster, machine.takeovers, offset)

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
            self._start_machine()
            self._carry_out()
            self._provider.watch(self._leaving)
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
            self.ended.set()  # whatever happened: users wait for it
            self._disappoint()

    def _start_machine(self) -> None:
        self.machine.start(monotonic_micros())

    def _turn(self) -> None:
        timeout = self._timeout()
        self._loop.poll(timeout)
        self._workers.listener.expire(time.monotonic())
        if not self._was_stopped(timeout):
            self.machine.tick(monotonic_micros())
        self._moving.turn()
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self._report()
        self._carry_out()

    def _placed(self, slot: int, message: AnyMessage) -> AnyMessage:
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
        tick = self.machine.next_tick(monotonic_micros())
        if tick is not None:
            waits.append(max((tick - monotonic_micros()) / 1e6, self._patient_until - time.monotonic()))
        if (moving := self._moving.wait()) is not None:
            waits.append(moving)
        if self._workers.listener.next_deadline is not None:
            waits.append(self._workers.listener.next_deadline - time.monotonic())
        return max(0.0, min(waits))

    def _report(self) -> None:
        if self.machine.status in REPORTED:
            made = self._make_report()
            self.progress.append(made)
            if self._on_progress is not None:
                with contextlib.suppress(Exception):  # a broken display must not break the job
                    self._on_progress(made, self.machine.status)

    def _make_report(self) -> dict[str, Any]:
        if self._maker is None:
            return {}
        machine, slots = self.machine, self.machine.roster.slots
        return self._maker.make(slots, self._clock.now(), self.books, machine.attempts.restarts, self.slices)

    def _finish(self) -> None:
        if self.machine.roster.slots[0].reports:
            self.progress.append(self._make_report())
        self._workers.close()
        self._desk.close(JobStatus.FAILED if self.crash is not None else self.machine.status)
        self._door.close()
        self._provider.close(timeout=5.0)
        remove_abandoned()  # of workers that were killed on this machine
        kept = self._end_storage()
        self._announcer.close(ANNOUNCE_SECONDS if self.machine.status is JobStatus.FINISHED else 0.0)
        self._loop.close()
        self.machine.course.plan = b""  # it may be large, and the handle of the job may be kept
        status = JobStatus.FAILED if self.crash is not None else self.machine.status
        if self._on_end is not None and kept is not None:
            with contextlib.suppress(Exception):  # tidying up changes nothing about how the job ended
                self._on_end(status, kept)
        self.status = status
        if self._on_progress is not None and self.progress:
            with contextlib.suppress(Exception):
                self._on_progress(self.progress[-1], self.status)

    def _end_storage(self) -> Awaited | None:
        """Ends the storage. Returns perhaps unpublished output of checkpoints that stay; None if it is unknown."""
        if self.store is None:
            return {}
        crashed = self.crash is not None
        ending = self.machine.ending(crashed, monotonic_micros())
        return self.store.end(self.machine.give_up(crashed), ending)

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
            case CheckpointEnded() | SavepointEnded() | StopEnded():
                self._ended(action)
            case WasPublished():
                self._announcer.announce()
            case Restarting() | Stalled() | Replacing() | NotReplaced() | WorkerReplaced() | StandbyLost():
                self._tell(action)
            case CheckpointFailed() | OutOfReach() | InReach():
                self._tell(action)
            case _:  # a `StoreAction`: mypy names one that is not
                assert self.store is not None
                self.store.act(action)

    def _status(self, status: JobStatus) -> None:
        if not status.final:  # a final status is set once everything is cleaned up
            self.status = status

    def _launch(self, action: Launch) -> None:
        slot, launch = action.slot, action.launch
        address = self._workers.listener.address
        ports, tls = self._at.ports, self._at.tls
        config = WorkerConfig(slot, self.job_name, self.machine.incarnation, address, self._token, launch, ports, tls)
        loop, machine, provider = self._loop, self.machine, self._provider

        def ended(slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
            over = not provider.lives()
            loop.call_soon_threadsafe(
                lambda: machine.slot_ended(slot, error, monotonic_micros(), cancelled, launch, over, unfit)
            )

        self._provider.launch(config, ended)

    def _ended(self, action: Ended) -> None:
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
                future.set_exception(CheckpointError(f"{what} job {self.job_name!r}: {refused}"))

    def _tell(self, action: Told) -> None:
        warn(self.job_name, action)

    def _send(self, action: Send) -> None:
        message = action.message
        if isinstance(message, deployment.Welcome):
            message = msgspec.structs.replace(message, clock=self._clock.now())
        try:
            self._workers.send(action.slot, action.epoch, message)
        except TooLarge as error:
            self.machine.fail(
                f"{type(action.message).__name__} for worker {action.slot} is too large: {error}", monotonic_micros()
            )
        if isinstance(action.message, deployment.Leave) and self.machine.status is not JobStatus.FINISHING:
            start = self.machine.roster.at(action.slot).start or (action.slot, 0)
            self._workers.stop_hearts(start[0])  # after a good end users' `close` may take its time
