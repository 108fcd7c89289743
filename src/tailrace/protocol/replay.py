"""A worker takes the place of one that was lost, and the others go on.

*A worked example.* There are three workers, and that of slice 1 will be lost. It has taken 4 steps (entries 0 to 3 of its
history) and has cut for checkpoint 1 (entry 4). Its ack follows from the cut, so it tells the coordinator these 5 entries
first. When the checkpoint is complete, the history begins with the cut:

    >>> from tailrace.coordinator.workers.takeovers import Takeovers
    >>> from tailrace.elements.cuts import CutRequest
    >>> from tailrace.task.journal.history import Cut, Did, History, decode
    >>> history, takeovers = History(), Takeovers(slots=3, depth=1)
    >>> def steps(count):
    ...     for _ in range(count):
    ...         history.add(Did(vertex=5, line=16, now=0, budget=100))
    >>> steps(4)
    >>> history.add(Cut(vertex=5, request=CutRequest(1), now=0, volatile=b"", heard=1))
    >>> before_ack = history.gained(-1)
    >>> before_ack.first, len(before_ack.entries), before_ack.cuts
    (0, 5, [(1, 4)])
    >>> takeovers.gained(1, before_ack)
    >>> takeovers.completed(1)
    >>> history.complete(1)
    >>> history.first, history.end
    (4, 5)

2 more steps (entries 5 and 6), and a frame goes to worker 0; 1 more (entry 7), and one goes to worker 2. Each of them gets
the history up to there in front of the frame. The last step (entry 8) has sent nothing yet when the worker is lost:

    >>> copies = {0: Copy(), 2: Copy()}
    >>> steps(2)
    >>> copies[0].gain(history.gained(0))
    >>> steps(1)
    >>> copies[2].gain(history.gained(2))
    >>> steps(1)
    >>> copies[0].end, copies[2].end, history.end
    (7, 8, 9)

The coordinator asks both survivors. They answer with their copies, and with how much came on each channel (edge 2, from
slice 1) behind the barrier of checkpoint 1: 5 records at worker 0, 3 at worker 2, with digests of them:

    >>> from tailrace.elements.batches import Rows
    >>> from tailrace.elements.digests import Digest
    >>> from tailrace.elements.frames import ChannelId, decode as decode_frame, encode_batch
    >>> def frame(target, seq, text):
    ...     return encode_batch(ChannelId(2, 1, target), 1, 0, seq, Rows(list(text)))
    >>> at_0, at_2 = Digest(), Digest()
    >>> at_0.add(decode_frame(frame(0, 0, "ab"))); at_0.add(decode_frame(frame(0, 2, "cde")))
    >>> at_2.add(decode_frame(frame(2, 0, "xyz")))
    >>> takeovers.begin(1, now=0)
    []
    >>> takeovers.checkpoint = 1
    >>> takeovers.ask()
    [WorkerLost(slice=1, checkpoint=1, turn=1)]
    >>> takeovers.know(0, KnownHistory(1, copies[0].told(), [(2, 1, 0, at_0.count, at_0.value)], turn=1))
    >>> takeovers.know(2, KnownHistory(1, copies[2].told(), [(2, 1, 2, at_2.count, at_2.value)], turn=1))

The replacement gets the longest copy, which ends with entry 7. It does entries 5, 6 and 7 again. No survivor knows
entry 8, and none depends on it:

    >>> resume = takeovers.resume(1, Deploy(b"", []), in_flight=[])
    >>> resume.history.first, [type(decode(entry)).__name__ for entry in resume.history.entries]
    (4, ['Cut', 'Did', 'Did', 'Did'])
    >>> [(edge, source, target, count) for edge, source, target, count, _ in resume.came]
    [(2, 1, 0, 5), (2, 1, 2, 3)]

It makes 8 records for worker 0 again, and may part them into other frames. The first 5 have the digest that worker 0 has
told, so only the other 3, from number 5 on, are sent:

    >>> from tailrace.task.channels.sent_log import Keeping, SentLog
    >>> from tailrace.task.channels.spilling import MemorySpill
    >>> made = SentLog(Keeping(MemorySpill, budget=1 << 20))
    >>> for seq, text in ((0, "abcd"), (4, "efgh")):
    ...     _ = made.went(seq, 4, frame(0, seq, text))
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
                                 what was said to the slice meanwhile ->

*History.* What a worker has done (`task.journal.history`) goes to each other worker, and to the coordinator, before
anything that follows from it: `Gained`. So whoever depends on an event of a worker can tell it to the one that takes its
place. All copies are beginnings of the same history; the longest has everything that anybody depends on.

*What is restored* is the newest complete checkpoint. Checkpoints under way are given up before.

*So many at once* (`depth`). Where a second worker is lost before the first one's place is taken, a survivor depends on what
the first one did through the second one, and may not know it. With a depth of 2 or more workers tell each other also what
they know of others' histories, before anything that follows from it: with 2 what they have from that one itself, with more
all that they know. Then so many may be lost at once: all are replaced together, and feed each other as they do again what
the lost ones did. What is beyond the depth is a restart of all from the newest checkpoint, as without any of this.
"""

