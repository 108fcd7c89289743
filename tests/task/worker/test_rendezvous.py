"""How workers meet: in every order of calls and answers all links of an attempt come up, each once, and a worker of another
attempt stays outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

import pytest

from tailrace.protocol.deployment import Peer, PeerHello
from tailrace.task.worker.rendezvous import Acceptance, Meeting

PEERS = [Peer(slot, "h", slot, 10 + slot) for slot in range(3)]


def needed(slot: int) -> list[Peer]:
    return [peer for peer in PEERS if peer.slot != slot]


def begun(slot: int = 1, incarnation: int = 3) -> Meeting:
    meeting = Meeting(slot, "job")
    meeting.begin(needed(slot), 10 + slot, incarnation)
    return meeting


def hello(slot: int = 0, **other: object) -> PeerHello:
    return PeerHello(**{"slot": slot, "epoch": 10 + slot, "incarnation": 3, "job": "job", **other})  # type: ignore[arg-type]


# Who is let in.


def test_the_lower_slot_calls_the_higher_one() -> None:
    meeting = Meeting(1, "job")
    assert [peer.slot for peer in meeting.begin(needed(1), 11, 3)] == [2]
    assert meeting.hello == PeerHello(1, 11, 3, "job")


@pytest.mark.parametrize(
    "stranger",
    [
        hello(epoch=9),
        hello(epoch=11),
        hello(incarnation=2),
        hello(incarnation=4),
        hello(job="another"),
        hello(2),
        hello(1),
        hello(7),
        hello(-1),
    ],
    ids=[
        "an older worker of the slot",
        "a newer worker of the slot",
        "an older attempt",
        "a newer attempt",
        "another job",
        "one that is to be called",
        "ourselves",
        "no slot",
        "none either",
    ],
)
def test_only_the_awaited_workers_of_this_attempt_are_let_in(stranger: PeerHello) -> None:
    meeting = begun()
    assert meeting.admit(stranger) is Acceptance.OUT
    assert meeting.refused == 1
    assert meeting.admit(hello()) is Acceptance.IN


def test_a_peer_is_let_in_once() -> None:
    meeting = begun()
    assert meeting.admit(hello()) is Acceptance.IN
    assert meeting.admit(hello()) is Acceptance.OUT


def test_before_an_attempt_knows_whom_it_needs_it_cannot_tell() -> None:
    meeting = Meeting(1, "job")
    assert meeting.admit(hello()) is Acceptance.LATER
    assert meeting.admit(hello(job="another")) is Acceptance.OUT
    meeting.begin(needed(1), 11, 3)
    assert meeting.admit(hello()) is Acceptance.IN


def test_nothing_of_an_attempt_that_is_over_counts_for_the_next() -> None:
    meeting = begun()
    meeting.note_answer(2)
    meeting.admit(hello())
    assert meeting.complete() and not meeting.complete(), "told once"
    meeting.over()
    assert meeting.admit(hello(incarnation=4)) is Acceptance.LATER and not meeting.complete()
    meeting.begin(needed(1), 11, 4)
    assert meeting.admit(hello()) is Acceptance.OUT, "it is of the attempt before"
    assert not meeting.complete()
    assert meeting.admit(hello(incarnation=4)) is Acceptance.IN
    meeting.note_answer(2)
    assert meeting.complete()


def test_a_worker_that_needs_nobody_is_connected_at_once() -> None:
    meeting = Meeting(0, "job")
    assert meeting.begin([], 1, 1) == [] and meeting.complete()


# In every order.


@dataclass
class Hall:
    """Three workers that meet; calls are on their way until they are answered."""

    meetings: dict[int, Meeting] = field(default_factory=lambda: {slot: Meeting(slot, "job") for slot in range(3)})
    calls: list[tuple[int, PeerHello]] = field(default_factory=list)
    """(who is called, the hello)."""
    early: dict[int, list[PeerHello]] = field(default_factory=lambda: {slot: [] for slot in range(3)})
    links: list[tuple[int, int]] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)

    def begin(self, slot: int) -> None:
        meeting = self.meetings[slot]
        for peer in meeting.begin(needed(slot), 10 + slot, 3):
            meeting.note_answer(peer.slot)
            self.calls.append((peer.slot, meeting.hello))
        early, self.early[slot] = self.early[slot], []
        for one in early:
            self.answer(slot, one)
        self.look(slot)

    def answer(self, slot: int, hello_: PeerHello) -> None:
        match self.meetings[slot].admit(hello_):
            case Acceptance.LATER:
                self.early[slot].append(hello_)
            case Acceptance.IN:
                self.links.append((hello_.slot, slot))
                self.look(slot)
            case Acceptance.OUT:
                raise AssertionError(f"{slot} refuses {hello_}")

    def look(self, slot: int) -> None:
        if self.meetings[slot].complete():
            self.connected.append(slot)


def orders() -> Iterator[tuple[str, ...]]:
    """All orders in which three workers begin and three calls come, each call behind its caller's beginning."""
    events = ("begin 0", "begin 1", "begin 2", "0 to 1", "0 to 2", "1 to 2")
    for order in permutations(events):
        if all(order.index(f"begin {call[0]}") < order.index(call) for call in events[3:]):
            yield order


def test_in_every_order_all_links_come_up_once() -> None:
    seen = 0
    for order in orders():
        hall = Hall()
        for event in order:
            if event.startswith("begin"):
                hall.begin(int(event[-1]))
                continue
            caller, called = int(event[0]), int(event[-1])
            [call] = [one for one in hall.calls if one[0] == called and one[1].slot == caller]
            hall.calls.remove(call)
            hall.answer(*call)
        assert sorted(hall.links) == [(0, 1), (0, 2), (1, 2)] and sorted(hall.connected) == [0, 1, 2], order
        seen += 1
    assert seen > 50
