"""Checkpoints made by hand: what is taken over goes on as it was, and what is written anew is what a job finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.state.backend import MetaPart
from tailrace.state.format import TableInfo
from tailrace.state.manifest import StateFile, savepoint_of
from tailrace.state.paths import SAVEPOINT, published_mark
from tailrace.statedata.columns import StateColumns
from tailrace.statedata.newcheckpoint import CheckpointPlan, check_alone, complete, give_up, new_folder
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.writing import (
    ENTRIES,
    Conversion,
    KeptTables,
    NewTable,
    OperatorJob,
    changed_entries,
    changed_pairs,
    entry_batch,
    marker_rows,
    new_copy,
    write_parts,
)
from tailrace.storage.checkpoint_lookup import resolve
from tailrace.storage.opening import open_folder
from tailrace.storage.origins import origin_at
from tailrace.storage.reading import verify
from tailrace.storage.savepoints import copy_savepoint
from tailrace.storage.store import Store
from tailrace.task.operators.broadcasts.waiting import Waiting, write_waiting
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles

COUNT = NewTable(TableInfo("count", "value", "pickle", "int"), int)
LAST = NewTable(TableInfo("last", "list", "pickle", "int"), int)


class Count(tr.KeyedProcessFunction):
    """Pairs of the key and how many there were of it."""

    count = tr.ValueState(int, default=0)
    last = tr.ListState(int)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        self.last.update([value])
        yield ctx.key, self.count.value


def counting(sink: Any, end: int = 6_000, uid: str = "counts", keys: int = 50) -> Callable[[tr.Environment], None]:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, end), uid="numbers")
        counted = numbers.rebalance().key_by(lambda n: n % keys).process(Count(), uid=uid)
        counted.sink_to(sink, uid="out")

    return build


def on_disk(stored: StoredCheckpoint, folder: Path) -> str:
    """The folder of a checkpoint in memory, as files."""
    files: Any = stored.store.folder
    for name, data in files.contents.items():
        path = folder / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(data))
    return str(folder / "job")


def started(path: str, build: Callable[[tr.Environment], None], parallelism: int = 2) -> None:
    """Runs a simulated job from a checkpoint on disk to its end."""
    stored = StoredCheckpoint.open(path)
    files = MemoryFiles(url=stored.store.url)
    for entry in stored.store.folder.walk():
        files.contents[entry.name] = stored.store.folder.read(entry.name)
    config = tr.CheckpointConfig("memory", interval=0.002)
    env = tr.Environment(parallelism=parallelism, max_parallelism=16, checkpoint=config)
    build(env)
    job = prepared_simulation(env, name="job", seed=2, origin=(files, stored.name), run_id="second")
    job.run()
    assert job.coordinator.status.name == "FINISHED", job.coordinator.status


def written(
    folder: Path, job: OperatorJob, rows: list[pa.RecordBatch], base: StoredCheckpoint | None = None, dropped: Any = ()
) -> str:
    """A checkpoint in which one operator is written anew."""
    store = new_folder(job.folder, "job")
    markers = pa.RecordBatch.from_pylist(
        [dict(zip(ENTRIES.names, row, strict=True)) for row in marker_rows(job.parts)], ENTRIES
    )
    table = pa.Table.from_batches([*rows, markers], ENTRIES).sort_by(
        [(name, "ascending") for name in ENTRIES.names[:3]]
    )
    found = [row for batch in write_parts(table.to_batches(max_chunksize=7), job, 9) for row in batch.to_pylist()]
    files = [StateFile(row["slot"], row["name"], row["size"]) for row in found]
    return complete(
        store, CheckpointPlan("job", job.max_parallelism, [job], base, dropped), files, 1_000_000, "by-hand"
    )


def job_in(folder: Path, **more: Any) -> OperatorJob:
    return OperatorJob(str(folder / "new"), None, "job", 16, "counts", "counts", **({"tables": (COUNT,)} | more))


def entries(path: str, state: str, uid: str = "counts") -> dict[Any, Any]:
    found = StateColumns(StoredCheckpoint.open(path), uid, state)
    rows = [row for part in found.parts() for batch in found.batches(part, found.schema()) for row in batch.to_pylist()]
    assert len({str(row["key"]) for row in rows}) == len(rows)
    return {row["key"]: row["value"] for row in rows}


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_a_copy_goes_on_as_the_checkpoint_would(
    checkpoint_of: Any, tmp_path: Path, mode: str, parallelism: int
) -> None:
    """The copy goes on where state is in several files, too, and records were in flight."""
    first, second = tr.sinks.Collect(), tr.sinks.Collect()
    stored = checkpoint_of(counting(first), number=3, small=0, mode=mode)
    base = StoredCheckpoint.open(on_disk(stored, tmp_path))
    store = new_folder(str(tmp_path / "copy"), "job")
    path = complete(store, CheckpointPlan("job", 16, base=base), [], 1_000_000, "by-hand")
    assert entries(path, "count") == entries(base.url, "count")
    copy = StoredCheckpoint.open(path).manifest
    assert copy.older == [] and copy.in_flight == base.manifest.in_flight
    (tmp_path / "job").rename(tmp_path / "away")
    started(path, counting(second), parallelism)
    last = {key: max(n for one, n in second.result() if one == key) for key in range(50)}
    assert last == dict.fromkeys(range(50), 120)


def test_the_checkpoints_of_a_job_that_begins_with_it_hold_all_that_was_written_by_hand(
    checkpoint_of: Any, tmp_path: Path
) -> None:
    """What was written is not needed any more then."""
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=3, small=0)
    base = on_disk(stored, tmp_path)
    kept = KeptTables(base, None, tuple(one for one in stored.operator("counts").tables if one.name != "last"))
    job = job_in(tmp_path, tables=(LAST,), parts=3, first_slot=1, kept=kept)
    rows = entry_batch(job, 0, [(key, [-key]) for key in range(1_000, 3_000)])
    path = written(tmp_path, job, [rows], StoredCheckpoint.open(base))
    store = StoredCheckpoint.open(path).store
    files, written_files = MemoryFiles(url="memory:mine"), MemoryFiles(url=store.url)
    for entry in store.folder.walk():
        written_files.contents[entry.name] = store.folder.read(entry.name)
    config = tr.CheckpointConfig("memory", interval=0.002, retain="always")
    env = tr.Environment(parallelism=2, max_parallelism=16, checkpoint=config)
    counting(tr.sinks.Collect())(env)
    options = {"origin": (written_files, SAVEPOINT), "run_id": "second", "small": 0}
    again = prepared_simulation(env, name="job", seed=3, files=files, **options)
    again.run()
    assert again.coordinator.status.name == "FINISHED", again.coordinator.status
    last = Store("memory", "job", folder=files)
    newest = last.latest()
    assert newest is not None
    assert newest[1].checkpoint > 1, "the job took one checkpoint only: this shows less"
    found = StoredCheckpoint(last, newest[0])
    counts = {key: n for one in found.entries("counts", {"count"}, (0, 16)) for key, n in one.entries.items()}
    lasts = {key: n for one in found.entries("counts", {"last"}, (0, 16)) for key, n in one.entries.items()}
    assert counts == dict.fromkeys(range(50), 120)
    assert {key: n for key, n in lasts.items() if key >= 1_000} == {key: [-key] for key in range(1_000, 3_000)}
    verify(last, newest[1])


def test_a_job_finds_the_entries_that_were_written(tmp_path: Path) -> None:
    job = job_in(tmp_path, parts=3)
    path = written(tmp_path, job, [entry_batch(job, 0, [(key, 1_000 + key) for key in range(40)])])
    assert entries(path, "count") == {key: 1_000 + key for key in range(40)}
    sink = tr.sinks.Collect()
    started(path, counting(sink, 500), 3)
    assert Counter(sink.result()) == Counter(
        (key, (1_000 + key if key < 40 else 0) + n) for key in range(50) for n in range(1, 11)
    )


def test_a_state_is_replaced_and_the_others_stay(checkpoint_of: Any, tmp_path: Path) -> None:
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=3, small=0)
    base = on_disk(stored, tmp_path)
    record = stored.operator("counts")
    kept = tuple(table for table in record.tables if table.name != "count")
    job = job_in(tmp_path, parts=2, first_slot=1, kept=KeptTables(base, None, kept))
    path = written(tmp_path, job, [entry_batch(job, 0, [(7, 70)])], StoredCheckpoint.open(base))
    assert entries(path, "count") == {7: 70}
    assert entries(path, "last") == entries(base, "last")
    started(path, counting(tr.sinks.Collect()))


def test_a_state_is_changed_entry_by_entry(checkpoint_of: Any, tmp_path: Path) -> None:
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=2)
    base = on_disk(stored, tmp_path)
    tables = stored.operator("counts").tables
    job = job_in(
        tmp_path, first_slot=1, kept=KeptTables(base, None, tuple(one for one in tables if one.name != "count"))
    )
    source = KeptTables(base, None, tuple(one for one in tables if one.name == "count"))

    def change(key: int, value: int) -> list[tuple[int, int]]:
        return [(key + 100, value * 2)] if key % 2 else []

    path = written(tmp_path, job, [*changed_entries(job, 0, source, (0, 16), change)], StoredCheckpoint.open(base))
    assert entries(path, "count") == {key + 100: 2 * n for key, n in entries(base, "count").items() if key % 2}
    with pytest.raises(
        tr.UserCodeError, match="state 'count' of operator 'counts': the function that changes it raised"
    ):
        list(changed_entries(job, 0, source, (0, 16), lambda key, value: [key // 0]))


def test_an_operator_is_dropped_with_all_that_was_on_its_way_to_it(checkpoint_of: Any, tmp_path: Path) -> None:
    for number in range(1, 6):
        stored = checkpoint_of(counting(tr.sinks.Collect()), number=number, mode="unaligned")
        if stored.manifest.in_flight.get("counts"):
            break
    assert stored.manifest.in_flight.get("counts"), "nothing was in flight: this shows nothing"
    base = StoredCheckpoint.open(on_disk(stored, tmp_path))
    store = new_folder(str(tmp_path / "new"), "job")
    path = complete(store, CheckpointPlan("job", 16, base=base, dropped={"counts"}), [], 0, "by-hand")
    copy = StoredCheckpoint.open(path)
    assert "counts" not in copy.manifest.in_flight and "counts" not in {one.uid for one in copy.manifest.operators}
    assert not [log for index in copy.indexes.values() for log in index.logs if log.channel.target == "counts"]
    started(path, counting(tr.sinks.Collect(), uid="others"))


def convert(job: OperatorJob, keys: list[Any], values: list[Any], **how: Any) -> list[pa.RecordBatch]:
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"])
    return [Conversion(job, 0, **how).batch(batch)]


def test_rows_become_entries(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    rows = convert(job, [{"_1": "a", "_2": 1}, {"_1": "b", "_2": 2}], ["5", "6"], value=int)
    stored = StoredCheckpoint.open(written(tmp_path, job, rows))
    found = {key: value for one in stored.entries("counts", {"count"}, (0, 16)) for key, value in one.entries.items()}
    assert found == {("a", 1): 5, ("b", 2): 6}


@pytest.mark.parametrize(
    ("keys", "values", "how", "message"),
    [
        ([1, 1], [5, 6], {}, "key 1 is there twice; a key has one value: group the rows by key first"),
        ([1], ["a"], {}, "the value 'a' of key 1 is of type str, and int is declared: cast it, or give value="),
        ([1], pa.array([None], pa.int64()), {}, "the value None of key 1 is None: leave the row out"),
        ([1], [5], {"value": lambda value: value // 0}, "the function for its values raised ZeroDivisionError"),
        ([[1]], [5], {}, "state 'count' of operator 'counts': .* of type list cannot be a key"),
    ],
)
def test_what_is_no_entry_is_refused(tmp_path: Path, keys: Any, values: Any, how: Any, message: str) -> None:
    job = job_in(tmp_path)
    with pytest.raises(tr.TailraceError, match=message):
        written(tmp_path, job, convert(job, keys, values, **how))


@pytest.mark.parametrize(
    ("kind", "type_", "value", "message"),
    [
        ("list", int, [1, "a"], "holds 'a' of type str, and int is declared: cast it"),
        ("list", int, [1, None], "holds None of type NoneType, and int is declared"),
        ("map", (str, float), [("a", 1.5), ("b", None)], "holds None of type NoneType, and str, float is declared"),
        ("map", (int, object), [("a", 1)], "holds 'a' of type str, and int, object is declared"),
    ],
)
def test_items_of_another_type_than_the_declared_one_are_refused(
    tmp_path: Path, kind: str, type_: Any, value: Any, message: str
) -> None:
    """A job would go on with them, and give results that no run of it can have."""
    found = ", ".join(one.__name__ for one in (type_ if isinstance(type_, tuple) else (type_,)))
    job = job_in(tmp_path, tables=(NewTable(TableInfo("items", kind, "pickle", found), type_),))
    made = dict if kind == "map" else list
    with pytest.raises(tr.IncompatibleState, match=message):
        convert(job, [1], [repr(value)], value=lambda text: made(eval(text)))


@pytest.mark.parametrize(
    ("state", "value", "message"),
    [
        ("count", None, "is None: leave the row out"),
        ("count", "a", "is of type str, and int is declared"),
        ("last", (1,), "is no list, and the state is of kind 'list'"),
        ("last", ["a"], "holds 'a' of type str, and int is declared"),
    ],
)
def test_what_a_change_gives_is_looked_at_as_what_is_put(
    checkpoint_of: Any, tmp_path: Path, state: str, value: Any, message: str
) -> None:
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=2)
    source = KeptTables(on_disk(stored, tmp_path), None, (stored.table("counts", state),))
    job = job_in(tmp_path, tables=(NewTable(stored.table("counts", state)),))
    with pytest.raises(tr.IncompatibleState, match=f"state '{state}' of operator 'counts': the value .* {message}"):
        list(changed_entries(job, 0, source, (0, 16), lambda key, _: [(key, value)]))


def test_a_value_that_never_fitted_its_declaration_goes_on(checkpoint_of: Any, tmp_path: Path) -> None:
    """A job does not check what it holds against what is declared, so a change may find such a thing, and leave it."""
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=2)
    count = stored.table("counts", "count")
    halves = job_in(tmp_path / "halves", tables=(NewTable(msgspec.structs.replace(count, type="float"), float),))
    source = KeptTables(on_disk(stored, tmp_path), None, (count,))
    half = written(tmp_path, halves, [*changed_entries(halves, 0, source, (0, 16), lambda key, n: [(key, n / 2)])])
    job = job_in(tmp_path, tables=(NewTable(count),))
    sloppy = KeptTables(half, None, (count,))
    assert list(changed_entries(job, 0, sloppy, (0, 16), lambda key, value: [(key, value)]))


def averaging(env: tr.Environment) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 6_000), uid="numbers").map(lambda n: {"k": n % 50, "n": n})
    keyed = numbers.key_by(lambda row: row["k"])
    keyed.aggregate(n=tr.Count(), mean=tr.Mean("n"), uid="counts").sink_to(tr.sinks.Collect(), uid="out")


@pytest.mark.parametrize(
    "change", [lambda value: 5, lambda value: value[1:], lambda value: type(value)([*value[:1], "x", *value[2:]])]
)
def test_the_state_of_an_aggregate_keeps_its_parts(change: Any, checkpoint_of: Any, tmp_path: Path) -> None:
    """A job that began from others failed inside of Tailrace."""
    stored = checkpoint_of(averaging, number=2)
    info = stored.table("counts", "aggregate")
    source, job = KeptTables(on_disk(stored, tmp_path), None, (info,)), job_in(tmp_path, tables=(NewTable(info),))
    with pytest.raises(tr.IncompatibleState, match=r"the value .* of key .* is made of other parts than it was"):
        list(changed_entries(job, 0, source, (0, 16), lambda key, value: [(key, change(value))]))


def doubled(key: int, value: Any) -> list[Any]:
    return [(key + 1, type(value)([*value[:1], value[1] * 2, *value[2:]]))]


def test_the_state_of_an_aggregate_gets_other_numbers(checkpoint_of: Any, tmp_path: Path) -> None:
    stored = checkpoint_of(averaging, number=2)
    info = stored.table("counts", "aggregate")
    source, job = KeptTables(on_disk(stored, tmp_path), None, (info,)), job_in(tmp_path, tables=(NewTable(info),))
    assert list(changed_entries(job, 0, source, (0, 16), doubled))


def test_what_is_written_is_a_savepoint_as_a_job_takes_it(checkpoint_of: Any, tmp_path: Path) -> None:
    """One folder with one kind of manifest, which does not name its place; a job's savepoint is read and copied too."""
    base = StoredCheckpoint.open(on_disk(checkpoint_of(counting(tr.sinks.Collect()), number=3, small=0), tmp_path))
    folder = new_folder(str(tmp_path / "new"), "job", base=base)
    path = complete(folder, CheckpointPlan("job", 16, base=base), [], 0, "by-hand")
    assert path == str(tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "moved")
    moved = StoredCheckpoint.open(str(tmp_path / "moved"))
    assert moved.name == SAVEPOINT and moved.manifest.kind == "savepoint" and moved.manifest.root == ""
    there = {str(one.relative_to(tmp_path / "moved")) for one in (tmp_path / "moved").rglob("*") if one.is_file()}
    assert there == {SAVEPOINT, *(file.name for file in moved.manifest.files)}
    taken = msgspec.structs.replace(savepoint_of(moved.manifest), run_id="a job's")
    copy_savepoint(moved.store.folder, open_folder(str(tmp_path / "taken")), taken)
    plan = CheckpointPlan("job", 16, base=StoredCheckpoint.open(str(tmp_path / "taken")))
    again = StoredCheckpoint.open(complete(new_folder(str(tmp_path / "again"), "job"), plan, [], 0, "by-hand"))
    for state in ("count", "last"):
        assert entries(again.url, state) == entries(str(tmp_path / "taken"), state) == entries(base.url, state)


