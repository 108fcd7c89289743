"""One task's aligned cuts: what follows from each marker, end, trigger and abort, alone and in every order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.cuts import CutRequest
from tailrace.task.subtask.alignment import Alignment


@dataclass
class Outcome:
    """The consequences of an event."""

    given_up: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    block: bool = False
    release: list[Any] = field(default_factory=list)


class Aligned:
    """The alignment of a task, behind a gate that notes what is blocked and released. A cut that is due is made at once."""

    def __init__(self, channels: Any) -> None:
        self.channels = dict.fromkeys(channels)
        self.outcome = Outcome()
        self.cuts: Any = Alignment(self)  # type: ignore[arg-type]

    def block(self, channel: Any) -> None:
        self.outcome.block = True

    def release(self, channels: Any) -> None:
        self.outcome.release += channels

    def marker(self, channel: Any, cut: int) -> Outcome:
        self.cuts.barrier(channel, CutRequest(cut), 1)
        return self.follow()

    def trigger(self, cut: int) -> Outcome:
        self.cuts.trigger(CutRequest(cut))
        return self.follow()

    def ended(self, channel: Any) -> Outcome:
        self.cuts.end(channel)
        return self.follow()

    def abort(self, cut: int) -> Outcome:
        self.cuts.abort(cut)
        return self.follow()

    def follow(self) -> Outcome:
        outcome, self.outcome = self.outcome, Outcome()
        outcome.given_up += self.cuts.declined
        self.cuts.declined.clear()
        while self.cuts.due:
            outcome.cuts.append(self.cuts.make(1).request.number)
        return outcome

    def announce(self, channel: Any, cut: int) -> bool:
        """True for the first marker of a cut that is still to be made."""
        self.cuts.stamp(1)
        self.cuts.announce(channel, CutRequest(cut))
        return bool(self.cuts.unstamped)

    @property
    def announced(self) -> dict[int, dict[Any, None]]:
        return {number: cut.arrived for number, cut in self.cuts.known.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cuts, name)


# Told one by one.


def aligner(channels: str = "ab") -> Aligned:
    return Aligned(channels)


def test_a_channel_waits_for_the_others_and_the_last_marker_cuts() -> None:
    a = aligner("abc")
    assert a.marker("b", 1) == Outcome(block=True)
    assert a.marker("a", 1) == Outcome(block=True)
    # The channel of the last marker need not be blocked: the cut is made before it is read on.
    assert a.marker("c", 1) == Outcome(cuts=[1], release=["b", "a", "c"])
    assert (a.current, a.blocked, a.done) == (None, {}, 1)


def test_a_marker_is_announced_before_it_is_read() -> None:
    """That changes nothing for who is aligned, but that it is known."""
    a = aligner("ab")
    assert a.announce("b", 1), "the first one that is heard of this cut"
    assert not a.announce("a", 1)
    assert a.announce("b", 2)
    assert (a.announced, a.current, a.blocked) == ({1: {"b": None, "a": None}, 2: {"b": None}}, None, {})
    assert a.marker("a", 1) == Outcome(block=True)
    assert a.marker("b", 1) == Outcome(cuts=[1], release=["a", "b"])
    assert (a.announced, a.awaited, a.check()) == ({2: {"b": None}}, False, None)
    a.abort(2)
    assert not a.announce("a", 2), "it is over"
    assert not a.announce("a", 1)
    assert (a.announced, a.check()) == ({}, None)


def test_a_marker_that_is_read_has_arrived() -> None:
    a = aligner("ab")
    a.marker("a", 3)
    assert a.announced == {3: {"a": None}}
    a.announce("b", 4)
    a.marker("b", 4)  # so the cut of 3 can never be complete
    assert (a.announced, a.current) == ({4: {"b": None}}, 4)


def test_a_single_channel_cuts_at_once() -> None:
    assert aligner("a").marker("a", 1) == Outcome(cuts=[1], release=["a"])


def test_a_task_without_channels_cuts_when_it_is_told_to() -> None:
    a = aligner("")
    assert a.trigger(1) == Outcome(cuts=[1])
    assert a.trigger(2) == Outcome(cuts=[2])
    assert a.trigger(2) == Outcome(), "and once"


def test_a_task_with_channels_waits_for_their_markers() -> None:
    a = aligner("a")
    assert a.trigger(1) == Outcome()
    assert a.marker("a", 1).cuts == [1]
    assert a.trigger(1) == Outcome(), "a trigger that comes late is old news"


def test_the_end_of_a_channel_counts_as_its_marker() -> None:
    a = aligner("abc")
    a.marker("a", 1)
    assert a.ended("b") == Outcome()
    assert a.ended("c") == Outcome(cuts=[1], release=["a"])
    assert list(a.live) == ["a"]
    assert a.marker("a", 2).cuts == [2], "and of every cut to come"


def test_when_all_channels_have_ended_cuts_that_were_requested_are_made_in_order() -> None:
    a = aligner("ab")
    for cut in (2, 1):
        assert a.trigger(cut) == Outcome()
    assert a.ended("a") == Outcome()
    assert a.ended("b") == Outcome(cuts=[1, 2])
    assert a.trigger(3) == Outcome(cuts=[3])


def test_an_end_without_a_cut_changes_nothing_else() -> None:
    a = aligner("ab")
    assert a.ended("a") == Outcome() and list(a.live) == ["b"]


def test_an_aborted_cut_gives_its_channels_back() -> None:
    a = aligner("ab")
    a.marker("a", 1)
    assert a.abort(1) == Outcome(release=["a"])
    assert a.marker("b", 1) == Outcome(), "its other markers are passed over"
    assert a.marker("a", 2) == Outcome(block=True)


def test_a_cut_that_was_aborted_before_anything_of_it_came_is_never_made() -> None:
    a = aligner("a")
    assert a.abort(1) == Outcome()
    assert a.marker("a", 1) == Outcome() and a.trigger(1) == Outcome()
    assert a.ended("a") == Outcome()
    assert a.marker("a", 1) == Outcome()


def test_an_abort_takes_back_a_trigger() -> None:
    a = aligner("a")
    a.trigger(1)
    a.trigger(2)
    a.abort(1)
    assert a.ended("a") == Outcome(cuts=[2])


def test_an_abort_of_a_cut_that_was_made_here_is_for_others_to_follow() -> None:
    a = aligner("a")
    a.marker("a", 1)
    assert a.abort(1) == Outcome() and a.done == 1


def test_an_abort_of_another_cut_leaves_the_open_one_open() -> None:
    a = aligner("ab")
    a.marker("a", 2)
    assert a.abort(1) == Outcome() and a.current == 2
    assert a.marker("b", 2).cuts == [2]


def test_a_channel_that_skips_the_open_cut_makes_it_impossible() -> None:
    a = aligner("abc")
    a.marker("a", 1)
    assert a.marker("b", 2) == Outcome(given_up=[1], release=["a"], block=True)
    assert (a.current, list(a.blocked), a.done) == (2, ["b"], 1)
    assert a.marker("c", 1) == Outcome(), "of the one that was given up"
    assert a.marker("a", 2) == Outcome(block=True)
    assert a.marker("c", 2).cuts == [2]


def test_a_marker_that_was_overtaken_is_passed_over() -> None:
    a = aligner("ab")
    a.marker("a", 2)
    assert a.marker("b", 1) == Outcome(), "the other channel will never deliver it"
    assert a.marker("b", 2).cuts == [2]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"blocked": {"a": None, "x": None}, "current": 1}, "A1: a channel that ended is blocked"),
        ({"blocked": {"a": None}, "current": None}, "A1: channels are blocked without an open cut"),
        ({"blocked": {}, "current": 1}, "A1: channels are blocked without an open cut"),
        ({"blocked": {"a": None, "b": None}, "current": 1}, "A3: cut 1 is open though every live channel"),
    ],
)
def test_a_broken_invariant_is_reported(broken: dict[str, object], message: str) -> None:
    a = aligner("ab")
    assert a.check() is None
    for name, value in broken.items():
        setattr(a.cuts, name, value)
    assert (a.check() or "").startswith(message)


# In every order. A channel is a list of what its sender sends, in order; the coordinator triggers in order, and may abort
# whatever it has triggered. A sender leaves out a marker only where it knows of an abort, or has given the cut up: what
# the coordinator receives, and aborts.

CUTS = (1, 2, 3)
END = 0


class Played:
    """A task's aligner with what is still to come on its channels, and what was seen so far."""

    def __init__(self, channels: tuple[tuple[int, ...], ...], aborts: frozenset[int]) -> None:
        self.aligner = Aligned(range(len(channels)))
        self.todo = [list(message) for message in channels]
        self.triggers = list(CUTS)
        self.aborts = sorted(aborts)
        self.blocked: set[int] = set()
        self.made: list[int] = []
        self.given_up: list[int] = []
        self.aborted: set[int] = set()

    def choices(self) -> list[tuple[str, int]]:
        """What may happen next."""
        found = [("channel", i) for i, message in enumerate(self.todo) if message and i not in self.blocked]
        if self.triggers:
            found.append(("trigger", self.triggers[0]))
        found += [("abort", cut) for cut in self.aborts if cut not in self.triggers]
        return found

    def play(self, choice: tuple[str, int]) -> None:
        kind, which = choice
        if kind == "trigger":
            self.triggers.remove(which)
            self.follow(self.aligner.trigger(which), None)
        elif kind == "abort":
            self.aborts.remove(which)
            self.aborted.add(which)
            self.follow(self.aligner.abort(which), None)
        else:
            message = self.todo[which].pop(0)
            outcome = self.aligner.ended(which) if message == END else self.aligner.marker(which, message)
            self.follow(outcome, which)

    def follow(self, outcome: Outcome, channel: int | None) -> None:
        self.given_up += outcome.given_up
        self.blocked -= set(outcome.release)
        if outcome.block:
            assert channel is not None
            self.blocked.add(channel)
        for cut in outcome.cuts:
            assert cut not in self.aborted, "A2: made after it was aborted"
            assert not self.made or cut > self.made[-1], "A2: made twice, or out of order"
            assert cut not in self.given_up, "made after it was given up"
            self.made.append(cut)
        assert self.aligner.check() is None
        assert self.blocked == set(self.aligner.blocked), "the task and its aligner agree on who waits"

    def over(self) -> None:
        """Everything has happened."""
        assert not self.blocked, "a channel is blocked for ever"
        assert not any(self.todo), "something was never read"
        assert self.aligner.current is None
        missed = set(CUTS) - set(self.made) - set(self.given_up) - self.aborted
        assert not missed, f"{missed} neither made nor told"

    def state(self) -> tuple[object, ...]:
        """All that decides what may still happen."""
        a = self.aligner
        return (
            tuple(map(tuple, self.todo)), tuple(self.triggers), tuple(self.aborts), tuple(self.made),
            tuple(self.given_up), a.current, tuple(sorted(a.blocked)), a.done, tuple(sorted(a._aborted)),
            tuple(sorted((number, cut.triggered) for number, cut in a.known.items())),
        )  # fmt: skip


