"""The outbox of a task whose worker, or a receiver, may be replaced: it records the sizes of records, and keeps what goes
to other workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId, decode
from tailrace.elements.markers import Barrier, IdleChannel, Marker
from tailrace.elements.timestamps import MIN_TIME
from tailrace.elements.valuedigests import ValueDigest
from tailrace.protocol.credit import Producer
from tailrace.task.channels.outbox import Outbox, OutboxCutState, OutputChannel, OutputEdge, Payload, Queued
from tailrace.task.channels.spilling import Item
from tailrace.task.journal.compared_values import ComparedValues, ReceivedValues
from tailrace.task.journal.digests import Digest
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.sent_log import Keeping, SentLog
from tailrace.task.subtask.machine import Task


@dataclass(eq=False)
class ReplayableOutboxCutState(OutboxCutState):
    """State of a recorded outbox at a cut that no checkpoint holds."""

    values: dict[ChannelId, ValueDigest] = field(default_factory=dict)
    """Digests of all values that were sealed on channels to other workers, since their attempt began."""


class ReplayableOutbox(Outbox, ReplayableOutboxCutState):
    """An outbox with a log of each channel to another worker: what went behind the barrier of the oldest checkpoint that
    the receiver may be restored from."""

    def __init__(
        self,
        outputs: list[OutputEdge],
        incarnation: int,
        attempt: int,
        subtask: int,
        copy: bool,
        sizes: Facts,
        keeping: Keeping,
        compared: ComparedValues | None = None,
        times_in_facts: bool = False,
    ) -> None:
        """`sizes`: facts that hold how many bytes records are. Equal records may have different sizes, since what several
        of them share is pickled once; and where frames end depends on sizes. `compared`: None where no values are
        compared. `times_in_facts`: whether readers have event time in their histories."""
        super().__init__(outputs, incarnation, attempt, subtask, copy)
        self.sizes, self.keeping, self.compared = sizes, keeping, compared
        self._times_in_facts = times_in_facts
        self.received = ReceivedValues()
        """The values that other workers have from the lost worker whose place this one takes."""
        others = [ident for ident, channel in self.channels.items() if not channel.local]
        self.logs = {ident: SentLog(keeping, times_in_facts) for ident in others}
        self.kept_since = 0
        """Newest checkpoint that is known to be complete: what is kept of each channel is behind its barrier."""

    def _size(self, found: int) -> int:
        return self.sizes.as_kept(found)

    def _digest(self, output: OutputEdge, channel: OutputChannel, batch: Batch) -> int | None:
        compared, ident, first = self.compared, channel.id, channel.seq
        if compared is None or not compared.covers(batch):
            return None
        digest = self.values.get(ident)
        if digest is None:
            digest = self.values[ident] = ValueDigest()
        before = self.received.within(ident, first, len(batch))
        if before:
            compared.add(digest, channel, batch.slice(0, before), first, output.who)
            self.received.compare(ident, digest)
            self.received.forget_sealed(ident)
            batch, first = batch.slice(before, len(batch)), first + before
        if len(batch):
            self.received.note_sealed(ident, first, digest)
            compared.add(digest, channel, batch, first, output.who)
        return digest.value

    def expect(self, ident: ChannelId, end: int, digest: int) -> None:
        """Takes the hash that another worker has of all values of a channel up to the record in front of number `end`. It
        is compared when that record is sealed; at once where a hot standby has sealed it."""
        channel = self.channels[ident]
        found = self.received.expect(ident, end, digest, channel.seq)
        if found is None or self.compared is None:
            return
        first, made = found
        seq, data = self.logs[ident].frame_with(first)
        output = next(output for output in self.outputs if channel in output.channels)
        self.compared.add(made, channel, decode(data).batch().slice(first - seq, end - seq), first, output.who)
        self.received.compare(ident, made)

    def _outgoing(self, channel: OutputChannel, seq: int, payload: Payload | Item) -> bytes:
        assert not isinstance(payload, Batch)
        return super()._outgoing(channel, seq, self.logs[channel.id].add(seq, channel.position - seq, payload))

    def frame(self, item: Item) -> bytes:
        return self.keeping.frame(item)

    def flush_to(self, slots: Container[int]) -> None:
        """Seals what waits on the channels to some slots."""
        if self.oldest is None:
            return
        for output in self.outputs:
            for channel in output.channels:
                if channel.waits and channel.id.target in slots:
                    self._seal(output, channel)
        if not any(channel.waits for channel in self.channels.values()):
            self.oldest = None

    def complete(self, checkpoint: int) -> None:
        """Lets go of what went before the barrier of a complete checkpoint: no worker restores an older one any more."""
        if checkpoint > self.kept_since:
            self.kept_since = checkpoint
            for log in self.logs.values():
                log.complete(checkpoint)

    def receiver_replaced(self, ident: ChannelId, came: int = 0) -> None:
        """Sends what is kept of a channel once more, to a new receiver that has only the first `came` records and markers
        of it. Checkpoints that are under way were given up: their barriers do not go once more."""
        channel = self.channels[ident]
        again = self.logs[ident].go_again(came)
        channel.flow = Producer(channel.flow.window)
        self._requeue(channel, [*again, *_without_barriers(channel)])

    def without_barriers(self, ident: ChannelId) -> None:
        """Drops the barriers that wait on a channel. What waits there was made again, and the checkpoints of the barriers
        were given up."""
        channel = self.channels[ident]
        self._requeue(channel, _without_barriers(channel))

    def _mark(self, channel: OutputChannel, marker: Marker) -> None:
        # A replay has read already that its channels are idle, or not: `announce_time` reports it at the end.
        if not (self._times_in_facts and self.sizes.again and isinstance(marker, IdleChannel)):
            super()._mark(channel, marker)

    def announce_time(self, ident: ChannelId) -> None:
        """Sends the event time of a channel and whether it is idle, behind all that was emitted: its reader has come so far
        by its history, and does not know which of the markers of event time on the channel it has read."""
        channel = self.channels[ident]
        if self._times_in_facts and (channel.watermark_due > MIN_TIME or channel.idle_sent or channel.idle_due):
            channel.idle_due = channel.idle_due or (channel.idle_sent and not channel.awake_due)
            channel.awake_due = True
            self._seal(next(output for output in self.outputs if channel in output.channels), channel)

    def _requeue(self, channel: OutputChannel, waits: list[Queued]) -> None:
        if self._times_in_facts:
            waits = [one for one in waits if not isinstance(one[1], IdleChannel)]
        self.blocked += bool(waits) - bool(channel.queue)
        channel.queue = deque(waits)
        self._drain(channel)

    def goes_again(self, ident: ChannelId, overtaken: list[Queued]) -> None:
        """Queues what the barrier of the restored checkpoint had overtaken: it is the first that goes behind that
        barrier."""
        channel = self.channels[ident]
        for seq, payload, charge in overtaken:
            self._queue(channel, seq, payload, charge)
        self._drain(channel)

    def made_again(self, ident: ChannelId, count: int) -> Digest:
        """Digest of the first `count` records and markers that are kept of a channel; of fewer if there are fewer."""
        return self.logs[ident].digest(count)

    def kept_items(self) -> list[Item]:
        """Frames that are kept, and frames that go once more."""
        again = [one for channel in self.channels.values() for _, one, _ in channel.queue if isinstance(one, Item)]
        return again + [item for log in self.logs.values() for item in log.items()]


def outbox_of(task: Task) -> ReplayableOutbox:
    """Outbox of a task of a replayable slice."""
    assert isinstance(task.outbox, ReplayableOutbox)
    return task.outbox


def _without_barriers(channel: OutputChannel) -> list[Queued]:
    return [one for one in channel.queue if not isinstance(one[1], Barrier)]
