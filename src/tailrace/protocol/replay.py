"""The messages by which a worker takes the place of a lost one while the other workers go on.

*A worked example.* There are three workers, and that of slice 1 will be lost. It has taken 4 steps (entries 0 to 3 of its
history) and has cut for checkpoint 1 (entry 4). Its ack follows from the cut, so it first sends the coordinator these 5
entries. When the checkpoint is complete, the history begins with the cut:

    >>> from tailrace.coordinator.workers.replacement_phases import Takeovers
    >>> from tailrace.elements.cuts import CutRequest
    >>> from tailrace.task.journal.history import Cut, Did, History, decode
    >>> history, takeovers = History(), Takeovers(slots=3, depth=1)
    >>> def steps(count):
    ...     for _ in range(count):
    ...         history.add(Did(vertex=5, line=16, now=0, budget=100))
    >>> steps(4)
    >>> history.add(Cut(vertex=5, request=CutRequest(1), now=0, volatile=b"", heard=1))
    >>> before_ack = history.new_entries(-1)
    >>> before_ack.first, len(before_ack.entries), before_ack.cuts
    (0, 5, [(1, 4)])
    >>> takeovers.add_history(1, before_ack)
    >>> takeovers.complete(1)
    >>> history.complete(1)
    >>> history.first, history.end
    (4, 5)

2 more steps (entries 5 and 6), and a frame goes to worker 0; 1 more (entry 7), and one goes to worker 2. Each of them gets
the history up to there in front of the frame. The last step (entry 8) has sent nothing yet when the worker is lost:

    >>> copies = {0: Copy(), 2: Copy()}
    >>> steps(2)
    >>> copies[0].gain(history.new_entries(0))
    >>> steps(1)
    >>> copies[2].gain(history.new_entries(2))
    >>> steps(1)
    >>> copies[0].end, copies[2].end, history.end
    (7, 8, 9)

The coordinator has the first 5 entries, and sends `WorkerLost` to both survivors. They answer with the rest of their
copies, and with how much came on each channel (edge 2, from slice 1) behind the barrier of checkpoint 1: 5 records at
worker 0, 3 at worker 2, with digests of them:

    >>> from tailrace.elements.batches import Rows
    >>> from tailrace.task.journal.digests import Digest
    >>> from tailrace.elements.frame_codec import ChannelId, decode as decode_frame, encode_batch
    >>> def frame(target, seq, text):
    ...     return encode_batch(ChannelId(2, 1, target), 1, 0, seq, Rows(list(text)))
    >>> at_0, at_2 = Digest(), Digest()
    >>> at_0.add(decode_frame(frame(0, 0, "ab"))); at_0.add(decode_frame(frame(0, 2, "cde")))
    >>> at_2.add(decode_frame(frame(2, 0, "xyz")))
    >>> takeovers.begin(1, now=0)
    []
    >>> takeovers.checkpoint = 1
    >>> takeovers.query()
    [WorkerLost(slice=1, checkpoint=1, turn=1, known=5)]
    >>> takeovers.know(0, KnownHistory(1, copies[0].report(5), [(2, 1, 0, at_0.count, at_0.value)], turn=1))
    >>> takeovers.know(2, KnownHistory(1, copies[2].report(5), [(2, 1, 2, at_2.count, at_2.value)], turn=1))

The replacement gets the longest copy, which ends with entry 7. It does entries 5, 6 and 7 again. No survivor knows
entry 8, and none depends on it:

    >>> resume = takeovers.resume(1, Deploy(b"", []), in_flight=[])
    >>> resume.history.first, [type(decode(entry)).__name__ for entry in resume.history.entries]
    (4, ['Cut', 'Did', 'Did', 'Did'])
    >>> [(edge, source, target, count) for edge, source, target, count, _ in resume.came]
    [(2, 1, 0, 5), (2, 1, 2, 3)]

It makes 8 records for worker 0 again, and may part them into other frames. The first 5 have the digest that worker 0 has
reported, so only the other 3, from number 5 on, are sent:

    >>> from tailrace.task.journal.sent_log import Keeping, SentLog
    >>> from tailrace.task.channels.spilling import MemorySpill
    >>> made = SentLog(Keeping(MemorySpill, budget=1 << 20))
    >>> for seq, text in ((0, "abcd"), (4, "efgh")):
    ...     _ = made.add(seq, 4, frame(0, seq, text))
    >>> made.digest(5).value == at_0.value
    True
    >>> [(seq, item.count) for seq, item, _ in made.go_again(came=5)]
    [(5, 3)]

*The messages*, and who sends them:

survivor                         coordinator                        replacement
                           <-    WorkerLost(slice, checkpoint)
KnownHistory(slice, history, …)   ->                                 <-    Hello
                           <-    Replaced(peer, checkpoint)   ->    Resume(deployment, history, …)
                                                              <-    Restored
      <- links between survivors and the replacement, over which what is kept goes once more ->
                                                              <-    ReplayDone(heard)
                                 messages to the slice that were held back meanwhile ->

*History.* A worker sends what it has done (`task.journal.history`) to each other worker, and to the coordinator, before
anything that follows from it: `Gained`. All copies are beginnings of one history. The unit that is lost is the executor,
with all of its workers. So a worker also sends on what it knows of the histories of the workers beside it, in its executor,
before anything that follows from them. Then each party that depends on an event of a worker either is lost with that
worker's executor, or can report the event to the replacement; or another party outside that executor can.

*What is restored* is the newest complete checkpoint. Checkpoints under way are given up before.

*Several losses at once*. The workers of an executor are lost one after the other, as the coordinator notices it. A second
executor may be lost before the places of the first one's workers are taken (`depth`). A survivor may then depend, through
the second one, on what the first one's workers did, and may not know it. With a depth of 2 or more workers therefore also
send each other what they know of the histories of workers of other executors, before anything that follows from it. With a
depth of 2 they send what has left the executor of a history's owner only once; with more, all that they know. What the owner
sends to a worker itself, no other one passes on to it: that worker waits for it (`Gained.also`, `Gained.needs`). Then
workers of up to `depth` executors may be lost at once. All are replaced together, and feed each other as they do again what
the lost workers did. A loss beyond the depth is a restart of all from the newest checkpoint, as without replacements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from tailrace.elements.entrylog import EntryLog, EntryMemory
from tailrace.elements.spills import FrameSpill
from tailrace.errors import InternalError
from tailrace.protocol.deployment import Deploy, Peer
from tailrace.protocol.message import Message

Came = tuple[int, int, int, int, int]
"""The records that have come on a channel: (edge, source, target, number of elements since the barrier of a checkpoint,
without barriers, their digest (`task.journal.digests`))."""


CameValues = tuple[int, int, int, int, int]
"""The values that have come on a channel: (edge, source, target, number behind the last record that is covered, their
digest (`elements.valuedigests`), made by the sender)."""


class Gained(Message, frozen=True):
    """A report of a worker: the entries that its history has gained since its last report. `first` is the number of the
    first entry. `cuts`: the first cut for each checkpoint, (checkpoint, number of the entry)."""

    first: int
    entries: list[bytes]
    cuts: list[tuple[int, int]] = []
    origin: int = -1
    """The slice whose history it is, where a worker reports what it knows of another worker's; -1: its own."""
    cut_short: bool = False
    """True if the history had grown too large, and entries before `first` are gone, though no complete checkpoint is behind
    them."""
    opened: bytes = b""
    """Facts of the world that the worker found when it opened its functions (`task.journal.opening`). The first report to
    each party has them."""
    also: bytes = b""
    """The set of workers to which the owner sends its history up to the same entry at the same time: a bit for each slot
    (`bits_of`). The receiver need not pass these entries on to them."""
    needs: list[tuple[int, int]] = []
    """The entries that the sender has not passed on, since their owner has sent them: (slot of the owner, number behind the
    last entry). What comes behind the report must not be used before they are there."""
    has: list[tuple[int, int, int, int]] | None = None
    """The number of records and markers that a hot standby which takes a lost worker's place has of each channel from the
    receiver, behind the barrier of the restored checkpoint: (edge, source, target, number). None where the sender is no
    such one."""

    def reaches_back_to(self, checkpoint: int) -> bool:
        """True if it has all entries behind the cuts of a complete checkpoint."""
        return not self.cut_short or any(number == checkpoint for number, _ in self.cuts)


