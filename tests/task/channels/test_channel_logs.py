"""What belongs to a checkpoint of the records in one channel: held by reference, and of each checkpoint for itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.frame_codec import ChannelName, decode
from tailrace.errors import CheckpointCorrupt, IncompatibleState, InternalError
from tailrace.state.parts import LogOf
from tailrace.task.channels.channel_logs import LogFrame, Recording, log_frame, restored_frame
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import Item, MemorySpill, Shelf
from tailrace.task.slice.machine import Slice

ALL = 1 << 40


class Channel:
    """A shelf with what came, and the logs of it."""

    def __init__(self, memory: int = ALL) -> None:
        self.disk = MemorySpill()
        self.shelf = Shelf("it", 0, lambda: self.disk, memory)
        self.logs = Recording("it", self.shelf)
        self.items: list[Item] = []

    def came(self, *values: Any) -> None:
        for item in self.shelf.place(Rows(list(values))):
            self.items.append(item)
            self.logs.add(item)

    def cut(self, checkpoint: int, start: int = 0) -> None:
        log = self.logs.begin(checkpoint)
        for item in self.items:
            self.logs.write(log, item, start)
            start = 0

    def read_all(self) -> None:
        """All that came is read: nobody but logs holds it any more."""
        for item in self.items:
            self.shelf.release(item)
        self.items.clear()

    def encoded(self, checkpoint: int) -> list[Any]:
        frames, last = self.logs.encode(checkpoint, ALL)
        assert last
        self.logs.discard(checkpoint)
        return records(frames)


def records(frames: list[LogFrame]) -> list[Any]:
    return [value for frame in frames for value in decode(frame.data).batch().to_rows().values]


def test_what_comes_goes_into_every_open_log_and_into_no_other() -> None:
    channel = Channel()
    channel.came(1, 2)
    channel.cut(1, start=1)
    channel.came(3)
    channel.cut(2, start=1)
    channel.came(4)
    channel.logs.check()
    channel.logs.complete_logs(1)
    channel.came(5)
    channel.logs.check()
    assert [log.checkpoint for log in channel.logs.open] == [2]
    channel.logs.complete_logs(2)
    channel.came(6)
    assert channel.encoded(1) == [2, 3, 4]
    assert channel.encoded(2) == [2, 3, 4, 5]


@pytest.mark.parametrize("memory", [0, ALL])
def test_a_record_is_held_once_however_many_logs_want_it_and_is_gone_with_the_last(memory: int) -> None:
    channel = Channel(memory)
    channel.came("x" * 1_000)
    for checkpoint in (1, 2, 3):
        channel.cut(checkpoint)
    held = channel.shelf.memory + channel.shelf.spilled
    assert 900 < held < 1_200
    channel.read_all()
    for checkpoint in (1, 2):
        channel.logs.complete_logs(checkpoint)
        assert channel.encoded(checkpoint) == ["x" * 1_000]
    assert channel.shelf.memory + channel.shelf.spilled == held
    channel.logs.discard(3)
    assert (channel.shelf.memory, channel.shelf.spilled, channel.disk.held) == (0, 0, 0)


def test_once_nothing_comes_any_more_a_log_is_complete_from_its_beginning() -> None:
    channel = Channel()
    channel.cut(1)
    channel.came(1)
    channel.logs.end()
    assert channel.logs.complete(1) and not channel.logs.open
    channel.cut(2)
    assert channel.logs.complete(2) and not channel.logs.open
    assert channel.encoded(1) == channel.encoded(2) == [1]


AB = ChannelName("a", None, "b", 0, 0, 1, 2)


def piece(*, count: int, start: int = 0, groups: tuple[int, int] | None = None, grouped: bool = True) -> LogOf:
    """Of a frame of six records, in key groups 0 to 5."""
    batch = Rows(list("abcdef"), None, np.arange(6, dtype=np.uint16) if grouped else None)
    return LogOf(AB, 2, count, log_frame(batch, 3, "it", 0).data, start, groups, 3)


def test_of_a_frame_in_a_checkpoint_only_what_belongs_to_the_log_comes_back() -> None:
    for part, expected in (
        (piece(count=6), "abcdef"),
        (piece(count=4, start=2), "cdef"),
        (piece(count=3, groups=(1, 4)), "bcd"),
        (piece(count=2, start=2, groups=(1, 4)), "cd"),
        (piece(count=0, start=6), ""),
    ):
        frame = restored_frame(part, "it", 0)
        frame.check("it")
        assert (records([frame]), frame.count, frame.round) == (list(expected), len(expected), 3)


def test_a_frame_that_does_not_hold_what_the_checkpoint_says_is_refused() -> None:
    for part, message in (
        (piece(count=5, start=2), r"a\[1\] -> b:0\[2\] holds 4 records where 5"),
        (piece(count=1, start=9), "holds 0 records where 1"),
        (piece(count=2, groups=(1, 4)), "holds 3 records where 2"),
        (piece(count=3, groups=(1, 4), grouped=False), "does not say theirs"),
        (LogOf(AB, 2, 1, b"nonsense", 1), "cannot be read"),
    ):
        with pytest.raises(CheckpointCorrupt, match=message):
            restored_frame(part, "it", 0)


def test_what_nothing_can_take_is_refused_and_not_left_out() -> None:
    """An operator that was a loop, and one that had records in flight to a port where none are restored."""
    env = tr.Environment(parallelism=1)
    numbers = env.from_collection([1], uid="numbers").map(lambda x: x, name="plain", uid="b").rebalance()
    numbers.iterate(lambda s: (s.filter(lambda x: False), s), uid="loop", name="loop").sink_to(tr.sinks.Collect())
    plan = env._plan(env._pending())
    held = Slice(plan, 0, 0, Services(random.Random), 1 << 20)
    operators = {ctx.uid: op for task in held.tasks for op in task.chain.operators for ctx in op.contexts()}
    frame = log_frame(Rows([1, 2]), 0, "it", 0)
    for uid, name in (("b", "plain"), ("loop", "loop")):
        channel = AB._replace(target=uid)
        with pytest.raises(
            IncompatibleState, match=f"holds 2 records in flight to '{name}'.*nothing in this dataflow can take them"
        ):
            operators[uid].restore_log(channel, 2, frame)
    operators["loop"].restore_log(AB._replace(target="loop", port=1, target_subtask=0), 1, frame)


def test_the_end_of_a_log_before_its_beginning_is_a_bug() -> None:
    channel = Channel()
    with pytest.raises(InternalError, match="checkpoint 1 came to 'it' before"):
        channel.logs.awaits(1)
    channel.logs.discard(1)  # it was given up: whatever comes of it is late
    assert not channel.logs.awaits(1)