from __future__ import annotations

import msgspec

from tailrace.errors import InternalError
from tailrace.protocol.deployment import Deploy, Peer
from tailrace.protocol.message import Message

Came = tuple[int, int, int, int, int]
"""Of a channel (edge, source, target): how many elements have come since the barrier of a checkpoint, without barriers, and
their digest (`elements.digests`)."""


class Gained(Message, frozen=True):
    """From a worker: what its history has gained since it told it last. `first` is the number of the first entry. `cuts`:
    the first cut for each checkpoint, (checkpoint, number of the entry)."""

    first: int
    entries: list[bytes]
    cuts: list[tuple[int, int]] = []
    origin: int = -1
    """Whose history it is, where the worker tells what it knows of another one's; -1: its own."""
    cut_short: bool = False
    """Whether it had grown too large, and what was before `first` is gone, though no complete checkpoint is behind it."""
    opened: bytes = b""
    """What opening the functions of the worker has found of the world (`task.subtask.opening`): told to each party first,
    once."""

    def reaches_back_to(self, checkpoint: int) -> bool:
        """Whether it has all that is behind the cuts of a complete checkpoint."""
        return not self.cut_short or any(number == checkpoint for number, _ in self.cuts)


class Severed(Message, frozen=True):
    """From a worker: its link to another one closed. `epoch` is that of the other one: its slot may be held by somebody else
    when this is heard."""

    peer: int
    reason: str
    epoch: int


class WorkerLost(Message, frozen=True):
    """To survivors: the worker of this slice is lost. Nothing comes from it any more."""

    slice: int
    checkpoint: int
    """What the one that takes its place restores; 0: that with which all have begun."""
    turn: int = 0
    """Which question it is: another one is asked when another worker is lost meanwhile."""


class KnownHistory(Message, frozen=True):
    """From a survivor: what it knows of the lost one."""

    slice: int
    history: Gained
    came: list[Came]
    turn: int = 0
    """The question that it answers."""


class Resume(Message, frozen=True):
    """To the replacement: do what the lost one did, and go on."""

    deploy: Deploy
    checkpoint: int
    history: Gained
    came: list[Came]
    """What others have of this slice's channels already."""
    events: list[tuple[int, int]] = []
    """How many messages of each source (its vertex) the coordinator has had for other subtasks of it."""
    together: list[int] = []
    """Others that are replaced at the same time: they lack all since the checkpoint, and get it as it is made."""
    in_flight: list[str] = []
    """The operators (uids) to which records were in flight at the checkpoint with which all have begun."""


class Replaced(Message, frozen=True):
    """To survivors: who takes the place of the lost worker, and where it listens."""

    peer: Peer
    checkpoint: int


class Restored(Message, frozen=True):
    """From the replacement: its state is there, and functions are open. What it does again comes now."""


class ReplayDone(Message, frozen=True):
    """From the replacement: it is where the lost one was, and goes on."""

    heard: int
    """The number of the last word of the coordinator that it has followed."""


