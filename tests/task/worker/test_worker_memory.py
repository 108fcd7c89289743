"""What a worker keeps in memory has an end: the state of an attempt goes with it, and a slow storage is waited for."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.protocol.deployment import Deploy, Peer, Start, Welcome
from tailrace.protocol.recovery import Reset
from tailrace.protocol.snapshot import Trigger
from tailrace.runtime.eventloop import storage_thread
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.state.backend import Backend
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.contract.actions import DropState, WriteState
from tailrace.task.contract.events import CoordinatorSaid, Encode, Flush, PeersConnected, Step
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.worker.machine import Worker

# State of an attempt that is over.


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Workers have Python look for garbage cycles very rarely."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("encoding", [False, True])
def test_state_goes_at_once_when_the_job_starts_anew(encoding: bool) -> None:
    """A checkpoint is being encoded when `Reset` comes to the worker. What encodes refers to the backend, and
    that to it: the state of the attempt before stayed in memory beside that of the next one."""
    env = tr.Environment(parallelism=1)
    env.from_source(tr.sources.Sequence(0, 100)).key_by(lambda x: x).count().sink_to(tr.sinks.Callback(lambda r: None))
    spec = JobSpec("job", 1, env._plan(env._pending()), env.memory, "run", 0, checkpointing=True)

    def make(_: JobSpec, uid: str, subtask: int) -> Backend:
        return MemoryBackend(uid=uid, subtask=subtask)

    machine = Worker(0, lambda _: spec, random.Random, make)
    machine.handle(CoordinatorSaid(Welcome(1)))
    machine.handle(CoordinatorSaid(Deploy(b"", [Peer(0, "h", 1, 1)])))
    machine.handle(PeersConnected())
    machine.handle(CoordinatorSaid(Start()))
    _steps(machine)
    if encoding:
        machine.handle(CoordinatorSaid(Trigger(CutRequest(1))))
        _steps(machine)
        machine.handle(Encode(0, 1))
        assert machine.encoding
    [backend] = _backends(machine)
    assert backend() is not None
    machine.handle(CoordinatorSaid(Reset(1)))
    assert backend() is None


def _steps(machine: Worker) -> None:
    for _ in range(30):
        for task in machine.tasks():
            machine.handle(Step(task.id.vertex, 0, 100))
        machine.handle(Flush())


def _backends(machine: Worker) -> list[Any]:
    operators = [operator for task in machine.tasks() for operator in task.chain.operators]
    return [weakref.ref(operator.backend) for operator in operators if operator.backend is not None]


# A storage that is slower than the encoding of a snapshot, or does not answer.


class SlowStore:
    """Writes when it is let."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)
        self.written: list[tuple[str, int]] = []

    def writer(self, name: str) -> SlowWriter:
        return SlowWriter(self, name)

    def delete(self, names: list[str]) -> None: ...


class SlowWriter:
    def __init__(self, store: SlowStore, name: str) -> None:
        self.store, self.name = store, name

    def append(self, data: bytes) -> None:
        assert self.store.let.acquire(timeout=20)
        self.store.written.append((self.name, len(data)))

    def close(self) -> None: ...

    def discard(self) -> None: ...


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[storage_thread.WorkerStorage, SlowStore, EventLoop]]:
    monkeypatch.setattr(storage_thread, "_BEHIND", 100)
    loop, store = EventLoop(), SlowStore()
    machine = Worker(0, lambda _: None, random.Random)  # type: ignore[arg-type, return-value]
    storage = storage_thread.WorkerStorage(machine, loop, lambda folder: store, lambda: 0)
    yield storage, store, loop
    for _ in range(100):
        store.let.release()
    storage.close()
    loop.close()


def piece(checkpoint: int, last: bool = False) -> WriteState:
    return WriteState(checkpoint, f"chk-{checkpoint}", [b"x" * 60], last)


def test_encoding_waits_for_a_slow_storage(slow: tuple[storage_thread.WorkerStorage, SlowStore, EventLoop]) -> None:
    """A snapshot is encoded faster than it is written. All of it would wait in memory, which may not hold it."""
    storage, store, loop = slow
    storage.write(piece(1))
    assert not storage.behind
    storage.write(piece(1))
    assert storage.behind
    store.let.release()
    assert loop.poll(20) == 1  # it wakes the loop, which sleeps where there is nothing but to encode
    assert not storage.behind


def test_what_waits_for_an_aborted_checkpoint_is_not_written(
    slow: tuple[storage_thread.WorkerStorage, SlowStore, EventLoop],
) -> None:
    """The storage hangs, and checkpoint after checkpoint takes too long. When it answers again, the next one must not
    queue up behind all that."""
    storage, store, loop = slow
    storage.write(piece(1))
    for checkpoint in (1, 2, 3):
        storage.write(piece(checkpoint))
        storage.drop(DropState(checkpoint, f"chk-{checkpoint}"))
    storage.write(piece(4, last=True))
    assert storage.behind
    store.let.release()
    store.let.release()
    deadline = time.monotonic() + 20
    while ("chk-4", 60) not in store.written and time.monotonic() < deadline:
        loop.poll(0.01)
    # Of the first one a piece may have been on its way already.
    assert store.written in ([("chk-1", 60), ("chk-4", 60)], [("chk-4", 60)])
    assert not storage.behind
