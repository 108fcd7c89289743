"""The queue between a tail and its head: nothing is reordered, whatever spills; a log is exactly what crossed the cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.elements.batches import Columns, Rows
from tailrace.elements.frame_codec import decode, encoded_size
from tailrace.elements.markers import WaveMark
from tailrace.elements.spills import FrameSpill
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import CheckpointCorrupt, InternalError, UserCodeError
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.storage.spill import SpillFiles
from tailrace.task.channels.channel_logs import LogFrame, log_frame
from tailrace.task.channels.combining import Combiner
from tailrace.task.channels.feedback import FeedbackQueue
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.replayable_feedback import ReplayableFeedback

ALL = 1 << 40


class Disk(MemorySpill):
    """A spill that remembers that it was closed."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


class Loop:
    """A queue, and its spill to look into."""

    def __init__(self, memory: int = ALL, combine: Combiner | None = None, rounds: bool = False) -> None:
        self.disk = Disk()
        self.given = "relax", 3, lambda: self.disk, memory, combine, rounds
        self.queue = FeedbackQueue(*self.given)

    def record(self, sizes: Facts, on_inexact: Callable[[], object] = lambda: None) -> None:
        """Takes the queue of a worker that may be replaced."""
        self.queue = ReplayableFeedback(*self.given, Facts(), sizes, on_inexact)

    def log(self, checkpoint: int, limit: int = ALL) -> list[LogFrame]:
        """The whole log of a checkpoint, after which it is discarded."""
        frames, over = self.queue.logs.encode(checkpoint, limit)
        while not over:
            more, over = self.queue.logs.encode(checkpoint, limit)
            frames += more
        self.queue.logs.discard(checkpoint)
        return frames

    def take_all(self, limit: int = ALL) -> list[Any]:
        """Values and markers in the order in which the head sees them."""
        found: list[Any] = []
        while self.queue.ready:
            taken = self.queue.take(limit)
            assert taken is not None
            found += [taken] if isinstance(taken, WaveMark) else plain(taken)
        assert self.queue.take(limit) is None
        return found

    def assert_empty(self) -> None:
        self.queue.check()
        assert (self.queue.memory, self.queue.spilled, self.disk.held) == (0, 0, 0)


def plain(batch: Any) -> list[Any]:
    """The values of a batch; of columns those of the only one."""
    return batch.data.column(0).to_pylist() if isinstance(batch, Columns) else batch.values


def rows(*values: Any) -> Rows:
    return Rows(list(values))


def columns(*values: int) -> Columns:
    return Columns(pa.record_batch({"v": pa.array(values, pa.int64())}))


def logged(frames: list[LogFrame], waiting: bool | None = None) -> list[Any]:
    """The records of a log, in order; of those that wait for a round or do not, where required."""
    found: list[Any] = []
    for frame in frames:
        batch = decode(frame.data).batch()
        assert len(batch) == frame.count
        if waiting is None or waiting == bool(frame.round):
            found += plain(batch)
    return found


# --- order, spilled or not ---


def test_records_and_markers_come_out_as_they_went_in() -> None:
    loop = Loop()
    loop.queue.append(rows(1, 2, 3))
    loop.queue.marker(WaveMark(1))
    loop.queue.append(columns(4, 5))
    loop.queue.append(rows(6))
    assert loop.queue.records == 6
    assert loop.take_all(2) == [1, 2, 3, WaveMark(1), 4, 5, 6]
    assert (loop.queue.appended, loop.queue.taken, loop.queue.records) == (6, 6, 0)
    loop.assert_empty()


def test_small_batches_of_rows_become_one_but_not_past_a_marker() -> None:
    loop = Loop()
    for n in range(10):
        loop.queue.append(rows(n))
    loop.queue.marker(WaveMark(7))
    loop.queue.append(rows(10, 11))
    loop.queue.append(columns(12))
    taken = [loop.queue.take(8) for _ in range(5)]
    assert [plain(b) if not isinstance(b, WaveMark) else b for b in taken] == [
        [0, 1, 2, 3, 4, 5, 6, 7], [8, 9], WaveMark(7), [10, 11], [12],
    ]  # fmt: skip


def test_joined_batches_keep_times_and_groups() -> None:
    loop = Loop()
    loop.queue.append(Rows([1], np.array([10]), np.array([3], np.uint16)))
    loop.queue.append(Rows([2], None, np.array([4], np.uint16)))
    loop.queue.append(Rows([3], np.array([30]), None))
    first, second = loop.queue.take(10), loop.queue.take(10)
    assert isinstance(first, Rows) and isinstance(second, Rows)
    assert (first.values, second.values) == ([1, 2], [3])
    assert first.times is not None and first.groups is not None
    assert (first.times.tolist(), first.groups.tolist()) == ([10, NO_TIME], [3, 4])


