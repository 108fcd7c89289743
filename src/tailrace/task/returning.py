"""What was in flight at the cut of the restored checkpoint, placed at its reader: in front of anything new.

Each channel of then is a channel of the gate again, for as long as it holds something: its records are dealt out by the
partitioner of today, before any later checkpoint can record them. At another parallelism a subtask gets the channels of all
old subtasks whose records may be its own now.

Event time. Where the subtask is the one that had these channels, their markers of event time are read in their places: so
what was late is late. Elsewhere nobody knows of all who bring it event time how far they were, and what was in flight to one
old subtask may be ahead of what was in flight to another. So event time stands still until all of this is read; and then
today's channels say theirs anew (`Task.restored`).

Generations. Where the job had gone on from a checkpoint, and was cut before it had read all that was in flight there, what
was left of that comes first (`ChannelLog.age`): so records of one key stay in order, however often a job goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.elements.frames import ChannelId, ChannelName, Element, decode
from tailrace.elements.keygroups import group_range
from tailrace.elements.markers import IdleChannel, Marker, Watermark
from tailrace.errors import CheckpointCorrupt, IncompatibleState, ProtocolViolation
from tailrace.graph.operators import Broadcast, Custom, Forward, Hash, Partitioning
from tailrace.graph.plan import Plan
from tailrace.state.format import LogKind
from tailrace.state.parts import LogOf
from tailrace.task.gate import InputChannel, Returning
from tailrace.task.logs import LogFrame
from tailrace.task.machine import Task
from tailrace.task.redistribution import Redistribution

_NO_EDGE = -1
"""Stands for the edge in the ids of channels that are none of today's plan. Their second number tells them apart."""
IN_ORDER = (LogKind.RETURNED, LogKind.RECEIVED, LogKind.SENT)
"""Of the logs of one channel: what comes first."""
_Key = tuple[int, ChannelName, int]
"""(age, name, turn) of one old channel."""


