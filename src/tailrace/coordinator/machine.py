"""The coordinator of one job: a front that hands events to bookkeepers, and their decisions to the course of the job.

Events come as method calls, with the clock reading where one is needed; actions for the driver collect in `actions`. The
bookkeepers (`roster`, `attempts`, `durability` with `claims`, `checkpoints` and `output`, `loops`, `restarts`, `failures`,
`shutdown`) return decisions and know each other by values only; `course` alone knows the state of the job, and carries out
what they decide. The drivers of a coordinator are `runtime.driver.coordinator` and the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, assert_never

from tailrace.coordinator.actions import Action, CloseLink, Delete, KeepCapsule, Send, StopEnded, WorkerPrinted
from tailrace.coordinator.course import Course
from tailrace.coordinator.decisions import Decision, Decisions, Tell, each
from tailrace.coordinator.durability.checkpoints import NO_CHECKPOINTS, Checkpoints, CheckpointSettings
from tailrace.coordinator.durability.durability import TAKES_NONE, Durability
from tailrace.coordinator.durability.stopping import Aim, Stopping
from tailrace.coordinator.job.attempts import Attempts
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Never, Strategy
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import Nests, NestSpec, WavePace
from tailrace.coordinator.output.origin import NOTHING, StartFrom
from tailrace.coordinator.workers.moves import Moves
from tailrace.coordinator.workers.replacement_phases import Takeovers
from tailrace.coordinator.workers.replacements import Replacements
from tailrace.coordinator.workers.rescaling import ElasticSizes, JobSize
from tailrace.coordinator.workers.roster import Roster, Slot
from tailrace.coordinator.workers.standbys import Standby
from tailrace.errors import ProtocolViolation
from tailrace.protocol.deployment import (
    Deployed,
    Failed,
    FailureKind,
    Hello,
    NotPublished,
    OperatorEvent,
    Progress,
    Published,
    SubtasksFinished,
    UnderWay,
    Welcome,
)
from tailrace.protocol.message_codec import FollowReport, FromWorker, NestReport, StandbyReport, SuccessionReport
from tailrace.protocol.recovery import WasReset
from tailrace.protocol.replay import Copies, Gained, KnownHistory, NotCompared, ReplayDone, Restored, Severed
from tailrace.protocol.snapshot import Ack, Declined
from tailrace.state.end_mark import Ending
from tailrace.state.manifest import Manifest

Deadline = tuple[int | None, Callable[[int], Iterable[Decision]]]
"""A deadline: (the time at which the clock alone brings something about, None as things stand; the decision then)."""


class Coordinator:
    """The coordinator of one job, as its driver sees it."""

    waits = False
    """True if workers are to wait for a successor of this coordinator where it is lost."""

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
        pace: WavePace | None = None,
        standbys: int | None = None,
        replicas: int = 1,
        depth: int = 1,
        copies: Copies | None = None,
        hot: bool = False,
        elastic: ElasticSizes | None = None,
    ) -> None:
        """`standbys`: the number of processes that stand by to take the slot of a lost worker while the other workers go on;
        None: all workers start again where one is lost. `replicas`: the number of standbys that hold the state of each
        slice. `depth`: the number of executors whose workers may be lost at once. `copies`: those of the workers' histories.
        `hot`: standbys do what the workers of their slices do. `elastic`: the sizes of a job that
        changes its size by itself."""
        self.job = job
        self.run_id = run_id
        self.limits = limits if limits is not None else Limits()
        self.roster = Roster(slots, standbys or 0, replicas)
        taken = NO_CHECKPOINTS if checkpoints is None else checkpoints
        self.checkpoints = Checkpoints(taken, job, run_id, slots, max_parallelism, start_from.manifest)
        self.nests = Nests(nests, pace)
        self.restarts: Strategy = restarts if restarts is not None else Never()
        self.attempts = Attempts()
        self.durability = Durability(job, run_id, incarnation, self.checkpoints, start_from, abandoned, self.limits)
        self.stopping = Stopping()
        self.takeovers = Takeovers(slots, 0 if standbys is None else depth, copies)
        parts = self.limits, self.roster, self.durability, self.nests, self.takeovers
        self.replacements = Replacements(*parts, hot=hot)
        may_restart = not isinstance(self.restarts, Never)
        self.moves = Moves(self.limits, self.roster, self.attempts, self.durability, self.replacements, may_restart)
        self.course = Course(
            JobSize(slots, plan, nests, standbys or 0),
            self.roster,
            self.attempts,
            self.durability,
            self.nests,
            self.restarts,
            self.stopping,
            self.takeovers,
            self.replacements,
            elastic,
        )

    @property
    def status(self) -> JobStatus:
        """The status of the job."""
        return self.course.status

    @property
    def cause(self) -> Cause | None:
        """The cause for which the job is failing, or has failed."""
        return self.course.cause

    @property
    def left_behind(self) -> list[int]:
        """Slots whose Spark job had not ended when the job did."""
        return self.course.left_behind

    @property
    def actions(self) -> list[Action]:
        """The actions for the driver, in order; the driver takes them away."""
        return self.course.actions

    @actions.setter
    def actions(self, actions: list[Action]) -> None:
        self.course.actions = actions

    @property
    def incarnation(self) -> int:
        """The incarnation that the job holds."""
        return self.durability.claims.incarnation

    # Events: workers.

    def start(self, now: int) -> None:
        """Starts the job."""
        self.course.move(JobStatus.STARTING)
        self.attempts.begin(now)
        self.course.do([*self.roster.launch(), *self.durability.start(now)], now)

    def take_over(self, why: str, now: int) -> None:
        """Starts the job where another process of the same run, with its coordinator, was lost. The job goes on under a new
        incarnation, from the newest checkpoint of this run. Workers that the lost process has deployed cannot commit any
        more then."""
        self.course.move(JobStatus.STARTING)
        self.attempts.begin(now)
        self.durability.claims.note_deployment()
        self.course.do(self.roster.launch(), now)
        self.course.restart(now, Cause(why, FailureKind.WORKER), 0)

    def hello(self, hello: Hello, now: int) -> int | None:
        """Takes the `Hello` of a worker. Returns its epoch, or None when the worker is refused (its link is then to be
        closed)."""
        self.course.story.append(f"{now} hello {hello.slot} pid {hello.pid}")
        closed = self.status is JobStatus.CREATED or self.course.ending
        if closed or not self.roster.requires(hello, self.job, self.incarnation):
            return None
        epoch, replaced = self.roster.admit(hello, now)
        if replaced is not None:
            self.course.actions.append(CloseLink(hello.slot, replaced))
        self.course.actions.append(Send(hello.slot, epoch, Welcome(epoch, waits=self.waits)))
        self.course.join(self.roster.at(hello.slot), now)
        return epoch

    def message(self, index: int, epoch: int, message: FromWorker, now: int) -> None:
        """Takes a message of a worker. It is dropped if the worker holds no slot any more."""
        if not self.roster.holds(index, epoch):
            return
        slot = self.roster.at(index)
        slot.received_at = now
        if isinstance(slot, Standby):
            self.course.of_a_standby(slot, message, now)
        elif slot.clean and self.roster.is_outside(slot):
            self.course.of_one_outside(slot, message, now)
        elif slot.clean:
            self._receive(slot, message, now)
        elif isinstance(message, WasReset) and message.attempt == slot.attempt:
            # The worker has dropped the attempt that is over: its messages from here on are of the next one.
            slot.clean = True
            self.course.maybe_deploy(now)

    def _receive(self, slot: Slot, message: FromWorker, now: int) -> None:
        index = slot.index
        if isinstance(message, Progress):
            slot.report(message, now)
            if message.printed or message.lines_left_out:
                self.course.do([WorkerPrinted(index, message.printed, message.lines_left_out)], now)
            if self.course.running:
                self.course.do(self.replacements.relieve(slot, now), now)
            return
        self.course.story.append(f"{now} {type(message).__name__} from {index}")
        match message:
            case Failed() if message.kind is FailureKind.PEER and (
                decided := self.replacements.cannot_reach(index, message.message)
            ):
                self.course.do(decided, now)
            case Failed() if message.kind.of_worker:
                if message.capsule:
                    self.actions.append(KeepCapsule(message.capsule_name, message.capsule))
                where = (message.operator, message.subtask, message.record, message.peer, message.error)
                self.course.fail(now, Cause(message.message, message.kind, *where, message.takes_policy, index))
            case Deployed():
                slot.deployed = True
                if self.course.filling and self.roster.deployed:
                    self.course.begin(now)
            case SubtasksFinished():
                slot.finished = not message.more
                slot.add_prepared(message)
                if self.course.flowing and self.roster.finished:
                    self.course.all_finished(now)
            case Published():
                self.course.was_published(message, index, now)
            case NotPublished():
                self.course.do(self.durability.output.lanes.note_failure(message, index, now), now)
            case OperatorEvent():
                self.takeovers.sent_event(index, message.vertex)
                self._relay(message, index, now)
            case Gained() | KnownHistory() | NotCompared() | Severed() | Restored() | ReplayDone():
                self._of_replacing(index, message, now)
            case _ if isinstance(message, FollowReport):
                self.course.of_a_feed(index, message, now)
            case Ack() if self.course.ending:
                self.course.actions.append(Delete([message.file]))  # sent before the worker knew of the end
            case Ack():
                self.course.do(self.durability.ack(index, message, now, self.course.flowing), now)
            case Declined():
                self.course.do(self.durability.decline(message, f"worker {index}: ", now, self.course.flowing), now)
            case WasReset():
                pass  # of an earlier restart; another one began since
            case _ if isinstance(message, NestReport):
                self._of_a_nest(index, message, now)
            case _ if isinstance(message, SuccessionReport):
                pass  # this coordinator keeps no log
            case _ if isinstance(message, StandbyReport):
                self.course.gets_ready(slot, message, now)
            case Failed():
                what = f"worker {index} sent {type(message).__name__}, which no worker of a slot may send"
                self.course.fail(now, Cause(what))
            case _:
                assert_never(message)

    def heartbeat(
        self, index: int, pid: int, now: int, under_way: UnderWay | None = None, leaving: bool = False
    ) -> None:
        """Takes a sign of life of a worker's process, with the work of its thread where that takes long. `leaving`: its
        executor is about to go."""
        self.course.do(self.roster.note_sign_of_life(index, pid, now, under_way), now)
        if leaving and self.course.running:
            self.course.do(self.moves.report(self.roster.starts_of(index, pid), room=False), now)

    def link_lost(self, index: int, epoch: int, reason: str, now: int) -> None:
        """Takes the loss of a worker's link: the worker is lost, unless it was to leave."""
        slot = self.roster.at(index) if self.roster.holds(index, epoch) else self.roster.slot_of_standby(index, epoch)
        if slot is None:
            return
        self.course.story.append(f"{now} link of {index} lost: {reason}")
        if self.course.ending or (isinstance(slot, Slot) and slot.leaving):
            self.roster.lose(slot.index)
        elif isinstance(slot, Slot) and self.roster.is_outside(slot):
            self.course.do(self.roster.outside_lost(slot, reason), now)
            self.course.maybe_deploy(now)
        elif isinstance(slot, Standby):
            self.course.standby_lost(slot, f"it was lost: {reason}", now)
        else:
            self.course.do(self.roster.note_loss(slot.index, f"worker {slot.index} was lost: {reason}"), now)

    def slot_ended(
        self,
        index: int,
        error: str | None,
        now: int,
        cancelled: bool = False,
        launch: int | None = None,
        over: bool = False,
        unfit: bool = False,
    ) -> None:
        """Takes the end of a place's Spark job. A Spark job that another party has cancelled ends our job (Ctrl-C cancels
        it, in a program with a Spark session). `over`, `unfit`: see `Roster.job_ended`."""
        start = (index, self.roster.at(index).launches if launch is None else launch)
        place = self.roster.holder(start)
        self.course.story.append(f"{now} spark job {start[1]} of {index} ended: {error}")
        requested = place.job_ended(start)
        if cancelled and not requested:
            self.cancel(now)
        elif error is not None and not requested and self.cause is not None and self.cause.slot == place.index:
            self.course.cause = self.cause.with_text(f"Spark says: {error}")
        elif not self.course.ending:
            expected = not requested and start == place.start
            if isinstance(place, Slot) and self.roster.is_outside(place):
                how = error or "its Spark task ended without an error"
                self.course.do(self.roster.outside_lost(place, how) if expected and not place.leaving else [], now)
                self.course.maybe_deploy(now)
            elif not isinstance(place, Standby):
                ended = self.roster.job_ended(place.index, error, expected=expected, over=over, unfit=unfit)
                self.course.do(ended, now)
            elif expected:
                self.course.standby_lost(place, f"its Spark task ended: {error or 'without an error'}", now)
        self.course.maybe_over()

    # Events: the storage of checkpoints.

    def claim_done(self, incarnation: int, manifest: Manifest | None, path: str, now: int) -> None:
        """Takes a new incarnation of the job: no process can commit under an older one any more. `manifest` is the newest
        that was committed under this job's name."""
        self.course.do(self.durability.claim_done(incarnation, manifest, path, now), now)
        self.course.claim_done(now)
        self.course.maybe_deploy(now)

    def go_on(self, incarnation: int, manifest: Manifest | None, path: str, url: str, now: int) -> None:
        """Goes on in the place of a lost coordinator, with its workers as they are. No process can commit under an
        incarnation before this one any more, and `manifest` is the newest that was committed (`path`, `url`: its
        places)."""
        reason = "the coordinator was lost, and another one goes on"
        self.course.story.append(f"{now} {reason}, under incarnation {incarnation}")
        for place in self.roster.places:
            place.received_at = now
        self.takeovers.go_on(now)
        decided, made = self.durability.go_on(incarnation, manifest, reason, now)
        self.course.do(decided, now)
        if made:
            self.commit_done(made, path, url, now)
            self.checkpoints.last = 0
        self.course.go_on(reason, now)

    def origin_published(self) -> None:
        """Notes that the checkpoint from which the run has started is marked, by us or by another start from it."""
        self.durability.output.origin_published()

    def claim_failed(self, reason: str, now: int, kind: FailureKind = FailureKind.STORE) -> None:
        """Takes the failure of a claim. `kind` decides whether another request follows (STORE). It is not, where another
        start has taken the job over (FENCED), or where the storage's content cannot be read (STATE)."""
        self.durability.claims.note_answer()
        if not self.course.ending:
            self.course.do(self.durability.claim_failed(reason, kind, now), now)

    def claim_checked(
        self, incarnation: int, now: int, failure: str = "", kind: FailureKind = FailureKind.STORE
    ) -> None:
        """Takes the result of a look at the claim of an incarnation. `failure`: another start has taken the job over (`kind`
        FENCED), its checkpoints were removed (STATE), or it could not be looked at (STORE), from which nothing follows."""
        decided = self.durability.claim_checked(incarnation, failure, kind, now)
        if not self.course.ending:
            self.course.do(decided, now)

    def commit_done(self, checkpoint: int, path: str, url: str, now: int) -> None:
        """Takes the commit of a checkpoint's manifest; `path` is its name relative to the checkpoint folder of the job."""
        decided, last = self.durability.commit_done(checkpoint, path, url, now, self.course.flowing)
        self.takeovers.complete(checkpoint)
        self.course.do(decided, now)
        self.course.do(self.replacements.commit_done(checkpoint), now)
        self.course.maybe_resume(now)
        self.course.hold(now)
        if last is not None and self.course.flowing:
            self.course.last_complete(last, now)

    def not_committed(self, checkpoint: int, reason: str, kind: FailureKind, now: int) -> None:
        """Takes the failure of a commit. Where the outcome may be unknown (STORE), it is requested again. A job that was
        overtaken by another start (FENCED), or whose checkpoints were removed (STATE), has ended."""
        decided = self.durability.not_committed(checkpoint, reason, kind, now)
        if not self.course.ending:
            self.course.do(decided, now)

    def mark_done(self, path: str, now: int) -> None:
        """Notes that a manifest is marked: all its output is published."""
        self.course.do(self.durability.mark_done(path, now, self.course.flowing), now)

    def not_marked(self, path: str, reason: str, now: int) -> None:
        """Notes that a mark could not be written: it is requested again with the next publication, or the next
        checkpoint."""
        self.course.do(self.durability.not_marked(path, reason, now), now)

    def copy_done(self, checkpoint: int, url: str, size: int, now: int) -> bool:
        """Takes the copy of a savepoint, of `size` bytes. Returns False where it is not awaited any more: the copy has to
        go."""
        decided = self.durability.copy_done(checkpoint, url, size, now)
        self.course.do(decided or [], now)
        self.course.maybe_finish(now)
        return decided is not None

    def not_copied(self, checkpoint: int, reason: str, now: int) -> None:
        """Takes the failure of a savepoint's copy, of which nothing is left."""
        self.course.do(self.durability.not_copied(checkpoint, reason), now)
        self.course.maybe_finish(now)

    # Events: the user, the driver and the clock.

    def checkpoint(self, who: Any, now: int) -> None:
        """Takes a request of a checkpoint now; `CheckpointEnded` will carry `who`."""
        self.course.do(self.durability.request(who, self._no_more()), now)
        if self.course.running:
            self.course.do(self._trigger_due(now), now)

    def savepoint(self, who: Any, target: str, now: int, *, unaligned: bool = False, cancels: bool = False) -> None:
        """Takes a request of a savepoint in the folder `target` (empty: in the usual one); `SavepointEnded` will carry
        `who`. See `SavepointRequest`."""
        request = self.durability.request_savepoint(who, target, self._no_more(), unaligned=unaligned, cancels=cancels)
        self.course.do(request, now)
        if self.course.running:
            self.course.do(self._trigger_due(now), now)

    def _no_more(self) -> str | None:
        """The reason why requests of checkpoints are refused; None where they are not."""
        over = self.course.ending or self.stopping.is_sealed
        over = over or self.status in (JobStatus.FINISHING, JobStatus.STOPPING)
        return f"the job is {self.status}" if over else None

    def stop(self, who: Any, aim: Aim, now: int) -> None:
        """Takes a request to end the job in order, legal at any moment. `StopEnded` will carry `who`, at the end of the
        job, or with the reason why it does not end. Requests with equal aims get one answer; a request with another aim is
        refused."""
        refused = None
        if self.durability.savepoints.ends_job:
            refused = "the job is cancelled behind its savepoint"
        elif aim.savepoint is not None and not self.durability.takes_checkpoints:
            refused = TAKES_NONE
        if refused is not None:
            self.course.do([StopEnded(who, None, None, refused)], now)
        else:
            self.course.stop(who, aim, now)

    def rescale(self, who: Any, size: JobSize, now: int) -> None:
        """Takes a request of another size of the job, legal at any moment. `RescaleEnded` will carry `who`, when the job
        runs in that size, or with the reason why it keeps the one that it has."""
        self.course.rescale(who, size, now)

    def room(self, count: int, now: int) -> None:
        """Takes the report of how many task slots there are for an elastic job: those that it has, and free ones. The
        driver repeats it."""
        self.course.note_room(count, now)

    def move(self, launches: Collection[tuple[int, int]], now: int) -> None:
        """Takes the report that the machines of these starts are about to go: their workers move elsewhere (`moves`). The
        driver repeats it as long as they are there. It does not count as a failure."""
        if self.course.running:
            self.course.do(self.moves.report(launches), now)

    def cancel(self, now: int) -> None:
        """Ends the job at once, on the user's request. Legal at any moment; after the end it changes nothing."""
        if self.status is JobStatus.CREATED:
            self.course.move(JobStatus.CANCELLING)
            self.course.move(JobStatus.CANCELLED)
        elif not self.course.ending:
            self.course.end(JobStatus.CANCELLING, "the job was cancelled", now)

    def fail(self, message: str, now: int) -> None:
        """Fails the job: the driver of this machine cannot go on."""
        self.course.fail(now, Cause(message))

    def give_up(self, crashed: bool) -> list[str] | None:
        """The files of the checkpoints of a job that is over, where these are not to outlive it; None where they stay.
        `crashed`: its driver broke."""
        return self.durability.give_up() if self.course.gives_up(crashed) else None

    def ending(self, crashed: bool, now: int) -> Ending | None:
        """The mark that the job leaves of its end, before its checkpoints are given up; see `Durability.ending`."""
        return self.course.mark_of_end(crashed, now)

    def tick(self, now: int, only: Collection[int] | None = None) -> list[int]:
        """Does what is due at `now`, in the order of `_deadlines`, which sees what was done before; or, where `only` is
        given, what is at these places in that order. Returns the places of what was done."""
        done = []
        for place, (at, act) in enumerate(self._deadlines()):
            if place in only if only is not None else at is not None and at <= now:
                done.append(place)
                self.course.do(act(now), now)
        return done

    def next_tick(self, now: int) -> int | None:
        """The time at which the clock alone gives something to do next, or None."""
        return min((at for at, _ in self._deadlines() if at is not None), default=None)

    def _deadlines(self) -> Iterator[Deadline]:
        """All deadlines of the job. The action at a deadline takes the deadline away."""
        if self.status is JobStatus.CREATED:
            return
        limits, roster, durability = self.limits, self.roster, self.durability
        if self.course.filling and not durability.claims.under_way:
            again = self.attempts.restarts > 0
            within = limits.filled_within(again=again)
            yield self.course.fewer_due(within), self.course.begin_with_fewer
            yield self.attempts.slots_late_at(within), self._slots_late
        if not self.course.ending:
            yield roster.silent_at(limits.lease), lambda now: roster.replace_silent(now, limits.lease)
            yield durability.silent_at, lambda now: [durability.storage.given_up()]
            yield durability.output.lanes.late_at, durability.output.lanes.late
            yield durability.retry_at, durability.retry
            runs = self.course.flowing and not durability.suspended
            yield durability.claims.check_at(runs=runs), durability.check_claim
            yield self.course.look_due, self.course.look
            yield self.course.resize_due, self.course.resize
            yield self.course.rescale_due(limits.slots), self.course.begin_rescale
            yield self.course.rescale_late_at(limits.slots), lambda now: self.course.rescale_late(now, limits.slots)
            yield roster.leave_late_at(limits.leave), lambda now: roster.end_late(now, limits.leave)
        if self.status is JobStatus.RESTARTING:
            yield roster.reset_late_at(limits.leave), lambda now: roster.replace_late(now, limits.leave)
            yield durability.claims.due_at, durability.claim_due
            yield self.attempts.resume_at, self._resume
        if self.course.flowing:
            yield self.takeovers.severed_at(limits.severed), self._links_broken
            if self.takeovers.active:
                yield (
                    self.takeovers.since + self.course.replaced_within(limits.filled_within(again=True)),
                    self._never_replaced,
                )
            else:
                yield roster.standbys.fill_at, lambda now: roster.standbys.fill()
        if self.course.flowing:
            yield self.nests.next_tick(), lambda now: each(self.nests.tick(now))
        if self.course.flowing:
            yield durability.late_at, self._checkpoints_late
        if self.course.running:
            yield self.moves.due_at, self.moves.advance
            yield durability.due_at, self._trigger_due
        if not self.status.final:
            yield self.course.leaving.kill_at, self.course.kill_all
            yield self.course.leaving.over_at, self.course.leave_behind

    def _slots_late(self, now: int) -> Decisions:
        cause, elastic = (
            self.limits.slots_late(
                len(self.roster.connected), len(self.roster.slots), again=self.attempts.restarts > 0
            ),
            self.course.rescaling.elastic,
        )
        return [cause.with_text(elastic.unfit) if elastic is not None and elastic.unfit else cause]

    def _resume(self, now: int) -> Decisions:
        """Ends the pause before a restart."""
        self.attempts.resume_at = None
        self.course.maybe_deploy(now)
        return []

    def _checkpoints_late(self, now: int) -> Iterator[Decision]:
        for number, what, pending in self.durability.late(now):
            away = all(one.index in pending.acks or one.phase_of(number) == "writing" for one in self.roster.slots)
            yield from self.durability.decline(Declined(number, what, away), "", now, self.course.flowing)

    def _trigger_due(self, now: int) -> Decisions:
        return self.durability.trigger_due(now, final=self.roster.finished)

    # Workers that are replaced.

    def _of_replacing(
        self, index: int, message: Gained | KnownHistory | NotCompared | Severed | Restored | ReplayDone, now: int
    ) -> None:
        match message:
            case Gained():
                self.takeovers.add_history(index, message)
            case KnownHistory():
                self.takeovers.know(index, message)
                self.takeovers.failovers.note_report(message.slice, now)
                self.course.maybe_resume(now)
            case NotCompared():
                self.course.do(self.replacements.not_compared(message), now)
            case Severed():
                self.takeovers.link_lost(index, message.peer, message.epoch, now)
            case Restored():
                self.takeovers.failovers.note_restore(index, now, message.hot)
            case ReplayDone():
                self.course.replay_done(index, message.heard, now)

    def _links_broken(self, now: int) -> Decisions:
        """Decides on links between live workers that have been closed for a while."""
        broken = self.takeovers.take_broken(now, self.limits.severed)
        return self.replacements.cut_off((slot, peer) for slot, peer, epoch in broken if self.roster.holds(peer, epoch))

    def _never_replaced(self, now: int) -> Decisions:
        whose = " and ".join(f"worker {slot}" for slot in self.takeovers.active)
        return [Cause(f"nobody has taken the place of {whose}", FailureKind.WORKER)]

    # Loops, and messages between operators.

    def _of_a_nest(self, index: int, message: NestReport, now: int) -> None:
        """Takes a message about a loop nest. Nothing follows from it while the job does not run, or does not any more."""
        if self.course.flowing:
            try:
                self.course.do(each(self.nests.message(index, message, now)), now)
            except ProtocolViolation as error:
                self.course.fail(now, Cause(str(error)))

    def _relay(self, event: OperatorEvent, index: int, now: int) -> None:
        if event.source != index or not 0 <= event.target < len(self.roster.slots):
            what = f"sent an operator event from {event.source} to {event.target}, which it may not send"
            self.course.fail(now, Cause(f"worker {index} {what}"))
        else:
            self.course.do([Tell(event, event.target)], now)
