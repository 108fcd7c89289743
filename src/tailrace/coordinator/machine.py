"""The coordinator of one job. Its drivers are `runtime.coordinator` and the simulator.

Events come as method calls with the clock reading where one is needed; what is to be done collects in `actions`. The
outcome is decided once: the first cause wins, and from then on the only thing awaited is that the workers leave.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from tailrace.coordinator.lifecycle import ENDS, JobStatus, moved
from tailrace.coordinator.roster import Roster, Slot
from tailrace.errors import InternalError
from tailrace.protocol.deployment import (
    AnyMessage,
    Deploy,
    Deployed,
    Failed,
    Hello,
    Leave,
    Progress,
    Publish,
    Published,
    Start,
    SubtasksFinished,
    Welcome,
)


@dataclass(frozen=True)
class Limits:
    """How long the coordinator waits for others (int64 microseconds)."""

    slots: int = 60_000_000
    """For all slots to fill."""
    lease: int = 10_000_000
    """For a sign of life of a worker that holds a slot."""
    leave: int = 3_000_000
    """For workers to leave by themselves, before their Spark tasks are cancelled."""
    finish: int = 30_000_000
    """The same for a job that has finished: users' `close` may take its time."""
    gone: int = 9_000_000
    """For cancelled Spark tasks to be gone, before the job ends without them."""


@dataclass(frozen=True)
class Launch:
    """An action: start the Spark job of a slot."""

    slot: int


@dataclass(frozen=True)
class Send:
    """An action: a message to the worker that holds a slot under this epoch."""

    slot: int
    epoch: int
    message: AnyMessage


@dataclass(frozen=True)
class CloseLink:
    """An action: close the link of a worker that was replaced or that has left."""

    slot: int
    epoch: int


@dataclass(frozen=True)
class Kill:
    """An action: cancel the Spark job of a slot; its worker did not leave by itself."""

    slot: int


@dataclass(frozen=True)
class StatusChanged:
    """An action: tell whoever watches."""

    status: JobStatus


Action = Launch | Send | CloseLink | Kill | StatusChanged


@dataclass(frozen=True)
class Cause:
    """Why a job failed."""

    message: str
    kind: str = "internal"
    operator: str | None = None
    subtask: int | None = None
    record: str | None = None
    slot: int | None = None
    """The slot whose worker was lost, where that was the cause."""