def test_a_source_that_reads_files_of_its_job_is_not_taken_over(checkpoint_of: Any, tmp_path: Path) -> None:
    """The rows of a DataFrame are in the job's own folder, and go with it: what is written must stand alone."""
    rows = tmp_path / "job" / "1" / "inputs" / "rows.txt"
    rows.parent.mkdir(parents=True)
    rows.write_text("".join(f"{i}\n" for i in range(6_000)))

    def build(env: tr.Environment) -> None:
        lines = env.from_source(tr.sources.TextFiles(str(rows)), uid="rows")
        lines.key_by(lambda line: line[:1]).process(Count(), uid="counts").sink_to(tr.sinks.Collect(), uid="out")

    base = StoredCheckpoint.open(on_disk(checkpoint_of(build, number=1), tmp_path))
    with pytest.raises(tr.ConfigError, match=r"source 'rows' of .* reads files in the folder of its job's checkpoints"):
        check_alone(base)
    check_alone(base, dropped={"rows"})
    other = on_disk(checkpoint_of(counting(tr.sinks.Collect()), number=1), tmp_path / "other")
    check_alone(StoredCheckpoint.open(other))


def test_output_goes_along_only_where_it_may_not_be_visible(checkpoint_of: Any, tmp_path: Path) -> None:
    """A start publishes what no job has marked as published, and of a job's savepoint nothing."""
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=3)
    base = StoredCheckpoint.open(on_disk(stored, tmp_path))
    assert base.manifest.prepared, "nothing was prepared: this shows nothing"
    base.store.folder.delete([published_mark(base.name)])
    first = complete(new_folder(str(tmp_path / "first"), "job"), CheckpointPlan("job", 16, base=base), [], 0, "by-hand")
    taken = origin_at(*resolve(first))
    assert len(taken.manifest.prepared) == len(base.manifest.prepared) and not taken.marked()
    base.store.mark_published(base.name)
    second = complete(
        new_folder(str(tmp_path / "second"), "job"), CheckpointPlan("job", 16, base=base), [], 0, "by-hand"
    )
    taken = origin_at(*resolve(second))
    assert taken.manifest.prepared == [] and taken.marked()


