"""One task's part in a checkpoint, and all tasks of a worker in one file: what is in it can be read back."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelName
from tailrace.protocol.snapshot import Ack
from tailrace.state.backend import Block
from tailrace.state.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    ChannelLog,
    Index,
    OperatorPart,
    check_block,
    check_header,
    index_place,
)
from tailrace.state.format import read_index as read
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.channels.channel_logs import LogFrame
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import DropState, WriteState
from tailrace.task.operators.context import OperatorContext
from tailrace.task.slice.machine import Slice
from tailrace.task.subtask.alignment import TaskCut
from tailrace.task.subtask.snapshot import FileBuilder, TaskSnapshot, read_meta
from tailrace.task.worker.checkpoints import WorkerCheckpoints


def index_of(data: bytes) -> Index:
    """The index of a whole file, checked as a reader checks it."""
    check_header(data, "it")
    offset, length, checksum = index_place(data[-FOOTER_SIZE:], len(data), "it")
    return read(data[offset : offset + length], checksum, "it")


# The file.


def builder() -> FileBuilder:
    return FileBuilder("mine", Index("job", 1, 5, 0, 128))


def test_a_file_without_state_is_a_header_and_an_index() -> None:
    made = builder()
    made.finish()
    data = b"".join(made.fresh)
    assert len(data) == made.offset
    assert index_of(data) == Index("job", 1, 5, 0, 128)
    assert made.older() == []


def test_blocks_are_found_where_the_index_says_however_the_file_was_handed_over() -> None:
    made = builder()
    one, two = OperatorPart("one", "one", 0, 2), OperatorPart("two", "two", 0, 1, True, b"meta")
    data = b""
    for part, block in [
        (one, Block(0, 4, 2, b"first")),
        (two, Block(1, 7, 1, b"second")),
        (one, Block(0, 5, 1, b"third")),
    ]:
        made.add(part, block)
        data += b"".join(made.fresh)
        made.fresh = []
    made.close_part(two, [7], {7: ("mine",)})
    made.close_part(one, [4], {4: ("mine",), 5: ("older", "mine")})
    made.finish()
    data += b"".join(made.fresh)
    index = index_of(data)
    found = {part.uid: part for part in index.operators}
    assert [(b.table, b.group, b.count) for b in found["one"].blocks] == [(0, 4, 2), (0, 5, 1)]
    for part, expected in [("one", [b"first", b"third"]), ("two", [b"second"])]:
        blocks = [(data[b.offset : b.offset + b.length], b) for b in found[part].blocks]
        assert [content for content, _ in blocks] == expected
        for content, block in blocks:
            check_block(content, block, "it")
    assert (found["two"].finished, found["two"].meta, found["two"].full) == (True, b"meta", [7])
    chains = {group: [index.files[i] for i in chain] for group, chain in found["one"].chains.items()}
    assert chains == {4: ["mine"], 5: ["older", "mine"]}
    assert made.older() == ["older"], "one's own name is none"


def test_frames_of_a_log_are_found_where_the_index_says() -> None:
    channel = ChannelName("tail", None, "head", 1, 0, 2, 2)
    log = ChannelLog(channel, 3)
    made = FileBuilder("mine", Index("job", 1, 5, 0, 128))
    for frame in (LogFrame(0, 7, b"one"), LogFrame(4, 2, b"two")):
        made.add_frame(log, frame)
    made.finish()
    data = b"".join(made.fresh)
    [found] = index_of(data).logs
    assert (found.channel, found.parallelism) == (channel, 3)
    assert [(data[p.offset : p.offset + p.length], p.count, p.round) for p in found.pieces] == [
        (b"one", 7, 0),
        (b"two", 2, 4),
    ]
    for piece in found.pieces:
        check_block(data[piece.offset : piece.offset + piece.length], piece, "it")


# A task's snapshot, and the worker's file.


class Counted(tr.KeyedProcessFunction):
    seen = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Any:
        self.seen.value += 1
        yield self.seen.value


class Held:
    """A worker's tasks that have read something, and its checkpoints."""

    def __init__(self, count: int = 30) -> None:
        env = tr.Environment(parallelism=1)
        numbers = env.from_source(tr.sources.Sequence(0, count), uid="numbers")
        numbers.key_by(lambda x: x % 10).process(Counted(), uid="counted").sink_to(
            tr.sinks.Callback(lambda record: None), uid="out"
        )
        services = Services(
            random.Random, checkpointing=True, make_backend=lambda uid, subtask: MemoryBackend(uid=uid, subtask=subtask)
        )
        self.slice = Slice(env._plan(env._pending()), 0, 0, services, 1 << 20)
        self.slice.open()
        self.checkpoints = WorkerCheckpoints(0, 3, services, self.slice.tasks)
        self.actions: list[Any] = []

    def run(self, number: int | None = None, *, encode: bool = True) -> None:
        if number is not None:
            self.slice.trigger(CutRequest(number))
        for _ in range(60):
            for task in self.slice.tasks:
                self.slice.step(task, 7, 100)
                while encode and task.checkpoints.snapshot is not None and not task.checkpoints.snapshot.done:
                    task.checkpoints.encode(9, 3)
                    self.actions += self.checkpoints.collect(task, 9)
                if task.checkpoints.snapshot is not None:
                    self.actions += self.checkpoints.collect(task, 9)
            self.slice.flush()

    def written(self) -> bytes:
        actions, self.actions = self.actions, []
        assert all(isinstance(action, WriteState) for action in actions)
        assert [action.last for action in actions][-1:] == [True]
        return b"".join(b"".join(action.data) for action in actions)


