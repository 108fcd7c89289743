"""Sources: whatever position a reader gives, reading on from it gives exactly the rest."""

import bz2
import datetime as dt
import gzip
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace as tr
from tailrace.connectors.sources import ArrowFiles
from tests.connectors.test_lines import hadoop


def plain(data: Any) -> list[Any]:
    """What a reader gave, as a list of records."""
    return data.to_pylist() if isinstance(data, pa.RecordBatch) else list(data)


def drain(reader: tr.Reader, limits: Iterator[int], most: int = 10_000) -> list[Any]:
    """Everything that a reader gives until its end."""
    found: list[Any] = []
    now = 0.0
    for _ in range(most):
        limit = next(limits)
        data = reader.read(limit, now)
        if data is None:
            reader.close()
            return found
        records = plain(data)
        assert len(records) <= limit
        if not records:
            assert reader.next_at(now) >= now
            now = reader.next_at(now) + 1e-6
        found += records
    raise AssertionError("the reader never ends")


def always(limit: int) -> Iterator[int]:
    while True:
        yield limit


def everything(source: tr.Source, parallelism: int) -> list[list[Any]]:
    """The records of each split."""
    return [drain(source.reader(split), always(1000)) for split in source.splits(parallelism)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, with a few hundred records each."""
    made = tmp_path_factory.mktemp("sources")
    lines = [f"line {i} " + "é" * (i % 5) for i in range(300)]
    (made / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (made / "no-end.txt").write_text("\n".join(lines[:50]), encoding="utf-8")
    (made / "crlf.txt").write_bytes("\r\n".join(lines[:50]).encode() + b"\r\n\r\n")
    (made / "gaps.txt").write_bytes(b"\n\n\na\n\nb\n\n")
    (made / "empty.txt").write_bytes(b"")
    table = pa.table({"x": range(200), "name": [f"n{i}" for i in range(200)]})
    pq.write_table(table, made / "table.parquet", row_group_size=33)
    pq.write_table(table.slice(0, 0), made / "none.parquet")
    with pa.ipc.new_file(str(made / "table.arrow"), table.schema) as writer:
        for batch in [
            *table.to_batches(max_chunksize=70),
            *table.slice(0, 0).to_batches(),
            *table.slice(5, 3).to_batches(),
        ]:
            writer.write_batch(batch)
    return made


def endless() -> Iterator[int]:
    i = 0
    while True:
        yield i
        i += 1


SOURCES: dict[str, Callable[[Path], tr.Source]] = {
    "sequence": lambda folder: tr.sources.Sequence(-5, 113),
    "sequence with a rate": lambda folder: tr.sources.Sequence(0, 50, rate=1000),
    "empty sequence": lambda folder: tr.sources.Sequence(3, 3),
    "collection": lambda folder: tr.sources.Collection([{"n": i} for i in range(101)]),
    "empty collection": lambda folder: tr.sources.Collection([]),
    "generator of an index": lambda folder: tr.sources.Generator(lambda i: i * i, count=97),
    "generator of an iterator": lambda folder: tr.sources.Generator(lambda: iter(range(55))),
    "generator function": lambda folder: tr.sources.Generator(endless, count=60),
    "generator with a rate": lambda folder: tr.sources.Generator(endless, count=20, rate=100.0),
    "lines": lambda folder: tr.sources.TextFiles(str(folder / "lines.txt")),
    "lines without the last end": lambda folder: tr.sources.TextFiles(str(folder / "no-end.txt")),
    "lines with two-character ends": lambda folder: tr.sources.TextFiles(str(folder / "crlf.txt")),
    "empty lines": lambda folder: tr.sources.TextFiles(str(folder / "gaps.txt")),
    "empty file": lambda folder: tr.sources.TextFiles(str(folder / "empty.txt")),
    "several files": lambda folder: tr.sources.TextFiles(str(folder / "*.txt")),
    "parquet": lambda folder: tr.sources.Parquet(str(folder / "table.parquet")),
    "parquet in columns": lambda folder: tr.sources.Parquet(str(folder / "table.parquet"), form="columns"),
    "empty parquet": lambda folder: tr.sources.Parquet(str(folder / "none.parquet")),
    "arrow": lambda folder: ArrowFiles([str(folder / "table.arrow")], ("x", "name"), "rows"),
    "arrow in columns": lambda folder: ArrowFiles([str(folder / "table.arrow")], ("x", "name"), "columns"),
}


@pytest.mark.parametrize("name", SOURCES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_reading_on_from_any_position_gives_exactly_the_rest(name: str, folder: Path, data: st.DataObject) -> None:
    source = SOURCES[name](folder)
    parallelism = data.draw(st.integers(1, 4))
    limits = iter(lambda: data.draw(st.integers(1, 40)), None)
    for split in source.splits(parallelism):
        whole = drain(source.reader(split), always(1000))
        reader, read, now = source.reader(split), 0, 0.0
        for _ in range(data.draw(st.integers(0, 6))):
            given = reader.read(next(limits), now)
            if given is None:
                break
            read += len(plain(given))
            now += 1.0
        position = reader.position
        reader.close()
        assert drain(source.reader(split, position), limits) == whole[read:]


@pytest.mark.parametrize("name", SOURCES)
def test_splits_are_the_same_each_time_and_hold_everything_once(name: str, folder: Path) -> None:
    source = SOURCES[name](folder)
    alone = sorted(map(repr, (record for split in everything(source, 1) for record in split)))
    for parallelism in (1, 2, 5):
        assert list(source.splits(parallelism)) == list(source.splits(parallelism))
        assert sorted(map(repr, (r for split in everything(source, parallelism) for r in split))) == alone


@pytest.mark.parametrize("name", SOURCES)
def test_a_position_is_small_and_can_be_pickled(name: str, folder: Path) -> None:
    import pickle

    source = SOURCES[name](folder)
    for split in source.splits(2):
        reader = source.reader(split)
        reader.read(3, 0.0)
        assert len(pickle.dumps(reader.position)) < 100
        reader.close()


# Numbers.


def test_a_sequence_is_a_range_shared_out() -> None:
    assert everything(tr.sources.Sequence(3, 10), 3) == [[3, 6, 9], [4, 7], [5, 8]]
    assert tr.sources.Sequence(0, 5).bounded and not tr.sources.Sequence(0, None).bounded


def test_a_rate_is_over_all_subtasks_and_from_the_first_read_on() -> None:
    readers = [tr.sources.Sequence(0, None, rate=10.0).reader((i, 2)) for i in range(2)]
    for reader in readers:
        reader.read(1000, 100.0)
    assert [len(reader.read(1000, 102.0)) for reader in readers] == [10, 10]
    assert [len(reader.read(1000, 102.0)) for reader in readers] == [0, 0]
    assert readers[0].next_at(102.0) == pytest.approx(102.2)


def test_a_rate_is_kept_after_a_restore_and_nothing_is_caught_up_on() -> None:
    for source in (
        tr.sources.Sequence(0, None, rate=10.0),
        tr.sources.Generator(lambda i: i, rate=10.0),
        tr.sources.Generator(endless, rate=10.0),
    ):
        [split] = source.splits(1)
        reader = source.reader(split)
        reader.read(1000, 100.0)
        reader.read(1000, 101.0)
        again = source.reader(split, reader.position)  # an hour later
        assert plain(again.read(1000, 3700.0)) == [11]
        assert plain(again.read(1000, 3700.0)) == []
        assert plain(again.read(1000, 3700.35)) == [12, 13, 14]
        assert again.next_at(3700.35) == pytest.approx(3700.4)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_rate_that_no_float_can_hold_loses_nothing_and_does_not_spin(parallelism: int) -> None:
    env = tr.Environment(parallelism=parallelism)
    out = env.from_source(tr.sources.Sequence(0, 100, rate=7.3)).sink_to(tr.sinks.Collect())
    job = tr.testing.run(env)
    assert sorted(out.result()) == list(range(100))
    assert job.simulation.turns < 2_000


@pytest.mark.parametrize("rate", [0, -1, "fast"])
def test_a_rate_is_above_zero(rate: Any) -> None:
    with pytest.raises(tr.ConfigError, match="rate must be a number of records per second above zero"):
        tr.sources.Sequence(0, 1, rate=rate)
    with pytest.raises(tr.ConfigError, match="Sequence takes whole numbers, not 'a' and 1"):
        tr.sources.Sequence("a", 1)


def test_a_collection_is_shared_out_in_order() -> None:
    assert everything(tr.sources.Collection(["abcde", "x", "y", "z"]), 2) == [["abcde", "x"], ["y", "z"]]


# Generators.


def numbers_up_to(n: int = 3) -> Iterator[int]:
    yield from range(n)


def test_a_generator_function_is_an_iterator_whatever_its_parameters() -> None:
    source = tr.sources.Generator(numbers_up_to)
    assert source.bounded
    assert everything(source, 4) == [[0, 1, 2]]


def test_a_function_of_an_index_is_unbounded_without_a_count() -> None:
    assert not tr.sources.Generator(lambda i: i).bounded
    assert tr.sources.Generator(lambda i: i, count=3).bounded
    assert everything(tr.sources.Generator(lambda i: i, count=5), 2) == [[0, 2, 4], [1, 3]]
    assert everything(tr.sources.Generator(lambda i: i, count=0), 2) == [[], []]


@pytest.mark.parametrize("function", [5, None, lambda a, b: 1])
def test_what_is_no_generator_is_refused(function: Any) -> None:
    with pytest.raises(tr.ConfigError, match="Generator takes"):
        tr.sources.Generator(function)


# Lines.


def lines(path: Path, **options: Any) -> list[str]:
    return [line for split in everything(tr.sources.TextFiles(str(path), **options), 1) for line in split]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\r", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        ("é\u2028ü\x0b\n".encode(), ["é\u2028ü\x0b"]),
    ],
)
def test_a_line_ends_with_a_line_feed_and_nothing_else(content: bytes, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    assert lines(tmp_path / "f") == expected


def test_a_line_may_be_longer_than_a_read(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    (tmp_path / "f").write_text(f"a\n{long}\nb", encoding="utf-8")
    assert lines(tmp_path / "f") == ["a", long, "b"]


def test_what_is_no_utf8_is_reported_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"good\nbad \xff\n")
    with pytest.raises(ValueError, match="f at byte 5: not UTF-8"):
        lines(tmp_path / "f")


def followed(source: tr.Source) -> list[Any]:
    """The splits that are found at once."""
    finding = source.enumerator(1)
    assert finding is not None
    return list(finding.discover(0.0) or ())


def test_a_file_that_is_followed_is_read_on_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    source = tr.sources.TextFiles(str(path), follow=True)
    assert not source.bounded
    [split] = followed(source)
    reader = source.reader(split)
    assert plain(reader.read(10, 0.0)) == ["one"]
    assert plain(reader.read(10, 1.0)) == []
    with path.open("ab") as file:
        file.write(b"o\nthree\nfou")
    assert plain(reader.read(1, 2.0)) == ["two"]
    position = reader.position
    assert plain(reader.read(10, 2.0)) == ["three"]
    again = source.reader(split, position)
    assert plain(again.read(10, 3.0)) == ["three"]
    assert reader.position == again.position
    reader.close()
    again.close()


def test_a_rate_of_lines_is_over_all_subtasks_however_many_files_there_are(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / name).write_text("".join(f"{name}{i}\n" for i in range(100)))
    for parallelism in (1, 2, 8):
        source = tr.sources.TextFiles(str(tmp_path), rate=100.0)
        readers = [source.reader(split) for split in source.splits(parallelism)]
        assert len(readers) == min(5, parallelism)
        first = sum(len(reader.read(1000, 100.0)) for reader in readers)
        for tenth in range(1, 11):
            for reader in readers:
                first += len(reader.read(1000, 100.0 + tenth / 10))
        assert 95 <= first <= 105 + parallelism
    with pytest.raises(tr.ConfigError, match="leave out rate or follow"):
        tr.sources.TextFiles(str(tmp_path), rate=1, follow=True)


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    ".lz4": lambda data: pa.compress(data, codec="lz4", asbytes=True),
    ".br": lambda data: pa.compress(data, codec="brotli", asbytes=True),
    ".snappy": lambda data: hadoop(data, "snappy"),
}


@pytest.mark.parametrize("end", COMPRESSED)
def test_compressed_files_are_read(end: str, tmp_path: Path) -> None:
    expected = [f"line {i} " + "é" * (i % 7) for i in range(50_000)]
    half = len(expected) // 2
    parts = ["\n".join(expected[:half]) + "\n", "\n".join(expected[half:])]  # in two pieces, as if it was appended to
    path = tmp_path / f"f{end}"
    path.write_bytes(b"".join(COMPRESSED[end](part.encode()) for part in parts))
    source = tr.sources.TextFiles(str(path))
    assert everything(source, 1) == [expected]
    reader = source.reader(str(path))
    read = plain(reader.read(30_001, 0.0))
    again = source.reader(str(path), reader.position)
    assert read + drain(again, always(1000)) == expected
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"f{end}, behind byte \d+: cannot be read"):
        everything(source, 1)


def test_what_cannot_be_unpacked_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(tr.ConfigError, match=r"a.zip is an archive or compressed as .zip"):
        tr.sources.TextFiles("a.zip")
    (tmp_path / "b.lzo").touch()
    with pytest.raises(tr.ConfigError, match=r"b.lzo is an archive or compressed as .lzo"):
        lines(tmp_path)
    (tmp_path / "b.lzo").rename(tmp_path / "c.gz")
    (tmp_path / "c.gz").write_text("plain")
    with pytest.raises(ValueError, match=r"c.gz, behind byte 0: cannot be read: Not a gzipped file"):
        lines(tmp_path)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_byte_order_mark_is_no_part_of_a_line(end: str, tmp_path: Path) -> None:
    pack = COMPRESSED.get(end, bytes)
    for name, content in (("a", b"one\ntwo\n"), ("b", b"one"), ("c", b"")):
        (tmp_path / f"{name}{end}").write_bytes(pack(b"\xef\xbb\xbf" + content))
    assert lines(tmp_path) == ["one", "two", "one"]
    (tmp_path / "log").write_bytes(b"\xef\xbb\xbfone\n")
    source = tr.sources.TextFiles(str(tmp_path / "log"), follow=True)
    [split] = followed(source)
    assert plain(source.reader(split).read(10, 0.0)) == ["one"]


# Which files.


def test_a_path_is_a_file_a_folder_or_a_pattern(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS", "c[1].txt"):
        (tmp_path / name).write_text(name + "\n")
    (tmp_path / "folder.txt").mkdir()
    assert lines(tmp_path) == ["a.txt", "b.txt", "c[1].txt"]
    assert lines(tmp_path / "?.txt") == ["a.txt", "b.txt"]
    assert lines(tmp_path / "*.txt") == ["a.txt", "b.txt", "c[1].txt"]
    assert lines(tmp_path / "*") == ["a.txt", "b.txt", "c[1].txt"]
    assert lines(tmp_path / "_*") == ["_SUCCESS"]
    assert lines(tmp_path / "c[1].txt") == ["c[1].txt"]
    assert lines(tmp_path / ".hidden") == [".hidden"]
    with pytest.raises(tr.ConfigError, match="there are no files at"):
        lines(tmp_path / "nothing")


def test_folders_below_are_read_too_and_two_stars_are_folders_of_any_depth(tmp_path: Path) -> None:
    (tmp_path / "run[1]" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run[1]" / "_temporary" / "x").mkdir(parents=True)
    base = tmp_path / "run[1]"
    for name in ("1.txt", "a/2.txt", "a/b/3.txt", "a/b/3.csv", "_temporary/x/no.txt", "a/.no.txt"):
        (base / name).write_text(name + "\n")
    (base / "a" / "loop").symlink_to(base)
    assert lines(base) == ["1.txt", "a/2.txt", "a/b/3.csv", "a/b/3.txt"]
    assert lines(base / "**" / "*.txt") == ["1.txt", "a/2.txt", "a/b/3.txt"]
    assert lines(base / "**") == lines(base) == lines(base / "**" / "*")
    assert lines(base / "*" / "*.txt") == ["a/2.txt"]
    assert lines(base / "*" / "**" / "3.*") == ["a/b/3.csv", "a/b/3.txt"]
    assert lines(base / "_*" / "**") == ["_temporary/x/no.txt"]


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("here\n")
    for url in (f"file://{tmp_path}", f"file:{tmp_path}/f", f"file://localhost{tmp_path}/*"):
        assert everything(tr.sources.TextFiles(url), 1) == [["here"]]


def test_a_path_is_meant_from_where_the_dataflow_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("here\n")
    monkeypatch.chdir(tmp_path)
    source = tr.sources.TextFiles("f")
    monkeypatch.chdir(os.sep)
    assert everything(source, 1) == [["here"]]


# Files that come and grow.


def test_with_follow_files_that_come_later_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    source = tr.sources.TextFiles(str(tmp_path), follow=True)
    finding = source.enumerator(2)
    assert finding is not None

    def found(by: Any, now: float) -> list[str]:
        return [os.path.basename(split["path"]) for split in by.discover(now)]

    assert found(finding, 0.0) == ["a"]
    assert found(finding, 1.0) == []
    (tmp_path / "c").write_text("2\n")
    (tmp_path / "empty").touch()
    (tmp_path / ".hidden").write_text("no\n")
    position = finding.position
    assert found(finding, 2.0) == ["c"]
    (tmp_path / "b").write_text("3\n")
    again = source.enumerator(1, position)  # it was lost before it reported what it had found
    assert again is not None
    assert found(again, 3.0) == ["b", "c"]
    (tmp_path / "empty").write_text("not any more\n")
    assert found(again, 4.0) == ["empty"]
    assert 5.0 < finding.next_at(5.0) < 6.0


def test_with_follow_a_folder_may_be_empty_and_a_path_must_be_there(tmp_path: Path) -> None:
    finding = tr.sources.TextFiles(str(tmp_path), follow=True).enumerator(1)
    assert finding is not None and finding.discover(0.0) == []
    nowhere = tr.sources.TextFiles(str(tmp_path / "nowhere"), follow=True).enumerator(1)
    assert nowhere is not None
    with pytest.raises(tr.ConfigError, match="there are no files at"):
        nowhere.discover(0.0)


def test_without_follow_the_files_are_those_of_the_start(tmp_path: Path) -> None:
    assert tr.sources.TextFiles(str(tmp_path)).enumerator(1) is None


# Arrow files.


def test_files_of_a_dataframe_that_are_gone_are_reported() -> None:
    with pytest.raises(tr.ConfigError, match="is not there any more: the files of a DataFrame live as long as"):
        ArrowFiles([], ("x",), "rows").reader("/nowhere/part-00000.arrow", 5)


# Parquet.


def test_parquet_gives_named_tuples_or_batches(folder: Path) -> None:
    rows = drain(tr.sources.Parquet(str(folder / "table.parquet")).reader(str(folder / "table.parquet")), always(7))
    assert (rows[3].x, rows[3].name, len(rows)) == (3, "n3", 200)
    assert tr.sources.Parquet(str(folder / "table.parquet")).columns == ("x", "name")
    with pytest.raises(tr.ConfigError, match="Parquet: form must be 'rows' or 'columns', not 'arrow'"):
        tr.sources.Parquet(str(folder / "table.parquet"), form="arrow")
    with pytest.raises(tr.ConfigError, match="there are no files at"):
        tr.sources.Parquet("/nowhere")


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_parquet_runs_in_a_job(folder: Path, form: str) -> None:
    env = tr.Environment(parallelism=2)
    stream = env.from_source(tr.sources.Parquet(str(folder / "table.parquet"), form=form))
    out = stream.filter(lambda row: row.x >= 198).map(tuple).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == [(198, "n198"), (199, "n199")]


def test_a_parquet_file_that_cannot_be_read_is_reported_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "m.parquet")
    (tmp_path / "z.crc").write_bytes(b"")
    source = tr.sources.Parquet(str(tmp_path))
    with pytest.raises(tr.ConfigError, match=r"z.crc cannot be read as Parquet"):
        everything(source, 1)
    (tmp_path / "z.crc").rename(tmp_path / "a.crc")
    with pytest.raises(tr.ConfigError, match=r"a.crc cannot be read as Parquet"):
        tr.sources.Parquet(str(tmp_path))
    whole = (tmp_path / "m.parquet").read_bytes()
    (tmp_path / "a.crc").unlink()
    (tmp_path / "m.parquet").write_bytes(whole[:10] + b"\xff" * 8 + whole[18:])
    with pytest.raises(ValueError, match=r"m.parquet, behind row 0: "):
        everything(tr.sources.Parquet(str(tmp_path)), 1)


def test_parquet_files_of_one_source_have_the_same_columns(tmp_path: Path) -> None:
    """In columns a stream has one schema, and rows that lack a field fail far from where they came from."""
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"y": ["b"], "x": [2]}), tmp_path / "2.parquet")
    rows = [tuple(row) for split in everything(tr.sources.Parquet(str(tmp_path)), 1) for row in split]
    assert sorted(rows) == [(1, "a"), (2, "b")]
    pq.write_table(pa.table({"x": [2.5], "y": ["b"]}), tmp_path / "2.parquet")
    with pytest.raises(
        tr.ConfigError, match=r"2.parquet has the columns x double, y string, and the first .* x int64, y s"
    ):
        everything(tr.sources.Parquet(str(tmp_path)), 1)


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_int96_is_a_moment_of_any_year(form: Any, tmp_path: Path) -> None:
    """Spark writes times as INT96 by default. Arrow takes them for nanoseconds, which wrap around behind the year 2262."""
    times = [dt.datetime(year, 1, 1, 12, 30, tzinfo=dt.UTC) for year in (1700, 2024, 2500)]
    plain_times = pa.array(times, pa.timestamp("us"))
    table = pa.table(
        {
            "at": plain_times,
            "many": pa.array([[time] for time in times], pa.list_(pa.timestamp("us"))),
            "n": [1, 2, 3],
            "inner": pa.array(
                [{"a": time, "b": 1} for time in times], pa.struct([("a", pa.timestamp("us")), ("b", "i4")])
            ),
            "map": pa.array([[("k", time)] for time in times], pa.map_(pa.string(), pa.timestamp("us"))),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet", use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(tmp_path / "f.parquet").schema.column(0).physical_type == "INT96"
    [rows] = everything(tr.sources.Parquet(str(tmp_path / "f.parquet"), form=form), 1)
    if form == "columns":
        [batch] = drain_batches(tr.sources.Parquet(str(tmp_path / "f.parquet"), form=form))
        assert batch.schema.field("at").type == pa.timestamp("us", "UTC")
        rows = batch.to_pylist()
        assert [row["at"] for row in rows] == [row["inner"]["a"] for row in rows] == times
        assert [row["map"] for row in rows] == [[("k", time)] for time in times]
    else:
        assert [row.at for row in rows] == [row.many[0] for row in rows] == [row.inner["a"] for row in rows] == times


def drain_batches(source: tr.Source) -> list[pa.RecordBatch]:
    [split] = source.splits(1)
    return [source.reader(split).read(1000, 0.0)]


@pytest.mark.parametrize(("note", "year", "refused"), [(True, 1500, True), (True, 2024, False), (False, 1500, False)])
def test_days_of_the_old_calendar_are_refused(note: bool, year: int, refused: bool, tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "inner": [{"d": None}, {"d": dt.date(year, 1, 1)}]})
    if note:
        table = table.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    pq.write_table(table, tmp_path / "f.parquet")
    source = tr.sources.Parquet(str(tmp_path))
    if refused:
        with pytest.raises(ValueError, match=r"f.parquet, rows 0 to 2, column 'inner': dates before 1582"):
            everything(source, 1)
    else:
        assert len(everything(source, 1)[0]) == 2


# A source that another one has read for, by the checkpoint.


@pytest.mark.parametrize("size", [2, 5, 7, 30])
def test_a_checkpoint_goes_on_with_the_list_that_it_knows_and_no_other(size: int) -> None:
    """A shorter list had no record at the position, so the job requested the next one for ever; of a longer one the
    rest was never read."""
    split = tr.sources.Collection(range(6)).splits(1)[0]
    with pytest.raises(tr.ConfigError, match=f"goes on with a list of 6 records and this list has {size}"):
        tr.sources.Collection(range(size)).reader(split, 4)
    assert tr.sources.Collection(range(6)).reader(split, 4).read(10, 0.0) == [4, 5]


def test_splits_of_another_kind_of_source_are_refused() -> None:
    numbered, listed = tr.sources.Sequence(0, 100), tr.sources.Collection(range(100))
    with pytest.raises(tr.ConfigError, match="the checkpoint is of another source"):
        numbered.reader(listed.splits(2)[1], 60)  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="the checkpoint is of another source"):
        tr.sources.Generator(lambda i: i, count=9).reader(listed.splits(2)[1], 60)  # type: ignore[arg-type]
    with pytest.raises(tr.ConfigError, match="records 0 to 1, at 40, and this list has 100"):
        listed.reader(numbered.splits(1)[0], 40)


# In a job.


class Three(tr.Source):
    def splits(self, parallelism: int) -> list[str]:
        return ["a", "b", "c"]

    def reader(self, split: str, position: Any = None) -> tr.Reader:
        return tr.sources.Collection([f"{split}{i}" for i in range(3)]).reader((0, 3, 3))


def test_a_subtask_reads_one_split_after_the_other() -> None:
    one = tr.testing.Conditions(delay=(0, 0), step_cost=(1, 1), budget=(1, 1))
    env = tr.Environment(parallelism=1)
    out = env.from_source(Three()).sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, conditions=one).await_termination()
    assert out.result() == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]


def test_with_event_time_a_subtask_reads_all_its_splits_in_turn() -> None:
    one = tr.testing.Conditions(delay=(0, 0), step_cost=(1, 1), budget=(1, 1))
    env = tr.Environment(parallelism=1)
    stream = env.from_source(Three()).assign_timestamps(lambda record: 0)
    out = stream.sink_to(tr.sinks.Collect())
    tr.testing.simulate(env, conditions=one).await_termination()
    assert out.result() == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


class Told(tr.Enumerator):
    """Finds a split after the other, each when the one before was read to its end."""

    def __init__(self, found: int) -> None:
        self.found, self.over = found, found

    def discover(self, now: float) -> list[str] | None:
        if self.found == 3:
            return None if self.over == 3 else []
        if self.found > self.over:
            return []
        self.found += 1
        return ["abc"[self.found - 1]]

    def ended(self, split: str) -> None:
        assert split == "abc"[self.over]
        self.over += 1

    @property
    def position(self) -> int:
        return self.over


class OneByOne(Three):
    def enumerator(self, parallelism: int, position: Any = None) -> tr.Enumerator:
        return Told(position or 0)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("checkpoint", [None, 0.5])
def test_an_enumerator_is_told_what_was_read_to_its_end(parallelism: int, checkpoint: float | None) -> None:
    for seed in range(5):
        config = None if checkpoint is None else tr.CheckpointConfig("memory", interval=checkpoint)
        env = tr.Environment(parallelism=parallelism, checkpoint=config)
        out = env.from_source(OneByOne()).map(str).sink_to(tr.sinks.Collect())
        tr.testing.simulate(env, seed=seed).await_termination()
        assert sorted(out.result()) == sorted(f"{split}{i}" for split in "abc" for i in range(3))


@pytest.mark.parametrize("parallelism", [1, 2, 5, 8])
def test_every_split_is_read_once_under_every_schedule(parallelism: int) -> None:
    for seed in range(10):
        env = tr.Environment(parallelism=parallelism)
        out = env.from_source(Three()).rebalance().map(str).sink_to(tr.sinks.Collect())
        tr.testing.simulate(env, seed=seed).await_termination()
        assert sorted(out.result()) == sorted(f"{split}{i}" for split in "abc" for i in range(3))


def test_a_subtask_without_a_split_has_ended() -> None:
    env = tr.Environment(parallelism=5)
    out = env.from_source(tr.sources.Generator(lambda: iter([1, 2]))).map(str).sink_to(tr.sinks.Collect())
    tr.testing.run(env)
    assert out.result() == ["1", "2"]


def test_every_reader_is_closed_also_when_the_job_fails() -> None:
    closed: list[int] = []

    class Noted(tr.Reader):
        position = None

        def __init__(self, split: int) -> None:
            self.split = split

        def read(self, limit: int, now: float) -> Any:
            return [self.split] if self.split else None

        def close(self) -> None:
            closed.append(self.split)
            if self.split == 1:
                raise OSError("will not close")

    class Source(tr.Source):
        def splits(self, parallelism: int) -> list[int]:
            return [0, 1, 2]

        def reader(self, split: int, position: Any = None) -> tr.Reader:
            return Noted(split)

    def fail(value: int) -> None:
        raise ValueError("no")

    env = tr.Environment(parallelism=1)
    stream = env.from_source(Source()).map(fail).assign_timestamps(lambda record: 0)  # so that all splits are open
    stream.sink_to(tr.sinks.Callback(lambda record: None))
    with pytest.raises(tr.JobFailed):
        tr.testing.run(env)
    assert sorted(closed) == [0, 1, 2]
