"""Interval joins in columns: their results are those of the join in rows, and what is kept comes back from checkpoints."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.batches import Columns
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.cuts import CutKind, CutRequest
from tailrace.elements.keys import canonical_bytes, key_group
from tailrace.elements.timestamps import LAST_TIME, MAX_TIME
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.graph.graph import Node
from tailrace.graph.operators import How, IntervalJoin, Operator
from tailrace.state.backend import MetaPart
from tailrace.storage.disk_backend import DiskBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.joins import chunks, joinkeys, segments
from tailrace.task.operators.joins.columns import ColumnJoinTask
from tailrace.task.operators.joins.segments import GONE, UNWRITTEN
from tailrace.testing.backends import Files
from tests.task.operators.joins.test_interval import HOWS, SECOND, WITHIN, Event, events, model, numbered

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("n", pa.int64())])


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


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Few records to a segment and a chunk, and hashes that are often equal."""
    with pytest.MonkeyPatch.context() as patch:
        hashes = joinkeys.hashes_of
        patch.setattr(segments, "LARGEST", 12)
        patch.setattr(segments, "_SMALL", 2)
        patch.setattr(chunks, "CHUNK", 5)
        patch.setattr(joinkeys, "hashes_of", lambda columns: hashes(columns) & np.uint64(3 << 62 | 1))
        patch.setattr(joinkeys, "have_exact_hashes", lambda columns: False)
        yield


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(HOWS), st.sampled_from(WITHIN), events, events, st.randoms(use_true_random=False))
def test_results_are_those_of_all_pairs_of_records_that_are_not_late(
    how: How, within: tuple[int, int], first: Any, second: Any, chance: random.Random
) -> None:
    """However the records of two inputs are mixed and cut into batches, however far event time leaps and in whatever
    portions, and wherever checkpoints are taken, given up or gone on from."""
    one = Driven(how, within)
    files, taken = Files(), 0
    left = [numbered(first, 0), numbered(second, 1_000)]
    while any(left):
        port = chance.randrange(2)
        count = chance.randint(1, 5)
        one.push(left[port][:count], port)
        del left[port][:count]
        if chance.random() < 0.4:
            one.advance(max(one.before, chance.randint(0, 12) * SECOND), chance.randint(1, 3))
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
    assert Counter(one.found) == model(how, within, *one.taken)
    assert len(one.late) + len(one.taken[0]) + len(one.taken[1]) == len(first) + len(second)
    assert one.task.next_event() is None and one.task.state_entries() == 0
    taken += 1
    files.take(one.task.backend, taken)
    assert not sum(table.base.count for table in one.task.backend.tables.values())


