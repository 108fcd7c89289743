"""One subtask as a deterministic machine: `arrive` and `grant` only store, `step` does one bounded piece of work.

The order of the pieces is data (`ORDER`). Functions that are informed of complete checkpoints come first. Then comes a
cut that is due; but event time that is on its way through the operators arrives before it, and a cut whose place no
barrier gives waits for one step of work since the last cut. Behind the cut of a stop nothing else comes. Then comes what
is sealed and waits for credit (nothing else happens until it is sent), then event time, then processing-time timers, then
input. The clock is an argument of `step`, and so is the budget, in records. Encoding what a cut froze is no part of
`step`: the worker does it in portions of its own (`encode`), between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, Element
from tailrace.elements.markers import Barrier
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.errors import InternalError
from tailrace.graph.plan import Plan, Vertex
from tailrace.protocol.message_codec import NestCommand
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.outbox import MAX_AGE
from tailrace.task.channels.services import Services
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.sink import SinkTask
from tailrace.task.subtask.alignment import Alignment
from tailrace.task.subtask.chain import Opening, as_it_is, build_chain
from tailrace.task.subtask.checkpoints import TaskCheckpoints
from tailrace.task.subtask.complete_reports import CompleteReports
from tailrace.task.subtask.idleness import UNTIL_A_TIMER, UNTIL_TOLD, Idle, Reason
from tailrace.task.subtask.loop import TaskLoop
from tailrace.task.subtask.loop_place import LoopPlace
from tailrace.task.subtask.order import NOTHING, Line, Turn, lines
from tailrace.task.subtask.wiring import make_gate, make_outbox, make_recording
from tailrace.task.subtask.work import TaskId, Work


@dataclass(eq=False)
class TaskCutState(CutState):
    """State of a subtask at a cut that no checkpoint holds, beside that of its parts."""

    said_end: bool = False
    """True once the end of the input has gone to all channels: no barrier may go behind it."""
    finished: bool = False
    """True once everything is read, and sent to all channels."""


class Task(TaskCutState):
    """One subtask of one vertex."""

    def __init__(self, plan: Plan, vertex: Vertex, subtask: int, attempt: int, services: Services, window: int) -> None:
        super().__init__()
        self.id = TaskId(vertex.id, subtask)
        self.vertex = vertex
        self.services = services
        self.gate = gate = make_gate(plan, vertex, subtask, services, window)
        self.outbox, by_edge = make_outbox(plan, vertex, subtask, attempt, services, window)
        self.chain = chain = build_chain(plan, vertex, subtask, attempt, services, self.outbox, by_edge)
        self.loop = TaskLoop(LoopPlace(plan, vertex, gate, chain), gate, chain, self.outbox)
        inflight = make_recording(plan, vertex, subtask, services, gate, self.outbox)
        self.cuts = Alignment(gate, inflight)
        self.checkpoints = TaskCheckpoints(self.cuts, gate, chain, self.loop, self.outbox, inflight)
        self.reports = CompleteReports(chain.operators)
        self.work = Work(self.id, plan, services, gate, self.outbox, chain, self.loop, self.cuts)
        self.idle: Idle | None = None
        """The reason why the last step did nothing; None if it did something."""
        self.did = NOTHING
        """The line of `ORDER` that the last step followed."""
        self._sleeps_until = 0
        """Invariant C3: before that time (int64 microseconds) a step would do nothing, unless something happens to the
        task, which wakes it. Most tasks of a worker have nothing to do at most times, and are not stepped."""
        self._due = self.cuts.due
        """The deque `cuts.due`, which is looked at in every step."""
        self._order: list[Line[Task]] = lines(ORDER, self)

    def open(self, opening: Opening = as_it_is) -> None:
        """Opens the user's functions."""
        self.wake()
        self.work.open_inputs()
        self.chain.open(opening)
        self.reports.opened = True

    def resume(self) -> None:
        """Goes on from a checkpoint, whose state is in the operators. Called before `open`."""
        self.gate.watermark = max(self.gate.watermark, self.chain.arrived[0])
        # The tasks behind it get its event time at once: its input may have nothing more for now, and they may have read
        # nothing of what it had sent before the cut. The end of event time comes with the end of the input, but in a
        # loop. If a loop begins anew, an operator that assigns timestamps goes on all the same: its time is sent before
        # any wave.
        own = [generator.own_watermark() for generator in self.chain.generators]
        reached = max(*self.chain.reached, *own, MIN_TIME)
        self.work.advancing = reached > MIN_TIME and (reached < LAST_TIME or self.loop.place.nest is not None)
        # Timers that were due at the cut fire as well, before anything is read.
        self.work.advancing = self.work.advancing or self.chain.arrived != self.chain.reached
        if self.loop.head is not None and self.loop.head.finished:
            self.loop.head.end_loop()

    def put_in_front(self, front: list[list[InputChannel]]) -> None:
        """Takes what was in flight to the task at the restored cut: it is read before anything new. Called after
        `resume`."""
        self.gate.put_in_front(front)
        returning = [channel.returning for channels in front for channel in channels]
        self.work.hold_time(any(one is not None and not one.timely for one in returning))
        if self.gate.watermark > self.chain.arrived[0]:
            self.chain.watermark(self.gate.watermark)
            self.work.advancing = True

    def note_loaded(self, channel: InputChannel) -> None:
        """Handles the loading of records in flight on a channel, which were only in their file."""
        self.wake()
        self.gate.note_loaded(channel)

    def close(self) -> list[BaseException]:
        """Closes the user's functions; returns what they raised."""
        self.checkpoints.close()
        return [*self.reports.end(), *self.chain.close()]

    # Events.

    def arrive(self, ident: ChannelId, seq: int, element: Element, charge: int) -> None:
        """Stores an element that came on a channel. A barrier is announced, whatever is unread in front of it."""
        self.wake()
        self.gate.arrive(ident, seq, element, charge)
        inflight = self.checkpoints.inflight
        if inflight is not None and inflight.recording:
            inflight.arrive(ident, element, charge)
        if isinstance(element, Barrier):
            self.cuts.announce(ident, element.cut)

    def grant(self, ident: ChannelId, total: int) -> None:
        """Takes a grant of the consumer of one of this task's output channels."""
        self.wake()
        self.outbox.grant(ident, total)
        if self.outbox.barriers_sent:
            self.checkpoints.barriers_left()

    def trigger(self, cut: CutRequest) -> None:
        """Takes the coordinator's request for a checkpoint."""
        self.wake()
        self.cuts.trigger(cut)

    def abort(self, checkpoint: int) -> None:
        """Gives up a checkpoint that will never be complete: nothing of it stays."""
        self.wake()
        self.checkpoints.abort(checkpoint)
        self._order = lines(ORDER, self)

    def confirm(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete."""
        self.wake()
        self.checkpoints.confirm(checkpoint)
        self.reports.note(checkpoint)

    def operator_event(self, source: int, payload: bytes) -> None:
        """Passes an event from another subtask of this vertex to the operator at the chain's root."""
        self.wake()
        if self.chain.source is not None:
            self.chain.source.event(source, payload)

    def calls_answered(self, count: int) -> None:
        """Notes that so many more asynchronous calls were answered."""
        self.wake()
        if self.chain.calling is not None:
            self.chain.calling.reported += count

    def reader_woken(self) -> None:
        """Notes that the reader of a source may have records."""
        self.wake()
        if self.chain.source is not None:
            self.chain.source.reader_woken()

    def end_source(self) -> None:
        """Ends the input of a source for a stop: it reads nothing more."""
        self.wake()
        if self.chain.source is not None:
            self.chain.source.end_here()

    def command(self, message: NestCommand) -> bool:
        """Stores a command of the coordinator to the loop nest of this task. True if it concerns the task."""
        self.wake()
        return not self.said_end and self.loop.command(message, max(self.cuts.pending, default=0))

    def flush(self) -> bool:
        """Sends what was gathered, when the worker has nothing else to do. True if there was anything."""
        return not self.finished and self.outbox.flush()

    # One step.

    def step(self, now: int, budget: int) -> Idle | None:
        """Does one bounded piece of work of about `budget` records at time `now` (int64 microseconds). None if something
        was done, else the reason why not. What user code raises passes through as `UserCodeError`."""
        work, checkpoints, made = self.work, self.checkpoints, self.cuts.made
        work.begin(now)
        if self.services.shared is not None:
            self.services.shared.begin_step(work.seed ^ now)
        self.wake()
        checkpoints.just_cut = None
        if self.cuts.unstamped or checkpoints.in_line:
            checkpoints.take_time(now)
        idle = self._first_of_order(now, budget)
        if idle is None:
            checkpoints.worked = checkpoints.worked or self.cuts.made == made
        elif checkpoints.cut_waits(now) and not work.busy:  # nothing else is to be done
            idle = self._cut_at_last(now, budget)
        if self.outbox.barriers_sent:
            checkpoints.barriers_left()
        if idle is None:
            if checkpoints.just_cut is None:
                work.go_round(budget)
        elif self.outbox.flush_if_old():
            idle = None  # the worker may not rest for long, and flushes only then
        elif (strike := checkpoints.next_strike(now)) is not None:
            idle = Idle(idle.reason, strike if idle.wake_at is None else min(strike, idle.wake_at))
        self.idle = idle
        if idle is not None and self._may_sleep(idle.reason):
            flush_at = MAX_TIME if self.outbox.oldest is None else self.outbox.oldest + MAX_AGE
            self._sleeps_until = flush_at if idle.wake_at is None else min(flush_at, idle.wake_at)
        return idle

    def _may_sleep(self, reason: Reason) -> bool:
        """True if an event would wake the task whenever it has something to do. No event announces a source's records."""
        informs = self.chain.source is None or self.finished or reason is Reason.HELD
        return reason in UNTIL_TOLD and not self._due and informs

    def wake(self) -> None:
        """Wakes the task, because something happened that may give it something to do."""
        self._sleeps_until = 0
        self.services.stirred[self.id.vertex] = None

    def asleep(self, now: int) -> bool:
        """True if the task need not be stepped at time `now`."""
        return now < self._sleeps_until

    def _first_of_order(self, now: int, budget: int) -> Idle | None:
        for guard, act, reason, number, of_task in self._order:
            if guard(self, now):
                if act is not None:
                    self.did = number
                    return act(self if of_task else self.work, now, budget)
                self.did = NOTHING
                return Idle(reason, self.work.next_by_the_clock(reason, now) if reason in UNTIL_A_TIMER else None)
        raise InternalError(f"{self.id}: nothing in the order applies", self.work.story)

    def _cut(self, now: int, budget: int) -> None:
        cut = self.checkpoints.cut(now, not self.said_end)
        self.work.story.append(f"cut {cut.number}")
        if cut.hold:
            self._order = lines(ORDER, self)

    def _cut_at_last(self, now: int, budget: int) -> Idle | None:
        """Makes a cut that only the coordinator's trigger requests, when there is no work that it could wait for."""
        if self.checkpoints.snapshot is not None:
            return Idle(Reason.ENCODING)  # one at a time: the cut waits until the one before is encoded
        self._cut(now, budget)
        return None

    def _report_complete(self, now: int, budget: int) -> None:
        self.reports.call()

    def _end(self, now: int, budget: int) -> Idle | None:
        """Ends the operators, whose input has ended; then the channels."""
        if not self.chain.ended:
            must_wait = self.chain.end(self.outbox, budget)
            self.outbox.flush_if_old()
            if must_wait and not self.chain.ended:
                return Idle(Reason.QUIET, self.chain.next_processing())
            return None
        if not self.said_end:
            self.said_end = True
            self.outbox.end()
        self.finished = not self.outbox.blocked
        self.outbox.flush_if_old()
        return None

    # Figures and checks.

    def records_out(self) -> int:
        """Records that left the task: over its edges, or into its sinks."""
        return self.outbox.records + self.records_sunk()

    def records_sunk(self) -> int:
        """Records that left the task into its sinks."""
        return sum(op.records for op in self.chain.operators if isinstance(op, SinkTask))

    def prepared_output(self) -> list[tuple[str, bytes]]:
        """The output of the task's sinks to be published once the job has succeeded, in a job without checkpoints: (uid,
        prepared)."""
        sinks = [op for op in self.chain.operators if isinstance(op, SinkTask)]
        return [(sink.ctx.uid, one) for sink in sinks for one in sink.final_prepared]

    def watermark(self) -> int:
        """The lowest event time that an operator of the task has reached. Operators above a clock have none, and do not
        count."""
        return min(self.chain.reached[i] for i in self.chain.timed)

    def check_asleep(self, now: int) -> None:
        """Raises `InternalError`, with the task's story, if the task sleeps and would have something to do."""
        act = next(act for guard, act, *_ in self._order if guard(self, now))
        if act is not None or self._due:
            raise InternalError(
                f"C3: {self.id} sleeps until {self._sleeps_until}, and has something to do", self.work.story
            )

    def check(self) -> None:
        """Raises `InternalError`, with the task's story, if an invariant does not hold."""
        try:
            self.gate.check()
            self.outbox.check()
            if self.checkpoints.inflight is not None:
                self.checkpoints.inflight.check()
            if (wrong := self.cuts.check()) is not None:
                raise InternalError(wrong, ())
            chain = self.chain
            for operator, arrived, reached in zip(chain.operators, chain.arrived, chain.reached, strict=True):
                own = bool(chain.generators) or operator.generates_watermarks
                if reached > arrived and reached != MAX_TIME and not own:
                    raise InternalError(f"C1: event time {reached} was reached where only {arrived} has come")
        except InternalError as error:
            raise InternalError(f"{self.id}: {error.args[0]}", self.work.story) from error


def _cut_is_next(task: Task) -> bool:
    return not task.work.busy and task.checkpoints.cut_is_next


def _is_struck(task: Task, now: int) -> object:
    return not task.work.busy and task.checkpoints.is_struck(now)


def _is_held(task: Task) -> object:
    return task.checkpoints.held_by is not None


def _in_a_nest(task: Task) -> object:
    return task.loop.place.nest is not None


def _goes_by_spans(task: Task) -> object:
    return task.loop.head is not None and task.loop.place.by_spans


def _reads_beside_channels(task: Task) -> object:
    return task.chain.source or task.loop.head


def _has_timers(task: Task) -> object:
    return task.chain.clocked


def _run_command(task: Task, now: int) -> object:
    return task.loop.commands and not task.work.busy and task.loop.has_work(task.cuts.pending)


def _fires(task: Task) -> object:
    return not _in_a_nest(task) and task.chain.fires


def _timer_due(task: Task, now: int) -> object:
    due = task.chain.next_processing()
    return due is not None and due <= now


def _barrier_between(task: Task, now: int) -> object:
    return task.work.between_portions and task.gate.barrier_is_next


def _makes_calls(task: Task) -> object:
    return task.chain.calling


def _has_answers(task: Task, now: int) -> object:
    return task.chain.calling.reported  # type: ignore[union-attr]


def _full(task: Task, now: int) -> bool:
    return task.chain.calling.room <= 0  # type: ignore[union-attr]


def _barrier_at_full(task: Task, now: int) -> object:
    return _full(task, now) and task.gate.barrier_is_next


def _feeds_back(task: Task, now: int) -> object:
    head = task.loop.head
    return head is not None and head.takes_feedback(task.gate.has_input, task.cuts.awaited)


ORDER: tuple[Turn[Any], ...] = (
    Turn(lambda t, now: t.reports.due, Task._report_complete, whose=lambda t: t.reports.called, of_task=True),
    Turn(lambda t, now: t._due and _cut_is_next(t) and t.checkpoints.snapshot is not None, None, Reason.ENCODING),
    Turn(lambda t, now: t._due and _cut_is_next(t), Task._cut, of_task=True),
    Turn(_is_struck, Task._cut, whose=lambda t: t.checkpoints.inflight, of_task=True),
    Turn(lambda t, now: t.finished, None, Reason.FINISHED),
    Turn(lambda t, now: True, None, Reason.HELD, whose=_is_held),
    Turn(_run_command, Work.obey, whose=_in_a_nest),
    Turn(lambda t, now: t.outbox.blocked, None, Reason.NO_CREDIT),
    Turn(_barrier_between, Work.take_barrier, whose=_fires, reads=True),
    Turn(lambda t, now: t.work.advancing, lambda work, now, budget: work.advance(budget)),
    Turn(lambda t, now: t.loop.rounds.ending is not None, Work.end_round, whose=_in_a_nest),
    Turn(_timer_due, Work.fire, whose=_has_timers),
    Turn(lambda t, now: t.loop.rests.due, Work.rest, whose=_in_a_nest),
    Turn(_has_answers, Work.take_answers, whose=_makes_calls),
    Turn(_barrier_at_full, Work.take_barrier, whose=_makes_calls, reads=True),
    Turn(_full, None, Reason.CALLS, whose=_makes_calls),
    Turn(lambda t, now: t.gate.front and t.gate.has_input, Work.take, whose=_reads_beside_channels, reads=True),
    Turn(lambda t, now: t.gate.front, None, Reason.NO_INPUT, whose=_reads_beside_channels),
    Turn(
        lambda t, now: t.chain.source is not None and not t.chain.source.ended,
        Work.read,
        whose=lambda t: t.chain.source,
    ),
    Turn(_feeds_back, Work.take_feedback, whose=lambda t: t.loop.head),
    Turn(lambda t, now: t.loop.rounds.due, Work.mark_round_end, whose=_goes_by_spans),
    Turn(lambda t, now: t.gate.has_input, Work.take, reads=True),
    Turn(lambda t, now: t.loop.rounds.due, Work.mark_round_end, whose=_in_a_nest),
    Turn(lambda t, now: t.work.input_is_silent(now), Work.fall_silent, whose=lambda t: t.work.silence.of_input),
    Turn(lambda t, now: t.gate.ended and not t.loop.head.over, None, Reason.LOOPING, whose=lambda t: t.loop.head),
    Turn(lambda t, now: t.gate.ended, Task._end, Reason.QUIET, of_task=True),
    Turn(lambda t, now: t.cuts.blocked, None, Reason.ALIGNING),
    Turn(lambda t, now: True, None, Reason.NO_INPUT),
)
"""The work of a task and its reasons to wait: it follows the first line that applies. (Of `Any`: a line is evaluated only
for tasks that it is for, such as tasks with a source.)"""

CUTS = frozenset(number for number, turn in enumerate(ORDER) if turn.act is Task._cut)
"""The lines of the order in which a task does nothing but cut."""
READS = frozenset(number for number, turn in enumerate(ORDER) if turn.reads)
"""The lines of the order in which a task reads from its channels."""
FEEDBACK_READS = frozenset(number for number, turn in enumerate(ORDER) if turn.act is Work.take_feedback)
"""The lines of the order in which the head of a loop reads what has come back to it."""
WITHOUT_WAVES = frozenset(
    number for number, turn in enumerate(ORDER) if turn.act in (Work.take, Work.read, Work.take_feedback, Work.fire)
)
"""The lines of the order that a task of a loop follows for as long as the loop needs no coordinator."""
