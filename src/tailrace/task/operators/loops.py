"""Ends of a loop at run time: its head and tail, and where streams enter and leave it.

The tail's subtask hands feedback to the head's subtask in the same worker, through a queue that never refuses, so no
back-pressure goes around the loop. The head writes what the queue holds of a checkpoint (`task.channels.feedback`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelName
from tailrace.elements.markers import SpanRound, WaveMark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.elements.valueclasses import Shapes
from tailrace.elements.valuepickling import dump_described, load_described, shapes_in
from tailrace.errors import InternalError
from tailrace.graph.graph import Edge, Node
from tailrace.graph.operators import FEEDBACK, MARKERS, EnterLoop, Forward, Head, Judge, LeaveLoop, Loop, Tail
from tailrace.graph.plan import Plan
from tailrace.graph.scope import path_of
from tailrace.state.backend import MetaPart
from tailrace.state.format import ChannelLog, TableInfo
from tailrace.task.channels.channel_logs import LogFrame, Recording
from tailrace.task.contract.cut_state import CutState
from tailrace.task.inflight.redistribution import Redistribution
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.conversion import Today
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.spans import HeldInput

FEEDBACK_PORT = 1
"""Port of a head at which feedback is handed in."""
HELD_PORT = 2
"""Port of a head at which its own input comes, once its span has begun."""
MARKERS_PORT = 1
"""Port of a tail at which the markers of its own head come."""
CROWDED = 8_192
"""Number of records in the queue above which an adaptive head takes them before any input."""


class HeadState(msgspec.Struct, array_like=True):
    """State of a head in a checkpoint, beside its log."""

    fed: bool
    round: int = 0
    round_over: bool = False
    stopped: bool = False
    span: SpanRound | None = None
    done: int = MIN_TIME


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HeadState)


def _loop(node: Node) -> Loop:
    assert isinstance(node.operator, Head | Tail | EnterLoop | LeaveLoop)
    return node.operator.loop


@dataclass(eq=False)
class HeadCutState(CutState):
    """State of a head at a cut, beside its queue. A checkpoint holds a part of it."""

    fed: bool = False
    """True if feedback has come since the loop was last at rest."""
    round: int = 0
    """In rounds: the current round."""
    round_over: bool = False
    """In rounds: True if the whole current round was emitted, and its end was reported."""
    stopped: bool = False
    """In rounds: True if there will be no other round."""
    reported_round: int = -1
    """Newest round whose end was reported in this attempt."""
    _regular_turn: bool = False


class HeadTask(OperatorTask, HeadCutState):
    """Head of a loop. It decides whether the task reads feedback or the regular input next."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        self.loop = loop = _loop(node)
        self.queue = ctx.services.feedback_of(loop, ctx.subtask)
        self.redistribution = Redistribution([], node.name, ctx.subtask, ctx.parallelism, ctx.services)
        """Rules by which feedback finds its subtask; `take_plan` determines them."""
        self.channel = ChannelName("", None, node.uid, FEEDBACK_PORT, 0, ctx.subtask, ctx.subtask)
        """Name in checkpoints of the way from the tail to the head; `take_plan` completes it."""
        self._logs: list[LogFrame] = []
        """While restoring in rounds: records that wait for a round."""
        self._today: Today | None = None
        """Form and schema in which the body takes feedback. A checkpoint may have feedback in another form, or in other
        types."""
        span = None if loop.rounds is None else loop.rounds.span
        self.held = None if span is None else HeldInput(loop, span, ctx)
        """The input that waits for its span, where rounds go by spans of event time."""
        self.generates_watermarks = self.held is not None
        self._held_logs: list[LogFrame] = []
        self._held_redistribution = self.redistribution

    def take_plan(self, plan: Plan) -> None:
        feedback = Edge(self.node.id, 0, Forward(), FEEDBACK)
        node_of = plan.graph.node
        self._today = today = Today(node_of, [feedback]) if self.loop.separate else Today.at(node_of, self, 0)
        tails = [plan.graph.node(tail) for tail in plan.tails.get(self.node.scope, ())]
        if not tails:
            self.queue.end()  # nothing is fed back
        edges = [edge.partitioning for node in tails or [self.node] for edge in node.inputs if edge.tag != MARKERS]
        ctx = self.ctx
        self.redistribution = Redistribution(
            edges,
            self.node.name,
            ctx.subtask,
            ctx.parallelism,
            ctx.services,
            brought=lambda batch: today.bring(self, batch),
        )
        self.channel = self.channel._replace(source=tails[0].uid if tails else "")
        inputs = [edge.partitioning for edge in self.node.inputs]
        self._held_redistribution = Redistribution(inputs, self.node.name, ctx.subtask, ctx.parallelism, ctx.services)

    def process(self, batch: Batch, port: int) -> None:
        if self.held is not None and port != FEEDBACK_PORT:
            if port == HELD_PORT:
                self.out(self.held.read(batch))
            else:
                self._count_late(self.call_user(self.held.hold, batch, what="the input of a loop in rounds by spans"))
            return
        if port == FEEDBACK_PORT:
            self.fed = True
            assert self._today is not None
            batch = self._today.bring(self, batch)
            if self.loop.separate:
                feedback = self.side_out.get(FEEDBACK)
                if feedback is not None:
                    feedback(batch)
                return
        self.out(batch)

    def as_input(self, batches: list[Batch]) -> list[Batch]:
        """Feedback, which is read now, in the form in which the body takes its input."""
        assert self._today is not None and not self.loop.separate
        self.fed = True
        return [self._today.bring(self, batch) for batch in batches]

    def _count_late(self, late: int) -> None:
        if late:
            self.ctx.metrics.inc("late_records", late)

    def own_watermark(self) -> int:
        return MIN_TIME if self.held is None else self.held.done

    @property
    def ready(self) -> bool:
        """True if feedback, or the input of a span that has begun, is to be read."""
        return self.queue.ready or (self.held is not None and self.held.queue.ready)

    @property
    def empty(self) -> bool:
        """True if no feedback waits, no input is held, and no span is under way."""
        return not (self.ready or self.queue.waiting) and (self.held is None or self.held.at_rest)

    def take(self, limit: int) -> tuple[Batch | WaveMark | None, int]:
        """What is to be read next, besides the regular input, and its port."""
        if self.held is not None and self.held.queue.ready:
            return self.held.queue.take(limit), HELD_PORT
        return self.queue.take(limit), FEEDBACK_PORT

    def takes_feedback(self, input_waits: bool, cut_waits: bool) -> bool:
        """True if the next step reads feedback, or held input, and not the regular input. While a cut waits behind the
        regular input, the input gets every second step, so that no checkpoint starves."""
        queue = self.queue
        if not self.ready or not input_waits:
            return self.ready
        if not cut_waits and (self.loop.priority == "feedback-first" or queue.records > CROWDED or queue.spilled):
            return True
        self._regular_turn = not self._regular_turn
        return not self._regular_turn

    def figures(self) -> dict[str, float]:
        """Figures of the feedback for the progress report."""
        queue, name = self.queue, self.node.name
        figures = {"feedback_records": queue.records + queue.waiting, "feedback_spilled_bytes": queue.spilled}
        within = self.round if self.held is None else self.held.number_of(self.round)
        figures |= {"feedback_total": queue.taken} | ({} if self.loop.rounds is None else {"round": within})
        if self.held is not None:
            figures["held_records"] = self.held.queue.records + self.held.queue.waiting
        return {f"{name}.{what}": float(value) for what, value in figures.items()}

    @property
    def over(self) -> bool:
        """True if the loop has ended: no feedback comes any more."""
        return self.queue.over

    @over.setter
    def over(self, over: bool) -> None:
        self.queue.over = over

    def cut_state(self) -> dict[str, Any]:
        return super().cut_state() | {"over": self.over}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self.over = state["over"]

    def end_loop(self) -> None:
        """Ends the loop."""
        self.over = True

    # Rounds.

    @property
    def reported(self) -> bool:
        """True if the end of the current round was reported in this attempt."""
        return self.reported_round == self.round

    @property
    def span(self) -> SpanRound | None:
        """The place of the current round, where rounds go by spans of event time."""
        return None if self.held is None else self.held.span

    def start_round(self, number: int, span: SpanRound | None = None) -> bool:
        """Starts a round: the feedback that waits for it, or the input of the span that begins, is read from now on. Where a
        span is closed, feedback that waits for another round is dropped. True if event time has moved."""
        self.round, self.round_over = number, False
        if self.held is None or span is None:
            self.queue.open_round(number)
            return False
        self._count_late(self.held.start_round(number, span))
        if span.closes:
            self.queue.drop_waiting(number + 1)
        elif span.first == number and (self.queue.earliest or number + 1) <= number:
            raise InternalError(f"Q11: feedback of an earlier span waits for round {number}, which begins one")
        else:
            self.queue.open_round(number)
        return span.closes

    def stop_rounds(self) -> None:
        """Ends the rounds. Feedback that waits for another round is dropped, and so is all that still comes."""
        self.stopped = True
        self.queue.drop()

    def close(self) -> None:
        self.queue.close()
        if self.held is not None:
            self.held.queue.close()

    # Checkpoints.

    def snapshot(self, checkpoint: int) -> bytes | None:
        self.queue.cut(checkpoint)
        state = HeadState(self.fed, self.round, self.round_over, self.stopped)
        if self.held is not None:
            self.held.queue.cut(checkpoint)
            state.span, state.done = self.held.span, self.held.done
        return _encoder.encode(state)

    def recordings(self) -> list[tuple[ChannelLog, Recording]]:
        logs = [(ChannelLog(self.channel, self.ctx.parallelism), self.queue.logs)]
        if self.held is not None:
            channel = self.channel._replace(source="", port=HELD_PORT)
            logs.append((ChannelLog(channel, self.ctx.parallelism), self.held.queue.logs))
        return logs

    def abort(self, checkpoint: int) -> None:
        self.queue.logs.discard(checkpoint)
        if self.held is not None:
            self.held.queue.logs.discard(checkpoint)

    def restore(self, parts: list[MetaPart]) -> None:
        known = {(part.subtask, part.parallelism): _decoder.decode(part.data) for part in parts if part.data}
        states = list(known.values())
        if states:
            own = known.get((self.ctx.subtask, self.ctx.parallelism))
            # What others had read is none of this head's, whose loop may have been at rest since: `finish` would be called
            # once more.
            self.fed = any(state.fed for state in states) if own is None else own.fed
            self.round = max(state.round for state in states)
            self.round_over = all(state.round_over for state in states if state.round == self.round)
            self.stopped = any(state.stopped for state in states)
            if self.held is not None:
                newest = max(states, key=lambda state: state.round)
                self.held.span, self.held.done = newest.span, newest.done

    def start_anew(self) -> None:
        self.round, self.round_over, self.stopped = 0, False, False
        if self.held is not None:
            self.held.span, self.held.done = None, MIN_TIME

    def restore_log(self, channel: ChannelName, parallelism: int, frame: LogFrame) -> None:
        """Takes feedback that was in flight, without the records that are another subtask's now. What has no room in
        memory goes to the disk."""
        if channel.port == HELD_PORT and self.held is not None:
            self._held_logs += self._held_redistribution.mine(channel.target_subtask, parallelism, frame)
            return
        if channel.port != FEEDBACK_PORT:
            super().restore_log(channel, parallelism, frame)
        mine = self.redistribution.mine(channel.target_subtask, parallelism, frame)
        if self.loop.rounds is None:
            self.queue.restore(mine)
        else:
            self._logs += mine

    def logs_restored(self) -> None:
        """Puts all restored feedback into the queue, where it comes first."""
        self.redistribution.check()
        logs, self._logs = self._logs, []
        self.queue.restore(sorted(logs, key=lambda frame: frame.round))  # one old subtask may have been a round ahead
        if self.span is not None and self.span.closes:
            self.queue.drop_waiting(self.round + 1)  # another head had not followed the command yet
        elif self.loop.rounds is not None:
            self.queue.open_round(self.round)
        if self.stopped:
            self.queue.drop()
        if self.held is not None:
            self._held_redistribution.check()
            held, self._held_logs = self._held_logs, []
            self.held.restore(sorted(held, key=lambda frame: frame.round))


