"""The roster of a job: the worker of each slot, its epoch, its last sign of life, and the Spark jobs that run for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from tailrace.coordinator.actions import CloseLink, Launch, Send, Stalled
from tailrace.coordinator.decisions import Decisions, NotJoined, Tell
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.workers.places import (
    Each,
    Start,
    WorkerPlace,
    executor_of,
    name_of_executor,
    start_of,
)
from tailrace.coordinator.workers.silence import LongestSilence, declared_lost
from tailrace.coordinator.workers.standby_placement import Executor
from tailrace.coordinator.workers.standbys import Standby, Standbys
from tailrace.protocol.deployment import (
    PHASES,
    FailureKind,
    Hello,
    Leave,
    Peer,
    Progress,
    SubtaskReport,
    SubtasksFinished,
    UnderWay,
)
from tailrace.protocol.recovery import Reset
from tailrace.state.manifest import Prepared

SAME_WORK = 1_000_000
"""The difference of two beginnings, as a worker measures them, up to which they are of one piece of work (int64
microseconds)."""


@dataclass
class Slot(WorkerPlace):
    """A slot for one worker."""

    deployed: bool = False
    finished: bool = False
    attempt: int = 0
    """The number of times that the slice of the slot was started anew. All slices are started anew together, for now."""
    clean: bool = True
    """True if the worker runs nothing of an attempt that is over."""
    reset_at: int = 0
    """The time at which `Reset` was sent to the worker, or `Leave` where no slot needs it any more."""
    leaving: bool = False
    """True if the worker was sent `Leave` because no slot needs it any more."""
    taken: tuple[int, int] | None = None
    """The standby that is to send `Hello` for the slot: its place, and its epoch there."""
    hot: int = 0
    """The attempt as which its worker has followed the one before it, as a hot standby; 0: it has not."""
    prepared: list[Prepared] = field(default_factory=list)
    """The output that its sinks have prepared by their end, without checkpoints."""
    reports: list[SubtaskReport] = field(default_factory=list)
    worked: dict[int, int] = field(default_factory=dict)
    """The time that lost workers which were replaced alone had been busy with each vertex (microseconds), as far as they
    had reported."""
    reported_at: int = 0
    """The time of the worker's last report (int64 microseconds of the coordinator's clock)."""
    elapsed: int = 0
    under_way: UnderWay | None = None
    """The work of the worker's thread that had not come back at its last sign of life, with the stack of the last one that
    had a stack."""
    log: tuple[int, int, int] = (0, 0, 0)
    """Entries and bytes of the worker's history, and bytes that it keeps of what has gone to other workers."""
    log_left: int | None = None
    """The bytes that are left for the worker's history."""
    copied: int = 0
    """The bytes of other workers' histories that the worker knows."""
    phases: dict[int, str] = field(default_factory=dict)
    """The worker's phase of each checkpoint, by its last report."""
    refused: dict[str, int] = field(default_factory=dict)

    def admit(self, hello: Hello, now: int) -> int | None:
        """Admits a worker that sends `Hello`. Returns the epoch of the worker that it replaces, or None."""
        self.deployed = self.finished = self.leaving = False
        self.clean = True
        self.taken = None
        self.elapsed, self.reported_at, self.under_way = 0, now, None
        return super().admit(hello, now)

    def launch(self) -> Launch:
        """Starts a Spark job for the slot."""
        self.taken, self.hot = None, 0
        return super().launch()

    @property
    def holds_up(self) -> bool:
        """True if the worker has yet to drop what it ran."""
        return self.connected and not self.clean

    def report(self, progress: Progress, now: int) -> None:
        """Takes a report of the slot's worker."""
        self.reported_at = now
        self.reports, self.elapsed, self.refused = progress.subtasks, progress.elapsed_micros, progress.refused
        if self.under_way is not None and self.under_way.since < self.elapsed:
            self.under_way = None
        if self.worked:
            self.reports = [
                msgspec.structs.replace(one, busy_micros=one.busy_micros + self.worked.get(one.vertex, 0))
                for one in self.reports
            ]
        self.log = progress.log_entries, progress.log_bytes, progress.kept_bytes
        self.log_left, self.copied = progress.log_left, progress.copied_bytes
        self.phases = progress.phases

    def phase_of(self, checkpoint: int) -> str:
        """The worker's phase (`PHASES`) of a checkpoint, by its last report."""
        return self.phases.get(checkpoint, PHASES[0])

    def works_at(self, under_way: UnderWay | None) -> list[Stalled]:
        """Notes the work of the worker's thread. Work that began before the worker's last report is over."""
        if under_way is not None and under_way.since < self.elapsed:
            under_way = None
        self.under_way = _with_stack(under_way, self.under_way)
        step = None if under_way is None else under_way.vertex
        if step is not None and all(
            one.vertex != step for one in self.reports
        ):  # the step hangs since before the worker's first report
            self.reports = [*self.reports, SubtaskReport(step, self.index)]
        for at, one in enumerate(self.reports):
            micros = under_way.micros if under_way is not None and one.vertex == step else 0
            if micros or one.under_way_micros:
                waits_for = "" if micros else one.waits_for
                self.reports[at] = msgspec.structs.replace(one, under_way_micros=micros, waits_for=waits_for)
        return [] if under_way is None or not under_way.stack else [Stalled(self.index, under_way)]

    def figures(self, now: int) -> list[SubtaskReport]:
        """The figures that the worker has reported last, with their age."""
        age = now - self.reported_at
        return [msgspec.structs.replace(one, age_micros=age) for one in self.reports]

    def add_prepared(self, message: SubtasksFinished) -> None:
        """Adds output of the report that its subtasks have ended."""
        one_publisher = frozenset(message.one_publisher)
        self.prepared += [
            Prepared(uid, data, -1 if uid in one_publisher else self.index) for uid, data in message.prepared
        ]

    def lost_alone(self) -> None:
        """Notes that the worker is lost, and that another one goes on in its place."""
        self.deployed = self.finished = False
        self.under_way = None
        self.worked |= {one.vertex: one.busy_micros for one in self.reports}
        self.reports, self.log, self.log_left, self.copied = [], (0, 0, 0), None, 0

    def reset_late_at(self, limit: int) -> int:
        """The time at which the worker has taken too long to drop what it runs."""
        return self.reset_at + limit

    def anew(self) -> None:
        """Starts the slice anew: what was known of the attempt before does not count."""
        self.attempt += 1
        self.deployed = self.finished = False
        self.prepared, self.reports, self.worked, self.under_way = [], [], {}, None
        self.log, self.log_left, self.copied = (0, 0, 0), None, 0


