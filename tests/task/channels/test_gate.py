"""The inputs of a subtask: in order within a channel, in turn between channels, and one watermark over all."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.elements.batches import Columns, Rows
from tailrace.elements.frame_codec import ChannelId, ChannelName, decode, encode_batch, encode_marker
from tailrace.elements.markers import EndOfInput, IdleChannel, Watermark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import ProtocolViolation, UserCodeError
from tailrace.task.channels.gate import JOINED, Gate
from tailrace.task.channels.inputs import InputChannel, Returning

A, B, C = (ChannelId(0, source, 0) for source in range(3))


def gate(*channels: ChannelId, window: int = 1000) -> Gate:
    return Gate([InputChannel(channel, 0, window) for channel in channels or (A, B)])


def read(g: Gate, limit: int = 100) -> tuple[ChannelId, Any]:
    """The next records or marker, taken into account."""
    taken = g.take(limit)
    g.check()
    if taken.marker is not None:
        g.mark(taken.channel, taken.marker)
        return taken.channel.id, taken.marker
    return taken.channel.id, taken.batch.values


def test_channels_take_turns_batch_by_batch() -> None:
    g = gate()
    for seq, value in enumerate("abc"):
        g.arrive(A, seq, Rows([value]), 1)
    g.arrive(B, 0, Rows(["x"]), 1)
    g.arrive(B, 1, Rows(["y"]), 1)
    assert [read(g, 1)[1][0] for _ in range(5)] == ["a", "x", "b", "y", "c"]
    assert not g.has_input


def test_small_batches_that_wait_on_a_channel_are_read_together() -> None:
    """Each exchange parts batches, and a step costs the same for one record as for many: through five hundred exchanges
    each record was a batch of its own in the end, and took a hundred times as long."""
    g = gate(window=100)
    for seq, value in enumerate("abc"):
        g.arrive(A, seq, Rows([value], None, np.array([seq], np.uint16)), 20)
    g.arrive(B, 0, Rows(["x"]), 1)
    taken = g.take(100)
    assert taken.batch is not None and taken.batch.to_rows().values == ["a", "b", "c"]
    assert taken.batch.groups is not None and taken.batch.groups.tolist() == [0, 1, 2]
    assert taken.grant == 160
    assert read(g) == (B, ["x"]) and not g.has_input and g.queued_bytes() == 0


def test_small_batches_are_read_together_across_watermarks_the_newest_of_which_comes_behind_them() -> None:
    """Each frame of a job with event time has a watermark behind it: a task with many of them waiting took two steps for
    each, and never caught up."""
    g = gate(A)
    for seq, value in enumerate("abc"):
        g.arrive(A, seq, Rows([value]), 1)
        g.arrive(A, seq + 1, Watermark(10 * seq), 0)
    assert [read(g), read(g)] == [(A, ["a", "b", "c"]), (A, Watermark(20))] and not g.has_input
    assert g.channels[A].marks == 3, "a loop nest counts each of them"
    g.arrive(A, 3, Rows(["d"]), 1)
    g.arrive(A, 4, Watermark(30), 0)
    g.arrive(A, 4, IdleChannel(), 0)
    g.arrive(A, 4, Rows(["e"]), 1)
    assert [read(g)[1] for _ in range(4)] == [["d"], Watermark(30), IdleChannel(), ["e"]], "past no other marker"


def test_a_watermark_waits_for_one_step_of_records_at_most() -> None:
    """Else it would wait for ever where records never cease."""
    g = gate(A)
    for seq in range(6):
        g.arrive(A, seq, Rows([seq]), 1)
        g.arrive(A, seq + 1, Watermark(seq), 0)
    assert [read(g, 2)[1] for _ in range(6)] == [[0, 1], Watermark(1), [2, 3], Watermark(3), [4, 5], Watermark(5)]


def test_no_more_is_read_together_than_a_step_may_take_and_nothing_past_a_marker() -> None:
    g = gate()
    for seq in range(0, 6, 2):
        g.arrive(A, seq, Rows([seq, seq + 1]), 1)
    g.arrive(A, 6, IdleChannel(), 0)
    g.arrive(A, 6, Rows([6]), 1)
    g.arrive(A, 7, Columns(pa.record_batch({"n": [7]})), 1)
    g.arrive(A, 8, Columns(pa.record_batch({"m": [8]})), 1)
    found = [read(g, 5)[1] for _ in range(3)]
    assert found == [[0, 1, 2, 3], [4, 5], IdleChannel()]
    assert [len(g.take(5).batch or ()) for _ in range(3)] == [1, 1, 1]  # of another form, or with other columns


def test_of_watermarks_in_a_row_the_newest_is_read() -> None:
    g = gate()
    for time in (1, 2, 3):
        g.arrive(A, 0, Watermark(time), 0)
    g.arrive(A, 0, Rows(["x"]), 1)
    assert [read(g)[1] for _ in range(2)] == [Watermark(3), ["x"]] and g.channels[A].marks == 3


def test_watermarks_that_were_in_flight_at_the_restored_cut_stay_where_they_are() -> None:
    g = gate()
    g.channels[A].returning = Returning(ChannelName("a", None, "b", 0, 0, 0, 0))
    for seq in range(2):
        g.arrive(A, seq, Rows([seq]), 1)
        g.arrive(A, seq + 1, Watermark(seq), 0)
    assert [read(g)[1] for _ in range(4)] == [[0], Watermark(0), [1], Watermark(1)]


def test_a_large_batch_is_not_copied_to_be_read_with_another() -> None:
    g = gate()
    large = Rows(list(range(JOINED)))
    g.arrive(A, 0, large, 1)
    g.arrive(A, JOINED, Rows(["x"]), 1)
    assert g.take(10_000).batch is large


def test_a_batch_is_read_in_portions_and_nobody_comes_between() -> None:
    g = gate()
    g.arrive(A, 0, Rows([1, 2, 3, 4, 5]), 10)
    g.arrive(B, 0, Rows(["x"]), 10)
    assert [read(g, 2) for _ in range(4)] == [(A, [1, 2]), (A, [3, 4]), (A, [5]), (B, ["x"])]


def test_what_was_read_is_granted_again_once_all_of_it_was_read() -> None:
    g = gate(window=100)
    g.arrive(A, 0, Rows([1, 2]), 60)
    assert g.queued_bytes() == 60
    assert g.take(1).grant is None
    assert g.take(1).grant == 160
    assert g.queued_bytes() == 0


def test_frames_are_read_as_the_batches_they_hold() -> None:
    g = gate()
    frame = decode(encode_batch(A, 1, 0, 0, Rows([1, 2])))
    g.arrive(A, 0, frame, frame.size)
    assert read(g) == (A, [1, 2])


VIOLATIONS: dict[str, tuple[Any, str]] = {
    "of a stranger": (lambda g: g.arrive(C, 0, Rows([1]), 1), "channel e0:2->0 does not lead to this subtask"),
    "with a gap": (lambda g: g.arrive(A, 5, Rows([1]), 1), "record 5 came where 0 was due"),
    "twice": (
        lambda g: [g.arrive(A, 0, Rows([1, 2]), 1), g.arrive(A, 0, Rows([1, 2]), 1)],
        "record 0 came where 2 was due",
    ),
    "after the end": (
        lambda g: [g.arrive(A, 0, EndOfInput(), 0), g.arrive(A, 0, Rows([1]), 1)],
        "something came after its end",
    ),
    "after the end was read": (
        lambda g: [g.arrive(A, 0, EndOfInput(), 0), read(g), g.arrive(A, 0, Watermark(1), 0)],
        "something came after its end",
    ),
    "beyond the window": (
        lambda g: [g.arrive(A, i, Rows([1]), 600) for i in range(2)],
        "600 bytes arrived where 400 were granted",
    ),
}


@pytest.mark.parametrize("what", VIOLATIONS)
def test_what_must_not_come_is_reported(what: str) -> None:
    send, why = VIOLATIONS[what]
    with pytest.raises(ProtocolViolation, match=why):
        send(gate())


class Demanding(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


def test_records_that_cannot_be_made_again_are_reported_with_their_channel() -> None:
    frame = encode_batch(A, 1, 0, 0, Rows([Demanding(1, 2)]))
    g = gate()
    g.arrive(A, 0, decode(frame), len(frame))
    with pytest.raises(UserCodeError, match="records of channel e0:0->0 cannot be unpickled"):
        g.take(10)


def test_a_damaged_frame_is_the_fault_of_no_class_of_the_user() -> None:
    good = encode_batch(A, 1, 0, 0, Rows([1, 2]))
    broken = good[:-3] + b"\xff\xff\xff"
    g = gate()
    g.arrive(A, 0, decode(broken), len(broken))
    with pytest.raises(ProtocolViolation, match="e0:0->0: records that cannot be read"):
        g.take(10)


# Watermarks.


def marked(g: Gate, channel: ChannelId, marker: Any) -> int:
    g.arrive(channel, g.channels[channel].expected, marker, 0)
    read(g)
    return g.watermark


def test_the_watermark_is_the_minimum_of_all_channels() -> None:
    g = gate()
    assert marked(g, A, Watermark(10)) == MIN_TIME
    assert marked(g, B, Watermark(5)) == 5
    assert marked(g, B, Watermark(20)) == 10
    assert marked(g, A, Watermark(15)) == 15


def test_a_watermark_that_goes_back_changes_nothing() -> None:
    g = gate(A)
    assert marked(g, A, Watermark(10)) == 10
    assert marked(g, A, Watermark(5)) == 10
    assert marked(g, A, Watermark(11)) == 11


def test_an_idle_channel_does_not_count_until_it_speaks_again() -> None:
    g = gate()
    marked(g, A, Watermark(10))
    marked(g, B, Watermark(100))
    assert marked(g, A, IdleChannel()) == 100
    assert marked(g, A, Watermark(50)) == 100
    assert marked(g, B, Watermark(200)) == 100
    assert marked(g, A, Watermark(150)) == 150


def test_a_record_ends_idleness_too() -> None:
    g = gate()
    marked(g, A, Watermark(10))
    marked(g, B, Watermark(10))
    marked(g, A, IdleChannel())
    g.arrive(A, 0, Rows([1]), 1)
    read(g)
    assert marked(g, B, Watermark(100)) == 10


def test_a_channel_that_has_ended_does_not_count_and_the_last_one_brings_the_end_of_time() -> None:
    g = gate()
    marked(g, A, Watermark(10))
    assert marked(g, B, EndOfInput()) == 10
    assert not g.ended
    assert marked(g, A, EndOfInput()) == MAX_TIME
    assert g.ended


def test_all_are_idle_when_every_one_that_has_not_ended_is() -> None:
    g = gate(A, B, C)
    marked(g, A, IdleChannel())
    assert not g.all_idle
    marked(g, B, EndOfInput())
    assert not g.all_idle
    marked(g, C, IdleChannel())
    assert g.all_idle
    marked(g, A, EndOfInput())
    marked(g, C, EndOfInput())
    assert not g.all_idle


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.one_of(st.integers(-50, 50).map(Watermark), st.just(IdleChannel()), st.just(EndOfInput())),
        ),
        max_size=40,
    )
)
def test_the_watermark_never_goes_back(markers: list[tuple[ChannelId, Any]]) -> None:
    g, before = gate(A, B, C), MIN_TIME
    for channel, marker in markers:
        if g.channels[channel].ended:
            continue
        now = marked(g, channel, marker)
        assert now >= before
        before = now


def test_a_marker_from_another_worker_is_the_same_marker() -> None:
    g = gate(A)
    frame = decode(encode_marker(A, 1, 0, 0, Watermark(7)))
    assert marked(g, A, frame.marker()) == 7


MARKERS = st.integers(1, 9).map(Watermark) | st.just(IdleChannel()) | st.just(EndOfInput())


@given(st.lists(st.tuples(st.integers(0, 2), MARKERS | st.none()), max_size=40))
def test_event_time_is_the_lowest_of_all_channels_whatever_comes(story: list[tuple[int, Any]]) -> None:
    g, times, idle, ended, now, seq = gate(A, B, C), [MIN_TIME] * 3, set(), set(), MIN_TIME, [0, 0, 0]
    for number, marker in story:
        if number in ended:
            continue
        g.arrive(ChannelId(0, number, 0), seq[number], Rows(["x"]) if marker is None else marker, int(marker is None))
        seq[number] += marker is None
        read(g)
        idle.discard(number)
        if isinstance(marker, IdleChannel):
            idle.add(number)
        elif isinstance(marker, EndOfInput):
            ended.add(number)
        elif marker is not None:
            times[number] = max(times[number], marker.time)
        counted = [times[one] for one in range(3) if one not in idle and one not in ended]
        if marker is not None:  # records move no event time, though their channel was idle before
            now = max(now, min(counted)) if counted else MAX_TIME if len(ended) == 3 else now
        assert g.watermark == now
        assert g.ended == (len(ended) == 3)
        assert g.all_idle == (not counted and len(ended) < 3)
