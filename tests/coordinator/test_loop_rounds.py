"""Rounds of a loop: when the coordinator starts the next one, and when no more."""

from __future__ import annotations

import pytest
from nests import Desk

from tailrace.coordinator.loops import (
    NestSpec,
)
from tailrace.errors import ProtocolViolation
from tailrace.protocol.termination import (
    NO_ROUNDS,
    RoundReport,
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
    """It had a part in what entered the loop, and that has ended."""
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 0, waiting=1))
    assert desk.said() == []
    desk.say(1, RoundReport(0, NO_ROUNDS))
    assert desk.said() == [StartRound(0, 1)]
    desk.say(0, RoundReport(0, 1, waiting=1))
    assert desk.said() == [StartRound(0, 2)]


def test_rounds_do_not_go_back() -> None:
    desk = Desk(NestSpec(2, rounds=True))
    desk.say(0, RoundReport(0, 1))
    with pytest.raises(ProtocolViolation):
        desk.say(0, RoundReport(0, 0))
