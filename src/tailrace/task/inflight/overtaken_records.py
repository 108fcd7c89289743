"""Recording of what unaligned cuts of one task overtake: the records that were in its channels, and belong to the
checkpoint.

The task cuts without waiting for its inputs. Of each channel into it that may be overtaken, it records everything that it
had not read at its cut and that came before the sender's barrier. Of each channel out of it, it records everything that
its barrier went past. Recording copies nothing: a log (`task.channels.channel_logs`) holds the very frames and batches.
They go into the worker's one file beside the state of the operators, with the first checkpoint that has them
(`task.channels.written_records`). Both halves bear the name of the channel, and are restored at its reader.

Markers of event time are recorded in their places. Each reader's half begins with the event time at which the channel
stood: so what is restored is late exactly where it would have been.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId, Element, Frame, encode_marker
from tailrace.elements.markers import Barrier, EndOfInput, IdleChannel, Marker, Rest, Watermark, WaveMark
from tailrace.elements.timestamps import MIN_TIME
from tailrace.errors import InternalError
from tailrace.graph.operators import MARKERS, Broadcast
from tailrace.graph.plan import Plan, PlanEdge, Vertex
from tailrace.state.format import ChannelLog, LogKind
from tailrace.task.channels.channel_logs import Log, Recording
from tailrace.task.channels.copies import copy_of
from tailrace.task.channels.gate import Gate
from tailrace.task.channels.inputs import InputChannel, count_of
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.channels.outbox import Outbox, Payload
from tailrace.task.channels.spilling import NOWHERE, Item, MemorySpill, Shelf
from tailrace.task.channels.written_records import WrittenRecords

OF_WAVES = (WaveMark, Rest)
"""Markers that are in no log: the waves of a loop begin anew in each attempt, and so do the reports of its tasks on their
rest."""
Logged = list[tuple[ChannelLog, Recording]]
"""Entries of a file for channels, still without pieces, each with the recording that has the records."""


def may_be_overtaken(plan: Plan, edge: PlanEdge) -> bool:
    """True if barriers may overtake records of an edge. They may not on a broadcast edge, whose copies must all be in the
    same state; nor on the edge by which a head sends its tail what it does, the cut among it (Q3); nor on edges of a loop
    in rounds, or on the way into or out of one, where the end of a round would come before what belongs to it."""
    nests = (plan.nest_of(edge.source), plan.nest_of(edge.target))
    in_rounds = any(nest is not None and nest.rounds is not None for nest in nests)
    return not in_rounds and edge.tag != MARKERS and not isinstance(edge.partitioning, Broadcast)


def leads_to_one_that_waits(plan: Plan, vertex: int) -> bool:
    """True if records of this vertex come, at once or by way of other vertices, to one that waits for barriers that
    overtake nothing. The way back to the head of a loop does not count: feedback is in no channel."""
    waits = {edge.target for edge in plan.edges if not may_be_overtaken(plan, edge)}
    reached, behind = set[int](), [vertex]
    while behind:
        found = {edge.target for edge in plan.edges_out_of(behind.pop())} - reached
        reached |= found
        behind += found
    return not reached.isdisjoint(waits)


class InFlightRecording:
    """Recordings of one task's channels.

    Invariant X1: what a checkpoint's logs hold of one channel, the reader's half and then the sender's, is what was sent
    on it before the sender's cut and not read before the reader's, each record once, in order.
    Invariant X2: a log of a reader's half is open until the sender's barrier, or the end of the channel, has arrived; one
    of a sender's half until its barrier has left.
    """

    def __init__(
        self,
        plan: Plan,
        vertex: Vertex,
        subtask: int,
        gate: Gate,
        outbox: Outbox,
        copy: bool,
        written: WrittenRecords | None = None,
    ) -> None:
        """`copy`: True if functions may change records that they are given, so that a log needs its own. `written`: what
        the worker's files have of its channels."""
        self._plan, self._vertex, self._copy = plan, vertex, copy
        self._gate, self._outbox = gate, outbox
        edges = {edge.id: edge for edge in plan.edges if may_be_overtaken(plan, edge)}
        self.overtakable = dict.fromkeys(ident for ident in gate.channels if ident.edge in edges)
        """Channels into the task that may be overtaken."""
        self.follows = leads_to_one_that_waits(plan, vertex.id)
        """True if the task makes no unaligned cut before all tasks that send to it have made theirs: see
        `Alignment.is_due`."""
        self._out = [channel for channel in outbox.channels.values() if channel.id.edge in edges]
        who = plan.graph.node(vertex.nodes[0]).name
        self._shelf = Shelf(who, subtask, MemorySpill, 1 << 62)
        self._who = who
        self._written = WrittenRecords() if written is None else written
        self._received: dict[ChannelId, Recording] = {}
        """Recordings of channels into the task, with the channels that bring back what was in flight at a restored cut."""
        self._sent: dict[ChannelId, Recording] = {}
        """Recordings of channels out of the task."""
        self.recording = 0
        """Number of logs of channels into the task that are open."""
        self.found = 0
        """Number of bytes that the last unaligned cut has found in flight to the task, without what had come back."""
        self._in_line: dict[int, dict[ChannelId, None]] = {}
        """Barriers that wait behind records of channels out of the task, and may overtake them: the channels of each
        checkpoint."""

    # The cut.

    def cut_input(self, number: int, missing: Iterable[ChannelId], whole: bool = False) -> Logged:
        """Begins the logs of a cut at which the task has not read the barriers of `missing` channels. The event time of
        each channel is recorded also if nothing is in flight here: something may be at the senders. `whole`: what earlier
        files have is written again."""
        behind = set(missing)
        self.found = 0
        logged: Logged = []
        something = False
        for channel in self._gate.channels.values():
            if channel.ended:
                continue
            recording, log = self._begin(number, channel, whole)
            if channel.id in behind:
                self.found += _unread_bytes(channel, number) or 0
                something |= self._unread(recording, log, channel)
            else:
                recording.complete_logs(number)
            something |= channel.watermark > MIN_TIME or channel.idle
            logged.append((self._log_of(channel.id, LogKind.RECEIVED), recording))
        for age, channels in enumerate(reversed(self._gate.front), start=1):
            for channel in channels:
                recording, log = self._begin(number, channel, whole)
                self._unread(recording, log, channel)
                something = True
                logged.append((self._returning(channel, age), recording))
        self._recount()
        if something:
            return logged
        for _, recording in logged:
            recording.discard(number)
        return []

    def _begin(self, number: int, channel: InputChannel, whole: bool) -> tuple[Recording, Log]:
        recording = self._received.get(channel.id)
        if recording is None:
            recording = self._received[channel.id] = Recording(self._who, self._shelf, self._written)
        log = recording.begin(number, whole)
        if channel.returning is not None and not channel.returning.timely:
            return recording, log
        if channel.ended:
            self._write(recording, log, self._marker(EndOfInput()))
            return recording, log
        self._write(recording, log, self._marker(Watermark(channel.watermark)))
        if channel.idle:
            self._write(recording, log, self._marker(IdleChannel()))
        return recording, log

    def _unread(self, recording: Recording, log: Log, channel: InputChannel) -> bool:
        """Adds what the task has not read of a channel to the log, up to the barrier. True if there is something, or may
        be."""
        before = len(log.entries)
        at = channel.position
        if recording.pending() == [log.checkpoint]:  # else an older log is not encoded yet, and refers to what it has
            self._written.forget(channel.id, at)
        if channel.reading is not None:
            batch = channel.reading.slice(channel.taken, len(channel.reading))
            self._note(batch, log)
            self._write(recording, log, self._batch(batch, channel.charge), (channel.id, at))
            at += len(batch)
        for element, charge in channel.queue:
            if isinstance(element, Barrier):
                if element.checkpoint != log.checkpoint:
                    continue
                recording.complete_logs(log.checkpoint)
                return len(log.entries) > before or bool(log.shape)
            self._note(element, log)
            if not isinstance(element, OF_WAVES):
                self._write(recording, log, self._item(element, charge), (channel.id, at))
            at += count_of(element)
            if isinstance(element, EndOfInput):
                recording.end()
        if channel.returning is not None:
            recording.complete_logs(log.checkpoint)
        elif not log.complete:
            return True
        return len(log.entries) > before or bool(log.shape)

    def _note(self, what: Element | Parked | int, *logs: Log) -> None:
        """Takes note of an element, or of a frame of a number of records, that goes into logs."""

    def unread(self, number: int) -> int | None:
        """Number of bytes that a cut would find in flight to the task. None if a barrier has not arrived: then it is
        unknown. What has come back does not count: a job that recovers would make no checkpoint before it has read that."""
        size = 0
        for channel in self._gate.channels.values():
            if channel.ended or channel.blocked:
                continue
            found = _unread_bytes(channel, number)
            if found is None:
                return None
            size += found
        return size

    def cut_output(self, number: int, most: int, whole: bool = False) -> Logged:
        """Begins logs of the channels on which the barrier of the cut waits, and may overtake. On all other channels it
        has gone out. `most`: how many bytes it may overtake in all (-1: any number); on channels beyond that it stays in
        line. `whole`: as in `cut_input`."""
        logged: Logged = []
        for channel in self._out:
            waiting = self._outbox.overtaken_by(channel, number)
            size = sum(charge for _, _, _, charge in waiting)
            if not waiting or 0 <= most < size:
                continue
            most -= size if most >= 0 else 0
            recording = self._sent.get(channel.id)
            if recording is None:
                recording = self._sent[channel.id] = Recording(self._who, self._shelf, self._written)
            recording.begin(number, whole)
            self._in_line.setdefault(number, {})[channel.id] = None
            logged.append((self._log_of(channel.id, LogKind.SENT), recording))
        return logged

    def overtake_output(self, number: int) -> None:
        """Moves the barriers of a checkpoint that wait behind records past these."""
        for ident in self._in_line.pop(number, ()):
            channel, recording = self._outbox.channels[ident], self._sent[ident]
            log, at = recording.log(number), channel.position
            if not channel.local:  # else its reader, which is behind, forgets what is not in flight any more
                self._written.forget(ident, at)
            for seq, count, payload, charge in self._outbox.overtaken_by(channel, number):
                self._note(count if isinstance(payload, bytes | Item) else payload, log)
                if not isinstance(payload, OF_WAVES):
                    self._write(recording, log, self._item_of(count, payload, charge), (ident, seq))
            self._outbox.overtake(channel, number)
            recording.complete_logs(number)

    @property
    def in_line(self) -> list[int]:
        """Checkpoints of which barriers wait that may overtake, the oldest first."""
        return list(self._in_line)

    # What happens between the cut and the last barrier.

    def arrive(self, ident: ChannelId, element: Element, charge: int) -> None:
        """Adds what came on a channel to the logs that are open. Called only while some are."""
        recording = self._received.get(ident)
        if recording is None or not recording.open:
            return
        if isinstance(element, Barrier):
            self._barrier_arrived(recording, element.checkpoint)
            return
        self._note(element, *recording.open)
        if isinstance(element, OF_WAVES):
            return
        item = self._item(element, charge)
        item.at = ident, self._gate.channels[ident].expected - item.count
        recording.add(item)
        self._shelf.release(item)
        if isinstance(element, EndOfInput):
            open_ = len(recording.open)
            recording.end()
            self.recording += len(recording.open) - open_

    def _barrier_arrived(self, recording: Recording, number: int) -> None:
        """Completes the log of this checkpoint, whose barrier has arrived. A log of an older checkpoint, whose barrier
        the sender has left out, never will be complete: it was given up. A log that was not begun yet is begun with what
        is unread by then."""
        begun = [log.checkpoint for log in recording.open]
        for open_ in begun:
            if open_ == number:
                recording.complete_logs(number)
            elif open_ < number:
                recording.discard(open_)
        self.recording += len(recording.open) - len(begun)

    def complete_sent(self) -> None:
        """Completes the logs of barriers that have left: what they waited behind has gone before them."""
        for ident, number in self._outbox.barriers_sent:
            waiting = self._in_line.get(number, {})
            if ident in waiting:
                del waiting[ident]
                self._sent[ident].complete_logs(number)
            if not waiting:
                self._in_line.pop(number, None)
        self._outbox.barriers_sent.clear()

    def abort(self, number: int) -> None:
        """Lets go of everything of a checkpoint that will never be complete."""
        self._in_line.pop(number, None)
        for recording in (*self._received.values(), *self._sent.values()):
            recording.discard(number)
        self._recount()

    def close(self) -> None:
        """Lets go of every log."""
        for recording in (*self._received.values(), *self._sent.values()):
            recording.close()
        self._in_line.clear()
        self.recording = 0

    # What is written before a checkpoint finds it (`task.inflight.continuous_recording`).

    def recording_of_its_own(self) -> Recording:
        """Recording that no cut knows of, for what waits in any of the task's channels."""
        return Recording(self._who, self._shelf, self._written)

    def has_more_than(self, seen: dict[ChannelId, int]) -> bool:
        """True if a record waits in a channel behind the number that `seen` has for it; a channel without a number counts
        from its first record."""
        channels = self._gate.channels
        return any(channels[at].queue and channels[at].expected > seen.get(at, 0) for at in self.overtakable) or any(
            channel.queue and channel.seq > seen.get(channel.id, 0) for channel in self._out
        )

    def gather(self, recording: Recording, log: Log, seen: dict[ChannelId, int]) -> None:
        """Writes what waits behind the records of `seen` into a log, markers aside, and sets `seen` to how far it has
        come."""
        for ident in self.overtakable:
            channel = self._gate.channels[ident]
            at, fresh = channel.expected, list[tuple[Element | Parked, int, int]]()
            for element, charge in reversed(channel.queue):
                at -= count_of(element)
                if at < seen.get(ident, 0):
                    break
                fresh.append((element, charge, at))
            for element, charge, at in reversed(fresh):
                if not isinstance(element, Marker):
                    self._write(recording, log, self._item(element, charge), (ident, at))
            seen[ident] = channel.expected
        for out in self._out:
            end, sealed = out.seq, list[tuple[int, int, Payload | Item, int]]()
            for seq, payload, charge in reversed(out.queue):
                if seq < seen.get(out.id, 0):
                    break
                if not isinstance(payload, Marker):
                    sealed.append((seq, end - seq, payload, charge))
                    end = seq
            for seq, count, payload, charge in reversed(sealed):
                self._write(recording, log, self._item_of(count, payload, charge), (out.id, seq))
            seen[out.id] = out.seq

    def was_read(self, item: Item) -> bool:
        """True if the records of an item were all read, on a channel into the task, or have all gone, on a channel out of
        it."""
        assert item.at is not None
        ident, first = item.at
        channel = self._gate.channels.get(ident) or self._outbox.channels[ident]
        return first + item.count <= channel.position

    # Inside.

    def _recount(self) -> None:
        self.recording = sum(len(recording.open) for recording in self._received.values())

    def _write(self, recording: Recording, log: Log, item: Item, at: tuple[ChannelId, int] | None = None) -> None:
        item.at = at
        recording.write(log, item)
        self._shelf.release(item)

    def _item(self, element: Element | Parked, charge: int) -> Item:
        if isinstance(element, Parked):
            if element.element is None:
                return self._shelf.refer(element.count, element.size)
            element = element.element
        if isinstance(element, Frame):
            return self._shelf.refer(element.count, element.size, data=element.data)
        if isinstance(element, Watermark | IdleChannel | EndOfInput):
            return self._marker(element)
        if isinstance(element, Marker):
            raise InternalError(f"X1: {element} on a channel that may be overtaken", ())
        return self._batch(element, charge)

    def _batch(self, batch: Batch, charge: int) -> Item:
        return self._shelf.refer(len(batch), charge, batch=copy_of(batch) if self._copy else batch)

    def _item_of(self, count: int, payload: Payload | Item, charge: int) -> Item:
        if isinstance(payload, Item):  # it goes once more, to a worker that has taken the place of a lost one
            payload = self._outbox.frame(payload)
        return (
            self._shelf.refer(count, charge, data=payload)
            if isinstance(payload, bytes)
            else self._item(payload, charge)
        )

    def _marker(self, marker: Marker) -> Item:
        data = encode_marker(NOWHERE, 0, 0, 0, marker)
        return self._shelf.refer(0, len(data), data=data)

    def _log_of(self, ident: ChannelId, kind: LogKind) -> ChannelLog:
        edge = self._plan.edges[ident.edge]
        return ChannelLog(self._plan.name_of(ident), self._plan.vertices[edge.target].parallelism, kind=kind)

    def _returning(self, channel: InputChannel, age: int) -> ChannelLog:
        assert channel.returning is not None
        name = channel.returning.name
        return ChannelLog(name, self._vertex.parallelism, kind=LogKind.RETURNED, age=age, turn=channel.id.source)

    def check(self) -> None:
        """Raises `InternalError` where an invariant does not hold."""
        for recording in (*self._received.values(), *self._sent.values()):
            recording.check()
        open_ = sum(len(recording.open) for recording in self._received.values())
        if open_ != self.recording:
            raise InternalError(f"X2: {open_} logs are open, {self.recording} are counted", ())
        for number, waiting in self._in_line.items():
            gone = [ident for ident in waiting if not self._outbox.overtaken_by(self._outbox.channels[ident], number)]
            if gone:
                raise InternalError(f"X2: the barrier of checkpoint {number} waits on {gone} for nothing", ())


def _unread_bytes(channel: InputChannel, number: int) -> int | None:
    """Number of bytes that are unread up to the barrier of a checkpoint; None if neither the barrier has arrived nor the
    end of the channel."""
    size = 0 if channel.reading is None else channel.charge
    for element, charge in channel.queue:
        if isinstance(element, EndOfInput) or (isinstance(element, Barrier) and element.checkpoint == number):
            return size
        size += element.size if isinstance(element, Frame | Parked) else charge
    return size if channel.returning is not None else None
