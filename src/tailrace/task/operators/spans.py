"""The input of a loop in rounds by spans of event time, which its head holds until event time has passed its span."""

from __future__ import annotations

import numpy as np

from tailrace.elements.batches import Batch, Rows
from tailrace.elements.markers import SpanRound
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME, NO_TIME
from tailrace.errors import InternalError
from tailrace.graph.operators import Loop
from tailrace.task.channels.channel_logs import LogFrame
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.operators.context import OperatorContext


class HeldInput:
    """The input that a head holds, by the last microsecond of its span. Spans begin at multiples of their size since 1970.

    Invariant Q11: each record is read in round 0 of its span, or is late: what is held is of spans behind `done` and behind
    the one that is under way. Event time that leaves the head is `done` in every subtask, and so before all that is held.
    """

    def __init__(self, loop: Loop, size: int, ctx: OperatorContext) -> None:
        self.size = size
        self.queue = FeedbackQueue(loop.name, ctx.subtask, ctx.services.spill_of(loop), loop.spill_bytes, None, True)
        self.queue.over = True  # nothing comes into a log behind the cut of the head
        self.done = MIN_TIME
        """The end of the newest span that was closed."""
        self.span: SpanRound | None = None
        """The place of the current round; None for round 0, which comes before all spans."""

    def end_of(self, time: int) -> int:
        """The last microsecond of the span of a time."""
        return min(LAST_TIME - 1, time - time % self.size + self.size - 1)

    def end_before(self, time: int) -> int:
        """The end of the newest span that is over when event time has come so far; `MIN_TIME` where there is none."""
        return MIN_TIME if time == MIN_TIME else max(MIN_TIME, (time + 1) // self.size * self.size - 1)

    def hold(self, batch: Batch) -> int:
        """Holds the records of a batch. Returns how many are late: their span is over, or under way. Raises `ValueError` for
        a record without a timestamp."""
        rows = batch.to_rows()
        if rows.times is None or bool((rows.times == NO_TIME).any()):
            raise ValueError("a record has no timestamp, and so no span; call assign_timestamps before the loop")
        rest = self.size - 1 - np.mod(rows.times, self.size)
        ends = np.where(rows.times > LAST_TIME - 1 - rest, LAST_TIME - 1, rows.times + rest)
        times, targets = np.unique(ends, return_inverse=True)
        late = 0
        over = self.done if self.span is None else max(self.done, self.span.time)
        for target, part in rows.partition(targets, len(times)) if len(times) > 1 else [(0, rows)]:
            if times[target] <= over:
                late += len(part)
            else:
                self.queue.hold(part, _round_of(int(times[target])))
        return late

    def read(self, batch: Batch) -> Rows:
        """Records of the span that begins, with the time of its end."""
        rows = batch.to_rows()
        if self.span is None:
            raise InternalError("Q11: input is read before its span has begun")
        return Rows(rows.values, np.full(len(rows), self.span.time, np.int64), rows.groups)

    def start_round(self, number: int, span: SpanRound) -> int:
        """Starts a round. Returns how many records are late by now: they came while the coordinator had already decided
        that this span is the next one, or is over."""
        late = self.queue.drop_waiting(_round_of(span.time) + span.closes)
        self.span = span
        if span.closes:
            self.done = span.time
        elif span.first == number:
            self.queue.open_round(_round_of(span.time))
        return late

    def number_of(self, round: int) -> int:
        """The number of a round within the span that is under way; 0 between two spans."""
        return 0 if self.span is None else self.span.number_of(round) or 0

    def restore(self, frames: list[LogFrame]) -> None:
        """Takes what the checkpoint held, in order of its spans, before anything else. The span under way is read on."""
        self.queue.restore(frames)
        if self.span is not None and not self.span.closes:
            self.queue.open_round(_round_of(self.span.time))

    @property
    def earliest(self) -> int | None:
        """The end of the earliest span of which something is held; None where nothing is."""
        found = self.queue.earliest
        return None if found is None else found + MIN_TIME

    @property
    def at_rest(self) -> bool:
        """True if nothing is held or waits to be read, and no span is under way."""
        return not (self.queue.ready or self.queue.waiting) and (self.span is None or self.span.closes)

    def check(self) -> None:
        """Raises `InternalError` where the invariant does not hold."""
        over = self.done if self.span is None else max(self.done, self.span.time)
        if self.earliest is not None and self.earliest <= over:
            raise InternalError(f"Q11: input up to {self.earliest} is held, and {over} is over or under way")
        self.queue.check()


def _round_of(end: int) -> int:
    """The number under which records of a span wait: above 0, which is for records that are ready."""
    if not MIN_TIME < end < MAX_TIME:
        raise InternalError(f"Q11: a span ends at {end}")
    return end - MIN_TIME