@pytest.mark.parametrize("how", HOWS)
def test_results_come_in_one_order_wherever_it_goes_on(how: How) -> None:
    """A worker that takes over from a checkpoint emits what the lost one would have, record by record."""
    chance = random.Random(5)
    one = Driven(how, (-2, 3))
    some = [(f"k{chance.randrange(20)}", 5 + i // 8, i) for i in range(60)]
    for i in range(0, 60, 6):
        one.push(some[i : i + 6], 0)
        one.push(some[i + 3 : i + 6], 1)
    one.advance(6 * SECOND)
    other = one.restored()
    other.found = []
    one.found.clear()
    for task in (one, other):
        task.task.advance(9 * SECOND, 2)
        task.advance(9 * SECOND, 3)
        task.push([("a", 10, 500), ("b", 11, 501), ("a", 10, 502)], 0)
        task.push([("a", 10, 600), ("c", 11, 601), ("a", 11, 602)], 1)
        task.advance(MAX_TIME, 2)
    assert one.found == other.found != []


@pytest.mark.parametrize("how", HOWS)
def test_results_are_the_same_with_state_on_disk(how: How, tmp_path: Path) -> None:
    chance = random.Random(3)
    first = [(chance.choice("abcdef"), 1 + i // 4, i) for i in range(80)]
    second = [(chance.choice("abcdef"), 1 + i // 4, 100 + i) for i in range(80)]
    one = Driven(how, (-2, 3), make_backend=lambda uid, subtask: DiskBackend(tmp_path / f"{random.random()}", 128))
    files = Files()
    for i in range(0, 80, 8):
        one.push(first[i : i + 8], 0)
        one.push(second[i : i + 8], 1)
        one.advance((i // 4) * SECOND)
        if i == 40:
            old, (one, files) = one, (one.restored(checkpoint=100), Files())
            old.task.close()
        files.take(one.task.backend, i + 2)
        files.confirm(one.task.backend, i + 2)
    one.advance(MAX_TIME)
    assert Counter(one.found) == model(how, (-2, 3), *one.taken)
    one.task.close()


@pytest.mark.parametrize("how", HOWS)
def test_a_start_at_another_parallelism_deals_out_what_is_kept_by_key_groups(how: How) -> None:
    """Two subtasks go on from one, and one goes on from these."""
    chance = random.Random(8)
    first = numbered([(f"k{chance.randrange(30)}", 3 + i // 9) for i in range(60)], 0)
    second = numbered([(f"k{chance.randrange(30)}", 3 + i // 9) for i in range(60)], 100)
    one = Driven(how, (-1, 2))
    one.push(first[:30], 0)
    one.push(second[:20], 1)
    halves = [split(one, range(64 * i, 64 * i + 64), i, 2) for i in (0, 1)]
    for port, some in ((1, second[20:40]), (0, first[30:50])):
        for i, half in enumerate(halves):
            half.push([event for event in some if key_group(event[0], 128) // 64 == i], port)
    for half in halves:
        half.advance(4 * SECOND, 2)
    one = together(halves)
    one.push(second[40:], 1)
    one.push(first[50:], 0)
    one.advance(MAX_TIME)
    assert Counter(one.found) == model(how, (-1, 2), *one.taken) != Counter()


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


def test_what_is_kept_is_bounded_by_the_interval() -> None:
    one = Driven("full", (0, 10))
    for time in range(1, 200):
        one.push([(f"k{time % 50}", time, time)], 0)
        one.push([(f"k{time % 50}", time, 1_000 + time)], 1)
        one.advance(time * SECOND - 1)
        kept = [side.kept for side in one.task.sides]
        assert kept[0] <= 11 and kept[1] <= 2
        assert sum(len(segment) for side in one.task.sides for segment in side.segments) <= 40
    metrics = one.task.ctx.metrics.gauges
    assert [metrics["kept_first"], metrics["kept_second"]] == kept
    one.advance(MAX_TIME)
    assert one.task.state_entries() == 0


def test_a_checkpoint_writes_what_has_come_since_the_last_one() -> None:
    one, files, sizes = Driven("inner", (0, 1_000)), Files(), []
    for i in range(1, 6):
        one.push(numbered([(f"k{j}", 10 * i) for j in range(200)], 1_000 * i), 0)
        sizes.append(files.take(one.task.backend, i).size)
        files.confirm(one.task.backend, i)
    assert max(sizes) < 3 * sizes[0], sizes


@pytest.mark.parametrize("how", HOWS)
def test_an_interval_longer_than_time_ends_at_the_last_time(how: How) -> None:
    """The results of unmatched records have the last time, and come when event time reaches it, not behind it."""
    end = LAST_TIME // SECOND
    for within in ((-2, end - 1), (1 - end, 3), (1 - end, end - 1)):
        one = Driven(how, within)
        one.push([("a", 10, 1), ("b", 11, 2)], 0)
        one.push([("b", 12, 3), ("c", 14, 4)], 1)
        one.advance(13 * SECOND)
        one = one.restored()
        one.advance(LAST_TIME - 1)
        one.task.advance(LAST_TIME, 1_000)
        expected = Counter({(found, min(time, end)): n for (found, time), n in model(how, within, *one.taken).items()})
        assert Counter(one.found) == expected
        assert one.task.next_event() is None and one.task.state_entries() == 0


def test_records_whose_times_are_far_apart_are_joined() -> None:
    """Times that no one index can have."""
    year = 365 * 24 * 3_600
    times = [1, 2 * year, 3_000 * year, 3_000 * year + 1, 200_000 * year]
    one = Driven("full", (-1, 1))
    one.push(numbered([("a", time) for time in times], 0), 0)
    one.push(numbered([("a", time) for time in reversed(times)], 10), 1)
    one.advance(MAX_TIME)
    assert Counter(one.found) == model("full", (-1, 1), *one.taken)
    assert len(one.found) == 7


KEYS: dict[str, tuple[Any, Any, list[Any], list[Any]]] = {
    "whole numbers": (pa.int16(), pa.int64(), [1, -2, 3, None], [3, 1, None, 7]),
    "floats": (pa.float32(), pa.float64(), [0.0, float("nan"), 1.5], [-0.0, float("nan"), 2.5]),
    "texts": (pa.string(), pa.large_string(), ["", "x" * 20, None, "é"], [None, "x" * 20, "x" * 19, ""]),
    "bytes": (pa.binary(), pa.binary(), [b"", b"a\0"], [b"a", b"a\0"]),
    "truth": (pa.bool_(), pa.bool_(), [True, False, None], [False]),
    "instants": (pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Berlin"), [0, 1], [0, 1_000_000]),
    "days": (pa.date32(), pa.date32(), [0, 1], [1, 2]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_equal_as_in_rows(name: str) -> None:
    first, second, a, b = KEYS[name]
    one = Driven("inner", (0, 0), schema=None)
    pairs: list[Any] = []
    one.task.out = lambda batch: pairs.extend(zip(*batch.data.select(["n_x", "n_y"]).to_pydict().values(), strict=True))
    for port, (kind, values) in enumerate(((first, a), (second, b))):
        data = pa.record_batch({"key": pa.array(values, kind), "n": pa.array(range(len(values)), pa.int64())})
        one.task.process(Columns(data, np.full(len(values), 5)), port)
    keys = [plain_key_of(pa.array(values, kind).to_pylist()) for kind, values in ((first, a), (second, b))]
    expected = {(i, j) for i, x in enumerate(keys[0]) for j, y in enumerate(keys[1]) if x == y}
    assert {*pairs} == expected != set() and len(pairs) == len(expected)


def plain_key_of(keys: list[Any]) -> list[bytes]:
    return [canonical_bytes(key) for key in keys]


def test_keys_of_several_columns_are_joined() -> None:
    operator = IntervalJoin(("a", "b"), 0, 0, "inner", ("", "_right"))  # type: ignore[arg-type]
    operator = replace(operator, keys=(("a", "b"), ("b", "a")))
    node = Node(0, operator, "join", "u", True, 1, "columns", ())
    task = ColumnJoinTask(node, OperatorContext("join", "u", 0, 1, 0, Services(random_factory=random.Random)))
    found: list[Any] = []
    task.out = lambda batch: found.extend(batch.data.to_pylist())
    for port in (0, 1):
        data = pa.record_batch({"a": [1, 2, None], "b": [2, None, 2], "n": [10 + port, 20 + port, 30 + port]})
        task.process(Columns(data, np.full(3, 5)), port)
    assert found == [
        {"a": None, "b": 2, "n": 30, "a_right": 2, "b_right": None, "n_right": 21},
        {"a": 2, "b": None, "n": 20, "a_right": None, "b_right": 2, "n_right": 31},
    ]


def test_keys_that_are_never_compared_are_refused() -> None:
    one = Driven("inner", (0, 0), schema=None)
    one.task.process(Columns(pa.record_batch({"key": ["a"]}), np.array([1])), 0)
    with pytest.raises(UserCodeError, match=r"int64, those of the other of large_string, and are never compared"):
        one.task.process(Columns(pa.record_batch({"key": [1]}), np.array([1])), 1)
    one = Driven("inner", (0, 0), schema=None)
    with pytest.raises(UserCodeError, match=r"not of decimal128\(3, 1\); cast the column, or call to_rows"):
        one.task.process(Columns(pa.record_batch({"key": pa.array([1], pa.decimal128(3, 1))}), np.array([1])), 1)


def test_a_column_of_nulls_gets_its_type_when_one_comes() -> None:
    one = Driven("inner", (0, 9), schema=None)
    found: list[Any] = []
    one.task.out = lambda batch: found.extend(batch.data.to_pylist())
    one.task.process(Columns(pa.record_batch({"key": ["a"], "v": pa.nulls(1)}), np.array([1])), 0)
    one.task.process(Columns(pa.record_batch({"key": ["a"], "v": [7]}), np.array([2])), 0)
    one.task.process(Columns(pa.record_batch({"key": ["a"], "w": [1]}), np.array([3])), 1)
    assert found == [{"key": "a", "v": None, "w": 1}, {"key": "a", "v": 7, "w": 1}]


def test_it_does_not_go_on_from_another_interval_or_from_rows() -> None:
    one = Driven("inner", (0, 1))
    one.push([("a", 1, 1)], 0)
    data = one.task.snapshot(1)
    with pytest.raises(IncompatibleState, match=r"inner join within 0.0 s and 1.0 s in columns.*left join"):
        Driven("left", (0, 1)).task.restore([MetaPart(0, 1, False, data)])
    with pytest.raises(msgspec.MsgspecError):  # which the worker says to be of another kind of operator
        one.task.restore([MetaPart(0, 1, False, msgspec.msgpack.encode(["inner join"]))])
