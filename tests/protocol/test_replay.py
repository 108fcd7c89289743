"""Copies of a worker's history: its reports, in whatever pieces, make one history again."""

from __future__ import annotations

import pickle

import pytest

from tailrace.errors import InternalError
from tailrace.protocol.replay import (
    Copies,
    Copy,
    Gained,
    Hearsay,
    bits_of,
    decode_gained,
    encode_gained,
    longest,
    slots_of,
)
from tailrace.task.channels.spilling import MemorySpill


def told(*gained: Gained) -> Copy:
    copy = Copy()
    for one in gained:
        copy.gain(one)
    return copy


def test_a_copy_grows_with_what_it_is_told_and_takes_what_it_has_once() -> None:
    copy = told(Gained(0, [b"a", b"b"]), Gained(1, [b"b", b"c"]), Gained(3, [b"d"]))
    assert (copy.first, copy.entries, copy.end) == (0, [b"a", b"b", b"c", b"d"], 4)


def test_a_complete_checkpoint_cuts_off_what_is_before_its_first_cut() -> None:
    copy = told(Gained(0, [b"a", b"cut 1", b"b", b"cut 2", b"c"], [(1, 1), (2, 3)]))
    copy.complete(1)
    assert copy.report() == Gained(1, [b"cut 1", b"b", b"cut 2", b"c"], [(1, 1), (2, 3)])
    copy.complete(2)
    assert copy.report() == Gained(3, [b"cut 2", b"c"], [(2, 3)])


def test_a_gap_is_older_than_a_complete_checkpoint_and_what_was_before_it_goes() -> None:
    assert told(Gained(0, [b"a"]), Gained(7, [b"x"])).report() == Gained(7, [b"x"])


def test_a_copy_of_what_was_cut_short_says_so_until_a_checkpoint_is_complete_whose_cuts_are_behind_that() -> None:
    copy = told(Gained(0, [b"a", b"cut 1", b"b"], [(1, 1)]), Gained(5, [b"c"], cut_short=True))
    assert (copy.first, copy.entries) == (5, [b"c"])
    copy.complete(1)
    assert copy.report() == Gained(5, [b"c"], cut_short=True)
    assert not copy.report().reaches_back_to(1)
    copy.gain(Gained(6, [b"cut 2", b"d"], [(2, 6)]))
    assert copy.report().reaches_back_to(2) and not copy.report().reaches_back_to(1)
    copy.complete(2)
    assert copy.report() == Gained(6, [b"cut 2", b"d"], [(2, 6)])


def test_that_it_was_cut_short_is_reported_on_once_to_each() -> None:
    copy = told(Gained(0, [b"a"]))
    copy.reported_to(0, 1, 2)
    copy.gain(Gained(3, [b"b"], cut_short=True))
    assert [copy.reported_to(0, party, 2) for party in (1, 2)] == [Gained(3, [b"b"], [], 0, True)] * 2
    copy.gain(Gained(4, [b"c"]))
    assert copy.reported_to(0, 1, 2) == Gained(4, [b"c"], [], 0)


def test_that_it_was_cut_short_is_reported_on_also_where_nothing_is_behind_that() -> None:
    """Else the party goes on to use what follows from entries that it lacks, and believes that it has all."""
    copy = told(Gained(0, [b"a"]))
    copy.reported_to(0, 1, 1)
    copy.gain(Gained(3, [], cut_short=True))
    assert [copy.reported_to(0, 1, 1) for _ in range(2)] == [Gained(3, [], [], 0, True), None]


def test_a_report_leaves_out_what_its_receiver_has() -> None:
    mine = told(Gained(2, [b"c", b"d"], [(1, 2)]))
    copy = told(Gained(0, [b"a", b"b", b"cut", b"d", b"e", b"cut"], [(1, 2), (2, 5)], opened=b"o"))
    assert copy.report(mine.end) == Gained(4, [b"e", b"cut"], [(2, 5)], opened=b"o")
    assert copy.report(9) == Gained(6, [], [], opened=b"o") and copy.report(0) == copy.report()


@pytest.mark.parametrize("known", range(7))
def test_parts_of_copies_are_as_good_as_whole_copies(known: int) -> None:
    """Whatever the coordinator knows itself, and however far the copies of survivors reach back and on."""
    entries = [b"%d" % number for number in range(6)]
    mine = told(Gained(0, entries[:known]))
    copies = [told(Gained(first, entries[first:end])) for first, end in ((0, 3), (1, 6), (0, 6), (0, 0), (2, 5))]
    whole = longest([mine.report(), *(copy.report() for copy in copies)])
    assert longest([mine.report(), *(copy.report(mine.end) for copy in copies)]) == whole == Gained(0, entries)


