"""Of each batch of a streaming query one list is there, that of the first commit, and a lost checkpoint is seen."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.errors import CheckpointError, ConfigError
from tests.connectors.streaming.queries import Query


@pytest.fixture
def query(scratch: Path) -> Query:
    return Query(scratch, random.Random(1))


def files_of(query: Query) -> set[str]:
    """Names of the files that are there, without the checksums beside them."""
    names = {path.name for path in query.data.iterdir() if path.is_file()}
    files = {name for name in names if not name.startswith(".")}
    assert names - files == {f".{name}.crc" for name in files}
    return files


def test_a_batch_is_there_when_its_list_is(query: Query) -> None:
    batch = query.plan(10)
    written = query.write(batch, 3)
    query.lister.look()
    assert query.folder.ids() == []
    query.commit(batch, written)
    assert query.folder.ids() == [] and query.folder.list_of(0) is None
    query.lister.look()
    found = query.folder.list_of(0)
    assert found is not None and found.rows == 10 and query.folder.ids() == [0]


def test_a_repeated_batch_is_dropped_though_its_rows_are_in_other_files(query: Query) -> None:
    batch = query.run(10)
    first = query.folder.list_of(batch)
    query.done = batch  # the query was killed before it noted that the batch is done
    assert query.run(10, partitions=4) == batch
    again = query.folder.list_of(batch)
    assert first == again is not None


def test_two_drivers_make_the_same_lists(query: Query) -> None:
    other = query.new_lister()
    for _ in range(3):
        query.run()
    other.look()
    assert query.folder.ids() == [0, 1, 2]
    query.run()
    other.look()
    query.run()
    assert query.folder.ids() == [0, 1, 2, 3, 4]


def test_what_spark_has_committed_while_no_driver_was_there_is_listed(query: Query) -> None:
    """Batches are listed where Spark has deleted the offsets since, too, as it does after a hundred batches."""
    for batch in range(4):
        query.commit(query.plan(5), query.write(batch, 1))
        query.done += 1
    for batch in range(3):
        (query.checkpoint / "offsets" / str(batch)).unlink()
    query.lister.look()
    lists = [query.folder.list_of(batch) for batch in query.folder.ids()]
    assert [found.offsets == "" for found in lists if found is not None] == [True, True, True, False]
    query.folder.check_query(query.checkpoint_folder)
    (query.checkpoint / "offsets" / "3").unlink()
    with pytest.raises(ConfigError, match="was lost or exchanged"):
        query.folder.check_query(query.checkpoint_folder)


def test_files_of_tasks_that_were_lost_are_deleted_once_no_batch_can_name_them(query: Query) -> None:
    query.run()
    batch = query.plan(10)
    lost, kept = query.write(batch, 2), query.write(batch, 2)
    query.lister = query.new_lister()
    query.lister.look()
    assert set(lost) | set(kept) <= files_of(query), "the batch may name them"
    query.commit(batch, kept)
    query.lister.look()
    assert not set(lost) & files_of(query) and set(kept) <= files_of(query)


def test_a_batch_that_spark_writes_keeps_its_files_though_the_lister_is_behind(query: Query) -> None:
    query.run()
    query.commit(query.plan(10), query.write(1, 1))
    query.done = 2
    written = query.write(query.plan(10), 2)
    query.lister = query.new_lister()
    query.lister.look()
    query.commit(2, written)
    query.lister.look()
    assert set(written) <= files_of(query)


def test_files_without_rows_are_in_no_list(query: Query) -> None:
    batch = query.run(rows=0, partitions=3)
    found = query.folder.list_of(batch)
    assert found is not None and found.files == [] and files_of(query) == set()


def test_notes_are_deleted_but_the_newest_from_which_spark_counts_on(query: Query) -> None:
    for _ in range(3):
        query.run()
    assert [path.name for path in query.notes.iterdir()] == ["2"]


def test_notes_that_spark_has_put_together_are_refused(query: Query) -> None:
    query.run()
    (query.notes / "1.compact").write_text("v1")
    with pytest.raises(ConfigError, match="compactInterval cannot be set"):
        query.new_lister().look()


def test_a_file_that_the_driver_does_not_see_is_refused(query: Query) -> None:
    query.commit(query.plan(3), ["part-00000-a-c000.snappy.parquet"])
    with pytest.raises(ConfigError, match=r"the driver of the job does not see it .* give the job checkpoints"):
        query.lister.look()


def test_a_query_that_counts_from_0_where_batches_are_is_refused(query: Query) -> None:
    for _ in range(3):
        query.run()
    query.begin_anew()
    with pytest.raises(ConfigError, match="was lost or exchanged"):
        query.folder.check_query(query.checkpoint_folder)
    shutil.rmtree(query.notes)
    query.plan(10)
    with pytest.raises(ConfigError, match="batch 0 of the streaming query is there already, with other offsets"):
        query.folder.commit(0, [], "another", "other")


def test_other_offsets_of_the_same_query_are_refused(query: Query) -> None:
    query.run(10)
    (query.checkpoint / "offsets" / "0").write_text("[0, 11]")
    with pytest.raises(ConfigError, match="was lost or exchanged"):
        query.folder.check_query(query.checkpoint_folder)


def test_a_batch_of_another_query_is_refused(query: Query) -> None:
    query.run()
    query.begin_anew()
    (query.checkpoint / "offsets" / "1").write_text("[10, 20]")
    query.commit(1, query.write(1, 1))
    with pytest.raises(ConfigError, match="batch 1 is of another streaming query than 0"):
        query.lister.look()


def test_a_batch_without_the_checkpoint_of_its_query_is_refused(query: Query) -> None:
    query.commit(query.plan(10), query.write(0, 1))
    shutil.rmtree(query.checkpoint)
    with pytest.raises(ConfigError, match=r"batch 0 of the streaming query is there: .* was lost or exchanged"):
        query.lister.look()


def test_a_batch_that_leaves_out_others_is_refused(query: Query) -> None:
    query.run()
    with pytest.raises(ConfigError, match="batch 2 of the streaming query came where 1 is next"):
        query.folder.commit(2, [], "query", "offsets")


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
    query.folder.delete_files(file.name for file in known.files)
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


def test_a_batch_that_was_begun_and_not_done_is_seen(query: Query) -> None:
    assert query.lister.all_done(), "a query without input has no batch"
    commits = query.checkpoint / "commits"
    commits.mkdir()
    for batch in range(11):
        query.plan(1)
        assert not query.lister.all_done()
        query.done += 1
        (commits / str(batch)).write_text("v1")
        (commits / f".{batch + 1}.crc").write_bytes(b"")
        assert query.lister.all_done()


def test_the_latest_event_time_is_that_of_all_batches_so_far(scratch: Path) -> None:
    query = Query(scratch, random.Random(1), event_time=1)
    schema = pa.schema([("batch", pa.int64()), ("number", pa.timestamp("us"))])
    for times in ([5, 9], [3], [], [None, 11]):
        batch = query.plan(0)
        rows = pa.record_batch([pa.array([batch] * len(times)), pa.array(times, pa.timestamp("us"))], schema=schema)
        query.commit(batch, [query.write_file(rows)])
        query.lister.look()
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
