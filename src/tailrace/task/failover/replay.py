"""Doing again what a slice has done: the standby of a worker that was lost has restored the newest complete checkpoint, and
does what the lost one did behind its cuts (`task.journal.history`), with what its channels brought, until it is where that
one was.

Nothing here asks a clock or the world: what they said is in the history. Credit counts for nothing meanwhile, since the lost
one had it; whatever is sent is kept, and who goes on decides what of it is new to anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence

from tailrace.elements.cuts import CutRequest
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME
from tailrace.errors import InternalError
from tailrace.protocol.deployment import EndSources, OperatorEvent
from tailrace.protocol.snapshot import Abort, Complete, Trigger
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.contract.facts import Facts
from tailrace.task.contract.recorded_answers import Recorder, ReplayedAnswers
from tailrace.task.failover.channel_restore import AsItWas
from tailrace.task.failover.parallel_replay import Lanes, meets_in_channels
from tailrace.task.journal.divergence import as_before, differs
from tailrace.task.journal.history import Cut, Did, Entry, Flushed, Heard
from tailrace.task.journal.task_state import put_back
from tailrace.task.slice.machine import Slice
from tailrace.task.subtask.looping import Command
from tailrace.task.subtask.machine import READS, Task

PORTION = 256
"""So many entries are done again at a time, where they are done one by one."""
ANY = 1 << 60
"""More bytes than any channel carries."""


class Again:
    """One slice on its way to where another one was.

    Invariant Y2: a task does nothing of what the history has before its own cut for the restored checkpoint.
    """

    def __init__(
        self, slice: Slice, history: Iterable[Entry], checkpoint: int, channels: AsItWas | None = None
    ) -> None:
        """`slice` was restored from `checkpoint`, or has begun as the other one did (0), and was opened. `channels`: what
        those of that one had at its cuts."""
        slice.again = True
        services = slice.services
        assert services.facts is not None and services.sizes is not None and isinstance(services.outside, Recorder)
        self.slice = slice
        self._facts: Facts = services.facts
        self._sizes: Facts = services.sizes
        self._sizes.give(())
        self._entries = deque(history)
        self._checkpoint = checkpoint
        self._recorder = services.outside
        self._outside = self._recorder.again = ReplayedAnswers()
        self._before: set[int] = set(slice.by_vertex) if checkpoint else set()
        """Vertices whose cut for the restored checkpoint is still to come."""
        for task in slice.tasks:
            _let_all_go(task, slice.together)
        self.heard = 0
        """How many words of the coordinator are done."""
        self.lacks: list[tuple[Task, InputChannel]] = []
        """What the next steps wait for."""
        begun = False
        for entry in self._entries:
            if isinstance(entry, Cut) and entry.request.number == checkpoint:
                task = slice.by_vertex[entry.vertex]
                came = put_back(task, entry.volatile, checkpoint)
                if channels is not None:
                    channels.put_back(task, came)
                if not begun:
                    begun, self.heard = True, entry.heard
                    slice.nests.go_on_from(entry.followed, entry.waves)
        self._channels = channels
        """Until what was overtaken is sent: some of it is for others that can only be reached when this one goes on."""
        self._lanes: Lanes | None = None
        """Where each task goes through its own part of the history; else all is done in one order."""
        if meets_in_channels(slice.plan) and not _has_event_time(slice.tasks):
            self._lanes = Lanes(slice, self._entries, self._before, self._has_come, self._do)
            self._entries.clear()
        self.moved = False
        """Whether anything was done when it was told to go on last."""

    @property
    def left(self) -> Sequence[Entry]:
        """What is still to be done."""
        return self._entries if self._lanes is None else self._lanes.left

    def go_on(self) -> bool:
        """Does again a portion of what can be, with what the channels have brought so far. True when all is done."""
        if self._channels is not None:
            channels, self._channels = self._channels, None
            channels.send(self.slice)
        self.lacks.clear()
        self.moved = self._in_order() if self._lanes is None else self._lanes.go_on()
        over = not (self._entries if self._lanes is None else self._lanes)
        if over:
            self._facts.over()
            self._sizes.over()
            self._recorder.again = None
            self.slice.again = False
        return over

    def _in_order(self) -> bool:
        """Some of the entries, one after the other. Whether there was any that could be done."""
        for done in range(PORTION):
            if not self._entries or not self._has_come(self._entries[0]):
                return done > 0
            self._do(self._entries.popleft())
        return True

    def _has_come(self, entry: Entry) -> bool:
        """Whether what a step has read is there. Raises `UserCodeError` where it never will be: it was to be made here."""
        if not isinstance(entry, Did) or entry.vertex in self._before or entry.line not in READS:
            return True
        task = self.slice.by_vertex[entry.vertex]
        lacking = task.gate.lacking(entry.facts)
        if lacking is None:
            return True
        self.lacks.append((task, lacking))
        if lacking.returning is not None:
            return False
        if lacking.id.source == self.slice.slot:
            sender = self.slice.by_vertex[self.slice.plan.edges[lacking.id.edge].source]
            if self._lanes is not None and self._lanes.is_left(sender):
                return False
            raise differs(sender, f"less was made for channel {lacking.id} than was read of it")
        # What a step has read need not be within a window of what was read before it: who takes a sender's place has a whole
        # one beside what is unread then, and what is made again may be more bytes.
        grant = lacking.flow.whole()
        if grant is not None:
            task.work.grants.append((lacking.id, grant))
            self.slice.route(task)
        return False

    def _do(self, entry: Entry, whose: Task | None = None) -> None:
        """Does again what an entry says. `whose`: of this task only, whose frames may end elsewhere."""
        match entry:
            case Did() if entry.vertex not in self._before:
                self._step(self.slice.by_vertex[entry.vertex], entry, () if whose else entry.sizes)
            case Cut():
                self._cut(self.slice.by_vertex[entry.vertex], entry, () if whose else entry.sizes)
            case Flushed():
                self._facts.give(())
                for task in self._begun():
                    self._sizes.give(entry.sizes.get(task.vertex.id, ()))
                    if task.outbox.oldest is not None and task.flush():
                        self.slice.route(task)
            case Heard():
                begun = self._begun()
                self._hear(entry, begun if whose is None else [task for task in begun if task is whose])

    def _step(self, task: Task, entry: Did, sizes: Iterable[int]) -> None:
        self._facts.give(entry.facts)
        self._sizes.give(sizes)
        self._outside.give(entry.answers)
        with as_before(task, entry):
            task.do_again(entry.line, entry.now, entry.budget, entry.by_itself)
            if entry.been_round:
                task.outbox.been_round()
            if self._facts.given or self._outside.unasked:
                raise InternalError(f"Y1: {task.id} left facts {self._facts.given} of a step", task.work.story)
        self.slice.route(task)

    def _cut(self, task: Task, entry: Cut, sizes: Sequence[int]) -> None:
        if task.vertex.id in self._before:
            if entry.request.number == self._checkpoint:
                self._before.discard(task.vertex.id)
            return
        self._facts.give(())
        if sizes:  # else they are with what it did in the same step
            self._sizes.give(sizes)
        self._outside.give(entry.answers)
        with as_before(task, f"the cut for checkpoint {entry.request.number}"):
            task.cut_again(_without_a_hold(entry.request), entry.now)
        self.slice.route(task)

    def _hear(self, entry: Heard, tasks: Iterable[Task]) -> None:
        self.heard = max(self.heard, entry.number)
        message = entry.message
        if isinstance(message, Command):
            self.slice.nests.command(message, self._before)
            return
        for task in tasks:
            match message:
                case Trigger():
                    task.trigger(message.cut)
                case Abort():
                    task.abort(message.checkpoint)
                case Complete():
                    for operator in task.chain.operators:
                        operator.confirm(message.checkpoint)
                case OperatorEvent() if message.vertex == task.vertex.id:
                    task.operator_event(message.source, message.payload)
                case EndSources():
                    task.end_source()

    def _begun(self) -> list[Task]:
        return [task for task in self.slice.tasks if task.vertex.id not in self._before]


def _has_event_time(tasks: Iterable[Task]) -> bool:
    """Whether event time has come to any of them, where it has not ended: in a checkpoint of a program that assigned it."""
    return any(MIN_TIME < time < LAST_TIME for task in tasks for time in task.chain.arrived)


def _without_a_hold(request: CutRequest) -> CutRequest:
    """The checkpoint of a stop will not be complete: nobody waits for it."""
    return CutRequest(request.number, request.kind, False, request.overtakes_after, request.most_inflight)


def _let_all_go(task: Task, together: Container[int]) -> None:
    """Nothing that the task sends waits for credit, but where it goes at once. What comes from others does, as ever: they
    wait for what it grants."""
    for ident, channel in task.outbox.channels.items():
        if ident.target not in together:
            channel.flow.allowed = ANY
    for ident, incoming in task.gate.channels.items():
        if ident.source == task.id.subtask:
            incoming.flow.granted = ANY


def account_for_local(slice: Slice) -> None:
    """Credit counts again in the channels between the tasks of a slice: what is unread there was sent."""
    for task in slice.tasks:
        for ident, channel in task.outbox.channels.items():
            if channel.local:
                reader = slice.by_vertex[slice.plan.edges[ident.edge].target].gate.channels[ident].flow
                unread = reader.arrived - reader.consumed
                channel.flow.sent, channel.flow.allowed = unread, channel.flow.window
                reader.arrived, reader.consumed, reader.granted = unread, 0, reader.window