class NotCompared(Message, frozen=True):
    """A report of a worker: the values that an operator sends are not all compared where a worker is replaced."""

    operator: str
    reason: str


class Severed(Message, frozen=True):
    """A report of a worker: its link to a peer closed. `epoch` is the epoch of the peer: another process may hold the slot
    when the coordinator receives this."""

    peer: int
    reason: str
    epoch: int


class WorkerLost(Message, frozen=True):
    """A message to survivors: the worker of this slice is lost. Nothing comes from it any more."""

    slice: int
    checkpoint: int
    """The checkpoint that the replacement restores; 0: the one with which all workers have begun."""
    turn: int = 0
    """The number of the question. The coordinator sends a new question when another worker is lost meanwhile."""
    known: int = 0
    """The number behind the last entry of its history that the coordinator has. The answer need not have any before."""


class KnownHistory(Message, frozen=True):
    """A survivor's answer to `WorkerLost`: its copy of the lost worker's history, and the records that have come from it."""

    slice: int
    history: Gained
    """The copy of the survivor, from the entry on that the question names."""
    came: list[Came]
    turn: int = 0
    """The number of the question that it answers."""
    values: list[CameValues] = []


class Resume(Message, frozen=True):
    """A command to the replacement: do what the lost worker did, and go on."""

    deploy: Deploy
    checkpoint: int
    history: Gained
    came: list[Came]
    """The records of this slice that other workers have already."""
    events: list[tuple[int, int]] = []
    """The number of messages that the coordinator has had from this slice for other subtasks of a source: (vertex,
    number)."""
    together: list[int] = []
    """Slices that are replaced at the same time. They lack all since the checkpoint, and receive the output of the replay
    as it is made."""
    in_flight: list[str] = []
    """The operators (uids) to which records were in flight at the checkpoint with which all workers have begun."""
    values: list[CameValues] = []
    """The values of this slice that other workers have already."""
    hot: int = 0
    """The attempt as which this process follows the lost worker, if it is its hot standby and may go on from where it is;
    else 0."""


