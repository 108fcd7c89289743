"""Checks of the effects of a simulated job: they must be as if no fault had happened to it.

A `Ledger` is a sink that keeps books in memory: what was written, prepared, published, and removed as a leftover. A
`WatchedFiles` is a storage of checkpoints that knows what each commit needs. Both note every breach when it happens;
`check_records` and `check_leftovers` check the books in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.api.connectors import Sink, SinkContext, SinkWriter
from tailrace.connectors.publishing import Finished, make_visible, settle
from tailrace.errors import TailraceError
from tailrace.state.manifest import Manifest, Prepared, decode_manifest
from tailrace.state.paths import incarnation_of, is_of_checkpoint, manifest_place
from tailrace.storage.manifest_slots import SEAL, holds_manifest
from tailrace.storage.reading import load_index
from tailrace.testing.memorystore import MemoryFiles


@dataclass
class Book:
    """The records of one sink, and what happened to them."""

    prepared: dict[bytes, list[Any]] = field(default_factory=dict)
    """Records by transaction, of transactions that are neither published nor removed."""
    published: dict[bytes, list[Any]] = field(default_factory=dict)
    """Published records by transaction, in the order of publishing."""
    removed: set[bytes] = field(default_factory=set)
    recovered: set[str] = field(default_factory=set)
    """Runs whose leftovers a sink received the request to remove."""
    traces: set[bytes] = field(default_factory=set)
    """Transactions that are known to have been published, even where they are not visible any more."""
    taken: set[bytes] = field(default_factory=set)
    """Published transactions that a reader has taken away."""
    newest: dict[str, int] = field(default_factory=dict)
    """The newest transaction that was published of a subtask in an attempt, where each worker publishes its own."""
    incarnation: int = 0
    """The newest incarnation under which a sink writes."""
    committed: set[bytes] | None = None
    """Transactions that a committed manifest has; None where there are no checkpoints."""
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def records(self) -> list[Any]:
        """All visible records."""
        return [record for records in self.published.values() for record in records]


BOOKS: dict[str, Book] = {}
"""Books by name, so that pickled copies of a sink find theirs."""


class Ledger(Sink):
    """A transactional sink in memory. Its copies in the workers of a simulation share one book."""

    description = "ledger"
    one_publisher = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._incarnation = 0
        self._published: set[bytes] = set()
        """Transactions that this copy has published: it is the copy of one worker, in one attempt."""
        self._unsettled: set[bytes] = set()
        """Published transactions that may be requested again: their traces stay."""

    @property
    def book(self) -> Book:
        """The book of this sink."""
        return BOOKS[self.name]

    def writer(self, ctx: SinkContext) -> SinkWriter:
        self._incarnation = ctx.incarnation
        self.book.incarnation = max(self.book.incarnation, ctx.incarnation)
        place = f"{ctx.uid}|{ctx.run_id}|{ctx.incarnation}|{ctx.subtask}"
        return _Writer(self.book, place, ctx.attempt * 1_000)

    def publish(self, prepared: Sequence[bytes]) -> None:
        book = self.book
        for token in prepared:
            if book.committed is not None and token not in book.committed:
                book.wrong.append(f"{token!r} was published, and no committed checkpoint has it")
            if token in self._published:
                book.wrong.append(f"{token!r} was published twice, and nothing had failed")
            self._published.add(token)
            if token in book.published:
                book.counts["published again"] += 1
                # A driver that was overtaken may still request it.
                if token not in book.traces and self._incarnation == book.incarnation:
                    book.wrong.append(f"{token!r} is to be published, and was to be forgotten before")
            elif token not in book.prepared:
                what = "was removed as a leftover before" if token in book.removed else "was never prepared"
                book.wrong.append(f"{token!r} is to be published, and {what}")
        self._unsettled.update(prepared)
        make_visible([_Entry(book, token) for token in prepared])

    def settled(self, prepared: Sequence[bytes]) -> None:
        book = self.book
        for token in prepared:
            if token not in book.published:
                book.wrong.append(f"{token!r} is to be forgotten, and was not published")
            book.counts["settled"] += 1
        self._unsettled.difference_update(prepared)
        settle([_Entry(book, token) for token in prepared])

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        book = self.book
        book.recovered.update(run_ids)
        for token in [*book.prepared, *book.traces]:
            whose, run_id, made_in, _, _ = token.decode().split("|")
            if whose != uid or run_id not in run_ids or int(made_in) >= incarnation or token in self._unsettled:
                continue
            if token in book.prepared:
                del book.prepared[token]
                book.removed.add(token)
                book.counts["leftovers removed"] += 1
            book.traces.discard(token)


class ServerLedger(Ledger):
    """A ledger of which each worker publishes what its own subtasks have prepared, in order. It may have to publish
    something once more, where its answer was lost. What it knows of published transactions stays when leftovers go."""

    description = "ledger of a server"
    one_publisher = False

    def publish(self, prepared: Sequence[bytes]) -> None:
        self._published.difference_update(prepared)
        for token in prepared:
            place, _, count = token.decode().rpartition("|")
            newest = self.book.newest.get(place, -1)
            if token not in self.book.published and int(count) < newest:
                self.book.wrong.append(f"{token!r} was published, and number {newest} before it")
            self.book.newest[place] = max(newest, int(count))
        super().publish(prepared)

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        traces = set(self.book.traces)
        super().recover(run_ids, incarnation, uid)
        self.book.traces |= traces


class _Entry(Finished):
    """A transaction on its way to become visible, in the form of a file sink's."""

    def __init__(self, book: Book, token: bytes) -> None:
        self.book, self.token = book, token
        self.name = self.trace = token.decode()

    def is_covered(self) -> bool:
        return self.token in self.book.prepared

    def visible(self) -> bool:
        return self.token in self.book.published and self.token not in self.book.taken

    def has_trace(self) -> bool:
        return self.token in self.book.traces

    def leave_trace(self) -> None:
        self.book.traces.add(self.token)

    def uncover(self) -> None:
        self.book.published[self.token] = self.book.prepared.pop(self.token)
        self.book.counts["published"] += 1

    def remove_trace(self) -> None:
        self.book.traces.discard(self.token)


