"""Joins that are driven by hand: records, event time, checkpoints and other parallelisms, as a test or chance has them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from tailrace.elements.batches import Columns
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.keygroups import key_group
from tailrace.elements.keys import canonical_bytes
from tailrace.elements.timestamps import MAX_TIME
from tailrace.graph.graph import Node
from tailrace.graph.operators import How, IntervalJoin, Operator
from tailrace.state.backend import MetaPart
from tailrace.storage.disk_backend import DiskBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins import joinkeys
from tailrace.task.operators.joins.columns import ColumnJoinTask
from tailrace.task.operators.stores import chunks, segments
from tailrace.task.operators.stores.segments import GONE, UNWRITTEN
from tailrace.testing.backends import Files

Event = tuple[str, int, int]
"""(key, time in seconds, number)."""
SECOND = 1_000_000
HOWS: tuple[How, ...] = get_args(How)
SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("n", pa.int64())])
events = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), max_size=25)


def numbered(events: list[tuple[str, int]], first: int) -> list[Event]:
    return [(key, time, first + i) for i, (key, time) in enumerate(events)]


class Driven:
    """An operator that is driven by hand."""

    kind: Any = ColumnJoinTask

    def __init__(
        self,
        how: How,
        within: Any,
        reached: int = 0,
        make_backend: Callable[..., Any] | None = None,
        schema: pa.Schema | None = SCHEMA,
    ) -> None:
        self.how, self.within = how, within
        self.node = Node(0, self.operator(how, within), "join", "u", True, 1, "columns", ())
        services = Services(random_factory=random.Random, make_backend=make_backend)
        self.task = self.kind(self.node, OperatorContext("join", "u", 0, 1, 0, services))
        if schema is not None:
            self.task.schemas.update({name: OneSchema(schema) for name in self.task.schemas})
        self.found: list[tuple[Any, int]] = []
        self.late: list[Event] = []
        self.taken: tuple[list[Event], list[Event]] = ([], [])
        self.task.out = self.note
        self.task.side_out = {"late": lambda batch: self.late.extend(map(tuple, batch.to_rows().values))}
        self.before = reached
        self.task.ctx.watermark_time = reached

    def operator(self, how: How, within: Any) -> Operator:
        return IntervalJoin(("key", "key"), within[0] * SECOND, within[1] * SECOND, how, ("_x", "_y"))

    def note(self, batch: Any) -> None:
        assert batch.times.min() > self.before, "a result is late"
        values = [self.pair(row) for row in batch.data.to_pylist()]
        self.found += zip(values, (batch.times // SECOND).tolist(), strict=True)

    def pair(self, row: dict[str, Any]) -> Any:
        if self.task.filters:
            return row["key"], row["at"], row["n"]
        sides = [(row["key"], row["at" + s], row["n" + s]) if row["n" + s] is not None else None for s in ("_x", "_y")]
        return tuple(sides)

    def push(self, some: list[Event], port: int) -> None:
        if some:
            known = len(self.late)
            data = pa.RecordBatch.from_pydict(
                {f.name: list(c) for f, c in zip(SCHEMA, zip(*some, strict=True), strict=True)}, SCHEMA
            )
            self.task.process(Columns(data, np.array([event[1] * SECOND for event in some], np.int64)), port)
            self.taken[port].extend(one for one in some if one not in self.late[known:])
            self.check()

    def advance(self, time: int, limit: int = 1_000) -> None:
        while not self.task.advance(time, limit):
            self.check()
        self.before = time
        self.check()

    def check(self) -> None:
        """Checks the invariants."""
        task, reached = self.task, self.task.ctx.watermark_time
        for port, side in enumerate(task.sides):
            kept: Counter[int] = Counter()
            for one in side.segments:
                records = one.records
                self.check_index(one)
                assert (np.diff(records.seqs) > 0).all()
                there = records.marks & GONE == 0
                assert np.count_nonzero(there) == one.alive + one.waiting
                if self.comes_out(port):
                    assert np.count_nonzero(records.times[there] <= reached - task.spans[port]) == one.waiting, (
                        "T27, T29"
                    )
                kept.update(records.chunks[there].tolist())
            del kept[UNWRITTEN]
            assert kept == {number: chunk.kept for number, chunk in task.front.chunks[port].items()}, "T26"
            assert side.waiting == sum(one.waiting for one in side.segments)

    def check_index(self, one: Any) -> None:
        assert (np.diff(one.words) >= 0).all(), "T25"
        heads = (one.records.hashes[one.rows] >> np.uint64(1 + one.bits)).astype(np.int64)
        assert (one.words >> one.bits == heads).all(), "T25"
        assert ((one.words & ((1 << one.bits) - 1)) + one.base == one.records.times[one.rows]).all(), "T25"

    def comes_out(self, port: int) -> bool:
        """True if a record of an input is let go of, or waits to come out, when event time has passed it."""
        return True

    def like(self) -> Driven:
        """Another operator of this kind, at the same event time."""
        ctx = self.task.ctx
        other = type(self)(self.how, self.within, ctx.watermark_time, ctx.services.make_backend)
        other.before = self.before
        return other

    def restored(self, files: Files | None = None, checkpoint: int = 1) -> Driven:
        """Another operator that goes on from a checkpoint of this one."""
        if files is None:
            files = Files()
            data = self.task.snapshot(checkpoint)
            files.take(self.task.backend, checkpoint, kind=CutKind.SAVEPOINT)
        else:
            data = self.task.snapshot(checkpoint)
        other = self.like()
        other.task.restore([MetaPart(0, 1, False, data)])
        files.restore(other.task.backend, checkpoint, False)
        other.found, other.late, other.taken = self.found, self.late, self.taken
        other.check()
        return other

    def run_by_chance(self, first: Any, second: Any, chance: random.Random) -> tuple[Driven, Files, int]:
        """Mixes the records of two inputs and cuts them into batches, lets event time leap in any portions, and takes
        checkpoints, gives them up or goes on from them. Returns (the operator that was the last one, its files, the number
        of its last checkpoint)."""
        one, files, taken = self, Files(), 0
        left = [numbered(first, 0), numbered(second, 1_000)]
        while any(left):
            port = chance.randrange(2)
            count = chance.randint(1, 5)
            one.push(left[port][:count], port)
            del left[port][:count]
            if chance.random() < 0.4:
                time = max(one.task.ctx.watermark_time, chance.randint(0, 12) * SECOND)
                if chance.random() < 0.5:
                    one.advance(time, chance.randint(1, 3))
                else:  # a cut may be between two portions
                    one.task.advance(time, chance.randint(1, 3))
            if chance.random() < 0.5:
                taken += 1
                one.task.snapshot(taken)
                if chance.random() < 0.3:
                    one.task.backend.freeze(CutRequest(taken))
                    one.task.backend.encode(chance.randint(0, 3))
                    one.task.backend.abort(taken)
                else:
                    files.take(one.task.backend, taken)
                    if chance.random() < 0.4:
                        one, files = one.restored(files, taken), Files()
                    elif chance.random() < 0.7:
                        files.confirm(one.task.backend, taken)
                    else:
                        one.task.backend.abort(taken)
        one.advance(MAX_TIME, chance.randint(1, 9))
        assert len(one.late) + len(one.taken[0]) + len(one.taken[1]) == len(first) + len(second)
        return one, files, taken

    def check_one_order(self, last: Event) -> None:
        """Checks that another operator, which takes over from a checkpoint, emits what this one does, record by record."""
        chance = random.Random(5)
        some = [(f"k{chance.randrange(20)}", 5 + i // 8, i) for i in range(60)]
        for i in range(0, 60, 6):
            self.push(some[i : i + 6], 0)
            self.push(some[i + 3 : i + 6], 1)
        self.advance(6 * SECOND)
        other = self.restored()
        other.found = []
        self.found.clear()
        for one in (self, other):
            one.task.advance(9 * SECOND, 2)
            one.advance(9 * SECOND, 3)
            one.push([("a", 10, 500), ("b", 11, 501), ("a", 10, 502)], 0)
            one.push([("a", 10, 600), ("c", 11, 601), ("a", 11, 602), last], 1)
            one.task.advance(MAX_TIME, 2)
        assert self.found == other.found != []

    def run_on_parallelisms(self, times: tuple[int, int], floors: list[tuple[int, int, int]]) -> Driven:
        """Runs as one subtask, then as two, which get to these event times, then as one again."""
        chance = random.Random(8)
        first, second = (numbered([(f"k{chance.randrange(30)}", 3 + i // 9) for i in range(60)], n) for n in (0, 100))
        self.push(first[:30], 0)
        self.push(second[:20], 1)
        halves = [split(self, range(64 * i, 64 * i + 64), i, 2) for i in (0, 1)]
        for port, some in ((1, second[20:40]), (0, first[30:50])):
            for i, half in enumerate(halves):
                half.push([event for event in some if key_group(event[0], 128) // 64 == i], port)
        for half, time in zip(halves, times, strict=True):
            half.advance(time * SECOND, 2)
        one = together(halves)
        if floors:
            one.task.restore_floors(floors)
        one.push(second[40:], 1)
        one.push(first[50:], 0)
        one.advance(MAX_TIME)
        return one

    def pairs_of(self, sides: tuple[tuple[Any, list[Any]], ...]) -> tuple[list[Any], list[list[bytes]]]:
        """(the numbers of the records that are paired, the keys of each input as in rows), for keys of these types."""
        pairs: list[Any] = []
        self.task.out = lambda batch: pairs.extend(
            zip(*batch.data.select(["n_x", "n_y"]).to_pydict().values(), strict=True)
        )
        for port, (kind, values) in enumerate(sides):
            data = pa.record_batch({"key": pa.array(values, kind), "n": pa.array(range(len(values)), pa.int64())})
            self.task.process(Columns(data, np.full(len(values), 5)), port)
        self.task.advance(5, 100)
        return pairs, [[canonical_bytes(key) for key in pa.array(values, kind).to_pylist()] for kind, values in sides]


def run_on_disk(make: Callable[[Callable[..., Any]], Any], folder: Path, goes_on: bool = True) -> Any:
    """A join with state on disk, which goes on from a checkpoint in the middle."""
    chance = random.Random(3)
    first, second = ([(chance.choice("abcdef"), 1 + i // 4, n + i) for i in range(80)] for n in (0, 100))
    one = make(lambda uid, subtask: DiskBackend(folder / f"{random.random()}", 128))
    files = Files()
    for i in range(0, 80, 8):
        one.push(first[i : i + 8], 0)
        one.push(second[i : i + 8], 1)
        one.advance((i // 4) * SECOND)
        if i == 40 and goes_on:
            old, (one, files) = one, (one.restored(checkpoint=100), Files())
            old.task.close()
        files.take(one.task.backend, i + 2)
        files.confirm(one.task.backend, i + 2)
    one.advance(MAX_TIME)
    one.task.close()
    return one


def split(one: Driven, groups: range, subtask: int, parallelism: int) -> Driven:
    files = Files()
    data = one.task.snapshot(7 + subtask)
    files.take(one.task.backend, 7 + subtask, kind=CutKind.SAVEPOINT)
    other = one.like()
    other.task.ctx.subtask, other.task.ctx.parallelism = subtask, parallelism
    other.task.restore([MetaPart(0, 1, False, data)])
    files.restore(other.task.backend, 7 + subtask, False, groups)
    other.found, other.late, other.taken = one.found, one.late, one.taken
    other.check()
    return other


def together(some: list[Driven]) -> Driven:
    other = some[0].like()
    other.before = other.task.ctx.watermark_time = min(one.before for one in some)
    parts = [MetaPart(i, len(some), False, one.task.snapshot(1)) for i, one in enumerate(some)]
    other.task.restore(parts)
    for one in some:
        files = Files()
        files.take(one.task.backend, 1)
        for blocks in files.snapshots[1].blocks.items():
            for info, data in blocks[1]:
                other.task.backend.apply(info, blocks[0], data)
    other.task.backend.end_restore(False)
    other.found, other.late, other.taken = some[0].found, some[0].late, some[0].taken
    other.check()
    return other


@pytest.fixture(scope="module", autouse=True)
def small_segments() -> Iterator[None]:
    """Few records to a segment and a chunk, and hashes that are often equal."""
    with pytest.MonkeyPatch.context() as patch:
        hashes = joinkeys.hashes_of
        patch.setattr(segments, "LARGEST", 12)
        patch.setattr(segments, "_SMALL", 2)
        patch.setattr(chunks, "CHUNK", 5)
        patch.setattr(joinkeys, "hashes_of", lambda columns: hashes(columns) & np.uint64(3 << 62 | 1))
        patch.setattr(joinkeys, "have_exact_hashes", lambda columns: False)
        yield