class TailTask(OperatorTask):
    """Tail of a loop, where its feedback ends."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        self.queue = ctx.services.feedback_of(_loop(node), ctx.subtask)

    def open(self) -> None:
        if self.finished:  # before the restored checkpoint
            self.queue.end()

    def cut_state(self) -> dict[str, Any]:
        return super().cut_state() | {"marks": self.queue.marks}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self.queue.marks = state["marks"]

    def process(self, batch: Batch, port: int) -> None:
        self.queue.append(batch)

    def snapshot(self, checkpoint: int) -> bytes | None:
        self.queue.barrier(checkpoint)
        return None

    def finish(self) -> None:
        self.queue.end()


class RoundResult(list[Any]):
    """Result of a round: a list of the records that were fed back, with the number of the round and the records that left
    the loop."""

    def __init__(self, number: int, feedback: list[Any], output: list[Any]) -> None:
        super().__init__(feedback)
        self.round = number
        self.output = output


class JudgeTask(OperatorTask):
    """Judge of a loop in rounds: gathers what each round produces, in one place, and calls the user's `until` at its end."""

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        assert isinstance(node.operator, Judge) and node.operator.loop.rounds is not None
        self.until = node.operator.loop.rounds.until
        self.verdict: tuple[int, bool] | None = None
        """Newest round that was judged, and True if it is to be the last one. The number is not that within a span."""
        self._ending = 0
        self._feedback: list[Any] = []
        self._output: list[Any] = []
        self._classes: Shapes = ()
        """Classes of the records in the newest checkpoint."""

    def process(self, batch: Batch, port: int) -> None:
        (self._output if port else self._feedback).extend(batch.to_rows().values)

    def round_ends(self, number: int, span: SpanRound | None) -> None:
        super().round_ends(number, span)
        self._ending = number

    def end_round(self, number: int, limit: int) -> bool:
        result = RoundResult(number, self._feedback, self._output)
        self._feedback, self._output = [], []
        self.verdict = (
            self._ending,
            bool(self.call_user(lambda: self.until(result), what=f"until, called for round {number},")),
        )
        return True

    def snapshot(self, checkpoint: int) -> bytes | None:
        state = (self.verdict, self._feedback, self._output)
        data: bytes = self.call_user(lambda: dump_described(state), what="pickling the result of a round")
        self._classes = shapes_in(data)
        return data

    def own_tables(self) -> list[TableInfo]:
        return [TableInfo("result", "round", classes=self._classes)] if self._classes else []

    def restore(self, parts: list[MetaPart]) -> None:
        for part in parts:
            if part.data:
                self.verdict, self._feedback, self._output = load_described(part.data)


