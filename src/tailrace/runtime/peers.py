"""A worker's links to the other workers of its job."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tailrace.errors import ProtocolViolation
from tailrace.protocol import wire
from tailrace.protocol.deployment import Peer, PeerHello
from tailrace.runtime.config import WorkerConfig
from tailrace.runtime.dialing import reach
from tailrace.runtime.link import CONTROL, FRAME, Link, LinkError
from tailrace.runtime.links import Links
from tailrace.runtime.listener import DialFailed
from tailrace.task.events import FrameArrived, PeersConnected, PeersUnreachable
from tailrace.task.worker import Worker

OPEN_SECONDS = 3600.0
"""How much longer than this worker another one may take to open the user's functions."""


class Peers:
    """The workers that are reached, that have called, and that are still awaited."""

    def __init__(
        self, config: WorkerConfig, machine: Worker, links: Links, lost: Callable[[Link, LinkError], None]
    ) -> None:
        self._config, self._machine, self._links, self._lost = config, machine, links, lost
        self.by_slot: dict[int, Link] = {}
        self.refused = 0
        """Connections that knew the token and were of no peer of this job."""
        self._expected: dict[int, Peer] | None = None
        """The peers that this attempt needs; None before that is known."""
        self._early: list[tuple[PeerHello, Link]] = []
        """Peers that called before that was known."""
        self._connected = False

    def connect(self, peers: tuple[Peer, ...]) -> None:
        """The lower slot dials the higher one; the highest only serves, so this ends by induction."""
        self._expected = {peer.slot: peer for peer in peers}
        for peer in peers:
            if peer.slot > self._config.slot:
                try:
                    link = self._dial(peer)
                except DialFailed as error:
                    what = f"cannot reach worker {peer.slot} at {peer.host}:{peer.port}: {error}"
                    self._machine.handle(PeersUnreachable(what))
                    return
                hello = PeerHello(self._config.slot, self._machine.epoch, self._machine.incarnation, self._config.job)
                link.send(CONTROL, wire.encode(hello))
                self._adopt(peer.slot, link)
                self._links.flush(link)
        early, self._early = self._early, []
        for hello, link in early:
            if link in self._links:  # else it was refused, or hung up
                self._greeted(hello, link)
        self._maybe_connected()

    def close(self) -> None:
        """The attempt is over, and with it its links."""
        for link in [*self.by_slot.values(), *[link for _, link in self._early]]:
            self._links.forget(link)
        self.by_slot, self._early = {}, []
        self._expected, self._connected = None, False

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
        if not isinstance(hello, PeerHello) or hello.job != self._config.job:
            self._refuse(link)
            return
        rest = messages[1:]
        self._links.read_by(link, functools.partial(self._early_frames, link, rest))
        if self._expected is None:
            self._early.append((hello, link))
        else:
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
        assert self._expected is not None
        peer = self._expected.get(hello.slot)
        known = peer is not None and peer.epoch == hello.epoch and hello.incarnation == self._machine.incarnation
        if not known or hello.slot >= self._config.slot or hello.slot in self.by_slot:
            self._refuse(link)
            return
        link.peer = f"worker {hello.slot}"
        self._adopt(hello.slot, link)
        self._maybe_connected()

    def _refuse(self, link: Link) -> None:
        self.refused += 1
        self._links.forget(link)

    def _adopt(self, slot: int, link: Link) -> None:
        self.by_slot[slot] = link
        self._links.read_by(link, functools.partial(self._frames, slot, link))

    def _maybe_connected(self) -> None:
        if not self._connected and self._expected is not None and set(self._expected) == set(self.by_slot):
            self._connected = True
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
