"""A hot standby's attempt: it follows the worker of one slice (`protocol.hot_standby`), and becomes its replacement."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tailrace.elements.frame_codec import BARRIER, HISTORY, ChannelId, Frame, encode_grant
from tailrace.errors import InternalError, ProtocolViolation, TailraceError
from tailrace.protocol.deployment import Peer
from tailrace.protocol.hot_standby import Follow
from tailrace.protocol.replay import Copy, Gained, Restored, Resume
from tailrace.state.manifest import decode_manifest
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import Action, ConnectPeers, ToCoordinator, ToPeer
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.failover.slice_choice import begin_feed, fed_window
from tailrace.task.failover.standby_feed import decode_followed
from tailrace.task.failover.standby_mirrors import Mirror
from tailrace.task.failover.withheld_output import check_withheld, withhold
from tailrace.task.journal.divergence import differs
from tailrace.task.journal.history import decode_all
from tailrace.task.journal.replayable_gate import gate_of
from tailrace.task.journal.replayable_outbox import outbox_of
from tailrace.task.worker.attempt import Attempt


class FollowingAttempt(Attempt):
    """The attempt of a hot standby.

    Invariant Y19: until it takes the place of its worker nothing goes to a peer but to that worker, which gets grants; its
    sinks write nothing; and it has done only what is in the history of that worker.
    """

    follows = True

    def __init__(
        self,
        spec: JobSpec,
        epoch: int,
        follow: Follow,
        services: Services,
        numbers: Iterator[int],
        mirror: Mirror | None,
        in_order: bool = False,
    ) -> None:
        """`mirror`: the state that the standby holds of the slice. `in_order`: a loop is followed in one order."""
        resume = follow.resume
        super().__init__(spec, follow.slot, epoch, resume.deploy, services, numbers, resume, mirror)
        recorded = self.recorded
        assert recorded is not None and resume.deploy.peers
        self.spec, self.slot, self.number = spec, follow.slot, resume.deploy.attempt
        """The job, the slice that is followed, and the attempt as which it is followed."""
        self.in_order = in_order
        self._owner: Peer = resume.deploy.peers[0]
        self._copy = Copy()
        self._copy.gain(resume.history)
        self._came = 0
        """The bytes that have come from the worker."""
        self._granted = 0
        self._answers = False
        """True if a report of the worker is to be answered, by a grant: it gathers the next one until then."""
        withhold(recorded, resume.checkpoint)
        for task in recorded.tasks:
            gate_of(task).let_all_come()

    @property
    def _slice(self) -> ReplayableSlice:
        assert self.recorded is not None
        return self.recorded

    def _open(self) -> list[Action]:
        check_withheld(self._slice)
        return super()._open()

    def _replay(self) -> list[Action]:
        return [ConnectPeers((self._owner,), late=True, changing=True)]

    # What comes from the worker.

    def receive(self, frame: Frame) -> None:
        """Takes what has come to the worker, or its history. Raises `ProtocolViolation` or `InternalError` where something
        is missing."""
        slice = self._slice
        if frame.incarnation != slice.incarnation:
            raise ProtocolViolation(f"a frame of incarnation {frame.incarnation}, this is {slice.incarnation}")
        if frame.kind == HISTORY:
            followed = decode_followed(frame.history())
            self._gain(followed.gained)
            self._answers = True
            assert self.resumed is not None
            self.resumed.expect(followed.values)
            return
        channel = frame.channel
        if frame.kind == BARRIER:
            task = slice.by_vertex[slice.plan.edges[channel.edge].target]
            gate_of(task).note_barrier(channel, frame.number)
            return
        self._came += frame.size if frame.count else 0
        slice.deliver(frame)

    def _gain(self, gained: Gained) -> None:
        """Takes entries of the history."""
        copy, resumed = self._copy, self.resumed
        if gained.cut_short:
            raise TailraceError("the history of its worker has grown too large, and was dropped (history_bytes)")
        if gained.first > copy.end:
            raise InternalError(f"the worker has dropped its history from entry {copy.end} to {gained.first}", ())
        assert resumed is not None
        news = gained.entries[copy.end - gained.first :]
        copy.gain(gained)
        resumed.again.add_encoded(news)

    def follow_on(self, answers: bool) -> list[Action]:
        """Replays a portion of what has come. Returns grants for the worker. `answers`: see `Flush`."""
        self.moved = False
        if self.resumed is None:
            return []
        again = self.resumed.again
        again.go_on()
        self.moved = again.moved
        for task in self._slice.tasks:
            for ident in outbox_of(task).received.differ:
                raise differs(task, f"its worker has sent other values on channel {ident}")
        if again.complete in self._copy.cuts:
            self._copy.complete(again.complete)
        self._slice.actions.clear()
        return [*self.loads(), *self._grants(answers and not self.moved)]

    def _grants(self, answers: bool) -> list[Action]:
        """A grant for what was read since the last one, if it is worth a message, or answers a report. It is worth one
        before the standby may answer, so that the worker need not wait for room."""
        slot, unread = self.slot, 0
        for task in self._slice.tasks:
            for ident, channel in task.gate.channels.items():
                if ident.source != slot:
                    unread += channel.flow.arrived - channel.flow.consumed
        read = self._came - unread
        window = fed_window(self._slice)
        if read - self._granted < window // 4 and not (answers and self._answers):
            return []
        self._granted, self._answers = read, False
        return [ToPeer(slot, encode_grant(ChannelId(0, slot, slot), self._slice.incarnation, 0, read + window))]

    # Taking the place of the worker.

    def fits(self, resume: Resume) -> bool:
        """True if it can go on to the end of the lost worker's history from where it is."""
        if self.resumed is None or resume.hot != self.number or resume.together or self.closed:
            return False
        slice, copy, history = self._slice, self._copy, resume.history
        behind = all(
            gate_of(task).is_behind(ident, resume.checkpoint)
            for task in slice.tasks
            for ident in task.gate.channels
            if ident.source != self.slot
        )
        if not behind or history.first > copy.end or history.cut_short or resume.checkpoint not in copy.cuts:
            return False
        start = max(history.first, copy.first)
        if not self.resumed.again.takes(decode_all(history.entries[max(0, copy.end - history.first) :])):
            return False
        mine, others = copy.entries[start - copy.first :], history.entries[start - history.first :]
        both = min(len(mine), len(others))
        if mine[:both] != others[:both]:
            raise InternalError(f"Y3: the history that was followed differs from the others behind entry {start}", ())
        return True

    def take_place(self, resume: Resume, epoch: int) -> list[Action]:
        """Goes on as the replacement of the worker that was followed."""
        slice, copy, deploy, resumed = self._slice, self._copy, resume.deploy, self.resumed
        assert resumed is not None
        news = resume.history.entries[copy.end - resume.history.first :]
        copy.gain(resume.history)
        copy.complete(resume.checkpoint)
        self.follows = False
        self._resume = resume = msgspec.structs.replace(resume, history=copy.report())
        self._succeeds = resume.checkpoint
        self.origin = deploy.manifest, deploy.folder
        self._peers = {peer.slot: peer for peer in deploy.peers}
        slice.place({peer.slot: peer.home for peer in deploy.peers})
        self.checkpoints.name_by(epoch)
        self.checkpoints.note_restore(decode_manifest(deploy.manifest, "the manifest to restore").channels)
        for task in slice.tasks:
            for ident in task.gate.channels:
                if ident.source != self.slot:
                    gate_of(task).sender_replaced(ident)
            for operator in task.chain.operators:
                operator.chains.forget()
                if operator.backend is not None:
                    operator.backend.forget_files()
        begin_feed(slice, anew=True)
        resumed.take_place(resume, news)
        return [ToCoordinator(Restored(hot=True)), self._connect()]
