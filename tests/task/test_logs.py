"""What belongs to a checkpoint of the records in one channel: held by reference, and of each checkpoint for itself."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.elements.batches import Rows
from tailrace.elements.frames import decode
from tailrace.errors import InternalError
from tailrace.task.logs import LogFrame, Recording
from tailrace.task.spilling import Item, MemorySpill, Shelf

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
            self.logs.came(item)

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
    channel.logs.completed(1)
    channel.came(5)
    channel.logs.check()
    assert [log.checkpoint for log in channel.logs.open] == [2]
    channel.logs.completed(2)
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
        channel.logs.completed(checkpoint)
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


def test_the_end_of_a_log_before_its_beginning_is_a_bug() -> None:
    channel = Channel()
    with pytest.raises(InternalError, match="checkpoint 1 came to 'it' before"):
        channel.logs.awaits(1)
    channel.logs.discard(1)  # it was given up: whatever comes of it is late
    assert not channel.logs.awaits(1)