class Replaced(Message, frozen=True):
    """A message to survivors: the worker that takes the place of the lost one, and the address at which it listens."""

    peer: Peer
    checkpoint: int
    known: int = 0
    """The number behind the last entry of the lost worker's history. The coordinator has all of it, so no worker need wait
    for any of it."""
    hot: bool = False
    """True if the worker may have a part of what was sent to the lost one: it sends first how much (`Gained.has`)."""


class Restored(Message, frozen=True):
    """A report of the replacement: its state is restored, and its functions are open. Now it replays."""

    hot: bool = False
    """True if it was the worker's hot standby, and has only the rest to replay."""


class ReplayDone(Message, frozen=True):
    """A report of the replacement: it has done all that the lost worker did, and goes on."""

    heard: int
    """The number of the last message of the coordinator that it has followed."""


class Copy:
    """The copy that one party has of the history of another's slice.

    Invariant Y3: it has no gaps: its entries follow each other from `first` on.
    """

    def __init__(self, memory: EntryMemory | None = None, owner: int = 0) -> None:
        """`memory`: what it shares with other copies. `owner`: the slot whose history it is."""
        self._gone = 0
        """The number of the first entry, where the copy is cut short; 0 where it is not."""
        self.opened = b""
        self.first = 0
        self._log = EntryLog(EntryMemory() if memory is None else memory, owner)
        self.cuts: dict[int, int] = {}
        self.near = 0
        """The number behind the last entry that has left the owner's executor only once, if at all."""
        self._sent: dict[int, int] = {}
        """The number behind the last entry that was sent on, by party."""
        self._promised: dict[int, int] = {}
        """The number behind the last entry that the owner has sent itself, by party."""
        self._needed: dict[int, int] = {}
        """The number behind the last entry for which a party has to wait, by party, as far as it knows."""
        self._complete = 0
        """The newest checkpoint that is complete."""

    @property
    def end(self) -> int:
        """The number behind the last entry."""
        return self.first + len(self._log)

    @property
    def entries(self) -> list[bytes]:
        """All entries. Those that have no room in memory are read."""
        return self._log.part(0, len(self._log))

    def gain(self, gained: Gained, near: bool = False) -> None:
        """Takes a report of the owner, or of another worker that knows the history. `near`: that one is in the owner's
        executor, or in the executor of this party."""
        first, entries = gained.first, gained.entries
        self.opened = gained.opened or self.opened
        if near or gained.origin == -1:
            self.near = max(self.near, first + len(entries))
        for party in slots_of(gained.also):
            self._promised[party] = first + len(entries)
        if gained.origin != -1 and first + len(entries) <= self.end:
            return  # these entries have come by another way
        if gained.cut_short and first > self.first:
            self.first = self._gone = first
            self._log.drop(len(self._log))
            self.cuts = {}
            self._sent = {party: min(known, first - 1) for party, known in self._sent.items()}
        if first < self.first:  # the sender had not received `Complete` yet
            first, entries = self.first, entries[self.first - first :]
        self.cuts.update((number, at) for number, at in gained.cuts if at >= first)
        if first > self.end or not self._log:
            # The entries between are older than a complete checkpoint, or the coordinator has them.
            self._log.drop(len(self._log))
            self.first = first
            self._log.extend(entries)
        else:
            self._log.extend(entries[self.end - first :])
        if self._complete in self.cuts:
            self.complete(self._complete)

    def complete(self, checkpoint: int) -> None:
        """Drops the entries before a complete checkpoint: no worker restores an older one any more."""
        self._complete = checkpoint
        cut = self.cuts.get(checkpoint)
        if cut is None or cut < self.first:
            return
        self._log.drop(cut - self.first)
        self.first, self._gone = cut, 0
        self.cuts = {number: at for number, at in self.cuts.items() if number >= checkpoint}

    def report(self, known: int = 0) -> Gained:
        """The copy as a report, without the entries before number `known`, which the receiver has."""
        known = min(known, self.end)
        if self.first < known:
            cuts = sorted((number, at) for number, at in self.cuts.items() if at >= known)
            return Gained(known, self._log.part(known - self.first, len(self._log)), cuts, opened=self.opened)
        return Gained(self.first, self.entries, sorted(self.cuts.items()), cut_short=self._gone > 0, opened=self.opened)

    def reaches_back_to(self, checkpoint: int) -> bool:
        """True if it has all entries behind the cuts of a complete checkpoint."""
        return not self._gone or checkpoint in self.cuts

    def clear(self) -> None:
        """Drops all entries: the copy is not used any more."""
        self._log.drop(len(self._log))

    def reported_to(self, origin: int, party: int, depth: int) -> Gained | None:
        """The part of this history to send to a party now; None if there is none. It counts as sent. `origin` is the slice
        whose history it is, `depth` the number of executors whose loss at once is covered."""
        end = self.near if depth == 2 else self.end
        promised = self._promised.get(party, 0)
        opened = b"" if party in self._sent or promised else self.opened
        sent = max(self._sent.get(party, 0), promised)
        known = max(sent, self.first)
        if known >= end and sent >= self._gone and not opened:
            return None  # where it is cut short, a party that had a part of it must learn so, even without new entries
        self._sent[party] = end = max(known, end)
        cuts = [(number, at) for number, at in self.cuts.items() if known <= at < end]
        entries = self._log.part(known - self.first, end - self.first)
        return Gained(known, entries, cuts, origin, sent < self._gone, opened)

    def needed_by(self, party: int) -> int | None:
        """The number behind the last entry that the owner has sent to a party itself, and for which the party has to wait
        before it uses what comes next; None where it need not, or waits already. It counts as reported. What `reported_to`
        then gives begins behind that entry."""
        promised = self._promised.get(party, 0)
        if promised <= max(self._needed.get(party, 0), self._sent.get(party, 0)):
            return None
        self._needed[party] = promised
        return promised

    def forget(self, party: int) -> None:
        """Forgets what was sent to a party: a new process stands for it, and has received nothing."""
        for known in (self._sent, self._promised, self._needed):
            known.pop(party, None)


