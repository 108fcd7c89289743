"""Each row of a streaming query is read once, whatever is restarted on either side, and in the order of its batches."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.api.connectors import AssignedSplit
from tailrace.connectors.streaming.batches import BatchFolder
from tailrace.connectors.streaming.lanes import GAP_SECONDS, MARK, LaneReader
from tailrace.connectors.streaming.source import StreamingBatches
from tailrace.connectors.travelling import leave_sign
from tailrace.errors import CheckpointError, ConfigError
from tests.connectors.streaming.queries import SCHEMA, Query

LANES = 3


def reader_of(
    event_time: str | None = None, ends: bool = False, keep: int = 1, schema: pa.Schema = SCHEMA
) -> LaneReader:
    return LaneReader(BatchFolder, "columns", schema, event_time, ends=ends, keep=keep)


def lane(place: Path, number: int, position: Any = None, of: int = LANES) -> AssignedSplit:
    return AssignedSplit(number, {"folder": str(place), "lane": number, "of": of}, position)


class Job:
    """A job that reads lanes, with checkpoints: what it has emitted goes back with it."""

    def __init__(self, place: Path, chance: random.Random, keep: int) -> None:
        self.place, self.chance, self.keep = place, chance, keep
        self.emitted: dict[int, list[tuple[int, int]]] = {number: [] for number in range(LANES)}
        self.taken: list[dict[int, tuple[Any, int]]] = [dict.fromkeys(range(LANES), (None, 0))]
        """Checkpoints: the position of each lane, and the number of rows that it had emitted."""
        self.begin(self.taken[0])

    def begin(self, checkpoint: dict[int, tuple[Any, int]]) -> None:
        """Goes on from a checkpoint, with the lanes dealt to some number of readers."""
        self.readers = [reader_of(keep=self.keep) for _ in range(self.chance.randint(1, LANES))]
        for number, (position, count) in checkpoint.items():
            self.readers[number % len(self.readers)].assign([lane(self.place, number, position)])
            del self.emitted[number][count:]

    def read(self, limit: int) -> int:
        count = 0
        for reader in self.readers:
            for number, given in reader.read(limit, 0.0):
                rows = list(zip(*(given.column(at).to_pylist() for at in range(2)), strict=True)) if len(given) else []
                self.emitted[number] += rows
                count += len(rows)
        return count

    def checkpoint(self) -> None:
        positions = {number: reader.position(number) for reader in self.readers for number in reader.lanes}
        self.taken.append({number: (at, len(self.emitted[number])) for number, at in positions.items()})
        self.taken = self.taken[-self.keep :]
        for reader in self.readers:
            if self.chance.random() < 0.8:  # a call may be left out
                reader.completed({number: positions[number] for number in reader.lanes})

    def restart(self) -> None:
        self.begin(self.chance.choice(self.taken))
        self.taken = self.taken[: self.taken.index(self._newest()) + 1]

    def _newest(self) -> dict[int, tuple[Any, int]]:
        counts = {number: len(rows) for number, rows in self.emitted.items()}
        return next(one for one in self.taken if {number: count for number, (_, count) in one.items()} == counts)


@pytest.mark.parametrize("seed", range(12))
def test_every_row_is_read_once_whatever_is_restarted(scratch: Path, seed: int) -> None:
    """The query is killed before and behind commits and repeats batches with rows in other partitions; the driver may be
    another one at each look; the job goes back to any checkpoint that it keeps, at any number of readers."""
    chance = random.Random(seed)
    query = Query(scratch, chance)
    job = Job(scratch, chance, keep=chance.randint(1, 3))
    for _ in range(40):
        match chance.randrange(6):
            case 0 | 1:
                batch = query.plan(chance.choice([0, 1, 20]))
                written = query.write(batch, chance.randint(1, 5))
                if chance.random() < 0.8:
                    query.commit(batch, written)
                    query.done += chance.random() < 0.8
                if chance.random() < 0.2:
                    query.lister = query.new_lister()
                if chance.random() < 0.7:
                    query.lister.look()
            case 2 | 3:
                job.read(chance.randint(1, 15))
            case 4:
                job.checkpoint()
            case 5:
                job.restart()
    query.run()
    while job.read(1000):
        pass
    rows = sorted(row for found in job.emitted.values() for row in found)
    assert [number for _, number in rows] == list(range(query.offsets(query.done - 1)[1]))
    for found in job.emitted.values():
        batches = [batch for batch, _ in found]
        assert batches == sorted(batches)


def test_what_no_kept_checkpoint_needs_is_deleted_also_by_a_later_reader(scratch: Path) -> None:
    query = Query(scratch, random.Random(5))
    for _ in range(4):
        query.run(rows=6, partitions=2)
    first = reader_of(keep=2)
    first.assign([lane(scratch, 0, of=1)])
    while any(len(given) for _, given in first.read(100, 0.0)):
        pass
    assert first.position(0)[0] == 4
    first.completed({0: (2, 0, 0)})
    assert len(list(scratch.glob("data/part-*"))) == 8, "two checkpoints are kept, and there was one"
    second = reader_of(keep=1)
    second.assign([lane(scratch, 0, (4, 0, 0), of=1)])
    second.completed({0: (4, 0, 0)})
    assert list(scratch.glob("data/part-*")) == [] and query.folder.ids() == [3]
    with pytest.raises(CheckpointError, match="batches before 4 were deleted"):
        reader_of().assign([lane(scratch, 0, (2, 0, 0), of=1)])


def test_rows_of_a_partition_stay_in_order_in_one_lane(scratch: Path) -> None:
    query = Query(scratch, random.Random(2))
    for _ in range(3):
        query.run(rows=30, partitions=3)
    reader = reader_of()
    reader.assign([lane(scratch, number) for number in range(LANES)])
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(LANES)}
    while True:
        given = [(number, batch) for number, batch in reader.read(7, 0.0) if len(batch)]
        if not given:
            break
        for number, batch in given:
            found[number] += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    assert all(rows == sorted(rows) and rows for rows in found.values())


def test_a_paused_lane_gives_nothing(scratch: Path) -> None:
    query = Query(scratch, random.Random(2))
    query.run(rows=30, partitions=3)
    reader = reader_of()
    reader.assign([lane(scratch, number) for number in range(LANES)])
    reader.pause([0, 2])
    assert {number for _ in range(5) for number, _ in reader.read(7, 0.0)} == {1}


def test_each_lane_marks_the_latest_event_time_at_the_end_of_a_batch(scratch: Path) -> None:
    """The lane that has no file of the batch, too: else it would hold event time back."""
    schema = pa.schema([("batch", pa.int64()), ("number", pa.timestamp("us", tz="UTC"))])
    query = Query(scratch, random.Random(1), event_time=1)
    batch = query.plan(0)
    rows = pa.record_batch([pa.array([0, 0]), pa.array([7, 4], schema[1].type)], schema=schema)
    query.commit(batch, [query.write_file(rows)])
    query.lister.look()
    reader = reader_of("number", schema=schema)
    reader.assign([lane(scratch, 0), lane(scratch, 1)])
    found: dict[int, list[tuple[Any, bool]]] = {0: [], 1: []}
    for _ in range(6):
        for number, given in reader.read(10, 0.0):
            if len(given):
                times = given.column("number").cast(pa.int64()).to_pylist()
                found[number] += zip(times, given.column(MARK).to_pylist(), strict=True)
    assert found == {0: [(7, False), (4, False), (7, True)], 1: [(7, True)]}


def test_lanes_end_behind_the_last_batch_of_a_query_that_ends(scratch: Path) -> None:
    query = Query(scratch, random.Random(1))
    query.run(rows=3, partitions=1)
    reader = reader_of(ends=True)
    reader.assign([lane(scratch, 0), lane(scratch, 1)])
    taken = [given for _ in range(3) for _, given in reader.read(10, 0.0)]
    assert sum(map(len, taken)) == 3
    assert [len(given) for _, given in reader.read(10, 0.0)] == [0, 0]
    query.folder.note_end()
    assert next(iter(reader.read(10, 0.0)))[1] is None


def test_a_batch_that_somebody_has_removed_is_an_error(scratch: Path) -> None:
    query = Query(scratch, random.Random(1))
    for _ in range(3):
        query.run(rows=3, partitions=1)
    reader = reader_of()
    reader.assign([lane(scratch, 0)])
    (scratch / "lists" / f"{1:012d}.json").unlink()
    while any(len(given) for _, given in reader.read(10, 100.0)):
        pass
    with pytest.raises(CheckpointError, match="batch 1 of the streaming query is not there any more"):
        list(reader.read(10, 100.0 + GAP_SECONDS))


def test_a_file_that_somebody_has_removed_is_an_error(scratch: Path) -> None:
    query = Query(scratch, random.Random(1))
    query.run(rows=3, partitions=1)
    next(scratch.glob("data/part-*")).unlink()
    reader = reader_of()
    reader.assign([lane(scratch, 0)])
    with pytest.raises(CheckpointError, match="is not there any more"):
        list(reader.read(10, 0.0))


def test_a_worker_that_does_not_see_the_folder_of_the_driver_is_refused(scratch: Path) -> None:
    """The worker would wait for batches for ever."""
    source = StreamingBatches(SCHEMA, "columns", None, bounded=False)
    source.shared = True
    with pytest.raises(ConfigError, match="no folder that driver and executors share"):
        source.split_reader(SimpleNamespace()).assign([lane(scratch, 0)])  # type: ignore[arg-type]
    leave_sign(str(scratch))
    source.split_reader(SimpleNamespace()).assign([lane(scratch, 0)])  # type: ignore[arg-type]
