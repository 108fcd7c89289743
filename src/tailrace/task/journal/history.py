"""The history of a slice: what its tasks did, in order, so that another worker can replay it.

A task's output is a function of its input, of the cut that it was restored from (with what no checkpoint holds of it:
`task.journal.task_state`), and of its history. The history keeps the order in which the driver let things happen, how
much had arrived by then, and the answers of the world outside. It does not keep the contents of channels: their senders
have these (`task.journal.sent_log`). A step that did nothing is in no history, and neither is credit: a replay sends
whatever there is, and the records of each channel are equal to the first ones and in their order.

Entries are made once for each step, never for each record.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailrace.elements.cuts import CutRequest
from tailrace.elements.entrylog import EACH
from tailrace.protocol.message_codec import TaskMessage
from tailrace.protocol.replay import Gained
from tailrace.task.journal.outside_answers import Answer


class Did(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step of a task."""

    vertex: int
    line: int
    """The number of the line in the task's order that the step followed. -1: the step did nothing but seal what had
    waited long enough."""
    now: int
    """The clock, int64 microseconds."""
    budget: int
    facts: list[int] = []
    """The facts that depended on how much had arrived by then (`Facts`)."""
    answers: list[Answer] = []
    sizes: list[int] = []
    """Sizes in bytes of the frames that the step sent (`ReplayableOutbox`)."""
    been_round: bool = False
    """True if the step ended a round of the task's inputs, behind which gathered records were sent."""
    by_itself: bool = False
    """True if user code has requested the clock, event time, or random numbers that are seeded for each step, or a timer
    has fired. Such a step cannot be replayed as a part of a larger one."""
    seed: int | None = None
    """The seed of the random generators that are shared in a process, if the step has used them."""


class Cut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A cut of a task for a checkpoint. A replay from this checkpoint begins here."""

    vertex: int
    request: CutRequest
    now: int
    volatile: bytes
    """The state of the task that the checkpoint does not hold (`task.journal.task_state`)."""
    heard: int
    """Number of recorded messages of the coordinator to the worker, up to the cut."""
    answers: list[Answer] = []
    followed: dict[int, int] = {}
    """Number of commands that each loop nest of the worker had followed."""
    waves: dict[int, int] = {}
    """The wave of each nest that the worker had begun and not reported. A replay reports it if it was not reported; a
    second report does no harm."""
    sizes: list[int] = []
    seed: int | None = None
    """The seed of the shared random generators, if the step of the cut has used them."""


class Flushed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A flush of what tasks had gathered, when there was nothing else to do."""

    sizes: dict[int, list[int]] = {}
    """Sizes in bytes of the frames that went, by vertex."""


