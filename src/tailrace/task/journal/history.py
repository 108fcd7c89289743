"""The history of a slice: what its tasks did, in order, so that another worker can do it again.

What a task does with what it reads is a function of the cut that it was restored from (with what no checkpoint holds of it:
`task.journal.task_state`), and of its history. The order in which a driver lets things happen, how much has arrived by
then, and what the world outside answers are what the history keeps; what is on the channels it does not: their senders
have that (`task.channels.sent_log`). A step that did nothing is in no history, and neither is credit: who does it again
sends whatever there is, and the records of each channel are the same ones in the same order.

Entries are made once for each step, never for each record.
"""

from __future__ import annotations

import msgspec

from tailrace.elements.cuts import CutRequest
from tailrace.protocol.replay import Gained
from tailrace.protocol.wire import AnyMessage
from tailrace.task.contract.recorded_answers import Answer


class Did(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A task took a step."""

    vertex: int
    line: int
    """Of the order of a task: what it did. -1: it did nothing, and sealed what had waited long enough."""
    now: int
    """The clock, int64 microseconds."""
    budget: int
    facts: list[int] = []
    """What followed from what had come by then (`Facts`)."""
    answers: list[Answer] = []
    sizes: list[int] = []
    """How many bytes it was that it sent (`Outbox.sizes`)."""
    been_round: bool = False
    """Whether that ended a round of its inputs, behind which went what had waited for company."""
    by_itself: bool = False
    """Whether user code has asked for the clock, or for random numbers that are seeded for each step: it is not
    the same as a part of a larger step."""


class Cut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A task has cut for a checkpoint. Who restores that one begins here."""

    vertex: int
    request: CutRequest
    now: int
    volatile: bytes
    """What the checkpoint does not hold of the task."""
    heard: int
    """How many words of the coordinator the worker had heard."""
    answers: list[Answer] = []
    followed: dict[int, int] = {}
    """How many commands each loop nest of the worker had followed."""
    waves: dict[int, int] = {}
    """The wave of each that it had begun and not reported. Who is not done with it reports it; once more does no harm."""
    sizes: list[int] = []


class Flushed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """There was nothing to do, and what tasks had gathered went."""

    sizes: dict[int, list[int]] = {}
    """By vertex."""


class Heard(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The coordinator said something that concerns tasks."""

    message: AnyMessage
    number: int
    """Which of its words to this worker it is, from 1."""


Entry = Did | Cut | Flushed | Heard

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """An entry as bytes."""
    return _encoder.encode(entry)


def decode(data: bytes) -> Entry:
    """An entry from the bytes that `encode` made."""
    entry: Entry = _decoder.decode(data)
    return entry


EACH = 48
"""Bytes in memory for each entry beside its own."""


class History:
    """What happened in a slice since the oldest cut that somebody may restore, or since it had grown too large."""

    def __init__(self, most: int = 0) -> None:
        """`most`: so many bytes it takes in memory; then what there is goes, and until the next checkpoint is complete
        nobody can do again what the slice did. 0: it has no bound."""
        self._most = most
        self._gone = 0
        """Where it is cut short: the number of its first entry. 0: it is not, since the newest complete checkpoint."""
        self._cut_off = 0
        """The newest checkpoint of which some cuts went with it."""
        self.opened = b""
        """What opening the functions of the slice has found of the world (`task.subtask.opening`). It is behind every
        entry, and no checkpoint takes its place."""
        self.first = 0
        """The number of the first entry."""
        self.entries: list[bytes] = []
        self.size = 0
        """Bytes of the entries."""
        self.cuts: dict[int, int] = {}
        """The number of the first cut for each checkpoint."""
        self.since = 0
        """The checkpoint whose cuts it begins with; 0: it begins where the slice did."""
        self.heard = 0
        """How many words of the coordinator the slice has heard."""
        self._told: dict[int, int] = {}
        """How many entries each party has been told of (the coordinator: -1)."""

    @property
    def end(self) -> int:
        """The number behind that of the last entry."""
        return self.first + len(self.entries)

    def add(self, entry: Entry) -> None:
        """Something has happened."""
        if isinstance(entry, Cut) and entry.request.number > self._cut_off:
            self.cuts.setdefault(entry.request.number, self.end)
        data = encode(entry)
        self.entries.append(data)
        self.size += len(data)
        if self._most and self.size + EACH * len(self.entries) > self._most:
            self.cut_short()

    def cut_short(self) -> None:
        """What there is goes: until the next checkpoint whose cuts are still to come is complete, nobody can do again what
        the slice did."""
        self._cut_off = max(self._cut_off, *self.cuts, 0)
        self.first = self._gone = self.end
        self.entries, self.cuts, self.size = [], {}, 0
        self._told = {party: min(known, self._gone - 1) for party, known in self._told.items()}

    def hear(self, message: AnyMessage) -> None:
        """The coordinator has said something that concerns tasks."""
        self.heard += 1
        self.add(Heard(message, self.heard))

    def complete(self, checkpoint: int) -> None:
        """Nobody restores a checkpoint before this one any more."""
        cut = self.cuts.get(checkpoint)
        if cut is None:
            return
        self.size -= sum(map(len, self.entries[: cut - self.first]))
        del self.entries[: cut - self.first]
        self.first, self.since, self._gone = cut, checkpoint, 0
        self.cuts = {number: at for number, at in self.cuts.items() if number >= checkpoint}

    def gained(self, party: int) -> Gained | None:
        """What it has gained since this party was told of it last; None: nothing. It is taken for told."""
        opened = b"" if party in self._told else self.opened
        known = self._told.get(party, 0)
        if known >= self.end and not opened:
            return None
        self._told[party] = self.end
        first = max(known, self.first)
        cuts = [(number, at) for number, at in self.cuts.items() if at >= first]
        return Gained(first, self.entries[first - self.first :], cuts, cut_short=known < self._gone, opened=opened)

    def everything(self) -> Gained:
        """All of it, whoever was told what."""
        return Gained(self.first, self.entries, sorted(self.cuts.items()), cut_short=self._gone > 0, opened=self.opened)

    def forget(self, party: int) -> None:
        """Somebody new stands for this party, and knows nothing."""
        self._told.pop(party, None)

    def go_on_from(self, gained: Gained, heard: int, since: int) -> None:
        """It is that of a slice that was done again."""
        self.first, self.entries, self.cuts = gained.first, list(gained.entries), dict(gained.cuts)
        self.opened = gained.opened
        self.heard, self.since, self.size = heard, since, sum(map(len, self.entries))
