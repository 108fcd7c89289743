"""The thread that talks to the storage: in order, and whatever fails there comes back as a word to the machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.machine import Coordinator
from tailrace.errors import CheckpointCorrupt
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.user_requests import TakeCheckpoint
from tailrace.runtime.eventloop import storage_thread
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.eventloop.storage_thread import StorageThread, WorkerStorage
from tailrace.runtime.job import Job
from tailrace.runtime.network.binding import Binding
from tailrace.state.job_holder import Holder
from tailrace.state.manifest import Manifest, encode_manifest
from tailrace.state.parts import MetaOf
from tailrace.task.contract.actions import DropState, ReadState, WriteState
from tailrace.task.contract.events import (
    Event,
    StateNotWritten,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
)

MANIFEST = encode_manifest(Manifest("job", "run", 1, 5, 0, 128, 1, []))


class Machine:
    """Notes the events that it gets."""

    stepping = False

    def __init__(self) -> None:
        self.told: list[Event] = []

    def handle(self, event: Event) -> None:
        self.told.append(event)


class Writer:
    def __init__(self, store: FakeStore, name: str) -> None:
        self.store, self.name, self.data = store, name, b""

    def append(self, data: bytes) -> None:
        self.store.maybe_fail("append")
        self.data += data

    def close(self) -> None:
        self.store.maybe_fail("close")
        self.store.files[self.name] = self.data

    def discard(self) -> None:
        self.store.discarded.append(self.name)
        self.store.maybe_fail("discard")


class FakeStore:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.discarded: list[str] = []
        self.failing: set[str] = set()

    def maybe_fail(self, what: str) -> None:
        if what in self.failing:
            raise OSError(f"cannot {what}")

    def writer(self, name: str) -> Writer:
        self.maybe_fail("open")
        return Writer(self, name)

    def delete(self, names: list[str]) -> None:
        self.maybe_fail("delete")
        for name in names:
            del self.files[name]


class Stored:
    """A worker's storage over a store of the test."""

    def __init__(self) -> None:
        self.machine, self.loop, self.store = Machine(), EventLoop(), FakeStore()
        self.opened: list[str | None] = []
        self.storage = WorkerStorage(self.machine, self.loop, self.open, lambda: 77)  # type: ignore[arg-type]

    def open(self, folder: str | None) -> Any:
        self.opened.append(folder)
        return self.store

    def write(self, data: bytes, *, last: bool = False, checkpoint: int = 1) -> None:
        self.storage.write(WriteState(checkpoint, f"chk-{checkpoint}", [data], last))

    def drop(self, checkpoint: int = 1) -> None:
        self.storage.drop(DropState(checkpoint, f"chk-{checkpoint}"))

    def told(self) -> list[Event]:
        """The events of the machine once all requests so far are done."""
        done = threading.Event()
        self.storage._thread.do(done.set)
        assert done.wait(5)
        self.loop.poll(0)
        events, self.machine.told = self.machine.told, []
        return events

    def read(self, number: int = 1, folder: str = "", manifest: bytes = MANIFEST) -> None:
        self.storage.read(ReadState(number, manifest, folder, {}))


@pytest.fixture
def stored() -> Iterator[Stored]:
    made = Stored()
    yield made
    made.storage.close()
    made.loop.close()


# Any thread of this kind.


def test_one_thing_is_done_after_the_other_and_events_come_in_the_loop() -> None:
    loop = EventLoop()
    thread = StorageThread(loop, "test")
    seen: list[Any] = []
    for i in range(5):
        thread.do(lambda i=i: thread.post(lambda: seen.append((i, threading.current_thread()))))  # type: ignore[misc]
    thread.close(5)
    loop.poll(0)
    assert seen == [(i, threading.current_thread()) for i in range(5)]
    assert thread.closed
    loop.close()


def test_its_end_does_not_wait_for_ever() -> None:
    loop, release = EventLoop(), threading.Event()
    thread = StorageThread(loop, "test")
    thread.do(release.wait)
    start = time.monotonic()
    thread.close(0.1)
    assert time.monotonic() - start < 2
    release.set()
    loop.close()


