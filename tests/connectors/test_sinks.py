"""Sinks: what is not finished is hidden, what is finished has a plain name, and publishing twice does no harm."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace as tr
from tailrace.connectors import hidden
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.elements.batches import Rows
from tailrace.errors import UserCodeError
from tailrace.graph.operators import Sink as SinkNode
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.sink import LARGEST_PREPARED, SinkTask


@dataclass
class Place:
    """Where a writer stands."""

    subtask: int = 0
    parallelism: int = 1
    job: str = "job"
    incarnation: int = 1
    run_id: str = "run"
    uid: str = "sink"
    attempt: int = 0


SCHEMA = pa.schema([("x", pa.int64()), ("name", pa.string())])
BATCH = pa.record_batch([[1, 2], ["a", "b"]], schema=SCHEMA)

FILES: dict[str, tuple[Any, Any]] = {
    "text": (lambda folder: tr.sinks.TextFiles(folder), [1, "two"]),
    "parquet": (lambda folder: tr.sinks.Parquet(folder, SCHEMA), BATCH),
    "parquet without a schema": (lambda folder: tr.sinks.Parquet(folder), BATCH),
    "collect": (lambda folder: bound(tr.sinks.Collect(), folder), [1, "two"]),
}


def bound(sink: Any, folder: str) -> Any:
    sink.bind(folder)
    return sink


def names(folder: Path) -> list[str]:
    """Without traces (`tests/connectors/test_publishing.py`)."""
    there = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in there if not name.endswith(hidden.TRACE))


def plain(folder: Path) -> list[str]:
    return [name for name in names(folder) if not name.startswith((".", "_"))]


# The life of a file.


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_hidden_until_it_is_published(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    sink = make(str(tmp_path / "out"))
    writer = sink.writer(Place())
    assert names(tmp_path / "out") == []
    writer.write(batch)
    assert plain(tmp_path / "out") == [] and len(names(tmp_path / "out")) == 1
    prepared = writer.prepare()
    assert plain(tmp_path / "out") == [] and len(names(tmp_path / "out")) == 1
    sink.publish([prepared])
    assert len(plain(tmp_path / "out")) == 1 == len(names(tmp_path / "out"))
    writer.close()
    assert len(plain(tmp_path / "out")) == 1


@pytest.mark.parametrize("kind", FILES)
def test_publishing_twice_does_no_harm(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    sink = make(str(tmp_path))
    writers = [sink.writer(Place(subtask=i, parallelism=3)) for i in range(3)]
    for writer in writers:
        writer.write(batch)
    prepared = [writer.prepare() for writer in writers]
    sink.publish(prepared[:2])  # and then a crash: whoever comes next publishes everything again
    sink.publish(prepared)
    sink.publish(prepared)
    assert len(plain(tmp_path)) == 3 == len(names(tmp_path))
    os.unlink(tmp_path / plain(tmp_path)[0])  # a reader has taken it
    sink.publish(prepared)
    assert len(plain(tmp_path)) == 2
    sink.settled(prepared)
    assert len(os.listdir(tmp_path)) == 2, "no trace is left"


@pytest.mark.parametrize("kind", FILES)
def test_what_was_not_prepared_is_given_up(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    writer = make(str(tmp_path)).writer(Place())
    writer.write(batch)
    writer.close()
    writer.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", FILES)
def test_what_was_prepared_waits_until_the_run_is_given_up(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    sink = make(str(tmp_path))
    for run in ("this", "another"):
        writer = sink.writer(Place(run_id=run))
        writer.write(batch)
        writer.prepare()
        writer.close()
    assert len(names(tmp_path)) == 2
    remove_unfinished(sink, "this")
    assert ["another" in name for name in names(tmp_path)] == [True]


@pytest.mark.parametrize("kind", FILES)
def test_where_there_is_no_record_there_is_no_file(kind: str, tmp_path: Path) -> None:
    sink = FILES[kind][0](str(tmp_path / "out"))
    writer = sink.writer(Place())
    assert writer.prepare() is None
    writer.close()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", FILES)
def test_sinks_subtasks_and_runs_never_take_each_others_names(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    places = [Place(), Place(subtask=1), Place(run_id="other"), Place(incarnation=2), Place(uid="another/sink#1")]
    for place in places:
        sink = make(str(tmp_path))
        writer = sink.writer(place)
        writer.write(batch)
        sink.publish([writer.prepare()])
    assert len(plain(tmp_path)) == len(places)


# Transactions.


@pytest.mark.parametrize("kind", FILES)
def test_after_each_prepare_a_new_file_begins(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    sink = make(str(tmp_path))
    writer = sink.writer(Place())
    prepared = []
    for _ in range(12):
        assert writer.prepare() is None  # nothing was written since
        writer.write(batch)
        prepared.append(writer.prepare())
    writer.write(batch)
    sink.publish(prepared[:3])
    assert len(plain(tmp_path)) == 3
    writer.close()
    assert len(names(tmp_path)) == 12, "what was prepared survives the writer, what was not does not"
    sink.publish(prepared)
    assert len(plain(tmp_path)) == 12 == len(names(tmp_path))


def test_results_of_many_transactions_stay_in_order(tmp_path: Path) -> None:
    sink = bound(tr.sinks.Collect(), str(tmp_path))
    written = []
    for incarnation in (1, 2, 10, 11):
        writer = sink.writer(Place(incarnation=incarnation))
        for i in range(12):
            writer.write([(incarnation, i)])
            written.append((incarnation, i))
            sink.publish([writer.prepare()])
    assert sink.result() == written


@pytest.mark.parametrize("kind", FILES)
def test_a_crash_between_two_renames_is_made_good_by_publishing_again(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    sink = make(str(tmp_path))
    prepared = []
    for subtask in range(3):
        writer = sink.writer(Place(subtask=subtask))
        writer.write(batch)
        prepared.append(writer.prepare())
        writer.close()
    for published in range(4):
        make(str(tmp_path)).publish(prepared[:published])  # whoever does it next knows nothing but the bytes
    before = {name: (tmp_path / name).read_bytes() for name in plain(tmp_path)}
    make(str(tmp_path)).publish(prepared)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before and len(before) == 3


@pytest.mark.parametrize("kind", FILES)
def test_a_restart_sweeps_what_earlier_attempts_left_and_nothing_else(kind: str, tmp_path: Path) -> None:
    make, batch = FILES[kind]
    (tmp_path / ".part-of-something-else.inprogress").write_text("mine")
    (tmp_path / ".part-00000-run-0001-zzzzzzzz-000000.txt.inprogress").write_text("mine")
    stays = [Place(run_id="other"), Place(incarnation=3), Place(uid="another"), Place(run_id="run-too")]
    goes = [Place(), Place(subtask=4), Place(incarnation=2), Place(run_id="before", incarnation=1)]
    for place in [*stays, *goes]:
        writer = make(str(tmp_path)).writer(place)
        writer.write(batch)
        writer.prepare()
        writer.write(batch)  # and the process is killed
    published = make(str(tmp_path)).writer(Place())
    published._count = 100
    published.write(batch)
    sink = make(str(tmp_path))
    sink.publish([published.prepare()])
    sink.recover(["run", "before"], 3, "sink")
    assert len(plain(tmp_path)) == 1
    assert len(names(tmp_path)) == 1 + 2 + 2 * len(stays)
    sink.recover(["run", "before"], 3, "sink")
    assert len(names(tmp_path)) == 1 + 2 + 2 * len(stays)


@pytest.mark.parametrize("kind", FILES)
def test_who_takes_a_lost_workers_place_sweeps_what_that_one_left_and_nothing_else(kind: str, tmp_path: Path) -> None:
    """The lost one may live on and write more: it has names of its own."""
    make, batch = FILES[kind]
    stays = [Place(run_id="other"), Place(incarnation=3), Place(uid="another"), Place(subtask=1), Place(attempt=3)]
    goes = [Place(), Place(attempt=1)]
    for place in [*stays, *goes]:
        writer = make(str(tmp_path)).writer(place)
        writer.write(batch)
        writer.prepare()
        writer.write(batch)  # and the process is killed
    before = names(tmp_path)
    writer = make(str(tmp_path)).writer(Place(attempt=2))
    writer.write(batch)
    writer.took_over()
    assert len(before) == 2 * 7 and len(set(names(tmp_path)) & set(before)) == 2 * len(stays)
    prepared = writer.prepare()
    assert prepared is not None
    make(str(tmp_path)).publish([prepared])
    assert len(plain(tmp_path)) == 1


def test_traces_of_what_a_lost_worker_has_published_stay(tmp_path: Path) -> None:
    """A start from an older checkpoint may request it once more."""
    sink = tr.sinks.TextFiles(str(tmp_path))
    writer = sink.writer(Place())
    writer.write([1])
    prepared = writer.prepare()
    assert prepared is not None
    sink.publish([prepared])
    (there,) = plain(tmp_path)
    (tmp_path / there).unlink()
    sink.writer(Place(attempt=1)).took_over()
    tr.sinks.TextFiles(str(tmp_path)).publish([prepared])
    assert plain(tmp_path) == []


def test_at_the_end_of_a_run_what_a_kept_checkpoint_has_prepared_stays(tmp_path: Path) -> None:
    sink = tr.sinks.TextFiles(str(tmp_path))
    writer = sink.writer(Place())
    writer.write([1])
    kept = writer.prepare()
    assert kept is not None
    writer.write([2])
    writer.prepare()
    remove_unfinished(sink, "run", "another")
    assert len(names(tmp_path)) == 2
    remove_unfinished(sink, "run", "sink", [kept])
    assert len(names(tmp_path)) == 1
    sink.publish([kept])
    assert lines_of(tmp_path) == ["1"]


class Noted(tr.Sink):
    """Notes the calls of its writer."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
        sink = self

        class Writer(tr.SinkWriter):
            waiting: list[Any] = []

            def write(self, batch: list[Any]) -> None:
                self.waiting = [*self.waiting, *batch]

            def prepare(self) -> bytes | None:
                taken, self.waiting = self.waiting, []
                sink.told.append(("prepare", taken))
                return repr(taken).encode() if taken else None

        return Writer()


