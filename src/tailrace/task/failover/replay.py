"""The replay of a lost worker's steps. Its replacement has restored the newest complete checkpoint. From the cuts on it
does the steps of the lost worker's history again (`task.journal.history`), with the records that its channels bring,
until it has the lost worker's state.

A replay uses no clock and no world outside: their answers are in the history. Credit is ignored meanwhile, since the lost
worker had it. All output is kept; `Resumed` decides at the end which of it is new to its receivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import assert_never

from tailrace.elements.cuts import CutRequest
from tailrace.errors import InternalError
from tailrace.protocol.deployment import EndSources, OperatorEvent
from tailrace.protocol.message_codec import NestCommand
from tailrace.protocol.snapshot import Abort, Complete, Trigger
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.failover.channel_restore import AsItWas
from tailrace.task.failover.parallel_replay import Lanes, NeedsOneOrder, needs_no_coordinator, passes_records_on
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.replayed_steps import replay_cut, replay_step
from tailrace.task.journal.divergence import as_before, differs
from tailrace.task.journal.facts import meets_in_channels
from tailrace.task.journal.history import Cut, Did, Entry, Flushed, Heard, decode
from tailrace.task.journal.outside_answers import Recorder, ReplayedAnswers
from tailrace.task.journal.replayable_gate import ANY, gate_of
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.journal.task_state import put_back
from tailrace.task.subtask.machine import FEEDBACK_READS, READS, Task

PORTION = 256
"""Entries of the history that are replayed at a time, in a replay in one order."""


class Again:
    """The replay of one slice.

    Invariant Y2: a task does nothing of what the history has before its own cut for the restored checkpoint.
    Invariant Y22: the tasks of a loop replay their own parts only where all of the history, and all that a hot standby gets
    of it, is passing records on.
    """

    def __init__(
        self,
        slice: ReplayableSlice,
        history: Iterable[Entry],
        checkpoint: int,
        channels: AsItWas | None = None,
        follows: bool = False,
        in_order: bool = False,
    ) -> None:
        """`slice` was restored from `checkpoint`, or has begun as the lost one did (0), and was opened. `channels`: the
        contents of the lost one's channels at its cuts. `follows`: more will come of the history (`add`). `in_order`: a
        loop is replayed in one order, whatever comes."""
        slice.again = True
        self.follows = follows
        """True while more of the history may come."""
        services = slice.services
        assert isinstance(services.outside, Recorder)
        self.slice = slice
        self._facts, self._sizes = slice.facts, slice.sizes
        self._sizes.give(())
        self._entries = deque(history)
        self._checkpoint = checkpoint
        self._recorder = services.outside
        self._outside = ReplayedAnswers()
        self._recorder.replay(self._outside)
        self._before: set[int] = set(slice.by_vertex) if checkpoint else set()
        """Vertices whose cut for the restored checkpoint is still to come."""
        for task in slice.tasks:
            _let_all_go(task, slice.together)
        self.received = self.complete = 0
        """The number of the coordinator's messages that are replayed, and the newest checkpoint that was complete by
        then."""
        self.lacks: list[tuple[Task, InputChannel]] = []
        """Tasks whose next step is blocked, each with the channel that lacks records."""
        begun = False
        for entry in self._entries:
            if isinstance(entry, Cut) and entry.request.number == checkpoint:
                task = slice.by_vertex[entry.vertex]
                came = put_back(task, entry.volatile, checkpoint)
                if channels is not None:
                    channels.put_back(task, came)
                if not begun:
                    begun, self.received = True, entry.heard
                    slice.nests.set_cut_state(entry.followed, entry.waves)
        self._channels = channels
        """The restored channels, until the records are sent that barriers had overtaken. Some of these are for workers
        that can only be reached when the replay begins."""
        self._lanes: Lanes | None = None
        """The parts of the history by task, if each task can replay its own; else None, and the entries are replayed in
        one order."""
        self._passes_on = (
            not in_order and not meets_in_channels(slice.plan) and needs_no_coordinator(slice, self._entries)
        )
        """True if each task of a job with loops replays its own part, which it may as long as records are passed on only."""
        if self._passes_on or meets_in_channels(slice.plan):
            self._lanes = Lanes(slice, self._entries, self._before, self._has_come, self._do)
            self._entries.clear()
        self.moved = False
        """True if the last `go_on` has replayed anything."""

    def add_encoded(self, history: Iterable[bytes]) -> None:
        """Adds what has come of the history, as bytes."""
        self.add([decode(entry) for entry in history])

    def takes(self, history: Iterable[Entry]) -> bool:
        """True if what comes of the history can be replayed in the way that was begun."""
        return not self._passes_on or all(map(passes_records_on, history))

    def add(self, history: Sequence[Entry]) -> None:
        """Adds what has come of the history. Raises `NeedsOneOrder` where each task replays its own part, and may not."""
        if not self.takes(history):
            raise NeedsOneOrder
        if self._lanes is None:
            self._entries.extend(history)
        else:
            self._lanes.add(history)

    @property
    def left(self) -> Sequence[Entry]:
        """Entries that are still to be replayed."""
        return self._entries if self._lanes is None else self._lanes.left

    @property
    def by_task(self) -> bool:
        """True if each task replays for itself, and frames may end elsewhere."""
        return self._lanes is not None

    def go_on(self) -> bool:
        """Replays a portion of what can be replayed with the records that have arrived. True when all is done."""
        if self._channels is not None:
            channels, self._channels = self._channels, None
            channels.send(self.slice)
        self.lacks.clear()
        with self.slice.services.within_user_code():
            self.moved = self._in_order() if self._lanes is None else self._lanes.go_on()
        over = not self.follows and not (self._entries if self._lanes is None else self._lanes)
        if over:
            self._facts.over()
            self._sizes.over()
            self._recorder.go_live()
            self.slice.again = False
        return over

    def _in_order(self) -> bool:
        """Replays a portion of the entries, one after the other. True if any could be replayed."""
        for done in range(PORTION):
            if not self._entries or not self._has_come(self._entries[0]):
                return done > 0
            self._do(self._entries.popleft())
        return True

    def _has_come(self, entry: Entry) -> bool:
        """True when the records that a step has read have arrived. Raises `UserCodeError` if they never will, because a
        task of this slice was to make them."""
        if not isinstance(entry, Did) or entry.vertex in self._before:
            return True
        task = self.slice.by_vertex[entry.vertex]
        if entry.line in FEEDBACK_READS:
            return self._lanes is None or self._lanes.has_come_back(task, entry.facts[1])
        if entry.line not in READS:
            return True
        lacking = gate_of(task).lacking(entry.facts)
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
        # The records of a step need not fit into the window behind what was read before. The replacement of their sender
        # has a whole window beside what is unread, and its frames may be larger than the first ones.
        grant = lacking.flow.whole()
        if grant is not None:
            task.work.grants.append((lacking.id, grant))
            self.slice.route(task)
        return False

    def _do(self, entry: Entry, whose: Task | None = None) -> None:
        """Replays an entry. `whose`: for this task only, whose frames may end elsewhere."""
        match entry:
            case Did() if entry.vertex not in self._before:
                self._step(self.slice.by_vertex[entry.vertex], entry, () if whose else entry.sizes)
            case Cut():
                self._cut(self.slice.by_vertex[entry.vertex], entry, () if whose else entry.sizes)
            case Flushed():
                self._facts.give(())
                for task in self._running_tasks():
                    self._sizes.give(entry.sizes.get(task.vertex.id, ()))
                    if task.outbox.oldest is not None and task.flush():
                        self.slice.route(task)
            case Heard():
                begun = self._running_tasks()
                self._receive(entry, begun if whose is None else [task for task in begun if task is whose])

    def _step(self, task: Task, entry: Did, sizes: Iterable[int]) -> None:
        self._facts.give(entry.facts)
        self._sizes.give(sizes)
        self._outside.give(entry.answers)
        with as_before(task, entry):
            replay_step(task, entry.line, entry.now, entry.budget, entry.seed)
            if entry.been_round:
                task.outbox.been_round()
            if self._facts.given:
                raise InternalError(f"Y1: {task.id} left facts {self._facts.given} of a step", task.work.story)
            if difference := self._outside.difference:
                raise InternalError(f"Y1: {task.id}: {difference}", task.work.story)
        self.slice.route(task)

    def _cut(self, task: Task, entry: Cut, sizes: Sequence[int]) -> None:
        if task.vertex.id in self._before:
            if entry.request.number == self._checkpoint:
                self._before.discard(task.vertex.id)
            return
        self._facts.give(())
        if sizes:  # else the sizes are in the entry of the step that it was part of
            self._sizes.give(sizes)
        self._outside.give(entry.answers)
        with as_before(task, f"the cut for checkpoint {entry.request.number}"):
            replay_cut(task, _without_a_hold(entry.request), entry.now, entry.seed)
        self.slice.route(task)

    def _receive(self, entry: Heard, tasks: Iterable[Task]) -> None:
        self.received = max(self.received, entry.number)
        message = entry.message
        if isinstance(message, Complete):
            self.complete = max(self.complete, message.checkpoint)
        if isinstance(message, NestCommand):
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
                    task.reports.note(message.checkpoint)
                    let_go(task, message.checkpoint)
                case OperatorEvent():
                    if message.vertex == task.vertex.id:
                        task.operator_event(message.source, message.payload)
                case EndSources():
                    task.end_source()
                case _:
                    assert_never(message)

    def _running_tasks(self) -> list[Task]:
        return [task for task in self.slice.tasks if task.vertex.id not in self._before]


def let_go(task: Task, checkpoint: int) -> None:
    """Lets a task go of what only older checkpoints than this complete one need."""
    outbox_of(task).complete(checkpoint)
    gate_of(task).complete(checkpoint)


def _without_a_hold(request: CutRequest) -> CutRequest:
    """The request without the hold of a stop, whose checkpoint will not be complete."""
    return CutRequest(request.number, request.kind, False, request.overtakes_after, request.most_inflight)


def _let_all_go(task: Task, together: Container[int]) -> None:
    """Gives a task's outputs credit without limit, except to slices that replay together with this one. Inputs from other
    workers grant as usual: their senders wait for it."""
    for ident, channel in task.outbox.channels.items():
        if ident.target not in together:
            channel.flow.allowed = ANY
    for ident, incoming in task.gate.channels.items():
        if ident.source == task.id.subtask:
            incoming.flow.granted = ANY


def account_for_local(slice: ReplayableSlice) -> None:
    """Restores the credit of channels between the tasks of a slice: what is unread there counts as sent."""
    for task in slice.tasks:
        for ident, channel in task.outbox.channels.items():
            if channel.local:
                reader = slice.by_vertex[slice.plan.edges[ident.edge].target].gate.channels[ident].flow
                unread = reader.arrived - reader.consumed
                channel.flow.sent, channel.flow.allowed = unread, channel.flow.window
                reader.arrived, reader.consumed, reader.granted = unread, 0, reader.window