@pytest.mark.parametrize("hangs", [True, False])
def test_its_end_waits_longer_for_what_it_is_to_do_at_the_end_than_for_what_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(storage_thread, "STUCK_SECONDS", 0.05)
    loop, release, done = EventLoop(), threading.Event(), threading.Event()
    thread = StorageThread(loop, "test")
    begun = threading.Event()
    thread.do(lambda: (begun.set(), hangs and release.wait()))
    assert begun.wait(5)
    thread.do(lambda: (time.sleep(0.2), done.set()))
    start = time.monotonic()
    thread.close(20)
    assert time.monotonic() - start < 10 and done.is_set() is not hangs
    release.set()
    loop.close()


# Writing.


def test_pieces_become_a_file_and_then_the_machine_is_reported(stored: Stored) -> None:
    stored.write(b"a")
    stored.write(b"b")
    assert stored.told() == [] and stored.store.files == {}
    stored.write(b"c", last=True)
    assert stored.told() == [StateWritten(1, 77)]
    assert stored.store.files == {"chk-1": b"abc"}
    assert stored.opened == [None], "the store is opened once"


def test_two_checkpoints_may_be_written_at_once(stored: Stored) -> None:
    stored.write(b"a")
    stored.write(b"x", checkpoint=2)
    stored.write(b"b", last=True)
    stored.write(b"y", checkpoint=2, last=True)
    assert stored.told() == [StateWritten(1, 77), StateWritten(2, 77)]
    assert stored.store.files == {"chk-1": b"ab", "chk-2": b"xy"}


@pytest.mark.parametrize("what", ["open", "append", "close"])
def test_a_failure_is_reported_once_with_the_file(stored: Stored, what: str) -> None:
    stored.store.failing = {what, "discard"}
    stored.write(b"a")
    stored.write(b"b")
    stored.write(b"c", last=True)
    assert stored.told() == [StateNotWritten(1, f"writing chk-1 failed: OSError: cannot {what}")]
    assert stored.store.files == {}
    assert stored.store.discarded == ([] if what == "open" else ["chk-1"])
    stored.store.failing.clear()
    stored.write(b"d", last=True)
    if what != "close":
        assert stored.told() == [], "what comes later of it is not wanted any more"
        stored.drop()
    stored.write(b"x", checkpoint=2, last=True)
    assert isinstance(stored.told()[-1], StateWritten)


def test_a_store_that_cannot_be_opened_is_tried_again(stored: Stored) -> None:
    def broken(folder: str | None) -> Any:
        raise OSError("no route")

    stored.storage._open_store = broken
    stored.write(b"a", last=True)
    assert stored.told() == [StateNotWritten(1, "writing chk-1 failed: OSError: no route")]
    stored.storage._open_store = stored.open
    stored.write(b"x", checkpoint=2, last=True)
    assert stored.told() == [StateWritten(2, 77)]


def test_what_is_dropped_while_it_is_written_leaves_nothing(stored: Stored) -> None:
    stored.write(b"a")
    stored.told()
    stored.drop()
    assert stored.told() == []
    assert (stored.store.discarded, stored.store.files, stored.storage._writers) == (["chk-1"], {}, {})


def held_up(stored: Stored) -> threading.Event:
    """Requests from here on wait until this is set."""
    release = threading.Event()
    stored.storage._thread.do(lambda: release.wait(10))
    return release


def test_what_waits_for_its_turn_and_is_dropped_is_not_written_at_all(stored: Stored) -> None:
    release = held_up(stored)
    stored.write(b"a")
    stored.write(b"b", last=True)
    stored.drop()
    stored.write(b"x", checkpoint=2, last=True)
    release.set()
    assert stored.told() == [StateWritten(2, 77)]
    assert (stored.store.files, stored.store.discarded) == ({"chk-2": b"x"}, [])
    assert stored.storage._given_up == set()


def test_it_says_when_it_is_behind_and_wakes_the_loop_when_it_is_not(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_thread, "_BEHIND", 10)
    release = held_up(stored)
    stored.write(b"12345")
    assert not stored.storage.behind
    stored.write(b"67890")
    assert stored.storage.behind
    release.set()
    stored.loop.poll(5)
    assert not stored.storage.behind