def test_a_folder_that_is_taken_is_refused_and_one_that_was_given_up_is_empty(
    checkpoint_of: Any, tmp_path: Path
) -> None:
    store = new_folder(str(tmp_path / "new"), "job")
    with pytest.raises(
        tr.ConfigError, match="somebody writes a savepoint there, or was killed at it; give this one an"
    ):
        new_folder(str(tmp_path / "new"), "job")
    give_up(store)
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with pytest.raises(tr.ConfigError, match=r"is not empty \(it holds notes.txt\)"):
        new_folder(str(tmp_path / "new"), "job")
    base = StoredCheckpoint.open(on_disk(checkpoint_of(counting(tr.sinks.Collect()), number=2), tmp_path))
    with pytest.raises(tr.ConfigError, match="is in the folder of the job's checkpoints, which it cleans up"):
        new_folder(str(tmp_path / "job" / "changed"), "job", base=base)


def test_files_that_the_driver_does_not_see_are_refused(tmp_path: Path) -> None:
    store: Store = new_folder(str(tmp_path / "new"), "job")
    with pytest.raises(tr.ConfigError, match="they do not share this folder"):
        complete(store, CheckpointPlan("job", 16), [StateFile(0, "1/chk-1/w0-0.state", 10)], 0, "by-hand")


