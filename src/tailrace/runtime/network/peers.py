"""The links of a worker to the other workers of its job."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tailrace.errors import ProtocolViolation
from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Peer, PeerHello
from tailrace.runtime.network.config import WorkerConfig
from tailrace.runtime.network.dialing import reach
from tailrace.runtime.network.link import CONTROL, FRAME, Link, LinkError
from tailrace.runtime.network.links import Links
from tailrace.runtime.network.listener import DialFailed
from tailrace.task.contract.actions import ConnectPeers
from tailrace.task.contract.events import FrameArrived, PeerBack, PeersConnected, PeersUnreachable
from tailrace.task.worker.machine import Worker
from tailrace.task.worker.rendezvous import Acceptance, Meeting

OPEN_SECONDS = 3600.0
"""Seconds that another worker may take longer than this one to open the user's functions."""


class Peers:
    """The workers that this one has reached, that have called it, and that it still awaits."""

    def __init__(
        self, config: WorkerConfig, machine: Worker, links: Links, lost: Callable[[Link, LinkError], None]
    ) -> None:
        self._config, self._machine, self._links, self._lost = config, machine, links, lost
        self._meeting = Meeting(config.slot, config.job)
        self.by_slot: dict[int, Link] = {}
        self._early: list[tuple[PeerHello, Link]] = []
        """Callers that wait until the peers that this attempt needs are known."""

    @property
    def refused(self) -> int:
        """Number of connections that knew the token and were of no peer of this job."""
        return self._meeting.refused

    def hold(self, slot: int) -> None:
        """Notes that this worker, a standby so far, holds a slot now."""
        self._meeting = Meeting(slot, self._config.job)

    def connect(self, request: ConnectPeers) -> None:
        """Connects to the peers that an attempt needs."""
        machine, meeting = self._machine, self._meeting
        epoch, incarnation = machine.epoch, machine.incarnation
        for peer in meeting.begin(request.peers, epoch, incarnation, request.late, request.changing, request.together):
            try:
                link = self._dial(peer)
            except DialFailed as error:
                what = f"cannot reach worker {peer.slot} at {peer.host}:{peer.port}: {error}"
                machine.handle(PeersUnreachable(what))
                return
            link.send(CONTROL, message_codec.encode(meeting.hello))
            meeting.note_answer(peer.slot)
            self._adopt(peer.slot, link)
            self._links.flush(link)
        early, self._early = self._early, []
        for hello, link in early:
            if link in self._links:  # else it was refused, or hung up
                self._greet(hello, link)
        self._maybe_connected()

    def await_call(self, peer: Peer) -> None:
        """Awaits the call of the worker that has taken the slot of a peer."""
        old = self.by_slot.pop(peer.slot, None)
        if old is not None:
            self._links.forget(old)
        self._meeting.expect_replacement(peer)
        early, self._early = self._early, []
        for hello, link in early:
            if link in self._links:
                self._greet(hello, link)

    def _maybe_back(self, slot: int) -> None:
        if self._meeting.back(slot):
            self._machine.handle(PeerBack(slot))

    def close(self) -> None:
        """Ends the attempt, and with it its links."""
        for link in [*self.by_slot.values(), *[link for _, link in self._early]]:
            self._links.forget(link)
        self.by_slot, self._early = {}, []
        self._meeting.over()

    def slot_of(self, link: Link) -> int | None:
        """The slot of the worker that a link leads to; None if it is not known yet."""
        return next((slot for slot, known in self.by_slot.items() if known is link), None)

    def incoming(self, link: Link) -> None:
        """Takes a caller that knows the token; its first message must give its slot."""
        self._links.read_by(link, functools.partial(self._first_message, link))

    def _dial(self, peer: Peer) -> Link:
        """A link to another worker, which may still be busy with opening the user's functions. This worker serves no link
        meanwhile; its other thread notices when the job is over."""
        return reach(self._config, (peer.host, peer.port), f"worker {peer.slot}", OPEN_SECONDS)

    def _first_message(self, link: Link) -> None:
        try:
            messages = link.readable()
            if not messages:
                return
            hello = message_codec.decode_greeting(messages[0][1]) if messages[0][0] == CONTROL else None
        except (LinkError, ProtocolViolation):
            self._refuse(link)
            return
        if not isinstance(hello, PeerHello):
            self._refuse(link)
            return
        rest = messages[1:]
        self._links.read_by(link, functools.partial(self._early_frames, link, rest))
        self._greet(hello, link)

    def _early_frames(self, link: Link, kept: list[tuple[int, bytes]]) -> None:
        """Refuses a caller that sends frames before it is let in; it has to wait for `Start`, as this worker does."""
        try:
            kept.extend(link.readable())
        except LinkError:
            self._links.forget(link)
            return
        if kept:
            self._refuse(link)

    def _greet(self, hello: PeerHello, link: Link) -> None:
        match self._meeting.admit(hello):
            case Acceptance.LATER:
                self._early.append((hello, link))
            case Acceptance.OUT:
                self._links.forget(link)
            case Acceptance.IN:
                link.peer = f"worker {hello.slot}"
                self._adopt(hello.slot, link)
                self._maybe_back(hello.slot)
                self._maybe_connected()

    def _refuse(self, link: Link) -> None:
        """Refuses a caller that sent something else than a hello, or more."""
        self._meeting.out_of_turn()
        self._links.forget(link)

    def _adopt(self, slot: int, link: Link) -> None:
        self.by_slot[slot] = link
        self._links.read_by(link, functools.partial(self._frames, slot, link))

    def _maybe_connected(self) -> None:
        if self._meeting.complete():
            self._machine.handle(PeersConnected())

    def _frames(self, slot: int, link: Link) -> None:
        try:
            messages = link.readable()
        except LinkError as error:
            self._lost(link, error)
            return
        for kind, payload in messages:
            if kind != FRAME:
                self._lost(link, LinkError(link.peer, "sent a control message where only frames may come"))
                return
            self._machine.handle(FrameArrived(payload, slot))