def test_what_failed_or_was_dropped_does_not_keep_it_behind(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_thread, "_BEHIND", 1)
    stored.store.failing = {"append"}
    stored.write(b"12345")
    stored.write(b"12345", checkpoint=2, last=True)
    stored.drop()
    stored.write(b"12345")
    stored.told()
    assert not stored.storage.behind


def test_what_is_dropped_after_it_was_written_is_deleted(stored: Stored) -> None:
    stored.write(b"a", last=True)
    stored.told()
    stored.drop()
    stored.told()
    assert stored.store.files == {}


def test_what_cannot_be_dropped_is_left_to_the_sweep(stored: Stored) -> None:
    stored.drop(checkpoint=9)  # it never was
    stored.store.failing = {"delete", "discard"}
    stored.write(b"a", last=True)
    stored.write(b"x", checkpoint=2)
    assert stored.told() == [StateWritten(1, 77)]
    stored.drop()
    stored.drop(checkpoint=2)
    stored.write(b"y", checkpoint=3, last=True)
    assert stored.told() == [StateWritten(3, 77)]


# Reading.


def part(i: int) -> MetaOf:
    return MetaOf("uid", i, 9, False, None)


def parts(monkeypatch: pytest.MonkeyPatch, found: Callable[[], Iterator[Any]]) -> None:
    monkeypatch.setattr(storage_thread, "read_state", lambda store, manifest, required, **more: found())