class Copy:
    """What one party knows of the history of another's slice.

    Invariant Y3: it has no gaps: its entries follow each other from `first` on.
    """

    def __init__(self) -> None:
        self._gone = 0
        """Where it is cut short: the number of its first entry; 0: it is not."""
        self.opened = b""
        self.first = 0
        self.entries: list[bytes] = []
        self.cuts: dict[int, int] = {}
        self.direct = 0
        """How far that one has told it itself."""
        self._told: dict[int, int] = {}
        """How far it was told on, by party."""
        self._complete = 0
        """The newest checkpoint that is complete."""

    @property
    def end(self) -> int:
        """The number behind that of the last entry."""
        return self.first + len(self.entries)

    def gain(self, gained: Gained) -> None:
        """More of it was told."""
        first, entries = gained.first, gained.entries
        self.opened = gained.opened or self.opened
        if gained.origin == -1:
            self.direct = max(self.direct, first + len(entries))
        elif first + len(entries) <= self.end:
            return  # that one has told it itself by now
        if gained.cut_short and first > self.first:
            self.first = self._gone = first
            self.entries, self.cuts = [], {}
            self._told = {party: min(known, first - 1) for party, known in self._told.items()}
        if first < self.first:  # who tells it had not heard yet that the checkpoint is complete
            first, entries = self.first, entries[self.first - first :]
        self.cuts.update((number, at) for number, at in gained.cuts if at >= first)
        if first > self.end or not self.entries:
            # What lies between is older than a complete checkpoint: nobody will ever want it.
            self.first, self.entries = first, list(entries)
        else:
            self.entries += entries[self.end - first :]
        if self._complete in self.cuts:
            self.complete(self._complete)

    def complete(self, checkpoint: int) -> None:
        """Nobody restores an older checkpoint any more."""
        self._complete = checkpoint
        cut = self.cuts.get(checkpoint)
        if cut is None or cut < self.first:
            return
        self.entries = self.entries[cut - self.first :] if cut > self.first else self.entries
        self.first, self._gone = cut, 0
        self.cuts = {number: at for number, at in self.cuts.items() if number >= checkpoint}

    def told(self) -> Gained:
        """All of it."""
        cuts = sorted(self.cuts.items())
        return Gained(self.first, self.entries, cuts, cut_short=self._gone > 0, opened=self.opened)

    def told_on(self, origin: int, party: int, depth: int) -> Gained | None:
        """What a party is to be told of this history, which is that of `origin`, where so many losses at once are covered;
        None: nothing. It is taken for told."""
        end = self.direct if depth == 2 else self.end
        opened = b"" if party in self._told else self.opened
        told = self._told.get(party, 0)
        known = max(told, self.first)
        if known >= end and not opened:
            return None
        self._told[party] = end = max(known, end)
        cuts = [(number, at) for number, at in self.cuts.items() if known <= at < end]
        entries = self.entries[known - self.first : end - self.first]
        return Gained(known, entries, cuts, origin, told < self._gone, opened)

    def forget(self, party: int) -> None:
        """Somebody new stands for this party, and was told nothing."""
        self._told.pop(party, None)


class Hearsay:
    """What others tell of third ones, until it counts: with what they tell of themselves, which comes behind it. Some of it
    alone would be of no use: who does again what one history has would wait for what is in another one, and only who has
    told of both had that.
    """

    def __init__(self) -> None:
        self._waits: dict[int, list[Gained]] = {}

    def told(self, party: int, gained: Gained) -> list[tuple[int, Gained]]:
        """A party tells something: what counts now, each with the slice whose history it is."""
        if gained.origin != -1:
            self._waits.setdefault(party, []).append(gained)
            return []
        return [*((one.origin, one) for one in self._waits.pop(party, [])), (party, gained)]

    def forget(self, party: int) -> None:
        """A party is lost, and says nothing more."""
        self._waits.pop(party, None)


def longest(copies: list[Gained]) -> Gained:
    """The copy that has everything which any of them has. Raises `InternalError` where they are not beginnings of one
    history."""
    found = max(copies, key=lambda copy: (copy.first + len(copy.entries), len(copy.opened)))
    for copy in copies:
        start = max(copy.first, found.first)
        theirs = copy.entries[start - copy.first :]
        if theirs != found.entries[start - found.first :][: len(theirs)]:
            raise InternalError(f"Y3: two copies of one history differ behind entry {start}", ())
    return found


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Gained)


def encode_gained(gained: Gained) -> bytes:
    """What a worker tells another one, as bytes."""
    return _encoder.encode(gained)


def decode_gained(data: bytes | memoryview) -> Gained:
    """What `encode_gained` has made. Raises `msgspec.MsgspecError` for what it has not."""
    gained: Gained = _decoder.decode(data)
    return gained