class Heard(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A message of the coordinator that concerns tasks."""

    message: TaskMessage
    number: int
    """Number of the message, from 1, among the recorded ones of the coordinator to this worker."""


Entry = Did | Cut | Flushed | Heard

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)
_list_decoder = msgspec.msgpack.Decoder(list[Entry])


def encode(entry: Entry) -> bytes:
    """An entry as bytes."""
    return _encoder.encode(entry)


def decode(data: bytes) -> Entry:
    """An entry from the bytes that `encode` made."""
    entry: Entry = _decoder.decode(data)
    return entry


def decode_all(entries: Sequence[bytes]) -> list[Entry]:
    """Several entries from their bytes, at once: a history may have ten thousand."""
    array_of = b"\xdd" + len(entries).to_bytes(4, "big")  # the head of an array in MessagePack
    found: list[Entry] = _list_decoder.decode(b"".join((array_of, *entries)))
    return found


class History:
    """The history of a slice since the oldest cut that may be restored, or since it had grown too large."""

    def __init__(self, most: int = 0) -> None:
        """`most`: the limit in bytes of memory; 0: no limit. A history that grows beyond it is cleared, and the slice
        cannot be replayed until the next checkpoint is complete."""
        self._most = most
        self._gone = 0
        """The number of the first entry after the history was cut short; 0 if it was not, since the newest complete
        checkpoint."""
        self._cut_off = 0
        """The newest checkpoint that lost cuts when the history was cut short."""
        self.opened = b""
        """The answers of the world that opening the functions of the slice got (`task.journal.opening`). Every entry
        depends on it, and no checkpoint replaces it."""
        self.first = 0
        """The number of the first entry."""
        self.entries: list[bytes] = []
        self.size = 0
        """Bytes of the entries."""
        self.cuts: dict[int, int] = {}
        """The number of the first cut for each checkpoint."""
        self.since = 0
        """The checkpoint whose cuts the history begins with; 0: it begins where the slice did."""
        self.received = 0
        """Number of recorded messages of the coordinator."""
        self._sent: dict[int, int] = {}
        """Number of entries that each party has received (the coordinator: -1)."""

    @property
    def end(self) -> int:
        """The number of the next entry."""
        return self.first + len(self.entries)

    @property
    def left(self) -> int | None:
        """The bytes of memory that are left until the history is cleared; None where it has no limit."""
        return self._most - self.size - EACH * len(self.entries) if self._most else None

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        if isinstance(entry, Cut) and entry.request.number > self._cut_off:
            self.cuts.setdefault(entry.request.number, self.end)
        data = encode(entry)
        self.entries.append(data)
        self.size += len(data)
        if self._most and self.size + EACH * len(self.entries) > self._most:
            self.cut_short()

    def cut_short(self) -> None:
        """Clears the history. The slice cannot be replayed until a checkpoint is complete whose cuts are all still to
        come."""
        self._cut_off = max(self._cut_off, *self.cuts, 0)
        self.first = self._gone = self.end
        self.entries, self.cuts, self.size = [], {}, 0
        self._sent = {party: min(known, self._gone - 1) for party, known in self._sent.items()}

    def receive(self, message: TaskMessage) -> None:
        """Adds a message of the coordinator that concerns tasks."""
        self.received += 1
        self.add(Heard(message, self.received))

    def complete(self, checkpoint: int) -> None:
        """Drops the entries before the cuts of a complete checkpoint: no older one is restored any more."""
        cut = self.cuts.get(checkpoint)
        if cut is None:
            return
        self.size -= sum(map(len, self.entries[: cut - self.first]))
        del self.entries[: cut - self.first]
        self.first, self.since, self._gone = cut, checkpoint, 0
        self.cuts = {number: at for number, at in self.cuts.items() if number >= checkpoint}

    def new_entries(self, party: int) -> Gained | None:
        """The entries that a party has not received yet, which count as received from now on; None if there are none."""
        opened = b"" if party in self._sent else self.opened
        known = self._sent.get(party, 0)
        if known >= self.end and not opened:
            return None
        self._sent[party] = self.end
        first = max(known, self.first)
        cuts = [(number, at) for number, at in self.cuts.items() if at >= first]
        return Gained(first, self.entries[first - self.first :], cuts, cut_short=known < self._gone, opened=opened)

    def unsent(self, party: int) -> int:
        """The number of entries that a party has not received."""
        return self.end - max(self.first, self._sent.get(party, 0))

    def everything(self) -> Gained:
        """All of the history, whatever its parties have received."""
        return Gained(self.first, self.entries, sorted(self.cuts.items()), cut_short=self._gone > 0, opened=self.opened)

    def forget(self, party: int) -> None:
        """Notes that a new worker stands for this party, and has received nothing."""
        self._sent.pop(party, None)

    def go_on_from(self, gained: Gained, received: int, since: int) -> None:
        """Continues the history of a slice that was replayed."""
        self.first, self.entries, self.cuts = gained.first, list(gained.entries), dict(gained.cuts)
        self.opened = gained.opened
        self.received, self.since, self.size = received, since, sum(map(len, self.entries))
