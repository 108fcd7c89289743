"""Outputs of one subtask. The outbox partitions what operators emit, gathers it into frames, and sends these as credit
allows.

A frame is sealed in four cases: enough records are gathered; the task has been round its inputs and few records came of
that (`Work.go_round`); the oldest of what waits (a record, a watermark, the report that a channel is idle or is not any
more) has waited `MAX_AGE`; or the worker has nothing else to do. There is no flush timer. A watermark waits for the
records gathered before it and takes later ones with it: moving a watermark back is always safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tailrace.elements.batches import Batch, Rows, concat, joinable
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, encode_batch, encode_marker, encoded_size
from tailrace.elements.markers import COUNTED, Barrier, EndOfInput, IdleChannel, Marker, Watermark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import InternalError, short_repr
from tailrace.protocol.credit import Producer
from tailrace.task.channels.copies import copy_of, unpicklable
from tailrace.task.channels.partition import Partitioner
from tailrace.task.channels.spilling import Item
from tailrace.task.contract.cut_state import CutState

FRAME_RECORDS = {"rows": 4096, "columns": 16_384}
FRAME_BYTES = {"rows": 256 << 10, "columns": 512 << 10}
ROUNDS = 8
"""Number of rounds of a task in which a channel must fill a frame to wait for it: frames of fewer records would cost a
busy worker more than they save in time."""
MAX_AGE = 5_000
"""Microseconds that an output may wait to be sent while its worker is busy."""
_SAMPLE_EVERY = 32

Payload = bytes | Batch | Marker
"""Element on a channel: bytes to another worker, a batch or a marker as it is to a task of this one."""


Queued = tuple[int, Payload | Item, int]
"""Output that waits on a channel: (seq, payload, charge). A marker is encoded when it goes; an item goes once more, and
is read."""


@dataclass(eq=False, slots=True)
class OutputCutState(CutState):
    """State of an output channel at a cut that no checkpoint holds."""

    seq: int = 0
    sealed: int = 0
    marks: int = 0
    """Number of markers that were sealed and that give their reader work (`COUNTED`)."""
    record_bytes: float = 0.0
    watermark_due: int = MIN_TIME
    watermark_sent: int = MIN_TIME
    awake_due: bool = False
    """True if the channel is to be reported as not idle any more: by records, or by its watermark once more."""
    idle_due: bool = False
    idle_sent: bool = False
    """True if no records and no watermark were sent since the channel was reported as idle; other markers leave it so."""


class OutputChannel(OutputCutState):
    """One channel out of the task.

    Invariant O1: `queue` holds sealed frames and markers in order; nothing but a barrier that overtakes is sent past them.
    Invariant O2: `seq` is the sequence number of the next record to be sealed.
    """

    __slots__ = ("before", "buffer", "buffered", "flow", "id", "local", "queue")

    def __init__(self, ident: ChannelId, local: bool, window: int, closed: bool = False) -> None:
        super().__init__()
        self.id = ident
        self.local = local
        self.flow = Producer(window, closed)
        self.buffer: list[Batch] = []
        self.buffered = self.before = 0
        """Number of records that are gathered (`buffered`), and how many of them were when the task had last been round
        (`before`)."""
        self.queue: deque[Queued] = deque()
        """Sealed output, in the order in which it goes."""

    @property
    def waits(self) -> bool:
        """True if the channel has something to seal."""
        due = self.watermark_due > self.watermark_sent or self.awake_due or self.idle_due
        return due or bool(self.buffer)

    @property
    def position(self) -> int:
        """Number of the first record that is sealed and has not gone."""
        return self.queue[0][0] if self.queue else self.seq

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self.buffer, self.buffered, self.before = [], 0, 0  # of a task that starts again
        self.queue.clear()


class OutputEdge:
    """Edge out of one operator of the task, `who`."""

    def __init__(self, who: str, partitioner: Partitioner, channels: list[OutputChannel]) -> None:
        self.who = who
        self.partitioner = partitioner
        self.channels = channels


Outgoing = tuple[ChannelId, int, Payload, int]
"""Action to carry out: (channel, seq, payload, charge)."""


@dataclass(eq=False)
class OutboxCutState(CutState):
    """State of an outbox at a cut that no checkpoint holds."""

    records: int = 0
    idle_waits: bool = False
    """True if a channel is to be reported as idle with the next flush."""


class Outbox(OutboxCutState):
    """All outputs of one subtask. `sends` are the actions to carry out, in order."""

    def __init__(self, outputs: list[OutputEdge], incarnation: int, attempt: int, subtask: int, copy: bool) -> None:
        super().__init__()
        self.outputs = outputs
        self.channels = {channel.id: channel for output in outputs for channel in output.channels}
        self.incarnation = incarnation
        self.attempt = attempt
        self.subtask = subtask
        self.copy = copy
        self.sends: list[Outgoing] = []
        self.blocked = 0
        """Number of channels with sealed output that waits for credit."""
        self.barriers_sent: list[tuple[ChannelId, int]] = []
        """Barriers that have left since they were last looked at."""
        self.oldest: int | None = None
        """Time at which the oldest of what waits to be sent came up (int64 microseconds). Invariant O3: where it is None,
        nothing waits to be sealed."""
        self.now = 0

    def set_cut_state(self, state: dict[str, Any]) -> None:
        super().set_cut_state(state)
        self.oldest, self.blocked = None, 0  # of a task that starts again
        self.sends.clear()

    # What operators do.

    def emit(self, output: OutputEdge, batch: Batch) -> None:
        """Takes a batch of an operator for one edge."""
        if not len(batch):
            return
        self.records += len(batch)
        for target, part in output.partitioner.split(batch):
            channel = output.channels[target]
            if channel.buffer and not joinable(channel.buffer[-1], part):
                self._seal(output, channel)
            if part.split != -1:
                part = part.slice(0, len(part))
                part.split = -1
            channel.buffer.append(part)
            channel.buffered += len(part)
            size = channel.buffered * channel.record_bytes
            if channel.buffered >= FRAME_RECORDS[part.form] or size >= FRAME_BYTES[part.form]:
                self._seal(output, channel)
            elif self.oldest is None:
                self.oldest = self.now

    def watermark(self, output: OutputEdge, time: int) -> None:
        """Takes a watermark of an operator. The maximum goes with the end of input and is not sent itself."""
        if time == MAX_TIME:
            return
        for channel in output.channels:
            if time > channel.watermark_due:
                channel.watermark_due = time
                channel.idle_due = False
                if self.oldest is None:
                    self.oldest = self.now

    def idle(self, output: OutputEdge) -> None:
        """Reports that an operator has nothing to send for now. To report it again is to report it once."""
        self.still_idle(output)
        self.flush()

    def still_idle(self, output: OutputEdge) -> None:
        """Reports that an operator is idle again behind what it has sent by itself."""
        for channel in output.channels:
            waits = bool(channel.buffer) or channel.watermark_due > channel.watermark_sent
            channel.awake_due = False
            channel.idle_due = waits or not channel.idle_sent
            self.idle_waits = self.idle_waits or channel.idle_due
        if self.idle_waits and self.oldest is None:
            self.oldest = self.now

    def not_idle(self) -> None:
        """Cancels reports of idleness that are still to be sent: the task has read records that its input brought, and is
        not idle behind them."""
        self.idle_waits = False
        for channel in self.channels.values():
            channel.idle_due = False

    def awake(self, output: OutputEdge) -> None:
        """Reports that an operator is not idle any more, at the watermark where it was."""
        for channel in output.channels:
            channel.idle_due = False
            channel.awake_due = channel.idle_sent
            if channel.awake_due and self.oldest is None:
                self.oldest = self.now

    def barrier(self, cut: CutRequest) -> None:
        """Sends the barrier of a cut: what was emitted so far goes before the barrier, whatever comes goes behind it."""
        self.mark(Barrier(cut))

    def end(self) -> None:
        """Sends the end of input, when the task's input has ended and everything was emitted."""
        self.mark(EndOfInput())

    @property
    def empty(self) -> bool:
        """True if everything that was emitted has gone."""
        return not self.blocked and not any(channel.buffer for channel in self.channels.values())

    def mark(self, marker: Marker) -> None:
        """Sends a marker on every channel, behind what was emitted so far."""
        self.flush()
        for channel in self.channels.values():
            self._mark(channel, marker)
            self._drain(channel)

    def flush_if_old(self) -> bool:
        """Seals what waits if the oldest of it has waited long enough. True if there was anything."""
        return self.oldest is not None and self.now - self.oldest >= MAX_AGE and self.flush()

    def been_round(self) -> None:
        """Seals what waits, except on channels that fill fast. Called when the task has been round its inputs."""
        left = False
        for output in self.outputs:
            for channel in output.channels:
                gained = (channel.buffered - channel.before) * ROUNDS
                if gained and gained >= FRAME_RECORDS[channel.buffer[0].form]:
                    channel.before, left = channel.buffered, True
                elif channel.waits:
                    self._seal(output, channel)
        if not left:
            self.oldest = None

    def flush(self) -> bool:
        """Seals everything that waits. True if there was anything."""
        if self.oldest is None:
            return False
        self.oldest = None
        flushed = False
        for output in self.outputs:
            for channel in output.channels:
                if channel.waits:
                    flushed = True
                    self._seal(output, channel)
        return flushed

    # Messages of the consumer.

    def grant(self, ident: ChannelId, total: int) -> None:
        """Takes the new grant of a channel's consumer, and sends what it allows."""
        channel = self.channels[ident]
        channel.flow.grant(total)
        self._drain(channel)

    def overtaken_by(self, channel: OutputChannel, checkpoint: int) -> list[tuple[int, int, Payload | Item, int]]:
        """Output that the barrier of a checkpoint waits behind on a channel, in order: (seq, records, payload, charge).
        Empty if the barrier has gone. The barrier stays behind earlier barriers, and so behind what is before those."""
        start, passed = self._overtake(channel, checkpoint)
        if not passed:
            return []
        following = [*(seq for seq, _, _ in passed[1:]), channel.queue[start + len(passed)][0]]
        return [
            (seq, after - seq, payload, charge) for (seq, payload, charge), after in zip(passed, following, strict=True)
        ]

    def overtake(self, channel: OutputChannel, checkpoint: int) -> None:
        """Moves the barrier of a checkpoint past what waits. It goes at once unless an earlier barrier waits, too."""
        start, passed = self._overtake(channel, checkpoint)
        if passed:
            stop = start + len(passed)
            queue = list(channel.queue)
            barrier = (passed[0][0], *queue[stop][1:])
            channel.queue = deque([*queue[:start], barrier, *passed, *queue[stop + 1 :]])
            self._drain(channel)

    def _overtake(self, channel: OutputChannel, checkpoint: int) -> tuple[int, list[Queued]]:
        queue, start = list(channel.queue), 0
        for i, (_, payload, _) in enumerate(queue):
            if isinstance(payload, Barrier):
                if payload.checkpoint == checkpoint:
                    return start, queue[start:i]
                start = i + 1
        return 0, []

    # Sealing and sending.

    def _seal(self, output: OutputEdge, channel: OutputChannel) -> None:
        if channel.buffer:
            batch = concat(channel.buffer)
            channel.buffer = []
            channel.buffered = channel.before = 0
            for piece in self._pieces(channel, batch):
                self._enqueue(output, channel, piece)
        if channel.watermark_due > channel.watermark_sent or channel.awake_due:
            channel.watermark_sent = channel.watermark_due
            channel.awake_due = channel.idle_sent = False
            self._mark(channel, Watermark(channel.watermark_due))
        if channel.idle_due:
            channel.idle_due = False
            self._mark(channel, IdleChannel())
            channel.idle_sent = True
        self._drain(channel)

    def _pieces(self, channel: OutputChannel, batch: Batch) -> Sequence[Batch]:
        """Batch cut so that each frame takes at most half the window, as far as records can be parted; in columns evenly."""
        if not channel.record_bytes:
            channel.record_bytes = max(1.0, self._size(encoded_size(batch)) / max(1, len(batch)))
        most = max(1, int(min(FRAME_BYTES[batch.form], channel.flow.window // 2) / channel.record_bytes))
        if len(batch) <= most + most // 4:
            return [batch]
        if batch.form == "columns":  # they cost by the batch, and a small rest as much as a whole one
            most = ceil(len(batch) / ceil(len(batch) / most))
        return [batch.slice(at, min(at + most, len(batch))) for at in range(0, len(batch), most)]

    def _enqueue(self, output: OutputEdge, channel: OutputChannel, batch: Batch) -> None:
        payload: Payload
        channel.sealed += 1
        channel.awake_due = channel.idle_sent = False
        if channel.local:
            if channel.sealed % _SAMPLE_EVERY == 1:
                channel.record_bytes = max(1.0, self._size(encoded_size(batch)) / len(batch))
            payload, charge = self._copy_of(batch), max(1, int(channel.record_bytes * len(batch)))
        else:
            payload = data = self._encode(output, channel, batch)
            charge = len(data)
            channel.record_bytes = self._size(charge) / len(batch)
        self._queue(channel, channel.seq, payload, charge)
        channel.seq += len(batch)

    def _size(self, found: int) -> int:
        """Number of bytes by which frames are cut, where `found` were measured."""
        return found

    def _copy_of(self, batch: Batch) -> Batch:
        if not self.copy or not isinstance(batch, Rows):
            return batch
        return copy_of(batch)

    def _encode(self, output: OutputEdge, channel: OutputChannel, batch: Batch) -> bytes:
        try:
            digest = self._digest(output, channel, batch)
            return encode_batch(channel.id, self.incarnation, self.attempt, channel.seq, batch, digest)
        except Exception as error:
            values = batch.to_rows().values
            raise unpicklable(values, error, output.who, self.subtask, "go to another worker") from error

    def _digest(self, output: OutputEdge, channel: OutputChannel, batch: Batch) -> int | None:
        """Hash over all values of the channel up to the last record of `batch`; None where nobody compares them."""
        return None

    def _mark(self, channel: OutputChannel, marker: Marker) -> None:
        channel.marks += isinstance(marker, COUNTED)
        self._queue(channel, channel.seq, marker, 0)

    def _queue(self, channel: OutputChannel, seq: int, payload: Payload | Item, charge: int) -> None:
        if not channel.queue:
            self.blocked += 1
        channel.queue.append((seq, payload, charge))

    def _drain(self, channel: OutputChannel) -> None:
        """Sends from the head of the queue while credit allows."""
        queue = channel.queue
        if not queue:
            return
        while queue:
            seq, payload, charge = queue[0]
            if charge and not channel.flow.may_send(charge):
                return
            queue.popleft()
            channel.flow.send(charge)
            if isinstance(payload, Barrier):
                self.barriers_sent.append((channel.id, payload.checkpoint))
            if not channel.local:
                payload = self._outgoing(channel, seq, payload)
            assert not isinstance(payload, Item)
            self.sends.append((channel.id, seq, payload, charge))
        self.blocked -= 1

    def _outgoing(self, channel: OutputChannel, seq: int, payload: Payload | Item) -> bytes:
        """Bytes of an element that goes to another worker."""
        if isinstance(payload, Marker):
            return encode_marker(channel.id, self.incarnation, self.attempt, seq, payload)
        assert isinstance(payload, bytes)
        return payload

    def frame(self, item: Item) -> bytes:
        """Frame that is read when it goes. Only an outbox that keeps what it has sent has any."""
        raise InternalError(f"O1: {item} waits on a channel of an outbox that keeps nothing")

    def queued_bytes(self) -> int:
        """Number of bytes that are sealed and wait for credit."""
        return sum(charge for channel in self.channels.values() for _, _, charge in channel.queue)

    def check(self) -> None:
        """Raises `InternalError` where an invariant of this file does not hold."""
        waiting = sum(1 for channel in self.channels.values() if channel.queue)
        if waiting != self.blocked:
            raise InternalError(f"O1: {waiting} channels wait for credit, {self.blocked} are counted")
        for channel in self.channels.values():
            if self.oldest is None and channel.waits:
                raise InternalError(f"O3: channel {channel.id} has something to send, and nobody would look")
            if channel.queue and channel.queue[0][2] and channel.flow.may_send(channel.queue[0][2]):
                raise InternalError(f"O1: channel {channel.id} waits though it may send {short_repr(channel.queue[0])}")
