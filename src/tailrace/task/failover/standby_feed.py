"""The feed of a hot standby (`protocol.hot_standby`): all that comes to a worker from other workers, in the order in which
it comes, and the worker's history.

Before a standby calls, the feed keeps what has come since the newest complete checkpoint, as far as barriers show where
that begins. Then it sends what it keeps, under credit, and keeps nothing that was sent. It gathers until the standby has
taken what was sent before: so the standby sets the pace, and replays many steps as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from tailrace.elements.frame_codec import ChannelId, Element, Frame, encode_history, encode_marker
from tailrace.elements.markers import Barrier, EndOfInput, Marker
from tailrace.protocol.credit import Producer
from tailrace.protocol.hot_standby import Feeds, Followed
from tailrace.protocol.replay import CameValues, Gained
from tailrace.task.channels.spilling import Item
from tailrace.task.contract.actions import ToPeer
from tailrace.task.journal.history import History
from tailrace.task.journal.sent_log import Keeping

EACH = 16
"""Entries of the history that a busy worker gathers before it sends them to its standby."""
NOWHERE = -1
"""In the place of a checkpoint: of what a channel has brought, nothing is kept before its next barrier."""
TOO_FAR = "it does not keep pace: what it has not read reaches back behind the checkpoint before the newest one"


class StandbyFeed:
    """What one worker keeps and sends for the hot standby of its slice.

    Invariant Y18: what is kept of each channel begins behind one barrier, or where the channel does, and has no gaps.
    """

    def __init__(
        self, slot: int, incarnation: int, channels: Iterable[ChannelId], keeping: Keeping, window: int
    ) -> None:
        """`channels`: those from other workers. `window`: the bytes that the standby may have unread."""
        self._slot, self._incarnation, self._window = slot, incarnation, window
        self._keeping = keeping
        self.party: int | None = None
        """The place of the standby that is fed; None while none is."""
        self._expected: int | None = None
        """The place of the standby that is to call."""
        self.urgent = False
        """True if the worker has nothing else to do, or the standby has answered: it gets what there is."""
        self._unanswered = False
        """True from a report on until the standby has taken it."""
        self.over: Feeds | None = None
        """The report that the standby is fed no more."""
        self._waiting = deque[tuple[ChannelId, int, Marker | Item]]()
        """What has come and was not sent, in order."""
        self._since: dict[ChannelId, int] = dict.fromkeys(channels, 0)
        """The checkpoint behind whose barrier begins what is kept of each channel; 0: it begins where the channel does."""
        self._ended: set[ChannelId] = set()
        """Channels whose end has come."""
        self._flow = Producer(window)
        self._complete = self._newest = self._gone = 0
        """The newest checkpoint that is complete; that of which any barrier has come; and that when feeding ended last."""
        self._news: list[Gained] = []
        """Entries of the history that the standby has yet to get, and that the history itself has dropped."""
        self._values: dict[tuple[int, int, int], int] = {}
        """The number behind the last record that a reported hash covers, by channel."""

    def arrive(self, ident: ChannelId, seq: int, element: Element) -> None:
        """Takes what has come on a channel."""
        if isinstance(element, EndOfInput):
            self._ended.add(ident)
        elif isinstance(element, Barrier):
            self._newest = max(self._newest, element.checkpoint)
        if self._since[ident] == NOWHERE:
            if isinstance(element, Barrier):
                self._since[ident] = element.checkpoint
            return
        if isinstance(element, Frame):
            self._waiting.append((ident, seq, self._keeping.keep(element.count, element.data)))
        else:
            assert isinstance(element, Marker)
            self._waiting.append((ident, seq, element))

    def complete(self, checkpoint: int) -> None:
        """Notes that a checkpoint is complete. A standby that has yet to be sent what came before the complete one before
        it does not keep pace, and is fed no more."""
        before, self._complete = self._complete, checkpoint
        if any(isinstance(one, Barrier) and one.checkpoint <= before for _, _, one in self._waiting):
            self.end(TOO_FAR)
        if self.party is None and self._expected is None:
            self._drop(checkpoint)

    def keep_history(self, history: History) -> None:
        """Keeps the entries of the history that the standby has yet to get, which the history is about to drop."""
        place = self._expected if self.party is None else self.party
        gained = None if place is None else history.new_entries(place)
        if gained is not None:
            self._news.append(gained)

    def _drop(self, checkpoint: int) -> None:
        """Drops what came before the barriers of a checkpoint."""
        places = {
            ident: at
            for at, (ident, _, one) in enumerate(self._waiting)
            if isinstance(one, Barrier) and one.checkpoint == checkpoint
        }
        # Others have ended before their cut, where no barrier came.
        over = {ident for ident in self._ended - places.keys() if self._since[ident] < checkpoint}
        kept = deque[tuple[ChannelId, int, Marker | Item]]()
        for at, (ident, seq, one) in enumerate(self._waiting):
            if ident in over or (ident in places and at <= places[ident]):
                self._release(one)
            else:
                kept.append((ident, seq, one))
        self._waiting = kept
        known = [ident for ident in over if self._since[ident] != NOWHERE or checkpoint > self._gone]
        self._since.update(dict.fromkeys((*places, *known), checkpoint))

    def _release(self, one: Marker | Item) -> None:
        if isinstance(one, Item):
            self._keeping.release(one)

    def expect(self, place: int, checkpoint: int) -> bool:
        """Expects the standby in this place to call, if all is kept that has come since this checkpoint, which is the
        newest complete one here. Returns whether it is."""
        if place == self.party:
            self.end("")
        if self._expected is not None:  # whoever it was has not called
            self._expected = None
            self._drop(self._complete)
        whole = all(since == checkpoint for since in self._since.values())
        if self.party is not None or self._complete != checkpoint or not whole:
            return False
        self._expected = place
        return True

    def begin(self, party: int) -> None:
        """Begins to feed the standby in this place, which can be reached now."""
        if party != self._expected:
            self.over = Feeds(party, self._complete, False, TOO_FAR)
            return
        self.party, self._flow, self._values, self._expected = party, Producer(self._window), {}, None
        self._unanswered = False

    def end(self, reason: str) -> None:
        """Ends feeding. What another standby needs is kept from the next barriers on."""
        if self.party is not None and reason:
            self.over = Feeds(self.party, self._complete, False, reason)
        self.party = self._expected = None
        for _, _, one in self._waiting:
            self._release(one)
        self._waiting.clear()
        self._news.clear()
        self._since, self._gone = dict.fromkeys(self._since, NOWHERE), self._newest

    def grant(self, total: int) -> None:
        """Takes a grant of the standby, which has taken the newest report."""
        self._flow.grant(total)
        self._unanswered, self.urgent = False, True

    def is_due(self, history: History) -> bool:
        """True if the standby is to get what has come, and what is new in the history."""
        if self.party is None or self._unanswered:
            return False
        return self.urgent or history.unsent(self.party) >= EACH

    def sends(self) -> list[ToPeer]:
        """What may go to the standby now, of what has come."""
        found = list[ToPeer]()
        assert self.party is not None
        while self._waiting:
            ident, seq, one = self._waiting[0]
            if isinstance(one, Item):
                if not self._flow.may_send(one.size):
                    break
                self._flow.send(one.size)
                data = self._keeping.frame(one)
                self._keeping.release(one)
            else:
                data = encode_marker(ident, self._incarnation, 0, seq, one)
            self._waiting.popleft()
            found.append(ToPeer(self.party, data))
        return found

    def news(self, history: History) -> list[Gained]:
        """What is new in the history for the standby."""
        assert self.party is not None
        found, self._news = self._news, []
        if history.unsent(self.party):
            gained = history.new_entries(self.party)
            assert gained is not None
            found.append(gained)
        self._unanswered = bool(found)
        return found

    def report(self, gained: Gained, values: Iterable[CameValues]) -> ToPeer:
        """A report of the history, and of the hashes that are new."""
        assert self.party is not None
        news = [one for one in values if self._values.get(one[:3]) != one[3]]
        self._values.update((one[:3], one[3]) for one in news)
        data = _encoder.encode(Followed(gained, news))
        return ToPeer(self.party, encode_history(self._slot, self.party, self._incarnation, 0, data))

    def close(self) -> None:
        """Releases what is kept."""
        self._waiting.clear()
        self._keeping.close()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Followed)


def decode_followed(data: bytes | memoryview) -> Followed:
    """A report from the bytes that `StandbyFeed.report` made."""
    found: Followed = _decoder.decode(data)
    return found