def sink_task(sink: tr.Sink, checkpointing: bool) -> SinkTask:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(sink, name="the sink")
    [node] = [n for n in env._plan(env._pending()).graph.nodes if isinstance(n.operator, SinkNode)]
    services = Services(random.Random, checkpointing=checkpointing)
    task = SinkTask(node, OperatorContext(node.name, node.uid, 0, 1, 0, services))
    task.open()
    return task


def prepared(task: SinkTask, checkpoint: int) -> list[bytes]:
    return [data for _, data in task.prepared_output(checkpoint)]


def test_what_was_prepared_is_in_every_checkpoint_until_one_is_complete() -> None:
    task = sink_task(Noted(), checkpointing=True)
    task.process(Rows([1]), 0)
    assert task.snapshot(1) is None
    task.process(Rows([2]), 0)
    task.snapshot(2)
    assert prepared(task, 1) == [b"[1]"] and prepared(task, 2) == [b"[1]", b"[2]"]
    task.abort(1)
    task.snapshot(3)  # nothing was written since
    assert prepared(task, 2) == prepared(task, 3) == [b"[1]", b"[2]"]
    task.process(Rows([3]), 0)
    task.snapshot(4)
    task.confirm(3)
    assert prepared(task, 4) == [b"[3]"]
    task.confirm(2)  # late
    assert prepared(task, 4) == [b"[3]"]
    task.confirm(4)
    task.snapshot(5)
    assert prepared(task, 5) == [] == task.final_prepared


