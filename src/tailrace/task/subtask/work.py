"""The work of a task on its input: batches and markers go through its operators, event time goes on behind them, and the
output is sent. Each method is one bounded piece of it; the task decides whose turn it is (`ORDER`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import Barrier, EndOfInput, IdleChannel, Marker, Watermark
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.errors import InternalError, UserCodeError
from tailrace.graph.plan import Plan
from tailrace.task.channels.copies import fingerprint
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.inputs import InputChannel, Taken
from tailrace.task.channels.outbox import Outbox
from tailrace.task.channels.services import Services
from tailrace.task.contract.cut_state import CutState
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.conversion import Today
from tailrace.task.operators.loops import FEEDBACK_PORT
from tailrace.task.subtask.alignment import Alignment
from tailrace.task.subtask.chain import Chain
from tailrace.task.subtask.handover import check_unchanged
from tailrace.task.subtask.idle_inputs import EmptyInputs
from tailrace.task.subtask.idleness import Idle, Reason
from tailrace.task.subtask.loop import MARKERS, TaskLoop
from tailrace.task.subtask.loop_place import FEEDBACK_CHANNEL

_STORY = 32
BARRIERS = 1024
"""Barriers that a step reads, at most, before it goes on to what is behind them."""


@dataclass(frozen=True)
class TaskId:
    """A subtask of a vertex."""

    vertex: int
    subtask: int

    def __str__(self) -> str:
        return f"v{self.vertex}[{self.subtask}]"


@dataclass(eq=False)
class WorkCutState(CutState):
    """State of a subtask's work at a cut that no checkpoint holds."""

    advancing: bool = False
    """True while event time has work left in the chain."""
    records_in: int = 0


