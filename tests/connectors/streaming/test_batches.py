"""Of each batch of a streaming query one list is there, that of the first commit, and a lost checkpoint is seen."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.connectors.streaming.batches import BatchFile
from tailrace.errors import CheckpointError, ConfigError
from tests.connectors.streaming.queries import SCHEMA, Query


@pytest.fixture
def query(scratch: Path) -> Query:
    return Query(scratch, random.Random(1))


def files_of(query: Query, batch: int) -> set[str]:
    return {path.name for path in (query.place / "data" / f"{batch:012d}").glob("*")}


def test_a_batch_is_there_when_its_list_is(query: Query) -> None:
    batch = query.plan(10)
    written = query.write(batch, 3)
    assert query.folder.ids() == [] and query.folder.list_of(0) is None
    query.work.commit(written, batch)
    found = query.folder.list_of(0)
    assert found is not None and found.rows == 10 and query.folder.ids() == [0]


def test_a_repeated_batch_is_dropped_though_its_rows_are_in_other_files(query: Query) -> None:
    batch = query.run(10)
    first = query.folder.list_of(batch)
    query.done = batch  # the query was killed before it noted that the batch is done
    assert query.run(10, partitions=4) == batch
    again = query.folder.list_of(batch)
    assert first == again is not None
    assert files_of(query, batch) == {file.name for file in again.files}


def test_files_of_tasks_that_were_started_twice_are_swept(query: Query) -> None:
    batch = query.plan(10)
    query.write(batch, 2)
    kept = query.write(batch, 2)
    query.work.commit(kept, batch)
    assert files_of(query, batch) == {file.name for file in kept if file.rows}


def test_an_aborted_batch_leaves_nothing_and_takes_nothing_of_a_committed_one(query: Query) -> None:
    batch = query.plan(10)
    written = query.write(batch, 2)
    query.work.abort(written, batch)
    assert files_of(query, batch) == set()
    written = query.write(batch, 2)
    query.work.commit(written, batch)
    query.work.abort(written, batch)
    assert files_of(query, batch) == {file.name for file in written if file.rows}


def test_a_query_that_counts_from_0_where_batches_are_is_refused(query: Query) -> None:
    for _ in range(3):
        query.run()
    query.begin_anew()
    with pytest.raises(ConfigError, match="was lost or exchanged"):
        query.folder.check_query(query.checkpoint_folder)
    with pytest.raises(ConfigError, match="batch 0 of the streaming query is there already, with other offsets"):
        query.run()


def test_other_offsets_of_the_same_query_are_refused(query: Query) -> None:
    query.run(10)
    (query.checkpoint / "offsets" / "0").unlink()
    query.done = 0
    with pytest.raises(ConfigError, match="with other offsets"):
        query.run(11)


def test_a_batch_that_leaves_out_others_is_refused(query: Query) -> None:
    query.run()
    query.plan(0)
    query.done = 2
    (query.checkpoint / "offsets" / "1").write_text("[10, 20]")
    with pytest.raises(ConfigError, match="batch 2 of the streaming query came where 1 is next"):
        query.run()


def test_a_lost_checkpoint_is_seen_before_the_query_starts(query: Query) -> None:
    query.folder.check_query(query.checkpoint_folder)
    query.run()
    query.folder.check_query(query.checkpoint_folder)
    shutil.rmtree(query.checkpoint)
    with pytest.raises(ConfigError, match="was lost or exchanged"):
        query.folder.check_query(query.checkpoint_folder)


def test_the_newest_list_stays_so_that_a_lost_checkpoint_is_seen(query: Query) -> None:
    for _ in range(3):
        query.run(rows=0)
    query.folder.note_read(0, 3, None)
    query.folder.delete_lists(1)
    assert query.folder.ids() == [2]


def test_a_list_stays_while_a_lane_needs_it_or_a_file_of_it_is_there(query: Query) -> None:
    for _ in range(3):
        query.run(rows=4, partitions=1)
    query.folder.note_read(0, 2, None)
    query.folder.delete_lists(2)
    assert query.folder.ids() == [0, 1, 2], "lane 1 has noted nothing"
    query.folder.note_read(1, 2, None)
    query.folder.delete_lists(2)
    assert query.folder.ids() == [0, 1, 2], "its files are there"
    known = query.folder.list_of(0)
    assert known is not None
    query.folder.delete_files((0, file.name) for file in known.files)
    query.folder.delete_lists(2)
    assert query.folder.ids() == [1, 2]


def test_a_position_before_deleted_batches_is_refused(query: Query) -> None:
    for _ in range(3):
        query.run()
    query.folder.check_position(0, 0)
    query.folder.note_read(0, 2, None)
    query.folder.check_position(0, 2)
    query.folder.check_position(1, 0)
    with pytest.raises(CheckpointError, match=r"goes on at batch 1 .* batches before 2 were deleted"):
        query.folder.check_position(0, 1)


def test_a_position_in_a_folder_that_is_gone_is_refused(query: Query) -> None:
    with pytest.raises(CheckpointError, match="the folder was moved or removed"):
        query.folder.check_position(0, 1)


def test_the_latest_event_time_is_that_of_all_batches_so_far(scratch: Path) -> None:
    query = Query(scratch, random.Random(1), event_time=1)
    schema = pa.schema([("batch", pa.int64()), ("number", pa.timestamp("us"))])
    for times in ([5, 9], [3], [], [None, 11]):
        batch = query.plan(0)
        rows = pa.record_batch([pa.array([batch] * len(times)), pa.array(times, pa.timestamp("us"))], schema=schema)
        query.work.commit([query.work.write(iter([rows]), 0, batch)], batch)
        query.done += 1
    lists = [query.folder.list_of(batch) for batch in range(4)]
    assert [found.latest for found in lists if found is not None] == [9, 9, 9, 11]


def test_the_end_is_behind_the_last_batch(query: Query) -> None:
    query.run()
    query.run()
    assert query.folder.end() is None
    query.folder.note_end()
    query.folder.note_end()
    assert query.folder.end() == 2


def test_a_task_without_rows_writes_no_file(query: Query) -> None:
    empty = pa.record_batch([[], []], schema=SCHEMA)
    assert query.work.write(iter([empty]), 3, 0).rows == 0
    assert not (query.place / "data").exists()
    assert isinstance(query.write(query.plan(0), 2)[0], BatchFile)