class _Writer(SinkWriter):
    def __init__(self, book: Book, place: str, first: int) -> None:
        self.book = book
        self.place = place
        self.count = self.first = first
        self.records: list[Any] = []

    def write(self, batch: Any) -> None:
        self.records.extend(batch)

    def prepare(self) -> bytes | None:
        if not self.records:
            return None
        token = f"{self.place}|{self.count}".encode()
        self.count += 1
        book = self.book
        if token in book.prepared or token in book.published or token in book.removed:
            book.wrong.append(f"{token!r} is the name of two transactions")
        book.prepared[token] = self.records
        self.records = []
        return token

    def took_over(self) -> None:
        book = self.book
        for token in [*book.prepared]:
            place, _, count = token.decode().rpartition("|")
            if place == self.place and int(count) < self.first:
                del book.prepared[token]
                book.removed.add(token)
                book.counts["removed what a lost worker had left"] += 1


class WatchedFiles(MemoryFiles):
    """The storage of checkpoints of one job, with checks."""

    def __init__(self, books: Iterable[Book] = (), url: str = "memory:") -> None:
        super().__init__(url=url)
        self.books = list(books)
        for book in self.books:
            book.committed = set() if book.committed is None else book.committed
        self.wrong: list[str] = []
        self.commits = 0
        self.ended_early = 0
        """Number of checkpoints before the last one at which a subtask had already finished."""
        self.incremental = 0
        """Number of checkpoints that refer to files of earlier ones."""
        self.newest: tuple[tuple[int, int], Manifest] | None = None
        """Place and manifest of the checkpoint that a driver would restore now."""
        self.lineage: dict[str, frozenset[bytes]] = {}
        """Manifest -> all that was prepared up to it, by its run and by the runs that it goes on from."""
        self._of_run: dict[str, frozenset[bytes]] = {}
        """Run -> all that was prepared up to the newest of its manifests."""

    def begin_run(self, run_id: str, origin: tuple[MemoryFiles, str] | None) -> None:
        folder, path = origin if origin is not None else (self, "")
        assert isinstance(folder, WatchedFiles)
        self._of_run[run_id] = folder.lineage.get(path, frozenset())

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        self._make(name, data)

    def _make(self, name: str, data: bytes) -> None:
        place = manifest_place(name)
        if place is None or not holds_manifest(data):
            return
        manifest = decode_manifest(data, name)
        self.commits += 1
        if self.newest is not None and self.newest[0] > place:
            self.wrong.append(f"{name} was committed when {self.newest[0]} had been")
        else:
            self.newest = (place, manifest)
        ended = any(any(operator.finished) for operator in manifest.operators)
        self.ended_early += ended and not manifest.final
        self.incremental += bool(manifest.older)
        self._all_there(name, manifest)
        prepared = {self._bytes(one) for one in manifest.prepared}
        held = self._of_run.get(manifest.run_id, frozenset()) | prepared
        self.lineage[name] = self._of_run[manifest.run_id] = held
        for book in self.books:
            assert book.committed is not None
            book.committed |= prepared

    def _bytes(self, one: Prepared) -> bytes:
        if isinstance(one.data, bytes):
            return one.data
        at = one.data
        return bytes(self.contents.get(at.file, b"")[at.offset : at.offset + at.length])

    def _all_there(self, name: str, manifest: Manifest) -> None:
        sizes = {file.name: file.size for file in manifest.files}
        for file in [*sizes, *manifest.older]:
            data = self.contents.get(file)
            if data is None:
                self.wrong.append(f"{name} needs {file}, which is not there")
                continue
            if file in sizes and len(data) != sizes[file]:
                self.wrong.append(f"{name} says that {file} has {sizes[file]} bytes, not {len(data)}")
                continue
            try:
                load_index(self, file)
            except TailraceError as error:
                self.wrong.append(f"{name} needs {file}, which cannot be read: {error}")

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        if self.newest is not None:
            _, manifest = self.newest
            needed = {file.name for file in manifest.files} | set(manifest.older)
            for name in names:
                if name in needed and name in self.contents:
                    self.wrong.append(f"{name} was deleted, and checkpoint {manifest.checkpoint} needs it")
        super().delete(names)

    def leftovers(self, runs: Iterable[int], needed: Iterable[str]) -> list[str]:
        """State files and manifests under these incarnations that are not needed."""
        keep, found = set(needed), []
        for name, data in self.contents.items():
            manifest = manifest_place(name) is not None and not bytes(data).startswith(SEAL)
            own = incarnation_of(name) in set(runs)
            if own and (manifest or is_of_checkpoint(name)) and name not in keep:
                found.append(name)
        return found


