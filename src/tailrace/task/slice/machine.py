"""A slice: subtask *i* of every vertex that has one, for the worker of slot *i*. Neighbours hand batches over in memory.

A slice routes what its tasks send: to a task of its own at once, to another worker as an action. Its driver steps it:
above the waterline in production, the simulator in tests.
"""

from __future__ import annotations

from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import GRANT, ROWS, ChannelId, Frame, encode_grant
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import ProtocolViolation
from tailrace.graph.plan import Plan
from tailrace.protocol.credit import window_of
from tailrace.protocol.deployment import OperatorReport, Progress, SubtaskReport
from tailrace.protocol.message_codec import TaskMessage
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import ToPeer
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.sink import SinkTask
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.operators.stateless import FusedRows
from tailrace.task.operators.timestamps import TimestampsTask
from tailrace.task.slice.nests import WorkerNests
from tailrace.task.subtask.idleness import Idle
from tailrace.task.subtask.machine import Task


class Slice:
    """All tasks of one worker, the most downstream one first."""

    def __init__(self, plan: Plan, slot: int, attempt: int, services: Services, memory: int) -> None:
        self.plan = plan
        self.slot = slot
        self.attempt = attempt
        self.incarnation = services.incarnation
        self.services = services
        window = services.tuning.window or window_of(plan.most_channels, memory)
        self.tasks = [
            Task(plan, vertex, slot, attempt, services, window)
            for vertex in reversed(plan.vertices)
            if slot < vertex.parallelism
        ]
        self.nests = WorkerNests(plan, slot, self.tasks)
        self.by_vertex = {task.vertex.id: task for task in self.tasks}
        heads = {id(task.loop.head.queue): task for task in self.tasks if task.loop.head is not None}
        self._fed = {
            task.vertex.id: heads[id(task.loop.place.tail.queue)]
            for task in self.tasks
            if task.loop.place.tail is not None
        }
        """The head that each tail feeds through a queue that both hold, by the tail's vertex."""
        services.stirred.update((vertex, None) for vertex in self.by_vertex)
        self.actions: list[ToPeer] = []
        self._seed: int | None = None
        """The seed of the shared random generators, if the last step has used them."""
        self.stale_frames = 0
        """Number of frames that were dropped, because they are of an older incarnation or of a lost worker."""

    def open(self) -> None:
        """Opens all user functions, downstream first."""
        with self.services.within_user_code():
            for task in self.tasks:
                task.open()

    def close(self) -> list[BaseException]:
        """Closes all user functions, even if some of them raise. Returns what they raised."""
        return [error for task in self.tasks for error in task.close()]

    @property
    def finished(self) -> bool:
        for task in self.tasks:  # noqa: SIM110 - evaluated before each step: a generator costs more than all tasks
            if not task.finished:
                return False
        return True

    def tails_of(self, head: Task) -> list[Task]:
        """The tails that feed the task of a head."""
        return [self.by_vertex[vertex] for vertex, fed in self._fed.items() if fed is head]

    def peers(self) -> set[int]:
        """The slots of the workers with which this one has channels."""
        return self.plan.peers(self.slot)

    # Events.

    def receive(self, frame: Frame, peer: int) -> None:
        """Takes a frame from another worker. Raises `ProtocolViolation` for a frame that this peer must not send."""
        if frame.incarnation != self.incarnation:
            if frame.incarnation > self.incarnation:
                raise ProtocolViolation(f"a frame of incarnation {frame.incarnation}, this is {self.incarnation}")
            self.stale_frames += 1
            return
        channel = frame.channel
        if frame.kind == GRANT:
            if channel.target != peer:
                raise ProtocolViolation(f"worker {peer} granted for channel {channel}, which it does not read")
            self._sender(channel).grant(channel, frame.number)
            self.route_all()
            return
        if channel.source != peer:
            raise ProtocolViolation(f"worker {peer} sent on channel {channel}, which it does not write")
        self.deliver(frame)

    def deliver(self, frame: Frame) -> None:
        """Delivers an element of a channel to its task, whoever has sent it."""
        channel, element = frame.channel, frame if frame.count or frame.kind == ROWS else frame.marker()
        self._receiver(channel).arrive(channel, frame.seq, element, frame.size if frame.count else 0)

    def trigger(self, cut: CutRequest) -> None:
        """Requests a cut for a checkpoint from every task."""
        for task in self.tasks:
            task.trigger(cut)

    def abort(self, checkpoint: int) -> None:
        """Gives up a checkpoint that will never be complete."""
        for task in self.tasks:
            task.abort(checkpoint)

    def confirm(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete."""
        for task in self.tasks:
            task.confirm(checkpoint)

    def note(self, message: TaskMessage) -> None:
        """Takes note of a message of the coordinator that concerns tasks."""

    def operator_event(self, vertex: int, source: int, payload: bytes) -> None:
        """Passes an event from subtask `source` of a vertex to the subtask here. Raises `ProtocolViolation` if there is
        none."""
        task = self.by_vertex.get(vertex)
        if task is None:
            raise ProtocolViolation(f"an operator event for vertex {vertex}, which is not in this worker")
        task.operator_event(source, payload)

    # Steps.

    def step(self, task: Task, now: int, budget: int) -> Idle | None:
        """Steps one task, and routes what it sent within this slice."""
        idle = self._step(task, now, budget)
        if idle is None and task.vertex.id in self._fed:
            self._fed[task.vertex.id].wake()
        if self.route(task):
            idle = None  # the task was idle, but another one that had its turn before has input from it now
        if self.services.debug:
            task.check()
        return idle

    def _step(self, task: Task, now: int, budget: int) -> Idle | None:
        if self.services.shared is None:
            return task.step(now, budget)
        with self.services.within_user_code():
            idle = task.step(now, budget)
        self._seed = self.services.shared.end_step()
        return idle

    def flush(self) -> bool:
        """Sends what was gathered, when nothing else is to be done. True if anything was sent."""
        flushed = False
        for task in self.tasks:
            if task.outbox.oldest is not None and task.flush():
                flushed = True
                self.route(task)
        return flushed

    def route_all(self) -> None:
        for task in self.tasks:
            self.route(task)

    def route(self, task: Task) -> bool:
        """Routes what a task sent and granted. True if another task of this slice has received something."""
        given = False
        if task.outbox.sends:
            sends, task.outbox.sends = task.outbox.sends, []
            for channel, seq, payload, charge in sends:
                if isinstance(payload, bytes):
                    self._send(channel.target, payload)
                else:
                    self._receiver(channel).arrive(channel, seq, payload, charge)
                    given = True
        if task.work.grants:
            grants, task.work.grants = task.work.grants, []
            for channel, total in grants:
                if channel.source == self.slot:
                    sender = self._sender(channel)
                    sender.grant(channel, total)
                    self.route(sender)
                    given = True
                else:
                    self.actions.append(ToPeer(channel.source, encode_grant(channel, self.incarnation, 0, total)))
        return given

    def _send(self, target: int, data: bytes) -> None:
        self.actions.append(ToPeer(target, data))

    def _sender(self, channel: ChannelId) -> Task:
        return self._task(channel, self.plan.edges[channel.edge].source if self._is_known(channel) else -1)

    def _receiver(self, channel: ChannelId) -> Task:
        return self._task(channel, self.plan.edges[channel.edge].target if self._is_known(channel) else -1)

    def _is_known(self, channel: ChannelId) -> bool:
        return channel.edge < len(self.plan.edges)

    def _task(self, channel: ChannelId, vertex: int) -> Task:
        task = self.by_vertex.get(vertex)
        if task is None or (channel not in task.gate.channels and channel not in task.outbox.channels):
            raise ProtocolViolation(f"channel {channel} is not in this worker's part of the plan")
        return task

    # Figures.

    def progress(self, busy: dict[int, int], elapsed: int, refused: dict[str, int], phases: dict[int, str]) -> Progress:
        """The progress report of the worker. `busy` and `elapsed` are measured above the waterline, in microseconds;
        `refused` are connections, by reason, and `phases` those of checkpoints."""
        return Progress(self.reports(busy), elapsed, refused, phases=phases)

    def reports(self, busy: dict[int, int]) -> list[SubtaskReport]:
        """The reports of all subtasks; `busy` is microseconds of work by vertex."""
        return [self._report(task, busy.get(task.vertex.id, 0)) for task in self.tasks]

    def _report(self, task: Task, busy: int) -> SubtaskReport:
        metrics: dict[str, float] = {}
        for operator in task.chain.operators:
            metrics |= operator.figures()
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
            operators=[one for operator in task.chain.operators for one in _operator_reports(task, operator)],
        )


def _operator_reports(task: Task, operator: OperatorTask) -> list[OperatorReport]:
    """The figures of an operator; of several that run as one function, each has what is known of it."""
    came = task.work.records_in if operator is task.chain.root else operator.taken
    gone = operator.records if isinstance(operator, SinkTask) else operator.given
    gauges = {ctx.name: list(ctx.metrics.gauges) for ctx in operator.contexts()}
    if not isinstance(operator, FusedRows):
        name = operator.node.name
        entries, (encoded, size) = operator.state_entries(), operator.encoded
        size_now = entries * size // encoded if encoded else None
        return [OperatorReport(operator.node.id, came, gone, entries, gauges.get(name, []), size_now)]
    first, last, kept = operator.nodes[0], operator.nodes[-1], operator.keeps_count
    return [
        OperatorReport(
            node.id,
            came if kept or node is first else None,
            gone if kept or node is last else None,
            gauges=gauges.get(node.name, []),
        )
        for node in operator.nodes
    ]
