"""The output of a job as a data source of Spark."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.filesinks import remove_unfinished
from tailrace.errors import CheckpointNotFound, ConfigError, GraphError
from tailrace.spark.data import outputsource
from tailrace.spark.data.outputsource import LIMITS, BatchReader, OutputOptions, OutputSource, StreamReader
from tailrace.spark.data.places import FilePlace
from tailrace.spark.data.schemas import spark_schema
from tailrace.spark.data.streaming import Streaming
from tailrace.storage.store import folder_name

SCHEMA = pa.schema([("n", pa.int64())])
SESSION: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda name: "false"))


def unknown() -> None:
    return None


class Output:
    """The output of a job in a folder, written and published by hand."""

    def __init__(self, folder: Path, job: str = "counting", uid: str = "visits", schema: Any = "n long") -> None:
        self.folder, self.uid = folder, uid
        place = FilePlace(str(folder / job / "streams" / folder_name(uid)))
        self.places: Any = SimpleNamespace(stream=lambda uid: (place, job))
        self.sink = Streaming(schema)
        self.sink.prepare(SESSION, self.places, uid, unknown)
        self.run = "run-a"
        self.writers: dict[int, Any] = {}

    def writer(self, subtask: int) -> Any:
        ctx: Any = SimpleNamespace(
            job="counting", incarnation=1, run_id=self.run, uid=self.uid, subtask=subtask, parallelism=2, attempt=0
        )
        return self.sink.writer(ctx)

    def prepare(self, *rows: Iterable[int]) -> list[bytes]:
        """What the writers of the subtasks prepare at a checkpoint."""
        found = []
        for subtask, numbers in enumerate(rows):
            writer = self.writers.setdefault(subtask, self.writer(subtask))
            if values := list(numbers):
                writer.write(pa.record_batch({"n": values}))
            found.append(writer.prepare())
        return [token for token in found if token is not None]

    def publish(self, *rows: Iterable[int]) -> None:
        pickle.loads(pickle.dumps(self.sink)).publish(self.prepare(*rows))

    def options(self, **given: str) -> OutputOptions:
        return OutputOptions.of({"path": "out", "job": "counting", "sink": self.uid, **given}, str(self.folder.parent))

    def stream(self, **given: str) -> StreamReader:
        return outputsource._READER(self.options(**given), spark_schema(SCHEMA))

    def batch(self, **given: str) -> list[int]:
        return read(BatchReader(self.options(**given), spark_schema(SCHEMA)))


def read(reader: Any, *offsets: dict[str, Any]) -> list[int]:
    """The rows between two offsets; of a batch reader all."""
    found: list[int] = []
    for one in reader.partitions(*offsets):
        task = pickle.loads(pickle.dumps(reader))
        found += [n for batch in task.read(pickle.loads(pickle.dumps(one))) for n in batch["n"].to_pylist()]
    return sorted(found)


def latest(reader: StreamReader, start: dict[str, Any], **limit: int) -> dict[str, Any]:
    return reader.latest(outputsource.Offset(**start), **limit).to_dict()


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path / "out")


def test_a_stream_gives_each_row_once_and_the_same_ones_again(output: Output) -> None:
    reader = output.stream()
    zero = reader.initialOffset()
    assert latest(reader, zero) == reader.initialOffset()
    output.publish([1, 2], [3])
    one = latest(reader, zero)
    output.publish([4], [])
    two = latest(reader, one)
    assert read(reader, zero, one) == [1, 2, 3]
    assert read(reader, one, two) == [4]
    assert read(output.stream(), zero, two) == [1, 2, 3, 4], "another process, from the offsets alone"
    assert read(reader, two, two) == []
    assert latest(output.stream(), two) == two


def test_what_is_prepared_is_not_there_before_it_is_published(output: Output) -> None:
    prepared = output.prepare([1], [2])
    assert output.batch() == []
    output.sink.publish(prepared)
    output.sink.publish(prepared)
    assert output.batch() == [1, 2]


def test_a_reader_may_come_before_the_job(tmp_path: Path) -> None:
    options = OutputOptions.of({"path": str(tmp_path / "out"), "job": "counting", "sink": "visits"}, "/")
    reader = outputsource._READER(options, spark_schema(SCHEMA))
    zero = reader.initialOffset()
    assert latest(reader, zero) == zero
    Output(tmp_path / "out").publish([1], [2])
    assert read(reader, zero, latest(reader, zero)) == [1, 2]


def test_a_limit_ends_a_batch_between_checkpoints(output: Output) -> None:
    for n in range(4):
        output.publish([10 * n, 10 * n + 1], [10 * n + 2])
    reader = output.stream()
    zero = reader.initialOffset()
    assert latest(reader, zero, rows=7)["number"] == 2
    assert latest(reader, zero, rows=1)["number"] == 1, "a checkpoint is read whole"
    size = sum(entry.bytes for entry in reader.log.entries(1, 3))
    assert latest(reader, zero, size=size)["number"] == 3
    assert latest(reader, zero)["number"] == 4


@pytest.mark.skipif(not LIMITS, reason="Spark 4.2 and later limit batches")
def test_spark_is_given_the_limit_and_the_end(output: Output) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    assert output.stream().getDefaultReadLimit() == ReadAllAvailable()
    assert output.stream(maxBytesPerTrigger="9").getDefaultReadLimit() == ReadMaxBytes(9)
    reader: Any = output.stream(maxrowspertrigger="2")
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    for n in range(3):
        output.publish([n], [n])
    zero = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    output.publish([7], [8])
    assert reader.latestOffset(zero, ReadMaxRows(2))["number"] == 1
    end = reader.latestOffset(zero, ReadAllAvailable())
    assert end["number"] == 3, "what came after the start is not available now"
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.reportLatestOffset()["number"] == 4


def test_what_a_query_commits_is_removed(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"sql.streaming.queryId": "query", "spark.jobGroup.id": "run-1"}
    task = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(outputsource, "TaskContext", SimpleNamespace(get=lambda: task))

    def segments() -> int:
        return len(list(output.folder.rglob("part-*")))

    for n in range(3):
        output.publish([n], [10 + n])
    reader = output.stream()
    two = latest(reader, reader.initialOffset(), rows=4)
    assert read(reader, reader.initialOffset(), two) == [0, 1, 10, 11]
    assert segments() == 6
    reader.commit(two)
    assert segments() == 2
    properties["spark.jobGroup.id"] = "run-2"
    again = output.stream()
    three = latest(again, two)
    assert read(again, two, three) == [2, 12]
    again.commit(three)
    assert (segments(), output.batch(startingOffset="earliest")) == (0, [])
    with pytest.raises(CheckpointNotFound, match=r"its entries 1 to 3 were removed.*retain=.always"):
        output.batch()
    assert latest(again, three) == three
    late = output.stream()
    assert latest(late, late.initialOffset())["number"] == 3
    with pytest.raises(CheckpointNotFound, match="gone"):
        read(output.stream(), two, three)
    output.publish([3], [])
    assert read(late, late.initialOffset(), latest(late, late.initialOffset())) == [3]
    late.stop()


def test_a_sink_may_retain_what_queries_have_read(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"sql.streaming.queryId": "query", "spark.jobGroup.id": "run-1"}
    task = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(outputsource, "TaskContext", SimpleNamespace(get=lambda: task))
    always = Streaming("n long", retain="always")
    always.prepare(SESSION, output.places, output.uid, unknown)
    output.publish([1], [2])
    reader = output.stream()
    end = latest(reader, reader.initialOffset())
    assert read(reader, reader.initialOffset(), end) == [1, 2]
    reader.commit(end)
    assert output.batch() == [1, 2]
    output.sink.prepare(SESSION, output.places, output.uid, unknown)
    reader.commit(end)
    with pytest.raises(CheckpointNotFound, match="were removed"):
        output.batch()


def test_a_live_reader_sees_what_is_published_when_it_is_read(output: Output) -> None:
    reader = BatchReader(output.options(live="true"), spark_schema(SCHEMA))
    [partition] = reader.partitions()

    def rows() -> list[int]:
        task = pickle.loads(pickle.dumps(reader))
        return sorted(n for batch in task.read(partition) for n in batch["n"].to_pylist())

    assert rows() == []
    output.publish([1], [2])
    assert rows() == [1, 2]
    prepared = output.prepare([3], [])
    assert rows() == [1, 2]
    output.sink.publish(prepared)
    assert rows() == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "how", "text"),
    [
        ({"startingOffset": "latest"}, "reader", '"earliest" in a batch'),
        ({"live": "true"}, "streamReader", "a stream goes on by itself"),
        ({"live": "yes"}, "reader", '"live" is "true" or "false"'),
    ],
)
def test_an_option_of_the_other_kind_of_read_is_refused(
    output: Output, given: dict[str, str], how: str, text: str
) -> None:
    source = OutputSource({"path": str(output.folder), **given})
    with pytest.raises(ConfigError, match=text):
        getattr(source, how)(spark_schema(SCHEMA))


def test_a_task_of_no_query_registers_nobody(output: Output) -> None:
    output.publish([1], [2])
    reader = output.stream()
    end = latest(reader, reader.initialOffset())
    assert read(reader, reader.initialOffset(), end) == [1, 2]
    reader.commit(end)
    assert output.batch() == [1, 2], "nobody knows who has read it"


def test_a_stream_may_begin_at_its_end(output: Output) -> None:
    output.publish([1], [2])
    reader = output.stream(startingOffset="latest")
    start = reader.initialOffset()
    output.publish([3], [])
    assert read(reader, start, latest(reader, start)) == [3]


def test_an_offset_means_nothing_in_a_stream_that_was_made_anew(output: Output) -> None:
    output.publish([1], [2])
    reader = output.stream()
    at = latest(reader, reader.initialOffset())
    shutil.rmtree(output.folder)
    with pytest.raises(CheckpointNotFound, match="is gone"):
        latest(output.stream(), at)
    anew = Output(output.folder)
    for n in range(3):
        anew.publish([n], [n])
    with pytest.raises(CheckpointNotFound, match="another one than this query has read from"):
        latest(anew.stream(), at)
    with pytest.raises(CheckpointNotFound, match="another one than this query has read from"):
        anew.stream().partitions(at, latest(anew.stream(), anew.stream().initialOffset()))


def test_an_offset_means_nothing_in_a_copy_that_went_another_way(output: Output, tmp_path: Path) -> None:
    output.publish([1], [2])
    shutil.copytree(output.folder, tmp_path / "backup")
    output.publish([3], [])
    reader = output.stream()
    at = latest(reader, reader.initialOffset())
    shutil.rmtree(output.folder)
    shutil.copytree(tmp_path / "backup", output.folder)
    with pytest.raises(CheckpointNotFound, match=r"entry 2 .* has come back from a backup"):
        latest(output.stream(), at)
    back = Output(output.folder)
    back.run = "run-b"
    back.publish([4])
    back.publish([5])
    with pytest.raises(CheckpointNotFound, match=r"entry 2 .* has other\s+rows"):
        latest(output.stream(), at)


def old_latest(output: Output) -> dict[str, Any]:
    """The end of the next batch of Spark 4.0 and 4.1, which does not say where a batch starts."""
    found: dict[str, Any] = outputsource.UnlimitedReader(output.options(), spark_schema(SCHEMA)).latestOffset()
    return found


def test_a_batch_without_a_known_start_begins_where_the_one_before_ended(output: Output) -> None:
    output.publish([1], [2])
    one = old_latest(output)
    assert old_latest(output) == one and one["number"] == 1
    output.publish([3], [])
    assert read(output.stream(), one, old_latest(output)) == [3]


def test_a_batch_without_a_known_start_is_not_read_from_another_stream(output: Output, tmp_path: Path) -> None:
    output.publish([1], [2])
    shutil.copytree(output.folder, tmp_path / "backup")
    output.publish([3], [])
    at = old_latest(output)
    shutil.rmtree(output.folder)
    with pytest.raises(CheckpointNotFound, match="there is no stream"):
        output.stream().partitions(at, old_latest(output))
    shutil.copytree(tmp_path / "backup", output.folder)
    with pytest.raises(CheckpointNotFound, match="has come back from a backup"):
        output.stream().partitions(at, old_latest(output))
    shutil.rmtree(output.folder)
    anew = Output(output.folder)
    with pytest.raises(CheckpointNotFound, match="another one than this query has read from"):
        output.stream().partitions(at, old_latest(anew))


def test_options_find_the_only_stream(output: Output) -> None:
    folder = str(output.folder)
    for given in ({"path": folder}, {"path": f"{folder}/counting"}, {"path": folder, "JOB": "counting"}):
        assert OutputOptions.of(given, "/").log().about().uid == "visits"
    Output(output.folder, uid="Late visits")
    with pytest.raises(ConfigError, match="there are 'Late visits', 'visits'; name one"):
        OutputOptions.of({"path": folder}, "/").log()
    assert OutputOptions.of({"path": folder, "sink": "Late visits"}, "/").log().about().uid == "Late visits"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs the checkpoint folder"),
        ({"path": "p", "uid": "u"}, "no option 'uid'; it has path, job, sink"),
        ({"path": "p", "startingOffset": "7"}, '"earliest" or "latest"'),
        ({"path": "p", "maxRowsPerTrigger": "0"}, '"maxRowsPerTrigger" is a number above zero'),
        ({"path": "p", "maxRowsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "not both"),
        ({"path": "p", "storageOptions": "[]"}, "is a JSON object"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        OutputOptions.of(given, "/")


def test_columns_are_those_of_the_sink_or_of_the_first_rows(output: Output, tmp_path: Path) -> None:
    source = OutputSource({"path": str(output.folder)})
    assert source.schema().simpleString() == "struct<n:bigint>"
    found = Output(tmp_path / "found", schema=None)
    source = OutputSource({"path": str(found.folder)})
    with pytest.raises(ConfigError, match="has no rows yet, so its columns are not known"):
        source.schema()
    found.publish([1], [2])
    assert source.schema().simpleString() == "struct<n:bigint>"
    with pytest.raises(CheckpointNotFound, match="there is no stream"):
        OutputSource({"path": str(output.folder), "job": "other", "sink": "visits"}).schema()


def test_rows_of_killed_writers_are_removed(output: Output) -> None:
    output.publish([1], [2])
    kept, left = output.prepare([3], [4])
    assert len(list(output.folder.rglob("part-*"))) == 4
    remove_unfinished(output.sink, "run-a", "visits", [kept])
    assert len(list(output.folder.rglob("part-*"))) == 3
    output.sink.publish([kept])
    assert output.batch() == [1, 2, 3]
    with pytest.raises(FileNotFoundError, match="its rows are lost"):
        output.sink.publish([left])


def test_to_streaming_says_what_it_needs() -> None:
    stream = tr.Environment(parallelism=1).from_collection([1])
    with pytest.raises(GraphError, match="a stream of rows needs a schema"):
        stream.to_streaming("visits")
    with pytest.raises(GraphError, match="retain must be 'until-read' or 'always'"):
        stream.to_streaming("visits", "n long", retain="never")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="takes the name of the output"):
        stream.to_streaming(None, "n long")  # type: ignore[arg-type]
    output = stream.map(lambda n: (n,)).to_streaming("visits", "n long")
    with pytest.raises(GraphError, match="start the job first"):
        output.read_stream()


@pytest.mark.spark
def test_a_query_follows_the_output_of_a_job_over_restarts_of_both(spark: Any, tmp_path: Path) -> None:
    def run(first: int, last: int) -> Any:
        config = tr.CheckpointConfig(tmp_path / "ck", interval=0.3)
        env = tr.Environment(spark, parallelism=2, checkpoint=config)
        rows = env.from_source(tr.sources.Sequence(first, last), uid="numbers").map(lambda n: (n,))
        output = rows.to_streaming("visits", "n long")
        env.execute("counting").await_termination()
        return output

    def query() -> None:
        options = {"path": str(tmp_path / "ck"), "job": "counting", "sink": "visits"}
        df = spark.readStream.format("tailrace").options(**options).load()
        writer = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "query"))
        assert writer.trigger(availableNow=True).start(str(tmp_path / "read")).awaitTermination(300)

    run(0, 300)
    query()
    run(300, 400)
    query()
    output = run(400, 500)
    query()
    found = spark.read.parquet(str(tmp_path / "read"))
    assert sorted(row.n for row in found.collect()) == list(range(500))
    assert output.read(startingOffset="earliest").count() < 500, "what the query has read is removed"
    with pytest.raises(Exception, match="not all output of the stream"):
        output.read().count()


@pytest.mark.spark
def test_a_stream_needs_checkpoints(spark: Any) -> None:
    env = tr.Environment(spark, parallelism=1)
    env.from_collection([1]).map(lambda n: (n,)).to_streaming("visits", "n long")
    with pytest.raises(ConfigError, match="the job takes none"):
        env.execute("counting")