@pytest.mark.parametrize("make", [rows, columns])
def test_what_was_spilled_comes_back_with_its_times_and_groups(make: Callable[..., Any]) -> None:
    loop = Loop(memory=0)
    batch = make(1, 2, 3, 4)
    batch.times = np.array([10, NO_TIME, 30, 40])
    batch.groups = np.array([7, 8, 9, 65535], np.uint16)
    loop.queue.append(batch)
    assert loop.queue.memory == 0
    assert loop.queue.spilled == loop.disk.held > 0

    first, second = loop.queue.take(3), loop.queue.take(3)
    assert first is not None and second is not None and not isinstance(first, WaveMark)
    assert not isinstance(second, WaveMark)
    assert type(first) is type(batch)
    assert plain(first) + plain(second) == [1, 2, 3, 4]
    assert first.times is not None and first.groups is not None and second.groups is not None
    assert first.times.tolist() == [10, NO_TIME, 30]
    assert first.groups.tolist() + second.groups.tolist() == [7, 8, 9, 65535]
    loop.assert_empty()


def test_only_what_has_no_room_in_memory_is_spilled() -> None:
    loop = Loop(memory=1_000)
    for n in range(100):
        loop.queue.append(rows(f"{n:0100}"))
        assert loop.queue.memory <= 1_000
    assert loop.queue.memory > 500
    assert loop.queue.spilled > 5_000
    assert [int(text) for text in loop.take_all(7)] == list(range(100))
    loop.assert_empty()


def test_a_large_batch_is_spilled_in_parts() -> None:
    loop = Loop(memory=0)
    loop.queue.append(Rows(list(range(20_000))))
    loop.queue.append(Rows([bytes(100_000) for _ in range(10)]))
    assert len(loop.disk.stored) >= 5 + 3
    assert max(map(len, loop.disk.stored.values())) < 400_000
    assert loop.take_all(4_096)[:20_000] == list(range(20_000))
    loop.assert_empty()


def test_records_much_larger_than_those_before_are_parted_when_it_shows() -> None:
    loop = Loop(memory=0)
    loop.queue.append(rows(1))
    loop.queue.append(Rows([bytes(50_000) for _ in range(100)]))
    assert max(map(len, loop.disk.stored.values())) <= 2 * (256 << 10)
    assert len(loop.take_all()) == 101
    loop.assert_empty()


def test_the_real_spill_files_serve_as_well(tmp_path: Any) -> None:
    spill: FrameSpill = SpillFiles(str(tmp_path))
    queue = FeedbackQueue("relax", 0, lambda: spill, 100, None, False)
    for n in range(50):
        queue.append(rows(n, -n))
    queue.cut(1)
    queue.barrier(1)
    frames, over = queue.logs.encode(1, ALL)
    assert over and logged(frames) == [x for n in range(50) for x in (n, -n)]
    queue.logs.discard(1)
    taken = [queue.take(10) for _ in range(10)]
    assert [x for batch in taken for x in plain(batch)] == logged(frames)
    assert queue.spilled == 0
    queue.close()


def test_a_spill_is_made_only_when_it_is_needed() -> None:
    def never() -> FrameSpill:
        raise AssertionError("nothing was to be spilled")

    queue = FeedbackQueue("relax", 0, never, ALL, None, False)
    queue.append(rows(1))
    queue.take(1)
    queue.close()


def test_closing_lets_go_of_everything() -> None:
    loop = Loop(memory=0)
    loop.queue.append(rows(1, 2))
    loop.queue.cut(1)
    loop.queue.close()
    assert loop.disk.closed
    assert not loop.queue.ready
    assert loop.queue.logs.pending() == []
    loop.queue.close()


def test_a_record_that_cannot_be_pickled_is_named() -> None:
    queue = Loop(memory=0).queue
    with pytest.raises(UserCodeError, match=r"'relax', subtask 3, record <function.*go to the disk"):
        queue.append(rows(1, lambda: None))

    loop = Loop()
    loop.queue.append(rows(1, lambda: None))
    loop.queue.cut(1)
    loop.queue.barrier(1)
    with pytest.raises(UserCodeError, match=r"record <function.*go into a checkpoint"):
        loop.queue.logs.encode(1, 10)
    with pytest.raises(UserCodeError, match="go into a checkpoint"):
        log_frame(rows(lambda: None), 0, "relax", 3)


# --- logs ---


@pytest.mark.parametrize("memory", [0, 60, ALL])
def test_a_log_is_what_was_unread_at_the_cut_and_what_came_until_the_barrier(memory: int) -> None:
    loop = Loop(memory)
    loop.queue.append(rows(1, 2, 3, 4))
    loop.queue.append(rows(5))
    loop.queue.take(3)
    loop.queue.cut(1)
    loop.queue.append(rows(6, 7))
    assert loop.take_all() == [4, 5, 6, 7]  # what the head reads after its cut is in the log all the same
    loop.queue.append(rows(8))
    assert not loop.queue.logs.complete(1)
    loop.queue.barrier(1)
    loop.queue.append(rows(9))

    assert loop.queue.logs.complete(1)
    assert loop.queue.logs.records(1) == 5
    loop.queue.check()
    assert logged(loop.log(1)) == [4, 5, 6, 7, 8]
    assert loop.take_all() == [8, 9]
    loop.assert_empty()


