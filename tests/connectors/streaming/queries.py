"""A stand-in for a streaming query: it has a checkpoint like Spark's, and writes batches as Spark's file sink does."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.connectors.streaming.batches import DATA, QUERY, BatchFolder
from tailrace.connectors.streaming.listing import BatchLister
from tailrace.storage.filesystem import LocalFolder

SCHEMA = pa.schema([("batch", pa.int64()), ("number", pa.int64())])


class Query:
    """A query whose rows are the numbers from 0 on, each with the id of its batch."""

    def __init__(self, place: Path, chance: random.Random, event_time: int | None = None) -> None:
        self.place, self.chance = place, chance
        self.checkpoint = place / QUERY
        self.event_time = event_time
        self.data, self.notes = place / DATA, place / DATA / "_spark_metadata"
        self.lister = self.new_lister()
        self.done = 0
        """Number of batches that the query's checkpoint has as done."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Gives the query a checkpoint that has nothing."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        for old in (self.checkpoint / "offsets").iterdir():
            old.unlink()
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.UUID(int=self.chance.getrandbits(128)))}))
        self.done = 0

    @property
    def folder(self) -> BatchFolder:
        return BatchFolder(str(self.place))

    def offsets(self, batch: int) -> tuple[int, int]:
        first, last = json.loads((self.checkpoint / "offsets" / str(batch)).read_text())
        return first, last

    def plan(self, rows: int) -> int:
        """Notes the offsets of the next batch, unless the last one is to be repeated. Returns its id."""
        batch = self.done
        path = self.checkpoint / "offsets" / str(batch)
        if not path.exists():
            first = self.offsets(batch - 1)[1] if batch else 0
            path.write_text(json.dumps([first, first + rows]))
        return batch

    def new_lister(self) -> BatchLister:
        return BatchLister(self.folder, self.event_time)

    def write(self, batch: int, partitions: int) -> list[str]:
        """Writes the rows of a batch, dealt to partitions by chance. Returns the names of the files."""
        first, last = self.offsets(batch)
        parts: list[list[int]] = [[] for _ in range(partitions)]
        for number in range(first, last):
            parts[self.chance.randrange(partitions)].append(number)
        return [
            self.write_file(pa.record_batch([[batch] * len(part), part], schema=SCHEMA), at)
            for at, part in enumerate(parts)
        ]

    def write_file(self, rows: pa.RecordBatch, partition: int = 0) -> str:
        """Writes a file of a task, with the checksums that Hadoop keeps beside it. Returns its name."""
        name = f"part-{partition:05d}-{uuid.UUID(int=self.chance.getrandbits(128))}-c000.snappy.parquet"
        self.data.mkdir(exist_ok=True)
        plain = rows.rename_columns([f"c{at}" for at in range(rows.num_columns)])
        pq.write_table(pa.Table.from_batches([plain]), self.data / name, row_group_size=4)
        (self.data / f".{name}.crc").write_bytes(b"crc")
        return name

    def commit(self, batch: int, names: list[str]) -> None:
        """Commits a batch, unless it is committed. Its list is made when the lister looks."""
        self.notes.mkdir(parents=True, exist_ok=True)
        if max((int(path.name) for path in self.notes.iterdir()), default=-1) < batch:
            lines = [json.dumps({"path": f"file://{self.data}/{name}", "size": 1, "action": "add"}) for name in names]
            (self.notes / str(batch)).write_text("\n".join(["v1", *lines]))

    def run(self, rows: int = 10, partitions: int = 2) -> int:
        """Runs one batch, and makes its list. Returns its id."""
        batch = self.plan(rows)
        self.commit(batch, self.write(batch, partitions))
        self.done = batch + 1
        self.lister.look()
        return batch

    @property
    def checkpoint_folder(self) -> LocalFolder:
        return LocalFolder(str(self.checkpoint))
