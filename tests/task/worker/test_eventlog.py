"""The log of a worker's events as bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from tailrace.elements.frame_codec import ChannelName
from tailrace.protocol.deployment import Deploy, Failed, FailureKind, Peer, Publish
from tailrace.state.format import Placed, TableInfo
from tailrace.state.parts import BlockOf, ChainsOf, LogOf, MetaOf, TablesOf
from tailrace.task.contract import events
from tailrace.task.contract.actions import CallSink, Exit, ToPeer, WriteState
from tailrace.task.journal.outside_answers import Gave, Raised, Told
from tailrace.task.worker.eventlog import LogEntry, action_bytes, decode, encode

TABLE = TableInfo("seen")
EVENTS: list[Any] = [
    events.Step(3, 1_700_000_000_000_000, 64),
    events.Flush(),
    events.Encode(5, 100),
    events.FreezeTook(2, 33),
    events.ReportDue({0: 7}, 1000, {"bad token": 1}),
    events.FrameArrived(b"frame", 1),
    events.PeersConnected(),
    events.PeersUnreachable("no route"),
    events.PeerLost(2, "closed"),
    events.PeerBack(2),
    events.CoordinatorSaid(Deploy(b"plan", [Peer(0, "h", 1, 1)], 2, 1, b"manifest", "file:/a", True)),
    events.CoordinatorSaid(Publish([("sink", [b"one", Placed("f", 1, 2, 3)])], 4)),
    events.CoordinatorLost("closed"),
    events.CoordinatorFound(),
    events.MessageTooLarge("OperatorEvent", "64 MiB"),
    events.DriverFailed(Failed(FailureKind.INTERNAL, "broken")),
    events.StatePartRead(1, MetaOf("u", 0, 2, True, b"meta")),
    events.StatePartRead(1, TablesOf("u", [TABLE])),
    events.StatePartRead(1, BlockOf("u", TABLE, 5, 1, memoryview(b"block"))),
    events.StatePartRead(1, ChainsOf("u", {5: ("a", "b")})),
    events.StatePartRead(1, LogOf(ChannelName("s", None, "u", 0, 0, 1, 2), 2, 1, memoryview(b"frame"), 1, (0, 64), 1)),
    events.StateRead(1),
    events.StateUnreadable(1, "damaged", True),
    events.PlacedRead(1, [b"a", b"b"]),
    events.CallsAnswered("u", 3),
    events.ReaderWoken("u"),
    events.SinkAnswered(4, "OSError: no route", "a line", True),
    events.PlacedUnreadable(1, "gone", False),
    events.StateWritten(1, 99),
    events.StateNotWritten(1, "full"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_the_same_behind_its_bytes(event: Any) -> None:
    entry = LogEntry(event, [Gave(3, 1), Told(b"x"), Raised(b"", "OSError", "gone")])
    assert decode(encode(entry)) == entry


def test_there_is_an_example_of_each_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(events.Event))


def test_a_step_takes_some_twenty_bytes() -> None:
    assert len(encode(LogEntry(events.Step(3, 1_700_000_000_000_000, 64)))) <= 24


def test_equal_actions_have_equal_bytes_and_others_have_not() -> None:
    assert action_bytes(ToPeer(1, b"frame")) == action_bytes(ToPeer(1, b"frame"))
    actions = [ToPeer(1, b"frame"), ToPeer(2, b"frame"), ToPeer(1, b"other"), Exit("done")]
    actions += [CallSink(1, "u", "publish", ([b"a"],), None), CallSink(1, "u", "publish", ([b"b"],), None)]
    assert action_bytes(actions[-1]) == action_bytes(replace(actions[-1], sink=object()))  # type: ignore[type-var]
    actions += [WriteState(1, "f", [b"ab"], True), WriteState(1, "f", [b"a", b"b"], True)]
    assert len({action_bytes(action) for action in actions}) == len(actions)
