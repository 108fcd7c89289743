"""Several states of an operator in one table: a row for each key, a column for each state."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.errors import CheckpointNotFound, ConfigError, IncompatibleState
from tailrace.statedata.columns import StateColumns
from tailrace.statedata.keyed_states import KeyedStates


class Some(tr.KeyedProcessFunction):
    """Keys that have one state, another one, or both. The first keeps None for some."""

    even = tr.ValueState(object)
    third = tr.ListState(int)
    never = tr.ValueState(str)

    def process(self, n: int, ctx: Any) -> Any:
        if n % 2 == 0:
            self.even.value = None if n % 4 == 0 else {"n": n}
        if n % 3 == 0:
            self.third.add(n)
        yield n


def some(env: tr.Environment) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 40), uid="numbers")
    numbers.key_by(lambda n: f"key {n}").process(Some(), uid="some").sink_to(tr.sinks.Collect(), uid="out")


def windows(env: tr.Environment) -> None:
    numbers = env.from_source(tr.sources.Sequence(0, 40), uid="numbers").assign_timestamps(float)
    counted = numbers.key_by(lambda n: n % 3).window(tr.Tumbling(1000.0)).aggregate(tr.Count(), uid="counts")
    counted.sink_to(tr.sinks.Collect(), uid="out")


def table_of(found: KeyedStates, schema: pa.Schema | None = None, most: int | None = None) -> pa.Table:
    schema = schema or found.schema()
    return pa.Table.from_batches([b for part in found.parts(most) for b in found.batches(part, schema)], schema)


def test_each_key_is_there_once_with_all_states(checkpoint_of: Any) -> None:
    table = table_of(KeyedStates(checkpoint_of(some), "some", ["even", "third"]))
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("key", "string"), ("even", "map<string, int64>"), ("third", "list<item: int64>")
    ]  # fmt: skip
    rows = {row["key"]: (row["even"], row["third"]) for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    assert rows == {
        f"key {n}": ([("n", n)] if n % 2 == 0 and n % 4 else None, [n] if n % 3 == 0 else None)
        for n in range(40)
        if n % 2 == 0 or n % 3 == 0
    }


def test_the_columns_are_those_of_each_state_alone(checkpoint_of: Any, of_numbers: Any) -> None:
    """Read together or one by one: keys, values and types are equal."""
    stored = checkpoint_of(of_numbers)
    together = table_of(KeyedStates(stored, "seen")).sort_by("key")
    assert together.column_names == ["key", "count", "last", "names", "largest", "mean", "any"], "as declared"
    for name in together.column_names[1:]:
        alone = StateColumns(stored, "seen", name)
        batches = [batch for part in alone.parts() for batch in alone.batches(part, alone.schema())]
        expected = pa.Table.from_batches(batches).sort_by("key")
        assert together.select(["key", name]).rename_columns(["key", "value"]).to_pylist() == expected.to_pylist()
        assert together.schema.field(name).type == expected.schema.field("value").type


def test_a_missing_value_is_no_text_and_no_pickle(checkpoint_of: Any) -> None:
    """A None that a state holds is shown as such, one that is missing as null."""
    stored = checkpoint_of(some)
    texts = table_of(KeyedStates(stored, "some", ["even", "third"], values="text")).to_pylist()
    rows = {row["key"]: row for row in texts}
    assert (rows["key 4"]["even"], rows["key 4"]["third"]) == ("None", None)
    assert (rows["key 9"]["even"], rows["key 9"]["third"]) == (None, "[9]")
    pickles = table_of(KeyedStates(stored, "some", ["even"], keys="pickle", values="pickle")).to_pylist()
    held = {pickle.loads(row["key"]): pickle.loads(row["even"]) for row in pickles}
    assert held == {f"key {n}": None if n % 4 == 0 else {"n": n} for n in range(0, 40, 2)}


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_any_number_of_parts_gives_these_rows(checkpoint_of: Any, parts: int) -> None:
    found = KeyedStates(checkpoint_of(some), "some")
    assert table_of(found, most=parts).sort_by("key") == table_of(found).sort_by("key")


def test_windows_have_their_start(checkpoint_of: Any) -> None:
    table = table_of(KeyedStates(checkpoint_of(windows, number=1), "counts"))
    assert table.column_names[:2] == ["key", "namespace"]
    assert set(table["namespace"].to_pylist()) <= {pa.scalar(0, pa.timestamp("us", "UTC")).as_py()}


@pytest.mark.parametrize(
    ("uid", "states", "message"),
    [
        ("seen", ["count", "cuont"], "has no state 'cuont'"),
        ("sene", ["count"], "has no operator with uid 'sene'"),
        ("seen", ["count", "count"], "a state is named twice"),
        ("numbers", None, "operator 'numbers' has no keyed state"),
        ("seen", [], "no state is named"),
    ],
)
def test_what_cannot_be_read_together_is_refused(
    checkpoint_of: Any, of_numbers: Any, uid: str, states: Any, message: str
) -> None:
    with pytest.raises((CheckpointNotFound, ConfigError), match=message):
        KeyedStates(checkpoint_of(of_numbers), uid, states)


def test_a_value_that_no_column_holds_names_state_and_key(checkpoint_of: Any) -> None:
    found = KeyedStates(checkpoint_of(some), "some", ["even", "third"])
    with pytest.raises(
        IncompatibleState, match=r"state 'third' of operator 'some'.*\(of key 'key \d+'\).*values=\"text\""
    ):
        table_of(found, pa.schema([("key", pa.string()), ("third", pa.int64())]))