def test_what_was_prepared_says_which_checkpoint_had_it_first() -> None:
    task = sink_task(Noted(), checkpointing=True)
    for n in (1, 2):
        task.process(Rows([n]), 0)
        task.snapshot(n)
    assert task.prepared_output(2) == [(1, b"[1]"), (2, b"[2]")]


def test_the_last_checkpoint_has_what_was_written_to_the_end() -> None:
    sink = Noted()
    task = sink_task(sink, checkpointing=True)
    task.process(Rows([1]), 0)
    task.finish()
    assert task.final_prepared == []
    task.snapshot(8)
    assert prepared(task, 8) == [b"[1]"]
    task.abort(8)
    task.snapshot(9)
    assert prepared(task, 9) == [b"[1]"]
    assert sink.told == [("prepare", [1])], "nothing is asked of a writer that has ended"


def test_more_than_a_message_holds_is_refused_where_it_is_prepared_and_there_are_no_checkpoints() -> None:
    """Output without checkpoints would travel to the publisher in a message. With them it goes into a file, however much it
    is."""

    class Much(tr.SinkWriter):
        def write(self, batch: Any) -> None: ...
        def prepare(self) -> bytes:
            return bytes(LARGEST_PREPARED + 1)

    class Heap(Noted):
        def writer(self, ctx: Any) -> tr.SinkWriter:
            return Much()

    task = sink_task(Heap(), checkpointing=False)
    with pytest.raises(UserCodeError, match=r"prepared 32 MiB at once.*prepare their name, or give.*checkpoint="):
        task.finish()
    task = sink_task(Heap(), checkpointing=True)
    task.snapshot(1)
    assert len(prepared(task, 1)[0]) > LARGEST_PREPARED