def check_leftovers(book: Book, last: str) -> list[str]:
    """Errors for runs before the `last` one that have left output under cover, where no later start requested its removal.
    (Where one did, a worker whose end was late may have prepared something after that.)"""
    left = {token.decode().split("|")[1] for token in book.prepared} - book.recovered - {last}
    return [f"what run {run} has prepared stays under cover for ever" for run in sorted(left)]


def check_records(
    book: Book, expected: Counter[Any], order: Callable[[Any], Any] | None = None, *, partly: bool = False
) -> list[str]:
    """Descriptions of what is wrong with the published records: as a multiset, and in their order, where `order` gives
    (key, place) of a record. `partly`: some records may be missing."""
    wrong = list(book.wrong)
    records = book.records()
    found = Counter(records)
    if found != expected:
        lost, more = expected - found, found - expected
        if lost and not partly:
            wrong.append(f"{lost.total()} records of {expected.total()} were lost, as {_some(lost)}")
        if more:
            wrong.append(f"{more.total()} records are too many, as {_some(more)}")
    if order is not None:
        last: dict[Any, Any] = {}
        for record in records:
            key, place = order(record)
            if key in last and place <= last[key]:
                wrong.append(f"of key {key!r}, {place!r} was published after {last[key]!r}")
                break
            last[key] = place
    return wrong


def _some(records: Counter[Any]) -> str:
    return ", ".join(map(repr, list(records)[:3]))
