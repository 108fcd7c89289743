"""Who reads which split: what the subtasks of a source say to each other, and the half that deals the splits out.

Subtask 0 of a source is its enumerator: it alone lists the splits. Readers ask it for one, and it answers. These messages
go over the coordinator, which does not look inside; each link keeps their order.

**Why no split is lost or read twice.** A source subtask cuts when it is triggered, each at its own moment, and messages
may be under way meanwhile. The rule is that of a barrier: what was sent behind the sender's cut is not looked at before
the receiver's cut (`SplitMessage.cuts`). So in any complete checkpoint a split is in exactly one place:

- *held* or *ended* in the snapshot of one reader: it got the split before its cut, so the enumerator knew it before its
  own (a split is forgotten there only after its reader has said that it ended, and that message obeys the rule too);
- else *unassigned*, which is nothing that is stored: all that the enumerator knows, less what any reader holds or ended.
  An assignment under way at the cut is in there, and is made anew after a restore. A reader that had finished by the cut
  gets none: nothing was under way to it, because it was told that there are no more behind its last split.

Both halves forget what has ended: first the enumerator (`Ask.ended`), then the reader (`Deal.forget`), so that a long run
over many splits does not make checkpoints grow. A reader that still remembers what the enumerator has forgotten does no
harm.
"""

from __future__ import annotations

import msgspec

from tailrace.elements.valueclasses import Shapes, merged
from tailrace.elements.valuepickling import described
from tailrace.errors import InternalError


