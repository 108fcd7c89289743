"""The parts of a job that outlive an attempt: the claim of an incarnation, checkpoints, and the output that goes with them.

`Durability` is the coordinator's side of the conversation with the storage of checkpoints. It keeps the books of
`IncarnationClaims`, `Checkpoints` and `JobOutput` in step. A job that takes no checkpoints has empty `Checkpoints`, and
sends the storage nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailrace.coordinator.actions import (
    CheckClaim,
    CheckpointEnded,
    CheckpointFailed,
    Claim,
    Commit,
    Delete,
    SavepointEnded,
    Sweep,
)
from tailrace.coordinator.checkpoint_stats import CheckpointStats
from tailrace.coordinator.decisions import Decision, Decisions, RescaleCut, StopFailed, Tell
from tailrace.coordinator.durability.checkpoints import Checkpoints, PendingCheckpoint, what_follows
from tailrace.coordinator.durability.incarnation_claims import IncarnationClaims
from tailrace.coordinator.durability.manifest_entries import differing_copies
from tailrace.coordinator.durability.savepoints import SavepointRequest, Savepoints
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.output.origin import NOTHING, StartFrom
from tailrace.coordinator.output.outages import SINKS, STORAGE, Outage
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import FailureKind, Published
from tailrace.protocol.snapshot import Abort, Ack, Complete, Declined, Trigger
from tailrace.state.end_mark import FINISHED, STOPPED, Ending
from tailrace.state.manifest import Manifest
from tailrace.state.paths import manifest_name

TAKES_NONE = "the job takes no checkpoints: give its Environment checkpoint=CheckpointConfig(...)"
STOPS = "the job is being stopped"


class Durability:
    """The durability of one job; the coordinator carries out its decisions. `running`: True if the job is RUNNING; in any
    other state nothing is triggered or committed."""

    def __init__(
        self,
        job: str,
        run_id: str,
        incarnation: int,
        checkpoints: Checkpoints,
        start_from: StartFrom = NOTHING,
        abandoned: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        limits = Limits() if limits is None else limits
        self._job, self._run_id = job, run_id
        self.storage, self.places = Outage(STORAGE, limits), Outage(SINKS, limits)
        self.claims = IncarnationClaims(incarnation, limits)
        self.checkpoints = checkpoints
        origin = checkpoints.settings.origin
        self.output = JobOutput(job, run_id, origin, start_from, abandoned, checkpoints.slots, limits)
        self.savepoints = Savepoints()
        self.newest: tuple[int, Manifest] | None = None
        """The newest checkpoint that was complete in this attempt."""
        self._last_complete: Manifest | None = None
        """The newest checkpoint of this run that is known to be complete, in whatever attempt."""
        self.suspended = False
        """True while no checkpoint is taken, since a worker is being replaced."""
        self._held_since: int | None = None
        """The time since which the commit of the last checkpoint waits for a mark."""
        self._marks_due_at: int | None = None
        """The time at which marks that the last checkpoint waits for are requested once more: they could not be written."""
        self._commit: Commit | None = None
        """The commit under way."""
        self._commit_due_at: int | None = None
        """The time at which the commit is requested once more: the storage has not reported whether it was done."""

    @property
    def takes_checkpoints(self) -> bool:
        """True if the job takes checkpoints."""
        return self.checkpoints.settings.taken

    # Attempts begin and end.

    def start(self, now: int) -> Decisions:
        """Begins the job: the storage sweeps away what its slots' earlier incarnations have left in the folder."""
        if not self.takes_checkpoints:
            return []
        self.claims.confirm(now)
        origin, keep = self.output.origin.manifest, self.checkpoints.settings.keep_runs
        return [Sweep(self.claims.incarnation, [], keep, origin.run_id if keep and origin is not None else "")]

    def running(self, now: int) -> Decisions:
        """Begins the run of an attempt: all workers are sent `Start`."""
        self.checkpoints.start(now)
        return self.output.start() if self.takes_checkpoints else []

    def attempt_over(self, reason: str, now: int) -> Decisions:
        """Ends the attempt: nothing of it is committed any more."""
        self._held_since = self.newest = self._commit = self._commit_due_at = self._marks_due_at = None
        self.suspended = False
        self.output.attempt_over()
        self.checkpoints.stopping = False
        self.checkpoints.pinned = self.savepoints.pinned
        return [*self.checkpoints.attempt_over(reason, now)]

    def over(self, reason: str) -> Decisions:
        """Ends the job: all copies under way are given up."""
        return [*self.savepoints.over(reason)]

    def anew(self, cause: Cause, now: int, pause: int) -> Decisions:
        """Begins another attempt after a pause, under a new incarnation where one was used."""
        if not self.takes_checkpoints:
            self.claims.count_on()
            return []
        # The claim is made during the pause, and while workers drop what they run. Where the storage itself failed, the
        # claim waits for the end of the pause.
        self.claims.schedule(now + pause if cause.kind is FailureKind.STORE else now)
        return self.claim_due(now)

    def claim_due(self, now: int) -> Decisions:
        """Requests an incarnation from the storage, if that is due now."""
        return [Claim()] if self.claims.take_due(now) else []

    def claim_failed(self, reason: str, kind: FailureKind, now: int) -> Decisions:
        """Takes the failure of a claim. Where the storage could not be reached, another request is scheduled."""
        what = f"no new incarnation could be claimed in the storage of checkpoints: {reason}"
        if kind is not FailureKind.STORE:
            return [Cause(what, kind)]
        decided = self.storage.note_failure(what, now)
        if self.storage.due_at is not None:
            self.claims.repeat(self.storage.due_at)
        return decided

    def check_claim(self, now: int) -> Decisions:
        """Looks at the claim of the job: another start may have taken it over, and wait for its workers."""
        self.claims.check()
        return [CheckClaim(self.claims.incarnation)]

    def claim_checked(self, incarnation: int, reason: str, kind: FailureKind, now: int) -> Decisions:
        """Takes the storage's answer to a look: see `Coordinator.claim_checked`."""
        self.claims.note_check(now)
        known = not reason or kind is FailureKind.STORE or incarnation != self.claims.incarnation
        return [] if known or self.claims.under_way else [Cause(reason, kind)]

    def claim_done(self, incarnation: int, manifest: Manifest | None, path: str, now: int) -> Decisions:
        """Takes the storage's answer to a claim: see `Coordinator.claim_done`."""
        self.claims.note_answer()
        ours = manifest if manifest is not None and manifest.run_id == self._run_id else None
        if manifest is not None and ours is None and manifest.incarnation > self.claims.incarnation:
            what = f"another start of job {self._job!r} (run {manifest.run_id}) has taken over"
            return [Cause(what, FailureKind.FENCED)]
        self.claims.note_incarnation(incarnation)
        self.claims.confirm(now)
        self.output.restore(ours, path)
        self.checkpoints.claim_done(ours, path)
        self._last_complete = ours or self._last_complete
        return [Sweep(incarnation, self.checkpoints.needed)]

    def go_on(self, incarnation: int, manifest: Manifest | None, reason: str, now: int) -> tuple[Decisions, int]:
        """Goes on under the incarnation of a coordinator that has taken the place of a lost one, and gives up checkpoints
        under way. Returns what follows, and the number of the checkpoint whose commit was under way, if it is there; else
        0."""
        self.claims.go_on(incarnation)
        self.claims.confirm(now)
        self.output.lanes.go_on(now)
        self.checkpoints.go_on(manifest)
        self._commit_due_at = self._held_since = None
        given_up = self.suspend(reason, now)
        made = self.checkpoints.committing
        decided: Decisions = [one for one in given_up if not isinstance(one, StopFailed | RescaleCut)]
        return decided, 0 if made is None else made.checkpoint

    # Places that are out of reach.

    @property
    def silent_at(self) -> int | None:
        """The time at which the storage has not answered for too long: a claim, a commit, or a mark that the last commit
        waits for."""
        times = map(self.storage.silent_at, (self.claims.sent_at, self.checkpoints.commit_sent_at, self._held_since))
        return min((at for at in times if at is not None), default=None)

    def wait(self, cause: Cause, now: int) -> tuple[int | None, Decisions]:
        """Decides on a restart whose cause is a place out of reach: (the pause before it, None where the job's patience is
        over; what else is decided)."""
        outage = self.storage if cause.kind is FailureKind.STORE else self.places
        decided = outage.note_failure(cause.message, now)
        given_up = any(isinstance(one, Cause) for one in decided)
        return None if given_up or outage.due_at is None else outage.due_at - now, decided

    def restore_done(self, now: int) -> Decisions:
        """Notes that all workers have read the state from which they go on."""
        return self.storage.over(now)

    @property
    def retry_at(self) -> int | None:
        """The time at which something that has failed is tried once more: see `_retries`."""
        return min((at for at, _ in self._retries() if at is not None), default=None)

    def retry(self, now: int) -> Iterator[Decision]:
        """Retries that are due now."""
        for at, act in list(self._retries()):
            if at is not None and at <= now:
                yield from act(now)

    def _retries(self) -> Iterator[tuple[int | None, Callable[[int], Decisions]]]:
        yield self._commit_due_at, self._commit_again
        yield self._marks_due_at, self._mark_again
        yield self.output.lanes.due_at, self.output.lanes.send_again
        if self.checkpoints.final_again:
            yield self.checkpoints.not_before, lambda now: self.trigger(now, self._final)

    def _commit_again(self, now: int) -> Decisions:
        """Requests a commit once more whose outcome is unknown. The storage does none a second time (`Store.commit`)."""
        assert self._commit is not None
        self._commit_due_at, self.checkpoints.commit_sent_at = None, now
        return [self._commit]

    def _mark_again(self, now: int) -> Decisions:
        self._marks_due_at = None
        return self.output.mark_visible()

    # Stops.

    @property
    def keeps(self) -> bool:
        """True if the checkpoint of a stop outlives the job."""
        return self.takes_checkpoints and self.checkpoints.settings.retain != "never"

    def make_way(self, now: int, *, final: bool) -> Decisions:
        """Gives up checkpoints under way for a stop, except one whose manifest is on its way. `final`: also the last one of
        the job, which is taken anew. Requests of checkpoints that were not begun get the stop's checkpoint; requests of
        savepoints that were not begun end without one."""
        decided: Decisions = []
        pending = [one for one in self.checkpoints.pending.values() if final or not one.final]
        for number in [one.id for one in pending]:
            decided += self.abort(number, STOPS, now, running=False, failure=False)
        requested, self.savepoints.requested = self.savepoints.requested, deque()
        return [*decided, *(SavepointEnded(0, request.who, None, STOPS) for request in requested)]

    def drains(self) -> None:
        """Notes that sources end because the job is to stop: its last checkpoint is the stop's."""
        self.checkpoints.stopping = True

    @property
    def may_be_stopped(self) -> bool:
        """True if the manifest of a stop's checkpoint is on its way, or its outcome is unknown."""
        checkpoints = self.checkpoints
        return any(one.committing and (one.stops or checkpoints.stopping) for one in checkpoints.pending.values())

    @property
    def may_be_resized(self) -> bool:
        """True if the manifest of the checkpoint is on its way behind which the job changes its size."""
        return any(one.committing and one.resizes for one in self.checkpoints.pending.values())

    @property
    def may_pause(self) -> bool:
        """True if the job can take a checkpoint now behind which its tasks do nothing, and go on."""
        pending = self.checkpoints.pending.values()
        busy = any(one.committing or one.alone for one in pending) or self.savepoints.under_way
        return not (busy or self.suspended or self.savepoints.requested)

    def resize(self, slots: int) -> None:
        """Gives the job another number of slots, before the next attempt."""
        self.checkpoints.slots = slots
        self.output.resize(slots)

    def pause(self, now: int) -> Decisions:
        """Takes a checkpoint behind which tasks do nothing, for a change of the job's size. Checkpoints under way are given
        up, and their requests get this one."""
        decided: Decisions = []
        for number, pending in list(self.checkpoints.pending.items()):
            self.checkpoints.requests, pending.waiting = [*pending.waiting, *self.checkpoints.requests], []
            reason = "the job changes its size"
            decided += self.abort(number, reason, now, running=False, failure=False)
        return [*decided, Tell(Trigger(self.checkpoints.trigger(now, hold=True, resizes=True)))]

    def found_stop(self, now: int) -> CheckpointStats | None:
        """The newest checkpoint of this run, found by a claim, where a stop has taken it; else None."""
        found = self.output.restored.manifest if self.output.restored.own else None
        if found is None or not found.stopped:
            return None
        self.savepoints.note_stop(found, now)
        path = f"{self.checkpoints.settings.origin}/{manifest_name(found.incarnation, found.checkpoint)}"
        return CheckpointStats(
            found.checkpoint, path, found.timestamp, 0, found.size, 0, 0, 0, 0, found.size, found.final
        )

    @property
    def has_begun(self) -> bool:
        """True if a restart goes on from a checkpoint, as far as is known, and not from the beginning of the job."""
        return self._last_complete is not None or self.output.origin.manifest is not None

    # A checkpoint, from its trigger to its commit.

    def request(self, who: Any, refused: str | None) -> Decisions:
        """Takes a request of a checkpoint; `refused` is the reason why none is taken any more."""
        if not self.takes_checkpoints:
            refused = TAKES_NONE
        elif refused is None:
            self.checkpoints.requests.append(who)
            return []
        return [CheckpointEnded(0, (who,), None, refused)]

    def request_savepoint(
        self, who: Any, target: str, refused: str | None, *, unaligned: bool = False, cancels: bool = False
    ) -> Decisions:
        """Takes a request of a savepoint (`SavepointRequest`); `refused` is the reason why none is taken any more."""
        if not self.takes_checkpoints:
            refused = f"{TAKES_NONE} (interval=None takes them on request only)"
        elif unaligned and self.checkpoints.settings.overtakes_after < 0:
            refused = (
                "mode='aligned' without an alignment_timeout: its workers do not record what is in flight; give "
                "CheckpointConfig an alignment_timeout, or take an aligned savepoint"
            )
        elif refused is None:
            self.savepoints.requested.append(SavepointRequest(who, target, unaligned, cancels))
            return []
        return [SavepointEnded(0, who, None, refused)]

    @property
    def due_at(self) -> int | None:
        """The time at which the next checkpoint is to be triggered, as far as the clock decides."""
        over = self.suspended or self.savepoints.ends_job
        return None if over else self.checkpoints.due_at(bool(self.savepoints.requested))

    @property
    def late_at(self) -> int | None:
        """The time at which a checkpoint has taken too long."""
        return self.checkpoints.timeout_at()

    def trigger_due(self, now: int, final: bool) -> Decisions:
        """Triggers a checkpoint, if one is due or requested. `final`: all inputs have ended."""
        requested = bool(self.savepoints.requested)
        if self.suspended or self.savepoints.ends_job or not self.checkpoints.trigger_due(now, requested):
            return []
        return self.trigger(now, self._final if final else CutKind.SAVEPOINT if requested else CutKind.CHECKPOINT)

    @property
    def _final(self) -> CutKind:
        return CutKind.FINAL_SAVEPOINT if self.savepoints.requested else CutKind.FINAL

    def last(self, now: int) -> Decisions:
        """Triggers the last checkpoint, where it is not under way: all inputs have ended."""
        under_way = self.checkpoints.final_pending or self.savepoints.ends_job
        return [] if under_way else self.trigger(now, self._final)

    def trigger(self, now: int, kind: CutKind, hold: bool = False) -> Decisions:
        """Begins a checkpoint: all workers are requested to cut."""
        requested = self.savepoints.requested
        unaligned = kind is CutKind.SAVEPOINT and not hold and bool(requested) and requested[0].unaligned
        cut = self.checkpoints.trigger(now, kind, hold, unaligned=unaligned)
        if kind.whole and self.savepoints.requested:
            self.savepoints.begin(cut.number, now)
        return [Tell(Trigger(cut))]

    def ack(self, slot: int, ack: Ack, now: int, running: bool) -> Decisions:
        """Takes the report of a worker that its part is durable."""
        if ack.checkpoint not in self.checkpoints.pending:
            return _deletion(self.checkpoints.unneeded_files(ack))
        refused = self.checkpoints.refusal(slot, ack)
        if refused is not None:
            gone = _deletion(self.checkpoints.unneeded_files(ack))
            return [*self.abort(ack.checkpoint, refused, now, running, failure=False), *gone]
        if not self.checkpoints.ack(slot, ack):
            return []
        unequal = differing_copies(self.checkpoints.pending[ack.checkpoint].acks.values())
        if unequal is not None:
            return self._unequal(ack.checkpoint, *unequal, now, running)
        return self._commit_next(now, running)

    def _unequal(self, number: int, operator: str, state: str, now: int, running: bool) -> Decisions:
        """Aborts a checkpoint in which copies of a broadcast state differ (B11). The job goes on from an earlier one."""
        what = (
            f"operator {operator!r}: its subtasks have different copies of broadcast state {state!r} at checkpoint "
            f"{number}; process_broadcast must do the same in every subtask, from the record and broadcast state alone: no "
            f"keyed state, ctx.subtask, ctx.now(), ctx.random or service may decide what it writes"
        )
        aborted = self.abort(number, what, now, running, failure=False)
        return [*aborted, Cause(what, FailureKind.USER, operator)]

    def decline(self, report: Declined, who: str, now: int, running: bool) -> Decisions:
        """Takes the report of a worker that cannot take part in a checkpoint. Where the storage is out of reach, it does
        not count among the failures that the job tolerates: the next checkpoint comes when the storage is tried again."""
        number, reason = report.checkpoint, f"{who}{report.reason}"
        if not self.checkpoints.is_open(number):
            return []
        if not report.out_of_reach:
            return self.abort(number, reason, now, running)
        decided = self.storage.note_failure(f"checkpoint {number} could not be written: {reason}", now)
        if self.storage.due_at is not None:
            self.checkpoints.storage_away(self.storage.due_at)
        return [*self.abort(number, reason, now, running, counts=False), *decided]

    def abort(
        self, number: int, reason: str, now: int, running: bool, failure: bool = True, counts: bool = True
    ) -> Decisions:
        """Aborts a checkpoint that will never be complete. Too many in a row that count are a failure of the job."""
        checkpoints = self.checkpoints
        aborted = checkpoints.abort(number, reason, now, failure, counts)
        if aborted is None:
            return []
        again = aborted.final and running and not aborted.too_many
        if again:
            self.savepoints.again(number)
        decisions = self.savepoints.fail(number, reason)
        decided: Decisions = [aborted.ended, *decisions, Tell(Abort(number)), *_deletion(aborted.gone)]
        tolerated = checkpoints.settings.tolerated_failures
        if failure:
            left = tolerated - checkpoints.failures
            decided.append(CheckpointFailed(number, reason, checkpoints.in_a_row, what_follows(aborted, counts, left)))
        if aborted.too_many:
            what = f"checkpoint {number} failed, more than {tolerated} in a row (tolerated_failures): {reason}"
            return [*decided, Cause(what, FailureKind.CHECKPOINT)]
        if aborted.stops:
            decided.append(StopFailed(reason))
        if aborted.resizes:
            decided.append(RescaleCut(reason))
        checkpoints.final_again = again
        return [*decided, *self.trigger(now, self._final)] if again and checkpoints.not_before <= now else decided

    def suspend(self, reason: str, now: int) -> Decisions:
        """Suspends checkpoints until `resume`, while a worker is being replaced. Checkpoints under way are given up, except
        one whose manifest is on its way. Requested ones are taken when the worker is replaced."""
        self.suspended, self.checkpoints.final_again = True, False
        decided: Decisions = []
        for number, pending in list(self.checkpoints.pending.items()):
            if self.checkpoints.is_open(number) and not pending.cut.hold:  # a stop begins its own once more
                decided += self.savepoints.disturb(number, reason)
                self.checkpoints.requests, pending.waiting = [*pending.waiting, *self.checkpoints.requests], []
            decided += self.abort(number, reason, now, running=False, failure=False)
        return decided

    def resume(self) -> None:
        """Lets checkpoints be taken again."""
        self.suspended = False

    @property
    def committing(self) -> bool:
        """True if a manifest is on its way."""
        return self.checkpoints.committing is not None

    def late(self, now: int) -> list[tuple[int, str, PendingCheckpoint]]:
        """Checkpoints that took too long, each with the reason to report."""
        what = f"it took longer than its timeout of {self.checkpoints.settings.timeout / 1e6:g} s"
        return [(number, what, self.checkpoints.pending[number]) for number in self.checkpoints.timed_out(now)]

    def _commit_next(self, now: int, running: bool) -> Decisions:
        self._held_since, held = None, self._held_since
        ready = self.checkpoints.ready()
        if ready is None or not running:
            return []
        # Behind the last commit no other one follows whose success lets sinks forget the origin's output.
        marks = self.output.mark_visible() if ready.ends and self._marks_due_at is None else []
        if ready.ends and (self._marks_due_at is not None or self.output.origin_marking):
            self._held_since = now if held is None else held
            return marks
        commit = self._commit = self.checkpoints.commit(
            ready, self.output.carried_output(), self.claims.incarnation, now, self.claims.deployed
        )
        self.output.before_commit(ready.id)
        return [*marks, commit]

    def commit_done(
        self, number: int, path: str, url: str, now: int, running: bool
    ) -> tuple[Decisions, CheckpointStats | None]:
        """Takes the commit of a manifest: (what follows, the checkpoint if the job ends behind it). Where the job was
        restarted meanwhile, the claim has found the manifest, or will."""
        checkpoints = self.checkpoints
        manifest = checkpoints.commit_answered()
        if manifest is None or number not in checkpoints.pending:
            return [], None
        self._commit = self._commit_due_at = None
        self.claims.confirm(now)
        decided: Decisions = [*self.storage.over(now), *self.places.calm(now)]
        for older in checkpoints.earlier_pending(number):
            reason = f"the newer checkpoint {number} is complete"
            decided += self.abort(older, reason, now, running, failure=False)
        complete = checkpoints.complete(number, manifest, path, url, now)
        self.newest, self._last_complete = (number, manifest), manifest
        decided += [complete.ended, Tell(Complete(number, self.output.visible_through))]
        decided += self.output.commit_done(number, manifest, path, complete.fresh, now)
        self.savepoints.complete(number, manifest, complete.stats)
        decided += [*self.copies(), *self._delete_surplus()]
        if complete.ends and running:
            return decided, complete.stats
        if complete.resizes and running:
            return [*decided, RescaleCut()], None
        return [*decided, *self._commit_next(now, running)], None

    def not_committed(self, number: int, reason: str, kind: FailureKind, now: int) -> Decisions:
        """Takes a failed commit, or one whose outcome is unknown: see `Coordinator.not_committed`."""
        if number not in self.checkpoints.pending:
            self.checkpoints.commit_answered()
            return []
        what = f"checkpoint {number} could not be committed: {reason}"
        if kind is not FailureKind.STORE:
            self.checkpoints.commit_answered()
            return [Cause(what, kind)]
        self.checkpoints.commit_sent_at = None
        decided = self.storage.note_failure(what, now)
        self._commit_due_at = self.storage.due_at
        return decided

    # Output, marks and files.

    def publication_done(self, report: Published, slot: int, now: int) -> Decisions | None:
        """Takes the report of a worker that output of a number is visible; None where the report is not awaited."""
        decided = self.output.publication_done(report, slot, now)
        if decided is None:
            return None
        written = report.number > 0  # in this attempt, so its writers are in reach
        return [*(self.places.over(now) if written else []), *decided, *self.copies()]

    def copies(self) -> Decisions:
        """Copies savepoints whose output is visible."""
        copies = self.savepoints.visible(self.output.visible_through)
        self.checkpoints.pinned = self.savepoints.pinned
        return [*copies]

    def copy_done(self, number: int, url: str, size: int, now: int) -> Decisions | None:
        """Takes the end of a savepoint's copy; None where it is not awaited any more."""
        ended = self.savepoints.copy_done(number, url, size, now)
        return None if ended is None else [ended, *self._unpin()]

    def not_copied(self, number: int, reason: str) -> Decisions:
        """Takes the failure of a savepoint's copy, of which nothing is left."""
        return [*self.savepoints.fail(number, reason), *self._unpin()]

    def _unpin(self) -> Decisions:
        self.checkpoints.pinned = self.savepoints.pinned
        return self._delete_surplus()

    def mark_done(self, path: str, now: int, running: bool) -> Decisions:
        """Notes that a manifest is marked: all its output is published."""
        self.output.mark_done(path)
        return [*self._delete_surplus(), *self._commit_next(now, running)]

    def not_marked(self, path: str, reason: str, now: int) -> Decisions:
        """Notes that a mark could not be written: it is requested again with the next publication, or the next checkpoint.
        Where the last checkpoint waits for it, that is when the storage is tried again."""
        self.output.not_marked(path)
        if self._held_since is None:
            return []
        decided = self.storage.note_failure(f"{path} could not be marked as published: {reason}", now)
        self._marks_due_at = self.storage.due_at
        return decided

    def _delete_surplus(self) -> Decisions:
        """Deletes files that no checkpoint needs any more: behind a commit, or the mark of a manifest that is not kept."""
        surplus = self.checkpoints.surplus(self.output.unmarked)
        self.output.keep_only(self.checkpoints.kept_paths)
        return _deletion(surplus)

    def gives_up(self, well: bool) -> bool:
        """True if none of the checkpoints outlives a job that is over, well or not."""
        return self.checkpoints.settings.given_up(well)

    def give_up(self) -> list[str]:
        """The files of all checkpoints, none of which is to outlive the job."""
        return self.checkpoints.give_up_all()

    def ending(self, ended_as: str, drained: bool, kept: bool, savepoint: str, now: int) -> Ending | None:
        """The mark that the job leaves at its end. None where its newest checkpoint stays for a later start, and where it
        had no checkpoint, since nothing of it was visible then. `drained`: the job was requested to come to its end."""
        checkpoints, newest = self.checkpoints, self._last_complete
        if newest is None:
            return None
        # Where nothing is retained, a stop without `drain` ends the sources all the same.
        over = newest.final and (drained or self.keeps or not newest.stopped)
        ended_as = STOPPED if ended_as == FINISHED and not over else ended_as
        if kept and ended_as != FINISHED:
            return None
        path, when = checkpoints.kept_paths[-1] if kept else "", now + checkpoints.clock_offset
        dataflow = list(checkpoints.settings.dataflow)
        return Ending(self._job, self._run_id, ended_as, when, newest.checkpoint, path, savepoint, dataflow)


def _deletion(names: list[str]) -> Decisions:
    return [Delete(names)] if names else []