def said_by_a_sender(skips: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """What one channel may carry: all markers but those skipped, and perhaps an end in between that stands for the rest."""
    markers = [cut for cut in CUTS if cut not in skips]
    yield tuple(markers)
    for cut in range(len(markers) + 1):
        yield (*markers[:cut], END)


@lru_cache(None)
def everything(channels: tuple[tuple[int, ...], ...], aborts: frozenset[int]) -> int:
    """Plays every order there is. Returns how many different states were seen."""
    seen: set[tuple[object, ...]] = set()
    open_: list[list[tuple[str, int]]] = [[]]
    while open_:
        past = open_.pop()
        played = Played(channels, aborts)
        for choice in past:
            played.play(choice)
        state = played.state()
        if state in seen:
            continue
        seen.add(state)
        choices = played.choices()
        if not choices:
            played.over()
        open_ += [[*past, choice] for choice in choices]
    return len(seen)


TWO = [
    (one, two)
    for one in said_by_a_sender(frozenset())
    for two in said_by_a_sender(frozenset())
]  # fmt: skip


@pytest.mark.parametrize("channels", TWO, ids=str)
def test_two_channels_in_every_order(channels: tuple[tuple[int, ...], ...]) -> None:
    assert everything(channels, frozenset()) > 10


@pytest.mark.parametrize("aborted", [frozenset({1}), frozenset({2}), frozenset({1, 2}), frozenset({3})], ids=sorted)
def test_two_channels_of_which_one_leaves_out_what_is_aborted(aborted: frozenset[int]) -> None:
    for two in said_by_a_sender(aborted):
        everything((CUTS, two), aborted)
        everything(((1, END), two), aborted)


def test_no_channel_and_one_channel_in_every_order() -> None:
    everything((), frozenset({2}))
    for message in said_by_a_sender(frozenset()):
        for aborted in (frozenset(), frozenset({1}), frozenset({1, 3})):
            everything((message,), aborted)


@st.composite
def plays(draw: st.DrawFn) -> tuple[tuple[tuple[int, ...], ...], frozenset[int]]:
    aborted = draw(st.frozensets(st.sampled_from(CUTS), max_size=2))
    channels = []
    for _ in range(draw(st.integers(0, 3))):
        skips = draw(st.frozensets(st.sampled_from(sorted(aborted)))) if aborted else frozenset()
        channels.append(draw(st.sampled_from(list(said_by_a_sender(skips)))))
    return tuple(channels), aborted


@settings(max_examples=400, deadline=None)
@given(plays(), st.randoms(use_true_random=False))
def test_up_to_three_channels_three_cuts_ends_and_aborts_in_some_order(play: object, chance: object) -> None:
    channels, aborts = play  # type: ignore[misc]
    played = Played(channels, aborts)
    while choices := played.choices():
        played.play(chance.choice(choices))  # type: ignore[attr-defined]
    played.over()
