"""JSON objects in columns: what Python's own reader finds in a text, in the types of the columns, or an error."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tailrace.connectors.files.jsoncolumns import JsonColumns
from tailrace.connectors.files.jsonvalues import encode_columns
from tailrace.errors import ConfigError
from tests.connectors.files.test_textwriters import NESTED, VALUES

WHOLE, DECIMAL = pa.int64(), pa.decimal128(10, 2)
READ: list[tuple[pa.DataType, str, Any]] = [
    (WHOLE, "9223372036854775807", 2**63 - 1),
    (WHOLE, "-9223372036854775808", -(2**63)),
    (pa.uint64(), "18446744073709551615", 2**64 - 1),
    (pa.float64(), "9007199254740993", 9007199254740992.0),
    (pa.float64(), "1e-400", 0.0),
    (pa.string(), '"\\ud83d\\ude00\\u0000"', "😀\0"),
    (pa.large_string(), '"é"', "é"),
    (pa.binary(), '"é"', "é".encode()),
    (pa.dictionary(pa.int8(), pa.string()), '"a"', "a"),
    (pa.null(), "null", None),
    (DECIMAL, "123.45", Decimal("123.45")),
    (DECIMAL, '"-1e2"', Decimal("-100.00")),
    (pa.date32(), '"2024-02-29"', dt.date(2024, 2, 29)),
    (pa.timestamp("us"), '"2024-01-01T01:02:03.000004"', dt.datetime(2024, 1, 1, 1, 2, 3, 4)),
    (pa.large_list(pa.date32()), '["2024-02-29",null]', [dt.date(2024, 2, 29), None]),
    (pa.list_(pa.int8(), 2), "[1,2]", [1, 2]),
    (pa.list_(pa.list_(pa.int8())), "[[],null,[1]]", [[], None, [1]]),
    (pa.struct([]), '{"x":1}', {}),
]
REFUSED: list[tuple[pa.DataType, str]] = [
    *(
        (WHOLE, text)
        for text in ("9223372036854775808", "-9223372036854775809", "1.5", "1e3", "true", '"1"', "[1]", "01")
    ),
    (pa.int8(), "128"),
    (pa.uint8(), "-1"),
    (pa.uint64(), "18446744073709551616"),
    *((pa.float64(), text) for text in ("1e400", "1" * 400, "NaN", "Infinity", '"1"', "true")),
    *((pa.string(), text) for text in ("1", "true", "{}", '"\\ud800"', '"a\nb"', '"a\tb"')),
    (pa.bool_(), "1"),
    (pa.null(), "1"),
    *((DECIMAL, text) for text in ("0.001", "1e9", '"NaN"', '"x"', "true")),
    (pa.date32(), '"2024-02-30"'),
    (pa.timestamp("us"), "0"),
    (pa.list_(pa.int8(), 2), "[1]"),
    (pa.list_(pa.int8()), "{}"),
    (pa.struct([("x", WHOLE)]), '{"x":"1"}'),
    (pa.struct([("x", WHOLE)]), "[]"),
    (pa.struct([pa.field("x", WHOLE, nullable=False)]), "{}"),
    (pa.list_(pa.field("item", WHOLE, nullable=False)), "[null]"),
]


def column(kind: pa.DataType, *texts: str) -> list[Any]:
    make = JsonColumns(pa.schema([("a", kind)]), "Json")
    batch = make([b'{"b": [{}], "a": %s}' % text.encode() for text in texts])
    batch.validate(full=True)
    assert batch.schema.field("a").type == kind
    return batch["a"].to_pylist()


@pytest.mark.parametrize(("kind", "text", "value"), READ, ids=str)
def test_a_text_is_a_value_of_its_column(kind: pa.DataType, text: str, value: Any) -> None:
    assert column(kind, "null", text, "null") == [None, value, None]


@pytest.mark.parametrize(("kind", "text"), REFUSED, ids=str)
def test_a_text_of_another_type_is_refused(kind: pa.DataType, text: str) -> None:
    with pytest.raises((ValueError, pa.ArrowException)):
        column(kind, "null", text)


def test_an_object_that_two_records_hold_in_parts_is_none() -> None:
    make = JsonColumns(pa.schema([("a", WHOLE), ("o", pa.struct([("x", WHOLE)]))]), "Json")
    with pytest.raises(ValueError, match="truncated"):
        make([b'{"a":1,"o":', b'{"x":5}}{"a":3}'])


def test_names_of_any_letters_are_found_in_objects_and_in_objects_of_these() -> None:
    """In objects within each other too, and escaped: a typed dict of msgspec does not find such names."""
    for name in ("é", "😀", "a b", "", "$", "a.b", "class", "at0", "\uffff"):
        inner = pa.struct([(name, WHOLE)])
        schema = pa.schema([(name, WHOLE), ("in " + name, inner), ("all " + name, pa.list_(inner))])
        value = {name: 1, "in " + name: {name: 2}, "all " + name: [{name: 3}, None, {}]}
        expected = {**value, "all " + name: [{name: 3}, None, {name: None}]}
        texts = [json.dumps(value, ensure_ascii=escaped).encode() for escaped in (True, False)]
        make = pickle.loads(pickle.dumps(JsonColumns(schema, "Json")))
        assert make(texts).to_pylist() == [expected, expected]


def test_what_is_written_comes_back_whatever_its_types_are(exhaustive: bool) -> None:
    kinds = {
        **VALUES,
        **NESTED,
        "deep": (
            pa.list_(pa.struct([("l", pa.list_(NESTED["st"][0])), ("d", VALUES["d"][0])])),
            [[], [None, {"l": None, "d": None}, {"l": [NESTED["st"][1][1], None], "d": VALUES["d"][1][1]}]],
        ),
    }
    for seed in range(1_000 if exhaustive else 50):
        chance = Random(seed)
        names = chance.sample(list(kinds), chance.randint(1, 6))
        schema = pa.schema([(name, kinds[name][0]) for name in names])
        rows = [
            {name: chance.choice([None, *kinds[name][1]]) for name in names} for _ in range(chance.choice([0, 1, 30]))
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema)
        texts = encode_columns(batch).splitlines()
        found = JsonColumns(schema, "Json")([text for text in texts if text])
        found.validate(full=True)
        assert repr(found.to_pylist()) == repr(batch.to_pylist()), seed


def test_a_required_field_may_not_be_missing() -> None:
    make = JsonColumns(pa.schema([pa.field("a", WHOLE, nullable=False), ("b", WHOLE)]), "Json")
    assert make([b'{"a":1}']).to_pylist() == [{"a": 1, "b": None}]
    for text in (b"{}", b'{"a":null}'):
        with pytest.raises(ValueError, match=r"`a`|\.a`"):
            make([text])


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"a": pa.map_(pa.string(), WHOLE)}, "Kafka: column 'a' is .*: maps are not read"),
        ({"a": pa.list_(pa.struct([("b", pa.duration("us"))]))}, "column 'a', field 'b' is duration.*: it is not read"),
        ({'"': WHOLE}, "leave the schema out"),
        ({"a": pa.struct([("x", WHOLE), ("x", WHOLE)])}, "column 'a', field names are not read"),
    ],
)
def test_columns_that_are_not_read_are_refused_before_there_is_a_record(schema: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        JsonColumns(pa.schema(schema), "Kafka")
