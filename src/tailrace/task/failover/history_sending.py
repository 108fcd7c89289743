"""The sending of histories: each worker sends its own ahead of whatever follows from it, and passes on those of others
(`protocol.replay`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tailrace.elements.frame_codec import encode_history
from tailrace.protocol.deployment import Progress
from tailrace.protocol.replay import (
    CameValues,
    Gained,
    NotCompared,
    bits_of,
    encode_gained,
)
from tailrace.task.contract.actions import Action, ToCoordinator, ToPeer
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.standby_feed import StandbyFeed
from tailrace.task.journal.history import History
from tailrace.task.journal.replayable_outbox import outbox_of

COORDINATOR = -1
"""The coordinator as a receiver of histories."""


def with_history(slice: ReplayableSlice, actions: Iterable[Action]) -> list[Action]:
    """The actions of a worker, each after the history that it follows from. Progress reports need no history: nothing
    depends on them."""
    if slice.services.inexact and not slice.again:
        slice.services.inexact = False
        slice.history.cut_short()
    found: list[Action] = []
    while slice.compared.reasons:
        found.append(ToCoordinator(NotCompared(*slice.compared.reasons.popitem())))
    also, rest = b"", frozenset[int]()
    if (
        slice.beside or slice.services.depth > 1
    ):  # others pass this worker's history on, where it does not send it itself
        actions = list(actions)
        to = {action.slot for action in actions if isinstance(action, ToPeer)} - slice.gone
        if to and slice.history.end >= slice.pushed + slice.pause and not slice.again:
            slice.pushed, rest = slice.history.end, frozenset(slice.peers() - slice.gone - to)
        also = bits_of(to | rest)
    for action in actions:
        if isinstance(action, ToPeer):
            found += [
                to_peer(slice, action.slot, gained) for gained in news_for(slice, slice.history, action.slot, also)
            ]
        elif isinstance(action, ToCoordinator) and not isinstance(action.message, Progress):
            found += [ToCoordinator(gained) for gained in news_for(slice, slice.history, COORDINATOR)]
        found.append(action)
    for slot in sorted(rest):
        found += [to_peer(slice, slot, gained) for gained in news_for(slice, slice.history, slot, also)]
    return found if slice.feed is None else [*found, *_to_standby(slice, slice.feed)]


def _to_standby(slice: ReplayableSlice, feed: StandbyFeed) -> list[Action]:
    """What goes to the hot standby of a slice now."""
    found: list[Action] = []
    if feed.is_due(slice.history):
        feed.urgent = False
        found += [*feed.sends(), *(feed.report(one, _sealed_values(slice)) for one in feed.news(slice.history))]
    if feed.over is not None:
        found.append(ToCoordinator(feed.over))
        slice.history.forget(feed.over.place)
        feed.over = None
    return found


def _sealed_values(slice: ReplayableSlice) -> Iterator[CameValues]:
    """The hash of all values that were sealed on each channel to another worker."""
    for task in slice.tasks:
        outbox = outbox_of(task)
        for ident, digest in outbox.values.items():
            if digest.value is not None:
                yield (*ident, outbox.channels[ident].seq, digest.value)


def news_for(slice: ReplayableSlice, history: History, party: int, also: bytes = b"") -> list[Gained]:
    """The histories that a party must receive now: those of other workers on which this one may depend, and which may be
    lost together with this worker (Y11); then this worker's own. Histories of other workers come with an own entry even if
    the own history has gained nothing, since they count only with it (`Hearsay`). Where their owners have sent them to the
    party, it waits for these (Y16). `also`: the workers to which the own history goes now."""
    own, depth = history.new_entries(party), slice.services.depth
    if own is not None and also and (depth > 1 or party in slice.beside):
        own = msgspec.structs.replace(own, also=also)
    origins = slice.beside if depth < 2 else sorted(slice.copies)
    if not origins:
        return [] if own is None else [own]
    copies = [(origin, slice.copies[origin]) for origin in origins if origin != party and origin in slice.copies]
    needs = [(origin, end) for origin, copy in copies if (end := copy.needed_by(party)) is not None]
    found = [gained for origin, copy in copies if (gained := copy.reported_to(origin, party, depth)) is not None]
    if not found and not needs:
        return [] if own is None else [own]
    own = own or Gained(history.end, [])
    return [*found, msgspec.structs.replace(own, needs=needs) if needs else own]


def to_peer(slice: ReplayableSlice, slot: int, gained: Gained) -> ToPeer:
    """The action that sends a part of a history to a peer."""
    return ToPeer(slot, encode_history(slice.slot, slot, slice.incarnation, slice.attempt, encode_gained(gained)))