class Named(tr.BroadcastProcessFunction):
    """The names of numbers, which a stream of names gives."""

    names = tr.BroadcastState(int, str)

    def process(self, value: int, ctx: Any) -> Any:
        yield self.names.get(value, "?")

    def process_broadcast(self, value: tuple[int, str], ctx: Any) -> None:
        self.names[value[0]] = value[1]


NAMES = NewTable(TableInfo("names", "broadcast", "pickle", "int, str"), (int, str))


def naming(sink: Any, new: list[tuple[int, str]], ordered: bool) -> Callable[[tr.Environment], None]:
    def build(env: tr.Environment) -> None:
        names = env.from_collection(new, uid="new").assign_timestamps(lambda name: name[0])
        numbers = env.from_source(tr.sources.Sequence(0, 5), uid="numbers").assign_timestamps(lambda n: n + 100)
        keyed = numbers.rebalance().key_by(lambda n: n)
        found = keyed.connect(names.broadcast()).process(Named(), ordered=ordered, uid="named")
        found.sink_to(sink, uid="out")

    return build


def naming_job(folder: Path, **more: Any) -> OperatorJob:
    return OperatorJob(str(folder / "new"), None, "job", 16, "named", "named", (), **more)


def names_of(path: str) -> dict[Any, Any]:
    stored = StoredCheckpoint.open(path)
    return {key: name for one in stored.entries("named", {"names"}, (0, 16)) for key, name in one.entries.items()}


