"""The subtasks of one worker: subtask *i* of every vertex that has one. Neighbours hand batches over in memory.

A slice routes what its tasks send: to a task of its own at once, to another worker as an action. It is stepped by a
driver: above the waterline in production, by the simulator in tests.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import nullcontext
from typing import NamedTuple

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frames import GRANT, HISTORY, ROWS, ChannelId, Frame, encode_grant, is_barrier
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import ProtocolViolation
from tailrace.graph.plan import Plan
from tailrace.protocol.deployment import SubtaskReport
from tailrace.protocol.replay import Copy, Gained, Hearsay, decode_gained
from tailrace.protocol.wire import AnyMessage
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import ToPeer
from tailrace.task.journal.divergence import as_before
from tailrace.task.journal.history import Cut, Did, Flushed, History
from tailrace.task.journal.task_state import taken
from tailrace.task.operators.sink import SinkTask
from tailrace.task.operators.source import SourceTask
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.slice.nests import WorkerNests
from tailrace.task.subtask.idleness import Idle
from tailrace.task.subtask.machine import CUTS, Task
from tailrace.task.subtask.opening import KeptOpening, as_it_is
from tailrace.task.subtask.order import NOTHING

MAX_WINDOW = 1 << 20
MIN_WINDOW = 32 << 10


class Keeps(NamedTuple):
    """What a slice keeps for those that take the place of others: it grows until the next checkpoint is complete."""

    memory: int
    """Bytes, in memory, of what went to other workers."""
    spilled: int
    """And on disk."""
    entries: int
    """How many steps, and what else happened, its history has."""
    history: int
    """Bytes of its history, which is in memory."""


def window_of(plan: Plan, memory: int) -> int:
    """The window of each channel, so that all of those into one slot together stay within its worker's memory, as long as
    the smallest window allows it. Both ends of a channel must agree: it is what the slot with most channels can afford."""
    return max(MIN_WINDOW, min(MAX_WINDOW, memory // max(1, plan.most_channels)))


class Slice:
    """All tasks of one worker, the most downstream one first."""

    def __init__(self, plan: Plan, slot: int, attempt: int, services: Services, memory: int) -> None:
        self.plan = plan
        self.slot = slot
        self.attempt = attempt
        self.incarnation = services.incarnation
        self.services = services
        window = services.tuning.window or window_of(plan, memory)
        self.tasks = [
            Task(plan, vertex, slot, attempt, services, window)
            for vertex in reversed(plan.vertices)
            if slot < vertex.parallelism
        ]
        self.nests = WorkerNests(plan, slot, self.tasks)
        self.by_vertex = {task.vertex.id: task for task in self.tasks}
        heads = {id(task.head.queue): task for task in self.tasks if task.head is not None}
        self._fed = {
            task.vertex.id: heads[id(task.loop.tail.queue)]
            for task in self.tasks
            if task.loop is not None and task.loop.tail is not None
        }
        """The head that each tail feeds, by the tail's vertex: through a queue that both hold."""
        services.stirred.update((vertex, None) for vertex in self.by_vertex)
        self.history = None if services.facts is None else History(services.most_history // plan.slots)
        """What the tasks do, where another worker may have to do it again."""
        self.keeping = services.keeping()
        """What went to other workers, for those that take the place of one of them."""
        if self.history is not None:
            for task in self.tasks:
                task.outbox.keep(self.keeping)
        self.again = False
        """Whether it does again what was done before: whatever it sends to others is kept, and goes later."""
        self.together: Set[int] = frozenset()
        """Others with channels from or to it that do so at the same time: what is made for them again goes at once, for they
        have nothing of it."""
        self.gone: set[int] = set()
        """Workers that are lost: nothing that still comes from them counts."""
        self.copies: dict[int, Copy] = {}
        """What is known of the histories of other workers, by their slots."""
        self.hearsay = Hearsay()
        """What others tell of third ones."""
        self.actions: list[ToPeer] = []
        self.stale_frames = 0
        """Frames of an older incarnation, dropped at the door."""

    def open(self, before: bytes | None = None) -> None:
        """Opens all user functions, downstream first. `before`: what opening those of the worker whose place this one takes
        has found of the world."""
        history = self.history
        opening = as_it_is if history is None else KeptOpening(self.services, before)
        for task in self.tasks:
            with nullcontext() if before is None else as_before(task, "opening its functions"):
                task.open(opening)
        if history is not None and isinstance(opening, KeptOpening):
            history.opened = opening.kept()

    def close(self) -> list[BaseException]:
        """Closes all user functions, whatever some of them raise."""
        errors = [error for task in self.tasks for error in task.close()]
        self.keeping.close()
        return errors

    @property
    def finished(self) -> bool:
        for task in self.tasks:  # noqa: SIM110 - asked before each step: a generator costs more than all that it looks at
            if not task.finished:
                return False
        return True

    def peers(self) -> set[int]:
        """The slots of other workers that this one has channels with."""
        return self.plan.peers(self.slot)

    # Events.

    def receive(self, frame: Frame, peer: int) -> None:
        """A frame came from another worker. Raises `ProtocolViolation` for one that is not its to send."""
        if frame.incarnation != self.incarnation:
            if frame.incarnation > self.incarnation:
                raise ProtocolViolation(f"a frame of incarnation {frame.incarnation}, this is {self.incarnation}")
            self.stale_frames += 1
            return
        if peer in self.gone:
            self.stale_frames += 1
            return
        channel = frame.channel
        if frame.kind == HISTORY:
            self._learn(peer, decode_gained(frame.history()))
            return
        if frame.kind == GRANT:
            if channel.target != peer:
                raise ProtocolViolation(f"worker {peer} granted for channel {channel}, which it does not read")
            self._sender(channel).granted(channel, frame.number)
            self.route_all()
            return
        if channel.source != peer:
            raise ProtocolViolation(f"worker {peer} sent on channel {channel}, which it does not write")
        element = frame if frame.count or frame.kind == ROWS else frame.marker()
        self._receiver(channel).arrive(channel, frame.seq, element, frame.size if frame.count else 0)

    def _learn(self, peer: int, gained: Gained) -> None:
        """Another worker tells its history, or what it knows of that of a third one."""
        origin = peer if gained.origin == -1 else gained.origin
        if origin == self.slot or not 0 <= origin < self.plan.slots:
            raise ProtocolViolation(f"worker {peer} tells what worker {origin} has done")
        for whose, one in self.hearsay.told(peer, gained):
            self.copies.setdefault(whose, Copy()).gain(one)

    def trigger(self, cut: CutRequest) -> None:
        """The coordinator wants a checkpoint."""
        for task in self.tasks:
            task.trigger(cut)

    def abort(self, checkpoint: int) -> None:
        """A checkpoint will never be complete."""
        for task in self.tasks:
            task.abort(checkpoint)

    def confirm(self, checkpoint: int) -> None:
        """A checkpoint is complete."""
        for task in self.tasks:
            task.confirm(checkpoint)
            if self.history is not None:
                task.outbox.complete(checkpoint)
                task.gate.complete(checkpoint)
        if self.history is not None:
            self.history.complete(checkpoint)
            for copy in self.copies.values():
                copy.complete(checkpoint)

    def took_over(self) -> None:
        """Of the lost worker in whose place this one is all is published that ever will be."""
        for task in self.tasks:
            for operator in task.chain.operators:
                if isinstance(operator, SinkTask):
                    operator.took_over()

    def operator_event(self, vertex: int, source: int, payload: bytes) -> None:
        """Subtask `source` of a vertex has something to say to the one that is here. Raises `ProtocolViolation`."""
        task = self.by_vertex.get(vertex)
        if task is None:
            raise ProtocolViolation(f"an operator event for vertex {vertex}, which is not in this worker")
        task.operator_event(source, payload)

    # Steps.

    def step(self, task: Task, now: int, budget: int) -> Idle | None:
        """One step of one task, and what follows from it among the tasks of this slice."""
        if self.history is not None:
            self.services.outside.taken()  # what was answered outside of steps is in no history
        idle = task.step(now, budget)
        if self.history is not None:
            self._remember(self.history, task, now, budget, idle)
        if idle is None and task.vertex.id in self._fed:
            self._fed[task.vertex.id].wake()
        if self.route(task):
            idle = None  # it said that it is idle, and another one that was asked before it has that to read
        if self.services.debug:
            task.check()
            self.keeping.check([item for one in self.tasks for item in one.outbox.held()])
        return idle

    def flush(self) -> bool:
        """Nothing else is to do: what was gathered goes. True when something went."""
        flushed, sizes = False, dict[int, list[int]]()
        for task in self.tasks:
            if task.outbox.oldest is not None and task.flush():
                flushed = True
                if self.services.sizes is not None:
                    sizes[task.vertex.id] = self.services.sizes.taken()
                self.route(task)
        if flushed and self.history is not None:
            self.history.add(Flushed(sizes))
        return flushed

    # What was done, for who may have to do it again.

    def hear(self, message: AnyMessage) -> None:
        """The coordinator says something that concerns tasks."""
        if self.history is not None:
            self.history.hear(message)

    def _remember(self, history: History, task: Task, now: int, budget: int, idle: Idle | None) -> None:
        """What a task did in its last step."""
        services, vertex, cut = self.services, task.vertex.id, task.just_cut
        assert services.facts is not None and services.sizes is not None
        facts, answers, sizes = services.facts.taken(), services.outside.taken(), services.sizes.taken()
        sealed = task.did == NOTHING and idle is None and cut is None
        if sealed or (task.did != NOTHING and task.did not in CUTS):
            answered = [] if cut is not None else answers
            by_itself = services.clock_asked or (services.shared is not None and services.shared.used())
            history.add(Did(vertex, task.did, now, budget, facts, answered, sizes, task.work.been_round, by_itself))
            sizes = []  # of the cut as well, which comes behind it
        if cut is not None:
            followed, waves = self.nests.followed(), self.nests.waves()
            history.add(Cut(vertex, cut, now, taken(task), history.heard, answers, followed, waves, sizes))

    def route_all(self) -> None:
        for task in self.tasks:
            self.route(task)

    def route(self, task: Task) -> bool:
        """Routes what a task sent and granted. True where another task of this slice has got something."""
        given = False
        if task.outbox.sends:
            sends, task.outbox.sends = task.outbox.sends, []
            for channel, seq, payload, charge in sends:
                if isinstance(payload, bytes):
                    if not self.again or (channel.target in self.together and not is_barrier(payload)):
                        self.actions.append(ToPeer(channel.target, payload))
                else:
                    self._receiver(channel).arrive(channel, seq, payload, charge)
                    given = True
        if task.work.grants:
            grants, task.work.grants = task.work.grants, []
            for channel, total in grants:
                if channel.source == self.slot:
                    sender = self._sender(channel)
                    sender.granted(channel, total)
                    self.route(sender)
                    given = True
                else:
                    self.actions.append(ToPeer(channel.source, encode_grant(channel, self.incarnation, 0, total)))
        return given

    def _sender(self, channel: ChannelId) -> Task:
        return self._task(channel, self.plan.edges[channel.edge].source if self._known(channel) else -1)

    def _receiver(self, channel: ChannelId) -> Task:
        return self._task(channel, self.plan.edges[channel.edge].target if self._known(channel) else -1)

    def _known(self, channel: ChannelId) -> bool:
        return channel.edge < len(self.plan.edges)

    def _task(self, channel: ChannelId, vertex: int) -> Task:
        task = self.by_vertex.get(vertex)
        if task is None or (channel not in task.gate.channels and channel not in task.outbox.channels):
            raise ProtocolViolation(f"channel {channel} is not in this worker's part of the plan")
        return task

    # What others may ask.

    @property
    def keeps(self) -> Keeps:
        """What is kept for those that take the place of others."""
        history = self.history
        done = (0, 0) if history is None else (len(history.entries), history.size)
        return Keeps(self.keeping.memory, self.keeping.spilled, *done)

    def reports(self, busy: dict[int, int]) -> list[SubtaskReport]:
        """The figures of every subtask; `busy` is microseconds of work by vertex, measured above the waterline."""
        return [self._report(task, busy.get(task.vertex.id, 0)) for task in self.tasks]

    def _report(self, task: Task, busy: int) -> SubtaskReport:
        metrics: dict[str, float] = {}
        if task.head is not None:
            metrics |= task.head.figures()
        for operator in task.chain.operators:
            for ctx in operator.contexts():
                for name, value in (*ctx.metrics.counters.items(), *ctx.metrics.gauges.items()):
                    metrics[f"{ctx.name}.{name}"] = value
        return SubtaskReport(
            vertex=task.vertex.id,
            subtask=self.slot,
            records_in=task.work.records_in,
            records_out=task.records_out(),
            records_sunk=task.records_sunk(),
            watermark=MAX_TIME if task.finished else task.watermark(),
            timed=any(isinstance(op, TimestampsTask) for op in task.chain.operators),
            source=isinstance(task.chain.root, SourceTask),
            busy_micros=busy,
            queued_bytes=task.gate.queued_bytes(),
            unsent_bytes=task.outbox.queued_bytes(),
            state_entries=sum(op.state_entries() for op in task.chain.operators),
            blocked=bool(task.outbox.blocked),
            finished=task.finished,
            metrics=metrics,
            waits_for="" if task.idle is None else task.idle.reason.value,
            inputs=task.gate.input_times(),
        )
