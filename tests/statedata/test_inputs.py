"""Files of DataFrames that sources have left to read: a savepoint holds them, and a start from it needs nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.sources import ArrowFiles
from tailrace.statedata.inputs import moved_inputs, unread_inputs
from tailrace.statedata.newcheckpoint import CheckpointPlan, check_alone, complete, new_folder
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.filesystem import LocalFolder
from tests.statedata.test_writing import Count, on_disk, started

FILES, ROWS = 8, 400


def dataframe(folder: Path) -> list[str]:
    """The files of a DataFrame in the folder of a job."""
    paths = []
    for number in range(FILES):
        path = folder / "job" / "1" / "inputs" / "in-0" / f"part-{number}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pa.record_batch({"n": range(number * ROWS, (number + 1) * ROWS)})
        with pa.ipc.new_file(str(path), rows.schema) as file:
            file.write_batch(rows)
        paths.append(str(path))
    return paths


def counting(source: Any, sink: Any) -> Callable[[tr.Environment], None]:
    def build(env: tr.Environment) -> None:
        rows = env.from_source(source, uid="rows").map(lambda row: row.n, uid="numbers")
        rows.key_by(lambda n: n % 7).process(Count(), uid="counts").sink_to(sink, uid="out")

    return build


def whole() -> list[Any]:
    return sorted((n % 7, n // 7 + 1) for n in range(FILES * ROWS))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_savepoint_of_a_savepoint_goes_on_when_all_that_was_before_is_gone(
    checkpoint_of: Any, tmp_path: Path, parallelism: int
) -> None:
    """Each start has copies of its own, or reads those of the savepoint in their place."""
    first, second = tr.sinks.Collect(), tr.sinks.Collect()
    paths = dataframe(tmp_path)
    stored = checkpoint_of(counting(ArrowFiles(paths, ("n",), "rows"), first), number=2)
    base = StoredCheckpoint.open(on_disk(stored, tmp_path))
    left = unread_inputs(base.store, base.manifest)
    assert 0 < len(left) < FILES, "some are read to their end, and others are not"
    assert {url for url, _ in left} < set(paths) and unread_inputs(base.store, base.manifest, {"rows"}) == []

    check_alone(base)
    plan = CheckpointPlan("job", 16, base=base)
    saved = StoredCheckpoint.open(complete(new_folder(str(tmp_path / "saved"), "job"), plan, [], 0, "by-hand"))
    shutil.rmtree(tmp_path / "job")
    plan = CheckpointPlan("job", 16, base=saved)
    again = StoredCheckpoint.open(complete(new_folder(str(tmp_path / "again"), "job"), plan, [], 0, "by-hand"))
    shutil.rmtree(tmp_path / "saved")
    assert again.manifest.inputs == [file for _, file in left]

    source, mine = ArrowFiles([], ("n",), "rows"), tmp_path / "mine"
    file = tmp_path / "again" / again.manifest.inputs[-1].name
    there = file.read_bytes()
    for change, what in ((lambda: file.write_bytes(there + b"x"), "has"), (file.unlink, "is gone; put it back")):
        change()
        with pytest.raises(tr.CheckpointCorrupt, match=f"{file.name}, which source 'rows' reads, {what}"):
            moved_inputs(again.store.url, again.manifest, "rows", (LocalFolder(str(mine)), "in-5"))
    file.write_bytes(there)
    into = None if parallelism == 3 else (LocalFolder(str(mine)), "in-5")
    source.moved = moved_inputs(again.store.url, again.manifest, "rows", into)
    assert list(source.moved.values()) == [str(mine / "in-5-0") if into else str(tmp_path / "again" / "inputs" / "0")]
    started(again.store.url, counting(source, second), parallelism)
    last = {key: max(n for one, n in second.result() if one == key) for key in range(7)}
    assert last == {key: max(n for one, n in whole() if one == key) for key in range(7)}
    assert len(second.result()) == len(set(second.result())) < len(whole())


def test_other_sources_and_other_splits_have_none(checkpoint_of: Any, tmp_path: Path) -> None:
    class DataFrame(tr.Source):
        """A source of the user that is called as ours."""

        __qualname__ = "DataFrame"

        def splits(self, parallelism: int) -> list[Any]:
            return ["no path", {"folder": "/7/inputs/in-0/part-0"}, 3]

        def reader(self, split: Any, position: Any = None) -> Any:
            return tr.sources.Sequence(0, 10).reader((0, 1), position)

    def build(env: tr.Environment) -> None:
        env.from_source(DataFrame(), uid="rows").sink_to(tr.sinks.Collect(), uid="out")

    stored = checkpoint_of(build, number=1)
    assert stored.operator("rows").shape == ["DataFrame"]
    assert unread_inputs(stored.store, stored.manifest) == []
