"""JSON lines of columns: byte for byte what each row gives as a dict, whatever its values."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.connectors.files.jsonvalues import encode_columns, encode_json, encode_objects
from tests.connectors.files.test_textwriters import NESTED, TEXTS, VALUES

MORE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127]),
    "byte": (pa.uint8(), [0, 255]),
    "numbers": (pa.float64(), [1e16, 1e15, 123456789012345680.0, -1e-5, 1e-4, 1.5, 100.0, 1 / 3, 2.0**63, 1e21]),
    "plain": (pa.string(), ["", "a", "é😀", "\x7f", "\u2028", "/<>&'", "x" * 300]),
    "large": (pa.large_string(), ["", "a,b", *TEXTS]),
    "bytes": (pa.binary(), [b"", b"\0\xff\n", b"null"]),
    "none": (pa.null(), [None]),
    "word": (pa.dictionary(pa.int8(), pa.string()), ["a", '"', ""]),
    "map": (pa.map_(pa.string(), pa.float64()), [[], [("a", 1.0), ("\n", None)]]),
    "time": (pa.time64("us"), [dt.time(23, 59, 59, 1)]),
    "span": (pa.duration("us"), [dt.timedelta(days=-1, microseconds=1)]),
    'a "name"\n\\': (pa.int64(), [-1]),
    "é": (pa.decimal128(5, 2), [Decimal("-0.10")]),
    "": (pa.list_(pa.float32()), [[], [0.1, None]]),
}
KINDS = VALUES | NESTED | MORE


def drawn_batch(chance: random.Random) -> pa.RecordBatch:
    names = chance.sample(list(KINDS), chance.randint(1, 8))
    rows, nulls = chance.choice([0, 1, 2, 30]), chance.choice([0.0, 0.0, 0.3, 1.0])
    arrays = []
    for name in names:
        kind, values = KINDS[name]
        drawn = [None if chance.random() < nulls else chance.choice(values) for _ in range(rows + 3)]
        arrays.append(pa.array(drawn, kind)[chance.randint(0, 3) :][:rows])
    return pa.RecordBatch.from_arrays(arrays, names)


def test_a_line_is_what_its_row_gives_as_a_dict(exhaustive: bool) -> None:
    for seed in range(5_000 if exhaustive else 300):
        batch = drawn_batch(random.Random(seed))
        texts = list(map(encode_json, batch.to_pylist()))
        assert encode_objects(batch.to_pylist()) == texts, seed
        assert encode_columns(batch) == b"".join(text + b"\n" for text in texts), seed


def test_a_batch_without_columns_or_with_a_name_twice_is_taken_row_by_row() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    assert encode_columns(twice) == b'{"a":2}\n'
    empty = pa.record_batch({"a": [1, 2]}).select([])
    assert encode_columns(empty).splitlines() == encode_objects(empty.to_pylist())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": value}])
@pytest.mark.parametrize("null", [False, True])
def test_numbers_that_json_does_not_have_are_refused(value: float, wrap: Any, null: bool) -> None:
    batch = pa.RecordBatch.from_pylist([{"v": wrap(1.0)}, {"v": wrap(value)}, *([{"v": None}] if null else [])])
    with pytest.raises(ValueError, match=f"JSON has no {value!r}"):
        encode_columns(batch)


def test_json_with_line_breaks_stays_one_text() -> None:
    records = [{"a": msgspec.Raw(b"[1,\n2]")}, {"a": None}]
    assert encode_objects(records) == [b'{"a":[1,\n2]}', b'{"a":null}']


def test_text_that_is_not_utf_8_is_refused() -> None:
    """Two halves of a letter in two rows would be a letter."""
    halves = pa.array([b"\xc3", b"\xa9"]).view(pa.string())
    with pytest.raises(UnicodeDecodeError):
        encode_columns(pa.record_batch({"a": halves, "n": [1, 2]}))
