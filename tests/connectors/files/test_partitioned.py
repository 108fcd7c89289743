"""Sinks into folders by the values of columns, and files that roll: each row once, where pandas, pyarrow and our source find
it."""

import datetime as dt
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tailrace as tr
from tailrace.connectors import hidden
from tailrace.connectors.files import holding, partitioned
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.testing.faults import Fault
from tests.connectors.test_sinks import Place
from tests.connectors.test_sources import everything

SCHEMA = pa.schema(
    [("x", pa.int64()), ("day", pa.date32()), ("city", pa.string()), ("n", pa.int32()), ("yes", pa.bool_())]
)
CITIES = [None, "a/b", "x=y", "ü €", "10%", "a b", "'q\"", "Z", "2024-01-01", "..", "007", "#?*[{^:\\\n\x7f"]


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "out")
    if request.param == "memory":
        return f"memory://{tmp_path.name}/out"
    return f"s3://{request.getfixturevalue('bucket')}/{tmp_path.name}/out"


def table(random: Random, count: int) -> list[dict[str, Any]]:
    days = [None, dt.date(2024, 2, 28), dt.date(1, 1, 1), dt.date(9999, 12, 31)]
    return [
        {
            "x": i,
            "day": random.choice(days),
            "city": random.choice(CITIES),
            "n": random.choice([None, -1, 0, 2**31 - 1]),
            "yes": random.choice([None, True, False]),
        }
        for i in range(count)
    ]


def batches(rows: list[dict[str, Any]], random: Random) -> Iterator[pa.RecordBatch]:
    while rows:
        size = random.randint(1, 30)
        yield pa.RecordBatch.from_pylist(rows[:size], SCHEMA)
        rows = rows[size:]


def files(place: str) -> list[str]:
    """All files below a place, also hidden ones."""
    fs, path = fsspec.core.url_to_fs(place, use_listings_cache=False)
    return sorted(fs.find(path)) if fs.exists(path) else []


def rows_in(place: str, keys: list[str], kind: str = "Parquet") -> list[dict[str, Any]]:
    declared = pa.schema([SCHEMA.field(key) for key in keys])
    own = () if kind == "Parquet" else (pa.schema([field for field in SCHEMA if field.name not in keys]),)
    source = getattr(tr.sources, kind)(place, *own, partitions=declared)
    found = [one for part in everything(source, 1) for one in part]
    return sorted(({name: row[name] for name in SCHEMA.names} for row in found), key=lambda row: row["x"])


KINDS = ["Parquet", "Csv", "Json"]
"""The sinks of files in columns, and the sources that read them."""


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(KINDS)))
def test_rows_come_back_from_folders_by_columns(
    seed: int, kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned, "MOST_OPEN", 5)
    random = Random(seed)
    rows = table(random, random.randint(1, 120))
    keys = random.sample(["day", "city", "n", "yes"], random.randint(1, 3))
    sink = getattr(tr.sinks, kind)(place, random.choice([SCHEMA, None]), partition_by=keys)
    writer = sink.writer(Place())
    prepared = []
    for batch in batches(rows, random):
        writer.write(batch)
        assert len(writer.open) <= 5
        if random.random() < 0.3:
            prepared.append(writer.prepare())
    prepared.append(writer.prepare())
    assert all(name.rpartition("/")[2].startswith(".") for name in files(place)), "nothing is visible yet"
    tokens = [token for token in prepared if token is not None]
    sink.publish(tokens[: random.randint(0, len(tokens))])  # and then a crash
    sink.publish(tokens)
    sink.publish(tokens)
    assert rows_in(place, keys, kind) == rows
    for part in everything(tr.sources.Parquet(place), 1) if kind == "Parquet" else ():
        assert [row["x"] for row in part] == sorted(row["x"] for row in part), "rows keep their order in a file"
    sink.settled(tokens)
    assert not [name for name in files(place) if name.rpartition("/")[2].startswith(".")]
    if place.startswith("/") and kind == "Parquet":
        flavor = ds.partitioning(pa.schema([SCHEMA.field(key) for key in keys]), flavor="hive")
        theirs = ds.dataset(place, partitioning=flavor).to_table().select(SCHEMA.names).to_pylist()
        assert sorted(theirs, key=lambda row: row["x"]) == rows
        assert sorted(pd.read_parquet(place, partitioning=flavor)["x"]) == [row["x"] for row in rows]


def test_what_is_not_published_is_swept_and_what_is_kept_stays(place: str) -> None:
    sink = tr.sinks.Parquet(place, SCHEMA, partition_by="city")
    writer, other = sink.writer(Place()), sink.writer(Place(run_id="other"))
    batch = pa.RecordBatch.from_pylist(table(Random(1), 20), SCHEMA)
    writer.write(batch)
    kept = writer.prepare()
    for one in (writer, other):
        one.write(batch)
        one.prepare()
    assert kept is not None
    remove_unfinished(sink, "run", "sink", [kept])
    sink.publish([kept])
    assert len(rows_in(place, ["city"])) == 20
    lost = tr.sinks.Parquet(place, SCHEMA, partition_by="city").writer(Place(attempt=1))
    lost.took_over()
    remove_unfinished(sink, "other", "sink")
    sink.settled([kept])
    assert not [name for name in files(place) if name.rpartition("/")[2].startswith(".")]


