"""The feed of a hot standby: what it keeps, where that begins, and what it sends."""

from __future__ import annotations

import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import HISTORY, ChannelId, Element, Frame, decode, encode_batch
from tailrace.elements.markers import Barrier, EndOfInput
from tailrace.protocol.replay import Copy, Gained
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.failover.standby_feed import TOO_FAR, StandbyFeed, decode_followed
from tailrace.task.journal.history import Cut, Flushed, History
from tailrace.task.journal.sent_log import Keeping

ONE, OTHER = ChannelId(0, 1, 0), ChannelId(0, 2, 0)
STANDBY = 3


def feed(window: int = 1 << 20, budget: int = 0) -> StandbyFeed:
    return StandbyFeed(0, 1, [ONE, OTHER], Keeping(MemorySpill, budget), window)


def records(ident: ChannelId, first: int, *values: object) -> tuple[ChannelId, int, Element]:
    return ident, first, decode(encode_batch(ident, 1, 0, first, Rows(list(values))))


def barrier(ident: ChannelId, at: int, checkpoint: int) -> tuple[ChannelId, int, Element]:
    return ident, at, Barrier(CutRequest(checkpoint))


def sent(fed: StandbyFeed) -> list[tuple[ChannelId, int, int]]:
    """The channel, the first number and the count of records of all that goes now; 0 for a marker."""
    frames = [decode(action.data) for action in fed.sends()]
    assert all(isinstance(one, Frame) for one in frames)
    return [(one.channel, one.seq, one.count) for one in frames]


def steps(count: int) -> History:
    """A history with so many entries."""
    history = History()
    for number in range(count):
        history.add(Flushed({0: [number]}))
    return history


def with_a_checkpoint(**sizes: int) -> StandbyFeed:
    """A feed with records in front of the barriers of checkpoint 1, which is complete, and behind them."""
    fed = feed(**sizes)
    fed.arrive(*records(ONE, 0, "a", "b"))
    fed.arrive(*barrier(ONE, 2, 1))
    fed.arrive(*records(OTHER, 0, "x"))
    fed.arrive(*records(ONE, 2, "c"))
    fed.arrive(*barrier(OTHER, 1, 1))
    fed.arrive(*records(OTHER, 1, "y", "z"))
    fed.complete(1)
    return fed


def test_what_is_kept_begins_behind_the_barrier_of_the_complete_checkpoint() -> None:
    fed = with_a_checkpoint()
    assert fed.expect(STANDBY, 1)
    assert not fed.is_due(steps(100)), "the standby has not called"
    fed.begin(STANDBY)
    assert sent(fed) == [(ONE, 2, 1), (OTHER, 1, 2)]
    fed.arrive(*records(ONE, 3, "d"))
    assert sent(fed) == [(ONE, 3, 1)]
    assert sent(fed) == []


def test_a_standby_with_another_checkpoint_may_not_call() -> None:
    fed = with_a_checkpoint()
    assert not fed.expect(STANDBY, 2)
    fed.arrive(*barrier(ONE, 3, 2))
    assert fed.expect(STANDBY, 1)
    fed.complete(2)
    fed.begin(STANDBY)
    assert sent(fed) == [(ONE, 2, 1), (OTHER, 1, 2), (ONE, 3, 0)], "it was let in with checkpoint 1"


def test_a_channel_that_has_ended_has_no_barrier() -> None:
    fed = feed()
    fed.arrive(*records(ONE, 0, "a"))
    fed.arrive(ONE, 1, EndOfInput())
    fed.arrive(*records(OTHER, 0, "x"))
    fed.arrive(*barrier(OTHER, 1, 1))
    fed.complete(1)
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    assert sent(fed) == []


def test_a_channel_that_ends_behind_a_barrier_keeps_what_is_between() -> None:
    fed = with_a_checkpoint()
    fed.arrive(ONE, 3, EndOfInput())
    fed.complete(1)
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    assert sent(fed) == [(ONE, 2, 1), (OTHER, 1, 2), (ONE, 3, 0)]


def test_behind_the_loss_of_a_standby_the_next_begins_behind_barriers_that_come_then() -> None:
    fed = with_a_checkpoint()
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    fed.arrive(*barrier(ONE, 3, 2))
    sent(fed)
    fed.end("lost")
    assert fed.over is not None and (fed.over.place, fed.over.possible) == (STANDBY, False)
    fed.arrive(*records(ONE, 3, "d"))
    fed.arrive(*barrier(OTHER, 3, 2))
    fed.complete(2)
    assert not fed.expect(STANDBY, 2), "what came behind one of the barriers is not kept"
    fed.arrive(*barrier(ONE, 4, 3))
    fed.arrive(*records(ONE, 4, "e"))
    fed.arrive(*barrier(OTHER, 3, 3))
    fed.complete(3)
    assert fed.expect(STANDBY, 3)
    fed.begin(STANDBY)
    assert sent(fed) == [(ONE, 4, 1)]


