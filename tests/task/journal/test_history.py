"""What a slice did is kept since the newest complete checkpoint, or since it had grown too large."""

from __future__ import annotations

from tailrace.elements.cuts import CutRequest
from tailrace.elements.entrylog import EACH
from tailrace.protocol.replay import Copy
from tailrace.protocol.snapshot import Abort
from tailrace.task.journal.history import Cut, Did, Entry, Flushed, Heard, History, decode, decode_all, encode

STEP = Did(0, 1, 7, 100)
ROOM = 10 * (len(encode(STEP)) + EACH)
"""For ten steps."""


def history(steps: int, most: int = ROOM) -> History:
    made = History(most)
    for _ in range(steps):
        made.add(STEP)
    return made


def cut(number: int) -> Cut:
    return Cut(0, CutRequest(number), 7, b"", 0)


def test_a_history_never_takes_more_memory_than_it_may() -> None:
    made, taken = history(0), []
    for _ in range(50):
        made.add(STEP)
        taken.append(made.size + EACH * len(made.entries))
    assert max(taken) == ROOM and min(taken) == 0
    assert made.end == 50 and history(50, most=0).first == 0


def test_who_was_told_before_is_told_that_it_was_cut_short() -> None:
    made, copy = history(9), Copy()
    first = made.new_entries(1)
    assert first is not None and not first.cut_short
    copy.gain(first)
    for _ in range(3):
        made.add(STEP)
    then = made.new_entries(1)
    assert then is not None and (then.first, then.cut_short) == (11, True)
    copy.gain(then)
    assert (copy.first, copy.end) == (made.first, made.end), "it is let go of everywhere"
    made.add(STEP)
    later = made.new_entries(1)
    assert later is not None and not later.cut_short, "that is told once"


def test_a_checkpoint_counts_only_where_all_its_cuts_are_there() -> None:
    """Another task had cut for the first one before it was cut short."""
    made = history(9)
    made.add(cut(1))
    made.add(cut(1))
    made.add(cut(2))
    assert made.cuts == {2: made.end - 1}
    made.complete(1)
    gained = made.new_entries(1)
    assert gained is not None and gained.cut_short and not gained.reaches_back_to(1)
    made.complete(2)
    gained = made.new_entries(2)
    assert gained is not None and not gained.cut_short


def test_entries_that_are_read_at_once_are_those_that_are_read_one_by_one() -> None:
    kinds: list[Entry] = [STEP, cut(3), Flushed({2: [5]}), Heard(Abort(3), 1)]
    for count in (0, 1, 17, 70_000):
        entries = [encode(kinds[at % len(kinds)]) for at in range(count)]
        assert decode_all(entries) == list(map(decode, entries))
