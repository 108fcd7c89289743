"""The part of a worker in replacements: what it sends to replaced workers, and what it does as a replacement
(`protocol.replay`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tailrace.elements.frame_codec import ChannelId, encode_history
from tailrace.protocol.deployment import OperatorEvent, Progress
from tailrace.protocol.replay import (
    Came,
    CameValues,
    Gained,
    KnownHistory,
    NotCompared,
    ReplayDone,
    Resume,
    WorkerLost,
    bits_of,
    encode_gained,
)
from tailrace.task.contract.actions import Action, ToCoordinator, ToPeer
from tailrace.task.failover.channel_restore import AsItWas
from tailrace.task.failover.feed import StandbyFeed
from tailrace.task.failover.recorded_slice import RecordedSlice
from tailrace.task.failover.replay import Again, account_for_local, let_go
from tailrace.task.failover.withheld_output import release
from tailrace.task.journal.divergence import differs
from tailrace.task.journal.history import History, decode_all
from tailrace.task.journal.recorded_gate import gate_of
from tailrace.task.journal.recorded_outbox import outbox_of
from tailrace.task.operators.sink import SinkTask
from tailrace.task.slice.machine import Slice

COORDINATOR = -1
"""The coordinator as a receiver of histories."""


def with_history(slice: RecordedSlice, actions: Iterable[Action]) -> list[Action]:
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
            found += [_to_peer(slice, action.slot, gained) for gained in _news(slice, slice.history, action.slot, also)]
        elif isinstance(action, ToCoordinator) and not isinstance(action.message, Progress):
            found += [ToCoordinator(gained) for gained in _news(slice, slice.history, COORDINATOR)]
        found.append(action)
    for slot in sorted(rest):
        found += [_to_peer(slice, slot, gained) for gained in _news(slice, slice.history, slot, also)]
    return found if slice.feed is None else [*found, *_to_standby(slice, slice.feed)]


def _to_standby(slice: RecordedSlice, feed: StandbyFeed) -> list[Action]:
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


def _sealed_values(slice: RecordedSlice) -> Iterator[CameValues]:
    """The hash of all values that were sealed on each channel to another worker."""
    for task in slice.tasks:
        outbox = outbox_of(task)
        for ident, digest in outbox.values.items():
            if digest.value is not None:
                yield (*ident, outbox.channels[ident].seq, digest.value)


def _news(slice: RecordedSlice, history: History, party: int, also: bytes = b"") -> list[Gained]:
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


def _to_peer(slice: RecordedSlice, slot: int, gained: Gained) -> ToPeer:
    return ToPeer(slot, encode_history(slice.slot, slot, slice.incarnation, slice.attempt, encode_gained(gained)))


def known_history(slice: RecordedSlice, lost: WorkerLost) -> KnownHistory:
    """The report of a survivor on a lost worker. Frames that still come from that worker are dropped from now on."""
    slice.gone.add(lost.slice)
    slice.held.pop(lost.slice, None)
    if lost.slice not in slice.beside:  # else its history is passed on until the coordinator has all of it
        slice.place({lost.slice: ""})
    slice.hearsay.forget(lost.slice)
    came, frames = list[Came](), list[int]()
    for gate in map(gate_of, slice.tasks):
        for ident in gate.channels:
            if ident.source == lost.slice and ident.source != slice.slot:
                digest = gate.came_since(ident, lost.checkpoint)
                came.append((*ident, digest.count, digest.value))
                frames.append(gate.frames_ever(ident))
    values = [
        (*ident, *known)
        for task in slice.tasks
        for ident, known in gate_of(task).values.items()
        if ident.source == lost.slice
    ]
    known = slice.copies[lost.slice].report(lost.known)
    return KnownHistory(lost.slice, known, came, lost.turn, values, frames)


def peer_replaced(slice: RecordedSlice, slot: int) -> list[Action]:
    """Sends what was kept for a lost worker to its replacement, which can be reached now. This worker's history goes
    first, even if it is empty: the replacement sends nothing before it has it."""
    slice.gone.discard(slot)
    slice.history.forget(slot)
    for copy in slice.copies.values():
        copy.forget(slot)
    first = _news(slice, slice.history, slot) or [Gained(slice.history.first, [])]
    for task in slice.tasks:
        for ident in task.gate.channels:
            if ident.source == slot:
                gate_of(task).sender_replaced(ident)
        for ident, channel in task.outbox.channels.items():
            if ident.target == slot and not channel.local and slot not in slice.awaiting:
                slice.feed_again(task, ident)
        task.wake()
        slice.route(task)
    return [_to_peer(slice, slot, gained) for gained in first]


def sweep(slice: Slice) -> None:
    """Has the writers of a replacement's sinks remove what the sinks of the lost worker left: everything of them that ever
    will be published is published."""
    for task in slice.tasks:
        for operator in task.chain.operators:
            if isinstance(operator, SinkTask):
                operator.call_user(operator.writer.took_over, what="removing what the sink of a lost worker left")


class Resumed:
    """A slice that takes the place of a lost one: it replays the lost one's steps, and goes on.

    Invariant Y5: it goes on only where what it has made again of each channel is, by its digest, what others have of it.
    """

    def __init__(
        self, slice: RecordedSlice, resume: Resume, channels: AsItWas | None = None, follows: bool = False
    ) -> None:
        """`slice` was restored, and opened. `channels`: the contents of the lost one's channels at its cut. `follows`: the
        worker is a hot standby, and more will come of the history before any peer can be reached."""
        self.slice = slice
        self._resume = resume
        self._hot = False
        """True if the worker was a hot standby: it has a part of what its peers have kept."""
        for task in slice.tasks:
            gate_of(task).begin_at(resume.checkpoint)
            outbox_of(task).kept_since = resume.checkpoint
            if follows:
                outbox_of(task).received.ahead = {}
        self.expect(resume.values)
        slice.together = slice.peers().intersection(resume.together)  # there are no links to other workers
        self.again = Again(slice, decode_all(resume.history.entries), resume.checkpoint, channels, follows)
        self._silent = slice.peers() - slice.together
        """Peers that have not sent their histories: they may not know of this replacement yet."""

        self._unmet = {slot for slot in slice.together if slot > slice.slot}
        """Replacements that this worker has called, and that may not have let it in yet: what it sent to them now would
        be lost."""
        self._connected = False
        """True once all links are up."""

    def expect(self, values: Iterable[CameValues]) -> None:
        """Takes the hashes of values that the lost worker has made."""
        for *channel, end, digest in values:
            ident = ChannelId(*channel)
            for task in self.slice.tasks:
                if ident in task.outbox.channels:
                    outbox_of(task).expect(ident, end, digest)

    def take_place(self, resume: Resume, news: Iterable[bytes]) -> None:
        """Goes on as the replacement of the worker that was followed so far, which is lost. `news`: the entries of its
        history that have not come yet."""
        self._resume, self._hot = resume, True
        self.expect(resume.values)
        self.again.add_encoded(news)
        self.again.follows = False

    def links_up(self) -> list[Action]:
        """Notes that all links are up. Replacements that have called are notified that they were let in."""
        self._connected = True
        return [_to_peer(self.slice, slot, Gained(0, [])) for slot in self.slice.together if slot < self.slice.slot]

    def _has(self, slot: int) -> list[tuple[int, int, int, int]]:
        """The number of elements that have come on each channel from a peer, behind the barrier of the checkpoint; none to a
        worker that begins anew."""
        gates = map(gate_of, self.slice.tasks)
        since = self._resume.checkpoint
        return [
            (*ident, gate.came_since(ident, since).count)
            for gate in gates
            for ident in gate.channels
            if self._hot and ident.source == slot
        ]

    def note_peer(self, slot: int) -> list[Action]:
        """Notes that a peer has sent something: it has let this worker in. If the worker may be a hot standby, the peer
        waits for how much it has of what was kept for it."""
        requests = self._resume.hot and slot in self._silent
        self._silent.discard(slot)
        self._unmet.discard(slot)
        return [_to_peer(self.slice, slot, Gained(0, [], has=self._has(slot)))] if requests else []

    def go_on(self) -> list[Action] | None:
        """Replays what can be replayed. Returns the actions that follow when the replay is complete; None before that.
        The replay begins when all peers can be reached, since some of its output is for them."""
        if not self._connected or self._unmet or not self.again.go_on() or self._silent:
            return None
        return self._gone_on()

    def _gone_on(self) -> list[Action]:
        slice, resume = self.slice, self._resume
        if slice.services.inexact:
            raise differs(slice.tasks[0], "values that do not come back as they were have gone to disk meanwhile")
        slice.history.go_on_from(resume.history, self.again.received, resume.checkpoint)
        account_for_local(slice)
        if self._hot:
            for task in slice.tasks:
                let_go(task, resume.checkpoint)
        came = {ChannelId(*channel): (count, digest) for *channel, count, digest in resume.came}
        self._compare(came)
        if self._hot:
            with slice.services.within_user_code():
                release(slice, resume.checkpoint)
        frames = dict(zip(came, resume.frames, strict=True))
        actions: list[Action] = []
        for task in slice.tasks:
            for ident, channel in task.outbox.channels.items():
                if ident.target in slice.together:
                    outbox_of(task).without_barriers(ident)
                elif not channel.local:
                    outbox_of(task).receiver_replaced(ident, came.get(ident, (0, 0))[0], frames.get(ident))
                if not task.said_end:
                    outbox_of(task).announce_time(ident)
            outbox_of(task).received.ahead = None
            task.cuts.declined.clear()
            task.finished = task.finished and not task.outbox.blocked
            task.reader_woken()  # a repeated read leaves what came later
            slice.route(task)
            actions += self._events(task.id.vertex)
        slice.together = frozenset()
        return [*slice.actions, *actions, ToCoordinator(ReplayDone(self.again.received))]

    def _compare(self, came: dict[ChannelId, tuple[int, int]]) -> None:
        """Compares the digests of what survivors have of the lost worker with what the replay has made. If they differ,
        the survivors' state follows from records that do not exist. Raises `UserCodeError` for the most upstream task
        that differs."""
        for task in reversed(self.slice.tasks):
            for ident in outbox_of(task).received.differ:
                raise differs(task, f"others have received other values on channel {ident}")
            for ident, (count, digest) in came.items():
                if ident in task.outbox.channels:
                    again = outbox_of(task).made_again(ident, count)
                    if (again.count, again.value) != (count, digest):
                        raise differs(task, f"others had {count} elements of channel {ident}, and those are not made")

    def _events(self, vertex: int) -> list[Action]:
        """The events that a source of this worker has sent to its other subtasks, and the coordinator has not received."""
        source = self.slice.by_vertex[vertex].chain.source
        if source is None:
            return []
        events, source.events = source.events, []
        before = source.messages_sent - len(events)
        received = dict(self._resume.events).get(vertex, 0)
        news = events[max(0, received - before) :]
        return [ToCoordinator(OperatorEvent(vertex, self.slice.slot, target, payload)) for target, payload in news]