def test_a_channel_that_had_ended_before_a_standby_was_lost_is_whole_behind_later_barriers_only() -> None:
    fed = with_a_checkpoint()
    fed.arrive(*barrier(OTHER, 3, 2))
    fed.arrive(ONE, 3, EndOfInput())
    fed.end("")
    fed.complete(2)
    assert not fed.expect(STANDBY, 2), "its end may have come behind the cut for checkpoint 2"
    fed.arrive(*barrier(OTHER, 3, 3))
    fed.complete(3)
    assert fed.expect(STANDBY, 3)


def test_frames_go_under_credit_and_are_kept_until_then() -> None:
    fed = with_a_checkpoint(window=4)
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    first = fed.sends()
    assert len(first) == 1, "one frame goes whatever its size"
    assert fed.sends() == []
    fed.grant(4 + len(first[0].data))
    assert sent(fed) == [(OTHER, 1, 2)]


def test_a_standby_that_does_not_keep_pace_is_fed_no_more() -> None:
    fed = with_a_checkpoint(window=4)
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    for checkpoint in (2, 3):
        fed.arrive(*barrier(ONE, 3, checkpoint))
        fed.arrive(*barrier(OTHER, 3, checkpoint))
        fed.sends()
        fed.complete(checkpoint)
    assert fed.over is not None and fed.over.reason == TOO_FAR
    assert fed.party is None


def test_a_standby_that_calls_too_late_is_not_fed() -> None:
    fed = with_a_checkpoint()
    assert fed.expect(STANDBY, 1)
    for checkpoint in (2, 3):
        fed.arrive(*barrier(ONE, 3, checkpoint))
        fed.arrive(*barrier(OTHER, 3, checkpoint))
        fed.complete(checkpoint)
    fed.begin(STANDBY)
    assert fed.party is None and fed.over is not None and not fed.over.possible


def test_the_history_goes_when_the_worker_rests_or_has_done_much() -> None:
    fed, history = with_a_checkpoint(), steps(3)
    fed.urgent = True
    assert not fed.is_due(history), "nobody is fed"
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    fed.urgent = False
    assert not fed.is_due(history)
    fed.urgent = True
    assert fed.is_due(history)
    assert [one.entries for one in fed.news(history)] == [history.entries]
    assert fed.news(history) == []
    fed.urgent = False
    assert fed.is_due(steps(100))


def test_the_next_report_is_gathered_until_the_standby_has_taken_the_one_before() -> None:
    """The standby sets the pace: what is gathered meanwhile it replays together."""
    fed, history = with_a_checkpoint(), steps(3)
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    fed.urgent = True
    fed.sends()
    assert [len(one.entries) for one in fed.news(history)] == [3]
    for number in range(100):
        history.add(Flushed({0: [number]}))
    fed.arrive(*records(OTHER, 3, "more"))
    fed.urgent = True
    assert not fed.is_due(history)
    fed.urgent = False
    fed.grant(1 << 20)
    assert fed.is_due(history)
    assert sent(fed) == [(OTHER, 3, 1)]
    assert [len(one.entries) for one in fed.news(history)] == [100]


@pytest.mark.parametrize("called", [False, True])
def test_the_history_goes_to_the_standby_before_a_complete_checkpoint_drops_it(called: bool) -> None:
    """A few steps had not gone yet, or it had not called yet: it gave up, since the history began behind what it had."""
    fed, history = with_a_checkpoint(), steps(5)
    assert fed.expect(STANDBY, 1)
    if called:
        fed.begin(STANDBY)
    history.add(Cut(0, CutRequest(2), 0, b"", 0))
    made = [*history.entries]
    fed.complete(2)
    fed.keep_history(history)
    history.complete(2)
    assert history.first == 5
    if not called:
        fed.begin(STANDBY)
    for number in range(100):
        history.add(Flushed({0: [number]}))
    copy = Copy()
    for one in fed.news(history):
        assert one.first <= copy.end
        copy.gain(one)
    assert copy.entries == [*made, *history.entries[1:]]


def test_what_was_kept_of_the_history_for_one_standby_is_not_for_the_next() -> None:
    fed, history = with_a_checkpoint(), steps(5)
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    fed.keep_history(history)
    fed.end("it was lost")
    assert not fed.is_due(history)
    for ident in (ONE, OTHER):
        fed.arrive(*barrier(ident, 3, 2))
    fed.complete(2)
    history.forget(STANDBY)
    assert fed.expect(STANDBY, 2)
    fed.begin(STANDBY)
    fed.urgent = True
    assert [one.entries for one in fed.news(history)] == [history.entries]


def test_a_report_has_the_hashes_that_are_new() -> None:
    fed = with_a_checkpoint()
    assert fed.expect(STANDBY, 1)
    fed.begin(STANDBY)
    values = [(1, 0, 1, 5, 77), (1, 0, 2, 6, 88)]
    found = []
    for known in (values, values, [(1, 0, 1, 9, 99), values[1]]):
        frame = decode(fed.report(Gained(3, [b"a step"]), known).data)
        assert frame.kind == HISTORY
        found.append(decode_followed(frame.history()))
    assert [one.gained for one in found] == [Gained(3, [b"a step"])] * 3
    assert [one.values for one in found] == [values, [], [(1, 0, 1, 9, 99)]]
