"""Bugs to be planted in sources and sinks of files and in the marks of servers (`search.outages`, `search.marks`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pyarrow as pa

from search.planted.patches import MARKS, OUTAGES, Bug, Patches, method
from tailrace.connectors import transactional
from tailrace.connectors.files.holding import HoldingWriter
from tailrace.connectors.files.newfiles import NewFiles
from tailrace.connectors.files.partitioned import PartitionedWriter
from tailrace.connectors.filesinks import FileWriter
from tailrace.connectors.transactional import Scope, TransactionalSink


def _held_copies_are_not_written_again() -> Patches:
    """Bug: a file that goes on over a checkpoint is begun anew behind a failure, without what the checkpoint holds."""
    return [mock.patch.object(HoldingWriter, "_restore", lambda self: None)]


def _held_copies_stay() -> Patches:
    """Bug: the copies of a file's records stay in checkpoints when the file is prepared."""

    def make(prepare: Any) -> Any:
        def patched(self: HoldingWriter) -> Any:
            held = self.held.value
            prepared = prepare(self)
            if prepared is not None:
                self.held.value = held
            return prepared

        return patched

    return [method(HoldingWriter, "prepare", make)]


def _rows_go_to_the_partition_of_the_first() -> Patches:
    """Bug: a batch goes into the folder of its first row."""

    def make(parts: Any) -> Any:
        def patched(self: PartitionedWriter, batch: pa.RecordBatch, own: pa.RecordBatch) -> Iterator[Any]:
            for folder, _ in parts(self, batch.slice(0, 1), own.slice(0, 1)):
                yield folder, own

        return patched

    return [method(PartitionedWriter, "_parts", make)]


def _files_that_rolled_are_forgotten() -> Patches:
    """Bug: of several files of a transaction only the last one is prepared."""

    def make(prepare: Any) -> Any:
        def patched(self: FileWriter) -> Any:
            self._end_file()
            self._tokens = self._tokens[-1:]
            return prepare(self)

        return patched

    return [method(FileWriter, "prepare", make)]


def _found_files_are_forgotten() -> Patches:
    """Bug: the position of a list has the files of one moment only."""

    def make(note: Any) -> Any:
        def patched(self: NewFiles, one: Any) -> None:
            packed = self._packed and bool(self.seen.names)
            note(self, one)
            self._packed = packed

        return patched

    return [method(NewFiles, "_note", make)]


def _attempts_count_alike() -> Patches:
    """Bug: the counters of a writer that replaces a lost one begin where those of the lost one did."""
    first = transactional.first_counter
    return [mock.patch.object(transactional, "first_counter", lambda incarnation, attempt: first(incarnation, 0))]


def _runs_share_marks() -> Patches:
    """Bug: the scope of a mark has no run, so a start from an older checkpoint takes the marks of the run before it."""
    return [mock.patch.object(Scope, "name", property(lambda self: f"{self.uid}/{self.subtask}"))]


def _marks_are_not_read_again() -> Patches:
    """Bug: a connection whose commit had no answer is kept, with the mark that it had read before."""

    def write(self: TransactionalSink, connection: Any, transactions: Any) -> None:
        known = self.__dict__.setdefault("_known", {})
        scope = transactions[0].scope
        known.setdefault(scope, connection.last())
        for one in transactional.unwritten(self, known[scope], transactions):
            connection.commit(one.counter, one.pieces)
            known[scope] = one.counter

    return [mock.patch.object(TransactionalSink, "_write", write)]


FILE_BUGS = (
    Bug(
        "a file that goes on over a checkpoint loses what came before a failure",
        OUTAGES,
        _held_copies_are_not_written_again,
        seed=7,
    ),
    Bug("records of a file that was published stay in checkpoints", OUTAGES, _held_copies_stay, seed=18),
    Bug("a batch goes into the folder of its first row", OUTAGES, _rows_go_to_the_partition_of_the_first, seed=1),
    Bug("files that are full are forgotten", OUTAGES, _files_that_rolled_are_forgotten, seed=10),
    Bug("a restored list finds files that it has given out", OUTAGES, _found_files_are_forgotten, seed=2),
    Bug("a replacement counts its transactions as the lost one did", MARKS, _attempts_count_alike, seed=5),
    Bug("marks of two runs are one", MARKS, _runs_share_marks, seed=11),
    Bug("a mark is not read again behind a lost answer", MARKS, _marks_are_not_read_again),
)