def test_markers_of_waves_are_not_logged() -> None:
    loop = Loop()
    loop.queue.append(rows(1))
    loop.queue.marker(WaveMark(1))
    loop.queue.cut(1)
    loop.queue.marker(WaveMark(2))
    loop.queue.append(rows(2))
    loop.queue.barrier(1)
    assert logged(loop.log(1)) == [1, 2]


def test_logs_overlap() -> None:
    loop = Loop(memory=50)
    loop.queue.append(rows(1))
    loop.queue.cut(1)
    loop.queue.append(rows(2))
    loop.queue.cut(2)
    loop.queue.append(rows(3))
    loop.queue.barrier(1)
    loop.queue.append(rows(4))
    loop.queue.barrier(2)
    loop.queue.append(rows(5))
    loop.queue.check()
    assert loop.queue.logs.pending() == [1, 2]
    assert logged(loop.log(2)) == [1, 2, 3, 4]
    assert logged(loop.log(1)) == [1, 2, 3]
    assert loop.take_all() == [1, 2, 3, 4, 5]
    loop.assert_empty()


def test_a_later_marker_gives_older_logs_up() -> None:
    loop = Loop(memory=0)
    for n in (1, 2, 3):
        loop.queue.cut(n)
        loop.queue.append(rows(n))
    loop.queue.barrier(1)
    loop.queue.barrier(3)
    assert loop.queue.logs.pending() == [1, 3]  # 1 was complete, and stays
    assert not loop.queue.logs.complete(2)
    loop.queue.barrier(2)  # late: nobody waits for it
    loop.queue.logs.discard(2)
    loop.queue.check()
    assert logged(loop.log(1)) == [1, 2, 3]
    assert logged(loop.log(3)) == [1, 2, 3]


def test_the_marker_of_an_aborted_checkpoint_is_ignored() -> None:
    loop = Loop()
    loop.queue.cut(1)
    loop.queue.append(rows(1))
    loop.queue.logs.discard(1)
    loop.queue.barrier(1)
    loop.queue.barrier(1)
    assert loop.queue.logs.pending() == []
    assert loop.take_all() == [1]
    loop.queue.logs.discard(2)  # before its cut
    loop.queue.barrier(2)
    loop.assert_empty()


def test_a_marker_before_its_cut_is_a_bug() -> None:
    loop = Loop()
    with pytest.raises(InternalError, match="checkpoint 1 came to 'relax' before"):
        loop.queue.barrier(1)
    loop.queue.cut(4)
    loop.queue.barrier(4)
    with pytest.raises(InternalError, match="a cut of checkpoint 4 after"):
        loop.queue.cut(4)
    with pytest.raises(InternalError, match="log of checkpoint 5 is not there"):
        loop.queue.logs.encode(5, 1)
    loop.queue.cut(5)
    with pytest.raises(InternalError, match="log of checkpoint 5 is not complete"):
        loop.queue.logs.encode(5, 1)


def test_once_the_loop_has_ended_the_tail_may_cut_before_its_head() -> None:
    """A head that has ended sends no barrier. The log of an earlier cut is complete when its own barrier has come back."""
    loop = Loop()
    loop.queue.append(rows(1))
    loop.queue.cut(1)
    loop.queue.over = True
    loop.queue.barrier(2)
    assert not loop.queue.logs.complete(1)
    loop.queue.cut(2)
    assert loop.queue.logs.complete(2)
    loop.queue.barrier(1)
    loop.queue.cut(3)
    loop.queue.barrier(3)
    assert [logged(loop.log(number)) for number in (1, 2, 3)] == [[1], [1], [1]]
    assert loop.take_all() == [1]
    loop.assert_empty()


@pytest.mark.parametrize("combine", [False, True])
def test_once_the_tail_has_ended_every_log_is_complete(combine: bool) -> None:
    loop = Loop(combine=by_key() if combine else None)
    loop.queue.cut(1)
    loop.queue.append(rows(("a", 1)))
    loop.queue.end()
    assert loop.queue.logs.complete(1)
    loop.queue.cut(2)
    assert loop.queue.logs.complete(2)
    loop.queue.barrier(3)  # behind the end a barrier changes nothing
    assert logged(loop.log(1)) == logged(loop.log(2)) == [("a", 1)]
    with pytest.raises(InternalError, match="after its end"):
        loop.queue.append(rows(("a", 2)))
    with pytest.raises(InternalError, match="after its end"):
        loop.queue.marker(WaveMark(1))
    assert loop.take_all() == [("a", 1)]
    loop.assert_empty()


def test_a_log_is_encoded_in_steps() -> None:
    loop = Loop()
    for n in range(100):
        loop.queue.append(rows(n))
    loop.queue.cut(1)
    loop.queue.barrier(1)
    steps = []
    over = False
    while not over:
        frames, over = loop.queue.logs.encode(1, 30)
        steps.append([frame.count for frame in frames])
    assert steps == [[30], [30], [30], [10]]  # small batches share a frame
    assert loop.queue.logs.encode(1, 30) == ([], True)
    assert loop.queue.logs.records(1) == 100


