"""Requests of simulated workers and drivers to the storage of checkpoints. Each is carried out some time later and
answered some time after that, in the order of the requests. The counterpart of `runtime.eventloop.storage_thread`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from tailrace.coordinator.actions import (
    CheckClaim,
    Claim,
    Commit,
    CopySavepoint,
    Delete,
    KeepCapsule,
    MarkPublished,
    MarkSwept,
    StoreAction,
    Sweep,
)
from tailrace.coordinator.job.failures import storage_failure
from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, ConfigError, Fenced
from tailrace.state.manifest import decode_manifest
from tailrace.state.parts import Part
from tailrace.storage.origins import claim_again
from tailrace.storage.reading import read_placed, read_state, unreadable_for_good
from tailrace.storage.savepoints import copy_savepoint, default_place, remove
from tailrace.task.contract.actions import DropState, ReadPlaced, ReadState, WriteState
from tailrace.task.contract.capsule import stored_form
from tailrace.task.contract.events import (
    PlacedRead,
    PlacedUnreadable,
    StateNotWritten,
    StatePartRead,
    StateRead,
    StateUnreadable,
    StateWritten,
)
from tailrace.testing.cluster import Cluster
from tailrace.testing.memorystore import Fault, MemoryFiles, MemoryStore
from tailrace.testing.world import Driver, Event, SimulatedProcess, StoreWork

_WRONG = (OSError, Fenced, CheckpointCorrupt, CheckpointNotFound, ConfigError)


@dataclass(frozen=True)
class Trouble:
    """Description of what goes wrong with the storage."""

    until: int = 0
    """The turn from which on nothing goes wrong."""
    chance: float = 0.0
    """Probability with which an operation goes wrong."""
    outcome: str = "error"
    only: str = ""
    """Texts of which one is in the operation's name or in the names of its files, where only some operations go wrong;
    separated by "|"."""
    slow: int = 0
    """Microseconds that each operation takes longer, wrong or not."""


class Storage:
    """The folders of checkpoints that a simulated job knows, and the trouble with them."""

    def __init__(self, cluster: Cluster, name: str, files: MemoryFiles) -> None:
        self._cluster = cluster
        self._name = name
        self.files = files
        """Files of the job's own folder."""
        self.trouble = Trouble()
        self._elsewhere: dict[str, MemoryFiles] = {}
        """Folders of other jobs, by their URLs."""
        self.savepoints: dict[str, MemoryFiles] = {}
        """Folders of savepoints, by their URLs."""
        self.program: Callable[[], bytes] = bytes
        """Pickles the job, for capsules of failed calls."""

    # Folders.

    def own(self) -> MemoryStore:
        """A store on the job's own folder, as a new driver sees it."""
        return MemoryStore(self._name, self.files, fail=self._fail)

    def at(self, files: MemoryFiles) -> MemoryStore:
        """A store on a folder of another job, to read from."""
        self._elsewhere[files.url] = files
        return self.store_in(files.url)

    def files_in(self, folder: str) -> MemoryFiles:
        """The files in a folder, by its URL."""
        return self._elsewhere.get(folder, self.files)

    def store_in(self, folder: str) -> MemoryStore:
        """A store on a folder, by its URL, to read from."""
        return MemoryStore(self._name, self.files_in(folder), fail=self._fail)

    # Faults.

    @property
    def troubled(self) -> bool:
        """True while operations may go wrong."""
        return self._cluster.turns < self.trouble.until

    @contextlib.contextmanager
    def calm(self) -> Iterator[None]:
        """A context in which nothing goes wrong."""
        trouble, self.trouble = self.trouble, Trouble()
        yield
        self.trouble = trouble

    def _fail(self, operation: str, name: str) -> Fault:
        trouble, chance = self.trouble, self._cluster.chance
        meant = any(one in f"{operation} {name}" for one in trouble.only.split("|"))
        if not self.troubled or not meant or chance.random() >= trouble.chance:
            return None
        self._cluster.covered["storage faults"] += 1
        found: Any = trouble.outcome
        return chance.choice(("error", "unknown-done", "unknown-not-done")) if found == "any" else found

    # Operations.

    def request(
        self,
        party: int,
        what: str,
        work: Callable[[], Any],
        then: Callable[[Any, Exception | None], None] | None = None,
    ) -> None:
        """Requests an operation. `work` is done some time later, and `then` receives the result some time after that."""

        def act() -> None:
            result, error = None, None
            try:
                result = work()
            except _WRONG as raised:
                error = raised
                self._cluster.count(f"{type(raised).__name__} at {what.partition(' ')[0]}")
            if then is not None:
                self._cluster.send(party, party, Event(f"{what} done", lambda: then(result, error)))

        def orphan() -> None:  # the party is dead, and its request is still on its way
            self._cluster.count("a dead party's storage operation was carried out")
            try:
                work()
            except Fenced:
                self._cluster.count("fenced commits")
            except _WRONG:
                pass

        slow = self.trouble.slow if self.troubled else 0
        if slow:
            self._cluster.count("the storage is slow")
        self._cluster.send(party, party, StoreWork(what, act, orphan), slow)

    def write(self, process: SimulatedProcess, action: WriteState) -> None:
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
                process.handle(StateWritten(number, process.clocks.job.now()))

        self.request(process.party, f"write {action.name}", work, then)

    def drop(self, process: SimulatedProcess, action: DropState) -> None:
        """Removes a file of a checkpoint, whether it is complete or not."""
        store = process.driver.store
        assert store is not None

        def work() -> None:
            if action.checkpoint in process.writers:
                writer = process.writers.pop(action.checkpoint)
                if writer is not None:
                    writer.discard()
            else:
                store.delete([action.name])

        self.request(process.party, f"drop {action.name}", work)

    def _store(self, process: SimulatedProcess, folder: str) -> MemoryStore:
        """A store on the job's own folder, or on another one."""
        own = process.driver.store
        assert own is not None
        return self.store_in(folder) if folder not in ("", own.url) else own

    def read(self, process: SimulatedProcess, action: ReadState) -> None:
        """Reads parts of a checkpoint."""
        store = self._store(process, action.folder)
        manifest = decode_manifest(action.manifest, "manifest")

        def then(parts: Any, error: Exception | None) -> None:
            if error is not None:
                reason, fatal = f"{type(error).__name__}: {error}", unreadable_for_good(error)
                process.handle(StateUnreadable(action.number, reason, fatal))
                return
            events: list[StatePartRead | StateRead] = [StatePartRead(action.number, part) for part in parts]
            events.append(StateRead(action.number))
            if not stands_by:
                for event in events:
                    process.handle(event)
            else:  # a standby, which may have to take a slot in between, or a worker that gets ready for another size
                self._one_by_one(process, events)

        attempt = process.machine.attempt
        stands_by = attempt is None or not attempt.awaits_state(action.number)
        if stands_by:
            self._cluster.count("a standby reads what has changed")

        def find() -> list[Part]:
            return list(read_state(store, manifest, action.required, held=action.held, worker=action.worker))

        self.request(process.party, "read state", find, then)

    def _one_by_one(self, process: SimulatedProcess, events: list[StatePartRead | StateRead]) -> None:
        for event in events:
            next_event = Event("a part was read", partial(_handle, process, event), reads_ahead=True)
            self._cluster.send(process.party, process.party, next_event)

    def read_placed_parts(self, process: SimulatedProcess, action: ReadPlaced) -> None:
        """Reads values that are placed in state files."""
        store = self._store(process, action.folder)

        def then(data: Any, error: Exception | None) -> None:
            if error is not None:
                fatal = unreadable_for_good(error)
                process.handle(PlacedUnreadable(action.number, f"{type(error).__name__}: {error}", fatal))
            else:
                self._cluster.count(f"read {action.what}")
                process.handle(PlacedRead(action.number, data))

        self.request(
            process.party, f"read {action.what}", lambda: [read_placed(store, one) for one in action.required], then
        )

    def of_driver(self, driver: Driver, action: StoreAction) -> None:
        """Carries out a storage action of a coordinator."""
        store, coordinator, party = driver.store, driver.coordinator, driver.party
        assert store is not None
        if isinstance(action, Claim):

            def claim_done(result: Any, error: Exception | None) -> None:
                if error is not None:
                    kind = storage_failure(error)
                    coordinator.claim_failed(f"{type(error).__name__}: {error}", driver.now(), kind)
                    return
                if result.origin_published:
                    coordinator.origin_published()
                coordinator.claim_done(result.incarnation, result.manifest, result.path, driver.now())

            marked_by_now = None if driver.origin is None else driver.origin.marked
            self.request(party, "claim", lambda: claim_again(store, driver.run_id, marked_by_now), claim_done)
        elif isinstance(action, CheckClaim):

            def claim_checked(_: Any, error: Exception | None) -> None:
                failure = () if error is None else (f"{type(error).__name__}: {error}", storage_failure(error))
                coordinator.claim_checked(action.incarnation, driver.now(), *failure)

            self.request(party, "check claim", lambda: store.check_claim(action.incarnation), claim_checked)
        elif isinstance(action, Commit):

            def commit_done(path: Any, error: Exception | None) -> None:
                number = action.checkpoint
                if error is None:
                    coordinator.commit_done(number, path, path, driver.now())
                    return
                if isinstance(error, Fenced):
                    self._cluster.count("fenced commits")
                coordinator.not_committed(
                    number, f"{type(error).__name__}: {error}", storage_failure(error), driver.now()
                )

            work = lambda: store.commit(action.incarnation, action.after, action.checkpoint, action.data, action.needs)  # noqa: E731
            self.request(party, f"commit {action.checkpoint}", work, commit_done)
        elif isinstance(action, Delete):
            self.request(party, "delete", lambda: store.delete(action.names))
        elif isinstance(action, KeepCapsule):
            data, keep = stored_form(action.data, action.name, self.program())
            with self.calm():  # it is there at once: the job may end, and its user look for it
                store.keep_capsule(action.name, data, keep)
        elif isinstance(action, MarkPublished):

            def mark_done(_: Any, error: Exception | None) -> None:
                if error is None:
                    coordinator.mark_done(action.path, driver.now())
                else:
                    coordinator.not_marked(action.path, f"{type(error).__name__}: {error}", driver.now())

            self.request(party, "mark", lambda: store.mark_published(action.path), mark_done)
        elif isinstance(action, MarkSwept):
            self.request(party, "mark swept", store.mark_swept)
        elif isinstance(action, CopySavepoint):
            self._copy(driver, action)
        elif isinstance(action, Sweep):
            self.request(party, "sweep", lambda: self._sweep(store, action))
        else:
            assert_never(action)

    def _sweep(self, store: MemoryStore, action: Sweep) -> None:
        store.sweep(action.incarnation, action.needed)
        if action.keep_runs:
            store.prune(action.keep_runs, [action.spare])

    def _copy(self, driver: Driver, action: CopySavepoint) -> None:
        """Copies a savepoint into a folder of its own."""
        store, coordinator, number = driver.store, driver.coordinator, action.checkpoint
        assert store is not None
        source = store.folder
        url = action.target or default_place(source.url, action.savepoint)
        target = self.savepoints.setdefault(url, MemoryFiles(url=url))

        def copy_done(size: Any, error: Exception | None) -> None:
            if error is not None:
                coordinator.not_copied(number, f"{type(error).__name__}: {error}", driver.now())
            elif coordinator.copy_done(number, url, size, driver.now()):
                self._cluster.count("copied a savepoint")
            else:
                remove(target, list(target.contents))

        self.request(
            driver.party, f"copy {number}", lambda: copy_savepoint(source, target, action.savepoint), copy_done
        )


def _handle(process: SimulatedProcess, event: StatePartRead | StateRead) -> None:
    process.handle(event)
