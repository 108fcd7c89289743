"""The thread beside a loop that talks to the storage of checkpoints. Its results come back to the loop as events."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable

from tailrace.errors import CheckpointCorrupt, error_text
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.state.manifest import decode_manifest
from tailrace.state.parts import Part
from tailrace.storage.filesystem import Writer
from tailrace.storage.reading import read_placed, read_state, unreadable_for_good
from tailrace.storage.store import Store
from tailrace.task.contract.actions import DropState, ReadPlaced, ReadState, WriteState
from tailrace.task.contract.events import (
    PlacedRead,
    PlacedUnreadable,
    StateNotWritten,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
)
from tailrace.task.worker.machine import Worker

_READ_AHEAD = 32
"""Parts of a checkpoint that may wait to be restored, so that state may be larger than memory."""
_REST = 4.0
"""The pause behind each part that is restored beside tasks that run, as a multiple of the processor time that it took."""
_LONGEST_REST = 0.25
"""The longest such pause in seconds."""
_BEHIND = 64 << 20
"""Bytes of snapshots that may wait to be written, so that state may be larger than memory."""


STUCK_SECONDS = 3.0
"""Seconds that the end waits for a request of before that the storage does not answer."""


class StorageThread:
    """A thread that runs one piece of work after the other."""

    def __init__(self, loop: EventLoop, name: str) -> None:
        self._loop = loop
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.closed = False
        self._begun = self._done = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        """Runs `work` after everything requested before. The work reports its result to the loop itself."""
        self._todo.put(work)

    def post(self, event: Callable[[], object]) -> None:
        """Lets the loop call `event`; to be called from the thread."""
        self._loop.call_soon_threadsafe(event)

    @property
    def alive(self) -> bool:
        """True until the thread has ended."""
        return self._thread.is_alive()

    def close(self, timeout: float) -> None:
        """Ends the thread after what was requested, waiting at most `timeout` seconds; if the storage does not answer an
        earlier request, only `STUCK_SECONDS`."""
        self.closed = True
        under_way = self._begun if self._begun > self._done else None
        self._todo.put(None)
        first = min(timeout, STUCK_SECONDS)
        self._thread.join(first)
        if self._done >= (under_way or 0):
            self._thread.join(timeout - first)

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            self._begun += 1
            work()
            self._done += 1


class _Flow:
    """The flow of one reading's parts into the tasks. Beside tasks that run one part comes at a time, and there is a pause
    behind each: records come first."""

    def __init__(self, *, beside: bool) -> None:
        self.beside = beside
        self.room = threading.Semaphore(1 if beside else _READ_AHEAD)
        self.rest = 0.0
        """Seconds to wait before the next part."""


class WorkerStorage:
    """The storage as a worker's machine uses it."""

    def __init__(
        self, machine: Worker, loop: EventLoop, open_store: Callable[[str | None], Store], clock: Callable[[], int]
    ) -> None:
        self._machine = machine
        self._open_store = open_store
        self._clock = clock
        self._loop = loop
        self._thread = StorageThread(loop, "tailrace-storage")
        self._beside: StorageThread | None = None
        """The thread that reads beside tasks that run, so that no file of a checkpoint waits for it."""
        self._stores: dict[str | None, Store] = {}
        self._writers: dict[int, Writer | None] = {}
        """Writers by checkpoint; None where writing its file has failed."""
        self._reading = 0
        self._requests = self._written = 0
        """Bytes to be written, counted by the loop, and bytes that were written or never will be, counted by the thread."""
        self._given_up: set[int] = set()
        """Checkpoints that are dropped: bytes that still wait for their files are not written any more."""

    @property
    def behind(self) -> bool:
        """True while so much waits to be written that nothing more is to be encoded. The loop is woken when it becomes
        less."""
        return self._requests - self._written >= _BEHIND

    def _store(self, folder: str | None = None) -> Store:
        """The store of the job's own folder, or of another one."""
        if folder not in self._stores:
            self._stores[folder] = self._open_store(folder)
        return self._stores[folder]

    def write(self, action: WriteState) -> None:
        """Appends to the file of a checkpoint; makes it durable at its end."""
        size = sum(map(len, action.data))
        self._requests += size

        def work() -> None:
            if action.checkpoint not in self._given_up:
                self._write(action)
            before, self._written = self.behind, self._written + size
            if before and not self.behind:
                self._thread.post(lambda: None)

        self._thread.do(work)

    def drop(self, action: DropState) -> None:
        """Removes the file of a checkpoint, or what was written of it."""
        self._given_up.add(action.checkpoint)
        self._thread.do(lambda: self._drop(action))

    def read(self, action: ReadState) -> None:
        """Reads parts of a checkpoint; gives up an earlier reading."""
        self._reading = action.number
        flow, thread = _Flow(beside=self._machine.stepping), self._thread
        if flow.beside:
            thread = self._beside = self._beside or StorageThread(self._loop, "tailrace-reading")
        thread.do(lambda: self._read(action, flow))

    def read_placed_parts(self, action: ReadPlaced) -> None:
        """Reads parts of state files."""
        self._thread.do(lambda: self._read_placed_parts(action))

    def close(self) -> None:
        """Ends the thread."""
        self._reading = 0
        self._thread.closed = True
        self._thread.close(timeout=3.0)
        if self._beside is not None:
            self._beside.close(timeout=3.0)

    # In the thread.

    def _write(self, action: WriteState) -> None:
        machine, checkpoint = self._machine, action.checkpoint
        try:
            if checkpoint not in self._writers:
                self._writers[checkpoint] = self._store().writer(action.name)
            writer = self._writers[checkpoint]
            if writer is None:
                return
            for data in action.data:
                writer.append(data)
            if action.last:
                writer.close()
                del self._writers[checkpoint]
                self._thread.post(lambda: machine.handle(StateWritten(checkpoint, self._clock())))
        except Exception as error:
            reason = f"writing {action.name} failed: {error_text(error)}"
            self._discard(checkpoint)
            if not action.last:
                self._writers[checkpoint] = None
            self._thread.post(lambda: machine.handle(StateNotWritten(checkpoint, reason)))

    def _discard(self, checkpoint: int) -> None:
        writer = self._writers.pop(checkpoint, None)
        if writer is not None:
            # It failed already: the sweep after the next restart finds what is left.
            with contextlib.suppress(Exception):
                writer.discard()

    def _drop(self, action: DropState) -> None:
        self._given_up.discard(action.checkpoint)
        if action.checkpoint in self._writers:
            self._discard(action.checkpoint)
            return
        with contextlib.suppress(Exception):  # not there, or out of reach: the sweep after the next restart finds it
            self._store().delete([action.name])

    def _read(self, action: ReadState, flow: _Flow) -> None:
        machine, number = self._machine, action.number
        try:
            manifest = decode_manifest(action.manifest, "the manifest to restore")
            store = self._store(action.folder or None)
            for part in read_state(store, manifest, action.required, held=action.held, worker=action.worker):
                while not flow.room.acquire(timeout=0.5):
                    if self._thread.closed or self._reading != number:
                        return
                if flow.rest:  # even a sleep of 0 s gives the interpreter's lock away, and waits for it again
                    time.sleep(flow.rest)
                if self._reading != number:
                    return
                self._thread.post(functools.partial(self._deliver, number, part, flow))
        except Exception as error:
            reason = f"checkpoint {_name_of(action)} cannot be read: {error}"
            fatal = unreadable_for_good(error)
            self._thread.post(lambda: machine.handle(StateUnreadable(number, reason, fatal)))
        else:
            self._thread.post(lambda: machine.handle(StateRead(number)))

    def _read_placed_parts(self, action: ReadPlaced) -> None:
        machine, number = self._machine, action.number
        try:
            store = self._store(action.folder or None)
            data = [read_placed(store, one) for one in action.required]
        except Exception as error:
            reason = f"{action.what} cannot be read: {error_text(error)}"
            fatal = unreadable_for_good(error)
            self._thread.post(lambda: machine.handle(PlacedUnreadable(number, reason, fatal)))
        else:
            self._thread.post(lambda: machine.handle(PlacedRead(number, data)))

    def _deliver(self, number: int, part: Part, flow: _Flow) -> None:
        begun = time.thread_time()
        self._machine.handle(StatePartRead(number, part))
        if flow.beside:
            flow.rest = min(_LONGEST_REST, _REST * (time.thread_time() - begun))
        flow.room.release()


def _name_of(action: ReadState) -> str:
    try:
        manifest = decode_manifest(action.manifest, "")
    except CheckpointCorrupt:
        return "(its manifest is damaged)"
    return f"{manifest.checkpoint} of job {manifest.job!r}"
