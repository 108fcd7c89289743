"""Columns in the names of folders: names, values and types are those of pyarrow's datasets and of Spark."""

import datetime as dt
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.connectors.files.partitions import escape, unescape
from tests.connectors.test_sources import everything


@given(st.text())
def test_what_is_escaped_is_a_part_of_a_path_and_comes_back(text: str) -> None:
    assert unescape(escape(text)) == text.encode(errors="replace").decode() or "\x00" in text or "%" not in escape(text)
    assert "/" not in escape(text)
    assert "=" not in escape(text)


def test_characters_are_escaped_as_spark_escapes_them() -> None:
    assert escape("a b/c=d:e%f\"g#h*i?j\\k{l[m]n^o\x01\x7f'}é") == (
        "a b%2Fc%3Dd%3Ae%25f%22g%23h%2Ai%3Fj%5Ck%7Bl%5Bm%5Dn%5Eo%01%7F%27}é"
    )


INFERRED = [
    (["1", "2"], pa.int32(), [1, 2]),
    (["007", "-3"], pa.int32(), [7, -3]),
    (["1", "2147483648"], pa.int64(), [1, 2147483648]),
    (["1", "2.5"], pa.float64(), [1.0, 2.5]),
    (["1", "a"], pa.string(), ["1", "a"]),
    (["2024-01-02", "1999-12-31"], pa.date32(), [dt.date(2024, 1, 2), dt.date(1999, 12, 31)]),
    (["2024-01-02", "2024-13-31"], pa.string(), ["2024-01-02", "2024-13-31"]),
    (["2024-01-02", "5"], pa.string(), ["2024-01-02", "5"]),
    (["__HIVE_DEFAULT_PARTITION__", "5"], pa.int32(), [None, 5]),
    (["__HIVE_DEFAULT_PARTITION__"], pa.string(), [None]),
    (["a%2Fb", "c%3Dd é"], pa.string(), ["a/b", "c=d é"]),
    (["true"], pa.string(), ["true"]),
]


@pytest.mark.parametrize(("names", "kind", "values"), INFERRED)
@pytest.mark.parametrize("remote", [False, True])
def test_types_are_inferred_from_all_folders(
    names: list[str], kind: Any, values: list[Any], remote: bool, tmp_path: Path
) -> None:
    place = f"memory://{tmp_path.name}" if remote else str(tmp_path)
    fs = fsspec.filesystem("memory" if remote else "file")
    for at, name in enumerate(names):
        folder = f"{place.removeprefix('memory:/')}/k={name}"
        fs.makedirs(folder, exist_ok=True)
        with fs.open(f"{folder}/{at}.parquet", "wb") as file:
            pq.write_table(pa.table({"at": [at]}), file)
    for form in ("rows", "columns"):
        source = tr.sources.Parquet(place, form=form)  # type: ignore[arg-type]
        assert source.schema.field("k").type == kind
        found = [record for records in everything(source, 1) for record in records]
        pairs = [tuple(record.values()) if isinstance(record, dict) else record for record in found]
        assert sorted(pairs) == list(enumerate(values))


@pytest.mark.parametrize("seed", range(10))
def test_parquet_is_read_as_by_a_dataset_of_pyarrow(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    schema = pa.schema([("x", pa.int64()), ("day", pa.date32()), ("city", pa.string())])
    days = [None, dt.date(2024, 2, 28), dt.date(2024, 2, 29)]
    cities = [None, "a/b", "x=y", "ü €", "10%", "a b", "'q\"", "Z"]
    rows = [{"x": i, "day": random.choice(days), "city": random.choice(cities)} for i in range(random.randint(1, 80))]
    keys = random.sample(["day", "city"], random.randint(1, 2))
    flavor = ds.partitioning(pa.schema([schema.field(key) for key in keys]), flavor="hive")
    ds.write_dataset(pa.Table.from_pylist(rows, schema), tmp_path, format="parquet", partitioning=flavor)
    declared = pa.schema([schema.field(key) for key in keys])
    found = [one for part in everything(tr.sources.Parquet(str(tmp_path), partitions=declared), 1) for one in part]
    assert sorted((row.asDict() for row in found), key=lambda row: row["x"]) == rows
    theirs = ds.dataset(tmp_path, partitioning=flavor).to_table().to_pylist()
    assert sorted(theirs, key=lambda row: row["x"]) == rows


def folders(base: Path, *names: str) -> str:
    for name in names:
        (base / name).mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), base / name / "f.parquet")
    return str(base)


def test_folders_with_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tr.ConfigError, match=r"have the columns \(b\), and those of the first file \(a\)"):
        tr.sources.Parquet(folders(tmp_path / "1", "a=1", "b=1"))
    with pytest.raises(tr.ConfigError, match=r"have the columns \(\), and those of the first file \(a\)"):
        tr.sources.Parquet(folders(tmp_path / "2", "a=1", "c"))
    with pytest.raises(tr.ConfigError, match="have one column twice: a, a"):
        tr.sources.Parquet(folders(tmp_path / "3", "a=1/a=1"))
    with pytest.raises(tr.ConfigError, match=r"'x' is in the files below .* and in the names of their folders"):
        tr.sources.Parquet(folders(tmp_path / "4", "x=1"))
    with pytest.raises(tr.ConfigError, match="the folder's a=z is no int32"):
        tr.sources.Parquet(folders(tmp_path / "5", "a=z"), partitions="a int")


def test_without_partitions_names_of_folders_are_only_names(tmp_path: Path) -> None:
    source = tr.sources.Parquet(folders(tmp_path, "x=7", "b"), partitions=False)
    assert everything(source, 1) == [[(1,)], [(1,)]]


def test_columns_are_below_the_folder_in_which_the_path_begins(tmp_path: Path) -> None:
    base = folders(tmp_path, "a=1/b=2")
    assert tr.sources.Parquet(base).columns == ("x", "a", "b")
    assert tr.sources.Parquet(f"{base}/a=*/b=2/*").columns == ("x", "a", "b")
    assert tr.sources.Parquet(f"{base}/a=1").columns == ("x", "b")
    assert tr.sources.Parquet(f"{base}/a=1/b=2/f.parquet").columns == ("x",)


def test_a_folder_of_a_column_whose_name_begins_with_an_underscore_is_read(tmp_path: Path) -> None:
    assert tr.sources.Parquet(folders(tmp_path, "_a=1", "_temporary")).columns == ("x", "_a")


def test_lines_have_the_columns_beside_them(tmp_path: Path) -> None:
    (tmp_path / "day=2024-01-01").mkdir()
    (tmp_path / "day=2024-01-01" / "a.txt").write_bytes(b"x\r\n\ny")
    day = dt.date(2024, 1, 1)
    source = tr.sources.TextFiles(str(tmp_path), partitions=True)
    assert everything(source, 1) == [[("x", day), ("", day), ("y", day)]]
    assert source.columns == ("value", "day")
    unparsed, parse = source.raw_source()
    assert [parse(raw) for part in everything(unparsed, 1) for raw in part] == [("x", day), ("", day), ("y", day)]
    assert everything(tr.sources.TextFiles(str(tmp_path)), 1) == [["x", "", "y"]]
