"""Sinks of CSV and JSON lines: values come back as they were, and what would not is refused."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.files.jsoncolumns import JsonColumns
from tailrace.connectors.hidden import COVER
from tests.connectors.test_sinks import Place
from tests.connectors.test_sources import everything

UTC, LARGE = dt.UTC, Decimal("12345678901234567890123456789.123456789")
TEXTS = [
    "",
    '"',
    "a,b",
    "a\nb",
    "a\r\nb",
    "\r",
    "null",
    "nan",
    "  x ",
    "é😀",
    "a\0b",
    "\ufeff",
    "'",
    "\\n",
    "\t",
    "1",
    "\u2028",
]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [0, 2**63 - 1, -(2**63)]),
    "u": (pa.uint64(), [0, 2**64 - 1]),
    "f": (pa.float64(), [0.0, -0.0, 1e308, 5e-324, 0.1, 1e22]),
    "g": (pa.float32(), [0.5, 0.1, 3.4e38]),
    "d": (pa.decimal128(38, 9), [Decimal("-1E-9"), LARGE]),
    "s": (pa.string(), TEXTS),
    "t": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "ts": (pa.timestamp("us"), [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "tz": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    ),
}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "st": (
        pa.struct([("a", pa.int64()), ("at", pa.timestamp("us", "UTC"))]),
        [{"a": 1, "at": None}, {"a": None, "at": VALUES["tz"][1][1]}],
    ),
    "li": (pa.list_(pa.string()), [[], [None, *TEXTS]]),
}
EXTREME = {"f": [math.nan, math.inf, -math.inf]}


def written(sink: Any, batch: pa.RecordBatch) -> None:
    writer = sink.writer(Place())
    writer.write(batch)
    sink.publish([writer.prepare()])


@pytest.mark.parametrize("kind", ["Csv", "Json"])
def test_values_come_back_as_they_were(kind: str, tmp_path: Path) -> None:
    values, random = (
        VALUES | (NESTED if kind == "Json" else {"tm": (pa.time64("us"), [dt.time(23, 59, 59, 1)])}),
        Random(7),
    )
    for number in range(20):
        names = random.sample(list(values), random.randint(2, len(values)))
        schema = pa.schema([(name, values[name][0]) for name in names])
        more = EXTREME if kind == "Csv" else {}
        rows = [
            {name: random.choice([None, *values[name][1], *more.get(name, [])]) for name in names}
            for _ in range(random.randint(1, 30))
        ]
        batch, place = pa.RecordBatch.from_pylist(rows, schema), str(tmp_path / str(number))
        written(getattr(tr.sinks, kind)(place, schema), batch)
        found = [row.asDict() for part in everything(getattr(tr.sources, kind)(place, schema), 1) for row in part]
        again = pa.RecordBatch.from_pylist(found, schema)
        assert list(map(repr, again.to_pylist())) == list(map(repr, batch.to_pylist())), names


@pytest.mark.parametrize(("compression", "end"), [("gzip", ".gz"), ("zstd", ".zst")])
@pytest.mark.parametrize("kind", ["Csv", "Json"])
def test_compressed_files_come_back(kind: str, compression: str, end: str, tmp_path: Path) -> None:
    """As one file, in files of a size, and in folders by a column. What was not prepared is swept."""
    batch = pa.record_batch({"day": ["a", "b"] * 500, "n": list(range(1_000))})
    for number, options in enumerate([{}, {"roll": tr.Roll(bytes=100)}, {"partition_by": "day"}]):
        place = tmp_path / str(number)
        sink = pickle.loads(pickle.dumps(getattr(tr.sinks, kind)(str(place), compression=compression, **options)))
        writer = sink.writer(Place())
        for at in range(0, 1_000, 100):
            writer.write(batch.slice(at, 100))
        sink.publish([writer.prepare()])
        lost = sink.writer(Place(attempt=0, subtask=1))
        lost.write(batch)
        sink.recover(["run"], 2, "sink")
        assert not list(place.rglob(f"*{COVER}"))
        names = [path.name for path in place.rglob("part-*")]
        assert len(names) == [1, 10, 2][number] and all(name.endswith(f".{kind.lower()}{end}") for name in names)
        source = getattr(tr.sources, kind)(
            str(place), batch.schema if number < 2 else pa.schema([batch.schema.field(1)])
        )
        found = sorted((row.n, row.day) for part in everything(source, 1) for row in part)
        assert found == list(zip(batch["n"].to_pylist(), batch["day"].to_pylist(), strict=True))


def test_a_compression_that_no_source_reads_is_refused(tmp_path: Path) -> None:
    for compression in ("lzo", "", 7):
        with pytest.raises(tr.ConfigError, match="Csv: compression must be 'gzip' or 'zstd', or None for plain files"):
            tr.sinks.Csv(str(tmp_path), compression=compression)  # type: ignore[arg-type]


def test_pandas_reads_what_is_written(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1, None], "text": ['a "b"\n', ""]})
    written(tr.sinks.Csv(str(tmp_path / "csv")), batch)
    written(tr.sinks.Json(str(tmp_path / "json")), batch)
    [csv], [lines] = (list((tmp_path / kind).glob("part-*")) for kind in ("csv", "json"))
    assert csv.read_text() == '"n","text"\n1,"a ""b""\n"\n,""\n'
    assert lines.read_text() == '{"n":1,"text":"a \\"b\\"\\n"}\n{"n":null,"text":""}\n'
    assert list(pd.read_csv(csv, keep_default_na=False)["text"]) == ['a "b"\n', ""]
    assert list(pd.read_json(lines, lines=True)["n"].fillna(0)) == [1, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_refused_where_they_are_written(value: float, tmp_path: Path) -> None:
    writer = tr.sinks.Json(str(tmp_path)).writer(Place())
    batch = pa.record_batch({"a": [[1.0], [value]], "b": [1, 2]})
    with pytest.raises(ValueError, match=f"JSON has no {value!r}"):
        writer.write(batch)
    assert repr(writer.record) == repr({"a": [value], "b": 2})


@pytest.mark.parametrize("value", [b"null", b"[1]", b"7", b'"{"', b"", b" \t"])
def test_a_value_that_is_no_object_is_refused_and_does_not_crash_arrow(value: bytes) -> None:
    make = JsonColumns(pa.schema([("a", pa.int64())]), "Json")
    with pytest.raises(ValueError, match="no JSON object"):
        make([b'{"a": 1}', value])
    assert make([b'\t{"a": 1}', b"{}", b'{"a":\nnull}']).to_pylist() == [{"a": 1}, {"a": None}, {"a": None}]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: tr.sinks.Csv("out", pa.schema([("a", pa.list_(pa.int8()))])), "a field of CSV holds a number"),
        (lambda: tr.sinks.Csv("out", pa.schema([("a", pa.binary())])), "or make a text of it"),
        (lambda: JsonColumns(pa.schema([]), "Json"), "the schema has no columns"),
        (lambda: tr.sinks.Json("out", pa.schema([("a", pa.binary())])), "which JSON does not have"),
        (lambda: tr.sinks.Json("out", pa.schema([("a", pa.map_(pa.string(), pa.int8()))])), "write Parquet"),
        (lambda: tr.sinks.Json("out", pa.schema([("a", pa.timestamp("ns"))])), "timestamps have microseconds"),
        (lambda: tr.sinks.Json("out", pa.schema([("a", pa.int8())]), partition_by="b"), "Json: partition_by has 'b'"),
    ],
)
def test_columns_that_would_not_come_back_are_refused(make: Any, error: str) -> None:
    with pytest.raises(tr.ConfigError, match=error):
        make()


def test_a_csv_file_of_one_column_has_no_null(tmp_path: Path) -> None:
    writer = tr.sinks.Csv(str(tmp_path)).writer(Place())
    with pytest.raises(ValueError, match="such a line of CSV is empty"):
        writer.write(pa.record_batch({"a": [1, None]}))