def test_without_checkpoints_all_is_prepared_at_the_end() -> None:
    sink = Noted()
    task = sink_task(sink, checkpointing=False)
    task.process(Rows([1]), 0)
    task.process(Rows([2]), 0)
    task.finish()
    assert task.final_prepared == [b"[1, 2]"] and sink.told == [("prepare", [1, 2])]


def test_any_sequence_of_cuts_confirmations_and_aborts_publishes_each_record(tmp_path: Path) -> None:
    """Whatever is confirmed is published; at the end nothing is missing and nothing is there twice."""
    for seed in range(60):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        sink = tr.sinks.TextFiles(str(folder))
        task = sink_task(sink, checkpointing=True)
        written, checkpoint, pending = 0, 0, []
        for _ in range(60):
            what = rng.choice(["write", "write", "cut", "complete", "abort"])
            if what == "write":
                task.process(Rows([written]), 0)
                written += 1
            elif what == "cut":
                checkpoint += 1
                task.snapshot(checkpoint)
                pending.append((checkpoint, prepared(task, checkpoint)))
            elif pending and what == "complete":
                n, ready = pending.pop(rng.randrange(len(pending)))
                sink.publish(ready)
                task.confirm(n)
            elif pending:
                task.abort(pending.pop(rng.randrange(len(pending)))[0])
        task.finish()
        task.snapshot(checkpoint + 1)
        sink.publish(prepared(task, checkpoint + 1))
        task.close()
        assert sorted(map(int, lines_of(folder))) == list(range(written)), seed
        assert names(folder) == plain(folder)


# Text.


def lines_of(folder: Path) -> list[str]:
    return [line for name in plain(folder) for line in (folder / name).read_text(encoding="utf-8").split("\n")[:-1]]


def test_text_is_one_line_per_record(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2)
    env.from_collection(["a", "", "é\u2028", 5, None, (1, "x")]).sink_to(tr.sinks.TextFiles(str(tmp_path)))
    tr.testing.run(env)
    assert lines_of(tmp_path) == ["a", "", "é\u2028", "5", "None", "(1, 'x')"]
    again = tr.Environment(parallelism=1)
    out = again.from_source(tr.sources.TextFiles(str(tmp_path))).sink_to(tr.sinks.Collect())
    tr.testing.run(again)
    assert out.result() == ["a", "", "é\u2028", "5", "None", "(1, 'x')"]


@pytest.mark.parametrize("record", ["two\nlines", "\n", "ends with a return\r"])
def test_text_that_could_not_be_read_back_is_refused_with_its_record(record: str, tmp_path: Path) -> None:
    env = tr.Environment(parallelism=1)
    env.from_collection(["fine", record]).sink_to(tr.sinks.TextFiles(str(tmp_path)), name="lines")
    with pytest.raises(tr.JobFailed, match=r"operator 'lines'.*the record contains a line break") as caught:
        tr.testing.run(env)
    assert caught.value.record == repr(record)
    assert names(tmp_path) == []


def test_two_jobs_may_write_into_one_folder(tmp_path: Path) -> None:
    for values in ([1, 2], [3, 4]):
        env = tr.Environment(parallelism=2)
        env.from_collection(values).sink_to(tr.sinks.TextFiles(str(tmp_path)))
        tr.testing.run(env)
    assert sorted(lines_of(tmp_path)) == ["1", "2", "3", "4"]


def test_a_path_is_meant_from_where_the_dataflow_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.TextFiles("out"))
    monkeypatch.chdir(os.sep)
    tr.testing.run(env)
    assert lines_of(tmp_path / "out") == ["1"]


# Parquet.


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for name in plain(folder) for row in pq.read_table(folder / name).to_pylist()]


def test_parquet_takes_rows_with_a_schema(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2)
    rows = env.from_collection([(1, "a"), {"name": "b", "x": 2}, (None, None)])
    rows.sink_to(tr.sinks.Parquet(str(tmp_path), SCHEMA))
    tr.testing.run(env)
    assert rows_of(tmp_path) == [{"x": 1, "name": "a"}, {"x": 2, "name": "b"}, {"x": None, "name": None}]


