"""One worker's part in the loop nests of the job: it distributes commands to tasks, and combines their findings into one
message for each nest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import ProtocolViolation
from tailrace.graph.plan import Nest, Plan
from tailrace.protocol.message_codec import NestCommand, NestReport
from tailrace.protocol.termination import (
    NO_ROUNDS,
    Advance,
    CallFinish,
    EventTimeMoved,
    Quiet,
    Release,
    RoundReport,
    ScopeFacts,
    SpanReport,
    StartWave,
    WaveFacts,
    WaveReport,
    least_come,
)
from tailrace.task.operators.loops import JudgeTask
from tailrace.task.subtask.loop import TaskLoop
from tailrace.task.subtask.machine import Task


@dataclass
class _Here:
    """The part of a nest that is in this worker."""

    nest: Nest
    tasks: list[tuple[Task, TaskLoop]]
    """The tasks inside the nest; tasks that only lead out of it do not count."""
    wave: int = 0
    """The wave that was begun and not reported; 0 if there is none."""
    actions: int = 0
    """Number of `Release`, `Advance` and `CallFinish` commands received."""
    quiet: Quiet | None = None
    moved: EventTimeMoved | None = None
    round: RoundReport | None = None
    judged: list[JudgeTask] = field(default_factory=list)


class WorkerNests:
    """All nests that have tasks in this worker."""

    def __init__(self, plan: Plan, slot: int, tasks: list[Task]) -> None:
        self._plan = plan
        self._slot = slot
        self._tasks = tasks
        self._here: dict[int, _Here] = {}
        for nest in plan.nests:
            inside = [(task, task.loop) for task in tasks if task.vertex.id in nest.vertices]
            if inside:
                judges = [task.chain.root for task, _ in inside if isinstance(task.chain.root, JudgeTask)]
                self._here[nest.id] = _Here(nest, inside, judged=judges)

    def __bool__(self) -> bool:
        return bool(self._here)

    def command(self, message: NestCommand, but: Collection[int] = ()) -> None:
        """Passes a command to the tasks of a nest, except those of the vertices `but`. Raises `ProtocolViolation` for a
        nest that is not here."""
        here = self._here.get(message.nest)
        if here is None:
            raise ProtocolViolation(
                f"{type(message).__name__} for loop nest {message.nest}, which is not in this worker"
            )
        if isinstance(message, StartWave):
            here.wave = message.wave
        elif isinstance(message, Release | Advance | CallFinish):
            here.actions += 1
        for task in self._tasks:
            if task.loop.place.nest == message.nest and task.vertex.id not in but:
                task.command(message)

    def cut_state(self) -> tuple[dict[int, int], dict[int, int]]:
        """The state at a cut that no checkpoint holds: the number of counted commands that each nest has followed, and the
        wave that it has begun and not reported, for nests with one."""
        followed = {number: here.actions for number, here in self._here.items()}
        return followed, {number: here.wave for number, here in self._here.items() if here.wave}

    def set_cut_state(self, followed: dict[int, int], waves: dict[int, int]) -> None:
        """Sets what `cut_state` has returned in another process."""
        for number, here in self._here.items():
            here.actions, here.wave = followed.get(number, 0), waves.get(number, 0)

    # Reports.

    def end_reports(self) -> list[NestReport]:
        """Reports of the waves and rounds that ended with the last step."""
        reports: list[NestReport] = []
        for here in self._here.values():
            if here.wave and all(self._is_complete(here, task, loop) for task, loop in here.tasks):
                reports.append(WaveReport(here.nest.id, here.wave, self._facts(here)))
                here.wave = 0
            if here.nest.rounds is not None:
                report = self._round(here)
                if report is not None:
                    reports.append(report)
        return reports

    def idle(self) -> list[NestReport]:
        """Reports of the nests that have come to rest, when the worker has nothing else to do."""
        reports: list[NestReport] = []
        for here in self._here.values():
            reports += self.time_reports(here)
            entries_over = all(not loop.place.entry or task.finished or task.gate.ended for task, loop in here.tasks)
            if entries_over and all(task.finished or loop.quiet for task, loop in here.tasks):
                quiet = self._quiet(here)
                if quiet != here.quiet:
                    here.quiet = quiet
                    reports.append(quiet)
        return reports

    def times(self) -> list[NestReport]:
        """Reports of event time that has moved on, for a worker that is never idle."""
        return [one for here in self._here.values() for one in self.time_reports(here)]

    def time_reports(self, here: _Here) -> list[NestReport]:
        """Reports how far event time has come where it enters a nest; empty if it has not moved."""
        going = [(task, loop) for task, loop in here.tasks if not task.finished]
        times = [loop.waves.brought for _, loop in going if loop.place.brings_time]
        moved = EventTimeMoved(here.nest.id, min(times, default=MAX_TIME), _live(here))
        if moved == here.moved:
            return []
        here.moved = moved
        return [moved]

    # Inside.

    def _is_complete(self, here: _Here, task: Task, loop: TaskLoop) -> bool:
        return task.finished or (loop.waves.wave.current == here.wave and loop.waves.wave.complete)

    def _facts(self, here: _Here) -> WaveFacts:
        """The facts that the tasks found in the wave that has ended. Tasks that had finished do not count any more."""
        took_part = [loop for _, loop in here.tasks if loop.waves.wave.current == here.wave]
        cuts = [loop.waves.cut for loop in took_part]
        return WaveFacts(
            recorded=sum(loop.waves.wave.recorded for loop in took_part),
            moving=any(loop.waves.wave.moving for loop in took_part),
            obliged=any(cut.obliged for cut in cuts),
            live=_live(here),
            ended=all(cut.ended for cut in cuts),
            watermark=min((cut.time for cut in cuts), default=MAX_TIME),
            reached=min((cut.reached for cut in cuts), default=MAX_TIME),
            rested_min=min((cut.rested for cut in cuts), default=_ALL_OVER),
            rested_max=max((cut.rested for cut in cuts), default=0),
            fed=any(cut.fed for cut in cuts),
            scopes=_of_scopes(here, took_part),
        )

    def _quiet(self, here: _Here) -> Quiet:
        sent = [0] * self._plan.slots
        received = 0
        for task, loop in here.tasks:
            for ident, channel in task.outbox.channels.items():
                if not channel.local and self._inside(ident, here):
                    sent[ident.target] += channel.seq + channel.marks
            for channel_id in loop.channels:
                if channel_id.source != self._slot:
                    incoming = task.gate.channels[channel_id]
                    received += incoming.expected + incoming.marks
        return Quiet(here.nest.id, sent, received, here.actions)

    def _inside(self, ident: ChannelId, here: _Here) -> bool:
        return self._plan.edges[ident.edge].target in here.nest.vertices

    def _round(self, here: _Here) -> RoundReport | None:
        """The report of the newest round that has ended in every task here; None if it brings no news."""
        ended = min((loop.rounds.newest for task, loop in here.tasks if not task.finished), default=NO_ROUNDS)
        if ended < 0:
            return None
        judged = [judge.verdict for judge in here.judged if judge.verdict is not None and judge.verdict[0] == ended]
        waiting = 0
        for _, loop in here.tasks:
            if loop.head is not None and not loop.head.stopped:
                waiting += 1 if loop.head.round > ended else loop.head.queue.waiting
        last = here.round
        news = last is None or last.round != ended or (not last.waiting and waiting)
        spans = _spans(here, ended)
        if not (news or (last is not None and last.spans != spans)):
            return None
        here.round = RoundReport(here.nest.id, ended, waiting, judged[0][1] if judged else None, spans)
        return here.round


def _live(here: _Here) -> int | None:
    """The lowest event time at which open inputs enter the nest here; None if no input is open."""
    going = [(task, loop) for task, loop in here.tasks if not task.finished]
    return min(
        (loop.waves.entered for task, loop in going if loop.place.beginning and not task.gate.ended), default=None
    )


def _spans(here: _Here, ended: int) -> SpanReport | None:
    """How far the heads here are, in rounds by spans of event time; None where there is no head that goes on."""
    heads = [(task.gate, loop.head) for task, loop in here.tasks if loop.head is not None and not task.finished]
    held = [(gate, head, head.held) for gate, head in heads if head.held is not None]
    if not held:
        return None
    come = [
        MAX_TIME if gate.ended else None if gate.all_idle else of.end_before(gate.watermark) for gate, _, of in held
    ]
    ends = [of.earliest for _, _, of in held if of.earliest is not None]
    begun = [(head.round, of.span) for _, head, of in held if head.round > ended and of.span is not None]
    return SpanReport(
        next((of.span for _, head, of in held if head.round == ended), None),
        max(of.done for _, _, of in held),
        least_come(come),
        min(ends, default=None),
        min(begun, key=lambda one: one[0], default=None),
    )


def _of_scopes(here: _Here, took_part: list[TaskLoop]) -> list[ScopeFacts]:
    """The facts that the tasks know of each scope that one of the nest's tasks here may hold back."""
    found: list[ScopeFacts] = []
    for scope in sorted({one for _, loop in here.tasks for one in (*loop.place.leading, *loop.place.leaves)}):
        leaves = [loop.waves.cut.released for loop in took_part if scope in loop.place.leaves]
        found.append(
            ScopeFacts(
                scope,
                min(
                    (loop.waves.cut.times[scope] for loop in took_part if scope in loop.waves.cut.times),
                    default=MAX_TIME,
                ),
                min((loop.waves.wave.earliest for loop in took_part if scope in loop.place.into), default=MAX_TIME),
                min((time for time in leaves if time != MAX_TIME), default=None),
                MAX_TIME in leaves,
            )
        )
    return found


_ALL_OVER = 1 << 30
"""The number of rest of a worker whose tasks have all finished: none of them waits for a rest."""