COPIES = "what other workers have done, as far as it is beyond StandbyConfig(history_bytes=...),"
"""Purpose of the spill for histories of other workers, in words, for errors."""


class Copies(dict[int, Copy]):
    """The copies that one party has of other histories, by the slots of their owners. A copy is made when it is first
    requested."""

    def __init__(self, budget: int = 0, make_spill: Callable[[], FrameSpill] | None = None) -> None:
        """`budget`: the bytes of memory that all of them share; 0: no limit. The rest goes to a spill."""
        super().__init__()
        self.memory = EntryMemory(budget, make_spill)

    def __missing__(self, owner: int) -> Copy:
        copy = self[owner] = Copy(self.memory, owner)
        return copy

    def clear(self) -> None:
        """Drops all copies."""
        for copy in self.values():
            copy.clear()
        super().clear()
        self.memory.forget()


class Hearsay:
    """Second-hand histories, buffered until their sender's own history arrives behind them. Using one without the other
    would be of no use: a replay of one history would wait for what is in another one, and only their sender had both."""

    def __init__(self) -> None:
        self._waits: dict[int, list[Gained]] = {}

    def receive(self, party: int, gained: Gained) -> list[tuple[int, Gained]]:
        """Takes a report of a party. Returns the reports that count now, each with the slice whose history it is."""
        if gained.origin != -1:
            self._waits.setdefault(party, []).append(gained)
            return []
        return [*((one.origin, one) for one in self._waits.pop(party, [])), (party, gained)]

    def forget(self, party: int) -> None:
        """Drops the buffered reports of a party that is lost."""
        self._waits.pop(party, None)


