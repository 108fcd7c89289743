"""A worker's links to the other workers of its job."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tailrace.errors import ProtocolViolation
from tailrace.protocol import wire
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
"""How much longer than this worker another one may take to open the user's functions."""


class Peers:
    """The workers that are reached, that have called, and that are still awaited."""

    def __init__(
        self, config: WorkerConfig, machine: Worker, links: Links, lost: Callable[[Link, LinkError], None]
    ) -> None:
        self._config, self._machine, self._links, self._lost = config, machine, links, lost
        self._meeting = Meeting(config.slot, config.job)
        self.by_slot: dict[int, Link] = {}
        self._early: list[tuple[PeerHello, Link]] = []
        """Callers that are asked again once the peers that this attempt needs are known."""

    @property
    def refused(self) -> int:
        """Connections that knew the token and were of no peer of this job."""
        return self._meeting.refused

    def hold(self, slot: int) -> None:
        """This worker, a standby so far, holds a slot now."""
        self._meeting = Meeting(slot, self._config.job)

    def connect(self, wanted: ConnectPeers) -> None:
        """An attempt needs these."""
        machine, meeting = self._machine, self._meeting
        epoch, incarnation = machine.epoch, machine.incarnation
        for peer in meeting.begin(wanted.peers, epoch, incarnation, wanted.late, wanted.changing, wanted.together):
            try:
                link = self._dial(peer)
            except DialFailed as error:
                what = f"cannot reach worker {peer.slot} at {peer.host}:{peer.port}: {error}"
                machine.handle(PeersUnreachable(what))
                return
            link.send(CONTROL, wire.encode(meeting.hello))
            meeting.reached(peer.slot)
            self._adopt(peer.slot, link)
            self._links.flush(link)
        early, self._early = self._early, []
        for hello, link in early:
            if link in self._links:  # else it was refused, or hung up
                self._greeted(hello, link)
        self._maybe_connected()

    def replace(self, peer: Peer) -> None:
        """Another worker has taken the place of a peer that was lost."""
        old = self.by_slot.pop(peer.slot, None)
        if old is not None:
            self._links.forget(old)
        self._meeting.replaced(peer)
        early, self._early = self._early, []
        for hello, link in early:
            if link in self._links:
                self._greeted(hello, link)

    def _maybe_back(self, slot: int) -> None:
        if self._meeting.back(slot):
            self._machine.handle(PeerBack(slot))

    def close(self) -> None:
        """The attempt is over, and with it its links."""
        for link in [*self.by_slot.values(), *[link for _, link in self._early]]:
            self._links.forget(link)
        self.by_slot, self._early = {}, []
        self._meeting.over()

    def slot_of(self, link: Link) -> int | None:
        """Which worker a link leads to; None where it is of nobody yet."""
        return next((slot for slot, known in self.by_slot.items() if known is link), None)

    def incoming(self, link: Link) -> None:
        """Somebody knows the token; the first message must say which worker it is."""
        self._links.read_by(link, functools.partial(self._first_message, link))

    def _dial(self, peer: Peer) -> Link:
        """A link to another worker, which may still be busy with opening the user's functions. This worker serves nobody
        meanwhile; its other thread notices when the job is over."""
        return reach(self._config, (peer.host, peer.port), f"worker {peer.slot}", OPEN_SECONDS)

    def _first_message(self, link: Link) -> None:
        try:
            messages = link.readable()
            if not messages:
                return
            hello = wire.decode(messages[0][1]) if messages[0][0] == CONTROL else None
        except (LinkError, ProtocolViolation):
            self._refuse(link)
            return
        if not isinstance(hello, PeerHello):
            self._refuse(link)
            return
        rest = messages[1:]
        self._links.read_by(link, functools.partial(self._early_frames, link, rest))
        self._greeted(hello, link)

    def _early_frames(self, link: Link, kept: list[tuple[int, bytes]]) -> None:
        """Before the peer is known nobody may send frames; it waits for `Start` as we do."""
        try:
            kept.extend(link.readable())
        except LinkError:
            self._links.forget(link)
            return
        if kept:
            self._refuse(link)

    def _greeted(self, hello: PeerHello, link: Link) -> None:
        match self._meeting.called(hello):
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
        """It said something else than a hello, or more."""
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
