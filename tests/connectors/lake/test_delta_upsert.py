"""Upserts into Delta tables: the last record of a key, whatever is published how often, deletes, and streams of changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

import tailrace as tr
from tailrace.connectors.lake.changes import GONE, last_of_keys
from tailrace.errors import ConfigError
from tailrace.testing.faults import Fault
from tests.connectors.test_sinks import Place

SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("a B", pa.int64(), nullable=False), ("more", pa.float64())])


def table(path: Any) -> dict[str, Any]:
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: (row["a B"], row["more"]) for row in rows}


def upsert(path: Any, **options: Any) -> Any:
    return tr.sinks.Delta(str(path), SCHEMA, **{"mode": "upsert", "keys": "k", **options})


def row(k: str | None, a: int | None, more: float | None = None, **others: Any) -> dict[str, Any]:
    return {"k": k, "a B": a, "more": more, **others}


class Changed(NamedTuple):
    k: str
    more: float | None
    gone: str


def test_the_last_record_of_a_key_is_in_the_table(tmp_path: Path) -> None:
    random, expected = Random(1), {}
    sink = upsert(tmp_path, delete="gone")
    writer = sink.writer(Place())
    for _ in range(12):
        for _ in range(random.randint(0, 3)):
            records = []
            for _ in range(random.randint(1, 6)):
                key, value, gone = random.choice("abcde'\""), random.randint(0, 9), random.random() < 0.3
                records.append({"k": key, "gone": True} if gone else row(key, value, gone=False))
                if gone:
                    expected.pop(key, None)
                else:
                    expected[key] = (value, None)
            writer.write(records)
        token = writer.prepare()
        if token is not None:
            sink.publish([token])
        assert not DeltaTable.is_deltatable(str(tmp_path)) or table(tmp_path) == expected


def test_an_older_transaction_that_is_published_again_changes_nothing(tmp_path: Path) -> None:
    sink = upsert(tmp_path, changes=True)
    writer, tokens = sink.writer(Place()), []
    for change in [("+", row("a", 1)), ("+", row("a", 2)), ("-", row("b", 7)), ("+", row("c", 3))]:
        writer.write([change])
        tokens.append(writer.prepare())
    other = pickle.loads(pickle.dumps(sink))
    sink.publish(tokens[:2])
    other.publish(tokens[:3])
    sink.publish([tokens[0]])
    assert table(tmp_path) == {"a": (2, None)}
    sink.publish(tokens)  # the delete of what was not there has left its mark
    other.publish(tokens[2:3])
    assert table(tmp_path) == {"a": (2, None), "c": (3, None)}


def test_a_merge_that_another_writer_overtakes_is_made_again(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    writer = sink.writer(Place())
    writer.write([row("a", 1), row("b", 1)])
    sink.publish([writer.prepare()])
    writer.write([row("b", 2)])
    merge, tries = sink._merge, []

    def late(*args: Any) -> None:
        if not tries:
            write_deltalake(str(tmp_path), pa.table({"k": ["x"], "a B": [9], "more": [None]}, SCHEMA), mode="append")
            DeltaTable(str(tmp_path)).delete("k = 'b'")
        tries.append(1)
        merge(*args)

    sink._merge = late
    sink.publish([writer.prepare()])
    assert table(tmp_path) == {"a": (1, None), "b": (2, None), "x": (9, None)} and len(tries) == 2


@pytest.mark.parametrize(
    ("options", "batch", "expected"),
    [
        ({}, [row("a", 1, 0.5), row("a", 2)], {"z": (0, None), "a": (2, None)}),
        ({}, pa.RecordBatch.from_pylist([row("a", 1, 0.5)], SCHEMA), {"z": (0, None), "a": (1, 0.5)}),
        ({"delete": "gone"}, [row("a", 1, gone="+"), Changed("z", None, "-")], {"a": (1, None)}),
        ({"delete": "gone"}, [("a", 1, None, False), ("z", None, None, True)], {"a": (1, None)}),
        ({"delete": lambda r: r["a B"] is None}, [row("z", None), row("a", 1)], {"a": (1, None)}),
        ({"changes": True}, [("-", ("z", 0, None)), ("+", ("a", 1, 2.5))], {"a": (1, 2.5)}),
        ({"changes": True}, [("+", row("z", 5)), ("-", {"k": "y"})], {"z": (5, None)}),
        (
            {"delete": "gone"},
            pa.record_batch({"k": ["z", "a"], "a B": [None, 4], "more": [None, None], "gone": ["-", "+"]}),
            {"a": (4, None)},
        ),
    ],
)
def test_records_of_every_form_upsert_and_delete(options: Any, batch: Any, expected: Any, tmp_path: Path) -> None:
    sink = upsert(tmp_path, **options)
    sink.check()
    write_deltalake(str(tmp_path), pa.table({"k": ["z"], "a B": [0], "more": [None]}, SCHEMA), mode="append")
    writer = sink.writer(Place())
    writer.write(batch)
    sink.publish([writer.prepare()])
    assert table(tmp_path) == expected


@pytest.mark.parametrize(
    ("options", "batch", "words", "record"),
    [
        ({}, [row("a", 1), row(None, 2)], "key 'k' is null", row(None, 2)),
        ({}, [row("a", 1), row("b", None)], "a B", row("b", None)),
        ({"delete": "gone"}, [row("a", 1, gone=None)], "delete must be True or False", row("a", 1, gone=None)),
        ({"changes": True}, [("+", row("a", 1)), row("b", 2)], r"a change is \('\+', record\)", row("b", 2)),
        ({"delete": "gone"}, [row("b", 1, gone=True), row("c", "x", gone=False)], "a B", row("c", "x", gone=False)),
    ],
)
def test_a_record_that_does_not_fit_is_named(options: Any, batch: Any, words: str, record: Any, tmp_path: Path) -> None:
    writer = upsert(tmp_path, **options).writer(Place())
    with pytest.raises(ValueError, match=words):
        writer.write(batch)
    assert writer.record == record


def test_a_key_from_two_subtasks_is_refused(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    tokens = []
    for subtask in range(2):
        writer = sink.writer(Place(subtask=subtask, parallelism=2))
        writer.write([row("a", subtask), row(f"b{subtask}", subtask)])
        tokens.append(writer.prepare())
    with pytest.raises(ValueError, match=r"the key \{'k': 'a'\}.*key_by"):
        sink.publish(tokens)
    assert not DeltaTable.is_deltatable(str(tmp_path)) or table(tmp_path) == {}
    later = sink.writer(Place(subtask=1, incarnation=2))  # another parallelism after a restart
    later.write([row("a", 5)])
    sink.publish([tokens[0], later.prepare()])
    assert table(tmp_path) == {"a": (5, None), "b0": (0, None)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keys": None}, "needs keys"),
        ({"mode": "append"}, "needs keys"),
        ({"keys": ["x"]}, "keys has 'x'"),
        ({"keys": "more"}, "without a fraction"),
        ({"delete": 3}, "delete is a function"),
        ({"delete": "gone", "changes": True}, "not both"),
        ({"mode": "append", "keys": None, "changes": True}, "for mode='upsert'"),
        ({"roll": tr.Roll(seconds=5)}, "roll is for"),
    ],
)
def test_settings_that_do_not_fit_are_refused_where_they_are_written(options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        upsert(tmp_path, **options)


def append_only(path: Path) -> None:
    DeltaTable.create(str(path), Schema.from_arrow(SCHEMA), configuration={"delta.appendOnly": "true"})


def with_deletion_vectors(path: Path) -> None:
    made = DeltaTable.create(str(path), Schema.from_arrow(SCHEMA))
    from deltalake import TableFeatures

    made.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)


@pytest.mark.parametrize(
    ("make", "words"), [(append_only, "only takes appends"), (with_deletion_vectors, "'deletionVectors'")]
)
def test_a_table_that_cannot_be_merged_into_is_refused(
    make: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(ConfigError, match=words):
        upsert(tmp_path).check()
    tr.sinks.Delta(str(tmp_path)).check()


def test_the_live_result_of_a_loop_is_a_table(tmp_path: Path) -> None:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig(dir="c", interval=0.05))
    roads = {0: [(1, 1), (2, 5)], 1: [(2, 1), (3, 7)], 2: [(3, 1)], 3: []}

    class Shortest(tr.KeyedProcessFunction):
        best = tr.ValueState(float, default=None)

        def process(self, value: Any, ctx: Any) -> Any:
            if self.best.value is None or value[1] < self.best.value:
                if self.best.value is not None:
                    yield "-", (ctx.key, self.best.value)
                self.best.value = value[1]
                yield "+", (ctx.key, value[1])

    def relax(distances: tr.DataStream) -> Any:
        changes = distances.key_by(lambda d: d[0]).process(Shortest())
        found = changes.filter(lambda c: c[0] == "+")
        return found.flat_map(lambda c: [(to, c[1][1] + miles) for to, miles in roads[c[1][0]]]), changes

    changes = env.from_collection([(0, 0.0)]).iterate(relax)
    place = str(tmp_path / "t")
    sink = tr.sinks.Delta(place, "town long, miles double", mode="upsert", keys=["town"], changes=True)
    changes.key_by(lambda change: change[1][0]).sink_to(sink)
    tr.testing.simulate(env, seed=4, faults=[Fault(120, "kill", 0)]).await_termination()
    found = DeltaTable(place).to_pyarrow_table().to_pylist()
    assert {one["town"]: one["miles"] for one in found} == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0} and len(found) == 4


def test_the_last_row_of_each_key() -> None:
    rows = pa.table({"k": [1, 2, 1, 3, 2], GONE: [False, False, True, False, False]})
    assert last_of_keys(rows, ["k"]).to_pydict() == {"k": [1, 3, 2], GONE: [True, False, False]}