def bits_of(slots: Iterable[int]) -> bytes:
    """Some slots as bytes, a bit for each slot."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def slots_of(bits: bytes) -> Iterator[int]:
    """The slots in the bytes that `bits_of` made."""
    left = int.from_bytes(bits, "little")
    while left:
        yield (left & -left).bit_length() - 1
        left &= left - 1


def longest(copies: list[Gained]) -> Gained:
    """The history that some copies have together: the one that ends last, with what others have in front of it. Raises
    `InternalError` where they are not parts of one history."""
    found = max(copies, key=lambda copy: (copy.first + len(copy.entries), len(copy.opened)))
    for copy in copies:
        start = max(copy.first, found.first)
        theirs = copy.entries[start - copy.first :]
        if theirs != found.entries[start - found.first :][: len(theirs)]:
            raise InternalError(f"Y3: two copies of one history differ behind entry {start}", ())
    while not found.cut_short:
        before = [copy for copy in copies if copy.first < found.first <= copy.first + len(copy.entries)]
        if not before:
            break
        found = _join(min(before, key=lambda copy: copy.first), found)
    return found


def _join(before: Gained, behind: Gained) -> Gained:
    """A copy, behind another one that ends in it or just before it."""
    front = before.entries[: behind.first - before.first]
    cuts = [*((number, at) for number, at in before.cuts if at < behind.first), *behind.cuts]
    opened = behind.opened or before.opened
    return Gained(before.first, [*front, *behind.entries], cuts, cut_short=before.cut_short, opened=opened)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Gained)


def encode_gained(gained: Gained) -> bytes:
    """A report of a history as bytes, for another worker."""
    return _encoder.encode(gained)


def decode_gained(data: bytes | memoryview) -> Gained:
    """A report from the bytes that `encode_gained` made. Raises `msgspec.MsgspecError` for other bytes."""
    gained: Gained = _decoder.decode(data)
    return gained
