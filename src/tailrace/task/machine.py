"""One subtask as a deterministic machine: `arrive` and `granted` only store, `step` does one bounded piece of work.

The order of the pieces is fixed here: what is sealed and waits for credit comes first (nothing else happens until it
went), then event time, then processing-time timers, then input. The clock is an argument of `step`, and so is the
budget, in records.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tailrace.elements.frames import ChannelId
from tailrace.elements.markers import Watermark
from tailrace.elements.timestamps import MAX_TIME
from tailrace.errors import InternalError
from tailrace.graph.plan import Plan, Vertex
from tailrace.task.chain import Chain, build_chain, check_unchanged
from tailrace.task.copying import fingerprint
from tailrace.task.gate import Gate, InputChannel
from tailrace.task.idle import Idle, Reason
from tailrace.task.operators.endpoints import SinkTask
from tailrace.task.outbox import Outbox, Output, OutputChannel
from tailrace.task.partition import make_partitioner
from tailrace.task.services import Services

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
        self.gate = _make_gate(plan, vertex, subtask, window)
        self.outbox, by_edge = _make_outbox(plan, vertex, subtask, attempt, services, window)
        self.chain: Chain = build_chain(plan, vertex, subtask, attempt, services, self.outbox, by_edge)
        self.records_in = 0
        self.last_count = 0
        """Records of the last step, for the driver that derives the budget."""
        self.finished = False
        self.grants: list[tuple[ChannelId, int]] = []
        """Grants that are worth saying, to be carried out after each step."""
        self._advancing = False
        """Whether event time has work left in the chain."""
        self._said_end = False
        self._story: deque[str] = deque(maxlen=_STORY)

    def open(self) -> None:
        """Opens the user's functions."""
        self.chain.open()

    def close(self) -> list[BaseException]:
        """Closes the user's functions; returns what they raised."""
        return self.chain.close()

    # Events.

    def arrive(self, ident: ChannelId, seq: int, element: Any, charge: int) -> None:
        """Something came on a channel."""
        self.gate.arrive(ident, seq, element, charge)

    def granted(self, ident: ChannelId, total: int) -> None:
        """The consumer of one of our channels allows more."""
        self.outbox.granted(ident, total)

    def flush(self) -> bool:
        """The worker has nothing else to do: what was gathered goes. True when there was anything."""
        return not self.finished and self.outbox.flush()

    # One step.

    def step(self, now: int, budget: int) -> Idle | None:
        """One bounded piece of work of about `budget` records at time `now` (int64 microseconds). None when something
        was done, else why not. What user code raises passes through as `UserCodeError`."""
        if self.finished:
            return Idle(Reason.FINISHED)
        self.services.now = self.outbox.now = now
        if self.outbox.blocked:
            return Idle(Reason.NO_CREDIT)
        self.last_count = 0
        if self._advancing:
            self._advance(budget)
            return None
        idle = self._timers_or_input(now, budget)
        if idle is None:
            self.outbox.flush_if_old()
        return idle

    def _timers_or_input(self, now: int, budget: int) -> Idle | None:
        due = self.chain.next_processing()
        if due is not None and due <= now and self.chain.fire_processing(now, budget):
            self._advance(budget)
            self.chain.pass_on_idleness(self.outbox)
            return None
        source = self.chain.source
        if source is not None and not source.ended:
            return self._read(source, now, budget, due)
        if self.gate.has_input:
            self._take(budget)
            return None
        if source is not None or self.gate.ended:
            return self._end(budget, due)
        return Idle(Reason.NO_INPUT, due)

    def _read(self, source: Any, now: int, budget: int, due: int | None) -> Idle | None:
        if not source.ready(now):
            wake = source.wake_at()
            return Idle(Reason.NO_INPUT, wake if due is None else min(wake, due))
        self.last_count = source.read(budget, now)
        self.records_in += self.last_count
        ended = self.chain.splits_ended()
        self._advance(budget)
        if ended:
            self.chain.pass_on_idleness(self.outbox)
        return None

    def _take(self, budget: int) -> None:
        taken = self.gate.take(budget)
        if taken.marker is not None:
            self._mark(taken.channel, taken.marker)
        else:
            count = self.last_count = len(taken.batch)
            self.records_in += count
            if self.services.debug:
                before = fingerprint(taken.batch)
                self.chain.root.process(taken.batch, taken.channel.port)
                check_unchanged(taken.batch, before, self.chain.root.node.name, self.id.subtask)
            else:
                self.chain.root.process(taken.batch, taken.channel.port)
        if taken.grant is not None:
            self.grants.append((taken.channel.id, taken.grant))
        if self.chain.generators or taken.marker is not None:
            self._advance(budget)

    def _mark(self, channel: InputChannel, marker: Any) -> None:
        self._story.append(f"{channel.id} {marker}")
        self.gate.mark(channel, marker)
        if not isinstance(marker, Watermark) and self.gate.all_idle:
            self.chain.idle(self.outbox)
        if self.gate.watermark != MAX_TIME:
            self.chain.watermark(self.gate.watermark)

    def _advance(self, budget: int) -> None:
        self._advancing = not self.chain.advance(self.outbox, budget)

    def _end(self, budget: int, due: int | None) -> Idle | None:
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
        return None

    # What others may ask.

    def prepared(self) -> list[tuple[int, bytes]]:
        """What the task's sinks want published once the job has succeeded: (node id, prepared)."""
        sinks = [op for op in self.chain.operators if isinstance(op, SinkTask)]
        return [(sink.node.id, one) for sink in sinks for one in sink.prepared]

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
            for arrived, reached in zip(self.chain.arrived, self.chain.reached, strict=True):
                if reached > arrived and reached != MAX_TIME and not self.chain.generators:
                    raise InternalError(f"C1: event time {reached} was reached where only {arrived} has come")
        except InternalError as error:
            raise InternalError(f"{self.id}: {error.args[0]}", self._story) from error


def _make_gate(plan: Plan, vertex: Vertex, subtask: int, window: int) -> Gate:
    channels = [
        InputChannel(ChannelId(edge.id, source, subtask), edge.port, window)
        for edge in plan.edges_into(vertex.id)
        for source in plan.sources(edge, subtask)
    ]
    return Gate(channels)


def _make_outbox(
    plan: Plan, vertex: Vertex, subtask: int, attempt: int, services: Services, window: int
) -> tuple[Outbox, dict[int, Output]]:
    by_edge: dict[int, Output] = {}
    for edge in plan.edges_out_of(vertex.id):
        target_vertex = plan.vertices[edge.target]
        targets = plan.targets(edge, subtask)
        who, giver = plan.graph.node(target_vertex.nodes[0]).name, plan.graph.node(edge.source_node).name
        channels = [OutputChannel(ChannelId(edge.id, subtask, t), t == subtask, window) for t in targets]
        partitioner = make_partitioner(edge.partitioning, who, subtask, len(channels), services)
        by_edge[edge.id] = Output(giver, partitioner, channels)
    outbox = Outbox(list(by_edge.values()), services.incarnation, attempt, subtask, services.copy_records)
    return outbox, by_edge