class Ask(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """From a reader: what has ended there, and whether it wants a split."""

    wants: bool = False
    ended: list[int] = []


class Deal(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """To a reader: splits (number, pickled) to read. `last`: there will be no others for it. `forget`: what it said has
    ended, and the enumerator has forgotten. `more`: this is a part of what it was dealt, and others follow."""

    splits: list[tuple[int, bytes]] = []
    last: bool = False
    forget: list[int] = []
    more: bool = False


MESSAGE_BYTES = 16 << 20
"""Splits that are dealt out together travel in messages of about so many bytes."""
LARGEST_SPLIT = 32 << 20
"""A split that is larger, pickled, is refused where it is listed: it must fit into a message."""


def in_messages(message: Ask | Deal) -> list[Ask | Deal]:
    """A message in parts that can travel. Of a deal only the last part ends the reader's waiting."""
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
    """A message with the cuts that its sender had made and did not know to be over."""

    message: Ask | Deal
    cuts: list[int] = []


_posts = msgspec.msgpack.Decoder(SplitMessage)


class Cuts:
    """The cuts that one subtask has made, and what must wait for the others' sake."""

    def __init__(self) -> None:
        self.newest = 0
        self.open: list[int] = []
        """Cuts made here of which nobody has said yet that they are complete or aborted."""
        self._aborted: set[int] = set()

    def made(self, cut: int) -> None:
        self.newest = max(self.newest, cut)
        self.open.append(cut)
        self._aborted = {one for one in self._aborted if one > self.newest}

    def complete(self, cut: int) -> None:
        """Everybody has made this cut, and so whatever was to be made of the older ones."""
        self.open = [one for one in self.open if one > cut]

    def aborted(self, cut: int) -> None:
        if cut > self.newest:
            self._aborted.add(cut)
        self.open = [one for one in self.open if one != cut]

    def behind(self, post: SplitMessage) -> bool:
        """Whether a message was sent behind a cut that is still to be made here."""
        return any(cut > self.newest and cut not in self._aborted for cut in post.cuts)

    def stamp(self, message: Ask | Deal) -> bytes:
        """A message as bytes, with the cuts that it is behind of."""
        return msgspec.msgpack.encode(SplitMessage(message, self.open))


def read_post(payload: bytes) -> SplitMessage:
    """A message from its bytes. Raises `InternalError` for what is none: only we write them."""
    try:
        return _posts.decode(payload)
    except msgspec.MsgspecError as error:
        raise InternalError(f"no message between subtasks of a source: {error}") from error


class HeldSplit(msgspec.Struct, omit_defaults=True):
    """A split that a reader has: its number, the split and the reader's position, both pickled. Without a position
    reading starts at its beginning."""

    index: int
    split: bytes
    position: bytes | None = None


class EnumeratorState(msgspec.Struct, omit_defaults=True):
    """What the enumerator knows."""

    splits: list[tuple[int, bytes]]
    """All splits that have not ended, as far as it was told."""
    next: int
    """The number of the next split that is found."""
    over: bool = True
    """Whether no more will be found."""
    position: bytes | None = None
    """Where finding goes on: that of a `Enumerator`, pickled."""


class SourceState(msgspec.Struct, omit_defaults=True):
    """What one subtask of a source has at a cut. Reading it unpickles nothing."""

    held: list[HeldSplit] = []
    ended: list[int] = []
    known: EnumeratorState | None = None
    """In subtask 0."""
    version: int = 1


_states = msgspec.msgpack.Decoder(SourceState)


def encode_state(state: SourceState) -> bytes:
    """The state of a subtask as bytes."""
    return msgspec.msgpack.encode(state)


def decode_state(data: bytes) -> SourceState:
    """The state of a subtask from bytes."""
    return _states.decode(data)


def classes_of(state: SourceState) -> Shapes:
    """The classes of the splits and positions in the state of a subtask, as they are."""
    known = state.known
    values = [data for one in state.held for data in (one.split, one.position)]
    values += [] if known is None else [*(split for _, split in known.splits), known.position]
    found: Shapes = ()
    for data in values:
        if data is not None and (shapes := described(data)):
            found = merged(found, shapes)
    return found


class Dealer:
    """Deals splits out to those who ask.

    One at a time, a reader that asks gets the split of its own number first: it is kept for it until it asked once, so
    that with as many splits as subtasks each reads its own. With `everything` (event time: the watermark is a minimum
    over splits, so none may wait its turn) split i goes to subtask i modulo the parallelism, all of them at once.

    Invariant D1: a split is dealt out at most once per attempt: it leaves `unassigned` when it is.
    """

    def __init__(self, parallelism: int, everything: bool) -> None:
        self.parallelism = parallelism
        self.everything = everything
        self.known: dict[int, bytes] = {}
        self.unassigned: dict[int, bytes] = {}
        self.next = 0
        self.over = False
        """Whether no more splits will be found."""
        self._looked = False
        """Whether it was looked for splits, so that one can say that there are none for somebody at the moment."""
        self._told: set[int] = set()
        """Readers that were told that there are no more for them."""
        self._asked: set[int] = set()
        self._waiting: dict[int, bool] = {}
        """Readers that take more, and whether each has had no answer yet. For event time it waits for one even where
        there is no split for it: until then it may not be taken for idle."""

    def found(self, splits: list[bytes]) -> None:
        """There are more splits, pickled; or it was looked for them."""
        self._looked = True
        for split in splits:
            self.known[self.next] = self.unassigned[self.next] = split
            self.next += 1

    def restore(self, known: EnumeratorState, held: set[int], ended: set[int]) -> None:
        """Goes on from a checkpoint. Nothing is kept for anybody: who holds a split does not ask at once."""
        self.known = {index: split for index, split in known.splits if index not in ended}
        self.unassigned = {index: split for index, split in self.known.items() if index not in held}
        self.next, self.over = known.next, known.over
        self._asked.update(range(self.parallelism))
        self._looked = known.over  # else nobody is told that there is none before it was looked anew

    def state(self, position: bytes | None) -> EnumeratorState:
        """What a checkpoint holds of it."""
        return EnumeratorState(list(self.known.items()), self.next, self.over, position)

    def ask(self, reader: int, ask: Ask) -> list[tuple[int, Deal]]:
        """A reader asks: the answers, and to whom they go."""
        for index in ask.ended:
            self.known.pop(index, None)
        if ask.wants:
            self._asked.add(reader)
            self._waiting[reader] = True
        return self.deal({reader: ask.ended} if ask.ended else {})

    def deal(self, forget: dict[int, list[int]] | None = None) -> list[tuple[int, Deal]]:
        """What can be dealt out now, and whether that was the last of it."""
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
        last = self._without_more() - self._told
        self._told |= last
        to = sorted({*given, *forget, *last})
        return [(reader, Deal(given.get(reader, []), reader in last, forget.get(reader, []))) for reader in to]

    def _without_more(self) -> set[int]:
        """Readers for which there will be no more splits."""
        if not self.over:
            return set()
        if self.everything:
            return set(range(self.parallelism)) - {index % self.parallelism for index in self.unassigned}
        if any(index >= self.parallelism or index in self._asked for index in self.unassigned):
            return set()
        # What is left is kept for the readers that have not asked.
        return set(range(self.parallelism)) - set(self.unassigned)

    def _taken_by(self, reader: int) -> list[int]:
        if self.everything:
            return [index for index in self.unassigned if index % self.parallelism == reader]
        if reader in self.unassigned:
            return [reader]
        free = (i for i in self.unassigned if i >= self.parallelism or i in self._asked)
        return [index] if (index := next(free, None)) is not None else []


def deal_again(states: list[tuple[int, int, SourceState]], subtask: int, parallelism: int) -> list[HeldSplit]:
    """The splits that a subtask holds after a restore, of what all old ones, (subtask, parallelism, state), held. At the
    same parallelism each keeps its own; else they are dealt out in turn."""
    if all(was == parallelism for _, was, _ in states):
        return [held for mine, _, state in states if mine == subtask for held in state.held]
    everything = sorted((held for _, _, state in states for held in state.held), key=lambda held: held.index)
    return everything[subtask::parallelism]


def joined(states: list[tuple[int, int, SourceState]]) -> tuple[EnumeratorState | None, set[int], set[int]]:
    """What all old subtasks together say: (what the enumerator knew, what is held, what has ended)."""
    known = next((state.known for _, _, state in states if state.known is not None), None)
    held = {held.index for _, _, state in states for held in state.held}
    ended = {index for _, _, state in states for index in state.ended}
    return known, held, ended
