"""Where nobody has declared the columns of a sink, its files have the same ones, or nothing of them becomes visible."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tailrace.connectors import hidden, localfiles
from tailrace.connectors.filesinks import Agreement
from tailrace.elements.batches import Columns
from tailrace.errors import IncompatibleState
from tailrace.graph.operators import Sink
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.columns.schemas import restore_schema
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.sink import SinkTask

WHOLE, HALVES = pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [1.0, 2.5]})
UNKNOWN = pa.record_batch({"x": pa.nulls(2)})


class Own(tr.MapBatchesFunction):
    """Each subtask has a type of its own."""

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds

    def open(self, ctx: Any) -> None:
        self.kind = self.kinds[ctx.subtask]

    def map_batches(self, batch: Any) -> Any:
        return batch.set_column(0, "x", batch["x"].cast(self.kind))


def environment(folder: Path, *kinds: Any, schema: Any = None, checkpoints: bool = False) -> tr.Environment:
    config = tr.CheckpointConfig("memory", interval=1.0) if checkpoints else None
    env = tr.Environment(parallelism=2, checkpoint=config)
    source = tr.sources.Generator(lambda: iter(range(40)), rate=10 if checkpoints else None)
    columns = (
        env.from_source(source, parallelism=1)
        .rebalance()
        .map(lambda n: (n,))
        .to_columns("x long")
        .map_batches(Own(*kinds))
    )
    columns.sink_to(tr.sinks.Parquet(str(folder), schema), name="out")
    return env


def visible(folder: Path) -> list[str]:
    return sorted(name for name in (p.name for p in folder.iterdir()) if not name.startswith("."))


@pytest.mark.parametrize(
    ("checkpoints", "why"),
    [
        (False, r"column 'x' is (int64|double).*and (int64|double) in the other"),
        (True, r"columns of different types, \(x (int64|double)\) and \(x (int64|double)\)"),  # of the restart
    ],
)
def test_subtasks_with_different_types_are_refused_before_anything_is_visible(
    tmp_path: Path, checkpoints: bool, why: str
) -> None:
    """Each subtask took the types of its first batch. There were files of both types in one folder, and it was chance
    which of them a reader took for the type of all."""
    env = environment(tmp_path, pa.int64(), pa.float64(), checkpoints=checkpoints)
    with pytest.raises(tr.JobFailed, match=rf"operator 'out'.*{why}"):
        tr.testing.run(env)
    assert visible(tmp_path) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_does_not_publish_what_was_refused(tmp_path: Path, seed: int) -> None:
    """One subtask has whole numbers at first, then the other one halves. The checkpoint with the halves was complete, what
    it had prepared was refused; and behind the restart, where nobody knew what is visible, it was published."""
    config = tr.CheckpointConfig("memory", interval=0.5)
    env = tr.Environment(parallelism=2, checkpoint=config, restart=tr.FixedDelay(attempts=3, delay=0.0))
    numbers = env.from_source(tr.sources.Sequence(0, 40, rate=10), parallelism=1)
    sides = numbers.partition_by(lambda n: int(n >= 20)).map(lambda n: (n,)).to_columns("x long")
    sides.map_batches(Own(pa.int64(), pa.float64())).sink_to(tr.sinks.Parquet(str(tmp_path)), name="out")
    job = tr.testing.simulate(env, seed=seed)
    assert job.exception() is not None
    assert {str(pq.read_schema(tmp_path / name).field("x").type) for name in visible(tmp_path)} == {"int64"}


def test_a_schema_of_the_sink_settles_it(tmp_path: Path) -> None:
    tr.testing.run(environment(tmp_path, pa.int64(), pa.float64(), schema="x double"))
    assert sorted(pq.read_table(tmp_path)["x"].to_pylist()) == list(map(float, range(40)))


def token(folder: Path, subtask: int, batch: pa.RecordBatch, count: int = 0, run: str = "run") -> bytes:
    name = hidden.name_of(subtask, run, 1, "sink", count, ".parquet")
    made = localfiles.LocalSinkFolder(str(folder)).create(name).finish()
    return hidden.with_columns(made, [(field.name, str(field.type)) for field in batch.schema])


def test_a_later_publication_is_compared_with_earlier_ones(tmp_path: Path) -> None:
    """A subtask that had no records at first comes with another type in a later checkpoint."""
    sink = tr.sinks.Parquet(str(tmp_path))
    sink.publish([token(tmp_path, 0, WHOLE)])
    sink.publish([token(tmp_path, 1, WHOLE, 1)])
    with pytest.raises(
        ValueError, match=r"column 'x' is int64 in one file and double in the other .part-00000-.*part-00002-"
    ):
        sink.publish([token(tmp_path, 0, WHOLE, 2), token(tmp_path, 2, HALVES)])
    assert len(visible(tmp_path)) == 2


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (UNKNOWN, "column 'x' is int64 in one file and null in the other"),
        (pa.record_batch({"y": [1]}), "column 'x' is in one file and not in the other"),
        (pa.record_batch({"x": [1], "y": [1]}), "column 'y' is in one file and not in the other"),
    ],
)
def test_it_is_said_what_differs(tmp_path: Path, other: pa.RecordBatch, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Agreement().check([token(tmp_path, 0, WHOLE), token(tmp_path, 1, other)])


def test_another_order_of_columns_is_a_difference(tmp_path: Path) -> None:
    """A reader that goes by position would take one for the other."""
    one, other = pa.record_batch({"x": [1], "y": [1]}), pa.record_batch({"y": [1], "x": [1]})
    with pytest.raises(ValueError, match=r"\(x, y\) and \(y, x\)"):
        Agreement().check([token(tmp_path, 0, one), token(tmp_path, 1, other)])


def test_another_run_may_have_other_columns(tmp_path: Path) -> None:
    agreement = Agreement()
    agreement.check([token(tmp_path, 0, WHOLE)])
    agreement.check([token(tmp_path, 0, HALVES, run="next")])


# Restores.


def task(folder: Path, subtask: int, parallelism: int, parts: list[MetaPart]) -> SinkTask:
    env = tr.Environment(parallelism=1)
    env.from_collection([(1,)]).to_columns("x long").sink_to(tr.sinks.Parquet(str(folder)))
    node = next(node for node in env._graph.nodes if isinstance(node.operator, Sink))
    services = Services(random.Random, checkpointing=True)
    made = SinkTask(node, OperatorContext(node.name, node.uid, subtask, parallelism, 0, services))
    restore_schema(made, parts)
    made.restore(parts)
    made.open()
    return made


def cut(folder: Path, subtask: int, parallelism: int, batch: pa.RecordBatch | None) -> MetaPart:
    made = task(folder, subtask, parallelism, [])
    if batch is not None:
        made.process(Columns(batch, None), 0)
    assert made.one_schema is not None
    return MetaPart(subtask, parallelism, False, made.snapshot(1), made.one_schema.to_bytes())


@pytest.mark.parametrize(("subtask", "parallelism"), [(0, 1), (1, 2), (2, 3)])
def test_behind_a_restore_the_columns_are_those_of_before(tmp_path: Path, subtask: int, parallelism: int) -> None:
    """Files with whole numbers are visible, and the first batch behind the restore has halves; also in a subtask that had
    no records before, or was not there."""
    parts = [cut(tmp_path, 0, 2, WHOLE), cut(tmp_path, 1, 2, None)]
    restored = task(tmp_path, subtask, parallelism, parts)
    with pytest.raises(tr.UserCodeError, match=r"first batch, before the restart: \(x int64\).*'x'.*2.5 does not fit"):
        restored.process(Columns(HALVES, None), 0)
    restored.process(Columns(pa.record_batch({"x": [1.0, 2.0]}), None), 0)
    restored.snapshot(2)
    assert [hidden.files_in(one)[0].columns for _, one in restored.prepared_output(2)] == [[("x", "int64")]]
    restored.close()


def test_a_column_without_a_type_has_the_one_that_others_know(tmp_path: Path) -> None:
    parts = [cut(tmp_path, 0, 2, UNKNOWN), cut(tmp_path, 1, 2, WHOLE)]
    restored = task(tmp_path, 2, 3, parts)
    with pytest.raises(tr.UserCodeError, match="x int64"):
        restored.process(Columns(HALVES, None), 0)


@pytest.mark.parametrize(("subtask", "parallelism"), [(0, 3), (1, 2)])
def test_subtasks_with_several_types_are_no_schema(tmp_path: Path, subtask: int, parallelism: int) -> None:
    parts = [cut(tmp_path, 0, 2, WHOLE), cut(tmp_path, 1, 2, HALVES)]
    with pytest.raises(
        IncompatibleState, match=r"columns of different types, \(x int64\) and \(x double\).*before the sink"
    ):
        task(tmp_path, subtask, parallelism, parts)


# Columns that are null only at first.


@pytest.mark.parametrize("known", [WHOLE, pa.record_batch({"x": [[], [1.5]]})])
def test_a_column_that_is_null_only_at_first_is_written_with_the_type_that_it_gets(
    tmp_path: Path, known: pa.RecordBatch
) -> None:
    """The file was begun with the first batch, and what came later did not fit."""
    writing = task(tmp_path, 0, 1, [])
    unknown = UNKNOWN if known is WHOLE else pa.record_batch({"x": [[], None]})
    for batch in (unknown, unknown, known, unknown):
        writing.process(Columns(batch, None), 0)
    writing.snapshot(1)
    writing.sink.publish([one for _, one in writing.prepared_output(1)])
    [name] = visible(tmp_path)
    assert pq.read_schema(tmp_path / name).field("x").type == known.schema.field("x").type
    before, behind = [*unknown["x"].to_pylist() * 2, *known["x"].to_pylist()], unknown["x"].to_pylist()
    assert pq.read_table(tmp_path / name)["x"].to_pylist() == before + behind


def test_what_is_null_only_in_a_file_stays_so(tmp_path: Path) -> None:
    """At a checkpoint there is a file of it; behind a restore, too, though nobody knows that file any more."""
    writing = task(tmp_path, 0, 1, [])
    writing.process(Columns(UNKNOWN, None), 0)
    saved = writing.snapshot(1)
    assert writing.one_schema is not None
    parts = [MetaPart(0, 1, False, saved, writing.one_schema.to_bytes())]
    for one in (writing, task(tmp_path, 0, 1, parts), task(tmp_path, 1, 2, parts)):
        one.process(Columns(UNKNOWN, None), 0)
        with pytest.raises(tr.UserCodeError, match="column 'x' is declared null, and its values are of int64"):
            one.process(Columns(WHOLE, None), 0)
        one.close()


def test_nulls_are_not_held_back_without_end(tmp_path: Path) -> None:
    writing = task(tmp_path, 0, 1, [])
    writing.process(Columns(pa.record_batch({"x": pa.nulls(70_000)}), None), 0)
    with pytest.raises(tr.UserCodeError, match=r"held only null when its file was begun: give the sink a schema"):
        writing.process(Columns(WHOLE, None), 0)
    writing.close()