def test_parquet_takes_columns_as_they_come_or_casts_them(tmp_path: Path) -> None:
    narrow = pa.schema([("name", pa.string()), ("x", pa.int8())])
    env = tr.Environment(parallelism=1)
    columns = env.from_collection([(1, "a")]).to_columns(SCHEMA)
    columns.sink_to(tr.sinks.Parquet(str(tmp_path / "as they come")))
    columns.sink_to(tr.sinks.Parquet(str(tmp_path / "cast"), narrow))
    tr.testing.run(env)
    assert rows_of(tmp_path / "as they come") == rows_of(tmp_path / "cast") == [{"x": 1, "name": "a"}]
    assert pq.read_schema(tmp_path / "cast" / plain(tmp_path / "cast")[0]) == narrow


def test_parquet_that_cannot_be_cast_is_the_users_error(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=1)
    columns = env.from_collection([(1000, "a")]).to_columns(SCHEMA)
    small = pa.schema([("x", pa.int8()), ("name", pa.string())])
    columns.sink_to(tr.sinks.Parquet(str(tmp_path), small), name="small")
    with pytest.raises(tr.JobFailed, match=r"operator 'small'.*column 'x' is declared int8, and 1000 does not fit"):
        tr.testing.run(env)
    assert names(tmp_path) == []


def test_many_small_batches_become_large_row_groups(tmp_path: Path) -> None:
    sink = tr.sinks.Parquet(str(tmp_path))
    writer = sink.writer(Place())
    for _ in range(40_000):
        writer.write(BATCH)
    sink.publish([writer.prepare()])
    file = pq.ParquetFile(tmp_path / plain(tmp_path)[0])
    assert (file.metadata.num_rows, file.num_row_groups) == (80_000, 2)


# Results and callbacks.


def test_results_come_in_the_order_of_subtasks_and_in_order_within_each() -> None:
    env = tr.Environment(parallelism=12)
    out = env.from_source(tr.sources.Sequence(0, 48)).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [subtask + 12 * i for subtask in range(12) for i in range(4)]


def test_a_result_may_hold_anything_that_can_be_pickled() -> None:
    records = [None, 1, "a", (1, [2, {"x": 3}]), 1j, {4, 5}, b"bytes"]
    env = tr.Environment(parallelism=1)
    out = env.from_collection(records).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == records


def test_a_callback_is_called_for_each_record() -> None:
    seen: list[int] = []
    env = tr.Environment(parallelism=1)
    env.from_collection([1, 2, 3]).sink_to(tr.sinks.Callback(seen.append))
    tr.testing.run(env)
    assert seen == [1, 2, 3]
    with pytest.raises(tr.ConfigError, match="Callback takes a function, not 5"):
        tr.sinks.Callback(5)


# A user's own sink.


def test_a_sink_is_published_once_all_of_the_job_has_ended() -> None:
    found: list[Any] = []

    class Writer(tr.SinkWriter):
        def __init__(self, subtask: int) -> None:
            self.subtask, self.records = subtask, 0

        def write(self, batch: list[Any]) -> None:
            assert batch, "an empty batch is nothing to write"
            self.records += len(batch)

        def prepare(self) -> bytes | None:
            found.append(("prepare", self.subtask))
            return b"%d: %d" % (self.subtask, self.records) if self.records else None

        def close(self) -> None:
            found.append(("close", self.subtask))

    class Sink(tr.Sink):
        def writer(self, ctx: tr.SinkContext) -> tr.SinkWriter:
            assert (ctx.job, ctx.parallelism, ctx.incarnation) == ("test", 3, 1)
            return Writer(ctx.subtask)

        def publish(self, prepared: Sequence[bytes]) -> None:
            found.append(("publish", sorted(prepared)))

    env = tr.Environment(parallelism=3)
    env.from_collection([1, 2]).filter(lambda x: True).sink_to(Sink())
    tr.testing.run(env)
    published = [at for at, one in enumerate(found) if one[0] == "publish"]
    assert sorted(token for at in published for token in found[at][1]) == [b"1: 1", b"2: 1"]
    assert [("prepare", i) for i in range(3)] == sorted(one for one in found[: published[0]] if one[0] == "prepare")
    assert [("close", i) for i in range(3)] == sorted(one for one in found if one[0] == "close")
    assert len(found) == 6 + len(published)
