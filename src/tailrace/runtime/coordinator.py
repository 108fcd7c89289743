"""The thread that drives one job's coordinator: links to the workers, the clock, and the provider of worker slots."""

from __future__ import annotations

import contextlib
import functools
import secrets
import selectors
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.machine import CloseLink, Coordinator, Kill, Launch, Limits, Send, StatusChanged
from tailrace.coordinator.progress import ProgressMaker
from tailrace.errors import ProtocolViolation
from tailrace.graph.plan import Plan
from tailrace.protocol import deployment
from tailrace.protocol.deployment import Heartbeat, Hello
from tailrace.runtime.link import CONTROL, Link, LinkError
from tailrace.runtime.listener import Listener
from tailrace.runtime.loop import Loop
from tailrace.runtime.slots import SlotProvider
from tailrace.runtime.worker import WorkerConfig

PROGRESS_SECONDS = 1.0
OUTLIVE_SECONDS = 6.0
"""How long the end of a job waits for the processes of its workers, once their Spark jobs have ended."""
RECENT = 100


class JobRunner(threading.Thread):
    """Runs one job to its end. The interpreter's exit waits for it."""

    def __init__(
        self,
        name: str,
        job_id: str,
        run_id: str,
        plan: Plan,
        plan_bytes: bytes,
        provider: SlotProvider,
        limits: Limits,
        on_progress: Callable[[dict[str, Any], JobStatus], None] | None = None,
        on_end: Callable[[JobStatus], None] | None = None,
    ) -> None:
        super().__init__(name=f"tailrace-coordinator-{name}")
        self.job_name = name
        self.machine = Coordinator(name, 1, plan.slots, plan_bytes, limits)
        self.status = JobStatus.CREATED
        self.ended = threading.Event()
        self.progress: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.crash: str | None = None
        """The traceback of this thread, where it broke; the job has failed then."""
        self._on_progress = on_progress
        self._on_end = on_end
        self._provider = provider
        self._token = secrets.token_bytes(32)
        self._loop = Loop()
        self._listener = Listener(self._token, provider.listen_host(), self._loop, self._incoming)
        self._links: dict[tuple[int, int], Link] = {}
        self._hearts: dict[Link, int] = {}
        self._strangers: set[Link] = set()
        self._no_workers = 0
        """Connections that knew the token and were of no worker that is wanted."""
        self._maker = ProgressMaker(job_id, run_id, name, plan, _micros())
        self._next_progress = time.monotonic() + PROGRESS_SECONDS

    # From other threads.

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._loop.call_soon_threadsafe(lambda: self.machine.cancel(_now()))

    def refused(self) -> dict[str, int]:
        """Connections refused at the coordinator's and the workers' ports, by reason."""
        found = {reason.value: count for reason, count in self._listener.refused.items() if count}
        if self._no_workers:
            found["no worker of this job"] = self._no_workers
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
        finally:
            self._finish()

    def _turn(self) -> None:
        self._loop.poll(self._timeout())
        self._listener.expire(time.monotonic())
        self.machine.tick(_now())
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self._report()
        self._carry_out()

    def _outlive_workers(self) -> None:
        """A Spark job that was cancelled ends at once, its Python process up to four seconds later, and until then it may
        still write. It is gone when its link is."""
        deadline = time.monotonic() + OUTLIVE_SECONDS
        while self._links and (left := deadline - time.monotonic()) > 0:
            self._loop.poll(left)

    def _kill_all(self) -> None:
        for slot in self.machine.roster.slots:
            if not slot.spark_ended:
                self._kill(slot.index)

    def _kill(self, index: int) -> None:
        hello = self.machine.roster.slots[index].hello
        self._provider.kill(index, hello.pid if hello is not None else None)

    def _timeout(self) -> float:
        waits = [self._next_progress - time.monotonic()]
        tick = self.machine.next_tick(_now())
        if tick is not None:
            waits.append((tick - _now()) / 1e6)
        if self._listener.next_deadline is not None:
            waits.append(self._listener.next_deadline - time.monotonic())
        return max(0.0, min(waits))

    def _report(self) -> None:
        if self.machine.status in (JobStatus.RUNNING, JobStatus.FINISHING):
            made = self._maker.make(self.machine.roster.slots, _micros())
            self.progress.append(made)
            if self._on_progress is not None:
                with contextlib.suppress(Exception):  # a broken display must not break the job
                    self._on_progress(made, self.machine.status)

    def _finish(self) -> None:
        if self.machine.roster.slots[0].reports:
            self.progress.append(self._maker.make(self.machine.roster.slots, _micros()))
        for link in [*self._links.values(), *self._hearts, *self._strangers]:
            self._close(link)
        self._listener.close()
        self._provider.close(timeout=5.0)
        self._loop.close()
        self.machine.plan = b""  # it may be large, and the handle of the job may be kept
        status = JobStatus.FAILED if self.crash is not None else self.machine.status
        if self._on_end is not None:
            with contextlib.suppress(Exception):  # tidying up changes nothing about how the job ended
                self._on_end(status)
        self.status = status
        if self._on_progress is not None and self.progress:
            with contextlib.suppress(Exception):
                self._on_progress(self.progress[-1], self.status)
        self.ended.set()

    # Actions.

    def _carry_out(self) -> None:
        machine = self.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                if isinstance(action, Launch):
                    self._launch(action.slot)
                elif isinstance(action, Send):
                    self._send(action)
                elif isinstance(action, CloseLink):
                    link = self._links.pop((action.slot, action.epoch), None)
                    if link is not None:
                        self._close(link)
                elif isinstance(action, Kill):
                    self._kill(action.slot)
                else:
                    assert isinstance(action, StatusChanged)
                    self._status(action.status)

    def _status(self, status: JobStatus) -> None:
        if not status.final:  # a final status is told once everything is cleaned up
            self.status = status

    def _launch(self, slot: int) -> None:
        config = WorkerConfig(slot, self.job_name, self.machine.incarnation, self._listener.address, self._token)
        loop, machine = self._loop, self.machine

        def ended(index: int, error: str | None, cancelled: bool) -> None:
            loop.call_soon_threadsafe(lambda: machine.slot_ended(index, error, _now(), cancelled))

        self._provider.launch(config, ended)

    def _send(self, action: Send) -> None:
        link = self._links.get((action.slot, action.epoch))
        if link is None:
            return
        try:
            link.send(CONTROL, deployment.encode(action.message))
            link.flush()
            self._watch(link)
        except LinkError as error:
            self._lost(action.slot, action.epoch, error.reason)
        if isinstance(action.message, deployment.Leave) and self.machine.status is not JobStatus.FINISHING:
            # The worker's other thread learns from this that the job is over, even while user code blocks. After a good
            # end users' `close` may take its time.
            for heart in [heart for heart, slot in self._hearts.items() if slot == action.slot]:
                self._close(heart)

    # Links.

    def _incoming(self, link: Link) -> None:
        """Somebody knows the token; the first message says who it is."""
        self._strangers.add(link)
        self._loop.register(link, selectors.EVENT_READ, functools.partial(self._first_message, link))

    def _first_message(self, link: Link, mask: int) -> None:
        try:
            messages = link.readable()
            if not messages:
                return
            first, *rest = [deployment.decode(payload) for _, payload in messages]
        except (LinkError, ProtocolViolation):
            self._refuse(link)
            return
        if isinstance(first, Hello) and not rest:  # until it is welcome a worker says nothing else
            self._hello(link, first)
        elif isinstance(first, Heartbeat):
            self._strangers.discard(link)
            self._hearts[link] = first.slot
            self._loop.modify(link, selectors.EVENT_READ, functools.partial(self._heart_ready, link))
        else:
            self._refuse(link)

    def _hello(self, link: Link, hello: Hello) -> None:
        epoch = self.machine.hello(hello, _now())
        if epoch is None:
            self._refuse(link)
            return
        self._strangers.discard(link)
        link.peer = f"worker {hello.slot}"
        self._links[hello.slot, epoch] = link
        ready = functools.partial(self._worker_ready, hello.slot, epoch, link)
        self._loop.modify(link, selectors.EVENT_READ, ready)
        link.ready = ready

    def _refuse(self, link: Link) -> None:
        self._no_workers += 1
        self._close(link)

    def _worker_ready(self, slot: int, epoch: int, link: Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                link.flush()
                self._watch(link)
            if mask & selectors.EVENT_READ:
                for _, payload in link.readable():
                    self.machine.message(slot, epoch, deployment.decode(payload), _now())
        except LinkError as error:
            self._lost(slot, epoch, error.reason)
        except ProtocolViolation as error:
            self._lost(slot, epoch, f"it broke the protocol: {error}")

    def _heart_ready(self, link: Link, mask: int) -> None:
        try:
            for _, payload in link.readable():
                beat = deployment.decode(payload)
                if isinstance(beat, Heartbeat):
                    self.machine.heartbeat(beat.slot, beat.pid, _now())
        except (LinkError, ProtocolViolation):
            self._close(link)

    def _watch(self, link: Link) -> None:
        """Asks for writability exactly while something is queued."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        if link.watched != wanted:
            self._loop.modify(link, wanted, link.ready)
            link.watched = wanted

    def _lost(self, slot: int, epoch: int, reason: str) -> None:
        link = self._links.pop((slot, epoch), None)
        if link is not None:
            self._close(link)
        self.machine.link_lost(slot, epoch, reason, _now())

    def _close(self, link: Link) -> None:
        self._strangers.discard(link)
        self._hearts.pop(link, None)
        if link.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self._loop.unregister(link)
            link.close()


def _now() -> int:
    """The coordinator's clock: int64 microseconds that never go back."""
    return time.monotonic_ns() // 1000


def _micros() -> int:
    return time.time_ns() // 1000
