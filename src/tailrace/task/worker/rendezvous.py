"""How the workers of a job meet: whom a worker calls, whom it lets in, and when all links of an attempt are up.

The lower slot calls the higher one; the highest only lets in, so this ends by induction. Who takes the place of a worker
that was lost calls all the others; of two that do so at the same time the lower one calls. Its drivers are
`runtime.network.peers` and the simulator, which have the links.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum

from tailrace.protocol.deployment import Peer, PeerHello


class Acceptance(Enum):
    """What a worker makes of another one that calls."""

    IN = "let in"
    LATER = "asked again once this worker knows whom its attempt needs"
    OUT = "refused"


class Meeting:
    """One worker's half.

    Invariant K4: in an attempt a worker has at most one link to each peer, and only to the workers that `Deploy` named, of
    their epochs and in its incarnation. An older one is refused, and one that was to be called.
    """

    def __init__(self, slot: int, job: str) -> None:
        self._slot, self._job = slot, job
        self._expected: dict[int, Peer] | None = None
        """Whom this attempt needs; None before that is known."""
        self._epoch = self._incarnation = 0
        self._up: set[int] = set()
        self._complete = self._changing = False
        self._away: set[int] = set()
        """Peers that were lost and have been replaced, and that cannot be reached yet."""
        self.refused = 0
        """Workers that called and were none of the peers."""

    def begin(
        self,
        peers: Iterable[Peer],
        epoch: int,
        incarnation: int,
        late: bool = False,
        changing: bool = False,
        together: Container[int] = (),
    ) -> list[Peer]:
        """The attempt needs these: whom of them to call. `late`: the others run, but for those that come `together` with
        this one. `changing`: some may be replaced."""
        self._changing = changing
        self._expected = {peer.slot: peer for peer in peers}
        self._epoch, self._incarnation = epoch, incarnation
        return [
            peer for peer in self._expected.values() if peer.slot > self._slot or (late and peer.slot not in together)
        ]

    def replaced(self, peer: Peer) -> None:
        """Another worker has taken the place of a peer, and will call."""
        assert self._expected is not None
        self._expected[peer.slot] = peer
        self._up.discard(peer.slot)
        self._away.add(peer.slot)

    def back(self, slot: int) -> bool:
        """Whether a peer that was replaced can be reached now; True once."""
        found = slot in self._away and slot in self._up
        if found:
            self._away.discard(slot)
        return found

    @property
    def hello(self) -> PeerHello:
        """What this worker says first where it calls."""
        return PeerHello(self._slot, self._epoch, self._incarnation, self._job)

    def reached(self, slot: int) -> None:
        """A peer that was called has answered."""
        self._up.add(slot)

    def called(self, hello: PeerHello) -> Acceptance:
        """Another worker has called, and said this first."""
        if hello.job == self._job and (self._expected is None or self._is_to_come(hello)):
            return Acceptance.LATER
        answer = Acceptance.IN if self._is_awaited(hello) else Acceptance.OUT
        if answer is Acceptance.IN:
            self._up.add(hello.slot)
        else:
            self.refused += 1
        return answer

    def _is_to_come(self, hello: PeerHello) -> bool:
        """Whether a newer worker of a peer's slot calls, which we may be told of."""
        peer = None if self._expected is None else self._expected.get(hello.slot)
        return (
            self._changing and peer is not None and hello.incarnation == self._incarnation and hello.epoch > peer.epoch
        )

    def _is_awaited(self, hello: PeerHello) -> bool:
        peer = None if self._expected is None else self._expected.get(hello.slot)
        if peer is None or hello.job != self._job or hello.slot in self._up:
            return False
        calls = hello.slot < self._slot or hello.slot in self._away
        return peer.epoch == hello.epoch and hello.incarnation == self._incarnation and calls

    def out_of_turn(self) -> None:
        """A caller begins with something else than its hello, or sends more before it is let in: it is refused. It has to
        wait for `Start`, as we do."""
        self.refused += 1

    def complete(self) -> bool:
        """Whether all links of the attempt are up; True once."""
        found = not self._complete and self._expected is not None and self._up == set(self._expected)
        self._complete = self._complete or found
        return found

    def over(self) -> None:
        """The attempt is over, and with it its links."""
        self._expected, self._complete = None, False
        self._up, self._away = set(), set()