def test_parts_come_one_after_the_other_and_then_their_end(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(monkeypatch, lambda: iter([part(1), part(2)]))
    stored.read(number=4)
    assert stored.told() == [StatePartRead(4, part(1)), StatePartRead(4, part(2)), StateRead(4)]
    assert stored.opened == [None]
    stored.read(number=5, folder="s3a://bucket/other")
    stored.told()
    assert stored.opened == [None, "s3a://bucket/other"]


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (CheckpointCorrupt("it is damaged"), True),
        (FileNotFoundError("it is not there"), True),
        (tr.ConfigError("no such scheme"), True),
        (OSError("timed out"), False),
        (ConnectionError("no route"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_cannot_be_read_is_reported_and_whether_trying_again_may_help(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, error: Exception, fatal: bool
) -> None:
    def found() -> Iterator[Any]:
        yield part(1)
        raise error

    parts(monkeypatch, found)
    stored.read(number=3)
    _, events = stored.told()
    assert events == StateUnreadable(3, f"checkpoint 5 of job 'job' cannot be read: {error}", fatal)


def test_a_damaged_manifest_is_reported(stored: Stored) -> None:
    stored.read(manifest=b"nonsense")
    [events] = stored.told()
    assert isinstance(events, StateUnreadable) and events.fatal and "its manifest is damaged" in events.reason


def test_it_does_not_read_far_ahead_of_who_takes_it(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def found() -> Iterator[Any]:
        for i in range(100):
            given.append(i)
            yield part(i)

    parts(monkeypatch, found)
    stored.read()
    time.sleep(0.3)
    assert len(given) == storage_thread._READ_AHEAD + 1
    deadline = time.monotonic() + 10
    while len(stored.machine.told) < 101 and time.monotonic() < deadline:
        stored.loop.poll(0.05)
    assert stored.machine.told[-1] == StateRead(1) and len(stored.machine.told) == 101


def test_who_wants_something_else_gives_up_what_was_being_read(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(monkeypatch, lambda: (part(i) for i in range(100)))
    stored.read(number=1)
    time.sleep(0.1)
    parts(monkeypatch, lambda: iter([part(7)]))
    stored.read(number=2)
    events = stored.told()
    assert StateRead(1) not in events
    assert events[-2:] == [StatePartRead(2, part(7)), StateRead(2)]


def test_its_end_gives_up_what_is_being_read(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(monkeypatch, lambda: (part(i) for i in range(100)))
    stored.read()
    time.sleep(0.1)
    start = time.monotonic()
    stored.storage.close()
    assert time.monotonic() - start < 2.5
    assert not stored.storage._thread._thread.is_alive()


def test_beside_tasks_that_run_one_part_comes_at_a_time_and_no_file_waits_for_it(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def found() -> Iterator[Any]:
        for i in range(5):
            given.append(i)
            yield part(i)

    parts(monkeypatch, found)
    stored.machine.stepping = True
    stored.read()
    stored.write(b"a snapshot", last=True)
    assert StateWritten(1, 77) in stored.told() and len(given) <= 3
    deadline = time.monotonic() + 10
    while StateRead(1) not in stored.machine.told and time.monotonic() < deadline:
        stored.loop.poll(0.05)
    assert given == list(range(5)) and stored.machine.told[-1] == StateRead(1)


# A job's handle.


class Nobody:
    """A cluster whose slots are never filled."""

    def __init__(self) -> None:
        self.ended: list[Callable[[], None]] = []

    def watch(self, leaving: Any, room: Any = None) -> None: ...

    def executor(self, slot: int, launch: int) -> str | None: ...

    def listen_at(self) -> Binding:
        return Binding("127.0.0.1")

    def launch(self, config: Any, ended: Any) -> None:
        self.ended.append(lambda: ended(config.slot, None, False))

    def lives(self) -> bool:
        return True

    def kill(self, slot: int, launch: int, pid: int | None) -> None:
        for ended in self.ended:
            ended()

    def close(self, timeout: float) -> None: ...


class NoStore:
    term = 0

    def __init__(self) -> None:
        self.did: list[Any] = []

    def incarnations(self) -> list[int]:
        return [1]

    def holder(self, incarnation: int) -> Holder:
        return Holder(incarnation, None)

    def latest(self) -> None:
        return None

    def sweep(self, incarnation: int, needed: list[str]) -> None:
        self.did.append(("sweep", incarnation))

    def delete(self, names: list[str]) -> None:
        self.did.append(("delete", names))

    def release(self, incarnation: int) -> None:
        self.did.append(("release", incarnation))


def job(tmp_path: Path, *, checkpoints: bool, retain: str = "on-cancellation") -> tuple[Job, NoStore]:
    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Sequence(0, None, rate=10)).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    plan = env._plan(env._pending())
    limits = Limits(leave=100_000, gone=100_000)
    settings = CheckpointSettings(retain=retain) if checkpoints else None
    machine = Coordinator("job", 1, plan.slots, b"", limits, run_id="run", checkpoints=settings)
    store = NoStore()
    monitor = ProgramMonitor("job", "id", plan)
    runner = JobRunner(machine, Nobody(), monitor, store if checkpoints else None)
    runner.start()
    return Job(runner, monitor), store


def test_a_job_that_takes_no_checkpoints_says_so(tmp_path: Path) -> None:
    running, _ = job(tmp_path, checkpoints=False)
    with pytest.raises(tr.CheckpointError, match="no checkpoint of job 'job': the job takes no checkpoints: give its"):
        running.checkpoint(10)
    assert running.checkpoints == []
    running.cancel()
    assert running.await_termination(10)


def test_a_checkpoint_that_is_late_is_a_timeout_and_the_end_of_the_job_an_answer(tmp_path: Path) -> None:
    running, _ = job(tmp_path, checkpoints=True)
    with pytest.raises(TimeoutError):
        running.checkpoint(0.1)
    future = running._runner.wish(TakeCheckpoint())
    running.cancel()
    assert running.await_termination(10)
    with pytest.raises(tr.CheckpointError, match="job 'job' has ended"):
        future.result(5)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_job_that_has_ended_takes_none(tmp_path: Path, checkpoints: bool) -> None:
    running, _ = job(tmp_path, checkpoints=checkpoints)
    running.cancel()
    assert running.await_termination(10)
    with pytest.raises(tr.CheckpointError, match="job 'job' has ended"):
        running.checkpoint(10)


AT_START = [("sweep", 1)]
"""What killed runs have left is removed by the next start."""


@pytest.mark.parametrize(
    ("retain", "did"),
    [
        ("never", [*AT_START, ("delete", []), ("sweep", 2), ("release", 1)]),
        ("on-cancellation", [*AT_START, ("release", 1)]),
        ("always", [*AT_START, ("release", 1)]),
    ],
)
def test_what_becomes_of_the_checkpoints_of_a_job_that_was_cancelled(tmp_path: Path, retain: str, did: Any) -> None:
    running, store = job(tmp_path, checkpoints=True, retain=retain)
    running.cancel()
    assert running.await_termination(10)
    assert store.did == did
