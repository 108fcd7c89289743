"""Flow control: the consumer grants bytes, the producer never sends more.

Both halves count bytes from the channel's beginning, so a grant that is lost and sent again does no harm. Markers cost
nothing. The consumer sends a grant when half a window is due, not after each frame. While nothing is unread, more than half
of the window is therefore always open. A frame larger than that may go exactly then: it travels with at most half a window
before it, and no frame, however large, waits for a grant that the consumer will never send.

A channel may begin *closed*, where its reader has to read something else first: then the consumer grants nothing until the
reader opens the channel. Both halves must know of it.

Invariant F1 (producer): when a frame goes, `sent + size <= allowed`, or more than half of the window was open.
Invariant F2 (consumer): when a frame arrives, its size is at most what is granted, or more than half of the window was
open. So at most `window` bytes, or half a window and one frame, are between the producer's send and the consumer's reading.
Invariant F3: a task that still has to read what was in flight to it at the restored cut grants nothing to its senders. The
exception is a channel of which one end has taken a lost worker's place: it has a window then. So what is in flight does not
grow with each restart of a job that fails before the task has read it.
"""

from __future__ import annotations

from tailrace.errors import ProtocolViolation

MAX_WINDOW = 1 << 20
MIN_WINDOW = 32 << 10


def window_of(channels: int, memory: int) -> int:
    """The window of each channel in bytes. All windows into one slot together stay within its worker's memory, as long as
    the smallest window allows it. Both ends of a channel must agree, so `channels` is the number of those into the slot
    that has most."""
    return max(MIN_WINDOW, min(MAX_WINDOW, memory // max(1, channels)))


class Producer:
    """The sending half of one channel."""

    __slots__ = ("allowed", "sent", "window")

    def __init__(self, window: int, closed: bool = False) -> None:
        self.window = window
        self.allowed = 0 if closed else window
        """Bytes granted since the beginning; never decreases."""
        self.sent = 0
        """Bytes sent since the beginning; never decreases; F1."""

    def may_send(self, size: int) -> bool:
        """True if a frame of `size` bytes may go now."""
        room = self.allowed - self.sent
        return size <= room or room > self.window // 2

    def send(self, size: int) -> None:
        """Accounts for a frame that goes."""
        self.sent += size

    def grant(self, total: int) -> None:
        """Takes the consumer's grant; an older one is ignored."""
        if total > self.allowed:
            self.allowed = total


class Consumer:
    """The receiving half of one channel."""

    __slots__ = ("arrived", "consumed", "granted", "window")

    def __init__(self, window: int, closed: bool = False) -> None:
        self.window = window
        self.granted = 0 if closed else window
        self.arrived = 0
        self.consumed = 0
        """Bytes read by the task since the beginning; `consumed <= arrived`."""

    def open(self) -> int | None:
        """The first grant of a channel that began closed; None where it is open."""
        if self.granted:
            return None
        self.granted = self.window
        return self.window

    def whole(self) -> int | None:
        """The grant of a whole window beyond the bytes that have arrived; None where it was sent. For a reader that reads
        nothing before more has come."""
        due = self.arrived + self.window
        if due <= self.granted:
            return None
        self.granted = due
        return due

    def arrive(self, size: int) -> None:
        """Accounts for a frame on arrival. Raises `ProtocolViolation` when the producer sent more than it may (F2)."""
        room = self.granted - self.arrived
        if size > room and room <= self.window // 2:
            raise ProtocolViolation(
                f"{size} bytes arrived where {room} were granted and {self.arrived - self.consumed} are unread"
            )
        self.arrived += size

    def consume(self, size: int) -> int | None:
        """Accounts for a frame that was read. Returns the new grant when it is worth a message, else None."""
        self.consumed += size
        due = self.consumed + self.window
        if due - self.granted >= self.window // 2:
            self.granted = due
            return due
        return None
