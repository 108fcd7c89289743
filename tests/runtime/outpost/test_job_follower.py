"""A job whose coordinator is in another process, and the thread that follows it: over real sockets, without Spark. The
workers are threads of the test, and so is the coordinator's process."""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Fixed
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.succession.machine import LoggedCoordinator
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.view_makers import hand_on
from tailrace.log import log
from tailrace.runtime.driver.control import jobs, query
from tailrace.runtime.driver.machine_settings import settings_of
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.eventloop.clock import monotonic_micros
from tailrace.runtime.job import Job
from tailrace.runtime.network.binding import Binding
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.tls import Tls, make
from tailrace.runtime.outpost.hosted_folder import FileRequest, Host, send_request
from tailrace.runtime.outpost.job_follower import CoordinatorGone, CoordinatorNotStarted, Follower, Succession
from tailrace.runtime.outpost.mailbox import Begin, Letter, Mailbox, SlotOver, StoreAt
from tailrace.runtime.outpost.outpost import LETTER, FarSlots, Outpost
from tailrace.runtime.worker.main_loop import WorkerProcess
from tailrace.spark.shipping.plan_files import dump_job
from tailrace.storage.store import Store
from tailrace.task.contract.jobspec import JobSpec
from tests.runtime.test_job import Threads


def test_each_saying_is_heard_once_and_in_order_whatever_becomes_of_letters() -> None:
    one, other = Mailbox(), Mailbox()
    received: list[Any] = []
    one.add("a")
    first = one.letter()
    one.add("b")
    second = one.letter()
    received += other.receive(second)
    received += other.receive(first)  # it was late
    received += other.receive(second)  # and came twice
    one.receive(Mailbox().letter())  # an answer that confirms nothing
    assert received == ["a", "b"] and not one.all_received
    one.add("c")
    received += other.receive(one.letter())
    assert received == ["a", "b", "c"]
    assert not one.receive(other.letter()) and one.all_received and one.letter().said == ()
    one.add("d")
    assert list(other.receive(one.letter())) == ["d"]


class Near:
    """A way to an outpost of this process, on which things go wrong as `faults` decides."""

    def __init__(self, outpost: Outpost) -> None:
        self.outpost = outpost
        self.thread = threading.Thread(target=self._stay, name="outpost", daemon=True)
        self.host: Host = outpost.host
        self.faults: Iterator[str] = iter(())
        self.late: list[tuple[FileRequest, bytes]] = []
        self.lost = self.cancelled = False
        self.left = ""
        self.thread.start()

    def _stay(self) -> None:
        self.left = self.outpost.stay()

    def exchange(self, letter: Letter) -> Letter:
        try:
            return self._exchange(letter)
        except OSError as error:
            raise CoordinatorGone("its process was killed", self.cancelled) from error

    def _exchange(self, letter: Letter) -> Letter:
        if self.lost:
            raise CoordinatorGone("its process was killed", self.cancelled)
        request, data = FileRequest(LETTER), pickle.dumps(letter)
        fault = next(self.faults, "")
        if fault == "answer lost":
            send_request(self.host, request, data)
        elif fault == "late":
            self.late.append((request, data))
        _, found = send_request(self.host, request, data)
        if fault == "" and self.late:
            send_request(self.host, *self.late.pop())
        if self.lost:  # a process that is gone does not answer that its thread has broken
            raise CoordinatorGone("its process was killed", self.cancelled)
        time.sleep(0.005)
        answer: Letter = pickle.loads(found)
        return answer

    def close(self) -> None:
        """Nobody is there any more."""

    def lose(self) -> None:
        """The process is gone, and with it every connection."""
        self.lost = True
        runner = self.outpost._runner
        assert runner is not None
        runner._loop.call_soon_threadsafe(lambda: 1 / 0)  # breaks its thread, which closes its links
        runner.abandoned.set()
        self.outpost.close()


