"""The contents of one worker's channels at the cut of the restored checkpoint, put back into its replacement while the
other workers go on (`task.failover.replay`).

Nothing is dealt out, and only the channels of this worker count. Records that its tasks had not read are put back into
their channels, in front of the records that the senders send once more, from their barriers on. Records that its own
barriers had overtaken are the first that it sends behind them: their receivers have had them, or will get them. Records
that other workers' barriers had overtaken were sent behind these barriers and are kept by their senders, so this half of
a log is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId, ChannelName, Element, Frame, encode_batch, readdress
from tailrace.elements.markers import IdleChannel, Marker
from tailrace.graph.plan import Plan
from tailrace.state.format import LogKind
from tailrace.state.parts import LogOf, ShapeOf
from tailrace.task.channels.channel_logs import LogFrame, restored_frame
from tailrace.task.channels.inputs import InputChannel, Returning, count_of
from tailrace.task.channels.outbox import Outbox, OutputChannel, Queued
from tailrace.task.journal.facts import meets_in_channels
from tailrace.task.journal.replayable_gate import gate_of
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.journal.shapes import A_MARKER, in_shape
from tailrace.task.journal.task_state import Came
from tailrace.task.subtask.machine import Task
from tailrace.task.subtask.returning import Returned, element_of

if TYPE_CHECKING:
    from tailrace.task.failover.replayable_slice import ReplayableSlice

_Log = tuple[LogKind, ChannelName, int, int]
"""(kind, channel, age, turn) of a log."""


class AsItWas:
    """The channel contents of a lost worker at the restored cut. They are gathered part by part, and put back when the
    history gives the positions of each task's channels.

    Invariant Y8: each channel has again what it had at the cut, in the same frames, with the same markers: its numbers go
    on with the first record that its sender has kept, or that its reader has not got.
    """

    def __init__(self, plan: Plan, tasks: list[Task], places: Mapping[str, tuple[Task, int]]) -> None:
        """`places`: the operators that receive, by uid, each with its place in the chain of its task."""
        self._plan = plan
        self._slot = tasks[0].id.subtask
        self._places = places
        self._frames: dict[_Log, list[LogFrame]] = {}
        self._shapes: dict[_Log, list[int]] = {}
        self._returned: dict[str, ReturnedAsItWas] = {}

    def part(self, part: LogOf | ShapeOf) -> None:
        """Takes a piece of a log of one of the worker's channels, or the shape that the log had on its channel. The
        pieces of a log come in order."""
        channel = part.channel
        mine = channel.source_subtask if part.kind is LogKind.SENT else channel.target_subtask
        if mine != self._slot:
            return
        if isinstance(part, ShapeOf):
            self._shapes[part.kind, channel, part.age, part.turn] = part.shape
        elif part.kind is LogKind.RETURNED:
            self._of(channel.target).add(part)
        else:
            frames = self._frames.setdefault((part.kind, channel, part.age, part.turn), [])
            frames.append(restored_frame(part, channel.target, self._slot))

    # Putting it back.

    def put_back(self, task: Task, came: Came) -> None:
        """Puts back the records that a task had received and not read. `came`: its channels that brought back records
        from an earlier checkpoint."""
        unread = {ident: self._elements(LogKind.RECEIVED, ident) for ident in task.gate.channels}
        front = list[list[InputChannel]]()
        for age, channels in zip(range(len(came), 0, -1), came, strict=True):
            front.append([])
            for turn, number, returning, state in channels:
                front[-1].append(self._came_back(age, turn, number, returning))
                front[-1][-1].set_cut_state(state)
        gate_of(task).put_back(unread, front)

    def send(self, slice: ReplayableSlice) -> None:
        """Sends the records that barriers had overtaken, behind these barriers, once every task has its own records."""
        for task in slice.tasks:
            for ident, channel in task.outbox.channels.items():
                overtaken = self._elements(LogKind.SENT, ident)
                if overtaken:
                    outbox_of(task).goes_again(ident, _last_queued(task.outbox, channel, overtaken))
            slice.route(task)

    def _elements(self, kind: LogKind, ident: ChannelId) -> list[Element]:
        log = kind, self._plan.name_of(ident), 0, 0
        pieces, shape = self._frames.get(log, []), self._shapes.get(log, [])
        found = in_shape(shape, [element_of(piece, log[1]) for piece in pieces], f"channel {log[1]}")
        if not meets_in_channels(self._plan):
            return found
        return [one for one in found if not isinstance(one, IdleChannel)]  # that is in the history of the reader

    def _came_back(self, age: int, turn: int, number: int, returning: Returning) -> InputChannel:
        """A channel that brings back records in flight at an earlier checkpoint, as far as they were unread."""
        shape = self._shapes.get((LogKind.RETURNED, returning.name, age, turn), [])
        channel = self._of(returning.name.target).channel(age, turn, returning, shape)
        channel.number = number
        return channel

    def _of(self, uid: str) -> ReturnedAsItWas:
        if uid not in self._returned:
            self._returned[uid] = ReturnedAsItWas(self._plan, *self._places[uid], own=True)
        return self._returned[uid]


class ReturnedAsItWas(Returned):
    """Records that had come back to an operator of a lost worker from an earlier checkpoint, as far as they were unread."""

    def channel(self, age: int, turn: int, returning: Returning, shape: list[int]) -> InputChannel:
        """A channel that had brought back records to this subtask before. Its event time, and the markers that give it
        first, are known elsewhere. `shape`: see `task.journal.shapes`."""
        name = returning.name
        channel = self._input_of(name, turn, returning.timely)
        pieces = self._frames.get((age, name, turn), {}).get(LogKind.RETURNED, ())
        elements = [(piece, piece.element(name)) for piece in pieces]
        known = sum(isinstance(element, Marker) for _, element in elements) - shape.count(A_MARKER)
        for piece, element in elements[known:]:
            self._add(channel, piece, element)
        return channel


def _last_queued(outbox: Outbox, channel: OutputChannel, elements: list[Element]) -> list[Queued]:
    """The last elements of a channel so far, in the form in which they wait there."""
    seq, found = channel.seq - sum(map(count_of, elements)), list[Queued]()
    for element in elements:
        found.append((seq, *_payload(outbox, channel, seq, element)))
        seq += count_of(element)
    return found


def _payload(outbox: Outbox, channel: OutputChannel, seq: int, element: Element) -> tuple[bytes | Batch | Marker, int]:
    """An element in the form in which a channel carries it, and the bytes that it is charged with."""
    if isinstance(element, Marker):
        return element, 0
    if channel.local:
        batch = element.batch() if isinstance(element, Frame) else element
        return batch, max(1, int(channel.record_bytes * len(batch)))
    place = channel.id, outbox.incarnation, outbox.attempt, seq
    data = readdress(element, *place) if isinstance(element, Frame) else encode_batch(*place, element)
    return data, len(data)