def _with_stack(under_way: UnderWay | None, before: UnderWay | None) -> UnderWay | None:
    """The work of a thread, with the stack that was known of it: not each sign of life has one."""
    if under_way is None or under_way.stack or before is None or abs(under_way.since - before.since) > SAME_WORK:
        return under_way
    return msgspec.structs.replace(under_way, operator=before.operator, stack=before.stack)


class Roster:
    """The slots of a job, and its standbys.

    Invariant Y34: an attempt is deployed only when the workers of the size before that have no slot in it run nothing any
    more, or are gone.
    """

    def __init__(self, count: int, standbys: int = 0, replicas: int = 1) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self.standbys = Standbys(count, standbys, replicas)
        self._silence = LongestSilence()
        self._started: dict[int, dict[int, None]] = {}
        """The places that processes have held, by the place for which they were started: itself, and slots that standbys
        took."""
        self.outside: dict[int, Slot] = {}
        """Places that are none of a slot or standby now, by number: those of slots that are about to begin, or have just
        ended, and those whose Spark jobs may not have ended."""
        self.target = count
        """The number of slots that the job is about to have; else the number that it has."""
        self._reset_sent: deque[int] = deque()
        """The slots to whose workers `Reset` was sent, all at one time. Workers of the slots in front may have dropped what
        they ran."""
        self._each, self._each_ended = Each(), Each()

    def launch(self) -> Decisions:
        """Starts a Spark job for every slot."""
        return [slot.launch() for slot in self.slots]

    def at(self, index: int) -> Slot | Standby:
        """The slot of this number, or the standby behind the slots."""
        if index < len(self.slots):
            return self.slots[index]
        outside = self.outside.get(index)
        return self.standbys.at(index) if outside is None else outside

    @property
    def places(self) -> list[Slot | Standby]:
        """The slots and the standbys, and places that are none of these now."""
        return [*self.slots, *self.standbys.all, *self.outside.values()]

    def is_outside(self, place: WorkerPlace) -> bool:
        """True if the place is none of a slot or standby now."""
        return self.outside.get(place.index) is place

    def requires(self, hello: Hello, job: str, incarnation: int) -> bool:
        """True if a worker that sends `Hello` was started for a place of this job, by the current start."""
        known = hello.slot in range(len(self.slots)) or hello.slot in self.outside or self.standbys.has(hello.slot)
        if hello.job != job or not known:
            return False
        return self.at(hello.slot).is_held_by(hello) and 0 < hello.incarnation <= incarnation

    def admit(self, hello: Hello, now: int) -> tuple[int, int | None]:
        """Admits a worker that sends `Hello`: (its epoch, the epoch of the worker it replaces or None)."""
        place = self.at(hello.slot)
        replaced = place.admit(hello, now)
        self._silence.add(place)
        self._started.setdefault(start_of(hello)[0], {})[place.index] = None
        return place.epoch, replaced

    def holds(self, index: int, epoch: int) -> bool:
        """True if the worker of this epoch still holds the place."""
        place = self.at(index)
        return place.connected and place.epoch == epoch

    def holder(self, start: Start) -> Slot | Standby:
        """The place to which a start of a Spark job belongs by now."""
        own = self.at(start[0])
        return own if start in own.running else next((one for one in self.places if start in one.running), own)

    def slot_of_standby(self, index: int, epoch: int) -> Slot | None:
        """The slot that a standby was sent to take, and for which it has not sent `Hello` yet."""
        return next((slot for slot in self.slots if slot.taken == (index, epoch)), None)

    def lose(self, index: int) -> None:
        """Notes that the worker of a place is gone."""
        self.at(index).lose()

    def note_loss(self, index: int, what: str) -> Decisions:
        """Notes the unwanted loss of a slot's worker, and decides what follows. Where the worker still had to drop what it
        ran, the loss belongs to the failure from which the job restarts: it does not count again."""
        slot = self.slots[index]
        known = slot.connected and not slot.clean
        self.lose(index)
        return self._fill(slot) if known else [Cause(what, FailureKind.WORKER, slot=index)]

    def replace(self, index: int, there: bool = False) -> Decisions:
        """Fills the slot of a lost worker while the other workers go on. `there`: its replacement has come already."""
        slot = self.slots[index]
        slot.lost_alone()
        return [] if there else self._fill(slot)

    def _fill(self, slot: Slot) -> Decisions:
        """Gets another worker for the slot: a standby, or one that is started now."""
        standby = self.standbys.choose(slot.index, slot.left)
        return [*slot.relaunch()] if standby is None else self._take(standby, slot)

    def _take(self, standby: Standby, slot: Slot) -> Decisions:
        decided: Decisions = [*slot.kill()]
        slot.hot = standby.attempt_of(slot.index)
        slot.taken = (standby.index, standby.epoch)
        return [*decided, *self.standbys.take(standby, slot)]

    def fill_with(self, standby: Standby) -> Decisions | None:
        """Lets a standby that has come take the place of a worker that Spark has not started yet. None where all slots have
        workers."""
        wanting = next((slot for slot in self.slots if not slot.connected and slot.taken is None), None)
        return None if wanting is None else self._take(standby, wanting)

    def job_ended(self, index: int, error: str | None, *, expected: bool, over: bool, unfit: bool) -> Decisions:
        """Decides what follows when a Spark job of a slot has ended, and our job goes on. `expected`: the job still needed
        its worker. `over`: Spark itself has ended, and there will be no other job for the slot. `unfit`: its executor lacks
        what a worker needs. Before the job has run, that goes for all executors; later it may be one machine, and the
        worker may get another one."""
        how = "before the job, and without an error" if error is None else f"with an error: {error}"
        if over:
            return [Cause(f"the Spark task of worker {index} ended {how}", FailureKind.SLOTS, slot=index)]
        if unfit and self.slots[index].attempt == 0:
            return [Cause(f"worker {index} cannot be started: {error}", FailureKind.IMPORT, slot=index)]
        return self.note_loss(index, f"the Spark task of worker {index} ended {how}") if expected else []

    def move_standbys(self, launches: Collection[Start]) -> Decisions:
        """Moves standbys of these starts elsewhere: ends them, and starts others."""
        decided: Decisions = []
        for standby in self.standbys.all:
            if standby.connected and standby.start in launches:
                decided.append(CloseLink(standby.index, standby.epoch))
                decided += self.standbys.lose(standby, "its executor is about to go", again=True)
        return decided

    def move(self, launches: Collection[Start]) -> Decisions:
        """Moves workers of these starts elsewhere, if they hold a slot now: ends them, and starts others. All workers
        restart."""
        decided: Decisions = []
        moved = [slot for slot in self.slots if slot.connected and slot.start in launches]
        for slot in moved:
            decided.append(CloseLink(slot.index, slot.epoch))
            self.lose(slot.index)
            decided += self._fill(slot)
        if moved:
            whose = ", ".join(f"worker {slot.index}" for slot in moved)
            decided.append(
                Cause(f"{whose}: the executor is about to go, and the job moves elsewhere", FailureKind.MOVED)
            )
        return decided

    def note_sign_of_life(self, index: int, pid: int, now: int, under_way: UnderWay | None = None) -> Decisions:
        """Takes a sign of life of a process that was started for this place, with the work of its thread."""
        decided: Decisions = []
        for place in map(self.at, self._started.get(index, ())):
            if place.hello is not None and place.hello.pid == pid and start_of(place.hello)[0] == index:
                place.received_at = now
                if isinstance(place, Slot):
                    decided += place.works_at(under_way)
        return decided

    def starts_of(self, index: int, pid: int) -> list[Start]:
        """The start of the process with this pid that was started for this place, if it holds a place."""
        places = map(self.at, self._started.get(index, ()))
        hellos = [(place.hello, place.start) for place in places]
        return [
            start
            for hello, start in hellos
            if hello is not None and start is not None and hello.pid == pid and start_of(hello)[0] == index
        ]

    def replace_silent(self, now: int, lease: int) -> Decisions:
        """Replaces the first worker, or standby, that has given no sign of life for `lease`: it is lost."""
        for slot, why in declared_lost(self.connected, now, lease):
            return [CloseLink(slot.index, slot.epoch), *self.note_loss(slot.index, f"worker {slot.index} {why}")]
        outside = declared_lost(self.outside.values(), now, lease)
        decided = [act for place, why in outside for act in self.outside_lost(place, f"it {why}")]
        return decided or self.standbys.replace_silent(now, lease)

    def silent_at(self, lease: int) -> int | None:
        """The time at which a worker has been silent for `lease`, if no sign of life comes until then."""
        place = self._silence.longest(self.at)
        return None if place is None else place.silent_at(lease)

    # All slices begin anew.

    def anew(self, now: int, lost: int | None) -> Decisions:
        """Starts all slices anew. Workers that live drop what they run; slots without a worker are filled."""
        decided: Decisions = []
        self._reset_sent.clear()
        for slot in [*self.slots, *self.outside.values()]:
            slot.anew()
            if self.is_outside(slot):  # of the size before: it drops what it runs, and waits
                decided += self._reset_outside(slot, now)
            elif slot.connected:
                slot.clean = False
                slot.reset_at = now
                self._reset_sent.append(slot.index)
                decided.append(Tell(Reset(slot.attempt), slot.index))
            elif slot.abandoned or slot.index == lost:
                decided += self._fill(slot)
        return decided

    def reset_late_at(self, limit: int) -> int | None:
        """The time at which a worker has taken too long to drop what it runs."""
        ordered = self._reset_sent
        while ordered and not self._slot(ordered[0]).holds_up:
            ordered.popleft()
        return self._slot(ordered[0]).reset_late_at(limit) if ordered else None

    def _slot(self, index: int) -> Slot:
        return self.slots[index] if index < len(self.slots) else self.outside[index]

    def replace_late(self, now: int, limit: int) -> Decisions:
        """Replaces workers that user code keeps from dropping what they run: their processes are ended, and others
        started."""
        decided: Decisions = []
        for slot in self.slots:
            if slot.holds_up and slot.reset_late_at(limit) <= now:
                decided.append(CloseLink(slot.index, slot.epoch))
                self.lose(slot.index)
                decided += self._fill(slot)
        for slot in self.outside.values():
            if slot.holds_up and slot.reset_late_at(limit) <= now:
                decided += self.outside_lost(slot, "it has not dropped what it ran")
        return decided

    # Another number of slots.

    def prepare(self, count: int, standbys: int) -> Decisions:
        """Gets ready for another number of slots: starts workers for those that are missing. Standbys are ended, and begin
        anew behind the slots to come."""
        decided = self._end_standbys()
        self.target = count
        self._renew_standbys(standbys)
        for index in range(len(self.slots), count):
            slot = self.outside.setdefault(index, Slot(index))
            if slot.connected:  # it was to leave
                decided.append(CloseLink(slot.index, slot.epoch))
                slot.lose()
            slot.attempt, slot.leaving = self.slots[0].attempt, False
            decided += slot.relaunch()
        return decided

    def _end_standbys(self) -> Decisions:
        decided: Decisions = []
        for standby in self.standbys.all:
            if standby.connected:
                decided.append(CloseLink(standby.index, standby.epoch))
            decided += standby.kill()
            standby.lose()
            self._put_outside(standby)
        return decided

    @property
    def spare(self) -> list[Slot]:
        """The workers in places outside that could take a slot: they run nothing, and were not sent away."""
        return [one for one in self.outside.values() if one.connected and one.clean and not one.leaving]

    @property
    def usable(self) -> int:
        """The number of slots that have a worker, or could have one at once. 0 while a worker has yet to drop what it
        ran."""
        waiting = any(place.holds_up for place in [*self.slots, *self.outside.values()])
        return 0 if waiting else min(len(self.slots), len(self.connected) + len(self.spare))

    def close_ranks(self) -> Decisions:
        """Lets workers in places outside take slots without a worker."""
        lacking = [slot for slot in self.slots if not slot.connected]
        return [act for slot, one in zip(lacking, self.spare, strict=False) for act in self._move_in(one, slot)]

    def expect_fewer(self, count: int, standbys: int) -> Decisions:
        """Lets the job have only so many slots, of those for which workers were started: these have come. Standbys that were
        started meanwhile are ended: others are to have their places, and would have the numbers of their Spark jobs."""
        come = [self.outside[index] for index in range(count, self.target) if self.outside[index].connected]
        lacking = [self.outside[index] for index in range(len(self.slots), count) if not self.outside[index].connected]
        decided = [act for slot, one in zip(lacking, come, strict=True) for act in self._move_in(one, slot)]
        for index in range(count, self.target):
            self.outside[index].start = None
            decided += self.outside[index].kill()
        self.target = count
        decided += self._end_standbys()
        self._renew_standbys(standbys)
        return decided

    def _move_in(self, one: Slot, slot: Slot) -> Decisions:
        decided: Decisions = [*slot.kill()]
        slot.hot, slot.taken = 0, (one.index, one.epoch)
        return [*decided, one.hand_over(slot)]

    @property
    def arrivals(self) -> int:
        """The number of workers that are there for the slots to come."""
        return sum(self.outside[index].connected for index in self._to_come)

    @property
    def of_size_to_come(self) -> list[Slot]:
        """The workers that are there for the size to come: those that join, and, when all of these are there, those that
        stay."""
        joining = [self.outside[index] for index in self._to_come if self.outside[index].connected]
        stay = [slot for slot in self.slots[: self.target] if slot.connected]
        return [*stay, *joining] if len(joining) == len(self._to_come) else joining

    @property
    def _to_come(self) -> range:
        return range(len(self.slots), self.target)

    def expects(self, place: WorkerPlace) -> bool:
        """True if the place is that of a slot to come."""
        return place.index in self._to_come

    def resize(self, count: int, standbys: int) -> Decisions:
        """Gives the job this number of slots: workers in places outside become those of slots, or the reverse. Standbys are
        ended, those too that have come since the change began: with another plan each has other state to hold."""
        renewed = count != self.target or not all(one.abandoned for one in self.standbys.all)
        decided = self._end_standbys() if renewed else []
        for index in range(len(self.slots), count):
            self.slots.append(self.outside.pop(index) if index in self.outside else Slot(index))
        for slot in self.slots[count:]:
            self.outside[slot.index] = slot
        del self.slots[count:]
        self.target = count
        if renewed:
            self._renew_standbys(standbys)
        self._each, self._each_ended = Each(), Each()
        return decided

    def release(self, reason: str, now: int) -> Decisions:
        """Lets the workers go that no slot needs, now that the job has the size that it is to have."""
        self.target = len(self.slots)
        decided: Decisions = []
        for slot in self.outside.values():
            slot.start = None
            if slot.connected and not slot.leaving:
                slot.leaving, slot.reset_at = True, now
                decided.append(Send(slot.index, slot.epoch, Leave(reason)))
            elif not slot.connected:
                decided += slot.kill()
        return decided

    def leave_late_at(self, limit: int) -> int | None:
        """The time at which a worker that no slot needs has taken too long to leave."""
        late = [one.reset_late_at(limit) for one in self.outside.values() if one.leaving and one.running]
        return min(late, default=None)

    def end_late(self, now: int, limit: int) -> Decisions:
        """Ends workers that no slot needs and that have not left."""
        late = [one for one in self.outside.values() if one.leaving and one.running and one.reset_late_at(limit) <= now]
        return [act for one in late for act in self.outside_lost(one, "it has not left")]

    def outside_lost(self, slot: Slot, what: str) -> Decisions:
        """Ends a worker in a place outside. Where a slot to come needs it, the job keeps the size that it has."""
        decided: Decisions = [CloseLink(slot.index, slot.epoch)] if slot.connected else []
        slot.lose()
        slot.leaving = False
        decided += slot.kill()
        if self.expects(slot):
            decided.append(NotJoined(f"worker {slot.index}, which was to join, is lost: {what}"))
        return decided

    def _renew_standbys(self, standbys: int) -> None:
        """Begins with other standbys, in places behind all others."""
        before, first = self.standbys, max(len(self.slots), self.target, *(index + 1 for index in self.outside), 0)
        self.standbys = Standbys(self.target, standbys, before.chosen, first)
        self.standbys.complete = before.complete

    def _put_outside(self, place: WorkerPlace) -> None:
        """Remembers the Spark jobs of a place that is none any more, and its numbers: they only grow."""
        slot = self.outside[place.index] = Slot(place.index, place.epoch, launches=place.launches)
        slot.running, slot.unwanted = place.running, place.unwanted

    def _reset_outside(self, slot: Slot, now: int) -> Decisions:
        if not slot.connected or slot.leaving or self.expects(slot):
            return []
        slot.clean, slot.reset_at = False, now
        self._reset_sent.append(slot.index)
        return [Send(slot.index, slot.epoch, Reset(slot.attempt))]

    # The end.

    def kill(self) -> Decisions:
        """Ends all Spark jobs of all places."""
        return [kill for place in self.places for kill in place.kill()]

    @property
    def spark_ended(self) -> bool:
        """True if no Spark job of the job is left."""
        here = self._each_ended.of(self.slots, lambda slot: slot.spark_ended)
        others = [*self.standbys.all, *self.outside.values()]
        return here and all(place.spark_ended for place in others)

    # All of them.

    @property
    def connected(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.connected]

    @property
    def ready(self) -> bool:
        """True if every slot has a worker that runs nothing."""
        if any(slot.holds_up for slot in self.outside.values()):
            return False
        return self._each.of(self.slots, lambda slot: slot.connected and slot.clean)

    @property
    def deployed(self) -> bool:
        return self._each.of(self.slots, lambda slot: slot.deployed)

    @property
    def finished(self) -> bool:
        return self._each.of(self.slots, lambda slot: slot.finished)

    @property
    def prepared(self) -> list[Prepared]:
        """The output that all sinks have prepared by their end."""
        return [one for slot in self.slots for one in slot.prepared]

    def peers(self) -> list[Peer]:
        """The address at which each worker listens, and its executor."""
        return [
            Peer(slot.index, hello.host, hello.port, slot.epoch, name_of_executor(hello))
            for slot in self.slots
            if (hello := slot.hello) is not None
        ]

    def homes(self) -> list[Executor | None]:
        """The executor in which the worker of each slot runs; None where there is no worker now."""
        return [None if slot.hello is None else executor_of(slot.hello) for slot in self.slots]
