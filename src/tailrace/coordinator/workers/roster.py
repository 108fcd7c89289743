"""Which worker holds which slot, under which epoch, when it was last heard, and which Spark jobs run for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from tailrace.coordinator.actions import CloseLink, Launch, Stalled
from tailrace.coordinator.decisions import Decisions, Tell
from tailrace.coordinator.job.failures import Cause
from tailrace.coordinator.workers.places import Each, LongestSilence, Start, WorkerPlace, executor_of, start_of
from tailrace.coordinator.workers.standby_placement import Executor
from tailrace.coordinator.workers.standbys import Standby, Standbys
from tailrace.protocol.deployment import PHASES, FailureKind, Hello, Peer, Progress, SubtaskReport, UnderWay
from tailrace.protocol.recovery import Reset
from tailrace.state.manifest import Prepared


@dataclass
class Slot(WorkerPlace):
    """One worker slot."""

    deployed: bool = False
    finished: bool = False
    attempt: int = 0
    """How many times the slice of the slot was started anew. All slices are, together, for now."""
    clean: bool = True
    """Whether the worker runs nothing of an attempt that is over."""
    reset_at: int = 0
    """When it was told to drop what it runs."""
    taken: tuple[int, int] | None = None
    """The standby that is to say hello for the slot: its place, and its epoch there."""
    prepared: list[tuple[str, bytes]] = field(default_factory=list)
    reports: list[SubtaskReport] = field(default_factory=list)
    worked: dict[int, int] = field(default_factory=dict)
    """For how long lost workers that were replaced alone had been busy with each vertex (microseconds), as far as they had
    reported."""
    reported_at: int = 0
    """When its worker has reported last (int64 microseconds of the coordinator's clock)."""
    elapsed: int = 0
    log: tuple[int, int, int] = (0, 0, 0)
    """Of its history: entries and bytes; and bytes that its worker keeps of what has gone to others."""
    phases: dict[int, str] = field(default_factory=dict)
    """How far its worker is with checkpoints, as it has said last."""
    refused: dict[str, int] = field(default_factory=dict)

    def admit(self, hello: Hello, now: int) -> int | None:
        """A worker says hello. The epoch of the one that it replaces, or None."""
        self.deployed = self.finished = False
        self.clean = True
        self.taken = None
        self.elapsed, self.reported_at = 0, now
        return super().admit(hello, now)

    def launch(self) -> Launch:
        """A Spark job is to be started for the slot."""
        self.taken = None
        return super().launch()

    @property
    def holds_up(self) -> bool:
        """Whether its worker has yet to drop what it ran."""
        return self.connected and not self.clean

    def reported(self, progress: Progress, now: int) -> None:
        """Its worker says how it goes."""
        self.reported_at = now
        self.reports, self.elapsed, self.refused = progress.subtasks, progress.elapsed_micros, progress.refused
        if self.worked:
            self.reports = [
                msgspec.structs.replace(one, busy_micros=one.busy_micros + self.worked.get(one.vertex, 0))
                for one in self.reports
            ]
        self.log = progress.log_entries, progress.log_bytes, progress.kept_bytes
        self.phases = progress.phases

    def phase_of(self, checkpoint: int) -> str:
        """How far its worker is with a checkpoint, as far as it has said (`PHASES`)."""
        return self.phases.get(checkpoint, PHASES[0])

    def works_at(self, under_way: UnderWay | None) -> list[Stalled]:
        """What its worker's thread is at. A report that was made later says that this is over."""
        if under_way is not None and under_way.since < self.elapsed:
            under_way = None
        step = None if under_way is None else under_way.vertex
        if step is not None and all(
            one.vertex != step for one in self.reports
        ):  # it hangs since before its first report
            self.reports = [*self.reports, SubtaskReport(step, self.index)]
        for at, one in enumerate(self.reports):
            micros = under_way.micros if under_way is not None and one.vertex == step else 0
            if micros or one.under_way_micros:
                waits_for = "" if micros else one.waits_for
                self.reports[at] = msgspec.structs.replace(one, under_way_micros=micros, waits_for=waits_for)
        return [] if under_way is None or not under_way.stack else [Stalled(self.index, under_way)]

    def figures(self, now: int) -> list[SubtaskReport]:
        """What its worker has reported last, and how old that is."""
        age = now - self.reported_at
        return [msgspec.structs.replace(one, age_micros=age) for one in self.reports]

    def lost_alone(self) -> None:
        """Its worker is lost, and another one goes on in its place."""
        self.deployed = self.finished = False
        self.worked |= {one.vertex: one.busy_micros for one in self.reports}
        self.reports, self.log = [], (0, 0, 0)

    def reset_late_at(self, limit: int) -> int:
        """When its worker has taken too long to drop what it runs."""
        return self.reset_at + limit

    def anew(self) -> None:
        """The slice starts anew: what was known of the attempt before does not count."""
        self.attempt += 1
        self.deployed = self.finished = False
        self.prepared, self.reports, self.worked, self.log = [], [], {}, (0, 0, 0)


class Roster:
    """All slots of a job, and its standbys."""

    def __init__(self, count: int, standbys: int = 0, replicas: int = 1) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self.standbys = Standbys(count, standbys, replicas)
        self._silence = LongestSilence()
        self._started: dict[int, dict[int, None]] = {}
        """The places that processes have held which were started for a place: that one, and slots that standbys took."""
        self._told_to_reset: deque[int] = deque()
        """The slots whose workers were told to drop what they run, all at one time; those in front may have."""
        self._each, self._each_ended = Each(), Each()

    def launch(self) -> Decisions:
        """Every slot is to get a worker."""
        return [slot.launch() for slot in self.slots]

    def at(self, index: int) -> Slot | Standby:
        """The slot of this number, or the standby behind the slots."""
        count = len(self.slots)
        return self.slots[index] if index < count else self.standbys.all[index - count]

    @property
    def places(self) -> list[Slot | Standby]:
        """The slots and the standbys."""
        return [*self.slots, *self.standbys.all]

    def wants(self, hello: Hello, job: str, incarnation: int) -> bool:
        """Whether a worker that says hello is one that was started for a place of this job, and by the start that is
        wanted."""
        if hello.job != job or not 0 <= hello.slot < len(self.slots) + len(self.standbys.all):
            return False
        return self.at(hello.slot).is_held_by(hello) and 0 < hello.incarnation <= incarnation

    def admit(self, hello: Hello, now: int) -> tuple[int, int | None]:
        """A worker says hello: (its epoch, the epoch of the worker it replaces or None)."""
        place = self.at(hello.slot)
        replaced = place.admit(hello, now)
        self._silence.joined(place)
        self._started.setdefault(start_of(hello)[0], {})[place.index] = None
        return place.epoch, replaced

    def holds(self, index: int, epoch: int) -> bool:
        """Whether the worker of this epoch still holds the place."""
        place = self.at(index)
        return place.connected and place.epoch == epoch

    def holder(self, start: Start) -> Slot | Standby:
        """The place that a start of a Spark job is of by now."""
        own = self.at(start[0])
        return own if start in own.running else next((one for one in self.places if start in one.running), own)

    def taken(self, index: int, epoch: int) -> Slot | None:
        """The slot that a standby has been told to take, and for which it has not said hello yet."""
        return next((slot for slot in self.slots if slot.taken == (index, epoch)), None)

    def lose(self, index: int) -> None:
        """The worker of a place is gone."""
        self.at(index).hello = None

    def lost(self, index: int, what: str) -> Decisions:
        """The worker of a slot is gone, and the job did not want that. Where it was to drop what it ran, that is the failure
        that the job restarts from, or a part of it: it does not count again."""
        slot = self.slots[index]
        known = slot.connected and not slot.clean
        self.lose(index)
        return self._fill(slot) if known else [Cause(what, FailureKind.WORKER, slot=index)]

    def replace(self, index: int, there: bool = False) -> Decisions:
        """The worker of a slot is gone, and another one is to take its place, while the others go on. `there`: it has come
        already."""
        slot = self.slots[index]
        slot.lost_alone()
        return [] if there else self._fill(slot)

    def _fill(self, slot: Slot) -> Decisions:
        """The slot gets another worker: a standby, or one that is started now."""
        standby = self.standbys.choose(slot.index)
        return [*slot.relaunch()] if standby is None else self._take(standby, slot)

    def _take(self, standby: Standby, slot: Slot) -> Decisions:
        decided: Decisions = [*slot.kill()]
        slot.taken = (standby.index, standby.epoch)
        return [*decided, *self.standbys.take(standby, slot)]

    def fill_with(self, standby: Standby) -> Decisions | None:
        """A standby has come: it takes the place of a worker that Spark has not started yet. None where there is none."""
        wanting = next((slot for slot in self.slots if not slot.connected and slot.taken is None), None)
        return None if wanting is None else self._take(standby, wanting)

    def job_ended(self, index: int, error: str | None, *, wanted: bool, over: bool, unfit: bool) -> Decisions:
        """A Spark job of a slot has ended, and our job goes on; `wanted`: so was its worker to. `over`: Spark itself has
        ended, and there will be no other job for the slot. `unfit`: its executor lacks what a worker needs. So will the
        others, where the job has not run yet; later it may be one machine, and the worker may get another one."""
        how = "before the job, and without an error" if error is None else f"with an error: {error}"
        if over:
            return [Cause(f"the Spark task of worker {index} ended {how}", FailureKind.SLOTS, slot=index)]
        if unfit and self.slots[index].attempt == 0:
            return [Cause(f"worker {index} cannot be started: {error}", FailureKind.IMPORT, slot=index)]
        return self.lost(index, f"the Spark task of worker {index} ended {how}") if wanted else []

    def move(self, launches: Collection[Start]) -> Decisions:
        """These starts are ended, and others begun, where they are the newest: Spark starts them elsewhere."""
        decided: Decisions = []
        for standby in self.standbys.all:
            if standby.connected and standby.start in launches:
                decided.append(CloseLink(standby.index, standby.epoch))
                decided += self.standbys.lost(standby, "its executor is about to go", again=True)
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

    def heard(self, index: int, pid: int, now: int, under_way: UnderWay | None = None) -> Decisions:
        """A process that was started for this place has given a sign of life, and says what its thread is at."""
        decided: Decisions = []
        for place in map(self.at, self._started.get(index, ())):
            if place.hello is not None and place.hello.pid == pid and start_of(place.hello)[0] == index:
                place.heard_at = now
                if isinstance(place, Slot):
                    decided += place.works_at(under_way)
        return decided

    def replace_silent(self, now: int, lease: int) -> Decisions:
        """A worker has not been heard for `lease`: it is lost."""
        slot = next((slot for slot in self.connected if slot.silent_at(lease) <= now), None)
        if slot is None:
            return self.standbys.replace_silent(now, lease)
        what = f"worker {slot.index} has given no sign of life for {(now - slot.heard_at) / 1e6:.0f} s"
        return [CloseLink(slot.index, slot.epoch), *self.lost(slot.index, what)]

    def silent_at(self, lease: int) -> int | None:
        """When a worker has been silent for `lease`, if nobody is heard until then."""
        place = self._silence.longest(self.at)
        return None if place is None else place.silent_at(lease)

    # Everybody begins anew.

    def anew(self, now: int, lost: int | None) -> Decisions:
        """All slices start anew: workers that live drop what they run, and for those that do not others are started."""
        decided: Decisions = []
        self._told_to_reset.clear()
        for slot in self.slots:
            slot.anew()
            if slot.connected:
                slot.clean = False
                slot.reset_at = now
                self._told_to_reset.append(slot.index)
                decided.append(Tell(Reset(slot.attempt), slot.index))
            elif slot.abandoned or slot.index == lost:
                decided += self._fill(slot)
        return decided

    def reset_late_at(self, limit: int) -> int | None:
        """When a worker has taken too long to drop what it runs."""
        told = self._told_to_reset
        while told and not self.slots[told[0]].holds_up:
            told.popleft()
        return self.slots[told[0]].reset_late_at(limit) if told else None

    def replace_late(self, now: int, limit: int) -> Decisions:
        """User code holds workers up: their processes are ended, and others started."""
        decided: Decisions = []
        for slot in self.slots:
            if slot.holds_up and slot.reset_late_at(limit) <= now:
                decided.append(CloseLink(slot.index, slot.epoch))
                self.lose(slot.index)
                decided += self._fill(slot)
        return decided

    # The end.

    def kill(self) -> Decisions:
        """Whatever runs for any place is to end."""
        return [kill for place in self.places for kill in place.kill()]

    @property
    def spark_ended(self) -> bool:
        """Whether no Spark job of the job is left."""
        here = self._each_ended.of(self.slots, lambda slot: slot.spark_ended)
        return here and all(standby.spark_ended for standby in self.standbys.all)

    # All of them.

    @property
    def connected(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.connected]

    @property
    def ready(self) -> bool:
        """Whether every slot has a worker that runs nothing."""
        return self._each.of(self.slots, lambda slot: slot.connected and slot.clean)

    @property
    def deployed(self) -> bool:
        return self._each.of(self.slots, lambda slot: slot.deployed)

    @property
    def finished(self) -> bool:
        return self._each.of(self.slots, lambda slot: slot.finished)

    @property
    def prepared(self) -> list[Prepared]:
        """What all sinks have prepared by their end."""
        return [Prepared(uid, data) for slot in self.slots for uid, data in slot.prepared]

    def peers(self) -> list[Peer]:
        """Where every worker listens."""
        return [Peer(s.index, s.hello.host, s.hello.port, s.epoch) for s in self.slots if s.hello is not None]

    def homes(self) -> list[Executor | None]:
        """Where the worker of each slot runs; None where there is none now."""
        return [None if slot.hello is None else executor_of(slot.hello) for slot in self.slots]
