"""Readers of records of text: lines or CSV records as bytes, which a `Decoder` makes into rows or columns.

A *raw record* is (path, byte at which it begins, its bytes), and the names in the header of a CSV file. A source with
`on_error` sends these through the graph, so that a record that cannot be decoded is set aside with its place.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tailrace.api.connectors import Reader
from tailrace.connectors.files.partitions import Partitions
from tailrace.elements.batches import Form
from tailrace.elements.rows import rows_of

Head = tuple[str, ...] | None
"""The names in the header of a file; None if files have no header."""
WRONG = (ValueError, pa.ArrowException, RecursionError)
"""The errors of a record that cannot be decoded. JSON may be nested too deeply."""
SHOWN = 80
"""Number of bytes of a wrong record that an error shows."""


class Decoder:
    """A decoder of raw records into records of a source."""

    def __init__(self, form: Form, partitions: Partitions) -> None:
        self.form, self.partitions = form, partitions

    def batch(self, raws: Sequence[bytes], head: Head) -> pa.RecordBatch:
        """The records as a batch, without partition columns. Raises `ValueError` if one of them is wrong."""
        raise NotImplementedError

    def check(self, raw: bytes) -> None:
        """Raises `ValueError` for a fault that `batch` does not see."""

    def values(self, path: str, raws: Sequence[bytes], head: Head) -> Any:
        """The records in the form of the source. Raises `ValueError` if one of them is wrong."""
        batch = self.partitions.add_to(self.batch(raws, head), path)
        return batch if self.form == "columns" else rows_of(batch)

    def decode(self, path: str, raws: Sequence[bytes], places: Sequence[int], head: Head) -> Any:
        """The records in the form of the source. Raises `ValueError` for the first one that is wrong, with its place."""
        try:
            return self.values(path, raws, head)
        except WRONG as error:
            at = self._first_wrong(path, raws, head)
            if at is None:
                raise
            fault = self._fault(path, raws[at], head) or error
            raise ValueError(fault_text(path, places[at], raws[at], fault)) from None

    def _first_wrong(self, path: str, raws: Sequence[bytes], head: Head) -> int | None:
        """The index of the first wrong record, found by halves: each half is decoded once."""
        first, last = 0, len(raws)
        while last - first > 1:
            middle = (first + last) // 2
            if self._fault(path, raws[first:middle], head) is not None:
                last = middle
            else:
                first = middle
        return first if first < last and self._fault(path, raws[first:last], head) is not None else None

    def _fault(self, path: str, raws: bytes | Sequence[bytes], head: Head) -> Exception | None:
        try:
            self.values(path, [raws] if isinstance(raws, bytes) else raws, head)
        except WRONG as error:
            return error
        return None

    def one(self, raw: tuple[Any, ...]) -> Any:
        """The record of one raw record, in rows. Raises `ValueError` with its place if it is wrong."""
        path, at, data, *head = raw
        try:
            self.check(data)
            return self.values(path, [data], head[0] if head else None)[0]
        except WRONG as error:
            raise ValueError(fault_text(path, at, data, error)) from None


class LineDecoder(Decoder):
    """A decoder of lines into rows of the line, `value`, and the partition columns of its file."""

    @property
    def columns(self) -> list[str]:
        return list(self.partitions.schema_with(_LINES).names)

    def batch(self, raws: Sequence[bytes], head: Head) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([raw.removesuffix(b"\r").decode() for raw in raws])], schema=_LINES)


_LINES = pa.schema([("value", pa.string())])


def fault_text(path: str, at: int, raw: bytes, fault: Exception) -> str:
    shown = raw[:SHOWN].decode(errors="replace") + ("…" if len(raw) > SHOWN else "")
    return f"{path} at byte {at}: {fault}: {shown!r}"


class RawLines(Reader):
    """The lines of a file as bytes, and their places."""

    head: Head = None

    def __init__(self, lines: Any, empty: bool = False) -> None:
        self.lines, self.empty = lines, empty
        """`lines`: a `LineReader` or a `FollowedFile` of bytes. `empty`: true if empty lines are records."""
        lines.splitter.strips = False
        self.places: list[int] = []
        """The bytes at which the records of the last read begin."""

    def read(self, limit: int, now: float) -> list[bytes] | None:
        while True:
            at = self.lines.splitter.at
            found: list[bytes] | None = self.lines.read(limit, now)
            if not found:
                return found
            kept = self._place(found, at + self._mark(found, at))
            if kept:
                return kept

    def _mark(self, found: list[bytes], at: int) -> int:
        """The size of the byte order mark in front of the lines."""
        passed = self.lines.splitter.at - at - sum(map(len, found)) - len(found)
        return len(BOM_UTF8) if at == 0 and passed >= len(BOM_UTF8) - 1 else 0

    def _place(self, found: list[bytes], at: int) -> list[bytes]:
        """The records without empty ones, after a note of their places: they follow each other from byte `at` on."""
        self.places, kept = [], []
        for raw in found:
            if self.empty or raw not in (b"", b"\r"):
                self.places.append(at)
                kept.append(raw)
            at += len(raw) + 1
        return kept

    @property
    def position(self) -> Any:
        return self.lines.position

    def next_at(self, now: float) -> float:
        found: float = self.lines.next_at(now)
        return found

    def close(self) -> None:
        self.lines.close()


class Records(Reader):
    """The records of one file, decoded; or raw ones, without a decoder."""

    def __init__(self, raws: RawLines, decoder: Decoder | None, path: str) -> None:
        self.raws, self.decoder, self.path = raws, decoder, path
        """`path`: the path of the file when it was found. The folders in it hold the file's partition columns."""

    def read(self, limit: int, now: float) -> Any:
        raws = self.raws
        found = raws.read(limit, now)
        self.lost, raws.lines.lost = raws.lines.lost, 0
        if not found:
            return found
        if self.decoder is not None:
            return self.decoder.decode(self.path, found, raws.places, raws.head)
        head = () if raws.head is None else (raws.head,)
        return [(self.path, at, raw, *head) for at, raw in zip(raws.places, found, strict=True)]

    @property
    def position(self) -> Any:
        return self.raws.position

    def next_at(self, now: float) -> float:
        return self.raws.next_at(now)

    def close(self) -> None:
        self.raws.close()