@pytest.mark.parametrize("ordered", [False, True])
def test_every_subtask_finds_the_broadcast_state_that_was_written(tmp_path: Path, ordered: bool) -> None:
    job = naming_job(
        tmp_path, parts=3, copies={"names": new_copy(NAMES, "named", [(1, "one"), (3, "three"), (4, "four")])}
    )
    path = written(tmp_path, job, [])
    assert names_of(path) == {1: "one", 3: "three", 4: "four"}
    sink = tr.sinks.Collect()
    started(path, naming(sink, [(9, "nine")], ordered), 3)
    assert Counter(sink.result()) == Counter(["?", "one", "?", "three", "four"])


@pytest.mark.parametrize("ordered", [False, True])
def test_broadcast_state_is_changed_and_left_out_in_all_subtasks(
    checkpoint_of: Any, tmp_path: Path, ordered: bool
) -> None:
    base = StoredCheckpoint.open(
        on_disk(checkpoint_of(naming(tr.sinks.Collect(), [(0, "a"), (1, "b")], ordered)), tmp_path)
    )
    base.check_copies("named")
    kept = KeptTables(base.url, None, tuple(base.operator("named").tables))
    source = KeptTables(base.url, None, (base.table("named", "names"),))
    table = replace(naming_job(tmp_path), tables=(NAMES,))
    changed = changed_pairs(table, 0, source, (0, 1), lambda key, name: [(key + 1, name.upper())])
    copies = {"names": new_copy(NAMES, "named", [pair for pairs in changed for pair in pairs])}
    for number, (more, expected) in enumerate(
        (({"copies": copies}, {1: "A", 2: "B"}), ({"gone": {"names"}}, {}), ({}, {0: "a", 1: "b"}))
    ):
        folder = tmp_path / str(number)
        job = naming_job(folder, kept=kept, first_slot=1, fresh=False, **more)
        path = written(folder, job, [], base, {"numbers", "new", "out"})
        assert names_of(path) == expected
        sink = tr.sinks.Collect()
        started(path, naming(sink, [], ordered), number + 1)
        assert Counter(sink.result()) == Counter(expected.get(n, "?") for n in range(5))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, "a"), (1, "b")], "state 'names' of operator 'named': key 1 is there twice; a key has one value"),
        ([([1], "a")], "state 'names' of operator 'named' cannot be saved: .*unhashable"),
        ([(1, lambda: 0)], "state 'names' of operator 'named' cannot be saved"),
    ],
)
def test_what_is_no_broadcast_state_is_refused(pairs: Any, message: str) -> None:
    with pytest.raises(tr.IncompatibleState, match=message):
        new_copy(NAMES, "named", pairs)


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ([1], pa.array([None], pa.string()), "the value None of key 1 is None: leave the row out"),
        (["a"], ["b"], "the key is of type str, and int, str is declared"),
        ([1], [2], "the value is of type int, and int, str is declared"),
    ],
)
def test_entries_of_a_broadcast_state_are_of_the_declared_types(
    tmp_path: Path, keys: Any, values: Any, message: str
) -> None:
    job = job_in(tmp_path, tables=(NAMES,))
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"])
    with pytest.raises(tr.IncompatibleState, match=message):
        Conversion(job, 0).pairs(rows)


def test_broadcast_state_is_not_changed_where_subtasks_had_come_to_different_records(
    monkeypatch: pytest.MonkeyPatch, checkpoint_of: Any
) -> None:
    """A subtask that is behind would process a record on what the others have made of it."""
    stored = checkpoint_of(naming(tr.sinks.Collect(), [(0, "a")], True))

    def metas(self: StoredCheckpoint, uid: str) -> list[MetaPart]:
        coming: list[list[tuple[int, int]]] = [[], [(5, 0)]]
        return [MetaPart(i, 2, False, write_waiting(Waiting(1, one), [0] * len(one))) for i, one in enumerate(coming)]

    monkeypatch.setattr(StoredCheckpoint, "metas", metas)
    with pytest.raises(tr.ConfigError, match=r"operator 'named', .* had come to different broadcast records"):
        stored.check_copies("named")
