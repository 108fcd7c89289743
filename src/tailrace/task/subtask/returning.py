"""Records in flight at the cut of the restored checkpoint, placed at their reader in front of anything new.

Each channel of the checkpoint is a channel of the gate again, for as long as it holds something: its records are dealt
out by the present partitioner, before any later checkpoint can record them. At another parallelism a subtask gets the
channels of all old subtasks whose records may be its own now.

Event time. If the subtask is the one that had these channels, their markers of event time are read in their places, so
records that were late are late again. Another subtask does not know the event time of all its old inputs, and what was in
flight to one old subtask may be ahead of what was in flight to another. So event time stands still until all of this is
read; and then the present channels announce theirs anew (`Task.resume`).

Generations. If the job had gone on from a checkpoint, and was cut before it had read all that was in flight there, what
was left of that comes first (`ChannelLog.age`): so records of one key stay in order, however often a job goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailrace.api.restore.compatibility import goes_to, may_be_dropped
from tailrace.elements.frame_codec import ChannelId, ChannelName, Element, Frame, decode
from tailrace.elements.keygroups import group_range
from tailrace.elements.markers import IdleChannel, Marker, Watermark
from tailrace.errors import CheckpointCorrupt, IncompatibleState, ProtocolViolation
from tailrace.graph.operators import Broadcast, Custom, Forward, Hash, Partitioning, key_at
from tailrace.graph.plan import Plan
from tailrace.state.format import LogKind
from tailrace.state.parts import LogOf
from tailrace.task.channels.channel_logs import LogFrame, positions_of, restored_frame
from tailrace.task.channels.inputs import InputChannel, Returning, count_of
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.channels.written_records import Indexes, Span
from tailrace.task.inflight.redistribution import Dealt, Redistribution
from tailrace.task.operators.columns.conversion import Today
from tailrace.task.subtask.machine import Task

IN_ORDER = (LogKind.RETURNED, LogKind.RECEIVED, LogKind.SENT)
"""The kinds of logs of one channel, in the order in which they are read."""
_Key = tuple[int, ChannelName, int]
"""(age, name, turn) of one old channel."""
_Way = tuple[Partitioning, Redistribution, bool]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records that come back, and their place in the file of the restored checkpoint."""

    count: int
    frame: LogFrame | None
    """None: the records stay in the file until they are nearly due (`task.channels.lazy_records`)."""
    span: Span | None = None
    positions: Indexes | None = None

    def element(self, name: ChannelName) -> Element | Parked:
        """The records on their channel. Raises `CheckpointCorrupt`."""
        if self.frame is not None:
            return element_of(self.frame, name)
        assert self.span is not None
        return Parked(self.span, self.positions, self.count)


