"""One subtask as a deterministic machine: `arrive` and `granted` only store, `step` does one bounded piece of work.

The order of the pieces is data (`ORDER`). A cut that is due comes first; but event time that is on its way through the
operators arrives before it, and a cut whose place no barrier gives waits for one step of work since the last cut. Behind
the cut of a stop nothing else comes. Then comes what is sealed and waits for credit (nothing else happens until it is
sent), then event time, then processing-time timers, then input. The clock is an argument of `step`, and so is the budget,
in records. Encoding what a cut froze is no part of `step`: the worker does it in portions of its own (`encode`), between
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frames import ChannelId, Element
from tailrace.elements.markers import Barrier
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME, MIN_TIME
from tailrace.errors import InternalError
from tailrace.graph.plan import Plan, Vertex
from tailrace.protocol.wire import NestCommand
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.outbox import MAX_AGE
from tailrace.task.channels.services import Services
from tailrace.task.inflight.recording import Logged
from tailrace.task.operators.sink import SinkTask
from tailrace.task.subtask.alignment import TaskCut
from tailrace.task.subtask.idleness import UNTIL_A_TIMER, UNTIL_TOLD, Idle, Reason
from tailrace.task.subtask.opening import Opening, as_it_is
from tailrace.task.subtask.order import NOTHING, Line, Turn, lines
from tailrace.task.subtask.snapshot import TaskSnapshot
from tailrace.task.subtask.work import Work


class Task:
    """One subtask of one vertex."""

    def __init__(self, plan: Plan, vertex: Vertex, subtask: int, attempt: int, services: Services, window: int) -> None:
        self.work = Work(plan, vertex, subtask, attempt, services, window)
        self.id = self.work.id
        self.vertex = vertex
        self.services = services
        self.gate, self.outbox, self.chain = self.work.gate, self.work.outbox, self.work.chain
        self.loop, self.head, self.cuts = self.work.loop, self.work.head, self.work.cuts
        self.inflight = self.work.inflight
        self.idle: Idle | None = None
        """The reason why the last step did nothing; None if it did something."""
        self._sleeps_until = 0
        """Invariant C3: before that time (int64 microseconds) a step would do nothing, unless something happens to the
        task, which wakes it. Most tasks of a worker have nothing to do at most times, and are not stepped."""
        self._due = self.cuts.due
        """The deque `cuts.due`, which is looked at in every step."""
        self.snapshot: TaskSnapshot | None = None
        """The snapshot that is being encoded, or that the worker has not taken completely."""
        self._worked = True
        """True once the task has done a step of work since its last cut, or need not. A cut that only the coordinator's
        trigger requests waits for it. Else, if cuts came faster than they are encoded, the task would do nothing but cut."""
        self.did = NOTHING
        """The line of `ORDER` that the last step followed."""
        self.just_cut: CutRequest | None = None
        """The cut that the last step made."""
        self.held_by: int | None = None
        """Invariant S3: the checkpoint of a stop, from this task's cut for it until it is aborted: the task does nothing,
        so nothing that follows from what is behind the cut is done anywhere."""
        self._in_line: dict[int, int] = {}
        """Checkpoints whose barriers wait behind records of this task, with the times at which they may overtake them."""
        self._story = self.work.story
        self._order = self._lines()

    @property
    def finished(self) -> bool:
        """True once everything is read, and sent to all channels."""
        return self.work.finished

    @property
    def has_cut_to_make(self) -> bool:
        """True if a cut is due and can be encoded, or may be due once the task has looked at the clock."""
        if self.snapshot is not None:
            return False
        cuts = self.cuts
        return bool(self._due) or (self.inflight is not None and (cuts.unstamped or cuts.struck(self.services.now)))

    def open(self, opening: Opening = as_it_is) -> None:
        """Opens the user's functions."""
        self.wake()
        self.work.open_inputs()
        self.chain.open(opening)

    def restored(self) -> None:
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
        if self.head is not None and self.head.finished:
            self.head.end_loop()

    def returned(self, front: list[list[InputChannel]]) -> None:
        """Takes what was in flight to the task at the restored cut: it is read before anything new. Called after
        `restored`."""
        self.gate.returned(front)
        returning = [channel.returning for channels in front for channel in channels]
        self.work.hold_time(any(one is not None and not one.timely for one in returning))
        if self.gate.watermark > self.chain.arrived[0]:
            self.chain.watermark(self.gate.watermark)
            self.work.advancing = True

    def loaded(self, channel: InputChannel) -> None:
        """Handles the loading of records in flight on a channel, which were only in their file."""
        self.wake()
        self.gate.loaded(channel)

    def close(self) -> list[BaseException]:
        """Closes the user's functions; returns what they raised. Gives up the snapshot that is being encoded: it and the
        state of the whole operator refer to each other, and Python would free them much later."""
        snapshot, self.snapshot = self.snapshot, None
        for operator, _ in snapshot.operators if snapshot is not None else ():
            if operator.backend is not None and snapshot is not None:
                operator.backend.abort(snapshot.checkpoint)
        if self.inflight is not None:
            self.inflight.close()
        return self.chain.close()

    # Events.

    def arrive(self, ident: ChannelId, seq: int, element: Element, charge: int) -> None:
        """Stores an element that came on a channel. A barrier is announced, whatever is unread in front of it."""
        self.wake()
        self.gate.arrive(ident, seq, element, charge)
        if self.inflight is not None and self.inflight.recording:
            self.inflight.arrived(ident, element, charge)
        if isinstance(element, Barrier):
            self.cuts.announce(ident, element.cut)

    def granted(self, ident: ChannelId, total: int) -> None:
        """Takes a grant of the consumer of one of this task's output channels."""
        self.wake()
        self.outbox.granted(ident, total)
        self._barriers_left()

    def trigger(self, cut: CutRequest) -> None:
        """Takes the coordinator's request for a checkpoint."""
        self.wake()
        self.cuts.trigger(cut)

    def abort(self, checkpoint: int) -> None:
        """Gives up a checkpoint that will never be complete: nothing of it stays."""
        self.wake()
        self.cuts.abort(checkpoint)
        if self.held_by == checkpoint:
            self._hold(None)
        if self.snapshot is not None and self.snapshot.checkpoint == checkpoint:
            self.snapshot = None
        if self.inflight is not None:
            self.inflight.abort(checkpoint)
        for operator in self.chain.operators:
            operator.abort(checkpoint)
            if operator.backend is not None:
                operator.backend.abort(checkpoint)
                operator.chains.abort(checkpoint)

    def confirm(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete."""
        self.wake()
        for operator in self.chain.operators:
            operator.confirm(checkpoint)
            if operator.backend is not None:
                operator.backend.confirm(checkpoint)
                operator.chains.confirm(checkpoint)

    def operator_event(self, source: int, payload: bytes) -> None:
        """Passes an event from another subtask of this vertex to the operator at the chain's root."""
        self.wake()
        if self.chain.source is not None:
            self.chain.source.event(source, payload)

    def end_source(self) -> None:
        """Ends the input of a source for a stop: it reads nothing more."""
        self.wake()
        if self.chain.source is not None:
            self.chain.source.end_here()

    def command(self, message: NestCommand) -> bool:
        """Stores a command of the coordinator to the loop nest of this task. True if it concerns the task."""
        self.wake()
        return not self.work.said_end and self.loop.command(message, max(self.cuts.asked, default=0))

    def flush(self) -> bool:
        """Sends what was gathered, when the worker has nothing else to do. True if there was anything."""
        return not self.finished and self.outbox.flush()

    # One step.

    def step(self, now: int, budget: int) -> Idle | None:
        """Does one bounded piece of work of about `budget` records at time `now` (int64 microseconds). None if something
        was done, else the reason why not. What user code raises passes through as `UserCodeError`."""
        self.work.begin(now)
        self.wake()
        cuts = self.cuts
        if cuts.unstamped:
            cuts.stamp(now)
        if self._in_line:
            self._overtake_at_last(now)
        made, self.just_cut = cuts.made, None
        idle = self._first_of_order(now, budget)
        if idle is None:
            self._worked = self._worked or cuts.made == made
        elif self._due and not self.work.busy and not self._must_drain:
            idle = self._cut_at_last(now)  # nothing else is to be done
        elif self.inflight is not None and not self.work.busy and cuts.struck(now):
            idle = self._cut_at_last(now)
        self._barriers_left()
        if idle is None and self.just_cut is None:
            self.work.go_round(budget)
        elif idle is not None and self.outbox.flush_if_old():
            idle = None  # the worker may not rest for long, and flushes only then
        if idle is not None and self.inflight is not None:
            idle = self._until_a_strike(idle, now)
        self.idle = idle
        if idle is not None and self._may_sleep(idle.reason):
            flush_at = MAX_TIME if self.outbox.oldest is None else self.outbox.oldest + MAX_AGE
            self._sleeps_until = flush_at if idle.wake_at is None else min(flush_at, idle.wake_at)
        return idle

    def _may_sleep(self, reason: Reason) -> bool:
        """True if an event would wake the task whenever it has something to do. No event announces a source's records."""
        told = self.chain.source is None or self.finished or reason is Reason.HELD
        return reason in UNTIL_TOLD and not self._due and told

    def wake(self) -> None:
        """Wakes the task, because something happened that may give it something to do."""
        self._sleeps_until = 0
        self.services.stirred[self.id.vertex] = None

    def asleep(self, now: int) -> bool:
        """True if the task need not be stepped at time `now`."""
        return now < self._sleeps_until

    def _first_of_order(self, now: int, budget: int) -> Idle | None:
        for guard, act, reason, number in self._order:
            if guard(self, now):
                if act is not None:
                    self.did = number
                    return act(self, now, budget)
                self.did = NOTHING
                return Idle(reason, self.work.next_by_the_clock(reason, now) if reason in UNTIL_A_TIMER else None)
        raise InternalError(f"{self.id}: nothing in the order applies", self._story)

    def do_again(self, line: int, now: int, budget: int, seeded: bool = True) -> None:
        """Replays a step that was done in another process (`task.journal.history`): it follows line `line`, whatever the
        order gives now. `seeded`: see `Work.begin`."""
        self.work.begin(now, seeded)
        self.wake()
        act = None if line == NOTHING else ORDER[line].act
        idle = None if act is None else act(self, now, budget)
        if act is None or idle is not None:
            self.outbox.flush_if_old()

    def cut_again(self, request: CutRequest, now: int) -> None:
        """Replays a cut that was made in another process, for a checkpoint that will not be complete: no snapshot."""
        self.work.begin(now)
        self.wake()
        self.cuts.make_again(request, now)
        self.chain.cut_again(request)
        if not self.work.said_end:
            self.outbox.barrier(request)
        self.chain.begin_epoch(request.number)
        self.abort(request.number)

    def encode(self, now: int, limit: int) -> None:
        """Encodes about `limit` more entries of the current snapshot, if there is one."""
        snapshot = self.snapshot
        if snapshot is not None and not snapshot.done:
            snapshot.encode(limit)
            snapshot.encoded_at = now

    def _cut(self, now: int) -> None:
        """Makes a cut: state is frozen, and the barrier goes behind what was emitted, or past it, where it may overtake."""
        due = self.cuts.make(now) if self._due else self.cuts.overtake(now)
        cut = self.just_cut = due.request
        self._story.append(f"cut {cut.number}")
        self._worked = False
        loop = self.loop.rests.numbers.done, self.loop.rounds.numbers.done
        overtaken = self._inputs_overtaken(due)
        self.snapshot = TaskSnapshot(
            cut, self.chain, due.aligned, now, *loop, due.announced, overtaken, bool(due.missing)
        )
        if cut.hold:
            self._hold(cut.number)
        if not self.work.said_end:
            self.outbox.barrier(cut)
            self.snapshot.recordings += self._outputs_overtaken(due)
        self.chain.begin_epoch(cut.number)

    def _hold(self, checkpoint: int | None) -> None:
        self.held_by = checkpoint
        self._order = self._lines()

    def _lines(self) -> list[Line[Task]]:
        return lines(ORDER, self)

    # Unaligned cuts.

    def _inputs_overtaken(self, due: TaskCut) -> Logged:
        if self.inflight is None or not (due.request.may_overtake or self.gate.front):
            return []
        return self.inflight.cut_input(due.request.number, due.missing, due.request.kind.whole)

    def _outputs_overtaken(self, due: TaskCut) -> Logged:
        """Lets the barrier go past what waits for credit on some channels, now or at its time. Returns what it overtakes."""
        overtakes_at = due.overtakes_at
        if self.inflight is None or overtakes_at is None:
            return []
        number, most = due.request.number, due.request.most_inflight
        if most >= 0:
            most = max(0, most - (self.inflight.found if due.missing else 0))
        logged = self.inflight.cut_output(number, most)
        if due.made_at >= overtakes_at:
            self.inflight.overtake_output(number)
        elif logged:
            self._in_line[number] = overtakes_at
        return logged

    def _overtake_at_last(self, now: int) -> None:
        """Lets barriers that wait behind records go past them, when their time has come."""
        assert self.inflight is not None
        for number, at in list(self._in_line.items()):
            if now >= at or number not in self.inflight.in_line:
                del self._in_line[number]
                self.inflight.overtake_output(number)

    def _barriers_left(self) -> None:
        if self.outbox.barriers_sent:
            if self.inflight is None:
                self.outbox.barriers_sent.clear()
            else:
                self.inflight.sent()

    def _until_a_strike(self, idle: Idle, now: int) -> Idle:
        """The idleness of a waiting task, with a time to step it again when a cut becomes an unaligned one."""
        times = [at for at in (self.cuts.strikes_at(now), *self._in_line.values(), idle.wake_at) if at is not None]
        return Idle(idle.reason, min(times)) if times else idle

    def _is_struck(self, now: int) -> bool:
        """True if an unaligned cut is to be made, and has its place here: behind a step of work."""
        return self._worked and self.snapshot is None and not self.work.busy and self.cuts.struck(now)

    @property
    def _cut_is_next(self) -> bool:
        """True if a cut is due, and has its place here: where a barrier gives it, and else behind a step of work."""
        if not self._due or self.work.busy or self._must_drain:
            return False
        return bool(self.cuts.live) or (self._worked and self.snapshot is None)

    @property
    def _must_drain(self) -> bool:
        """True if a cut would lose what was in flight at the restored cut. An aligned cut does not record it; and a cut
        that may refer to no other file must have it in memory."""
        if not self.gate.front:
            return False
        return self.inflight is None or (self.cuts.next_is_whole and self.gate.holds_parked)

    def _next_cut(self, now: int, budget: int) -> None:
        self._cut(now)

    def _cut_at_last(self, now: int) -> Idle | None:
        """Makes a cut that only the coordinator's trigger requests, when there is no work that it could wait for."""
        if self.snapshot is not None:
            return Idle(Reason.ENCODING)  # one at a time: the cut waits until the one before is encoded
        self._cut(now)
        return None

    # Figures and checks.

    def records_out(self) -> int:
        """Records that left the task: over its edges, or into its sinks."""
        return self.outbox.records + self.records_sunk()

    def records_sunk(self) -> int:
        """Records that left the task into its sinks."""
        return sum(op.records for op in self.chain.operators if isinstance(op, SinkTask))

    def watermark(self) -> int:
        """The lowest event time that an operator of the task has reached. Operators above a clock have none, and do not
        count."""
        return min(self.chain.reached[i] for i in self.chain.timed)

    def check_asleep(self, now: int) -> None:
        """Raises `InternalError`, with the task's story, if the task sleeps and would have something to do."""
        act = next(act for guard, act, _, _ in self._order if guard(self, now))
        if act is not None or self._due:
            raise InternalError(
                f"C3: {self.id} sleeps until {self._sleeps_until}, and has something to do", self._story
            )

    def check(self) -> None:
        """Raises `InternalError`, with the task's story, if an invariant does not hold."""
        try:
            self.gate.check()
            self.outbox.check()
            if self.inflight is not None:
                self.inflight.check()
            if (wrong := self.cuts.check()) is not None:
                raise InternalError(wrong, ())
            chain = self.chain
            for operator, arrived, reached in zip(chain.operators, chain.arrived, chain.reached, strict=True):
                own = bool(chain.generators) or operator.generates_watermarks
                if reached > arrived and reached != MAX_TIME and not own:
                    raise InternalError(f"C1: event time {reached} was reached where only {arrived} has come")
        except InternalError as error:
            raise InternalError(f"{self.id}: {error.args[0]}", self._story) from error


def _works(act: Callable[[Work, int, int], Idle | None]) -> Callable[[Task, int, int], Idle | None]:
    return lambda task, now, budget: act(task.work, now, budget)


def _is_held(task: Task) -> object:
    return task.held_by is not None


def _in_a_nest(task: Task) -> object:
    return task.loop.place.nest is not None


def _reads_beside_channels(task: Task) -> object:
    return task.chain.source or task.head


def _has_timers(task: Task) -> object:
    return task.chain.clocked


def _commanded(task: Task, now: int) -> object:
    return task.loop.commands and not task.work.busy and task.loop.has_work(task.cuts.asked)


def _fires(task: Task) -> object:
    return not _in_a_nest(task) and task.chain.fires


def _timer_due(task: Task, now: int) -> object:
    due = task.chain.next_processing()
    return due is not None and due <= now


def _barrier_between(task: Task, now: int) -> object:
    return task.work.between_portions and task.gate.barrier_is_next


def _feeds_back(task: Task, now: int) -> object:
    head = task.head
    return head is not None and head.takes_feedback(task.gate.has_input, task.cuts.awaited)


ORDER: tuple[Turn[Any], ...] = (
    Turn(lambda t, now: t._due and t._cut_is_next and t.snapshot is not None, None, Reason.ENCODING),
    Turn(lambda t, now: t._due and t._cut_is_next, Task._next_cut),
    Turn(lambda t, now: t._is_struck(now), Task._next_cut, whose=lambda t: t.inflight),
    Turn(lambda t, now: t.finished, None, Reason.FINISHED),
    Turn(lambda t, now: True, None, Reason.HELD, whose=_is_held),
    Turn(_commanded, _works(Work.obey), whose=_in_a_nest),
    Turn(lambda t, now: t.outbox.blocked, None, Reason.NO_CREDIT),
    Turn(_barrier_between, _works(Work.take_barrier), whose=_fires, reads=True),
    Turn(lambda t, now: t.work.advancing, _works(lambda work, now, budget: work.advance(budget))),
    Turn(lambda t, now: t.loop.rounds.ending is not None, _works(Work.end_round), whose=_in_a_nest),
    Turn(_timer_due, _works(Work.fire), whose=_has_timers),
    Turn(lambda t, now: t.loop.rests.due, _works(Work.rest), whose=_in_a_nest),
    Turn(lambda t, now: t.gate.front and t.gate.has_input, _works(Work.take), whose=_reads_beside_channels, reads=True),
    Turn(lambda t, now: t.gate.front, None, Reason.NO_INPUT, whose=_reads_beside_channels),
    Turn(
        lambda t, now: t.chain.source is not None and not t.chain.source.ended,
        _works(Work.read),
        whose=lambda t: t.chain.source,
    ),
    Turn(_feeds_back, _works(Work.take_feedback), whose=lambda t: t.head),
    Turn(lambda t, now: t.gate.has_input, _works(Work.take), reads=True),
    Turn(lambda t, now: t.loop.rounds.due, _works(Work.mark_round_end), whose=_in_a_nest),
    Turn(lambda t, now: t.work.input_is_silent(now), _works(Work.fall_silent), whose=lambda t: t.work.silence.of_input),
    Turn(lambda t, now: t.gate.ended and not t.head.over, None, Reason.LOOPING, whose=lambda t: t.head),
    Turn(lambda t, now: t.gate.ended, _works(Work.end), Reason.QUIET),
    Turn(lambda t, now: t.cuts.blocked, None, Reason.ALIGNING),
    Turn(lambda t, now: True, None, Reason.NO_INPUT),
)
"""The work of a task and its reasons to wait: it follows the first line that applies. (Of `Any`: a line is evaluated only
for tasks that it is for, such as tasks with a source.)"""

CUTS = frozenset(number for number, turn in enumerate(ORDER) if turn.act is Task._next_cut)
"""The lines of the order in which a task does nothing but cut."""
READS = frozenset(number for number, turn in enumerate(ORDER) if turn.reads)
"""The lines of the order in which a task reads from its channels."""
