"""What simulated workers and drivers want of the storage of checkpoints: done some time later, answered some time after
that, in the order in which it was asked for. The counterpart of `runtime.storing`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrace.coordinator.actions import Claim, Commit, Delete, MarkPublished, MarkSwept, Sweep
from tailrace.coordinator.failures import storage_failure
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, Fenced
from tailrace.state.manifest import decode_manifest
from tailrace.storage.origins import claim_again
from tailrace.storage.reading import read_placed, read_state
from tailrace.task.actions import ReadPrepared, ReadState
from tailrace.task.checkpoints import DropState, WriteState
from tailrace.task.events import (
    PreparedRead,
    PreparedUnreadable,
    StateNotWritten,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
)
from tailrace.testing.memorystore import MemoryStore
from tailrace.testing.world import Driver, Event, Process, StoreWork

if TYPE_CHECKING:
    from tailrace.testing.simulator import Simulation

_WRONG = (OSError, Fenced, CheckpointCorrupt, CheckpointNotFound)
_FATAL = (CheckpointCorrupt, CheckpointNotFound, FileNotFoundError)


def ask(
    world: Simulation,
    party: int,
    what: str,
    work: Callable[[], Any],
    then: Callable[[Any, Exception | None], None] | None = None,
) -> None:
    """`work` is done some time later, and `then` hears of it some time after that."""

    def act() -> None:
        result, error = None, None
        try:
            result = work()
        except _WRONG as raised:
            error = raised
            world.count(f"{type(raised).__name__} at {what.partition(' ')[0]}")
        if then is not None:
            world.send(party, party, Event(f"{what} done", lambda: then(result, error)))

    def orphan() -> None:  # the party is dead; what it had asked for is on its way all the same
        world.count("a dead party's storage operation was carried out")
        try:
            work()
        except Fenced:
            world.count("fenced commits")
        except _WRONG:
            pass

    world.send(party, party, StoreWork(what, act, orphan))


def write(world: Simulation, process: Process, action: WriteState) -> None:
    """Appends to the file of a checkpoint; makes it durable at its end. A file that has failed once is given up."""
    store, machine, number = process.driver.store, process.machine, action.checkpoint
    assert store is not None
    incarnation = machine.incarnation
    writers = process.writers

    def work() -> bool:
        if number in writers and writers[number] is None:
            return False
        try:
            writer = writers.get(number)
            if writer is None:
                writer = writers[number] = store.writer(action.name)
            for data in action.data:
                writer.append(data)
            if action.last:
                writer.close()
                del writers[number]
        except OSError:
            writer = writers.pop(number, None)
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.discard()
            if not action.last:
                writers[number] = None
            raise
        return action.last

    def then(done: bool | None, error: Exception | None) -> None:
        if machine.incarnation != incarnation:
            return
        if error is not None:
            process.handle(StateNotWritten(number, str(error)))
        elif done:
            process.handle(StateWritten(number, world.now))

    ask(world, process.party, f"write {action.name}", work, then)


def drop(world: Simulation, process: Process, action: DropState) -> None:
    """Nothing of a file is to stay."""
    store = process.driver.store
    assert store is not None

    def work() -> None:
        if action.checkpoint in process.writers:
            writer = process.writers.pop(action.checkpoint)
            if writer is not None:
                writer.discard()
        else:
            store.delete([action.name])

    ask(world, process.party, f"drop {action.name}", work)


def _store(world: Simulation, process: Process, folder: str) -> MemoryStore:
    """The job's own folder, or another one."""
    own = process.driver.store
    assert own is not None
    return world.store_in(folder) if folder not in ("", own.url) else own


def read(world: Simulation, process: Process, action: ReadState) -> None:
    """Reads parts of a checkpoint."""
    store = _store(world, process, action.folder)
    manifest = decode_manifest(action.manifest, "manifest")

    def then(parts: Any, error: Exception | None) -> None:
        if error is not None:
            reason, fatal = f"{type(error).__name__}: {error}", isinstance(error, _FATAL)
            process.handle(StateUnreadable(action.number, reason, fatal))
            return
        for part in parts:
            process.handle(StatePartRead(action.number, part))
        process.handle(StateRead(action.number))

    ask(world, process.party, "read state", lambda: list(read_state(store, manifest, action.wanted)), then)


def read_prepared(world: Simulation, process: Process, action: ReadPrepared) -> None:
    """Reads what sinks have prepared."""
    store = _store(world, process, action.folder)

    def then(data: Any, error: Exception | None) -> None:
        if error is not None:
            fatal = isinstance(error, _FATAL)
            process.handle(PreparedUnreadable(action.number, f"{type(error).__name__}: {error}", fatal))
        else:
            world.count("read what sinks had prepared from files")
            process.handle(PreparedRead(action.number, data))

    ask(world, process.party, "read prepared", lambda: [read_placed(store, one) for one in action.wanted], then)


def of_driver(
    world: Simulation, driver: Driver, action: Claim | Commit | Delete | Sweep | MarkPublished | MarkSwept
) -> None:
    """What a coordinator wants of the storage."""
    store, coordinator, party = driver.store, driver.coordinator, driver.party
    assert store is not None
    if isinstance(action, Claim):

        def claimed(result: Any, error: Exception | None) -> None:
            if error is not None:
                kind = storage_failure(error)
                coordinator.claim_failed(f"{type(error).__name__}: {error}", world.now, kind)
                return
            if result.origin_published:
                coordinator.origin_published()
            coordinator.claimed(result.incarnation, result.manifest, result.path, world.now)

        marked_by_now = None if driver.origin is None else driver.origin.marked
        ask(world, party, "claim", lambda: claim_again(store, driver.run_id, marked_by_now), claimed)
    elif isinstance(action, Commit):

        def committed(path: Any, error: Exception | None) -> None:
            number = action.checkpoint
            if error is None:
                coordinator.committed(number, path, path, world.now)
                return
            if isinstance(error, Fenced):
                world.count("fenced commits")
            coordinator.not_committed(number, f"{type(error).__name__}: {error}", storage_failure(error), world.now)

        work = lambda: store.commit(action.incarnation, action.after, action.checkpoint, action.data, action.needs)  # noqa: E731
        ask(world, party, f"commit {action.checkpoint}", work, committed)
    elif isinstance(action, Delete):
        ask(world, party, "delete", lambda: store.delete(action.names))
    elif isinstance(action, MarkPublished):

        def marked(_: Any, error: Exception | None) -> None:
            if error is None:
                coordinator.marked(action.path, world.now)
            else:
                coordinator.not_marked(action.path, world.now)

        ask(world, party, "mark", lambda: store.mark_published(action.path), marked)
    elif isinstance(action, MarkSwept):
        ask(world, party, "mark swept", store.mark_swept)
    else:
        ask(world, party, "sweep", lambda: store.sweep(action.incarnation, action.needed))
