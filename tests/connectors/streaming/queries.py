"""A stand-in for a streaming query: it has a checkpoint like Spark's, and writes batches as Spark's tasks and commits do."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import pyarrow as pa

from tailrace.connectors.streaming.batches import QUERY, BatchFile, BatchFolder
from tailrace.spark.streaming.writing import BatchWriting
from tailrace.storage.filesystem import LocalFolder

SCHEMA = pa.schema([("batch", pa.int64()), ("number", pa.int64())])


class Query:
    """A query whose rows are the numbers from 0 on, each with the id of its batch."""

    def __init__(self, place: Path, chance: random.Random, event_time: int | None = None) -> None:
        self.place, self.chance = place, chance
        self.checkpoint = place / QUERY
        self.work = BatchWriting(str(place), None, False, event_time)
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

    def write(self, batch: int, partitions: int) -> list[BatchFile]:
        """Writes the rows of a batch, dealt to partitions by chance."""
        first, last = self.offsets(batch)
        parts: list[list[int]] = [[] for _ in range(partitions)]
        for number in range(first, last):
            parts[self.chance.randrange(partitions)].append(number)
        return [
            self.work.write(iter([pa.record_batch([[batch] * len(part), part], schema=SCHEMA)]), at, batch)
            for at, part in enumerate(parts)
        ]

    def run(self, rows: int = 10, partitions: int = 2) -> int:
        """Runs one batch. Returns its id."""
        batch = self.plan(rows)
        self.work.commit(self.write(batch, partitions), batch)
        self.done = batch + 1
        return batch

    @property
    def checkpoint_folder(self) -> LocalFolder:
        return LocalFolder(str(self.checkpoint))