def test_stored_bytes_go_into_a_log_as_they_are() -> None:
    loop = Loop(memory=0)
    loop.queue.append(rows(1, 2))
    loop.queue.append(rows(3))
    loop.queue.cut(1)
    loop.queue.barrier(1)
    frames, _ = loop.queue.logs.encode(1, ALL)
    assert [frame.data for frame in frames] == list(loop.disk.stored.values())


def test_a_log_changes_neither_memory_nor_the_spill() -> None:
    loop = Loop(memory=300)
    for n in range(30):
        loop.queue.append(rows(f"{n:050}"))
    before = (loop.queue.memory, loop.queue.spilled, loop.disk.appended)
    for checkpoint in range(1, 4):
        loop.queue.cut(checkpoint)
    assert (loop.queue.memory, loop.queue.spilled, loop.disk.appended) == before
    loop.queue.check()


@pytest.mark.parametrize("combine", [False, True])
def test_a_thousand_aborted_checkpoints_leave_nothing(combine: bool) -> None:
    loop = Loop(memory=1_000, combine=by_key() if combine else None)
    most = 0
    for checkpoint in range(1, 1_001):
        loop.queue.append(rows((checkpoint, 1), (checkpoint, 2)))
        loop.queue.cut(checkpoint)
        loop.queue.append(rows((checkpoint, 3)))
        if checkpoint % 3:
            loop.queue.barrier(checkpoint)
        loop.queue.logs.discard(checkpoint)
        loop.take_all(2)
        most = max(most, loop.queue.memory + loop.queue.spilled)
    assert most < 1_000
    assert loop.queue.logs.pending() == []
    assert len(loop.queue._shelf._excess) < 10
    loop.assert_empty()


# --- restoring ---


@pytest.mark.parametrize("memory", [0, 150, ALL])
@pytest.mark.parametrize("combine", [False, True])
def test_what_a_checkpoint_held_comes_first_and_is_in_the_next_one(memory: int, combine: bool) -> None:
    old = Loop()
    for n in range(20):
        old.queue.append(rows((n, n), (-n, n)))
    old.queue.cut(1)
    old.queue.barrier(1)
    frames = old.log(1, 7)

    loop = Loop(memory, by_key() if combine else None)
    loop.queue.restore(frames)
    loop.queue.append(rows(("new", 1)))
    assert (loop.queue.records, loop.queue.returned, loop.queue.appended) == (41, 40, 1)
    loop.queue.check()
    first = loop.queue.take(3)
    loop.queue.cut(2)
    loop.queue.barrier(2)
    rest = logged(frames)[3:] + [("new", 1)]
    assert plain(first) == logged(frames)[:3]
    assert logged(loop.log(2)) == rest
    assert loop.take_all(5) == rest
    loop.assert_empty()


def test_a_damaged_log_is_refused() -> None:
    good = log_frame(rows(1, 2), 0, "relax", 0)
    for frame in (LogFrame(False, 2, b"nonsense"), LogFrame(False, 3, good.data), LogFrame(False, 2, good.data[:-1])):
        with pytest.raises(CheckpointCorrupt, match="'relax'"):
            Loop().queue.restore([frame])


def test_nothing_is_restored_into_a_queue_that_has_begun() -> None:
    loop = Loop()
    loop.queue.append(rows(1))
    with pytest.raises(InternalError, match="after its start"):
        loop.queue.restore([log_frame(rows(2), 0, "relax", 0)])


# --- rounds ---


def test_feedback_waits_for_its_round_and_markers_do_not() -> None:
    loop = Loop(rounds=True)
    loop.queue.append(rows(1, 2))
    loop.queue.marker(WaveMark(1))
    assert (loop.queue.records, loop.queue.waiting) == (0, 2)
    assert loop.take_all() == [WaveMark(1)]
    assert loop.queue.open_round() == 2
    loop.queue.append(rows(3))
    loop.queue.marker(WaveMark(2))
    assert loop.take_all() == [1, 2, WaveMark(2)]
    assert (loop.queue.records, loop.queue.waiting) == (0, 1)
    assert loop.queue.open_round() == 1
    assert loop.queue.open_round() == 0
    assert loop.take_all() == [3]
    loop.assert_empty()


@pytest.mark.parametrize("memory", [0, 60, ALL])
@pytest.mark.parametrize("combine", [False, True])
def test_what_waited_at_the_cut_waits_after_the_restore(memory: int, combine: bool) -> None:
    combiner = by_key() if combine else None
    loop = Loop(memory, combiner, rounds=True)
    loop.queue.append(rows(("a", 1), ("b", 2), ("c", 3)))
    loop.queue.open_round()
    loop.queue.append(rows(("d", 4)))
    loop.queue.take(1)
    loop.queue.cut(1)
    loop.queue.append(rows(("d", 5)))
    loop.queue.barrier(1)
    loop.queue.append(rows(("d", 6)))
    loop.queue.check()
    frames = loop.log(1)
    waiting = [("d", 4)] if combine and memory else [("d", 4), ("d", 5)]
    assert logged(frames, False) == [("b", 2), ("c", 3)]
    assert logged(frames, True) == waiting

    after = Loop(memory, combiner, rounds=True)
    after.queue.restore(frames)
    assert (after.queue.records, after.queue.waiting) == (2, len(waiting))
    assert after.take_all() == [("b", 2), ("c", 3)]
    assert after.queue.open_round() == len(waiting)
    assert after.take_all() == waiting
    after.assert_empty()