def test_a_reader_may_take_a_whole_folder_away(tmp_path: Path) -> None:
    sink = tr.sinks.Parquet(str(tmp_path), SCHEMA, partition_by=["yes"])
    writer = sink.writer(Place())
    writer.write(pa.RecordBatch.from_pylist(table(Random(3), 20), SCHEMA))
    prepared = [writer.prepare()]
    sink.publish(prepared)
    for name in os.listdir(tmp_path / "yes=true"):
        os.unlink(tmp_path / "yes=true" / name)
    os.rmdir(tmp_path / "yes=true")
    sink.publish(prepared)
    assert not (tmp_path / "yes=true").exists()


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (["no"], "partition_by has 'no', and the columns are x, day"),
        (["x", "x"], "names of columns, each once"),
        (["_x"], r"do not begin with \. or _"),
        ([7], "names of columns"),
        (["x", "day", "city", "n", "yes"], "the files would have none"),
    ],
)
def test_what_cannot_be_a_folder_is_refused_where_it_is_written(keys: Any, fault: str) -> None:
    with pytest.raises(tr.ConfigError, match=fault):
        tr.sinks.Parquet("out", SCHEMA, partition_by=keys)
    with pytest.raises(tr.ConfigError, match="column 'at' is double, and a partition column holds"):
        tr.sinks.Parquet("out", "x int, at double", partition_by="at")


@pytest.mark.parametrize("value", ["", "__HIVE_DEFAULT_PARTITION__", "é" * 127, "a\0b"])
def test_a_text_that_would_not_come_back_is_refused(value: str, tmp_path: Path) -> None:
    writer = tr.sinks.Parquet(str(tmp_path), "x int, k string", partition_by="k").writer(Place())
    with pytest.raises(ValueError, match="partition column 'k'"):
        writer.write(pa.record_batch({"x": pa.array([1], pa.int32()), "k": [value]}))


@pytest.mark.parametrize("how", [{"bytes": 100}, {"seconds": 1e-9}])
@pytest.mark.parametrize("keys", [[], ["yes"]])
@pytest.mark.parametrize("kind", KINDS)
def test_files_roll_within_a_transaction(how: Any, keys: list[str], kind: str, tmp_path: Path) -> None:
    sink = getattr(tr.sinks, kind)(str(tmp_path), SCHEMA, partition_by=keys, roll=tr.Roll(**how))
    writer = sink.writer(Place())
    writer = getattr(writer, "writer", writer)  # without one that holds files back over checkpoints
    rows = [{**row, "yes": True} for row in table(Random(5), 100)]
    for start in range(0, 100, 20):
        writer.write(pa.RecordBatch.from_pylist(rows[start : start + 20], SCHEMA))
    prepared = writer.prepare()
    writer.close()
    assert prepared is not None
    assert len(hidden.files_in(prepared)) == 5
    sink.publish([prepared])
    assert rows_in(str(tmp_path), keys, kind) == rows


def test_lines_roll(tmp_path: Path) -> None:
    sink = tr.sinks.TextFiles(str(tmp_path), roll=tr.Roll(bytes=10))
    writer = sink.writer(Place())
    for _ in range(4):
        writer.write(["123456789"])
        writer.write(["a"])
    sink.publish([writer.prepare()])
    texts = [path.read_text() for path in sorted(tmp_path.glob("part-*"))]
    assert texts == ["123456789\n", "a\n123456789\n", "a\n123456789\n", "a\n123456789\n", "a\n"]


@pytest.mark.parametrize(
    "how", [{"bytes": 0}, {"seconds": -1}, {"seconds": float("nan")}, {"bytes": "10"}, {"bytes": True}]
)
def test_a_roll_takes_numbers_above_zero(how: Any) -> None:
    with pytest.raises(tr.ConfigError, match="must be a number above zero"):
        tr.Roll(**how)


