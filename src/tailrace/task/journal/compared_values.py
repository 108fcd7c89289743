"""The hashes over the values that a worker sends to other workers, by which a replacement compares what it makes with what
they have received."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.valuedigests import ValueDigest, ValueWriter
from tailrace.task.channels.outbox import OutputChannel

ROOM, TIMES = 1 << 20, 16
"""Bytes that the values of a frame may take to be hashed: `ROOM`, and `TIMES` as many as in the frame. Where many records
share one large object, they take much more than that: it is in the frame once."""


class ComparedValues:
    """The comparison of the values that the tasks of a slice send. It knows what they have not compared."""

    def __init__(self, all_channels: bool) -> None:
        """`all_channels`: else only channels without keys are compared: a change in the order of their records would not
        show otherwise."""
        self.writer = ValueWriter()
        self.reasons: dict[str, str] = {}
        """Why values of an operator are not compared, by its name, until that is reported."""
        self._all_channels = all_channels
        self._reported: set[str] = set()

    def covers(self, batch: Batch) -> bool:
        """True if the values of a batch are compared."""
        return self._all_channels or batch.groups is None

    def add(self, digest: ValueDigest, channel: OutputChannel, batch: Batch, first: int, operator: str) -> None:
        """Adds records of an operator to the digest of their channel; the first one has the number `first` there."""
        if digest.over:
            return
        digest.add(batch, first, ROOM + int(TIMES * channel.record_bytes * len(batch)), self.writer)
        if digest.over:
            self._note(operator, "many of its records share one large object")
        opaque = self.writer.opaque
        if opaque:
            what = ", ".join(opaque)
            opaque.clear()
            self._note(operator, f"of these values only the type counts: {what}")

    def _note(self, operator: str, reason: str) -> None:
        if operator not in self._reported:
            self._reported.add(operator)
            self.reasons[operator] = reason


class ReceivedValues:
    """The values that other workers have received from a lost worker, for its replacement, which makes them once more."""

    def __init__(self) -> None:
        self._received: dict[ChannelId, tuple[int, int]] = {}
        self._compared: dict[ChannelId, int] = {}
        """The number behind the last record up to which digests were compared, by channel."""
        self.differ: set[ChannelId] = set()
        """Channels on which the replacement has made other values."""
        self.ahead: dict[ChannelId, deque[tuple[int, ValueDigest]]] | None = None
        """What was sealed beyond all digests that have come, of a hot standby, for which others come: for each batch the
        number of its first record, and the digest in front of it. None for a replacement, which has all of them at once."""

    def expect(self, ident: ChannelId, end: int, digest: int, sealed: int = 0) -> tuple[int, ValueDigest] | None:
        """Takes the digest that a receiver has of all values of a channel up to the record in front of number `end`.
        `sealed`: the number of records that are sealed already. Where the last of these values are among them, returns the
        number of a record and the digest in front of it: the caller adds the records from there on, and compares."""
        compared, (pending, _) = self._compared.get(ident, 0), self._received.get(ident, (0, 0))
        if end <= max(compared, pending):
            return None  # more than that was compared, or will be
        if end > sealed or self.ahead is None:
            self._received[ident] = end, digest
            return None
        ahead = self.ahead.get(ident)
        if not ahead or ahead[0][0] >= end:
            return None  # that is in the restored digest
        self._received[ident] = end, digest
        while len(ahead) > 1 and ahead[1][0] < end:
            ahead.popleft()
        first, before = ahead[0]
        return first, _copy(before)

    def note_sealed(self, ident: ChannelId, first: int, before: ValueDigest) -> None:
        """Notes the digest in front of a batch of a hot standby that is sealed."""
        if self.ahead is not None and not before.over:
            self.ahead.setdefault(ident, deque()).append((first, _copy(before)))

    def forget_sealed(self, ident: ChannelId) -> None:
        """Forgets what was sealed on a channel: all of it was compared."""
        if self.ahead is not None:
            self.ahead.pop(ident, None)

    def within(self, ident: ChannelId, first: int, count: int) -> int:
        """The number of records, of `count` from number `first` on, after which the digests are to be compared; 0 if that
        is not among them."""
        end, _ = self._received.get(ident, (0, 0))
        return end - first if first < end <= first + count else 0

    def compare(self, ident: ChannelId, digest: ValueDigest) -> None:
        """Compares the digests of a channel."""
        end, received = self._received.pop(ident)
        self._compared[ident] = max(end, self._compared.get(ident, 0))
        if digest.value is not None and digest.value != received:
            self.differ.add(ident)


def _copy(digest: ValueDigest) -> ValueDigest:
    return replace(digest, columns=dict(digest.columns))
