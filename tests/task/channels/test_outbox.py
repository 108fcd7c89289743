"""The outputs of a subtask: records gathered into frames, watermarks behind the records they speak of, credit respected."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.batches import Columns, Rows
from tailrace.elements.frame_codec import ChannelId, decode
from tailrace.elements.markers import EndOfInput, IdleChannel, Watermark, WaveMark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import InternalError
from tailrace.protocol.credit import Consumer
from tailrace.task.channels.outbox import FRAME_RECORDS, MAX_AGE, ROUNDS, Outbox, OutputChannel, OutputEdge
from tailrace.task.channels.partition import RoundRobin, ToAll, ToOne

LOCAL, REMOTE = ChannelId(0, 0, 0), ChannelId(0, 0, 1)


class Sending:
    """An outbox with one edge, and whoever reads its channels."""

    def __init__(self, *channels: ChannelId, window: int = 1 << 20, partitioner: Any = None) -> None:
        outputs = [OutputChannel(c, c.source == c.target, window) for c in channels or (LOCAL,)]
        self.output = OutputEdge("giver", partitioner or ToOne(), outputs)
        self.box = self.made([self.output])
        self.consumers = {c: Consumer(window) for c in channels or (LOCAL,)}

    def made(self, outputs: list[OutputEdge]) -> Outbox:
        return Outbox(outputs, 1, 0, 0, False)

    def emit(self, *values: Any) -> None:
        self.box.emit(self.output, Rows(list(values)))

    def watermark(self, time: int) -> None:
        self.box.watermark(self.output, time)

    def sent(self, *, read: bool = True) -> list[tuple[ChannelId, Any]]:
        """What went since the last call: (channel, values or marker). What was read is granted again."""
        self.box.check()
        sends, self.box.sends = self.box.sends, []
        found: list[tuple[ChannelId, Any]] = []
        grants = []
        for channel, seq, payload, charge in sends:
            if charge:
                self.consumers[channel].arrive(charge)  # raises where more came than was granted
                if read:
                    grants.append((channel, self.consumers[channel].consume(charge)))
            if not isinstance(payload, bytes):
                found.append((channel, payload.to_rows().values if isinstance(payload, Rows | Columns) else payload))
            else:
                frame = decode(payload)
                assert frame.seq == seq
                found.append((channel, frame.batch().to_rows().values if frame.count else frame.marker()))
        for channel, grant in grants:
            if grant is not None:
                self.box.grant(channel, grant)
        return found


def test_records_are_gathered_until_they_are_flushed() -> None:
    s = Sending()
    s.emit(1, 2)
    s.emit(3)
    assert s.sent() == []
    assert s.box.flush()
    assert s.sent() == [(LOCAL, [1, 2, 3])]
    assert not s.box.flush()


def test_a_full_frame_goes_at_once() -> None:
    s = Sending()
    s.emit(*range(FRAME_RECORDS["rows"]))
    assert [len(values) for _, values in s.sent()] == [FRAME_RECORDS["rows"]]


def test_large_records_make_frames_of_few() -> None:
    s = Sending(REMOTE)
    for _ in range(64):
        s.emit(b"x" * 20_000)
    s.box.flush()
    frames: list[Any] = []
    while sent := s.sent():
        frames += [values for _, values in sent]
    assert sum(map(len, frames)) == 64 and max(map(len, frames)) <= 16


def test_a_batch_in_columns_stays_whole_up_to_half_a_window_and_is_cut_evenly_above_it() -> None:
    s = Sending()
    cut: list[int] = []
    for wide in (3, 5):
        columns = {f"c{at}": np.arange(FRAME_RECORDS["columns"]) for at in range(wide)}
        s.box.emit(s.output, Columns(pa.record_batch(columns)))
        s.box.flush()
        cut += [len(values) for _, values in s.sent()]
        s.output.channels[0].record_bytes = 0
    assert cut == [16_384, 8_192, 8_192]


def test_what_has_waited_long_enough_goes_though_the_worker_is_busy() -> None:
    s = Sending()
    s.box.now = 1_000
    s.emit(1)
    s.box.now = 1_000 + MAX_AGE - 1
    s.box.flush_if_old()
    assert s.sent() == []
    s.box.now = 1_000 + MAX_AGE
    s.box.flush_if_old()
    assert s.sent() == [(LOCAL, [1])]


def test_behind_a_round_goes_what_waits_on_channels_that_fill_slowly() -> None:
    s = Sending(LOCAL, REMOTE, partitioner=RoundRobin(2, 0))
    fast = FRAME_RECORDS["rows"] // ROUNDS
    s.output.partitioner = ToOne()
    s.emit(*range(fast))
    s.output.partitioner = RoundRobin(2, 1)
    s.emit("a")
    s.watermark(5)
    s.box.been_round()
    assert s.sent() == [(REMOTE, ["a"]), (REMOTE, Watermark(5))]
    assert s.box.oldest is not None
    s.output.partitioner = RoundRobin(2, 0)
    s.emit("b")
    s.box.been_round()
    assert s.sent() == [(LOCAL, [*range(fast), "b"]), (LOCAL, Watermark(5))], "it fills slowly now"
    assert s.box.oldest is None


def test_an_empty_batch_is_nothing() -> None:
    for channel in (LOCAL, REMOTE):
        s = Sending(channel)
        s.emit()
        s.box.emit(s.output, Columns(pa.record_batch({"x": pa.array([], pa.int64())})))
        assert not s.box.flush() and s.sent() == []


def test_batches_of_another_schema_go_in_a_frame_of_their_own() -> None:
    s = Sending(REMOTE)
    for data in ({"x": [1]}, {"x": [2]}, {"y": ["a"]}, {"x": [3]}):
        s.box.emit(s.output, Columns(pa.record_batch(data)))
    s.box.flush()
    assert [values for _, values in s.sent()] == [[(1,), (2,)], [("a",)], [(3,)]]


# Markers.


@pytest.mark.parametrize("channel", [LOCAL, REMOTE])
def test_a_watermark_comes_behind_the_records_before_it_and_only_the_last_one_is_sent(channel: ChannelId) -> None:
    s = Sending(channel)
    s.emit("a")
    s.watermark(5)
    s.emit("b")
    s.watermark(7)
    s.watermark(6)
    s.box.flush()
    assert s.sent() == [(channel, ["a", "b"]), (channel, Watermark(7))]
    s.watermark(7)
    assert not s.box.flush()


def test_a_watermark_goes_without_records_too_and_the_last_one_is_left_to_the_end() -> None:
    s = Sending()
    s.watermark(5)
    s.box.flush()
    assert s.sent() == [(LOCAL, Watermark(5))]
    s.watermark(MAX_TIME)
    assert not s.box.flush()
    s.box.end()
    assert s.sent() == [(LOCAL, EndOfInput())]


def test_idleness_is_sent_at_once_and_taken_back_by_a_watermark() -> None:
    s = Sending()
    s.emit("a")
    s.watermark(5)
    s.box.idle(s.output)
    assert s.sent() == [(LOCAL, ["a"]), (LOCAL, Watermark(5)), (LOCAL, IdleChannel())]
    s.watermark(6)
    s.box.flush()
    assert s.sent() == [(LOCAL, Watermark(6))]


def test_idleness_is_sent_again_behind_records_and_not_behind_other_markers() -> None:
    s = Sending()
    s.box.idle(s.output)
    s.box.mark(WaveMark(1))
    s.box.still_idle(s.output)
    assert not s.box.flush()
    s.emit("a")
    s.box.mark(WaveMark(2))
    s.box.still_idle(s.output)
    s.box.flush()
    message = [
        (LOCAL, IdleChannel()),
        (LOCAL, WaveMark(1)),
        (LOCAL, ["a"]),
        (LOCAL, WaveMark(2)),
        (LOCAL, IdleChannel()),
    ]
    assert s.sent() == message


def test_idleness_is_sent_again_behind_a_watermark_that_was_not_yet_sent() -> None:
    """The watermark ends idleness for its reader, and no marker would have followed it."""
    s = Sending()
    s.watermark(50)
    s.box.idle(s.output)
    s.watermark(60)
    s.box.idle(s.output)
    assert s.sent() == [(LOCAL, Watermark(50)), (LOCAL, IdleChannel()), (LOCAL, Watermark(60)), (LOCAL, IdleChannel())]


def test_waking_is_sent_once_by_whatever_goes_first() -> None:
    s = Sending()
    s.box.idle(s.output)  # before any watermark
    s.box.awake(s.output)
    s.box.flush()
    s.box.awake(s.output)
    s.box.flush()
    assert s.sent() == [(LOCAL, IdleChannel()), (LOCAL, Watermark(MIN_TIME))]
    s.box.idle(s.output)
    s.box.awake(s.output)
    s.emit("a")
    s.box.flush()
    assert s.sent() == [(LOCAL, IdleChannel()), (LOCAL, ["a"])]
    s.box.idle(s.output)
    s.box.awake(s.output)
    s.box.idle(s.output)
    assert s.sent() == [(LOCAL, IdleChannel())], "it woke and fell silent before anybody heard of it"


def test_word_of_idleness_does_not_wait_longer_than_records_do() -> None:
    s = Sending()
    s.box.still_idle(s.output)
    s.box.now = MAX_AGE - 1
    assert not s.box.flush_if_old()
    s.box.now = MAX_AGE
    assert s.box.flush_if_old()
    s.box.awake(s.output)
    s.box.now = 2 * MAX_AGE - 1
    assert not s.box.flush_if_old()
    s.box.now = 2 * MAX_AGE
    assert s.box.flush_if_old()
    assert s.sent() == [(LOCAL, IdleChannel()), (LOCAL, Watermark(MIN_TIME))]


def test_behind_what_came_of_records_of_the_input_a_task_is_not_idle() -> None:
    s = Sending()
    s.emit("of a timer")
    s.box.still_idle(s.output)
    s.box.not_idle()
    s.emit("of a record")
    s.box.flush()
    assert s.sent() == [(LOCAL, ["of a timer", "of a record"])]


def test_the_end_comes_behind_everything() -> None:
    s = Sending(LOCAL, REMOTE, partitioner=ToAll(2))
    s.emit(1)
    s.watermark(5)
    s.box.end()
    sent = s.sent()
    for channel in (LOCAL, REMOTE):
        assert [what for where, what in sent if where == channel] == [[1], Watermark(5), EndOfInput()]


# Credit.


@pytest.mark.parametrize("channel", [LOCAL, REMOTE])
def test_without_credit_frames_wait_in_order_and_markers_behind_them(channel: ChannelId) -> None:
    s = Sending(channel, window=400)
    s.box.emit(s.output, Rows([b"x" * 300]))
    s.box.flush()
    s.box.emit(s.output, Rows([b"y" * 300]))
    s.watermark(5)
    s.box.end()
    assert [values for _, values in s.sent(read=False)] == [[b"x" * 300]]
    assert s.box.blocked == 1
    grant = s.consumers[channel].consume(s.consumers[channel].arrived)
    assert grant is not None
    s.box.grant(channel, grant)
    assert [what for _, what in s.sent()] == [[b"y" * 300], Watermark(5), EndOfInput()]
    assert s.box.blocked == 0


def test_a_record_that_waits_and_that_nobody_would_look_for_is_an_error() -> None:
    s = Sending()
    s.emit(1)
    s.box.oldest = None
    with pytest.raises(InternalError, match="O3"):
        s.box.check()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_records_by_turns_go_where_their_numbers_say_in_rows_and_in_columns(first: int) -> None:
    rows, columns = RoundRobin(3, first), RoundRobin(3, first)
    at = first
    for size in (1, 2, 7, 3, 100):
        numbers = np.arange(at, at + size)
        times, groups = numbers * 10, (numbers % 7).astype(np.uint16)
        for parts in (
            rows.split(Rows(numbers.tolist(), times, groups)),
            columns.split(Columns(pa.record_batch({"n": numbers}), times, groups)),
        ):
            assert [target for target, _ in parts] == [target for target in range(3) if (numbers % 3 == target).any()]
            for target, part in parts:
                mine = numbers[numbers % 3 == target].tolist()
                values = part.values if isinstance(part, Rows) else part.data["n"].to_pylist()
                assert values == mine and part.times is not None and part.groups is not None
                assert part.times.tolist() == [10 * n for n in mine]
                assert part.groups.tolist() == [n % 7 for n in mine]
        at += size


def test_a_channel_that_waits_does_not_keep_others_from_sending() -> None:
    s = Sending(LOCAL, REMOTE, window=400, partitioner=RoundRobin(2, 0))
    for _ in range(2):
        s.emit(b"x" * 300, b"small")
        s.box.flush()
    sent = s.sent(read=False)
    assert [what for where, what in sent if where == REMOTE] == [[b"small"], [b"small"]]
    assert [what for where, what in sent if where == LOCAL] == [[b"x" * 300]]
    assert s.box.blocked == 1


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_everything_arrives_in_order_whatever_the_window(data: st.DataObject) -> None:
    window = data.draw(st.integers(1, 2_000))
    remote = data.draw(st.booleans())
    channel = REMOTE if remote else LOCAL
    s = Sending(channel, window=window)
    given: list[Any] = []
    got: list[Any] = []
    for i in range(data.draw(st.integers(0, 30))):
        values = [(i, b"x" * size) for size in data.draw(st.lists(st.integers(0, 3_000), max_size=5))]
        s.emit(*values)
        given += values
        if data.draw(st.booleans()):
            s.watermark(i + 1)
        if data.draw(st.booleans()):
            s.box.flush()
        got += s.sent()
    s.box.end()
    while batch := s.sent():
        got += batch
    assert s.box.blocked == 0
    assert [value for _, what in got if isinstance(what, list) for value in what] == given
    assert got[-1] == (channel, EndOfInput())
    marks = [what.time for _, what in got if isinstance(what, Watermark)]
    assert marks == sorted(set(marks))
    # No record comes before a watermark that was sent before it.
    seen = 0
    for _, what in got:
        if isinstance(what, Watermark):
            assert seen >= sum(1 for i, _ in given if i < what.time)
        elif isinstance(what, list):
            seen += len(what)


def test_timestamps_and_key_groups_travel_along() -> None:
    s = Sending(REMOTE)
    s.box.emit(s.output, Rows(["a"], np.array([5], np.int64), np.array([9], np.uint16)))
    s.box.emit(s.output, Rows(["b"], np.array([6], np.int64), np.array([8], np.uint16)))
    s.box.flush()
    frame = decode(s.box.sends[0][2]).batch()
    assert frame.times is not None and frame.times.tolist() == [5, 6]
    assert frame.groups is not None and frame.groups.tolist() == [9, 8]
