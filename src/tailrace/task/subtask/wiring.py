"""The connections of a subtask to the rest of its dataflow: its input channels, its outputs, and
the recording of records in flight."""

from __future__ import annotations

from tailrace.elements.frame_codec import ChannelId
from tailrace.graph.plan import Plan, Vertex
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.channels.outbox import Outbox, OutputChannel, OutputEdge
from tailrace.task.channels.partition import make_partitioner
from tailrace.task.channels.services import Services
from tailrace.task.inflight.overtaken_records import InFlightRecording


def make_recording(
    plan: Plan, vertex: Vertex, subtask: int, services: Services, gate: Gate, outbox: Outbox
) -> InFlightRecording | None:
    """The recording of records that unaligned cuts overtake, if the job makes such cuts."""
    if not services.overtaking:
        return None
    make = services.ends.inflight or InFlightRecording
    return make(plan, vertex, subtask, gate, outbox, services.copy_records, services.written)


def begin_closed(plan: Plan, vertex: Vertex, services: Services) -> bool:
    """True if channels into a vertex begin closed: its subtasks may have something to read that was in flight (F3)."""
    return services.inputs_closed and any(plan.graph.node(ident).uid in services.in_flight for ident in vertex.nodes)


def make_gate(plan: Plan, vertex: Vertex, subtask: int, services: Services, window: int) -> Gate:
    """The channels into a subtask; `window` is their size in bytes."""
    closed = begin_closed(plan, vertex, services)
    channels = [
        InputChannel(ChannelId(edge.id, source, subtask), edge.port, window, closed)
        for edge in plan.edges_into(vertex.id)
        for source in plan.sources(edge, subtask)
    ]
    return services.ends.gate(channels)


def make_outbox(
    plan: Plan, vertex: Vertex, subtask: int, attempt: int, services: Services, window: int
) -> tuple[Outbox, dict[int, OutputEdge]]:
    """The outputs of a subtask, and the output of each edge of the plan."""
    by_edge: dict[int, OutputEdge] = {}
    for edge in plan.edges_out_of(vertex.id):
        target_vertex = plan.vertices[edge.target]
        targets = plan.targets(edge, subtask)
        who, giver = plan.graph.node(target_vertex.nodes[0]).name, plan.graph.node(edge.source_node).name
        closed = begin_closed(plan, target_vertex, services)
        channels = [OutputChannel(ChannelId(edge.id, subtask, t), t == subtask, window, closed) for t in targets]
        chance = services.max_parallelism, services.random
        partitioner = make_partitioner(edge.partitioning, who, subtask, len(channels), *chance)
        by_edge[edge.id] = OutputEdge(giver, partitioner, channels)
    outbox = services.ends.outbox(list(by_edge.values()), services.incarnation, attempt, subtask, services.copy_records)
    return outbox, by_edge
