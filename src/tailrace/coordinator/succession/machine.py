"""A coordinator that logs its events at two workers, and goes on from the log of a lost one (`protocol.succession`).

What a coordinator does follows from its events. So a successor that handles them again is what the lost one was, and has
only to bring each worker what it has not received. The storage has the rest: which manifest is there, and that nobody
else has claimed the job meanwhile.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace.coordinator.actions import (
    Action,
    CheckClaim,
    CheckpointEnded,
    Claim,
    Commit,
    CopySavepoint,
    Delete,
    MarkPublished,
    MarkSwept,
    RescaleEnded,
    SavepointEnded,
    Send,
    StopEnded,
    StoreAction,
    Sweep,
)
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.succession.conversations import Conversations, Worker
from tailrace.coordinator.succession.eventlog import EventLog
from tailrace.coordinator.workers.rescaling import JobSize
from tailrace.coordinator.workers.roster import Slot
from tailrace.protocol.deployment import Progress, UnderWay
from tailrace.protocol.message_codec import FromWorker
from tailrace.protocol.succession import Keep, LogKept, Received, Rejoin
from tailrace.state.manifest import Manifest

MIRRORS = 2
"""Workers that keep the log. One is enough; while it is busy with user code, the other one answers."""
MOST_BASE_BYTES = 32 << 20
"""Bytes of the state of a coordinator above which it has no mirrors: it would be too large for a message."""
GOES_ON = (JobStatus.RUNNING, JobStatus.STOPPING, JobStatus.FINISHING)
"""The states in which a successor goes on. In any other one the job is about to begin, or to begin anew, all the same."""


@dataclass(frozen=True)
class Asker:
    """The party that waits for the end of a request, as the log names it."""

    number: int


@dataclass(frozen=True)
class SuccessorClaim:
    """The result of a successor's claim: its incarnation, the newest manifest that was there then, and its path and
    URL."""

    incarnation: int
    first: int
    """The first incarnation of those up to this one that successors have claimed, one after the other: nobody has removed
    anything under them."""
    manifest: Manifest | None
    path: str
    url: str


class LoggedCoordinator(Coordinator):
    """The coordinator of a job whose workers wait for another one where it is lost."""

    waits = True

    def __init__(self, *args: Any, term: int = 0, most: int | None = None, **options: Any) -> None:
        """`term`: the number of coordinators of the run that were lost before. `most`: the bytes of the log between two of
        its bases."""
        super().__init__(*args, **options)
        self._log = EventLog(term) if most is None else EventLog(term, most)
        self._conversations = Conversations()
        self._issued: list[StoreAction] = []
        """Requests to the storage that may not be carried out."""
        self._askers: dict[Asker, Any] = {}
        self._requests = 0
        self._busy = self._replaying = False

    @property
    def actions(self) -> list[Action]:
        """The actions for the driver whose events the mirrors have."""
        self._log.release()
        return self._log.out

    @actions.setter
    def actions(self, actions: list[Action]) -> None:
        self._log.out = actions

    # Events.

    def _take(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Logs an event, and handles it."""
        method = getattr(Coordinator, name)
        if self._busy:  # a part of another event
            return method(self, *args, **options)
        self._log_entry(name, args, options)
        self._issued = [one for one in self._issued if not _answers(name, args, one)]
        return self._handle(lambda: method(self, *args, **options))

    def _handle(self, act: Callable[[], Any]) -> Any:
        self._busy = True
        try:
            found = act()
        finally:
            self._busy = False
        actions, self.course.actions = self.course.actions, []
        self._note(actions)
        if not self._replaying:
            self._log.hold([self._with_askers(action) for action in actions])
            self._mirror()
        return found

    def _log_entry(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self._replaying:
            self._log.end += 1
        else:
            self._log.add(pickle.dumps((name, args, options), 5))

    def checkpoint(self, who: Any, now: int) -> None:
        self._take("checkpoint", (self._asker(who), now), {})

    def savepoint(self, who: Any, target: str, now: int, **options: bool) -> None:
        self._take("savepoint", (self._asker(who), target, now), options)

    def stop(self, who: Any, aim: Any, now: int) -> None:
        self._take("stop", (self._asker(who), aim, now), {})

    def rescale(self, who: Any, size: JobSize, now: int) -> None:
        reason = (
            "its coordinator is on an executor, whose successor would not know the new size; stop the job, and start it "
            "again with another parallelism"
        )
        self._log.out.append(RescaleEnded(who, len(self.roster.slots), reason))

    def room(self, count: int, now: int) -> None:
        """Takes no notice: no job whose coordinator is on an executor is elastic."""

    def message(self, index: int, epoch: int, message: FromWorker, now: int) -> None:
        if isinstance(message, LogKept):
            self._note_kept((index, epoch), message.position, now)
        elif isinstance(message, Received):
            self._conversations.note_received((index, epoch), message.count)
        elif isinstance(message, Progress):
            self._progress(index, epoch, message, now)
        else:
            self._conversations.note_message((index, epoch), message, self._log.end + 1)
            self._take("message", (index, epoch, message, now), {})

    def heartbeat(
        self, index: int, pid: int, now: int, under_way: UnderWay | None = None, leaving: bool = False
    ) -> None:
        """Takes a sign of life. It is logged only where the executor is about to go: `tick` logs what follows where no sign
        comes."""
        sign = index, pid, now, under_way, leaving
        if leaving:
            self._take("heartbeat", sign, {})
        else:
            self._handle(lambda: Coordinator.heartbeat(self, *sign))

    def _progress(self, index: int, epoch: int, message: Progress, now: int) -> None:
        """Takes figures. Of these only what decisions depend on is logged."""
        place, due_at = self.roster.at(index), self.checkpoints.due_at()
        before = (place.log, place.phases, due_at) if isinstance(place, Slot) else None
        self._handle(lambda: Coordinator.message(self, index, epoch, message, now))
        if isinstance(place, Slot) and before != (place.log, place.phases, self.checkpoints.due_at()):
            hurried = None if due_at == self.checkpoints.due_at() else now
            self.figures(index, place.log, place.phases, hurried)

    def figures(
        self, index: int, log: tuple[int, int, int], phases: dict[int, str], hurried: int | None = None
    ) -> None:
        """Takes those figures of a worker on which decisions depend. `hurried`: the time at which they have made a
        checkpoint due."""
        self._log_entry("figures", (index, log, phases, hurried), {})
        slot = self.roster.slots[index]
        slot.log, slot.phases = log, phases
        if hurried is not None:
            self.checkpoints.hurry(hurried)

    def tick(self, now: int, only: Collection[int] | None = None) -> list[int]:
        silent_at = None if self.course.ending else self.roster.silent_at(self.limits.lease)
        received = {}
        if silent_at is not None and silent_at <= now:
            received = {place.index: place.received_at for place in self.roster.places}
        done: list[int] = []

        def act() -> None:
            done.extend(Coordinator.tick(self, now, only))
            if done:
                self._log_entry("replay_tick", (now, done, received), {})

        self._handle(act)
        return done

    def replay_tick(self, now: int, done: Collection[int], received: Mapping[int, int]) -> None:
        """Does what a lost coordinator did by the clock."""
        for index, at in received.items():
            self.roster.at(index).received_at = at
        self.tick(now, done)

    # What leaves.

    def _asker(self, who: Any) -> Any:
        if self._busy or who is None or isinstance(who, Asker):
            return who
        self._requests += 1
        asker = Asker(self._requests)
        self._askers[asker] = who
        return asker

    def _with_askers(self, action: Action) -> Action:
        """The action with the parties themselves. A party with a request to a lost coordinator makes it once more."""
        if isinstance(action, CheckpointEnded):
            found = [self._askers.pop(one, None) if isinstance(one, Asker) else one for one in action.waiting]
            return replace(action, waiting=tuple(one for one in found if one is not None))
        if isinstance(action, SavepointEnded | StopEnded) and isinstance(action.who, Asker):
            return replace(action, who=self._askers.pop(action.who, None))
        return action

    def _note(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._conversations.note_send(action)
            elif isinstance(action, StoreAction):
                self._issued.append(action)

    # The mirrors.

    @property
    def mirrored(self) -> bool:
        """True if a worker has the log."""
        return self._log.secured >= 0

    def _mirror(self) -> None:
        """Brings the mirrors the log, and gets others for those that are lost."""
        log = self._log
        # Where the outcome is decided nothing waits for a mirror: user code may keep it from answering. What is in a spill
        # of this process is no part of its state.
        none = self.status in (JobStatus.FAILING, JobStatus.CANCELLING) or self.takeovers.has_spill
        log.drop([one for one in log.mirrors if none or not self.roster.holds(*one)])
        log.out += log.keep()
        new = self._new_mirrors() if self.course.flowing and len(log.mirrors) < MIRRORS and not none else []
        if (new or log.overgrown) and len(base := self._base()) > MOST_BASE_BYTES:
            log.drop([*log.mirrors])
        elif log.overgrown:
            self._issued = [one for one in self._issued if not isinstance(one, Delete | Sweep | MarkSwept)]
            log.out += [*log.begin(base, [*log.mirrors, *new]), *self._conversations.secure_all(log.secured)]
        elif new:
            log.out += log.begin(base, new)

    def _new_mirrors(self) -> list[Worker]:
        """Workers that are to mirror the log: in two executors, where there are such."""
        log = self._log
        fit = [one for one in self.roster.slots if one.connected and one.deployed]
        fit = [
            one for one in fit if one.index not in self.takeovers.active and (one.index, one.epoch) not in log.mirrors
        ]
        homes = {self._home_of(slot) for slot, _ in log.mirrors}
        found: list[Worker] = []
        while fit and len(log.mirrors) + len(found) < MIRRORS:
            best = min(fit, key=lambda one: (self._home_of(one.index) in homes, one.index))
            fit.remove(best)
            homes.add(self._home_of(best.index))
            found.append((best.index, best.epoch))
        return found

    def _home_of(self, slot: int) -> str:
        hello = self.roster.slots[slot].hello
        return "" if hello is None else hello.executor or str(slot)

    def _note_kept(self, mirror: Worker, position: int, now: int) -> None:
        if self.roster.holds(*mirror):
            self.roster.at(mirror[0]).received_at = now
        self._log.note_kept(mirror, position)
        self._log.out += self._conversations.secure(self._log.secured)

    def _base(self) -> bytes:
        """This coordinator as bytes, without the plan, which its successor has."""
        plan, self.course.plan = self.course.plan, b""
        own = {name: value for name, value in vars(self).items() if name not in ("_log", "_askers")}
        try:
            return pickle.dumps(own, 5)
        finally:
            self.course.plan = plan

    # Another coordinator goes on.

    def begin_term(self, term: int) -> None:
        """Notes that so many coordinators of the run were lost before this one."""
        self._log.term = term

    def take_place(self, workers: Mapping[Worker, Rejoin], claimed: SuccessorClaim, why: str, now: int) -> str:
        """Takes the place of a lost coordinator, with the workers that have come. Returns the reason why it cannot: this
        coordinator is as it was before. Else empty, and the workers go on."""
        kept = max((one.kept for one in workers.values() if one.kept is not None), key=_end_of, default=None)
        if kept is None:
            return "none of its workers has its log"
        before = dict(vars(self))
        self._replay(kept)
        reason = self._misfit(claimed, workers) or self._conversations.misfit(workers)
        if reason:
            vars(self).clear()
            vars(self).update(before)
            self._log.end = 0
            return reason
        end = _end_of(kept)
        self._log.go_on(end[1], [one for one, has in workers.items() if has.kept and _end_of(has.kept) == end])
        self._log.out += self._conversations.go_on(workers)
        issued, self._issued = self._issued, []
        self._go_on_from(claimed, now)
        self._log.hold([one for one in issued if not isinstance(one, Claim | CheckClaim | Commit)])
        for place in self.roster.places:
            if place.connected and (place.index, place.epoch) not in workers:
                self.link_lost(place.index, place.epoch, f"it did not outlive the coordinator: {why}", now)
        return ""

    def _replay(self, kept: Keep) -> None:
        plan, self._replaying = self.course.plan, True
        vars(self).update(pickle.loads(kept.base), _replaying=True)
        self.course.plan = plan
        self._log.end = kept.position
        for entry in kept.entries:
            name, args, options = pickle.loads(entry)
            getattr(self, name)(*args, **options)
        self._replaying = False

    def _misfit(self, claimed: SuccessorClaim, workers: Mapping[Worker, Rejoin]) -> str:
        """The reason why this coordinator cannot go on; empty where it can."""
        if self.status not in GOES_ON:
            return f"the job was {self.status}"
        if claimed.first > self.incarnation + 1:
            return "another one has started all workers again meanwhile"
        committing, found = self.checkpoints.committing, claimed.manifest
        known = [self.checkpoints.newest, *([] if committing is None else [committing.checkpoint])]
        if found is not None and found.run_id == self.run_id and found.checkpoint not in known:
            return f"its log does not know checkpoint {found.checkpoint}"
        away = [one.index for one in self.roster.slots if one.connected and (one.index, one.epoch) not in workers]
        return f"worker {away[0]} is lost as well" if away and not self.course.ending else ""

    def _go_on_from(self, claimed: SuccessorClaim, now: int) -> None:
        """Goes on with the workers in the place of a lost coordinator, whose log this one has handled."""
        self._take("go_on", (claimed.incarnation, claimed.manifest, claimed.path, claimed.url, now), {})


def _end_of(kept: Keep) -> tuple[int, int]:
    """The place of the end of a log among all logs of a run."""
    return kept.term, kept.position + len(kept.entries)


def _answers(name: str, args: tuple[Any, ...], request: StoreAction) -> bool:
    """True if an event is the storage's answer to a request."""
    if isinstance(request, MarkPublished):
        return name in ("mark_done", "not_marked") and args[0] == request.path
    return isinstance(request, CopySavepoint) and name in ("copy_done", "not_copied") and args[0] == request.checkpoint


def _logging(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Coordinator, name))
    def event(self: LoggedCoordinator, *args: Any, **options: Any) -> Any:
        return self._take(name, args, options)

    return event


LOGGED = (
    "start",
    "take_over",
    "hello",
    "link_lost",
    "slot_ended",
    "claim_done",
    "origin_published",
    "claim_failed",
    "claim_checked",
    "commit_done",
    "not_committed",
    "mark_done",
    "not_marked",
    "copy_done",
    "not_copied",
    "move",
    "cancel",
    "fail",
    "go_on",
)
"""The events that are logged as they are."""
for _name in LOGGED:
    setattr(LoggedCoordinator, _name, _logging(_name))
