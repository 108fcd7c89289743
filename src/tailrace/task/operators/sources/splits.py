"""Splits of a source: the messages between its subtasks, and the half that deals the splits out.

Subtask 0 of a source is its enumerator: it alone lists the splits. Readers request splits from it, and it answers. These
messages go over the coordinator, which does not look inside; each link keeps their order.

**Why no split is lost or read twice.** A source subtask cuts when it is triggered, each at its own moment, and messages
may be under way meanwhile. The rule is that of a barrier: a message that was sent behind the sender's cut is not looked
at before the receiver's cut (`SplitMessage.cuts`). So in any complete checkpoint a split is in exactly one place:

- *held* or *ended* in the snapshot of one reader: it got the split before its cut, so the enumerator knew it before its
  own (the enumerator forgets a split only after its reader has reported the end, and that message obeys the rule too);
- else *unassigned*, which is not stored: all splits that the enumerator knows, less what any reader holds or ended. An
  assignment under way at the cut is among them, and is made anew after a restore. A reader that had finished by the cut
  gets none: nothing was under way to it, because the enumerator had reported that there are no more behind its last split.

Both halves forget what has ended: first the enumerator (`Ask.ended`), then the reader (`Deal.forget`), so that a long run
over many splits does not make checkpoints grow. A reader that still remembers what the enumerator has forgotten does no
harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from tailrace.elements.valueclasses import Shapes, merge
from tailrace.elements.valuepickling import shapes_in
from tailrace.errors import InternalError


class Ask(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Message from a reader: the splits that have ended there, and whether it requests a split."""

    wants: bool = False
    ended: list[int] = []