class Work(WorkCutState):
    """The work of one subtask between two cuts."""

    def __init__(
        self,
        ident: TaskId,
        plan: Plan,
        services: Services,
        gate: Gate,
        outbox: Outbox,
        chain: Chain,
        loop: TaskLoop,
        cuts: Alignment,
    ) -> None:
        super().__init__()
        self.id, self.services = ident, services
        self.gate, self.outbox, self.chain, self.loop, self.cuts = gate, outbox, chain, loop, cuts
        self.silence = EmptyInputs(chain, gate, loop.head)
        self._plan = plan
        self._today: dict[tuple[int, int], Today] = {}
        """The present form of records, for operators to which records in flight come back, by node and port."""
        self.last_count = 0
        """Records of the last step, for the driver that derives the budget."""
        self.brought_in = False
        """True if the last step read input that no channel brings: records of a source, or feedback of a loop's head."""
        self.only_looked = False
        """True if the last step was a look at a source that had nothing, and changed nothing."""
        self.grants: list[tuple[ChannelId, int]] = []
        """Grants that are worth sending, to be carried out after each step."""
        self.been_round = False
        """True if the last step ended a round of the inputs, behind which gathered records are sent."""
        self._turns = 0
        """Steps of few records in this round, while something waits to be sent."""
        self.story: deque[str] = deque(maxlen=_STORY)
        self.seed = services.seed_of("step", ident.vertex, ident.subtask)
        """Part of the seeds of the random generators that are shared in a process."""

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self.grants.clear()  # of a task that starts again

    @property
    def busy(self) -> bool:
        """True while something is under way that no cut may fall into."""
        if self.loop.place.nest is None:
            return self.advancing and self.chain.near_the_end
        return self.advancing or self.loop.rounds.ending is not None

    @property
    def between_portions(self) -> bool:
        """True while timers are firing in portions, and a cut may fall between two of them. In a loop none does: the
        waves that find it at rest count on that.

        Invariant C4: after a restore from such a cut the same timers have fired, the same records are late, and the
        others fire before anything is read; at another parallelism those that event time had come to in all old subtasks."""
        return self.advancing and not self.busy

    def begin(self, now: int) -> None:
        """Begins a step at time `now`."""
        services = self.services
        services.now = self.outbox.now = now
        self.last_count = 0
        self.brought_in = self.been_round = self.only_looked = False
        services.clock_read = False

    def go_round(self, budget: int) -> None:
        """Ends a step. What is gathered is sent if no input is ready, or if each channel or split had a turn and none
        filled a budget: a worker may be busy with small steps for ever. The decision is recorded, since it depends on
        arrivals."""
        if self.outbox.oldest is None:
            self._turns = 0
            return
        source, head = self.chain.source, self.loop.head
        if self.last_count < budget:
            self._turns += 1
        inputs = len(self.gate.channels) if source is None else len(source.splits)
        over = self._turns >= max(1, inputs)
        if source is None and not over:
            over = not self.gate.has_input and not (head is not None and head.ready)
        if over:
            self.been_round, self._turns = True, 0
            self.outbox.been_round()

    def obey(self, now: int, budget: int) -> None:
        self.story.append(str(self.loop.commands[0][0]))
        self._pass_on_time(self.loop.work(), budget)
        self._still_idle()

    def end_round(self, now: int, budget: int) -> None:
        self.loop.rounds.go_on(budget)
        self.advance(budget)
        self._still_idle()

    def fire(self, now: int, budget: int) -> None:
        self.chain.fire_processing(now, budget)
        self.advance(budget)
        self.chain.pass_on_idleness(self.outbox)
        self._still_idle()
        self.outbox.flush_if_old()

    def rest(self, now: int, budget: int) -> None:
        self.loop.rests.go_on()
        self.advance(budget)
        self._still_idle()
        self.outbox.flush_if_old()

    def mark_round_end(self, now: int, budget: int) -> None:
        self.loop.rounds.end_current()
        self.outbox.flush_if_old()

    def read(self, now: int, budget: int) -> Idle | None:
        source = self.chain.source
        assert source is not None
        silent = self.chain.fallen_silent
        if silent:
            self.chain.take_back_idleness(self.outbox)  # the source may have been given a split
        if self.silence.splits_fall_silent(now):
            self._go_on_without(budget)
            return None
        if not source.ready(now):
            if source.starved and self.chain.generators:
                self.chain.pass_on_idleness(self.outbox)
            self.only_looked = not (silent or self.chain.generators)
            times = source.wake_at(), self.chain.next_processing(), self.silence.next_due()
            return Idle(Reason.NO_INPUT, min((t for t in times if t is not None), default=None))
        self.brought_in = True
        self.chain.splits_opened()
        self.last_count = source.read(budget, now)
        self.records_in += self.last_count
        if self.chain.fallen_silent:
            self.chain.take_back_idleness(self.outbox)
        less = self.chain.splits_ended() | self.silence.splits_fall_silent(now)
        self.advance(budget)
        if less:
            self.chain.pass_on_idleness(self.outbox)
        self.outbox.flush_if_old()
        return None

    def _go_on_without(self, budget: int) -> None:
        """Goes on with fewer inputs than before: event time may move, or tasks behind need not wait for it."""
        self.advance(budget)
        self.chain.pass_on_idleness(self.outbox)
        self.outbox.flush_if_old()

    def input_is_silent(self, now: int) -> bool:
        """True if the input has been empty for long enough, and is not held up by a cut."""
        return not self.cuts.blocked and self.silence.input_is_due(now)

    def fall_silent(self, now: int, budget: int) -> None:
        """Lets event time go on without the input, which has been empty for long enough."""
        self.silence.input_falls_silent(now)
        self._go_on_without(budget)
        self._still_idle()

    def next_by_the_clock(self, reason: Reason, now: int) -> int | None:
        """The time at which the clock may give something to do to a task that waits for this reason."""
        if not self.silence.of_input:
            return self.chain.next_processing()
        waits = reason is Reason.NO_INPUT or reason is Reason.LOOPING
        times = self.chain.next_processing(), self.silence.look(now) if waits else None
        return min((time for time in times if time is not None), default=None)

    def take_answers(self, now: int, budget: int) -> None:
        """Takes answers to asynchronous calls, and sends on what follows from them. An idle input counts as idle once
        nothing of what it has brought is left."""
        calling = self.chain.calling
        assert calling is not None
        self.last_count = calling.take_answers(budget)
        self.advance(budget)
        if self.gate.all_idle and not calling.waits:
            self.chain.idle(self.outbox)
        self.outbox.flush_if_old()

    def take(self, now: int, budget: int) -> None:
        if self.chain.calling is not None:
            budget = min(budget, self.chain.calling.room)
        taken = self._past_barriers(budget)
        if taken is None:
            return
        if taken.marker is not None:
            self._mark(taken.channel, taken.marker, budget)
        elif taken.batch is not None:
            loop = self.loop
            if loop.channels and taken.channel.id in loop.channels:
                loop.waves.read(taken.channel.id, taken.batch)
            if self.outbox.idle_waits:
                self.outbox.not_idle()  # the channel that this batch came on is not idle
            self._process(self._as_today(taken.batch, taken.channel), taken.channel.port, self._receiver(taken.channel))
            if self.gate.woken:
                self._woken_by_input()  # and the task is not idle either, behind what this batch gave
            if loop.leave is not None and loop.leave.idle:
                self.chain.still_idle(self.outbox)  # the loop is idle again behind this batch
        if taken.grant is not None:
            self.grants.append((taken.channel.id, taken.grant))
        returning = bool(self.gate.front)
        if returning:
            self._settle()
        if self._timely or returning or taken.marker is not None:
            self.advance(budget)
        self.outbox.flush_if_old()

    @property
    def may_take_merged(self) -> bool:
        """True if the input of several steps may be read as one: event time is not on its way, at its end, or reported as
        idle, no wave counts records, and nothing is left of what was in flight at the restored cut."""
        loop, chain = self.loop, self.chain
        in_the_loop = loop.waves.counts or (loop.leave is not None and loop.leave.idle)
        at_the_end = chain.overdue or chain.arrived[0] >= LAST_TIME
        return not (self.gate.front or self.advancing or self.outbox.idle_waits or at_the_end or in_the_loop)

    def take_merged(self, batches: list[tuple[int, Batch]], grants: list[tuple[ChannelId, int]]) -> None:
        """Works on the input of several steps: few batches, each with its port, and the grants for them."""
        self.grants += grants
        for port, batch in batches:
            self._process(batch, port, self.chain.root)
        if self.gate.woken:
            self._woken_by_input()

    def advance_merged(self, budget: int) -> None:
        """Moves event time on after the input of several steps, in none of which anything has seen it move. Raises
        `InternalError` if a timer is due."""
        if self.gate.watermark != MAX_TIME:
            self.chain.watermark(self.gate.watermark)
        self.services.clock_read = False
        self.advance(budget)
        if self.advancing or self.services.clock_read:
            raise InternalError(f"Y10: {self.id}: a timer is due that was not", self.story)

    def _past_barriers(self, budget: int) -> Taken | None:
        """Reads barriers, up to the first element that is no barrier, and returns that. None if a cut is due before, or
        nothing is left. Barriers take no step of their own: if checkpoints are given up sooner than steps go around,
        there may be more barriers than steps, and then nothing else would ever be read."""
        for _ in range(BARRIERS):
            taken = self.gate.take(budget)
            if taken.marker is not None or taken.batch is not None:  # else it is a marker that need not come again
                if not isinstance(taken.marker, Barrier):
                    return taken
                self._mark(taken.channel, taken.marker, budget)
            if not self.gate.reads_on(bool(self.cuts.due)):
                break
        return None

    def take_barrier(self, now: int, budget: int) -> None:
        """Reads a barrier that is next on its channel while timers are firing: so many may be due that it would wait
        long. Everything in front of it has had its effect, except on those timers, and they are in the cut."""
        taken = self.gate.take_barrier()
        if taken.marker is not None:
            self._mark(taken.channel, taken.marker, budget)

    def _receiver(self, channel: InputChannel) -> OperatorTask:
        """The operator that takes what comes on a channel: the root, or the one that received it before it was chained."""
        return self.chain.root if channel.returning is None else self.chain.operators[channel.returning.operator]

    def _as_today(self, batch: Batch, channel: InputChannel) -> Batch:
        """The batch in the present form and types, if it was in flight at the restored cut."""
        if channel.returning is None:
            return batch
        receiver, port = self._receiver(channel), channel.port
        where = (receiver.node.id, port)
        if where not in self._today:
            self._today[where] = Today.at(self._plan.graph.node, receiver, port)
        return self._today[where].bring(receiver, batch)

    def open_inputs(self) -> None:
        """Lets senders send, once nothing is left of what was in flight at the restored cut."""
        self.grants += self.gate.open()

    def hold_time(self, held: bool) -> None:
        """Stops event time that is assigned here, or lets it go on."""
        for generator in self.chain.generators:
            generator.hold(held)

    def _settle(self) -> None:
        """Returns to the event time of the present channels, once nothing is left of what was in flight at the restored
        cut."""
        self.gate.settle()
        if not self.gate.front:
            self.hold_time(False)
            self.open_inputs()
        if self.gate.woken:
            self._woken_by_input()
        if self.gate.watermark != MAX_TIME:
            self.chain.watermark(self.gate.watermark)

    def _process(self, batch: Batch, port: int, root: OperatorTask) -> None:
        self.last_count = len(batch)
        self.records_in += len(batch)
        before = fingerprint(batch) if self.services.debug else None
        try:
            root.process(batch, port)
        except UserCodeError as error:
            root.note_batch(error, batch, port)
            raise
        check_unchanged(batch, before, root.node.name, self.id.subtask)
        if self.chain.fallen_silent:
            self.chain.take_back_idleness(self.outbox)

    def take_feedback(self, now: int, budget: int) -> None:
        """Reads what has come back to the head of a loop."""
        head = self.loop.head
        assert head is not None
        self.brought_in = True
        element, port = head.take(budget)
        if isinstance(element, MARKERS):
            self.story.append(f"feedback {element}")
            self._pass_on_time(self.loop.marker(FEEDBACK_CHANNEL, element), budget)
        elif element is not None:
            if head.over:
                raise InternalError(f"E2: {self.id}: records came back to a loop that has ended", self.story)
            if port == FEEDBACK_PORT:
                self.loop.waves.read(FEEDBACK_CHANNEL, element)
            self._process(element, port, self.chain.root)
            if self._timely:
                self.advance(budget)
        if not self.services.decision(head.ready):
            self._still_idle()
        self.outbox.flush_if_old()

    @property
    def _timely(self) -> bool:
        """True if records move event time on, or set timers for which no watermark will come any more."""
        return bool(self.chain.generators) or self.chain.overdue or self.chain.arrived[0] >= LAST_TIME

    def _still_idle(self) -> None:
        """Announces idleness again behind what the task emitted by itself (clock timers, feedback), if all inputs are
        idle."""
        if self.gate.all_idle and not self.chain.waits_for_calls:
            self.chain.still_idle(self.outbox)

    def _pass_on_time(self, moved: bool, budget: int) -> None:
        """Passes event time on after a command to the loop that may have moved it, or brought it to its end."""
        if moved:
            self._wake()
            self.advance(budget)
            self.chain.pass_on_idleness(self.outbox)

    def _wake(self) -> None:
        """Announces that the way out of the loop is active again: the tasks behind it must wait for its watermark."""
        if self.loop.leave is not None and not self.loop.leave.idle:
            self.chain.awake(self.outbox)

    def _woken_by_input(self) -> None:
        """Announces that the task is not idle any more, so that the tasks behind it are not either, even if it has
        nothing for them yet. What it sends them later may be as old as its watermark."""
        self.gate.woken = False
        if not self.chain.root.generates_watermarks:
            self.chain.awake(self.outbox)

    def _mark(self, channel: InputChannel, marker: Marker, budget: int) -> None:
        self.story.append(f"{channel.id} {marker}")
        if isinstance(marker, Barrier):
            self.cuts.barrier(channel.id, marker.cut, self.services.now)
            return
        if isinstance(marker, MARKERS):
            self._pass_on_time(self.loop.marker(channel.id, marker), budget)
            return
        self.gate.mark(channel, marker)
        if channel.returning is None:  # else the marker affects only this task's event time
            self._mark_of_today(channel, marker)
        if self.gate.woken:
            self._woken_by_input()
        if not isinstance(marker, Watermark) and self.gate.all_idle and not self.chain.waits_for_calls:
            self.chain.idle(self.outbox)
        if self.gate.watermark != MAX_TIME:
            self.chain.watermark(self.gate.watermark)

    def _mark_of_today(self, channel: InputChannel, marker: Watermark | IdleChannel | EndOfInput) -> None:
        """Passes a marker of event time to cuts and loops."""
        if isinstance(marker, EndOfInput):
            self.cuts.end(channel.id)
            self.loop.channel_ended(channel.id)
        else:
            self.loop.waves.time_read(channel.id)

    def advance(self, budget: int) -> None:
        self.advancing = not self.chain.advance(self.outbox, budget)