def test_a_part_of_a_copy_that_was_cut_short_is_cut_short_where_its_beginning_is() -> None:
    owner = [Gained(0, [b"a"]), Gained(5, [b"cut", b"b"], [(2, 5)], cut_short=True)]
    mine, copy = told(*owner), told(*owner, Gained(7, [b"c"]))
    found = longest([mine.report(), copy.report(mine.end)])
    assert found == Gained(5, [b"cut", b"b", b"c"], [(2, 5)], cut_short=True)
    assert found.reaches_back_to(2) and not found.reaches_back_to(1)
    assert (mine.reaches_back_to(2), mine.reaches_back_to(1)) == (True, False)


def test_copies_that_have_no_room_in_memory_are_what_they_were() -> None:
    spill = MemorySpill()
    copies = Copies(1, lambda: spill)
    for number in range(9):
        copies[3].gain(Gained(number, [b"%d" % number], [(1, 4)] if number == 4 else []))
    assert copies[3].report() == told(Gained(0, [b"%d" % number for number in range(9)], [(1, 4)])).report()
    assert copies[3].reported_to(3, 0, 3) == Gained(0, [b"%d" % number for number in range(9)], [(1, 4)], 3)
    copies[3].complete(1)
    assert copies[3].report() == Gained(4, [b"%d" % number for number in range(4, 9)], [(1, 4)])
    assert len(spill.stored) == 5 and copies.memory.memory == 0
    copies.clear()
    assert not spill.stored and 3 not in copies


def test_copies_travel_to_an_executor_with_their_coordinator() -> None:
    """Before anything is known: the coordinator of a client that executors cannot reach runs there."""
    copies = pickle.loads(pickle.dumps(Copies(1, MemorySpill)))
    copies[3].gain(Gained(0, [b"a", b"b"]))
    assert copies[3].entries == [b"a", b"b"] and copies.memory.memory == 0


def test_the_longest_copy_has_what_all_have() -> None:
    copies = [Gained(0, [b"a", b"b"]), Gained(1, [b"b", b"c", b"d"]), Gained(0, [])]
    assert longest(copies) == Gained(0, [b"a", b"b", b"c", b"d"])


def test_copies_that_follow_each_other_are_one_history() -> None:
    early, middle, late = Gained(0, [b"a", b"b"], [(1, 1)]), Gained(2, [b"c"]), Gained(3, [b"d"], [(2, 3)])
    assert longest([late, early, middle]) == Gained(0, [b"a", b"b", b"c", b"d"], [(1, 1), (2, 3)])
    assert longest([early, late]) == late, "nobody has what is between: it is older than a checkpoint"
    assert longest([early, Gained(2, [b"c"], cut_short=True)]).first == 2, "what is gone is not there again"


def test_a_party_waits_for_what_the_owner_has_sent_it_and_gets_the_rest() -> None:
    copy = told(Gained(0, [b"a", b"b"], also=bits_of([3])), Gained(2, [b"c"], also=bits_of([4])))
    assert (copy.needed_by(3), copy.reported_to(0, 3, 2)) == (2, Gained(2, [b"c"], [], 0))
    assert (copy.needed_by(3), copy.reported_to(0, 3, 2)) == (None, None)
    assert (copy.needed_by(4), copy.reported_to(0, 4, 2)) == (3, None)
    assert (copy.needed_by(5), copy.reported_to(0, 5, 2)) == (None, Gained(0, [b"a", b"b", b"c"], [], 0))
    copy.forget(3)
    assert (copy.needed_by(3), copy.reported_to(0, 3, 2)) == (None, Gained(0, [b"a", b"b", b"c"], [], 0))


@pytest.mark.parametrize("slots", [[], [0], [3, 9, 17], [*range(64)]])
def test_slots_are_bits(slots: list[int]) -> None:
    assert [*slots_of(bits_of(slots))] == slots and len(bits_of(slots)) == (max(slots, default=-1) + 8) // 8


def test_copies_that_differ_are_an_error() -> None:
    with pytest.raises(InternalError, match="Y3: two copies of one history differ behind entry 1"):
        longest([Gained(0, [b"a", b"b"]), Gained(1, [b"x", b"c"])])


def test_what_is_reported_of_others_counts_with_what_is_reported_of_oneself_behind_it() -> None:
    hearsay, of_another, own = Hearsay(), Gained(0, [b"a"], [], 2), Gained(0, [b"b"])
    assert hearsay.receive(1, of_another) == []
    assert hearsay.receive(0, own) == [(0, own)]
    assert hearsay.receive(1, own) == [(2, of_another), (1, own)]
    hearsay.receive(1, of_another)
    hearsay.forget(1)
    assert hearsay.receive(1, own) == [(1, own)], "who takes its place knows nothing of that"


def test_what_is_reported_travels_as_bytes() -> None:
    gained = Gained(3, [b"a"], [(2, 3)])
    assert decode_gained(encode_gained(gained)) == gained