class Deal(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Message to a reader: splits (number, pickled) to read. `last`: there will be no others for it. `forget`: splits
    whose end it has reported, and that the enumerator has forgotten. `more`: this is a part of a deal, and other parts
    follow. `gone`: splits that end where they are. `moved`: splits that are described in another way (number, pickled). A
    reader ignores those that it does not have."""

    splits: list[tuple[int, bytes]] = []
    last: bool = False
    forget: list[int] = []
    more: bool = False
    gone: list[int] = []
    moved: list[tuple[int, bytes]] = []


MESSAGE_BYTES = 16 << 20
"""Approximate size of the messages in which splits travel that are dealt out together."""
LARGEST_SPLIT = 32 << 20
"""Largest size of a split, pickled, in bytes: it must fit into a message. A larger one is refused where it is listed."""


def in_messages(message: Ask | Deal) -> list[Ask | Deal]:
    """Message in parts that can travel. Of a deal only the last part ends the reader's waiting."""
    if isinstance(message, Ask):
        return [message]
    parts: list[list[tuple[int, bytes]]] = [[]]
    size = 0
    for index, split in message.splits:
        if parts[-1] and size + len(split) > MESSAGE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append((index, split))
        size += len(split)
    whole = msgspec.structs.replace(message, splits=parts[-1])
    return [*[Deal(part, more=True) for part in parts[:-1]], whole]


class SplitMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Message with the cuts that its sender had made and did not know to be over."""

    message: Ask | Deal
    cuts: list[int] = []


_posts = msgspec.msgpack.Decoder(SplitMessage)


class Cuts:
    """Cuts that one subtask has made, and which messages must wait for a cut here."""

    def __init__(self) -> None:
        self.newest = 0
        self.open: list[int] = []
        """Cuts made here that are not known to be complete or aborted."""
        self._aborted: set[int] = set()

    def note_cut(self, cut: int) -> None:
        self.newest = max(self.newest, cut)
        self.open.append(cut)
        self._aborted = {one for one in self._aborted if one > self.newest}

    def complete(self, cut: int) -> None:
        """Forgets a cut that every subtask has made, and the older ones: nothing waits for them any more."""
        self.open = [one for one in self.open if one > cut]

    def abort(self, cut: int) -> None:
        if cut > self.newest:
            self._aborted.add(cut)
        self.open = [one for one in self.open if one != cut]

    def behind(self, post: SplitMessage) -> bool:
        """True if a message was sent behind a cut that is still to be made here."""
        return any(cut > self.newest and cut not in self._aborted for cut in post.cuts)

    def stamp(self, message: Ask | Deal) -> bytes:
        """Message as bytes, with the open cuts that it is behind of."""
        return msgspec.msgpack.encode(SplitMessage(message, self.open))


def read_post(payload: bytes) -> SplitMessage:
    """Message from its bytes. Raises `InternalError` for other bytes: only this module writes them."""
    try:
        return _posts.decode(payload)
    except msgspec.MsgspecError as error:
        raise InternalError(f"no message between subtasks of a source: {error}") from error


class HeldSplit(msgspec.Struct, omit_defaults=True):
    """Split that a reader has: its number, the split and the reader's position, both pickled. Without a position reading
    starts at the beginning of the split."""

    index: int
    split: bytes
    position: bytes | None = None


class EnumeratorState(msgspec.Struct, omit_defaults=True):
    """State of the enumerator in a checkpoint."""

    splits: list[tuple[int, bytes]]
    """All splits that have not ended, as far as readers have reported."""
    next: int
    """Number of the next split that is found."""
    over: bool = True
    """True if no more splits will be found."""
    position: bytes | None = None
    """Position of the user's `Enumerator` from which finding goes on, pickled."""
    gone: list[int] = []
    """Splits that are gone, and whose end no reader has reported."""


class SourceState(msgspec.Struct, omit_defaults=True):
    """State of one subtask of a source at a cut. Reading it unpickles nothing."""

    held: list[HeldSplit] = []
    ended: list[int] = []
    known: EnumeratorState | None = None
    """State of the enumerator; in subtask 0 only."""
    version: int = 1


_states = msgspec.msgpack.Decoder(SourceState)


def encode_state(state: SourceState) -> bytes:
    """State of a subtask as bytes."""
    return msgspec.msgpack.encode(state)


def decode_state(data: bytes) -> SourceState:
    """State of a subtask from bytes."""
    return _states.decode(data)


def classes_of(state: SourceState) -> Shapes:
    """Classes of the splits and positions in the state of a subtask, as they are pickled there."""
    known = state.known
    values = [data for one in state.held for data in (one.split, one.position)]
    values += [] if known is None else [*(split for _, split in known.splits), known.position]
    found: Shapes = ()
    for data in values:
        if data is not None and (shapes := shapes_in(data)):
            found = merge(found, shapes)
    return found


class Dealer:
    """Deals splits out to the readers that request them.

    Without `everything`, splits are dealt one at a time. A reader gets the split of its own number first: that split is
    kept for it until its first request, so that with as many splits as subtasks each reads its own. With `everything`
    (event time: the watermark is a minimum over splits, so none may wait its turn) split i goes to subtask i modulo the
    parallelism, all of them at once.

    Invariant D1: a split is dealt out at most once per attempt: it leaves `unassigned` when it is.
    """

    def __init__(self, parallelism: int, everything: bool) -> None:
        self.parallelism = parallelism
        self.everything = everything
        self.known: dict[int, bytes] = {}
        self.unassigned: dict[int, bytes] = {}
        self.gone: set[int] = set()
        """Known splits that are gone, and whose end no reader has reported."""
        self.next = 0
        self.over = False
        """True if no more splits will be found."""
        self._looked = False
        """True if splits were looked for. Before that no reader can be informed that there are none for it at the moment."""
        self._informed: set[int] = set()
        """Readers that were informed that there are no more splits for them."""
        self._requests: set[int] = set()
        self._waiting: dict[int, bool] = {}
        """Readers that take more splits, each with True if it has had no answer yet. For event time a reader waits for an
        answer even if there is no split for it: until then it does not count as idle."""

    def add(self, splits: list[bytes]) -> None:
        """Adds splits that were found, pickled, if any."""
        self._looked = True
        for split in splits:
            self.known[self.next] = self.unassigned[self.next] = split
            self.next += 1

    def change(self, gone: Collection[int], moved: Mapping[int, bytes]) -> list[tuple[int, Deal]]:
        """Takes splits that are gone, or are described in another way. Returns the deals for all readers: which one has a
        split is not known behind a restore, and a checkpoint may not have the message."""
        for index in [index for index in gone if self.unassigned.pop(index, None) is not None]:
            del self.known[index]
        self.known |= moved
        self.unassigned |= {index: split for index, split in moved.items() if index in self.unassigned}
        self.gone.update(index for index in gone if index in self.known)
        deal = Deal(gone=sorted(self.gone.intersection(gone)), moved=sorted(moved.items()))
        return [(reader, deal) for reader in range(self.parallelism)] if deal.gone or deal.moved else []

    def restore(self, known: EnumeratorState, held: set[int], ended: set[int]) -> None:
        """Goes on from a checkpoint. No split is kept for a reader: one that holds a split does not send a request at
        once."""
        self.known = {index: split for index, split in known.splits if index not in ended}
        self.unassigned = {index: split for index, split in self.known.items() if index not in held}
        self.next, self.over = known.next, known.over
        self._requests.update(range(self.parallelism))
        self.gone = {index for index in known.gone if index in self.known}
        self._looked = known.over  # else no reader is informed that there is none before splits were looked for

    def state(self, position: bytes | None) -> EnumeratorState:
        """State of the enumerator for a checkpoint."""
        return EnumeratorState(list(self.known.items()), self.next, self.over, position, sorted(self.gone))

    def answer(self, reader: int, ask: Ask) -> list[tuple[int, Deal]]:
        """Takes the request of a reader; returns the answers, each with the reader that receives it."""
        for index in ask.ended:
            self.known.pop(index, None)
            self.gone.discard(index)
        if ask.wants:
            self._requests.add(reader)
            self._waiting[reader] = True
        return self.deal({reader: ask.ended} if ask.ended else {})

    def deal(self, forget: dict[int, list[int]] | None = None) -> list[tuple[int, Deal]]:
        """Deals that can be made now, each with its reader. A reader for which there will be no more splits is informed
        of that."""
        forget = forget or {}
        given: dict[int, list[tuple[int, bytes]]] = {}
        own_first = sorted(self._waiting, key=lambda reader: reader not in self.unassigned)
        for reader in own_first:
            taken = self._taken_by(reader)
            if taken or (self.everything and self._looked and self._waiting[reader]):
                given[reader] = [(index, self.unassigned.pop(index)) for index in taken]
                self._waiting[reader] = False
                if not self.everything:
                    del self._waiting[reader]
        last = self._without_more() - self._informed
        self._informed |= last
        to = sorted({*given, *forget, *last})
        return [(reader, Deal(given.get(reader, []), reader in last, forget.get(reader, []))) for reader in to]

    def _without_more(self) -> set[int]:
        """Readers for which there will be no more splits."""
        if not self.over:
            return set()
        if self.everything:
            return set(range(self.parallelism)) - {index % self.parallelism for index in self.unassigned}
        if any(index >= self.parallelism or index in self._requests for index in self.unassigned):
            return set()
        # What is left is kept for the readers that have not requested any.
        return set(range(self.parallelism)) - set(self.unassigned)

    def _taken_by(self, reader: int) -> list[int]:
        if self.everything:
            return [index for index in self.unassigned if index % self.parallelism == reader]
        if reader in self.unassigned:
            return [reader]
        free = (i for i in self.unassigned if i >= self.parallelism or i in self._requests)
        return [index] if (index := next(free, None)) is not None else []


def deal_again(states: list[tuple[int, int, SourceState]], subtask: int, parallelism: int) -> list[HeldSplit]:
    """Splits that a subtask holds after a restore. `states`: (subtask, parallelism, state) of all old subtasks. At the
    same parallelism each keeps its own; else they are dealt out in turn."""
    if all(was == parallelism for _, was, _ in states):
        return [held for mine, _, state in states if mine == subtask for held in state.held]
    everything = sorted((held for _, _, state in states for held in state.held), key=lambda held: held.index)
    return everything[subtask::parallelism]


def join_states(states: list[tuple[int, int, SourceState]]) -> tuple[EnumeratorState | None, set[int], set[int]]:
    """State of all old subtasks together: (what the enumerator knew, what is held, what has ended)."""
    known = next((state.known for _, _, state in states if state.known is not None), None)
    held = {held.index for _, _, state in states for held in state.held}
    ended = {index for _, _, state in states for index in state.ended}
    return known, held, ended