class Far:
    """A job with its coordinator in an outpost."""

    def __init__(
        self,
        env: tr.Environment,
        folder: Path | None = None,
        secure: Tls | None = None,
        standbys: int | None = None,
        waits: bool = False,
        **outpost: Any,
    ) -> None:
        """`waits`: workers wait for another coordinator where theirs is lost."""
        self.tls, self.standbys, self.waits = secure, standbys, waits
        self.not_started = 0
        """Number of coordinators from here on whose Spark job ends before they are there."""
        self.plan = env._plan(env._pending())
        self.provider, self.options = Threads(), outpost
        self.post = self._post()
        self.posts = [self.post]
        self.published: list[int] = []
        found = [("sink", lambda: self.published.append(1))]
        monitor = ProgramMonitor("job", "run", self.plan, on_published=found)
        self.follower = Follower(self.post, self.provider, monitor)
        self.job = Job(self.follower, monitor)
        self.env, self.folder = env, folder
        self.follower.start()

    def _post(self) -> Near:
        return Near(Outpost(Binding("127.0.0.1", tls=self.tls), 1 << 20, **self.options))

    def begin(self) -> Job:
        spec = JobSpec("job", 1, self.plan, self.env.memory, "run", checkpointing=self.folder is not None)
        settings, incarnation, store = None, 1, None
        if self.folder is not None:
            claimed = Store(str(self.folder), "job")
            claimed.make()
            incarnation = claimed.claim("run")
            config = tr.CheckpointConfig(str(self.folder), interval=0.05)
            settings, store = settings_of(config, claimed.url), StoreAt(str(self.folder), "job", None)
            spec = replace(spec, checkpoint_dir=str(self.folder), depth=int(self.standbys is not None))
        machine = (LoggedCoordinator if self.waits else Coordinator)(
            "job",
            incarnation,
            self.plan.slots,
            dump_job(spec),
            run_id="run",
            checkpoints=settings,
            restarts=Fixed(3, 0),
            standbys=self.standbys,
        )
        fresh, succession = pickle.dumps(machine), None
        if store is not None:
            succession = Succession(Fixed(3, 0), lambda why, seen: self._again(fresh, store, why, seen))
        self.follower.begin(Begin(machine, store), succession)
        return self.job

    def _again(self, fresh: bytes, store: StoreAt, why: str, seen: JobView) -> tuple[Near, Begin]:
        store = replace(store, term=len(self.posts))
        if self.not_started:
            self.not_started -= 1
            raise CoordinatorNotStarted("its executor was lost, too")
        self.posts.append(self._post())
        machine = pickle.loads(fresh)
        hand_on(seen, machine)
        return self.posts[-1], Begin(machine, store, why)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert true()


def lines(folder: Path) -> list[int]:
    return sorted(int(line) for file in folder.glob("part-*") for line in file.open())


@pytest.fixture
def flow(tmp_path: Path) -> Callable[..., tr.Environment]:
    def make(count: int | None, rate: float | None = None) -> tr.Environment:
        env = tr.Environment(parallelism=2)
        numbers = env.from_source(tr.sources.Sequence(0, count, rate=rate))
        numbers.rebalance().map(lambda x: x).sink_to(tr.sinks.TextFiles(str(tmp_path / "out")))
        return env

    return make


@pytest.mark.parametrize("secure", [None, make()], ids=["plain", "TLS"])
def test_a_job_runs_and_tells_how_it_went(
    secure: Tls | None, flow: Callable[..., tr.Environment], tmp_path: Path
) -> None:
    """Letters get lost, come late and come twice meanwhile."""
    far = Far(flow(1000), secure=secure)
    far.post.faults = iter(["", "answer lost", "late", "", "late", "answer lost", "late"] * 20)
    job = far.begin()
    assert job.await_termination(20) and job.status is JobStatus.FINISHED and job.restarts == 0
    assert lines(tmp_path / "out") == list(range(1000)) and far.published
    progress = job.last_progress
    assert progress is not None and progress["tailrace"]["totalInputRows"] == 1000
    assert job.metrics()["records_in"] == 1000
    far.post.thread.join(5)
    assert far.post.left == "the program has said farewell"


def test_a_cancelled_job_ends_with_its_coordinator(flow: Callable[..., tr.Environment]) -> None:
    far = Far(flow(None, 100))
    job = far.begin()
    until(lambda: job.status is JobStatus.RUNNING)
    job.cancel()
    assert job.await_termination(20) and job.status is JobStatus.CANCELLED
    far.post.thread.join(5)
    assert not far.post.thread.is_alive()