@pytest.mark.parametrize("combine", [False, True])
def test_when_rounds_are_stopped_feedback_is_dropped_but_not_from_logs_of_before(combine: bool) -> None:
    loop = Loop(memory=60, combine=by_key() if combine else None, rounds=True)
    loop.queue.append(rows(("ready", 1)))
    loop.queue.open_round()
    loop.queue.cut(1)
    loop.queue.append(rows(("a", 1), ("b", 2)))
    loop.queue.drop()
    loop.queue.append(rows(("c", 3)))
    loop.queue.cut(2)
    loop.queue.append(rows(("d", 4)))
    loop.queue.check()
    assert (loop.queue.dropped, loop.queue.waiting, loop.queue.records) == (4, 0, 1)
    loop.queue.barrier(1)
    loop.queue.barrier(2)
    assert logged(loop.log(1)) == [("ready", 1), ("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert logged(loop.log(2)) == [("ready", 1)]
    assert loop.queue.open_round() == 0
    assert loop.take_all() == [("ready", 1)]
    loop.assert_empty()


def test_only_a_loop_in_rounds_drops() -> None:
    with pytest.raises(InternalError, match="no rounds"):
        Loop().queue.drop()


# --- combining ---


def by_key(merge: Callable[[Any, Any], Any] = lambda a, b: min(a, b)) -> Combiner:
    """Records are (key, value)."""
    return Combiner(lambda batch: [value[0] for value in batch.values], merge)


def test_waiting_records_of_a_key_become_one_in_the_place_of_the_first() -> None:
    loop = Loop(combine=by_key())
    loop.queue.append(rows(("a", 5), ("b", 7), ("a", 3)))
    loop.queue.append(rows(("c", 1), ("b", 9)))
    assert (loop.queue.records, loop.queue.merged) == (3, 2)
    assert loop.take_all(2) == [("a", 3), ("b", 7), ("c", 1)]
    loop.queue.append(rows(("a", 4)))  # nothing of this key waits any more
    assert loop.take_all() == [("a", 4)]
    loop.assert_empty()


def test_the_later_time_and_the_key_group_stay() -> None:
    loop = Loop(combine=by_key())
    groups = np.array([1, 2, 1, 2], np.uint16)
    loop.queue.append(Rows([("a", 5), ("b", 7), ("a", 9), ("b", 1)], np.array([50, NO_TIME, 40, NO_TIME]), groups))
    taken = loop.queue.take(ALL)
    assert isinstance(taken, Rows) and taken.times is not None and taken.groups is not None
    assert taken.values == [("a", 5), ("b", 1)]
    assert taken.times.tolist() == [50, NO_TIME]
    assert taken.groups.tolist() == [1, 2]
    loop.queue.append(rows(("a", 1)))
    bare = loop.queue.take(ALL)
    assert isinstance(bare, Rows) and (bare.times, bare.groups) == (None, None)


def test_columns_are_combined_as_rows() -> None:
    combine = Combiner(lambda batch: [row.v % 2 for row in batch.values], lambda a, b: a._replace(v=a.v + 10 * b.v))
    loop = Loop(combine=combine)
    loop.queue.append(columns(1, 2, 3, 4))
    taken = loop.queue.take(ALL)
    assert isinstance(taken, Rows)
    assert [row.v for row in taken.values] == [31, 42]


def test_a_marker_keeps_its_place_among_combined_records() -> None:
    loop = Loop(combine=by_key())
    loop.queue.append(rows(("a", 5)))
    loop.queue.marker(WaveMark(1))
    loop.queue.append(rows(("a", 3)))
    assert loop.take_all() == [("a", 5), WaveMark(1), ("a", 3)]


def test_a_merge_after_the_barrier_does_not_change_the_log() -> None:
    loop = Loop(combine=by_key())
    loop.queue.append(rows(("a", 5)))
    loop.queue.cut(1)
    loop.queue.append(rows(("a", 4), ("b", 9), ("b", 8)))
    loop.queue.barrier(1)
    loop.queue.append(rows(("a", 1), ("b", 1)))
    assert logged(loop.log(1)) == [("a", 4), ("b", 8)]


def test_a_merge_across_the_cut_is_in_the_log_once() -> None:
    """Both of its parts belong there. One that the head has read by then went into the log as it was read."""
    loop = Loop(combine=by_key(lambda a, b: (a[0], a[1] + b[1])))
    loop.queue.append(rows(("a", 1), ("b", 10), ("c", 100)))
    loop.queue.cut(1)
    loop.queue.append(rows(("a", 2)))
    assert plain(loop.queue.take(1)) == [("a", 3)]
    loop.queue.cut(2)
    loop.queue.append(rows(("a", 4), ("b", 20)))
    loop.queue.barrier(1)
    loop.queue.append(rows(("b", 40)))
    loop.queue.barrier(2)
    loop.queue.check()
    assert logged(loop.log(1)) == [("a", 3), ("b", 30), ("c", 100), ("a", 4)]
    assert logged(loop.log(2)) == [("b", 30), ("c", 100), ("a", 4), ("b", 40)]


def test_who_does_again_what_was_done_behind_a_cut_merges_the_same_records() -> None:
    """What is merged depends on how large records were found to be: before the cut they may have been others, and equal ones
    may share their parts or not."""
    found: list[list[int]] = []

    def behind_a_cut(before: tuple[str, str], shares: bool) -> list[Any]:
        loop, sizes = Loop(memory=400, combine=by_key()), Facts()
        loop.record(sizes)
        loop.queue.append(rows(before))
        loop.queue.cut(1)
        loop.queue.barrier(1)
        assert loop.take_all() == [before]
        sizes.take()
        text = "t" * 50
        for at in range(40):
            if len(found) == 40:
                sizes.give(found[at])
            loop.queue.append(rows(*((key % 9, text if shares else f"{text}!"[:-1]) for key in range(at, at + 3))))
            if sizes.given is None:
                found.append(sizes.take())
        return loop.take_all()

    first = behind_a_cut(("a", "small"), shares=True)
    assert len(set(first)) < len(first) < 120, "some are merged, and some are not"
    assert behind_a_cut(("a", "large" * 100), shares=False) == first


def test_a_cut_after_the_end_has_what_could_still_be_merged() -> None:
    """The log of such a cut is complete at once, and nothing is added to it."""
    loop = Loop(combine=by_key())
    loop.queue.append(rows(("a", 5), ("b", 7)))
    loop.queue.end()
    loop.queue.cut(1)
    assert loop.queue.logs.complete(1)
    assert logged(loop.log(1)) == [("a", 5), ("b", 7)]
    assert loop.take_all() == [("a", 5), ("b", 7)]
    loop.assert_empty()


def test_what_a_merge_raises_is_the_users() -> None:
    def fails(a: Any, b: Any) -> Any:
        raise ValueError("not these two")

    loop = Loop(combine=by_key(fails))
    with pytest.raises(
        UserCodeError, match=r"(?s)'relax', subtask 3, record \('a', 2\).*ValueError: not these two.*fails"
    ):
        loop.queue.append(rows(("a", 1), ("a", 2)))

    with pytest.raises(UserCodeError, match=r"record \(\['a'\], 1\).*hashable"):
        Loop(combine=by_key()).queue.append(rows((["a"], 1)))


def test_a_merged_record_keeps_its_key() -> None:
    """A merged record waits in the place of its parts, and goes where they were to go: with another key it would come to a
    subtask that is not its own, and into state that is not."""
    loop = Loop(combine=by_key(lambda a, b: (a[0] + b[0], a[1] + b[1])))
    with pytest.raises(
        UserCodeError, match=r"record \('aa', 3\).*records with the key 'a' returned one with the key 'aa'"
    ):
        loop.queue.append(rows(("a", 1), ("a", 2)))
    nan = float("nan")
    Loop(combine=by_key(lambda a, b: (nan, 3))).queue.append(rows((nan, 1), (nan, 2)))


def test_combined_feedback_without_room_is_spilled_a_little_at_a_time() -> None:
    loop = Loop(memory=400_000, combine=by_key())
    size = encoded_size(rows(*[(n, "x" * 100) for n in range(1_000)]))
    for n in range(50):
        spilled = loop.disk.appended
        loop.queue.append(Rows([(n * 1_000 + i, "x" * 100) for i in range(1_000)]))
        loop.queue.check()
        assert loop.queue.memory <= 400_000 + 2 * size
        assert loop.disk.appended - spilled <= 2 * size + (512 << 10)
    assert loop.queue.spilled > 50 * size - 500_000
    loop.queue.cut(1)
    loop.queue.barrier(1)
    assert [key for key, _ in logged(loop.log(1))] == list(range(50_000))
    assert [key for key, _ in loop.take_all(999)] == list(range(50_000))
    loop.assert_empty()


def test_what_was_read_is_not_spilled_when_room_is_needed() -> None:
    loop = Loop(memory=4 << 20, combine=by_key())
    loop.queue.append(Rows([(n, bytes(1_000)) for n in range(1_900)]))
    loop.queue.cut(1)
    loop.queue.marker(WaveMark(99))  # nothing from before it is merged with what follows
    loop.queue.append(Rows([(n, bytes(1_000)) for n in range(1_900)]))
    loop.queue.barrier(1)  # which keeps all of it, after the head has read it too
    loop.take_all()
    for n in range(20):
        loop.queue.append(rows((n, b"small")))
        loop.queue.marker(WaveMark(n))
        assert loop.take_all() == [(n, b"small"), WaveMark(n)]
        loop.queue.check()
    assert loop.queue.memory <= 2 << 20
    assert len(logged(loop.log(1))) == 3_800
    loop.assert_empty()


def test_few_keys_are_combined_however_much_else_is_in_memory() -> None:
    loop = Loop(memory=10_000, combine=by_key())
    loop.queue.append(Rows([(n, 1) for n in range(2_000)]))  # more than there is room for
    for n in range(1_000):
        loop.queue.append(rows(("a", -n)))
    assert loop.queue.records == 2_001
    assert loop.take_all()[-1] == ("a", -999)
    loop.assert_empty()


# --- against a model ---


class Model(RuleBasedStateMachine):
    """A plain list of records beside the queue. A record is its number; where records are combined it is (key, numbers),
    and merging puts the numbers one after the other, so that each can be found again."""

    combine = False
    rounds = False

    @initialize(memory=st.sampled_from([0, 100, 400, 2_000, ALL]))
    def begin(self, memory: int) -> None:
        self.memory = memory
        combiner = by_key(lambda a, b: (a[0], a[1] + b[1])) if self.combine else None
        self.loop = Loop(memory, combiner, self.rounds)
        self.queue = self.loop.queue
        self.next = 0
        self.ready: list[Any] = []
        self.later: list[int] = []
        self.logs: dict[int, tuple[list[int], list[int]]] = {}
        self.open: set[int] = set()
        self.checkpoint = 0
        self.ended = False

    def made(self, numbers: list[int], form: str) -> Any:
        times = np.array([NO_TIME if n % 5 == 0 else n * 10 for n in numbers])
        groups = np.array([n % 3 for n in numbers], np.uint16)
        if self.combine:
            return Rows([(n % 3, (n,)) for n in numbers], times, groups)
        if form == "columns":
            return Columns(pa.record_batch({"v": pa.array(numbers, pa.int64())}), times, groups)
        return Rows(list(numbers), times, groups)

    def numbers(self, batch: Any) -> list[int]:
        """The numbers of the records of a batch, whose times and groups are looked at on the way."""
        values, found = plain(batch), []
        times = [NO_TIME] * len(batch) if batch.times is None else batch.times.tolist()
        for value, time, group in zip(values, times, batch.groups.tolist(), strict=True):
            own = value[1] if self.combine else (value,)
            assert {n % 3 for n in own} == {group}
            assert max(NO_TIME if n % 5 == 0 else n * 10 for n in own) == time
            found += own
        return found

    def same(self, found: list[int], expected: list[int]) -> None:
        """Equal, or the same by key where records are combined."""
        if not self.combine:
            assert found == expected
        for key in range(3):
            assert [n for n in found if n % 3 == key] == [n for n in expected if n % 3 == key]

    @precondition(lambda self: not self.ended)
    @rule(count=st.integers(1, 30), form=st.sampled_from(["rows", "rows", "columns"]))
    def append(self, count: int, form: str) -> None:
        numbers = list(range(self.next, self.next + count))
        self.next += count
        self.queue.append(self.made(numbers, form))
        (self.later if self.rounds else self.ready).extend(numbers)
        for checkpoint in self.open:
            self.logs[checkpoint][self.rounds].extend(numbers)

    @precondition(lambda self: not self.ended)
    @rule()
    def marker(self) -> None:
        self.queue.marker(WaveMark(self.next))
        self.ready.append(WaveMark(self.next))

    @rule(limit=st.integers(1, 50))
    def take(self, limit: int) -> None:
        assert self.queue.ready == bool(self.ready)
        taken = self.queue.take(limit)
        if taken is None:
            assert not self.ready
        elif isinstance(taken, WaveMark):
            assert taken == self.ready.pop(0)
        else:
            assert len(taken) <= limit
            found = self.numbers(taken)
            before = next((i for i, it in enumerate(self.ready) if isinstance(it, WaveMark)), len(self.ready))
            assert set(found) <= set(self.ready[:before])
            gone = set(found)
            expected = [n for n in self.ready[:before] if n in gone]
            if not self.combine:
                assert expected == self.ready[: len(found)]
            self.same(found, expected)
            for key in range(3):  # the oldest of a key first
                left = [n for n in self.ready[:before] if n not in gone and n % 3 == key]
                assert not left or all(n < left[0] for n in gone if n % 3 == key)
            self.ready = [it for it in self.ready if isinstance(it, WaveMark) or it not in gone]

    @rule(skip=st.integers(1, 2))
    def cut(self, skip: int) -> None:
        self.checkpoint += skip
        self.queue.cut(self.checkpoint)
        unread = [it for it in self.ready if not isinstance(it, WaveMark)]
        self.logs[self.checkpoint] = (unread, list(self.later))
        if not self.ended:
            self.open.add(self.checkpoint)

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def barrier(self, data: Any) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(self.logs)))
        if self.ended or (self.open and checkpoint < min(self.open)):
            return
        self.queue.barrier(checkpoint)
        for older in [n for n in self.open if n < checkpoint]:
            self.open.discard(older)
            del self.logs[older]
        self.open.discard(checkpoint)

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def discard(self, data: Any) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(self.logs)))
        self.queue.logs.discard(checkpoint)
        del self.logs[checkpoint]
        self.open.discard(checkpoint)

    @precondition(lambda self: len(self.logs) > len(self.open))
    @rule(data=st.data(), limit=st.sampled_from([1, 10, 1_000]), memory=st.sampled_from([0, 300, ALL]))
    def restore(self, data: Any, limit: int, memory: int) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(set(self.logs) - self.open)))
        assert self.queue.logs.complete(checkpoint)
        frames = self.loop.log(checkpoint, limit)
        ready, later = self.logs.pop(checkpoint)
        again = Loop(memory, None, self.rounds)
        again.queue.restore(frames)
        again.queue.check()
        for opened, expected in enumerate((ready, later)):
            if opened and self.rounds:
                again.queue.open_round()
            found: list[int] = []
            while again.queue.ready:
                found += self.numbers(again.queue.take(7))
            self.same(found, expected)
        again.assert_empty()

    @precondition(lambda self: self.rounds)
    @rule()
    def open_round(self) -> None:
        self.queue.open_round()
        self.ready += self.later
        self.later = []

    @precondition(lambda self: not self.ended and self.next > 100)
    @rule()
    def end(self) -> None:
        self.queue.end()
        self.ended = True
        self.open = set()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.check()
        assert self.queue.logs.pending() == sorted(self.logs)
        assert [n for n in self.logs if not self.queue.logs.complete(n)] == sorted(self.open)
        assert self.queue.spilled == self.loop.disk.held
        if not self.combine:
            assert self.queue.records == sum(not isinstance(it, WaveMark) for it in self.ready)
            assert self.queue.waiting == len(self.later)
            assert self.queue.memory <= self.memory
            for checkpoint, parts in self.logs.items():
                assert self.queue.logs.records(checkpoint) == sum(map(len, parts))

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for checkpoint in list(self.queue.logs.pending()):
            self.queue.logs.discard(checkpoint)
        if self.rounds:
            self.open_round()
        while self.ready:
            self.take(20)
        self.loop.assert_empty()


