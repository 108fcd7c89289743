"""The input that the head of a loop holds by spans of event time: when it is read, and when it is late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.markers import SpanRound
from tailrace.elements.timestamps import LAST_TIME, MIN_TIME, NO_TIME
from tailrace.errors import InternalError
from tailrace.task.channels.channel_logs import log_frame
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.operators.spans import HeldInput

SIZE = 10


def held(size: int = SIZE) -> HeldInput:
    services: Any = SimpleNamespace(spill_of=lambda loop: MemorySpill)
    ctx: Any = SimpleNamespace(subtask=0, services=services)
    loop: Any = SimpleNamespace(name="loop", spill_bytes=1 << 20)
    return HeldInput(loop, size, ctx)


def records(*times: int) -> Rows:
    return Rows([*times], np.array(times, np.int64))


def read(input: HeldInput) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while input.queue.ready:
        batch: Any = input.queue.take(100)
        rows = input.read(batch)
        assert rows.times is not None
        found += zip(rows.values, rows.times.tolist(), strict=True)
    input.check()
    return found


def test_records_are_read_with_their_span_in_the_order_in_which_they_came() -> None:
    input = held()
    assert input.hold(records(25, 3, 11, 9, 0, -1)) == 0
    assert input.earliest == -1
    input.start_round(1, SpanRound(1, -1))
    assert read(input) == [(-1, -1)]
    input.start_round(2, SpanRound(1, -1, closes=True))
    assert not input.at_rest and input.done == -1
    input.start_round(3, SpanRound(3, 9))
    assert read(input) == [(3, 9), (9, 9), (0, 9)] and input.earliest == 19
    input.start_round(4, SpanRound(3, 9, closes=True))
    input.start_round(5, SpanRound(5, 29, closes=True))
    assert input.earliest is None and input.at_rest


def test_late_is_what_comes_for_a_span_that_is_under_way_or_over() -> None:
    input = held()
    input.hold(records(15))
    input.start_round(1, SpanRound(1, 19))
    assert read(input) == [(15, 19)]
    assert input.hold(records(15, 4, 20)) == 2
    input.start_round(2, SpanRound(1, 19, closes=True))
    assert input.hold(records(19, 21)) == 1
    input.check()


def test_what_came_while_another_span_was_already_chosen_is_late() -> None:
    input = held()
    input.hold(records(15, 25, 5))
    assert input.start_round(1, SpanRound(1, 19)) == 1, "of 0 to 9, behind its event time"
    assert read(input) == [(15, 19)]
    input.start_round(2, SpanRound(1, 19, closes=True))
    assert input.start_round(3, SpanRound(3, 29, closes=True)) == 1, "of 20 to 29, which are over without a record"
    input.check()


@pytest.mark.parametrize("size", [1, 3, SIZE, 1 << 61])
def test_ends_of_spans_are_times_at_both_ends_of_time(size: int) -> None:
    input = held(size)
    times = [MIN_TIME, MIN_TIME + 1, -1, 0, 1, LAST_TIME - 2, LAST_TIME - 1, LAST_TIME]
    for time in times:
        end = input.end_of(time)
        assert end == LAST_TIME - 1 or (end % size == size - 1 and time <= end < time + size)
        assert MIN_TIME < end < LAST_TIME or time == MIN_TIME
        assert input.end_before(end) in (end, MIN_TIME) or end == LAST_TIME - 1
    kept = [time for time in times if input.end_of(time) > MIN_TIME]
    assert input.hold(records(*kept)) == 0
    number = 0
    while (end := input.earliest) is not None:
        number += 1
        assert input.start_round(number, SpanRound(number, end)) == 0
        assert all(input.end_of(time) == end for time, _ in read(input))


def test_a_span_that_was_half_read_at_a_cut_is_read_on() -> None:
    input = held()
    input.span = SpanRound(4, 9)
    frames = [log_frame(records(1, 2), round, "loop", 0) for round in (0, 9 - MIN_TIME, 19 - MIN_TIME)]
    input.restore(frames)
    assert [value for value, _ in read(input)] == [1, 2, 1, 2]
    assert input.earliest == 19


def test_a_record_without_a_time_is_refused() -> None:
    for rows in (Rows([1]), records(3, NO_TIME)):
        with pytest.raises(ValueError, match="no timestamp, and so no span"):
            held().hold(rows)


def test_input_that_is_read_outside_of_its_span_is_found() -> None:
    input = held()
    with pytest.raises(InternalError, match="Q11"):
        input.read(records(1))
    input.hold(records(5))
    input.done = 9
    with pytest.raises(InternalError, match="Q11"):
        input.check()
