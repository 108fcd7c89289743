"""Savepoints with more key groups than their checkpoint: keys are dealt out anew, and a job goes on as it would have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest

import tailrace as tr
from tailrace.elements.keygroups import group_range, key_group
from tailrace.errors import CheckpointCorrupt
from tailrace.state.codecs import Entries, pack
from tailrace.state.format import Index, OperatorPart, TableInfo
from tailrace.state.parts import BlockOf
from tailrace.state.paths import SAVEPOINT
from tailrace.state.ttl_lifetimes import Expiry
from tailrace.statedata.key_group_split import Dealing
from tailrace.statedata.newcheckpoint import CheckpointPlan, complete
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.writing import KeptTables, OperatorJob
from tailrace.storage.reading import verify
from tailrace.storage.store import Store
from tailrace.task.operators.broadcasts.waiting import Waiting, write_waiting
from tailrace.task.subtask.snapshot import OperatorMeta, read_meta
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles
from tests.statedata.test_writing import LAST, counting, entries, entry_batch, on_disk, written

Build = Callable[[tr.Environment], None]


def dealt(base: StoredCheckpoint, groups: int) -> StoredCheckpoint:
    """A savepoint in memory with the state of a checkpoint in so many key groups."""
    store = Store("memory:dealt", "job", folder=MemoryFiles(url="memory:dealt"))
    complete(store, CheckpointPlan("job", groups, base=base), [], 1_000_000, "by-hand")
    made = StoredCheckpoint(store, SAVEPOINT)
    verify(store, made.manifest)
    return made


def go_on(stored: StoredCheckpoint, build: Build, parallelism: int) -> None:
    config = tr.CheckpointConfig("memory", interval=0.002)
    groups = stored.manifest.max_parallelism
    env = tr.Environment(parallelism=parallelism, max_parallelism=groups, checkpoint=config)
    build(env)
    files: Any = stored.store.folder
    job = prepared_simulation(env, name="job", seed=2, origin=(files, stored.name), run_id="second")
    job.run()
    assert job.coordinator.status.name == "FINISHED", job.coordinator.cause


@pytest.mark.parametrize("groups", [32, 80, 16 * 1_024])
def test_each_entry_is_in_the_key_group_of_its_key(checkpoint_of: Any, of_numbers: Build, groups: int) -> None:
    base = checkpoint_of(of_numbers)
    made = dealt(base, groups)
    tables = {one.name for one in base.operator("seen").tables}
    before, found = dict[Any, Any](), dict[Any, Any]()
    for stored, into in ((base, before), (made, found)):
        for one in stored.entries("seen", tables, (0, stored.manifest.max_parallelism)):
            for entry, value in one.entries.items():
                key = entry[0] if one.table.kind == "timers" else entry
                assert one.group == key_group(key, stored.manifest.max_parallelism)
                assert (one.table.name, entry) not in into
                into[one.table.name, entry] = value
    assert before == found and {name for name, _ in found} >= {"count", "last", "names", "largest", "mean", "any"}


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_job_goes_on_as_from_the_checkpoint(checkpoint_of: Any, parallelism: int) -> None:
    """The job goes on where state is in several files, too."""
    base, second = (
        checkpoint_of(counting(tr.sinks.Collect()), number=3, small=0, alignment_timeout=None),
        tr.sinks.Collect(),
    )
    go_on(dealt(dealt(base, 48), 96), counting(second), parallelism)
    last = {key: max(n for one, n in second.result() if one == key) for key in range(50)}
    assert last == dict.fromkeys(range(50), 120)


def test_a_savepoint_may_have_more_key_groups_and_changed_state(checkpoint_of: Any, tmp_path: Path) -> None:
    stored = checkpoint_of(counting(tr.sinks.Collect()), number=3, small=0, alignment_timeout=None)
    base = StoredCheckpoint.open(on_disk(stored, tmp_path))
    kept = KeptTables(base.url, None, tuple(one for one in stored.operator("counts").tables if one.name != "last"))
    job = OperatorJob(str(tmp_path / "new"), None, "job", 48, "counts", "counts", (LAST,), kept, parts=5, first_slot=1)
    path = written(tmp_path, job, [entry_batch(job, 0, [(key, [-key]) for key in range(50)])], base)
    assert entries(path, "count") == entries(base.url, "count")
    assert entries(path, "last") == {key: [-key] for key in range(50)}
    second = tr.sinks.Collect()
    go_on(StoredCheckpoint.open(path), counting(second), 2)
    assert {key: max(n for one, n in second.result() if one == key) for key in range(50)} == dict.fromkeys(
        range(50), 120
    )


def test_feedback_comes_to_the_subtasks_of_its_keys(checkpoint_of: Any) -> None:
    class Down(tr.KeyedProcessFunction):
        """How often each key was seen, on the way from 40 to 0."""

        count = tr.ValueState(int, default=0)

        def process(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.count.value += 1
            assert self.count.value == 41 - value[1], f"key {ctx.key} has the state of another subtask"
            yield value[0], value[1] - 1

    def looping(sink: Any) -> Build:
        def build(env: tr.Environment) -> None:
            def body(stream: Any) -> Any:
                down = stream.key_by(lambda pair: pair[0]).process(Down(), uid="down")
                return down.filter(lambda pair: pair[1] >= 0), down.filter(lambda pair: pair[1] < 0)

            numbers = env.from_source(tr.sources.Sequence(0, 60), uid="numbers").map(lambda n: (n, 40), uid="pairs")
            numbers.iterate(body, uid="loop").sink_to(sink, uid="out")

        return build

    first, second = tr.sinks.Collect(), tr.sinks.Collect()
    base = checkpoint_of(looping(first), number=2, alignment_timeout=None)
    assert any(log.pieces for index in base.indexes.values() for log in index.logs), "nothing was on its way"
    go_on(dealt(base, 64), looping(second), 2)
    assert Counter(second.result()) <= Counter((n, -1) for n in range(60)) and second.result()


def test_records_that_a_join_in_columns_keeps_find_their_partners(checkpoint_of: Any) -> None:
    def joining(sink: Any) -> Build:
        def build(env: tr.Environment) -> None:
            rows = env.from_source(tr.sources.Sequence(0, 1_200), uid="numbers").map(lambda n: (n // 10, n), uid="rows")
            stamped = rows.to_columns("k long, n long", uid="columns").assign_timestamps("n", 300.0)
            first, second = (stamped.filter(pc.field("n") < 1_000_000, uid=f"half{i}") for i in range(2))
            joined = first.key_by("k").join(second.key_by("k"), within=(0, 500), uid="joined")
            joined.sink_to(sink, uid="out")

        return build

    base = checkpoint_of(joining(tr.sinks.Collect()), number=1, alignment_timeout=None)
    whole, parts = tr.sinks.Collect(), tr.sinks.Collect()
    go_on(dealt(base, 16), joining(whole), 2)
    go_on(dealt(base, 64), joining(parts), 3)
    assert whole.result() and Counter(map(str, whole.result())) == Counter(map(str, parts.result()))


def test_a_checkpoint_with_records_in_flight_keeps_its_key_groups(checkpoint_of: Any) -> None:
    base = checkpoint_of(counting(tr.sinks.Collect()), number=3, mode="unaligned")
    assert base.manifest.in_flight
    with pytest.raises(
        tr.ConfigError, match=r"has records in flight to operator .* 16 key groups.*stop\(savepoint=True\)"
    ):
        dealt(base, 32)
    CheckpointPlan("job", 16, base=base)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part, meta: (msgspec.structs.replace(meta, reached=5), part.finished), "different event times"),
        (lambda part, meta: (msgspec.structs.replace(meta, arrived=5), part.finished), "different event times"),
        (
            lambda part, meta: (msgspec.structs.replace(meta, floors=[(0, 3, 9)]), part.finished),
            "different event times",
        ),
        (lambda part, meta: (meta, not part.finished), "different event times"),
    ],
)
def test_subtasks_that_are_not_equally_far_keep_their_key_groups(checkpoint_of: Any, change: Any, message: str) -> None:
    base = checkpoint_of(counting(tr.sinks.Collect()), number=2, alignment_timeout=None)
    dealing = Dealing(base, 32)
    part = dealing._parts["counts"][0]
    meta, finished = change(part, read_meta(part.meta or b""))
    other = msgspec.structs.replace(part, meta=msgspec.msgpack.encode(meta), finished=finished)
    dealing._parts["counts"][0] = other
    with pytest.raises(tr.ConfigError, match=f"'counts' that had come to {message}"):
        dealing.check()
    dealing.check({"counts"})


def test_subtasks_that_had_other_broadcast_records_keep_their_key_groups(checkpoint_of: Any) -> None:
    base = checkpoint_of(counting(tr.sinks.Collect()), number=2, alignment_timeout=None)
    for file, index in base.indexes.items():
        for part in [one for one in index.operators if one.uid == "counts"]:
            waiting = write_waiting(Waiting(3 + part.subtask), [])
            part.meta = msgspec.msgpack.encode(msgspec.structs.replace(read_meta(part.meta or b""), data=waiting))
        assert file
    with pytest.raises(tr.ConfigError, match="'counts' that had come to different broadcast records"):
        Dealing(base, 32).check()


def test_an_entry_that_is_not_in_its_key_group_is_found(checkpoint_of: Any) -> None:
    base = checkpoint_of(counting(tr.sinks.Collect(), end=50), number=1, alignment_timeout=None)
    for key, table in ((1, TableInfo("count")), ((1, 2), TableInfo("records:unknown", "records"))):
        wrong = (key_group(key, 16) + 1) % 16
        data = memoryview(pack(Entries([key], [7], [], [], [])))
        with pytest.raises(CheckpointCorrupt, match="where it does not belong"):
            list(Dealing(base, 32).blocks(BlockOf("counts", table, wrong, 1, data), 0))


def test_a_lifetime_is_over_for_the_entries_for_which_it_was_over(checkpoint_of: Any) -> None:
    """Subtasks have read the clock at different moments before the cut, and old floors are kept."""
    expiries = [
        Expiry("processing", 100, 40, 7, 0, False, ("run", 1), [(0, 2, 120, 60)]),
        Expiry("processing", 103, 43, 9, 0, False, ("run", 1)),
        Expiry("processing", 99, 39, 8, 2, True, ("run", 1)),
    ]
    parts = [
        OperatorPart("kept", "kept", n, 3, meta=msgspec.msgpack.encode(OperatorMeta(0, expiries={"one": expiry})))
        for n, expiry in enumerate(expiries)
    ]
    base = checkpoint_of(counting(tr.sinks.Collect(), end=50), number=1)
    base.indexes["more"] = Index("job", 1, 1, 9, 16, operators=[*parts])
    dealing = Dealing(base, 64)
    for part in parts:
        made = read_meta(dealing.meta(part) or b"").expiries["one"]
        assert (made.reached, made.since, made.offset, made.pending) == (103, 9, 2, True)
        for n, before in enumerate(expiries):
            for group in group_range(n, 3, 16):
                for split in range(group, 64, 16):
                    assert made.dead_in(split) == before.dead_in(group)


@pytest.mark.parametrize("seed", range(20))
def test_new_key_groups_come_from_the_old_ones_that_are_read(seed: int, checkpoint_of: Any) -> None:
    old, parts = 1 + seed % 7, 1 + seed % 5
    new = old * (2 + seed % 3)
    base: Any = type("Base", (), {"manifest": type("Manifest", (), {"max_parallelism": old})})
    for part in range(min(parts, new)):
        groups = group_range(part, min(parts, new), new)
        read = [group for one in Dealing(base, new).origins(groups) for group in one]
        assert len(read) == len(set(read)) and set(read) == {group % old for group in groups}
