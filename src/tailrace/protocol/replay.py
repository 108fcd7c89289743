"""A worker takes the place of one that was lost, and the others go on.

survivor                         coordinator                        replacement
                           <-    Lost(slice, checkpoint)
Known(slice, history, …)   ->                                 <-    Hello
                           <-    Replaced(peer, checkpoint)   ->    Resume(deployment, history, …)
      <- links between survivors and the replacement, over which what is kept goes once more ->
                                                              <-    Replayed(heard)
                                 what was said to the slice meanwhile ->

*History.* What a worker has done (`task.history`) goes to each other worker, and to the coordinator, before anything that
follows from it: `Gained`. So whoever depends on an event of a worker can tell it to the one that takes its place. All copies
are beginnings of the same history; the longest has everything that anybody depends on.

*What is restored* is the newest complete checkpoint. Checkpoints under way are given up before.

*One at a time.* Where a second worker is lost before the first one's replacement is there, all start again from the newest
checkpoint, as without any of this: a survivor may be the only one that knew what another depends on.
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


class Severed(Message, frozen=True):
    """From a worker: its link to another one closed. `epoch` is that of the other one: its slot may be held by somebody else
    when this is heard."""

    peer: int
    reason: str
    epoch: int


class Lost(Message, frozen=True):
    """To survivors: the worker of this slice is lost. Nothing comes from it any more."""

    slice: int
    checkpoint: int
    """What the one that takes its place restores; 0: that with which all have begun."""


class Known(Message, frozen=True):
    """From a survivor: what it knows of the lost one."""

    slice: int
    history: Gained
    came: list[Came]


class Resume(Message, frozen=True):
    """To the replacement: do what the lost one did, and go on."""

    deploy: Deploy
    checkpoint: int
    history: Gained
    came: list[Came]
    """What others have of this slice's channels already."""
    events: list[tuple[int, int]] = []
    """How many messages of each source (its vertex) the coordinator has had for other subtasks of it."""
    in_flight: list[str] = []
    """The operators (uids) to which records were in flight at the checkpoint with which all have begun."""


class Replaced(Message, frozen=True):
    """To survivors: who takes the place of the lost worker, and where it listens."""

    peer: Peer
    checkpoint: int


class Replayed(Message, frozen=True):
    """From the replacement: it is where the lost one was, and goes on."""

    heard: int
    """The number of the last word of the coordinator that it has followed."""


class Copy:
    """What one party knows of the history of another's slice.

    Invariant Y3: it has no gaps: its entries follow each other from `first` on.
    """

    def __init__(self) -> None:
        self.first = 0
        self.entries: list[bytes] = []
        self.cuts: dict[int, int] = {}

    @property
    def end(self) -> int:
        """The number behind that of the last entry."""
        return self.first + len(self.entries)

    def gain(self, gained: Gained) -> None:
        """More of it was told."""
        self.cuts.update(gained.cuts)
        if gained.first > self.end or not self.entries:
            # What lies between is older than a complete checkpoint: nobody will ever want it.
            self.first, self.entries = gained.first, list(gained.entries)
            return
        if gained.first < self.first:
            raise InternalError(f"Y3: entry {gained.first} is told where {self.first} is the first one", ())
        self.entries += gained.entries[self.end - gained.first :]

    def complete(self, checkpoint: int) -> None:
        """Nobody restores an older checkpoint any more."""
        cut = self.cuts.get(checkpoint)
        if cut is None or cut <= self.first:
            return
        self.entries = self.entries[cut - self.first :]
        self.first = cut
        self.cuts = {number: at for number, at in self.cuts.items() if number >= checkpoint}

    def told(self) -> Gained:
        """All of it."""
        return Gained(self.first, self.entries, sorted(self.cuts.items()))


def longest(copies: list[Gained]) -> Gained:
    """The copy that has everything which any of them has. Raises `InternalError` where they are not beginnings of one
    history."""
    found = max(copies, key=lambda copy: copy.first + len(copy.entries))
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
