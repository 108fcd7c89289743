"""The course of one job: its status, and what follows from the bookkeepers' decisions.

The bookkeepers decide (`decisions`). This module carries it out: messages go to workers, and actions to the driver. Where
something has failed, the job starts again, as long as its restart strategy allows it, or ends. The outcome is decided once:
the first cause wins, and from then on the job only waits for its workers to leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from tailrace.coordinator.actions import (
    Action,
    CloseLink,
    NotResized,
    RescaleEnded,
    Resizing,
    Restarting,
    SavepointEnded,
    Send,
    StatusChanged,
    StopEnded,
    WasPublished,
)
from tailrace.coordinator.checkpoint_stats import CheckpointStats
from tailrace.coordinator.decisions import Decision, Decisions, NotJoined, RescaleCut, StopFailed, Tell
from tailrace.coordinator.durability.durability import TAKES_NONE, Durability
from tailrace.coordinator.durability.savepoints import SavepointRequest
from tailrace.coordinator.durability.stopping import Aim, Stage, Stopping
from tailrace.coordinator.job.attempts import Attempts
from tailrace.coordinator.job.failures import Cause, Reaction, reaction
from tailrace.coordinator.job.lifecycle import ENDS, JobStatus, next_status
from tailrace.coordinator.job.restarts import Strategy
from tailrace.coordinator.job.shutdown import Shutdown
from tailrace.coordinator.loops.termination import Nests
from tailrace.coordinator.workers.places import WorkerPlace
from tailrace.coordinator.workers.replacement_phases import Takeovers
from tailrace.coordinator.workers.replacements import Replacements
from tailrace.coordinator.workers.rescaling import ElasticSizes, JobSize, Rescaling
from tailrace.coordinator.workers.roster import Roster, Slot
from tailrace.coordinator.workers.standbys import Standby
from tailrace.elements.cuts import CutKind
from tailrace.errors import InternalError
from tailrace.protocol.deployment import EndSources, Failed, FailureKind, Leave, Progress, Published, Start
from tailrace.protocol.message_codec import FollowReport, FromWorker, ToWorker
from tailrace.protocol.standby import StandsBy, StateHeld
from tailrace.state.end_mark import Ending
from tailrace.state.manifest import encode_manifest


class Course:
    """The state of one job, from its first attempt to its end.

    Invariant J1: `cause` is set exactly when the job is FAILING or FAILED, and then never changes, except for Spark's
    report about the worker that was lost, which comes a moment later and completes its text.
    """

    def __init__(
        self,
        size: JobSize,
        roster: Roster,
        attempts: Attempts,
        durability: Durability,
        nests: Nests,
        restarts: Strategy,
        stopping: Stopping,
        takeovers: Takeovers,
        replacements: Replacements,
        elastic: ElasticSizes | None = None,
    ) -> None:
        self.status = JobStatus.CREATED
        self.cause: Cause | None = None
        self.actions: list[Action] = []
        self.left_behind: list[int] = []
        """Places whose Spark job had not ended when the job did."""
        self.story: deque[str] = deque(maxlen=64)
        """The last events of the job, for the report of an internal error."""
        self.plan = size.plan
        """The plan with which workers are deployed; the driver removes it when the job is over."""
        self.rescaling = Rescaling(size, elastic)
        self._roster = roster
        self._attempts = attempts
        self._durability = durability
        self._nests = nests
        self._restarts = restarts
        self.leaving = Shutdown(replacements.limits)
        self._stopping = stopping
        self._takeovers = takeovers
        self._replacements = replacements

    @property
    def ending(self) -> bool:
        """True if the outcome is decided."""
        return self.leaving.since is not None or self.status.final

    @property
    def filling(self) -> bool:
        """True if the job waits for its slots to be filled and deployed."""
        return self.status in (JobStatus.STARTING, JobStatus.RESTARTING)

    @property
    def running(self) -> bool:
        """True if records flow, and the end of the job was not requested."""
        return self.status is JobStatus.RUNNING

    @property
    def flowing(self) -> bool:
        """True if tasks run, though tasks of a job that stops may do nothing any more."""
        return self.status in (JobStatus.RUNNING, JobStatus.STOPPING)

    # The beginning of an attempt.

    def maybe_deploy(self, now: int) -> None:
        """Sends the plan when every slot has a worker that runs nothing, and no worker can commit under an older one of our
        incarnations."""
        attempts, claims = self._attempts, self._durability.claims
        if (
            not self.filling
            or attempts.deployed
            or attempts.is_paused(now)
            or claims.under_way
            or not self._roster.ready
        ):
            return
        attempts.deployed = True
        claims.note_deployment()
        restored, peers = self._durability.output.restored, self._roster.peers()
        self._takeovers.anew(peers)
        attempts_of = sorted({slot.attempt for slot in self._roster.slots})
        noted = attempts.failed_records.operators
        deploys = {of: restored.deploy(self.plan, peers, claims.incarnation, of, noted) for of in attempts_of}
        self.do([Tell(deploys[slot.attempt], slot.index) for slot in self._roster.slots], now)

    def begin(self, now: int) -> None:
        """Publishes the output that the restored checkpoint had prepared, before anything else happens. All workers have
        deployed."""
        self._attempts.publishing = True
        self.do(self._durability.restore_done(now), now)
        self.do(self._durability.output.begin(self._attempts.restarts > 0, now), now)
        self.do(self._durability.copies(), now)
        self._maybe_start(now)
        self.maybe_finish(now)

    def _maybe_start(self, now: int) -> None:
        # The job may be ending meanwhile.
        if self._attempts.publishing and self.filling and not self._durability.output.pending:
            self._attempts.publishing = False
            if self._stopping.is_sealed:  # this attempt only publishes
                self.move(JobStatus.FINISHING)
                return
            self.move(JobStatus.RUNNING)
            self._nests.begin()
            if self.rescaling.is_moving:
                self.do(self.rescaling.end(), now)
            if self.rescaling.elastic is not None:
                self.rescaling.elastic.runs(len(self._roster.slots), now)
            if not self.rescaling.active:
                self.do(self._roster.release("the job goes on with fewer workers", now), now)
            self.do([*self._durability.running(now), Tell(Start()), *self._roster.standbys.fill()], now)
            self._get_ready(now)
            self._begin_stop(now)

    # Workers that come, and standbys.

    def join(self, place: Slot | Standby, now: int) -> None:
        """Goes on with a worker that holds a place now. A standby takes a slot at once where one waits for a worker."""
        roster = self._roster
        if roster.is_outside(place):
            self._get_ready(now)  # a change of size waits for it
            return
        if isinstance(place, Standby):
            taken = roster.fill_with(place)
            self.do(roster.standbys.welcome(place, self.plan) if taken is None else taken, now)
            return
        active = self._takeovers.active.get(place.index)
        if self._attempts.deployed and (active is None or active.resumed):
            # Spark has started the worker again by itself; the process before is gone, with all its state.
            cause = Cause(f"Spark replaced the process of worker {place.index}", FailureKind.WORKER, slot=place.index)
            if self.ending or not self._replaces(cause, now, there=True):
                self.fail(now, Cause(cause.message, cause.kind))
        self._takeovers.failovers.there(place.index, now)
        self.maybe_resume(now)
        self.maybe_deploy(now)

    def of_a_standby(self, place: Standby, message: FromWorker, now: int) -> None:
        """Takes a message of a standby."""
        if isinstance(message, StandsBy):
            self._roster.standbys.is_ready(place)
            self.hold(now)
        elif isinstance(message, StateHeld):
            self._roster.standbys.holds(place, message)
            self.do(self._replacements.hot.begin(place), now)
        elif isinstance(message, FollowReport):
            if self.flowing:  # else the one may have left before the other, as it should
                self.do(self._replacements.hot.not_followed(place, message), now)
                self.hold(now)
        elif not isinstance(message, Progress):
            what = message.message if isinstance(message, Failed) else f"it sent {type(message).__name__}"
            self.do([CloseLink(place.index, place.epoch)], now)
            self.standby_lost(place, what, now)

    def of_a_feed(self, slot: int, message: FollowReport, now: int) -> None:
        """Takes a report of a worker on its hot standby."""
        if self.flowing:
            self.do(self._replacements.hot.feeds(slot, message, self.plan), now)
            self.hold(now)

    def hold(self, now: int) -> None:
        """Makes standbys, and workers that get ready for another size, hold the state of the newest checkpoint."""
        newest = self._durability.newest
        if newest is not None:
            homes = self._roster.homes()
            self.do(self._roster.standbys.hold(newest[0], self._bare_newest, homes, now), now)
        self._get_ready(now)

    def _bare_newest(self) -> bytes:
        """The manifest of the newest checkpoint, without what nobody reads ahead."""
        assert self._durability.newest is not None
        return encode_manifest(msgspec.structs.replace(self._durability.newest[1], prepared=[]))

    def standby_lost(self, place: Standby, what: str, now: int) -> None:
        """Goes on without a standby that is gone. While the job runs another one is started."""
        self.do(self._roster.standbys.lose(place, what, again=self.flowing), now)

    # Published output.

    def was_published(self, report: Published, slot: int, now: int) -> None:
        """Takes a worker's report that output of sinks is published."""
        decided = self._durability.publication_done(report, slot, now)
        if decided is not None:
            self.do([*decided, WasPublished()], now)
            self._maybe_start(now)
            self.maybe_finish(now)

    # Failures and restarts.

    def fail(self, now: int, cause: Cause) -> None:
        """Goes on after a failure. A worker that was lost, or that alone has failed, is replaced, where the other workers
        can go on. Else the job starts again where its strategy allows it, or ends."""
        if self.ending or self._replaces(cause, now):
            return
        if self.rescaling.goes_back(cause):
            self._back(cause, now)
            return
        first = self._replacements.first_cause(cause)
        what, cause = reaction(first, self._durability.takes_checkpoints, self.status is JobStatus.FINISHING)
        delay = 0 if what is Reaction.MOVE else None
        if what is Reaction.RESTART:
            delay = self._restarts.delay(now)
        elif what is Reaction.WAIT:
            delay, decided = self._durability.wait(cause, now)
            if delay is None:  # the job's patience is over
                self.do(decided, now)
                return
            self.do(decided, now)
        if delay is None:
            self.cause = cause
            self.end(JobStatus.FAILING, "the job has failed", now)
        else:
            self.restart(now, cause, delay)

    # Workers that are replaced.

    def _replaces(self, cause: Cause, now: int, there: bool = False) -> bool:
        """Begins a replacement, if the failure is that of one worker only, and its loss is covered. Returns False if
        not."""
        refused = self._replacements.refusal(cause, self.status)
        if refused is not None:
            if refused:
                self.story.append(f"{now} worker {cause.worker} is not replaced: {refused}")
                self.do(self._replacements.not_replaced(cause, refused), now)
            return False
        self.story.append(f"{now} worker {cause.worker} is being replaced: {cause.message}")
        self.do(self._replacements.begin(cause, now, there), now)
        if self._stopping.stage is Stage.SUSPENDING:
            self.move(JobStatus.RUNNING)
            self.do(self._stopping.once_more(cause.message), now)
        if self.rescaling.is_cutting:
            self._rescale_again(cause.message, now)
        self.maybe_resume(now)
        return True

    def maybe_resume(self, now: int) -> None:
        """Sends replacements of lost workers what they have to do, when they are there, and all is known."""
        self.do(self._replacements.resume(self.plan), now)

    def replay_done(self, slot: int, received: int, now: int) -> None:
        """Goes on with a replacement that has done all that the lost worker did."""
        self.do(self._replacements.replay_done(slot, received, now), now)
        if not self._replacements.active and self.flowing:
            if self._roster.finished:
                self.all_finished(now)
            self._get_ready(now)
            self._begin_stop(now)

    def restart(self, now: int, cause: Cause, delay: int) -> None:
        """Restarts the job: workers drop what they run and wait for the plan; lost workers are started anew."""
        self._attempts.anew(now, delay)
        self._takeovers.failovers.given_up(cause.message)
        self._takeovers.anew()
        self._replacements.hot.anew()
        self.story.append(f"{now} restart {self._attempts.restarts}: {cause.message}")
        if self.status is not JobStatus.RESTARTING:
            self.move(JobStatus.RESTARTING)
        if cause.kind is FailureKind.RESIZED:
            self.rescaling.count += 1
        else:
            advice = self._attempts.failed_records.advice(cause)
            self.actions.append(Restarting(self._attempts.restarts - self.rescaling.count, cause, advice))
        self.rescaling.readiness.forget(self._roster.slots)
        if self.rescaling.is_cutting:
            self._rescale_again(cause.message, now)
        if self._stopping.is_open and cause.kind is not FailureKind.RESIZED:
            self._stop_disturbed(cause, now)
        if self._stopping.stage not in (Stage.DOUBTFUL, Stage.SEALED):  # else the savepoint of the stop may yet come
            self.do(self._durability.savepoints.attempt_over(cause.message), now)
        self.do(self._durability.attempt_over("the job was restarted", now), now)
        self._durability.output.anew()
        self.do(self._roster.anew(now, lost=cause.slot), now)
        self.do(self._durability.anew(cause, now, delay), now)

    def go_on(self, reason: str, now: int) -> None:
        """Goes on in the place of a lost coordinator: checkpoints are taken again, and a stop begins once more."""
        if not self._replacements.active:
            self._durability.resume()
        self.do(self._replacements.query(), now)
        if self._stopping.stage is Stage.SUSPENDING and self.status is JobStatus.STOPPING:
            self.move(JobStatus.RUNNING)
            self.do(self._stopping.once_more(reason), now)
        if self.flowing and not self._replacements.active:
            if self._roster.finished:
                self.all_finished(now)
            self._begin_stop(now)

    # Another size.

    def rescale(self, who: Any, size: JobSize, now: int, *, by_itself: bool = False) -> None:
        """Takes a request of another size. `RescaleEnded` carries `who`, when the job runs in it, or with the reason why it
        does not. `by_itself`: nobody has requested it, and an elastic job takes it."""
        refused, newest = self._no_rescale() or self.rescaling.refusal(size), self._durability.newest
        if refused is None and newest is not None:  # what is in flight in it is not what will be
            bare = msgspec.structs.replace(newest[1], in_flight={}, channels=[], prepared=[])
            refused = size.fits(bare) or None
        now_in, elastic = self.rescaling.size, self.rescaling.elastic
        if refused is None and elastic is not None and not by_itself:
            elastic.want(size.slots)
        if refused is None and (size.slots, size.plan) != (now_in.slots, now_in.plan):
            self.rescaling.request(who, size, now)
            self.story.append(f"{now} the job is to have {size.slots} workers")
            self.do(self._roster.prepare(size.slots, size.standbys), now)
            self._get_ready(now)
        else:
            self.actions.append(RescaleEnded(who, now_in.slots, refused or ""))
            if by_itself and refused:
                self.actions.append(NotResized(now_in.slots, size.text, refused))

    def _no_rescale(self) -> str | None:
        if self.status in (JobStatus.CREATED, JobStatus.FINISHING, *ENDS, *ENDS.values(), JobStatus.FINISHED):
            return f"the job is {self.status}"
        if self._stopping.active:
            return "the job is being stopped"
        if self._durability.savepoints.ends_job:
            return "the job is cancelled behind its savepoint"
        if self.rescaling.active:
            target = self.rescaling.target or self.rescaling.size
            return f"the job changes its size already, to {target.slots} workers; wait for that"
        return None if self._durability.takes_checkpoints else TAKES_NONE

    def rescale_due(self, limit: int) -> int | None:
        """The time at which the job takes the checkpoint behind which it changes its size: at once if all workers are ready
        for it, and in the end without; None as things stand."""
        target, roster = self.rescaling.target, self._roster
        if target is None or not self._prepares or self._stopping.active or roster.finished:
            return None
        if roster.arrivals < target.slots - len(roster.slots) or not self._durability.may_pause:
            return None
        readiness, newest = self.rescaling.readiness, self._durability.newest
        lacks = readiness.lacks(roster.of_size_to_come, None if newest is None else newest[0])
        return readiness.since + limit if lacks else 0

    @property
    def _prepares(self) -> bool:
        """True while the job runs, and workers get ready for another size."""
        waits = self.rescaling.target is not None and not self.rescaling.is_cutting
        return waits and self.running and not self._replacements.active

    def _get_ready(self, now: int) -> None:
        """Lets workers read the plan of the size to come, and the state that they will have in it."""
        target, newest = self.rescaling.target, self._durability.newest
        if target is not None and self._prepares:
            number, workers = None if newest is None else newest[0], self._roster.of_size_to_come
            self.do(self.rescaling.readiness.prepare(workers, target.plan, number, self._bare_newest, now), now)

    def gets_ready(self, worker: Slot, message: StandsBy | StateHeld, now: int) -> None:
        """Takes the report of a worker that gets ready for another size."""
        self.rescaling.readiness.note(worker, message)
        self._get_ready(now)

    def of_one_outside(self, worker: Slot, message: FromWorker, now: int) -> None:
        """Takes a message of a worker that is to join, or to leave."""
        if isinstance(message, StandsBy | StateHeld):
            self.gets_ready(worker, message, now)
        elif isinstance(message, Failed) and self._roster.expects(worker):
            self.do(self._roster.outside_lost(worker, message.message), now)

    def begin_rescale(self, now: int) -> Decisions:
        """Takes the checkpoint behind which the job changes its size."""
        self.rescaling.cuts()
        return self._durability.pause(now)

    def rescale_late_at(self, limit: int) -> int | None:
        """The time at which workers for another size have taken too long to come."""
        target = self.rescaling.target
        elastic, come = self.rescaling.elastic, self._roster.arrivals
        if target is None or self.rescaling.is_cutting or come >= target.slots - len(self._roster.slots):
            return None
        return self.rescaling.since + (limit if elastic is None or not come else min(limit, elastic.sizes.wait))

    def rescale_late(self, now: int, limit: int) -> Decisions:
        """Ends the change of size for which no workers have come."""
        target, elastic, come = self.rescaling.target, self.rescaling.elastic, self._roster.arrivals
        assert target is not None
        here = len(self._roster.slots) + come
        if elastic is not None and come:
            size = elastic.sizes.make(here)
            self.do(self.rescaling.readiness.end(self._roster.slots), now)
            self.rescaling.retarget(size, now)
            self.do(self._roster.expect_fewer(here, size.standbys), now)
            self._get_ready(now)
            return []
        what = (
            f"{target.slots} task slots are needed, and Spark gave {here} within {limit // 1_000_000} s; give Spark more "
            f"free cores, or ask for fewer"
        )
        self._rescale_failed(what, now)
        return []

    def _rescale_cut(self, cut: RescaleCut, now: int) -> None:
        """Goes on behind the checkpoint of a change of size, or without it."""
        if not self.rescaling.is_cutting:
            return  # it was given up for a stop
        target, newest = self.rescaling.target, self._durability.newest
        assert target is not None
        if cut.reason:
            self._rescale_failed(cut.reason, now)
            if self._roster.finished:
                self.all_finished(now)
            return
        assert newest is not None
        before, unfit = self.rescaling.size, target.fits(newest[1])
        what = f"the job changes its size from {before.slots} to {target.slots} workers"
        if unfit:  # the tasks do nothing behind the checkpoint, so they start again all the same
            self._rescale_failed(unfit, now)
            what = f"the job keeps its {before.slots} workers: {unfit}"
        else:
            self._resize(self.rescaling.move(), now)
            self.actions.append(Resizing(before.slots, target.slots, target.text))
        self.restart(now, Cause(what, FailureKind.RESIZED), 0)

    # The size of an elastic job.

    def note_room(self, count: int, now: int) -> None:
        """Takes the report of how many task slots there are for an elastic job: those that it has, and free ones."""
        if self.rescaling.elastic is not None:
            self.rescaling.elastic.note_room(count, now)

    @property
    def resize_due(self) -> int | None:
        """The time at which an elastic job begins to change its size by itself."""
        elastic, roster = self.rescaling.elastic, self._roster
        if elastic is None or not self.running or self._replacements.active or roster.finished or self._no_rescale():
            return None
        return elastic.due_at(len(roster.slots))

    def resize(self, now: int) -> Decisions:
        """Begins to change the size of an elastic job."""
        elastic, workers = self.rescaling.elastic, len(self._roster.slots)
        assert elastic is not None
        elastic.tries(now)
        self.rescale(None, elastic.sizes.make(elastic.aim(workers)), now, by_itself=True)
        return []

    @property
    def look_due(self) -> int | None:
        """The time of the next look at the load of a job that is sized by it."""
        elastic = self.rescaling.elastic
        scaler = None if elastic is None or not self.running or self.rescaling.active else elastic.scaler
        return None if scaler is None else scaler.look_at

    def look(self, now: int) -> Decisions:
        """Looks at the load of the job, which may decide on another size."""
        elastic = self.rescaling.elastic
        assert elastic is not None and elastic.scaler is not None
        found = elastic.scaler.look([slot.figures(now) for slot in self._roster.slots], now)
        if found is None or found.after == elastic.required:
            return []
        elastic.want(found.after)
        return [found]

    def fewer_due(self, limit: int) -> int | None:
        """The time at which an elastic job that is about to begin goes on with the workers that are there."""
        elastic, roster, attempts = self.rescaling.elastic, self._roster, self._attempts
        if elastic is None or elastic.unfit or self.rescaling.is_moving or attempts.deployed or roster.ready:
            return None
        late_at = attempts.slots_late_at(min(elastic.sizes.wait, limit))
        return late_at if roster.usable >= elastic.sizes.least else None

    def replaced_within(self, limit: int) -> int:
        """The time in which a lost worker has to be replaced, or all start again. An elastic job does not wait for long
        where there is no process."""
        elastic, slots = self.rescaling.elastic, self._roster.slots
        there = elastic is None or all(slots[slot].connected for slot in self._takeovers.active)
        return limit if elastic is None or there else min(limit, elastic.sizes.wait)

    def begin_with_fewer(self, now: int) -> Decisions:
        """Goes on with the workers that are there, from the newest checkpoint."""
        elastic, roster = self.rescaling.elastic, self._roster
        assert elastic is not None
        before, count = len(roster.slots), roster.usable
        restored = self._durability.output.restored.manifest
        size = elastic.sizes.make(count)
        elastic.unfit = "" if restored is None or count == before else size.fits(restored)
        if elastic.unfit:
            return []
        within = f"within {elastic.sizes.wait // 1_000_000} s"
        what = f"{before} task slots are needed, and Spark gave {count} {within}"
        if count == before:
            what = f"no worker has come {within} in the place of a lost one, and one that was to join takes it"
        target = self.rescaling.target
        self.do(self.rescaling.fail(f"{what}; the job goes on with {count} workers"), now)
        if target is not None:
            self.actions.append(NotResized(count, target.text, what))
        if count < before:
            self.do(roster.prepare(count, size.standbys), now)
            self.rescaling.size = size
            self._resize(size, now)
            self.actions.append(Resizing(before, count, size.text, lacking=what))
        self.do(roster.close_ranks(), now)
        self.restart(now, Cause(what, FailureKind.RESIZED), 0)
        return []

    def _resize(self, size: JobSize, now: int) -> None:
        self.plan = size.plan
        self.do(self._roster.resize(size.slots, size.standbys), now)
        self._takeovers.resize(size.slots)
        self._durability.resize(size.slots)
        self._nests.resize(size.nests)

    def _back(self, cause: Cause, now: int) -> None:
        """Brings the job back to its size before: it has not run in the new one."""
        failed, size = self.rescaling.size, self.rescaling.back()
        self._resize(size, now)
        self.actions.append(Resizing(failed.slots, size.slots, failed.text, cause.message))
        self.do(self.rescaling.fail(f"{cause.message}; the job goes on with {size.slots} workers"), now)
        what = f"the job goes back from {failed.slots} to {size.slots} workers: {cause.message}"
        self.restart(now, Cause(what, FailureKind.RESIZED, slot=cause.slot), 0)

    def _rescale_again(self, reason: str, now: int) -> None:
        target = self.rescaling.target
        self.do(self.rescaling.once_more(reason, now), now)
        if not self.rescaling.active and target is not None:
            self._not_resized(target, reason, now)

    def _rescale_failed(self, reason: str, now: int) -> None:
        """Ends a change of size before the job has moved: it keeps the size that it has."""
        target = self.rescaling.target
        if target is not None:
            self.do(self.rescaling.fail(f"{reason}; the job goes on with {len(self._roster.slots)} workers"), now)
            self._not_resized(target, reason, now)

    def _not_resized(self, target: JobSize, reason: str, now: int) -> None:
        self.actions.append(NotResized(len(self._roster.slots), target.text, reason))
        self.do(self.rescaling.readiness.end(self._roster.slots), now)
        self.do(self._roster.release("the job keeps the size that it has", now), now)
        if self.flowing:
            self.do(self._roster.standbys.fill(), now)

    # Stops.

    def stop(self, who: Any, aim: Aim, now: int) -> None:
        """Takes a request to end the job in order. `StopEnded` carries `who`, at the end of the job, or with the reason why
        it does not end."""
        if self.status in (*ENDS, *ENDS.values()):
            self.actions.append(StopEnded(who, None, None, f"the job is {self.status}"))
            return
        past = self._durability.checkpoints.past
        if self.status in (JobStatus.FINISHING, JobStatus.FINISHED) and not self._stopping.active:
            self._stopping.seal(past[-1] if past else None)  # it ends by itself, which is as good
        self.do(self._stopping.request(who, aim), now)
        if self.status is JobStatus.FINISHED:
            self._report_stop(well=True)
        elif self.running:
            self._begin_stop(now)

    def _begin_stop(self, now: int) -> None:
        aim, durability = self._stopping.aim, self._durability
        if aim is None or self._stopping.stage is not Stage.WANTED or self._replacements.active:
            return
        if self._durability.may_be_resized:
            return  # the job moves to its new size first
        self._rescale_failed("the job is being stopped", now)
        self.move(JobStatus.STOPPING)
        takes_one = durability.keeps or (durability.takes_checkpoints and aim.savepoint is not None)
        suspend = takes_one and not aim.drain and not self._roster.finished
        self._stopping.begins(suspend=suspend)
        self.do(durability.make_way(now, final=aim.savepoint is not None), now)
        if aim.savepoint is not None:
            durability.savepoints.requested.append(SavepointRequest(self._stopping, aim.savepoint))
        if suspend:
            kind = CutKind.CHECKPOINT if aim.savepoint is None else CutKind.SAVEPOINT
            self.do(durability.trigger(now, kind, hold=True), now)
            return
        durability.drains()
        if self._roster.finished:
            self.all_finished(now)
        else:
            self.do([Tell(EndSources())], now)

    def _stop_disturbed(self, cause: Cause, now: int) -> None:
        """Decides on the stop of a job that starts again. Where the manifest of the stop's checkpoint was on its way, the
        next claim shows whether it is complete. Else it is not, and the stop begins once more when the job runs."""
        if self._stopping.stage is Stage.DOUBTFUL or self._durability.may_be_stopped:
            self._stopping.doubtful()
        elif self._stopping.stage is Stage.DRAINING and not self._durability.has_begun:
            # The job begins anew: if its sources ended at once, what they have read would be lost without an error.
            self._durability.savepoints.forget(self._stopping)
            self._give_up_stop(f"a failure came before its checkpoint was complete: {cause.message}", now)
        else:
            self._stop_again(cause.message, now)

    def _stop_again(self, reason: str, now: int) -> None:
        self._durability.savepoints.forget(self._stopping)
        self.do(self._stopping.once_more(reason), now)

    def _give_up_stop(self, reason: str, now: int) -> None:
        self.do(self._stopping.fail(f"{reason}; the job goes on"), now)

    def _stop_failed(self, reason: str, now: int) -> None:
        """Goes on after a stop whose checkpoint was aborted: the tasks run."""
        self._give_up_stop(reason, now)
        if self.status is JobStatus.STOPPING:
            self.move(JobStatus.RUNNING)
            if self._roster.finished:
                self.all_finished(now)

    def claim_done(self, now: int) -> None:
        """Goes on after a claim, which shows what has become of a stop."""
        self._attempts.claim_done(now)
        found = self._durability.found_stop(now)
        if found is not None:
            self._stopping.seal(found)
        elif self._stopping.stage is Stage.DOUBTFUL:
            reason = "its checkpoint could not be committed"
            self._stop_again(reason, now)
            self.do(self._durability.savepoints.attempt_over(reason), now)

    def _report_stop(self, well: bool) -> None:
        self.actions += self._stopping.over(str(self.status), well, self._durability.keeps)

    # The end.

    def last_complete(self, stats: CheckpointStats, now: int) -> None:
        """Finishes the job: the checkpoint is complete behind which the job ends."""
        if self._stopping.is_open:
            self._stopping.seal(stats)
        self.move(JobStatus.FINISHING)
        self.maybe_finish(now)

    def all_finished(self, now: int) -> None:
        """Goes on when every subtask has ended."""
        if self._stopping.stage is Stage.SUSPENDING or self._replacements.active or self.rescaling.is_cutting:
            return  # the checkpoint under way has all of that, or the job goes on without it
        self._rescale_failed("the job has come to its end", now)
        if self._durability.takes_checkpoints:
            self.do(self._durability.last(now), now)
        else:
            self.move(JobStatus.FINISHING)
            self.do(self._durability.output.finish(self._roster.prepared, now), now)
            self.maybe_finish(now)

    def maybe_finish(self, now: int) -> None:
        """Ends the job when all its output is published, and its savepoints are copied."""
        pending = self._durability.output.pending or self._durability.savepoints.under_way
        if self.status is JobStatus.FINISHING and not pending:
            self._leave("the job has finished", now)

    def end(self, status: JobStatus, reason: str, now: int) -> None:
        """Ends the job before its records do: it was cancelled, or has failed."""
        self.do([*self._durability.over(reason), *self._durability.attempt_over(reason, now)], now)
        self.move(status)
        self.do([*self.rescaling.fail(f"the job is {self.status}"), *self._roster.release(reason, now)], now)
        self._report_stop(well=False)
        self._leave(reason, now)

    def _leave(self, reason: str, now: int) -> None:
        """Sends `Leave` to all workers: the outcome is decided."""
        if self.leaving.begin(now, well=self.status is JobStatus.FINISHING):
            self.do([*self._durability.over(reason), Tell(Leave(reason)), *self._roster.standbys.dismiss()], now)
        self.maybe_over()

    def kill_all(self, now: int) -> Decisions:
        """Ends workers that had their time to leave and are still there."""
        self.leaving.killed = True
        return self._roster.kill()

    def leave_behind(self, now: int) -> Decisions:
        """Ends the job without the workers that have not gone even then."""
        self.left_behind = [place.index for place in self._roster.places if not place.spark_ended]
        self._over()
        return []

    def maybe_over(self) -> None:
        """Ends the job when its workers have left."""
        if self.leaving.since is not None and self._roster.spark_ended:
            self._over()

    def _over(self) -> None:
        if not self.status.final:
            self.move(ENDS.get(self.status, JobStatus.FINISHED))
            self._report_stop(well=self.status is JobStatus.FINISHED)

    def gives_up(self, crashed: bool) -> bool:
        """True if the checkpoints of the job, which is over, are not to outlive it. `crashed`: its driver broke."""
        stopping, durability = self._stopping, self._durability
        if self._fenced or stopping.keeps or (stopping.is_sealed and durability.keeps):
            return False
        return durability.gives_up(self.status is JobStatus.FINISHED and not crashed)

    def mark_of_end(self, crashed: bool, now: int) -> Ending | None:
        """The mark that the job leaves of its end; None where another start has taken over."""
        ended_as = str(JobStatus.FAILED if crashed else self.status)
        aim = self._stopping.aim
        drained, kept = aim is not None and aim.drain, not self.gives_up(crashed)
        return None if self._fenced else self._durability.ending(ended_as, drained, kept, self._stopping.saved, now)

    @property
    def _fenced(self) -> bool:
        """True if another start has taken over: it starts from the checkpoints of this one."""
        return self.cause is not None and self.cause.kind is FailureKind.FENCED

    def move(self, status: JobStatus) -> None:
        """Gives the job another status. Raises `InternalError`, with the last events, where the step is illegal."""
        try:
            self.status = next_status(self.status, status)
        except InternalError as error:
            raise InternalError(str(error.args[0]), self.story) from error
        self.story.append(f"-> {status}")
        self.actions.append(StatusChanged(status))

    def do(self, decided: Iterable[Decision], now: int) -> None:
        """Carries out what was decided, in order."""
        for one in decided:
            if isinstance(one, Cause):
                self.fail(now, one)
            elif isinstance(one, Tell):
                self._send_to(one, now)
            elif isinstance(one, StopFailed):
                self._stop_failed(one.reason, now)
            elif isinstance(one, RescaleCut):
                self._rescale_cut(one, now)
            elif isinstance(one, NotJoined):
                if not self.rescaling.is_cutting:  # else it is started anew when the job moves
                    self._rescale_failed(one.reason, now)
            elif isinstance(one, SavepointEnded) and one.who is self._stopping:
                self._stopping.savepoint_ended(one)
            else:
                self.actions.append(one)
                if isinstance(one, SavepointEnded) and one.cancels:
                    self._cancel_behind(one, now)

    def _cancel_behind(self, savepoint: SavepointEnded, now: int) -> None:
        """Cancels the job behind a savepoint that is there. Behind one that failed the job goes on, to its last checkpoint
        if all subtasks have ended meanwhile."""
        if self.ending:
            return
        if savepoint.stats is not None:
            self.end(JobStatus.CANCELLING, "the job was cancelled behind a savepoint", now)
        elif self.flowing and self._roster.finished:
            self.all_finished(now)

    def _send_to(self, tell: Tell, now: int) -> None:
        to = "all" if tell.slot is None else tell.slot
        self.story.append(f"{now} {type(tell.message).__name__} to {to}")
        whom: Iterable[WorkerPlace] = self._roster.places if isinstance(tell.message, Leave) else self._roster.slots
        for slot in whom if tell.slot is None else [self._roster.slots[tell.slot]]:
            if not self._takeovers.holds_back(slot.index, tell.message):
                self._send(slot, tell.message)

    def _send(self, slot: WorkerPlace, message: ToWorker) -> None:
        if slot.connected:
            self.actions.append(Send(slot.index, slot.epoch, message))