class EnterTask(OperatorTask):
    """A stream from outside on its way into a loop."""

    def process(self, batch: Batch, port: int) -> None:
        self.out(batch)


@dataclass(eq=False)
class LeaveCutState(CutState):
    """State of a way out of a loop at a cut that no checkpoint holds."""

    released: int = MIN_TIME
    idle: bool = False
    """True if the loop has nothing to report for now, and must hold no consumer back."""
    _allowed: list[tuple[int, int]] = field(default_factory=list)
    """(wave, time) that the coordinator has sent, and whose wave has not come here yet."""


class LeaveTask(OperatorTask, LeaveCutState):
    """Stream on its way out of a loop. Its records pass at once, event time passes when a wave of the loop has released
    it.

    Invariant E1: `released` never decreases, and no record from before it comes out of the loop any more, but for what
    was late inside. The end of event time leaves an outermost loop with the end of the stream only.
    """

    generates_watermarks = True

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        LeaveCutState.__init__(self)
        self.scope = path_of(_loop(node).scope)

    def open(self) -> None:
        self.released = max(self.released, self.ctx.watermark_time)

    def process(self, batch: Batch, port: int) -> None:
        self.out(batch)

    def own_watermark(self) -> int:
        return self.released

    def allow(self, wave: int, time: int) -> None:
        """Takes a message of the coordinator: behind this wave nothing from before `time` comes out. `MAX_TIME`: the loop
        is idle."""
        self._allowed.append((wave, time))

    def pass_wave(self, wave: int) -> bool:
        """Takes a wave that has come on every input. True if it changes the event time or the idleness of the output."""
        before = (self.released, self.idle)
        for at, time in self._allowed:
            if at <= wave:
                self.idle = time == MAX_TIME
                self.released = self.released if self.idle else max(self.released, time)
        self._allowed = [(at, time) for at, time in self._allowed if at > wave]
        return (self.released, self.idle) != before
