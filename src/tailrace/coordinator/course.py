"""The course of one job: where it stands, and what follows from what was decided.

The bookkeepers decide (`decisions`). Here it is carried out: words go to workers, wishes to the driver, and where something
has failed the job starts again, as long as its restart strategy allows it, or ends. The outcome is decided once: the first
cause wins, and from then on the only thing awaited is that the workers leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tailrace.coordinator.actions import Action, Restarting, Send, StatusChanged, WasPublished
from tailrace.coordinator.attempts import Attempts
from tailrace.coordinator.decisions import Decision, Decisions, Tell
from tailrace.coordinator.durability import Durability
from tailrace.coordinator.failures import Cause, Reaction, reaction
from tailrace.coordinator.leaving import Leaving
from tailrace.coordinator.lifecycle import ENDS, JobStatus, moved
from tailrace.coordinator.loops import Nests
from tailrace.coordinator.restarts import Strategy
from tailrace.coordinator.roster import Roster
from tailrace.errors import InternalError
from tailrace.protocol.deployment import Leave, Published, Start


class Course:
    """The state of one job, from its first attempt to its end.

    Invariant J1: `cause` is set exactly when the job is FAILING or FAILED, and then never changes but for what Spark says
    about the worker that was lost, which comes a moment later and completes its text.
    """

    def __init__(
        self,
        plan: bytes,
        roster: Roster,
        attempts: Attempts,
        durability: Durability,
        nests: Nests,
        restarts: Strategy,
        leaving: Leaving,
    ) -> None:
        self.status = JobStatus.CREATED
        self.cause: Cause | None = None
        self.actions: list[Action] = []
        self.left_behind: list[int] = []
        """Slots whose Spark job had not ended when the job did."""
        self.story: deque[str] = deque(maxlen=64)
        """What has happened last, for the report of an internal error."""
        self.plan = plan
        """What workers are deployed with; the driver takes it away when the job is over."""
        self._roster = roster
        self._attempts = attempts
        self._durability = durability
        self._nests = nests
        self._restarts = restarts
        self._leaving = leaving

    @property
    def ending(self) -> bool:
        """Whether the outcome is decided."""
        return self._leaving.since is not None or self.status.final

    @property
    def filling(self) -> bool:
        """Whether the job waits for its slots to be filled and deployed."""
        return self.status in (JobStatus.STARTING, JobStatus.RESTARTING)

    @property
    def running(self) -> bool:
        """Whether records flow."""
        return self.status is JobStatus.RUNNING

    # The beginning of an attempt.

    def maybe_deploy(self, now: int) -> None:
        """Sends the plan when every slot has a worker that runs nothing, and nobody can commit under an older one of our
        incarnations."""
        attempts, claims = self._attempts, self._durability.claims
        if not self.filling or attempts.deployed or attempts.paused(now) or claims.under_way or not self._roster.ready:
            return
        attempts.deployed = True
        claims.deployed()
        origin, peers = self._durability.output.origin, self._roster.peers()
        for slot in self._roster.slots:
            self.do([Tell(origin.deploy(self.plan, peers, claims.incarnation, slot.attempt), slot.index)], now)

    def begin(self, now: int) -> None:
        """All have deployed. What the restored checkpoint had prepared is published before anything else happens."""
        self._attempts.publishing = True
        self.do(self._durability.output.begin(restarted=self._attempts.restarts > 0), now)
        self._maybe_start(now)

    def _maybe_start(self, now: int) -> None:
        # The job may be ending meanwhile.
        if self._attempts.publishing and self.filling and not self._durability.output.pending:
            self._attempts.publishing = False
            self.move(JobStatus.RUNNING)
            self._nests.begin()
            self.do([*self._durability.running(now), Tell(Start())], now)

    # Published output.

    def was_published(self, said: Published, now: int) -> None:
        """A worker has published what sinks had prepared."""
        decided = self._durability.published(said)
        if decided is not None:
            self.do([*decided, WasPublished()], now)
            self._maybe_start(now)
            self.maybe_finish(now)

    # Failures and restarts.

    def fail(self, now: int, cause: Cause) -> None:
        """Something failed: the job starts again where its strategy allows it, or ends."""
        if self.ending:
            return
        what, cause = reaction(cause, self._durability.checkpoints is None and self.status is JobStatus.FINISHING)
        delay = 0 if what is Reaction.MOVE else None
        if what is Reaction.RESTART:
            delay = self._restarts.delay(now)
        if delay is None:
            self.cause = cause
            self.end(JobStatus.FAILING, "the job has failed", now)
        else:
            self.restart(now, cause, delay)

    def restart(self, now: int, cause: Cause, delay: int) -> None:
        """Everybody drops what they run and waits for the plan; lost workers are started anew."""
        self._attempts.anew(cause, now, delay)
        self.story.append(f"{now} restart {self._attempts.restarts}: {cause.message}")
        if self.status is not JobStatus.RESTARTING:
            self.move(JobStatus.RESTARTING)
        self.actions.append(Restarting(self._attempts.restarts, cause))
        self.do(self._durability.attempt_over("the job was restarted", now), now)
        self._durability.output.anew()
        self.do(self._roster.anew(now, lost=cause.slot), now)
        self.do(self._durability.anew(cause, now, delay), now)

    # The end.

    def all_finished(self, now: int) -> None:
        """Every subtask has ended."""
        if self._durability.checkpoints is None:
            self.move(JobStatus.FINISHING)
            self.do(self._durability.output.finished(self._roster.prepared), now)
            self.maybe_finish(now)
        else:
            self.do(self._durability.last(now), now)

    def maybe_finish(self, now: int) -> None:
        """The job is over when all that it has to publish is published, and its savepoints are copied."""
        pending = self._durability.output.pending or self._durability.savepoints.under_way
        if self.status is JobStatus.FINISHING and not pending:
            self._leave("the job has finished", now)

    def end(self, status: JobStatus, reason: str, now: int) -> None:
        """The job ends before its records do: it was cancelled, or has failed."""
        self.do([*self._durability.attempt_over(reason, now), *self._durability.over(reason)], now)
        self.move(status)
        self._leave(reason, now)

    def _leave(self, reason: str, now: int) -> None:
        """The outcome is decided: everybody is told to leave."""
        if self._leaving.begin(now, well=self.status is JobStatus.FINISHING):
            self.do([Tell(Leave(reason))], now)
        self.maybe_over()

    def kill_all(self, now: int) -> Decisions:
        """The workers had their time to leave: those that are still there are ended."""
        self._leaving.killed = True
        return self._roster.kill()

    def leave_behind(self, now: int) -> Decisions:
        """They have not gone even so: the job is over without them."""
        self.left_behind = [slot.index for slot in self._roster.slots if not slot.spark_ended]
        self._over()
        return []

    def maybe_over(self) -> None:
        """The job is over when its workers have left."""
        if self._leaving.since is not None and self._roster.spark_ended:
            self._over()

    def _over(self) -> None:
        if not self.status.final:
            self.move(ENDS.get(self.status, JobStatus.FINISHED))

    def move(self, status: JobStatus) -> None:
        """The job gets another status. Raises `InternalError`, with what happened last, where it may not."""
        try:
            self.status = moved(self.status, status)
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
                self._tell(one, now)
            else:
                self.actions.append(one)

    def _tell(self, told: Tell, now: int) -> None:
        to = "all" if told.slot is None else told.slot
        self.story.append(f"{now} {type(told.message).__name__} to {to}")
        for slot in self._roster.connected:
            if told.slot in (None, slot.index):
                self.actions.append(Send(slot.index, slot.epoch, told.message))