class Coordinator:
    """One job.

    Invariant J1: `cause` is set at most once, and exactly when the job is FAILING or FAILED. Its text is completed by
    what Spark says about the worker that was lost, which comes a moment later.
    Invariant J2: `Publish` is said at most once, and only after every slice has finished.
    Invariant J3: in a final state every slot's Spark job has ended, or the limit `gone` has passed.
    """

    def __init__(self, job: str, incarnation: int, slots: int, plan: bytes, limits: Limits | None = None) -> None:
        self.job = job
        self.incarnation = incarnation
        self.plan = plan
        self.limits = limits if limits is not None else Limits()
        self.roster = Roster(slots)
        self.status = JobStatus.CREATED
        self.cause: Cause | None = None
        self.actions: list[Action] = []
        self.left_behind: list[int] = []
        """Slots whose Spark job had not ended when the job did."""
        self._story: deque[str] = deque(maxlen=64)
        self._started_at = 0
        self._ending_since: int | None = None
        self._killed = False
        self._deployed = False
        self._published = False
        """Whether sinks have published, or had nothing to publish."""

    # Events.

    def start(self, now: int) -> None:
        """The job is to run."""
        self._move(JobStatus.STARTING)
        self._started_at = now
        self.actions.extend(Launch(slot.index) for slot in self.roster.slots)

    def hello(self, hello: Hello, now: int) -> int | None:
        """A worker joins. Its epoch, or None when it is not wanted (its link is then to be closed)."""
        self._story.append(f"{now} hello {hello.slot} pid {hello.pid}")
        wanted = hello.job == self.job and hello.incarnation == self.incarnation
        if not wanted or not 0 <= hello.slot < len(self.roster.slots) or self.status is not JobStatus.STARTING:
            return None
        epoch, replaced = self.roster.admit(hello, now)
        if replaced is not None:
            self.actions.append(CloseLink(hello.slot, replaced))
        self._send(self.roster.slots[hello.slot], Welcome(epoch))
        if self._deployed:
            self._fail(now, Cause(f"worker {hello.slot} was replaced while the job was being deployed", "worker"))
        elif self.roster.complete:
            self._deployed = True
            peers = self.roster.peers()
            for slot in self.roster.slots:
                self._send(slot, Deploy(self.plan, peers))
        return epoch

    def message(self, index: int, epoch: int, message: AnyMessage, now: int) -> None:
        """A worker says something. Who holds no slot any more is not heard."""
        if not self.roster.holds(index, epoch):
            return
        slot = self.roster.slots[index]
        slot.heard_at = now
        if isinstance(message, Progress):
            slot.reports, slot.elapsed, slot.refused = message.subtasks, message.elapsed_micros, message.refused
            return
        self._story.append(f"{now} {type(message).__name__} from {index}")
        if isinstance(message, Failed):
            where = (message.operator, message.subtask, message.record, message.peer)
            self._fail(now, Cause(message.message, message.kind, *where))
        elif isinstance(message, Deployed):
            slot.deployed = True
            if self.status is JobStatus.STARTING and all(s.deployed for s in self.roster.slots):
                self._move(JobStatus.RUNNING)
                for each in self.roster.slots:
                    self._send(each, Start())
        elif isinstance(message, SubtasksFinished):
            slot.finished = True
            slot.prepared = message.prepared
            if self.status is JobStatus.RUNNING and all(s.finished for s in self.roster.slots):
                self._publish(now)
        elif isinstance(message, Published):
            self._finish(now)
        else:
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
        self.roster.lose(index)
        if not self._ending:
            self._fail(now, Cause(f"worker {index} was lost: {reason}", "worker", slot=index))

    def slot_ended(self, index: int, error: str | None, now: int, cancelled: bool = False) -> None:
        """The Spark job of a slot ended, by itself or because it was told to. Whoever cancels a worker's Spark job (Ctrl-C
        does, in a program with a Spark session) wants the job to end."""
        self._story.append(f"{now} spark job of {index} ended: {error}")
        self.roster.slots[index].spark_ended = True
        if cancelled:
            self.cancel(now)
        elif not self._ending:
            told = error if error is not None else "it ended without having been told to"
            self._fail(now, Cause(f"the Spark task of worker {index} ended: {told}", "worker"))
        elif error is not None and self.cause is not None and self.cause.slot == index:
            self.cause = replace(self.cause, message=f"{self.cause.message}; Spark says: {error}")
        self._maybe_over(now)

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

    def tick(self, now: int) -> None:
        """The clock moved: looks at everything that waits for someone else."""
        if self.status is JobStatus.STARTING and now - self._started_at >= self.limits.slots and not self._deployed:
            here, wanted = len(self.roster.connected), len(self.roster.slots)
            self._fail(
                now,
                Cause(
                    f"the job needs {wanted} task slots, {here} came within {self.limits.slots // 1_000_000} s; give "
                    f"Spark more free cores, or lower the parallelism",
                    "slots",
                ),
            )
        if not self._ending:
            for slot in self.roster.connected:
                if now - slot.heard_at >= self.limits.lease:
                    silent = (now - slot.heard_at) / 1e6
                    self._fail(
                        now, Cause(f"worker {slot.index} has given no sign of life for {silent:.0f} s", "worker")
                    )
                    break
        if self._ending_since is not None and not self.status.final:
            if now - self._ending_since >= self._patience and not self._killed:
                self._killed = True
                self.actions.extend(Kill(s.index) for s in self.roster.slots if not s.spark_ended)
            if now - self._ending_since >= self._patience + self.limits.gone:
                self.left_behind = [s.index for s in self.roster.slots if not s.spark_ended]
                self._over()

    def next_tick(self, now: int) -> int | None:
        """When the clock alone gives something to do next, or None."""
        if self.status.final or self.status is JobStatus.CREATED:
            return None
        due = []
        if self._ending_since is not None:
            due.append(self._ending_since + self._patience + (self.limits.gone if self._killed else 0))
        else:
            if self.status is JobStatus.STARTING and not self._deployed:
                due.append(self._started_at + self.limits.slots)
            due.extend(slot.heard_at + self.limits.lease for slot in self.roster.connected)
        return min(due, default=None)

    # Inside.

    @property
    def _ending(self) -> bool:
        return self._ending_since is not None or self.status.final

    @property
    def _patience(self) -> int:
        """How long workers may take to leave."""
        return self.limits.finish if self.status is JobStatus.FINISHING else self.limits.leave

    def _publish(self, now: int) -> None:
        self._move(JobStatus.FINISHING)
        by_node: dict[int, list[bytes]] = {}
        for slot in self.roster.slots:
            for node, prepared in slot.prepared:
                by_node.setdefault(node, []).append(prepared)
        if by_node:
            self._send(self.roster.slots[0], Publish(sorted(by_node.items())))
        else:
            self._finish(now)

    def _finish(self, now: int) -> None:
        if self._published or self.status is not JobStatus.FINISHING:
            return
        self._published = True
        self._leave("the job has finished", now)

    def _fail(self, now: int, cause: Cause) -> None:
        if self._ending:
            return
        self.cause = cause
        self._end(JobStatus.FAILING, "the job has failed", now)

    def _end(self, status: JobStatus, reason: str, now: int) -> None:
        self._move(status)
        self._leave(reason, now)

    def _leave(self, reason: str, now: int) -> None:
        """The outcome is decided: everybody is told to leave."""
        if self._ending_since is None:
            self._ending_since = now
            for slot in self.roster.connected:
                self._send(slot, Leave(reason))
        self._maybe_over(now)

    def _maybe_over(self, now: int) -> None:
        if self._ending_since is not None and all(slot.spark_ended for slot in self.roster.slots):
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
