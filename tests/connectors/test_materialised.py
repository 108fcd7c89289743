"""The files that a DataFrame becomes: computed once, kept where checkpoints need them, read on from any row."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace.spark.data.dataframe_files import DataFrameSource
from tailrace.spark.data.places import FilePlace

pytestmark = pytest.mark.spark


@pytest.fixture
def source(spark: Any) -> DataFrameSource:
    return DataFrameSource(spark.range(0, 20_000, 1, 2).selectExpr("id", "rand() as chance"), "rows")


def read(source: DataFrameSource, split: str, position: Any = None) -> list[Any]:
    reader = source.reader(split, position)
    found: list[Any] = []
    while (records := reader.read(3_000, 0.0)) is not None:
        found += records
    return found


def test_it_is_computed_once_but_for_a_job_whose_checkpoints_refer_to_it(
    source: DataFrameSource, tmp_path: Path
) -> None:
    source.materialise(FilePlace(str(tmp_path / "first")))
    first = source.paths
    source.materialise(FilePlace(str(tmp_path / "second")))
    assert source.paths == first and not (tmp_path / "second").exists()
    source.materialise(FilePlace(str(tmp_path / "kept")), durable=True)
    assert {os.path.dirname(path) for path in source.paths} == {str(tmp_path / "kept")}
    source.materialise(FilePlace(str(tmp_path / "the next job")))
    assert {os.path.dirname(path) for path in source.paths} == {str(tmp_path / "the next job")}


def test_a_restored_job_reads_the_files_of_its_checkpoint(source: DataFrameSource, tmp_path: Path) -> None:
    """The query is not run again: `rand()` would give other rows."""
    source.materialise(FilePlace(str(tmp_path / "kept")), durable=True)
    splits = list(source.splits(2))
    whole = [read(source, split) for split in splits]
    assert sum(map(len, whole)) == 20_000
    again = pickle.loads(pickle.dumps(source))
    again.note_restore()
    assert list(again.splits(2)) == []
    for split, rows in zip(splits, whole, strict=True):
        for position in (1, 8191, 8192, len(rows) - 1, len(rows)):
            assert read(again, split, position) == rows[position:]


def test_a_job_that_begins_anew_after_one_that_was_restored_runs_the_query(
    source: DataFrameSource, tmp_path: Path
) -> None:
    """In one program: the second job had no files, and no rows."""
    source.materialise(FilePlace(str(tmp_path / "first")))
    source.note_restore()
    source.materialise(FilePlace(str(tmp_path / "anew")))
    assert sum(len(read(source, split)) for split in source.splits(2)) == 20_000
