"""The program that `spark_kills` runs and kills: rows come from Structured Streaming and from a Python Data Source, are
counted by key, and go into every sink that Spark reads or writes.

    python -m search.campaigns.spark_program FOLDER

It goes on from its newest checkpoint, however it ended before, until there is a file `stop` in the folder, and notes in
`status` what there is to kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import tailrace as tr

FILE_ROWS = 20
"""Rows of each file of the input."""
KEYS = 7
SCHEMA = "source string, n long, text string, key long, seen long"
MASTER = "local-cluster[2,4,768]"


def text_of(source: str, n: int) -> str:
    """The text that row `n` of a source has."""
    return f"{source}{n * 7919 % 1000:03d}é" if n % 10 else ""


def offered(folder: str, source: str) -> int:
    """The number of rows that a source has now."""
    return FILE_ROWS * sum(not name.startswith(".") for name in os.listdir(f"{folder}/{source}"))


class Rows(DataSource):
    """Numbers and texts, as many as there are files in a folder; each range of offsets in two partitions."""

    @classmethod
    def name(cls) -> str:
        return "counted rows"

    def schema(self) -> str:
        return "n long, text string"

    def streamReader(self, schema: Any) -> RowsReader:
        return RowsReader(self.options["folder"])


class Part(InputPartition):
    """Every second number between two."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class RowsReader(DataSourceStreamReader):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, *given: Any) -> dict[str, int]:
        return {"n": offered(self.folder, "d")}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Part(start["n"] + odd, end["n"]) for odd in (0, 1)]

    def read(self, partition: Any) -> Iterator[tuple[int, str]]:
        for n in range(partition.start, partition.end, 2):
            yield n, text_of("d", n)


class Seen(tr.KeyedProcessFunction):
    """Each row with the number of rows of its key so far."""

    count = tr.ValueState(int, default=0)

    def process(self, row: tuple[str, int, str], ctx: tr.Context) -> Iterator[tuple[Any, ...]]:
        self.count.value += 1
        yield (*row, ctx.key, self.count.value)


def started(spark: Any, folder: str) -> Any:
    """The job, as it goes on."""
    checkpoint = tr.CheckpointConfig(f"{folder}/checkpoints", interval=0.6)
    settings: dict[str, Any] = {"restart": tr.FixedDelay(1000, 0.1), "slot_timeout": 300, "progress": False}
    env = tr.Environment(spark, parallelism=2, checkpoint=checkpoint, **settings)
    files = spark.readStream.schema("n long, text string").option("maxFilesPerTrigger", 3)
    streamed = env.from_streaming(files.option("emptyValue", "").csv(f"file://{folder}/s"), trigger=0.5, uid="s")
    direct = env.from_data_source(Rows, {"folder": folder}, uid="d")
    rows = streamed.map(lambda r: ("s", r.n, r.text or "")).union(direct.map(lambda r: ("d", r.n, r.text)))
    seen = rows.key_by(lambda r: r[1] % KEYS, uid="keys").process(Seen(), uid="seen")
    seen.sink_to(tr.sinks.Parquet(f"{folder}/files", SCHEMA), uid="files")
    seen.sink_to(tr.sinks.Delta(f"{folder}/delta", SCHEMA), uid="delta")
    by_key = seen.map(lambda r: (r[3], r[4])).key_by(lambda r: r[0])
    by_key.sink_to(
        tr.sinks.Delta(f"{folder}/upserted", "key long, seen long", mode="upsert", keys=["key"]), uid="upserted"
    )

    def write(df: Any, number: int) -> None:
        df.write.mode("overwrite").parquet(f"{folder}/foreach/{number:06d}")
        with open(f"{folder}/calls", "a") as file:
            file.write(f"{number}\n")

    seen.sink_to(tr.sinks.ForeachBatch(write, SCHEMA), uid="foreach")
    seen.to_streaming("out", SCHEMA)
    return env.execute("counting", from_checkpoint="latest-or-new")


def reading(spark: Any, folder: str) -> Any:
    """The query that reads the job's output."""
    tr.spark.register(spark)
    options = {"path": f"{folder}/checkpoints", "job": "counting", "sink": "out"}
    rows = spark.readStream.format("tailrace").options(**options).schema(SCHEMA).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/query").queryName("reader")
    return writer.trigger(processingTime="500 milliseconds").start(f"{folder}/read")


class Life:
    """The job and the query, started again whenever they have failed."""

    def __init__(self, folder: str) -> None:
        from search.campaigns.on_spark import session

        self.folder = folder
        self.files: dict[Path, int] = {}
        """Published files, with the number of their rows."""
        self.spark = tr.Environment().spark if "SPARK_REMOTE" in os.environ else session()
        self.job = started(self.spark, folder)
        self.query = reading(self.spark, folder)

    def look(self) -> None:
        """Obeys, starts again what has ended, and writes down what there is."""
        command = Path(self.folder, "command")
        if command.exists():
            which = command.read_text()
            found = [one for one in self.spark.streams.active if (one.name == "reader") == (which == "reader")]
            for query in found:
                query.stop()
            if found:
                command.unlink()
        if not self.job.is_active:
            self.note(f"job: {self.job.exception()}")
            self.job = started(self.spark, self.folder)
        if not self.query.isActive:
            self.note(f"reader: {self.query.exception()}")
            self.query = reading(self.spark, self.folder)
        self.write()

    def stop(self) -> bool:
        """Ends the job behind all rows, and the query behind all of its output. False where there is more to do."""
        if self.rows() < offered(self.folder, "s") + offered(self.folder, "d"):
            return False
        try:
            self.job.stop()
            self.query.processAllAvailable()
        except Exception as error:
            self.note(f"stop: {error}")
            return False
        self.query.stop()
        return True

    def rows(self) -> int:
        """The number of rows that are published as files."""
        for path in Path(self.folder, "files").rglob("[!._]*.parquet"):
            if path not in self.files:
                self.files[path] = pq.read_metadata(path).num_rows
        return sum(self.files.values())

    def note(self, failure: str) -> None:
        """Writes down why something has failed."""
        with open(f"{self.folder}/failures", "a") as file:
            file.write(" ".join(failure.split()) + "\n")

    def write(self) -> None:
        """Notes what there is to kill, and how far the job is."""
        slots = self.job._runner.machine.roster.slots
        found = {
            "pid": os.getpid(),
            "status": str(self.job.status),
            "workers": [one.hello.pid for one in slots if one.hello is not None],
            "checkpoint": self.job.checkpoints[-1].id if self.job.checkpoints else 0,
            "rows": self.rows(),
            "restarts": self.job.restarts,
            "queries": len(self.spark.streams.active),
        }
        place = Path(self.folder, "status")
        place.with_suffix(".new").write_text(json.dumps(found))
        place.with_suffix(".new").rename(place)


def main(folder: str) -> None:
    """Runs until it is to stop."""
    os.environ.setdefault("TAILRACE_MASTER", MASTER)
    for name in ("s", "d"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    life = Life(folder)
    while not (os.path.exists(f"{folder}/stop") and life.stop()):
        life.look()
        time.sleep(0.1)
    found = life.spark.read.parquet(f"{folder}/read").toArrow()  # by the log of Spark's sink
    pq.write_table(found, f"{folder}/read.parquet")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/status")
    Path(folder, "stopped").touch()
    life.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