class Returned:
    """What one operator of one subtask gets of what was in flight. `position`: its place in the task's chain."""

    def __init__(self, plan: Plan, task: Task, position: int) -> None:
        self._plan, self._task, self._position = plan, task, position
        operator = task.chain.operators[position]
        self._ctx, self._name = operator.ctx, operator.node.name
        self._node = operator.node
        self._frames: dict[_Key, dict[LogKind, list[LogFrame]]] = {}
        self._begun: set[_Key] = set()
        """The logs of what had come back then, of which a piece was seen."""
        self.as_they_were = position == 0
        """Whether these are the very channels that this subtask had, and all of them."""
        self._ways: dict[tuple[str, str | None, int, int], tuple[Partitioning, Redistribution]] = {}

    def add(self, part: LogOf) -> None:
        """A piece of a log, whoever was to read it then. Those of each log come in order."""
        channel = part.channel
        way, redistribution = self._way(channel)
        self.as_they_were = self.as_they_were and part.parallelism == self._ctx.parallelism and self._timely(part)
        frame = LogFrame(0, part.count, bytes(part.data))
        if not part.count or isinstance(way, Broadcast):
            mine = [frame] if self._concerns(way, channel.target_subtask, part.parallelism) else []
        else:
            mine = redistribution.mine(channel.target_subtask, part.parallelism, frame)
        if mine:
            halves = self._frames.setdefault((part.age, channel, part.turn), {})
            halves.setdefault(part.kind, []).extend(mine)

    def _timely(self, part: LogOf) -> bool:
        """Whether event time had not stood still in the old subtask while it read this. There the log begins with none."""
        log = part.age, part.channel, part.turn
        if part.kind is not LogKind.RETURNED or log in self._begun:
            return True
        self._begun.add(log)
        return not part.count

    def _way(self, channel: ChannelName) -> tuple[Partitioning, Redistribution]:
        """How records of an old channel are partitioned now."""
        key = (channel.source, channel.tag, channel.port, channel.number)
        if key not in self._ways:
            way = self._partitioning(channel)
            ctx = self._ctx
            dealing = Redistribution(
                [way], self._name, ctx.subtask, ctx.parallelism, ctx.services, f"operator {self._name!r}"
            )
            self._ways[key] = way, dealing
        return self._ways[key]

    def _partitioning(self, channel: ChannelName) -> Partitioning:
        if self._position:  # it is chained now, to the subtask of the same number
            ports = {edge.port for edge in self._node.inputs}
            if channel.port in ports:
                return Forward()
        graph = self._plan.graph
        edges = self._plan.edges_into(self._task.vertex.id) if not self._position else []
        edges = [edge for edge in edges if edge.port == channel.port]
        exact = [e for e in edges if (graph.node(e.source_node).uid, e.tag) == (channel.source, channel.tag)]
        if not edges:
            raise IncompatibleState(
                f"the checkpoint holds records in flight to input {channel.port} of {self._name!r} (channel {channel}), "
                f"which it does not have any more; start the dataflow as it was, or from another checkpoint"
            )
        if exact:
            return exact[min(channel.number, len(exact) - 1)].partitioning
        ways = [edge.partitioning for edge in edges]
        return next((way for way in ways if isinstance(way, Hash)), ways[0])

    def _concerns(self, way: Partitioning, old: int, parallelism: int) -> bool:
        """Whether records that were in flight to this old subtask may be ours now."""
        mine, now = self._ctx.subtask, self._ctx.parallelism
        if isinstance(way, Broadcast) or (isinstance(way, Custom) and parallelism != now):
            return True
        if isinstance(way, Hash):
            groups = self._ctx.services.max_parallelism
            then, here = group_range(old, parallelism, groups), group_range(mine, now, groups)
            return then.start < here.stop and here.start < then.stop
        return old % now == mine

    def front(self, timely: bool, number: Callable[[], int]) -> dict[int, list[InputChannel]]:
        """The channels, by age. `timely`: with their markers of event time. `number` tells channels apart."""
        found: dict[int, list[InputChannel]] = {}
        told = {name.target_subtask for (_, name, _), halves in self._frames.items() if LogKind.RECEIVED in halves}
        for key in sorted(self._frames, key=_order):
            age, name, _ = key
            halves = self._frames[key]
            frames = [frame for kind in IN_ORDER for frame in halves.get(kind, ())]
            channels = found.setdefault(age, [])
            channels.append(self._channel(name, number(), frames, timely))
            if timely and not age and name.target_subtask not in told:
                # The old reader has said nothing of its channels: none had brought event time. So nobody's counts here.
                told.add(name.target_subtask)
                channels.append(self._channel(name, number(), [], timely))
        return found

    def _channel(self, name: ChannelName, number: int, frames: list[LogFrame], timely: bool) -> InputChannel:
        ctx = self._ctx
        channel = InputChannel(ChannelId(_NO_EDGE, number, ctx.subtask), name.port, 0)
        channel.returning = Returning(name._replace(target_subtask=ctx.subtask), self._position, timely)
        leading = True
        for frame in frames:
            element = _decoded(frame, name)
            if not isinstance(element, Marker):
                leading = False
            elif not timely:
                continue
            elif leading:
                _apply(channel, element)
                continue
            channel.queue.append((element, 0))
        return channel


def _order(key: _Key) -> tuple[int, tuple[object, ...], int]:
    age, name, turn = key
    return age, tuple("" if part is None else part for part in name), turn


def _apply(channel: InputChannel, marker: Marker) -> None:
    """Where the channel stood in event time at the cut."""
    if isinstance(marker, Watermark):
        channel.watermark = max(channel.watermark, marker.time)
        channel.idle = False
    elif isinstance(marker, IdleChannel):
        channel.idle = True
    else:
        channel.ended = True


def _decoded(frame: LogFrame, name: ChannelName) -> Element:
    try:
        decoded = decode(frame.data)
        return decoded if decoded.count else decoded.marker()
    except ProtocolViolation as error:
        raise CheckpointCorrupt(f"what was in flight on {name} cannot be read: {error}") from error
