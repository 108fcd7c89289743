"""CSV and JSON lines: their records are those that pandas, pyarrow and Python find, from any position on, and a wrong record
is reported with its place, or set aside."""

import csv
import datetime as dt
import gzip
import io
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pytest

import tailrace as tr

TEXTS = ["", "a", 'say "no"', "two\nlines", "a\r\nb", ",", "é€😀", "'", "null", " x ", "\\", '"', "\n", "5%"]


def read(source: tr.Source, random: Random) -> list[Any]:
    """The records of a source, by readers that are left and made anew from their positions at random places."""
    found: list[Any] = []
    for split in source.splits(1):
        reader = source.reader(split)
        while (batch := reader.read(limit := random.choice([1, 2, 7, 1000]), 0.0)) is not None:
            assert len(batch) <= limit
            found += batch.to_pylist() if isinstance(batch, pa.RecordBatch) else batch
            if random.random() < 0.5:
                position = pickle.loads(pickle.dumps(reader.position))
                reader.close()
                reader = source.reader(split, position)
        reader.close()
    return found


def put(place: str, name: str, data: bytes) -> None:
    if place.startswith("memory:"):
        fsspec.filesystem("memory").pipe(f"{place}/{name}".partition(":/")[2], data)
        return
    path = Path(place) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder, or one behind a URL."""
    return str(tmp_path / "in") if request.param == "local" else f"memory://{tmp_path.name}"


def table(random: Random) -> list[dict[str, Any]]:
    def record() -> dict[str, Any]:
        return {
            "n": random.choice([None, random.randint(-(2**63), 2**63 - 1)]),
            "text": random.choice([None, *TEXTS]),
            "x": random.choice([None, random.uniform(-1e9, 1e9), 0.0]),
            "day": random.choice([None, dt.date(1970, 1, 1) + dt.timedelta(random.randint(-9999, 99999))]),
            "at": random.choice([None, dt.datetime(2024, 2, 29, 1, 2, 3, random.choice([0, 5, 120_000]))]),
            "money": random.choice([None, Decimal(random.randint(-9999, 9999)).scaleb(-2)]),
            "yes": random.choice([None, True, False]),
            "other": random.choice(TEXTS),
        }

    return [record() for _ in range(random.randint(0, 60))]


SCHEMA = "n long, text string, x double, day date, at timestamp_ntz, money decimal(10,2), yes boolean, other string"


def as_csv(rows: list[dict[str, Any]], random: Random, names: list[str]) -> bytes:
    """Records as a program may write them: null is an unquoted empty field, other fields may be in quotes."""

    def field(value: Any) -> str:
        if value is None:
            return ""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if text == "" or any(one in text for one in ',"\r\n') or random.random() < 0.2:
            return '"' + text.replace('"', '""') + '"'
        return text

    end = random.choice(["\n", "\r\n"])
    lines = [",".join(names), *(",".join(field(row[name]) for name in names) for row in rows)]
    data = end.join(lines) + random.choice(["", end, end + end])
    return random.choice([b"", b"\xef\xbb\xbf"]) + data.encode()


@pytest.mark.parametrize("seed", range(12))
def test_csv_is_read_as_it_was_written_from_any_position_on(seed: int, place: str) -> None:
    random = Random(seed)
    expected: list[dict[str, Any]] = []
    for file in range(random.randint(1, 3)):
        rows = table(random)
        names = random.sample(list(table(Random(2))[0]), 8)
        data, packed = as_csv(rows, random, names), random.random() < 0.3
        put(place, f"f{file}.csv" + ".gz" * packed, gzip.compress(data) if packed else data)
        expected += rows
    columns = read(tr.sources.Csv(place, SCHEMA, form="columns"), random)
    assert columns == expected
    assert [row.asDict() for row in read(tr.sources.Csv(place, SCHEMA), random)] == expected
    part = read(tr.sources.Csv(place, "other string, n long"), random)
    assert part == [(row["other"], row["n"]) for row in expected]


@pytest.mark.parametrize("seed", range(5))
def test_csv_is_read_as_pandas_reads_it(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    frame = pd.DataFrame(table(random) or [{"n": 1, "text": "a"}]).astype(object).astype(str)
    quoting = random.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
    frame.to_csv(tmp_path / "f.csv", index=False, quoting=quoting, sep=";")
    again = pd.read_csv(tmp_path / "f.csv", dtype=str, keep_default_na=False, sep=";")
    found = read(tr.sources.Csv(str(tmp_path), sep=";", null="<none>"), random)
    assert [tuple(row) for row in found] == list(again.itertuples(index=False, name=None))


@pytest.mark.parametrize("seed", range(8))
def test_json_lines_are_read_as_they_were_written_from_any_position_on(seed: int, place: str) -> None:
    random = Random(seed)
    rows = table(random)
    lines = [json.dumps(row, default=str, ensure_ascii=random.random() < 0.5) for row in rows]
    end = random.choice(["\n", "\r\n", "\n\n"])
    put(place, "a.json", (end.join(lines) + random.choice(["", end])).encode())
    assert read(tr.sources.Json(place), random) == [json.loads(line) for line in lines]
    assert [row.asDict() for row in read(tr.sources.Json(place, SCHEMA), random)] == rows
    assert read(tr.sources.Json(place, SCHEMA, form="columns"), random) == rows


def test_fields_that_are_missing_are_null_and_others_are_left_out(place: str) -> None:
    put(place, "a.json", b'{"b": {"x": "2024-01-01", "z": 1}, "c": 1}\n{"a": 2, "b": null}\n{"b": {}}\n')
    found = read(tr.sources.Json(place, "a int, b struct<x: date, y: array<int>>"), Random(1))
    assert found == [(None, {"x": dt.date(2024, 1, 1), "y": None}), (2, None), (None, {"x": None, "y": None})]


WRONG = [
    ("a long, b string", b"a,b\n1,x\ny,x\n", 8, "invalid value 'y'"),
    ("a long, b string", b"a,b\r\n1,x\r\n1\r\n", 10, "Expected 2 columns, got 1"),
    ("a long, b string", b'a,b\n1,"x\n\n2,y', 4, "the quote is not closed"),
    ("a long, b string", b'a,b\n1,"x"y\n2,z\n', 4, "expected after"),
    ("a long, b string", b"\xef\xbb\xbfa,b\n1,\xff\n", 7, "invalid UTF8"),
    ("a long, b string", b"a,b\n2,x\n1,x\ry\n", 8, "Expected 2 columns"),
    ("b string", b"b\nx\ry\n", 2, "hold 2"),
]


@pytest.mark.parametrize(("schema", "data", "at", "fault"), WRONG)
@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_wrong_csv_record_is_reported_with_its_place(
    schema: str, data: bytes, at: int, fault: str, form: Any, place: str
) -> None:
    put(place, "w.csv", data)
    with pytest.raises(ValueError, match=rf"w\.csv at byte {at}: .*{fault}"):
        read(tr.sources.Csv(place, schema, form=form), Random(3))


DEEP = b'{"b": ' + b"[" * 100_000
"""A line of JSON with lists in lists without end."""


@pytest.mark.parametrize("schema", [None, "a long"])
@pytest.mark.parametrize("line", [b'{"a": 1', b'{"a": 1}{"a": 2}', b'{"a": "\xff"}', b"nonsense", DEEP], ids=range(5))
def test_a_wrong_line_of_json_is_reported_with_its_place(schema: Any, line: bytes, place: str) -> None:
    put(place, "w.json", b'{"a": 1}\r\n\n' * 50 + line + b'\n{"a": 2}\n')
    with pytest.raises(ValueError, match=r"w\.json at byte 550: "):
        read(tr.sources.Json(place, schema), Random(3))


def test_with_on_error_wrong_records_are_set_aside_with_their_places(tmp_path: Path) -> None:
    """Behind a quote that is not closed in its line, a record ends where the fault is seen."""
    lines = [b"a,b", b"1,x", b"y,x", b'2,"p\nq"', b'3,"x"y', b"4,", b'5,"', b"6,z"]
    (tmp_path / "w.csv").write_bytes(b"\n".join(lines))
    env = tr.Environment(parallelism=2)
    good = env.from_source(tr.sources.Csv(str(tmp_path), "a long, b string"), on_error=tr.Aside("bad"))
    kept, aside = good.sink_to(tr.sinks.Collect()), good.side_output("bad").sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert kept.result() == [(1, "x"), (2, "p\nq"), (4, None)]
    path = str(tmp_path / "w.csv")
    assert [failed.record[:3] for failed in aside.result()] == [
        (path, 8, b"y,x"),
        (path, 20, b'3,"x"y'),
        (path, 30, b'5,"\n6,z'),
    ]
    assert f"{path} at byte 20: ',' expected after" in str(aside.result()[1].error)


@pytest.mark.parametrize("seed", range(3))
def test_raw_records_go_on_from_any_position_whatever_their_quotes(seed: int, tmp_path: Path) -> None:
    """Behind a quote that is not closed many lines are one record, and those behind its fault are many at once."""
    random = Random(seed)
    lines = [random.choice(["a,b", '"x\ny",1', '1,"', '"p"q,2', "", "5"]) for _ in range(200)]
    lines.insert(random.randint(0, 200), '"' + 3000 * "long long long long long long long long long\n")
    (tmp_path / "w.csv").write_text("\n".join(lines))
    source, _ = tr.sources.Csv(str(tmp_path), "a string, b string", header=False).raw_source() or (None, None)
    assert source is not None
    whole = read(source, Random(-1))
    again = read(source, random)
    assert again == whole
    data = (tmp_path / "w.csv").read_bytes()
    assert all(data[at : at + len(raw)] == raw for _, at, raw in whole)
    assert b"".join(raw for _, _, raw in whole).replace(b"\n", b"") == data.replace(b"\n", b"")


def test_with_on_error_json_lines_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "day=7").mkdir()
    (tmp_path / "day=7" / "w.json").write_bytes(b'{"a": 1}\nnonsense\n{"a": 2}\n')
    env = tr.Environment(parallelism=1)
    good = env.from_source(tr.sources.Json(str(tmp_path)), on_error=tr.Aside("bad"))
    kept = good.sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert kept.result() == [{"a": 1, "day": 7}, {"a": 2, "day": 7}]


def wrong_settings() -> Iterator[tuple[Any, str]]:
    csv_at, json_at = tr.sources.Csv, tr.sources.Json
    yield lambda place: csv_at(place + "/nothing"), "there are no files at"
    yield lambda place: csv_at(place, header=False), "need a schema"
    yield lambda place: csv_at(place, "c long"), r"the columns \(a, b\), and the source \(c\)"
    yield lambda place: csv_at(place, "a long, b array<int>"), "holds one value"
    yield lambda place: csv_at(place, sep=",,"), "sep must be one ASCII character"
    yield lambda place: csv_at(place, sep='"'), "sep must be one ASCII character"
    yield lambda place: csv_at(place, poll=3.0), "poll is how often"
    yield lambda place: csv_at(place, follow=7), "follow must be True or False"
    yield lambda place: json_at(place, form="columns"), "needs a schema"
    yield lambda place: json_at(place, "m map<string, int>"), "maps are not read"
    yield lambda place: json_at(place, "a int", form="rowwise"), "form must be"


@pytest.mark.parametrize(("make", "fault"), list(wrong_settings()))
def test_wrong_settings_are_refused_where_they_are_written(make: Any, fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(tr.ConfigError, match=fault):
        source = make(str(tmp_path))
        for split in source.splits(1):
            source.reader(split)


def test_files_of_other_columns_are_refused_without_a_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,c\n1,2\n")
    source = tr.sources.Csv(str(tmp_path))
    with pytest.raises(tr.ConfigError, match=r"b\.csv has the columns \(a, c\), and the source \(a, b\)"):
        read(source, Random(1))
    with pytest.raises(tr.ConfigError, match="has the column 'a' twice"):
        (tmp_path / "a.csv").write_text("a,a\n1,2\n")
        tr.sources.Csv(str(tmp_path))


def test_a_file_behind_a_url_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}"
    put(place, "a.csv", b"a\n1\n2\n")
    for source in (tr.sources.Csv(place), tr.sources.TextFiles(place)):
        reader = source.reader(source.splits(1)[0])
        reader.read(1, 0.0)
        position = reader.position
        put(place, "a.csv", b"a\n1\n2\n3\n")
        with pytest.raises(tr.ConfigError, match=r"a\.csv was written anew"):
            source.reader(source.splits(1)[0], position)


def test_a_csv_field_may_go_over_many_reads(tmp_path: Path) -> None:
    long = "x\n" * 60_000
    out = io.StringIO()
    csv.writer(out).writerows([["a", "b"], ["1", long], ["2", "y"]])
    (tmp_path / "a.csv").write_text(out.getvalue(), newline="")
    assert read(tr.sources.Csv(str(tmp_path)), Random(0)) == [("1", long), ("2", "y")]
