"""The meeting of a job's workers: which peers a worker calls, which callers it lets in, and when all links of an attempt
are up.

The lower slot calls the higher one; the highest only lets callers in, so this ends by induction. A worker that takes the
place of a lost one calls all its peers; of two that do so at the same time the lower slot calls. The drivers of this
machine are `runtime.network.peers` and the simulator, which have the links.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum

from tailrace.protocol.deployment import Peer, PeerHello


class Acceptance(Enum):
    """The answer of a worker to another one that calls."""

    IN = "let in"
    LATER = "asked again once this worker knows whom its attempt needs"
    OUT = "refused"


class Meeting:
    """One worker's half of the meeting.

    Invariant K4: in an attempt a worker has at most one link to each peer, and only to the workers that `Deploy` named,
    of their epochs and in its incarnation. A caller of an older epoch or incarnation is refused, and so is a peer that
    was to be called.
    """

    def __init__(self, slot: int, job: str) -> None:
        self._slot, self._job = slot, job
        self._expected: dict[int, Peer] | None = None
        """The peers of this attempt by slot; None before they are known."""
        self._epoch = self._incarnation = 0
        self._up: set[int] = set()
        self._complete = self._changing = False
        self._away: set[int] = set()
        """Peers that were lost and have been replaced, and that cannot be reached yet."""
        self.refused = 0
        """Number of callers that were refused."""

    def begin(
        self,
        peers: Iterable[Peer],
        epoch: int,
        incarnation: int,
        late: bool = False,
        changing: bool = False,
        together: Container[int] = (),
    ) -> list[Peer]:
        """Begins an attempt with these peers; returns the peers to call. `late`: the peers run already, except those that
        join `together` with this worker. `changing`: peers may be replaced."""
        self._changing = changing
        self._expected = {peer.slot: peer for peer in peers}
        self._epoch, self._incarnation = epoch, incarnation
        return [
            peer for peer in self._expected.values() if peer.slot > self._slot or (late and peer.slot not in together)
        ]

    def expect_replacement(self, peer: Peer) -> None:
        """Expects another worker in the slot of a peer; that worker will call."""
        assert self._expected is not None
        self._expected[peer.slot] = peer
        self._up.discard(peer.slot)
        self._away.add(peer.slot)

    def back(self, slot: int) -> bool:
        """True once when a peer that was replaced can be reached again."""
        found = slot in self._away and slot in self._up
        if found:
            self._away.discard(slot)
        return found

    @property
    def hello(self) -> PeerHello:
        """The first message of this worker on a link that it has opened."""
        return PeerHello(self._slot, self._epoch, self._incarnation, self._job)

    def note_answer(self, slot: int) -> None:
        """A called peer has answered."""
        self._up.add(slot)

    def admit(self, hello: PeerHello) -> Acceptance:
        """The answer to a worker that has called, and has sent this hello."""
        if hello.job == self._job and (self._expected is None or self._is_to_come(hello)):
            return Acceptance.LATER
        answer = Acceptance.IN if self._is_awaited(hello) else Acceptance.OUT
        if answer is Acceptance.IN:
            self._up.add(hello.slot)
        else:
            self.refused += 1
        return answer

    def _is_to_come(self, hello: PeerHello) -> bool:
        """True when the caller is a newer worker of a peer's slot, which the coordinator may announce soon."""
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
        """Counts a refused caller that began with something else than its hello, or sent more before it was let in. A
        caller has to wait for `Start`, as this worker does."""
        self.refused += 1

    def complete(self) -> bool:
        """True once, when all links of the attempt are up."""
        found = not self._complete and self._expected is not None and self._up == set(self._expected)
        self._complete = self._complete or found
        return found

    def over(self) -> None:
        """Ends the attempt, and with it its links."""
        self._expected, self._complete = None, False
        self._up, self._away = set(), set()
