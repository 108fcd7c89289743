"""One subtask as a deterministic machine: `arrive` and `granted` only store, `step` does one bounded piece of work.

The order of the pieces is data (`ORDER`): a cut that is due comes first (but event time that is on its way through the
operators arrives before it, and where no barrier says its place, so does a step of work since the last one), then what is
sealed and waits for credit (nothing else happens until it went), then event time, then processing-time timers, then input.
The clock is an argument of `step`, and so is the budget, in records. Encoding what a cut froze is no part of `step`: the
worker does it in portions of its own (`encode`), between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.elements.batches import Columns, Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frames import ChannelId, Element
from tailrace.elements.markers import Barrier, EndOfInput, Marker, Watermark
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.errors import InternalError
from tailrace.graph.plan import Plan, Vertex
from tailrace.task.chain import Chain, build_chain, check_unchanged
from tailrace.task.copying import fingerprint
from tailrace.task.cutting import TaskCuts
from tailrace.task.gate import InputChannel
from tailrace.task.idle import UNTIL_A_TIMER, Idle, Reason
from tailrace.task.looping import FEEDBACK_CHANNEL, MARKERS, Command
from tailrace.task.operators.loops import FEEDBACK_PORT
from tailrace.task.operators.sink import SinkTask
from tailrace.task.services import Services
from tailrace.task.snapshot import TaskSnapshot
from tailrace.task.wiring import make_gate, make_loop, make_outbox

_STORY = 32


@dataclass(frozen=True)
class TaskId:
    """A subtask of a vertex."""

    vertex: int
    subtask: int

    def __str__(self) -> str:
        return f"v{self.vertex}[{self.subtask}]"


class Task:
    """One subtask of one vertex."""

    def __init__(self, plan: Plan, vertex: Vertex, subtask: int, attempt: int, services: Services, window: int) -> None:
        self.id = TaskId(vertex.id, subtask)
        self.vertex = vertex
        self.services = services
        self.gate = make_gate(plan, vertex, subtask, window)
        self.outbox, by_edge = make_outbox(plan, vertex, subtask, attempt, services, window)
        self.chain: Chain = build_chain(plan, vertex, subtask, attempt, services, self.outbox, by_edge)
        self.loop = make_loop(plan, vertex, self.gate, self.chain, self.outbox)
        self.head = None if self.loop is None else self.loop.head
        """What decides whose turn it is, where the task is the head of a loop."""
        self.records_in = 0
        self.last_count = 0
        """Records of the last step, for the driver that derives the budget."""
        self.took_feedback = False
        """Whether the last step read what had come back to the head of a loop."""
        self.finished = False
        self.idle: Idle | None = None
        """Why the last step did nothing; None where it did something."""
        self.grants: list[tuple[ChannelId, int]] = []
        """Grants that are worth saying, to be carried out after each step."""
        self.cuts = TaskCuts(self.gate)
        self._due = self.cuts.due
        """The same deque: it is looked at in every step."""
        self.snapshot: TaskSnapshot | None = None
        """The snapshot that is being encoded, or that the worker has not taken all of."""
        self._worked = True
        """Whether it has done a step of work since its last cut, or need not: where nothing but the coordinator's word asks
        for the next one, that one waits for it. Else cuts that come faster than they are encoded would be all it does."""
        self._advancing = False
        """Whether event time has work left in the chain."""
        self._said_end = False
        self._story: deque[str] = deque(maxlen=_STORY)
        self._order = [turn[:3] for turn in ORDER if turn.whose(self)]

    def open(self) -> None:
        """Opens the user's functions."""
        self.chain.open()

    def restored(self) -> None:
        """What a checkpoint held is in the operators: the task goes on from there. Called before `open`."""
        self.gate.watermark = max(self.gate.watermark, self.chain.arrived[0])
        if self.head is not None and self.head.finished:
            self.head.end_loop()

    def close(self) -> list[BaseException]:
        """Closes the user's functions; returns what they raised. What is being encoded holds on to the state of the whole
        operator (and that to it), and Python would find out much later: it is given up here."""
        snapshot, self.snapshot = self.snapshot, None
        for operator, _ in snapshot.operators if snapshot is not None else ():
            if operator.backend is not None and snapshot is not None:
                operator.backend.abort(snapshot.checkpoint)
        return self.chain.close()

    # Events.

    def arrive(self, ident: ChannelId, seq: int, element: Element, charge: int) -> None:
        """Something came on a channel. A barrier is announced, whatever is unread in front of it."""
        self.gate.arrive(ident, seq, element, charge)
        if isinstance(element, Barrier):
            self.cuts.announce(ident, element.cut)

    def granted(self, ident: ChannelId, total: int) -> None:
        """The consumer of one of our channels allows more."""
        self.outbox.granted(ident, total)

    def trigger(self, cut: CutRequest) -> None:
        """The coordinator wants a checkpoint."""
        self.cuts.trigger(cut)

    def abort(self, checkpoint: int) -> None:
        """A checkpoint will never be complete: nothing of it stays."""
        self.cuts.abort(checkpoint)
        if self.head is not None and self.head.held_by == checkpoint:
            self.head.held_by = None
        if self.snapshot is not None and self.snapshot.checkpoint == checkpoint:
            self.snapshot = None
        for operator in self.chain.operators:
            operator.abort(checkpoint)
            if operator.backend is not None:
                operator.backend.abort(checkpoint)
                operator.chains.abort(checkpoint)

    def confirm(self, checkpoint: int) -> None:
        """A checkpoint is complete."""
        for operator in self.chain.operators:
            operator.confirm(checkpoint)
            if operator.backend is not None:
                operator.backend.confirm(checkpoint)
                operator.chains.confirm(checkpoint)

    def operator_event(self, source: int, payload: bytes) -> None:
        """Another subtask of this vertex has something to say to the operator at the chain's root."""
        if self.chain.source is not None:
            self.chain.source.event(source, payload)

    def command(self, message: Command) -> bool:
        """The coordinator has something to say to the loop nest of this task. True where it concerns the task."""
        return (
            not self._said_end and self.loop is not None and self.loop.command(message, max(self.cuts.asked, default=0))
        )

    def flush(self) -> bool:
        """The worker has nothing else to do: what was gathered goes. True when there was anything."""
        return not self.finished and self.outbox.flush()

    # One step.

    def step(self, now: int, budget: int) -> Idle | None:
        """One bounded piece of work of about `budget` records at time `now` (int64 microseconds). None when something
        was done, else why not. What user code raises passes through as `UserCodeError`."""
        self.services.now = self.outbox.now = now
        self.last_count = 0
        self.took_feedback = False
        cuts = self.cuts
        if cuts.unstamped:
            cuts.stamp(now)
        made = cuts.made
        idle = self._first_of_order(now, budget)
        if idle is None:
            self._worked = self._worked or cuts.made == made
        elif self._due and not self._busy:
            idle = self._cut_at_last(now)  # nothing else is to be done
        self.idle = idle
        return idle

    def _first_of_order(self, now: int, budget: int) -> Idle | None:
        for guard, act, reason in self._order:
            if guard(self, now):
                if act is not None:
                    return act(self, now, budget)
                return Idle(reason, self.chain.next_processing() if reason in UNTIL_A_TIMER else None)
        raise InternalError(f"{self.id}: nothing in the order applies", self._story)

    def encode(self, now: int, limit: int) -> None:
        """Encodes about `limit` more entries of the snapshot that there is."""
        snapshot = self.snapshot
        if snapshot is not None and not snapshot.done:
            snapshot.encode(limit)
            snapshot.encoded_at = now

    def _cut(self, now: int) -> None:
        """The cut: state is frozen, and the barrier goes behind what was emitted."""
        due = self.cuts.make(now)
        cut = due.request
        self._story.append(f"cut {cut.number}")
        self._worked = False
        loop = (0, -1) if self.loop is None else (self.loop.rest.done, self.loop.rounds.done)
        self.snapshot = TaskSnapshot(cut, self.chain, due.aligned, now, *loop, due.announced)
        if cut.hold and self.head is not None:
            self.head.held_by = cut.number
        if not self._said_end:
            self.outbox.barrier(cut)

    # What a task does, each in its turn: see `ORDER`.

    @property
    def _busy(self) -> bool:
        """Whether something is under way that no cut may fall into."""
        return self._advancing or (self.loop is not None and self.loop.ending is not None)

    @property
    def _cut_is_next(self) -> bool:
        """Whether a cut is due, and has its place here: where a barrier says so, and else behind a step of work."""
        if not self._due or self._busy:
            return False
        return bool(self.cuts.aligner.live) or (self._worked and self.snapshot is None)

    def _next_cut(self, now: int, budget: int) -> None:
        self._cut(now)

    def _cut_at_last(self, now: int) -> Idle | None:
        """A cut that nothing but the coordinator's word asks for, when there is no work that it could wait for."""
        if self.snapshot is not None:
            return Idle(Reason.ENCODING)  # one at a time: the cut waits until the one before is encoded
        self._cut(now)
        return None

    def _obey(self, now: int, budget: int) -> None:
        assert self.loop is not None
        self._story.append(str(self.loop.commands[0][0]))
        self._moved(self.loop.work(), budget)

    def _end_round(self, now: int, budget: int) -> None:
        assert self.loop is not None
        self.loop.go_on_ending(budget)
        self._advance(budget)

    def _fire(self, now: int, budget: int) -> None:
        self.chain.fire_processing(now, budget)
        self._advance(budget)
        self.chain.pass_on_idleness(self.outbox)
        self._still_idle()
        self.outbox.flush_if_old()

    def _rest(self, now: int, budget: int) -> None:
        assert self.loop is not None
        self.loop.go_on_resting()
        self._advance(budget)
        self.outbox.flush_if_old()

    def _say_round_end(self, now: int, budget: int) -> None:
        assert self.loop is not None
        self.loop.say_round_end()
        self.outbox.flush_if_old()

    def _read(self, now: int, budget: int) -> Idle | None:
        source = self.chain.source
        assert source is not None
        if not source.ready(now):
            if source.starved and self.chain.generators:
                self.chain.pass_on_idleness(self.outbox)
            wake, due = source.wake_at(), self.chain.next_processing()
            return Idle(Reason.NO_INPUT, min((t for t in (wake, due) if t is not None), default=None))
        self.chain.splits_opened()
        self.last_count = source.read(budget, now)
        self.records_in += self.last_count
        ended = self.chain.splits_ended()
        self._advance(budget)
        if ended:
            self.chain.pass_on_idleness(self.outbox)
        self.outbox.flush_if_old()
        return None

    def _take(self, now: int, budget: int) -> None:
        taken = self.gate.take(budget)
        if taken.marker is not None:
            self._mark(taken.channel, taken.marker, budget)
        elif taken.batch is not None:
            if self.loop is not None and taken.channel.id in self.loop.channels:
                self.loop.read(taken.channel.id, taken.batch)
            self._process(taken.batch, taken.channel.port)
            if self.loop is not None and self.loop.leave is not None and self.loop.leave.idle:
                self.chain.still_idle(self.outbox)  # the loop is empty but for what came by itself
        if taken.grant is not None:
            self.grants.append((taken.channel.id, taken.grant))
        if self._timely or (taken.marker is not None and not isinstance(taken.marker, Barrier)):
            self._advance(budget)
        self.outbox.flush_if_old()

    def _process(self, batch: Rows | Columns, port: int) -> None:
        self.last_count = len(batch)
        self.records_in += len(batch)
        root = self.chain.root
        if self.services.debug:
            before = fingerprint(batch)
            root.process(batch, port)
            check_unchanged(batch, before, root.node.name, self.id.subtask)
        else:
            root.process(batch, port)

    def _take_feedback(self, now: int, budget: int) -> None:
        """Reads what has come back to the head of a loop."""
        assert self.head is not None and self.loop is not None
        self.took_feedback = True
        element = self.head.queue.take(budget)
        if isinstance(element, MARKERS):
            self._story.append(f"feedback {element}")
            self._moved(self.loop.marker(FEEDBACK_CHANNEL, element), budget)
        elif element is not None:
            if self.head.over:
                raise InternalError(f"E2: {self.id}: records came back to a loop that has ended", self._story)
            self.loop.read(FEEDBACK_CHANNEL, element)
            self._process(element, FEEDBACK_PORT)
            if self._timely:
                self._advance(budget)
            if not self.head.queue.ready:
                self._still_idle()
        self.outbox.flush_if_old()

    @property
    def _timely(self) -> bool:
        """Whether records move event time on, or set timers that no watermark will come for any more."""
        return bool(self.chain.generators) or self.chain.overdue or self.chain.arrived[0] >= LAST_TIME

    def _still_idle(self) -> None:
        """Inputs are idle: announces idleness again behind what the task emitted by itself (clock timers, feedback)."""
        if self.gate.all_idle:
            self.chain.still_idle(self.outbox)

    def _moved(self, moved: bool, budget: int) -> None:
        """A command to the loop may have let event time go on, or brought it to its end."""
        if moved:
            self._woken()
            self._advance(budget)
            self.chain.pass_on_idleness(self.outbox)

    def _woken(self) -> None:
        """The way out of the loop is active again: the tasks behind it must wait for its watermark."""
        if self.loop is not None and self.loop.leave is not None and not self.loop.leave.idle:
            self.chain.awake(self.outbox)

    def _mark(self, channel: InputChannel, marker: Marker, budget: int) -> None:
        self._story.append(f"{channel.id} {marker}")
        if isinstance(marker, Barrier):
            self.cuts.barrier(channel.id, marker.cut, self.services.now)
            return
        if isinstance(marker, MARKERS):
            assert self.loop is not None
            self._moved(self.loop.marker(channel.id, marker), budget)
            return
        self.gate.mark(channel, marker)
        if self.loop is not None and not isinstance(marker, EndOfInput):
            self.loop.time_read(channel.id)
        if isinstance(marker, EndOfInput):
            self.cuts.ended(channel.id)
            if self.loop is not None:
                self.loop.channel_ended(channel.id)
        if not isinstance(marker, Watermark) and self.gate.all_idle:
            self.chain.idle(self.outbox)
        if self.gate.watermark != MAX_TIME:
            self.chain.watermark(self.gate.watermark)

    def _advance(self, budget: int) -> None:
        self._advancing = not self.chain.advance(self.outbox, budget)

    def _end(self, now: int, budget: int) -> Idle | None:
        if not self.chain.ended:
            must_wait = self.chain.end(self.outbox, budget)
            self.outbox.flush_if_old()
            if must_wait and not self.chain.ended:
                return Idle(Reason.QUIET, self.chain.next_processing())
            return None
        if not self._said_end:
            self._said_end = True
            self.outbox.end()
        self.finished = not self.outbox.blocked
        self.outbox.flush_if_old()
        return None

    # What others may ask.

    def prepared(self) -> list[tuple[str, bytes]]:
        """Without checkpoints: what the task's sinks want published once the job has succeeded: (uid, prepared)."""
        sinks = [op for op in self.chain.operators if isinstance(op, SinkTask)]
        return [(sink.ctx.uid, one) for sink in sinks for one in sink.final_prepared]

    def records_out(self) -> int:
        """Records that left the task: over its edges, or into its sinks."""
        return self.outbox.records + self.records_sunk()

    def records_sunk(self) -> int:
        """Records that left the task into its sinks."""
        return sum(op.records for op in self.chain.operators if isinstance(op, SinkTask))

    def watermark(self) -> int:
        """The lowest event time that an operator of the task has reached: above a clock there is none to speak of."""
        return min(self.chain.reached[i] for i in self.chain.timed)

    def check(self) -> None:
        """Raises `InternalError`, with the task's story, where an invariant does not hold."""
        try:
            self.gate.check()
            self.outbox.check()
            wrong = self.cuts.aligner.check()
            if wrong is not None:
                raise InternalError(wrong, ())
            chain = self.chain
            for operator, arrived, reached in zip(chain.operators, chain.arrived, chain.reached, strict=True):
                own = bool(chain.generators) or operator.generates_watermarks
                if reached > arrived and reached != MAX_TIME and not own:
                    raise InternalError(f"C1: event time {reached} was reached where only {arrived} has come")
        except InternalError as error:
            raise InternalError(f"{self.id}: {error.args[0]}", self._story) from error


