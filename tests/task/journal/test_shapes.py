"""What was in flight on a channel is put together again as it was: the same frames, with the same markers between them,
however a log has its records."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.frame_codec import ChannelId, Element, Frame, decode, encode_batch, encode_marker
from tailrace.elements.markers import EndOfInput, IdleChannel, Marker, Rest, Watermark, WaveMark
from tailrace.errors import CheckpointCorrupt
from tailrace.task.journal.shapes import in_shape, shape_of

CHANNEL = ChannelId(0, 0, 1)


def frame(*values: Any) -> Frame:
    return decode(encode_batch(CHANNEL, 0, 0, 0, Rows(list(values))))


def told(elements: list[Element]) -> list[Any]:
    """Records as lists, and markers as they are."""
    found: list[Any] = []
    for one in elements:
        batch = one.batch() if isinstance(one, Frame) else one
        found.append(batch if isinstance(batch, Marker) else batch.to_rows().values)
    return found


WAS: list[Element] = [
    WaveMark(0),
    frame(1, 2),
    Watermark(5),
    Rest(3),
    frame(3),
    frame(4, 5, 6),
    WaveMark(7),
    EndOfInput(),
]
SHAPE = [shape_of(element) for element in WAS]
ALL = [WaveMark(0), [1, 2], Watermark(5), Rest(3), [3], [4, 5, 6], WaveMark(7), EndOfInput()]


@pytest.mark.parametrize(
    "pieces",
    [
        [frame(1, 2), Watermark(5), frame(3), frame(4, 5, 6), EndOfInput()],
        [frame(1), frame(2), Watermark(5), frame(3, 4), frame(5, 6), EndOfInput()],
        [frame(1, 2), Watermark(5), frame(3, 4, 5, 6), EndOfInput()],
    ],
    ids=["one by one", "parted", "joined"],
)
def test_however_a_log_has_them_the_elements_are_those_that_there_were(pieces: list[Any]) -> None:
    assert told(in_shape(SHAPE, pieces, "it")) == ALL


def test_where_the_channel_stood_in_event_time_is_no_element_of_it() -> None:
    before = [Watermark(2), IdleChannel()]
    pieces = [frame(1, 2), Watermark(5), frame(3), frame(4, 5, 6), EndOfInput()]
    assert told(in_shape(SHAPE, [*before, *pieces], "it")) == ALL
    assert in_shape([], before, "it") == []


def test_a_marker_of_event_time_is_one_that_the_log_has_and_a_wave_is_not() -> None:
    decoded = decode(encode_marker(CHANNEL, 0, 0, 0, Watermark(9))).marker()
    assert in_shape([0, shape_of(WaveMark(4))], [decoded], "it") == [Watermark(9), WaveMark(4)]


@pytest.mark.parametrize(
    "pieces",
    [
        [frame(1, 2), Watermark(5), frame(3), EndOfInput()],
        [frame(1, 2), Watermark(5), frame(3), frame(4, 5, 6, 7), EndOfInput()],
        [frame(1, 2), frame(3), Watermark(5), frame(4, 5, 6), EndOfInput()],
        [frame(1, 2), frame(3), frame(4, 5, 6), EndOfInput()],
    ],
    ids=["too few", "too many", "in another order", "without a marker"],
)
def test_a_log_that_has_not_got_them_is_refused(pieces: list[Any]) -> None:
    with pytest.raises(CheckpointCorrupt, match="in flight on it has another shape"):
        in_shape(SHAPE, pieces, "it")