def bind(writer: Any) -> Any:
    """The writer with its state bound, as its task does."""
    writer.held = type(writer).held.bind()
    return writer


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(holding.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["files", "folders", "lines"])
def test_files_go_on_over_checkpoints_and_each_row_is_published_once(
    seed: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lives of writers that are restored from their last checkpoint, at other parallelisms."""
    clock, random = Clock(monkeypatch), Random(seed)
    roll = tr.Roll(seconds=10, bytes=random.choice([None, 500]))
    place = str(tmp_path)
    files = KINDS[seed % 3]
    if kind == "lines":
        sink: Any = tr.sinks.TextFiles(place, roll=roll)
    else:
        sink = getattr(tr.sinks, files)(place, SCHEMA, roll=roll, partition_by=["yes"] if kind == "folders" else None)
    rows = table(random, 300)
    done, kept, life, published = 0, (0, []), 1, 0
    writers = [bind(sink.writer(Place(incarnation=life)))]
    while True:
        for _ in range(random.randint(0, 3)):
            some = rows[done : done + random.randint(1, 20)]
            done += len(some)
            if some:
                batch = [row["x"] for row in some] if kind == "lines" else pa.RecordBatch.from_pylist(some, SCHEMA)
                random.choice(writers).write(batch)
        clock.now += random.choice([0.0, 3.0, 11.0])
        over = done == len(rows)
        for writer in writers if over else ():
            writer.finish()
        for writer in writers:
            writer.released = writer.release()
        tokens = [token for token in (writer.prepare() for writer in writers) if token is not None]
        states = [list(pickle.loads(pickle.dumps(writer.held.value))) for writer in writers]
        if random.random() < 0.3:  # the checkpoint does not become complete
            done, states = kept[0], kept[1]
        else:
            sink.publish(tokens)
            published += bool(tokens)
            kept = (done, states)
            if over:
                break
            if random.random() < 0.6:
                continue
        for writer in writers:
            writer.close()
        life += 1
        sink.recover(["run"], life, "sink")
        writers = [bind(sink.writer(Place(incarnation=life, subtask=i))) for i in range(random.randint(1, 3))]
        held = [copy for state in states for copy in state]
        for i, writer in enumerate(writers):
            writer.held.value = held[i :: len(writers)]
    if kind == "lines":
        found = [int(line) for path in tmp_path.glob("part-*") for line in path.read_text().split()]
        assert sorted(found) == [row["x"] for row in rows]
    else:
        assert rows_in(place, ["yes"] if kind == "folders" else [], files) == rows


@pytest.mark.parametrize("text", [False, True])
def test_a_copy_has_its_batches_apart(text: bool) -> None:
    """Joined they could be more than one column of texts can hold."""
    rows = table(Random(1), 30)
    if text:
        assert list(holding._batches_of(holding._copy_of([["a", 1], ["b"]]))) == [["a", "1", "b"]]
        return
    batches = [pa.RecordBatch.from_pylist(rows[start : start + 10], SCHEMA) for start in (0, 10, 20)]
    found = list(holding._batches_of(holding._copy_of(batches)))
    assert found == batches


def test_with_seconds_a_job_writes_fewer_files(tmp_path: Path) -> None:
    counts = {}
    for name, roll in {"each": None, "held": tr.Roll(seconds=3600)}.items():
        env = tr.Environment(parallelism=1, checkpoint=tr.CheckpointConfig(str(tmp_path / f"c{name}"), interval=0.1))
        stream = env.from_source(tr.sources.Sequence(0, 500, rate=1000))
        stream.map(lambda x: (x, x % 2)).sink_to(
            tr.sinks.Parquet(str(tmp_path / name), "x long, k long", partition_by="k", roll=roll)
        )
        tr.testing.run(env)
        found = [row for part in everything(tr.sources.Parquet(str(tmp_path / name)), 1) for row in part]
        assert sorted(found) == [(x, x % 2) for x in range(500)]
        counts[name] = len(list((tmp_path / name).glob("k=*/part-*")))
    assert counts["held"] == 2 < counts["each"]


def test_a_worker_that_takes_the_place_of_a_lost_one_holds_back_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock by chance: each worker would decide for itself when files are old enough."""
    taken = 0
    for seed in range(3):
        random, out = Random(seed), tmp_path / str(seed)
        monkeypatch.setattr(holding.time, "monotonic", lambda random=random: random.uniform(0, 100))
        env = tr.Environment(
            parallelism=2,
            checkpoint=tr.CheckpointConfig("memory", interval=0.003),
            standby=tr.StandbyConfig(replicas=0),
            restart=tr.FixedDelay(attempts=10, delay=0.0),
        )
        numbers = env.from_source(tr.sources.Sequence(0, 400, rate=10_000)).key_by(lambda x: x % 7)
        sink = tr.sinks.Parquet(str(out), "x long, k long", partition_by="k", roll=tr.Roll(seconds=50))
        numbers.map(lambda x: (x, x % 2)).sink_to(sink)
        faults = [Fault(random.randint(60, 700), "kill", which=which) for which in (0, 1, 0)]
        job = tr.testing.simulate(env, seed=seed, faults=faults)
        assert job.await_termination()
        taken += job.simulation.coordinator.takeovers.count
        found = [row for part in everything(tr.sources.Parquet(str(out)), 1) for row in part]
        assert sorted(found) == [(x, x % 2) for x in range(400)], seed
    assert taken >= 2, taken
