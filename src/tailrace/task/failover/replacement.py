"""A worker as the replacement of a lost one (`protocol.replay`): it replays what that did, compares, and goes on."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.elements.frame_codec import ChannelId
from tailrace.protocol.deployment import OperatorEvent
from tailrace.protocol.replay import (
    CameValues,
    Gained,
    ReplayDone,
    Resume,
)
from tailrace.task.contract.actions import Action, ToCoordinator
from tailrace.task.failover.channel_restore import AsItWas
from tailrace.task.failover.history_sending import to_peer
from tailrace.task.failover.replay import Again, account_for_local, let_go
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.withheld_output import release
from tailrace.task.journal.divergence import differs
from tailrace.task.journal.history import decode_all
from tailrace.task.journal.replayable_gate import gate_of
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.operators.sink import SinkTask
from tailrace.task.slice.machine import Slice


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
        self,
        slice: ReplayableSlice,
        resume: Resume,
        channels: AsItWas | None = None,
        follows: bool = False,
        in_order: bool = False,
    ) -> None:
        """`slice` was restored, and opened. `channels`: the contents of the lost one's channels at its cut. `follows`: the
        worker is a hot standby, and more will come of the history before any peer can be reached. `in_order`: of `Again`."""
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
        history = decode_all(resume.history.entries)
        self.again = Again(slice, history, resume.checkpoint, channels, follows, in_order)
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
        return [to_peer(self.slice, slot, Gained(0, [])) for slot in self.slice.together if slot < self.slice.slot]

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
        return [to_peer(self.slice, slot, Gained(0, [], has=self._has(slot)))] if requests else []

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
        actions: list[Action] = []
        for task in slice.tasks:
            for ident, channel in task.outbox.channels.items():
                if ident.target in slice.together:
                    outbox_of(task).without_barriers(ident)
                elif not channel.local:
                    outbox_of(task).receiver_replaced(ident, came.get(ident, (0, 0))[0])
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
