"""Which worker holds which slot, and the watermark of a whole job."""

from tailrace.coordinator.progress import overall_watermark
from tailrace.coordinator.roster import Roster
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.protocol.deployment import Hello, Peer, SubtaskReport


def hello(slot: int, pid: int = 1) -> Hello:
    return Hello(slot, f"h{slot}", 1000 + slot, pid, "job", 1)


def test_epochs_of_a_slot_only_grow() -> None:
    roster = Roster(2)
    assert roster.admit(hello(0), 5) == (1, None)
    assert roster.admit(hello(0, pid=2), 6) == (2, 1)
    roster.lose(0)
    assert not roster.holds(0, 2)
    assert roster.admit(hello(0, pid=3), 7) == (3, None)
    assert [roster.holds(0, epoch) for epoch in (1, 2, 3, 4)] == [False, False, True, False]


def test_who_joins_anew_starts_anew() -> None:
    roster = Roster(1)
    roster.admit(hello(0), 5)
    slot = roster.slots[0]
    slot.deployed = slot.finished = True
    roster.admit(hello(0, pid=2), 9)
    assert (slot.deployed, slot.finished, slot.heard_at) == (False, False, 9)


def test_the_roster_is_ready_when_every_slot_is_held() -> None:
    roster = Roster(2)
    roster.admit(hello(1), 0)
    assert not roster.ready and [slot.index for slot in roster.connected] == [1]
    roster.admit(hello(0), 0)
    assert roster.ready
    assert roster.peers() == [Peer(0, "h0", 1000, 1), Peer(1, "h1", 1001, 1)]


def reports(*watermarks: int, timed: bool = True) -> list[SubtaskReport]:
    return [SubtaskReport(0, i, watermark=mark, timed=timed) for i, mark in enumerate(watermarks)]


def test_the_watermark_of_a_job_is_the_lowest_that_there_is() -> None:
    assert overall_watermark(reports(7, 5, MIN_TIME, MAX_TIME)) == 5
    assert overall_watermark(reports(MIN_TIME, MAX_TIME)) == MIN_TIME
    assert overall_watermark(reports(MAX_TIME, MAX_TIME)) == MAX_TIME
    assert overall_watermark(reports(7, timed=False)) is None
    assert overall_watermark([]) is None
