"""The two kinds of stream readers under one interface, for the planner: the offsets up to which there are rows.

Offsets are JSON texts here, as Spark's log has them: they are compared as such, and a reader gets them unpacked anew.
"""

from __future__ import annotations

import inspect
import json
import threading
from typing import Any

from pyspark.sql.datasource import InputPartition

from tailrace.errors import error_text
from tailrace.spark.datasources.listing import checked_partitions


class OffsetRange(InputPartition):
    """The one partition of a range of a simple stream reader."""

    def __init__(self, start: str, end: str) -> None:
        super().__init__(None)
        self.start, self.end = start, end

    def offsets(self) -> tuple[Any, Any]:
        """Where the range begins and ends, as the reader takes them."""
        return json.loads(self.start), json.loads(self.end)


class StreamOffsets:
    """The offsets of a `DataSourceStreamReader`. Its calls come one at a time, from any thread."""

    def __init__(self, reader: Any, name: str) -> None:
        self._reader, self._name = reader, name
        self._lock = threading.Lock()

    def prepare_end(self) -> bool:
        """Fixes the end at what is there now. False if the reader has no such method (before PySpark 4.2)."""
        prepare = getattr(self._reader, "prepareForTriggerAvailableNow", None)
        if prepare is None:
            return False
        self._call("prepareForTriggerAvailableNow()", prepare)
        return True

    def initial(self) -> str:
        """The offset of a new start."""
        return self._text("initialOffset()", self._call("initialOffset()", self._reader.initialOffset))

    def latest(self, start: str) -> str:
        """The end of the range that begins at `start`; `start` itself if there is nothing behind it."""
        what = f"latestOffset(), behind {start},"
        found = self._call(what, lambda: self._latest(json.loads(start)))
        return start if found is None else self._text(what, found)

    def _latest(self, start: Any) -> Any:
        """`latestOffset` of either form: from PySpark 4.2 on it takes the start and a limit, and before it nothing."""
        if not inspect.signature(self._reader.latestOffset).parameters:
            return self._reader.latestOffset()
        try:
            from pyspark.sql.streaming.datasource import ReadAllAvailable
        except ImportError:
            return self._reader.latestOffset()

        default = getattr(self._reader, "getDefaultReadLimit", None)
        return self._reader.latestOffset(start, ReadAllAvailable() if default is None else default())

    def partitions(self, start: str, end: str) -> list[Any]:
        """The partitions of a range."""
        what = f"partitions({start}, {end})"
        found = self._call(what, lambda: self._reader.partitions(json.loads(start), json.loads(end)))
        return checked_partitions(found, f"{what} of the data source {self._name!r}")

    def commit(self, end: str) -> None:
        """Reports that nothing before this offset will be read any more."""
        self._call(f"commit({end})", lambda: self._reader.commit(json.loads(end)))

    def stop(self) -> None:
        """Ends the reader."""
        stop = getattr(self._reader, "stop", None)
        if stop is not None:
            stop()

    def _call(self, what: str, call: Any) -> Any:
        with self._lock:
            try:
                return call()
            except Exception as error:
                error.add_note(f"in {what} of the data source {self._name!r}")
                raise

    def _text(self, what: str, offset: Any) -> str:
        try:
            return json.dumps(offset)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{what} of the data source {self._name!r} returned {offset!r}, and offsets are dicts of numbers, texts, "
                f"booleans and dicts: {error_text(error)}"
            ) from None


class SimpleOffsets(StreamOffsets):
    """The offsets of a `SimpleDataSourceStreamReader`: only reading finds out where a range ends. Its rows are kept in
    `rows`, by (start, end), for the task that reads the range in this process."""

    def __init__(self, reader: Any, name: str, rows: dict[tuple[str, str], list[Any]]) -> None:
        super().__init__(reader, name)
        self._rows = rows

    def _latest(self, start: Any) -> Any:
        found, end = self._reader.read(start)
        rows = list(found)
        given, ends = json.dumps(start), self._text("read()", end)
        if rows and given == ends:
            raise ValueError(f"it returned {len(rows)} rows, and as their end the offset where they begin")
        self._rows.clear()
        if given != ends:
            self._rows[given, ends] = rows
        return end

    def latest(self, start: str) -> str:
        what = f"read({start})"
        return self._text(what, self._call(what, lambda: self._latest(json.loads(start))))

    def partitions(self, start: str, end: str) -> list[Any]:
        return [OffsetRange(start, end)]
