"""The main loop of a worker's process: sockets, the clock and the budget around the machine of `task.worker.machine`.

One thread, one loop (`runtime.eventloop.selector`). Between any two steps of user code the sockets are served. Beside it a
thread gives signs of life on a link of its own (a regular expression or a C extension may hold the interpreter for seconds),
and ends the process when the job is over and user code does not come back.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import assert_never

from tailrace.errors import ConfigError, ProtocolViolation
from tailrace.protocol import deployment, message_codec
from tailrace.protocol.deployment import Hello, Welcome
from tailrace.runtime.eventloop.clock import JobClock, boot_micros
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.eventloop.storage_thread import WorkerStorage
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.dialing import reach
from tailrace.runtime.network.link import CONTROL, FRAME, Link, LinkError, TooLarge
from tailrace.runtime.network.links import Links
from tailrace.runtime.network.listener import Listener
from tailrace.runtime.network.peers import Peers
from tailrace.runtime.worker.async_calls import WorkerCalls
from tailrace.runtime.worker.backends import Backends
from tailrace.runtime.worker.coordinator_lookup import CoordinatorLookup, with_process
from tailrace.runtime.worker.heartbeat import Heart
from tailrace.runtime.worker.python_settings import allow_many_files, no_breakpoint, rare_collections
from tailrace.runtime.worker.random_state import SharedGenerators
from tailrace.runtime.worker.stepping import Stepper
from tailrace.runtime.worker.watchdog import Watchdog
from tailrace.state.paths import kept_prefix
from tailrace.storage.spill import SpillFiles
from tailrace.storage.store import Store
from tailrace.storage.storedspill import StoredSpill, part_bytes
from tailrace.task.channels.spilling import SpillPlace
from tailrace.task.contract.actions import (
    Action,
    AwaitPeer,
    BeginCalls,
    CallSink,
    ClosePeers,
    ConnectPeers,
    DropState,
    Exit,
    HoldSlot,
    ReadPlaced,
    ReadState,
    ToCoordinator,
    ToPeer,
    WriteState,
)
from tailrace.task.contract.events import (
    CallsAnswered,
    CoordinatorFound,
    CoordinatorLost,
    CoordinatorSaid,
    DriverFailed,
    MessageTooLarge,
    PeerLost,
    ReaderWoken,
    ReportDue,
)
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.usercode import whole_traceback
from tailrace.task.worker.attribution import internal
from tailrace.task.worker.machine import Worker

REPORT_NANOS = 500_000_000
UNREAD_BYTES = 1 << 20
"""Bytes that may wait for a coordinator that does not read (its process is suspended, say); beyond it no reports are
sent."""
HELD_UP_SECONDS = 0.1
"""Seconds from which on time in which user code kept the sockets waiting is not counted against the peers that wait
there."""


class WorkerProcess:
    """The driver of one `Worker`, until it exits."""

    def __init__(self, config: WorkerConfig, load: Callable[[bytes], JobSpec]) -> None:
        self.config = config
        self._backends = Backends()
        own = random.Random, self._backends, self._make_spill
        self._shared = SharedGenerators()
        self.loop = EventLoop()
        self._calls = WorkerCalls(self.loop)
        self.machine = Worker(config.slot, load, *own, outside=self._calls.outside, shared=self._shared)
        self._calls.on_answers = lambda uid, count: self.machine.handle(CallsAnswered(uid, count))
        self._calls.threads.on_wake = lambda uid: self.machine.handle(ReaderWoken(uid))
        self._calls.sinks.on_answer = self.machine.handle
        self.exit_reason: str | None = None
        self._started = time.monotonic_ns()
        self._next_report = self._started + REPORT_NANOS
        self._storage: WorkerStorage | None = None
        self.control = reach(config, config.address, "the coordinator")
        self._coordinator_at = config.address
        self._lookup: CoordinatorLookup | None = None
        """The look-up of another coordinator, while the own one is lost."""
        self._links = Links(self.loop, self._lose)
        self._peers = Peers(config, self.machine, self._links, self._lose)
        self._clock = JobClock()
        self._greeted_at = boot_micros()
        self._stepper = Stepper(self.machine, self._clock)
        at = Binding(self.control.local_host(), ports=config.ports, tls=config.tls)
        try:
            self.listener = Listener(config.token, at, self.loop, self._peers.incoming)
        except OSError as error:
            raise ConfigError(f"worker {config.slot} cannot listen at {at}, by TAILRACE_PORTS: {error}") from error

    # The life of a worker.

    def run(self) -> str:
        """Joins the job, works, leaves. Returns why it left."""
        watchdog = Watchdog(self.loop, self._stepper, self._started)
        inspect = partial(watchdog.inspect, self.config.slot)
        heart = self._heart = Heart(self.config, watchdog.look, lambda: self.machine.succeeds, inspect)
        heart.start()
        self._backends.remove_abandoned()
        try:
            self._links.read_by(self.control, self._control_ready)
            self._send_hello(self.config.slot)
            self._links.flush(self.control)
            stand_ins = self._shared.with_stand_ins(self.config.intercepts)
            with stand_ins, rare_collections(), self._stepper.in_place(self.config.slot):
                while self.exit_reason is None:
                    self._guarded_turn()
            self._send_goodbye()
            self._report_closing()
        finally:
            heart.spare()
            self._calls.sinks.end()
            self._close()
            heart.stop()
            self._calls.sinks.end_process()
        return self.exit_reason

    def _send_hello(self, slot: int) -> None:
        """Sends the hello: for the place that this process was started for, or as a standby for the slot that it holds
        from now on."""
        config, (host, port) = self.config, self.listener.address
        place = None if slot == config.slot else config.slot
        own = (config.job, config.incarnation, config.launch, place, config.executor)
        hello = Hello(slot, host, port, os.getpid(), *own)
        self._greeted_at = boot_micros()
        self._send(self.control, CONTROL, message_codec.encode(hello))

    def _guarded_turn(self) -> None:
        """Takes a turn. Reports an unexpected error to the coordinator before it ends this process: otherwise the
        coordinator would only see that the worker is gone."""
        try:
            self._turn()
        except Exception as error:
            if self.machine.failed:
                raise
            self.machine.handle(DriverFailed(internal(error)))

    def _turn(self) -> None:
        """Does one step of one task, what follows from it, and whatever the sockets have."""
        wake: float | None = None
        if self.machine.working:
            wake = self._stepper.step()
            if self.machine.encoding and not (self._storage is not None and self._storage.behind):
                wake = self._stepper.encode(wake)
        now = time.monotonic_ns()
        if now >= self._next_report:
            self._report_if_read(now)
        self._carry_out()
        if self.exit_reason is None:
            self._poll(0.0 if wake == 0.0 else self._timeout(wake, now))
            self._carry_out()

    def _poll(self, timeout: float) -> None:
        """Closes connections that did not prove themselves in time, and serves the sockets."""
        if self.listener.next_deadline is not None:
            now = time.monotonic()
            held_up = now - self.loop.looked_at
            if held_up > HELD_UP_SECONDS:
                self.listener.excuse(held_up)
            self.listener.expire(now)
        self.loop.poll(timeout)

    def _timeout(self, wake: float | None, now: int) -> float:
        """The seconds to wait for sockets: until the tasks' wake-up, the next report, or a handshake's deadline."""
        timeout = max(0.0, (self._next_report - now) / 1e9)
        if wake is not None:
            timeout = min(timeout, wake)
        deadline = self.listener.next_deadline
        return timeout if deadline is None else max(0.0, min(timeout, deadline - time.monotonic()))

    def _report_if_read(self, now: int) -> None:
        """Sends a progress report, unless the coordinator does not read them: they would be kept in memory until it does.
        The next report has all figures."""
        if self.control.queued_bytes < UNREAD_BYTES:
            self._report(now)
        else:
            self._next_report = now + REPORT_NANOS

    def _report(self, now: int) -> None:
        self._next_report = now + REPORT_NANOS
        refused = {reason.value: count for reason, count in self.listener.refused.items() if count}
        if self._peers.refused:
            refused["no peer of this job"] = self._peers.refused
        elapsed = (now - self._started) // 1000
        self.machine.handle(ReportDue(self._stepper.busy_micros(), elapsed, refused, self._clock.now()))

    # Actions.

    def _carry_out(self) -> None:
        """Carries out the machine's actions; then everything queued goes as far as the sockets take it."""
        machine = self.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                self._carry_out_one(action)
        for link in [self.control, *self._peers.by_slot.values()]:
            if link.queued_bytes:
                self._links.flush(link)

    def _carry_out_one(self, action: Action) -> None:
        match action:
            case ToPeer():
                link = self._peers.by_slot.get(action.slot)
                if link is not None:
                    self._send(link, FRAME, action.data)
            case ToCoordinator():
                self._send_message(action.message)
            case ConnectPeers():
                self._peers.connect(action)
            case AwaitPeer():
                self._peers.await_call(action.peer)
            case ClosePeers():
                self._peers.close()
                self._stepper.anew()
            case HoldSlot():
                self._peers.hold(action.slot)
                self._send_hello(action.slot)
            case WriteState():
                self._storing().write(action)
            case DropState():
                self._storing().drop(action)
            case ReadState():
                self._storing().read(action)
            case ReadPlaced():
                self._storing().read_placed_parts(action)
            case BeginCalls():
                self._calls.begin(action)
            case CallSink():
                self._calls.sinks.call(action)
            case Exit():
                self.exit_reason = action.reason
            case _:
                assert_never(action)

    def _send_message(self, message: message_codec.Outgoing) -> None:
        message = with_process(message, self.config)
        if isinstance(message, deployment.Progress):
            message = self._stepper.output.report(message)
        if isinstance(message, deployment.Failed) and (printed := self._stepper.output.last_report()) is not None:
            self._send(self.control, CONTROL, message_codec.encode(printed))
        if isinstance(message, deployment.SubtasksFinished):
            self._report(time.monotonic_ns())
        try:
            self._send(self.control, CONTROL, message_codec.encode(message))
        except TooLarge as error:
            self.machine.handle(MessageTooLarge(type(message).__name__, str(error)))

    def _storing(self) -> WorkerStorage:
        """The thread for the storage of checkpoints, started with the first request."""
        if self._storage is None:
            self._storage = WorkerStorage(self.machine, self.loop, self._open_store, self._clock.now)
        return self._storage

    def _open_store(self, folder: str | None) -> Store:
        spec = self.machine.spec
        assert spec is not None
        if folder is not None:  # the folder of the checkpoint that the job starts from; the job itself may take none
            return Store.at(folder, spec.storage_options)
        assert spec.checkpoint_dir is not None
        return Store(spec.checkpoint_dir, spec.job, spec.storage_options)

    def _make_spill(self, place: SpillPlace) -> SpillFiles | StoredSpill:
        """A place for frames that have no room in memory."""
        if not place.stored:
            return SpillFiles(place.folder, place.what)
        machine = self.machine
        assert machine.spec is not None
        prefix = kept_prefix(machine.incarnation, machine.slot, machine.epoch)
        part, patience = part_bytes(machine.spec.kept.bytes), machine.spec.storage_patience
        return StoredSpill(self._open_store(None).folder, prefix, place.what, part, patience)

    def _send(self, link: Link, kind: int, data: bytes) -> None:
        self._links.send(link, kind, data)

    def _send_goodbye(self) -> None:
        """Sends the last messages, for a short while."""
        deadline = time.monotonic() + 1.0
        while self.control.fileno() >= 0 and self.control.queued_bytes and time.monotonic() < deadline:
            try:
                self.control.flush()
            except LinkError:
                return
            self.loop.poll(0.01)

    def _report_closing(self) -> None:
        """Prints errors of user functions at their close: these fail no job."""
        for error in self.machine.close_errors:
            print(f"tailrace: a user function of worker {self.config.slot} raised in close", file=sys.stderr)
            print(whole_traceback(error), end="", file=sys.stderr)

    # Links.

    def _control_ready(self) -> None:
        try:
            messages = self.control.readable()
        except LinkError as error:
            self._lose(self.control, error)
            return
        for _, payload in messages:
            try:
                message = message_codec.decode_to_worker(payload)
                if isinstance(message, Welcome) and message.clock:
                    self._clock.follow(message.clock, boot_micros() - self._greeted_at)
                self.machine.handle(CoordinatorSaid(message))
            except ProtocolViolation as error:
                self.machine.handle(CoordinatorLost(str(error)))

    def _lose(self, link: Link, error: LinkError) -> None:
        """Handles a link that is of no more use."""
        self._links.forget(link)
        slot = self._peers.slot_of(link)
        if link is self.control:
            self._coordinator_lost(error.reason)
        elif slot is not None:
            del self._peers.by_slot[slot]
            self.machine.handle(PeerLost(slot, error.reason))

    def _coordinator_lost(self, reason: str) -> None:
        """Leaves, or looks for another coordinator, which may have been lost in its turn before it went on."""
        machine = self.machine
        if not machine.waits:
            machine.handle(CoordinatorLost(reason))
        spec = machine.spec
        if not machine.waits:
            return
        if spec is None or spec.checkpoint_dir is None:
            machine.handle(CoordinatorLost(f"{reason}, and this worker does not know where another one would be"))
            return
        store = lambda: Store(spec.checkpoint_dir or "", spec.job, spec.storage_options)  # noqa: E731
        self._lookup = CoordinatorLookup(
            self.config, self._coordinator_at, store, spec.run_id, self.loop, self._take_link
        )
        self._lookup.start()

    def _take_link(self, link: Link | None, address: tuple[str, int]) -> None:
        """Goes on with the link to another coordinator; leaves where there is none."""
        if link is None:
            self.machine.handle(CoordinatorLost("no other one has come"))
            return
        self.control, self._coordinator_at = link, address
        self._links.read_by(link, self._control_ready)
        self._heart.follow(address)
        self.machine.handle(CoordinatorFound())

    def _close(self) -> None:
        if self._lookup is not None:
            self._lookup.stop()
        if self._storage is not None:
            self._storage.close()
        self._calls.end()
        self._backends.close()
        self.listener.close()
        for link in [self.control, *self._links]:
            self._links.forget(link)
        self.loop.close()


def run_worker(config: WorkerConfig, load: Callable[[bytes], JobSpec]) -> str:
    """Runs the whole life of a worker in this process and thread. Returns why it left; raises unexpected errors."""
    allow_many_files()
    if os.environ.get("PYTHONBREAKPOINT") is None:  # the user who set it chose the consequences
        sys.breakpointhook = no_breakpoint
    return WorkerProcess(config, load).run()
