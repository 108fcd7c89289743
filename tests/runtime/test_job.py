"""A coordinator and its workers over real sockets, without Spark: the workers are threads of the test."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.actions import WasPublished
from tailrace.coordinator.checkpoint_stats import SavepointStats
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.view import progress
from tailrace.coordinator.view.progress import stalled_figures
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Deploy, Heartbeat, Hello, PeerHello
from tailrace.runtime.driver import coordinator as coordinator_module
from tailrace.runtime.driver import inspecting
from tailrace.runtime.driver.control import jobs, query
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.user_requests import InspectWorkers, WishFuture
from tailrace.runtime.job import Job
from tailrace.runtime.network import link, tls
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.link import CONTROL, Link
from tailrace.runtime.network.listener import DialFailed, Listener, dial
from tailrace.runtime.network.securelink import SecureLink
from tailrace.runtime.worker import heartbeat, watchdog
from tailrace.runtime.worker import main_loop as worker_module
from tailrace.runtime.worker.main_loop import WorkerProcess
from tailrace.spark.shipping.plan_files import dump_job, load_job
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.slice.machine import Slice
from tests.ports import free_ports
from tests.runtime import bells


class Threads:
    """Gives each slot a thread. `late` is how long after its end the worker's links stay open."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.configs: list[WorkerConfig] = []
        self.killed: list[int] = []
        self.launching = True

    def watch(self, leaving: Any, room: Any = None) -> None: ...

    def executor(self, slot: int, launch: int) -> str | None: ...

    def listen_at(self) -> Binding:
        return Binding("127.0.0.1")

    def launch(self, config: WorkerConfig, ended: Callable[[int, str | None, bool], None]) -> None:
        self.configs.append(config)
        thread = threading.Thread(target=self._keep, args=(config, ended), name=f"slot {config.slot}", daemon=True)
        self.threads.append(thread)
        if self.launching:
            thread.start()

    def _keep(self, config: WorkerConfig, ended: Callable[[int, str | None, bool], None]) -> None:
        error = None
        try:
            WorkerProcess(config, load_job).run()
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        ended(config.slot, error, False)

    def lives(self) -> bool:
        return True

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        self.killed.append(slot)

    def close(self, timeout: float) -> None:
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(timeout)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_an_address_that_is_none_of_this_machine_is_a_wrong_setting(host: str) -> None:
    """The variable or the setting of Spark was wrong, and the error was only that an address cannot be assigned."""
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Callback(lambda record: None))
    plan = env._plan(env._pending())
    provider = Threads()
    provider.listen_at = lambda: Binding(host)  # type: ignore[method-assign]
    machine = Coordinator("job", 1, plan.slots, b"", run_id="run")
    with pytest.raises(tr.ConfigError, match=f"reach this process at {host}: .* TAILRACE_DRIVER_HOST"):
        JobRunner(machine, provider, ProgramMonitor("job", "id", plan))


