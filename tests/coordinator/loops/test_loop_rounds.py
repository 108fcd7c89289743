"""Rounds of a loop: when the coordinator starts the next one, and when no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nests import Desk

from tailrace.coordinator.loops.termination import (
    NestSpec,
)
from tailrace.elements.markers import SpanRound
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.termination import (
    NO_ROUNDS,
    RoundReport,
    SpanReport,
    StartRound,
    StopRounds,
)


def test_a_round_begins_when_all_have_ended_the_one_before() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=2))
    assert desk.said() == []
    desk.say(1, RoundReport(0, 0))
    assert desk.said() == [StartRound(0, 1)]
    desk.say(1, RoundReport(0, 1))
    desk.say(0, RoundReport(0, 1))
    assert desk.said() == [], "nothing waits: the ordinary end will come"
    desk.say(1, RoundReport(0, 1, waiting=1))
    assert desk.said() == [StartRound(0, 2)], "a timer has emitted"


def test_rounds_stop_at_their_number() -> None:
    desk = Desk(NestSpec(2, rounds_max=2, rounds=True))
    for number in range(2):
        desk.say(0, RoundReport(0, number, waiting=1))
        desk.say(1, RoundReport(0, number))
    assert desk.said() == [StartRound(0, 1), StopRounds(0)]
    desk.say(1, RoundReport(0, 1, waiting=1))
    assert desk.said() == []


def test_or_when_the_verdict_says_so() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=1, verdict=True))
    desk.say(1, RoundReport(0, 0, waiting=1))
    assert desk.said() == [StopRounds(0)]


def test_after_a_restore_those_that_had_not_begun_a_round_begin_it() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 4, waiting=1))
    desk.say(1, RoundReport(0, 3, waiting=1))
    assert desk.sent == [(1, StartRound(0, 4))]
    desk.sent = []
    desk.say(1, RoundReport(0, 4))
    assert desk.said() == [StartRound(0, 5)]


def test_a_slot_whose_tasks_have_all_finished_is_not_waited_for() -> None:
    """A slot without tasks had a part in what entered the loop, and that has ended."""
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=1))
    assert desk.said() == []
    desk.say(1, RoundReport(0, NO_ROUNDS))
    assert desk.said() == [StartRound(0, 1)]
    desk.say(0, RoundReport(0, 1, waiting=1))
    assert desk.said() == [StartRound(0, 2)]


HOUR = NestSpec(2, rounds_max=3, rounds=True, spans=10)
FIRST, SECOND = SpanRound(1, 9), SpanRound(4, 39)


def spans(now: SpanRound | None, come: int | None, held: int | None = None, done: int = MIN_TIME) -> SpanReport:
    return SpanReport(now, done, come, held)


def test_a_span_begins_when_event_time_has_passed_it_everywhere_and_its_rounds_come_to_their_end_before_the_next() -> (
    None
):
    desk = Desk(HOUR)
    desk.say(0, RoundReport(0, 0, spans=spans(None, 19, 9)))
    desk.say(1, RoundReport(0, 0, spans=spans(None, MIN_TIME, 9)))
    assert desk.said() == [], "it may still come in one of them"
    desk.say(1, RoundReport(0, 0, spans=spans(None, 9, 39)))
    assert desk.said() == [StartRound(0, 1, FIRST)]
    for number in (1, 2):
        desk.say(0, RoundReport(0, number, waiting=1, spans=spans(FIRST, 59, 39)))
        desk.say(1, RoundReport(0, number, spans=spans(FIRST, 59, 39)))
    assert desk.said() == [StartRound(0, 2, FIRST), StartRound(0, 3, FIRST)]
    desk.say(0, RoundReport(0, 3, waiting=1, spans=spans(FIRST, 59, 39)))
    desk.say(1, RoundReport(0, 3, spans=spans(FIRST, 59, 39)))
    closed = SpanRound(1, 9, closes=True)
    assert desk.said() == [StartRound(0, 4, closed)], "there may be three rounds"
    for slot in range(2):
        desk.say(slot, RoundReport(0, 4, spans=spans(closed, 59, 39, 9)))
    assert desk.said() == [StartRound(0, 5, SpanRound(5, 39))]


def test_spans_without_records_let_event_time_pass_and_idle_input_holds_nothing_up_while_other_input_goes_on() -> None:
    desk = Desk(HOUR)
    desk.say(0, RoundReport(0, 0, spans=spans(None, None, 29)))
    desk.say(1, RoundReport(0, 0, spans=spans(None, None)))
    assert desk.said() == [], "all are idle"
    desk.say(1, RoundReport(0, 0, spans=spans(None, MAX_TIME)))
    assert desk.said() == [], "one has ended, and the other one is idle"
    desk.say(1, RoundReport(0, 0, spans=spans(None, 19)))
    empty = SpanRound(1, 19, closes=True)
    assert desk.said() == [StartRound(0, 1, empty)]
    for slot in range(2):
        desk.say(slot, RoundReport(0, 1, spans=spans(empty, 19, 29, 19)))
    assert desk.said() == []
    desk.say(0, RoundReport(0, 1, spans=spans(empty, MAX_TIME, 29, 19)))
    desk.say(1, RoundReport(0, 1, spans=spans(empty, MAX_TIME, None, 19)))
    assert desk.said() == [StartRound(0, 2, SpanRound(2, 29))], "the input has ended, so no more of it comes"


def test_a_verdict_or_a_round_that_feeds_nothing_back_ends_a_span() -> None:
    for waiting, verdict in ((1, True), (0, None)):
        desk = Desk(HOUR)
        desk.say(0, RoundReport(0, 1, waiting, verdict, spans(FIRST, 19)))
        desk.say(1, RoundReport(0, 1, spans=spans(FIRST, 19)))
        assert desk.said() == [StartRound(0, 2, SpanRound(1, 9, closes=True))]


def test_a_round_of_a_span_that_some_had_begun_at_the_restored_checkpoint_is_begun_by_all() -> None:
    desk = Desk(HOUR)
    begun = SpanReport(None, 9, 39, 39, (4, SECOND))
    desk.say(0, RoundReport(0, 3, spans=spans(SpanRound(1, 9, closes=True), 39, 39, 9)))
    desk.say(1, RoundReport(0, 3, waiting=1, spans=begun))
    assert desk.said() == [StartRound(0, 4, SECOND)]


def test_rounds_do_not_go_back() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 1))
    with pytest.raises(ProtocolViolation):
        desk.say(0, RoundReport(0, 0))


class Plainly:
    """The rules of rounds for three slots, looked up anew at each report."""

    def __init__(self) -> None:
        self.reports: dict[int, RoundReport] = {}
        self.started = 0

    def say(self, slot: int, report: RoundReport) -> list[tuple[int, StartRound]]:
        self.reports[slot] = report
        going = {slot: one for slot, one in sorted(self.reports.items()) if one.round != NO_ROUNDS}
        if len(self.reports) < 3 or not going:
            return []
        newest = max(one.round for one in going.values())
        behind = [slot for slot, one in going.items() if one.round < newest]
        if newest < self.started or (behind and newest == self.started):
            return []  # somebody has yet to end the round that was started
        if behind:
            self.started = newest
            return [(slot, StartRound(0, newest)) for slot in behind]
        if not any(one.waiting for one in going.values()):
            return []
        self.started = newest + 1
        return [(slot, StartRound(0, newest + 1)) for slot in range(3)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 1, 1, 2, NO_ROUNDS]), st.integers(0, 1)), max_size=40)
)
def test_whoever_reports_the_rounds_are_those_that_the_rules_say(story: list[tuple[int, int, int]]) -> None:
    desk, plainly, at = Desk(NestSpec(3, rounds=True)), Plainly(), [0, 0, 0]
    for slot, step, waiting in story:
        at[slot] = min(NO_ROUNDS, at[slot] + step)
        report = RoundReport(0, at[slot], waiting=waiting)
        desk.sent = []
        desk.say(slot, report)
        assert [one for one in desk.sent if isinstance(one[1], StartRound)] == plainly.say(slot, report)
