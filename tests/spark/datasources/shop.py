"""Data sources of the tests. Nothing of them needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)


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


class Visits(DataSource):
    """Visits 0 to `count`, of which each look finds `step` more. A range has `parts` partitions."""

    @classmethod
    def name(cls) -> str:
        return "visits"

    def schema(self) -> str:
        return "id long, item string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return VisitsReader(self.options)


class VisitsReader(DataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.count, self.step = int(options.get("count", "100")), int(options.get("step", "10"))
        self.parts, self.log = int(options.get("parts", "2")), options.get("log")
        self.fails_at = int(options.get("failsAt", "-1"))

    def prepareForTriggerAvailableNow(self) -> None:
        pass  # there is never more than `count`

    def initialOffset(self) -> dict[str, Any]:
        return {"shop": {"at": 0}}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """All that is there for a PySpark before 4.2, which gives no start."""
        return {"shop": {"at": self.count if start is None else min(self.count, start["shop"]["at"] + self.step)}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, size = start["shop"]["at"], end["shop"]["at"] - start["shop"]["at"]
        bounds = [first + size * at // self.parts for at in range(self.parts + 1)]
        self.note(f"range {bounds[0]} {bounds[-1]}")
        return [Range(*pair) for pair in pairwise(bounds)]

    def read(self, partition: Any) -> Iterator[Any]:
        for number in range(partition.start, partition.end):
            if number == self.fails_at:
                raise OSError("the shop is closed")
            yield number, f"item {number}"

    def commit(self, end: dict[str, Any]) -> None:
        self.note(f"commit {end['shop']['at']}")

    def note(self, line: str) -> None:
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{line}\n")


class OldVisits(Visits):
    """Visits, with the methods of PySpark 4.0."""

    @classmethod
    def name(cls) -> str:
        return "old visits"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return OldVisitsReader(self.options)


class OldVisitsReader(VisitsReader):
    prepareForTriggerAvailableNow = None  # type: ignore[assignment]

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"shop": {"at": self.count}}


class Letters(DataSource):
    """Letters 0 to `count`, with a simple reader, which finds `step` more at each look."""

    @classmethod
    def name(cls) -> str:
        return "letters"

    def schema(self) -> str:
        return "id long, item string"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return LettersReader(self.options)


class LettersReader(SimpleDataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.count, self.step = int(options.get("count", "100")), int(options.get("step", "10"))

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        end = {"at": min(self.count, start["at"] + self.step)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        return iter(orders(start["at"], end["at"]))