def test_a_failure_of_user_code_is_reported_as_ever(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection([1, 0]).map(lambda x: 1 // x, name="divided").sink_to(tr.sinks.TextFiles(str(tmp_path)))
    far = Far(env)
    with pytest.raises(tr.JobFailed, match="ZeroDivisionError") as error:
        far.begin().await_termination(20)
    assert error.value.operator == "divided" and error.value.record == "0"


def test_a_checkpoint_is_taken_on_request(flow: Callable[..., tr.Environment], tmp_path: Path) -> None:
    far = Far(flow(None, 100), tmp_path / "checkpoints")
    job = far.begin()
    until(lambda: job.status is JobStatus.RUNNING)
    taken = job.checkpoint(20)
    assert taken.id in [one.id for one in job.checkpoints]
    job.cancel()
    job.await_termination(20)
    with pytest.raises(tr.CheckpointError, match="has ended"):
        job.checkpoint(1)


def test_another_process_of_the_user_finds_the_job_and_has_it_take_a_checkpoint(
    flow: Callable[..., tr.Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tailrace checkpoint` looked for the door of a coordinator on this machine, and there was none. Where the executor is
    on this machine as well, it would now find two of one job."""
    monkeypatch.setenv(
        "TAILRACE_CONTROL_DIR", tempfile.mkdtemp(prefix="tr-")
    )  # a short path: sockets have no long ones
    far = Far(flow(None, 100), tmp_path / "checkpoints")
    job = far.begin()
    until(lambda: job.status is JobStatus.RUNNING)
    [(path, who)] = jobs()
    assert (who["name"], who["id"], who["status"]) == ("job", "run", "RUNNING")
    answer = query(path, {"verb": "checkpoint"}, 20)
    assert answer is not None and answer["path"].startswith(str(tmp_path))
    until(lambda: answer["id"] in [one.id for one in job.checkpoints])
    assert query(path, {"verb": "dance"}, 5) == {"error": "unknown verb 'dance'"}
    job.cancel()
    job.await_termination(20)
    until(lambda: not list(jobs()))
    far.post.thread.join(5)


def test_another_terminal_shows_stops_and_cancels_it(
    flow: Callable[..., tr.Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that ends a job is answered when it has ended."""
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", tempfile.mkdtemp(prefix="tr-"))
    far = Far(flow(None, 100), tmp_path / "checkpoints")
    job = far.begin()
    until(lambda: job.last_progress and job.last_progress["tailrace"]["totalInputRows"])
    [(path, _)] = jobs()
    shown = query(path, {"verb": "snapshot"}, 20)
    assert shown is not None and (shown["job"]["status"], shown["job"]["restarts"]) == ("RUNNING", 0)
    assert shown["job"]["records_in"] and shown["health"] == "good"
    stacks = query(path, {"verb": "stacks"}, 20)
    assert stacks is not None and [one["problem"] for one in stacks["workers"]] == ["", ""]
    assert query(path, {"verb": "keys"}, 20) is not None
    ended = query(path, {"verb": "stop", "savepoint": ""}, 20)
    assert ended is not None and (ended["status"], Path(ended["path"]).is_dir()) == ("FINISHED", True)
    far.post.thread.join(5)
    far = Far(flow(None, 100))
    far.begin()
    until(lambda: [who["status"] for _, who in jobs()] == ["RUNNING"])
    [(path, _)] = jobs()
    assert query(path, {"verb": "cancel"}, 20) == {"status": "CANCELLED"}
    far.post.thread.join(5)


def test_who_follows_a_job_sees_its_slices_and_who_stands_by(
    flow: Callable[..., tr.Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", tempfile.mkdtemp(prefix="tr-"))
    far = Far(flow(None, 100), tmp_path / "checkpoints", standbys=1)
    job = far.begin()

    def figures() -> dict[str, Any]:
        return ((job.last_progress or {}).get("tailrace") or {}).get("standby") or {}

    until(lambda: figures().get("slicesHeld") == 2)
    assert {name: figures()[name] for name in ("ready", "wanted", "replaced")} == {
        "ready": 1,
        "wanted": 1,
        "replaced": 0,
    }
    until(lambda: figures()["logBytes"] > 0)  # none right behind a checkpoint
    first, second = slices = job.slices
    assert [(one.slot, one.host, one.pid, one.attempt) for one in slices] == [
        (slot, "127.0.0.1", os.getpid(), 0) for slot in (0, 1)
    ]
    [standby] = first.standbys
    assert (standby.place, standby.pid, standby.ready) == (2, os.getpid(), True)
    assert standby.behind is not None and [one.place for one in second.standbys] == [2]
    [(path, _)] = jobs()
    shown = query(path, {"verb": "snapshot"}, 20)
    assert shown is not None and shown["standbys"] == [1, 1]
    assert [one["standbys"][0]["place"] for one in shown["slices"]] == [2, 2]
    job.cancel()
    assert job.await_termination(20)
    far.post.thread.join(5)


class Watch(logging.Handler):
    """Calls a function for each line that the program logs, and cancels the job at the end. The coordinator's process is
    another one: a line of its threads is not seen by the program's user."""

    def __init__(self, far: Far, read: Callable[[str], object]) -> None:
        super().__init__()
        self.far, self.read = far, read

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread() is self.far.follower:
            self.read(record.getMessage())

    def __enter__(self) -> None:
        log.addHandler(self)

    def __exit__(self, *error: object) -> None:
        log.removeHandler(self)
        self.far.job.cancel()


def test_the_program_sees_the_replacement_of_a_worker(
    flow: Callable[..., tr.Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log, and in all that the job shows when a line of the log shows it: as with a coordinator in the
    program."""
    monkeypatch.setattr(os, "kill", lambda *args: None)  # a worker that has lost its coordinator ends its process
    workers: dict[int, WorkerProcess] = {}
    run = WorkerProcess.run
    monkeypatch.setattr(WorkerProcess, "run", lambda self: (workers.setdefault(self.config.slot, self), run(self))[1])
    far = Far(flow(None, 100), tmp_path / "checkpoints", standbys=1)
    job, lines = far.begin(), list[tuple[str, tr.SliceStatus]]()
    with Watch(far, lambda line: lines.append((line, job.slices[0]))):
        until(lambda: job.slices and [one.ready for one in job.slices[0].standbys] == [True])
        workers[0].loop.call_soon_threadsafe(lambda: workers[0].control._sock.shutdown(socket.SHUT_RDWR))
        until(lambda: any("is back" in line for line, _ in lines))
        until(lambda: job.last_progress and job.last_progress["tailrace"]["standby"]["replaced"] == 1)
    begun, back = (line for line, _ in lines)
    assert begun.startswith("job 'job': worker 0 is being replaced, and the others go on: worker 0 was lost")
    assert re.fullmatch(r"job 'job': worker 0 is back, [\d.]+ s after its loss was noticed", back)
    assert [(one.being_replaced, one.replaced) for _, one in lines] == [(True, 0), (False, 1)]
    [after] = [one for _, one in lines if one.last_failover is not None]
    assert after.last_failover.total_ms > 0 and job.restarts == 0
    assert job.await_termination(20)
    far.post.thread.join(5)


def test_the_program_reads_what_fails_in_the_storage_of_its_job(
    flow: Callable[..., tr.Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the traceback, which was in the log of an executor."""

    def mark_published(self: Store, path: str) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Store, "mark_published", mark_published)
    far = Far(flow(None, 100), tmp_path / "checkpoints")
    lines: list[str] = []
    with Watch(far, lines.append):  # from the first line on: further ones of its kind are left out for a minute
        job = far.begin()
        until(lambda: lines)
    assert lines[0].startswith("job 'job': could not mark a checkpoint as published\nTraceback")
    assert lines[0].endswith("OSError: the disk is full")
    assert job.await_termination(20)
    far.post.thread.join(5)


def test_who_waits_for_a_checkpoint_of_a_job_that_ends_is_told_so(
    flow: Callable[..., tr.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_CONTROL_DIR", tempfile.mkdtemp(prefix="tr-"))
    far = Far(flow(None, 100))
    job = far.begin()
    until(lambda: job.status is JobStatus.RUNNING)
    [(path, _)] = jobs()
    monkeypatch.setattr(far.post, "exchange", CoordinatorGone)  # nobody brings the request to the coordinator any more
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(query(path, {"verb": "checkpoint"}, 20)))
    asking.start()
    until(lambda: far.follower._waiting or found)
    far.post.lose()
    asking.join(20)
    assert found == [{"error": "job 'job' has ended"}]


def test_a_job_goes_on_from_its_newest_checkpoint_when_its_coordinator_is_lost(
    flow: Callable[..., tr.Environment], tmp_path: Path
) -> None:
    """Another process takes over under a new incarnation: no record is lost, and none comes twice."""
    far = Far(flow(400, 200), tmp_path / "checkpoints")
    job = far.begin()
    until(lambda: len(job.checkpoints) >= 2)
    far.post.lose()
    until(lambda: far.follower._gone or len(far.posts) == 2)
    seen = [one.id for one in job.checkpoints]
    assert len(seen) >= 2, "users go on reading what the lost one has reported"
    assert job.await_termination(30) and job.restarts == 1 and len(far.posts) == 2
    found = [one.id for one in job.checkpoints]
    assert found[: len(seen)] == seen and len(found) > len(seen) and found == sorted(set(found))
    assert (job.last_progress or {})["tailrace"]["checkpoints"]["completed"] == len(found)
    assert lines(tmp_path / "out") == list(range(400))


@pytest.mark.parametrize("times", [1, 3])
def test_workers_go_on_with_another_coordinator_and_nothing_starts_again(
    flow: Callable[..., tr.Environment], tmp_path: Path, times: int
) -> None:
    """Each time. No attempt is counted, the processes stay, and what the program shows goes on. The job is stopped at the
    end: one that came to its end meanwhile would begin once more with its last checkpoint."""
    far = Far(flow(None, 200), tmp_path / "checkpoints", waits=True)
    job = far.begin()
    until(lambda: len(job.checkpoints) >= 2)
    for post in range(2, times + 2):
        seen = job.checkpoints[-1].id
        far.posts[-1].lose()
        until(partial(lambda posts, last: len(far.posts) == posts and job.checkpoints[-1].id > last + 1, post, seen))
    job.stop(drain=True, timeout=30)
    assert job.await_termination(30) and job.restarts == 0 and len(far.posts) == times + 1
    assert [config.slot for config in far.provider.configs] == [0, 1], "no other worker was started"
    found = [one.id for one in job.checkpoints]
    assert found == sorted(set(found))
    written = lines(tmp_path / "out")
    for subtask in range(2):  # each one of the source stops where it is
        own = [number for number in written if number % 2 == subtask]
        assert len(own) > 20 and own == [*range(subtask, own[-1] + 1, 2)]


def test_ends_of_workers_of_a_lost_coordinator_are_not_those_of_its_successor() -> None:
    """Each coordinator that starts all workers again counts the starts of a slot from one: a report of the end of an older
    one, which was under way, was taken for that of the new worker, and all restarted once more."""
    ended: list[tuple[int, str | None]] = []

    def end(slot: int, error: str | None, cancelled: bool, unfit: bool = False) -> None:
        ended.append((slot, error))

    slots = FarSlots(Binding("127.0.0.1"), Mailbox(), era=3, left=[(0, 1), (1, 1)])
    slots.over(SlotOver(1, 1, None, False, False, over=False, era=2))
    assert slots.left == {(0, 1), (1, 1)}, "another coordinator had given that one up"
    slots.forget()
    slots.launch(WorkerConfig(0, "job", 5, ("127.0.0.1", 1), b"", 1), end)
    slots.over(SlotOver(0, 1, "it was killed", False, False, over=False, era=3))
    assert not ended and slots.lives()
    slots.over(SlotOver(0, 1, "it broke", False, False, over=False, era=4))
    assert ended == [(0, "it broke")]


def test_a_worker_that_ends_before_its_coordinator_goes_on_is_not_awaited() -> None:
    """The report may come before the thread of the coordinator has begun: it was dropped, and the wait took 30 s."""
    ended: list[int] = []
    slots = FarSlots(Binding("127.0.0.1"), Mailbox(), left=[(0, 1), (1, 2)])
    slots.over(SlotOver(0, 1, "its executor was lost", False, False, over=False))
    assert slots.left == {(1, 2)}
    assert slots.adopt(lambda launch: lambda slot, *how: ended.append(slot)) == {(1, 2)} and not slots.left
    slots.over(SlotOver(1, 2, None, False, False, over=False))
    assert ended == [1]


@pytest.mark.parametrize("not_started", [2, 3])
def test_a_coordinator_that_is_lost_while_it_starts_is_one_more_loss(
    flow: Callable[..., tr.Environment], tmp_path: Path, not_started: int
) -> None:
    """The strategy allows three. The job failed at the first one, with slots for a coordinator on other executors."""
    far = Far(flow(400, 200), tmp_path / "checkpoints")
    far.not_started = not_started
    job = far.begin()
    until(lambda: len(job.checkpoints) >= 2)
    far.post.lose()
    if not_started < 3:
        assert job.await_termination(30) and len(far.posts) == 2
        assert lines(tmp_path / "out") == list(range(400))
    else:
        with pytest.raises(
            tr.JobFailed, match="its process was killed; its executor was lost, too; its executor was lost"
        ):
            job.await_termination(30)


def test_all_coordinators_of_a_job_go_by_the_clock_of_its_program(
    flow: Callable[..., tr.Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each went by the wall clock of its own machine: `ctx.now()` leapt to that of an executor, and timers with it."""
    right, beside = time.time_ns, iter((3, -5))
    far = Far(flow(None, 100), tmp_path / "checkpoints")

    def begun(near: Near) -> float:
        """How many seconds the clock of the job is beside the right time."""
        until(lambda: near.outpost._runner is not None)
        runner = near.outpost._runner
        assert runner is not None
        by_checkpoints = monotonic_micros() + runner.machine.checkpoints.clock_offset
        assert abs(by_checkpoints - runner.monitor.clock.now()) < 1e6
        return (runner.monitor.clock.now() - right() / 1000) / 1e6

    def elsewhere() -> None:
        """From now on whoever looks at a wall clock is on a machine that is hours beside."""
        hours = next(beside)
        monkeypatch.setattr(time, "time_ns", lambda: right() + hours * 3_600 * 10**9)

    elsewhere()
    job = far.begin()
    assert abs(begun(far.post)) < 10
    until(lambda: len(job.checkpoints) > 1)
    elsewhere()
    far.post.lose()
    until(lambda: len(far.posts) > 1 and job.status is JobStatus.RUNNING)
    assert abs(begun(far.posts[-1])) < 10
    job.cancel()
    assert job.await_termination(20)


def test_a_job_ends_when_somebody_cancels_the_spark_job_of_its_coordinator(
    flow: Callable[..., tr.Environment], tmp_path: Path
) -> None:
    """As of any of its workers. It would go on with another one."""
    far = Far(flow(None, 100), tmp_path / "checkpoints")
    job = far.begin()
    until(lambda: job.checkpoints)
    far.post.cancelled = True
    far.post.lose()
    assert job.await_termination(20) and job.status is JobStatus.CANCELLED and len(far.posts) == 1


def test_a_job_that_a_newer_start_has_taken_over_is_marked_as_such(
    flow: Callable[..., tr.Environment], tmp_path: Path
) -> None:
    """A supervisor leaves this job to the newer start."""
    far = Far(flow(None, 100), tmp_path / "checkpoints")
    job = far.begin()
    until(lambda: job.checkpoints)
    Store(str(tmp_path / "checkpoints"), "job").claim("another", takeover=True)
    with pytest.raises(tr.JobFailed, match="a newer start of job 'job'") as caught:
        job.await_termination(20)
    assert caught.value.taken_over and len(far.posts) == 1


def test_a_job_without_checkpoints_fails_when_its_coordinator_is_lost(flow: Callable[..., tr.Environment]) -> None:
    far = Far(flow(None, 100))
    job = far.begin()
    until(lambda: job.status is JobStatus.RUNNING)
    far.post.lose()
    with pytest.raises(tr.JobFailed, match="the executor that runs its coordinator was lost: its process was killed"):
        job.await_termination(20)


def test_a_coordinator_whose_program_is_silent_ends_its_job(flow: Callable[..., tr.Environment]) -> None:
    """The program was killed, or its machine is gone: its workers and this process give their slots back."""
    far = Far(flow(None, 100))
    job = far.begin()
    until(lambda: job.status is JobStatus.RUNNING)
    over = threading.Event()
    far.post.exchange = lambda letter: Letter(0, 1, ()) if over.wait(30) else None  # type: ignore
    far.post.outpost._silence = 0.3  # only now: a busy machine lets longer pass between two letters of a start
    far.post.thread.join(20)
    assert re.fullmatch(r"the program was silent for \d+ s", far.post.left)
    for thread in far.provider.threads:
        thread.join(20)
        assert not thread.is_alive()
    over.set()
    far.follower.abandon()


def test_a_job_that_cannot_be_prepared_leaves_no_coordinator(flow: Callable[..., tr.Environment]) -> None:
    far = Far(flow(1))
    far.follower.abandon()
    far.post.thread.join(5)
    assert far.post.left == "the program has said farewell"
