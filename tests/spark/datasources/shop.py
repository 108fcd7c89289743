"""Data sources of the tests. Nothing of them needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Orders(DataSource):
    """Orders 0 to `count`, in `parts` partitions, yielded as `kind` says."""

    @classmethod
    def name(cls) -> str:
        return "orders"

    def schema(self) -> str:
        return "id long, item string"

    def reader(self, schema: Any) -> DataSourceReader:
        return OrdersReader(self.options)


class OrdersReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self.count, self.parts = int(options.get("count", "10")), int(options.get("PARTS", "2"))
        self.kind, self.fails_at = options.get("kind", "tuples"), int(options.get("failsAt", "-1"))

    def partitions(self) -> list[InputPartition]:
        bounds = [self.count * at // self.parts for at in range(self.parts + 1)]
        return [Range(*pair) for pair in pairwise(bounds)]

    def read(self, partition: Any) -> Iterator[Any]:
        for number in range(partition.start, partition.end):
            if number == self.fails_at:
                raise OSError("the shop is closed")
            if self.kind == "tuples":
                yield number, f"item {number}"
            elif self.kind == "rows":
                yield Row(item=f"item {number}", id=number)
            elif self.kind == "lists":
                yield [number, f"item {number}"]
            elif self.kind == "wide":
                yield number, "a", "b"
            elif (number - partition.start) % 3 == 0:
                ids = list(range(number, min(number + 3, partition.end)))
                yield pa.record_batch({"item": [f"item {one}" for one in ids], "id": pa.array(ids, pa.int32())})


def orders(first: int, last: int) -> list[tuple[int, str]]:
    return [(number, f"item {number}") for number in range(first, last)]