class CombinedModel(Model):
    combine = True


class RoundsModel(Model):
    rounds = True


class CombinedRoundsModel(Model):
    combine = rounds = True


_SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
for _model in (Model, CombinedModel, RoundsModel, CombinedRoundsModel):
    _model.TestCase.settings = _SETTINGS
TestQueue = Model.TestCase
TestCombined = CombinedModel.TestCase
TestRounds = RoundsModel.TestCase
TestCombinedRounds = CombinedRoundsModel.TestCase


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 3_000)), max_size=30), st.integers(0, 20_000))
def test_memory_stays_within_its_bound_whatever_the_sizes(batches: list[tuple[int, int]], memory: int) -> None:
    loop = Loop(memory)
    for count, size in batches:
        loop.queue.append(Rows([bytes(size)] * count))
        assert loop.queue.memory <= memory
    assert [len(value) for value in loop.take_all(33)] == [size for count, size in batches for _ in range(count)]
    loop.assert_empty()


def test_markers_that_waited_are_put_back_among_what_a_log_has_or_behind_it() -> None:
    """A log has no markers. Records that were apart may be in one frame of it: then a marker goes behind all of these, and a
    wave finds more than it need."""
    loop = Loop()
    loop.queue.cut(1)
    loop.queue.append(rows(1, 2))
    loop.queue.append(rows(3))
    loop.queue.marker(WaveMark(4))
    loop.queue.append(rows(5, 6))
    loop.queue.barrier(1)
    marks, log = loop.queue.marks, loop.log(1)
    assert marks == [(4, 2)]
    for frames, expected in (
        ([log_frame(rows(1, 2, 3), 0, "relax", 3), log_frame(rows(5, 6), 0, "relax", 3)], [1, 2, 3, WaveMark(4), 5, 6]),
        (log, [1, 2, 3, 5, 6, WaveMark(4)]),
    ):
        again = Loop()
        again.queue.restore(frames)
        again.queue.marks = marks
        assert again.take_all() == expected


@pytest.mark.parametrize("value", [1, {"a": [1]}, {1}, frozenset((1,)), [{1}]], ids=repr)
def test_records_that_do_not_come_back_as_they_are_are_reported_of_where_they_become_bytes(value: Any) -> None:
    """Whoever takes the place of a worker would go on with what the bytes give, and this one goes on with the objects."""
    found = list[int]()
    in_log, on_disk = Loop(ALL), Loop(0)
    for loop in (in_log, on_disk):
        loop.record(Facts(), lambda: found.append(1))
    in_log.queue.append(rows(value))
    in_log.queue.cut(1)
    in_log.queue.barrier(1)
    assert not found
    in_log.log(1)
    on_disk.queue.append(rows(value))
    assert len(found) == (2 if not comes_back(value) else 0)