class Turn(NamedTuple):
    """A line of the order: where nothing before it applies and `guard` says so, this is what the task does."""

    guard: Callable[[Task, int], object]
    """Asked with the clock. It may be asked again without having been followed."""
    act: Callable[[Task, int, int], Idle | None] | None
    """One bounded piece of work, given the clock and the budget, or why it could not be done. None: nothing can be done."""
    reason: Reason = Reason.NO_INPUT
    """Why not, where nothing can be done."""
    whose: Callable[[Task], object] = lambda task: True
    """Whether the line is for such a task at all: asked once, when the task is made."""


def _in_loop(task: Task) -> object:
    return task.loop


def _is_head(task: Task) -> object:
    return task.head


def _is_source(task: Task) -> object:
    return task.chain.source


def _has_timers(task: Task) -> object:
    return task.chain.clocked


def _commanded(task: Task, now: int) -> object:
    loop = task.loop
    return loop is not None and loop.commands and not task._busy and loop.has_work(task.cuts.asked)


def _timer_due(task: Task, now: int) -> object:
    due = task.chain.next_processing()
    return due is not None and due <= now


def _feeds_back(task: Task, now: int) -> object:
    head = task.head
    return head is not None and head.takes_feedback(task.gate.has_input, task.cuts.aligner.awaited)


