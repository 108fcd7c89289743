"""The coordinator of one job: a front that hands events to bookkeepers and carries out what they decide.

Events come as method calls with the clock reading where one is needed; what is to be done collects in `actions`. The
bookkeepers (`roster`, `attempts`, `durability` with `claims`, `checkpoints` and `output`, `loops`, `restarts`, `failures`,
`leaving`) return decisions and know each other by values only; the front alone knows the state of the job. Its drivers are
`runtime.coordinator` and the simulator.

A failure starts an attempt anew, as long as the restart strategy allows it. The outcome is decided once: the first cause
wins, and from then on the only thing awaited is that the workers leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tailrace.coordinator.actions import Action, CloseLink, Delete, Restarting, Send, StatusChanged, WasPublished
from tailrace.coordinator.attempts import Attempts
from tailrace.coordinator.checkpoints import Checkpoints, CheckpointSettings
from tailrace.coordinator.decisions import Decision, Decisions, Tell, each
from tailrace.coordinator.durability import Durability
from tailrace.coordinator.failures import Cause, Reaction, reaction
from tailrace.coordinator.leaving import Leaving
from tailrace.coordinator.lifecycle import ENDS, JobStatus, moved
from tailrace.coordinator.limits import Limits
from tailrace.coordinator.loops import FROM_WORKER, FromWorker, Nests, NestSpec, Pace
from tailrace.coordinator.origin import NOTHING, Origin, StartFrom
from tailrace.coordinator.restarts import Never, Strategy
from tailrace.coordinator.roster import Roster, Slot
from tailrace.errors import InternalError, ProtocolViolation
from tailrace.protocol.deployment import (
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
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.snapshot import Ack, Declined
from tailrace.protocol.wire import AnyMessage
from tailrace.state.manifest import Manifest

Deadline = tuple[int | None, Callable[[int], Iterable[Decision]]]
"""When something is to be done that the clock alone brings about (None: not as things stand), and what decides on it."""


class Coordinator:
    """One job.

    Invariant J1: `cause` is set exactly when the job is FAILING or FAILED, and then never changes but for what Spark says
    about the worker that was lost, which comes a moment later and completes its text.
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
        start_from: StartFrom = NOTHING,
        abandoned: Sequence[str] = (),
        nests: Sequence[NestSpec] = (),
        pace: Pace | None = None,
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
            self.checkpoints = Checkpoints(checkpoints, job, run_id, slots, max_parallelism, start_from.manifest)
        self.nests = Nests(nests, pace)
        self.restarts: Strategy = restarts if restarts is not None else Never()
        self.attempts = Attempts()
        origin = Origin(job, run_id, "" if checkpoints is None else checkpoints.origin, start_from)
        self.durability = Durability(job, run_id, incarnation, self.checkpoints, origin, abandoned)
        self._leaving = Leaving(self.limits)
        self._story: deque[str] = deque(maxlen=64)

    @property
    def incarnation(self) -> int:
        """The incarnation that the job holds."""
        return self.durability.claims.incarnation

    # Events: workers.

    def start(self, now: int) -> None:
        """The job is to run."""
        self._move(JobStatus.STARTING)
        self.attempts.begin(now)
        self._do([*self.roster.launch(), *self.durability.start()], now)

    def hello(self, hello: Hello, now: int) -> int | None:
        """A worker joins. Its epoch, or None when it is not wanted (its link is then to be closed)."""
        self._story.append(f"{now} hello {hello.slot} pid {hello.pid}")
        if self.status is JobStatus.CREATED or self._ending or not self.roster.wants(hello, self.job, self.incarnation):
            return None
        epoch, replaced = self.roster.admit(hello, now)
        if replaced is not None:
            self.actions.append(CloseLink(hello.slot, replaced))
        self._do([Tell(Welcome(epoch), hello.slot)], now)
        if self.attempts.deployed:
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
                if self._filling and self.roster.deployed:
                    self._begin(now)
            case SubtasksFinished():
                slot.finished = not message.more
                slot.prepared = [*slot.prepared, *message.prepared]
                if self.status is JobStatus.RUNNING and self.roster.finished:
                    self._all_finished(now)
            case Published():
                self._was_published(message, now)
            case OperatorEvent():
                self._relay(message, index, now)
            case Ack() if self._ending:
                self.actions.append(Delete([message.file]))  # it was said before the worker knew
            case Ack():
                self._do(self.durability.ack(index, message, now, self._running), now)
            case Declined():
                what = f"worker {index}: {message.reason}"
                self._do(self.durability.abort(message.checkpoint, what, now, self._running), now)
            case WasReset():
                pass  # of a restart that another one overtook
            case _ if isinstance(message, FROM_WORKER):
                self._of_a_nest(index, message, now)
            case _:
                self._fail(now, Cause(f"worker {index} said {type(message).__name__}, which is not for it to say"))

    def heartbeat(self, index: int, pid: int, now: int) -> None:
        """A worker's process gives a sign of life."""
        self.roster.heard(index, pid, now)

    def link_lost(self, index: int, epoch: int, reason: str, now: int) -> None:
        """The link of a worker closed: the worker is lost, unless it was to leave."""
        if not self.roster.holds(index, epoch):
            return
        self._story.append(f"{now} link of {index} lost: {reason}")
        if self._ending:
            self.roster.lose(index)
        else:
            self._do(self.roster.lost(index, f"worker {index} was lost: {reason}"), now)

    def slot_ended(
        self,
        index: int,
        error: str | None,
        now: int,
        cancelled: bool = False,
        launch: int | None = None,
        over: bool = False,
    ) -> None:
        """A Spark job of a slot ended, by itself or because it was told to. Somebody else who cancels a worker's Spark job
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
            self._do(self.roster.lost(index, f"the Spark task of worker {index} ended: {said}"), now)
        self._maybe_over()

    # Events: the storage of checkpoints.

    def claimed(self, incarnation: int, manifest: Manifest | None, path: str, now: int) -> None:
        """A new incarnation is ours, and nobody can commit under an older one any more. `manifest` is the newest that was
        committed under this job's name."""
        self._do(self.durability.claimed(incarnation, manifest, path), now)
        self._maybe_deploy(now)

    def origin_published(self) -> None:
        """The checkpoint that the run has started from is marked, by us or by another start from it."""
        self.durability.output.origin_published()

    def claim_failed(self, reason: str, now: int, kind: FailureKind = FailureKind.STORE) -> None:
        """The storage of checkpoints did not give us a new incarnation. `kind` says whether it is asked again: not where
        another start has taken the job over (FENCED), or where what is there cannot be read (STATE)."""
        self.durability.claims.answered()
        if not self._ending:
            self._fail(now, Cause(f"no new incarnation could be claimed in the storage of checkpoints: {reason}", kind))

    def committed(self, checkpoint: int, path: str, url: str, now: int) -> None:
        """The manifest of a checkpoint exists; `path` is its name relative to the checkpoint folder of the job."""
        decided, final = self.durability.committed(checkpoint, path, url, now, self._running)
        self._do(decided, now)
        if final and self._running:
            self._move(JobStatus.FINISHING)
            self._maybe_finish(now)

    def not_committed(self, checkpoint: int, reason: str, kind: FailureKind, now: int) -> None:
        """The manifest of a checkpoint could not be written, or nobody knows whether it was (STORE). What the storage
        holds is found out under a new incarnation, which is a restart; a job that was overtaken by another start (FENCED),
        or whose checkpoints somebody has removed (STATE), has ended."""
        decided = self.durability.not_committed(checkpoint, reason, kind)
        if not self._ending:
            self._do(decided, now)

    def marked(self, path: str, now: int) -> None:
        """It is written down that all that a manifest has prepared is published."""
        self._do(self.durability.marked(path), now)

    def not_marked(self, path: str, now: int) -> None:
        """That could not be written down: it is asked for again with the next publication, or the next checkpoint."""
        self.durability.output.not_marked(path)

    # Events: the user, the driver and the clock.

    def checkpoint(self, who: Any, now: int) -> None:
        """Somebody wants a checkpoint now; `CheckpointEnded` will carry `who`."""
        over = self._ending or self.status is JobStatus.FINISHING
        self._do(self.durability.request(who, f"the job is {self.status}" if over else None), now)
        if self._running:
            self._do(self._trigger_due(now), now)

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
        fenced = self.cause is not None and self.cause.kind is FailureKind.FENCED
        return self.durability.give_up(self.status is JobStatus.FINISHED and not crashed, fenced)

    def tick(self, now: int) -> None:
        """The clock moved: does what is due, in the order of `_deadlines`, which sees what was done before."""
        for at, act in self._deadlines():
            if at is not None and at <= now:
                self._do(act(now), now)

    def next_tick(self, now: int) -> int | None:
        """When the clock alone gives something to do next, or None."""
        return min((at for at, _ in self._deadlines() if at is not None), default=None)

    def _deadlines(self) -> Iterator[Deadline]:
        """Everything that the clock alone brings about. What is done at a deadline takes it away."""
        if self.status is JobStatus.CREATED:
            return
        limits, roster, durability = self.limits, self.roster, self.durability
        if self._filling and not durability.claims.under_way:
            here, wanted = len(roster.connected), len(roster.slots)
            yield self.attempts.slots_late_at(limits.slots), lambda now: [limits.slots_late(here, wanted)]
        if not self._ending:
            yield roster.silent_at(limits.lease), lambda now: roster.replace_silent(now, limits.lease)
        if not self._ending:
            yield durability.silent_at(limits.store), lambda now: [limits.store_silent()]
        if self.status is JobStatus.RESTARTING:
            yield roster.reset_late_at(limits.leave), lambda now: roster.replace_late(now, limits.leave)
            yield durability.claims.due_at, durability.claim_due
            yield self.attempts.resume_at, self._resume
        if self._running:
            yield self.nests.next_tick(), lambda now: each(self.nests.tick(now))
        if self._running:
            yield durability.late_at, self._checkpoints_late
        if self._running:
            yield durability.due_at, self._trigger_due
        if not self.status.final:
            yield self._leaving.kill_at, self._kill_all
            yield self._leaving.over_at, self._leave_behind

    def _resume(self, now: int) -> Decisions:
        """The pause before a restart is over."""
        self.attempts.resume_at = None
        self._maybe_deploy(now)
        return []

    def _checkpoints_late(self, now: int) -> Iterator[Decision]:
        for number, what in self.durability.late(now):
            yield from self.durability.abort(number, what, now, self._running)

    def _trigger_due(self, now: int) -> Decisions:
        return self.durability.trigger_due(now, final=self.roster.finished)

    # The state of the job.

    @property
    def _ending(self) -> bool:
        return self._leaving.since is not None or self.status.final

    @property
    def _filling(self) -> bool:
        """Whether the job waits for its slots to be filled and deployed."""
        return self.status in (JobStatus.STARTING, JobStatus.RESTARTING)

    @property
    def _running(self) -> bool:
        return self.status is JobStatus.RUNNING

    # The beginning of an attempt.

    def _maybe_deploy(self, now: int) -> None:
        """Sends the plan when every slot has a worker that runs nothing, and nobody can commit under an older one of our
        incarnations."""
        attempts, claims = self.attempts, self.durability.claims
        if not self._filling or attempts.deployed or attempts.paused(now) or claims.under_way or not self.roster.ready:
            return
        attempts.deployed = True
        claims.deployed()
        origin, peers = self.durability.output.origin, self.roster.peers()
        for slot in self.roster.slots:
            self._do([Tell(origin.deploy(self.plan, peers, self.incarnation, slot.attempt), slot.index)], now)

    def _begin(self, now: int) -> None:
        """All have deployed. What the restored checkpoint had prepared is published before anything else happens."""
        self.attempts.publishing = True
        self._do(self.durability.output.begin(restarted=self.attempts.restarts > 0), now)
        self._maybe_start(now)

    def _maybe_start(self, now: int) -> None:
        # The job may be ending meanwhile.
        if self.attempts.publishing and self._filling and not self.durability.output.pending:
            self.attempts.publishing = False
            self._move(JobStatus.RUNNING)
            self.nests.begin()
            self._do([*self.durability.running(now), Tell(Start())], now)

    # Published output.

    def _was_published(self, said: Published, now: int) -> None:
        decided = self.durability.output.published(said)
        if decided is not None:
            self._do([*decided, WasPublished()], now)
            self._maybe_start(now)
            self._maybe_finish(now)

    # Loops, and what operators say to each other.

    def _of_a_nest(self, index: int, message: FromWorker, now: int) -> None:
        """A worker speaks of a loop nest. While the job does not run, or does not any more, nothing follows from it."""
        if self._running:
            try:
                self._do(each(self.nests.message(index, message, now)), now)
            except ProtocolViolation as error:
                self._fail(now, Cause(str(error)))

    def _relay(self, event: OperatorEvent, index: int, now: int) -> None:
        if event.source != index or not 0 <= event.target < len(self.roster.slots):
            self._fail(now, Cause(f"worker {index} sent an operator event that is not its to send"))
        else:
            self._do([Tell(event, event.target)], now)

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
        self.attempts.anew(cause, now, delay)
        self._story.append(f"{now} restart {self.attempts.restarts}: {cause.message}")
        if self.status is not JobStatus.RESTARTING:
            self._move(JobStatus.RESTARTING)
        self.actions.append(Restarting(self.attempts.restarts, cause))
        self._do(self.durability.attempt_over("the job was restarted", now), now)
        self.durability.output.anew()
        self._do(self.roster.anew(now, lost=cause.slot), now)
        self._do(self.durability.anew(cause, now, delay), now)

    # The end.

    def _all_finished(self, now: int) -> None:
        """Every subtask has ended."""
        if self.checkpoints is None:
            self._move(JobStatus.FINISHING)
            self._do(self.durability.output.finished(self.roster.prepared), now)
            self._maybe_finish(now)
        else:
            self._do(self.durability.last(now), now)

    def _maybe_finish(self, now: int) -> None:
        if self.status is JobStatus.FINISHING and not self.durability.output.pending:
            self._leave("the job has finished", now)

    def _end(self, status: JobStatus, reason: str, now: int) -> None:
        self._do(self.durability.attempt_over(reason, now), now)
        self._move(status)
        self._leave(reason, now)

    def _leave(self, reason: str, now: int) -> None:
        """The outcome is decided: everybody is told to leave."""
        if self._leaving.begin(now, well=self.status is JobStatus.FINISHING):
            self._do([Tell(Leave(reason))], now)
        self._maybe_over()

    def _kill_all(self, now: int) -> Decisions:
        self._leaving.killed = True
        return self.roster.kill()

    def _leave_behind(self, now: int) -> Decisions:
        self.left_behind = [slot.index for slot in self.roster.slots if not slot.spark_ended]
        self._over()
        return []

    def _maybe_over(self) -> None:
        if self._leaving.since is not None and self.roster.spark_ended:
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

    def _do(self, decided: Iterable[Decision], now: int) -> None:
        """Carries out what was decided, in order."""
        for one in decided:
            if isinstance(one, Cause):
                self._fail(now, one)
            elif isinstance(one, Tell):
                self._tell(one, now)
            else:
                self.actions.append(one)

    def _tell(self, told: Tell, now: int) -> None:
        to = "all" if told.slot is None else told.slot
        self._story.append(f"{now} {type(told.message).__name__} to {to}")
        for slot in self.roster.connected:
            if told.slot in (None, slot.index):
                self.actions.append(Send(slot.index, slot.epoch, told.message))
