"""The thread that drives one job's coordinator: links to the workers, the clock, and the provider of worker slots."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import selectors
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from tailrace.coordinator.actions import (
    CheckpointEnded,
    Claim,
    CloseLink,
    Commit,
    Delete,
    Kill,
    Launch,
    MarkPublished,
    MarkSwept,
    Restarting,
    Send,
    StatusChanged,
    Sweep,
    WasPublished,
)
from tailrace.coordinator.failures import storage_failure
from tailrace.coordinator.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.progress import ProgressMaker
from tailrace.coordinator.stats import CheckpointStats
from tailrace.errors import CheckpointError, ProtocolViolation
from tailrace.graph.plan import Plan
from tailrace.protocol import deployment, wire
from tailrace.protocol.deployment import FailureKind, Heartbeat, Hello
from tailrace.runtime.announcing import Announcer
from tailrace.runtime.config import WorkerConfig
from tailrace.runtime.control import ControlDoor, Reply
from tailrace.runtime.link import CONTROL, Link, LinkError, TooLarge
from tailrace.runtime.listener import Listener
from tailrace.runtime.loop import Loop
from tailrace.runtime.slots import SlotProvider
from tailrace.runtime.storing import StorageThread
from tailrace.storage.reading import read_placed
from tailrace.storage.scratch import remove_abandoned

PROGRESS_SECONDS = 1.0
OUTLIVE_SECONDS = 6.0
"""How long the end of a job waits for the processes of its workers, once their Spark jobs have ended."""
ANNOUNCE_SECONDS = 60.0
"""How long the end of a job that has finished waits for the `published` of its sinks: whoever reads what it has published
finds all of it then. After another end nobody waits for it."""
RECENT = 100
CheckpointFuture = Future[CheckpointStats]
_log = logging.getLogger("tailrace")


class JobRunner(threading.Thread):
    """Runs one job to its end. The interpreter's exit waits for it."""

    def __init__(
        self,
        name: str,
        job_id: str,
        run_id: str,
        plan: Plan,
        machine: Coordinator,
        provider: SlotProvider,
        store: Any = None,
        on_progress: Callable[[dict[str, Any], JobStatus], None] | None = None,
        on_end: Callable[..., None] | None = None,
        on_published: Iterable[tuple[str, Callable[[], object]]] = (),
    ) -> None:
        super().__init__(name=f"tailrace-coordinator-{name}")
        self.job_name = name
        self.job_id = job_id
        self.run_id = machine.run_id
        self.retain = "on-cancellation"
        """Whether checkpoints outlive the job: "never", "on-cancellation" (and after a failure) or "always"."""
        self.origin_marked: Callable[[], bool] | None = None
        """Whether the checkpoint that the job started from is marked as published, looked up in its folder."""
        self.machine = machine
        machine.clock_offset = _micros() - _now()
        self.status = JobStatus.CREATED
        self.ended = threading.Event()
        self.progress: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.crash: str | None = None
        """The traceback of this thread, where it broke; the job has failed then."""
        self._on_progress = on_progress
        self._on_end = on_end
        self._announcer = Announcer(name, on_published)
        self._provider = provider
        self._store = store
        """Where checkpoints are, or None for a job that takes none."""
        self._token = secrets.token_bytes(32)
        self._loop = Loop()
        self._listener = Listener(self._token, provider.listen_host(), self._loop, self._incoming)
        self._storage = StorageThread(self._loop, f"tailrace-storage-{name}") if store is not None else None
        self._door = ControlDoor(self._loop, self._asked)
        self._links: dict[tuple[int, int], Link] = {}
        self._pids: dict[tuple[int, int], int] = {}
        """The process of each start of a slot."""
        self._hearts: dict[Link, int] = {}
        self._strangers: set[Link] = set()
        self._waiting: set[CheckpointFuture] = set()
        self._no_workers = 0
        """Connections that knew the token and were of no worker that is wanted."""
        self._maker = ProgressMaker(job_id, run_id, name, plan, _micros())
        self._next_progress = time.monotonic() + PROGRESS_SECONDS

    # From other threads.

    def cancel(self) -> None:
        """Ends the job at once. After its end this does nothing."""
        self._loop.call_soon_threadsafe(lambda: self.machine.cancel(_now()))

    def checkpoint(self) -> CheckpointFuture:
        """Asks for a checkpoint now."""
        future: CheckpointFuture = Future()

        def ask() -> None:
            self.machine.checkpoint(future, _now())
            self._carry_out()

        if self.ended.is_set() or not self._loop.call_soon_threadsafe(ask):
            future.set_exception(CheckpointError(f"job {self.job_name!r} has ended"))
        else:
            self._waiting.add(future)
            if self.ended.is_set():
                self._disappoint()
        return future

    def _asked(self, request: dict[str, Any], reply: Reply) -> None:
        """Another process of this user wants something."""
        verb = request.get("verb")
        if verb == "who":
            reply({"name": self.job_name, "id": self.job_id, "status": str(self.status), "pid": os.getpid()})
        elif verb == "checkpoint":
            future: CheckpointFuture = Future()
            future.add_done_callback(lambda done: reply(_told(done)))
            self._waiting.add(future)
            self.machine.checkpoint(future, _now())
            self._carry_out()
        else:
            reply({"error": f"unknown verb {verb!r}"})

    def _disappoint(self) -> None:
        """Nobody will answer those who still wait for a checkpoint."""
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(CheckpointError(f"job {self.job_name!r} has ended"))

    def refused(self) -> dict[str, int]:
        """Connections refused at the coordinator's and the workers' ports, by reason."""
        found = {reason.value: count for reason, count in self._listener.refused.items() if count}
        if self._no_workers:
            found["no worker of this job"] = self._no_workers
        for slot in self.machine.roster.slots:
            for reason, count in slot.refused.items():
                found[reason] = found.get(reason, 0) + count
        return found

    # The thread.

    def run(self) -> None:
        try:
            self.machine.start(_now())
            self._carry_out()
            while not self.machine.status.final:
                self._turn()
            self._outlive_workers()
        except BaseException:
            self.crash = traceback.format_exc()
            self._kill_all()
        try:
            self._finish()
        except BaseException:
            self.crash = traceback.format_exc()
            self.status = JobStatus.FAILED
        finally:
            self.ended.set()  # whatever happened: somebody waits for it
            self._disappoint()

    def _turn(self) -> None:
        self._loop.poll(self._timeout())
        self._listener.expire(time.monotonic())
        self.machine.tick(_now())
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self._report()
        self._carry_out()

    def _outlive_workers(self) -> None:
        """A Spark job that was cancelled ends at once, its Python process up to four seconds later, and until then it may
        still write. It is gone when its link is."""
        deadline = time.monotonic() + OUTLIVE_SECONDS
        while self._links and (left := deadline - time.monotonic()) > 0:
            self._loop.poll(left)

    def _kill_all(self) -> None:
        for slot in self.machine.roster.slots:
            for launch in slot.running:
                self._provider.kill(slot.index, launch, self._pids.get((slot.index, launch)))

    def _timeout(self) -> float:
        waits = [self._next_progress - time.monotonic()]
        tick = self.machine.next_tick(_now())
        if tick is not None:
            waits.append((tick - _now()) / 1e6)
        if self._listener.next_deadline is not None:
            waits.append(self._listener.next_deadline - time.monotonic())
        return max(0.0, min(waits))

    def _report(self) -> None:
        if self.machine.status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING):
            made = self._make_report()
            self.progress.append(made)
            if self._on_progress is not None:
                with contextlib.suppress(Exception):  # a broken display must not break the job
                    self._on_progress(made, self.machine.status)

    def _make_report(self) -> dict[str, Any]:
        machine = self.machine
        return self._maker.make(machine.roster.slots, _micros(), machine.checkpoints, machine.attempt)

    def _finish(self) -> None:
        if self.machine.roster.slots[0].reports:
            self.progress.append(self._make_report())
        for link in [*self._links.values(), *self._hearts, *self._strangers]:
            self._close(link)
        self._listener.close()
        self._door.close()
        self._provider.close(timeout=5.0)
        remove_abandoned()  # of workers that were killed on this machine
        kept = self._end_storage()
        self._announcer.close(ANNOUNCE_SECONDS if self.machine.status is JobStatus.FINISHED else 0.0)
        self._loop.close()
        self.machine.plan = b""  # it may be large, and the handle of the job may be kept
        status = JobStatus.FAILED if self.crash is not None else self.machine.status
        if self._on_end is not None and kept is not None:
            with contextlib.suppress(Exception):  # tidying up changes nothing about how the job ended
                self._on_end(status, kept)
        self.status = status
        if self._on_progress is not None and self.progress:
            with contextlib.suppress(Exception):
                self._on_progress(self.progress[-1], self.status)

    def _end_storage(self) -> dict[str, list[bytes]] | None:
        """Checkpoints that are not to outlive the job go. What those that stay have prepared and nobody may have published,
        by the uid of the sink; None where that is not known."""
        if self._storage is None:
            return {}
        checkpoints = self.machine.checkpoints
        kept: list[dict[str, list[bytes]] | None] = [None]
        assert checkpoints is not None
        ended_well = self.crash is None and self.machine.status is JobStatus.FINISHED
        fenced = self.machine.cause is not None and self.machine.cause.kind is FailureKind.FENCED
        over = (self.retain == "never" or (self.retain == "on-cancellation" and ended_well)) and not fenced
        names = checkpoints.give_up_all() if over else []

        def tidy() -> None:
            kept[0] = {} if over and self._remove_all(names) else self._prepared()

        self._storage.do(tidy)
        self._storage.do(self._release)
        self._storage.close(timeout=30.0)
        return kept[0]

    def _remove_all(self, names: list[str]) -> bool:
        """In the thread of the storage: nothing of this run is to stay. False where something has to: another start may
        have taken the job over without our having noticed, and what it starts from is ours."""
        try:
            newest = max(self._store.incarnations(), default=0)
            owner = self._store.owner(newest)
        except Exception:
            _log.warning("job %r: its checkpoints could not be removed", self.job_name, exc_info=True)
            return False
        if owner is not None and owner.run_id != self.run_id:
            return False
        self._remove(names)
        self._sweep(Sweep(newest + 1, []))
        return True

    def _prepared(self) -> dict[str, list[bytes]] | None:
        """In the thread of the storage, when no commit is on its way any more: what the checkpoints that stay have prepared.
        Whoever starts from one of them publishes it, or needs to know that it was. None where that cannot be read, or where
        another run has taken over: it may have read our checkpoint before it was marked as published."""
        checkpoints = self.machine.checkpoints
        assert checkpoints is not None
        try:
            owner = self._store.owner(max(self._store.incarnations(), default=0))
            if owner is not None and owner.run_id != self.run_id:
                return None
            newest = self._store.latest()
            stay = [self._store.manifest(path) for path in checkpoints.kept_paths]
            kept: dict[str, dict[bytes, None]] = {}  # the newest one is among those that stay, as a rule
            for one in [one for each in [*stay, *([] if newest is None else newest[1:])] for one in each.prepared]:
                data = one.data if isinstance(one.data, bytes) else read_placed(self._store, one.data)
                kept.setdefault(one.uid, {})[data] = None
        except Exception:
            _log.warning("job %r: its last checkpoint cannot be read; nothing is removed", self.job_name, exc_info=True)
            return None
        return {uid: list(prepared) for uid, prepared in kept.items()}

    def _release(self) -> None:
        with contextlib.suppress(Exception):  # the next start finds that our process is gone
            self._store.release(self.machine.incarnation)

    # Actions.

    def _carry_out(self) -> None:
        machine = self.machine
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                if isinstance(action, Launch):
                    self._launch(action)
                elif isinstance(action, Send):
                    self._send(action)
                elif isinstance(action, CloseLink):
                    link = self._links.pop((action.slot, action.epoch), None)
                    if link is not None:
                        self._close(link)
                elif isinstance(action, Kill):
                    self._provider.kill(action.slot, action.launch, self._pids.get((action.slot, action.launch)))
                elif isinstance(action, StatusChanged):
                    self._status(action.status)
                elif isinstance(action, CheckpointEnded):
                    self._checkpoint_ended(action)
                elif isinstance(action, WasPublished):
                    self._announcer.announce()
                elif isinstance(action, Restarting):
                    self._restarting(action)
                else:
                    self._store_action(action)

    def _status(self, status: JobStatus) -> None:
        if not status.final:  # a final status is told once everything is cleaned up
            self.status = status

    def _launch(self, action: Launch) -> None:
        slot, launch = action.slot, action.launch
        address = self._listener.address
        config = WorkerConfig(slot, self.job_name, self.machine.incarnation, address, self._token, launch)
        loop, machine, provider = self._loop, self.machine, self._provider

        def ended(index: int, error: str | None, cancelled: bool) -> None:
            over = not provider.lives()
            loop.call_soon_threadsafe(lambda: machine.slot_ended(index, error, _now(), cancelled, launch, over))

        self._provider.launch(config, ended)

    def _checkpoint_ended(self, action: CheckpointEnded) -> None:
        for future in action.waiting:
            self._waiting.discard(future)
            if future.done():
                continue
            if action.stats is not None:
                future.set_result(action.stats)
            else:
                what = f"checkpoint {action.checkpoint} of" if action.checkpoint else "no checkpoint of"
                future.set_exception(CheckpointError(f"{what} job {self.job_name!r}: {action.reason}"))

    def _restarting(self, action: Restarting) -> None:
        cause = action.cause
        where = f" in operator {cause.operator!r}" if cause.operator is not None else ""
        _log.warning("job %r restarts (restart %d)%s: %s", self.job_name, action.attempt, where, cause.message)

    # Storage. Each is one call in the thread for it, which tells the machine how it went.

    def _store_action(self, action: Claim | Commit | Delete | Sweep | MarkPublished | MarkSwept) -> None:
        assert self._storage is not None
        if isinstance(action, Claim):
            self._storage.do(self._claim)
        elif isinstance(action, Commit):
            self._storage.do(lambda: self._commit(action))
        elif isinstance(action, Delete):
            self._storage.do(lambda: self._remove(action.names))
        elif isinstance(action, MarkPublished):
            self._storage.do(lambda: self._mark(action.path))
        elif isinstance(action, MarkSwept):
            self._storage.do(self._mark_swept)
        else:
            self._storage.do(lambda: self._sweep(action))

    def _claim(self) -> None:
        machine, tell = self.machine, self._tell
        try:
            incarnation = self._store.claim(self.run_id)
            found = self._store.latest()
            published = self.origin_marked is not None and self.origin_marked()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            kind = storage_failure(error)
            tell(lambda: machine.claim_failed(reason, _now(), kind))
            return
        path, manifest = found if found is not None else ("", None)
        if published:
            tell(machine.origin_published)
        tell(lambda: machine.claimed(incarnation, manifest, path, _now()))

    def _commit(self, action: Commit) -> None:
        machine, number = self.machine, action.checkpoint
        try:
            path = self._store.commit(action.incarnation, action.after, action.checkpoint, action.data, action.needs)
            url = self._store.url_of(path)
        except Exception as error:
            reason, kind = f"{type(error).__name__}: {error}", storage_failure(error)
            self._tell(lambda: machine.not_committed(number, reason, kind, _now()))
            return
        self._tell(lambda: machine.committed(number, path, url, _now()))

    def _remove(self, names: list[str]) -> None:
        try:
            self._store.delete(names)
        except Exception:
            _log.warning(
                "job %r: could not delete %d old files of checkpoints", self.job_name, len(names), exc_info=True
            )

    def _mark(self, path: str) -> None:
        machine = self.machine
        try:
            self._store.mark_published(path)
        except Exception:
            _log.warning("job %r: could not mark what was published", self.job_name, exc_info=True)
            self._tell(lambda: machine.not_marked(path, _now()))
            return
        self._tell(lambda: machine.marked(path, _now()))

    def _sweep(self, action: Sweep) -> None:
        try:
            self._store.sweep(action.incarnation, action.needed)
        except Exception:
            _log.warning("job %r: could not remove what an attempt left behind", self.job_name, exc_info=True)

    def _mark_swept(self) -> None:
        try:
            self._store.mark_swept()
        except Exception:
            _log.warning("job %r: could not mark what was removed", self.job_name, exc_info=True)

    def _tell(self, event: Callable[[], object]) -> None:
        assert self._storage is not None

        def act() -> None:
            event()
            self._carry_out()

        self._storage.tell(act)

    def _send(self, action: Send) -> None:
        link = self._links.get((action.slot, action.epoch))
        if link is None:
            return
        try:
            link.send(CONTROL, wire.encode(action.message))
            link.flush()
            self._watch(link)
        except LinkError as error:
            self._lost(action.slot, action.epoch, error.reason)
        except TooLarge as error:
            self.machine.fail(f"{type(action.message).__name__} for worker {action.slot} is too large: {error}", _now())
        if isinstance(action.message, deployment.Leave) and self.machine.status is not JobStatus.FINISHING:
            # The worker's other thread learns from this that the job is over, even while user code blocks. After a good
            # end users' `close` may take its time.
            for heart in [heart for heart, slot in self._hearts.items() if slot == action.slot]:
                self._close(heart)

    # Links.

    def _incoming(self, link: Link) -> None:
        """Somebody knows the token; the first message says who it is."""
        self._strangers.add(link)
        self._loop.register(link, selectors.EVENT_READ, functools.partial(self._first_message, link))

    def _first_message(self, link: Link, mask: int) -> None:
        try:
            messages = link.readable()
            if not messages:
                return
            first, *rest = [wire.decode(payload) for _, payload in messages]
        except (LinkError, ProtocolViolation):
            self._refuse(link)
            return
        if isinstance(first, Hello) and not rest:  # until it is welcome a worker says nothing else
            self._hello(link, first)
        elif isinstance(first, Heartbeat):
            self._strangers.discard(link)
            self._hearts[link] = first.slot
            self._loop.modify(link, selectors.EVENT_READ, functools.partial(self._heart_ready, link))
        else:
            self._refuse(link)

    def _hello(self, link: Link, hello: Hello) -> None:
        epoch = self.machine.hello(hello, _now())
        if epoch is None:
            self._refuse(link)
            return
        self._strangers.discard(link)
        self._pids[hello.slot, hello.launch] = hello.pid
        link.peer = f"worker {hello.slot}"
        self._links[hello.slot, epoch] = link
        ready = functools.partial(self._worker_ready, hello.slot, epoch, link)
        self._loop.modify(link, selectors.EVENT_READ, ready)
        link.ready = ready

    def _refuse(self, link: Link) -> None:
        self._no_workers += 1
        self._close(link)

    def _worker_ready(self, slot: int, epoch: int, link: Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                link.flush()
                self._watch(link)
            if mask & selectors.EVENT_READ:
                for _, payload in link.readable():
                    self.machine.message(slot, epoch, wire.decode(payload), _now())
        except LinkError as error:
            self._lost(slot, epoch, error.reason)
        except ProtocolViolation as error:
            self._lost(slot, epoch, f"it broke the protocol: {error}")

    def _heart_ready(self, link: Link, mask: int) -> None:
        try:
            for _, payload in link.readable():
                beat = wire.decode(payload)
                if isinstance(beat, Heartbeat):
                    self.machine.heartbeat(beat.slot, beat.pid, _now())
        except (LinkError, ProtocolViolation):
            self._close(link)

    def _watch(self, link: Link) -> None:
        """Asks for writability exactly while something is queued."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
        if link.watched != wanted:
            self._loop.modify(link, wanted, link.ready)
            link.watched = wanted

    def _lost(self, slot: int, epoch: int, reason: str) -> None:
        link = self._links.pop((slot, epoch), None)
        if link is not None:
            self._close(link)
        self.machine.link_lost(slot, epoch, reason, _now())

    def _close(self, link: Link) -> None:
        self._strangers.discard(link)
        self._hearts.pop(link, None)
        if link.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self._loop.unregister(link)
            link.close()


def _told(future: CheckpointFuture) -> dict[str, Any]:
    error = future.exception()
    if error is not None:
        return {"error": str(error)}
    stats = future.result()
    return {"id": stats.id, "path": stats.path, "bytes": stats.size, "duration": stats.duration / 1e6}


def _now() -> int:
    """The coordinator's clock: int64 microseconds that never go back."""
    return time.monotonic_ns() // 1000


def _micros() -> int:
    return time.time_ns() // 1000
