"""The coordinator of one job: a front that hands events to bookkeepers and carries out what they decide.

Events come as method calls with the clock reading where one is needed; what is to be done collects in `actions`. The
bookkeepers (`roster`, `claims`, `checkpoints`, `publishing`, `origin`, `loops`, `restarts`, `failures`, `leaving`) know each
other by values only; the front alone knows the state of the job. Its drivers are `runtime.coordinator` and the simulator.

A failure starts an attempt anew, as long as the restart strategy allows it. The outcome is decided once: the first cause
wins, and from then on the only thing awaited is that the workers leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tailrace.coordinator.actions import (
    Action,
    CheckpointEnded,
    Claim,
    CloseLink,
    Delete,
    MarkPublished,
    MarkSwept,
    Restarting,
    Send,
    StatusChanged,
    Sweep,
    WasPublished,
)
from tailrace.coordinator.checkpoints import Checkpoints, CheckpointSettings
from tailrace.coordinator.claims import Claims
from tailrace.coordinator.failures import Cause, Reaction, reaction
from tailrace.coordinator.leaving import Leaving
from tailrace.coordinator.lifecycle import ENDS, JobStatus, moved
from tailrace.coordinator.limits import Limits
from tailrace.coordinator.loops import FROM_WORKER, FromWorker, Nests, NestSpec, Sent
from tailrace.coordinator.origin import Origin
from tailrace.coordinator.publishing import Publications
from tailrace.coordinator.restarts import Never, Strategy
from tailrace.coordinator.roster import Roster, Slot
from tailrace.errors import InternalError, ProtocolViolation
from tailrace.protocol.deployment import (
    Deploy,
    Deployed,
    Failed,
    FailureKind,
    Hello,
    Leave,
    OperatorEvent,
    Progress,
    Published,
    Start,
    SubtasksFinished,
    Welcome,
)
from tailrace.protocol.recovery import Reset, WasReset
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Trigger
from tailrace.protocol.wire import AnyMessage
from tailrace.state.manifest import Manifest, Prepared, encode_manifest

Deadline = tuple[int | None, Callable[[int], None]]
"""When something is to be done that the clock alone brings about (None: not as things stand), and what."""


class Coordinator:
    """One job.

    Invariant J1: `cause` is set exactly when the job is FAILING or FAILED, and then never changes but for what Spark says
    about the worker that was lost, which comes a moment later and completes its text.
    Invariant J2: what sinks prepared is published only after a manifest with it was committed, or, where there are no
    checkpoints, once and after every slice has finished.
    """

    def __init__(
        self,
        job: str,
        incarnation: int,
        slots: int,
        plan: bytes,
        limits: Limits | None = None,
        *,
        run_id: str = "",
        max_parallelism: int = 128,
        checkpoints: CheckpointSettings | None = None,
        restarts: Strategy | None = None,
        origin: Manifest | None = None,
        origin_folder: str = "",
        origin_path: str = "",
        origin_before: Sequence[str] = (),
        spare_origin: bool = False,
        abandoned: Sequence[str] = (),
        nests: Sequence[NestSpec] = (),
    ) -> None:
        self.job = job
        self.run_id = run_id
        self.plan = plan
        self.limits = limits if limits is not None else Limits()
        self.roster = Roster(slots)
        self.status = JobStatus.CREATED
        self.cause: Cause | None = None
        self.actions: list[Action] = []
        self.left_behind: list[int] = []
        """Slots whose Spark job had not ended when the job did."""
        self.checkpoints: Checkpoints | None = None
        if checkpoints is not None:
            self.checkpoints = Checkpoints(checkpoints, job, run_id, slots, max_parallelism, origin)
        self.nests = Nests(nests)
        self.restarts: Strategy = restarts if restarts is not None else Never()
        self.attempt = 0
        """How many times the job was restarted."""
        self.last_failure: Cause | None = None
        """Why it was restarted last."""
        self._claims = Claims(incarnation)
        self._leaving = Leaving(self.limits)
        self._publications = Publications()
        self._origin = Origin(origin, origin_folder, origin_path, origin_before, spare_origin)
        self._abandoned = set(abandoned)
        """Earlier runs whose sinks may have left output under cover which nobody will publish, until it is removed."""
        self._swept = False
        self._restore: Manifest | None = origin
        """What the next deployment restores."""
        self._story: deque[str] = deque(maxlen=64)
        self._started_at = 0
        """When the slots began to be filled, at the start or at a restart."""
        self._deployed = False
        """Whether the plan of this attempt was sent to the workers."""
        self._resume_at: int | None = None
        """While restarting: not before this time."""
        self._beginning = False
        """All have deployed, and what the restored checkpoint had prepared is being published before the start."""
        self._published = False
        """Whether sinks have published, or had nothing to publish."""

    @property
    def incarnation(self) -> int:
        """The incarnation that the job holds."""
        return self._claims.incarnation

    # Events: workers.

    def start(self, now: int) -> None:
        """The job is to run."""
        self._move(JobStatus.STARTING)
        self._started_at = now
        self.actions.extend(slot.launch() for slot in self.roster.slots)
        if self.checkpoints is not None:
            self.actions.append(Sweep(self.incarnation, []))

    def hello(self, hello: Hello, now: int) -> int | None:
        """A worker joins. Its epoch, or None when it is not wanted (its link is then to be closed)."""
        self._story.append(f"{now} hello {hello.slot} pid {hello.pid}")
        if hello.job != self.job or not 0 <= hello.slot < len(self.roster.slots) or self._ending:
            return None
        slot = self.roster.slots[hello.slot]
        if self.status is JobStatus.CREATED or hello.launch != slot.launches:
            return None
        if not 0 < hello.incarnation <= self.incarnation:
            return None
        epoch, replaced = self.roster.admit(hello, now)
        if replaced is not None:
            self.actions.append(CloseLink(hello.slot, replaced))
        self._send(slot, Welcome(epoch))
        if self._deployed:
            # Spark has started the worker again by itself; the one before is gone, with all that it held.
            self._fail(now, Cause(f"worker {hello.slot} was replaced", FailureKind.WORKER))
        self._maybe_deploy(now)
        return epoch

    def message(self, index: int, epoch: int, message: AnyMessage, now: int) -> None:
        """A worker says something. Who holds no slot any more is not heard."""
        if not self.roster.holds(index, epoch):
            return
        slot = self.roster.slots[index]
        slot.heard_at = now
        if slot.clean:
            self._heard(slot, message, now)
        elif isinstance(message, WasReset) and message.attempt == slot.attempt:
            # Until now it spoke of the attempt that is over; nothing of it is left.
            slot.clean = True
            self._maybe_deploy(now)

    def _heard(self, slot: Slot, message: AnyMessage, now: int) -> None:
        index = slot.index
        if isinstance(message, Progress):
            slot.reports, slot.elapsed, slot.refused = message.subtasks, message.elapsed_micros, message.refused
            return
        self._story.append(f"{now} {type(message).__name__} from {index}")
        match message:
            case Failed() if message.kind.of_worker:
                where = (message.operator, message.subtask, message.record, message.peer)
                self._fail(now, Cause(message.message, message.kind, *where))
            case Deployed():
                slot.deployed = True
                if self._filling and all(s.deployed for s in self.roster.slots):
                    self._begin(now)
            case SubtasksFinished():
                slot.finished = not message.more
                slot.prepared = [*slot.prepared, *message.prepared]
                if self.status is JobStatus.RUNNING and all(s.finished for s in self.roster.slots):
                    self._all_finished(now)
            case Published():
                self._was_published(message, now)
            case OperatorEvent():
                self._relay(message, index, now)
            case Ack():
                self._ack(index, message, now)
            case Declined():
                self._abort(message.checkpoint, f"worker {index}: {message.reason}", now)
            case WasReset():
                pass  # of a restart that another one overtook
            case _ if isinstance(message, FROM_WORKER):
                self._of_a_nest(index, message, now)
            case _:
                self._fail(now, Cause(f"worker {index} said {type(message).__name__}, which is not for it to say"))

    def heartbeat(self, index: int, pid: int, now: int) -> None:
        """A worker's process gives a sign of life."""
        if 0 <= index < len(self.roster.slots):
            slot = self.roster.slots[index]
            if slot.hello is not None and slot.hello.pid == pid:
                slot.heard_at = now

    def link_lost(self, index: int, epoch: int, reason: str, now: int) -> None:
        """The link of a worker closed: the worker is lost, unless it was to leave."""
        if not self.roster.holds(index, epoch):
            return
        self._story.append(f"{now} link of {index} lost: {reason}")
        if self._ending:
            self.roster.lose(index)
        else:
            self._lost(self.roster.slots[index], f"worker {index} was lost: {reason}", now)

    def slot_ended(
        self,
        index: int,
        error: str | None,
        now: int,
        cancelled: bool = False,
        launch: int | None = None,
        over: bool = False,
    ) -> None:
        """A Spark job of a slot ended, by itself or because it was told to. Whoever else cancels a worker's Spark job
        (Ctrl-C does, in a program with a Spark session) wants the job to end. `over`: Spark itself has ended, and there
        will be no other job for the slot."""
        slot = self.roster.slots[index]
        number = slot.launches if launch is None else launch
        self._story.append(f"{now} spark job {number} of {index} ended: {error}")
        told = slot.job_ended(number)
        if cancelled and not told:
            self.cancel(now)
        elif error is not None and not told and self.cause is not None and self.cause.slot == index:
            self.cause = self.cause.described(f"Spark says: {error}")
        elif not self._ending and over:
            what = f"the Spark task of worker {index} ended: {error}"
            self._fail(now, Cause(what, FailureKind.SLOTS, slot=index))
        elif not self._ending and not told and number == slot.launches:
            said = error if error is not None else "it ended without having been told to"
            self._lost(slot, f"the Spark task of worker {index} ended: {said}", now)
        self._maybe_over()

    # Events: the storage of checkpoints.

    def claimed(self, incarnation: int, manifest: Manifest | None, path: str, now: int) -> None:
        """A new incarnation is ours, and nobody can commit under an older one any more. `manifest` is the newest that was
        committed under this job's name."""
        self._claims.answered()
        if manifest is not None and manifest.incarnation > self.incarnation and manifest.run_id != self.run_id:
            what = f"another start of job {self.job!r} (run {manifest.run_id}) has taken over"
            self._fail(now, Cause(what, FailureKind.FENCED))
            return
        self._claims.taken(incarnation)
        ours = manifest if manifest is not None and manifest.run_id == self.run_id else None
        self._restore = ours if ours is not None and self.checkpoints is not None else self._origin.manifest
        if self.checkpoints is not None:
            self.checkpoints.claimed(ours, path)
            self.actions.append(Sweep(incarnation, self.checkpoints.needed))
        self._maybe_deploy(now)

    def origin_published(self) -> None:
        """The checkpoint that the run has started from is marked, by us or by another start from it."""
        self._origin.published()

    def claim_failed(self, reason: str, now: int, kind: FailureKind = FailureKind.STORE) -> None:
        """The storage of checkpoints did not give us a new incarnation. `kind` says whether it is asked again: not where
        another start has taken the job over (FENCED), or where what is there cannot be read (STATE)."""
        self._claims.answered()
        if not self._ending:
            self._fail(now, Cause(f"no new incarnation could be claimed in the storage of checkpoints: {reason}", kind))

    def committed(self, checkpoint: int, path: str, url: str, now: int) -> None:
        """The manifest of a checkpoint exists; `path` is its name relative to the checkpoint folder of the job."""
        checkpoints = self.checkpoints
        manifest = None if checkpoints is None else checkpoints.commit_answered()
        if checkpoints is None or manifest is None or checkpoint not in checkpoints.pending:
            return  # the job was restarted meanwhile: the claim has found it, or will
        for older in checkpoints.overtaken(checkpoint):
            self._abort(older, f"checkpoint {checkpoint}, which is newer, is complete", now, failure=False)
        complete = checkpoints.committed(checkpoint, manifest, path, url, now)
        self.actions.append(complete.ended)
        for slot in self.roster.connected:
            self._send(slot, Complete(checkpoint))
        self._publish(checkpoint, complete.fresh)
        self._settle()
        self._delete_surplus()
        if complete.stats.final and self.status is JobStatus.RUNNING:
            self._move(JobStatus.FINISHING)
            self._maybe_finish(now)
        else:
            self._commit_next(now)

    def not_committed(self, checkpoint: int, reason: str, kind: FailureKind, now: int) -> None:
        """The manifest of a checkpoint could not be written, or nobody knows whether it was (STORE). What the storage
        holds is found out under a new incarnation, which is a restart; a job that was overtaken by another start (FENCED),
        or whose checkpoints somebody has removed (STATE), has ended."""
        if self.checkpoints is None:
            return
        self.checkpoints.commit_answered()
        if checkpoint in self.checkpoints.pending and not self._ending:
            self._fail(now, Cause(f"checkpoint {checkpoint} could not be committed: {reason}", kind))

    def marked(self, path: str, now: int) -> None:
        """It is written down that all that a manifest has prepared is published."""
        if self.checkpoints is not None:
            self.checkpoints.marked(path)
            self._delete_surplus()
        self._origin.marked(path)

    def _delete_surplus(self) -> None:
        """Has the files deleted that no checkpoint needs any more: behind a commit, or the mark of one that is not kept."""
        surplus = [] if self.checkpoints is None else self.checkpoints.surplus()
        if surplus:
            self.actions.append(Delete(surplus))

    def not_marked(self, path: str, now: int) -> None:
        """That could not be written down: it is asked for again with the next publication, or the next checkpoint."""
        if self.checkpoints is not None:
            self.checkpoints.not_marked(path)
        self._origin.not_marked(path)

    # Events: the user, the driver and the clock.

    def checkpoint(self, who: Any, now: int) -> None:
        """Somebody wants a checkpoint now; `CheckpointEnded` will carry `who`."""
        refused = None
        if self.checkpoints is None:
            refused = "the job takes no checkpoints: give its Environment checkpoint=CheckpointConfig(...)"
        elif self._ending or self.status is JobStatus.FINISHING:
            refused = f"the job is {self.status}"
        if refused is not None:
            self.actions.append(CheckpointEnded(0, (who,), None, refused))
            return
        assert self.checkpoints is not None
        self.checkpoints.requests.append(who)
        self._trigger_due(now)

    def cancel(self, now: int) -> None:
        """The user wants the job to end at once. Legal at any moment; after the end it changes nothing."""
        if self.status is JobStatus.CREATED:
            self._move(JobStatus.CANCELLING)
            self._move(JobStatus.CANCELLED)
        elif not self._ending:
            self._end(JobStatus.CANCELLING, "the job was cancelled", now)

    def fail(self, message: str, now: int) -> None:
        """The driver of this machine cannot go on."""
        self._fail(now, Cause(message))

    def give_up(self, crashed: bool) -> list[str] | None:
        """The job is over, well or not; `crashed`: its driver broke. The files of its checkpoints, where these are not to
        outlive it; None where they stay."""
        if self.checkpoints is None:
            return None
        well = self.status is JobStatus.FINISHED and not crashed
        fenced = self.cause is not None and self.cause.kind is FailureKind.FENCED  # who has taken over starts from them
        return self.checkpoints.give_up_all() if self.checkpoints.settings.given_up(well) and not fenced else None

    def tick(self, now: int) -> None:
        """The clock moved: does what is due, in the order of `_deadlines`, which sees what was done before."""
        for at, act in self._deadlines():
            if at is not None and at <= now:
                act(now)

    def next_tick(self, now: int) -> int | None:
        """When the clock alone gives something to do next, or None."""
        return min((at for at, _ in self._deadlines() if at is not None), default=None)

    def _deadlines(self) -> Iterator[Deadline]:
        """Everything that the clock alone brings about. What is done at a deadline takes it away."""
        if self.status is JobStatus.CREATED:
            return
        if self._filling and not self._deployed and not self._claims.under_way:
            yield self._started_at + self.limits.slots, self._slots_late
        if not self._ending:
            yield self.roster.silent_at(self.limits.lease), self._worker_silent
        if not self._ending:
            yield self._store_silent_at, self._store_silent
        if self.status is JobStatus.RESTARTING:
            yield min(map(self._reset_by, self.roster.holding_up()), default=None), self._reset_overdue
            yield self._claims.due_at, self._claim_due
            yield self._resume_at, self._resume
        if self.status is JobStatus.RUNNING:
            yield self.nests.next_tick(), self._nests_due
        if self.status is JobStatus.RUNNING and self.checkpoints is not None:
            yield self.checkpoints.timeout_at(), self._checkpoints_late
        if self.status is JobStatus.RUNNING and self.checkpoints is not None:
            yield self.checkpoints.due_at(), self._trigger_due
        if not self.status.final:
            yield self._leaving.kill_at, self._kill_all
            yield self._leaving.over_at, self._leave_behind

    def _slots_late(self, now: int) -> None:
        here, wanted = len(self.roster.connected), len(self.roster.slots)
        what = (
            f"the job needs {wanted} task slots, {here} came within {self.limits.slots // 1_000_000} s; give Spark more "
            f"free cores, or lower the parallelism"
        )
        self._fail(now, Cause(what, FailureKind.SLOTS))

    def _worker_silent(self, now: int) -> None:
        slot = self.roster.silent(now, self.limits.lease)
        if slot is not None:
            self.actions.append(CloseLink(slot.index, slot.epoch))
            seconds = (now - slot.heard_at) / 1e6
            self._lost(slot, f"worker {slot.index} has given no sign of life for {seconds:.0f} s", now)

    @property
    def _store_silent_at(self) -> int | None:
        """When the storage has not answered for too long."""
        asked = [self._claims.asked_at, None if self.checkpoints is None else self.checkpoints.commit_asked_at]
        return min((at + self.limits.store for at in asked if at is not None), default=None)

    def _store_silent(self, now: int) -> None:
        what = f"the storage of checkpoints has not answered for {self.limits.store / 1e6:.0f} s"
        self._fail(now, Cause(what, FailureKind.SILENT))

    def _nests_due(self, now: int) -> None:
        self._tell(self.nests.tick(now))

    # The slots.

    @property
    def _ending(self) -> bool:
        return self._leaving.since is not None or self.status.final

    @property
    def _filling(self) -> bool:
        """Whether the job waits for its slots to be filled and deployed."""
        return self.status in (JobStatus.STARTING, JobStatus.RESTARTING)

    def _lost(self, slot: Slot, what: str, now: int) -> None:
        """A worker is gone. While it was to drop what it ran, that is the failure that we restart from, or a part of it:
        it does not count again."""
        known = self.status is JobStatus.RESTARTING and slot.connected and not slot.clean
        self.roster.lose(slot.index)
        if known:
            self.actions.extend(slot.relaunch())
        else:
            self._fail(now, Cause(what, FailureKind.WORKER, slot=slot.index))

    # The beginning of an attempt.

    def _maybe_deploy(self, now: int) -> None:
        """Sends the plan when every slot has a worker that runs nothing, and nobody can commit under an older one of our
        incarnations."""
        if not self._filling or self._deployed or self._claims.under_way or not self.roster.complete:
            return
        if not all(slot.clean for slot in self.roster.slots):
            return
        if self._resume_at is not None and now < self._resume_at:
            return
        self._deployed = True
        self._claims.deployed()
        restored, peers = self._restore, self.roster.peers()
        # What is to be published goes to one worker only, in a message of its own.
        manifest = b"" if restored is None else encode_manifest(msgspec.structs.replace(restored, prepared=[]))
        own = restored is not None and restored.run_id == self.run_id
        folder = "" if own else self._origin.folder
        for slot in self.roster.slots:
            self._send(slot, Deploy(self.plan, peers, self.incarnation, slot.attempt, manifest, folder, own))

    def _begin(self, now: int) -> None:
        """All have deployed. What the restored checkpoint had prepared may not be published yet, and what was prepared
        after it never will be: both is seen to before anything else happens."""
        restored = self._restore
        runs = self._abandoned | ({self.run_id} if self.attempt and not self._traces_needed else set())
        if restored is not None and self._fenced(restored):
            runs.add(restored.run_id)
        self._beginning = True
        if runs or (restored is not None and restored.prepared):
            self._publish(0, [] if restored is None else restored.prepared, sorted(runs))
        else:
            self._origin.visible = restored is not None and restored is self._origin.manifest
            self._mark(self._origin.to_mark())
        self._maybe_start(now)

    @property
    def _traces_needed(self) -> bool:
        """Whether traces of this run must stay, and with them all that it has left: a kept checkpoint may have output that
        is visible, is not in the restored one, and is asked for by who starts from it."""
        restored = self._restore
        if restored is None or restored.run_id != self.run_id or self.checkpoints is None:
            return False
        return self.checkpoints.has_more(restored)

    def _fenced(self, manifest: Manifest) -> bool:
        """Whether the run that wrote a manifest cannot commit any more because of us: it is ours, or one of this job in
        this folder. Another job may live on; what it has not published is not ours to remove. Nor is what a later checkpoint
        of that run needs: the user may have gone back too far, and start from it after all."""
        if manifest.run_id == self.run_id:
            return not self._traces_needed
        return self._is_here(manifest) and not self._origin.spare

    def _is_here(self, manifest: Manifest) -> bool:
        """Whether another run of this job has written a manifest in this very folder: it cannot live any more, as it may
        where this is a copy of its folder."""
        folder = self.checkpoints.settings.origin if self.checkpoints is not None else ""
        return manifest.job == self.job and self._origin.folder == manifest.root == folder

    def _maybe_start(self, now: int) -> None:
        if self._beginning and self._filling and not self._publications.open:  # it may be ending meanwhile
            self._beginning = False
            self._move(JobStatus.RUNNING)
            self.nests.begin()
            if self.checkpoints is not None:
                self.checkpoints.start(now)
                if not self._swept:
                    self._swept, self._abandoned = True, set()
                    if not self._origin.spare:  # else the next start looks again
                        self.actions.append(MarkSwept())
            for slot in self.roster.slots:
                self._send(slot, Start())

    # Checkpoints.

    def _trigger_due(self, now: int) -> None:
        if self.checkpoints is not None and self.status is JobStatus.RUNNING and self.checkpoints.trigger_due(now):
            self._trigger(now, all(slot.finished for slot in self.roster.slots))

    def _trigger(self, now: int, final: bool, hold: bool = False) -> None:
        assert self.checkpoints is not None
        number = self.checkpoints.trigger(now, now + self.clock_offset, final)
        self._story.append(f"{now} checkpoint {number} triggered")
        for slot in self.roster.slots:
            self._send(slot, Trigger(number, final, hold))

    clock_offset = 0
    """What to add to the coordinator's clock to get microseconds since 1970. Set by the driver."""

    def _ack(self, index: int, ack: Ack, now: int) -> None:
        checkpoints = self.checkpoints
        if self._ending:
            self.actions.append(Delete([ack.file]))  # it was said before the worker knew
        elif checkpoints is not None and ack.checkpoint in checkpoints.pending:
            gone = checkpoints.gone(ack)
            if gone:
                # A peer's barrier overtook our `Complete`: the worker built on files that were deleted since.
                what = f"worker {index} builds on {gone[0]}, which is deleted"
                self._abort(ack.checkpoint, what, now, failure=False)
            elif checkpoints.ack(index, ack):
                self._commit_next(now)

    def _commit_next(self, now: int) -> None:
        checkpoints = self.checkpoints
        ready = checkpoints.ready() if checkpoints is not None else None
        if checkpoints is None or ready is None or self.status is not JobStatus.RUNNING:
            return
        commit = checkpoints.commit(ready, self.incarnation, now)
        self._publications.restored_marked = self._restored_settled()
        self._publications.before_commit(checkpoints.settled(self._publications.visible_through(checkpoints.newest)))
        self.actions.append(commit)

    def _checkpoints_late(self, now: int) -> None:
        assert self.checkpoints is not None
        for number in self.checkpoints.timed_out(now):
            self._abort(number, f"it took longer than {self.checkpoints.settings.timeout / 1e6:g} s", now)

    def _abort(self, number: int, reason: str, now: int, failure: bool = True) -> None:
        """A checkpoint will never be complete. Too many in a row are a failure of the job."""
        aborted = None if self.checkpoints is None else self.checkpoints.abort(number, reason, now, failure)
        if aborted is None:
            return
        self._story.append(f"{now} checkpoint {number} aborted: {reason}")
        self.actions.append(aborted.ended)
        for slot in self.roster.connected:
            self._send(slot, Abort(number))
        if aborted.too_many:
            what = f"checkpoint {number} failed, as did those before it: {reason}"
            self._fail(now, Cause(what, FailureKind.CHECKPOINT))
        elif aborted.final and self.status is JobStatus.RUNNING:
            self._trigger(now, True)

    def _attempt_over(self, reason: str, now: int) -> None:
        if self.checkpoints is not None:
            self.actions.extend(self.checkpoints.attempt_over(reason, now))

    # Publishing.

    def _publish(self, number: int, prepared: list[Prepared], recover: list[str] | None = None) -> None:
        """Has one worker make visible what sinks prepared."""
        if prepared or recover:
            for message in self._publications.tell(number, prepared, recover or [], self._folder_of_restored(number)):
                self._send(self.roster.slots[0], message)
        else:
            self._mark_published()

    def _folder_of_restored(self, number: int) -> str:
        """Where the files of a checkpoint are: of the restored one, which has number 0, maybe elsewhere."""
        own = self._restore is None or self._restore.run_id == self.run_id
        return "" if own or number else self._origin.folder

    def _mark_published(self) -> None:
        """Has every manifest marked whose output is visible, and that is not marked."""
        if self.checkpoints is not None:
            self._mark(self._origin.to_mark())
            self._mark(self.checkpoints.published(self._publications.visible_through(self.checkpoints.newest)))

    def _mark(self, paths: list[str]) -> None:
        self.actions.extend(map(MarkPublished, paths))

    def _restored_settled(self) -> bool:
        """Whether nobody asks any more for what the restored checkpoint had prepared: who starts from it, or from another
        manifest that has some of the same output."""
        restored = self._restore
        if restored is None or self.checkpoints is None or not restored.prepared:
            return False
        if restored.run_id == self.run_id:
            return self.checkpoints.all_marked(restored.checkpoint)
        return self._is_here(restored) and self._origin.settled

    def _settle(self) -> None:
        """A commit has succeeded: sinks may forget what was marked as published before it was asked for. No other driver
        has read a manifest without its mark, for whoever claims reads after our commit, and finds a later one."""
        slot, settled = self.roster.slots[0], self._publications.settle()
        if settled is not None and slot.connected:
            self._send(slot, settled)

    def _was_published(self, said: Published, now: int) -> None:
        if not self._publications.answered(said.number):
            return
        # What was given up is not visible: who starts from the origin with the sink publishes it.
        if said.number == 0 and not said.skipped and self._restore is not None:
            self._origin.visible = self._origin.visible or self._restore is self._origin.manifest
        self._mark_published()
        self.actions.append(WasPublished())
        self._maybe_start(now)
        self._maybe_finish(now)

    # Loops, and what operators say to each other.

    def _of_a_nest(self, index: int, message: FromWorker, now: int) -> None:
        """A worker speaks of a loop nest. While the job does not run, or does not any more, nothing follows from it."""
        if self.status is JobStatus.RUNNING:
            try:
                self._tell(self.nests.message(index, message, now))
            except ProtocolViolation as error:
                self._fail(now, Cause(str(error)))

    def _tell(self, said: Sent) -> None:
        for index, message in said:
            if self.roster.slots[index].connected:
                self._send(self.roster.slots[index], message)

    def _relay(self, event: OperatorEvent, index: int, now: int) -> None:
        if event.source != index or not 0 <= event.target < len(self.roster.slots):
            self._fail(now, Cause(f"worker {index} sent an operator event that is not its to send"))
        elif self.roster.slots[event.target].connected:
            self._send(self.roster.slots[event.target], event)

    # Failures and restarts.

    def _fail(self, now: int, cause: Cause) -> None:
        """Something failed: the job starts again where its strategy allows it, or ends."""
        if self._ending:
            return
        what, cause = reaction(cause, self.checkpoints is None and self.status is JobStatus.FINISHING)
        delay = self.restarts.delay(now) if what is Reaction.RESTART else None
        if delay is None:
            self.cause = cause
            self._end(JobStatus.FAILING, "the job has failed", now)
        else:
            self._restart(now, cause, delay)

    def _restart(self, now: int, cause: Cause, delay: int) -> None:
        """Everybody drops what they run and waits for the plan; lost workers are started anew."""
        self.attempt += 1
        self.last_failure = cause
        self._story.append(f"{now} restart {self.attempt}: {cause.message}")
        if self.status is not JobStatus.RESTARTING:
            self._move(JobStatus.RESTARTING)
        self.actions.append(Restarting(self.attempt, cause))
        self._attempt_over("the job was restarted", now)
        self._started_at = now + delay
        self._resume_at = self._started_at if delay else None
        self._deployed = self._beginning = False
        self._publications = Publications()
        self._origin.attempt_over()
        for slot in self.roster.slots:
            slot.anew()
            if slot.connected:
                slot.clean = False
                slot.reset_at = now
                self._send(slot, Reset(slot.attempt))
            elif slot.abandoned or slot.index == cause.slot:
                self.actions.extend(slot.relaunch())
        if self.checkpoints is None:
            self._claims.count_on()
        else:
            # Who waits for a pause, or for workers to drop what they run, need not wait for this as well. But where the
            # storage is what failed, it gets the pause.
            self._claims.want(now + delay if cause.kind is FailureKind.STORE else now)
            self._claim_due(now)

    def _claim_due(self, now: int) -> None:
        if self._claims.ask(now):
            self.actions.append(Claim())

    def _resume(self, now: int) -> None:
        """The pause is over."""
        self._resume_at = None
        self._maybe_deploy(now)

    def _reset_by(self, slot: Slot) -> int:
        return slot.reset_at + self.limits.leave

    def _reset_overdue(self, now: int) -> None:
        """User code holds a worker up: its process is ended, and another one started."""
        for slot in self.roster.holding_up():
            if now >= self._reset_by(slot):
                self._story.append(f"{now} worker {slot.index} does not drop what it runs")
                self.actions.append(CloseLink(slot.index, slot.epoch))
                self.roster.lose(slot.index)
                self.actions.extend(slot.relaunch())

    # The end.

    def _all_finished(self, now: int) -> None:
        """Every subtask has ended."""
        if self.checkpoints is None:
            self._move(JobStatus.FINISHING)
            prepared = [Prepared(uid, data) for slot in self.roster.slots for uid, data in slot.prepared]
            self._publish(0, prepared)
            self._maybe_finish(now)
        elif not self.checkpoints.final_pending:
            self._trigger(now, True)

    def _maybe_finish(self, now: int) -> None:
        if self._published or self.status is not JobStatus.FINISHING or self._publications.open:
            return
        self._published = True
        self._leave("the job has finished", now)

    def _end(self, status: JobStatus, reason: str, now: int) -> None:
        self._attempt_over(reason, now)
        self._move(status)
        self._leave(reason, now)

    def _leave(self, reason: str, now: int) -> None:
        """The outcome is decided: everybody is told to leave."""
        if self._leaving.begin(now, well=self.status is JobStatus.FINISHING):
            for slot in self.roster.connected:
                self._send(slot, Leave(reason))
        self._maybe_over()

    def _kill_all(self, now: int) -> None:
        self._leaving.killed = True
        for slot in self.roster.slots:
            self.actions.extend(slot.kill())

    def _leave_behind(self, now: int) -> None:
        self.left_behind = [slot.index for slot in self.roster.slots if not slot.spark_ended]
        self._over()

    def _maybe_over(self) -> None:
        if self._leaving.since is not None and all(slot.spark_ended for slot in self.roster.slots):
            self._over()

    def _over(self) -> None:
        if not self.status.final:
            self._move(ENDS.get(self.status, JobStatus.FINISHED))

    def _move(self, status: JobStatus) -> None:
        try:
            self.status = moved(self.status, status)
        except InternalError as error:
            raise InternalError(str(error.args[0]), self._story) from error
        self._story.append(f"-> {status}")
        self.actions.append(StatusChanged(status))

    def _send(self, slot: Slot, message: AnyMessage) -> None:
        self.actions.append(Send(slot.index, slot.epoch, message))