ORDER: tuple[Turn, ...] = (
    Turn(lambda t, now: t._due and t._cut_is_next and t.snapshot is not None, None, Reason.ENCODING),
    Turn(lambda t, now: t._due and t._cut_is_next, Task._next_cut),
    Turn(lambda t, now: t.finished, None, Reason.FINISHED),
    Turn(_commanded, Task._obey, whose=_in_loop),
    Turn(lambda t, now: t.outbox.blocked, None, Reason.NO_CREDIT),
    Turn(lambda t, now: t._advancing, lambda t, now, budget: t._advance(budget)),
    Turn(lambda t, now: t.loop is not None and t.loop.ending is not None, Task._end_round, whose=_in_loop),
    Turn(lambda t, now: t.head is not None and t.head.held_by is not None, None, Reason.HELD, whose=_is_head),
    Turn(_timer_due, Task._fire, whose=_has_timers),
    Turn(lambda t, now: t.loop is not None and t.loop.rest_due, Task._rest, whose=_in_loop),
    Turn(lambda t, now: t.chain.source is not None and not t.chain.source.ended, Task._read, whose=_is_source),
    Turn(_feeds_back, Task._take_feedback, whose=_is_head),
    Turn(lambda t, now: t.gate.has_input, Task._take),
    Turn(lambda t, now: t.loop is not None and t.loop.round_due, Task._say_round_end, whose=_in_loop),
    Turn(lambda t, now: t.gate.ended and t.head is not None and not t.head.over, None, Reason.LOOPING, whose=_is_head),
    Turn(lambda t, now: t.gate.ended, Task._end, Reason.QUIET),
    Turn(lambda t, now: t.cuts.aligner.blocked, None, Reason.ALIGNING),
    Turn(lambda t, now: True, None, Reason.NO_INPUT),
)
"""What a task does, and what it waits for: the first line that applies."""
