"""The entries of a state as columns: which types they get, and that each key is there once, as the checkpoint has it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.statedata.columns import StateColumns, split_groups

CHECKPOINTS: dict[str, Any] = {}


@pytest.fixture
def whole(checkpoint_of: Any, of_numbers: Any) -> Any:
    """The last checkpoint of the numbers below 100."""
    if "whole" not in CHECKPOINTS:
        CHECKPOINTS["whole"] = checkpoint_of(of_numbers)
    return CHECKPOINTS["whole"]


def table_of(stored: Any, uid: str, state: str | None = None, schema: pa.Schema | None = None, **how: str) -> pa.Table:
    found = StateColumns(stored, uid, state, **how)
    schema = schema or found.schema()
    batches = [batch for part in found.parts() for batch in found.batches(part, schema)]
    return pa.Table.from_batches(batches, schema)


def rows_of(table: pa.Table) -> dict[Any, Any]:
    keys, values = table["key"].to_pylist(), table["value"].to_pylist()
    assert len(set(map(str, keys))) == len(keys), "a key is there twice"
    return dict(zip(keys, values, strict=True))


EXPECTED: dict[str, tuple[str, Any]] = {
    "count": ("int64", lambda key: 10),
    "last": ("list<item: int64>", lambda key: [80 + key, 90 + key]),
    "names": ("map<string, int64>", lambda key: sorted([(f"n{key}", 80 + key), (f"n{key + 10}", 90 + key)])),
    "largest": ("int64", lambda key: 90 + key),
    "mean": ("struct<_1: int64, _2: int64>", lambda key: {"_1": 10, "_2": 450 + 10 * key}),
    "any": ("struct<key: int64, text: string>", lambda key: {"key": key, "text": str(90 + key)}),
}


@pytest.mark.parametrize("state", EXPECTED)
def test_states_of_every_kind_have_columns_of_their_type(whole: Any, state: str) -> None:
    table = table_of(whole, "seen", state)
    kind, value = EXPECTED[state]
    assert [str(field.type) for field in table.schema] == ["int64", kind]
    found = rows_of(table)
    if state == "names":
        found = {key: sorted(pairs) for key, pairs in found.items()}
    assert found == {key: value(key) for key in range(10)}


class Ruled(tr.BroadcastProcessFunction):
    rules = tr.BroadcastState(str, int)
    shapes = tr.BroadcastState(int, object)
    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> None:
        self.count.value += 1

    def process_broadcast(self, value: int, ctx: Any) -> None:
        self.rules[f"r{value}"] = value
        self.shapes[value] = (value, str(value))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_broadcast_state_has_a_row_for_each_entry(checkpoint_of: Any, ordered: bool) -> None:
    def flow(env: tr.Environment) -> Any:
        numbers = env.from_collection(range(20)).assign_timestamps(float)
        both = numbers.key_by(lambda i: i % 3).connect(numbers.filter(lambda i: i < 5).broadcast())
        return both.process(Ruled(), ordered=ordered, uid="ruled").sink_to(tr.sinks.Collect())

    stored = checkpoint_of(flow)
    rules = table_of(stored, "ruled", "rules")
    assert [str(field.type) for field in rules.schema] == ["string", "int64"]
    assert rows_of(rules) == {f"r{i}": i for i in range(5)}
    assert rows_of(table_of(stored, "ruled", "shapes")) == {i: {"_1": i, "_2": str(i)} for i in range(5)}
    assert rows_of(table_of(stored, "ruled", "count")) == {0: 7, 1: 7, 2: 6}
    assert "'rules' (broadcast str, int)" in stored.contents()


def test_changes_in_several_files_are_one_state(checkpoint_of: Any) -> None:
    """Checkpoints that write what changed: keys were set, set again and deleted, each in other files."""

    class Some(tr.KeyedProcessFunction):
        value = tr.ValueState(int)

        def process(self, record: int, ctx: Any) -> None:
            if record >= 10_000 and ctx.key % 2:
                self.value.clear()
            else:
                self.value.value = record

    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 20_000), uid="numbers")
        keyed = numbers.key_by(lambda n: n % 2_000 if n < 4_000 else n % 40)
        keyed.process(Some(), uid="some").sink_to(tr.sinks.Collect(), uid="out")

    stored = checkpoint_of(build, small=0)
    assert stored.manifest.older, "the last checkpoint refers to no other: this shows nothing"
    assert stored.sizes()["some", "value"].entries > 1_980, "no entry was written twice: this shows nothing"
    assert rows_of(table_of(stored, "some")) == {
        key: 2_000 + key if key >= 40 else 19_960 + key for key in range(2_000) if key >= 40 or key % 2 == 0
    }


def test_windows_have_their_start_as_namespace(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 9_000), uid="numbers")
        timed = numbers.assign_timestamps(lambda n: n / 100, uid="times")
        windows = timed.key_by(lambda n: n % 2).window(tr.Tumbling(5))
        windows.aggregate(sum=tr.Sum(lambda n: n), uid="sums").sink_to(tr.sinks.Collect(), uid="out")

    stored = checkpoint_of(build, number=2)
    table = table_of(stored, "sums")
    assert [(field.name, str(field.type)) for field in table.schema][:2] == [
        ("key", "int64"),
        ("namespace", "timestamp[us, tz=UTC]"),
    ]
    starts = {one.timestamp() for one in table["namespace"].to_pylist()}
    assert starts and all(start % 5 == 0 for start in starts)


def test_of_sessions_there_are_those_that_are_open(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 9_000), uid="numbers")
        timed = numbers.assign_timestamps(lambda n: n / 100, uid="times")
        sessions = timed.key_by(lambda n: n // 100 % 10).window(tr.Session(0.5))
        sessions.aggregate(sum=tr.Count(), uid="counts").sink_to(tr.sinks.Collect(), uid="out")

    table = table_of(checkpoint_of(build, number=2), "counts")
    assert table.column_names == ["key", "namespace", "value"]
    assert table.num_rows
    for key, start, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
        assert start.timestamp() % 10 == key
        assert 1 <= value["_1"] <= 100


@pytest.mark.parametrize("within", [None, 0.5])
def test_of_duplicates_there_are_the_times_of_what_was_kept(checkpoint_of: Any, within: float | None) -> None:
    def build(env: tr.Environment) -> None:
        numbers = env.from_source(tr.sources.Sequence(0, 9_000), uid="numbers")
        timed = numbers.assign_timestamps(lambda n: n / 100, 1, uid="times")
        kept = timed.key_by(lambda n: n % 7).drop_duplicates(within, uid="kept")
        kept.sink_to(tr.sinks.Collect(), uid="out")

    table = table_of(checkpoint_of(build, number=2), "kept")
    assert table.schema.field("value").type == pa.list_(pa.int64())
    assert sorted(table.column("key").to_pylist()) == list(range(7))
    for key, times in rows(table):
        assert bool(times) == (within is not None)
        assert all(time // 10_000 % 7 == key for time in times)


@dataclass(frozen=True)
class Place:
    street: str
    number: int


class Account(msgspec.Struct):
    owner: str
    amount: float = 0.0


class Accounts(tr.KeyedProcessFunction):
    account = tr.ValueState(Account)
    where = tr.ValueState(Place)
    mixed = tr.ValueState(object)
    wrong = tr.ValueState(int)

    def process(self, value: int, ctx: Any) -> None:
        self.account.value = Account(f"owner {value}", value / 2)
        self.where.value = Place("Long Street", value)
        self.mixed.value = value if value % 2 else str(value)
        self.wrong.value = value if value != 7 else "seven"  # type: ignore[assignment]


def accounts(env: tr.Environment) -> None:
    numbers = env.from_collection(list(range(10)), uid="numbers")
    keyed = numbers.key_by(lambda n: Place("Short Street", n))
    keyed.process(Accounts(), uid="accounts").sink_to(tr.sinks.Collect(), uid="out")


@pytest.fixture
def of_classes(checkpoint_of: Any) -> Any:
    if "classes" not in CHECKPOINTS:
        CHECKPOINTS["classes"] = checkpoint_of(accounts)
    return CHECKPOINTS["classes"]


def test_records_with_names_are_structs(of_classes: Any) -> None:
    table = table_of(of_classes, "accounts", "account")
    assert str(table.schema.field("key").type) == "struct<street: string, number: int64>"
    assert sorted(table["value"].to_pylist(), key=lambda row: row["owner"]) == [
        {"owner": f"owner {n}", "amount": n / 2} for n in range(10)
    ]
    assert sorted(row["number"] for row in table_of(of_classes, "accounts", "where")["value"].to_pylist()) == [
        *range(10)
    ]


def test_what_no_column_holds_is_refused_with_what_to_do(of_classes: Any) -> None:
    with pytest.raises(tr.IncompatibleState, match=r'some are .* and some .*\.option\("values", "text"\)'):
        table_of(of_classes, "accounts", "mixed")
    texts = table_of(of_classes, "accounts", "mixed", keys="text", values="text")
    assert sorted(texts["value"].to_pylist()) == sorted(repr(n if n % 2 else str(n)) for n in range(10))
    assert "Place(street='Short Street', number=3)" in texts["key"].to_pylist()
    pickles = table_of(of_classes, "accounts", "mixed", values="pickle")
    assert {row["number"]: pickle.loads(value) for row, value in rows(pickles)} == {
        n: n if n % 2 else str(n) for n in range(10)
    }


def rows(table: pa.Table) -> list[tuple[Any, Any]]:
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_a_value_of_another_type_than_declared_is_refused_with_its_key(of_classes: Any) -> None:
    with pytest.raises(
        tr.IncompatibleState,
        match=r"state 'wrong' of operator 'accounts': .*'seven'.*of key Place\(street='Short Street', number=7\)",
    ):
        table_of(of_classes, "accounts", "wrong")


def test_columns_may_be_given(whole: Any) -> None:
    narrow = pa.schema([("value", pa.float64()), ("key", pa.int16())])
    assert rows_of(table_of(whole, "seen", "largest", narrow)) == {key: 90.0 + key for key in range(10)}
    with pytest.raises(tr.ConfigError, match="has the columns key, value, and no column 'values'"):
        table_of(whole, "seen", "largest", pa.schema([("values", pa.int64())]))


@pytest.mark.parametrize(
    ("uid", "state", "message"),
    [
        ("sean", None, "no operator with uid 'sean'; it has the operators .*'seen'.*'count' \\(value int\\), 'last'"),
        ("seen", "cuont", "operator 'seen' has no state 'cuont'; .*'count'"),
        ("seen", None, "operator 'seen' has several states: say which; .*'count'"),
        ("numbers", None, "operator 'numbers' has no keyed state; .*'count'"),
    ],
)
def test_what_is_not_there_is_reported_with_what_is(whole: Any, uid: str, state: str | None, message: str) -> None:
    with pytest.raises(tr.CheckpointNotFound, match=message):
        StateColumns(whole, uid, state)


def test_forms_are_checked(whole: Any) -> None:
    with pytest.raises(tr.ConfigError, match="option \"values\" is one of columns, text, pickle, not 'json'"):
        StateColumns(whole, "seen", "count", values="json")


def test_parts_are_of_about_the_same_weight_and_hold_each_group_once() -> None:
    weights = dict.fromkeys(range(100), 10) | {40: 500}
    parts = split_groups(weights, 4)
    assert len(parts) <= 4
    assert sorted(group for first, last in parts for group in range(first, last)) == [*range(100)]
    assert split_groups({}, 4) == []
    assert split_groups({3: 1, 90: 1}, 8) == [(3, 4), (90, 91)]


def test_a_state_without_entries_has_columns_all_the_same(checkpoint_of: Any) -> None:
    def build(env: tr.Environment) -> None:
        none = env.from_collection([], uid="numbers")
        none.key_by(lambda n: n).process(Accounts(), uid="accounts").sink_to(tr.sinks.Collect(), uid="out")

    table = table_of(checkpoint_of(build), "accounts", "wrong")
    assert table.num_rows == 0 and table.schema.field("value").type == pa.int64()


def test_a_checkpoint_that_a_job_removes_meanwhile_is_reported_as_such(checkpoint_of: Any, of_numbers: Any) -> None:
    stored = checkpoint_of(of_numbers)
    columns = StateColumns(stored, "seen", "count")
    schema, [part, *_] = columns.schema(), columns.parts()
    stored.store.delete([stored.name, *(file.name for file in stored.manifest.files)])
    with pytest.raises(tr.CheckpointNotFound, match=r"was removed while it was read: .*keep=..."):
        list(columns.batches(part, schema))


def test_damage_is_reported_as_damage(checkpoint_of: Any, of_numbers: Any) -> None:
    stored = checkpoint_of(of_numbers)
    columns = StateColumns(stored, "seen", "count")
    schema, [part, *_] = columns.schema(), columns.parts()
    stored.store.delete([file.name for file in stored.manifest.files])
    with pytest.raises(tr.CheckpointCorrupt, match="is missing, and the checkpoint needs it"):
        list(columns.batches(part, schema))


def test_a_class_that_is_not_there_is_reported_with_the_state(
    checkpoint_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = checkpoint_of(accounts)
    monkeypatch.delitem(globals(), "Place")
    with pytest.raises(
        tr.IncompatibleState, match=r"state 'mixed' of operator 'accounts' cannot be read here: .*Place.*importable"
    ):
        table_of(stored, "accounts", "mixed", keys="text", values="text")
