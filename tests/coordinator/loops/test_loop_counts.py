"""How the coordinator knows that nothing of a loop is on its way: the count of each slot must fit by itself. A sum over all
of them would hide what is under way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator.loops.quiet_counts import QuietCounts
from tailrace.protocol.termination import Quiet

# Counts. Each slot's count must fit by itself; a sum over all of them would hide what is under way.

Script = dict[tuple[int, str], list[tuple[int, str]]]

SCRIPTS: list[tuple[Script, list[tuple[int, str]]]] = [
    ({(0, "t"): [(1, "u"), (0, "w")], (1, "u"): [], (0, "w"): []}, [(0, "t")]),
    (
        {
            (2, "a"): [(0, "z")], (3, "b"): [(0, "y"), (1, "x")], (0, "z"): [], (0, "y"): [(2, "c")], (1, "x"): [],
            (2, "c"): [(1, "d")], (1, "d"): [],
        },
        [(2, "a"), (3, "b")],
    ),
    (
        {
            (0, "a"): [(2, "b"), (3, "c")], (2, "b"): [(0, "d")], (3, "c"): [(1, "e"), (0, "f")], (0, "d"): [],
            (1, "e"): [(3, "g")], (0, "f"): [], (3, "g"): [],
        },
        [(0, "a")],
    ),
]  # fmt: skip
"""(slot, frame) -> the frames that working it off sends; and what each slot has to begin with."""

Said = tuple[tuple[int, ...], int]
"""(sent by slot, received), as a worker reports it when it comes to rest."""


def views(script: Script, begin: list[tuple[int, str]]) -> Iterator[tuple[bool, list[Said]]]:
    """Every moment of every run, with every view that the coordinator may have then: one of the reports of each worker
    that has sent any. And whether a frame is under way or not worked off."""
    start = (tuple(sorted(begin)), tuple(((0,) * 4, 0) for _ in range(4)), ((),) * 4)
    seen: set[Any] = {start}
    open_: list[Any] = [start]
    while open_:
        pending, counts, words = open_.pop()
        for view in product(*words):
            yield bool(pending), list(view)
        following = []
        for at, (slot, frame) in enumerate(pending):
            sends = script[slot, frame]
            sent, received = counts[slot]
            sent = tuple(n + sum(to == i and to != slot for to, _ in sends) for i, n in enumerate(sent))
            done = (sent, received + ((slot, frame) not in begin and not local(script, slot, frame)))
            left = tuple(sorted((*pending[:at], *pending[at + 1 :], *sends)))
            following.append((left, (*counts[:slot], done, *counts[slot + 1 :]), words))
        for slot in range(4):
            own = [one for one in pending if one[0] == slot and (one in begin or local(script, *one))]
            if not own and counts[slot] not in words[slot]:
                reports = (*words[slot], counts[slot])
                following.append((pending, counts, (*words[:slot], reports, *words[slot + 1 :])))
        for state in following:
            if state not in seen:
                seen.add(state)
                open_.append(state)


def local(script: Script, slot: int, frame: str) -> bool:
    """Whether a frame was sent within its slot."""
    return any((slot, frame) in sends for (source, _), sends in script.items() if source == slot)


@pytest.mark.parametrize(("script", "begin"), SCRIPTS, ids=range(3))
def test_counts_that_fit_in_every_slot_mean_that_nothing_is_under_way(
    script: Script, begin: list[tuple[int, str]]
) -> None:
    misled = fits = 0
    for pending, view in views(script, begin):
        book = QuietCounts(4)
        for slot, (sent, received) in enumerate(view):
            book.report(slot, Quiet(0, list(sent), received))
        if book.fit:
            fits += 1
            assert not pending
        misled += pending and sum(sum(sent) for sent, _ in view) == sum(received for _, received in view)
    assert fits, "and at the end they fit"
    assert misled or script is not SCRIPTS[2][0], "a sum over all slots fits too early"


def fit(reports: dict[int, Quiet], slots: int, commands: int) -> bool:
    """Whether counts fit together, added up anew from all reports."""
    if len(reports) < slots or any(one.actions < commands for one in reports.values()):
        return False
    between = range(slots)
    sent = [
        sum(reports[one].sent[to] for one in between if one != to and to < len(reports[one].sent)) for to in between
    ]
    return sent == [reports[slot].received for slot in between]


Word = tuple[int, list[int], int, int]
QUIET = st.tuples(
    st.integers(0, 2), st.lists(st.integers(0, 1), min_size=2, max_size=4), st.integers(0, 2), st.integers(0, 1)
)
"""A worker comes to rest: (its slot, sent by slot, received, how many commands short of all it has followed)."""


@given(st.lists(QUIET | st.none(), max_size=20))
def test_counts_fit_whenever_they_would_if_they_were_added_up_anew(
    story: list[Word | None],
) -> None:
    counts, reports, commands = QuietCounts(3), dict[int, Quiet](), 0
    for happens in story:
        if happens is None:
            commands += 1
            counts.note_commands(commands)
        else:
            slot, sent, received, short = happens
            reports[slot] = Quiet(0, sent, received, max(0, commands - short))
            counts.report(slot, reports[slot])
        assert counts.fit == fit(reports, 3, commands)
