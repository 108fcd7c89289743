"""The work of a job in its checkpoint folder. Each piece is one call in the storage thread, which reports to the
coordinator."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import assert_never

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
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.succession.machine import SuccessorClaim
from tailrace.errors import error_text
from tailrace.protocol.deployment import FailureKind
from tailrace.runtime.driver.monitor import JobMonitor
from tailrace.runtime.driver.savepoint_copier import Copier
from tailrace.runtime.driver.warning import StorageWarning
from tailrace.runtime.eventloop.selector import EventLoop
from tailrace.runtime.eventloop.storage_thread import StorageThread
from tailrace.state.end_mark import Ending
from tailrace.storage.end_of_run import Awaited, awaited_output, leave
from tailrace.storage.origins import claim_again
from tailrace.storage.store import Store
from tailrace.task.contract.capsule import stored_form

REMOVED_WITHIN, READ_WITHIN = 30.0, 5.0
"""Seconds that the end of a job waits for its storage: to remove checkpoints, and to read which output the remaining ones
have. The next start does what was not done."""


class JobStore:
    """The storage of one job's checkpoints, as its coordinator's driver uses it."""

    def __init__(
        self,
        store: Store,
        loop: EventLoop,
        monitor: JobMonitor,
        machine: Coordinator,
        carry_out: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        self._now = now
        """The clock of the coordinator."""
        name = monitor.job_name
        self._store = store
        self._monitor = monitor
        self._machine = machine
        self._carry_out = carry_out
        """Carries out the actions of the coordinator after an event."""
        self._thread = StorageThread(loop, f"tailrace-storage-{name}")
        self._copier = Copier(store, loop, name, machine, carry_out, now)
        self.origin_marked: Callable[[], bool] | None = None
        """True if the checkpoint that the job started from is marked as published, looked up in its folder."""

    def act(self, action: StoreAction) -> None:
        """Carries out an action of the coordinator."""
        match action:
            case Claim():
                self._thread.do(self._claim)
            case CheckClaim():
                self._thread.do(lambda: self._check_claim(action.incarnation))
            case Commit():
                self._thread.do(lambda: self._commit(action))
            case Delete():
                self._thread.do(lambda: self._remove(action.names))
            case KeepCapsule():
                plan = self._machine.course.plan
                self._thread.do(lambda: self._keep_capsule(action, plan))
            case MarkPublished():
                self._thread.do(lambda: self._mark(action.path))
            case MarkSwept():
                self._thread.do(self._mark_swept)
            case CopySavepoint():
                self._copier.copy(action)
            case Sweep():
                self._thread.do(lambda: self._sweep(action))
            case _:
                assert_never(action)

    def end(self, surplus: list[str] | None, ending: Ending | None = None) -> Awaited | None:
        """Ends the storage with the job. `surplus`: the files of its checkpoints, if these are not to outlive it.
        `ending`: the mark that it leaves of its end. Returns the perhaps unpublished output of checkpoints that stay;
        None if it is unknown."""
        kept: list[Awaited | None] = [None]

        def tidy() -> None:
            kept[0] = {} if self._leave(surplus, ending) else self._prepared_output()

        self._copier.close()  # copies in progress are given up, and may be among the files that go now
        self._thread.do(tidy)
        self._thread.do(self._release)
        self._thread.close(REMOVED_WITHIN if surplus is not None else READ_WITHIN)
        return kept[0]

    def claim_at(self, at: str) -> SuccessorClaim:
        """Claims the job for a coordinator that waits at this address for the workers of a lost one, before anything else
        is requested. Raises what the storage raises."""
        found = claim_again(self._store, self._machine.run_id, self.origin_marked, at)
        if found.origin_published:
            self._machine.origin_published()
        url = self._store.url_of(found.path) if found.path else ""
        first = self._store.first_of_successors(found.incarnation)
        return SuccessorClaim(found.incarnation, first, found.manifest, found.path, url)

    # In the thread.

    def _post(self, event: Callable[[], object]) -> None:
        def act() -> None:
            event()
            self._carry_out()

        self._thread.post(act)

    def _claim(self) -> None:
        machine = self._machine
        if self._thread.closed:  # the job has ended while the storage did not answer
            return
        try:
            found = claim_again(self._store, machine.run_id, self.origin_marked)
        except Exception as error:
            reason, kind = f"{error_text(error)}", storage_failure(error)
            self._post(lambda: machine.claim_failed(reason, self._now(), kind))
            return
        if found.origin_published:
            self._post(machine.origin_published)
        self._post(lambda: machine.claim_done(found.incarnation, found.manifest, found.path, self._now()))

    def _check_claim(self, incarnation: int) -> None:
        machine, reason, kind = self._machine, "", FailureKind.STORE
        if self._thread.closed:
            return
        try:
            self._store.check_claim(incarnation)
        except Exception as error:
            reason, kind = error_text(error), storage_failure(error)
        self._post(lambda: machine.claim_checked(incarnation, self._now(), reason, kind))

    def _commit(self, action: Commit) -> None:
        machine, number = self._machine, action.checkpoint
        if self._thread.closed:
            return
        try:
            path = self._store.commit(action.incarnation, action.after, number, action.data, action.needs)
            url = self._store.url_of(path)
        except Exception as error:
            reason, kind = f"{error_text(error)}", storage_failure(error)
            self._post(lambda: machine.not_committed(number, reason, kind, self._now()))
            return
        self._post(lambda: machine.commit_done(number, path, url, self._now()))

    def _remove(self, names: list[str]) -> None:
        with self._warning(f"could not delete {len(names)} files of old checkpoints"):
            self._store.delete(names)

    def _keep_capsule(self, action: KeepCapsule, plan: bytes) -> None:
        with self._warning(f"could not keep the capsule {action.name} of a failed call"):
            data, keep = stored_form(action.data, action.name, plan)
            self._store.keep_capsule(action.name, data, keep)

    def _mark(self, path: str) -> None:
        machine = self._machine
        try:
            self._store.mark_published(path)
        except Exception as error:
            reason = error_text(error)
            self._warn("could not mark a checkpoint as published")
            self._post(lambda: machine.not_marked(path, reason, self._now()))
            return
        self._post(lambda: machine.mark_done(path, self._now()))

    def _sweep(self, action: Sweep) -> None:
        with self._warning("could not remove files that an earlier attempt left behind"):
            self._store.sweep(action.incarnation, action.needed)
            if action.keep_runs:
                self._store.prune(action.keep_runs, [action.spare])

    def _mark_swept(self) -> None:
        with self._warning("could not note that output left behind was removed"):
            self._store.mark_swept()

    def _leave(self, surplus: list[str] | None, ending: Ending | None) -> bool:
        """Marks the end, and removes everything of this run, if requested. True if everything is gone. If the storage is
        out of reach the last checkpoint stays, and the next start goes on from it."""
        if surplus is None and ending is None:
            return False
        with self._warning("its end could not be marked, or its checkpoints not be removed"):
            return leave(self._store, self._machine.run_id, ending, surplus)
        return False

    def _prepared_output(self) -> Awaited | None:
        """The prepared output of the checkpoints that stay. None if it is unknown: then none of it is removed."""
        try:
            return awaited_output(self._store, self._machine.run_id, self._machine.checkpoints.kept_paths)
        except Exception:
            self._warn("its last checkpoint cannot be read, so no prepared output is removed")
            return None

    def _release(self) -> None:
        with contextlib.suppress(Exception):  # the next start finds that this process is gone
            self._store.release(self._machine.incarnation)

    @contextlib.contextmanager
    def _warning(self, what: str) -> Iterator[None]:
        """A context for work that the next start repeats if it fails here: a failure only goes into the log."""
        try:
            yield
        except Exception:
            self._warn(what)

    def _warn(self, what: str) -> None:
        """Warns of the error at hand."""
        self._monitor.receive(StorageWarning(what, traceback.format_exc().rstrip()))