def test_a_snapshot_holds_every_operator_where_it_stood() -> None:
    held = Held()
    held.run()
    [task] = [task for task in held.slice.tasks if task.chain.operators[0].ctx.uid == "counted"]
    snapshot = TaskSnapshot(TaskCut(CutRequest(5), aligned=40, made_at=100), task.chain)
    assert [part.uid for part in snapshot.parts] == ["counted", "out"]
    assert [part.finished for part in snapshot.parts] == [True, True]
    assert all(read_meta(part.meta).data is None for part in snapshot.parts if part.meta is not None)
    assert not snapshot.done
    snapshot.encode(10_000)
    snapshot.encoded_at = 130
    assert snapshot.done
    ack = snapshot.ack(1, 0)
    assert (ack.vertex, ack.subtask, ack.alignment_micros, ack.encode_micros) == (1, 0, 40, 30)
    assert ack.size == snapshot.size == sum(len(block.data) for _, block in snapshot.blocks)
    counted, out = ack.operators
    assert (counted.uid, counted.stateful) == ("counted", True) and "seen" in [table.name for table in counted.tables]
    assert (out.stateful, out.tables) == (False, [])


def test_all_tasks_of_a_worker_are_in_one_file_and_the_ack_says_so() -> None:
    held = Held()
    held.run(1)
    data = held.written()
    index = index_of(data)
    assert (index.job, index.incarnation, index.checkpoint, index.slot) == ("job", 1, 1, 0)
    assert {part.uid for part in index.operators} == {"numbers", "counted", "out"}
    assert held.checkpoints.knows(1)
    ack = held.checkpoints.file_written(1, 20)
    assert isinstance(ack, Ack)
    assert (ack.file, ack.size, ack.older, ack.write_micros) == ("1/chk-1/w0-3.state", len(data), [], 11)
    assert len(ack.subtasks) == 2 and not held.checkpoints.knows(1)
    assert held.checkpoints.file_written(1, 20) is None


def test_a_later_one_refers_to_the_files_of_an_earlier_one_that_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.state.layers.SMALL", 0)
    held = Held()
    held.run()
    held.run(1)
    held.written()
    assert held.checkpoints.file_written(1, 0) is not None
    held.slice.confirm(1)
    held.run(2)
    small = held.written()
    ack = held.checkpoints.file_written(2, 0)
    assert ack is not None and ack.older == ["1/chk-1/w0-3.state"]
    [counted] = [part for part in index_of(small).operators if part.uid == "counted"]
    assert len(counted.chains) > len(counted.full), "of some groups there is nothing in it"


def test_until_it_is_confirmed_nothing_builds_on_it() -> None:
    held = Held()
    held.run()
    held.run(1)
    held.written()
    held.checkpoints.file_written(1, 0)
    held.run(2)
    held.written()
    ack = held.checkpoints.file_written(2, 0)
    assert ack is not None and ack.older == []


def test_a_file_that_not_every_task_is_in_is_not_sealed() -> None:
    held = Held()
    held.slice.tasks[-1].trigger(CutRequest(1))
    held.slice.step(held.slice.tasks[-1], 7, 100)
    held.actions += held.checkpoints.collect(held.slice.tasks[-1], 9)
    assert held.actions == [], "and little is not worth a word yet"
    assert held.checkpoints.file_written(1, 0) is None, "whoever says so"


def test_dropping_one_or_all_of_them_says_which_files_go() -> None:
    held = Held()
    for task in held.slice.tasks:
        task.trigger(CutRequest(1))
    held.slice.step(held.slice.tasks[-1], 7, 100)
    held.checkpoints.collect(held.slice.tasks[-1], 9)
    assert held.checkpoints.abort(2) == [DropState(2, "1/chk-2/w0-3.state")], "it may have been written already"
    assert held.checkpoints.drop_all() == [DropState(1, "1/chk-1/w0-3.state")]
    assert held.checkpoints.drop_all() == []


def test_how_long_a_cut_took_goes_with_its_own_checkpoint() -> None:
    held = Held()
    held.run(1)
    for task, took in zip(held.slice.tasks, (30, 40), strict=True):
        held.checkpoints.froze(task, took)
        held.checkpoints.froze(task, 99)
    ack = held.checkpoints.file_written(1, 0)
    assert ack is not None
    assert sorted(subtask.freeze_micros for subtask in ack.subtasks) == [30, 40]


def test_header_sizes_are_what_readers_expect() -> None:
    assert builder().offset == HEADER_SIZE


# What differs from one attempt to the next.


def test_random_numbers_differ_between_incarnations_and_subtasks_and_are_the_same_within() -> None:
    def numbers(subtask: int, incarnation: int) -> list[float]:
        services = Services(random.Random, incarnation=incarnation, seed=5)
        ctx = OperatorContext("name", "uid", subtask, 2, 0, services)
        return [ctx.random.random() for _ in range(3)]

    assert numbers(0, 1) == numbers(0, 1)
    assert len({tuple(numbers(subtask, incarnation)) for subtask in range(2) for incarnation in range(1, 3)}) == 4