class Returned:
    """The part of one operator of one subtask in the records that were in flight. `position`: its place in the task's
    chain. `own`: whether the checkpoint is one of this run, so that the next one may refer to its files."""

    def __init__(self, plan: Plan, task: Task, position: int, own: bool = False) -> None:
        self._plan, self._task, self._position, self._own = plan, task, position, own
        operator = task.chain.operators[position]
        self._ctx, self._name = operator.ctx, operator.node.name
        self._node, self._entry = operator.node, operator.entry
        self._frames: dict[_Key, dict[LogKind, list[Piece]]] = {}
        self._held: dict[_Key, int] = {}
        """Bytes of each old channel that are in memory."""
        self._begun: set[_Key] = set()
        """Logs of records that had come back before the checkpoint, of which a piece was seen."""
        self.as_they_were = position == 0
        """True if these are the very channels that this subtask had, and all of them."""
        self._ways: dict[tuple[str, str | None, int, int], _Way] = {}

    def add(self, part: LogOf) -> None:
        """Takes a piece of a log, whichever subtask was to read it then. The pieces of a log come in order."""
        port = self._goes_to(part.channel)
        if port is None and (not part.count or self._may_be_dropped()):
            self.as_they_were = False  # event time of an input that is not there any more: no record is lost
            return
        channel = part.channel if port is None else part.channel._replace(port=port)
        self.as_they_were = self.as_they_were and port == part.channel.port
        way, redistribution, in_groups = self._way(channel)
        self.as_they_were = self.as_they_were and part.parallelism == self._ctx.parallelism and self._timely(part)
        frame = restored_frame(part, self._name, self._ctx.subtask)
        if not part.count or isinstance(way, Broadcast):
            dealt = Dealt(frame if self._concerns(way, channel.target_subtask, part.parallelism) else None)
        else:
            dealt = redistribution.deal(channel.target_subtask, part.parallelism, frame)
            if not in_groups and dealt.frame is not None and dealt.frame.count == frame.count:
                dealt = Dealt(frame)  # a later checkpoint can refer to it
        if dealt.frame is not None:
            halves = self._frames.setdefault((part.age, channel, part.turn), {})
            span, positions = (None, None) if not self._own else self._place(part, frame, dealt)
            held = self._held.get((part.age, channel, part.turn), 0) + len(dealt.frame.data)
            if span is not None and held > self._task.gate.at_once:
                halves.setdefault(part.kind, []).append(Piece(dealt.frame.count, None, span, positions))
                return
            self._held[part.age, channel, part.turn] = held
            halves.setdefault(part.kind, []).append(Piece(dealt.frame.count, dealt.frame, span, positions))

    def _goes_to(self, channel: ChannelName) -> int | None:
        """The port to which the records of an old channel go now; None if there is none."""
        return goes_to(channel.source, channel.tag, channel.port, self._entry, self._plan.graph.node)

    def _may_be_dropped(self) -> bool:
        return may_be_dropped(self._ctx.uid, self._ctx.services.allow_dropped_state)

    def _place(self, part: LogOf, frame: LogFrame, dealt: Dealt) -> tuple[Span | None, Indexes | None]:
        """The place of records that come back, if a later checkpoint can refer to them there."""
        if part.place is None or not part.count or dealt.frame is None:
            return None, None
        if dealt.frame is not frame and dealt.chosen is None:
            return None, None
        where = (part.place.file, part.place.offset, part.place.length, part.place.checksum)
        positions = positions_of(part)
        groups, stop = part.groups, part.start + part.count if positions is None else int(positions[-1]) + 1
        if dealt.frame is not frame:
            assert dealt.chosen is not None
            positions = (np.arange(part.start, stop) if positions is None else positions)[dealt.chosen]
            groups = self._my_groups(part.groups)
        size = max(1, part.place.length * dealt.frame.count // max(1, stop))
        return Span(*where, part.start, stop, dealt.frame.count, groups, size), positions

    def _my_groups(self, among: tuple[int, int] | None) -> tuple[int, int]:
        ctx = self._ctx
        mine = group_range(ctx.subtask, ctx.parallelism, ctx.services.max_parallelism)
        return (mine.start, mine.stop) if among is None else (max(mine.start, among[0]), min(mine.stop, among[1]))

    def _timely(self, part: LogOf) -> bool:
        """True if event time had not stood still in the old subtask while it read this log. Where it stood still, the log
        begins without a marker of event time."""
        log = part.age, part.channel, part.turn
        if part.kind is not LogKind.RETURNED or log in self._begun:
            return True
        self._begun.add(log)
        return not part.count

    def _way(self, channel: ChannelName) -> _Way:
        """The present partitioning of the records of an old channel, and whether their frames are in key groups if it is
        by key.

        Records from a loop's head that has them by key already are only forwarded; but a record belongs where the state
        of its key is."""
        key = (channel.source, channel.tag, channel.port, channel.number)
        if key not in self._ways:
            way, in_groups = self._partitioning(channel), True
            by_key = key_at(self._node.operator, channel.port)
            if isinstance(way, Forward) and by_key is not None:
                way, in_groups = Hash(by_key), False
            ctx = self._ctx
            receiver = self._task.chain.operators[self._position]
            today = Today.at(self._plan.graph.node, receiver, channel.port)
            name = f"operator {self._name!r}"
            dealing = Redistribution(
                [way],
                self._name,
                ctx.subtask,
                ctx.parallelism,
                ctx.services,
                name,
                lambda batch: today.bring(receiver, batch),
            )
            self._ways[key] = way, dealing, in_groups
        return self._ways[key]

    def _partitioning(self, channel: ChannelName) -> Partitioning:
        graph = self._plan.graph
        if self._goes_to(channel) is None:
            raise IncompatibleState(
                f"the checkpoint holds records in flight to input {channel.port} of {self._name!r} (channel {channel}), "
                f"which it does not have any more; start the dataflow as it was, or from another checkpoint"
            )
        if self._position:  # the receiver is chained now, to the subtask of this number
            return Forward()
        edges = [edge for edge in self._plan.edges_into(self._task.vertex.id) if edge.port == channel.port]
        exact = [e for e in edges if (graph.node(e.source_node).uid, e.tag) == (channel.source, channel.tag)]
        if exact:
            return exact[min(channel.number, len(exact) - 1)].partitioning
        ways = [edge.partitioning for edge in edges]
        return next((way for way in ways if isinstance(way, Hash)), ways[0])

    def _concerns(self, way: Partitioning, old: int, parallelism: int) -> bool:
        """True if records that were in flight to this old subtask may belong to this one now."""
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
        named = {name.target_subtask for (_, name, _), halves in self._frames.items() if LogKind.RECEIVED in halves}
        for key in sorted(self._frames, key=_order):
            age, name, _ = key
            halves = self._frames[key]
            pieces = [piece for kind in IN_ORDER for piece in halves.get(kind, ())]
            channels = found.setdefault(age, [])
            channels.append(self._channel(name, number(), pieces, timely))
            if timely and not age and name.target_subtask not in named:
                # The old reader has logged nothing of its channels: none had brought event time. So the event time of the
                # present channels does not count here.
                named.add(name.target_subtask)
                channels.append(self._channel(name, number(), [], timely))
        return found

    def _channel(self, name: ChannelName, number: int, pieces: list[Piece], timely: bool) -> InputChannel:
        channel = self._input_of(name, number, timely)
        leading = True
        for piece in pieces:
            element = piece.element(name)
            if not isinstance(element, Marker):
                leading = False
            elif not timely:
                continue
            elif leading:
                _apply(channel, element)
                continue
            self._add(channel, piece, element)
        return channel

    def _input_of(self, name: ChannelName, number: int, timely: bool) -> InputChannel:
        # No edge of the present plan has such a number, and no other task of the worker.
        subtask = self._ctx.subtask
        channel = InputChannel(ChannelId(-1 - self._task.vertex.id, number, subtask), name.port, 0)
        channel.returning = Returning(name._replace(target_subtask=subtask), self._position, timely)
        return channel

    def _add(self, channel: InputChannel, piece: Piece, element: Element | Parked) -> None:
        if piece.span is not None:
            written = self._ctx.services.written
            written.files.add(piece.span.file)
            written.wrote(channel.id, channel.expected, piece.span, piece.positions)
        channel.expected += count_of(element)
        channel.queue.append((element, 0))


def _order(key: _Key) -> tuple[int, tuple[object, ...], int]:
    age, name, turn = key
    return age, tuple("" if part is None else part for part in name), turn


def _apply(channel: InputChannel, marker: Marker) -> None:
    """Sets the event time that the channel had at the cut."""
    if isinstance(marker, Watermark):
        channel.watermark = max(channel.watermark, marker.time)
        channel.idle = False
    elif isinstance(marker, IdleChannel):
        channel.idle = True
    else:
        channel.ended = True


def element_of(frame: LogFrame, name: ChannelName) -> Frame | Marker:
    """The content of a piece of a log. Raises `CheckpointCorrupt`."""
    try:
        decoded = decode(frame.data)
        return decoded if decoded.count else decoded.marker()
    except ProtocolViolation as error:
        raise CheckpointCorrupt(f"what was in flight on {name} cannot be read: {error}") from error
