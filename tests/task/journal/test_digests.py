"""A digest distinguishes two executions of a channel, and ignores what may differ between two equal ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.frame_codec import ChannelId, decode, encode_batch
from tailrace.elements.markers import EndOfInput, IdleChannel, Watermark
from tailrace.elements.timestamps import MIN_TIME, NO_TIME
from tailrace.task.journal.digests import Digest

CHANNEL = ChannelId(3, 0, 1)
TIMES, GROUPS = [10, 20, 30, 40], [1, 2, 1, 9]


def digest(*elements: Any) -> tuple[int, int]:
    """Of batches, which come as frames, and markers: how many records, and the value."""
    found = Digest()
    for element in elements:
        found.add(
            decode(encode_batch(CHANNEL, 1, 0, found.records, element)) if isinstance(element, Batch) else element
        )
    markers = [element for element in elements if not isinstance(element, Batch)]
    assert found.count == found.records + len(markers), "a place on the channel"
    return found.records, found.value


def rows(start: int, stop: int, times: list[int] = TIMES, groups: list[int] = GROUPS, what: Any = "x") -> Rows:
    values = [what] * (stop - start)
    return Rows(values, np.array(times[start:stop], np.int64), np.array(groups[start:stop], np.uint16))


def test_where_frames_end_and_how_records_are_pickled_does_not_matter() -> None:
    whole = digest(rows(0, 4))
    assert digest(rows(0, 1), rows(1, 4)) == digest(rows(0, 3), rows(3, 4)) == whole
    assert digest(rows(0, 4, what={"a", "b"})) == whole
    named = Columns(pa.record_batch({"a": TIMES}), np.array(TIMES), np.array(GROUPS, np.uint16))
    assert digest(named) == whole


def test_records_without_event_times_are_the_same_whether_that_is_said_of_each_or_of_none() -> None:
    """Records that were in flight at a checkpoint lie in its file beside others that have times, and come back so (random
    dataflow 20100 with `all_together`)."""
    none = Rows(["x"] * 5_000)
    rows = Rows(["x"] * 5_000, np.full(5_000, NO_TIME))
    assert digest(none) == digest(rows) == digest(none.slice(0, 1), rows.slice(1, 5_000))
    assert digest(none) != digest(Rows(["x"] * 5_000, np.full(5_000, MIN_TIME)))


@pytest.mark.parametrize(
    "other",
    [
        [rows(0, 3)],
        [rows(0, 4, times=[10, 20, 30, 41])],
        [rows(0, 4, times=[20, 10, 30, 40])],
        [rows(0, 4, groups=[1, 2, 1, 8])],
        [rows(0, 4, groups=[2, 1, 1, 9])],
        [rows(0, 4), Watermark(5)],
        [rows(0, 4), EndOfInput()],
    ],
    ids=[
        "fewer records",
        "another time",
        "another order",
        "another key",
        "another order of keys",
        "a marker",
        "the end",
    ],
)
def test_other_records_have_another_digest(other: list[Any]) -> None:
    assert digest(*other) != digest(rows(0, 4))


def test_a_marker_counts_with_its_place_and_what_it_says() -> None:
    first = digest(rows(0, 2), Watermark(5), rows(2, 4))
    assert digest(rows(0, 2), Watermark(6), rows(2, 4)) != first
    assert digest(rows(0, 3), Watermark(5), rows(3, 4)) != first
    assert digest(rows(0, 2), IdleChannel(), rows(2, 4)) != first


def test_a_frame_that_cannot_be_read_is_counted_and_no_more() -> None:
    data = bytearray(encode_batch(CHANNEL, 1, 0, 0, Rows([{1: 2}, {3: 4}])))
    data[-1] = data[-2] = 0
    found = Digest()
    found.add(decode(bytes(data)))
    assert found.records == 2
