"""The process of one worker: sockets, the clock and the budget around the machine of `task.worker`.

One thread, one loop. Between any two steps of user code the sockets are served. Beside it a thread gives signs of life
on a link of its own (a regular expression or a C extension may hold the interpreter for seconds), and ends the process
when the job is over and user code does not come back.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import resource
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from tailrace.errors import ConfigError, ProtocolViolation
from tailrace.protocol import deployment, wire
from tailrace.protocol.deployment import Heartbeat, Hello, Peer, PeerHello
from tailrace.runtime.link import CONTROL, FRAME, Link, LinkError, TooLarge
from tailrace.runtime.listener import DialFailed, HungUp, Listener, dial
from tailrace.runtime.loop import Loop
from tailrace.runtime.storing import WorkerStorage
from tailrace.state.backend import Backend
from tailrace.state.memory import MemoryBackend
from tailrace.storage.scratch import Scratch, remove_abandoned
from tailrace.storage.spill import SpillFiles
from tailrace.storage.store import Store
from tailrace.task.checkpoints import DropState, WriteState
from tailrace.task.idle import Idle
from tailrace.task.machine import Task
from tailrace.task.slice import ToPeer
from tailrace.task.worker import ClosePeers, ConnectPeers, Exit, JobSpec, ReadPrepared, ReadState, ToCoordinator, Worker

TARGET_NANOS = 1_000_000
"""How long a step should take."""
CEILING_NANOS = 10_000_000
"""A step that took longer than this halves the budget at once."""
MAX_BUDGET = 32_768
ENCODE_SHARE = 0.2
"""The part of a busy worker's time that encoding a snapshot may take."""
SMALL_BUDGET = 256
"""Below this many records a step may take half the ceiling: what it costs besides its records weighs heavily there, and
smaller steps would only cost more for each record."""
REPORT_NANOS = 500_000_000
HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""How long user code may take to come back once the job is over."""
DIAL_SECONDS = 20.0
DIAL_TRIES = 8
DIAL_PAUSE = 0.05
OPEN_SECONDS = 3600.0
"""How much longer than this worker another one may take to open the user's functions."""
HELD_UP_SECONDS = 0.1
"""From here on, time in which user code kept the sockets waiting is not counted against those who wait there."""
GC_OBJECTS = 50_000
"""New objects between two looks for garbage cycles."""


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told before it can be told anything: it travels in the closure of its Spark task."""

    slot: int
    job: str
    incarnation: int
    address: tuple[str, int]
    token: bytes
    launch: int = 1
    """Which start of the slot this is."""

    def __repr__(self) -> str:  # the token stays out of every log and error
        return f"WorkerConfig(slot={self.slot}, job={self.job!r}, address={self.address})"


class Budget:
    """How many records a step of one task may take: from what records cost before, so that a step takes about `target`
    nanoseconds."""

    __slots__ = ("cost", "records", "target")

    def __init__(self, target: int = TARGET_NANOS) -> None:
        self.records = 64
        self.cost = 0.0
        self.target = target

    def learn(self, records: int, nanos: int) -> None:
        """A step of this many records took this long."""
        if records <= 0:
            return
        cost = nanos / records
        self.cost = cost if not self.cost else 0.7 * self.cost + 0.3 * cost
        wanted = MAX_BUDGET
        if self.cost:
            wanted = max(int(self.target / self.cost), min(SMALL_BUDGET, int(CEILING_NANOS / 2 / self.cost)))
        if nanos > CEILING_NANOS:
            wanted = min(wanted, records // 2)
        self.records = max(1, min(MAX_BUDGET, wanted, 4 * self.records))


class WorkerProcess:
    """Drives one `Worker` until it exits."""

    def __init__(self, config: WorkerConfig, load: Callable[[bytes], JobSpec]) -> None:
        self.config = config
        self.scratch: Scratch | None = None
        """A folder of this process for state on disk, once there is any."""
        self.machine = Worker(config.slot, load, random.Random, self._make_backend, SpillFiles)
        self.exit_reason: str | None = None
        self.peers: dict[int, Link] = {}
        self._links: dict[Link, Callable[[], None]] = {}
        """Every open link and what reads it. Spark uses the process again, so at the end all of them are closed."""
        self._expected: dict[int, Peer] | None = None
        self._early: list[tuple[PeerHello, Link]] = []
        self._connected = False
        self._budgets: dict[int, Budget] = {}
        self._busy: dict[int, int] = {}
        self._started = time.monotonic_ns()
        self._next_report = self._started + REPORT_NANOS
        self._bad_peers = 0
        self._storage: WorkerStorage | None = None
        self._encode_budget = Budget()
        self._backends = 0
        self._worked = self._encoded = 0
        """Nanoseconds of stepping and of encoding since encoding began."""
        self.done = threading.Event()
        self._heart: socket.socket | None = None
        """The socket of the thread that gives signs of life."""
        self.control = self._dial(config.address, "the coordinator")
        self.loop = Loop()
        self.listener = Listener(config.token, self.control.local_host(), self.loop, self._incoming)

    # The life of a worker.

    def run(self) -> str:
        """Joins the job, works, leaves. Returns why it left."""
        heart = threading.Thread(target=self._beat, name="tailrace-heartbeat", daemon=True)
        heart.start()
        threading.Thread(target=remove_abandoned, name="tailrace-scratch", daemon=True).start()
        try:
            self._register(self.control, self._control_ready)
            host, port = self.listener.address
            config = self.config
            hello = Hello(config.slot, host, port, os.getpid(), config.job, config.incarnation, config.launch)
            self.control.send(CONTROL, wire.encode(hello))
            self._flush(self.control)
            with _rare_collections():
                while self.exit_reason is None:
                    self._guarded_turn()
            self._say_goodbye()
            self._tell_of_closing()
        finally:
            self.done.set()
            self._close()
            if self._heart is not None:
                with contextlib.suppress(OSError):
                    self._heart.shutdown(socket.SHUT_RDWR)  # the thread need not wait for its next beat
            heart.join(timeout=GRACE_SECONDS)
        return self.exit_reason

    def _guarded_turn(self) -> None:
        """A turn. What nobody should raise is told to the coordinator before it ends this process, or all that anybody
        would hear is that the worker is gone."""
        try:
            self._turn()
        except Exception as error:
            if self.machine.failed:
                raise
            self.machine.internal_error(error)

    def _turn(self) -> None:
        """One step of one task, what follows from it, and whatever the sockets have."""
        wake: float | None = None
        if self.machine.stepping:
            wake = self._step()
            if self.machine.encoding and not (self._storage is not None and self._storage.behind):
                wake = self._encode(wake)
        now = time.monotonic_ns()
        if now >= self._next_report:
            self._report(now)
        self._carry_out()
        if self.exit_reason is None:
            self._poll(0.0 if wake == 0.0 else self._timeout(wake, now))
            self._carry_out()

    def _poll(self, timeout: float) -> None:
        """Closes on those who did not prove themselves in time, and serves the sockets."""
        if self.listener.next_deadline is not None:
            now = time.monotonic()
            held_up = now - self.loop.looked_at
            if held_up > HELD_UP_SECONDS:
                self.listener.excuse(held_up)
            self.listener.expire(now)
        self.loop.poll(timeout)

    def _step(self) -> float | None:
        """Steps the most downstream task that can be. How long the worker may sleep now, in seconds: 0 when something
        was done, None when only a message can give work."""
        wakes: list[int] = []
        for task in self.machine.tasks():
            start = time.perf_counter_ns()
            cuts = task.cuts
            idle = self._step_task(task)
            if idle is None:
                took = time.perf_counter_ns() - start
                self._worked += took
                if task.cuts != cuts:
                    self.machine.freeze_took(task, took // 1000)
                ident = task.id.vertex
                self._busy[ident] = self._busy.get(ident, 0) + took
                self._budget(task).learn(task.last_count, took)
                return 0.0
            if idle.wake_at is not None:
                wakes.append(idle.wake_at)
            if not self.machine.stepping:
                return 0.0
        if self.machine.flush():
            return 0.0
        if not wakes:
            return None
        return max(0.0, min(wakes) / 1e6 - time.time())

    def _encode(self, wake: float | None) -> float:
        """Encodes a portion of a snapshot: whenever there is nothing else to do, else for its share of the time."""
        if wake == 0.0 and self._encoded * (1 - ENCODE_SHARE) > self._worked * ENCODE_SHARE:
            return 0.0
        start = time.perf_counter_ns()
        limit = self._encode_budget.records
        self.machine.encode(time.time_ns() // 1000, limit)
        took = time.perf_counter_ns() - start
        self._encode_budget.learn(limit, took)
        self._encoded += took
        if not self.machine.encoding:
            self._encoded = self._worked = 0
        return 0.0

    def _step_task(self, task: Task) -> Idle | None:
        return self.machine.step(task, time.time_ns() // 1000, self._budget(task).records)

    def _budget(self, task: Task) -> Budget:
        budget = self._budgets.get(task.id.vertex)
        if budget is None:
            budget = self._budgets[task.id.vertex] = Budget()
        return budget

    def _timeout(self, wake: float | None, now: int) -> float:
        """How long to wait for sockets: until the tasks' wake-up, the next report, or a handshake's deadline."""
        timeout = max(0.0, (self._next_report - now) / 1e9)
        if wake is not None:
            timeout = min(timeout, wake)
        deadline = self.listener.next_deadline
        return timeout if deadline is None else max(0.0, min(timeout, deadline - time.monotonic()))

    def _report(self, now: int) -> None:
        self._next_report = now + REPORT_NANOS
        refused = {reason.value: count for reason, count in self.listener.refused.items() if count}
        if self._bad_peers:
            refused["no peer of this job"] = self._bad_peers
        busy = {vertex: nanos // 1000 for vertex, nanos in self._busy.items()}
        self.machine.report(busy, (now - self._started) // 1000, refused)

    # Actions.

    def _carry_out(self) -> None:
        """Carries out the machine's actions; then everything queued goes as far as the sockets take it."""
        machine = self.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                if isinstance(action, ToPeer):
                    link = self.peers.get(action.slot)
                    if link is not None:
                        self._send(link, FRAME, action.data)
                elif isinstance(action, ToCoordinator):
                    if isinstance(action.message, deployment.SubtasksFinished):
                        self._report(time.monotonic_ns())
                    try:
                        self._send(self.control, CONTROL, wire.encode(action.message))
                    except TooLarge as error:
                        self.machine.cannot_say(action.message, str(error))
                elif isinstance(action, ConnectPeers):
                    self._connect(action.peers)
                elif isinstance(action, ClosePeers):
                    self._close_peers()
                elif isinstance(action, WriteState):
                    self._storing().write(action)
                elif isinstance(action, DropState):
                    self._storing().drop(action)
                elif isinstance(action, ReadState):
                    self._storing().read(action)
                elif isinstance(action, ReadPrepared):
                    self._storing().read_prepared(action)
                else:
                    assert isinstance(action, Exit)
                    self.exit_reason = action.reason
        for link in [self.control, *self.peers.values()]:
            if link.queued_bytes:
                self._flush(link)

    def _storing(self) -> WorkerStorage:
        """The thread for the storage of checkpoints, started when it is first wanted."""
        if self._storage is None:
            self._storage = WorkerStorage(self.machine, self.loop, self._open_store, lambda: time.time_ns() // 1000)
        return self._storage

    def _open_store(self, folder: str | None) -> Any:
        spec = self.machine.spec
        assert spec is not None
        if folder is not None:  # where it starts from; the job itself may take no checkpoints
            return Store.at(folder, spec.storage_options)
        assert spec.checkpoint_dir is not None
        return Store(spec.checkpoint_dir, spec.job, spec.storage_options)

    def _make_backend(self, spec: JobSpec, uid: str, subtask: int) -> Backend:
        """The backend for the keyed state of one operator."""
        groups, allowed = spec.plan.graph.max_parallelism, spec.allow_dropped_state
        if spec.state_backend == "memory":
            return MemoryBackend(uid=uid, subtask=subtask, max_parallelism=groups, allow_dropped=allowed)
        from tailrace.storage.disk import DiskBackend

        if self.scratch is None:
            self.scratch = Scratch()
        self._backends += 1
        folder = os.path.join(self.scratch.path, str(self._backends))
        return DiskBackend(folder, uid=uid, subtask=subtask, max_parallelism=groups, allow_dropped=allowed)

    def _close_peers(self) -> None:
        """The attempt is over, and with it its links."""
        for link in [*self.peers.values(), *[link for _, link in self._early]]:
            self._forget(link)
        self.peers, self._early = {}, []
        self._expected, self._connected = None, False
        self._budgets, self._busy = {}, {}
        self._encoded = self._worked = 0

    def _send(self, link: Link, kind: int, data: bytes) -> None:
        try:
            link.send(kind, data)
        except LinkError as error:
            self._lost(link, error)

    def _flush(self, link: Link) -> None:
        try:
            link.flush()
        except LinkError as error:
            self._lost(link, error)
            return
        self._watch(link)

    def _say_goodbye(self) -> None:
        """What was said last still goes, for a short while."""
        deadline = time.monotonic() + 1.0
        while self.control.fileno() >= 0 and self.control.queued_bytes and time.monotonic() < deadline:
            try:
                self.control.flush()
            except LinkError:
                return
            self.loop.poll(0.01)

    def _tell_of_closing(self) -> None:
        """What user functions raised when they were closed fails no job, but somebody should know."""
        for error in self.machine.close_errors:
            print(f"tailrace: closing a function of worker {self.config.slot} raised", file=sys.stderr)
            traceback.print_exception(error)

    # Links.

    def _register(self, link: Link, ready: Callable[[], None]) -> None:
        self._links[link] = ready
        self.loop.register(link, selectors.EVENT_READ, functools.partial(self._ready, link))

    def _watch(self, link: Link) -> None:
        """Asks for writability exactly while something is queued."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        if link in self._links and link.watched != wanted:
            self.loop.modify(link, wanted, functools.partial(self._ready, link))
            link.watched = wanted

    def _ready(self, link: Link, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(link)
        if mask & selectors.EVENT_READ and link in self._links:
            self._links[link]()

    def _forget(self, link: Link) -> None:
        if self._links.pop(link, None) is not None:
            self.loop.unregister(link)
        link.close()

    def _control_ready(self) -> None:
        try:
            messages = self.control.readable()
        except LinkError as error:
            self._lost(self.control, error)
            return
        for _, payload in messages:
            try:
                self.machine.control(wire.decode(payload))
            except ProtocolViolation as error:
                self.machine.coordinator_lost(str(error))

    def _lost(self, link: Link, error: LinkError) -> None:
        """A link is of no more use."""
        self._forget(link)
        if link is self.control:
            self.machine.coordinator_lost(error.reason)
            return
        for slot, known in list(self.peers.items()):
            if known is link:
                del self.peers[slot]
                self.machine.peer_lost(slot, error.reason)

    # Peers.

    def _connect(self, peers: tuple[Peer, ...]) -> None:
        """The lower slot dials the higher one; the highest only serves, so this ends by induction."""
        self._expected = {peer.slot: peer for peer in peers}
        for peer in peers:
            if peer.slot > self.config.slot:
                try:
                    link = self._dial_peer(peer)
                except DialFailed as error:
                    self.machine.cannot_connect(f"cannot reach worker {peer.slot} at {peer.host}:{peer.port}: {error}")
                    return
                config = self.config
                hello = PeerHello(config.slot, self.machine.epoch, self.machine.incarnation, config.job)
                link.send(CONTROL, wire.encode(hello))
                self._adopt(peer.slot, link)
                self._flush(link)
        early, self._early = self._early, []
        for hello, link in early:
            if link in self._links:  # else it was refused, or hung up
                self._greeted(hello, link)
        self._maybe_connected()

    def _dial_peer(self, peer: Peer) -> Link:
        """A link to another worker, which may still be busy with opening the user's functions. This worker serves nobody
        meanwhile; its other thread notices when the job is over."""
        return self._dial((peer.host, peer.port), f"worker {peer.slot}", OPEN_SECONDS)

    def _dial(self, address: tuple[str, int], peer: str, patience: float | None = None) -> Link:
        """A link to somebody, also where strangers in great numbers are at the door."""
        for attempt in range(1, DIAL_TRIES):
            with contextlib.suppress(HungUp):
                return dial(address, self.config.token, DIAL_SECONDS, peer=peer, patience=patience)
            time.sleep(DIAL_PAUSE * attempt)
        return dial(address, self.config.token, DIAL_SECONDS, peer=peer, patience=patience)

    def _incoming(self, link: Link) -> None:
        """Somebody knows the token; the first message must say which worker it is."""
        self._register(link, functools.partial(self._first_message, link))

    def _first_message(self, link: Link) -> None:
        try:
            messages = link.readable()
            if not messages:
                return
            hello = wire.decode(messages[0][1]) if messages[0][0] == CONTROL else None
        except (LinkError, ProtocolViolation):
            self._refuse(link)
            return
        if not isinstance(hello, PeerHello) or hello.job != self.config.job:
            self._refuse(link)
            return
        rest = messages[1:]
        self._links[link] = functools.partial(self._early_frames, link, rest)
        if self._expected is None:
            self._early.append((hello, link))
        else:
            self._greeted(hello, link)

    def _early_frames(self, link: Link, kept: list[tuple[int, bytes]]) -> None:
        """Before the peer is known nobody may send frames; it waits for `Start` as we do."""
        try:
            kept.extend(link.readable())
        except LinkError:
            self._forget(link)
            return
        if kept:
            self._refuse(link)

    def _greeted(self, hello: PeerHello, link: Link) -> None:
        assert self._expected is not None
        peer = self._expected.get(hello.slot)
        known = peer is not None and peer.epoch == hello.epoch and hello.incarnation == self.machine.incarnation
        if not known or hello.slot >= self.config.slot or hello.slot in self.peers:
            self._refuse(link)
            return
        link.peer = f"worker {hello.slot}"
        self._adopt(hello.slot, link)
        self._maybe_connected()

    def _refuse(self, link: Link) -> None:
        self._bad_peers += 1
        self._forget(link)

    def _adopt(self, slot: int, link: Link) -> None:
        self.peers[slot] = link
        ready = functools.partial(self._peer_ready, slot, link)
        if link in self._links:
            self._links[link] = ready
        else:
            self._register(link, ready)

    def _maybe_connected(self) -> None:
        if not self._connected and self._expected is not None and set(self._expected) == set(self.peers):
            self._connected = True
            self.machine.peers_connected()

    def _peer_ready(self, slot: int, link: Link) -> None:
        try:
            messages = link.readable()
        except LinkError as error:
            self._lost(link, error)
            return
        for kind, payload in messages:
            if kind != FRAME:
                self._lost(link, LinkError(link.peer, "sent a control message where only frames may come"))
                return
            self.machine.frame(payload, slot)

    # The other thread.

    def _beat(self) -> None:
        """Gives signs of life until the coordinator closes the link: then the job is over, and user code that has not
        come back after a grace period is ended with the process."""
        try:
            link = self._dial(self.config.address, "the coordinator")
        except DialFailed:
            return
        sock = self._heart = link.detach()
        sock.settimeout(HEARTBEAT_SECONDS)
        payload = wire.encode(Heartbeat(self.config.slot, os.getpid()))
        message = len(payload).to_bytes(4, "little") + bytes([CONTROL]) + payload
        try:
            while not self.done.is_set():
                sock.sendall(message)
                try:
                    if not sock.recv(1):
                        break
                except TimeoutError:
                    continue
        except OSError:
            pass  # the coordinator is gone: the same as if it had closed
        finally:
            sock.close()
        if not self.done.wait(GRACE_SECONDS):
            os.kill(os.getpid(), signal.SIGKILL)

    def _close(self) -> None:
        if self._storage is not None:
            self._storage.close()
        if self.scratch is not None:
            self.scratch.close()
        self.listener.close()
        for link in [self.control, *self._links]:
            self._forget(link)
        self.loop.close()


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Python looks for garbage cycles each 700 new objects, and a stream makes millions that are in none: looking for
    them costs a third of the throughput. The process is used again by others, so its settings come back."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        gc.collect()


def _allow_many_files() -> None:
    """A source has all its splits open at once, which may be more than a shell allows its processes by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _no_breakpoint(*args: object, **options: object) -> NoReturn:
    raise ConfigError(
        "breakpoint() needs a terminal, and a worker is a process of Spark without one; run the dataflow in the calling "
        "process: tr.testing.run(env)"
    )


def run_worker(config: WorkerConfig, load: Callable[[bytes], JobSpec]) -> str:
    """The whole life of a worker in this process and thread. Returns why it left; raises what nobody should raise."""
    _allow_many_files()
    if os.environ.get("PYTHONBREAKPOINT") is None:  # who has set it knows what follows
        sys.breakpointhook = _no_breakpoint
    return WorkerProcess(config, load).run()