def test_a_job_and_its_workers_listen_at_the_ports_that_are_allowed(
    started: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = free_ports(3)
    monkeypatch.setattr(Threads, "listen_at", lambda self: Binding("127.0.0.1", ports=ports))
    env = tr.Environment(parallelism=2)
    env.from_source(tr.sources.Sequence(0, 10)).rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    running = started(env)
    assert running.start(running=False).await_termination(20)
    assert sorted(int(line) for file in tmp_path.glob("part-*") for line in file.open()) == list(range(10))
    assert {config.address[1] for config in running.provider.configs} == {ports[0]}


def test_every_connection_of_a_job_is_encrypted_where_that_is_requested(
    started: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To the coordinator, between workers, and of the threads that give signs of life: none of them is a plain link."""
    made = tls.make()
    monkeypatch.setattr(Threads, "listen_at", lambda self: Binding("127.0.0.1", tls=made))
    plain: list[str] = []
    making = Link.__init__

    def watched(self: Link, sock: socket.socket, peer: str | None = None) -> None:
        making(self, sock, peer)
        if not isinstance(self, SecureLink):
            plain.append(self.peer)

    monkeypatch.setattr(Link, "__init__", watched)
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 10_000)).key_by(lambda i: i % 100).count()
    numbers.map(lambda pair: pair[1]).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    running = started(env)
    assert running.start(running=False).await_termination(20)
    counts = [int(line) for file in tmp_path.glob("part-*") for line in file.open()]
    assert (len(counts), sum(counts)) == (10_000, 100 * sum(range(1, 101)))
    assert plain == [] and all(config.tls == made for config in running.provider.configs)


def test_too_few_ports_are_reported_with_the_setting(
    started: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = ports = free_ports(1)
    monkeypatch.setattr(Threads, "listen_at", lambda self: Binding("127.0.0.1", ports=ports))
    env = tr.Environment(parallelism=1, restart=tr.FixedDelay(attempts=0))
    env.from_collection([1]).sink_to(tr.sinks.Callback(lambda record: None))
    data = failure(started(env).start(running=False))
    assert f"worker 0 cannot listen at 127.0.0.1, port {port}, by TAILRACE_PORTS" in data


class Running:
    """A job of an environment, on threads."""

    def __init__(self, env: tr.Environment, limits: Limits | None = None, **hooks: Any) -> None:
        plan = env._plan(env._pending())
        self.provider = Threads()
        spec = JobSpec("job", 1, plan, env.memory, "run")
        machine = Coordinator("job", 1, plan.slots, dump_job(spec), limits, run_id="run")
        self.monitor = ProgramMonitor("job", "id", plan, **hooks)
        self.runner = JobRunner(machine, self.provider, self.monitor)
        self.job = Job(self.runner, self.monitor)

    def start(self, *, running: bool = True) -> Job:
        self.runner.start()
        deadline = time.monotonic() + 20
        while running and str(self.job.status) in ("CREATED", "STARTING") and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.job


@pytest.fixture
def started() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(*args: Any, **hooks: Any) -> Running:
        made.append(Running(*args, **hooks))
        return made[-1]

    yield make
    for one in made:
        one.job.cancel()
        if one.runner.ident is None:
            one.runner._finish()
        else:
            one.runner.join(30)
            assert not one.runner.is_alive()


@pytest.fixture(autouse=True)
def _no_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker that does not come back ends its process, which is that of the test here.
    monkeypatch.setattr(worker_module.os, "kill", lambda *args: None)


def endless(out: Path, parallelism: int = 2) -> tr.Environment:
    env = tr.Environment(parallelism=parallelism)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=1000))
    numbers.rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles(str(out)))
    return env


def failure(job: Job) -> str:
    with pytest.raises(tr.JobFailed) as caught:
        job.await_termination(20)
    assert str(job.status) == "FAILED"
    return str(caught.value)


def open_sockets() -> int:
    gc.collect()  # what tests before this one have left may go meanwhile
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "anon_inode:"))
    return found


def test_a_job_runs_and_leaves_no_socket(started: Any, tmp_path: Path) -> None:
    before = open_sockets()
    ends: list[Any] = []
    env = tr.Environment(parallelism=3)
    numbers = env.from_source(tr.sources.Sequence(0, 30_000)).key_by(lambda x: x % 100).count()
    numbers.sink_to(tr.sinks.TextFiles(str(tmp_path)))
    running = started(env, on_end=lambda status, kept: ends.append((status, kept)))
    assert running.start().await_termination(30)
    assert [(str(status), kept) for status, kept in ends] == [("FINISHED", {})]
    assert running.runner.machine.course.plan == b""  # the handle may be kept for long
    assert sum(len(file.read_text().splitlines()) for file in tmp_path.iterdir()) == 30_000
    assert open_sockets() == before


def test_a_cancel_that_is_unaligned_without_a_savepoint_is_refused_and_the_job_goes_on(
    started: Any, tmp_path: Path
) -> None:
    job = started(endless(tmp_path)).start()
    with pytest.raises(tr.ConfigError, match="give savepoint=True"):
        job.cancel(unaligned=True)
    assert str(job.status) == "RUNNING"


def test_a_folder_for_a_savepoint_that_is_none_is_refused_with_what_to_give(started: Any, tmp_path: Path) -> None:
    job = started(endless(tmp_path)).start()
    for call in (lambda: job.savepoint(True), lambda: job.stop(savepoint=7), lambda: job.cancel(savepoint=7)):
        with pytest.raises(tr.ConfigError, match=r"expected a path or URL, not (True|7); without one"):
            call()
    assert str(job.status) == "RUNNING"


def test_a_savepoint_says_how_its_checkpoint_has_ended(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, made = started(endless(tmp_path)), WishFuture()
    made.set_result(SavepointStats(3, "/there", 5_000_000, 2_000_000, 20, 14, {"count": 14}, "unaligned"))
    monkeypatch.setattr(running.runner, "wish", lambda wish: made)
    savepoint = running.job.savepoint("/there", unaligned=True)
    assert savepoint == tr.Savepoint(3, "/there", 2.0, 20, 14, 5.0, policy="unaligned", inflight={"count": 14})


def test_a_stop_that_comes_while_the_job_ends_by_itself_is_as_good_as_one_behind_it(started: Any) -> None:
    """The coordinator takes no request any more then; that is no error of a caller that requests the end of a job that
    has finished."""
    requested, data = threading.Event(), list[Any]()

    def at_the_end(*_: Any) -> None:
        runner, wish = running.runner, running.runner.wish

        def wished(what: Any) -> Any:
            future = wish(what)
            requested.set()
            return future

        runner.wish = wished
        others.start()
        assert requested.wait(20)

    def stop() -> None:
        try:
            data.append(running.job.stop(timeout=20))
        except tr.CheckpointError as error:
            data.append(error)

    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Callback(lambda record: None))
    others = threading.Thread(target=stop)
    running = started(env, on_end=at_the_end)
    assert running.start(running=False).await_termination(20)
    others.join(20)
    assert requested.is_set() and data == [None]


def test_another_terminal_shows_a_job_and_cancels_it(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of its own answers, from the view of the runner. A cancel is answered when the job has ended."""
    monkeypatch.setenv(
        "TAILRACE_CONTROL_DIR", tempfile.mkdtemp(prefix="tr-")
    )  # a short path: sockets have no long ones
    job = started(endless(tmp_path)).start()
    [(path, who)] = jobs()
    assert (who["name"], who["id"], who["status"]) == ("job", "id", "RUNNING")
    assert query(path, {"verb": "place"}, 20) == {"checkpoints": None}
    shown = query(path, {"verb": "snapshot", "subtasks": True}, 20)
    assert shown is not None and len(shown["slices"]) == 2 and shown["job"]["workers"] == 2
    assert query(path, {"verb": "checkpoint"}, 20) == {"error": str(refusal_of_a_checkpoint(job))}
    assert query(path, {"verb": "cancel"}, 20) == {"status": "CANCELLED"}
    job.await_termination(20)  # the door is closed behind the answer
    assert str(job.status) == "CANCELLED" and list(jobs()) == []


def refusal_of_a_checkpoint(job: Job) -> tr.CheckpointError:
    with pytest.raises(tr.CheckpointError, match="takes no checkpoints") as caught:
        job.checkpoint(20)
    return caught.value


def test_a_fault_of_ours_is_reported_with_its_traceback(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(self: Slice, frame: Any, peer: int) -> None:
        raise RuntimeError("not thought of")

    monkeypatch.setattr(Slice, "receive", receive)
    text = failure(started(endless(tmp_path)).start())
    assert "inside tailrace" in text and "RuntimeError: not thought of" in text and "in receive" in text


def test_a_worker_that_breaks_the_protocol_is_named(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = WorkerProcess._send

    def torn(self: WorkerProcess, link: Any, kind: int, data: bytes) -> None:
        send(self, link, kind, data[:-1] if self.config.slot == 0 and kind != CONTROL else data)

    monkeypatch.setattr(WorkerProcess, "_send", torn)
    assert "worker 0 broke the protocol" in failure(started(endless(tmp_path)).start())


@pytest.mark.parametrize(
    "data", [b"\x00" * 5, struct.pack("<IB", 1 << 31, 2), struct.pack("<IB", 3, CONTROL) + b"abc"], ids=repr
)
def test_a_worker_that_talks_nonsense_to_the_coordinator_is_named(started: Any, tmp_path: Path, data: bytes) -> None:
    running = started(endless(tmp_path, 1))
    job = running.start()
    link = running.runner._workers.links[0, 1]
    with socket.socket(fileno=os.dup(_other_end(link))) as theirs:
        theirs.setblocking(True)
        theirs.sendall(data)
    assert re.search("worker 0 .*lost|lost.* worker 0", failure(job))


def _other_end(link: Any) -> int:
    """The worker's socket of a link to the coordinator; both are of this process."""
    expected = link._sock.getpeername()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
            if sock.getsockname() == expected and sock.getpeername() == link._sock.getsockname():
                return fd
    raise AssertionError("not found")


def test_a_fault_of_the_coordinator_fails_the_job(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_sockets()
    running = started(endless(tmp_path))
    job = running.start()

    def tick(self: Coordinator, now: int) -> None:
        raise RuntimeError("not thought of")

    monkeypatch.setattr(Coordinator, "tick", tick)
    text = failure(job)
    assert "failed inside tailrace" in text and "RuntimeError: not thought of" in text
    assert running.provider.killed == [0, 1]
    assert open_sockets() == before  # the workers left when they lost it


def test_a_display_or_a_clean_up_that_breaks_breaks_nothing(started: Any, tmp_path: Path) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("broken")

    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Sequence(0, 1500, rate=1000)).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    assert started(env, on_progress=broken, on_end=broken).start().await_termination(20)


def test_a_job_goes_on_while_a_sink_is_told_that_it_published(started: Any, tmp_path: Path) -> None:
    """`published` of a sink of tables refreshes the table, which takes seconds with a cold catalogue: no checkpoint was
    taken and no progress reported meanwhile. A job that has finished does wait for it: a reader of the table finds
    all."""
    begun, GO_ON = threading.Event(), threading.Event()

    def published() -> None:
        begun.set()
        assert GO_ON.wait(20)

    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Sequence(0, 10)).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    calls = [("the sink", published)]
    running = started(env, on_published=calls)
    running.monitor.receive(WasPublished())
    assert begun.wait(20)
    job = running.start(running=False)
    while str(running.runner.machine.status) != "FINISHED":
        assert not job._runner.monitor.ended.wait(0.01)
    assert job.is_active  # all its work is done, while `published` has not come back
    GO_ON.set()
    assert job.await_termination(20)


def test_a_fault_at_the_very_end_does_not_hide_the_end(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the job's end waited for ever when the tidying up raised, as a slot's thread that could not be
    started made it do."""

    def close(self: Threads, timeout: float) -> None:
        raise RuntimeError("cannot join thread before it is started")

    monkeypatch.setattr(Threads, "close", close)
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    assert "cannot join thread" in failure(started(env).start(running=False))


def test_the_end_waits_for_processes_that_outlive_their_spark_job(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cancelled Spark job is over at once, its process seconds later.
    close = WorkerProcess._close

    def late(self: WorkerProcess) -> None:
        time.sleep(1.0)
        closed.append(self.config.slot)
        close(self)

    def ends_early(self: Threads, config: WorkerConfig, ended: Any) -> None:
        thread = threading.Thread(target=WorkerProcess(config, load_job).run)
        self.threads.append(thread)
        thread.start()
        left.wait(20)
        ended(config.slot, None, False)

    closed: list[int] = []
    left = threading.Event()
    monkeypatch.setattr(WorkerProcess, "_close", late)
    monkeypatch.setattr(Threads, "_keep", ends_early)
    job = started(endless(tmp_path)).start()
    requested = time.monotonic()
    left.set()
    job.cancel()
    assert job.await_termination(20)
    assert sorted(closed) == [0, 1]
    assert 0.9 < time.monotonic() - requested < 4


def test_somebody_cancels_what_runs_a_worker(started: Any, tmp_path: Path) -> None:
    job = started(endless(tmp_path)).start()
    runner = job._runner
    runner._loop.call_soon_threadsafe(lambda: runner.machine.slot_ended(0, "killed in the UI", 0, cancelled=True))
    assert job.await_termination(20)
    assert str(job.status) == "CANCELLED"


def test_hearts_that_beat_twice_before_they_are_looked_at(started: Any, tmp_path: Path) -> None:
    running = started(endless(tmp_path, 1), limits=Limits(slots=3_000_000))
    running.provider.launching = False
    running.start(running=False)
    while not running.provider.configs:
        time.sleep(0.005)
    config = running.provider.configs[0]
    sock = dial(config.address, config.token, 5.0).detach()
    with sock:
        body = message_codec.encode(Heartbeat(0, os.getpid()))
        sock.sendall(2 * (struct.pack("<IB", len(body), CONTROL) + body))
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)  # it is not hung up on
    running.job.cancel()
    running.provider.threads[0].start()  # comes too late, is not needed, and leaves
    assert running.job.await_termination(20)


# A coordinator whose process is stopped.


def test_nobody_is_late_because_the_driver_was_stopped(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that goes on after SIGSTOP, or Ctrl-Z, finds every deadline in the past: its workers had been silent for
    longer than their lease, and the storage had not answered a commit, since its own thread was stopped, too.

    The clock stands still behind the leap until all have sent something: the driver waits for them for a fraction of a
    second here, and on a machine that has other things to do a thread gets less than that."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(coordinator_module, "STOPPED_SECONDS", 0.3)
    job = started(endless(tmp_path)).start()
    runner, slots = job._runner, job._runner.machine.roster.slots
    real = time.monotonic_ns
    began, hour = real(), 3600 * 10**9
    leaps: list[int] = []
    """When it was, and when the clock went on behind it."""

    def nanos() -> int:
        if not leaps:
            return real()
        if len(leaps) == 1 and all(slot.received_at * 1000 > began + hour for slot in slots):
            leaps.append(real())
        return leaps[0] + hour + (real() - leaps[1] if len(leaps) > 1 else 0)

    def stopped() -> None:  # behind the beats so far: an hour later, and no worker has sent anything since
        leaps.append(real())

    monkeypatch.setattr(time, "monotonic_ns", nanos)
    monkeypatch.setattr(time, "monotonic", lambda: nanos() / 1e9)
    ticks: list[int] = []
    tick = runner.machine.tick
    monkeypatch.setattr(runner.machine, "tick", lambda now: (ticks.append(now), tick(now)))
    runner._loop.call_soon_threadsafe(stopped)
    deadline = real() + 60 * 10**9
    while not (ticks and ticks[-1] * 1000 > began + hour):
        assert job.is_active and real() < deadline, job.exception()
        time.sleep(0.005)
    assert str(job.status) == "RUNNING" and job.restarts == 0, runner.machine.cause


def test_a_machine_on_which_each_turn_is_late_still_keeps_its_deadlines(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = started(endless(tmp_path)).runner
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    patient = []
    for _ in range(8):
        now += 10 * coordinator_module.STOPPED_SECONDS
        patient.append(runner._was_stopped(0.5))
    assert patient == [False, True, False, True, False, True, False, True]


def test_a_worker_keeps_no_reports_for_a_coordinator_that_does_not_read(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half second one more of them was in the memory of every worker."""
    monkeypatch.setattr(link, "SOCKET_BYTES", 4096)
    link._grants.cache_clear()
    monkeypatch.setattr(worker_module, "REPORT_NANOS", 100_000)
    monkeypatch.setattr(worker_module, "UNREAD_BYTES", 4000)
    queued: list[int] = []
    report_if_read = WorkerProcess._report_if_read

    def watched(self: WorkerProcess, now: int) -> None:
        report_if_read(self, now)
        queued.append(self.control.queued_bytes)

    monkeypatch.setattr(WorkerProcess, "_report_if_read", watched)
    job = started(endless(tmp_path)).start()
    goes_on = threading.Event()
    job._runner._loop.call_soon_threadsafe(lambda: goes_on.wait(60))
    try:
        deadline = time.monotonic() + 30
        while sum(size >= 4000 for size in queued[-200:]) < 100:
            assert time.monotonic() < deadline, queued[-10:]
            time.sleep(0.01)
        assert max(queued) < 8000
    finally:
        goes_on.set()
        link._grants.cache_clear()
    read = len(queued)
    while not any(size < 4000 for size in queued[read:]):
        assert job.is_active and time.monotonic() < deadline
        time.sleep(0.005)


def test_a_heart_goes_on_beating_for_a_coordinator_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its beats had filled the socket, a worker took the coordinator for gone, and ended its own process. Those who
    read later find whole messages."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    tried: list[int] = []

    class Narrow(socket.socket):
        """As a socket of TCP, it takes a part of a message where there is no room for all of it."""

        def send(self, data: Any, *flags: int) -> int:
            tried.append(len(data))
            return super().send(data[:5], *flags)

    narrow = Narrow(fileno=ours.detach())
    monkeypatch.setattr(heartbeat, "reach", lambda *data: SimpleNamespace(detach=lambda: narrow))
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.001)
    ended: list[int] = []
    monkeypatch.setattr(heartbeat.os, "kill", lambda pid, number: ended.append(pid))
    beating = heartbeat.Heart(WorkerConfig(3, "job", 1, ("host", 1), bytes(32)))
    beating.start()
    deadline = time.monotonic() + 30
    while len(tried) < 20 or len(set(tried[-10:])) > 1:  # no room: it tries the same again and again
        assert beating.is_alive() and time.monotonic() < deadline, tried[-20:]
        time.sleep(0.005)
    theirs.settimeout(10)
    messages = b""
    while messages.count(b"Heartbeat") < 5 or len(tried) < 5:
        messages += theirs.recv(4096)
    beating.spare()
    theirs.close()
    beating.join(10)
    assert not beating.is_alive() and not ended
    size = int.from_bytes(messages[:4], "little") + 5
    beats = [messages[at : at + size] for at in range(0, len(messages) - size, size)]
    assert len(beats) >= 3 and all(
        message_codec.decode_greeting(beat[5:]) == Heartbeat(3, os.getpid()) for beat in beats
    )


def test_a_worker_without_a_coordinator_says_where_it_looked(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
        with pytest.raises(DialFailed, match=r"the coordinator|127\.0\.0\.1"):
            WorkerProcess(WorkerConfig(0, "job", 1, address, bytes(32)), load_job)


def test_worker_closes_every_connection_when_it_leaves(started: Any, tmp_path: Path) -> None:
    before = open_sockets()
    running = started(endless(tmp_path))
    job = running.start()
    token = running.provider.configs[0].token
    held = []
    for slot in running.runner.machine.roster.slots:
        silent = dial((slot.hello.host, slot.hello.port), token, 5.0).detach()  # knows the token, sends nothing
        early = dial((slot.hello.host, slot.hello.port), token, 5.0).detach()
        body = message_codec.encode(PeerHello(0, 99, 1, "job"))
        early.sendall(struct.pack("<IB", len(body), CONTROL) + body)
        held += [silent, early]
    time.sleep(0.3)
    job.cancel()
    assert job.await_termination(20)
    for sock in held:
        sock.close()
    assert open_sockets() == before


def test_a_peer_may_dial_while_user_code_opens(started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The worst moment: the peer is accepted in the same round in which the worker goes away to open its functions.
    class Slow(tr.MapFunction):
        def open(self, ctx: Any) -> None:
            time.sleep(0.8 * ctx.subtask)

        def map(self, value: int) -> int:
            return value

    init = Listener.__init__
    monkeypatch.setattr(Listener, "__init__", lambda *a, **k: init(*a, **{**k, "handshake_seconds": 0.3}))
    accept, readable, ready = Listener.accept_ready, Link.readable, WorkerProcess._control_ready
    workers: dict[Link, WorkerProcess] = {}
    deployed: list[Listener] = []

    def accept_ready(self: Listener) -> None:
        listening = [worker.listener for worker in workers.values()]
        if self not in listening or self in deployed:  # a peer that is faster than the deploy waits for this round
            accept(self)

    def control_ready(self: WorkerProcess) -> None:
        workers[self.control] = self
        ready(self)

    def reading(self: Link) -> Any:
        messages, worker = readable(self), workers.get(self)
        if worker is None or not any(
            isinstance(message_codec.decode_to_worker(payload), Deploy) for _, payload in messages
        ):
            return messages
        deployed.append(worker.listener)
        worker.loop.unregister(self)  # the round goes on without it, as if it were the last of this round
        while worker.config.slot and not worker.listener.pending:
            worker.loop.poll(0.01)
        worker.loop.register(self, 1, lambda mask: worker._links._serve(self, mask))
        return messages

    monkeypatch.setattr(Listener, "accept_ready", accept_ready)
    monkeypatch.setattr(Link, "readable", reading)
    monkeypatch.setattr(WorkerProcess, "_control_ready", control_ready)
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 100)).map(Slow()).rebalance().map(lambda x: x)
    numbers.sink_to(tr.sinks.TextFiles(str(tmp_path)))
    assert started(env).start().await_termination(20)
    assert [sum(worker.listener.refused.values()) for worker in workers.values()] == [0, 0]


def test_a_replaced_worker_is_closed_out(started: Any, tmp_path: Path) -> None:
    # Before the job runs the newest hello of a slot wins; the worker before gets no more messages.
    running = started(endless(tmp_path), limits=Limits(slots=4_000_000, leave=500_000, gone=1_000_000))
    running.provider.launching = False
    running.start(running=False)
    while len(running.provider.configs) < 2:
        time.sleep(0.005)
    config = running.provider.configs[0]
    links = []
    for pid in (1, 2):
        link = dial(config.address, config.token, 5.0).detach()
        body = message_codec.encode(Hello(0, "127.0.0.1", 1, pid, "job", 1))
        link.sendall(struct.pack("<IB", len(body), CONTROL) + body)
        link.settimeout(5)
        assert link.recv(100)  # welcome
        links.append(link)
    assert links[0].recv(1) == b""
    links[1].settimeout(0.3)
    with pytest.raises(TimeoutError):
        links[1].recv(1)
    for link in links:
        link.close()
    assert "worker 0 was lost" in failure(running.job)


def test_the_first_cause_is_completed_by_what_spark_says_of_the_same_worker() -> None:
    machine = Coordinator("job", 1, 2, b"", Limits())
    machine.start(0)
    for slot in (0, 1):
        machine.hello(Hello(slot, "h", 1, 1, "job", 1), 1)
    machine.link_lost(1, 1, "closed the connection", 2)
    machine.slot_ended(0, "left as it was told", 3)
    assert machine.cause is not None and machine.cause.message == "worker 1 was lost: closed the connection"
    machine.slot_ended(1, "Fatal Python error", 4)
    assert machine.cause.message == "worker 1 was lost: closed the connection; Spark says: Fatal Python error"
    assert str(machine.status) == "FAILED"


def test_functions_are_closed_before_the_job_is_over_however_long_they_take(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(heartbeat, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(worker_module.os, "kill", lambda *args: killed.append(args))

    class Slow(tr.MapFunction):
        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            time.sleep(1.5)
            (tmp_path / f"closed{id(self)}").touch()

    env = tr.Environment(parallelism=2)
    env.from_source(tr.sources.Sequence(0, 100)).map(Slow()).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
    assert started(env).start().await_termination(20)
    assert len(list(tmp_path.glob("closed*"))) == 2
    assert not killed


def test_what_close_raises_is_reported(started: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Bad(tr.MapFunction):
        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            raise ValueError("cannot close")

    env = tr.Environment(parallelism=1)
    env.from_collection([1]).map(Bad()).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
    assert started(env).start().await_termination(20)
    assert "a user function of worker 0 raised in close" in (calls := capsys.readouterr().err)
    assert "ValueError: cannot close" in calls


def test_a_message_that_is_too_large_fails_the_job_by_name(
    started: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What travels to a worker is more than a message holds, though all that can be known before was checked. The error
    names the message, instead of a broken thread."""
    monkeypatch.setitem(link.LIMITS, link.CONTROL, 1500)
    job = started(endless(tmp_path / "out", 1)).start(running=False)
    with pytest.raises(tr.JobFailed, match=r"Deploy for worker 0 is too large: .* at most 1500 bytes"):
        job.await_termination(20)


# User code that does not come back.

GO_ON, HUNG = threading.Event(), threading.Event()


def hang(n: int) -> int:
    from tests.runtime.test_job import GO_ON  # it cannot be pickled

    if n == 5:
        GO_ON.wait(30)
    return n


class Connects(tr.ProcessFunction):
    def open(self, ctx: Any) -> None:
        from tests.runtime.test_job import GO_ON

        GO_ON.wait(30)

    def process(self, value: Any, ctx: Any) -> Any:
        yield value


def test_a_step_that_does_not_come_back_is_reported_with_its_operator_and_stack(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A deadlock in a `map` looked like a subtask without input: busy 0 %, and figures from when it last came back."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "SHOWN_AFTER", 50_000_000)
    monkeypatch.setattr(watchdog, "TOLD_AFTER", 200_000_000)
    monkeypatch.setattr(progress, "STALLED_MICROS", 200_000)
    GO_ON.clear()
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=1000)).rebalance().filter(lambda n: n > 2)
    numbers.map(hang, name="hangs").map(lambda n: n).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    job = started(env).start()
    deadline = time.monotonic() + 30

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if "has not come back" in one.getMessage()]

    while len(told()) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    subtask = next(one for one in job.metrics()["subtasks"] if "hangs" in one["vertex"])
    assert subtask["under_way_seconds"] >= 0.8 and subtask["busy_seconds"] >= 0.8 and subtask["waits_for"] == ""
    assert subtask["age_seconds"] >= 0.5
    [stalled] = stalled_figures(job._plan, job._runner.view.reports)
    assert stalled["vertex"] == subtask["vertex"] and stalled["seconds"] >= 0.8
    for message in told():
        assert "operator 'hangs', subtask 0: a step has not come back for" in message
        assert "GO_ON.wait(30)" in message and "in hang" in message
        assert "/tailrace/task/" not in message  # the user's own frames only
    GO_ON.set()
    while (one := job.metrics()["subtasks"])[0]["under_way_seconds"] or one[1]["under_way_seconds"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert len(told()) <= 4  # after 0.2, 0.4, 0.8, 1.6 s


class Scores(tr.KeyedProcessFunction):
    def process(self, value: Any, ctx: Any) -> Any:
        from tests.runtime.test_job import GO_ON, HUNG

        HUNG.set()
        GO_ON.wait(60)
        yield value


def test_a_worker_that_hangs_shows_where_it_is_and_on_which_key(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's signs of life may have begun after the request."""
    monkeypatch.setattr(inspecting, "PATIENCE", 30.0)
    GO_ON.clear()
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=1000))
    scored = numbers.key_by(lambda n: "berlin").process(Scores(), name="scores", uid="scores")
    scored.sink_to(tr.sinks.TextFiles(str(tmp_path)))
    job = started(env).start()
    assert HUNG.wait(30)
    found = job._runner.wish(InspectWorkers(0.1)).result(60)
    GO_ON.set()
    [worker] = found["workers"]
    first, *others = worker["threads"]
    assert (worker["worker"], worker["standby"], worker["problem"]) == (0, False, "")
    assert (first["thread"], first["operator"]) == ("worker", "scores")
    assert "GO_ON.wait(60)" in first["stack"] and "in process" in first["stack"]
    assert others and "tailrace-heartbeat" not in {one["thread"] for one in others}, "the thread that looks"
    assert found["keys"] == {"scores": [{"key": "'berlin'", "share": 1.0}]}


def test_opening_that_does_not_come_back_is_reported(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No step is under way then, and the job is STARTING for as long as it takes."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "SHOWN_AFTER", 50_000_000)
    monkeypatch.setattr(watchdog, "TOLD_AFTER", 200_000_000)
    GO_ON.clear()
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(tr.sources.Sequence(0, None, rate=1000)).process(Connects(), name="connects")
    numbers.sink_to(tr.sinks.TextFiles(str(tmp_path)))
    started(env).start(running=False)
    deadline = time.monotonic() + 30
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.005)
    GO_ON.set()
    message = caplog.records[0].getMessage()
    assert "operator 'connects', subtask 0: opening, publishing or closing has not come back for" in message
    assert "GO_ON.wait(30)" in message


def test_an_idle_reader_uses_no_time_and_is_read_when_it_wakes_its_task(started: Any) -> None:
    env = tr.Environment(parallelism=1)
    env.from_source(bells.Bells("idle"), name="bells").sink_to(tr.sinks.Callback(partial(bells.note, "idle")))
    running = started(env)
    job, bell = running.start(), bells.BELLS["idle"]
    wake = bell.wakes.get(timeout=20)
    for number in range(20):
        bell.ring(wake, number)
        assert bell.heard.get(timeout=20) == number
    # A poll each 10 ms would make hundreds. Behind a read of records comes one that finds nothing.
    assert bell.reads <= 2 * 20 + 2
    deadline = time.monotonic() + 20
    while not (found := {k: v for one in job.metrics()["subtasks"] for k, v in one["custom"].items() if "lag" in k}):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert found == {
        "bells.lag_records": 0.0,
        "bells.lag_records[0]": 0.0,
        "bells.lag_seconds": 0.5,
        "bells.lag_seconds[0]": 0.5,
    }
    assert bell.reads <= 2 * 20 + 2
    job.cancel()
    assert job.await_termination(20)
